"""The servers that the chaos harms: the nodes of a cluster, or `ayes up`."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ayes.ledger.nats.credentials import Store
from ayes.ops.broker.processes import die_with_parent
from ayes.ops.broker.server import find_binary
from ayes.ops.cluster.files import CONFIG, DATA, write_files
from ayes.ops.supervisor import MAX_RESTARTS, WITHIN_S
from ayes.schemas.errors import TRY_AGAIN


class Server:
    """A nats-server that can be killed, paused, and started again."""

    def __init__(self, command: list[str], output: Path) -> None:
        self._command, self._output = command, output
        self._process: asyncio.subprocess.Process | None = None
        self._killed = False
        #: When the broker of this `ayes up` was killed.
        self._brokers_killed: list[float] = []
        #: How often it ended by itself, but for `ayes up` when it had to give its broker up.
        self.ended = 0

    async def start(self) -> None:
        """Start it unless it runs."""
        if not self.is_running:
            self.ended += not (self._process is None or self._killed or self._had_to_give_up())
            self._killed, self._brokers_killed = False, []
            with self._output.open("ab") as output:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    preexec_fn=die_with_parent(),
                )

    def _had_to_give_up(self) -> bool:
        """Whether `ayes up` said that somebody else is to try again, after as many ends of its
        broker within so long as it starts it again.
        """
        recently = sum(time.monotonic() - at < WITHIN_S for at in self._brokers_killed)
        assert self._process is not None
        return self._process.returncode == TRY_AGAIN and recently > MAX_RESTARTS

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def kill(self) -> None:
        self._killed = True
        self.signal(signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            os.kill(self._process.pid, number)

    def kill_child(self) -> None:
        """Kill the broker of `ayes up`, and not the program itself."""
        if self._process is not None:
            self._brokers_killed.append(time.monotonic())
            children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
            for pid in children.read_text().split():
                os.kill(int(pid), signal.SIGKILL)


type Where = Callable[..., list[str]]


def nodes_of(
    site: Path, addresses: Mapping[str, str], people: Sequence[str], inside: Where
) -> dict[str, Server]:
    """Write the files of a cluster, as `ayes cluster files` does, and run each node from its
    folder.

    Args:
        addresses: by the name of the node.
        inside: makes a command that runs where the node of that name is.
    """
    nodes = write_files(Store(site), list(addresses.values()), people)
    servers = {}
    for name, node in zip(addresses, nodes, strict=True):
        folder = site / node.host
        config = folder / "nats.conf"
        text = config.read_text()
        for place in (CONFIG, DATA):
            text = text.replace(str(place), str(folder))
        config.write_text(f'{text}log_file: "{folder}/server.log"\n')
        command = [str(find_binary()), "-c", str(config)]
        servers[name] = Server(inside(name, *command), folder / "output")
    return servers
