"""Workers that run during a test, in its own event loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ayes.consumers.worker import Worker


@asynccontextmanager
async def working(*workers: Worker[Any, Any]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run them for the duration of the block, then let them finish the work in progress."""
    running = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield running
    finally:
        for worker in workers:
            worker.stop()
        async with asyncio.timeout(60):
            await asyncio.gather(*running)
