"""One server, one fault each: what is reported, and that it goes on by itself."""

import asyncio
import json
import os
import signal
import threading
import time
from contextlib import contextmanager

import pytest
from brokers import running
from disk import small_disk
from program import approvals, started

from ayes.ledger.log import Recorded
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.services import Ledger
from ayes.ops.broker import supervisor
from ayes.ops.broker.health import Health, takes_writes
from ayes.schemas import events as e
from ayes.schemas.errors import BrokerAway, LedgerFull
from ayes.schemas.slots import ThreadRef

THREAD = ThreadRef("shop", "t1")


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        yield disk


class Log:
    """What `up` reports on stderr."""

    def __init__(self, file):
        self.file = file

    def lines(self, event):
        found = [json.loads(line) for line in self.file.read_text().splitlines() if line[:1] == "{"]
        return [line for line in found if line["event"] == event]

    async def until(self, event, times=1):
        async with asyncio.timeout(60):
            while len(found := self.lines(event)) < times:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
        return found[times - 1]


@contextmanager
def up(store, log):
    """`ayes up`, whose reports are in a file on another disk than the store."""
    with started("up", "--store", store, "--json", log=log.file) as process:
        yield json.loads(process.stdout.readline())


async def said(ledger, name, text="x"):
    return await ledger.append(THREAD.said(name), e.Said(role="user", text=text))


# ------------------------------------------------------------------------------------------ crashes


async def test_a_broker_that_ends_is_started_again_on_the_same_port(tmp_path):
    """Clients and workers notice no more than a pause, and `up` reports it each time (D7)."""
    store = tmp_path / "store"
    log = Log(tmp_path / "up.log")
    with up(store, log) as ready:
        broker = ready["pid"]
        async with Ledger.connect(store) as ledger:
            for times in (1, 2):
                os.kill(broker, signal.SIGKILL)
                ended = await log.until("the broker ended by itself and is started again", times)
                assert (ended["exit_code"], ended["times"], ended["most"]) == (-9, times, 5)
                again = await log.until("the broker runs again", times)
                assert again["url"] == ready["url"]
                broker = again["pid"]
                assert isinstance(await said(ledger, f"m{times}"), Recorded)
        assert approvals("status", store=store).code == 0


def test_a_broker_that_ends_too_often_is_left_with_its_last_words(tmp_path, within, monkeypatch):
    """They are the last that `up` prints, and the program ends (D7)."""
    monkeypatch.setattr(supervisor, "MOST", 1)
    monkeypatch.setattr(supervisor, "_PAUSE_S", 0.0)
    store = tmp_path / "store"

    def crash():
        killed = set()
        until = time.monotonic() + 60
        while len(killed) < 2 and time.monotonic() < until:
            time.sleep(0.05)
            holders = (store / "lock").read_text().split() if (store / "lock").exists() else []
            if len(holders) == 2 and holders[1] not in killed and Store(store).read().url:
                killed.add(holders[1])
                time.sleep(1)
                os.kill(int(holders[1]), signal.SIGQUIT)

    crashing = threading.Thread(target=crash)
    crashing.start()
    ended = within("up", "--store", store, "--json")
    crashing.join()
    assert ended.code != 0
    message = ended.problem["message"]
    assert message.startswith("the broker ended by itself 2 times within 5 minutes (exit code 2)")
    assert "SIGQUIT: quit" in message
    assert "Traceback" not in ended.err


# --------------------------------------------------------------------------------------- full disks


async def test_a_full_disk_is_noticed_without_a_write_of_anybody(disk):
    """The trial writes, but records nothing; a stream that has failed once is dead until the server
    is restarted, with room or without (D5).
    """
    store = Store(disk.path / "store")
    async with running(store.path), JetStream.connect(store.path, role="admin") as log:

        async def tried():
            return await takes_writes(log, store)

        assert (await tried()).ok
        assert (await log.api.publish("ledger.shop.t1.opened", b"{}")).seq == 1
        disk.leave(8192)
        health = await tried()
        assert not health.ok
        assert health.why == "the log does not take writes: atomic publish batch is incomplete."
        assert health.free_bytes < 100_000
        assert health.dead == ()

        with pytest.raises(BrokerAway):
            await log.api.publish("ledger.shop.t1.said.m1", b"x" * 100_000, patience_s=0.5)
        for _ in ("full", "room"):
            health = await tried()
            assert health.dead == ("LEDGER",)
            assert health.why.startswith("the broker records nothing in LEDGER until it is rest")
            assert "no space left on device" in health.why
            disk.enlarge()
    async with running(store.path), JetStream.connect(store.path, role="operator") as log:
        health = await takes_writes(log, store)
        assert health == Health(ok=True, free_bytes=health.free_bytes)
        assert await log.last_seq() == 1


async def test_facts_are_refused_before_the_disk_is_full(disk, tmp_path):
    """`up` reports it within seconds, requests are refused in one sentence, and with room all goes
    on by itself: for those who waited too (D5).
    """
    store = disk.path / "store"
    log = Log(tmp_path / "up.log")
    with up(store, log):
        async with Ledger.connect(store) as ledger:
            assert isinstance(await said(ledger, "m1"), Recorded)
            (disk.path / "others").write_bytes(bytes(8 << 20))
            disk.leave(200_000)
            why = (await log.until("the log takes no writes"))["why"]
            assert why == (
                "the disk of the ledger is nearly full, so `ayes up` has its broker refuse further "
                "facts. Free some space: it goes on by itself."
            )
            with pytest.raises(LedgerFull, match="`ayes up` refuses facts while the disk is near"):
                await said(ledger, "m2")
            waiting = asyncio.create_task(
                ledger.append_until_acknowledged(
                    THREAD.said("m3"), e.Said(role="user", text="waits")
                )
            )
            disk.enlarge()
            await log.until("the log takes writes again")
            assert await waiting is None


async def test_a_broker_whose_disk_was_full_is_restarted_when_there_is_room(disk, tmp_path):
    """Its stream answers nothing any more, also when there is room, until it is restarted; nothing
    that was acknowledged is lost (D5).
    """
    store = disk.path / "store"
    log = Log(tmp_path / "up.log")
    with up(store, log) as ready:
        async with Ledger.connect(store) as ledger:
            assert isinstance(await said(ledger, "m1"), Recorded)
            disk.leave(4096)
            last = asyncio.create_task(said(ledger, "m2", "x" * 200_000))
            await log.until("the log takes no writes")
            disk.enlarge()
            assert (await log.until("the broker runs again"))["url"] == ready["url"]
            await log.until("the log takes writes again")
            await last
            assert isinstance(await said(ledger, "m3"), Recorded)
            names = [fact.slot.tail[-1] for fact in await ledger.log.read(THREAD.subjects)]
            assert {"m1", "m3"} <= set(names)
