"""Sessions, and how often somebody may try to sign in; time is passed in."""

import pytest

from ayes.ops.console.sessions import (
    IDLE_S,
    LONGEST_S,
    OVERALL,
    PER_CLIENT,
    WINDOW_S,
    Attempts,
    Sessions,
)
from ayes.ops.console.visitors import Role, Visitor

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
    attempts = Attempts(clock)
    assert [attempts.wait_s("a") for _ in range(PER_CLIENT)] == [0] * PER_CLIENT
    clock.now += 20
    assert attempts.wait_s("a") == WINDOW_S - 20
    assert attempts.wait_s("b") == 0
    clock.now += WINDOW_S - 20
    assert attempts.wait_s("a") == 0


def test_all_clients_together_must_wait_too(clock):
    """So that many addresses help nobody, and the memory of them is bounded."""
    attempts = Attempts(clock)
    assert {attempts.wait_s(f"client-{number}") for number in range(OVERALL)} == {0}
    assert attempts.wait_s("another") == WINDOW_S
