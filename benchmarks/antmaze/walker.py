"""Does a policy that walked D4RL's ant reach the goals here? `python benchmarks/antmaze/walker.py WALKER.npz`.

Walks from the start to the goal of each maze, as D4RL recorded its data: from corner to corner, with noise of 0.2 on
the actions, and once without noise. Beside the ant that droprl plays, it walks the same ant with Gymnasium's contacts,
and Gymnasium's ant. Every episode is kept in results/walker.json, and what is there is not walked again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from droprl.data.ant_walks import NOISE, AntWalker, load_walker, walk_ant
from droprl.environments.antmaze import AntMazeEnv
from droprl.environments.mazes import MAPS

RESULTS = Path(__file__).parent / "results" / "walker.json"
D4RLS, STIFF, GYMNASIUMS = "D4RL's", "D4RL's, with Gymnasium's contacts", "Gymnasium's"


def make(ant: str, maze: str) -> AntMazeEnv:
    env = AntMazeEnv(maze, contacts="d4rl" if ant == D4RLS else "gymnasium")
    if ant == GYMNASIUMS:
        env.model.actuator_gear[:, 0] = 150
        env.model.opt.timestep = 0.01
    return env


def walks(walker: AntWalker, ant: str, maze: str, noise: float, episodes: int) -> dict[str, Any]:
    env = make(ant, maze)
    played = [walk_ant(env, walker, np.random.default_rng([1, episode]), noise=noise) for episode in range(episodes)]
    return {
        "ant": ant,
        "maze": maze,
        "noise": noise,
        "reached_in_each": [walk.arrived for walk in played],
        "steps_in_each": [len(walk.rewards) for walk in played],
    }


def told(result: dict[str, Any]) -> str:
    reached = np.array(result["reached_in_each"])
    steps = np.array(result["steps_in_each"])[reached]
    on_average = f", in {steps.mean():.0f} steps on average" if steps.size else ""
    where = f"{result['maze']}, {result['ant']} ant, noise {result['noise']}"
    return f"{where}: {reached.sum()} of {reached.size} reach the goal{on_average}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("walker", type=Path)
    parser.add_argument("--episodes", type=int, default=50)
    options = parser.parse_args()
    walker = load_walker(options.walker)
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    results = []
    for ant, noises in ((D4RLS, (NOISE, 0.0)), (STIFF, (NOISE, 0.0)), (GYMNASIUMS, (NOISE,))):
        for noise in noises:
            for maze in MAPS:
                found = (r for r in kept if (r["ant"], r["maze"], r["noise"]) == (ant, maze, noise))
                results.append(next(found, None) or walks(walker, ant, maze, noise, options.episodes))
                print(told(results[-1]), flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("[\n" + ",\n".join(json.dumps(r) for r in results) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
