"""Which Gymnasium ids may be made. `module:Id` imports that module, so only the user may ask for it, never a file."""

from __future__ import annotations

import re
from typing import TypeVar

from droprl.errors import DropError

E = TypeVar("E")
_PLAIN = re.compile(r"([-\w]+/)?[-.\w]+")
_WITH_MODULE = re.compile(rf"(?P<module>\w+(\.\w+)*):{_PLAIN.pattern}")
_given: set[str] = set()  # as import itself is: for the whole process


class ForeignCode(DropError):
    """An id would import a module, and the user did not ask for it."""


def given_by_user(env: E) -> E:
    """The same `env`. Call it where a user gives an id, as `--env` or in Python: its module may then be imported.

    An id that was read from a file must never come here.
    """
    if isinstance(env, str):
        _given.add(str(env))
    return env


def check_id(env_id: object) -> None:
    """Refuse what is not an id, and an id that would import a module that the user did not name."""
    if isinstance(env_id, str) and _PLAIN.fullmatch(env_id):
        return
    found = _WITH_MODULE.fullmatch(env_id) if isinstance(env_id, str) else None
    if found is None:
        raise DropError(f"{env_id!r}: is not a Gymnasium id: give one, such as Hopper-v4, with --env")
    if env_id not in _given:
        raise ForeignCode(
            f"{env_id}: a file names this task, and to make it would run the Python module {found['module']}: if you "
            f"trust that module, give --env {env_id}"
        )
