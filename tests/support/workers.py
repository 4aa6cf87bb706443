"""Workers that run during a test, and facts recorded directly."""

from contextlib import asynccontextmanager

from ayes.ops.broker.setup import declare_streams
from ayes.ops.workers import reactions, working
from bench.rehearsal.recorded import DURABLES, recorded_reactions

RECORDED = ("model", "executor")


@asynccontextmanager
async def at_work(store, *kinds, recordings=None):
    """With recordings, the model and the executor answer from them."""
    started = reactions([one for one in kinds if not (recordings and one in RECORDED)])
    await declare_streams(store, also=DURABLES)
    if recordings:
        started += recorded_reactions([one for one in kinds if one in RECORDED], recordings)
    async with working(started, store=store):
        yield


async def tell(admin, facts):
    """Record these facts, whatever they are; returns the sequence number of the last."""
    for slot, event in facts:
        assert await admin.try_append(slot, event) is None
    return await admin.log.last_seq()
