"""Attacks on the rules: facts in memory, judged by the functions that judge the log.

They are those of the scorecard's attacks that would leave an alarm if somebody recorded them, such
as a start without an approval. Nothing is asked of a broker.
"""

import inspect
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from ayes.ledger.call import Call
from ayes.ledger.judging.budgets import sums_of
from ayes.ledger.judging.chain import MAX_DEPTH, Chain, chain_above
from ayes.ledger.judging.policies import AppliedPolicy, Origin, Policies, classed
from ayes.ledger.judging.verdict import Case, verdict
from ayes.ledger.stops import stops_of
from ayes.ledger.validity import call_of, voids
from ayes.projections.notices import notice
from ayes.projections.slack_messages import is_whole
from ayes.projections.views.call import call_state
from ayes.projections.views.secrets import WHOLE
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.policy import read_policy
from ayes.schemas.slots import ORGANISATION, CallRef, Slot, StopRef, ThreadRef
from ayes.schemas.tools import Tool, ToolSpec, declaration, read_tools
from ayes.schemas.visible import visible_json

#: The workspace in which the scorecard tries what it tries, and its tool.
WORKSPACE: Final = "scorecard"
SPEC: Final = ToolSpec(
    name="scorecard",
    description="Does nothing; `ayes scorecard` requests it.",
    schema='{"type":"object","properties":{"amount":{"type":"integer"}}}',
)


def rule(name: str, keys: str) -> str:
    """A rule about the tool, as in the file of a policy."""
    return f'[[rule]]\nname = "{name}"\ntools = ["{SPEC.name}"]\n{keys}\n'


class Attempt(Struct, frozen=True):
    """An attack, or a question about a rule."""

    #: Whether what should be so is so. What could not be tried is not.
    held: bool
    #: What is so, or what is not, as a clause.
    said: str


def attempted(claim: str, *, held: bool, why: str = "") -> Attempt:
    """What became of an attack.

    Args:
        claim: what should be so, as a docstring.
        why: if it is not so: what happened instead.
    """
    clause = claim[0].lower() + claim[1:].rstrip(".")
    return Attempt(held, clause if held else f"not so: {clause}{why and f' ({why})'}")


async def trials() -> dict[str, Attempt]:
    """All trials, by name."""
    found = {}
    for trial in _TRIALS:
        holds = trial()
        holds = await holds if inspect.isawaitable(holds) else holds
        found[trial.__name__.strip("_")] = attempted(inspect.getdoc(trial) or "", held=holds)
    return found


_REF: Final = CallRef(WORKSPACE, "t", "c")
_TOOL: Final = Tool(SPEC.name, *declaration(SPEC))
_ARGUMENTS: Final = '{"amount":5}'
_REQUESTER: Final = "rita"
_EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
_ALLOWS: Final = rule("all", 'then = "allow"')
_LAST: Final = _ALLOWS + rule("last", 'class = "irreversible"\npriority = 1\nthen = "block"')


def _log(*recorded: tuple[Slot, e.AnyEvent]) -> list[Fact]:
    """A log of these facts, one each second."""
    return [
        Fact(seq, _EPOCH + timedelta(seconds=seq), slot, event)
        for seq, (slot, event) in enumerate(recorded, 1)
    ]


def _requested(
    ref: CallRef = _REF, arguments: str = _ARGUMENTS, tool: Tool = _TOOL
) -> tuple[Slot, e.AnyEvent]:
    return ref.requested, e.ToolRequested(
        tool=tool.name,
        tool_version=tool.version,
        arguments=arguments,
        digest=call_digest(tool.name, tool.version, arguments),
        requester=_REQUESTER,
        layout=2,
    )


def _approved(ref: CallRef = _REF) -> tuple[Slot, e.AnyEvent]:
    return ref.decided, e.Approved(digest=_digest(), ground="policy", rule="all", policy_version=1)


def _started(ref: CallRef = _REF, arguments: str = _ARGUMENTS) -> tuple[Slot, e.AnyEvent]:
    return ref.client_claim(1), e.ToolStarted(digest=_digest(arguments), idempotency_key=str(ref))


def _asked(arguments: str = _ARGUMENTS) -> tuple[Slot, e.AnyEvent]:
    """The question that the gate puts to people where no policy is applied."""
    asking = _verdict("", arguments=arguments)
    assert isinstance(asking, e.ApprovalRequested)
    return _REF.gated, asking


def _verdict(
    policy: str, *, tool: Tool | None = _TOOL, arguments: str = _ARGUMENTS, **more: Any
) -> e.Approved | e.Denied | e.ApprovalRequested:
    call = call_of(_REF, _log(_requested(arguments=arguments, tool=tool or _TOOL)))
    case = Case(call, _policies(policy), tool, **more)
    return verdict(replace(case, call=classed(call, tool, case.origin.chain)), _EPOCH)


def _denies(policy: str, **more: Any) -> bool:
    return isinstance(_verdict(policy, **more), e.Denied)


def _digest(arguments: str = _ARGUMENTS) -> str:
    return call_digest(_TOOL.name, _TOOL.version, arguments)


def _policies(text: str) -> Policies:
    return Policies(AppliedPolicy(1, read_policy(text, "")))


def _call(*recorded: tuple[Slot, e.AnyEvent]) -> Call:
    return call_of(_REF, _log(*recorded))


# ----------------------------------------------------------------------------------------- trials
#
# The docstring of a trial is what should be so.


def _unapproved() -> bool:
    """A start without an approval does not count."""
    return not _call(_requested(), _asked(), _started()).starts


def _other_bytes() -> bool:
    """Neither a vote nor a start counts for other bytes than were shown and approved."""
    other = '{"amount":6}'
    vote = _REF.vote("ana"), e.Voted(verdict="approve", digest=_digest(other))
    voted = _call(_requested(), _asked(), vote)
    return bool(voids(voted)) and not _call(_requested(), _approved(), _started(_REF, other)).starts


def _own_vote() -> bool:
    """The requester's own vote does not count."""
    vote = _REF.vote(_REQUESTER), e.Voted(verdict="approve", digest=_digest())
    return bool(voids(_call(_requested(), _asked(), vote)))


def _shown() -> bool:
    """Arguments are shown whole, hidden characters spelled out; else Slack has no button."""
    arguments = json.dumps({"text": "\u202e" + "x" * 10_000}, ensure_ascii=False)
    call = _call(_requested(arguments=arguments), _asked(arguments))
    shown = visible_json(call_state(call, WHOLE).arguments)
    is_same = json.loads(shown) == json.loads(arguments)
    return is_same and shown.isascii() and not is_whole(call, notice(call, "asked", secret=()))


def _all_stopped() -> bool:
    """A stop of all workspaces covers every call."""
    return not _call(_requested(), _approved(), _STOP, _started()).starts


def _model_stopped() -> bool:
    """A model is asked nothing while its agent is stopped."""
    return stops_of(_log(_STOP))[0].covers_thread(e.ThreadOpened(requester=_REQUESTER))


_STOP: Final = StopRef(ORGANISATION, "ana", "s").given, e.Stopped(reason="It is tried.")


def _spent() -> bool:
    """A call beyond a budget of amounts or of tokens is denied."""
    return _beyond('"/amount"', "day", used="8") and _beyond('"tokens"', "thread", tokens=10)


def _beyond(amount: str, per: str, used: str = "", tokens: int = 0) -> bool:
    budget = f'name = "b"\ntools = ["*"]\nlimit = 10\nthen = "block"\namount = {amount}\n'
    policy = f'{_ALLOWS}[[budget]]\n{budget}per = ["{per}"]\n'
    [empty] = sums_of(_policies(policy), _call(_requested()))
    spent = e.BudgetUsed(call=f"{WORKSPACE}/t/other", amount=used, key=empty.key)
    facts = _log((empty.ref.used(1), spent)) if used else ()
    return _denies(policy, budgets=(replace(empty, used=tuple(facts), tokens=tokens),))


def _governs() -> bool:
    """People are asked about a tool that can change policies, whatever a rule allows."""
    tool = Tool(SPEC.name, *declaration(SPEC.model_copy(update={"governs": True})))
    return isinstance(_verdict(_ALLOWS, tool=tool), e.ApprovalRequested)


def _undeclared() -> bool:
    """A call of a tool that nobody declared is denied, whatever a rule allows."""
    return _denies(_ALLOWS, tool=None)


def _delegation() -> bool:
    """An agent delegates by a call of a tool, which a rule can block."""
    return _denies(_ALLOWS + rule("none", 'priority = 1\nthen = "block"'))


async def _depth() -> bool:
    """A call below a long chain of others is denied."""
    return not await _denied_below(MAX_DEPTH) and await _denied_below(MAX_DEPTH + 1)


async def _false_parent() -> bool:
    """A call is denied if the call above it, whose agent delegates, did not run."""
    return await _denied_below(1, is_started=False)


async def _denied_below(depth: int, *, is_started: bool = True) -> bool:
    """Whether a call below so many others is denied."""
    thread, parent, recorded = ThreadRef(WORKSPACE, "t"), "", list[tuple[Slot, e.AnyEvent]]()
    for _ in range(depth + 1):
        call, opened = thread.call("c"), thread.opened
        recorded.append((opened, e.ThreadOpened(requester=_REQUESTER, parent=parent)))
        recorded += [_requested(call), _approved(call), *([_started(call)] if is_started else [])]
        thread, parent = call.below, str(call)
    facts = _log(*recorded)

    async def read(ref: CallRef, slot: Slot) -> list[Fact]:
        return [fact for fact in facts if fact.slot.call_ref == ref or fact.slot == slot]

    last = next(fact for fact in facts if fact.slot == opened)
    return _denies(_ALLOWS, origin=Origin(last, chain=await chain_above(last, read)))


def _classes() -> bool:
    """A tool declares its class, and another class is another version of it."""
    names = ("reads", "reversible", "reversible_outside", "irreversible")
    return len({_of_class(one).version for one in names}) == len(names)


def _by_class() -> bool:
    """A rule can block a class of tools, and a tool without one counts as irreversible."""
    last = _denies(_LAST) and _denies(_LAST, tool=_of_class("irreversible"))
    return last and not _denies(_LAST, tool=_of_class("reads"))


def _of_class(name: str) -> Tool:
    said = f"[[tool]]\nname = 'scorecard'\nclass = '{name}'\nschema = '{SPEC.schema_text}'\n"
    [spec] = read_tools(said, "")
    return Tool(spec.name, *declaration(spec))


def _chain_by_class() -> bool:
    """A call below others is judged by the highest class among them."""
    above = Chain((e.Link(str(_REF), SPEC.name, tool_class="irreversible"),))
    return _denies(_LAST, tool=_of_class("reads"), origin=Origin(chain=above))


_TRIALS: Final[tuple[Callable[[], bool | Awaitable[bool]], ...]] = (
    _unapproved, _other_bytes, _own_vote, _shown, _all_stopped, _model_stopped, _spent, _governs,
    _undeclared, _delegation, _depth, _false_parent, _classes, _by_class, _chain_by_class,
)  # fmt: skip
