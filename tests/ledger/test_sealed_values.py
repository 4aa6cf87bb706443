"""The cryptography of sealed values: what opens one, and what does not."""

import base64
import os

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from hypothesis import given
from hypothesis import strategies as st

from ayes.ledger import sealed_values
from ayes.ledger.sealed_values import (
    NOTHING_SEALED,
    Opened,
    Unopened,
    commitment,
    seal,
    unseal,
)
from ayes.schemas import events as e
from ayes.schemas.sealed import SEALED, is_token

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


def times(one: int, other: int) -> int:
    """The product in the field of GCM (NIST SP 800-38D, 6.3)."""
    product = 0
    for bit in range(127, -1, -1):
        product ^= other if one >> bit & 1 else 0
        other = other >> 1 ^ (0xE1 << 120 if other & 1 else 0)
    return product


def block(key: bytes, plain: bytes) -> int:
    cipher = Cipher(AES(key), ECB()).encryptor()
    return int.from_bytes(cipher.update(plain))


def of_two_keys(one: bytes, other: bytes, nonce: bytes, bound: bytes) -> bytes:
    """A ciphertext of 32 bytes with a tag that is right under both keys: the tag is linear in each
    block, so the second block is the solution of one equation.
    """

    def unfinished(key: bytes) -> tuple[int, int]:
        of_zero, tag = block(key, bytes(16)), 0
        padded = bound + bytes(-len(bound) % 16) + bytes(32)
        lengths = (len(bound) * 8).to_bytes(8) + (256).to_bytes(8)
        for at in range(0, len(whole := padded + lengths), 16):
            tag = times(tag ^ int.from_bytes(whole[at : at + 16]), of_zero)
        return times(of_zero, of_zero), tag ^ block(key, nonce + (1).to_bytes(4))

    (square, tag), (others_square, others_tag) = unfinished(one), unfinished(other)
    inverse, factor = 1 << 127, square ^ others_square
    for _ in range(127):  # factor ** (2 ** 128 - 2)
        factor = times(factor, factor)
        inverse = times(inverse, factor)
    second = times(tag ^ others_tag, inverse)
    return bytes(16) + second.to_bytes(16) + (tag ^ times(second, square)).to_bytes(16)


def test_a_ciphertext_that_opens_under_two_keys_opens_under_the_committed_one_alone():
    """AES-GCM does not bind a key (criterion F2): whoever seals could show another value later."""
    nonce, bound = bytes(12), sealed_values._bound(SUBJECT, PLACE)
    keys = [sealed_values._hmac(key, b"ayes seal 1") for key in (KEY, OTHER)]
    text = of_two_keys(*keys, nonce, bound)
    opened = [AESGCM(key).decrypt(nonce, text, bound) for key in keys]
    assert opened[0] != opened[1]
    both = base64.urlsafe_b64encode(nonce + text).decode().rstrip("=")
    token = f"ayes:sealed:1:{commitment(KEY)[:16]}:{both}"
    assert is_token(token)
    with pytest.raises(Unopened, match="another key"):
        unseal(OTHER, commitment(KEY), SUBJECT, PLACE, token)


@pytest.mark.parametrize("committed", ["", "\u00e9", commitment(KEY)[:16], commitment(KEY).upper()])
def test_a_commitment_that_is_none_opens_nothing(committed: str):
    """Any service can record one, so it is a text like any other."""
    with pytest.raises(Unopened, match="another key"):
        unseal(KEY, committed, SUBJECT, PLACE, token_of())


@pytest.mark.parametrize("token", [None, 4111, True, ["a"], {"a": 1}, "", "4111"])
def test_what_is_no_token_opens_nothing(token):
    with pytest.raises(Unopened):
        unseal(KEY, commitment(KEY), SUBJECT, PLACE, token)


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
    assert said.error == "no (sealed), (sealed), (sealed), 12, ****!"
    parts = (e.Text('charged 4111-é"x'), e.Text("ok"))
    assert plain.scrubbed(e.ToolReturned(output=parts)).output == (
        e.Text("charged (sealed)"), e.Text("ok"),
    )  # fmt: skip
    assert plain.scrubbed(e.InDoubt(attempt=1, text="4223?")).text == "****?"


def test_a_value_that_is_a_part_of_another_leaves_nothing_of_it():
    values = {
        "/bin": '"4111"',
        "/last": '"1111"',
        "/card": '"4111 1111 1111 1111"',
        "/word": '"sealed"',
    }
    plain = Opened("{}", values)
    assert plain.said("4111 1111 1111 1111, 1111, sealed") == "(sealed), ****, ******"
    assert NOTHING_SEALED.said("as it is") == "as it is"


def test_an_output_is_never_longer_without_its_values():
    """It may be as large as can be recorded: the tool has run, so its end must be."""
    values = {"/pin": '"1234"', "/card": '"4111-1111"'}
    said = Opened("{}", values).said("1234 4111-1111 " * 9)
    assert said == "**** (sealed) " * 9


@pytest.mark.parametrize(
    "said",
    [
        repr({"name": 'O\'Brien "x" & Co'}),
        "/pay?to=O%27Brien%20%22x%22%20%26%20Co",
        "/pay?to=O%27Brien+%22x%22+%26+Co",
    ],
)
def test_a_value_is_recognised_as_errors_cite_it(said: str):
    """In the form of Python's `repr`, as of a missing key, and of the URL that was asked."""
    plain = Opened("{}", {"/name": '"O\'Brien \\"x\\" & Co"'})
    assert "Brien" not in plain.said(said)
    assert SEALED in plain.said(said)


def test_what_is_said_of_a_file_or_a_source_is_a_text_too():
    card = "4111-1111"
    parts = (
        e.Text("see", (e.Citation(f"https://x/{card}", card, card, "p", card),)),
        e.Media("text/plain", e.Inline("aGk="), f"receipt of {card}.txt", card),
        e.Media("image/png", e.Linked(f"https://x/?card={card}")),
        e.Media("image/png", e.Uploaded("p", f"file-{card}")),
        e.Media("image/png", e.Stored("0" * 64, 2)),
    )
    scrubbed = Opened("{}", {"/card": f'"{card}"'}).scrubbed(e.ToolReturned(output=parts))
    assert scrubbed.output == (
        e.Text("see", (e.Citation(f"https://x/{SEALED}", SEALED, SEALED, "p", SEALED),)),
        e.Media("text/plain", e.Inline("aGk="), f"receipt of {SEALED}.txt", SEALED),
        e.Media("image/png", e.Linked(f"https://x/?card={SEALED}")),
        e.Media("image/png", e.Uploaded("p", f"file-{SEALED}")),
        parts[-1],
    )


def test_keys_are_not_of_a_kind_that_repeats():
    assert commitment(os.urandom(32)) != commitment(os.urandom(32))
