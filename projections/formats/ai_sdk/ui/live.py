"""Writes the current state of a thread as `UIMessage`s, open calls included.

    facts of a call                                            its part
    a wish, requested or not, without an approval request      input-available
    an approval request without a decision                     approval-requested
    a decision after an approval request, and no end           approval-responded
    an end                                                     as `write` writes it

*   `approved` is true only for an approval that fits exactly the bytes that would run (`Call.flaw`)
    and was not revoked; `input` then has the approved arguments, edits included. With any other
    decision it is false, and `reason` names the decision, since an expiry is not a denial.
*   An approval's id is the call's name, `workspace/thread/call`, by which a person votes.
*   A message's id is the subject of its slot, so a growing thread gives the same messages, and more
    of them at the end. A turn has a message as soon as its model is asked: a `step-start`, as in
    the SDK. A turn whose model failed has nothing else.
*   Such a list is no reason to run a call, although the SDK would run the approved calls in it.
"""

from collections.abc import Iterator
from operator import itemgetter

from ayes.ledger.call import Call
from ayes.ledger.lifecycle import NOT_RUN, SETTLED
from ayes.projections import refusal_texts
from ayes.projections.formats.ai_sdk.media import takes
from ayes.projections.formats.ai_sdk.ui.write import call_part, ended_part, parts_of, spoken_message
from ayes.projections.formats.common import JsonObject, fitting
from ayes.projections.formats.pairing import mint_call_id
from ayes.projections.history import Note, Outcome, System, User, history, outcome
from ayes.projections.thread import Thread, Turn
from ayes.schemas.events import Approved, Wish


def messages(thread: Thread) -> list[JsonObject]:
    """The UIMessages of the thread. Texts that came after an open call follow it."""
    said = zip(thread.said, _said(thread), strict=True)
    steps: list[tuple[int, str, System | User | Note | Turn]] = [
        *((fact.seq, fact.slot.subject, entry) for fact, entry in said),
        *(
            (turn.cut, thread.ref.replied(number).subject, turn)
            for number, turn in thread.turns.items()
            if turn.cut is not None
        ),
    ]
    calls = _calls(thread)
    shown: list[JsonObject] = []
    for _seq, id_, step in sorted(steps, key=itemgetter(0)):
        match step:
            case Turn(number=number, reply=reply):
                parts = parts_of(reply.parts, iter(calls[number])) if reply else []
                shown.append(
                    {"id": id_, "role": "assistant", "parts": [{"type": "step-start"}, *parts]}
                )
            case _:
                shown.append(spoken_message(id_, step, shown))
    return shown


def _said(thread: Thread) -> Iterator[System | User | Note]:
    """The texts of the thread, as they are in a history."""
    for entry in fitting(history(Thread(thread.ref, said=thread.said)).entries, in_messages=takes):
        assert isinstance(entry, System | User | Note), f"{entry} was not said"
        yield entry


def _calls(thread: Thread) -> dict[int, list[JsonObject]]:
    """The calls of each turn, with the ids that they keep when all calls are settled."""
    used: set[str] = set()
    return {
        number: [
            _call(thread.call(ref), wish, mint_call_id(ref.call, wish.provider_id, used, bool))
            for ref, wish in thread.wishes(number)
        ]
        for number in thread.turns
    }


def _call(call: Call, wish: Wish, id_: str) -> JsonObject:
    """The part of a call in its current state."""
    approval = {"id": str(call.ref)}
    if call.status in SETTLED:
        [end] = fitting([outcome(call, wish)])
        assert isinstance(end, Outcome)
        return ended_part(wish, id_, end, approval["id"])
    if call.requested is None:
        return {**call_part(wish.tool, wish.arguments, id_), "state": "input-available"}
    shown = call_part(call.wish.tool, call.arguments, id_)
    if call.gated is None:
        return {**shown, "state": "input-available"}
    if call.decided is None:
        return {**shown, "state": "approval-requested", "approval": approval}
    return {**shown, "state": "approval-responded", "approval": {**approval, **_answer(call)}}


def _answer(call: Call) -> JsonObject:
    """The answer to an approval request."""
    if call.status in NOT_RUN:
        return {"approved": False, "reason": refusal_texts.tool_not_run(call).text}
    if call.flaw is not None:
        return {
            "approved": False,
            "reason": "What is recorded as an approval does not hold for this call.",
        }
    reason = (
        call.decided.event.reason
        if call.decided and isinstance(call.decided.event, Approved)
        else ""
    )
    return {"approved": True, "reason": reason} if reason.strip() else {"approved": True}
