"""Budgets: what calls may spend, and what they have spent (docs/decisions/0049).

A budget of the policy has one sum for each thread, agent, requester or day, as its `per` says. Each
sum is a series of facts in numbered slots of the workspace: `_budget.<name>.<sum>.<n>` says that a
call spends an amount. The gate records it before it approves the call:

* A slot takes one fact, so a gate that fills number n+1 has read all n before it. Two gates cannot
  both use the rest of a sum, also if their calls are in different threads.
* An approval follows only if the call's own amount is in the series. A gate that dies in between
  leaves an amount that the next gate finds by the call, so it is not spent twice.
* An amount counts until its call has certainly not run: denied, expired, withdrawn, lapsed,
  revoked, ... That never changes back, so a reader that is behind finds too little left, never too
  much. Once a call is started its amount stays spent, however it ends.
* An amount that is unknown does not fit: anything uncertain is not a yes.

A budget of tokens counts the usage of models, which is known only afterwards. The tokens of one
thread are in its replies. For any other sum the gate records the usage of each reply in the series,
once, before it requests the calls that the reply wishes for.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ayes.ledger.call import Call
from ayes.ledger.judging.policies import Policies
from ayes.ledger.lifecycle import NOT_RUN, Status
from ayes.ledger.validity import call_of
from ayes.schemas import events as e
from ayes.schemas.amounts import amount, amount_at, total, written
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadId, BadSlot
from ayes.schemas.policy import TOKENS, Budget
from ayes.schemas.quorums import is_among
from ayes.schemas.slots import BudgetRef, CallRef, Slot

#: The statuses of a call that gives its amount back: it did not run, and never will.
GIVES_BACK: Final = NOT_RUN | {Status.REFUSED}
#: The beginning of a turn's name in a series. No call's id has a dot, so none is taken for a turn.
_TURN: Final = "turn."


class Sum(Struct, frozen=True):
    """One sum of a budget, as a call finds it."""

    budget: Budget
    workspace: str
    #: The values of `budget.per`, in its order.
    key: tuple[str, ...] = ()
    organisation: bool = False
    #: The series, in the order of its numbers.
    used: tuple[Fact, ...] = ()
    #: The calls among them that give their amounts back, as `workspace/thread/call`.
    given_back: frozenset[str] = frozenset()
    #: The tokens that the thread has used, for a budget of tokens.
    tokens: int = 0
    #: Whether the amount of the call is in the series, if that was looked at (`as_found`).
    is_recorded: bool = True

    @property
    def counts_replies(self) -> bool:
        """Whether it is a sum of tokens that the replies of one thread tell."""
        return self.budget.amount == TOKENS and self.budget.per == ("thread",)

    @property
    def ref(self) -> BudgetRef:
        which = json.dumps([self.organisation, self.budget.per, self.key])
        return BudgetRef(self.workspace, self.budget.name, sha256(which.encode()).hexdigest()[:32])

    @property
    def next_slot(self) -> Slot:
        return self.ref.used(max((int(fact.slot.tail[-1]) for fact in self.used), default=0) + 1)

    def cost(self, arguments: str) -> Decimal | None:
        """The amount that a call with these arguments spends; None if it is not known."""
        if self.budget.amount == TOKENS:
            return Decimal(0)
        return amount_at(arguments, self.budget.amount)

    def has(self, call: str) -> bool:
        """Whether this call, or turn, is in the series."""
        return call in _by_call(self.used)

    def of(self, call: CallRef) -> Decimal:
        """The amount of this call in the series; 0 if it has none."""
        return _by_call(self.used).get(str(call)) or Decimal(0)

    def spent(self, but: CallRef) -> Decimal | None:
        """The sum of all other calls that count; None if a part of it cannot be read."""
        if self.counts_replies:
            return Decimal(self.tokens)
        counts = {
            call: used
            for call, used in _by_call(self.used).items()
            if call != str(but) and call not in self.given_back
        }
        return None if None in counts.values() else total(filter(None, counts.values()))

    def others(self, but: CallRef) -> tuple[CallRef, ...]:
        """The other calls of the series that are not known to give their amounts back."""
        if self.budget.amount == TOKENS:
            return ()  # what a model has used stays used
        own = {str(but), *self.given_back}
        calls = filter(_is_call, _by_call(self.used))
        return tuple(CallRef.parse(call) for call in calls if call not in own)

    def fits(self, call: CallRef, arguments: str) -> bool:
        """Whether the call may spend this, or has it in the series already."""
        cost = self.cost(arguments)
        if cost is None:
            return False
        if self.budget.amount != TOKENS and cost <= self.of(call):
            return True
        spent = self.spent(call)
        if spent is None:
            return False
        if self.budget.amount == TOKENS:
            return spent < self.budget.limit
        return total((spent, cost)) <= self.budget.limit

    def use(self, call: CallRef, arguments: str) -> e.BudgetUsed | None:
        """The fact that must be recorded before the call is approved; None if there is none.

        People may let a call run of which the amount is not known; it is not counted.
        """
        cost = self.cost(arguments)
        if cost is None or cost <= self.of(call):
            return None
        return e.BudgetUsed(
            call=str(call), amount=written(cost), key=self.key, organisation=self.organisation
        )

    def described(self, call: CallRef, arguments: str, *, is_secret: bool = False) -> str:
        """How the sum stands, and what this call needs of it, as a sentence.

        Args:
            is_secret: whether the amount is an argument that is not shown.
        """
        budget, cost, spent = self.budget, self.cost(arguments), self.spent(call)
        whose = "the organisation's budget" if self.organisation else "the budget"
        of = f" ({', '.join(self.key)})" if self.key else ""
        unit = f" {budget.unit}" if budget.unit else ""
        known = "an unknown part" if spent is None else f"{spent:,f}"
        state = f"{known} of {budget.limit:,f}{unit} is used of {whose} {budget.name!r}{of}"
        if budget.amount == TOKENS:
            return f"{state}."
        if is_secret:
            return f"{whose} {budget.name!r}{of} has no room for this call."
        if cost is None:
            return f"{state}, and the amount of this call ({budget.amount}) is not known."
        return f"{state}, and this call needs {cost:,f}."


def usage_of(
    policies: Policies, reply: Fact, opened: e.ThreadOpened | None
) -> tuple[tuple[Sum, e.BudgetUsed], ...]:
    """The sums in whose series the usage of a reply is recorded, not filled yet; and the facts.

    Args:
        opened: the opening of its thread; None if there is none.
    """
    assert isinstance(reply.event, e.ModelReplied)
    ref, tokens = reply.slot.thread_ref, tokens_of(reply.event.usage)
    turn, found = f"{ref}/{_TURN}{reply.slot.tail[1]}", list[tuple[Sum, e.BudgetUsed]]()
    for into in sums(
        policies,
        ref.workspace,
        ref.thread,
        agent=opened.agent if opened else "",
        requester=opened.requester if opened else "",
        day=day_of(reply.recorded_at),
    ):
        if tokens and into.budget.amount == TOKENS and not into.counts_replies:
            used = e.BudgetUsed(
                call=turn, amount=str(tokens), key=into.key, organisation=into.organisation
            )
            found.append((into, used))
    return tuple(found)


def sums_of(policies: Policies, call: Call) -> tuple[Sum, ...]:
    """The sums of both policies that this call would spend of, not filled yet."""
    assert call.requested
    wish, ref, day = call.wish, call.ref, day_of(call.requested.recorded_at)
    theirs = sums(
        policies, ref.workspace, ref.thread, agent=wish.agent, requester=wish.requester, day=day
    )
    return tuple(one for one in theirs if is_among(wish.tool, one.budget.tools))


def sums(
    policies: Policies, workspace: str, thread: str, *, agent: str, requester: str, day: str
) -> Iterator[Sum]:
    """One sum of each budget of both policies, the organisation's first, not filled yet: whenever
    a gate looks, it is the same one. A person has one sum by every name (`Policies.person_of`).
    """
    for one in (policies.organisation, policies.workspace):
        if not one.policy.budgets:
            continue
        person = policies.person_of(requester, organisation=one.organisation)
        values = {"thread": thread, "agent": agent, "requester": person, "day": day}
        for budget in one.policy.budgets:
            key = tuple(values[name] for name in budget.per)
            yield Sum(budget, workspace, key, one.organisation)


def tokens_of(usage: e.Usage) -> int:
    """The tokens of a reply. A model, or its program, may report less than nothing."""
    return max(0, usage.input_tokens) + max(0, usage.output_tokens)


def day_of(requested_at: datetime) -> str:
    """The day of a request, in UTC: `2026-03-02`."""
    return requested_at.astimezone(UTC).date().isoformat()


def filled(one: Sum, facts: Iterable[Fact]) -> Sum:
    """The sum with its series, and the tokens of the thread, out of these facts."""
    ref, used, tokens = one.ref, list[Fact](), 0
    for fact in facts:
        match fact.event:
            case e.ModelReplied(usage=usage):
                tokens += tokens_of(usage)
            case _ if fact.slot.workspace == ref.workspace and fact.slot.tail[1:3] == (
                ref.name,
                ref.sum,
            ):
                used.append(fact)
            case _:
                pass
    used.sort(key=lambda fact: int(fact.slot.tail[-1]))
    return replace(one, used=tuple(used), tokens=tokens)


def as_found(one: Sum, facts: Sequence[Fact], call: Call, decided: Fact, arguments: str) -> Sum:
    """The sum as a call with these arguments found it that was approved, for whoever counts again:
    until its amount was recorded in it. What models use is counted until the request, since a gate
    has certainly seen that.
    """
    assert call.requested
    end = call.requested.seq if one.budget.amount == TOKENS else decided.seq
    one = filled(one, (fact for fact in facts if fact.seq < end))
    cost, own = one.cost(arguments), str(call.ref)
    if not cost:  # nothing is recorded of no amount, or of one that is not known
        return one
    for fact in one.used:
        if isinstance(fact.event, e.BudgetUsed) and fact.event.call == own:
            spent = amount(fact.event.amount)
            if spent is not None and cost <= spent:
                # By the order of the log: only a gate fills the places of a series in their order.
                return replace(one, used=tuple(used for used in one.used if used.seq < fact.seq))
    return replace(one, is_recorded=False)


def candidates(call: Call) -> tuple[str, ...]:
    """The arguments that may be approved: those requested, and each edit."""
    edits = (vote.event.arguments for vote in call.votes if isinstance(vote.event, e.Voted))
    return (call.wish.arguments, *(one for one in edits if one is not None))


def giving_back(refs: Iterable[CallRef], facts: Iterable[Fact]) -> frozenset[str]:
    """Those of these calls that have ended without running, by all facts about them."""
    facts = tuple(facts)
    return frozenset(str(ref) for ref in refs if call_of(ref, facts).status in GIVES_BACK)


def _by_call(used: Iterable[Fact]) -> dict[str, Decimal | None]:
    """The amount of each call: the largest of its facts, since an edit may have raised it. What
    cannot be read has the key "" and the amount None.
    """
    found: dict[str, Decimal | None] = {}
    for fact in used:
        event = fact.event
        call, spent = "", None
        if isinstance(event, e.BudgetUsed) and (_is_call(event.call) or _is_turn(event.call)):
            call, spent = event.call, amount(event.amount)
        known = found.get(call, Decimal(0))
        found[call] = None if known is None or spent is None else max(known, spent)
    return found


def _is_call(text: str) -> bool:
    try:
        CallRef.parse(text)
    except (BadId, BadSlot):
        return False
    return True


def _is_turn(text: str) -> bool:
    thread, _, turn = text.rpartition("/")
    return turn.startswith(_TURN) and _is_call(f"{thread}/{turn.removeprefix(_TURN)}")
