"""The instances that programs have made over HTTP, in one private file.

A token is made of what only the program that asked for it knows, so the same request is answered
with the same token, and the file has its hash. Secrets of webhooks are in the file, since requests
are signed with them. A removed instance is kept without them, for its name is never another's: the
names of its calls in the ledger begin with it.
"""

import hashlib
import hmac
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from ayes.interfaces.aap import wire
from ayes.ledger.private_file import PrivateFile
from ayes.schemas import strict_json
from ayes.schemas.base64url import base64url
from ayes.schemas.errors import BadInput

#: How long a token is valid.
LASTS: Final = timedelta(days=90)
_PREFIX: Final = "aap_"
_MAX_INSTANCES: Final = 10_000


class Receiver(Struct, forbid_unknown_fields=True, frozen=True):
    """Where an agent is told that its request is decided."""

    type: Literal["webhook"]
    url: str
    #: The receiver's own id of this registration; it answers for no other one.
    registration_id: str
    #: `whsec_` and a key in Base64, as of Standard Webhooks.
    signing_secret: str

    def __repr__(self) -> str:
        """Omit the secret, and the URL, which may hold one, since this ends up in logs."""
        return f"Receiver({self.registration_id!r})"


class Provision(Struct, forbid_unknown_fields=True, frozen=True):
    """The request for an instance."""

    instance_name: str | UnsetType = UNSET
    delivery: Receiver | UnsetType = UNSET


class Instance(Struct, frozen=True, omit_defaults=True):
    """An agent, with the hash of its token."""

    id: str
    name: str
    #: On whose behalf it asks.
    requester: str
    token_hash: str
    #: Of the request that made it: the same key with another request is refused.
    digest: str
    created_at: datetime
    expires_at: datetime
    #: The number of the last fact that its receiver was told of; at first, the last one there was.
    told: int
    delivery: Receiver | None = None
    removed: bool = False


class Instances(Struct, frozen=True):
    """The content of the file."""

    instances: dict[str, Instance] = {}

    def holder(self, token: str, now: datetime) -> Instance | None:
        """Whose token it is; None if it is none, has expired, or its instance was removed."""
        sent, found = hash_of(token), None
        for one in self.instances.values():
            is_its = hmac.compare_digest(one.token_hash, sent)
            if is_its and now < one.expires_at and not one.removed:
                found = one
        return found

    def of(self, requester: str) -> list[Instance]:
        """The instances that ask on behalf of this person."""
        every = self.instances.values()
        return [one for one in every if one.requester == requester and not one.removed]


class InstancesFile(PrivateFile[Instances]):
    """The file of a provider's instances.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, Instances(), "instances")

    def add(self, made: Instance, reserved: frozenset[str]) -> Instance:
        """Add an instance; the one that is there already if it was added before.

        Args:
            reserved: the names of the instances in the settings.

        Raises:
            BadInput: its name is or was another instance's, or there are too many.
        """

        def added(there: Instances) -> Instances:
            if made.id in there.instances:
                return there
            if made.name in reserved | {one.name for one in there.instances.values()}:
                raise BadInput(f"{made.name!r} is or was the name of another instance. Choose one.")
            if len(there.instances) >= _MAX_INSTANCES:
                raise BadInput(f"there are {_MAX_INSTANCES:,} instances, and there may be no more.")
            return Instances(there.instances | {made.id: made})

        return self.change(added).instances[made.id]

    def remove(self, instance: str) -> None:
        """Keep the name of an instance, and nothing with which it could ask or be told."""

        def removed(there: Instances) -> Instances:
            one = replace(there.instances[instance], token_hash="", delivery=None, removed=True)
            return Instances(there.instances | {instance: one})

        self.change(removed)

    def note_told(self, instance: str, seq: int) -> None:
        """Note that its receiver was sent this fact, or that this was given up."""

        def noted(there: Instances) -> Instances:
            one = there.instances[instance]
            moved = replace(one, told=max(one.told, seq))
            return Instances(there.instances | {instance: moved})

        self.change(noted)


def provision(body: bytes) -> Provision:
    """Read the request for an instance.

    Raises:
        BadInput: in one sentence.
    """
    try:
        strict_json.read(body.decode())
        return msgspec.json.decode(body, type=Provision)
    except (UnicodeDecodeError, strict_json.BadJson, msgspec.MsgspecError) as problem:
        raise BadInput(f"the request is not one of the protocol: {problem}") from None


def instance_id(requester: str, key: str) -> str:
    """The id of the instance that was asked for with this key: the same for the same key."""
    return wire.request_id(f"instance of {requester}", key)


def new_token(secret: str, instance: str, key: str) -> str:
    """The token of an instance, made of the token of the program that asks for it.

    Args:
        secret: that token.
    """
    made = hmac.digest(secret.encode(), f"aap {instance} {key}".encode(), hashlib.sha256)
    return _PREFIX + base64url(made)


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def digest_of(asked: Provision) -> str:
    return hashlib.sha256(msgspec.json.encode(asked, order="sorted")).hexdigest()
