"""The devices on which people want to be notified (Web Push), in one private file of the store.

The console writes it and the notifier reads it. The address of a device is one that its browser's
push service made, and only who has the key in this file may send there (VAPID, RFC 8292). The key
is made once: with another one, every device would have to be added again.
"""

import hashlib
from collections.abc import Callable
from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ayes.ledger.nats.credentials import Store
from ayes.ledger.private_file import PrivateFile
from ayes.schemas.base64url import base64url
from ayes.schemas.people import plain

FILE: Final = "push.json"
#: Of one person; beyond that, the one that was added first is removed.
MOST: Final = 20


class Device(Struct, frozen=True):
    """A browser that somebody has added."""

    person: str
    #: The URL that its push service made for it.
    endpoint: str
    #: Its public key and its secret, with which messages are encrypted (RFC 8291), in Base64.
    p256dh: str
    auth: str
    #: What its person calls it.
    name: str
    added_at: datetime
    #: Those that its person could see when it was added; none: all of them.
    workspaces: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """How pages name it: the SHA-256 of its address, which is nobody's business."""
        return hashlib.sha256(self.endpoint.encode()).hexdigest()


class Devices(Struct, frozen=True):
    """The content of the file."""

    #: The private key of the site and its public one, in Base64; empty: there is none yet.
    key: str = ""
    public_key: str = ""
    #: The oldest first.
    devices: tuple[Device, ...] = ()

    def of(self, person: str) -> tuple[Device, ...]:
        return tuple(one for one in self.devices if plain(one.person) == plain(person))


class DeviceFile(PrivateFile[Devices]):
    """The file of a store."""

    def __init__(self, store: Store) -> None:
        hint = " Remove it; everybody adds their devices again."
        super().__init__(store.path / FILE, Devices(), "devices", hint=hint)

    def with_key(self) -> Devices:
        """The content, with a key if there was none."""
        return self.change(lambda found: found if found.key else _with_key(found))

    def add(self, device: Device) -> None:
        """Add a device. An earlier entry of the same browser is replaced, also another person's."""

        def added(found: Devices) -> Devices:
            others = tuple(one for one in found.devices if one.endpoint != device.endpoint)
            crowded = replace(found, devices=others).of(device.person)[: -MOST + 1]
            kept = tuple(one for one in others if one not in crowded)
            return replace(found, devices=(*kept, device))

        self.change(added)

    def end_all(self, person: str, before: datetime) -> None:
        """Remove the devices of a person that were added before that time."""
        self.remove(lambda one: plain(one.person) == plain(person) and one.added_at <= before)

    def remove(self, ends: Callable[[Device], bool]) -> None:
        """Remove the devices of which this is so."""

        def left(found: Devices) -> Devices:
            return replace(found, devices=tuple(one for one in found.devices if not ends(one)))

        if any(map(ends, self.read().devices)):  # otherwise the file need not be there
            self.change(left)


def _with_key(found: Devices) -> Devices:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    made = ec.generate_private_key(ec.SECP256R1())
    point = made.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    private = made.private_numbers().private_value.to_bytes(32)
    return replace(found, key=base64url(private), public_key=base64url(point))
