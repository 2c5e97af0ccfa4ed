"""What the columns of a table mean, and the dataset that follows: one row for each step.

`tables` opens the table, `columns` makes numbers of its columns, and `episodes` cuts it. What was done with the rows is
said in `Dataset.notes`. Nothing is left out unless it was asked for, and how many rows were left out is said.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from droprl.data.check import Bound, checked_dataset, fault
from droprl.data.columns import flags_of, ids_of, numbers_of, times_of
from droprl.data.dataset import Dataset
from droprl.data.episodes import Log, checked_count
from droprl.data.tables import Table, find_column, find_columns
from droprl.environments.ids import given_by_user
from droprl.environments.vectors import Parts, shown_parts

Missing = Literal["refuse", "hold", "drop"]
RewardAt = Literal["each", "end"]
UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Meaning:
    """What the columns of a table mean."""

    observations: tuple[str, ...] = ()
    """What the policy sees: names or patterns of columns, such as "temp*,pressure"."""
    actions: tuple[str, ...] = ()
    """What the policy decides: names or patterns of columns."""
    reward: str | None = None
    """The column of the reward."""
    reward_at: RewardAt = "each"
    """each: every row has the reward of its step. end: the episode has one, the last that its rows have."""
    terminal: str | None = None
    """A column that is 1 where the task ended, in failure or success. Without it, all episodes time out."""
    episode: str | None = None
    """A column with the id of the episode."""
    time: str | None = None
    """A column with the time: for --gap, and to check the order of the rows."""
    time_format: str | None = None
    """How the time is written, for example "%d.%m.%Y %H:%M", if not as 2026-03-01 12:00:00."""
    gap: str | None = None
    """A new episode begins after a pause longer than this, for example 60s, 5min or 2h."""
    length: int | None = None
    """Every episode has this many rows."""
    horizon: int | None = None
    """Cut a log without an end on purpose, into equal pieces of at most this many rows."""
    missing: Missing = "refuse"
    """Empty cells. refuse: an error that names the first. hold: the last value of the same episode holds on. drop: the
    whole episode is left out."""
    action_low: float | tuple[float, ...] | None = None
    """The actions' lower bounds: one number, or one for each. By default the smallest logged values."""
    action_high: float | tuple[float, ...] | None = None
    """The actions' upper bounds, in the same form."""
    env: str | None = None
    """The Gymnasium id of the task, if there is one."""
    time_limit: int | None = None
    """The most steps of an episode when the task is played."""


def dataset_of(table: Table, meaning: Meaning, name: str) -> Dataset:
    """The dataset of a table whose columns mean this."""
    return _Reading(table, meaning).dataset(name)


class _Reading:
    """The way from a table to a dataset."""

    def __init__(self, table: Table, meaning: Meaning) -> None:
        self.table, self.meaning, self.notes = table, meaning, list[str]()
        asked, where = meaning, table.where
        for value, known, what in (
            (asked.missing, get_args(Missing), "missing"),
            (asked.reward_at, get_args(RewardAt), "reward_at"),
        ):
            if value not in known:
                raise fault(where, f"{what} is {value!r}", f"choose one of {', '.join(known)}")
        if not (asked.observations and asked.actions and asked.reward):
            raise fault(where, "names are missing", "give --observations, --actions and --reward")
        single = {
            "--reward": asked.reward,
            "--terminal": asked.terminal,
            "--episode": asked.episode,
            "--time": asked.time,
        }
        self.single = {option: find_column(table, one, option) for option, one in single.items() if one is not None}
        taken = list(self.single.values())
        self.actions = find_columns(table, asked.actions, "--actions", taken)
        self.observations = find_columns(table, asked.observations, "--observations", [*taken, *self.actions])
        self._check_roles()
        self._check_cuts()

    def _check_roles(self) -> None:
        both = [name for name in self.observations if name in self.actions]
        if both:
            what = f"{both[0]} is an observation and an action"
            raise fault(self.table.where, what, "a policy may not see what it is about to decide: name it once")

    def _check_cuts(self) -> None:
        asked, where = self.meaning, self.table.where
        if asked.gap is not None and asked.time is None:
            raise fault(where, "--gap needs the column of the time", "give --time COLUMN")
        if asked.length is not None and asked.horizon is not None:
            raise fault(where, "--length and --horizon both cut the log", "give one of them")
        if all(one is None for one in (asked.episode, asked.gap, asked.length, asked.horizon, asked.terminal)):
            raise fault(
                where,
                "nothing says where episodes end",
                "give --episode COLUMN, --time COLUMN with --gap 60s, --length N, or --horizon N to cut on purpose",
            )

    def dataset(self, name: str) -> Dataset:
        table, asked = self.table, self.meaning
        wanted = list(dict.fromkeys([*self.observations, *self.actions, *self.single.values()]))
        self.read = table.read(wanted)
        n_rows = self.read.num_rows
        if n_rows == 0:
            raise fault(table.where, "has no rows", "record at least one episode")
        self.log = Log(n_rows, table.where, table.row_label)
        self._group()
        observations, parts = self._matrix(self.observations)
        actions, action_parts = self._matrix(self.actions, as_action=True)
        rewards = self._column(asked.reward, "--reward")
        values = {"observations": observations, "actions": actions}
        if asked.missing == "hold":
            self._hold(values)  # without rewards: to hold one would earn it again
        if asked.length is not None:
            self.log.split_to_length(checked_count(asked.length, "length", table.where))
        terminals = np.zeros(len(self.log.rows), bool)
        if asked.terminal is not None:
            marks = flags_of(self._arrow("--terminal"), asked.terminal, table.where, table.row_label)
            terminals = self.log.end_at(marks, asked.terminal)
        if asked.horizon is not None:  # after the ends: a flag that stays up must not look like a label of a piece
            self.log.split_to_horizon(checked_count(asked.horizon, "horizon", table.where))
        values["rewards"] = (rewards if asked.reward_at == "each" else self._paid_at_the_end(rewards))[:, None]
        terminals = self._refuse_or_drop(values, terminals)
        arrays = {key: value[self.log.rows] for key, value in values.items()}
        arrays["rewards"] = arrays["rewards"][:, 0]
        low, high = self._bounds(arrays["actions"], action_parts)
        self._say(arrays, terminals, parts, action_parts)
        return checked_dataset(
            arrays | {"terminals": terminals, "timeouts": self.log.ends & ~terminals},
            table.where,
            name=name,
            env=given_by_user(asked.env),
            time_limit=asked.time_limit,
            action_low=low,
            action_high=high,
            row_label=lambda row: table.row_label(int(self.log.rows[row])),
            observation_parts=parts,
            action_parts=action_parts,
            notes=self.notes,
        )

    # --- columns ---

    def _arrow(self, option: str) -> Any:
        return self.read.column(self.single[option])

    def _column(self, name: str | None, option: str) -> np.ndarray:
        found = numbers_of(self._arrow(option), str(name), self.table.where, self.table.row_label)
        if found.shape[1] != 1:
            raise fault(self.table.where, f"{name} holds lists", f"{option} is one number for each row")
        return found[:, 0]

    def _matrix(self, names: Sequence[str], as_action: bool = False) -> tuple[np.ndarray, Parts]:
        where, label = self.table.where, self.table.row_label
        columns = [numbers_of(self.read.column(name), name, where, label, as_action) for name in names]
        return np.concatenate(columns, axis=1), tuple(
            (name, column.shape[1]) for name, column in zip(names, columns, strict=True)
        )

    # --- episodes ---

    def _group(self) -> None:
        asked, log, where, label = self.meaning, self.log, self.table.where, self.table.row_label
        if asked.episode is not None:
            ids, known = ids_of(self._arrow("--episode"), where)
            if not known.all() and asked.missing == "refuse":
                what = f"{asked.episode} {label(int(np.argmin(known)))} is empty ({int(np.sum(~known)):,} such rows)"
                raise fault(where, what, "fill it, or leave such rows out with --missing drop")
            log.keep(known, f"{asked.episode} is empty")
            if not known.any():
                raise fault(where, f"{asked.episode} is empty in every row", "name another column")
            log.group(ids, asked.episode)
        if asked.time is not None:
            times, are_seconds = times_of(self._arrow("--time"), asked.time, where, label, asked.time_format)
            log.check_times(times, asked.time)
            if asked.gap is not None:
                log.split_at_gaps(times, _seconds(asked.gap, are_seconds, where), asked.time, asked.gap)

    # --- missing cells ---

    def _hold(self, values: dict[str, np.ndarray]) -> None:
        """Fill empty cells with the last value of the same episode. Rows before its first values are left out."""
        log = self.log
        first = np.maximum.accumulate(np.where(log.begins, np.arange(len(log.rows)), 0))
        empty, n_held = np.zeros(len(log.rows), bool), 0
        for value in values.values():
            for column in range(value.shape[1]):
                cells = value[log.rows, column]
                gone = np.isnan(cells)
                if gone.any():
                    last = np.maximum.accumulate(np.where(gone, first, np.arange(len(cells))))
                    value[log.rows, column] = cells[last]
                    n_held += int(np.sum(gone & ~np.isnan(cells[last])))
                    empty |= np.isnan(cells[last])
        if n_held:
            self.notes.append(f"empty cells filled with the last value of their episode: {n_held:,}")
        log.keep(~empty, "the episode has no value yet")
        if not len(log.rows):
            raise fault(self.table.where, "a column has no value in any row", "leave the column out")

    def _refuse_or_drop(self, values: dict[str, np.ndarray], terminals: np.ndarray) -> np.ndarray:
        log, where = self.log, self.table.where
        for key, value in values.items():
            infinite = np.argwhere(np.isinf(value[log.rows]))
            if len(infinite):
                row = self.table.row_label(int(log.rows[infinite[0, 0]]))
                raise fault(where, f"{self._names(key)[infinite[0, 1]]} {row} is infinite", "fix it, or empty the cell")
        empty = {key: np.isnan(value[log.rows]) for key, value in values.items()}
        bad = np.logical_or.reduce([part.any(axis=1) for part in empty.values()])
        if not bad.any():
            return terminals
        if self.meaning.missing != "drop":
            key, at = next((key, np.argwhere(part)[0]) for key, part in empty.items() if part.any())
            remedy = (
                "fix it, or give --missing hold (the last value holds on) or --missing drop (leave the episode out)"
            )
            if key == "rewards":
                remedy += "; if an episode has only one reward, give --reward-at end"
            row = self.table.row_label(int(log.rows[at[0]]))
            what = f"{self._names(key)[at[1]]} {row} is empty or NaN ({int(bad.sum()):,} rows have such cells)"
            raise fault(where, what, remedy)
        kept = log.keep_episodes(bad, "they have empty cells")
        if not len(log.rows):
            raise fault(where, "every episode has empty cells", "give --missing hold, or leave a column out")
        return terminals[kept]

    def _names(self, key: str) -> list[str]:
        """The name of each number of a key's rows."""
        if key == "rewards":
            return [str(self.meaning.reward)]
        names = self.observations if key == "observations" else self.actions
        sizes = [numbers_of(self.read.column(n), n, self.table.where, self.table.row_label).shape[1] for n in names]
        return [name for name, size in zip(names, sizes, strict=True) for _ in range(size)]

    def _paid_at_the_end(self, rewards: np.ndarray) -> np.ndarray:
        """One reward for each episode, in its last row: the last that its rows have."""
        log = self.log
        given = rewards[log.rows]
        at = np.where(np.isnan(given), -1, np.arange(len(given)))
        last = np.maximum.accumulate(at)
        inside = last >= np.maximum.accumulate(np.where(log.begins, np.arange(len(given)), 0))
        paid = np.zeros_like(rewards)
        paid[log.rows[log.ends]] = np.where(inside, given[np.maximum(last, 0)], np.nan)[log.ends]
        return paid

    # --- what is said ---

    def _bounds(self, actions: np.ndarray, parts: Parts) -> tuple[Bound, Bound]:
        asked, where = self.meaning, self.table.where
        if asked.action_low is not None or asked.action_high is not None:
            return asked.action_low, asked.action_high
        names = [name for name, size in parts for _ in range(size)]
        low, high = actions.min(axis=0), actions.max(axis=0)
        infinite = ~(np.isfinite(low) & np.isfinite(high))
        if infinite.any():
            raise fault(
                where, f"{names[int(np.argmax(infinite))]} is not finite in some row", "fix or remove such rows"
            )
        flat = low.astype(np.float32) >= high.astype(np.float32)
        if flat.any():
            column = int(np.argmax(flat))
            what = f"{names[column]} is {low[column]:g} in every row, so there is nothing to decide"
            raise fault(where, what, "leave it out of --actions, or give --action-low and --action-high")
        return low, high

    def _say(self, arrays: dict[str, np.ndarray], terminals: np.ndarray, parts: Parts, action_parts: Parts) -> None:
        asked, log = self.meaning, self.log
        lengths, n_ended = log.lengths, int(terminals.sum())
        notes = [
            f"{self.read.num_rows:,} rows became {len(log.rows):,} steps in {log.n_episodes:,} episodes of "
            f"{lengths.min():,} to {lengths.max():,} steps",
            *log.said,
            f"episodes that ended the task: {n_ended:,}"
            + (f" ({asked.terminal})" if asked.terminal else "")
            + f"; that timed out: {log.n_episodes - n_ended:,}",
            *(f"rows left out: {n:,} ({why})" for n, why in log.dropped),
            f"observations, in this order: {shown_parts(parts)}",
            f"actions: {shown_parts(action_parts)}",
        ]
        if asked.action_low is None and asked.action_high is None:
            low, high = arrays["actions"].min(axis=0), arrays["actions"].max(axis=0)
            shown = ", ".join(f"{a:g} to {b:g}" for a, b in zip(low[:6], high[:6], strict=True))
            more = ", …" if len(low) > 6 else ""
            notes.append(
                f"bounds of the actions: the smallest and largest logged values ({shown}{more}); --action-low and "
                "--action-high set other ones"
            )
        notes.append(
            f"reward: {asked.reward}, "
            + ("once, at the end of each episode" if asked.reward_at == "end" else "in each row")
        )
        used = {*self.observations, *self.actions, *self.single.values()}
        unused = [name for name in self.table.names if name not in used and name]
        if unused:
            notes.append(
                f"not used: {', '.join(unused[:12])}" + (f" and {len(unused) - 12} more" if len(unused) > 12 else "")
            )
        self.notes = [notes[0], *self.notes, *notes[1:]]


def _seconds(gap: str, are_seconds: bool, where: str) -> float:
    """The pause as a number: of seconds if it has a unit. A plain number is in the units of a column of numbers."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", gap)
    if found is None or (found[2] and found[2] not in UNITS) or float(found[1]) <= 0:
        raise fault(where, f"--gap is {gap!r}", f"give a number and a unit ({', '.join(UNITS)}), for example 60s")
    if are_seconds and not found[2]:
        raise fault(where, f"--gap is {gap!r}, without a unit", "give for example 60s or 5min")
    return float(found[1]) * UNITS.get(found[2], 1.0)
