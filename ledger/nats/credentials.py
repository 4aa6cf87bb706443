"""The address of a broker, and the logins of its roles.

A store is a directory that a broker runs from. Its `address.json`, which only the owner can read,
has the URL while the broker runs, and a password for each user name. A broker that runs elsewhere
is named by its URL.
"""

import errno
import os
import stat
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Struct
from platformdirs import user_data_path

from ayes.schemas.errors import BadFile, BadInput, BrokerAway, BrokerRefused
from ayes.schemas.files import write_atomically

ADDRESS: Final = "address.json"


class Login(Struct, frozen=True):
    """URL and credentials. User and password are empty if the broker requires none."""

    #: Of a cluster: those of its nodes, separated by commas.
    url: str
    user: str = ""
    password: str = ""
    #: The file with the certificate of the authority that signs the broker's; empty: the system's.
    ca: str = ""

    def __repr__(self) -> str:
        """Omit the password, since this ends up in logs."""
        return f"Login({self.url!r}, user={self.user!r})"

    @classmethod
    def parse(cls, url: str) -> "Login":
        """Read `nats://user:password@host:port`; the login's own URL is without user and password.

        Raises:
            BadInput: it is not such a URL.
        """
        try:
            parts = urlsplit(url if "://" in url else f"nats://{url}")
            host, port = parts.hostname, parts.port or 4222
        except ValueError:  # a bracket that is not closed, a port that is not a number
            host = None
        if not host:
            # Without citing it: it may hold a password.
            raise BadInput(
                "the broker's URL has no host or no valid port. An example is "
                "nats://127.0.0.1:4222."
            )
        host = f"[{host}]" if ":" in host else host
        return cls(
            f"{parts.scheme}://{host}:{port}",
            unquote(parts.username or ""),
            unquote(parts.password or ""),
        )


class Address(Struct, frozen=True):
    """The content of `address.json`."""

    #: Empty while no broker runs.
    url: str = ""
    #: By user name. Kept when the broker stops, so that clients can reconnect.
    passwords: dict[str, str] = {}
    #: The last port, kept for the same reason.
    port: int = 0
    #: The file in the store with the authority's certificate; empty without TLS.
    ca: str = ""


class Store:
    """The directory that a broker runs from (default: `$AYES_STORE`, else the user's own)."""

    def __init__(self, path: Path | str | None = None) -> None:
        named = path or os.environ.get("AYES_STORE")
        self.path = (
            Path(named).expanduser().absolute() if named else user_data_path("approval-ledger")
        )

    @classmethod
    def login_for(
        cls, role: str, *, store: Path | str | None = None, url: str | None = None
    ) -> Login:
        """The login for the broker at `url`; without one, for `role` at the broker of `store`.

        With neither, `$AYES_URL` names the broker if it is set.

        Raises:
            BadInput: the URL is not valid.
            BrokerAway: no broker runs from the store.
            BrokerRefused: the store has no such role.
        """
        url = url or (None if store else os.environ.get("AYES_URL"))
        return Login.parse(url) if url else cls(store).login(role)

    def login(self, role: str) -> Login:
        """The login for `role` at the broker that runs from here.

        Raises:
            BrokerAway: no broker does, according to `address.json`.
            BrokerRefused: it has no such role.
        """
        address = self.read()
        if not address.url:
            raise BrokerAway(
                f"no broker runs in {self.path}; start one with `ayes up --store {self.path}`."
            )
        if role not in address.passwords:
            raise BrokerRefused(
                f"the broker in {self.path} has no account {role!r}, only "
                f"{', '.join(sorted(address.passwords))}. "
                "Use one of these; a reviewer's account is created by `ayes approve --as NAME` on "
                "the broker's machine."
            )
        ca = str(self.path / address.ca) if address.ca else ""
        return Login(address.url, role, address.passwords[role], ca)

    def read(self) -> Address:
        """Read `address.json`; an empty address if there is none.

        Raises:
            BadInput: the file is another user's, or a symbolic link.
            BadFile: it is broken.
        """
        file = self.path / ADDRESS
        try:
            with os.fdopen(open_own(file, os.O_RDONLY), "rb") as content:
                # The file is empty while a store is being created.
                return msgspec.json.decode(content.read() or b"{}", type=Address)
        except (FileNotFoundError, NotADirectoryError):
            return Address()
        except PermissionError:
            raise BrokerRefused(
                f"{file} belongs to another user. Ask them, or name another store with --store."
            ) from None
        except msgspec.MsgspecError as problem:
            raise BadFile(str(file), "", f"not a broker's address: {problem}") from None

    def check(self) -> None:
        """Refuse a store that another user prepared or could replace.

        Raises:
            BadInput: the directory or a file in it is another user's or a symbolic link, or other
                users may rename the directory.
        """
        if self.path.is_symlink():
            raise BadInput(
                f"{self.path} is a symbolic link. Name the directory itself with --store."
            )
        for one in (self.path, *self.path.iterdir()):
            try:
                there = one.lstat()
            except FileNotFoundError:
                continue  # another process has just renamed its temporary file
            _refuse_foreign(one, there)
            if stat.S_ISLNK(there.st_mode):
                raise _a_link(one)
        for parent in self.path.resolve().parents:
            if _others_may_write(parent.stat()):
                raise BadInput(
                    f"{parent} can be written by other users, who could replace {self.path}. "
                    "Make it private (chmod go-w), or name another store with --store."
                )

    def write(self, address: Address) -> None:
        """Replace `address.json`, whole or not at all."""
        self.write_private(ADDRESS, msgspec.json.format(msgspec.json.encode(address)))

    def write_private(self, name: str, content: bytes) -> None:
        """Replace a file that only its owner may read, by renaming a temporary file onto it."""
        write_atomically(self.path / name, content)


def open_own(file: Path, flags: int) -> int:
    """Open a file of a store, or create it, private to its owner.

    Raises:
        BadInput: it is another user's, or a symbolic link.
        OSError: it cannot be opened.
    """
    try:
        opened = os.open(file, flags | os.O_NOFOLLOW, 0o600)
    except OSError as problem:
        if problem.errno != errno.ELOOP:
            raise
        raise _a_link(file) from None
    try:
        _refuse_foreign(file, os.fstat(opened))
    except BaseException:
        os.close(opened)
        raise
    return opened


def _refuse_foreign(path: Path, there: os.stat_result) -> None:
    if there.st_uid != os.geteuid():
        raise BadInput(
            f"{path} belongs to another user (id {there.st_uid}), who may know its passwords. "
            "Run this as that user, or name another store with --store."
        )


def _a_link(path: Path) -> BadInput:
    return BadInput(f"{path} is a symbolic link, which a store must not contain. Remove it.")


def _others_may_write(there: os.stat_result) -> bool:
    """Whether users other than the owner, root and our own group may rename the files in it."""
    if there.st_mode & stat.S_ISVTX:
        return False
    by_group = there.st_mode & stat.S_IWGRP and there.st_gid not in {0, os.getegid()}
    return bool(there.st_mode & stat.S_IWOTH or by_group)
