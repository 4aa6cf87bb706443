"""What becomes of the standing of an endpoint, and which facts an endpoint is sent."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace
from receivers import endpoint

from ayes.consumers.webhooks import worker
from ayes.consumers.webhooks.endpoints import Endpoint, EndpointFile, EndpointStatus, Standing
from ayes.consumers.webhooks.requests import HttpAnswer, Sender
from ayes.consumers.webhooks.worker import Webhooks, _failed, _parked, _succeeded
from ayes.ledger.clients.services import Ledger
from ayes.ledger.in_memory import Memory
from ayes.schemas.codec import Fact
from ayes.schemas.events import TYPES, Author, Carried, Said
from ayes.schemas.slots import FILLED_BY, ThreadRef, matches

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=5)
DOWN = HttpAnswer(500, "it answered 500")
GONE = HttpAnswer(410, "it answered 410 Gone")
FINE = Standing(next=5, last_success=NOON)
#: It failed at noon, and lacks 5 and what follows.
FAILING = Standing(next=5, why="it answered 500", failing_since=NOON)


def test_a_failure_counts_from_the_first_one_on():
    """And the first fact that it lacks is where it goes on."""
    assert _failed(FINE, at=5, answer=DOWN, now=LATER) == replace(
        FINE, why="it answered 500", failing_since=LATER
    )
    again = _failed(FAILING, at=6, answer=HttpAnswer(why="no answer within 15 s"), now=LATER)
    assert again == Standing(next=6, why="no answer within 15 s", failing_since=NOON)


def test_a_success_ends_a_failure():
    assert _succeeded(FAILING, now=LATER) == Standing(next=5, last_success=LATER)


@pytest.mark.parametrize("there", [FINE, FAILING])
def test_what_is_gone_says_what_it_lacks(there):
    """And is sent nothing more by itself."""
    parked = replace(there, parked={2: "it answered 500"})
    after = _failed(parked, at=5, answer=GONE, now=NOON)
    assert after.gone == "it answered 410 Gone at 2026-11-21 12:00:00 UTC; it lacks facts from 5 on"
    assert (after.next, after.parked) == (0, {2: "it answered 500"})


def test_parked_facts_are_remembered_up_to_a_thousand():
    """The newest of them; an older one is still parked, and is sent to every endpoint again."""
    standing = Standing()
    for seq in range(1, 1_003):
        standing = _parked(standing, seq=seq, why="it answered 500")
    assert [*standing.parked] == [*range(3, 1_003)]


@pytest.mark.parametrize(
    ("standing", "word", "behind_from"),
    [
        (FINE, "in step", None),
        (replace(FINE, late=True), "behind", 5),
        (FAILING, "failing", 5),
        (Standing(gone="it answered 410 Gone"), "gone", None),
    ],
)
def test_how_an_endpoint_is_doing_in_a_word(standing, word, behind_from):
    one = endpoint("https://hooks.example.com/", verified_at=NOON)
    status = EndpointStatus.of(one, standing)
    assert (status.standing, status.behind_from) == (word, behind_from)
    assert status.is_alarming == (word in {"failing", "gone"})
    assert EndpointStatus.of(replace(one, verified_at=None), standing).standing == "not verified"


@pytest.mark.parametrize("taken", [0, 1])
async def test_facts_that_nobody_took_are_no_success(tmp_path, monkeypatch, taken: int):
    """Of those that are sent at once, one that is taken shows that the endpoint answers."""
    hooks = Webhooks(EndpointFile(tmp_path / "webhooks.json"), Sender())

    async def post(_ledger: Ledger, _endpoint: Endpoint, fact: Fact) -> HttpAnswer:
        return HttpAnswer() if fact.seq <= taken else DOWN

    async def insist(*_: object) -> None:
        pass

    monkeypatch.setattr(hooks, "_post", post)
    monkeypatch.setattr(hooks, "_insist", insist)
    facts = [Fact(seq, NOON, SAID, Said(role="user", text="hi")) for seq in (1, 2)]
    one = endpoint("https://hooks.example.com/")
    await hooks._send_some(Ledger(Memory(), Author("service", "hooks")), one, facts)
    assert len(hooks._took) == taken


async def test_a_pause_ends_once_the_endpoint_answers_again(tmp_path, monkeypatch):
    """As `ayes webhooks test` notes; no success waits for hours behind a failure."""
    monkeypatch.setattr(worker, "_LOOK_S", 0)
    hooks = Webhooks(EndpointFile(tmp_path / "webhooks.json"), Sender())
    async with asyncio.timeout(5):
        await hooks._pause("shop", FAILING, 3600)


# --------------------------------------------------------------------------------- who is sent what

SAID = ThreadRef("shop", "t1").said("m1")


def receives(event=None, **fields: object) -> bool:
    """Whether an endpoint with these fields, which agreed at noon, is sent a fact of later."""
    one = endpoint("https://hooks.example.com/", **({"verified_at": NOON} | fields))
    return one.receives(Fact(7, LATER, SAID, event or Said(role="user", text="hi", id="e1")))


@pytest.mark.parametrize(
    ("fields", "is_sent"),
    [
        ({}, True),
        ({"verified_at": None}, False),
        ({"verified_at": LATER}, True),
        ({"verified_at": LATER + timedelta(seconds=1)}, False),
        ({"types": ("Said", "Approved")}, True),
        ({"types": ("Approved",)}, False),
        ({"workspaces": ("shop",)}, True),
        ({"workspaces": ("bank",)}, False),
    ],
)
def test_who_is_sent_a_fact(fields, is_sent):
    """Those that agreed before it was recorded, and want it."""
    assert receives(**fields) == is_sent


def test_facts_about_messages_are_sent_only_if_named():
    """So that a message about a message about a call is nobody's default."""
    notified = Carried(type="Notified", raw=b"{}")
    assert not receives(notified)
    assert receives(notified, types=("Notified",))


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_the_broker_is_asked_for_every_slot_of_a_type(kind):
    """In the endpoint's workspaces, and for no other slot."""
    one = endpoint("https://hooks.example.com/", types=(kind,), workspaces=("shop",))
    for shape, types in FILLED_BY.items():
        place = () if shape[0].startswith("_") else ("t1",)
        tail = (*place, *("x" if part in {"*", "#", "%"} else part for part in shape))
        for where in ("shop", "bank"):
            subject = ".".join(("ledger", where, *tail))
            may_be = where == "shop" and kind in {each.__name__ for each in types}
            assert any(matches(each, subject) for each in one.subjects) >= may_be, subject
            assert where == "shop" or not any(matches(each, subject) for each in one.subjects)


def test_everything_is_asked_for_at_once():
    """Without a choice, and where a list of the subjects would be longer than it helps."""
    assert endpoint("https://hooks.example.com/").subjects == ()
    spaces = tuple(f"w{number}" for number in range(65))
    assert endpoint("https://hooks.example.com/", workspaces=spaces).subjects == ()
    assert endpoint("https://hooks.example.com/", workspaces=("shop",)).subjects == (
        "ledger.shop.>",
    )
