"""What the cells of an Arrow column are: numbers, the id of an episode, a time, or a flag. Cells of the wrong kind are
refused by the column and the row.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import numpy as np

from droprl.data.check import fault
from droprl.errors import DropError

RowLabel = Callable[[int], str]
_TRUE, _FALSE = ("1", "true", "t", "yes", "y"), ("0", "false", "f", "no", "n")


def numbers_of(column: Any, name: str, where: str, row_label: RowLabel, as_action: bool = False) -> np.ndarray:
    """(T, n) float64 of an Arrow column. A missing cell is NaN. Text, times and structures are refused by name."""
    import pyarrow as pa
    import pyarrow.compute as compute

    if is_text(column.type):
        raise _text_fault(column, name, where, row_label, as_action)
    column = _plain(column)
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _numbers_of_lists(column, name, where, row_label, as_action)
    if pa.types.is_temporal(kind):
        raise fault(
            where, f"{name} holds times ({kind})", "leave it out, or store a number such as the hour of the day"
        )
    is_real = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not (is_real or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        raise fault(where, f"{name} holds {kind}, not numbers", "leave it out, or store numbers")
    if as_action:
        _refuse_discrete(column, name, where)
    if pa.types.is_boolean(kind):
        column = compute.cast(column, pa.int8())
    return _float64(column).reshape(-1, 1)


def ids_of(column: Any, where: str) -> tuple[np.ndarray, np.ndarray]:
    """A whole number for each row, equal where the ids are equal, and which rows have an id."""
    import pyarrow as pa
    import pyarrow.compute as compute

    column = _plain(column)
    if pa.types.is_floating(column.type):
        column = compute.if_else(compute.is_nan(column), pa.scalar(None, column.type), column)
    if pa.types.is_nested(column.type):
        raise fault(
            where, f"the episode's id holds {column.type}", "name a column with one number or text for each row"
        )
    places, _ = _places(column)
    return places, places >= 0


def times_of(column: Any, name: str, where: str, row_label: RowLabel, form: str | None) -> tuple[np.ndarray, bool]:
    """(T,) float64 of a column of times, and whether these are seconds. Plain numbers stay in their own units."""
    import pyarrow as pa
    import pyarrow.compute as compute

    if is_text(column.type):
        places, texts = _places(column)
        parsed = [*_parsed(texts, form), None]  # the last is an empty cell, at place −1
        bad = np.array([time is None for time in parsed])[places] & (places >= 0)
        if bad.any():
            row = int(np.argmax(bad))
            remedy = "write 2026-03-01 12:00:00, or give --time-format, for example '%d.%m.%Y %H:%M'"
            raise fault(where, f"{name} {row_label(row)} is {texts[places[row]][:60]!r}, which is no time", remedy)
        column = pa.array(parsed, pa.timestamp("us")).take(pa.array(places % len(parsed)))
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        column = compute.cast(column, pa.timestamp("us"), safe=False)
        ticks, seconds = compute.cast(column, pa.int64()), True
    elif pa.types.is_time(kind) or pa.types.is_duration(kind):
        raise fault(where, f"{name} holds {kind}", "name a column with date and time, or with plain numbers")
    else:
        ticks, seconds = column, False
    times = numbers_of(ticks, name, where, row_label)
    if times.shape[1] != 1:
        raise fault(where, f"{name} holds lists", "name a column with one time for each row")
    missing = np.isnan(times[:, 0])
    if missing.any():
        raise fault(where, f"{name} {row_label(int(np.argmax(missing)))} is empty", "give every row a time")
    return times[:, 0] / (1e6 if seconds else 1.0), seconds


def flags_of(column: Any, name: str, where: str, row_label: RowLabel) -> np.ndarray:
    """(T,) bool of a column of true and false, 0 and 1, or yes and no. An empty cell is no mark."""
    if is_text(column.type):
        places, texts = _places(column)
        values = [*(text.strip().lower() for text in texts), "0"]  # the last is an empty cell, at place −1
        odd = np.array([value not in _TRUE + _FALSE for value in values])[places]
        if odd.any():
            row = int(np.argmax(odd))
            what = f"{name} {row_label(row)} is {texts[places[row]][:60]!r}, neither true nor false"
            raise fault(where, what, "store it as true and false, or as 1 and 0")
        return np.array([value in _TRUE for value in values])[places]
    found = np.nan_to_num(numbers_of(column, name, where, row_label))
    if found.shape[1] != 1:
        raise fault(where, f"{name} holds lists", "name a column with one mark for each row")
    wrong = ~((found[:, 0] == 0) | (found[:, 0] == 1))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise fault(where, f"{name} {row_label(row)} is {found[row, 0]:.6g}, neither 0 nor 1", "store it as 1 and 0")
    return found[:, 0] == 1


def is_text(kind: Any) -> bool:
    import pyarrow as pa

    while pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _plain(column: Any) -> Any:
    """The column without the dictionary that categories of a frame have."""
    import pyarrow as pa
    import pyarrow.compute as compute

    is_category = pa.types.is_dictionary(column.type) and not is_text(column.type)
    return compute.cast(column, column.type.value_type) if is_category else column


def _places(column: Any) -> tuple[np.ndarray, list[Any]]:
    """For each row the place of its value among the different values, or −1 if it is empty, and these values.

    A list of all cells would need far more memory than the file that packs them.
    """
    import pyarrow as pa
    import pyarrow.compute as compute

    found = column.combine_chunks().dictionary_encode()
    indices = compute.cast(found.indices, pa.int64())  # those of polars have no sign
    places = compute.fill_null(indices, -1).to_numpy(zero_copy_only=False)
    return np.asarray(places, np.int64), found.dictionary.to_pylist()


def _parsed(texts: list[str], form: str | None) -> list[Any]:
    """Texts as times. What cannot be read is None."""
    import pyarrow as pa

    if form is not None:
        return [_strptime(text, form) for text in texts]
    try:
        return list(pa.array(texts, pa.string()).cast(pa.timestamp("us")).to_pylist())
    except pa.ArrowInvalid:
        return [_iso(text) for text in texts]


def _strptime(text: str, form: str) -> datetime | None:
    try:
        return datetime.strptime(text, form)
    except ValueError:
        return None


def _iso(text: str) -> Any:
    import pyarrow as pa

    try:
        return pa.scalar(text).cast(pa.timestamp("us")).as_py()
    except pa.ArrowInvalid:
        return None


def _float64(column: Any) -> np.ndarray:
    import pyarrow as pa
    import pyarrow.compute as compute

    found = compute.cast(column, pa.float64(), safe=False)
    values = found.to_numpy() if isinstance(found, pa.ChunkedArray) else found.to_numpy(zero_copy_only=False)
    return np.asarray(values, np.float64)


def _numbers_of_lists(column: Any, name: str, where: str, row_label: RowLabel, as_action: bool) -> np.ndarray:
    import pyarrow as pa
    import pyarrow.compute as compute

    inside = column.type.value_type
    if not (pa.types.is_floating(inside) or pa.types.is_integer(inside) or pa.types.is_boolean(inside)):
        remedy = "store one list of numbers for each row; pixels are not supported yet"
        raise fault(where, f"{name} holds lists of {inside}", remedy)
    sizes = np.nan_to_num(np.asarray(compute.list_value_length(column).to_numpy(), np.float64)).astype(int)
    odd = (sizes != sizes[0]) | (sizes < 1) if len(sizes) else np.zeros(0, bool)
    if odd.any():
        row = int(np.argmax(odd))
        what = f"{name} {row_label(row)} has {sizes[row]} numbers, and the first row {sizes[0]}"
        raise fault(where, what, "store lists of one size, at least one number in each")
    flat = compute.list_flatten(column)
    if as_action:
        _refuse_discrete(flat, name, where)
    return _float64(compute.cast(flat, pa.int8()) if pa.types.is_boolean(inside) else flat).reshape(len(column), -1)


def _refuse_discrete(column: Any, name: str, where: str, most: int = 10) -> None:
    """Refuse actions that are a choice: true or false, or integers that count from 0 or 1 to a few."""
    import pyarrow as pa
    import pyarrow.compute as compute

    remedy = "if it is a quantity, store it with decimals (0.0 and 1.0, or as float); otherwise leave it out"
    if pa.types.is_boolean(column.type):
        raise fault(where, f"{name} is true or false; discrete actions are not supported yet", remedy)
    if pa.types.is_integer(column.type):
        values = sorted(value for value in compute.unique(column).to_pylist() if value is not None)[: most + 1]
        counts = bool(values) and values[0] in (0, 1) and values == list(range(values[0], values[0] + len(values)))
        if counts and len(values) <= most:
            shown = ", ".join(map(str, values))
            what = f"{name} holds only the whole numbers {shown}; discrete actions are not supported yet"
            raise fault(where, what, remedy)


def _text_fault(column: Any, name: str, where: str, row_label: RowLabel, as_action: bool) -> DropError:
    """The first cell that is no number is what people must see."""
    places, texts = _places(column)
    odd = np.array([*(not is_number(text) for text in texts), False])[places]
    if not odd.any():
        return fault(where, f"{name} holds text", "store it as numbers")
    row = int(np.argmax(odd))
    text = texts[places[row]]
    if as_action:
        remedy = "name columns of numbers; discrete actions are not supported yet"
    elif is_number(text.replace(",", ".", 1)):
        remedy = "for a decimal comma, give --decimal , (in Python, convert the column)"
    else:
        remedy = "name columns of numbers, or remove such rows"
    return fault(where, f"{name} {row_label(row)} is {text[:60]!r}, not a number", remedy)
