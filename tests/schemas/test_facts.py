"""Facts: how they look on the wire, where they stand, and what an id may be."""

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ayes.schemas import codec
from ayes.schemas.codec import MAX_BYTES, Fact, decode, encode, fact_of
from ayes.schemas.digest import call_digest, text_digest
from ayes.schemas.errors import BadFact, BadId, BadSlot, TooLarge
from ayes.schemas.events import TYPES, VERSION, Carried, Denied, Said, Withdrawn
from ayes.schemas.ids import new_id, token
from ayes.schemas.slots import (
    BUDGET,
    DELEGATION,
    FILLED_BY,
    GRANT,
    ORGANISATION,
    ORGANISATIONS,
    POLICY,
    STOP,
    TOOL,
    CallRef,
    DelegationRef,
    GrantRef,
    Slot,
    ThreadRef,
    declarations,
    delegations,
    grants,
    policies,
    policy_slot,
    tool_slot,
)

SAMPLES = Path(codec.__file__).parent / "samples"
NOW = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
EVERY_VERSION = [(kind, version) for kind in TYPES for version in range(1, VERSION[kind] + 1)]


def sample(kind, version=1):
    return (SAMPLES / f"{kind}.v{version}.json").read_bytes()


# ----------------------------------------------------------------------------------------- the wire


@pytest.mark.parametrize(("kind", "version"), EVERY_VERSION)
def test_sample_is_read_as_its_type(kind, version):
    """A sample of every version of every type is read, whatever today's version is (I12)."""
    event = decode(sample(kind, version))
    assert type(event) is TYPES[kind]
    assert event.v == VERSION[kind]


@pytest.mark.parametrize("kind", TYPES)
def test_sample_is_written_byte_for_byte(kind):
    """A fact of today's version is written with the very bytes that it was read from (I11)."""
    raw = sample(kind, VERSION[kind])
    assert encode(decode(raw)) == raw


@pytest.mark.parametrize("kind", TYPES)
def test_sample_fills_every_field(kind):
    """A sample shows every field, so that a field that is renamed or dropped is noticed (I12)."""
    shown = set(json.loads(sample(kind, VERSION[kind])))
    assert shown - {"v"} == {"type", *TYPES[kind].__struct_encode_fields__} - {"v"}


def test_there_is_no_sample_of_anything_else():
    """Samples and types are the same list; an old sample is kept for as long as its type."""
    assert {path.name for path in SAMPLES.iterdir()} == {
        f"{kind}.v{v}.json" for kind, v in EVERY_VERSION
    }


def test_wire_name_is_spelled_out():
    """The name on the wire is the one that the samples know, whatever the class is called (I12)."""
    for kind in TYPES:
        assert json.loads(sample(kind))["type"] == kind


@pytest.mark.parametrize(
    ("raw", "kind", "event_id", "version"),
    [
        (b'{"type":"Pondered","id":"a1","v":3,"depth":7}', "Pondered", "a1", 3),
        (b'{ "depth" : 7, "type" : "Pondered" }', "Pondered", "", 1),
        (b'{"type":"Denied","id":"a1","v":2,"ground":"mood"}', "Denied", "a1", 2),
        (b'{"type":"Said","v":99,"role":"user","text":"x"}', "Said", "", 99),
    ],
)
def test_fact_from_the_future_is_carried(raw, kind, event_id, version):
    """A type or version that nobody here knows yet is kept byte for byte, never dropped (I12)."""
    event = decode(raw)
    assert event == Carried(type=kind, raw=raw, id=event_id, v=version)
    assert encode(event) == raw


def test_unknown_field_of_a_known_fact_is_skipped():
    """A newer writer may have added a field with a default; the fact is read all the same (I12)."""
    assert decode(b'{"type":"Withdrawn","reason":"x","mood":"sad"}') == Withdrawn(reason="x")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "is not a fact"),
        (b"hello", "is not a fact"),
        (b"[]", "is not a fact"),
        (b"{}", "is not a fact"),
        (b"null", "is not a fact"),
        (b'{"type":3}', "is not a fact"),
        (b'{"type":"Said","role":"user"', "is not a fact"),
        (b'{"type":"Said","role":"user"}', "a Said (version 1) is malformed"),
        (b'{"type":"Said","role":"robot","text":"x"}', "a Said (version 1) is malformed"),
        (b'{"type":"Voted","verdict":"perhaps","digest":"x"}', "a Voted (version 1) is malformed"),
        (b'{"type":"Denied","ground":"people","rule":"a"}', "policy_version"),
        (b'{"type":"Withdrawn","v":"1"}', "is not a fact"),
        (b'{"type":"Withdrawn","more":"\xff"}', "can't decode byte 0xff"),
    ],
)
def test_foreign_bytes_fail_loudly(raw, expected):
    """Bytes that are not a fact are reported, and never read as an empty one (B14)."""
    with pytest.raises(BadFact) as raised:
        decode(raw)
    assert expected in str(raised.value)


@pytest.mark.parametrize(
    ("subject", "raw", "expected"),
    [
        ("ledger.acme.t1.closed", sample("Said"), "there is no slot 'closed'"),
        ("ledger.acme.t1.said.m1", b"hello", "is not a fact"),
        ("ledger.acme.t1.said.m1", sample("Denied"),
         "a Denied cannot be in ledger.acme.t1.said.m1"),
    ],
)  # fmt: skip
def test_foreign_message_in_the_log_is_carried(subject, raw, expected):
    """A foreign message keeps its bytes, says why, and hides nothing behind it (B14, B55)."""
    fact = fact_of(7, NOW, subject, raw)
    assert (fact.seq, fact.recorded_at) == (7, NOW)
    assert isinstance(fact.event, Carried)
    assert fact.event.raw == raw
    assert expected in fact.event.problem


def test_message_in_the_log_is_a_fact():
    """A fact in its slot is read as itself; one from the future is carried on (I12)."""
    slot = ThreadRef("acme", "t1").said("m1")
    future = b'{"type":"Pondered","depth":7}'
    assert fact_of(7, NOW, slot.subject, sample("Said")) == Fact(
        7, NOW, slot, decode(sample("Said"))
    )
    assert fact_of(8, NOW, slot.subject, future).event == Carried(type="Pondered", raw=future)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"type":"Said","role":"user","text":"\xff"}', b'{"type":"\xff"}',
        b'{"type":"Withdrawn","v":0}', b'{"type":"Withdrawn","v":-1}',
        b'{"type":"Withdrawn","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"type":"Pondered","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=["not UTF-8", "type not UTF-8", "version 0", "version -1", "deep", "deep and unknown"],
)  # fmt: skip
def test_hostile_bytes_fail_the_same_way(raw):
    """No bytes get past `BadFact`: a poisoned message stops nobody (B14, B55)."""
    with pytest.raises(BadFact):
        decode(raw)


def test_old_version_is_lifted(monkeypatch):
    """A fact of an older version is read as one of today's (I12)."""
    raw = b'{"type":"Withdrawn","id":"a1","why":"Carol hung up."}'
    monkeypatch.setitem(VERSION, "Withdrawn", 2)
    monkeypatch.setitem(
        codec.UPCASTS,
        ("Withdrawn", 1),
        lambda old: (
            {key: value for key, value in old.items() if key != "why"} | {"reason": old["why"]}
        ),
    )
    assert decode(raw) == Withdrawn(id="a1", reason="Carol hung up.", v=2)


def test_old_version_is_lifted_step_by_step(monkeypatch):
    """Each step only knows the next version; a fact of any age goes through the rest (I12)."""
    monkeypatch.setitem(VERSION, "Withdrawn", 3)
    for step in (1, 2):
        monkeypatch.setitem(
            codec.UPCASTS,
            ("Withdrawn", step),
            lambda old, step=step: old | {"reason": f"{old['reason']}{step}"},
        )
    lifted = [
        decode(b'{"type":"Withdrawn","v":%d,"reason":"x"}' % version) for version in (1, 2, 3)
    ]
    assert [event.reason for event in lifted] == ["x12", "x2", "x"]
    assert {event.v for event in lifted} == {3}


def test_old_version_that_cannot_be_lifted_fails_loudly(monkeypatch):
    """A broken old fact is named with its version (B14)."""
    monkeypatch.setitem(VERSION, "Withdrawn", 2)
    monkeypatch.setitem(codec.UPCASTS, ("Withdrawn", 1), lambda old: old | {"reason": 3})
    with pytest.raises(BadFact, match=r"a Withdrawn \(version 1, converted to 2\) is malformed"):
        decode(b'{"type":"Withdrawn"}')


def test_lifted_fact_is_written_as_todays(monkeypatch):
    """A lifted fact written again says today's version, so that it is not lifted twice (I12)."""
    monkeypatch.setitem(VERSION, "Withdrawn", 2)
    monkeypatch.setitem(codec.UPCASTS, ("Withdrawn", 1), lambda old: old)
    again = encode(decode(b'{"type":"Withdrawn","reason":"x"}'))
    assert json.loads(again)["v"] == 2
    assert decode(again) == Withdrawn(reason="x", v=2)


def test_fact_over_the_limit_is_refused():
    """A fact that would not fit says what to do instead; one just below it fits."""
    beside = len(encode(Said(role="user", text="")))
    assert len(encode(Said(role="user", text="x" * (MAX_BYTES - beside)))) == MAX_BYTES
    with pytest.raises(TooLarge, match=r"a Said of 524,289 bytes is over the limit of 524,288"):
        encode(Said(role="user", text="x" * (MAX_BYTES - beside + 1)))


def test_half_a_surrogate_pair_is_refused():
    """A text that is not valid Unicode cannot be recorded; the message says so."""
    with pytest.raises(BadFact, match=r"a Denied has a text that is not valid Unicode"):
        encode(Denied(ground="people", rule="a", policy_version=1, reason="\ud800"))


@given(st.text())
@example("\u2028\x00\x7f 🙏 </script>")
def test_any_text_comes_back(text):
    """Arguments and outputs come back as they went in, to the last blank."""
    assert decode(encode(Said(role="user", text=text))) == Said(role="user", text=text)


# ---------------------------------------------------------------------------------------- the slots


def tail(shape):
    return tuple(
        {"*": "Ab_9-x", "#": "12", "%": "github=2Fget=2Eit"}.get(part, part) for part in shape
    )


@pytest.mark.parametrize("shape", FILLED_BY)
def test_every_slot_round_trips(shape):
    """Each place in the ledger is one subject, and the subject says which place it is (B24)."""
    own = {POLICY, TOOL, GRANT, DELEGATION, BUDGET, STOP, *ORGANISATIONS}
    thread = "" if shape[0] in own else "th-1"
    slot = Slot("acme", thread, tail(shape))
    assert Slot.parse(slot.subject) == slot
    assert Slot.parse(slot.subject).subject == slot.subject
    assert slot.filled_by == FILLED_BY[shape]


def test_every_fact_has_a_place():
    """There is no type of fact that could not be recorded anywhere."""
    assert {kind for kinds in FILLED_BY.values() for kind in kinds} == set(TYPES.values())


@pytest.mark.parametrize(
    ("slot", "subject"),
    [
        (ThreadRef("acme", "t1").opened, "ledger.acme.t1.opened"),
        (ThreadRef("acme", "t1").said("m1"), "ledger.acme.t1.said.m1"),
        (ThreadRef("acme", "t1").asked(2, 1), "ledger.acme.t1.turn.2.asked.1"),
        (ThreadRef("acme", "t1").replied(2), "ledger.acme.t1.turn.2.replied"),
        (ThreadRef("acme", "t1").wish(2, 0).requested, "ledger.acme.t1.call.2-0.requested"),
        (CallRef("acme", "t1", "2-0").gated, "ledger.acme.t1.call.2-0.gated"),
        (CallRef("acme", "t1", "2-0").vote("ana"), "ledger.acme.t1.call.2-0.vote.ana"),
        (CallRef("acme", "t1", "2-0").withdrawn, "ledger.acme.t1.call.2-0.withdrawn"),
        (CallRef("acme", "t1", "2-0").decided, "ledger.acme.t1.call.2-0.decided"),
        (CallRef("acme", "t1", "2-0").claim(1), "ledger.acme.t1.call.2-0.claim.1"),
        (CallRef("acme", "t1", "2-0").finished, "ledger.acme.t1.call.2-0.finished"),
        (CallRef("acme", "t1", "2-0").late(1), "ledger.acme.t1.call.2-0.late.1"),
        (CallRef("acme", "t1", "2-0").reconciled_by("ana"),
         "ledger.acme.t1.call.2-0.reconciled.ana"),
        (CallRef("acme", "t1", "2-0").escalated(2), "ledger.acme.t1.call.2-0.escalated.2"),
        (CallRef("acme", "t1", "2-0").announced, "ledger.acme.t1.call.2-0.announced"),
        (policy_slot("acme", 3), "ledger.acme._policy.3"),
        (policy_slot(ORGANISATION, 3), "ledger._organisation._policy.3"),
        (GrantRef("acme", "ana", "g1").given, "ledger.acme._grant.ana.g1.given"),
        (GrantRef("acme", "ana", "g1").revoked, "ledger.acme._grant.ana.g1.revoked"),
        (GrantRef("acme", "ana", "g1").used(2), "ledger.acme._grant.ana.g1.used.2"),
        (DelegationRef("acme", "ana", "d1").given, "ledger.acme._delegation.ana.d1.given"),
        (DelegationRef("acme", "ana", "d1").ended, "ledger.acme._delegation.ana.d1.ended"),
        (DelegationRef("acme", "ana", "d1").absent, "ledger.acme._delegation.ana.d1.absent"),
        (DelegationRef("acme", "ana", "d1").absent_ended,
         "ledger.acme._delegation.ana.d1.absent.ended"),
        (tool_slot("acme", "refund", "3f1c"), "ledger.acme._tool.refund.3f1c"),
    ],
)  # fmt: skip
def test_slot_has_the_subject_that_is_promised(slot, subject):
    """Subjects are what permissions are written on: they stay as they are."""
    assert slot.subject == subject
    assert Slot.parse(subject) == slot


def test_slot_knows_its_call_and_thread():
    """A slot says which thread and call it belongs to, and nothing belongs to two (B22)."""
    vote = Slot.parse("ledger.acme.t1.call.2-0.vote.ana")
    assert (vote.thread_ref, vote.call_ref) == (
        ThreadRef("acme", "t1"),
        CallRef("acme", "t1", "2-0"),
    )
    assert Slot.parse("ledger.acme.t1.opened").call_ref is None
    assert (policies("acme"), declarations("acme", "refund")) == (
        "ledger.acme._policy.*", "ledger.acme._tool.refund.*"
    )  # fmt: skip
    assert policies(ORGANISATION) == "ledger._organisation._policy.*"
    assert (grants("acme"), delegations("acme")) == (
        "ledger.acme._grant.>",
        "ledger.acme._delegation.>",
    )
    assert GrantRef("acme", "ana", "g1").subjects == "ledger.acme._grant.ana.g1.>"


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("", "not a subject of the ledger"),
        ("ledger", "not a subject of the ledger"),
        ("ledger.acme", "not a subject of the ledger"),
        ("timer.acme.t1.opened", "not a subject of the ledger"),
        ("ledger.acme.t1", "no slot"),
        ("ledger.acme.t1.closed", "no slot 'closed'"),
        ("ledger.acme.t1.opened.twice", "no slot"),
        ("ledger.acme.t1.call.2-0", "no slot"),
        ("ledger.acme.t1.call.2-0.vote", "no slot"),
        ("ledger.acme.t1.call.2-0.claim.0", "no slot"),
        ("ledger.acme.t1.call.2-0.claim.01", "no slot"),
        ("ledger.acme.t1.call.2-0.claim.-1", "no slot"),
        ("ledger.acme.t1.call.2-0.claim.one", "no slot"),
        ("ledger.acme.t1.call.2-0.claim.²", "no slot"),
        ("ledger.acme.t1.call.2-0.claim.1234567890", "no slot"),
        ("ledger.acme.t1.call.*.decided", "is not a slot: id '*' cannot be used"),
        ("ledger.acme.t1.call..decided", "is not a slot: id '' cannot be used"),
        ("ledger.acme.>", "is not a slot"),
        ("ledger.a b.t1.opened", "workspace 'a b' cannot be used"),
        ("ledger._acme.t1.opened", "workspace '_acme' cannot be used"),
        ("ledger.acme._grant.1", "no slot"),
        ("ledger.acme._grant.ana.given", "no slot"),
        ("ledger.acme._grant.ana.g1.ended", "no slot"),
        ("ledger.acme._grant.ana.g1.used.0", "no slot"),
        ("ledger.acme._grant._ana.g1.given", "id '_ana' cannot be used"),
        ("ledger.acme._delegation.ana.d1.revoked", "no slot"),
        ("ledger.acme.t1.call.2-0.escalated.0", "no slot"),
        ("ledger.acme.t1.call.2-0.announced.1", "no slot"),
        ("ledger._organisation.t1.opened", "workspace '_organisation' cannot be used"),
        ("ledger._organisation.t1.call.2-0.decided", "workspace '_organisation' cannot be used"),
        ("ledger._other._policy.1", "workspace '_other' cannot be used"),
        ("ledger.acme._policy.x", "no slot"),
        ("ledger.acme.t1._policy.1", "no slot"),
        ("LEDGER.acme.t1.opened", "not a subject of the ledger"),
    ],
)
def test_subject_that_is_no_slot_is_refused(subject, expected):
    """A subject that means nothing is an error with its name, never a fact somewhere else (B19)."""
    with pytest.raises(BadSlot) as raised:
        Slot.parse(subject)
    assert expected in str(raised.value)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (ThreadRef.parse, "acme"),
        (ThreadRef.parse, "acme/t1/2-0"),
        (CallRef.parse, "acme/t1"),
        (CallRef.parse, "acme/t1/2-0/1"),
        (CallRef.parse, "2-0"),
        (CallRef.parse, ""),
        (GrantRef.parse, "acme/ana"),
        (GrantRef.parse, "ana/g1/x/y"),
        (DelegationRef.parse, "acme"),
    ],
)
def test_id_of_the_wrong_kind_is_a_named_error(read, text):
    """A thread's id is no call's, and half an id is none (B19)."""
    with pytest.raises(BadSlot, match="is not of the form workspace/"):
        read(text)


def test_refs_round_trip():
    """What a person copies from one command is understood by the next (B24)."""
    assert CallRef.parse("acme/t1/2-0") == CallRef("acme", "t1", "2-0")
    assert str(CallRef.parse("acme/t1/2-0")) == "acme/t1/2-0"
    assert str(ThreadRef.parse("acme/t1")) == "acme/t1"
    assert CallRef.parse("acme/t1/2-0").thread_ref == ThreadRef.parse("acme/t1")
    assert (
        str(GrantRef.parse("acme/ana/g1"))
        == str(DelegationRef.parse("acme/ana/g1"))
        == "acme/ana/g1"
    )
    assert (
        GrantRef.parse("acme/ana/g1")
        == GrantRef("acme", "ana", "g1")
        != DelegationRef.parse("acme/ana/g1")
    )


# ------------------------------------------------------------------------------------------ the ids


GOOD_IDS = [
    "a", "7", "-", "A_b-9", "x" * 64, "a_", "2-0",
    "constructor", "proto", "toString", "None", "null", "true", "opened", "ledger", "call",
]  # fmt: skip
BAD_IDS = [
    "", ".", "a.b", "a b", " a", "a\n", "a\t", "a/b", "a\\b", "*", ">", "a*", "$a", "a:b",
    "_a", "_", "__proto__", "_policy", "x" * 65, "ü", "\u0661", "\uff41", "a\u200b", "a\x00",
    "\ud800", None, 7, b"a", ["a"],
]  # fmt: skip


@pytest.mark.parametrize("good", GOOD_IDS)
def test_ordinary_id_is_taken_everywhere(good):
    """An id is an id, even one that some language has built in (B24, B25)."""
    assert token("thread", good) == good
    for slot in (ThreadRef(good, good).said(good), CallRef(good, good, good).vote(good)):
        assert Slot.parse(slot.subject) == slot
    assert CallRef.parse(f"{good}/{good}/{good}") == CallRef(good, good, good)


@pytest.mark.parametrize(
    "use",
    [
        lambda bad: token("thread", bad),
        lambda bad: ThreadRef(bad, "t1"),
        lambda bad: ThreadRef("acme", bad),
        lambda bad: CallRef("acme", "t1", bad),
        lambda bad: ThreadRef("acme", "t1").said(bad),
        lambda bad: CallRef("acme", "t1", "2-0").vote(bad),
        lambda bad: GrantRef(bad, "ana", "g1"),
        lambda bad: GrantRef("acme", bad, "g1"),
        lambda bad: DelegationRef("acme", "ana", bad),
        grants,
        delegations,
        lambda bad: policy_slot(bad, 1),
        lambda bad: tool_slot("acme", "refund", bad),
        policies,
    ],
)
def test_id_that_could_mean_something_else_is_refused(use):
    """Dots, blanks, slashes, wildcards, `_` first, too long, empty, not ASCII (B19, B24, B74)."""
    assert [bad for bad in BAD_IDS if not _is_refused(use, bad)] == []


def _is_refused(use, bad):
    try:
        use(bad)
    except BadId as problem:
        return "an id is 1 to 64 characters of A-Z a-z 0-9 _ -" in str(problem)
    return False


@given(st.from_regex(r"[A-Za-z0-9-][A-Za-z0-9_-]{0,63}", fullmatch=True))
def test_any_id_round_trips_through_a_subject(some):
    """Whatever is taken as an id comes back from the subject as it was (B24)."""
    slot = CallRef(some, some, some).vote(some)
    assert Slot.parse(slot.subject) == slot


def test_event_ids_are_new_and_sorted():
    """Event ids never repeat, and sort by when they were minted (B21)."""
    ids = [new_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert ids == sorted(ids)


# ------------------------------------------------------------------------------------------ digests


def test_digest_is_the_one_that_is_documented():
    """Anyone can compute a call's digest by hand, as the module says (B63)."""
    by_hand = hashlib.sha256(b'6:refund2:v1{"order":"A-17"}').hexdigest()
    assert call_digest("refund", "v1", '{"order":"A-17"}') == by_hand
    assert text_digest("ü") == hashlib.sha256("ü".encode()).hexdigest()


calls = st.tuples(st.text("1:a{ü"), st.text("1:a{ü"), st.text("1:a{ü"))


@given(calls, calls)
@example(("a", "b", "c"), ("ab", "", "c"))
@example(("1:a", "", ""), ("", "1:a", ""))
@example(("ü", "", ""), ("", "ü", ""))
def test_different_calls_have_different_digests(one, other):
    """No two different calls are written down the same before they are hashed (B63)."""
    assert (call_digest(*one) == call_digest(*other)) == (one == other)


@pytest.mark.parametrize("arguments", ['{"a": 1}', '{"a":1.0}', '{"a":1} ', '{"a":1,"a":1}'])
def test_digest_is_over_the_bytes_that_came(arguments):
    """Texts that parse to the same value are still different calls (B61)."""
    assert call_digest("t", "v", arguments) != call_digest("t", "v", '{"a":1}')
