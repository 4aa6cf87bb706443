"""Workers beside a test, and facts recorded behind their back."""

from contextlib import asynccontextmanager

from ayes.ops.broker.setup import declare_streams
from ayes.ops.workers import reactions, working


@asynccontextmanager
async def at_work(store, *kinds, recordings=None):
    await declare_streams(store, also=("model-recorded", "executor-recorded"))
    async with working(reactions(kinds, recordings=recordings), store=store):
        yield


async def tell(admin, facts):
    """Record these, whatever they are; the number of the last one."""
    for slot, event in facts:
        assert await admin.try_append(slot, event) is None
    return await admin.log.last_seq()
