"""Entries with lists as rows of a table, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from droprl.bench.tidy import TidyTable
from droprl.errors import DropError

TABLE = TidyTable(("who", "what"), ("step",), "seed", {"returns": "return"})
WHERE = Path("table.csv")
NUMBERS = st.integers() | st.floats(allow_nan=False) | st.none()
NAMES = st.text(st.characters(categories=("L", "N", "P", "Zs")))


@st.composite
def entries(draw: st.DrawFn) -> list[dict[str, Any]]:
    n = draw(st.integers(1, 3))
    lists = st.dictionaries(st.sampled_from(["returns", "loss", "λ"]), st.lists(NUMBERS, min_size=n, max_size=n))
    return [{"step": draw(st.integers()), **draw(lists.filter(bool))} for _ in range(draw(st.integers(1, 3)))]


def test_rows_by_hand() -> None:
    first = [{"step": 5, "returns": [1.5, 2], "loss": [None, 0.1]}, {"step": 6, "returns": [3.0, -1e-9]}]
    content = TABLE.to_csv([(("a,b", "x"), first), (('c"', ""), [{"step": 0, "loss": [7.0]}])])
    assert content.decode() == (
        "who,what,step,seed,return,loss\n"
        '"a,b",x,5,0,1.5,nan\n'
        '"a,b",x,5,1,2,0.1\n'
        '"a,b",x,6,0,3.0,\n'
        '"a,b",x,6,1,-1e-09,\n'
        '"c""",,0,0,,7.0\n'
    )
    assert TABLE.from_csv(content, WHERE)["a,b", "x"] == first


@given(st.dictionaries(st.tuples(NAMES, NAMES), entries(), max_size=3))
def test_nothing_is_lost(groups: dict[tuple[str, ...], list[dict[str, Any]]]) -> None:
    again = TABLE.from_csv(TABLE.to_csv(groups.items()), WHERE)
    assert repr(again) == repr(
        {names: [_sorted(e, again[names][i]) for i, e in enumerate(group)] for names, group in groups.items()}
    )


def _sorted(entry: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    """The entry with its keys in the order of `like`, which is that of the columns."""
    assert entry.keys() == like.keys()
    return {key: entry[key] for key in like}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a CSV table"),
        (b"\xff\n", "is not a CSV table"),
        (b"who,step\n", "its first columns are not who, what, step, seed"),
        (b"who,what,step,seed,loss\na,b,1,0\n", "line 2 is damaged"),
        (b"who,what,step,seed,loss\na,b,1,0,x\n", "line 2 is damaged"),
        (b"who,what,step,seed,loss\na,b,1,1,0.5\n", r"line 2 is damaged \(a row is missing\)"),
        (b"who,what,step,seed,loss\na,b,1,0,0.5\na,b,1,2,0.5\n", r"line 3 is damaged \(a row is missing\)"),
        (b"who,what,step,seed,loss\na,b,1,0,0.5\na,c,1,1,0.5\n", r"line 3 is damaged \(a row is missing\)"),
        (b"who,what,step,seed,loss,gap\na,b,1,0,0.5,\na,b,1,1,0.5,2\n", "line 3 is damaged"),
    ],
)
def test_a_damaged_table_is_named(content: bytes, message: str) -> None:
    with pytest.raises(DropError, match=rf"table\.csv: {message}"):
        TABLE.from_csv(content, WHERE)
