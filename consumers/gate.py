"""The gate: requests what a model wishes, judges each wish once, counts votes, and alone decides.

    replied   ──► each wish of a model's reply                     ──► requested
    requested ──► the policies in force allow, ask or block        ──► decided, or gated and a timer
    vote      ──► enough of the right, distinct people?            ──► decided
    withdrawn ──► the requester's side takes it back               ──► decided
              ──► the same of a call that runs                     ──► decided, each open call below
    stop      ──► given by somebody who may not, or resumed        ──► ended
    said      ──► a user's message, where that supersedes          ──► decided, each open call
    due       ──► nobody decided in time                           ──► decided, or escalated
              ──► an approval is valid no longer, nothing started  ──► lapsed
    policy    ──► blocks calls that are approved and not started   ──► lapsed, each of them
    revoked   ──► a grant, and calls that it approved wait         ──► lapsed, each of them

The gate looks up who made a request rather than believing it (docs/decisions/0023): requester,
agent and labels are those for which the thread was opened, and a request in the slot of a model's
wish must be as in its reply.

Anything uncertain is not a yes: an unknown tool and arguments that break the schema are denied
before anybody is asked; a policy that cannot be read asks everybody. The clock is the broker's:
"now" is when the delivered fact was recorded. Another node may lead the stream of timers, with a
clock of its own, so a timer only causes a look at the clock of the log: by that one a deadline
began, and before it has passed nothing ends.

A call in a sub-agent's thread is judged with the calls above it, up to the root
(ledger/judging/chain.py): its requester is that of the root, and once a call above is
withdrawn or has ended, it is withdrawn too. A gate that judges a call reads the calls above after
the request, and a gate that receives a withdrawal reads the calls below after it. The later of the
two sees both.

The verdict on a wish is frozen when it is made, and a later policy may only tighten it: a call that
people approve is denied after all if the policy in force blocks it by then.

An approval that nothing has used lapses once a newer policy blocks the call or the grant that it
rests on is revoked (docs/decisions/0064). A gate that receives a policy or a revocation reads the
approvals after it, and a gate that records an approval reads policies and grants after it. The
later of the two sees both.

A grant is a vote that was given early. Before one lets a call run, one of its uses is taken for
that call, in a slot; and when people deny a call that a grant would cover, the grant is revoked
first. So each of these steps may come twice.

If a budget covers a call, the call's amount is recorded in the budget's series before the call is
approved, so these steps may come twice too (docs/decisions/0049).

While a stop covers a call, no approval of it is recorded, on whatever ground; all else goes on. A
timer has it judged again (docs/decisions/0063).

If a policy limits the questions of a thread, its calls are judged in the order of the log: one that
might exceed the limit is redelivered until all earlier ones are judged. A burst of parallel calls
cannot bypass the limit.

Whether a message supersedes a question is read from the log, so it does not matter whether the gate
or the user is faster (docs/decisions/0010):

* It does if a user said it after the wish was made: after the model's reply, or, in a service's own
  loop, after the request. So all wishes of one reply are superseded by the same messages, and a
  slow gate asks nothing that is moot.
* Only facts before the message count: a vote that decides, a withdrawal and the deadline win if
  they came first, and otherwise the message. So two gates that look at different times agree.
* A gate that receives any fact about such a call looks for messages, also right after the question
  was recorded, and a gate that receives a message looks for such calls. The later of the two sees
  both.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Final, Never

from msgspec import Struct
from msgspec.structs import replace

from ayes.consumers.effects import Append, CancelTimer, Effect, Reload, SetTimer
from ayes.consumers.unstarted import Unstarted
from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.budgets import filled, sums_of, usage_of
from ayes.ledger.judging.chain import Chain, is_below, withdrawn_above
from ayes.ledger.judging.grants import covering, delegations_of, grants_of
from ayes.ledger.judging.on_call import on_call_to_read
from ayes.ledger.judging.policies import (
    Origin,
    Policies,
    about,
    attributed,
    classed,
    origin,
    origin_slots,
    reply_slot,
    thread_usage,
    wished,
)
from ayes.ledger.judging.stopping import ending, people_to_read
from ayes.ledger.judging.verdict import (
    Case,
    beyond,
    decision,
    lapse,
    policy_verdict,
    running,
    verdict,
)
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import Delivered, TimerFired
from ayes.ledger.objections import votes_rest_on
from ayes.ledger.people import people_of
from ayes.ledger.stops import Stop, stops_of
from ayes.ledger.trust import NOBODY
from ayes.ledger.validity import call_of
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import Unavailable
from ayes.schemas.logs import get_logger
from ayes.schemas.quorums import is_open
from ayes.schemas.slots import (
    ORGANISATION,
    REMOVALS,
    ROOT,
    CallRef,
    GrantRef,
    Slot,
    StopRef,
    delegations,
    grants,
)

_log: Final = get_logger("ayes.consumers.gate")

#: A difference of the nodes' clocks that is reported, in seconds.
_SKEW_S: Final = 1.0
#: How often an approval that waits for the end of a stop is judged again: at first, and later.
_LOOK_AFTER: Final = timedelta(seconds=1)
_LOOK_AGAIN: Final = timedelta(seconds=30)


class MootCalls(Struct, frozen=True):
    """The state after a fact that may end other calls: the open calls of a thread that a user's
    message may supersede, all calls below one that was withdrawn, or approved calls that a policy
    or the end of a grant may keep from starting.
    """

    cases: tuple[Case, ...]


class MissingRequests(Struct, frozen=True):
    """The state after a model's reply: the wishes that are not requested yet."""

    missing: tuple[tuple[CallRef, e.ToolRequested], ...] = ()
    #: The usage that budgets of tokens must have first.
    usage: tuple[Append, ...] = ()


class Stopping(Struct, frozen=True):
    """The state after a stop was given or somebody resumed: how it ends, if it does by now."""

    stop: Stop
    ends: e.StopEnded | None


class Gate:
    durables = ("gate", "gate-replies", "gate-timers")
    replaces = False

    def __init__(self) -> None:
        self._unstarted = Unstarted()

    async def load(
        self, ledger: Ledger, handed: Delivered
    ) -> Case | MootCalls | MissingRequests | Stopping | None:
        match handed:
            case Fact(event=e.Stopped() | e.Resumed()):
                return await _stopping(ledger, handed)
            case Fact(event=e.PolicyApplied()):
                return await self._after_policy(ledger, handed)
            case Fact(event=e.GrantRevoked()):
                return await _after_revocation(ledger, handed)
            case Fact(event=e.Said() as said):
                return await self._message(ledger, handed, said)
            case Fact(event=e.ModelReplied() as reply):
                return await self._replied(ledger, handed, reply)
            case Fact(event=e.ModelFailed()):
                return MissingRequests()
            case TimerFired():
                now = await ledger.log.clock()
                if (ahead_s := (handed.recorded_at - now).total_seconds()) > _SKEW_S:
                    _log.error("a timer fired too early: the nodes' clocks differ", by_s=ahead_s)
                found = await self._called(ledger, handed.call, handed)
                return replace(found, now=now) if isinstance(found, Case) else found
            case _:
                return await self._called(ledger, _call(handed), handed)

    async def _called(self, ledger: Ledger, ref: CallRef, handed: Delivered) -> Case | MootCalls:
        if isinstance(handed, TimerFired):
            # A replica that is behind may lack votes that came in time, and nothing expires then.
            await ledger.log.last_seq()
        facts = await ledger.read(
            ref, *origin_slots(ref), must_include=handed.slot if isinstance(handed, Fact) else None
        )
        call = call_of(ref, facts)
        is_new = call.gated is None and call.decided is None
        if isinstance(handed, TimerFired) and is_new and not call.stops:
            # The question or decision existed before its timer was set, and no other delivery would
            # handle this deadline.
            raise Unavailable(f"what {call.ref} waits for cannot be read yet; a replica is behind.")
        if call.decided is not None and isinstance(handed, Fact) and handed.slot == ref.withdrawn:
            return await _below(ledger, call, handed)
        if call.requested is None or call.decided is not None:
            return await _since_approved(ledger, call, facts)
        whence = await ledger.with_chain(origin(call, facts))
        names_requester, call = bool(call.wish.requester), attributed(call, whence)
        if call.gated is not None:
            return await self._asked(ledger, call, handed)
        # Read after the call, here and below: no policy may be older than the call it judges.
        policies, tool = await ledger.policies(call.ref.workspace), await ledger.tool_of(call)
        whence = replace(whence, chain=await ledger.with_classes(whence.chain, policies))
        call = classed(call, tool, whence.chain)
        signed = ledger.trust is not None and ledger.trust.wants_signed(call.ref.workspace)
        case = Case(
            call, policies, tool, origin=whence, names_requester=names_requester, signed=signed
        )
        case = replace(case, by_policies=policy_verdict(case))
        case = await _with_budgets(ledger, case, call.ref.requested)
        if not _depends_on_past(case):
            return case
        case = await _with_past(ledger, case)
        if _depends_on_siblings(case):
            raise Unavailable(
                f"the wishes before {call.ref} are not judged yet, and the policy limits how many "
                "are put to people."
            )
        return case

    def decide(
        self, seen: Case | MootCalls | MissingRequests | Stopping | None, handed: Delivered
    ) -> Sequence[Effect[Never]]:
        match seen:
            case None:
                return ()
            case Stopping(stop, ends):
                return [Append(stop.ref.ended, ends)] if ends is not None else ()
            case MissingRequests(_, usage) if usage:
                return [*usage, Reload()]
            case MissingRequests(missing):
                return [Append(ref.requested, wish) for ref, wish in missing]
            case Case():
                return _steps(seen, handed)
            case MootCalls(cases):
                return [step for case in cases for step in _steps(case, handed)]

    async def execute(self, ledger: Ledger, work: Never) -> Never:
        raise AssertionError("the gate claims no work")

    async def _replied(
        self, ledger: Ledger, handed: Fact, reply: e.ModelReplied
    ) -> MissingRequests:
        """Sends one request, unless budgets of tokens are in force. A wish whose slot is taken was
        requested before, or never can be.
        """
        thread = handed.slot.thread_ref
        if usage := await _unrecorded_usage(ledger, handed, reply):
            return MissingRequests(usage=usage)
        wishes = [part for part in reply.parts if isinstance(part, e.Wish)]
        if not wishes:
            return MissingRequests()
        turn = int(handed.slot.tail[1])
        slots = [thread.wish(turn, index).requested for index in range(len(wishes))]
        facts = await ledger.read(thread.opened, handed.slot, *slots, must_include=handed.slot)
        return replied(facts, handed, wishes)

    async def _after_policy(self, ledger: Ledger, handed: Fact) -> MootCalls:
        """The approved calls that nothing has started, if a policy of this owner blocks any."""
        owner = handed.slot.workspace
        policies = await ledger.policies(owner)
        own = policies.organisation if owner == ORGANISATION else policies.workspace
        if all(rule.then != "block" for rule in own.policy.rules):
            return MootCalls(())
        workspace = "" if owner == ORGANISATION else owner
        waiting = await self._unstarted.before(ledger, handed, workspace)
        return await _each_since_approved(ledger, waiting, handed)

    async def _message(self, ledger: Ledger, handed: Fact, said: e.Said) -> MootCalls:
        """Sends one request if no open question can be superseded, and none if no user spoke."""
        if said.role != "user":
            return MootCalls(())
        waiting = await ledger.open_questions(handed.slot.thread_ref, must_include=handed.slot)
        return MootCalls(
            tuple([await self._asked(ledger, call, handed) for call in waiting if _yields(call)])
        )

    async def _asked(self, ledger: Ledger, call: Call, handed: Delivered) -> Case:
        """The case of an open question, with the user's next message if that supersedes it."""
        newer = None
        if _yields(call):
            assert call.gated
            facts = await ledger.read(
                call.ref, *_supersession_subjects(call.ref), must_include=_later(call.gated, handed)
            )
            call = call_of(call.ref, facts)
            call = attributed(call, origin(call, facts)) if call.requested is not None else call
            newer = said_since(call.ref, facts)
        case = Case(call, _NOTHING, None, newer)
        if call.requested is None:
            return case
        if (stage := call.next_stage) is not None and any(map(is_open, stage.voters)):
            assert call.gated
            at = handed.recorded_at if isinstance(handed, Fact) else await ledger.log.clock()
            latest = _later(call.gated, handed)
            duty = on_call_to_read(stage.voters, at)
            on_call = await ledger.read(*duty, latest, must_include=latest)
            call = replace(call, people=people_of(on_call))
            case = replace(case, call=call, on_call=on_call)
        if call.approval_request is not None and call.approval_request.chain:
            opened = next(iter(await ledger.read(call.ref.thread_ref.opened)), None)
            case = replace(case, origin=await ledger.with_chain(Origin(opened)))
        if not call.votes or case.origin.chain.over:
            return case
        # An edit and an approval are judged again by the policies in force by then.
        workspace = call.ref.workspace
        policies, tool = await ledger.policies(workspace), await ledger.tool_of(call)
        call = await ledger.with_class(call, policies, tool)
        case = replace(case, call=call, policies=policies, tool=tool)
        assert call.gated
        latest = _later(max(call.gated, call.votes[-1], key=attrgetter("seq")), handed)
        case = await _with_budgets(ledger, case, latest)
        # A removal, or a delegation, was recorded before the vote that it is about.
        rests_on = (grants(workspace), delegations(workspace))
        subjects = rests_on if any(map(_needs_grants, call.votes)) else ()
        given = await ledger.read(*subjects, *votes_rest_on(call), latest, must_include=latest)
        call = replace(call, people=people_of(given))
        call = await ledger.with_signatures(call, ledger.trust or NOBODY, must_include=latest)
        return replace(case, call=call, grants=grants_of(given), delegations=delegations_of(given))


async def _stopping(ledger: Ledger, handed: Fact) -> Stopping | None:
    """The stop that a fact is about, by the policies and people of now."""
    slot = handed.slot
    ref = StopRef(slot.workspace, *slot.tail[1:3])
    facts = await ledger.read(ref, must_include=slot)
    if not (found := stops_of(facts)):
        return None
    policies = await ledger.policies(slot.workspace)
    facts = await ledger.read(*people_to_read(policies, found[0]), slot, must_include=slot)
    return Stopping(found[0], ending(found[0], policies, people_of(facts)))


async def _after_revocation(ledger: Ledger, handed: Fact) -> MootCalls:
    """The calls that used a grant which was revoked."""
    slot = handed.slot
    facts = await ledger.read(GrantRef(slot.workspace, *slot.tail[1:3]), must_include=slot)
    used = [fact.event.call for fact in facts if isinstance(fact.event, e.GrantUsed)]
    return await _each_since_approved(ledger, map(CallRef.parse, used), handed)


async def _each_since_approved(ledger: Ledger, refs: Iterable[CallRef], handed: Fact) -> MootCalls:
    cases: list[Case] = []
    for ref in refs:
        facts = await ledger.read(ref, *origin_slots(ref), handed.slot, must_include=handed.slot)
        if (call := call_of(ref, facts)).status is Status.APPROVED:
            cases.append(await _since_approved(ledger, call, facts))
    return MootCalls(tuple(cases))


async def _since_approved(ledger: Ledger, call: Call, facts: Sequence[Fact]) -> Case:
    """The case of a decided call: with the policies and grants of now if it could still start."""
    if call.status is not Status.APPROVED:
        return Case(call, _NOTHING, None)
    policies, whence = await ledger.policies(call.ref.workspace), origin(call, facts)
    case = Case(attributed(call, whence), policies, None)
    if policies.speak_of_classes:
        above = await ledger.with_classes((await ledger.with_chain(whence)).chain, policies)
        case = replace(case, call=classed(case.call, await ledger.tool_of(call), above))
    if not call.approval.grants:
        return case
    decided = call.ref.decided
    given = await ledger.read(grants(decided.workspace), REMOVALS, decided, must_include=decided)
    return replace(case, grants=grants_of(given))


async def _unrecorded_usage(
    ledger: Ledger, handed: Fact, reply: e.ModelReplied
) -> tuple[Append, ...]:
    """The usage of a reply that is not yet recorded in the series of budgets."""
    if reply.usage == e.Usage():
        return ()
    thread = handed.slot.thread_ref
    policies = await ledger.policies(thread.workspace)
    if not usage_of(policies, handed, None):
        return ()
    facts = await ledger.read(thread.opened, handed.slot, must_include=handed.slot)
    opened = next((one.event for one in facts if isinstance(one.event, e.ThreadOpened)), None)
    sums = usage_of(policies, handed, opened)
    series = await ledger.read(
        *(one.ref.subjects for one, _ in sums), handed.slot, must_include=handed.slot
    )
    known = ((filled(one, series), used) for one, used in sums)
    return tuple(Append(one.next_slot, used) for one, used in known if not one.has(used.call))


async def _below(ledger: Ledger, call: Call, withdrawn: Fact) -> MootCalls:
    """The open calls below one that was withdrawn while it ran, to any depth.

    A call below that is not requested yet is judged with the withdrawal above it.
    """
    cases: list[Case] = []
    above = [call.ref]
    while above:
        ref = above.pop()
        thread = ref.below
        calls = f"{ROOT}.{thread.workspace}.{thread.thread}.call.>"
        facts = await ledger.read(thread.opened, calls, withdrawn.slot, must_include=withdrawn.slot)
        opened = next((fact for fact in facts if fact.slot == thread.opened), None)
        if not is_below(ref, opened):
            continue
        over = Origin(opened, chain=Chain(over=withdrawn_above(call.ref)))
        for found in thread_of(thread, facts).calls.values():
            if found.requested is not None and found.decided is None:
                cases.append(Case(found, _NOTHING, None, origin=over))
            elif found.starts:
                above.append(found.ref)
    return MootCalls(tuple(cases))


_NOTHING: Final = Policies()


def replied(facts: Sequence[Fact], reply: Fact, wishes: Sequence[e.Wish]) -> MissingRequests:
    """The wishes of a reply that are still to be requested.

    Args:
        facts: the opening of the thread, and the facts in the slots of the wishes.
    """
    ref, turn = reply.slot.thread_ref, int(reply.slot.tail[1])
    opened = next((fact.event for fact in facts if fact.slot == ref.opened), None)
    if not isinstance(opened, e.ThreadOpened) or not opened.model:
        return MissingRequests()  # a service that runs its own loop requests for itself
    taken = {fact.slot for fact in facts}
    calls = ((ref.wish(turn, index), wished(opened, wish)) for index, wish in enumerate(wishes))
    return MissingRequests(
        tuple((call, wish) for call, wish in calls if call.requested not in taken)
    )


async def _with_past(ledger: Ledger, case: Case) -> Case:
    """Adds the past of its thread to the case, as far as the policies need it."""
    ref = case.call.ref
    limited = any(
        case.policies.limit(name) is not None
        for name in ("calls_per_thread", "questions_per_thread")
    )
    places = ("requested", "gated", "decided") if limited else ("decided",)
    facts = await _of_thread(ledger, ref, *places)
    denied = [
        fact for fact in facts if isinstance(fact.event, e.Denied) and fact.event.ground == "people"
    ]
    if denied and not limited:
        facts = await _of_thread(ledger, ref, "requested", "decided")
    usage = thread_usage(case.call, facts)
    if usage.denied is not None:  # only then does it matter whether the user has spoken since
        said = await ledger.read(f"{ROOT}.{ref.workspace}.{ref.thread}.said.*")
        usage = thread_usage(case.call, sorted((*facts, *said), key=attrgetter("seq")))
    given = await ledger.with_signed(grants_of(facts), must_include=ref.requested)
    return replace(case, past=usage, grants=given)


async def _with_budgets(ledger: Ledger, case: Case, latest: Slot) -> Case:
    """Adds the sums of the budgets that cover the call."""
    call = case.call
    if case.by_policies is not None and isinstance(case.by_policies.says, e.Denied):
        return case
    if call.withdrawn is not None or not (sums := sums_of(case.policies, call)):
        return case
    return replace(case, budgets=await ledger.with_usage(sums, call, must_include=latest))


async def _of_thread(ledger: Ledger, ref: CallRef, *places: str) -> tuple[Fact, ...]:
    """The facts in these places of a thread's calls, the wish, the grants, and the removals."""
    calls = [f"{ROOT}.{ref.workspace}.{ref.thread}.call.*.{place}" for place in places]
    return await ledger.read(
        *calls, ref.requested, grants(ref.workspace), REMOVALS, must_include=ref.requested
    )


def _depends_on_past(case: Case) -> bool:
    """Whether people would be asked, or the number of calls per thread is limited."""
    assert case.call.requested
    if case.call.withdrawn is not None:
        return False
    if case.policies.limit("calls_per_thread") is not None:
        return True
    if case.by_policies is None or isinstance(case.by_policies.says, e.Denied):
        return False
    return isinstance(case.by_policies.says, e.ApprovalRequested) or bool(beyond(case))


def _depends_on_siblings(case: Case) -> bool:
    """Whether people would be asked, unless an earlier wish of the thread that is not judged yet
    becomes the last question.
    """
    assert case.call.requested
    assert case.past
    most = case.policies.limit("questions_per_thread")
    if most is None or case.past.questions + case.past.unjudged < most:
        return False
    return isinstance(verdict(case, case.call.requested.recorded_at), e.ApprovalRequested)


def _needs_grants(vote: Fact) -> bool:
    """Whether this vote rests on a delegation, or could revoke a grant."""
    return isinstance(vote.event, e.Voted) and bool(
        vote.event.verdict == "deny" or vote.event.on_behalf_of
    )


def _steps(case: Case, handed: Delivered) -> Sequence[Effect[Never]]:
    call = case.call
    now = case.now or handed.recorded_at
    # On the clock that fires timers.
    ahead = max(handed.recorded_at - now, timedelta())
    if call.requested is None:  # a vote or withdrawal came first; the request is delivered later
        return ()
    if call.decided is not None:
        return _since_decided(case, now, ahead)
    decided = decision(case, now)
    if isinstance(decided, e.Approved) and (stop := call.stop(now)) is not None:
        return [SetTimer(call.ref, _looked_at(call, stop, now) + ahead)]
    if isinstance(decided, e.Approved) and (uses := _budget_uses(case, decided)):
        return [*uses, Reload()]
    match decided:
        case None:
            # Also on redelivery: a crash may have come between the question and its timer.
            return [SetTimer(call.ref, call.due + ahead)] if call.due is not None else ()
        case e.ApprovalRequested():
            # The deadline counts from when the broker recorded the question, and a message may have
            # come before it.
            ends = decided.expires_in_s is not None or call.awaited_until is not None
            again = ends or decided.while_pending == "supersede"
            return [Append(call.ref.gated, decided), *((Reload(),) if again else ())]
        case e.Escalated():
            return [Append(call.ref.escalated(len(call.escalated) + 1), decided), Reload()]
        case e.Approved(ground="grant") if spending := _spending(case, decided):
            return [*spending, Reload()]
        case e.Approved(ground="broken_glass"):
            announcement = e.GlassBroken(reviewer=decided.voters[0], reason=decided.reason)
            announced = () if call.announced else (Append(call.ref.announced, announcement),)
            return [*announced, *_decided(call, decided)]
        case e.Denied(ground="people"):
            return [*_beaten(case, decided), *_decided(call, decided)]
        case _:
            return _decided(call, decided)


def _looked_at(call: Call, stop: Stop, now: datetime) -> datetime:
    """When a call is judged again whose approval waits until a stop ends."""
    waited = now - stop.given.recorded_at
    soon = now + min(max(waited / 4, _LOOK_AFTER), _LOOK_AGAIN)
    due = call.due if call.due is not None and call.due > now else None
    return min(filter(None, (soon, stop.ends_at, due)))


def _decided(call: Call, decided: e.Event) -> Sequence[Effect[Never]]:
    """Record a decision. An approval is looked at again: its validity counts from when the broker
    recorded it, and a policy or a revocation may have come just before.
    """
    is_yes = isinstance(decided, e.Approved)
    return [Append(call.ref.decided, decided), *((Reload(),) if is_yes else _cancelled(call))]


def _since_decided(case: Case, now: datetime, ahead: timedelta) -> Sequence[Effect[Never]]:
    """The steps for a decided call: an approval may lapse, or has a time."""
    call = case.call
    if call.status is not Status.APPROVED:
        return _cancelled(call)
    if (lapsed := lapse(case, now)) is not None:
        return [Append(call.ref.lapsed, lapsed)]
    if (until := call.valid_until) is not None:  # also on redelivery, as for the question's timer
        return [SetTimer(call.ref, until + ahead)]
    return _cancelled(call)


def _budget_uses(case: Case, approved: e.Approved) -> Sequence[Append]:
    """The amounts to record in the series of budgets before this approval."""
    ref, arguments = case.call.ref, running(case.call, approved)
    uses = ((one.next_slot, one.use(ref, arguments)) for one in case.budgets)
    return [Append(slot, use) for slot, use in uses if use is not None]


def _spending(case: Case, approved: e.Approved) -> Sequence[Append]:
    """The uses that must still be taken before these grants let the call run."""
    call = case.call
    return [
        Append(grant.ref.used(len(grant.used) + 1), e.GrantUsed(call=str(call.ref)))
        for grant in case.grants
        if f"{grant.ref.giver}/{grant.ref.name}" in approved.grants and not grant.used_by(call)
    ]


def _beaten(case: Case, denied: e.Denied) -> Sequence[Append]:
    """The grants that would have covered the denied call: a later no overrides an earlier yes."""
    denied_call, call = about(case.call, case.call.wish.arguments), str(case.call.ref)
    at = max((vote.recorded_at for vote in case.call.votes), default=None)
    beaten = covering(case.grants, denied_call, at) if at is not None else ()
    return [
        Append(grant.ref.revoked, e.GrantRevoked(reason=denied.reason, call=call))
        for grant in beaten
    ]


def _yields(call: Call) -> bool:
    """Whether a user's message makes this call moot."""
    return call.approval_request is not None and call.approval_request.while_pending == "supersede"


def _later(known: Fact, handed: Delivered) -> Slot:
    """The slot of the later fact: a replica that has it has all facts before it. (A timer is in
    another stream.)
    """
    return handed.slot if isinstance(handed, Fact) and handed.seq > known.seq else known.slot


def _supersession_subjects(ref: CallRef) -> tuple[str, ...]:
    """The subjects of a call's origin, and of all messages of its thread."""
    said = f"{ROOT}.{ref.workspace}.{ref.thread}.said.*"
    return (said, *(slot.subject for slot in origin_slots(ref)))


def said_since(ref: CallRef, facts: Sequence[Fact]) -> Fact | None:
    """The first user message after the wish for this call, among facts in the order of the log."""
    wished = (fact.seq for fact in facts if fact.slot in (ref.requested, reply_slot(ref)))
    since = min(wished, default=None)
    said = (fact for fact in facts if isinstance(fact.event, e.Said) and fact.event.role == "user")
    return next((fact for fact in said if since is not None and fact.seq > since), None)


def _cancelled(call: Call) -> Sequence[CancelTimer]:
    return [CancelTimer(call.ref)] if call.due is not None else ()


def _call(handed: Delivered) -> CallRef:
    if isinstance(handed, TimerFired):
        return handed.call
    ref = handed.slot.call_ref
    assert ref, "the gate receives facts about calls only"
    return ref
