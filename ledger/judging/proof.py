"""Whether an approval follows from the facts, for whoever starts a call where votes are signed.

The gate decides, and an operator applies policies. Whoever had their logins could record a decision
of nobody's. So before a call starts its question is asked again and its votes are counted again, by
the functions that the gate has, from facts that were recorded before the decision. What comes out
must be what was recorded.

A question may be stricter than the policies' own (a budget has no room), never another one. The
gate reads policies while it judges, so any that were in force in between will do.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from ayes.ledger.call import Call
from ayes.ledger.judging.verdict import Case, of_four_eyes, policy_verdict, question_of
from ayes.ledger.judging.votes import tally
from ayes.schemas import events as e

_ENVELOPE = frozenset(e.Event.__struct_fields__)


def leads_back(call: Call, asked_by: Sequence[Case], counted_by: Sequence[Case]) -> str:
    """Why an approval does not follow from what was recorded before it; empty if it does.

    Args:
        asked_by: the call by the policies that were in force between its request and its question,
            or else its decision.
        counted_by: the call with what its votes are judged by, by the policies that were in force
            between the last vote and the decision.
    """
    approved, question = call.approval, call.approval_request
    if approved.ground == "policy":
        said = (policy_verdict(one).says for one in asked_by)
        is_said = any(_same(one, approved) for one in said)
        return "" if is_said else "no policy that was in force allowed it"
    if approved.ground not in ("people", "broken_glass"):
        return f"where votes are signed, no call runs on the ground {approved.ground!r}"
    if question is None:
        return "people were not asked about it"
    if not any(_asks(one, question) for one in asked_by):
        return "no policy that was in force asked this question"
    counts = (tally(one.call, one.policies, one.tool, one.delegations) for one in counted_by)
    if not any(one.verdict is not None and _same(one.verdict, approved) for one in counts):
        return "the votes that count do not approve this"
    return ""


def _asks(case: Case, recorded: e.ApprovalRequested) -> bool:
    """Whether these policies ask this question, or one that is stricter by a reason alone."""
    says = question_of(case)
    if says is None:
        return False
    stricter = (replace(one, reason=recorded.reason) for one in (says, of_four_eyes(says)))
    return any(_same(one, recorded) for one in (says, *stricter))


def _same(one: e.Event, other: e.Event) -> bool:
    """Whether two events say the same, whoever recorded them and when."""
    return type(one) is type(other) and all(
        getattr(one, field) == getattr(other, field) for field in _said(one)
    )


def _said(event: e.Event) -> Iterable[str]:
    return (field for field in event.__struct_fields__ if field not in _ENVELOPE)
