"""Votes on what was displayed, and what became of them."""

from typing import Final

from msgspec.structs import replace

from ayes.ledger.call import Call
from ayes.ledger.clients.reviewers import Ballot
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.votes import Tally
from ayes.projections.pending import Entry
from ayes.projections.views.call import CallState, call_state
from ayes.projections.views.secrets import Secrets
from ayes.schemas import events as e
from ayes.schemas.errors import NotOpen

#: The gate decides within milliseconds. What is not decided after this waits for something.
GATE_S: Final = 3.0


async def vote_as_shown(ledger: Ledger, shown: Entry, name: str, ballot: Ballot) -> Call:
    """Vote on exactly what an entry of the queue displayed.

    Raises:
        NotOpen: the log has another tool, other arguments or another digest.
        ApprovalsError: as of `Reviewer.vote`.
    """
    known = await ledger.known_call(shown.ref)
    digest = known.approval_request.digest if known.approval_request else ""
    found = (known.wish.tool, known.wish.arguments, digest)
    if found != (shown.tool, shown.arguments, shown.digest):
        raise NotOpen(f"{shown.ref} is not what was shown. Look at it by itself: ayes show.")
    # Request and approval request are facts in slots: what was compared is what is voted on.
    return await ledger.reviewer(name).vote(shown.ref, replace(ballot, digest=digest))


def wants_typed(call: Call, verdict: e.Verdict) -> bool:
    """Whether its rule wants the name of the tool typed for this verdict."""
    asking = call.approval_request
    is_typed = asking is not None and asking.confirm == "typed"
    return is_typed and verdict in ("approve", "break_glass")


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


async def state_of(ledger: Ledger, call: Call, secrets: Secrets) -> CallState:
    """A call as everybody outside sees it; while it is open, with the state of the vote."""
    return call_state(call, secrets, await open_tally(ledger, call))


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
