"""Where the recipe's results are: `results.json` and `episodes.csv`, and a file of its own for each that is new.

`results.json` has the settings and the measures of every result, by EXPERIMENT/DATASET/VARIANT. `episodes.csv` has a
row for each episode that was played: its score and, for the last checkpoint, what f promised at its first state and
what was realised. `run.py` writes EXPERIMENT/DATASET/VARIANT.json while it works, and packs these files at the end.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from droprl.bench.tidy import TidyTable
from droprl.errors import DropError
from droprl.files.locks import locked
from droprl.files.storage import write_bytes

RESULTS = Path(__file__).parent / "results"
SETTINGS, EPISODES = "results.json", "episodes.csv"
TABLE = TidyTable(("experiment", "dataset", "variant", "play"), ("checkpoint", "seed"), "episode", {"scores": "score"})
Entries = list[dict[str, Any]]


def load(results: Path) -> dict[str, dict[str, Any]]:
    """Every result by its name, in the order of the names."""
    found = _packed(results) | {_name(path, results): json.loads(path.read_bytes()) for path in _loose(results)}
    return {name: found[name] for name in sorted(found, key=lambda name: name.split("/"))}


def write(results: Path, name: str, result: dict[str, Any]) -> None:
    write_bytes(results / f"{name}.json", json.dumps(result).encode())


def pack(results: Path) -> None:
    """Put the files of new results into the two that have all. First it is checked that these give everything back."""
    with locked(results, ".packing", work="packing results", passing=True):
        if not (loose := _loose(results)):
            return
        whole = load(results)
        groups = [(_of(r, play), _entries(p)) for r in whole.values() for play, p in r["plays"].items()]
        held = {name: r | {"plays": {p: _size(r["plays"][p]) for p in r["plays"]}} for name, r in whole.items()}
        lines = [f"{json.dumps(name)}: {json.dumps(result)}" for name, result in held.items()]
        settings, episodes = ("{\n" + ",\n".join(lines) + "\n}\n").encode(), TABLE.to_csv(groups)
        if json.dumps(_joined(settings, episodes, results), sort_keys=True) != json.dumps(whole, sort_keys=True):
            raise DropError(f"{results}: a result has something that the table cannot hold: the files stay as they are")
        write_bytes(results / EPISODES, episodes)
        write_bytes(results / SETTINGS, settings)
        for path in loose:
            path.unlink()
        for folder in sorted({parent for path in loose for parent in list(path.parents)[:2]}, reverse=True):
            if not any(folder.iterdir()):
                folder.rmdir()


def _loose(results: Path) -> list[Path]:
    return sorted(results.glob("*/*/*.json"))


def _name(path: Path, results: Path) -> str:
    return path.relative_to(results).with_suffix("").as_posix()


def _packed(results: Path) -> dict[str, dict[str, Any]]:
    if not (results / SETTINGS).exists():
        return {}
    return _joined((results / SETTINGS).read_bytes(), (results / EPISODES).read_bytes(), results)


def _joined(settings: bytes, episodes: bytes, results: Path) -> dict[str, dict[str, Any]]:
    held: dict[str, dict[str, Any]] = json.loads(settings)
    entries = TABLE.from_csv(episodes, results / EPISODES)
    for name, result in held.items():
        for play, size in result["plays"].items():
            result["plays"][play] = found = _play(entries.get(_of(result, play), []))
            if _size(found) != size:
                raise DropError(f"{results / EPISODES}: has not all episodes of {name}, {play}: restore the file")
    return held


def _of(result: dict[str, Any], play: str) -> tuple[str, ...]:
    """Whose episodes they are, as the columns of the table say it."""
    return (*(result["job"][part] for part in TABLE.names[:-1]), play)


def _size(play: dict[str, Any]) -> dict[str, int]:
    """What results.json says of a play: how many episodes the table has."""
    return {"rows": sum(len(episodes) for seeds in play["scores"] for episodes in seeds)}


def _entries(play: dict[str, Any]) -> Entries:
    """One for each checkpoint and seed; what was promised and realised is of the last checkpoint alone."""
    scores, late = play["scores"], [key for key in play if key != "scores"]
    return [
        {"checkpoint": c, "seed": s, "scores": episodes}
        | ({key: play[key][s] for key in late} if c == len(scores) - 1 else {})
        for c, seeds in enumerate(scores)
        for s, episodes in enumerate(seeds)
    ]


def _play(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What `_entries` took apart."""
    checkpoints = [list(of) for _, of in groupby(entries, lambda entry: entry["checkpoint"])]
    last = checkpoints[-1] if checkpoints else []
    late = [key for key in ("realised", "promised") if any(key in entry for entry in last)]
    scores = [[entry["scores"] for entry in of] for of in checkpoints]
    return {"scores": scores} | {key: [entry[key] for entry in last] for key in late}
