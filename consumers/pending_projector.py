"""The queue: keeps the key-value bucket `pending` up to date, for any program to watch.

It reads the entry's revision before the facts and names it when it writes. So when two workers, or
two deliveries, write the entry of one call, the one with the older facts loses and loads again. A
worker that is delayed, or was presumed dead, may put an entry long after the call was decided. So
the entry of a decided call is deleted even if there never was one: the late put then names a
revision that is gone.

This needs a revision from the leader, and facts that are newer than it: if an entry was ever
written, the facts are read at least up to the leader's last one (docs/decisions/0026).
"""

from collections.abc import Sequence
from typing import Never

from msgspec import Struct

from ayes.consumers.effects import Effect, WritePending
from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import Delivered
from ayes.projections import pending
from ayes.schemas.codec import Fact


class PendingState(Struct, frozen=True):
    call: Call
    #: The present entry in the bucket, and its revision.
    value: bytes
    revision: int


class PendingProjector:
    durables = ("queue",)
    replaces = True

    async def load(self, ledger: Ledger, handed: Delivered) -> PendingState:
        assert isinstance(handed, Fact)
        ref = handed.slot.call_ref
        assert ref, "the queue receives facts about calls only"
        value, revision = await ledger.log.pending.get(pending.key(ref))
        if revision:
            await ledger.log.last_seq()
        return PendingState(await ledger.call(ref, must_include=handed.slot), value, revision)

    def decide(self, seen: PendingState, handed: Delivered) -> Sequence[Effect[Never]]:
        entry = pending.entry(seen.call)
        value = pending.encode(entry) if entry is not None else b""
        is_never_written = not seen.revision and seen.call.gated is not None
        if value == seen.value and not is_never_written:
            return ()
        return [WritePending(pending.key(seen.call.ref), value, seen.revision)]

    async def execute(self, ledger: Ledger, work: Never) -> Never:
        raise AssertionError("the queue claims no work")
