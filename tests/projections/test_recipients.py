"""Who is told what, when and through which channel: tables of policies, stories and messages."""

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace
from stories import REF, START, Story, question, request

from ayes.ledger.call import Call
from ayes.ledger.judging.grants import delegations_of
from ayes.ledger.judging.policies import AppliedPolicy, Policies
from ayes.ledger.people import People, people_of
from ayes.ledger.validity import call_of
from ayes.projections.recipients import (
    MAX_LATE_S,
    Notification,
    Recipient,
    Situation,
    is_needed,
    messages,
)
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadFile
from ayes.schemas.events import Quorum, Stage
from ayes.schemas.policy import read_policy
from ayes.schemas.routes import Quiet
from ayes.schemas.slots import MOST_SAID, DelegationRef, person_slot

CALL = REF.wish(1, 0)
WISH = e.Wish(tool="refund", arguments='{"order":"A-17"}')
CONTACTS = """
[contacts]
ana = ["mail:ana@example.org", "push:ana"]
ben = ["push:ben"]
olga = ["mail:olga@example.org"]
rita = ["mail:rita@example.org"]
"""
ROOMS = '[rooms]\nops = "chat:C1"\n'
DEFAULT = '[rooms]\ndefault = "chat:C0"\n'
SOON = timedelta(seconds=30)


def policies(text: str = "", organisation: str = "") -> Policies:
    return Policies(
        AppliedPolicy(1, read_policy(text, "p")),
        AppliedPolicy(1, read_policy(organisation, "o"), organisation=True),
    )


class Told(Story):
    """A call that people were asked about, and what was recorded then."""

    def __init__(self, *, at: datetime = START, **asking: object) -> None:
        super().__init__()
        self.begins, self.people = at, People()
        wish = replace(request(WISH), agent="desk-1", labels={"channel": "chat"})
        self.put(CALL.requested, wish)
        self.put(CALL.gated, replace(question(WISH), **{"voters": ("ana", "ben")} | asking))

    def put(self, slot, event) -> Fact:
        fact = self.tell(slot, event)
        self.facts[-1] = replace(fact, recorded_at=self.begins + timedelta(seconds=fact.seq))
        return self.facts[-1]

    def vote(self, who: str, verdict: str = "approve", **more: object) -> "Told":
        digest = request(WISH).digest
        self.put(CALL.vote(who), e.Voted(verdict=verdict, digest=digest, **more))
        return self

    def decide(self, event: e.Event) -> "Told":
        self.put(CALL.decided, event)
        return self

    def of_hr(self, *names: str) -> "Told":
        """These people are of another workspace."""
        one = e.PersonAdded(workspaces=("hr",))
        self.people = people_of(Fact(0, START, person_slot(name, 1), one) for name in names)
        return self

    @property
    def call(self) -> Call:
        return replace(call_of(CALL, self.facts), people=self.people)

    def found(
        self, text: str, organisation: str = "", *, of: int = -1, after=SOON, given=()
    ) -> tuple[Notification, ...]:
        """The messages that follow from one of its facts, the last by default."""
        found = policies(text, organisation)
        fact = self.facts[of]
        return messages(Situation(self.call, found, fact.recorded_at + after, given), fact, found)


def brief(found: tuple[Notification, ...]) -> set[str]:
    """`ana asked mail`: who, on which occasion, through which channel first; rooms with a #."""
    return {
        f"{'#' if one.recipient.is_room else ''}{one.recipient.to} {one.occasion}{one.stage or ''} "
        f"{one.recipient.contacts[0].partition(':')[0]}"
        for one in found
    }


BOTH = {"ana asked mail", "ben asked push"}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("", set()),  # nobody has a contact
        (CONTACTS, BOTH),  # without a route: those who can vote
        (f"{CONTACTS}[[notify]]", BOTH),
        (f'{CONTACTS}{ROOMS}[[notify]]\nrooms = ["ops"]', {*BOTH, "#ops asked chat"}),
        (f'{CONTACTS}{ROOMS}[[notify]]\nrooms=["ops"]\npeople=false', {"#ops asked chat"}),
        (f'{CONTACTS}[[notify]]\non = ["decided"]', set()),
        (f"{CONTACTS}[[notify]]\non = []", set()),
        # The first route that matches counts.
        (f"{CONTACTS}[[notify]]\non = []\n[[notify]]", set()),
        (f'{CONTACTS}[[notify]]\nrules = ["other"]\non = []', BOTH),
        (f'{CONTACTS}[[notify]]\nrules = ["mon*"]\non = []', set()),
        (f'{CONTACTS}[[notify]]\ntools = ["ref*"]\non = []', set()),
        (f'{CONTACTS}[[notify]]\ntools = ["book"]\non = []', BOTH),
        (f'{CONTACTS}[[notify]]\nworkspaces = ["acme"]\non = []', set()),
        (f'{CONTACTS}[[notify]]\nworkspaces = ["shop"]\non = []', BOTH),
        (f'{CONTACTS}[[notify]]\nagents = ["desk-*"]\non = []', set()),
        (f'{CONTACTS}[[notify]]\nagents = ["crm"]\non = []', BOTH),
        (f'{CONTACTS}[[notify]]\nlabels = {{channel = "ch*"}}\non = []', set()),
        (f'{CONTACTS}[[notify]]\nlabels = {{channel = "mail"}}\non = []', BOTH),
        (f'{CONTACTS}[[notify]]\nlabels = {{tier = "*"}}\non = []', BOTH),
        # Through which channel.
        (f'{CONTACTS}[[notify]]\nvia = ["push"]', {"ana asked push", "ben asked push"}),
        (f'{CONTACTS}[[notify]]\nvia = ["mail"]', {"ana asked mail"}),
        # Ben's contact is not one that the route allows, so the default room hears of it.
        (
            f'{CONTACTS}{DEFAULT}[[notify]]\nvia = ["mail"]',
            {"ana asked mail", "#default asked chat"},
        ),
        (f"{CONTACTS}{DEFAULT}", BOTH),
        (DEFAULT, {"#default asked chat"}),
        ('[contacts]\nana = ["mail:a@b"]\n' + DEFAULT, {"ana asked mail", "#default asked chat"}),
    ],
)  # fmt: skip
def test_a_route_says_who_is_told_through_what(policy, expected):
    """By rule, tool, workspace, agent and label, the first route that matches; with a default."""
    assert brief(Told().found(policy)) == expected


@pytest.mark.parametrize(
    ("asking", "expected"),
    [
        ({"voters": ("*",)}, {"ana", "ben", "olga"}),  # rita asked for the call
        ({"voters": ("an*",)}, {"ana"}),
        ({"voters": ("ana",), "also": (Quorum(("olga",)),)}, {"ana", "olga"}),
        ({"voters": ("ana",), "besides": (Quorum(("ben",)),)}, {"ana", "ben"}),
        ({"voters": ("*",), "excluded": ("rita", "olga")}, {"ana", "ben"}),
        # Rita and olga may confirm it themselves.
        (
            {"voters": ("*",), "excluded": (), "own": ("rita", "olga")},
            {"ana", "ben", "olga", "rita"},
        ),
        ({"voters": ("ana", "carl"), "people": {"carl": "ben"}}, {"ana"}),
    ],
)
def test_only_who_can_help_is_asked(asking, expected):
    """A person who cannot decide is not asked: not a voter, excluded, or the requester."""
    assert {one.recipient.to for one in Told(**asking).found(CONTACTS)} == expected


@pytest.mark.parametrize(
    ("asking", "votes", "expected"),
    [
        ({"votes_needed": 2}, [("ana", "approve")], {"ben"}),
        ({}, [("carl", "approve")], {"ana", "ben"}),  # not a voter
        # The seat of the peers is taken; security's is not.
        ({"voters": ("ana", "ben"), "also": (Quorum(("olga",)),)}, [("ana", "approve")], {"olga"}),
        ({"voters": ("ana", "ben", "olga"), "votes_needed": 2}, [("ana", "deny")], {"ben", "olga"}),
    ],
)  # fmt: skip
def test_nobody_is_reminded_of_what_they_cannot_change(asking, votes, expected):
    """Who has voted, or whose seat is filled, is not reminded: nothing is needed of them."""
    story = Told(expires_in_s=600, denials_needed=2, **asking)
    for who, verdict in votes:
        story.vote(who, verdict)
    remind = '[[notify]]\non = ["reminder"]\nremind_before_s = 60\n'
    found = story.found(CONTACTS + remind, of=1)
    assert {one.recipient.to for one in found} == expected
    assert {one.due for one in found} == {story.facts[1].recorded_at + timedelta(seconds=540)}


def test_a_delegate_is_asked_too():
    """Who may vote in a voter's place is asked as well, as long as the voter has not voted."""
    ref = DelegationRef("acme", "ana", "holiday")
    day = timedelta(days=1)
    given = e.Delegated(to="olga", starts_at=START - day, ends_at=START + day)
    delegations = delegations_of([Fact(1, START, ref.given, given)])
    both = Told(voters=("ana",)).found(CONTACTS, given=delegations)
    assert {one.recipient.to for one in both} == {"ana", "olga"}
    voted = Told(voters=("ana",), votes_needed=2).vote("ana")
    assert not voted.found(CONTACTS, of=1, given=delegations)
    handed = Told(voters=("ana", "ben"))
    handed.put(CALL.handed_by("ben", 1), e.HandedOver(to="ana"))
    assert {one.recipient.to for one in handed.found(CONTACTS, given=delegations)} == {
        "ana",
        "olga",
    }


def test_an_account_is_its_person():
    """A contact under one name of a person is for all of their names, and only once."""
    text = '[contacts]\nana = ["mail:a@b"]\nana_b = ["mail:c@d"]\n[people]\nana = ["ana_b"]\n'
    story = Told(voters=("ana_b",), people={"ana_b": "ana"})
    assert brief(story.found(text)) == {"ana asked mail"}


def denied() -> e.Denied:
    return e.Denied(ground="people", rule="money", policy_version=1, voters=("ben",))


def asked_and_told() -> Told:
    """Ana and Ben were told of the question, and Ben voted."""
    story = Told()
    for who in ("ana", "ben"):
        story.put(CALL.notified(who, "asked"), e.Notified(channel="mail"))
    return story.vote("ben", "deny").decide(denied())


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        ("", {"rita decided mail"}),
        ('[[notify]]\noutcome_to = ["asked"]', {"ana decided mail"}),
        ('[[notify]]\noutcome_to = ["requester", "asked"]',
         {"rita decided mail", "ana decided mail"}),
        ("[[notify]]\noutcome_to = []", set()),
        ('[[notify]]\non = ["expired"]', set()),
    ],
)  # fmt: skip
def test_an_outcome_goes_to_the_requester_and_to_others_only_by_a_route(route, expected):
    """Who was asked and need not act any more hears of it if the route says so; who voted knows."""
    assert brief(asked_and_told().found(CONTACTS + route)) == expected


def test_an_expiry_is_told_to_the_requester():
    """It is an occasion of its own, since nobody decided."""
    expired = Told().decide(e.Expired(rule="money", policy_version=1, after_s=60))
    assert brief(expired.found(CONTACTS)) == {"rita expired mail"}


def test_nobody_is_told_of_a_workspace_that_is_not_theirs():
    """Not of a question, by their own name or another, nor of what they asked for (I7)."""
    anybody = Told(voters=("*",)).of_hr("ana")
    assert brief(anybody.found(CONTACTS)) == {"ben asked push", "olga asked mail"}
    # As if they had been removed: the question waits, and the default room hears of it.
    nobody_here = Told().of_hr("ana", "ben")
    assert brief(nobody_here.found(CONTACTS + DEFAULT)) == {"#default asked chat"}
    expired = Told(may_break_glass=("olga",)).of_hr("rita", "olga")
    expired.put(CALL.decided, e.Expired(rule="money", policy_version=1, after_s=60))
    assert brief(expired.found(CONTACTS)) == set()
    broken = Told(may_break_glass=("olga",)).of_hr("ana")
    broken.put(CALL.announced, e.GlassBroken(reviewer="olga", reason="fire"))
    assert brief(broken.found(CONTACTS)) == {"ben broken-glass push"}


def test_of_calls_that_nobody_was_asked_about_nobody_is_told():
    """What the policy allows by itself is no news."""
    story = Story()
    story.tell(CALL.requested, request(WISH))
    fact = story.tell(CALL.decided, e.Denied(ground="policy", rule="money", policy_version=1))
    found = policies(CONTACTS)
    assert (
        messages(Situation(call_of(CALL, story.facts), found, fact.recorded_at), fact, found) == ()
    )


def test_news_is_not_told_days_later():
    """A notifier that starts for the first time on an old log tells nobody old outcomes."""
    late = timedelta(seconds=MAX_LATE_S + 1)
    assert asked_and_told().found(CONTACTS, after=late) == ()
    assert brief(Told().found(CONTACTS, after=late)) == BOTH  # it still waits


def test_a_broken_glass_is_told_to_all_who_were_asked_at_once():
    """Except the one who broke it; neither quiet hours nor a digest delay it."""
    story = Told(may_break_glass=("olga",))
    story.put(CALL.announced, e.GlassBroken(reviewer="olga", reason="fire"))
    wait = '[[notify]]\ndigest_s = 3600\nquiet = {from = "00:00", to = "23:59"}\n'
    found = story.found(CONTACTS + wait)
    assert brief(found) == {"ana broken-glass mail", "ben broken-glass push"}
    assert {one.due for one in found} == {story.facts[-1].recorded_at}


def test_a_call_in_doubt_is_told_to_those_who_may_reconcile():
    """And to nobody once somebody has."""
    story = Told(may_reconcile=("olga",)).vote("ana")
    digest = request(WISH).digest
    story.decide(
        e.Approved(digest=digest, ground="people", rule="money", policy_version=1, voters=("ana",))
    )
    story.put(CALL.claim(1), e.ToolStarted(digest=digest, idempotency_key=str(CALL)))
    # Its runner is an executor only if the request says so.
    wish = replace(story.facts[0].event, run_by="executor")
    story.facts[0] = replace(story.facts[0], event=wish)
    doubt = story.put(CALL.finished, e.InDoubt(attempt=1, text="it died"))
    assert brief(story.found(CONTACTS)) == {"olga in-doubt mail"}
    [message] = story.found(CONTACTS)
    story.put(CALL.reconciled_by("olga"), e.Reconciled(happened=True, output="", reviewer="olga"))
    assert not is_needed(Situation(story.call, policies(CONTACTS), doubt.recorded_at), message)


def test_an_escalation_is_told_to_those_who_are_new():
    """With a slot, and a reminder, for each stage."""
    story = Told(
        voters=("ana",), expires_in_s=60, on_timeout="escalate",
        stages=(Stage(("olga",), 600), Stage(("ben",), None)),
    )  # fmt: skip
    story.put(CALL.escalated(1), e.Escalated(voters=("olga",), expires_in_s=600))
    text = f"{CONTACTS}[[notify]]\nremind_before_s = 30"
    assert brief(story.found(text)) == {
        "olga escalated1 mail", "ana reminder1 mail", "olga reminder1 mail",
    }  # fmt: skip
    # The reminder of the stage before is not needed any more.
    assert brief(story.found(text, of=1)) == {"ana asked mail"}
    slots = {one.slot(story.call).subject.rpartition("notified.")[2] for one in story.found(text)}
    assert slots == {"olga.escalated-1", "ana.reminder-1", "olga.reminder-1"}


def test_a_handover_is_told_to_the_colleague_alone():
    """Each time, while their vote would help; the default room hears of it if they have no contact.
    A later escalation does not change when it is due.
    """
    story = Told(
        voters=("ana", "ben", "cy"), expires_in_s=60, on_timeout="escalate",
        stages=(Stage(("olga",), 6000),),
    )  # fmt: skip
    story.put(CALL.handed_by("ana", 1), e.HandedOver(to="ben"))
    story.put(CALL.handed_by("ben", 1), e.HandedOver(to="cy"))
    slow = f"{CONTACTS}{DEFAULT}[[notify]]\ndigest_s = 3600"
    assert brief(story.found(slow, of=2)) == {"ben handed1 push"}
    assert brief(story.found(slow)) == {"#default handed2 chat"}
    [before] = story.found(slow, of=2)
    story.put(CALL.escalated(1), e.Escalated(voters=("olga",), expires_in_s=6000))
    assert story.found(slow, of=2) == (before,)
    assert not before.in_digest
    story.put(CALL.handed_by("ana", MOST_SAID["handed"] + 1), e.HandedOver(to="cy"))
    assert story.found(slow) == ()
    story.vote("ben")
    assert story.found(slow, of=2) == ()


def test_what_was_told_is_not_told_again():
    """A slot that is filled, of a person or of a room, is skipped."""
    story = Told()
    text = f'{CONTACTS}{ROOMS}[[notify]]\nrooms = ["ops"]'
    story.put(CALL.notified("ana", "asked"), e.Notified(channel="mail"))
    assert brief(story.found(text, of=1)) == {"ben asked push", "#ops asked chat"}
    story.put(CALL.room_notified("ops", "asked"), e.Notified(channel="chat"))
    assert brief(story.found(text, of=1)) == {"ben asked push"}


def test_a_room_is_not_asked_at_the_deadline():
    """Then no vote counts any more."""
    story = Told(expires_in_s=600)
    text = f'{CONTACTS}{ROOMS}[[notify]]\nrooms = ["ops"]'
    room = next(one for one in story.found(text) if one.recipient.is_room)
    just_before = story.call.deadline - timedelta(microseconds=1)
    assert is_needed(Situation(story.call, policies(text), just_before), room)
    assert not is_needed(Situation(story.call, policies(text), story.call.deadline), room)


def test_a_person_with_the_name_of_a_room_has_a_slot_of_their_own():
    """Telling the room does not count as telling the person."""
    person = Notification(Recipient("ops", ()), "asked", 0, START)
    room = Notification(Recipient("ops", (), is_room=True), "asked", 0, START)
    assert person.slot(Told().call) != room.slot(Told().call)


NIGHT = '[[notify]]\nquiet = {from = "20:00", to = "07:00", timezone = "Europe/Berlin"}\n'


@pytest.mark.parametrize(
    ("asked_at", "route", "expires_in_s", "due"),
    [
        # In March Berlin is an hour ahead of UTC.
        ("2026-03-01T12:00", NIGHT, None, None),
        ("2026-03-01T18:59:50", NIGHT, None, None),
        ("2026-03-01T19:00", NIGHT, None, "2026-03-02T06:00"),
        ("2026-03-02T05:59", NIGHT, None, "2026-03-02T06:00"),
        ("2026-03-02T06:00", NIGHT, None, None),
        # The clocks change in that night.
        ("2026-03-28T20:00", NIGHT, None, "2026-03-29T05:00"),
        # The deadline would pass in the quiet hours: at once.
        ("2026-03-01T21:00", NIGHT, 3600, None),
        ("2026-03-01T21:00", NIGHT, 36_000, "2026-03-02T06:00"),
        # Windows of a digest, and both together.
        ("2026-03-01T12:01", "[[notify]]\ndigest_s = 900\n", None, "2026-03-01T12:15"),
        ("2026-03-01T12:01", "[[notify]]\ndigest_s = 900\n", 600, None),
        ("2026-03-01T18:50", f"{NIGHT}digest_s = 3600\n", None, "2026-03-02T06:00"),
    ],
)  # fmt: skip
def test_what_can_wait_waits(asked_at, route, expires_in_s, due):
    """Quiet hours and digests, in the route's time zone; what cannot wait is told at once."""
    at = datetime.fromisoformat(asked_at).replace(tzinfo=UTC)
    story = Told(at=at, expires_in_s=expires_in_s)
    asked = [one for one in story.found(CONTACTS + route) if one.occasion == "asked"]
    expected = datetime.fromisoformat(due).replace(tzinfo=UTC) if due else None
    assert len(asked) == 2
    assert {one.due for one in asked} == {expected or story.facts[1].recorded_at}
    assert {one.in_digest for one in asked} == {"digest_s" in route and due is not None}


@pytest.mark.parametrize(
    ("begins", "ends", "at", "end"),
    [
        ("12:00", "13:00", "11:59", "11:59"),
        ("12:00", "13:00", "12:00", "13:00"),
        ("12:00", "13:00", "13:00", "13:00"),
        ("22:00", "06:00", "23:00", "06:00+1"),
        ("22:00", "06:00", "05:00", "06:00"),
        ("22:00", "06:00", "21:59", "21:59"),
    ],
)
def test_quiet_hours_end(begins, ends, at, end):
    """They may go over midnight; a moment outside of them is its own end."""
    day = datetime(2026, 3, 1, tzinfo=UTC)

    def moment(text: str) -> datetime:
        time, _, days = text.partition("+")
        hour, minute = map(int, time.split(":"))
        return day + timedelta(days=int(days or 0), hours=hour, minutes=minute)

    quiet = Quiet.model_validate({"from": begins, "to": ends})
    assert quiet.end(moment(at)) == moment(end)


def test_a_question_after_its_reminder_is_not_sent():
    """Whoever was reminded before the digest came does not hear of the same question again."""
    story = Told(expires_in_s=7200)
    text = f"{CONTACTS}[[notify]]\ndigest_s = 3600\nremind_before_s = 7000"
    [asked] = [
        one for one in story.found(text) if one.occasion == "asked" and one.recipient.to == "ana"
    ]
    story.put(CALL.notified("ana", "reminder"), e.Notified(channel="mail"))
    assert not is_needed(Situation(story.call, policies(text), START + SOON), asked)


def test_the_organisation_has_the_last_word_about_addresses():
    """No workspace can redirect what the organisation's people are told; its routes come last."""
    theirs = '[contacts]\nana = ["mail:ana@corp.example"]\n[[notify]]\non = []'
    found = Told().found(CONTACTS, theirs)
    assert found == ()
    found = Told().found(f"{CONTACTS}[[notify]]", theirs)
    assert {one.recipient.contacts[0] for one in found} == {"mail:ana@corp.example", "push:ben"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[contacts]\nana = ["x"]', "'x' is not a contact."),
        ('[contacts]\nana = ["mail:a@b,c@d"]', "is not one address"),
        ('[contacts]\n"a b" = ["x:y"]', "cannot be used"),
        ("[contacts]\nana = []", "'ana' is empty."),
        ('[[notify]]\nrooms = ["ops"]', "there is no room 'ops'. The rooms are: none."),
        ('[[notify]]\non = ["never"]', "It can be 'asked', 'escalated', "),
        ('[[notify]]\nquiet = {from = "24:00", to = "07:00"}', "'24:00' is not a time of day."),
        ('[[notify]]\nquiet = {from = "20:00", to = "20:00"}', "have no end."),
        ('[[notify]]\nquiet = {from="20:00", to="07:00", timezone="Mars/Base"}',
         "'Mars/Base' is not a time zone here."),
        ("[[notify]]\ndigest_s = 0", "'digest_s' should be greater than 0."),
    ],
)  # fmt: skip
def test_a_mistake_in_a_route_is_told(text, said):
    """In one sentence, with what to write, as any mistake in a policy."""
    with pytest.raises(BadFile, match="line ") as raised:
        read_policy(text, "policy.toml")
    assert said in str(raised.value)


def test_voters_whom_no_notice_reaches_are_named():
    """For a warning to the policy's author; not of a policy without contacts."""
    ask = '[[rule]]\nname = "a"\ntools = ["*"]\nthen = "ask"\nvoters = ["ana", "carl", "s-*"]\n'
    assert read_policy(ask, "p").untold == ()
    assert read_policy(CONTACTS + ask, "p").untold == ("carl",)
    assert read_policy(CONTACTS + DEFAULT + ask, "p").untold == ()
