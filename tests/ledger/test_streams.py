"""Creating what the ledger lives in: the declared streams and durable consumers."""

import asyncio
from contextlib import AsyncExitStack

from ayes.ledger.nats.api import Api
from ayes.ledger.nats.connection import Connection
from ayes.ledger.nats.drift import drift
from ayes.ledger.nats.streams import ensure
from ayes.ledger.subscriptions import DURABLES
from ayes.ops.broker.server import EmbeddedServer


async def test_many_create_everything_at_the_same_moment(tmp_path):
    """Programs that start together all find everything there, whoever of them made it; and it is as
    declared.
    """
    async with EmbeddedServer(tmp_path / "store") as server, AsyncExitStack() as stack:
        rivals: list[Api] = []
        for number in range(6):
            connection = Connection(server.store.login("admin"))
            await connection.open(name=f"rival {number}")
            stack.push_async_callback(connection.close)
            rivals.append(Api(connection))
            await rivals[-1].start()
        await asyncio.gather(*(ensure(one, also=tuple(DURABLES)) for one in rivals))
        assert await drift(rivals[0]) == []
