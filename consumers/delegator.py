"""The delegator: runs calls of tools that are agents themselves, each in a thread of its own.

    decided, approved ──► claim.client.1 ──► sub-….opened, sub-….said.task ──► ... its turns ...
    its model's last reply ──────────────────────────────────────────────────► finished.client

A sub-agent may wait for people for days, so no worker waits for it: its thread goes on by itself,
and its end is a delivery like any other. The thread's id follows from the call's
(`ledger/judging/chain.py`), so a delegator that dies between any two steps, and the one that goes
on, open one thread, say one task and record one result.

The tools are run by `client`: the delegator is a program with the credentials of a service, which
claims and finishes calls in the slots of clients. It receives those of all workspaces, and takes
them where its sub-agents are declared.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Final, Never

import msgspec
from msgspec import Struct
from pydantic import AfterValidator, Field, ValidationError

from ayes.consumers.effects import Append, Effect, HandOn, Reload
from ayes.consumers.executor import HAND_ON_AFTER_S
from ayes.consumers.holding import held
from ayes.ledger.call import Call
from ayes.ledger.clients.proofs import why_unproved
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.chain import is_below, thread_below
from ayes.ledger.judging.policies import attributed, origin, origin_slots
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import Delivered
from ayes.ledger.validity import call_of
from ayes.projections.thread import Thread, thread_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.content import content_of
from ayes.schemas.errors import BadInput, UnknownTool
from ayes.schemas.events import ToolClass
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import CallRef
from ayes.schemas.toml_files import TomlModel, mistake, mistakes
from ayes.schemas.tools import ToolSpec, declaration

_log: Final = get_logger("ayes.consumers.delegator")

#: The ids of the messages with which a sub-agent's thread begins.
INSTRUCTIONS: Final = "instructions"
TASK: Final = "task"
#: A task in words: the schema of a sub-agent's arguments if it has no other.
TASK_SCHEMA: Final = (
    '{"type":"object","properties":{"task":{"type":"string"}},"required":["task"],'
    '"additionalProperties":false}'
)


class SubAgent(TomlModel):
    """An agent that other agents call as a tool."""

    #: Its name as an agent, for policies.
    agent: str
    #: `provider:name`.
    model: str
    #: For the models that may call it.
    description: str = ""
    #: The system message of its model, before the task.
    instructions: str = ""
    #: The names of the tools that it is offered, those of other sub-agents included.
    tools: Annotated[tuple[str, ...], Field(strict=False)] = ()
    max_turns: Annotated[int, Field(ge=1)] = 100
    #: JSON Schema of the arguments, raw text.
    arguments: str = TASK_SCHEMA
    #: Of its tool. Its calls are judged by the highest class of theirs and this one.
    tool_class: ToolClass | None = Field(default=None, alias="class")

    def spec(self, tool: str) -> ToolSpec:
        """The declaration of the tool of that name.

        Raises:
            ValidationError: of pydantic; `tool` is not a valid name, or `arguments` not a schema.
        """
        return ToolSpec.model_validate(
            {
                "name": tool,
                "description": self.description,
                "schema": self.arguments,
                "class": self.tool_class,
            }
        )


def _declarable(agents: dict[str, SubAgent]) -> dict[str, SubAgent]:
    for tool, agent in agents.items():
        try:
            agent.spec(tool)
        except ValidationError as wrong:
            _, problem = next(mistakes(wrong))
            raise mistake(problem, tool, "arguments") from None
    return agents


#: The section `sub_agents` of the settings: by the names of their tools.
type SubAgents = Annotated[dict[str, SubAgent], AfterValidator(_declarable)]


class SubAgentRun(Struct, frozen=True):
    """A call of a sub-agent's tool, and its thread."""

    call: Call
    agent: SubAgent
    below: Thread
    #: The tools that it will be offered; known before its thread is opened.
    offered: tuple[e.ToolRef, ...] = ()
    #: The broker's clock if the call waits for a newer program, or was ever stopped.
    now: datetime | None = None
    #: Why its approval does not follow from signed votes and policies; empty if it does.
    unproved: str = ""


class Delegator:
    durables = ("delegator",)
    replaces = False

    def __init__(self, agents: Mapping[str, SubAgent]) -> None:
        """Args:
        agents: by the name of the tool.
        """
        self._agents = dict(agents)
        self._versions = {tool: declaration(one.spec(tool))[0] for tool, one in agents.items()}

    async def load(self, ledger: Ledger, handed: Delivered) -> tuple[SubAgentRun, ...]:
        """The delegations that a decision or a reply may carry on: the decided call's, and the one
        in whose thread it was recorded.
        """
        assert isinstance(handed, Fact)
        found = []
        if (ref := handed.slot.call_ref) is not None:
            found.append(await self._delegation(ledger, ref, handed))
        if handed.slot.thread_ref.is_below:
            opened = next(iter(await ledger.read(handed.slot.thread_ref.opened)), None)
            if (parent := _parent(opened)) is not None:
                found.append(await self._delegation(ledger, parent, handed))
        return tuple(one for one in found if one is not None)

    async def _delegation(self, ledger: Ledger, ref: CallRef, handed: Fact) -> SubAgentRun | None:
        found = await self._read(ledger, ref, handed)
        if found is None or not await ledger.is_too_late(found.call):
            return found
        # After the leader's last fact no start can come that counts.
        await ledger.log.last_seq()
        found = await self._read(ledger.reading_from(ledger.log), ref, handed)
        return found if found is not None and found.call.starts else None

    async def _read(self, ledger: Ledger, ref: CallRef, handed: Fact) -> SubAgentRun | None:
        facts = await ledger.read(
            ref, *origin_slots(ref), ref.below, handed.slot, must_include=handed.slot
        )
        call = call_of(ref, facts)
        if call.requested is None or (agent := self._agents.get(call.wish.tool)) is None:
            return None
        if not await self._is_declared(ledger, ref.workspace, call.wish.tool):
            return None
        call = attributed(call, origin(call, facts))
        below = thread_of(ref.below, facts)
        offered = await _offered(ledger, ref.workspace, agent) if below.opened is None else ()
        is_open = call.is_clients and call.status in (Status.APPROVED, Status.RUNNING)
        now = await ledger.log.clock() if is_open and (call.newer or call.stops) else None
        is_to_start = call.status is Status.APPROVED and call.is_clients and not call.starts
        unproved = await why_unproved(ledger, call, starts=True) if is_to_start else ""
        if unproved:
            _log.error("an approval does not follow from what is signed", why=unproved)
        return SubAgentRun(call, agent, below, offered, now, unproved)

    async def _is_declared(self, ledger: Ledger, workspace: str, tool: str) -> bool:
        """Whether it is this sub-agent that the workspace knows by the tool's name, in whatever
        version a call was requested.
        """
        try:
            await ledger.tool(workspace, tool, self._versions[tool])
        except UnknownTool:
            return False
        return True

    def decide(self, seen: tuple[SubAgentRun, ...], handed: Delivered) -> Sequence[Effect[Never]]:
        for one in seen:
            if one.now is None:
                continue
            stop = one.call.stop(one.now) if one.call.status is Status.APPROVED else None
            if stop is not None:
                return [held(stop, one.now)]
            if one.call.newer:
                waited_s = (one.now - handed.recorded_at).total_seconds()
                why = "a newer program has recorded something about it"
                return [HandOn(max(HAND_ON_AFTER_S, waited_s), why)]
        return [step for one in seen for step in steps(one)]

    async def execute(self, ledger: Ledger, work: Never) -> Never:
        raise AssertionError("the delegator claims no work")


def steps(one: SubAgentRun) -> Sequence[Effect[Never]]:
    """The next steps of a delegation."""
    call, below = one.call, one.below
    if not call.is_clients or call.newer or one.unproved:
        return ()
    if call.status is Status.APPROVED and call.flaw is None and not call.starts:
        started = e.ToolStarted(digest=call.digest, idempotency_key=str(call.ref))
        return [Append(call.claim_slot, started, after=call.last_revocation), Reload()]
    # Also a claim of another delegator, which is dead or had another name.
    if call.status is not Status.RUNNING or call.end_slot is None:
        return ()
    if below.opened is None:
        thread, opened = thread_below(call, agent=one.agent.agent, model=one.agent.model)
        opened = msgspec.structs.replace(opened, tools=one.offered, max_turns=one.agent.max_turns)
        return [Append(thread.opened, opened), Reload()]
    if not _is_its_own(one, below.opened):
        wrong = f"{below.ref} was opened by another program, and not for this call."
        return [Append(call.end_slot, e.ToolFailed(error=wrong, attempt=call.attempt))]
    said = {fact.slot for fact in below.said}
    messages = [
        (below.ref.said(INSTRUCTIONS), e.Said(role="system", text=one.agent.instructions)),
        (below.ref.said(TASK), e.Said(role="user", text=task_of(call.arguments))),
    ]
    missing = [Append(slot, event) for slot, event in messages if event.text and slot not in said]
    if missing:
        return missing
    ended = outcome(below, call.attempt)
    return [Append(call.end_slot, ended)] if ended is not None else ()


def outcome(thread: Thread, attempt: int) -> e.ToolReturned | e.ToolFailed | None:
    """The result of the call in whose run a thread was opened; None while the thread goes on."""
    last = thread.turns.get(thread.latest)
    if last is None or last.replied is None or thread.is_model_due:
        return None
    if last.reply is None:
        event = last.replied.event
        why = event.error if isinstance(event, e.ModelFailed) else "its reply cannot be read"
        return e.ToolFailed(error=f"The sub-agent's model failed: {why}", attempt=attempt)
    if not last.wishes:
        said = [part for part in last.reply.parts if isinstance(part, e.Text | e.Media)]
        refused = [e.Text(one.text) for one in last.reply.parts if isinstance(one, e.Refusal)]
        return e.ToolReturned(output=content_of((*said, *refused)), attempt=attempt)
    opened = thread.opened.event if thread.opened else None
    if thread.is_halted(last.number):
        why = "A person stopped it."
    elif isinstance(opened, e.ThreadOpened) and last.number >= opened.max_turns:
        why = f"It has taken its {last.number} turns and still wants tools."
    else:
        return None
    return e.ToolFailed(error=f"The sub-agent did not finish. {why}", attempt=attempt)


def task_of(arguments: str) -> str:
    """The message with which a sub-agent begins: the task in words, or else the arguments."""
    match msgspec.json.decode(arguments):
        case {"task": str(task), **rest} if task and not rest:
            return task
        case _:
            return arguments


def _is_its_own(one: SubAgentRun, opened: Fact) -> bool:
    event = opened.event
    # Its agent and model are those of the file at the time of the opening.
    return (
        is_below(one.call.ref, opened)
        and isinstance(event, e.ThreadOpened)
        and event.requester == one.call.wish.requester
        and bool(event.model)
    )


def _parent(opened: Fact | None) -> CallRef | None:
    if opened is None or not isinstance(opened.event, e.ThreadOpened) or not opened.event.parent:
        return None
    try:
        parent = CallRef.parse(opened.event.parent)
    except BadInput:
        return None
    return parent if parent.below == opened.slot.thread_ref else None


async def _offered(ledger: Ledger, workspace: str, agent: SubAgent) -> tuple[e.ToolRef, ...]:
    """The tools of a sub-agent, of the versions that were declared last.

    Raises:
        UnknownTool: one of them is not declared in the workspace.
    """
    tools = [await ledger.tool(workspace, name) for name in agent.tools]
    return tuple(e.ToolRef(one.name, one.version, one.declared.run_by) for one in tools)
