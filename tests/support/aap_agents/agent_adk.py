"""An agent of Google's ADK. It names its runs anew, so a killed one is another call."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from agentapprovalprotocol.adk import ApprovalPlugin, check_coverage
from common import TOOL, provider, refund, serve
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types


class Scripted(BaseLlm):
    """Calls the tool for the order of the conversation, and repeats what the tool returned."""

    async def generate_content_async(
        self, llm_request: Any, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        last = llm_request.contents[-1].parts[-1]
        if last.function_response is not None:
            returned = last.function_response.response
            text = str(returned.get("error") or returned.get("result"))
            part = types.Part(text=text)
        else:
            order = last.text
            call = types.FunctionCall(id=f"call-{order}", name=TOOL, args={"order": order})
            part = types.Part(function_call=call)
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def main() -> None:
    approvals = ApprovalPlugin(*provider())
    desk = LlmAgent(name="desk", model=Scripted(model="scripted"), tools=[refund])
    app = App(name="desk", root_agent=desk, plugins=[approvals])
    check_coverage(app, approvals)
    runner = InMemoryRunner(app=app)

    async def run(order: str) -> str:
        sessions = runner.session_service
        session = await sessions.create_session(app_name="desk", user_id="u")
        asked = types.Content(role="user", parts=[types.Part(text=order)])
        text = ""
        async for event in runner.run_async(user_id="u", session_id=session.id, new_message=asked):
            parts = (event.content.parts if event.content else None) or []
            text = next((part.text for part in parts if part.text), text)
        return text

    with asyncio.Runner() as running:
        serve(lambda order: running.run(run(order)))


main()
