"""The gate's judgement of a call, apart from loading its state and recording the result.

A `Case` is a call and all facts by which it is judged. Three functions judge it:

* `policy_verdict` applies the policies to the call alone.
* `verdict` adds the earlier calls of the thread, and grants.
* `decision` adds later facts: votes, a withdrawal, the deadline, a user's message.

A fourth, `lapse`, judges an approval that nothing has used yet.

Nothing here reads a clock or the log, so the same case always gives the same result, to the gate,
to the backtest of a policy and to the explanation of a call.
"""

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ayes.ledger.call import Call
from ayes.ledger.judging.budgets import Sum
from ayes.ledger.judging.grants import Delegation, Grant, covering
from ayes.ledger.judging.on_call import begun
from ayes.ledger.judging.policies import (
    Origin,
    Policies,
    PolicyDecision,
    ThreadUsage,
    about,
    block,
    disowned,
    evaluate,
    required,
)
from ayes.ledger.judging.unjudged import unjudged_grant, unjudged_rule
from ayes.ledger.judging.votes import asked, empty_seats, tally
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.limits import MAX_REASON, cut
from ayes.schemas.people import is_excluded, person, plain
from ayes.schemas.quorums import filled, is_open, met
from ayes.schemas.tools import Tool


class PolicyVerdict(Struct, frozen=True):
    """The verdict of the policies alone, without the thread's past and grants."""

    ruling: PolicyDecision
    says: e.Approved | e.Denied | e.ApprovalRequested


class Case(Struct, frozen=True):
    """A call, and all facts by which it is judged."""

    call: Call
    policies: Policies
    tool: Tool | None
    #: The user's first message after the request, if that supersedes the call.
    newer: Fact | None = None
    #: The earlier calls of the thread; None if nothing depends on them.
    past: ThreadUsage | None = None
    grants: tuple[Grant, ...] = ()
    delegations: tuple[Delegation, ...] = ()
    #: The sums of budgets that the call would spend of.
    budgets: tuple[Sum, ...] = ()
    #: The result of `policy_verdict` if it is known already.
    by_policies: PolicyVerdict | None = None
    origin: Origin = Origin()
    #: Whether the request names the requester; else `call` has the thread's.
    names_requester: bool = True
    #: What is recorded of who is on call, if the next stage asks them.
    on_call: tuple[Fact, ...] = ()
    #: Whether the trust file wants signed votes on it, whatever the policies say.
    signed: bool = False
    #: The time of the log when a timer was handled; None: that of the delivered fact.
    now: datetime | None = None


def decision(case: Case, now: datetime) -> e.Event | None:
    """The decision by now, on the broker's clock; None while the call is pending.

    Also `ApprovalRequested` if people must be asked first, and `Escalated` if nobody answered in
    time.
    """
    if case.newer is None:
        return _decided(case, now)
    first = _decided(replace(case, call=_before(case.call, case.newer)), case.newer.recorded_at)
    if first is not None and not isinstance(first, e.Escalated):  # a moot call is not escalated
        return first
    return e.Superseded(reason=f"The user said something new, message {case.newer.slot.tail[1]!r}.")


def _before(call: Call, message: Fact) -> Call:
    """The call before a message made it moot, or before its question if that came last."""
    assert call.gated
    end = max(message.seq, call.gated.seq)
    withdrawn = call.withdrawn if call.withdrawn and call.withdrawn.seq < end else None
    votes = tuple(vote for vote in call.votes if vote.seq < end)
    return replace(call, votes=votes, withdrawn=withdrawn)


def _decided(case: Case, now: datetime) -> e.Event | None:
    call = case.call
    if call.withdrawn is not None:
        event = call.withdrawn.event
        if isinstance(event, e.Superseded):
            return e.Superseded(reason=cut(event.reason, MAX_REASON))
        return _withdrawn(event)
    if case.origin.chain.over:
        return e.Withdrawn(reason=cut(case.origin.chain.over, MAX_REASON))
    if call.gated is None:
        return verdict(case, now)
    if (said := by_votes(case)) is not None:
        return said
    if call.due is None or now < call.due:
        return None
    if (stage := call.next_stage) is not None:
        return begun(call, stage, case.on_call, now)
    asking = call.approval_request
    assert asking
    assert call.gated
    return e.Expired(
        rule=asking.rule,
        policy_version=asking.policy_version,
        organisation=asking.organisation,
        # Less than nothing if the gate asked when the requester no longer waited.
        after_s=max(0.0, (call.due - call.gated.recorded_at).total_seconds()),
    )


def by_votes(case: Case) -> e.Event | None:
    """The decision by the votes on a call that people were asked about; None: not yet."""
    call = case.call
    stands = tally(call, case.policies, case.tool, case.delegations)
    if isinstance(stands.verdict, e.Approved):
        if why := _unjudged(case):
            now = evaluate(case.policies, about(call, running(call, stands.verdict)))
            return _denied("policy", now, f"Approved by people, but {why}")
        ruling = _blocked(case, stands.verdict)
        if ruling is not None:
            why = f"Approved by people, and blocked by now: {ruling.judged.reason}".rstrip(": ")
            return _denied("policy", ruling, why)
        if over := _binding(case, stands.verdict):
            ruling = evaluate(case.policies, about(call, running(call, stands.verdict)))
            why = _described(case, over[0], running(call, stands.verdict))
            return _denied("limit", ruling, f"Approved by people, but {why}")
    return stands.verdict


def lapse(case: Case, now: datetime) -> e.Lapsed | None:
    """Why an approval that nothing has used ends by now; None if it does not. The first of these:

    1. its time is over;
    2. the policies in force block what it lets run;
    3. a grant that it rests on was revoked.
    """
    call, approved = case.call, case.call.approval
    assert call.decided
    since = call.decided.recorded_at
    if (until := call.valid_until) is not None and now >= until:
        return e.Lapsed(after_s=(until - since).total_seconds())
    after_s = max(0.0, (now - since).total_seconds())
    if (ruling := _blocked(case, approved)) is not None:
        return e.Lapsed(
            after_s=after_s,
            rule=ruling.judged.rule.name,
            policy_version=ruling.by.version,
            organisation=ruling.by.organisation,
            reason=cut(ruling.judged.reason, MAX_REASON),
        )
    for grant in case.grants:
        named = f"{grant.ref.giver}/{grant.ref.name}"
        if grant.revoked is not None and named in approved.grants:
            reason = cut(getattr(grant.revoked.event, "reason", ""), MAX_REASON)
            return e.Lapsed(after_s=after_s, grants=(named,), reason=reason)
    return None


def _blocked(case: Case, approved: e.Approved) -> PolicyDecision | None:
    return block(case.policies, case.call, running(case.call, approved))


def running(call: Call, approved: e.Approved) -> str:
    """The arguments that this approval lets run."""
    return call.wish.arguments if approved.arguments is None else approved.arguments


def _binding(case: Case, approved: e.Approved) -> tuple[Sum, ...]:
    """The sums that have no room for what people approved, and that people may not exceed.

    People may exceed a budget that asks with the requested amount only: an edit that raises the
    amount, or hides it, must fit. Requesters who confirm exceed none.
    """
    call, arguments = case.call, running(case.call, approved)

    def binds(one: Sum) -> bool:
        before, now = one.cost(call.wish.arguments), one.cost(arguments)
        raised = arguments != call.wish.arguments and (
            before is None or now is None or now > before
        )
        return one.budget.then == "block" or raised or approved.mode == "requester_confirms"

    return tuple(one for one in case.budgets if binds(one) and not one.fits(call.ref, arguments))


def beyond(case: Case) -> tuple[Sum, ...]:
    """The sums that have no room for the call as requested, those that block first."""
    call = case.call
    over = [one for one in case.budgets if not one.fits(call.ref, call.wish.arguments)]
    return tuple(sorted(over, key=lambda one: one.budget.then != "block"))


def _described(case: Case, one: Sum, arguments: str) -> str:
    is_secret = case.tool is not None and case.tool.hides(one.budget.amount)
    return one.described(case.call.ref, arguments, is_secret=is_secret)


def verdict(case: Case, now: datetime) -> e.Approved | e.Denied | e.ApprovalRequested:
    """The verdict before anybody is asked. The first of these that holds:

    1. the request does not match the model's wish or its own digest, its thread does
       not match the calls above it, the tool is unknown or run by another side, the arguments break
       the schema, the requester could not be excluded from the vote, or a rule or budget reads
       what is sealed: denied as invalid;
    2. the thread has reached the policy's limit of calls: denied;
    3. the rule that counts blocks: denied;
    4. a budget that blocks has no room for it: denied;
    5. the rule that counts allows it, and every budget has room: approved (people are asked instead
       if the tool can change the policy);
    6. too few people are eligible to vote: denied, since no vote could decide;
    7. grants supply the needed votes, and every budget has room: approved;
    8. people denied this call in this thread, and the user has sent no message since: denied again,
       `deny_repeats` times;
    9. the thread has reached the policy's limit of questions to people: denied;
    10. people are asked.
    """
    said = case.by_policies or policy_verdict(case)
    ruling, says, gone_through = said.ruling, said.says, case.past
    most = case.policies.limit("calls_per_thread")
    if isinstance(says, e.Denied) and says.ground == "invalid":
        return says
    if gone_through and most is not None and gone_through.calls >= most:
        made = f"The policy lets a thread make {most:,} calls, and these were made."
        return _denied("limit", ruling, made)
    if isinstance(says, e.Denied):
        return says
    if over := beyond(case):
        why = _described(case, over[0], case.call.wish.arguments)
        if over[0].budget.then == "block":
            return _denied("limit", ruling, why[0].upper() + why[1:])
        says = _question_beyond(case, ruling, says, why)
    if not isinstance(says, e.ApprovalRequested):
        return says
    if not over and not _governs(case.tool) and (counting := _granted(case, says, now)):
        by_grant = _approved(
            ruling,
            says.digest,
            "grant",
            voters=tuple(grant.ref.giver for grant in counting),
            grants=tuple(f"{grant.ref.giver}/{grant.ref.name}" for grant in counting),
        )
        return _unasked(case, by_grant)
    if (
        gone_through
        and gone_through.denied
        and gone_through.repeats < case.policies.workspace.policy.deny_repeats
    ):
        return _denied("repeated", ruling, _again(gone_through.denied))
    most = case.policies.limit("questions_per_thread")
    if gone_through and most is not None and gone_through.questions >= most:
        put = f"The policy lets a thread put {most:,} calls to people, and these were put."
        return _denied("limit", ruling, put)
    return says


def policy_verdict(case: Case) -> PolicyVerdict:
    """Steps 1, 3, 5 and 6 of `verdict`, as if every budget had room."""
    call, policies, tool = case.call, case.policies, case.tool
    wish = call.wish
    problem = disowned(call, case.origin) or _invalid(wish, tool) or _unmapped(wish, policies)
    if problem := problem or _unjudged(case):
        ruling = evaluate(policies, about(call))
        return PolicyVerdict(ruling, _denied("invalid", ruling, problem))
    ruling = evaluate(policies, about(call, wish.arguments))
    judged = ruling.judged
    if judged.then == "block":
        return PolicyVerdict(ruling, _denied("policy", ruling, judged.reason))
    if judged.then == "allow" and not _governs(tool):
        return PolicyVerdict(
            ruling, _unasked(case, _approved(ruling, wish.digest, "policy", reason=judged.reason))
        )
    return PolicyVerdict(ruling, _put(case, ruling, _question(case, ruling)))


def question_of(case: Case, now: datetime) -> e.ApprovalRequested | None:
    """The question that is put to people if one is, whatever budgets say; for a call that policies
    allow, that of a budget without room. None: it is denied.
    """
    said = policy_verdict(case)
    match verdict(replace(case, budgets=(), by_policies=said), now):
        case e.ApprovalRequested() as asking:
            return asking
        case e.Approved():
            return _question(case, said.ruling)
        case _:
            return None


def _question_beyond(
    case: Case, ruling: PolicyDecision, says: e.Approved | e.ApprovalRequested, why: str
) -> e.ApprovalRequested | e.Denied:
    """The question to people about a call for which a budget has no room."""
    if isinstance(says, e.ApprovalRequested):
        reason = cut(f"{says.reason} Also, {why}".lstrip(), MAX_REASON)
        return _put(case, ruling, replace(of_four_eyes(says), reason=reason))
    asking = _question(case, ruling)
    asking = replace(asking, reason=cut(why[0].upper() + why[1:], MAX_REASON))
    return _put(case, ruling, asking)


def _question(case: Case, ruling: PolicyDecision) -> e.ApprovalRequested:
    wish, chain = case.call.wish, case.origin.chain
    agents = (wish.agent, *chain.agents)
    asking = question(
        case.policies, ruling, digest=wish.digest, requester=wish.requester, agents=agents
    )
    title = case.tool.title(wish.arguments) if case.tool is not None else ""
    asking = replace(asking, chain=chain.links, undoing=_undoing(case), title=title)
    asking = replace(asking, signed=asking.signed or case.signed)
    asking = of_named(asking) if asking.signed else asking
    return of_four_eyes(asking) if _governs(case.tool) else asking


def of_named(asking: e.ApprovalRequested) -> e.ApprovalRequested:
    """The question to people whom the policy names, and to no groups of a provider and nobody by a
    calendar: what these say is signed by nobody.
    """

    def named[Q: e.Quorum | e.Stage](asked: Q) -> Q:
        return replace(asked, voters=_named(asked.voters))

    return replace(
        asking,
        voters=_named(asking.voters),
        also=tuple(map(named, asking.also)),
        besides=tuple(map(named, asking.besides)),
        may_break_glass=_named(asking.may_break_glass),
        stages=tuple(map(named, asking.stages)),
    )


def _named(voters: Iterable[str]) -> tuple[str, ...]:
    return tuple(one for one in voters if not is_open(one))


def of_four_eyes(asking: e.ApprovalRequested) -> e.ApprovalRequested:
    """The question without the requester and the people behind the agent, whatever its rule."""
    return replace(asking, mode="four_eyes", excluded=(*asking.excluded, *asking.own), own=())


def _put(
    case: Case, ruling: PolicyDecision, asking: e.ApprovalRequested
) -> e.ApprovalRequested | e.Denied:
    """The question, or a denial if nobody could ever decide it."""
    wish, policies = case.call.wish, case.policies
    if empty := unanswerable(asking):
        own = policies.excluded(wish.requester)
        agents = " or ".join(dict.fromkeys((wish.agent, *case.origin.chain.agents)))
        others = [name for name in asking.excluded if name not in own]
        who = [f"{wish.requester} asked for it"] if wish.requester else []
        who += (
            [f"{', '.join(others)} {'is' if len(others) == 1 else 'are'} behind {agents}"]
            if others
            else []
        )
        why = f"It needs {empty} more who may vote and count: {' and '.join(who)}."
        return _denied("policy", ruling, why)
    return asking


def _unasked(case: Case, approved: e.Approved) -> e.Approved:
    """Add the people who are excluded, may revoke and may reconcile, as an approval request would.

    A requester whom the request itself names is excluded anyway, and omitted.
    """
    wish = case.call.wish
    named = plain(wish.requester) if case.names_requester else ""
    excluded = case.policies.excluded(wish.requester, wish.agent, *case.origin.chain.agents)
    return replace(
        approved,
        excluded=tuple(one for one in excluded if one != named),
        may_revoke=case.policies.people("may_revoke"),
        may_reconcile=case.policies.people("may_reconcile"),
        undoing=_undoing(case),
    )


def _undoing(case: Case) -> e.Undoing | None:
    declared = case.tool.declared if case.tool is not None else None
    if declared is None or declared.tool_class is None:
        return e.Undoing("undeclared") if case.policies.speak_of_classes else None
    return e.Undoing(declared.tool_class, cut(declared.undo, MAX_REASON), declared.undo_within_s)


def _governs(tool: Tool | None) -> bool:
    return tool is not None and tool.declared.governs


def _invalid(wish: e.ToolRequested, tool: Tool | None) -> str | None:
    if call_digest(wish.tool, wish.tool_version, wish.arguments) != wish.digest:
        return "The request's digest is not that of its arguments."
    if tool is None:
        return f"There is no tool {wish.tool!r}. Only the tools that were offered can be called."
    if wish.run_by != tool.declared.run_by:
        declared = f"{wish.tool} is run by {tool.declared.run_by!r}, as it is declared"
        return f"{declared}, and not by {wish.run_by!r}."
    if wish.layout not in _LAYOUTS:
        unknown = f"The request is of layout {wish.layout}, which this gate does not know"
        return f"{unknown}. Upgrade the gate."
    return tool.problems(wish.arguments)


#: The layouts of a request's slots that the gate knows.
_LAYOUTS: Final = (1, 2)


def _unjudged(case: Case) -> str:
    """Why no policy judges the call: a rule or budget of one reads what is sealed in it."""
    policies = (case.policies.organisation.policy, case.policies.workspace.policy)
    return unjudged_rule(case.tool, *policies) if case.tool is not None else ""


def _unmapped(wish: e.ToolRequested, policies: Policies) -> str | None:
    if policies.is_known(wish.requester):
        return None
    whose = (
        f"The requester {wish.requester!r} could not be a reviewer"
        if wish.requester
        else "No requester is named"
    )
    return (
        f"{whose}, so nobody could be kept from approving their own request. Name a reviewer, or "
        "list the account below [people] in the policy, or write "
        'unmapped_requesters = "exclude_nobody" there.'
    )


def question(
    policies: Policies,
    ruling: PolicyDecision,
    *,
    digest: str,
    requester: str,
    agents: Collection[str],
) -> e.ApprovalRequested:
    """The approval request, which freezes what the policies say now.

    Args:
        agents: the agents whose people may not vote, but in the mode `requester_confirms`.
    """
    policy, rule = ruling.by.policy, ruling.judged.rule
    (own, *also), *besides = required(policies, ruling)
    beside = ruling.beside.rule if ruling.beside is not None else rule
    reason = ruling.judged.reason
    if ruling.judged.then == "allow":  # the tool can change the policy, or a budget has no room
        own, also = e.Quorum(("*",)), []
        reason = "It can change what is asked about, so a person must look."
    whose = policies.excluded(requester, *agents)
    is_confirmed = ruling.mode == "requester_confirms"
    # The organisation's rule keeps the time, if it has any.
    times = (policy, rule) if rule.expires_in_s is not None else (policies.workspace.policy, beside)
    asking = e.ApprovalRequested(
        digest=digest,
        rule=rule.name,
        policy_version=ruling.by.version,
        organisation=ruling.by.organisation,
        reason=reason,
        voters=own.voters,
        votes_needed=own.votes_needed,
        also=tuple(also),
        besides=besides[0] if besides else (),
        denials_needed=min(rule.denials_needed, beside.denials_needed),
        may_break_glass=policy.people(rule.break_glass),
        mode=ruling.mode,
        excluded=() if is_confirmed else whose,
        own=whose if is_confirmed else (),
        expires_in_s=times[1].expires_in_s,
        on_timeout=times[1].on_timeout,
        stages=times[0].stages(times[1]),
        while_pending=policies.workspace.policy.while_pending,
        shadows=ruling.shadows,
        may_revoke=policies.people("may_revoke"),
        may_reconcile=policies.people("may_reconcile"),
        editor_counts=rule.editor_counts and beside.editor_counts,
        confirm=rule.confirm or beside.confirm,
        valid_for_s=_valid_for_s(ruling),
        undo_s=policies.limit("undo_s") or 0,
        reasons=rule.reasons or beside.reasons,
        signed=ruling.signed or policies.all_signed,
    )
    return replace(asking, people=policies.accounts(_may_ever_act(asking)))


def unanswerable(asking: e.ApprovalRequested) -> int:
    """The number of needed votes that nobody can cast; if any, people must not be asked."""
    return empty_seats(asked(asking), asking.stages, asking.excluded, asking.people)


def _may_ever_act(asking: e.ApprovalRequested) -> set[str]:
    """Everybody who may act on this question, names and patterns."""
    quorums = [one.voters for quorums in asked(asking) for one in quorums]
    stages = [one.voters for one in asking.stages]
    more = (asking.may_break_glass, asking.may_revoke, asking.may_reconcile)
    every = {voter for voters in (*quorums, *stages, *more) for voter in voters}
    # Any account may belong to a member, or be on call.
    return every | ({"*"} if any(map(is_open, every)) else set())


def _again(denied: Fact) -> str:
    event, ref = denied.event, denied.slot.call_ref
    assert isinstance(event, e.Denied)
    assert ref
    said = f": {cut(event.reason, MAX_REASON)}" if event.reason else "."
    return f"This very call was denied before, as {ref.call}{said}"


def _granted(case: Case, asking: e.ApprovalRequested, now: datetime) -> tuple[Grant, ...]:
    """The grants that together meet the quorums of the question; else none."""
    if not (case.grants and case.policies.grantable(case.call.wish.tool)):
        return ()
    call = about(case.call, case.call.wish.arguments)
    by_giver: dict[str, Grant] = {}
    counts = (one for one in case.grants if one.is_signed or not asking.signed)
    read = (one for one in counts if not (case.tool and unjudged_grant(case.tool, one.granted)))
    usable = (grant for grant in read if grant.used_by(case.call) or grant.left > 0)
    for grant in covering(usable, call, now):
        # Who may confirm their own request looks at it, so they do not approve it in advance.
        if not is_excluded(grant.ref.giver, (*asking.excluded, *asking.own), asking.people):
            # Two accounts of one person are one giver.
            by_giver.setdefault(person(grant.ref.giver, asking.people), grant)
    counting: dict[str, Grant] = {}
    for grant in by_giver.values():  # only those that fill a seat
        giver = grant.ref.giver
        with_giver = (*counting, giver)
        if any(filled(one, with_giver) > filled(one, counting) for one in asked(asking)):
            counting[giver] = grant
    enough = all(met(quorums, counting) for quorums in asked(asking))
    return tuple(counting.values()) if enough else ()


def _approved(
    ruling: PolicyDecision,
    digest: str,
    ground: e.Ground,
    *,
    reason: str = "",
    voters: tuple[str, ...] = (),
    grants: tuple[str, ...] = (),
) -> e.Approved:
    return e.Approved(
        digest=digest,
        ground=ground,
        rule=ruling.judged.rule.name,
        policy_version=ruling.by.version,
        organisation=ruling.by.organisation,
        reason=reason,
        voters=voters,
        grants=grants,
        shadows=ruling.shadows,
        valid_for_s=_valid_for_s(ruling),
    )


def _valid_for_s(ruling: PolicyDecision) -> float | None:
    """The shorter of the two policies' times; None: neither says one."""
    judged = (ruling.judged, ruling.beside)
    times = (one.rule.valid_for_s for one in judged if one is not None)
    return min((one for one in times if one is not None), default=None)


def _denied(ground: e.Ground, ruling: PolicyDecision, reason: str) -> e.Denied:
    return e.Denied(
        ground=ground,
        rule=ruling.judged.rule.name,
        policy_version=ruling.by.version,
        organisation=ruling.by.organisation,
        reason=cut(reason, MAX_REASON),
        shadows=ruling.shadows,
    )


def _withdrawn(event: object) -> e.Withdrawn:
    reason = event.reason if isinstance(event, e.Withdrawn) else ""
    return e.Withdrawn(reason=cut(reason, MAX_REASON))
