"""A model's text while it answers, as a follower puts it together.

The worker publishes the text in pieces on a live subject. Nothing stores them, so a follower may
miss some, receive some twice, or receive pieces of an attempt whose worker died. Each piece says
where in the text it begins, so a follower shows each character once:

    the piece begins             the follower
    ---------------------------  ----------------------------------------------------------
    where the shown text ends    shows it
    before that                  shows what is new in it; each second the worker publishes
                                 the whole text, for followers that missed a piece
    after that                   ignores it: a piece before it is missing
    in a later attempt           discards what it has shown, and begins anew
    in an earlier attempt        ignores it

An empty piece shows nothing. While the model is asked, the worker publishes at least three pieces a
second, and silence makes a follower look for the recorded reply.

The recorded reply is the only truth. When it is recorded, the follower shows the rest of it, or
discards what it has shown if the reply has another text.
"""

from typing import Annotated, Final

from msgspec import Meta, Struct

from ayes.schemas import content
from ayes.schemas import events as e
from ayes.schemas.codec import MAX_BYTES

#: The most characters that are published and shown of a reply. One with more cannot be recorded.
MAX_CHARACTERS: Final = MAX_BYTES


class Piece(Struct, frozen=True):
    """A part of a text, as it is published."""

    attempt: Annotated[int, Meta(ge=1)]
    at: Annotated[
        int,
        Meta(
            ge=0,
            description="The number of characters before the piece, counted as Unicode code "
            "points (not as UTF-16 units, as in JavaScript, or bytes, as in Go).",
        ),
    ]
    text: str


class Fragment(Struct, frozen=True):
    """Text to be shown after what is shown already."""

    text: str


class Discarded(Struct, frozen=True):
    """What is shown is not part of the reply, and is to be removed."""


class Ended(Struct, frozen=True):
    """The recorded end of the turn; what is shown is the text of the reply.

    A reply that this program cannot read, of a newer version, has no text here.
    """

    end: e.ModelReplied | e.ModelFailed | e.Carried


class FollowedText(Struct, frozen=True):
    """What a follower shows."""

    attempt: int = 0
    text: str = ""


def after_piece(
    shown: FollowedText, piece: Piece
) -> tuple[FollowedText, list[Fragment | Discarded]]:
    """What is shown after a piece, and the changes that lead there."""
    if piece.attempt < shown.attempt:
        return shown, []
    news: list[Fragment | Discarded] = []
    if piece.attempt > shown.attempt:
        if shown.text:
            news.append(Discarded())
        shown = FollowedText(piece.attempt)
    known = len(shown.text)
    more = piece.text[known - piece.at :][: MAX_CHARACTERS - known] if piece.at <= known else ""
    if more:
        news.append(Fragment(more))
        shown = FollowedText(shown.attempt, shown.text + more)
    return shown, news


def after_end(
    shown: FollowedText, end: e.ModelReplied | e.ModelFailed | e.Carried
) -> list[Fragment | Discarded | Ended]:
    """The changes when the end of the turn is recorded."""
    text = text_of(end) if isinstance(end, e.ModelReplied) else ""
    news: list[Fragment | Discarded | Ended] = []
    if not text.startswith(shown.text):
        news.append(Discarded())
        shown = FollowedText()
    if rest := text[len(shown.text) :]:
        news.append(Fragment(rest))
    return [*news, Ended(end)]


def text_of(reply: e.ModelReplied) -> str:
    """The texts of a reply as one, as they are published."""
    return "".join(text for part in reply.parts if (text := content.spoken(part)) is not None)
