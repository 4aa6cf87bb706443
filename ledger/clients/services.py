"""The ledger as a service uses it: ask for a call, wait for the decision, run it, record the end.

    async with Ledger.connect() as ledger:
        call = await ledger.request("shop/order-17/refund-1", "refund", {"order": "A-17"})
        call = await ledger.decision(call.ref)
        await ledger.run(call.ref, refund)

Each method checks what may follow (`validity.refusal`) and appends one fact. All can be repeated
after a crash or a lost answer: the slots tell what was done already.
"""

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal

import msgspec

from ayes.ledger import clock, tracing
from ayes.ledger.call import Call
from ayes.ledger.clients.client import (
    LedgerClient,
    as_of_the_leader,
    call_ref,
    is_same_event,
    same_content,
)
from ayes.ledger.clients.proofs import why_unproved
from ayes.ledger.clients.reviewers import Reviewer
from ayes.ledger.clients.sealing import CLOSED, opened, scrubbed, with_seals
from ayes.ledger.descriptions import FLAWS, already_filled, describe, describe_decision
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import EventLog
from ayes.ledger.patience import while_away
from ayes.ledger.sealed_values import Opened
from ayes.ledger.subscriptions import ACK_WAIT_S
from ayes.ledger.tool_runner import ToolFunction, not_recorded, run_tool
from ayes.schemas import events as e
from ayes.schemas import ids
from ayes.schemas.backoff import Backoff
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import (
    AlreadyDecided,
    AlreadyFilled,
    BadArguments,
    BadInput,
    BrokerAway,
    CallChanged,
    NotOpen,
    Refused,
    StillPending,
    Unavailable,
    WaitTimedOut,
)
from ayes.schemas.limits import MAX_INTERVAL_S, MAX_REASON
from ayes.schemas.limits import check as check_size
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import CLIENT, CallRef, Slot, ThreadRef
from ayes.schemas.tools import Tool

_log: Final = get_logger("ayes.ledger.clients.services")

#: What is waited for is noticed late by half of the time that it took, or by a second.
_POLLS: Final = Backoff(0.002, 1.0, growth=1.5)
#: How long a service may be silent before a call that it runs is in doubt, as an executor.
LEASE_S: Final = ACK_WAIT_S
#: The first renewal of a claim comes so long after it, or after a third of a shorter lease.
RENEW_AFTER_S: Final = LEASE_S / 3
#: The beginning of the keys in the bucket `running` by which services renew their claims.
RENEWED: Final = "_renewed."
#: The beginning of the keys there that say which channel of notices fails, and why.
CHANNEL: Final = "_channel."
#: The same of the calendars of absences.
CALENDAR: Final = "_calendar."
_ROLES: Final = ("user", "system", "note")


class Ledger(LedgerClient):
    """A connection to the ledger with the methods for services, and `reviewer` for a person."""

    def __init__(
        self,
        log: EventLog,
        author: e.Author,
        *,
        now: clock.Clock = clock.now,
        new_id: ids.NewId = ids.new_id,
    ) -> None:
        super().__init__(log, author, now=now, new_id=new_id)
        #: Calls that are being claimed, and claims that may or may not count.
        self._claiming: set[CallRef] = set()
        self._claims: dict[CallRef, tuple[Slot, e.Event, int]] = {}

    def reviewer(self, name: str) -> Reviewer:
        """The methods for a reviewer, who needs their own credentials (`role="reviewer-NAME"`)."""
        return Reviewer(self, name)

    async def request(
        self,
        call: CallRef | str,
        tool: e.ToolRef | str,
        arguments: dict[str, Any] | str,
        *,
        requester: str = "",
        agent: str = "",
        labels: dict[str, str] | None = None,
        expires_in_s: float | None = None,
    ) -> Call:
        """Request to run a tool. Repeating the same request is safe.

        Args:
            call: `workspace/thread/call`; the service chooses the call id, its idempotency key.
            tool: the result of `declare`; or a name, for the version that was declared last. If
                the request is repeated, the version of the first one counts.
            arguments: raw JSON text is kept byte for byte; a dict is encoded once. What the tool
                seals is sealed here, before anything is recorded (docs/secrets.md).
            requester: the person on whose behalf; by default that of the thread, else this
                program. They cannot vote on it, so it must be a reviewer's name or an account that
                the policy lists below [people].
            agent: the agent that makes the call. Rules may match it, and the people behind it
                cannot vote either.
            labels: rules may match them.
            expires_in_s: how long the caller waits for people, in seconds from when the request is
                recorded; then the call expires. A policy may ask them for a shorter time, and
                never for a longer one. None: as long as the policy says. If the request is
                repeated, the time of the first one counts.

        Raises:
            BadInput: `expires_in_s` is not a number of seconds above 0, a century at most.
            UnknownTool: nobody declared the tool in the workspace.
            BadArguments: they break its schema.
            BadInput: the tool seals a value, and there is no key here to seal it with.
            NotOpen: so it is, and the thread was forgotten.
            AlreadyFilled: the call id was used for another request or another requester.
        """
        ref = call_ref(call)
        if expires_in_s is not None and not 0 < expires_in_s <= MAX_INTERVAL_S:
            raise BadInput(
                f"expires_in_s is {expires_in_s!r}, which is no time to wait: give seconds, more "
                "than 0 and at most a century."
            )
        named = tool if isinstance(tool, e.ToolRef) else e.ToolRef(tool, version="")
        declared = await self.tool(ref.workspace, named.tool, named.version)
        text = arguments if isinstance(arguments, str) else _written(arguments)
        # If it was declared anew since the first request, the version of that one counts.
        again = partial(
            self.request, ref, arguments=arguments, requester=requester, agent=agent, labels=labels
        )
        problem = None
        try:
            text = await with_seals(self, ref, declared, text)
        except BadArguments as bad:
            problem = str(bad)
        if problem := problem or declared.problems(text):
            first = next(iter(await self.read(ref.requested)), None)
            if named.version or not (older := _older(first, declared)):
                raise BadArguments(problem)
            return await again(tool=older, expires_in_s=expires_in_s)
        opened = e.ThreadOpened(requester=self.author.name)
        if not requester:
            standing = next(iter(await self.read(ref.thread_ref.opened)), None)
            if standing and isinstance(standing.event, e.ThreadOpened):
                opened = standing.event
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
            expires_in_s=expires_in_s,
        )
        first = await self.try_append(ref.requested, wish)
        if not named.version and (older := _older(first, declared)):
            return await again(tool=older, expires_in_s=expires_in_s)
        known = await self.call(ref, must_include=ref.requested)
        first = known.fact_at(ref.requested) or first
        if first is not None and (other := _difference(first.event, wish)):
            requested = f"{ref} was already requested with {other}: {describe(first)}"
            raise AlreadyFilled(f"{requested}. Choose another call id.")
        return known

    async def decision(self, call: CallRef | str, *, timeout_s: float | None = None) -> Call:
        """Wait until the call is decided.

        Raises:
            UnknownCall: it was never requested.
            WaitTimedOut: nobody decided in time. It stays open.
        """
        ref = call_ref(call)
        late = f"after {timeout_s:g} s. It stays open." if timeout_s is not None else ""
        try:
            known = await self.until(ref, lambda one: one.decided is not None, timeout_s)
        except BrokerAway:
            raise WaitTimedOut(f"{ref} cannot be read, since no broker answers, {late}") from None
        if known.decided is None:
            raise WaitTimedOut(f"{ref} is not decided {late}")
        return known

    async def until(
        self,
        call: Call | CallRef,
        is_so: Callable[[Call], bool],
        timeout_s: float | None = None,
    ) -> Call:
        """The call as soon as this is true of it, or as it is when the time is up.

        Raises:
            UnknownCall: it was never requested.
            BrokerRefused: these credentials may not read it.
            BrokerAway: it cannot be read, and the time is up.
        """
        # Polled and not followed: each follower needs one of the stream's limited consumers.
        ref, known = (call.ref, call) if isinstance(call, Call) else (call, None)
        pauses = _POLLS.pauses()
        try:
            async with asyncio.timeout(timeout_s):
                if known is None:
                    known = await while_away(partial(self.known_call, ref), of=Unavailable)
                while not is_so(known):
                    await asyncio.sleep(next(pauses))
                    known = await while_away(partial(self._newer, known), of=Unavailable)
        except TimeoutError:
            if known is None:
                raise BrokerAway(f"{ref} cannot be read: no broker answers.") from None
        return known

    async def _newer(self, known: Call) -> Call:
        """The call with all that is recorded about it by now."""
        last = await self.log.latest(known.ref.subjects)
        if last is None or last.seq <= known.facts[-1].seq:
            # A stop may have ended since, which is not recorded among the facts of the call.
            return await self.call(known.ref) if known.stops else known
        return await self.call(known.ref, must_include=last.slot)

    async def run(
        self, call: CallRef | str, function: ToolFunction, *, lease_s: float = LEASE_S
    ) -> e.ToolReturned | e.ToolFailed | e.InDoubt:
        """Run an approved call in this process: claim it, run it once, record the outcome.

        While the tool runs, the claim is renewed. A tool that raises `EffectUnknown` leaves the
        call in doubt.

        Args:
            lease_s: if the claim is not renewed for so long, this process has died, and the call
                is in doubt.

        Raises:
            BadInput: the lease is not a number of seconds over 0.
            NotOpen: it is not approved, differs from what was approved, or an executor runs it.
            AlreadyFilled: somebody else claimed it.
        """
        if not 0 < lease_s < math.inf:
            raise BadInput(f"lease_s is {lease_s}: give a number of seconds over 0.")
        known = await self._claim(call, lease_s)
        renewing = asyncio.create_task(self._renew(known.ref, lease_s))
        try:
            key, attempt = str(known.ref), known.attempt
            outcome: e.ToolReturned | e.ToolFailed | e.InDoubt
            try:
                plain = await while_away(partial(self._opened, known), of=Unavailable)
            except NotOpen as problem:  # since the claim, before which it could be opened
                outcome = e.ToolFailed(error=str(problem), attempt=attempt)
            else:
                running = run_tool(function, plain, attempt, key=key)
                outcome = await tracing.executing(known, running)
            try:
                await self._record_end(known, outcome)
            except BadInput as problem:
                outcome = not_recorded(outcome, problem)
                await self._record_end(known, outcome)
        finally:
            renewing.cancel()
        return outcome

    async def opened(self, call: CallRef | str) -> Opened:
        """The arguments that a call runs with, what its tool seals in plain text.

        Raises:
            UnknownCall: it was never requested.
            NotOpen: something in it cannot be opened, or does not fit the schema of its tool.
        """
        return await self._opened(await self.known_call(call_ref(call)))

    async def _opened(self, known: Call) -> Opened:
        tool = await self.tool_of(known)
        if tool is None or not tool.declared.sealed:
            return Opened(known.arguments)
        found = await opened(self, known, tool)
        if not isinstance(found, Opened):
            raise NotOpen(f"{known.ref} does not run: {CLOSED[found]}. Nothing was recorded.")
        return found

    async def _renew(self, ref: CallRef, lease_s: float) -> None:
        """Renew a claim until cancelled. Short runs never do it."""
        pause_s = min(RENEW_AFTER_S, lease_s / 3)
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self._renew_once(ref)
            except Unavailable as problem:
                _log.warning("the claim is not renewed", call=str(ref), problem=str(problem))

    async def _renew_once(self, ref: CallRef) -> None:
        await self.log.running.overwrite(RENEWED + str(ref).replace("/", "."), b"renewed")

    async def start(self, call: CallRef | str, *, claim_id: str = "", lease_s: float = 0) -> Call:
        """Claim an approved call that this program runs itself; `finish` records the outcome.

        If the answer to a claim was lost, the next `start` of this program goes on with it.

        Args:
            claim_id: a UUID that only this run of the tool has. Then `start` with the same id
                succeeds again until the call ends, from another connection too: it is the same
                claim.
            lease_s: if the claim is not renewed for so long (`renew` with its `claim_id`), the call
                is in doubt. 0: it is in doubt only when `doubt` says so.

        Raises:
            BadInput: the lease is negative or has no end.
            NotOpen: it is not approved, was revoked, differs from what was approved, or an executor
                runs it.
            AlreadyFilled: somebody else claimed it.
            Unavailable: it is unknown whether the claim counts. Nothing has run; do the same again.
        """
        if not 0 <= lease_s < math.inf:
            raise BadInput(f"lease_s is {lease_s}: give a number of seconds, or 0 for no lease.")
        if claim_id:
            return await self._claim_as(call_ref(call), claim_id, lease_s)
        return await self._claim(call, lease_s)

    @as_of_the_leader
    async def renew(self, call: CallRef | str, claim_id: str) -> Call:
        """Say that the program with this claim still runs the call: its lease begins again.

        Do it three times in each lease, so that one lost request makes no doubt. A claim whose
        lease has ended can be renewed until somebody records the doubt.

        Raises:
            UnknownCall: it was never requested.
            NotOpen: it does not run, or by another claim, or by one without a lease.
        """
        ref = call_ref(call)
        known = await self.known_call(ref)
        claim = self._running_claim(known, claim_id)
        if claim is None:
            raise NotOpen(f"{ref} is {known.status}, and not by this claim: nothing is to renew.")
        if not claim.lease_s:
            raise NotOpen(f"{ref} was claimed without a lease, so there is nothing to renew.")
        await self._renew_once(ref)
        return known

    def _running_claim(self, call: Call, claim_id: str) -> e.ToolStarted | None:
        """The claim of this program by which a call runs; None if it does not, or by another."""
        claim = call.starts[-1].event if call.status is Status.RUNNING else None
        if isinstance(claim, e.ToolStarted) and (claim.id, claim.by) == (claim_id, self.author):
            return claim
        return None

    @as_of_the_leader
    async def _claim_as(self, ref: CallRef, claim_id: str, lease_s: float) -> Call:
        try:
            return await self._record_claim(ref, *await self._new_claim(ref, lease_s, claim_id))
        except AlreadyFilled:
            known = await self.known_call(ref)
            if self._running_claim(known, claim_id) is None:
                raise
            return known

    @as_of_the_leader
    async def _claim(self, call: CallRef | str, lease_s: float) -> Call:
        ref = call_ref(call)
        if ref in self._claiming:
            raise AlreadyFilled(f"{ref} is being claimed by this program already. Wait for that.")
        self._claiming.add(ref)
        try:
            return await self._claim_once(ref, lease_s)
        finally:
            self._claiming.discard(ref)

    async def _claim_once(self, ref: CallRef, lease_s: float) -> Call:
        claim = self._claims.get(ref) or await self._new_claim(ref, lease_s)
        # Kept until it is known whether it counts: it may be recorded although the answer is lost.
        self._claims[ref] = claim
        try:
            known = await self._record_claim(ref, *claim)
        except (Refused, CallChanged):
            del self._claims[ref]
            raise
        del self._claims[ref]
        return known

    async def _record_claim(self, ref: CallRef, slot: Slot, started: e.Event, after: int) -> Call:
        # A revocation that was not read, by whatever answer, refuses the start at the broker.
        known = await self.fill(ref, slot, started, after)
        # A revocation has its own slot, so the order of the log decides which of the two counts.
        if (void := next((one for one in known.void if one.fact.slot == slot), None)) is not None:
            raise NotOpen(f"{ref} may not be started: {void.why}. Nothing has run.")
        return known

    async def _new_claim(
        self, ref: CallRef, lease_s: float, claim_id: str = ""
    ) -> tuple[Slot, e.Event, int]:
        """The slot, the event, and the last revocation that was seen (`EventLog.append`)."""
        known = await self.known_call(ref)
        started = e.ToolStarted(
            id=claim_id, digest=known.digest, idempotency_key=str(ref), lease_s=lease_s
        )
        # The client's own first slot: a second start would be a second run.
        await self.check(known, ref.client_claim(1) if known.starts else known.claim_slot, started)
        if not known.is_clients:
            raise NotOpen(_not_here(known))
        if known.starts:
            raise AlreadyFilled(already_filled(known.starts[-1].slot, known.starts[-1]))
        if (flaw := known.flaw) is not None:
            raise NotOpen(f"{ref}: {FLAWS[flaw]}. It will not run.")
        await self._opened(known)  # a call whose arguments cannot be opened is not started
        if why := await why_unproved(self, known, starts=True):
            raise NotOpen(f"{ref}: {why}, and votes are signed here. It will not run.")
        return (
            known.claim_slot,
            self.with_envelope(tracing.about(known, started)),
            known.last_revocation,
        )

    async def _record_end(self, known: Call, outcome: e.Event) -> Fact | None:
        """Record an outcome, for as long as it takes; returns the end that was first."""
        posted = self.with_envelope(tracing.about(known, outcome))
        place = known.end_slot or known.late_slot
        while await self.append_until_acknowledged(place, posted) is not None:
            known = await self.call_patiently(known.ref, must_include=place)
            place = known.end_slot or known.late_slot
        return known.finished

    @as_of_the_leader
    async def finish(
        self, call: CallRef | str, *, output: e.Content | None = None, error: str | None = None
    ) -> Call:
        """Record the outcome of a call that this program claimed with `start`.

        The first result after the end is kept (`late`) and never shown to the model. Repeating the
        same result is refused.

        Args:
            output: the tool's output, for the model: a text, or texts and files in their order
                (`ayes.schemas.content`). What its tool seals is left out, as by `run`.
            error: or the error that it raised.

        Raises:
            BadInput: neither or both of output and error are given, or a file cannot be recorded.
            NotOpen: it was never started; or what its tool seals cannot be left out, since its key
                is not here (docs/secrets.md).
            AlreadyFilled: it has ended already.
        """
        ref = call_ref(call)
        if (output is None) == (error is None):
            raise BadInput("a call ends with an output or with an error: give one of them.")
        known = await self.known_call(ref)
        outcome: e.ToolReturned | e.ToolFailed = (
            e.ToolReturned(output=output, attempt=max(1, known.attempt))
            if output is not None
            else e.ToolFailed(error=error or "", attempt=max(1, known.attempt))
        )
        if not known.starts:
            await self.check(known, ref.client_finished, outcome)
            raise NotOpen(f"{ref} was never started, so it has no outcome. Nothing was recorded.")
        if not known.is_clients:
            raise NotOpen(_not_here(known))
        outcome = await scrubbed(self, known, outcome)
        posted = self.with_envelope(tracing.about(known, outcome))
        if known.finished is None:
            place = known.end_slot
            assert place
            first = await self.try_append(place, posted)
            known = await self.call(ref, must_include=place)
            if first is None and is_same_event(known.fact_at(place), posted):
                return known
        if (ended := known.finished) is None:  # the fact that was first is void
            return await self.finish(ref, output=output, error=error)
        if same_content(ended.event, outcome):
            raise AlreadyFilled(f"{ref} has ended with this very result: {describe(ended)}.")
        kept = "What came now is kept as late."
        if not any(same_content(late.event, posted) for late in known.late) and (
            known.late or await self.try_append(known.late_slot, posted) is not None
        ):
            kept = "Nothing was recorded: another late result was first."
        raise AlreadyFilled(f"{ref} has ended already: {describe(ended)}. {kept}")

    @as_of_the_leader
    async def doubt(self, call: CallRef | str, why: str = "") -> Call:
        """Record that nobody knows how a started call ended; it then waits for a person.

        For calls that services run themselves, after the process that ran one has died. Executors
        do it by themselves.

        Args:
            why: for people; what its tool seals is left out, as by `finish`.

        Raises:
            NotOpen: it is not running, or an executor runs it; or as of `finish`, if there is a
                `why`.
            AlreadyFilled: its result was recorded meanwhile.
        """
        ref = call_ref(call)
        known = await self.known_call(ref)
        text = why or f"{known.wish.tool} was started, and its result never came."
        place = await self.check_doubt(known)
        doubt = e.InDoubt(attempt=known.attempt, text=text)
        return await self.record(known, place, await scrubbed(self, known, doubt) if why else doubt)

    async def check_doubt(self, call: Call) -> Slot:
        """Refuse to record that nobody knows how a call ended; returns the slot for it.

        Raises:
            Refused: as of `doubt`.
        """
        place = call.end_slot or call.ref.client_finished
        await self.check(call, place, e.InDoubt(attempt=call.attempt, text=""))
        if not call.is_clients:
            raise NotOpen(f"{call.ref} is run by {call.wish.run_by!r}, whose executor watches it.")
        return place

    @as_of_the_leader
    async def withdraw(self, call: CallRef | str, reason: str = "") -> Call:
        """Withdraw a call, from the requester's side.

        If a sub-agent asks in the run of the call, the calls below are withdrawn, at any depth; the
        call itself goes on to its end.

        Raises:
            AlreadyDecided: too late.
            TooLarge: the reason is over its limit (`ayes.schemas.limits`).
        """
        ref = call_ref(call)
        check_size("the reason", reason, MAX_REASON)
        known = await self.known_call(ref)
        await self.check_withdrawal(known)
        return await self.record(known, ref.withdrawn, e.Withdrawn(reason=reason))

    async def check_withdrawal(self, call: Call) -> None:
        """Refuse to withdraw a call, if it is too late for it.

        Raises:
            Refused: as of `withdraw`.
        """
        await self.check(call, call.ref.withdrawn, e.Withdrawn())
        if call.status is Status.RUNNING and not await self.read(call.ref.below.opened):
            assert call.decided
            decided = describe_decision(call.decided, call.withdrawn)
            raise AlreadyDecided(
                f"{call.ref} is already decided: {decided}. It runs, and no sub-agent asks in its "
                "run. Nothing was recorded."
            )

    @as_of_the_leader
    async def say(
        self,
        thread: ThreadRef | str,
        text: e.Content,
        *,
        message: str,
        role: Literal["system", "user", "note"] = "user",
        name: str = "",
    ) -> Fact:
        """Add a message to a thread. Repeating the same text with the same `message` is safe.

        If a call of the thread is pending, the policy decides about a user's message: it waits
        until the call is settled (`queue`), makes the call moot (`supersede`), or is refused here
        until the call is decided (`block`). Only this method refuses. A message that is recorded
        all the same, by a program in another language or just as people are asked, waits as with
        `queue`; none is dropped.

        Args:
            text: a text, or texts and files in their order (`ayes.schemas.content`).
            message: its id in the thread, chosen by its author.
            name: the author, if a thread has several users.

        Raises:
            BadInput: a file cannot be recorded; says why.
            StillPending: a call is pending under `block`. Nothing was recorded.
            AlreadyFilled: this id has another text.
            OutcomeUnknown: no answer came. Repeating it is safe.
        """
        ref = thread if isinstance(thread, ThreadRef) else ThreadRef.parse(thread)
        slot = ref.said(message)
        if role not in _ROLES:
            raise BadInput(f"{role!r} is not a valid role. The roles are: {', '.join(_ROLES)}.")
        text = text if isinstance(text, str) else tuple(text)
        said = e.Said(role=role, text=text, name=name)
        standing = next(iter(await self.read(slot)), None)
        if standing is None and role == "user":
            for call in await self.open_questions(ref):
                asked = call.approval_request
                if asked is not None and asked.while_pending == "block":
                    raise StillPending(
                        f"{call.ref} waits for people, and the policy lets no user say anything "
                        "before it is decided. Nothing was recorded. Say it again then, or "
                        "withdraw the call."
                    )
        first = standing or await self.try_append(slot, said)
        if first is None:
            [first] = await self.read(slot, must_include=slot)
        if not same_content(first.event, said):
            raise AlreadyFilled(
                f"something else was said as {message!r} in {ref}: {describe(first)}. "
                "Choose another message id."
            )
        return first


def _not_here(call: Call) -> str:
    return f"{call.ref} is run by {call.wish.run_by!r}, as its tool is declared, and not here."


def _older(first: Fact | None, tool: Tool) -> e.ToolRef | None:
    """The other version of a tool by which a call was requested; None: it was not."""
    match first and first.event:
        case e.ToolRequested(tool=tool.name, tool_version=version) if version != tool.version:
            return e.ToolRef(tool.name, version)
        case _:
            return None


def _difference(event: object, wish: e.ToolRequested) -> str:
    """The difference between a request and the recorded one; empty if there is none."""
    if not isinstance(event, e.ToolRequested):
        return "something that cannot be read"
    if event.digest != wish.digest:
        return "other arguments or another tool"
    for what in ("requester", "agent"):
        if getattr(event, what) != getattr(wish, what):
            return f"another {what}"
    return "other labels" if event.labels != wish.labels else ""


def _written(arguments: dict[str, Any]) -> str:
    try:
        return msgspec.json.encode(arguments).decode()
    except (TypeError, ValueError, RecursionError) as problem:
        raise BadArguments(f"The arguments cannot be written as JSON: {problem}.") from None
