"""The command for probes: do calls get decided at the moment? Once, or over HTTP."""

import asyncio
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Annotated, Final

import typer

from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import check_level, info
from ayes.ledger.subscriptions import DURABLES, LEDGER, OPERATOR, PARKED
from ayes.ops.broker.health import takes_writes
from ayes.ops.broker.nodes import explained
from ayes.ops.broker.progress import ESSENTIAL, progress
from ayes.ops.commands import completion
from ayes.ops.commands.command import Session, command, commands
from ayes.ops.terminal.output import print_json, print_message
from ayes.ops.workers import KINDS, until_signalled
from ayes.schemas.errors import TRY_AGAIN, BadInput, BrokerRefused, Unavailable

app: Final = commands()

#: How long all questions to the broker may take together.
_PATIENCE_S: Final = 5.0
#: How long an HTTP client may take to send its request.
_REQUEST_S: Final = 5.0


@command(
    app,
    examples="""
    ayes ready
    ayes ready --role gate
    ayes ready --serve 127.0.0.1:8080
    """,
)
async def ready(
    role: Annotated[
        list[str] | None,
        typer.Option(
            "--role",
            metavar="KIND",
            help=f"Only these workers: {', '.join(KINDS)}. Repeatable.",
            autocompletion=completion.one_of(*KINDS),
            show_default=False,
        ),
    ] = None,
    serve: Annotated[
        str | None,
        typer.Option(
            "--serve",
            metavar="HOST:PORT",
            help="Answer GET /readyz and /livez there, until Ctrl-C.",
            show_default=False,
        ),
    ] = None,
    *,
    session: Session,
) -> int:
    """Check that calls get decided: the log takes writes, gate and queue run, and no consumer
    stands still. Exit 75 if not, with the reason.
    """
    roles = role or []
    if unknown := sorted(set(roles) - set(KINDS)):
        raise BadInput(f"there is no worker {', '.join(unknown)}. There are: {', '.join(KINDS)}.")
    if serve is not None:
        await _serve(*_address(serve), roles, session)
        return 0
    why = await _obstacle(roles, session)
    if session.json:
        print_json({"ready": not why, "why": why})
    else:
        print_message(why or "ready")
    return TRY_AGAIN if why else 0


async def _obstacle(roles: Sequence[str], session: Session) -> str:
    """Why calls do not get decided at the moment; empty if they do.

    Raises:
        BrokerRefused: the credentials or the level of the log, which do not mend themselves.
    """
    try:
        async with asyncio.timeout(_PATIENCE_S):
            connecting = JetStream.connect(
                session.store,
                url=session.url,
                role=OPERATOR,
                any_level=True,
            )
            async with connecting as log, explained(log):
                return await _obstacle_of(log, roles, session)
    except TimeoutError:
        return f"the broker did not answer within {_PATIENCE_S:g} s."
    except BrokerRefused:
        raise
    except Unavailable as problem:
        return str(problem)


async def _obstacle_of(log: JetStream, roles: Sequence[str], session: Session) -> str:
    stream = await info(log.api, f"STREAM.INFO.{LEDGER}")
    if stream is None:
        return f"there is no stream {LEDGER} here. `ayes up` or `ayes setup` creates it."
    check_level(stream)
    health = await takes_writes(log, Store(session.store) if session.url is None else None)
    if not health.ok:
        return health.why
    found = [
        await progress(log, name)
        for name, durable in DURABLES.items()
        if durable.stream != PARKED and (not roles or durable.role in roles)
    ]
    working = {DURABLES[one.name].role for one in found if one.listening}
    if missing := [role for role in roles or ESSENTIAL if role not in working]:
        return f"no {missing[0]} is at work. Start one: `ayes work {missing[0]}`."
    for one in found:
        # One without a worker belongs to another kind of the same role.
        if one.frozen and one.listening:
            return (
                f"the workers of {one.name} stand still: {one.waiting + one.in_hand:,} deliveries "
                f"are not handled, and nothing was done for {one.quiet_s:,.0f} s."
            )
    return ""


# --------------------------------------------------------------------------------------------- HTTP


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) < 1 << 16):
        raise BadInput(f"--serve {text!r} is not HOST:PORT. It looks like 127.0.0.1:8080.")
    return host.strip("[]"), int(port)


async def _serve(host: str, port: int, roles: Sequence[str], session: Session) -> None:
    """Answer probes in the convention of Kubernetes: 200 or 503, with the reason as text."""
    try:
        server = await asyncio.start_server(partial(_answer, roles, session), host, port)
    except OSError as problem:
        raise BadInput(f"cannot serve at {host}:{port}: {problem.strerror}.") from None
    async with server:
        there = server.sockets[0].getsockname()[1]

        def greet() -> None:
            if session.json:
                print_json({"host": host, "port": there})
            else:
                print_message(f"serving /readyz and /livez at {host}:{there}. Ctrl-C ends it.")

        await until_signalled(ready=greet)


async def _answer(
    roles: Sequence[str],
    session: Session,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """One request, one answer; then the connection is closed."""
    try:
        async with asyncio.timeout(_REQUEST_S):
            head = await reader.readuntil(b"\r\n\r\n")
        status, text = await _page(head.split(b" ", 2)[:2], roles, session)
        body = f"{text}\n".encode()
        writer.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8"
            f"\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
            + body
        )
        await writer.drain()
    except (OSError, TimeoutError, EOFError, asyncio.LimitOverrunError):
        pass  # the client has gone, or does not speak HTTP
    finally:
        writer.close()


async def _page(
    request: list[bytes], roles: Sequence[str], session: Session
) -> tuple[HTTPStatus, str]:
    match request:
        case [b"GET", b"/livez"]:
            return HTTPStatus.OK, "ok"
        case [b"GET", b"/readyz"]:
            try:
                why = await _obstacle(roles, session)
            except BrokerRefused as problem:
                why = str(problem)
            return (HTTPStatus.SERVICE_UNAVAILABLE, why) if why else (HTTPStatus.OK, "ok")
        case _:
            return HTTPStatus.NOT_FOUND, "GET /readyz or /livez"
