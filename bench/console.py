"""The console before 10,000 waiting calls: its first page, its events, its memory.

It runs in a process of its own, as `ayes console` does; the browsers are sockets in this one. The
time of a page is from the request to the last byte of the answer. The time of an event is from the
broker's acknowledgement of a vote to its arrival at a client, for each of 50 that are connected;
and with these, to the change that a decision makes on a page in a real browser (`drawing.py`).
Without Chromium that last time is not measured, and a message says so.
Memory is that of the process, with the clients connected, before and after as many calls as wait
are requested and decided, and once more. The workers are left out: their facts, and the entries of
the live queue, are written as theirs would be.
"""

import asyncio
import itertools
import logging
import re
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import httpx

from ayes.interfaces.api.feed import KEPT
from ayes.interfaces.console.serving import serving
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import Recorded
from ayes.ledger.nats.credentials import Store
from ayes.ops.tokens import AccessFile
from ayes.ops.visitors import Role
from ayes.projections import pending as queue
from ayes.schemas.events import Event
from ayes.schemas.slots import CallRef, Slot, ThreadRef
from ayes.schemas.tools import declaration
from bench import child, drawing, logs
from bench.append import LATER, broker, timed
from bench.growth import resident_mb
from bench.logs import Log
from bench.results import Result, compared

WORKLOAD: Final = "console"
#: Targets: milliseconds for a page and for an event, and bytes of a page with all that it loads.
WANTED_PAGE_MS: Final = 60.0
WANTED_EVENT_MS: Final = 300.0
WANTED_KB: Final = 150.0
#: What a page of some calls is asked for, once what is searched has been read.
_SEARCHES: Final = {
    "of a word": "/?q=noah+-t7",
    "of an argument": "/?q=last_name:li",
    "by deadline, in groups": "/?sort=due&group=requester",
}
#: Calls that wait, and calls that are decided meanwhile.
_MAX: Final = 10_000
_CLIENTS: Final = 50
#: Requests of a round; its figure is their median.
_RUNS: Final = 15
_EVENTS: Final = 40
#: Rows of the first page, and how many of them are decided while a browser shows it.
_LISTED: Final = 50
_DRAWN: Final = 30
#: The pause between two facts whose events are timed.
_PAUSE_S: Final = 0.05
_IN_FLIGHT: Final = 100
_PATIENCE_S: Final = 120.0
_calling: Final = partial(logs.calling, version=declaration(logs.TOOL)[0])
_FILES: Final = re.compile(r'(?:src|href)="(/static/[^"#]+)')
_ID: Final = re.compile(rb"\nid: (\d+)\n")


async def measure(log: Log, rounds: int, scratch: Path) -> list[Result]:
    """Milliseconds of a page and of an event, megabytes of the process, kilobytes of a page."""
    logging.getLogger("httpx").setLevel(logging.WARNING)
    store = scratch / "console"
    waiting = max(300, min(_MAX, log.facts // 20))
    async with (
        broker(store, LATER),
        Ledger.connect(store, role="admin") as admin,
        AsyncExitStack() as open_,
    ):
        await admin.declare("bench", logs.TOOL)  # or its arguments are not searched
        await timed(lambda one: ask(admin, call_of(one)), list(range(waiting)), _IN_FLIGHT)
        process, client = await open_.enter_async_context(_console(store, waiting))
        pages = [await _page_ms(client, "/") for _ in range(rounds)]
        searched = {
            what: [await _page_ms(client, path) for _ in range(rounds)]
            for what, path in _SEARCHES.items()
        }
        answers = [await _page_ms(client, "/api/v1/calls?status=pending") for _ in range(rounds)]
        weight = await _weight_kb(client)
        browsers = [await open_.enter_async_context(_Browser.of(client)) for _ in range(_CLIENTS)]
        drawn = await _drawn(admin, client, rounds)
        votes = iter(map(call_of, range(_DRAWN * rounds, waiting)))
        events = [
            await _event_ms(admin, itertools.islice(votes, _EVENTS), browsers)
            for _ in range(rounds)
        ]
        # The console holds as many past events as it ever will before its memory is first measured.
        before = await _decided(admin, "early", min(KEPT // 2, waiting), browsers, process.pid)
        after = await _decided(admin, "late", waiting, browsers, process.pid)
        # What grows with each decision grows as much again; what is only filled once does not.
        again = await _decided(admin, "later", waiting, browsers, process.pid)
        facts, version = await admin.log.last_seq(), admin.log.server_version
        searches = [await _page_ms(client, "/decided") for _ in range(rounds)]

    def line(
        what: str, unit: str, ours: list[float], floor: list[float], beside: str = "wanted",
        target: float | None = 1.0,
    ) -> Result:  # fmt: skip
        return compared(
            WORKLOAD, what, unit, ours, floor, beside=beside, better="lower", target=target,
            facts=facts, nats_server=version, sync=LATER,
        )  # fmt: skip

    told = f"{waiting:,} calls wait"
    return [
        line(f"{told}, first page, p50", "ms", pages, [WANTED_PAGE_MS]),
        line(f"{told}, the same as JSON, p50", "ms", answers, pages, "as a page", None),
        *(
            line(f"{told}, first page {what}, p50", "ms", times, pages, "all of them", None)
            for what, times in searched.items()
        ),
        line(f"a page with all that it loads, {told}", "kB", [weight], [WANTED_KB]),
        line(f"a vote in the log to {_CLIENTS} clients, p50", "ms", events, [WANTED_EVENT_MS]),
        *(
            [
                line(
                    f"a decision in the log to the page, beside {_CLIENTS} clients, p50", "ms",
                    drawn, [WANTED_EVENT_MS],
                )
            ]
            if drawn
            else []
        ),
        line(
            f"memory after {waiting:,} more calls were decided", "MB", [after], [before],
            "before them", 1.15,
        ),
        line(
            f"memory after {waiting:,} more calls again", "MB", [again], [after], "before them",
            1.05,
        ),
        line(f"the newest of {waiting:,} decided calls, p50", "ms", searches, pages, "waiting",
             None),
    ]  # fmt: skip


def call_of(number: int, thread: str = "t") -> CallRef:
    return ThreadRef("bench", f"{thread}{number // logs.TURNS}").call(f"c{number}")


async def ask(admin: Ledger, call: CallRef) -> None:
    """Request a call, ask people about it, and put it into the live queue."""
    for slot, event in itertools.islice(_calling(call), 2):
        await admin.append(slot, event)
    asked = await admin.call(call)
    entry = queue.entry(asked)
    assert entry, f"{call} waits"
    await admin.log.pending.put(queue.key(call), queue.encode(entry), 0)


async def _decided(
    admin: Ledger, thread: str, count: int, browsers: "list[_Browser]", console: int
) -> float:
    """The console's memory in megabytes, once this many calls are decided and each client knows."""
    calls = [call_of(number, thread) for number in range(count)]
    await timed(lambda call: _decide(admin, call), calls, _IN_FLIGHT)
    await _caught_up(browsers, await admin.log.last_seq())
    return resident_mb(console)


async def _decide(admin: Ledger, call: CallRef) -> None:
    """A call from its request to its decision, as the live queue sees it."""
    await ask(admin, call)
    for slot, event in itertools.islice(_calling(call), 2, 4):
        await admin.append(slot, event)
    _, revision = await admin.log.pending.get(queue.key(call))
    await admin.log.pending.delete(queue.key(call), revision)


# ------------------------------------------------------------------------------------- the console


@asynccontextmanager
async def _console(
    store: Path, waiting: int
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, httpx.AsyncClient]]:
    """The process of a console that has loaded its list, and a client of it."""
    secret, _ = AccessFile(Store(store)).add_token("ana", Role.REVIEWER, timedelta(days=1))
    async with child.served(__spec__.name, store) as (process, url):
        headers = {"Authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=_PATIENCE_S) as client:
            async with asyncio.timeout(_PATIENCE_S):
                while await _listed(client) != waiting:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.1)
            yield process, client


async def serve() -> None:
    """Serves the console of the store that the first argument names, until it is stopped."""
    async with serving(Store(sys.argv[1]), "ana", port=0) as running:
        print(running.url, flush=True)
        await running.ended


async def _listed(client: httpx.AsyncClient) -> int:
    """How many calls the console lists; 0 while it loads them."""
    answer = await client.get("/api/v1/calls", params={"status": "pending", "limit": 1})
    return int(answer.json()["waiting"]) if answer.is_success else 0


async def _page_ms(client: httpx.AsyncClient, path: str) -> float:
    times = []
    for _ in range(_RUNS):
        begun = time.perf_counter()
        (await client.get(path)).raise_for_status()
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1000


async def _weight_kb(client: httpx.AsyncClient) -> float:
    """The first page and each file that it loads, not compressed."""
    page = (await client.get("/")).raise_for_status()
    files = [await client.get(path) for path in set(_FILES.findall(page.text))]
    return sum(len(one.raise_for_status().content) for one in (page, *files)) / 1000


class _Browser:
    """One open stream of events."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._rest = b""
        #: The last event, and when each arrived.
        self.seq = 0
        self.arrived: dict[int, float] = {}

    @classmethod
    @asynccontextmanager
    async def of(cls, client: httpx.AsyncClient) -> AsyncGenerator["_Browser"]:
        host, port = client.base_url.host, client.base_url.port
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(
            f"GET /api/v1/events HTTP/1.1\r\nHost: {host}:{port}\r\n"
            f"Authorization: {client.headers['Authorization']}\r\n\r\n".encode()
        )
        browser = cls(reader)
        reading = asyncio.create_task(browser._read())
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while not browser.seq:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.01)
            yield browser
        finally:
            reading.cancel()
            writer.close()

    async def _read(self) -> None:
        while some := await self._reader.read(1 << 16):
            now = time.time()
            found = self._rest + some
            for seq in map(int, _ID.findall(found)):
                self.seq = max(self.seq, seq)
                self.arrived.setdefault(seq, now)
            self._rest = found[-64:]


async def _event_ms(
    admin: Ledger, calls: "itertools.islice[CallRef]", browsers: list[_Browser]
) -> float:
    """The median over all clients and some votes."""
    recorded_ms: dict[int, float] = {}
    for call in calls:
        [*_, (slot, event)] = itertools.islice(_calling(call), 3)
        seq, at_ms = await _recorded(admin, slot, event)
        recorded_ms[seq] = at_ms
        await asyncio.sleep(_PAUSE_S)
    await _caught_up(browsers, max(recorded_ms))
    return statistics.median(
        one.arrived[seq] * 1000 - at_ms for one in browsers for seq, at_ms in recorded_ms.items()
    )


async def _recorded(admin: Ledger, slot: Slot, event: Event) -> tuple[int, float]:
    """The number of a new fact, and when the broker stored it, in milliseconds since 1970.

    On a busy machine others see it before its writer has the acknowledgement.
    """
    answer = await admin.append(slot, event)
    assert isinstance(answer, Recorded), f"{slot.subject} was filled before"
    raw = await admin.log.at(answer.seq)
    assert raw is not None
    return answer.seq, raw.at_ns / 1e6


async def _drawn(admin: Ledger, client: httpx.AsyncClient, rounds: int) -> list[float]:
    """Milliseconds from a decision to the change on the page, each round on a new page; empty
    without Chromium.
    """
    if drawing.chromium() is None:
        said = "no Chromium was found, so the time to the change on a page is not measured"
        print(said, file=sys.stderr)
        return []

    async def decide(call: CallRef) -> float:
        vote, decision = itertools.islice(_calling(call), 2, 4)
        await admin.append(*vote)
        _, at_ms = await _recorded(admin, *decision)
        return at_ms

    times = []
    for _ in range(rounds):
        url, authorization = str(client.base_url), client.headers["Authorization"]
        async with drawing.listing(url, authorization) as page:
            times.append(await drawing.drawn_ms(page, _DRAWN, decide))
            decided = await page.evaluate("Object.keys(window.changed)")
        # As the queue's worker does; only now, so that no row leaves while others are timed.
        for name in decided:
            key = queue.key(CallRef.parse(name))
            _, revision = await admin.log.pending.get(key)
            await admin.log.pending.delete(key, revision)
        async with asyncio.timeout(_PATIENCE_S):
            while set(decided).intersection(await _first_names(client)):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    return times


async def _first_names(client: httpx.AsyncClient) -> list[str]:
    answer = await client.get("/api/v1/calls", params={"limit": _LISTED})
    return [one["call"] for one in answer.raise_for_status().json()["calls"]]


async def _caught_up(browsers: list[_Browser], seq: int) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while any(one.seq < seq for one in browsers):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)
