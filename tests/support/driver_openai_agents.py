"""An agent of the OpenAI Agents SDK with a scripted model."""

import base64
import json
from pathlib import Path
from typing import Any

from agents import Agent as OpenAIAgent
from agents import (
    ModelBehaviorError,
    Runner,
    RunState,
    ToolOutputImage,
    ToolOutputText,
    UserError,
    function_tool,
    set_tracing_disabled,
)
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from drivers import CAPTION, CHART, Driver

from ayes.adapters.openai_agents import Approvals, CallWaits, run_config
from ayes.adapters.states import StateFiles

set_tracing_disabled(disabled=True)


class Agent(Driver):
    """Its state is the run's, as `Approvals` keeps it."""

    refuses_no_id = ModelBehaviorError

    def agent(self) -> OpenAIAgent[Any]:
        self.approvals = Approvals(self.kernel, StateFiles(self.folder))
        model = ScriptedModel([ModelStep.respond(self._reply)] * 2)
        tools = [
            function_tool(one, failure_error_function=lambda _context, problem: str(problem))
            for one in (self.refund, self.hurry, self.chart)
        ]
        return self.approvals.protect(OpenAIAgent(name="desk", model=model, tools=tools))

    def chart(self, amount: float) -> Any:
        """Draw a chart."""
        self.runs.append({"amount": amount})
        url = f"data:image/png;base64,{base64.b64encode(CHART).decode()}"
        return [ToolOutputText(text=CAPTION), ToolOutputImage(image_url=url)]

    async def start(self, *, stream: bool = False) -> list[str] | None:
        agent, asked = self.agent(), "Refund order A-17."
        if not stream:
            return self._ended(await self.approvals.run(agent, asked, thread=self.thread))
        result = Runner.run_streamed(agent, asked, run_config=run_config(self.thread))
        async for _ in result.stream_events():
            pass
        await self.approvals.park(result, thread=self.thread)
        return _told(result)

    async def resume(self) -> list[str] | None:
        agent = self.agent()
        async for result in self.approvals.resume(agent):
            return self._ended(result)
        return None

    async def more(self) -> list[str] | None:
        items = [*json.loads(self.history.read_text()), {"role": "user", "content": "And now?"}]
        agent = self.agent()
        return self._ended(await self.approvals.run(agent, items, thread=self.thread))

    @property
    def history(self) -> Path:
        return self.folder / "items.txt"

    def _ended(self, result: Any) -> list[str] | None:
        """What came of a run, whose items are kept if it has ended."""
        if not result.interruptions:
            self.history.write_text(json.dumps(result.to_input_list()))
        return _told(result)

    async def forge(self, arguments: dict[str, Any]) -> list[str] | None:
        agent = self.agent()
        [saved] = await self.approvals.states.saved()
        told = None
        for forged in (saved.state, _with(arguments, saved.state)):
            state = await RunState.from_string(agent, forged)
            for item in state.get_interruptions():
                state.approve(item, always_approve=True)
            try:
                told = _told(await Runner.run(agent, state, run_config=run_config(self.thread)))
            except UserError as problem:
                if not isinstance(problem.__cause__, CallWaits):
                    raise
                told = None
        return told

    def _reply(self, call: Any) -> ModelStep:
        items = call.input if isinstance(call.input, list) else []
        said = [place for place, one in enumerate(items) if one.get("role") == "user"]
        turn = items[said[-1] :] if said else items
        told = [one["output"] for one in turn if one.get("type") == "function_call_output"]
        if told:
            return ModelStep(output=[assistant_message(json.dumps(told))])
        return ModelStep(
            output=[
                function_call(tool, arguments, call_id=id_) for id_, tool, arguments in self.wishes
            ]
        )


def _told(result: Any) -> list[str] | None:
    return None if result.interruptions else json.loads(result.final_output)


def _with(arguments: dict[str, Any], state: str) -> str:
    """The state with other arguments in each call, and without the SDK's fingerprints of them."""

    def changed(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {
            key: json.dumps(arguments) if key == "arguments" and isinstance(value, str) else value
            for key, value in pairs
            if key != "tool_invocations"
        }

    return json.dumps(json.loads(state, object_pairs_hook=changed))
