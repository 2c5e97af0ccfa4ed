"""What an adapted action costs: `python benchmarks/speed/adaptation.py [--sweep --out FOLDER]`.

The reference is the literal procedure: at every state, K = 100 ascent steps from each of N = 1000 embeddings. Networks
have the paper's sizes; their weights are random, which does not change the time. Without options it compares the time
of the default with that of the literal procedure, and checks on a small trained model that the default keeps the
return. With --sweep it measures the median and the 99th percentile of the latency over N, K and the number of
environments, and writes a table, a figure and JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np
from panels import Panel, draw
from rich.console import Console
from rich.table import Table

from droprl import evaluate, fit
from droprl.adapt import Adaptation
from droprl.algorithms import DROP
from droprl.algorithms.protocol import Clock
from droprl.data.maze_walks import make_maze_dataset
from droprl.data.scaling import Scaling
from droprl.data.transitions import Spec
from droprl.loaded import LoadedPolicy, Origin

LITERAL = Adaptation(ascent_steps=100, starts=None)
OBSERVATIONS, ACTIONS, N = 17, 6, 1000  # the sizes of HalfCheetah, and the paper's largest N
WARM_UP = 3


# --- latency ---


@dataclass(frozen=True)
class Latency:
    n_sub_tasks: int
    ascent_steps: int
    n_envs: int
    starts: int | None
    median_ms: float
    p99_ms: float
    calls: int


def untrained_policy(n_sub_tasks: int, adaptation: Adaptation, settings: DROP) -> LoadedPolicy:
    """A policy with random weights and this many embeddings."""
    algorithm = replace(settings, n_sub_tasks=n_sub_tasks, adaptation=adaptation)
    spec = Spec(OBSERVATIONS, ACTIONS, n_sub_tasks)
    one = np.ones(OBSERVATIONS, np.float32), np.ones(ACTIONS, np.float32)
    scaling = Scaling(0 * one[0], one[0], -one[1], one[1])
    policy = algorithm.policy(algorithm.init(jax.random.key(0), spec, Clock.at(0, 1)))
    return LoadedPolicy(policy, algorithm, spec, scaling, Origin("none", None, None, 0, 0), "untrained")


def paper_sizes() -> DROP:
    return DROP(conditioning="concatenate", trajectories_per_sub_task=1, embedding_size=5, discount=0.99)


def one_call(policy: LoadedPolicy, n_envs: int) -> Callable[[], None]:
    """The next step of so many episodes. Observations and actions are on the host."""
    observations = np.random.default_rng(0).standard_normal((n_envs, OBSERVATIONS), dtype=np.float32)
    carry = policy.start(n_envs)

    def call() -> None:
        nonlocal carry
        carry, _ = policy.step(carry, observations, None)

    return call


def timed(call: Callable[[], None], seconds: float, most: int = 500) -> list[float]:
    """Seconds of each call. It makes as many calls as fit into `seconds`, at least two unless `most` is less."""
    found: list[float] = []
    while len(found) < most and (len(found) < 2 or sum(found) < seconds):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return found


def latency(n_sub_tasks: int, adaptation: Adaptation, n_envs: int, settings: DROP, seconds: float) -> Latency:
    call = one_call(untrained_policy(n_sub_tasks, adaptation, settings), n_envs)
    for _ in range(WARM_UP):
        call()
    times = 1e3 * np.array(timed(call, seconds))
    spread = float(np.median(times)), float(np.percentile(times, 99))
    return Latency(n_sub_tasks, adaptation.ascent_steps, n_envs, adaptation.starts, *spread, len(times))


def speedup(settings: DROP, rounds: int = 3) -> tuple[float, float, float]:
    """The time of the literal procedure over that of the default, and both in seconds: medians over some rounds."""
    literal, default = (one_call(untrained_policy(N, a, settings), 1) for a in (LITERAL, Adaptation()))
    for call in (literal, default):
        call()
    pairs = [(timed(literal, 0.0, 1)[0], float(np.median(timed(default, 0.5)))) for _ in range(rounds)]
    return float(np.median([a / b for a, b in pairs])), *np.median(pairs, axis=0).tolist()


# --- returns ---


def return_kept(steps: int = 1500, seeds: int = 2, episodes: int = 10) -> dict[str, Any]:
    """The scores of the default and of the literal procedure, for the same models and episodes, in a generated maze.

    This finds a broken search. It does not say which search is best: `searches.py` compares them on four datasets.
    """
    dataset = make_maze_dataset("maze2d-umaze", 30_000, seed=0)
    with TemporaryDirectory() as folder:
        algorithm = replace(DROP.small(), n_sub_tasks=40)
        run = fit(dataset, algorithm, out=Path(folder) / "run", seeds=seeds, steps=steps, progress=False)
        settings = {"literal": asdict(LITERAL), "default": {}}
        played = {name: evaluate(run, episodes=episodes, progress=False, **s) for name, s in settings.items()}
    low, high = played["literal"].interval
    means = {name: float(found.mean) for name, found in played.items()}
    of_episodes = [np.concatenate([r.values for r in played[name].results]) for name in ("default", "literal")]
    apart = np.subtract(*of_episodes)  # the same models in the same episodes
    error = 2 * float(apart.std(ddof=1)) / len(apart) ** 0.5
    kept = means["default"] >= low
    return {**means, "interval": [low, high], "difference": float(apart.mean()), "two_errors": error, "kept": kept}


# --- the sweep ---


def sweep(settings: DROP, seconds: float) -> Iterator[Latency]:
    default = Adaptation()
    for n in (10, 100, 1000, 5000):
        yield latency(n, default, 1, settings, seconds)
    for k in (1, 5, 20, 100):
        yield latency(N, replace(default, ascent_steps=k), 1, settings, seconds)
    for envs in (10, 100):
        yield latency(N, default, envs, settings, seconds)
    yield latency(N, LITERAL, 1, settings, seconds)


def show(found: list[Latency]) -> None:
    table = Table("N", "K", "starts", "environments", "median ms", "p99 ms", "ms per action", "calls")
    for f in found:
        cells = (f.n_sub_tasks, f.ascent_steps, f.starts or "all", f.n_envs)
        times = (f"{f.median_ms:.3g}", f"{f.p99_ms:.3g}", f"{f.median_ms / f.n_envs:.3g}", f.calls)
        table.add_row(*map(str, (*cells, *times)))
    Console().print(table)


def figure(found: list[Latency], device: str) -> str:
    """The latency over N, over K and over environments. The other two have their defaults; N is then 1000."""
    default = Adaptation()
    of_default = [f for f in found if f.starts == default.starts]
    along = {
        "sub-tasks N": {
            f.n_sub_tasks: f for f in of_default if (f.n_envs, f.ascent_steps) == (1, default.ascent_steps)
        },
        "ascent steps K": {f.ascent_steps: f for f in of_default if (f.n_envs, f.n_sub_tasks) == (1, N)},
        "environments": {
            f.n_envs: f for f in of_default if (f.n_sub_tasks, f.ascent_steps) == (N, default.ascent_steps)
        },
    }
    panels = []
    for title, points in along.items():
        median = {x: points[x].median_ms for x in sorted(points)}
        worst = {x: points[x].p99_ms for x in sorted(points)}
        panels.append(Panel("ms for one call", title, {"median": median, "99th percentile": worst}))
    note = f"{device}; networks of the paper's sizes; observations and actions on the host"
    return draw("What an adapted action costs", note, panels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each point of the sweep")
    parser.add_argument("--out", type=Path, help="for latency.json and latency.svg of the sweep")
    parser.add_argument("--draw", action="store_true", help="only draw latency.svg again, from the latency.json in OUT")
    given = parser.parse_args()
    settings = paper_sizes()
    if given.draw:
        content = json.loads((given.out / "latency.json").read_text())
        (given.out / "latency.svg").write_text(figure([Latency(**p) for p in content["points"]], content["device"]))
        return
    if given.sweep:
        found = list(sweep(settings, given.seconds))
        show(found)
        content = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "points": [asdict(f) for f in found]}
        if given.out:
            given.out.mkdir(parents=True, exist_ok=True)
            (given.out / "latency.json").write_text(json.dumps(content, indent=1) + "\n")
            (given.out / "latency.svg").write_text(figure(found, content["device"]))
        print(json.dumps({"device": content["device"], "jax": content["jax"]}))
        return
    ratio, literal, default = speedup(settings)
    kept = return_kept()
    low, high = kept["interval"]
    print(f"literal {literal:.2f} s per action, default {1e3 * default:.1f} ms: {ratio:.0f} times faster")
    print(f"scores: literal {kept['literal']:.1f} [{low:.1f}, {high:.1f}], default {kept['default']:.1f}; ", end="")
    print(f"in the same episodes {kept['difference']:+.1f} ± {kept['two_errors']:.1f}")
    print(json.dumps({"adaptation_speedup": ratio, "adaptation_return_kept": kept["kept"]}))


if __name__ == "__main__":
    main()
