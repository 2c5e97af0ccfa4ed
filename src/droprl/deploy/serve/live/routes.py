"""The live page's endpoints: its files, the stream of events, and the controls."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from importlib import resources
from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import Field, create_model
from starlette.types import Receive, Scope, Send

from droprl.deploy.serve import wire
from droprl.deploy.serve.live.look import Settings
from droprl.deploy.serve.live.show import Show, Stage, TooManyShows
from droprl.errors import DropError

KINDS = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
FILES = {
    "/": "live.html",
    "/live.css": "live.css",
    "/live.js": "live.js",
    "/docs": "docs.html",
    "/docs.js": "docs.js",
}
OWN_FILES_ONLY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
)
STREAM = "/live/stream"
MOST_ASCENT_STEPS, LONGEST_INTERVAL = 200, 200  # or the policy's own number, if that is larger
MOST_BYTES = 4096


class Change(wire.Question):
    """What to change in a show. Fields that are left out stay as they are."""

    rule: Literal["best", "grad", "best-ada", "grad-ada"] | None = None
    task: str | None = None
    paused: bool | None = None
    restart: bool | None = None

    @classmethod
    def within(cls, own: Settings | None) -> type[Change]:
        """This class with limits for K and m. The limits include the policy's own settings."""
        most = max(MOST_ASCENT_STEPS, own.ascent_steps if own else 0)
        longest = max(LONGEST_INTERVAL, own.reinference_interval if own else 0)
        steps: Any = Annotated[int, Field(ge=0, le=most, strict=True)]
        interval: Any = Annotated[int, Field(ge=1, le=longest, strict=True)]
        knobs: Any = {"ascent_steps": (steps | None, None), "reinference_interval": (interval | None, None)}
        return create_model("Change", __base__=cls, **knobs)


class Watching(StreamingResponse):
    """Server-sent events of a show. It frees the show's place in any case, even if the stream never began."""

    def __init__(self, stage: Stage, show: Show) -> None:
        super().__init__(_lines(show), media_type="text/event-stream", headers={"cache-control": "no-store"})
        self._stage, self._show = stage, show

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stage.forget(self._show)


def add_live_page(app: FastAPI, stage: Stage) -> None:
    for path, name in FILES.items():
        _add_file(app, path, name)
    question = Change.within(stage.first_settings)

    @app.get(STREAM, include_in_schema=False)
    async def stream() -> Response:
        try:
            show = stage.open()
        except TooManyShows as error:
            raise HTTPException(503, str(error), {"retry-after": "10"}) from error
        except DropError as error:
            raise HTTPException(409, str(error)) from error
        return Watching(stage, show)

    @app.post("/live/{show}", include_in_schema=False, status_code=204)
    async def change(show: str, request: Request) -> Response:
        asked = await wire.read(request, question, MOST_BYTES)
        found = stage.find(show)
        if found is None:
            raise HTTPException(404, "there is no show of this name: load the page again")
        found.change(**asked.model_dump(exclude_none=True))
        return Response(status_code=204)


def _add_file(app: FastAPI, path: str, name: str) -> None:
    content = resources.files("droprl.deploy.serve.live").joinpath("page", name).read_bytes()
    headers = {"content-security-policy": OWN_FILES_ONLY, "x-content-type-options": "nosniff"}

    @app.get(path, include_in_schema=False)
    async def file() -> Response:
        return Response(content, media_type=KINDS[name.rpartition(".")[2]], headers=headers)


async def _lines(show: Show) -> AsyncIterator[str]:
    """Sometimes this sends a comment, to find out whether anybody still listens."""
    async for event in show.events():
        yield ": still here\n\n" if event is None else f"data: {json.dumps(event, allow_nan=False)}\n\n"
