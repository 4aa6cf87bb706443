"""A cluster on this machine: each node is a nats-server of ours, with a store of its own.

    async with LocalCluster(Path("~/ledger")) as cluster:
        ...                              # Store(path).login("gate") works now, in any process

The directory is a store like that of one server, except that its address names all nodes:

    address.json    where the nodes are, the passwords, and the certificate to verify them by
    lock            held while the cluster runs
    ca.pem, ca.key  the authority that signs the nodes' certificates
    n1/ n2/ n3/     the store of each node
"""

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Self

import msgspec

from ayes.ledger.nats.credentials import Store
from ayes.ops.broker.accounts import REVIEWER, permissions
from ayes.ops.broker.server import HOST, EmbeddedServer, adopt, free_ports, passwords, take
from ayes.ops.broker.setup import declare_streams
from ayes.ops.cluster.certificates import issue
from ayes.ops.cluster.config import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    Node,
    cluster_config,
)
from ayes.ops.cluster.store import SIZES, authority_of
from ayes.schemas.errors import ApprovalsError, BadInput

#: How long the nodes may take to elect a leader that can create streams.
_ELECTION_S: Final = 60.0


class LocalCluster:
    """Servers that run from a store for as long as the block does. Enter it from the main thread.

    Args:
        people: reviewers who get an account. It is the same on each node, so it must be known when
            the nodes start; those of earlier starts are kept.
        sync: as of `EmbeddedServer`.
    """

    def __init__(
        self,
        store: Path | str | None = None,
        *,
        size: int = 3,
        people: Sequence[str] = (),
        sync: str = "always",
    ) -> None:
        if size not in SIZES:
            raise BadInput(f"a cluster has 3 or 5 nodes, not {size}.")
        self.store = Store(store)
        self.size = size
        self.sync = sync
        self.nodes: list[EmbeddedServer] = []
        self._roles = [f"{REVIEWER}{name}" for name in people]
        for role in self._roles:
            permissions(role)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Take the store, start the nodes, and wait until each answers.

        Raises:
            BadInput: the directory is not a cluster's, or there is no nats-server.
            StoreHeld: another process runs servers from it.
            BrokerAway: a node does not start; with the last lines of its log.
        """
        _refuse_other(self.store.path, self.size)
        adopt(self.store)
        self._stack.callback(os.close, await take(self.store.path))
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def declare(
        self, also: Sequence[str] = (), max_bytes: int | None = None, *, packed: bool = False
    ) -> None:
        """Create missing streams and consumers, once the nodes have elected a leader.

        Args:
            also: the optional consumers to create.
            packed: make a new log whose facts may leave its stream.

        Raises:
            BadInput: there is a log of which that is not so.
            BrokerRefused: it still refuses after a minute, for example for want of room.
            BrokerAway: there is no leader after a minute.
        """
        clock = asyncio.get_running_loop()
        until = clock.time() + _ELECTION_S
        while True:
            try:
                await declare_streams(
                    self.store.path,
                    replicas=self.size,
                    also=also,
                    max_bytes=max_bytes,
                    packed=packed,
                )
            except BadInput:
                raise
            except ApprovalsError:
                if clock.time() >= until:
                    raise
                await asyncio.sleep(0.25)
            else:
                return

    def _stopped(self) -> None:
        # People and logins may have come and gone meanwhile.
        self.store.write(msgspec.structs.replace(self.store.read(), url=""))

    async def _start(self) -> None:
        before = self.store.read()
        known = passwords(before.passwords, self._roles)
        address = msgspec.structs.replace(before, url="", passwords=known)
        authority = authority_of(self.store)
        stores = [Store(self.store.path / f"n{number}") for number in range(1, self.size + 1)]
        nodes = _placed(stores)
        for store, node in zip(stores, nodes, strict=True):
            own = issue(authority, node.name, [node.host, "localhost"])
            store.path.mkdir(mode=0o700, exist_ok=True)
            # The server that runs from it takes passwords and port from here.
            store.write(msgspec.structs.replace(address, port=node.port, ca=AUTHORITY))
            store.write_private(AUTHORITY, authority.certificate)
            store.write_private(CERTIFICATE, own.certificate)
            store.write_private(KEY, own.key)
            more = cluster_config(node, nodes, str(store.path))
            self.nodes.append(EmbeddedServer(store.path, sync=self.sync, name=node.name, more=more))
        async with asyncio.TaskGroup() as starting:
            for server in self.nodes:
                starting.create_task(self._stack.enter_async_context(server))
        address = msgspec.structs.replace(address, port=nodes[0].port, ca=AUTHORITY)
        self._stack.callback(self._stopped)
        url = ",".join(server.url for server in self.nodes)
        self.store.write(msgspec.structs.replace(address, url=url))


def _refuse_other(path: Path, size: int) -> None:
    if (path / "jetstream").exists():
        raise BadInput(
            f"{path} is the store of one server. Name a new directory with --store; "
            "docs/cluster.md says how a log gets from one server to a cluster."
        )
    if (path / f"n{size + 1}").exists():
        raise BadInput(f"the cluster in {path} has more than {size} nodes. Give it --nodes 5.")


def _placed(stores: Sequence[Store]) -> list[Node]:
    """Each node on its port of last time, if that is free; routes on any port."""
    ports = free_ports(*(store.read().port for store in stores), *(0 for _ in stores))
    return [
        Node(store.path.name, HOST, port, route_port)
        for store, port, route_port in zip(
            stores, ports[: len(stores)], ports[len(stores) :], strict=True
        )
    ]
