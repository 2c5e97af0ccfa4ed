"""What people expect of any command line: help, versions, numbers, completion, pipes, and nothing said when asked."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.training import TINY_BC, drop, learnable_dataset, save_npz, state_files
from rich.table import Table

from droprl import DropError, evaluate
from droprl.cli import main
from droprl.cli.options import whole_number
from droprl.errors import at_the_command_line, in_python
from droprl.terminal import Screen
from droprl.train import Run

Captured = pytest.CaptureFixture[str]
FIRST = {"bench", "data", "evaluate", "train", "report", "help", "completion"}


def run(*words: str | Path) -> None:
    main([str(word) for word in words])


@pytest.fixture(scope="module")
def arrays_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arrays")
    save_npz(learnable_dataset(), folder / "mine.npz")
    run("train", folder / "mine.npz", "--out", folder / "run", *TINY_BC, "--steps=4", "--checkpoint-every=2")
    return folder / "run"


# --- help, versions, numbers ---


@pytest.mark.parametrize("words", [("train",), ("data", "make"), ("completion",)])
def test_help_of_a_command_is_its_own_help(capsys: Captured, words: tuple[str, ...]) -> None:
    printed = []
    for asked in (("help", *words), (*words, "--help")):
        with pytest.raises(SystemExit) as end:
            run(*asked)
        assert end.value.code == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert f"usage: drop {' '.join(words)}" in printed[0]


def test_both_ways_to_ask_for_the_version(capsys: Captured) -> None:
    run("--version")
    long = capsys.readouterr().out
    run("-V")
    assert capsys.readouterr().out == long


@pytest.mark.parametrize(
    ("text", "number"),
    [("20000", 20_000), ("2e4", 20_000), ("20_000", 20_000), ("20,000", 20_000), ("2.5E+3", 2_500), ("-3", -3)],
)
def test_whole_numbers_may_be_written_as_people_write_them(text: str, number: int) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize("text", ["1.5", "1e-1", "e4", "", "1e", "0x10", "nan", "inf", "1e9999", "2.5e0"])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number"):
        whole_number(text)


# --- going on with a run ---


def test_a_run_in_place_of_data_goes_on(capsys: Captured, arrays_run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(arrays_run, tmp_path / "run"))
    capsys.readouterr()
    run("train", copy, "--steps", "6e0", "--seeds=2", "--json")
    found = json.loads(capsys.readouterr().out)
    assert (found["run"], found["steps"], found["seeds"], found["finished_before"]) == (str(copy), 6, [0, 1], False)
    assert found["training_seconds"] > 0
    whole = ("--out", tmp_path / "whole", *TINY_BC, "--steps=6", "--seeds=2", "--checkpoint-every=2", "--log-every=1")
    run("train", arrays_run.parent / "mine.npz", *whole)
    assert state_files(copy) == state_files(tmp_path / "whole")
    with pytest.raises(SystemExit) as end:
        run("train", copy, "--width=16")
    assert end.value.code == 2
    (arrays_run.parent / "mine.npz").rename(tmp_path / "moved.npz")
    with pytest.raises(SystemExit):
        run("train", copy, "--steps=8")
    assert "say where it is with --dataset" in capsys.readouterr().err
    run("train", copy, "--steps=8", "--dataset", tmp_path / "moved.npz")
    assert Run(copy).config.steps == 8
    (tmp_path / "moved.npz").rename(arrays_run.parent / "mine.npz")


# --- quiet, pipes, completion ---


def test_quiet_leaves_out_all_but_results_and_warnings(tmp_path: Path) -> None:
    save_npz(learnable_dataset(), tmp_path / "mine.npz")
    words = ("train", tmp_path / "mine.npz", *TINY_BC, "--steps=4")
    code, out, err = drop(*words, "--out", tmp_path / "loud")
    assert (code, "is trained (4 updates)" in out, "4/4 updates" in err) == (0, True, True)
    code, out, err = drop("--quiet", *words, "--out", tmp_path / "quiet")
    assert (code, out) == (0, "")
    assert all(line.startswith("warning: ") for line in err.splitlines())
    assert state_files(tmp_path / "quiet") == state_files(tmp_path / "loud")
    code, out, err = drop("data", "info", tmp_path / "mine.npz", "-q")
    assert (code, "episodes" in out, err) == (0, True, "")
    code, out, err = drop("-q", "data", "info", tmp_path / "absent.npz")
    assert (code, out, err.count("\n")) == (1, "", 1)


def wide_table() -> Table:
    table = Table()
    for i in range(30):
        table.add_column(f"column {i}", no_wrap=True)
    table.add_row(*(f"value {i}" for i in range(30)))
    return table


def test_wide_tables_survive_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    pipe, terminal = io.StringIO(), io.StringIO()
    Screen(file=pipe).print(wide_table())
    assert all(f"value {i} " in pipe.getvalue() for i in range(30))
    assert "…" not in pipe.getvalue()
    Screen(file=terminal, force_terminal=True, width=80).print(wide_table())
    assert max(map(len, terminal.getvalue().splitlines())) <= 90  # 80 and what sets its style


@pytest.mark.parametrize(
    ("typed", "offered"),
    [(["drop", ""], FIRST), (["drop", "data", ""], {"info", "make", "map"}), (["drop", "tr"], {"train"})],
)
def test_bash_completes_commands(typed: list[str], offered: set[str]) -> None:
    script = subprocess.run([sys.executable, "-m", "droprl", "completion", "bash"], capture_output=True, text=True)
    ask = f"{script.stdout}\nCOMP_WORDS=({' '.join(repr(word) for word in typed)}); COMP_CWORD={len(typed) - 1}; _drop"
    answer = subprocess.run(
        ["bash", "-c", f'{ask}; printf "%s\\n" "${{COMPREPLY[@]}}"'], capture_output=True, text=True, check=True
    )
    assert set(answer.stdout.split()) >= offered
    assert len(offered) > 1 or set(answer.stdout.split()) == offered


@pytest.mark.parametrize(("shell", "check"), [("zsh", ["zsh", "-n"]), ("fish", ["fish", "--no-execute"])])
def test_the_other_shells_get_all_commands(capsys: Captured, tmp_path: Path, shell: str, check: list[str]) -> None:
    run("completion", shell)
    script = capsys.readouterr().out
    assert all(f" {name}" in script for name in FIRST - {"bench"})
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([*check, str(tmp_path / "script")], check=True)


# --- errors at the command line and in Python ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("give its Gymnasium id with --env", "give its Gymnasium id with env="),
        ("pass --action-low/--action-high, or fix it", "pass action_low=/action_high=, or fix it"),
        ("give it with --level checkpoint", 'give it with level="checkpoint"'),
        ("load it again with --download", "load it again with download=True"),
        ("export with --no-guard, or not", "export with guard=False, or not"),
        ("export it with --tolerance 0, which", "export it with tolerance=0, which"),
        ("run the same `drop train` command to go on", "make the same call of droprl.fit again to go on"),
        ("run the same `drop bench` command again", "run the same `drop bench` command again"),
        ("remove it and run `drop evaluate` again", "remove it and call droprl.evaluate again"),
        ("use drop data map a.hdf5 --out FOLDER", "use droprl.map_dataset(a.hdf5, FOLDER)"),
        ("go on by `drop train r --steps 9`", "go on by droprl.extend(r, steps=9)"),
        ("start with `drop serve POLICY --env ID`", "start with `drop serve POLICY --env ID`"),
        ("/runs/a--b/x-y: is damaged", "/runs/a--b/x-y: is damaged"),
        ("mine--env.npz: no such file", "mine--env.npz: no such file"),
    ],
)
def test_errors_speak_of_arguments_in_python(text: str, expected: str) -> None:
    assert in_python(text) == expected
    assert in_python(expected) == expected
    assert str(DropError(text)) == expected
    with at_the_command_line():
        assert str(DropError(text)) == text


def test_an_error_of_the_api_and_of_the_command(capsys: Captured, arrays_run: Path) -> None:
    with pytest.raises(DropError, match=r"give its Gymnasium id with env=$"):
        evaluate(arrays_run)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        run("evaluate", arrays_run)
    assert capsys.readouterr().err.endswith("give its Gymnasium id with --env\n")


JSON: list[tuple[Any, ...]] = [("bench", "list"), ("export", "RUN", "--out", "OUT"), ("report", "RUN", "--out", "OUT")]


@pytest.mark.parametrize("words", JSON, ids=lambda words: words[0])
def test_json_is_one_object(capsys: Captured, arrays_run: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    places = {"RUN": str(arrays_run), "OUT": str(tmp_path / "out")}
    capsys.readouterr()
    run(*(places.get(word, word) for word in words), "--json")
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert isinstance(json.loads(printed, parse_constant=lambda name: pytest.fail(name)), dict)


def test_a_page_is_replaced_only_by_the_command_that_made_it(capsys: Captured, arrays_run: Path) -> None:
    run("report", arrays_run)
    run("report", arrays_run)
    capsys.readouterr()
    page = arrays_run / "report.html"
    page.write_text("my own notes")
    with pytest.raises(SystemExit):
        run("report", arrays_run)
    assert f"{page}: exists already" in capsys.readouterr().err
    assert page.read_text() == "my own notes"
    run("report", arrays_run, "--force")
    assert "my own notes" not in page.read_text()
    run("report", arrays_run)  # --force is no part of the command
