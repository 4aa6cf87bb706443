"""Sessions, and how often somebody may try to sign in; time is passed in."""

import pytest

from ayes.interfaces.access import sessions as module
from ayes.interfaces.access.sessions import (
    IDLE_S,
    LONGEST_S,
    WINDOW_S,
    WRONG,
    Attempts,
    Sessions,
)
from ayes.ops.visitors import Role, Visitor

ANA = Visitor("ana", frozenset({Role.REVIEWER}))


class Hands:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 1_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Hands()


def test_a_session_lasts_while_it_is_used(clock):
    """And a request that only asks whether it lasts does not prolong it."""
    sessions = Sessions(clock)
    secret = sessions.begin(ANA)
    for _ in range(2):
        clock.now += IDLE_S - 1
        assert sessions.find(secret) == ANA
    clock.now += IDLE_S - 1
    assert sessions.find(secret, use=False) == ANA
    clock.now += 2
    assert sessions.find(secret) is None


def test_a_session_ends_after_a_day_however_it_is_used(clock):
    sessions = Sessions(clock)
    secret = sessions.begin(ANA)
    begun = clock.now
    while clock.now + 3600 <= begun + LONGEST_S:
        clock.now += 3600
        assert sessions.find(secret) == ANA
    clock.now += 1
    assert sessions.find(secret) is None


def test_a_session_ends_when_somebody_signs_out(clock):
    sessions = Sessions(clock)
    secret, other = sessions.begin(ANA), sessions.begin(ANA)
    sessions.end(secret)
    assert (sessions.find(secret), sessions.find(other)) == (None, ANA)


@pytest.mark.parametrize("secret", ["", "x", "\udcff", "é" * 10_000])
def test_nobody_has_a_secret_that_was_made_up(clock, secret):
    sessions = Sessions(clock)
    sessions.begin(ANA)
    assert sessions.find(secret) is None


def test_a_client_must_wait_after_ten_attempts(clock):
    """Others need not, and after a minute it may try again."""
    attempts = Attempts(WRONG, clock)
    assert [attempts.wait_s("a") for _ in range(WRONG)] == [0] * WRONG
    clock.now += 20
    assert attempts.wait_s("a") == WINDOW_S - 20
    assert attempts.wait_s("b") == 0
    clock.now += WINDOW_S - 20
    assert attempts.wait_s("a") == 0


def test_a_network_of_ipv6_is_one_client(clock):
    """Whoever has one address of a /64 has them all. The next network is another client."""
    attempts = Attempts(WRONG, clock)
    found = [attempts.wait_s(f"2001:db8:1:2::{number:x}") for number in range(WRONG + 1)]
    assert found == [*[0] * WRONG, WINDOW_S]
    assert attempts.wait_s("2001:db8:1:3::1") == 0


def test_many_clients_keep_nobody_out(clock, monkeypatch):
    """They have no limit together; of too many, the one that is known for longest is forgotten."""
    monkeypatch.setattr(module, "_MAX_CLIENTS", 200)
    attempts = Attempts(1, clock)
    assert {attempts.wait_s(f"198.51.100.{number}") for number in range(250)} == {0}
    assert len(attempts._recent) == 200
    assert attempts.wait_s("another") == 0
    assert attempts.wait_s("198.51.100.249") == WINDOW_S
