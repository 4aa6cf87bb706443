"""Rebuilding everything from the first fact, and comparing it with what is live.

Three things are compared, and each could fail:

* the queue: what the log says is open, byte for byte with what stands in the key-value bucket;
* the histories: each reply carries the digest of what its model was sent; made again from the log, it must be the same;
* the promises: no tool was started without an earlier approval of exactly the bytes it ran with, none was started
  again unless it is declared repeatable, and every fact can be read.
"""

import asyncio
import time
from collections import Counter, defaultdict
from datetime import datetime

from msgspec import Struct

from ledger.client import Ledger
from ledger.jetstream import JetStream
from ledger.streams import LEDGER, info
from projections import pending
from projections.history import digest, history
from projections.thread import Thread, thread_of
from schemas import events as e
from schemas.codec import Fact
from schemas.errors import Unavailable
from schemas.slots import ThreadRef, tool_slot

#: How long the live queue may take to come to where the replay ended.
_CATCH_UP_S = 15.0
#: The last tokens of what the queue's worker is handed.
_QUEUED = frozenset({"gated", "decided"})


class Rebuilt(Struct, frozen=True):
    """What the log comes to, and where it differs from what is live."""

    facts: int
    #: The last fact that was read; 0 when there is none.
    until: int
    threads: int
    #: By status.
    calls: dict[str, int]
    pending: int
    #: Replies whose history was made again.
    histories: int
    seconds: float
    #: One sentence each, in the order of the log; empty when nothing differs.
    differences: tuple[str, ...] = ()


async def rebuild(ledger: Ledger, *, until: int | datetime | None = None, verify: bool = False) -> Rebuilt:
    """Fold the whole log, up to a sequence number or time if one is given.

    Args:
        verify: compare with what is live. The queue only where the whole log is folded: it is live at the end.
    """
    begun = time.monotonic()
    threads: dict[ThreadRef, list[Fact]] = defaultdict(list)
    tools: dict[str, e.ToolDeclared] = {}
    queue = pending.OPEN.initial()
    differences: list[str] = []
    count = last = queued = 0
    async for fact in ledger.replay():
        if _is_after(fact, until):
            break
        count, last = count + 1, fact.seq
        if fact.slot.tail[-1] in _QUEUED:
            queued = fact.seq
        queue = pending.OPEN.take(queue, fact)
        if isinstance(fact.event, e.Carried) and fact.event.problem:
            differences.append(f"fact {fact.seq}: {fact.event.problem}")
        elif isinstance(fact.event, e.ToolDeclared):
            tools[fact.slot.subject] = fact.event
        elif fact.slot.thread:
            threads[fact.slot.thread_ref].append(fact)
    folded = [thread_of(ref, facts) for ref, facts in threads.items()]
    histories = 0
    if verify:
        for thread in folded:
            differences += _broken_promises(thread, tools)
            made, wrong = _histories(thread)
            histories += made
            differences += wrong
        if until is None:
            await _caught_up(ledger, queued)
            differences += await _queue_differences(ledger, queue, last)
    return Rebuilt(
        facts=count,
        until=last,
        threads=len(folded),
        calls=dict(
            sorted(Counter(str(call.status) for thread in folded for call in thread.calls.values()).items())
        ),
        pending=len(queue.entries()),
        histories=histories,
        seconds=round(time.monotonic() - begun, 3),
        differences=tuple(differences),
    )


def _is_after(fact: Fact, until: int | datetime | None) -> bool:
    match until:
        case None:
            return False
        case datetime():
            return fact.recorded_at > until
        case int():
            return fact.seq > until


def _histories(thread: Thread) -> tuple[int, list[str]]:
    """Make each reply's history again, and hold its digest against the recorded one."""
    made, wrong = 0, []
    for number, turn in thread.turns.items():
        if turn.reply is None or not turn.reply.history_digest or turn.replied is None:
            continue
        made += 1
        now = digest(history(thread, before_turn=number).entries)
        if now != turn.reply.history_digest:
            wrong.append(
                f"fact {turn.replied.seq}: turn {number} of {thread.ref} was asked with a history of digest "
                f"{turn.reply.history_digest[:16]}, but the log gives {now[:16]}"
            )
    return made, wrong


def _broken_promises(thread: Thread, tools: dict[str, e.ToolDeclared]) -> list[str]:
    broken: list[str] = []
    for call in thread.calls.values():
        ended = call.finished
        starts = [fact for fact in call.claims if isinstance(fact.event, e.ToolStarted)]
        if starts and ended is not None and isinstance(ended.event, e.ToolRefused):
            broken.append(f"fact {ended.seq}: {call.ref} is told to the model as not run, but it was started")
        if not starts:
            if call.finished and isinstance(call.finished.event, (e.ToolReturned, e.ToolFailed)):
                broken.append(f"fact {call.finished.seq}: {call.ref} has a result and was never started")
            continue
        if call.requested is None:
            broken.append(f"fact {starts[0].seq}: {call.ref} was started and never requested")
            continue
        approval = call.decided.event if call.decided else None
        first = starts[0]
        if call.decided is None or not isinstance(approval, e.Approved) or call.decided.seq > first.seq:
            broken.append(f"fact {first.seq}: {call.ref} was started without an approval")
        elif any(
            isinstance(one.event, e.ToolStarted) and one.event.digest != approval.digest for one in starts
        ):
            broken.append(f"fact {first.seq}: {call.ref} was started with other bytes than were approved")
        elif call.flaw == "people_were_asked":
            broken.append(f"fact {first.seq}: {call.ref} was started by policy while people were asked")
        elif call.flaw is not None:
            broken.append(
                f"fact {call.decided.seq}: the approval of {call.ref} is for other bytes than it holds"
            )
        declared = tools.get(tool_slot(call.ref.workspace, call.wish.tool, call.wish.tool_version).subject)
        if len(starts) > 1 and (declared is None or not declared.repeatable):
            broken.append(
                f"fact {starts[1].seq}: {call.ref} was started {len(starts)} times and is not repeatable"
            )
    return broken


async def _queue_differences(ledger: Ledger, queue: pending.Queue, last: int) -> list[str]:
    """Where the bucket is not what the log says.

    Facts may come while we look, so the bucket is read between two readings of the log, and each entry may be as
    it should be at any fact in between.
    """
    live = await ledger.port.pending.entries()
    allowed: dict[str, set[bytes]] = defaultdict(set)
    wanted = queue.entries()
    for name in {*wanted, *live}:
        allowed[name].add(wanted.get(name, b""))
    async for fact in ledger.replay(last + 1):
        queue = pending.OPEN.take(queue, fact)
        if (ref := fact.slot.call_ref) is not None:
            name = pending.key(ref)
            if not allowed[name]:
                allowed[name].add(b"")
            allowed[name].add(queue.value(name))
    return [
        f"pending entry {name}: live is {live.get(name, b'').decode() or 'no entry'}, "
        f"but the log gives {b' or '.join(sorted(values)).decode() or 'no entry'}"
        for name, values in sorted(allowed.items())
        if live.get(name, b"") not in values
    ]


async def _caught_up(ledger: Ledger, queued: int) -> None:
    """Wait until the queue's worker has handled every fact that it is handed, up to the last one that we have read.

    Its acknowledgements tell, and nothing else does: for a moment after an append the broker counts no fact as waiting.

    Raises:
        Unavailable: it has not. Then there is nothing to compare yet.
    """
    assert isinstance(ledger.port, JetStream)
    behind = 0
    try:
        async with asyncio.timeout(_CATCH_UP_S):
            while True:
                consumer = await info(ledger.port.requests, f"CONSUMER.INFO.{LEDGER}.queue")
                if consumer is None:
                    raise Unavailable("there is no consumer 'queue' here. `approvals up` creates it.")
                if consumer["ack_floor"]["stream_seq"] >= queued:
                    return
                behind = consumer["num_pending"] + consumer["num_ack_pending"]
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise Unavailable(
            f"the queue's worker is {behind} facts behind, so there is nothing to compare yet. "
            "Does it run? See approvals status."
        ) from None
