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

from ayes.ledger import patience
from ayes.ledger.nats import api, ordered_consumer
from ayes.ledger.nats.api import PASSING, ApiError
from ayes.ledger.nats.jetstream import JetStream
from ayes.schemas.errors import BrokerAway, BrokerRefused

INFO = "$JS.API.STREAM.INFO.LEDGER"
STREAM = {"config": {"name": "LEDGER"}, "state": {"last_seq": 7}, "created": "", "ts": ""}


def error(err_code: int, code: int = 503) -> dict[str, Any]:
    return {"error": {"code": code, "err_code": err_code, "description": "just not"}}


@asynccontextmanager
async def answering(
    path: Path, answers: dict[str, Iterable[dict[str, Any] | None]], config: str = ""
) -> AsyncIterator[JetStream]:
    """The log on a broker that gives these answers, by subject, in this order; None: none."""
    async with (
        bare(path, config) as url,
        JetStream.connect(url=url, timeout_s=20, any_level=True) as log,
    ):
        client = Client()
        await client.connect(url)
        for subject, given in answers.items():
            await client.subscribe(subject, cb=answerer(iter(given)))
        await client.flush()
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
    monkeypatch.setattr(api, "AGAIN_S", 0.02)
    monkeypatch.setattr(patience, "AGAIN_S", 0.02)


async def test_an_error_that_passes_is_waited_out(tmp_path: Path):
    """Each of them, one after another; then the answer (D4)."""
    given = [answer for code in PASSING for answer in (error(code), STREAM)]
    async with answering(tmp_path, {INFO: given}) as log:
        for _ in PASSING:
            assert await log.last_seq() == 7


async def test_an_error_that_stays_is_raised_at_once(tmp_path: Path):
    """It is for an administrator, and waiting would not help."""
    async with answering(tmp_path, {INFO: [error(10023)]}) as log:
        with pytest.raises(ApiError, match=r"refuses STREAM\.INFO\.LEDGER: just not"):
            await log.last_seq()


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ("", r"the broker at \S+ cannot answer STREAM.INFO.LEDGER: just not\. Has it the ledger's"),
        (
            'cluster { name: c, listen: "127.0.0.1:-1" }',
            r"the cluster at \S+ has no leader at the moment: a majority .*just not\)\. Try again",
        ),
    ],
)
async def test_without_a_leader_for_too_long_the_sentence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, sentence: str
):
    """A call that its caller bounds ends with what to do (D4, D16)."""
    monkeypatch.setattr(api, "PATIENCE_S", 0.2)
    async with answering(tmp_path, {INFO: [error(10008)] * 1000}, config) as log:
        with pytest.raises(BrokerAway, match=sentence):
            await log.last_seq()


@pytest.mark.parametrize("given", [[None] * 9, [error(10118)] * 1000], ids=["silence", "error"])
async def test_no_sentence_names_a_cause_that_nobody_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[dict[str, Any] | None]
):
    """A cluster that gives no answer, or another one, may well have its leader."""
    monkeypatch.setattr(api, "PATIENCE_S", 0.2)
    config = 'cluster { name: c, listen: "127.0.0.1:-1" }'
    async with answering(tmp_path, {INFO: given}, config) as log:
        with pytest.raises(BrokerAway, match="cannot answer at the moment") as told:
            await log.last_seq()
        assert "leader" not in str(told.value)


async def test_a_consumer_is_requested_again_before_its_reader_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
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
        async with asyncio.timeout(20):
            while len(asked) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert len(set(asked)) == 3


async def test_a_stream_that_has_no_leader_is_not_believed(tmp_path: Path):
    """While there is none, any node describes the stream, and may be behind (D1)."""
    async with answering(tmp_path, {INFO: [STREAM | {"cluster": {"name": "c"}}]}) as log:
        with pytest.raises(BrokerAway, match="LEDGER has no leader at the moment"):
            await log.last_seq()


async def test_a_follower_waits_for_its_consumer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """However long there is no leader, and if the node that was to have the consumer goes away
    (D4).
    """
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
