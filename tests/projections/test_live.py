"""What a follower shows of a reply, whatever reaches it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ayes.projections.live import (
    MAX_CHARACTERS,
    Discarded,
    Ended,
    FollowedText,
    Fragment,
    Piece,
    after_end,
    after_piece,
    text_of,
)
from ayes.schemas import events as e

REPLY = e.ModelReplied(parts=(e.Text("Your money "), e.Opaque("p", "{}"), e.Text("is on its way.")))
TEXT = "Your money is on its way."


def followed(pieces, end):
    """The texts that were shown, one for each time that it began anew, and what ended it."""
    shown, texts, last = FollowedText(), [""], None
    for piece in pieces:
        shown, news = after_piece(shown, piece)
        for one in news:
            texts = [*texts, ""] if one == Discarded() else [*texts[:-1], texts[-1] + one.text]
        assert texts[-1] == shown.text
    for one in after_end(shown, end):
        match one:
            case Discarded():
                texts.append("")
            case Fragment(text):
                texts[-1] += text
            case Ended(end):
                last = end
    return texts, last


def pieces_of(text, size=4, attempt=1):
    return [Piece(attempt, at, text[at : at + size]) for at in range(0, len(text), size)]


def test_the_text_of_a_reply_is_that_of_its_texts():
    assert text_of(REPLY) == TEXT


@pytest.mark.parametrize("cut", range(8))
@pytest.mark.parametrize("missed", range(8))
def test_cut_and_resumed_anywhere_each_character_is_shown_once(cut, missed):
    """Some pieces are missed, then the whole text comes, as it does each second (I7)."""
    pieces = pieces_of(TEXT)
    whole = Piece(1, 0, TEXT[: 4 * (cut + missed)])
    reaching = [*pieces[:cut], *pieces[cut + missed :][:1], whole, *pieces[cut + missed :]]
    assert followed(reaching, REPLY) == ([TEXT], REPLY)


def test_without_any_piece_the_record_is_shown():
    assert followed([], REPLY) == ([TEXT], REPLY)


def test_what_was_shown_of_another_attempt_is_taken_back():
    """Its worker died. What still comes of it is ignored."""
    first, second = pieces_of("I think that", attempt=1), pieces_of(TEXT, attempt=2)
    assert followed([*first, *second[:2], first[0], *second[2:]], REPLY) == (
        ["I think that", TEXT],
        REPLY,
    )


def test_a_late_piece_of_an_earlier_attempt_is_not_shown():
    """Also where it would go on from what is shown: nobody reads a mixture of two replies (I7)."""
    shown = FollowedText(2, "I think")
    assert after_piece(shown, Piece(1, len("I think"), " that")) == (shown, [])


def test_another_reply_than_was_shown_replaces_it():
    assert followed(pieces_of("I think that"), REPLY) == (["I think that", TEXT], REPLY)
    failed = e.ModelFailed(error="the provider is away")
    assert followed(pieces_of("I think"), failed) == (["I think", ""], failed)


@given(st.data())
def test_whatever_is_lost_repeated_or_late_the_text_is_shown_once(data):
    """Never a character twice, and in the end the recorded text alone."""
    text = data.draw(st.text(min_size=1, max_size=40))
    said = pieces_of(text, data.draw(st.integers(1, 7)))
    wholes = [Piece(1, 0, text[: data.draw(st.integers(0, len(text)))]) for _ in range(3)]
    reaching = data.draw(st.lists(st.sampled_from([*said, *wholes]), max_size=20))
    end = e.ModelReplied(parts=(e.Text(text),))
    shown = FollowedText()
    for piece in reaching:
        shown, news = after_piece(shown, piece)
        assert Discarded() not in news
        assert text.startswith(shown.text)
    assert followed(reaching, end) == ([text], end)


def test_a_piece_says_its_place_in_code_points():
    """An emoji is one character, as in Python; JavaScript has two units for it."""
    text = "\N{PARTY POPPER}é on its way"
    pieces = pieces_of(text, 1)
    assert pieces[1] == Piece(1, 1, "é")
    assert followed(pieces, e.ModelReplied(parts=(e.Text(text),)))[0] == [text]


@pytest.mark.parametrize(
    "forged", [{"attempt": 1, "at": -5, "text": "x"}, {"attempt": 0, "at": 0, "text": "x"}]
)
def test_a_piece_that_cannot_be_is_not_one(forged):
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(forged), type=Piece)


def test_no_more_is_shown_than_can_be_recorded():
    """Whatever is published, a follower holds a bounded text."""
    shown = FollowedText()
    for number in range(20):
        shown, _ = after_piece(shown, Piece(1, number * 65_536, "x" * 65_536))
    assert len(shown.text) == MAX_CHARACTERS


def test_an_attempt_without_text_yet_takes_back_the_text_of_the_one_before():
    shown, news = after_piece(FollowedText(1, "I think"), Piece(2, 0, ""))
    assert (shown, news) == (FollowedText(2, ""), [Discarded()])


def test_a_reply_of_calls_alone_has_no_text():
    calls = e.ModelReplied(parts=(e.Wish("refund", "{}"),))
    assert followed([], calls) == ([""], calls)


def test_a_reply_that_cannot_be_read_ends_the_turn():
    """A newer program recorded it."""
    newer = e.Carried("ModelReplied", b"{}", v=9)
    assert followed(pieces_of("I think"), newer) == (["I think", ""], newer)
