"""The service's endpoints. `wire` checks everything before it reaches the policy; `sessions` holds the memory."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException

from droprl.deploy.serve import sessions as memory
from droprl.deploy.serve import wire
from droprl.deploy.serve.batching import ENDED, Batcher, Busy, Ended
from droprl.deploy.serve.clients import client_of, part
from droprl.deploy.serve.engine import Acted, Engine, Rows
from droprl.deploy.serve.gate import Gate, refused
from droprl.deploy.serve.live.routes import add_live_page
from droprl.deploy.serve.live.show import Stage
from droprl.deploy.serve.measures import KIND, Measures
from droprl.errors import DropError
from droprl.loaded import LoadedPolicy
from droprl.policies.policy import Carry
from droprl.version import __version__

STATUS: dict[type[DropError], int] = {
    Busy: 503,
    Ended: 503,
    memory.TooManySessions: 429,
    memory.NoSuchSession: 404,
    memory.SessionActing: 409,
}
MEANING = {
    400: "the request makes no sense",
    401: "the token is missing or wrong",
    403: "a page of another site sent this request",
    404: "there is no such session",
    408: "the body came too slowly",
    409: "the policy or the session cannot do this now",
    413: "the body is too large",
    415: "the body is not JSON",
    421: "the request names another host than this service",
    422: "the body does not fit this policy; the error says why",
    429: "too many sessions or too many episodes are open, in all or of this client",
    503: "too many requests are waiting, or the policy no longer answers",
    504: "there was no answer within the time for one request",
}
HUNG_UP = 499  # nobody reads this answer: it is counted in the metrics
ANY = (401, 403, 421)
READING = (*ANY, 400, 408, 413, 415, 422)
ACTING = (*READING, 409, 503, 504)


@dataclass(frozen=True)
class Limits:
    """How much clients may ask for, and how the service works."""

    rows: int = 256  # observations in one request, and in one call of the policy; a power of two
    sessions: int = 1000
    idle_seconds: float = 600.0
    waiting: int = 1024
    one_by_one: bool = False  # see `Engine`
    share: float = 0.5  # of sessions, episodes, connections and waiting requests, for one client
    seconds: float = 20.0  # for one request, from its head to its answer; a longer call of the policy counts as hung


class Service:
    """A policy, with everything that the service needs to answer. Call `close()` at the end."""

    def __init__(self, loaded: LoadedPolicy, limits: Limits = Limits(), env: str | None = None) -> None:
        self.loaded, self.limits = loaded, limits
        self.stage = Stage(loaded, env)
        self.measures = Measures()
        self.engine = Engine(loaded, limits.rows, limits.one_by_one)
        most_waiting = part(limits.share, limits.waiting)
        self.batcher = Batcher(self.engine, limits.waiting, self.measures.batch, most_waiting, limits.seconds)
        self.sessions = memory.Sessions(limits.sessions, limits.idle_seconds, share=limits.share)
        self.shapes = wire.Shapes.of(loaded.spec, limits.rows)
        self.remembers = loaded.traits.remembers
        self.measures.watch("waiting_requests", "Requests that wait for the policy.", lambda: self.batcher.waiting)
        self.measures.watch("open_sessions", "Sessions that are open.", lambda: len(self.sessions))

    def close(self, seconds: float = 60.0) -> bool:
        """End all threads, and say whether they ended within this time. One that computes cannot be stopped."""
        until = time.monotonic() + seconds
        self.stage.close()
        return self.batcher.close(seconds) & self.stage.wait(until)

    async def act(self, request: Request, observations: np.ndarray, carry: Carry, rewards: np.ndarray) -> Acted:
        """The answer of the policy. Nothing is computed for a client that hangs up before its turn comes."""
        answer = asyncio.ensure_future(self.batcher.act(Rows(observations, carry, rewards), client_of(request.scope)))
        hung_up = asyncio.ensure_future(_hung_up(request))
        try:
            await asyncio.wait((answer, hung_up), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise HTTPException(HUNG_UP, "the client has hung up")
            acted = answer.result()
        finally:
            answer.cancel()
            hung_up.cancel()
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(acted) if leaf.dtype.kind == "f"):
            raise HTTPException(422, "the policy has no finite action here: the observation is too far from its data")
        return acted

    def about(self) -> dict[str, Any]:
        loaded, scaling = self.loaded, self.loaded.scaling
        origin, search = loaded.origin, loaded.search
        return {
            "droprl": __version__,
            "algorithm": loaded.algorithm.name,
            "adaptation": None if search is None else vars(search.adaptation),
            "needs_session": self.remembers,
            "observation_size": loaded.spec.observation_size,
            "action_size": loaded.spec.action_size,
            "action_low": np.asarray(scaling.action_low).tolist(),
            "action_high": np.asarray(scaling.action_high).tolist(),
            "dataset": origin.dataset,
            "env": origin.env,
            "seed": origin.seed,
            "step": origin.step,
            "one_by_one": self.limits.one_by_one,
            "most_rows": self.limits.rows,
            "most_bytes": self.shapes.most_bytes,
            "most_sessions": self.limits.sessions,
            "most_episodes": self.sessions.episodes,
            "session_idle_seconds": self.limits.idle_seconds,
            "most_of_a_client": self.limits.share,
            "seconds_for_a_request": self.limits.seconds,
        }


def make_app(service: Service, token: str | None = None) -> FastAPI:
    app = FastAPI(
        title=f"droprl: {service.loaded.algorithm.name} trained on {service.loaded.origin.dataset}",
        version=__version__,
        description="Actions of one policy, which goes on optimising its embedding at test time.",
        docs_url=None,  # FastAPI's pages would fetch scripts from other sites; `live.routes` has our own page
        redoc_url=None,
    )
    app.add_middleware(
        Gate,
        measures=service.measures,
        most_bytes=service.shapes.most_bytes,
        seconds=service.limits.seconds,
        token=token,
    )
    app.add_exception_handler(StarletteHTTPException, _refuse)
    app.add_exception_handler(DropError, _refuse)
    _add_acting(app, service)
    _add_sessions(app, service)
    _add_facts(app, service)
    add_live_page(app, service.stage)
    return app


def _add_acting(app: FastAPI, service: Service) -> None:
    @app.post("/act", **_told(service.shapes.act, wire.Action | wire.Actions, *ACTING))
    async def act(request: Request) -> Response:
        """The action at an observation, or at each of a list. A rule that remembers its episode needs a session."""
        asked: Any = await wire.read(request, service.shapes.act, service.shapes.most_bytes)
        if service.remembers:
            raise HTTPException(409, "this policy remembers its episode: POST /sessions, then /sessions/{session}/act")
        observations, alone = wire.as_rows(asked.observation)
        rewards = np.zeros(len(observations), np.float32)
        acted = await service.act(request, observations, service.engine.start(len(observations)), rewards)
        return _answer(acted, alone)


def _add_sessions(app: FastAPI, service: Service) -> None:
    sessions = service.sessions

    @app.post("/sessions", status_code=201, **_told(service.shapes.session, wire.Opened, *READING, 429))
    async def open_session(request: Request) -> Response:
        """Make a place for the memory of one episode, or of several episodes side by side."""
        asked: Any = await wire.read(request, service.shapes.session, service.shapes.most_bytes, empty_is_default=True)
        name = sessions.create(asked.episodes, service.engine.start(asked.episodes), client_of(request.scope))
        answer = {"session": name, "episodes": asked.episodes, "idle_seconds": sessions.idle}
        return JSONResponse(answer, 201)

    @app.post(
        "/sessions/{session}/act",
        **_told(service.shapes.session_act, wire.Action | wire.Actions, *ACTING, 404),
    )
    async def act_in_session(session: str, request: Request) -> Response:
        """The next action of the session's episodes."""
        sessions.get(session)
        asked: Any = await wire.read(request, service.shapes.session_act, service.shapes.most_bytes)
        observations, alone = wire.as_rows(asked.observation)
        opened = sessions.begin(session)
        carry = None
        try:
            if len(observations) != opened.episodes:
                raise HTTPException(
                    409, f"{len(observations)} observations for {opened.episodes} episodes of the session"
                )
            rewards = _rewards(asked.reward, opened)
            acted = await service.act(request, observations, opened.memory, rewards)
            carry = jax.tree.map(np.array, acted.memory)  # a copy: a view would keep the whole batch in memory
        finally:
            sessions.end(session, carry)
        return _answer(acted, alone)

    @app.delete("/sessions/{session}", status_code=204, responses=_refusals(*ANY, 404), response_class=Response)
    async def close_session(session: str) -> Response:
        """Forget the session and its memory."""
        sessions.delete(session)
        return Response(status_code=204)


def _rewards(given: Any, session: memory.Session) -> np.ndarray:
    """What the previous action earned. At the first action there is no previous one: the reward is ignored."""
    count = len(given) if isinstance(given, list) else session.episodes
    if count != session.episodes:
        raise HTTPException(409, f"{count} rewards for {session.episodes} episodes of the session")
    told = 0.0 if given is None or session.steps == 0 else given
    return np.broadcast_to(np.asarray(told, np.float32), (session.episodes,))


def _add_facts(app: FastAPI, service: Service) -> None:
    unwell: dict[int | str, dict[str, Any]] = {503: {"model": wire.Refusal, "description": ENDED}}

    @app.get("/health", response_model=wire.Health, responses=unwell | _refusals(403, 421))
    async def health() -> Response:
        """Whether the policy can act: no, if it has not come back from a call in time. This needs no token."""
        trouble = service.batcher.trouble
        return JSONResponse({"status": "ok"}) if trouble is None else JSONResponse({"error": trouble}, 503)

    @app.get("/info", responses=_refusals(*ANY))
    async def info() -> dict[str, Any]:
        """The policy: sizes, bounds, how it adapts, where it comes from, and the service's limits."""
        return service.about()

    @app.get("/metrics", responses=_refusals(*ANY), response_class=Response)
    async def metrics() -> Response:
        """Counters and times in Prometheus' text format."""
        return Response(service.measures.text(), media_type=KIND)


async def _hung_up(request: Request) -> None:
    """Returns when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _answer(acted: Acted, alone: bool) -> Response:
    columns = {"actions": acted.actions, "embeddings": acted.embedding, "scores": acted.score}
    columns["sub_tasks"] = acted.sub_task
    known = {name: column.tolist() for name, column in columns.items() if column is not None}
    if alone:
        known = {name[:-1]: column[0] for name, column in known.items()}
    return Response(json.dumps(known, allow_nan=False), media_type="application/json")


def _told(question: Any, answer: Any, *refusals: int) -> dict[str, Any]:
    """What the OpenAPI page says about an endpoint that reads its body itself."""
    content = {"application/json": {"schema": question.model_json_schema()}}
    body = {
        "requestBody": {"content": content, "required": any(f.is_required() for f in question.model_fields.values())}
    }
    return {"openapi_extra": body, "response_model": answer, "responses": _refusals(*refusals)}


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": wire.Refusal, "description": MEANING[status]} for status in statuses}


async def _refuse(_: Request, error: Exception) -> Response:
    if isinstance(error, StarletteHTTPException):
        return refused(HTTPException(error.status_code, error.detail, error.headers))
    status = STATUS.get(type(error), 400) if isinstance(error, DropError) else 500
    headers = {"retry-after": "1"} if status in (429, 503, 504) else None
    return refused(HTTPException(status, " ".join(str(error).split()), headers))
