"""The cryptography of sealed values: what opens one, and what does not."""

import base64
import os

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from ayes.ledger import sealed_values
from ayes.ledger.sealed_values import Opened, Unopened, commitment, seal, unseal
from ayes.schemas import events as e
from ayes.schemas.sealed import is_token

KEY, OTHER = bytes(range(32)), bytes(32)
SUBJECT, PLACE = "ledger.shop.t.call.c.requested", "/card"
RAW = '"4111 1111 1111 1111"'


def token_of(raw: str = RAW, key: bytes = KEY) -> str:
    return seal(key, SUBJECT, PLACE, raw)


def sealed_as(plain: bytes, key: bytes = KEY, nonce: bytes = bytes(12)) -> str:
    """A token that no client of ours makes."""
    bound = sealed_values._bound(SUBJECT, PLACE)
    text = nonce + sealed_values._cipher(key).encrypt(nonce, plain, bound)
    return f"ayes:sealed:1:{commitment(key)[:16]}:{base64.urlsafe_b64encode(text).decode()}".rstrip(
        "="
    )


@given(st.text(max_size=200) | st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_what_was_sealed_is_opened(value: str | float):
    import json

    raw = json.dumps(value)
    token = seal(KEY, SUBJECT, PLACE, raw)
    assert is_token(token)
    assert unseal(KEY, commitment(KEY), SUBJECT, PLACE, token) == raw


def test_a_request_that_is_repeated_has_the_same_bytes_and_no_other_value_has_them():
    assert token_of() == token_of()
    assert len({token_of('"a"'), token_of('"b"'), seal(KEY, SUBJECT, "/b", '"a"'),
                seal(KEY, "ledger.shop.t.call.d.requested", PLACE, '"a"'),
                token_of('"a"', OTHER)}) == 5  # fmt: skip


def test_a_length_is_told_to_32_bytes_only():
    assert len(token_of('"ana"')) == len(token_of('"christopher-alexander"'))


@pytest.mark.parametrize(
    ("subject", "place"),
    [("ledger.shop.t.call.d.requested", PLACE), (SUBJECT, "/cvc"), (SUBJECT + "/", "card")],
)
def test_a_token_opens_nowhere_else(subject: str, place: str):
    with pytest.raises(Unopened):
        unseal(KEY, commitment(KEY), subject, place, token_of())


@pytest.mark.parametrize("length", [4, 40], ids=["without spare bits", "with spare bits"])
def test_each_changed_character_is_refused(length: int):
    """Also those whose bits base64 ignores: a value has one token."""
    token = token_of(f'"{"4" * length}"')
    for at in range(len("ayes:sealed:1:") + 17, len(token)):
        for other in {*"AQgwBRhx_"} - {token[at]}:
            with pytest.raises(Unopened):
                unseal(KEY, commitment(KEY), SUBJECT, PLACE, token[:at] + other + token[at + 1 :])
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for other in {*last} - {token[-1]}:
        with pytest.raises(Unopened):
            unseal(KEY, commitment(KEY), SUBJECT, PLACE, token[:-1] + other)


def test_a_ciphertext_that_opens_under_two_keys_opens_under_the_committed_one_alone(monkeypatch):
    """AES-GCM does not bind a key (criterion F2): whoever seals could show another value later."""
    # The shape of that attack, without its algebra: a second key that decrypts the same token.
    nonce, bound = bytes(12), sealed_values._bound(SUBJECT, PLACE)
    plain = b'"4111"'.ljust(32)
    text = nonce + AESGCM(KEY).encrypt(nonce, plain, bound)
    monkeypatch.setattr(sealed_values, "_cipher", lambda _key: AESGCM(KEY))
    both = base64.urlsafe_b64encode(text).decode().rstrip("=")
    token = f"ayes:sealed:1:{commitment(OTHER)[:16]}:{both}"
    with pytest.raises(Unopened, match="another key"):
        unseal(OTHER, commitment(KEY), SUBJECT, PLACE, token)


def test_a_key_with_the_same_name_and_another_commitment_opens_nothing():
    """The token names sixteen digits of it; the whole of it is compared."""
    half = commitment(KEY)[:16] + commitment(OTHER)[16:]
    with pytest.raises(Unopened, match="another key"):
        unseal(KEY, half, SUBJECT, PLACE, token_of())


@pytest.mark.parametrize(
    "plain",
    [b'{"amount":1}', b'["a"]', b'"a" "b"', b"true", b"null", b"", b"\xff", b'"a"', b"1e999"],
)
def test_what_holds_another_thing_than_one_text_or_number_is_not_opened(plain: bytes):
    """Its service sealed it with the right key, past our client. Nor is one that is not padded."""
    with pytest.raises(Unopened) as raised:
        unseal(KEY, commitment(KEY), SUBJECT, PLACE, sealed_as(plain.ljust(36)))
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


def test_nothing_prints_what_was_opened():
    plain = Opened('{"card":"4111"}', {"/card": '"4111"'})
    assert "4111" not in f"{plain!r} {plain} {[plain]}"


def test_a_value_is_taken_out_of_what_its_tool_says():
    """As it is, and as JSON has it; of a short one there is none to recognise."""
    values = {"/card": '"4111-\\u00e9\\"x"', "/pin": '"12"', "/number": "4223"}
    plain = Opened("{}", values)
    said = plain.scrubbed(
        e.ToolFailed(error='no 4111-é"x, 4111-\\u00e9\\"x, 4111-é\\"x, 12, 4223!')
    )
    assert said.error == "no (sealed), (sealed), (sealed), 12, (sealed)!"
    parts = (e.Text('charged 4111-é"x'), e.Text("ok"))
    assert plain.scrubbed(e.ToolReturned(output=parts)).output == (
        e.Text("charged (sealed)"), e.Text("ok"),
    )  # fmt: skip
    assert plain.scrubbed(e.InDoubt(attempt=1, text="4223?")).text == "(sealed)?"


def test_keys_are_not_of_a_kind_that_repeats():
    assert commitment(os.urandom(32)) != commitment(os.urandom(32))
