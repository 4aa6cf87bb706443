"""The ledger as a service uses it: ask for a call, wait for the decision, run it, record the end.

    async with Ledger.connect() as ledger:
        call = await ledger.request("shop/order-17/refund-1", "refund", {"order": "A-17"})
        call = await ledger.decision(call.ref)
        await ledger.run(call.ref, refund)

Each of these checks what may follow (`lifecycle.refusal`) and appends one fact. All can be done
again after a crash or a lost answer: the slots say what was done already.
"""

import asyncio
from typing import Any, Final, Literal

import msgspec

from ayes.ledger import clock
from ayes.ledger.client import LedgerClient, as_of_the_leader, call_ref, same_content
from ayes.ledger.descriptions import FLAWS, describe
from ayes.ledger.lifecycle import Call
from ayes.ledger.log import EventLog
from ayes.ledger.reviewers import Reviewer
from ayes.ledger.tool_runner import ToolFunction, run_tool
from ayes.schemas import events as e
from ayes.schemas import ids
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import (
    AlreadyFilled,
    BadArguments,
    BadInput,
    BrokerRefused,
    NotOpen,
    StillPending,
    Unavailable,
    WaitTimedOut,
)
from ayes.schemas.limits import MAX_REASON
from ayes.schemas.limits import check as check_size
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import CLIENT, CallRef, Slot, ThreadRef

_log: Final = get_logger("ayes.ledger.services")

#: How soon a decision is asked for again: after 2 ms, then each time after one and a half times as
#: long, at most a second. So it is noticed half as late as it took, or a second late.
_ASKED_AGAIN_S: Final = 0.002
_ASKED_AGAIN_AT_MOST_S: Final = 1.0
_ROLES: Final = ("user", "system", "note")


class Ledger(LedgerClient):
    """A connection to the ledger with all that a service does; `reviewer` is a person's part."""

    def __init__(
        self,
        log: EventLog,
        author: e.Author,
        *,
        now: clock.Clock = clock.now,
        new_id: ids.NewId = ids.new_id,
    ) -> None:
        super().__init__(log, author, now=now, new_id=new_id)
        #: Calls that are being claimed, and claims of which it is not known whether they count.
        self._claiming: set[CallRef] = set()
        self._claims: dict[CallRef, tuple[Slot, e.Event]] = {}

    def reviewer(self, name: str) -> Reviewer:
        """What this person may do: vote, grant, delegate, revoke, reconcile.

        Only the person's own credentials (`connect(role="reviewer-NAME")`) can record it.
        """
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
    ) -> Call:
        """Ask for a tool to be run.

        The same request made again is one request: a restarted service goes on waiting.

        Args:
            call: `workspace/thread/call`; the call id is the service's own, and its idempotency
                key.
            tool: what `declare` gave; or a name, for the version that was declared last.
            arguments: raw JSON text is kept byte for byte; a dict is written out once.
            requester: on whose behalf; by default whom the thread was opened for, else this
                program. This person cannot vote on it, so it must be a reviewer's name or an
                account that the policy lists below [people].
            agent: which agent wishes it. Rules may ask for it, and the people behind it cannot
                vote either.
            labels: what rules may ask for beside that.

        Raises:
            UnknownTool: nobody declared the tool in the workspace.
            BadArguments: they break its schema.
            AlreadyFilled: the call id was used for something else, or for somebody else.
        """
        ref = call_ref(call)
        named = tool if isinstance(tool, e.ToolRef) else e.ToolRef(tool, version="")
        declared = await self.tool(ref.workspace, named.tool, named.version)
        text = arguments if isinstance(arguments, str) else _written(arguments)
        if problem := declared.problems(text):
            raise BadArguments(problem)
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
        )
        first = await self.try_append(ref.requested, wish)
        if first is not None and (other := _difference(first.event, wish)):
            raise AlreadyFilled(
                f"{ref} was already requested with {other}: {describe(first)}. Choose another "
                "call id."
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
        ref, known = call_ref(call), None
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
            raise WaitTimedOut(
                f"{ref} is still {status} after {timeout_s:g} s. It stays open."
            ) from None

    async def run(
        self, call: CallRef | str, function: ToolFunction
    ) -> e.ToolReturned | e.ToolFailed:
        """Run an approved call's tool here: claim it, run it once, record how it went.

        Raises:
            NotOpen: it is not approved, what is recorded is not what was approved, or an executor
                runs it.
            AlreadyFilled: somebody else claimed it.
        """
        known = await self.start(call)
        key, attempt = str(known.ref), known.attempt
        outcome = await run_tool(function, known.arguments, attempt=attempt, key=key)
        await self._record_end(known, outcome)
        return outcome

    @as_of_the_leader
    async def start(self, call: CallRef | str) -> Call:
        """Claim an approved call that this program runs itself; from here on it may have run.

        `finish` records how it went. A claim of this program that was recorded, and whose answer
        was lost, is still its own: the next `start` goes on with it.

        Raises:
            NotOpen: it is not approved, was revoked just before, is not what was approved, or an
                executor runs it.
            AlreadyFilled: somebody else claimed it.
            Unavailable: whether the claim counts could not be read. Nothing has run; do the same
                again.
        """
        ref = call_ref(call)
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
        try:
            await self.append_exclusive(slot, started)
            known = await self.call(ref, must_include=slot)
        except AlreadyFilled:
            del self._claims[ref]
            raise
        del self._claims[ref]
        # A revocation has a slot of its own, so the order of the log decides which of them counts.
        if (void := next((one for one in known.void if one.fact.slot == slot), None)) is not None:
            raise NotOpen(f"{ref} may not be started: {void.why}. Nothing has run.")
        return known

    async def _new_claim(self, ref: CallRef) -> tuple[Slot, e.Event]:
        known = await self.known_call(ref)
        started = e.ToolStarted(digest=known.digest, idempotency_key=str(ref))
        # The client's own first slot: a second start would be a second run.
        self.check(known, ref.client_claim(1) if known.starts else known.claim_slot, started)
        if not known.is_clients:
            raise NotOpen(_not_here(known))
        if known.starts:
            claimed = describe(known.starts[-1])
            raise AlreadyFilled(f"{ref} is claimed: {claimed}. Nothing was recorded.")
        if (flaw := known.flaw) is not None:
            raise NotOpen(f"{ref}: {FLAWS[flaw]}. It will not run.")
        return known.claim_slot, self.with_envelope(started)

    async def _record_end(self, known: Call, outcome: e.Event) -> Fact | None:
        """Record how a call went, for as long as it takes; returns the end that was first."""
        posted = self.with_envelope(outcome)
        place = known.end_slot or known.late_slot
        while await self.append_until_acknowledged(place, posted) is not None:
            known = await self.call_patiently(known.ref, must_include=place)
            place = known.end_slot or known.late_slot
        return known.finished

    @as_of_the_leader
    async def finish(
        self, call: CallRef | str, *, output: str | None = None, error: str | None = None
    ) -> Call:
        """Record how a call went that this program claimed with `start`.

        A result that comes after the call was closed is kept (`late`) and never shown to the model.
        The same result posted again is refused as a repetition.

        Args:
            output: what the tool returned, as the model reads it.
            error: or the error that it raised.

        Raises:
            BadInput: neither or both of output and error are given.
            NotOpen: it was never started.
            AlreadyFilled: it has ended already; the first late result is kept beside that end.
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
            self.check(known, ref.client_finished, outcome)  # says why it cannot
            raise NotOpen(
                f"{ref} was never started, so it cannot have ended. Nothing was recorded."
            )
        if not known.is_clients:
            raise NotOpen(_not_here(known))
        posted = self.with_envelope(outcome)
        if known.finished is None:
            place = known.end_slot
            assert place
            if await self.try_append(place, posted) is None:
                return await self.call(ref, must_include=place)
            known = await self.call(ref, must_include=place)
        if (ended := known.finished) is None:  # what was first there is void
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
        """Record that a call was started and nobody knows how it ended; it then waits for a person.

        For calls that services run themselves, when the process that ran one is gone. An executor
        does this by itself.

        Raises:
            NotOpen: it is not running, or an executor runs it.
            AlreadyFilled: its result has come meanwhile.
        """
        ref = call_ref(call)
        known = await self.known_call(ref)
        text = why or f"{known.wish.tool} was started, and its result never came."
        in_doubt = e.InDoubt(attempt=known.attempt, text=text)
        place = known.end_slot or ref.client_finished
        self.check(known, place, in_doubt)
        if not known.is_clients:
            raise NotOpen(f"{ref} is run by {known.wish.run_by!r}, whose executor watches it.")
        return await self.record(known, place, in_doubt)

    @as_of_the_leader
    async def withdraw(self, call: CallRef | str, reason: str = "") -> Call:
        """Take a wish back, from the requester's side.

        Raises:
            AlreadyDecided: too late.
            TooLarge: the reason is over its limit (`ayes.schemas.limits`).
        """
        ref = call_ref(call)
        check_size("the reason", reason, MAX_REASON)
        known = await self.known_call(ref)
        return await self.record(known, ref.withdrawn, e.Withdrawn(reason=reason))

    @as_of_the_leader
    async def say(
        self,
        thread: ThreadRef | str,
        text: str,
        *,
        message: str,
        role: Literal["system", "user", "note"] = "user",
        name: str = "",
    ) -> Fact:
        """Say something to the model of a thread.

        The same text said again under the same `message` is one message.

        What becomes of a user's message while a call of the thread waits for people stands in that
        call's question, as the policy had it: it waits until the call is settled (`queue`), makes
        the call moot (`supersede`), or is refused here until the call is decided (`block`). Only
        this method refuses. A message that is recorded all the same, by a program in another
        language or just as the question is asked, waits as with `queue`; none is dropped.

        Args:
            message: its id in the thread, chosen by its author.
            name: who says it, where a thread has several users.

        Raises:
            StillPending: a call was put to people under `block` and is not decided. Nothing was
                recorded.
            AlreadyFilled: something else was said under this id.
            OutcomeUnknown: no answer came. Say it again: it is safe.
        """
        ref = thread if isinstance(thread, ThreadRef) else ThreadRef.parse(thread)
        slot = ref.said(message)
        if role not in _ROLES:
            raise BadInput(
                f"{role!r} is no role. What is said is said as one of {', '.join(_ROLES)}."
            )
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
        elif not same_content(first.event, said):
            raise AlreadyFilled(
                f"something else was said as {message!r} in {ref}: {describe(first)}. "
                "Choose another message id."
            )
        return first


def _not_here(call: Call) -> str:
    return f"{call.ref} is run by {call.wish.run_by!r}, as its tool is declared, and not here."


def _difference(event: object, wish: e.ToolRequested) -> str:
    """In what a request differs from the one that stands in its slot; empty: it is the same."""
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
