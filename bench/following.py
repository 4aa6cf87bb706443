"""What followers of replies cost the workers and the broker: approval cycles and replies with 100
and with 1,000 followers, compared with the same without followers.

The followers run on the same machine, and their own program needs far more of it than the broker
does for them. So without followers a program that does nothing else uses as much processor time.

Some models reply to others all the time, a word every 20 ms, and each follower follows one of these
replies. Followers share connections, as the clients of a console do; a tenth of them never read,
each on a connection of its own. Gate, executor, model workers and followers each run in a process
of their own. The processor time of the broker is measured while nothing is recorded.
"""

import asyncio
import itertools
import json
import socket
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from ayes.consumers.live import follow_reply, live_subject
from ayes.consumers.model import ModelReply, ModelRequest, ModelWorker
from ayes.consumers.worker import Worker
from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.replica import ReadReplica
from ayes.schemas import events as e
from ayes.schemas.slots import ROOT, ThreadRef
from bench import child
from bench.append import AT_ONCE, broker, timed
from bench.cycle import REVIEWER, Clients, at_work
from bench.logs import Log
from bench.results import SYNC, Better, Result, compared

WORKLOAD: Final = "following"
#: Followers of the rounds, in turns.
FOLLOWERS: Final = (100, 1_000)
#: Conversations whose reply takes as long as all rounds.
_LONG: Final = 10
_WORKSPACE: Final = "live"
_WORD: Final = "word "
_WORDS: Final = 40
#: As from a provider: 50 words a second.
_PAUSE_S: Final = 0.02
#: Followers that share a connection. One in `_DEAF` never reads.
_TOGETHER: Final = 100
_DEAF: Final = 10
#: Cycles and replies of a round.
_CYCLES: Final = 500
_REPLIES: Final = 100
#: How long the broker is watched after them.
_REST_S: Final = 3.0
_WARM: Final = 20
_REPLIES_AT_ONCE: Final = 16
_PATIENCE_S: Final = 120.0


async def measure(log: Log, rounds: int, scratch: Path) -> list[Result]:
    """Cycles and replies a second, and the followers' share of the broker."""
    store = scratch / "following"
    cycles, replies = min(_CYCLES, log.facts), min(_REPLIES, log.facts)
    found: dict[int, list[tuple[_Figures, _Figures]]] = {count: [] for count in FOLLOWERS}
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(broker(store, SYNC))
        for name in ("observer", f"reviewer-{REVIEWER}"):
            await server.ensure_account(name)
        await stack.enter_async_context(at_work(store))
        clients = await stack.enter_async_context(Clients.at(store))
        await stack.enter_async_context(child.served(__spec__.name, store, "models"))
        talk = await stack.enter_async_context(_Talk.at(store))
        await talk.begin()
        await clients.cycles(_WARM, 1)
        await talk.replies(_WARM)

        async def figures(beside: int) -> _Figures:
            """A round beside the process with this id."""
            cpu_s, begun = _cpu_s(beside), time.perf_counter()
            await clients.cycles(cycles, AT_ONCE)
            rate = cycles / (time.perf_counter() - begun)
            replied = await talk.replies(replies)
            share = (_cpu_s(beside) - cpu_s) / (time.perf_counter() - begun)
            return _Figures(rate, replied, share, *await _at_rest(clients.service, server.pid))

        for _ in range(rounds):
            for count in FOLLOWERS:
                async with _beside(store, "followers", count) as process:
                    following = await figures(process)
                async with _beside(store, "busy", following.share) as process:
                    found[count].append((following, await figures(process)))
        version = clients.service.log.server_version

    def lines(count: int) -> list[Result]:
        with_, without = zip(*found[count], strict=True)
        told = f"{count:,} followers"

        def line(
            what: str, unit: str, figure: Callable[[_Figures], float], better: Better
        ) -> Result:
            return compared(
                WORKLOAD, f"{told}, {what}", unit, [*map(figure, with_)], [*map(figure, without)],
                beside="as busy without", better=better, facts=cycles * 6, nats_server=version,
            )  # fmt: skip

        return [
            line(f"approval cycles, {AT_ONCE} at once", "cycles/s", lambda one: one.cycles,
                 "higher"),
            line(f"replies, {_REPLIES_AT_ONCE} at once", "replies/s", lambda one: one.replies,
                 "higher"),
            line("processor time of the broker in a second", "ms", lambda one: one.broker_ms,
                 "lower"),
            compared(
                WORKLOAD, f"{told}, their requests to the broker", "requests/s",
                [one.requests for one in with_], [float(count)], beside="one a second each",
                better="lower", target=0.5, facts=cycles * 6, nats_server=version,
            ),
        ]  # fmt: skip

    return [line for count in FOLLOWERS for line in lines(count)]


class _Figures(Struct, frozen=True):
    """Of one round."""

    #: A second.
    cycles: float
    #: A second.
    replies: float
    #: Of one processor, for the program beside it.
    share: float
    #: The processor time of the broker in a second, while nothing happens besides the long replies.
    broker_ms: float
    #: Requests in such a second.
    requests: float


async def _at_rest(ledger: Ledger, broker_pid: int) -> tuple[float, float]:
    """The processor time of the broker in milliseconds, and requests to it, a second."""
    cpu_s, requests = _cpu_s(broker_pid), await _requests(ledger)
    begun = time.perf_counter()
    await asyncio.sleep(_REST_S)
    lasted_s = time.perf_counter() - begun
    return (
        (_cpu_s(broker_pid) - cpu_s) / lasted_s * 1000,
        (await _requests(ledger) - requests) / lasted_s,
    )


async def _requests(ledger: Ledger) -> int:
    """How many requests the broker's JetStream API has answered; direct gets do not count."""
    assert isinstance(ledger.log, JetStream)
    return int((await ledger.log.api.call("INFO", {}))["api"]["total"])


def _cpu_s(pid: int) -> float:
    """The processor time of the threads of a process so far, in seconds."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(one.read_text().split()[0]) for one in threads) / 1e9


class _Talk:
    """A service that adds messages to conversations, and waits for the replies."""

    def __init__(self, service: Ledger) -> None:
        self._service = service
        self._numbers = itertools.count()
        self._awaited: dict[str, asyncio.Future[None]] = {}

    @classmethod
    @asynccontextmanager
    async def at(cls, store: Path) -> AsyncGenerator["_Talk"]:
        async with Ledger.connect(store, name="talk") as service:
            talk = cls(service)
            listening = asyncio.create_task(talk._listen(await service.log.last_seq() + 1))
            try:
                yield talk
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)

    async def begin(self) -> None:
        """Ask the models for the long replies."""
        for number in range(_LONG):
            await self._ask(_long(number), "test:long")
        async with asyncio.timeout(_PATIENCE_S):
            for number in range(_LONG):
                asked = _long(number).asked(1, 1).subject
                while await self._service.log.latest(asked) is None:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.05)

    async def replies(self, count: int) -> float:
        """Replies a second."""

        async def one(number: int) -> None:
            ref = ThreadRef(_WORKSPACE, f"t{number}")
            done = asyncio.get_running_loop().create_future()
            self._awaited[ref.replied(1).subject] = done
            await self._ask(ref, "test:short")
            await done

        numbers = list(itertools.islice(self._numbers, count))
        async with asyncio.timeout(_PATIENCE_S):
            return count / await timed(one, numbers, _REPLIES_AT_ONCE)

    async def _ask(self, ref: ThreadRef, model: str) -> None:
        await self._service.append(ref.opened, e.ThreadOpened(requester="rita", model=model))
        await self._service.append(ref.said("m1"), e.Said(role="user", text="How are you?"))

    async def _listen(self, start: int) -> None:
        subjects = f"{ROOT}.{_WORKSPACE}.*.turn.*.replied"
        async with aclosing(self._service.watch(start, subjects)) as facts:
            async for fact in facts:
                self._awaited.pop(fact.slot.subject).set_result(None)


def _long(number: int) -> ThreadRef:
    return ThreadRef(_WORKSPACE, f"long{number % _LONG}")


# ------------------------------------------------------------------------------ the other processes


class _Model:
    """Replies at once, or word by word until it is stopped."""

    async def reply(self, question: ModelRequest) -> ModelReply:
        raise AssertionError("it streams")

    async def stream(self, question: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        while question.model == "test:long":
            on_text(_WORD)
            await asyncio.sleep(_PAUSE_S)
        for _ in range(_WORDS):
            on_text(_WORD)
        return ModelReply((e.Text(_WORD * _WORDS),))


async def models() -> None:
    """Run the model worker on the store that the first argument names, until it is stopped."""
    async with Ledger.connect(sys.argv[1], role="model") as ledger:
        replica = ReadReplica(ledger.log)
        following = asyncio.create_task(replica.run())
        print("ready", flush=True)
        await Worker(ledger, ModelWorker({"test": _Model()}), replica=replica).run()
        following.cancel()


@asynccontextmanager
async def _beside(store: Path, does: str, how_many: float) -> AsyncGenerator[int]:
    """Run `followers` or `busy` in a process of its own, once it is ready; yields its id."""
    async with child.served(__spec__.name, store, does, str(how_many)) as (process, _):
        yield process.pid


async def busy() -> None:
    """Use this share of one processor, in parts of 10 ms, until it is stopped."""
    share = min(1.0, float(sys.argv[2]))
    print("ready", flush=True)
    while True:
        begun = time.thread_time()
        while time.thread_time() - begun < 0.01 * share:
            pass
        await asyncio.sleep(0.01 * (1 - share))


async def followers() -> None:
    """As many followers as the second argument says, a tenth of which never read."""
    store, count = Path(sys.argv[1]), int(sys.argv[2])
    shown: set[int] = set()
    deaf = [_deaf(store, number) for number in range(0, count, _DEAF)]
    async with AsyncExitStack() as stack:
        tasks = []
        for first in range(0, count, _TOGETHER):
            ledger = await stack.enter_async_context(Ledger.connect(store, role="observer"))
            tasks += [
                asyncio.create_task(_follow(ledger, number, shown))
                for number in range(first, first + _TOGETHER)
                if number % _DEAF
            ]
        while len(shown) < len(tasks):  # noqa: ASYNC110 - a set tells nobody
            await asyncio.sleep(0.1)
        print("ready", flush=True)
        await asyncio.gather(*tasks)
    for one in deaf:
        one.close()


async def _follow(ledger: Ledger, number: int, shown: set[int]) -> None:
    async with aclosing(follow_reply(ledger, _long(number // _DEAF), 1)) as news:
        async for _ in news:
            shown.add(number)


def _deaf(store: Path, number: int) -> socket.socket:
    """A client that subscribes and never reads."""
    login = Store(store).login("observer")
    host, port = login.servers[0].removeprefix("nats://").rsplit(":", 1)
    client = socket.create_connection((host, int(port)))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    options = {"user": login.user, "pass": login.password, "verbose": False}
    subject = live_subject(_long(number // _DEAF), 1)
    client.sendall(f"CONNECT {json.dumps(options)}\r\nSUB {subject} 1\r\n".encode())
    return client
