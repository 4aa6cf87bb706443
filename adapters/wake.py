"""Wake-ups: resume each paused conversation when a call that it waits for is decided.

    scan at the start ──┐
                        ├──► one resume per conversation at a time ──► the kernel reads the ledger
    decisions, live ────┘

The scan and the live decisions overlap, so no decision is missed, and none needs to be seen exactly
once: a wake-up decides nothing, and a conversation that is resumed too early waits again.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Final

from ayes.adapters.kernel import Kernel
from ayes.adapters.next_step import Wait, next_step
from ayes.adapters.states import Saved, States
from ayes.schemas.backoff import Backoff
from ayes.schemas.errors import Unavailable
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import ROOT, CallRef

_log: Final = get_logger("ayes.adapters.wake")

#: The pause before a conversation is tried again whose resume found no broker.
_AGAIN: Final = Backoff(1.0, 30.0)

#: Continues a conversation: saves its next state, or removes it when it has ended.
type Resume = Callable[[Saved], Awaitable[None]]


async def resume_decided(kernel: Kernel, states: States, resume: Resume) -> int:
    """Resume each conversation with a decided call, once; returns how many.

    Raises:
        Unavailable: the ledger does not answer.
    """
    resumed = 0
    for saved in await states.saved():
        if await is_due(kernel, saved):
            await resume(saved)
            resumed += 1
    return resumed


async def wake(kernel: Kernel, states: States, resume: Resume) -> None:
    """Resume conversations as their calls are decided, until cancelled.

    A resume that raises is logged, and its conversation stays paused until its next wake-up; if the
    broker was away, it is tried again.

    Raises:
        Unavailable: the ledger does not answer at the start.
    """
    locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def resume_one(thread: str) -> None:
        async with locks[thread]:
            for pause_s in _AGAIN.pauses():
                try:
                    every = {saved.thread: saved for saved in await states.saved()}
                    if thread in every and await is_due(kernel, every[thread]):
                        await resume(every[thread])
                except Unavailable as problem:
                    _log.warning("will be resumed later", thread=thread, problem=str(problem))
                    await asyncio.sleep(pause_s)
                except Exception:  # noqa: BLE001 - an agent may raise anything, and the others go on
                    _log.exception("cannot be resumed", thread=thread)
                    return
                else:
                    return

    start = await kernel.ledger.log.last_seq() + 1
    decided = f"{ROOT}.{kernel.workspace}.*.call.*.decided"
    async with asyncio.TaskGroup() as resuming:
        for saved in await states.saved():
            resuming.create_task(resume_one(saved.thread))
        async for fact in kernel.ledger.watch(start, decided):
            for saved in await states.saved():
                if str(fact.slot.call_ref) in saved.waiting:
                    resuming.create_task(resume_one(saved.thread))


async def is_due(kernel: Kernel, saved: Saved) -> bool:
    """Whether a call that it waits for is decided."""
    for written in saved.waiting:
        if not isinstance(next_step(await kernel.look(CallRef.parse(written))), Wait):
            return True
    return not saved.waiting
