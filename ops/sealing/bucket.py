"""A bucket of S3, or of storage that speaks it, into which copies of the log are put once.

An object is put with its SHA-256, and locked in compliance mode, so nobody can delete it or shorten
its retention. Object Lock keeps nobody from putting a newer version over it, nor from hiding it
behind a delete marker; nor from doing both before we put ours. So a reader takes the oldest version
that the signed checkpoint covers.

Where the storage is, and who may write there, are the settings and variables of boto3. No message
cites the storage, whose answers may have parts of them.
"""

import base64
import logging
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from operator import itemgetter
from typing import IO, Annotated, Any, Final, NamedTuple

from pydantic import AfterValidator

from ayes.ledger import clock
from ayes.schemas.durations import seconds
from ayes.schemas.errors import BadFile, BadInput, Unavailable
from ayes.schemas.settings import lasting
from ayes.schemas.toml_files import TomlModel

_DAY_S: Final = 86_400
#: Of a line that is read. No broker takes more than 64 MiB, which base64 makes 85.
_MAX_LINE: Final = 100 << 20
_URL: Final = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(/[A-Za-z0-9_.=/-]{1,500})?")
#: Another clock would end a retention early, or late for ever.
_MAX_SKEW: Final = timedelta(minutes=5)
#: Errors of boto3 about what only an operator can mend.
_MISCONFIGURED: Final = frozenset({
    "NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "InvalidRegionError",
})  # fmt: skip


def _parsed(url: str) -> tuple[str, str]:
    """The bucket and the beginning of the keys."""
    found = _URL.fullmatch(url)
    if found is None or ".." in url:  # not cited: it may be a secret in the wrong place
        raise ValueError("it is not the URL of a bucket. Write it as in s3://BUCKET/PREFIX.")
    prefix = (found[2] or "").strip("/")
    return found[1], f"{prefix}/" if prefix else ""


def _checked_url(url: str) -> str:
    _parsed(url)
    return url.rstrip("/")


class CopySettings(TomlModel):
    """The section `copies` of the settings."""

    #: As `s3://BUCKET/PREFIX`.
    url: Annotated[str, AfterValidator(_checked_url)]
    #: For how long nobody can delete what is copied.
    retention: Annotated[str, lasting(_DAY_S, 36_500 * _DAY_S, "a time from 1d to 36500d.")]

    @property
    def retention_s(self) -> float:
        return seconds(self.retention) or 0


class StoredObject(NamedTuple):
    """An object, and the ids of its versions, the oldest first."""

    key: str
    versions: tuple[str, ...]
    #: Whether there are several, or it is deleted.
    is_hidden: bool = False


class LockedBucket:
    """The objects of a bucket whose keys begin with a prefix; each method waits for the storage.

    Raises:
        BadInput: the URL is malformed, boto3 is not installed, or its settings have a mistake.

    Raises (each method):
        Unavailable: the storage does not answer, or not now.
        BadInput: it refuses.
    """

    def __init__(self, url: str) -> None:
        try:
            self._name, self._prefix = _parsed(url)
        except ValueError as problem:
            raise BadInput(f"the copy cannot be found: {problem}") from None
        try:
            import boto3
            from botocore.config import Config
        except ImportError:
            raise BadInput(
                "copies need the extra `copies`: `pip install 'ayes[copies]'`."
            ) from None
        # Below that it logs whole requests, and more of where it found credentials.
        logging.getLogger("botocore").setLevel(logging.WARNING)
        self.url: Final = url.rstrip("/")
        patience = {"total_max_attempts": 3, "mode": "standard"}
        with self._translated(self.url):
            self._client = boto3.client(
                "s3", config=Config(connect_timeout=5, read_timeout=60, retries=patience)
            )

    def where(self, key: str) -> str:
        return f"{self.url}/{key}"

    def check(self) -> None:
        """Refuse a bucket from which copies can be deleted, and a clock that is wrong.

        Raises:
            BadInput: it has no Object Lock, or the storage has another time.
        """
        with self._translated(self.url):
            answer = self._client.get_object_lock_configuration(Bucket=self._name)
        if answer.get("ObjectLockConfiguration", {}).get("ObjectLockEnabled") != "Enabled":
            raise BadInput(f"{self.url}: {_UNLOCKED}")
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        try:
            skew = clock.now() - parsedate_to_datetime(date) if date else timedelta()
        except (TypeError, ValueError):  # it is no date, or one without a zone
            raise Unavailable(f"{self.url}: the storage does not say what time it has.") from None
        if abs(skew) > _MAX_SKEW:
            raise BadInput(
                f"{self.url}: the clock of this machine is {skew.total_seconds():+,.0f} s from "
                "that of the storage, so objects would be kept until a wrong time. Set it."
            )

    def put_once(self, key: str, content: IO[bytes], digest: bytes, retention_s: float) -> bool:
        """Put an object. False: there is one already.

        Args:
            digest: the SHA-256 of the content, which the storage compares.

        Raises:
            Unavailable: also if another program is putting it now.
        """
        from botocore.exceptions import ClientError

        with self._translated(self.where(key)):
            try:
                self._client.put_object(
                    Bucket=self._name,
                    Key=self._prefix + key,
                    Body=content,
                    IfNoneMatch="*",
                    ChecksumAlgorithm="SHA256",
                    ChecksumSHA256=base64.b64encode(digest).decode(),
                    ObjectLockMode="COMPLIANCE",
                    ObjectLockRetainUntilDate=clock.now() + timedelta(seconds=retention_s),
                )
            except ClientError as problem:
                if _status(problem) != 412:
                    raise
                return False
        return True

    def stored(self, folder: str, after: str = "") -> dict[str, StoredObject]:
        """Each object whose key begins so and is above the other key, by key, in their order."""
        found, deleted = defaultdict[str, list[tuple[datetime, str]]](list), set[str]()
        where = {"Bucket": self._name, "Prefix": self._prefix + folder}
        if after:
            where["KeyMarker"] = self._prefix + after
        with self._translated(self.url):
            listing = self._client.get_paginator("list_object_versions")
            for page in listing.paginate(**where):
                deleted.update(one["Key"] for one in page.get("DeleteMarkers", ()))
                for one in page.get("Versions", ()):  # the newest of an object first
                    found[one["Key"]].insert(0, (one["LastModified"], one["VersionId"]))
        keys = {full: full.removeprefix(self._prefix) for full in sorted(found)}
        return {
            key: StoredObject(
                key,
                tuple(version for _, version in sorted(found[full], key=itemgetter(0))),
                is_hidden=len(found[full]) > 1 or full in deleted,
            )
            for full, key in keys.items()
        }

    def lines(self, key: str, version: str) -> Iterator[bytes]:
        """The lines of a version of an object.

        Raises:
            BadFile: they are not those that were put, as their checksum says, or one is longer than
                any that was put.
        """
        where, rest = self.where(key), bytearray()
        with self._translated(where):
            answer = self._client.get_object(
                Bucket=self._name,
                Key=self._prefix + key,
                VersionId=version,
                ChecksumMode="ENABLED",
            )
            for chunk in answer["Body"].iter_chunks(1 << 16):
                for part in chunk.splitlines(keepends=True):
                    rest += part
                    if len(rest) > _MAX_LINE:
                        raise BadFile(where, "", "it has a line that is too long for a fact.")
                    if part.endswith(b"\n"):
                        yield bytes(rest)
                        rest.clear()
        if rest:
            yield bytes(rest)

    @contextmanager
    def _translated(self, where: str) -> Iterator[None]:
        """Report errors of boto3 by their names."""
        from botocore.exceptions import BotoCoreError, ClientError, FlexibleChecksumError
        from botocore.parsers import ResponseParserError

        problem: BadInput | Unavailable
        try:
            yield
        except FlexibleChecksumError:
            problem = BadFile(where, "", "its checksum is not that of what was put there.")
        except ClientError as refusal:
            code = re.sub("[^A-Za-z0-9]", "", str(refusal.response.get("Error", {}).get("Code")))
            said = f"{where}: the storage refuses {refusal.operation_name} with {code[:60]}."
            problem = Unavailable(said) if _may_pass(refusal) else BadInput(said)
            if code == "ObjectLockConfigurationNotFoundError":
                problem = BadInput(f"{where}: {_UNLOCKED}")
        except BotoCoreError as failure:
            name = type(failure).__name__
            said = f"{where}: the storage cannot be asked ({name})."
            problem = BadInput(said) if name in _MISCONFIGURED else Unavailable(said)
        except ResponseParserError:  # cites the answer
            problem = Unavailable(f"{where}: the storage does not answer as S3 does.")
        else:
            return
        raise problem from None


_UNLOCKED: Final = (
    "the bucket has no Object Lock, so whoever can write there can delete the copy. Make another "
    "bucket, with Object Lock."
)


def _status(refusal: Any) -> int:
    status: int = refusal.response["ResponseMetadata"]["HTTPStatusCode"]
    return status


def _may_pass(refusal: Any) -> bool:
    """Whether waiting may help: a fault of the storage, too many requests, or two at once."""
    status = _status(refusal)
    return (status >= 500 and status != 501) or status in {408, 409, 429}  # 501: never
