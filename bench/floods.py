"""What one login at full speed leaves the others: the approvals of an honest service and reviewer
beside a flood, and without one.

    python -m bench.floods                    all floods, half a minute each
    python -m bench.floods facts --seconds 5

A flood is a process of its own, on the same machine, with raw connections and the credentials of
one role. It sends what that role may send in a workspace of its own, and waits for no answers.
Beside it a service requests, people are asked, a reviewer votes and an executor runs the tool, four
calls at a time, as in `bench/cycle.py`. Beside `waits` the service also asks the console's process
over NATS how each call was decided. An honest call that is refused or late is tried again, as
workers do, and counts from when it was first tried.
"""

import argparse
import asyncio
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from ayes.ledger.clients.services import CHANNEL
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.protocol import frame
from ayes.ops.broker.processes import die_with_parent, environment
from ayes.schemas.codec import encode
from ayes.schemas.errors import ApprovalsError, BrokerRefused
from ayes.schemas.events import ModelReplied, Text, Wish
from ayes.schemas.slots import CallRef
from bench import child
from bench.append import LATER, broker
from bench.cycle import REVIEWER, WORKSPACE, Clients, at_work
from bench.results import SYNC

#: The workspace of a flood.
FLOOD: Final = "flood"
#: Honest calls at a time, and how long one may take before it counts as not ended.
AT_ONCE: Final = 4
PATIENCE_S: Final = 30.0
#: Connections of a flood, and the messages that are written together.
CONNECTIONS: Final = 4
_TOGETHER: Final = 64


class Flood(Struct, frozen=True):
    """Who floods, and with what."""

    role: str
    #: The subject of a message, by a word that no other has.
    subject: Callable[[str], str]
    body: Callable[[str], bytes]


def _reply(word: str) -> str:
    return f"ledger.{FLOOD}.t.turn.{word}.replied"


def _nothing(size: int) -> Callable[[str], bytes]:
    return lambda word: word.encode().ljust(size, b"x")


def _asking(**which: object) -> Callable[[str], bytes]:
    body = msgspec.json.encode(which)
    return lambda _: body


def _wishing(word: str) -> bytes:
    """A valid reply, which the gate has to look at: it wishes for a call."""
    return encode(ModelReplied(id=word, parts=(Text("x" * 400), Wish("refund", "{}"))))


def _made_up(word: str) -> bytes:
    """A fact as of a newer program, which every worker that reads it parks or passes over."""
    return msgspec.json.encode({"type": "MadeUp", "v": 1, "id": word})


FLOODS: Final[dict[str, Flood]] = {
    "facts": Flood("model", _reply, _nothing(600)),
    "replies": Flood("model", _reply, _wishing),
    "newer facts": Flood("model", _reply, _made_up),
    "large facts": Flood("model", _reply, _nothing(500_000)),
    "files": Flood("model", lambda one: f"file.{FLOOD}.model.{one}.0", _nothing(128 * 1024)),
    "parked": Flood("model", lambda one: f"parked.model.model.{one}", _nothing(4_000)),
    "running": Flood("notifier", lambda one: f"$KV.running.{CHANNEL}{one}", _nothing(99)),
    "reads": Flood(
        "observer",
        lambda _: "$JS.API.DIRECT.GET.LEDGER",
        _asking(multi_last=[f"ledger.{WORKSPACE}.>"], batch=1000),
    ),
    "waits": Flood(
        "observer",
        lambda _: "approvals.observer.flood.wait",
        _asking(call=f"{FLOOD}/t/c1", timeout_s=60),
    ),
    "infos": Flood(
        "observer", lambda _: "$JS.API.STREAM.INFO.LEDGER", _asking(subjects_filter="ledger.>")
    ),
}


class Honest(Struct, frozen=True):
    """What the honest ones achieved."""

    #: Calls that ended, each second.
    rate: float
    p50_ms: float
    p99_ms: float
    #: Calls that were refused or late at least once, and those that never ended.
    repeated: int
    lost: int


async def honest(clients: Clients, seconds: float, calls: Iterator[CallRef]) -> Honest:
    """Ask, decide and run for so long."""
    took: list[float] = []
    repeated = lost = 0
    until = time.monotonic() + seconds

    async def one_after_another() -> None:
        nonlocal repeated, lost
        while (begun := time.monotonic()) < until:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    while True:
                        with suppress(ApprovalsError):
                            await clients.cycle(next(calls))
                            break
                        repeated += 1
                        await asyncio.sleep(0.05)
            except TimeoutError:
                lost += 1
            took.append(time.monotonic() - begun)

    await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))
    ordered = sorted(took)
    ended = len(took) - lost
    p50, p99 = (
        ordered[min(len(ordered) - 1, int(one * len(ordered)))] * 1000 for one in (0.5, 0.99)
    )
    return Honest(ended / seconds, p50, p99, repeated, lost)


class _Waiting(Clients):
    """A service that waits as a program in another language does."""

    async def cycle(self, call: CallRef) -> float:
        waited_s = await super().cycle(call)
        log = self.service.log
        assert isinstance(log, JetStream)
        body = msgspec.json.encode({"call": str(call)})
        answer = await log.api.ask("approvals.service.desk.wait", body)
        if answer.headers:
            raise BrokerRefused(str(answer.headers))
        return waited_s


@asynccontextmanager
async def flooding(store: Path, name: str) -> AsyncGenerator[list[int]]:
    """A flood, from its first message on; what it sent, once it has ended: messages and bytes."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.floods", name, "--store", str(store)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=die_with_parent(),
        env=environment() | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert process.stdout
    sent: list[int] = []
    try:
        await process.stdout.readline()
        yield sent
    finally:
        said, _ = await process.communicate(b"end\n")
        sent += map(int, said.split())


async def flood(store: Path, name: str) -> None:
    """Send without end, until something comes on stdin."""
    of = FLOODS[name]
    login = Store(store).login(of.role)
    at = urlsplit(login.url)
    counted = [0, 0]
    words = map(str, itertools.count(time.monotonic_ns()))
    reply = f"_INBOX.{login.user}.flood.x"
    options = {"verbose": False, "user": login.user, "pass": login.password, "headers": True}

    async def one() -> None:
        reader, writer = await asyncio.open_connection(at.hostname, at.port)
        await reader.readline()
        writer.write(b"CONNECT " + msgspec.json.encode(options) + b"\r\nPING\r\n")
        while not (line := await reader.readline()).startswith(b"PONG"):
            if line.startswith(b"-ERR") or not line:
                raise ConnectionRefusedError(line)

        async def swallow() -> None:
            while data := await reader.read(1 << 20):
                if b"PING\r\n" in data:
                    writer.write(b"PONG\r\n")

        swallowing = asyncio.create_task(swallow())
        try:
            while True:
                some = list(itertools.islice(words, _TOGETHER))
                raw = b"".join([frame(of.subject(word), of.body(word), reply) for word in some])
                writer.write(raw)
                await writer.drain()
                counted[0] += len(some)
                counted[1] += len(raw)
        finally:
            swallowing.cancel()

    async def again() -> None:
        while True:
            with suppress(OSError):  # the broker may end who reads too slowly
                await one()
            await asyncio.sleep(0.1)

    sending = [asyncio.create_task(again()) for _ in range(CONNECTIONS)]
    while not counted[0]:  # noqa: ASYNC110 - each of them counts
        await asyncio.sleep(0.01)
    print("began", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for task in sending:
        task.cancel()
    print(*counted, flush=True)
    os._exit(0)  # with what is in its buffers


class Measured(Struct, frozen=True):
    """A flood, and the honest ones before and during it."""

    flood: str
    sync: str
    before: Honest
    during: Honest
    #: What the flood sent, each second.
    messages: float
    megabytes: float

    def __str__(self) -> str:
        share = self.during.rate / self.before.rate if self.before.rate else 0.0
        return (
            f"{self.flood:12} {self.messages:9,.0f}/s {self.megabytes:6,.1f} MB/s | honest "
            f"{self.before.rate:6.1f}/s p99 {self.before.p99_ms:7,.0f} ms -> "
            f"{self.during.rate:6.1f}/s ({share:4.0%}) p50 {self.during.p50_ms:7,.0f} "
            f"p99 {self.during.p99_ms:7,.0f} ms, repeated {self.during.repeated}, "
            f"lost {self.during.lost}"
        )


async def measure(name: str, seconds: float, scratch: Path, sync: str = SYNC) -> Measured:
    """One flood, on a broker of its own."""
    store = scratch / name.replace(" ", "-")
    calls = (CallRef(WORKSPACE, f"h{number}", "c1") for number in itertools.count())
    async with broker(store, sync) as server:
        for role in (f"reviewer-{REVIEWER}",):
            await server.ensure_account(role)
        async with AsyncExitStack() as running:
            await running.enter_async_context(at_work(store))
            if name == "waits":
                await running.enter_async_context(child.served("bench.console", store))
            kind = _Waiting if name == "waits" else Clients
            clients = await running.enter_async_context(kind.at(store))
            await honest(clients, 1.0, calls)
            before = await honest(clients, min(seconds, 60.0), calls)
            begun = time.monotonic()
            async with flooding(store, name) as sent:
                during = await honest(clients, seconds, calls)
            spent = time.monotonic() - begun
    return Measured(name, sync, before, during, sent[0] / spent, sent[1] / spent / 1e6)


def main() -> None:
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("floods", nargs="*", help=f"of {', '.join(FLOODS)}; by default all")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--later", action="store_true", help="flush to disk every two minutes")
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    said = parser.parse_args()
    if said.store:
        asyncio.run(flood(said.store, said.floods[0]))
    for name in said.floods or FLOODS:
        with tempfile.TemporaryDirectory(prefix="floods-") as scratch:
            print(
                asyncio.run(
                    measure(name, said.seconds, Path(scratch), LATER if said.later else SYNC)
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
