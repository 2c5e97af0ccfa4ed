"""For the tests of `drop serve`: policies that fit a maze, services for them, and clients."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from fastapi import FastAPI
from fastapi.testclient import TestClient

from droprl.algorithms.protocol import Clock
from droprl.deploy.serve.app import Limits, Service, make_app
from droprl.deploy.serve.server import Server
from droprl.loaded import LoadedPolicy, Origin
from helpers.training import learnable_dataset, tiny

MAZE = "droprl/maze2d-umaze-v0"


def tiny_policy(algorithm: str = "drop") -> LoadedPolicy:
    """A policy without training, which is enough for the service. Its sizes are those of a maze."""
    return _untrained(algorithm).adapted()  # a copy with its own memory


@functools.cache
def _untrained(algorithm: str) -> LoadedPolicy:
    seen = np.random.default_rng(1).normal(size=(240, 4))
    changes: dict[str, Any] = {"observations": seen, "next_observations": np.roll(seen, -1, axis=0)}
    dataset = learnable_dataset(**changes)
    made: Any = tiny(algorithm).resolve(dataset)
    prepared = made.prepare(dataset)
    policy = jax.jit(lambda: made.policy(made.init(jax.random.key(0), prepared.spec, Clock.at(0, 1))))()
    origin = Origin("learnable", MAZE, (0.0, 100.0), 0, 0)
    return LoadedPolicy(policy, made, prepared.spec, prepared.scaling, origin, "tiny")


def directly(policy: LoadedPolicy, states: np.ndarray) -> np.ndarray:
    """The policy's actions. Each state is the first one of an episode."""
    actions = []
    for state in states:
        policy.reset()
        actions.append(policy.act(state))
    return np.array(actions)


@contextmanager
def client_of(policy: LoadedPolicy, limits: Limits, token: str | None = None) -> Iterator[TestClient]:
    """The application without a network. `client.service` is the service behind it."""
    service = Service(policy, limits)
    client: Any = TestClient(make_app(service, token), base_url="http://localhost")
    client.service = service
    try:
        yield client
    finally:
        service.close()


@contextmanager
def listening(
    app: FastAPI, service: Service, share: float = 1.0, proxy: str | None = None
) -> Iterator[tuple[str, Server]]:
    """The application on its own port, in a thread: its address, and the server."""
    ready, port = threading.Event(), [0]

    def told(number: int) -> None:
        port[0] = number
        ready.set()

    server = Server(app, "127.0.0.1", 0, told, service.stage.close, share, proxy)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert ready.wait(30)
        yield f"http://127.0.0.1:{port[0]}", server
    finally:
        server.should_exit = True
        thread.join(30)
