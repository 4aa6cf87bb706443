"""The model worker: when it is the model's turn, what becomes of its wishes, and what it is
sent.
"""

from collections.abc import Sequence

import msgspec
import pytest
import until
from confirming import Confirming
from running import working
from stories import REF, SETTLED, UNSETTLED, Story, life

from ayes.consumers.effects import Append, Effect, Perform
from ayes.consumers.model import MAX_ATTEMPTS, Ask, ModelReply, ModelRequest, ModelWorker
from ayes.consumers.worker import Worker
from ayes.ledger.clients.services import Ledger
from ayes.ledger.in_memory import Memory
from ayes.projections.histories import ThreadFacts
from ayes.projections.history import Assistant, Outcome, User, digest
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas.errors import Unavailable
from ayes.schemas.tools import ToolSpec

REFUND = e.Wish(tool="refund", arguments='{"order":"A-17"}', provider_id="call_a")
AGAIN = e.Wish(tool="refund", arguments='{"order":"B-40"}', provider_id="call_a")
OPENED = e.ThreadOpened(
    requester="rita", agent="desk", model="test:m", tools=(e.ToolRef("refund", "v1", "executor"),)
)


class Never:
    async def reply(self, question: ModelRequest) -> ModelReply:
        raise AssertionError("reacting asks nobody")


def opened(thread: e.ThreadOpened = OPENED) -> Story:
    story = Story()
    story.tell(REF.opened, thread)
    return story


def reacts(story: Story, handed: int = -1, *providers: str) -> Sequence[Effect[Ask]]:
    """What follows when that one of the story's facts is handed; by default the last."""
    asker = ModelWorker(dict.fromkeys(providers or ("test",), Never()))
    return list(asker.decide(thread_of(story.ref, story.facts), story.facts[handed]))


def ask(turn: int, attempt: int = 1) -> Perform[Ask]:
    claim = Append(REF.asked(turn, attempt), e.ModelAsked(model="test:m"))
    return Perform(claim, Ask(REF, turn, attempt))


# ----------------------------------------------------------------------------------------- its turn


def test_nothing_said_nothing_asked():
    """A thread that was only opened, or only given its instructions, waits."""
    story = opened()
    assert reacts(story) == []
    story.say("be kind", "system")
    assert reacts(story) == []


@pytest.mark.parametrize("role", ["user", "note"])
def test_it_is_asked_when_something_was_said(role: str):
    """After a user's message or a note the model is asked, whichever fact is delivered."""
    story = opened()
    story.say("hello", role)
    assert reacts(story) == [ask(1)]
    assert reacts(story, 0) == [ask(1)]


def test_it_is_not_asked_about_what_it_was_sent():
    """After its reply it waits until something new is said; words meanwhile are new (B4)."""
    story = opened()
    story.say("hello").turn(1, e.Text("Hi!"))
    assert reacts(story) == []
    story.say("and?")
    assert reacts(story) == [ask(2)]
    story = opened()
    story.say("hello").ask(1).say("quickly!")
    story.reply(1, e.Text("Hi!"))
    assert reacts(story) == [ask(2)]


def test_it_is_asked_once_all_its_calls_are_settled():
    """The turn goes on after the last sibling, whichever that is, and not before (B43)."""
    story = opened()
    story.say("hello").turn(1, REFUND, AGAIN).live(1, 0, REFUND, "returned")
    for slot, event in life(REF.wish(1, 1), AGAIN, "returned"):
        assert reacts(story) == []
        story.tell(slot, event)
    assert reacts(story) == [ask(2)]


@pytest.mark.parametrize("ending", SETTLED)
def test_however_its_calls_end_it_goes_on(ending: str):
    """Denied, expired, failed or run: the model is always let answer, and a bad sibling holds back
    nobody (B33, B37, B47).
    """
    story = opened()
    story.say("hello").turn(1, REFUND, AGAIN).live(1, 0, REFUND, "failed")
    story.live(1, 1, AGAIN, ending)
    assert reacts(story) == [ask(2)]


@pytest.mark.parametrize("ending", UNSETTLED)
def test_a_call_that_is_not_settled_holds_it_back(ending: str):
    """Also when the user goes on talking: a call in doubt waits for a person (B52, B8)."""
    story = opened()
    story.say("hello").turn(1, REFUND).live(1, 0, REFUND, ending)
    story.say("hello?")
    assert reacts(story) == []


def halted(*, before: str = "", second: str = "returned", first: str = "denied") -> Story:
    """Two wishes: to the first somebody said no, answered it or took its approval back, and that
    the model shall not go on by itself; the other ended so.
    """
    story = opened()
    story.say("hello").turn(1, REFUND, AGAIN)
    if before:
        story.say("hello?", before)
    for slot, event in life(REF.wish(1, 0), REFUND, first):
        stops = isinstance(event, e.Denied | e.Answered | e.Revoked)
        story.tell(slot, msgspec.structs.replace(event, halt=True) if stops else event)
    story.live(1, 1, AGAIN, second)
    return story


@pytest.mark.parametrize("second", ["returned", "denied", "failed", "expired"])
def test_after_a_no_that_halts_it_is_not_asked(second: str):
    """All calls are settled, and no delivery makes a halted thread go on by itself (B76)."""
    story = halted(second=second)
    assert reacts(story) == []
    assert [reacts(story, handed) for handed in range(len(story.facts))] == [[]] * len(story.facts)


@pytest.mark.parametrize("first", ["answered", "answered_with_error", "revoked"])
def test_after_an_answer_that_halts_it_is_not_asked(first: str):
    """An error in place of the tool, or an approval that is taken back, can stop the model, as a
    denial can; whoever looks, it is at rest until the user says something (B76).
    """
    story = halted(first=first)
    assert [reacts(story, handed) for handed in range(len(story.facts))] == [[]] * len(story.facts)
    conversation = ThreadFacts()
    for fact in story.facts:
        conversation.apply(fact)
    assert conversation.is_complete
    story.say("go on, but ask me first")
    assert reacts(story) == [ask(2)]


def test_a_word_of_the_user_lets_it_go_on_after_a_halt():
    """The user says something, and it is asked; its next turn is like any other (B33)."""
    story = halted()
    story.say("go on, but ask me first")
    assert reacts(story) == [ask(2)]
    story.turn(2, REFUND).live(2, 0, REFUND, "returned")
    assert reacts(story) == [ask(3)]


def test_what_the_user_said_while_people_were_asked_is_answered_after_a_halt():
    """Their message waited for the call to be settled; a no is to the call alone (B4, B33, B58)."""
    assert reacts(halted(before="user")) == [ask(2)]


@pytest.mark.parametrize("role", ["note", "system"])
def test_only_a_user_ends_a_halt(role: str):
    """A note of the system is no user's word: the reviewer stopped it until one says something."""
    story = halted()
    story.say("it rains", role)
    assert reacts(story) == []


def test_a_reply_with_nothing_in_it_ends_the_turn():
    """Empty text is an answer: nobody is asked again, and nothing hangs (B59)."""
    story = opened()
    story.say("hello").turn(1)
    assert reacts(story) == []


def test_a_failed_turn_is_over():
    """The next thing said begins another; until then nobody is asked again."""
    story = opened()
    story.say("hello").ask(1)
    story.tell(REF.replied(1), e.ModelFailed(error="overloaded"))
    assert reacts(story) == []
    story.say("try again")
    assert reacts(story) == [ask(2)]


def test_max_turns_is_the_end():
    """After so many turns the model is not asked again."""
    story = opened(msgspec.structs.replace(OPENED, max_turns=1))
    story.say("hello").turn(1, REFUND).live(1, 0, REFUND, "returned")
    assert reacts(story) == []
    story.say("go on")
    assert reacts(story) == []


@pytest.mark.parametrize("model", ["other:m", "", "testing:m", "m"])
def test_a_model_that_is_not_here_is_somebody_elses(model: str):
    """A thread of another provider, or of a service with its own loop, is left alone."""
    story = opened(msgspec.structs.replace(OPENED, model=model))
    story.say("hello")
    assert reacts(story) == []
    assert reacts(story, -1, "test", "other") == (
        [] if model != "other:m" else [retold(ask(1), model)]
    )


def retold(step: Perform[Ask], model: str) -> Perform[Ask]:
    return Perform(Append(step.claim.slot, e.ModelAsked(model=model)), step.work)


def test_a_thread_that_was_not_opened_waits():
    """What is said before the thread is opened counts when it is."""
    story = Story().say("hello")
    assert reacts(story) == []
    story.tell(REF.opened, OPENED)
    assert reacts(story) == [ask(1)]


# ---------------------------------------------------------------------------------------- the claim


def claimed(cause: str, attempts: int = 1) -> Story:
    """A user said something, under the id `e-1`; the model was asked because of `cause`."""
    story = opened()
    story.tell(REF.said("m1"), e.Said(role="user", text="hello", id="e-1"))
    for attempt in range(1, attempts + 1):
        story.tell(REF.asked(1, attempt), e.ModelAsked(model="test:m", cause=cause))
    return story


def test_what_somebody_else_was_handed_is_theirs():
    """Asked because of another fact: its worker may well be alive, so nothing follows."""
    assert reacts(claimed("e-0"), 1) == []
    story = claimed("e-1")
    story.tell(REF.said("m2"), e.Said(role="user", text="hello?", id="e-2"))
    assert reacts(story) == []


def test_handed_the_same_again_the_worker_is_dead():
    """The fact that the claim was made for is handed out again: the next attempt, and in the end a
    failure, not silence (B8).
    """
    assert reacts(claimed("e-1"), 1) == [ask(1, attempt=2)]
    assert reacts(claimed("e-1", attempts=2), 1) == [ask(1, attempt=3)]
    failed = e.ModelFailed(
        error="asked 3 times, and each time the worker died", attempt=MAX_ATTEMPTS
    )
    assert reacts(claimed("e-1", attempts=MAX_ATTEMPTS), 1) == [Append(REF.replied(1), failed)]


# --------------------------------------------------------------------------------------- the asking


class Scripted:
    """Says what it was told to say, and remembers what it was asked."""

    def __init__(self, *says: ModelReply | Exception) -> None:
        self.says = list(says)
        self.asked: list[ModelRequest] = []

    async def reply(self, question: ModelRequest) -> ModelReply:
        self.asked.append(question)
        said = self.says.pop(0)
        if isinstance(said, Exception):
            raise said
        return said


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(Memory(), e.Author(kind="model", name="tests"))


async def recorded(ledger: Ledger, story: Story) -> None:
    for fact in story.facts:
        assert isinstance(fact.event, e.Event)
        await ledger.append(fact.slot, fact.event)


async def test_it_is_sent_what_stood_before_its_claim(ledger: Ledger):
    """The history as of the claim, the thread's tools, and a digest of it all (B1, B5, I11)."""
    spec = ToolSpec(name="refund", schema='{"type":"object"}', run_by="executor")
    ref = await ledger.declare("acme", spec)
    story = opened(msgspec.structs.replace(OPENED, tools=(ref,)))
    story.say("hello").turn(1, REFUND).live(1, 0, REFUND, "returned", "done")
    story.ask(2).say("too late for turn 2")
    await recorded(ledger, story)
    model = Scripted(ModelReply((e.Text("Done."),), e.Usage(7, 2), "stop"))
    append = await ModelWorker({"test": model}).execute(ledger, Ask(REF, 2, 1))
    [question] = model.asked
    history = (
        User("hello"),
        Assistant(1, (REFUND,)),
        Outcome("1-0", "refund", "call_a", "returned", "done", is_error=False),
    )
    assert question.history == history
    assert (question.thread, question.turn, question.model) == (REF, 2, "test:m")
    assert [(tool.name, tool.version) for tool in question.tools] == [("refund", ref.version)]
    assert append.slot == REF.replied(2)
    assert append.event == e.ModelReplied(
        parts=(e.Text("Done."),), model="test:m", usage=e.Usage(7, 2), finish_reason="stop",
        history_digest=digest(history),
    )  # fmt: skip


async def test_a_worker_that_is_told_that_anothers_claim_is_its_own_asks_nobody():
    """A turn is asked by whoever's event is in the slot of its claim (B68)."""
    log, model = Confirming(), Scripted()
    ledger = Ledger(log, e.Author(kind="model", name="tests"))
    story = opened(msgspec.structs.replace(OPENED, tools=()))
    await recorded(ledger, story.say("hello"))
    rival = Ledger(log, e.Author(kind="model", name="other"))
    log.first[REF.asked(1, 1)] = rival.with_envelope(e.ModelAsked(model="test:m"))
    async with working(Worker(ledger, ModelWorker({"test": model}))):
        await until.until(lambda: has_settled(ledger))
    assert [fact.slot for fact in await ledger.read(REF)][-1] == REF.asked(1, 1)
    assert model.asked == []


async def has_settled(ledger: Ledger) -> bool:
    """Whether all that was delivered to the model worker is acknowledged."""
    progress = await ledger.log.progress("model")
    return progress is not None and not (progress.waiting or progress.in_hand)


FAILURES = [
    (RuntimeError("overloaded"), "RuntimeError: overloaded"),
    (ValueError(), "ValueError"),
    (RuntimeError("half a pair \ud800"), "RuntimeError: half a pair ?"),
    (ModelReply((e.Text("x" * 600_000),)), "TooLarge: a ModelReplied of 600,"),
    (ModelReply((e.Text("\ud800"),)),
     "BadFact: a ModelReplied has a text that is not valid Unicode"),
]  # fmt: skip


@pytest.mark.parametrize(("says", "error"), FAILURES)
async def test_a_model_that_gives_no_answer_has_failed(ledger, says, error):
    """Whatever it raises, and what could not be recorded, is a failed turn, not asked again."""
    story = opened(msgspec.structs.replace(OPENED, tools=()))
    story.say("hello").ask(1)
    await recorded(ledger, story)
    model = Scripted(says)
    append = await ModelWorker({"test": model}).execute(ledger, Ask(REF, 1, 1))
    assert isinstance(append.event, e.ModelFailed)
    assert append.event.error.startswith(error)
    assert len(model.asked) == 1


async def test_a_thread_with_a_tool_that_nobody_declared_fails_in_words(ledger: Ledger):
    """The model is not asked without the tools that it was promised."""
    story = opened()
    story.say("hello").ask(1)
    await recorded(ledger, story)
    append = await ModelWorker({"test": Scripted()}).execute(ledger, Ask(REF, 1, 1))
    assert isinstance(append.event, e.ModelFailed)
    assert append.event.error.startswith("UnknownTool: no tool 'refund' of version v1 is declared")


async def test_a_ledger_that_cannot_be_read_is_not_the_models_failure(ledger: Ledger):
    """The turn stays open and is tried again, since nothing is known to be wrong with it (I8)."""
    story = opened(msgspec.structs.replace(OPENED, tools=()))
    story.say("hello").ask(1)
    await recorded(ledger, story)
    with pytest.raises(Unavailable):
        await ModelWorker({"test": Scripted(Unavailable("a replica is behind"))}).execute(
            ledger, Ask(REF, 1, 1)
        )
