"""The subjects of the torture: four commands on one small task, with the files that each must leave and never lose.

Each command works in its own place, a folder with `run` in it. `Work.outcome` has the checksums of the files that an
undisturbed command leaves there. `Work.check` reads the place after a kill, as another user would.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from droprl import load_policy
from droprl.data import Dataset, from_arrays, save_d4rl
from droprl.errors import DropError
from droprl.evaluation import load_evaluations
from droprl.train import Run

FAULTY = Path(__file__).with_name("faulty.py")
TASK, EPISODE = "Pendulum-v1", 200
STEPS, BUDGET = 400, 800
TRAIN = (
    *("--preset=small", "--width=16", "--batch-size=32", "--n-sub-tasks=4", "--td-steps=2", "--ascent-steps=3"),
    *("--depths", "1", "1", "1", "1", "1"),
    *("--seeds=2", f"--steps={STEPS}", "--checkpoint-every=20", "--log-every=10"),
)
SUPPORT = ("support.json", "support.safetensors")
Outcome = dict[str, Any]


class Lost(Exception):
    """Something that was saved is missing, changed or incomplete."""


class Failed(Exception):
    """The program did something wrong, but nothing was lost."""


@dataclass(frozen=True)
class Answer:
    code: int
    said: str  # on standard error

    @property
    def last_line(self) -> str:
        return self.said.strip().splitlines()[-1] if self.said.strip() else ""


def start(words: list[str], fault: str = "none", before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Start `drop WORDS` in its own process group. `before` are the words of a command that runs it."""
    command = [*before, sys.executable, str(FAULTY), fault, *words]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(command, stdout=null, stderr=pipe, text=True, start_new_session=True, env=os.environ)


def finish(words: list[str], fault: str = "none", before: tuple[str, ...] = ()) -> Answer:
    process = start(words, fault, before)
    _, said = process.communicate()
    return Answer(process.returncode, said)


def must_succeed(words: list[str], fault: str = "none") -> None:
    answer = finish(words, fault)
    if answer.code != 0:
        raise Failed(f"`drop {words[0]}` ended with {answer.code}: {answer.last_line}")


def must_refuse(answer: Answer, *expected: str, codes: Sequence[int] = (1,)) -> None:
    """The answer must be a refusal in one line that says all this, without a traceback."""
    missing = [text for text in expected if text not in answer.last_line]
    if answer.code not in codes or missing or "Traceback" in answer.said:
        raise Failed(f"ended with {answer.code}, {missing} not in: {answer.last_line}")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tree(folder: Path) -> Outcome:
    """Every file in the folder, except locks."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.endswith(".lock")]
    return {str(path.relative_to(folder)): digest(path) for path in files}


def same(found: Outcome, expected: Outcome, what: str) -> None:
    odd = sorted(name for name in found.keys() | expected.keys() if not _equal(found.get(name), expected.get(name)))
    if odd:
        raise Lost(f"{what}: {odd[0]} differs from that of an undisturbed command")


def _equal(found: Any, expected: Any) -> bool:
    """Equal up to rounding in logs: a mean over updates is summed in parts whose number depends on the machine."""
    if not isinstance(found, list) or not isinstance(expected, list):
        return bool(found == expected)
    if len(found) != len(expected) or any(a.keys() != b.keys() for a, b in zip(found, expected, strict=True)):
        return False
    pairs = [np.array((a[name], b[name]), float) for a, b in zip(found, expected, strict=True) for name in a]
    return all(np.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True) for a, b in pairs)


def make_data(folder: Path) -> Path:
    """Twenty episodes of controllers of different quality, in a file that droprl wrote."""
    path, rng = folder / "pendulum.hdf5", np.random.default_rng(0)
    columns: dict[str, list[Any]] = {"observations": [], "actions": [], "rewards": [], "next_observations": []}
    with gymnasium.make(TASK) as env:
        for episode in range(20):
            observation, _ = env.reset(seed=episode)
            gain = rng.uniform()
            for _ in range(EPISODE):
                noise = (1 - gain) * rng.normal(size=1)
                action = np.clip(noise - gain * (8 * observation[1] + observation[2]), -2, 2).astype(np.float32)
                following, reward, *_ = env.step(action)
                for column, value in zip(columns.values(), (observation, action, reward, following), strict=True):
                    column.append(value)
                observation = following
    timeouts = np.arange(20 * EPISODE) % EPISODE == EPISODE - 1
    arrays: dict[str, Any] = {name: np.array(column) for name, column in columns.items()}
    dataset: Dataset = from_arrays(
        **arrays, terminals=np.zeros_like(timeouts), timeouts=timeouts, action_low=-2, action_high=2, env=TASK
    )
    save_d4rl(dataset, path)
    return path


@dataclass(frozen=True)
class Work:
    """One command, and how to judge the files that it leaves."""

    name: str
    words: Callable[[Path], list[str]]
    prepare: Callable[[Path], None]  # the place as it is before the first try
    check: Callable[[Path, Outcome], None]  # after a kill: raises Lost
    outcome: Callable[[Path], Outcome]


@dataclass(frozen=True)
class Undisturbed:
    outcome: Outcome
    seconds: float
    moments: int  # of writing


def undisturbed(work: Work, place: Path, times: int = 2) -> Undisturbed:
    """Run it twice: once to compile, and once to measure its time and to check that the result repeats."""
    found = []
    for number in range(times):
        where = place / str(number)
        work.prepare(where)
        began = time.perf_counter()
        must_succeed(work.words(where), f"count={place / 'moments'}")
        found.append((work.outcome(where), time.perf_counter() - began))
    same(found[-1][0], found[0][0], f"{work.name}, undisturbed twice")
    moments = int((place / "moments").read_text())
    shutil.rmtree(place)
    return Undisturbed(*found[-1], moments)


# --- the four commands ---


def checkpoints_of(run: Path) -> Outcome:
    return {str(p.relative_to(run)): digest(p) for p in sorted(run.glob("checkpoints/[0-9]*/*"))}


def whole_run(run: Path) -> None:
    """Check that every file with its final name can be read."""
    if not (run / "config.json").exists():
        return
    try:
        found = Run(run)
        found.metrics(), found.spec(), found.scaling(), found.sub_tasks(), found.support()
        for checkpoint in found.checkpoints():
            found.state(found.config.seeds[0], checkpoint)
    except DropError as error:
        raise Lost(f"after the kill: {error}") from error


def training(source: Path) -> Work:
    def check(place: Path, expected: Outcome) -> None:
        whole_run(place / "run")

    def outcome(place: Path) -> Outcome:
        run = place / "run"
        described = {name: digest(run / name) for name in ("config.json", "data.json", *SUPPORT)}
        return checkpoints_of(run) | described | {"log": Run(run).metrics()}

    def words(place: Path) -> list[str]:
        return ["train", str(source), *TRAIN, "--out", str(place / "run")]

    return Work("training", words, lambda place: place.mkdir(parents=True), check, outcome)


def evaluation(trained: Path) -> Work:
    """It replaces an older evaluation of the same name."""
    name = "evaluations/grad-ada-last.json"

    def prepare(place: Path) -> None:
        _copy(trained, place / "run")
        (place / "older.json").write_bytes((place / "run" / name).read_bytes())

    def check(place: Path, expected: Outcome) -> None:
        same(checkpoints_of(place / "run"), checkpoints_of(trained), "the run")
        try:
            found = [evaluation.to_json()["results"] for evaluation in load_evaluations(Run(place / "run"))]
        except DropError as error:
            raise Lost(f"after the kill: {error}") from error
        known = (json.loads((place / "older.json").read_text())["results"], expected["results"])
        if len(found) != 1 or found[0] not in known:
            raise Lost("the evaluation is neither the older nor the new one")

    def outcome(place: Path) -> Outcome:
        return {"results": json.loads((place / "run" / name).read_text())["results"]}  # times differ

    def words(place: Path) -> list[str]:
        return ["evaluate", str(place / "run"), "--rule=grad-ada", "--episodes=2"]

    return Work("evaluation", words, prepare, check, outcome)


def fine_tuning(trained: Path) -> Work:
    folder = "run/finetune/policy"

    def check(place: Path, expected: Outcome) -> None:
        same(checkpoints_of(place / "run"), checkpoints_of(trained), "the run")
        for ledger in (place / folder).glob("*.jsonl"):
            lines = ledger.read_text().splitlines(keepends=True)
            played = [line for line in lines if line.endswith("\n")]
            if played != expected[ledger.name].splitlines(keepends=True)[: len(played)]:
                raise Lost(f"{ledger.name}: an episode that was played is missing or changed")
        for policy in (place / folder).glob("policy*/policy.json"):
            try:
                load_policy(policy.parent)
            except DropError as error:
                raise Lost(f"after the kill: {error}") from error

    def outcome(place: Path) -> Outcome:
        found = place / folder
        ledgers = {path.name: path.read_text() for path in found.glob("*.jsonl")}
        policies = {str(p.relative_to(found)): digest(p) for p in found.glob("policy*/*")}
        return ledgers | policies | {"result": json.loads((found / "result.json").read_text())}

    def words(place: Path) -> list[str]:
        return ["finetune", str(place / "run"), "--level=policy", f"--budget={BUDGET}", "--episodes=1"]

    return Work("fine-tuning", words, lambda place: _copy(trained, place / "run"), check, outcome)


def export(trained: Path, older: Path) -> Work:
    """It replaces an older policy of another seed. `older` has the folder and the ONNX file of that policy."""

    def prepare(place: Path) -> None:
        _copy(trained, place / "run")
        _copy(older, place / "shipped")

    def check(place: Path, expected: Outcome) -> None:
        shipped = place / "shipped"
        try:
            seed = load_policy(shipped / "policy").origin.seed
        except DropError as error:
            raise Lost(f"after the kill: {error}") from error
        if seed not in (0, 1):
            raise Lost("the policy is neither the older nor the new one")
        if digest(shipped / "policy.onnx") not in (digest(older / "policy.onnx"), expected["policy.onnx"]):
            raise Lost("the ONNX file is neither the older nor the new one")

    def words(place: Path) -> list[str]:
        return export_words(place / "run", place / "shipped", seed=0)

    return Work("export", words, prepare, check, lambda place: tree(place / "shipped"))


def export_words(run: Path, to: Path, seed: int) -> list[str]:
    return [
        "export",
        str(run),
        f"--seed={seed}",
        "--force",
        "--out",
        str(to / "policy"),
        "--onnx",
        str(to / "policy.onnx"),
    ]


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.lock"))
