"""Datasets from your own arrays: one after another, marked by an id, or as a list of episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from droprl.data.check import Bound, checked_dataset, fault, flags, numbers
from droprl.data.dataset import Dataset
from droprl.data.dictionaries import flattened, joined_entries
from droprl.data.episodes import Log
from droprl.environments.ids import given_by_user
from droprl.environments.vectors import Parts

_KEYS = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")


def from_arrays(
    observations: Any,
    actions: Any,
    rewards: Any,
    terminals: Any = None,
    timeouts: Any = None,
    next_observations: Any = None,
    *,
    episode_ids: Any = None,
    action_low: Bound = None,
    action_high: Bound = None,
    name: str = "arrays",
    env: str | None = None,
    score_range: tuple[float, float] | None = None,
    time_limit: int | None = None,
) -> Dataset:
    """A dataset from your own arrays: one row for each step, episodes one after another.

    `terminals` marks the steps that ended the task. `timeouts` marks the steps after which only the time limit ended
    the episode. One of the two may be absent. Without timeouts, the rows after the last terminal are one episode that
    was cut short. `episode_ids` has a number or a name for each row: the rows of one id are one episode, and an episode
    without a terminal at its end counts as timed out.

    Observations may be a dictionary of arrays. They are joined in the order of their sorted names, which the dataset
    keeps in `observation_parts`. If you give no bounds and every action lies in [-1, 1], those are the bounds.
    `time_limit` is the most steps of an episode when `env` is played; by default the environment decides. The arrays
    are copied: if you change them later, the dataset stays the same.
    """
    given = (observations, actions, rewards, terminals, timeouts, next_observations)
    arrays: dict[str, Any] = {key: value for key, value in zip(_KEYS, given, strict=True) if value is not None}
    arrays, parts = flattened(arrays, name)
    notes: list[str] = []
    if episode_ids is not None:
        arrays, notes = _by_id(arrays, episode_ids, name)
    return checked_dataset(
        arrays,
        name,
        name=name,
        env=given_by_user(env),
        score_range=score_range,
        time_limit=time_limit,
        action_low=action_low,
        action_high=action_high,
        copy=True,
        observation_parts=parts,
        notes=notes,
    )


def from_episodes(
    episodes: Sequence[Mapping[str, Any]],
    *,
    action_low: Bound = None,
    action_high: Bound = None,
    name: str = "episodes",
    env: str | None = None,
    score_range: tuple[float, float] | None = None,
    time_limit: int | None = None,
) -> Dataset:
    """A dataset from a list of episodes, which may differ in length.

    An episode is a dictionary of `observations` (L, n) or (L + 1, n), `actions` (L, m) and `rewards` (L,). With one
    observation more than actions, the last one is the state after the last step. `terminated` (True or False: the task
    ended in the last step) may be there, or a `terminals` of L flags, or neither: the episode then counts as timed out.
    Observations may be dictionaries of arrays. The bounds of actions are those of `from_arrays`.
    """
    if isinstance(episodes, Mapping) or not isinstance(episodes, Sequence | np.ndarray) or len(episodes) == 0:
        raise fault(name, "there are no episodes", "give a list with one dictionary for each episode")
    made = [_episode(episode, f"{name} episode {number}") for number, episode in enumerate(episodes)]
    parts = made[0][1]
    for number, (arrays, own) in enumerate(made):
        if own != parts:
            raise fault(name, f"episode {number} has other entries than episode 0", "give the same entries in each")
        for key in ("observations", "actions"):
            if arrays[key].shape[1:] != made[0][0][key].shape[1:]:
                what = f"{key} of episode {number} have shape {arrays[key].shape}, unlike {made[0][0][key].shape}"
                raise fault(name, what, "give the same columns in each episode")
    keys = [key for key in made[0][0] if all(key in arrays for arrays, _ in made)]
    starts = np.cumsum([0, *(len(arrays["rewards"]) for arrays, _ in made)])

    def label(row: int) -> str:
        episode = int(np.searchsorted(starts, row, side="right")) - 1
        return f"row {row} (episode {episode}, step {row - int(starts[episode])})"

    return checked_dataset(
        {key: np.concatenate([arrays[key] for arrays, _ in made]) for key in keys},
        name,
        name=name,
        env=given_by_user(env),
        score_range=score_range,
        time_limit=time_limit,
        action_low=action_low,
        action_high=action_high,
        row_label=label,
        copy=True,
        observation_parts=parts,
    )


def _by_id(arrays: dict[str, Any], ids: Any, where: str) -> tuple[dict[str, Any], list[str]]:
    """The arrays in the order of their episodes, with marks at the ends."""
    given = np.asarray(ids)
    n_steps = len(arrays["rewards"]) if "rewards" in arrays else len(given)
    if given.ndim != 1 or len(given) != n_steps:
        raise fault(where, f"episode_ids has shape {given.shape}, not ({n_steps},)", "give one id for each row")
    if given.dtype.kind not in "biuSUf":
        given = np.array([str(one) for one in given])
    if given.dtype.kind == "f" and not np.isfinite(given).all():
        raise fault(
            where, f"episode_ids row {int(np.argmin(np.isfinite(given)))} is not a number", "give every row an id"
        )
    log = Log(len(given), where)
    log.group(given, "episode_ids")

    def ordered(key: str, value: Any) -> np.ndarray:
        column = numbers(value, key, where)
        if column.ndim == 0 or len(column) != len(given):
            raise fault(where, f"{key} does not have {len(given)} rows, as episode_ids has", "give one row for each id")
        return column[log.rows]

    found = {key: ordered(key, value) for key, value in arrays.items()}
    terminals = flags(found["terminals"], "terminals", where) if "terminals" in found else np.zeros(len(given), bool)
    inside = terminals & ~log.ends
    if inside.any():
        row = int(log.rows[np.argmax(inside)])
        raise fault(
            where, f"terminals row {row} ends the task, but its episode goes on", "fix terminals or episode_ids"
        )
    return found | {"terminals": terminals, "timeouts": log.ends & ~terminals}, log.said


def _episode(episode: Any, where: str) -> tuple[dict[str, np.ndarray], Parts | None]:
    """The columns of one episode under the dataset's own keys."""
    if not isinstance(episode, Mapping):
        raise fault(where, f"is a {type(episode).__name__}", "give a dictionary of observations, actions and rewards")
    for key in episode:
        if key not in (*_KEYS, "terminated"):
            raise fault(where, f"has an entry {key!r}", f"give {', '.join(_KEYS[:4])} or terminated")
    for key in ("observations", "actions", "rewards"):
        if episode.get(key) is None:
            raise fault(where, f"{key} are missing", "give observations, actions and rewards in each episode")
    parts = None
    if isinstance(episode["observations"], Mapping):
        observations, parts = joined_entries(episode["observations"], "observations", where)
    else:
        observations = numbers(episode["observations"], "observations", where)
    arrays = {"observations": observations, "actions": numbers(episode["actions"], "actions", where)}
    arrays["rewards"] = numbers(episode["rewards"], "rewards", where)
    n_steps = arrays["rewards"].size
    if arrays["rewards"].ndim != 1 or n_steps == 0:
        raise fault(where, f"rewards has shape {arrays['rewards'].shape}", "give one number for each step")
    if episode.get("next_observations") is not None:
        following = episode["next_observations"]
        is_dict = isinstance(following, Mapping)
        arrays["next_observations"] = (
            joined_entries(following, "next_observations", where)[0]
            if is_dict
            else numbers(following, "next_observations", where)
        )
    elif observations.ndim > 0 and len(observations) == n_steps + 1:
        arrays["observations"], arrays["next_observations"] = observations[:-1], observations[1:]
    for key, array in arrays.items():
        if array.ndim == 0 or len(array) != n_steps:
            what = f"{key} has {array.shape[0] if array.ndim else 'no'} rows, but rewards has {n_steps}"
            raise fault(where, what, "give one row for each step, and at most one observation more")
    return arrays | _marks(episode, n_steps, where), parts


def _marks(episode: Mapping[str, Any], n_steps: int, where: str) -> dict[str, np.ndarray]:
    terminals = np.zeros(n_steps, bool)
    if episode.get("terminals") is not None:
        terminals = flags(numbers(episode["terminals"], "terminals", where), "terminals", where)
        if terminals.shape != (n_steps,) or terminals[:-1].any():
            raise fault(where, "terminals is not a flag for each step, up only at the last", "mark only the last step")
    if episode.get("terminated") is not None:
        ended = flags(np.atleast_1d(numbers(episode["terminated"], "terminated", where)), "terminated", where)
        if ended.shape != (1,):
            raise fault(where, f"terminated has shape {ended.shape}", "give True or False for the whole episode")
        terminals[-1] = ended[0]
    timeouts = np.zeros(n_steps, bool)
    timeouts[-1] = not terminals[-1]
    return {"terminals": terminals, "timeouts": timeouts}
