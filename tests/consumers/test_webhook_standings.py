"""What becomes of the standing of an endpoint, as tables; and that nothing is ever lost."""

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace
from receivers import endpoint

from ayes.consumers.webhooks.endpoints import Endpoints, Standing, Standings
from ayes.consumers.webhooks.requests import HttpAnswer
from ayes.consumers.webhooks.worker import _caught_up, _failed, _fallen, _moved, _parked, recipients
from ayes.schemas.codec import Fact
from ayes.schemas.events import Carried, Said
from ayes.schemas.slots import ThreadRef

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=5)
DOWN = HttpAnswer(500, "it answered 500")
GONE = HttpAnswer(410, "it answered 410 Gone")
FINE = Standing(last_success=NOON)
#: It failed at noon, and lacks 5 and what follows.
BEHIND = Standing(behind=5, tries=2, why="it answered 500", failing_since=NOON)
#: It is sent facts again, and may lack some from 9 on that were recorded just before.
REST = Standing(rest=9)


@pytest.mark.parametrize(
    ("there", "seq", "answer", "first", "tries"),
    [
        (FINE, 5, DOWN, 5, 0),
        (BEHIND, 7, DOWN, 5, 2),  # it was on its way when 5 failed
        (BEHIND, 3, DOWN, 3, 0),  # so was 3, and it comes first now
        (REST, 12, DOWN, 9, 0),
        (REST, 8, DOWN, 8, 0),
        (FINE, 5, None, 5, 0),  # too many requests at a time
    ],
)
def test_a_delivery_that_is_not_taken(there, seq, answer, first, tries):
    """The endpoint lacks the fact, and all that is known to be missing stays so."""
    after = _fallen(there, seq=seq, answer=answer, now=LATER)
    assert (after.behind, after.rest, after.tries) == (first, 0, tries)
    if answer is None:
        assert (after.why, after.failing_since) == (there.why, there.failing_since)
    else:
        assert after.failing_since == (there.failing_since or LATER)


@pytest.mark.parametrize(
    ("there", "at", "after"),
    [
        (BEHIND, 5, replace(BEHIND, tries=3)),
        (REST, 9, Standing(behind=9, tries=1, why="it answered 500", failing_since=LATER)),
        (replace(BEHIND, behind=3), 5, replace(BEHIND, behind=3)),  # it fell further behind
        (FINE, 5, FINE),  # an operator had it verified anew
    ],
)
def test_a_try_that_fails(there, at, after):
    """It counts only for the fact that the endpoint lacks first."""
    assert _failed(there, at=at, answer=DOWN, now=LATER) == after


@pytest.mark.parametrize(
    ("there", "at", "to", "missing"),
    [
        (BEHIND, 5, 8, 8),
        (REST, 9, 12, 12),
        (replace(BEHIND, behind=3), 5, 8, 3),
        (FINE, 5, 8, 0),
    ],
)
def test_facts_that_were_taken(there, at, to, missing):
    """The place moves on, unless the endpoint has fallen further behind meanwhile."""
    assert _moved(there, at=at, to=to, now=LATER).missing == missing


def test_a_success_ends_a_failure():
    """A fact that is passed over, unwanted or parked, does not."""
    taken = _moved(BEHIND, at=5, to=6, now=LATER)
    assert taken == Standing(behind=6, last_success=LATER)
    passed = _moved(BEHIND, at=5, to=6, now=None)
    assert passed == replace(BEHIND, behind=6, tries=0)


@pytest.mark.parametrize(
    ("there", "last", "after"),
    [
        # The facts from 10 on may have been left out until this moment.
        (Standing(behind=10), 9, Standing(rest=10)),
        (Standing(rest=10), 9, Standing()),
        (Standing(rest=15), 14, Standing()),
        (Standing(behind=7), 9, Standing(behind=7)),  # it has fallen behind again
        (Standing(rest=9), 9, Standing(rest=9)),
    ],
)
def test_the_way_back(there, last, after):
    """First it is sent deliveries again, then what they left out; only then it lacks nothing."""
    assert _caught_up(there, last=last) == after


@pytest.mark.parametrize(("there", "seq", "first"), [(FINE, 5, 5), (BEHIND, 7, 5)])
def test_what_is_gone_says_what_it_lacks(there, seq, first):
    """And is sent nothing more by itself."""
    parked = replace(there, parked={2: "it answered 500"})
    after = _fallen(parked, seq=seq, answer=GONE, now=NOON)
    assert after.gone == (
        f"it answered 410 Gone at 2026-11-21 12:00:00 UTC; it lacks facts from {first} on"
    )
    assert (after.missing, after.parked) == (0, {2: "it answered 500"})
    failed = _failed(replace(BEHIND, parked={2: ""}), at=5, answer=GONE, now=NOON)
    assert (failed.missing, failed.parked, bool(failed.gone)) == (0, {2: ""}, True)


def test_parked_facts_are_remembered_up_to_a_thousand():
    """The newest of them; an older one is still parked, and is sent to every endpoint again."""
    standing = Standing()
    for seq in range(1, 1_003):
        standing = _parked(standing, seq=seq, why="it answered 500")
    assert [*standing.parked] == [*range(3, 1_003)]


# --------------------------------------------------------------------------------- who is sent what

SAID = ThreadRef("shop", "t1").said("m1")


def fact(seq: int, at: datetime = LATER, event=None) -> Fact:
    return Fact(seq, at, SAID, event or Said(role="user", text="hi", id="e1"))


def sent(one: Fact, standing: Standing = FINE, **fields: object) -> tuple[bool, bool]:
    """Whether an endpoint with these fields is sent it, and whether as one that was parked."""
    known = endpoint("https://hooks.example.com/", **({"verified_at": NOON} | fields))
    found, again = recipients(Endpoints({"crm": known}), Standings({"crm": standing}), one)
    return bool(found), again


@pytest.mark.parametrize(
    ("standing", "fields", "is_sent"),
    [
        (FINE, {}, True),
        (FINE, {"verified_at": None}, False),
        (FINE, {"verified_at": LATER + timedelta(seconds=1)}, False),
        (FINE, {"types": ("Said", "Approved")}, True),
        (FINE, {"types": ("Approved",)}, False),
        (FINE, {"workspaces": ("shop",)}, True),
        (FINE, {"workspaces": ("bank",)}, False),
        (replace(BEHIND, behind=7), {}, False),
        (replace(BEHIND, behind=3), {}, False),
        (replace(BEHIND, behind=8), {}, True),  # it was passed over already, as unreadable
        (REST, {}, True),
        (Standing(gone="it answered 410 Gone"), {}, False),
    ],
)
def test_who_is_sent_a_delivery(standing, fields, is_sent):
    """Fact 7: those that agreed, want it, and are not behind."""
    assert sent(fact(7), standing, **fields) == (is_sent, False)


def test_what_is_tried_again_goes_to_whom_it_is_parked_for():
    """However they are doing, and to nobody else."""
    parked = Standing(behind=3, parked={7: "it answered 500"})
    assert sent(fact(7), parked) == (True, True)
    assert sent(fact(7), parked, verified_at=None) == (False, False)
    two = {
        name: endpoint("https://hooks.example.com/", name, verified_at=NOON)
        for name in ("crm", "other")
    }
    found, again = recipients(Endpoints(two), Standings({"crm": parked}), fact(7))
    assert ([one.name for one in found], again) == (["crm"], True)


def test_facts_about_messages_are_sent_only_if_named():
    """So that a message about a message about a call is nobody's default."""
    notified = fact(7, event=Carried(type="Notified", raw=b"{}"))
    assert sent(notified) == (False, False)
    assert sent(notified, types=("Notified",)) == (True, False)
