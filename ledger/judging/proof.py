"""Whether an approval follows from the facts, for whoever starts a call where votes are signed.

The gate decides, and an operator applies policies. Whoever had their logins could record a decision
of nobody's. So before a call starts its question is asked again and its votes are counted again, by
the functions that the gate has, from facts that were recorded before the decision. What comes out
must be what was recorded. So must each amount that the call spends of a budget, which must have had
room for it.

A question about a call that spends of budgets may be stricter than the policies' own, since one had
no room, and say so in its reason. It is never another one. The gate reads policies while it judges,
so any that were in force in between will do.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import cache
from operator import attrgetter
from typing import Any, Final

from msgspec.structs import replace

from ayes.ledger.call import Call
from ayes.ledger.judging.on_call import begun
from ayes.ledger.judging.verdict import Case, by_votes, of_four_eyes, question_of, verdict
from ayes.ledger.signing import MAX_SKEW_S
from ayes.schemas import events as e

#: By how much the clocks of two nodes may differ, of which one fired the timer and the other
#: recorded the stage.
_SKEW: Final = timedelta(seconds=MAX_SKEW_S)
_ENVELOPE: Final = frozenset(e.Event.__struct_fields__)


def leads_back(call: Call, asked_by: Sequence[Case], counted_by: Sequence[Case]) -> str:
    """Why an approval does not follow from what was recorded before it; empty if it does.

    Args:
        asked_by: the call by the policies that were in force between its request and its question,
            or else its decision.
        counted_by: the call with what its votes are judged by, by the policies that were in force
            between the last vote and the decision.
        Budgets of both are as they were when the amount was recorded (`as_found`), and grants are
            those that the approval names, as of then.
    """
    approved, question = call.approval, call.approval_request
    assert call.decided
    now = call.decided.recorded_at
    if approved.ground == "policy":
        found = [one for one in asked_by if _same(verdict(one, now), approved)]
        return _unspent(found) if found else "no policy that was in force allowed it"
    if approved.ground == "grant":
        found = [one for one in asked_by if _grants(one, approved)]
        return _unspent(found) if found else "no grants that are signed, and were used, cover it"
    if approved.ground not in ("people", "broken_glass"):
        return f"no call runs on the ground {approved.ground!r}"
    if question is None:
        return "people were not asked about it"
    if call.withdrawn is not None and call.withdrawn.seq < call.decided.seq:
        return "it was withdrawn before"
    if not _are_due(call):
        return "others were asked whom its question does not ask, or not yet"
    if not any(_asks(one, question, now) for one in asked_by):
        return "no policy that was in force asked this question"
    found = [one for one in counted_by if _same(by_votes(one), approved)]
    return _unspent(found) if found else "the votes that count do not approve this"


def _grants(case: Case, approved: e.Approved) -> bool:
    """Whether the grants approve this, and each of them had a use for it that was taken."""
    call = case.call
    assert call.requested
    assert call.decided
    uses = [fact for one in case.grants for fact in one.used_for(call)]
    # A gate judges when it is handed the request, or again when a stop ends.
    moments = [fact.recorded_at for fact in (call.requested, *uses, call.decided)]
    return all(one.used_for(call) for one in case.grants) and any(
        _same(verdict(case, at), approved) for at in moments
    )


def _are_due(call: Call) -> bool:
    """Whether each stage before the decision began when it was due, as the question says."""
    assert call.decided
    stages = [one for one in call.escalated if one.seq < call.decided.seq]
    for done, fact in enumerate(stages):
        before = replace(call, escalated=tuple(stages[:done]))
        stage, due = before.next_stage, before.due
        if stage is None or due is None or fact.recorded_at + _SKEW < due:
            return False
        if not _same(begun(before, stage, (), fact.recorded_at), fact.event):
            return False
    return True


def _unspent(cases: Iterable[Case]) -> str:
    """Of which budget nothing was taken for a call; empty if one of these lacks nothing."""
    lacking = [[one.budget.name for one in case.budgets if not one.is_recorded] for case in cases]
    least = min(lacking, key=len)
    return f"its amount was not taken from the budget {least[0]!r}" if least else ""


def _asks(case: Case, recorded: e.ApprovalRequested, now: datetime) -> bool:
    """Whether these policies ask this question, or do so where a budget has no room."""
    says = question_of(case, now)
    if says is None or _same(says, recorded):
        return says is not None
    stricter = (replace(one, reason=recorded.reason) for one in (says, of_four_eyes(says)))
    return bool(case.budgets) and any(_same(one, recorded) for one in stricter)


def _same(one: e.Event | None, other: e.Event | e.Carried) -> bool:
    """Whether two events say the same, whoever recorded them and when."""
    kind = type(other)
    return type(one) is kind and _said_in(kind)(one) == _said_in(kind)(other)


@cache
def _said_in(kind: type[e.Event | e.Carried]) -> Callable[[Any], object]:
    """What an event of this type says, apart from its envelope."""
    return attrgetter(*(name for name in kind.__struct_fields__ if name not in _ENVELOPE))
