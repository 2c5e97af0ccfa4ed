"""Facts about a dataset by its name: the environment, D4RL's reference returns, the paper's sub-task sizes.

The facts are in `tasks.json` beside this file. This module looks up a name. Names of D4RL (with or without version), of
D4RL's own files and of Minari all lead to the same task. No data is read here.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, TypedDict

SUB_TASKS = 10  # N for any data, unless the user asks for the paper's table
FEWEST_STEPS = 10_000  # in a sub-task
EMBEDDING_SIZE = 5  # throughout the paper's table
# For data that the paper's table does not fit: its own N for several mixed-quality sets.
UNLISTED_SUB_TASKS = 50
# On D4RL's own files, the table gives at least this many sub-tasks: pen-human has 25 demonstrations, five in each. With
# fewer (for example if a dataset is a small part of D4RL's), the score model f has almost nothing to compare.
FEWEST_SUB_TASKS = 5


@dataclass(frozen=True)
class Task:
    """A benchmark task, found by the name of one of its datasets."""

    name: str  # D4RL's name without version, e.g. "walker2d-medium-replay"
    env: str  # the Gymnasium id to evaluate in; ids under "droprl/" are made by `environments.simulation.make_env`
    score_range: tuple[float, float]  # D4RL's reference returns: (score 0, score 100)
    time_limit: int  # the number of steps of D4RL's time limit
    caveat: str | None = None  # why a score measured in `env` is not quite D4RL's, if it is not


@dataclass(frozen=True)
class SubTaskPreset:
    """How to cut a dataset into sub-tasks, and how large each one's embedding is."""

    n_sub_tasks: int  # N; data with fewer than N · M trajectories gives fewer
    trajectories_per_sub_task: int  # M
    embedding_size: int  # dim(z)
    origin: str  # a sentence about where the numbers come from

    def sizes(self, n: int | None, m: int | None, n_episodes: int) -> tuple[int, int]:
        """N and M. If only one is given, the other follows from it. If neither is, both are this preset's."""
        if n is None:
            n = self.n_sub_tasks if m is None else max(1, n_episodes // m)
        if m is None:
            m = self.trajectories_per_sub_task if n == self.n_sub_tasks else max(1, n_episodes // n)
        return n, m


class _Reference(TypedDict):
    env: str
    score_range: tuple[float, float]
    time_limit: int


class _Facts(TypedDict):
    references: dict[str, _Reference]
    caveats: dict[str, str]
    sub_tasks: dict[str, dict[str, tuple[int, int, int]]]
    not_in_the_table: list[str]
    file_names: dict[str, str]


def find_task(name: str) -> Task | None:
    """The task that a dataset called `name` belongs to, or None for any other data.

    D4RL's withdrawn `maze2d-*-v0` are other tasks (half the time limit, other reference returns), so: None.
    """
    known, version, is_minari = _parse(name)
    facts = _facts()
    if known not in facts["sub_tasks"] and known not in facts["not_in_the_table"]:
        return None
    if known.startswith("maze2d-") and version == "v0":
        return None
    family = max((f for f in facts["references"] if known.startswith(f)), key=len)
    reference = facts["references"][family]
    env, caveat = reference["env"], facts["caveats"].get(family.split("-")[0])
    if is_minari and env in _MINARI_ENVS:
        env, caveat = _MINARI_ENVS[env], facts["caveats"]["minari"]
    low, high = reference["score_range"]
    return Task(known, env, (low, high), reference["time_limit"], caveat)


def known_time_limit(name: str, env: str | None) -> int | None:
    """The task's time limit by the name of a dataset, or of several joined with `+`. None if `env` is another task.

    An environment may have a limit of its own: D4RL's pen lasts 100 steps, and AdroitHandPen-v1 lasts 200.
    """
    tasks = [find_task(part) for part in name.split("+")]
    limits = {task.time_limit if task is not None and env in (None, task.env) else None for task in tasks}
    return limits.pop() if len(limits) == 1 else None


def limit_of_data(limit: Any, named: str | None, asked: str | None) -> Any:
    """The limit that data states, if the task that is asked for is the one that the data names."""
    return limit if asked is None or named in (None, asked) else None


def equal_sub_tasks(n_episodes: int, n_steps: int | None = None) -> SubTaskPreset:
    """N sub-tasks of equal size, not tuned to a dataset. Fewer than N trajectories are left out.

    With `n_steps`, a sub-task has at least `FEWEST_STEPS` steps: fewer cannot be cloned well.
    """
    n = min(SUB_TASKS, n_episodes)
    if n_steps is not None:
        n = max(1, min(n, n_steps // FEWEST_STEPS))
    return SubTaskPreset(n, n_episodes // n, EMBEDDING_SIZE, f"{n} sub-tasks of equal size")


def paper_sub_tasks(name: str, n_episodes: int) -> SubTaskPreset:
    """The paper's N, M and dim(z), tuned to each dataset. Data that its table does not fit gets a default.

    The table has a column for D4RL's v0 files, and for some tasks one for v2. Names with `-v0` take the first. Other
    names take the second if there is one. Minari counts its own versions, so its names also take the newer column. The
    default is about 50 sub-tasks. It is for data that the table does not list, and for data so small that the table's M
    would give fewer than five sub-tasks.
    """
    known, version, is_minari = _parse(name)
    columns = _facts()["sub_tasks"].get(known)
    if columns is None:
        return _unlisted(n_episodes, f"the paper's table does not list {name}")
    column = "v0" if "v2" not in columns or (version == "v0" and not is_minari) else "v2"
    n, m, size = columns[column]
    if math.ceil(n_episodes / m) < FEWEST_SUB_TASKS:
        return _unlisted(n_episodes, f"{n_episodes} trajectories are too few for the paper's {m} in a sub-task")
    return SubTaskPreset(n, m, size, f"the paper's table, {known} {column}")


def _unlisted(n_episodes: int, reason: str) -> SubTaskPreset:
    m = max(1, math.ceil(n_episodes / UNLISTED_SUB_TASKS))
    origin = f"about {UNLISTED_SUB_TASKS} sub-tasks, as {reason}"
    return SubTaskPreset(max(1, math.ceil(n_episodes / m)), m, EMBEDDING_SIZE, origin)


# Minari's `mujoco/…` datasets were recorded in Gymnasium's v5 tasks, and D4RL's in tasks that are v4 today.
# Minari's AntMazes were recorded in Gymnasium's own AntMazes, whose observation is a dictionary.
_MINARI_ENVS = {
    "HalfCheetah-v4": "HalfCheetah-v5",
    "Hopper-v4": "Hopper-v5",
    "Walker2d-v4": "Walker2d-v5",
    "droprl/antmaze-umaze-v0": "AntMaze_UMaze-v4",
    "droprl/antmaze-medium-v0": "AntMaze_Medium-v4",
    "droprl/antmaze-large-v0": "AntMaze_Large-v4",
}


def _parse(name: str) -> tuple[str, str | None, bool]:
    """(D4RL's name without version, its version, whether `name` is Minari's)."""
    plain = name.strip().lower().replace("_", "-").removesuffix(".hdf5")
    is_minari = plain.startswith(("d4rl/", "mujoco/"))
    if is_minari:
        plain = plain.split("/", 1)[1].replace("/", "-")
    plain = plain.rsplit("/", 1)[-1]  # a copy in a user's own namespace has the same name
    plain = _facts()["file_names"].get(plain, plain)
    match = re.fullmatch(r"(.+?)(?:-(v\d+))?", plain)
    return (match[1], match[2], is_minari) if match else (plain, None, is_minari)


@cache
def _facts() -> _Facts:
    text = resources.files("droprl.data").joinpath("tasks.json").read_text(encoding="utf-8")
    facts: _Facts = json.loads(text)
    return facts
