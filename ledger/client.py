"""The ledger as services, workers and people's tools use it.

    async with Ledger.connect() as ledger:
        call = await ledger.request("shop/order-17/refund-1", "refund", {"order": "A-17", "amount": 480})

Everything below is said in facts: reading is folding them, doing is appending one. What may not happen is refused
before it is sent (`lifecycle.refusal`), and what two wanted at once is settled by the broker: one gets `Recorded`,
the other `SlotTaken` with the fact that was first.
"""

import asyncio
import copy
import functools
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Concatenate, Final, Literal

import msgspec
import structlog

from ayes.ledger import clock
from ayes.ledger.grants import (
    Delegation,
    Grant,
    bad_delegation,
    bad_grant,
    delegated,
    delegations_of,
    grants_of,
)
from ayes.ledger.in_force import (
    Void,
    needing_approval,
    policy_in_force,
    policy_of,
    subject_of,
    tool_of,
    void_policies,
    void_tools,
)
from ayes.ledger.lifecycle import FLAWS, Call, call_of, describe, evolve, may_vote, refusal
from ayes.ledger.log import (
    AlreadyRecorded,
    AppendResult,
    EventLog,
    FactReader,
    Recorded,
    SlotTaken,
    Unconfirmed,
)
from ayes.ledger.nats.connection import Connection
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.policies import AppliedPolicy, Policies, attributed, is_possible, of_edit, origin
from ayes.ledger.policy_proposals import named_proposal
from ayes.ledger.policy_proposals import problem as problem_of
from ayes.ledger.tool_runner import ToolFunction, run_tool
from ayes.ledger.votes import Tally, is_edit, tally
from ayes.schemas import events as e
from ayes.schemas import ids
from ayes.schemas.codec import Fact, encode
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import (
    AlreadyFilled,
    BadArguments,
    BadFact,
    BadFile,
    BadId,
    BadInput,
    BadSlot,
    BrokerRefused,
    NotAllowed,
    NotOpen,
    OutcomeUnknown,
    StillPending,
    Unavailable,
    UnknownCall,
    UnknownTool,
    WaitTimedOut,
)
from ayes.schemas.limits import MAX_REASON, MAX_TEXT
from ayes.schemas.limits import check as check_size
from ayes.schemas.slots import (
    CLIENT,
    ORGANISATION,
    POLICY,
    ROOT,
    TOOL,
    CallRef,
    DelegationRef,
    GrantRef,
    Slot,
    ThreadRef,
    declarations,
    delegations,
    grants,
    policies,
    tool_slot,
)
from ayes.schemas.tools import Tool, ToolSpec, declaration

_log: Final = structlog.get_logger("ayes.ledger.client")

#: How long a reader waits for a replica to catch up with a fact that it was handed.
_CATCH_UP_S: Final = 2.0
#: How long to wait before trying again what must succeed.
_AGAIN_S: Final = 0.5


def _looked_up[**P, R](
    method: "Callable[Concatenate[Ledger, P], Coroutine[Any, Any, R]]",
) -> "Callable[Concatenate[Ledger, P], Coroutine[Any, Any, R]]":
    """Refuse for what is missing only as of what the leader has (docs/decisions/0026).

    What a replica shows is so, and what it does not show may be recorded all the same. So before such a refusal is
    raised, the method is tried once more, and reads as of at least the leader's last fact.
    """

    async def decided(self: "Ledger", /, *args: P.args, **kwargs: P.kwargs) -> R:
        with suppress(NotOpen, NotAllowed, StillPending):
            return await method(self, *args, **kwargs)
        await self.log.last_seq()
        return await method(self, *args, **kwargs)

    functools.update_wrapper(decided, method)
    return decided


class Ledger:
    """A connection to the ledger, and who is writing. The one place that appends."""

    def __init__(
        self, log: EventLog, author: e.Author, *, now: clock.Clock = clock.now, new_id: ids.NewId = ids.new_id
    ) -> None:
        self.log = log
        self.reading: FactReader = log
        self.author = author
        self.now = now
        self._new_id = new_id
        # Policies and declarations never change, so what was read once is known for ever.
        #: By subject. None: what stands there is void.
        self._tools: dict[str, Tool | None] = {}
        #: By the subject of the newest fact among the versions of a policy.
        self._policies: dict[str, AppliedPolicy] = {}
        #: Calls that are being claimed, and claims of which it is not known whether they count.
        self._claiming: set[CallRef] = set()
        self._claims: dict[CallRef, tuple[Slot, e.Event]] = {}

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        store: Path | str | None = None,
        *,
        url: str | None = None,
        role: str = "service",
        name: str = "",
        timeout_s: float = 3.0,
    ) -> AsyncGenerator["Ledger"]:
        """Connect to the broker that runs from `store` (default: the user's own), or to the one at `url`.

        Args:
            role: whose credentials: `service`, `gate`, `reviewer-ana`, ...; see docs/operators.md.
            name: who this is, within the role; recorded as the author of what it appends.

        Raises:
            BrokerAway: no broker answered within `timeout_s`.
            BrokerRefused: it does not know these credentials.
        """
        connection = Connection(Store.login_for(role, store=store, url=url))
        kind, _, person = role.partition("-")
        await connection.open(name=f"ayes {role} {name}".strip(), timeout_s=timeout_s)
        try:
            jetstream = JetStream(connection)
            await jetstream.open()
            yield cls(jetstream, e.Author(kind=kind, name=name or person or kind))
        finally:
            await connection.close()

    def reading_from(self, source: FactReader) -> "Ledger":
        """The same ledger, whose facts about calls, threads and policies are read from there."""
        other = copy.copy(self)
        other.reading = source
        return other

    # ---------------------------------------------------------------------------------------- appending

    async def append(
        self, slot: Slot, event: e.Event, *, cause: e.Event | None = None, fallback_slot: Slot | None = None
    ) -> AppendResult:
        """Fill a slot. Fills in the event's id, time and author where they are missing.

        Args:
            cause: what this one reacts to; its id is kept, and its trace context handed on.
            fallback_slot: where it goes when another fact took the slot.

        Raises:
            BadSlot: such a fact cannot stand there.
            TooLarge: it is over the limit of one fact.
            BrokerRefused: these credentials may not write there.
        """
        if not isinstance(event, slot.filled_by):
            raise BadSlot(f"a {type(event).__name__} cannot stand in {slot.subject}")
        event = self.with_envelope(event, cause)
        answer = await self.log.append(slot, encode(event), event.id)
        if isinstance(answer, SlotTaken) and fallback_slot is not None:
            beside = await self.append(fallback_slot, event)
            return beside if isinstance(beside, Unconfirmed) else answer
        return answer

    async def try_append(self, slot: Slot, event: e.Event, fallback_slot: Slot | None = None) -> Fact | None:
        """Append, and hand back who was first if the slot was taken. For whoever cannot go on without knowing.

        Raises:
            OutcomeUnknown: no answer came.
        """
        match await self.append(slot, event, fallback_slot=fallback_slot):
            case Recorded() | AlreadyRecorded():
                return None
            case SlotTaken(first):
                return first
            case Unconfirmed(why):
                raise OutcomeUnknown(
                    f"nobody can say whether {slot.subject} is recorded: {why} Do the same again: it is safe."
                )

    async def append_until_acknowledged(
        self, slot: Slot, event: e.Event, *, cause: e.Event | None = None, fallback_slot: Slot | None = None
    ) -> Fact | None:
        """Fill a slot with what has been done, for as long as it takes; cancelling comes through afterwards.

        Hands back who was first if the slot was taken.

        Raises:
            BrokerRefused: these credentials may not write there.
        """
        writing = asyncio.create_task(
            self._append_until_acknowledged(slot, self.with_envelope(event, cause), fallback_slot)
        )
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            await writing
            raise

    async def _append_until_acknowledged(
        self, slot: Slot, event: e.Event, fallback_slot: Slot | None
    ) -> Fact | None:
        while True:
            try:
                return await self.try_append(slot, event, fallback_slot)
            except BrokerRefused:
                raise
            except Unavailable as problem:
                _log.warning("not written down yet", slot=slot.subject, problem=str(problem))
            await asyncio.sleep(_AGAIN_S)

    def with_envelope(self, event: e.Event, cause: e.Event | None = None) -> e.Event:
        """The event with its id, time and author. Appending the same stamped event again is safe."""
        return msgspec.structs.replace(
            event,
            id=event.id or self._new_id(),
            at=self.now() if event.at is msgspec.UNSET else event.at,
            by=self.author if event.by is msgspec.UNSET else event.by,
            cause=event.cause or (cause.id if cause else ""),
            trace=event.trace or (cause.trace if cause else ""),
        )

    # ------------------------------------------------------------------------------------------ reading

    async def read(
        self,
        *refs: CallRef | ThreadRef | GrantRef | DelegationRef | Slot | str,
        must_include: Slot | None = None,
    ) -> tuple[Fact, ...]:
        """Every fact about a call or a thread, or what stands in a slot, in the order of the log.

        Args:
            refs: what to read, or subjects with wildcards. Several are read at once, as of the same moment.
            must_include: a slot that is known to be filled. A replica that does not have it yet is asked again.

        Raises:
            Unavailable: the fact did not turn up.
        """
        until = time.monotonic() + _CATCH_UP_S
        while True:
            facts = await self.reading.read(*(ref if isinstance(ref, str) else ref.subjects for ref in refs))
            # It is one of the last, most of the time.
            if must_include is None or any(fact.slot == must_include for fact in reversed(facts)):
                return facts
            if time.monotonic() > until:
                raise Unavailable(f"{must_include.subject} cannot be read yet; a replica is behind.")
            await asyncio.sleep(0.01)

    async def call(self, ref: CallRef, *, must_include: Slot | None = None) -> Call:
        """The call as the facts have it."""
        return call_of(ref, await self.read(ref, must_include=must_include))

    async def call_patiently(self, ref: CallRef, *, must_include: Slot) -> Call:
        """The same, for as long as it takes: for a program that has claimed the call and must know whether it counts.

        Raises:
            BrokerRefused: these credentials may not read it.
        """
        while True:
            try:
                return await self.call(ref, must_include=must_include)
            except BrokerRefused:
                raise
            except Unavailable as problem:
                _log.warning("cannot be read yet", call=str(ref), problem=str(problem))
            await asyncio.sleep(_AGAIN_S)

    async def known_call(self, ref: CallRef) -> Call:
        """The call, which must have been requested.

        Raises:
            UnknownCall: it was not.
        """
        call = await self.call(ref)
        if call.requested is None:
            raise UnknownCall(f"{ref} was never requested. `ayes pending` lists what waits.")
        return call

    async def open_questions(
        self, thread: ThreadRef, *, must_include: Slot | None = None
    ) -> tuple[Call, ...]:
        """The calls of a thread that people were asked about and that are not decided: the questions alone.

        It reads no more of the thread than its questions and decisions, so it is cheap where much was said.
        """
        calls_of = f"{ROOT}.{thread.workspace}.{thread.thread}.call.*"
        refs = (must_include,) if must_include else ()
        facts = await self.read(f"{calls_of}.gated", f"{calls_of}.decided", *refs, must_include=must_include)
        asked = [fact.slot.call_ref for fact in facts if isinstance(fact.event, e.ApprovalRequested)]
        calls = [call_of(ref, facts) for ref in asked if ref is not None]
        return tuple(call for call in calls if call.decided is None)

    def replay(self, start: int | datetime = 1, *subjects: str) -> AsyncGenerator[Fact]:
        """Facts from a sequence number or time on, up to what is the end now; on these subjects, or all there are."""
        return self._each(self.log.follow(subjects, start, until_end=True))

    def watch(self, start: int | datetime = 1, *subjects: str) -> AsyncGenerator[Fact]:
        """Facts from a sequence number or time on, and then as they come, for ever; as `replay`."""
        return self._each(self.log.follow(subjects, start, until_end=False))

    async def _each(self, following: AsyncGenerator[list[Fact]]) -> AsyncGenerator[Fact]:
        async with aclosing(following) as batches:
            async for facts in batches:
                for fact in facts:
                    yield fact

    async def policies(self, workspace: str) -> Policies:
        """The policies in force: of each the newest that can be read. Where none can, people are asked about everything."""
        return Policies(await self._in_force(workspace), await self._in_force(ORGANISATION))

    async def alarms(self) -> tuple[Void, ...]:
        """Which policies and declarations are void although they are newer than what holds instead, and why."""
        applied = await self.reading.read(f"{ROOT}.*.{POLICY}.*")
        declared = await self.reading.read(f"{ROOT}.*.{TOOL}.*.*")
        return (*void_policies(applied, await self._unapproved(applied)), *void_tools(declared))

    async def grants(self, workspace: str) -> tuple[Grant, ...]:
        """Every standing yes that was ever given in a workspace, the oldest first."""
        return grants_of(await self.reading.read(grants(workspace)))

    async def delegations(self, workspace: str) -> tuple[Delegation, ...]:
        """Every delegation that was ever given in a workspace, the oldest first."""
        return delegations_of(await self.reading.read(delegations(workspace)))

    async def tally(self, call: Call) -> Tally:
        """How the vote on a call stands, which people were asked about."""
        votes = [vote.event for vote in call.votes if isinstance(vote.event, e.Voted)]
        given = await self.delegations(call.ref.workspace) if any(one.on_behalf_of for one in votes) else ()
        policies, tool = Policies(), None
        if any(one.arguments is not None for one in votes):
            call = await self._attributed(call)
            policies = await self.policies(call.ref.workspace)
            tool = await self.tool_of(call)
        return tally(
            call,
            lambda arguments: of_edit(policies, tool, call, arguments),
            lambda vote: delegated(given, call, vote),
        )

    # -------------------------------------------------------------------------------------------- tools

    async def declare(self, workspace: str, spec: ToolSpec) -> e.ToolRef:
        """Declare a tool. The same contract declared again is the same fact."""
        version, declared = declaration(spec)
        await self.try_append(tool_slot(workspace, spec.name, version), declared)
        return e.ToolRef(spec.name, version, spec.run_by)

    async def tool(self, workspace: str, name: str, version: str = "") -> Tool:
        """A declared tool: this version of it, or the newest. What is void in its slots is passed over.

        Raises:
            UnknownTool: nobody declared it.
        """
        every = declarations(workspace)
        try:
            subjects = (
                tool_slot(workspace, name, version).subject if version else declarations(workspace, name)
            )
        except BadId:
            found = None
        else:
            found = await self._declared(subjects)
            if found is None and not version:
                facts = await self.reading.read(subjects)
                found = next(filter(None, map(self._tool_in, reversed(facts))), None)
        if found is not None:
            return found
        declared = {tool.name for tool in map(self._tool_in, await self.reading.read(every)) if tool}
        raise UnknownTool(
            f"no tool {name!r}{f' of version {version}' if version else ''} is declared in workspace "
            f"{workspace!r}. Declared are: {', '.join(sorted(declared)) or 'none'}."
        )

    async def _declared(self, subjects: str) -> Tool | None:
        if (known := self._tools.get(subjects)) is not None:
            return known
        fact = await self.reading.latest(subjects)
        return None if fact is None else self._tool_in(fact)

    def _tool_in(self, fact: Fact) -> Tool | None:
        """The tool that a fact declares. None: it is void."""
        subject = subject_of(fact)
        if subject not in self._tools:
            try:
                self._tools[subject] = tool_of(fact)
            except BadFact as problem:
                _log.error("a declaration is void", slot=subject, problem=str(problem))
                self._tools[subject] = None
        return self._tools[subject]

    async def tool_of(self, call: Call) -> Tool | None:
        """The tool that a call is about. None: it is none of those that were offered, or nobody declared it."""
        wish = call.wish
        if not wish.tool_version:
            return None
        try:
            return await self.tool(call.ref.workspace, wish.tool, wish.tool_version)
        except UnknownTool:
            return None

    # ------------------------------------------------------------------------------ what a service does

    async def request(
        self,
        call: CallRef | str,
        tool: e.ToolRef | str,
        arguments: dict[str, Any] | str,
        *,
        requester: str = "",
        agent: str = "",
        labels: dict[str, str] | None = None,
    ) -> Call:
        """Ask for a tool to be run. Asking again for the same is asking once: a restarted service goes on waiting.

        Args:
            call: `workspace/thread/call`; the call id is the service's own, and its idempotency key.
            tool: what `declare` gave; or a name, for the version of it that was declared last, by whomever.
            arguments: raw JSON text is kept byte for byte; a dict is written out once.
            requester: on whose behalf; by default whom the thread was opened for, else this program. This person
                cannot vote on it, so it must be a reviewer's name or an account that the policy lists below [people].
            agent: which agent wishes it. Rules may ask for it, and who is behind it cannot vote either.
            labels: what rules may ask for beside that.

        Raises:
            UnknownTool: nobody declared the tool in the workspace.
            BadArguments: they break its schema.
            AlreadyFilled: the call id was used for something else, or for somebody else.
        """
        ref = _ref(call)
        named = tool if isinstance(tool, e.ToolRef) else e.ToolRef(tool, version="")
        declared = await self.tool(ref.workspace, named.tool, named.version)
        text = arguments if isinstance(arguments, str) else _written(arguments)
        if problem := declared.problems(text):
            raise BadArguments(problem)
        opened = e.ThreadOpened(requester=self.author.name)
        if not requester:
            standing = next(iter(await self.read(ref.thread_ref.opened)), None)
            opened = standing.event if standing and isinstance(standing.event, e.ThreadOpened) else opened
        wish = e.ToolRequested(
            tool=declared.name,
            tool_version=declared.version,
            arguments=text,
            digest=call_digest(declared.name, declared.version, text),
            requester=requester or opened.requester,
            agent=agent or opened.agent,
            labels=labels or opened.labels,
            run_by=declared.declared.run_by,
            layout=2 if declared.declared.run_by == CLIENT else 1,
        )
        first = await self.try_append(ref.requested, wish)
        if first is not None and (other := _difference(first.event, wish)):
            raise AlreadyFilled(
                f"{ref} was already requested with {other}: {describe(first)}. Choose another call id."
            )
        return await self.call(ref, must_include=ref.requested)

    async def decision(self, call: CallRef | str, *, timeout_s: float | None = None) -> Call:
        """Wait until the call is decided.

        Raises:
            UnknownCall: it was never requested.
            WaitTimedOut: nobody decided in time. It stays open.
        """
        # Asked for again and again, and not followed: a follower takes one of the consumers that
        # the stream may have.
        ref, known = _ref(call), None
        wait_s = _ASKED_AGAIN_S
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        known = known or await self.known_call(ref)
                        if known.decided is not None:
                            return known
                        if (decided := await self.log.latest(ref.decided.subject)) is not None:
                            return await self.call(ref, must_include=decided.slot)
                    except BrokerRefused:
                        raise
                    except Unavailable as problem:
                        _log.debug("waits for the broker", call=str(ref), problem=str(problem))
                    await asyncio.sleep(wait_s)
                    wait_s = min(wait_s * 1.5, _ASKED_AGAIN_AT_MOST_S)
        except TimeoutError:
            status = known.status if known else "unread, since the broker does not answer,"
            raise WaitTimedOut(f"{ref} is still {status} after {timeout_s:g} s. It stays open.") from None

    async def run(self, call: CallRef | str, function: ToolFunction) -> e.ToolReturned | e.ToolFailed:
        """Run an approved call's tool here: claim it, run it once, record how it went.

        Raises:
            NotOpen: it is not approved, what is recorded is not what was approved, or an executor runs it.
            AlreadyFilled: somebody else claimed it.
        """
        known = await self.start(call)
        key, attempt = str(known.ref), known.attempt
        outcome = await run_tool(function, known.arguments, attempt=attempt, key=key)
        await self._record_end(known, outcome)
        return outcome

    @_looked_up
    async def start(self, call: CallRef | str) -> Call:
        """Claim an approved call that this program runs itself; from here on it may have run. `finish` says how it went.

        A claim of this program that was recorded, and whose answer was lost, is still its own: calling this again
        goes on with it.

        Raises:
            NotOpen: it is not approved, was revoked just before, is not what was approved, or an executor runs it.
            AlreadyFilled: somebody else claimed it.
            Unavailable: whether the claim counts could not be read. Nothing has run; do the same again.
        """
        ref = _ref(call)
        if ref in self._claiming:
            raise AlreadyFilled(
                f"{ref} is being claimed by this program already. Wait for that, or leave it."
            )
        self._claiming.add(ref)
        try:
            return await self._start(ref)
        finally:
            self._claiming.discard(ref)

    async def _start(self, ref: CallRef) -> Call:
        slot, started = self._claims.get(ref) or await self._new_claim(ref)
        # Kept until it is known whether it counts: it may be recorded although its answer is lost.
        self._claims[ref] = slot, started
        first = await self.try_append(slot, started)
        known = None if first else await self.call(ref, must_include=slot)
        del self._claims[ref]
        if known is None:
            assert first
            raise AlreadyFilled(f"{slot.subject} is taken: {describe(first)}. Nothing was recorded.")
        # A revocation has a slot of its own, so the order of the log decides which of the two counts.
        if (void := next((one for one in known.void if one.fact.slot == slot), None)) is not None:
            raise NotOpen(f"{ref} may not be started: {void.why}. Nothing has run.")
        return known

    async def _new_claim(self, ref: CallRef) -> tuple[Slot, e.Event]:
        known = await self.known_call(ref)
        started = e.ToolStarted(digest=known.digest, idempotency_key=str(ref))
        # The client's own first slot: a second start would be a second run.
        self._check(known, ref.client_claim(1) if known.starts else known.claim_slot, started)
        if not known.is_clients:
            raise NotOpen(f"{ref} is run by {known.wish.run_by!r}, as its tool is declared, and not here.")
        if known.starts:
            raise AlreadyFilled(f"{ref} is claimed: {describe(known.starts[-1])}. Nothing was recorded.")
        if (flaw := known.flaw) is not None:
            raise NotOpen(f"{ref}: {FLAWS[flaw]}. It will not run.")
        return known.claim_slot, self.with_envelope(started)

    async def _record_end(self, known: Call, outcome: e.Event) -> Fact | None:
        """Record how a call went, for as long as it takes; answers with the end that was first, if one was."""
        posted = self.with_envelope(outcome)
        place = known.end_slot or known.late_slot
        while await self.append_until_acknowledged(place, posted) is not None:
            known = await self.call_patiently(known.ref, must_include=place)
            place = known.end_slot or known.late_slot
        return known.finished

    @_looked_up
    async def finish(
        self, call: CallRef | str, *, output: str | None = None, error: str | None = None
    ) -> Call:
        """Say how a call went that this program claimed with `start`: its output, or the error it raised.

        A result that comes when the call is closed already is kept (`late`) and never shown to the model. The same
        result posted again is refused as what it is.

        Raises:
            BadInput: neither or both of output and error are given.
            NotOpen: it was never started.
            AlreadyFilled: it has ended already; what came now is kept beside it, if nothing was yet.
        """
        ref = _ref(call)
        if (output is None) == (error is None):
            raise BadInput("a call ends with an output or with an error: give one of them.")
        known = await self.known_call(ref)
        outcome: e.ToolReturned | e.ToolFailed = (
            e.ToolReturned(output=output, attempt=max(1, known.attempt))
            if output is not None
            else e.ToolFailed(error=error or "", attempt=max(1, known.attempt))
        )
        if not known.starts:
            self._check(known, ref.client_finished, outcome)  # says why it cannot
            raise NotOpen(f"{ref} was never started, so it cannot have ended. Nothing was recorded.")
        if not known.is_clients:
            raise NotOpen(f"{ref} is run by {known.wish.run_by!r}, as its tool is declared, and not here.")
        posted = self.with_envelope(outcome)
        if known.finished is None:
            place = known.end_slot
            assert place
            if await self.try_append(place, posted) is None:
                return await self.call(ref, must_include=place)
            known = await self.call(ref, must_include=place)
        if (ended := known.finished) is None:  # what was first there is void
            return await self.finish(ref, output=output, error=error)
        if _same_content(ended.event, outcome):
            raise AlreadyFilled(f"{ref} has ended with this very result: {describe(ended)}.")
        kept = "What came now is kept as late."
        if not any(_same_content(late.event, posted) for late in known.late) and (
            known.late or await self.try_append(known.late_slot, posted) is not None
        ):
            kept = "Nothing was recorded: another late result was first."
        raise AlreadyFilled(f"{ref} has ended already: {describe(ended)}. {kept}")

    @_looked_up
    async def doubt(self, call: CallRef | str, why: str = "") -> Call:
        """Say that a call was started and nobody knows how it ended: whoever ran it is gone. It then waits for a person.

        For calls that services run themselves. An executor's are watched: it says so by itself.

        Raises:
            NotOpen: it is not running, or an executor runs it.
            AlreadyFilled: its result has come meanwhile.
        """
        ref = _ref(call)
        known = await self.known_call(ref)
        text = why or f"{known.wish.tool} was started, and its result never came."
        in_doubt = e.InDoubt(attempt=known.attempt, text=text)
        place = known.end_slot or ref.client_finished
        self._check(known, place, in_doubt)
        if not known.is_clients:
            raise NotOpen(f"{ref} is run by {known.wish.run_by!r}, whose executor watches it.")
        await self._append_exclusive(place, in_doubt)
        return await self.call(ref, must_include=place)

    @_looked_up
    async def withdraw(self, call: CallRef | str, reason: str = "") -> Call:
        """Take a wish back, from the requester's side.

        Raises:
            AlreadyDecided: too late.
            TooLarge: the reason is over its limit (`ayes.schemas.limits`).
        """
        ref = _ref(call)
        check_size("the reason", reason, MAX_REASON)
        withdrawn = e.Withdrawn(reason=reason)
        self._check(await self.known_call(ref), ref.withdrawn, withdrawn)
        await self._append_exclusive(ref.withdrawn, withdrawn)
        return await self.call(ref, must_include=ref.withdrawn)

    @_looked_up
    async def say(
        self,
        thread: ThreadRef | str,
        text: str,
        *,
        message: str,
        role: Literal["system", "user", "note"] = "user",
        name: str = "",
    ) -> Fact:
        """Say something to the model of a thread. Saying the same again under the same `message` is saying it once.

        What becomes of a user's message while a call of the thread waits for people stands in that call's question, as
        the policy had it: it waits until the call is settled (`queue`), makes the call moot (`supersede`), or is
        refused here until the call is decided (`block`). Only this method refuses. A message that is recorded all the
        same, by a program in another language or just as the question is asked, waits as with `queue`; none is dropped.

        Args:
            message: its id in the thread, chosen by whoever says it.
            name: who says it, where a thread has several users.

        Raises:
            StillPending: a call was put to people under `block` and is not decided. Nothing was recorded.
            AlreadyFilled: something else was said under this id.
            OutcomeUnknown: no answer came. Say it again: it is safe.
        """
        ref = thread if isinstance(thread, ThreadRef) else ThreadRef.parse(thread)
        slot = ref.said(message)
        if role not in _ROLES:
            raise BadInput(f"{role!r} is no role. What is said is said as one of {', '.join(_ROLES)}.")
        said = e.Said(role=role, text=text, name=name)
        standing = next(iter(await self.read(slot)), None)
        if standing is None and role == "user":
            for call in await self.open_questions(ref):
                if call.approval_request is not None and call.approval_request.while_pending == "block":
                    raise StillPending(
                        f"{call.ref} waits for people, and the policy lets no user say anything before it is decided. "
                        "Nothing was recorded. Say it again then, or withdraw the call."
                    )
        first = standing or await self.try_append(slot, said)
        if first is None:
            [first] = await self.read(slot, must_include=slot)
        elif not _same_content(first.event, said):
            raise AlreadyFilled(
                f"something else was said as {message!r} in {ref}: {describe(first)}. Choose another message id."
            )
        return first

    # ------------------------------------------------------------------------------- what a reviewer does

    @_looked_up
    async def vote(
        self,
        call: CallRef | str,
        reviewer: str,
        verdict: str,
        *,
        reason: str = "",
        arguments: str | None = None,
        answer: str = "",
        on_behalf_of: str = "",
        halt: bool = False,
        digest: str = "",
    ) -> Call:
        """Vote on an open call, about the arguments as they stand now.

        Args:
            verdict: `approve`, `deny`, `answer`, or `break_glass`: let it run alone, in an emergency.
            reason: why. With `deny` the model reads it; with `break_glass` it must be given.
            arguments: with `approve`: run it with these instead (raw JSON text).
            answer: with `answer`: what the model gets in place of the tool's output.
            on_behalf_of: whose vote this is, by that person's delegation. Found by itself for those who were not asked.
            halt: with `deny`: the model is not asked again before a user says something.
            digest: of what the reviewer was shown; the vote counts for that and for nothing else.

        Raises:
            BadInput: there is no such verdict, or `break_glass` comes with arguments.
            TooLarge: reason, arguments or answer are over their limit (`ayes.schemas.limits`).
            UnknownCall, AlreadyDecided, DeadlinePassed, NotAllowed, NotOpen: see `lifecycle.refusal`.
            NotAllowed: nobody gave this reviewer that vote; the policies in force block the call as edited; or
                nobody is left who could agree to the edit, where whoever edits does not count.
            BadArguments: the edit breaks the tool's schema.
            AlreadyFilled: this reviewer has voted before.
        """
        ref = _ref(call)
        if verdict not in _VERDICTS:
            raise BadInput(f"{verdict!r} is no verdict. A vote says one of {', '.join(_VERDICTS)}.")
        if verdict == "break_glass" and arguments is not None:
            raise BadInput("who breaks the glass lets run what waits, as it is. Arguments go with approve.")
        check_size("the reason", reason, MAX_REASON)
        check_size("the answer", answer, MAX_TEXT)
        check_size("the edited arguments", arguments or "", MAX_TEXT)
        known = await self.known_call(ref)
        voted = msgspec.convert(
            {
                "type": "Voted",
                "verdict": verdict,
                "digest": known.approval_request.digest if known.approval_request else "",
                "reason": reason,
                "arguments": arguments,
                "answer": answer,
                "on_behalf_of": on_behalf_of,
                "halt": halt,
            },
            e.Voted,
        )
        if not on_behalf_of:
            voted = msgspec.structs.replace(voted, on_behalf_of=await self._principal(known, reviewer, voted))
        self._check(known, ref.vote(reviewer), voted)
        if digest not in ("", voted.digest):
            raise NotOpen(
                f"{ref} waits with the digest {voted.digest}, not {digest}. Nothing was recorded. "
                f"Look at what waits: ayes show {ref}"
            )
        if on_behalf_of and not any(
            one.ref.giver == on_behalf_of and one.holds(reviewer, known.wish.tool, self.now())
            for one in await self.delegations(ref.workspace)
        ):
            raise NotAllowed(
                f"{on_behalf_of} gave {reviewer} no vote on {known.wish.tool} that holds now. Nothing was recorded."
            )
        instead = [vote for vote in known.votes if _in_place_of(vote, reviewer)]
        if instead and voted.verdict != "break_glass":
            given = await self.delegations(ref.workspace)
            for vote in instead:
                if delegated(given, known, vote):
                    raise NotAllowed(
                        f"{vote.slot.tail[3]} has voted on {ref} in {reviewer}'s place: {describe(vote)}. Nothing was recorded."
                    )
        if arguments is not None:
            tool = await self.tool(ref.workspace, known.wish.tool, known.wish.tool_version)
            if problem := tool.problems(arguments):
                raise BadArguments(problem)
            known = await self._attributed(known)
            more = of_edit(await self.policies(ref.workspace), tool, known, arguments)
            if more is None:
                raise NotAllowed(
                    f"{ref} cannot run so: the policy in force blocks {known.wish.tool} with these arguments. "
                    "Nothing was recorded."
                )
            if not is_possible(known, more):
                raise NotAllowed(
                    f"{ref} cannot run so: with these arguments the policy asks others than those who were asked. "
                    "Nothing was recorded. Deny it, so that it is requested anew."
                )
            await self._can_be_agreed_to(known, Fact(_NEXT, self.now(), ref.vote(reviewer), voted))
        await self._append_exclusive(ref.vote(reviewer), voted)
        return await self.call(ref, must_include=ref.vote(reviewer))

    @_looked_up
    async def grant(
        self,
        grant: GrantRef | str,
        tool: str,
        *,
        for_s: float,
        uses: int = 1,
        arguments: str | None = None,
        when: str = "",
        agent: str = "*",
        thread: str = "*",
        reason: str = "",
    ) -> Grant:
        """Say yes in advance: calls of this tool, until then, so many times. Giving the same again is giving it once.

        It is its giver's vote, given early: where a rule asks for more people, their grants are needed too. It counts when
        a call is judged; once people are asked, only what they say then counts.

        Args:
            grant: `workspace/giver/name`; only the giver's credentials can record it.
            for_s: seconds from when it is recorded. There is always an end.
            uses: how many calls it may let run, 1 to 1,000.
            arguments: exactly these (raw JSON text, compared by value).
            when: a condition on the arguments (`ayes.schemas.conditions`).
            agent, thread: names, or patterns with `*`.

        Raises:
            BadInput: no end, no uses, no such condition.
            UnknownTool: nobody declared the tool.
            BadArguments: they break its schema.
            NotAllowed: no grant may cover this tool.
            AlreadyFilled: another grant has this name.
        """
        ref = grant if isinstance(grant, GrantRef) else GrantRef.parse(grant)
        granted = e.Granted(
            tool=tool,
            expires_in_s=for_s,
            uses=uses,
            arguments=arguments,
            when=when,
            agent=agent,
            thread=thread,
            reason=reason,
        )
        if problem := bad_grant(granted):
            raise BadInput(problem)
        declared = await self.tool(ref.workspace, tool)
        if arguments is not None and (problem := declared.problems(arguments)):
            raise BadArguments(problem)
        if declared.declared.governs or not (await self.policies(ref.workspace)).grantable(tool):
            raise NotAllowed(
                f"no grant may cover {tool}: people look at each call of it, as "
                f"{'its declaration' if declared.declared.governs else 'never_grant in the policy'} says. Nothing was recorded."
            )
        first = await self.try_append(ref.given, granted)
        if first is not None and not _same_content(first.event, granted):
            raise AlreadyFilled(f"there is another grant {ref}: {describe(first)}. Choose another name.")
        [found] = grants_of(await self.read(ref, must_include=ref.given))
        if (standing := found.standing(self.now())) != "in force":
            raise AlreadyFilled(f"there was such a grant {ref}, and it is {standing}. Choose another name.")
        return found

    async def revoke_grant(self, grant: GrantRef | str, reviewer: str, *, reason: str = "") -> Grant:
        """Take a standing yes back. Any reviewer may: it only makes things stricter.

        Raises:
            BadInput: there is no such grant.
            AlreadyFilled: it is revoked already.
        """
        ref = grant if isinstance(grant, GrantRef) else GrantRef.parse(grant)
        known = grants_of(await self.read(ref))
        if not known:
            raise BadInput(f"there is no grant {ref}. `ayes grant list` shows those that there are.")
        if (revoked := known[0].revoked) is not None:
            raise AlreadyFilled(f"{ref} is revoked: {describe(revoked)}. Nothing was recorded.")
        slot = ref.revoked_by(reviewer)
        await self._append_exclusive(slot, e.GrantRevoked(reviewer=reviewer, reason=reason))
        [found] = grants_of(await self.read(ref, must_include=slot))
        return found

    async def delegate(
        self,
        delegation: DelegationRef | str,
        to: str,
        *,
        starts_at: datetime,
        ends_at: datetime,
        tools: tuple[str, ...] = ("*",),
        reason: str = "",
    ) -> Delegation:
        """Let another person vote in one's place for a time. Their decisions say "Ben for Ana".

        Args:
            delegation: `workspace/giver/name`; only the giver's credentials can record it.

        Raises:
            BadInput: it ends before it starts, it is over already, it is to oneself, or its times have no zone.
            BadId: there could not be such a person.
            AlreadyFilled: another delegation has this name.
        """
        ref = delegation if isinstance(delegation, DelegationRef) else DelegationRef.parse(delegation)
        ids.token("reviewer", to)
        given = e.Delegated(to=to, starts_at=starts_at, ends_at=ends_at, tools=tools, reason=reason)
        if problem := bad_delegation(ref.giver, given, self.now()):
            raise BadInput(problem)
        first = await self.try_append(ref.given, given)
        if first is not None and not _same_content(first.event, given):
            raise AlreadyFilled(f"there is another delegation {ref}: {describe(first)}. Choose another name.")
        [found] = delegations_of(await self.read(ref, must_include=ref.given))
        return found

    async def end_delegation(self, delegation: DelegationRef | str, *, reason: str = "") -> Delegation:
        """End a delegation before its time. Votes that were cast by then stay what they are.

        Raises:
            BadInput: there is no such delegation.
            AlreadyFilled: it was ended before.
        """
        ref = delegation if isinstance(delegation, DelegationRef) else DelegationRef.parse(delegation)
        if not delegations_of(await self.read(ref)):
            raise BadInput(f"there is no delegation {ref}. `ayes delegate list` shows those that there are.")
        await self._append_exclusive(ref.ended, e.DelegationEnded(reason=reason))
        [found] = delegations_of(await self.read(ref, must_include=ref.ended))
        return found

    @_looked_up
    async def revoke(self, call: CallRef | str, reviewer: str, *, reason: str = "") -> Call:
        """Take an approval back before the tool runs.

        Raises:
            AlreadyFilled, NotOpen: it has started, or was never approved.
            NotAllowed: this person may not, or asked for the call.
        """
        ref = _ref(call)
        check_size("the reason", reason, MAX_REASON)
        slot, revoked = ref.revoked_by(reviewer), e.Revoked(reason=reason, reviewer=reviewer)
        self._check(await self.known_call(ref), slot, revoked)
        await self._append_exclusive(slot, revoked)
        return await self._counting(ref, slot)

    @_looked_up
    async def reconcile(self, call: CallRef | str, reviewer: str, *, happened: bool, output: str) -> Call:
        """Say what really became of a call in doubt; `output` is what the model reads.

        Raises:
            NotOpen: it is not in doubt.
            NotAllowed: this person may not, or asked for the call.
            AlreadyFilled: somebody else was first.
        """
        ref = _ref(call)
        check_size("the output", output, MAX_TEXT)
        slot = ref.reconciled_by(reviewer)
        reconciled = e.Reconciled(happened=happened, output=output, reviewer=reviewer)
        self._check(await self.known_call(ref), slot, reconciled)
        await self._append_exclusive(slot, reconciled)
        return await self._counting(ref, slot)

    async def _counting(self, ref: CallRef, slot: Slot) -> Call:
        """The call, once what was recorded there is known to count: somebody else may have been first elsewhere."""
        known = await self.call(ref, must_include=slot)
        if (void := next((one for one in known.void if one.fact.slot == slot), None)) is not None:
            raise AlreadyFilled(f"{ref} is {known.status.replace('_', ' ')}: {void.why}.")
        return known

    # --------------------------------------------------------------------------------------------- helpers

    async def _in_force(self, workspace: str) -> AppliedPolicy:
        fact = await self.reading.latest(policies(workspace))
        if fact is None:
            return AppliedPolicy(organisation=workspace == ORGANISATION)
        newest = subject_of(fact)
        if newest not in self._policies:
            # What counts depends on what was recorded before it, so it is the same for ever.
            unapproved = await self._unapproved((fact,))
            try:
                self._policies[newest] = policy_of(fact, unapproved)
            except (BadFact, BadFile) as problem:
                _log.error("a policy is void; what was in force before it stays", problem=str(problem))
                versions = await self.read(policies(workspace), must_include=fact.slot)
                earlier = [one for one in versions if one.seq <= fact.seq]
                self._policies[newest] = policy_in_force(
                    earlier,
                    organisation=workspace == ORGANISATION,
                    unapproved=await self._unapproved(earlier),
                )
        return self._policies[newest]

    async def _unapproved(self, facts: Sequence[Fact]) -> dict[int, str]:
        """Why versions of a workspace's policy do not count that the organisation wanted approved by people."""
        found: dict[int, str] = {}
        if all(fact.slot.workspace == ORGANISATION for fact in facts):
            return found
        for fact in needing_approval(facts, await self.reading.read(policies(ORGANISATION))):
            ref = named_proposal(fact)
            if (why := problem_of(fact, await self.call(ref) if ref else None)) is not None:
                found[fact.seq] = why
        return found

    async def _principal(self, call: Call, reviewer: str, vote: e.Voted) -> str:
        """In whose place a reviewer votes who was not asked: somebody who was, and who gave the word."""
        if vote.verdict == "break_glass" or call.approval_request is None or may_vote(call, vote, reviewer):
            return ""
        for one in await self.delegations(call.ref.workspace):
            behalf = msgspec.structs.replace(vote, on_behalf_of=one.ref.giver)
            if one.holds(reviewer, call.wish.tool, self.now()) and may_vote(call, behalf, reviewer):
                return one.ref.giver
        return ""

    async def _attributed(self, call: Call) -> Call:
        """The call with what its request leaves to its thread: an edit is judged with it."""
        wish = call.wish
        if wish.requester and wish.agent and wish.labels:
            return call
        return attributed(call, origin(call, await self.read(call.ref.thread_ref.opened)))

    async def _can_be_agreed_to(self, call: Call, vote: Fact) -> None:
        """Refuse an edit to which nobody could agree any more but its editor, who does not count."""
        assert call.approval_request
        if call.approval_request.editor_counts or not is_edit(call, vote):
            return
        after = await self.tally(evolve(call, vote))
        if isinstance(after.verdict, e.Denied):
            raise NotAllowed(
                f"{call.ref} cannot run so: whoever edits does not count, and too few are left who could agree. "
                "Nothing was recorded. Deny it and say what it should be, so that it is requested anew."
            )

    def _check(self, call: Call, slot: Slot, event: e.Event) -> None:
        if (problem := refusal(call, slot, event, self.now())) is not None:
            raise problem

    async def _append_exclusive(self, slot: Slot, event: e.Event) -> None:
        """Fill a slot that must become ours."""
        if (first := await self.try_append(slot, event)) is not None:
            raise AlreadyFilled(f"{slot.subject} is taken: {describe(first)}. Nothing was recorded.")


def _ref(call: CallRef | str) -> CallRef:
    return call if isinstance(call, CallRef) else CallRef.parse(call)


def _in_place_of(vote: Fact, person: str) -> bool:
    return isinstance(vote.event, e.Voted) and vote.event.on_behalf_of == person


def _same_content(event: object, wanted: e.Event) -> bool:
    """Do two events say the same, whoever wrote them and when?"""
    if type(event) is not type(wanted):
        return False
    own = [name for name in wanted.__struct_fields__ if name not in e.Event.__struct_fields__]
    return all(getattr(event, name) == getattr(wanted, name) for name in own)


def _difference(event: object, wish: e.ToolRequested) -> str:
    """In what a request differs from the one that stands in its slot; empty: it is the same."""
    if not isinstance(event, e.ToolRequested):
        return "something that cannot be read"
    if event.digest != wish.digest:
        return "other arguments or another tool"
    return next(
        (f"another {what}" for what in ("requester", "agent") if getattr(event, what) != getattr(wish, what)),
        "other labels" if event.labels != wish.labels else "",
    )


def _written(arguments: dict[str, Any]) -> str:
    try:
        return msgspec.json.encode(arguments).decode()
    except (TypeError, ValueError, RecursionError) as problem:
        raise BadArguments(f"The arguments cannot be written as JSON: {problem}.") from None


#: How soon a decision is asked for again: after 2 ms, then always half as long again, at most each
#: second. So it is heard half as late as it took, or a second late.
_ASKED_AGAIN_S: Final = 0.002
_ASKED_AGAIN_AT_MOST_S: Final = 1.0
#: Stands for the number of a fact that is not recorded yet.
_NEXT: Final = 2**63
_VERDICTS: Final = ("approve", "deny", "answer", "break_glass")
_ROLES: Final = ("user", "system", "note")
