"""Conversations that are kept between two looks: only what is new in them costs anything.

    kept = Kept()
    thread = kept.thread(ref, facts)        # as thread_of(ref, facts)
    found = kept.history(thread)            # as history(thread)

Whoever answers for a conversation looks at it again and again, and each time a fact or two have come. What was put
together before is gone on from where the facts begin as they did then, and made anew where they do not. So this is quicker
and nothing else: asked anything, in any order, it answers as the two functions do (`tests/test_kept.py`).
"""

from collections import OrderedDict
from functools import reduce
from typing import Final

from msgspec import Struct

from projections.history import NOTHING, Beginning, History, history_from
from projections.thread import Thread, evolve, thread_of
from schemas.codec import Fact
from schemas.slots import ThreadRef

#: As many as a worker has in hand at the same time, so it holds no more than it might anyway.
MOST: Final = 64
#: So many new facts are put in one by one, each into a copy of the thread. More are quicker put together anew.
_FEW: Final = 16


class Kept:
    """The conversations that were looked at last."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        #: Those that were looked at last at the end.
        self._known: OrderedDict[ThreadRef, _Known] = OrderedDict()

    def thread(self, ref: ThreadRef, facts: tuple[Fact, ...]) -> Thread:
        """The thread that these facts make, which are in the order of the log."""
        known = self._of(ref)
        before, new = facts[: len(known.facts)], facts[len(known.facts) :]
        # A fact that is the same thing as the one before is not compared any further.
        if len(new) <= _FEW and before == known.facts:
            known.thread = reduce(evolve, new, known.thread)
        else:
            known.thread = thread_of(ref, facts)
        known.facts = facts
        return known.thread

    def history(self, thread: Thread, before_turn: int | None = None) -> History:
        """The thread as a model reads it; `before_turn=n` is what turn n is, or was, asked with."""
        known = self._of(thread.ref)
        found, known.beginning = history_from(known.beginning, thread, before_turn)
        return found

    def _of(self, ref: ThreadRef) -> "_Known":
        known = self._known.setdefault(ref, _Known(Thread(ref)))
        self._known.move_to_end(ref)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return known


class _Known(Struct):
    """A conversation as it was last looked at."""

    thread: Thread
    #: What it was made of.
    facts: tuple[Fact, ...] = ()
    beginning: Beginning = NOTHING
