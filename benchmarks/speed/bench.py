"""`make bench`: every promised speed as a ratio inside one run, in one table and one line of JSON.

Each part is a separate script in this folder. Fails if a ratio is below its floor. The floor is the ratio that was
measured when it was set (results/cpu), minus 20 to 40 % for other machines. The table says which goals are not reached.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
PARTS = (["adaptation.py"], ["peers.py"], ["scale.py", "--ratio"])


class Promise(NamedTuple):
    what: str
    goal: float
    floor: float


PROMISES = {
    "adaptation_speedup": Promise("Grad-Ada against the literal procedure", 50.0, 120.0),
    "adaptation_return_kept": Promise("its return is not below the literal one's interval", 1.0, 1.0),
    "training_vs_pytorch": Promise("updates/s against plain PyTorch", 3.0, 0.9),
    "training_vs_d3rlpy_iql": Promise("updates/s against d3rlpy's IQL, as wide and deep", 1.0, 1.4),
    "training_vs_d3rlpy_cql": Promise("updates/s against d3rlpy's CQL, as wide and deep", 1.0, 12.0),
    "mapped_vs_memory": Promise("updates/s with data on the disk against in memory", 0.7, 0.8),
}


def run(words: list[str]) -> dict[str, Any]:
    """Run a part and print its output at once. The result is its last line, as JSON."""
    last = ""
    with subprocess.Popen(
        [sys.executable, str(HERE / words[0]), *words[1:]], stdout=subprocess.PIPE, text=True
    ) as part:
        for line in part.stdout or ():
            print(line, end="", flush=True)
            last = line
    if part.returncode:
        raise SystemExit(f"bench: {words[0]} failed with {part.returncode}")
    found: dict[str, Any] = json.loads(last)
    return found


def main() -> None:
    found: dict[str, Any] = {}
    for words in PARTS:
        found |= run(words)
    result = {name: found.get(name) for name in PROMISES}
    table = Table("ratio", "seen", "goal", "floor", "", title="speed", title_justify="left")
    failed = []
    for name, promise in PROMISES.items():
        value = result[name]
        seen = math.nan if value is None else float(value)
        measured = math.isfinite(seen)
        shown = f"{seen:.3g}" if measured else "–"
        if not measured or seen < promise.floor:
            verdict = "FAILED" if measured else "not measured: is its peer installed?"
            failed.append(name)
        else:
            verdict = "" if seen >= promise.goal else "goal not reached"
        table.add_row(promise.what, shown, f"{promise.goal:g}", f"{promise.floor:g}", verdict)
    Console().print(table)
    print(json.dumps(result))
    if failed:
        raise SystemExit(f"bench: below the floor, or not measured: {', '.join(failed)}")


if __name__ == "__main__":
    main()
