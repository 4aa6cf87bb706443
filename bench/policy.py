"""Judging a call by a policy, and trying a policy on the past.

The floor of judging is recording the verdict, one durable append after the other on the same
broker. The policy is that of a company: 200 rules with their own names and patterns, ten of which
are about the called tool. For contrast it is measured with a condition on each of these ten, and by
200 rules that are all about it.

The backtest is that of `ayes policy backtest` with the facts in memory: decode requests and
decisions, combine them, judge, count. Its floor is msgspec's decoding of the same bytes. The facts
are generated in pieces, and both are measured on each piece in turns; for contrast, also with
conditions, and with facts from the broker.
"""

import gc
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.policies import AppliedPolicy, Policies, about, evaluate
from ayes.ops.audit.backtest import Backtest, Calls, Report, backtest_ledger
from ayes.schemas import events as e
from ayes.schemas import ids
from ayes.schemas.codec import Fact, encode, fact_of
from ayes.schemas.policy import Policy, read_policy
from ayes.schemas.slots import ThreadRef
from bench import logs
from bench.logs import Log
from bench.results import Result, compared, in_turns

WORKLOAD: Final = "policy"
RULES: Final = 200
#: So many of them are about the tool that is called.
_MATCHING: Final = 10
_TOOL: Final = "update_reservation"
#: Verdicts of a round of judging, one append for each.
_VERDICTS: Final = 200
#: So many calls are in memory at once.
_PIECE: Final = 10_000
#: Calls that are judged with conditions.
_FEW: Final = 5_000
_AT: Final = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)

type Recorded = Sequence[tuple[str, bytes]]


async def measure(log: Log, rounds: int, _scratch: Path) -> list[Result]:
    """Microseconds to judge a call, compared with recording the verdict; seconds to try a policy on
    the past.
    """
    async with Ledger.connect(log.store, role="admin") as ledger:
        judging = await _judging(ledger, log, rounds)
        return [*judging, *await _backtests(ledger, log, rounds)]


# ------------------------------------------------------------------------------------------ judging


async def _judging(ledger: Ledger, log: Log, rounds: int) -> list[Result]:
    plain, conditional, broad = (
        Policies(AppliedPolicy(1, one))
        for one in (company(conditions=False), company(conditions=True), _about_all_tools())
    )
    thread = ThreadRef("bench", f"judged-{ids.new_id()[:8]}")
    made = 0

    def calls() -> Iterator[Call]:
        for number in range(_VERDICTS):
            ref = thread.call(f"c{number}")
            [(slot, wish), *_] = logs.calling(ref)
            yield Call(ref, requested=Fact(1, _AT, slot, wish))  # type: ignore[arg-type]

    async def judged(policies: Policies) -> float:
        wished = list(calls())
        begun = time.perf_counter()
        said = [evaluate(policies, about(call, call.wish.arguments)).judged.then for call in wished]
        spent = time.perf_counter() - begun
        if set(said) != {"block"}:
            raise AssertionError(f"judging came to {set(said)}")
        return spent / len(said) * 1e6

    async def ours() -> float:
        return await judged(plain)

    async def with_conditions() -> float:
        return await judged(conditional)

    async def by_all() -> float:
        return await judged(broad)

    async def recorded() -> float:
        nonlocal made
        denied = e.Denied(
            ground="policy", rule="rule 7", policy_version=1, reason="It moves too much money."
        )
        begun = time.perf_counter()
        for _ in range(_VERDICTS):
            made += 1
            if await ledger.try_append(thread.call(f"v{made}").decided, denied) is not None:
                raise AssertionError("the verdict was recorded before")
        return (time.perf_counter() - begun) / _VERDICTS * 1e6

    times, floors = await in_turns(rounds, ours, recorded)
    beside, plain_times = await in_turns(rounds, with_conditions, ours)
    all_times, few_times = await in_turns(rounds, by_all, ours)
    version = ledger.log.server_version
    return [
        compared(
            WORKLOAD,
            f"judging by {RULES} rules",
            "us",
            times,
            floors,
            beside="recording the verdict, one after the other",
            better="lower",
            target=0.1,
            facts=log.facts,
            nats_server=version,
        ),
        compared(
            WORKLOAD,
            f"judging by {RULES} rules, {_MATCHING} of them with a condition",
            "us",
            beside,
            plain_times,
            beside="without conditions",
            better="higher",
            facts=log.facts,
            nats_server=version,
        ),
        compared(
            WORKLOAD,
            f"judging by {RULES} rules about its tool",
            "us",
            all_times,
            few_times,
            beside=f"by {RULES} rules, {_MATCHING} of them about its tool",
            better="lower",
            facts=log.facts,
            nats_server=version,
        ),
    ]


def company(*, conditions: bool) -> Policy:
    """A policy as a company has it after a while: most rules are about other tools than the one
    that is called.
    """
    rules = []
    for number in range(RULES):
        ours = number % (RULES // _MATCHING) == 7
        tools = (
            f'["{_TOOL}", "change_*_{number}"]'
            if ours
            else f'["tool_{number}", "group_{number}_*", "*_x{number}"]'
        )
        then = "block" if number == 7 else ("allow", "ask")[number % 2]
        asks = (
            'voters = ["ana", "ops-*"]\nvotes_needed = 2\nexpires_in_s = 3600\n'
            if then == "ask"
            else ""
        )
        when = (
            f"when = 'args.cabin != \"first\" && size(args.passengers) < {number}'\n"
            if conditions and ours
            else ""
        )
        scope = 'agents = ["desk*"]\n' if number % 3 == 0 else ""
        rules.append(
            f'[[rule]]\nname = "rule {number}"\ntools = {tools}\nthen = "{then}"\n'
            f"{asks}{when}{scope}"
        )
    return read_policy("\n".join(rules), "company.toml")


def _about_all_tools() -> Policy:
    rules = (
        f'[[rule]]\nname = "rule {number}"\ntools = ["*"]\nthen = "block"\n'
        for number in range(RULES)
    )
    return read_policy("\n".join(rules), "broad.toml")


# ----------------------------------------------------------------------------------------- backtest


async def _backtests(ledger: Ledger, log: Log, rounds: int) -> list[Result]:
    plain, conditional = company(conditions=False), company(conditions=True)
    decoder: msgspec.json.Decoder[e.AnyEvent] = msgspec.json.Decoder(e.AnyEvent.__value__)
    tried: list[float] = []
    decoded: list[float] = []
    for _ in range(rounds):
        trial, floor = _Tried(plain), 0.0
        for piece in _pieces(log.facts):
            gc.collect()
            begun = time.perf_counter()
            for _subject, raw in piece:
                decoder.decode(raw)
            floor += time.perf_counter() - begun
            trial.take(piece)
        decoded.append(floor)
        tried.append(trial.seconds)
        if trial.report().calls != log.facts:
            raise AssertionError(f"{trial.report().calls} of {log.facts} calls were tried")
    each = [seconds / log.facts * 1e6 for seconds in tried]
    with_conditions = []
    first = next(_pieces(min(log.facts, _FEW)))
    for _ in range(rounds):
        contrast = _Tried(conditional)
        contrast.take(first)
        with_conditions.append(contrast.seconds / contrast.report().calls * 1e6)
    whole = []
    for _ in range(rounds):
        begun = time.perf_counter()
        report, _ = await backtest_ledger(ledger, plain)
        whole.append((time.perf_counter() - begun) / report.calls * 1e6)
    version = ledger.log.server_version
    return [
        compared(
            WORKLOAD,
            f"backtest of {log.facts:,} calls by {RULES} rules",
            "s",
            tried,
            decoded,
            beside="msgspec decoding of the same facts",
            better="lower",
            target=5.0,
            facts=log.facts,
            nats_server=version,
        ),
        compared(
            WORKLOAD,
            f"backtest of a call with {_MATCHING} conditions",
            "us",
            with_conditions,
            each,
            beside="without conditions",
            better="higher",
            facts=log.facts,
            nats_server=version,
        ),
        compared(
            WORKLOAD,
            "backtest of a call, read from the broker",
            "us",
            whole,
            each,
            beside="with its facts at hand",
            better="higher",
            facts=log.facts,
            nats_server=version,
        ),
    ]


class _Tried:
    """A backtest, and its duration."""

    def __init__(self, policy: Policy) -> None:
        self._calls, self._trial = Calls(), Backtest(policy)
        self.seconds = 0.0

    def take(self, piece: Recorded) -> None:
        gc.collect()
        begun = time.perf_counter()
        for seq, (subject, raw) in enumerate(piece, 1):
            if (one := self._calls.take(fact_of(seq, _AT, subject, raw))) is not None:
                self._trial.take(one)
        self.seconds += time.perf_counter() - begun

    def report(self) -> Report:
        return self._trial.report()


def _pieces(calls: int) -> Iterator[Recorded]:
    """Requests and decisions of this number of calls, in pieces."""
    piece: list[tuple[str, bytes]] = []
    model, gate = e.Author("model", "model"), e.Author("gate", "gate")
    for number in range(calls):
        call = ThreadRef("bench", f"t{number // logs.TURNS}").wish(number % logs.TURNS + 1, 0)
        for slot, event in logs.calling(call):
            if isinstance(event, e.ToolRequested | e.Approved):
                by = model if isinstance(event, e.ToolRequested) else gate
                stamped = msgspec.structs.replace(
                    event, id=ids.new_id(), at=_AT, by=by, cause=ids.new_id()
                )
                piece.append((slot.subject, encode(stamped)))
        if len(piece) >= 2 * _PIECE:
            yield piece
            piece = []
    if piece:
        yield piece
