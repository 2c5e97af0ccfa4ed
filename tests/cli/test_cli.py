"""`drop` as users see it: every command through `main`, and a few as real processes."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.training import TINY_BC, drop, learnable_dataset, save_npz

from droprl import load_policy
from droprl.adapt import RULES
from droprl.algorithms import ALGORITHMS
from droprl.cli import main
from droprl.data import load_dataset
from droprl.train import Run

pytest.importorskip("gymnasium_robotics")
Captured = pytest.CaptureFixture[str]
COMMANDS = (
    "demo",
    "data import",
    "data info",
    "data export",
    "data make",
    "train",
    "evaluate",
    "judge",
    "finetune",
    "report",
    "export",
)
TINY_DROP = "--preset=small --width=8 --depths 1 1 1 1 1 --batch-size=32 --n-sub-tasks=4 --discount=0.99"
TRAIN = [*TINY_DROP.split(), "--seeds=2", "--steps=12", "--checkpoint-every=2", "--log-every=2"]
PLAY = ["--episodes=2", "--ascent-steps=2"]


def run(*words: str | Path) -> None:
    main([str(word) for word in words])


def error(capsys: Captured, *words: str | Path, code: int = 1) -> str:
    """The error of a command: one line on standard error, its exit code, nothing on standard output."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        run(*words)
    printed = capsys.readouterr()
    assert end.value.code == code
    assert printed.out == ""
    assert printed.err.startswith("drop: ")
    assert printed.err.count("\n") == 1
    assert "Traceback" not in printed.err
    return printed.err.removeprefix("drop: ").rstrip("\n")


@pytest.fixture(scope="module")
def maze(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("maze") / "umaze.hdf5"
    run("data", "make", "maze2d-umaze", "--steps", "2400", "--out", path)
    return path


@pytest.fixture(scope="module")
def trained(maze: Path) -> Path:
    """A DROP run of two seeds with six checkpoints. Tests only add evaluations to it."""
    out = maze.parent / "run"
    run("train", maze, "--out", out, *TRAIN)
    return out


@pytest.fixture(scope="module")
def arrays_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BC run on a user's own arrays, whose task is not known."""
    folder = tmp_path_factory.mktemp("arrays")
    save_npz(learnable_dataset(), folder / "mine.npz")
    run("train", folder / "mine.npz", "--out", folder / "run", *TINY_BC, "--steps=4")
    return folder / "run"


# --- help ---


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help_names_every_command(capsys: Captured, words: list[str]) -> None:
    run(*words)
    printed = capsys.readouterr().out
    assert all(f"drop {command} " in printed for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(capsys: Captured, command: str) -> None:
    with pytest.raises(SystemExit) as end:
        run(*command.split(), "--help")
    printed = capsys.readouterr()
    assert end.value.code == 0
    assert f"usage: drop {command} " in printed.out
    assert printed.err == ""
    assert len(re.findall(r"^.? +(?:-h, )?--[-\w]+", printed.out, re.MULTILINE)) >= 2  # --help and at least one more


@pytest.mark.parametrize(
    ("algo", "own"),
    [
        ("drop", "--n-sub-tasks"),
        ("drop-cvae", "--kl-weight"),
        ("ddrop", "--distilled-share"),
        ("bc", "--width"),
        ("fbc", "--top-fraction"),
        ("rvs", "--target-return"),
        ("onestep", "--improvement"),
        ("dt", "--target-return"),
        ("coms", "--n-policies"),
    ],
)
def test_the_help_of_train_shows_the_algorithms_own_options(capsys: Captured, algo: str, own: str) -> None:
    with pytest.raises(SystemExit):
        run("train", "--algo", algo, "--help")
    printed = capsys.readouterr().out
    assert own in printed
    assert ("--n-sub-tasks" in printed) == (algo in ("drop", "ddrop"))


def test_the_version(capsys: Captured) -> None:
    run("--version")
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


# --- data ---


def test_data_make_and_data_info(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "new" / "maze.hdf5"
    run("data", "make", "maze2d-umaze", "--steps", "600", "--out", path)
    assert capsys.readouterr().out == (f"{path}: 600 steps in 2 episodes; look at it with: drop data info {path}\n")
    with pytest.raises(SystemExit):
        run("data", "make", "maze2d-umaze", "--steps", "6e2", "--out", path)
    assert capsys.readouterr().err == (
        f"drop: {path}: exists already: choose another place, or give --force to replace it\n"
    )
    run("data", "make", "maze2d-umaze", "--steps", "6e2", "--out", path, "--force", "--json")
    assert json.loads(capsys.readouterr().out) == {"path": str(path), "n_steps": 600, "n_episodes": 2}
    run("data", "info", path, "--json")
    info = json.loads(capsys.readouterr().out)
    assert (info["n_steps"], info["n_episodes"], info["env"]) == (600, 2, "droprl/maze2d-umaze-v0")
    run("data", "info", path)
    assert "Sub-tasks by each rule" in capsys.readouterr().out


@pytest.mark.parametrize("steps", ["0", "-5"])
def test_data_make_refuses_sizes_below_1(capsys: Captured, tmp_path: Path, steps: str) -> None:
    out = tmp_path / "maze.hdf5"
    assert "at least 1 step" in error(capsys, "data", "make", "maze2d-umaze", f"--steps={steps}", "--out", out)
    assert not list(tmp_path.iterdir())


# --- train, evaluate, report, export ---


def test_training_again_says_that_it_is_finished(capsys: Captured, maze: Path, trained: Path) -> None:
    capsys.readouterr()
    run("train", maze, "--out", trained, *TRAIN)
    printed = capsys.readouterr().out
    assert printed == f"{trained} was finished already (12 updates); play it with: drop evaluate {trained}\n"
    printed = error(capsys, "train", maze, "--out", trained, *TRAIN, "--steps=13")
    assert "steps 12 → 13" in printed
    assert f"go on with it by `drop train {trained} --steps 13`" in printed


@pytest.mark.parametrize("rule", RULES)
def test_evaluate_prints_one_json_object(capsys: Captured, trained: Path, rule: str) -> None:
    capsys.readouterr()
    run("evaluate", trained, "--rule", rule, *PLAY, "--json")
    printed = capsys.readouterr().out
    found = json.loads(printed, parse_constant=lambda name: pytest.fail(f"{name} in the JSON"))
    assert printed.count("\n") == 1
    assert (found["algorithm"], found["rule"], found["protocol"]) == ("drop", rule, "last")
    assert found["adaptation"]["ascent_steps"] == 2
    assert [(r["seed"], r["step"]) for r in found["results"]] == [(0, 12), (1, 12)]
    low, high = load_dataset(trained.parent / "umaze.hdf5").score_range or (0, 0)
    for result in found["results"]:
        assert len(result["returns"]) == len(result["scores"]) == 2
        assert result["lengths"] == [300, 300]
        expected = 100 * (np.array(result["returns"]) - low) / (high - low)
        np.testing.assert_allclose(result["scores"], expected)
    scores = [score for result in found["results"] for score in result["scores"]]
    assert found["mean"] == pytest.approx(np.mean(scores))
    assert found["interval"][0] <= found["iqm"] <= found["interval"][1]
    assert found["milliseconds_per_action"] > 0
    (written,) = (trained / "evaluations").glob(f"{rule}-last-*.json")  # the changed settings are in its name
    kept = json.loads(written.read_text())
    assert {name: kept[name] for name in kept if name not in ("format", "seal")} == found


def test_evaluate_prints_a_table(capsys: Captured, trained: Path) -> None:
    capsys.readouterr()
    run("evaluate", trained, "--rule=grad-ada", *PLAY)
    printed = capsys.readouterr().out
    assert "auto" in printed
    assert "D4RL-normalised score" in printed


def test_the_papers_protocol_takes_six_checkpoints(capsys: Captured, trained: Path, tmp_path: Path) -> None:
    capsys.readouterr()
    run("evaluate", trained, "--protocol=paper", "--rule=best", "--episodes=1", "--json")
    found = json.loads(capsys.readouterr().out)
    assert [(r["seed"], r["step"]) for r in found["results"]] == [(s, t) for s in (0, 1) for t in range(2, 13, 2)]
    fewer = Path(shutil.copytree(trained, tmp_path / "fewer"))
    shutil.rmtree(fewer / "checkpoints" / "000000002")
    printed = error(capsys, "evaluate", fewer, "--protocol=paper")
    assert printed.startswith(f"{fewer}: has 5 checkpoints and the paper's protocol plays the last 6: ")


def test_an_exported_policy_plays_as_its_run(capsys: Captured, trained: Path, tmp_path: Path) -> None:
    capsys.readouterr()
    policy = tmp_path / "policy"
    run("export", trained, "--out", policy, "--seed=1", "--rule=best")
    assert str(policy) in capsys.readouterr().out
    run("evaluate", policy, *PLAY, "--json")
    exported = json.loads(capsys.readouterr().out)
    run("evaluate", trained, "--rule=best", *PLAY, "--json")
    from_run = json.loads(capsys.readouterr().out)
    assert exported["results"] == from_run["results"][1:]
    assert (exported["rule"], exported["adaptation"]["ascent_steps"]) == ("best", 2)
    assert load_policy(policy).origin.seed == 1
    assert not (policy / "evaluations").exists()
    assert "of one checkpoint" in error(capsys, "evaluate", policy, "--protocol=paper")
    assert "has no seed 9" in error(capsys, "export", trained, "--out", tmp_path / "other", "--seed=9")
    assert error(capsys, "export", trained, "--out", policy).startswith(f"{policy / 'policy.json'}: exists already")
    assert load_policy(policy).origin.seed == 1
    run("export", trained, "--out", policy, "--seed=0", "--force", "--json")
    assert json.loads(capsys.readouterr().out) == {"policy": str(policy)}
    assert load_policy(policy).origin.seed == 0
    assert "is a run" in error(capsys, "export", trained, "--out", trained)


def test_finetune_saves_a_policy_and_says_what_it_cost(capsys: Captured, trained: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(trained, tmp_path / "run"))
    words: list[str | Path] = ["finetune", copy, "--level=checkpoint", "--budget=650", "--rule=best", "--episodes=1"]
    capsys.readouterr()
    run(*words, "--json")
    found = json.loads(capsys.readouterr().out)
    assert [(s["steps_played"], s["episodes_played"]) for s in found["seeds"]] == [(600, 2)] * 2
    assert found["evaluation_steps"] == 2 * 2 * 300
    run(*words)
    printed = capsys.readouterr().out
    assert f"{found['initial']:.1f} → {found['tuned']:.1f}" in printed
    assert f"play it with: drop evaluate {copy / 'finetune' / 'checkpoint' / 'policy'}" in printed
    run("evaluate", copy / "finetune" / "checkpoint" / "policy", "--episodes=1", "--json")
    assert json.loads(capsys.readouterr().out)["results"] == [found["seeds"][0]["tuned"]]
    printed = error(capsys, "finetune", copy, "--level=checkpoint", "--budget=299")
    assert "an episode of droprl/maze2d-umaze-v0 may last 300, so give at least 300" in printed


def test_report_writes_one_page(capsys: Captured, trained: Path, tmp_path: Path) -> None:
    run("evaluate", trained, "--rule=best", *PLAY)
    capsys.readouterr()
    page = tmp_path / "page.html"
    run("report", trained, "--out", page)
    assert capsys.readouterr().out == f"{page} is written\n"
    text = page.read_text()
    assert text.lower().startswith("<!doctype html>")
    assert "best" in text
    assert "best" in (trained / "tables" / "scores.csv").read_text()
    assert (trained / "tables" / "diagnostics.tex").read_text().startswith("% needs")


def test_a_half_written_evaluation_is_not_read_and_a_damaged_one_is_named(
    capsys: Captured, arrays_run: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(arrays_run, tmp_path / "run"))
    (copy / "evaluations").mkdir()
    (copy / "evaluations" / ".partial-bc-last.json").write_text('{"algori')
    run("report", copy)
    assert (copy / "report.html").exists()
    for content in ('{"algori', "[]", "{}"):
        (copy / "evaluations" / "bc-last.json").write_text(content)
        assert error(capsys, "report", copy).startswith(f"{copy / 'evaluations' / 'bc-last.json'}: ")


# --- errors ---


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("dance", "there is no command 'dance'"),
        ("data", "`drop data` needs `import`, `info`, `export`, `make` or `map`"),
        ("data dance", "`drop data` needs `import`, `info`, `export`, `make` or `map`"),
        ("data make maze3d", "invalid choice 'maze3d'"),
        ("trian nothing.npz", "there is no command 'trian' (perhaps train)"),
        ("data inof", "`drop data` needs `import`, `info`, `export`, `make` or `map` after it (perhaps info)"),
        ("help dance", "there is no command 'dance'"),
        ("data info", "Missing from drop data info: SOURCE"),
        ("train", "Missing from drop train: SOURCE"),
        ("train nothing.npz --algo dorp", f"(perhaps drop or ddrop): choose one of {', '.join(ALGORITHMS)}"),
        ("train nothing.npz --algo=dorp", "--algo dorp (perhaps drop or ddrop): choose one of"),
        ("train nothing.npz --preset large", "--preset large: choose one of paper, small"),
        ("train nothing.npz --algo", "Missing value for argument '--algo'"),
        ("train nothing.npz --seed 3", "Unrecognized options: --seed, 3 (perhaps --decomposition-seed, --seeds)"),
        ("train nothing.npz --steps many", "Error parsing --steps: "),
        ("train nothing.npz --steps 1.5", "Error parsing --steps: "),
        ("completion csh", "invalid choice 'csh'"),
        ("train nothing.npz --algo bc --n-sub-tasks 4", "Unrecognized options: --n-sub-tasks"),
        ("train nothing.npz --ascent-steps -1", "ascent_steps is -1: it must be from 0 to 10,000"),
        ("evaluate nowhere --rule bset", "invalid choice 'bset' for argument '--rule'"),
        ("export nowhere", "nothing to write: give --out FOLDER, --onnx FILE, or both"),
        ("finetune nowhere --level weights --budget 100", "invalid choice 'weights' for argument '--level'"),
        ("finetune nowhere --level policy", "Missing from drop finetune: --budget"),
        ("select nowhere.hdf5", "Missing from drop select: --out"),
        ("report", "`drop report` needs at least one run directory"),
    ],
)
def test_a_command_line_that_makes_no_sense_exits_with_2(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, printed: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert printed in error(capsys, *words.split(), code=2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("data info nothing.hdf5", "nothing.hdf5: no such file"),
        ("evaluate nowhere", "nowhere: is not a run (no config.json): give the folder that `drop train --out` made"),
        ("export nowhere --out here", "nowhere: is not a run"),
        ("finetune nowhere --level embedding --budget 100", "nowhere: is not a run"),
        ("select nowhere.hdf5 --out here", "nowhere.hdf5: no such file"),
        ("bench nothing", "there is no suite 'nothing': choose one of ablation-"),
        ("bench papr-rules", "there is no suite 'papr-rules' (perhaps paper-rules"),
        ("bench ablation-cloning", "task hopper-medium-replay: say where its file is with --data FOLDER"),
        ("report nowhere", "nowhere: is not a run"),
    ],
)
def test_what_cannot_be_done_gives_one_line_of_error(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, printed: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert printed in error(capsys, *words.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        ("--steps=0", "steps is 0"),
        ("--seeds=0", "seeds 0"),
        ("--checkpoint-every=-1", "checkpoint_every is -1"),
        ("--width=-1", "width is -1: it must be at least 1"),
        ("--learning-rate=nan", "learning_rate is nan: it must be above 0"),
        ("--batch-size=-1", "batch_size is -1: it must be at least 1"),
        ("--action-low 0", "action_high is missing"),
    ],
)
def test_settings_that_cannot_work_are_refused_and_write_nothing(
    capsys: Captured, arrays_run: Path, tmp_path: Path, options: str, printed: str
) -> None:
    source = arrays_run.parent / "mine.npz"
    code = 1 if options.startswith("--action") else 2
    assert printed in error(capsys, "train", source, "--out", tmp_path / "run", *TINY_BC, *options.split(), code=code)
    assert not list(tmp_path.iterdir())


def test_own_arrays_need_their_task_named(capsys: Captured, arrays_run: Path) -> None:
    assert error(capsys, "evaluate", arrays_run) == (
        "mine: no task is known for this data: give its Gymnasium id with --env"
    )
    printed = error(capsys, "evaluate", arrays_run, "--env=droprl/maze2d-umaze-v0")
    assert "its observations have 4 entries and the policy was trained on 3" in printed
    assert "cannot be made" in error(capsys, "evaluate", arrays_run, "--env=NoSuchTask-v7")
    assert "bc infers no embedding: leave out rule" in error(capsys, "evaluate", arrays_run, "--rule=best")
    for option, printed in (("--episodes=0", "episodes is 0"), ("--n-envs=0", "n_envs is 0")):
        assert error(capsys, "evaluate", arrays_run, option, code=2).startswith(printed)


def test_a_folder_of_runs_is_one_page_that_compares_them(
    capsys: Captured, arrays_run: Path, trained: Path, tmp_path: Path
) -> None:
    """Runs of other data and of other settings, in folders inside folders."""
    shutil.copytree(arrays_run, tmp_path / "runs" / "mine" / "bc")
    shutil.copytree(trained, tmp_path / "runs" / "umaze" / "drop")
    run("evaluate", tmp_path / "runs" / "umaze" / "drop", "--rule=best", *PLAY)
    source = arrays_run.parent / "mine.npz"
    run("train", source, "--out", tmp_path / "runs" / "mine" / "wide", *TINY_BC, "--width=16", "--steps=4")
    capsys.readouterr()
    run("report", tmp_path / "runs", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["page"] == str(tmp_path / "runs" / "report.html")
    rows = {row["run"]: row for row in found["tables"]["runs"]}
    assert sorted(rows) == ["mine/bc", "mine/wide", "umaze/drop"]
    assert [rows[name]["width"] for name in ("mine/bc", "mine/wide")] == ["8", "16"]
    assert "batch_size" not in rows["mine/bc"]  # it is the same in both runs of bc
    assert rows["umaze/drop"]["data"] == "umaze"
    for row in rows.values():
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", row["trained on"])
        assert re.fullmatch(r"[\d.]+ s|\d+ min \d\d s", row["training time"])
        assert row["droprl"].startswith("0.")
    assert set(found["tables"]) >= {"runs", "scores-umaze"}
    page = (tmp_path / "runs" / "report.html").read_text(encoding="utf-8")
    assert "3 runs on 2 datasets" in page
    assert 'src="data:image/gif;base64,' in page
    (tmp_path / "empty").mkdir()
    assert "is not a run" in error(capsys, "report", tmp_path / "empty")


def test_debug_shows_the_traceback() -> None:
    code, out, err = drop("evaluate", "nowhere", "--debug")
    assert (code, out) == (1, "")
    assert "Traceback (most recent call last)" in err
    assert err.splitlines()[-1].startswith("droprl.errors.DropError: nowhere: is not a run")


# --- as a process ---


def test_a_mistake_gives_one_line_in_a_real_process() -> None:
    assert drop("train", "nothing.npz", "--steps") == (
        2,
        "",
        "drop: Missing value for argument '--steps'. Expected 1 values: see `drop train --help`\n",
    )


def test_a_terminal_with_colours_shows_the_same_line() -> None:
    """On a terminal tyro colours its messages."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "droprl", "data", "info", "some.npz", "--jsno"]
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    printed = b""
    while chunk := _read(leader):
        printed += chunk
    os.close(leader)
    assert process.wait() == 2
    assert printed.decode().startswith(
        "drop: Unrecognized options: --jsno (perhaps --json): see `drop data info --help`"
    )
    assert printed.count(b"\n") == 1


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # Linux says this when the other end is closed
        return b""


def test_a_closed_pipe_or_a_full_disk_is_not_a_crash(maze: Path) -> None:
    command: list[Any] = [sys.executable, "-m", "droprl", "data", "info", maze, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()  # as `| head -0` does
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait() == 1
    with open("/dev/full", "w") as full:
        answer = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (1, "drop: [Errno 28] No space left on device\n")


def test_a_run_that_cannot_be_written_is_named(capsys: Captured, trained: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(trained, tmp_path / "run"))
    shutil.rmtree(copy / "evaluations", ignore_errors=True)
    (copy / "evaluations").write_text("a file where the folder should be")
    printed = error(capsys, "evaluate", copy, "--rule=best", "--episodes=1")
    assert printed.startswith(f"{copy / 'evaluations'}")
    assert Run(copy).finished
