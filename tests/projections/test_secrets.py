"""What people see of arguments."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stories import START

from ayes.ledger.judging.votes import Tally
from ayes.ledger.validity import call_of, voids
from ayes.projections.history import history
from ayes.projections.thread import thread_of
from ayes.projections.views.call import call_state, decided_call, edit_words, recorded_votes
from ayes.projections.views.fact import recorded
from ayes.projections.views.secrets import NEWEST, WHOLE, Secrets
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.redaction import without
from ayes.schemas.slots import ThreadRef

THREAD = ThreadRef("shop", "order-1")
CALL = THREAD.wish(1, 0)
LOGIN = ("shop", "login", "1")
ASKED = '{"user": "rita",  "note":"zircon-1"}'
EDITED = '{"user":"rita","note":"zircon-2"}'
HIDING = Secrets({LOGIN: ("/note",), ("shop", "login", NEWEST): ("/note",)})


@pytest.mark.parametrize(
    ("places", "raw", "shown"),
    [
        ((), ' {"a": 1e400,\n"b":2} ', ' {"a": 1e400,\n"b":2} '),
        (("/b",), '{"a": 1.0,"b":{"c":2}}', '{"a":1.0,"b":"(secret)"}'),
        (("/b/c",), '{"a":1E2,"b":{"c":2,"d":3}}', '{"a":1E2,"b":{"c":"(secret)","d":3}}'),
        (("/b/*",), '{"b":[1,{"x":2}]}', '{"b":["(secret)","(secret)"]}'),
        (("/*/k",), '{"a":{"k":1},"b":[2],"c":{"l":3}}',
         '{"a":{"k":"(secret)"},"b":[2],"c":{"l":3}}'),
        (("/a/b/c",), '{"a":"x"}', '{"a":"(secret)"}'),
        (("/a/b",), '{"a":4}', '{"a":"(secret)"}'),
        (("/a/b",), '{"a":[4,{"b":5}]}', '{"a":"(secret)"}'),
        (("/a/0",), '{"a":[4,5]}', '{"a":["(secret)",5]}'),
        (("/a/b",), '{"a": null}', '{"a": null}'),
        (("/a/b",), '{"a": true}', '{"a": true}'),
        (("/*/b",), '{"a":4,"c":{"b":5}}', '{"a":4,"c":{"b":"(secret)"}}'),
        (("/a~1b/~0",), '{"a/b":{"~":1}}', '{"a/b":{"~":"(secret)"}}'),
        (("/a",), '[{"a":1}]', '"(secret)"'),
        (("/a",), '"{\\"a\\":1}"', '"(secret)"'),
        ((), '[{"a":1}]', '[{"a":1}]'),
        (("",), '{"a":1}', '"(secret)"'),
        (("/x",), ' {"a": 1}', ' {"a": 1}'),
        (("/a",), '{"a":1,"a":2}', '"(secret)"'),
        (("/a",), '{"a":', '"(secret)"'),
        ((), '{"a":', '{"a":'),
        (None, '{"a":1}', '"(secret)"'),
    ],
)  # fmt: skip
def test_secret_places_are_replaced_and_all_else_keeps_its_bytes(places, raw, shown):
    assert Secrets({LOGIN: places}).arguments(LOGIN, raw) == shown
    assert Secrets({}).arguments(LOGIN, raw) == '"(secret)"'
    assert WHOLE.arguments(LOGIN, raw) == raw


@given(st.text("/*ab~01", max_size=8), st.text('{}[]":,ab1\\ ', max_size=20))
def test_whatever_the_declaration_and_the_text_nothing_is_raised(pointer, raw):
    Secrets({LOGIN: (f"/{pointer}",)}).arguments(LOGIN, raw)


KEYS = ("a", "b", "0", "1")
VALUES = st.recursive(
    st.sampled_from([None, True, 4, "x"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3),
    st.lists(st.sampled_from((*KEYS, "*")), min_size=1, max_size=3).map("/".join),
)
def test_pages_and_notices_hide_the_same(value, place):
    shown = Secrets({LOGIN: (f"/{place}",)}).arguments(LOGIN, json.dumps(value))
    assert json.loads(shown) == without(value, (f"/{place}",))


def facts():
    """A wish that two people let run with other arguments."""
    digest, edited = (call_digest("login", "1", one) for one in (ASKED, EDITED))
    wish = e.Wish("login", ASKED)
    vote = e.Voted(verdict="approve", digest=digest, arguments=EDITED)
    found = [
        (THREAD.replied(1), e.ModelReplied(parts=(wish,))),
        (CALL.requested, e.ToolRequested("login", ASKED, digest, "1", run_by="desk")),
        (CALL.gated, e.ApprovalRequested(
            digest=digest, rule="r", policy_version=1, reason="", voters=("ana", "ben"),
            excluded=(), votes_needed=1, expires_in_s=None,
        )),
        (CALL.vote("ana"), vote),
        (CALL.vote("ben"), vote),
        (CALL.decided, e.Approved(
            digest=edited, ground="votes", voters=("ben",), rule="r", policy_version=1,
            arguments=EDITED,
        )),
        (CALL.claim(1), e.ToolStarted(digest=edited, idempotency_key=str(CALL))),
        (CALL.finished, e.ToolReturned(output="Done.", attempt=1)),
    ]  # fmt: skip
    return [Fact(seq, START, slot, event) for seq, (slot, event) in enumerate(found, 1)]


def test_a_call_is_shown_without_them_and_judged_with_them():
    """Digests, and which votes count, are those of the whole; no text of the call has the value."""
    told = facts()
    call = call_of(CALL, told)
    assert call.status == "returned"
    state, whole = call_state(call, HIDING), call_state(call, WHOLE)
    assert "zircon-2" in whole.arguments + str(whole.result)
    assert (state.digest, state.requested_digest) == (whole.digest, whole.requested_digest)
    assert (state.edited, state.status) == (True, whole.status)
    shown = [
        state,
        decided_call(call, HIDING),
        recorded_votes(call, HIDING),
        recorded(told[1:], HIDING),
        edit_words(call, HIDING),
        history(HIDING.thread(thread_of(THREAD, told))),
    ]
    for one in shown:
        assert "zircon" not in repr(one)
    assert "(secret)" in repr(shown[3])
    assert [one.void for one in shown[2]] == ["", ""]
    assert voids(call) == ()
    assert call.digest[:12] in shown[4]
    assert "zircon-1" in repr(history(thread_of(THREAD, told)))


def test_edits_that_differ_only_in_what_is_secret_are_two():
    other = '{"user":"rita","note":"zircon-3"}'
    call = call_of(CALL, facts()[:3])
    stands = Tally(0, 1, None, edits={EDITED: "ana", other: "ben"})
    assert call_state(call, WHOLE, stands).edits == {EDITED: "ana", other: "ben"}
    digests = [call_digest("login", "1", one)[:12] for one in (EDITED, other)]
    assert digests[0] != digests[1]
    assert call_state(call, HIDING, stands).edits == {
        '{"user":"rita","note":"(secret)"}': f"ana (digest {digests[0]}), ben (digest {digests[1]})"
    }


def test_of_what_this_program_cannot_read_nothing_is_shown_where_something_is_secret():
    """Nobody can say where a secret is in it. A receipt of such a call is not for everybody."""
    newer = e.Carried("ToolAsked", b'{"type":"ToolAsked","note":"zircon"}')
    asked = facts()[:3]
    told = [*asked, Fact(9, START, CALL.comment("ana", 1), newer)]
    elsewhere = Secrets({LOGIN: ("/other",)})
    call = call_of(CALL, told)
    for hiding in (HIDING, elsewhere, Secrets({LOGIN: None})):
        assert recorded(told, hiding)[-1].raw == ""
        assert hiding.hides_in(call)
    assert not elsewhere.hides_in(call_of(CALL, asked))
    for showing in (WHOLE, Secrets({LOGIN: ()})):
        assert "zircon" in recorded(told, showing)[-1].raw
        assert not showing.hides_in(call)


def test_only_what_is_left_out_counts_as_hidden():
    """Not a place that the call does not have; but all of it, if the declaration is unknown."""
    call = call_of(CALL, facts())
    assert HIDING.hides_in(call)
    assert Secrets({LOGIN: None}).hides_in(call)
    assert not Secrets({LOGIN: ("/other",)}).hides_in(call)
    assert not WHOLE.hides_in(call)
