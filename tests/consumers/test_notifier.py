"""The notifier: people are told through real servers, once, and only if it is needed."""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from inboxes import Inbox, http, ntfy, smtp
from long import IN_MEMORY_FIRST
from running import working
from sections import section
from shop import FIRST, SECOND, THREAD, Shop, rule
from until import recorded, until

from ayes.consumers import worker as worker_module
from ayes.consumers.effects import HandOn
from ayes.consumers.notices import notifier
from ayes.consumers.notices.channels import Channels, NotSent
from ayes.consumers.notices.notifier import CONCURRENCY, Notifier, Outstanding
from ayes.consumers.worker import MAX_DELIVERIES, Worker
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import EventLog, Mark
from ayes.ledger.subscriptions import DURABLES
from ayes.ops.inspection.checks import failing_channels
from ayes.projections.notices import Notice
from ayes.schemas import events as e
from ayes.schemas.backoff import Backoff
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadFile
from ayes.schemas.slots import ROOT, CallRef, account_slot, groups_slot
from ayes.schemas.tools import ToolSpec

pytestmark = IN_MEMORY_FIRST
CONTACTS = """
[contacts]
ana = ["mail:ana@example.org"]
ben = ["push:ben-topic"]
rita = ["web:rita"]

[rooms]
ops = "web:ops"
"""
ASKS = rule("money", "ask", 'voters = ["ana", "ben"]')
SOON_S = 0.01
#: How long after the last thing that should happen something that should not would have.
A_WHILE_S = 0.3


class Inboxes:
    """One server of each kind, and the file that describes them."""

    def __init__(self, mail: Inbox, web: Inbox, push: Inbox) -> None:
        self.mail, self.web, self.push = mail, web, push

    def channels(self, folder: Path, *, tries: int = 1, timeout_s: float = 60) -> Channels:
        limits = f"tries = {tries}\ntimeout_s = {timeout_s}\n"
        text = f"""
[notices.mail]
url = "mailto://{self.mail.place}?from=ayes@example.org&to={{address}}&format=text&mode=insecure"
{limits}
[notices.web]
url = "json://{self.web.place}/{{address}}"
{limits}
[notices.push]
url = "ntfy://{self.push.place}/{{address}}"
{limits}
"""
        return Channels(section("notices", folder, text), pauses=Backoff(SOON_S))

    async def until(self, inbox: Inbox, count: int) -> Inbox:
        return await asyncio.to_thread(inbox.until, count)


@pytest.fixture(scope="module")
def servers() -> Iterator[Inboxes]:
    with smtp() as mail, http() as web, ntfy() as push:
        yield Inboxes(mail, web, push)


@pytest.fixture
def inboxes(servers: Inboxes) -> Inboxes:
    """The servers, empty and in order again."""
    for one in (servers.mail, servers.web, servers.push):
        one.clear()
        one.is_broken, one.slow_s = False, 0.0
    return servers


@contextmanager
def sending(port: EventLog, channels: Channels) -> Iterator[tuple[Worker, Worker]]:
    author = e.Author(kind="notifier", name="notifier")
    now, later = (
        Worker(
            Ledger(port, author),
            Notifier(
                channels,
                later=later,
                link_to=lambda message, _: f"https://x/{message.recipient.to}",
            ),
            concurrency=CONCURRENCY,
        )
        for later in (False, True)
    )
    try:
        yield now, later
    finally:
        channels.close()


@asynccontextmanager
async def notifiers(port: EventLog, channels: Channels) -> AsyncIterator[None]:
    with sending(port, channels) as workers:
        async with working(*workers):
            yield


async def told(shop: Shop, count: int, ref: CallRef = FIRST) -> set[str]:
    """Wait for so many facts that somebody was told; returns `who occasion` of all."""
    place = f"{ref.subjects[:-1]}notified.>"
    await recorded(shop.ledger, place, count=count)
    return {" ".join(fact.slot.tail[3:]) for fact in await shop.ledger.read(place)}


def digest_s(in_s: float) -> float:
    """A length of windows, of which one ends in so many seconds, and the next an hour later."""
    end = math.ceil(datetime.now(UTC).timestamp() + in_s)
    return end / math.ceil(end / 3600)


@pytest.mark.log("memory", "jetstream")
async def test_people_are_told_by_mail_push_and_http(shop, port, inboxes, tmp_path):
    """A question reaches each voter through a channel of theirs, and a shared room; the outcome
    reaches the requester. Each is a fact, and whoever restarts the notifier is told nothing again
    (B54).
    """
    await shop.open(f'{CONTACTS}[[notify]]\nrooms = ["ops"]\n{ASKS}break_glass = ["ana"]\n')
    await shop.request()
    async with shop.gates():
        async with notifiers(port, inboxes.channels(tmp_path)):
            assert await told(shop, 3) == {"ana asked", "ben asked", "room ops asked"}
            voting = shop.ledger.reviewer("ana")
            await voting.approve(FIRST)
            await told(shop, 5)
        async with notifiers(port, inboxes.channels(tmp_path)):
            await shop.request(SECOND)
            await told(shop, 3, SECOND)
    [mail, again] = inboxes.mail.to("ana@example.org")
    assert mail.subject == "refund needs approval: shop/t1/c1"
    assert '"amount": 100' in mail.body
    assert mail.body.rstrip().endswith("https://x/ana")
    assert again.subject == "refund needs approval: shop/t1/c2"
    assert [one.subject for one in inboxes.web.to("rita")] == ["refund was approved: shop/t1/c1"]
    assert [one.subject[:22] for one in inboxes.push.to("ben-topic")] == [
        "refund needs approval:"
    ] * 2
    assert len(inboxes.web.to("ops")) == 3
    alone = "In an emergency you alone may let it run."
    assert alone in mail.body
    assert not [one for one in (*inboxes.push, *inboxes.web) if alone in one.body]


async def test_those_whom_a_void_run_wrongs_are_told(shop, port, inboxes, tmp_path):
    """Somebody runs a call that waits for people: those who were asked and the requester are told
    at once, and once for both the start and the result. A run that counts is no
    news to anybody (I1).
    """
    quiet = '[[notify]]\non = ["void"]\ndigest_s = 3600\n'
    await shop.open(CONTACTS + quiet + ASKS)
    await shop.request()
    async with shop.gates(), notifiers(port, inboxes.channels(tmp_path)):
        await shop.asked()
        digest = (await shop.ledger.call(FIRST)).digest
        start = e.ToolStarted(digest=digest, idempotency_key="k")
        await shop.ledger.append(FIRST.claim(1), start)
        result = e.ToolReturned(output="paid")
        await shop.ledger.append(FIRST.finished, result)
        everybody = {"ana void", "ben void", "rita void"}
        assert await told(shop, 3) == everybody
        await shop.ask(SECOND)
        await shop.ledger.reviewer("ana").approve(SECOND)
        await shop.decided(e.Approved, SECOND)
        await shop.ledger.append(SECOND.claim(1), start)
        await shop.ledger.append(SECOND.finished, result)
        await asyncio.sleep(A_WHILE_S)
        assert await told(shop, 3) == everybody
        assert await told(shop, 0, SECOND) == set()
    [mail] = inboxes.mail.to("ana@example.org")
    assert mail.subject == "A run of refund counts for nothing: shop/t1/c1"
    assert "void:      claim.1 by " in mail.body
    assert "the call was not decided before it" in mail.body


async def test_members_of_a_group_are_told_although_they_were_read_long_ago(
    shop, port, inboxes, tmp_path
):
    """They sign in again to vote. Whoever was read as no member since is not told."""
    await shop.open(CONTACTS + rule("money", "ask", 'voters = ["group:finance"]'))
    now = datetime.now(UTC)
    for name, said in (("ana", [["finance"]]), ("ben", [["finance"], ["guests"]]), ("rita", [])):
        account = e.AccountBound(account=f"openid:https://login.example#{name}")
        await shop.ledger.append(account_slot(name, 1), account)
        for days, groups in zip((40, 30), said, strict=False):
            at = now - timedelta(days=days)
            read = e.GroupsRead("https://login.example", name, tuple(groups), at, at)
            await shop.ledger.append(groups_slot(name, at, 1), read)
    await shop.request(requester="zoe")
    async with shop.gates(), notifiers(port, inboxes.channels(tmp_path)):
        assert await told(shop, 1) == {"ana asked"}
        await shop.request(SECOND, requester="zoe")
        assert await told(shop, 1, SECOND) == {"ana asked"}


async def test_a_secret_stays_here(shop: Shop, port: EventLog, inboxes: Inboxes, tmp_path: Path):
    """What the tool declares as secret is in no message (B71)."""
    tool = ToolSpec(name="refund", schema='{"type":"object"}', secret=("/card",))
    await shop.open(CONTACTS + ASKS, "", tool)
    await shop.request(arguments='{"amount":100,"card":"4111"}')
    async with shop.gates(), notifiers(port, inboxes.channels(tmp_path)):
        await told(shop, 2)
    for one in (*inboxes.mail, *inboxes.push):
        assert '"card": "(secret)"' in one.body
        assert "4111" not in one.body


async def test_nobody_is_told_what_is_decided_by_then(shop, port, inboxes, tmp_path):
    """A question that was decided while no notifier ran is not put to anybody any more."""
    await shop.open(CONTACTS + ASKS)
    await shop.request()
    async with shop.gates():
        await shop.asked()
        await shop.ledger.reviewer("ana").deny(FIRST, reason="no")
        await shop.decided(e.Denied)
        await shop.request(SECOND, '{"amount":7}')
        async with notifiers(port, inboxes.channels(tmp_path)):
            await told(shop, 2, SECOND)
            assert await told(shop, 1) == {"rita decided"}
    assert [one.subject for one in inboxes.mail] == ["refund needs approval: shop/t1/c2"]


async def test_each_is_judged_again_at_the_moment_of_sending(shop, port, inboxes, tmp_path):
    """Retries and digests take minutes: by then one reader has voted, or all is decided, and
    nothing is needed of them any more.
    """
    two = rule("money", "ask", 'voters = ["ana", "ben", "cy"]\nvotes_needed = 2')
    mails = "\n".join(f'{name} = ["mail:{name}@example.org"]' for name in ("ana", "ben", "cy"))
    await shop.open(f"[contacts]\n{mails}\n{two}")
    await shop.request()
    with closing(inboxes.channels(tmp_path)) as channels:
        sender = Notifier(channels)
        async with shop.gates():
            await shop.asked()
            asked = (await shop.ledger.read(FIRST))[-1]
            seen = await sender.load(shop.ledger, asked)
            sending = {one.message.recipient.to: one for one in seen.due}
            assert set(sending) == {"ana", "ben", "cy"}
            await shop.ledger.reviewer("ana").approve(FIRST)
            assert await sender.execute(shop.ledger, sending["ana"]) is None
            assert await sender.execute(shop.ledger, sending["ben"])
            await shop.ledger.reviewer("ben").deny(FIRST)
            await shop.decided(e.Denied)
            assert await sender.execute(shop.ledger, sending["cy"]) is None
    assert [one.subject for one in inboxes.mail] == ["refund needs approval: shop/t1/c1"]


@pytest.mark.log("memory", "jetstream")
async def test_a_dead_channel_delays_nobody_and_is_known(shop, port, inboxes, tmp_path):
    """Ana's mail server is broken: Ben is told all the same, the state shows the channel, the
    delivery is parked with its reason; tried again later, only Ana is told (B54).
    """
    inboxes.mail.is_broken = True
    await shop.open(CONTACTS + ASKS)
    await shop.request()
    async with shop.gates(), notifiers(port, inboxes.channels(tmp_path, tries=3)):
        assert await told(shop, 1) == {"ben asked"}
        parked = await until(lambda: port.parked("notifier"))
        assert "ana was not told (asked): mail: " in parked[0].reason
        [failing] = await failing_channels(shop.ledger)
        assert failing.channel == "mail"
        assert failing.why in parked[0].reason
        inboxes.mail.is_broken = False
        await port.mark(Mark("notifier", parked[0].number, "retry", datetime.now(UTC)))
        assert await told(shop, 2) == {"ben asked", "ana asked"}
        async with asyncio.timeout(60):
            while await failing_channels(shop.ledger):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert len(inboxes.push) == len(inboxes.mail) == 1


async def test_the_next_contact_is_tried_if_one_fails(shop, port, inboxes, tmp_path):
    """Contacts are in order of preference: a person is told once, through the first that works."""
    inboxes.push.is_broken = True
    both = '[contacts]\nana = ["push:ana-topic", "mail:ana@example.org"]\n'
    await shop.open(both + ASKS)
    await shop.request()
    async with shop.gates(), notifiers(port, inboxes.channels(tmp_path, tries=2)):
        await told(shop, 1)
    [fact] = await shop.ledger.read(FIRST.notified("ana", "asked"))
    assert fact.event.channel == "mail"
    assert len(inboxes.mail) == 1


async def test_forty_calls_are_one_message(shop, port, inboxes, tmp_path):
    """A digest of 40 is one message that lists them all, and 40 facts."""
    calls = [THREAD.call(f"d{number}") for number in range(40)]
    await shop.open("")
    digests = []
    for ref in calls:
        await shop.request(ref)
        digests.append((await shop.ledger.call(ref)).digest)
    wait = f"[[notify]]\ndigest_s = {digest_s(4)!r}\n"
    await shop.apply(f'[contacts]\nana = ["mail:ana@example.org"]\n{wait}{ASKS}')
    for ref, digest in zip(calls, digests, strict=True):
        asking = e.ApprovalRequested(digest=digest, rule="money", policy_version=2, voters=("ana",))
        await shop.ledger.append(ref.gated, asking)
    async with notifiers(port, inboxes.channels(tmp_path)):
        for ref in calls:
            await told(shop, 1, ref)
    [mail] = inboxes.mail
    assert mail.subject == "ayes: 40 notices, 40 waiting for approval"
    assert all(f"{ref}\n" in mail.body for ref in calls)
    facts = await shop.ledger.read(f"{ROOT}.*.*.call.*.notified.>")
    assert [fact.event.together for fact in facts] == [40] * 40


async def test_a_first_start_tells_each_person_once(shop, port, inboxes, tmp_path, monkeypatch):
    """What has waited for longer than a minute is counted in one message for each reader, and not
    told one by one; what comes then is told by itself (B27).
    """
    monkeypatch.setattr(notifier, "_BACKLOG_S", -3600.0)
    await shop.open(f'[contacts]\nana = ["mail:ana@example.org"]\n{ASKS}')
    calls = [THREAD.call(f"w{number}") for number in range(5)]
    async with shop.gates():
        for ref in calls:
            await shop.ask(ref)
    async with notifiers(port, inboxes.channels(tmp_path)):
        for ref in calls:
            await told(shop, 1, ref)
        monkeypatch.setattr(notifier, "_BACKLOG_S", 60.0)
        async with shop.gates():
            await shop.request(FIRST)
            await told(shop, 1)
    assert [one.subject for one in inboxes.mail] == [
        "ayes: 5 notices, 5 waiting for approval",
        "refund needs approval: shop/t1/c1",
    ]


@pytest.mark.log("memory", "jetstream")
async def test_a_reminder_comes_before_the_deadline_if_it_is_needed(shop, port, inboxes, tmp_path):
    """Who has not voted is reminded; who has is not, and nobody is about a decided call."""
    remind = '[[notify]]\non = ["reminder"]\nremind_before_s = 598.5\n'
    both = rule("money", "ask", 'voters = ["ana", "ben"]', "votes_needed = 2", "expires_in_s = 600")
    await shop.open(CONTACTS + remind + both)
    for ref in (FIRST, SECOND):
        await shop.request(ref)
    async with shop.gates():
        await shop.asked()
        await shop.asked(SECOND)
        await shop.ledger.reviewer("ana").approve(FIRST)
        await shop.ledger.reviewer("ana").deny(SECOND, reason="no")
        await shop.decided(e.Denied, SECOND)
    async with notifiers(port, inboxes.channels(tmp_path)):
        assert await told(shop, 1) == {"ben reminder"}
        await asyncio.sleep(A_WHILE_S)
    assert [one.subject for one in inboxes.push] == ["Reminder: refund needs approval: shop/t1/c1"]
    assert list(inboxes.mail) == []


@pytest.mark.log("memory", "jetstream")
async def test_two_notifiers_tell_everybody_once(shop, port, inboxes, tmp_path):
    """They share the work: no call is told twice, and none is missed."""
    calls = [THREAD.call(f"m{number}") for number in range(6)]
    await shop.open(CONTACTS + ASKS)
    (tmp_path / "other").mkdir()
    with sending(port, inboxes.channels(tmp_path / "other")) as others:
        async with (
            shop.gates(),
            notifiers(port, inboxes.channels(tmp_path)),
            working(*others),
        ):
            for ref in calls:
                await shop.request(ref)
            for ref in calls:
                await told(shop, 2, ref)
    assert len(inboxes.mail) == len(inboxes.push) == 6


# ------------------------------------------------------------------------------------- the channels


async def test_a_hanging_channel_ends_with_its_time(inboxes: Inboxes, tmp_path: Path):
    """A server that takes a message and never answers is given up on after `timeout_s`."""
    inboxes.web.slow_s = 2.0
    channels = inboxes.channels(tmp_path, timeout_s=0.2)
    seen: list[tuple[str, str]] = []

    async def on_change(channel: str, why: str) -> None:
        seen.append((channel, why))

    with pytest.raises(NotSent, match=r"web: no answer within 0\.2 s|web: .*[Tt]ime|web: A Conn"):
        await channels.send("web:ana", Notice("s", "b"), on_change)
    channels.close()
    assert [channel for channel, why in seen if why] == ["web"]


async def test_waiting_behind_a_failure_is_sharing_it(inboxes: Inboxes, tmp_path: Path):
    """However many messages wait for a dead channel, none waits for another's tries."""
    inboxes.web.is_broken = True
    channels = inboxes.channels(tmp_path, tries=2)

    async def on_change(channel: str, why: str) -> None:
        assert why

    async with asyncio.timeout(60):
        results = await asyncio.gather(
            *(channels.send(f"web:{n}", Notice("s", "b"), on_change) for n in range(300)),
            return_exceptions=True,
        )
    channels.close()
    assert all(isinstance(one, NotSent) for one in results)


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("[notices]", 0o600, "line 1: 'notices' is empty."),
        (
            '[notices.x]\nurl = "what"',
            0o600,
            "line 2, [notices.x]: 'url': apprise does not understand the URL",
        ),
        ('[notices.x]\nurl = "what"', 0o600, "which begins with ?://."),
        ('[notices.x]\nurl = "what://u:pass@h"', 0o600, "which begins with what://."),
        ('[notices.x]\nurl = "env:NOT_SET"', 0o600, "the variable NOT_SET is not set."),
        ('[notices.x]\nurl = "json://h"\nfoo = 1', 0o600, "unknown key 'foo'"),
        ('[notices.x]\nurl = "json://h"\ntries = 0', 0o600, "'tries' should be greater than"),
        ('[notices."a b"]\nurl = "json://h"', 0o600, "cannot be used"),
        ('[notices.x]\nurl = "json://u:pass@h"', 0o640, "others may read it"),
    ],
)
def test_bad_channels_are_one_sentence(tmp_path: Path, text: str, mode: int, said: str):
    """What is wrong, where, and what to do; never a URL, since it has a password in it."""
    with pytest.raises(BadFile) as raised:
        section("notices", tmp_path, text, {}, mode)
    assert said in str(raised.value)
    assert "pass@" not in str(raised.value)


def test_a_url_may_be_in_the_environment(tmp_path: Path):
    """So that no file has the password."""
    known = {"X_URL": "json://h/{address}"}
    found = section("notices", tmp_path, '[notices.x]\nurl = "env:X_URL"', known, 0o644)
    assert found["x"].url == "json://h/{address}"


# ------------------------------------------------------------------------------------------ waiting


@pytest.mark.parametrize(("next_s", "after_s"), [(5.0, 5.0), (21_000.0, 21_000.0), (1e6, 5e5)])
def test_what_is_due_later_waits_at_the_broker(next_s: float, after_s: float):
    """As a delivery that is handed on until then; a long wait is halved, so that a call that was
    decided meanwhile gives its place back.
    """
    later = Notifier(Channels({}), later=True)
    fact = Fact(1, datetime(2026, 3, 1, tzinfo=UTC), FIRST.gated, e.Withdrawn())
    [step] = later.decide(Outstanding(fact.recorded_at, (), next_s), fact)
    assert isinstance(step, HandOn)
    assert step.after_s == after_s


@pytest.mark.parametrize("name", ["notifier", "notifier-later"])
def test_waiting_is_neither_a_stall_nor_a_reason_to_park(name: str):
    """Their deliveries may long be in hand, and often be delivered."""
    assert DURABLES[name].slow
    assert DURABLES[name].max_deliveries > MAX_DELIVERIES
    assert DURABLES[f"{name}-parked"].max_deliveries > MAX_DELIVERIES


@pytest.mark.log("memory")
async def test_a_delivery_that_was_in_hand_often_is_not_parked(
    shop: Shop, port: EventLog, inboxes: Inboxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A notice that is due soon is handed on more often than other consumers may be."""
    monkeypatch.setattr(worker_module, "MAX_DELIVERIES", 1)
    await shop.open("")
    await shop.request()
    digest = (await shop.ledger.call(FIRST)).digest
    wait = f"[[notify]]\ndigest_s = {digest_s(2)!r}\n"
    await shop.apply(f'[contacts]\nana = ["mail:ana@example.org"]\n{wait}{ASKS}')
    asking = e.ApprovalRequested(digest=digest, rule="money", policy_version=2, voters=("ana",))
    await shop.ledger.append(FIRST.gated, asking)
    async with notifiers(port, inboxes.channels(tmp_path)):
        await told(shop, 1)
    assert await port.parked() == []
