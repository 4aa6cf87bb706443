"""The logs that workloads are measured on: conversations as a service has them, many of them under
way at once.

A conversation has 20 turns, each with a call that a person approves and an executor runs: eight
facts a turn, each caused by the one before it. The log mixes a few hundred of them, and ends with
every one of those waiting for people, so that logs of any length have the same number of open
approvals.
"""

import asyncio
import itertools
import random
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Final

from msgspec import Struct
from nats.aio.client import Client

from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.keys import Key
from ayes.ledger.nats.protocol import sign_on_with
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.broker.setup import declare_streams
from ayes.schemas import events as e
from ayes.schemas.digest import call_digest
from ayes.schemas.slots import CallRef, Slot, ThreadRef
from ayes.schemas.tools import ToolSpec
from bench.results import SYNC

TURNS: Final = 20
#: Conversations under way at any time.
AT_ONCE: Final = 200
#: Appends in flight: what makes group commits full.
_WRITERS: Final = 1000
_TOOL: Final = "update_reservation"
#: How it can be declared.
TOOL: Final = ToolSpec(name=_TOOL, schema='{"type":"object"}')

type Place = tuple[Slot, e.Event]


class Log(Struct, frozen=True):
    """A log that runs, and how much it holds."""

    store: Path
    facts: int
    #: Calls that wait for people.
    open: int


@asynccontextmanager
async def written(store: Path, facts: int, at_once: int = AT_ONCE) -> AsyncGenerator[Log]:
    """A broker with a log of about `facts` facts; a log that is in the store already is used as it
    is.
    """
    async with EmbeddedServer(store, sync=SYNC):
        await declare_streams(store)
        async with Ledger.connect(store, role="admin") as ledger:
            if not await ledger.log.last_seq():
                await append_all(ledger, mixed(facts, at_once))
            yield Log(store, await ledger.log.last_seq(), at_once)


async def append_all(ledger: Ledger, places: Iterator[Place], *, packed: bool = False) -> None:
    """Append in this order, each fact as the consequence of the one before it in its thread.

    Args:
        packed: the threads may have packs that this process does not know. Who writes behind one
            asks for it first, and the next fact would overtake it; so each waits for the one before
            it in its thread.
    """
    causes: dict[str, e.Event] = {}
    turns = defaultdict[str, asyncio.Lock | nullcontext[None]](
        asyncio.Lock if packed else nullcontext
    )

    async def write() -> None:
        for slot, event in places:
            async with turns[slot.thread]:
                stamped = ledger.with_envelope(event, causes.get(slot.thread))
                causes[slot.thread] = stamped
                await ledger.try_append(slot, stamped)

    async with asyncio.TaskGroup() as writers:
        for _ in range(_WRITERS):
            writers.create_task(write())


def mixed(facts: int, at_once: int) -> Iterator[Place]:
    """About `facts` facts, in the same order each time; the last ones bring each conversation to
    a question.
    """
    chance = random.Random(1)  # noqa: S311 - an order, not a secret
    under_way = [conversation(ThreadRef("bench", f"t{number}")) for number in range(at_once)]
    begun, count = at_once, 0
    while count < facts - 8 * at_once // 2:
        which = chance.randrange(at_once)
        place = next(under_way[which], None)
        if place is None:
            under_way[which] = conversation(ThreadRef("bench", f"t{begun}"))
            begun += 1
            continue
        yield place
        count += 1
    for number, rest in enumerate(under_way, begun):
        # One that is near its end asks nothing more, so another comes after it.
        for slot, event in itertools.chain(rest, conversation(ThreadRef("bench", f"t{number}"))):
            yield slot, event
            if isinstance(event, e.ApprovalRequested):
                break


def interleaved(
    conversations: Iterator[Iterator[Place]], at_once: int = AT_ONCE
) -> Iterator[Place]:
    """The facts of whole conversations, one of each in turns, with `at_once` under way."""
    under_way = deque(itertools.islice(conversations, at_once))
    while under_way:
        one = under_way.popleft()
        if (place := next(one, None)) is not None:
            yield place
            under_way.append(one)
        elif (following := next(conversations, None)) is not None:
            under_way.append(following)


def conversation(ref: ThreadRef) -> Iterator[Place]:
    """A whole conversation, of 165 facts."""
    tools = (e.ToolRef(_TOOL, "v1"),)
    yield (
        ref.opened,
        e.ThreadOpened(requester="rita", agent="desk", model="recorded:desk", tools=tools),
    )
    yield (
        ref.said("m0"),
        e.Said(role="system", text="You change bookings. Ask before you charge anybody. " * 4),
    )
    yield (
        ref.said("m1"),
        e.Said(role="user", text="Please move my booking A-17 to the morning flight. " * 2),
    )
    for turn in range(1, TURNS + 1):
        yield from asking(ref, turn, "Let me change that for you.", ref.wish(turn, 0))
        yield from calling(ref.wish(turn, 0))
    yield from asking(ref, TURNS + 1, "Done: your booking is changed.")


def asking(ref: ThreadRef, turn: int, text: str, call: CallRef | None = None) -> Iterator[Place]:
    """A turn: the model is asked, and answers with a wish for that call if one is given."""
    yield ref.asked(turn, 1), e.ModelAsked(model="recorded:desk")
    wishes = (e.Wish(_TOOL, _arguments(call), f"call_{call.call}"),) if call else ()
    usage = e.Usage(input_tokens=900, output_tokens=60)
    yield (
        ref.replied(turn),
        e.ModelReplied(parts=(e.Text(text), *wishes), model="recorded:desk", usage=usage),
    )


def calling(call: CallRef, version: str = "v1") -> Iterator[Place]:
    """A call from its request to its result, approved by a person.

    Args:
        version: of its tool, if that is declared.
    """
    arguments = _arguments(call)
    digest = call_digest(_TOOL, version, arguments)
    yield (
        call.requested,
        e.ToolRequested(
            tool=_TOOL,
            arguments=arguments,
            digest=digest,
            tool_version=version,
            requester="rita",
            agent="desk",
            provider_id=f"call_{call.call}",
        ),
    )
    yield (
        call.gated,
        e.ApprovalRequested(
            digest=digest,
            rule="money",
            policy_version=1,
            reason="It moves money.",
            excluded=("rita",),
        ),
    )
    yield (
        call.vote("ana"),
        e.Voted(verdict="approve", digest=digest, reason="within the fare rules"),
    )
    yield (
        call.decided,
        e.Approved(digest=digest, ground="people", rule="money", policy_version=1, voters=("ana",)),
    )
    yield call.claim(1), e.ToolStarted(digest=digest, idempotency_key=str(call))
    yield (
        call.finished,
        e.ToolReturned(
            output=f'{{"reservation_id":"{call.thread}","flights":["HAT001","HAT002"],"cabin":"economy"}}'
            * 2
        ),
    )


def _arguments(call: CallRef) -> str:
    return (
        f'{{"reservation_id":"{call.thread}","leg":"{call.call}","cabin":"economy",'
        '"passengers":[{"first_name":"Noah","last_name":"Li"}],"payment_id":"credit_card_4421486"}'
    )


@asynccontextmanager
async def plain_client(store: Path) -> AsyncGenerator[Client]:
    """nats-py as it comes, for a floor: nothing of ours between it and the broker."""
    login = Store.login_for("admin", store=store, url=None)
    client, key = Client(), Key(seed=login.seed)
    sign_on_with(client, key.public)
    inbox = f"_INBOX.{login.user}._".encode()
    await client.connect(login.url, signature_cb=key.answer, inbox_prefix=inbox)
    try:
        yield client
    finally:
        await client.close()
