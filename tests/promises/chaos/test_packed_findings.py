"""What the chaos finds in a packed log: nothing in one that is whole, and each fault in another."""

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace
from packed_log import InStream, PackedLog

from ayes.ledger import packs
from ayes.ledger.log import RawMessage
from ayes.schemas import events as e
from ayes.schemas.codec import encode
from ayes.schemas.ids import new_id
from ayes.schemas.slots import ThreadRef

THREAD = ThreadRef("shop", "order-17")

type Log = dict[int, InStream]


def recorded(seq: int, subject: str, event: e.Event) -> RawMessage:
    raw = encode(replace(event, id=new_id(), by=e.Author("service", "shop")))
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seq)
    return RawMessage(seq, at, subject, raw)


def in_stream(raw: RawMessage) -> InStream:
    return InStream(raw.seq, raw.recorded_at, raw.subject, raw.data)


def whole() -> tuple[Log, list[RawMessage], list[RawMessage]]:
    """A stream of five messages: two were packed and left, two came later, one is their pack; and
    all facts, and those that were acknowledged.
    """
    said = [
        recorded(seq, f"ledger.shop.order-17.said.m{seq}", e.Said(role="user", text=f"hello {seq}"))
        for seq in (1, 2, 4, 5)
    ]
    [pack] = packs.packs_of([(one,) for one in said[:2]])
    there = recorded(3, THREAD.packed(1).subject, pack)
    every = sorted([*said, there], key=lambda one: one.seq)
    return {one.seq: in_stream(one) for one in every[2:]}, every, every


def problems(stream: Log, acknowledged: list[RawMessage], told: list[RawMessage]) -> list[str]:
    journal = [
        {
            "kind": "acknowledged",
            "slot": one.subject,
            "seq": one.seq,
            "sha256": hashlib.sha256(one.data).hexdigest(),
        }
        for one in acknowledged
    ]
    return [*PackedLog(stream.values()).problems(journal, told)]


def test_nothing_is_found_in_a_log_that_is_whole():
    stream, acknowledged, told = whole()
    log = PackedLog(stream.values())
    assert (len(log.inside), log.left) == (2, 2)
    assert problems(stream, acknowledged, told) == []


def test_a_fact_that_left_and_is_in_no_pack_is_found():
    stream, acknowledged, told = whole()
    del stream[4]
    assert "4 is missing" in problems(stream, acknowledged, told)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda one: one._replace(data=one.data + b" "), "1 is not the same"),
        (lambda one: one._replace(seq=6), "is filled by [1, 6]"),
    ],
    ids=["other-bytes", "second"],
)
def test_what_is_in_the_stream_again_is_found(change: Callable[[InStream], InStream], found: str):
    """Beside a fact of a pack: the same number with other bytes, and the same slot once more."""
    stream, acknowledged, told = whole()
    again = change(in_stream(told[0]))
    stream[again.seq] = again
    assert any(found in one for one in problems(stream, acknowledged, told))


def test_other_bytes_in_a_pack_are_found():
    stream, acknowledged, told = whole()
    acknowledged[0] = replace(acknowledged[0], data=b"{}")
    assert "ledger.shop.order-17.said.m1 is not what was acknowledged as 1" in problems(
        stream, acknowledged, told
    )


def test_what_the_ledger_reads_otherwise_is_found():
    stream, acknowledged, told = whole()
    assert problems(stream, acknowledged, told[1:]) == ["the ledger reads 1 otherwise"]
