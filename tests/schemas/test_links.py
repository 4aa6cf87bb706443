"""Tokens in links: what they are bound to, and what they say."""

import re
import time

import pytest

from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.link_key import FILE, link_key
from ayes.schemas.errors import BadFile, BadInput
from ayes.schemas.links import action_token, find_call, keyed_token, open_link
from ayes.schemas.slots import CallRef

KEY = bytes(range(32))
CALL = CallRef("shop", "order-17", "refund-1")
DIGEST = "3f9a" * 16


@pytest.mark.parametrize(
    "other",
    [
        (bytes(32), "ana", CALL, DIGEST),
        (KEY, "ben", CALL, DIGEST),
        (KEY, "ana", CallRef("shop", "order-17", "refund-2"), DIGEST),
        (KEY, "ana", CallRef("shop2", "order-17", "refund-1"), DIGEST),
        (KEY, "ana", CALL, "4f9a" + DIGEST[4:]),
        (KEY, "an", CallRef("a-shop", "order-17", "refund-1"), DIGEST),
    ],
)
def test_a_token_is_bound_to_key_person_call_and_digest(other):
    """B75."""
    key, person, call, digest = other
    token = action_token(KEY, "ana", CALL, DIGEST)
    assert action_token(*other) != token
    assert find_call(KEY, "ana", token, [(CALL, DIGEST)]) == CALL
    assert find_call(key, person, token, [(call, digest)]) is None


def test_a_token_says_nothing():
    """B75: neither whose it is nor about what; and the same parts divided otherwise differ."""
    token = action_token(KEY, "ana", CALL, DIGEST)
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", token)
    assert keyed_token(KEY, "p", "ab", "c") != keyed_token(KEY, "p", "a", "bc")
    assert open_link("https://ayes.example/", token) == f"https://ayes.example/open/{token}"


@pytest.mark.parametrize("token", ["", "x", "ä" * 43, "\ud800", "A" * 5000])
def test_what_is_no_token_finds_nothing(token):
    assert find_call(KEY, "ana", token, [(CALL, DIGEST)]) is None


def test_a_person_is_compared_as_one():
    """As everywhere: without case."""
    assert action_token(KEY, "Ana", CALL, DIGEST) == action_token(KEY, "ana", CALL, DIGEST)


def test_ten_thousand_pending_calls_are_searched_quickly():
    """In well under a second: the console does it for each link that is opened."""
    waiting = [(CallRef("shop", f"order-{n}", "refund-1"), DIGEST) for n in range(10_000)]
    token = action_token(KEY, "ana", waiting[-1][0], DIGEST)
    took = []
    for _ in range(5):
        begun = time.process_time()
        assert find_call(KEY, "ana", token, waiting) == waiting[-1][0]
        took.append(time.process_time() - begun)
    assert min(took) < 1


def test_a_key_is_made_once_and_is_private(tmp_path):
    key = link_key(Store(tmp_path))
    assert len(key) == 32
    assert link_key(Store(tmp_path)) == key
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir()] == [FILE]
    elsewhere = tmp_path / "copy"
    elsewhere.write_bytes(key)
    elsewhere.chmod(0o600)
    assert link_key(Store(tmp_path / "none"), elsewhere) == key


def test_a_key_that_is_missing_or_not_private_is_refused(tmp_path):
    """With one sentence each."""
    file = tmp_path / "copy"
    with pytest.raises(BadInput, match=r"cannot be read.*Name a copy of links.key"):
        link_key(Store(tmp_path), file)
    with pytest.raises(BadInput, match=r"links.key cannot be read: No such file or directory"):
        link_key(Store(tmp_path / "none"))
    file.write_bytes(KEY[1:])
    file.chmod(0o640)
    with pytest.raises(BadInput, match=r"can be read by other users.*chmod 600"):
        link_key(Store(tmp_path), file)
    file.chmod(0o600)
    with pytest.raises(BadFile, match="must have exactly 32 bytes"):
        link_key(Store(tmp_path), file)
