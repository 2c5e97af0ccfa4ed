"""The contract of every algorithm. These tests run for each one in ALGORITHMS, so a new one is tested without more."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import signal
import typing
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from helpers.onnx_files import assert_plays_alike
from helpers.settings import (
    Setting,
    altered,
    changed,
    changed_or_refused,
    odd_numbers,
    of_wrong_type,
    plain_type,
    settings_of,
)
from helpers.training import (
    ACTION_HIGH,
    ACTION_LOW,
    drop,
    learnable_dataset,
    logged_steps,
    refusal,
    save_npz,
    state_files,
    tiny,
)
from safetensors.numpy import load_file

from droprl import export_onnx, load_policy
from droprl.algorithms import ALGORITHMS, BC
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

# Loads each policy that its arguments name, acts for one state at a time and for a batch, and prints the bits.
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
    elsewhere: dict[Path, list[str]]  # the actions of each run and policy in a fresh process without the dataset


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
    losses = ALGORITHMS[name].card.falls
    log = [entry for entry in trained.runs[name].metrics() if set(losses) <= set(entry)]
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
def test_a_run_directory_acts_bit_identically_too(trained: Trained, name: str) -> None:
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
        patch.setattr(importlib.import_module("droprl.train.training"), "CALL_SECONDS", 0.0)  # one update in each call
        patch.setattr(Loop, "run", interrupt)
        with pytest.raises(Interrupted, match="stopped at update 43 of 80"):
            fit(dataset, tiny(name), out=out, seeds=SEEDS, **SCHEDULE)
    assert [c.step for c in Run(out).checkpoints() if not c.scheduled] == [43]
    resumed = fit(dataset, tiny(name), out=out, seeds=SEEDS, **SCHEDULE)
    assert state_files(resumed) == state_files(trained.runs[name])
    assert_same_log(resumed, trained.runs[name])


def assert_same_log(found: Run, expected: Run) -> None:
    """The same metrics up to rounding: the sums behind the means were added in other portions."""
    assert logged_steps(found) == logged_steps(expected)
    for entry, other in zip(found.metrics(), expected.metrics(), strict=True):
        assert entry.keys() == other.keys()
        for metric in entry:
            values, others = (np.asarray(values, float) for values in (entry[metric], other[metric]))
            np.testing.assert_allclose(values, others, rtol=1e-5, atol=1e-5, err_msg=metric)


@every_algorithm
def test_a_seed_does_not_depend_on_the_seeds_beside_it(
    trained: Trained, dataset: Dataset, name: str, tmp_path: Path
) -> None:
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
def test_a_setting_of_the_wrong_type_is_refused_before_anything_is_written(
    dataset: Dataset, name: str, tmp_path: Path
) -> None:
    algorithm = tiny(name)
    for path, hint, value in settings_of(algorithm):
        for wrong in of_wrong_type(hint, value):

            def train(wrong: Any = wrong, path: Setting = path) -> None:
                fit(dataset, changed(algorithm, path, wrong), out=tmp_path / "run", **SCHEDULE)

            assert re.search(rf"\b{path[-1]} (is|has) ", refusal(train)), (path, wrong)
    assert not (tmp_path / "run").exists()


@every_algorithm
def test_nan_and_infinity_are_refused_where_the_settings_are_made(name: str) -> None:
    algorithm = tiny(name)
    for path, hint, _ in settings_of(algorithm):
        for value in (np.nan, np.inf, -np.inf) if plain_type(hint) is float else ():
            assert refusal(changed, algorithm, path, value).startswith(f"{path[-1]} is ")


def test_the_contract_notices_an_algorithm_that_checks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Careless(BC):
        pace: float = 0.1

    monkeypatch.setitem(ALGORITHMS, "careless", Careless)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_nan_and_infinity_are_refused_where_the_settings_are_made("careless")


@every_algorithm
def test_zero_and_negative_numbers_are_refused_by_name_or_a_policy_can_be_trained_with_them(
    dataset: Dataset, name: str, tmp_path: Path
) -> None:
    """All settings that accept such a number get it in one run; -1 is tried before 0."""
    algorithm = tiny(name)
    for path, hint, value in settings_of(algorithm):
        for odd in odd_numbers(hint, value):
            accepted, message = changed_or_refused(algorithm, path, odd)
            if accepted is not None:
                algorithm = accepted
                break
            assert message.startswith(f"{path[-1]} ")
            assert "\n" not in message
    run = fit(dataset, algorithm, out=tmp_path / "run", steps=2, progress=False)
    assert np.isfinite(load_policy(run.path).act(OBSERVATIONS)).all()


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
    kind = ALGORITHMS[name]
    for algorithm in (kind(), kind.small(), altered(kind())):
        written = json.dumps(algorithm_to_dict(algorithm), allow_nan=False)
        assert algorithm_from_dict(json.loads(written), "config") == algorithm
    for (path, _, value), (_, _, other) in zip(settings_of(kind()), settings_of(altered(kind())), strict=True):
        assert value != other, path


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
def test_its_policy_becomes_an_onnx_file_unless_it_says_why_not(trained: Trained, name: str, tmp_path: Path) -> None:
    policy, file = load_policy(trained.policies[name]), tmp_path / "policy.onnx"
    reason = ALGORITHMS[name].card.no_export
    if reason:
        assert reason in refusal(export_onnx, policy, file)
        assert not file.exists()
    else:
        assert export_onnx(policy, file).largest_difference < 1e-5
        assert_plays_alike(policy, file)


def test_a_reason_against_an_onnx_file_is_what_the_export_says(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = dataclasses.replace(BC.card, no_export="it asks an oracle")
    monkeypatch.setattr(BC, "card", card)
    test_its_policy_becomes_an_onnx_file_unless_it_says_why_not(trained, "bc", tmp_path)


@every_algorithm
def test_an_algorithm_that_clones_acts_like_the_data(trained: Trained, name: str) -> None:
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
    """Every check has a number and a meaning in words. Missing metrics are not judged."""
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
    algorithm = tiny(name).resolve(dataset)
    spec = algorithm.prepare(dataset).spec
    for path, _, value in settings_of(algorithm):
        if isinstance(value, int | tuple) and not isinstance(value, bool):
            huge = (10**9,) * len(value) if isinstance(value, tuple) else 10**9
            with suppress(DropError, ValueError, OverflowError):
                _skeleton(changed(algorithm, path, huge), spec, 0)  # computes shapes only, so it ends soon


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
