"""Group commit: while one commit is in flight, appends are collected for the next one.

The broker fsyncs every single publish, but an atomic batch (ADR-50) only once. A batch costs about
2 ms whatever its size, so it pays from about 15 appends. A single append is published at once;
there is no timer.

A batch is all or nothing. If one of its slots is taken, the broker refuses all of it, and its
members are published one by one, so that each gets its own answer.

No batch has a subject twice. Of a batch whose last message has the subject of another one,
nats-server 2.15 stores all but the last, and if it fsyncs each publish it never answers.
"""

import asyncio
import functools
from typing import Final

from msgspec import Struct

from ayes.ledger.nats.api import PATIENCE_S, Ack, Api, ack_of, is_ack
from ayes.ledger.nats.protocol import frame
from ayes.schemas.errors import BrokerAway, BrokerRefused
from ayes.schemas.ids import new_id

BATCH_FROM: Final = 15
#: The header with the subjects among which a fact names the last message.
AMONG: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
#: The refusal of a fact beside another one, not yet replicated, with the same words in `AMONG`.
IN_PROCESS: Final = 10164
#: The server's limit of messages a batch. The limit of bytes is ours: it bounds a staged batch.
MAX_BATCH: Final = 1000
BATCH_BYTES: Final = 8 * 1024 * 1024
#: The number of passes of the event loop to wait at most. A worker needs about three from receiving
#: a fact to appending one.
_PASSES: Final = 8


class _PendingPublish(Struct, eq=False):
    subject: str
    raw: bytes
    headers: dict[str, str]
    ack: asyncio.Future[Ack]


class GroupCommit:
    def __init__(self, requests: Api) -> None:
        self._requests = requests
        self._waiting: list[_PendingPublish] = []
        self._committing = False
        #: A reference, since a task without one may be garbage collected.
        self._others: asyncio.Task[None] | None = None

    async def publish(self, subject: str, raw: bytes, headers: dict[str, str] | None = None) -> Ack:
        """Publish a message, alone or in a batch.

        Raises:
            BrokerAway: no answer came. The broker may have the message all the same.
        """
        ack: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
        self._waiting.append(_PendingPublish(subject, raw, headers or {}, ack))
        if not self._committing:
            self._committing = True
            try:
                await self._gathered()
                if len(self._waiting) == 1:  # a single append needs no task
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
        """Wait while each pass of the event loop adds appends of tasks woken together with us."""
        count = 0
        for _ in range(_PASSES):
            if count == len(self._waiting):
                return
            count = len(self._waiting)
            await asyncio.sleep(0)

    async def _commit(self, group: list[_PendingPublish]) -> None:
        try:
            if len(group) < BATCH_FROM and not _share_a_condition(group):
                await self._commit_singly(group)
            else:
                await self._commit_batch(group)
        except Exception as problem:  # noqa: BLE001 - reported to every waiting caller
            _fail(group, problem)

    def _next_group(self) -> list[_PendingPublish]:
        """The longest group that may be a batch: no subject is in it twice."""
        size, subjects = 0, set[str]()
        for one in self._waiting[:MAX_BATCH]:
            size += len(one.raw)
            if subjects and (size > BATCH_BYTES or one.subject in subjects):
                break
            subjects.add(one.subject)
        end = len(subjects)
        group, self._waiting = self._waiting[:end], self._waiting[end:]
        return group

    async def _commit_singly(self, group: list[_PendingPublish]) -> None:
        sent = {
            await self._requests.send(one.subject, one.raw, one.headers, fits=is_ack): one
            for one in group
        }
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
                headers=one.headers | {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)},
            )
            for number, one in enumerate(members, 1)
        ]
        headers = last.headers | {
            "Nats-Batch-Id": batch,
            "Nats-Batch-Sequence": str(len(group)),
            "Nats-Batch-Commit": "1",
        }
        try:
            async with asyncio.timeout(PATIENCE_S):
                sent = await self._requests.send(
                    last.subject,
                    last.raw,
                    headers,
                    after=b"".join(frames),
                    fits=functools.partial(is_ack, batch=batch),
                )
                ack = ack_of(await sent)
        except TimeoutError:
            raise _no_answer(last.subject) from None
        except BrokerRefused:
            # The credentials may not write the slot of the last one. The others may be allowed.
            await self._commit_singly(group)
            return
        if ack.error is not None:
            await self._commit_singly(group)
            return
        first = ack.seq - len(group) + 1
        for place, one in enumerate(group):
            _tell(one, Ack(seq=first + place))


def _share_a_condition(group: list[_PendingPublish]) -> bool:
    """Whether two of them name the same subjects, so that on three nodes one would refuse the other
    unless they are in a batch.
    """
    named = [one.headers[AMONG] for one in group if AMONG in one.headers]
    return len(named) > len(set(named))


def _tell(one: _PendingPublish, ack: Ack) -> None:
    if not one.ack.done():
        one.ack.set_result(ack)


def _no_answer(subject: str) -> BrokerAway:
    return BrokerAway(f"the broker did not confirm {subject} within {PATIENCE_S:g} s.")


def _fail(group: list[_PendingPublish], problem: BaseException) -> None:
    for one in group:
        if not one.ack.done():
            one.ack.set_exception(problem)
