"""Deliveries that were parked: finding, retrying and dropping them."""

import base64
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal

from msgspec import structs

from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import Mark, Parked, RawMessage
from ayes.ledger.subscriptions import DURABLES, LEDGER, kind_of
from ayes.schemas.errors import BadInput


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
    known = DURABLES.get(kind_of(one.consumer))
    is_fact = known is not None and known.stream == LEDGER
    return one, await ledger.log.at(one.seq) if is_fact else None


def _check(what: str, one: Parked) -> None:
    if not one.is_open:
        raise BadInput(f"{_name(one)} is {standing(one)} already: there is nothing to {what}.")
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


def standing(one: Parked) -> str:
    if one.state == "parked" and one.mark is not None:
        return "dropped" if one.mark.what == "drop" else "to be tried again"
    return {"parked": "parked", "again": "being tried again", "settled": "settled"}[one.state]


def parked_json(one: Parked) -> dict[str, Any]:
    """A parked delivery and what became of it."""
    return structs.asdict(one) | {"standing": standing(one)}


def fact_json(fact: RawMessage) -> dict[str, Any]:
    """Its payload as text, or in Base64 if it is not UTF-8."""
    place = {"seq": fact.seq, "recorded_at": fact.recorded_at, "subject": fact.subject}
    try:
        return place | {"payload": fact.data.decode()}
    except UnicodeDecodeError:
        return place | {"payload_base64": base64.b64encode(fact.data).decode()}
