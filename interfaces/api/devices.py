"""The devices on which a visitor is notified. Only the console's own pages use them: an address is
made by a browser, for the page that asks it.
"""

import binascii
import hashlib
from base64 import urlsafe_b64decode
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from ayes.consumers.notices.devices import Device, DeviceFile
from ayes.interfaces.api.identity import Reviewing
from ayes.schemas.errors import BadInput

#: The bytes of a device's public key and of its secret (RFC 8291).
_KEY_BYTES: Final = (65, 16)
_MAX_URL: Final = 2000
_MAX_NAME: Final = 80


class ListedDevice(Struct, frozen=True):
    #: The SHA-256 of its address, which is nobody's business: `push.js` compares it with its own.
    id: str
    name: str
    added_at: datetime


def public_key(visit: Reviewing) -> str:
    """The public key of the site, for browsers; empty: the notifier has no channel for devices."""
    return DeviceFile(visit.backend.store).read().public_key


def listed(visit: Reviewing) -> list[ListedDevice]:
    found = DeviceFile(visit.backend.store).read().of(visit.name)
    return [ListedDevice(_id(one), one.name, one.added_at) for one in found]


def add(visit: Reviewing, endpoint: str, p256dh: str, auth: str, name: str) -> None:
    """Notify this browser from now on.

    Raises:
        BadInput: it is none.
    """
    if not endpoint.startswith(("https://", "http://")) or len(endpoint) > _MAX_URL:
        raise BadInput("the browser gave no address at which it can be notified. Try another one.")
    try:
        sizes = tuple(len(urlsafe_b64decode(f"{one}===")) for one in (p256dh, auth))
    except (binascii.Error, ValueError):
        sizes = ()
    if sizes != _KEY_BYTES:
        raise BadInput("the browser gave keys that are none of Web Push. Try another one.")
    called = name.strip()[:_MAX_NAME] or "a device"
    within = visit.visitor.workspaces
    made = Device(visit.name, endpoint, p256dh, auth, called, datetime.now(UTC), within)
    DeviceFile(visit.backend.store).add(made)


def remove(visit: Reviewing, id_: str) -> None:
    mine = DeviceFile(visit.backend.store)
    mine.remove(lambda one: _id(one) == id_ and one in mine.read().of(visit.name))


def _id(device: Device) -> str:
    return hashlib.sha256(device.endpoint.encode()).hexdigest()
