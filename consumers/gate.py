"""The gate: requests what a model wishes, judges each wish once, counts votes, and alone decides.

    replied   ──► each wish of a model's reply                        ──► requested
    requested ──► the policies in force say allow, ask or block       ──► decided, or gated and a timer
    vote      ──► enough of the right, distinct people?               ──► decided
    withdrawn ──► the requester's side takes it back                  ──► decided
    said      ──► a user said something new, where that supersedes    ──► decided, every open call of the thread
    due       ──► nobody decided in time                              ──► decided, or more people are asked

Whose wish it is, the gate looks up rather than believes (docs/decisions/0023): requester, agent and labels are those for
which the thread was opened, and what stands in the slot of a model's wish must be what its reply wished for.

Anything uncertain is not a yes: an unknown tool and arguments that break the schema are denied before anybody is
asked; a policy that cannot be read asks everybody. The clock is the broker's: "now" is when what was handed was recorded.

What was decided about a wish when it was made is frozen, and a later policy may only tighten it: what people approve is
denied after all if the policy in force blocks it by then.

A grant is a vote that was given early. Before one lets a call run, one of its uses is taken for that call, in a slot; and
when people deny a call that a grant would cover, the grant is revoked first. So each of these steps may come twice.

Where a thread may put only so many calls to people, its wishes are judged in the order of the log: one that could be the
one too many is handed out again until those before it are judged. So many wishes at once are no way around a limit.

Whether a message supersedes a question is read off the log, so it does not matter who is quicker, the gate or the
user (docs/decisions/0010):

* It does if a user said it after the wish was made: after the model's reply, or, in a service's own loop, after the
  request. So all wishes of one reply are superseded by the same messages, and a slow gate asks nothing that is moot.
* What was recorded before the message counts, and nothing that came after it: a vote that decides, a withdrawal and the
  deadline win if they came first, and else the message. So two who look at different times do not disagree about it.
* Whoever is handed anything about such a call looks for messages, also right after the question was recorded, and whoever
  is handed a message looks for such calls. One of them comes last and sees both.
"""

from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from typing import Final, Never

from msgspec import Struct
from msgspec.structs import replace

from ayes.consumers.effects import Append, CancelTimer, Effect, Reload, SetTimer
from ayes.ledger.grants import Delegation, Grant, covering, delegated, delegations_of, grants_of
from ayes.ledger.lifecycle import Call, call_of
from ayes.ledger.log import Delivered, TimerFired
from ayes.ledger.policies import (
    Origin,
    Policies,
    PolicyDecision,
    ThreadUsage,
    about,
    attributed,
    block,
    disowned,
    evaluate,
    of_edit,
    origin,
    origin_slots,
    reply_slot,
    required,
    thread_usage,
    wished,
)
from ayes.ledger.services import Ledger
from ayes.ledger.votes import Tally, asked, empty_seats, tally
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import Unavailable
from ayes.schemas.limits import MAX_REASON, cut
from ayes.schemas.people import is_excluded, person, plain
from ayes.schemas.quorums import filled, met
from ayes.schemas.slots import ROOT, CallRef, Slot, delegations, grants
from ayes.schemas.tools import Tool


class PolicyVerdict(Struct, frozen=True):
    """What the policies say to a wish by itself, whatever its thread went through and whoever said yes in advance."""

    ruling: PolicyDecision
    says: e.Approved | e.Denied | e.ApprovalRequested


class GateState(Struct, frozen=True):
    """What the gate looks at: the call, and what judges it."""

    call: Call
    policies: Policies
    tool: Tool | None
    #: The first thing that a user said after the wish was made. Only looked for where it supersedes the question.
    newer: Fact | None = None
    #: What the thread went through before. None: not looked at, since nothing depends on it.
    past: ThreadUsage | None = None
    grants: tuple[Grant, ...] = ()
    delegations: tuple[Delegation, ...] = ()
    #: What call, policies and tool come to. None: not asked yet, `verdict` will.
    word: PolicyVerdict | None = None
    #: What was recorded before the request about whose wish it is.
    origin: Origin = Origin()
    #: Does the request itself say who asked? Else `call` has it from the thread.
    names_requester: bool = True


class SupersededCalls(Struct, frozen=True):
    """What the gate looks at when somebody says something: the thread's open calls that this may supersede."""

    cases: tuple[GateState, ...]


class MissingRequests(Struct, frozen=True):
    """What the gate looks at when a model has replied: the wishes that nothing stands for yet."""

    missing: tuple[tuple[CallRef, e.ToolRequested], ...] = ()


class Gate:
    durables = ("gate", "gate-timers")
    replaces = False

    async def load(self, ledger: Ledger, handed: Delivered) -> GateState | SupersededCalls | MissingRequests:
        match handed:
            case Fact(event=e.Said() as said):
                return await self._heard(ledger, handed, said)
            case Fact(event=e.ModelReplied() as reply):
                return await self._replied(ledger, handed, reply)
            case Fact(event=e.ModelFailed()):
                return MissingRequests()
            case _:
                return await self._called(ledger, _call(handed), handed)

    async def _called(self, ledger: Ledger, ref: CallRef, handed: Delivered) -> GateState:
        facts = await ledger.read(
            ref, *origin_slots(ref), must_include=handed.slot if isinstance(handed, Fact) else None
        )
        call = call_of(ref, facts)
        if isinstance(handed, TimerFired) and call.gated is None:
            # A timer is set after its question was read, so it is there. Nobody else would see to this deadline.
            raise Unavailable(f"the question of {call.ref} cannot be read yet; a replica is behind.")
        if call.requested is None or call.decided is not None:
            return GateState(call, _NOTHING, None)
        whence = origin(call, facts)
        names_requester, call = bool(call.wish.requester), attributed(call, whence)
        if call.gated is not None:
            return await self._asked(ledger, call, handed)
        # Read after the call, here and below: no policy that is older than what is judged by it.
        policies, tool = await ledger.policies(call.ref.workspace), await ledger.tool_of(call)
        case = GateState(call, policies, tool, origin=whence, names_requester=names_requester)
        case = replace(case, word=policy_verdict(case))
        if not _depends_on_past(case):
            return case
        case = await _with_past(ledger, case)
        if _depends_on_siblings(case):
            raise Unavailable(
                f"the wishes before {call.ref} are not judged yet, and only so many are put to people."
            )
        return case

    def decide(
        self, seen: GateState | SupersededCalls | MissingRequests, handed: Delivered
    ) -> Sequence[Effect[Never]]:
        match seen:
            case MissingRequests(missing):
                return [Append(ref.requested, wish) for ref, wish in missing]
            case GateState():
                return _steps(seen, handed)
            case SupersededCalls(cases):
                return [step for case in cases for step in _steps(case, handed)]

    async def execute(self, ledger: Ledger, work: Never) -> Never:
        raise AssertionError("the gate does nothing outside of the ledger")

    async def _replied(self, ledger: Ledger, handed: Fact, reply: e.ModelReplied) -> MissingRequests:
        """One request; a wish whose slot is taken was requested before, or cannot be any more."""
        thread = handed.slot.thread_ref
        wishes = [part for part in reply.parts if isinstance(part, e.Wish)]
        if not wishes:
            return MissingRequests()
        turn = int(handed.slot.tail[1])
        slots = [thread.wish(turn, index).requested for index in range(len(wishes))]
        facts = await ledger.read(thread.opened, handed.slot, *slots, must_include=handed.slot)
        return replied(facts, handed, wishes)

    async def _heard(self, ledger: Ledger, handed: Fact, said: e.Said) -> SupersededCalls:
        """Where no question is open that a message supersedes, this is one request, and none for what no user said."""
        if said.role != "user":
            return SupersededCalls(())
        waiting = await ledger.open_questions(handed.slot.thread_ref, must_include=handed.slot)
        return SupersededCalls(
            tuple([await self._asked(ledger, call, handed) for call in waiting if _yields(call)])
        )

    async def _asked(self, ledger: Ledger, call: Call, handed: Delivered) -> GateState:
        """The case of an open question, with what a user said since the wish was made where that counts."""
        newer = None
        if _yields(call):
            assert call.gated
            facts = await ledger.read(*_around(call.ref), must_include=_later(call.gated, handed))
            call = call_of(call.ref, facts)
            call = attributed(call, origin(call, facts)) if call.requested is not None else call
            newer = said_since(call.ref, facts)
        case = GateState(call, _NOTHING, None, newer)
        if call.requested is None or not call.votes:
            return case
        # An edit is judged again, and what people approve is, by the policies that are in force by then.
        workspace = call.ref.workspace
        case = replace(case, policies=await ledger.policies(workspace), tool=await ledger.tool_of(call))
        if not any(map(_calls_for_more, call.votes)):
            return case
        assert call.gated
        latest = _later(call.gated, handed)  # who votes in another's place was given the word before
        given = await ledger.read(grants(workspace), delegations(workspace), latest, must_include=latest)
        return replace(case, grants=grants_of(given), delegations=delegations_of(given))


_NOTHING: Final = Policies()


def replied(facts: Sequence[Fact], reply: Fact, wishes: Sequence[e.Wish]) -> MissingRequests:
    """The wishes of a reply that are still to be requested.

    Args:
        facts: the opening of the thread, and what stands in the slots of the wishes.
    """
    ref, turn = reply.slot.thread_ref, int(reply.slot.tail[1])
    opened = next((fact.event for fact in facts if fact.slot == ref.opened), None)
    if not isinstance(opened, e.ThreadOpened) or not opened.model:
        return MissingRequests()  # a service that runs its own loop requests for itself
    taken = {fact.slot for fact in facts}
    calls = ((ref.wish(turn, index), wished(opened, wish)) for index, wish in enumerate(wishes))
    return MissingRequests(tuple((call, wish) for call, wish in calls if call.requested not in taken))


async def _with_past(ledger: Ledger, case: GateState) -> GateState:
    """The case with what its thread went through, as far as the policies ask: where nothing was denied, that is short."""
    ref = case.call.ref
    limited = any(
        case.policies.limit(name) is not None for name in ("calls_per_thread", "questions_per_thread")
    )
    places = ("requested", "gated", "decided") if limited else ("decided",)
    facts = await _of_thread(ledger, ref, *places)
    denied = [fact for fact in facts if isinstance(fact.event, e.Denied) and fact.event.ground == "people"]
    if denied and not limited:
        facts = await _of_thread(ledger, ref, "requested", "decided")
    gone_through = thread_usage(case.call, facts)
    if gone_through.denied is not None:  # only then it matters whether the user has spoken since
        said = await ledger.read(f"{ROOT}.{ref.workspace}.{ref.thread}.said.*")
        gone_through = thread_usage(case.call, sorted((*facts, *said), key=attrgetter("seq")))
    return replace(case, past=gone_through, grants=grants_of(facts))


async def _of_thread(ledger: Ledger, ref: CallRef, *places: str) -> tuple[Fact, ...]:
    """What stands in these places of a thread's calls, the wish itself, and the grants of its workspace."""
    calls = [f"{ROOT}.{ref.workspace}.{ref.thread}.call.*.{place}" for place in places]
    return await ledger.read(*calls, ref.requested, grants(ref.workspace), must_include=ref.requested)


def _depends_on_past(case: GateState) -> bool:
    """Would people be asked, or has a thread only so many calls?"""
    assert case.call.requested
    if case.call.withdrawn is not None:
        return False
    if case.policies.limit("calls_per_thread") is not None:
        return True
    return case.word is not None and isinstance(case.word.says, e.ApprovalRequested)


def _depends_on_siblings(case: GateState) -> bool:
    """Would people be asked, unless an earlier wish of the thread that is not judged yet becomes the last question?"""
    assert case.call.requested
    assert case.past
    most = case.policies.limit("questions_per_thread")
    if most is None or case.past.questions + case.past.unjudged < most:
        return False
    return isinstance(verdict(case, case.call.requested.recorded_at), e.ApprovalRequested)


def _calls_for_more(vote: Fact) -> bool:
    """Does this vote rest on a delegation, or could it beat a grant?"""
    return isinstance(vote.event, e.Voted) and bool(vote.event.verdict == "deny" or vote.event.on_behalf_of)


def _steps(seen: GateState, handed: Delivered) -> Sequence[Effect[Never]]:
    call = seen.call
    if call.requested is None:
        return ()  # a vote or a withdrawal of nothing: it counts when there is something, which is handed then
    if call.decided is not None:
        return _cancelled(call)
    decision = _decision(seen, handed)
    match decision:
        case None:
            # Set again on redelivery: a crash may have come between the question and its timer.
            return [SetTimer(call.ref, call.due)] if call.due is not None else ()
        case e.ApprovalRequested():
            # The deadline counts from when the broker has recorded the question, and a message may have come before it.
            last = decision.expires_in_s is None and decision.while_pending != "supersede"
            return [Append(call.ref.gated, decision), *(() if last else (Reload(),))]
        case e.Escalated():
            return [Append(call.ref.escalated(len(call.escalated) + 1), decision), Reload()]
        case e.Approved(ground="grant") if spending := _spending(seen, decision):
            return [*spending, Reload()]
        case e.Approved(ground="broken_glass"):
            told = e.GlassBroken(reviewer=decision.voters[0], reason=decision.reason)
            announced = () if call.announced else (Append(call.ref.announced, told),)
            return [*announced, Append(call.ref.decided, decision), *_cancelled(call)]
        case e.Denied(ground="people"):
            return [*_beaten(seen, decision), Append(call.ref.decided, decision), *_cancelled(call)]
        case _:
            return [Append(call.ref.decided, decision), *_cancelled(call)]


def _decision(seen: GateState, handed: Delivered) -> e.Event | None:
    """What the facts come to; None while it is open."""
    if seen.newer is None:
        return _decided(seen, handed.recorded_at)
    first = _decided(replace(seen, call=_before(seen.call, seen.newer)), seen.newer.recorded_at)
    if first is not None and not isinstance(first, e.Escalated):  # nobody more is asked about what is moot
        return first
    return e.Superseded(reason=f"The user said something new, message {seen.newer.slot.tail[1]!r}.")


def _before(call: Call, message: Fact) -> Call:
    """The call without what people said about it after this message made it moot, or after the question if that came last."""
    assert call.gated
    end = max(message.seq, call.gated.seq)
    withdrawn = call.withdrawn if call.withdrawn and call.withdrawn.seq < end else None
    return replace(call, votes=tuple(vote for vote in call.votes if vote.seq < end), withdrawn=withdrawn)


def _decided(seen: GateState, now: datetime) -> e.Event | None:
    call = seen.call
    if call.withdrawn is not None:
        event = call.withdrawn.event
        if isinstance(event, e.Superseded):
            return e.Superseded(reason=cut(event.reason, MAX_REASON))
        return _withdrawn(event)
    if call.gated is None:
        return verdict(seen, now)
    stands = _tally(seen)
    if isinstance(stands.verdict, e.Approved) and (ruling := _blocked(seen, stands.verdict)) is not None:
        return _denied(
            "policy", ruling, f"Approved by people, and blocked by now: {ruling.judged.reason}".rstrip(": ")
        )
    if stands.verdict is not None:
        return stands.verdict
    if call.due is None or now < call.due:
        return None
    if (stage := call.next_stage) is not None:
        return e.Escalated(voters=stage.voters, expires_in_s=stage.expires_in_s)
    asking = call.approval_request
    assert asking
    assert call.gated
    return e.Expired(
        rule=asking.rule,
        policy_version=asking.policy_version,
        organisation=asking.organisation,
        after_s=(call.due - call.gated.recorded_at).total_seconds(),
    )


def _tally(seen: GateState) -> Tally:
    return tally(
        seen.call,
        lambda arguments: of_edit(seen.policies, seen.tool, seen.call, arguments),
        lambda vote: delegated(seen.delegations, seen.call, vote),
    )


def _blocked(seen: GateState, approved: e.Approved) -> PolicyDecision | None:
    arguments = seen.call.wish.arguments if approved.arguments is None else approved.arguments
    return block(seen.policies, seen.call, arguments)


def verdict(seen: GateState, now: datetime) -> e.Approved | e.Denied | e.ApprovalRequested:
    """What the policies say to a wish. Looked at before anybody is asked, in this order:

    1. it is not whose wish it says, the digest is not that of the wish, the tool is unknown or run by somebody else, the
       arguments break its schema, the requester could not be kept from voting: denied as invalid;
    2. the thread has made more calls than the policy lets it: denied;
    3. the word that counts blocks or allows (a tool that can change policy is asked about instead);
    4. it asks fewer people than it needs, without those who do not count: denied, since nobody could ever decide;
    5. grants make up the votes that it needs: approved;
    6. people denied this very call in this thread, and nothing was said since: denied again, so often;
    7. the thread has put more to people than the policy lets it: denied;
    8. people are asked.
    """
    said = seen.word or policy_verdict(seen)
    ruling, says, gone_through = said.ruling, said.says, seen.past
    most = seen.policies.limit("calls_per_thread")
    if isinstance(says, e.Denied) and says.ground == "invalid":
        return says
    if gone_through and most is not None and gone_through.calls >= most:
        return _denied("limit", ruling, f"The policy lets a thread make {most:,} calls, and these were made.")
    if not isinstance(says, e.ApprovalRequested):
        return says
    if not _governs(seen.tool) and (counting := _granted(seen, says, now)):
        by_grant = _approved(
            ruling,
            says.digest,
            "grant",
            voters=tuple(grant.ref.giver for grant in counting),
            grants=tuple(f"{grant.ref.giver}/{grant.ref.name}" for grant in counting),
        )
        return _unasked(seen, by_grant)
    if (
        gone_through
        and gone_through.denied
        and gone_through.repeats < seen.policies.workspace.policy.deny_repeats
    ):
        return _denied("repeated", ruling, _again(gone_through.denied))
    most = seen.policies.limit("questions_per_thread")
    if gone_through and most is not None and gone_through.questions >= most:
        return _denied(
            "limit", ruling, f"The policy lets a thread put {most:,} calls to people, and these were put."
        )
    return says


def policy_verdict(seen: GateState) -> PolicyVerdict:
    """Steps 1, 3 and 4 of `verdict`."""
    call, policies, tool = seen.call, seen.policies, seen.tool
    wish = call.wish
    problem = disowned(call, seen.origin) or _invalid(wish, tool) or _unmapped(wish, policies)
    if problem is not None:
        ruling = evaluate(policies, about(call))
        return PolicyVerdict(ruling, _denied("invalid", ruling, problem))
    ruling = evaluate(policies, about(call, wish.arguments))
    judged = ruling.judged
    if judged.then == "block":
        return PolicyVerdict(ruling, _denied("policy", ruling, judged.reason))
    if judged.then == "allow" and not _governs(tool):
        return PolicyVerdict(
            ruling, _unasked(seen, _approved(ruling, wish.digest, "policy", reason=judged.reason))
        )
    asking = question(policies, ruling, digest=wish.digest, requester=wish.requester, agent=wish.agent)
    if empty := unanswerable(asking):
        own = policies.excluded(wish.requester, "")
        others = [name for name in asking.excluded if name not in own]
        who = [f"{wish.requester} asked for it"] if wish.requester else []
        who += (
            [f"{', '.join(others)} {'is' if len(others) == 1 else 'are'} behind {wish.agent}"]
            if others
            else []
        )
        why = f"It needs {empty} more who may vote and count: {' and '.join(who)}."
        return PolicyVerdict(ruling, _denied("policy", ruling, why))
    return PolicyVerdict(ruling, asking)


def _unasked(seen: GateState, approved: e.Approved) -> e.Approved:
    """With who may revoke and reconcile, where no question says so; what the request says by itself is left out."""
    wish = seen.call.wish
    named = plain(wish.requester) if seen.names_requester else ""
    return replace(
        approved,
        excluded=tuple(one for one in seen.policies.excluded(wish.requester, wish.agent) if one != named),
        may_revoke=seen.policies.people("may_revoke"),
        may_reconcile=seen.policies.people("may_reconcile"),
    )


def _governs(tool: Tool | None) -> bool:
    return tool is not None and tool.declared.governs


def _invalid(wish: e.ToolRequested, tool: Tool | None) -> str | None:
    if call_digest(wish.tool, wish.tool_version, wish.arguments) != wish.digest:
        return "The request's digest is not that of its arguments."
    if tool is None:
        return f"There is no tool {wish.tool!r}. Only the tools that were offered can be called."
    if wish.run_by != tool.declared.run_by:
        return (
            f"{wish.tool} is run by {tool.declared.run_by!r}, as it is declared, and not by {wish.run_by!r}."
        )
    if wish.layout not in _LAYOUTS:
        return f"The request is of layout {wish.layout}, which this gate does not know. Upgrade the gate."
    return tool.problems(wish.arguments)


#: Which layouts of a request's slots the gate knows.
_LAYOUTS: Final = (1, 2)


def _unmapped(wish: e.ToolRequested, policies: Policies) -> str | None:
    if policies.is_known(wish.requester):
        return None
    whose = (
        f"The requester {wish.requester!r} could not be a reviewer"
        if wish.requester
        else "No requester is named"
    )
    return (
        f"{whose}, so nobody could be kept from approving their own request. Name a reviewer, or list the account "
        'below [people] in the policy, or write unmapped_requesters = "exclude_nobody" there.'
    )


def question(
    policies: Policies, ruling: PolicyDecision, *, digest: str, requester: str, agent: str
) -> e.ApprovalRequested:
    """What people are asked: frozen from here on."""
    policy, rule = ruling.by.policy, ruling.judged.rule
    (own, *also), *besides = required(policies, ruling)
    beside = ruling.beside.rule if ruling.beside is not None else rule
    reason = ruling.judged.reason
    if ruling.judged.then == "allow":  # of a tool that can change policy
        own, also, reason = e.Quorum(("*",)), [], "It can change what is asked about, so a person must look."
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
        excluded=policies.excluded(requester, agent),
        expires_in_s=times[1].expires_in_s,
        on_timeout=times[1].on_timeout,
        stages=times[0].stages(times[1]),
        while_pending=policies.workspace.policy.while_pending,
        shadows=ruling.shadows,
        may_revoke=policies.people("may_revoke"),
        may_reconcile=policies.people("may_reconcile"),
        editor_counts=rule.editor_counts and beside.editor_counts,
    )
    return replace(asking, people=policies.accounts(_may_ever_act(asking)))


def unanswerable(asking: e.ApprovalRequested) -> int:
    """How many votes this question needs that nobody can cast: then nobody must be asked."""
    return empty_seats(asked(asking), asking.stages, asking.excluded, asking.people)


def _may_ever_act(asking: e.ApprovalRequested) -> set[str]:
    """Everybody whose word may count about this question, names and patterns."""
    quorums = [one.voters for quorums in asked(asking) for one in quorums]
    stages = [one.voters for one in asking.stages]
    more = (asking.may_break_glass, asking.may_revoke, asking.may_reconcile)
    return {voter for voters in (*quorums, *stages, *more) for voter in voters}


def _again(denied: Fact) -> str:
    event, ref = denied.event, denied.slot.call_ref
    assert isinstance(event, e.Denied)
    assert ref
    said = f": {cut(event.reason, MAX_REASON)}" if event.reason else "."
    return f"This very call was denied before, as {ref.call}{said}"


def _granted(seen: GateState, asking: e.ApprovalRequested, now: datetime) -> tuple[Grant, ...]:
    """The grants that together say what people would be asked for; empty where they do not suffice."""
    if not seen.policies.grantable(seen.call.wish.tool):
        return ()
    call = about(seen.call, seen.call.wish.arguments)
    by_giver: dict[str, Grant] = {}
    usable = (grant for grant in seen.grants if grant.used_by(seen.call) or grant.left > 0)
    for grant in covering(usable, call, now):
        if not is_excluded(grant.ref.giver, asking.excluded, asking.people):
            # Two accounts of one person are one giver.
            by_giver.setdefault(person(grant.ref.giver, asking.people), grant)
    counting: dict[str, Grant] = {}
    for grant in by_giver.values():  # those alone that bring it nearer
        giver = grant.ref.giver
        if any(filled(quorums, (*counting, giver)) > filled(quorums, counting) for quorums in asked(asking)):
            counting[giver] = grant
    enough = all(met(quorums, counting) for quorums in asked(asking))
    return tuple(counting.values()) if enough else ()


def _spending(seen: GateState, approved: e.Approved) -> Sequence[Append]:
    """The uses that are still to be taken before these grants let the call run."""
    call = seen.call
    return [
        Append(grant.ref.used(len(grant.used) + 1), e.GrantUsed(call=str(call.ref)))
        for grant in seen.grants
        if f"{grant.ref.giver}/{grant.ref.name}" in approved.grants and not grant.used_by(call)
    ]


def _beaten(seen: GateState, denied: e.Denied) -> Sequence[Append]:
    """A later no beats an earlier yes: the grants that would have covered what people denied."""
    denied_call, call = about(seen.call, seen.call.wish.arguments), str(seen.call.ref)
    at = max((vote.recorded_at for vote in seen.call.votes), default=None)
    beaten = covering(seen.grants, denied_call, at) if at is not None else ()
    return [Append(grant.ref.revoked, e.GrantRevoked(reason=denied.reason, call=call)) for grant in beaten]


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
    )


def _denied(ground: e.Ground, ruling: PolicyDecision, reason: str) -> e.Denied:
    return e.Denied(
        ground=ground,
        rule=ruling.judged.rule.name,
        policy_version=ruling.by.version,
        organisation=ruling.by.organisation,
        reason=cut(reason, MAX_REASON),
        shadows=ruling.shadows,
    )


def _yields(call: Call) -> bool:
    """Does a user's message make this call moot?"""
    return call.approval_request is not None and call.approval_request.while_pending == "supersede"


def _later(gated: Fact, handed: Delivered) -> Slot:
    """The later of the two facts: whoever has it has all that stands before it. (A timer is of another stream.)"""
    return handed.slot if isinstance(handed, Fact) and handed.seq > gated.seq else gated.slot


def _around(ref: CallRef) -> tuple[str, ...]:
    """The subjects of a call, of what says whose it is, and of all that was said in its thread."""
    said = f"{ROOT}.{ref.workspace}.{ref.thread}.said.*"
    return (ref.subjects, said, *(slot.subject for slot in origin_slots(ref)))


def said_since(ref: CallRef, facts: Sequence[Fact]) -> Fact | None:
    """The first thing that a user said after the wish for this call was made, among facts in the order of the log."""
    wished = (fact.seq for fact in facts if fact.slot in (ref.requested, reply_slot(ref)))
    since = min(wished, default=None)
    said = (fact for fact in facts if isinstance(fact.event, e.Said) and fact.event.role == "user")
    return next((fact for fact in said if since is not None and fact.seq > since), None)


def _cancelled(call: Call) -> Sequence[CancelTimer]:
    return [CancelTimer(call.ref)] if call.due is not None else ()


def _withdrawn(event: object) -> e.Withdrawn:
    return e.Withdrawn(reason=cut(event.reason, MAX_REASON) if isinstance(event, e.Withdrawn) else "")


def _call(handed: Delivered) -> CallRef:
    if isinstance(handed, TimerFired):
        return handed.call
    ref = handed.slot.call_ref
    assert ref, "the gate is handed facts about calls only"
    return ref
