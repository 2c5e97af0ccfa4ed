"""`fit` trains an algorithm on a dataset and writes a run directory. It can resume at any moment."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from droprl.algorithms import ALGORITHMS, Algorithm
from droprl.algorithms.protocol import Logged, State
from droprl.algorithms.saved import algorithm_from_dict, algorithm_to_dict
from droprl.compiler import on_accelerator
from droprl.data import Dataset, load_dataset
from droprl.data.support import fit_support
from droprl.data.transitions import Prepared
from droprl.errors import DropError, SettingError, perhaps
from droprl.files.locks import locked
from droprl.files.memory import available_memory
from droprl.files.names import path_part
from droprl.files.storage import n_bytes, remove_partial
from droprl.interrupts import Interrupted, asked_to_stop
from droprl.progress import TrainProgress
from droprl.train.checkpoints import save_checkpoint
from droprl.train.config import RunConfig, data_config
from droprl.train.disk_loop import DiskLoop
from droprl.train.endings import ending_checks
from droprl.train.loop import AHEAD, Loop, init_seed, means_of, sums_from_json, sums_to_json
from droprl.train.machine import note_machine
from droprl.train.outlets import check_outlets, outlets
from droprl.train.run import MetricsLog, Run, open_run
from droprl.train.times import Stopwatch, forget_partial_times
from droprl.train.verdicts import Verdicts

MOST_SEEDS = 10_000
CALL_SECONDS = 1.0  # the time of one call to the device: progress and Ctrl-C react at this pace


def fit(
    dataset: Dataset | str | Path,
    algorithm: Algorithm | str = "drop",
    *,
    out: str | Path | None = None,
    seeds: int | Sequence[int] = 1,
    steps: int = 100_000,
    checkpoint_every: int | None = None,
    log_every: int | None = None,
    source: str | None = None,
    progress: bool = True,
    tensorboard: bool = False,
    wandb: str | None = None,
) -> Run:
    """Train on a dataset, or on the source of one. If `out` holds this run and it is unfinished, go on with it.

    `seeds` is a number of seeds (0, 1, …) or a list of them. A checkpoint is saved every `checkpoint_every` updates (by
    default a twentieth of the steps) and after the last update. The last six are kept.

    A resumed run has the same bytes as one that never stopped. On a GPU, this needs
    `--xla_gpu_deterministic_ops=true` in `XLA_FLAGS` before JAX starts. The command line sets it.

    `tensorboard` also writes the log for TensorBoard, to the run's folder `tensorboard/`. `wandb` is the project of
    Weights & Biases to which the log also goes. `extend` goes on with a finished run.
    """
    if isinstance(dataset, str | Path):
        source = source or str(dataset)
        dataset = load_dataset(dataset)
    if not 1 <= steps < 2**31:
        raise SettingError(f"steps is {steps}: train for at least one update and fewer than 2³¹")
    for name, every in (("checkpoint_every", checkpoint_every), ("log_every", log_every)):
        if every is not None and every < 1:
            raise SettingError(f"{name} is {every}: give at least 1")
    with dataset.reading():
        resolved, prepared = _prepared(dataset, algorithm)
    config = RunConfig(
        algorithm=resolved,
        data=data_config(dataset, source or dataset.name),
        seeds=seed_list(seeds),
        steps=steps,
        checkpoint_every=checkpoint_every or max(1, steps // 20),
        log_every=log_every or max(1, steps // 100),
    )
    path = Path(out) if out is not None else default_out(dataset, resolved)
    return train_run(path, config, dataset, prepared, Shown(progress, tensorboard, wandb))


class Shown(NamedTuple):
    """Where a training is seen."""

    progress: bool = True
    tensorboard: bool = False
    wandb: str | None = None


def train_run(
    path: Path,
    config: RunConfig,
    dataset: Dataset,
    prepared: Prepared,
    shown: Shown,
    first: Callable[[], None] = lambda: None,
) -> Run:
    """Train what is missing of a run. `first` is called before, under the lock of the folder."""
    _refuse_too_large(config, prepared)
    check_outlets(shown.tensorboard, shown.wandb)
    with locked(path):
        first()
        run = open_run(path, config, prepared, dataset.returns)
        if not run.readable(run.support):  # new, damaged, or of an older version without it
            with dataset.reading():
                run.keep_support(fit_support(dataset, prepared.scaling))
        remove_partial(run.checkpoint_folder)
        forget_partial_times(run.path)
        if not run.finished:
            try:
                _train(run, make_loop(config, prepared, dataset), shown)
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error):
                    raise
                raise DropError(
                    f"{path}: the memory of the device is too small for this training: choose smaller networks, a "
                    "smaller batch_size or fewer seeds; what was saved earlier is intact"
                ) from error
        else:
            with outlets(run, run.metrics(), shown.tensorboard, shown.wandb):
                pass
    return run


def make_loop(config: RunConfig, prepared: Prepared, dataset: Dataset) -> Loop:
    return (DiskLoop if dataset.on_disk else Loop)(config.algorithm, prepared, config.seeds, config.steps)


def default_out(dataset: Dataset, algorithm: Algorithm) -> Path:
    return Path("runs") / path_part(dataset.name.replace("/", "-")) / algorithm.name


def _prepared(dataset: Dataset, algorithm: Algorithm | str) -> tuple[Algorithm, Prepared]:
    """The algorithm and its prepared data. Wrong settings are refused here, before anything is written."""
    if isinstance(algorithm, str) and algorithm not in ALGORITHMS:
        near = perhaps(algorithm, ALGORITHMS)
        raise DropError(f"there is no algorithm {algorithm!r}{near}: choose one of {', '.join(ALGORITHMS)}")
    chosen = ALGORITHMS[algorithm]() if isinstance(algorithm, str) else algorithm
    if isinstance(chosen, type):
        raise DropError(f"{chosen.__name__} is a class: give settings, such as {chosen.__name__}()")
    algorithm_from_dict(algorithm_to_dict(chosen), chosen.name, remedy="change this setting")
    if chosen.batch_size < 1:
        raise DropError(f"{chosen.name}: batch_size is {chosen.batch_size}: give at least 1")
    try:
        resolved = chosen.resolve(dataset)
        prepared = resolved.prepare(dataset)
        # Only shapes, nothing is computed: this finds sizes that fit no network.
        state = jax.eval_shape(lambda: init_seed(resolved, prepared.spec, jnp.uint32(0), jnp.int32(1)))
        jax.eval_shape(resolved.diagnose, state, prepared.probe)
    except (ValueError, TypeError, OverflowError, ZeroDivisionError, MemoryError) as error:
        raise DropError(f"algorithm {chosen.name}: {' '.join(str(error).split())}: change its settings") from error
    # Columns on the disk were checked when they were written. Their checksums are compared at every start.
    columns = () if dataset.on_disk else (dataset.observations, dataset.actions, dataset.rewards)
    if not all(np.isfinite(part).all() for part in (*prepared.scaling, *columns)):
        raise DropError(f"{dataset.name}: holds NaN or infinity: build it with from_arrays, which says where")
    return resolved, prepared


def _refuse_too_large(config: RunConfig, prepared: Prepared) -> None:
    """Refuse a training that cannot fit: a lower bound of what it needs is more than there is."""
    spec, algorithm = prepared.spec, config.algorithm
    state = jax.eval_shape(lambda: init_seed(algorithm, spec, jnp.uint32(0), jnp.int32(1)))
    step = 4 * (2 * spec.observation_size + 2 * spec.action_size + 3)  # bytes of one step in a batch
    side_by_side = len(config.seeds) if on_accelerator() else 1
    states, batches = 2 * n_bytes(state) * len(config.seeds), AHEAD * algorithm.batch_size * step * side_by_side
    stats: dict[str, Any] = jax.local_devices()[0].memory_stats() or {}
    most = stats["bytes_limit"] if "bytes_limit" in stats else available_memory()
    if states + batches > most:
        raise DropError(
            f"{algorithm.name}: training needs more than {(states + batches) / 1e9:,.1f} GB of memory and "
            f"{most / 1e9:,.1f} GB are free: choose smaller networks, a smaller batch_size or fewer seeds"
        )


def seed_list(seeds: int | Sequence[int]) -> tuple[int, ...]:
    if (seeds if isinstance(seeds, int) else len(seeds)) > MOST_SEEDS:
        raise SettingError(f"seeds: at most {MOST_SEEDS:,} train side by side: give fewer")
    listed = tuple(range(seeds)) if isinstance(seeds, int) else tuple(int(s) for s in seeds)
    if not listed or len(set(listed)) != len(listed) or min(listed) < 0 or max(listed) >= 2**32:
        raise SettingError(f"seeds {seeds!r}: give a number of seeds, or different seeds from 0 to 2³² − 1")
    return listed


def _train(run: Run, loop: Loop, shown: Shown) -> None:
    config = run.config
    checkpoints = run.checkpoints()
    step = saved = checkpoints[-1].step if checkpoints else 0
    states = checkpoints[-1].load(loop.shapes()) if checkpoints else loop.init()
    unlogged = checkpoints[-1].unlogged if checkpoints else None
    first = unlogged["first"] if unlogged else step  # the first update of the next line of the log
    sums: Logged = sums_from_json(unlogged["sums"]) if unlogged else {}
    log = MetricsLog(run.path / "metrics.jsonl", step)
    label = f"{config.algorithm.name} × {len(config.seeds)} seed{'s' if len(config.seeds) > 1 else ''}"
    totals = (*config.earlier_steps, config.steps)
    verdicts, watch = Verdicts(config), Stopwatch(run.path, step, len(config.seeds))
    verdicts.recall(e for e in log.entries if e["step"] % config.checkpoint_every == 0 or e["step"] in totals)
    named = {curve.metric: curve.short for curve in config.algorithm.card.curves if curve.short}
    with (
        outlets(run, log.entries, shown.tensorboard, shown.wandb) as others,
        TrainProgress(label, step, config.steps, shown.progress, named) as progress,
        asked_to_stop() as interrupted,
    ):
        if step:
            progress.say(f"resuming {run.path} at update {step:,}")
        for text in _notices(run, log, step, checkpoints[-1].run if checkpoints else None):
            progress.warn(text)
        pace = _Pace()
        while step < config.steps and not interrupted():
            total = min(total for total in totals if total > step)
            boundary = min(_next(step, config.log_every), _next(step, config.checkpoint_every), total)
            began = step
            while step < boundary and not interrupted():
                count = min(boundary - step, pace.count)
                with pace.timed(count):
                    states, new = loop.run(states, step, count)
                sums = jax.tree.map(np.add, sums, new) if sums else new
                step += count
                progress.update(step)
            if step == began:  # stopped before the first update: the last checkpoint is still the newest state
                break
            means = means_of(sums, step - first)
            _refuse_nan(run, config.seeds, step, means)
            at_checkpoint = step % config.checkpoint_every == 0 or step in totals
            if at_checkpoint:
                means |= loop.diagnose(states)
            if step == boundary:
                log.write(entry := {"step": step, **{name: value.tolist() for name, value in means.items()}})
                for other in others:
                    other.write(entry)
                progress.update(step, {name: float(np.mean(value)) for name, value in means.items()})
                first, sums = step, {}
            if at_checkpoint:
                _save(run, log, step, states, scheduled=True)
                watch.note(step)
                saved = step
                for verdict in verdicts.at(step, means):
                    (progress.warn if verdict.holds else progress.retract)(verdict.text)
                if step == config.steps:
                    for text in _undertrained(run):
                        progress.warn(f"update {step:,}: {text}")
        if step > saved:
            unlogged = {"first": first, "sums": sums_to_json(sums)}
            _save(run, log, step, states, scheduled=False, unlogged=unlogged)
            watch.note(step)
        number = interrupted()
    if step < config.steps:
        raise Interrupted(
            f"stopped at update {step:,} of {config.steps:,}, saved in {run.path}: run the same command again to go on",
            number=signal.SIGINT if number is None else number,
        )


def _notices(run: Run, log: MetricsLog, step: int, bound: dict[str, str] | None) -> Iterator[str]:
    """What somebody must know who goes on with a run at this update."""
    if (moved := note_machine(run.path, step)) is not None:
        yield f"{run.path}: {moved}"
    if step and bound is None:
        yield f"{run.path}: an older version saved its checkpoints, which do not say to which settings they belong"
    if lost := log.missing(step, run.config.log_every):
        yield f"{run.path / 'metrics.jsonl'}: lacks {lost:,} entries up to update {step:,}: they stay lost"


def _next(step: int, every: int) -> int:
    return (step // every + 1) * every


def _undertrained(run: Run) -> Iterator[str]:
    log = run.metrics()
    for i, seed in enumerate(run.config.seeds):
        for check in ending_checks(run.config.algorithm.card, log, i):
            if not check.healthy:
                yield f"seed {seed}, {check.meaning} ({check.name} {check.value:.3g})"


def _save(
    run: Run, log: MetricsLog, step: int, states: State, scheduled: bool, unlogged: dict[str, Any] | None = None
) -> None:
    """Check the weights and save them. A loss is measured before its update, so it does not show the last weights."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.device_get(states))]
    finite = [all(np.isfinite(leaf[i]).all() for leaf in leaves) for i in range(len(run.config.seeds))]
    _refuse_nan(run, run.config.seeds, step, {"a weight": np.where(finite, 0.0, np.nan)})
    log.sync()  # first: after a power loss, no checkpoint may stand ahead of its log
    save_checkpoint(run.checkpoint_folder, step, states, scheduled, unlogged, run.identity)


def _refuse_nan(run: Run, seeds: Sequence[int], step: int, means: dict[str, np.ndarray]) -> None:
    for name, value in means.items():
        for seed, finite in zip(seeds, np.isfinite(value), strict=True):
            if not finite:
                raise DropError(
                    f"{run.path}: {name} of seed {seed} is NaN or infinite at update {step:,}: training has diverged; "
                    "earlier checkpoints are unchanged: lower learning_rate and use another --out"
                )


class _Pace:
    """Adjusts the number of updates in one call, so that a call takes about CALL_SECONDS."""

    def __init__(self) -> None:
        self.count = 1

    @contextmanager
    def timed(self, count: int) -> Iterator[None]:
        began = time.perf_counter()
        yield
        took = max(time.perf_counter() - began, 1e-6)
        self.count = int(np.clip(count * CALL_SECONDS / took, 1, 10 * self.count))
