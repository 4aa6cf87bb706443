"""A broker for one test, with the ledger's streams or without."""

import asyncio
import functools
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from ports import free_port

from ayes.ledger.nats.api import Api
from ayes.ledger.nats.connection import Connection
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.streams import DURABLES, ensure
from ayes.ops.broker import server as broker_server
from ayes.ops.broker.server import EmbeddedServer, adopt, find_binary


class _Tree(NamedTuple):
    """The folders and the files below a folder."""

    folders: list[Path]
    files: dict[Path, bytes]


#: The files of a broker that has the streams, by the `ack_wait_s` of their consumers, by the
#: optional ones, and by whether facts may leave the log's: to write them costs less than half of
#: what it costs to declare the streams again.
_DECLARED: dict[tuple[float, tuple[str, ...], bool], _Tree] = {}


@asynccontextmanager
async def running(
    path: Path,
    ack_wait_s: float = 30.0,
    also: tuple[str, ...] = tuple(DURABLES),
    *,
    packed: bool = False,
) -> AsyncGenerator[EmbeddedServer]:
    """A broker that has the streams, and these optional consumers.

    It flushes to disk every two minutes rather than before each acknowledgement: only a power cut
    shows the difference.
    """
    made = ack_wait_s, also, packed
    if made not in _DECLARED:
        _DECLARED[made] = await _declare(*made)
    server = EmbeddedServer(path, sync="2m")
    _write(_DECLARED[made], server.store)
    async with server:
        yield server


def _write(declared: _Tree, store: Store) -> None:
    if not (store.path / "jetstream").exists():
        adopt(store)
        for folder in declared.folders:
            (store.path / folder).mkdir()
        for file, content in declared.files.items():
            (store.path / file).write_bytes(content)


async def _declare(ack_wait_s: float, also: tuple[str, ...], packed: bool) -> _Tree:
    # Where the tests' files are: the limits of the streams fit what is free there.
    folder = os.environ.get("PYTEST_DEBUG_TEMPROOT")
    with TemporaryDirectory(prefix="declared-", dir=folder) as made:
        path = Path(made)
        async with EmbeddedServer(path, sync="2m") as server:
            connection = Connection(server.store.login("admin"))
            await connection.open(name="test set-up", timeout_s=60)
            requests = Api(connection)
            await requests.start()
            await ensure(requests, ack_wait_s=ack_wait_s, also=also, packed=packed)
            await connection.close()
        found = sorted((path / "jetstream").rglob("*"))
        folders = [path / "jetstream", *(one for one in found if one.is_dir())]
        return _Tree(
            [one.relative_to(path) for one in folders],
            {one.relative_to(path): one.read_bytes() for one in found if one.is_file()},
        )


@contextmanager
def cheap_starts() -> Iterator[None]:
    """Start a thousand brokers at half the cost, each as real as before.

    * Each nats-server is asked for its version once.
    * They collect no garbage before they have 40 MB.
    * The kernel is not asked to end them with this process. For that Python would fork, rather than
      share its memory with the child until that is another program; to copy the page tables of a
      test process takes 30 ms. `left_brokers.py` ends them.
    """
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(broker_server, "_version", functools.cache(broker_server._version))
        patch.setenv("GOGC", "1000")
        if sys.platform == "linux":
            mark = f"STARTED_BY_TESTS={os.getpid()}"
            patch.setenv(*mark.split("="))
            patch.setattr(broker_server, "die_with_parent", lambda: None)
            program = Path(__file__).with_name("left_brokers.py")
            command = [sys.executable, "-S", "-E", program, mark]
            # In a session of its own it outlives what ends this one, such as Ctrl-C.
            ending = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
            stack.enter_context(ending)
        yield


@asynccontextmanager
async def bare(path: Path, config: str = "", user: str = "") -> AsyncGenerator[str]:
    """A nats-server with nothing but this configuration; yields its URL.

    Args:
        user: as in a URL, `name:password@`.
    """
    port = free_port()
    file = path / "bare.conf"
    file.write_text(f'listen: "127.0.0.1:{port}"\nlog_file: "{path}/bare.log"\n{config}\n')
    process = await asyncio.create_subprocess_exec(str(find_binary()), "-c", str(file))
    try:
        yield f"{'tls' if 'tls {' in config else 'nats'}://{user}127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()
