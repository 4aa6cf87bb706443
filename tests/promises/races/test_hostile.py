"""Whatever somebody with one role's credentials stores, nothing that reads it ends: it is carried,
escaped, parked (decision 0017).
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from long import sampled
from program import Ended, approvals, in_process, up
from until import recorded

from ayes.consumers import supervision
from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.connection import Connection
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.replica import ReadReplica
from ayes.ops import workers
from ayes.ops.broker.accounts import ROLES, permissions
from ayes.ops.broker.server import ensure_account
from ayes.ops.workers import reactions, working
from ayes.schemas.backoff import Backoff
from ayes.schemas.codec import fact_of
from ayes.schemas.errors import BrokerRefused
from ayes.schemas.events import Carried, Said
from ayes.schemas.ids import new_id
from ayes.schemas.slots import ROOT, Slot, ThreadRef, subject_text
from ayes.schemas.tools import ToolSpec

SHOP, POISON = "shop", ThreadRef("shop", "poison")
REVIEWER = "reviewer-ana"

PAYLOADS = (
    b"\xff\xfe not UTF-8",
    b"[]",
    b'{"type":7}',
    b'{"type":"FromTheFuture","v":99999999999999999999,"x":"\xff\x1b[2J"}',
    b'{"type":"Said","role":"user","text":"\\ud800"}',
    b"[" * 200_000,
    b'{"type":"FromTheFuture","x":' + b"[" * 200_000,
    b"",
    b"x" * 512 * 1024,
    b'{"type":"FromTheFuture","x":"' + b"x" * (512 * 1024) + b'"}',
)
#: The first and third are made to look like the end of an answer, and like a sign of life.
HEADS = (
    b"NATS/1.0 204xx",
    b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\n\r\n",
    b"NATS/1.0 100xx",
    b"NATS/1.0\r\nNats-Sequence: 1\r\nNats-Subject: ledger.shop.t\r\nNats-Num-Pending: 0\r\n\r\n",
    b"NATS/1.0 \xff\xff\xff\r\n\xff: \xff\r\n\r\n",
    b"\r\n\r\n",
)
TOKENS = (
    b"t\xff\xfe",
    b"\x1b[2J\x0b\x0c\x00",
    "\u202egnp".encode(),
    b"t\\xff\\xfe",
    b"_x",
    b"9" * 5000,
)


def slots(role: str) -> list[str]:
    """The patterns on which a role may store something."""
    kinds = (ROOT, "$KV.", "parked.", "timer.")
    return [one for one in permissions(role).publish if one.startswith(kinds)]


def filled(pattern: str, token: bytes) -> bytes:
    """A subject that fits the pattern: its workspace and thread are ours, the rest is `token`."""
    first, *rest = pattern.encode().replace(b">", b"*").split(b".")
    if first == ROOT.encode() and rest[:2] == [b"*", b"*"]:
        rest[:2] = [b"shop", b"poison"]
    elif first == ROOT.encode() and rest[0] == b"*":
        rest[0] = b"shop"
    return b".".join([first, *(token if word == b"*" else word for word in rest)])


def junk(pattern: str) -> Iterator[bytes]:
    """Each kind of junk on such a slot, as it goes over the connection."""
    number = iter(range(100, 200))
    for data in PAYLOADS:
        yield b"PUB %b %d\r\n%b\r\n" % (filled(pattern, b"%d" % next(number)), len(data), data)
    for head in HEADS:
        for data in (b"", b"{}"):
            sizes = (len(head), len(head) + len(data))
            subject = filled(pattern, b"%d" % next(number))
            yield b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, *sizes, head, data)
    if "*" in pattern or ">" in pattern:
        for token in TOKENS:
            if len(token) < 100 or pattern.count("*") == 1:
                yield b"PUB %b 2\r\n{}\r\n" % filled(pattern, token[: 4000 - len(pattern)])


async def publish(store: Path, role: str, *frames: bytes) -> None:
    connection = Connection(Store(store).login(role))
    await connection.open(name="raw")
    for frame in frames:
        await connection.client._send_command(frame)
        await connection.client.flush()
    await connection.close()


async def judged(store: Path, thread: ThreadRef) -> None:
    """Ask for a tool, and wait until the gate has judged it and the queue was told."""
    async with Ledger.connect(store) as ledger:
        call = thread.call(new_id()[:8])
        await ledger.request(call, "pay", '{"amount": 5}', requester="rita")
        await recorded(ledger, call.gated.subject, call.decided.subject)


@pytest.mark.parametrize("part", sampled((1, 12), 12))
async def test_whatever_is_stored_the_rest_goes_on(
    part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Every role fills its slots with junk; `up` and each command go on (C2, B14, B55). In a
    sample each slot gets every twelfth kind, and the next slot others.
    """
    store = tmp_path / "store"
    with up(store, "--sync", "2m") as running:
        await ensure_account(store, REVIEWER)
        async with Ledger.connect(store) as service:
            await service.declare(SHOP, ToolSpec(name="pay", schema='{"type":"object"}'))
            await service.append(POISON.said("m1"), Said(role="user", text="hello"))
        await judged(store, POISON)
        # The reviewer's own message, alone: it ended `up` for good.
        await publish(store, "service", b"PUB ledger.shop.t\xff\xfe.call.p.requested 2\r\n{}\r\n")
        await judged(store, ThreadRef(SHOP, "good"))
        stored = 0
        for role in (*ROLES, REVIEWER):
            frames = [
                frame
                for number, pattern in enumerate(slots(role))
                for frame in islice(junk(pattern), number % part, None, part)
            ]
            await publish(store, role, *frames)
            stored += len(frames)
        assert stored > 1200 // part
        await judged(store, ThreadRef(SHOP, "other"))
        await judged(store, POISON)
        async with Ledger.connect(store, role="observer") as ledger:
            last_seq = await ledger.log.last_seq()
            assert [fact.seq async for fact in ledger.replay()] == list(range(1, last_seq + 1))

        with in_process(monkeypatch, capsys) as run:
            await asyncio.to_thread(commands, run, store)
        os.kill(running["up"], 0)
    assert "Traceback" not in (tmp_path / "up.log").read_text()


def commands(run: Callable[..., Ended], store: Path) -> None:
    """Each command that reads what was stored."""

    def ends(*arguments: object, code: int = 0) -> Ended:
        """It ends with this code, without a Python error or anything that a terminal obeys."""
        ended = run(*arguments, store=store)
        assert ended.code == code, (arguments, ended.code, ended.out[-2000:], ended.err[-2000:])
        assert "\x1b" not in ended.out + ended.err
        return ended

    assert all(
        line["subject"] for line in ends("watch", "--from", 1, "--until-now", "--json").lines
    )
    told = ends("watch", "--from", 1, "--until-now").out
    assert r"ledger.shop.t\xff\xfe.call.p.requested" in told
    ends("thread", POISON)
    ends("show", f"{POISON}/100", code=1)
    ended = ends("pending")
    assert "--projection pending --swap" in ended.out + ended.err
    assert len(ends("status", "--json", code=1).one["parked"]) > 50
    ends("doctor", code=1)
    ends("parked", "ls")
    listed = ends("parked", "ls", "--json").lines
    ends("parked", "show", listed[0]["number"])
    ends("parked", "retry", *(one["number"] for one in listed[:10] if one["consumer"]))
    ends("replay", "--verify", code=1)
    ends("replay", "--projection", "pending", "--swap")
    assert ends("pending", "--json").lines
    ends("replay", "--projection", "calls")
    ends("replay", "--projection", "histories")
    # It hears signals, which only a main thread does.
    assert approvals("lake", "sync", store=store).code == 0
    ends("lake", "verify")


@pytest.mark.parametrize("head", HEADS)
async def test_no_message_ends_an_answer(store: Path, head: bytes):
    """An empty message with headers like a status hides nothing recorded after it (C2)."""
    thread = ThreadRef("shop", "t1")
    async with Ledger.connect(store, role="service") as ledger:
        await ledger.append(thread.said("m1"), Said(role="user", text="first"))
        await publish(
            store,
            "service",
            b"HPUB %b %d %d\r\n%b\r\n"
            % (thread.said("x").subject.encode(), len(head), len(head), head),
        )
        await ledger.append(thread.said("m2"), Said(role="user", text="last"))
        assert isinstance(ledger.log, JetStream)
        subjects = f"{thread.subjects}"
        whole = [fact.seq for fact in await ledger.log.read(subjects)]
        assert whole == list(range(1, len(whole) + 1))
        assert len(whole) == 3
        pages = [raw.seq async for page in ledger.log.scan(1, subjects) for raw in page]
        assert pages == whole
        latest = await ledger.log.latest(thread.said("x").subject)
        assert latest is not None
        assert isinstance(latest.event, Carried)
        assert [fact.seq async for fact in ledger.replay()] == whole


@pytest.mark.parametrize("token", TOKENS)
def test_a_subject_has_one_text(token: bytes):
    """Any bytes have one printable text of their own; what is no slot is carried under it (C2)."""
    subject = b"ledger.shop." + token + b".opened"
    text = subject_text(subject)
    assert text.isascii()
    assert text.isprintable()
    back = text.encode().decode("unicode_escape").encode("latin-1")
    assert back == subject
    fact = fact_of(1, None, text, b"{}")  # type: ignore[arg-type]
    assert isinstance(fact.event, Carried)
    assert fact.slot.subject == text


def test_the_text_of_a_slot_is_its_subject():
    """So what was written before reads as before."""
    slot = ThreadRef("shop", "t-1_A").call("1-0").requested
    assert subject_text(slot.subject.encode()) == slot.subject
    assert Slot.parse(slot.subject) == slot


async def test_a_failing_task_ends_no_worker(store: Path, monkeypatch: pytest.MonkeyPatch):
    """The mirror and index fail and restart; meanwhile the gate judges, asking the broker (C2)."""
    failed: list[str] = []
    often = asyncio.Event()

    async def failing(self: object) -> None:
        failed.append(type(self).__name__)
        if min(failed.count("ReadReplica"), failed.count("Ledger")) > 1:
            often.set()
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    monkeypatch.setattr(supervision, "PAUSES", Backoff(0.01))
    monkeypatch.setattr(workers, "keep_index", failing)
    monkeypatch.setattr(ReadReplica, "run", failing)
    async with Ledger.connect(store) as service:
        await service.declare(SHOP, ToolSpec(name="pay", schema='{"type":"object"}'))
    async with working(reactions(["gate", "queue"]), store=store) as ended:
        await judged(store, POISON)
        async with asyncio.timeout(60):
            await often.wait()
        await judged(store, ThreadRef(SHOP, "other"))
        assert not ended.done()


async def test_what_an_operator_must_mend_ends_a_worker(monkeypatch: pytest.MonkeyPatch):
    """A refusal is raised at once; any other error is told of and tried again, later each time."""
    monkeypatch.setattr(supervision, "PAUSES", Backoff(0.001, 1.0))
    problems = [
        ValueError("odd"),
        LookupError("odd"),
        BrokerRefused("no"),
        ValueError("never reached"),
    ]

    async def run() -> None:
        raise problems.pop(0)

    told: list[dict[str, Any]] = []
    monkeypatch.setattr(
        supervision._log, "error", lambda _, **fields: told.append(fields), raising=False
    )
    with pytest.raises(BrokerRefused, match="no"):
        await supervision.keep_running("it", run)
    assert [(one["problem"], one["again_s"]) for one in told] == [
        ("ValueError: odd", 0.001),
        ("LookupError: odd", 0.002),
    ]
    assert len(problems) == 1
