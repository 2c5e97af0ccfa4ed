"""The contract of every algorithm. One that is added to ALGORITHMS is held to it by being there."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
import types
import typing
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from helpers.training import (
    ACTION_HIGH,
    ACTION_LOW,
    drop,
    learnable_dataset,
    logged_steps,
    save_npz,
    state_files,
    tiny,
)
from safetensors.numpy import load_file

from droprl import load_policy
from droprl.algorithms import ALGORITHMS, Algorithm
from droprl.algorithms.protocol import Clock
from droprl.algorithms.saved import algorithm_from_dict, algorithm_to_dict
from droprl.cli.train import Train
from droprl.data import Dataset, load_dataset
from droprl.errors import DropError
from droprl.loaded import _skeleton
from droprl.train import Interrupted, Run, fit
from droprl.train.loop import Loop

SEEDS = (3, 7)
SCHEDULE: dict[str, Any] = {"steps": 80, "checkpoint_every": 10, "log_every": 5, "progress": False}
OBSERVATIONS = np.random.default_rng(5).normal(size=(4, 3)).astype(np.float32)
every_algorithm = pytest.mark.parametrize("name", list(ALGORITHMS))

# Acts with each policy named in its arguments, alone and in a batch, and prints the bits.
ACT = """
import json, sys
import numpy as np
from droprl import load_policy
observations = np.array(json.loads(sys.argv[1]), np.float32)
for path in sys.argv[2:]:
    policy = load_policy(path)
    one = np.stack([policy.act(o) for o in observations])
    policy.reset()
    print(json.dumps([one.tobytes().hex(), policy.act(observations).tobytes().hex()]))
"""


@dataclass(frozen=True)
class Trained:
    runs: dict[str, Run]
    policies: dict[str, Path]  # saved with `save`, from the second seed
    elsewhere: dict[Path, list[str]]  # what each run and policy did in a fresh process, the dataset gone


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return learnable_dataset()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("contract")
    source = save_npz(learnable_dataset(), folder / "learnable.npz")
    loaded = load_dataset(source)
    runs = {
        name: fit(loaded, tiny(name), out=folder / name, seeds=SEEDS, source=str(source), **SCHEDULE)
        for name in ALGORITHMS
    }
    policies = {n: load_policy(run.path, seed=SEEDS[1]).save(folder / f"{n}-policy") for n, run in runs.items()}
    source.unlink()
    paths = [*(run.path for run in runs.values()), *policies.values()]
    code, out, err = drop(json.dumps(OBSERVATIONS.tolist()), *paths, code=ACT)
    assert code == 0, err
    return Trained(runs, policies, dict(zip(paths, map(json.loads, out.splitlines()), strict=True)))


def actions(path: Path, **options: Any) -> list[str]:
    policy = load_policy(path, **options)
    one = np.stack([policy.act(observation) for observation in OBSERVATIONS])
    policy.reset()
    return [one.tobytes().hex(), policy.act(OBSERVATIONS).tobytes().hex()]


@every_algorithm
def test_training_lowers_the_loss(trained: Trained, name: str) -> None:
    log, losses = trained.runs[name].metrics(), ALGORITHMS[name].card.falls
    assert losses
    for seed in range(len(SEEDS)):
        total = [sum(entry[loss][seed] for loss in losses) for entry in log]
        assert np.mean(total[-3:]) < 0.7 * np.mean(total[:3])


@every_algorithm
def test_a_saved_policy_acts_bit_identically_in_a_fresh_process_without_the_data(trained: Trained, name: str) -> None:
    path = trained.policies[name]
    assert trained.elsewhere[path] == actions(path)
    assert actions(path) == actions(trained.runs[name].path, seed=SEEDS[1])  # saving changed nothing


@every_algorithm
def test_a_run_directory_loads_likewise(trained: Trained, name: str) -> None:
    path = trained.runs[name].path
    assert trained.elsewhere[path] == actions(path, seed=SEEDS[0])
    assert actions(path, seed=SEEDS[0]) != actions(path, seed=SEEDS[1])


@every_algorithm
def test_an_interrupted_run_resumes_to_the_same_bytes(
    trained: Trained, dataset: Dataset, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_updates = Loop.run

    def interrupt(self: Loop, states: Any, first: int, count: int) -> Any:
        if first == 42:
            os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C between two checkpoints
        return run_updates(self, states, first, count)

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(importlib.import_module("droprl.train.training"), "CALL_SECONDS", 0.0)  # one update a call
        patch.setattr(Loop, "run", interrupt)
        with pytest.raises(Interrupted, match="stopped at update 43 of 80"):
            fit(dataset, tiny(name), out=out, seeds=SEEDS, **SCHEDULE)
    assert [c.step for c in Run(out).checkpoints() if not c.scheduled] == [43]
    resumed = fit(dataset, tiny(name), out=out, seeds=SEEDS, **SCHEDULE)
    assert state_files(resumed) == state_files(trained.runs[name])
    assert logged_steps(resumed) == logged_steps(trained.runs[name])


@every_algorithm
def test_a_seed_does_not_notice_its_company(trained: Trained, dataset: Dataset, name: str, tmp_path: Path) -> None:
    alone = fit(dataset, tiny(name), out=tmp_path / "alone", seeds=SEEDS[1:], **SCHEDULE)
    leaves, expected = (jax.tree.leaves(run.state(SEEDS[1])) for run in (alone, trained.runs[name]))
    rounding = 0.0 if jax.default_backend() == "cpu" else 1e-3
    for one, other in zip(leaves, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=rounding, atol=rounding)


@every_algorithm
def test_bad_data_is_refused(dataset: Dataset, name: str, tmp_path: Path) -> None:
    with pytest.raises(DropError, match="no episode ends"):
        fit(learnable_dataset(timeouts=np.zeros(240, bool)), tiny(name), out=tmp_path / "a", **SCHEDULE)
    with pytest.raises(DropError, match="observations row 0 is nan"):
        fit(learnable_dataset(observations=np.full((240, 3), np.nan)), tiny(name), out=tmp_path / "b", **SCHEDULE)
    unchecked = dataclasses.replace(dataset, observations=np.full_like(dataset.observations, np.nan))
    with pytest.raises(DropError, match="holds NaN"):
        fit(unchecked, tiny(name), out=tmp_path / "c", **SCHEDULE)
    assert not list(tmp_path.iterdir())


@every_algorithm
def test_bad_settings_are_refused_before_anything_is_written(dataset: Dataset, name: str, tmp_path: Path) -> None:
    for wrong in ({"batch_size": 0}, {"learning_rate": float("nan")}, {"batch_size": "32"}, {"batch_size": 2.5}):
        with pytest.raises(DropError, match=r"\w+ is ") as caught:
            fit(dataset, tiny(name, **wrong), out=tmp_path / "run", **SCHEDULE)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@every_algorithm
@pytest.mark.parametrize("preset", ["paper", "small"])
def test_the_presets_make_networks(dataset: Dataset, name: str, preset: str) -> None:
    kind = ALGORITHMS[name]
    algorithm = (kind.small() if preset == "small" else kind()).resolve(dataset)
    prepared = algorithm.prepare(dataset)
    shapes = jax.eval_shape(lambda: algorithm.init(jax.random.key(0), prepared.spec, Clock.at(0, 1)))
    assert jax.tree.leaves(shapes)


@every_algorithm
def test_the_config_survives_json(name: str) -> None:
    for algorithm in (ALGORITHMS[name](), ALGORITHMS[name].small(), altered(ALGORITHMS[name]())):
        written = json.dumps(algorithm_to_dict(algorithm), allow_nan=False)
        assert algorithm_from_dict(json.loads(written), "config") == algorithm
    assert all(a != b for a, b in zip(values(ALGORITHMS[name]()), values(altered(ALGORITHMS[name]())), strict=True))


@every_algorithm
def test_actions_stay_inside_their_bounds(trained: Trained, name: str) -> None:
    policy = load_policy(trained.policies[name])
    far = np.array([[1e6, -1e6, 1e6], [-1e6, 1e6, 3.0], [0.0, 0.0, 0.0], [9.0, 9.0, -1e6]], np.float32)
    acted = policy.act(far)
    policy.reset()
    single = policy.act(far[0])
    assert acted.shape == (4, 2)
    assert single.shape == (2,)
    for action in (*acted, single):
        assert (np.asarray(ACTION_LOW, np.float32) <= action).all()
        assert (action <= np.asarray(ACTION_HIGH, np.float32)).all()


@every_algorithm
def test_what_clones_acts_like_the_data(trained: Trained, name: str) -> None:
    if not ALGORITHMS[name].card.clones:
        pytest.skip(f"{name} does not clone")
    policy, data, learned = load_policy(trained.policies[name]), learnable_dataset(), []
    for observations in np.split(data.observations, 60):
        policy.reset()
        learned.append(policy.act(observations))
    off = np.abs(np.concatenate(learned) - data.actions).mean(axis=0) / (np.array(ACTION_HIGH) - ACTION_LOW)
    assert (off < 0.2).all()


@every_algorithm
def test_every_curve_that_it_declares_is_in_the_log(trained: Trained, name: str) -> None:
    logged = {metric for entry in trained.runs[name].metrics() for metric in entry}
    for curve in ALGORITHMS[name].card.curves:
        assert {curve.metric, *(metric for metric, _ in curve.lines)} <= logged
    assert set(ALGORITHMS[name].card.falls) <= logged


@every_algorithm
def test_its_checks_judge_what_it_logs(trained: Trained, name: str) -> None:
    """Whatever is measured is judged by number and in words; what is missing is not judged."""
    run = trained.runs[name]
    latest: dict[str, Any] = {}
    for entry in run.metrics():
        latest |= entry
    values = {metric: value[0] for metric, value in latest.items() if isinstance(value, list) and value[0] is not None}
    for check in run.config.algorithm.checks(values):
        assert np.isfinite(check.value)
        assert check.name
        assert check.meaning
    assert run.config.algorithm.checks({}) == []


@every_algorithm
def test_a_file_cannot_ask_for_millions_of_layers(dataset: Dataset, name: str) -> None:
    """Sizes cost nothing until arrays are made, but layers are made one by one."""
    algorithm: Any = tiny(name)
    spec = algorithm.resolve(dataset).prepare(dataset).spec
    for field in dataclasses.fields(algorithm):
        value = getattr(algorithm, field.name)
        if isinstance(value, int | tuple) and not isinstance(value, bool):
            huge = (10**9,) * len(value) if isinstance(value, tuple) else 10**9
            with suppress(DropError, ValueError, OverflowError):
                asked = dataclasses.replace(algorithm, **{field.name: huge}).resolve(dataset)
                _skeleton(asked, spec, 0)  # shapes alone: this comes to an end


@every_algorithm
def test_nothing_that_is_written_can_hold_code(trained: Trained, name: str) -> None:
    files = [p for root in (trained.runs[name].path, trained.policies[name]) for p in root.rglob("*") if p.is_file()]
    assert {"state.safetensors", "policy.safetensors", "policy.json"} <= {path.name for path in files}
    for path in files:
        if path.name == ".lock":
            assert path.stat().st_size == 0
        elif path.suffix == ".safetensors":
            assert load_file(path)
        else:
            assert path.suffix in (".json", ".jsonl")
            for text in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
                json.loads(text)


def test_the_command_line_offers_every_algorithm() -> None:
    assert set(typing.get_args(typing.get_type_hints(Train)["algo"])) == set(ALGORITHMS)
    assert all(name == kind.name for name, kind in ALGORITHMS.items())


# --- a config in which nothing has its default ---


def altered(config: Any) -> Algorithm:
    hints = typing.get_type_hints(type(config))
    names = [field.name for field in dataclasses.fields(config)]
    changed: Algorithm = dataclasses.replace(config, **{n: _other(hints[n], getattr(config, n)) for n in names})
    return changed


def values(config: Any) -> list[Any]:
    """All fields, those of nested configs one by one."""
    found: list[Any] = []
    for value in (getattr(config, field.name) for field in dataclasses.fields(config)):
        found += values(value) if dataclasses.is_dataclass(value) else [value]
    return found


def _other(hint: Any, value: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(h for h in typing.get_args(hint) if h is not type(None))
        return _other(hint, {int: 3, float: 0.25}[hint] if value is None else value)
    if dataclasses.is_dataclass(hint):
        return altered(value)
    if typing.get_origin(hint) is tuple:
        return tuple(entry + 1 for entry in value)
    if typing.get_origin(hint) is typing.Literal:
        return next(choice for choice in typing.get_args(hint) if choice != value)
    if hint is float:
        return value - 0.125 if value > 0.875 else value + 0.125  # a share stays one
    return not value if hint is bool else value + 1
