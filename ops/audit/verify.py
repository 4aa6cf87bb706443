"""Rebuilding all state from the first fact, and comparing it with the live state.

These are compared:

* the queue: the open calls of the log, byte for byte with the key-value bucket;
* the histories: each reply carries the digest of the history that its model was sent; the history
  rebuilt from the log must have the same digest;
* the promises: no approval is for other bytes than its call holds, and no tool was started again
  unless it is declared repeatable, or its lookup said that the start before had no effect;
* with a trust file, in the workspaces where votes are signed: that what was started follows from
  signed votes and policies.

That nothing starts without an approval of exactly its bytes is not compared:
`ayes.ledger.lifecycle` counts no other start. Facts that do not count are listed as void, with the
reason. They change nothing, so they are not differences.
"""

import asyncio
import time
from collections import Counter

from msgspec import Struct

from ayes.ledger.call import Call
from ayes.ledger.clients.proofs import why_unproved
from ayes.ledger.clients.services import Ledger
from ayes.ledger.descriptions import describe
from ayes.ledger.subscriptions import DURABLES
from ayes.ledger.validity import voids
from ayes.ops.audit.replay import Until, replay
from ayes.projections.calls import CALLS
from ayes.projections.fold import ProjectionState
from ayes.projections.histories import HISTORIES, ThreadFacts
from ayes.projections.history import digest, history
from ayes.projections.pending import OPEN_APPROVALS, key
from ayes.projections.thread import Thread
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import Unavailable
from ayes.schemas.slots import CallRef, tool_slot

#: How long the live queue may take to catch up with the replay.
_CATCH_UP_S = 15.0
#: The facts that the queue's worker receives.
_QUEUED = DURABLES["queue"].subjects


class VoidFact(Struct, frozen=True):
    """A fact that does not count."""

    seq: int
    subject: str
    #: A short description, with its author.
    what: str
    why: str

    def __str__(self) -> str:
        return f"fact {self.seq}: {self.subject} is void ({self.what}): {self.why}"


class Rebuilt(Struct, frozen=True):
    """The state that the log amounts to, and where the live state differs from it."""

    facts: int
    #: The last fact that was read, or 0.
    until: int
    threads: int
    #: By status.
    calls: dict[str, int]
    pending: int
    #: Replies whose history was rebuilt.
    histories: int
    seconds: float
    #: One sentence each, in the order of the log.
    differences: tuple[str, ...] = ()
    #: Facts that do not count, in the order of the log.
    void: tuple[VoidFact, ...] = ()


async def rebuild(ledger: Ledger, *, until: Until = None, verify: bool = False) -> Rebuilt:
    """Fold the whole log, up to a sequence number or time if one is given.

    Args:
        verify: compare with the live state; with the queue only if the whole log is folded.
    """
    begun = time.monotonic()
    tools: dict[str, e.ToolDeclared] = {}
    statuses: Counter[str] = Counter()
    # A thread or call that continues after its eviction is examined twice, and reported once.
    differences: set[tuple[int, str]] = set()
    void: dict[int, VoidFact] = {}
    count = last = threads = histories = 0
    started = dict[CallRef, Call]()
    state = ProjectionState(OPEN_APPROVALS, CALLS, HISTORIES)

    def each(fact: Fact) -> None:
        nonlocal count, last, threads, histories
        count, last = count + 1, fact.seq
        if isinstance(fact.event, e.Carried) and fact.event.problem and fact.slot.call_ref is None:
            void[fact.seq] = _void(fact, fact.event.problem)
        elif isinstance(fact.event, e.ToolDeclared):
            tools[fact.slot.subject] = fact.event
        elif isinstance(fact.event, e.ThreadOpened):
            threads += 1
        elif isinstance(fact.event, e.ModelReplied) and fact.event.history_digest and verify:
            histories += 1

    def examine_call(call: Call) -> None:
        statuses[str(call.status)] += 1
        void.update((one.fact.seq, _void(one.fact, one.why)) for one in voids(call))
        if verify:
            differences.update(_broken_promises(call, tools))
            if call.starts and ledger.trust is not None and ledger.trust.signed_since:
                started[call.ref] = call

    def examine_thread(conversation: ThreadFacts) -> None:
        if verify:
            differences.update(_other_histories(conversation.thread))

    async def batch() -> None:
        for facts in state.evicted(CALLS):
            examine_call(facts.call)
        for facts in state.reloaded(CALLS):
            statuses[str(facts.call.status)] -= 1
        for conversation in state.evicted(HISTORIES):
            examine_thread(conversation)
        state.evicted(OPEN_APPROVALS)
        state.reloaded(HISTORIES)

    gaps = await replay(ledger, state, until=until, each=each, batch=batch)
    for facts in state.things(CALLS):
        examine_call(facts.call)
    for conversation in state.things(HISTORIES):
        examine_thread(conversation)
    differences.update(
        (gap.start, f"the log does not have it, nor any before fact {gap.stop}") for gap in gaps
    )
    for ref, call in started.items():
        if call.decided is not None and (why := await why_unproved(ledger, call)):
            differences.add((call.decided.seq, f"{ref} was started, and {why}"))
    found = [f"fact {seq}: {what}" for seq, what in sorted(differences)]
    pending = len(list(state.rows(OPEN_APPROVALS)))
    if verify and until is None:
        await caught_up(ledger)
        found += map(str, await queue_differences(ledger, state))
    return Rebuilt(
        facts=count,
        until=last,
        threads=threads,
        calls={status: number for status, number in sorted(statuses.items()) if number},
        pending=pending,
        histories=histories,
        seconds=round(time.monotonic() - begun, 3),
        differences=tuple(found),
        void=tuple(void[seq] for seq in sorted(void)),
    )


def _void(fact: Fact, why: str) -> VoidFact:
    what = "not a fact" if isinstance(fact.event, e.Carried) else describe(fact)
    return VoidFact(
        fact.seq, fact.slot.subject if fact.slot.workspace else fact.slot.tail[0], what, why
    )


def _other_histories(thread: Thread) -> list[tuple[int, str]]:
    """Rebuild each reply's history, and compare its digest with the recorded one."""
    wrong = []
    for number, turn in thread.turns.items():
        if turn.reply is None or not turn.reply.history_digest or turn.replied is None:
            continue
        now = digest(history(thread, before_turn=number).entries)
        if now != turn.reply.history_digest:
            what = (
                f"turn {number} of {thread.ref} was asked with a history of digest "
                f"{turn.reply.history_digest[:16]}, but the log gives {now[:16]}"
            )
            wrong.append((turn.replied.seq, what))
    return wrong


def _broken_promises(call: Call, tools: dict[str, e.ToolDeclared]) -> list[tuple[int, str]]:
    """Broken promises among the facts that count."""
    broken: list[tuple[int, str]] = []
    ref = call.ref
    if call.requested is None or call.decided is None:
        return broken
    if isinstance(call.decided.event, e.Approved) and call.flaw == "digest_mismatch":
        broken.append((call.decided.seq, f"the approval of {ref} is for other bytes than it holds"))
    # A start after a lookup that said that the one before had no effect is none again.
    again = [
        start
        for start in call.starts[1:]
        if not (isinstance(start.event, e.ToolStarted) and start.event.looked_up)
    ]
    if again:
        declared = tools.get(
            tool_slot(ref.workspace, call.wish.tool, call.wish.tool_version).subject
        )
        if declared is None or not declared.repeatable:
            what = f"{ref} was started {len(call.starts)} times and is not repeatable"
            broken.append((again[0].seq, what))
    return broken


class Difference(Struct, frozen=True):
    """An entry of the live queue that is not as the log has it."""

    key: str
    #: Empty if there is none.
    live: bytes
    #: The values that it may have: the log goes on during the comparison.
    log: tuple[bytes, ...]

    def __str__(self) -> str:
        return (
            f"pending entry {self.key}: live is {_text(self.live) or 'no entry'}, "
            f"but the log gives {_text(b' or '.join(self.log)) or 'no entry'}"
        )


def _text(value: bytes) -> str:
    """The value of the bucket, with bytes that are not UTF-8 escaped."""
    return value.decode(errors="backslashreplace")


async def queue_differences(ledger: Ledger, state: ProjectionState) -> list[Difference]:
    """The entries of the live queue that differ from this state of the whole log.

    Facts may arrive meanwhile, so the bucket is read between two readings of the log, and each
    entry may be as of any fact in between.
    """
    live = await ledger.log.pending.entries()
    wanted = {row.key: row.value for row in state.rows(OPEN_APPROVALS)}
    allowed = {name: {wanted.get(name, b"")} for name in {*wanted, *live}}

    def each(fact: Fact) -> None:
        if (ref := fact.slot.call_ref) is not None and OPEN_APPROVALS.key(fact.slot) is not None:
            row = state.row(OPEN_APPROVALS, fact.slot)
            allowed.setdefault(key(ref), {b""}).add(row.value if row else b"")

    await replay(ledger, state, each=each)
    return _differences(live, allowed)


async def differences_since(ledger: Ledger, state: ProjectionState) -> list[Difference]:
    """The entries of the live queue that differ from this earlier state of the log."""
    live = await ledger.log.pending.entries()
    then = {row.key: {row.value} for row in state.rows(OPEN_APPROVALS)}
    return _differences(live, {name: then.get(name, {b""}) for name in {*then, *live}})


def _differences(live: dict[str, bytes], allowed: dict[str, set[bytes]]) -> list[Difference]:
    return [
        Difference(name, live.get(name, b""), tuple(sorted(values)))
        for name, values in sorted(allowed.items())
        if live.get(name, b"") not in values
    ]


async def caught_up(ledger: Ledger) -> None:
    """Wait until the queue's worker has handled all its facts up to the present last one.

    Only its acknowledgements show that: for a moment after an append the broker counts no fact as
    waiting.

    Raises:
        Unavailable: it has not caught up, so nothing can be compared yet.
    """
    queued = max([fact.seq for one in _QUEUED if (fact := await ledger.log.latest(one))], default=0)
    behind = 0
    try:
        async with asyncio.timeout(_CATCH_UP_S):
            while True:
                progress = await ledger.log.progress("queue")
                if progress is None:
                    raise Unavailable("there is no consumer 'queue' here. `ayes up` creates it.")
                if progress.acknowledged >= queued:
                    return
                behind = progress.waiting + progress.in_hand
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise Unavailable(
            f"the queue's worker is {behind} facts behind, so there is nothing to compare yet. "
            "Does it run? See ayes status."
        ) from None
