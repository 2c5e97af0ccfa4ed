"""`extend` goes on with a run: to more updates, with more seeds, or both.

Its weights are those of a run that was as long and had these seeds from the start. Where they would differ, because a
schedule depends on the total of updates, it refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from droprl.algorithms import Algorithm
from droprl.algorithms.protocol import Clock
from droprl.data import Dataset, load_dataset
from droprl.data.transitions import Prepared
from droprl.errors import DropError, SettingError
from droprl.files.locks import locked
from droprl.files.plain import clear
from droprl.files.seals import RESTORE, checked_line, digest, read_sealed, sealed
from droprl.files.settings import check_fields, checked_value
from droprl.files.storage import arrays_to_bytes, remove_folder, write_bytes, write_folder
from droprl.train.checkpoints import Checkpoint, header_of, write_checkpoint
from droprl.train.config import RunConfig
from droprl.train.loop import init_seed, keys_of_update
from droprl.train.run import JOINING, Run, identity_of_config, read_config, read_log, write_config
from droprl.train.times import join_times
from droprl.train.training import Shown, seed_list, train_run

MORE = "more-seeds"  # the folder in which seeds train that join the run later
STATE = "state-{}.safetensors"


def extend(
    run: Run | str | Path,
    *,
    steps: int | None = None,
    seeds: int | Sequence[int] | None = None,
    dataset: Dataset | str | Path | None = None,
    progress: bool = True,
    tensorboard: bool = False,
    wandb: str | None = None,
) -> Run:
    """Go on with a run, finished or not. `steps` and `seeds` are the new totals; without them it is only finished.

    The weights have the same bytes as if the run had been asked for all of it at once. If the algorithm has a schedule
    that depends on the total of updates, they would not, and more steps are refused. Checkpoints and lines of the log
    keep their distance. `dataset` says where the run's data is, if it has moved.
    """
    shown = Shown(progress, tensorboard, wandb)
    path = run.path if isinstance(run, Run) else Path(run)
    if (path / JOINING).exists():
        with locked(path):
            _join(path)
    run = Run(path)
    data = _data_of(run, dataset)
    with data.reading():
        prepared = run.config.algorithm.prepare(data)
    config = _with_steps(run, steps, prepared)
    new = _new_seeds(run, seeds)
    early = Shown(progress) if new else shown  # others see the run when all of its seeds are there
    run = train_run(path, config, data, prepared, early, lambda: _change_config(path, config))
    if new:
        more = replace(config, seeds=new)
        if (path / MORE / "config.json").exists() and Run(path / MORE).config != more:
            remove_folder(path / MORE)  # an earlier call asked for something else and was stopped
        train_run(path / MORE, more, data, prepared, Shown(progress))
        with locked(path):
            _prepare_joining(run, Run(path / MORE))
            _join(path)
        run = train_run(path, replace(config, seeds=(*config.seeds, *new)), data, prepared, shown)  # for the outlets
    return run


def _change_config(path: Path, config: RunConfig) -> None:
    if read_config(path) != config:
        write_config(path, config)


def _data_of(run: Run, dataset: Dataset | str | Path | None) -> Dataset:
    found = run.config.data.source if dataset is None else dataset
    if not isinstance(found, Dataset):
        try:
            found = load_dataset(found)
        except DropError as error:
            raise DropError(f"{error} (to go on needs the run's data: say where it is with --dataset)") from error
    if found.fingerprint != run.config.data.fingerprint:
        raise DropError(f"{found.name}: {run.path} was trained on other data: give that data with --dataset")
    return found


def _with_steps(run: Run, steps: int | None, prepared: Prepared) -> RunConfig:
    config = run.config
    if steps is None or steps == config.steps:
        return config
    if steps < config.steps or steps >= 2**31:
        raise SettingError(f"steps is {steps}: {run.path} has {config.steps:,}: give more, and fewer than 2³¹")
    if follows_total(config.algorithm, prepared):
        raise DropError(
            f"{run.path}: {config.algorithm.name} has a schedule that depends on the total of updates, so that "
            f"{steps:,} would differ from a run of {steps:,} from the start: train one with another --out"
        )
    return replace(config, steps=steps, earlier_steps=(*config.earlier_steps, config.steps))


def _new_seeds(run: Run, seeds: int | Sequence[int] | None) -> tuple[int, ...]:
    known = run.config.seeds
    asked = known if seeds is None else seed_list(seeds)
    if not set(asked) >= set(known):
        raise SettingError(f"seeds {list(asked)}: {run.path} has {list(known)}: give all of these, and more")
    return tuple(seed for seed in asked if seed not in known)


def follows_total(algorithm: Algorithm, prepared: Prepared) -> bool:
    """Whether the total of updates takes part in the first state or in an update. It is traced, not declared."""
    key, number = jax.random.key(0), jnp.int32(0)
    state = jax.eval_shape(lambda: init_seed(algorithm, prepared.spec, jnp.uint32(0), jnp.int32(1)))
    places = prepared.transitions.draw(keys_of_update(jnp.uint32(0), number)[0], algorithm.batch_size)
    batch = prepared.transitions.gather(jax.tree.map(np.asarray, places))

    def begin(total: Any) -> Any:
        return algorithm.init(key, prepared.spec, Clock.at(0, total))

    def update(total: Any, state: Any) -> Any:
        return algorithm.update(state, batch, key, Clock(number, total))

    some = jax.ShapeDtypeStruct((), jnp.int32)
    traced = (jax.make_jaxpr(begin)(some), jax.make_jaxpr(update)(some, state))
    return any(_uses(found.jaxpr, found.jaxpr.invars[0]) for found in traced)


def _uses(jaxpr: Any, variable: Any) -> bool:
    return any(taken is variable for equation in jaxpr.eqns for taken in equation.invars) or any(
        given is variable for given in jaxpr.outvars
    )


# --- more seeds ---


def _prepare_joining(run: Run, more: Run) -> None:
    """Write all that the joined run needs to one folder, which appears when it is whole."""
    config = replace(run.config, seeds=(*run.config.seeds, *more.config.seeds))
    others = {checkpoint.step: checkpoint for checkpoint in more.checkpoints()}
    pairs = [(old, others[old.step]) for old in run.checkpoints() if old.scheduled and old.step in others]
    identity, files, headers = identity_of_config(config), {}, []
    for old, new in pairs:
        states = jax.tree.map(lambda *leaves: np.concatenate(leaves), _state(run, old), _state(more, new))
        content = arrays_to_bytes(states)
        files[STATE.format(old.step)] = content
        headers.append(header_of(old.step, content, True, None, identity))
    added = {entry["step"]: entry for entry in more.metrics()}
    entries = [_beside(entry, added[entry["step"]]) for entry in run.metrics() if entry["step"] in added]
    plan = {"seeds": list(config.seeds), "checkpoints": headers}
    files["metrics.jsonl"] = "".join(map(checked_line, entries)).encode()
    write_folder(run.path / JOINING, files | {"plan.json": sealed(plan)})


def _state(run: Run, checkpoint: Checkpoint) -> Any:
    return jax.device_get(checkpoint.load(run.shapes()))


def _beside(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """One entry for the seeds of both. A metric that one of them lacks is not known there."""
    n, m = (max((len(v) for v in one.values() if isinstance(v, list)), default=0) for one in (old, new))
    names = [name for name in {**old, **new} if name != "step"]
    return {"step": old["step"]} | {name: old.get(name, [None] * n) + new.get(name, [None] * m) for name in names}


def _plan(path: Path) -> tuple[RunConfig, list[dict[str, Any]]]:
    """The joined config, and the headers of its checkpoints. Both are checked: the folder may come from elsewhere."""
    where, config = path / JOINING / "plan.json", read_config(path)
    plan = read_sealed(where)
    try:
        headers = list(plan["checkpoints"])
        for header in headers:
            check_fields(Checkpoint, header, ("step", "scheduled", "sha256"), str(where))
        seeds = tuple(checked_value(tuple[int, ...], plan["seeds"], "seeds", str(where), RESTORE))
        joined = replace(config, seeds=seeds)
    except (KeyError, TypeError, ValueError) as error:
        raise DropError(f"{where}: is no plan for joining seeds ({error}): {RESTORE}") from error
    if not set(seeds) >= set(config.seeds):
        raise DropError(f"{where}: lacks seeds of the run: {RESTORE}")
    return joined, headers


def _join(path: Path) -> None:
    """Put the joined run in place of the old one. After a kill, this is done again from its beginning."""
    from_here, folder = path / JOINING, path / "checkpoints"
    config, headers = _plan(path)
    for header in headers:
        content = (from_here / STATE.format(header["step"])).read_bytes()
        if digest(content) != header["sha256"]:
            raise DropError(f"{from_here / STATE.format(header['step'])}: is damaged (its checksum differs): {RESTORE}")
        write_checkpoint(folder, header, content)
    kept = {header["step"] for header in headers}
    for other in folder.iterdir():
        if other.is_dir() and other.name.isdigit() and int(other.name) not in kept:
            remove_folder(other)
    read_log(from_here / "metrics.jsonl")
    write_bytes(path / "metrics.jsonl", (from_here / "metrics.jsonl").read_bytes())
    join_times(path, path / MORE)
    write_config(path, config)
    remove_folder(from_here)
    clear(path / MORE)
