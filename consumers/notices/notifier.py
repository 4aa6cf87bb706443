"""The notifier: tells people that something is needed of them, and what became of it.

    gated      ──► the people who can help by voting      asked; a reminder before the deadline
    escalated  ──► the people who are asked in addition   escalated; the same
    handed     ──► the colleague to whom it was handed    handed
    announced  ──► those who were asked                   broken-glass
    decided    ──► the requester                          decided, or expired
    in doubt   ──► the people who may reconcile           in-doubt
    void run   ──► the requester, and those who were asked    void
    vote       ──► its voter, if it is signed             signed
    confirmed  ──► whose key counts by that, and others who confirmed it
    decided    ──► devices that were sent a question          (it is taken away)

`projections/recipients.py` says who, when and through which channels, `projections/notices.py` in
which words, `channels.py` sends.

A message is sent, then the fact `Notified` is appended, in a slot of the person (or room) and the
occasion; a slot that is filled is skipped. So every message is sent at least once, and nobody is
told twice, but for the messages that are being sent when a process dies. The messages of a delivery
are sent at the same time and recorded one by one: a channel that fails delays nobody else. Just
before it is sent, the call is read from the broker again: nobody is told when nothing is needed of
them any more. That a notice about a key was sent is not recorded: if the delivery comes again, all
of them are sent again.

Two of these run, each with a durable consumer of its own. One sends what is due at once. The other
sends what is due later, which waits at the broker as a delivery that was handed on; so however much
waits there, prompt notices never wait behind it. Both compute the same due times, from the fact and
the policies in force when it was recorded, and leave the rest to each other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ayes.consumers.effects import Append, Effect, GivenUp, HandOn, Perform
from ayes.consumers.notices.channels import Channels, NotSent
from ayes.ledger.call import Call
from ayes.ledger.clients.services import CHANNEL, Ledger
from ayes.ledger.keys import keys_of
from ayes.ledger.log import Delivered
from ayes.ledger.objections import asks_groups
from ayes.ledger.validity import call_of
from ayes.projections.notices import DigestEntry, Notice, digest, key_notice, notice, subject
from ayes.projections.recipients import (
    MAX_LATE_S,
    QUESTIONS,
    Notification,
    Recipient,
    Situation,
    asked_by,
    is_needed,
    messages,
    nobody,
    told_of_key,
)
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import Unavailable
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import GROUPS, KEYS, REMOVALS

_log: Final = get_logger("ayes.consumers.notices.notifier")

#: Deliveries that one process works on at a time; most of them wait for a channel.
CONCURRENCY: Final = 1024
#: A digest is sent when no more of its notices came for so long; all are due at the same moment.
GATHER_S: Final = 1.0
_MAX_GATHER_S: Final = 10.0
#: What was recorded so long before the start is told together: at the first start it is all that
#: ever waited.
_BACKLOG_S: Final = 60.0
#: What is due in longer than this is looked at again after half of the time, so that a call that is
#: decided long before its reminder does not wait until then.
_DIRECTLY_S: Final = 6 * 3600.0
#: Starts and results: an occasion if they are void.
_RUNS: Final = (e.ToolStarted, e.ToolReturned, e.ToolFailed)
#: The facts that may be an occasion to tell somebody.
_OCCASIONS: Final = (
    e.ApprovalRequested,
    e.Escalated,
    e.HandedOver,
    e.GlassBroken,
    e.Approved,
    e.Denied,
    e.Answered,
    e.Expired,
    e.Withdrawn,
    e.Superseded,
    e.InDoubt,
    e.Voted,
    e.KeyConfirmed,
    *_RUNS,
)

#: Makes the link of a message to its call; empty: the body names a command instead.
type LinkTo = Callable[[Notification, Call], str]


class Sending(Struct, frozen=True):
    """One notice, and what is needed to judge again whether it is."""

    seen: Situation
    message: Notification
    #: The places that the tool declares as secret; None: unknown.
    secret: tuple[str, ...] | None
    #: Whether it is told in one message with others.
    together: bool = False


class Closing(Struct, frozen=True):
    """A notification on somebody's devices of a call that waits for nobody any more."""

    call: Call
    person: str
    channel: str


class Telling(Struct, frozen=True):
    """A notice about a key, for one person or room."""

    to: Recipient
    notice: Notice


type Work = Sending | Closing | Telling


class Outstanding(Struct, frozen=True):
    """The notices of a delivery that are not sent, and when the clock was read."""

    now: datetime
    due: tuple[Work, ...] = ()
    #: Seconds until the next one; None: there is none.
    next_s: float | None = None


class Readings:
    """What providers said last of everybody's groups, however long ago."""

    def __init__(self) -> None:
        self._last: dict[str, Fact] = {}
        self._next = 1

    async def last(self, ledger: Ledger) -> tuple[Fact, ...]:
        """Up to now: only what is new is read."""
        async for fact in ledger.replay(self._next, GROUPS):
            self._next = fact.seq + 1
            if isinstance(fact.event, e.GroupsRead) and not fact.event.problem:
                self._last[fact.slot.tail[1]] = fact
        return tuple(self._last.values())


class Notifier:
    """Sends what is due at once, or with `later` the rest."""

    replaces = False

    def __init__(
        self,
        channels: Channels,
        *,
        link_to: LinkTo = lambda _message, _call: "",
        later: bool = False,
    ) -> None:
        self.durables = ("notifier-later",) if later else ("notifier",)
        self._channels = channels
        self._link_to = link_to
        self._later = later
        self._readings = Readings()
        #: When its first delivery came, on the broker's clock.
        self._began: datetime | None = None
        #: Digests that are being gathered, by recipient.
        self._digests: dict[Recipient, _Digest] = {}

    async def load(self, ledger: Ledger, handed: Delivered) -> Outstanding | None:
        if not isinstance(handed, Fact) or not isinstance(handed.event, _OCCASIONS):
            return None
        if isinstance(handed.event, e.Voted) and not handed.event.signature:
            return None
        if isinstance(handed.event, e.KeyConfirmed):
            return None if self._later else await _about_key(ledger, handed)
        ref = handed.slot.call_ref
        assert ref, "all others are about calls"
        policies = await ledger.policies(ref.workspace)
        if nobody(policies):
            return None
        call = call_of(ref, await ledger.read(ref, must_include=handed.slot))
        if isinstance(handed.event, _RUNS) and handed not in [one.fact for one in call.void]:
            return None
        then = await ledger.policies(ref.workspace, before=handed.seq)
        if call.requested is None or call.newer:
            return None  # nobody may act on it; a newer notifier will
        call = await ledger.with_origin(call)
        readings = await self._readings.last(ledger) if asks_groups(call) else ()
        call, delegations = await ledger.with_given(call, readings=readings)
        call = replace(call, people=replace(call.people, forgives=True))
        now = await ledger.log.clock()
        self._began = self._began or now
        is_old = (self._began - handed.recorded_at).total_seconds() > _BACKLOG_S
        seen = Situation(call, policies, now, delegations)
        found = messages(seen, handed, then)
        mine = [one for one in found if (one.due > handed.recorded_at) is self._later]
        is_over = handed in (call.decided, call.withdrawn) and not self._later
        over = self._asked_on_devices(call) if is_over else ()
        if not mine:
            return Outstanding(now, over)
        tool = await ledger.tool_of(call)
        secret = tool.hidden if tool is not None else None
        waits = [(one.due - now).total_seconds() for one in mine if one.due > now]
        return Outstanding(
            now,
            (
                *over,
                *(
                    Sending(seen, one, secret, one.in_digest or is_old)
                    for one in mine
                    if one.due <= now
                ),
            ),
            min(waits, default=None),
        )

    def _asked_on_devices(self, call: Call) -> tuple[Closing, ...]:
        """The notifications that ask about a call which was decided, or withdrawn."""
        asked = sorted(asked_by(call))
        return tuple(Closing(call, *one) for one in asked if self._channels.push(one[1]))

    def decide(self, seen: Outstanding | None, handed: Delivered) -> Sequence[Effect[Work]]:
        if seen is None:
            return ()
        steps: list[Effect[Work]] = [Perform(None, one) for one in seen.due]
        if seen.next_s is not None:
            after_s = seen.next_s if seen.next_s < _DIRECTLY_S else seen.next_s / 2
            steps.append(HandOn(after_s, "notices are due later"))
        return steps

    async def execute(self, ledger: Ledger, work: Work) -> Append | None:
        if isinstance(work, Closing):
            await self._close(work)
            return None
        if isinstance(work, Telling):
            try:
                await self._send_first(ledger, work.to, work.notice)
            except NotSent as problem:
                raise _not_told(work.to, "key", problem) from None
            return None
        message, ref = work.message, work.seen.call.ref
        call = await ledger.with_origin(call_of(ref, await ledger.read(ref)))
        known = work.seen.call
        call = replace(call, people=known.people, signatures=known.signatures)
        seen = replace(work.seen, call=call, now=await ledger.log.clock())
        if call.requested is None or not is_needed(seen, message):
            return None
        try:
            channel, together = await self._send(ledger, call, work)
        except NotSent as problem:
            raise _not_told(message.recipient, message.occasion, problem) from None
        if self._channels.push(channel) and message.occasion in QUESTIONS:
            call = call_of(ref, await ledger.read(ref))
            if call.decided or call.withdrawn:  # before anybody knew of this notification
                await self._close(Closing(call, message.recipient.to, channel))
        return Append(message.slot(call), e.Notified(channel=channel, together=together))

    async def _close(self, work: Closing) -> None:
        """Take a notification away. If that fails, its page still says what became of it."""
        if (push := self._channels.push(work.channel)) is not None:
            await push.close(work.person, work.call.ref, subject(work.call, "decided"))

    async def _send(self, ledger: Ledger, call: Call, work: Sending) -> tuple[str, int]:
        """The channel that took the message, and the number of notices in it."""
        message = work.message
        link = self._link_to(message, call)
        if work.together:
            listed = DigestEntry(call, message.occasion, link, work.secret, message.recipient.to)
            return await self._in_digest(ledger, message, listed)
        asking = call.approval_request
        told = notice(
            call,
            message.occasion,
            secret=work.secret,
            link=link,
            to=message.recipient.to,
            may_break_glass=asking is not None
            and call.people.is_among(message.recipient.to, asking.may_break_glass, work.seen.now),
        )
        return await self._send_first(ledger, message.recipient, told), 1

    async def _send_first(self, ledger: Ledger, reader: Recipient, told: Notice) -> str:
        """Send to the first of the reader's contacts that works; returns its channel.

        Raises:
            NotSent: none did.
        """

        async def on_change(channel: str, why: str) -> None:
            await note_failing(ledger, CHANNEL + channel, why)

        problems = []
        for contact in reader.contacts:
            try:
                to = "" if reader.is_room else reader.to
                await self._channels.send(contact, told, on_change, to)
            except NotSent as problem:
                problems.append(str(problem))
            else:
                return contact.partition(":")[0]
        raise NotSent("; ".join(problems))

    async def _in_digest(
        self, ledger: Ledger, message: Notification, listed: DigestEntry
    ) -> tuple[str, int]:
        reader = message.recipient
        if (gathering := self._digests.get(reader)) is None:

            async def send(told: Notice) -> str:
                return await self._send_first(ledger, reader, told)

            gathering = self._digests[reader] = _Digest(send, lambda: self._digests.pop(reader))
        return await gathering.join(listed)


async def _about_key(ledger: Ledger, confirmation: Fact) -> Outstanding | None:
    """The notices about a key that counts by this confirmation, at once or after some time."""
    if (trust := ledger.trust) is None:
        return None
    about = await ledger.read(KEYS, REMOVALS, must_include=confirmation.slot)
    until_then = keys_of((one for one in about if one.seq <= confirmation.seq), trust)
    _, person, id_, *_ = confirmation.slot.tail
    key, now = until_then.get(person, id_), await ledger.log.clock()
    if key is None or key.confirmed != confirmation or key.counts_from is None:
        return None
    if (now - key.counts_from).total_seconds() > MAX_LATE_S:
        return None
    told = key_notice(key)
    readers = told_of_key(key, await ledger.policies_by_owner())
    return Outstanding(now, tuple(Telling(one, told) for one in readers))


def _not_told(reader: Recipient, occasion: str, problem: NotSent) -> GivenUp:
    who = f"room {reader.to}" if reader.is_room else reader.to
    return GivenUp(f"{who} was not told ({occasion}): {problem}")


class _Digest:
    """The notices of one recipient that are due at the same time: sent as one message."""

    def __init__(
        self, send: Callable[[Notice], Awaitable[str]], begins: Callable[[], object]
    ) -> None:
        self._send = send
        #: Called when it is sent: later notices are another digest's.
        self._begins = begins
        self._listed: list[DigestEntry] = []
        self._sent = asyncio.create_task(self._gather())

    async def join(self, listed: DigestEntry) -> tuple[str, int]:
        """Send a notice with the others; returns the channel and their number."""
        self._listed.append(listed)
        # One that is cancelled does not keep the others from being told.
        return await asyncio.shield(self._sent)

    async def _gather(self) -> tuple[str, int]:
        known = -1
        for _ in range(round(_MAX_GATHER_S / GATHER_S)):
            if len(self._listed) == known:
                break
            known = len(self._listed)
            await asyncio.sleep(GATHER_S)
        self._begins()
        listed = sorted(self._listed, key=lambda one: one.call.facts[0].seq)
        return await self._send(digest(listed)), len(listed)


async def note_failing(ledger: Ledger, key: str, why: str) -> None:
    """Say in the bucket `running` that a channel or calendar fails, and why, or that it works."""
    try:
        if why:
            value = msgspec.json.encode({"why": why, "since": await ledger.log.clock()})
            await ledger.log.running.overwrite(key, value)
        else:
            value, revision = await ledger.log.running.get(key)
            if value:
                await ledger.log.running.delete(key, revision)
    except Unavailable as problem:
        _log.warning("what fails is not noted", key=key, problem=str(problem))
