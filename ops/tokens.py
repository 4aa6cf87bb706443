"""API tokens, and links that sign a person in once, in one private file of the store.

The file has hashes only. A secret is 256 random bits, so a plain SHA-256 cannot be reversed by
guessing, unlike that of a password. The command line writes the file and a running console reads
it, so that a token that was revoked is refused from the next request on.
"""

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from getpass import getuser
from typing import Final
from urllib.parse import urlencode

from msgspec import Struct
from msgspec.structs import replace

from ayes.ledger.nats.credentials import Store
from ayes.ledger.private_file import PrivateFile
from ayes.ops.visitors import Role, Visitor
from ayes.schemas.errors import BadInput
from ayes.schemas.ids import is_token, token
from ayes.schemas.people import plain

FILE: Final = "console.json"
#: How tokens begin, so that people and scanners for leaked secrets recognise them.
PREFIX: Final = "ayes_"
LINK_LASTS: Final = timedelta(minutes=10)
#: Beyond so many unused links, the oldest ends.
_MAX_LINKS: Final = 20


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


class ApiToken(Struct, frozen=True):
    hash: str
    #: The reviewer in whose name it votes; else the author of what it records.
    name: str
    role: Role
    created_at: datetime
    expires_at: datetime
    #: Those that it may see and act in; none: all of them.
    workspaces: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """How people name it."""
        return self.hash[:8]

    @property
    def visitor(self) -> Visitor:
        return Visitor(self.name, frozenset({self.role}), "token", self.workspaces)


class SignInLink(Struct, frozen=True):
    """A link that signs in a person once."""

    hash: str
    name: str
    expires_at: datetime


class ServedConsole(Struct, frozen=True):
    """A console that is being served, unless its process was killed."""

    url: str
    pid: int
    #: Whether links sign people in there.
    by_link: bool

    @property
    def is_alive(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # it is another user's
            return True
        return True


class Access(Struct, frozen=True):
    """The content of the file."""

    #: The port of the last console that was alone; kept so that bookmarks stay right.
    port: int = 0
    #: The oldest first.
    consoles: tuple[ServedConsole, ...] = ()
    tokens: tuple[ApiToken, ...] = ()
    links: tuple[SignInLink, ...] = ()

    @property
    def url(self) -> str:
        """The URL of the oldest console that is served; empty if none is."""
        return next((one.url for one in self.consoles if one.is_alive), "")


class AccessFile(PrivateFile[Access]):
    """The file of a store."""

    def __init__(
        self, store: Store, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        hint = " Remove it; all tokens end with it."
        super().__init__(store.path / FILE, Access(), "API tokens", hint=hint)
        self.store, self._now = store, now

    def add_token(
        self, name: str, role: Role, lasts: timedelta, workspaces: Iterable[str] = ()
    ) -> tuple[str, ApiToken]:
        """A new token, whose secret is nowhere but in what this returns.

        Args:
            workspaces: that it may see and act in; none: all of them.

        Raises:
            BadId: the name cannot be a reviewer's or an author's, or that of a workspace.
        """
        secret, now = PREFIX + new_secret(), self._now()
        scope = tuple(token("workspace", one) for one in workspaces)
        made = ApiToken(hash_of(secret), token("name", name), role, now, now + lasts, scope)

        def added(access: Access) -> Access:
            lasting = (one for one in access.tokens if now < one.expires_at)
            return replace(access, tokens=(*lasting, made))

        self.change(added)
        return secret, made

    def take_over(self, content: bytes) -> None:
        """Add the tokens of such a file, as of a backup. Links last for minutes and are left out.

        Raises:
            BadFile: it is broken.
        """
        found = {one.hash: one for one in self.decoded(content).tokens}

        def joined(access: Access) -> Access:
            tokens = found | {one.hash: one for one in access.tokens}
            return replace(access, tokens=tuple(tokens.values()))

        self.change(joined)

    def revoke(self, named: str) -> ApiToken:
        """Remove a token by its id.

        Raises:
            BadInput: there is no such token.
        """
        found = [one for one in self.read().tokens if one.id == named]
        if not found:
            raise BadInput(f"there is no token {named!r}. `ayes token list` shows their ids.")
        self.change(
            lambda access: replace(
                access, tokens=tuple(one for one in access.tokens if one.id != named)
            )
        )
        return found[0]

    def visitor_of(self, secret: str) -> Visitor | None:
        """Whose token it is; None if it is none, has expired or was revoked."""
        key, now = hash_of(secret), self._now()
        for one in self.read().tokens:
            if one.hash == key and now < one.expires_at:
                return one.visitor
        return None

    def end_all(self, name: str, before: datetime | None = None) -> None:
        """Remove the links and the tokens of a reviewer; with a time only those made before it."""
        made = before or self._now()

        def lasts(whose: str, made_at: datetime) -> bool:
            return plain(whose) != plain(name) or made_at > made

        self.change(
            lambda access: replace(
                access,
                tokens=tuple(
                    one
                    for one in access.tokens
                    if one.role != Role.REVIEWER or lasts(one.name, one.created_at)
                ),
                links=tuple(
                    one for one in access.links if lasts(one.name, one.expires_at - LINK_LASTS)
                ),
            )
        )

    def new_link(self, name: str) -> str:
        """The code of a new link for this reviewer.

        Raises:
            BadId: the name cannot be a reviewer's.
        """
        code, ends = new_secret(), self._now() + LINK_LASTS
        made = SignInLink(hash_of(code), token("reviewer", name), ends)
        self.change(lambda access: replace(access, links=(*access.links, made)[-_MAX_LINKS:]))
        return code

    def link_for(self, name: str, url: str = "") -> str:
        """A new link to the console at `url`, for this reviewer; by default, to the oldest of those
        that run and sign people in with links. Each of them takes it.

        Raises:
            BadId: the name cannot be a reviewer's.
            BadInput: no console runs, or people do not sign in with links there.
        """
        consoles = [one for one in self.read().consoles if one.is_alive]
        places = [url] if url else [one.url for one in consoles if one.by_link]
        if places:
            return f"{places[0]}/sign-in?{urlencode({'code': self.new_link(name)})}"
        if consoles:
            where = " and ".join(one.url for one in consoles)
            raise BadInput(f"people sign in with OpenID Connect at {where}, without a link.")
        raise BadInput(
            f"no console is served from {self.store.path}. `ayes up` and `ayes console` serve one."
        )

    def console_url(self) -> str:
        """Where people open a console of this store; empty if none is served now."""
        return self.read().url

    def holder_of(self, code: str) -> str:
        """Whom this link signs in; empty if it was used, or is too old."""
        key, now = hash_of(code), self._now()
        return next(
            (one.name for one in self.read().links if one.hash == key and now < one.expires_at), ""
        )

    def use_link(self, code: str) -> str:
        """Whom this link signs in, once; empty if it was used, or is too old."""
        key, now = hash_of(code), self._now()
        holders: list[str] = []

        def without(access: Access) -> Access:
            holders.extend(
                one.name for one in access.links if one.hash == key and now < one.expires_at
            )
            return replace(
                access,
                links=tuple(
                    one for one in access.links if one.hash != key and now < one.expires_at
                ),
            )

        self.change(without)
        return holders[0] if holders else ""

    @contextmanager
    def serve_at(self, url: str, port: int, *, by_link: bool) -> Generator[None]:
        """Note where this process serves a console, for as long as the block lasts.

        Others may be served from the same store: they and their port are left as they are.
        """
        made = ServedConsole(url, os.getpid(), by_link)

        def added(access: Access) -> Access:
            others = tuple(one for one in access.consoles if one.is_alive and one.url != url)
            return replace(access, consoles=(*others, made), port=access.port if others else port)

        def without(access: Access) -> Access:
            return replace(access, consoles=tuple(one for one in access.consoles if one != made))

        self.change(added)
        try:
            yield
        finally:
            self.change(without)


def own_name() -> str:
    """The name of this user of the machine, as that of a reviewer."""
    try:
        user = getuser()
    except (KeyError, OSError):  # a user id without an entry, as in some containers
        return "me"
    name = re.sub(r"[^A-Za-z0-9_-]", "-", user).lstrip("_")[:64]
    return name if is_token(name) else "me"
