"""Histories as the Vercel AI SDK shows them: written, checked, and held against the npm
package itself.
"""

import json
from collections.abc import Iterator
from copy import deepcopy

import pytest
from ai_sdk_package import asked, ended, installed
from example_counts import examples
from formats import conversations, entries_of, wish
from hypothesis import given, settings
from hypothesis import strategies as st
from long import sampled
from program import approvals
from stories import (
    DECISIONS,
    EDIT,
    REF,
    SETTLED,
    Story,
    approval,
    disorder,
    facts_of,
    life,
    lives,
    question,
    request,
)

from ayes.ledger.clients.services import Ledger
from ayes.projections import refusal_texts
from ayes.projections.formats import FORMATS, ai_sdk
from ayes.projections.formats.ai_sdk import ui as ai_sdk_ui
from ayes.projections.history import Assistant, Note, System, User
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas.slots import CallRef, ThreadRef

SOURCE = {"type": "source-url", "sourceId": "s", "url": "https://x"}


def written(*entries) -> list[dict]:
    return ai_sdk_ui.write(entries)["messages"]


# ------------------------------------------------------------------------------------- random lives


# ------------------------------------------------------------------------------------ single shapes


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("returned", {"state": "output-available", "output": "done"}),
        ("answered", {"state": "output-available", "output": "done"}),
        ("failed", {"state": "output-error", "errorText": "done"}),
        ("answered_with_error", {"state": "output-error", "errorText": "done"}),
        ("expired", {"state": "output-error", "errorText": "done"}),
        ("denied", {
            "state": "output-denied",
            "approval": {"id": "approval_1-0", "approved": False, "reason": "done"},
        }),
    ],
)  # fmt: skip
def test_a_call_on_the_screen_has_one_state(kind, state):
    """Call and result are one part; only a denial keeps its approval, as the SDK wants (B2, I5)."""
    assert written(User("hi"), *ended(kind)) == [
        {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "hi"}]},
        {
            "id": "m2",
            "role": "assistant",
            "parts": [
                {
                    "type": "dynamic-tool",
                    "toolName": "refund",
                    "toolCallId": "call_a",
                    "input": {"order": "A-17"},
                    **state,
                }
            ],
        },
    ]


def test_what_is_for_people_keeps_its_place():
    """Sources come out where they stood, what is for models does not; a turn of that says so."""
    source = e.Opaque("ai-sdk-ui", json.dumps(SOURCE))
    texts = ("", "[]", "no json", '{"type":"data-x"}', '{"type":"text","text":"x"}')
    odd = [e.Opaque("ai-sdk-ui", text) for text in texts]
    thought = e.Opaque("ai-sdk", '{"type":"reasoning","text":"hm"}')
    assert [message["parts"] for message in written(
        Assistant(1, (thought, e.Text("a"), source, *odd, e.Text(" "), e.Text("b"))),
        Assistant(2, (source, thought)),
    )] == [
        [{"type": "text", "text": "a"}, SOURCE, {"type": "text", "text": "b"}],
        [SOURCE, {"type": "text", "text": "(no text)"}],
    ]  # fmt: skip


def test_who_speaks_is_said_in_words():
    """A late system text and a note are the user's, and say whose they are."""
    entries = (System("be kind"), User(" "), Note("late", "clock"), System("be brief"))
    assert [(one["role"], one["parts"][0]["text"]) for one in written(*entries)] == [
        ("system", "be kind"),
        ("user", "(no text)"),
        ("user", "[Note from clock] late"),
        ("user", "[Note from the system] be brief"),
    ]


# --------------------------------------------------------------------------------------- what waits


def shown(facts) -> list[dict]:
    return ai_sdk_ui.messages(thread_of(REF, facts))


def calls_in(messages: list[dict]) -> list[dict]:
    return [
        part for message in messages for part in message["parts"] if part["type"] == "dynamic-tool"
    ]


CALL = REF.wish(1, 0)
STARTED = (CALL.claim(1), e.ToolStarted(digest=request(wish()).digest, idempotency_key=str(CALL)))
DOUBT = (CALL.finished, e.InDoubt(attempt=1, text="nobody knows"))
WANTED = (CALL.requested, request(wish()))
ASKED = (WANTED, (CALL.gated, question(wish())))
YES = (CALL.decided, approval(wish()))
YES_BECAUSE = (CALL.decided, e.Approved(
    digest=request(wish()).digest, ground="people", rule="money", policy_version=1,
    voters=("ana",), reason="as agreed",
))  # fmt: skip
YES_TO_ANOTHER = (CALL.decided, approval(wish(arguments="{}")))
YES_BY_POLICY = (CALL.decided, e.Approved(
    digest=request(wish()).digest, ground="policy", rule="free", policy_version=1,
))  # fmt: skip
VOTE = (CALL.vote("ana"), e.Voted(verdict="approve", digest=request(wish()).digest))
NOT_THIS = {
    "approved": False,
    "reason": "What is recorded as an approval does not hold for this call.",
}


@pytest.mark.parametrize(
    ("told", "state", "answer"),
    [
        ((), "input-available", None),
        ((WANTED,), "input-available", None),
        ((WANTED, YES_BY_POLICY), "input-available", None),
        ((WANTED, YES_BY_POLICY, STARTED), "input-available", None),
        ((WANTED, YES_BY_POLICY, STARTED, DOUBT), "input-available", None),
        ((WANTED, (CALL.decided, DECISIONS["denied by policy"])), "input-available", None),
        (ASKED, "approval-requested", {}),
        ((*ASKED, VOTE), "approval-requested", {}),
        ((*ASKED, (CALL.withdrawn, e.Withdrawn())), "approval-requested", {}),
        ((*ASKED, YES), "approval-responded", {"approved": True}),
        ((*ASKED, YES_BECAUSE), "approval-responded", {"approved": True, "reason": "as agreed"}),
        ((*ASKED, YES, STARTED), "approval-responded", {"approved": True}),
        ((*ASKED, YES, STARTED, DOUBT), "approval-responded", {"approved": True}),
        ((*ASKED, YES_TO_ANOTHER), "approval-responded", NOT_THIS),
        ((*ASKED, YES_TO_ANOTHER, STARTED), "approval-responded", NOT_THIS),
        ((*ASKED, YES_BY_POLICY), "approval-responded", NOT_THIS),
    ],
)  # fmt: skip
def test_a_call_that_waits_is_shown_as_its_facts_have_it(told, state, answer):
    """Open only where people are asked, a yes only where it fits what would run, and under the name
    by which a person votes (B7, B22, B31, I1, I4).
    """
    story = Story().turn(1, wish()).tell_all(told)
    (call,) = calls_in(shown(story.facts))
    approved = {} if answer is None else {"approval": {"id": "acme/t1/1-0", **answer}}
    assert call == {
        "type": "dynamic-tool",
        "toolName": "refund",
        "toolCallId": "call_a",
        "state": state,
        "input": {"order": "A-17"},
        **approved,
    }
    assert answer is None or CallRef.parse(call["approval"]["id"]) == CALL


@pytest.mark.parametrize(
    ("told", "says"),
    [
        *(((event,), "") for event in DECISIONS.values()),
        ((approval(wish()), e.Revoked(reason="wrong customer", reviewer="ben")),
         "took the approval back"),
        ((approval(wish()), e.Declined(why="unknown_tool")), "no such tool"),
    ],
)  # fmt: skip
def test_what_was_decided_against_is_no_yes(told, says):
    """Before it is closed, in the closing words: nobody's answer is no person's no (B87, I5)."""
    story = Story().turn(1, wish())
    decided, *after = told
    then = [
        (CALL.revoked_by("ben") if isinstance(event, e.Revoked) else CALL.claim(1), event)
        for event in after
    ]
    story.tell_all((*ASKED, (CALL.decided, decided), *then))
    thread = thread_of(REF, story.facts)
    (call,) = calls_in(ai_sdk_ui.messages(thread))
    reason = refusal_texts.tool_not_run(thread.call(CALL)).text
    assert says in reason
    assert call["state"] == "approval-responded"
    assert call["approval"] == {"id": "acme/t1/1-0", "approved": False, "reason": reason}


def test_a_yes_stands_beside_what_it_is_about():
    """An edit is shown as soon as it is approved; later the output says it (B61, I1)."""
    story = Story().turn(1, wish())
    *approved, started, returned = life(CALL, wish(), "edited")
    story.tell_all(approved)
    assert calls_in(shown(story.facts))[0]["input"] == json.loads(EDIT)
    story.tell_all((started, returned))
    (call,) = calls_in(shown(story.facts))
    assert call["input"] == {"order": "A-17"}
    assert call["output"] == f"{refusal_texts.arguments_changed(EDIT)}\n\ndone"


def test_a_denial_keeps_the_approval_that_was_asked_for():
    """One id from the question to the end (B22, B80)."""
    story = Story().turn(1, wish())
    told = []
    for slot, event in life(CALL, wish(), "denied"):
        story.tell(slot, event)
        told.append(calls_in(shown(story.facts))[0])
    assert [one["state"] for one in told] == [
        "input-available", "approval-requested", "approval-responded", "output-denied",
    ]  # fmt: skip
    assert {one["approval"]["id"] for one in told[1:]} == {"acme/t1/1-0"}
    assert told[-1]["approval"]["reason"] == "refund was denied"


def test_a_conversation_that_waits_is_shown_whole():
    """A turn has its message from when its model is asked, later words come after it (B4, B80)."""
    story = Story()
    story.tell(REF.opened, e.ThreadOpened(requester="rita", history_limit=1))
    story.say("be kind", "system").say("refund me").ask(1)
    story.say("still there?")
    begins = [
        {"id": "ledger.acme.t1.said.m1", "role": "system",
         "parts": [{"type": "text", "text": "be kind"}]},
        {"id": "ledger.acme.t1.said.m2", "role": "user",
         "parts": [{"type": "text", "text": "refund me"}]},
    ]  # fmt: skip
    turn = {"id": "ledger.acme.t1.turn.1.replied", "role": "assistant"}
    later = {
        "id": "ledger.acme.t1.said.m4", "role": "user",
        "parts": [{"type": "text", "text": "still there?"}],
    }  # fmt: skip
    step = {"type": "step-start"}
    assert shown(story.facts) == [*begins, {**turn, "parts": [step]}, later]
    story.reply(1, e.Text("Let me see."), wish())
    waits = {
        "type": "dynamic-tool", "toolName": "refund", "toolCallId": "call_a",
        "input": {"order": "A-17"}, "state": "input-available",
    }  # fmt: skip
    replied = {**turn, "parts": [step, {"type": "text", "text": "Let me see."}, waits]}
    assert shown(story.facts) == [*begins, replied, later]
    story.ask(2)
    story.tell(REF.replied(2), e.ModelFailed(error="overloaded"))
    failed = {"id": "ledger.acme.t1.turn.2.replied", "role": "assistant", "parts": [step]}
    assert shown(story.facts) == [*begins, replied, later, failed]
    assert shown([]) == []


@st.composite
def any_lives(draw) -> list:
    """Random lives in which people are asked about some calls and about others nobody is."""
    facts = draw(lives())
    gated = [fact for fact in facts if fact.slot.tail[2:] == ("gated",)]
    dropped = draw(st.lists(st.sampled_from(gated), unique_by=id)) if gated else []
    return [fact for fact in facts if fact not in dropped]


RANK = {
    "input-available": 0, "approval-requested": 1, "approval-responded": 2, "output-available": 3,
    "output-error": 3, "output-denied": 3,
}  # fmt: skip
AGAINST = {
    e.Denied, e.Answered, e.Expired, e.Withdrawn, e.Superseded, e.Revoked, e.Lapsed, e.Declined,
}  # fmt: skip
ENDS = {e.ToolReturned, e.ToolFailed, e.ToolRefused, e.Reconciled}


def is_borne_out(call: dict, kinds: set) -> bool:
    """Does a call's part say what the kinds of facts about it say, and no more?"""
    match call:
        case {"state": "approval-requested", "approval": {"id": str()}}:
            return e.ApprovalRequested in kinds and not kinds & {e.Approved, *AGAINST, *ENDS}
        case {"state": "approval-responded", "approval": {"approved": True}}:
            return kinds >= {e.ApprovalRequested, e.Approved} and not kinds & {*AGAINST, *ENDS}
        case {"state": "approval-responded", "approval": {"approved": False, "reason": reason}}:
            return bool(
                reason and e.ApprovalRequested in kinds and kinds & AGAINST and not kinds & ENDS
            )
        case {"state": "input-available"}:
            return "approval" not in call and not kinds & {e.ApprovalRequested, *ENDS}
        case {"state": "output-denied", "approval": {"approved": False}}:
            return kinds >= {e.Denied, e.ToolRefused}
        case {"state": "output-available" | "output-error"}:
            return "approval" not in call and bool(kinds & ENDS)
        case _:
            return False


def kinds_of(facts, call: dict) -> set:
    """Of the facts about a call but votes and what came too late, by the place of its part."""
    return {
        type(fact.event)
        for fact in facts
        if fact.slot.call_ref == call and fact.slot.tail[2] != "late"
    }


@given(any_lives())
def test_what_is_shown_only_moves_forward(facts):
    """Fact by fact: messages come only at the end, parts stay in their place, a call goes only
    forward, never says more than its facts, and what has ended does not change again (B7, B31, B77,
    B80).
    """
    before = []
    for count in range(1, len(facts) + 1):
        thread = thread_of(REF, facts[:count])
        after = ai_sdk_ui.messages(thread)
        assert len({message["id"] for message in after}) == len(after)
        assert len(after) >= len(before)
        for old, new in zip(before, after, strict=False):
            assert (old["id"], old["role"]) == (new["id"], new["role"])
            assert len(new["parts"]) >= len(old["parts"])
            for was, is_ in zip(old["parts"], new["parts"], strict=False):
                assert went_forward(was, is_)
        calls = [ref for number in thread.turns for ref, _wish in thread.wishes(number)]
        for ref, part in zip(calls, calls_in(after), strict=True):
            assert is_borne_out(part, kinds_of(facts[:count], ref)), (ref, part)
        before = after


def went_forward(was: dict, is_: dict) -> bool:
    if was["type"] != "dynamic-tool" or RANK[was["state"]] == 3:
        return was == is_
    same = [was[field] == is_[field] for field in ("type", "toolName", "toolCallId")]
    approvals = [one["approval"].get("approved") for one in (was, is_) if "approval" in one]
    return all(same) and RANK[was["state"]] <= RANK[is_["state"]] and approvals != [False, True]


@given(any_lives(), st.data())
def test_what_is_shown_is_the_same_for_the_same_facts(facts, data):
    """Cut anywhere, in any order and with duplicates; and the checker finds nothing but that
    something waits, or that a turn has nothing to say (I11, I13).
    """
    facts = facts[: data.draw(st.integers(1, len(facts)))]
    messages = shown(facts)
    assert json.dumps(messages) == json.dumps(shown(data.draw(disorder(facts))))
    assert {problem.rule for problem in ai_sdk_ui.check(messages) if messages} <= {25, 27, 28}


def untitled(messages: list[dict]) -> list[dict]:
    """The messages without ids of their own or of approvals, and without the starts of steps."""
    bare = deepcopy(messages)
    for message in bare:
        del message["id"]
        message["parts"] = [part for part in message["parts"] if part["type"] != "step-start"]
        for part in message["parts"]:
            part.get("approval", {}).pop("id", None)
    return bare


@given(any_lives(), st.data())
def test_what_has_ended_is_shown_as_it_is_written(facts, data):
    """Up to the first turn that waits, the two lists are one, ids of calls and all (B7, B80)."""
    facts = [fact for fact in facts if not isinstance(fact.event, e.ModelFailed)]
    facts = facts[: data.draw(st.integers(1, len(facts)))]
    unanswered = [turn for turn in thread_of(REF, facts).turns.values() if turn.reply is None]
    if not unanswered:
        settled = untitled(written(*entries_of(facts)))
        assert untitled(shown(facts))[: len(settled)] == settled


def test_the_sdk_takes_what_waits():
    """It validates any life that is cut at any fact, and knows every field of it (B7, B31)."""
    folder = installed()
    lists: list[list] = []

    @settings(max_examples=examples(100), deadline=None, database=None)
    @given(any_lives())
    def collect(facts) -> None:
        cut = (shown(facts[:count]) for count in range(1, len(facts) + 1))
        lists.extend(messages for messages in cut if messages and messages not in lists[-1:])

    collect()
    for ending in SETTLED:
        story = Story().turn(1, wish()).live(1, 0, wish(), ending)
        lists.extend(shown(story.facts[:count]) for count in range(1, len(story.facts) + 1))
    states = {call["state"] for messages in lists for call in calls_in(messages)}
    assert states == {*RANK}
    for messages, told in zip(lists, asked(folder, VALIDATING, lists), strict=True):
        assert told == messages


# ----------------------------------------------------------------------------------------- checking

SAYS = {"type": "text", "text": "hi"}
GRANTED = {"id": "p", "approved": True}
DENIED = {"id": "p", "approved": False}


def part(id_="a", tool="refund", state="output-available", **fields) -> dict:
    """A call, with what its state needs unless told otherwise."""
    needed: dict = {
        "output-available": {"output": "x"},
        "output-error": {"errorText": "x"},
        "output-denied": {"approval": DENIED},
        "approval-requested": {"approval": {"id": "p"}},
        "approval-responded": {"approval": GRANTED},
    }.get(state, {})
    return {
        "type": f"tool-{tool}",
        "toolCallId": id_,
        "state": state,
        "input": {},
        **needed,
        **fields,
    }


def less(part: dict, field: str) -> dict:
    return {key: value for key, value in part.items() if key != field}


def message(role: str, *parts, id_="m") -> dict:
    return {"id": id_, "role": role, "parts": list(parts)}


def saying(*parts, id_="m") -> dict:
    return message("assistant", *parts, id_=id_)


HELLO = message("user", SAYS, id_="hello")
DYNAMIC = {**part(), "type": "dynamic-tool", "toolName": "refund"}

BROKEN = [
    (21, 0, []),
    (21, 0, ["hi"]),
    (21, 1, [HELLO, {"role": "user", "parts": [SAYS]}]),
    (21, 1, [HELLO, {"id": 5, "role": "user", "parts": [SAYS]}]),
    (21, 1, [HELLO, message("tool", SAYS)]),
    (21, 1, [HELLO, {"id": "m", "role": ["user"], "parts": [SAYS]}]),
    (21, 1, [HELLO, {"id": "m", "role": "user", "parts": "hi"}]),
    (21, 1, [HELLO, {"id": "m", "role": "user", "content": "hi"}]),
    (21, 0, [{**HELLO, "content": "hi"}]),
    (21, 0, [{**HELLO, "toolInvocations": []}]),
    (22, 0, [message("user", SAYS, id_="")]),
    (22, 1, [HELLO, HELLO]),
    (23, 0, [saying("hi")]),
    (23, 0, [saying({"text": "hi"})]),
    (23, 0, [saying({"type": ["text"]})]),
    (23, 0, [saying({"type": "tool-call", "toolName": "refund", "args": {}})]),
    (23, 0, [saying({"type": "data", "data": 1})]),
    (23, 0, [saying(SAYS, {"type": "data-chart"})]),
    (23, 0, [saying({"type": "text"})]),
    (23, 0, [saying({**SAYS, "state": "odd"})]),
    (23, 0, [saying({**SAYS, "providerMetadata": {"a": 1}})]),
    (23, 0, [message("user", {"type": "file", "url": "data:,x"})]),
    (23, 0, [saying({**SOURCE, "title": 1})]),
    (23, 0, [saying(less(DYNAMIC, "toolName"))]),
    (23, 0, [saying(less(part(), "toolCallId"))]),
    (23, 0, [saying({**DYNAMIC, "dynamic": True})]),
    (23, 0, [saying(part(providerExecuted="yes"))]),
    (24, 0, [message("user", SAYS, part())]),
    (24, 0, [message("user", SAYS, DYNAMIC)]),
    (24, 0, [message("system", SAYS, part())]),
    (24, 0, [message("system", {"type": "file", "url": "data:,x", "mediaType": "text/plain"})]),
    (24, 0, [message("user", SAYS, {"type": "step-start"})]),
    (25, 0, [message("user")]),
    (25, 0, [saying()]),
    (25, 0, [message("user", {"type": "data-chart", "data": 1})]),
    (25, 0, [saying({"type": "step-start"}, SOURCE)]),
    (25, 0, [saying({"type": "text", "text": " \n"})]),
    (26, 0, [saying(part(state="result"))]),
    (26, 0, [saying(part() | {"state": ["output-available"]})]),
    (26, 0, [saying(part() | {"state": None})]),
    (26, 0, [saying(less(part(), "input"))]),
    (26, 0, [saying(less(part(), "output"))]),
    (26, 0, [saying(part(errorText="x"))]),
    (26, 0, [saying(part(errorText=None))]),
    (26, 0, [saying(part(approval=None))]),
    (26, 0, [saying(part(approval={"id": "p"}))]),
    (26, 0, [saying(part(approval=DENIED))]),
    (26, 0, [saying(part(approval={**GRANTED, "reason": 5}))]),
    (26, 0, [saying(part(approval={**GRANTED, "id": 5}))]),
    (26, 0, [saying(part(approval={**GRANTED, "signature": 5}))]),
    (26, 0, [saying(part(preliminary="yes"))]),
    (26, 0, [saying(less(part(state="output-error"), "errorText"))]),
    (26, 0, [saying(part(state="output-error", errorText=5))]),
    (26, 0, [saying(part(state="output-error", output="x"))]),
    (26, 0, [saying(part(state="output-error", approval=DENIED))]),
    (26, 0, [saying(less(part(state="output-denied"), "approval"))]),
    (26, 0, [saying(part(state="output-denied", approval=GRANTED))]),
    (26, 0, [saying(part(state="output-denied", output="x"))]),
    (26, 0, [saying(part(state="input-available", approval={"id": "p"}))]),
    (26, 0, [saying(part(state="input-streaming", output="x"))]),
    (26, 0, [saying(part(state="input-streaming", rawInput=5))]),
    (26, 0, [saying(part(state="input-streaming", inputEncoding="xml"))]),
    (26, 0, [saying(less(part(state="approval-requested"), "approval"))]),
    (26, 0, [saying(part(state="approval-requested", approval=GRANTED))]),
    (26, 0, [saying(part(state="approval-requested", approval={"id": "p", "reason": "x"}))]),
    (26, 0, [saying(part(state="approval-responded", approval={"id": "p"}))]),
    (27, 0, [saying(part(state="input-streaming"))]),
    (27, 0, [saying(part(state="input-streaming", providerExecuted=True))]),
    (27, 1, [HELLO, saying(SAYS, part(state="input-available")), message("user", SAYS, id_="n")]),
    (27, 0, [saying(part(state="approval-responded"))]),
    (27, 0, [saying(part(state="approval-responded", approval=DENIED))]),
    (27, 0, [saying(part(preliminary=True))]),
    (28, 0, [saying(part(state="approval-requested"))]),
    (28, 0, [saying(part(state="approval-requested", providerExecuted=True))]),
    (29, 0, [saying(part(approval={**GRANTED, "id": ""}))]),
    (29, 1, [saying(part(approval=GRANTED)), saying(part("b", approval=GRANTED), id_="n")]),
    (30, 0, [saying(part(""))]),
    (30, 0, [saying(part(), part())]),
    (30, 1, [saying(part()), saying(DYNAMIC, id_="n")]),
    (31, 0, [saying(part(tool=""))]),
    (31, 0, [saying(part(tool="a.b"))]),
    (31, 0, [saying({**DYNAMIC, "toolName": "a" * 65})]),
    (32, 0, [saying(part(input="{}"))]),
    (32, 0, [saying(part(input=None))]),
    (32, 0, [saying(part(state="output-error", input=None, rawInput="{"))]),
    (32, 0, [saying(less(part(state="output-error"), "input"))]),
    (33, 0, [saying(part(state="output-error", errorText=" "))]),
    (33, 0, [saying(part(state="output-denied", approval={**DENIED, "reason": ""}))]),
    (34, 1, [HELLO, message("system", SAYS)]),
]


@pytest.mark.parametrize(("rule", "at", "messages"), BROKEN)
def test_the_rule_that_is_broken_is_named(rule, at, messages):
    """Each rule has a list that breaks it and no other; payload and bare list are the same."""
    assert [(found.rule, found.message) for found in ai_sdk_ui.check(messages)] == [(rule, at)]
    assert ai_sdk_ui.check({"messages": messages}) == ai_sdk_ui.check(messages)


def test_every_rule_is_broken_once():
    """No rule at the top of the module is without a list that breaks it."""
    assert {rule for rule, _at, _messages in BROKEN} == set(range(21, 35))


RIGHT = [
    message("system", SAYS, SAYS, id_="m1"),
    message("system", SAYS, id_="m2"),
    message("user", SAYS,
            {"type": "file", "url": "data:,x", "mediaType": "text/plain", "filename": "x"},
            {"type": "data-x", "id": "d", "data": None}, id_="m3") | {"metadata": {"at": 1}},
    saying({"type": "step-start"},
           {"type": "reasoning", "id": "r", "text": "hm", "state": "done",
            "providerMetadata": {"a": {"s": "c2ln"}}},
           {**SAYS, "state": "streaming", "providerMetadata": {"a": {"b": 1}}},
           part("s", "search", providerExecuted=True, output={"found": []}),
           part("t", "search", state="input-available", providerExecuted=True),
           part("u", "search", state="approval-responded", providerExecuted=True,
                approval={"id": "u", "approved": True}),
           part("a", title="Refund", toolMetadata={"x": 1}, callProviderMetadata={"a": {}},
                approval={**GRANTED, "reason": "ok"}),
           part("b", output=None, resultProviderMetadata={"a": {}}, preliminary=False),
           {"type": "step-start"}, {**DYNAMIC, "toolCallId": "c", "dynamic": False, "output": [1]},
           part("d", state="output-error",
                approval={"id": "q", "approved": True, "signature": "s"}),
           less(part("e", state="output-error", rawInput={}), "input"),
           part("f", state="output-denied", approval={"id": "r", "approved": False}), SOURCE,
           {"type": "source-document", "sourceId": "s", "mediaType": "text/plain", "title": "x",
            "filename": "y"},
           {"type": "data-x", "data": {"y": 1}}, id_="m4"),
]  # fmt: skip


def test_what_is_right_is_taken():
    """Every part, every ended state, settled approvals, the provider's own tools."""
    assert ai_sdk_ui.check(RIGHT) == []


# ----------------------------------------------------------------------------------- the SDK itself

#: Reads lists of UIMessages and prints for each why the SDK refuses to validate, convert or send
#: it, or else the ModelMessages that it makes of it.
SCRIPT = """
import { readFileSync } from 'node:fs';
import { modelMessageSchema, validateUIMessages, convertToModelMessages } from 'ai';
import { convertToLanguageModelPrompt, standardizePrompt } from 'ai/internal';

const show = async list => {
  const messages = await convertToModelMessages(await validateUIMessages({ messages: list }));
  messages.forEach(message => modelMessageSchema.parse(message));
  const prompt = await standardizePrompt({ messages, allowSystemInMessages: true });
  await convertToLanguageModelPrompt({ prompt, supportedUrls: {}, download: async () => [] });
  return messages;
};
const told = [];
for (const list of JSON.parse(readFileSync(0, 'utf8')))
  told.push(await show(list).catch(error => String(error).slice(0, 500)));
console.log(JSON.stringify(told));
"""


#: Reads lists of UIMessages and prints for each what the SDK makes of it, or why it refuses it.
VALIDATING = """
import { readFileSync } from 'node:fs';
import { validateUIMessages } from 'ai';

const told = [];
for (const messages of JSON.parse(readFileSync(0, 'utf8')))
  told.push(await validateUIMessages({ messages }).catch(error => String(error).slice(0, 500)));
console.log(JSON.stringify(told));
"""


def settled(messages: list[dict]) -> list[dict]:
    """ModelMessages without what the SDK makes otherwise of UIMessages than is written here for
    ModelMessages.

    * A user's text is a list of one part there.
    * A denial is an `error-text` there, beside the approval that led to it; here it is
      `execution-denied` alone.
    """
    found: list[dict] = []
    for message in messages:
        content = message["content"]
        if message["role"] == "user" and isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if isinstance(content, list):
            content = [
                _settled(part) for part in content if not part["type"].startswith("tool-approval-")
            ]
        found.append({**message, "content": content})
    return found


def _settled(part: dict) -> dict:
    match part:
        case {"output": {"type": "execution-denied", "reason": reason}}:
            return {**part, "output": {"type": "error-text", "value": reason}}
        case _:
            return part


def test_the_sdk_makes_of_it_what_is_written_for_models():
    """It validates and sends each life, and makes the ModelMessages written here (B1, B17)."""
    folder = installed()
    lists: list[list] = []
    models: list[list] = []

    @settings(max_examples=examples(150), deadline=None, database=None)
    @given(lives())
    def collect(facts) -> None:
        if entries := entries_of(facts):
            lists.append(written(*entries))
            models.append(ai_sdk.write(entries)["messages"])

    collect()
    for conversation in conversations():
        entries = entries_of(facts_of(conversation.messages))
        lists.append(written(*entries))
        models.append(ai_sdk.write(entries)["messages"])
    assert len(lists) > 160
    for told, model in zip(asked(folder, SCRIPT, lists), models, strict=True):
        assert isinstance(told, list), told
        assert settled(told) == settled(model)


def damaged(value: object) -> Iterator[object]:
    """The value with any one thing in it taken out, or something odd put in its place."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, one in inner:
        rest = deepcopy(value)
        del rest[key]  # type: ignore[attr-defined]
        yield rest
        for other in (*damaged(one), *ODD, *ODD_AT.get(key, ())):
            yield (
                (value | {key: other})
                if isinstance(value, dict)
                else [*value[:key], other, *value[key + 1 :]]
            )  # type: ignore[index]


#: What may stand in any place, and what has a meaning in one.
ODD = (None, True, False, 5, "", " ", "x", [], {})
ODD_AT: dict[object, tuple[object, ...]] = {
    "approval": ({"id": "z"}, {"id": "z", "approved": False}),
    "state": (
        *("input-streaming", "input-available", "approval-requested", "approval-responded"),
        *("output-available", "output-error", "output-denied"),
    ),
    "type": ("tool-x", "dynamic-tool", "data-y", "text"),
    "role": ("assistant", "user"),
}


@pytest.mark.parametrize("every", sampled((1, 4), 4))
def test_what_the_sdk_refuses_is_refused_here(every: int):
    """Of a list with any one thing damaged: what the SDK refuses is a problem here, and rules 23
    and 26 are no stricter than its own.
    """
    states = ("input-available", "approval-requested", "input-streaming")
    waiting = [saying(part(state=state)) for state in states]
    lists = [list_ for whole in (RIGHT, *([one] for one in waiting)) for list_ in damaged(whole)]
    lists = lists[::every]
    told = asked(installed(), SCRIPT, lists)
    assert sum(isinstance(answer, str) for answer in told) > 1000 // every
    for list_, answer in zip(lists, told, strict=True):
        rules = {problem.rule for problem in ai_sdk_ui.check(list_)}
        if isinstance(answer, str):
            assert rules, (list_, answer)
        else:
            assert not rules & {23, 26}, (list_, ai_sdk_ui.check(list_))


# ---------------------------------------------------------------------------------- under its names


@pytest.mark.parametrize("name", ["ai-sdk", "ai-sdk-ui"])
def test_either_name_takes_what_is_shown(name):
    """UIMessages are judged as such with the name `ai-sdk` too."""
    _write, check = FORMATS[name]
    messages = written(User("hi"), *ended("denied"))
    assert check(messages) == check({"messages": messages}) == []
    problems = check([HELLO, saying(part(state="input-available"))])
    assert [(one.rule, one.message) for one in problems] == [(27, 1)]


def test_each_form_is_judged_by_its_own_rules():
    """`ai-sdk` goes by the first telling message; `ai-sdk-ui` takes no ModelMessages."""
    model = {"role": "user", "content": "hi"}
    either, shown = FORMATS["ai-sdk"], FORMATS["ai-sdk-ui"]
    assert either.check([model]) == []
    for messages, found in (
        ([HELLO, model], [(21, 1)]),
        ([model, HELLO], [(15, 1)]),
        ([{"id": "m", "role": "user"}, HELLO], [(21, 0)]),
        ([], [(15, 0)]),
    ):
        assert [(one.rule, one.message) for one in either.check(messages)] == found
    assert [one.rule for one in shown.check([model])] == [21]


def test_the_program_judges_what_is_shown(within, tmp_path):
    """`ayes check` by either name: 0 where all has ended, 1 and the rule where a call waits."""
    ended_, waiting = tmp_path / "ended.json", tmp_path / "waiting.json"
    ended_.write_text(json.dumps(written(User("hi"), *ended("returned"))))
    waiting.write_text(json.dumps([HELLO, saying(part(state="approval-requested"))]))
    for name in ("ai-sdk", "ai-sdk-ui"):
        assert within("check", ended_, "--format", name).code == 0
        waits = within("check", waiting, "--format", name, "--json")
        assert waits.code == 1
        assert [(one["rule"], one["message"]) for one in waits.lines] == [(28, 1)]


async def test_the_program_writes_what_is_shown(store):
    """`ayes history --format ai-sdk-ui` is a list that the checker takes."""
    thread = ThreadRef.parse("shop/t1")
    async with Ledger.connect(store, role="admin") as ledger:
        await ledger.append(thread.said("1"), e.Said(role="user", text="hi"))
        await ledger.append(thread.replied(1), e.ModelReplied(parts=(e.Text("hello"),)))
    shown = approvals("history", "shop/t1", "--format", "ai-sdk-ui", "--json", store=store)
    assert shown.code == 0, shown.err
    assert shown.one == ai_sdk_ui.write((User("hi"), Assistant(1, (e.Text("hello"),))))
