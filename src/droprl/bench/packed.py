"""A packed folder of a suite: the same results in a few files that are easy to store and to share.

`suite.json` has the suite and, under "files", the content of each small file of the folder. The lists in these files
are rows of a table: `episodes.csv` has every played episode, `logs.csv.gz` every entry of the training logs.
suite.json has the checksums of both, and its own. `episode.json` stays as it was. `droprl.bench.packing` packs and
unpacks.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from droprl.bench.small_files import checked
from droprl.bench.tidy import Names, TidyTable
from droprl.errors import DropError, reason
from droprl.files.names import file_name
from droprl.files.seals import check_size, digest, read_sealed, sealed
from droprl.files.storage import write_bytes

SUITE, EPISODES, LOGS = "suite.json", "episodes.csv", "logs.csv.gz"
LISTS = {"returns": "return", "scores": "score", "lengths": "length"}
TABLES = {
    EPISODES: TidyTable(("task", "method", "play"), ("seed", "step"), "episode", LISTS),
    LOGS: TidyTable(("task", "method"), ("step",), "seed"),
}
LOG = "metrics.jsonl"
MOST_BYTES = 2**28  # of an uncompressed table
MEND = "restore the file, or pack the folder again"
_PART = r"(?!\.+/)[-+.=\w]+"  # no part of a path may lead out of the folder
_FILE = re.compile(
    rf"(plays|search)/{_PART}/{_PART}/{_PART}\.json|(costs|data)/{_PART}/{_PART}\.json"
    rf"|runs/{_PART}/{_PART}/(config\.json|{re.escape(LOG)})"
)
Entries = list[dict[str, Any]]


def is_packed(out: Path) -> bool:
    return bool(packed_files(out))


def packed_files(out: Path) -> Mapping[str, Any]:
    """The content of each small file, by its path in the folder; empty if the folder is not packed.

    All callers share this mapping: they must not change it.
    """
    paths = [path for name in (SUITE, *TABLES) if (path := out / name).exists()]
    stats = [path.stat() for path in paths]
    return _read(out, tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats))


@lru_cache(maxsize=8)
def _read(out: Path, stamps: tuple[tuple[int, int, int], ...]) -> dict[str, Any]:
    """The packed files, read once for each state of the folder."""
    where = out / SUITE
    content = read_sealed(where, MEND) if where.exists() else {}
    files = content.get("files", {})
    if not isinstance(files, dict) or not all(map(_FILE.fullmatch, files)):
        raise DropError(f'{where}: its "files" name something that no suite has: {MEND}')
    used = {table for name in files if (table := table_of(name)) is not None}
    found = {table: _table_bytes(out / table) for table in used if (out / table).exists()}
    whole = joined(files, found, out)
    sums = content.get("tables", {})  # older folders have no checksums
    if not isinstance(sums, dict):
        raise DropError(f'{where}: its "tables" are no table of checksums: {MEND}')
    for table, sha256 in sums.items():
        if table in found and digest((out / table).read_bytes()) != sha256:
            raise DropError(f"{out / table}: does not fit {SUITE} (its checksum differs): {MEND}")
    return {name: checked(name, held, where) for name, held in whole.items()}


def table_of(name: str) -> str | None:
    """The table with the lists of a small file; None if it has none."""
    return EPISODES if name.startswith("plays/") else LOGS if name.endswith(f"/{LOG}") else None


def split(name: str, content: Any) -> tuple[Any, Entries]:
    """A small file in two parts: the content for suite.json, and the entries for its table."""
    if table_of(name) is None:
        return content, []
    entries = content["results"] if table_of(name) == EPISODES else content
    keys = list(dict.fromkeys(key for entry in sorted(entries, key=len, reverse=True) for key in entry))
    summary = {"rows": _rows(entries), "keys": keys}
    return (content | {"results": summary} if table_of(name) == EPISODES else summary), entries


def joined(files: Mapping[str, Any], tables: Mapping[str, bytes], out: Path) -> dict[str, Any]:
    """The small files again, from the parts that `split` made."""
    entries: dict[str, Entries] = {}
    for kind, content in tables.items():
        groups = TABLES[kind].from_csv(content, out / kind)
        try:
            entries |= {_file_of(kind, names): group for names, group in groups.items()}
        except DropError as error:
            raise DropError(f"{out / kind}: {error}") from error
    found = {}
    for name, held in files.items():
        if (table := table_of(name)) is None:
            found[name] = held
            continue
        try:
            summary, rows = (held["results"] if table == EPISODES else held), entries.get(name, [])
            if not isinstance(summary["keys"], list) or _rows(rows) != summary["rows"]:
                raise ValueError(f"it has {_rows(rows)} rows of {name} instead of {summary['rows']}")
            whole = [_in_order(entry, summary["keys"], table == EPISODES) for entry in rows]
        except (KeyError, TypeError, ValueError) as error:
            raise DropError(f"{out / table}: does not fit {SUITE} ({reason(error)}): {MEND}") from error
        found[name] = held | {"results": whole} if table == EPISODES else whole
    return found


def _in_order(entry: dict[str, Any], keys: Sequence[str], all_of_them: bool) -> dict[str, Any]:
    """An entry with its keys in order. Results have all keys, None if not scored; a log entry has only its own."""
    return {key: entry.get(key) for key in keys if all_of_them or key in entry}


def _rows(entries: Entries) -> int:
    return sum(next((len(value) for value in entry.values() if isinstance(value, list)), 0) for entry in entries)


def _file_of(table: str, names: Names) -> str:
    folder = "/".join(map(file_name, names))
    return f"plays/{folder}.json" if table == EPISODES else f"runs/{folder}/{LOG}"


def _table_bytes(path: Path) -> bytes:
    try:
        check_size(path, MOST_BYTES, MEND)
        content = path.read_bytes()
        if path.suffix == ".gz":
            with gzip.open(io.BytesIO(content)) as file:
                content = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DropError(f"{path}: cannot be read ({reason(error)}): {MEND}") from error
    if len(content) > MOST_BYTES:
        raise DropError(f"{path}: is damaged (more than {MOST_BYTES:,} bytes): {MEND}")
    return content


def table_bytes(table: str, groups: Sequence[tuple[Names, Entries]]) -> bytes:
    """The bytes of a table's file. The same groups give the same bytes."""
    content = TABLES[table].to_csv(groups)
    return gzip.compress(content, mtime=0) if table.endswith(".gz") else content


def write_suite_json(out: Path, content: dict[str, Any]) -> None:
    """Write suite.json; a packed folder's has one line for each small file."""
    write_bytes(out / SUITE, sealed(content, _in_lines) if content.get("files") else sealed(content))


def _in_lines(content: dict[str, Any]) -> str:
    """One line for each small file. They come last."""
    files = content["files"]
    whole = json.dumps({name: held for name, held in content.items() if name != "files"} | {"files": {}}, indent=2)
    lines = [f"    {json.dumps(name)}: {json.dumps(held, allow_nan=False)}" for name, held in files.items()]
    return whole.removesuffix("{}\n}") + "{\n" + ",\n".join(lines) + "\n  }\n}"
