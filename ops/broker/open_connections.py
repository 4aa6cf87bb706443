"""The open connections of users, on all servers of a broker: how many there are, and their end.

Only the system account may ask. A server answers with its own connections, so every one is asked.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any, Final

from nats.aio.msg import Msg

from ayes.ledger.nats.connection import CONNECT_S, Connection
from ayes.ledger.nats.credentials import Login
from ayes.schemas.errors import BrokerRefused

_EVERY_SERVER: Final = "$SYS.REQ.SERVER.PING.CONNZ"
#: Connections of one user that a server lists in one answer.
_MAX_CONNECTIONS: Final = 1024
#: No server answers any more that has been silent for so long.
_SILENT_S: Final = 0.3

#: Takes the server's id, the name of the user, and the user's connections there.
type _OnConnections = Callable[[str, str, list[dict[str, Any]]], None]


async def end_connections(login: Login, users: Collection[str]) -> None:
    """End the connections of these users, also those whose login is under way.

    Args:
        login: that of the role `system`.

    Raises:
        BrokerRefused: an earlier version started the broker, which lets nobody do this.
    """
    ends: list[tuple[str, int]] = []

    def end(server: str, _: str, found: list[dict[str, Any]]) -> None:
        ends.extend((server, one["cid"]) for one in found)

    async with _asking(login, end) as (connection, ask):
        clock, client = asyncio.get_running_loop(), connection.client
        until = clock.time() + CONNECT_S
        while clock.time() < until:
            await ask(users)
            await client.flush()
            while ends:
                server, number = ends.pop()
                body = json.dumps({"cid": number}).encode()
                # A server ignores a request without a reply subject.
                kick, reply = f"$SYS.REQ.SERVER.{server}.KICK", f"{connection.inbox}.ended"
                await client.publish(kick, body, reply)
            await asyncio.sleep(CONNECT_S / 40)


async def count_connections(login: Login, users: Collection[str]) -> Counter[str]:
    """How many connections each of these users has."""
    counted, news = Counter[str](), asyncio.Event()

    def count(_: str, user: str, found: list[dict[str, Any]]) -> None:
        counted[user] += len(found)
        news.set()

    async with _asking(login, count) as (_, ask):
        await ask(users)
        try:
            while True:
                async with asyncio.timeout(_SILENT_S if counted else CONNECT_S):
                    await news.wait()
                news.clear()
        except TimeoutError:
            return counted


@asynccontextmanager
async def _asking(
    login: Login, on_connections: _OnConnections
) -> AsyncGenerator[tuple[Connection, Callable[[Collection[str]], Any]]]:
    """A connection, and a function that asks every server about the connections of users."""
    connection, denied = Connection(login), list[str]()
    connection.on_denied(denied.append)
    await connection.open(name="ayes connections")
    client, inbox = connection.client, f"{connection.inbox}.connections"

    async def answered(message: Msg) -> None:
        answer = json.loads(message.data)
        found = (answer.get("data") or {}).get("connections") or []
        on_connections(answer["server"]["id"], message.subject.rpartition(".")[2], found)

    async def ask(users: Collection[str]) -> None:
        for user in users:
            body = {"auth": True, "user": user, "limit": _MAX_CONNECTIONS}
            await client.publish(_EVERY_SERVER, json.dumps(body).encode(), f"{inbox}.{user}")
        if denied:
            raise BrokerRefused(
                "an earlier version of ayes started the broker, so open connections last until it "
                "is restarted. Stop that `ayes up` and start it again; nothing is lost."
            )

    try:
        await client.subscribe(f"{inbox}.*", cb=answered)
        yield connection, ask
    finally:
        await connection.close()
