"""Answers of the broker that pass by themselves are waited out, others are raised at once.

A nats-server without JetStream, and a client that answers in its place.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from brokers import bare
from nats.aio.client import Client
from nats.aio.msg import Msg
from until import until

from ayes.ledger import patience
from ayes.ledger.log import Recorded
from ayes.ledger.nats import api, ordered_consumer
from ayes.ledger.nats.api import PASSING, ApiError
from ayes.ledger.nats.connection import Connection
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.protocol import settled, write
from ayes.schemas.backoff import Backoff
from ayes.schemas.errors import BrokerAway, BrokerRefused
from ayes.schemas.slots import CallRef

INFO = "$JS.API.STREAM.INFO.LEDGER"
STREAM = {
    "type": "io.nats.jetstream.api.v1.stream_info_response",
    "config": {"name": "LEDGER"},
    "state": {"last_seq": 7},
    "created": "",
    "ts": "",
}


def error(err_code: int, code: int = 503) -> dict[str, Any]:
    return {"error": {"code": code, "err_code": err_code, "description": "just not"}}


@asynccontextmanager
async def answering(
    path: Path, answers: dict[str, Iterable[dict[str, Any] | None]], config: str = ""
) -> AsyncIterator[JetStream]:
    """The log on a broker that gives these answers, by subject, in this order; None: none."""
    async with (
        bare(path, config) as url,
        JetStream.connect(url=url, timeout_s=60, any_level=True) as log,
    ):
        client = Client()
        await client.connect(url)
        for subject, given in answers.items():
            await client.subscribe(subject, cb=answerer(iter(given)))
        await settled(client)
        log._is_packed = 0, False  # this broker has no stream whose level could be read
        try:
            yield log
        finally:
            await client.close()


def answerer(given: Iterator[dict[str, Any] | None]):
    async def answer(message: Msg) -> None:
        if (one := next(given)) is not None:
            await message.respond(json.dumps(one).encode())

    return answer


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "PAUSES", Backoff(0.02, 1.0))
    monkeypatch.setattr(patience, "PAUSES", Backoff(0.02, 1.0))


async def test_an_error_that_passes_is_waited_out(tmp_path: Path):
    """Each of them, one after another; then the answer (D4)."""
    given = [answer for code in PASSING for answer in (error(code), STREAM)]
    async with answering(tmp_path, {INFO: given}) as log:
        for _ in PASSING:
            found = await log.api.call("STREAM.INFO.LEDGER", repeat=True, patience_s=60)
            assert found["state"] == STREAM["state"]


async def test_an_error_that_stays_is_raised_at_once(tmp_path: Path):
    """It is for an administrator, and waiting would not help."""
    async with answering(tmp_path, {INFO: [error(10023)]}) as log:
        with pytest.raises(ApiError, match=r"refuses STREAM\.INFO\.LEDGER: just not"):
            await log.last_seq()


async def test_a_connection_that_ends_as_it_begins_is_made_again(tmp_path: Path, monkeypatch):
    """A broker may end it once more when its accounts change."""
    opened = Connection.open
    endings = iter([True, True, False])

    async def open_then_end(self: Connection, **how: Any) -> None:
        await opened(self, **how)
        if next(endings):
            await self.client.close()

    monkeypatch.setattr(Connection, "open", open_then_end)
    async with (
        bare(tmp_path) as url,
        JetStream.connect(url=url, timeout_s=60, any_level=True) as log,
    ):
        assert log.connection.client.is_connected
        with pytest.raises(StopIteration):
            next(endings)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ("", r"the broker at \S+ cannot answer STREAM.INFO.LEDGER: just not\. Has it the ledger's"),
        ('cluster { name: c, listen: "127.0.0.1:-1" }',
         r"the cluster at \S+ has no leader at the moment: a majority .*just not\)\. Try again"),
    ],
)  # fmt: skip
async def test_without_a_leader_for_too_long_the_sentence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, sentence: str
):
    """A call that its caller bounds ends with what to do (D4, D16)."""
    monkeypatch.setattr(api, "PATIENCE_S", 0.2)
    async with answering(tmp_path, {INFO: [error(10008)] * 1000}, config) as log:
        with pytest.raises(BrokerAway, match=sentence):
            await log.last_seq()


@pytest.mark.parametrize("given", [[None] * 9, [error(10118)] * 1000], ids=["silence", "error"])
async def test_no_sentence_names_a_cause_that_nobody_looked_at(tmp_path, monkeypatch, given):
    """A cluster that gives no answer, or another one, may well have its leader."""
    monkeypatch.setattr(api, "PATIENCE_S", 0.2)
    config = 'cluster { name: c, listen: "127.0.0.1:-1" }'
    async with answering(tmp_path, {INFO: given}, config) as log:
        with pytest.raises(BrokerAway, match="cannot answer at the moment") as told:
            await log.last_seq()
        assert "leader" not in str(told.value)


async def test_a_consumer_is_requested_again_before_its_reader_gives_up(tmp_path, monkeypatch):
    """A cluster may have given it to a node that is silently away; the next one is placed anew,
    and delivers elsewhere, so that messages of the two are not mixed.
    """
    monkeypatch.setattr(ordered_consumer, "_PATIENCE_S", (0.3, 0.3, 0.3, 20.0))
    create = "$JS.API.CONSUMER.CREATE.LEDGER"
    asked: list[str] = []
    async with answering(tmp_path, {create: [None, None, error(10012, 500)]}) as log:

        async def note(message: Msg) -> None:
            asked.append(json.loads(message.data)["config"]["deliver_subject"])

        await log.connection.client.subscribe(create, cb=note)
        with pytest.raises(BrokerRefused, match="does not let LEDGER be followed: just not"):
            async with aclosing(log.raw(1, until_end=True)) as batches:
                await anext(batches)
        await until(lambda: len(asked) >= 3)
    assert len(set(asked)) == 3


async def test_a_stream_that_has_no_leader_is_not_believed(tmp_path: Path):
    """While there is none, any node describes the stream, and may be behind (D1)."""
    async with answering(tmp_path, {INFO: [STREAM | {"cluster": {"name": "c"}}]}) as log:
        with pytest.raises(BrokerAway, match="LEDGER has no leader at the moment"):
            await log.last_seq()


async def test_a_follower_waits_for_its_consumer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """However long there is no leader, and if the consumer's node goes away (D4)."""
    monkeypatch.setattr(api, "PATIENCE_S", 0.1)
    create = "$JS.API.CONSUMER.CREATE.LEDGER"
    given = [*[error(10008)] * 20, error(10014, 404), error(10012, 500)]
    async with (
        answering(tmp_path, {create: given, INFO: [STREAM] * 100}) as log,
        aclosing(log.raw(1, until_end=False)) as batches,
        asyncio.timeout(60),
    ):
        with pytest.raises(BrokerRefused, match="does not let LEDGER be followed: just not"):
            await anext(batches)


# ----------------------------------------------------------------- what is no answer to a question


@asynccontextmanager
async def replying(
    path: Path, subject: str, *said: tuple[bytes, bytes]
) -> AsyncIterator[JetStream]:
    """The log on a broker that gives each request on the subject these replies: head and data."""
    async with (
        bare(path) as url,
        JetStream.connect(url=url, timeout_s=60, any_level=True) as log,
    ):
        client = Client()
        await client.connect(url)

        async def answer(message: Msg) -> None:
            for head, data in said if message.reply else ():
                await write(client, raw_frame(message.reply, head, data))

        await client.subscribe(subject, cb=answer)
        await settled(client)
        log._is_packed = 0, False  # this broker has no stream whose level could be read
        try:
            yield log
        finally:
            await client.close()


def raw_frame(subject: str, head: bytes, data: bytes) -> bytes:
    sizes = (len(head), len(head) + len(data)) if head else (len(data),)
    numbers = b" ".join(b"%d" % one for one in sizes)
    kind = b"HPUB" if head else b"PUB"
    return kind + b" " + subject.encode() + b" " + numbers + b"\r\n" + head + data + b"\r\n"


def typed(kind: str, **fields: Any) -> bytes:
    return json.dumps({"type": f"io.nats.jetstream.api.v1.{kind}_response"} | fields).encode()


def stored(
    seq: int,
    last: int,
    subject: str = "ledger.shop.t.call.c.requested",
    stream: str = "LEDGER",
    own: str = "",
    left: int = 0,
) -> bytes:
    """The head of a stored message in the answer to a batch; `own`: of its publisher."""
    return (
        f"NATS/1.0\r\n{own}Nats-Stream: {stream}\r\nNats-Subject: {subject}\r\n"
        f"Nats-Sequence: {seq}\r\nNats-Time-Stamp: 2026-01-01T00:00:00Z\r\n"
        f"Nats-Num-Pending: {left}\r\nNats-Last-Sequence: {last}\r\n\r\n"
    ).encode()


def end(last: int, up_to: int | None = 9, pending: int = 0) -> bytes:
    whole = "" if up_to is None else f"Nats-UpTo-Sequence: {up_to}\r\n"
    numbers = f"Nats-Num-Pending: {pending}\r\nNats-Last-Sequence: {last}\r\n"
    return f"NATS/1.0 204 EOB\r\n{numbers}{whole}\r\n".encode()


#: What another program may have the broker send, or has recorded, in place of an answer.
NO_ANSWERS = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'"x"',
    b"\xff",
    b'{"type":"ToolRequested"}',
    b'{"error":null}',
    b'{"error":{}}',
    b'{"error":"no"}',
    b'{"stream":"LEDGER"}',
    b'{"seq":7}',
    b'{"stream":"LEDGER","seq":"7"}',
    b'{"stream":"LEDGER","seq":0}',
    b'{"stream":"LEDGER","seq":7,"batch":"another"}',
    typed("stream_info"),
    typed("stream_info", config={}, state={}),
    typed("stream_info", config={"name": "KV_pending"}, state={"last_seq": 1}),
    typed("stream_msg_get", message={"subject": "ledger.shop.t.call.c.requested", "seq": 1}),
    typed("stream_msg_get"),
    typed("consumer_info", stream_name="LEDGER", name="queue", config={}, num_pending=0),
    typed("consumer_create", stream_name="KV_pending", config={}, num_pending=0),
    typed("stream_names", streams=[]),
)
SLOT = CallRef("shop", "t", "c").requested


async def test_a_question_about_the_stream_waits_for_an_answer_about_it(tmp_path: Path):
    """Whatever comes before it is no answer, and breaks nothing (decision 0053)."""
    right = json.dumps(STREAM).encode()
    said = [(b"", one) for one in NO_ANSWERS]
    async with replying(tmp_path, INFO, *said, (stored(1, 0), right), (b"", right)) as log:
        assert await log.last_seq() == 7


async def test_a_message_that_was_not_asked_for_is_no_answer(tmp_path: Path):
    """By subject and by number, also of the right type (decision 0053)."""

    def message(subject: str, seq: int, data: str = "") -> tuple[bytes, bytes]:
        fields = {"subject": subject, "seq": seq, "time": "2026-01-01T00:00:00Z", "data": data}
        return b"", typed("stream_msg_get", message=fields)

    said = [
        *[(b"", one) for one in NO_ANSWERS],
        message("ledger.shop.t.call.d.requested", 3),
        message(f"{SLOT.subject}.x", 3),
        message("ledger.shop.t.call.c", 3),
        message(SLOT.subject, 4),
    ]
    async with replying(tmp_path, "$JS.API.STREAM.MSG.GET.LEDGER", *said) as log:
        found = await log.leaders_message("LEDGER", last_by_subj=SLOT.subject)
        assert (found and found.seq) == 4
        found = await log.leaders_message("LEDGER", seq=4)
        assert (found and found.seq) == 4
        found = await log.leaders_message("LEDGER", seq=4, next_by_subj="ledger.shop.>")
        assert (found and found.seq) == 4


async def test_only_a_stream_and_a_sequence_acknowledge(tmp_path: Path):
    """A publish is recorded if the broker says where: no other JSON says so (decision 0053)."""
    said = [(b"", one) for one in NO_ANSWERS]
    late = (stored(1, 0), b'{"stream":"LEDGER","seq":3}'), (b"", b'{"stream":"LEDGER","seq":5}')
    async with replying(tmp_path, SLOT.subject, *said, *late) as log:
        assert (await log.api.publish(SLOT.subject, b"{}")).seq == 5
        assert await log.append(SLOT, b"{}", "x") == Recorded(5)


async def test_a_batch_is_acknowledged_by_its_id(tmp_path: Path):
    """The acknowledgement of another publish is none of a batch's (decision 0053)."""
    async with replying(
        tmp_path, "ledger.>", (b"", b'{"stream":"LEDGER","seq":20}'), (b"", error_ack(10077))
    ) as log:
        batch = [log._commits.publish(f"ledger.b.{number}", b"{}") for number in range(20)]
        acks = await asyncio.gather(*batch)
        # The batch is refused, and its members are published one by one.
        assert [ack.seq for ack in acks] == [20] * 20


def error_ack(err_code: int) -> bytes:
    return json.dumps(error(err_code, 400) | {"stream": "LEDGER", "seq": 0}).encode()


READ = "$JS.API.DIRECT.GET.LEDGER"
CALL = "ledger.shop.t.call.c"


async def test_a_read_takes_only_what_was_asked_for(tmp_path: Path):
    """Other subjects, other streams, what does not continue the chain of sequences, and an end that
    is not that of the chain are passed over (decision 0053).
    """
    said = [
        *[(b"", one) for one in NO_ANSWERS],
        (end(0), b""),
        (end(3), b""),
        (end(0, up_to=None), b""),
        (b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", b""),
        (stored(2, 0, "ledger.shop.t.call.d.requested"), b"another call"),
        (stored(2, 0, stream="KV_pending"), b"another stream"),
        (stored(2, 1), b"not the first"),
        (stored(2, 0, own="Nats-Stream: X\r\nNats-Sequence: 9\r\n", left=2), b"one"),
        (stored(4, 0, f"{CALL}.gated"), b"of another answer"),
        (end(0), b""),
        (end(2), b""),
        (stored(4, 2, f"{CALL}.gated"), b"of an answer with one fewer"),
        (stored(4, 3, f"{CALL}.gated"), b"with a hole"),
        (stored(2, 2, f"{CALL}.gated"), b"not ascending"),
        (stored(4, 2, f"{CALL}.gated", left=1), b"two"),
        (end(2), b""),
        (end(4), b""),
        (stored(6, 4, f"{CALL}.decided"), b"three"),
        (end(6, up_to=None), b""),
        (end(6, pending=1), b""),
        (end(6), b""),
    ]
    async with replying(tmp_path, READ, *said) as log:
        found = await log.read_few(f"{CALL}.>")
        assert [(raw.seq, raw.data) for raw in found or ()] == [
            (2, b"one"),
            (4, b"two"),
            (6, b"three"),
        ]


async def test_a_page_takes_only_what_comes_after_it_in_order(tmp_path: Path):
    """As a read: no message from before the place that was asked for (decision 0053)."""
    said = [
        (stored(2, 0), b"from before"),
        (stored(3, 0, "other.x"), b"another subject"),
        (stored(3, 0), b"one"),
        (end(3, up_to=None), b""),
    ]
    async with replying(tmp_path, READ, *said) as log:
        client = Client()
        await client.connect(log.connection.login.url)

        async def nothing(message: Msg) -> None:
            await message.respond(typed("stream_msg_get", error={"code": 404, "err_code": 10037}))

        await client.subscribe("$JS.API.STREAM.MSG.GET.LEDGER", cb=nothing)
        await settled(client)
        pages = [page async for page in log.scan(3)]
        await client.close()
    assert [(raw.seq, raw.data) for page in pages for raw in page] == [(3, b"one")]


async def test_flow_control_is_answered_on_its_own_subjects_only(tmp_path: Path):
    """A message that names a slot as its flow control makes nobody write there (decision 0053)."""
    async with bare(tmp_path) as url, JetStream.connect(url=url, any_level=True) as log:
        client = Client()
        await client.connect(url)
        everything = await client.subscribe(">")  # one subscription, so all in order
        await settled(client)
        head = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: %s\r\n%s\r\n"
        stalled = b"Nats-Consumer-Stalled: ledger.shop.t.call.c.vote.ana\r\n"
        answer = ordered_consumer._answer_control
        assert await answer(log.api, b"", head % (b"3", stalled)) == 3
        assert await answer(log.api, b"", head % (b"x", stalled)) is None
        assert await answer(log.api, b"ledger.shop.t.call.c.vote.ben", head % (b"3", b"")) is None
        assert await answer(log.api, b"$JS.FC.LEDGER.x.1", head % (b"3", b"")) is None
        await log.api.tell("the.end", b"")
        heard = []
        while not heard or heard[-1] != "the.end":
            heard.append((await everything.next_msg(timeout=60)).subject)
        await client.close()
    written = [subject for subject in heard if subject.startswith(("ledger.", "$JS.FC."))]
    assert written == ["$JS.FC.LEDGER.x.1"]


async def test_live_text_is_not_what_the_broker_answered(tmp_path: Path):
    """The broker's answer to a request on a reply's subject is no part of it (decision 0053)."""
    async with (
        bare(tmp_path) as url,
        JetStream.connect(url=url, any_level=True) as log,
        log.subscribe_live("live.shop.t.1") as messages,
    ):
        for reply, head in (("", stored(1, 0)), ("$JS.ACK.x", b""), ("", b"")):
            sizes = (len(head), len(head) + 4) if head else (4,)
            words = ["HPUB" if head else "PUB", "live.shop.t.1", *filter(None, [reply])]
            line = " ".join([*words, *map(str, sizes)]).encode()
            text = b"real" if not (reply or head) else b"fake"
            await write(log.connection.client, line + b"\r\n" + head + text + b"\r\n")
        assert await asyncio.wait_for(messages.get(), 60) == b"real"
