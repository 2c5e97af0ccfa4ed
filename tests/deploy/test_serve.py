"""The service without a network: answers are right, sessions work, and no bad input reaches the policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from helpers.serving import client_of, directly, tiny_policy
from helpers.training import refusal

from droprl.deploy.serve.app import Limits, Service
from droprl.deploy.serve.batching import Batcher
from droprl.deploy.serve.engine import Rows
from droprl.deploy.serve.sessions import Sessions
from droprl.loaded import LoadedPolicy

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
    """The service behind `client`. It is compiled once for all tests."""
    return client.service


# --- acting ---


def test_one_observation_gets_the_policys_own_action(client: TestClient, policy: LoadedPolicy) -> None:
    for state, action in zip(STATES, directly(policy, STATES), strict=True):
        answer = client.post("/act", json={"observation": state.tolist()}).json()
        np.testing.assert_array_equal(np.array(answer["action"], np.float32), action)
        assert np.isfinite(answer["score"])
        assert 0 <= answer["sub_task"] < 10
        assert len(answer["embedding"]) == 5


def test_a_batch_gets_one_row_for_each_observation(client: TestClient, policy: LoadedPolicy) -> None:
    answer = client.post("/act", json={"observation": STATES[:3].tolist()}).json()
    np.testing.assert_allclose(answer["actions"], directly(policy, STATES[:3]), atol=1e-5)
    assert len(answer["embeddings"]) == len(answer["scores"]) == len(answer["sub_tasks"]) == 3
    one_row = client.post("/act", json={"observation": STATES[:1].tolist()}).json()
    assert list(one_row) == list(answer)  # a list of one is answered with a list of one


def test_a_policy_that_infers_nothing_answers_only_with_actions() -> None:
    policy = tiny_policy("bc")
    assert not policy.traits.remembers
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
def test_bad_input_is_refused_with_a_reason_and_never_reaches_the_policy(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch, body: str, status: int, said: str
) -> None:
    def never(parts: list[Rows]) -> None:
        raise AssertionError("reached the policy")

    monkeypatch.setattr(service.engine, "step", never)
    headers = {"content-type": "application/json"}
    answer = client.post("/act", content=body.encode(errors="surrogatepass"), headers=headers)
    assert answer.status_code == status
    assert said in answer.json()["error"]


def test_other_content_types_paths_and_methods_are_refused(client: TestClient) -> None:
    assert client.post("/act", content="observation=1", headers={"content-type": "text/plain"}).status_code == 415
    assert client.post("/act").status_code == 415
    assert client.get("/act").status_code == 405
    assert client.get("/act").headers["allow"] == "POST"
    assert client.get("/nowhere").json() == {"error": "Not Found"}
    assert client.get("/info", headers={"host": "evil.example"}).status_code == 421  # a web page under its own name
    assert client.get("/info", headers={"host": "[::1]:80"}).status_code == 200


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
    answer = client.post("/act", json={"observation": GOOD})
    assert answer.status_code == 503
    assert "no longer answers" in answer.json()["error"]


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
    assert policy.traits.remembers
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


def test_sessions_are_limited_and_idle_ones_are_forgotten() -> None:
    now = [0.0]
    sessions = Sessions(most=2, idle=10.0, episodes=10, clock=lambda: now[0])
    assert "0 episodes are open, and 10 is the most" in refusal(sessions.create, 11, "a")
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
    assert len(sessions) == 1  # a session that acts is not idle, however long the action takes
    sessions.end(first, None)
    assert (sessions.get(first).memory, sessions.get(first).steps) == ("a2", 1)


def test_too_many_sessions_are_refused_over_http(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.sessions, "share", 1.0)
    monkeypatch.setattr(service.sessions, "most", len(service.sessions) + 1)
    assert client.post("/sessions").status_code == 201
    assert client.post("/sessions").status_code == 429
    assert client.post("/sessions", json={"episodes": 5}).status_code == 422  # more than --most-rows
    monkeypatch.setattr(service.sessions, "most", 10**6)
    open_now = sum(session.episodes for session in service.sessions._open.values())
    monkeypatch.setattr(service.sessions, "episodes", open_now + 5)
    assert [client.post("/sessions", json={"episodes": 4}).status_code for _ in range(2)] == [201, 429]
    assert client.post("/sessions").status_code == 201


def test_one_client_cannot_take_all_sessions_or_episodes() -> None:
    sessions = Sessions(most=4, idle=10.0, episodes=10, share=0.5)
    names = [sessions.create(2, "a", "10.0.0.1") for _ in range(2)]
    assert "2 sessions of yours are open, the most for one client" in refusal(sessions.create, 1, "a", "10.0.0.1")
    sessions.delete(names[0])
    assert "5 is the most for one client" in refusal(sessions.create, 4, "a", "10.0.0.1")
    sessions.create(5, "b", "10.0.0.2")
    sessions.create(1, "a", "10.0.0.1")
    assert Sessions(most=1, idle=10.0, share=0.5).create(1, "a", "10.0.0.1")  # one is the least


# --- information ---


def test_info_and_metrics(client: TestClient) -> None:
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
