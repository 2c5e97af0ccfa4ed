"""Can N and K be chosen without playing? `python benchmarks/selection/judge.py TASK … --data FOLDER`.

For every task DROP is trained once for each N. `droprl.select` judges all candidates in its two ways: from the
data alone, and by the fitting loss and a budget of episodes, as in the paper. Then every candidate
plays many more episodes with other seeds; their mean is its true score. OUT/TASK.json has all results, and `compare.py`
says how right the two ways were.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial
from pathlib import Path

from droprl.algorithms import DROP
from droprl.bench.task_data import find_task_data
from droprl.evaluation import evaluate
from droprl.files.storage import write_json
from droprl.select import select

N_SUB_TASKS = (5, 10, 20, 50, 100)
ASCENT_STEPS = (0, 10)
BUDGET = 40  # episodes in total, for the way of the paper
TRUE_EPISODES = 20  # for each seed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--data", type=Path, help="folder with the datasets; mazes are generated")
    parser.add_argument("--runs", type=Path, default=Path("runs/selection"), help="folder for the trained runs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--steps", type=int, default=4_000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    algorithm = DROP(width=options.width, batch_size=256)
    for task in options.tasks:
        dataset = find_task_data(task, options.data)
        ask = partial(
            select,
            dataset,
            algorithm,
            out=options.runs / task,
            n_sub_tasks=N_SUB_TASKS,
            ascent_steps=ASCENT_STEPS,
            steps=options.steps,
            seeds=options.seeds,
        )
        by_data, by_episodes = ask(budget=0), ask(budget=BUDGET)
        truth = [
            evaluate(c.run, episodes=TRUE_EPISODES, progress=False, ascent_steps=c.ascent_steps).to_json()["results"]
            for c in by_data.candidates
        ]
        found = {
            "task": task,
            "algorithm": {"width": options.width, "steps": options.steps, "seeds": options.seeds},
            "by_data": asdict(by_data),
            "by_episodes": asdict(by_episodes),
            "truth": truth,
        }
        write_json(options.out / f"{task}.json", found)
        print(f"{task}: done", flush=True)


if __name__ == "__main__":
    main()
