"""Following a reply while the model gives it.

    the model ──► LiveReply ──► live.<workspace>.<thread>.<turn> ──► follow_reply ──► a person
        └──────► turn.<n>.replied, in the log ──────────────────────────┘

The rules:

* **The recorded reply is the only truth.** What is published here is for the eyes alone; no
  decision and no history is made of it (`projections/live.py`).
* **Who only follows can slow nobody down.** The worker publishes and awaits nothing of it in the
  turn: a task beside it sends what has come together meanwhile, and waits where the connection is
  slow. The broker keeps nothing, and cuts off a follower that does not read.
* Nothing is lost by a cut: each second the worker publishes the whole text so far, and in the end
  the follower reads the record.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final, Self

import msgspec

from ayes.ledger.log import EventLog
from ayes.ledger.services import Ledger
from ayes.projections.live import (
    Discarded,
    Ended,
    Fragment,
    Piece,
    Shown,
    after_end,
    after_piece,
)
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas.errors import Unavailable, UnknownCall
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import ThreadRef

_log: Final = get_logger("ayes.consumers.live")

#: Characters of a piece.
_MOST: Final = 16 * 1024
#: Characters that wait while the connection is slow or away. What comes beyond them is left out.
_MOST_UNSENT: Final = 1 << 20
#: How often the whole text is published, and up to which length.
_WHOLE_S: Final = 1.0
_MOST_WHOLE: Final = 128 * 1024
#: Pieces that wait for a follower's program. What is too much is dropped: the next whole text has
#: it.
_MOST_WAITING: Final = 256


def live_subject(thread: ThreadRef, turn: int) -> str:
    return f"live.{thread.workspace}.{thread.thread}.{turn}"


class LiveReply:
    """Publishes what a model says in one attempt of a turn."""

    def __init__(self, log: EventLog, subject: str, attempt: int) -> None:
        self._log = log
        self._subject = subject
        self._attempt = attempt
        #: All of it, while it is short enough to be published as a whole.
        self._said = ""
        self._length = 0
        #: What has not been published, and how many characters after it never will be.
        self._unsent: list[str] = []
        self._waiting = 0
        self._left_out = 0
        self._fresh = asyncio.Event()
        #: Whether the last piece could not be published, which is logged once.
        self._is_lost = False

    @classmethod
    @asynccontextmanager
    async def of(
        cls, ledger: Ledger, thread: ThreadRef, turn: int, attempt: int
    ) -> AsyncGenerator[Self]:
        """For as long as the block lasts. It ends without waiting for anything to be sent."""
        live = cls(ledger.log, live_subject(thread, turn), attempt)
        publishing = asyncio.create_task(live._publish())
        try:
            yield live
        finally:
            publishing.cancel()

    def say(self, text: str) -> None:
        """The next characters. Returns at once."""
        self._length += len(text)
        self._said = self._said + text if self._length <= _MOST_WHOLE else ""
        if self._left_out or self._waiting + len(text) > _MOST_UNSENT:
            self._left_out += len(text)
        else:
            self._unsent.append(text)
            self._waiting += len(text)
        self._fresh.set()

    async def _publish(self) -> None:
        clock = asyncio.get_running_loop()
        sent, whole_at = 0, clock.time()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_WHOLE_S):
                    await self._fresh.wait()
            self._fresh.clear()
            waiting, self._unsent = "".join(self._unsent), []
            left_out, self._left_out, self._waiting = self._left_out, 0, 0
            for start in range(0, len(waiting), _MOST):
                piece = waiting[start : start + _MOST]
                await self._send(Piece(self._attempt, sent, piece))
                sent += len(piece)
            sent += left_out
            if clock.time() - whole_at >= _WHOLE_S:
                whole_at = clock.time()
                whole = self._said[:sent]
                for start in range(0, len(whole), _MOST):
                    await self._send(Piece(self._attempt, start, whole[start : start + _MOST]))

    async def _send(self, piece: Piece) -> None:
        try:
            await self._log.publish_live(self._subject, msgspec.json.encode(piece))
        except Unavailable as problem:  # lost while the broker is away; the next whole text has it
            if not self._is_lost:
                _log.warning("said to nobody", subject=self._subject, problem=str(problem))
            self._is_lost = True
        else:
            self._is_lost = False


async def follow_reply(
    ledger: Ledger, thread: ThreadRef, turn: int | None = None
) -> AsyncGenerator[Fragment | Discarded | Ended]:
    """What the model says in a turn, as it says it; the last one is `Ended`.

    A turn that has ended gives its text at once. Closing it, or being cut off, changes nothing for
    anybody else; whoever follows again is shown the text from its beginning.

    Args:
        turn: by default the one in which the model is asked now, else the next one.

    Raises:
        UnknownCall: without `turn`: nothing was ever recorded in this thread.
    """
    if turn is None:
        facts = await ledger.read(thread)
        if not facts:
            raise UnknownCall(f"nothing was ever recorded in {thread}.")
        found = thread_of(thread, facts)
        last = found.turns.get(found.latest)
        turn = found.latest + (last is None or last.replied is not None)
    coming: asyncio.Queue[Piece | e.ModelReplied | e.ModelFailed] = asyncio.Queue()

    async def hear() -> None:
        try:
            await hear_on()
        except Unavailable as problem:  # the end comes all the same, with the whole text
            _log.warning("not followed live", thread=str(thread), problem=str(problem))

    async def hear_on() -> None:
        async with ledger.log.hear_live(live_subject(thread, turn)) as messages:
            async for message in messages:
                with suppress(msgspec.MsgspecError):  # of a newer program
                    piece = _decoder.decode(message)
                    if coming.qsize() < _MOST_WAITING:
                        coming.put_nowait(piece)

    async def read() -> None:
        async for fact in ledger.watch(1, thread.replied(turn).subject):
            if isinstance(fact.event, e.ModelReplied | e.ModelFailed):
                coming.put_nowait(fact.event)

    shown = Shown()
    tasks = [asyncio.create_task(hear()), asyncio.create_task(read())]
    try:
        while True:
            getting = asyncio.ensure_future(coming.get())
            done, _ = await asyncio.wait([getting, tasks[1]], return_when=asyncio.FIRST_COMPLETED)
            if getting not in done:
                getting.cancel()
                tasks[1].result()  # raises what ended it
            match await getting:
                case Piece() as piece:
                    shown, news = after_piece(shown, piece)
                    for one in news:
                        yield one
                case end:
                    for last_news in after_end(shown, end):
                        yield last_news
                    return
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


_decoder: Final = msgspec.json.Decoder(Piece)
