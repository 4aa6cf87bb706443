"""An agent of LangChain with a scripted model and a checkpointer in a file."""

import base64
import json
from contextlib import asynccontextmanager
from typing import Any

from drivers import CAPTION, CHART, Driver
from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command

from ayes.adapters.langchain import Approvals, resume

CONFIG = {"configurable": {"thread_id": Driver.thread}}


class Script(BaseChatModel):
    """Calls the tools of its wishes, then reports what they said."""

    wishes: list[Any]

    @property
    def _llm_type(self) -> str:
        return "script"

    def bind_tools(self, tools: Any, **more: Any) -> Any:
        return self

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **more: Any):
        told = []
        for message in reversed(messages):
            if not isinstance(message, ToolMessage):
                break
            told.insert(0, message.content)
        calls = [{"name": tool, "args": args, "id": id_} for id_, tool, args in self.wishes]
        answer = AIMessage(json.dumps(told)) if told else AIMessage("", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=answer)])


class Agent(Driver):
    """Its state is the checkpointer's database."""

    @asynccontextmanager
    async def agent(self):
        async with AsyncSqliteSaver.from_conn_string(str(self.folder / "graph.db")) as saver:
            tools = [StructuredTool.from_function(one) for one in self.tools]
            yield create_agent(
                Script(wishes=list(self.wishes)),
                tools=tools,
                middleware=[Approvals(self.kernel)],
                checkpointer=saver,
            )

    @property
    def tools(self) -> tuple[Any, ...]:
        return self.refund, self.hurry, self.chart

    def chart(self, amount: float) -> Any:
        """Draw a chart."""
        self.runs.append({"amount": amount})
        data = base64.b64encode(CHART).decode()
        image = {"type": "image", "base64": data, "mime_type": "image/png"}
        return [{"type": "text", "text": CAPTION}, image]

    async def start(self, *, stream: bool = False) -> list[str] | None:
        asked = {"messages": [("user", "Refund order A-17.")]}
        async with self.agent() as agent:
            if not stream:
                return _told(await agent.ainvoke(asked, CONFIG))
            async for _ in agent.astream(asked, CONFIG, stream_mode="messages"):
                pass
            return _told((await agent.aget_state(CONFIG)).values)

    async def resume(self) -> list[str] | None:
        async with self.agent() as agent:
            result = await resume(agent, self.kernel, self.thread)
            if result is None and not (await agent.aget_state(CONFIG)).next:
                result = (await agent.aget_state(CONFIG)).values  # another process finished it
            return None if result is None else _told(result)

    async def more(self) -> list[str] | None:
        async with self.agent() as agent:
            return _told(await agent.ainvoke({"messages": [("user", "And now?")]}, CONFIG))

    async def forge(self, arguments: dict[str, Any]) -> list[str] | None:
        decision = {"type": "edit", "edited_action": {"name": "refund", "args": arguments}}
        async with self.agent() as agent:
            return _told(await agent.ainvoke(Command(resume={"decisions": [decision]}), CONFIG))

    def saved(self) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in self.folder.glob("graph.db*")}

    def restore(self, saved: dict[str, bytes]) -> None:
        for file in self.folder.glob("graph.db*"):
            file.unlink()
        for name, content in saved.items():
            (self.folder / name).write_bytes(content)


def _told(result: dict[str, Any]) -> list[str] | None:
    last = result["messages"][-1]
    is_end = isinstance(last, AIMessage) and not last.tool_calls
    return json.loads(last.content) if is_end else None
