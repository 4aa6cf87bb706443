"""The state of a call after a command: in a sentence or as JSON, and as an exit code."""

from typing import Final

from ayes.interfaces.cli.terminal.output import print_result
from ayes.ledger import clock
from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.descriptions import describe_decision, describe_lapse, describe_stop
from ayes.ledger.judging.votes import Tally
from ayes.ledger.lifecycle import Status
from ayes.ops.actions.secrets import secrets_in
from ayes.ops.actions.votes import open_tally, seen_by_gate
from ayes.projections.views.call import call_state, edit_words, vote_words
from ayes.projections.views.secrets import WHOLE, Secrets
from ayes.schemas import events as e
from ayes.schemas.slots import CallRef

DENIED: Final = 5
EXPIRED: Final = 6
PENDING: Final = 8

#: The statuses in which a call waits for the end of a stop.
_HELD: Final = (Status.REQUESTED, Status.PENDING, Status.APPROVED)


async def report_end(
    ledger: Ledger, ref: CallRef, wanted: type[e.Event], *, json: bool, whole: bool = False
) -> int:
    """Report the call once the gate has processed the last fact; returns the exit code."""
    known = await ledger.known_call(ref)
    known = await seen_by_gate(ledger, known)
    await report(ledger, known, json=json, whole=whole)
    return exit_code(known, wanted)


async def report(
    ledger: Ledger, call: Call, sentence: str = "", *, json: bool, whole: bool = False
) -> None:
    """Print the state of a call; for people in this sentence, if there is one.

    Args:
        whole: with what is secret, for whoever requests or runs it.
    """
    stands = await open_tally(ledger, call)
    secrets = WHOLE if whole else await secrets_in(ledger, call)
    said = sentence or standing(call, stands, secrets)
    print_result(call_state(call, secrets, stands), said, json=json)


def standing(call: Call, stands: Tally | None, secrets: Secrets) -> str:
    """The state of a call; of one that a stop keeps from going on, with the stop."""
    stop = call.stop(clock.now()) if call.status in _HELD else None
    return _standing(call, stands, secrets) + (f" It is {describe_stop(stop)}" if stop else "")


def _standing(call: Call, stands: Tally | None, secrets: Secrets) -> str:
    if call.decided is not None:
        edited = edit_words(call, secrets)
        reason = getattr(call.decided.event, "reason", "")
        why = (
            f" The reason: {reason}" if isinstance(call.decided.event, e.Denied) and reason else ""
        )
        decision = describe_decision(call.decided, call.withdrawn)
        if call.lapsed is not None and isinstance(call.lapsed.event, e.Lapsed):
            lapsed = describe_lapse(call.lapsed.event).rstrip(".")
            why = f" It was not started, and has lapsed: {lapsed}."
        return f"{call.ref}: {decision}{f', {edited}' if edited else ''}.{why}"
    if stands is not None:
        waits = "waits" if stands.verdict or call.withdrawn else "waits for people"
        return f"{call.ref} {waits}: {vote_words(call, stands, secrets)}"
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
