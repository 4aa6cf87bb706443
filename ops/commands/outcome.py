"""The state of a call after a command: in a sentence or as JSON, and as an exit code."""

import asyncio
import time
from typing import Final

from ayes.ledger.descriptions import describe_decision
from ayes.ledger.lifecycle import Call
from ayes.ledger.services import Ledger
from ayes.ledger.votes import Tally
from ayes.ops.terminal import output
from ayes.ops.terminal.output import print_json, print_message
from ayes.schemas import events as e
from ayes.schemas.errors import NotOpen
from ayes.schemas.slots import CallRef

DENIED: Final = 5
EXPIRED: Final = 6
PENDING: Final = 8
#: The gate decides within milliseconds. What is not decided after this waits for something.
GATE_S: Final = 3.0
#: The first and the longest pause between two readings; each is 1.5 times the one before.
_POLL_S: Final = 0.005
_MAX_POLL_S: Final = 0.1


async def report_end(ledger: Ledger, ref: CallRef, wanted: type[e.Event], *, json: bool) -> int:
    """Report the call once the gate has processed the last fact; returns the exit code."""
    known = await ledger.known_call(ref)
    known = await seen_by_gate(ledger, known)
    await report(ledger, known, json=json)
    return exit_code(known, wanted)


async def is_for_the_gate(ledger: Ledger, call: Call) -> bool:
    """Whether the next step is the gate's, not people's."""
    if call.decided is not None:
        return False
    if call.approval_request is None or call.withdrawn is not None:
        return True
    return (await ledger.tally(call)).verdict is not None


async def seen_by_gate(ledger: Ledger, call: Call, within_s: float = GATE_S) -> Call:
    """The call once the gate has recorded an approval request or a decision, if it must; else as it
    is when the time is up.
    """
    pause_s, until = _POLL_S, time.monotonic() + within_s
    while await is_for_the_gate(ledger, call) and time.monotonic() < until:
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _MAX_POLL_S)
        found = await ledger.call(call.ref)
        # Another replica may lack the facts that are known here.
        call = max(call, found, key=lambda one: len(one.facts))
    return call


async def open_tally(ledger: Ledger, call: Call) -> Tally | None:
    """The state of the vote on a pending call."""
    return (
        await ledger.tally(call)
        if call.approval_request is not None and call.decided is None
        else None
    )


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


async def report(ledger: Ledger, call: Call, sentence: str = "", *, json: bool) -> None:
    """Print the state of a call; for people in this sentence, if there is one."""
    stands = await open_tally(ledger, call)
    if json:
        print_json(output.call_json(call, stands))
    else:
        print_message(sentence or standing(call, stands))


def standing(call: Call, stands: Tally | None) -> str:
    if call.decided is not None:
        edited = output.edit_words(call)
        reason = getattr(call.decided.event, "reason", "")
        why = (
            f" The reason: {reason}" if isinstance(call.decided.event, e.Denied) and reason else ""
        )
        decision = describe_decision(call.decided, call.withdrawn)
        return f"{call.ref}: {decision}{f', {edited}' if edited else ''}.{why}"
    if stands is not None:
        waits = "waits" if stands.verdict or call.withdrawn else "waits for people"
        return f"{call.ref} {waits}: {output.vote_words(call, stands)}"
    return f"{call.ref} is requested and not judged yet. Does a gate run? See ayes status."


def exit_code(call: Call, wanted: type[e.Event]) -> int:
    """0 if it was decided as wanted, else the code for its state."""
    if call.decided is None:
        return PENDING
    if call.lapsed is not None:
        return EXPIRED
    if isinstance(call.decided.event, wanted) and call.revoked is None:
        return 0
    if call.answer is not None and wanted is e.Approved:
        return DENIED if call.answer.is_error else 0  # the wish was met, by a person
    if call.revoked is not None:
        return DENIED
    match call.decided.event:
        case e.Expired():
            return EXPIRED
        case e.Denied() | e.Withdrawn() | e.Superseded():
            return DENIED
        case _:
            return 1
