"""Selection against its rules. How the estimates are made is tested in tests/judging."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from helpers.walks import LENGTH, walk

from droprl.algorithms import DROP
from droprl.errors import DropError
from droprl.judging import Estimation
from droprl.select import select
from droprl.select.selection import load_selection
from droprl.train import Run

TINY = DROP(width=8, batch_size=16, depths=(1, 1, 1, 1, 1))
SEARCH: dict[str, Any] = {"n_sub_tasks": (2, 3, 4, 5, 6, 100), "steps": 30, "progress": False}


class Walk(gymnasium.Env[np.ndarray, np.ndarray]):
    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (2,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        Walk.episodes += 1
        self._clock, self._x = 0, float(self.np_random.uniform(-1, 1))
        return np.array([0.0, self._x], np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        paid, self._x = self._x, 0.5 * self._x + float(action[0])
        self._clock += 1
        return np.array([self._clock, self._x], np.float32), paid, self._clock == LENGTH, False, {}


def never() -> gymnasium.Env[np.ndarray, np.ndarray]:
    raise AssertionError("nothing may be played")


def test_a_budget_is_spent_on_the_four_that_fit_best_and_chooses_among_them(tmp_path: Path) -> None:
    dataset = walk("terminal", n_episodes=30)
    Walk.episodes = 0
    found = select(dataset, TINY, out=tmp_path, budget=18, ascent_steps=(0, 3), env=Walk, **SEARCH)
    sizes = [(c.n_sub_tasks, c.trajectories_per_sub_task, c.ascent_steps) for c in found.candidates]
    assert sizes == [(n, 30 // n, k) for n in (2, 3, 4, 5, 6) for k in (0, 3)]  # the data has fewer than 100
    losses = {c.n_sub_tasks: c.fitting_loss for c in found.candidates}
    assert {c.n_sub_tasks for c in found.candidates if not c.kept} == {max(losses, key=lambda n: losses[n])}
    assert all(len(c.played) == (2 if c.kept else 0) for c in found.candidates)  # 18 // 8 each
    assert found.episodes == sum(len(c.played) for c in found.candidates) == 16
    means = [float(np.mean(c.played)) if c.played else -np.inf for c in found.candidates]
    assert found.chosen == int(np.argmax(means))
    assert load_selection(tmp_path) == found
    assert Run(found.best.run).config.algorithm.n_sub_tasks == found.best.n_sub_tasks  # type: ignore[attr-defined]


def test_without_a_budget_nothing_is_played_and_the_same_command_trains_nothing_again(tmp_path: Path) -> None:
    dataset = walk("terminal", n_episodes=30)
    quick = Estimation(members=2, transitions=60, starts=4, features=20, discount=0.9)
    first = select(dataset, TINY, out=tmp_path, env=never, judging=quick, **SEARCH)
    assert first.episodes == 0
    most = max(c.supported for c in first.candidates if c.supported is not None)
    able = [c for c in first.candidates if c.supported is not None and c.supported >= most - 0.1]
    assert first.best.estimate == max(c.estimate for c in able if c.estimate is not None)
    for candidate in first.candidates:
        assert candidate.estimate is not None
        assert candidate.interval is not None
        assert candidate.interval[0] < candidate.estimate < candidate.interval[1]
    files = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.safetensors")}
    assert select(dataset, TINY, out=tmp_path, env=never, judging=quick, **SEARCH) == first
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.safetensors")} == files


def test_no_estimate_leaves_what_the_rewards_and_the_discount_allow(tmp_path: Path) -> None:
    """Every reward is negative and episodes end, so no return is above the best single reward."""
    dataset = walk("terminal", n_episodes=30)
    negative = replace(dataset, rewards=dataset.rewards - dataset.rewards.max() - np.float32(0.5))
    quick = Estimation(members=2, transitions=60, starts=4, features=100, ridge=1e-8, discount=0.9)
    found = select(negative, TINY, out=tmp_path, env=never, judging=quick, **SEARCH | {"n_sub_tasks": (2, 3)})
    for candidate in found.candidates:
        assert candidate.interval is not None
        assert candidate.estimate is not None
        assert max(candidate.estimate, *candidate.interval) <= -0.5 + 1e-6
    assert load_selection(tmp_path) == found


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"budget": 3}, "budget is 3 episodes: give 0, or at least 4"),
        ({"budget": -1}, "budget is -1"),
        ({"n_sub_tasks": (100,)}, "has 30 trajectories, fewer than any N"),
        ({"n_sub_tasks": ()}, "n_sub_tasks are"),
        ({"ascent_steps": (5, 5)}, "ascent_steps are"),
        ({"ascent_steps": (-1,)}, "ascent_steps are"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_trained(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(DropError, match=message) as caught:
        select(walk("terminal", n_episodes=30), TINY, out=tmp_path, **SEARCH | changed)
    assert "\n" not in str(caught.value)
    assert not any(tmp_path.iterdir())


def test_seeds_share_the_episodes_of_the_budget(tmp_path: Path) -> None:
    found = select(
        walk("terminal", n_episodes=30),
        TINY,
        out=tmp_path,
        budget=5,
        seeds=2,
        env=Walk,
        **SEARCH | {"n_sub_tasks": (4,)},
    )
    assert found.episodes == 5
