"""What an approval costs, counted on the wire: a guard that no clock has a part in.

Everybody reaches the broker through a port that counts, so no client can leave anything out: the
real gate and executor run as `ayes work gate executor` in a process of their own, service and
reviewer as the benchmark has them.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import structs

from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import AppendResult, Recorded
from ayes.ledger.nats import api, streams
from ayes.ledger.nats.credentials import Store
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.broker.setup import declare_streams
from ayes.schemas import events as e
from ayes.schemas.backoff import Backoff
from ayes.schemas.slots import ThreadRef
from bench.cycle import REVIEWER, WORKSPACE, Clients, at_work

CYCLES = 20

#: Of each role, for one cycle, what goes to the broker and what comes from it.
type Counts = dict[str, dict[str, float]]


class Wire:
    """A port in front of the broker's: what went through it, by the latest user and kind."""

    def __init__(self, port: int) -> None:
        self.counts: dict[str, Counter[str]] = {}
        self._port = port
        self._open: set[asyncio.Task[None]] = set()
        #: The subjects of answers that are not counted.
        self._unheeded: set[bytes] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._connected, "127.0.0.1")
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._open.add(task)
        counter: Counter[str] = Counter()
        try:
            there = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pass_on(reader, there[1], counter))
                    both.create_task(self._pass_on(there[0], writer, counter))
            except* ConnectionError:
                pass  # the other end is gone
            finally:
                there[1].transport.abort()  # a close would wait for what nobody reads any more
        finally:
            writer.transport.abort()
            self._open.discard(task)

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, counter: Counter[str]
    ) -> None:
        rest = b""
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
            rest += data
            rest = rest[sum(map(len, self._counted(rest, counter))) :]
        target.close()

    def _counted(self, data: bytes, counter: Counter[str]) -> Iterator[bytes]:
        for frame, verb, words, payload in frames(data):
            if verb == b"CONNECT":
                who = json.loads(frame.removeprefix(b"CONNECT "))
                if " witness " not in who["name"]:  # it looks every five seconds
                    self.counts[who.get("user", who["name"])] = counter
            elif payload == b"+WPI":  # a delivery takes its time
                self._unheeded.add(words[1])
            elif words and words[0] in self._unheeded:
                self._unheeded.remove(words[0])
            elif (kind := kind_of(verb, words[0].decode() if words else "", payload)) is not None:
                way = "bytes in" if verb in {b"MSG", b"HMSG"} else "bytes out"
                counter.update({kind: 1, way: len(frame)})
            yield frame


def frames(data: bytes) -> Iterator[tuple[bytes, bytes, list[bytes], bytes]]:
    """The whole protocol messages at the beginning: all of it, its verb, its words, its payload."""
    begin = 0
    while (end := data.find(b"\r\n", begin)) >= 0:
        verb, *words = data[begin:end].split()
        start = end + 2
        after = start + int(words[-1]) + 2 if verb in _WITH_PAYLOAD else start
        if after > len(data):
            return
        yield data[begin:after], verb, words, data[start : after - 2] if after > start else b""
        begin = after


def kind_of(verb: bytes, subject: str, payload: bytes) -> str | None:
    """What a message is for. None: it is no part of a cycle, but of being connected."""
    if (
        verb not in _WITH_PAYLOAD
        or payload.startswith(b"NATS/1.0 100")
        or subject.startswith("$JS.FC.")
    ):
        return None
    match subject.split("."):
        case ["ledger", *_]:
            return "handed" if verb in {b"MSG", b"HMSG"} else "facts"
        case ["_INBOX", *_]:
            return "answers"
        case ["$JS", "ACK", *_]:
            return "acks"
        case ["$JS", "API", *_]:
            return "requests"
        case _:
            return "other"


_WITH_PAYLOAD = {b"PUB", b"HPUB", b"MSG", b"HMSG"}


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[tuple[Wire, Path, Path]]:
    """The counting port, the broker's own store, and one whose broker is behind the port."""
    store, through = tmp_path / "store", tmp_path / "through"
    async with EmbeddedServer(store) as server:
        await declare_streams(store, also=("executor",))
        await server.ensure_account(f"reviewer-{REVIEWER}")
        address = server.store.read()
        wire = Wire(address.port)
        async with wire.listening() as port:
            through.mkdir()
            Store(through).write(
                structs.replace(address, url=f"nats://127.0.0.1:{port}", port=port)
            )
            yield wire, store, through


async def settled(store: Path) -> None:
    """Wait until all that was handed out is acknowledged."""
    async with Ledger.connect(store, role="admin") as admin, asyncio.timeout(60):
        for durable in ("gate", "executor"):
            while await left(admin, durable):  # noqa: ASYNC110 - nobody is told of it
                await asyncio.sleep(0.01)


async def left(admin: Ledger, durable: str) -> int:
    consumer = await streams.info(admin.log.api, f"CONSUMER.INFO.LEDGER.{durable}")
    assert consumer
    return consumer["num_pending"] + consumer["num_ack_pending"]


#: The most of each kind, for one cycle; what is not in it must not be sent at all.
MAX_REQUESTS: Counts = {
    "service": {"facts": 1, "requests": 1.2, "handed": 2, "answers": 4,
                "bytes out": 840, "bytes in": 2300},
    # Its one read in twenty cycles may be sent five times.
    "gate": {"facts": 2, "requests": 0.3, "handed": 8, "acks": 2.3, "answers": 2.9,
             "bytes out": 1200, "bytes in": 4500},
    f"reviewer-{REVIEWER}": {"facts": 1, "requests": 2.2, "answers": 11,
                             "bytes out": 930, "bytes in": 5300},
    "executor": {"facts": 2, "handed": 2, "acks": 2, "answers": 2,
                 "bytes out": 1145, "bytes in": 1260},
}  # fmt: skip


async def test_an_approval_costs_so_much_and_no_more(wire, monkeypatch):
    """One after the other in a conversation of twenty calls; the averages, as last measured:

    |          | facts | requests | handed | acks | answers | bytes out | bytes in |
    |----------|-------|----------|--------|------|---------|-----------|----------|
    | service  |     1 |        1 |      2 |    0 |       3 |       820 |    1,725 |
    | gate     |     2 |     0.05 |      8 |    2 |     2.1 |     1,109 |    4,130 |
    | reviewer |     1 |        2 |      0 |    0 |       8 |       906 |    3,460 |
    | executor |     2 |        0 |      2 |    2 |       2 |     1,113 |    1,224 |

    Each is held against a bound just above, except where more is there to be read if somebody else
    is quick: the answers of service and reviewer, and their bytes. What only a busy machine causes
    does not count: service and reviewer send no read again that is not answered within 0.3 s, and
    that a delivery is in progress is left out. Gate and executor are in one process, and read
    nothing: the gate's connection hears the whole log for both, six facts a cycle. Its one request
    in twenty cycles is for the conversation as it was before it was heard of. Beside them the
    gate's process looks every five seconds at what is new in the log
    (ops/inspection/watching.py), on a connection of its own, which is left out too: what falls into
    the twenty cycles depends on the clock.
    """
    monkeypatch.setattr(api, "PAUSES", Backoff(60.0))
    counting, store, through = wire
    thread = ThreadRef(WORKSPACE, "conversation")
    async with at_work(through), Clients.at(through) as clients:
        await clients.cycles(3, 1)
        await settled(store)
        before = {user: counter.copy() for user, counter in counting.counts.items()}
        for turn in range(CYCLES):
            await clients.cycle(thread.call(f"c{turn}"))
        await settled(store)
        spent = {
            user: {kind: (count - before[user][kind]) / CYCLES for kind, count in counter.items()}
            for user, counter in counting.counts.items()
        }
    assert sum(counts.get("facts", 0) for counts in spent.values()) == 6
    too_much = {
        f"{user}: {kind}": count
        for user, counts in spent.items()
        for kind, count in counts.items()
        if count > MAX_REQUESTS.get(user, {}).get(kind, 0)
    }
    assert too_much == {}, spent


async def test_a_burst_is_one_commit(wire):
    """What a burst of deliveries leads to is asked of the broker once."""
    counting, _, through = wire
    thread = ThreadRef(WORKSPACE, "burst")
    async with Ledger.connect(through) as service:

        async def said(number: int) -> AppendResult:
            for _ in range(number % 5):
                await asyncio.sleep(0)
            return await service.append(
                thread.said(f"m{number}"), e.Said(role="user", text="Hurry, please.")
            )

        before = counting.counts["service"].copy()
        answers = await asyncio.gather(*map(said, range(40)))
        assert sorted(one.seq for one in answers if isinstance(one, Recorded)) == list(range(1, 41))
    spent = counting.counts["service"] - before
    assert (spent["facts"], spent["answers"], spent["requests"]) == (40, 1, 0)


async def test_who_appends_at_every_pass_keeps_nobody_waiting(wire):
    """A commit gathers those that come at the same moment, and not all that will ever come."""
    _, store, _ = wire
    thread = ThreadRef(WORKSPACE, "drip")
    async with Ledger.connect(store) as service, asyncio.TaskGroup() as appending:
        first = service.append(thread.said("first"), e.Said(role="user", text="Me, please."))
        waiting = appending.create_task(first)
        number = 0
        async with asyncio.timeout(60):
            while not waiting.done():
                number += 1
                said = service.append(
                    thread.said(f"m{number}"), e.Said(role="user", text="And me.")
                )
                appending.create_task(said)
                await asyncio.sleep(0)
        assert isinstance(waiting.result(), Recorded)
