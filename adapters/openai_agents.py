"""OpenAI Agents SDK: every tool call of an agent goes through the ledger.

    approvals = Approvals(kernel, StateFiles("paused"))
    agent = approvals.protect(Agent(name="desk", tools=[refund]))
    result = await approvals.run(agent, "Refund order A-17.", thread="order-17")
    ...
    async for result in approvals.resume(agent):    # any time, also in another process

A protected tool always needs approval, so each run ends where a tool is called, with its state. The
calls are then requested; what may start goes on at once, and the state of what waits is kept. The
SDK's own approvals are wake-ups: a protected tool reads the ledger whenever it is invoked, so a
state that somebody else approved, or whose arguments were changed, runs nothing.

What runs are the arguments that the ledger approved, which the tool validates as it would the
model's. Tools that run at the provider or on an MCP server never come here and are refused.
"""

import asyncio
import copy
import mimetypes
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from agents import (
    Agent,
    FunctionTool,
    RunConfig,
    Runner,
    RunState,
    ToolApprovalItem,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
    UserError,
)
from agents.result import RunResultBase
from agents.tool import maybe_invoke_function_tool_failure_error_function
from agents.tool_context import ToolContext

from ayes.adapters.kernel import Kernel, Raised, Ran, spec_from_schema
from ayes.adapters.names import AskedCall
from ayes.adapters.next_step import Answer, NextStep, Say, Wait
from ayes.adapters.outputs import output_of
from ayes.adapters.states import Saved, States
from ayes.adapters.wake import is_due
from ayes.projections.formats.common import UNKNOWN_TYPE, fitting_content
from ayes.projections.formats.openai_files import (
    read_responses_media,
    responses_part_of,
    responses_takes,
)
from ayes.schemas import events as e
from ayes.schemas.errors import ApprovalsError, BadInput
from ayes.schemas.slots import CallRef
from ayes.schemas.tools import ToolSpec

#: A call that a run stopped at, its name in the ledger, and what to do with it.
type _Asked = tuple[ToolApprovalItem, CallRef | None, NextStep]


class CallWaits(Exception):
    """A run was resumed although this call is not decided. The tool has not run."""

    def __init__(self, ref: CallRef) -> None:
        self.ref = ref
        super().__init__(f"not decided yet: {ref}.")


class Approvals:
    """Settles each tool call of protected agents through the ledger."""

    def __init__(self, kernel: Kernel, states: States) -> None:
        """Bind a kernel.

        Args:
            states: where paused conversations are kept.
        """
        self.kernel = kernel
        self.states = states

    def protect(self, agent: Agent[Any]) -> Agent[Any]:
        """The agent, and those it hands over to, with tools that ask the ledger.

        Raises:
            BadInput: a tool, an MCP server or a handoff could run what nobody here could stop.
        """
        return self._protect(agent, {})

    async def run(
        self, agent: Agent[Any], prompt: Any, *, thread: str, **more: Any
    ) -> RunResultBase:
        """Run a protected agent, and keep the conversation if it waits.

        Args:
            prompt: as `input` of `Runner.run`.
            thread: the id of the conversation, the same after a restart.
            more: as of `Runner.run`.

        Raises:
            Unavailable: the ledger does not answer. Nothing has run that is not recorded.
        """
        config = run_config(thread, more.pop("run_config", None))
        result = await _run(agent, prompt, run_config=config, **more)
        return await self._go_on(agent, result, config, more)

    async def park(self, result: RunResultBase, *, thread: str) -> Sequence[CallRef]:
        """Request the calls that a run stopped at, and keep the conversation; forget it if it has
        ended. For runs of your own, as a stream that was read to its end. `resume` continues.

        Args:
            result: of a run with `run_config(thread)`.

        Returns:
            The calls that are not decided.

        Raises:
            Unavailable: the ledger does not answer.
        """
        asked = await self._asked(result.interruptions, result.input, thread)
        await self._keep(result, thread, asked)
        return [step.ref for _, _, step in asked if isinstance(step, Wait)]

    async def resume(self, agent: Agent[Any], **more: Any) -> AsyncIterator[RunResultBase]:
        """Continue each conversation with a decided call, and yield the result of each run.

        Args:
            agent: a protected one, with the tools of the one that was paused.
            more: as of `Runner.run`.

        Raises:
            Unavailable: the ledger does not answer.
        """
        for saved in await self.states.saved():
            if await is_due(self.kernel, saved):
                yield await self.resume_one(agent, saved, **more)

    async def resume_one(self, agent: Agent[Any], saved: Saved, **more: Any) -> RunResultBase:
        """Continue one conversation, as a wake-up does (`wake.wake`)."""
        config = run_config(saved.thread, more.pop("run_config", None))
        context = more.pop("context", None)
        state = await RunState.from_string(agent, saved.state, context_override=context)
        given = state._original_input  # noqa: SLF001 - the SDK shows it of results alone
        _approve(state, await self._asked(state.get_interruptions(), given, saved.thread))
        result = await _run(agent, state, run_config=config, **more)
        return await self._go_on(agent, result, config, more)

    async def _go_on(
        self, agent: Agent[Any], result: RunResultBase, config: RunConfig, more: dict[str, Any]
    ) -> RunResultBase:
        """Until it has ended, or each call that it stopped at waits."""
        thread = str(config.group_id)
        while True:
            asked = await self._asked(result.interruptions, result.input, thread)
            await self._keep(result, thread, asked)
            if all(isinstance(step, Wait) for _, _, step in asked):
                return result
            state = result.to_state()
            _approve(state, asked)
            result = await _run(agent, state, run_config=config, **more)

    async def _keep(self, result: RunResultBase, thread: str, asked: Sequence[_Asked]) -> None:
        if not asked:
            await self.states.remove(thread)
            return
        # One that is due at once is not waited for: with no name at all it is always due.
        is_waiting = all(isinstance(step, Wait) for _, _, step in asked)
        refs = tuple(str(ref) for _, ref, _ in asked) if is_waiting else ()
        await self.states.save(Saved(thread, refs, result.to_state().to_string()))

    async def _asked(
        self, items: Sequence[ToolApprovalItem], given: str | list[Any], thread: str
    ) -> list[_Asked]:
        """The calls that a run with this input stopped at, with their next steps; requested if
        nobody did.
        """

        async def ask(item: ToolApprovalItem) -> _Asked:
            call = item.raw_item
            id_, arguments = _of(call, "call_id"), _of(call, "arguments")
            earlier = _earlier(given, id_, _of(call, "name"), arguments)
            spec = _spec(_tool(item))
            asked = AskedCall(thread, id_, spec.name, arguments, earlier)
            return item, *await self.kernel.next_step(asked, spec)

        return list(await asyncio.gather(*map(ask, items)))

    def _protect(self, agent: Agent[Any], known: dict[int, Agent[Any]]) -> Agent[Any]:
        if id(agent) in known:
            return known[id(agent)]
        if agent.mcp_servers:
            raise BadInput(
                f"the MCP servers of {agent.name!r} run their tools without asking here. Put the "
                "MCP gateway in front of them, and add it to the protected agent."
            )
        tools = [self._protect_tool(tool) for tool in agent.tools]
        known[id(agent)] = protected = agent.clone(tools=tools, handoffs=[])
        for other in agent.handoffs:
            if not isinstance(other, Agent):
                raise BadInput(
                    f"{agent.name!r} hands over to {other.agent_name!r} by a `Handoff`, whose agent"
                    " is not seen here. List the agent itself."
                )
            protected.handoffs.append(self._protect(other, known))
        return protected

    def _protect_tool(self, tool: Any) -> FunctionTool:
        if not isinstance(tool, FunctionTool) or tool._is_agent_tool:  # noqa: SLF001 - the SDK has no other sign of it
            raise BadInput(
                f"the calls of the tool {tool.name!r} cannot be stopped here: it is no function "
                "tool, or runs an agent of its own. Take it from the agent, or hand over to it."
            )
        # The tool without its own handling of errors, so that they are recorded as such.
        raising = copy.copy(tool)
        raising._failure_error_function = None  # noqa: SLF001 - as above
        raising._use_default_failure_error_function = False  # noqa: SLF001 - as above

        async def invoke(context: ToolContext[Any], arguments: str) -> Any:
            async def run(approved: dict[str, Any]) -> Any:
                own = copy.copy(context)
                own.tool_arguments = msgspec.json.encode(approved).decode()
                return await raising.on_invoke_tool(own, own.tool_arguments)

            id_ = context.tool_call_id
            earlier = _earlier(context.turn_input, id_, context.tool_name, arguments)
            asked = AskedCall(_thread(context), id_, tool.qualified_name, arguments, earlier)
            match await self.kernel.settle(asked, _spec(tool), run, output=_output):
                case Ran(value):
                    return value
                case Raised(problem):
                    told = await maybe_invoke_function_tool_failure_error_function(
                        function_tool=tool, context=context, error=problem
                    )
                    if told is None:
                        raise problem
                    return told
                case Answer(content):
                    return _given(content)
                case Say(text):
                    return text
                case Wait(ref):
                    raise CallWaits(ref)

        protected = copy.copy(tool)
        protected.on_invoke_tool = invoke
        protected.needs_approval = True
        return protected


def _approve(state: RunState[Any, Any], asked: Sequence[_Asked]) -> None:
    """Let the SDK invoke the tools of decided calls."""
    # Not decisions: the tool reads the ledger when it is invoked.
    for item, _, step in asked:
        if not isinstance(step, Wait):
            state.approve(item)


def run_config(thread: str, given: RunConfig | None = None) -> RunConfig:
    """The configuration of a run whose conversation has this id, for runs of your own."""
    if not thread:
        raise BadInput("a conversation needs an id: give the run a thread.")
    return replace(given or RunConfig(), group_id=thread)


async def _run(agent: Agent[Any], given: Any, **more: Any) -> RunResultBase:
    try:
        return await Runner.run(agent, given, **more)
    except UserError as problem:
        # The SDK wraps what a tool raises.
        if isinstance(problem.__cause__, ApprovalsError | CallWaits):
            raise problem.__cause__ from None
        raise


def _thread(context: ToolContext[Any]) -> str:
    thread = context.run_config and context.run_config.group_id
    if not thread:
        raise BadInput(
            f"a call of {context.tool_name} belongs to no conversation: run the agent with "
            "`Approvals.run`, or with `run_config(thread)`."
        )
    return str(thread)


def _tool(item: ToolApprovalItem) -> FunctionTool:
    namespace = item.tool_namespace
    names = {item.tool_name, f"{namespace}.{item.tool_name}"}
    for tool in item.agent.tools:
        if isinstance(tool, FunctionTool) and tool.qualified_name in names:
            return tool
    raise BadInput(f"the agent {item.agent.name!r} has no protected tool {item.tool_name!r}.")


def _of(call: Any, name: str) -> str:
    value = call.get(name) if isinstance(call, dict) else getattr(call, name, None)
    return value if isinstance(value, str) else ""


def _earlier(given: str | Sequence[Any], id_: str, name: str, arguments: str) -> int:
    """How many such calls the input of a run has. In one run the SDK itself takes an id that comes
    again for the same call.
    """
    calls = [] if isinstance(given, str) else given
    wanted = id_, name, arguments
    return sum(
        tuple(_of(one, of) for of in ("call_id", "name", "arguments")) == wanted for one in calls
    )


def _spec(tool: FunctionTool) -> ToolSpec:
    schema = msgspec.json.encode(tool.params_json_schema).decode()
    return spec_from_schema(tool.qualified_name, tool.description, schema)


def _output(value: Any) -> e.Content:
    """What a tool returned: the SDK's images and files are files, as objects or as JSON."""
    items = [_plain(item) for item in (value if isinstance(value, list | tuple) else [value])]
    return output_of(items if isinstance(value, list | tuple) else items[0], _file)


def _plain(item: Any) -> Any:
    if isinstance(item, ToolOutputText | ToolOutputImage | ToolOutputFileContent):
        return item.model_dump(exclude_none=True)
    return item


def _file(item: Any) -> e.Media | None:
    if not isinstance(item, dict) or item.get("type") not in ("image", "file"):
        return None
    part = {**item, "type": f"input_{item['type']}"}
    match part:
        case {"file_data": str(data)} if not data.startswith("data:"):
            kind = mimetypes.guess_type(str(part.get("filename")))[0] or UNKNOWN_TYPE
            part["file_data"] = f"data:{kind};base64,{data}"
    return read_responses_media(part)


def _given(content: e.Content) -> Any:
    """A recorded result as a tool returns it."""
    told = fitting_content(content, responses_takes)
    return told if isinstance(told, str) else [_item(part) for part in told]


def _item(part: e.Text | e.Media) -> ToolOutputText | ToolOutputImage | ToolOutputFileContent:
    if isinstance(part, e.Text):
        return ToolOutputText(text=part.text)
    fields = responses_part_of(part) | ({} if part.detail else {"detail": None})
    if fields.pop("type") == "input_image":
        return ToolOutputImage(**fields)
    return ToolOutputFileContent(**fields)
