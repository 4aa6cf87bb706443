"""A cluster of three nats-servers on the loopback interface, each with its own store."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from ayes.ledger.nats import streams
from ayes.ledger.nats.api import Api
from ayes.ledger.nats.connection import Connection
from ayes.ledger.nats.credentials import Address, Store
from ayes.ledger.subscriptions import DURABLES
from ayes.ops.broker.accounts import ADMIN, ROLES, SYSTEM, accounts_config
from ayes.ops.broker.server import HOST, find_binary
from ayes.schemas.errors import ApprovalsError

REPLICAS = 3


@asynccontextmanager
async def cluster(path: Path, *reviewers: str) -> AsyncGenerator[list[Path]]:
    """A running cluster with the ledger's streams, each on three nodes; yields a store for each
    node.
    """
    names = (SYSTEM, ADMIN, *ROLES, *(f"reviewer-{name}" for name in reviewers))
    passwords = {name: f"{name}-password" for name in names}
    ports = free_ports(2 * REPLICAS)
    clients, routes = ports[:REPLICAS], ports[REPLICAS:]
    async with AsyncExitStack() as stack:
        stores: list[Path] = []
        for number in range(REPLICAS):
            store = Store(path / f"n{number}")
            store.path.mkdir(parents=True)
            store.write_private("accounts.conf", accounts_config(passwords).encode())
            store.write_private(
                "server.conf", _config(store.path, number, clients, routes).encode()
            )
            process = await asyncio.create_subprocess_exec(
                str(find_binary()), "-c", str(store.path / "server.conf")
            )
            stack.push_async_callback(_end, process)
            url = f"nats://{HOST}:{clients[number]}"
            store.write(Address(url=url, port=clients[number], passwords=passwords))
            stores.append(store.path)
        await _declared(stores[0])
        yield stores


def free_ports(count: int) -> list[int]:
    """Different ports that are free."""
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _config(path: Path, number: int, clients: list[int], routes: list[int]) -> str:
    others = ", ".join(f'"nats://{HOST}:{port}"' for port in routes)
    return (
        f"server_name: n{number}\n"
        f'listen: "{HOST}:{clients[number]}"\n'
        f'jetstream {{ store_dir: {json.dumps(str(path / "jetstream"))}, sync_interval: "2m" }}\n'
        f'cluster {{ name: tests, listen: "{HOST}:{routes[number]}", routes: [{others}] }}\n'
        f"log_file: {json.dumps(str(path / 'server.log'))}\n"
        'include "accounts.conf"\n'
    )


async def _declared(store: Path) -> None:
    """Create the streams, once the cluster has a leader."""
    async with asyncio.timeout(60):
        while True:
            connection = Connection(Store(store).login(ADMIN))
            try:
                await connection.open(name="test set-up")
                requests = Api(connection)
                await requests.start()
                await streams.ensure(requests, replicas=REPLICAS, also=tuple(DURABLES))
            except ApprovalsError:
                await asyncio.sleep(0.25)
            else:
                return
            finally:
                await connection.close()


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()
