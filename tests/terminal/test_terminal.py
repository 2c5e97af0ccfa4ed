"""Names from files are shown on the screen and never obeyed: no markup, no escape sequences."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from helpers.training import learnable_dataset, tiny
from rich.progress import Progress
from rich.table import Table as RichTable

from droprl.cli.evaluate import score_table
from droprl.errors import DropError, SettingError, clean
from droprl.evaluation import Evaluation
from droprl.evaluation.evaluation import CheckpointEpisodes
from droprl.progress import TrainProgress
from droprl.report.table import Table
from droprl.terminal import Screen, column, say
from droprl.train import fit

HOSTILE = "a[/b][bold]\x1b[31m\x9b2J:smile:\u202e\udc80z"
SHOWN = "a[/b][bold]\\x1b[31m\\x9b2J:smile:\\u202e\\udc80z"


def printed(*things: object) -> str:
    file = io.StringIO()
    screen = Screen(file=file, width=200, force_terminal=True)
    for thing in things:
        screen.print(thing, soft_wrap=True)
    return file.getvalue()


def test_text_is_cleaned_once_and_for_all() -> None:
    assert clean(HOSTILE) == SHOWN
    assert clean(SHOWN) == SHOWN
    assert clean("φ(z|n) → 95 %\tÄ 你好\n") == "φ(z|n) → 95 %\tÄ 你好\n"


def test_say_prints_one_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"{HOSTILE}\ndrop: all is well", "second")
    say("third", error=True)
    out, err = capsys.readouterr()
    assert out == f"{SHOWN}\\ndrop: all is well\nsecond\n"
    assert err == "third\n"


def test_errors_say_names_harmlessly() -> None:
    for kind in (DropError, SettingError):
        assert str(kind(f"{HOSTILE}\nnext: remove it")) == f"{SHOWN} next: remove it"


def test_tables_show_names() -> None:
    made = RichTable(title=HOSTILE)
    made.add_column(HOSTILE)
    made.add_row(HOSTILE)
    tidy = Table(HOSTILE, (HOSTILE,), ((HOSTILE,),), note=HOSTILE).to_rich()
    for table in (made, tidy):
        assert printed(table).count(SHOWN) >= 3
        assert "\x1b[31m" not in printed(table)
    out = printed(HOSTILE)
    assert out == f"{SHOWN}\n"


def test_evaluations_show_names() -> None:
    played = CheckpointEpisodes(0, 1, [1.0], [1], None)
    facts = {"rule": None, "adaptation": None, "changed": {"env": HOSTILE}, "protocol": "last", "unit": "return"}
    numbers = {"mean": 1.0, "iqm": 1.0, "interval": (1.0, 1.0), "caveat": None, "milliseconds_per_action": None}
    found = Evaluation(algorithm=HOSTILE, dataset=HOSTILE, env=HOSTILE, results=[played], **facts, **numbers)  # type: ignore[arg-type]
    out = printed(score_table([found]))
    assert "\x1b[31m" not in out
    assert "\x9b" not in out
    assert SHOWN in out


def test_progress_shows_names() -> None:
    file = io.StringIO()
    screen = Screen(file=file, width=200, force_terminal=True)
    with Progress(column("{task.description}", "bold"), console=screen) as bar:
        bar.add_task(HOSTILE, total=1)
    assert SHOWN[:20] in file.getvalue()  # rich cuts it to the width that it measured
    assert "\x1b[31m" not in file.getvalue()


def test_warnings_show_names(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainProgress(HOSTILE, 0, 1, True, {}) as progress:
        progress.warn(HOSTILE)
        progress.say(HOSTILE)
    assert capsys.readouterr().err.count(SHOWN) == 2


def test_a_run_in_a_folder_with_markup_can_be_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r2[/b]x\x1b[31m"
    fit(learnable_dataset(), tiny("bc"), out=out, steps=2, progress=False, checkpoint_every=1)
    newest = max((out / "checkpoints").iterdir())
    for file in newest.iterdir():
        file.unlink()
    newest.rmdir()
    fit(learnable_dataset(), tiny("bc"), out=out, steps=2, checkpoint_every=1)
    assert "r2[/b]x\\x1b[31m at update 1" in capsys.readouterr().err
