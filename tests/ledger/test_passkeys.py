"""Passkeys: what a browser and a device sign, and each way in which it is not what was asked."""

from typing import Any

import pytest
from authenticator import Authenticator
from passkey_vectors import ORIGIN, RP, WANTED, taken_apart, vectors

from ayes.ledger.passkeys import Assertion, flaw, is_taken
from ayes.ledger.signing import Signature

kinds = pytest.mark.parametrize("kind", ["ES256", "Ed25519"])


@kinds
def test_what_was_asked_is_taken(kind: str):
    """Also with fields that a browser adds, and with what a device appends."""
    device = Authenticator(RP, kind)
    for more in {}, {"other_keys_can_be_added_here": "do not compare with a template"}:
        assert flaw(device.public, device.signs(WANTED, ORIGIN, **more), WANTED, {ORIGIN}) == ""
    backed_up = device.signs(WANTED, ORIGIN, flags=0x1D)
    assert flaw(device.public, backed_up, WANTED, {ORIGIN}) == ""


@kinds
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"type": "webauthn.create"}, "it was made for something else than to sign"),
        ({"challenge": "AAAA"}, "it is about something else"),
        ({"origin": "https://ayes.example"}, "it was made on a page of 'https://ayes.example'"),
        ({"origin": True}, "it was made on a page of 'True'"),
        ({"crossOrigin": True}, "the page was in a frame of another one"),
        ({"crossOrigin": "false"}, "the page was in a frame of another one"),
        ({"topOrigin": ORIGIN}, "the page was in a frame of another one"),
        ({"rp": "example"}, "the key was used for another domain than ayes.example"),
        ({"flags": 0x01}, "the device did not ask who its person is"),
        ({"flags": 0x04}, "the device did not ask who its person is"),
    ],
)
def test_nothing_else_is(kind: str, changed: dict[str, Any], why: str):
    device = Authenticator(RP, kind)
    said = device.signs(WANTED, **{"origin": ORIGIN, **changed})
    assert flaw(device.public, said, WANTED, {ORIGIN}) == why


@kinds
def test_each_bit_counts(kind: str):
    """Of the three parts, none can be flipped."""
    device = Authenticator(RP, kind)
    said = device.signs(WANTED, ORIGIN)
    for part in Assertion._fields:
        whole = getattr(said, part)
        for bit in range(8 * len(whole)):
            other = bytearray(whole)
            other[bit // 8] ^= 1 << bit % 8
            changed = said._replace(**{part: bytes(other)})
            assert flaw(device.public, changed, WANTED, {ORIGIN}), (part, bit)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"type":"webauthn.get","type":"x"}',
        b'{"type": "webauthn.get"}',
        b'{"type":"webauthn\\u002eget"}',
        b'{"type":1}',
        b'\xef\xbb\xbf{"type":"webauthn.get"}',
        b'{"type":"webauthn.get"}\n',
        '{"type":"webauthn.get"}'.encode("utf-16"),
    ],
)
def test_what_no_browser_says_is_refused(text: bytes):
    device = Authenticator(RP)
    said = device.signs(WANTED, ORIGIN)._replace(client=text)
    assert flaw(device.public, said, WANTED, {ORIGIN}) == "it is not what a browser signs"
    short = device.signs(WANTED, ORIGIN)._replace(authenticator=bytes(36))
    assert flaw(device.public, short, WANTED, {ORIGIN}) == "it is not what a browser signs"


def test_another_key_has_signed_it():
    one, other = Authenticator(RP), Authenticator(RP, "Ed25519")
    said = one.signs(WANTED, ORIGIN)
    assert flaw(other.public, said, WANTED, {ORIGIN}) == "another key has signed it"
    odd = type(one.public)("ana/0", RP, b"no key")
    assert flaw(odd, said, WANTED, {ORIGIN}) == "another key has signed it"


@pytest.mark.parametrize("vector", vectors(), ids=lambda one: one["name"])
def test_the_vectors_that_all_programs_judge(vector: dict[str, Any]):
    """The same ones as the client in TypeScript and the page of receipts."""
    key, said = taken_apart(vector)
    why = flaw(key, said, WANTED, {ORIGIN})
    is_written = str(Signature.parse(vector["signature"])) == vector["signature"]
    assert (why == "" and is_written) is vector["taken"], why
    assert is_taken(key.spki) is vector["is_key"]
