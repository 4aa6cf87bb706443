"""A call is one trace from its request to its result, on the log in memory and on a real broker."""

import asyncio
from collections.abc import Iterator

import pytest
from chain import DONE, FIRST, REFUND, Chain, Script
from long import IN_MEMORY_FIRST
from running import working
from shop import FIRST as ASKED
from shop import Shop, rule
from traces import TRACE, Recorded, named, path, recorded

from ayes.consumers.gate import Gate
from ayes.consumers.worker import Worker
from ayes.ledger import tracing
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import EventLog
from ayes.schemas import events as e
from ayes.schemas.errors import Unavailable

pytestmark = IN_MEMORY_FIRST
CALL = "process ledger.*.*.call.*."
RULE = rule("money", "ask", 'voters = ["ana"]')


@pytest.fixture
def traces() -> Iterator[Recorded]:
    with recorded() as found:
        yield found


@pytest.mark.log("memory", "jetstream")
async def test_one_trace_from_what_is_said_to_what_the_model_reads(port, traces):
    """Service, model, gate, person and executor; the person's own request is linked, not mixed."""
    chain = Chain(port, Script([REFUND], [DONE]))
    with traces.tracer.start_as_current_span("the service"):
        await chain.begin()
    async with chain.at_work():
        [entry] = await chain.shown()
        with traces.tracer.start_as_current_span("a person's click"):
            await chain.ledger.reviewer("ana").approve(entry.ref)
        thread = await chain.answered(2)
    call, spans = thread.call(FIRST), traces.spans
    *above, _, root = path(spans, call.finished.event.trace)
    assert above == [
        f"{CALL}decided",
        f"{CALL}vote.*",
        "vote approve",
        f"{CALL}requested",
        "process ledger.*.*.turn.*.replied",  # and that above the message, or above the opening
    ]
    assert root == "the service"
    answer = thread.turns[2].replied
    assert path(spans, answer.event.trace)[:2] == [f"{CALL}finished", f"{CALL}decided"]
    apart = named(spans, "a person's click")
    others = {one.trace for one in spans if one != apart}
    assert others == {named(spans, "the service").trace} != {apart.trace}
    assert named(spans, "vote approve").links == (apart.id,)
    assert not [one for one in spans if one.is_error]


async def test_spans_follow_the_conventions_and_have_no_arguments(port: EventLog, traces: Recorded):
    """Names and attributes as OpenTelemetry has them for messaging and generative AI."""
    chain = Chain(port, Script([REFUND], [DONE]))
    with traces.tracer.start_as_current_span("the service"):
        await chain.begin()
    async with chain.at_work():
        [entry] = await chain.shown()
        await chain.ledger.reviewer("ana").approve(entry.ref, reason="A-17 is within the rules")
        thread = await chain.answered(2)
    call, spans = thread.call(FIRST), traces.spans
    assert call.requested
    tool = named(spans, "execute_tool refund")
    assert tool.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "refund",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": str(FIRST),
        "ayes.attempt": 1,
    }
    assert tool.links == (call.requested.event.trace.split("-")[2],)
    judged = named(spans, f"{CALL}requested")
    assert judged.attributes == {
        "messaging.system": "nats", "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": FIRST.requested.subject,
        "messaging.destination.template": "ledger.*.*.call.*.requested",
        "messaging.consumer.group.name": "gate", "messaging.message.id": call.requested.event.id,
        "ayes.fact.type": "ToolRequested", "ayes.fact.seq": call.requested.seq,
        "ayes.workspace": FIRST.workspace, "ayes.thread": FIRST.thread, "ayes.call": FIRST.call,
        "ayes.delivery.tries": 1,
    }  # fmt: skip
    chats = [one for one in spans if one.name == "chat m"]
    assert [one.attributes["gen_ai.usage.output_tokens"] for one in chats] == [0, 0]
    assert "A-17" not in str(spans)


async def test_a_failure_is_seen_and_its_words_are_not(port: EventLog, traces: Recorded):
    """Errors may quote arguments, so only their types are exported."""
    chain = Chain(port, Script([REFUND], [DONE]), fails=True)
    await chain.begin('[[rule]]\nname = "freely"\ntools = ["*"]\nthen = "allow"\n')
    async with chain.at_work():
        await chain.answered(2)
    tool = named(traces.spans, "execute_tool refund")
    assert (tool.is_error, tool.attributes["error.type"], tool.words) == (True, "tool_error", "")
    assert "A-17" not in str(traces.spans)


async def test_each_delivery_has_a_span_of_its_own(port: EventLog, traces: Recorded):
    """One that fails says so, by the type of its error alone."""
    problems = [ValueError("about A-17"), Unavailable("about A-17")]

    class Failing(Gate):
        async def load(self, ledger, handed):
            if problems and handed.slot.tail[-1] == "requested":
                raise problems.pop(0)
            return await super().load(ledger, handed)

    shop = Shop(port)
    await shop.open(RULE)
    with traces.tracer.start_as_current_span("the service") as span:
        await shop.request()
    gate = Worker(Ledger(port, e.Author(kind="gate", name="gate")), Failing())
    with traces.tracer.start_as_current_span("the start of the gate"):
        async with working(gate):
            await shop.asked()
    tries = [one for one in traces.spans if one.name == f"{CALL}requested"]
    errors = [one.attributes.get("error.type") for one in tries]
    assert errors == ["ValueError", "Unavailable", None]
    assert [one.attributes["ayes.delivery.tries"] for one in tries] == [1, 2, 3]
    assert {one.parent for one in tries} == {f"{span.get_span_context().span_id:016x}"}
    assert {one.links for one in tries} == {()}
    assert "A-17" not in str(tries)


async def test_a_deadline_ends_a_call_in_its_trace(port: EventLog, traces: Recorded):
    """A timer passes the trace on, as a fact does."""
    shop = Shop(port)
    await shop.open(rule("money", "ask", 'voters = ["ana"]', "expires_in_s = 0.2"))
    with traces.tracer.start_as_current_span("the service"):
        await shop.request()
    async with shop.gates():
        await shop.decided(e.Expired)
    [decided] = await shop.ledger.read(ASKED.decided)
    above = ["process timer.due.>", f"{CALL}requested", "the service"]
    assert path(traces.spans, decided.event.trace) == above


async def test_a_service_that_was_started_again_runs_the_call_in_its_trace(port, traces):
    """The span of the new process is linked; claim and result stay in the trace of the request."""
    shop = Shop(port)
    await shop.open(RULE)
    with traces.tracer.start_as_current_span("before"):
        await shop.ledger.request(ASKED, "refund", '{"amount":100}', requester="rita")
    async with shop.gates():
        await shop.asked()
        await shop.ledger.reviewer("ana").approve(ASKED)
        await shop.decided(e.Approved)
    again = Ledger(port, e.Author(kind="service", name="desk"))
    with traces.tracer.start_as_current_span("after"):
        await again.run(ASKED, lambda amount: f"{amount} given back")
    spans, call = traces.spans, await again.call(ASKED)
    assert call.requested
    assert call.finished
    before, after = named(spans, "before"), named(spans, "after")
    tool = named(spans, "execute_tool refund")
    assert tool.trace == before.trace != after.trace
    assert tool.links == (before.id, after.id)
    for fact in (*call.claims, call.finished):
        assert path(spans, fact.event.trace)[-1] == "before"


@pytest.mark.parametrize("is_loaded", [False, True])
async def test_without_any_exporter_facts_pass_the_trace_on(port, monkeypatch, is_loaded):
    """Programs without OpenTelemetry, or with its API alone, record what they were given."""
    monkeypatch.setattr(tracing, "_is_in_use", lambda: is_loaded)
    shop = Shop(port)
    await shop.open(RULE)
    await shop.request(trace=TRACE)
    async with shop.gates():
        await shop.asked()
        await shop.ledger.reviewer("ana").approve(ASKED)
        await shop.decided(e.Approved)
    assert isinstance(await shop.ledger.run(ASKED, lambda amount: "done"), e.ToolReturned)
    call = await shop.ledger.call(ASKED)
    assert call.status is Status.RETURNED
    assert [fact.event.trace for fact in call.facts] == [TRACE] * 6


async def test_a_withdrawal_and_a_revocation_stay_in_the_trace(port: EventLog):
    """Each fact that a program records about a call is in the call's trace."""
    shop = Shop(port)
    await shop.open(rule("money", "allow"))
    other = ASKED.thread_ref.call("c2")
    await shop.request(trace=TRACE)
    await shop.request(other, trace=TRACE)
    async with shop.gates():
        await asyncio.gather(shop.decided(e.Approved), shop.decided(e.Approved, other))
    await shop.ledger.reviewer("ana").revoke(ASKED)
    await shop.ledger.start(other)
    await shop.ledger.doubt(other)
    await shop.ledger.reviewer("ana").reconcile(other, happened=True, output="it was paid")
    for ref, count in ((ASKED, 3), (other, 5)):
        facts = await shop.ledger.read(ref)
        assert [fact.event.trace for fact in facts] == [TRACE] * count
