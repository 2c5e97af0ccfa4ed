"""A saved policy: which observations it accepts, how its inference is changed, and which folders are refused."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.training import learnable_dataset, refusal, tiny

from droprl import Adaptation, load_policy
from droprl.adapt import RULES
from droprl.files.locks import locked
from droprl.files.seals import read_sealed, sealed
from droprl.train import Run, fit

SCHEDULE: dict[str, Any] = {"steps": 20, "checkpoint_every": 10, "progress": False}
ZEROS = np.zeros(3, np.float32)


@pytest.fixture(scope="module")
def drop_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(learnable_dataset(), tiny("drop"), out=tmp_path_factory.mktemp("drop") / "run", seeds=[3, 7], **SCHEDULE)


@pytest.fixture(scope="module")
def bc_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(learnable_dataset(), tiny("bc"), out=tmp_path_factory.mktemp("bc") / "run", **SCHEDULE)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, drop_run: Run) -> Path:
    return load_policy(drop_run.path).save(tmp_path_factory.mktemp("saved") / "policy")


@pytest.fixture
def policy_folder(saved: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(saved, tmp_path / "policy"))


# --- acting ---


@pytest.mark.parametrize(
    ("observation", "said"),
    [
        (np.zeros(4), r"an observation of shape \(4,\) was given: pass \(3,\) or \(n, 3\)"),
        (np.zeros((2, 2)), r"an observation of shape \(2, 2\)"),
        (np.zeros((1, 2, 3)), r"an observation of shape \(1, 2, 3\)"),
        (1.0, r"an observation of shape \(\)"),
        ([0.0, np.nan, 0.0], "the observation holds NaN or infinity"),
        ([0.0, np.inf, 0.0], "the observation holds NaN or infinity"),
        ([0.0, 1e300, 0.0], "the observation holds NaN or infinity"),
        ("north", "the observation is not an array of numbers"),
        ([[0.0, 0.0, 0.0], [0.0]], "the observation is not an array of numbers"),
        ({"position": 1}, "the names of its observations are not known: pass one array, not a dictionary"),
    ],
)
def test_an_observation_that_cannot_be_acted_on_is_refused(bc_run: Run, observation: Any, said: str) -> None:
    policy = load_policy(bc_run.path)
    message = refusal(policy.act, observation)
    assert message.startswith(f"{bc_run.path}: ")
    assert re.search(said, message)
    assert policy.act(ZEROS).shape == (2,)  # the refused observation left nothing behind


def test_an_action_with_nan_is_refused(drop_run: Run) -> None:
    policy = load_policy(drop_run.path)
    acted = policy.act(ZEROS)
    message = refusal(policy.act, np.full(3, 1e30))
    assert message.startswith(f"{drop_run.path}: the action at this observation is NaN or infinite")
    np.testing.assert_array_equal(policy.act(ZEROS), acted)


@pytest.mark.parametrize("reward", [np.nan, "much", [1.0, 2.0]])
def test_a_refused_reward_begins_no_episode(bc_run: Run, reward: Any) -> None:
    policy = load_policy(bc_run.path)
    assert "the reward is" in refusal(policy.act, np.zeros((3, 3)), reward)
    assert policy.act(np.zeros((2, 3))).shape == (2, 2)


def test_another_number_of_episodes_needs_a_reset(bc_run: Run) -> None:
    policy = load_policy(bc_run.path)
    policy.act(np.zeros((3, 3)))
    assert "2 observations for 3 episodes under way: call reset()" in refusal(policy.act, np.zeros((2, 3)))
    assert "1 observations for 3 episodes under way: call reset()" in refusal(policy.act, ZEROS)
    policy.reset()
    assert policy.act(np.zeros((2, 3))).shape == (2, 2)


def test_lists_and_other_number_types_give_the_same_action_as_float32(bc_run: Run) -> None:
    policy = load_policy(bc_run.path)
    expected = policy.act(np.array([1, 2, 3], np.float32))
    others: list[Any] = [[1, 2, 3], np.array([1, 2, 3], np.int64), np.array([1.0, 2.0, 3.0])]
    for observation in others:
        policy.reset()
        np.testing.assert_array_equal(policy.act(observation), expected)


def test_reset_forgets_the_embedding_of_the_last_episode(drop_run: Run) -> None:
    policy = load_policy(drop_run.path, rule="best")
    first = policy.act(ZEROS)
    for _ in range(2):
        policy.act(np.ones(3))
    policy.reset()
    np.testing.assert_array_equal(policy.act(ZEROS), first)


# --- how z is inferred ---


def test_the_settings_of_inference_can_be_changed_and_are_saved_with_the_policy(drop_run: Run, tmp_path: Path) -> None:
    trained = load_policy(drop_run.path).algorithm.adaptation
    changes: dict[str, Any] = {"rule": "grad", "ascent_steps": 2, "step_size": 1, "region": "box", "starts": None}
    policy = load_policy(drop_run.path, seed=7, **changes)
    assert trained is not None
    assert trained == tiny("drop").adaptation
    assert policy.algorithm.adaptation == Adaptation(
        rule="grad", ascent_steps=2, step_size=1.0, region="box", starts=trained.starts
    )
    again = load_policy(policy.save(tmp_path / "policy"))
    assert again.algorithm == policy.algorithm
    assert (again.origin.seed, again.origin.step, again.origin.dataset) == (7, 20, "learnable")
    np.testing.assert_array_equal(again.act(ZEROS), policy.act(ZEROS))


def test_the_rules_act_differently(drop_run: Run) -> None:
    walk = np.random.default_rng(0).normal(size=(5, 3))
    acted = {}
    for rule in RULES:
        policy = load_policy(drop_run.path, rule=rule, trust_radius=2.0, ascent_steps=20, step_size=1.0)
        acted[rule] = np.stack([policy.act(observation) for observation in walk]).tobytes()
    assert len(set(acted.values())) == len(RULES)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rule": "bset"}, "rule is 'bset', not one of 'auto', 'first', 'best', 'grad', 'best-ada', 'grad-ada'"),
        ({"region": "sphere"}, "region is 'sphere', not one of"),
        ({"ascent_steps": -1}, "ascent_steps is -1: it must be from 0 to 10,000"),
        ({"ascent_steps": 2.5}, "ascent_steps is 2.5, not a whole number"),
        ({"ascent_steps": "10"}, "ascent_steps is '10', not a whole number"),
        ({"step_size": float("nan")}, "step_size is nan, not a finite number"),
        ({"reinference_interval": 0}, "reinference_interval is 0: it must be from 1 to 1,000,000"),
        ({"width": 3}, "adaptation has no setting 'width': choose from rule, ascent_steps, "),
    ],
)
def test_senseless_settings_are_refused(drop_run: Run, saved: Path, changes: dict[str, Any], said: str) -> None:
    assert said in refusal(load_policy, drop_run.path, **changes)
    assert said in refusal(load_policy, saved, **changes)


def test_a_policy_that_infers_nothing_takes_no_such_settings(bc_run: Run) -> None:
    assert refusal(load_policy, bc_run.path, rule="best", starts=3) == "bc infers no embedding: leave out rule, starts"
    assert load_policy(bc_run.path, rule=None).algorithm == bc_run.config.algorithm


# --- where it is loaded from, and saved to ---


def test_seeds_and_checkpoints_are_chosen_by_name(drop_run: Run, saved: Path) -> None:
    first = drop_run.checkpoints()[0]
    assert load_policy(drop_run.path, seed=7, step=first.step).origin.step == 10
    assert f"{drop_run.path}: has no seed 4: it trained seeds [3, 7]" in refusal(load_policy, drop_run.path, seed=4)
    assert "is a saved policy of one seed" in refusal(load_policy, saved, seed=3)


def test_a_folder_that_is_neither_a_policy_nor_a_run_is_refused(tmp_path: Path, bc_run: Run) -> None:
    (tmp_path / "file").write_text("")
    assert "is a file" in refusal(load_policy, tmp_path / "file")
    assert "is not a run (no config.json)" in refusal(load_policy, tmp_path)
    assert "is not a run (no config.json)" in refusal(load_policy, tmp_path / "nowhere")
    assert "cannot be made" in refusal(load_policy(bc_run.path).save, tmp_path / "file" / "policy")


def test_a_run_is_not_hidden_behind_a_policy(bc_run: Run) -> None:
    assert "is a run, and a policy saved there would hide it" in refusal(load_policy(bc_run.path).save, bc_run.path)
    assert not (bc_run.path / "policy.json").exists()


def test_a_policy_is_saved_over_an_older_one(saved: Path, bc_run: Run, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "policy"))
    load_policy(bc_run.path).save(folder)
    assert load_policy(folder).algorithm == bc_run.config.algorithm
    assert sorted(path.name for path in folder.iterdir()) == ["policy.json", "policy.safetensors"]


def test_if_a_save_is_killed_at_any_moment_the_older_or_the_new_policy_is_whole(
    saved: Path, bc_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time a file gets its final name, the folder must load, before and after."""
    folder = Path(shutil.copytree(saved, tmp_path / "policy"))
    found, replace = [], os.replace

    def looked_at(source: Any, target: Any) -> None:
        replace(source, target)
        found.append(load_policy(folder).algorithm.name)

    monkeypatch.setattr(os, "replace", looked_at)
    load_policy(bc_run.path).save(folder)
    assert found == ["drop", "bc", "bc"]


# --- damage and malice ---


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "gone", "folder"])
def test_damaged_weights_are_named(policy_folder: Path, damage: str) -> None:
    path = policy_folder / "policy.safetensors"
    content = bytearray(path.read_bytes())
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "gone":
        content[len(content) // 2] ^= 1
        path.write_bytes({"cut": content[:-7], "flip": content, "empty": bytearray()}[damage])
    message = refusal(load_policy, policy_folder)
    assert message.startswith(f"{path}: ")
    assert ("its checksum differs" in message) == (damage in ("cut", "flip", "empty"))


def header(folder: Path) -> dict[str, Any]:
    return read_sealed(folder / "policy.json")


def resealed(content: dict[str, Any]) -> str:
    """The header as an attacker would leave it: with a seal that fits."""
    return sealed(content).decode()


@pytest.mark.parametrize(
    "content",
    [
        lambda h: "",
        lambda h: resealed(h)[:-40],
        lambda h: "[]",
        lambda h: "{}",
        lambda h: "\x00\x01",
        lambda h: "[" * 100_000,
        lambda h: json.dumps(h | {"format": 2}),
        lambda h: json.dumps({"format": 1}),
        lambda h: resealed(h | {"algorithm": {"name": "unheard-of"}}),
        lambda h: resealed(h | {"algorithm": {"name": ["drop"]}}),
        lambda h: resealed(h | {"algorithm": 3}),
        lambda h: resealed(h | {"algorithm": h["algorithm"] | {"depths": "11111"}}),
        lambda h: resealed(h | {"algorithm": h["algorithm"] | {"depths": [1, 1, 1]}}),
        lambda h: resealed(h | {"algorithm": h["algorithm"] | {"adaptation": {"rule": "__import__('os')"}}}),
        lambda h: resealed(h | {"algorithm": h["algorithm"] | {"adaptation": 1}}),
        lambda h: resealed(h | {"algorithm": h["algorithm"] | {"embedding_size": None}}),
        lambda h: resealed(h | {"spec": None}),
        lambda h: resealed(h | {"spec": {"observation_size": 3}}),
        lambda h: resealed(h | {"spec": h["spec"] | {"action_size": "2"}}),
        lambda h: resealed(h | {"origin": h["origin"] | {"score_range": [0.0]}}),
        lambda h: resealed({k: v for k, v in h.items() if k != "origin"}),
    ],
)
def test_a_damaged_header_is_named(policy_folder: Path, content: Callable[[dict[str, Any]], str]) -> None:
    path = policy_folder / "policy.json"
    path.write_text(content(header(policy_folder)))
    assert refusal(load_policy, policy_folder).startswith(f"{path}: ")


def test_no_changed_bit_of_a_header_passes_for_a_setting(policy_folder: Path) -> None:
    path = policy_folder / "policy.json"
    content = path.read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        assert refusal(load_policy, policy_folder).startswith(f"{path}: ")


@pytest.mark.parametrize("sha256", [None, "", 3, ["0"]])
def test_a_header_without_the_checksum_is_refused(policy_folder: Path, sha256: Any) -> None:
    (policy_folder / "policy.json").write_text(resealed(header(policy_folder) | {"sha256": sha256}))
    assert "policy.safetensors: is damaged (its checksum differs)" in refusal(load_policy, policy_folder)


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("spec", {"observation_size": 10**12}),
        ("spec", {"observation_size": -3}),
        ("spec", {"action_size": 10**18}),
        ("spec", {"n_sub_tasks": 10**12}),
        ("algorithm", {"width": 10**9}),
        ("algorithm", {"width": 10**30}),
        ("algorithm", {"width": -8}),
        ("algorithm", {"embedding_size": 10**12}),
        ("algorithm", {"depths": [0, 0, 0, 0, 0]}),
        ("algorithm", {"depths": [2, 2, 2, 2, 2]}),
        ("algorithm", {"depths": [1, 1, 10**9, 1, 1]}),
    ],
)
def test_a_header_that_asks_for_absurd_sizes_allocates_nothing(
    policy_folder: Path, part: str, changes: dict[str, Any]
) -> None:
    content = header(policy_folder)
    (policy_folder / "policy.json").write_text(resealed(content | {part: content[part] | changes}))
    assert refusal(load_policy, policy_folder).startswith(f"{policy_folder}/policy.")


# --- no bounds ---


@pytest.mark.parametrize("name", ["policy.safetensors", "policy.next.safetensors"])
def test_weights_larger_than_the_policy_are_not_read(
    policy_folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, read = load_policy(policy_folder).act(ZEROS), Path.read_bytes
    with open(policy_folder / name, "ab") as file:
        file.truncate(2**40)  # sparse: it takes no room on the disk

    def small_only(path: Path) -> bytes:
        assert path.stat().st_size < 2**30, f"{path} is read"
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", small_only)
    if name == "policy.safetensors":
        message = refusal(load_policy, policy_folder)
        assert message.startswith(f"{policy_folder / name}: is damaged (1,099,511,627,776 bytes instead of at most ")
    else:  # a stranger's file beside the right one is ignored
        np.testing.assert_array_equal(load_policy(policy_folder).act(ZEROS), expected)


@pytest.mark.parametrize("name", ["policy.json", "policy.safetensors"])
def test_a_pipe_is_not_waited_for(policy_folder: Path, name: str) -> None:
    (policy_folder / name).unlink()
    os.mkfifo(policy_folder / name)
    said = f"{policy_folder / name}: is a pipe, a socket or a device, not a file: remove it"
    assert refusal(load_policy, policy_folder) == said


def test_a_header_that_is_far_too_large_is_not_parsed(policy_folder: Path) -> None:
    path = policy_folder / "policy.json"
    path.write_bytes(path.read_bytes() + b" " * 2**24)
    assert refusal(load_policy, policy_folder).startswith(f"{path}: is damaged (16,7")


@pytest.mark.parametrize(
    "changes", [{"score_models": 10**9}, {"depths": [1, 1, 1, 1, 10**9]}, {"width": 2**20}, {"learning_rate": 10**400}]
)
def test_a_header_that_asks_for_impossible_sizes_is_refused_at_once(
    policy_folder: Path, changes: dict[str, Any]
) -> None:
    path, content = policy_folder / "policy.json", header(policy_folder)
    path.write_text(resealed(content | {"algorithm": content["algorithm"] | changes}))
    assert refusal(load_policy, policy_folder).startswith(f"{path}: ")


def test_a_number_of_thousands_of_digits_is_refused(policy_folder: Path) -> None:
    path = policy_folder / "policy.json"
    path.write_text(path.read_text().replace('"prototypes": ', '"prototypes": ' + "9" * 5000))
    assert refusal(load_policy, policy_folder).startswith(f"{path}: cannot be read (Exceeds the limit")


def test_two_processes_do_not_save_in_one_place(saved: Path, drop_run: Run, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "policy"))
    policy = load_policy(drop_run.path, seed=7)
    with locked(folder):
        assert "another process is saving a policy here" in refusal(policy.save, folder)
    assert load_policy(folder).origin.seed == 3
    assert load_policy(policy.save(folder)).origin.seed == 7
    assert sorted(path.name for path in folder.iterdir()) == ["policy.json", "policy.safetensors"]
