"""JSON and TOML of strangers: odd values at every depth end in one line, whoever reads them."""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from helpers.suite_folders import make_suite, play
from helpers.training import learnable_dataset, refusal, save_npz, tiny

from droprl import evaluate, load_dataset, load_policy
from droprl.bench import Bench, load_bench, load_suite, suite
from droprl.data import map_dataset
from droprl.errors import DropError
from droprl.evaluation import load_evaluations
from droprl.evaluation.evaluation import CheckpointEpisodes, Evaluation
from droprl.files.seals import parse_json, read_sealed, sealed
from droprl.files.storage import write_json
from droprl.finetuning.result import from_json
from droprl.select.selection import load_selection
from droprl.train import Run, fit

Use = Callable[[], Any]
DEEP: Any = json.loads("[" * 20 + "]" * 20)
ODD: list[Any] = [None, True, -1, 10**400, 1.5, "x", [], {}, ["x"], {"x": {}}, DEEP]
MISSING = object()


def places(content: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    parts = (
        content.items() if isinstance(content, dict) else enumerate(content[:1] if isinstance(content, list) else ())
    )
    for key, value in parts:
        yield from places(value, (*at, key))


def changed(content: Any) -> Iterator[Any]:
    """The content with every value at every depth missing, or replaced by each odd value in turn."""
    for number, at in enumerate(places(content)):
        for odd in ODD[number % 2 :: 2]:  # half of them: the other half is for the next place
            made = copy.deepcopy(content)
            inner = made
            for key in at[:-1]:
                inner = inner[key]
            if at:
                inner[at[-1]] = odd
            yield made if at else odd
        if at and isinstance(at[-1], str):
            made = inner = copy.deepcopy(content)
            for key in at[:-1]:
                inner = inner[key]
            del inner[at[-1]]
            yield made


def survives(content: Any, write: Callable[[Any], object], use: Use) -> int:
    """Use every changed content; returns how many were refused."""
    said = []
    for odd in changed(content):
        write(odd)
        try:
            use()
        except DropError as error:
            said.append(str(error))
    assert all(text.splitlines() == [text] and len(text) < 1500 for text in said)
    return len(said)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    home = tmp_path_factory.mktemp("home")
    made = fit(learnable_dataset(), tiny("bc"), out=home / "run", steps=4, seeds=2, log_every=2, progress=False)
    load_policy(made.path).save(home / "policy")
    return made


def sealed_or_not(content: Any) -> bytes:
    return sealed(content) if isinstance(content, dict) else json.dumps(content).encode()


def use_of(run: Run, name: str) -> Use:
    uses: dict[str, Use] = {
        "config.json": lambda: [Run(run.path).spec(), Run(run.path).metrics()],
        "data.json": lambda: [run.spec(), run.scaling(), run.sub_tasks()],
        "support.json": run.support,
        "checkpoint.json": lambda: load_policy(run.path),
        "policy.json": lambda: load_policy(run.path.parent / "policy"),
    }
    return uses[name]


@pytest.mark.parametrize("name", ["config.json", "data.json", "support.json", "checkpoint.json", "policy.json"])
def test_sealed_files(run: Run, name: str) -> None:
    folder = {"checkpoint.json": run.checkpoints()[-1].path, "policy.json": run.path.parent / "policy"}
    path = folder.get(name, run.path) / name
    kept, content = path.read_bytes(), read_sealed(path)
    try:
        assert survives(content, lambda odd: path.write_bytes(sealed_or_not(odd)), use_of(run, name)) > 10
    finally:
        path.write_bytes(kept)


def test_logs(run: Run) -> None:
    path = run.path / "metrics.jsonl"
    kept = path.read_bytes()
    entry = json.loads(kept.splitlines()[-1])
    try:
        assert survives(entry, lambda odd: path.write_text(json.dumps(odd) + "\n"), Run(run.path).metrics) > 10
    finally:
        path.write_bytes(kept)


def test_descriptions_of_columns(tmp_path: Path) -> None:
    map_dataset(save_npz(learnable_dataset(), tmp_path / "data.npz"), tmp_path / "columns")
    path = tmp_path / "columns" / "dataset.json"
    content = read_sealed(path)

    def use() -> None:
        found = load_dataset(tmp_path / "columns")
        found.scores(found.returns)

    assert survives(content, lambda odd: path.write_bytes(sealed_or_not(odd)), use) > 10


@pytest.mark.parametrize(
    "changes",
    [
        {"seeds": []},
        {"seeds": [1, 1]},
        {"seeds": [-1]},
        {"seeds": [2**32]},
        {"steps": 0},
        {"log_every": 0},
        {"seeds": list(range(3)), "steps": 10**30},
    ],
)
def test_configs_that_make_no_sense(run: Run, changes: dict[str, Any]) -> None:
    path = run.path / "config.json"
    kept, content = path.read_bytes(), read_sealed(path)
    try:
        path.write_bytes(sealed(content | {"run": content["run"] | changes}))
        assert str(path) in refusal(Run, run.path)
    finally:
        path.write_bytes(kept)


def test_results(run: Run, tmp_path: Path) -> None:
    played = CheckpointEpisodes(0, 4, [1.0, 2.0], [3, 3], None)
    facts: dict[str, Any] = {"algorithm": "bc", "rule": None, "adaptation": None, "changed": {}, "dataset": "d"}
    facts |= {"env": "e", "protocol": "last", "unit": "return", "mean": 1.5, "iqm": 1.5, "interval": (1.0, 2.0)}
    made = Evaluation(**facts, results=[played], caveat=None, milliseconds_per_action=0.1)
    path = run.evaluation_folder / "bc-last.json"
    assert survives(made.to_json(), lambda odd: write_json(path, odd), lambda: load_evaluations(run)) > 10
    path.unlink()
    seed = {"step": 4, "ascent_steps": None, "steps_played": 1, "episodes_played": 1, "chosen_for": None}
    tuned = {k: facts[k] for k in ("algorithm", "adaptation", "dataset", "env", "unit")} | {"caveat": None}
    tuned |= {"level": "policy", "budget": 9, "seeds": [seed | {"initial": vars(played), "tuned": vars(played)}]}
    kept: list[Any] = [None]
    assert survives(tuned, lambda odd: kept.__setitem__(0, odd), lambda: from_json(kept[0], path)) > 10
    setting = {"n_sub_tasks": 1, "trajectories_per_sub_task": 1, "ascent_steps": 1, "run": "r", "fitting_loss": 0.1}
    chosen = {"candidates": [setting | {"kept": True, "estimate": None, "played": [1.0]}], "chosen": 0, "episodes": 1}
    use = lambda: load_selection(tmp_path)  # noqa: E731
    assert survives(chosen, lambda odd: write_json(tmp_path / "selection.json", odd), use) > 10


def test_suites(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    content = tomllib.loads((Path(suite.__file__).parent / "suites" / "smoke.toml").read_text())
    kept: list[Any] = [None]

    def use() -> None:
        if isinstance(kept[0], dict):
            made = suite._suite("mine", kept[0], str(path))
            for method in made.methods:
                method.algorithm("small", "mine")

    assert survives(content, lambda odd: kept.__setitem__(0, odd), use) > 10
    nested = "[" * 20_000
    for text in (f"x = {nested}", f"x = {'[' * 40}{']' * 40}", b"\xff\xfe", "x = 1" + "0" * 5000, "x ="):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        assert refusal(load_suite, path).startswith(f"{path}: ")


def test_folders_of_suites(tmp_path: Path) -> None:
    made = Bench(make_suite(tmp_path), tmp_path / "out")
    play(made)
    made.write_suite()

    def use() -> None:
        found = load_bench(tmp_path / "out")
        for task in found.suite.tasks:
            found.data_of(task)
            for way in found.suite.methods:
                for one in found.suite.plays_of(way):
                    found.scores(task, way, one)
                    found.is_played(task, way, one)

    method = made.suite.methods[0]
    for path in (tmp_path / "out" / "suite.json", made.play_path(made.suite.tasks[0], method, method.name)):
        kept = path.read_bytes()
        content = json.loads(kept)
        for part in ("tasks", "methods", "results"):  # the same faults, in fewer places
            content |= {part: content[part][:1]} if part in content else {}
        assert survives(content, lambda odd, path=path: path.write_text(json.dumps(odd)), use) > 10  # type: ignore[misc]
        path.write_bytes(kept)


@pytest.mark.parametrize("text", ["NaN", '{"x": Infinity}', "[" * 100_000, "[" * 33 + "]" * 33, "9" * 5000, "", "{"])
def test_json_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_json(text)
    assert "\n" not in str(caught.value)
    assert parse_json("[" * 32 + "]" * 32)


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"batch_size": 10**12}, {}),
        ({"batch_size": 2**30}, {}),
        ({"width": 10**7}, {}),
        ({"width": 10**400}, {}),
        ({}, {"seeds": 10**12}),
        ({}, {"seeds": []}),
        ({}, {"seeds": [2**40]}),
        ({}, {"steps": 10**30}),
    ],
)
def test_what_cannot_be_allocated_is_refused(
    settings: dict[str, Any], options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("droprl.train.training.available_memory", lambda: 2**36)
    said = refusal(
        lambda: fit(
            learnable_dataset(), tiny("bc", **settings), out=tmp_path / "x", **{"steps": 2, "progress": False} | options
        )
    )
    assert len(said) < 500
    assert not (tmp_path / "x").exists()


def test_a_device_without_memory_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nBufferAssignment")

    monkeypatch.setattr("droprl.train.loop.Loop.run", exhausted)
    said = refusal(fit, learnable_dataset(), tiny("bc"), out=tmp_path / "x", steps=2, progress=False)
    assert "the memory of the device is too small" in said


def test_numbers_of_episodes_are_limited(run: Run) -> None:
    assert "at most" in refusal(evaluate, run, episodes=10**12)
    assert "at most" in refusal(evaluate, run, episodes=1, n_envs=10**12)
    assert np.isfinite(run.metrics()[-1]["step"])
