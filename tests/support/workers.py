"""Workers that run during a test, and facts recorded directly."""

from contextlib import asynccontextmanager

from ayes.ops.broker.setup import declare_streams
from ayes.ops.workers import reactions, working


@asynccontextmanager
async def at_work(store, *kinds, recordings=None):
    await declare_streams(store, also=("model-recorded", "executor-recorded"))
    async with working(reactions(kinds, recordings=recordings), store=store):
        yield


async def tell(admin, facts):
    """Record these facts, whatever they are; returns the sequence number of the last."""
    for slot, event in facts:
        assert await admin.try_append(slot, event) is None
    return await admin.log.last_seq()
