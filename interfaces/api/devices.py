"""The devices on which a visitor is notified. Only the console's own pages use them: an address is
made by a browser, for the page that asks it.
"""

import binascii
from base64 import urlsafe_b64decode
from typing import Final

from ayes.consumers.notices.devices import Device, DeviceFile
from ayes.interfaces.api.identity import Reviewing
from ayes.schemas.errors import BadInput

#: The bytes of a device's public key and of its secret (RFC 8291).
_KEY_BYTES: Final = [65, 16]
_MAX_URL: Final = 2000
_MAX_NAME: Final = 80


def public_key(visit: Reviewing) -> str:
    """The public key of the site, for browsers; empty: the notifier has no channel for devices."""
    return DeviceFile(visit.backend.store).read().public_key


def devices_of(visit: Reviewing) -> tuple[Device, ...]:
    return DeviceFile(visit.backend.store).read().of(visit.name)


def add(visit: Reviewing, endpoint: str, p256dh: str, auth: str, name: str) -> None:
    """Notify this browser from now on.

    Raises:
        BadInput: it is none.
    """
    try:
        sizes = [len(urlsafe_b64decode(f"{one}===")) for one in (p256dh, auth)]
    except (binascii.Error, ValueError):
        sizes = []
    is_url = endpoint.startswith(("https://", "http://")) and len(endpoint) <= _MAX_URL
    if not is_url or sizes != _KEY_BYTES:
        raise BadInput("what the browser sent is no subscription of Web Push. Try another browser.")
    called, within = name.strip()[:_MAX_NAME] or "a device", visit.visitor.workspaces
    made = Device(visit.name, endpoint, p256dh, auth, called, visit.reading.now(), within)
    DeviceFile(visit.backend.store).add(made)


def remove(visit: Reviewing, id_: str) -> None:
    mine = [one for one in devices_of(visit) if one.id == id_]
    DeviceFile(visit.backend.store).remove(lambda one: one in mine)
