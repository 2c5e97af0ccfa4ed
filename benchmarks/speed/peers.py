"""Training updates per second beside PyTorch and d3rlpy: `python benchmarks/speed/peers.py [--small]`.

Run it in the environment of `benchmarks/peers/d3rlpy_check.py`. A package that is missing is left out and null in the
JSON.

- droprl: `Loop` with one seed, and with five seeds; then the updates of all seeds count.
- PyTorch: the same algorithm by hand (`torch_drop.py`). First both sides train from the same weights on the same
  batches for some updates. Their losses, weights and averages must agree, or this fails.
- d3rlpy's IQL and CQL, with DROP's width and depth for every network (5 hidden layers), and again with their own depth
  (2). These are other algorithms: this compares the cost of an update in software that people use.

By default the sizes are the paper's: 512 wide, batches of 1024, N = 1000, z concatenated. Observations and actions have
the sizes of HalfCheetah and are random, which does not change the time. An update includes drawing its batch. The
contenders take turns in rounds. A ratio is the median over rounds of our rate over theirs in the same round, so other
work on the machine affects all alike. On a busy machine the CPU seconds per update say more. Prints a table and one
line of JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from droprl.algorithms import DROP
from droprl.algorithms.protocol import Clock
from droprl.data import Dataset, from_arrays
from droprl.data.transitions import Prepared, Transitions
from droprl.train.loop import Loop

OBSERVATIONS, ACTIONS = 17, 6
EPISODES, LENGTH = 2_000, 50
CHECKED_UPDATES = 5
FIRST_TOLERANCE, LATER_TOLERANCE = 1e-4, 1e-3  # for losses, which are about 1. Adam amplifies rounding later
WAY_TOLERANCE = 5e-2  # share of the way that weights moved. Adam also moves weights whose gradient is only rounding
FEWEST_ROUNDS = 2
D3RLPY_DEPTH = 2  # hidden layers of its default networks
Run = Callable[[int], None]  # makes so many updates


@dataclass
class Contender:
    name: str
    run: Run
    seeds: int = 1
    in_torch: bool = False
    threads: int | None = None  # of PyTorch, during its turn
    count: int = 1  # updates in each turn
    rates: list[float] = field(default_factory=list)  # updates of all seeds per second, one for each round
    cpu: list[float] = field(default_factory=list)  # CPU seconds per update, one for each round

    def calibrate(self, seconds: float) -> None:
        """Find how many updates fill a turn. PyTorch gets all threads or one, whichever is faster.

        With small networks, or on a busy machine, one thread is faster.
        """
        self.run(1)  # compiles or allocates
        fastest = 0.0
        for threads in (os.cpu_count(), 1) if self.in_torch else (None,):
            self._set_threads(threads)
            rate = self._rate_over(0.3 * seconds)
            if rate > fastest:
                fastest, self.threads = rate, threads
        self.count = max(1, round(seconds * fastest))

    def take_turn(self) -> None:
        self._set_threads(self.threads)
        began, cpu_began = time.perf_counter(), time.process_time()
        self.run(self.count)
        took, cpu_took = time.perf_counter() - began, time.process_time() - cpu_began
        self.rates.append(self.seeds * self.count / took)
        self.cpu.append(cpu_took / (self.seeds * self.count))

    def _rate_over(self, seconds: float) -> float:
        """The rate, measured by longer and longer calls, so that the fixed cost of a call does not count."""
        count, took = 1, 0.0
        while took < seconds:
            count = count if took == 0 else 2 * count
            began = time.perf_counter()
            self.run(count)
            took = time.perf_counter() - began
        return count / took

    def _set_threads(self, threads: int | None) -> None:
        if threads is not None:
            import torch

            torch.set_num_threads(threads)


def made_up_data() -> Dataset:
    """Half of the episodes end in a terminal, half time out. Behind a timeout the policy must choose a'."""
    rng = np.random.default_rng(0)
    steps = EPISODES * LENGTH
    ends = np.zeros((EPISODES, LENGTH), bool)
    ends[:, -1] = True
    by_clock = (np.arange(EPISODES) % 2 == 0)[:, None]
    return from_arrays(
        observations=rng.normal(size=(steps, OBSERVATIONS)).astype(np.float32),
        actions=rng.uniform(-1, 1, (steps, ACTIONS)).astype(np.float32),
        rewards=rng.normal(size=steps).astype(np.float32),
        terminals=(ends & ~by_clock).ravel(),
        timeouts=(ends & by_clock).ravel(),
        next_observations=rng.normal(size=(steps, OBSERVATIONS)).astype(np.float32),
    )


# --- the contenders ---


def ours(settings: DROP, prepared: Prepared[Transitions], seeds: int) -> Contender:
    loop = Loop(settings, prepared, range(seeds), 10**6)
    states, done = loop.init(), 0

    def run(count: int) -> None:
        nonlocal states, done
        states, _ = loop.run(states, done, count)
        jax.block_until_ready(states)
        done += count

    return Contender(f"droprl, {seeds} seed{'s' if seeds > 1 else ''}", run, seeds)


def pytorch(settings: DROP, prepared: Prepared[Transitions]) -> Contender:
    import torch_drop

    learner = torch_drop.TorchDrop(settings, prepared.spec)
    table = torch_drop.Table(prepared.transitions)

    def run(count: int) -> None:
        for _ in range(count):
            learner.update(table.sample(settings.batch_size), learner.draw_unseen())

    return Contender("PyTorch by hand", run, in_torch=True)


def d3rlpys(settings: DROP, dataset: Dataset) -> list[Contender]:
    import d3rlpy
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # it logs a lot
    arrays = (dataset.observations, dataset.actions, dataset.rewards, dataset.terminals, dataset.timeouts)
    replay = d3rlpy.dataset.MDPDataset(*arrays)
    found = []
    for depth in (sum(settings.depths[3:]), D3RLPY_DEPTH):
        networks = d3rlpy.models.encoders.VectorEncoderFactory([settings.width] * depth)
        shared = {"batch_size": settings.batch_size, "actor_encoder_factory": networks}
        shared |= {"critic_encoder_factory": networks}
        iql = d3rlpy.algos.IQLConfig(value_encoder_factory=networks, **shared)
        cql = d3rlpy.algos.CQLConfig(**shared)
        for name, config in (("IQL", iql), ("CQL", cql)):
            learner = config.create(device="cpu:0")
            learner.build_with_dataset(replay)
            found.append(Contender(f"d3rlpy {name}, {depth} layers", _updating(learner, replay), in_torch=True))
    return found


def _updating(learner: Any, replay: Any) -> Run:
    def run(count: int) -> None:
        for _ in range(count):
            learner.update(replay.sample_transition_batch(learner.batch_size))

    return run


# --- does PyTorch compute the same? ---


def check(settings: DROP, prepared: Prepared[Transitions]) -> float:
    """The largest difference of a loss in the first update. Fails if the two are not the same algorithm.

    λ starts above 0 and moves fast, so that the constraint has an effect.
    """
    import torch
    from torch_drop import Batch, TorchDrop, n_unseen

    settings = replace(settings, multiplier_start=0.5, multiplier_rate=0.1, threshold=0.0)
    state = settings.init(jax.random.key(0), prepared.spec, Clock.at(0, 1))
    learner, start = TorchDrop(settings, prepared.spec), _arrays(state.networks)
    for networks in (learner.networks, learner.average):
        networks.load(start)
    update, first = jax.jit(settings.update), 0.0
    for i in range(CHECKED_UPDATES):
        batch_key, update_key = jax.random.split(jax.random.key(1 + i))
        batch = prepared.transitions.sample(batch_key, settings.batch_size)
        # `DROP.loss` draws the unseen z, uniformly over their box, with the last of three keys.
        unseen_key = jax.random.split(update_key, 3)[2]
        unit = jax.random.uniform(unseen_key, (n_unseen(settings), settings.embedding_size or 0))
        state, metrics = update(state, batch, update_key, Clock.at(i, CHECKED_UPDATES))
        same = Batch(*(torch.tensor(np.asarray(column)) for column in batch))
        found = learner.update(same, torch.tensor(np.asarray(unit)))
        for name in found:
            apart = abs(float(found[name]) - float(metrics[name])) / max(abs(float(metrics[name])), 1.0)
            _require(apart < (LATER_TOLERANCE if i else FIRST_TOLERANCE), f"{name} of update {i + 1}", apart)
            first = first if i else max(first, apart)
    apart = abs(float(learner.multiplier) - float(state.multiplier))
    _require(apart < LATER_TOLERANCE, "λ", apart)
    for what, networks, theirs in (
        ("weights", state.networks, learner.networks),
        ("averages", state.averaged, learner.average),
    ):
        other = [own.detach().numpy() for own in theirs.parameters()]
        way, other_way = (_flat(after) - _flat(start) for after in (_arrays(networks), other))
        apart = float(np.linalg.norm(other_way - way) / np.linalg.norm(way))
        _require(apart < WAY_TOLERANCE, f"the change of the {what}", apart)
    return first


def _arrays(network: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(network)]


def _flat(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([array.ravel() for array in arrays])


def _require(holds: bool, what: str, apart: float) -> None:
    if not holds:
        raise SystemExit(f"peers: {what} differs from PyTorch by {apart:.1e}: this is not the same algorithm")


# --- the table ---


def show(contenders: list[Contender], title: str) -> None:
    table = Table(title=title, title_justify="left")
    for heading in ("", "updates/s", "lowest … highest", "CPU s/update", "threads", "ours is faster by"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for one in contenders:
        spread = f"{min(one.rates):.3g} … {max(one.rates):.3g}"
        middle, cpu = (f"{statistics.median(values):.3g}" for values in (one.rates, one.cpu))
        table.add_row(one.name, middle, spread, cpu, str(one.threads or ""), f"{ratio(contenders[0], one):.2f}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def ratio(ours: Contender, theirs: Contender | None) -> float | None:
    if theirs is None:
        return None
    return round(statistics.median(x / y for x, y in zip(ours.rates, theirs.rates, strict=True)), 3)


def installed() -> str:
    found = []
    for name in ("droprl", "jax", "torch", "d3rlpy"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="128 wide, batches of 256, N = 10")
    parser.add_argument("--seconds", type=float, default=2.0, help="time of each turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=150.0, help="no round begins after this many seconds")
    options = parser.parse_args()
    began = time.perf_counter()
    width, batch, n = (128, 256, 10) if options.small else (512, 1024, 1000)
    dataset = made_up_data()
    settings = DROP(width=width, batch_size=batch, n_sub_tasks=n, conditioning="concatenate", discount=0.99)
    settings = settings.resolve(dataset)
    prepared = settings.prepare(dataset)
    alone, together = ours(settings, prepared, 1), ours(settings, prepared, 5)
    contenders = [alone, together]
    by_hand: Contender | None = None
    apart: float | None = None
    d3rlpy: list[Contender | None] = [None] * 4
    if find_spec("torch") is None:
        print("torch is not installed: PyTorch is left out", file=sys.stderr)
    else:
        apart = check(settings, prepared)
        by_hand = pytorch(settings, prepared)
        contenders.append(by_hand)
    if find_spec("d3rlpy") is None:
        print("d3rlpy is not installed: it is left out", file=sys.stderr)
    else:
        others = d3rlpys(settings, dataset)
        d3rlpy = [*others]
        contenders += others
    for one in contenders:
        one.calibrate(options.seconds)
    for number in range(options.rounds):
        if number >= FEWEST_ROUNDS and time.perf_counter() - began > options.limit:
            print(f"{options.limit:.0f} s are over: stopped after {number} rounds", file=sys.stderr)
            break
        for one in contenders[number % len(contenders) :] + contenders[: number % len(contenders)]:
            one.take_turn()
    sizes = f"{width} wide, batch {batch}, N = {n}, {os.cpu_count()} cores"
    show(contenders, f"training, {sizes}: {installed()}")
    iql, cql, shallow_iql, shallow_cql = d3rlpy
    result = {
        "training_vs_pytorch": ratio(alone, by_hand),
        "training_vs_pytorch_5_seeds": ratio(together, by_hand),
        "training_vs_d3rlpy_iql": ratio(alone, iql),
        "training_vs_d3rlpy_cql": ratio(alone, cql),
        "training_vs_d3rlpy_iql_own_depth": ratio(alone, shallow_iql),
        "training_vs_d3rlpy_cql_own_depth": ratio(alone, shallow_cql),
        "pytorch_loss_difference": apart,
        "updates_per_second": {one.name: round(statistics.median(one.rates), 3) for one in contenders},
        "cpu_seconds_per_update": {one.name: round(statistics.median(one.cpu), 4) for one in contenders},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
