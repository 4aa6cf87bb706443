"""Following a reply while the model gives it.

    the model ──► LiveReply ──► live.<workspace>.<thread>.<turn> ──► follow_reply ──► a person
        └──────► turn.<n>.replied, in the log ──────────────────────────┘

The rules:

* **The recorded reply is the only truth.** Live text is for display only; no decision and no
  history is made of it (`projections/live.py`).
* **A follower cannot slow a worker down.** The turn awaits nothing of the publishing: a separate
  task sends the text, and waits while the connection is slow. The broker keeps no message, needs no
  consumer for a follower, and disconnects a follower that does not read.
* **Silence makes a follower look for the recorded reply.** While a model is asked, its worker
  publishes something all the time, at least empty pieces, so followers need not ask the broker.
* **A lost connection loses no text.** Each second the worker publishes the whole text so far, and
  at the end the follower reads the record.
"""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final, Self

import msgspec

from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import Live, LiveMessages
from ayes.projections.live import (
    MAX_CHARACTERS,
    Discarded,
    Ended,
    FollowedText,
    Fragment,
    Piece,
    after_end,
    after_piece,
)
from ayes.projections.thread import thread_of
from ayes.projections.views.fact import own
from ayes.schemas import events as e
from ayes.schemas.errors import Unavailable, UnknownCall
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import Slot, ThreadRef

_log: Final = get_logger("ayes.consumers.live")

#: The most characters of a piece.
_MAX_CHARACTERS: Final = 16 * 1024
#: How often the whole text is published, and the length up to which it is.
_WHOLE_S: Final = 1.0
_MAX_WHOLE: Final = 128 * 1024
#: How long text is gathered for a piece: the broker passes each piece on to each follower.
_GATHER_S: Final = 0.1
#: The longest time without a piece while the model is asked.
_BEAT_S: Final = 0.3
#: A follower looks for the recorded reply after this time without a piece, by which it varies, so
#: that followers of one reply do not look at the same moment.
_SILENCE_S: Final = 0.5
_VARIES: Final = 0.2
#: As the silence goes on, it looks after each tenth of it, at the latest this long after it last
#: looked; so it does while pieces come, of which none proves that the reply is not recorded.
_SHARE: Final = 0.1
_LOOK_S: Final = 5.0
#: Half of a character, which JSON cannot hold. A reply with one cannot be recorded either.
_SURROGATES: Final = dict.fromkeys(range(0xD800, 0xE000), "\N{REPLACEMENT CHARACTER}")


def live_subject(thread: ThreadRef, turn: int) -> str:
    return f"live.{thread.workspace}.{thread.thread}.{turn}"


class LiveReply:
    """Publishes the text of one attempt of a turn while the model gives it."""

    def __init__(self, log: Live, subject: str, attempt: int) -> None:
        self._log = log
        self._subject = subject
        self._attempt = attempt
        #: Text that is to be published, and the number of characters up to its end.
        self._unsent: list[str] = []
        self._length = 0
        self._has_news = asyncio.Event()
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
            # So that the first piece is sent even if the model answers at once: to followers that
            # have waited for long it says that they may look again soon.
            await asyncio.sleep(0)
            yield live
        finally:
            publishing.cancel()

    def publish(self, text: str) -> None:
        """Publish the next characters. Returns at once."""
        text = text[: MAX_CHARACTERS - self._length]
        self._length += len(text)
        self._unsent.append(text)
        self._has_news.set()

    async def _publish(self) -> None:
        clock = asyncio.get_running_loop()
        text, whole_at = "", clock.time() + _WHOLE_S
        while True:
            self._has_news.clear()
            sent = len(text)
            text += "".join(self._unsent).translate(_SURROGATES)
            self._unsent.clear()
            # Without news an empty piece: this attempt goes on.
            await self._send(text, sent, max(len(text), sent + 1))
            if clock.time() >= whole_at:
                whole_at = clock.time() + _WHOLE_S
                if len(text) <= _MAX_WHOLE:
                    await self._send(text, 0, len(text))
            await asyncio.sleep(_GATHER_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(_BEAT_S - _GATHER_S):
                    await self._has_news.wait()

    async def _send(self, text: str, start: int, end: int) -> None:
        for at in range(start, end, _MAX_CHARACTERS):
            piece = Piece(self._attempt, at, text[at : min(at + _MAX_CHARACTERS, end)])
            try:
                await self._log.publish_live(self._subject, msgspec.json.encode(piece))
            except Unavailable as problem:  # the next whole text has it
                if not self._is_lost:
                    _log.warning(
                        "a reply cannot be followed", subject=self._subject, problem=str(problem)
                    )
                self._is_lost = True
            else:
                self._is_lost = False


async def follow_reply(
    ledger: Ledger, thread: ThreadRef, turn: int | None = None
) -> AsyncGenerator[Fragment | Discarded | Ended]:
    """The text of a turn while the model gives it; the last item is `Ended`.

    Of a turn that has ended, the text comes at once. A follower that was cut off follows again, and
    receives the text from its beginning. While the broker is away, it waits.

    Args:
        turn: by default the turn in which the model is being asked, else the next one
            (`current_turn`).

    Raises:
        UnknownCall: without `turn`: nothing was ever recorded in this thread.
        Unavailable: the connection is closed.
    """
    turn = await current_turn(ledger, thread) if turn is None else turn
    clock, shown = asyncio.get_running_loop(), FollowedText()
    heard_at = clock.time()
    async with ledger.log.subscribe_live(live_subject(thread, turn)) as messages:
        while True:
            end = await _recorded(ledger, thread.replied(turn))
            if end is not None:
                for last in after_end(shown, end):
                    yield last
                return
            looked_at = clock.time()
            look_at = looked_at + _pause_s(looked_at - heard_at)
            while (piece := await _next_piece(messages, look_at)) is not None:
                # The worker of an earlier attempt may go on after the reply of a later one.
                if piece.attempt >= shown.attempt:
                    heard_at = clock.time()
                    look_at = min(heard_at + _pause_s(0), looked_at + _LOOK_S)
                shown, news = after_piece(shown, piece)
                for one in news:
                    yield one


def _pause_s(silence_s: float) -> float:
    """How long a follower waits before it looks, in seconds, after this time without a piece."""
    varied = random.uniform(1 - _VARIES, 1 + _VARIES)  # noqa: S311 - no secret
    return min(max(_SILENCE_S, silence_s * _SHARE) * varied, _LOOK_S)


async def current_turn(ledger: Ledger, thread: ThreadRef) -> int:
    """The turn in which the model is being asked, else the next one.

    Raises:
        UnknownCall: nothing was ever recorded in this thread.
    """
    facts = await ledger.read(thread)
    if not own(facts):
        raise UnknownCall(f"nothing was ever recorded in {thread}.")
    found = thread_of(thread, facts)
    last = found.turns.get(found.latest)
    return found.latest + (last is None or last.replied is not None)


async def _recorded(
    ledger: Ledger, replied: Slot
) -> e.ModelReplied | e.ModelFailed | e.Carried | None:
    """The end of a turn, if it is recorded. A consumer that reports it would be quicker, but the
    log takes no more than 1,000 consumers, and its readers need them.
    """
    try:
        fact = await ledger.log.latest(replied.subject)
    except Unavailable:
        return None
    match fact and fact.event:
        case e.ModelReplied() | e.ModelFailed() | e.Carried() as end:
            return end
        case _:
            return None


async def _next_piece(messages: LiveMessages, until: float) -> Piece | None:
    """The next piece; None if there is none until then, by the clock of the event loop."""
    while asyncio.get_running_loop().time() < until:
        try:
            async with asyncio.timeout_at(until):
                return _decoder.decode(await messages.get())
        except TimeoutError:
            return None
        # Of a newer program, or of none of ours.
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
    return None


_decoder: Final = msgspec.json.Decoder(Piece)
