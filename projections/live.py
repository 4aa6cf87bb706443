"""What a model says while it answers, as a follower puts it together.

The worker publishes pieces on a live subject, which nothing stores: some may be lost, repeated, or
of an attempt whose worker died. Each says how many characters came before it, so a follower shows
each character once, whatever reaches it:

    the piece begins             the follower
    ---------------------------  ----------------------------------------------------------
    where the shown text ends    shows it
    before that                  shows what is new in it; from time to time the worker
                                 publishes the whole text, for whoever missed a piece
    after that                   waits: something is missing
    in a later attempt           discards what it has shown, and begins anew
    in an earlier attempt        ignores it

The recorded reply is the only truth. When it comes, the follower shows the rest of it, or discards
what it has shown if the reply is another one.
"""

from msgspec import Struct

from ayes.schemas import content
from ayes.schemas import events as e


class Piece(Struct, frozen=True):
    """A part of a text, as it is published."""

    attempt: int
    #: The number of characters before it.
    at: int
    text: str


class Fragment(Struct, frozen=True):
    """Text to be shown after what is shown already."""

    text: str


class Discarded(Struct, frozen=True):
    """What was shown does not hold: it is to be taken back."""


class Ended(Struct, frozen=True):
    """The recorded end of the turn. What is shown is its text."""

    end: e.ModelReplied | e.ModelFailed


class Shown(Struct, frozen=True):
    """What a follower shows."""

    attempt: int = 0
    text: str = ""


def after_piece(shown: Shown, piece: Piece) -> tuple[Shown, list[Fragment | Discarded]]:
    """What is shown after a piece, and what is to be done for it."""
    if piece.attempt < shown.attempt:
        return shown, []
    news: list[Fragment | Discarded] = []
    if piece.attempt > shown.attempt:
        if shown.text:
            news.append(Discarded())
        shown = Shown(piece.attempt)
    known = len(shown.text)
    more = piece.text[known - piece.at :] if piece.at <= known else ""
    if more:
        news.append(Fragment(more))
        shown = Shown(shown.attempt, shown.text + more)
    return shown, news


def after_end(
    shown: Shown, end: e.ModelReplied | e.ModelFailed
) -> list[Fragment | Discarded | Ended]:
    """What is to be done when the end of the turn is recorded."""
    text = spoken(end) if isinstance(end, e.ModelReplied) else ""
    news: list[Fragment | Discarded | Ended] = []
    if not text.startswith(shown.text):
        news.append(Discarded())
        shown = Shown()
    if rest := text[len(shown.text) :]:
        news.append(Fragment(rest))
    return [*news, Ended(end)]


def spoken(reply: e.ModelReplied) -> str:
    """The texts of a reply as one, as they are published."""
    return "".join(text for part in reply.parts if (text := content.spoken(part)) is not None)
