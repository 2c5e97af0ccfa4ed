"""Text in a CSV table. A spreadsheet would run a cell as a formula if it begins with one of a few characters."""

from __future__ import annotations

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_MARK = "'"  # spreadsheets take what follows it as text


def to_cell(text: str) -> str:
    """The text, with a mark before it if a spreadsheet would take it for a formula."""
    return f"{_MARK}{text}" if _looks_like_a_formula(text) else text


def from_cell(cell: str) -> str:
    """The text that `to_cell` was given."""
    return cell[1:] if cell.startswith(_MARK) and _looks_like_a_formula(cell) else cell


def _looks_like_a_formula(text: str) -> bool:
    """Also if marks stand before it, so that the way back is clear. A number is no formula."""
    inner = text.lstrip(_MARK)
    return inner.startswith(FORMULA) and not _is_number(inner)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text == text.strip() and "_" not in text
