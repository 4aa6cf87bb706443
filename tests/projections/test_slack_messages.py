"""Messages in Slack: what they show, what they do not, and when a click is enough to approve."""

import json

import pytest
from msgspec.structs import replace
from stories import REF, Story, life, question, request

from ayes.ledger.call import Call
from ayes.ledger.validity import call_of
from ayes.projections.notices import CUT
from ayes.projections.slack_messages import (
    APPROVE,
    DENY,
    MAX_BLOCK,
    OPEN,
    escape,
    message,
    reason_form,
)
from ayes.schemas import events as e
from ayes.schemas.redaction import REDACTED

CALL = REF.wish(1, 0)
WISH = e.Wish(tool="refund", arguments='{"order":"A-17"}')
PAGE = "https://ayes.example/calls/acme/t1/1-0"


def pending(arguments: str = WISH.arguments, *votes: str, **asking: object) -> Call:
    wish, story = replace(WISH, arguments=arguments), Story()
    story.tell(CALL.requested, request(wish))
    story.tell(CALL.gated, replace(question(wish), **asking))
    for name in votes:
        story.tell(CALL.vote(name), e.Voted(verdict="approve", digest=request(wish).digest))
    return call_of(CALL, story.facts)


def shown(call: Call, secret: tuple[str, ...] | None = (), page: str = PAGE):
    """The message, its words, and the names of its buttons."""
    made = message(call, approve="yes", deny="no", secret=secret, page=page)
    blocks = json.loads(json.dumps(made.blocks))
    buttons = [
        one["action_id"]
        for block in blocks
        if block["type"] == "actions"
        for one in block["elements"]
    ]
    return made, json.dumps(blocks, ensure_ascii=False), buttons


def test_a_question_has_its_words_and_buttons():
    made, words, buttons = shown(pending())
    assert made.text == "refund needs approval: acme/t1/1-0"
    assert "moves money" in words
    assert "A-17" in words
    assert buttons == [APPROVE, DENY, OPEN]
    assert '"value": "yes"' in words
    assert '"value": "no"' in words
    assert "class:" not in words


def test_a_question_says_what_the_call_does_and_how_it_can_be_undone():
    _, words, _ = shown(pending(undoing=e.Undoing("reversible", "charge", 7200), title="Pay 5"))
    assert "what:      Pay 5" in words
    assert "class:     reversible, undone with charge, within 2 hours after it returned" in words


@pytest.mark.parametrize(
    ("call", "secret"),
    [
        (pending(confirm="typed"), ()),
        (pending(), ("/order",)),
        (pending(), None),
        (pending(json.dumps({"note": "x" * 400})), ()),
        (pending(json.dumps({"notes": ["x" * 200] * 20})), ()),
        (pending(json.dumps({"lines": list(range(60))})), ()),
        (pending(json.dumps({"to": "ana\u202eadmin"}, ensure_ascii=False)), ()),
        (pending(json.dumps({"to": "p\u0430ypal"}, ensure_ascii=False)), ()),
        (pending("not json {"), ("/order",)),
    ],
    ids=["typed", "secret", "unknown", "line", "long", "lines", "hidden", "scripts", "unreadable"],
)
def test_what_a_message_cannot_show_is_not_approved_by_a_click(call, secret):
    """A click must not decide more than people see; they may deny, and the console shows it all."""
    _, words, buttons = shown(call, secret)
    assert buttons == [DENY, OPEN]
    assert "approved in the console" in words
    assert '"yes"' not in words


def test_a_secret_is_in_no_message():
    call = pending('{"order":"A-17","card":"4111"}')
    for secret in (("/card",), None):
        made, words, _ = shown(call, secret)
        assert "4111" not in made.text + words
    assert REDACTED in shown(call, ("/card",))[1]


def test_nothing_of_others_is_markup():
    """No mention, link or channel, wherever Slack would read one; rich text has no markup."""
    assert escape("<!channel> & <@U1> <http://x|y>") == (
        "&lt;!channel&gt; &amp; &lt;@U1&gt; &lt;http://x|y&gt;"
    )
    hostile = replace(WISH, tool="<!here>")
    story = Story()
    story.tell(CALL.requested, request(hostile))
    story.tell(CALL.gated, replace(question(hostile), reason="*<@U1>*\n```\nApproved"))
    made, _, _ = shown(call_of(CALL, story.facts))
    assert "<" not in made.text
    kinds = {one["type"] for block in made.blocks for one in block.get("elements", ())}
    assert kinds == {"rich_text_section", "rich_text_preformatted", "button"}
    assert "mrkdwn" not in json.dumps(made.blocks)


def test_a_long_message_keeps_slacks_limits_and_says_what_is_cut():
    call = pending(json.dumps({f"key {n}": "\U0001f600" * 90 for n in range(40)}))
    asking = replace(call.approval_request, reason="why " * 500, rule="r" * 500)
    call = replace(call, gated=replace(call.gated, event=asking))
    made, words, buttons = shown(call)
    assert CUT in words
    assert buttons == [DENY, OPEN]
    for block in made.blocks:
        for one in block["elements"]:
            parts = one.get("elements", [one])
            assert all(len(part["text"]) <= MAX_BLOCK + len(CUT) + 1 <= 3000 for part in parts)


def test_votes_that_are_cast_are_listed():
    """So that the others see what is missing."""
    _, words, _ = shown(pending(WISH.arguments, "ana", "ben", votes_needed=3))
    assert "Votes: ana: approve, ben: approve" in words
    many = [f"p{n}" for n in range(30)]
    assert "and 10 more" in shown(pending(WISH.arguments, *many, votes_needed=40))[1]


@pytest.mark.parametrize("ending", ["returned", "denied", "answered", "expired", "withdrawn"])
def test_after_the_end_there_are_no_buttons_and_no_arguments(ending):
    story = Story().tell_all(life(CALL, WISH, ending))
    made, words, buttons = shown(call_of(CALL, story.facts))
    assert buttons == [OPEN]
    assert "A-17" not in words
    wanted = {"returned": "approved", "answered": "answered by a person"}.get(ending, ending)
    assert wanted in made.text


def test_an_approval_that_was_taken_back_says_so():
    """A room that read "approved" must not go on believing it."""
    story = Story().tell_all(life(CALL, WISH, "revoked"))
    _, words, buttons = shown(call_of(CALL, story.facts))
    assert "ben took the approval back before it ran: wrong customer" in words
    assert buttons == [OPEN]


def test_without_a_console_a_message_names_the_commands():
    made, words, buttons = shown(pending(), page="")
    assert buttons == [APPROVE, DENY]
    assert "ayes approve acme/t1/1-0" in words
    assert "https://" not in json.dumps(made.blocks)


def test_the_form_for_a_reason_keeps_slacks_limits():
    longest = ["x" * 75] * 9
    form = reason_form("v" * 600, "acme/t1/1-0, digest 3f9a", longest)
    _, choice, text = form["blocks"]
    assert form["private_metadata"] == "v" * 600
    assert len(form["title"]["text"]) <= 24
    assert len(text["label"]["text"]) <= 2000
    assert text["element"]["max_length"] <= 3000
    assert [one["text"]["text"] for one in choice["element"]["options"]] == longest
