"""Dataset names lead to the right environment, reference returns and sub-task sizes."""

from __future__ import annotations

import pytest

from droprl.data.tasks import SubTaskPreset, _facts, equal_sub_tasks, find_task, paper_sub_tasks


@pytest.mark.parametrize(
    ("name", "task", "env", "score_range"),
    [
        ("walker2d-medium-replay", "walker2d-medium-replay", "Walker2d-v4", (1.629008, 4592.3)),
        ("walker2d-medium-replay-v2", "walker2d-medium-replay", "Walker2d-v4", (1.629008, 4592.3)),
        ("hopper-medium-expert-v0", "hopper-medium-expert", "Hopper-v4", (-20.272305, 3234.3)),
        ("hopper_medium_expert-v2.hdf5", "hopper-medium-expert", "Hopper-v4", (-20.272305, 3234.3)),
        ("walker2d-expert", "walker2d-expert", "Walker2d-v4", (1.629008, 4592.3)),
        ("HalfCheetah-Random-v2", "halfcheetah-random", "HalfCheetah-v4", (-280.178953, 12135.0)),
        ("maze2d-umaze-v1", "maze2d-umaze", "droprl/maze2d-umaze-v0", (23.85, 161.86)),
        ("maze2d-large", "maze2d-large", "droprl/maze2d-large-v0", (6.7, 273.99)),
        ("maze2d-medium-sparse-v1", "maze2d-medium", "droprl/maze2d-medium-v0", (13.13, 277.39)),
        ("antmaze-umaze-diverse-v2", "antmaze-umaze-diverse", "droprl/antmaze-umaze-v0", (0.0, 1.0)),
        ("antmaze-medium-play-v0", "antmaze-medium-play", "droprl/antmaze-medium-v0", (0.0, 1.0)),
        ("D4RL/antmaze/large-diverse-v1", "antmaze-large-diverse", "AntMaze_Large-v4", (0.0, 1.0)),
        ("D4RL/door/human-v2", "door-human", "AdroitHandDoor-v1", (-56.512833, 2880.5693087298737)),
        ("door-v0_demos_clipped", "door-human", "AdroitHandDoor-v1", (-56.512833, 2880.5693087298737)),
        ("pen-expert", "pen-expert", "AdroitHandPen-v1", (96.262799, 3076.8331017826877)),
        ("hammer-cloned-v1", "hammer-cloned", "AdroitHandHammer-v1", (-274.856578, 12794.134825156867)),
        ("relocate-human-v0", "relocate-human", "AdroitHandRelocate-v1", (-6.425911, 4233.877797728884)),
        # Minari recorded its mujoco/ datasets in v5, for every version of the dataset.
        ("mujoco/walker2d/expert-v0", "walker2d-expert", "Walker2d-v5", (1.629008, 4592.3)),
        ("mujoco/hopper/simple-v0", "hopper-simple", "Hopper-v5", (-20.272305, 3234.3)),
    ],
)
def test_names_lead_to_their_task(name: str, task: str, env: str, score_range: tuple[float, float]) -> None:
    found = find_task(name)
    assert found is not None
    assert (found.name, found.env, found.score_range) == (task, env, score_range)


# maze2d-…-v0 had half the time limit and other reference returns. The name of an environment does not name data.
@pytest.mark.parametrize("name", ["my-robot", "", "walker2d", "hopper-mylogs", "maze2d-umaze-v0", "ant-medium-v2"])
def test_other_data_has_no_task(name: str) -> None:
    assert find_task(name) is None


@pytest.mark.parametrize(
    ("name", "sizes", "column"),
    [
        ("walker2d-medium-replay-v0", (1000, 5, 5), "walker2d-medium-replay v0"),
        ("walker2d-medium-replay-v2", (10, 50, 5), "walker2d-medium-replay v2"),
        ("walker2d-medium-replay", (10, 50, 5), "walker2d-medium-replay v2"),
        ("hopper_mixed.hdf5", (50, 5, 5), "hopper-medium-replay v0"),
        ("hopper-medium-replay-v1", (10, 30, 5), "hopper-medium-replay v2"),
        ("antmaze-large-play-v0", (500, 50, 5), "antmaze-large-play v0"),
        ("antmaze-large-play-v2", (150, 50, 5), "antmaze-large-play v2"),
        ("D4RL/antmaze/large-play-v0", (150, 50, 5), "antmaze-large-play v2"),
        ("maze2d-umaze-v1", (500, 5, 5), "maze2d-umaze v0"),
        ("maze2d-umaze", (500, 5, 5), "maze2d-umaze v0"),
        ("D4RL/door/human-v2", (50, 3, 5), "door-human v0"),
        ("pen-expert", (500, 5, 5), "pen-expert v0"),
    ],
)
def test_preset_takes_the_right_column_of_the_table(name: str, sizes: tuple[int, int, int], column: str) -> None:
    assert paper_sub_tasks(name, 2000) == SubTaskPreset(*sizes, f"the paper's table, {column}")


@pytest.mark.parametrize("n_episodes", [1, 7, 50, 51, 126, 5000])
def test_equal_sub_tasks_leave_out_fewer_trajectories_than_there_are_sub_tasks(n_episodes: int) -> None:
    preset = equal_sub_tasks(n_episodes)
    assert preset.n_sub_tasks == min(10, n_episodes)
    assert 0 <= n_episodes - preset.n_sub_tasks * preset.trajectories_per_sub_task < preset.n_sub_tasks
    assert preset.embedding_size == 5


@pytest.mark.parametrize("n_episodes", [1, 7, 50, 51, 126, 5000])
@pytest.mark.parametrize("name", ["my-robot", "walker2d-expert-v2"])
def test_unlisted_data_gets_about_fifty_sub_tasks(name: str, n_episodes: int) -> None:
    preset = paper_sub_tasks(name, n_episodes)
    assert preset.trajectories_per_sub_task == max(1, -(-n_episodes // 50))
    assert 1 <= preset.n_sub_tasks <= 50
    assert preset.n_sub_tasks * preset.trajectories_per_sub_task >= n_episodes
    assert preset.embedding_size == 5
    assert name in preset.origin


def test_table_is_not_applied_to_data_too_small_for_it() -> None:
    # D4RL's medium maze has thousands of episodes. This one has 166: with fifty in a sub-task, only four would be left.
    preset = paper_sub_tasks("maze2d-medium", 166)
    assert (preset.n_sub_tasks, preset.trajectories_per_sub_task) == (42, 4)
    assert "166 trajectories" in preset.origin
    # pen-human is the smallest dataset of the paper and has the paper's numbers.
    assert paper_sub_tasks("pen-human-v1", 25).origin == "the paper's table, pen-human v0"


def test_facts_are_complete() -> None:
    facts = _facts()
    assert len(facts["sub_tasks"]) == 33  # the rows of the paper's table
    for name in [*facts["sub_tasks"], *facts["not_in_the_table"]]:
        task = find_task(name)
        assert task is not None
        assert task.score_range[0] < task.score_range[1]
    for target in facts["file_names"].values():
        assert find_task(target) is not None
    for columns in facts["sub_tasks"].values():
        assert all(len(sizes) == 3 and min(sizes) >= 1 for sizes in columns.values())


def test_a_copy_in_another_namespace_is_the_same_task() -> None:
    assert find_task("local/walker2d-medium-replay-v2") == find_task("walker2d-medium-replay-v2")
    assert paper_sub_tasks("me/walker2d-medium-replay-v2", 500) == paper_sub_tasks("walker2d-medium-replay-v2", 500)
