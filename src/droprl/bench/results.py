"""A suite and its results on the disk.

OUT/runs/TASK/METHOD are run directories like any other. OUT/plays/TASK/METHOD/PLAY.json is one evaluation.
OUT/costs/TASK/METHOD.json is the cost of training, OUT/data/TASK/METHOD.json the record of the data
(droprl.bench.task_data). OUT/episodes.csv has every episode in one table. OUT/suite.json is the suite with its data.
A packed folder (droprl.bench.packed) has the same content in a few files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from droprl.adapt.search import auto
from droprl.bench.packed import EPISODES, LOG, SUITE, TABLES, is_packed, packed_files, write_suite_json
from droprl.bench.small_files import checked, checked_records
from droprl.bench.suite import Method, Suite, suite_from_json
from droprl.errors import DropError
from droprl.files.names import file_name
from droprl.files.plain import check_folder
from droprl.files.seals import read_marked, read_sealed
from droprl.files.storage import write_bytes
from droprl.train import Run
from droprl.train.checkpoints import KEEP
from droprl.train.config import RunConfig, run_config_from_dict

REPLAY = "restore the file, or remove it and run the same `drop bench` command again"
EPISODE = "episode.json"  # one played episode of one run, for the page
WHEN = {1: "last checkpoint", KEEP: f"mean of the last {KEEP} checkpoints"}  # what a score may be of; never the best


@dataclass(frozen=True)
class PackedRun:
    """A run in a packed folder: its settings and its log, no weights."""

    config: RunConfig
    log: list[dict[str, Any]]

    def metrics(self) -> list[dict[str, Any]]:
        return self.log


@dataclass(frozen=True)
class Bench:
    """A suite and the folder of its results."""

    suite: Suite
    out: Path
    data: Path | None = None
    preset: Literal["paper", "small"] = "paper"
    tasks: tuple[str, ...] | None = None  # only these are run now; the results of others stay
    methods: tuple[str, ...] | None = None  # only these are run now, likewise

    @property
    def asked(self) -> Suite:
        """The part of the suite that is asked for."""
        suite = self.suite if self.methods is None else self.suite.only(self.methods)
        return suite.changed(tasks=self.tasks)

    def run_path(self, task: str, method: Method) -> Path:
        return self.out / "runs" / file_name(task) / file_name(method.name)

    def play_path(self, task: str, method: Method, play: str) -> Path:
        return self.play_folder(task, method) / f"{file_name(play)}.json"

    def play_folder(self, task: str, method: Method) -> Path:
        return self.out / "plays" / file_name(task) / file_name(method.name)

    def cost_path(self, task: str, method: Method) -> Path:
        return self.out / "costs" / file_name(task) / f"{file_name(method.name)}.json"

    def data_path(self, task: str, method: Method) -> Path:
        return self.out / "data" / file_name(task) / f"{file_name(method.name)}.json"

    def evaluation(self, task: str, method: Method, play: str) -> dict[str, Any] | None:
        """The evaluation as it was written; None if it is not played yet."""
        return self.small_file(self.play_path(task, method, play))

    def is_unsealed(self, task: str, method: Method, play: str) -> bool:
        """Whether an older version wrote the evaluation, without a checksum."""
        return not self._marked(self.play_path(task, method, play))[1]

    def any_evaluation(self, task: str) -> dict[str, Any] | None:
        """The first evaluation of a task, for what all its evaluations have in common."""
        plays = ((method, play) for method in self.suite.methods for play in self.suite.plays_of(method))
        return next((found for method, play in plays if (found := self.evaluation(task, method, play))), None)

    def is_played(self, task: str, method: Method, play: str) -> bool:
        """Whether it is played as the suite asks: with the same episodes, checkpoints, updates and settings."""
        found = self.evaluation(task, method, play)
        if found is None or found["protocol"] != self.suite.protocol or not found["results"]:
            return False
        last: dict[int, int] = {}
        for result in found["results"]:
            last[result["seed"]] = max(result["step"], last.get(result["seed"], 0))
        return (
            len(last) == self.suite.seeds
            and set(last.values()) == {self.suite.steps_of(method)}
            and all(len(result["returns"]) == self.suite.episodes for result in found["results"])
            and self.adapts_as_asked(found["adaptation"], method, play)
        )

    def adapts_as_asked(self, played: Mapping[str, Any] | None, method: Method, play: str) -> bool:
        """Whether an evaluation used the method's adaptation under this play. Older files lack newer settings."""
        trained = method.algorithm(self.preset, self.suite.name).adaptation
        if played is None or trained is None:
            return played is None and trained is None
        asked = replace(trained, **self.suite.plays_of(method)[play])
        # An evaluation may name the rule that auto turned out to be.
        ways = [asked, *(auto(asked) if asked.rule == "auto" else [])]
        return any(all(way[k] == v for k, v in played.items() if k in way) for way in map(asdict, ways))

    def cost(self, task: str, method: Method) -> dict[str, Any] | None:
        """What training cost, as it was written; None if it was not measured."""
        return self.small_file(self.cost_path(task, method))

    def run(self, task: str, method: Method) -> Run | PackedRun | None:
        """The run, finished or not; None if training has not begun."""
        path = self.run_path(task, method)
        if (path / "config.json").exists():
            return Run(path)
        config = self.small_file(path / "config.json")
        if not isinstance(config, dict):
            return None
        log = packed_files(self.out).get(self._name(path / LOG), [])
        return PackedRun(run_config_from_dict(config.get("run"), str(path / "config.json")), log)

    def scores(self, task: str, method: Method, play: str, checkpoints: int = 1) -> np.ndarray | None:
        """One score for each seed, as `seed_scores` computes it; None if it cannot."""
        found = self.evaluation(task, method, play)
        return None if found is None else seed_scores(found, checkpoints)

    def data_of(self, task: str) -> list[dict[str, Any]]:
        """The records of the data that the methods learned from, each once. Without any, those in suite.json."""
        paths = [self.data_path(task, method) for method in self.suite.methods]
        found = [record for path in paths if (record := self.small_file(path)) is not None]
        where = self.out / SUITE
        if not found and where.exists():
            found = checked_records(read_sealed(where, REPLAY).get("data", {}), where).get(task, [])
        return [record for i, record in enumerate(found) if record not in found[:i]]

    def milliseconds(self, task: str, method: Method, play: str) -> np.ndarray | None:
        """Milliseconds for one action: one number, because the seeds share the machine."""
        found = self.evaluation(task, method, play)
        known = found["milliseconds_per_action"] if found else None
        return None if known is None else np.array([known])

    def folders(self, path: Path) -> list[str]:
        """The names of the folders in a folder of OUT, loose or packed."""
        loose = {found.name for found in path.glob("*") if found.is_dir()}
        return sorted(loose | {name.split("/")[0] for name in self._below(path) if "/" in name})

    def files(self, path: Path) -> list[str]:
        """The names of its JSON files, loose or packed."""
        loose = {found.name for found in path.glob("*.json")}
        return sorted(loose | {name for name in self._below(path) if "/" not in name})

    def _below(self, path: Path) -> list[str]:
        start = f"{self._name(path)}/"
        return [name.removeprefix(start) for name in packed_files(self.out) if name.startswith(start)]

    def small_file(self, path: Path) -> Any:
        """The content of a small file, loose or packed; None if there is none."""
        return self._marked(path)[0]

    def _marked(self, path: Path) -> tuple[Any, bool]:
        """The content, and whether it has a seal. A loose file's seal is checked here, a packed one's in suite.json."""
        name = self._name(path)
        if path.exists():
            content, has_seal = read_marked(path, REPLAY)
            return checked(name, content, path), has_seal
        held = packed_files(self.out).get(name)
        if not isinstance(held, dict):
            return held, False
        return {name: value for name, value in held.items() if name not in ("format", "seal")}, "seal" in held

    def _name(self, path: Path) -> str:
        return path.relative_to(self.out).as_posix()

    def write_suite(self) -> None:
        data = {task: records for task in self.suite.tasks if (records := self.data_of(task))}
        content = asdict(self.suite) | {"preset": self.preset, "data": data}
        held = read_sealed(self.out / SUITE) if is_packed(self.out) else {}
        write_suite_json(self.out, content | {name: held[name] for name in ("tables", "files") if name in held})

    def write_episodes(self) -> None:
        """Write all played episodes. In a packed folder this table is the only copy, so it stays as it is."""
        if is_packed(self.out):
            return
        cells = [(task, method) for task in self.suite.tasks for method in self.suite.methods]
        names = [(task, method, play) for task, method in cells for play in self.suite.plays_of(method)]
        played = [((t, m.name, p), found["results"]) for t, m, p in names if (found := self.evaluation(t, m, p))]
        write_bytes(self.out / EPISODES, TABLES[EPISODES].to_csv(played))


def load_bench(out: Path) -> Bench:
    """The suite in a folder that `drop bench` made."""
    where = out / SUITE
    if not where.exists():
        raise DropError(f"{out}: has no suite.json: give the folder that `drop bench` made")
    check_folder(out)
    content = read_sealed(where, REPLAY)
    small = content.pop("preset", "paper") == "small"
    for name in ("data", "tables", "files"):  # `Bench.data_of` and `packed_files` read them
        content.pop(name, None)
    return Bench(suite_from_json(content, str(where)), out, preset="small" if small else "paper")


def last_episodes(evaluation: Mapping[str, Any], checkpoints: int = 1) -> dict[int, list[list[float]]] | None:
    """For each seed the episodes of each of its last checkpoints: normalised scores, or returns without a reference.

    None if fewer checkpoints were played.
    """
    by_seed: dict[int, dict[int, list[float]]] = {}
    for result in evaluation["results"]:
        by_seed.setdefault(result["seed"], {})[result["step"]] = result["scores"] or result["returns"]
    if any(len(by_step) < checkpoints for by_step in by_seed.values()):
        return None
    last = {seed: sorted(by_step)[-checkpoints:] for seed, by_step in sorted(by_seed.items())}
    return {seed: [by_seed[seed][step] for step in steps] for seed, steps in last.items()}


def seed_scores(evaluation: Mapping[str, Any], checkpoints: int = 1) -> np.ndarray | None:
    """One score for each seed: the mean over the episodes of its last checkpoints. None if fewer were played."""
    found = last_episodes(evaluation, checkpoints)
    return None if found is None else np.array([np.mean([np.mean(one) for one in played]) for played in found.values()])
