"""Does fine-tuning still end with the same weights? DROP, trained and fine-tuned a little in a maze, as SHA-256 sums.

`finetuned.py` compares them with `finetuned.json` and fails where one differs. `finetuned.py --write` writes that file:
run it on the code of before. The sums hold for one version of JAX on one kind of CPU, as in `same_bits.py`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

from same_bits import machine

from droprl import DROP, finetune, fit
from droprl.data.maze_walks import make_maze_dataset

EXPECTED = Path(__file__).with_name("finetuned.json")


def sums() -> dict[str, str]:
    """Of each seed, the policy's weights after the policy level and all that its trainer keeps."""
    dataset = make_maze_dataset("maze2d-umaze", 6_000)
    algorithm = DROP(width=32, batch_size=64, depths=(1, 1, 1, 1, 1), td_steps=5)
    with tempfile.TemporaryDirectory() as folder:
        run = fit(dataset, algorithm, out=folder, seeds=2, steps=200, progress=False)
        options = {"budget": 950, "updates_per_step": 0.25, "episodes": 1, "n_envs": 1, "progress": False}
        finetune(run, level="policy", dataset=dataset, **options)  # type: ignore[arg-type]
        level = run.path / "finetune" / "policy"
        found = sorted([*level.glob("policy*/*.safetensors"), *level.glob("seed-*/state/*/*.safetensors")])
        return {str(path.relative_to(level)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write finetuned.json from the code at hand")
    options = parser.parse_args()
    found = sums()
    if options.write:
        EXPECTED.write_text(json.dumps(machine() | {"sha256": found}, indent=2) + "\n")
        return
    expected = json.loads(EXPECTED.read_text())
    if {key: expected[key] for key in machine()} != machine():
        print(f"finetuned.json was made with {expected['jax']} on {expected['machine']}: differences may mean nothing")
    odd = sorted(
        name for name in found.keys() | expected["sha256"].keys() if found.get(name) != expected["sha256"].get(name)
    )
    print(
        f"{len(found)} files of {len(expected['sha256'])}"
        + (f": not the same bits: {', '.join(odd)}" if odd else ", all the same bits")
    )
    sys.exit(bool(odd))


if __name__ == "__main__":
    main()
