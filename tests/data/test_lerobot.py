"""LeRobot folders of both layouts, against the frames that were written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.lerobot_folders import make_lerobot

from droprl.data.lerobot import load_lerobot
from droprl.data.meaning import Meaning
from droprl.errors import DropError

VERSIONS = ("v2.1", "v3.0")
SUCCESS = [[False, False, True, True], [False, False, False], [False, False, False, False, True]]


def refusal(folder: Path, meaning: Meaning | None = None, successes: str | None = None) -> str:
    with pytest.raises(DropError) as caught:
        load_lerobot(folder, meaning, successes)
    message = str(caught.value)
    assert message.startswith(str(folder))
    assert len(message.splitlines()) == 1
    return message


def change_info(folder: Path, **changes: Any) -> None:
    info = folder / "meta/info.json"
    info.write_text(json.dumps(json.loads(info.read_text()) | changes))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_label_of_success_is_the_reward_and_ends_the_episode(tmp_path: Path, version: str) -> None:
    frames = make_lerobot(tmp_path / "pusht", version, success=SUCCESS, rewards=True)
    dataset = load_lerobot(tmp_path / "pusht")
    kept = np.delete(np.arange(12), 3)  # the frame after the first success of episode 0
    np.testing.assert_array_equal(dataset.observations, frames["state"][kept])
    np.testing.assert_array_equal(dataset.actions, frames["action"][kept])
    assert dataset.rewards.tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]
    assert dataset.lengths.tolist() == [3, 3, 5]
    assert dataset.ends_in_terminal.tolist() == [True, False, True]
    assert np.flatnonzero(dataset.timeouts).tolist() == [5]
    assert dataset.name == "pusht"
    assert dataset.action_low.tolist() == frames["action"][kept].min(axis=0).tolist()
    said = " | ".join(dataset.notes)
    assert f"LeRobot {version}, 3 episodes" in said
    assert "left out, because pixels are not supported yet: observation.image, observation.images.top" in said
    assert "next.success" in said
    assert "--reward next.reward takes that one instead" in said
    assert "rows left out: 1" in said


@pytest.mark.parametrize("version", VERSIONS)
def test_the_motors_are_the_names_of_the_parts(tmp_path: Path, version: str) -> None:
    make_lerobot(tmp_path / "arm", version, success=SUCCESS)
    dataset = load_lerobot(tmp_path / "arm")
    assert dataset.observation_parts == (("base", 1), ("elbow", 1), ("wrist", 1))
    assert dataset.action_parts == (("x", 1), ("y", 1))


def test_a_label_on_every_frame_belongs_to_the_episode(tmp_path: Path) -> None:
    make_lerobot(tmp_path / "arm", success=[[True] * 4, [False] * 3, [True] * 5])
    dataset = load_lerobot(tmp_path / "arm")
    assert dataset.lengths.tolist() == [4, 3, 5]
    assert dataset.returns.tolist() == [1, 0, 1]
    assert np.flatnonzero(dataset.rewards).tolist() == [3, 11]
    assert dataset.ends_in_terminal.tolist() == [True, False, True]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_label_in_the_description_of_the_episodes(tmp_path: Path, version: str) -> None:
    make_lerobot(tmp_path / "arm", version, episode_success=[False, True, True])
    dataset = load_lerobot(tmp_path / "arm")
    assert dataset.returns.tolist() == [0, 1, 1]
    assert dataset.ends_in_terminal.tolist() == [False, True, True]


def test_another_reward_can_be_chosen(tmp_path: Path) -> None:
    make_lerobot(tmp_path / "arm", "v3.0", success=SUCCESS, rewards=True)
    dataset = load_lerobot(tmp_path / "arm", Meaning(reward="next.reward"))
    np.testing.assert_allclose(dataset.rewards, np.linspace(0, 1, 12), atol=1e-6)
    assert dataset.lengths.tolist() == [4, 3, 5]
    assert not dataset.terminals.any()


@pytest.mark.parametrize(("successes", "returns"), [("all", [1, 1, 1]), ("0,2", [1, 0, 1]), ("1-2", [0, 1, 1])])
def test_successes_can_be_named(tmp_path: Path, successes: str, returns: list[float]) -> None:
    make_lerobot(tmp_path / "arm")
    assert 'successes="all"' in refusal(tmp_path / "arm")
    assert load_lerobot(tmp_path / "arm", successes=successes).returns.tolist() == returns


@pytest.mark.parametrize(
    ("successes", "expected"), [("7", "the episodes are 0 to 2"), ("first", "give all"), ("1-9", "name episodes")]
)
def test_successes_that_are_not_there(tmp_path: Path, successes: str, expected: str) -> None:
    make_lerobot(tmp_path / "arm")
    assert expected in refusal(tmp_path / "arm", successes=successes)


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    make_lerobot(tmp_path / "arm", success=SUCCESS)
    shutil.copytree(tmp_path / "arm", tmp_path / "short")
    (tmp_path / "short/data/chunk-000/episode_000001.parquet").unlink()
    assert "claims 12 frames, and its files have 9" in refusal(tmp_path / "short")
    change_info(tmp_path / "short", total_frames=9)
    assert "claims 3 episodes, and its files have 2" in refusal(tmp_path / "short")
    shutil.copytree(tmp_path / "arm", tmp_path / "lfs")
    (tmp_path / "lfs/data/chunk-000/episode_000001.parquet").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "git lfs pull" in refusal(tmp_path / "lfs")
    shutil.copytree(tmp_path / "arm", tmp_path / "cut")
    file = tmp_path / "cut/data/chunk-000/episode_000001.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    assert "is damaged or cut short" in refusal(tmp_path / "cut")


def test_other_versions_are_refused_by_name(tmp_path: Path) -> None:
    make_lerobot(tmp_path / "arm", success=SUCCESS)
    change_info(tmp_path / "arm", codebase_version="v1.6")
    assert "its version is 'v1.6'" in refusal(tmp_path / "arm")


def test_images_alone_are_refused_by_name(tmp_path: Path) -> None:
    make_lerobot(tmp_path / "arm", success=SUCCESS)
    features = json.loads((tmp_path / "arm/meta/info.json").read_text())["features"]
    del features["observation.state"]
    change_info(tmp_path / "arm", features=features)
    message = refusal(tmp_path / "arm")
    assert "observation.image, observation.images.top" in message
    assert "pixels are not supported yet" in message


def test_links_and_templates_lead_nowhere(tmp_path: Path) -> None:
    """The folder comes from a stranger: a link is refused, and a path in `info.json` is not followed."""
    make_lerobot(tmp_path / "arm", success=SUCCESS)
    change_info(tmp_path / "arm", data_path="/etc/{episode_chunk.__class__}")
    assert load_lerobot(tmp_path / "arm").n_episodes == 3
    file = tmp_path / "arm/data/chunk-000/episode_000001.parquet"
    file.rename(tmp_path / "elsewhere.parquet")
    os.symlink(tmp_path / "elsewhere.parquet", file)
    assert "is a link" in refusal(tmp_path / "arm")
    file.unlink()
    os.mkfifo(file)
    assert "is a pipe" in refusal(tmp_path / "arm")


def test_several_tasks_are_said(tmp_path: Path) -> None:
    make_lerobot(tmp_path / "arm", success=SUCCESS, total_tasks=3)
    assert any("mixes 3 tasks" in note for note in load_lerobot(tmp_path / "arm").notes)
