"""Several runs beside each other: what differs between them, when they were trained, with what, and for how long."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from droprl.algorithms.saved import algorithm_to_dict
from droprl.report.contents import Comparison
from droprl.train.machine import Machine, machines_of
from droprl.train.run import Run
from droprl.train.times import sessions_of

UNKNOWN = "–"


def names_of(runs: Sequence[Run]) -> list[str]:
    """What to call each run: its algorithm, if that is enough, and otherwise the part of its folder that differs."""
    algorithms = [run.config.algorithm.name for run in runs]
    if len(set(algorithms)) == len(runs):
        return algorithms
    paths = [os.path.abspath(run.path) for run in runs]
    common = os.path.commonpath(paths)
    short = [os.path.relpath(path, common) for path in paths]
    return [UNKNOWN if name == "." else name for name in short]


def comparison_of(runs: Sequence[Run]) -> Comparison:
    """One row for each run. Of the settings, only those that differ between runs of the same algorithm."""
    settings = [dict(_flat(algorithm_to_dict(run.config.algorithm))) for run in runs]
    differing = [name for name in dict.fromkeys(n for one in settings for n in one) if _differs(name, settings)]
    columns = ("run", "data", "algorithm", *differing, "seeds", "updates", "trained on", "training time")
    rows = []
    for name, run, own in zip(names_of(runs), runs, settings, strict=True):
        sessions, machines = sessions_of(run.path), machines_of(run.path)
        rows.append(
            (
                name,
                run.config.data.name,
                run.config.algorithm.name,
                *(_shown(own[setting]) if setting in own else "" for setting in differing),
                str(len(run.config.seeds)),
                f"{run.config.steps:,}" + ("" if run.finished else ", unfinished"),
                sessions[0].began[:10] if sessions else UNKNOWN,
                duration(sum(session.seconds for session in sessions)) if sessions else UNKNOWN,
                *_versions(machines[-1].machine if machines else None),
            )
        )
    return Comparison((*columns, "droprl", "device"), rows)


def _versions(machine: Machine | None) -> tuple[str, str]:
    """Those that trained its last updates."""
    return (UNKNOWN, UNKNOWN) if machine is None else (f"{machine.droprl}, JAX {machine.jax}", machine.device)


def duration(seconds: float) -> str:
    """With as many digits as mean something: 8.1 s, 3 min 20 s, 2 h 05 min."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def _flat(content: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _differs(name: str, settings: Sequence[dict[str, Any]]) -> bool:
    """Whether two runs of one algorithm have different values."""
    if name == "name":
        return False
    kinds: dict[str, set[str]] = {}
    for own in settings:
        if name in own:
            kinds.setdefault(own["name"], set()).add(repr(own[name]))
    return any(len(values) > 1 for values in kinds.values())


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(map(_shown, value)) if isinstance(value, list | tuple) else str(value)
