"""How right `drop judge` is: `python benchmarks/judge/calibrate.py --data FOLDER`, after `candidates.py`.

Every candidate of every set is judged from the data alone. RESULTS/judged/SET.json has what was found, and
`beside_truth.py` puts it beside the truth.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

from candidates import HERE, SETS, data_of, policies

from droprl.cli.options import use_compilation_cache
from droprl.files.storage import write_json
from droprl.judging import Estimation, Estimator


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with the MuJoCo files; mazes are made here")
    parser.add_argument("--runs", type=Path, default=Path("runs/judge"), help="what candidates.py trained")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--only", nargs="*", help="names of sets")
    options = parser.parse_args()
    use_compilation_cache()
    (options.results / "judged").mkdir(parents=True, exist_ok=True)
    for one in SETS:
        truth, where = (options.results / part / f"{one.name}.json" for part in ("truth", "judged"))
        if (options.only and one.name not in options.only) or where.exists() or not truth.exists():
            continue
        began = time.process_time()
        dataset = data_of(one, options.data or Path())
        estimator = Estimator(dataset, Estimation())
        candidates = policies(dataset, options.runs / one.name, options.steps)
        names = json.loads(truth.read_text(encoding="utf-8"))["candidates"]
        found = {name: asdict(estimator.estimate(policy)) for name, policy in candidates if name in names}
        seconds = time.process_time() - began
        content = {"set": one.name, "config": asdict(estimator.config), "cpu_seconds": seconds, "candidates": found}
        write_json(where, content)
        print(f"{one.name}: {seconds:.0f} s of CPU", flush=True)


if __name__ == "__main__":
    main()
