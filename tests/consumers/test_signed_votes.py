"""Signed votes, from the key to the decision: what the gate counts, and what it does not.

With a real gate, on the log in memory.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from inboxes import http
from msgspec.structs import replace
from running import working
from sections import section
from shop import FIRST, REFUND, SECOND, THIRD, rule
from signed_site import ASK, DESK, Site

from ayes.consumers.executor import Executor
from ayes.consumers.notices.channels import Channels
from ayes.consumers.notices.notifier import Notifier
from ayes.consumers.tools import Registered
from ayes.consumers.worker import Worker
from ayes.ledger import ed25519
from ayes.ledger.clients import client
from ayes.ledger.clients.proofs import why_unproved
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.budgets import sums_of
from ayes.ledger.log import EventLog, FactReader
from ayes.ledger.seal import SignerKey
from ayes.ledger.signing import (
    MAX_LIFE_S,
    Bound,
    Signature,
    fingerprint,
    key_digest,
    key_id,
    signed,
    vote_digest,
)
from ayes.ledger.trust import Trust
from ayes.ops.audit.verify import rebuild
from ayes.ops.broker.setup import apply_policy, next_version, policy_signatures
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadInput, NotAllowed, NotOpen
from ayes.schemas.slots import ORGANISATION, CallRef, GrantRef, key_slot

pytestmark = pytest.mark.log("memory")


@pytest.fixture
def site(port: EventLog) -> Site:
    return Site(port)


async def test_a_signed_vote_counts_and_one_without_does_not(site: Site):
    """The client refuses a vote that it cannot sign, and the gate does not count one (B1)."""
    await site.begin()
    async with site.gates():
        asking = await site.ask()
        assert asking.signed
        with pytest.raises(
            NotAllowed, match="only signed votes count on shop/t1/c1, and ben's key"
        ):
            await site.ledger.reviewer("ben").approve(FIRST)
        await site.cast("ben")
        await site.at("ana").reviewer("ana").approve(FIRST, reason="as agreed")
        approved = await site.decided(e.Approved)
    assert approved.voters == ("ana",)
    assert (await site.why_void("ben"), await site.why_void("ana")) == ("it is not signed", "")


async def test_a_denial_needs_no_signature(site: Site):
    """Nothing runs on it."""
    await site.begin(ASK.replace("denials_needed = 2\n", ""))
    async with site.gates():
        await site.ask()
        await site.ledger.reviewer("ana").deny(FIRST, reason="no")
        await site.decided(e.Denied)


async def test_whoever_breaks_the_glass_signs(site: Site):
    await site.begin(f'{ASK}break_glass = ["cy"]\n')
    async with site.gates():
        await site.ask()
        await site.cast("cy", verdict="break_glass", reason="fire")
        assert "not signed" in await site.why_void("cy")
        await site.at("ana").reviewer("ana").approve(FIRST)
        assert (await site.decided(e.Approved)).ground == "people"


#: Of each part of a vote, another one with the same signature.
FORGED = {
    "verdict": {"verdict": "answer", "answer": ""},
    "reason": {"reason": "I take the blame"},
    "arguments": {"arguments": '{"amount":1}'},
    "answer": {"verdict": "answer", "answer": "yes, paid"},
    "error": {"verdict": "answer", "is_error": True},
    "signature": {"signature": "ed25519.1.0000000000000000.0.AA"},
}


@pytest.mark.parametrize("what", FORGED)
async def test_a_vote_with_another_part_than_was_signed_does_not_count(site: Site, what: str):
    await site.begin()
    async with site.gates():
        await site.ask()
        vote = replace(await site.vote_of("ana"), **FORGED[what])
        await site.ledger.append(FIRST.vote("ana"), vote)
        assert await site.why_void("ana")
        await site.at("ben").reviewer("ben").approve(FIRST)
        assert (await site.decided(e.Approved)).voters == ("ben",)


async def test_a_vote_before_the_question_does_not_count(site: Site):
    """And the call can be looked at, although there is nothing that it could have signed."""
    await site.begin(signed_since={"shop": 1})
    await site.request(FIRST)
    await site.ledger.append(FIRST.vote("ana"), e.Voted(verdict="approve", digest="d"))
    assert await site.why_void() == "people were not asked before it"


async def test_a_signature_is_of_one_question_and_one_log(site: Site):
    """Of another log, request, question or policy, or by another voter, it does not count."""
    await site.begin()
    async with site.gates():
        await site.ask()
        call, vote = await site.ledger.call(FIRST), await site.vote_of("ana")
        bound = await site.ledger.bound(call, await site.log.identity())
        assert all(getattr(bound, name) for name in Bound.__struct_fields__)
        signature = Signature.parse(vote.signature)
        assert signature
        assert not await site.would_be_void(vote)
        assert await site.would_be_void(vote, "ben")
        for name in Bound.__struct_fields__:
            other = replace(bound, **{name: "0" * 64})
            digest = vote_digest(other, FIRST, call.wish, "ana", vote, signature.until)
            forged = signed(site.keys["ana"], digest, signature.until)
            assert await site.would_be_void(replace(vote, signature=forged)), name


async def test_a_vote_is_bound_to_a_policy_that_a_replica_has_a_little_later(site: Site):
    """Else the signature would be over no policy, and its voter's only vote would not count."""
    await site.begin()
    async with site.gates():
        await site.ask()
    call = await site.ledger.call(FIRST)
    bound, answers = await site.ledger.bound(call, "log"), [()]

    class Behind:
        async def read(self, *subjects: str) -> tuple[Fact, ...]:
            return answers.pop() if answers else await site.log.read(*subjects)

    assert bound.policy
    ledger = site.at("ana").reading_from(cast(FactReader, Behind()))
    assert await ledger.bound(call, "log") == bound
    assert not answers
    # A version never changes, so it is read once.
    assert await ledger.reading_from(cast(FactReader, None)).bound(call, "log") == bound


@pytest.mark.parametrize("off_s", [-1, MAX_LIFE_S + 60])
async def test_a_signature_has_an_end(site: Site, off_s: int):
    """One that is over, or would be valid for longer than minutes, does not count."""
    await site.begin()
    async with site.gates():
        await site.ask()
        call, vote = await site.ledger.call(FIRST), await site.vote_of("ana")
        bound = await site.ledger.bound(call, await site.log.identity())
        until = int((await site.log.clock()).timestamp()) + off_s
        digest = vote_digest(bound, FIRST, call.wish, "ana", vote, until)
        late = replace(vote, signature=signed(site.keys["ana"], digest, until))
        assert await site.would_be_void(late)


async def test_a_clock_that_is_wrong_signs_nothing(site: Site):
    await site.begin()
    async with site.gates():
        await site.ask()
        ledger = site.at("ana")
        now = ledger.now
        ledger.now = lambda: now() + timedelta(hours=2)
        with pytest.raises(BadInput, match="the clock here is"):
            await ledger.reviewer("ana").approve(FIRST)
        with pytest.raises(BadInput, match="the key is ana's, and not ben's"):
            await site.at("ana").reviewer("ben").approve(FIRST)


async def test_the_clocks_are_compared_again_once_that_here_was_set(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    """Or after a while, and not for each vote."""
    loop, begun, asked = asyncio.get_running_loop(), datetime(2026, 3, 2, 9, 30, tzinfo=UTC), [0]
    ledger, set_s = Ledger(site.log, e.Author("x", "x")), 0.0

    def now() -> datetime:
        return begun + timedelta(seconds=loop.time() + set_s)

    async def clock() -> datetime:
        asked[0] += 1
        return begun + timedelta(seconds=loop.time())

    monkeypatch.setattr(ledger, "now", now)
    monkeypatch.setattr(site.log, "clock", clock)
    assert await ledger.ahead_s() == await ledger.ahead_s()
    assert asked == [1]
    set_s = 7200.0
    assert round(await ledger.ahead_s() / 60) == 120
    assert asked == [2]
    monkeypatch.setattr(client, "_COMPARED_FOR_S", 0.0)
    await ledger.ahead_s()
    assert asked == [3]


async def test_gate_and_executor_judge_a_signature_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    """In one process; and whether its key counts each time, since it may be revoked in between."""
    await site.begin(signed_since={"shop": 1})
    verify, judged = ed25519.verifies, list[bytes]()

    def noted(public: bytes, signature: bytes, data: bytes) -> bool:
        judged.append(data)
        return verify(public, signature, data)

    async with site.gates():
        await site.ask()
        monkeypatch.setattr(ed25519, "verifies", noted)
        await site.at("ana").reviewer("ana").approve(FIRST)
        await site.decided(e.Approved)
        site.ledger.trust = site.trust
        call = await site.ledger.call(FIRST)
        assert not await why_unproved(site.ledger, call, starts=True)
        assert len(judged) == len({*judged})
        await site.revoke("ana")
        assert await why_unproved(site.ledger, call, starts=True)


async def test_only_keys_in_force_count(site: Site):
    """Not one that is not confirmed, was added after the question, is another person's, or was
    revoked, before the vote or after it, while the call is open (B2).
    """
    await site.begin()
    log = await site.log.identity()
    later, new = (SignerKey(f"ana/{log}", bytes([at] * 32)) for at in (20, 21))
    await site.add(new, "ana", None)
    async with site.gates():
        await site.ask()
        await site.add(later, "ana")
        call, vote = await site.ledger.call(FIRST), await site.vote_of("ana")
        signature = Signature.parse(vote.signature)
        assert signature
        bound = await site.ledger.bound(call, log)
        digest = vote_digest(bound, FIRST, call.wish, "ana", vote, signature.until)
        for key in (new, later, site.keys["cy"]):
            other = replace(vote, signature=signed(key, digest, signature.until))
            assert await site.would_be_void(other), key.public
        await site.at("ana").reviewer("ana").approve(FIRST)
        await site.decided(e.Approved)
        assert not await site.why_void()
        # What was decided stays decided, and is shown so.
        await site.revoke("ana")
        assert not await site.why_void()
        await site.ask(SECOND)
        await site.at("ana").reviewer("ana").approve(SECOND)
        await site.at("ben").reviewer("ben").approve(SECOND)
        assert (await site.decided(e.Approved, SECOND)).voters == ("ben",)


@pytest.mark.parametrize("is_signed", [True, False])
async def test_a_grant_answers_a_question_that_wants_signed_votes_if_it_is_signed(
    site: Site, is_signed: bool
):
    """So who has Ana's login, and not her key, approves nothing in advance; nor may the gate's
    login use one more often than she said, or say it was used (C1).
    """
    await site.begin(signed_since={"shop": 1})
    ledger = site.at("ana") if is_signed else Ledger(site.log, e.Author("reviewer", "ana"))
    small = GrantRef("shop", "ana", "small")
    for _ in range(2):  # which may be repeated
        await ledger.reviewer("ana").grant(small, "refund", for_s=60)
    async with site.gates():
        if not is_signed:
            await site.ask()
            return
        approved = await site.judged(e.Approved)
        assert approved.grants == ("ana/small",)
        await site.ask(SECOND)
    judge = Ledger(site.log, e.Author("executor", "x"))
    judge.trust = site.trust

    async def why(ref: CallRef) -> str:
        return await why_unproved(judge, await judge.call(ref))

    assert await why(FIRST) == ""
    for ref in (SECOND, THIRD):
        if ref == THIRD:
            await site.request(THIRD)
            await site.ledger.append(small.used(2), e.GrantUsed(call=str(THIRD)))
        await site.ledger.append(ref.decided, replace(approved, id=""))
        assert await why(ref) == "no grants that are signed, and were used, cover it"
    await site.revoke("ana")
    assert await why(FIRST) == "no grants that are signed, and were used, cover it"


async def test_a_key_that_ends_before_the_start_lets_nothing_start(site: Site):
    """Whoever stole it had a moment. What was started by then stays as it was (B2)."""
    await site.begin(signed_since={"shop": 1})
    async with site.gates():
        for ref in FIRST, SECOND:
            await site.ask(ref)
            await site.at("ana").reviewer("ana").approve(ref)
            await site.decided(e.Approved, ref)
    judge = Ledger(site.log, e.Author("executor", "x"))
    judge.trust = site.trust
    await judge.start(FIRST)
    await site.revoke("ana")
    with pytest.raises(NotOpen, match="the votes that count do not approve this"):
        await judge.start(SECOND)
    assert await why_unproved(judge, await judge.call(FIRST)) == ""


async def test_the_trust_file_wants_signed_votes_whatever_the_policy_says(site: Site):
    """From one fact on: on a call that was asked about before it, too, unless it was decided."""
    await site.begin(ASK.replace("signed = true\n", ""))
    trust = site.trust
    async with site.gates():
        assert not (await site.ask()).signed
        await site.cast("ana")
        await site.decided(e.Approved)
        await site.ask(SECOND)
    assert trust
    since = await site.log.last_seq()
    site.trust = trust.model_copy(update={"signed_since": {"shop": since}})
    async with site.gates():
        await site.cast("ana", SECOND)
        await site.at("ben").reviewer("ben").approve(SECOND)
        assert (await site.decided(e.Approved, SECOND)).voters == ("ben",)
        assert not await site.why_void(), "it was decided before"
        third = FIRST.thread_ref.call("c3")
        assert (await site.ask(third)).signed


async def test_a_site_without_a_trust_file_counts_no_vote_where_signed_ones_are_wanted(site: Site):
    await site.begin()
    site.trust = None
    async with site.gates():
        await site.ask()
        for name in ("ana", "ben"):
            await site.at(name).reviewer(name).approve(FIRST)
        assert (await site.decided(e.Denied)).voters == ()


async def test_a_policy_counts_if_keys_of_the_trust_file_have_signed_it(site: Site):
    """Whoever has an operator's login alone loosens nothing. A signature is of one version of one
    owner's policy in one log (C1).
    """
    await site.begin()
    since = await site.log.last_seq() + 1
    keys = [SignerKey(f"rules-{at}", bytes([at] * 32)) for at in (21, 22)]
    site.trust = Trust.model_validate(
        {
            "log": await site.log.identity(),
            "roots": [str(DESK.public)],
            "policies": [str(one.public) for one in keys],
            "policies_needed": 2,
            "signed_since": {"shop": since},
        }
    )
    operator, loose = Ledger(site.log, e.Author("x", "x")), rule("money", "allow")

    async def in_force() -> list[int]:
        judge = Ledger(site.log, e.Author("x", "x"))
        judge.trust = site.trust
        found = await judge.policies("shop")
        return [found.workspace.version, found.organisation.version]

    async def signatures(owner: str, version: int, text: str = loose) -> tuple[str, ...]:
        return await policy_signatures(operator, owner, version, text, keys)

    assert await in_force() == [1, 0]
    await apply_policy(operator, "shop", loose, "x")
    await apply_policy(operator, "shop", loose, "x", keys=keys[:1])
    once = await signatures("shop", 4)
    for forged in (
        (once[0], once[0]),
        await signatures("shop", 99),
        await signatures("desk", 5),
        await signatures("shop", 6, ASK),
        (once[0], "ed25519.1.x.0.AAAA"),
        tuple(signed(one, b"", 7) for one in keys),
    ):
        await apply_policy(operator, "shop", loose, "x", signatures=forged)
        await apply_policy(operator, ORGANISATION, loose, "x", signatures=forged)
    assert await in_force() == [1, 0]
    version = await apply_policy(operator, "shop", loose, "x", keys=keys)
    assert await in_force() == [version, 0]
    version = await next_version(operator, ORGANISATION)
    made = await policy_signatures(operator, ORGANISATION, version, loose, keys)
    await apply_policy(operator, ORGANISATION, loose, "x", signatures=made)
    assert (await in_force())[1] == version


async def test_whoever_starts_a_call_finds_what_people_said(site: Site):
    """A decision of people leads back to their votes, as the policy's own does; one that somebody
    records in the gate's place does not (C1, C2).
    """
    allow = rule("small", "allow", "when = 'args.amount < 10'", "priority = 9")
    await site.begin(f"{allow}{ASK}", signed_since={"shop": 1})
    judge = Ledger(site.log, e.Author("executor", "x"))
    judge.trust = site.trust

    async def why(ref: CallRef) -> str:
        return await why_unproved(judge, await judge.call(ref))

    async with site.gates():
        await site.judged(e.Approved, SECOND, '{"amount":1}')
        assert await why(SECOND) == ""
        await site.ask()
        await site.at("ana").reviewer("ana").approve(FIRST)
        await site.decided(e.Approved)
        assert await why(FIRST) == ""
        await site.ask(THIRD)
    said = (await site.ledger.call(FIRST)).approval
    third = (await site.ledger.call(THIRD)).wish.digest
    await site.ledger.append(THIRD.decided, replace(said, id="", digest=third))
    assert await why(THIRD) == "the votes that count do not approve this"
    with pytest.raises(NotOpen, match="shop/t1/c3: the votes that count do not approve this"):
        await judge.start(THIRD)


BUDGET = """[[budget]]
name = "day"
tools = ["refund"]
amount = "/amount"
limit = 150
then = "block"

"""


async def approved(site: Site, ref: CallRef, arguments: str, *, is_asked: bool = False) -> None:
    """Has gates approve a call, or people."""
    async with site.gates():
        await site.request(ref, arguments)
        if is_asked:
            await site.asked(ref)
            await site.at("ana").reviewer("ana").approve(ref)
        await site.decided(e.Approved, ref)


@pytest.mark.parametrize("then", ["allow", "ask"])
async def test_what_a_call_spends_was_taken_from_the_budget(site: Site, then: str):
    """Whoever has the gate's login spends no more than a budget has, and nothing without taking it
    (C1). What was given back is spent again.
    """
    await site.begin(
        f"{BUDGET}{ASK if then == 'ask' else rule('money', 'allow')}", signed_since={"shop": 1}
    )
    judge = Ledger(site.log, e.Author("executor", "x"))
    judge.trust = site.trust

    async def why(ref: CallRef) -> str:
        return await why_unproved(judge, await judge.call(ref))

    async def taken(ref: CallRef, amount: str) -> None:
        call = await judge.call(ref)
        sums = sums_of(await judge.policies("shop"), call)
        [found] = await judge.with_usage(sums, call, must_include=ref.requested)
        await site.ledger.append(found.next_slot, e.BudgetUsed(call=str(ref), amount=amount))

    zero = FIRST.thread_ref.call("c0")
    await approved(site, zero, '{"amount":149}', is_asked=then == "ask")
    await site.ledger.reviewer("ana").revoke(zero)
    await approved(site, FIRST, '{"amount":100}', is_asked=then == "ask")
    assert await why(FIRST) == ""
    said = (await site.ledger.call(FIRST)).approval
    two = {SECOND: '{"amount":40}', THIRD: '{"amount":45}'}
    if then == "ask":
        async with site.gates():
            for ref, arguments in two.items():
                await site.ask(ref, arguments)
        for ref in two:
            await site.at("ana").reviewer("ana").approve(ref)
    else:
        for ref, arguments in two.items():
            await site.request(ref, arguments)
    digest = (await site.ledger.call(SECOND)).wish.digest
    await site.ledger.append(SECOND.decided, replace(said, id="", digest=digest))
    assert await why(SECOND) == "its amount was not taken from the budget 'day'"
    await taken(SECOND, "40")
    await taken(THIRD, "45")
    digest = (await site.ledger.call(THIRD)).wish.digest
    await site.ledger.append(THIRD.decided, replace(said, id="", digest=digest))
    assert await why(THIRD) == (
        "the votes that count do not approve this"
        if then == "ask"
        else "no policy that was in force allowed it"
    )


async def test_a_thread_makes_no_more_calls_than_it_may(site: Site):
    allow = rule("money", "allow")
    await site.begin(f"calls_per_thread = 1\n{allow}", signed_since={"shop": 1})
    judge = Ledger(site.log, e.Author("executor", "x"))
    judge.trust = site.trust
    await approved(site, FIRST, '{"amount":100}')
    assert await why_unproved(judge, await judge.call(FIRST)) == ""
    said = (await site.ledger.call(FIRST)).approval
    await site.request(SECOND)
    await site.ledger.append(SECOND.decided, replace(said, id=""))
    assert await why_unproved(judge, await judge.call(SECOND)) == (
        "no policy that was in force allowed it"
    )


async def forged_question(site: Site, **changed: Any) -> None:
    """A question that no policy asks, and a decision that follows from it."""
    asked = (await site.ledger.call(FIRST)).approval_request
    assert asked
    asked = replace(asked, id="", digest=(await site.ledger.call(SECOND)).wish.digest, **changed)
    await site.ledger.append(SECOND.gated, asked)
    digest = asked.digest
    await site.ledger.append(SECOND.vote("ben"), e.Voted(verdict="approve", digest=digest))
    await forged_decision(site, voters=("ben",))


async def forged_decision(site: Site, **changed: Any) -> None:
    said = (await site.ledger.call(FIRST)).approval
    digest = (await site.ledger.call(SECOND)).wish.digest
    await site.ledger.append(SECOND.decided, replace(said, id="", digest=digest, **changed))


FORGERIES: dict[str, Callable[[Site], Awaitable[None]]] = {
    "a decision of people who were not asked": forged_decision,
    "a decision of a policy": partial(forged_decision, ground="policy", voters=()),
    "a decision of a grant": partial(forged_decision, ground="grant", grants=("ana/all",)),
    "another rule's question": partial(forged_question, voters=("ben",), signed=False),
    "a question that one may answer alone": partial(forged_question, votes_needed=0),
    "the right question, and a vote that is not signed": forged_question,
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
async def test_nothing_runs_that_the_gates_login_lets_run(
    site: Site, forge: Callable[[Site], Awaitable[None]]
):
    """Whoever has the logins of the gate and of an operator writes a decision and a policy. The
    executor declines the call, and the model reads why (C1).
    """
    ran = list[float]()

    def run(amount: float) -> None:
        ran.append(amount)

    tool = REFUND.model_copy(update={"run_by": "executor"})
    await site.begin(ASK, signed_since={"shop": 1})
    await site.ledger.declare("shop", tool)
    async with site.gates():
        await site.ask(run_by="executor")
        await site.at("ana").reviewer("ana").approve(FIRST)
        await site.decided(e.Approved)
    await site.request(SECOND, run_by="executor")
    await forge(site)
    ledger = Ledger(site.log, e.Author("executor", "x"))
    ledger.trust = site.trust
    executor = Executor({"refund": Registered(tool, run)})
    async with working(Worker(ledger, executor)):
        ended = await site.until(SECOND.finished)
        await site.until(FIRST.finished)
    assert isinstance(ended.event, e.ToolRefused)
    assert (ended.event.ending, ran) == ("unproved", [100])
    assert (await rebuild(ledger, until=await site.log.last_seq(), verify=True)).differences == ()


async def test_a_start_that_nobody_checked_is_found_later(site: Site):
    """An executor without the trust file, or one that is not ours, has believed the gate."""
    await site.begin(ASK, signed_since={"shop": 1})
    async with site.gates():
        await site.ask()
        await site.at("ana").reviewer("ana").approve(FIRST)
        await site.decided(e.Approved)
    await site.request(SECOND)
    await forged_decision(site)
    for ref in FIRST, SECOND:
        await site.ledger.start(ref)
    auditor = Ledger(site.log, e.Author("operator", "x"))
    auditor.trust = site.trust
    found = await rebuild(auditor, until=await site.log.last_seq(), verify=True)
    [difference] = found.differences
    assert difference.endswith("shop/t1/c2 was started, and people were not asked about it")


@pytest.mark.parametrize("is_signed", [True, False])
async def test_a_vote_in_anothers_place_counts_by_a_signed_delegation(site: Site, is_signed: bool):
    """Else whoever has Ana's login gives her vote to an accomplice, who has a key of his own."""
    await site.begin(ASK.replace('"ben"]', '"ben"]\nvotes_needed = 1'))
    await site.add(SignerKey(f"dan/{await site.log.identity()}", bytes([7] * 32)), "dan")
    site.keys["dan"] = SignerKey(f"dan/{await site.log.identity()}", bytes([7] * 32))
    ana = site.at("ana") if is_signed else Ledger(site.log, e.Author("reviewer", "ana"))
    now = site.ledger.now()
    await ana.reviewer("ana").delegate(
        "shop/ana/leave",
        "dan",
        starts_at=now - timedelta(hours=1),
        ends_at=now + timedelta(hours=1),
    )
    async with site.gates():
        await site.ask()
        vote = await site.vote_of("dan", on_behalf_of="ana")
        await site.ledger.append(FIRST.vote("dan"), vote)
        if not is_signed:
            await site.at("ben").reviewer("ben").approve(FIRST)
        approved = await site.decided(e.Approved)
    assert approved.voters == (("dan",) if is_signed else ("ben",))


async def test_people_are_told_of_keys_that_were_confirmed_for_them(site: Site, tmp_path: Path):
    """While a key in the place of lost ones can still be revoked: nobody else would notice a thief
    who begins that way with keys of two others, or confirms with a stolen one.
    """
    contacts = [f'{name} = ["web:{name}"]' for name in ("ana", "ben", "dan")]
    await site.begin("\n".join(["[contacts]", *contacts, ASK]), lost={"after": "60s"})
    await site.apply('[contacts]\ncy = ["web:cy"]\n[rooms]\ndefault = "web:room"\n', ORGANISATION)
    log = await site.log.identity()
    new, own = (SignerKey(f"ana/{log}", bytes([at] * 32)) for at in (8, 6))
    await site.add(own, "ana", by=site.keys["ana"])
    await site.add(new, "ana", by=None)
    for by in ("ben", "cy"):
        said = e.KeyConfirmed(
            signatures=(signed(site.keys[by], key_digest(log, "ana", new.public)),)
        )
        await site.ledger.append(key_slot("ana", key_id(new.public), "confirmed", by), said)
    file = '[notices.web]\nurl = "json://{place}/{{address}}"\n'
    with http() as web:
        channels = Channels(section("notices", tmp_path, file.format(place=web.place)))
        ledger = Ledger(site.log, e.Author("notifier", "notifier"))
        ledger.trust = site.trust
        async with working(Worker(ledger, Notifier(channels))):
            await asyncio.to_thread(web.until, 8)  # three of them of people's first keys
        channels.close()

    def told_of(key: SignerKey) -> dict[str, str]:
        command = f"ayes key revoke ana {fingerprint(key.public)}"
        return {one.to: one.body for one in web if command in one.body}

    assert sorted(told_of(new)) == ["ana", "ben", "cy", "room"]
    assert "confirmed: by ben, cy\n" in told_of(new)["ana"]
    assert [*told_of(own)] == ["ana"]
    assert "confirmed: by an older key of theirs\n" in told_of(own)["ana"]
