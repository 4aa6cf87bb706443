"""A workspace with tools, policies and gates, for the tests of the gate."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from running import working
from until import recorded

from ayes.consumers.effects import Append
from ayes.consumers.gate import Gate
from ayes.consumers.pending_projector import PendingProjector
from ayes.consumers.worker import Worker
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import EventLog
from ayes.ledger.trust import Trust
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.policy import applied
from ayes.schemas.slots import ORGANISATION, CallRef, Slot, ThreadRef, policies, policy_slot
from ayes.schemas.tools import ToolSpec

THREAD = ThreadRef("shop", "t1")
FIRST, SECOND, THIRD = (THREAD.call(f"c{number}") for number in (1, 2, 3))
SCHEMA = '{"type":"object","properties":{"amount":{"type":"number"}}}'
REFUND = ToolSpec(name="refund", schema=SCHEMA)


class Shop:
    """A workspace with tools and policies, a requester and any number of gates."""

    def __init__(self, port: EventLog) -> None:
        self.log = port
        #: The trust file of its gates.
        self.trust: Trust | None = None
        self.ledger = Ledger(port, e.Author(kind="service", name="desk"))

    async def open(self, policy: str = "", organisation: str = "", *tools: ToolSpec) -> None:
        await self.apply(policy)
        if organisation:
            await self.apply(organisation, ORGANISATION)
        for spec in tools or (REFUND,):
            await self.ledger.declare("shop", spec)

    async def apply(self, text: str, workspace: str = "shop") -> None:
        """Record the next version of its policy, readable or not."""
        version = len(await self.ledger.read(policies(workspace))) + 1
        await self.ledger.append(policy_slot(workspace, version), applied(text))

    async def request(
        self,
        ref: CallRef = FIRST,
        arguments: str = '{"amount":100}',
        tool: str = "refund",
        **more: Any,
    ) -> None:
        """Request a tool as the model worker does; for an agent, name it in `more`."""
        version = (await self.ledger.tool("shop", tool)).version
        wish = {"requester": "rita"} | more
        digest = call_digest(tool, version, arguments)
        await self.ledger.append(
            ref.requested,
            e.ToolRequested(
                tool=tool, arguments=arguments, digest=digest, tool_version=version, **wish
            ),
        )

    async def say(self, message: str) -> None:
        await self.ledger.say(THREAD, "go on", message=message)

    @asynccontextmanager
    async def gates(self, count: int = 1, *, queue: bool = False) -> AsyncIterator[None]:
        """Run N gates at the same time, and on request the queue's worker."""
        made: list[Any] = [Gate() for _ in range(count)] + ([PendingProjector()] if queue else [])
        gate = e.Author(kind="gate", name="gate")
        ledgers = [Ledger(self.log, gate) for _ in made]
        for ledger in ledgers:
            ledger.trust = self.trust
        async with working(*map(Worker, ledgers, made)):
            yield

    @asynccontextmanager
    async def at_work(
        self,
        policy: str = "",
        organisation: str = "",
        *tools: ToolSpec,
        gates: int = 1,
        queue: bool = False,
    ) -> AsyncIterator[None]:
        """Open, and run gates."""
        await self.open(policy, organisation, *tools)
        async with self.gates(gates, queue=queue):
            yield

    async def until(self, slot: Slot) -> Fact:
        return (await recorded(self.ledger, slot.subject))[0]

    async def asked(self, ref: CallRef = FIRST) -> e.ApprovalRequested:
        """Wait for the approval request, which must be the gate's first fact."""
        event = (await self.until(ref.gated)).event
        assert isinstance(event, e.ApprovalRequested)
        return event

    async def decided[T: e.Event](self, kind: type[T], ref: CallRef = FIRST) -> T:
        """Wait for the decision, which must be of this kind."""
        event = (await self.until(ref.decided)).event
        assert isinstance(event, kind), event
        return event

    async def ask(self, ref: CallRef = FIRST, *args: str, **more: Any) -> e.ApprovalRequested:
        """Request a call, and wait until people are asked."""
        await self.request(ref, *args, **more)
        return await self.asked(ref)

    async def cast(
        self, name: str, ref: CallRef = FIRST, verdict: e.Verdict = "approve", **more: Any
    ) -> None:
        """Record a vote past the client, which asks whether this person may vote."""
        digest = (await self.asked(ref)).digest
        await self.ledger.append(ref.vote(name), e.Voted(verdict=verdict, digest=digest, **more))

    async def judged[T: e.Event](
        self, kind: type[T], ref: CallRef = FIRST, *args: str, **more: Any
    ) -> T:
        """Request a call, and wait for the decision, which must be of this kind."""
        await self.request(ref, *args, **more)
        return await self.decided(kind, ref)


async def conclude(ledger: Ledger, ref: CallRef | ThreadRef) -> None:
    """Let a gate conclude all that follows from what there is."""
    gate, before = Gate(), -1
    handed = e.ModelReplied | e.ToolRequested | e.Voted | e.Withdrawn
    while before != (before := await ledger.log.last_seq()):
        for fact in await ledger.read(ref):
            if isinstance(fact.event, handed) and fact.slot.tail[-1] != "decided":
                for step in gate.decide(await gate.load(ledger, fact), fact):
                    if isinstance(step, Append):
                        await ledger.append(step.slot, step.event)


def rule(name: str, then: str, *more: str, tools: str = "refund") -> str:
    """A rule of a policy, for these tools (words); `more` are its other lines."""
    named = '", "'.join(tools.split())
    return "\n".join(
        ("[[rule]]", f'name = "{name}"', f'tools = ["{named}"]', f'then = "{then}"', *more, "")
    )
