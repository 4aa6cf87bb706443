"""Budgets: the sum of what calls spend never exceeds what the policy lets them spend.

First the pure sums, as tables and a property; then a real gate; then several gates at once.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import aclosing
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as some
from running import working
from shop import FIRST, SCHEMA, SECOND, THIRD, THREAD, Shop, rule
from stories import REF, SETTLED, UNSETTLED, Story
from until import recorded

from ayes.consumers.effects import Append, Reload
from ayes.consumers.gate import Gate
from ayes.consumers.worker import Worker
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.budgets import Sum, filled, giving_back, sums_of
from ayes.ledger.judging.policies import AppliedPolicy, Policies
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import Delivered
from ayes.ledger.validity import call_of
from ayes.ops.audit.backtest import backtest_ledger
from ayes.schemas import events as e
from ayes.schemas.amounts import amount, amount_at, total
from ayes.schemas.policy import Budget, read_policy
from ayes.schemas.slots import BUDGET, ROOT, ThreadRef
from ayes.schemas.tools import ToolSpec

pytestmark = pytest.mark.log("memory")

FREELY = rule("freely", "allow")
ASK = rule("money", "ask", 'voters = ["ana", "ben"]')
#: The rounds of the race between three gates; `make races` has more.
ROUNDS = int(os.environ.get("RACES", "2"))


def budget(limit: object = 250, then: str = "block", per: str = "", *more: str) -> str:
    names = ", ".join(f'"{one}"' for one in per.split())
    return "\n".join(
        ("[[budget]]", 'name = "refunds"', 'tools = ["refund"]', 'amount = "/amount"',
         f"limit = {limit}", f'then = "{then}"', f"per = [{names}]", *more, "")
    )  # fmt: skip


def tokens(per: str) -> str:
    names = ", ".join(f'"{one}"' for one in per.split())
    head = '[[budget]]\nname = "talk"\ntools = ["*"]\namount = "tokens"\nlimit = 100\n'
    return f'{head}then = "block"\nper = [{names}]\n' + FREELY


def money(value: object) -> str:
    return f'{{"amount":{value}}}'


# --------------------------------------------------------------------------------------------- pure


@pytest.mark.parametrize(
    ("arguments", "pointer", "value"),
    [
        ('{"amount":12.50}', "/amount", "12.5"),
        ('{"amount":"0.10"}', "/amount", "0.1"),
        ('{"amount":1e3}', "/amount", "1000"),
        ('{"amount":-0}', "/amount", "0"),
        ('{"lines":[{"a/b":1},{"a/b":7}]}', "/lines/1/a~1b", "7"),
        ('{"~1":3}', "/~01", "3"),
        ('{"amount":-1}', "/amount", None),
        ('{"amount":true}', "/amount", None),
        ('{"amount":null}', "/amount", None),
        ('{"amount":" 1"}', "/amount", None),
        ('{"amount":"1,000"}', "/amount", None),
        ('{"amount":"NaN"}', "/amount", None),
        ('{"amount":[1]}', "/amount", None),
        ('{"amount":1e18}', "/amount", None),
        ('{"amount":1e-19}', "/amount", None),
        ('{"amount":1e999}', "/amount", None),
        ('{"lines":[1]}', "/lines/01", None),
        ('{"lines":[1]}', "/lines/9", None),
        ("{}", "/amount", None),
        ("not JSON", "/amount", None),
    ],
)
def test_an_amount_is_an_exact_decimal_or_unknown(arguments: str, pointer: str, value: str | None):
    """Anything uncertain is not a yes: neither what is missing nor what is negative is one."""
    assert amount_at(arguments, pointer) == (None if value is None else Decimal(value))


def test_sums_are_exact():
    """As floats, ten times 0.1 is not 1; the largest amounts lose nothing either."""
    assert total([Decimal("0.1")] * 10) == 1
    largest = Decimal("999999999999999999.999999999999999999")
    assert total([largest] * 1000) == Decimal("999999999999999999999.999999999999999")


ANY = ToolSpec(name="refund", schema='{"type":"object"}')
MINE = THREAD.call("mine")


@given(
    uses=some.lists(some.tuples(some.integers(0, 5), some.integers(0, 400)), max_size=12),
    back=some.sets(some.integers(0, 5)),
    wanted=some.integers(1, 400),
)
@example(uses=[(0, 400), (1, 300)], back=set(), wanted=700)
@example(uses=[(0, 100), (0, 400), (0, 300)], back=set(), wanted=600)
def test_what_fits_keeps_the_sum_within_the_limit(uses, back, wanted):
    """In whatever order facts are read: each other call counts once, with its largest amount,
    unless it gave that back; what fits is exactly what leaves the sum within the limit.
    """
    story, one = Story(), Sum(read_policy(budget(1000), "it").budgets[0], "shop")
    for number, (call, cents) in enumerate(uses, 1):
        event = e.BudgetUsed(call=str(THREAD.call(f"c{call}")), amount=str(cents))
        story.tell(one.ref.used(number), event)
    one = msgspec.structs.replace(
        filled(one, reversed(story.facts)),
        given_back=frozenset(str(THREAD.call(f"c{call}")) for call in back),
    )
    most = {call: max(cents for c, cents in uses if c == call) for call, _ in uses}
    spent = sum(cents for call, cents in most.items() if call not in back)
    assert one.spent(MINE) == spent
    assert one.fits(MINE, money(wanted)) == (spent + wanted <= 1000)
    for call, had in most.items():
        others = spent - (had if call not in back else 0)
        fits = wanted <= had or others + wanted <= 1000
        assert one.fits(THREAD.call(f"c{call}"), money(wanted)) == fits
    assert one.next_slot == one.ref.used(len(uses) + 1)
    assert one.ref.used(1).filled_by == (e.BudgetUsed,)


def test_each_budget_and_day_has_a_series_of_its_own():
    """The same words as thread and as agent are two sums; the day is that of the request."""
    story = Story()
    story.tell(
        FIRST.requested, e.ToolRequested(tool="refund", arguments="{}", digest="", agent="t1")
    )
    call, refs = call_of(FIRST, story.facts), set()
    keys = {"agent": ("t1",), "thread": ("t1",), "day": ("2026-03-01",), "": ()}
    for per, key in keys.items():
        own = AppliedPolicy(1, read_policy(budget(1, "block", per), "it"))
        [one] = sums_of(Policies(own), call)
        assert one.key == key
        refs.add(one.ref)
    assert len(refs) == 4


def test_what_cannot_be_read_leaves_no_room():
    """Nobody knows how much it is, so nothing more fits but what a call has already (I13)."""
    story, one = Story(), Sum(read_policy(budget(1000), "it").budgets[0], "shop")
    story.tell(one.ref.used(1), e.BudgetUsed(call=str(MINE), amount="5"))
    # A turn counts too: an earlier budget of tokens may have had the same name. "?" is not a call.
    story.tell(one.ref.used(2), e.BudgetUsed(call=f"{THREAD}/turn.1", amount="5"))
    assert filled(one, story.facts).spent(SECOND) == 10
    story.tell(one.ref.used(3), e.BudgetUsed(call="?", amount="5"))
    one = filled(one, story.facts)
    assert one.others(SECOND) == (MINE,)
    assert one.spent(MINE) is None
    assert one.fits(MINE, money(5))
    assert not one.fits(MINE, money(6))
    assert not one.fits(SECOND, money(1))


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ("limit = 1.5", "is not a limit"),
        ('limit = "x"', "is not a limit"),
        ("limit = -1", "is not a limit"),
        ("limit = true", "is not a limit"),
        ('limit = 1\namount = "amount"', "is not a JSON pointer"),
        ('limit = 1\nper = ["week"]', "per"),
        ('limit = 1\nname = "two words"', "two words"),
    ],
)
def test_what_a_budget_cannot_say(more: str, place: str):
    """The mistake is named, with its line."""
    keys = {"name": '"b"', "tools": '["x"]', "amount": '"/a"'}
    given_ = {line.split(" = ")[0] for line in more.splitlines()}
    lines = [f"{key} = {value}" for key, value in keys.items() if key not in given_]
    text = "\n".join(("[[budget]]", *lines, more))
    with pytest.raises(Exception, match=r"line \d") as found:
        read_policy(text, "policy.toml")
    assert place in str(found.value)


def test_a_limit_is_exact():
    """A whole number, or a decimal in quotes; the order of `per` is no part of the meaning."""
    one, other = (
        read_policy(budget('"99.50"', "ask", per), "it").budgets[0]
        for per in ("day agent", "agent day")
    )
    assert one == other
    assert isinstance(one, Budget)
    assert one.limit == amount("99.5")


# --------------------------------------------------------------------------------- with a real gate


async def series(shop: Shop) -> list[e.BudgetUsed]:
    facts = await shop.ledger.read(f"{ROOT}.shop.{BUDGET}.>")
    return [fact.event for fact in facts if isinstance(fact.event, e.BudgetUsed)]


@pytest.mark.log("memory", "jetstream")
async def test_calls_run_until_the_budget_is_used(shop: Shop):
    """The amount is recorded before the approval; what is left may still be spent (B76)."""
    async with shop.at_work(budget(250, "block") + FREELY):
        for ref in (FIRST, SECOND):
            await shop.judged(e.Approved, ref)
        denied = await shop.judged(e.Denied, THIRD)
        small = THREAD.call("small")
        await shop.judged(e.Approved, small, money(50))
    assert denied.ground == "limit"
    assert denied.reason == ("200 of 250 is used of the budget 'refunds', and this call needs 100.")
    assert [(one.call, one.amount) for one in await series(shop)] == [
        (str(FIRST), "100"), (str(SECOND), "100"), (str(small), "50"),
    ]  # fmt: skip


async def test_people_are_asked_beyond_a_budget_that_asks(shop: Shop):
    """The question says how the budget stands; the yes of a person exceeds it, and counts, so that
    the next call finds no more room (B3, B76).
    """
    async with shop.at_work(budget(150, "ask", "", 'unit = "EUR"') + FREELY):
        await shop.judged(e.Approved)
        asking = await shop.ask(SECOND)
        assert asking.reason == (
            "100 of 150 EUR is used of the budget 'refunds', and this call needs 100."
        )
        await shop.ledger.reviewer("ana").approve(SECOND)
        assert (await shop.decided(e.Approved, SECOND)).ground == "people"
        assert (await shop.ask(THIRD, money(1))).reason.startswith("200 of 150 EUR")


@pytest.mark.parametrize(
    ("secret", "shown"), [("/amount", False), ("/*", False), ("/card", True), ("/amount/net", True)]
)
@pytest.mark.parametrize("then", ["ask", "block"])
async def test_a_secret_amount_is_not_in_the_reason(shop, secret, shown, then):
    """Notices have the reason, and no argument that the tool declares as secret."""
    await shop.open(
        budget(150, then) + FREELY, "", ToolSpec(name="refund", schema=SCHEMA, secret=(secret,))
    )
    async with shop.gates():
        await shop.judged(e.Approved)
        await shop.request(SECOND, money(77))
        asks = then == "ask"
        said = await (shop.asked(SECOND) if asks else shop.decided(e.Denied, SECOND))
    if shown:
        assert said.reason.endswith("of the budget 'refunds', and this call needs 77.")
    else:
        assert said.reason == "The budget 'refunds' has no room for this call."


async def test_nor_is_it_after_people_have_decided(shop: Shop):
    tool = ToolSpec(name="refund", schema=SCHEMA, secret=("/amount",))
    async with shop.at_work(budget(150, "block") + ASK, "", tool):
        for ref in (FIRST, SECOND):
            await shop.ask(ref)
        for ref in (FIRST, SECOND):
            await shop.ledger.reviewer("ana").approve(ref)
            await shop.until(ref.decided)
        denied = await shop.decided(e.Denied, SECOND)
    why = "the budget 'refunds' has no room for this call."
    assert denied.reason == f"Approved by people, but {why}"


async def test_a_grant_does_not_exceed_a_budget(shop: Shop):
    """Its giver has not looked at this call; no use of the grant is taken (B76)."""
    async with shop.at_work(budget(100, "ask") + ASK):
        await shop.ledger.reviewer("ana").grant("shop/ana/some", "refund", for_s=60, uses=5)
        assert (await shop.judged(e.Approved)).grants == ("ana/some",)
        asking = await shop.ask(SECOND)
        assert asking.voters == ("ana", "ben")
        assert "Also, 100 of 100 is used" in asking.reason
    [grant] = await shop.ledger.grants("shop")
    assert len(grant.used) == 1


async def test_a_budget_that_blocks_binds_people_too(shop: Shop):
    """The amount that was free when they were asked is used by the time of their yes (B14)."""
    async with shop.at_work(budget(150, "block") + ASK):
        for ref in (FIRST, SECOND):
            await shop.ask(ref)
        await shop.ledger.reviewer("ana").approve(FIRST)
        await shop.decided(e.Approved, FIRST)
        await shop.ledger.reviewer("ana").approve(SECOND)
        denied = await shop.decided(e.Denied, SECOND)
        assert (await shop.judged(e.Denied, THIRD)).ground == "limit"
    assert denied.ground == "limit"
    assert denied.reason == (
        "Approved by people, but 100 of 150 is used of the budget 'refunds', and this call needs "
        "100."
    )
    assert (await shop.ledger.call(THIRD)).gated is None


@pytest.mark.parametrize(
    ("then", "edited", "kind", "left"),
    [
        ("ask", 200, e.Denied, []),
        ("ask", 150, e.Approved, ["150"]),
        ("ask", 10, e.Approved, ["10"]),
        ("ask", '"many"', e.Denied, []),
        ("block", 151, e.Denied, []),
        ("block", 120, e.Approved, ["120"]),
    ],
)
async def test_the_amount_is_that_of_the_arguments_that_run(shop, then, edited, kind, left):
    """An edit that raises the amount beyond the budget does not run, whatever its `then` (I2)."""
    await shop.open(budget(150, then) + rule("money", "ask", "editor_counts = true"), "", ANY)
    async with shop.gates():
        await shop.ask()
        await shop.ledger.reviewer("ana").approve(FIRST, arguments=money(edited))
        await shop.decided(kind)
    assert [one.amount for one in await series(shop)] == left


@pytest.mark.parametrize(("edited", "kind"), [(60, e.Approved), (100.5, e.Denied)])
async def test_an_edit_that_lowers_the_amount_may_exceed_as_the_question_did(
    shop: Shop, edited: float, kind: type
):
    """People were shown more than what runs now."""
    async with shop.at_work(budget(150, "ask") + rule("money", "ask", "editor_counts = true")):
        await shop.ask()
        await shop.ledger.reviewer("ana").approve(FIRST)
        await shop.decided(e.Approved)
        await shop.ask(SECOND)
        await shop.ledger.reviewer("ana").approve(SECOND, arguments=money(edited))
        await shop.decided(kind, SECOND)


@pytest.mark.parametrize(("edited", "kind"), [(150, e.Approved), (151, e.Denied)])
async def test_an_edit_may_say_the_amount_that_was_not_known(shop: Shop, edited: int, kind: type):
    """People see that nobody knows it, and let it run with one: it must fit (I2)."""
    async with shop.at_work(budget(150, "ask") + rule("money", "ask", "editor_counts = true")):
        await shop.ask(FIRST, "{}")
        await shop.ledger.reviewer("ana").approve(FIRST, arguments=money(edited))
        await shop.decided(kind)


async def test_no_requester_confirms_what_is_beyond_a_budget(shop: Shop):
    """It takes four eyes when people are asked; and what had room then, and has none now, does not
    run (I2).
    """
    own = rule("money", "ask", 'mode = "requester_confirms"')
    async with shop.at_work(budget(150, "ask") + own):
        for ref in (FIRST, SECOND):
            assert (await shop.ask(ref)).mode == "requester_confirms"
        rita = shop.ledger.reviewer("rita")
        await rita.approve(FIRST)
        await shop.decided(e.Approved)
        asked = await shop.ask(THIRD)
        assert (asked.mode, asked.excluded, asked.own) == ("four_eyes", ("rita",), ())
        await rita.approve(SECOND)
        denied = await shop.decided(e.Denied, SECOND)
        assert denied.reason.startswith("Approved by people, but 100 of 150 is used")
        await shop.ledger.reviewer("ana").approve(THIRD)
        assert (await shop.decided(e.Approved, THIRD)).mode == "four_eyes"


async def test_an_edit_may_spend_what_another_call_gave_back(shop: Shop):
    """Though the call as requested had room without that."""
    async with shop.at_work(budget(150, "block") + rule("money", "ask", "editor_counts = true")):
        await shop.ask(FIRST)
        await shop.ledger.reviewer("ana").approve(FIRST)
        await shop.decided(e.Approved, FIRST)
        await shop.ledger.reviewer("ana").revoke(FIRST)
        await shop.ask(SECOND, money(50))
        await shop.ledger.reviewer("ana").approve(SECOND, arguments=money(150))
        await shop.decided(e.Approved, SECOND)


async def test_an_amount_that_is_not_known_is_beyond_the_budget(shop: Shop):
    """Missing or negative: people look, or it does not run."""
    async with shop.at_work(budget(150, "ask") + FREELY):
        await shop.request(FIRST, "{}")
        assert "the amount of this call (/amount) is not known" in (await shop.asked()).reason
        await shop.ask(SECOND, money(-5))
        await shop.apply(budget(150, "block") + FREELY)
        assert (await shop.judged(e.Denied, THIRD, money(-5))).ground == "limit"


async def test_what_did_not_run_is_given_back(shop: Shop):
    """A revoked approval; a call that was started stays spent, however it ends."""
    async with shop.at_work(budget(100, "block") + FREELY):
        await shop.judged(e.Approved)
        await shop.judged(e.Denied, SECOND)
        await shop.ledger.reviewer("ana").revoke(FIRST)
        await shop.judged(e.Approved, THIRD)
        await shop.ledger.start(THIRD)
        last = THREAD.call("c4")
        await shop.judged(e.Denied, last)


async def test_each_agent_and_day_has_a_sum(shop: Shop):
    """And each thread, where the budget says so; the key is of the request, so it is one sum."""
    await shop.open(budget(100, "block", "agent day") + FREELY)
    elsewhere = ThreadRef("shop", "t2").call("c1")
    async with shop.gates():
        await shop.judged(e.Approved, FIRST, agent="desk one")
        await shop.judged(e.Denied, elsewhere, agent="desk one")
        await shop.judged(e.Approved, SECOND, agent="desk two")
    requested = (await shop.ledger.call(FIRST)).requested
    day = f"{requested.recorded_at:%Y-%m-%d}"
    assert [one.key for one in await series(shop)] == [("desk one", day), ("desk two", day)]


async def test_a_requester_has_one_sum_by_every_name(shop: Shop):
    """However an application writes the person, as where they are kept from voting: case and white
    space do not count, and `[people]` says whose the accounts are. A workspace's table says nothing
    about the organisation's sums (I2).
    """
    people = '[people]\nrita = ["rita@corp.example", "slack:U17"]\n'
    own = people + budget(250, per="requester") + FREELY
    async with shop.at_work(own, budget(350, per="requester")):
        for number, name in enumerate(("rita", " Rita@Corp.example")):
            await shop.request(THREAD.call(f"r{number}"), requester=name)
            await shop.decided(e.Approved, THREAD.call(f"r{number}"))
        for number, name in enumerate(("RITA", "slack:u17")):
            await shop.request(THREAD.call(f"s{number}"), requester=name)
            assert "(rita)" in (await shop.decided(e.Denied, THREAD.call(f"s{number}"))).reason
        await shop.request(SECOND, requester="Ben")
        await shop.decided(e.Approved, SECOND)
    keys = [(one.organisation, *one.key) for one in await series(shop)]
    assert sorted(keys) == [
        (False, "ben"), (False, "rita"), (False, "rita"),
        (True, "ben"), (True, "rita"), (True, "rita@corp.example"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "of", [lambda: budget(150, per="requester") + FREELY, lambda: tokens("requester")]
)
async def test_the_organisations_people_count_for_all(shop: Shop, of: Callable[[], str]):
    """Whether they spend money or tokens."""
    await shop.open(of(), '[people]\nrita = ["rita@corp.example"]\n')
    mail = "rita@corp.example"
    async with shop.gates():
        await shop.ledger.append(THREAD.opened, e.ThreadOpened(requester=mail))
        usage = e.Usage(output_tokens=100)
        await shop.ledger.append(THREAD.replied(1), e.ModelReplied(parts=(), usage=usage))
        await shop.request(THREAD.call("mine"), requester=mail)
        await shop.until(THREAD.call("mine").decided)
        other = ThreadRef("shop", "t2").call("c")
        await shop.request(other, requester="rita")
        assert "(rita)" in (await shop.decided(e.Denied, other)).reason
    assert [one.key for one in await series(shop)] == [("rita",)]


async def test_both_policies_budgets_count(shop: Shop):
    """All must have room, each with a sum of its own though the names are alike (B76)."""
    async with shop.at_work(budget(500, "ask") + FREELY, budget(100, "block")):
        await shop.judged(e.Approved)
        denied = await shop.judged(e.Denied, SECOND)
    assert "the organisation's budget 'refunds'" in denied.reason
    assert sorted(one.organisation for one in await series(shop)) == [False, True]


@pytest.mark.parametrize(("own", "over"), [("block", "ask"), ("ask", "block")])
async def test_beyond_two_budgets_the_one_that_blocks_counts(shop: Shop, own: str, over: str):
    """Whichever policy has it (B76)."""
    async with shop.at_work(budget(50, own) + FREELY, budget(50, over)):
        assert (await shop.judged(e.Denied)).ground == "limit"


async def test_a_gate_that_died_has_spent_once(shop: Shop):
    """After the amount and before the approval: the next gate finds it by the call (I9)."""
    await shop.open(budget(100, "block") + FREELY)
    await shop.request()
    gate, [handed] = Gate(), await shop.ledger.read(FIRST.requested)
    use, again = gate.decide(await gate.load(shop.ledger, handed), handed)
    assert isinstance(use, Append)
    assert again == Reload()
    await shop.ledger.append(use.slot, use.event)
    async with shop.gates(2):
        await shop.decided(e.Approved)
    assert len(await series(shop)) == 1


async def test_tokens_of_a_thread(shop: Shop):
    """Once the replies of the model have used them, no more calls of the thread run (B76)."""
    await shop.open(tokens("thread"))
    await shop.ledger.append(
        THREAD.replied(1),
        e.ModelReplied(parts=(), usage=e.Usage(input_tokens=60, output_tokens=39)),
    )
    async with shop.gates():
        await shop.judged(e.Approved)
        await shop.ledger.append(
            THREAD.replied(2), e.ModelReplied(parts=(), usage=e.Usage(output_tokens=1))
        )
        denied = await shop.judged(e.Denied, SECOND)
    assert denied.reason == "100 of 100 is used of the budget 'talk' (t1)."


async def replied(shop: Shop, thread: ThreadRef, turn: int, amount: int, agent: str = "") -> None:
    if turn == 1:
        await shop.ledger.append(thread.opened, e.ThreadOpened(requester="rita", agent=agent))
    reply = e.ModelReplied(parts=(), usage=e.Usage(output_tokens=amount))
    await shop.ledger.append(thread.replied(turn), reply)


@pytest.mark.log("memory", "jetstream")
async def test_tokens_of_an_agent_and_a_day(shop: Shop):
    """What an agent's models use in all its threads counts together, and that of another agent does
    not; each reply counts once, whatever number of gates look.
    """
    threads = [ThreadRef("shop", f"talk-{number}") for number in range(3)]
    async with shop.at_work(tokens("agent day"), gates=3):
        await replied(shop, threads[0], 1, 60, "desk")
        await used(shop, 1)
        await shop.request(threads[1].call("c1"), agent="desk")
        await shop.decided(e.Approved, threads[1].call("c1"))
        await replied(shop, threads[1], 1, 40, "desk")
        await used(shop, 2)
        await shop.request(threads[0].call("c2"), agent="desk")
        denied = await shop.decided(e.Denied, threads[0].call("c2"))
        await shop.request(threads[2].call("c3"), agent="other")
        await shop.decided(e.Approved, threads[2].call("c3"))
    assert denied.reason.startswith("100 of 100 is used of the budget 'talk' (desk, 20")
    uses = [fact.event for fact in await shop.ledger.read(f"{ROOT}.shop.{BUDGET}.>")]
    assert [(use.call, use.amount) for use in uses] == [
        ("shop/talk-0/turn.1", "60"),
        ("shop/talk-1/turn.1", "40"),
    ]
    report, _ = await backtest_ledger(shop.ledger, read_policy(tokens("agent day"), "policy.toml"))
    assert (report.allowed, report.blocked, report.changed) == (2, 1, 0)


async def used(shop: Shop, number: int) -> None:
    """Wait until the only sum has so many facts."""
    pattern = f"{ROOT}.shop.{BUDGET}.talk.*.{number}"
    await recorded(shop.ledger, pattern)


async def test_no_call_is_taken_for_a_reply(shop: Shop):
    """Whatever a service calls its call: what a reply has used counts for it too (I10)."""
    async with shop.at_work(tokens("day")):
        for turn in (1, 2):
            await replied(shop, THREAD, turn, 60)
            await used(shop, turn)
        for name in ("turn-1", "turn-2"):
            await shop.request(THREAD.call(name))
            denied = await shop.decided(e.Denied, THREAD.call(name))
            assert denied.reason.startswith("120 of 100 is used of the budget 'talk'")


@pytest.mark.parametrize("per", ["thread", "day"])
async def test_no_reply_gives_tokens_back(shop: Shop, per: str):
    """A provider, or a model's program, that reports less than nothing has used nothing; what other
    replies have used stays known.
    """
    async with shop.at_work(tokens(per)):
        await replied(shop, THREAD, 1, 100)
        usage = e.Usage(input_tokens=-70, output_tokens=-30)
        await shop.ledger.append(THREAD.replied(2), e.ModelReplied(parts=(), usage=usage))
        usage = e.Usage(input_tokens=-70, output_tokens=5)
        await shop.ledger.append(THREAD.replied(3), e.ModelReplied(parts=(), usage=usage))
        if per == "day":
            await used(shop, 2)
        denied = await shop.judged(e.Denied)
    assert denied.reason.startswith("105 of 100 is used of the budget 'talk'")


@pytest.mark.log("memory", "jetstream")
async def test_a_wish_is_judged_with_the_tokens_of_its_own_reply(shop: Shop):
    """The reply that exceeds the budget cannot still let its own wishes run."""
    await shop.open(tokens("day"))
    tool = await shop.ledger.tool("shop", "refund")
    opened = e.ThreadOpened(
        requester="rita", model="test:m", tools=(e.ToolRef("refund", tool.version),)
    )
    await shop.ledger.append(THREAD.opened, opened)
    async with shop.gates(2):
        wish = e.Wish("refund", money(1), "call_a")
        usage = e.Usage(input_tokens=90, output_tokens=10)
        await shop.ledger.append(THREAD.replied(1), e.ModelReplied(parts=(wish,), usage=usage))
        denied = await shop.decided(e.Denied, THREAD.wish(1, 0))
    assert denied.reason.startswith("100 of 100 is used of the budget 'talk'")


async def test_nobody_breaks_the_glass_of_a_budget_that_blocks(shop: Shop):
    """An emergency lets one person decide alone; it does not make money (docs/policies.md)."""
    rules = rule("money", "ask", 'voters = ["ana", "ben"]', "votes_needed = 2",
                 'break_glass = ["cai"]')  # fmt: skip
    async with shop.at_work(budget(150) + rules):
        for ref in (FIRST, SECOND):
            await shop.ask(ref)
        for ref in (FIRST, SECOND):
            await shop.cast("cai", ref, "break_glass", reason="!")
            await shop.until(ref.decided)
        assert isinstance((await shop.ledger.call(FIRST)).decided.event, e.Approved)
        denied = await shop.decided(e.Denied, SECOND)
    assert denied.ground == "limit"
    assert denied.reason.startswith("Approved by people, but 100 of 150 is used")


# ------------------------------------------------------------------------------------ several gates


@pytest.mark.log("memory", "jetstream")
@pytest.mark.parametrize(("limit", "run"), [(450, 4), (900, 9)])
async def test_three_gates_never_exceed_a_budget(shop: Shop, limit: int, run: int):
    """Nine at once over twelve threads: exactly as many run as fit (B76, I10)."""
    names = [f"t{number}" for number in range(12)]
    await shop.open(budget(limit, "block", "agent") + FREELY)
    # One for all: a broker keeps the consumer of each watch for a while.
    watching = aclosing(shop.ledger.watch(1, f"{ROOT}.shop.*.call.*.decided"))
    async with shop.gates(3), watching as facts:
        for round_ in range(ROUNDS):
            refs = [
                ThreadRef("shop", names[(round_ * 9 + number) % 12]).call(f"r{round_}-{number}")
                for number in range(9)
            ]
            agent = f"desk-{round_}"
            await asyncio.gather(*(shop.request(ref, agent=agent) for ref in refs))
            decided = [await anext(facts) for _ in refs]
            assert {fact.slot.call_ref for fact in decided} == set(refs)
            assert sum(isinstance(fact.event, e.Approved) for fact in decided) == run
    spent: dict[tuple[str, ...], Decimal] = {}
    for one in await series(shop):
        spent[one.key] = spent.get(one.key, Decimal(0)) + Decimal(one.amount)
    assert set(spent.values()) == {Decimal(100 * run)}
    assert len(spent) == ROUNDS


@pytest.mark.log("memory", "jetstream")
async def test_people_who_approve_at_once_do_not_exceed_a_budget_that_blocks(shop: Shop):
    """Nine questions had room when they were asked; Ana says yes to all, to some with an edit, and
    to three gates (B14, I10).
    """
    await shop.open(budget(450) + rule("money", "ask", "editor_counts = true"))
    refs = [ThreadRef("shop", f"t{number}").call("c") for number in range(9)]
    async with shop.gates(3):
        await asyncio.gather(*(shop.request(ref) for ref in refs))
        for ref in refs:
            await shop.asked(ref)
        ana = shop.ledger.reviewer("ana")
        edits = [money(150) if number % 3 == 0 else None for number in range(9)]
        await asyncio.gather(
            *(ana.approve(ref, arguments=edit) for ref, edit in zip(refs, edits, strict=True))
        )
        for ref in refs:
            await shop.until(ref.decided)
    calls = [await shop.ledger.call(ref) for ref in refs]
    approved = [call for call in calls if call.status is Status.APPROVED]
    amounts = [amount_at(call.arguments, "/amount") for call in approved]
    assert 350 < total(one for one in amounts if one is not None) <= 450
    assert None not in amounts


class CountingGate(Gate):
    """A gate that counts how often it has read the state of a call."""

    loads = 0

    async def load(self, ledger: Ledger, handed: Delivered) -> Any:
        CountingGate.loads += 1
        return await super().load(ledger, handed)


@pytest.mark.long
@pytest.mark.log("jetstream")
async def test_a_crowd_does_not_read_a_sum_in_vain(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    """Of all that compete for a slot one wins, and the others have read the series for nothing. So
    they pause; else each would read it once for every other.
    """
    monkeypatch.setattr(CountingGate, "loads", 0)
    await shop.open(budget(100_000, "block") + FREELY)
    refs = [ThreadRef("shop", f"t{number % 12}").call(f"c{number}") for number in range(72)]
    await asyncio.gather(*(shop.request(ref) for ref in refs))
    gate = e.Author(kind="gate", name="gate")
    workers = [Worker(Ledger(shop.log, gate), CountingGate()) for _ in range(3)]
    watching = aclosing(shop.ledger.watch(1, f"{ROOT}.shop.*.call.*.decided"))
    async with working(*workers), watching as facts:
        for _ in refs:
            assert isinstance((await anext(facts)).event, e.Approved)
    # A quarter of each for every other: how many meet depends on who is quick.
    assert CountingGate.loads < len(refs) ** 2 // 4


@pytest.mark.parametrize("ending", [*SETTLED, *UNSETTLED])
def test_a_call_that_was_started_gives_nothing_back(ending: str):
    """A tool may have charged before it failed, or before nothing is said to have happened (I5)."""
    ref, story = REF.wish(1, 0), Story()
    story.live(1, 0, e.Wish(tool="pay", arguments="{}"), ending)
    call = call_of(ref, story.facts)
    is_spent = bool(call.starts) or call.status is Status.APPROVED
    assert giving_back([ref], story.facts) == (frozenset() if is_spent else {str(ref)})


async def test_who_gives_back(shop: Shop):
    """Only calls that have ended without running; an open or an approved one does not (I5)."""
    async with shop.at_work(FREELY):
        await shop.judged(e.Approved)
    facts = await shop.ledger.read(FIRST)
    assert giving_back([FIRST, SECOND], facts) == frozenset()
    assert call_of(FIRST, facts).status is Status.APPROVED
    await shop.ledger.reviewer("ana").revoke(FIRST)
    assert giving_back([FIRST], await shop.ledger.read(FIRST)) == {str(FIRST)}
