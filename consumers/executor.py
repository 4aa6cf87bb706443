"""The executor: runs approved calls, once, and closes the others.

    Approved ──► digest checked ──► claim.1 ──► the tool runs ──► finished
                  no such tool, other bytes ──► claim.1 is Declined ─┐
                  sealed values do not open ──► claim.1 is Declined ─┤
    Revoked, Lapsed ─────────────────────────────────────────────────┼─► finished, with the text
    Denied, Answered, Expired, Withdrawn, Superseded ────────────────┘   that the model reads

A claim without a result means that the executor that made it died: the tool may have run or not. If
the tool has a lookup, it is asked: the result that it finds is recorded. A tool that is declared
repeatable, or whose lookup says that the call had no effect, runs again under the next claim. Any
other call is in doubt, and waits for a person (docs/decisions/0030).

Executors of several versions may run at the same time, as during an upgrade. An executor that lacks
the tool, or has it with another contract than the recorded one, hands the call on, and declines it
only if no other has taken it for a while (docs/decisions/0026). A call about which a newer program
has recorded something is left to a newer program.

A claimed call is started at once: a tool runs in a thread of its own (`ledger/tool_runner.py`), and
the worker takes no more calls than it may run. An approved call that waits for its turn is not
claimed, so it can be revoked.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final

from msgspec import Struct

from ayes.consumers.effects import Append, Effect, HandedOn, HandOn, Perform
from ayes.consumers.holding import held
from ayes.consumers.tools import Registered
from ayes.ledger import tracing
from ayes.ledger.call import Call, attempt_of
from ayes.ledger.clients.proofs import why_unproved
from ayes.ledger.clients.sealing import CLOSED, Closed, opened
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import NOT_RUN, Status
from ayes.ledger.log import Delivered
from ayes.ledger.patience import while_away
from ayes.ledger.sealed_values import Opened
from ayes.ledger.subscriptions import ACK_WAIT_S
from ayes.ledger.tool_runner import NOT_DONE, NotDone, look_up, run_tool
from ayes.projections.refusal_texts import tool_not_run
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadFact, Unavailable
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import CallRef
from ayes.schemas.tools import declaration

_log: Final = get_logger("ayes.consumers.executor")

#: Starts of a repeatable tool for one call.
MAX_ATTEMPTS: Final = 5
#: How long after the decision an approved call is handed on before it is declined, on the broker's
#: clock.
HAND_ON_FOR_S: Final = 30.0
#: The first delay of a call that is handed on. Each later one is as long as the call has waited.
HAND_ON_AFTER_S: Final = 2.0
#: The pauses before each question to a lookup that cannot tell.
LOOKUP_PAUSES_S: Final = (0.0, 1.0, 5.0)


class ClaimedRun(Struct, frozen=True):
    """The work behind a claim."""

    call: CallRef
    tool: str
    arguments: str
    attempt: int
    #: Whether its tool seals values, which are opened once more after the claim.
    is_sealed: bool = False


class ExecutorState(Struct, frozen=True):
    """A call, as far as an executor may act on it."""

    call: Call
    #: The recorded contract of its tool. `None` if there is none, or it does not matter.
    declared: e.ToolDeclared | None = None
    #: The broker's clock, where it matters.
    now: datetime | None = None
    #: Why its approval does not follow from signed votes and policies; empty if it does.
    unproved: str = ""
    #: What the tool's lookup says, or why it cannot tell. None: it was not asked.
    looked_up: e.ToolReturned | NotDone | str | None = None
    #: What its tool seals, opened, or why not; None: it seals nothing.
    opened: Opened | Closed | None = None

    @property
    def is_too_late(self) -> bool:
        """Whether the approval is valid no longer. Only the time of a claim's fact is certain."""
        until = self.call.valid_until
        return until is not None and self.now is not None and self.now >= until

    @property
    def may_run_again(self) -> bool:
        is_open = not isinstance(self.opened, str)
        return is_open and not self.is_too_late and not self.unproved

    @property
    def held(self) -> HandOn | None:
        """The step while a stop covers the call; None if none does."""
        stop = self.call.stop(self.now) if self.now is not None else None
        return held(stop, self.now) if stop is not None and self.now is not None else None


class Executor:
    """Runs the tools of one group (`run_by`). It closes refused calls of all groups.

    Args:
        hand_on_for_s: how long a call is left to other executors if it cannot run here.
    """

    replaces = False

    def __init__(
        self,
        tools: Mapping[str, Registered],
        *,
        group: str = "executor",
        durable: str = "executor",
        hand_on_for_s: float = HAND_ON_FOR_S,
    ) -> None:
        self.durables = (durable,)
        self._tools = dict(tools)
        self._declarations = {name: declaration(tool.spec) for name, tool in tools.items()}
        self._group = group
        self._hand_on_for_s = hand_on_for_s

    async def load(self, ledger: Ledger, handed: Delivered) -> ExecutorState:
        assert isinstance(handed, Fact)
        ref = handed.slot.call_ref
        assert ref, "the executor receives decisions and claims only"
        if isinstance(handed.event, e.ToolStarted):  # the executor that recorded it is at work
            return ExecutorState(Call(ref))
        call = await ledger.call(ref, must_include=handed.slot)
        if await ledger.is_too_late(call):
            # A start that was recorded just in time may be missing here, as when only its answer
            # was lost; nothing else would be delivered about it. After the leader's last fact none
            # that counts can come.
            await ledger.log.last_seq()
            call = await ledger.reading_from(ledger.log).call(ref, must_include=handed.slot)
        if not self._is_ours(call, handed):
            return ExecutorState(call, now=await ledger.log.clock() if call.newer else None)
        declared = await _declared(ledger, call)
        if call.newer or not self._can_run(call, declared):
            return ExecutorState(call, declared, await ledger.log.clock())
        plain = await _opened(ledger, call)
        found = await self._look_up(call, plain)
        unproved = await why_unproved(ledger, call, starts=True)
        if unproved:
            _log.error("an approval does not follow from what is signed", why=unproved)
        timed = call.valid_until is not None or call.stops or plain == "away"
        now = await ledger.log.clock() if timed else None
        return ExecutorState(call, declared, now, unproved, looked_up=found, opened=plain)

    def decide(self, seen: ExecutorState, handed: Delivered) -> Sequence[Effect[ClaimedRun]]:
        steps = self._steps(seen, handed)
        if steps and seen.call.newer:
            return [_hand_on(seen, handed, "a newer program has recorded something about it")]
        return steps

    def _steps(self, seen: ExecutorState, handed: Delivered) -> Sequence[Effect[ClaimedRun]]:
        call = seen.call
        if call.requested is None or (ends_at := call.refusal_slot) is None:
            return ()
        if call.status in NOT_RUN:
            return [Append(ends_at, tool_not_run(call))]
        if call.wish.run_by != self._group or not _is_decision(handed):
            return ()
        if call.status is Status.RUNNING:
            return self._again(seen)
        assert call.status is Status.APPROVED, call.status
        if seen.is_too_late:
            return ()  # the gate says so, and that is delivered
        if (flaw := call.flaw) is not None:
            return [Append(call.claim_slot, e.Declined(why=flaw))]
        if seen.unproved:
            return [Append(call.claim_slot, e.Declined(why="unproved"))]
        if not self._can_run(call, seen.declared):
            if _waited_s(seen, handed) < self._hand_on_for_s:
                return [_hand_on(seen, handed, f"{call.wish.tool} of that version is not here")]
            return [Append(call.claim_slot, e.Declined(why="unknown_tool"))]
        match seen.opened:
            case "away" if _waited_s(seen, handed) < self._hand_on_for_s:
                return [_hand_on(seen, handed, "the key of its thread is not here")]
            case "away":
                return [Append(call.claim_slot, e.Declined(why="unopened"))]
            case "forgotten" | "unopened" | "misfit" as why:
                return [Append(call.claim_slot, e.Declined(why=why))]
        return [seen.held or self._claim(seen)]

    async def execute(self, ledger: Ledger, work: ClaimedRun) -> Append | None:
        slot = work.call.claim(work.attempt)
        call = await ledger.call_patiently(work.call, must_include=slot)
        # A revocation has a slot of its own, so the order of the log decides which of them counts.
        if not any(attempt_of(start) == work.attempt for start in call.starts):
            claim = next(fact for fact in call.facts if fact.slot == slot)
            stop = call.stop(claim.recorded_at, claim.seq)
            if stop is not None and call.status in _MAY_START:
                # Also if it has ended by now: the call is open, and nothing else would start it.
                raise HandedOn(held(stop, await ledger.log.clock()))
            return _not_started(call)
        outcome = await tracing.executing(call, self._outcome(ledger, call, work))
        return Append(call.end_slot or call.late_slot, outcome, fallback_slot=call.late_slot)

    async def _outcome(
        self, ledger: Ledger, call: Call, work: ClaimedRun
    ) -> e.ToolReturned | e.ToolFailed | e.InDoubt:
        function, key = self._tools[work.tool].function, str(work.call)
        plain: Opened | Closed = Opened(work.arguments)
        if work.is_sealed:  # its thread may have been forgotten since it was loaded
            found = await while_away(partial(_opened, ledger, call), of=Unavailable)
            plain = found or "unopened"
        if isinstance(plain, str):
            return e.ToolFailed(error=f"It did not run: {CLOSED[plain]}.", attempt=work.attempt)
        return await run_tool(function, plain, work.attempt, key=key)

    async def _look_up(
        self, call: Call, plain: Opened | Closed | None
    ) -> e.ToolReturned | NotDone | str | None:
        """Ask the tool's lookup about a call whose executor has died, more than once if it cannot
        tell.
        """
        lookup = self._tools[call.wish.tool].lookup
        if call.status is not Status.RUNNING or lookup is None or isinstance(plain, str):
            return None
        plain = plain or Opened(call.arguments)
        found: e.ToolReturned | NotDone | str = ""
        for pause_s in LOOKUP_PAUSES_S:
            await asyncio.sleep(pause_s)
            found = await look_up(lookup, plain, call.attempt, key=str(call.ref))
            if not isinstance(found, str):
                break
        return found

    def _is_ours(self, call: Call, handed: Delivered) -> bool:
        """Whether it may be for this executor to start the call now."""
        if call.requested is None or call.wish.run_by != self._group or not _is_decision(handed):
            return False
        return call.status in (Status.APPROVED, Status.RUNNING)

    def _can_run(self, call: Call, declared: e.ToolDeclared | None) -> bool:
        """Whether the tool is here, in the requested version, and as it was declared.

        A version is the digest of a declaration, but the broker does not check it: if another
        declaration was recorded under it, people may have approved something else.
        """
        if call.wish.tool not in self._declarations or declared is None:
            return False
        version, own = self._declarations[call.wish.tool]
        return version == call.wish.tool_version and all(
            getattr(own, field) == getattr(declared, field) for field in _CONTRACT
        )

    def _again(self, seen: ExecutorState) -> Sequence[Effect[ClaimedRun]]:
        """The steps for a call whose executor has died."""
        call, declared = seen.call, seen.declared
        assert call.end_slot
        if isinstance(seen.looked_up, e.ToolReturned):
            return [Append(call.end_slot, seen.looked_up)]
        not_done = seen.looked_up is NOT_DONE
        repeatable = declared is not None and declared.repeatable
        if len(call.starts) < MAX_ATTEMPTS:
            if not self._can_run(call, declared) or seen.opened == "away":
                # Another executor may have the tool, and a lookup. The broker redelivers the call
                # only after the starter's ack wait, which does not count.
                if _waited_s(seen, call.starts[-1]) < ACK_WAIT_S + self._hand_on_for_s:
                    why = f"{call.wish.tool} of that version, or the key of its thread, is not here"
                    return [_hand_on(seen, call.starts[-1], why)]
            elif (repeatable or not_done) and seen.may_run_again:
                return [seen.held or self._claim(seen, looked_up=not_done)]
        unknown = seen.looked_up if isinstance(seen.looked_up, str) else ""
        asked = f"Its lookup cannot tell what became of it: {unknown}. " if unknown else ""
        asked += f"It is not started again, since {seen.unproved}. " if seen.unproved else ""
        return [Append(call.end_slot, _in_doubt(call, asked))]

    def _claim(self, seen: ExecutorState, *, looked_up: bool = False) -> Perform[ClaimedRun]:
        call, plain = seen.call, seen.opened
        assert not isinstance(plain, str)
        slot = call.claim_slot
        started = e.ToolStarted(
            digest=call.digest, idempotency_key=str(call.ref), looked_up=looked_up
        )
        work = ClaimedRun(
            call.ref, call.wish.tool, call.arguments, int(slot.tail[-1]), plain is not None
        )
        return Perform(Append(slot, started, after=call.last_revocation), work)


def _not_started(call: Call) -> Append | None:
    """What follows a claim that does not count: the call was revoked, or its approval is valid no
    longer. A call that lapses is delivered again.
    """
    if call.status in NOT_RUN:
        assert call.refusal_slot, "it has not ended"
        return Append(call.refusal_slot, tool_not_run(call))
    if call.status is Status.RUNNING:  # an earlier start, that died
        assert call.end_slot, "it has not ended"
        return Append(call.end_slot, _in_doubt(call))
    return None


def _in_doubt(call: Call, asked: str = "") -> e.InDoubt:
    return e.InDoubt(
        attempt=call.attempt,
        text=f"{call.wish.tool} was started, but whoever ran it stopped before it answered. "
        f"{asked}It may or may not have taken effect; a person has to find out.",
    )


#: The statuses in which a call starts, or starts again.
_MAY_START: Final = (Status.APPROVED, Status.RUNNING)

#: The fields of a declaration.
_CONTRACT: Final = tuple(
    field for field in e.ToolDeclared.__struct_fields__ if field not in e.Event.__struct_fields__
)


async def _declared(ledger: Ledger, call: Call) -> e.ToolDeclared | None:
    try:
        tool = await ledger.tool_of(call)
    except BadFact:  # its schema cannot be compiled
        return None
    return None if tool is None else tool.declared


async def _opened(ledger: Ledger, call: Call) -> Opened | Closed | None:
    tool = await ledger.tool_of(call)
    return await opened(ledger, call, tool) if tool is not None and tool.declared.sealed else None


def _waited_s(seen: ExecutorState, handed: Delivered) -> float:
    """How long ago the delivered fact was recorded."""
    assert seen.now, "`load` reads the clock whenever a call may have to wait"
    return (seen.now - handed.recorded_at).total_seconds()


def _hand_on(seen: ExecutorState, handed: Delivered, why: str) -> HandOn:
    return HandOn(max(HAND_ON_AFTER_S, _waited_s(seen, handed)), why)


def _is_decision(handed: Delivered) -> bool:
    """Whether the delivery is the decision. Only one executor at a time has it, until that executor
    is done with the call, so only this delivery may start the call, or show that an executor died.
    Any executor may receive revocations, lapses and claims, also while the call runs.
    """
    return isinstance(handed, Fact) and handed.slot.tail[2] == "decided"
