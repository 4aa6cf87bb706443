"""A store that is sealed, and a bucket with Object Lock for copies of it, served by moto."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

from ayes.ledger.log import RawMessage, identity_of
from ayes.ledger.nats.credentials import Store
from ayes.ledger.seal import Checkpoint, MerkleTree, SignerKey, leaf_hash
from ayes.ops.sealing.bucket import LockedBucket
from ayes.ops.sealing.copier import Copier
from ayes.ops.sealing.files import SealFiles

NAME = "ayes-copies"
URL = f"s3://{NAME}/shop"
SECRET = "not-to-be-seen"


@contextmanager
def serving() -> Iterator[str]:
    """A storage, which the variables of this process name; yields its URL."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    variables = {
        "AWS_ENDPOINT_URL_S3": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "copier",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield variables["AWS_ENDPOINT_URL_S3"]
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        server.stop()


def client() -> Any:
    return boto3.client("s3")


def make_bucket(name: str = NAME, *, locked: bool = True) -> None:
    client().create_bucket(Bucket=name, ObjectLockEnabledForBucket=locked)


def versions() -> list[tuple[str, str]]:
    """The keys and ids of all versions of all objects, the newest of each first."""
    pages = client().get_paginator("list_object_versions").paginate(Bucket=NAME)
    return [(one["Key"], one["VersionId"]) for page in pages for one in page.get("Versions", ())]


def names(folder: str = "shop/log/") -> list[str]:
    """The names of the objects in a folder, once for each version."""
    return sorted(key.removeprefix(folder) for key, _ in versions() if key.startswith(folder))


def facts(count: int, at: datetime, *, every_s: float = 1.0, text: str = "") -> list[RawMessage]:
    """Facts, the first of which is recorded at that time."""
    return [
        RawMessage(
            n,
            at + timedelta(seconds=(n - 1) * every_s),
            f"ledger.shop.t1.said.m{n}",
            f"{text}{n}".encode(),
            n,
        )
        for n in range(1, count + 1)
    ]


class FactLog:
    """What a copier reads: the facts as their leader has them."""

    def __init__(self, has: list[RawMessage]) -> None:
        self.facts = has

    async def at(self, seq: int) -> RawMessage | None:
        return self.facts[seq - 1] if seq <= len(self.facts) else None


SEED = bytes(range(32))
START = datetime(2026, 1, 1, tzinfo=UTC)


class CopiedSite:
    """A log that is sealed, and its copier."""

    def __init__(self, folder: Path, has: list[RawMessage], name: str = "ayes.example") -> None:
        self.log = FactLog(has)
        self.files = SealFiles(Store(folder))
        self.files.folder.mkdir(parents=True, exist_ok=True)
        self.key = SignerKey(f"{name}/{identity_of(has[0])}", SEED)

    def seal(self, size: int = 0) -> None:
        """Seal the first facts; all of them by default."""
        tree = MerkleTree()
        hashes = [leaf_hash(raw.leaf) for raw in self.log.facts[: size or None]]
        self.files.write(tree.add(hashes) + tree.edge())
        note = self.key.note(Checkpoint(self.key.public.name, tree.size, tree.root()))
        self.files.publish(note, self.files.policy())

    def copier(self, url: str = URL) -> Copier:
        retention_s = timedelta(days=365).total_seconds()
        return Copier(self.log, self.files, self.key.public, LockedBucket(url), retention_s)  # type: ignore[arg-type]

    async def copy(self, size: int = 0) -> Copier:
        """Seal the first facts, and copy of them what can be copied now."""
        self.seal(size)
        copier = self.copier()
        await copier.begin()
        while await copier.copy_next():
            pass
        return copier
