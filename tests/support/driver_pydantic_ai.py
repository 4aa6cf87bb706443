"""An agent of Pydantic AI with a scripted model."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from drivers import CAPTION, CHART, Driver
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.conversation import Conversation, ConversationTypeAdapter
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    tool_return_content_ta,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved

from ayes.adapters.pydantic_ai import Approvals
from ayes.adapters.states import StateFiles


class Agent(Driver):
    """Its state is the conversation's JSON, as `Approvals` parks it."""

    def agent(self) -> PydanticAgent[None, Any]:
        self.approvals = Approvals(self.kernel, StateFiles(self.folder))
        return PydanticAgent(
            FunctionModel(self._reply, stream_function=self._stream),
            tools=[self.refund, self.hurry, self.chart],
            output_type=[str, DeferredToolRequests],
            capabilities=[self.approvals],
        )

    def chart(self, amount: float) -> Any:
        self.runs.append({"amount": amount})
        return [CAPTION, BinaryContent(CHART, media_type="image/png")]

    async def start(self, *, stream: bool = False) -> list[str] | None:
        agent = self.agent()
        if not stream:
            result = await self.approvals.run(agent, "Refund order A-17.", thread=self.thread)
            return self._ended(result)
        async with agent.run_stream("Refund order A-17.", conversation_id=self.thread) as streamed:
            output = await streamed.get_output()
            messages = streamed.all_messages()
        assert isinstance(output, DeferredToolRequests)
        conversation = Conversation(
            messages=messages, conversation_id=self.thread, deferred_tool_requests=output
        )
        await self.approvals.keep(conversation, output)
        return None

    async def resume(self) -> list[str] | None:
        agent = self.agent()
        async for result in self.approvals.resume(agent):
            return self._ended(result)
        return None

    async def more(self) -> list[str] | None:
        agent = self.agent()
        messages = ModelMessagesTypeAdapter.validate_json(self.history.read_bytes())
        result = await self.approvals.run(
            agent, "And now?", thread=self.thread, message_history=messages
        )
        return self._ended(result)

    @property
    def history(self) -> Path:
        return self.folder / "messages.txt"

    def _ended(self, result: AgentRunResult[Any]) -> list[str] | None:
        """What came of a run, whose messages are kept if it has ended."""
        if not isinstance(result.output, DeferredToolRequests):
            self.history.write_bytes(result.all_messages_json())
        return _told(result.output)

    async def forge(self, arguments: dict[str, Any]) -> list[str] | None:
        agent = self.agent()
        [saved] = await self.approvals.states.saved()
        conversation = ConversationTypeAdapter.validate_json(saved.state)
        approved = {
            call.tool_call_id: ToolApproved(override_args=arguments)
            for call in conversation.deferred_tool_requests.approvals
        }
        result = await agent.run(
            conversation=conversation, deferred_tool_results=DeferredToolResults(approvals=approved)
        )
        return _told(result.output)

    def _reply(self, messages: list[Any], info: AgentInfo) -> ModelResponse:
        told = _results(messages)
        if told is not None:
            return ModelResponse([TextPart(json.dumps(told))])
        return ModelResponse(
            [
                ToolCallPart(tool, arguments, tool_call_id=id_)
                for id_, tool, arguments in self.wishes
            ]
        )

    async def _stream(self, messages: list[Any], info: AgentInfo) -> AsyncIterator[Any]:
        for index, (id_, tool, arguments) in enumerate(self.wishes):
            yield {index: DeltaToolCall(tool, json.dumps(arguments), tool_call_id=id_)}


def _results(messages: list[Any]) -> list[str] | None:
    """What the tools of the last turn said, in the order of the calls."""
    parts = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
    return [_text(part.content) for part in parts] or None


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return json.dumps(tool_return_content_ta.dump_python(content, mode="json"))


def _told(output: Any) -> list[str] | None:
    return None if isinstance(output, DeferredToolRequests) else json.loads(output)
