"""`drop serve`."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from droprl.cli.evaluate import AdaptationOptions
from droprl.cli.options import Folder, parse, use_compilation_cache
from droprl.errors import DropError, UsageError, require
from droprl.loaded import load_policy
from droprl.terminal import say

TOKEN_VARIABLE = "DROP_TOKEN"
MOST_ROWS = 4096
CUT = "stopped before every request was answered"


@dataclass(frozen=True)
class ServeOptions:
    """Serve a policy's actions over HTTP, and show on a page how the policy adapts while it acts.

    POST /act takes one observation or a list of them. The live page is at /, and /docs lists everything else.
    """

    policy: Annotated[Folder, tyro.conf.arg(metavar="POLICY")]
    """A policy folder (`drop export`) or the folder of a run."""
    adaptation: AdaptationOptions = field(default_factory=AdaptationOptions)
    seed: int | None = None
    """For a run: which seed; by default the first."""
    host: str = "127.0.0.1"
    """The address to listen on. An address that other machines can reach needs a token."""
    port: int = 8000
    """The port; 0 takes a free one."""
    token: str | None = None
    """What clients must send as `Authorization: Bearer TOKEN`. Better set the variable DROP_TOKEN, which lists of
    processes do not show. A browser asks for the token as a password."""
    env: str | None = None
    """The Gymnasium id of the task on the live page, if the data did not name it."""
    most_rows: int = 256
    """The most observations in one request and in one call of the policy: a power of two."""
    one_by_one: bool = False
    """Compute a batch row by row. An observation then gets the same bits, whoever else asks at the same time. Slower
    for large networks."""
    most_sessions: int = 1000
    """Sessions open at once. Together they may have 16,384 episodes, or one for each session if that is more."""
    session_idle: float = 600.0
    """Seconds after which an unused session is forgotten."""
    client_share: float = 0.5
    """How much of the sessions, episodes, connections and waiting requests one client may take. A client is an address.
    1 lets one client take everything."""
    deadline: float = 20.0
    """Seconds for one request, from its head to its answer. A call of the policy that takes longer counts as hung."""
    proxy: str | None = None
    """The IP address of a proxy in front of the service. Its X-Forwarded-For then says who the client is."""


def serve(words: list[str]) -> None:
    use_compilation_cache()
    options = parse(ServeOptions, "serve", words)
    try:
        from droprl.deploy.serve.app import Limits, Service, make_app
        from droprl.deploy.serve.server import CLOSE_SECONDS, Server, check_address, end_at_once
    except ImportError as error:
        raise DropError(f"`drop serve` needs {error.name}: pip install 'droprl[serve]'") from error
    token = options.token if options.token is not None else os.environ.get(TOKEN_VARIABLE)
    check_address(options.host, token)
    _check(options)
    loaded = load_policy(options.policy, seed=options.seed, **options.adaptation.chosen())
    say(f"{loaded!r}: compiling for 1 to {options.most_rows} observations at once …")
    limits = Limits(
        options.most_rows,
        options.most_sessions,
        options.session_idle,
        one_by_one=options.one_by_one,
        share=options.client_share,
        seconds=options.deadline,
    )
    service = Service(loaded, limits, options.env)
    host = f"[{options.host}]" if ":" in options.host else options.host

    def ready(port: int) -> None:
        say(f"http://{host}:{port} is ready: the live page is at /, the API at /docs; Ctrl-C ends it")

    app, at_end = make_app(service, token), service.stage.close
    server = Server(app, options.host, options.port, ready, at_end, options.client_share, options.proxy)
    ended = True
    try:
        server.run()
    except SystemExit as end:  # uvicorn has said why
        raise DropError(f"{options.host}:{options.port}: cannot listen there: choose another --port") from end
    finally:
        ended = service.close(CLOSE_SECONDS)
    if server.drained:
        say("drained: every request was answered")
    if not ended:  # a call of the policy or a simulator is under way, and nobody waits for it any more
        end_at_once(0 if server.drained else 1, None if server.drained else f"drop: {CUT}")
    if not server.drained:
        raise DropError(CUT)


def _check(options: ServeOptions) -> None:
    if not 1 <= options.most_rows <= MOST_ROWS or options.most_rows & (options.most_rows - 1):
        raise UsageError(f"--most-rows is {options.most_rows}: it must be a power of two, at most {MOST_ROWS}")
    if not 0 <= options.port <= 65535:
        raise UsageError(f"--port is {options.port}: it must be from 0 to 65535")
    require(options, "at least 1", "most_sessions")
    require(options, "above 0", "session_idle", "deadline")
    require(options, "above 0 and at most 1", "client_share")
    if options.proxy is not None:
        try:
            ipaddress.ip_address(options.proxy)
        except ValueError:
            raise UsageError(f"--proxy is {options.proxy}: it must be the IP address of the proxy") from None
