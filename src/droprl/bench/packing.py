"""Pack the folder of a suite into a few files, and unpack it so that its suite can go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from droprl.bench.packed import (
    EPISODES,
    LOG,
    LOGS,
    SUITE,
    TABLES,
    Entries,
    is_packed,
    joined,
    packed_files,
    split,
    table_bytes,
    table_of,
    write_suite_json,
)
from droprl.bench.results import EPISODE, REPLAY, load_bench
from droprl.bench.suite import Suite
from droprl.bench.tidy import Names
from droprl.errors import DropError
from droprl.files.names import file_name
from droprl.files.seals import checked_line, digest, read_json, read_sealed
from droprl.files.storage import TEMPORARY, write_bytes
from droprl.train.run import read_log

PACKED = (SUITE, EPISODES, LOGS, EPISODE)
SMALL = (
    "plays/*/*/*.json",
    "search/*/*/*.json",
    "costs/*/*.json",
    "data/*/*.json",
    "runs/*/*/config.json",
    f"runs/*/*/{LOG}",
)


def pack(out: Path, to: Path) -> int:
    """Write the content of all small files of the folder `out` into `to`; returns how many files they were.

    The tables are read back before they are written: a file that would lose anything is refused. Weights and pages
    stay in `out`.
    """
    suite, files = load_bench(out).suite, _small_files(out)
    if is_packed(out):
        raise DropError(f"{out}: is packed already: copy the folder instead")
    if not files:
        raise DropError(f"{out}: has no results to pack: run its suite first")
    _refuse_to_lose(to, files)
    files = {name: files[name] for name in sorted(files, key=_place_in(suite))}
    held: dict[str, Any] = {}
    groups: dict[str, list[tuple[Names, Entries]]] = {table: [] for table in TABLES}
    for name, content in files.items():
        held[name], entries = split(name, content)
        if (table := table_of(name)) is not None and entries:
            groups[table].append((_names(name, suite), entries))
    plain = {table: TABLES[table].to_csv(group) for table, group in groups.items() if group}
    for name, again in joined(held, plain, to).items():
        if json.dumps(again, sort_keys=True) != json.dumps(files[name], sort_keys=True):
            raise DropError(f"{out / name}: cannot be packed without a loss: keep the folder as it is")
    sums = {}
    for table, group in groups.items():
        if group:
            content = table_bytes(table, group)
            sums[table] = digest(content)
            write_bytes(to / table, content)
        else:
            (to / table).unlink(missing_ok=True)
    if (out / EPISODE).exists():
        write_bytes(to / EPISODE, (out / EPISODE).read_bytes())
    # Last: with it the packed folder is complete.
    write_suite_json(to, read_sealed(out / SUITE) | {"tables": sums, "files": held})
    return len(files)


def unpack(out: Path) -> None:
    """Undo `pack` in place. A folder that is not packed stays as it is. After a kill it can be called again."""
    if not is_packed(out):
        return
    for name, content in packed_files(out).items():
        if (out / name).exists():
            continue
        lines = map(checked_line, content) if name.endswith(LOG) else [json.dumps(content, indent=2) + "\n"]
        write_bytes(out / name, "".join(lines).encode())
    content = read_sealed(out / SUITE)
    write_suite_json(out, {name: held for name, held in content.items() if name not in ("tables", "files")})
    (out / LOGS).unlink(missing_ok=True)


def _small_files(out: Path) -> dict[str, Any]:
    """The content of each small file, by its path in the folder."""
    paths = [path for pattern in SMALL for path in out.glob(pattern) if not path.name.startswith(TEMPORARY)]
    found = {}
    for path in paths:
        name = path.relative_to(out).as_posix()
        content: Any = read_log(path) if path.name == LOG else _whole(path)
        whole = isinstance(content, list if path.name == LOG else dict)
        if not whole or (table_of(name) == EPISODES and not isinstance(content.get("results"), list)):
            raise DropError(f"{path}: is not a file of a suite: remove it")
        found[name] = content
    return found


def _whole(path: Path) -> Any:
    """The content with its seal, so that unpacking restores both. A damaged file is refused."""
    read_sealed(path, REPLAY)
    return read_json(path)


def _refuse_to_lose(to: Path, files: dict[str, Any]) -> None:
    """Refuse a folder `to` that has results which `files` lack, or results that are not packed."""
    earlier = read_json(to / SUITE) if (to / SUITE).exists() else {"files": {}}
    if _small_files(to) or not isinstance(earlier, dict) or "files" not in earlier:
        raise DropError(f"{to}: is the folder of a suite that is not packed: choose another --out")
    if missing := sorted(set(earlier["files"]) - set(files)):
        raise DropError(f"{to}: would lose results ({missing[0]}): remove it first, or choose another --out")


def _place_in(suite: Suite) -> Callable[[str], tuple[object, ...]]:
    """The sort key of a file: the suite's order of tasks, methods and plays; other names come last."""
    levels = [suite.tasks, [method.name for method in suite.methods], list(suite.plays)]
    places = [{file_name(name): i for i, name in enumerate(level)} for level in levels]
    kinds = [pattern.split("/")[0] for pattern in SMALL]

    def place(name: str) -> tuple[object, ...]:
        kind, *parts = PurePosixPath(name).with_suffix("").parts
        known = [level.get(part, len(level)) for level, part in zip(places, parts, strict=False)]
        return kinds.index(kind), *known, name

    return place


def _names(name: str, suite: Suite) -> Names:
    """The task, the method and the play of a file, spelled as in the suite."""
    _, task, method, *rest = PurePosixPath(name).with_suffix("").parts
    methods = {file_name(m.name): m.name for m in suite.methods}
    named = {file_name(t): t for t in suite.tasks}.get(task, task), methods.get(method, method)
    plays = methods | {file_name(p): p for p in suite.plays}
    return (*named, *(plays.get(play, play) for play in rest)) if table_of(name) == EPISODES else named
