"""A LangChain agent with a checkpointer on disk, so that a killed run goes on where it was."""

import os
from typing import Any

from agentapprovalprotocol.langgraph import ApprovalMiddleware
from common import DESCRIPTION, TOOL, provider, refund, serve
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver


class Scripted(BaseChatModel):
    """Calls the tool for the order of the conversation, and repeats what the tool returned."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> "Scripted":
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        last = messages[-1]
        if isinstance(last, ToolMessage):
            said = AIMessage(str(last.content))
        else:
            order = str(messages[0].content)
            call = {"name": TOOL, "args": {"order": order}, "id": f"call-{order}"}
            said = AIMessage("It is due.", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=said)])


def main() -> None:
    with SqliteSaver.from_conn_string(os.environ["STATE"] + "/langgraph.sqlite") as saver:
        approvals = ApprovalMiddleware(*provider())
        paying = tool(TOOL, description=DESCRIPTION)(refund)
        agent = create_agent(Scripted(), [paying], middleware=[approvals], checkpointer=saver)

        def handle(order: str) -> str:
            config = {"configurable": {"thread_id": order}}
            begun = agent.get_state(config).next
            asked = None if begun else {"messages": [HumanMessage(order)]}
            done = agent.invoke(asked, config, durability="sync")
            return str(done["messages"][-1].content)

        serve(handle)


if __name__ == "__main__":
    main()
