"""An agent of LangChain whose tool calls go through the ledger. The model is a script.

python examples/langchain_agent.py                      # asks, and ends
ayes approve shop/order-19/call_1 --as NAME
python examples/langchain_agent.py                      # goes on where it stopped
"""

import asyncio
import sys
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from ayes import ApprovalsError, Ledger
from ayes.adapters.kernel import Kernel
from ayes.adapters.langchain import Approvals, resume


def refund(order: str, amount: int) -> str:
    """Give money back for an order."""
    return f"{amount} given back for order {order}"


class Script(BaseChatModel):
    """In place of a model: one tool call, then a text with its result."""

    _llm_type = "script"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
        last, arguments = messages[-1], {"order": "A-19", "amount": 480}
        call = {"name": "refund", "args": arguments, "id": "call_1"}
        wish = AIMessage("", tool_calls=[call])
        reply = AIMessage(last.content) if isinstance(last, ToolMessage) else wish
        return ChatResult(generations=[ChatGeneration(message=reply)])


model = Script()  # "anthropic:claude-opus-5"
config = {"configurable": {"thread_id": "order-19"}}


async def run(ledger: Ledger, saver: AsyncSqliteSaver) -> None:
    kernel = Kernel(ledger, "shop", requester="ben")
    agent = create_agent(model, tools=[refund], middleware=[Approvals(kernel)], checkpointer=saver)
    state = await agent.aget_state(config)
    if not state.values:
        await agent.ainvoke({"messages": [("user", "Refund order A-19.")]}, config)
    result = await resume(agent, kernel, "order-19")
    if result:
        print(result["messages"][-1].content)
    for one in (await agent.aget_state(config)).interrupts:
        ref = one.value["ayes_call"]
        print(f"{ref} waits for people: ayes approve {ref} --as NAME")


async def main() -> None:
    async with (
        Ledger.connect(name="desk") as ledger,
        AsyncSqliteSaver.from_conn_string("graph.db") as saver,
    ):
        await run(ledger, saver)


try:
    asyncio.run(main())
except ApprovalsError as problem:
    sys.exit(f"error: {problem}")
