"""A thread, its scripted model and its workers, for the tests of whole chains."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from running import working
from stories import told

from ayes.consumers.executor import Executor, Registered
from ayes.consumers.gate import Gate
from ayes.consumers.model import Model, ModelReply, ModelRequest, ModelWorker
from ayes.consumers.pending_projector import PendingProjector
from ayes.consumers.worker import Worker
from ayes.ledger.clients.services import Ledger
from ayes.ledger.in_memory import Lagging
from ayes.ledger.log import EventLog
from ayes.ledger.replica import ReadReplica
from ayes.projections import pending
from ayes.projections.history import Outcome
from ayes.projections.thread import Thread, thread_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.policy import applied
from ayes.schemas.slots import CallRef, ThreadRef, policy_slot
from ayes.schemas.tools import ToolSpec

THREAD = ThreadRef("shop", "t1")
FIRST, SECOND = THREAD.wish(1, 0), THREAD.wish(1, 1)
SCHEMA = (
    '{"type":"object","properties":{"order":{"type":"string"}},'
    '"required":["order"],"additionalProperties":false}'
)
ASK = '[[rule]]\nname = "money"\ntools = ["refund"]\nthen = "ask"\nreason = "It moves money."\n'
ASK_BRIEFLY = ASK + "expires_in_s = 0.4\n"
REFUND = e.Wish(tool="refund", arguments='{"order":"A-17"}', provider_id="call_a")
OTHER = e.Wish(tool="refund", arguments='{"order":"B-40"}', provider_id="call_a")
DONE = e.Text("All done.")


def beside(port: EventLog) -> EventLog:
    """The log as another client sees it."""
    return port.beside() if isinstance(port, Lagging) else port


class Script:
    """A model that gives these replies, turn by turn, and remembers the requests."""

    def __init__(self, *turns: Sequence[e.Part]) -> None:
        self.turns = turns
        self.asked: list[ModelRequest] = []

    async def reply(self, question: ModelRequest) -> ModelReply:
        self.asked.append(question)
        return ModelReply(tuple(self.turns[question.turn - 1]))

    def read(self, turn: int) -> list[Outcome]:
        """The outcomes that the request of that turn contained."""
        [question] = [one for one in self.asked if one.turn == turn]
        return [entry for entry in question.history if isinstance(entry, Outcome)]


class Chain:
    """A thread in a workspace with one tool, and its workers."""

    def __init__(
        self,
        port: EventLog,
        model: Model,
        *,
        tool: str = "refund",
        run_by: str = "executor",
        fails: bool = False,
    ) -> None:
        self.log = port
        #: Logs of workers that have an account of their own, by kind.
        self.logs: dict[str, EventLog] = {}
        self.model = model
        self.ledger = Ledger(port, e.Author(kind="service", name="desk"))
        self.ran: list[str] = []
        self._fails = fails
        self.spec = ToolSpec(name=tool, schema=SCHEMA, run_by=run_by)
        self.running: list[Worker[Any, Any]] = []

    async def refund(self, order: str) -> str:
        self.ran.append(order)
        if self._fails:
            raise LookupError(f"no order {order}")
        return f"refunded {order}"

    async def begin(self, policy: str = ASK, text: str = "refund A-17") -> None:
        await self.ledger.append(policy_slot("shop", 1), applied(policy))
        ref = await self.ledger.declare("shop", self.spec)
        await self.ledger.append(
            THREAD.opened, e.ThreadOpened(requester="rita", model="test:m", tools=(ref,))
        )
        await self.say("m1", text)

    async def say(self, message: str, text: str) -> None:
        await self.ledger.append(THREAD.said(message), e.Said(role="user", text=text))

    @asynccontextmanager
    async def at_work(self, *kinds: str) -> AsyncIterator[None]:
        """Run workers of these kinds, by default of all."""
        make: dict[str, Callable[[], Any]] = {
            "gate": Gate,
            "queue": PendingProjector,
            "model": lambda: ModelWorker({"test": self.model}),
            "executor": lambda: Executor({self.spec.name: Registered(self.spec, self.refund)}),
        }
        replica = ReadReplica(beside(self.log))
        workers = [
            Worker(
                Ledger(beside(self.logs.get(kind, self.log)), e.Author(kind=kind, name=kind)),
                make[kind](),
                replica=replica,
            )
            for kind in kinds or make
        ]
        following = asyncio.create_task(replica.run())
        try:
            async with working(*workers):
                yield
        finally:
            following.cancel()

    async def until(self, there: Callable[[Thread], object]) -> Thread:
        """Follow the thread until the condition holds."""
        seen: list[Fact] = []
        async with asyncio.timeout(60), aclosing(self.ledger.watch(1, THREAD.subjects)) as facts:
            async for fact in facts:
                seen.append(fact)
                thread = thread_of(THREAD, seen)
                if there(thread):
                    return thread
        raise AssertionError

    async def answered(self, turn: int) -> Thread:
        """Follow the thread until the model has replied in that turn."""
        return await self.until(lambda thread: turn in thread.turns and thread.turns[turn].replied)

    async def shown(self, count: int = 1) -> list[pending.Entry]:
        """Wait until N approvals are open in the queue."""
        async with asyncio.timeout(60), aclosing(told(self.log.pending)) as changes:
            found: dict[str, pending.Entry] = {}
            async for key, value in changes:
                found.pop(key, None)
                if value:
                    found[key] = pending.decode(value)
                if len(found) == count:
                    return [found[one] for one in sorted(found)]
        raise AssertionError


@asynccontextmanager
async def talking(
    port: EventLog,
    *turns: Sequence[e.Part],
    policy: str = ASK,
    kinds: Sequence[str] = (),
    **more: Any,
) -> AsyncIterator[Chain]:
    """A chain that has begun and is at work, whose model replies so, turn by turn."""
    chain = Chain(port, Script(*turns), **more)
    await chain.begin(policy)
    async with chain.at_work(*kinds):
        yield chain


async def kinds(ledger: Ledger, ref: CallRef | ThreadRef) -> list[str]:
    return [type(fact.event).__name__ for fact in await ledger.read(ref)]
