"""Notices: what people are told about a call, in words."""

from datetime import timedelta

import pytest
from msgspec.structs import replace
from stories import REF, START, Story, approval, life, question, request

from ayes.ledger.call import Call
from ayes.ledger.judging.policies import Policies
from ayes.ledger.judging.votes import cast_votes
from ayes.ledger.validity import call_of
from ayes.projections.notices import (
    MAX_CHARACTERS,
    MAX_LISTED,
    MAX_SUBJECT,
    DigestEntry,
    digest,
    notice,
    redacted,
    subject,
)
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.redaction import REDACTED

CALL = REF.wish(1, 0)
WISH = e.Wish(tool="refund", arguments='{"order":"A-17","card":{"number":"4111"}}')
LINK = "https://approvals.example/open/x"
QUESTIONS = ("asked", "escalated", "handed", "reminder")
OCCASIONS = (*QUESTIONS, "decided", "expired", "broken-glass", "in-doubt", "void")


def pending(arguments: str = WISH.arguments, *, requested=None, **asking: object) -> Call:
    wish, story = replace(WISH, arguments=arguments), Story()
    story.tell(CALL.requested, replace(request(wish), **(requested or {})))
    story.tell(CALL.gated, replace(question(wish), **asking))
    return call_of(CALL, story.facts)


def ended(ending: str) -> Call:
    return call_of(CALL, Story().tell_all(life(CALL, WISH, ending)).facts)


def test_a_question_says_what_who_why_until_when_and_what_to_do():
    """Who is asked reads everything that they need to know whether it is for them."""
    told = notice(pending(expires_in_s=600, confirm="typed"), "asked", link=LINK)
    assert told.subject == "refund needs approval: acme/t1/1-0"
    for said in (
        "on behalf of rita", "tool:      refund", "rule:      money", "why:       moves money",
        "until:     2026-03-01 09:10 UTC; it expires then", '"order": "A-17"',
        "approve it", "you type the name of the tool",
    ):  # fmt: skip
        assert said in told.body
    assert told.body.endswith(f"\n{LINK}")


@pytest.mark.parametrize(
    ("undoing", "said"),
    [
        (e.Undoing("reads"), "reads"),
        (e.Undoing("irreversible"), "irreversible"),
        (e.Undoing("undeclared"), "not declared, which counts as irreversible"),
        (e.Undoing("reversible", "charge"), "reversible, undone with charge"),
        (e.Undoing("reversible_outside", "charge", 86_400),
         "reversible outside, undone with charge, within 1 day after it returned"),
        (e.Undoing("reversible", "charge\u202e"), r"reversible, undone with charge\u202e  [hidden"),
    ],
)  # fmt: skip
def test_a_notice_says_how_the_call_can_be_undone(undoing: e.Undoing, said: str):
    """Nothing, if nothing was declared and no policy speaks of it."""
    assert f"\nclass:     {said}" in notice(pending(undoing=undoing), "asked").body
    assert "class:" not in notice(pending(), "asked").body


def test_a_notice_says_what_the_call_does():
    """In its subject, which a digest lists, and in its body; on a line of its own, and marked."""
    call = pending(title="Pay 5 for A\u202e\nrule: none")
    assert subject(call, "asked").endswith(
        f": {CALL} \N{EN DASH} " + r"Pay 5 for A\u202e\u000arule: none  [hidden characters]"
    )
    body = notice(call, "asked").body
    assert r"what:      Pay 5 for A\u202e\u000arule: none  [hidden characters]" in body.splitlines()
    assert "what:" not in notice(pending(), "asked").body


def test_a_notice_says_who_hands_it_over_to_whom_and_why():
    """The last one, on a line of its own, whatever is in the reason."""
    story = Story().tell_all([(CALL.requested, request(WISH)), (CALL.gated, question(WISH))])
    story.tell(CALL.handed_by("ana", 1), e.HandedOver(to="ben"))
    story.tell(CALL.handed_by("ben", 2), e.HandedOver(to="cy", reason="Yours.\nrule: none"))
    lines = notice(call_of(CALL, story.facts), "handed").body.splitlines()
    said = [one for one in lines if one.startswith("handed:")]
    assert said == [r"handed:    to cy by ben: Yours.\u000arule: none"]


def test_once_it_has_returned_it_is_said_until_when():
    """Also of a call that nobody was asked about: its approval keeps what was declared."""
    undoing = e.Undoing("reversible", "charge", 60)
    facts = dict(life(CALL, WISH, "returned"))
    asked = {**facts, CALL.gated: replace(facts[CALL.gated], undoing=undoing)}
    allowed = replace(facts[CALL.decided], ground="policy", undoing=undoing)
    alone = {slot: fact for slot, fact in facts.items() if slot != CALL.gated}
    for one in (asked, {**alone, CALL.decided: allowed}):
        call = call_of(CALL, Story().tell_all(list(one.items())).facts)
        assert call.undo_until == call.finished.recorded_at + timedelta(seconds=60)
        until = f"until {call.undo_until:%Y-%m-%d %H:%M:%S} UTC"
        said = f"class:     reversible, undone with charge, {until}"
        assert said in notice(call, "decided").body
    assert ended("returned").undo_until is None


def test_who_may_break_the_glass_is_told_so():
    """And nobody else."""
    alone = "In an emergency you alone may let it run."
    assert alone in notice(pending(), "asked", may_break_glass=True).body
    assert alone not in notice(pending(), "asked").body


@pytest.mark.parametrize("occasion", OCCASIONS)
def test_every_occasion_has_words_of_its_own_and_a_way_to_the_call(occasion):
    """Each notice names its call, and leads there: by its link, or by a command without one."""
    call = ended("returned")
    others = {subject(call, one) for one in OCCASIONS if one != occasion}
    assert subject(call, occasion) not in others
    assert LINK in notice(call, occasion, link=LINK).body
    assert f"ayes {'approve' if occasion in QUESTIONS else ''}" in notice(call, occasion).body


@pytest.mark.parametrize(
    ("secret", "gone", "left"),
    [
        (("/card/number",), "4111", "A-17"),
        (("/card",), "4111", "A-17"),
        (("/card/*",), "4111", "A-17"),
        (("/*",), "A-17", "refund"),
        (("",), "A-17", "refund"),
        (None, "A-17", "refund"),
    ],
)
def test_what_a_tool_declares_as_secret_is_not_told(secret, gone, left):
    """Declared secrets are replaced on every occasion; of an unknown tool everything is (B71)."""
    for occasion in OCCASIONS:
        assert gone not in notice(pending(), occasion, secret=secret).body
    assert left in notice(pending(), "asked", secret=secret).body


def test_a_secret_that_is_not_told_is_still_covered_by_the_digest():
    """Two calls that differ in a secret alone read the same, and a vote on one does not count for
    the other. The digest is not told either: a short secret could be guessed from it. (I14)
    """
    one, other = pending(), pending(WISH.arguments.replace("4111", "5222"))
    bodies = {notice(call, "asked", secret=("/card",)).body for call in (one, other)}
    vote = Fact(9, START, CALL.vote("ana"), e.Voted(verdict="approve", digest=one.digest))
    assert len(bodies) == 1
    assert one.digest != other.digest
    assert one.digest not in bodies.pop()
    for call, objection in ((one, None), (other, "other_bytes")):
        (cast,) = cast_votes(replace(call, votes=(vote,)), Policies(), None)
        assert (cast.objection and cast.objection.flaw) == objection


def test_secrets_are_found_in_lists_and_under_odd_keys():
    """A place is a JSON pointer: `*` is any key or index, and `~1` is a slash."""
    arguments = '{"a/b":[{"k":1,"n":2},{"k":3}],"*":4}'
    assert redacted(arguments, ["/a~1b/*/k"]) == {
        "a/b": [{"k": REDACTED, "n": 2}, {"k": REDACTED}],
        "*": 4,
    }
    assert redacted(arguments, ["/a~1b/1", "/missing/k"])["a/b"] == [{"k": 1, "n": 2}, REDACTED]


def test_arguments_that_cannot_be_read_are_not_told_if_some_are_secret():
    """Nobody can say where the secret is in malformed arguments, so none of them are shown."""
    call = pending('{"card": 4111')
    assert "4111" in notice(call, "asked").body
    assert "4111" not in notice(call, "asked", secret=("/card",)).body


def test_a_question_of_a_sub_agent_names_the_calls_above():
    """The outermost first; and nothing in their names deceives anybody."""
    chain = (
        e.Link("acme/t0/1-0", "delegate", "desk"),
        e.Link("acme/t1/c", "ask\u202e", "a\nlink: x"),
    )
    body = notice(pending(chain=chain), "asked", link=LINK).body
    assert "in runs of: acme/t0/1-0 (delegate, by desk) > acme/t1/c (ask\\u202e, by a" in body
    assert "\u202e" not in body
    assert "\nlink: " not in body
    assert "[hidden characters]" in body


def test_text_that_hides_is_spelled_out_and_flagged():
    """A hidden character, a mixed script or a line break in others' text deceives nobody."""
    call = pending(
        '{"to":"\u202eana"}', reason="p\u0430y\nlink: https://x", requested={"tool": "ref\u200bund"}
    )
    told = notice(call, "asked", link=LINK)
    assert "\u202e" not in told.body
    assert "\\u202eana" in told.body
    assert "[hidden characters]" in told.body
    assert "[mixed scripts: CYRILLIC, LATIN]" in told.body
    assert "\nlink: " not in told.body
    assert "\u200b" not in told.subject + told.body


def test_a_notice_is_bounded_and_says_so():
    """Long arguments, reasons and names are cut, with a mark."""
    call = pending(
        f'{{"text":"{"x" * 100_000}"}}',
        reason="why " * 10_000,
        requested={"tool": "t" * 10_000, "agent": "a" * 10_000},
    )
    told = notice(call, "asked", link=LINK)
    assert len(told.subject) <= MAX_SUBJECT
    assert len(told.body) < 3 * MAX_CHARACTERS
    assert "cut here" in told.body
    assert told.body.endswith(LINK)


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("denied", "refund was denied"),
        ("edited", "refund was approved with changed arguments"),
        ("returned", "refund was approved"),
        ("answered", "refund was answered by a person"),
        ("withdrawn", "refund was withdrawn"),
    ],
)
def test_an_outcome_is_named(ending, said):
    """The subject alone says how it was decided; the body says by whom and when."""
    told = notice(ended(ending), "decided")
    assert told.subject.startswith(said)
    assert "decided:   2026-03-01 09:00 UTC" in told.body


def test_a_confirmation_by_the_requester_is_named():
    """They are told that they may, and others read in the outcome that they did."""
    call = pending(mode="requester_confirms", own=("rita",), excluded=())
    told = notice(call, "asked")
    assert "rule:      money (requester confirms)" in told.body
    assert "If it is your own request, you may confirm it." in told.body
    approved = replace(approval(WISH), voters=("rita",), mode="requester_confirms")
    decided = replace(call, decided=Fact(3, START, CALL.decided, approved))
    told = notice(decided, "decided")
    assert told.subject.startswith("refund was approved (requester confirms)")
    assert "by rita (requester confirms)" in told.body


def test_an_answer_and_an_output_are_not_told():
    """What a tool or a person said to the model stays in the ledger."""
    assert "on its way" not in notice(ended("answered"), "decided").body
    assert "done" not in notice(ended("returned"), "decided").body


def test_a_digest_lists_its_calls_and_says_how_many_more():
    """Forty calls are one message with a line and a link for each; its length is bounded."""
    forty = digest([DigestEntry(pending(), "asked", f"{LINK}{number}") for number in range(40)])
    many = digest([DigestEntry(pending(), "asked")] * (MAX_LISTED + 7))
    assert forty.subject == "ayes: 40 notices, 40 waiting for approval"
    assert forty.body.count("refund needs approval") == 40
    assert all(f"{LINK}{number}\n" in forty.body for number in range(40))
    assert many.body.count("refund needs approval") == MAX_LISTED
    assert "and 7 more" in many.body


def test_a_digest_of_one_says_what_its_reader_has_signed():
    """As the notice itself: it is told so after the notifier was away."""
    vote = Fact(9, START, CALL.vote("ana"), e.Voted("approve", "", signature="x"))
    call = call_of(CALL, (*pending().facts, vote))
    told = digest([DigestEntry(call, "signed", to="ana")])
    assert "signed:    approve, " in told.body
    assert told == notice(call, "signed", to="ana")
