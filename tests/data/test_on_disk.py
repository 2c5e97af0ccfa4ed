"""Data on the disk: the same numbers as from memory, the same training, and one line for every damaged folder."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.builders import Layout, make_dataset, on_disk, small_arrays
from helpers.training import TINY_BC, drop, learnable_dataset, refusal, save_npz, start_drop, state_files, tiny

import droprl.data.dataset
import droprl.data.on_disk
import droprl.train.disk_loop
from droprl.data import Dataset, load_dataset, map_dataset, paging, save_d4rl
from droprl.data.decompose import rank_sub_tasks
from droprl.data.returns import average_returns_to_go, choose_discount, discounted_returns, returns_spread
from droprl.data.rewards import Rewards
from droprl.data.scaling import fit_scaling
from droprl.data.transitions import Places, Prepared, prepare
from droprl.files.seals import digest, read_sealed, sealed
from droprl.train import fit
from droprl.train.disk_loop import DiskLoop
from droprl.train.loop import Loop, keys_of_update

LAYOUT: Layout = [(5, "terminal"), (1, "timeout"), (7, "timeout"), (1, "terminal"), (4, "timeout"), (3, "cut")]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of six steps: a few episodes then make many blocks."""
    monkeypatch.setattr(droprl.data.dataset, "BLOCK_ROWS", 6)
    monkeypatch.setattr(droprl.data.on_disk, "BLOCK_ROWS", 6)


def every_step(prepared: Prepared) -> Places:
    sizes = np.asarray(prepared.transitions.groups.size)
    sub_task = np.repeat(np.arange(len(sizes)), sizes)
    step = np.concatenate([np.arange(size) for size in sizes])
    found: Any = Places(step.astype(np.int32), sub_task.astype(np.int32))
    return found


# --- the same numbers ---


@pytest.mark.parametrize("following", [True, False])
@pytest.mark.parametrize("settings", [{"td_steps": 1}, {"td_steps": 3}, {"td_steps": None}, {"td_lambda": 0.7}])
def test_every_step_equals_the_step_in_memory(
    tmp_path: Path, small_blocks: None, following: bool, settings: dict[str, Any]
) -> None:
    dataset = make_dataset(LAYOUT, next_observations=following, observation_size=3)
    disk = on_disk(dataset, tmp_path)
    assert disk.on_disk
    assert not dataset.on_disk
    parts = rank_sub_tasks(dataset.returns, 3, 2)
    memory, mapped = (prepare(data, parts, discount=0.9, **settings) for data in (dataset, disk))
    expected_steps, steps = (p.transitions.gather(every_step(p))._asdict() for p in (memory, mapped))
    assert (expected_steps["next_action_known"] is None) is (steps["next_action_known"] is None) is not following
    for name in [name for name, column in steps.items() if column is not None]:
        found, expected = steps[name], expected_steps[name]
        assert found.dtype == expected.dtype, name
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 if name == "reward" else 0, err_msg=name)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), memory.probe, mapped.probe)
    assert mapped.reward_scale == pytest.approx(memory.reward_scale, rel=1e-12)


def test_pieces_of_a_look_up_make_the_same_batch(
    both: tuple[Dataset, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The columns exceed the limit: look-ups are in pieces of seven steps, and each is released."""
    samplers = [loop_of(tiny(name), both[1], [0])[2].transitions for name in ("drop", "dt", "coms")]
    drawn = [sampler.draw(jax.random.key(0), 30) for sampler in samplers]
    whole = [sampler.gather(steps) for sampler, steps in zip(samplers, drawn, strict=True)]
    monkeypatch.setattr(paging, "mapped_limit", lambda: 7)
    monkeypatch.setattr(paging, "STEP_BYTES", 1)
    parts = [sampler.gather(steps) for sampler, steps in zip(samplers, drawn, strict=True)]
    jax.tree.map(np.testing.assert_array_equal, parts, whole)


def test_nothing_crosses_from_one_episode_to_the_next(tmp_path: Path) -> None:
    """Observations name their episode and step, in the units of the data."""
    dataset = make_dataset(LAYOUT)
    parts = rank_sub_tasks(dataset.returns, 2, 3)
    table = prepare(
        on_disk(dataset, tmp_path),
        parts,
        discount=1.0,
        td_steps=3,
        normalize_observations=False,
        rewards=Rewards("one"),
    )
    drawn = every_step(table)
    batch = table.transitions.gather(drawn)
    assert len(batch.reward) == dataset.n_steps
    np.testing.assert_array_equal(batch.next_observation[:, 0], batch.observation[:, 0])
    episodes = batch.observation[:, 0].astype(int)
    for row, (episode, step) in enumerate(batch.observation.astype(int)):
        begin, end = dataset.bounds[episode], dataset.bounds[episode + 1]
        last = end if dataset.terminals[end - 1] else end - 1
        seen = dataset.rewards[begin + step : min(begin + step + 3, last)]
        assert batch.reward[row] == pytest.approx(seen.sum(dtype=np.float64), abs=1e-6)
    members = {n: set(part) for n, part in enumerate(parts)}
    assert all(e in members[n] for e, n in zip(episodes.tolist(), batch.sub_task.tolist(), strict=True))


def test_blocks_are_whole_episodes_and_change_no_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = learnable_dataset()
    parts = rank_sub_tasks(dataset.returns, 3, 4)

    def summed(data: Dataset) -> list[Any]:
        return [
            data.returns,
            discounted_returns(data, 0.9),
            average_returns_to_go(data, 30),
            returns_spread(data, 0.9),
            fit_scaling(data).observation_mean,
            fit_scaling(data).observation_std,
            choose_discount(data, parts),
        ]

    whole, digest = summed(dataset), dataset.fingerprint
    monkeypatch.setattr(droprl.data.dataset, "BLOCK_ROWS", 45)
    again = learnable_dataset()
    assert [(block.start, block.stop) for block in again.blocks()] == [(i, i + 2) for i in range(0, 12, 2)]
    for expected, found in zip(whole, summed(again), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert again.fingerprint == digest


def test_returns_of_one_long_episode_and_of_many_short_ones_are_the_same_sums() -> None:
    """A few long episodes and many short ones are summed in two ways. Compare both with the definition."""
    layouts: list[Layout] = [[(60, "terminal")], [(3, "terminal"), (1, "timeout")] * 40]
    for layout in layouts:
        dataset = make_dataset(layout)
        found = discounted_returns(dataset, 0.9)
        for begin, end in zip(dataset.bounds[:-1], dataset.bounds[1:], strict=True):
            rewards = dataset.rewards[begin:end].astype(np.float64)
            expected = [np.sum(0.9 ** np.arange(len(rewards) - t) * rewards[t:]) for t in range(len(rewards))]
            np.testing.assert_allclose(found[begin:end], expected, rtol=1e-12)


# --- the same training ---


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Dataset]:
    folder = tmp_path_factory.mktemp("data")
    disk = on_disk(learnable_dataset(), folder)
    return load_dataset(folder / "data.npz"), disk


def loop_of(algorithm: Any, dataset: Dataset, seeds: list[int]) -> tuple[Any, Any, Prepared]:
    resolved = algorithm.resolve(dataset)
    prepared = resolved.prepare(dataset)
    return (DiskLoop if dataset.on_disk else Loop)(resolved, prepared, seeds, 1000), resolved, prepared


@pytest.mark.parametrize("name", ["drop", "rvs", "dt", "coms"])
def test_an_update_gets_the_batch_that_it_would_draw_from_memory(both: tuple[Dataset, Dataset], name: str) -> None:
    seeds = [3, 5]
    loop, algorithm, _ = loop_of(tiny(name), both[1], seeds)
    table = loop_of(tiny(name), both[0], seeds)[2].transitions
    size = loop.chunks.size
    for s, i in ((0, 0), (1, 5), (1, 3 * size + 2)):
        key = keys_of_update(jnp.uint32(seeds[s]), jnp.int32(i))[0]
        expected = table.sample(key, algorithm.batch_size)
        found = jax.tree.map(lambda leaf, s=s, i=i: leaf[s, i % size], loop.chunks.get(i // size))
        jax.tree.map(partial(np.testing.assert_allclose, rtol=0, atol=1e-6), found, expected)


def test_training_gives_the_same_weights_as_from_memory(tmp_path: Path, both: tuple[Dataset, Dataset]) -> None:
    runs = [fit(d, tiny("bc"), out=tmp_path / f"{d.on_disk}", seeds=2, steps=70, progress=False) for d in both]
    assert state_files(runs[0]) == state_files(runs[1])


def test_calls_of_any_size_give_the_same_bits(both: tuple[Dataset, Dataset], monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk has eight updates. A repeated update, as after a kill, is the same."""
    monkeypatch.setattr(droprl.train.disk_loop, "CHUNK_UPDATES", 8)
    loop = loop_of(tiny("drop"), both[1], [0, 7])[0]

    def run(cuts: Sequence[int]) -> Any:
        states = loop.init()
        for begin, end in pairwise(cuts):
            states, _ = loop.run(states, begin, end - begin)
        return jax.device_get(states)

    expected = run((0, 23))
    for cuts in ((0, 1, 2, 9, 23), (0, 8, 16, 23), (0, 15, 17, 23)):
        jax.tree.map(np.testing.assert_array_equal, run(cuts), expected)


def test_a_killed_run_ends_with_the_same_bytes(tmp_path: Path) -> None:
    on_disk(learnable_dataset(), tmp_path)
    folder = tmp_path / "columns"
    options = (*TINY_BC, "--steps=3000", "--checkpoint-every=500", "--seeds=2")
    assert drop("train", folder, *options, "--out", tmp_path / "whole")[0] == 0
    process = start_drop("train", folder, *options, "--out", tmp_path / "killed")
    deadline = time.monotonic() + 100
    while not list((tmp_path / "killed" / "checkpoints").glob("0*")) and time.monotonic() < deadline:
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    code, _, err = drop("train", folder, *options, "--out", tmp_path / "killed")
    assert code == 0, err
    assert state_files(tmp_path / "killed") == state_files(tmp_path / "whole")


def test_a_run_may_go_on_from_the_disk(tmp_path: Path, both: tuple[Dataset, Dataset]) -> None:
    """The folder has the fingerprint of the data it was made from."""
    assert both[0].fingerprint == both[1].fingerprint
    fit(both[1], tiny("bc"), out=tmp_path / "run", steps=1, progress=False)
    assert fit(both[0], tiny("bc"), out=tmp_path / "run", steps=1, progress=False).finished  # the same run


# --- making a folder ---


def write_hdf5(path: Path, arrays: dict[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file[key] = array
    return path


@pytest.mark.parametrize("chosen", [("observations", "actions", "rewards", "terminals", "timeouts"), None])
def test_a_mapped_file_equals_the_file(tmp_path: Path, small_blocks: None, chosen: tuple[str, ...] | None) -> None:
    arrays = {key: array for key, array in small_arrays(n_steps=20).items() if chosen is None or key in chosen}
    file = write_hdf5(tmp_path / "own.hdf5", arrays)
    mapped, loaded = map_dataset(file, tmp_path / "columns"), load_dataset(file)
    assert (mapped.fingerprint, mapped.name, mapped.env) == (loaded.fingerprint, loaded.name, loaded.env)
    for key in ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations"):
        np.testing.assert_array_equal(getattr(mapped, key), getattr(loaded, key))
    again = load_dataset(tmp_path / "columns")
    assert again.on_disk
    assert again.in_memory().fingerprint == loaded.fingerprint
    assert not again.in_memory().on_disk


def test_columns_of_ones_own_are_checked_and_copied(tmp_path: Path, small_blocks: None) -> None:
    (tmp_path / "own").mkdir()
    arrays = small_arrays(n_steps=20) | {"observations": np.arange(60.0).reshape(20, 3)}  # float64
    for key, array in arrays.items():
        np.save(tmp_path / "own" / f"{key}.npy", array)
    assert "were never checked" in refusal(load_dataset, tmp_path / "own")
    mapped = map_dataset(tmp_path / "own", tmp_path / "columns", action_low=-2, action_high=2)
    assert (mapped.name, mapped.observations.dtype, mapped.n_steps) == ("own", np.dtype(np.float32), 20)
    np.testing.assert_array_equal(mapped.action_low, [-2, -2])


def test_the_facts_of_the_task_are_saved_too(tmp_path: Path) -> None:
    save_d4rl(learnable_dataset(), tmp_path / "hopper-medium-v2.hdf5")
    mapped = map_dataset(tmp_path / "hopper-medium-v2.hdf5", tmp_path / "columns")
    loaded = load_dataset(tmp_path / "hopper-medium-v2.hdf5")
    for dataset in (mapped, load_dataset(tmp_path / "columns")):
        assert (dataset.name, dataset.env, dataset.score_range) == (loaded.name, loaded.env, loaded.score_range)
    assert load_dataset(tmp_path / "columns", env="Own-v0").env == "Own-v0"


@pytest.mark.parametrize(
    ("key", "row", "value", "said"),
    [
        ("observations", 13, np.nan, "observations row 13 is nan"),
        ("rewards", 7, np.inf, "rewards row 7 is inf"),
        ("actions", 17, 3.0, "actions row 17 is outside [-1, 1]"),
    ],
)
def test_a_fault_is_named_by_its_row_in_the_file(
    tmp_path: Path, small_blocks: None, key: str, row: int, value: float, said: str
) -> None:
    arrays = small_arrays(n_steps=20)
    arrays[key][row] = value
    message = refusal(map_dataset, write_hdf5(tmp_path / "own.hdf5", arrays), tmp_path / "columns")
    assert said in message
    assert message == refusal(load_dataset, tmp_path / "own.hdf5")
    assert [path.name for path in tmp_path.iterdir()] == ["own.hdf5"]  # nothing half-written is left


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rewards": np.zeros(19)}, "rewards has 19 rows but observations has 20"),
        ({"observations": np.zeros(20)}, "observations has shape (20,)"),
        ({"terminals": np.zeros(20), "timeouts": np.zeros(20)}, "no episode ends"),
        ({"actions": np.zeros((20, 2), int)}, "discrete actions are not supported"),
        ({"rewards": None}, "rewards is missing"),
    ],
)
def test_unusable_data_is_not_mapped(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    arrays = {key: array for key, array in (small_arrays(n_steps=20) | changes).items() if array is not None}
    file = write_hdf5(tmp_path / "own.hdf5", arrays)
    message = refusal(map_dataset, file, tmp_path / "columns")
    assert said in message
    assert message == refusal(load_dataset, file)
    assert not (tmp_path / "columns").exists()


# --- damaged folders ---


def damage_json(folder: Path, **changes: Any) -> None:
    """Change it and make a matching seal, like an attacker."""
    (folder / "dataset.json").write_bytes(sealed(read_sealed(folder / "dataset.json") | changes))


def replace_rewards(folder: Path, rewards: np.ndarray) -> None:
    """Replace the rewards and make a matching checksum."""
    np.save(folder / "rewards.npy", rewards, allow_pickle=True)
    sums = read_sealed(folder / "dataset.json")["sha256"]
    damage_json(folder, sha256=sums | {"rewards.npy": digest((folder / "rewards.npy").read_bytes())})


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


DAMAGES: dict[str, tuple[Any, str]] = {
    "no description": (lambda f: (f / "dataset.json").unlink(), "has no dataset.json"),
    "not JSON": (lambda f: (f / "dataset.json").write_text("{"), "dataset.json: cannot be read"),
    "a list": (lambda f: (f / "dataset.json").write_text("[]"), "holds no settings"),
    "another format": (lambda f: damage_json(f, format=3), "is not of format 2"),
    "no checksums": (lambda f: damage_json(f, sha256=[]), "observations.npy: is damaged"),
    "no rows": (lambda f: damage_json(f, n_steps="many"), "is damaged"),
    "other rows": (lambda f: damage_json(f, n_steps=7), "not 7 rows"),
    "other bounds": (lambda f: damage_json(f, action_low=[0.0]), "do not fit each other"),
    "no column": (lambda f: (f / "rewards.npy").unlink(), "rewards.npy: cannot be read (No such file"),
    "cut short": (lambda f: cut(f / "observations.npy"), "observations.npy: is damaged or cut short"),
    "empty": (lambda f: (f / "actions.npy").write_bytes(b""), "actions.npy: is damaged or cut short"),
    "other numbers": (lambda f: np.save(f / "rewards.npy", np.zeros(240, np.float32)), "(its checksum differs)"),
    "another type": (lambda f: replace_rewards(f, np.zeros(240)), "holds (240,) of float64"),
    "objects": (
        lambda f: replace_rewards(f, np.array([{}] * 240)),
        "is damaged or cut short (Array can't",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused_in_one_line(tmp_path: Path, damage: str) -> None:
    on_disk(learnable_dataset(), tmp_path)
    change, said = DAMAGES[damage]
    change(tmp_path / "columns")
    assert said in refusal(load_dataset, tmp_path / "columns")


def test_every_damaged_bit_of_a_folder_is_found(tmp_path: Path) -> None:
    on_disk(make_dataset(LAYOUT, next_observations=True, observation_size=3), tmp_path)
    for path in (tmp_path / "columns").iterdir():
        content = path.read_bytes()
        for place in range(len(content)):
            damaged = bytearray(content)
            damaged[place] ^= 1 << place % 8
            path.write_bytes(damaged)
            assert refusal(load_dataset, tmp_path / "columns").startswith(f"{path}: ")
        path.write_bytes(content)
    load_dataset(tmp_path / "columns")


def test_what_a_folder_cannot_do_is_refused(tmp_path: Path) -> None:
    on_disk(learnable_dataset(), tmp_path)
    columns = tmp_path / "columns"
    assert "exists already" in refusal(map_dataset, tmp_path / "data.npz", columns)
    assert "cannot be joined" in refusal(load_dataset, f"{columns}+{columns}")
    assert "has its bounds already" in refusal(load_dataset, columns, action_low=-9, action_high=9)
    assert "a goal is only for" in refusal(load_dataset, columns, goal=(1.0, 2.0))
    behavior = tiny("drop", decomposition="behavior")
    assert "choose rank" in refusal(fit, columns, behavior, out=tmp_path / "run", steps=1, progress=False)


def test_the_command_says_how_to_go_on(tmp_path: Path) -> None:
    save_npz(learnable_dataset(), tmp_path / "own.npz")
    code, out, err = drop("data", "map", tmp_path / "own.npz", "--out", tmp_path / "columns")
    assert code == 0, err
    assert f"drop train {tmp_path / 'columns'}" in out
    code, out, _ = drop("data", "info", tmp_path / "columns", "--json")
    assert code == 0
    assert json.loads(out)["n_steps"] == 240
