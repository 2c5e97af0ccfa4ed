"""What the cells of an Arrow column are: numbers, the id of an episode, a time, or a flag. Cells of the wrong kind are
refused by the column and the row.
"""

from __future__ import annotations

from collections.abc import Callable
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
    indices = column.combine_chunks().dictionary_encode().indices
    known = np.asarray(compute.is_valid(indices).to_numpy(zero_copy_only=False), bool)
    return np.asarray(compute.fill_null(indices, -1).to_numpy(zero_copy_only=False)), known


def times_of(column: Any, name: str, where: str, row_label: RowLabel, form: str | None) -> tuple[np.ndarray, bool]:
    """(T,) float64 of a column of times, and whether these are seconds. Plain numbers stay in their own units."""
    import pyarrow as pa
    import pyarrow.compute as compute

    if is_text(column.type):
        texts = compute.cast(column, pa.string()) if pa.types.is_dictionary(column.type) else column
        column = _parsed(texts, form)
        bad = np.asarray(compute.is_null(column).to_numpy(), bool)
        if bad.any():
            row = int(np.argmax(bad))
            remedy = "write 2026-03-01 12:00:00, or give --time-format, for example '%d.%m.%Y %H:%M'"
            raise fault(where, f"{name} {row_label(row)} is {texts[row].as_py()!r}, which is no time", remedy)
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        column = compute.cast(column, pa.timestamp("us"), safe=False)
        ticks, seconds = compute.cast(column, pa.int64()), True
    elif pa.types.is_time(kind) or pa.types.is_duration(kind):
        raise fault(where, f"{name} holds {kind}", "name a column with date and time, or with plain numbers")
    else:
        ticks, seconds = column, False
    missing = np.asarray(compute.is_null(ticks).to_numpy(), bool)
    times = numbers_of(ticks, name, where, row_label)
    if times.shape[1] != 1:
        raise fault(where, f"{name} holds lists", "name a column with one time for each row")
    missing |= np.isnan(times[:, 0])
    if missing.any():
        raise fault(where, f"{name} {row_label(int(np.argmax(missing)))} is empty", "give every row a time")
    return times[:, 0] / (1e6 if seconds else 1.0), seconds


def flags_of(column: Any, name: str, where: str, row_label: RowLabel) -> np.ndarray:
    """(T,) bool of a column of true and false, 0 and 1, or yes and no. An empty cell is no mark."""
    if is_text(column.type):
        values = [str(cell).strip().lower() if cell is not None else "0" for cell in column.to_pylist()]
        odd = [row for row, value in enumerate(values) if value not in _TRUE + _FALSE]
        if odd:
            what = f"{name} {row_label(odd[0])} is {values[odd[0]][:60]!r}, neither true nor false"
            raise fault(where, what, "store it as true and false, or as 1 and 0")
        return np.array([value in _TRUE for value in values])
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


def _parsed(texts: Any, form: str | None) -> Any:
    """Texts as timestamps. What cannot be read is null."""
    import pyarrow as pa
    import pyarrow.compute as compute

    if form is not None:
        return compute.strptime(texts, format=form, unit="us", error_is_null=True)
    try:
        return compute.cast(texts, pa.timestamp("us"))
    except pa.ArrowInvalid:  # find the first text that is no time
        good = []
        for text in texts.to_pylist():
            try:
                good.append(None if text is None else pa.scalar(text).cast(pa.timestamp("us")).as_py())
            except pa.ArrowInvalid:
                good.append(None)
                break
        return pa.chunked_array([pa.array(good, pa.timestamp("us"))])


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
    for row, cell in enumerate(column.to_pylist()):
        if cell is not None and not is_number(cell):
            if as_action:
                remedy = "name columns of numbers; discrete actions are not supported yet"
            elif is_number(cell.replace(",", ".", 1)):
                remedy = "for a decimal comma, give --decimal , (in Python, convert the column)"
            else:
                remedy = "name columns of numbers, or remove such rows"
            return fault(where, f"{name} {row_label(row)} is {cell[:60]!r}, not a number", remedy)
    return fault(where, f"{name} holds text", "store it as numbers")
