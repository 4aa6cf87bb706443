"""Stopping and resuming in a person's name, and what a stop covers in its moment."""

import asyncio
import secrets
from collections.abc import Iterable
from contextlib import aclosing, suppress
from datetime import datetime
from itertools import batched
from operator import attrgetter
from typing import Final

from ayes.consumers.doubt import claimed
from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.stopping import missing, people_to_read
from ayes.ledger.lifecycle import Status
from ayes.ledger.people import people_of
from ayes.ledger.stops import Stop, stops_of
from ayes.ledger.validity import call_of
from ayes.ops.actions.grants import check_patterns
from ayes.ops.actions.votes import GATE_S
from ayes.projections.call_query import CallQuery
from ayes.projections.pending import Entry, oldest
from ayes.projections.views.copied import copied
from ayes.projections.views.stop import StopAccount, StoppedCall, stop_state
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import CLIENT, ORGANISATION, ROOT, STOP, CallRef, StopRef, stops

#: How many facts before a stop are looked at for calls that the index of claims does not have:
#: approved ones, and those that an executor runs. It takes some seconds at most.
LOOK_BACK: Final = 100_000
#: Calls read with one request.
_TOGETHER: Final = 50
#: The facts that let a call start, those that start it, and those that end it.
_TAILS: Final = (
    "decided", "claim.*", f"claim.{CLIENT}.*", "finished", f"finished.{CLIENT}", "late.>"
)  # fmt: skip


def stop_ref(workspace: str, giver: str, named: str) -> StopRef:
    """The name of a new stop, chosen at random if its giver did not choose one.

    Args:
        workspace: empty: all workspaces.
    """
    return StopRef(workspace or ORGANISATION, giver, named or f"s-{secrets.token_hex(3)}")


def check_limits(agents: Iterable[str], tools: Iterable[str], requesters: Iterable[str]) -> None:
    """Refuse patterns that cover nothing, such as the empty value of a script's variable.

    Raises:
        BadInput: one is empty, or no name of a tool can match it.
    """
    every = {"--agent": agents, "--tool": tools, "--requester": requesters}
    if empty := next((name for name, of in every.items() if not all(of)), None):
        raise BadInput(f"{empty} is empty, so the stop would cover nothing. Name one, or leave it.")
    check_patterns(tools)


async def stops_in(ledger: Ledger, workspace: str = "") -> tuple[Stop, ...]:
    """All stops that hold or held in a workspace, or all; oldest first."""
    return stops_of(
        await ledger.reading.read(*(stops(workspace) if workspace else (f"{ROOT}.*.{STOP}.>",)))
    )


async def resume_stop(ledger: Ledger, stop: StopRef, name: str, reason: str) -> tuple[Stop, int]:
    """Resume, and wait a moment for the gate if enough people have; the stop, and the number of
    people who are missing.

    Args:
        ledger: on the person's own credentials.
    """
    found = await ledger.reviewer(name).resume(stop, reason=reason)
    policies = await ledger.policies(stop.workspace)
    people = people_of(await ledger.read(*people_to_read(policies, found)))
    needed = missing(found, policies, people)
    if not needed:
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(GATE_S),
                aclosing(
                    ledger.log.follow((stop.ended.subject,), found.given.seq, until_end=False)
                ) as coming,
            ):
                async for _ in coming:
                    [found] = stops_of(await ledger.read(stop, must_include=stop.ended))
                    break
    return found, needed


async def account(ledger: Ledger, stop: Stop) -> StopAccount:
    """What a stop covered when it was given: what ran, what is in doubt, and what it holds.

    Raises:
        BrokerRefused: the broker has no index of claims.
    """
    workspace = "" if stop.ref.workspace == ORGANISATION else stop.ref.workspace
    running: dict[CallRef, StoppedCall] = {}
    in_doubt: dict[CallRef, StoppedCall] = {}
    held: dict[CallRef, StoppedCall] = {}
    start = max(1, stop.given.seq - LOOK_BACK)
    for call in await _open_before(ledger, stop, start, workspace or "*"):
        if call.status is Status.RUNNING:
            running[call.ref] = _shown(call, call.starts[-1].recorded_at)
        elif _is_held(call, stop.given.recorded_at) and call.decided is not None:
            held[call.ref] = _shown(call, call.decided.recorded_at)
    for call, doubt in await claimed(ledger, workspace):
        if not stop.covers(call.wish) or call.starts[-1].seq > stop.given.seq:
            continue
        if doubt is None:
            running[call.ref] = _shown(call, call.starts[-1].recorded_at)
        else:
            running.pop(call.ref, None)
            in_doubt[call.ref] = _shown(call, doubt.since)
    first = await ledger.log.at(start) if start > 1 else None
    entries = await ledger.log.pending.entries()
    return copied(
        StopAccount,
        stop_state(stop, await ledger.log.clock()),
        running=_sorted(running),
        in_doubt=_sorted(in_doubt),
        held=_sorted(held),
        pending=sum(
            _covers(stop, one)
            for one in oldest(entries, chosen=CallQuery.of(workspace=workspace)).entries
        ),
        looked_since=first.recorded_at if first else None,
    )


async def _open_before(ledger: Ledger, stop: Stop, start: int, workspace: str) -> list[Call]:
    """The calls that a stop covers as they were just before it, if they were approved or started
    from this number of the log on and had no end.
    """
    subjects = tuple(f"{ROOT}.{workspace}.*.call.*.{tail}" for tail in _TAILS)
    open_calls: dict[CallRef, None] = {}
    following = ledger.log.follow(subjects, start, until_end=True)
    async with aclosing(following) as batches:
        async for facts in batches:
            for fact in facts:
                if (ref := fact.slot.call_ref) is None or fact.seq > stop.given.seq:
                    continue
                match fact.event:
                    case e.Approved() | e.ToolStarted():
                        open_calls[ref] = None
                    case e.ToolReturned() | e.ToolFailed() | e.ToolRefused() | e.Carried():
                        open_calls.pop(ref, None)
            if facts[-1].seq > stop.given.seq:
                break
    found: list[Call] = []
    for together in batched(open_calls, _TOGETHER, strict=False):
        read = [fact for fact in await ledger.read(*together) if fact.seq < stop.given.seq]
        calls = [call_of(ref, read) for ref in together]
        found += [one for one in calls if one.requested is not None and stop.covers(one.wish)]
    return found


def _is_held(call: Call, at: datetime) -> bool:
    """Whether it could have started at this time, on the broker's clock."""
    is_valid = call.valid_until is None or at < call.valid_until
    return call.status is Status.APPROVED and call.flaw is None and is_valid


def _covers(stop: Stop, entry: Entry) -> bool:
    return stop.covers(
        e.ToolRequested(
            tool=entry.tool,
            arguments=entry.arguments,
            digest=entry.digest,
            requester=entry.requester,
            agent=entry.agent,
        )
    )


def _shown(call: Call, since: datetime) -> StoppedCall:
    return StoppedCall(str(call.ref), call.wish.tool, call.wish.agent, since)


def _sorted(found: dict[CallRef, StoppedCall]) -> list[StoppedCall]:
    return sorted(found.values(), key=attrgetter("since", "call"))
