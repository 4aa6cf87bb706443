"""What must be read to find out whether an approval follows from the facts
(`ayes.ledger.judging.proof`).

One reading, of a replica that has the decision, so nothing that was recorded before it is missing.
"""

from msgspec.structs import replace

from ayes.ledger.call import Call
from ayes.ledger.clients.client import LedgerClient, bound_to
from ayes.ledger.judging.budgets import sums_of
from ayes.ledger.judging.grants import delegations_of, grants_of, with_signatures
from ayes.ledger.judging.policies import (
    Policies,
    attributed,
    classed,
    origin,
    origin_slots,
    thread_usage,
)
from ayes.ledger.judging.proof import leads_back
from ayes.ledger.judging.verdict import Case
from ayes.ledger.keys import Signatures
from ayes.ledger.objections import votes_rest_on
from ayes.ledger.people import people_of
from ayes.ledger.validity import call_of
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadId, BadSlot
from ayes.schemas.slots import KEYS, ORGANISATION, POLICY, ROOT, GrantRef, delegations, policies


async def why_unproved(
    ledger: LedgerClient, call: Call, *, counts_others: bool = True, starts: bool = False
) -> str:
    """Why the approval of a call does not follow from the facts, where the trust file wants signed
    votes; empty if it does, and where it wants none.

    Args:
        counts_others: whether what other calls spent of budgets, and the calls of the thread, are
            there to be counted again.
        starts: whether the call is about to be started, so nothing counts that is signed with a key
            that has ended by now. Otherwise, if it was started, that changes nothing.
    """
    decided, workspace, trust = call.decided, call.ref.workspace, ledger.trust
    if trust is None:
        return ""
    assert decided
    if not trust.wants_signed(workspace, decided.seq):
        return ""
    named = _grants_named(call)
    facts = await ledger.read(
        call.ref,
        *origin_slots(call.ref),
        policies(workspace),
        policies(ORGANISATION),
        KEYS,
        *votes_rest_on(call),
        *((delegations(workspace),) if call.votes else ()),
        *named,
        must_include=decided.slot,
    )
    call = call_of(call.ref, facts)
    whence, names_requester = origin(call, facts), bool(call.wish.requester)
    whence = await ledger.with_chain(whence)
    call, tool = attributed(call, whence), await ledger.tool_of(call)
    keys = ledger.judged_keys(facts, trust)
    call = replace(call, people=people_of(facts))
    until = decided.seq if call.starts and not starts else None
    versions = [one for one in facts if one.slot.tail[0] == POLICY]
    if call.gated is not None:
        bound = bound_to(call, trust.log, versions)
        fell = await ledger.fallen(call, keys)
        call = call.judged_by(Signatures(bound, keys, fell, is_wanted=True, until=until))
    given = grants_of(one for one in facts if one.seq < decided.seq)
    grants = [one for one in given if one.ref in named]
    signed = with_signatures(grants, keys, trust.log, until)

    async def by(those: Policies) -> Case:
        above = await ledger.with_classes(whence.chain, those)
        judged, past = classed(call, tool, above), None
        if counts_others and those.limit("calls_per_thread") is not None:
            calls = f"{ROOT}.{workspace}.{call.ref.thread}.call.*.requested"
            past = thread_usage(call, await ledger.read(calls, decided.slot))
        sums = sums_of(those, judged)
        return Case(
            judged,
            those,
            tool,
            past=past,
            grants=signed,
            delegations=delegations_of(facts),
            budgets=await ledger.with_usage(
                sums, judged, must_include=decided.slot, decided=decided
            )
            if counts_others
            else sums,
            origin=replace(whence, chain=above),
            names_requester=names_requester,
            signed=True,
        )

    async def between(first: Fact, last: Fact) -> list[Case]:
        """By the policies that were in force at any moment between two facts."""
        later = (one.seq + 1 for one in versions if first.seq < one.seq < last.seq)
        return [
            await by(await ledger.policies_of(versions, workspace, at))
            for at in (first.seq, *later)
        ]

    assert call.requested
    asked_by = await between(call.requested, call.gated or decided)
    counted_by = await between(_last_vote(call) or call.requested, decided)
    return leads_back(call, asked_by, counted_by)


def _last_vote(call: Call) -> Fact | None:
    """The last vote that an approval counts. A gate may have counted before later ones came."""
    named = [vote for vote in call.votes if vote.slot.tail[3] in call.approval.voters]
    return (named or call.votes or (None,))[-1]


def _grants_named(call: Call) -> tuple[GrantRef, ...]:
    """The grants that an approval names."""
    try:
        return tuple(GrantRef.parse(f"{call.ref.workspace}/{one}") for one in call.approval.grants)
    except (BadId, BadSlot):
        return ()  # no gate names such grants
