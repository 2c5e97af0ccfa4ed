"""CSV, Parquet and data frames: the same numbers, episodes cut as asked, and one line for everything that is wrong."""

from __future__ import annotations

import builtins
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from droprl.data import Dataset, from_frame
from droprl.data.frames import import_table
from droprl.data.meaning import Meaning
from droprl.data.tables import CsvOptions
from droprl.errors import DropError

USUAL: dict[str, Any] = {"observations": "temp*,pressure", "actions": ["valve1", "valve2"], "reward": "yield"}


def plant() -> pd.DataFrame:
    """Three batches of 3, 2 and 4 rows. The second failed."""
    n = 9
    return pd.DataFrame(
        {
            "batch_id": ["b7"] * 3 + ["b8"] * 2 + ["b9"] * 4,
            "time": pd.to_datetime("2026-03-01 12:00:00") + pd.to_timedelta([0, 1, 2, 63, 64, 200, 201, 202, 203], "s"),
            "temp1": np.arange(n) / 2,
            "temp2": -np.arange(n) / 4,
            "pressure": np.arange(n) + 100,
            "valve1": np.linspace(0, 100, n),
            "valve2": np.linspace(5, -5, n),
            "yield": np.arange(n) * 0.5,
            "failed": [0, 0, 0, 0, 1, 0, 0, 0, 0],
            "operator": list("AABBAABBA"),
        }
    )


def built(frame: Any = None, **changes: Any) -> Dataset:
    return from_frame(plant() if frame is None else frame, **(USUAL | {"episode": "batch_id"} | changes))


def refusal(frame: Any = None, **changes: Any) -> str:
    with pytest.raises(DropError) as caught:
        built(frame, **changes)
    message = str(caught.value)
    assert message.startswith("frame: ")
    assert len(message.splitlines()) == 1
    assert message.count(": ") >= 2, "a remedy is missing"
    return message


def said(dataset: Dataset) -> str:
    return " | ".join(dataset.notes)


# --- what the columns mean ---


def test_a_frame_becomes_a_dataset() -> None:
    frame = plant()
    dataset = built(terminal="failed")
    np.testing.assert_array_equal(dataset.observations, frame[["temp1", "temp2", "pressure"]].to_numpy(np.float32))
    np.testing.assert_array_equal(dataset.actions, frame[["valve1", "valve2"]].to_numpy(np.float32))
    assert dataset.lengths.tolist() == [3, 2, 4]
    assert dataset.ends_in_terminal.tolist() == [False, True, False]
    assert np.flatnonzero(dataset.timeouts).tolist() == [2, 8]
    assert dataset.returns.tolist() == [1.5, 3.5, 13]
    assert dataset.observation_parts == (("temp1", 1), ("temp2", 1), ("pressure", 1))
    assert (dataset.action_low.tolist(), dataset.action_high.tolist()) == ([0, -5], [100, 5])
    assert "9 rows became 9 steps in 3 episodes of 2 to 4 steps" in said(dataset)
    assert "0 to 100, -5 to 5" in said(dataset)
    assert "not used: time, operator" in said(dataset)


def test_the_order_of_columns_is_the_order_of_the_patterns() -> None:
    assert built(observations=["pressure", "temp?"]).observation_parts == (("pressure", 1), ("temp1", 1), ("temp2", 1))
    everything = built(plant().drop(columns=["time", "operator"]), observations="*", terminal="failed")
    assert [name for name, _ in everything.observation_parts or ()] == ["temp1", "temp2", "pressure"]


def test_bounds_can_be_given() -> None:
    dataset = built(action_low=-10, action_high=[200, 10])
    assert dataset.action_high.tolist() == [200, 10]
    assert dataset.action_low.tolist() == [-10, -10]


def test_one_reward_for_the_whole_episode() -> None:
    dataset = built(reward_at="end")
    assert dataset.rewards.tolist() == [0, 0, 1, 0, 2, 0, 0, 0, 4]
    blank = plant()
    blank["yield"] = [np.nan, 7, np.nan, np.nan, 8, 9, np.nan, np.nan, np.nan]
    assert built(blank, reward_at="end").rewards.tolist() == [0, 0, 7, 0, 8, 0, 0, 0, 9]
    assert 'give reward_at="end"' in refusal(blank)
    blank["yield"] = [1, 1, 1, np.nan, np.nan, 9, 9, 9, 9]
    assert "yield row 4 is empty" in refusal(blank, reward_at="end")


def test_columns_of_lists_are_vectors() -> None:
    frame = plant()
    frame["state"] = [[i, i + 0.5] for i in range(9)]
    dataset = built(frame, observations=["pressure", "state"])
    assert dataset.observation_parts == (("pressure", 1), ("state", 2))
    assert dataset.observations[3].tolist() == [103, 3, 3.5]
    frame["state"] = [[i] * (1 + i % 2) for i in range(9)]
    assert "state row 1 has 2 numbers, and the first row 1" in refusal(frame, observations="state")


class Foreign:
    """A frame of another library: nothing but Arrow's own interface, as polars has it."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def test_frames_of_any_library() -> None:
    wanted = built().fingerprint
    table = pa.Table.from_pandas(plant())
    columns = {
        name: plant()[name].to_numpy()
        for name in ("batch_id", *USUAL["actions"], "temp1", "temp2", "pressure", "yield")
    }
    ids = pa.DictionaryArray.from_arrays(pa.array([0, 0, 0, 2, 2, 1, 1, 1, 1], pa.uint32()), ["b7", "b9", "b8"])
    categorical = table.set_column(0, "batch_id", ids)  # as polars has categories
    for frame in (
        table,
        Foreign(table),
        Foreign(categorical),
        columns,
        plant().astype({"batch_id": "category", "pressure": "Float64"}),
    ):
        assert built(frame).fingerprint == wanted
    assert "a list is not a data frame" in refusal([1, 2])
    some = plant().drop(columns=["time", "operator"])[[True, False, True, True, True, True, True, True, True]]
    numbered = built(some, observations="*", terminal="failed")  # pandas' own row numbers are no observation
    assert numbered.observation_parts == (("temp1", 1), ("temp2", 1), ("pressure", 1))
    by_index = plant().set_index("batch_id")
    assert built(by_index).lengths.tolist() == [3, 2, 4]


# --- where episodes end ---


def test_gaps_in_time() -> None:
    dataset = built(episode=None, time="time", gap="60s")
    assert dataset.lengths.tolist() == [3, 2, 4]
    assert "cut at 2 gaps of more than 60s in time" in said(dataset)
    assert built(episode=None, time="time", gap="2min").lengths.tolist() == [5, 4]
    assert built(episode=None, time="time", gap="61s").lengths.tolist() == [5, 4]  # 61 s is not more than 61 s
    assert built(time="time", gap="1s").lengths.tolist() == [3, 2, 4]


def test_times_may_be_numbers_or_text() -> None:
    numbers = plant().assign(time=[0, 1, 2, 63, 64, 200, 201, 202, 203])
    assert built(numbers, episode=None, time="time", gap="60s").lengths.tolist() == [3, 2, 4]
    assert built(numbers, episode=None, time="time", gap=60).lengths.tolist() == [3, 2, 4]
    text = plant()
    text["time"] = text["time"].dt.strftime("%Y-%m-%d %H:%M:%S")
    assert built(text, episode=None, time="time", gap="60s").lengths.tolist() == [3, 2, 4]
    text["time"] = pd.to_datetime(text["time"]).dt.strftime("%d.%m.%Y %H:%M:%S")
    assert "time row 0 is '01.03.2026 12:00:00', which is no time" in refusal(text, time="time")
    dataset = built(text, episode=None, time="time", gap="60s", time_format="%d.%m.%Y %H:%M:%S")
    assert dataset.lengths.tolist() == [3, 2, 4]


def test_times_that_go_back() -> None:
    frame = plant()
    frame.loc[1, "time"] = frame.loc[0, "time"] - pd.Timedelta("1h")
    message = refusal(frame, time="time")
    assert "time row 1 is earlier than row 0 of the same episode" in message
    assert "sort the rows by time" in message
    back = plant().iloc[::-1].reset_index(drop=True)  # episodes in any order are fine, rows inside them are not
    assert "time row 1 is earlier than row 0" in refusal(back, time="time")
    swapped = plant().iloc[[5, 6, 7, 8, 0, 1, 2, 3, 4]]
    assert built(swapped.reset_index(drop=True), time="time").lengths.tolist() == [4, 3, 2]


def test_a_fixed_length_and_a_horizon() -> None:
    dataset = built(episode=None, length=4)
    assert dataset.lengths.tolist() == [4, 4, 1]
    assert dataset.timeouts.sum() == 3
    assert "shorter ones, because the log ended: 1" in said(dataset)
    dataset = built(episode=None, horizon=4)
    assert dataset.lengths.tolist() == [3, 3, 3]  # equal pieces of at most 4 rows
    assert not dataset.terminals.any()
    assert "cut on purpose into pieces of at most 4 rows" in said(dataset)
    assert built(horizon=2).lengths.tolist() == [2, 1, 2, 2, 2]  # of 3, 2 and 4 rows


def test_rows_of_an_id_are_brought_together() -> None:
    mixed = plant().iloc[[0, 3, 1, 5, 4, 2, 6, 7, 8]].reset_index(drop=True)
    dataset = built(mixed)
    assert dataset.lengths.tolist() == [3, 2, 4]
    assert dataset.observations[:, 2].tolist() == [100, 101, 102, 103, 104, 105, 106, 107, 108]
    assert "(7 runs); they were brought together" in said(dataset)


def test_a_terminal_flag_that_stays_up_ends_the_episode_once() -> None:
    frame = plant().assign(failed=[0, 1, 1, 0, 0, 0, 1, 1, 0])
    dataset = built(frame, terminal="failed")
    assert dataset.lengths.tolist() == [2, 2, 2, 1]  # what follows when the flag comes down is an episode of its own
    assert dataset.ends_in_terminal.tolist() == [True, False, True, False]
    assert dataset.observations[:, 2].tolist() == [100, 101, 103, 104, 105, 106, 108]
    assert "rows left out: 2 (failed stayed up" in said(dataset)


def test_ends_come_before_the_cuts_of_a_horizon() -> None:
    """A piece in which the flag only stays up is no episode."""
    frame = plant().assign(failed=[0, 0, 0, 1, 1, 1, 1, 1, 1])
    dataset = built(frame, episode=None, terminal="failed", horizon=3)
    assert dataset.lengths.tolist() == [2, 2]
    assert dataset.ends_in_terminal.tolist() == [False, True]
    assert dataset.observations[:, 2].tolist() == [100, 101, 102, 103]
    in_threes = built(plant().assign(failed=[0, 0, 1, 0, 1, 1, 0, 0, 0]), episode=None, terminal="failed", length=3)
    assert in_threes.lengths.tolist() == [3, 2, 3]  # a fixed length is counted from the begin of the log
    assert in_threes.ends_in_terminal.tolist() == [True, True, False]


def test_a_terminal_label_of_the_whole_episode() -> None:
    frame = plant().assign(failed=["no"] * 3 + ["yes"] * 2 + ["no"] * 4)
    dataset = built(frame, terminal="failed")
    assert dataset.lengths.tolist() == [3, 2, 4]
    assert np.flatnonzero(dataset.terminals).tolist() == [4]
    assert "episodes whose every row failed marks: 1" in said(dataset)


def test_terminals_alone_end_episodes() -> None:
    dataset = built(episode=None, terminal="failed")
    assert dataset.lengths.tolist() == [5, 4]
    assert dataset.ends_in_terminal.tolist() == [True, False]


# --- cells without a value ---


def test_empty_cells() -> None:
    frame = plant()
    frame.loc[[1, 3], "temp2"] = np.nan
    message = refusal(frame)
    assert "temp2 row 1 is empty or NaN (2 rows have such cells)" in message
    assert 'missing="hold" (the last value holds on)' in message
    held = built(frame, missing="hold")
    assert held.observations[:, 1].tolist() == [0, 0, -0.5, -1, -1.25, -1.5, -1.75, -2]
    assert held.lengths.tolist() == [3, 1, 4]  # row 3 has no value before it
    assert "empty cells filled with the last value of their episode: 1" in said(held)
    assert "rows left out: 1 (the episode has no value yet)" in said(held)
    dropped = built(frame, missing="drop")
    assert dropped.lengths.tolist() == [4]
    assert "whole episodes left out: 2 (they have empty cells)" in said(dropped)
    frame["temp2"] = np.nan
    assert "every episode has empty cells" in refusal(frame, missing="drop")
    assert "a column has no value in any row" in refusal(frame, missing="hold")


def test_an_empty_id() -> None:
    frame = plant()
    frame.loc[4, "batch_id"] = None
    assert "batch_id row 4 is empty (1 such rows)" in refusal(frame)
    dropped = built(frame, missing="drop")
    assert dropped.lengths.tolist() == [3, 1, 4]
    assert "rows left out: 1 (batch_id is empty)" in said(dropped)


# --- what is refused ---


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"observations": "tmp1"}, "has no column 'tmp1' (observations=); perhaps 'temp1'"),
        ({"observations": "Temp1"}, "perhaps 'temp1'"),
        ({"reward": "yeild"}, "perhaps 'yield'"),
        ({"episode": "batch"}, "has no column 'batch' (episode=); perhaps 'batch_id'"),
        ({"observations": "sensor*"}, "its columns are batch_id, time, temp1"),
        ({"observations": ["temp1", "operator"]}, "operator row 0 is 'A', not a number"),
        ({"observations": ["temp1", "time"]}, "time holds times"),
        ({"observations": ["temp1", "valve1"]}, "valve1 is an observation and an action"),
        ({"actions": "operator"}, "discrete actions are not supported yet"),
        ({"actions": "failed"}, "failed holds only the whole numbers 0, 1; discrete actions are not supported yet"),
        ({"terminal": "pressure"}, "pressure row 0 is 100, neither 0 nor 1"),
        ({"terminal": "operator"}, "operator row 0 is 'A', neither true nor false"),
        ({"episode": None}, "nothing says where episodes end"),
        ({"episode": None, "gap": "60s"}, "gap= needs the column of the time: give time=COLUMN"),
        ({"length": 3, "horizon": 3}, "length= and horizon= both cut the log"),
        ({"length": 0}, "length is 0"),
        ({"time": "time", "gap": "60 parsecs"}, "gap= is '60 parsecs'"),
        ({"time": "time", "gap": "60"}, "gap= is '60', without a unit"),
        ({"time": "time", "gap": "0.5s"}, "every step of time is longer than the gap"),
        ({"missing": "guess"}, "choose one of refuse, hold, drop"),
        ({"reward_at": "start"}, "choose one of each, end"),
    ],
)  # fmt: skip
def test_one_line_for_what_is_wrong(changes: dict[str, Any], expected: str) -> None:
    assert expected in refusal(**changes)


def test_actions_that_are_a_choice_or_never_change() -> None:
    assert "valve1 is true or false; discrete" in refusal(plant().assign(valve1=[True, False, True] * 3))
    assert "whole numbers 1, 2, 3; discrete" in refusal(plant().assign(valve1=[1, 2, 3] * 3))
    percent = plant().assign(valve1=[0, 10, 20, 30, 40, 50, 60, 70, 100])  # whole numbers, but a quantity
    assert built(percent).action_high[0] == 100
    assert "valve2 is 3 in every row" in refusal(plant().assign(valve2=3.0))
    assert "valve1 row 2 is infinite" in refusal(plant().assign(valve1=[0, 1, np.inf] * 3))


def test_frames_that_are_no_tables() -> None:
    twice = plant()
    twice.columns = pd.Index([*twice.columns[:-1], "temp1"])
    assert "has the column 'temp1' twice" in refusal(twice)
    assert "has no rows" in refusal(plant().iloc[:0])
    assert "cannot be read as a table" in refusal({"temp1": [1, 2], "temp2": [1]})


def test_without_pyarrow_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert refusal().endswith("pip install 'droprl[tables]'")


# --- files ---


def meaning(**changes: Any) -> Meaning:
    return Meaning(
        **{
            "observations": ("temp*,pressure",),
            "actions": ("valve1", "valve2"),
            "reward": "yield",
            "episode": "batch_id",
            **changes,
        }
    )


def file_refusal(path: Path, csv: CsvOptions | None = None, **changes: Any) -> str:
    with pytest.raises(DropError) as caught:
        import_table(path, meaning(**changes), csv)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert len(message.splitlines()) == 1
    return message


@pytest.mark.parametrize(
    "name", ["log.csv", "log.tsv", "log.parquet", "semicolon.csv", "comma.csv", "bom.csv", "latin.csv"]
)
def test_files_hold_the_same_numbers(tmp_path: Path, name: str) -> None:
    path, frame, csv = tmp_path / name, plant(), CsvOptions()
    if name == "log.parquet":
        frame.iloc[:].to_parquet(path, index=True)
    elif name == "log.tsv":
        frame.to_csv(path, sep="\t", index=False)
    elif name == "semicolon.csv":
        frame.to_csv(path, sep=";", index=False)
    elif name == "comma.csv":
        frame.to_csv(path, sep=";", decimal=",", index=False)
        csv = CsvOptions(decimal=",")
        assert 'for a decimal comma, give decimal=","' in file_refusal(path)
    elif name == "bom.csv":
        frame.to_csv(path, encoding="utf-8-sig", index=False)
    elif name == "latin.csv":
        frame.assign(operator="Jürgen").to_csv(path, encoding="cp1252", index=False)
        csv = CsvOptions(encoding="cp1252")
        assert 'encoding="cp1252"' in file_refusal(path, observations=("temp*,pressure", "operator"))
    else:
        frame.to_csv(path, index=False)
    dataset = import_table(path, meaning(), csv)
    assert dataset.fingerprint == built().fingerprint
    assert not any("__index_level" in note for note in dataset.notes)
    assert dataset.name == path.stem


def test_errors_in_a_csv_file_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    lines = plant().to_csv(index=False).splitlines()
    cells = lines[5].split(",")

    def write(line: str) -> None:
        path.write_text("\n".join([*lines[:5], line, *lines[6:]]) + "\n\n")

    write(",".join([*cells[:2], "broken", *cells[3:]]))
    assert "temp1 line 6 is 'broken', not a number" in file_refusal(path)
    write(",".join([*cells[:2], "", *cells[3:]]))
    assert "temp1 line 6 is empty or NaN" in file_refusal(path)
    write(",".join([*cells[:2], "n/a", *cells[3:]]))
    assert "temp1 line 6 is empty or NaN" in file_refusal(path)
    write(",".join([*cells[:2], "inf", *cells[3:]]))
    assert "temp1 line 6 is infinite" in file_refusal(path)
    write(",".join(cells[:3]))
    assert "Expected 10 columns, got 3" in file_refusal(path)
    path.write_text("\n".join(lines[1:]))
    assert "its first line holds numbers" in file_refusal(path)
    path.write_text("1,2,3\n4,5,6\n")
    assert "its first line holds numbers" in file_refusal(path)
    path.write_text("")
    assert "is empty (0 bytes)" in file_refusal(path)


def test_blank_lines_do_not_change_the_count(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    lines = plant().to_csv(index=False).splitlines()
    lines[7] = lines[7].replace("3.0,", "x,", 1)
    path.write_text("\n".join([*lines[:3], "", "", *lines[3:]]))
    assert "temp1 line 10 is 'x'" in file_refusal(path)


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    path.write_bytes(b"PK something else, and long enough")
    assert "is not a Parquet file" in file_refusal(path)
    plant().to_parquet(path)
    path.write_bytes(path.read_bytes()[:-9])
    assert "is damaged or cut short" in file_refusal(path)
    assert "no such file" in file_refusal(tmp_path / "none.csv")
    os.mkfifo(tmp_path / "pipe.csv")  # to open it would wait for ever
    assert "is not a regular file" in file_refusal(tmp_path / "pipe.csv")
    (tmp_path / "log.xlsx").write_bytes(b"x")
    assert "a file ending in .xlsx is not a table" in file_refusal(tmp_path / "log.xlsx")


def test_a_small_file_cannot_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parquet writes a million equal numbers in a few bytes. What the footer claims is compared before it is read."""
    path = tmp_path / "log.parquet"
    table = pa.table(
        {name: np.zeros(1_000_000) for name in ("temp1", "temp2", "pressure", "valve1", "valve2", "yield", "batch_id")}
    )
    parquet.write_table(table, path)
    assert path.stat().st_size < 500_000
    monkeypatch.setattr("droprl.data.claims.available_memory", lambda: 50_000_000)
    assert "of memory and 50 MB are free" in file_refusal(path)  # 7 columns of 1,000,000 numbers, twice 8 bytes: 112 MB
    monkeypatch.setattr("droprl.data.claims.available_memory", lambda: 120_000_000)
    assert "is 0 in every row" in file_refusal(path)
