"""Reading for logins that have some workspaces only.

What a request to the JetStream API reads is in its body, which no permission checks. So the broker
denies these logins the whole API, and they ask here, in the same words:

    reads.<login>.<workspaces>.<request>     such as reads.billing.shop+store.DIRECT.GET.LEDGER

The broker vouches for login and workspaces, since a login may publish below its own prefix alone
(`accounts.py`). A request whose subjects all are in these workspaces is written anew and passed on,
with the reply subject of whoever asked, who hears the broker's own answer. The JetStream API
answers across accounts only whom it knows, so what it answers is passed back; direct gets, by which
facts are read, are not slowed down by that.

The service has no state: any number of processes may run it, for one broker or for a cluster. While
none does, scoped logins can write and not read; the broker says so at once. Decision 0070 has what
else was measured.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec
import nats.errors
from msgspec import Struct

from ayes.ledger.nats.api import PATIENCE_S, Api
from ayes.ledger.nats.connection import Connection
from ayes.ledger.nats.credentials import Login
from ayes.ledger.nats.protocol import NatsMessage, frame, settled, subscription_number, write
from ayes.ledger.nats.scopes import is_within
from ayes.ledger.nats.streams import PENDING, READER_GONE_S, RUNNING, STORED, of_all
from ayes.ledger.subscriptions import DURABLES, LEDGER, PARKED, kind_of
from ayes.schemas.errors import Unavailable
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import matches

_log: Final = get_logger("ayes.ops.broker.reads")
#: The streams that scoped logins may read, and those that they may follow.
READ: Final = (LEDGER, PENDING, RUNNING, STORED, PARKED)
FOLLOWED: Final = (LEDGER, PENDING, RUNNING)
#: The streams with durables of such logins.
QUEUED: Final = (LEDGER, PARKED)
#: Requests of one login that are in hand at once.
_AT_ONCE: Final = 256
_TYPE: Final = "io.nats.jetstream.api.v1."
_GONE_NS: Final = READER_GONE_S * 1_000_000_000


class ReadRefused(Exception):
    """What a request asks for is not to be read: the broker's words for that."""

    def __init__(self, description: str, code: int = 403, err_code: int = 0) -> None:
        self.error = {"code": code, "err_code": err_code, "description": description}
        super().__init__(description)


class _Get(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The body of a direct get, or of `STREAM.MSG.GET` (ADR-31)."""

    seq: int = 0
    last_by_subj: str = ""
    next_by_subj: str = ""
    multi_last: tuple[str, ...] = ()
    batch: int = 0
    max_bytes: int = 0
    start_time: str = ""
    up_to_seq: int = 0
    up_to_time: str = ""

    @property
    def subjects(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.last_by_subj, self.next_by_subj, *self.multi_last)))


class _Info(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The body of `STREAM.INFO`."""

    subjects_filter: str = ""
    offset: int = 0


class _Config(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The configuration of a consumer that pushes to its reader, without acknowledgements."""

    deliver_subject: str
    name: str = ""
    description: str = ""
    deliver_policy: str = "all"
    opt_start_seq: int = 0
    opt_start_time: str = ""
    ack_policy: str = "none"
    ack_wait: int = 0
    max_deliver: int = -1
    max_ack_pending: int = 0
    replay_policy: str = "instant"
    filter_subject: str = ""
    filter_subjects: tuple[str, ...] = ()
    flow_control: bool = False
    idle_heartbeat: int = 0
    headers_only: bool = False
    inactive_threshold: int = 0
    mem_storage: bool = True
    num_replicas: int = 1
    metadata: dict[str, str] = {}


class _Create(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The body of `CONSUMER.CREATE`. That it creates, and changes none that there is, is added."""

    stream_name: str
    config: _Config
    action: str = ""


class ApiRequest(NamedTuple):
    """A request to the JetStream API as it is passed on."""

    subject: str
    body: bytes
    #: What becomes of the answer; None: the broker sends it to whoever asked.
    answer: Callable[[dict[str, Any]], dict[str, Any]] | None = None


def passed_on(asked: str, body: bytes, login: str, workspaces: tuple[str, ...]) -> ApiRequest:
    """What is asked of the broker for this login.

    Args:
        asked: the request, without the prefix.

    Raises:
        ReadRefused: it is not only about these workspaces, or there is no such request for them.
    """
    try:
        match asked.split("."):
            case ["DIRECT", "GET", stream, *named] if stream in READ:
                get = _Get(last_by_subj=".".join(named)) if named else _decoded(body, _Get)
                _check(get.subjects, workspaces, login)
                if (get.seq or get.start_time) and not get.next_by_subj:
                    raise ReadRefused("a place in the stream goes with `next_by_subj` only", 400)
                return ApiRequest(f"$JS.API.DIRECT.GET.{stream}", msgspec.json.encode(get))
            case ["STREAM", "MSG", "GET", stream] if stream in READ:
                get = _decoded(body, _Get)
                return _of_leader(stream, get, workspaces, login)
            case ["STREAM", "INFO", stream] if stream in READ:
                info = _decoded(body or b"{}", _Info)
                if info.subjects_filter:
                    _check((info.subjects_filter,), workspaces, login)
                return ApiRequest(
                    f"$JS.API.STREAM.INFO.{stream}", msgspec.json.encode(info), _shown
                )
            case ["CONSUMER", "INFO", stream, name] if stream in QUEUED and _is_own(name, login):
                return ApiRequest(f"$JS.API.CONSUMER.INFO.{stream}.{name}", b"", _without_start)
            case ["CONSUMER", "CREATE", stream, *named] if stream in FOLLOWED:
                create = _decoded(body, _Create)
                return _follow(stream, named, create, login, workspaces)
            case _:
                raise ReadRefused("a login with some workspaces only may not ask for this")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise ReadRefused(f"the request cannot be read: {problem}", 400) from None


def _decoded[T](body: bytes, kind: type[T]) -> T:
    # Strictly, and then written anew: the broker reads names of fields without case, and ignores
    # what it does not know.
    return msgspec.json.decode(body, type=kind)


def _check(subjects: tuple[str, ...], workspaces: tuple[str, ...], login: str) -> None:
    if not subjects:
        raise ReadRefused("the request names no subjects")
    for one in subjects:
        if not (_is_subject(one) and is_within(one, workspaces, login)):
            raise ReadRefused(f"a subject is not only of the workspaces {', '.join(workspaces)}")


def _is_subject(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def _of_leader(stream: str, get: _Get, workspaces: tuple[str, ...], login: str) -> ApiRequest:
    if get.subjects:
        _check(get.subjects, workspaces, login)

    def answer(found: dict[str, Any]) -> dict[str, Any]:
        # By its number alone a message may be anybody's.
        subject = found.get("message", {}).get("subject", "")
        if subject and not is_within(subject, workspaces, login):
            error = ReadRefused("no message found", 404, 10037).error
            return {"type": f"{_TYPE}stream_msg_get_response", "error": error}
        return found

    return ApiRequest(f"$JS.API.STREAM.MSG.GET.{stream}", msgspec.json.encode(get), answer)


def _shown(found: dict[str, Any]) -> dict[str, Any]:
    """The description of a stream without what it says of the others: how much they have."""
    state = found.get("state", {})
    kept = {name: state[name] for name in ("last_seq", "subjects") if name in state}
    if not state:
        return found
    return found | {"state": kept, "config": of_all(found["config"])}


def _is_own(durable: str, login: str) -> bool:
    """Whether a durable is that of this login, or for what it parked."""
    return durable in {f"{login}@{kind}" for kind in DURABLES}


def _without_start(found: dict[str, Any]) -> dict[str, Any]:
    """The description of a consumer without the time by which it could be changed."""
    config = found.get("config", {})
    kept = {key: value for key, value in config.items() if key != "opt_start_time"}
    return found | {"config": kept} if config else found


def _follow(
    stream: str, named: list[str], create: _Create, login: str, workspaces: tuple[str, ...]
) -> ApiRequest:
    config = create.config
    _check(config.filter_subjects or (config.filter_subject,), workspaces, login)
    if not is_own_inbox(config.deliver_subject, login) or config.ack_policy != "none":
        raise ReadRefused(f"a consumer delivers to _INBOX.{login}.> and has no acknowledgements")
    if kind_of((*named, "")[0]) in DURABLES:
        raise ReadRefused("the consumers of workers have this name")
    config.name, config.mem_storage, config.num_replicas = (*named, "")[0], True, 1
    config.inactive_threshold = min(config.inactive_threshold or _GONE_NS, _GONE_NS)
    body = msgspec.json.encode(_Create(stream, config, "create"))
    subject = ".".join(("$JS.API.CONSUMER.CREATE", stream, *named))
    return ApiRequest(subject, body, lambda found: found)


def is_own_inbox(subject: str, login: str) -> bool:
    """Whether a subject is one that this login alone may hear."""
    is_literal = _is_subject(subject) and not {"*", ">"}.intersection(subject)
    return is_literal and matches(f"_INBOX.{login}.>", subject)


class Reads:
    """The service on one connection."""

    def __init__(self, login: Login) -> None:
        self._connection = Connection(login)
        self._api = Api(self._connection)
        self._tasks: set[asyncio.Task[None]] = set()
        self._held = Counter[str]()

    async def open(self) -> None:
        """Answer from here on. Errors as of `Connection.open`."""
        await self._connection.open(name="ayes reads")
        await self._api.start()
        asked = await self._connection.client.subscribe("reads.>", queue="reads")
        self._connection.straight[subscription_number(asked)] = self._take
        await settled(self._connection.client)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._connection.close()

    def _take(self, message: NatsMessage) -> None:
        subject, reply, data, _ = message
        _reads, login, scope, asked = subject.decode(errors="replace").split(".", 3)
        to = reply.decode(errors="replace")
        if not is_own_inbox(to, login):
            return  # nobody to whom it could be said
        if self._held[login] >= _AT_ONCE:
            # The broker's own words, by which clients ask again.
            busy = ReadRefused("too many requests", 429, 10167)
            self._begin(login, self._refuse(to, asked, busy))
            return
        self._begin(login, self._answer(to, asked, data, login, tuple(scope.split("+"))))

    def _begin(self, login: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        self._held[login] += 1

        def end(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            self._held[login] -= 1

        task.add_done_callback(end)

    async def _answer(
        self, to: str, asked: str, data: bytes, login: str, workspaces: tuple[str, ...]
    ) -> None:
        try:
            request = passed_on(asked, data, login, workspaces)
        except ReadRefused as refused:
            _log.debug("a read was refused", login=login, asked=asked, why=str(refused))
            await self._refuse(to, asked, refused)
            return
        with suppress(nats.errors.Error, Unavailable):  # who asked asks again
            if request.answer is None:
                await write(self._connection.client, frame(request.subject, request.body, to))
                return
            reply = await self._api.ask(request.subject, request.body, PATIENCE_S)
            found = request.answer(msgspec.json.decode(reply.data))
            await self._api.tell(to, msgspec.json.encode(found))

    async def _refuse(self, to: str, asked: str, refused: ReadRefused) -> None:
        with suppress(nats.errors.Error):
            if asked.startswith("DIRECT."):
                head = f"NATS/1.0 {refused.error['code']} refused\r\n\r\n".encode()
                sized = f"{to} {len(head)} {len(head)}"
                await write(self._connection.client, f"HPUB {sized}\r\n".encode() + head + b"\r\n")
                return
            kind = "_".join(asked.split(".")[: 3 if ".MSG." in asked else 2]).lower()
            said = {"type": f"{_TYPE}{kind}_response", "error": refused.error}
            await self._api.tell(to, msgspec.json.encode(said))
