"""Group commit: while one commit is in flight, the next one collects.

The broker fsyncs each single publish by itself, but an atomic batch (ADR-50) once. A batch costs
about 2 ms whatever its size, so it pays from about 15 waiting appends. A lone append is published
at once; there is no timer.

A batch is all or nothing. When one of its slots is taken the broker refuses it whole, and its
members are published one by one, so that each gets its own answer.
"""

import asyncio
from typing import Final

from msgspec import Struct

from ayes.ledger.nats.api import PATIENCE_S, Ack, Api, ack_of
from ayes.ledger.nats.protocol import frame
from ayes.schemas.errors import BrokerAway, BrokerRefused
from ayes.schemas.ids import new_id

BATCH_FROM: Final = 15
#: The server's limits: 1,000 messages a batch. The bytes are ours, so that staging one stays small.
BATCH_MOST: Final = 1000
BATCH_BYTES: Final = 8 * 1024 * 1024
#: So many passes at most, though each brings more. From being handed a fact to appending one takes
#: about three.
_PASSES: Final = 8


class _PendingPublish(Struct, eq=False):
    subject: str
    raw: bytes
    ack: asyncio.Future[Ack]


class GroupCommit:
    def __init__(self, requests: Api) -> None:
        self._requests = requests
        self._waiting: list[_PendingPublish] = []
        self._committing = False
        #: Commits for several; kept, since a task that nobody holds may be collected.
        self._others: asyncio.Task[None] | None = None

    async def publish(self, subject: str, raw: bytes) -> Ack:
        """Publish, alone or with whatever else waits.

        Raises:
            Unavailable: no answer came. Whether the broker has it must be read.
        """
        ack: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
        self._waiting.append(_PendingPublish(subject, raw, ack))
        if not self._committing:
            self._committing = True
            try:
                await self._gathered()
                if len(self._waiting) == 1:  # whoever is alone needs no task of its own
                    await self._commit(self._next_group())
            finally:
                self._committing = bool(self._waiting)
                if self._waiting:
                    self._others = asyncio.create_task(self._commit_waiting())
        return await ack

    async def _commit_waiting(self) -> None:
        try:
            while self._waiting:
                await self._gathered()
                await self._commit(self._next_group())
        finally:
            self._committing = False

    async def _gathered(self) -> None:
        """Wait as long as each pass of the event loop brings more: whoever was woken together with
        us.
        """
        count = 0
        for _ in range(_PASSES):
            if count == len(self._waiting):
                return
            count = len(self._waiting)
            await asyncio.sleep(0)

    async def _commit(self, group: list[_PendingPublish]) -> None:
        try:
            if len(group) < BATCH_FROM:
                await self._commit_singly(group)
            else:
                await self._commit_batch(group)
        except Exception as problem:  # noqa: BLE001 - whoever waits must hear it, whatever it is
            _fail(group, problem)

    def _next_group(self) -> list[_PendingPublish]:
        size = end = 0
        while (
            end < min(len(self._waiting), BATCH_MOST)
            and (size := size + len(self._waiting[end].raw)) <= BATCH_BYTES
        ):
            end += 1
        end = max(end, 1)
        group, self._waiting = self._waiting[:end], self._waiting[end:]
        return group

    async def _commit_singly(self, group: list[_PendingPublish]) -> None:
        sent = {await self._requests.send(one.subject, one.raw): one for one in group}
        answered, silent = await asyncio.wait(sent, timeout=PATIENCE_S)
        for answer in answered:
            if problem := answer.exception():
                _fail([sent[answer]], problem)
            else:
                _tell(sent[answer], ack_of(answer.result()))
        for answer in silent:
            answer.cancel()
            _fail([sent[answer]], _no_answer(sent[answer].subject))

    async def _commit_batch(self, group: list[_PendingPublish]) -> None:
        batch = new_id()
        *members, last = group
        frames = [
            frame(
                one.subject,
                one.raw,
                headers={"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)},
            )
            for number, one in enumerate(members, 1)
        ]
        headers = {
            "Nats-Batch-Id": batch,
            "Nats-Batch-Sequence": str(len(group)),
            "Nats-Batch-Commit": "1",
        }
        try:
            async with asyncio.timeout(PATIENCE_S):
                sent = await self._requests.send(
                    last.subject, last.raw, headers, after=b"".join(frames)
                )
                ack = ack_of(await sent)
        except TimeoutError:
            raise _no_answer(last.subject) from None
        except BrokerRefused:
            # These credentials may not write the last one's slot. That says nothing about the
            # others.
            await self._commit_singly(group)
            return
        if ack.error is not None:
            await self._commit_singly(group)
            return
        first = ack.seq - len(group) + 1
        for place, one in enumerate(group):
            _tell(one, Ack(seq=first + place))


def _tell(one: _PendingPublish, ack: Ack) -> None:
    if not one.ack.done():
        one.ack.set_result(ack)


def _no_answer(subject: str) -> BrokerAway:
    return BrokerAway(f"the broker did not say within {PATIENCE_S:g} s whether it has {subject}.")


def _fail(group: list[_PendingPublish], problem: BaseException) -> None:
    for one in group:
        if not one.ack.done():
            one.ack.set_exception(problem)
