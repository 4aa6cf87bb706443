"""Verdicts in free text: only what is wholly and clearly one, about exactly one call (B41)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stories import Story, question, request

from ayes.interfaces.cli.chat_vote import ChatVote, parse_vote
from ayes.ledger.validity import call_of
from ayes.projections.pending import Entry, entry
from ayes.projections.views.secrets import Secrets
from ayes.schemas import events as e
from ayes.schemas.slots import CallRef


def waits(ref: CallRef, tool: str, arguments: str) -> Entry:
    """As it stands in the queue."""
    wish, story = e.Wish(tool=tool, arguments=arguments), Story(ref.thread_ref)
    story.tell(ref.requested, request(wish))
    story.tell(ref.gated, question(wish))
    found = entry(call_of(ref, tuple(story.facts)))
    assert found
    return found


ONE = waits(CallRef("shop", "order-17", "refund-1"), "refund", '{"order":"A-17","amount":480}')
TWO = waits(CallRef("shop", "order-18", "refund-1"), "refund", '{"order":"A-18","amount":20}')
CANCEL = waits(CallRef("shop", "order-17", "cancel"), "cancel_order", '{"order":"A-17"}')
ALL = (ONE, TWO, CANCEL)

YES = ChatVote(ONE, "approve")
NO = ChatVote(ONE, "deny")


@pytest.mark.parametrize(
    ("message", "waiting", "comes_to"),
    [
        ("yes refund-1", [ONE], YES),
        ("  Approve refund-1. ", [ONE], YES),
        ("> refund-1\nLGTM!", [ONE], YES),
        ("no refund-1", [ONE], NO),
        (f"ok {ONE.digest[:12]}", ALL, YES),
        (f"> {ONE.digest}\nok", ALL, YES),
        ("deny refund-1: it was refunded before", [ONE],
         ChatVote(ONE, "deny", "it was refunded before")),
        ("> A-17\ndeny: first line\nsecond line", [ONE],
         ChatVote(ONE, "deny", "first line\nsecond line")),
        ("approve order-17/refund-1", ALL, YES),
        ("approve shop/order-17/refund-1", ALL, YES),
        ("deny cancel: no", ALL, ChatVote(CANCEL, "deny", "no")),
        ('> refund {"order":"A-17"\nyes', ALL, YES),
        ("> A-18\nok", ALL, ChatVote(TWO, "approve")),
        ("> A-17\n> cancel_order\nok", ALL, ChatVote(CANCEL, "approve")),
    ],
)  # fmt: skip
def test_a_whole_message_is_a_verdict(message, waiting, comes_to):
    """A word, at most a name or a quote, and after a no its reason (B41)."""
    assert parse_vote(message, waiting) == comes_to


@pytest.mark.parametrize(
    "message",
    [
        "", "yes?", "yes, but only half of it", "yes if she agrees", "not yes", "no yes", "yes no",
        "I approve of this", "approve: but ask her first", "ok ok ok", "okay then", "sure", "👍",
        ":+1:", "y", "yess", "yes\nno", "yes\n\nno: wait", "don't approve", "approve everything",
        "approve refund", "approve refund-", "approve order-17", "approve efund-1", "> yes",
        "> 17\nyes", "> order-1\nyes", "> something else\nyes", "> A-1\nyes",
        "approve refund-1 cancel", "yes", "  Approve. ", "LGTM!", "no", "ok",
        "deny: it was refunded before", "> refund\nok", "> shop\nok", ">\nok",
        f"ok {ONE.digest[:11]}", f"ok {ONE.digest[1:]}", f"ok {CANCEL.digest}",
        f"> {ONE.digest[:11]}\nok", "no, wait, yes", "deny order-17/refund-2", "yes <script>",
        "y e s", "ja", "approve *", "approve ?",
    ],
)  # fmt: skip
def test_everything_else_is_none(message):
    """Hedges, questions, conditions, half a name and half a word are no verdict (B41, I4)."""
    assert parse_vote(message, [ONE, TWO]) is None


def test_a_bare_word_may_come_late():
    """An ok that was written about the first call says nothing about the second, although only that
    one waits by now (R14, B41); with what it was written under it says nothing about any other
    either.
    """
    for message in (
        "ok", "> refund\nok", "ok order-17/refund-1", "> A-17\nok", f"ok {ONE.digest[:12]}",
    ):  # fmt: skip
        assert parse_vote(message, [TWO]) is None
    assert parse_vote("ok order-18/refund-1", [TWO]) == ChatVote(TWO, "approve")


def test_a_quote_is_of_what_is_shown():
    """So a secret value identifies nothing, and neither do the words in its place."""
    login = waits(CallRef("shop", "order-17", "c1"), "login", '{"user":"rita","note":"zircon"}')
    hiding = Secrets({login.declaration: ("/note",)})

    def heard(quote):
        return parse_vote(f"> {quote}\nyes", [login], hiding)

    for quote in ('login {"user":"rita","note":"(secret)"}', '"note":"(secret)"', "rita"):
        assert heard(quote) == ChatVote(login, "approve")
    for quote in ('{"user":"rita","note":"zircon"}', "zircon", "(secret)", '"(secret)"', '"login"'):
        assert heard(quote) is None


def test_what_is_open_twice_is_not_guessed():
    """One name or quote that means two calls means none; so does a bare yes beside two (B41)."""
    assert parse_vote("yes", ALL) is None
    assert parse_vote("approve refund-1", ALL) is None
    assert parse_vote("> refund\nyes", ALL) is None
    assert parse_vote("yes", []) is None


@given(st.text(max_size=40), st.sampled_from(["yes", "approve", "ok", "no"]), st.text(max_size=40))
def test_a_word_among_others_counts_for_nothing(before, word, after):
    """Anything around a yes but white space, a full stop and quotes makes it none (B41)."""
    message = f"{before}{word}{after}"
    found = parse_vote(message, [ONE])
    if found is not None and found.verdict == "approve":
        spoken = [line for line in message.strip().splitlines() if not line.strip().startswith(">")]
        assert "\n".join(spoken).strip().rstrip(".!").lower() in {
            *(
                ("yes", "approve", "approved", "ok", "okay", "lgtm")
                if len(spoken) < len(message.strip().splitlines())
                else ()
            ),
            *(
                f"{one} {ref}"
                for one in ("yes", "approve", "ok")
                for ref in ("refund-1", "order-17/refund-1")
            ),
        }
