"""Names of a stranger lead nowhere: not out of OUT as parts of a path, and not into a spreadsheet as formulas."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.training import learnable_dataset, refusal, tiny
from hypothesis import example, given
from hypothesis import strategies as st

from droprl.bench import Bench, load_suite
from droprl.bench.suite import Method
from droprl.bench.tidy import TidyTable
from droprl.cli.bench import BenchOptions, _bench
from droprl.errors import DropError
from droprl.files.cells import from_cell, to_cell
from droprl.files.names import file_name, path_part
from droprl.report.table import Number, Table
from droprl.train import fit

ODD = [".", "..", "...", "", ".partial-x", "x" * 300]


@given(st.text(max_size=40))
@example("../../x")
@example("a/../../b")
@example("\\..\\..\\x")
@example("..")
def test_a_name_is_one_part_of_a_path(text: str) -> None:
    try:
        name = file_name(text)
    except DropError:
        return
    inside = Path("/out") / name
    assert inside.parent == Path("/out")
    assert inside.name not in ("", ".", "..")


@pytest.mark.parametrize("odd", ODD)
def test_no_name_of_a_suite_leads_out_of_its_folder(odd: str, tmp_path: Path) -> None:
    suite = load_suite("smoke")
    method = suite.methods[0]
    several: tuple[dict[str, Any], ...] = (
        {"tasks": (odd,)} if odd else {"methods": (replace(method, name=odd),)},
        {"methods": (replace(method, name=odd),)},
        {"plays": {odd: {}}},
    )
    for changes in several:
        refusal(replace, suite, **changes)
    made = Bench(suite, tmp_path / "out")
    strange = Method(odd, "bc")
    for path in (made.run_path, made.cost_path, made.data_path):
        refusal(path, odd, method)
        refusal(path, suite.tasks[0], strange)
    refusal(made.play_path, suite.tasks[0], method, odd)


def test_a_suite_cannot_choose_its_folder(tmp_path: Path) -> None:
    content = (Path(load_suite.__code__.co_filename).parent / "suites" / "smoke.toml").read_text()
    (tmp_path / "...toml").write_text(content)  # its stem is ".."
    assert "cannot be the name" in refusal(_bench, BenchOptions(str(tmp_path / "...toml")))
    (tmp_path / "mine [x].toml").write_text(content)
    assert _bench(BenchOptions(str(tmp_path / "mine [x].toml"))).out == Path("bench/mine-x-")


@pytest.mark.parametrize("name", ["..", "", "a\0b", "x" * 300])
def test_a_dataset_cannot_choose_its_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refusal(fit, replace(learnable_dataset(), name=name), tiny("bc"), steps=2, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_usual_names_stay_as_they_are() -> None:
    for name in ("hopper-medium-v2", "drop-k5", "a+b", "F-BC", "N=10", "..data.hdf5"):
        assert file_name(name) == path_part(name) == name
    assert file_name("mujoco/hopper/medium-v0") == "mujoco-hopper-medium-v0"


# --- spreadsheets ---

FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\tx", "\r=x", "\n=x", "'=x", "''=x", "-", "-1_0"]


@given(st.text(alphabet="'=+-@\t\r1ex ", max_size=6) | st.text(max_size=20))
def test_cells_come_back_as_they_were(text: str) -> None:
    assert from_cell(to_cell(text)) == text


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas_become_text(text: str) -> None:
    assert to_cell(text).startswith("'")
    assert from_cell(to_cell(text)) == text


@pytest.mark.parametrize("text", ["-1.5", "+2", "-1e-09", "-inf", "plain", "'quoted'", "", "a=b", "nan"])
def test_numbers_and_usual_text_stay(text: str) -> None:
    assert to_cell(text) == text == from_cell(text)


def test_our_tables_hold_no_formula(tmp_path: Path) -> None:
    table = TidyTable(("who",), ("step",), "seed")
    entries: Any = [{"step": -5, "=loss": [-1.5, None]}]
    content = table.to_csv([(("=who",), entries)])
    assert content.decode().splitlines() == ["who,step,seed,'=loss", "'=who,-5,0,-1.5", "'=who,-5,1,nan"]
    assert table.from_csv(content, tmp_path) == {("=who",): entries}
    shown = Table("t", ("@name", "value"), (("=x", Number(-1.5)), ("-3", None)))
    assert shown.to_csv() == "'@name,value\n'=x,-1.5\n-3,\n"
