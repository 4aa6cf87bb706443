"""Commands that show what happened: the facts, and the histories made of them."""

import asyncio
import json as jsonlib
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from ayes.consumers.live import follow_reply
from ayes.consumers.model import with_bytes
from ayes.interfaces.cli import completion
from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import (
    CallArgument,
    JsonOption,
    ThreadArgument,
    argument,
    option,
)
from ayes.interfaces.cli.settings import trust_of
from ayes.interfaces.cli.terminal import cards, output
from ayes.interfaces.cli.terminal.output import (
    print_data,
    print_json,
    print_line,
    print_message,
    print_text,
)
from ayes.ledger.clients.services import Ledger
from ayes.ledger.descriptions import describe_undoing, outcome_words
from ayes.ledger.validity import may_be_void
from ayes.ops.actions.secrets import secrets_in
from ayes.ops.ocsf_file import OcsfFile
from ayes.projections.formats import FORMATS, format_named
from ayes.projections.history import history as history_of
from ayes.projections.live import Discarded, Ended, Fragment
from ayes.projections.ocsf import needs_call, ocsf_event
from ayes.projections.thread import thread_of
from ayes.projections.views.fact import own, voids_of, wishes_of
from ayes.projections.views.secrets import WHOLE, Secrets
from ayes.schemas import strict_json
from ayes.schemas.codec import Fact, fact_json
from ayes.schemas.errors import BadFile, UnknownCall
from ayes.schemas.events import Carried, ModelFailed
from ayes.schemas.slots import CallRef, ThreadRef
from ayes.schemas.toml_files import read_text
from ayes.schemas.visible import warning

app: Final = commands()

FormatOption = Annotated[
    str,
    option(
        "--format",
        "PROVIDER",
        f"The provider's API: {', '.join(FORMATS)}",
        autocompletion=completion.one_of(*FORMATS),
    ),
]


@command(app, examples="ayes show shop/order-17/refund-1")
async def show(
    call: CallArgument,
    secrets: Annotated[
        bool, option("--secrets", "Also the values that its tool declares as secret.")
    ] = False,
    *,
    session: Session,
) -> None:
    """Show every fact about a call, and all that it runs with."""
    ref = CallRef.parse(call)
    async with session.connect("observer") as ledger:
        known = await ledger.known_call(ref)
        facts = await ledger.read(ref)
        hiding = WHOLE if secrets else await secrets_in(ledger, known)
    title = f"{ref} {outcome_words(known.outcome)}"
    if known.undoing is not None:
        title += f", class: {describe_undoing(known.undoing, known.undo_until)}"
    _print(facts, title, hiding, json=session.json)
    if not session.json:
        cards.print_arguments(known, output.console(), hiding)


@command(app)
async def thread(thread: ThreadArgument, session: Session) -> None:
    """Show every fact in a conversation."""
    ref = ThreadRef.parse(thread)
    async with session.connect("observer") as ledger:
        facts = await ledger.read(ref)
        hiding = await secrets_in(ledger, *facts)
    if not own(facts):
        raise UnknownCall(f"nothing was ever recorded in {ref}.")
    _print(facts, str(ref), hiding, json=session.json)


@command(
    app,
    examples="""
    ayes watch --from 1 --until-now
    ayes watch --ocsf /var/log/ayes/events.jsonl
    """,
)
async def watch(
    start: Annotated[
        int | None, option("--from", "SEQ", "From this fact on; by default only new ones.", min=1)
    ] = None,
    until_now: Annotated[bool, option("--until-now", "End with the last existing fact.")] = False,
    ocsf: Annotated[
        Path | None,
        option("--ocsf", "FILE", "Append events of OCSF to this file instead, all from fact 1 on."),
    ] = None,
    *,
    session: Session,
) -> None:
    """Show facts as they are recorded, until Ctrl-C; with --from 1 --until-now, all existing
    facts.
    """
    async with session.connect("observer") as ledger:
        if ocsf is not None:
            await ledger.trust_in(trust_of(session.store, None))
            await _append_events(ledger, ocsf, start, until_now=until_now)
            return
        first = start if start is not None else await ledger.log.last_seq() + 1
        console = output.console()
        async with aclosing(ledger.replay(first) if until_now else ledger.watch(first)) as facts:
            async for fact in facts:
                voids = await _void(ledger, fact)
                if session.json:
                    print_data(fact_json(fact, voids.get(fact.seq, "")))
                else:
                    requests = await _requests(ledger, fact)
                    hiding, wishes = await secrets_in(ledger, *requests), wishes_of(requests)
                    output.print_facts(
                        [fact], console, hiding, full=True, wishes=wishes, voids=voids
                    )


async def _append_events(ledger: Ledger, path: Path, start: int | None, *, until_now: bool) -> None:
    """Append the events of facts to a file, after the last one that it has."""
    while not (log := await ledger.log.identity()):
        if until_now:
            return
        await asyncio.sleep(1)
    file = OcsfFile(path, log)
    try:
        first = file.last + 1 if file.last else start or 1
        print_message(f"Events from fact {first:,} on are appended to {path}.")
        async with aclosing(ledger.replay(first) if until_now else ledger.watch(first)) as facts:
            async for fact in facts:
                ref, call = fact.slot.call_ref, None
                if ref is not None and needs_call(fact):
                    call = await ledger.call(ref, must_include=fact.slot)
                    if call.requested is not None:
                        call, _ = await ledger.with_given(call)
                trust = ledger.trust
                is_void = bool(trust and trust.objection_to_policy(fact))
                if (event := ocsf_event(fact, log, call, is_void=is_void)) is not None:
                    file.append(event)
                elif isinstance(fact.event, Carried):
                    print_message(
                        f"Fact {fact.seq:,} is of a later version, and left out. Upgrade."
                    )
    finally:
        file.close()


@command(app, examples="ayes follow shop/chat-1")
async def follow(thread: ThreadArgument, session: Session) -> int:
    """Show the model's next reply in a conversation while it gives it; ends with the reply, or with
    1 if there is none.
    """
    ref, shown = ThreadRef.parse(thread), ""
    async with (
        session.connect("observer") as ledger,
        aclosing(follow_reply(ledger, ref)) as following,
    ):
        async for one in following:
            match one:
                case Fragment(text) if session.json:
                    print_json({"text": text})
                case Fragment(text):
                    shown += text
                    print_text(text)
                case Discarded() if session.json:
                    print_json({"discarded": True})
                case Discarded():
                    shown = ""
                    print_message()
                    print_message("[the text so far is discarded]")
                case Ended(end=ModelFailed(error=error)):
                    print_message(f"The model failed: {error}")
                    return 1
                case Ended(end=Carried()):
                    print_message("The reply was recorded by a newer version. Upgrade this one.")
                    return 1
                case Ended():
                    if not session.json:
                        print_line(warning(shown))
    return 0


async def _void(ledger: Ledger, fact: Fact) -> dict[int, str]:
    """Why a fact does not count, by its sequence; reads the facts before it only if it may be
    void.
    """
    ref = fact.slot.call_ref
    if ref is None or not may_be_void(fact):
        return {}
    return voids_of(await ledger.read(ref, must_include=fact.slot))


async def _requests(ledger: Ledger, fact: Fact) -> tuple[Fact, ...]:
    """The fact, with the request if it changes its arguments."""
    ref = fact.slot.call_ref
    if ref is None or getattr(fact.event, "arguments", None) is None or fact.slot == ref.requested:
        return (fact,)
    return (fact, *await ledger.read(ref.requested))


@command(app, examples="ayes history shop/order-17 --format anthropic")
async def history(
    thread: ThreadArgument, provider: FormatOption = "openai-chat", *, session: Session
) -> None:
    """Print a conversation as its model continues it: the messages of a provider's API, as JSON."""
    ref = ThreadRef.parse(thread)
    writer = format_named(provider)
    async with session.connect("observer") as ledger:
        facts = await ledger.read(ref)
        found = history_of(thread_of(ref, facts))
        entries = await with_bytes(ledger, ref, found.entries)
    if not own(facts):
        raise UnknownCall(f"nothing was ever recorded in {ref}.")
    payload = msgspec.json.encode(writer.write(entries))
    print_data((payload if session.json else msgspec.json.format(payload)).decode())
    if not found.entries and found.stopped_at is None:
        print_message(f"There is no conversation in {ref}. Its facts: ayes thread {ref}")
    if found.stopped_at is not None:
        print_message(
            f"It stops before the turn of {found.stopped_at}, which is not settled: no provider "
            "takes a call without its result."
        )


@command(app)
async def check(
    file: Annotated[
        str, argument("FILE", "JSON: the messages, or the request with them; - for stdin.")
    ],
    provider: FormatOption,
    json: JsonOption = False,
) -> int:
    """Check a list of messages for what the provider would reject; exit 1 if there is anything."""
    wanted = format_named(provider)
    payload = _read_payload(file)
    problems = wanted.check(payload)
    for one in problems:
        if json:
            print_json({"rule": one.rule, "message": one.message, "problem": one.sentence})
        else:
            print_line(str(one))
    if not problems:
        print_message(f"{provider} would accept it.")
        return 0
    others = [name for name, other in FORMATS.items() if not other.check(payload)]
    also = f" It would be valid for {', '.join(others)}." if others else ""
    print_message(
        f"{provider} would reject it: {len(problems)} "
        f"problem{'s' if len(problems) > 1 else ''}.{also}"
    )
    return 1


def _read_payload(file: str) -> dict[str, Any] | list[Any]:
    name, path = ("stdin", "/dev/stdin") if file == "-" else (file, file)
    text = read_text(path)
    if not text.strip():
        raise BadFile(name, "", "is empty. It needs a JSON array of messages.")
    try:
        payload = strict_json.read(text)
    except strict_json.BadJson as problem:
        # Only a syntax error has a line.
        syntax = problem.__context__
        where = f"line {syntax.lineno}" if isinstance(syntax, jsonlib.JSONDecodeError) else ""
        raise BadFile(name, where, f"{problem}.") from None
    if not isinstance(payload, dict | list):
        raise BadFile(name, "", "holds neither a JSON array of messages nor an object with one.")
    return payload


def _print(facts: tuple[Fact, ...], title: str, secrets: Secrets, *, json: bool) -> None:
    voids, facts = voids_of(facts), own(facts)
    if json:
        for fact in facts:
            print_data(fact_json(fact, voids.get(fact.seq, "")))
    else:
        print_message(title)
        output.print_facts(facts, output.console(), secrets, voids=voids)
