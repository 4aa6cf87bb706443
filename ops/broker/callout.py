"""Logins of roles and people (NATS auth callout, ADR-26).

The broker asks this service about each login but those of `admin` and `system`. The service knows
the passwords of `address.json`, to which any process of the store's owner may add a person without
a reload of the broker's accounts (decision 0029). It answers with a token: the role's account, or
`people`, and the permissions of that connection alone.

    broker                                                  service
      | $SYS.REQ.USER.AUTH  {user_nkey, user, pass, name} --> |
      | <-----  token for user_nkey: account, permissions      |

A login with a name of its own (`ayes auth`) has a key in place of a password: the question has the
public key, the random number that the server sent, and the client's signature of it.

**Each connection has an inbox of its own** (decision 0053). A client chooses an unguessable token
and names it at the end of the connection's name, `inbox=TOKEN`. It may subscribe to
`_INBOX.<user>.TOKEN.>` and to no other inbox. One that names none gets `_INBOX.<user>._.>`.

The tokens are JWTs with NATS's own algorithm name, signed with a key that exists only while the
broker runs. Only this service has a login of the account `callout`, and that account imports
nothing, so nobody else sees a request or can answer one.
"""

import asyncio
import base64
import hmac
import re
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg

from ayes.ledger.nats.connection import Connection
from ayes.ledger.nats.credentials import Address, Login, Store
from ayes.ledger.nats.keys import ACCOUNT, Key, has_signed
from ayes.ledger.nats.protocol import settled
from ayes.ops.broker.accounts import ANSWERS_FOR_S, REVIEWER, account_of, permissions
from ayes.ops.broker.floods import Floods
from ayes.ops.broker.reads import Reads
from ayes.schemas.base64url import base64url
from ayes.schemas.errors import ApprovalsError, BadInput
from ayes.schemas.ids import new_id
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.ops.broker.callout")
_SUBJECT: Final = "$SYS.REQ.USER.AUTH"
#: How long the connection of a person or a key lasts before it has to sign on again, in seconds.
LASTS_S: Final = 900.0
#: How a connection's name ends that names its inbox.
_NAMED: Final = re.compile(r"\binbox=([A-Za-z0-9_-]{16,64})\Z")
#: The pause between attempts to reconnect. Nobody can sign on before this service is back.
_BACK_S: Final = 0.01


class _ConnectOptions(Struct):
    user: str = ""
    password: str = msgspec.field(default="", name="pass")
    #: The public key that signs on, and its signature.
    nkey: str = ""
    sig: str = ""
    #: The name of the connection.
    name: str = ""


class _ClientInfo(Struct):
    #: The random number that the server sent.
    nonce: str = ""


class _ServerId(Struct):
    id: str


class _Question(Struct):
    server_id: _ServerId
    user_nkey: str
    connect_opts: _ConnectOptions
    client_info: _ClientInfo = msgspec.field(default_factory=_ClientInfo)


class _AuthRequest(Struct):
    nats: _Question


class Issuer:
    """A key pair that signs tokens, as an account of NATS."""

    def __init__(self) -> None:
        self._key = Key(ACCOUNT)
        self.public = self._key.public

    def token(
        self,
        subject: str,
        audience: str,
        nats: dict[str, Any],
        name: str = "",
        lasts_s: float | None = None,
    ) -> str:
        """A signed token (jwt v2 of nats-io)."""
        header = {"typ": "JWT", "alg": "ed25519-nkey"}
        claims = {
            "jti": new_id(),
            "iat": int(time.time()),
            "iss": self.public,
            "sub": subject,
            "aud": audience,
            "name": name,
            "nats": nats | {"version": 2},
        } | ({} if lasts_s is None else {"exp": int(time.time() + lasts_s)})
        signed = ".".join(base64url(msgspec.json.encode(one)) for one in (header, claims))
        return f"{signed}.{base64url(self._key.sign(signed.encode()))}"


@asynccontextmanager
async def answering(
    store: Store, issuer: Issuer, login: Login, reads: Login, floods: Floods
) -> AsyncGenerator[None]:
    """Answer the broker's questions about logins, and what scoped ones read (reads.py), and end
    floods (floods.py), for as long as the block lasts.

    In a thread of its own, so that nobody waits to sign on while this event loop is busy.
    """
    loop, connection, reading = asyncio.new_event_loop(), Connection(login), Reads(reads)
    thread = threading.Thread(target=loop.run_forever, name="callout", daemon=True)
    thread.start()

    async def there(work: Coroutine[Any, Any, None]) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    try:
        await there(_answer(connection, store, issuer, floods))
        await there(reading.open())
        await there(floods.open())
        yield
    finally:
        await there(floods.close())
        await there(reading.close())
        await there(connection.close())
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()


async def _answer(connection: Connection, store: Store, issuer: Issuer, floods: Floods) -> None:
    await connection.open(name="ayes callout")
    client: Client = connection.client
    client.options["reconnect_time_wait"] = _BACK_S

    async def answer(message: Msg) -> None:
        await message.respond(answer_to(message.data, store, issuer, floods.check).encode())

    await client.subscribe(_SUBJECT, cb=answer)
    await settled(client)


def answer_to(
    request: bytes, store: Store, issuer: Issuer, check: Callable[[str], None] = lambda _: None
) -> str:
    """The answer to one question: a token for the login, or the reason why there is none.

    Args:
        check: raises if a login that is known may not sign on for now.
    """
    question = _claims(request).nats
    asked = question.connect_opts
    try:
        address = store.read()
        if asked.nkey:
            who = _by_key(address, asked, question.client_info.nonce)
        else:
            who = _by_password(address, asked)
        check(who.name)
        inbox = named[1] if (named := _NAMED.search(asked.name)) else "_"
        answer = {"jwt": _user_token(issuer, question.user_nkey, who, inbox)}
    except ApprovalsError as problem:
        user = (asked.nkey or asked.user)[:80]
        _log.info("a login was refused", user=user, reason=str(problem))
        answer = {"error": str(problem)}
    body = answer | {"type": "authorization_response"}
    return issuer.token(question.user_nkey, question.server_id.id, body)


class _User(NamedTuple):
    """Somebody who may sign on."""

    name: str
    role: str
    workspaces: tuple[str, ...]
    #: After how long they have to do it again; None: never.
    lasts_s: float | None


def _by_password(address: Address, asked: _ConnectOptions) -> _User:
    name, known = asked.user, address.passwords.get(asked.user, "")
    if not known or not hmac.compare_digest(known.encode(), asked.password.encode()):
        raise BadInput("unknown user or wrong password")
    lasts_s = LASTS_S if name.startswith(REVIEWER) else None
    return _User(name, name, address.scope(name), lasts_s)


def _by_key(address: Address, asked: _ConnectOptions, nonce: str) -> _User:
    found = [(name, one) for name, one in address.logins.items() if one.key == asked.nkey]
    if not found or not has_signed(asked.nkey, nonce, asked.sig):
        raise BadInput("unknown key or wrong signature")
    [(name, login)] = found
    left_s = (login.ends_at - datetime.now(UTC)).total_seconds()
    if left_s <= 0:
        raise BadInput(f"the login {name} ended at {login.ends_at:%Y-%m-%d %H:%M} UTC")
    if (scope := address.scope(login.role)) and not within(login.workspaces, scope):
        raise BadInput(f"the login {name} has workspaces that are not those of {login.role}")
    return _User(name, login.role, login.workspaces, min(LASTS_S, left_s))


def within(workspaces: tuple[str, ...], scope: tuple[str, ...]) -> bool:
    """Whether workspaces (none: all of them) are among those of a scope."""
    return bool(workspaces) and set(workspaces) <= set(scope)


def _user_token(issuer: Issuer, user_nkey: str, who: _User, inbox: str) -> str:
    may = permissions(who.role, inbox=inbox, login=who.name, workspaces=who.workspaces)
    body: dict[str, Any] = {
        "type": "user",
        "pub": {"allow": may.allowed["publish"], "deny": may.denied},
        "sub": {"allow": may.allowed["subscribe"]},
        # Without limits.
        "subs": -1,
        "data": -1,
        "payload": -1,
    }
    if may.answered:
        body["resp"] = {"max": 1, "ttl": ANSWERS_FOR_S * 1_000_000_000}
    account = account_of(who.role, who.workspaces, callout=True)
    return issuer.token(user_nkey, account, body, who.name, who.lasts_s)


def _claims(token: bytes) -> _AuthRequest:
    payload = token.split(b".")[1]
    raw = base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4))
    return msgspec.json.decode(raw, type=_AuthRequest)
