"""What people sign: each part of it counts, and a signature has one text."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ayes.ledger import signing
from ayes.ledger.seal import SignerKey
from ayes.ledger.signing import Bound, Signature, fingerprint, key_digest, key_id, vote_digest
from ayes.schemas import events as e
from ayes.schemas.digest import call_digest
from ayes.schemas.slots import CallRef

LOG = "4f6b8c1de2f04a7c9d3e5b6a7c8d9e0f"
KEY = SignerKey(f"ana/{LOG}", bytes(range(32)))
BOUND = Bound(LOG, *(hashlib.sha256(one).hexdigest() for one in (b"{1}", b"{2}", b"{3}")))
REF = CallRef("shop", "order-17", "refund-1")
WISH = e.ToolRequested(
    tool="refund",
    tool_version="v1",
    arguments='{"order":"A-17"}',
    digest=call_digest("refund", "v1", '{"order":"A-17"}'),
)
VOTE = e.Voted(verdict="approve", digest=WISH.digest, reason="as agreed")
SAMPLE = (BOUND, REF, WISH, "ana", VOTE, 1_795_622_400)


def by_hand(bound, ref, wish, reviewer, vote, until):
    """The same as `vote_digest`, written a second time."""

    def digest(text):
        return hashlib.sha256(text.encode()).hexdigest()

    runs = vote.arguments if vote.arguments is not None else wish.arguments
    tool, version = wish.tool, wish.tool_version
    called = f"{len(tool.encode())}:{tool}{len(version.encode())}:{version}{runs}"
    content = ("error\n" if vote.is_error else "answer\n") + vote.answer
    fields = [bound.log, ref.workspace, ref.thread, ref.call, reviewer, vote.on_behalf_of]
    fields += [vote.verdict, "1" * vote.halt, digest(called)]
    fields += [digest(content) if vote.answer or vote.is_error else ""]
    fields += [digest(vote.reason) if vote.reason else ""]
    fields += [bound.requested, bound.gated, bound.policy, str(until)]
    text = "ayes vote 1\n" + "".join(f"{len(one.encode())}:{one}" for one in fields)
    return hashlib.sha256(text.encode()).digest()


#: Of each field that is signed, a vote in which it alone is another one.
CHANGED = {
    "log": (replace(BOUND, log="0" * 32), *SAMPLE[1:]),
    "workspace": (BOUND, CallRef("bank", "order-17", "refund-1"), *SAMPLE[2:]),
    "thread": (BOUND, CallRef("shop", "order-18", "refund-1"), *SAMPLE[2:]),
    "call": (BOUND, CallRef("shop", "order-17", "refund-2"), *SAMPLE[2:]),
    "tool": (*SAMPLE[:2], replace(WISH, tool="refunds"), *SAMPLE[3:]),
    "tool_version": (*SAMPLE[:2], replace(WISH, tool_version="v2"), *SAMPLE[3:]),
    "requested arguments": (*SAMPLE[:2], replace(WISH, arguments="{}"), *SAMPLE[3:]),
    "reviewer": (*SAMPLE[:3], "ben", *SAMPLE[4:]),
    "until": (*SAMPLE[:5], SAMPLE[5] + 1),
    **{
        name: (replace(BOUND, **{name: "0" * 64}), *SAMPLE[1:])
        for name in ("requested", "gated", "policy")
    },
    **{
        name: (*SAMPLE[:4], replace(VOTE, **{name: other}), SAMPLE[5])
        for name, other in {
            "on_behalf_of": "ben",
            "verdict": "deny",
            "halt": True,
            "arguments": "{}",
            "answer": "yes, paid",
            "is_error": True,
            "reason": "I take the blame",
        }.items()
    },
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_signature_is_of_one_vote_alone(what):
    """Whatever is another one in a vote, its signature is not that of the first one."""
    signature = KEY.sign(vote_digest(*SAMPLE))
    assert KEY.public.verifies(signature, by_hand(*SAMPLE))
    assert not KEY.public.verifies(signature, vote_digest(*CHANGED[what]))
    assert vote_digest(*CHANGED[what]) == by_hand(*CHANGED[what])


def test_every_part_of_a_vote_is_signed():
    """A field that is added to a vote is signed too, or stands here with a reason."""
    envelope = {*e.Event.__struct_fields__}
    #: The digest is that of the question, whose fact is signed.
    unsigned = {"signature", "digest"}
    assert {*e.Voted.__struct_fields__} - envelope - unsigned <= {*CHANGED}


TEXTS = st.lists(st.text(max_size=5), max_size=4)


@given(TEXTS, TEXTS)
def test_no_two_lists_of_fields_are_the_same_bytes(one, other):
    assert (signing._digest("x", one) == signing._digest("x", other)) is (one == other)


def test_a_signature_for_one_purpose_is_none_for_another():
    fields = ("a", "b", "c")
    purposes = ("ayes vote 1", "ayes key 1", "ayes grant 1")
    digests = [signing._digest(one, fields) for one in purposes]
    assert len({*digests}) == len(purposes)
    text = f"ayes key 1\n{len(LOG)}:{LOG}3:ana{len(str(KEY.public))}:{KEY.public}"
    assert key_digest(LOG, "ana", KEY.public) == hashlib.sha256(text.encode()).digest()


def test_a_signature_has_one_text():
    """Each other way to write the same one is refused: a vote cannot be written anew."""
    text = signing.signed(KEY, b"x" * 32, 1_795_622_400)
    found = Signature.parse(text)
    assert found is not None
    assert found == (key_id(KEY.public), 1_795_622_400, KEY.sign(b"x" * 32))
    assert str(found) == text
    head, last = text[:-1], text[-1]
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    spare = [head + one for one in alphabet if one != last]
    others = (f"{text}=", f"{text}==", f" {text}", f"{text}\n", text.replace(".1795", ".+1795"))
    others += (text.replace(".1795", ".01795"), text.replace("ed25519", "ED25519"), "", ".", "a.b")
    others += (text.replace("ed25519.1", "ed25519.2"), text.replace(".", ".."), text[:-4])
    others += (text.replace(".179", ".\N{ARABIC-INDIC DIGIT ONE}79"),)
    known = [Signature.parse(one) for one in (*spare, *others)]
    raw = [one.raw for one in known if one is not None]
    assert found.raw not in raw


def test_a_fingerprint_is_of_the_key_in_its_usual_form():
    """As `openssl pkey -pubout -outform DER | sha256sum` begins."""
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    public = ed25519.Ed25519PublicKey.from_public_bytes(KEY.public.public)
    der = public.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    digits = hashlib.sha256(der).hexdigest()
    groups = fingerprint(KEY.public).split(" ")
    assert "".join(groups) == digits[:32]
    assert {len(one) for one in groups} == {4}
    assert key_id(KEY.public) == digits[:16]
