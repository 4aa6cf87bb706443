"""One server, one fault each: what is reported, and that it goes on by itself."""

import asyncio
import json
import os
import re
import resource
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from brokers import running
from disk import small_disk
from paths import ROOT
from program import approvals, started
from running import working
from shop import FIRST, REFUND, SECOND, THREAD, Shop, rule
from until import recorded, until

from ayes.consumers import supervision
from ayes.consumers.gate import Gate
from ayes.consumers.worker import Worker
from ayes.interfaces.cli import up as up_command
from ayes.ledger import clock
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import Recorded
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ops import supervisor
from ayes.ops.inspection import guard, watching
from ayes.ops.inspection.health import Health, takes_writes
from ayes.schemas import events as e
from ayes.schemas.backoff import Backoff
from ayes.schemas.errors import BrokerAway, LedgerFull

#: How long processes are stopped: `make chaos` has them stopped for 30 s.
STOPPED_S = 30 if os.environ.get("CHAOS") else 1


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        yield disk


class Site:
    """A running `ayes up`, and what it reports on stderr."""

    def __init__(self, store, log, ready):
        self.store, self.ready = store, ready
        self.pid = ready["pid"]
        self._log = log
        self._seen = 0

    async def until(self, event, words=""):
        """Wait for the next report of this kind that has these words.

        On a busy machine others come before it: the broker may be late with an answer.
        """
        async with asyncio.timeout(60):
            while True:
                for line in self._log.read_text().splitlines()[self._seen :]:
                    self._seen += 1
                    found = json.loads(line) if line.startswith("{") else {"event": ""}
                    if found["event"] == event and words in line:
                        return found
                await asyncio.sleep(0.05)

    async def started_again(self):
        """Wait until the broker runs again; return why it was started."""
        ended = await self.until("the broker ended by itself and is started again")
        again = await self.until("the broker runs again")
        assert again["url"] == self.ready["url"]
        self.pid = again["pid"]
        return ended


@contextmanager
def up(store, log, *options):
    """The reports are in a file on another disk than the store."""
    with started("up", "--store", store, "--json", *options, log=log) as process:
        yield Site(store, log, json.loads(process.stdout.readline()))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    with up(folder / "store", folder / "up.log") as site:
        yield site


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Its store is on a small disk."""
    folder = tmp_path_factory.mktemp("small")
    with small_disk(folder / "disk") as disk, up(disk.path / "store", folder / "up.log") as site:
        yield site, disk


async def said(ledger, name, text="x"):
    return await ledger.append(THREAD.said(name), e.Said(role="user", text=text))


# ------------------------------------------------------------------------------------------ crashes


async def test_a_broker_that_ends_is_started_again_on_the_same_port(site):
    """Clients and workers notice no more than a pause, and `up` reports it (D7)."""
    async with Ledger.connect(site.store) as ledger:
        os.kill(site.pid, signal.SIGKILL)
        ended = await site.started_again()
        assert (ended["exit_code"], ended["most"]) == (-9, 5)
        assert isinstance(await said(ledger, "killed"), Recorded)
    assert approvals("status", store=site.store).code == 0


@pytest.mark.parametrize("step", ["declare_streams", "apply_text", "declare_tools"])
def test_a_broker_may_end_while_up_starts(tmp_path, within, monkeypatch, step):
    """At each step of the start it is started again, and the start goes on (D7)."""
    store, killed = tmp_path / "store", []
    right = getattr(up_command, step)

    async def killing(*given, **named):
        if not killed:
            killed.append(broker_of(store))
            os.kill(killed[0], signal.SIGKILL)
        return await right(*given, **named)

    monkeypatch.setattr(up_command, step, killing)
    monkeypatch.setattr(up_command, "_greet", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    policy = tmp_path / "shop.toml"
    policy.write_text("deny_repeats = 3\n")
    words = ("--policy", policy, "-w", "shop", "--tools", "shop_tools:tools", "--no-console")
    monkeypatch.syspath_prepend(ROOT / "examples")
    ended = within("up", "--store", store, *words)
    assert ended.code == 0, ended.err
    assert len(killed) == 1


def test_a_broker_that_ends_too_often_is_left_with_its_last_words(tmp_path, within, monkeypatch):
    """They are the last that `up` prints, and the program ends (D7)."""
    monkeypatch.setattr(supervisor, "MAX_RESTARTS", 1)
    monkeypatch.setattr(supervisor, "_PAUSES", Backoff(0))
    store = tmp_path / "store"

    def crash():
        first = broker_of(store)
        os.kill(first, signal.SIGQUIT)
        while (second := broker_of(store)) == first:
            time.sleep(0.05)
        os.kill(second, signal.SIGQUIT)

    crashing = threading.Thread(target=crash, daemon=True)
    monkeypatch.setattr(up_command, "_greet", lambda *_, **__: crashing.start())
    ended = within("up", "--store", store, "--workers", "none", "--json")
    assert ended.code == 75
    message = ended.problem["message"]
    # 2, or -11: Go's runtime may fail while it prints the threads.
    assert re.match(
        r"the broker ended by itself 2 times within 5 minutes \(exit code (2|-11)\)", message
    )
    assert "SIGQUIT: quit" in message
    assert "Traceback" not in ended.err


async def test_what_up_reads_beside_its_workers_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """An answer that nobody foresaw is reported and read again, and all goes on (D7)."""
    looks = Counter[str]()

    def odd(name: str) -> Callable[..., Any]:
        async def answer(*_: object, **__: object) -> Any:
            looks[name] += 1
            raise KeyError("state")

        return answer

    monkeypatch.setattr(supervision, "PAUSES", Backoff(0.01))
    monkeypatch.setattr(supervisor, "EVERY_S", 0.01)
    async with (
        running(tmp_path / "store") as server,
        JetStream.connect(server.store.path, role="admin") as log,
        watching.keeping(log, "here") as watched,
    ):
        monkeypatch.setattr(guard, "alarms", odd("guard"))
        monkeypatch.setattr(watching, "EVERY_S", 0.01)
        over = supervisor.Supervisor(server, log)
        await over.watch_log()
        monkeypatch.setattr(supervisor, "takes_writes", odd("disk"))
        monkeypatch.setattr(log, "stream_with", odd("witness"))
        await until(lambda: all(looks[one] > 2 for one in ("disk", "guard", "witness")))
        assert not over.broken.done()
        assert not any(task.done() for task in watched.ends)
        await over.end()


# ------------------------------------------------------------------------------- few files, memory


@pytest.mark.long
async def test_a_broker_without_file_descriptors_is_reported(site):
    """With 24 of them it can open no more. `up` reports it with the broker's own reason; open
    connections go on, and so does all else when there are more again.
    """
    async with Ledger.connect(site.store) as ledger:
        before = resource.prlimit(site.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(site.pid, resource.RLIMIT_NOFILE, (24, before[1]))
        reported = await site.until("the log takes no writes", "too many open files")
        assert "too many open files" in reported["broker"]
        assert isinstance(await said(ledger, "few"), Recorded)
        resource.prlimit(site.pid, resource.RLIMIT_NOFILE, before)
        await site.until("the log takes writes again")
    assert approvals("status", store=site.store).code == 0


@pytest.mark.long
async def test_a_broker_without_memory_is_started_again(site):
    """It may take 40 MB more and ends; what was acknowledged is there afterwards (D7)."""
    async with Ledger.connect(site.store) as ledger:
        most = memory(site.pid) + (40 << 20)
        resource.prlimit(site.pid, resource.RLIMIT_AS, (most, most))
        acknowledged = set()
        ending = asyncio.create_task(site.started_again())
        while not ending.done():
            names = [f"m{len(acknowledged)}-{number}" for number in range(40)]
            answers = await asyncio.gather(
                *(said(ledger, name, "x" * 400_000) for name in names), return_exceptions=True
            )
            acknowledged |= {
                name
                for name, answer in zip(names, answers, strict=True)
                if isinstance(answer, Recorded)
            }
        assert "memory" in (await ending)["last_output"]
        assert isinstance(await said(ledger, "last"), Recorded)
        found = ledger.log.scan(1, THREAD.subjects)
        names = {one.subject.rpartition(".")[2] async for page in found for one in page}
        assert names >= acknowledged | {"last"}


def memory(pid):
    """The bytes of its address space."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


# ------------------------------------------------------------------------------------------- clocks


@pytest.mark.parametrize("hours", [1, -1])
@pytest.mark.log("jetstream")
async def test_clocks_that_are_an_hour_off_change_nothing(port, hours):
    """Gate, service and reviewer an hour ahead, or behind: a deadline of a second comes after a
    second on the broker's clock, and a vote before it counts (I8).
    """

    def off():
        return clock.now() + timedelta(hours=hours)

    shop = Shop(port)
    policy = rule("refunds", "ask", 'voters = ["ana"]', "expires_in_s = {}")
    await shop.open(policy.format(1))
    shop.ledger = Ledger(port, e.Author(kind="service", name="desk"), now=off)
    gate = Ledger(port, e.Author(kind="gate", name="gate"), now=off)
    async with working(Worker(gate, Gate())):
        await shop.request(FIRST)
        expired = await shop.until(FIRST.decided)
        asked = await shop.until(FIRST.gated)
        assert isinstance(expired.event, e.Expired)
        late_s = (expired.recorded_at - asked.recorded_at).total_seconds()
        assert 1 <= late_s < 30
        await shop.apply(policy.format(600))
        await shop.ask(SECOND)
        ana = Ledger(port, e.Author(kind="reviewer", name="ana"), now=off).reviewer("ana")
        await ana.approve(SECOND)
        await shop.decided(e.Approved, SECOND)


# ------------------------------------------------------------------------------------------- pauses


@pytest.mark.long
async def test_readers_that_are_stopped_go_on_where_they_were(tmp_path):
    """`watch` and the gate are stopped meanwhile; each fact is printed once, each call decided."""
    store = tmp_path / "store"
    with (
        up(store, tmp_path / "up.log", "--workers", "queue"),
        started("work", "gate", "--store", store, "--json", log=tmp_path / "gate.log") as gate,
        started(
            "watch", "--from", "1", "--store", store, "--json", log=tmp_path / "watch.log"
        ) as watch,
    ):
        gate.stdout.readline()
        async with Ledger.connect(store) as ledger:
            await ledger.declare("shop", REFUND)
            await asyncio.to_thread(watch.stdout.readline)
            for one in (gate, watch):
                os.kill(one.pid, signal.SIGSTOP)
            try:
                until = asyncio.get_running_loop().time() + STOPPED_S
                calls = [THREAD.call(f"c{number}") for number in range(100)]
                for call in calls:
                    await ledger.request(call, "refund", '{"amount":1}', requester="rita")
                await asyncio.sleep(until - asyncio.get_running_loop().time())
            finally:
                for one in (gate, watch):
                    os.kill(one.pid, signal.SIGCONT)
            async with asyncio.timeout(60):
                for call in calls:
                    await recorded(ledger, call.gated.subject)
                last = await ledger.log.last_seq()
                seen = [1]
                while seen[-1] < last:
                    seen.append(json.loads(await asyncio.to_thread(watch.stdout.readline))["seq"])
            assert seen == list(range(1, last + 1))


def broker_of(store):
    """The process id of the broker, once it answers."""
    while True:
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", Store(store).read().port)) as broker,
        ):
            if broker.recv(4) == b"INFO":
                return int((store / "lock").read_text().split()[1])
        time.sleep(0.05)


# --------------------------------------------------------------------------------------- full disks


async def test_a_full_disk_is_noticed_without_a_write_of_anybody(disk):
    """The trial records nothing; a stream that failed is dead until a restart (D5)."""
    store = Store(disk.path / "store")
    async with running(store.path), JetStream.connect(store.path, role="admin") as log:

        async def tried():
            return await takes_writes(log, store)

        assert (await tried()).ok
        assert (await log.api.publish("ledger.shop.t1.opened", b"{}")).seq == 1
        disk.leave(4096)
        health = await tried()
        assert not health.ok
        incomplete = "atomic publish batch is incomplete"
        assert health.why == f"the broker cannot write to its disk: {incomplete}."
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


async def test_facts_are_refused_before_the_disk_is_full(small):
    """`up` reports it, requests are refused, and with room all goes on by itself (D5)."""
    site, disk = small
    async with Ledger.connect(site.store) as ledger:
        assert isinstance(await said(ledger, "m1"), Recorded)
        others = disk.path / "others"
        others.write_bytes(bytes(8 << 20))
        disk.leave(200_000)
        assert (await site.until("the log takes no writes", "nearly full"))["why"] == (
            "the disk of the ledger is nearly full, so `ayes up` has its broker refuse further "
            "facts. Free some space: it goes on by itself."
        )
        with pytest.raises(LedgerFull, match="`ayes up` refuses facts while the disk is nearly"):
            await said(ledger, "m2")
        waiting = asyncio.create_task(
            ledger.append_until_acknowledged(THREAD.said("m3"), e.Said(role="user", text="waits"))
        )
        others.unlink()
        disk.enlarge()
        await site.until("the log takes writes again")
        assert await waiting is None


async def test_a_broker_whose_disk_was_full_is_restarted_when_there_is_room(small):
    """Its stream answers again once restarted; nothing acknowledged is lost (D5)."""
    site, disk = small
    async with Ledger.connect(site.store) as ledger:
        assert isinstance(await said(ledger, "m4"), Recorded)
        disk.leave(4096)
        last = asyncio.create_task(said(ledger, "m5", "x" * 200_000))
        await site.until("the log takes no writes")
        disk.enlarge()
        assert (await site.until("the broker runs again"))["url"] == site.ready["url"]
        await site.until("the log takes writes again")
        await last
        assert isinstance(await said(ledger, "m6"), Recorded)
        names = {fact.slot.tail[-1] for fact in await ledger.log.read(THREAD.subjects)}
        assert {"m4", "m6"} <= names
