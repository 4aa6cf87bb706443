"""What goes wrong, and when: drawn from a seed, one fault about every eleven seconds.

Of the servers one thing at a time is wrong, and all of them are well again before the next;
programs are killed and paused meanwhile. `away` says how many servers could not take part at each
moment, so that the report can say what the cluster did while two of three were there.
"""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

from journal import Journal
from network import CLIENTS, Network
from nodes import Server
from programs import PACKERS, Program

EVERY_S = 11.0
#: How long a paused program or server stands still, and how long a cut lasts, at least and at most.
PAUSE_S, CUT_S = (5.0, 60.0), (2.0, 45.0)
#: How long the nodes may take to be whole again before the next thing goes wrong with them.
WHOLE_S = 90.0
#: How long a killed server is away.
DOWN_S = (0.5, 5.0)


class Site(Protocol):
    """What can be harmed."""

    servers: dict[str, Server]
    network: Network | None
    programs: dict[str, Program]

    async def leader(self) -> str: ...

    async def is_whole(self) -> bool:
        """Whether every node has the whole log."""
        ...

    async def answers(self, name: str) -> bool:
        """Whether this server takes connections."""
        ...


class Faults:
    def __init__(self, site: Site, seed: str, journal: Journal, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._site = site
        self._dice = random.Random(f"{seed}/faults")
        self._journal = journal
        self._going_on: set[asyncio.Task[None]] = set()
        self._on_servers: asyncio.Task[None] | None = None
        self.counted: Counter[str] = Counter()
        #: Spans in which servers were away: from, until (on `time.time`), and how many.
        self.away: list[tuple[float, float, int]] = []

    async def go_on(self, seconds: float, is_enough: Callable[[], bool]) -> None:
        """For so long, and until it is enough: a busy machine may hardly have begun by then."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 or not is_enough():
            pause_s = self._every_s * self._dice.uniform(0.5, 1.5)
            await asyncio.sleep(min(left, pause_s) if left > 0 else pause_s)
            self._one()
        for task in self._going_on:
            task.cancel()
        await asyncio.gather(*self._going_on, return_exceptions=True)

    def _one(self) -> None:
        busy = self._on_servers is not None and not self._on_servers.done()
        kinds = self._on_programs if busy or self._dice.random() < 0.3 else self._kinds
        fault = self._dice.choice(kinds())
        task = asyncio.create_task(fault())
        self._going_on.add(task)
        task.add_done_callback(self._going_on.discard)
        if kinds == self._kinds:
            self._on_servers = task

    def _kinds(self) -> Sequence[Callable[[], Awaitable[None]]]:
        if len(self._site.servers) == 1:
            return [self._kill_all, self._kill_broker, self._kill_broker]
        kinds = [
            self._kill_leader, self._kill_leader, self._kill_follower, self._kill_two,
            self._kill_all, self._pause_leader, self._pause_follower,
        ]  # fmt: skip
        if self._site.network is not None:
            kinds += [
                self._cut_leader, self._cut_follower, self._cut_pair, self._cut_direction,
                self._cut_direction,
            ]  # fmt: skip
        return kinds

    def _on_programs(self) -> Sequence[Callable[[], Awaitable[None]]]:
        kinds = [self._kill_program, self._kill_program, self._pause_program]
        if self._packers():
            kinds += [*kinds, self._kill_packer, self._pause_packer]
        return kinds

    # ------------------------------------------------------------------------------------- servers

    async def _kill_leader(self) -> None:
        await self._kill("leader", [await self._site.leader()])

    async def _kill_follower(self) -> None:
        await self._kill("follower", [await self._follower()])

    async def _kill_two(self) -> None:
        await self._kill("two servers", self._dice.sample(list(self._site.servers), 2))

    async def _kill_all(self) -> None:
        await self._kill("all servers", list(self._site.servers))

    async def _kill(self, what: str, names: list[str]) -> None:
        self._began(f"kill {what}", *names)
        servers = [self._site.servers[name] for name in names]
        since = time.time()
        try:
            for server in servers:
                await server.kill()
            await asyncio.sleep(self._dice.uniform(*DOWN_S))
            for server in servers:
                await server.start()
            for name in names:
                while not await self._site.answers(name):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.1)
        finally:
            self.away.append((since, time.time(), len(names)))
        await self._whole_again()

    async def _kill_broker(self) -> None:
        """That of `ayes up`, which starts it again; or if it does not, its supervisor does."""
        [(name, server)] = self._site.servers.items()
        self._began("kill the broker of `up`", name)
        since = time.time()
        server.kill_child()
        try:
            await asyncio.sleep(1)
            while not await self._site.answers(name):
                await server.start()
                await asyncio.sleep(0.1)
        finally:
            self.away.append((since, time.time(), 1))

    async def _pause_leader(self) -> None:
        await self._pause("leader", await self._site.leader())

    async def _pause_follower(self) -> None:
        await self._pause("follower", await self._follower())

    async def _pause(self, what: str, name: str) -> None:
        self._began(f"pause {what}", name)
        since, server = time.time(), self._site.servers[name]
        server.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(self._dice.uniform(*PAUSE_S))
        finally:
            server.signal(signal.SIGCONT)
            self.away.append((since, time.time(), 1))
        await self._whole_again()

    async def _cut_leader(self) -> None:
        await self._isolate("leader", await self._site.leader())

    async def _cut_follower(self) -> None:
        await self._isolate("follower", await self._follower())

    async def _isolate(self, what: str, name: str) -> None:
        self._began(f"cut {what} off", name)
        await self._cut(lambda network: network.isolate(name))

    async def _cut_pair(self) -> None:
        one, other = self._dice.sample(list(self._site.servers), 2)
        self._began("cut a pair", one, other)

        def pair(network: Network) -> None:
            network.cut(one, other)
            network.cut(other, one)

        await self._cut(pair)

    async def _cut_direction(self) -> None:
        one, other = self._dice.sample([*self._site.servers, CLIENTS], 2)
        self._began("cut one direction", one, other)
        await self._cut(lambda network: network.cut(one, other))

    async def _cut(self, cut: Callable[[Network], None]) -> None:
        network = self._site.network
        assert network
        since = time.time()
        cut(network)
        try:
            await asyncio.sleep(self._dice.uniform(*CUT_S))
        finally:
            network.mend()
            self.away.append((since, time.time(), 1))
        await self._whole_again()

    async def _whole_again(self) -> None:
        """Wait for the nodes to find each other again and to catch up. Until then another one that
        is away may be one too many: after a cut, TCP alone takes half a minute to try again.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(WHOLE_S):
                while not await self._site.is_whole():  # noqa: ASYNC110 - other processes
                    await asyncio.sleep(0.5)

    async def _follower(self) -> str:
        leader = await self._site.leader()
        return self._dice.choice([name for name in self._site.servers if name != leader])

    # ------------------------------------------------------------------------------------ programs

    async def _kill_program(self) -> None:
        await self._kill_one(self._some_program())

    async def _pause_program(self) -> None:
        await self._pause_one(self._some_program())

    async def _kill_packer(self) -> None:
        await self._kill_one(self._dice.choice(self._packers()))

    async def _pause_packer(self) -> None:
        await self._pause_one(self._dice.choice(self._packers()))

    async def _kill_one(self, program: Program) -> None:
        self._began(f"kill {program.name.split('-')[0]}", program.name)
        await program.kill(self._dice.uniform(0.0, 5.0), self._journal)

    async def _pause_one(self, program: Program) -> None:
        self._began(f"pause {program.name.split('-')[0]}", program.name)
        program.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(self._dice.uniform(*PAUSE_S))
        finally:
            program.signal(signal.SIGCONT)

    def _some_program(self) -> Program:
        # The rivals and the rehearsal go on, so that the longest silence is that of the ledger.
        return self._dice.choice(
            [one for name, one in self._site.programs.items() if not name.startswith("rival")]
        )

    def _packers(self) -> list[Program]:
        return [self._site.programs[name] for name in PACKERS if name in self._site.programs]

    def _began(self, what: str, *whom: str) -> None:
        self.counted[what] += 1
        self._journal.note("fault", what=what, whom=whom)
