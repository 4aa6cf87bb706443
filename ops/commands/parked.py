"""Parked deliveries, for operators: what consumers gave up on, and what becomes of it."""

import base64
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any, Final, Literal

import typer
from msgspec import structs

from ayes.ledger.log import Mark, Parked, RawMessage
from ayes.ledger.services import Ledger
from ayes.ledger.subscriptions import DURABLES, LEDGER, OPERATOR
from ayes.ops.commands.command import Session, command, commands
from ayes.ops.commands.options import NumberArgument, NumbersArgument, WhyOption
from ayes.ops.terminal.output import print_json, print_line, print_message
from ayes.schemas.errors import BadInput

app: Final = commands()


@command(app)
async def ls(
    every: Annotated[
        bool, typer.Option("--all", help="Also what was settled or dropped since.")
    ] = False,
    *,
    session: Session,
) -> None:
    """List what consumers gave up on, and why, oldest first."""
    async with session.connect(OPERATOR) as ledger:
        found = await ledger.log.parked(whole=every)
    session.print_rows(
        [(parked_json(one), _in_words(one)) for one in found], if_none="Nothing is parked."
    )


@command(app)
async def show(number: NumberArgument, session: Session) -> None:
    """Show one of them, with the payload of its fact as the log has it."""
    async with session.connect(OPERATOR) as ledger:
        one, fact = await with_fact(ledger, number)
    if session.json:
        print_json(parked_json(one) | {"fact": fact and fact_json(fact)})
        return
    print_line(_in_words(one))
    if fact is None:
        print_message("No fact of the log belongs to it.")
        return
    print_line(
        f"fact {fact.seq}, recorded {fact.recorded_at:%Y-%m-%d %H:%M:%S} UTC in {fact.subject}:"
    )
    print_line(fact.data.decode("utf-8", "backslashreplace"))


@command(app)
async def retry(numbers: NumbersArgument, session: Session) -> None:
    """Have its consumer handle it again, at once or as soon as one works."""
    await _mark("retry", numbers, session)


@command(app)
async def drop(numbers: NumbersArgument, reason: WhyOption = "", *, session: Session) -> None:
    """Take it off the list, once somebody has seen it. The fact stays in the log."""
    await _mark("drop", numbers, session, reason)


async def _mark(
    what: Literal["retry", "drop"], numbers: Sequence[int], session: Session, reason: str = ""
) -> None:
    async with session.connect(OPERATOR) as ledger:
        async for one in marked(ledger, what, numbers, reason):
            session.print(
                parked_json(one),
                f"{_name(one)} is delivered to {one.consumer} again. The result: ayes parked ls"
                if what == "retry"
                else f"{_name(one)} is off the list. It stays in `ayes parked ls --all`, and its "
                "fact in the log.",
            )


async def marked(
    ledger: Ledger, what: Literal["retry", "drop"], numbers: Sequence[int], reason: str = ""
) -> AsyncGenerator[Parked]:
    """Mark parked deliveries, and yield each once it is marked.

    Raises:
        BadInput: there is no such number, or it cannot be marked; then none is.
    """
    chosen = await numbered(ledger, numbers)
    for one in chosen:
        _check(what, one)
    for one in chosen:
        mark = Mark(one.consumer, one.number, what, ledger.now(), reason)
        await ledger.log.mark(mark)
        yield structs.replace(one, mark=mark)


async def numbered(ledger: Ledger, numbers: Sequence[int]) -> list[Parked]:
    """The parked deliveries of these numbers, each once.

    Raises:
        BadInput: there is no such number.
    """
    found = {one.number: one for one in await ledger.log.parked(whole=True)}
    if missing := [str(number) for number in numbers if number not in found]:
        raise BadInput(
            f"nothing is parked as number {', '.join(missing)}: it has changed since, or never "
            "was. Look again: ayes parked ls --all"
        )
    return [found[number] for number in dict.fromkeys(numbers)]


async def with_fact(ledger: Ledger, number: int) -> tuple[Parked, RawMessage | None]:
    """A parked delivery, and its fact as the log has it; None if no fact of the log belongs to it.

    Raises:
        BadInput: there is no such number.
    """
    [one] = await numbered(ledger, [number])
    is_fact = one.consumer in DURABLES and DURABLES[one.consumer].stream == LEDGER
    return one, await ledger.log.at(one.seq) if is_fact else None


def _check(what: str, one: Parked) -> None:
    if not one.is_open:
        raise BadInput(f"{_name(one)} is {_stands(one)} already: there is nothing to {what}.")
    if one.state == "again":
        raise BadInput(f"{_name(one)} is being tried again. Wait for the result: ayes parked ls")
    if what == "retry" and not one.consumer:
        raise BadInput(
            f"{_name(one)} cannot be tried again, since it belongs to no consumer. Drop it."
        )


def _name(one: Parked) -> str:
    return (
        f"number {one.number} (fact {one.seq}, {one.subject})"
        if one.consumer
        else f"number {one.number}"
    )


def _stands(one: Parked) -> str:
    if one.state == "parked" and one.mark is not None:
        return "dropped" if one.mark.what == "drop" else "to be tried again"
    return {"parked": "parked", "again": "being tried again", "settled": "settled"}[one.state]


def _in_words(one: Parked) -> str:
    what = f"{one.consumer}  fact {one.seq}  " if one.consumer else ""
    why = f" ({one.mark.reason})" if one.mark is not None and one.mark.reason else ""
    tried = f"tried {one.tries} times, " if one.tries > 1 else ""
    return (
        f"{one.number:>4}  {_stands(one)}{why}  {what}{one.subject}  {one.reason}  "
        f"({tried}{one.parked_at:%Y-%m-%d %H:%M:%S} UTC)"
    )


def parked_json(one: Parked) -> dict[str, Any]:
    """A parked delivery and what became of it."""
    return structs.asdict(one) | {"standing": _stands(one)}


def fact_json(fact: RawMessage) -> dict[str, Any]:
    """Its payload as text, or in Base64 if it is not UTF-8."""
    place = {"seq": fact.seq, "recorded_at": fact.recorded_at, "subject": fact.subject}
    try:
        return place | {"payload": fact.data.decode()}
    except UnicodeDecodeError:
        return place | {"payload_base64": base64.b64encode(fact.data).decode()}
