"""Commands for webhooks: the endpoints that facts are sent to."""

import socket
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import structs

from ayes.consumers.webhooks.endpoints import (
    Endpoint,
    EndpointFile,
    EndpointStatus,
    Standing,
    check,
    new_secret,
)
from ayes.consumers.webhooks.requests import HttpAnswer, Sender
from ayes.consumers.webhooks.worker import replay as send_again
from ayes.interfaces.cli import completion
from ayes.interfaces.cli.command import Session, StoreSession, command, commands
from ayes.interfaces.cli.options import WebhooksOption, argument, option
from ayes.interfaces.cli.run import webhooks_file
from ayes.interfaces.cli.terminal.output import print_json, print_line, print_message
from ayes.ledger import clock
from ayes.ledger.nats.credentials import Store
from ayes.ops.broker.server import adopt
from ayes.projections.cloud_events import test_event
from ayes.schemas.durations import parse_duration, parse_position
from ayes.schemas.errors import TRY_AGAIN, BadInput, Refused, Unavailable
from ayes.schemas.events import TYPES
from ayes.schemas.ids import new_id
from ayes.schemas.toml_files import read_text

app: Final = commands()

#: So that a process that sends webhooks is not held for ever by one request.
_LONGEST_TIMEOUT_S: Final = 60.0

NameArgument = Annotated[str, argument("NAME", "As `webhooks ls` shows it.")]
TypesOption = Annotated[
    list[str] | None,
    option(
        "--type",
        "TYPE",
        "Only facts of this type, such as Approved. Repeatable.",
        autocompletion=completion.one_of(*TYPES),
    ),
]


SecretFileOption = Annotated[
    str | None,
    option(
        "--secret-file",
        "FILE",
        "Sign with the secret (whsec_...) in this file, - for stdin; else a new one is made "
        "and printed once.",
    ),
]


class NotTaken(Unavailable):
    """The endpoint did not agree, or did not take what it was sent."""

    exit_code = TRY_AGAIN


@command(
    app,
    examples="""
    ayes webhooks add crm https://hooks.example.com/ayes --type Approved --type Denied -w shop
    ayes webhooks add audit http://127.0.0.1:8000/ayes --allow-private --secret-file -
    """,
)
async def add(
    name: Annotated[str, argument("NAME", "Its name here.")],
    url: Annotated[str, argument("URL", "Where facts are sent.")],
    types: TypesOption = None,
    workspaces: Annotated[
        list[str] | None,
        option("-w", "--workspace", "WS", "Only facts of this workspace. Repeatable."),
    ] = None,
    secret_file: SecretFileOption = None,
    origin: Annotated[
        str,
        option(
            "--origin",
            "DNS-NAME",
            "The name by which the receiver knows this ledger; by default this machine's.",
        ),
    ] = "",
    allow_private: Annotated[
        bool,
        option("--allow-private", "It may be on this machine or in its network, without TLS too."),
    ] = False,
    proxy: Annotated[
        str,
        option(
            "--proxy", "URL", "Send through this proxy, which then decides what it connects to."
        ),
    ] = "",
    tries: Annotated[
        int, option("--tries", "Send a fact this often before it is parked.", min=1, max=100)
    ] = 8,
    backoff: Annotated[
        str,
        option(
            "--backoff",
            "DURATION",
            "The first pause between two tries; each is twice the one before, up to 5m.",
        ),
    ] = "5s",
    timeout: Annotated[str, option("--timeout", "DURATION", "For one request.")] = "15s",
    file: WebhooksOption = None,
    *,
    session: StoreSession,
) -> None:
    """Add an endpoint, and ask it whether it agrees; until it does, it is sent nothing."""
    endpoint = Endpoint(
        name=name,
        url=url,
        secret=_secret(secret_file),
        origin=origin or socket.gethostname(),
        types=tuple(types or ()),
        workspaces=tuple(workspaces or ()),
        allow_private=allow_private,
        proxy=proxy,
        tries=tries,
        backoff_s=parse_duration("--backoff", backoff, least=0.05),
        timeout_s=parse_duration("--timeout", timeout, least=0.05, most=_LONGEST_TIMEOUT_S),
    )
    check(endpoint)
    sender, endpoints = Sender(), _file(file, session.store)
    endpoints.add(endpoint)
    if not session.json:
        _show_secret(endpoint.secret, secret_file)
    answer = await _verify(endpoints, sender, endpoint)
    if session.json:
        made = {"secret": endpoint.secret} if secret_file is None else {}
        print_json(_row(endpoints, endpoints.named(name)) | made)
    if answer.why:
        raise NotTaken(
            f"{name} is added, but it is sent nothing before it agrees: {answer.why}. "
            f"Try it again: ayes webhooks test {name}"
        )
    if not session.json:
        print_message(
            f"{name} agrees, and is sent facts from now on. If no worker does so yet: "
            "`ayes work webhooks`, or start `ayes up` again."
        )


@command(app, examples="ayes webhooks rotate crm --overlap 1h")
async def rotate(
    name: NameArgument,
    secret_file: SecretFileOption = None,
    overlap: Annotated[
        str,
        option("--overlap", "DURATION", "For so long requests have signatures of both secrets."),
    ] = "24h",
    file: WebhooksOption = None,
    *,
    session: StoreSession,
) -> None:
    """Give an endpoint a new secret. The one before it goes on being valid for some time."""
    until = clock.now() + timedelta(seconds=parse_duration("--overlap", overlap, least=0))
    endpoints = _file(file, session.store)
    secret = _secret(secret_file)
    endpoints.rotate(name, secret, until)
    made = {"secret": secret} if secret_file is None else {}
    if not session.json:
        _show_secret(secret, secret_file)
    session.print(
        {"name": name, "former_until": until} | made,
        f"The former one is valid until {until:%Y-%m-%d %H:%M:%S} UTC.",
    )


@command(app)
async def ls(file: WebhooksOption = None, *, session: StoreSession) -> None:
    """List the endpoints and how each of them is doing, without their secrets."""
    endpoints = _file(file, session.store)
    session.print_rows(
        [
            (_row(endpoints, one), _words(endpoints, one))
            for one in endpoints.read().endpoints.values()
        ],
        if_none="There are no webhooks. `ayes webhooks add` adds one.",
    )


@command(app, "test")
async def try_endpoint(
    name: NameArgument,
    file: WebhooksOption = None,
    *,
    session: StoreSession,
) -> None:
    """Send an endpoint a test event, and say what it answered. One that has not agreed is asked
    first.
    """
    endpoints = _file(file, session.store)
    endpoint, sender = endpoints.named(name), Sender()
    if endpoint.verified_at is None or endpoints.standings.read().of(name).gone:
        answer = await _verify(endpoints, sender, endpoint)
        if answer.why:
            raise NotTaken(f"{name} is sent nothing: {answer.why}.")
        if not session.json:
            print_message(f"{name} agrees, and is sent facts from now on.")
    event_id = new_id()
    event = test_event(name, event_id, endpoint.origin, clock.now())
    answer = await sender.post(endpoint, f"msg_test_{event_id}", event)
    found = {
        "name": name,
        "status": answer.status,
        "took_s": round(answer.took_s, 3),
        "problem": answer.why,
        "answer": answer.text,
    }
    if session.json or not answer.why:
        took = f"{name} took it: {answer.status}, in {answer.took_s * 1000:,.0f} ms"
        session.print_rows([(found, took)])
    if answer.why:
        raise NotTaken(f"{name} did not take it: {answer.why}.{_quoted(answer)}")
    # A worker that waits for its next try need not.
    endpoints.note(name, _answers_again)


@command(
    app,
    examples="""
    ayes webhooks replay crm --from 2026-11-21T08:00
    ayes webhooks replay crm --from 120 --to 180 --type Approved
    """,
)
async def replay(
    name: NameArgument,
    start: Annotated[
        str, option("--from", "SEQ|TIME", "From this fact on: a number, or an ISO time (UTC).")
    ],
    until: Annotated[
        str | None, option("--to", "SEQ|TIME", "Up to this one; by default to the last.")
    ] = None,
    types: TypesOption = None,
    file: WebhooksOption = None,
    *,
    session: Session,
) -> None:
    """Send facts of the log to an endpoint again, one after another, with the same ids."""
    first = parse_position("--from", start)
    last = None if until is None else parse_position("--to", until)
    if unknown := sorted({*(types or ())} - {*TYPES}):
        raise BadInput(f"there are no facts of the type {', '.join(map(repr, unknown))}.")
    endpoints = _file(file, session.store)
    endpoint = endpoints.named(name)
    if endpoint.verified_at is None or endpoints.standings.read().of(name).gone:
        raise Refused(f"{name} does not agree to be sent facts. Ask it: ayes webhooks test {name}")
    sender, sent = Sender(), 0
    async with session.connect("observer") as ledger:
        replayed = send_again(ledger, sender, endpoint, first, last, frozenset(types or ()))
        async with aclosing(replayed) as facts:
            async for one in facts:
                if one.why:
                    raise NotTaken(
                        f"{name} did not take fact {one.fact.seq}: {one.why}. {_facts(sent)} sent "
                        f"before it. To go on: ayes webhooks replay {name} --from {one.fact.seq}"
                    )
                sent += 1
    session.print({"name": name, "sent": sent}, f"{_facts(sent)} sent to {name}.")


@command(app)
async def rm(
    name: NameArgument,
    file: WebhooksOption = None,
    *,
    session: StoreSession,
) -> None:
    """Remove an endpoint. It is sent nothing more, and its secret is forgotten."""
    endpoints = _file(file, session.store)
    endpoint = endpoints.named(name)
    endpoints.remove(name)
    session.print({"name": name, "url": endpoint.url}, f"{name} is removed.")


async def _verify(endpoints: EndpointFile, sender: Sender, endpoint: Endpoint) -> HttpAnswer:
    answer = await sender.agrees(endpoint)
    if not answer.why:
        endpoints.verify(endpoint.name, clock.now())
    return answer


def _answers_again(before: Standing) -> Standing:
    if before.failing_since is None:
        return before
    return structs.replace(before, failing_since=None, why="")


def _file(file: Path | None, store: Path | None) -> EndpointFile:
    """The file of webhooks; in a store that is this user's."""
    if file is None:
        adopt(Store(store))
    return webhooks_file(file, store)


def _secret(file: str | None) -> str:
    """The one in the file that was named, or a new one."""
    if file is None:
        return new_secret()
    return read_text("/dev/stdin" if file == "-" else file).strip()


def _show_secret(secret: str, file: str | None) -> None:
    if file is None:
        print_line(secret)
        print_message("Its secret, which is not shown again: the receiver verifies with it.")


def _row(endpoints: EndpointFile, one: Endpoint) -> dict[str, Any]:
    status = EndpointStatus.of(one, endpoints.standings.read().of(one.name))
    return structs.asdict(status) | {
        "url": one.url,
        "types": one.types,
        "workspaces": one.workspaces,
        "verified_at": one.verified_at,
    }


def _words(endpoints: EndpointFile, one: Endpoint) -> str:
    status = EndpointStatus.of(one, endpoints.standings.read().of(one.name))
    which = ", ".join((*one.types, *(f"workspace {name}" for name in one.workspaces)))
    return f"{status}   {which or 'all facts'} to {one.url}"


def _facts(count: int) -> str:
    return "1 fact was" if count == 1 else f"{count:,} facts were"


def _quoted(answer: HttpAnswer) -> str:
    text = " ".join(answer.text.split())[:200]
    return f" It said: {text}" if text else ""
