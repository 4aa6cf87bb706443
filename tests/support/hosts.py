"""The files of `ayes cluster files` at work, as a program: three hosts, on a loopback of their own.

    unshare --net python hosts.py DIRECTORY [all]

Every host is an address of the loopback interface, so that the servers have their real ports. While
a service records facts without a pause, the nodes go through what docs/cluster.md describes: a
rolling upgrade, a node whose disk is lost, and two more nodes. At the end each acknowledged fact
must be in the log. Prints one line of JSON for each step.

Without `all` one node is upgraded, and none is added.
"""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import AlreadyRecorded, Recorded, Unconfirmed
from ayes.ledger.nats.api import PATIENCE_S
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import described
from ayes.ops.broker.server import find_binary
from ayes.ops.inspection.nodes import copies
from ayes.schemas.errors import Unavailable
from ayes.schemas.events import Said
from ayes.schemas.slots import ThreadRef

HOSTS = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
MORE = [*HOSTS, "127.0.0.4", "127.0.0.5"]
AYES = Path(sys.executable).with_name("ayes")


class Hosts:
    """The servers, by host."""

    def __init__(self, here: Path) -> None:
        self.here = here
        self.site = here / "site"
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, host: str) -> None:
        """Start nats-server as the unit does, with the directories of this host."""
        folder = self.site / host
        config = folder / "nats.conf"
        data = self.here / f"data-{host}"
        text = config.read_text().replace("/var/lib/ayes-nats", str(data))
        config.write_text(text.replace("/etc/ayes-nats", str(folder)))
        subprocess.run([find_binary(), "-t", "-c", config], check=True, stderr=subprocess.DEVNULL)
        with (self.here / f"{host}.log").open("ab") as log:
            self.running[host] = subprocess.Popen([find_binary(), "-c", config], stderr=log)

    async def stop(self, host: str, how: signal.Signals) -> None:
        process = self.running.pop(host)
        process.send_signal(how)
        await asyncio.to_thread(process.wait, 60)

    def ayes(self, *words: str) -> str:
        """Run a command on the store of the cluster."""
        done = subprocess.run(
            [AYES, *words], capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, f"ayes {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    async def current(self, count: int) -> None:
        """Wait until each stream has this many copies, all there and up to date."""
        async with (
            asyncio.timeout(90),
            JetStream.connect(self.site, role="admin", timeout_s=60) as log,
        ):
            while True:
                try:
                    found = copies(await described(log.api))
                except Unavailable:
                    found = []
                if found and all(
                    len(one.replicas) == count - 1
                    and all(replica.current and not replica.away for replica in one.replicas)
                    for one in found
                ):
                    return
                await asyncio.sleep(0.2)


class Writer:
    """A service that records facts without a pause, and remembers what was acknowledged."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.acknowledged: dict[str, int] = {}
        self.recorded = asyncio.Event()
        self.longest_s = 0.0

    async def run(self) -> None:
        async with Ledger.connect(self.store, timeout_s=60) as ledger:
            number = 0
            while True:
                number += 1
                slot = ThreadRef("shop", f"t{number % 10}").said(f"m{number}")
                begun = time.monotonic()
                match await ledger.append(slot, Said(role="user", text="Hello.")):
                    case Recorded(seq) | AlreadyRecorded(seq):
                        self.acknowledged[slot.subject] = seq
                        self.recorded.set()
                        self.longest_s = max(self.longest_s, time.monotonic() - begun)
                    case Unconfirmed():
                        pass
                    case answer:
                        raise AssertionError(answer)
                await asyncio.sleep(0.005)

    async def goes_on(self) -> None:
        """Wait until one more fact is acknowledged. A server that ends may have led the stream, and
        then nothing is until the others have elected a leader.
        """
        self.recorded.clear()
        async with asyncio.timeout(60):
            await self.recorded.wait()

    async def missing(self) -> list[str]:
        """What was acknowledged and is not in the log, in its place."""
        async with Ledger.connect(self.store, role="observer", timeout_s=60) as ledger:
            there = {fact.slot.subject: fact.seq for fact in await ledger.log.read("ledger.shop.>")}
        return [slot for slot, seq in self.acknowledged.items() if there.get(slot) != seq]


async def main(here: Path, *, whole: bool) -> None:
    hosts = Hosts(here)
    step(
        "files",
        hosts.ayes("cluster", "files", "--hosts", ",".join(HOSTS), "--out", str(hosts.site)),
    )
    store = ["--store", str(hosts.site)]
    try:
        await hosts_ready(hosts, store)
        writer = Writer(hosts.site)
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(writer.run())
            for host in HOSTS if whole else HOSTS[:1]:
                await hosts.stop(host, signal.SIGUSR2)
                hosts.start(host)
                await writer.goes_on()
                await hosts.current(3)
            step("upgraded", len(writer.acknowledged))
            await hosts.stop(HOSTS[1], signal.SIGKILL)
            shutil.rmtree(here / f"data-{HOSTS[1]}")
            hosts.start(HOSTS[1])
            await writer.goes_on()
            await hosts.current(3)
            step("replaced", len(writer.acknowledged))
            if whole:
                hosts.ayes("cluster", "files", "--hosts", ",".join(MORE), "--out", str(hosts.site))
                for host in MORE[3:]:
                    hosts.start(host)
                await asyncio.sleep(5)
                hosts.ayes("setup", "--replicas", "5", "--upgrade", "--yes", *store)
                await writer.goes_on()
                await hosts.current(5)
                step("added", len(writer.acknowledged))
            writing.cancel()
        step("missing", await writer.missing())
        step("longest_s", round(writer.longest_s, 1))
        hosts.ayes("status", *store)
    finally:
        for process in hosts.running.values():
            process.kill()
            process.wait()


async def hosts_ready(hosts: Hosts, store: list[str]) -> None:
    """Set up the streams while two nodes have yet to start, for longer than requests last."""
    hosts.start(HOSTS[0])
    setting_up = asyncio.create_task(
        asyncio.to_thread(hosts.ayes, "setup", "--replicas", "3", *store)
    )
    await asyncio.sleep(PATIENCE_S + 2)
    for host in HOSTS[1:]:
        hosts.start(host)
    await setting_up
    await hosts.current(3)
    step("started", sorted(hosts.running))


def step(name: str, value: object) -> None:
    sys.stdout.write(json.dumps({name: value}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    asyncio.run(main(Path(sys.argv[1]), whole=sys.argv[2:] == ["all"]))
