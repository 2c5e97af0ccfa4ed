"""The service without a network: right answers, sessions, batches, and nothing odd reaches the policy."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from serving import client_of, tiny_policy
from training import refusal

from droprl.deploy.serve.app import Limits, Service, make_app
from droprl.deploy.serve.batching import Batcher, Busy
from droprl.deploy.serve.engine import Engine, Rows, remembers
from droprl.deploy.serve.server import check_address
from droprl.deploy.serve.sessions import Sessions
from droprl.policy import LoadedPolicy

STATES = np.random.default_rng(3).normal(size=(6, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def policy() -> LoadedPolicy:
    return tiny_policy()


@pytest.fixture(scope="module")
def client(policy: LoadedPolicy) -> Iterator[TestClient]:
    with client_of(policy, Limits(rows=4)) as made:
        yield made


@pytest.fixture(scope="module")
def service(client: TestClient) -> Service:
    """What stands behind `client`: compiled once for all tests."""
    return client.service


def directly(policy: LoadedPolicy, states: np.ndarray) -> np.ndarray:
    """Each state as the first of an episode."""
    actions = []
    for state in states:
        policy.reset()
        actions.append(policy.act(state))
    return np.array(actions)


# --- acting ---


def test_one_observation_gets_the_policys_own_action(client: TestClient, policy: LoadedPolicy) -> None:
    for state, action in zip(STATES, directly(policy, STATES), strict=True):
        answer = client.post("/act", json={"observation": state.tolist()}).json()
        np.testing.assert_array_equal(np.array(answer["action"], np.float32), action)
        assert np.isfinite(answer["score"])
        assert 0 <= answer["sub_task"] < 10
        assert len(answer["embedding"]) == 5


def test_a_batch_gets_a_row_for_each(client: TestClient, policy: LoadedPolicy) -> None:
    answer = client.post("/act", json={"observation": STATES[:3].tolist()}).json()
    np.testing.assert_allclose(answer["actions"], directly(policy, STATES[:3]), atol=1e-5)
    assert len(answer["embeddings"]) == len(answer["scores"]) == len(answer["sub_tasks"]) == 3
    one_row = client.post("/act", json={"observation": STATES[:1].tolist()}).json()
    assert list(one_row) == list(answer)  # a list of one is answered with a list of one


def test_a_policy_that_infers_nothing_answers_with_actions_alone() -> None:
    policy = tiny_policy("bc")
    assert not remembers(policy)
    with client_of(policy, Limits(rows=1)) as client:
        answer = client.post("/act", json={"observation": STATES[0].tolist()}).json()
        assert list(answer) == ["action"]
        np.testing.assert_array_equal(np.array(answer["action"], np.float32), directly(policy, STATES[:1])[0])


GOOD = [0.0] * 4


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ('{"observation": [0, 0, 0]}', 422, "observation: list should have at least 4 items"),
        ('{"observation": [0, 0, 0, 0, 0]}', 422, "observation: list should have at most 4 items"),
        ('{"observation": [0, 0, 0, NaN]}', 422, "observation.3: input should be a finite number"),
        ('{"observation": [0, 0, -Infinity, 0]}', 422, "observation.2: input should be a finite number"),
        ('{"observation": [1e999, 0, 0, 0]}', 422, "observation.0: input should be a finite number"),
        ('{"observation": [1e10, 0, 0, 0]}', 422, "observation.0: input should be less than"),
        ('{"observation": [' + "9" * 4000 + ", 0, 0, 0]}", 422, "observation.0"),
        ('{"observation": ["0", 0, 0, 0]}', 422, "observation.0: input should be a valid number"),
        ('{"observation": [true, 0, 0, 0]}', 422, "observation.0: input should be a valid number"),
        ('{"observation": [null, 0, 0, 0]}', 422, "observation.0: input should be a valid number"),
        ('{"observation": "north"}', 422, "observation: input should be a valid array"),
        ('{"observation": []}', 422, "observation: list should have at least 4 items"),
        ('{"observation": [[]]}', 422, "observation.0: list should have at least 4 items"),
        ('{"observation": [[0, 0, 0, 0], [0]]}', 422, "observation.1: list should have at least 4 items"),
        ('{"observation": [[0, 0, 0, 0]' + ", [0, 0, 0, 0]" * 4 + "]}", 422, "should have at most 4 items"),
        ('{"observation": [[[0, 0, 0, 0]]]}', 422, "observation.0"),
        ('{"observation": [0, 0, 0, 0], "rule": "best"}', 422, "rule: extra inputs are not permitted"),
        ("{}", 422, "observation: field required"),
        ("[]", 422, "the body: input should be an object"),
        ("", 422, "the body is not JSON"),
        ("hello", 422, "the body is not JSON"),
        ('{"observation": [0, 0, 0, 0]', 422, "the body is not JSON"),
        ("[" * 3000, 422, "the body is not JSON (recursion limit exceeded"),
        ("\ud83d", 422, "the body is not JSON"),
        (" " * 10_000, 413, "the body is larger than"),
    ],
)
def test_bad_input_is_refused_with_the_reason_and_never_reaches_the_policy(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch, body: str, status: int, said: str
) -> None:
    def never(parts: list[Rows]) -> None:
        raise AssertionError("reached the policy")

    monkeypatch.setattr(service.engine, "step", never)
    headers = {"content-type": "application/json"}
    answer = client.post("/act", content=body.encode(errors="surrogatepass"), headers=headers)
    assert answer.status_code == status
    assert said in answer.json()["error"]


def test_other_kinds_paths_and_methods_are_refused(client: TestClient) -> None:
    assert client.post("/act", content="observation=1", headers={"content-type": "text/plain"}).status_code == 415
    assert client.post("/act").status_code == 415
    assert client.get("/act").status_code == 405
    assert client.get("/act").headers["allow"] == "POST"
    assert client.get("/nowhere").json() == {"error": "Not Found"}
    assert client.get("/info", headers={"host": "evil.example"}).status_code == 421  # a web page that renamed itself
    assert client.get("/info", headers={"host": "[::1]:80"}).status_code == 200


def test_another_sites_page_may_link_here_and_do_nothing_else(client: TestClient) -> None:
    for site in ("cross-site", "same-site"):
        headers = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}
        assert client.post("/sessions", headers=headers).status_code == 403  # needs no body, so no browser would ask us
        assert client.get("/live/stream", headers=headers).status_code == 403
        assert client.post("/sessions", headers=headers | {"sec-fetch-mode": "navigate"}).status_code == 403  # a form
        assert client.get("/", headers=headers | {"sec-fetch-mode": "navigate"}).status_code == 200
    assert client.get("/info", headers={"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}).status_code == 200


def test_an_action_that_is_not_finite_is_not_sent(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = service.engine.step
    spoilt = lambda parts: [a._replace(actions=np.full_like(a.actions, np.nan)) for a in step(parts)]  # noqa: E731
    monkeypatch.setattr(service.engine, "step", spoilt)
    answer = client.post("/act", json={"observation": GOOD})
    assert answer.status_code == 422
    assert "no finite action" in answer.json()["error"]


def test_health_says_when_the_policy_no_longer_answers(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.get("/health").status_code == 200
    ended = Batcher(service.engine)
    ended.close()
    monkeypatch.setattr(service, "batcher", ended)
    assert client.get("/health").status_code == 503


# --- sessions ---


@pytest.mark.parametrize(
    "adaptation",
    [{"rule": "best"}, {"rule": "grad"}, {"reinference_interval": 2}, {"warm_start": True, "step_size": 0.5}],
)
def test_a_session_remembers_as_the_policy_does(policy: LoadedPolicy, adaptation: dict[str, Any]) -> None:
    policy = policy.adapted(**adaptation)
    with client_of(policy, Limits(rows=1)) as client:
        refused = client.post("/act", json={"observation": GOOD})
        assert refused.status_code == 409
        assert "POST /sessions" in refused.json()["error"]
        first, second = (client.post("/sessions").json()["session"] for _ in range(2))
        for state in STATES:  # the other session's steps must not disturb this one's
            answer = client.post(f"/sessions/{first}/act", json={"observation": state.tolist()}).json()
            client.post(f"/sessions/{second}/act", json={"observation": (-state).tolist()})
            np.testing.assert_allclose(answer["action"], policy.act(state), atol=1e-6)
        assert client.delete(f"/sessions/{first}").status_code == 204
        assert client.delete(f"/sessions/{first}").status_code == 404
        assert client.post(f"/sessions/{first}/act", json={"observation": GOOD}).status_code == 404


def test_a_session_of_several_episodes_that_hear_their_rewards() -> None:
    policy = tiny_policy("dt")
    assert remembers(policy)
    with client_of(policy, Limits(rows=2)) as client:
        name = client.post("/sessions", json={"episodes": 2}).json()["session"]
        act = f"/sessions/{name}/act"
        for step in range(4):
            states, rewards = STATES[step : step + 2], np.array([step, 5.0 * step])
            body = {"observation": states.tolist(), "reward": rewards.tolist()}
            np.testing.assert_allclose(
                client.post(act, json=body).json()["actions"], policy.act(states, reward=rewards), atol=1e-5
            )
        assert client.post(act, json={"observation": GOOD}).status_code == 409
        wrong = client.post(act, json={"observation": [GOOD, GOOD], "reward": [1.0]})
        assert wrong.json() == {"error": "1 rewards for 2 episodes of the session"}
        assert client.post(act, json={"observation": [GOOD, GOOD], "reward": "much"}).status_code == 422


def test_sessions_are_few_and_the_idle_are_forgotten() -> None:
    now = [0.0]
    sessions = Sessions(most=2, idle=10.0, clock=lambda: now[0])
    first, second = sessions.create(1, "a"), sessions.create(1, "b")
    assert "2 sessions are open: delete one" in refusal(sessions.create, 1, "c")
    now[0] = 8.0
    assert sessions.begin(first).memory == "a"
    assert "acting already" in refusal(sessions.begin, first)
    sessions.end(first, "a2")
    now[0] = 15.0  # the second was last used fifteen seconds ago, the first seven
    assert len(sessions) == 1
    assert sessions.get(first).memory == "a2"
    assert "idle for 10 s" in refusal(sessions.get, second)
    sessions.begin(first)
    now[0] = 100.0
    assert len(sessions) == 1  # while it acts it is not idle, however long that takes
    sessions.end(first, None)
    assert (sessions.get(first).memory, sessions.get(first).steps) == ("a2", 1)


def test_too_many_sessions_are_refused_over_http(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.sessions, "most", len(service.sessions) + 1)
    assert client.post("/sessions").status_code == 201
    assert client.post("/sessions").status_code == 429
    assert client.post("/sessions", json={"episodes": 5}).status_code == 422  # more than --most-rows


# --- batches ---


def test_what_waits_goes_together_and_everybody_gets_their_own(
    policy: LoadedPolicy, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = service.engine
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
    assert sizes == [[1], [1, 2], [4], [1, 1]]  # four rows at most, nobody overtaken
    wanted = directly(policy, STATES)
    for got, (a, b) in zip(answers, parts, strict=True):
        np.testing.assert_allclose(got, wanted[a:b], atol=1e-5)


def test_one_by_one_company_changes_no_bit(policy: LoadedPolicy) -> None:
    engine = Engine(policy, 2, one_by_one=True)
    rows = [Rows(STATES[i : i + 1], engine.start(1), np.zeros(1, np.float32)) for i in range(2)]
    for n in (1, 2):
        answers = np.concatenate([acted.actions for acted in engine.step(rows[:n])])
        np.testing.assert_array_equal(answers, directly(policy, STATES[:n]))


def test_a_failure_is_told_to_those_who_asked_and_the_next_is_answered(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = service.engine
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


def test_under_load_nothing_is_compiled(service: Service) -> None:
    engine = service.engine
    rows = [Rows(STATES[i : i + 1], engine.start(1), np.zeros(1, np.float32)) for i in range(4)]
    engine.step(rows)
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration_secs, **_: compiled.append(event) if "backend_compile" in event else None
    )
    for n in range(1, 5):
        engine.step(rows[:n])
    assert compiled == []


# --- who may ask ---


def test_with_a_token_everything_but_health_needs_it(service: Service) -> None:
    client = TestClient(make_app(service, token="s3cret"), base_url="http://localhost")
    assert client.get("/health").json() == {"status": "ok"}
    for path in ("/", "/info", "/metrics", "/docs", "/openapi.json", "/live/stream", "/live.js"):
        answer = client.get(path)
        assert answer.status_code == 401, path
        assert "Bearer TOKEN" in answer.json()["error"]
    assert client.get("/").headers["www-authenticate"].startswith("Basic")  # so that a browser asks for it
    for wrong in ("Bearer nope", "Bearer", "s3cret", "Basic !!", "Basic " + base64.b64encode(b"x:no").decode()):
        assert client.post("/act", json={"observation": GOOD}, headers={"authorization": wrong}).status_code == 401
    for right in ("Bearer s3cret", "bearer s3cret", "Basic " + base64.b64encode(b"me:s3cret").decode()):
        answer = client.post("/act", json={"observation": GOOD}, headers={"authorization": right})
        assert answer.status_code == 200
    assert client.get("/info", headers={"authorization": "Bearer s3cret", "host": "robot.example"}).is_success


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "robot.local"])
def test_other_machines_are_let_in_only_with_a_token(host: str) -> None:
    assert "give a token" in refusal(check_address, host, None)
    assert "the token is blank" in refusal(check_address, host, " ")
    check_address(host, "s3cret")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_this_machine_needs_none(host: str) -> None:
    check_address(host, None)


# --- facts ---


def test_facts_and_measures(client: TestClient) -> None:
    facts = client.get("/info").json()
    assert (facts["algorithm"], facts["observation_size"], facts["action_size"]) == ("drop", 4, 2)
    assert (facts["adaptation"]["rule"], facts["needs_session"], facts["most_rows"]) == ("grad-ada", False, 4)
    client.post("/act", json={"observation": STATES[:4].tolist()})
    measures = client.get("/metrics").text
    assert 'droprl_requests_total{route="/act",status="200"}' in measures
    assert 'droprl_request_seconds_bucket{le="0.1",route="/act"}' in measures
    assert "droprl_batch_rows_sum" in measures
    assert "droprl_open_sessions" in measures


@pytest.mark.parametrize("path", ["/", "/docs", "/health", "/info", "/metrics", "/openapi.json"])
def test_head_is_get_without_a_body(client: TestClient, path: str) -> None:
    assert client.head(path).status_code == client.get(path).status_code == 200
    assert client.head(path).headers["content-type"] == client.get(path).headers["content-type"]


def test_pages_take_nothing_from_elsewhere(client: TestClient) -> None:
    for path in ("/", "/docs", "/live.js", "/docs.js", "/live.css"):
        answer = client.get(path)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "https://" not in answer.text
        assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", "")


def test_the_service_keeps_to_its_own_description(service: Service) -> None:
    """schemathesis asks what the OpenAPI page allows, and what it does not, and judges the answers."""
    headers = {"host": "localhost"}
    refusals = {"expected-statuses": [404, 409, 413, 415, 422]}  # 413 too: what is wrong may also be too large
    config = schemathesis.Config.from_dict({"checks": {"negative_data_rejection": refusals}})
    schema = schemathesis.openapi.from_asgi("/openapi.json", make_app(service), config=config, headers=headers)
    asked = []
    for result in schema.get_all_operations():
        operation: Any = result.ok()  # type: ignore[union-attr]
        asked.append(operation.label)
        for mode in GenerationMode if operation.method == "post" else [GenerationMode.POSITIVE]:

            @settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy(generation_mode=mode))
            def ask(case: Any) -> None:
                case.call_and_validate(headers=headers)

            ask()
    assert {"POST /act", "POST /sessions", "POST /sessions/{session}/act", "GET /info"} < set(asked)
