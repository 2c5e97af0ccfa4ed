"""A file may name a task, but never a module to import: data, runs, policies and Minari folders of a stranger."""

from __future__ import annotations

import ast
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from helpers.builders import small_arrays
from helpers.training import drop, refusal, tiny
from minari.data_collector import EpisodeBuffer

import droprl
from droprl import evaluate, load_dataset, load_policy
from droprl.data import from_arrays, map_dataset
from droprl.data.on_disk import DESCRIPTION
from droprl.environments.simulation import make_env
from droprl.files.seals import read_sealed, sealed
from droprl.finetuning import finetune
from droprl.rollout import env_maker
from droprl.train import Run, fit

MODULE, ID = "a_strangers_module", "a_strangers_module:Pendulum-v1"
Ran = Callable[[], bool]


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Whether the code of the stranger's module has run in this process."""
    (tmp_path / f"{MODULE}.py").write_text("import builtins\nbuiltins.a_stranger_was_here = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("builtins.a_stranger_was_here", False, raising=False)
    monkeypatch.setattr("droprl.environments.ids._given", set())
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    return lambda: bool(getattr(__import__("builtins"), "a_stranger_was_here"))  # noqa: B009


def write_hdf5(path: Path, env: str | bytes | np.bytes_) -> Path:
    arrays: Any = small_arrays()
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file[key] = 3 * array if key == "actions" else array  # outside ±1: droprl asks the task for its bounds
        file.attrs["env"] = env
    return path


def test_data_cannot_name_a_module(ran: Ran, tmp_path: Path) -> None:
    for env in (ID, np.bytes_(ID.encode())):
        path = write_hdf5(tmp_path / "data.hdf5", env)
        for load in (load_dataset, lambda source: map_dataset(source, tmp_path / "columns")):
            said = refusal(load, path)
            assert said.startswith(f"{path}: {ID}: a file names this task")
            assert f"would run the Python module {MODULE}" in said
            assert f'give env="{ID}"' in said
    code, _, said = drop("data", "info", path)
    assert (code, "a file names this task" in said, "Traceback" in said) == (1, True, False)
    assert not ran()


def test_the_user_may_name_a_module(ran: Ran, tmp_path: Path) -> None:
    write_hdf5(tmp_path / "data.hdf5", "Hopper-v4")
    assert "outside" in refusal(load_dataset, tmp_path / "data.hdf5", env=ID)  # Pendulum has one action, not two
    assert ran()


def test_python_may_name_a_module(ran: Ran) -> None:
    arrays: Any = small_arrays()
    from_arrays(**arrays, env=ID)
    make_env(ID).close()
    assert ran()


def test_a_folder_of_columns_cannot_name_a_module(ran: Ran, tmp_path: Path) -> None:
    arrays: Any = small_arrays()
    np.savez(tmp_path / "data.npz", **arrays)
    map_dataset(tmp_path / "data.npz", tmp_path / "columns")
    described = read_sealed(tmp_path / "columns" / DESCRIPTION)
    for env, said in ((ID, None), (["x"], "env is ['x'], not text")):
        (tmp_path / "columns" / DESCRIPTION).write_bytes(sealed(described | {"env": env}))
        if said is not None:
            assert said in refusal(load_dataset, tmp_path / "columns")
            continue
        assert "would run" in refusal(make_env, str(load_dataset(tmp_path / "columns").env))
    assert not ran()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    home = tmp_path_factory.mktemp("trained")
    rng = np.random.default_rng(0)
    timeouts = np.arange(60) % 10 == 9
    columns: Any = {"observations": rng.normal(size=(60, 3)), "actions": rng.uniform(-1, 1, (60, 1))}
    columns |= {"rewards": rng.normal(size=60), "terminals": np.zeros(60, bool), "timeouts": timeouts}
    dataset = from_arrays(**columns, env="Pendulum-v1", name="toy")
    run = fit(replace(dataset, env=ID), tiny("bc"), out=home / "run", steps=2, progress=False)
    load_policy(run.path).save(home / "policy")
    return run


def test_a_run_or_policy_cannot_name_a_module(ran: Ran, trained: Run, capfd: pytest.CaptureFixture[str]) -> None:
    policy = trained.path.parent / "policy"
    assert load_policy(policy).origin.env == ID  # to load it is harmless
    for use in (
        lambda: evaluate(trained, episodes=1, progress=False),
        lambda: evaluate(policy, episodes=1, progress=False),
        lambda: finetune(trained, level="checkpoint", budget=1000),
    ):
        assert "would run the Python module" in refusal(use)
    assert "would run the Python module" in refusal(env_maker, str(trained.config.data.env))  # as reports do
    from droprl.deploy.serve.live import pictures

    assert "would run" in refusal(pictures.task_to_watch, ID)
    assert not ran()
    assert evaluate(policy, env=ID, episodes=1, n_envs=1, progress=False).env == ID
    assert ran()


@pytest.mark.parametrize("odd", ["", "a:b:c", "../x-v0", "a/b/c-v0", "os:system('x')", "x\x1b[31m-v0", None, 3, ["x"]])
def test_what_is_no_id_is_refused(odd: Any) -> None:
    assert "is not a Gymnasium id" in refusal(make_env, odd)


# --- Minari ---


@pytest.fixture
def minari_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the dataset mine/toy-v0, recorded in Pendulum."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    steps: Any = {"rewards": [1.0, 2.0], "terminations": [False, False], "truncations": [False, True]}
    episode = EpisodeBuffer(observations=np.zeros((3, 3), np.float32), actions=np.ones((2, 1), np.float32), **steps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers("mine/toy-v0", [episode], env=gymnasium.make("Pendulum-v1"))
    return tmp_path / "minari" / "mine" / "toy-v0" / "data"


def change_metadata(folder: Path, **changes: Any) -> None:
    known = json.loads((folder / "metadata.json").read_text()) | changes
    kept = {name: value for name, value in known.items() if value is not None}
    (folder / "metadata.json").write_text(json.dumps(kept))


def test_a_minari_dataset_cannot_run_code(ran: Ran, minari_folder: Path) -> None:
    assert load_dataset("mine/toy-v0").env == "Pendulum-v1"
    spec = json.loads(json.loads((minari_folder / "metadata.json").read_text())["env_spec"])
    change_metadata(minari_folder, env_spec=json.dumps(spec | {"id": ID}))
    assert "would run" in refusal(make_env, str(load_dataset("mine/toy-v0").env))
    # Without its spaces Minari would make the environment: it would call whatever the file names.
    called = spec | {"entry_point": f"{MODULE}:print", "kwargs": {}}
    change_metadata(minari_folder, env_spec=json.dumps(called), observation_space=None)
    said = refusal(load_dataset, "mine/toy-v0")
    assert "has no observation_space" in said
    assert "metadata.json" in said
    assert not ran()


# --- one door ---


def test_only_one_function_makes_environments() -> None:
    """Every id goes through `make_env`, which checks it."""
    doors = ("make", "make_vec", "spec", "load_env_creator", "from_json", "recover_environment")
    found = []
    for path in Path(droprl.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in doors:
                called = ast.unparse(node.func)
                found += [f"{path.name}: {called}"] if called.split(".")[0] in ("gymnasium", "minari", "source") else []
            if isinstance(node, ast.ImportFrom) and node.module in ("gymnasium.envs", "gymnasium.envs.registration"):
                found.append(f"{path.name}: {node.module}")
    assert found == ["simulation.py: gymnasium.make"]
