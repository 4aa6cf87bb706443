"""The inbox: what waits, kept at hand. Against a real broker, whatever becomes of the connection to
it.

`quiet` is the claim of every test here: once nothing changes any more, the inbox has what a fresh
listing has, in the order of the questions.
"""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from brokers import running
from cable import Cable, delete, put, question
from long import sampled
from until import until

from ayes.consumers.pending_view import PendingView, changes
from ayes.interfaces.cli import decide
from ayes.interfaces.cli.command import Session
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import Bucket, Change
from ayes.ledger.nats import streams
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.key_value import KeyValue
from ayes.projections import pending
from ayes.projections.call_query import CallQuery
from ayes.projections.pending import Entry
from ayes.schemas.errors import BadInput, BrokerRefused


async def listed(bucket: Bucket) -> list[Entry]:
    entries = [pending.decode(value) for value in (await bucket.entries()).values()]
    return sorted(entries, key=lambda one: one.seq)


async def quiet(inbox: PendingView, bucket: Bucket) -> list[int]:
    """Which calls wait, once the inbox has what a fresh listing has."""
    expected = await listed(bucket)
    await until(lambda: inbox.entries.oldest() == expected)
    assert len(inbox.entries) == len(expected)
    return [one.seq for one in inbox.entries.oldest()]


# ----------------------------------------------------------------- both the twin and the real thing


async def test_whoever_enters_has_all_that_waits(ledger: Ledger):
    """An empty inbox is entered too; a full one shows all at once, the oldest question first."""
    bucket = ledger.log.pending
    async with PendingView(ledger) as inbox:
        assert inbox.entries.oldest() == []
        assert len(inbox.entries) == 0
    for seq in (5, 3, 9, 1, 7):
        await put(bucket, question(seq, workspace="shop" if seq > 5 else "acme"))
    async with PendingView(ledger) as inbox:
        assert [one.seq for one in inbox.entries.oldest()] == [1, 3, 5, 7, 9]
        assert [one.seq for one in inbox.entries.oldest(2)] == [1, 3]
        assert [one.seq for one in inbox.entries.oldest(1, CallQuery.of(workspace="shop"))] == [7]


async def test_what_changes_is_taken_in_its_place(ledger: Ledger):
    """Asked late about something old, asked anew, decided, and asked back again (B83)."""
    bucket = ledger.log.pending
    await put(bucket, question(5))
    async with PendingView(ledger) as inbox:
        await put(bucket, question(9))
        await put(bucket, question(2))
        assert await quiet(inbox, bucket) == [2, 5, 9]
        await put(bucket, question(5, stage=1))
        assert await quiet(inbox, bucket) == [2, 5, 9]
        assert inbox.entries.oldest()[1].asked_as_well == ("p0",)
        await delete(bucket, 2)
        assert await quiet(inbox, bucket) == [5, 9]
        await put(bucket, question(2))
        assert await quiet(inbox, bucket) == [2, 5, 9]


async def test_each_change_is_told(ledger: Ledger):
    """First all that waits, oldest first, be it nothing; then what comes and goes."""
    bucket = ledger.log.pending
    for seq in (2, 1, 3):
        await put(bucket, question(seq))
    await delete(bucket, 3)
    async with aclosing(changes(ledger)) as coming:
        assert [entry for _, entry in await anext(coming)] == [question(1), question(2)]
        await delete(bucket, 1)
        assert await anext(coming) == [("acme.t1.c1", None)]
        await put(bucket, question(2, stage=1))
        assert await anext(coming) == [("acme.t1.c2", question(2, stage=1))]


async def test_a_value_that_is_not_an_entry_hinders_no_other(ledger: Ledger):
    """All that can be read is listed, and what cannot is named: it is not JSON, not UTF-8, of an
    older version, or under the key of another call (R8).
    """
    bucket = ledger.log.pending
    await put(bucket, question(1))
    bad = {
        "acme.t1.bytes": b'{"seq":1,"tool":"\xff\xfe"}',
        "acme.t1.old": b'{"seq":2,"workspace":"acme","thread":"t1","call":"old"}',
        "acme.t1.other": pending.encode(question(1)),
        "odd": b'{"seq":"x"}',
    }
    for key, value in bad.items():
        assert await bucket.put(key, value, 0)
    found = pending.oldest(await bucket.entries(), 50)
    assert found[:2] == ([question(1)], 1)
    assert [one.key for one in found.unreadable] == sorted(bad)
    assert all("--swap" in str(one) and one.key in str(one) for one in found.unreadable)
    async with PendingView(ledger) as inbox:
        assert inbox.entries.oldest() == [question(1)]


# --------------------------------------------------------------------------------- the real thing


@pytest.mark.parametrize("many", sampled((100, 500), 100))
async def test_hundreds_come_and_go(store: Path, admin: Ledger, many: int):
    """Several write at once while it is read, more comes than it is shown, and at each quiet point
    the inbox is right; so is one that is entered in the middle of it.
    """
    blocks = (range(start, start + many) for start in (0, many, 2 * many))
    seqs = [seq for at, block in enumerate(blocks) for seq in random.Random(at).sample(block, many)]
    async with (
        Ledger.connect(store, role="observer") as ledger,
        PendingView(ledger) as inbox,
    ):
        bucket = admin.log.pending

        async def live(seq: int) -> None:
            await put(bucket, question(seq))
            if seq % 3:
                await put(bucket, question(seq, stage=1))
            if seq % 4:
                await delete(bucket, seq)
            if seq % 8 == 1:
                await put(bucket, question(seq))

        async def work(left: Iterator[int]) -> None:
            for seq in left:
                await live(seq)

        for block in range(3):
            left = iter(seqs[block * many : block * many + many])
            async with asyncio.TaskGroup() as writers:
                for _ in range(8):
                    writers.create_task(work(left))
                await asyncio.sleep(0.05)
                async with PendingView(ledger) as late:
                    pass
                async with PendingView(ledger) as late:
                    await asyncio.sleep(0.05)
                    assert len(late.entries) > 0
            waits = [seq for seq in range(block * many + many) if seq % 4 == 0 or seq % 8 == 1]
            assert await quiet(inbox, bucket) == waits
            async with PendingView(ledger) as fresh:
                assert fresh.entries.oldest() == inbox.entries.oldest()


async def test_a_listing_leaves_out_nothing_that_is_written_anew(store: Path, admin: Ledger):
    """More people are asked about a call while the queue is being read. Its entry moves to the end
    of the bucket, and is read there.
    """
    many = 300
    async with Ledger.connect(store, role="observer") as ledger:
        bucket = admin.log.pending
        for seq in range(many):
            await put(bucket, question(seq, size=20_000))

        async def escalate() -> None:
            for stage in itertools.count(1):
                for seq in reversed(range(many)):
                    await put(bucket, question(seq, stage=stage, size=20_000))

        escalating = asyncio.create_task(escalate())
        try:
            for _ in range(8):
                assert len(await ledger.log.pending.entries()) == many
                async with PendingView(ledger) as inbox:
                    assert len(inbox.entries) == many
        finally:
            escalating.cancel()
            await asyncio.gather(escalating, return_exceptions=True)


async def test_a_broker_that_is_started_again(tmp_path: Path):
    """What waited is shown while the broker is away; what changes later is there as before."""
    path = tmp_path / "store"
    async with AsyncExitStack() as open_:
        async with running(path):
            ledger = await open_.enter_async_context(Ledger.connect(path, role="observer"))
            async with Ledger.connect(path, role="admin") as admin:
                for seq in range(4):
                    await put(admin.log.pending, question(seq))
            inbox = await open_.enter_async_context(PendingView(ledger))
        assert [one.seq for one in inbox.entries.oldest()] == [0, 1, 2, 3]
        async with running(path), Ledger.connect(path, role="admin") as admin:
            bucket = admin.log.pending
            await delete(bucket, 0)
            await put(bucket, question(2, stage=1))
            await put(bucket, question(9))
            assert await quiet(inbox, bucket) == [1, 2, 3, 9]
            # The server stops at once only when nobody is connected to it any more.
            await open_.aclose()


@asynccontextmanager
async def behind_a_cable(store: Path) -> AsyncIterator[tuple[Ledger, Cable]]:
    login = Store.login_for("observer", store=store)
    cable = Cable(int(login.url.rpartition(":")[2]))
    async with cable.laid() as port:
        url = f"nats://observer:{login.password}@127.0.0.1:{port}"
        async with Ledger.connect(url=url, role="observer") as ledger:
            yield ledger, cable


async def test_a_connection_that_was_cut(store: Path, admin: Ledger):
    """What was decided or asked, or both, while nobody was listening is made up for."""
    async with behind_a_cable(store) as (ledger, cable):
        bucket = admin.log.pending
        for seq in range(4):
            await put(bucket, question(seq))
        async with PendingView(ledger) as inbox:
            for seq in (1, 2, 3):
                await cable.cut()
                await delete(bucket, seq)
                await put(bucket, question(10 + seq))
                await put(bucket, question(20 + seq))
                await delete(bucket, 20 + seq)
                await asyncio.sleep(0.1)
                assert seq in [one.seq for one in inbox.entries.oldest()]
                await cable.mend()
                assert await quiet(inbox, bucket) == [0, *range(seq + 1, 4), *range(11, 11 + seq)]


async def test_a_connection_that_was_cut_for_longer_than_markers_live(store: Path, admin: Ledger):
    """Of what was decided meanwhile nothing is left, so all is read again: no ghost (B83)."""
    async with behind_a_cable(store) as (ledger, cable):
        bucket = of_short_markers(admin)
        of_short_markers(ledger)
        for seq in range(4):
            await put(bucket, question(seq))
        async with PendingView(ledger) as inbox:
            assert await quiet(inbox, bucket) == [0, 1, 2, 3]
            await cable.cut()
            await delete(bucket, 1)
            await delete(bucket, 3)
            await until_kept(admin, 2)
            assert [one.seq for one in inbox.entries.oldest()] == [0, 1, 2, 3]
            await cable.mend()
            assert await quiet(inbox, bucket) == [0, 2]


async def test_all_is_told_again_before_a_marker_can_be_missed(admin: Ledger):
    """Whoever follows needs to know nothing of gaps: after half the life of a marker the whole of
    it comes again, and whoever keeps the queue finds no difference.
    """
    bucket = of_short_markers(admin)
    await put(bucket, question(1))
    async with aclosing(bucket.follow()) as coming:
        waiting = pending.PendingIndex()
        first, again = await anext(coming), await anext(coming)
        assert waiting.apply(first) == [("acme.t1.c1", question(1))]
        entries = {"acme.t1.c1": pending.encode(question(1))}
        assert first == again == Change(entries, whole=True, revision=1)
        assert waiting.apply(again) == []


async def test_the_whole_names_the_last_revision_when_its_marker_has_gone(admin: Ledger):
    """What was written last is nowhere to be read any more, and counts as read nevertheless."""
    bucket = of_short_markers(admin)
    await put(bucket, question(1))
    await put(bucket, question(2))
    await delete(bucket, 2)
    await until_kept(admin, 1)
    async with aclosing(bucket.follow()) as coming:
        entries = {"acme.t1.c1": pending.encode(question(1))}
        assert await anext(coming) == Change(entries, whole=True, revision=3)


async def test_an_inbox_that_cannot_be_kept_up_says_so(store: Path, admin: Ledger):
    """The bucket is gone: what is asked of the inbox then is an error, never the last known."""
    async with Ledger.connect(store, role="observer") as ledger:
        await put(admin.log.pending, question(1))
        with pytest.raises(BrokerRefused, match="KV_pending"):
            await _lose(admin, ledger)
        inbox = PendingView(ledger)
        with pytest.raises(BrokerRefused):
            await inbox.__aenter__()


async def _lose(admin: Ledger, ledger: Ledger) -> None:
    """Look into the inbox while its bucket is taken away, until it cannot be kept up."""
    async with PendingView(ledger) as inbox:
        await admin.log.api.ask("$JS.API.STREAM.DELETE.KV_pending", b"")
        await until(lambda: not len(inbox.entries.oldest()) == len(inbox.entries) == 1)


def of_short_markers(ledger: Ledger) -> Bucket:
    """The queue, whose markers live for two seconds instead of an hour."""
    assert isinstance(ledger.log, JetStream)
    ledger.log.pending = KeyValue(ledger.log, "pending", marker_s=2)
    return ledger.log.pending


async def until_kept(ledger: Ledger, entries: int) -> None:
    """Wait until the bucket holds no more than that: its markers have gone."""

    async def are_kept() -> bool:
        info = await streams.info(ledger.log.api, f"STREAM.INFO.{streams.PENDING}")
        return info["state"]["messages"] == entries

    await until(are_kept)


# --------------------------------------------------------------------------------- ayes pending


async def test_the_command_shows_the_oldest(
    store: Path, admin: Ledger, capsys: pytest.CaptureFixture[str]
):
    """All, or so many of the oldest, of one workspace or of all, and how many there are (B72)."""
    for seq in (4, 2, 3, 1):
        await put(admin.log.pending, question(seq, workspace=("acme", "shop")[seq % 2]))

    async def shown(workspace: str, limit: int | None) -> list[int]:
        await decide.pending(
            workspace=workspace, watch=False, limit=limit, session=Session(store, json=True)
        )
        return [json.loads(line)["seq"] for line in capsys.readouterr().out.splitlines()]

    assert await shown("", None) == [1, 2, 3, 4]
    assert await shown("", 3) == [1, 2, 3]
    assert await shown("shop", None) == [1, 3]
    assert await shown("acme", 1) == [2]
    assert await shown("sho", None) == []
    await decide.pending(watch=False, limit=3, session=Session(store))
    assert "4 waiting, the oldest 3 shown." in capsys.readouterr().err
    await decide.pending(watch=False, session=Session(store))
    assert "4 waiting. Next:" in capsys.readouterr().err
    with pytest.raises(BadInput, match="--limit 0"):
        await shown("", 0)


async def test_the_command_searches_and_sorts(
    store: Path, admin: Ledger, capsys: pytest.CaptureFixture[str]
):
    """By the words of every door; each call has the name that the other commands take (B72)."""
    for seq in (1, 2, 3):
        await put(admin.log.pending, question(seq, workspace=("acme", "shop")[seq % 2]))

    async def shown(query: str, **more: Any) -> list[str]:
        await decide.pending(query, session=Session(store, json=True), **more)
        return [json.loads(line)["call"] for line in capsys.readouterr().out.splitlines()]

    assert await shown("c2") == ["acme/t1/c2"]
    assert await shown("-c2", sort="-age") == ["shop/t1/c3", "shop/t1/c1"]
    assert await shown("tool:ref* workspace:shop age>0s", limit=1) == ["shop/t1/c1"]
    assert len(await shown("is:mine", name="ana")) == 3
    for query, more, said in (
        ("is:mine", {}, "Add --as NAME"),
        ("by:ana", {}, "by:ana does not select pending calls"),
        ("tool:", {}, "tool: at character 1 of the query has no value"),
        ("x", {"doubtful": True}, "--in-doubt goes without"),
        ("x", {"sort": "size"}, "sort='size' is not an order"),
    ):
        with pytest.raises(BadInput, match=said):
            await shown(query, **more)


async def test_the_command_goes_on_with_what_comes(
    store: Path, admin: Ledger, capsys: pytest.CaptureFixture[str]
):
    """What waits, oldest first, then each change; what was decided before it began is not told."""
    bucket = admin.log.pending
    for seq in (3, 1, 2):
        await put(bucket, question(seq))
    await delete(bucket, 2)
    lines: list[str] = []

    async def told(many: int) -> list[str]:
        async with asyncio.timeout(60):
            while len(lines) < many:
                lines.extend(capsys.readouterr().out.splitlines())
                await asyncio.sleep(0.02)
        return [" ".join(line.split()[:2]) for line in lines]

    watching = asyncio.create_task(
        decide.pending(workspace="acme", watch=True, session=Session(store))
    )
    try:
        assert await told(2) == ["asked acme/t1/c1", "asked acme/t1/c3"]
        await put(bucket, question(5, workspace="shop"))
        await delete(bucket, 1)
        assert (await told(3))[2:] == ["decided acme/t1/c1"]
        await put(bucket, question(7))
        assert (await told(4))[3:] == ["asked acme/t1/c7"]
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
