"""What goes over the wire: the forms of requests and answers for one policy, and how a body is read or refused."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import HTTPException, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationError, create_model
from starlette.requests import ClientDisconnect

from droprl.data.transitions import Spec

LARGEST_NUMBER = 1e9  # no task observes larger numbers, and their products would overflow float32
BYTES_PER_NUMBER = 32  # enough for any float with its comma and some blanks
SECONDS_TO_SEND = 10.0
Number = Annotated[float, Field(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER, allow_inf_nan=False, strict=True)]
Model = TypeVar("Model", bound=BaseModel)


class Question(BaseModel):
    """A request. Unknown names are refused: a misspelt name must not silently mean the default."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Refusal(BaseModel):
    """Why the request was refused."""

    error: str


class Action(BaseModel):
    """The answer to one observation."""

    action: list[float] = Field(description="in the task's units, within its bounds")
    embedding: list[float] | None = Field(None, description="z*, by which the policy acts")
    score: float | None = Field(None, description="f(s, a, z*) at the state where z* was inferred: the value expected")
    sub_task: int | None = Field(None, description="the search for z* started from the embedding of this sub-task")


class Actions(BaseModel):
    """The answer to a batch: one row for each observation, in their order."""

    actions: list[list[float]]
    embeddings: list[list[float]] | None = None
    scores: list[float] | None = None
    sub_tasks: list[int] | None = None


class Opened(BaseModel):
    session: str = Field(description="its name, for POST /sessions/{session}/act and DELETE /sessions/{session}")
    episodes: int
    idle_seconds: float = Field(description="the session is forgotten after this time without an action")


class Health(BaseModel):
    status: str = "ok"


@dataclass(frozen=True)
class Shapes:
    """The requests that fit one policy. Their sizes are on the OpenAPI page too."""

    act: type[Question]
    session_act: type[Question]
    session: type[Question]
    most_bytes: int

    @classmethod
    def of(cls, spec: Spec, most_rows: int) -> Shapes:
        one: Any = Annotated[list[Number], Field(min_length=spec.observation_size, max_length=spec.observation_size)]
        many: Any = Annotated[list[one], Field(min_length=1, max_length=most_rows)]
        either: Any = Annotated[
            Annotated[one, Tag("one")] | Annotated[many, Tag("many")],
            Discriminator(_how_many),
            Field(description="one observation, or a list of them"),
        ]
        rewards: Any = Annotated[list[Number], Field(min_length=1, max_length=most_rows)]
        told: Any = Annotated[
            Number | rewards | None,
            Field(description="what the previous action earned: one number, or one for each row. Only dt uses it"),
        ]
        act = create_model("Observation", __base__=Question, observation=(either, ...))
        session_act = create_model("ObservationAndReward", __base__=act, reward=(told, None))
        side_by_side = "episodes that this session plays side by side"
        episodes: Any = Annotated[
            int, Field(ge=1, le=most_rows, strict=True, description=side_by_side), BeforeValidator(_whole)
        ]
        session = create_model("NewSession", __base__=Question, episodes=(episodes, 1))
        numbers = most_rows * (spec.observation_size + 1)
        return cls(act, session_act, session, 4096 + BYTES_PER_NUMBER * numbers)


def _whole(number: Any) -> Any:
    """JSON has no integers: 2.0 counts as one."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _how_many(observation: Any) -> str:
    return "many" if isinstance(observation, list) and observation and isinstance(observation[0], list) else "one"


async def read(request: Request, model: type[Model], most_bytes: int, empty_is_default: bool = False) -> Model:
    """The body as `model`, or a 4xx answer that says why not. Reading stops as soon as the body is too large."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    body = await _body(request, most_bytes)
    if not body and empty_is_default:
        return model()
    if kind != "application/json":
        raise HTTPException(415, f"the body is {kind or 'of no type'}: send JSON, as content-type application/json")
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise HTTPException(422, _reason(error)) from None


async def _body(request: Request, most_bytes: int) -> bytes:
    parts, size = [], 0
    try:
        async with asyncio.timeout(SECONDS_TO_SEND):
            async for part in request.stream():
                size += len(part)
                if size > most_bytes:
                    raise too_large(most_bytes)
                parts.append(part)
    except TimeoutError:
        raise HTTPException(408, f"the body did not come within {SECONDS_TO_SEND:g} s: send it at once") from None
    except ClientDisconnect:  # nobody reads this answer, but the metrics count it as a 400
        raise HTTPException(400, "the connection ended before the body did") from None
    return b"".join(parts)


def too_large(most_bytes: int) -> HTTPException:
    reason = f"the body is larger than {most_bytes:,} bytes, and no request needs more: send fewer rows"
    return HTTPException(413, reason, headers={"connection": "close"})


def _reason(error: ValidationError) -> str:
    """The first complaint and its place in the body."""
    first, *others = error.errors(include_url=False, include_context=False, include_input=False)
    if first["type"] == "json_invalid":
        return f"the body is not JSON ({first['msg'].removeprefix('Invalid JSON: ')})"
    place = ".".join(str(part) for part in first["loc"] if part not in ("one", "many"))
    said = first["msg"][:1].lower() + first["msg"][1:]
    return f"{place or 'the body'}: {said}" + (f" (and {len(others)} more)" if others else "")


def as_rows(observation: Any) -> tuple[np.ndarray, bool]:
    """(n, observation_size), and whether the request held one observation and not a list."""
    given = np.asarray(observation, np.float32)
    return np.atleast_2d(given), given.ndim == 1
