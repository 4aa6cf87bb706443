"""Anthropic Messages, a plain loop: settle all tool calls of a reply through the ledger.

    reply = await client.messages.create(model=model, messages=messages, tools=tools, ...)
    messages += [{"role": "assistant", "content": reply.content}]          # save them here
    messages += [await settle(kernel, "order-17", messages, {"refund": refund})]

All state is the list of messages. Save it with the assistant's turn *before* `settle`: a pending
`tool_use` cannot be sent, so that turn is the checkpoint. `settle` may be repeated with the same
messages at any time: whatever ran gives its recorded result. The messages before the turn tell a
call from one of an earlier turn that had its id.

Tools that run at Anthropic (`server_tool_use`, connectors) never come here and cannot be gated. Do
not use `run_tools_eagerly`, which runs tools while the reply still streams: settle the final
message of a stream.

A tool may return texts and files: a list of strings, of text, image and document blocks, and of
files (`ayes.schemas.content.attached`). They are blocks of the result, the first time as later.

The package `anthropic` is not needed here: replies are read as its types or as plain JSON.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ayes.adapters.kernel import Kernel, Raised, Ran, calling
from ayes.adapters.names import AskedCall
from ayes.adapters.next_step import Answer, Say, Wait
from ayes.adapters.outputs import output_of
from ayes.ledger.tool_runner import format_exception
from ayes.projections import refusal_texts
from ayes.projections.formats.anthropic.media import read_media, takes
from ayes.projections.formats.anthropic.write import content_blocks
from ayes.projections.formats.common import fitting_content
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import CallRef
from ayes.schemas.tools import spec_of

type Tools = Mapping[str, Callable[..., Any]]


class TurnWaits(Exception):
    """Calls of this turn are not decided yet. Settle the same turn again once they are."""

    def __init__(self, refs: Sequence[CallRef]) -> None:
        self.refs = tuple(refs)
        super().__init__(f"not decided yet: {', '.join(map(str, self.refs))}.")


async def settle(kernel: Kernel, thread: str, reply: Any, tools: Tools) -> dict[str, Any]:
    """The user's message with a result for each tool call of a reply.

    All calls of the turn are requested and those that may run are run, before any is reported to
    wait.

    Args:
        thread: the id of the conversation, the same after a restart.
        reply: the messages up to the assistant's turn, which is the last one; or that turn alone
            (a `Message`, its JSON as a dict, or the saved message). Then a call cannot be told from
            one of an earlier turn with the same id, tool and arguments: the model reads the record
            of that one, with a sentence that says so.
        tools: the functions by name, as they are declared in the request to the model.

    Raises:
        TurnWaits: with the calls that are not decided.
        Unavailable: the ledger does not answer. Nothing has run that is not recorded.
        BadInput: the reply has no content, or a tool call in it without an id, a name or arguments.
    """
    *before, turn = reply if isinstance(reply, list) and reply else [reply]
    earlier = _uses(*before) if isinstance(reply, list) else None
    settling = (_result(kernel, thread, use, tools, earlier) for use in _uses(turn))
    # Each is heard, so that one that raises does not leave another's result unread.
    ended = await asyncio.gather(*settling, return_exceptions=True)
    for one in ended:
        if isinstance(one, BaseException):
            raise one
    if waiting := [one.ref for one in ended if isinstance(one, Wait)]:
        raise TurnWaits(waiting)
    return {"role": "user", "content": ended}


def definitions(tools: Tools) -> list[dict[str, Any]]:
    """The tools as the request to the model declares them."""
    specs = [spec_of(function, name=name) for name, function in tools.items()]
    return [
        {
            "name": spec.name,
            "description": spec.description,
            "input_schema": msgspec.json.decode(spec.schema_text),
        }
        for spec in specs
    ]


def as_json(content: Any) -> list[dict[str, Any]]:
    """The content of a reply as plain JSON, to be saved and sent again."""
    return _blocks({"content": content})


def _uses(*messages: Any) -> list[dict[str, Any]]:
    blocks = (block for message in messages for block in _blocks(message))
    return [block for block in blocks if block.get("type") == "tool_use"]


async def _result(
    kernel: Kernel,
    thread: str,
    use: dict[str, Any],
    tools: Tools,
    earlier: Sequence[dict[str, Any]] | None,
) -> dict[str, Any] | Wait:
    match use:
        case {"id": str(id_), "name": str(name), "input": dict(arguments)} if id_:
            pass
        case _:
            raise BadInput(f"a tool_use needs an id, a name and an input: {use!r}.")
    function = tools.get(name)
    if function is None:
        return _block(id_, refusal_texts.no_such_tool(name), is_error=True)
    text = msgspec.json.encode(arguments).decode()
    equal = None if earlier is None else [_called(one) for one in earlier].count(_called(use))
    asked = AskedCall(thread, id_, name, text, equal)
    settled = await kernel.settle(
        asked, spec_of(function, name=name), calling(function), output=_output
    )
    match settled:
        case Ran(value):
            return _block(id_, _output(value))
        case Raised(problem):
            return _block(id_, format_exception(problem), is_error=True)
        case Say(said, is_error):
            return _block(id_, said, is_error=is_error)
        case Answer(content):
            return _block(id_, content)
        case Wait() as wait:
            return wait


def _called(use: dict[str, Any]) -> tuple[Any, ...]:
    return use.get("id"), use.get("name"), use.get("input")


def _output(value: Any) -> e.Content:
    """What a tool returned: `attached` files, and the blocks of images and documents, are files."""
    return output_of(value, _file)


def _file(item: Any) -> e.Media | None:
    match item:
        case {"type": "image" | "document"}:
            return read_media(item)
        case _:
            return None


def _block(id_: str, content: e.Content, *, is_error: bool = False) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": id_}
    told = fitting_content(content, takes)
    if isinstance(told, tuple):
        block["content"] = content_blocks(told)
    elif told.strip():
        block["content"] = told
    return block | {"is_error": True} if is_error else block


def _blocks(reply: Any) -> list[dict[str, Any]]:
    content = reply.get("content") if isinstance(reply, dict) else getattr(reply, "content", None)
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise BadInput("the reply has no content: give the message that the model sent.")
    return [
        block if isinstance(block, dict) else block.model_dump(mode="json", exclude_none=True)
        for block in content
    ]
