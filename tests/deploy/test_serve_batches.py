"""Requests that are answered together: every client gets its own answer, and no client waits for ever."""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import pairwise
from typing import Any

import jax
import numpy as np
import pytest
from helpers.serving import directly, tiny_policy

from droprl.deploy.serve.batching import Batcher, Busy, Ended
from droprl.deploy.serve.engine import Acted, Engine, Rows
from droprl.loaded import LoadedPolicy

STATES = np.random.default_rng(3).normal(size=(6, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def policy() -> LoadedPolicy:
    return tiny_policy()


@pytest.fixture(scope="module")
def engine(policy: LoadedPolicy) -> Engine:
    """Compiled once for all tests."""
    return Engine(policy, 4)


def test_waiting_requests_go_together_and_each_gets_its_own_answer(
    policy: LoadedPolicy, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go, sizes, step = threading.Event(), [], engine.step
    parts = ((0, 1), (1, 2), (2, 4), (0, 4), (5, 6), (3, 4))

    def slow(parts: list[Rows]) -> Any:
        sizes.append([len(part.observations) for part in parts])
        assert let_go.wait(10)
        return step(parts)

    monkeypatch.setattr(engine, "step", slow)
    batcher = Batcher(engine, most_waiting=5)

    async def ask(states: np.ndarray) -> Any:
        return (await batcher.act(Rows(states, engine.start(len(states)), np.zeros(len(states), np.float32)))).actions

    async def all_of_them() -> Any:
        first = asyncio.create_task(ask(STATES[:1]))
        while not sizes:
            await asyncio.sleep(0.01)
        others = [asyncio.create_task(ask(STATES[a:b])) for a, b in parts[1:]]
        await asyncio.sleep(0.05)
        with pytest.raises(Busy, match="5 requests are waiting already"):
            await ask(STATES[:1])
        let_go.set()
        return await asyncio.gather(first, *others)

    answers = asyncio.run(all_of_them())
    batcher.close()
    assert sizes == [[1], [1, 2], [4], [1, 1]]  # at most four rows, and no request overtakes another
    wanted = directly(policy, STATES)
    for got, (a, b) in zip(answers, parts, strict=True):
        np.testing.assert_allclose(got, wanted[a:b], atol=1e-5)


def test_one_by_one_other_rows_change_no_bit(policy: LoadedPolicy) -> None:
    engine = Engine(policy, 2, one_by_one=True)
    rows = [Rows(STATES[i : i + 1], engine.start(1), np.zeros(1, np.float32)) for i in range(2)]
    for n in (1, 2):
        answers = np.concatenate([acted.actions for acted in engine.step(rows[:n])])
        np.testing.assert_array_equal(answers, directly(policy, STATES[:n]))


def test_an_error_goes_to_those_who_asked_and_the_next_request_is_answered(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = Batcher(engine)
    rows = Rows(STATES[:1], engine.start(1), np.zeros(1, np.float32))

    def fails(parts: list[Rows]) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(engine, "step", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        asyncio.run(batcher.act(rows))
    monkeypatch.undo()
    assert asyncio.run(batcher.act(rows)).actions.shape == (1, 2)
    batcher.close()


def test_under_load_nothing_is_compiled(engine: Engine) -> None:
    rows = [Rows(STATES[i : i + 1], engine.start(1), np.zeros(1, np.float32)) for i in range(4)]
    engine.step(rows)
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration_secs, **_: compiled.append(event) if "backend_compile" in event else None
    )
    for n in range(1, 5):
        engine.step(rows[:n])
    assert compiled == []


# --- sessions in one batch ---

EPISODES = (1, 2, 1)  # of three sessions
SEEN = [np.random.default_rng(n).normal(size=(7, rows, 4)).astype(np.float32) for n, rows in enumerate(EPISODES)]


@pytest.fixture(scope="module", params=[{"rule": "grad"}, {"reinference_interval": 2}], ids=str)
def remembering(request: pytest.FixtureRequest, policy: LoadedPolicy) -> Engine:
    """The engine of a policy whose action depends on the memory of its session and on its clock."""
    return Engine(policy.adapted(step_size=0.5, ascent_steps=4, **request.param), 4)


@pytest.fixture(scope="module")
def alone(remembering: Engine) -> list[list[tuple[np.ndarray, Any]]]:
    """Every session, played by its own policy: actions and memory after each step."""
    played = []
    for seen in SEEN:
        own = remembering.loaded.adapted()
        played.append([(own.act(states), jax.device_get(own._carry)) for states in seen])
    for ours, others in pairwise(played):  # otherwise nobody would notice a mix-up
        assert np.abs(ours[2][1].inferred.z[0] - others[2][1].inferred.z[0]).max() > 1e-2
    return played


def assert_same(acted: Acted, wanted: tuple[np.ndarray, Any]) -> None:
    np.testing.assert_allclose(acted.actions, wanted[0], atol=1e-5)
    jax.tree.map(lambda got, want: np.testing.assert_allclose(got, want, atol=1e-5), acted.memory, wanted[1])


def rows_of(session: int, step: int, memory: Any) -> Rows:
    return Rows(SEEN[session][step], memory, np.zeros(EPISODES[session], np.float32))


def test_sessions_in_one_call_keep_their_own_memory(remembering: Engine, alone: Any) -> None:
    memory, clocks = [remembering.start(n) for n in EPISODES], [0, 0, 0]
    for together in ([0], [0, 1], [0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 1], [2]):
        parts = [rows_of(n, clocks[n], memory[n]) for n in together]
        for n, acted in zip(together, remembering.step(parts), strict=True):
            assert_same(acted, alone[n][clocks[n]])
            memory[n], clocks[n] = acted.memory, clocks[n] + 1
    assert clocks == [5, 5, 5]


def test_sessions_that_ask_at_the_same_time_keep_their_own_memory(
    remembering: Engine, alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, calls = remembering.step, []

    def slow(parts: list[Rows]) -> list[Acted]:
        calls.append([int(part.memory.step[0]) for part in parts])
        time.sleep(0.02)
        return step(parts)

    monkeypatch.setattr(remembering, "step", slow)
    batcher = Batcher(remembering)

    async def play(session: int) -> None:
        memory = remembering.start(EPISODES[session])
        await asyncio.sleep(0.05 * session)
        for clock in range(7):
            acted = await batcher.act(rows_of(session, clock, memory))
            assert_same(acted, alone[session][clock])
            memory = acted.memory

    async def all_of_them() -> None:
        await asyncio.gather(*map(play, range(3)))

    asyncio.run(all_of_them())
    batcher.close()
    assert any(len(set(clocks)) > 1 for clocks in calls)  # some sessions went together with different clocks


class Held:
    """Holds the engine's calls back until `go` is set, and notes their rows."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self._begun, self._step = threading.Event(), threading.Event(), engine.step
        self.rows: list[int] = []
        monkeypatch.setattr(engine, "step", self._held)

    async def begins(self) -> None:
        assert await asyncio.to_thread(self._begun.wait, 10)

    def _held(self, parts: list[Rows]) -> list[Acted]:
        self.rows.append(sum(len(part.observations) for part in parts))
        self._begun.set()
        assert self.go.wait(10)
        return self._step(parts)


@pytest.fixture
def held(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(engine, monkeypatch)


# --- nobody waits for ever ---


def one_row(engine: Engine) -> Rows:
    return Rows(STATES[:1], engine.start(1), np.zeros(1, np.float32))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_if_the_thread_dies_all_waiting_requests_get_an_error(engine: Engine) -> None:
    waiting = threading.Event()

    def dies(rows: int) -> None:
        assert waiting.wait(10)
        raise SystemError("the counter broke")

    batcher = Batcher(engine, on_batch=dies)

    async def ask() -> list[Any]:
        asked = [asyncio.create_task(batcher.act(one_row(engine))) for _ in range(6)]
        await asyncio.sleep(0.1)
        waiting.set()
        return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 10)

    assert [type(answer) for answer in asyncio.run(ask())] == [Ended] * 6
    assert batcher.trouble is not None
    with pytest.raises(Ended, match="no longer answers"):
        asyncio.run(asyncio.wait_for(batcher.act(one_row(engine)), 10))
    batcher.close()


def test_close_answers_those_who_wait_and_takes_no_more(engine: Engine, held: Held) -> None:
    batcher = Batcher(engine, most_waiting=1)

    async def ask() -> list[Any]:
        first = asyncio.create_task(batcher.act(one_row(engine)))
        await held.begins()
        second = asyncio.create_task(batcher.act(one_row(engine)))  # the queue is full
        await asyncio.sleep(0.05)
        closing = asyncio.create_task(asyncio.to_thread(batcher.close))
        await asyncio.sleep(0.05)
        with pytest.raises(Ended, match="no longer answers"):
            await batcher.act(one_row(engine))
        held.go.set()
        return await asyncio.wait_for(asyncio.gather(first, second, closing), 10)

    first, second, closed = asyncio.run(ask())
    np.testing.assert_array_equal(first.actions, second.actions)
    assert closed


# --- nobody takes everything ---


def test_work_of_a_client_that_has_gone_is_dropped_before_it_is_computed(engine: Engine, held: Held) -> None:
    batcher = Batcher(engine, most_waiting=4)

    async def ask() -> Any:
        first = asyncio.create_task(batcher.act(one_row(engine)))
        await held.begins()
        gone = [asyncio.create_task(batcher.act(one_row(engine), "gone")) for _ in range(4)]
        await asyncio.sleep(0.05)
        for task in gone:
            task.cancel()
        last = asyncio.create_task(batcher.act(one_row(engine), "stays"))  # those who have gone make room
        await asyncio.sleep(0.05)
        held.go.set()
        return await asyncio.wait_for(asyncio.gather(first, last), 10)

    asyncio.run(ask())
    batcher.close()
    assert held.rows == [1, 1]


def test_clients_take_turns_and_one_client_cannot_fill_the_queue(engine: Engine, held: Held) -> None:
    batcher = Batcher(engine, most_waiting=5, most_of_a_client=3)
    four = Rows(STATES[:4], engine.start(4), np.zeros(4, np.float32))
    done: list[str] = []

    async def named(name: str, rows: Rows, client: str) -> None:
        await batcher.act(rows, client)
        done.append(name)

    async def ask() -> None:
        asked = [asyncio.create_task(named("first", four, "greedy"))]
        await held.begins()
        asked += [asyncio.create_task(named(f"greedy {n}", four, "greedy")) for n in range(3)]
        await asyncio.sleep(0.05)
        with pytest.raises(Busy, match="3 requests of yours are waiting already"):
            await batcher.act(four, "greedy")
        asked += [asyncio.create_task(named("modest", one_row(engine), "modest"))]
        await asyncio.sleep(0.05)
        held.go.set()
        await asyncio.wait_for(asyncio.gather(*asked), 10)

    asyncio.run(ask())
    batcher.close()
    assert done == ["first", "greedy 0", "modest", "greedy 1", "greedy 2"]


def test_a_call_that_does_not_come_back_is_known_and_may_still_come_back(engine: Engine, held: Held) -> None:
    batcher = Batcher(engine, longest_call=0.2)

    async def ask() -> Any:
        first = asyncio.create_task(batcher.act(one_row(engine)))
        await held.begins()
        assert batcher.trouble is None
        await asyncio.sleep(0.3)
        assert "has not come back from a call" in str(batcher.trouble)
        with pytest.raises(Ended, match="has not come back"):
            await batcher.act(one_row(engine))
        assert not batcher.close(0.01)
        held.go.set()
        return await first

    assert asyncio.run(ask()).actions.shape == (1, 2)
    assert batcher.close(10)
