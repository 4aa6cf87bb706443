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

The process that runs a tool hands over its message as it is. Another one gives the recorded texts
and files, as standard content blocks. An artifact is not for the model, and is not recorded.
"""

from collections.abc import Awaitable, Callable
from operator import itemgetter
from typing import Any

import msgspec
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command, interrupt
from msgspec.structs import replace

from ayes.adapters.kernel import Kernel, Raised, Ran, spec_from_schema
from ayes.adapters.names import AskedCall
from ayes.adapters.next_step import Answer, Say, Wait, next_step
from ayes.adapters.outputs import output_of, output_text
from ayes.projections import refusal_texts
from ayes.projections.formats.common import UNKNOWN_TYPE, fitting_content, from_data_url
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import CallRef
from ayes.schemas.tools import ToolSpec

#: Of the value of an interrupt: the name of the call in the ledger.
CALL = "ayes_call"
#: Of files, as blocks and media types have them; any other is a `file`.
_KINDS = ("image", "audio", "video")
_called = itemgetter("id", "name", "args")


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
            _earlier(request),
        )
        match await self.kernel.settle(asked, _spec(request.tool), run, output=_output):
            case Ran(value):
                assert isinstance(value, ToolMessage | Command)
                return value
            case Raised(problem):
                raise problem
            case Answer(content):
                return _message(call, _given(content))
            case Say(text, is_error):
                return _message(call, text, is_error=is_error)
            case Wait(ref):
                # Pauses the graph. A resume is a wake-up: the ledger is read again.
                while isinstance(next_step(await self.kernel.look(ref)), Wait):
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
        if ref and not isinstance(next_step(await kernel.look(CallRef.parse(ref))), Wait):
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


def _earlier(request: ToolCallRequest) -> int | None:
    """How many such calls the messages before the model's last one have; None: there are none."""
    state, call = request.state, request.tool_call
    messages = state.get("messages") if isinstance(state, dict) else getattr(state, "messages", ())
    turns = [one.tool_calls for one in messages or () if isinstance(one, AIMessage)]
    equal = sum(any(_called(one) == _called(call) for one in turn) for turn in turns)
    return equal - 1 if equal else None


def _spec(tool: Any) -> ToolSpec:
    function = convert_to_openai_tool(tool)["function"]
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return spec_from_schema(
        function["name"], function.get("description", ""), msgspec.json.encode(schema).decode()
    )


def _message(
    call: Any, content: str | list[str | dict[Any, Any]], *, is_error: bool = False
) -> ToolMessage:
    status = "error" if is_error else "success"
    return ToolMessage(content, name=call["name"], tool_call_id=call["id"], status=status)


def _output(value: Any) -> e.Content:
    """What a tool returned, for the model."""
    if not isinstance(value, ToolMessage):
        return output_text({"command": repr(value)})
    if isinstance(value.content, str):
        return value.content
    # The standard blocks, into which LangChain translates those of the providers.
    blocks = [
        block["value"] if block["type"] == "non_standard" else block
        for block in value.content_blocks
    ]
    found = output_of(blocks, _file)
    return found if isinstance(found, tuple) else output_text(value.content)


def _file(block: Any) -> e.Media | None:
    if not isinstance(block, dict) or (kind := block.get("type")) not in (*_KINDS, "file"):
        return None
    name = block.get("filename") or (block.get("extras") or {}).get("filename") or ""
    media_type = block.get("mime_type") or (f"{kind}/*" if kind in _KINDS else UNKNOWN_TYPE)
    match block:
        case {"base64": str(data)}:
            return e.Media(media_type, e.Inline(data), name)
        case {"url": str(url)} if url.startswith("data:"):
            return replace(from_data_url(url, kind), name=name)
        case {"url": str(url)}:
            return e.Media(media_type, e.Linked(url), name)
        case _:  # a `file_id` does not say at which provider
            return None


def _given(content: e.Content) -> str | list[str | dict[Any, Any]]:
    """A recorded result as a message has it."""
    told = fitting_content(content, lambda media: not isinstance(media.source, e.Uploaded))
    return told if isinstance(told, str) else [_block(part) for part in told]


def _block(part: e.Text | e.Media) -> dict[Any, Any]:
    if isinstance(part, e.Text):
        return {"type": "text", "text": part.text}
    kind = part.media_type.partition("/")[0]
    block = {"type": kind if kind in _KINDS else "file"}
    if isinstance(part.source, e.Inline):
        block["base64"] = part.source.data
    elif isinstance(part.source, e.Linked):
        block["url"] = part.source.url
    if not part.media_type.endswith("/*") and part.media_type != UNKNOWN_TYPE:
        block["mime_type"] = part.media_type
    return block | ({"filename": part.name} if part.name else {})
