"""The endpoints of webhooks, and how each of them is doing, in two private files.

The command line writes the endpoints (`webhooks.json`), with their secrets. The worker writes how
they are doing (`webhooks.state.json`). Both are replaced whole, under one lock, and read anew when
they have changed, so a running worker knows at once that an endpoint was added or removed.
"""

import base64
import binascii
import secrets
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from ayes.ledger.private_file import PrivateFile
from ayes.projections.cloud_events import kind_of
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadInput
from ayes.schemas.events import TYPES
from ayes.schemas.ids import token
from ayes.schemas.slots import FILLED_BY, ROOT

NAME: Final = "webhooks.json"
#: How secrets begin, and the sizes of their keys (Standard Webhooks).
_PREFIX: Final = "whsec_"
_KEY_BYTES: Final = range(24, 65)
#: The type of the facts by which people are told. They are about messages, not about calls, so an
#: endpoint receives them only if it names them.
_ABOUT_MESSAGES: Final = "Notified"
#: With more subjects it is as fast to read all facts.
_MAX_SUBJECTS: Final = 64


class Endpoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where facts are sent, and which."""

    name: str
    url: str
    #: As Standard Webhooks writes a key: `whsec_` and Base64.
    secret: str
    #: The DNS name by which the receiver knows this ledger.
    origin: str
    #: The types of facts; none for all but `Notified`.
    types: tuple[str, ...] = ()
    #: The workspaces; none for all.
    workspaces: tuple[str, ...] = ()
    #: Whether it may be on this machine or in its network.
    allow_private: bool = False
    #: A proxy that resolves the name and connects; empty: none.
    proxy: str = ""
    #: How often a fact is sent before it is parked; the first pause, which doubles each time.
    tries: int = 8
    backoff_s: float = 5.0
    #: For all of one request.
    timeout_s: float = 15.0
    #: The secret before this one, and until when requests are signed with both.
    former_secret: str = ""
    former_until: datetime | None = None
    #: When it agreed to be sent facts, which are those recorded since; None: it has not.
    verified_at: datetime | None = None

    def __repr__(self) -> str:
        """Omit the secret, and the URL, which may hold one, since this ends up in logs."""
        return f"Endpoint({self.name!r})"

    def secrets(self, now: datetime) -> list[str]:
        """What its requests are signed with now, the newest first."""
        if self.former_until is None or now >= self.former_until:
            return [self.secret]
        return [self.secret, self.former_secret]

    def wants(self, fact: Fact) -> bool:
        """Whether it is sent facts like this one."""
        kind = kind_of(fact)
        is_type = kind in self.types if self.types else kind != _ABOUT_MESSAGES
        return is_type and (not self.workspaces or fact.slot.workspace in self.workspaces)

    @property
    def subjects(self) -> tuple[str, ...]:
        """The subjects of all facts that it may want; none for all."""
        shapes = [
            tuple("*" if one in {"#", "%"} else one for one in shape)
            for shape, types in FILLED_BY.items()
            if not self.types or {one.__name__ for one in types} & {*self.types}
        ]
        tails = [".".join((*(() if one[0][0] == "_" else ("*",)), *one)) for one in shapes]
        if not self.types:
            tails = [">"]
        found = [f"{ROOT}.{where}.{tail}" for where in self.workspaces or ("*",) for tail in tails]
        return tuple(found) if found != [f"{ROOT}.*.>"] and len(found) <= _MAX_SUBJECTS else ()

    def receives(self, fact: Fact) -> bool:
        """Whether it is sent this fact: it agreed before the fact was recorded."""
        return (
            self.verified_at is not None
            and fact.recorded_at >= self.verified_at
            and self.wants(fact)
        )


class Standing(Struct, frozen=True, omit_defaults=True):
    """How an endpoint is doing."""

    #: The first fact that it may lack, noted each second; 0: none was sent.
    next: int = 0
    #: Whether that one was recorded long ago.
    late: bool = False
    #: Why its last request failed; empty if it did not.
    why: str = ""
    failing_since: datetime | None = None
    last_success: datetime | None = None
    #: Why it is sent nothing more; empty: it is.
    gone: str = ""
    #: The facts that were parked because of it, and why.
    parked: dict[int, str] = {}


class EndpointStatus(Struct, frozen=True):
    """An endpoint for operators: how it is doing, without its URL and secret."""

    #: The name of the endpoint.
    name: str
    #: `not verified`, `in step`, `behind`, `failing` or `gone`.
    standing: str
    #: Why its last request failed; empty if it did not.
    problem: str
    #: Since when its requests fail; None: they do not.
    failing_since: datetime | None
    #: When it last took a fact; None: never.
    last_success: datetime | None
    #: The first fact that it may lack; None: none.
    behind_from: int | None
    #: The facts that were parked because of it.
    parked: list[int]

    @classmethod
    def of(cls, one: Endpoint, standing: Standing) -> "EndpointStatus":
        return cls(
            one.name,
            _in_a_word(one, standing),
            standing.gone or standing.why,
            standing.failing_since,
            standing.last_success,
            standing.next if standing.late or standing.failing_since else None,
            [*standing.parked],
        )

    @property
    def is_alarming(self) -> bool:
        return self.standing in {"failing", "gone"}

    def __str__(self) -> str:
        """As in `webhook crm is failing since 2026-11-21 08:50:00 UTC: it answered 500`."""
        said = f"webhook {self.name} is {self.standing}"
        if self.failing_since:
            said += f" since {_time(self.failing_since)}"
        if self.problem:
            said += f": {self.problem}"
        if self.behind_from:
            said += f"; it lacks facts from {self.behind_from} on"
        if self.last_success:
            said += f"; last success {_time(self.last_success)}"
        return said


def _in_a_word(one: Endpoint, standing: Standing) -> str:
    if one.verified_at is None:
        return "not verified"
    if standing.gone:
        return "gone"
    if standing.failing_since:
        return "failing"
    return "behind" if standing.late else "in step"


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


class Endpoints(Struct, frozen=True):
    """The content of `webhooks.json`."""

    endpoints: dict[str, Endpoint] = {}


class Standings(Struct, frozen=True):
    """The content of `webhooks.state.json`."""

    endpoints: dict[str, Standing] = {}

    def of(self, name: str) -> Standing:
        return self.endpoints.get(name, Standing())


class EndpointFile(PrivateFile[Endpoints]):
    """The endpoints, and beside them how they are doing.

    Args:
        path: of `webhooks.json`, or of a file in its place.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, Endpoints(), "webhooks")
        state = path.with_suffix(".state.json")
        self.standings = PrivateFile(state, Standings(), "webhooks", lock=self.lock)
        #: Held by the process that sends.
        self.sending = path.with_suffix(".sending.lock")

    def named(self, name: str) -> Endpoint:
        """The endpoint of that name.

        Raises:
            BadInput: there is none.
        """
        found = self.read().endpoints
        if name not in found:
            known = f"There are: {', '.join(found)}." if found else "There are none."
            raise BadInput(f"there is no webhook {name!r} in {self.path}. {known}")
        return found[name]

    def statuses(self) -> list[EndpointStatus]:
        """How each endpoint is doing."""
        standings = self.standings.read()
        return [
            EndpointStatus.of(one, standings.of(one.name)) for one in self.read().endpoints.values()
        ]

    def add(self, endpoint: Endpoint) -> None:
        """Add an endpoint.

        Raises:
            BadInput: there is one of that name.
        """

        def added(there: Endpoints) -> Endpoints:
            if endpoint.name in there.endpoints:
                raise BadInput(
                    f"there is a webhook {endpoint.name!r} already. Choose another name, or remove "
                    f"it: ayes webhooks rm {endpoint.name}"
                )
            return Endpoints(there.endpoints | {endpoint.name: endpoint})

        self.change(added)

    def verify(self, name: str, at: datetime) -> None:
        """Note that an endpoint agreed, and forget how it was doing before."""
        self._change(name, lambda one: replace(one, verified_at=at))
        self.note(name, lambda before: Standing(parked=before.parked))

    def rotate(self, name: str, secret: str, until: datetime) -> None:
        """Sign with a new secret, and with the one before it too for some time.

        Raises:
            BadInput: there is no such endpoint, or the secret is none.
        """
        self.named(name)
        check_secret(secret)

        def rotated(one: Endpoint) -> Endpoint:
            if one.secret == secret:
                raise BadInput(f"{name} has this secret already. Leave it out to have one made.")
            return replace(one, secret=secret, former_secret=one.secret, former_until=until)

        self._change(name, rotated)

    def _change(self, name: str, change: Callable[[Endpoint], Endpoint]) -> None:
        self.named(name)
        self.change(
            lambda there: Endpoints(there.endpoints | {name: change(there.endpoints[name])})
        )

    def remove(self, name: str) -> None:
        """Remove an endpoint.

        Raises:
            BadInput: there is none of that name.
        """
        self.named(name)
        self.change(lambda there: Endpoints(_without(there.endpoints, name)))
        self.standings.change(lambda there: Standings(_without(there.endpoints, name)))

    def note(self, name: str, change: Callable[[Standing], Standing]) -> Standing:
        """Change how an endpoint is doing; nothing if there is none of that name."""

        def noted(there: Standings) -> Standings:
            if name not in self.read().endpoints:
                return there
            return Standings(there.endpoints | {name: change(there.of(name))})

        return self.standings.change(noted).of(name)


def _without[V](known: dict[str, V], name: str) -> dict[str, V]:
    return {one: value for one, value in known.items() if one != name}


def new_secret() -> str:
    """A new key of 256 random bits."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def check(endpoint: Endpoint) -> None:
    """Refuse an endpoint that could not be sent to.

    Raises:
        BadInput: a part of it is not valid.
    """
    token("webhook", endpoint.name)
    _check_url(endpoint)
    if endpoint.proxy and not endpoint.proxy.startswith(("http://", "https://")):
        raise BadInput("--proxy is a URL such as http://proxy.example.com:3128.")
    check_secret(endpoint.secret)
    if unknown := sorted({*endpoint.types} - {*TYPES}):
        raise BadInput(
            f"there are no facts of the type {', '.join(map(repr, unknown))}. The types are: "
            f"{', '.join(sorted(TYPES))}."
        )
    for workspace in endpoint.workspaces:
        token("workspace", workspace)
    if not endpoint.origin or not set(endpoint.origin) <= _DNS:
        raise BadInput(f"--origin {endpoint.origin!r} is not a DNS name such as ayes.example.com.")


_DNS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.")


def _check_url(endpoint: Endpoint) -> None:
    try:
        parts = urlsplit(endpoint.url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in {"https", "http"} or not endpoint.url.isprintable():
        raise BadInput(
            "the URL of a webhook looks like https://hooks.example.com/ayes, and this one does not."
        )
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise BadInput(
            "the URL of a webhook has no user, password or fragment. Its requests are signed "
            "instead."
        )
    if parts.scheme == "http" and not endpoint.allow_private:
        raise BadInput(
            "http:// is only for addresses of this machine or its network (--allow-private). "
            "Use https://."
        )


def check_secret(secret: str) -> None:
    """Refuse a secret that is none.

    Raises:
        BadInput: it has another form, or another size.
    """
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(_PREFIX) or len(key) not in _KEY_BYTES:
        raise BadInput(
            f"the secret of a webhook is {_PREFIX} followed by 24 to 64 bytes in Base64. Leave it "
            "out to have one made."
        )
