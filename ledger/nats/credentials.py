"""The address of a broker, and the logins of its roles.

A store is a directory that a broker runs from. Its `address.json`, which only the owner can read,
has the URL while the broker runs, and a password for each user name. A broker that runs elsewhere
is named by its URL, or by the file of a login, which has all of it, with a key in place of a
password.
"""

import errno
import ipaddress
import os
import ssl
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Struct, structs
from platformdirs import user_data_path

from ayes.ledger.nats.keys import is_seed
from ayes.schemas.errors import BadFile, BadInput, BrokerAway, BrokerRefused
from ayes.schemas.files import write_atomically
from ayes.schemas.people import plain

ADDRESS: Final = "address.json"


class Login(Struct, frozen=True):
    """The servers of a broker, and credentials, which are empty if it requires none."""

    #: One URL for each server of a cluster, comma-separated; all `nats://`, or all `tls://`.
    url: str
    user: str = ""
    password: str = ""
    #: The certificates (PEM) of the authorities that may sign the servers', or a file with them;
    #: empty: the system's.
    ca: str = ""
    #: The seed of the key (nkeys) that signs on in place of a password; empty: there is none.
    seed: str = ""
    #: Empty: the user has the name of its role.
    role: str = ""
    #: The workspaces that it may read and write; none: all of them.
    workspaces: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Omit the password, since this ends up in logs."""
        return f"Login({self.url!r}, user={self.user!r})"

    @property
    def servers(self) -> list[str]:
        return self.url.split(",")

    @property
    def scope(self) -> str:
        """The workspaces as a token of subjects; empty: all of them."""
        return "+".join(self.workspaces)

    @property
    def is_tls(self) -> bool:
        """Whether the password may only be sent over TLS."""
        return self.url.startswith("tls://")

    def tls(self) -> ssl.SSLContext:
        """What a server's certificate is verified with.

        Raises:
            BadInput: the file of certificates cannot be read.
        """
        is_text = self.ca.startswith(_PEM)
        try:
            return ssl.create_default_context(
                cafile=None if is_text else self.ca or None, cadata=self.ca if is_text else None
            )
        except OSError as problem:
            file = "`ca` of the login's file" if is_text else self.ca
            raise BadInput(
                f"{file} is not a file of certificates (PEM): {problem}. Name the broker's CA "
                "file in AYES_CA."
            ) from None

    def check_line(self) -> None:
        """Refuse to send a password, or what proves a key, to another machine without TLS.

        Raises:
            BadInput: the URL begins with `nats://`, and has a host that is not this one.
        """
        if self.is_tls or not (self.password or self.seed):
            return
        if far := [one for one in self.servers if not _is_here(urlsplit(one).hostname or "")]:
            raise BadInput(
                f"{far[0]} is on another machine, and nothing that signs on is sent there without "
                "TLS. Let the server have a certificate, and begin the URL with tls://; AYES_CA "
                "names the file of its CA."
            )

    @classmethod
    def parse(cls, url: str) -> "Login":
        """Read `nats://user:password@host:port`, or the URLs of several servers, comma-separated;
        or a login's file, whose path begins with `/`, `./`, `../` or `~/`. In place of a password
        there may be a seed.

        As with the nats CLI, scheme and credentials may be given once: `nats://a:b@h1,h2:4333`. The
        login's own URL is without user and password.

        Raises:
            BadInput: they are not such URLs, or have different credentials; there is no such file.
            BadFile: the file is no login's.
        """
        if url.startswith(("/", "./", "../", "~/")):
            return LoginFile.read(Path(url).expanduser()).login
        first, *others = (one.strip() for one in url.split(","))
        scheme = first.partition("://")[0] if "://" in first else "nats"
        servers = [_server(one, scheme) for one in (first, *others)]
        logins = {(user, password) for _, user, password in servers if user or password}
        schemes = {address.partition("://")[0] for address, _, _ in servers}
        if schemes not in ({"nats"}, {"tls"}):
            raise BadInput(
                "the broker's URL must begin with nats:// or tls://, and all servers of a cluster "
                "with the same."
            )
        if len(logins) > 1:
            raise BadInput(
                "the broker's URLs have different users or passwords. One login is for all servers "
                "of a cluster."
            )
        user, password = logins.pop() if logins else ("", "")
        return cls.of(",".join(address for address, _, _ in servers), user, password)

    @classmethod
    def of(
        cls, url: str, user: str, secret: str, ca: str = "", workspaces: tuple[str, ...] = ()
    ) -> "Login":
        """With a password; or with the seed of a key in its place, which is not sent."""
        password, seed = ("", secret) if is_seed(secret) else (secret, "")
        return cls(url, user, password, ca, seed, workspaces=workspaces)


class LoginFile(Struct, frozen=True):
    """The content of a login's file: all that a program needs to sign on, on any machine."""

    url: str
    name: str
    role: str
    seed: str
    ends_at: datetime
    workspaces: tuple[str, ...] = ()
    #: The certificates themselves, as of `Login.ca`.
    ca: str = ""

    @property
    def login(self) -> Login:
        return Login(self.url, self.name, "", self.ca, self.seed, self.role, self.workspaces)

    @classmethod
    def read(cls, file: Path) -> "LoginFile":
        """Read one.

        Raises:
            BadInput: it cannot be read.
            BadFile: it is not a login's.
        """
        try:
            return msgspec.json.decode(file.read_bytes(), type=cls)
        except OSError as problem:
            raise BadInput(
                f"the login's file {file} cannot be read: {problem.strerror}. `ayes auth add` "
                "writes one."
            ) from None
        except msgspec.MsgspecError as problem:
            raise BadFile(str(file), "", f"not the file of a login: {problem}") from None


#: How certificates begin that stand in place of a file.
_PEM: Final = "-----BEGIN "


def _is_here(host: str) -> bool:
    """Whether what is sent to a host stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def broker_elsewhere() -> str | None:
    """The broker that the environment names: a login's file in `$AYES_LOGIN`, else `$AYES_URL`."""
    file = os.environ.get("AYES_LOGIN")
    return str(Path(file).expanduser().absolute()) if file else os.environ.get("AYES_URL")


def _server(url: str, scheme: str) -> tuple[str, str, str]:
    """The URL of one server without credentials, the user and the password."""
    try:
        parts = urlsplit(url if "://" in url else f"{scheme}://{url}")
        host, port = parts.hostname, parts.port or 4222
    except ValueError:  # a bracket that is not closed, a port that is not a number
        host = None
    if not host:
        # Without citing it: it may hold a password.
        raise BadInput(
            "the broker's URL has no host or no valid port. An example is nats://127.0.0.1:4222."
        )
    host = f"[{host}]" if ":" in host else host
    return (
        f"{parts.scheme}://{host}:{port}",
        unquote(parts.username or ""),
        unquote(parts.password or ""),
    )


class RegisteredLogin(Struct, frozen=True):
    """A login with a key, as the broker knows it."""

    role: str
    #: The public key.
    key: str
    ends_at: datetime
    added_at: datetime
    #: As `Login.workspaces`.
    workspaces: tuple[str, ...] = ()


class Address(Struct, frozen=True):
    """The content of `address.json`."""

    #: As `Login.url`; empty while no broker runs.
    url: str = ""
    #: By user name; of the site's own logins the seeds of keys (`accounts.OWN`). Kept when the
    #: broker stops, so that clients can reconnect.
    passwords: dict[str, str] = {}
    #: The last port, kept for the same reason.
    port: int = 0
    #: The nats-server that was started last.
    binary: str = ""
    #: As `Login.ca`, relative to the store.
    ca: str = ""
    #: Reviewers who get no account by themselves any more.
    removed: tuple[str, ...] = ()
    #: The logins with keys, by name.
    logins: dict[str, RegisteredLogin] = {}
    #: The workspaces of the reviewers who have not all, by user name in the form of `plain`.
    scopes: dict[str, tuple[str, ...]] = {}

    def scope(self, role: str) -> tuple[str, ...]:
        """The workspaces of a reviewer; none: all of them."""
        return self.scopes.get(plain(role), ())

    def living_logins(self) -> dict[str, RegisteredLogin]:
        """The logins with keys that have not ended."""
        now = datetime.now(UTC)
        return {name: one for name, one in self.logins.items() if one.ends_at > now}


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

        With neither, `$AYES_LOGIN` or `$AYES_URL` names the broker if it is set. `$AYES_CA` is the
        `ca` of a URL.

        Raises:
            BadInput: the URL is not valid, or it is the file of a login with another role.
            BrokerAway: no broker runs from the store.
            BrokerRefused: the store has no such role.
        """
        url = url or (None if store else broker_elsewhere())
        if not url:
            return cls(store).login(role)
        login = Login.parse(url)
        if not login.role:
            return structs.replace(login, ca=os.environ.get("AYES_CA", ""))
        if role not in (login.role, "observer"):  # all may read
            raise BadInput(
                f"the login {login.user!r} in {url} has the role {login.role!r}, and this needs "
                f"{role!r}. Take a login's file with that role."
            )
        return login

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
        scope = address.scope(role)
        return Login.of(address.url, role, address.passwords[role], ca, scope)

    def has_login(self, role: str) -> bool:
        """Whether it has the password of a role. With that of `admin` it is the broker's own store,
        or that of a whole cluster; without, a copy for a program that needs several logins.
        """
        return role in self.read().passwords

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


def read_private(file: Path) -> bytes:
    """The content of a file of a store that holds a key.

    Raises:
        BadInput: it is another user's, or a symbolic link, or others can read it.
        OSError: it cannot be opened.
    """
    with os.fdopen(open_own(file, os.O_RDONLY), "rb") as content:
        if stat.S_IMODE(os.fstat(content.fileno()).st_mode) & 0o077:
            raise BadInput(f"{file} can be read by other users. Make it private: chmod 600 {file}")
        return content.read()


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
