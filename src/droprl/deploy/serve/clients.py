"""Who a client is, how much of the service one client may take, and how those who guess tokens are slowed down."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

MOST_GUESSERS = 4096  # clients that are remembered for their wrong tokens: the earliest are forgotten first
SECONDS_REMEMBERED = 600.0
FREE_GUESSES = 1  # a person may mistype
SHORTEST_WAIT, LONGEST_WAIT = 0.25, 5.0  # of an answer to a wrong token, in seconds


def client_of(scope: Mapping[str, Any]) -> str:
    """The client behind an ASGI request: see `client_at`."""
    return client_at((scope.get("client") or ("",))[0])


def client_at(address: str) -> str:
    """A name for everybody at this address. In IPv6, one customer of a provider usually has a whole /64 network."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return address if found.is_loopback else str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)


def part(share: float, total: int) -> int:
    """What one client may take of a total: at least one, so that it can work at all."""
    return max(1, int(share * total))


class Guesses:
    """Who sent wrong tokens lately. Each further wrong token waits twice as long for its answer. Right ones never wait.

    The memory is bounded, whoever asks. A client that does not wait for its answers can still try another token: only
    the length of the token protects from that.
    """

    def __init__(self, most: int = MOST_GUESSERS, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._known: OrderedDict[str, tuple[int, float]] = OrderedDict()  # number and time of the last; oldest first

    def __len__(self) -> int:
        return len(self._known)

    def wrong(self, client: str) -> float:
        """Note one more wrong token of this client: the seconds that its answer must wait."""
        now = self._clock()
        count, last = self._known.pop(client, (0, now))
        count = 1 if now - last > SECONDS_REMEMBERED else count + 1
        self._known[client] = (count, now)
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        if count <= FREE_GUESSES:
            return 0.0
        return float(min(LONGEST_WAIT, SHORTEST_WAIT * 2.0 ** min(count - FREE_GUESSES - 1, 10)))
