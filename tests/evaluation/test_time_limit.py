"""Every way to play a task stops at the task's own time limit, which may not be that of the environment."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from helpers.serving import tiny_policy
from helpers.training import learnable_dataset, refusal, tiny

from droprl import evaluate, finetune, load_dataset, load_policy
from droprl.data import Dataset, from_arrays, map_dataset, save_d4rl
from droprl.data.tasks import _MINARI_ENVS, _facts, find_task, known_time_limit
from droprl.deploy.onnx_file import metadata
from droprl.deploy.program import program_of
from droprl.deploy.serve.live.show import Stage
from droprl.evaluation import load_evaluations
from droprl.evaluation.evaluation import task_of
from droprl.files.seals import read_sealed, sealed
from droprl.loaded import Origin
from droprl.report import build
from droprl.train import Run, fit

PEN, PENDULUM = "AdroitHandPen-v1", "Pendulum-v1"  # their own limits are 200 steps


def all_tasks() -> list[tuple[str, int]]:
    """Every task of tasks.json, Minari's versions of them too, and its time limit there."""
    facts, found = _facts(), dict[str, int]()
    for name in [*facts["sub_tasks"], *facts["not_in_the_table"]]:
        for dataset in (name, f"mujoco/{name}"):
            task = find_task(dataset)
            assert task is not None
            assert found.setdefault(task.env, task.time_limit) == task.time_limit
    return sorted(found.items())


@pytest.mark.parametrize(("env_id", "limit"), all_tasks())
def test_an_episode_of_every_task_lasts_as_long_as_tasks_json_says(env_id: str, limit: int) -> None:
    pytest.importorskip("gymnasium_robotics")
    make, _ = task_of(Origin("any", env_id, None, 0, 0, limit), None)
    env = make()
    env.reset(seed=0)
    still, steps, truncated = np.zeros(env.action_space.shape or (), np.float32), 0, False
    while not truncated:  # a robot may fall, which ends the task: the clock runs on
        truncated, steps = bool(env.step(still)[3]), steps + 1
    env.close()
    assert steps == limit


def test_the_list_of_tasks_is_not_empty_and_pen_is_the_one_that_needs_it() -> None:
    assert dict(all_tasks())[PEN] == 100
    assert len(all_tasks()) == len(_facts()["references"]) + len(_MINARI_ENVS)


# --- the limit travels with the data ---


@pytest.mark.parametrize(
    ("name", "env", "limit"),
    [
        ("pen-expert", PEN, 100),
        ("pen-expert-v1", None, 100),
        ("D4RL/pen/human-v2", PEN, 100),
        ("pen-expert+pen-cloned", PEN, 100),
        ("pen-expert+door-expert", None, None),
        ("pen-expert", "MyPen-v0", None),
        ("hopper-medium+hopper-expert", "Hopper-v4", 1000),
        ("my-pen", PEN, None),
    ],
)
def test_the_limit_is_known_by_the_name_of_the_data(name: str, env: str | None, limit: int | None) -> None:
    assert known_time_limit(name, env) == limit


def stored(dataset: Dataset, path: Path, **attributes: Any) -> Path:
    save_d4rl(dataset, path)
    if attributes:
        content = path.read_bytes()
        path.write_bytes(content[512:])  # without its seal, as a file from elsewhere
        with h5py.File(path, "r+") as file:
            file.attrs.update(attributes)
    return path


def test_a_file_states_its_limit_and_another_task_keeps_its_own(tmp_path: Path) -> None:
    dataset = dataclasses.replace(learnable_dataset(), env=PENDULUM, time_limit=7)
    file = stored(dataset, tmp_path / "mine.hdf5")
    assert load_dataset(file).time_limit == 7
    assert load_dataset(file, env=PENDULUM).time_limit == 7
    assert load_dataset(file, env="Reacher-v5").time_limit is None
    assert load_dataset(f"{file}+{file}").time_limit == 7
    mapped = map_dataset(file, tmp_path / "mapped")
    assert (mapped.time_limit, load_dataset(tmp_path / "mapped").time_limit) == (7, 7)
    assert load_dataset(tmp_path / "mapped", env="Reacher-v5").time_limit is None
    nameless = stored(dataclasses.replace(dataset, env=None), tmp_path / "nameless.hdf5")
    assert load_dataset(nameless, env=PENDULUM).time_limit == 7  # the data names no task: its limit is of any
    for odd in (0, 2.5, "7"):
        wrong = stored(dataset, tmp_path / "wrong.hdf5", time_limit=odd)
        assert "wrong.hdf5: time_limit is" in refusal(load_dataset, wrong)


def test_a_file_of_a_known_task_has_the_limit_of_the_task(tmp_path: Path) -> None:
    """As the benchmark's own files: they name the environment and no limit."""
    file = stored(dataclasses.replace(learnable_dataset(), env=PEN), tmp_path / "pen-expert.hdf5")
    assert load_dataset(file).time_limit == 100
    assert load_dataset(file, env=PENDULUM).time_limit is None
    assert map_dataset(file, tmp_path / "pen-expert").time_limit == 100


# --- and with a run and a policy, to all who play ---


def pendulum_data(**changes: Any) -> Dataset:
    made = learnable_dataset()
    arrays = {key: getattr(made, key) for key in ("observations", "rewards", "terminals", "timeouts")}
    actions = made.actions[:, :1] / 3
    given: dict[str, Any] = {"env": PENDULUM, "time_limit": 7, "name": "swinging"} | changes
    return from_arrays(actions=actions, action_low=-2, action_high=2, **arrays, **given)


@pytest.fixture(scope="module")
def swinging(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("clock") / "run"
    return fit(pendulum_data(), tiny("bc"), out=out, seeds=1, steps=2, checkpoint_every=1, progress=False)


def lengths(played: Any) -> set[int]:
    return {length for result in played.results for length in result.lengths}


def test_an_evaluation_stops_at_the_limit(swinging: Run, tmp_path: Path) -> None:
    def play(what: Any, **options: Any) -> set[int]:
        return lengths(evaluate(what, episodes=2, progress=False, **options))

    policy = load_policy(swinging.path)
    policy.save(tmp_path / "policy")
    assert play(swinging) == play(tmp_path / "policy") == play(policy, env=PENDULUM) == {7}
    assert play(policy, env=lambda: gymnasium.make(PENDULUM)) == {200}  # a function brings its own clock
    other = Origin(**vars(policy.origin) | {"env": "Reacher-v5"})  # the data names another task
    assert task_of(other, PENDULUM)[0]().get_wrapper_attr("_max_episode_steps") == 200


def test_a_report_and_a_fine_tuning_stop_at_the_limit(
    swinging: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_walk", lambda run, rule, make, seed: make().get_wrapper_attr("_max_episode_steps"))
    assert {*map(str, build.walks_of(swinging))} == {"7"}
    copy = Run(shutil.copytree(swinging.path, tmp_path / "run"))
    assert "an episode of Pendulum-v1 may last 7" in refusal(finetune, copy, level="checkpoint", budget=6)
    found = finetune(copy, level="checkpoint", budget=14, rounds=1, episodes=1, progress=False)
    assert [seed.steps_played for seed in found.seeds] == [14]  # two checkpoints, one episode each


def test_a_live_show_stops_at_the_limit() -> None:
    policy = tiny_policy("bc")
    policy.origin = dataclasses.replace(policy.origin, time_limit=6)

    async def first_episode() -> int:
        stage, steps = Stage(policy), 0
        try:
            async for event in stage.open().events():
                if event is not None and event["kind"] == "frame":
                    steps = event["points"][-1][0]
                if event is not None and event["kind"] == "episode":
                    return steps
        finally:
            stage.close()
            assert stage.wait(time.monotonic() + 60)
        return -1

    assert asyncio.run(first_episode()) == 6


def test_an_onnx_file_states_the_limit(swinging: Run) -> None:
    policy = load_policy(swinging.path)
    assert metadata(policy, program_of(policy))["time_limit"] == "7"


def test_the_players_of_the_recipe_stop_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks" / "recipe"))
    players = importlib.import_module("players").Players([(PENDULUM, 5), (PENDULUM, None)], [0, 1], (3, 1), 1)
    try:
        players.reset(2)
        for _ in range(5):
            players.step()
        assert players.arrays["playing"].tolist() == [0.0, 1.0]
    finally:
        players.close()


# --- what was made before the limit was kept ---


def without_limit(path: Path, part: tuple[str, ...], **changes: Any) -> None:
    """Write the file as an earlier version would have."""
    content = read_sealed(path)
    inner = content
    for name in part:
        inner = inner[name]
    del inner["time_limit"]
    inner |= changes
    path.write_bytes(sealed(content))


def test_older_runs_and_policies_know_the_limit_by_the_name_of_their_data(swinging: Run, tmp_path: Path) -> None:
    run, policy = shutil.copytree(swinging.path, tmp_path / "run"), tmp_path / "policy"
    load_policy(run).save(policy)
    without_limit(run / "config.json", ("run", "data"), name="pen-expert", env=PEN)
    for file in run.glob("checkpoints/*/checkpoint.json"):  # an earlier version did not name the run
        content = read_sealed(file)
        del content["run"]
        file.write_bytes(sealed(content))
    without_limit(policy / "policy.json", ("origin",), dataset="pen-expert", env=PEN)
    assert load_policy(run).origin.time_limit == load_policy(policy).origin.time_limit == 100


def test_an_older_run_of_other_data_can_be_resumed(tmp_path: Path) -> None:
    data, algorithm = pendulum_data(name="pen-expert", env=PEN, time_limit=None), tiny("bc")
    fit(data, algorithm, out=tmp_path, seeds=1, steps=2, progress=False)
    without_limit(tmp_path / "config.json", ("run", "data"))
    assert fit(data, algorithm, out=tmp_path, seeds=1, steps=2, progress=False).finished


def test_an_older_evaluation_on_a_longer_clock_says_so(swinging: Run, tmp_path: Path) -> None:
    run = Run(shutil.copytree(swinging.path, tmp_path / "run"))
    evaluate(run, episodes=1, progress=False)
    (file,) = run.evaluation_folder.glob("*.json")
    assert [e.caveat for e in load_evaluations(run)] == [None]
    content = json.loads(file.read_text())
    content["results"][0]["lengths"] = [200] * len(content["results"][0]["returns"])
    file.write_text(json.dumps({name: value for name, value in content.items() if name not in ("format", "seal")}))
    assert [e.caveat for e in load_evaluations(run)] == [
        "played for 200 steps, and the task lasts 7: play it again with drop evaluate"
    ]


def test_the_recipes_results_on_a_doubled_clock_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks" / "recipe"))
    summary = importlib.import_module("summary")
    experiment = summary.load_experiment("main")
    assert experiment.clocks == " pen-expert was played for 200 steps, its task lasts 100."
    assert all(experiment.clocks in table.note for table in summary.score_tables(experiment))
    assert summary.load_experiment("luck").clocks == ""  # it played nothing
