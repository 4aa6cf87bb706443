"""What waits for people: one entry for each call that was put to them and is not decided.

The live queue is the KV bucket `pending`: a key for each open approval, put when the gate asks, deleted when it
decides. Any NATS client can watch it. It holds nothing that the ledger does not hold, and `OPEN` makes it again
from the log, byte for byte.

An entry never changes while it stands: votes come and go into the ledger, not into the queue.
"""

from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Struct

from ledger.lifecycle import Call, Status, evolve
from projections.fold import Fold
from schemas.codec import Fact
from schemas.slots import CallRef


class Entry(Struct, frozen=True):
    """An open approval: all that a reviewer needs to decide, and who may. Times are the broker's, UTC."""

    workspace: str
    thread: str
    call: str
    tool: str
    #: All of them, as the raw JSON text that came.
    arguments: str
    #: What a vote must carry to count.
    digest: str
    rule: str
    #: Why it is asked, in the policy's words.
    reason: str
    #: On whose behalf the agent acts.
    requester: str
    agent: str
    #: Names, or patterns with `*`.
    voters: tuple[str, ...]
    excluded: tuple[str, ...]
    votes_needed: int
    requested_at: datetime
    gated_at: datetime
    #: None: it never expires.
    expires_at: datetime | None
    #: Position of the question in the log.
    seq: int

    @property
    def ref(self) -> CallRef:
        return CallRef(self.workspace, self.thread, self.call)


def entry(call: Call) -> Entry | None:
    """What stands in the queue for this call. None: nothing, and what stood there is removed."""
    asking = call.asking
    if call.status is not Status.PENDING or not call.requested or not call.gated or not asking:
        return None
    return Entry(
        workspace=call.ref.workspace,
        thread=call.ref.thread,
        call=call.ref.call,
        tool=call.wish.tool,
        arguments=call.wish.arguments,
        digest=asking.digest,
        rule=asking.rule,
        reason=asking.reason,
        requester=call.wish.requester,
        agent=call.wish.agent,
        voters=asking.voters,
        excluded=asking.excluded,
        votes_needed=asking.votes_needed,
        requested_at=call.requested.recorded_at.astimezone(UTC),
        gated_at=call.gated.recorded_at.astimezone(UTC),
        expires_at=call.deadline and call.deadline.astimezone(UTC),
        seq=call.gated.seq,
    )


def encode(entry: Entry) -> bytes:
    """The value under `key`: JSON, the fields in the order of the class."""
    return _encoder.encode(entry)


def decode(raw: bytes) -> Entry:
    return _decoder.decode(raw)


def key(ref: CallRef) -> str:
    """The key in the bucket. Ids hold no dots, so no two calls share one, and `acme.>` watches a workspace."""
    return f"{ref.workspace}.{ref.thread}.{ref.call}"


class Queue(Struct):
    """The calls of a whole log as far as the queue is concerned: those still open, and the mere keys of the rest."""

    undecided: dict[str, Call] = {}
    #: Decided or further. Remembered, so that a request that comes late opens nothing again.
    gone: set[str] = set()

    def entries(self) -> dict[str, bytes]:
        """What the bucket holds when it is up to date, by key, sorted."""
        found = {name: self.value(name) for name in sorted(self.undecided)}
        return {name: value for name, value in found.items() if value}

    def value(self, name: str) -> bytes:
        """What stands under one key; empty: nothing."""
        call = self.undecided.get(name)
        found = entry(call) if call else None
        return encode(found) if found else b""


def _take(queue: Queue, fact: Fact) -> Queue:
    ref = fact.slot.call_ref
    if ref is None or (name := key(ref)) in queue.gone:
        return queue
    call = evolve(queue.undecided.get(name) or Call(ref), fact)
    if call.status in {Status.UNKNOWN, Status.REQUESTED, Status.PENDING}:
        queue.undecided[name] = call
    else:
        queue.undecided.pop(name, None)
        queue.gone.add(name)
    return queue


#: The queue over the whole log: `OPEN.over(facts).entries()`.
OPEN: Final = Fold(Queue, _take)

_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Entry)
