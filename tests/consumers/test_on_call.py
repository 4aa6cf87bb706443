"""Questions that escalate to whoever is on call, by calendars that the worker `absence` reads.

In simulated time with files of calendars, and on a real broker.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import simulated_time
import structlog
from calendars import away, calendar
from shop import FIRST, Shop, rule
from simulated_time import START, simulated
from structlog.testing import capture_logs
from until import recorded

from ayes.consumers.absence import worker
from ayes.consumers.absence.calendars import CalendarUnreadable
from ayes.consumers.absence.parser import AbsenceQuery, Period, absences
from ayes.consumers.absence.schedules import LASTS, Schedule
from ayes.consumers.absence.worker import EVERY_S, Absences
from ayes.interfaces.cli.policy import _lines, explanation
from ayes.interfaces.cli.settings import Settings
from ayes.ledger.clients.services import CALENDAR, Ledger
from ayes.ledger.log import EventLog
from ayes.ledger.nats.credentials import Store
from ayes.ops.actions.policies import silent_schedules, voters_of
from ayes.ops.broker.server import ensure_account
from ayes.ops.inspection.checks import failing_channels
from ayes.ops.workers import reactions, working
from ayes.projections.notices import notice
from ayes.projections.views.call import question
from ayes.projections.views.fact import fact_row
from ayes.projections.views.secrets import WHOLE
from ayes.schemas import events as e
from ayes.schemas.errors import BadFile, BrokerRefused, NotAllowed
from ayes.schemas.policy import read_policy
from ayes.schemas.settings import read_settings
from ayes.schemas.slots import on_call_slot, person_slot

pytestmark = pytest.mark.log("simulated")

PEOPLE = {"lea@x.example": "lea", "Hal Moss": "hal", "rita": "rita", "bo": "bo"}
HOUR, LONG = 3600, 8 * 3600


def asking(*stages: str) -> str:
    """Ana is asked for half a minute, and then these, each as long."""
    each = ", ".join(f"{{voters = [{one}], expires_in_s = 30}}" for one in stages)
    return rule("money", "ask", 'voters = ["ana"]', "expires_in_s = 30",
                'on_timeout = "escalate"', f"stages = [{each}]")  # fmt: skip


def shift(start: float, end: float, summary: str, *attendees: str) -> str:
    """The lines of an event, in seconds from the beginning of the test."""
    lines = away(*(START + timedelta(seconds=one) for one in (start, end)), summary)
    return "|".join((lines, *attendees))


LEA, HAL = "ATTENDEE;CN=Lea:mailto:Lea@x.example", "ON CALL: Hal Moss (payments)"


class Duty:
    """The worker, and the file of the calendar that it reads."""

    def __init__(self, port: EventLog, file: Path) -> None:
        self._file = file
        self.ledger = Ledger(port, e.Author(kind="absence", name="absence"))
        schedule = Schedule(calendar=f"file:{file}", people=PEOPLE)
        self.worker = Absences({}, self._read, {"payments": schedule})

    async def _read(self, _source: str, asked: AbsenceQuery, _private: bool) -> tuple[Period, ...]:
        """As `calendars.reader`, without a process, which would have another time."""
        if not self._file.exists():
            raise CalendarUnreadable("its file cannot be read")
        return tuple(absences(self._file.read_text(), asked))

    def says(self, *events: str) -> None:
        self._file.write_text(calendar(*events), newline="")

    @asynccontextmanager
    async def kept(self, *events: str) -> AsyncIterator[None]:
        self.says(*events)
        keeping = asyncio.create_task(self.worker.keep(self.ledger))
        yield
        keeping.cancel()


@pytest.fixture
def shop(port: EventLog) -> Shop:
    found = Shop(port)
    found.ledger = Ledger(port, found.ledger.author, now=simulated_time.now)
    return found


@pytest.fixture
def duty(port: EventLog, tmp_path: Path) -> Duty:
    return Duty(port, tmp_path / "payments.ics")


async def begun(shop: Shop, stage: int = 1) -> e.Escalated:
    event = (await shop.until(FIRST.escalated(stage))).event
    assert isinstance(event, e.Escalated)
    return event


async def readings(shop: Shop) -> list[e.OnCallRead]:
    facts = await shop.ledger.read("ledger._organisation._oncall.>")
    return [one.event for one in facts if isinstance(one.event, e.OnCallRead)]


@simulated
async def test_who_is_on_call_when_the_stage_begins_is_asked_by_name(shop: Shop, duty: Duty):
    """Lea has handed over to hal since the question was asked: hal alone may vote then."""
    shifts = shift(-LONG, 20, "Payments", LEA), shift(20, LONG, HAL)
    async with shop.at_work(asking('"oncall:payments"')), duty.kept(*shifts):
        asked = await shop.ask()
        assert asked.stages == (e.Stage(("oncall:payments",), 30),)
        for name in ("lea", "hal"):
            with pytest.raises(NotAllowed):
                await shop.ledger.reviewer(name).approve(FIRST)
        escalated = await begun(shop)
        [on_call] = escalated.on_call
        assert (escalated.voters, escalated.expires_in_s) == (("hal",), 30)
        assert (on_call.schedule, on_call.people, on_call.problem) == ("payments", ("hal",), "")
        with pytest.raises(NotAllowed, match="lea is none of those who may vote"):
            await shop.ledger.reviewer("lea").approve(FIRST)
        await shop.ledger.reviewer("hal").approve(FIRST)
        assert (await shop.decided(e.Approved)).voters == ("hal",)


@simulated
async def test_a_stage_keeps_who_was_on_call_as_it_began(shop: Shop, duty: Duty):
    """Whatever the calendar says later."""
    shifts = shift(-LONG, 35, "Payments", LEA), shift(35, LONG, HAL)
    async with shop.at_work(asking('"oncall:payments"')), duty.kept(*shifts):
        await shop.ask()
        assert (await begun(shop)).voters == ("lea",)
        await asyncio.sleep(10)
        with pytest.raises(NotAllowed):
            await shop.ledger.reviewer("hal").approve(FIRST)
        await shop.ledger.reviewer("lea").approve(FIRST)
        await shop.decided(e.Approved)


BARRED = "on call for payments: nobody, by its calendar as of"
NOBODY: dict[str, tuple[tuple[str, ...], str, str]] = {
    "nobody": ((shift(2 * HOUR, LONG, HAL),), BARRED, " UTC"),
    "cancelled": ((shift(0, LONG, HAL, "STATUS:CANCELLED"),), BARRED, " UTC"),
    "unknown": ((shift(0, LONG, "On call: Zoe"),), BARRED, " UTC"),
    "ambiguous": ((shift(0, LONG, "bo for rita"),), BARRED, " UTC"),
    "the requester": (
        (shift(0, LONG, "rita"),), BARRED, "; rita asked for the call, or is behind its agent"
    ),
    "removed": ((shift(0, LONG, "bo"),), BARRED, "; bo was removed"),
}  # fmt: skip


@simulated
@pytest.mark.parametrize("case", NOBODY)
async def test_nobody_who_counts_is_on_call(shop: Shop, duty: Duty, case: str):
    """The stage is over at once and says why, and the next one begins."""
    events, beginning, end = NOBODY[case]
    policy = asking('"oncall:payments"', '"max"')
    async with shop.at_work(policy), duty.kept(*events):
        await shop.ledger.record_person(partial(person_slot, "bo"), e.PersonRemoved())
        await shop.ask()
        first, second = await begun(shop), await begun(shop, 2)
        assert (first.voters, first.expires_in_s, second.voters) == ((), 0.0, ("max",))
        call = await shop.ledger.call(FIRST)
        asked = question(call)
        assert asked is not None
        [words] = asked.on_call
        assert words.startswith(beginning)
        assert words.endswith(end)
        assert words in fact_row(call.escalated[0], WHOLE, full=True).what
        await shop.ledger.reviewer("max").approve(FIRST)
        await shop.decided(e.Approved)


@simulated
async def test_who_else_the_stage_names_is_asked(shop: Shop, duty: Duty):
    """Beside those who are on call, and without them."""
    async with shop.at_work(asking('"max", "oncall:payments"')), duty.kept():
        await shop.ask()
        escalated = await begun(shop)
        assert (escalated.voters, escalated.expires_in_s) == (("max",), 30)


@simulated
@pytest.mark.parametrize("is_read", [True, False], ids=["too long ago", "never"])
async def test_it_ends_as_a_no_without_a_fresh_record(shop: Shop, duty: Duty, is_read: bool):
    """The worker is away, or its calendar cannot be read: the last words count for an hour."""
    duty.says(shift(-LONG, LONG, HAL))
    async with shop.at_work(asking('"oncall:payments"')):
        if is_read:
            await duty.worker.look(duty.ledger)
            assert await silent_schedules(shop.ledger, await voters_of(shop.ledger)) == []
        await asyncio.sleep(HOUR - 20)
        await shop.ask()
        expired = await shop.decided(e.Expired)
        assert expired.after_s < 31
        [on_call] = (await begun(shop)).on_call
    why = "that is too long ago" if is_read else "nothing is recorded of its calendar"
    assert (on_call.people, on_call.problem, on_call.read_at is None) == ((), why, not is_read)
    told = await explanation(shop.ledger, FIRST)
    assert any(why in words for _, words in _lines(told))
    call = await shop.ledger.call(FIRST)
    assert why in notice(call, "expired").body
    [said] = await silent_schedules(shop.ledger, await voters_of(shop.ledger))
    assert said.startswith("oncall:payments asks nobody: ")
    assert f"{why}. A worker `absence`" in said


@simulated
async def test_a_calendar_that_cannot_be_read_counts_no_longer(
    shop: Shop, duty: Duty, monkeypatch: pytest.MonkeyPatch
):
    """And is named by the status until it can be read; so is a name that nobody knows."""
    heard = structlog.wrap_logger(None, wrapper_class=structlog.BoundLogger)
    monkeypatch.setattr(worker, "_log", heard)
    duty.says(shift(-LONG, LONG, HAL), shift(0, LONG, "Zoe Z."))
    with capture_logs() as logs:
        await duty.worker.look(duty.ledger)
    assert [one["event"] for one in logs] == ["a calendar names people who are not known"]
    [failing] = await failing_channels(shop.ledger, CALENDAR)
    assert failing.channel == "oncall.payments"
    assert failing.why == ("it names 'Zoe Z.', which is not one person of its table")
    duty._file.unlink()
    await duty.worker.look(duty.ledger)
    [failing] = await failing_channels(shop.ledger, CALENDAR)
    assert failing.why == "its file cannot be read"
    assert len(await readings(shop)) == 1
    duty.says(shift(-LONG, LONG, HAL))
    await duty.worker.look(duty.ledger)
    assert await failing_channels(shop.ledger, CALENDAR) == []


@simulated
async def test_the_same_is_recorded_twice_an_hour(shop: Shop, duty: Duty):
    """By several workers too; what changes is recorded at the next look."""
    shifts = (
        shift(-LONG, LONG, "Payments", LEA, "ATTENDEE:mailto:room@x.example"),
        shift(-LONG, LONG, HAL),
    )
    async with duty.kept(*shifts), duty.kept(*shifts):
        await asyncio.sleep(4 * HOUR - 60)
        assert len(known := await readings(shop)) == 8
        assert {one.person for one in known[-1].shifts} == {"lea", "hal"}
        duty.says(shift(-LONG, LONG, HAL))
        await asyncio.sleep(EVERY_S)
        changed = (await readings(shop))[8:]
    assert [[one.person for one in reading.shifts] for reading in changed] == [["hal"]]
    assert all(one.until - one.read_at == LASTS for one in known)


async def test_the_worker_alone_records_who_is_on_call(store: Path, admin: Ledger, tmp_path: Path):
    """On a real broker, with a file of its own and its own credentials, which record nothing else
    of the organisation; nobody else may.
    """
    now = admin.now()
    hours = [now + timedelta(hours=one) for one in (-1, 1)]
    (tmp_path / "desk.ics").write_text(calendar(away(*hours, "Lea")), newline="")
    settings = tmp_path / "ayes.toml"
    settings.write_text('[oncall.desk]\ncalendar = "file:desk.ics"\npeople = {lea = "lea"}\n')
    said = read_settings(Settings, settings, ["oncall"]).oncall
    async with working(reactions(["absence"], schedules=said), store=store):
        [fact] = await recorded(admin, "ledger._organisation._oncall.desk.*.*")
    assert isinstance(fact.event, e.OnCallRead)
    assert [one.person for one in fact.event.shifts] == ["lea"]
    await ensure_account(Store(store), "reviewer-ana")
    place = on_call_slot("desk", now, 99)
    for role in ("api", "gate", "operator", "organisation", "reviewer-ana", "service"):
        async with Ledger.connect(store, role=role) as other:
            with pytest.raises(BrokerRefused):
                await other.append(place, fact.event)
    async with Ledger.connect(store, role="absence") as absence:
        with pytest.raises(BrokerRefused):
            await absence.append(person_slot("lea", 1), e.PersonRemoved())


@pytest.mark.parametrize(
    ("event", "people"),
    [
        (shift(0, HOUR, "bo", LEA), ["lea"]),
        (shift(0, HOUR, "bo", LEA, "ATTENDEE:mailto:bo"), ["bo", "lea"]),
        (shift(0, HOUR, "bo", LEA.replace(";", ";PARTSTAT=DECLINED;"), "ATTENDEE:bo"), ["bo"]),
        (shift(0, HOUR, "bo", LEA.replace("lea", "leo").replace("Lea", "Leo")), []),
        (shift(0, HOUR, "Primary: hal moss"), ["hal"]),
        (shift(0, HOUR, "Bo, Hal Moss"), []),
        (shift(0, HOUR, "Bobby"), []),
    ],
)
def test_whom_an_event_names(event: str, people: list[str]):
    """Those who attend and have not declined; without any, the one person in the summary."""
    asked = AbsenceQuery(START, START + LASTS, None)
    schedule = Schedule(calendar="https://x", people=PEOPLE)
    events = [*absences(calendar(event), asked)]
    assert sorted(one.person for one in schedule.shifts(events)) == people
    assert bool(schedule.unknown(events)) is not bool(people)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (rule("r", "ask", 'voters = ["oncall:payments"]'), "'oncall:payments' may not be here"),
        (rule("r", "ask", 'break_glass = ["oncall:x"]'), "write it among the voters of a stage."),
        (rule("r", "ask", 'also = [{voters = ["oncall:x"]}]'), "among the voters of a stage."),
        ('[groups]\ng = ["oncall:x"]\n', "among the voters of a stage."),
        (asking('"oncall:p.q"'), "schedule 'p.q'"),
        (asking('"oncall:"'), "schedule ''"),
    ],
)
def test_a_policy_asks_them_in_stages_only(text: str, says: str):
    """Anywhere else a policy says so in a sentence."""
    with pytest.raises(BadFile) as problem:
        read_policy(text, "policy.toml")
    assert says in str(problem.value)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ('calendar = "https://x/a"', "'people' is missing"),
        ('calendar = "https://x/a"\npeople = {}', "'people' is empty"),
        ('calendar = "https://x/a"\npeople = {Lea = "l.e"}', "reviewer 'l.e'"),
        ('calendar = "ftp://secret/a"\npeople = {Lea = "lea"}', "it is not a URL"),
    ],
)
def test_mistakes_in_settings_are_named(tmp_path: Path, lines: str, says: str):
    """In one sentence, without the calendar's address."""
    file = tmp_path / "ayes.toml"
    file.write_text(f"[oncall.payments]\n{lines}\n")
    file.chmod(0o600)
    with pytest.raises(BadFile) as problem:
        read_settings(Settings, file, ["oncall"], {})
    assert says in str(problem.value)
    assert "secret" not in str(problem.value)


def test_schedules_have_names(tmp_path: Path):
    """As everything that is in a subject."""
    file = tmp_path / "ayes.toml"
    file.write_text('[oncall."p.q"]\ncalendar = "file:x"\npeople = {Lea = "lea"}\n')
    with pytest.raises(BadFile, match=r"schedule 'p\.q'"):
        read_settings(Settings, file, ["oncall"], {})
