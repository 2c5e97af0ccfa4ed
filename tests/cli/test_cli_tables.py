"""`drop data import` and `drop data export`: what people type, what they read, and what scripts get."""

from __future__ import annotations

import json
from pathlib import Path

import minari
import numpy as np
import pandas as pd
import pytest
from helpers.lerobot_folders import make_lerobot
from helpers.training import TINY_BC

from droprl import load_policy
from droprl.cli import main
from droprl.data import load_dataset

Captured = pytest.CaptureFixture[str]
USUAL = [
    "--episode",
    "batch_id",
    "--observations",
    "temp*,pressure",
    "--actions",
    "valve1",
    "valve2",
    "--reward",
    "yield",
]


def run(*words: str | Path) -> None:
    main([str(word) for word in words])


def error(capsys: Captured, *words: str | Path) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit):
        run(*words)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("drop: ")
    assert printed.err.count("\n") == 1
    return printed.err


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of a plant: twelve batches of 20 rows, once a minute. Every fourth batch failed."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    n = 240
    frame = pd.DataFrame(
        {
            "batch_id": np.repeat([f"B-{i:03d}" for i in range(12)], 20),
            "time": pd.to_datetime("2026-03-01") + pd.to_timedelta(np.arange(n), "min"),
            "temp1": rng.normal(80, 5, n),
            "temp2": rng.normal(20, 1, n),
            "pressure": rng.normal(1.2, 0.1, n),
            "valve1": rng.uniform(0, 100, n),
            "valve2": rng.uniform(0, 5, n),
            "yield": rng.normal(1, 0.2, n),
            "failed": (np.arange(n) % 80 == 79).astype(int),
            "operator": rng.choice(["Kim", "Lee"], n),
        }
    )
    frame.to_csv("log.csv", index=False)
    return tmp_path / "log.csv"


def test_the_command_says_what_it_did(capsys: Captured, log: Path) -> None:
    run("data", "import", "log.csv", *USUAL, "--terminal", "failed")
    printed = capsys.readouterr().out
    for part in (
        "240 rows became 240 steps in 12 episodes of 20 to 20 steps",
        "one episode for each of the 12 values of batch_id",
        "episodes that ended the task: 3 (failed); that timed out: 9",
        "observations, in this order: temp1, temp2, pressure",
        "the smallest and largest logged values (0.",
        "not used: time, operator",
        "log.hdf5 is written; look at it with: drop data info log.hdf5",
    ):
        assert part in printed
    assert "warning" not in printed
    dataset = load_dataset("log.hdf5")
    assert (dataset.n_episodes, int(dataset.terminals.sum())) == (12, 3)
    assert dataset.observation_parts == (("temp1", 1), ("temp2", 1), ("pressure", 1))


def test_nothing_is_replaced_without_force(capsys: Captured, log: Path) -> None:
    out = log.with_name("mine.hdf5")
    out.write_text("precious")
    assert "exists already: choose another place, or give --force" in error(
        capsys, "data", "import", log, *USUAL, "--out", out
    )
    assert out.read_text() == "precious"
    assert "no column 'temp9'" in error(
        capsys, "data", "import", log, *USUAL, "--observations", "temp9", "--out", out, "--force"
    )
    assert out.read_text() == "precious"  # bad input loses nothing
    run("data", "import", log, *USUAL, "--out", out, "--force")
    assert load_dataset(out).n_steps == 240
    assert "name it log.csv.hdf5" in error(capsys, "data", "import", log, *USUAL, "--out", "log.csv")


def test_warnings_are_printed_and_in_the_json(capsys: Captured, log: Path) -> None:
    frame = pd.read_csv(log)
    frame["unix"] = (
        pd.to_datetime(frame["time"]).astype("datetime64[us]").astype("int64") / 1e6
    )  # a minute apart, and float32 keeps steps of 128 s
    frame.to_csv(log, index=False)
    words = ["--episode", "batch_id", "--observations", "temp*", "unix", "--actions", "valve*", "--reward", "yield"]
    run("data", "import", log, *words)
    assert "warning: " in capsys.readouterr().out
    run("data", "import", log, *words, "--force", "--json")
    content = json.loads(capsys.readouterr().out)
    assert content["out"] == "log.hdf5"
    assert (content["n_steps"], content["n_episodes"]) == (240, 12)
    assert content["observation_parts"] == [["temp1", 1], ["temp2", 1], ["unix", 1]]
    assert "240 rows became 240 steps" in content["notes"][0]
    kinds = [warned["kind"] for warned in content["warnings"]]
    assert kinds == ["flattened"]
    run("data", "info", "log.hdf5", "--json")
    assert [warned["kind"] for warned in json.loads(capsys.readouterr().out)["warnings"]] == kinds


def test_names_from_a_stranger_are_text_on_the_terminal(capsys: Captured, log: Path) -> None:
    frame = pd.read_csv(log).rename(columns={"temp1": "temp\x1b[31m1"})
    frame.to_csv(log, index=False)
    run("data", "import", log, *USUAL)
    run("data", "info", "log.hdf5")
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\\x1b[31m" in printed


def test_a_table_and_a_folder_as_source_name_the_command(capsys: Captured, log: Path) -> None:
    assert "make a dataset of it first: drop data import log.csv" in error(capsys, "train", "log.csv")
    make_lerobot(log.parent / "arm", "v3.0")
    assert "is a LeRobot folder: make a dataset of it first" in error(capsys, "data", "info", "arm")
    assert "a folder without meta/info.json" in error(capsys, "data", "import", log.parent, "--out", "x.hdf5")
    assert "--successes is for LeRobot folders" in error(capsys, "data", "import", log, *USUAL, "--successes", "all")


def test_a_plants_log_becomes_a_policy(capsys: Captured, log: Path) -> None:
    run("data", "import", "log.csv", *USUAL, "--terminal", "failed")
    run("train", "log.hdf5", *TINY_BC, "--steps=4", "--out", "run")
    run("export", "run", "--out", "policy")
    policy = load_policy("policy")
    action = policy.act({"pressure": 1.2, "temp2": 20.0, "temp1": 80.0})
    assert action.shape == (2,)
    assert policy.origin.action_parts == (("valve1", 1), ("valve2", 1))
    np.testing.assert_array_equal(load_policy("policy").act(np.array([80.0, 20.0, 1.2])), action)


def test_a_lerobot_folder_becomes_a_policy_and_a_minari_dataset(
    capsys: Captured, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(log.parent / "minari"))
    frames = make_lerobot(
        log.parent / "pusht", "v3.0", lengths=[6] * 12, episode_success=[i % 2 == 0 for i in range(12)]
    )
    run("data", "import", "pusht")
    printed = capsys.readouterr().out
    assert "left out, because pixels are not supported yet: observation.image, observation.images.top" in printed
    run("train", "pusht.hdf5", *TINY_BC, "--steps=4", "--out", "run")
    action = load_policy("run").act({"base": 0.1, "elbow": 0.2, "wrist": 0.3})
    assert (action >= frames["action"].min(axis=0) - 1e-5).all()
    run("data", "export", "pusht.hdf5", "--minari", "mine/pusht-v0")
    assert "mine/pusht-v0: 72 steps in 12 episodes" in capsys.readouterr().out
    assert minari.load_dataset("mine/pusht-v0").total_steps == 72
    assert "exists already" in error(capsys, "data", "export", "pusht.hdf5", "--minari", "mine/pusht-v0")
