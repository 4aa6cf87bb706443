"""Agents of the OpenAI Agents SDK: what `protect` refuses, and what it hands over to."""

from typing import Any

import pytest

pytest.importorskip("agents")

from agents import Agent, WebSearchTool, function_tool, handoff
from agents.mcp import MCPServerStdio
from asking_agent import POLICY
from shop import Shop

from ayes.adapters.kernel import Kernel
from ayes.adapters.openai_agents import Approvals, run_config
from ayes.adapters.states import StateFiles
from ayes.ledger.clients.services import Ledger
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import CallRef

pytestmark = pytest.mark.log("memory")


@function_tool
def refund(amount: float) -> str:
    """Pay money back."""
    raise ValueError("nothing to pay back")


OTHER: Agent[Any] = Agent(name="other", tools=[refund])


@pytest.fixture
def approvals(port, tmp_path) -> Approvals:
    ledger = Ledger(port, e.Author(kind="service", name="desk"))
    return Approvals(Kernel(ledger, "shop", requester="rita", patience_s=10), StateFiles(tmp_path))


@pytest.mark.parametrize(
    ("agent", "why"),
    [
        (Agent(name="desk", tools=[WebSearchTool()]), "cannot be stopped here"),
        (Agent(name="desk", tools=[OTHER.as_tool("ask", "Asks.")]), "an agent of its own"),
        (Agent(name="desk", handoffs=[handoff(OTHER)]), "List the agent itself"),
        (Agent(name="desk", mcp_servers=[MCPServerStdio({"command": "x"})]), "MCP gateway"),
    ],
    ids=["hosted", "agent", "handoff", "mcp"],
)
async def test_what_nobody_could_stop_is_refused(approvals, agent, why):
    """A tool that runs without coming here is refused, and the sentence says what to do."""
    with pytest.raises(BadInput, match=why):
        approvals.protect(agent)


async def test_agents_that_hand_over_to_each_other_are_protected(approvals):
    """Also in a circle. The agents that were given stay as they are."""
    desk: Agent[Any] = Agent(name="desk")
    back: Agent[Any] = Agent(name="back", tools=[refund], handoffs=[desk])
    desk.handoffs.append(back)
    protected = approvals.protect(desk)
    [other] = protected.handoffs
    assert other.handoffs == [protected]
    assert [tool.needs_approval for tool in other.tools] == [True]
    assert refund.needs_approval is False


async def test_a_run_needs_a_thread():
    """Without an id a call would have another name after a restart."""
    with pytest.raises(BadInput, match="give the run a thread"):
        run_config("")


async def test_an_error_is_recorded_as_one(approvals, port):
    """The SDK tells the model a text of its own, and the ledger has the error of the tool."""
    from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

    shop = Shop(port)
    await shop.open(POLICY)
    steps = [
        ModelStep(output=[function_call("refund", {"amount": 1}, call_id="call_9")]),
        ModelStep(output=[assistant_message("Done.")]),
    ]
    agent = Agent(name="desk", model=ScriptedModel(steps), tools=[refund])
    async with shop.gates():
        result = await approvals.run(approvals.protect(agent), "Refund it.", thread="order-17")
    assert result.final_output == "Done."
    call = await shop.ledger.call(CallRef("shop", "order-17", "call_9"))
    assert isinstance(call.finished and call.finished.event, e.ToolFailed)
    assert "nothing to pay back" in call.finished.event.error
