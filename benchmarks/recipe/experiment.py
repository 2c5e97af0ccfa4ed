"""One experiment of the recipe: train some seeds on a dataset, measure the networks, play them with several rules.

All seeds and all kept checkpoints play side by side, in one compiled call for each step. The results are plain data:
the return of every episode, the score that f promised at its start, and the measures of the trained networks.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from measures import favourites, held_out_measures, preference
from players import Players
from stack import Stack, with_adaptation

from droprl.algorithms import ALGORITHMS, DROP, Algorithm
from droprl.algorithms.saved import algorithm_to_dict
from droprl.data import Dataset, load_dataset
from droprl.data.maze_walks import make_maze_dataset
from droprl.data.transitions import Prepared
from droprl.evaluation.evaluation import EVALUATION_SEED
from droprl.policies import FixedPolicy

MAZE_STEPS = 100_000
PARTS = 20  # a training has so many parts. The networks after the last ones may be kept and played
CURVE_EVERY = 4  # a point of the curve after every so many parts
HELD_OUT_EVERY = 10  # one trajectory in ten, in the order of returns


@dataclass(frozen=True)
class Job:
    """What to train on which data, and how to measure and play it."""

    experiment: str
    dataset: str  # "hopper-medium-replay", "hopper-medium+hopper-expert", "maze2d-umaze"
    variant: str  # a name for the settings
    algorithm: str = "drop"
    settings: dict[str, Any] = field(default_factory=dict)  # of the algorithm
    plays: dict[str, dict[str, Any]] = field(default_factory=dict)  # for each name the settings of the adaptation
    steps: int = 20_000
    seeds: int = 5
    episodes: int = 10
    checkpoints: int = 1  # how many are kept: after each of the last so many PARTS of training
    late: tuple[str, ...] = ()  # names of plays with all kept checkpoints; other plays have only the last one
    held_out: bool = False  # leave out a tenth of the trajectories, and measure on them

    @property
    def name(self) -> str:
        """It is also the path of its results."""
        return "/".join(re.sub(r"[^\w.-]+", "-", part) for part in (self.experiment, self.dataset, self.variant))


def run_group(
    jobs: Sequence[Job], made: Sequence[Made], n_workers: int, say: Callable[[str], None]
) -> Iterator[list[dict[str, Any]]]:
    """Run jobs whose networks have the same shapes together. Yields all results after each play, so none is lost."""
    began = time.perf_counter()
    algorithms, prepared = [m.algorithm for m in made], [m.prepared for m in made]
    first = jobs[0]
    stack = Stack(algorithms, prepared, first.seeds)
    states, kept_states, curve = stack.init(), [], []
    boundaries = [first.steps * k // PARTS for k in range(PARTS + 1)]
    for part, (start, end) in enumerate(pairwise(boundaries), start=1):
        states, means = stack.run(states, start, end - start)
        say(f"update {end}")
        if part % CURVE_EVERY == 0:
            curve.append(means | stack.diagnose(states))
        if PARTS - part < first.checkpoints:
            kept_states.append(jax.tree.map(jnp.copy, states))
    trained = time.perf_counter()
    chosen = favourites(stack, states) if isinstance(stack.template, DROP) else np.empty(0)
    held_out = [m.held_out for m in made if m.held_out is not None]
    measured_held_out = held_out_measures(stack, states, prepared, held_out) if held_out else {}
    results: list[dict[str, Any]] = []
    for k, (job, m) in enumerate(zip(jobs, made, strict=True)):
        result: dict[str, Any] = {
            "job": asdict(job),
            "algorithm": algorithm_to_dict(m.algorithm),
            "n_sub_tasks": m.prepared.spec.n_sub_tasks,
            "reward_scale": m.prepared.reward_scale,
            "device": jax.devices()[0].device_kind,
            "curve": [{name: np.round(v[k], 4).tolist() for name, v in means.items()} for means in curve],
            "steps": boundaries[CURVE_EVERY::CURVE_EVERY],
            "score_range": m.dataset.score_range,
            "time_limit": m.dataset.time_limit,
            "measures": {},
            "plays": {},
        }
        if isinstance(m.algorithm, DROP):
            result["measures"] = preference(chosen[k], m.prepared.spec.required_sub_tasks())
        result["measures"] |= {name: np.round(value[k], 4).tolist() for name, value in measured_held_out.items()}
        results.append(result)
    measured = time.perf_counter()
    if not first.plays:
        yield results
    for name, found in play(jobs, made, stack, kept_states, n_workers, say):
        seconds = {"train": trained - began, "measure": measured - trained, "play": time.perf_counter() - measured}
        for result, of_job in zip(results, found, strict=True):
            result["plays"][name] = of_job
            result["seconds"] = {name: round(value, 1) for name, value in seconds.items()} | {"jobs": len(jobs)}
        yield results


class Made(NamedTuple):
    dataset: Dataset
    held_out: Dataset | None
    algorithm: Algorithm
    prepared: Prepared


def prepare_job(job: Job, data: Path) -> Made:
    dataset, held_out = find_dataset(job.dataset, data), None
    if job.held_out:
        kept, left = held_out_split(dataset.returns)
        dataset, held_out = select_episodes(dataset, kept), select_episodes(dataset, left)
    algorithm = ALGORITHMS[job.algorithm](**job.settings).resolve(dataset)
    return Made(dataset, held_out, algorithm, algorithm.prepare(dataset))


# --- data ---


@cache
def find_dataset(name: str, data: Path) -> Dataset:
    if name.startswith("maze2d"):
        return make_maze_dataset(name, MAZE_STEPS, seed=0)
    return load_dataset("+".join(str(data / f"{part}.hdf5") for part in name.split("+")))


def held_out_split(returns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(kept, held out): every tenth trajectory in the order of returns is held out, so both parts have like returns."""
    order = np.argsort(-returns, kind="stable")
    left = order[HELD_OUT_EVERY // 2 :: HELD_OUT_EVERY]
    return np.setdiff1d(order, left), np.sort(left)


def select_episodes(dataset: Dataset, episodes: np.ndarray) -> Dataset:
    rows = np.concatenate([np.arange(dataset.bounds[e], dataset.bounds[e + 1]) for e in episodes])
    timeouts = dataset.timeouts.copy()
    timeouts[dataset.bounds[1:] - 1] = ~dataset.terminals[dataset.bounds[1:] - 1]  # also if the file ends first
    following = dataset.next_observations
    return replace(
        dataset,
        observations=dataset.observations[rows],
        actions=dataset.actions[rows],
        rewards=dataset.rewards[rows],
        terminals=dataset.terminals[rows],
        timeouts=timeouts[rows],
        next_observations=None if following is None else following[rows],
    )


# --- the returns of the policies ---


def play(
    jobs: Sequence[Job],
    made: Sequence[Made],
    stack: Stack,
    states: Sequence[Any],
    n_workers: int,
    say: Callable[[str], None],
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """For each play and each job: the score of every checkpoint, seed and episode, and the score promised at s₀.

    The settings of a play are those of the adaptation. With `sub_task`, a fraction of N, the z of that sub-task plays.
    """
    latest_first = list(reversed(states))
    shape = (len(states), len(jobs), jobs[0].seeds, jobs[0].episodes)
    datasets = [made[k].dataset for k in np.indices(shape)[1].ravel()]
    tasks = [(str(dataset.env), dataset.time_limit) for dataset in datasets]
    seeds = (EVALUATION_SEED + np.indices(shape)[3].ravel()).tolist()
    players = Players(tasks, seeds, (stack.spec.observation_size, stack.spec.action_size), n_workers)
    discounts = np.array([getattr(m.algorithm, "discount", None) or 0.99 for m in made]).reshape(1, -1, 1, 1)
    for name, settings in jobs[0].plays.items():
        n_checkpoints = len(states) if name in jobs[0].late else 1
        one = _Play(stack, latest_first[:n_checkpoints], jobs[0].episodes, settings)
        shape = (n_checkpoints, *shape[1:])
        began = time.perf_counter()
        _play_out(one, players, shape, discounts)
        say(f"played {name}: {np.prod(shape)} episodes, {one.n_steps} steps in {time.perf_counter() - began:.0f} s")
        yield name, [_found(one, k, m) for k, m in enumerate(made)]
    players.close()


def _play_out(one: _Play, players: Players, shape: tuple[int, ...], discounts: np.ndarray) -> None:
    n = int(np.prod(shape))
    one.returns, one.discounted = np.zeros(shape), np.zeros(shape)
    players.reset(n)
    playing = np.ones(shape)
    while playing.any():
        players.arrays["actions"][:n] = one.act(players.arrays["observations"][:n].reshape(*shape, -1))
        players.step()
        rewards = playing * players.arrays["rewards"][:n].reshape(shape)
        one.returns += rewards
        one.discounted += discounts**one.n_steps * rewards
        one.n_steps += 1
        playing = players.arrays["playing"][:n].reshape(shape).copy()


def _found(one: _Play, k: int, made: Made) -> dict[str, Any]:
    """The results of job k, with checkpoints in the order of training. Promises are those of the last checkpoint."""
    low, high = made.dataset.score_range or (0.0, 100.0)
    found = {
        "scores": np.round(100.0 * (one.returns[::-1, k] - low) / (high - low), 2).tolist(),
        "realised": np.round(one.discounted[0, k] / made.prepared.reward_scale, 3).tolist(),
    }
    if one.promised is not None:
        found["promised"] = np.round(one.promised[0, k], 3).tolist()
    return found


class _Play:
    """The policies of one play, with the axes (checkpoint, job, seed), and their memory."""

    def __init__(self, stack: Stack, states: Sequence[Any], episodes: int, settings: dict[str, Any]) -> None:
        settings = dict(settings)
        sub_task = settings.pop("sub_task", None)
        algorithm = with_adaptation(stack.template, **settings)

        def policy_of(state: Any) -> Any:
            policy = algorithm.policy(state)
            if sub_task is None:
                return policy
            number = math.floor(sub_task * stack.spec.required_sub_tasks())
            return FixedPolicy(policy.behavior_policy, policy.embeddings[number], False)

        def of_one(policy: Any, scaling: Any, carry: Any, observations: Any) -> Any:
            carry, actions = policy.act(carry, scaling.observations_in(observations), jax.random.key(0))
            return carry, jnp.clip(scaling.actions_out(actions), scaling.action_low, scaling.action_high)

        over_seeds = jax.vmap(of_one, (0, None, 0, 0))
        over_all = jax.vmap(jax.vmap(over_seeds), (0, None, 0, 0))
        policies = jax.jit(jax.vmap(jax.vmap(policy_of)))
        self.policies: Any = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[policies(s) for s in states])
        self.carry: Any = jax.vmap(jax.vmap(jax.vmap(lambda policy: policy.start(episodes))))(self.policies)
        self.scaling, self.step = stack.scaling, eqx.filter_jit(over_all)
        self.returns = self.discounted = np.empty(0)
        self.promised: np.ndarray | None = None
        self.n_steps = 0

    def act(self, observations: np.ndarray) -> np.ndarray:
        given = jnp.asarray(observations, jnp.float32)
        self.carry, acted = self.step(self.policies, self.scaling, self.carry, given)
        if self.n_steps == 0 and hasattr(self.carry, "inferred"):
            self.promised = np.asarray(self.carry.inferred.score)
        return np.asarray(acted).reshape(-1, acted.shape[-1])
