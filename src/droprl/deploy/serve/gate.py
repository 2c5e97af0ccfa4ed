"""Every request passes here first: who sent it, how large it claims to be, how long its answer may take."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import time
from contextlib import suppress
from typing import Any

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from droprl.deploy.serve.clients import Guesses, client_of
from droprl.deploy.serve.measures import Measures
from droprl.deploy.serve.wire import too_large

OPEN_PATHS = ("/health",)
ENDLESS_PATHS = ("/live/stream",)  # a stream lasts as long as somebody watches


class Gate:
    """Plain ASGI, around the whole application.

    With a token, every request but /health must show it: as a bearer token, or as the password that a browser asks for.
    The answer to a wrong token waits, longer each time.
    Without a token the service listens on loopback. It then answers only to the names of this machine, so that no web
    page can reach it under another name.
    """

    def __init__(
        self, app: ASGIApp, measures: Measures, most_bytes: int, seconds: float, token: str | None = None
    ) -> None:
        self._app, self._measures, self._most_bytes, self._token = app, measures, most_bytes, token
        self._seconds, self._guesses = seconds, Guesses()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, begun = time.perf_counter(), 500, False

        async def noted(message: Message) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                status, begun = message["status"], True
            await send(message)

        scope = dict(scope)
        if scope["method"] == "HEAD" and not scope["path"].startswith("/live/"):  # the server leaves the body out
            scope["method"] = "GET"
        endless, answered_by = scope["path"] in ENDLESS_PATHS, self._app
        try:
            async with asyncio.timeout(None if endless else self._seconds) as deadline:
                refusal = self._refusal(scope)
                if refusal is not None:
                    if refusal.status_code == 401 and _shows_a_token(scope):
                        await _waited(self._guesses.wrong(client_of(scope)), receive)
                    answered_by = refused(refusal)
                await answered_by(scope, receive, noted)
        except TimeoutError:
            if not deadline.expired():
                raise
            if not begun:  # otherwise the client does not take its answer, and the server cuts it off
                late = f"there was no answer within {self._seconds:g} s: ask for fewer rows, or when fewer others ask"
                closing = {"connection": "close", "retry-after": "1"}
                await refused(HTTPException(504, late, closing))(scope, receive, noted)
        finally:
            route: Any = scope.get("route")
            self._measures.answered(getattr(route, "path", "other"), status, time.perf_counter() - began)

    def _refusal(self, scope: Scope) -> HTTPException | None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if self._token is None:
            host = headers.get(b"host", "")
            name = host if host.endswith("]") else host.rpartition(":")[0] or host
            if not is_loopback(name.lower().strip("[]")):
                return HTTPException(
                    421, f"this service is not {name or 'nameless'}: ask localhost, or give it a --token"
                )
        elif scope["path"] not in OPEN_PATHS and not self._shown(headers.get(b"authorization", "")):
            way = "Basic" if scope["path"] == "/" else "Bearer"
            challenge = {"www-authenticate": f'{way} realm="droprl"'}
            return HTTPException(401, "the token is missing or wrong: send Authorization: Bearer TOKEN", challenge)
        if _from_another_page(scope, headers):
            return HTTPException(403, "a page of another site sent this: only this service's pages and programs may")
        length = headers.get(b"content-length", "0")
        if length.isdecimal() and int(length[:20]) > self._most_bytes:
            return too_large(self._most_bytes)
        return None

    def _shown(self, authorization: str) -> bool:
        kind, _, value = authorization.partition(" ")
        if kind.lower() == "basic":
            try:
                value = base64.b64decode(value, validate=True).decode().partition(":")[2]
            except ValueError:
                return False
        elif kind.lower() != "bearer":
            return False
        assert self._token is not None
        given, right = (hashlib.sha256(text.encode()).digest() for text in (value.strip(), self._token))
        return hmac.compare_digest(given, right)  # takes the same time for every wrong token, also of another length


def _shows_a_token(scope: Scope) -> bool:
    """A browser that shows none does not guess: it only asks whether it needs one."""
    return any(name == b"authorization" for name, _ in scope["headers"])


async def _waited(seconds: float, receive: Receive) -> None:
    """Wait for so long, or until the client hangs up."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while (await receive())["type"] != "http.disconnect":
                pass


def _from_another_page(scope: Scope, headers: dict[bytes, str]) -> bool:
    """Browsers say where a request comes from. Pages of other sites may link to us, but must not send other requests,
    which the user would not notice.

    Over plain HTTP to another machine, browsers leave Sec-Fetch out. Then only the origin says where it comes from.
    """
    site = headers.get(b"sec-fetch-site")
    if site is None:
        origin, host = headers.get(b"origin"), headers.get(b"host", "")
        return origin is not None and origin.lower().partition("://")[2] != host.lower()
    a_document = (headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")) == ("navigate", "document")
    follows_a_link = scope["method"] == "GET" and a_document and not scope["path"].startswith("/live/")
    return site not in ("same-origin", "none") and not follows_a_link


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refused(error: HTTPException) -> JSONResponse:
    return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)
