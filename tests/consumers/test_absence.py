"""Who votes for people whose calendar says that they are away.

In simulated time with calendars of the test's own making, and on a real broker with a real file.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import simulated_time
import structlog
from calendars import away, calendar
from shop import FIRST, SECOND, Shop, rule
from simulated_time import START, simulated
from structlog.testing import capture_logs
from until import until

from ayes.consumers.absence import worker
from ayes.consumers.absence.calendars import CalendarUnreadable
from ayes.consumers.absence.parser import AbsenceQuery, Period
from ayes.consumers.absence.worker import EVERY_S, Absence, Absences
from ayes.interfaces.cli.settings import Settings
from ayes.ledger.clients.services import CALENDAR, Ledger
from ayes.ledger.judging.grants import Delegation
from ayes.ledger.log import EventLog
from ayes.ops.inspection.checks import failing_channels
from ayes.ops.workers import reactions, working
from ayes.projections.views.grant import delegation_words
from ayes.schemas import events as e
from ayes.schemas.errors import BadFile, BrokerRefused, NotAllowed
from ayes.schemas.settings import read_settings
from ayes.schemas.slots import DelegationRef, person_slot

pytestmark = pytest.mark.log("simulated")

ASK = rule("money", "ask", 'voters = ["ana", "ben"]')
ASK_ANA = rule("money", "ask", 'voters = ["ana"]')


def at(hours: float) -> datetime:
    return START + timedelta(hours=hours)


class Calendars:
    """What the calendars say: by person, hours from the beginning of the test; a text is why one
    cannot be read.
    """

    def __init__(self, port: EventLog, people: dict[str, dict[str, Any]], **said: Any) -> None:
        self.people = {
            name: Absence(**({"calendar": f"https://x/{name}", "workspaces": ["shop"]} | one))
            for name, one in people.items()
        }
        self.said: dict[str, Any] = said
        self.ledger = Ledger(port, e.Author(kind="absence", name="absence"))
        self.worker = Absences(self.people, self._read)

    async def _read(self, source: str, asked: AbsenceQuery, _private: bool) -> tuple[Period, ...]:
        said = self.said.get(source.rpartition("/")[2], ())
        if isinstance(said, str):
            raise CalendarUnreadable(said)
        every = [Period(at(start), at(end)) for start, end in said]
        return tuple(one for one in every if one.end > asked.start and one.start < asked.end)

    async def look(self, **said: Any) -> list[str]:
        """Look again, once they say this; who votes for whom by now, in hours."""
        self.said |= said
        await self.worker.look(self.ledger)
        return await self.given()

    async def given(self) -> list[str]:
        found = await self.ledger.delegations("shop")
        return [_words(one) for one in found if one.ended is None]


def _words(one: Delegation) -> str:
    hours = ((when - START).total_seconds() / 3600 for when in _times(one))
    return f"{one.delegated.to} for {one.ref.giver} {'-'.join(f'{hour:g}' for hour in hours)}"


def _times(one: Delegation) -> tuple[datetime, datetime]:
    return one.delegated.starts_at, one.delegated.ends_at


def to(*names: str, **more: Any) -> dict[str, Any]:
    return {"to": [*names]} | more


@pytest.fixture
def shop(port: EventLog) -> Shop:
    found = Shop(port)
    found.ledger = Ledger(port, found.ledger.author, now=simulated_time.now)
    return found


@simulated
async def test_somebody_votes_for_who_is_away(shop: Shop):
    """From when the calendar says so until it does not any more; the record says that it was the
    calendar, and not what is in it.
    """
    calendars = Calendars(shop.log, {"ana": to("ben")}, ana=[(1, 3)])
    async with shop.at_work(ASK_ANA), asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(calendars.worker.keep(calendars.ledger))
        await shop.ask()
        ben = shop.ledger.reviewer("ben")
        with pytest.raises(NotAllowed, match="ben is none of those who may vote"):
            await ben.approve(FIRST)
        await asyncio.sleep(3600)
        await ben.approve(FIRST)
        assert (await shop.decided(e.Approved)).on_behalf_of == {"ben": "ana"}
        await asyncio.sleep(2 * 3600)
        await shop.ask(SECOND)
        with pytest.raises(NotAllowed, match="ben is none of those who may vote"):
            await ben.approve(SECOND)
        keeping.cancel()
    [one] = await shop.ledger.delegations("shop")
    assert (one.given.slot, one.ended) == (one.ref.absent, None)
    assert one.given.slot.subject.startswith("ledger.shop._delegation.ana.absent-")
    assert one.given.event.by == e.Author(kind="absence", name="absence")  # type: ignore[union-attr]
    assert (one.delegated.tools, one.delegated.reason) == (("*",), "Away, by the calendar.")
    assert delegation_words(one, at(2)).endswith("12:00:00 UTC  by the calendar")


@simulated
async def test_what_changes_in_the_calendar_changes_the_delegation(shop: Shop):
    """Longer, shorter, moved, taken out, and put in again; each is a fact. That time passes, and a
    worker that starts again, change nothing.
    """
    calendars = Calendars(shop.log, {"ana": to("ben")})
    assert await calendars.look() == []
    assert await calendars.look(ana=[(0, 10)]) == ["ben for ana 0-10"]
    await asyncio.sleep(3600)
    count = await shop.log.last_seq()
    again = Calendars(shop.log, calendars.people and {"ana": to("ben")}, ana=[(0, 10)])
    assert await again.look() == ["ben for ana 0-10"]
    assert await again.look(ana=[(0.5, 10)]) == ["ben for ana 0-10"]  # it began anyway
    assert await shop.log.last_seq() == count
    assert await calendars.look(ana=[(0, 12)]) == ["ben for ana 0-12"]
    assert await calendars.look(ana=[(0, 5)]) == ["ben for ana 0-5"]
    assert await calendars.look(ana=[(6, 8)]) == ["ben for ana 6-8"]
    assert await calendars.look(ana=[(0, 0.5)]) == []
    assert await calendars.look(ana=[(0, 10)]) == ["ben for ana 0-10"]
    every = await shop.ledger.delegations("shop")
    assert len(every) == 5
    assert {one.ended.event.reason for one in every if one.ended} == {  # type: ignore[union-attr]
        "Not away any more, by the calendar."
    }


@simulated
async def test_an_absence_that_is_taken_out_gives_no_vote(shop: Shop):
    """From the next look on."""
    calendars = Calendars(shop.log, {"ana": to("ben")})
    async with shop.at_work(ASK_ANA):
        await calendars.look(ana=[(0, 10)])
        await shop.ask()
        assert await calendars.look(ana=[]) == []
        with pytest.raises(NotAllowed, match="ben is none of those who may vote"):
            await shop.ledger.reviewer("ben").approve(FIRST)
        await shop.cast("ben", on_behalf_of="ana")
        await shop.ledger.reviewer("ana").approve(FIRST)
        assert (await shop.decided(e.Approved)).voters == ("ana",)


@simulated
async def test_a_calendar_that_cannot_be_read_changes_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
):
    """What stands goes on to its end and nothing new begins; it is named until it can be read."""
    heard = structlog.wrap_logger(None, wrapper_class=structlog.BoundLogger)
    monkeypatch.setattr(worker, "_log", heard)
    calendars = Calendars(shop.log, {"ana": to("ben"), "cy": to("ben")}, ana=[(0, 10)])
    assert await calendars.look() == ["ben for ana 0-10"]
    count = await shop.log.last_seq()
    with capture_logs() as logs:
        assert await calendars.look(ana="no answer within 20 s") == ["ben for ana 0-10"]
    assert await shop.log.last_seq() == count
    [said] = [one for one in logs if one["event"] == "a calendar cannot be read"]
    assert (said["calendar"], said["problem"]) == ("ana", "no answer within 20 s")
    [failing] = await failing_channels(shop.ledger, CALENDAR)
    assert (failing.channel, failing.why) == ("ana", "no answer within 20 s")
    assert await failing_channels(shop.ledger) == []
    assert await calendars.look(cy=[(0, 1)]) == ["ben for ana 0-10", "ben for cy 0-1"]
    # A worker that starts later says so too, and takes it back.
    again = Calendars(shop.log, {"ana": to("ben"), "cy": to("ben")}, ana=[], cy=[])
    assert await again.look() == []
    assert await failing_channels(shop.ledger, CALENDAR) == []


CHAIN = {"ana": to("ben", "cy"), "ben": to("cy", "ana"), "cy": to("ben")}


@simulated
@pytest.mark.parametrize(
    ("said", "given"),
    [
        ({"ana": [(0, 10)]}, ["ben for ana 0-10"]),
        ({"ana": [(0, 10)], "ben": [(10, 12)]}, ["ben for ana 0-10", "cy for ben 10-12"]),
        (
            {"ana": [(0, 10)], "ben": [(4, 6)]},
            ["ben for ana 0-4", "ben for ana 6-10", "cy for ana 4-6", "cy for ben 4-6"],
        ),
        (
            {"ana": [(0, 10)], "ben": [(-2, 6)], "cy": [(5, 8)]},
            ["ben for ana 6-10", "ben for cy 6-8", "cy for ana 0-5", "cy for ben -2-5"],
        ),
        # Who is not known to be there by the calendar is as the record has it.
        ({"ana": [(0, 10)], "ben": "away"}, ["ben for ana 0-10"]),
    ],
)
async def test_the_first_who_is_there_votes(shop: Shop, said, given):
    """Of those who are named, for each part of the absence; nobody, if all are away."""
    calendars = Calendars(shop.log, CHAIN, **said)
    assert sorted(await calendars.look()) == given
    count = await shop.log.last_seq()
    await asyncio.sleep(2.5 * 3600)
    await calendars.look()
    assert await shop.log.last_seq() == count


@simulated
async def test_an_unread_calendar_of_the_next_one_counts_as_recorded(shop: Shop):
    """Ben was known to be away, so his calendar's silence does not bring him back."""
    calendars = Calendars(shop.log, CHAIN, ana=[(0, 10)], ben=[(4, 6)])
    known = sorted(await calendars.look())
    assert sorted(await calendars.look(ben="it answered 500")) == known


@simulated
async def test_the_calendar_gives_no_more_than_a_hand(shop: Shop):
    """Rita may not approve what she requested for ana either, and ben's vote is ana's own."""
    calendars = Calendars(shop.log, {"ana": to("rita")}, ana=[(0, 10)])
    async with shop.at_work(ASK):
        await calendars.look()
        await shop.ask(requester="rita")
        with pytest.raises(NotAllowed):
            await shop.ledger.reviewer("rita").approve(FIRST)
        await shop.cast("rita", on_behalf_of="ana")
        await shop.ledger.reviewer("ben").deny(FIRST)
        assert (await shop.decided(e.Denied)).voters == ("ben",)


@simulated
async def test_what_somebody_ends_by_hand_stays_ended(shop: Shop):
    """While the calendar says the same; another absence is another delegation."""
    calendars = Calendars(shop.log, {"ana": to("ben")}, ana=[(0, 10)])
    await calendars.look()
    [one] = await shop.ledger.delegations("shop")
    await shop.ledger.reviewer("ana").end_delegation(one.ref, reason="I am here")
    assert await calendars.look() == []
    assert await calendars.look(ana=[]) == []
    assert await calendars.look(ana=[(0, 10)]) == []
    assert await calendars.look(ana=[(0, 11)]) == ["ben for ana 0-11"]


@simulated
async def test_settings_count_anew(shop: Shop):
    """Other delegates, tools and workspaces: what is not wanted any more ends, what is missing
    begins. What somebody gave by hand is theirs.
    """
    leave = e.Delegated(to="dan", starts_at=at(0), ends_at=at(5))
    await shop.ledger.append(DelegationRef("shop", "ana", "leave").given, leave)
    first = Calendars(shop.log, {"ana": to("ben")}, ana=[(0, 10)])
    await first.look()
    second = Calendars(shop.log, {"ana": to("cy", workspaces=["desk"])}, ana=[(0, 10)])
    assert await second.look() == ["dan for ana 0-5"]
    assert [_words(one) for one in await shop.ledger.delegations("desk")] == ["cy for ana 0-10"]
    third = Calendars(shop.log, {"ana": to("ben", tools=["pay*"])}, ana=[(0, 10)])
    assert await third.look() == ["dan for ana 0-5", "ben for ana 0-10"]
    assert (await shop.ledger.delegations("shop"))[-1].delegated.tools == ("pay*",)
    assert not await shop.ledger.read(DelegationRef("shop", "ana", "leave").absent_ended)


@simulated
async def test_removed_people_neither_give_nor_vote(shop: Shop):
    """Nor does somebody vote in a workspace that is not theirs."""

    async def person(name: str, event: e.Event) -> None:
        await shop.ledger.record_person(partial(person_slot, name), event)

    calendars = Calendars(shop.log, CHAIN, ana=[(0, 10)], cy=[(0, 10)])
    await person("ben", e.PersonRemoved())
    await person("cy", e.PersonAdded(workspaces=("desk",)))
    assert await calendars.look(cy=[]) == []
    await person("ben", e.PersonAdded())
    await person("ana", e.PersonRemoved())
    assert await calendars.look() == []
    await person("ana", e.PersonAdded())
    assert await calendars.look() == ["ben for ana 0-10"]


@simulated
async def test_several_workers_record_it_once(shop: Shop):
    """They give the same names."""
    several = [Calendars(shop.log, CHAIN, ana=[(0, 10)], ben=[(4, 6)]) for _ in range(3)]
    for said in ([(0, 10)], [], [(0, 10)]):
        await asyncio.gather(*(one.look(ana=said) for one in several))
        assert len(await several[0].given()) == (4 if said else 1)
    assert len(await shop.ledger.delegations("shop")) == 7


# ------------------------------------------------------------------------------------- for real


@asynccontextmanager
async def at_work(store: Path, settings: Path) -> AsyncIterator[None]:
    said = read_settings(Settings, settings, ["absence"]).absence
    async with working(reactions(["absence"], absences=said), store=store) as failed:
        yield
        assert not failed.done()


async def test_the_worker_reads_a_file_and_records(store: Path, admin: Ledger, tmp_path: Path):
    """With its own credentials, on a real broker; they record nothing else about delegations."""
    now = admin.now()
    hours = [now + timedelta(hours=one) for one in (-1, 1)]
    (tmp_path / "ana.ics").write_text(calendar(away(*hours)), newline="")
    settings = tmp_path / "ayes.toml"
    settings.write_text(
        '[absence.ana]\ncalendar = "file:ana.ics"\nto = "ben"\nworkspaces = ["shop"]\n'
        '[absence.cy]\ncalendar = "file:cy.ics"\nto = ["ben"]\n'
    )
    async with at_work(store, settings):
        [one] = await until(partial(admin.delegations, "shop"))
        [failing] = await until(partial(failing_channels, admin, CALENDAR))
    assert (one.ref.giver, one.delegated.to, one.by_calendar) == ("ana", "ben", True)
    assert [round((when - now).total_seconds() / 3600) for when in _times(one)] == [-1, 1]
    why = "its file cannot be read: FileNotFoundError"
    assert (failing.channel, failing.why) == ("cy", why)
    async with Ledger.connect(store, role="absence") as absence:
        for slot, event in (
            (one.ref.given, one.delegated),
            (one.ref.ended, e.DelegationEnded()),
        ):
            with pytest.raises(BrokerRefused):
                await absence.append(slot, event)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ('to = "ben"', "'calendar' is missing"),
        ('calendar = "https://x/a"', "'to' is missing"),
        ('calendar = "https://x/a"\nto = []', "'to' is empty"),
        ('calendar = "https://x/a"\nto = ["ben", "Ana"]', "ana is away then. Name somebody else."),
        ('calendar = "https://x/a"\nto = "b.n"', "reviewer 'b.n'"),
        ('calendar = "ftp://secret/a"\nto = "ben"', 'it is not a URL, such as "https://…".'),
        ('calendar = "env:NONE"\nto = "ben"', "the variable NONE is not set."),
        ('calendar = "https://x/a"\nto = "ben"\ntimezone = "Mars"', "'Mars' is not a time zone"),
        ('calendar = "https://x/a"\nto = "ben"\nword = "x"', "unknown key 'word'"),
    ],
)
def test_mistakes_in_settings_are_named(tmp_path: Path, lines: str, says: str):
    """In one sentence, without the calendar's address."""
    file = tmp_path / "ayes.toml"
    file.write_text(f"[absence.ana]\n{lines}\n")
    file.chmod(0o600)
    with pytest.raises(BadFile) as problem:
        read_settings(Settings, file, ["absence"], {})
    assert says in str(problem.value)
    assert "secret" not in str(problem.value)


def test_the_address_may_be_in_the_environment(tmp_path: Path):
    """Or in a file beside the settings, read anew each time. Otherwise it is a secret in them."""
    file = tmp_path / "ayes.toml"
    file.write_text('[absence.ana]\ncalendar = "env:ANA"\nto = "ben"\n'
                    '[absence.ben]\ncalendar = "file:ben"\nto = "ana"\n')  # fmt: skip
    file.chmod(0o644)
    found = read_settings(Settings, file, ["absence"], {"ANA": "https://x/secret"}).absence
    assert found is not None
    assert found["ana"].calendar == "https://x/secret"
    assert found["ben"].calendar == f"file:{tmp_path / 'ben'}"
    file.write_text('[absence.ana]\ncalendar = "https://x/secret"\nto = "ben"\n')
    with pytest.raises(BadFile, match="others may read it"):
        read_settings(Settings, file, ["absence"], {})


def test_it_looks_every_five_minutes():
    """As the page of people says."""
    assert EVERY_S == 300
