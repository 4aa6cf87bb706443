"""The calls that were approved and that nothing has started, found by reading the log.

There is no index of such calls. It would cost two writes for each call, and nearly every approved
call starts within a second. The log is read instead, when a policy blocks something, which is rare:
all of it the first time, and later the facts since then. Only open calls are kept.
"""

import asyncio
from contextlib import aclosing
from typing import Final

from ayes.ledger.clients.client import LedgerClient
from ayes.ledger.lifecycle import Status
from ayes.ledger.validity import call_of
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BrokerAway
from ayes.schemas.slots import POLICY, ROOT, STOP, CallRef

#: What says whether an approval counts and is used, and the stops, under which a start is void.
_SUBJECTS: Final = (
    *(
        f"{ROOT}.*.*.call.*.{tail}"
        for tail in ("requested", "gated", "decided", "claim.>", "revoked.*", "lapsed")
    ),
    f"{ROOT}.*.{STOP}.>",
    f"{ROOT}.*.{POLICY}.*",
)


class Unstarted:
    """What was read so far, of the calls that are open."""

    def __init__(self) -> None:
        #: Undecided, or approved and not started.
        self._facts: dict[CallRef, list[Fact]] = {}
        self._approved: set[CallRef] = set()
        self._stops: list[Fact] = []
        #: The number of the last fact.
        self._read = 0
        self._reading = asyncio.Lock()

    async def before(
        self, ledger: LedgerClient, policy: Fact, workspace: str = ""
    ) -> list[CallRef]:
        """The calls of a workspace, or of all, that were approved before a policy was applied and
        are not started.

        Raises:
            Unavailable: the log cannot be read up to that policy.
        """
        async with self._reading:
            following = ledger.log.follow(_SUBJECTS, self._read + 1, until_end=True)
            async with aclosing(following) as batches:
                async for facts in batches:
                    for fact in facts:
                        self._take(fact)
        if self._read < policy.seq:
            raise BrokerAway(f"fact {policy.seq:,} cannot be read yet; a replica is behind.")
        return sorted((ref for ref in self._approved if workspace in ("", ref.workspace)), key=str)

    def _take(self, fact: Fact) -> None:
        self._read = max(self._read, fact.seq)
        tail = fact.slot.tail
        if tail[0] == STOP:
            self._stops.append(fact)
            return
        if (ref := fact.slot.call_ref) is None:
            return
        if tail[2] == "requested":
            self._facts[ref] = [fact]
            return
        if (facts := self._facts.get(ref)) is None:
            return  # the call is settled, or was never requested
        facts.append(fact)
        if tail[2] == "gated":
            return
        status = call_of(ref, (*facts, *self._stops)).status
        if status is Status.APPROVED:
            self._approved.add(ref)
        elif status not in (Status.REQUESTED, Status.PENDING):
            del self._facts[ref]
            self._approved.discard(ref)
