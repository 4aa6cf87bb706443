"""Who is told what about a call, when, and through which channels. Pure.

    asked, escalated, reminder   people who can still help by voting, or a delegate of theirs
    handed                       the colleague to whom it was handed, or a delegate of theirs, if
                                 they can still help
    decided, expired             the requester; those who were asked and did not vote, if the route
                                 says so. Only of calls that people were asked about.
    broken-glass                 everybody who was asked, except the one who broke it
    in-doubt                     people who may reconcile
    void                         the requester and everybody who was asked: a start or result of
                                 their call counts for nothing
    signed                       the voter: what their key has just signed, whatever a page showed

That a key was confirmed is about no call. Its person is told, and if it comes in the place of lost
ones, also those who have confirmed it and the organisation's room `default`.

Only people in [contacts] are told, and only of their workspaces; patterns of voters are matched
with them. A person without a
contact hears of a question through the room `default`, and so does the site if nobody at all is
told. Which route counts, and when a notice is due, rests on the policies in force when the fact was
recorded: so every worker answers the same. Addresses are the newest.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ayes.ledger.call import Call
from ayes.ledger.judging.grants import Delegation
from ayes.ledger.judging.policies import Policies
from ayes.ledger.judging.votes import can_help
from ayes.ledger.keys import PersonKey
from ayes.ledger.lifecycle import Status
from ayes.ledger.objections import may_reconcile
from ayes.ledger.validity import void_runs
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.people import is_excluded, person, plain
from ayes.schemas.policy import Policy
from ayes.schemas.quorums import is_plain
from ayes.schemas.routes import DEFAULT_ROOM, Route
from ayes.schemas.slots import ORGANISATION, Slot
from ayes.schemas.times import after, earliest

#: News of what has ended is not told any more after this time, as when a notifier first starts.
MAX_LATE_S: Final = 86_400.0


class Recipient(NamedTuple):
    """A person or room, and how they are reached."""

    to: str
    #: `channel:address`, in order of preference.
    contacts: tuple[str, ...]
    is_room: bool = False


class Notification(Struct, frozen=True):
    """A notice for one person or room, not sent yet."""

    recipient: Recipient
    occasion: e.Occasion
    #: Which of several escalations or reminders; 0: the question itself.
    stage: int
    due: datetime
    #: Whether it is told together with others that are due at the same time.
    in_digest: bool = False

    def slot(self, call: Call) -> Slot:
        """The slot that says that it was sent."""
        key = f"{self.occasion}-{self.stage}" if self.stage else self.occasion
        told = call.ref.room_notified if self.recipient.is_room else call.ref.notified
        return told(self.recipient.to, key)


class _Occasion(NamedTuple):
    kind: e.Occasion
    stage: int
    at: datetime
    #: When the stage of the question ends.
    deadline: datetime | None
    #: Whose vote it is.
    voter: str = ""


class Situation(Struct, frozen=True):
    """A call, and what says who can help with it now."""

    #: With requester, agent and labels of its thread, and with the people (`with_given`).
    call: Call
    #: Those in force now.
    policies: Policies
    #: On the broker's clock.
    now: datetime
    delegations: tuple[Delegation, ...] = ()

    @property
    def accounts(self) -> dict[str, str]:
        """By account, its person; the organisation's word counts."""
        policies = self.policies
        return policies.workspace.policy.persons | policies.organisation.policy.persons

    def can_help(self, name: str) -> bool:
        """Whether they could vote in the name of their contact, or in another name of theirs."""
        accounts = self.accounts
        who = person(name, accounts)
        own = [account for account, whose in accounts.items() if whose == who]
        return any(can_help(self.call, one, self.now, self.delegations) for one in (name, *own))

    def in_whose_place(self, name: str) -> tuple[str, ...]:
        """They themselves, and those in whose place they may vote."""
        tool = self.call.wish.tool
        given = (one for one in self.delegations if one.holds(name, tool, self.now))
        return (name, *(one.ref.giver for one in given))

    def persons(self, names: Iterable[str]) -> set[str]:
        return {person(one, self.accounts) for one in names}

    def is_theirs(self, name: str) -> bool:
        """Whether they were not removed, and the workspace is theirs."""
        people, where = self.call.people, self.call.ref.workspace
        who = (name, person(name, self.accounts))
        return all(people.bar(one, where) is None for one in who)

    def is_requester(self, name: str) -> bool:
        requester, accounts = self.call.wish.requester, self.accounts
        return bool(requester) and person(requester, accounts) == person(name, accounts)


def messages(seen: Situation, fact: Fact, then: Policies) -> tuple[Notification, ...]:
    """The notices that follow from a fact and are still needed, sent ones left out.

    Args:
        then: the policies in force when the fact was recorded.
    """
    call = seen.call
    if call.requested is None:
        return ()
    found: list[Notification] = []
    for occasion in _occasions(call, fact, then):
        route, rooms = _route(call, then, seen.policies)
        if occasion.kind not in route.on:
            continue
        due, in_digest = _due(occasion, route)
        if occasion.kind in _NEWS and (seen.now - due).total_seconds() > MAX_LATE_S:
            continue
        told = _people(seen, occasion, route) if route.people or occasion.voter else []
        rooms_told = [
            Recipient(room, (rooms[room],), is_room=True) for room in route.rooms if room in rooms
        ]
        if occasion.kind == "signed":
            rooms_told = []
        elif route.people and occasion.kind not in ("decided", "expired"):
            is_handed = occasion.kind == "handed"
            needed = _handed_to(call, occasion.stage) if is_handed else call.voters()
            rooms_told += _default_room(seen, needed, told, rooms_told)
        found += [
            Notification(one, occasion.kind, occasion.stage, due, in_digest)
            for one in (*told, *rooms_told)
        ]
    return tuple(one for one in found if is_needed(seen, one))


def is_needed(seen: Situation, message: Notification) -> bool:
    """Whether something is still needed of the reader, or they still want to know; asked again at
    the moment of sending.
    """
    call = seen.call
    if call.fact_at(message.slot(call)) is not None:
        return False
    match message.occasion:
        case "asked" | "escalated" | "handed" | "reminder":
            if call.status is not Status.PENDING or call.withdrawn is not None:
                return False
            if call.deadline is not None and seen.now >= call.deadline:
                return False
            if message.occasion == "reminder" and len(call.escalated) != message.stage:
                return False
            if message.occasion == "handed" and not any(
                map(seen.can_help, _handed_to(call, message.stage))
            ):
                return False
            if _was_reminded(call, message):
                return False
            return message.recipient.is_room or seen.can_help(message.recipient.to)
        case "in-doubt":
            return call.status is Status.IN_DOUBT and (
                message.recipient.is_room or may_reconcile(call, message.recipient.to)
            )
        case "decided" | "expired" | "broken-glass" | "void" | "signed":
            return True


#: What has ended, and needs nothing of anybody.
_NEWS: Final = frozenset({"decided", "expired", "broken-glass", "void", "signed"})
QUESTIONS: Final = frozenset({"asked", "escalated", "handed", "reminder"})


def _occasions(call: Call, fact: Fact, then: Policies) -> Iterator[_Occasion]:
    """What a fact is an occasion for; mostly nothing if people were not asked."""
    event, at = fact.event, fact.recorded_at
    match event:
        case e.ApprovalRequested() | e.Escalated():
            stage = int(fact.slot.tail[-1]) if isinstance(event, e.Escalated) else 0
            deadline = _deadline(call, event, at)
            yield _Occasion("escalated" if stage else "asked", stage, at, deadline)
            before_s = _route(call, then, then)[0].remind_before_s
            if deadline is not None and before_s is not None:
                remind = deadline - timedelta(seconds=before_s)
                if remind > at:  # otherwise the question itself comes as late
                    yield _Occasion("reminder", stage, remind, deadline)
        case e.HandedOver() if call.gated is not None and fact in call.handed:
            before = tuple(one for one in call.escalated if one.seq < fact.seq)
            deadline = replace(call, escalated=before).due
            yield _Occasion("handed", call.handed.index(fact) + 1, at, deadline)
        case e.Voted(signature=signature) if signature and fact in call.votes:
            # Of each person there is one vote on a call.
            yield _Occasion("signed", 0, at, None, fact.slot.tail[3])
        case e.GlassBroken():
            yield _Occasion("broken-glass", 0, at, None)
        case e.InDoubt() if fact == call.finished:
            yield _Occasion("in-doubt", 0, at, None)
        case _ if [fact] == [one.fact for one in void_runs(call)[:1]]:
            yield _Occasion("void", 0, at, None)
        case e.Expired() if call.gated is not None:
            yield _Occasion("expired", 0, at, None)
        case _ if fact == call.decided and call.gated is not None:
            yield _Occasion("decided", 0, at, None)
        case _:
            pass


def _deadline(
    call: Call, event: e.ApprovalRequested | e.Escalated, at: datetime
) -> datetime | None:
    asking = call.approval_request
    after_s = event.expires_in_s if asking and asking.on_timeout != "stay" else None
    return earliest(after(at, after_s), call.awaited_until)


def _route(call: Call, then: Policies, now: Policies) -> tuple[Route, Mapping[str, str]]:
    """The first route that matches, the workspace's before the organisation's; and its rooms."""
    asking = call.approval_request
    decided = call.decided.event if call.decided else None
    rule = asking.rule if asking else str(getattr(decided, "rule", ""))
    for policy, newest in (
        (then.workspace.policy, now.workspace.policy),
        (then.organisation.policy, now.organisation.policy),
    ):
        for route in policy.routes:
            if route.fits(call.ref.workspace, rule, call.wish):
                return route, newest.rooms
    return Route(), {}


def _due(occasion: _Occasion, route: Route) -> tuple[datetime, bool]:
    """When it is told, and whether in a digest. What cannot wait is told at once."""
    due = route.due(occasion.at)
    if occasion.kind in ("broken-glass", "void", "signed") or (
        occasion.deadline is not None and occasion.deadline <= due
    ):
        return occasion.at, False
    return due, route.digest_s is not None and due > occasion.at


def _people(seen: Situation, occasion: _Occasion, route: Route) -> list[Recipient]:
    """The people who are told, with those of their contacts that the route allows."""
    found: list[Recipient] = []
    for name, contacts in _contacts(seen).items():
        usable = tuple(
            one for one in contacts if not route.via or one.partition(":")[0] in route.via
        )
        if usable and seen.is_theirs(name) and _is_told(seen, occasion, route, name):
            found.append(Recipient(name, usable))
    return found


def _is_told(seen: Situation, occasion: _Occasion, route: Route, name: str) -> bool:
    call = seen.call
    match occasion.kind:
        case "asked":  # who was added later hears of the escalation
            return replace(seen, call=replace(call, escalated=())).can_help(name)
        case "reminder":
            return seen.can_help(name)
        case "escalated":
            voters, names = _voters_of(call, occasion.stage), seen.in_whose_place(name)
            is_new = any(call.people.is_among(one, voters, seen.now) for one in names)
            return is_new and seen.can_help(name)
        case "handed":
            handed_to = seen.persons(_handed_to(call, occasion.stage))
            return bool(handed_to & seen.persons(seen.in_whose_place(name))) and seen.can_help(name)
        case "decided" | "expired":
            return ("requester" in route.outcome_to and seen.is_requester(name)) or (
                "asked" in route.outcome_to and name in _asked_without_vote(call)
            )
        case "broken-glass":
            return _hears_of_glass(seen, name)
        case "in-doubt":
            return may_reconcile(call, name)
        case "signed":
            return person(name, seen.accounts) == person(occasion.voter, seen.accounts)
        case "void":
            return seen.is_requester(name) or call.people.is_among(name, call.voters(), seen.now)


def _voters_of(call: Call, stage: int) -> tuple[str, ...]:
    """The people whom an escalation added."""
    slot = call.ref.escalated(stage)
    found = next((fact.event for fact in call.escalated if fact.slot == slot), None)
    return found.voters if isinstance(found, e.Escalated) else ()


def _handed_to(call: Call, number: int) -> list[str]:
    """To whom it was handed with this number in the order of the log; nobody until that is read."""
    each = [fact.event for fact in call.handed[number - 1 : number]]
    return [one.to for one in each if isinstance(one, e.HandedOver)]


def _contacts(seen: Situation) -> dict[str, tuple[str, ...]]:
    """By person. If both policies have one, the organisation's counts; each person once."""
    found: dict[str, tuple[str, ...]] = {}
    known: set[str] = set()
    for policy in (seen.policies.organisation.policy, seen.policies.workspace.policy):
        for name, contacts in policy.contacts.items():
            if (who := person(name, seen.accounts)) not in known:
                known.add(who)
                found[name] = contacts
    return found


def _asked_without_vote(call: Call) -> set[str]:
    """The people who were told of the question and have not voted."""
    voted = {plain(fact.slot.tail[3]) for fact in call.votes}
    return {name for name, _ in asked_by(call) if plain(name) not in voted}


def asked_by(call: Call) -> set[tuple[str, str]]:
    """The people who were told of the question, each with a channel that told them."""
    asked: set[tuple[str, str]] = set()
    for fact in call.notified:
        match fact.slot.tail, fact.event:
            case (_, _, _, to, occasion), e.Notified(channel=channel):
                if occasion.partition("-")[0] in QUESTIONS:
                    asked.add((to, channel))
            case _:
                pass
    return asked


def _hears_of_glass(seen: Situation, name: str) -> bool:
    call = seen.call
    asking = call.approval_request
    broken = call.announced.event if call.announced else None
    if asking is None or not isinstance(broken, e.GlassBroken):
        return False
    is_breaker = person(name, asking.people) == person(broken.reviewer, asking.people)
    asked = call.people.is_among(name, (*call.voters(), *asking.may_break_glass), seen.now)
    return asked and not is_breaker and not is_excluded(name, asking.excluded, asking.people)


def _default_room(
    seen: Situation,
    needed: Iterable[str],
    told: Collection[Recipient],
    rooms: Iterable[Recipient],
) -> list[Recipient]:
    """The default room, if somebody who is needed has no contact, or nobody is told."""
    place = seen.policies.workspace.policy.rooms.get(DEFAULT_ROOM)
    place = place or seen.policies.organisation.policy.rooms.get(DEFAULT_ROOM)
    if place is None or any(one.to == DEFAULT_ROOM for one in rooms):
        return []
    accounts = seen.accounts
    reached = {person(one.to, accounts) for one in told}
    missed = [
        one
        for one in needed
        if is_plain(one)
        and person(one, accounts) not in reached
        and can_help(seen.call, one, seen.now, seen.delegations)
    ]
    is_told = bool(missed) or not told
    return [Recipient(DEFAULT_ROOM, (place,), is_room=True)] if is_told else []


def _was_reminded(call: Call, message: Notification) -> bool:
    """Whether a question that waited for a digest or quiet hours came after its own reminder."""
    if message.occasion in ("reminder", "handed"):
        return False
    reminder = replace(message, occasion="reminder")
    return call.fact_at(reminder.slot(call)) is not None


def told_of_key(key: PersonKey, policies: Mapping[str, Policy]) -> tuple[Recipient, ...]:
    """Who is told that a key was confirmed.

    Args:
        policies: those in force, by workspace.
    """
    found, organisation = dict[tuple[str, ...], Recipient](), policies.get(ORGANISATION, Policy())
    for policy in policies.values():
        accounts = policy.persons | organisation.persons
        whose = {person(one, accounts) for one in (key.person, *key.others)}
        for name, contacts in policy.contacts.items():
            if person(name, accounts) in whose:
                found[contacts] = Recipient(name, contacts)
    if key.others and (place := organisation.rooms.get(DEFAULT_ROOM)) is not None:
        found[(place,)] = Recipient(DEFAULT_ROOM, (place,), is_room=True)
    return tuple(found.values())


def nobody(policies: Policies) -> bool:
    """Whether the policies name nobody who could be told."""
    both = (policies.workspace.policy, policies.organisation.policy)
    return not any(policy.contacts or policy.rooms for policy in both)
