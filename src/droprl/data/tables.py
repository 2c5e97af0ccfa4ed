"""Tables with named columns: CSV and Parquet files, and data frames. Arrow reads them (`pip install 'droprl[tables]'`).

This module knows the formats: it opens a table and finds columns by name or pattern. `columns` makes numbers of them,
and `meaning` says what they are for a policy. Only the columns that are asked for are read.
"""

from __future__ import annotations

import csv
import difflib
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from droprl.data.check import fault, require_file
from droprl.data.claims import Claim, check_memory
from droprl.data.columns import is_number, is_text
from droprl.errors import DropError, reason

CSV_SUFFIXES, PARQUET_SUFFIXES = (".csv", ".tsv", ".txt"), (".parquet", ".pq")
SEPARATORS = (",", ";", "\t", "|")
CSV_BYTES = 6  # of memory for each byte of text: numbers of few digits grow when they are read
_HEADER_BYTES = 2**20
_INDEX = "__index_level_"  # pandas writes row numbers of its own under such a name: they are no data


@dataclass(frozen=True)
class Table:
    """A table whose columns are read when they are asked for."""

    where: str
    names: tuple[str, ...]
    n_rows: int | None  # None: known only after reading
    read: Callable[[Sequence[str]], Any]  # the columns with these names, as an Arrow table
    row_label: Callable[[int], str]  # how a message names a row


@dataclass(frozen=True)
class CsvOptions:
    separator: str | None = None
    """CSV: what stands between two cells. By default the comma, semicolon, tab or bar that is most often in line 1."""
    decimal: str = "."
    """CSV: the sign before the decimals, for example , in 1,5."""
    encoding: str = "utf-8"
    """CSV: the encoding of the text, for example cp1252."""


def arrow(where: str) -> Any:
    """The module pyarrow, which is an optional extra."""
    try:
        import pyarrow
    except ImportError as error:
        raise fault(where, "tables need pyarrow, which is not installed", "pip install 'droprl[tables]'") from error
    return pyarrow


def open_table(path: Path, options: CsvOptions | None = None) -> Table:
    """A CSV or Parquet file. Nothing but its header is read."""
    suffix = path.suffix.lower()
    if suffix not in CSV_SUFFIXES + PARQUET_SUFFIXES and (path.is_file() or not path.exists()):
        known = ", ".join(CSV_SUFFIXES + PARQUET_SUFFIXES)
        raise fault(str(path), f"a file ending in {suffix or 'nothing'} is not a table", f"name a file with {known}")
    require_file(path)
    return _open_csv(path, options or CsvOptions()) if suffix in CSV_SUFFIXES else open_parquet(path)


# --- CSV ---


def _open_csv(path: Path, options: CsvOptions) -> Table:
    where = str(path)
    arrow(where)
    import pyarrow.csv as reader

    if len(options.decimal) != 1 or (options.separator is not None and len(options.separator) != 1):
        raise fault(where, "--separator and --decimal are one sign each", "give for example --separator ';'")
    check_memory([Claim((path.stat().st_size,), np.dtype(f"V{CSV_BYTES}"))], where, "write it as Parquet, or split it")
    header = _header(path, options, where)
    separator = options.separator or max(SEPARATORS, key=header.count)
    names = [name.strip() for name in next(csv.reader([header], delimiter=separator))]
    parsing = reader.ParseOptions(delimiter=separator)
    reading = reader.ReadOptions(use_threads=False, encoding=options.encoding)  # without threads, errors name the row
    stored = dict(zip(names, next(csv.reader([header], delimiter=separator)), strict=True))

    def read(wanted: Sequence[str]) -> Any:
        columns = reader.ConvertOptions(
            include_columns=[stored[name] for name in wanted],
            decimal_point=options.decimal,
            strings_can_be_null=True,
        )
        try:
            found = reader.read_csv(path, reading, parsing, columns)
        except Exception as error:  # damaged text can raise any error of Arrow, and of Python's decoders
            if "utf8" in str(error).lower() or isinstance(error, UnicodeError):
                raise fault(where, "is not UTF-8 text", "name its encoding, for example --encoding cp1252") from error
            remedy = "fix that line, or give the right --separator"
            raise fault(where, f"cannot be read as CSV ({reason(error)})", remedy) from error
        return found.rename_columns(list(wanted))

    if sum(map(is_number, names)) > len(names) / 2:
        raise fault(
            where, f"its first line holds numbers ({', '.join(names[:3])})", "put the names of the columns there"
        )

    def label(row: int) -> str:
        return f"line {_line_of(path, options.encoding, separator, row)}"

    return Table(where, _checked_names(names, where), None, read, label)


def _header(path: Path, options: CsvOptions, where: str) -> str:
    """The first line. It must fit into the first megabyte."""
    try:
        with path.open("r", encoding="utf-8-sig" if options.encoding == "utf-8" else options.encoding) as file:
            for line in iter(lambda: file.readline(_HEADER_BYTES), ""):
                if line.strip():
                    return line.rstrip("\r\n")
    except (UnicodeError, LookupError) as error:
        what = f"cannot be read as {options.encoding} ({reason(error)})"
        raise fault(where, what, "name its encoding, for example --encoding cp1252") from error
    raise fault(where, "has no line of text", "put the names of the columns into the first line")


def _line_of(path: Path, encoding: str, separator: str, row: int) -> str:
    """The line of the file that has this row. Lines are counted from 1, as editors do."""
    try:
        with path.open("r", encoding=encoding, newline="") as file:
            lines = csv.reader(file, delimiter=separator)
            filled = (lines.line_num for cells in lines if cells)
            return str(next(islice(filled, row + 1, None)))
    except (StopIteration, csv.Error, UnicodeError):
        return f"{row + 2}"


# --- Parquet ---


def open_parquet(path: Path) -> Table:
    where = str(path)
    require_file(path)
    arrow(where)
    import pyarrow.parquet as parquet

    try:
        with path.open("rb") as file:
            begin = file.read(12)
        if begin.startswith(b"version http"):
            raise fault(where, "is only a pointer of Git LFS to the data", "fetch the data: git lfs pull")
        if begin[:4] != b"PAR1":
            raise fault(where, "is not a Parquet file", "copy or download it again")
        with parquet.ParquetFile(path) as opened:
            schema, metadata = opened.schema_arrow, opened.metadata
    except DropError:
        raise
    except Exception as error:  # a damaged footer can raise any error of Arrow
        raise fault(where, f"is damaged or cut short ({reason(error)})", "copy or download it again") from error
    names = _checked_names(schema.names, where)

    def read(wanted: Sequence[str]) -> Any:
        texts = [name for name in wanted if is_text(schema.field(name).type)]
        check_memory(
            _claims(metadata, wanted), where, "read fewer columns, split it, or use a machine with more memory"
        )
        try:
            with parquet.ParquetFile(path, read_dictionary=texts) as opened:
                return opened.read(columns=list(wanted), use_threads=False)
        except Exception as error:
            raise fault(where, f"is damaged or cut short ({reason(error)})", "copy or download it again") from error

    return Table(where, names, metadata.num_rows, read, lambda row: f"row {row}")


def _claims(metadata: Any, wanted: Sequence[str]) -> list[Claim]:
    """What the footer says of these columns: twice 8 bytes for each number, because they are also converted, and the
    unpacked text."""
    counts, n_bytes = dict.fromkeys(wanted, 0), 0
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for index in range(row_group.num_columns):
            chunk = row_group.column(index)
            name = chunk.path_in_schema.split(".list.")[0]  # a list's numbers are a column inside the column
            if name in counts:
                counts[name] += max(chunk.num_values, row_group.num_rows)
                n_bytes += max(chunk.total_uncompressed_size, 0)
    numbers = [Claim((max(count, metadata.num_rows), 2), np.dtype(np.float64)) for count in counts.values()]
    return [Claim((n_bytes,), np.dtype(np.uint8)), *numbers]


# --- data frames ---


def table_of_frame(frame: Any, where: str) -> Table:
    """A pandas or polars frame, an Arrow table, or anything else with Arrow's own interface, or a dict of columns."""
    pa = arrow(where)
    try:
        if isinstance(frame, pa.Table):
            found = frame
        elif type(frame).__module__.split(".")[0] == "pandas" and hasattr(frame, "columns"):
            repeated = [str(name) for name in frame.columns[frame.columns.duplicated()]]
            if repeated:
                raise fault(where, f"has the column {repeated[0]!r} twice", "give each column its own name")
            named = any(name is not None for name in frame.index.names)
            found = pa.Table.from_pandas(frame.rename(columns=str), preserve_index=named)
        elif isinstance(frame, Mapping) or hasattr(frame, "__arrow_c_stream__"):
            found = pa.table(frame)
        else:
            what = f"a {type(frame).__name__} is not a data frame"
            raise fault(where, what, "give a pandas or polars frame, an Arrow table, or a dict of columns")
    except DropError:
        raise
    except Exception as error:  # a column of mixed objects, columns of several lengths, ...
        raise fault(where, f"cannot be read as a table ({reason(error)})", "give columns of one kind each") from error
    names = _checked_names(found.column_names, where)
    return Table(where, names, found.num_rows, lambda wanted: found.select(list(wanted)), lambda row: f"row {row}")


def _checked_names(names: Sequence[str], where: str) -> tuple[str, ...]:
    repeated = [name for i, name in enumerate(names) if name in names[:i]]
    if repeated and repeated[0]:
        raise fault(where, f"has the column {repeated[0]!r} twice", "give each column its own name")
    return tuple(name for name in names if not name.startswith(_INDEX))


# --- columns by name ---


def find_column(table: Table, name: str, option: str) -> str:
    """The column with this name."""
    if name in table.names and name:
        return name
    raise _missing(table, name, option)


def find_columns(table: Table, patterns: Sequence[str], option: str, taken: Sequence[str]) -> tuple[str, ...]:
    """The columns that the patterns name, in this order. A pattern with * or ? leaves out those that are taken."""
    found: list[str] = []
    for word in patterns:
        for pattern in [word] if word in table.names else [part.strip() for part in word.split(",") if part.strip()]:
            if pattern in table.names:
                some = [pattern]
            else:
                some = [
                    name for name in table.names if fnmatch.fnmatchcase(name, pattern) and name not in taken and name
                ]
                if not some:
                    raise _missing(table, pattern, option)
            found += [name for name in some if name not in found]
    if not found:
        raise fault(table.where, f"{option} names no column", f"choose from {_some(table.names)}")
    return tuple(found)


def _missing(table: Table, name: str, option: str) -> DropError:
    lower = {known.lower(): known for known in reversed(table.names)}
    near = [lower[one] for one in difflib.get_close_matches(name.lower().strip("*?"), lower, 3, 0.6)]
    what = f"has no column {name!r} ({option})" + (f"; perhaps {' or '.join(map(repr, near))}" if near else "")
    return fault(table.where, what, f"its columns are {_some(table.names)}")


def _some(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
