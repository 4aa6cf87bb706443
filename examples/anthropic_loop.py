"""A loop over Anthropic's Messages whose tool calls go through the ledger. The model is a script.

python examples/anthropic_loop.py                       # asks, and ends
ayes approve shop/order-17/toolu_1 --as NAME
python examples/anthropic_loop.py                       # goes on where it stopped
"""

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ayes import ApprovalsError, Ledger
from ayes.adapters.anthropic import TurnWaits, as_json, definitions, settle
from ayes.adapters.kernel import Kernel

STATE = Path("messages.json")


def refund(order: str, amount: int) -> str:
    """Give money back for an order."""
    return f"{amount} given back for order {order}"


class ScriptedMessages:
    """In place of `AsyncAnthropic().messages`: one tool call, then a text with its result."""

    async def create(self, *, messages: list[Any], **_: Any) -> Any:
        last = messages[-1]["content"]
        if isinstance(last, list):
            return SimpleNamespace(content=[{"type": "text", "text": last[0]["content"]}])
        call = {"id": "toolu_1", "name": "refund", "input": {"order": "A-17", "amount": 480}}
        return SimpleNamespace(content=[{"type": "tool_use", **call}])


def save(messages: list[Any]) -> None:
    STATE.write_text(json.dumps(messages))


client = SimpleNamespace(messages=ScriptedMessages())  # AsyncAnthropic()


async def main(messages: list[Any]) -> None:
    async with Ledger.connect(name="desk") as ledger:
        kernel, tools = Kernel(ledger, "shop", requester="ben"), {"refund": refund}
        while True:
            if messages[-1]["role"] == "user":
                reply = await client.messages.create(
                    model="claude", max_tokens=999, messages=messages, tools=definitions(tools)
                )
                messages.append({"role": "assistant", "content": as_json(reply.content)})
                save(messages)  # before anybody is asked
            if not any(block["type"] == "tool_use" for block in messages[-1]["content"]):
                break
            messages.append(await settle(kernel, "order-17", messages, tools))
    print(messages[-1]["content"][0]["text"])


try:
    asked = [{"role": "user", "content": "Refund order A-17."}]
    asyncio.run(main(json.loads(STATE.read_text()) if STATE.exists() else asked))
except TurnWaits as waiting:
    print(*(f"{ref} waits for people: ayes approve {ref} --as NAME" for ref in waiting.refs))
except ApprovalsError as problem:
    sys.exit(f"error: {problem}")
