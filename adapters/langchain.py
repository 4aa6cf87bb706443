"""LangChain and LangGraph: a middleware by which every tool call goes through the ledger.

    agent = create_agent(model, tools=[refund], middleware=[Approvals(kernel)], checkpointer=saver)
    config = {"configurable": {"thread_id": "order-17"}}
    await agent.ainvoke({"messages": [("user", "Refund order A-17.")]}, config)
    ...
    await resume(agent, kernel, "order-17")         # any time, also in another process

A call that waits interrupts the graph, whose checkpointer keeps everything. LangGraph runs the node
again from its start when it is resumed, so the middleware asks the ledger again; the value it is
resumed with is not looked at. List it last of the middlewares that change arguments: what it is
handed is what is approved. The graph must be used asynchronously.

The process that runs a tool hands over its message as it is. Another one gives the recorded text.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command, interrupt

from ayes.adapters.kernel import Kernel, Raised, Ran, output_text, spec_from_schema
from ayes.adapters.names import AskedCall
from ayes.adapters.verdicts import Answer, Say, Wait, verdict
from ayes.projections import refusal_texts
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import CallRef
from ayes.schemas.tools import ToolSpec

#: Of the value of an interrupt: the name of the call in the ledger.
CALL = "ayes_call"


class Approvals(AgentMiddleware[Any, Any]):
    """Settles each tool call of an agent through the ledger."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Run the tool if its call is approved; interrupt the graph while it is not decided.

        Raises:
            BadInput: the graph has no checkpointer or the run no `thread_id`.
            Unavailable: the ledger does not answer. Nothing has run.
        """
        call = request.tool_call
        if request.tool is None:
            return _message(call, refusal_texts.no_such_tool(call["name"]), is_error=True)

        async def run(arguments: dict[str, Any]) -> Any:
            return await handler(request.override(tool_call={**call, "args": arguments}))

        asked = AskedCall(
            _thread(request),
            call["id"] or "",
            call["name"],
            msgspec.json.encode(call["args"]).decode(),
        )
        match await self.kernel.settle(asked, _spec(request.tool), run, text=_text):
            case Ran(value):
                assert isinstance(value, ToolMessage | Command)
                return value
            case Raised(problem):
                raise problem
            case Answer(text):
                return _message(call, text)
            case Say(text, is_error):
                return _message(call, text, is_error=is_error)
            case Wait(ref):
                # Pauses the graph. A resume is a wake-up: the ledger is read again.
                while isinstance(verdict(await self.kernel.look(ref)), Wait):
                    interrupt({CALL: str(ref)})
                return await self.awrap_tool_call(request, handler)


async def resume(agent: Any, kernel: Kernel, thread: str) -> dict[str, Any] | None:
    """Continue a graph if a call that it waits for is decided; None if it still waits.

    Args:
        agent: a graph with a checkpointer.
        thread: its `thread_id`.

    Raises:
        Unavailable: the ledger does not answer.
    """
    config = {"configurable": {"thread_id": thread}}
    state = await agent.aget_state(config)
    due = {}
    for one in state.interrupts:
        ref = one.value.get(CALL) if isinstance(one.value, dict) else None
        if ref and not isinstance(verdict(await kernel.look(CallRef.parse(ref))), Wait):
            due[one.id] = "look at the ledger"
    if due:
        return dict(await agent.ainvoke(Command(resume=due), config))
    if state.next and not state.interrupts:  # it died in the middle of a step
        return dict(await agent.ainvoke(None, config))
    return None


def _thread(request: ToolCallRequest) -> str:
    info = getattr(request.runtime, "execution_info", None)
    thread = getattr(info, "thread_id", None)
    if not thread:
        raise BadInput(
            "the graph has no thread that outlives it: give it a checkpointer, and each run a "
            "`thread_id`."
        )
    return str(thread)


def _spec(tool: Any) -> ToolSpec:
    function = convert_to_openai_tool(tool)["function"]
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return spec_from_schema(
        function["name"], function.get("description", ""), msgspec.json.encode(schema).decode()
    )


def _message(call: Any, text: str, *, is_error: bool = False) -> ToolMessage:
    status = "error" if is_error else "success"
    return ToolMessage(text, name=call["name"], tool_call_id=call["id"], status=status)


def _text(value: Any) -> str:
    if isinstance(value, ToolMessage):
        return output_text(value.content)
    return output_text({"command": repr(value)})
