"""What reviewers do: vote on calls, revoke approvals, reconcile calls in doubt."""

import asyncio
from typing import Annotated, Final, Literal

from msgspec import Struct
from pydantic import AfterValidator, Field

from ayes.interfaces.api.base import ApiModel, ApiRouter, example
from ayes.interfaces.api.counts import forget
from ayes.interfaces.api.groups import read_for_votes
from ayes.interfaces.api.identity import Reviewing, Visit
from ayes.interfaces.api.queries import Named
from ayes.interfaces.problems import Problem, problem_of
from ayes.ledger.clients.reviewers import Ballot, Reviewer, ToSign
from ayes.ops.actions.votes import late_result, seen_by_gate
from ayes.projections.views.call import CallState
from ayes.schemas import events as e
from ayes.schemas.errors import ApprovalsError, BadInput
from ayes.schemas.slots import CallRef

__all__ = ["NewVote", "ToSign", "router", "to_sign", "vote", "vote_on_several"]

router: Final = ApiRouter(tags=["votes"])

#: How long a vote waits for its consequence. Without a gate, the call is still pending then.
_COUNTED_S: Final = 1.0
_MAX_AT_ONCE: Final = 50
#: For examples: in the form of a digest.
_DIGEST: Final = "3f9a" * 16


class NewVote(ApiModel):
    """A vote on a call."""

    model_config = example(verdict="approve", digest=_DIGEST, reason="As agreed.")

    verdict: e.Verdict
    #: The digest that the reviewer was shown.
    digest: str
    reason: str = ""
    #: Raw JSON text to run instead; only with `approve`.
    arguments: str | None = None
    #: The text that the model reads in place of the tool's output; only with `answer`.
    answer: str = ""
    #: With `answer`: the model reads it as the tool's error.
    is_error: bool = False
    #: The person in whose place, by their delegation.
    on_behalf_of: str = ""
    #: With `deny` and `answer`: the model is not asked again before a user says something.
    halt: bool = False
    #: With `approve` and `break_glass`: the tool's name as the reviewer typed it, where
    #: `question.confirm` is `typed`.
    typed: str = ""
    #: Made with a key of the visitor's, where only signed votes count (docs/keys.md).
    signature: str = ""


@router.post("/calls/{workspace}/{thread}/{call}/votes")
async def vote(ref: Named, vote: NewVote, visit: Reviewing) -> CallState:
    """Vote on a call, in the visitor's own name. The same vote again is refused and harmless."""
    await read_for_votes(visit, ref)
    return await _vote(ref, vote, visit, await visit.reviewer())


async def to_sign(ref: CallRef, vote: NewVote, visit: Visit) -> ToSign | None:
    """What the visitor's passkey signs for this vote; None if it takes no signature, or has one, or
    they have no passkey. For the pages alone: programs have keys of their own.
    """
    if vote.signature:
        return None
    await read_for_votes(visit, ref)
    return await (await visit.reviewer()).to_sign(ref, Ballot(**vote.model_dump()))


async def _vote(ref: CallRef, vote: NewVote, visit: Visit, reviewer: Reviewer) -> CallState:
    known = await reviewer.vote(ref, Ballot(**vote.model_dump()))
    return await visit.state_of(await seen_by_gate(visit.reading, known, _COUNTED_S))


def _name(text: str) -> str:
    return str(CallRef.parse(text))


class Shown(ApiModel):
    """A call as the reviewer was shown it."""

    call: Annotated[str, AfterValidator(_name)]
    digest: str


class Votes(ApiModel):
    """The same vote on several calls. Edits, answers and breaking the glass are for single ones."""

    model_config = example(
        verdict="deny",
        calls=[{"call": "shop/order-17/refund-7", "digest": _DIGEST}],
        reason="A test order.",
    )

    verdict: Literal["approve", "deny"]
    #: The calls, each as the reviewer was shown it.
    calls: Annotated[list[Shown], Field(min_length=1, max_length=_MAX_AT_ONCE)]
    reason: str = ""


class VoteResult(Struct, frozen=True):
    """What became of one of several votes: the call's state, or why it was not recorded."""

    call: str
    #: The call after the vote; None: it was not recorded.
    state: CallState | None = None
    #: Why it was not recorded; None: it was.
    problem: Problem | None = None


@router.post("/votes")
async def vote_on_several(votes: Votes, visit: Reviewing) -> list[VoteResult]:
    """Cast the same vote on up to 50 calls: one vote for each, one result for each."""
    await read_for_votes(visit, *(CallRef.parse(shown.call) for shown in votes.calls))
    reviewer = await visit.reviewer()
    return await asyncio.gather(*(_one(shown, votes, visit, reviewer) for shown in votes.calls))


async def _one(shown: Shown, votes: Votes, visit: Visit, reviewer: Reviewer) -> VoteResult:
    vote = NewVote(verdict=votes.verdict, digest=shown.digest, reason=votes.reason)
    try:
        state = await _vote(CallRef.parse(shown.call), vote, visit, reviewer)
    except ApprovalsError as problem:
        return VoteResult(call=shown.call, problem=problem_of(problem))
    return VoteResult(call=shown.call, state=state)


class Revocation(ApiModel):
    """A revocation: its reason, and the answer that the model reads in place of an output."""

    reason: str = ""
    #: None: the model reads that the approval was taken back, and the reason.
    answer: str | None = None
    #: With `answer`: the model reads it as the tool's error.
    is_error: bool = False
    #: The model is not asked again before a user says something.
    halt: bool = False


@router.post("/calls/{workspace}/{thread}/{call}/revoke")
async def revoke(ref: Named, revocation: Revocation, visit: Reviewing) -> CallState:
    """Take an approval back before the tool runs."""
    reviewer = await visit.reviewer()
    known = await reviewer.revoke(ref, **revocation.model_dump())
    return await visit.state_of(known)


class Reconciliation(ApiModel):
    """What became of a call in doubt: what somebody found out, or the tool's own late result."""

    #: None with `late`.
    happened: bool | None = None
    #: The text for the model, in place of the tool's output.
    output: str = ""
    #: Accept what the tool reported when the call was in doubt already.
    late: bool = False


@router.post("/calls/{workspace}/{thread}/{call}/reconcile")
async def reconcile(ref: Named, found: Reconciliation, visit: Reviewing) -> CallState:
    """Say what became of a call in doubt."""
    if found.late == (found.happened is not None) or (found.late and found.output):
        raise BadInput(
            "say what you found out, with `happened` and `output`; or accept the tool's own late "
            "result, with `late` alone."
        )
    happened: bool | None = found.happened
    output: e.Content = found.output
    if happened is None:
        happened, output = late_result(await visit.reading.known_call(ref))
    reviewer = await visit.reviewer()
    known = await reviewer.reconcile(ref, happened=happened, output=output)
    forget(visit.reading)
    return await visit.state_of(known)
