"""The plain loop over Anthropic's client, whose network is a script."""

import base64
import json
from typing import Any

import anthropic
import httpx2
from drivers import CAPTION, CHART, Driver

from ayes.adapters.anthropic import TurnWaits, as_json, definitions, settle
from ayes.schemas.errors import BadInput


class Agent(Driver):
    """Its state is the list of messages, saved before people are asked."""

    refuses_no_id = BadInput

    @property
    def file(self):
        return self.folder / "messages.json"

    @property
    def tools(self) -> dict[str, Any]:
        return {"refund": self.refund, "hurry": self.hurry, "chart": self.chart}

    def chart(self, amount: float) -> Any:
        self.runs.append({"amount": amount})
        data = base64.b64encode(CHART).decode()
        source = {"type": "base64", "media_type": "image/png", "data": data}
        return [{"type": "text", "text": CAPTION}, {"type": "image", "source": source}]

    def client(self) -> anthropic.AsyncAnthropic:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self._model))
        return anthropic.AsyncAnthropic(api_key="none", http_client=http, max_retries=0)

    async def start(self, *, stream: bool = False) -> list[str] | None:
        messages = [{"role": "user", "content": "Refund order A-17."}]
        return await self._go_on(messages, stream=stream)

    async def resume(self) -> list[str] | None:
        return await self._go_on(json.loads(self.file.read_text()))

    async def more(self) -> list[str] | None:
        messages = json.loads(self.file.read_text())
        return await self._go_on([*messages, {"role": "user", "content": "And now?"}])

    async def forge(self, arguments: dict[str, Any]) -> list[str] | None:
        """Somebody changes the saved turn, the only thing that this loop is resumed with."""
        messages = json.loads(self.file.read_text())
        changed = json.loads(json.dumps(messages))
        for block in changed[-1]["content"]:
            if block["type"] == "tool_use":
                block["input"] = arguments
        told = await self._go_on(changed)
        self.file.write_text(json.dumps(messages))
        return told

    async def _go_on(
        self, messages: list[dict[str, Any]], *, stream: bool = False
    ) -> list[str] | None:
        async with self.client() as client:
            while True:
                if messages[-1]["role"] == "user":
                    reply = await self._reply(client, messages, stream=stream)
                    messages.append({"role": "assistant", "content": as_json(reply.content)})
                    self.file.write_text(json.dumps(messages))
                    if reply.stop_reason != "tool_use":
                        return json.loads(reply.content[0].text)
                try:
                    messages.append(await settle(self.kernel, self.thread, messages, self.tools))
                except TurnWaits:
                    return None

    async def _reply(self, client, messages, *, stream: bool):
        request = {
            "model": "scripted",
            "max_tokens": 100,
            "messages": messages,
            "tools": definitions(self.tools),
        }
        if not stream:
            return await client.messages.create(**request)
        async with client.messages.stream(**request) as streamed:
            return await streamed.get_final_message()

    def _model(self, request: httpx2.Request) -> httpx2.Response:
        asked = json.loads(request.content)
        last = asked["messages"][-1]["content"]
        if isinstance(last, list):
            told = [block.get("content", "") for block in last]
            content = [{"type": "text", "text": json.dumps(told)}]
        else:
            content = [
                {"type": "tool_use", "id": id_, "name": tool, "input": arguments}
                for id_, tool, arguments in self.wishes
            ]
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "scripted",
            "content": content,
            "stop_reason": "end_turn" if isinstance(last, list) else "tool_use",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
        if not asked.get("stream"):
            return httpx2.Response(200, json=message)
        return httpx2.Response(
            200, text=_events(message), headers={"content-type": "text/event-stream"}
        )


def _events(message: dict[str, Any]) -> str:
    """The message as Anthropic streams it."""
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message | {"content": [], "stop_reason": None}}
    ]
    for index, block in enumerate(message["content"]):
        begun = block | ({"input": {}} if block["type"] == "tool_use" else {"text": ""})
        delta = (
            {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            if block["type"] == "tool_use"
            else {"type": "text_delta", "text": block["text"]}
        )
        events += [
            {"type": "content_block_start", "index": index, "content_block": begun},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    events += [
        {
            "type": "message_delta",
            "delta": {"stop_reason": message["stop_reason"], "stop_sequence": None},
            "usage": {"output_tokens": 1},
        },
        {"type": "message_stop"},
    ]
    return "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events)
