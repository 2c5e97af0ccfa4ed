"""For the tests of training: data that can be learned in a moment, tiny algorithms, and `drop` as a process."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from droprl.algorithms import ALGORITHMS, Algorithm
from droprl.data import Dataset, from_arrays
from droprl.errors import DropError
from droprl.train import Run

ACTION_LOW, ACTION_HIGH = [-2.0, 0.0], [5.0, 0.5]
TINY_BC = ("--algo=bc", "--preset=small", "--width=8", "--state-depth=1", "--action-depth=1", "--batch-size=32")


def learnable_dataset(seed: int = 0, **changes: Any) -> Dataset:
    """Twelve timed-out episodes of twenty steps. Actions depend on observations; returns rise from one to the next."""
    rng = np.random.default_rng(seed)
    episodes, length = 12, 20
    observations = rng.normal(size=(episodes * length, 3))
    low, high = np.array(ACTION_LOW), np.array(ACTION_HIGH)
    unit = 0.5 + 0.45 * np.tanh(observations @ rng.normal(size=(3, 2)))
    timeouts = np.zeros(len(observations), bool)
    timeouts[length - 1 :: length] = True
    arrays: dict[str, Any] = {
        "observations": observations,
        "actions": low + unit * (high - low),
        "rewards": observations[:, 0] + np.repeat(np.arange(episodes), length),
        "terminals": np.zeros(len(observations), bool),
        "timeouts": timeouts,
        "next_observations": np.roll(observations, -1, axis=0),
    }
    return from_arrays(**arrays | changes, action_low=low, action_high=high, name="learnable")


def save_npz(dataset: Dataset, path: Path) -> Path:
    keys = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
    bounds = ("action_low", "action_high")
    np.savez(path, **{key: getattr(dataset, key) for key in (*keys, *bounds)})
    return path


def tiny(name: str, **changes: Any) -> Algorithm:
    """The algorithm with the tiny sizes that it declares itself."""
    declared: Any = ALGORITHMS[name].tiny()
    made: Algorithm = dataclasses.replace(declared, **changes)
    return made


def state_files(run: Run | Path) -> dict[str, bytes]:
    """The bytes of every checkpoint's state, by step."""
    folder = (run.path if isinstance(run, Run) else run) / "checkpoints"
    return {path.parent.name: path.read_bytes() for path in sorted(folder.glob("[0-9]*/state.safetensors"))}


def logged_steps(run: Run) -> list[int]:
    return [entry["step"] for entry in run.metrics()]


def refusal(action: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """The one line of the error with which a call is refused."""
    with pytest.raises(DropError) as caught:
        action(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def start_drop(*words: str | Path, code: str | None = None) -> subprocess.Popen[str]:
    """`drop` in its own process. If `code` is given, it runs instead, with the words as its arguments."""
    program = ["-m", "droprl"] if code is None else ["-c", code]
    command = [sys.executable, *program, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def drop(*words: str | Path, code: str | None = None) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    process = start_drop(*words, code=code)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err
