"""Workers that run during a test, in its own event loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ayes.consumers.gate import Gate
from ayes.consumers.worker import Worker
from ayes.ledger.clients.services import Ledger
from ayes.schemas.policy import applied
from ayes.schemas.slots import policy_slot


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


@asynccontextmanager
async def judged(store: Path, policy: str, workspace: str = "shop") -> AsyncIterator[Ledger]:
    """The ledger of a store with every right, while a gate is at work under this policy."""
    async with (
        Ledger.connect(store, role="admin") as admin,
        Ledger.connect(store, role="gate") as gate,
        working(Worker(gate, Gate())),
    ):
        await admin.append(policy_slot(workspace, 1), applied(policy))
        yield admin
