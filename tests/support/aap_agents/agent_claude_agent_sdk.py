"""An agent of the Claude Agent SDK: the released program, and a model's API that is scripted."""

import asyncio
import json
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from agentapprovalprotocol.claude_agent_sdk import ApprovalHooks
from claude_agent_sdk import (
    ClaudeAgentOptions,
    ResultMessage,
    create_sdk_mcp_server,
    query,
    tool,
)
from common import DESCRIPTION, TOOL, provider, refund, serve

NAME = f"mcp__desk__{TOOL}"


def scripted(asked: dict[str, Any]) -> dict[str, Any]:
    """The content block that answers: the call for the order, or what the tool returned."""
    messages = asked["messages"]
    last = messages[-1]["content"]
    for block in last if isinstance(last, list) else []:
        if block["type"] == "tool_result":
            content = block["content"]
            parts = [{"text": content}] if isinstance(content, str) else content
            return {"type": "text", "text": "".join(part.get("text", "") for part in parts)}
    orders = re.findall(r"Pay back the order <(.*?)>", json.dumps(messages))
    if NAME in [one["name"] for one in asked.get("tools", ())] and orders:
        order = orders[-1]
        given = {"order": order}
        return {"type": "tool_use", "id": f"toolu_{order}", "name": NAME, "input": given}
    return {"type": "text", "text": "-"}


def events(block: dict[str, Any]) -> list[dict[str, Any]]:
    """An answer as the API streams it."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "scripted"}
    message |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    if block["type"] == "text":
        empty: dict[str, Any] = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": block["text"]}
        why = "end_turn"
    else:
        empty = block | {"input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        why = "tool_use"
    ended = {"stop_reason": why, "stop_sequence": None}
    return [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": empty},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]


class Api(BaseHTTPRequestHandler):
    """The model's API, as far as the program asks it."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self.path.partition("?")[0].endswith("/messages"):
            self._send("application/json", b'{"input_tokens": 1}')
            return
        block = scripted(body)
        if body.get("stream"):
            lines = (f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events(block))
            self._send("text/event-stream", "".join(lines).encode())
            return
        [begun, *_] = events(block)
        ended = {"content": [block], "stop_reason": "end_turn"}
        self._send("application/json", json.dumps(begun["message"] | ended).encode())

    def _send(self, kind: str, content: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@tool(TOOL, DESCRIPTION, {"order": str})
async def paying(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": refund(arguments["order"])}]}


def main() -> None:
    api = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=api.serve_forever, daemon=True).start()
    folder = os.environ["STATE"]
    environment = {
        "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{api.server_port}",
        "ANTHROPIC_API_KEY": "scripted",
        "CLAUDE_CONFIG_DIR": folder,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "ENABLE_TOOL_SEARCH": "false",  # else the model has to look for its tool first
    }
    options = ApprovalHooks(*provider()).options(
        ClaudeAgentOptions(
            mcp_servers={"desk": create_sdk_mcp_server("desk", tools=[paying])},
            cwd=folder,
            env=environment,
        )
    )

    async def run(order: str) -> str:
        read = ""
        async for message in query(prompt=f"Pay back the order <{order}>", options=options):
            if isinstance(message, ResultMessage):
                read = str(message.result)
        return read

    with asyncio.Runner() as runner:
        serve(lambda order: runner.run(run(order)))


main()
