"""A scripted model behind Claude Code: it calls one tool, then says what it was told."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any


class Script:
    """One call, by default of Bash. `told` has what the model read as results."""

    def __init__(
        self, command: str = "", *, tool: str = "Bash", arguments: dict[str, Any] | None = None
    ) -> None:
        self.tool = tool
        self.arguments = arguments or {"command": command, "description": "Does it."}
        self.told: list[str] = []
        self.use = f"toolu_{uuid.uuid4().hex}"

    def reply(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The content of the next turn."""
        if not any(tool.get("name") == self.tool for tool in asked.get("tools", [])):
            return {"type": "text", "text": "ok"}
        last = asked["messages"][-1]["content"]
        results = [
            one for one in last if isinstance(one, dict) and one.get("tool_use_id") == self.use
        ]
        if results:
            self.told.append(json.dumps(results[0]["content"]))
            return {"type": "text", "text": "Done."}
        return {"type": "tool_use", "id": self.use, "name": self.tool, "input": self.arguments}


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[str]:
    """The address of the scripted model."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        length = next(
            (
                int(line.partition(":")[2])
                for line in head.splitlines()
                if line.lower().startswith("content-length:")
            ),
            0,
        )
        raw = await reader.readexactly(length)
        kind, text = "application/json", "{}"
        if "/v1/messages" in head.split("\r\n")[0]:
            asked = json.loads(raw)
            content = script.reply(asked)
            if asked.get("stream"):
                kind, text = "text/event-stream", "".join(_events(content))
            else:
                text = json.dumps(_message([content], "end_turn"))
        body = text.encode()
        writer.write(
            f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n".encode()
            + body
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def _message(content: list[Any], stop: str | None) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "script",
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def _events(content: dict[str, Any]) -> Iterator[str]:
    is_call = content["type"] == "tool_use"
    empty = content | ({"input": {}} if is_call else {"text": ""})
    delta = (
        {"type": "input_json_delta", "partial_json": json.dumps(content["input"])}
        if is_call
        else {"type": "text_delta", "text": content["text"]}
    )
    stop = {"stop_reason": "tool_use" if is_call else "end_turn", "stop_sequence": None}
    for event in (
        {"type": "message_start", "message": _message([], None)},
        {"type": "content_block_start", "index": 0, "content_block": empty},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ):
        yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
