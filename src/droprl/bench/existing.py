"""Results that a folder already holds: other settings are refused, and results of other parts stay in its records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from droprl.algorithms.saved import algorithm_to_dict
from droprl.bench.results import Bench, load_bench
from droprl.bench.suite import Method, Suite
from droprl.errors import DropError
from droprl.files.names import file_name
from droprl.files.settings import differences
from droprl.train.checkpoints import KEEP

SIZES = ("steps", "seeds", "episodes", "protocol")  # fields of a suite that are the same for everything in its folder


def with_recorded(bench: Bench) -> Bench:
    """The part of the suite that is asked for, with the other tasks, methods and plays that the folder holds."""
    recorded, asked = _recorded(bench.out), bench.asked
    if recorded is None:
        return replace(bench, suite=asked, tasks=None, methods=None)
    before = recorded.suite
    tasks = {*asked.tasks, *(t for t in before.tasks if any(has_results(recorded, t, m) for m in before.methods))}
    methods = {m.name: m for m in before.methods if any(has_results(recorded, t, m) for t in before.tasks)}
    methods |= {m.name: m for m in asked.methods}
    plays = {p: given for p, given in before.plays.items() if f"{file_name(p)}.json" in _played(bench)}
    suite = asked.changed(
        tasks=tuple(t for t in _in_order(bench.suite.tasks, before.tasks) if t in tasks),
        methods=tuple(methods[name] for name in _in_order(_names(bench.suite), _names(before)) if name in methods),
        plays=asked.plays | {p: given for p, given in plays.items() if p not in asked.plays},
    )
    return replace(bench, suite=suite, tasks=None, methods=None)


def refuse_other_settings(bench: Bench) -> None:
    """In one folder a method's name stands for one set of settings, whichever part of the suite is run now."""
    recorded = _recorded(bench.out)
    if recorded is not None and recorded.preset != bench.preset and _has_any(recorded):
        raise DropError(
            f"{bench.out}: holds results of preset {recorded.preset}, not of {bench.preset}: choose another --out, "
            f"or give --preset {recorded.preset}"
        )
    if recorded is not None and _has_any(recorded, outside=bench.asked):
        found, asked = ({name: getattr(suite, name) for name in SIZES} for suite in (recorded.suite, bench.suite))
        if odd := differences(found, asked):
            raise DropError(
                f"{bench.out}: holds results that this command does not run and that have other sizes "
                f"({'; '.join(odd)}): choose another --out, or run the whole suite"
            )
    for task, method in ((t, m) for t in bench.asked.tasks for m in bench.asked.methods):
        _refuse_fewer_episodes(bench, task, method)
    for method in bench.asked.methods:
        for task in _in_order(bench.asked.tasks, () if recorded is None else recorded.suite.tasks):
            if odd := _other_settings(bench, task, method, recorded):
                shown = "; ".join(odd[:3]) + (f"; and {len(odd) - 3} more" if len(odd) > 3 else "")
                raise DropError(
                    f"{bench.out}: holds {task}, {method.name} with other settings ({shown}): choose another --out, or "
                    "another name for the method"
                )


def _refuse_fewer_episodes(bench: Bench, task: str, method: Method) -> None:
    """What was played stays, unless at least as many episodes replace it."""
    checkpoints = KEEP if bench.suite.protocol == "paper" else 1
    asked = bench.suite.seeds * bench.suite.episodes * checkpoints
    for play in bench.suite.plays_of(method):
        found = bench.evaluation(task, method, play)
        saved = 0 if found is None else sum(len(result["returns"]) for result in found["results"])
        if saved > asked:
            raise DropError(
                f"{bench.play_path(task, method, play)}: has {saved} episodes, and this command would play "
                f"only {asked} instead: ask for at least as many, or choose another --out"
            )


def has_results(bench: Bench, task: str, method: Method) -> bool:
    run, played = bench.run_path(task, method), bench.play_folder(task, method)
    return run.is_dir() or bool(bench.files(run) or bench.files(played))


def _played(bench: Bench) -> set[str]:
    """The names of all files of plays, over all tasks and methods."""
    tasks = [bench.out / "plays" / name for name in bench.folders(bench.out / "plays")]
    return {name for task in tasks for method in bench.folders(task) for name in bench.files(task / method)}


def _has_any(bench: Bench, outside: Suite | None = None) -> bool:
    known = {(t, name) for t in outside.tasks for name in _names(outside)} if outside else set()
    cells = ((t, m) for t in bench.suite.tasks for m in bench.suite.methods if (t, m.name) not in known)
    return any(has_results(bench, task, method) for task, method in cells)


def _other_settings(bench: Bench, task: str, method: Method, recorded: Bench | None) -> list[str]:
    """The settings that differ, as `name found → asked`. Found are those of the run, or without it of suite.json."""
    asked = algorithm_to_dict(method.algorithm(bench.preset, bench.suite.name))
    if (run := bench.run(task, method)) is not None:
        found = {"steps": run.config.steps, "seeds": len(run.config.seeds)}
        odd = differences(found, {"steps": bench.suite.steps_of(method), "seeds": bench.suite.seeds})
        may_lower = run.config.algorithm.card.may_lower
        return _differences(algorithm_to_dict(run.config.algorithm), asked, may_lower) + odd
    earlier = None if recorded is None else next((m for m in recorded.suite.methods if m.name == method.name), None)
    if recorded is None or earlier is None or not has_results(bench, task, method):
        return []
    return differences(algorithm_to_dict(earlier.algorithm(recorded.preset, recorded.suite.name)), asked)


def _differences(found: dict[str, Any], asked: dict[str, Any], may_lower: tuple[str, ...]) -> list[str]:
    """The settings that differ. One that is left open (None) was filled in from the data and counts as equal."""
    fixed = {name: value for name, value in asked.items() if value is not None}
    for name in set(may_lower) & set(fixed):
        fixed[name] = min(fixed[name], found[name])
    return differences({name: found.get(name) for name in fixed}, fixed)


def _recorded(out: Path) -> Bench | None:
    """The suite as suite.json in the folder has it; None if there is none."""
    return load_bench(out) if (out / "suite.json").exists() else None


def _names(suite: Suite) -> list[str]:
    return [method.name for method in suite.methods]


def _in_order(first: Any, then: Any) -> list[str]:
    return list(dict.fromkeys([*first, *then]))
