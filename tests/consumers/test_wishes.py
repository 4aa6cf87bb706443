"""Whose wish a call is: the gate requests what a model's reply wishes, and looks up rather than
believes the rest.
"""

from collections.abc import Sequence

import msgspec
import pytest
from shop import conclude
from stories import REF, Story

from ayes.consumers.effects import Append, Effect
from ayes.consumers.gate import Gate
from ayes.consumers.model import Ask, ModelReply, ModelRequest, ModelWorker
from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.policies import AppliedPolicy, Origin, Policies, wished
from ayes.ledger.judging.verdict import Case, verdict
from ayes.ledger.lifecycle import Status
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import AlreadyFilled
from ayes.schemas.policy import applied, read_policy
from ayes.schemas.slots import CallRef, Slot, policy_slot
from ayes.schemas.tools import ToolSpec

# What is tested here is the gate's; what it rests on is the contract of the log, in test_log.py.
pytestmark = pytest.mark.log("memory")
REFUND = e.Wish(tool="refund", arguments='{"order":"A-17"}', provider_id="call_a")
AGAIN = e.Wish(tool="refund", arguments='{"order":"B-40"}', provider_id="call_a")
SPEC = ToolSpec(
    name="refund", description="Pays back.", schema='{"type":"object"}', run_by="executor"
)
ALLOW = """
[[rule]]
name = "the bot's own"
tools = ["*"]
agents = ["trusted-bot"]
then = "allow"
priority = 1

[[rule]]
name = "of the chat"
tools = ["*"]
labels = {channel = "chat"}
then = "allow"
priority = 1

[[rule]]
name = "the rest"
tools = ["*"]
then = "ask"
"""


async def thread(ledger: Ledger, **more: object) -> e.ThreadOpened:
    """A thread that a model answers, in a workspace that has a tool and a policy."""
    tool = await ledger.declare("acme", SPEC)
    await ledger.try_append(policy_slot("acme", 1), applied(ALLOW))
    opened = e.ThreadOpened(
        requester="rita", agent="desk", model="test:m", tools=(tool,), labels={"tier": "vip"}
    )
    opened = msgspec.structs.replace(opened, **more)
    await ledger.append(REF.opened, opened)
    return opened


async def denied(ledger: Ledger, ref: CallRef) -> str:
    await conclude(ledger, REF)
    decided = (await ledger.call(ref)).decided
    assert decided is not None, "the call was not decided"
    assert isinstance(decided.event, e.Denied), decided
    assert decided.event.ground == "invalid"
    return decided.event.reason


# ------------------------------------------------------------------------------ what a model wishes


async def steps(ledger: Ledger, handed: Slot) -> Sequence[Effect]:
    [fact] = await ledger.read(handed)
    gate = Gate()
    return list(gate.decide(await gate.load(ledger, fact), fact))


async def test_each_wish_becomes_one_request(ledger: Ledger):
    """Under an id of its own, though the provider's is the same for both; what is there is not
    requested again (B20, B22).
    """
    opened = await thread(ledger)
    await ledger.append(
        REF.replied(1), e.ModelReplied(parts=(e.Text("Let me see."), REFUND, AGAIN))
    )
    first, second = (REF.wish(1, index).requested for index in (0, 1))
    both = [Append(first, wished(opened, REFUND)), Append(second, wished(opened, AGAIN))]
    assert await steps(ledger, REF.replied(1)) == both
    await ledger.append(first, wished(opened, REFUND))
    assert await steps(ledger, REF.replied(1)) == both[1:]
    await ledger.log.append(second, b"no fact at all", "x")
    assert await steps(ledger, REF.replied(1)) == []
    assert wished(opened, REFUND) == e.ToolRequested(
        tool="refund",
        tool_version=opened.tools[0].version,
        arguments='{"order":"A-17"}',
        digest=call_digest("refund", opened.tools[0].version, '{"order":"A-17"}'),
        requester="rita",
        agent="desk",
        provider_id="call_a",
        run_by="executor",
        labels={"tier": "vip"},
    )


@pytest.mark.parametrize("reply", [e.ModelReplied(parts=()), e.ModelFailed(error="overloaded")])
async def test_a_reply_without_wishes_asks_for_nothing(ledger: Ledger, reply: e.Event):
    """Neither an empty reply nor a failed turn."""
    await thread(ledger)
    await ledger.append(REF.replied(1), reply)
    assert await steps(ledger, REF.replied(1)) == []


async def test_a_service_with_its_own_loop_requests_for_itself(ledger: Ledger):
    """A thread that names no model, or was never opened: what is recorded as its reply is kept."""
    await ledger.append(REF.replied(1), e.ModelReplied(parts=(REFUND,)))
    assert await steps(ledger, REF.replied(1)) == []
    await thread(ledger, model="")
    assert await steps(ledger, REF.replied(1)) == []


@pytest.mark.parametrize("name", ["delete_all", "constructor", "functions.refund", ""])
async def test_a_wish_for_what_was_not_offered_is_requested_too(ledger: Ledger, name: str):
    """Without a version, and denied in words that the model reads (I4, B25)."""
    await thread(ledger)
    await ledger.append(REF.replied(1), e.ModelReplied(parts=(e.Wish(tool=name, arguments="{}"),)))
    assert await denied(ledger, REF.wish(1, 0)) == (
        f"There is no tool {name!r}. Only the tools that were offered can be called."
    )


@pytest.mark.parametrize("arguments", ['{"order": "A-17"}', '{"order":', "", '{"a":1,"a":2}'])
async def test_arguments_are_kept_as_they_came(ledger: Ledger, arguments: str):
    """Malformed or oddly spelled: the digest is of the text, and the gate judges it (B17, B61)."""
    opened = await thread(ledger)
    await ledger.append(
        REF.replied(1), e.ModelReplied(parts=(e.Wish(tool="refund", arguments=arguments),))
    )
    [step] = await steps(ledger, REF.replied(1))
    assert step.event.arguments == arguments
    assert step.event.digest == call_digest("refund", opened.tools[0].version, arguments)


async def test_a_reply_whose_wish_cannot_be_requested_is_a_failed_turn(ledger: Ledger):
    """The request holds more than the wish does; one over the limit of a fact would leave the turn
    open for ever (R12, B47).
    """
    await thread(ledger, labels={"note": "x" * 2000})
    await ledger.append(REF.said("m1"), e.Said(role="user", text="hello"))
    await ledger.append(REF.asked(1, 1), e.ModelAsked(model="test:m"))

    class Long:
        async def reply(self, question: ModelRequest) -> ModelReply:
            return ModelReply((e.Wish(tool="refund", arguments=f'{{"a":"{"x" * 523_300}"}}'),))

    done = await ModelWorker({"test": Long()}).execute(ledger, Ask(REF, 1, 1))
    assert isinstance(done, Append)
    assert isinstance(done.event, e.ModelFailed)
    assert done.event.error.startswith("TooLarge: a ToolRequested of 52")


# --------------------------------------------------------------------------------- whose wish it is

FORGED = [
    ("agent", {"agent": "trusted-bot"}),
    ("labels", {"labels": {"channel": "chat"}}),
    ("requester", {"requester": "somebody"}),
]


@pytest.mark.parametrize(("what", "named"), FORGED, ids=[one[0] for one in FORGED])
@pytest.mark.parametrize("call", ["own", "1-0"])
async def test_a_request_in_anothers_name_is_denied(ledger, what, named, call):
    """Agent, labels and requester are those that the thread was opened with: others would loosen
    what a rule asks, or let the requester vote (C5).
    """
    opened = await thread(ledger)
    await ledger.append(REF.replied(1), e.ModelReplied(parts=(REFUND,)))
    ref = REF.call(call)
    await ledger.append(ref.requested, msgspec.structs.replace(wished(opened, REFUND), **named))
    reason = f"The request names other {what} than the thread was opened with. Leave {what} out."
    assert await denied(ledger, ref) == reason


async def test_what_a_request_leaves_out_is_the_threads(ledger: Ledger):
    """Without requester, agent and labels it is judged with those of the thread, and its requester
    cannot vote (C5).
    """
    opened = await thread(ledger, agent="trusted-bot")
    bare = msgspec.structs.replace(wished(opened, REFUND), requester="", agent="", labels={})
    ref = REF.call("own")
    await ledger.append(ref.requested, bare)
    await conclude(ledger, REF)
    decided = (await ledger.call(ref)).decided
    assert isinstance(decided.event, e.Approved)
    assert (decided.event.rule, decided.event.excluded) == ("the bot's own", ("rita",))


OTHERS = [
    ("another tool", {"tool": "look_up"}),
    ("other arguments", {"arguments": '{"order":"Z"}'}),
    ("another version", {"tool_version": "v9"}),
    ("another group", {"run_by": "client"}),
]


@pytest.mark.parametrize(("_name", "other"), OTHERS, ids=[one[0] for one in OTHERS])
async def test_what_stands_for_a_models_wish_must_be_that_wish(ledger, _name, other):
    """A service that takes the slot of a wish first gets nothing run in the model's name; nor does
    a wish that was never made (C5).
    """
    opened = await thread(ledger)
    wish = msgspec.structs.replace(wished(opened, REFUND), **other)
    wish = msgspec.structs.replace(
        wish, digest=call_digest(wish.tool, wish.tool_version, wish.arguments)
    )
    await ledger.append(REF.replied(1), e.ModelReplied(parts=(REFUND,)))
    await ledger.append(REF.wish(1, 0).requested, wish)
    await ledger.append(REF.wish(1, 1).requested, wished(opened, REFUND))
    for index in (0, 1):
        assert await denied(ledger, REF.wish(1, index)) == (
            f"The model did not wish for this as 1-{index}. A service's own calls need ids of "
            "another form."
        )


async def test_a_wish_before_its_reply_is_denied(ledger: Ledger):
    """What is requested before the model has replied was not wished for (C5)."""
    opened = await thread(ledger)
    await ledger.append(REF.wish(1, 0).requested, wished(opened, REFUND))
    assert "did not wish for this" in await denied(ledger, REF.wish(1, 0))
    await ledger.append(REF.replied(1), e.ModelReplied(parts=(REFUND,)))
    await conclude(ledger, REF)
    assert (await ledger.call(REF.wish(1, 0))).status is Status.DENIED


async def test_a_services_own_calls_stand_beside_a_models(ledger: Ledger):
    """Under an id of its own choice, with what the model never wished for."""
    opened = await thread(ledger)
    call = await ledger.request(REF.call("own"), opened.tools[0], '{"order":"Z"}')
    assert (call.wish.requester, call.wish.agent, call.wish.labels) == (
        "rita",
        "desk",
        {"tier": "vip"},
    )
    await conclude(ledger, REF)
    assert (await ledger.call(call.ref)).status is Status.PENDING


async def test_an_opening_that_cannot_be_read_lets_nothing_run(ledger: Ledger):
    """Nobody knows for whom such a thread is, so nothing is asked about it either."""
    tool = await ledger.declare("acme", SPEC)
    await ledger.log.append(REF.opened, b"\xff", "x")
    call = await ledger.request(REF.call("own"), tool, "{}", requester="rita")
    assert await denied(ledger, call.ref) == (
        "The opening of the thread cannot be read, so it is not known whose wish this is."
    )


async def test_who_runs_a_tool_is_as_it_was_declared(ledger: Ledger):
    """A request that says `client` for an executor's tool could be answered by its asker (R11)."""
    opened = await thread(ledger)
    wish = msgspec.structs.replace(wished(opened, REFUND), run_by="client")
    await ledger.append(REF.call("own").requested, wish)
    assert await denied(ledger, REF.call("own")) == (
        "refund is run by 'executor', as it is declared, and not by 'client'."
    )
    later = msgspec.structs.replace(wished(opened, REFUND), layout=3)
    await ledger.append(REF.call("later").requested, later)
    assert "layout 3, which this gate does not know" in await denied(ledger, REF.call("later"))


CHANGED = [
    ("another requester", {"requester": "eve"}),
    ("another agent", {"agent": "other"}),
    ("other labels", {"labels": {"a": "c"}}),
    ("other arguments or another tool", {"arguments": "{}"}),
    ("other arguments or another tool", {"tool": "look_up"}),
]


@pytest.mark.parametrize(("words", "other"), CHANGED)
async def test_the_same_id_for_something_else_is_refused(ledger: Ledger, words: str, other: dict):
    """A call id is used once: for one wish of one requester. Asked again, it is the same (R2)."""
    for name in ("refund", "look_up"):
        await ledger.declare("acme", SPEC.model_copy(update={"name": name}))
    asked = {
        "tool": "refund",
        "arguments": '{"a":1}',
        "requester": "ben",
        "agent": "desk",
        "labels": {"a": "b"},
    }
    ref = REF.call("c1")
    await ledger.request(ref, **asked)
    assert (await ledger.request(ref, **asked)).wish.requester == "ben"
    with pytest.raises(AlreadyFilled, match=f"was already requested with {words}"):
        await ledger.request(ref, **asked | other)


def test_who_a_wish_is_for_is_looked_at_before_the_rules():
    """The verdict on a wish says so first, whatever the rules would say of it."""
    story = Story()
    opened = story.tell(REF.opened, e.ThreadOpened(requester="rita"))
    wish = wished(e.ThreadOpened(requester="ben"), REFUND)
    requested = story.tell(REF.call("own").requested, wish)
    policies = Policies(
        AppliedPolicy(1, read_policy('[[rule]]\nname = "no"\ntools = ["*"]\nthen = "block"', "p"))
    )
    case = Case(Call(REF.call("own"), requested=requested), policies, None, origin=Origin(opened))
    said = verdict(case, requested.recorded_at)
    assert isinstance(said, e.Denied)
    assert (said.ground, said.rule) == ("invalid", "no")


# -------------------------------------------------------------------------------- what is malformed


async def broken(ledger: Ledger, slot: Slot) -> Fact:
    """Bytes that are not a fact, in this slot."""
    await ledger.log.append(slot, b'{"type":"Voted","verdict":"yes please"}', slot.subject)
    [fact] = await ledger.read(slot)
    assert isinstance(fact.event, e.Carried)
    assert fact.event.problem
    return fact


class Answers:
    def __init__(self, *parts: e.Part) -> None:
        self.parts = parts
        self.asked: list[ModelRequest] = []

    async def reply(self, question: ModelRequest) -> ModelReply:
        self.asked.append(question)
        return ModelReply(self.parts)


JUNK = (
    "call.1-0.vote.eve", "call.1-0.claim.7", "call.1-0.late.3", "call.1-0.revoked.eve",
    "call.own.requested", "said.m9",
)  # fmt: skip


@pytest.mark.parametrize("tail", JUNK)
async def test_one_malformed_fact_ends_no_conversation(ledger: Ledger, tail: str):
    """A call that was denied and told to the model lets it go on, with junk beside it; and so does
    junk that stands among the messages, which the model is told of (R4, B14, B17, B55).
    """
    await thread(ledger)
    model = Answers(e.Text("Sorry."))
    asker = ModelWorker({"test": model})
    await ledger.append(REF.said("m1"), e.Said(role="user", text="hello"))
    await ledger.append(REF.asked(1, 1), e.ModelAsked(model="test:m"))
    await ledger.append(REF.replied(1), e.ModelReplied(parts=(REFUND,)))
    await conclude(ledger, REF)
    await broken(ledger, Slot("acme", "t1", tuple(tail.split("."))))
    known = await ledger.reviewer("ana").deny(REF.wish(1, 0), reason="no")
    await conclude(ledger, REF)
    end = e.ToolRefused(ending="denied", text="no")
    await ledger.append(known.ref.finished, end)
    [handed] = await ledger.read(known.ref.finished)
    [step] = asker.decide(await asker.load(ledger, handed), handed)
    assert step.work == Ask(REF, 2, 1)
    await ledger.append(step.claim.slot, step.claim.event)
    done = await asker.execute(ledger, step.work)
    assert isinstance(done, Append)
    assert isinstance(done.event, e.ModelReplied)
    told = str(model.asked[0].history)
    assert ("cannot be read" in told) == (tail == "said.m9")


async def test_a_wish_whose_place_is_taken_by_junk_is_told_as_one_that_did_not_run(ledger: Ledger):
    """It can never be requested, so its siblings and the next turn do not wait (R4, B47)."""
    opened = await thread(ledger)
    model = Answers()
    asker = ModelWorker({"test": model})
    await ledger.append(REF.said("m1"), e.Said(role="user", text="hello"))
    await broken(ledger, REF.wish(1, 0).requested)
    await ledger.append(REF.asked(1, 1), e.ModelAsked(model=opened.model))
    await ledger.append(REF.replied(1), e.ModelReplied(parts=(REFUND,)))
    await conclude(ledger, REF)
    [handed] = await ledger.read(REF.replied(1))
    [step] = asker.decide(await asker.load(ledger, handed), handed)
    assert step.work == Ask(REF, 2, 1)
    await ledger.append(step.claim.slot, step.claim.event)
    await asker.execute(ledger, step.work)
    assert "`refund` did not run: the request for it cannot be read." in str(model.asked[0].history)


async def test_a_broken_reply_ends_the_turn(ledger: Ledger):
    """The next thing said begins another one (R4)."""
    await thread(ledger)
    asker = ModelWorker({"test": Answers()})
    await ledger.append(REF.said("m1"), e.Said(role="user", text="hello"))
    await ledger.append(REF.asked(1, 1), e.ModelAsked(model="test:m"))
    fact = await broken(ledger, REF.replied(1))
    assert list(asker.decide(await asker.load(ledger, fact), fact)) == []
    await ledger.append(REF.said("m2"), e.Said(role="user", text="hello?"))
    [handed] = await ledger.read(REF.said("m2"))
    [step] = asker.decide(await asker.load(ledger, handed), handed)
    assert step.work == Ask(REF, 2, 1)
