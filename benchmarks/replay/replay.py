"""Which tasks are D4RL's? `python benchmarks/replay/replay.py FOLDER` replays recordings in the tasks of droprl.

FOLDER has D4RL-like files by name (`hopper-medium.hdf5`, `door-expert.hdf5`, …). Mazes need none. Every result is kept
in results/, and docs/tasks.md quotes it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import adroit
import gymnasium
import gymnasium_robotics
import locomotion
import maze2d
import mujoco
import numpy as np

from droprl.environments.mazes import MAZES

RESULTS = Path(__file__).parent / "results"


def versions() -> dict[str, str]:
    return {module.__name__: module.__version__ for module in (mujoco, gymnasium, gymnasium_robotics)}


def keep(name: str, results: list[dict[str, Any]]) -> None:
    RESULTS.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(result) for result in [versions(), *results])
    (RESULTS / f"{name}.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    for result in results:
        print(json.dumps({key: summed(value) for key, value in result.items()}), flush=True)


def summed(value: Any) -> Any:
    """A list of episodes as its mean, for the screen."""
    if isinstance(value, dict) and len(value) > 3:
        value = list(value.values())
    if not isinstance(value, list) or not value:
        return value
    known = [number for number in value if number is not None]
    return {"episodes": len(value), "mean": round(float(np.mean(known)), 4)} if known else {"episodes": len(value)}


def files(folder: Path, tasks: tuple[str, ...]) -> Iterator[Path]:
    return (path for path in sorted(folder.glob("*.hdf5")) if path.name.split("-")[0] in tasks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    keep("maze2d", [maze2d.replay(name) for name in MAZES])
    bodies = ("hopper", "walker2d", "halfcheetah")
    keep("locomotion", [result for path in files(folder, bodies) for result in locomotion.replay_file(path)])
    hands = [adroit.replay_file(path) for path in files(folder, ("door", "pen"))]
    keep("adroit", [*hands, *adroit.play_at_random()])


if __name__ == "__main__":
    main()
