"""`evaluate` on our own tasks: which policies play, what is written, and tasks that misbehave."""

from __future__ import annotations

import io
import json
import math
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import gymnasium
import numpy as np
import pytest
from helpers.training import learnable_dataset, refusal, tiny
from rich.console import Console

from droprl import evaluate, load_policy
from droprl.adapt import InferenceRule
from droprl.cli.evaluate import score_table
from droprl.evaluation import load_evaluations
from droprl.files.locks import locked
from droprl.files.seals import read_sealed, sealed
from droprl.report.build import build_report
from droprl.train import Run, fit


class Task(gymnasium.Env[np.ndarray, np.ndarray]):
    """Pays the same at every step of an episode: a number that the seed draws."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gymnasium.spaces.Box(np.array([-2, 0], np.float32), np.array([5, 0.5], np.float32))

    def __init__(self, length: int, pay: float | None = None) -> None:
        self._length, self._pay = length, pay

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._clock = 0
        self._reward = float(self.np_random.random()) if self._pay is None else self._pay
        return np.zeros(3), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(np.asarray(action, np.float32))
        self._clock += 1
        return np.zeros(3), self._reward, False, self._clock >= self._length, {}


def three_steps() -> Task:
    return Task(3)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("evaluate") / "run"
    return fit(learnable_dataset(), tiny("bc"), out=out, seeds=[0, 5], steps=12, checkpoint_every=2, progress=False)


def play(run: Run | Path, **options: Any) -> Any:
    usual: dict[str, Any] = {"env": three_steps, "episodes": 4, "n_envs": 3, "progress": False}
    return evaluate(run, **usual | options)


def test_every_policy_plays_the_same_episodes(run: Run) -> None:
    found = play(run, protocol="paper")
    assert [(r.seed, r.step) for r in found.results] == [(s, t) for s in (0, 5) for t in range(2, 13, 2)]
    assert all(r.returns == found.results[0].returns and r.lengths == [3] * 4 for r in found.results)
    assert len(set(found.results[0].returns)) == 4
    assert (found.unit, found.env, found.rule) == ("return", "three_steps", None)
    assert found.mean == pytest.approx(np.mean(found.values))
    assert play(run, seed=3).results[0].returns != found.results[0].returns


def test_what_was_written_is_read_back(run: Run) -> None:
    found = play(run)
    assert found in load_evaluations(run)
    path = run.evaluation_folder / "bc-last.json"
    assert read_sealed(path) == json.loads(json.dumps(found.to_json()))


def test_evaluations_are_loaded_in_the_order_of_the_rules(tmp_path: Path) -> None:
    run = fit(learnable_dataset(), tiny("drop"), out=tmp_path / "run", steps=2, progress=False)
    order = get_args(InferenceRule)
    for rule in reversed(order):
        play(run, rule=rule)
    assert [found.rule for found in load_evaluations(run)] == list(order)


def test_an_interruptions_checkpoint_is_the_last_one_but_not_one_of_the_papers_six(tmp_path: Path) -> None:
    run = fit(learnable_dataset(), tiny("bc"), out=tmp_path / "run", steps=12, checkpoint_every=2, progress=False)
    folder = Path(shutil.copytree(run.checkpoints()[-1].path, run.checkpoint_folder / "000000013"))
    header = read_sealed(folder / "checkpoint.json")
    (folder / "checkpoint.json").write_bytes(sealed(header | {"step": 13, "scheduled": False}))
    assert [r.step for r in play(run).results] == [13]
    assert [r.step for r in play(run, protocol="paper").results] == [2, 4, 6, 8, 10, 12]


def test_an_action_is_timed_however_short_the_episodes(run: Run) -> None:
    found = play(run, env=lambda: Task(1), episodes=3)
    assert found.milliseconds_per_action is not None
    assert 0 < found.milliseconds_per_action < 1000
    assert found in load_evaluations(run)


def test_a_task_that_pays_nan_or_infinity_is_refused(run: Run) -> None:
    before = sorted(run.evaluation_folder.glob("*"))
    for pay in (math.nan, math.inf):
        assert "a return that is NaN or infinite" in refusal(play, run, env=partial(Task, 2, pay))
    assert sorted(run.evaluation_folder.glob("*")) == before


def test_two_processes_may_play_different_evaluations_but_not_the_same_one(run: Run) -> None:
    with locked(run.evaluation_folder, ".bc-last.lock"):
        assert refusal(play, run).startswith(f"{run.evaluation_folder}: another process is playing the same episodes")
        play(run, protocol="paper")
    play(run)


def test_calls_that_cannot_work_are_refused(run: Run, tmp_path: Path) -> None:
    policy = load_policy(run.path).save(tmp_path / "policy")
    assert "episodes is 0" in refusal(play, run, episodes=0)
    assert "n_envs is 0" in refusal(play, run, n_envs=0)
    assert "there is no protocol 'first'" in refusal(play, run, protocol="first")
    assert "of one checkpoint" in refusal(play, policy, protocol="paper")
    assert "no task is known for this data" in refusal(play, run, env=None)
    assert "is not a run" in refusal(play, tmp_path)
    assert play(policy).results == play(run).results[:1]


def test_a_long_rule_cuts_no_number(run: Run) -> None:
    """On a terminal of eighty columns; the rule names every setting that was changed."""
    found = replace(play(run), rule="grad-ada", changed={"guard": True, "guard_margin": 1.7, "ascent_steps": 12})
    console = Console(width=80, file=io.StringIO())
    console.print(score_table([replace(found, mean=1234.5, iqm=2345.6, milliseconds_per_action=12.34)]))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(number in shown for number in ("1234.5", "2345.6", "12.34", "95 % of IQM"))
    assert max(map(len, shown.splitlines())) <= 80


# --- what is on the disk ---


@pytest.fixture
def evaluated(run: Run, tmp_path: Path) -> Run:
    """A copy with one evaluation of two episodes."""
    copy = Run(shutil.copytree(run.path, tmp_path / "run", ignore=shutil.ignore_patterns("evaluations")))
    play(copy, episodes=2)
    return copy


def test_a_changed_bit_is_noticed_wherever_it_is(evaluated: Run) -> None:
    path = evaluated.evaluation_folder / "bc-last.json"
    content = path.read_bytes()
    for place in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        assert refusal(load_evaluations, evaluated).startswith(f"{path}: ")
    path.write_bytes(content)
    assert not load_evaluations(evaluated)[0].unsealed


def test_an_edited_result_is_refused_and_played_again(evaluated: Run) -> None:
    path = evaluated.evaluation_folder / "bc-last.json"
    mean = load_evaluations(evaluated)[0].mean
    path.write_text(path.read_text().replace(f'"mean": {mean}', '"mean": 99.5'))
    said = "is damaged or was edited (its checksum differs): remove it and call droprl.evaluate again"
    assert refusal(load_evaluations, evaluated) == f"{path}: {said}"
    assert play(evaluated, episodes=1).kept is None  # nothing is lost with it
    assert len(load_evaluations(evaluated)[0].values) == 2


def test_an_evaluation_of_an_older_version_loads_is_marked_and_counts_its_episodes(evaluated: Run) -> None:
    path = evaluated.evaluation_folder / "bc-last.json"
    [sound] = load_evaluations(evaluated)
    changes = {"mean": 99.5, "iqm": 99.5, "interval": [99.0, 100.0], "guarded": 0.5}
    path.write_text(json.dumps(sound.to_json() | changes))
    assert load_evaluations(evaluated) == [replace(sound, unsealed=True)]
    notes = build_report([evaluated], "drop report").notes
    assert "Of an older version, without a checksum: the evaluations of bc." in notes


def test_fewer_episodes_never_replace_more(evaluated: Run) -> None:
    path = evaluated.evaluation_folder / "bc-last.json"
    before = path.read_bytes()
    fewer = play(evaluated, episodes=1)
    assert fewer.per_checkpoint == 1
    assert fewer.kept == f"{path}, with 2 episodes for each seed and checkpoint"
    assert path.read_bytes() == before
    assert play(evaluated, episodes=3).kept is None
    assert load_evaluations(evaluated)[0].per_checkpoint == 3


def test_an_evaluation_of_another_checkpoint_or_task_is_replaced(evaluated: Run) -> None:
    shutil.rmtree(evaluated.checkpoints()[-1].path)
    assert play(evaluated, episodes=1).kept is None
    assert {result.step for result in load_evaluations(evaluated)[0].results} == {10}
    assert play(evaluated, episodes=1, env=lambda: Task(2)).kept is None
