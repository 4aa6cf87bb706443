"""Reviewers who follow a rule that is known, but for some of their votes, and what they decided."""

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from ayes.ledger.judging.policies import AppliedPolicy, Policies
from ayes.ledger.judging.policy_rules import About, judge
from ayes.ops.audit.backtest import CandidateCall
from ayes.ops.audit.past_calls import PastCall, Said
from ayes.schemas.policy import Policy, read_policy

START = datetime(2026, 1, 5, tzinfo=UTC)
SCHEMA = '{"type":"object"}'
#: Up to this amount, and not by phone, calls are approved.
LIMIT = 40
AMOUNTS = range(1, 101)
CHANNELS = ("chat", "mail", "phone")
AGENTS = ("desk-1", "desk-2")
CURRENCIES = ("EUR", "USD")

type Rule = Callable[[int, str], bool]


def known(amount: int, channel: str) -> bool:
    """What the reviewers go by."""
    return amount <= LIMIT and channel != "phone"


def asked(
    amount: float | str | None,
    said: Said = "approved",
    at: datetime = START,
    *,
    channel: str = "chat",
    agent: str = "desk-1",
    currency: str = "EUR",
    thread: str = "t1",
    **more: object,
) -> PastCall:
    """A call about which people were asked; `more` are fields of it."""
    sum_ = "" if amount is None else f'"amount":{amount},'
    wished = CandidateCall(
        "refund",
        f'{{{sum_}"currency":"{currency}"}}',
        agent=agent,
        workspace="shop",
        thread=thread,
        labels={"channel": channel},
        fits=True,
        tool_class="reversible",
    )
    fields = set(CandidateCall.__struct_fields__)
    wished = replace(wished, **{name: value for name, value in more.items() if name in fields})
    rest = {name: value for name, value in more.items() if name not in fields}
    return PastCall(wished, at, said, **({"schema": SCHEMA, "hidden": ()} | rest))


def past(
    seed: int, calls: int = 2000, *, noise: float = 0.01, rule: Rule = known, weeks: int = 12
) -> list[PastCall]:
    """So many calls, each in a conversation of its own, spread over some weeks."""
    chance = random.Random(seed)
    found = []
    for number in range(calls):
        amount, channel = chance.choice(AMOUNTS), chance.choice(CHANNELS)
        is_approved = rule(amount, channel) != (chance.random() < noise)
        found.append(
            asked(
                amount,
                "approved" if is_approved else "denied",
                START + number * timedelta(weeks=weeks) / calls,
                channel=channel,
                agent=chance.choice(AGENTS),
                currency=chance.choice(CURRENCIES),
                thread=f"t{number}",
            )
        )
    return found


def policies(own: str = "", organisation: str = "") -> Policies:
    """The policies in force, by their texts."""
    return Policies(
        AppliedPolicy(1, read_policy(own, "own")),
        AppliedPolicy(1, read_policy(organisation, "organisation"), organisation=True),
    )


def covered(toml: str) -> Iterator[tuple[int, str]]:
    """The amounts and channels, with every agent and currency, that a rule allows."""
    (rule,) = read_policy(toml, "a rule").rules
    policy = Policy().with_rule(rule.model_copy(update={"shadow": False}))
    for amount in AMOUNTS:
        for channel in CHANNELS:
            for agent in AGENTS:
                for currency in CURRENCIES:
                    args = {"amount": amount, "currency": currency}
                    about = About(
                        "refund",
                        args,
                        agent=agent,
                        labels={"channel": channel},
                        tool_class="reversible",
                    )
                    if judge(policy, about).then == "allow":
                        yield amount, channel


def true_error(toml: str, *, noise: float = 0.01, rule: Rule = known) -> float:
    """The share of what a rule allows that these reviewers would deny, without any chance."""
    errors = [noise if rule(*one) else 1 - noise for one in covered(toml)]
    return sum(errors) / len(errors)
