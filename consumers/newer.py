"""Facts that a newer program wrote: parked, or passed over, and tried again by a program that reads
them (decision 0017).

A consumer parks the first hundred of them, each in an entry of its own. Whoever records more, of a
type that is made up for example, would fill the consumer's places among the parked entries and then
hold it up (decision 0071). So one more entry stands for all later ones, and these are acknowledged.
It has the versions of the program that parked it: a program that reads more delivers again what
lies between.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Final

from msgspec import UNSET, structs

from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import NEWER, Delivered, Delivery, Parked
from ayes.ledger.patience import while_away
from ayes.ledger.subscriptions import DURABLES, kind_of
from ayes.schemas.codec import Fact
from ayes.schemas.errors import LedgerFull
from ayes.schemas.events import VERSION, Carried, Event
from ayes.schemas.slots import Slot

#: The facts of newer programs that a consumer parks each in an entry of its own.
MAX_NEWER: Final = 100


def why_newer(fact: Fact) -> str:
    """Why this program cannot read a fact; empty if it can, or if no program can."""
    match fact.event:
        case Carried(type=kind, v=version, problem=""):
            return f"a {kind} of version {version} {NEWER}"
        case _:
            return ""


def reads_more(known: Mapping[str, int]) -> bool:
    """Whether this program reads facts that one with these versions does not."""
    return any(version > known.get(kind, -1) for kind, version in VERSION.items())


def with_later(reason: str) -> str:
    """The reason of an entry that stands for later facts too."""
    return f"this fact and later ones that are not listed: {reason}"


class NewerFacts:
    """What a worker does with them."""

    def __init__(self, ledger: Ledger, park: Callable[[Parked], Awaitable[object]]) -> None:
        self._ledger = ledger
        self._park = park
        #: By consumer: what it has parked of newer programs, as of the last look; how many looks
        #: were begun; and one at a time.
        self._parked = defaultdict[str, list[Parked]](list)
        self._looks = Counter[str]()
        self._looking = defaultdict[str, asyncio.Lock](asyncio.Lock)

    async def put_aside(self, durable: str, fact: Fact, tries: int) -> None:
        """Park a fact that this program cannot read, unless a parked entry stands for it.

        Raises:
            Unavailable: the broker does not answer, or has no room for it.
        """
        looks = self._looks[durable]
        async with self._looking[durable]:
            if self._looks[durable] == looks:  # none was begun since this fact was delivered
                self._looks[durable] += 1
                self._parked[durable] = []  # a look that fails shows nothing that stands for it
                found = await self._ledger.log.parked(durable)
                self._parked[durable] = [one for one in found if one.is_newer]
            parked = self._parked[durable]
            if any(_stands_for(one, fact) for one in parked):
                return
            why, now = why_newer(fact), self._ledger.now()
            one = Parked(durable, fact.seq, fact.slot.subject, why, tries, now, newer=True)
            if len(parked) >= MAX_NEWER:
                one = structs.replace(one, reason=with_later(why), known=VERSION)
            await self._park(one)
            parked.append(one)

    async def deliver_again(self, marker: Parked) -> str:
        """Deliver again what this program reads of the later facts that an entry stands for.

        A program that reads them may have run beside the older one, so some were handled
        (`was_handled`).

        Returns: why one of them still cannot be read; empty if all can.

        Raises:
            Unavailable: the broker does not answer.
        """
        subjects, left = DURABLES[kind_of(marker.consumer)].subjects, ""
        async with aclosing(self._ledger.replay(marker.seq + 1, *subjects)) as facts:
            async for fact in facts:
                left = left or why_newer(fact)
                if isinstance(fact.event, Event) and _is_beyond(marker.known, fact):
                    why, now = "an older program passed it over", self._ledger.now()
                    again = Parked(
                        marker.consumer, fact.seq, fact.slot.subject, why, 0, now, state="again"
                    )
                    # There is room for it once those before it are handled.
                    await while_away(partial(self._ledger.log.park, again), of=LedgerFull)
        return left

    async def was_handled(self, delivery: Delivery, handed: Delivered) -> bool:
        """Whether a worker of this kind recorded something because of a fact that `deliver_again`
        has delivered.

        Then it has it, or had it, and may be at work: a claim without a result says nothing about a
        death here. Ask this once the state is loaded: who claims it later than that is met at the
        slot.

        Raises:
            Unavailable: the broker does not answer.
        """
        match delivery.handed, handed:
            case Parked(tries=0), Fact(
                slot=Slot(thread=str(thread)) as slot, event=Event(id=id_)
            ) if thread and delivery.tries == 1:
                facts = await self._ledger.read(slot.call_ref or slot.thread_ref)
                return any(self._is_because_of(one.event, id_) for one in facts)
            case _:
                return False

    def _is_because_of(self, event: Event | Carried, cause: str) -> bool:
        """Whether a worker of this kind recorded it because of the fact with this id."""
        if not isinstance(event, Event) or event.by is UNSET:
            return False
        return event.cause == cause and event.by.kind == self._ledger.author.kind


def _stands_for(parked: Parked, fact: Fact) -> bool:
    if parked.seq == fact.seq:  # a worker that parked it died before the acknowledgement
        return True
    return parked.is_waiting and parked.seq < fact.seq and _is_beyond(parked.known, fact)


def _is_beyond(known: Mapping[str, int], fact: Fact) -> bool:
    """Whether a program with these versions cannot read a fact. An entry without versions stands
    for its own fact alone, so nothing is beyond it.
    """
    match fact.event:
        case Carried(type=kind, v=version):
            pass
        case Event(v=version):
            kind = type(fact.event).__name__
    return bool(known) and version > known.get(kind, -1)
