"""A Pydantic AI agent. A killed run begins again, with the same conversation and call ids."""

import asyncio

from agentapprovalprotocol.pydantic_ai import ApprovalCapability
from common import TOOL, provider, refund, serve
from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Calls the tool for the order of the conversation, and repeats what the tool returned."""
    last = messages[-1].parts[-1]
    if isinstance(last, UserPromptPart):
        order = str(last.content)
        call = ToolCallPart(TOOL, {"order": order}, tool_call_id=f"call-{order}")
        return ModelResponse([TextPart("It is due."), call])
    returned = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
    return ModelResponse([TextPart(str((returned or messages[-1].parts)[-1].content))])


def main() -> None:
    approvals = ApprovalCapability(*provider())
    agent = Agent(FunctionModel(scripted), tools=[refund], capabilities=[approvals])
    with asyncio.Runner() as runner:
        serve(lambda order: runner.run(agent.run(order, conversation_id=order)).output)


main()
