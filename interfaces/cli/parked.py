"""Parked deliveries, for operators: what consumers gave up on, and what becomes of it."""

from collections.abc import Sequence
from typing import Annotated, Final, Literal

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import NumberArgument, NumbersArgument, WhyOption, option
from ayes.interfaces.cli.terminal.output import print_json, print_line, print_message
from ayes.ledger.log import Parked
from ayes.ledger.subscriptions import OPERATOR
from ayes.ops.actions.parked import _name, fact_json, marked, parked_json, standing, with_fact

app: Final = commands()


@command(app)
async def ls(
    every: Annotated[bool, option("--all", "Also what was settled or dropped since.")] = False,
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


def _in_words(one: Parked) -> str:
    what = f"{one.consumer}  fact {one.seq}  " if one.consumer else ""
    why = f" ({one.mark.reason})" if one.mark is not None and one.mark.reason else ""
    tried = f"tried {one.tries} times, " if one.tries > 1 else ""
    return (
        f"{one.number:>4}  {standing(one)}{why}  {what}{one.subject}  {one.reason}  "
        f"({tried}{one.parked_at:%Y-%m-%d %H:%M:%S} UTC)"
    )
