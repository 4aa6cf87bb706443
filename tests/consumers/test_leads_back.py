"""Whether an approval leads back to what is signed, in stories that are made up at random: it does
if a gate that is handed the same facts decides so, and only if one did so at that time or earlier,
since a newer policy may come while a gate judges.
"""

import asyncio
import contextlib
from collections import defaultdict
from copy import copy, deepcopy
from datetime import timedelta
from typing import Any

from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from shop import FIRST, rule
from signed_site import Site

from ayes.consumers.effects import Append
from ayes.consumers.gate import Gate
from ayes.ledger.clients.proofs import why_unproved
from ayes.ledger.clients.services import Ledger
from ayes.ledger.in_memory import Memory
from ayes.ledger.judging.policies import Policies
from ayes.ledger.judging.verdict import running
from ayes.ledger.log import EventLog
from ayes.ledger.seal import SignerKey
from ayes.ops.broker.setup import apply_policy
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import BadInput, Refused
from ayes.schemas.slots import CallRef, Slot

RULES = SignerKey("rules", bytes([21] * 32))
NAMES = ("ana", "ben", "cy")
CALLS = tuple(FIRST.thread_ref.call(f"c{number}") for number in range(3))
BUDGET = (
    '[[budget]]\nname = "day"\ntools = ["refund"]\namount = "/amount"\nlimit = 150\nthen = "{}"\n\n'
)
SMALL = rule("small", "allow", "when = 'args.amount < 50'", "priority = 9")
POLICIES = (
    rule("money", "ask", 'voters = ["ana", "ben", "cy"]'),
    rule("money", "ask", 'voters = ["ana", "ben"]', "votes_needed = 2", 'break_glass = ["cy"]'),
    SMALL + rule("money", "ask", 'voters = ["ana", "ben"]', "editor_counts = true"),
    BUDGET.format("block") + SMALL + rule("money", "ask", 'voters = ["ana", "cy"]'),
    BUDGET.format("ask") + rule("money", "allow"),
    "calls_per_thread = 2\n" + rule("money", "allow"),
    rule("money", "block"),
)

some_amount = st.sampled_from(('{"amount":40}', '{"amount":100}', '{"amount":120}'))
some_name = st.sampled_from(NAMES)
some_policy = st.tuples(st.just("policy"), st.sampled_from(POLICIES), st.booleans())
mostly = st.sampled_from((True, True, True, False))
some_verdict = st.sampled_from(("approve", "approve", "approve", "deny", "answer", "break_glass"))
some_other_step = st.one_of(
    some_policy,
    st.tuples(st.just("revoke"), some_name),
    st.tuples(st.just("delegate"), some_name, some_name, mostly),
    st.tuples(st.just("grant"), some_name, st.integers(1, 2), mostly),
)


some_other_question = st.sampled_from(
    (
        {},
        {"votes_needed": 0},
        {"voters": ("ana",), "also": ()},
        {"signed": False},
        {"may_break_glass": ("ana", "ben", "cy")},
        {"excluded": ("zoe",)},
        {"valid_for_s": 9e9},
        {"reason": "This is fine."},
    )
)


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """What becomes of each call, and what else happens, in an order of its own."""
    lives = list[list[tuple[Any, ...]]]()
    for ref in CALLS[: draw(st.integers(1, 3))]:
        vote = st.tuples(
            st.just("vote"), st.just(ref), some_name, some_verdict, mostly, st.none() | some_amount
        )
        asks = st.one_of(
            st.tuples(st.just("gate"), st.just(ref)),
            st.tuples(st.just("question"), st.just(ref), some_other_question),
        )
        life = [
            ("request", ref, draw(some_amount)),
            draw(asks),
            *draw(st.lists(vote, max_size=3)),
        ]
        lives.append([*life, ("gate", ref)] if draw(st.booleans()) else life)
    lives.append(draw(st.lists(some_other_step, max_size=4)))
    told = list[tuple[Any, ...]]()
    while waiting := [one for one in lives if one]:
        told.append(draw(st.sampled_from(waiting)).pop(0))
    return told


#: What is changed of an approval, or of one like it.
some_change = st.sampled_from(
    (
        {},
        {},
        {"ground": "policy", "voters": ()},
        {"ground": "people", "voters": ("ana",)},
        {"ground": "people", "voters": ("ana", "ben")},
        {"ground": "broken_glass", "voters": ("cy",)},
        {"ground": "grant", "grants": ("ana/all",)},
        {"arguments": '{"amount":1}'},
        {"rule": "small"},
        {"policy_version": 1},
        {"valid_for_s": 9e9},
        {"may_revoke": ()},
        {"excluded": ("zoe",)},
    )
)


class Told(Site):
    """A shop in which a story is told, with an operator who signs policies or does not."""

    def __init__(self, port: EventLog) -> None:
        super().__init__(port)
        #: The calls whose question is not the gate's.
        self.forged = set[CallRef]()
        #: Whose keys have ended.
        self.revoked = set[str]()
        #: What a gate would have decided of each call before a newer policy came.
        self.would = defaultdict[CallRef, list[e.Event | None]](list)

    async def tell(self, step: tuple[Any, ...]) -> None:
        """Tell one step; what cannot happen does not."""
        with contextlib.suppress(Refused, BadInput):
            await getattr(self, f"_{step[0]}")(*step[1:])

    async def _request(self, ref: CallRef, arguments: str) -> None:
        await self.request(ref, arguments)

    async def _policy(self, text: str, is_signed: bool) -> None:
        for ref in CALLS:
            if (await self.ledger.call(ref)).requested is not None:
                self.would[ref].append(await self._dry().gate(ref, until=ref.decided))
        operator = Ledger(self.log, e.Author("operator", "x"))
        await apply_policy(operator, "shop", text, "x", keys=[RULES] if is_signed else ())

    def _dry(self) -> "Told":
        """The same story, which goes on by itself."""
        other = copy(self)
        other.log = log = copy(self.log)
        log._facts, log._raw = [*log._facts], [*log._raw]
        log._by_subject, log._by_head = {**log._by_subject}, deepcopy(log._by_head)
        return other

    async def _revoke(self, name: str) -> None:
        await self.revoke(name)
        self.revoked.add(name)

    async def _grant(self, giver: str, uses: int, is_signed: bool) -> None:
        await (
            self.as_person(giver, is_signed=is_signed)
            .reviewer(giver)
            .grant(f"shop/{giver}/all", "refund", for_s=60, uses=uses)
        )

    def as_person(self, name: str, *, is_signed: bool) -> Ledger:
        ledger = self.at(name)
        if not is_signed:
            ledger.signer = None
        return ledger

    async def _delegate(self, giver: str, to: str, is_signed: bool) -> None:
        now = self.ledger.now()
        await (
            self.as_person(giver, is_signed=is_signed)
            .reviewer(giver)
            .delegate(
                f"shop/{giver}/to-{to}",
                to,
                starts_at=now - timedelta(hours=1),
                ends_at=now + timedelta(hours=1),
            )
        )

    async def _vote(
        self, ref: CallRef, name: str, verdict: e.Verdict, is_signed: bool, edit: str | None
    ) -> None:
        """A vote of somebody's login, in the place of whoever delegated it if there is one."""
        call = await self.ledger.call(ref)
        if call.gated is None or call.decided is not None:
            return
        given = [one for one in await self.ledger.delegations("shop") if one.delegated.to == name]
        assert call.approval_request
        vote = e.Voted(
            verdict=verdict,
            digest=call.approval_request.digest,
            reason="fire" if verdict == "break_glass" else "",
            arguments=edit if verdict == "approve" else None,
            on_behalf_of=given[-1].ref.giver if given else "",
        )
        if is_signed:
            vote = await self.at(name).reviewer(name)._signed(call, vote)
        await self.ledger.append(ref.vote(name), vote)

    async def _gate(self, ref: CallRef) -> None:
        await self.gate(ref)

    async def _question(self, ref: CallRef, changes: dict[str, Any]) -> None:
        """A question in the gate's place, as it would put it or changed."""
        asked = await self.gate(ref, until=ref.gated)
        if isinstance(asked, e.ApprovalRequested):
            await self.ledger.append(ref.gated, replace(asked, **changes))
            # The reason of a question that a budget puts has sums, which nobody counts again.
            says_sums = (await self._in_force()).workspace.policy.budgets
            if changes and not (says_sums and [*changes] == ["reason"]):
                self.forged.add(ref)

    async def _in_force(self) -> Policies:
        ledger = Ledger(self.log, e.Author("gate", "gate"))
        ledger.trust = self.trust
        return await ledger.policies("shop")

    async def gate(self, ref: CallRef, *, until: Slot | None = None) -> e.Event | None:
        """Hand the last fact about a call to a gate until it has nothing to add, or wants to fill
        this slot. Returns what with.
        """
        gate, ledger = Gate(), Ledger(self.log, e.Author("gate", "gate"))
        ledger.trust = self.trust
        while handed := _handed(await ledger.read(ref)):
            steps = gate.decide(await gate.load(ledger, handed), handed)
            adds = [one for one in steps if isinstance(one, Append)]
            if wanted := [one.event for one in adds if one.slot == until]:
                return wanted[0]
            new = [one for one in adds if await self.log.latest(one.slot.subject) is None]
            for one in new:
                await ledger.append(one.slot, one.event)
            if not new:
                break
        return None


def _handed(facts: tuple[Fact, ...]) -> Fact | None:
    of_gate = e.ToolRequested | e.Voted
    return next((one for one in reversed(facts) if isinstance(one.event, of_gate)), None)


async def told(steps: list[tuple[Any, ...]], changes: dict[str, Any]) -> None:
    site = Told(Memory())
    await site.begin(
        POLICIES[0],
        policies=[str(RULES.public)],
        signed_since={"shop": 3},
    )
    judge = Ledger(site.log, e.Author("executor", "x"))
    judge.trust = site.trust
    for step in steps:
        await site.tell(step)
    for ref in CALLS:
        call = await judge.call(ref)
        if call.status.name == "APPROVED":
            why = await why_unproved(judge, call)
            # A key that ended since then starts nothing any more.
            assert bool(why) == (ref in site.forged) or (why and site.revoked)
        elif call.requested is not None and call.decided is None:
            says = await site.gate(ref, until=ref.decided)
            call = await judge.call(ref)
            base = e.Approved(
                digest=call.wish.digest, ground="policy", rule="money", policy_version=2
            )
            base = says if isinstance(says, e.Approved) else base
            forged = replace(base, **changes)
            wish = call.wish
            digest = call_digest(wish.tool, wish.tool_version, running(call, forged))
            forged = replace(forged, digest=digest)
            await site.ledger.append(ref.decided, forged)
            call = await judge.call(ref)
            is_proved = await why_unproved(judge, call) == ""
            if ref in site.forged or forged not in (says, *site.would[ref]):
                assert not is_proved, (says, forged)
            elif forged == says:
                assert is_proved, forged


@settings(max_examples=examples(600), deadline=None)
@given(stories(), some_change)
def test_an_approval_leads_back_only_if_a_gate_decides_so(
    steps: list[tuple[Any, ...]], changes: dict[str, Any]
):
    """With policies, votes, keys and delegations that are signed or not, in any order."""
    asyncio.run(told(steps, changes))
