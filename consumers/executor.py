"""The executor: runs what was approved, once, and closes what was not.

    Approved  ──► digest checked ──► claim.1 ──► the tool runs ──► finished
                   no such tool, other bytes ──► claim.1 is Declined ─┐
    Revoked in claim.1 ───────────────────────────────────────────────┼─► finished, with what the model
    Denied, Answered, Expired, Withdrawn, Superseded ─────────────────┘   reads instead

A claim without a result means that whoever claimed it died: it may have run or not. A tool that is declared
repeatable runs again under the next claim; any other call is in doubt, and waits for a person.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from consumers.steps import Append, Perform, Step
from consumers.tools import Registered
from ledger.client import Ledger
from ledger.lifecycle import Call, Status, attempt_of
from ledger.performing import perform
from ledger.port import Handed
from projections.words import refused
from schemas import events as e
from schemas.codec import Fact
from schemas.slots import CallRef

#: How often a repeatable tool is started at all.
MAX_ATTEMPTS: Final = 5

_NOT_TO_RUN: Final = frozenset(
    {
        Status.DENIED,
        Status.ANSWERED,
        Status.EXPIRED,
        Status.WITHDRAWN,
        Status.SUPERSEDED,
        Status.REVOKED,
        Status.DECLINED,
    }
)


class Run(Struct, frozen=True):
    """The work behind a claim."""

    call: CallRef
    tool: str
    arguments: str
    attempt: int


class Executor:
    """Runs the tools of one group (`run_by`). Calls that others run are theirs; only refusals are closed for all."""

    replaces = False

    def __init__(
        self, tools: Mapping[str, Registered], *, group: str = "executor", durable: str = "executor"
    ) -> None:
        self.durables = (durable,)
        self._tools = dict(tools)
        self._group = group

    async def look(self, ledger: Ledger, handed: Handed) -> Call:
        assert isinstance(handed, Fact)
        ref = handed.slot.call_ref
        assert ref, "the executor is handed decisions and claims only"
        if isinstance(handed.event, e.ToolStarted):  # whoever made it is at work
            return Call(ref)
        return await ledger.call(ref, having=handed.slot)

    def react(self, seen: Call, handed: Handed) -> Sequence[Step[Run]]:
        call = seen
        if call.requested is None or (ends_at := call.refusal_slot) is None:
            return ()
        if call.status in _NOT_TO_RUN:
            return [Append(ends_at, refused(call))]
        if call.wish.run_by != self._group or _is_claim(handed):
            return ()
        if call.status is Status.RUNNING:
            return self._again(call)
        assert call.status is Status.APPROVED, call.status
        tool = self._tools.get(call.wish.tool)
        if tool is None or tool.version != call.wish.tool_version:
            return [Append(call.claim_slot, e.Declined(why="unknown_tool"))]
        if (flaw := call.flaw) is not None:
            return [Append(call.claim_slot, e.Declined(why=flaw))]
        return [self._claim(call)]

    async def do(self, ledger: Ledger, work: Run) -> Append | None:
        call = await ledger.call_patiently(work.call, having=work.call.claim(work.attempt))
        # A revocation has a slot of its own: the order of the log says which of the two counts.
        if not any(attempt_of(start) == work.attempt for start in call.starts):
            ends_at = None if call.starts else call.refusal_slot
            return None if ends_at is None else Append(ends_at, refused(call))
        outcome = await self._outcome(work)
        return Append(call.end_slot or call.late_slot, outcome, otherwise=call.late_slot)

    async def _outcome(self, work: Run) -> e.ToolReturned | e.ToolFailed:
        function = self._tools[work.tool].function
        return await perform(function, work.arguments, work.attempt, key=str(work.call))

    def _again(self, call: Call) -> Sequence[Step[Run]]:
        """Somebody started it and is gone."""
        attempts = len(call.starts)
        tool = self._tools.get(call.wish.tool)
        same = tool is not None and tool.version == call.wish.tool_version
        if tool is not None and same and tool.spec.repeatable and attempts < MAX_ATTEMPTS:
            return [self._claim(call)]
        in_doubt = e.InDoubt(
            attempt=call.attempt,
            text=f"{call.wish.tool} was started, but whoever ran it stopped before it answered. "
            "It may or may not have taken effect; a person has to find out.",
        )
        assert call.end_slot
        return [Append(call.end_slot, in_doubt)]

    def _claim(self, call: Call) -> Perform[Run]:
        slot = call.claim_slot
        started = e.ToolStarted(digest=call.digest, idempotency_key=str(call.ref))
        work = Run(call.ref, call.wish.tool, call.arguments, int(slot.tail[-1]))
        return Perform(Append(slot, started), work)


def _is_claim(handed: Handed) -> bool:
    """Claims are handed out for the sake of those that take an approval back. Whoever made any other is at work."""
    return isinstance(handed, Fact) and handed.slot.tail[2] == "claim"
