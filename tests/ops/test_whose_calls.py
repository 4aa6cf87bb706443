"""Which pending calls are for a person to decide."""

from datetime import timedelta

from cable import question
from msgspec.structs import replace

from ayes.ledger.clients.services import Ledger
from ayes.ledger.in_memory import Memory
from ayes.ops.actions.searching import asked_of
from ayes.schemas.events import Author, Quorum


async def test_calls_that_ask_the_same_people_are_told_apart():
    """By the people whom they exclude, and by those who have handed them over."""
    ledger = Ledger(Memory(), Author(kind="service", name="tests"))
    now, hour = ledger.now(), timedelta(hours=1)
    await ledger.reviewer("lea").delegate(
        "shop/lea/away", "ana", starts_at=now - hour, ends_at=now + hour, tools=("refund",)
    )
    call = replace(question(1, workspace="shop"), voters=("lea",), excluded=("rita",))
    mine = await asked_of(ledger, "ana")
    for changed, expected in (
        ({}, True),
        ({"excluded": ("ana",)}, False),
        ({"excluded": ("lea",)}, False),
        ({"handed": {"ana": "ben"}}, False),
        ({"handed": {"lea": "ben"}}, True),
        ({"workspace": "hr"}, False),
        ({"tool": "send"}, False),
        ({"voters": ("ben",)}, False),
        ({"voters": ("a*",), "excluded": ("lea",)}, True),
        ({"voters": ("a*",), "excluded": ("ana",)}, False),
        ({"voters": ("ben",), "also": (Quorum(("ana",)),)}, True),
        ({"voters": ("ben",), "besides": (Quorum(("lea",)),)}, True),
        ({"voters": ("ben",), "asked_as_well": ("ana",)}, True),
    ):
        assert mine(replace(call, **changed)) is expected, changed
