"""A year of a packed log, as short as it gets: what it tells, and that it finds what differs."""

import math
import sys

import msgspec
import pytest
from msgspec.structs import replace
from paths import SMALL
from program import approvals

from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from bench import logs, year
from bench.results import Result
from bench.year import Company, Kept


def program(*arguments, cwd):
    words = (sys.executable, "-m", "bench.year")
    return approvals(*arguments, program=words, cwd=cwd, timeout_s=100, TMPDIR=str(cwd))


def test_a_year_tells_each_month_each_start_and_what_was_read_back(tmp_path):
    """With recorded conversations: memory and starts within their limits, each conversation that is
    read back the same, and the costs of each month from the second on.
    """
    done = program("--minutes", "0.001", "--recorded", SMALL, "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    found = [msgspec.json.decode(line, type=Result) for line in done.out.splitlines()]
    told = {one.what: one for one in found}
    assert len(told) == len(found)
    assert all(math.isfinite(one.ratio) for one in found)
    same = "recorded conversations, packed and the same"
    assert {what for what, one in told.items() if one.target} == {
        *(f"broker start-up after kill -9, after month {month}" for month in (3, 6, 9, 12)),
        "peak memory of the broker",
        same,
    }
    for month in range(2, year.MONTHS + 1):
        # One comes each week, and those of the last four are not packed.
        assert told[f"conversations in the log, month {month}"].value == 4 * month
        assert told[f"packs in the log, month {month}"].value == 4 * month - 4
    assert (told[same].value, told[same].floor) == (5, 5)


def test_conversations_take_turns():
    """One comes when another is over, and each keeps its order."""
    assert "".join(logs.interleaved(map(iter, ("abc", "de", "fg")), at_once=2)) == "adbecfg"


@pytest.fixture
async def packed(tmp_path):
    """A company with five weeks of made-up conversations, of which the first is packed, and a
    client.
    """
    conversation, what = await year.source("", tmp_path)
    assert what == "made-up conversations"
    company = Company(tmp_path / "store", conversation)
    await company.begin()
    async with company.running(), Ledger.connect(company.store, role="admin") as ledger:
        for _ in range(5):
            await company.week(ledger, 1)
        await company.pack(ledger)
        yield company, ledger


async def test_what_is_still_in_the_stream_does_not_pass_for_packed(packed):
    """It would be the same whatever a pack has."""
    company, ledger = packed
    with pytest.raises(AssertionError, match="bench/t0 is not packed"):
        await company.read_back(ledger)


@pytest.mark.parametrize("other", [{"facts": ""}, {"history": ""}, {"status": Status.DENIED}])
async def test_a_conversation_that_is_not_as_it_was_is_counted(packed, other):
    """Be it its bytes, its history or a call."""
    company, ledger = packed
    await company.pack(ledger)
    assert await company.read_back(ledger) == (1, 1)
    kept = msgspec.json.decode(company.kept.read_bytes(), type=Kept)
    company.kept.write_bytes(msgspec.json.encode(replace(kept, **other)))
    assert await company.read_back(ledger) == (1, 0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--minutes", "0"), "--minutes is 0: give a number over 0."),
        (("--minutes", "nan"), "--minutes is nan: give a number over 0."),
        (("--recorded", "none.jsonl"), "none.jsonl cannot be rehearsed: "),
    ],
)
def test_what_cannot_be_measured_is_told_in_a_sentence(arguments, says, tmp_path):
    """Before anything is written."""
    done = program(*arguments, cwd=tmp_path)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(says)
