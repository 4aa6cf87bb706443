"""Requests to the broker over one inbox: one answer, or a stream of them.

nats-py's own `request` does not know that the broker *denied* the subject: it waits until the time
is up. Here a denial fails the request at once, with the subject named.

Whoever may ask the broker can name any reply subject, so an answer is believed only if nobody could
have predicted its subject, and if it fits the question. Any other message is ignored, and the
request goes on waiting (decision 0053).
"""

import asyncio
import functools
import secrets
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec
import nats.errors
from msgspec import MsgspecError, Struct

from ayes.ledger.nats import scopes
from ayes.ledger.nats.connection import Connection
from ayes.ledger.nats.protocol import (
    NatsMessage,
    OnMessage,
    frame,
    is_clustered,
    subscription_number,
    write,
)
from ayes.schemas.backoff import Backoff
from ayes.schemas.errors import BrokerAway, BrokerRefused
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import matches

_log: Final = get_logger("ayes.ledger.nats.api")
#: How long one answer may take.
PATIENCE_S: Final = 5.0
#: The pause before a read is sent again, perhaps to another replica; it doubles each time.
PAUSES: Final = Backoff(0.3, 60.0)
_NOBODY: Final = b"503"
#: Errors that pass by themselves, by their number in nats-server's `server/errors.json`: incomplete
#: results, not assigned to this server yet, temporarily unavailable (no leader), not the leader,
#: JetStream not enabled for the account or at all (so answers a server that is stopping), stream or
#: consumer offline, not ready yet, too many requests.
PASSING: Final = frozenset({10004, 10007, 10008, 10009, 10039, 10076, 10118, 10119, 10163, 10167})
#: "JetStream system temporarily unavailable": the nodes have no leader among them.
_NO_META_LEADER: Final = 10008
_VERSION: Final = b"NATS/1.0 "
_STORED: Final = b"\r\nNats-Sequence: "


class NatsReply(Struct, frozen=True, gc=False):
    """A reply of the broker. Headers are parsed on access: most replies are data alone."""

    data: bytes
    head: bytes

    @property
    def status(self) -> bytes:
        """Three digits; empty for data.

        The publisher of a stored message can make its first line look like a status. The broker
        adds the sequence to stored messages, but never to a status of its own.
        """
        is_status = self.head.startswith(_VERSION) and _STORED not in self.head
        return self.head[9:12] if is_status else b""

    @property
    def headers(self) -> dict[str, str]:
        return header_lines(self.head)


class ApiError(BrokerRefused):
    """The JetStream API answered with an error that does not pass by itself."""

    def __init__(self, subject: str, error: Mapping[str, Any]) -> None:
        #: As in HTTP; 404: there is no such thing.
        self.code = int(error.get("code", 0))
        #: NATS's own number for the reason.
        self.err_code = int(error.get("err_code", 0))
        self.description = str(error.get("description", ""))
        super().__init__(f"the broker refuses {subject}: {self.description}.")


class PubAckError(Struct, frozen=True):
    #: As in HTTP. 503 is also the code of a stream that is full.
    code: int = 0
    err_code: int = 0
    description: str = ""

    @property
    def is_no_responders(self) -> bool:
        """Whether no stream took the message."""
        return self.code == int(_NOBODY) and not self.err_code


class Ack(Struct, frozen=True):
    """The broker's answer to a publish: a sequence or a refusal."""

    seq: int = 0
    error: PubAckError | None = None
    stream: str = ""
    #: The id of the batch that this acknowledges.
    batch: str = ""


#: Whether a reply is an answer to the question.
type Fits = Callable[[NatsReply], bool]


class Answers(Protocol):
    """The collected answers to a request that has several."""

    def add(self, reply: NatsReply) -> bool:
        """Add an answer, unless it does not fit the question. Return whether it is the last one."""
        ...


class Api:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._client = connection.client
        self.probe = connection.probe
        self._prefix = f"{connection.inbox}.api"
        login = connection.login
        #: The beginning of requests to the JetStream API.
        self.jetstream = scopes.prefix(login.user, login.scope) if login.scope else "$JS.API"
        self._waiting: dict[bytes, tuple[Fits, asyncio.Future[NatsReply]]] = {}
        self._streams: dict[bytes, tuple[Answers, asyncio.Future[NatsReply]]] = {}
        #: The waiting requests by subject, so that a denial finds them.
        self._by_subject: defaultdict[str, set[asyncio.Future[NatsReply]]] = defaultdict(set)
        connection.on_denied(self._denied)

    async def start(self) -> None:
        """Begin to hear answers.

        Raises:
            BrokerAway: the broker has ended the connection, as it may when its accounts change.
        """
        try:
            answers = await self._client.subscribe(f"{self._prefix}.*")
        except nats.errors.ConnectionClosedError:
            raise BrokerAway("the broker ended the connection as soon as it had begun.") from None
        self._connection.straight[subscription_number(answers)] = self._answered

    async def send(
        self,
        subject: str,
        payload: bytes,
        headers: Mapping[str, str] | None = None,
        *,
        after: bytes = b"",
        fits: Fits = lambda _reply: True,
    ) -> asyncio.Future[NatsReply]:
        """Publish a request and return the future of its answer.

        Args:
            after: frames without answers that are sent just before: the members of a batch.
            fits: what the answer must be, besides the status that nobody listens.

        Raises:
            BrokerAway: the connection is down and its buffer is full, or it is closed.
        """
        token = _token()
        answer = self._expect(subject)
        self._waiting[token] = fits, answer
        answer.add_done_callback(lambda _: self._waiting.pop(token, None))
        await self._publish(subject, payload, token, answer, headers, after)
        return answer

    async def tell(self, subject: str, payload: bytes) -> None:
        """Publish a message without an answer, such as an acknowledgement.

        Raises:
            nats.errors.Error: the connection is closed, or down and its buffer full.
        """
        await write(self._client, frame(subject, payload))

    async def ask(
        self,
        subject: str,
        payload: bytes,
        patience_s: float = PATIENCE_S,
        *,
        repeat: bool = False,
        fits: Fits = lambda _reply: True,
    ) -> NatsReply:
        """One request, one answer.

        Args:
            repeat: send it again while no answer comes, since it changes nothing, or nothing more.
            fits: as for `send`.

        Raises:
            BrokerAway: no answer within `patience_s`.
            BrokerRefused: these credentials may not publish to `subject`.
        """

        async def once() -> asyncio.Future[NatsReply]:
            return await self.send(subject, payload, fits=fits)

        answer = await self._patiently(once, subject, patience_s, repeat=repeat)
        return answer.result()

    async def call(
        self,
        subject: str,
        body: Any = None,
        *,
        repeat: bool = False,
        patience_s: float | None = None,
    ) -> dict[str, Any]:
        """Return the JetStream API's answer to a request.

        Args:
            subject: without the prefix `$JS.API`.
            body: sent as JSON; None for an empty request.
            repeat: as for `ask`.
            patience_s: by default `PATIENCE_S`.

        Raises:
            ApiError: it answers with an error.
            BrokerAway: it answered with an error that passes by itself, until the time was up; or
                see `ask`.
            BrokerRefused: see `ask`.
        """
        raw = b"" if body is None else msgspec.json.encode(body)
        fits = functools.partial(_is_answer, subject, body or {})
        patience_s = patience_s or PATIENCE_S
        until, pauses = asyncio.get_running_loop().time() + patience_s, PAUSES.pauses()
        while True:
            asked = f"{self.jetstream}.{subject}"
            reply = await self.ask(asked, raw, patience_s, repeat=repeat, fits=fits)
            answer: dict[str, Any] = msgspec.json.decode(reply.data)
            if (error := answer.get("error")) is None:
                return answer
            problem = ApiError(subject, error)
            if problem.err_code not in PASSING:
                raise problem
            pause_s = next(pauses)
            if asyncio.get_running_loop().time() + pause_s > until:
                raise self._passing(
                    subject, problem.description, no_leader=problem.err_code == _NO_META_LEADER
                )
            await asyncio.sleep(pause_s)

    async def publish(
        self,
        subject: str,
        raw: bytes,
        headers: Mapping[str, str] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> Ack:
        """Publish to a stream and return its answer.

        Raises:
            BrokerAway: no stream answered within `patience_s`; the message may be stored.
            BrokerRefused: these credentials may not publish to `subject`.
        """
        sent = await self.send(subject, raw, headers, fits=is_ack)
        try:
            async with asyncio.timeout(patience_s):
                ack = ack_of(await sent)
        except TimeoutError as problem:
            raise BrokerAway(f"the broker did not take {subject}: {problem!r}.") from None
        if ack.error is not None and ack.error.is_no_responders:
            raise BrokerAway(f"the broker did not take {subject}: {ack.error.description}.")
        return ack

    async def collect[A: Answers](
        self, subject: str, payload: bytes, new: Callable[[], A]
    ) -> tuple[A, NatsReply]:
        """One request with many answers: these, and the last one.

        For reads: the request is sent again while the last answer does not come.

        Args:
            new: the answers to one sending, empty.

        Raises:
            BrokerAway: the last answer did not come within `PATIENCE_S`.
            BrokerRefused: these credentials may not publish to `subject`.
        """
        collected: dict[asyncio.Future[NatsReply], A] = {}

        async def once() -> asyncio.Future[NatsReply]:
            token = _token()
            last = self._expect(subject)
            self._streams[token] = collected.setdefault(last, new()), last
            last.add_done_callback(lambda _: self._streams.pop(token, None))
            await self._publish(subject, payload, token, last)
            return last

        last = await self._patiently(once, subject, PATIENCE_S, repeat=True)
        return collected[last], last.result()

    @asynccontextmanager
    async def straight(
        self, subject: str, take: OnMessage, *, queue: str = ""
    ) -> AsyncGenerator[None]:
        """Pass each message on a subject to `take` as it is parsed: half the cost of a callback."""
        subscription = await self._client.subscribe(subject, queue)
        number = subscription_number(subscription)
        self._connection.straight[number] = take
        try:
            yield
        finally:
            try:
                if not self._client.is_closed:
                    await subscription.unsubscribe()
            except nats.errors.Error:
                _log.debug("could not unsubscribe", subject=subject)
            finally:
                # Last, so that a worker receives, and can return, what arrives until then.
                del self._connection.straight[number]

    async def _patiently(
        self,
        once: Callable[[], Awaitable[asyncio.Future[NatsReply]]],
        subject: str,
        patience_s: float,
        *,
        repeat: bool,
    ) -> asyncio.Future[NatsReply]:
        """Send the request as often as necessary; return the first answer."""
        asked: set[asyncio.Future[NatsReply]] = set()
        now = asyncio.get_running_loop().time
        until = now() + patience_s
        pauses = (PAUSES if repeat else Backoff(patience_s)).pauses()
        again_s = next(pauses)
        try:
            while (left := until - now()) > 0:
                asked.add(await once())
                done, asked = await asyncio.wait(
                    asked, timeout=min(again_s, left), return_when=asyncio.FIRST_COMPLETED
                )
                for one in done:
                    if one.result().status != _NOBODY:
                        return one
                if done:
                    # Nobody may listen for a moment: during a reload of accounts or an election.
                    await asyncio.sleep(0.05)
                else:
                    again_s = next(pauses)
            raise self._passing(subject, f"no answer within {patience_s:g} s")
        finally:
            for one in asked:
                one.cancel()

    def _passing(self, subject: str, problem: str, *, no_leader: bool = False) -> BrokerAway:
        """What to say of a broker that is there, and cannot answer for the moment."""
        if is_clustered(self._client):
            why = (
                "has no leader at the moment: a majority of its nodes must be up"
                if no_leader
                else "cannot answer at the moment"
            )
            return BrokerAway(
                f"the cluster at {self._connection.login.url} {why} ({subject}: {problem}). Try "
                "again in some seconds."
            )
        return BrokerAway(
            f"the broker at {self._connection.login.url} cannot answer {subject}: {problem}. Has "
            "it the ledger's streams? `ayes up` and an administrator's set-up create them."
        )

    async def _publish(
        self,
        subject: str,
        payload: bytes,
        token: bytes,
        answer: asyncio.Future[NatsReply],
        headers: Mapping[str, str] | None = None,
        after: bytes = b"",
    ) -> None:
        request = frame(subject, payload, f"{self._prefix}.{token.decode()}", headers)
        try:
            await write(self._client, after + request if after else request)
        except nats.errors.Error as problem:
            answer.cancel()
            raise BrokerAway(
                f"the broker at {self._connection.login.url} is away: {problem!r}"
            ) from None

    def _expect(self, subject: str) -> asyncio.Future[NatsReply]:
        answer: asyncio.Future[NatsReply] = asyncio.get_running_loop().create_future()
        key = subject.lower()
        self._by_subject[key].add(answer)

        def forget(done: asyncio.Future[NatsReply]) -> None:
            waiting = self._by_subject.get(key)
            if waiting is not None:
                waiting.discard(done)
                if not waiting:
                    del self._by_subject[key]

        answer.add_done_callback(forget)
        return answer

    def _answered(self, message: NatsMessage) -> None:
        subject, _, data, head = message
        token = subject.rpartition(b".")[2]
        answer = NatsReply(data, head)
        is_nobody = not data and answer.status == _NOBODY
        if (waiting := self._waiting.get(token)) is not None:
            fits, expected = waiting
            is_last = is_nobody or fits(answer)
        elif (stream := self._streams.get(token)) is not None:
            answers, expected = stream
            if expected.done():
                return  # what follows the last answer is none
            is_last = is_nobody or answers.add(answer)
        else:
            return  # too late: the caller has given up
        if is_last and not expected.done():
            expected.set_result(answer)

    def _denied(self, subject: str) -> None:
        # The client lower-cases what the server says, so the comparison is without case.
        for answer in tuple(self._by_subject.get(subject.lower(), ())):
            if not answer.done():
                answer.set_exception(
                    BrokerRefused(
                        f"the credentials of {self._connection.login.user or 'nobody'!r} may not "
                        f"write {subject}. Who may write what: docs/people.md, or `ayes doctor`."
                    )
                )


def by_leader(stream: dict[str, Any]) -> dict[str, Any]:
    """The description of a stream, if its leader gave it.

    While there is none, any replica answers, and may be behind.

    Raises:
        BrokerAway: the stream has no leader at the moment.
    """
    cluster = stream.get("cluster")
    if cluster is not None and not cluster.get("leader"):
        raise BrokerAway(
            f"stream {stream['config']['name']} has no leader at the moment: a majority of the "
            "cluster's nodes must be up. Try again in some seconds."
        )
    return stream


#: The number that an answer must have, by its type.
_COUNT: Final = {
    "stream_info": "last_seq",
    "consumer_info": "num_pending",
    "consumer_create": "num_pending",
}


def _is_answer(subject: str, body: Mapping[str, Any], reply: NatsReply) -> bool:
    """Whether a reply is the JetStream API's answer: an error, or of the request's type and about
    what was asked. A stored message has headers, and an answer has none.
    """
    try:
        return not reply.head and _fits(subject.split("."), body, msgspec.json.decode(reply.data))
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, MsgspecError):
        return False


def _fits(words: list[str], body: Mapping[str, Any], answer: dict[str, Any]) -> bool:
    if (error := answer.get("error")) is not None:
        return bool(error["code"] > 0)
    kind = "_".join(words[: 3 if words[1:2] == ["MSG"] else 2]).lower()
    if not answer["type"].endswith(f"{kind}_response"):
        return False
    if kind == "stream_msg_get":
        found, seq = answer["message"], body.get("seq", 0)
        datetime.fromisoformat(found["time"])
        subjects = body.get("last_by_subj") or body.get("next_by_subj")
        if subjects is None:
            return bool(found["seq"] == seq)
        return found["seq"] >= seq and matches(subjects, found["subject"])
    count = (answer["state"] if kind == "stream_info" else answer)[_COUNT.get(kind, "type")]
    if kind in _COUNT and count < 0:
        return False
    stream = answer.get("stream_name") or answer.get("config", {}).get("name")
    named = zip(words[2:], (stream, answer.get("name")), strict=False)
    return all(one in {None, asked} for asked, one in named)


def is_ack(reply: NatsReply, batch: str = "") -> bool:
    """Whether a reply is the answer to a publish, or to the commit of a batch."""
    if reply.head:
        return False
    try:
        ack = ack_of(reply)
    except (MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    if ack.error is not None:
        return ack.error.code > 0
    return ack.seq > 0 and bool(ack.stream) and ack.batch == batch


def ack_of(reply: NatsReply) -> Ack:
    """Read the answer to a publish.

    Raises:
        msgspec.MsgspecError: it is not one.
    """
    if reply.status:  # 503: no stream listens on this subject
        error = PubAckError(int(reply.status), description=_NOT_TAKEN)
        return Ack(error=error)
    return _acks.decode(reply.data)


def _token() -> bytes:
    """The last token of the subject of an answer."""
    return secrets.token_hex(8).encode()


_NOT_TAKEN: Final = "no stream takes it, or the stream has no leader at the moment"
_acks: Final = msgspec.json.Decoder(Ack)


def header_lines(raw: bytes) -> dict[str, str]:
    """As nats-py's `Client._parse_header_lines`, with a cache of the names."""
    found: dict[str, str] = {}
    for line in raw.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if colon and (known := _header(name)) is not None:
            found[known] = value.strip().decode("utf-8", "replace")
    return found


@functools.lru_cache(maxsize=1024)
def _header(name: bytes) -> str | None:
    """A header's name; None if nats-py skips the line."""
    try:
        text = name.strip().decode("ascii")
    except UnicodeDecodeError:
        return None
    return None if any(map(str.isspace, text)) else text
