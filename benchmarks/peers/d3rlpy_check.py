"""BC and Decision Transformer against d3rlpy's: `python benchmarks/peers/d3rlpy_check.py [--data FILE.hdf5]`.

Install it in its own environment and in two steps: d3rlpy asks for an older Gymnasium than droprl, but trains on a new
one.

    pip install 'droprl[robotics]' torch tqdm click structlog colorama dataclasses-json scikit-learn
    pip install --no-deps d3rlpy==2.8.1 gym==0.26.2 gym-notices==0.1.0 cloudpickle

Both sides train on the same dataset (a generated maze without --data) with the same sizes, batches, learning rates,
normalisation, number of updates and number of seeds, and play the same episodes. There are two measures for each seed:
the mean return of its episodes, and the squared error of its actions at the same 1,000 steps of the data. A difference
in training shows in the error long before it shows in the return.

For each measure the table says whether the difference of the two means over seeds is within one standard deviation of
the seeds of a side, and gives the 95 % interval of the difference (Welch's). The check fails if an interval does not
hold 0: it shows a difference. An interval that holds 0 is no proof of agreement: it only says how large a difference
these few seeds leave possible. As a control, BC of one side is compared with DT of the other side. They must differ in
some measure, or the check could not find a difference.

Some known differences are left as they are. d3rlpy leaves out the last step of an episode that timed out. Its DT starts
with small embeddings of the step (0.02; here 1, as in the original), has another epsilon in its layer norms, and
divides the loss by all steps of a window, padding included.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import d3rlpy
import jax
import jax.numpy as jnp
import numpy as np
import structlog
import torch
from d3rlpy.algos import BCConfig, DecisionTransformerConfig, TransformerInput
from d3rlpy.models.encoders import VectorEncoderFactory
from d3rlpy.optimizers import AdamWFactory, WarmupSchedulerFactory
from d3rlpy.preprocessing import MinMaxActionScaler, MultiplyRewardScaler, StandardObservationScaler
from rich.console import Console
from rich.table import Table
from scipy import stats

from droprl.algorithms import BC, DT
from droprl.data import Dataset, load_dataset
from droprl.data.maze_walks import make_maze_dataset
from droprl.data.scaling import fit_scaling
from droprl.data.transitions import Places
from droprl.environments.simulation import make_env
from droprl.evaluation import evaluate
from droprl.evaluation.evaluation import EVALUATION_SEED
from droprl.files.storage import write_json
from droprl.loaded import policy_of_run
from droprl.train import fit

Measure = Literal["return", "error"]
MEASURES: tuple[Measure, ...] = ("return", "error")
MAZE, MAZE_STEPS = "maze2d-umaze", 60_000
PROBED = 1_000  # steps of the data at which both sides choose an action
CLIP = 0.25  # for d3rlpy's gradient: its loss is a sum over the dimensions of the action, ours is a mean
Act = Callable[[np.ndarray, float], np.ndarray]  # observation and last reward → action


class Trained(NamedTuple):
    """The results of one seed of one side."""

    seed: int
    returns: list[float]  # of its episodes
    error: float  # squared error of its actions at the probed steps, in half-ranges of the action

    def measured(self, measure: Measure) -> float:
        return float(np.mean(self.returns)) if measure == "return" else self.error


class Compared(NamedTuple):
    what: str
    measure: Measure
    ours: np.ndarray  # one number for each seed
    theirs: np.ndarray

    @property
    def difference(self) -> float:
        return float(self.ours.mean() - self.theirs.mean())

    @property
    def interval(self) -> tuple[float, float]:
        found = stats.ttest_ind(self.ours, self.theirs, equal_var=False).confidence_interval(0.95)
        return float(found.low), float(found.high)

    @property
    def spread(self) -> float:
        return float(max(self.ours.std(ddof=1), self.theirs.std(ddof=1)))

    @property
    def within_spread(self) -> bool:
        return abs(self.difference) <= self.spread

    @property
    def differs(self) -> bool:
        low, high = self.interval
        return not low <= 0 <= high


# --- ours ---


def our_settings(method: str, dataset: Dataset) -> BC | DT:
    """Small networks. BC acts with its last weights and not with an average, as in d3rlpy."""
    if method == "bc":
        return replace(BC.small(), average_rate=1.0)
    return replace(DT.small(), warmup_steps=500, gradient_clip=CLIP / dataset.action_size).resolve(dataset)


def ours(algorithm: BC | DT, dataset: Dataset, rows: np.ndarray, options: argparse.Namespace) -> list[Trained]:
    with tempfile.TemporaryDirectory() as folder:
        run = fit(dataset, algorithm, out=folder, seeds=options.seeds, steps=options.updates, progress=False)
        played = evaluate(run, episodes=options.episodes, progress=False).results
        policies = [policy_of_run(run, seed=found.seed).policy for found in played]
    errors = [_our_error(algorithm, policy, dataset, rows) for policy in policies]
    return [Trained(found.seed, found.returns, error) for found, error in zip(played, errors, strict=True)]


def _our_error(algorithm: BC | DT, policy: Any, dataset: Dataset, rows: np.ndarray) -> float:
    sampler = algorithm.prepare(dataset).transitions
    if isinstance(algorithm, DT):
        predicted = jax.vmap(policy.transformer)(sampler.gather(Places(jnp.asarray(rows))))[:, -1]
    else:
        predicted = policy.act(policy.start(len(rows)), sampler.rows.observation(rows), jax.random.key(0))[1]
    return float(np.mean((predicted - sampler.rows.action(rows)) ** 2))


# --- theirs: the same settings for d3rlpy ---


def theirs(algorithm: BC | DT, dataset: Dataset, rows: np.ndarray, options: argparse.Namespace) -> list[Trained]:
    ends = dataset.timeouts.copy()
    ends[-1] |= not dataset.terminals[-1]
    arrays = (dataset.observations, dataset.actions, dataset.rewards, dataset.terminals, ends)
    replay = d3rlpy.dataset.MDPDataset(*arrays)
    found = []
    for seed in range(options.seeds):
        d3rlpy.seed(seed)
        learner = _their_config(algorithm, dataset).create(device="cpu:0")
        silence = {"logger_adapter": d3rlpy.logging.NoopAdapterFactory(), "show_progress": False}
        learner.fit(replay, n_steps=options.updates, n_steps_per_epoch=options.updates, **silence)
        returns = list(_their_returns(algorithm, learner, dataset, options.episodes))
        found.append(Trained(seed, returns, _their_error(algorithm, learner, dataset, rows)))
    return found


def _their_config(algorithm: BC | DT, dataset: Dataset) -> Any:
    scaling = fit_scaling(dataset)
    shared = {
        "batch_size": algorithm.batch_size,
        "learning_rate": algorithm.learning_rate,
        "observation_scaler": StandardObservationScaler(scaling.observation_mean, scaling.observation_std, eps=0.0),
        "action_scaler": MinMaxActionScaler(scaling.action_low, scaling.action_high),
    }
    if isinstance(algorithm, BC):
        hidden = [algorithm.width] * (algorithm.state_depth + algorithm.action_depth)
        return BCConfig(encoder_factory=VectorEncoderFactory(hidden), **shared)
    assert algorithm.return_scale is not None
    return DecisionTransformerConfig(
        encoder_factory=VectorEncoderFactory([algorithm.width], exclude_last_activation=True),
        optim_factory=AdamWFactory(
            weight_decay=algorithm.weight_decay,
            clip_grad_norm=CLIP,
            lr_scheduler_factory=WarmupSchedulerFactory(algorithm.warmup_steps),
        ),
        reward_scaler=MultiplyRewardScaler(1 / algorithm.return_scale),
        context_size=algorithm.context,
        max_timestep=algorithm.longest_episode,
        num_heads=algorithm.heads,
        num_layers=algorithm.depth,
        attn_dropout=algorithm.dropout,
        resid_dropout=algorithm.dropout,
        embed_dropout=algorithm.dropout,
        **shared,
    )


def _their_returns(algorithm: BC | DT, learner: Any, dataset: Dataset, episodes: int) -> Iterator[float]:
    """The returns of the same episodes that our side plays."""
    assert dataset.env is not None
    env = make_env(dataset.env, dataset.time_limit)
    for episode in range(episodes):
        act = _their_actor(algorithm, learner)
        observation, _ = env.reset(seed=EVALUATION_SEED + episode)
        reward, total, over = 0.0, 0.0, False
        while not over:
            action = act(np.asarray(observation, np.float32), reward)
            observation, paid, ended, truncated, _ = env.step(np.clip(action, dataset.action_low, dataset.action_high))
            reward = float(paid)
            total, over = total + reward, ended or truncated
        yield total
    env.close()


def _their_actor(algorithm: BC | DT, learner: Any) -> Act:
    """An actor for one episode, without memory of the last one."""
    if isinstance(algorithm, BC):
        return lambda observation, reward: learner.predict(observation[None])[0]
    remembering: Act = learner.as_stateful_wrapper(algorithm.target_return).predict
    return remembering


def _their_error(algorithm: BC | DT, learner: Any, dataset: Dataset, rows: np.ndarray) -> float:
    if isinstance(algorithm, BC):
        predicted = learner.predict(dataset.observations[rows])
    else:
        predicted = np.stack([learner.predict(_window(dataset, row, algorithm.context)) for row in rows])
    half_range = 0.5 * (dataset.action_high - dataset.action_low)
    return float(np.mean(((predicted - dataset.actions[rows]) / half_range) ** 2))


def _window(dataset: Dataset, row: int, context: int) -> Any:
    """The steps up to a row in d3rlpy's format: it counts steps from 1 and does not use the last action."""
    episode = int(np.searchsorted(dataset.bounds, row, side="right")) - 1
    begin, end = dataset.bounds[episode : episode + 2]
    first = max(begin, row - context + 1)
    shown = slice(first, row + 1)
    to_go = np.cumsum(dataset.rewards[first:end][::-1].astype(np.float64))[::-1][: row + 1 - first]
    return TransformerInput(
        observations=dataset.observations[shown],
        actions=dataset.actions[shown],
        rewards=dataset.rewards[shown][:, None],
        returns_to_go=to_go[:, None].astype(np.float32),
        timesteps=np.arange(first, row + 1) - begin + 1,
    )


# --- both ---


def compared(what: str, of_ours: list[Trained], of_theirs: list[Trained]) -> list[Compared]:
    def values(side: list[Trained], measure: Measure) -> np.ndarray:
        return np.array([trained.measured(measure) for trained in side])

    return [Compared(what, measure, values(of_ours, measure), values(of_theirs, measure)) for measure in MEASURES]


def show(found: list[Compared], title: str) -> None:
    table = Table(title=title, title_justify="left")
    headings = ("what", "measure", "ours", "d3rlpy's", "difference", "its 95 % interval", "spread", "within spread", "")
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    for one in found:
        means = (f"{side.mean():.4g} ± {side.std(ddof=1):.2g}" for side in (one.ours, one.theirs))
        between = "{:.3g} … {:.3g}".format(*one.interval)
        within, verdict = "yes" if one.within_spread else "no", "differs" if one.differs else "no difference shown"
        numbers = (f"{one.difference:+.3g}", between, f"{one.spread:.2g}")
        table.add_row(one.what, one.measure, *means, *numbers, within, verdict)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help=f"a D4RL file; without it {MAZE} is generated")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=2_000)
    parser.add_argument("--episodes", type=int, default=20, help="episodes of each seed")
    parser.add_argument("--out", type=Path, help="a JSON file for all episodes")
    options = parser.parse_args()
    torch.set_num_threads(1)  # for small networks on a busy machine a second thread makes PyTorch much slower
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # d3rlpy logs a lot
    dataset = make_maze_dataset(MAZE, MAZE_STEPS) if options.data is None else load_dataset(options.data)
    rows = np.random.default_rng(0).choice(dataset.n_steps, PROBED, replace=False)
    settings = {method: our_settings(method, dataset) for method in ("bc", "dt")}
    sides: dict[str, dict[str, list[Trained]]] = {"ours": {}, "d3rlpy": {}}
    for method, algorithm in settings.items():
        for name, train in (("ours", ours), ("d3rlpy", theirs)):
            began = time.perf_counter()
            sides[name][method] = train(algorithm, dataset, rows, options)
            print(f"{name}, {method}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    found = [one for method in settings for one in compared(method, sides["ours"][method], sides["d3rlpy"][method])]
    control = [
        one
        for x, y in (("bc", "dt"), ("dt", "bc"))
        for one in compared(f"control: our {x}, their {y}", sides["ours"][x], sides["d3rlpy"][y])
    ]
    versions = {name: version(name) for name in ("droprl", "d3rlpy", "jax", "torch", "gymnasium", "mujoco")}
    sizes = f"{options.seeds} seeds × {options.episodes} episodes, {options.updates:,} updates"
    show([*found, *control], f"droprl {versions['droprl']} and d3rlpy {versions['d3rlpy']} on {dataset.name}: {sizes}")
    if options.out is not None:
        write_json(
            options.out,
            {
                "dataset": {"name": dataset.name, "env": dataset.env, "fingerprint": dataset.fingerprint},
                "versions": versions,
                "updates": options.updates,
                "settings": {name: asdict(algorithm) for name, algorithm in settings.items()},
                "sides": {
                    side: {name: [t._asdict() for t in trained] for name, trained in methods.items()}
                    for side, methods in sides.items()
                },
            },
        )
    wrong, within = sum(one.differs for one in found), sum(one.within_spread for one in found)
    told_apart = any(one.differs for one in control)
    said = f"{len(found)} compared: {within} within one spread, {wrong} differ"
    print(f"{said}; in the control BC and DT {'differ' if told_apart else 'do NOT differ'}")
    sys.exit(0 if not wrong and told_apart else 1)


if __name__ == "__main__":
    main()
