"""The gate: judges each wish once, counts votes, and alone decides.

    requested ──► the policies in force say allow, ask or block       ──► decided, or gated and a timer
    vote      ──► enough of the right, distinct people?               ──► decided
    withdrawn ──► the requester's side takes it back                  ──► decided
    said      ──► a user said something new, where that supersedes    ──► decided, every open call of the thread
    due       ──► nobody decided in time                              ──► decided, or more people are asked

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

from consumers.steps import Append, CancelTimer, LookAgain, SetTimer, Step
from ledger.client import Ledger
from ledger.judging import Past, Policies, Ruling, about, block, of_edit, past, required, ruled
from ledger.lifecycle import Call, call_of
from ledger.port import Due, Handed
from ledger.standing import Delegation, Grant, covers, delegated, delegations_of, grants_of
from ledger.votes import Tally, asked, empty_seats, tally
from schemas import events as e
from schemas.codec import Fact
from schemas.digest import call_digest
from schemas.errors import Unavailable
from schemas.quorums import filled, is_among, met
from schemas.slots import ROOT, CallRef, Slot, delegations, grants
from schemas.tools import Tool


class Word(Struct, frozen=True):
    """What the policies say to a wish by itself, whatever its thread went through and whoever said yes in advance."""

    ruling: Ruling
    says: e.Approved | e.Denied | e.ApprovalRequested


class Case(Struct, frozen=True):
    """What the gate looks at: the call, and what judges it."""

    call: Call
    policies: Policies
    tool: Tool | None
    #: The first thing that a user said after the wish was made. Only looked for where it supersedes the question.
    newer: Fact | None = None
    #: What the thread went through before. None: not looked at, since nothing depends on it.
    past: Past | None = None
    grants: tuple[Grant, ...] = ()
    delegations: tuple[Delegation, ...] = ()
    #: What call, policies and tool come to. None: not asked yet, `verdict` will.
    word: Word | None = None


class Heard(Struct, frozen=True):
    """What the gate looks at when somebody says something: the thread's open calls that this may supersede."""

    cases: tuple[Case, ...]


class Gate:
    durables = ("gate", "gate-timers")
    replaces = False

    async def look(self, ledger: Ledger, handed: Handed) -> Case | Heard:
        if isinstance(handed, Fact) and isinstance(handed.event, e.Said):
            return await self._heard(ledger, handed, handed.event)
        call = await ledger.call(_call(handed), having=handed.slot if isinstance(handed, Fact) else None)
        if isinstance(handed, Due) and call.gated is None:
            # A timer is set after its question was read, so it is there. Nobody else would see to this deadline.
            raise Unavailable(f"the question of {call.ref} cannot be read yet; a replica is behind.")
        if call.requested is None or call.decided is not None:
            return Case(call, _NOTHING, None)
        if call.gated is not None:
            return await self._asked(ledger, call, handed)
        # Read after the call, here and below: no policy that is older than what is judged by it.
        policies, tool = await ledger.policies(call.ref.workspace), await ledger.tool_of(call)
        case = Case(call, policies, tool, word=word(call, policies, tool))
        if not _depends_on_past(case):
            return case
        case = await _with_past(ledger, case)
        if _depends_on_siblings(case):
            raise Unavailable(
                f"the wishes before {call.ref} are not judged yet, and only so many are put to people."
            )
        return case

    def react(self, seen: Case | Heard, handed: Handed) -> Sequence[Step[Never]]:
        match seen:
            case Case():
                return _steps(seen, handed)
            case Heard(cases):
                return [step for case in cases for step in _steps(case, handed)]

    async def do(self, ledger: Ledger, work: Never) -> Never:
        raise AssertionError("the gate does nothing outside of the ledger")

    async def _heard(self, ledger: Ledger, handed: Fact, said: e.Said) -> Heard:
        """Where no question is open that a message supersedes, this is one request, and none for what no user said."""
        if said.role != "user":
            return Heard(())
        waiting = await ledger.open_questions(handed.slot.thread_ref, having=handed.slot)
        return Heard(tuple([await self._asked(ledger, call, handed) for call in waiting if _yields(call)]))

    async def _asked(self, ledger: Ledger, call: Call, handed: Handed) -> Case:
        """The case of an open question, with what a user said since the wish was made where that counts."""
        newer = None
        if _yields(call):
            assert call.gated
            facts = await ledger.read(*_around(call.ref), having=_later(call.gated, handed))
            call = call_of(call.ref, facts)
            newer = said_since(call.ref, facts)
        case = Case(call, _NOTHING, None, newer)
        if call.requested is None or not call.votes:
            return case
        # An edit is judged again, and what people approve is, by the policies that are in force by then.
        workspace = call.ref.workspace
        case = replace(case, policies=await ledger.policies(workspace), tool=await ledger.tool_of(call))
        if not any(map(_calls_for_more, call.votes)):
            return case
        assert call.gated
        latest = _later(call.gated, handed)  # who votes in another's place was given the word before
        given = await ledger.read(grants(workspace), delegations(workspace), latest, having=latest)
        return replace(case, grants=grants_of(given), delegations=delegations_of(given))


_NOTHING: Final = Policies()


async def _with_past(ledger: Ledger, case: Case) -> Case:
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
    gone_through = past(case.call, facts)
    if gone_through.denied is not None:  # only then it matters whether the user has spoken since
        said = await ledger.read(f"{ROOT}.{ref.workspace}.{ref.thread}.said.*")
        gone_through = past(case.call, sorted((*facts, *said), key=attrgetter("seq")))
    return replace(case, past=gone_through, grants=grants_of(facts))


async def _of_thread(ledger: Ledger, ref: CallRef, *places: str) -> tuple[Fact, ...]:
    """What stands in these places of a thread's calls, the wish itself, and the grants of its workspace."""
    calls = [f"{ROOT}.{ref.workspace}.{ref.thread}.call.*.{place}" for place in places]
    return await ledger.read(*calls, ref.requested, grants(ref.workspace), having=ref.requested)


def _depends_on_past(case: Case) -> bool:
    """Would people be asked, or has a thread only so many calls?"""
    assert case.call.requested
    if case.call.withdrawn is not None:
        return False
    if case.policies.limit("calls_per_thread") is not None:
        return True
    return case.word is not None and isinstance(case.word.says, e.ApprovalRequested)


def _depends_on_siblings(case: Case) -> bool:
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


def _steps(seen: Case, handed: Handed) -> Sequence[Step[Never]]:
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
            return [Append(call.ref.gated, decision), *(() if last else (LookAgain(),))]
        case e.Escalated():
            return [Append(call.ref.escalated(len(call.escalated) + 1), decision), LookAgain()]
        case e.Approved(ground="grant") if spending := _spending(seen, decision):
            return [*spending, LookAgain()]
        case e.Approved(ground="broken_glass"):
            told = e.GlassBroken(reviewer=decision.voters[0], reason=decision.reason)
            announced = () if call.announced else (Append(call.ref.announced, told),)
            return [*announced, Append(call.ref.decided, decision), *_cancelled(call)]
        case e.Denied(ground="people"):
            return [*_beaten(seen, decision), Append(call.ref.decided, decision), *_cancelled(call)]
        case _:
            return [Append(call.ref.decided, decision), *_cancelled(call)]


def _decision(seen: Case, handed: Handed) -> e.Event | None:
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


def _decided(seen: Case, now: datetime) -> e.Event | None:
    call = seen.call
    if call.withdrawn is not None:
        event = call.withdrawn.event
        return e.Superseded(reason=event.reason) if isinstance(event, e.Superseded) else _withdrawn(event)
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
    asking = call.asking
    assert asking
    assert call.gated
    return e.Expired(
        rule=asking.rule,
        policy_version=asking.policy_version,
        organisation=asking.organisation,
        after_s=(call.due - call.gated.recorded_at).total_seconds(),
    )


def _tally(seen: Case) -> Tally:
    return tally(
        seen.call,
        lambda arguments: of_edit(seen.policies, seen.tool, seen.call, arguments),
        lambda vote: delegated(seen.delegations, seen.call, vote),
    )


def _blocked(seen: Case, approved: e.Approved) -> Ruling | None:
    arguments = seen.call.wish.arguments if approved.arguments is None else approved.arguments
    return block(seen.policies, seen.call, arguments)


def verdict(seen: Case, now: datetime) -> e.Approved | e.Denied | e.ApprovalRequested:
    """What the policies say to a wish. Looked at before anybody is asked, in this order:

    1. the digest is not that of the wish, the tool is unknown, the arguments break its schema: denied as invalid;
    2. the thread has made more calls than the policy lets it: denied;
    3. the word that counts blocks or allows (a tool that can change policy is asked about instead);
    4. it asks fewer people than it needs, without those who do not count: denied, since nobody could ever decide;
    5. grants make up the votes that it needs: approved;
    6. people denied this very call in this thread, and nothing was said since: denied again, so often;
    7. the thread has put more to people than the policy lets it: denied;
    8. people are asked.
    """
    said = seen.word or word(seen.call, seen.policies, seen.tool)
    ruling, question, gone_through = said.ruling, said.says, seen.past
    most = seen.policies.limit("calls_per_thread")
    if isinstance(question, e.Denied) and question.ground == "invalid":
        return question
    if gone_through and most is not None and gone_through.calls >= most:
        return _denied("limit", ruling, f"The policy lets a thread make {most:,} calls, and these were made.")
    if not isinstance(question, e.ApprovalRequested):
        return question
    if not _governs(seen.tool) and (counting := _granted(seen, question, now)):
        return _approved(
            ruling,
            question.digest,
            "grant",
            voters=tuple(grant.ref.giver for grant in counting),
            grants=tuple(f"{grant.ref.giver}/{grant.ref.name}" for grant in counting),
        )
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
    return question


def word(call: Call, policies: Policies, tool: Tool | None) -> Word:
    """Steps 1, 3 and 4 of `verdict`."""
    wish = call.wish
    if (problem := _invalid(wish, tool)) is not None:
        ruling = ruled(policies, about(call))
        return Word(ruling, _denied("invalid", ruling, problem))
    ruling = ruled(policies, about(call, wish.arguments))
    judged = ruling.judged
    if judged.then == "block":
        return Word(ruling, _denied("policy", ruling, judged.reason))
    if judged.then == "allow" and not _governs(tool):
        return Word(ruling, _approved(ruling, wish.digest, "policy", reason=judged.reason))
    question = _question(wish, policies, ruling)
    if empty := empty_seats(asked(question), question.stages, question.excluded):
        others = [name for name in question.excluded if name != wish.requester]
        who = [f"{wish.requester} asked for it"] if wish.requester else []
        who += (
            [f"{', '.join(others)} {'is' if len(others) == 1 else 'are'} behind {wish.agent}"]
            if others
            else []
        )
        why = f"It needs {empty} more who may vote and count: {' and '.join(who)}."
        return Word(ruling, _denied("policy", ruling, why))
    return Word(ruling, question)


def _governs(tool: Tool | None) -> bool:
    return tool is not None and tool.declared.governs


def _invalid(wish: e.ToolRequested, tool: Tool | None) -> str | None:
    if call_digest(wish.tool, wish.tool_version, wish.arguments) != wish.digest:
        return "The request's digest is not that of its arguments."
    if tool is None:
        return f"There is no tool {wish.tool!r}. Only the tools that were offered can be called."
    return tool.problems(wish.arguments)


def _question(wish: e.ToolRequested, policies: Policies, ruling: Ruling) -> e.ApprovalRequested:
    """What people are asked: frozen from here on."""
    policy, rule = ruling.by.policy, ruling.judged.rule
    (own, *also), *besides = required(policies, ruling)
    beside = ruling.beside.rule if ruling.beside is not None else rule
    reason = ruling.judged.reason
    if ruling.judged.then == "allow":  # of a tool that can change policy
        own, also, reason = e.Quorum(("*",)), [], "It can change what is asked about, so a person must look."
    # The organisation's rule keeps the time, if it has any.
    times = (policy, rule) if rule.expires_in_s is not None else (policies.workspace.policy, beside)
    excluded = dict.fromkeys((*filter(None, (wish.requester,)), *policies.behind(wish.agent)))
    return e.ApprovalRequested(
        digest=wish.digest,
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
        excluded=tuple(excluded),
        expires_in_s=times[1].expires_in_s,
        on_timeout=times[1].on_timeout,
        stages=times[0].stages(times[1]),
        while_pending=policies.workspace.policy.while_pending,
        shadows=ruling.shadows,
    )


def _again(denied: Fact) -> str:
    event, ref = denied.event, denied.slot.call_ref
    assert isinstance(event, e.Denied)
    assert ref
    said = f": {event.reason}" if event.reason else "."
    return f"This very call was denied before, as {ref.call}{said}"


def _granted(seen: Case, question: e.ApprovalRequested, now: datetime) -> tuple[Grant, ...]:
    """The grants that together say what people would be asked for; empty where they do not suffice."""
    if not seen.policies.grantable(seen.call.wish.tool):
        return ()
    wished = about(seen.call, seen.call.wish.arguments)
    by_giver: dict[str, Grant] = {}
    for grant in seen.grants:
        usable = grant.used_by(seen.call) or grant.left > 0
        excluded = is_among(grant.ref.giver, question.excluded)
        if usable and not excluded and covers(grant, wished, now):
            by_giver.setdefault(grant.ref.giver, grant)
    counting: list[str] = []
    for giver in by_giver:  # those alone that bring it nearer
        if any(
            filled(quorums, (*counting, giver)) > filled(quorums, counting) for quorums in asked(question)
        ):
            counting.append(giver)
    enough = all(met(quorums, counting) for quorums in asked(question))
    return tuple(by_giver[giver] for giver in counting) if enough else ()


def _spending(seen: Case, approved: e.Approved) -> Sequence[Append]:
    """The uses that are still to be taken before these grants let the call run."""
    call = seen.call
    return [
        Append(grant.ref.used(len(grant.used) + 1), e.GrantUsed(call=str(call.ref)))
        for grant in seen.grants
        if f"{grant.ref.giver}/{grant.ref.name}" in approved.grants and not grant.used_by(call)
    ]


def _beaten(seen: Case, denied: e.Denied) -> Sequence[Append]:
    """A later no beats an earlier yes: the grants that would have covered what people denied."""
    wished, call = about(seen.call, seen.call.wish.arguments), str(seen.call.ref)
    at = max((vote.recorded_at for vote in seen.call.votes), default=None)
    return [
        Append(grant.ref.revoked, e.GrantRevoked(reason=denied.reason, call=call))
        for grant in seen.grants
        if at is not None and covers(grant, wished, at)
    ]


def _approved(
    ruling: Ruling,
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


def _denied(ground: e.Ground, ruling: Ruling, reason: str) -> e.Denied:
    return e.Denied(
        ground=ground,
        rule=ruling.judged.rule.name,
        policy_version=ruling.by.version,
        organisation=ruling.by.organisation,
        reason=reason,
        shadows=ruling.shadows,
    )


def _yields(call: Call) -> bool:
    """Does a user's message make this call moot?"""
    return call.asking is not None and call.asking.while_pending == "supersede"


def _later(gated: Fact, handed: Handed) -> Slot:
    """The later of the two facts: whoever has it has all that stands before it. (A timer is of another stream.)"""
    return handed.slot if isinstance(handed, Fact) and handed.seq > gated.seq else gated.slot


def _around(ref: CallRef) -> tuple[str, ...]:
    """The subjects of a call, of the reply that wished for it, and of all that was said in its thread."""
    reply = _reply(ref)
    said = f"{ROOT}.{ref.workspace}.{ref.thread}.said.*"
    return (ref.subjects, said, *([reply.subject] if reply else []))


def _reply(ref: CallRef) -> Slot | None:
    """Where the reply stands that wished for this call. None: a model's wishes have other ids, so it is a service's own."""
    turn, _, index = ref.call.partition("-")
    if not (turn.isdigit() and index.isdigit()) or ref.thread_ref.wish(int(turn), int(index)) != ref:
        return None
    return ref.thread_ref.replied(int(turn))


def said_since(ref: CallRef, facts: Sequence[Fact]) -> Fact | None:
    """The first thing that a user said after the wish for this call was made, among facts in the order of the log."""
    wished = (fact.seq for fact in facts if fact.slot in (ref.requested, _reply(ref)))
    since = min(wished, default=None)
    said = (fact for fact in facts if isinstance(fact.event, e.Said) and fact.event.role == "user")
    return next((fact for fact in said if since is not None and fact.seq > since), None)


def _cancelled(call: Call) -> Sequence[CancelTimer]:
    return [CancelTimer(call.ref)] if call.due is not None else ()


def _withdrawn(event: object) -> e.Withdrawn:
    return e.Withdrawn(reason=event.reason) if isinstance(event, e.Withdrawn) else e.Withdrawn()


def _call(handed: Handed) -> CallRef:
    if isinstance(handed, Due):
        return handed.call
    ref = handed.slot.call_ref
    assert ref, "the gate is handed facts about calls only"
    return ref
