"""Calls that a person has put aside: until when at most, and what brings them back."""

from datetime import timedelta

import pytest
from msgspec.structs import replace
from stories import START
from test_pending import asked_at

from ayes.projections.call_query import CallQuery, Seen
from ayes.projections.snoozes import MOST, NOTHING, Snooze, Snoozed, latest, with_snooze
from ayes.schemas.errors import BadInput

HOUR = timedelta(hours=1)
ENTRY = replace(asked_at(7), due_at=START + 4 * HOUR)
CALL = str(ENTRY.ref)


def put(until, entry=ENTRY, before=(), waiting=(CALL,), now=START):
    return with_snooze(before, entry, "ana", until, now=now, waiting=waiting)


def test_a_call_is_away_until_its_time_and_is_known_to_have_been():
    snoozes = put(START + HOUR)
    away, back = (Snoozed(snoozes, "ana", START + one * HOUR) for one in (0.9, 1))
    assert away.until(ENTRY) == away.back_at == START + HOUR
    assert (away.holds(ENTRY), away.is_back(ENTRY)) == (True, False)
    assert (back.holds(ENTRY), back.is_back(ENTRY), back.back_at) == (False, True, None)
    other = replace(ENTRY, call="other")
    assert (away.holds(other), away.is_back(other)) == (False, False)


@pytest.mark.parametrize(
    ("change", "is_back"),
    [
        ({"digest": "f" * 64}, True),
        ({"asked_as_well": ("lea",)}, True),
        ({"handed": {"ben": "ana"}}, True),
        ({"handed": {"ben": "cy"}}, False),
        ({"due_at": START + 3 * HOUR}, False),
    ],
    ids=["other arguments", "more people", "handed to her", "handed to another", "due sooner"],
)
def test_a_call_comes_back_once_its_person_is_asked_anew(change, is_back):
    snoozed = Snoozed(put(START + HOUR), "ana", START)
    assert snoozed.is_back(replace(ENTRY, **change)) is is_back
    assert snoozed.holds(replace(ENTRY, **change)) is not is_back


def test_a_quarter_of_the_time_until_the_deadline_is_left():
    assert latest(ENTRY, START) == START + 3 * HOUR
    assert put(START + 3 * HOUR)[0].until == START + 3 * HOUR
    for until, said in (
        (START + 3 * HOUR + timedelta(seconds=1), "when a quarter of the time until then is left"),
        (START, "is past"),
    ):
        with pytest.raises(BadInput, match=said):
            put(until)
    with pytest.raises(BadInput, match="at the latest"):
        put(START + 6 * HOUR, now=START + 5 * HOUR)
    endless = replace(ENTRY, due_at=None)
    assert latest(endless, START) is None
    assert put(START + 1000 * HOUR, endless)


def test_what_waits_no_more_is_forgotten_and_there_is_a_bound():
    [first] = put(START + HOUR)
    assert put(START + 2 * HOUR, before=[first]) == (replace(first, until=START + 2 * HOUR),)
    gone = [Snooze(f"shop/t/c{number}", START, "") for number in range(MOST)]
    assert len(put(START + HOUR, before=gone)) == 1
    with pytest.raises(BadInput, match=f"put {MOST} calls aside already"):
        put(START + HOUR, before=gone, waiting=[one.call for one in gone])


def test_it_is_left_out_of_a_query_that_does_not_speak_of_it():
    snoozed = Snoozed(put(START + HOUR), "ana", START)
    seen = Seen(START, snoozed=snoozed.holds)
    for text, shown in ("", False), ("is:snoozed", True), ("-is:snoozed", False):
        query = snoozed.left_out_of(CallQuery.parse(text))
        assert query.selecting(seen)(ENTRY) is shown, text
    assert NOTHING.left_out_of(CallQuery()) == CallQuery()
