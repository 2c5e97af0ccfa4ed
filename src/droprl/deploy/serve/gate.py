"""Every request passes here first: who sent it, how large it claims to be, how long its answer takes."""

from __future__ import annotations

import base64
import hmac
import ipaddress
import time
from typing import Any

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from droprl.deploy.serve.measures import Measures
from droprl.deploy.serve.wire import too_large

OPEN_PATHS = ("/health",)


class Gate:
    """Plain ASGI, around the whole application.

    With a token, every request but /health must show it: as a bearer token, or as the password that a browser asks for.
    Without a token the service listens on loopback. It then answers only to the names of this machine, so that no web
    page can reach it under another name.
    """

    def __init__(self, app: ASGIApp, measures: Measures, most_bytes: int, token: str | None = None) -> None:
        self._app, self._measures, self._most_bytes, self._token = app, measures, most_bytes, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        scope = dict(scope)
        if scope["method"] == "HEAD" and not scope["path"].startswith("/live/"):  # the server leaves the body out
            scope["method"] = "GET"
        try:
            refusal = self._refusal(scope)
            if refusal is not None:
                await refused(refusal)(scope, receive, noted)
            else:
                await self._app(scope, receive, noted)
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
        return hmac.compare_digest(value.strip().encode(), self._token.encode())


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
