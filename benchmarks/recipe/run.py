"""Run the recipe's experiments: `python benchmarks/recipe/run.py EXPERIMENT … --data FOLDER`.

Jobs whose networks have the same shapes train and play as one. A result that exists is not made again. While it works
each result is a file of its own; at the end `kept.py` packs them.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kept

if TYPE_CHECKING:
    from experiment import Job, Made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiments", nargs="+")
    parser.add_argument("--data", type=Path, required=True, help="folder with the datasets")
    parser.add_argument("--out", type=Path, default=kept.RESULTS)
    parser.add_argument("--workers", type=int, default=2, help="processes that step environments")
    parser.add_argument("--most", type=int, default=1000, help="jobs in a group at most")
    parser.add_argument("--only", default="", help="only jobs whose name has this regular expression")
    options = parser.parse_args()

    from experiment import prepare_job, run_group
    from jobs import EXPERIMENTS
    from stack import shape_key

    began = time.time()

    def say(text: str) -> None:
        print(f"{time.time() - began:5.0f} s  {text}", flush=True)

    there = kept.load(options.out)
    groups: dict[str, list[tuple[Job, Made]]] = {}
    for job in (job for name in options.experiments for job in EXPERIMENTS[name]()):
        files = [options.data / f"{part}.hdf5" for part in job.dataset.split("+") if "maze" not in part]
        if not re.search(options.only, job.name) or not all(file.exists() for file in files):
            continue
        if _is_whole(there.get(job.name), job):
            continue
        made = prepare_job(job, options.data)
        key = repr((job.steps, job.seeds, job.episodes, job.checkpoints, job.plays, job.late))
        groups.setdefault(key + shape_key(made.algorithm, made.prepared), []).append((job, made))
    parts = [jobs[i : i + options.most] for jobs in groups.values() for i in range(0, len(jobs), options.most)]
    say(f"{sum(map(len, parts))} jobs in {len(parts)} groups of {[len(p) for p in parts]}")
    for part in parts:
        jobs, made_ready = [job for job, _ in part], [made for _, made in part]
        say(f"group: {', '.join(job.name for job in jobs)}")
        for results in run_group(jobs, made_ready, options.workers, say):
            for job, result in zip(jobs, results, strict=True):
                kept.write(options.out, job.name, result)
    kept.pack(options.out)


def _is_whole(result: dict[str, Any] | None, job: Job) -> bool:
    return result is not None and set(result["plays"]) == set(job.plays)


if __name__ == "__main__":
    main()
