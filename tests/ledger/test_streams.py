"""Creating what the ledger lives in: the declared streams and durable consumers."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from ayes.ledger.nats.api import Api
from ayes.ledger.nats.connection import Connection
from ayes.ledger.nats.drift import differences
from ayes.ledger.nats.streams import consumer_config, described, ensure
from ayes.ledger.subscriptions import DURABLES
from ayes.ops.broker.server import EmbeddedServer


async def test_many_create_everything_at_the_same_moment(tmp_path):
    """Programs that start together all find all there, as declared, whoever made it."""
    async with EmbeddedServer(tmp_path / "store") as server, AsyncExitStack() as stack:
        rivals: list[Api] = []
        for number in range(6):
            connection = Connection(server.store.login("admin"))
            await connection.open(name=f"rival {number}")
            stack.push_async_callback(connection.close)
            rivals.append(Api(connection))
            await rivals[-1].start()
        await asyncio.gather(*(ensure(one, also=tuple(DURABLES)) for one in rivals))
        assert differences(await described(rivals[0])) == []


@pytest.mark.parametrize(
    ("name", "chosen_s", "seconds"),
    [("gate", 30, 10), ("executor", 30, 30), ("closer", 30, 10), ("gate", 0.6, 0.6)],
)
def test_what_is_not_slow_is_soon_delivered_again(name: str, chosen_s: float, seconds: float):
    """What was pushed into a dead connection goes to a living worker; the start of a tool must be
    silent for longer, since nobody may repeat it.
    """
    assert consumer_config(DURABLES[name], chosen_s)["ack_wait"] == seconds * 1e9
