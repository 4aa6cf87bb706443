"""An agent of the OpenAI Agents SDK whose tool calls go through the ledger. The model is a script.

python examples/openai_agents_agent.py                  # asks, and ends
ayes approve shop/order-20/call_1 --as NAME
python examples/openai_agents_agent.py                  # goes on where it stopped
"""

import asyncio
import sys
from typing import Any

from agents import Agent, function_tool, set_tracing_disabled
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

from ayes import ApprovalsError, Ledger
from ayes.adapters.kernel import Kernel
from ayes.adapters.openai_agents import Approvals
from ayes.adapters.states import StateFiles

set_tracing_disabled(disabled=True)


@function_tool
def refund(order: str, amount: int) -> str:
    """Give money back for an order."""
    return f"{amount} given back for order {order}"


def script(call: Any) -> ModelStep:
    """In place of a model: one tool call, then a text with its result."""
    last = call.input[-1] if isinstance(call.input, list) else {}
    if last.get("type") == "function_call_output":
        return ModelStep(output=[assistant_message(last["output"])])
    arguments = {"order": "A-20", "amount": 480}
    return ModelStep(output=[function_call("refund", arguments, call_id="call_1")])


model = ScriptedModel([ModelStep.respond(script)] * 2)  # "gpt-5"


async def main() -> None:
    async with Ledger.connect(name="desk") as ledger:
        kernel = Kernel(ledger, "shop", requester="ben")
        approvals = Approvals(kernel, StateFiles("paused"))
        agent = approvals.protect(Agent(name="desk", model=model, tools=[refund]))
        if not await approvals.states.saved():
            await approvals.run(agent, "Refund order A-20.", thread="order-20")
        async for result in approvals.resume(agent):
            print(result.final_output)
        for saved in await approvals.states.saved():
            print(
                *(f"{ref} waits for people: ayes approve {ref} --as NAME" for ref in saved.waiting)
            )


try:
    asyncio.run(main())
except ApprovalsError as problem:
    sys.exit(f"error: {problem}")
