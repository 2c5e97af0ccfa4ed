"""Who may ask the service, and that the service does what its OpenAPI page says."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from helpers.serving import client_of, tiny_policy
from helpers.training import refusal
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import booleans
from schemathesis import GenerationMode

from droprl.deploy.serve.app import Limits, Service, make_app
from droprl.deploy.serve.server import check_address

GOOD = [0.0] * 4


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with client_of(tiny_policy(), Limits(rows=4)) as made:
        yield made


@pytest.fixture(scope="module")
def service(client: TestClient) -> Service:
    return client.service


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_sites_page_may_link_here_and_do_nothing_else(client: TestClient, site: str) -> None:
    headers = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors", "sec-fetch-dest": "empty"}
    link = headers | {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert client.post("/sessions", headers=headers).status_code == 403  # without a body, browsers send no preflight
    assert client.get("/live/stream", headers=headers).status_code == 403
    assert client.post("/sessions", headers=link).status_code == 403  # a form
    assert client.get("/", headers=link).status_code == 200
    assert client.get("/live/stream", headers=link).status_code == 403  # this would open a show
    for framed in ("iframe", "frame", "embed", "object"):
        assert client.get("/", headers=link | {"sec-fetch-dest": framed}).status_code == 403


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_our_own_pages_and_people_may_ask(client: TestClient, site: str) -> None:
    headers = {"sec-fetch-site": site, "sec-fetch-mode": "cors", "origin": "http://localhost"}
    assert client.get("/info", headers=headers).status_code == 200
    assert client.post("/sessions", headers=headers).status_code == 201


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost:8000", "http://localhost:8000", 201),
        ("LOCALHOST:8000", "http://localhost:8000", 201),
        ("[::1]:8000", "http://[::1]:8000", 201),
        ("localhost:8000", None, 201),  # a program
        ("localhost:8000", "http://localhost:3000", 403),
        ("localhost:8000", "https://evil.example", 403),
        ("localhost:8000", "http://localhost:8000.evil.example", 403),
        ("localhost:8000", "null", 403),  # a sandboxed frame, a file
        ("localhost:8000", "", 403),
    ],
)
def test_without_sec_fetch_the_origin_decides(client: TestClient, host: str, origin: str | None, status: int) -> None:
    """Over plain HTTP, browsers send Sec-Fetch only to names of their own machine."""
    headers = {"host": host} | ({} if origin is None else {"origin": origin})
    assert client.post("/sessions", headers=headers).status_code == status


def test_with_a_token_everything_but_health_needs_it(service: Service) -> None:
    client = TestClient(make_app(service, token="s3cret"), base_url="http://localhost")
    assert client.get("/health").json() == {"status": "ok"}
    for path in ("/", "/info", "/metrics", "/docs", "/openapi.json", "/live/stream", "/live.js"):
        answer = client.get(path)
        assert answer.status_code == 401, path
        assert "Bearer TOKEN" in answer.json()["error"]
    assert client.get("/").headers["www-authenticate"].startswith("Basic")  # so that a browser asks for the token
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
    for padded in (" s3cret", "s3cret\n", "s3cret\t"):
        assert "blanks at its ends" in refusal(check_address, host, padded)
    check_address(host, "s3cret")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_this_machine_needs_none(host: str) -> None:
    check_address(host, None)


def rows_in(body: Any) -> int:
    """The number of episodes that a session needs for this body."""
    observation = body.get("observation") if isinstance(body, dict) else None
    many = isinstance(observation, list) and 0 < len(observation) <= 4 and isinstance(observation[0], list)
    return len(observation) if isinstance(observation, list) and many else 1


def test_the_service_does_what_its_own_description_says(service: Service) -> None:
    """schemathesis sends requests that the OpenAPI page allows, and requests that it forbids, and checks the answers.

    About half of the sessions that it names are open. Otherwise it would only see that no such session exists.
    """
    headers = {"host": "localhost"}
    refusals = {"expected-statuses": [404, 409, 413, 415, 422]}  # 413 too: a wrong body may also be too large
    config = schemathesis.Config.from_dict({"checks": {"negative_data_rejection": refusals}})
    schema = schemathesis.openapi.from_asgi("/openapi.json", make_app(service), config=config, headers=headers)
    answers: dict[str, set[int]] = {}
    for result in schema.get_all_operations():
        operation: Any = result.ok()  # type: ignore[union-attr]
        for mode in GenerationMode if operation.method == "post" else [GenerationMode.POSITIVE]:

            @settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy(generation_mode=mode), is_open=booleans())
            def ask(case: Any, is_open: bool) -> None:
                if is_open and "session" in case.path_parameters:
                    episodes = rows_in(case.body)
                    case.path_parameters["session"] = service.sessions.create(episodes, service.engine.start(episodes))
                status = case.call_and_validate(headers=headers).status_code
                answers.setdefault(case.operation.label, set()).add(status)

            ask()
    assert {"POST /act", "POST /sessions", "POST /sessions/{session}/act", "GET /info"} < set(answers)
    assert {200, 404, 422} <= answers["POST /sessions/{session}/act"]
    assert {204, 404} <= answers["DELETE /sessions/{session}"]
    for paths in schema.raw_schema["paths"].values():
        for described in paths.values():
            assert {"403", "421"} <= set(described["responses"])
