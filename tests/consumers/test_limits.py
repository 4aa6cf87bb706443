"""What a thread went through counts: a call that people denied is not put to them again at once,
nor without end.

First what is read off the log, as a table; then with a real gate; then what the model reads in the
end.
"""

import asyncio

import msgspec
import pytest
from chain import DONE, REFUND, Chain, Script
from chain import FIRST as WISHED
from shop import FIRST, SECOND, THIRD, THREAD, Shop, rule
from stories import REF, Story, request
from until import recorded

from ayes.consumers.effects import Append
from ayes.consumers.gate import Gate
from ayes.ledger.judging.policies import thread_usage
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import EventLog
from ayes.ledger.validity import call_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import Unavailable
from ayes.schemas.slots import ORGANISATION, CallRef, ThreadRef

# What is tested here is the gate's; what it rests on is the contract of the log, in test_log.py.
pytestmark = pytest.mark.log("memory")

ASK = rule("money", "ask", 'voters = ["ana"]')


# ------------------------------------------------------------------------- what is read off the log

SAME = e.Wish(tool="refund", arguments='{"order":"A-17"}')
OTHER = e.Wish(tool="refund", arguments='{"order":"B-40"}')
SPACED = e.Wish(tool="refund", arguments='{"order": "A-17"}')
NOW = REF.call("now")


def denied(ground: e.Ground = "people") -> e.Denied:
    return e.Denied(ground=ground, rule="money", policy_version=1, reason="no", voters=("ana",))


def told(*words: str) -> list[Fact]:
    """A story in words; the call in question is requested last, and again `later` things come."""
    story = Story()
    asking = e.ApprovalRequested(digest="", rule="money", policy_version=1)
    approved = e.Approved(digest="", ground="people", rule="money", policy_version=1)
    for number, word in enumerate(words):
        ref, what = REF.call(f"c{number}"), word.split("_")
        match what:
            case ["now"]:
                story.tell(NOW.requested, request(SAME))
            case ["user" | "note" | "system" as role]:
                story.say("hm", role)
            case ["then", earlier, "asked"]:
                story.tell(REF.call(earlier).gated, asking)
            case ["then", earlier, _]:
                story.tell(REF.call(earlier).decided, denied())
            case [wish, *ends]:
                story.tell(
                    ref.requested, request({"same": SAME, "other": OTHER, "spaced": SPACED}[wish])
                )
                for end in ends:
                    match end:
                        case "asked":
                            story.tell(ref.gated, asking)
                        case "approved":
                            story.tell(ref.decided, approved)
                        case "allowed":
                            story.tell(
                                ref.decided, msgspec.structs.replace(approved, ground="policy")
                            )
                        case "expired":
                            story.tell(
                                ref.decided, e.Expired(rule="money", policy_version=1, after_s=1)
                            )
                        case ground:
                            story.tell(ref.decided, denied(ground))  # type: ignore[arg-type]
    return story.facts


#: What stands in the log, and how many calls and questions there were; which call was denied, and
#: repeated how often.
PASTS = [
    ("nothing", "now", (0, 0, None, 0)),
    ("what comes after it does not count", "now same_asked_people user", (0, 0, None, 0)),
    ("nor does what is decided after it", "same_asked now then_c0_people", (1, 1, None, 0)),
    ("but an earlier wish is put to people before it, whenever that is recorded",
     "same now then_c0_asked", (1, 1, None, 0)),
    ("calls and questions", "same_approved other_asked other now", (3, 1, None, 0)),
    ("denied by people", "same_asked_people now", (1, 1, "c0", 0)),
    ("repeated twice", "same_asked_people same_repeated same_repeated now", (3, 1, "c0", 2)),
    ("repeated, and not decided yet", "same_asked_people same now", (2, 1, "c0", 1)),
    ("other calls between", "same_asked_people other_asked_people other now", (3, 2, "c0", 0)),
    ("denied again, after people were asked again",
     "same_asked_people same_repeated same_asked_people now", (3, 2, "c2", 0)),
    ("and repeated after that",
     "same_asked_people same_repeated same_asked_people same_repeated now", (4, 2, "c2", 1)),
    ("another call was denied", "other_asked_people now", (1, 1, None, 0)),
    ("the same was denied in other bytes (R13, B76)", "spaced_asked_people now", (1, 1, "c0", 0)),
    ("denied by the policy", "same_policy now", (1, 0, None, 0)),
    ("denied for a limit", "same_limit now", (1, 0, None, 0)),
    ("invalid", "same_invalid now", (1, 0, None, 0)),
    ("expired is no no", "same_asked_expired now", (1, 1, None, 0)),
    ("denied, and once approved since", "same_asked_people same_asked_approved now",
     (2, 2, None, 0)),
    ("denied, and another call approved since", "same_asked_people other_asked_approved now",
     (2, 2, "c0", 0)),
    ("approved, and denied since", "same_asked_approved same_asked_people now", (2, 2, "c1", 0)),
    ("denied, and allowed by the policy since", "same_asked_people same_allowed now",
     (2, 1, "c0", 1)),
    ("a user said something since", "same_asked_people user now", (1, 1, None, 0)),
    ("said before it", "user same_asked_people now", (1, 1, "c1", 0)),
    ("a note is no user's word", "same_asked_people note system now", (1, 1, "c0", 0)),
    ("said, and denied again since", "same_asked_people user same_asked_people now",
     (2, 2, "c2", 0)),
]  # fmt: skip


@pytest.mark.parametrize(("words", "was"), [pytest.param(*row, id=name) for name, *row in PASTS])
def test_what_a_thread_went_through(words: str, was: tuple[int, int, str | None, int]):
    """Only the wishes before it in the log count, so later looks see the same (B76, I11, I13)."""
    facts = told(*words.split())
    call = call_of(NOW, tuple(facts))
    found = thread_usage(call, facts)
    ref = found.denied.slot.call_ref if found.denied else None
    assert (found.calls, found.questions, ref.call if ref else None, found.repeats) == was


@pytest.mark.parametrize(
    ("words", "unjudged"),
    [("now", 0), ("now other", 0), ("other same now", 2), ("other_asked same_approved now", 0),
     ("other now then_c0_asked", 0), ("other now then_c0_people", 0)],
)  # fmt: skip
def test_which_earlier_wishes_may_still_become_questions(words: str, unjudged: int):
    """Those neither put to people nor decided: until there is none, no limit is told (B76)."""
    facts = told(*words.split())
    assert thread_usage(call_of(NOW, tuple(facts)), facts).unjudged == unjudged


# --------------------------------------------------------------------------------- with a real gate


async def numbered(shop: Shop, count: int) -> list[CallRef]:
    refs = [THREAD.call(f"r{number}") for number in range(count)]
    for ref in refs:
        await shop.request(ref)
    return refs


async def judged(shop: Shop, ref: CallRef) -> None:
    """Wait until the gate has said something."""
    places = (ref.gated.subject, ref.decided.subject)
    await recorded(shop.ledger, *places)


async def no(shop: Shop, ref: CallRef, reason: str = "") -> None:
    await shop.asked(ref)
    await shop.ledger.reviewer("ana").deny(ref, reason=reason)
    await shop.decided(e.Denied, ref)


@pytest.mark.log("memory", "jetstream")
async def test_a_denied_call_is_not_put_to_people_again_at_once(shop: Shop):
    """Unchanged, it is denied by itself as often as the policy says, then people are asked once
    more, and so on (B76, B32).
    """
    async with shop.at_work("deny_repeats = 2\n" + ASK):
        questions = 0
        for round_ in range(3):
            for repeat in range(3):
                ref = THREAD.call(f"r{round_}-{repeat}")
                await shop.request(ref)
                if repeat == 0:
                    await no(shop, ref, "not this one")
                    first, questions = ref, questions + 1
                    continue
                again = await shop.decided(e.Denied, ref)
                assert (again.ground, again.rule, again.policy_version) == ("repeated", "money", 1)
                assert (
                    again.reason
                    == f"This very call was denied before, as {first.call}: not this one"
                )
                assert (await shop.ledger.call(ref)).gated is None
    asked = [
        fact
        for fact in await shop.ledger.read(THREAD)
        if isinstance(fact.event, e.ApprovalRequested)
    ]
    assert len(asked) == questions == 3


async def test_other_arguments_are_asked_about(shop: Shop):
    """A no is to these arguments; other ones, or another thread's, ask anew (B76, I2)."""
    async with shop.at_work(ASK):
        await shop.request()
        await no(shop, FIRST)
        await shop.ask(SECOND, '{"amount":99}')
        elsewhere = ThreadRef("shop", "t2").call("c1")
        await shop.ask(elsewhere)
        assert (await shop.judged(e.Denied, THIRD)).ground == "repeated"


async def test_a_word_of_the_user_opens_the_question_again(shop: Shop):
    """The user may have said what was missing; a note of the system does not (B76, B33)."""
    async with shop.at_work(ASK):
        await shop.request()
        await no(shop, FIRST)
        await shop.ledger.say(THREAD, "it rains", message="n1", role="note")
        assert (await shop.judged(e.Denied, SECOND)).ground == "repeated"
        await shop.say("m1")
        await shop.ask(THIRD)


async def test_a_grant_opens_it_again(shop: Shop):
    """The later yes of a person beats their earlier no; when it is used up, the call is asked about
    like any other (B76).
    """
    async with shop.at_work(ASK):
        await shop.request()
        await no(shop, FIRST)
        await shop.ledger.reviewer("ana").grant("shop/ana/after-all", "refund", for_s=60)
        assert (await shop.judged(e.Approved, SECOND)).grants == ("ana/after-all",)
        await shop.ask(THIRD)


async def test_by_itself_it_is_denied_three_times(shop: Shop):
    """What the policy says nothing about is bounded all the same (B76)."""
    async with shop.at_work(ASK):
        await shop.request()
        await no(shop, FIRST)
        refs = await numbered(shop, 4)
        grounds = [(await shop.decided(e.Denied, ref)).ground for ref in refs[:3]]
        await shop.asked(refs[3])
    assert grounds == ["repeated"] * 3


async def test_a_thread_makes_so_many_calls(shop: Shop):
    """Also such as nobody is asked about; also when they come all at once and two gates look: the
    first in the log, and no others (B76).
    """
    async with shop.at_work("calls_per_thread = 3\n" + rule("freely", "allow"), gates=2):
        refs = await numbered(shop, 8)
        decided = [(await shop.until(ref.decided)).event for ref in refs]
        elsewhere = ThreadRef("shop", "t2").call("c1")
        await shop.judged(e.Approved, elsewhere)
    assert [type(event) for event in decided] == [e.Approved] * 3 + [e.Denied] * 5
    [reason] = {event.reason for event in decided if isinstance(event, e.Denied)}
    assert reason == "The policy lets a thread make 3 calls, and these were made."
    assert {event.ground for event in decided if isinstance(event, e.Denied)} == {"limit"}


async def test_a_thread_puts_so_many_calls_to_people(shop: Shop):
    """What the policy allows goes on; what would be the next question is denied, with why (B76)."""
    freely = rule("freely", "allow", 'when = "args.amount < 5"')
    money = rule("money", "ask", 'when = "args.amount >= 5"')
    await shop.open(f"questions_per_thread = 2\n{ASK}{freely}")
    await shop.apply(f"questions_per_thread = 2\n{money}{freely}")
    async with shop.gates():
        for ref in (FIRST, SECOND):
            await shop.ask(ref)
        denied_ = await shop.judged(e.Denied, THIRD)
        small = THREAD.call("small")
        await shop.judged(e.Approved, small, '{"amount":1}')
    assert denied_.ground == "limit"
    assert denied_.reason == "The policy lets a thread put 2 calls to people, and these were put."


async def test_many_wishes_at_once_are_no_way_around_it(shop: Shop):
    """Eight wishes in one reply put no more calls to people than eight replies (B76)."""
    await shop.open("questions_per_thread = 2\n" + ASK)
    refs = await numbered(shop, 8)
    async with shop.gates(2):
        await asyncio.gather(*(judged(shop, ref) for ref in refs))
    calls = [await shop.ledger.call(ref) for ref in refs]
    assert [call.status for call in calls] == [Status.PENDING] * 2 + [Status.DENIED] * 6


async def test_a_wish_waits_for_the_ones_before_it(shop: Shop):
    """Where it could be one question too many, the gate has it handed out again until they are
    judged; else it does not wait (B76).
    """
    await shop.open("questions_per_thread = 2\n" + ASK)
    for ref in (FIRST, SECOND, THIRD):
        await shop.request(ref)
    gate = Gate()
    handed = [(await shop.ledger.read(ref.requested))[0] for ref in (FIRST, SECOND, THIRD)]
    for early in handed[:2]:
        [question] = gate.decide(await gate.load(shop.ledger, early), early)
        assert isinstance(question, Append)
        assert question.slot.tail[-1] == "gated"
    with pytest.raises(Unavailable, match="the wishes before shop/t1/c3 are not judged yet"):
        await gate.load(shop.ledger, handed[2])
    back = THREAD.call("c4")
    await shop.request(back)
    await shop.ledger.withdraw(back)
    [taken_back] = await shop.ledger.read(back.withdrawn)
    [step] = gate.decide(
        await gate.load(shop.ledger, taken_back), taken_back
    )  # that is no question
    assert isinstance(step, Append)
    assert isinstance(step.event, e.Withdrawn)
    decided = e.Denied(ground="policy", rule="money", policy_version=1)
    await shop.ledger.append(FIRST.decided, decided)
    [question] = gate.decide(await gate.load(shop.ledger, handed[2]), handed[2])
    assert isinstance(question, Append)
    assert question.slot == THIRD.gated


async def test_the_lower_of_two_limits_counts(shop: Shop):
    """The organisation's too, though none of its rules is about the call (B76)."""
    await shop.open("calls_per_thread = 9\n" + rule("freely", "allow"))
    await shop.apply("calls_per_thread = 1\n", ORGANISATION)
    async with shop.gates():
        await shop.judged(e.Approved)
        assert (await shop.judged(e.Denied, SECOND)).ground == "limit"


async def test_rules_without_effect_are_recorded(shop: Shop):
    """With the question and with the policy's own yes and no; their words change nothing."""
    shadow = rule("soon", "block", "shadow = true")
    told_ = (e.Shadow("soon", "block"),)
    async with shop.at_work(rule("freely", "allow") + shadow):
        assert (await shop.judged(e.Approved)).shadows == told_
        await shop.apply(ASK + shadow)
        assert (await shop.ask(SECOND)).shadows == told_
        await shop.apply(rule("never", "block") + shadow)
        assert (await shop.judged(e.Denied, THIRD)).shadows == told_


# ----------------------------------------------------------------------------- what the model reads


async def test_the_model_reads_that_it_was_denied_before(port: EventLog):
    """Nobody is asked twice, and the words say so, and why it was denied (B2, B32, B33, B76)."""
    chain = Chain(port, Script([REFUND], [REFUND], [DONE]))
    await chain.begin("deny_repeats = 1\n" + ASK)
    async with chain.at_work():
        await chain.shown()
        await chain.ledger.reviewer("ana").deny(WISHED, reason="paid before")
        await chain.answered(3)
    first, second = chain.model.read(3)
    assert (first.kind, second.kind, second.tool) == ("denied", "denied", "refund")
    assert second.text == (
        "`refund` did not run: a person has said no to this very call before, and nothing was "
        "said since, so no person "
        "was asked again. In detail: This very call was denied before, as 1-0: paid before"
    )
    assert chain.ran == []


async def test_the_model_reads_that_it_has_used_up_what_it_may_do(port: EventLog):
    """A limit is no person's no, and no rule's (I5, B2, B33)."""
    chain = Chain(port, Script([REFUND], [REFUND], [DONE]))
    await chain.begin("calls_per_thread = 1\n" + rule("freely", "allow"))
    async with chain.at_work():
        await chain.answered(3)
    first, second = chain.model.read(3)
    assert (first.kind, second.kind) == ("returned", "denied")
    assert second.text == (
        "`refund` did not run: a limit of the policy is reached. "
        "In detail: The policy lets a thread make 1 calls, and these were made."
    )
    assert chain.ran == ["A-17"]
