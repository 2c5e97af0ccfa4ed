"""Run a suite's cells: in this process, in processes of their own on this machine, or on a Ray cluster.

The results of a cell do not depend on where it runs. A cell that fails is reported at the end and does not stop the
others. A cell whose process was killed starts again and goes on from its last checkpoint.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from droprl.bench.cells import Cell, cells_of, is_done, run_cell
from droprl.bench.existing import refuse_other_settings, with_recorded
from droprl.bench.packing import unpack
from droprl.bench.results import Bench
from droprl.bench.task_data import task_source
from droprl.errors import DropError, reason
from droprl.interrupts import ended_by_signals

ATTEMPTS = 3  # how often a cell is started if its process is killed
Runner = Callable[[Bench, Sequence[Cell]], dict[Cell, str]]  # runs the cells; returns which failed, and why


def run_suite(bench: Bench, runner: Runner | None = None) -> None:
    """Run what is missing, by default one cell after another in this process. Other results stay in the records."""
    missing = missing_cells(bench)
    if missing:
        unpack(bench.out)
    whole = with_recorded(bench)
    whole.write_suite()
    failed = (runner or here)(bench, missing)
    whole.write_suite()  # now with the data of every cell
    whole.write_episodes()
    if failed:
        reasons = "; ".join(f"{cell}: {reason}" for cell, reason in failed.items())
        raise DropError(
            f"{bench.out}: {len(failed)} of {len(missing)} failed ({reasons}): the rest is done. Repair this "
            "and run the same command again: it runs only what failed"
        )


def missing_cells(bench: Bench) -> list[Cell]:
    """The cells that are not done. A cell without data or with a wrong setting is refused here."""
    refuse_other_settings(bench)
    missing = [cell for cell in cells_of(bench) if not is_done(bench, cell)]
    for cell in missing:
        cell.method.algorithm(bench.preset, bench.suite.name)
        task_source(cell.task, bench.data)
    return missing


def here(bench: Bench, cells: Sequence[Cell]) -> dict[Cell, str]:
    return {cell: reason for cell in cells if (reason := _attempt(bench, cell)) is not None}


# --- processes on this machine ---


@dataclass(frozen=True)
class InProcesses:
    """One process for each cell, `workers` of them at once. If one of them dies, the others go on."""

    workers: int = 1

    def __call__(self, bench: Bench, cells: Sequence[Cell]) -> dict[Cell, str]:
        if self.workers < 1:
            raise DropError(f"workers is {self.workers}: give at least 1")
        waiting, attempts, failed = deque(cells), Counter[Cell](), dict[Cell, str]()
        running: dict[Connection, tuple[BaseProcess, Cell]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self.workers:
                    cell = waiting.popleft()
                    running.update([_started(bench, cell)])
                answering = wait(list(running))
                for pipe in [p for p in running if p in answering]:
                    process, cell = running.pop(pipe)
                    died, reason = _answer(pipe)
                    process.join()
                    attempts[cell] += 1
                    if died and attempts[cell] < ATTEMPTS:
                        waiting.append(cell)
                    elif died or reason is not None:
                        failed[cell] = reason or f"its process ended with code {process.exitcode}, {ATTEMPTS} times"
        finally:
            for process, _ in running.values():  # of those that still work: they save and stop
                process.terminate()
            for process, _ in running.values():
                process.join()
        return failed


def _started(bench: Bench, cell: Cell) -> tuple[Connection, tuple[BaseProcess, Cell]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(theirs, os.getpid(), bench, cell), name=str(cell))
    process.start()
    theirs.close()
    return ours, (process, cell)


def _answer(pipe: Connection) -> tuple[bool, str | None]:
    """(whether the process died without an answer, why the cell failed)."""
    with pipe:
        try:
            return False, pipe.recv()
        except EOFError:
            return True, None


def _work(pipe: Connection, parent: int, bench: Bench, cell: Cell) -> None:
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with suppress(KeyboardInterrupt), ended_by_signals():  # the run is saved: the same command goes on
        pipe.send(_attempt(bench, cell))


def _end_with(parent: int) -> None:
    """End this process when its parent is gone: a suite that is killed leaves no process behind."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


# --- Ray ---


@dataclass(frozen=True)
class OnRay:
    """One Ray task for each cell. All machines must see OUT and the data under the same path."""

    address: str = "local"  # of a cluster; "local" starts a new Ray on this machine
    cpus: float = 1.0
    gpus: float = 0.0

    def __call__(self, bench: Bench, cells: Sequence[Cell]) -> dict[Cell, str]:
        try:
            import ray
        except ImportError as error:
            raise DropError("Ray is not installed: pip install 'droprl[ray]'") from error
        variables = {name: os.environ[name] for name in ("XLA_FLAGS", "JAX_PLATFORMS") if name in os.environ}
        began = not ray.is_initialized()
        if began:
            _refuse_silence(self.address)
            try:
                ray.init(
                    self.address, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": variables}
                )
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise DropError(f"{self.address}: no Ray cluster answers there ({error}): check the address") from error
        try:
            return self._run(ray, bench, cells)
        finally:
            if began:
                ray.shutdown()

    def _run(self, ray: Any, bench: Bench, cells: Sequence[Cell]) -> dict[Cell, str]:
        has = ray.cluster_resources()
        for kind, asked in (("CPU", self.cpus), ("GPU", self.gpus)):
            if asked > has.get(kind, 0.0):
                raise DropError(
                    f"a run asks for {asked:g} {kind}s and the cluster has {has.get(kind, 0.0):g}: ask for fewer"
                )
        bench = replace(bench, out=bench.out.absolute(), data=None if bench.data is None else bench.data.absolute())
        # One process for each cell (max_calls): the peak memory is then that of one cell.
        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_retries": ATTEMPTS - 1, "max_calls": 1}
        task = ray.remote(**options)(_attempt_there)
        waiting = {task.remote(bench, cell): cell for cell in cells}
        failed: dict[Cell, str] = {}
        while waiting:
            for ref in ray.wait(list(waiting))[0]:
                cell = waiting.pop(ref)
                try:
                    reason = ray.get(ref)
                except ray.exceptions.RayError as error:
                    reason = " ".join(str(error).split())
                if reason is not None:
                    failed[cell] = reason
        return failed


def _refuse_silence(address: str) -> None:
    """Refuse an address where nothing answers. Ray itself would end this process with a message of its own."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10.0).close()
        except (OSError, OverflowError) as error:
            raise DropError(
                f"{address}: no Ray cluster answers there ({reason(error)}): check the address, or give --ray without "
                "one to start Ray on this machine"
            ) from error


def _attempt_there(bench: Bench, cell: Cell) -> str | None:
    if not (bench.out / "suite.json").exists():
        return f"{bench.out} is not on the machine that runs this cell: use a folder that all machines share"
    return _attempt(bench, cell)


def _attempt(bench: Bench, cell: Cell) -> str | None:
    """Run the cell; returns why it failed, or None."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # a GPU may be shared
    try:
        run_cell(bench, cell)
    except DropError as error:
        return str(error)
    return None
