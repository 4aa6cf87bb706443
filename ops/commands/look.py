"""For whoever asks what happened: the facts, and the histories made of them."""

import json as jsonlib
from contextlib import aclosing
from typing import Annotated, Any, Final

import msgspec
import typer

from ayes.ledger.lifecycle import may_be_void
from ayes.ledger.services import Ledger
from ayes.ops.commands.command import command, commands
from ayes.ops.commands.options import (
    CallArgument,
    JsonOption,
    StoreOption,
    ThreadArgument,
    UrlOption,
)
from ayes.ops.terminal import output
from ayes.ops.terminal.output import print_data, print_line, print_message
from ayes.projections.formats import FORMATS, format_named
from ayes.projections.history import history as history_of
from ayes.projections.thread import thread_of
from ayes.schemas import strict_json
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadFile, UnknownCall
from ayes.schemas.slots import CallRef, ThreadRef
from ayes.schemas.toml_files import read_text

app: Final = commands()


@command(app)
async def show(
    call: CallArgument, store: StoreOption = None, url: UrlOption = None, json: JsonOption = False
) -> None:
    """Every fact about a call."""
    ref = CallRef.parse(call)
    async with Ledger.connect(store, url=url, role="observer") as ledger:
        known = await ledger.known_call(ref)
        facts = await ledger.read(ref)
    _print(facts, f"{ref} is {known.status.replace('_', ' ')}", json=json)


@command(app)
async def thread(
    thread: ThreadArgument,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Every fact in a conversation."""
    ref = ThreadRef.parse(thread)
    async with Ledger.connect(store, url=url, role="observer") as ledger:
        facts = await ledger.read(ref)
    if not facts:
        raise UnknownCall(f"nothing was ever recorded in {ref}.")
    _print(facts, str(ref), json=json)


@command(app)
async def watch(
    start: Annotated[
        int | None,
        typer.Option(
            "--from", metavar="SEQ", help="From this fact on; default: only what comes.", min=1
        ),
    ] = None,
    until_now: Annotated[
        bool, typer.Option("--until-now", help="End with the last one there is.")
    ] = False,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Facts as they are recorded, until Ctrl-C; or with --from 1 --until-now, all that there
    are.
    """
    async with Ledger.connect(store, url=url, role="observer") as ledger:
        first = start if start is not None else await ledger.log.last_seq() + 1
        console = output.console()
        async with aclosing(ledger.replay(first) if until_now else ledger.watch(first)) as facts:
            async for fact in facts:
                voids = await _void(ledger, fact)
                if json:
                    print_data(output.fact_json(fact, voids.get(fact.seq, "")))
                else:
                    wishes = await _wish(ledger, fact)
                    output.print_facts([fact], console, full=True, wishes=wishes, voids=voids)


async def _void(ledger: Ledger, fact: Fact) -> dict[int, str]:
    """Why a fact does not count, where that can be: then what was recorded before it is read."""
    ref = fact.slot.call_ref
    if ref is None or not may_be_void(fact):
        return {}
    return output.voids_of(await ledger.read(ref, must_include=fact.slot))


async def _wish(ledger: Ledger, fact: Fact) -> output.Wishes:
    """What was asked for, where the fact changes it."""
    ref = fact.slot.call_ref
    if ref is None or getattr(fact.event, "arguments", None) is None or fact.slot == ref.requested:
        return {}
    return output.wishes_of(await ledger.read(ref.requested))


@command(app)
async def history(
    thread: ThreadArgument,
    provider: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="PROVIDER",
            help="openai-chat, openai-responses, anthropic, gemini, ai-sdk, ai-sdk-ui, pydantic-ai",
        ),
    ] = "openai-chat",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """A conversation as a model goes on from it: the messages of that provider's API, as JSON."""
    ref = ThreadRef.parse(thread)
    writer = format_named(provider)
    async with Ledger.connect(store, url=url, role="observer") as ledger:
        facts = await ledger.read(ref)
    if not facts:
        raise UnknownCall(f"nothing was ever recorded in {ref}.")
    found = history_of(thread_of(ref, facts))
    payload = msgspec.json.encode(writer.write(found.entries))
    print_data((payload if json else msgspec.json.format(payload)).decode())
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
        str,
        typer.Argument(
            metavar="FILE", help="JSON: the messages, or the request with them; - for stdin."
        ),
    ],
    provider: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="PROVIDER",
            help="openai-chat, openai-responses, anthropic, gemini, ai-sdk, ai-sdk-ui, pydantic-ai",
        ),
    ],
    json: JsonOption = False,
) -> int:
    """What that provider would turn down in a list of messages, and what to do; exit 1 if there is
    anything.
    """
    wanted = format_named(provider)
    payload = _read_payload(file)
    problems = wanted.check(payload)
    for one in problems:
        if json:
            told = {"rule": one.rule, "message": one.message, "problem": one.sentence}
            print_data(msgspec.json.encode(told).decode())
        else:
            print_line(str(one))
    if not problems:
        print_message(f"{provider} would take it.")
        return 0
    others = [name for name, other in FORMATS.items() if not other.check(payload)]
    also = f" It would be right for {', '.join(others)}." if others else ""
    print_message(
        f"{provider} would turn it down: {len(problems)} "
        f"problem{'s' if len(problems) > 1 else ''}.{also}"
    )
    return 1


def _read_payload(file: str) -> dict[str, Any] | list[Any]:
    text = read_text("/dev/stdin" if file == "-" else file)
    name = "stdin" if file == "-" else file
    if not text.strip():
        raise BadFile(name, "", "is empty. It needs a JSON array of messages.")
    try:
        payload = strict_json.read(text)
    except strict_json.BadJson as problem:
        # Only what is no JSON at all has a line; the rest was seen when the text was read to its
        # end.
        syntax = problem.__context__
        where = f"line {syntax.lineno}" if isinstance(syntax, jsonlib.JSONDecodeError) else ""
        raise BadFile(name, where, f"{problem}.") from None
    if not isinstance(payload, dict | list):
        raise BadFile(name, "", "holds neither a JSON array of messages nor an object with one.")
    return payload


def _print(facts: tuple[Fact, ...], title: str, *, json: bool) -> None:
    if json:
        voids = output.voids_of(facts)
        for fact in facts:
            print_data(output.fact_json(fact, voids.get(fact.seq, "")))
    else:
        print_message(title)
        output.print_facts(facts, output.console())
