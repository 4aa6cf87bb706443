"""Web Push: whose devices are sent what, and where requests may go."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio
from push_service import PushService, push_service

from ayes.consumers.notices.channels import Channel, Channels, NotSent
from ayes.consumers.notices.devices import MOST, Device, DeviceFile
from ayes.consumers.notices.push import Push
from ayes.ledger.nats.credentials import Store
from ayes.projections.notices import Notice
from ayes.schemas.slots import CallRef

CALL = CallRef("shop", "order-17", "refund-1")
ASKED = Notice("refund needs approval", "desk asks.\n\narguments:\n  480", (CALL,), asks=True)
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


@pytest_asyncio.fixture
async def service() -> AsyncIterator[PushService]:
    async with push_service() as made:
        yield made


@pytest.fixture
def devices(tmp_path: Path) -> DeviceFile:
    return DeviceFile(Store(tmp_path))


def device(service: PushService, person: str = "ana", **more) -> Device:
    made = service.subscription
    given = {"name": "a phone", "added_at": LONG_AGO} | more
    return Device(person=person, endpoint=made["endpoint"], **made["keys"], **given)


def channels(devices: DeviceFile, *, allow_private: bool = True) -> Channels:
    channel = Channel(
        subject="mailto:ops@example.org", allow_private=allow_private, tries=1, timeout_s=20
    )
    return Channels({"push": channel}, devices)


async def send(sending: Channels, contact: str = "push:ana", to: str | None = "ana") -> None:
    async def on_change(_channel: str, _why: str) -> None:
        """Nobody else needs to know."""

    await sending.send(contact, ASKED, on_change, to)


async def test_a_device_is_sent_the_first_line_and_no_argument(devices, service):
    """With where the call is, and a token that the push service can check."""
    devices.add(device(service))
    await send(channels(devices))
    headers, message = await service.next()
    assert message == {
        "title": "refund needs approval",
        "body": "desk asks.",
        "tag": str(CALL),
        "path": f"/calls/{CALL}",
    }
    assert (headers["TTL"], len(headers["Topic"])) == ("86400", 32)


@pytest.mark.parametrize(
    ("contact", "to", "said"),
    [
        ("push:ana", "ben", "push:ana is for devices of ana and not of ben"),
        ("push:ana", "", "push:ana is for devices of ana and not of a room"),
        ("push:ben", "ben", "ben has added no device in the console"),
    ],
)
async def test_nobody_is_told_on_the_devices_of_others(devices, service, contact, to, said):
    """Whatever a policy says; and who has none is told through the next contact."""
    devices.add(device(service))
    with pytest.raises(NotSent, match=said):
        await send(channels(devices), contact, to)
    assert service.sent.empty()


async def test_requests_go_to_no_private_address(devices, service):
    """Unless the settings say so, as of webhooks: the browser chose the address."""
    devices.add(device(service))
    with pytest.raises(NotSent, match="at a private address, where nothing is sent"):
        await send(channels(devices, allow_private=False))
    assert service.sent.empty()


async def test_a_device_is_told_of_the_workspaces_of_its_visitor(devices, service):
    """As they were when it was added."""
    devices.add(device(service, workspaces=("bank",)))
    with pytest.raises(NotSent, match="ana has no device that may be sent it"):
        await send(channels(devices))
    devices.add(device(service, workspaces=("bank", "shop")))
    await send(channels(devices))
    assert (await service.next())[1]["path"] == f"/calls/{CALL}"


async def test_keys_that_are_none_fail_alone(devices, service):
    """Another device of the same person is sent the message."""
    made = device(service)
    wrong = Device("ana", "http://127.0.0.1:1/x", "A" * 87, made.auth, "wrong", LONG_AGO)
    devices.add(wrong)
    devices.add(made)
    await send(channels(devices))
    assert (await service.next())[1]["tag"] == str(CALL)


def test_a_browser_is_of_one_person_and_a_person_has_few(devices, service):
    """Who adds it last has it; beyond so many, the first one goes. The key is made once."""
    devices.add(device(service))
    devices.add(device(service, "ben"))
    assert [one.person for one in devices.read().devices] == ["ben"]
    made = device(service)
    for number in range(MOST + 1):
        devices.add(Device("ana", f"https://x/{number}", made.p256dh, made.auth, "", LONG_AGO))
    kept = devices.read().of("ANA")
    assert [one.endpoint for one in kept] == [f"https://x/{n}" for n in range(1, MOST + 1)]
    key = devices.with_key()
    assert devices.with_key() == key
    assert Push(devices, "mailto:a@b.c", timeout_s=1, allow_private=False).reaches("ben")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "either a url, or the subject"),
        ({"url": "json://x/{address}", "subject": "mailto:a@b.c"}, "either a url, or the subject"),
        ({"subject": "ops@example.org"}, "Write mailto:"),
    ],
)
def test_a_channel_is_one_or_the_other(given, said):
    """In one sentence."""
    with pytest.raises(ValueError, match=said):
        Channel(**given)
