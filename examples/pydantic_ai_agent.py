"""An agent of Pydantic AI whose tool calls go through the ledger. The model is a script.

python examples/pydantic_ai_agent.py                    # asks, and ends
ayes approve shop/order-18/call_1 --as NAME
python examples/pydantic_ai_agent.py                    # goes on where it stopped
"""

import asyncio
import sys
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.tools import DeferredToolRequests

from ayes import ApprovalsError, Ledger
from ayes.adapters.kernel import Kernel
from ayes.adapters.pydantic_ai import Approvals
from ayes.adapters.states import StateFiles


def refund(order: str, amount: int) -> str:
    """Give money back for an order."""
    return f"{amount} given back for order {order}"


def script(messages: list[Any], _info: Any) -> ModelResponse:
    """In place of a model: one tool call, then a text with its result."""
    last = messages[-1].parts[-1]
    if last.part_kind == "tool-return":
        return ModelResponse([TextPart(last.content)])
    arguments = {"order": "A-18", "amount": 480}
    return ModelResponse([ToolCallPart("refund", arguments, tool_call_id="call_1")])


model = FunctionModel(script)  # "anthropic:claude-opus-5"


async def main() -> None:
    async with Ledger.connect(name="desk") as ledger:
        kernel = Kernel(ledger, "shop", requester="ben")
        approvals = Approvals(kernel, StateFiles("paused"))
        agent = Agent(
            model,
            tools=[refund],
            output_type=[str, DeferredToolRequests],
            capabilities=[approvals],
        )
        if not await approvals.states.saved():
            await approvals.run(agent, "Refund order A-18.", thread="order-18")
        async for result in approvals.resume(agent):
            print(result.output)
        for saved in await approvals.states.saved():
            print(
                *(f"{ref} waits for people: ayes approve {ref} --as NAME" for ref in saved.waiting)
            )


try:
    asyncio.run(main())
except ApprovalsError as problem:
    sys.exit(f"error: {problem}")
