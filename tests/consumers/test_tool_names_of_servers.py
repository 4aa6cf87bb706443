"""A tool with a name as MCP servers give them, from the model's wish to the tables."""

import pytest
from chain import FIRST, SCHEMA, THREAD, Chain
from lake_tables import read, rows
from pydantic_ai import messages as pai
from pydantic_ai.models.function import AgentInfo, FunctionModel

from ayes.consumers.pydantic_ai_model import PydanticAI
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import EventLog, RawMessage
from ayes.projections.formats import FORMATS
from ayes.projections.formats.common import tool_name
from ayes.projections.history import history
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas.codec import encode

TOOL = "github/create_issue.v2"
POLICY = """
[[rule]]
name = "issues"
tools = ["github/*"]
then = "ask"
"""


async def wishes(history: list[pai.ModelMessage], offered: AgentInfo) -> pai.ModelResponse:
    """A model that calls the one tool it is offered, under the name that it is given."""
    [tool] = offered.function_tools
    assert tool.parameters_json_schema["required"] == ["order"]
    if any(isinstance(part, pai.ToolReturnPart) for one in history for part in one.parts):
        return pai.ModelResponse([pai.TextPart("All done.")])
    return pai.ModelResponse([pai.ToolCallPart(tool.name, '{"order":"A-17"}', "call_a")])


@pytest.mark.log("memory", "jetstream")
async def test_a_call_to_a_tool_of_a_server(port: EventLog):
    """The model knows it under a name that its provider takes; the ledger, its people, its
    executor and its tables under its own (B17, B24).
    """
    chain = Chain(port, PydanticAI(FunctionModel(wishes)), tool=TOOL)
    async with chain.at_work():
        await chain.begin(POLICY)
        [entry] = await chain.shown()
        assert (entry.tool, entry.rule) == (TOOL, "issues")
        await chain.ledger.reviewer("ana").approve(FIRST)
        await chain.answered(2)
    call = await chain.ledger.call(FIRST)
    assert (call.wish.tool, call.status) == (TOOL, Status.RETURNED)
    assert chain.ran == ["A-17"]
    facts = await chain.ledger.read(THREAD)
    [replied] = [one.event for one in facts if one.slot == THREAD.replied(1)]
    assert replied.parts == (e.Wish(tool=TOOL, arguments='{"order":"A-17"}', provider_id="call_a"),)
    told = history(thread_of(THREAD, facts)).entries
    for name, form in FORMATS.items():
        payload = form.write(told)
        assert form.check(payload) == [], name
        assert tool_name(TOOL) in str(payload)
        assert TOOL not in str(payload)
    declared = await chain.ledger.read("ledger.shop._tool.github=2Fcreate_issue=2Ev2.*")
    assert [one.event.schema for one in declared] == [SCHEMA]
    raws = [
        RawMessage(one.seq, one.recorded_at, one.slot.subject, encode(one.event))
        for one in (*declared, *facts)
    ]
    db = read(raws)
    assert [row["tool"] for row in rows(db, "SELECT tool FROM calls")] == [TOOL]
    assert [row["tool"] for row in rows(db, "SELECT tool FROM tools")] == [TOOL]
