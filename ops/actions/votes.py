"""What became of a vote."""

from typing import Final

from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.votes import Tally
from ayes.projections.views.call import CallState, call_state
from ayes.schemas import events as e
from ayes.schemas.errors import NotOpen

#: The gate decides within milliseconds. What is not decided after this waits for something.
GATE_S: Final = 3.0


async def seen_by_gate(ledger: Ledger, call: Call, within_s: float = GATE_S) -> Call:
    """The call once the gate has recorded an approval request or a decision, if it must; else as it
    is when the time is up.
    """
    is_asked = call.approval_request is not None and call.withdrawn is None
    if call.decided is not None or (is_asked and (await ledger.tally(call)).verdict is None):
        return call  # decided, or people's
    return await ledger.until(
        call, lambda now: now.decided is not None or now.gated != call.gated, max(within_s, 0)
    )


async def open_tally(ledger: Ledger, call: Call) -> Tally | None:
    """The state of the vote on a pending call."""
    is_open = call.approval_request is not None and call.decided is None
    return await ledger.tally(call) if is_open else None


async def state_of(ledger: Ledger, call: Call) -> CallState:
    """A call as everybody outside sees it; while it is open, with the state of the vote."""
    return call_state(call, await open_tally(ledger, call))


def late_result(call: Call) -> tuple[bool, e.Content]:
    """Whether a call in doubt happened and what the model reads, as its late result has it.

    Raises:
        NotOpen: it has none, or several that differ.
    """
    match call.late_result:
        case e.ToolReturned(output=output):
            return True, output
        case e.ToolFailed(error=text):
            return False, text
        case None:
            raise NotOpen(
                f"{call.ref} has no late result, or several that differ: see ayes show "
                f"{call.ref}. Say what you found out: whether it happened."
            )
