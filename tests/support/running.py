"""Workers that run beside a test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ayes.consumers.worker import Worker


@asynccontextmanager
async def working(*workers: Worker[Any, Any]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run them for as long as the block does, then let them finish what is in hand."""
    running = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield running
    finally:
        for worker in workers:
            worker.stop()
        async with asyncio.timeout(20):
            await asyncio.gather(*running)
