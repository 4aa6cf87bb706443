"""A connection to the ledger: appending and reading facts, tools and policies.

`services.py` adds the methods for services (`Ledger`), `reviewers.py` those for reviewers
(`Reviewer`); workers need no more than this. Reading folds facts, and each action appends one.
An event that may not follow is refused before it is sent (`validity.refusal`). Of two writers of
one slot the broker accepts one; the other gets `SlotTaken` with the fact that was first.
"""

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import datetime, timedelta
from itertools import batched
from operator import attrgetter
from pathlib import Path
from typing import Any, Concatenate, Final, Protocol, Self

import msgspec
from msgspec.structs import replace

from ayes.ledger import clock, tracing
from ayes.ledger.call import Call
from ayes.ledger.descriptions import already_filled
from ayes.ledger.files import kept_again, with_files_kept
from ayes.ledger.judging.budgets import (
    Sum,
    as_found,
    candidates,
    filled,
    giving_back,
)
from ayes.ledger.judging.chain import Chain, chain_above
from ayes.ledger.judging.grants import (
    Delegation,
    Grant,
    delegations_of,
    grants_of,
    with_signatures,
)
from ayes.ledger.judging.in_force import (
    VoidVersion,
    needing_approval,
    policy_in_force,
    policy_of,
    subject_of,
    tool_of,
    void_policies,
    void_tools,
)
from ayes.ledger.judging.policies import (
    AppliedPolicy,
    Origin,
    Policies,
    attributed,
    classed,
    origin,
)
from ayes.ledger.judging.policy_proposals import named_proposal
from ayes.ledger.judging.policy_proposals import problem as problem_of
from ayes.ledger.judging.unjudged import unjudged_rule
from ayes.ledger.judging.verdict import running
from ayes.ledger.judging.votes import Tally, tally
from ayes.ledger.keys import (
    ABOUT_KEYS,
    Counters,
    Keys,
    PersonKey,
    Signatures,
    assertion_of,
    keys_of,
)
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import (
    AlreadyRecorded,
    AppendResult,
    EventLog,
    FactReader,
    Overtaken,
    Recorded,
    SlotTaken,
    Unconfirmed,
)
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.objections import asks_groups, votes_rest_on
from ayes.ledger.passkeys import Passkey
from ayes.ledger.patience import while_away
from ayes.ledger.people import OPENID, People, people_of, readings_for
from ayes.ledger.seal import SignerKey
from ayes.ledger.signing import Bound
from ayes.ledger.thread_keys import ThreadKeys
from ayes.ledger.trust import Trust
from ayes.ledger.validity import call_of, refusal
from ayes.schemas import events as e
from ayes.schemas import ids
from ayes.schemas.codec import Fact, encode, fact_of
from ayes.schemas.content import by_digest
from ayes.schemas.digest import text_digest
from ayes.schemas.errors import (
    AlreadyFilled,
    BadFact,
    BadFile,
    BadId,
    BadInput,
    BadSlot,
    BrokerAway,
    CallChanged,
    DeadlinePassed,
    NotAllowed,
    NotOpen,
    OutcomeUnknown,
    StillPending,
    Unavailable,
    UnknownCall,
    UnknownTool,
)
from ayes.schemas.logs import get_logger
from ayes.schemas.people import plain
from ayes.schemas.policy import Policy
from ayes.schemas.quorums import GROUP
from ayes.schemas.slots import (
    KEYS,
    ORGANISATION,
    PEOPLE,
    POLICY,
    REMOVALS,
    ROOT,
    STOP,
    TOOL,
    CallRef,
    DelegationRef,
    GrantRef,
    Slot,
    StopRef,
    ThreadRef,
    declarations,
    delegations,
    grants,
    groups_slot,
    policies,
    policy_slot,
    stops,
    tool_slot,
    votes_of,
)
from ayes.schemas.tools import Tool, ToolSpec, declaration, judged_class

_log: Final = get_logger("ayes.ledger.clients.client")

#: How long a reader waits for a replica to catch up with a known fact.
_CATCH_UP_S: Final = 2.0
#: The number of calls that are read with one request.
_CALLS_AT_ONCE: Final = 100
#: The number of a fact that is not recorded yet.
NEXT: Final = 2**63
#: Votes whose signatures are judged before others may go on: some 20 ms.
_VOTES_AT_ONCE: Final = 100
#: How long the clock here is believed to be as far off the broker's as it was.
_COMPARED_FOR_S: Final = 60.0
#: A difference of the clock here and of the time that has passed, by which it was set.
_SET_S: Final = 1.0
#: Versions of policies that are kept for the questions that name them.
_MAX_NAMED: Final = 1000
#: How often a decision is taken anew because the call changed meanwhile.
_CHANGES: Final = 5
#: Files may have been swept if a fact is recorded so long after them, or later (`ops/files.py`).
_LATE: Final = timedelta(hours=1)


class _OnALog(Protocol):
    @property
    def log(self) -> EventLog: ...


def as_of_the_leader[S: _OnALog, **P, R](
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """Confirm a refusal that may rest on a missing fact by the leader (docs/decisions/0026).

    A fact that a replica does not have may be recorded all the same. So before the refusal is
    raised, the method is tried once more and reads as of at least the leader's last fact. So it is,
    some times, if the call changed while it was decided.
    """

    async def decided(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with suppress(NotOpen, NotAllowed, StillPending, CallChanged):
            return await method(self, *args, **kwargs)
        for _ in range(_CHANGES):
            await self.log.last_seq()
            with suppress(CallChanged):
                return await method(self, *args, **kwargs)
        return await method(self, *args, **kwargs)

    functools.update_wrapper(decided, method)
    return decided


class LedgerClient:
    """A connection to the ledger and the author of what it appends. The one place that appends."""

    def __init__(
        self,
        log: EventLog,
        author: e.Author,
        *,
        now: clock.Clock = clock.now,
        new_id: ids.NewId = ids.new_id,
    ) -> None:
        self.log = log
        self.reading: FactReader = log
        self.author = author
        self.now = now
        self._new_id = new_id
        # Policies and declarations never change, so these caches stay valid.
        #: By subject; None: the declaration is void.
        self._tools: dict[str, Tool | None] = {}
        #: By the subject of the newest version of a policy.
        self._policies: dict[str, AppliedPolicy] = {}
        #: The newest version of a policy that was read, as its sequence, by workspace.
        self._newest: dict[str, int] = {}
        #: The versions of policies that questions name: a slot keeps its fact for ever.
        self._named: dict[Slot, Fact] = {}
        #: By what keys of people are judged; None: signatures are not judged here.
        self.trust: Trust | None = None
        #: With which a reviewer's votes are signed; None: they are not.
        self.signer: SignerKey | None = None
        #: With which sealed values are sealed and opened; None: they are not, here.
        self.keys: ThreadKeys | None = None
        #: What the facts about keys come to, by their number and the last of them: the newest.
        self._keys: dict[tuple[int, int], Keys] = {}
        #: When the clock here was compared with the broker's, by the event loop and by itself, and
        #: by how many seconds it was ahead.
        self._compared: tuple[float, datetime, float] | None = None
        #: By person.
        self._counters: dict[str, Counters] = {}

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        store: Path | str | None = None,
        *,
        url: str | None = None,
        role: str = "service",
        name: str = "",
        timeout_s: float | None = 3.0,
        trust: Trust | None = None,
        keys: ThreadKeys | None = None,
    ) -> AsyncGenerator[Self]:
        """Connect to the broker that runs from `store`, or to the one at `url`.

        Args:
            store: a directory; None: the user's own.
            url: or the URLs of several servers of a cluster, comma-separated.
            role: the role of the credentials: `service`, `gate`, `reviewer-ana`, ...; see
                docs/people.md.
            name: a name within the role, recorded as the author.
            timeout_s: how long to wait for a broker; None: as long as it takes.
            trust: the trust file (`read_trust`), where votes are signed: what is started on this
                connection then leads back to signed votes and policies (docs/keys.md).
            keys: the directory of the keys of threads, where tools seal values (docs/secrets.md).

        Raises:
            BrokerAway: no broker answered within `timeout_s`.
            BrokerRefused: the broker rejects these credentials.
            BadInput: as of `trust_in`.
        """
        opened = JetStream.connect(store, url=url, role=role, name=name, timeout_s=timeout_s)
        async with opened as log:
            ledger = cls.on(log, role, name)
            await ledger.trust_in(trust)
            ledger.keys = keys
            yield ledger

    @classmethod
    def on(cls, log: EventLog, role: str, name: str = "") -> Self:
        """The ledger on a log that is open already; role and name as in `connect`."""
        kind, _, person = role.partition("-")
        return cls(log, e.Author(kind=kind, name=name or person or kind))

    async def trust_in(self, trust: Trust | None) -> None:
        """Judge signatures by a trust file from here on; None: judge none.

        Raises:
            BadInput: it is of another log, or a login with some workspaces cannot read whose keys
                count.
        """
        if trust is None:
            self.trust = None
            return
        if isinstance(self.log, JetStream) and self.log.connection.login.workspaces:
            raise BadInput(
                "a login with some workspaces cannot judge signatures, since it does not read "
                "people's keys. Use one of the whole site, or omit [trust] from its settings."
            )
        if (log := await self.log.identity()) != trust.log:
            raise BadInput(
                f"the trust file is of the log {trust.log}, and this one is {log or 'empty'}. Name "
                "the file of this log in [trust] of the settings."
            )
        self.trust = trust

    def reading_from(self, source: FactReader) -> Self:
        """The same ledger, but reading facts from `source`."""
        other = object.__new__(type(self))
        other.__dict__ |= self.__dict__  # each delivery has one, and `copy` takes ten times as long
        other.reading = source
        return other

    def on_log(self, log: EventLog) -> Self:
        """The same author on another log."""
        other = type(self)(log, self.author, now=self.now, new_id=self._new_id)
        other.trust, other.signer, other.keys = self.trust, self.signer, self.keys
        return other

    # ------------------------------------------------------------------------------------ appending

    async def append(
        self,
        slot: Slot,
        event: e.Event,
        *,
        cause: e.Event | None = None,
        fallback_slot: Slot | None = None,
        after: int | None = None,
    ) -> AppendResult:
        """Fill a slot, and complete the event's id, time and author.

        Args:
            cause: the event that this one reacts to: its id is recorded, and its trace continued.
            fallback_slot: the slot to fill if another fact took the first one.
            after: as for `EventLog.append`.

        Raises:
            BadSlot: such a fact cannot fill the slot.
            BadInput: a file in it cannot be recorded (`ayes.ledger.files`).
            TooLarge: it is over the limit of one fact.
            BrokerRefused: these credentials may not write there.
        """
        if not isinstance(event, slot.filled_by):
            raise BadSlot(f"a {type(event).__name__} cannot be in {slot.subject}")
        given, begun = self.with_envelope(event, cause), self.now()
        event = await with_files_kept(self.log, slot.workspace, given)
        result = await self.log.append(slot, encode(event), event.id, after)
        if self.now() - begun > _LATE and not isinstance(result, SlotTaken):
            await kept_again(self.log, slot.workspace, given, event)
        if isinstance(result, SlotTaken) and fallback_slot is not None:
            fallback = await self.append(fallback_slot, event)
            return fallback if isinstance(fallback, Unconfirmed) else result
        return result

    async def try_append(
        self,
        slot: Slot,
        event: e.Event,
        fallback_slot: Slot | None = None,
        after: int | None = None,
    ) -> Fact | None:
        """Append, and return None if the event is recorded, else the fact that was first.

        Raises:
            CallChanged: there is a later revocation of the call than `after`.
            OutcomeUnknown: no answer came.
        """
        match await self.append(slot, event, fallback_slot=fallback_slot, after=after):
            case Recorded() | AlreadyRecorded():
                return None
            case SlotTaken(first):
                return first
            case Overtaken():
                raise CallChanged(
                    f"a revocation of {slot.call_ref} was recorded that could not be read. Nothing "
                    "was recorded now. Do the same again."
                )
            case Unconfirmed(why):
                unknown = f"nobody can say whether {slot.subject} is recorded: {why.rstrip('.')}"
                raise OutcomeUnknown(f"{unknown}. Do the same again: it is safe.")

    async def append_until_acknowledged(
        self,
        slot: Slot,
        event: e.Event,
        *,
        cause: e.Event | None = None,
        fallback_slot: Slot | None = None,
    ) -> Fact | None:
        """As `try_append`, for as long as it takes. A cancellation takes effect afterwards.

        Raises:
            BrokerRefused: these credentials may not write there.
        """
        stamped = self.with_envelope(event, cause)
        writing = asyncio.create_task(
            while_away(lambda: self.try_append(slot, stamped, fallback_slot), of=Unavailable)
        )
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            await writing
            raise

    async def check(self, call: Call, slot: Slot, event: e.Event) -> None:
        """Raise `validity.refusal` if this event may not be recorded next.

        That a deadline has passed, or that a stop has ended by itself, is for the broker's clock to
        say (decision 0007).
        """
        problem = refusal(call, slot, event, self.now())
        is_timed = isinstance(event, e.ToolStarted) and any(one.ends_at for one in call.stops)
        if isinstance(problem, DeadlinePassed) or is_timed:
            problem = refusal(call, slot, event, await self.log.clock())
        if problem is not None:
            raise problem

    async def is_too_late(self, call: Call) -> bool:
        """Whether the approval of a call that seems not to be started is valid no longer.

        A start that was recorded just in time may be missing in what was read.
        """
        until = call.valid_until
        if until is None or call.status is not Status.APPROVED:
            return False
        return await self.log.clock() >= until

    async def ahead_s(self) -> float:
        """By how many seconds the clock here is ahead of the broker's. It is asked for once a
        minute, and when the clock here was set since.
        """
        now, passed = self.now(), asyncio.get_running_loop().time()
        if self._compared is not None:
            at, then, ahead = self._compared
            since = passed - at
            is_set = abs((now - then).total_seconds() - since) > _SET_S
            if since < _COMPARED_FOR_S and not is_set:
                return ahead
        ahead = (now - await self.log.clock()).total_seconds()
        self._compared = passed, now, ahead
        return ahead

    async def append_exclusive(self, slot: Slot, event: e.Event, after: int | None = None) -> None:
        """Fill a slot, which must be free.

        Raises:
            AlreadyFilled: another fact was first.
            CallChanged: there is a later revocation of the call than `after`.
            OutcomeUnknown: no answer came.
        """
        if (first := await self.try_append(slot, event, after=after)) is not None:
            raise AlreadyFilled(already_filled(slot, first))

    async def fill(
        self, ref: CallRef, slot: Slot, event: e.Event, after: int | None = None
    ) -> Call:
        """Fill a slot of a call, which must be free, and read the call back. An acknowledgement
        alone is not believed: the fact that is read in the slot must be this event.

        Raises:
            AlreadyFilled: another fact is there.
            CallChanged, OutcomeUnknown: as of `append_exclusive`.
        """
        own = self.with_envelope(event)
        await self.append_exclusive(slot, own, after)
        facts = await self.read(ref, must_include=slot)
        first = next(fact for fact in facts if fact.slot == slot)
        if not is_same_event(first, own):
            raise AlreadyFilled(already_filled(slot, first))
        return call_of(ref, facts)

    async def record(self, call: Call, slot: Slot, event: e.Event) -> Call:
        """Record an event about a call that must be the first in its slot, and read the call back.

        Raises:
            Refused: it may not follow (`validity.refusal`), or another fact was first.
            OutcomeUnknown: no answer came.
        """
        await self.check(call, slot, event)
        return await self.fill(call.ref, slot, tracing.about(call, event))

    def with_envelope(self, event: e.Event, cause: e.Event | None = None) -> e.Event:
        """The event with its id, time and author. Appending the same one again is safe."""
        return msgspec.structs.replace(
            event,
            id=event.id or self._new_id(),
            v=e.VERSION[type(event).__name__],
            at=self.now() if event.at is msgspec.UNSET else event.at,
            by=self.author if event.by is msgspec.UNSET else event.by,
            cause=event.cause or (cause.id if cause else ""),
            trace=event.trace or tracing.continued(cause.trace if cause else ""),
        )

    # -------------------------------------------------------------------------------------- reading

    async def read(
        self,
        *refs: CallRef | ThreadRef | GrantRef | DelegationRef | StopRef | Slot | str,
        must_include: Slot | None = None,
    ) -> tuple[Fact, ...]:
        """Every fact about calls, threads or grants, or in slots, in log order as of one moment.

        With those about calls and threads come those about the stops in their workspaces, since
        these say which starts count. That there is nothing else is the leader's answer.

        Args:
            refs: also subjects with wildcards.
            must_include: a slot that is known to be filled. A replica that does not have it yet
                is asked again.

        Raises:
            BrokerAway: no replica that answers has the fact in time.
        """
        subjects = [ref if isinstance(ref, str) else ref.subjects for ref in refs]
        whose = dict.fromkeys(ref.workspace for ref in refs if isinstance(ref, CallRef | ThreadRef))
        subjects += dict.fromkeys(one for workspace in whose for one in stops(workspace))
        clock = asyncio.get_running_loop()
        until = clock.time() + _CATCH_UP_S
        while True:
            facts = await self.reading.read(*subjects)
            only_stops = bool(whose and facts) and all(one.slot.tail[0] == STOP for one in facts)
            if only_stops and must_include is None:
                await self.log.last_seq()
                facts = await self.reading.read(*subjects)
            # Mostly it is one of the last.
            if must_include is None or any(fact.slot == must_include for fact in reversed(facts)):
                return facts
            if clock.time() > until:
                behind = f"{must_include.subject} cannot be read yet; a replica is behind."
                raise BrokerAway(behind)
            await asyncio.sleep(0.01)

    async def call(self, ref: CallRef, *, must_include: Slot | None = None) -> Call:
        """The call that its facts make; without facts its status is UNKNOWN."""
        return call_of(ref, await self.read(ref, must_include=must_include))

    async def call_patiently(self, ref: CallRef, *, must_include: Slot) -> Call:
        """As `call`, for as long as it takes: for a program that must know if its claim counts.

        Raises:
            BrokerRefused: these credentials may not read it.
        """
        return await while_away(lambda: self.call(ref, must_include=must_include), of=Unavailable)

    async def known_call(self, ref: CallRef) -> Call:
        """The call, which must have been requested.

        Raises:
            UnknownCall: it was not.
        """
        call = await self.call(ref)
        if call.requested is None and call.facts:
            # Something void came first: the replica that has it may lack the request after it.
            await self.log.last_seq()
            call = await self.call(ref)
        if call.requested is None:
            raise UnknownCall(f"{ref} was never requested. `ayes pending` lists what waits.")
        return call

    async def open_questions(
        self, thread: ThreadRef, *, must_include: Slot | None = None
    ) -> tuple[Call, ...]:
        """The pending calls of a thread.

        Reads only the approval requests and decisions, so it is cheap in a long thread. The calls
        have these facts alone.
        """
        calls_of = f"{ROOT}.{thread.workspace}.{thread.thread}.call.*"
        refs = (must_include,) if must_include else ()
        subjects = (f"{calls_of}.gated", f"{calls_of}.decided")
        facts = await self.read(*subjects, *refs, must_include=must_include)
        asked = [
            fact.slot.call_ref for fact in facts if isinstance(fact.event, e.ApprovalRequested)
        ]
        calls = [call_of(ref, facts) for ref in asked if ref is not None]
        return tuple(call for call in calls if call.decided is None)

    def replay(self, start: int | datetime = 1, *subjects: str) -> AsyncGenerator[Fact]:
        """Facts from a number or time on, up to the current end.

        Args:
            subjects: with wildcards; none for every fact.
        """
        return self._each(self.log.follow(subjects, start, until_end=True))

    def watch(self, start: int | datetime = 1, *subjects: str) -> AsyncGenerator[Fact]:
        """As `replay`, and then new facts, for ever."""
        return self._each(self.log.follow(subjects, start, until_end=False))

    async def _each(self, following: AsyncGenerator[list[Fact]]) -> AsyncGenerator[Fact]:
        async with aclosing(following) as batches:
            async for facts in batches:
                for fact in facts:
                    yield fact

    async def policies(self, workspace: str, *, before: int | None = None) -> Policies:
        """The policies in force: the newest readable ones. Without any, people are always asked.

        Args:
            before: as of just before that number of the log.
        """
        return Policies(
            await self._in_force(workspace, before), await self._in_force(ORGANISATION, before)
        )

    async def alarms(self) -> tuple[VoidVersion, ...]:
        """The policies and declarations that are void though newer than those in force."""
        applied = await self.reading.read(f"{ROOT}.*.{POLICY}.*")
        declared = await self.reading.read(f"{ROOT}.*.{TOOL}.*.*")
        return (*void_policies(applied, await self._unapproved(applied)), *void_tools(declared))

    async def grants(self, workspace: str) -> tuple[Grant, ...]:
        """All grants of a workspace, past ones included, oldest first."""
        return grants_of(await self.reading.read(grants(workspace), REMOVALS))

    async def delegations(self, workspace: str) -> tuple[Delegation, ...]:
        """All delegations of a workspace, past ones included, oldest first."""
        return delegations_of(await self.reading.read(delegations(workspace), REMOVALS))

    async def people(self, *names: str) -> People:
        """The people and their accounts, as of the leader's last fact; and what was last said of
        the groups of these.
        """
        await self.log.last_seq()
        return people_of(await self.reading.read(*PEOPLE, *self._readings(names)))

    def _readings(self, names: Iterable[str]) -> tuple[str, ...]:
        now = self.now()
        return readings_for((GROUP,), ((name, now) for name in names)) if names else ()

    async def record_person(
        self, slot: Callable[[int], Slot], event: e.Event, seen: "LedgerClient | None" = None
    ) -> People:
        """Record a fact about a person in the next slot of its series; the people after it.

        Args:
            seen: who reads, if these credentials may not.
        """
        seen = seen or self
        recorded = await self.record_next(PEOPLE, slot, event, seen)
        return people_of(await seen.read(*PEOPLE, must_include=recorded))

    async def record_next(
        self,
        series: tuple[str, ...],
        slot: Callable[[int], Slot],
        event: e.Event,
        seen: "LedgerClient | None" = None,
    ) -> Slot:
        """Record a fact in the first free slot of those that `series` match; returns the slot.

        Args:
            seen: as of `record_person`.
        """
        taken, number = {fact.slot for fact in await (seen or self).reading.read(*series)}, 1
        while slot(number) in taken or await self.try_append(slot(number), event) is not None:
            number += 1
        return slot(number)

    async def record_groups(self, name: str, read: e.GroupsRead) -> None:
        """Record what a provider says of a person's groups, if the account is theirs; unless more
        recent words are recorded, or the same ones that count for half of their time yet.
        """
        people = await self.people(name)
        whose = people.accounts.get(f"{OPENID}{read.issuer}#{read.subject}", "")
        if plain(whose) != plain(name):
            return
        if (last := people.reading(name)) is not None:
            is_same = same_content(replace(last, read_at=read.read_at, until=read.until), read)
            half = last.read_at + (last.until - last.read_at) / 2
            if read.read_at < (half if is_same else last.read_at):
                return
        number = 1
        while (
            await self.try_append(groups_slot(plain(name), read.read_at, number), read) is not None
        ):
            number += 1

    async def with_usage(
        self,
        sums: Sequence[Sum],
        call: Call,
        *,
        must_include: Slot,
        is_exact: bool = False,
        decided: Fact | None = None,
    ) -> tuple[Sum, ...]:
        """Sums of budgets (`sums_of`) with what is used of them, as this call finds them.

        Args:
            is_exact: whether to read which calls give their amounts back even where there is room
                without that.
            decided: the approval of the call; then as it found them.
        """
        if not sums:
            return ()
        ref = call.ref
        replies = f"{ROOT}.{ref.workspace}.{ref.thread}.turn.*.replied"
        facts = await self.read(
            *(one.ref.subjects for one in sums),
            *((replies,) if any(one.counts_replies for one in sums) else ()),
            must_include,
            must_include=must_include,
        )
        if decided is None:
            sums = tuple(filled(one, facts) for one in sums)
        else:
            ran = running(call, call.approval)
            sums = tuple(as_found(one, facts, call, decided, ran) for one in sums)
        tight = [
            one
            for one in sums
            if is_exact or not all(one.fits(ref, args) for args in candidates(call))
        ]
        refs = tuple(dict.fromkeys(other for one in tight for other in one.others(ref)))
        back = frozenset[str]()
        for some in batched(refs, _CALLS_AT_ONCE, strict=False):
            read = await self.read(*some, must_include, must_include=must_include)
            back |= giving_back(some, read)
        return tuple(replace(one, given_back=back) for one in sums)

    async def tally(self, call: Call) -> Tally:
        """Count the votes on a call that people were asked about."""
        votes = [vote.event for vote in call.votes if isinstance(vote.event, e.Voted)]
        call, given = await self.with_given(call) if votes else (call, ())
        policies, tool = Policies(), None
        if any(one.arguments is not None for one in votes):
            call = await self.with_origin(call)
            policies = await self.policies(call.ref.workspace)
            tool = await self.tool_of(call)
            call = await self.with_class(call, policies, tool)
        return tally(call, policies, tool, given)

    async def with_given(
        self, call: Call, *names: str, readings: Iterable[Fact] = ()
    ) -> tuple[Call, tuple[Delegation, ...]]:
        """The call with who was removed and in which groups its voters are, and the delegations:
        its votes rest on all of it.

        Args:
            names: others whose groups matter now, if it asks any.
            readings: what else is known of groups.
        """
        given = delegations(call.ref.workspace)
        more = self._readings(names) if asks_groups(call) else ()
        facts = await self.reading.read(given, *dict.fromkeys((*votes_rest_on(call), *more)))
        every = {fact.seq: fact for fact in (*facts, *readings)}
        call = replace(call, people=people_of(every[seq] for seq in sorted(every)))
        if self.trust is not None:
            call = await self.with_signatures(call, self.trust)
        return call, delegations_of(facts)

    async def with_signatures(
        self, call: Call, trust: Trust, *, must_include: Slot | None = None
    ) -> Call:
        """The call with what its signed votes are judged by, if signed votes are wanted."""
        decided = call.decided.seq if call.decided is not None else None
        is_wanted = trust.wants_signed(call.ref.workspace, decided)
        is_asked = call.requested is not None and call.gated is not None
        if not (is_asked and call.votes and (call.wants_signed or is_wanted)):
            return call
        assert call.gated
        latest = must_include or call.gated.slot
        facts = await self.read(KEYS, REMOVALS, _policy_named(call), latest, must_include=latest)
        keys, bound = self.judged_keys(facts, trust), bound_to(call, trust.log, facts)
        fell = await self.fallen(call, keys)
        return call.judged_by(Signatures(bound, keys, fell, is_wanted, decided))

    async def fallen(self, call: Call, keys: Keys) -> dict[int, Fact]:
        """The votes on a call that do not count by the counters of their passkeys, which go through
        all that their people have voted: each of these is read and judged once.
        """
        found = dict[int, Fact]()
        for vote in call.votes:
            if vote.seq != NEXT and assertion_of(vote) is not None:
                counters = await self._counters_at(vote, keys)
                if (by := counters.fallen.get(vote.seq)) is not None:
                    found[vote.seq] = by
        return found

    async def _counters_at(self, vote: Fact, keys: Keys) -> Counters:
        """Those of the person of a vote, with all their votes up to it."""
        person = vote.slot.tail[3]
        counters = Counters(keys.confirmed(person))
        if (known := self._counters.get(person)) is not None and known.keys == counters.keys:
            counters = known
        self._counters[person] = counters
        if 0 < counters.last < vote.seq:
            async with aclosing(self.log.scan(counters.last + 1, votes_of(person))) as pages:
                later = [
                    fact_of(raw.seq, raw.recorded_at, raw.subject, raw.data)
                    async for page in pages
                    for raw in page
                ]
            await _judge(counters, later)
        if counters.last < vote.seq:
            await _judge(counters, await self.read(votes_of(person), must_include=vote.slot))
        return counters

    async def copied(self, trust: Trust) -> list[tuple[PersonKey, Fact]]:
        """The passkeys that may have a copy and are not revoked, each with the last vote after
        which its counter did not rise.
        """
        keys = [
            key
            for key in (await self.keys_of(trust)).each.values()
            if isinstance(key.public, Passkey) and key.confirmed and not key.revoked
        ]
        found = list[tuple[PersonKey, Fact]]()
        for person in dict.fromkeys(key.person for key in keys):
            votes = await self.read(votes_of(person))
            for key in keys:
                if key.person == person:
                    counters = Counters([key])
                    counters.add(votes)
                    found += [(key, vote) for vote in [*counters.fallen.values()][-1:]]
        return found

    async def with_signed(
        self, grants: Sequence[Grant], *, must_include: Slot | None = None
    ) -> tuple[Grant, ...]:
        """The grants, with which of them are signed."""
        if self.trust is None or not any(one.granted.signature for one in grants):
            return tuple(grants)
        keys = await self.keys_of(self.trust, must_include)
        return with_signatures(grants, keys, self.trust.log)

    async def keys_of(self, trust: Trust, must_include: Slot | None = None) -> Keys:
        """The keys of people, as a trust file judges them."""
        latest = (must_include,) if must_include is not None else ()
        facts = await self.read(KEYS, REMOVALS, *latest, must_include=must_include)
        return self.judged_keys(facts, trust)

    def judged_keys(self, facts: Iterable[Fact], trust: Trust) -> Keys:
        """The keys of people among these facts, judged again if there are new ones about them."""
        facts = tuple(
            one
            for one in facts
            if one.slot.workspace == ORGANISATION and isinstance(one.event, ABOUT_KEYS)
        )
        known = len(facts), facts[-1].seq if facts else 0
        if (found := self._keys.get(known)) is None:
            self._keys.clear()  # the same object for each delivery (`reading_from`)
            found = self._keys[known] = keys_of(facts, trust)
        return found

    def wants_signed(self, call: Call) -> bool:
        """Whether votes on a pending call, other than denials, count only if they are signed."""
        trusts = self.trust is not None and self.trust.wants_signed(call.ref.workspace)
        return call.wants_signed or trusts

    async def bound(self, call: Call, log: str) -> Bound:
        """What signed votes on a call that people were asked about are bound to.

        Args:
            log: its identity.
        """
        assert call.gated
        named, question = _policy_named(call), call.gated.slot
        if named not in self._named:
            # A replica that has the question has its policy.
            facts = await self.read(named, question, must_include=question)
            if len(self._named) >= _MAX_NAMED:
                self._named.clear()  # the same object for each delivery (`reading_from`)
            self._named |= {one.slot: one for one in facts if one.slot == named}
        return bound_to(call, log, (one for one in (self._named.get(named),) if one))

    async def with_origin(self, call: Call) -> Call:
        """The call with the requester, agent and labels that its request leaves to its thread."""
        wish = call.wish
        if wish.requester and wish.agent and wish.labels:
            return call
        return attributed(call, origin(call, await self.read(call.ref.thread_ref.opened)))

    async def with_chain(self, whence: Origin) -> Origin:
        """The origin with the calls above the thread, if it is a sub-agent's."""

        async def read(ref: CallRef, opened: Slot) -> Sequence[Fact]:
            return await self.read(ref, opened)

        opened = whence.opened.event if whence.opened else None
        if not isinstance(opened, e.ThreadOpened) or not opened.parent:
            return whence
        return replace(whence, chain=await chain_above(whence.opened, read))

    async def with_class(self, call: Call, policies: Policies, tool: Tool | None) -> Call:
        """A call that people were asked about, with the class by which these policies judge it."""
        asking = call.approval_request
        above = await self.with_classes(Chain(asking.chain if asking else ()), policies)
        return classed(call, tool, above)

    async def with_classes(self, chain: Chain, policies: Policies) -> Chain:
        """The calls above a thread with the classes of their tools, if these policies speak of
        classes. Else nothing is read.
        """
        if not chain.links or not policies.speak_of_classes:
            return chain
        refs = [CallRef.parse(link.call) for link in chain.links]
        facts = await self.read(*(ref.requested for ref in refs))
        calls = [call_of(ref, facts) for ref in refs]
        tools = [await self.tool_of(call) if call.requested else None for call in calls]
        named = zip(chain.links, map(judged_class, tools), strict=True)
        links = tuple(replace(link, tool_class=declared) for link, declared in named)
        return replace(chain, links=links)

    # ---------------------------------------------------------------------------------------- tools

    async def declare(self, workspace: str, spec: ToolSpec) -> e.ToolRef:
        """Declare a tool. The same contract declared again is the same fact.

        Raises:
            BadInput: a rule or budget in force reads what it seals; or it seals less than the
                newest declaration, by which others request.
        """
        version, declared = declaration(spec)
        slot = tool_slot(workspace, spec.name, version)
        newest = await self._declared(declarations(workspace, spec.name))
        opened = sorted({*newest.declared.sealed} - {*spec.sealed}) if newest is not None else []
        if opened and await self._declared(slot.subject) is None:
            raise BadInput(
                f"{spec.name} is not declared: its newest declaration seals {opened[0]}, and this "
                "one would have that recorded in plain text. Seal it, or choose another name."
            )
        if declared.sealed:
            ruling = await self.policies(workspace)
            both = (ruling.organisation.policy, ruling.workspace.policy)
            if problem := unjudged_rule(Tool(spec.name, version, declared), *both):
                raise BadInput(f"{spec.name} is not declared: {problem}")
        await self.try_append(slot, declared)
        return e.ToolRef(spec.name, version, spec.run_by)

    async def tool(self, workspace: str, name: str, version: str = "") -> Tool:
        """A declared tool: this version, or the newest. Void declarations are skipped.

        Raises:
            UnknownTool: nobody declared it.
        """
        try:
            declared_as = (
                tool_slot(workspace, name, version).subject
                if version
                else declarations(workspace, name)
            )
        except BadId:
            found = None
        else:
            found = await self._declared(declared_as)
            if found is None and not version:
                facts = await self.reading.read(declared_as)
                found = next(filter(None, map(self._tool_in, reversed(facts))), None)
        if found is not None:
            return found
        facts = await self.reading.read(declarations(workspace))
        declared = {tool.name for tool in map(self._tool_in, facts) if tool}
        raise UnknownTool(
            f"no tool {name!r}{f' of version {version}' if version else ''} is declared in "
            f"workspace {workspace!r}. Declared are: {', '.join(sorted(declared)) or 'none'}."
        )

    async def _declared(self, subjects: str) -> Tool | None:
        if (known := self._tools.get(subjects)) is not None:
            return known
        fact = await self.reading.latest(subjects)
        return None if fact is None else self._tool_in(fact)

    def _tool_in(self, fact: Fact) -> Tool | None:
        """The tool that a fact declares; None if it is void."""
        subject = subject_of(fact)
        if subject not in self._tools:
            try:
                self._tools[subject] = tool_of(fact)
            except BadFact as problem:
                _log.error("a declaration is void", slot=subject, problem=str(problem))
                self._tools[subject] = None
        return self._tools[subject]

    async def tool_of(self, call: Call) -> Tool | None:
        """The tool of a call; None if it was not offered or declared."""
        wish = call.wish
        if not wish.tool_version:
            return None
        try:
            return await self.tool(call.ref.workspace, wish.tool, wish.tool_version)
        except UnknownTool:
            return None

    async def secrets(
        self, tools: Iterable[tuple[str, str, str]]
    ) -> dict[tuple[str, str, str], tuple[str, ...] | None]:
        """The places that tools declare as secret, or sealed, by workspace, name and version of
        each (without a version none was declared). None: the declaration cannot be read.
        """
        found: dict[tuple[str, str, str], tuple[str, ...] | None] = {}
        for one in tools:
            try:
                found[one] = (await self.tool(*one)).hidden if one[2] else ()
            except UnknownTool:
                found[one] = None
        return found

    # ------------------------------------------------------------------------------------- policies

    async def _in_force(self, workspace: str, before: int | None = None) -> AppliedPolicy:
        known = self._newest.get(workspace, 0)
        fact = await self.reading.latest(policies(workspace))
        if (seq := fact.seq if fact else 0) < known:
            raise BrokerAway(f"the policy of {workspace} is fact {known:,}, which is missing here.")
        self._newest[workspace] = max(seq, self._newest.get(workspace, 0))
        if fact is not None and before is not None and fact.seq >= before:
            versions = await self.read(policies(workspace), must_include=fact.slot)
            fact = next((one for one in reversed(versions) if one.seq < before), None)
        return await self._applied(workspace, fact)

    async def policies_by_owner(self) -> dict[str, Policy]:
        """The policies in force of the organisation and of all workspaces that can be read."""
        applied = await self.read(f"{ROOT}.*.{POLICY}.*")
        owners = sorted({fact.slot.workspace for fact in applied} - {""})
        return {one: (await self.policies(one)).workspace.policy for one in owners}

    async def policies_of(self, versions: Sequence[Fact], workspace: str, before: int) -> Policies:
        """The policies in force just before a number of the log, by all versions until then."""

        async def applied(owner: str) -> AppliedPolicy:
            theirs = (one for one in versions if one.slot.workspace == owner and one.seq < before)
            return await self._applied(owner, max(theirs, key=attrgetter("seq"), default=None))

        return Policies(await applied(workspace), await applied(ORGANISATION))

    async def _applied(self, workspace: str, fact: Fact | None) -> AppliedPolicy:
        """The policy in force once this version was applied; None: no version was."""
        if fact is None:
            return AppliedPolicy(organisation=workspace == ORGANISATION)
        newest = subject_of(fact)
        if newest not in self._policies:
            # Whether a version counts depends on earlier facts alone, so the result is final.
            unapproved = await self._unapproved((fact,))
            try:
                self._policies[newest] = policy_of(fact, unapproved)
            except (BadFact, BadFile) as problem:
                _log.error(
                    "a policy is void; what was in force before it stays", problem=str(problem)
                )
                versions = await self.read(policies(workspace), must_include=fact.slot)
                earlier = [one for one in versions if one.seq <= fact.seq]
                self._policies[newest] = policy_in_force(
                    earlier,
                    organisation=workspace == ORGANISATION,
                    unapproved=await self._unapproved(earlier),
                )
        return self._policies[newest]

    def _unsigned(self, versions: Sequence[Fact]) -> dict[int, str]:
        """Why versions lack the signatures that the trust file wants, by sequence."""
        if self.trust is None:
            return {}
        objections = {one.seq: self.trust.objection_to_policy(one) for one in versions}
        return {seq: why for seq, why in objections.items() if why is not None}

    async def _unapproved(self, facts: Sequence[Fact]) -> dict[int, str]:
        """Why versions lack the approval that the organisation wants, or signatures that the trust
        file does, by sequence.
        """
        found = self._unsigned(facts)
        if all(fact.slot.workspace == ORGANISATION for fact in facts):
            return found
        above = await self.reading.read(policies(ORGANISATION))
        for fact in needing_approval(facts, above, self._unsigned(above)):
            ref = named_proposal(fact)
            if (why := problem_of(fact, await self.call(ref) if ref else None)) is not None:
                found[fact.seq] = why
        return found


def call_ref(call: CallRef | str) -> CallRef:
    """The reference itself, or the one that is written as `workspace/thread/call`."""
    return call if isinstance(call, CallRef) else CallRef.parse(call)


def same_content(event: object, wanted: e.Event) -> bool:
    """Whether two events have the same content apart from their envelopes."""
    if not isinstance(event, e.Event) or type(event) is not type(wanted):
        return False
    event, wanted = by_digest(event), by_digest(wanted)
    own = [name for name in wanted.__struct_fields__ if name not in e.Event.__struct_fields__]
    return all(getattr(event, name) == getattr(wanted, name) for name in own)


def is_same_event(fact: Fact | None, event: e.Event) -> bool:
    """Whether a fact is this very event, by its id and author, and not only one in its slot."""
    first = fact.event if fact is not None else None
    return isinstance(first, e.Event) and (first.id, first.by) == (event.id, event.by)


def bound_to(call: Call, log: str, facts: Iterable[Fact]) -> Bound:
    """What signed votes on a call are bound to.

    Args:
        log: its identity.
        facts: the version of the policy that the question names is among them.
    """
    assert call.requested
    assert call.gated
    named = _policy_named(call)
    applied = next((one.event for one in facts if one.slot == named), None)
    policy = text_digest(applied.text) if isinstance(applied, e.PolicyApplied) else ""
    return Bound(log, call.requested.digest, call.gated.digest, policy)


def _policy_named(call: Call) -> Slot:
    """The version of the policy that the question names; of none it names, a version 0."""
    asking = call.approval_request
    is_organisations = asking is not None and asking.organisation
    version = asking.policy_version if asking is not None else 0
    return policy_slot(ORGANISATION if is_organisations else call.ref.workspace, version)


async def _judge(counters: Counters, votes: Iterable[Fact]) -> None:
    """Add votes in parts, so that others need not wait for all of them."""
    for some in batched(votes, _VOTES_AT_ONCE, strict=False):
        counters.add(some)
        await asyncio.sleep(0)
