"""Pydantic AI: a capability by which every tool call of an agent goes through the ledger.

    approvals = Approvals(kernel, StateFiles("paused"))
    agent = Agent(model, tools=[refund], output_type=[str, DeferredToolRequests],
                  capabilities=[approvals])
    result = await approvals.run(agent, "Refund order A-17.", thread="order-17")
    ...
    async for result in approvals.resume(agent):    # any time, also in another process

A call that waits ends the run with `DeferredToolRequests`, and `run` keeps the conversation. What
the run is resumed with is a wake-up: every open call is handed in as approved, and the capability
reads the ledger again. So a resume that somebody else makes up runs nothing, and calls that are not
decided yet wait again.

The arguments of a call are the model's own, from the messages. What runs are the arguments that the
ledger approved, validated by the tool. Tools that run at the provider never come here, so a request
that offers some is refused.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec
from pydantic_ai import AbstractToolset, Agent, RunContext, ToolReturn
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.conversation import Conversation, ConversationTypeAdapter
from pydantic_ai.exceptions import ApprovalRequired, ToolFailed
from pydantic_ai.messages import (
    CachePoint,
    ModelResponse,
    TextContent,
    ToolCallPart,
    is_multi_modal_content,
    tool_return_content_ta,
)
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDenied
from pydantic_ai.toolsets import ToolsetTool, WrapperToolset

from ayes.adapters.kernel import Kernel, Raised, Ran, spec_from_schema
from ayes.adapters.names import AskedCall
from ayes.adapters.next_step import Answer, Say, Wait
from ayes.adapters.outputs import output_of, output_text
from ayes.adapters.states import Saved, States
from ayes.adapters.wake import is_due
from ayes.projections.formats.common import fitting_content
from ayes.projections.formats.pydantic_ai.media import read_media, takes
from ayes.projections.formats.pydantic_ai.write import items_of
from ayes.schemas import events as e
from ayes.schemas.content import content_of, parts_of
from ayes.schemas.errors import BadInput

#: Of the metadata of a deferred call: its name in the ledger.
CALL = "ayes_call"


class Approvals(AbstractCapability[Any]):
    """Settles each tool call of an agent through the ledger."""

    def __init__(self, kernel: Kernel, states: States | None = None) -> None:
        """Bind a kernel.

        Args:
            states: where `run` and `resume` keep paused conversations.
        """
        self.kernel = kernel
        self.states = states

    def get_ordering(self) -> CapabilityOrdering:
        return CapabilityOrdering(position="outermost")

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        return _Asking(toolset, self.kernel)

    async def before_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
        """Refuse tools that run at the provider, which nobody here could stop.

        Raises:
            BadInput: the request offers some.
        """
        if native := request_context.model_request_parameters.native_tools:
            names = ", ".join(sorted({type(one).__name__ for one in native}))
            raise BadInput(
                f"{names} would run at the provider, where no approval can stop it. Take it from "
                "the agent, or the approvals."
            )
        return request_context

    async def run(
        self, agent: Agent[Any, Any], prompt: str, *, thread: str, **more: Any
    ) -> AgentRunResult[Any]:
        """Run the agent, and keep the conversation if it waits.

        Args:
            thread: the id of the conversation.
            more: as of `Agent.run`.

        Raises:
            Unavailable: the ledger does not answer. Nothing has run that is not recorded.
        """
        result = await agent.run(prompt, conversation_id=thread, **more)
        await self.park(result)
        return result

    async def park(self, result: AgentRunResult[Any]) -> None:
        """Keep the conversation of a run that waits, and forget one that has ended."""
        await self.keep(result.conversation, result.output)

    async def keep(self, conversation: Conversation, output: Any) -> None:
        """As `park`, for runs that have no such result, as a stream."""
        states = self._states()
        if isinstance(output, DeferredToolRequests):
            state = ConversationTypeAdapter.dump_json(conversation).decode()
            await states.save(Saved(conversation.conversation_id, _refs(output), state))
        else:
            await states.remove(conversation.conversation_id)

    async def resume(
        self, agent: Agent[Any, Any], **more: Any
    ) -> AsyncIterator[AgentRunResult[Any]]:
        """Continue each conversation with a decided call, and yield the result of each run.

        Args:
            more: as of `Agent.run`.

        Raises:
            Unavailable: the ledger does not answer.
        """
        for saved in await self._states().saved():
            if await is_due(self.kernel, saved):
                yield await self.resume_one(agent, saved, **more)

    async def resume_one(
        self, agent: Agent[Any, Any], saved: Saved, **more: Any
    ) -> AgentRunResult[Any]:
        """Continue one conversation, as a wake-up does (`wake.wake`)."""
        conversation = ConversationTypeAdapter.validate_json(saved.state)
        open_calls = conversation.deferred_tool_requests or DeferredToolRequests()
        # Not decisions: the capability asks the ledger about each of them.
        woken: dict[str, bool | ToolApproved | ToolDenied] = {
            call.tool_call_id: True for call in open_calls.approvals
        }
        result = await agent.run(
            conversation=conversation,
            deferred_tool_results=DeferredToolResults(approvals=woken),
            **more,
        )
        await self.park(result)
        return result

    def _states(self) -> States:
        if self.states is None:
            raise BadInput("paused conversations are kept nowhere: give `Approvals` some states.")
        return self.states


@dataclass
class _Asking(WrapperToolset[Any]):
    """The agent's tools, each call settled by the kernel."""

    kernel: Kernel

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        if not ctx.conversation_id:
            raise BadInput(f"a call of {name} belongs to no conversation: give the run an id.")

        async def run(arguments: dict[str, Any]) -> Any:
            validated = tool.args_validator.validate_python(arguments)
            return await self.wrapped.call_tool(name, validated, ctx, tool)

        definition = tool.tool_def
        schema = msgspec.json.encode(definition.parameters_json_schema).decode()
        spec = spec_from_schema(name, definition.description or "", schema)
        asked = _asked(ctx, name, tool_args)
        match await self.kernel.settle(asked, spec, run, output=_output):
            case Ran(value):
                return value
            case Raised(problem):
                raise problem
            case Answer(content):
                return _given(content)
            case Say(text, is_error=False):
                return text
            case Say(text):
                raise ToolFailed(text)
            case Wait(ref):
                raise ApprovalRequired(metadata={CALL: str(ref)})


def _asked(ctx: RunContext[Any], name: str, tool_args: dict[str, Any]) -> AskedCall:
    """The call with the model's own text; if no message has it, with the arguments it was made
    with.
    """
    thread, id_ = str(ctx.conversation_id), ctx.tool_call_id or ""
    texts = [
        part.args_as_json_str()
        for message in ctx.messages
        if isinstance(message, ModelResponse)
        for part in message.parts
        if isinstance(part, ToolCallPart) and (part.tool_call_id, part.tool_name) == (id_, name)
    ]
    if not texts:
        return AskedCall(thread, id_, name, output_text(tool_args))
    *before, text = texts
    return AskedCall(thread, id_, name, text, before.count(text))


def _refs(requests: DeferredToolRequests) -> tuple[str, ...]:
    named = (requests.metadata.get(call.tool_call_id, {}) for call in requests.approvals)
    return tuple(ref for one in named if isinstance(ref := one.get(CALL), str))


def _output(value: Any) -> e.Content:
    """A tool's result; the extra content of a `ToolReturn` comes after it."""
    if not isinstance(value, ToolReturn):
        return output_of(value, _file)
    told = [value.content] if isinstance(value.content, str) else value.content or ()
    besides = (
        one.content if isinstance(one, TextContent) else one
        for one in told
        if not isinstance(one, CachePoint)
    )
    contents = [output_of(one, _file) for one in (value.return_value, *besides)]
    return content_of(part for content in contents for part in parts_of(content))


def _file(item: Any) -> e.Media | None:
    if not is_multi_modal_content(item):
        return None
    return read_media(tool_return_content_ta.dump_python(item, mode="json"))


def _given(content: e.Content) -> Any:
    """A recorded result as a tool returns it."""
    items = items_of(fitting_content(content, takes))
    if isinstance(items, str):
        return items
    values = [tool_return_content_ta.validate_json(msgspec.json.encode(one)) for one in items]
    return values[0] if len(values) == 1 else values
