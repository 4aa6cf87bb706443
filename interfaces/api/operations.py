"""What operators look after: the broker, the workers, and what was parked."""

from datetime import datetime
from typing import Annotated, Final

from fastapi import Query
from msgspec import Struct
from pydantic import Field

from ayes.consumers.webhooks.endpoints import EndpointStatus
from ayes.interfaces.api.backend import CONSOLE
from ayes.interfaces.api.base import ApiModel, ApiRouter
from ayes.interfaces.api.identity import Operating, Reading, Role
from ayes.ledger.log import Parked
from ayes.ledger.nats.streams import Use
from ayes.ops.actions.parked import fact_json, marked, standing, with_fact
from ayes.ops.inspection.checks import FailingChannel
from ayes.ops.inspection.nodes import Copies
from ayes.ops.inspection.progress import ConsumerStatus
from ayes.projections.views.copied import copied

router: Final = ApiRouter(tags=["operations"])


class Consumer(ConsumerStatus, frozen=True, kw_only=True):
    """The progress of the workers of one kind."""

    #: What a person should look at; empty if nothing.
    problem: str


class StreamUse(Use, frozen=True, kw_only=True):
    """The used share of one limit of a stream."""

    #: Whether so much of it is used that an operator should act.
    is_alarming: bool


class ParkedDelivery(Struct, frozen=True):
    """A delivery that a consumer gave up on."""

    #: Its name in `retry` and `drop`; it changes with each change.
    number: int
    #: Empty: it belongs to none, and can only be dropped.
    consumer: str
    #: The position of the fact in the log.
    seq: int
    subject: str
    reason: str
    #: How often it was tried.
    tries: int
    #: When it was parked.
    parked_at: datetime
    #: What became of it, in words.
    standing: str
    #: Whether it still needs attention, and is not being tried again.
    is_open: bool
    #: What the operator said when dropping it.
    said: str


def _parked(one: Parked) -> ParkedDelivery:
    return copied(
        ParkedDelivery,
        one,
        standing=standing(one),
        is_open=one.is_waiting,
        said=one.mark.reason if one.mark else "",
    )


class Operations(Struct, frozen=True):
    """The state of the broker, the workers and the queue."""

    #: The broker that answers.
    url: str
    #: The number of facts.
    facts: int
    #: The number of the last fact.
    last_seq: int
    #: The bytes of the log.
    bytes: int
    #: Seconds since the last fact; None in an empty log.
    head_age_s: float | None
    #: Calls that wait for people; None if the queue cannot be read.
    pending: int | None
    #: The call that waits for longest, as `workspace/thread/call`.
    oldest: str | None
    #: Since when it waits.
    oldest_since: datetime | None
    #: Calls in doubt, as `workspace/thread/call`; None if they cannot be read.
    in_doubt: list[str] | None
    #: By call, why a start or result of the last week is void; None if they cannot be read.
    void_runs: dict[str, str] | None
    #: The stops in force, a sentence each; None if they cannot be read.
    stopped: list[str] | None
    #: The consumers of the workers.
    consumers: list[Consumer]
    #: The copies of each stream.
    streams: list[Copies]
    #: The use of each limit of the streams.
    room: list[StreamUse]
    #: Of the store's disk.
    free_bytes: int | None
    #: The channels of notices that fail; None if they cannot be read.
    channels: list[FailingChannel] | None
    #: The calendars of absences that cannot be read; likewise.
    calendars: list[FailingChannel] | None
    #: One sentence each.
    alarms: list[str]
    #: What consumers gave up on.
    parked: list[ParkedDelivery]
    #: The endpoints of the store's file of webhooks.
    webhooks: list[EndpointStatus]


@router.get("/operations")
async def operations(visit: Reading) -> Operations:
    """The state of the broker, as `ayes status` shows it, at most some seconds old."""
    found = await visit.site.status()
    oldest = next(iter(visit.site.waiting.oldest(1)), None) if found.pending else None
    return copied(
        Operations,
        found,
        oldest=str(oldest.ref) if oldest else None,
        oldest_since=oldest.gated_at if oldest else None,
        consumers=[copied(Consumer, one) for one in found.consumers],
        room=[copied(StreamUse, one) for one in found.room],
        parked=list(map(_parked, found.parked)),
    )


class ParkedList(Struct, frozen=True):
    """A page of parked deliveries, oldest first."""

    #: Those of the page.
    parked: list[ParkedDelivery]
    next: int | None = None


class ParkedFact(Struct, frozen=True):
    """A parked delivery with the fact that it is about."""

    #: The delivery.
    parked: ParkedDelivery
    #: None if no fact of the log belongs to it.
    recorded_at: datetime | None
    #: The fact's payload as the log has it; None as before, if it is not UTF-8, or to anybody but
    #: operators, since it has secret arguments too.
    payload: str | None
    #: The payload that is not UTF-8, in Base64; else None.
    payload_base64: str | None


@router.get("/operations/parked")
async def parked(
    visit: Reading,
    whole: Annotated[bool, Query(alias="all")] = False,
    after: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> ParkedList:
    """What consumers gave up on; with `all` also what was settled or dropped since."""
    operator = await visit.site.operator(CONSOLE)
    found = [one for one in await operator.log.parked(whole=whole) if one.number > after]
    following = found[limit - 1].number if len(found) > limit else None
    return ParkedList(parked=[_parked(one) for one in found[:limit]], next=following)


@router.get("/operations/parked/{number}")
async def parked_one(number: int, visit: Reading) -> ParkedFact:
    """One parked delivery, with the payload of its fact."""
    one, fact = await with_fact(await visit.site.operator(CONSOLE), number)
    found = fact_json(fact) if fact and Role.OPERATOR in visit.visitor.roles else {}
    return ParkedFact(
        parked=_parked(one),
        recorded_at=fact.recorded_at if fact else None,
        payload=found.get("payload"),
        payload_base64=found.get("payload_base64"),
    )


class ParkedFilter(ApiModel):
    """Parked deliveries by their numbers."""

    #: The numbers, as `number` has them.
    numbers: list[Annotated[int, Field(ge=0, lt=2**63)]] = Field(min_length=1, max_length=200)


class Dropped(ParkedFilter):
    #: Why, for whoever looks at the list later.
    reason: str = ""


@router.post("/operations/parked/retry")
async def retry(chosen: ParkedFilter, visit: Operating) -> ParkedList:
    """Have their consumers handle them again. All are checked before the first is marked."""
    operator = await visit.site.operator(visit.name)
    return ParkedList(
        parked=[_parked(one) async for one in marked(operator, "retry", chosen.numbers)]
    )


@router.post("/operations/parked/drop")
async def drop(chosen: Dropped, visit: Operating) -> ParkedList:
    """Take them off the list, once somebody has seen them. Their facts stay in the log."""
    operator = await visit.site.operator(visit.name)
    found = marked(operator, "drop", chosen.numbers, chosen.reason)
    return ParkedList(parked=[_parked(one) async for one in found])
