"""Notices as operators meet them: `ayes up` with channels, `ayes notify test`, `ayes status`."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from inboxes import Inbox, http
from program import approvals, up
from sections import settings_file
from shop import rule

from ayes.consumers.notices.notifier import note_failing
from ayes.ledger.clients.services import CALENDAR, CHANNEL, Ledger
from ayes.schemas.tools import ToolSpec

POLICY = '[contacts]\nana = ["web:ana"]\nben = ["dead:ben"]\n[[notify]]\non = ["asked"]\n' + rule(
    "money", "ask", 'voters = ["ana", "ben", "carl"]', tools="*"
)


@pytest.fixture(scope="module")
def web() -> Iterator[Inbox]:
    with http() as inbox:
        yield inbox


@pytest.fixture(scope="module")
def folder(web: Inbox, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a policy and settings, in which one channel leads nowhere."""
    folder = tmp_path_factory.mktemp("notify")
    (folder / "policy.toml").write_text(POLICY)
    settings_file(
        folder,
        '[console]\nurl = "https://ayes.example.com/"\n'
        f'[notices.web]\nurl = "json://{web.place}/{{address}}"\n'
        '[notices.dead]\nurl = "json://127.0.0.1:1/{address}"\ntries = 1\n',
    )
    return folder


@pytest.fixture(scope="module")
def store(folder: Path) -> Iterator[Path]:
    with up(
        folder / "store", "--policy", folder / "policy.toml", "-w", "shop",
        "--settings", folder / "ayes.toml",
    ) as ready:  # fmt: skip
        assert ready["workers"] == ["gate", "queue", "model", "executor", "notifier"]
        yield folder / "store"


async def request(store: Path, call: str) -> None:
    async with Ledger.connect(store, name="desk") as ledger:
        await ledger.declare("shop", ToolSpec(name="refund", schema='{"type":"object"}'))
        await ledger.request(call, "refund", {"order": "A-17"}, requester="rita")


def test_up_tells_people_and_status_shows_a_channel_that_fails(store, web):
    """With channels, `ayes up` runs the notifier; its links are for one person, and lead to the
    console. A channel that fails is in `ayes status`, with since when and why, and so is what was
    parked (B54, B75).
    """
    asyncio.run(request(store, "shop/t1/c1"))
    [told] = web.until(1).to("ana")
    assert "https://ayes.example.com/open/" in told.body
    assert "shop" not in told.body.rpartition("/open/")[2]  # a name of two characters may be there

    def failing():
        return approvals("status", "--json", store=store).one

    for _ in range(30):
        if (found := failing())["channels"] and found["parked"]:
            break
    [channel] = found["channels"]
    assert channel["channel"] == "dead"
    assert channel["since"].startswith("20")
    assert channel["why"]
    assert "ben was not told (asked): dead: " in found["parked"][0]["reason"]
    assert (
        f"channel dead fails since {channel['since'][:10]}" in approvals("status", store=store).out
    )
    assert approvals("pending", "--in-doubt", "--json", store=store).lines == []


@pytest.mark.parametrize(
    ("role", "key", "kind", "words"),
    [
        ("notifier", f"{CHANNEL}mail", "channels", "channel mail fails since 20"),
        ("absence", f"{CALENDAR}mail", "calendars", "the calendar of mail has a problem since 20"),
    ],
)
def test_what_works_again_is_not_shown(store, role, key, kind, words):
    """What the notifier noted of a channel is taken back; so of calendars by whoever reads them."""

    async def note(why: str) -> None:
        async with Ledger.connect(store, role=role) as ledger:
            await note_failing(ledger, key, why)

    def shown() -> list[str]:
        found = approvals("status", "--json", store=store).one[kind]
        return [one["channel"] for one in found]

    asyncio.run(note("it refused"))
    assert "mail" in shown()
    assert words in approvals("status", store=store).out
    asyncio.run(note(""))
    assert "mail" not in shown()


@pytest.mark.parametrize(
    ("contact", "code", "said"),
    [
        ("web:olga", 0, "web took the message."),
        ("dead:olga", 1, "the message was not sent. dead: "),
        ("fax:olga", 2, "there is no channel 'fax'. There are: web, dead."),
    ],
)
def test_a_channel_can_be_tried(folder, web, within, contact, code, said):
    """`ayes notify test` sends one message, once, and says how that went."""
    before = len(web.to("olga"))
    ended = within("notify", "test", contact, "--settings", folder / "ayes.toml")

    assert (ended.code, said in ended.err, "Notifying" in ended.err) == (code, True, False), ended
    assert len(web.to("olga")) - before == (1 if code == 0 else 0)


def test_without_channels_a_notifier_says_what_is_missing(tmp_path, within):
    """In one sentence, before anything is started."""
    for words in (("notify", "test", "mail:ana"), ("work", "notifier")):
        ended = within(*words, "--store", tmp_path / "none")
        assert ended.code == 2
        assert "needs the section [notices] of the settings" in ended.err


def test_a_policy_that_reaches_nobody_is_warned_about(folder, within):
    """A voter without a contact is named when the policy is tried."""
    ended = within("policy", "test", folder / "policy.toml")

    assert ended.code == 0
    assert "warning: no notice reaches carl." in ended.err
