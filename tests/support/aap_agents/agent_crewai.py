"""A CrewAI agent, whose model writes its calls as text. It has no ids of calls."""

import os

os.environ |= {"OTEL_SDK_DISABLED": "true", "CREWAI_DISABLE_TELEMETRY": "true"}
os.environ |= {"CREWAI_TRACING_ENABLED": "false", "CREWAI_STORAGE_DIR": os.environ["STATE"]}

import contextlib
import json
import re
import sys
from typing import Any

from agentapprovalprotocol.crewai import ApprovalHooks
from common import DESCRIPTION, TOOL, provider, refund, serve
from crewai import Agent, BaseLLM, Crew, Task
from crewai.tools import tool


class Scripted(BaseLLM):
    """Calls the tool for the order of the task, and repeats what the tool returned."""

    def call(self, messages: Any, *_: Any, **__: Any) -> str:
        # The instructions have an example of an observation.
        text = "\n".join(one["content"] for one in messages if one["role"] != "system")
        if found := re.findall(r"Observation: (.*)", text):
            return f"Thought: I know now.\nFinal Answer: {found[-1]}"
        [order] = re.findall(r"Pay back the order <(.*?)>", text)[:1]
        return f"Thought: It is due.\nAction: {TOOL}\nAction Input: {json.dumps({'order': order})}"

    def supports_function_calling(self) -> bool:
        return False

    def supports_stop_words(self) -> bool:
        return False


def main() -> None:
    ApprovalHooks(*provider()).install()
    paying = tool(TOOL)(refund)
    paying.description = DESCRIPTION

    def handle(order: str) -> str:
        desk = Agent(
            role="desk", goal="pay", backstory="-", llm=Scripted(model="scripted"), tools=[paying]
        )
        task = Task(description=f"Pay back the order <{order}>", expected_output="-", agent=desk)
        with contextlib.redirect_stdout(sys.stderr):
            return str(Crew(agents=[desk], tasks=[task]).kickoff())

    serve(handle)


main()
