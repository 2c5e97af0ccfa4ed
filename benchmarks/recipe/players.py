"""Environments in worker processes, thousands side by side: the policy acts for all of them in one call a step."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np


class Players:
    """One episode in each of many environments, the same ones for every play.

    Observations, actions and rewards lie in memory that all share, (plays, environments, …).
    """

    def __init__(
        self, n_plays: int, env_ids: list[str], seeds: list[int], sizes: tuple[int, int], n_workers: int
    ) -> None:
        n = len(env_ids)
        lead = (n_plays, n)
        shapes: dict[str, tuple[int, ...]] = {"observations": (*lead, sizes[0]), "actions": (*lead, sizes[1])}
        shapes |= {"rewards": lead, "playing": lead}
        self._memory = {k: SharedMemory(create=True, size=max(1, 8 * int(np.prod(s)))) for k, s in shapes.items()}
        self.arrays = {k: np.ndarray(s, np.float64, self._memory[k].buf) for k, s in shapes.items()}
        self.arrays["playing"][:] = 1.0
        names = {k: (m.name, shapes[k]) for k, m in self._memory.items()}
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._workers = []
        os.environ["JAX_PLATFORMS"], before = "cpu", os.environ.get("JAX_PLATFORMS")
        for w in range(min(n_workers, n)):
            rows = list(range(w, n, n_workers))
            ours, theirs = context.Pipe()
            mine = [(i, env_ids[i], seeds[i]) for i in rows]
            worker = context.Process(target=_work, args=(theirs, names, mine), daemon=True)
            worker.start()
            theirs.close()
            self._pipes.append(ours)
            self._workers.append(worker)
        os.environ.pop("JAX_PLATFORMS") if before is None else os.environ.update(JAX_PLATFORMS=before)

    def go(self, play: int) -> None:
        """Ask every worker to take one step of a play (the first time: to reset). They answer in the order asked."""
        for pipe in self._pipes:
            pipe.send(play)

    def wait(self) -> None:
        for pipe in self._pipes:
            pipe.recv()

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for worker in self._workers:
            worker.join()
        self.arrays.clear()
        for memory in self._memory.values():
            memory.close()
            memory.unlink()


def _work(pipe: Connection, names: dict[str, tuple[str, Any]], mine: list[tuple[int, str, int]]) -> None:
    from droprl.data.simulation import make_env

    memory = {k: SharedMemory(name) for k, (name, _) in names.items()}
    arrays = {k: np.ndarray(shape, np.float64, memory[k].buf) for k, (_, shape) in names.items()}
    observations, actions = arrays["observations"], arrays["actions"]
    rewards, playing = arrays["rewards"], arrays["playing"]
    envs: dict[int, dict[int, Any]] = {}
    while (play := pipe.recv()) is not None:
        if play not in envs:
            envs[play] = {i: make_env(env_id, disable_env_checker=True) for i, env_id, _ in mine}
            for i, _, seed in mine:
                observations[play, i] = envs[play][i].reset(seed=seed)[0]
        else:
            for i in list(envs[play]):
                observation, reward, ended, truncated, _ = envs[play][i].step(actions[play, i].astype(np.float32))
                observations[play, i], rewards[play, i] = observation, float(reward)
                if ended or truncated:
                    playing[play, i] = 0.0
                    envs[play].pop(i).close()
        pipe.send(True)
    for m in memory.values():
        m.close()
