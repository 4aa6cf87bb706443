"""Turns that wait, as pydantic-ai hands them over: judged by its own types, and gone on with by its
own agent.
"""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from pydantic import TypeAdapter
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, Tool
from pydantic_ai import messages as pai
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import ToolApproved, ToolDenied
from stories import DECISIONS, EDIT, REF, SETTLED, Story, approval, lives, question, request

from ayes.projections import refusal_texts
from ayes.projections.formats import pydantic_ai
from ayes.projections.formats.pydantic_ai import deferred
from ayes.projections.history import history
from ayes.projections.thread import Thread, thread_of
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput

REQUESTS = TypeAdapter(DeferredToolRequests)
RESULTS = TypeAdapter(DeferredToolResults)


def wish(provider_id: str = "call_a", arguments: str = '{"order":"A-17"}') -> e.Wish:
    return e.Wish(tool="refund", arguments=arguments, provider_id=provider_id)


def asked(*ids: str) -> Story:
    """A turn that wishes, each wish before people."""
    story = Story().say("refund me").turn(1, *(wish(one) for one in ids))
    for index, one in enumerate(ids):
        story.tell(REF.wish(1, index).requested, request(wish(one)))
        story.tell(REF.wish(1, index).gated, question(wish(one)))
    return story


def loaded(
    thread: Thread,
) -> tuple[list[pai.ModelMessage], DeferredToolRequests, DeferredToolResults]:
    """As the library's own types take them."""
    messages = pai.ModelMessagesTypeAdapter.validate_json(json.dumps(deferred.messages(thread)))
    requests = REQUESTS.validate_json(json.dumps(deferred.requests(thread)))
    return messages, requests, RESULTS.validate_json(json.dumps(deferred.results(thread)))


# --------------------------------------------------------------------------------------- what waits


def test_what_waits_for_people_is_an_approval():
    """With what is asked, and the digest that a vote must carry (B7, I4)."""
    thread = thread_of(REF, asked("call_a", "call_a").facts)
    messages, requests, results = loaded(thread)
    assert [part.tool_call_id for part in requests.approvals] == ["call_a", "call_1-1"]
    assert (requests.calls, results) == ([], DeferredToolResults())
    assert requests.metadata["call_1-1"] == {
        "call": "acme/t1/1-1",
        "rule": "money",
        "reason": "moves money",
        "digest": request(wish()).digest,
    }
    assert messages[-1].parts == requests.approvals
    assert not deferred.is_ready(thread)


@pytest.mark.parametrize(
    ("run_by", "arguments", "calls"),
    [("client", None, ['{"order":"A-17"}']), ("client", EDIT, [EDIT]), ("executor", None, [])],
)
def test_what_the_client_runs_is_a_call(run_by, arguments, calls):
    """Under exactly the arguments that were approved; an executor's calls are its own (I1, I4)."""
    story = Story().turn(1, wish())
    asking = request(wish())
    asking = e.ToolRequested(tool=asking.tool, arguments=asking.arguments, digest=asking.digest,
                             tool_version="v1", run_by=run_by)  # fmt: skip
    story.tell(REF.wish(1, 0).requested, asking)
    story.tell(REF.wish(1, 0).decided, approval(wish(), arguments))
    _messages, requests, results = loaded(thread_of(REF, story.facts))
    assert ([part.args for part in requests.calls], requests.approvals) == (calls, [])
    assert len(results.approvals) == len(calls)


def test_an_approval_that_does_not_fit_is_none():
    """What is recorded is not what was approved, so nothing says that it may run (I1, I4)."""
    story = asked("call_a")
    story.tell(REF.wish(1, 0).decided, approval(wish(arguments="{}")))
    _messages, requests, results = loaded(thread_of(REF, story.facts))
    assert (requests.calls, requests.approvals, results) == ([], [], DeferredToolResults())


def test_a_call_that_was_started_is_not_handed_out_again():
    """It may have run (I2)."""
    story = Story().turn(1, wish()).live(1, 0, wish(), "running")
    _messages, requests, results = loaded(thread_of(REF, story.facts))
    assert (requests.calls, requests.approvals, results) == ([], [], DeferredToolResults())


# -------------------------------------------------------------------------------- what became of it


@pytest.mark.parametrize("ending", SETTLED)
def test_each_ending_is_what_it_is(ending):
    """Denied only where it was denied; word and text as in the turn's history (B2, B5, I5)."""
    story = Story().turn(1, wish()).live(1, 0, wish(), ending)
    thread = thread_of(REF, story.facts)
    returned = pydantic_ai.write(history(thread).entries)["messages"][-1]["parts"][0]
    found = deferred.results(thread)
    loaded(thread)
    match returned["outcome"]:
        case "denied":
            denial = {"message": returned["content"], "kind": "tool-denied"}
            assert found == {"approvals": {"call_a": denial}, "calls": {}}
        case "failed":
            failure = {"message": returned["content"], "kind": "tool-failed"}
            assert found == {"approvals": {}, "calls": {"call_a": failure}}
        case "success":
            assert found == {"approvals": {}, "calls": {"call_a": returned["content"]}}
    assert deferred.is_ready(thread)


@pytest.mark.parametrize("ending", DECISIONS)
def test_a_decision_is_told_before_it_is_closed(ending):
    """What was decided against is told as soon as it is decided, in the words of the record."""
    story = asked("call_a")
    story.tell(REF.wish(1, 0).decided, DECISIONS[ending])
    thread = thread_of(REF, story.facts)
    loaded(thread)
    found = deferred.results(thread)
    assert len(found["approvals"]) == ("denied" in ending or ending == "invalid")
    assert deferred.is_ready(thread)


def test_an_edit_that_is_no_object_is_refused():
    """The library has no place for it, and nothing is made of it."""
    story = asked("call_a")
    story.tell(REF.wish(1, 0).decided, approval(wish(), "[1]"))
    with pytest.raises(
        BadInput, match="acme/t1/1-0 was approved with arguments that are not an object"
    ):
        deferred.results(thread_of(REF, story.facts))


@pytest.mark.parametrize("told", [(), (e.ModelFailed(error="overloaded"),)])
def test_without_a_reply_nothing_is_deferred(told):
    """A thread only opened, and a model that gave no answer, are refused with a sentence."""
    story = Story()
    for one in told:
        story.ask(1)
        story.tell(REF.replied(1), one)
    with pytest.raises(BadInput, match="the last turn of acme/t1 has no reply"):
        deferred.requests(thread_of(REF, story.facts))


@given(lives())
def test_any_life_is_handed_over(facts):
    """The library's types take it, with the writer's ids; no call is awaited and settled (I1)."""
    thread = thread_of(REF, facts)
    try:
        messages, requests, results = loaded(thread)
    except BadInput:
        assert thread.latest == 0 or thread.turns[thread.latest].reply is None
        return
    ids = [part.tool_call_id for part in messages[-1].parts if isinstance(part, pai.ToolCallPart)]
    assert len({*ids}) == len(ids) == len(thread.wishes(thread.latest))
    waiting = {part.tool_call_id for part in requests.approvals}
    assert not waiting & {*results.approvals, *results.calls}
    assert {*waiting, *results.approvals, *results.calls} <= {*ids}
    if not thread.unsettled(thread.latest):
        assert deferred.is_ready(thread)
        whole = pydantic_ai.write(history(thread).entries)["messages"]
        assert json.dumps(whole[: len(messages)]) == json.dumps(deferred.messages(thread))


# -------------------------------------------------------------------------------- the agent goes on


async def test_an_agent_goes_on_from_it():
    """Its own run takes the messages and the results: the approved call runs, the edited one with
    the edit, the denied one not, and the model reads the reviewer's words (B2, B5, I1).
    """
    story = asked("call_a", "call_b", "call_c", "call_d")
    call = [REF.wish(1, index) for index in range(4)]
    no = e.Denied(
        ground="people", rule="money", policy_version=1, reason="not this one", voters=("ana",)
    )
    story.tell(call[0].decided, approval(wish()))
    story.tell(call[1].decided, approval(wish(), EDIT))
    story.tell(call[2].decided, no)
    assert not deferred.is_ready(thread_of(REF, story.facts))
    story.tell(call[3].decided, DECISIONS["expired"])
    thread = thread_of(REF, story.facts)
    messages, _requests, results = loaded(thread)
    assert results.approvals["call_a"] == ToolApproved()
    assert results.approvals["call_b"] == ToolApproved(override_args={"order": "edited"})
    assert isinstance(results.approvals["call_c"], ToolDenied)
    ran: list[str] = []
    heard: list[pai.ModelMessage] = []

    def refund(order: str) -> str:
        ran.append(order)
        return f"refunded {order}"

    def model(sent: list[pai.ModelMessage], _info: AgentInfo) -> pai.ModelResponse:
        heard[:] = sent
        return pai.ModelResponse(parts=[pai.TextPart("Done.")])

    agent = Agent(
        FunctionModel(model),
        tools=[Tool(refund, requires_approval=True)],
        output_type=[str, DeferredToolRequests],
    )
    done = await agent.run(message_history=messages, deferred_tool_results=results)
    assert (done.output, sorted(ran)) == ("Done.", ["A-17", "edited"])
    returns = {
        part.tool_call_id: part for part in heard[-1].parts if isinstance(part, pai.ToolReturnPart)
    }
    assert {id_: (part.outcome, part.content) for id_, part in returns.items()} == {
        "call_a": ("success", "refunded A-17"),
        "call_b": ("success", "refunded edited"),
        "call_c": (
            "denied",
            (
                "`refund` did not run: a person reviewed this call and said no. Their reason: not "
                "this one"
            ),
        ),
        "call_d": (
            "failed",
            refusal_texts.tool_not_run(thread.calls["1-3"]).text,
        ),
    }


async def test_an_agent_asks_for_what_the_ledger_awaits():
    """Gone on with no approval at all, it would ask for the very calls that we say it waits for."""
    thread = thread_of(REF, asked("call_a", "call_b").facts)
    messages, requests, _results = loaded(thread)

    def model(_sent: list[pai.ModelMessage], _info: AgentInfo) -> pai.ModelResponse:
        return pai.ModelResponse(
            parts=[part for part in messages[-1].parts if isinstance(part, pai.ToolCallPart)]
        )

    def refund(order: str) -> str:
        raise AssertionError(order)

    agent = Agent(
        FunctionModel(model),
        tools=[Tool(refund, requires_approval=True)],
        output_type=[str, DeferredToolRequests],
    )
    asked_for = (await agent.run("refund me")).output
    assert isinstance(asked_for, DeferredToolRequests)
    assert (asked_for.approvals, asked_for.calls) == (requests.approvals, requests.calls)


def test_the_library_is_not_needed():
    """The values are plain JSON, and nobody who hands them over loads pydantic-ai for it."""
    program = (
        "import sys, ayes.projections.formats.pydantic_ai.deferred; "
        "sys.exit('pydantic_ai' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
