"""Sessions: the memory of episodes under way, for rules that choose z once or every m steps."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from droprl.deploy.serve.clients import part
from droprl.errors import DropError
from droprl.policies.policy import Carry

MOST_EPISODES = 16_384  # their memory fits: a few KiB for each episode of `dt`, less for the others


class TooManySessions(DropError):
    pass


class NoSuchSession(DropError):
    pass


class SessionActing(DropError):
    pass


@dataclass
class Session:
    """A number of episodes side by side. In each of them `steps` actions were taken."""

    episodes: int
    memory: Carry
    used: float
    client: str = ""
    steps: int = 0
    acting: bool = False


class Sessions:
    """At most `most` sessions, with at most `episodes` in all. One client may have this `share` of both.

    A session unused for `idle` seconds is forgotten.
    """

    def __init__(
        self,
        most: int,
        idle: float,
        episodes: int = MOST_EPISODES,
        share: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most, self.idle, self.episodes, self._clock = most, idle, max(episodes, most), clock
        self.share = share
        self._open: dict[str, Session] = {}  # the first one has been unused for the longest time

    def __len__(self) -> int:
        self._forget_the_idle()
        return len(self._open)

    def create(self, episodes: int, memory: Carry, client: str = "") -> str:
        if len(self) >= self.most:
            raise TooManySessions(
                f"{self.most} sessions are open: delete one, or wait until one has been idle for {self.idle:g} s"
            )
        taken = sum(session.episodes for session in self._open.values())
        if taken + episodes > self.episodes:
            raise TooManySessions(
                f"{taken:,} episodes are open, and {self.episodes:,} is the most: delete a session, or ask for fewer"
            )
        own = [session.episodes for session in self._open.values() if session.client == client]
        if len(own) >= part(self.share, self.most):
            raise TooManySessions(f"{len(own)} sessions of yours are open, the most for one client: delete one")
        most = part(self.share, self.episodes)
        if sum(own) + episodes > most:
            raise TooManySessions(
                f"{sum(own):,} episodes of yours are open, and {most:,} is the most for one client: delete a session, "
                "or ask for fewer"
            )
        name = secrets.token_urlsafe(16)
        self._open[name] = Session(episodes, memory, self._clock(), client)
        return name

    def get(self, name: str) -> Session:
        self._forget_the_idle()
        if name not in self._open:
            raise NoSuchSession(
                f"there is no such session: it was deleted, idle for {self.idle:g} s, or never opened: POST /sessions"
            )
        return self._open[name]

    def begin(self, name: str) -> Session:
        """Begin one action; call `end` when it is done. Two actions at once would have no order."""
        session = self.get(name)
        if session.acting:
            raise SessionActing("this session is acting already: wait for its answer")
        session.acting, session.used = True, self._clock()
        self._open[name] = self._open.pop(name)
        return session

    def end(self, name: str, memory: Carry | None) -> None:
        """End an action, with the new memory, or with None if the action failed."""
        session = self._open.pop(name, None)
        if session is None:  # it was deleted in the meantime
            return
        if memory is not None:
            session.memory, session.steps = memory, session.steps + 1
        session.acting, session.used = False, self._clock()
        self._open[name] = session

    def delete(self, name: str) -> None:
        self.get(name)
        del self._open[name]

    def _forget_the_idle(self) -> None:
        now = self._clock()
        while self._open:
            name, session = next(iter(self._open.items()))
            if session.acting or now - session.used <= self.idle:
                return
            del self._open[name]
