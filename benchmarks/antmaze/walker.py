"""Does a policy that walked D4RL's ant reach the goals here? `python benchmarks/antmaze/walker.py WALKER.npz`.

Walks from the start to the goal of each maze, as D4RL recorded its data: from corner to corner, with noise of 0.2 on
the actions, and once without noise. Every episode is kept in results/walker.json. `--stiff` walks with the contacts of
Gymnasium's ant too.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from droprl.data.ant_walks import NOISE, AntWalker, load_walker, walk_ant
from droprl.environments.antmaze import AntMazeEnv, Contacts
from droprl.environments.mazes import MAPS

RESULTS = Path(__file__).parent / "results" / "walker.json"


def walks(walker: AntWalker, maze: str, contacts: Contacts, noise: float, episodes: int) -> dict[str, Any]:
    env = AntMazeEnv(maze, contacts=contacts)
    played = [walk_ant(env, walker, np.random.default_rng([1, episode]), noise=noise) for episode in range(episodes)]
    reached = [walk.arrived for walk in played]
    lengths = [len(walk.rewards) for walk in played]
    arrivals = [length for length, arrived in zip(lengths, reached, strict=True) if arrived]
    print(
        f"{maze}, contacts of {contacts}, noise {noise}: {sum(reached)} of {episodes} reach the goal"
        + (f", in {np.mean(arrivals):.0f} steps on average" if arrivals else ""),
        flush=True,
    )
    return {
        "maze": maze,
        "contacts": contacts,
        "noise": noise,
        "episodes": episodes,
        "reached": sum(reached),
        "reached_in_each": reached,
        "steps_in_each": lengths,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("walker", type=Path)
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--stiff", action="store_true")
    options = parser.parse_args()
    walker = load_walker(options.walker)
    kinds: list[Contacts] = ["d4rl", "gymnasium"] if options.stiff else ["d4rl"]
    results = [
        walks(walker, maze, contacts, noise, options.episodes)
        for contacts in kinds
        for noise in (NOISE, 0.0)
        for maze in MAPS
    ]
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("[\n" + ",\n".join(json.dumps(result) for result in results) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
