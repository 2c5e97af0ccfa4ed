"""Fitted Q evaluation against known returns, and selection against its rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import equinox as eqx
import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.serving import tiny_policy
from helpers.training import learnable_dataset

from droprl.algorithms import BC, DROP
from droprl.data import Dataset, from_arrays
from droprl.data.rewards import Treatment
from droprl.data.rows import Recipe, TargetRule, device_rows
from droprl.data.scaling import fit_scaling
from droprl.data.transitions import Spec
from droprl.errors import DropError
from droprl.loaded import LoadedPolicy, Origin
from droprl.policies import Traits
from droprl.select import FQE, estimate_returns, select
from droprl.select.fqe import _chosen_actions
from droprl.select.selection import load_selection
from droprl.train import Run

GAMMA = 0.9
QUICK = FQE(width=32, steps=3_000, batch_size=128, discount=GAMMA)
LENGTH = 5


class Chosen(eqx.Module):
    """A policy given by a function of the episode's first state and its present state."""

    rule: Any = eqx.field(static=True)
    traits: Traits = eqx.field(static=True, default=Traits())
    search: ClassVar[None] = None

    def start(self, n: int) -> Any:
        return jnp.zeros(n, bool), jnp.zeros(n)  # (whether the episode has begun, the first number of its first state)

    def act(self, carry: Any, observations: Any, key: Any) -> Any:
        begun, first = carry
        first = jnp.where(begun, first, observations[:, 0])
        return (jnp.ones_like(begun), first), self.rule(first, observations)[:, None]


def loaded(dataset: Dataset, rule: Any, **traits: Any) -> LoadedPolicy:
    spec = Spec(dataset.observation_size, dataset.action_size, 1)
    # Not normalised, because the rules below use the states' own units.
    scaling = fit_scaling(dataset, normalize_observations=False)
    policy: Any = Chosen(rule, Traits(**traits))
    return LoadedPolicy(policy, BC(), spec, scaling, Origin("walk", None, None, 0, 0), "here")


def walk(ending: str, n_episodes: int = 60, seed: int = 0) -> Dataset:
    """The state is a clock and a position. The reward is the position, the action moves it. Actions are random."""
    rng = np.random.default_rng(seed)
    rows: dict[str, list[Any]] = {name: [] for name in ("s", "a", "r", "s2")}
    for _ in range(n_episodes):
        x = rng.uniform(-1, 1)
        for clock in range(LENGTH):
            a = rng.uniform(-1, 1)
            rows["s"].append([clock if ending == "terminal" else 0.0, x])
            rows["a"].append([a])
            rows["r"].append(x)
            x = 0.5 * x + a
            rows["s2"].append([clock + 1 if ending == "terminal" else 0.0, x])
    last = np.zeros(n_episodes * LENGTH, bool)
    last[LENGTH - 1 :: LENGTH] = True
    none = np.zeros_like(last)
    arrays = {name: np.array(column, np.float32) for name, column in rows.items()}
    return from_arrays(
        arrays["s"],
        arrays["a"],
        arrays["r"],
        last if ending == "terminal" else none,
        timeouts=none if ending == "terminal" else last,
        next_observations=arrays["s2"],
        action_low=-1.0,
        action_high=1.0,
        name="walk",
    )


def true_return(dataset: Dataset, action: float, steps: int) -> float:
    """The return of always taking this action, simulated from the data's initial states."""
    total = []
    for x in dataset.observations[dataset.bounds[:-1], 1]:
        position, earned = float(x), 0.0
        for t in range(steps):
            earned += GAMMA**t * position
            position = 0.5 * position + action
        total.append(earned)
    return float(np.mean(total))


@pytest.mark.parametrize(("ending", "steps"), [("terminal", LENGTH), ("timeout", 200)])
@pytest.mark.parametrize("action", [-0.5, 0.0, 0.5])
def test_fqe_finds_the_return_of_a_policy_that_never_collected_data(ending: str, steps: int, action: float) -> None:
    """After a terminal nothing is earned. A timeout only stopped the clock: the task would have gone on."""
    dataset = walk(ending)
    [found] = estimate_returns([loaded(dataset, lambda _, now: 0.0 * now[:, 0] + action)], dataset, QUICK)
    assert found == pytest.approx(true_return(dataset, action, steps), abs=0.25)


def test_a_rule_that_chooses_once_chooses_in_the_first_state_of_the_episode() -> None:
    """Also for the states after a timeout, which are in no row of the data."""
    dataset = walk("timeout", n_episodes=4)
    # The first number of every state is 0 here: give each episode a number of its own.
    marked = np.array(dataset.observations)
    marked[:, 0] = np.repeat([0.1, 0.2, 0.3, 0.4], LENGTH)
    following = np.array(dataset.next_observations)
    following[:, 0] = 9.0  # the first state never comes from a successor
    changed = from_arrays(
        marked,
        dataset.actions,
        dataset.rewards,
        dataset.terminals,
        timeouts=dataset.timeouts,
        next_observations=following,
        action_low=-1.0,
        action_high=1.0,
        name="walk",
    )
    table = device_rows(changed, Recipe(fit_scaling(changed), Treatment(), GAMMA, TargetRule()))
    assert table.targets is not None
    policy = loaded(changed, lambda first, now: first + 0.0 * now[:, 0], remembers=True, chooses_once=True)
    everywhere = np.arange(len(table.observations))
    chosen = np.asarray(_chosen_actions(policy, changed, table, everywhere))
    of_rows = np.repeat([0.1, 0.2, 0.3, 0.4], LENGTH)
    np.testing.assert_allclose(chosen[: changed.n_steps, 0], of_rows, rtol=1e-6)
    np.testing.assert_allclose(chosen[np.asarray(table.targets.successor), 0], of_rows, rtol=1e-6)


def test_a_part_of_the_data_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy is asked only for the states that the part needs, and the estimate is still right."""
    dataset, n_asked = walk("terminal"), 0
    policy = loaded(dataset, lambda _, now: 0.0 * now[:, 0] + 0.5)
    part = replace(QUICK, transitions=150)
    step = policy.step

    def counted(carry: Any, observations: np.ndarray, key: Any) -> Any:
        nonlocal n_asked
        n_asked += len(np.unique(observations, axis=0))
        return step(carry, observations, key)

    monkeypatch.setattr(policy, "step", counted)
    [found] = estimate_returns([policy], dataset, part)
    assert found == pytest.approx(true_return(dataset, 0.5, LENGTH), abs=0.35)
    assert n_asked <= 150 + dataset.n_episodes


def test_fqe_refuses_policies_whose_actions_depend_on_the_past() -> None:
    dataset = walk("terminal", n_episodes=4)
    with pytest.raises(DropError, match=r"^bc: its actions depend on the past, .* depend on the state only$"):
        estimate_returns([loaded(dataset, lambda _, now: now[:, 0], remembers=True)], dataset, QUICK)
    seen = np.random.default_rng(1).normal(size=(240, 4))
    maze = learnable_dataset(observations=seen, next_observations=np.roll(seen, -1, axis=0))
    with pytest.raises(DropError, match="set reinference_interval to 1"):
        estimate_returns([tiny_policy().adapted(reinference_interval=5)], maze, QUICK)
    with pytest.raises(DropError, match="other sizes"):
        estimate_returns([loaded(dataset, lambda _, now: now[:, 0])], _wider(dataset), QUICK)


def _wider(dataset: Dataset) -> Dataset:
    observations = np.concatenate([dataset.observations, dataset.observations], axis=1)
    return from_arrays(observations, dataset.actions, dataset.rewards, dataset.terminals, name="wider")


# --- selection ---


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
    quick = FQE(width=8, steps=50, batch_size=16)
    first = select(dataset, TINY, out=tmp_path, env=never, fqe=quick, **SEARCH)
    assert first.episodes == 0
    assert first.best.estimate == max(c.estimate for c in first.candidates if c.estimate is not None)
    assert all(c.estimate is not None for c in first.candidates)
    files = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.safetensors")}
    assert select(dataset, TINY, out=tmp_path, env=never, fqe=quick, **SEARCH) == first
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.safetensors")} == files


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
