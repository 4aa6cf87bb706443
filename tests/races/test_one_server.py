"""One server, one fault each: what is reported, and that it goes on by itself."""

import pytest
from brokers import running
from disk import small_disk

from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ops.broker.health import Health, takes_writes
from ayes.schemas.errors import BrokerAway


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        yield disk


# --------------------------------------------------------------------------------------- full disks


async def test_a_full_disk_is_noticed_without_a_write_of_anybody(disk):
    """The trial writes, but records nothing; a stream that has failed once is dead until the server
    is restarted, with room or without (D5).
    """
    store = Store(disk.path / "store")
    async with running(store.path), JetStream.connect(store.path, role="admin") as log:

        async def tried():
            return await takes_writes(log, store)

        assert (await tried()).ok
        assert (await log.api.publish("ledger.shop.t1.opened", b"{}")).seq == 1
        disk.leave(8192)
        health = await tried()
        assert not health.ok
        assert health.why == "the log does not take writes: atomic publish batch is incomplete."
        assert health.free_bytes < 100_000
        assert health.dead == ()

        with pytest.raises(BrokerAway):
            await log.api.publish("ledger.shop.t1.said.m1", b"x" * 100_000, patience_s=0.5)
        for _ in ("full", "room"):
            health = await tried()
            assert health.dead == ("LEDGER",)
            assert health.why.startswith("the broker records nothing in LEDGER until it is rest")
            assert "no space left on device" in health.why
            disk.enlarge()
    async with running(store.path), JetStream.connect(store.path, role="operator") as log:
        health = await takes_writes(log, store)
        assert health == Health(ok=True, free_bytes=health.free_bytes)
        assert await log.last_seq() == 1
