"""Thousands of environments side by side, in worker processes. One call of the policy acts for all of them."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

Task = tuple[str, int | None]  # the Gymnasium id, and the time limit if it is not the environment's own


class Players:
    """Environments that play one episode each. A later play may use only the first ones, for new episodes.

    Observations, actions and rewards are in memory that all processes share.
    """

    def __init__(self, tasks: list[Task], seeds: list[int], sizes: tuple[int, int], n_workers: int) -> None:
        n = len(tasks)
        shapes = {"observations": (n, sizes[0]), "actions": (n, sizes[1]), "rewards": (n,), "playing": (n,)}
        self._memory = {k: SharedMemory(create=True, size=8 * int(np.prod(s))) for k, s in shapes.items()}
        self.arrays = {k: np.ndarray(s, np.float64, self._memory[k].buf) for k, s in shapes.items()}
        names = {k: (memory.name, shapes[k]) for k, memory in self._memory.items()}
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._workers = []
        before = os.environ.get("JAX_PLATFORMS")
        os.environ["JAX_PLATFORMS"] = "cpu"  # the workers do not use the device
        for w in range(min(n_workers, n)):
            ours, theirs = context.Pipe()
            mine = [(i, tasks[i], seeds[i]) for i in range(w, n, n_workers)]
            worker = context.Process(target=_work, args=(theirs, names, mine), daemon=True)
            worker.start()
            theirs.close()
            self._pipes.append(ours)
            self._workers.append(worker)
        if before is None:
            del os.environ["JAX_PLATFORMS"]
        else:
            os.environ["JAX_PLATFORMS"] = before

    def reset(self, n: int) -> None:
        """Begin a new episode in the first n environments."""
        self._ask(n)

    def step(self) -> None:
        """Take one step in every environment whose episode is not over."""
        self._ask(0)

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for worker in self._workers:
            worker.join()
        self.arrays.clear()
        for memory in self._memory.values():
            memory.close()
            memory.unlink()

    def _ask(self, message: int) -> None:
        for pipe in self._pipes:
            pipe.send(message)
        for pipe in self._pipes:
            pipe.recv()


def _work(pipe: Connection, names: dict[str, tuple[str, Any]], mine: list[tuple[int, Task, int]]) -> None:
    from droprl.environments.simulation import make_env

    memory = {k: SharedMemory(name) for k, (name, _) in names.items()}
    arrays = {k: np.ndarray(shape, np.float64, memory[k].buf) for k, (_, shape) in names.items()}
    observations, actions = arrays["observations"], arrays["actions"]
    rewards, playing = arrays["rewards"], arrays["playing"]
    envs = {i: make_env(*task, disable_env_checker=True) for i, task, _ in mine}
    active: list[int] = []
    while (message := pipe.recv()) is not None:
        if message:
            for i, _, seed in mine:
                playing[i], rewards[i] = float(i < message), 0.0
                if i < message:
                    observations[i] = envs[i].reset(seed=seed)[0]
            active = [i for i, _, _ in mine if i < message]
        else:
            for i in list(active):
                observation, reward, ended, truncated, _ = envs[i].step(actions[i].astype(np.float32))
                observations[i], rewards[i] = observation, float(reward)
                if ended or truncated:
                    playing[i] = 0.0
                    active.remove(i)
        pipe.send(True)
    for m in memory.values():
        m.close()
