"""An agent of the OpenAI Agents SDK. A killed run begins again, with the same ids."""

import asyncio
import json
from typing import Any

from agentapprovalprotocol.openai_agents import Approvals
from agents import Agent, Model, ModelResponse, Usage, function_tool, set_tracing_disabled
from common import TOOL, provider, refund, serve
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)


class Scripted(Model):
    """Calls the tool for the order of the conversation, and repeats what the tool returned."""

    async def get_response(self, *_: Any, **asked: Any) -> ModelResponse:
        last = asked["input"] if isinstance(asked["input"], str) else asked["input"][-1]
        if isinstance(last, dict) and last.get("type") == "function_call_output":
            text = ResponseOutputText(text=str(last["output"]), type="output_text", annotations=[])
            said: Any = ResponseOutputMessage(
                id="m", content=[text], role="assistant", status="completed", type="message"
            )
        else:
            order = last if isinstance(last, str) else last["content"]
            said = ResponseFunctionToolCall(
                arguments=json.dumps({"order": order}),
                call_id=f"call-{order}",
                name=TOOL,
                type="function_call",
            )
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


def main() -> None:
    set_tracing_disabled(True)
    approvals = Approvals(*provider())
    agent = approvals.protect(Agent("desk", model=Scripted(), tools=[function_tool(refund)]))
    with asyncio.Runner() as runner:

        def handle(order: str) -> str:
            return str(runner.run(approvals.run(agent, order, run_id=order)).final_output)

        serve(handle)


main()
