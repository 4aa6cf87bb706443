"""Standing approvals, from giving one to the call that it lets run: capped, revoked, ended, and
never worth more than a vote.

With a real gate, on the log in memory and on a real broker.
"""

import asyncio
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from long import sampled
from shop import FIRST, REFUND, SCHEMA, SECOND, THIRD, THREAD, Shop, rule
from simulated_time import simulated
from until import recorded

from ayes.consumers.effects import Append, Reload
from ayes.consumers.gate import Gate
from ayes.ledger.clients.services import Ledger
from ayes.ledger.descriptions import describe
from ayes.ledger.judging.grants import same
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import EventLog
from ayes.ops.broker.server import ensure_account
from ayes.ops.workers import working
from ayes.schemas import events as e
from ayes.schemas import strict_json
from ayes.schemas.errors import (
    AlreadyFilled,
    BadArguments,
    BadId,
    BadInput,
    BrokerRefused,
    NotAllowed,
    UnknownTool,
)
from ayes.schemas.policy import applied
from ayes.schemas.slots import (
    CallRef,
    GrantRef,
    ThreadRef,
    grants,
    person_slot,
    policy_slot,
)
from ayes.schemas.tools import ToolSpec

# What is tested here is the gate's; what it rests on is the contract of the log, in test_log.py.
pytestmark = pytest.mark.log("memory")

ANAS = GrantRef("shop", "ana", "small")
BENS = GrantRef("shop", "ben", "small")
ASK = rule("money", "ask", 'voters = ["ana", "ben", "rita"]')
ASK_TWO = rule("money", "ask", 'voters = ["ana", "ben"]', "votes_needed = 2")


@pytest.fixture
async def shop(port: EventLog) -> Shop:
    shop = Shop(port)
    await shop.open(ASK)
    return shop


async def used(shop: Shop) -> dict[str, str]:
    """Which use was taken by which call."""
    facts = await shop.ledger.read(grants("shop"))
    return {
        fact.slot.subject.removeprefix("ledger.shop._grant."): fact.event.call
        for fact in facts
        if isinstance(fact.event, e.GrantUsed)
    }


# --------------------------------------------------------------------------------- what it lets run


@pytest.mark.log("memory", "jetstream")
async def test_a_grant_lets_a_call_run_and_is_seen_in_the_decision(shop: Shop):
    """Nobody is asked; the use is taken first, and the decision says whose yes (B73, I1, I6)."""
    reason = "small ones are fine"
    await shop.ledger.reviewer("ana").grant(ANAS, "refund", for_s=60, uses=2, reason=reason)
    async with shop.gates():
        approved = await shop.judged(e.Approved)
    call = await shop.ledger.call(FIRST)
    assert call.decided is not None
    assert (approved.ground, approved.grants) == ("grant", ("ana/small",))
    assert approved.voters == ("ana",)
    assert (approved.rule, approved.policy_version) == ("money", 1)
    assert approved.digest == call.wish.digest
    assert (call.gated, call.votes) == (None, ())
    assert await used(shop) == {"ana.small.used.1": "shop/t1/c1"}
    [use] = await shop.ledger.read(ANAS.used(1))
    assert call.requested.seq < use.seq < call.decided.seq  # type: ignore[union-attr]
    assert describe(call.decided).startswith("Approved by ana (grant ana/small) at ")


async def test_a_use_beyond_the_last_is_none(shop: Shop):
    """One that a gate recorded which did not see the last one lets no call run (I6)."""
    await shop.ledger.reviewer("ana").grant(ANAS, "refund", for_s=60, uses=1)
    for number, ref in enumerate((SECOND, FIRST), 1):
        await shop.ledger.append(ANAS.used(number), e.GrantUsed(call=str(ref)))
    async with shop.gates():
        await shop.ask(FIRST)
        assert (await shop.judged(e.Approved, SECOND)).ground == "grant"


@pytest.mark.parametrize("asked", ['{"amount":true}', '{"amount":1.0}', '{"amount":"1"}'])
def test_the_same_arguments_are_of_the_same_types(asked: str):
    """In any order of the keys; but 1 is neither 1.0 nor true."""
    assert same('{"amount":1,"order":"A"}', strict_json.read('{"order":"A","amount":1}'))
    assert not same('{"amount":1}', strict_json.read(asked))


async def test_when_its_uses_are_spent_people_are_asked(shop: Shop):
    """One after the other: two run, the third is asked about (B73, I6)."""
    await shop.ledger.reviewer("ana").grant(ANAS, "refund", for_s=60, uses=2)
    async with shop.gates():
        for ref in (FIRST, SECOND):
            await shop.judged(e.Approved, ref)
        await shop.ask(THIRD)
    assert await used(shop) == {"ana.small.used.1": "shop/t1/c1", "ana.small.used.2": "shop/t1/c2"}


async def test_a_revoked_grant_covers_nothing_more(shop: Shop):
    """Anybody may take it back; what has started by it stays as it was (I6)."""
    await shop.ledger.reviewer("ana").grant(ANAS, "refund", for_s=60, uses=9)
    async with shop.gates():
        await shop.judged(e.Approved)
        await shop.ledger.start(FIRST)
        revoked = await shop.ledger.reviewer("ben").revoke_grant(ANAS, reason="too many")
        assert revoked.standing(shop.ledger.now()) == "revoked"
        await shop.ask(SECOND)
    assert (await shop.ledger.call(FIRST)).status is Status.RUNNING


@pytest.mark.parametrize("bar", [e.PersonRemoved(), e.PersonAdded(workspaces=("hr",))])
async def test_a_grant_of_who_may_decide_nothing_here_covers_nothing(shop: Shop, bar: e.Event):
    """A removed person's, by any program with the old password, and one of other workspaces. One
    given before stays, until it is revoked; one given after the name was added again counts (B40,
    I6).
    """
    ana, told = shop.ledger.reviewer("ana"), shop.ledger.record_person
    await ana.grant(ANAS, "refund", for_s=60)
    await told(partial(person_slot, "ana"), bar)
    with pytest.raises(AlreadyFilled, match="it is revoked"):
        await ana.grant("shop/ana/late", "refund", for_s=60)
    async with shop.gates():
        assert (await shop.judged(e.Approved)).grants == ("ana/small",)
        await shop.ask(SECOND)
        await told(partial(person_slot, "ana"), e.PersonAdded())
        await ana.grant("shop/ana/new", "refund", for_s=60)
        assert (await shop.judged(e.Approved, THIRD)).grants == ("ana/new",)


@simulated
async def test_a_grant_ends_by_the_brokers_clock(shop: Shop):
    """A call made in time is covered also when the gate comes late; a later one is not (B36)."""
    await shop.ledger.append(ANAS.given, e.Granted(tool="refund", expires_in_s=2, uses=9))
    await shop.request()
    await asyncio.sleep(2)
    await shop.request(SECOND)
    async with shop.gates():
        assert (await shop.decided(e.Approved)).ground == "grant"
        await shop.asked(SECOND)
    [given] = await shop.ledger.grants("shop")
    assert given.standing(await shop.log.clock()) == "ended"


async def test_a_grant_is_for_what_comes_after_it(shop: Shop):
    """A wish that stood before it was given is put to people, however late the gate is: whoever
    gave it has not seen that one.
    """
    await shop.request()
    await shop.ledger.reviewer("ana").grant(ANAS, "refund", for_s=60)
    async with shop.gates():
        await shop.asked()
        await shop.judged(e.Approved, SECOND)


FIVE, HUNDRED = '{"amount":5}', '{"amount":100}'
#: What is granted, who wishes it with which arguments and where, and whether it is covered.
COVERED: list[tuple[str, dict[str, Any], dict[str, Any], bool]] = [
    ("any arguments", {}, {}, True),
    ("these arguments", {"arguments": HUNDRED}, {}, True),
    ("these arguments, spelled otherwise", {"arguments": '{ "amount" : 100 }'}, {}, True),
    ("other arguments", {"arguments": FIVE}, {}, False),
    ("one argument more", {"arguments": FIVE}, {"arguments": '{"amount":5,"to":"ann"}'}, False),
    ("a condition that holds", {"when": "args.amount <= 100.0"},
     {"arguments": '{"amount":99.5}'}, True),
    ("a condition that does not", {"when": "args.amount < 100"}, {}, False),
    ("a condition that cannot be evaluated: no such key", {"when": "args.sum < 5"}, {}, False),
    ("a condition that cannot be evaluated: a text", {"when": "args.to < 5"},
     {"arguments": '{"to":"ann"}'}, False),
    ("this agent", {"agent": "desk-*"}, {"agent": "desk-7"}, True),
    ("another agent", {"agent": "desk-*"}, {"agent": "shop-7"}, False),
    ("no agent at all", {"agent": "desk-*"}, {}, False),
    ("this thread", {"thread": "t?"}, {}, True),
    ("another thread", {"thread": "order-*"}, {}, False),
    ("in the name of who asks", {}, {"requester": "ana"}, False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("granted", "wish", "covered"), [pytest.param(*row, id=name) for name, *row in COVERED]
)
async def test_what_a_grant_covers(shop, granted, wish, covered):
    """Exact arguments or a condition, an agent, a thread; doubt is asked about (B68, B64, I4)."""
    await shop.ledger.reviewer("ana").grant(ANAS, "refund", for_s=60, **granted)
    async with shop.gates():
        await shop.request(**wish)
        if covered:
            assert (await shop.decided(e.Approved)).grants == ("ana/small",)
        else:
            await shop.asked()
    assert len(await used(shop)) == covered


async def test_a_rule_that_asks_two_takes_the_grants_of_two(shop: Shop):
    """A grant is its giver's vote: one does not do, nor two of the same person; two people's do,
    and each loses a use (B39, I6).
    """
    await shop.apply(ASK_TWO)
    await shop.ledger.reviewer("ana").grant(ANAS, "refund", for_s=60, uses=2)
    await shop.ledger.reviewer("ana").grant("shop/ana/more", "refund", for_s=60)
    async with shop.gates():
        assert (await shop.ask()).votes_needed == 2
        assert await used(shop) == {}
        await shop.ledger.reviewer("ben").grant(BENS, "refund", for_s=60)
        approved = await shop.judged(e.Approved, SECOND)
    assert (approved.grants, approved.voters) == (("ana/small", "ben/small"), ("ana", "ben"))
    assert await used(shop) == {"ana.small.used.1": "shop/t1/c2", "ben.small.used.1": "shop/t1/c2"}


async def test_a_grant_does_not_help_against_a_block(shop: Shop):
    """The policy that came after it blocks: denied by the policy, and no use is taken (B67, I3)."""
    await shop.ledger.reviewer("ana").grant(ANAS, "refund", for_s=60)
    await shop.apply(rule("closed", "block"))
    async with shop.gates():
        assert (await shop.judged(e.Denied)).ground == "policy"
    assert await used(shop) == {}


async def test_a_grant_that_came_before_it_was_forbidden_covers_nothing(shop: Shop):
    """The policy of by now says that no grant may cover this tool (I3, B69)."""
    await shop.ledger.reviewer("ana").grant(ANAS, "refund", for_s=60)
    await shop.apply('never_grant = ["re*"]\n' + ASK)
    async with shop.gates():
        await shop.ask()


# --------------------------------------------------------------------------------------- a later no


async def test_a_no_takes_back_the_grants_that_would_have_covered_it(shop: Shop):
    """A later no beats an earlier yes: grants are revoked, naming the call; then denied (B29)."""
    await shop.apply(ASK_TWO)
    await shop.ledger.reviewer("ana").grant(ANAS, "refund", for_s=60, uses=9)
    await shop.ledger.reviewer("ana").grant("shop/ana/five", "refund", for_s=60, arguments=FIVE)
    await shop.ledger.reviewer("ana").grant("shop/ana/elsewhere", "refund", for_s=60, thread="t2")
    async with shop.gates():
        await shop.ask()
        await shop.ledger.reviewer("ben").deny(FIRST, reason="not to this one")
        await shop.decided(e.Denied)
        standing = {str(one.ref): one.revoked for one in await shop.ledger.grants("shop")}
        assert [name for name, revoked in standing.items() if revoked] == ["shop/ana/small"]
        [revoked] = await shop.ledger.read(ANAS.revoked)
        [decided] = await shop.ledger.read(FIRST.decided)
        assert revoked.seq < decided.seq
        assert isinstance(revoked.event, e.GrantRevoked)
        assert (revoked.event.call, revoked.event.reason) == ("shop/t1/c1", "not to this one")
        # What it would have covered is asked about again, also when one person would do by now.
        await shop.apply(ASK)
        await shop.ask(SECOND, '{"amount":101}')


async def test_a_no_does_not_beat_a_later_yes(shop: Shop):
    """A grant that was given after the no, though before the gate counted it, stands: its giver may
    have known of the no.
    """
    async with shop.gates():
        await shop.ask()
    await shop.ledger.reviewer("ben").deny(FIRST)
    await shop.ledger.reviewer("ana").grant(ANAS, "refund", for_s=60)
    async with shop.gates():
        await shop.decided(e.Denied)
    [grant] = await shop.ledger.grants("shop")
    assert grant.revoked is None


async def test_a_no_of_the_policy_takes_back_nothing(shop: Shop):
    """Only people take back what people gave."""
    await shop.ledger.reviewer("ana").grant(ANAS, "refund", for_s=60)
    await shop.apply(rule("closed", "block"))
    async with shop.gates():
        await shop.judged(e.Denied)
    [grant] = await shop.ledger.grants("shop")
    assert grant.revoked is None


# ------------------------------------------------------------------------ crashes, and many at once


async def test_a_gate_that_dies_after_it_took_a_use(shop: Shop):
    """The use stands and the decision does not: the next look approves by that very use, and takes
    no second one (I6, B57).
    """
    await shop.ledger.reviewer("ana").grant(ANAS, "refund", for_s=60, uses=5)
    await shop.request()
    [handed] = await shop.ledger.read(FIRST.requested)
    gate = Gate()
    take, again = gate.decide(await gate.load(shop.ledger, handed), handed)
    assert isinstance(take, Append)
    assert again == Reload()
    await shop.ledger.append(take.slot, take.event)
    async with shop.gates(2):
        assert (await shop.decided(e.Approved)).grants == ("ana/small",)
        await shop.judged(e.Approved, SECOND)
    assert await used(shop) == {"ana.small.used.1": "shop/t1/c1", "ana.small.used.2": "shop/t1/c2"}


async def test_revoked_between_the_use_and_the_decision(shop: Shop):
    """The gate died between the two, the grant is gone: people are asked, nothing runs (I4)."""
    await shop.ledger.reviewer("ana").grant(ANAS, "refund", for_s=60)
    await shop.request()
    await shop.ledger.append(ANAS.used(1), e.GrantUsed(call=str(FIRST)))
    await shop.ledger.reviewer("ana").revoke_grant(ANAS)
    async with shop.gates():
        await shop.asked()


async def test_two_gates_at_the_same_call_take_one_use(shop: Shop):
    """Handed out twice, looked at by both before either has recorded anything (I6, I13)."""
    await shop.ledger.reviewer("ana").grant(ANAS, "refund", for_s=60, uses=5)
    await shop.request()
    [handed] = await shop.ledger.read(FIRST.requested)
    gate, slower = Gate(), Gate()
    sights = await gate.load(shop.ledger, handed), await slower.load(shop.ledger, handed)
    [[take, _], [again, _]] = [gate.decide(seen, handed) for seen in sights]
    assert isinstance(take, Append)
    assert isinstance(again, Append)
    assert await shop.ledger.try_append(take.slot, take.event) is None
    assert await shop.ledger.try_append(again.slot, again.event) is not None  # so it looks again
    [decision, _] = slower.decide(await slower.load(shop.ledger, handed), handed)
    assert isinstance(decision, Append)
    assert decision.slot == FIRST.decided
    assert len(await used(shop)) == 1


@pytest.mark.parametrize("uses", sampled((1, 3, 8), 3))
async def test_eight_at_once_and_two_gates(store: Path, uses: int):
    """Each gate under its own credentials and on its own connection: exactly as many run as were
    granted, the rest are asked about (I6).
    """
    await ensure_account(store, "reviewer-ana")
    refs = [ThreadRef("shop", f"t{number}").call("c1") for number in range(8)]
    async with (
        Ledger.connect(store, role="service", name="desk") as service,
        Ledger.connect(store, role="operator") as operator,
        Ledger.connect(store, role="reviewer-ana") as ana,
    ):
        await operator.append(policy_slot("shop", 1), applied(ASK))
        await service.declare("shop", REFUND)
        with pytest.raises(BrokerRefused):
            await ana.reviewer("ben").grant("shop/ben/small", "refund", for_s=60)
        await ana.reviewer("ana").grant(ANAS, "refund", for_s=60, uses=uses)
        async with working([("gate", Gate()), ("gate", Gate())], store=store):
            await asyncio.gather(
                *(service.request(ref, "refund", {"amount": 1}, requester="rita") for ref in refs)
            )
            ends = [await _either(service, ref) for ref in refs]
        assert ends.count("decided") == uses
        assert ends.count("gated") == 8 - uses
        [grant] = await service.grants("shop")
        taken = {fact.event.call for fact in grant.used if isinstance(fact.event, e.GrantUsed)}
        assert taken == {str(ref) for ref, end in zip(refs, ends, strict=True) if end == "decided"}
        assert len(grant.used) == uses


async def _either(ledger: Ledger, ref: CallRef) -> str:
    """Wait until the gate has said something; where it stands."""
    [fact] = await recorded(ledger, ref.gated.subject, ref.decided.subject)
    return fact.slot.tail[2]


# --------------------------------------------------------------------------- giving and taking back

BAD: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("without an end", {"for_s": float("inf")}, BadInput,
     "a grant ends: between now and 366 days from now. inf s is not."),
    ("over at once", {"for_s": 0}, BadInput,
     "a grant ends: between now and 366 days from now. 0 s is not."),
    ("no number", {"for_s": float("nan")}, BadInput,
     "a grant ends: between now and 366 days from now. nan s is not."),
    ("longer than a year", {"for_s": 367 * 86400.0}, BadInput,
     "a grant ends: between now and 366 days from now. 3.17088e+07 s is not."),
    ("no use", {"uses": 0}, BadInput, "a grant has 1 to 1,000 uses, not 0."),
    ("too many uses", {"uses": 1001}, BadInput, "a grant has 1 to 1,000 uses, not 1001."),
    ("arguments and a condition", {"arguments": FIVE, "when": "args.amount < 5"}, BadInput,
     "a grant is for exact arguments or for those that a condition holds for; give one of them."),
    ("misfit arguments", {"arguments": '{"amount":"five"}'}, BadArguments,
     ('The arguments of refund do not fit its schema: '
      'at /amount, the value is not of type "number".')),
    ("of a tool that nobody declared", {"tool": "wire"}, UnknownTool,
     "no tool 'wire' is declared in workspace 'shop'. Declared are: apply_policy, refund."),
    ("of a tool that governs", {"tool": "apply_policy"}, NotAllowed,
     ("no grant may cover apply_policy: "
      "people look at each call of it, as its declaration says. Nothing was recorded.")),
    ("of a tool that is never granted", {"policy": 'never_grant = ["ref*"]'}, NotAllowed,
     ("no grant may cover refund: "
      "people look at each call of it, as never_grant in the policy says. Nothing was recorded.")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "kind", "sentence"), [pytest.param(*row, id=name) for name, *row in BAD]
)
async def test_a_grant_that_should_not_be_given_is_refused(shop, given, kind, sentence):
    """In one sentence, and nothing is recorded (B69, I4)."""
    await shop.ledger.declare("shop", ToolSpec(name="apply_policy", schema=SCHEMA, governs=True))
    if "policy" in given:
        await shop.apply(given["policy"])
    said = {"tool": "refund", "for_s": 60.0} | {
        name: word for name, word in given.items() if name != "policy"
    }
    giving = shop.ledger.reviewer("ana").grant(ANAS, said.pop("tool"), **said)
    await _refused(shop, giving, kind, sentence)


async def test_a_condition_that_is_none_is_refused(shop: Shop):
    """Of what no condition can ever name, or what cannot be read as one."""
    for when in ("args.amount <", "now() > 5", "amount < 5"):
        before = await shop.log.last_seq()
        with pytest.raises(BadInput, match=r"is not a valid condition|has unknown names"):
            await shop.ledger.reviewer("ana").grant(ANAS, "refund", for_s=60, when=when)
        assert await shop.log.last_seq() == before


async def test_a_grant_is_given_and_taken_back_once(shop: Shop):
    """Given again as it is, it is the same; names stand for one grant, gone is gone (B48, B50)."""
    first, *others = await asyncio.gather(
        *(shop.ledger.reviewer("ana").grant(ANAS, "refund", for_s=60, uses=2) for _ in range(10))
    )
    assert {one.given.seq for one in others} == {first.given.seq}
    assert (first.left, first.standing(shop.ledger.now())) == (2, "in force")
    another = r"there is another grant shop/ana/small: Granted by desk at 20.* Choose"
    with pytest.raises(AlreadyFilled, match=another):
        await shop.ledger.reviewer("ana").grant(ANAS, "refund", for_s=60, uses=3)
    sentence = "there is no grant shop/ben/small. `ayes grant list` shows those that there are."
    await _refused(shop, shop.ledger.reviewer("ana").revoke_grant(BENS), BadInput, sentence)
    await shop.ledger.reviewer("ben").revoke_grant("shop/ana/small")
    with pytest.raises(
        AlreadyFilled, match="shop/ana/small is revoked: GrantRevoked by desk at 20"
    ):
        await shop.ledger.reviewer("ana").revoke_grant(ANAS)
    with pytest.raises(BadId):
        await shop.ledger.reviewer("ana").grant("shop/ana/*", "refund", for_s=60)


async def _refused(
    shop: Shop, doing: Awaitable[object], kind: type[Exception], sentence: str
) -> None:
    before = await shop.log.last_seq()
    with pytest.raises(kind) as raised:
        await doing
    assert (type(raised.value), str(raised.value)) == (kind, sentence)
    assert await shop.log.last_seq() == before


async def test_many_wishes_of_one_thread_share_the_uses(shop: Shop):
    """Eight at once in one thread, two gates: as many run as were granted, no use twice (I6)."""
    await shop.ledger.reviewer("ana").grant(ANAS, "refund", for_s=60, uses=3)
    refs = [THREAD.call(f"r{number}") for number in range(8)]
    async with shop.gates(2):
        await asyncio.gather(
            *(shop.request(ref, f'{{"amount":{at}}}') for at, ref in enumerate(refs))
        )
        ends = [await _either(shop.ledger, ref) for ref in refs]
    assert sorted(ends) == ["decided"] * 3 + ["gated"] * 5
    assert len(await used(shop)) == 3
