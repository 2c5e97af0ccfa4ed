"""A policy as an ONNX file: it acts as the policy does, remembers what it must, and needs no other file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from helpers.onnx_files import EPISODES, STATES, File, assert_plays_alike
from helpers.training import drop, learnable_dataset, refusal, tiny

from droprl import export_onnx
from droprl.algorithms.protocol import Clock
from droprl.data import Dataset, from_arrays
from droprl.deploy import onnx_file
from droprl.deploy.agreement import Agreement, _judged, agreement
from droprl.deploy.program import FileProgram, program_of
from droprl.files.locks import locked
from droprl.files.seals import digest
from droprl.loaded import LoadedPolicy, Origin

EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_mujoco.py"
TASKS = ("Hopper-v4", "Walker2d-v4", "HalfCheetah-v4")
FEW = {"ascent_steps": 2}


@cache
def policy_of(name: str, task: str | None = None, **changes: Any) -> LoadedPolicy:
    """A policy with random weights, which are good enough here. So nothing is trained or compiled."""
    dataset = learnable_dataset() if task is None else of_task(task)
    algorithm = tiny(name, **changes).resolve(dataset)
    prepared, rng = algorithm.prepare(dataset), np.random.default_rng(1)

    def drawn(like: jax.ShapeDtypeStruct) -> np.ndarray:
        return np.asarray(0.4 * rng.normal(size=like.shape) if like.shape else 1.0, like.dtype)

    shapes = jax.eval_shape(lambda: algorithm.policy(algorithm.init(jax.random.key(0), prepared.spec, Clock.at(0, 1))))
    origin = Origin(dataset.name, dataset.env, None, seed=3, step=20)
    policy = jax.tree.map(lambda like: jnp.asarray(drawn(like)), shapes)
    made = LoadedPolicy(policy, algorithm, prepared.spec, prepared.scaling, origin, "here")
    return made if algorithm.adaptation is None else made.adapted(**FEW)


# --- it acts as the policy does ---


@pytest.mark.parametrize(
    ("rule", "interval"), [("first", 1), ("best", 1), ("grad", 1), ("best-ada", 1), ("best-ada", 2), ("grad-ada", 2)]
)
def test_every_rule_remembers_what_it_must(rule: str, interval: int, tmp_path: Path) -> None:
    policy = policy_of("drop").adapted(rule=rule, reinference_interval=interval)
    file = assert_plays_alike(policy, export_onnx(policy, tmp_path / "policy.onnx").path)
    forgets = rule == "first" or (rule.endswith("-ada") and interval == 1)
    assert file.inputs == ["observations", *([] if forgets else ["z", "step"])]
    assert file.outputs == ["actions", "embedding", "score", *([] if forgets else ["next_z", "next_step"])]


@pytest.mark.parametrize(
    "changes",
    [
        {"step_rule": "normalized", "region": "box", "starts": 100},
        {"region": "none", "starts": 1},
        {"ascent_steps": 0},
        {"ascent_steps": 5, "halve_every": 2, "starts": 4},
    ],
)
def test_every_way_to_ascend(changes: dict[str, Any], tmp_path: Path) -> None:
    policy = policy_of("drop").adapted(**changes)
    assert_plays_alike(policy, export_onnx(policy, tmp_path / "policy.onnx").path)


@pytest.mark.parametrize("interval", [1, 2])
def test_a_warm_start_remembers_z_and_where_it_came_from(interval: int, tmp_path: Path) -> None:
    policy = policy_of("drop").adapted(warm_start=True, starts=1, reinference_interval=interval, halve_every=1)
    file = assert_plays_alike(policy, export_onnx(policy, tmp_path / "policy.onnx").path)
    assert file.inputs == ["observations", "z", "step", "start"]
    assert file.outputs == ["actions", "embedding", "score", "next_z", "next_step", "next_start"]


def test_an_ascent_of_open_length_is_refused_and_says_what_to_do(tmp_path: Path) -> None:
    ascending = policy_of("drop").adapted(tolerance=0.01)
    assert "export it with tolerance=0" in refusal(export_onnx, ascending, tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []
    export_onnx(ascending.adapted(rule="best-ada"), tmp_path / "policy.onnx")  # this rule does not ascend


def test_an_ensemble_with_a_gaussian_head_and_concatenation(tmp_path: Path) -> None:
    policy = policy_of("drop", score_models=3, cross_fit=False, head="gaussian", conditioning="concatenate")
    assert_plays_alike(policy, export_onnx(policy, tmp_path / "policy.onnx").path)


def test_embedding_and_score_are_the_policys_own(tmp_path: Path) -> None:
    policy: Any = policy_of("drop")
    answer = File(export_onnx(policy, tmp_path / "policy.onnx").path)(STATES[0])
    inferred = jax.jit(jax.vmap(policy.search.infer))(policy.scaling.observations_in(STATES[0]))
    np.testing.assert_allclose(answer["embedding"], inferred.z, atol=1e-5)
    np.testing.assert_allclose(answer["score"], inferred.score, atol=1e-5)
    assert len(np.unique(inferred.start)) > 1  # at different states the ascent starts from different embeddings


def test_the_score_of_a_fixed_z_is_its_score_at_the_present_state(tmp_path: Path) -> None:
    """`best` keeps its z and `best-ada` infers it again. Their scores are equal only where their z are equal."""
    once, again = (
        File(export_onnx(policy_of("drop").adapted(rule=rule, candidates="all"), tmp_path / f"{rule}.onnx").path)
        for rule in ("best", "best-ada")
    )
    once.start(len(STATES[0]))
    first = once(STATES[0])
    np.testing.assert_allclose(first["score"], again(STATES[0])["score"], atol=1e-5)
    second, best = once(STATES[1]), again(STATES[1])
    np.testing.assert_array_equal(second["embedding"], first["embedding"])
    same = np.all(second["embedding"] == best["embedding"], axis=1)
    np.testing.assert_allclose(second["score"][same], best["score"][same], atol=1e-5)
    assert np.all(second["score"][~same] < best["score"][~same])
    assert 0 < np.sum(same) < len(same)


@cache
def of_task(task: str, n: int = 1024) -> Dataset:
    """Steps of the real task with random actions."""
    env = gymnasium.make(task, max_episode_steps=50)
    env.action_space.seed(0)
    rows: dict[str, list[Any]] = {name: [] for name in ("observations", "actions", "rewards", "terminals", "timeouts")}
    observation, _ = env.reset(seed=0)
    while len(rows["rewards"]) < n or not (rows["terminals"][-1] or rows["timeouts"][-1]):
        action = env.action_space.sample()
        after, reward, terminated, truncated, _ = env.step(action)
        for name, value in zip(
            rows, (observation, action, reward, terminated, truncated and not terminated), strict=True
        ):
            rows[name].append(value)
        observation = env.reset()[0] if terminated or truncated else after
    arrays: dict[str, Any] = {name: np.asarray(values) for name, values in rows.items()}
    return from_arrays(**arrays, action_low=-1, action_high=1, env=task, name=task)


@pytest.mark.parametrize("task", TASKS)
def test_a_thousand_states_of_a_task(task: str, tmp_path: Path) -> None:
    policy = policy_of("drop", task)
    file = File(export_onnx(policy, tmp_path / "policy.onnx").path)
    states = of_task(task).observations[:1024].astype(np.float32)
    actions = file(states)["actions"]
    for some, taken in zip(states.reshape(-1, EPISODES, states.shape[1]), np.split(actions, 16), strict=True):
        policy.reset()
        np.testing.assert_allclose(taken, policy.act(some), atol=1e-4)
    assert np.std(actions, axis=0).min() > 0.01  # the actions are not all the same
    assert (file.facts["task"], file.facts["dataset"]) == (task, task)


# --- with the file alone ---

BLOCKED = "raise ImportError('not here')"


def without_jax(folder: Path, *words: str | Path) -> str:
    """The output of a process that cannot import jax, droprl or equinox."""
    for name in ("jax", "jaxlib", "equinox", "droprl"):
        (folder / f"{name}.py").write_text(BLOCKED)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_it_runs_where_there_is_no_jax(tmp_path: Path) -> None:
    policy = policy_of("drop")
    policy.reset()
    file = export_onnx(policy, tmp_path / "policy.onnx").path
    code = (
        "import sys, json, numpy, onnxruntime\n"
        "for name in ('jax', 'droprl'):\n"
        "    try: __import__(name)\n"
        "    except ImportError: print(name, 'is missing')\n"
        "states = numpy.array(json.loads(sys.argv[2]), numpy.float32)\n"
        "actions = onnxruntime.InferenceSession(sys.argv[1]).run(['actions'], {'observations': states})[0]\n"
        "print(json.dumps(actions.tolist()))"
    )
    said = without_jax(tmp_path, "-c", code, file, json.dumps(STATES[0].tolist())).splitlines()
    assert said[:2] == ["jax is missing", "droprl is missing"]
    np.testing.assert_allclose(json.loads(said[2]), policy.act(STATES[0]), atol=1e-5)


@pytest.mark.parametrize("rule", ["grad-ada", "grad"])
def test_the_example_plays_as_the_policy_does(rule: str, tmp_path: Path) -> None:
    policy = policy_of("drop", "Hopper-v4").adapted(rule=rule)
    file = export_onnx(policy, tmp_path / "policy.onnx").path
    said = without_jax(tmp_path, EXAMPLE, file, "--episodes", "2").splitlines()
    env = gymnasium.make("Hopper-v4")
    for episode in range(2):
        policy.reset()
        observation, _ = env.reset(seed=episode)
        total, steps, done = 0.0, 0, False
        while not done:
            observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
            total, steps, done = total + float(reward), steps + 1, terminated or truncated
        assert said[episode] == f"Hopper-v4 with drop {rule}: {steps} steps, return {total:.1f}"


# --- the file ---


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    policy: Any = policy_of("drop").adapted(reinference_interval=2)
    path = export_onnx(policy, tmp_path / "policy.onnx").path
    facts = File(path).facts
    expected = {"algorithm": "drop", "dataset": "learnable", "task": "", "rule": "grad-ada", "K": "2", "m": "2"}
    assert {name: facts[name] for name in expected} == expected
    assert (facts["N"], facts["seed"], facts["update"]) == (str(len(policy.policy.embeddings)), "3", "20")
    assert json.loads(facts["memory"])["step"] == {"shape": [], "type": "int32", "start": 0}
    assert facts["droprl"]
    onnx.checker.check_model(path, full_check=True)


def test_the_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, path = policy_of("bc"), tmp_path / "policy.onnx"
    export_onnx(policy, path)
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "cannot be written (No space left on device)" in refusal(export_onnx, policy, path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["policy.onnx"]
    assert path.read_bytes() == before


def test_a_file_that_would_act_otherwise_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = onnx_file.to_onnx(program_of(policy_of("onestep")), {})
    monkeypatch.setattr(onnx_file, "to_onnx", lambda *_: wrong)
    assert "would not act as the policy does" in refusal(export_onnx, policy_of("bc"), tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("said", "spoilt"),
    [
        ("actions differ", lambda actions, z, score: (actions + jnp.array([0.0, 5e-5]), z, score)),
        ("actions differ by up to nan", lambda actions, z, score: (actions * jnp.nan, z, score)),
        ("scores differ", lambda actions, z, score: (actions, -z, score)),  # not the score of the z that it reports
        ("scores differ", lambda actions, z, score: (actions, z, score + 1e-2)),
    ],
)
def test_the_comparison_sees_every_kind_of_error(
    said: str, spoilt: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second number of an action has a range of 0.5. An error of 5e-5 is 2e-4 half-ranges, which is too much."""
    make = onnx_file.to_onnx

    def spoiled(program: FileProgram, facts: dict[str, str]) -> bytes:
        return make(replace(program, step=lambda *inputs: spoilt(*program.step(*inputs))), facts)

    monkeypatch.setattr(onnx_file, "to_onnx", spoiled)
    policy = policy_of("drop").adapted(rule="best-ada")
    assert said in refusal(export_onnx, policy, tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("interval", [3, 5, 10**6])
def test_the_second_inference_is_compared_too(interval: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, make = policy_of("drop").adapted(rule="best-ada", reinference_interval=interval), onnx_file.to_onnx
    export_onnx(policy, tmp_path / "policy.onnx")
    never = program_of(policy.adapted(reinference_interval=10**6 - 1))
    monkeypatch.setattr(onnx_file, "to_onnx", lambda program, facts: make(never, facts))
    said = refusal(export_onnx, policy, tmp_path / "other.onnx")
    assert "embeddings with other scores" in said
    assert [path.name for path in tmp_path.iterdir()] == ["policy.onnx"]


def test_a_tie_is_not_an_error_and_only_equal_scores_are_a_tie() -> None:
    """A file that always uses the second sub-task's z is right only if f gives all sub-tasks the same score."""
    policy: Any = copy(policy_of("drop").adapted(rule="best-ada"))
    program, states = program_of(policy), [STATES[0], STATES[1]]

    def second(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        z = np.tile(policy.policy.embeddings[1], (EPISODES, 1))
        judged = _judged(policy, policy.search, given["observations"], z, z)
        return {"actions": judged.actions, "embedding": z, "score": judged.scores}

    assert "embeddings with other scores" in agreement(policy, program, second, states).wrong
    indifferent = jax.tree.map(jnp.zeros_like, policy.policy.score_model)
    policy.policy = replace(policy.policy, score_model=indifferent)
    policy._leaves = jax.tree.leaves((policy.policy, policy.scaling))
    assert agreement(policy, program, second, states) == Agreement("", 0.0, 2 * EPISODES, 0.0)


def test_rows_may_begin_at_different_times(tmp_path: Path) -> None:
    settings: dict[str, dict[str, Any]] = {
        "once": {"rule": "grad"},
        "every third": {"reinference_interval": 3},
        "warm": {"reinference_interval": 3, "warm_start": True},
    }
    for name, changes in settings.items():
        policy = policy_of("drop").adapted(**changes)
        path = export_onnx(policy, tmp_path / f"{name}.onnx").path
        together, first = File(path), File(path)
        together.start(2)
        first.start(1)
        fresh = {key: value.copy() for key, value in first.memory.items()}
        policy.reset()
        for step, (states, late) in enumerate(zip(STATES[:, :2], [True, True, False, False, False], strict=True)):
            if late:  # the second row's episode has not begun yet: give it a fresh memory
                for key, value in fresh.items():
                    together.memory[key] = together.memory[key].copy()
                    together.memory[key][1] = value[0]
            answer = together(states)["actions"]
            np.testing.assert_allclose(answer[:1], policy.act(states[:1]), atol=1e-5, err_msg=f"{name}, {step}")
        alone = policy.adapted()
        for states in STATES[1:, 1:2]:
            expected = alone.act(states)
        np.testing.assert_allclose(answer[1:], expected, atol=1e-5, err_msg=name)


def test_two_processes_do_not_export_to_one_file(tmp_path: Path) -> None:
    file = tmp_path / "policy.onnx"
    with locked(tmp_path, ".policy.onnx.lock"):
        assert "another process is exporting policy.onnx here" in refusal(export_onnx, policy_of("bc"), file)
        export_onnx(policy_of("bc"), tmp_path / "other.onnx")
    assert export_onnx(policy_of("bc"), file).sha256 == digest(file.read_bytes())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.onnx", "policy.onnx"]


def test_memory_that_begins_with_several_numbers_is_refused() -> None:
    assert onnx_file._row(np.full((2, 3), 0.5, np.float32)) == {"shape": (2, 3), "type": "float32", "start": 0.5}
    assert "does not begin with one number" in refusal(onnx_file._row, np.array([0.0, 1.0], np.float32))


def test_random_actions_are_refused(tmp_path: Path) -> None:
    policy = policy_of("bc", head="gaussian", sample_actions=True)
    assert "draws its actions at random" in refusal(export_onnx, policy, tmp_path / "policy.onnx")


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "pip install 'droprl[onnx]'" in refusal(export_onnx, policy_of("bc"), "policy.onnx")
    assert "is a folder" in refusal(export_onnx, policy_of("bc"), "/")


def test_the_command(tmp_path: Path) -> None:
    run, file = policy_of("drop").save(tmp_path / "policy"), tmp_path / "policy.onnx"
    code, out, err = drop("export", run, "--rule", "grad", "--ascent-steps", "1", "--onnx", file)
    assert (code, err) == (0, "")
    assert "observations, z, step → actions, embedding, score, next_z, next_step" in out
    assert File(file).facts["rule"] == "grad"
    assert digest(file.read_bytes()) in out


def test_an_impossible_export_is_refused_before_the_folder_is_written(tmp_path: Path) -> None:
    saved = policy_of("drop").adapted(tolerance=0.1).save(tmp_path / "policy")
    words = ("export", saved, "--onnx", tmp_path / "policy.onnx", "--out", tmp_path / "copy")
    code, out, err = drop(*words)
    assert (code, out) == (1, "")
    assert "--tolerance 0" in err
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
