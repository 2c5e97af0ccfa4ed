"""What bfloat16 costs: `python benchmarks/speed/precision.py [--float32 FOLDER] [--bfloat16 FOLDER]`.

The same suite trained in either precision and played by the literal procedure, five seeds each (`drop bench
benchmarks/speed/adaptation.toml --methods "N = 10" …`). Other training is other weights: the two share data, not luck.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from droprl.bench import Bench, load_suite

HERE = Path(__file__).parent
SUITE = load_suite(HERE / "adaptation.toml")
PLAY = "literal"


def scores(folder: Path, method_name: str, task: str) -> np.ndarray:
    """The mean score of each seed."""
    (method,) = (m for m in SUITE.methods if m.name == method_name)
    found = Bench(SUITE, folder).scores(task, method, PLAY)
    assert found is not None, f"{folder}: {task} was not played by {PLAY}"
    return found.reshape(SUITE.seeds, -1).mean(axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--float32", type=Path, default=HERE / "results" / "adaptation")
    parser.add_argument("--bfloat16", type=Path, default=HERE / "results" / "bfloat16")
    given = parser.parse_args()
    table, of_all = Table("dataset", "float32", "bfloat16", "difference", box=MARKDOWN), []
    for task in SUITE.tasks:
        full, low = scores(given.float32, "N = 10", task), scores(given.bfloat16, "N = 10, bfloat16", task)
        variance = (full.var(ddof=1) + low.var(ddof=1)) / SUITE.seeds
        of_all.append((full.mean(), low.mean(), variance))
        table.add_row(task, *_row(full.mean(), low.mean(), variance))
    full_mean, low_mean, variances = np.array(of_all).T
    table.add_row("mean", *_row(full_mean.mean(), low_mean.mean(), variances.sum() / len(of_all) ** 2))
    Console().print(table)


def _row(full: float, low: float, variance: float) -> tuple[str, str, str]:
    return f"{full:.1f}", f"{low:.1f}", f"{low - full:+.1f} ± {2 * variance**0.5:.1f}"


if __name__ == "__main__":
    main()
