"""Files in messages and outputs: what is recorded, what is stored, and what comes back."""

import asyncio
import base64
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from ayes.consumers.model import with_bytes
from ayes.ledger import files
from ayes.ledger.clients import client
from ayes.ledger.clients.services import Ledger
from ayes.ledger.in_memory import Memory
from ayes.ledger.log import AppendResult, Recorded
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import STORED, ensure
from ayes.ledger.sealed_values import NOTHING_SEALED
from ayes.ledger.tool_runner import run_tool
from ayes.ops.files import sweep
from ayes.projections import history as projected
from ayes.projections.formats import FORMATS, format_named
from ayes.projections.history import Assistant, Entry, Outcome, User, are_sent, digest, history
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas.codec import encode
from ayes.schemas.content import (
    INLINE_BYTES,
    MAX_FILE_BYTES,
    attached,
    content_of,
    described,
    words,
)
from ayes.schemas.errors import AlreadyFilled, BadInput, BrokerRefused, LedgerFull
from ayes.schemas.slots import ThreadRef, file_piece

pytestmark = pytest.mark.log("memory", "jetstream", "calm")

THREAD = ThreadRef("shop", "t1")
SMALL = attached(b"a few bytes", "text/plain", "notes.txt")
LARGE = bytes(range(256)) * (files.PIECE_BYTES // 256 + 10)


async def said(ledger: Ledger, *parts: e.Text | e.Media, message: str = "m1") -> e.Said:
    fact = await ledger.say(THREAD, content_of(parts), message=message)
    assert isinstance(fact.event, e.Said)
    return fact.event


async def test_a_small_file_is_recorded_in_the_message(ledger: Ledger):
    event = await said(ledger, e.Text("Read this."), SMALL)
    assert event.text == (e.Text("Read this."), SMALL)


async def test_a_large_file_is_stored_and_comes_back(ledger: Ledger):
    """It is recorded by its digest, and a history has its bytes again when it is sent. The digest
    of a history is over the digest of a file, so it needs no bytes.
    """
    event = await said(ledger, attached(LARGE, "image/png", "chart.png"))
    [media] = event.text
    assert isinstance(media.source, e.Stored)
    meant = e.Stored(sha256(LARGE).hexdigest(), len(LARGE), media.source.place)
    assert media == e.Media("image/png", meant, "chart.png")
    assert await files.fetch(ledger.log, "shop", media.source) == LARGE
    entries = history(thread_of(THREAD, await ledger.read(THREAD))).entries
    assert entries == (User((media,)),)
    told = await with_bytes(ledger, THREAD, entries)
    assert told == (User((attached(LARGE, "image/png", "chart.png"),)),)
    assert digest(entries) != digest(told)


async def test_what_is_said_again_is_said_once(ledger: Ledger):
    """The same message may be repeated with its bytes; another file under its id is refused."""
    first = await said(ledger, attached(LARGE, "image/png"))
    assert await said(ledger, attached(LARGE, "image/png")) == first
    with pytest.raises(AlreadyFilled):
        await said(ledger, attached(LARGE[:-1], "image/png"))


async def test_the_files_of_one_fact_that_are_too_much_together_are_stored(ledger: Ledger):
    half = INLINE_BYTES // 2 + 1
    event = await said(ledger, *(attached(bytes([one]) * half, "image/png") for one in range(3)))
    assert [type(media.source) for media in event.text] == [e.Inline, e.Stored, e.Stored]


async def test_a_file_without_bytes_is_kept(ledger: Ledger):
    empty = await files.keep(ledger.log, "shop", b"")
    assert await files.fetch(ledger.log, "shop", empty) == b""


@pytest.mark.log("memory")
@pytest.mark.parametrize(
    ("media", "problem"),
    [
        (e.Media("png", e.Inline("")), "media type"),
        (e.Media("image/png\r\nx: y", e.Inline("")), "media type"),
        (e.Media("image/png", e.Inline("no base64!")), "base64"),
        (e.Media("image/png", e.Inline("aGk")), "base64"),
        (e.Media("image/png", e.Linked("")), "link is empty"),
        (e.Media("image/png", e.Uploaded("", "file-1")), "to which provider"),
        (e.Media("image/png", e.Stored("*", 5)), "SHA-256"),
        (e.Media("image/png", e.Stored("0" * 64, -1)), "size"),
        (e.Media("image/png", e.Stored("0" * 64, MAX_FILE_BYTES + 1)), "size"),
    ],
)
async def test_what_is_no_file_is_refused_before_anything_is_recorded(ledger, media, problem):
    with pytest.raises(BadInput, match=problem):
        await said(ledger, e.Text("Look."), media)
    assert await ledger.read(THREAD) == ()


@pytest.mark.log("memory")
async def test_a_file_that_is_too_large_is_refused(ledger: Ledger):
    data = base64.b64encode(b"x" * (MAX_FILE_BYTES + 1)).decode()
    with pytest.raises(BadInput, match="Pass a link"):
        await said(ledger, e.Media("video/mp4", e.Inline(data)))


async def test_other_bytes_in_the_place_of_a_file_are_found(ledger: Ledger):
    """Whatever is read from there is refused: nobody gets other bytes than those meant."""
    whole = sha256(LARGE).hexdigest()
    place = ledger.log.file_place(whole)
    assert await ledger.log.keep_piece(file_piece("shop", place, 1), b"something else")
    with pytest.raises(BadInput, match="other bytes"):
        await said(ledger, attached(LARGE, "image/png"))
    with pytest.raises(BadInput, match="other bytes"):
        await files.fetch(ledger.log, "shop", e.Stored(whole, len(LARGE), place))
    assert await ledger.read(THREAD) == ()


async def test_what_no_file_can_be_is_not_read(ledger: Ledger):
    """Whoever may store files and facts can name a size without end, and store pieces for it. It
    would be read into the memory of whoever reads the conversation.
    """
    for number in range(1, 4):
        await ledger.log.keep_piece(file_piece("shop", "0" * 64, number), b"x" * files.PIECE_BYTES)
    for size in (-1, MAX_FILE_BYTES + 1, 1 << 60):
        with pytest.raises(BadInput, match="no file"):
            await files.fetch(ledger.log, "shop", e.Stored("0" * 64, size))


async def test_other_bytes_of_the_same_length_are_found(ledger: Ledger):
    """Only the digest tells them from those that were meant; and a fact may name another size."""
    whole = sha256(LARGE).hexdigest()
    meant = e.Stored(whole, len(LARGE), ledger.log.file_place(whole))
    other = bytes(reversed(LARGE))
    for number in (1, 2):
        piece = other[(number - 1) * files.PIECE_BYTES : number * files.PIECE_BYTES]
        await ledger.log.keep_piece(file_piece("shop", meant.place, number), piece)
    with pytest.raises(BadInput, match="other bytes"):
        await files.fetch(ledger.log, "shop", meant)
    with pytest.raises(BadInput, match="other bytes"):
        await said(ledger, attached(LARGE, "image/png"))
    small = await files.keep(ledger.log, "shop", b"a few bytes")
    with pytest.raises(BadInput, match="other bytes"):
        await files.fetch(ledger.log, "shop", structs.replace(small, size=small.size + 1))


@pytest.mark.log("jetstream")
@pytest.mark.parametrize(
    ("size", "source"),
    [
        (INLINE_BYTES, e.Inline),
        (INLINE_BYTES + 1, e.Stored),
        (files.PIECE_BYTES, e.Stored),
        (files.PIECE_BYTES + 1, e.Stored),
        pytest.param(MAX_FILE_BYTES, e.Stored, marks=pytest.mark.long),
    ],
)
async def test_a_file_of_a_size_at_a_limit_comes_back(ledger: Ledger, size: int, source: type):
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    [media] = (await said(ledger, attached(data, "image/png"))).text
    assert type(media.source) is source
    entries = history(thread_of(THREAD, await ledger.read(THREAD))).entries
    assert await with_bytes(ledger, THREAD, entries) == (User((attached(data, "image/png"),)),)


async def test_stored_files_of_every_entry_get_their_bytes(ledger: Ledger):
    """Those of a message, an output and a reply."""
    whole = attached(LARGE, "image/png")
    stored = e.Media("image/png", await files.keep(ledger.log, "shop", LARGE))

    def entries(media: e.Media) -> tuple[Entry, ...]:
        output = (e.Text("This:"), media)
        return (
            User((media,)),
            Assistant(1, (e.Text("Look."), media, e.Wish("look", "{}"))),
            Outcome("1-0", "look", "", "returned", output, is_error=False),
        )

    assert await with_bytes(ledger, THREAD, entries(stored)) == entries(whole)


def test_a_history_is_sent_with_files_up_to_a_limit():
    """The newest of them. A message that refers to a stored file costs nothing to record, and a
    thread of a thousand would have needed 43 GB of memory of every worker that asks its model.
    """

    def file(digest: str, size: int) -> e.Media:
        return e.Media("image/png", e.Stored(digest * 64, size))

    small, half, large = file("1", 1_000), file("2", MAX_FILE_BYTES // 2), file("3", MAX_FILE_BYTES)
    for said, sent in [
        ([], []),
        ([large], [True]),
        ([small, large], [False, True]),
        ([large, small], [False, True]),
        ([half, half, half], [False, True, True]),
        ([half, large, half, small], [False, False, True, True]),
        ([attached(b"", "image/png"), large], [True, True]),
        # A raw client can record any size.
        ([large, half, file("4", -(10**12))], [False, True, False]),
        ([half, file("5", 10**12)], [True, False]),
    ]:
        assert are_sent(said) == sent, said


@pytest.mark.log("memory")
@pytest.mark.parametrize("name", FORMATS)
async def test_files_over_the_limit_are_read_in_words(
    ledger: Ledger, name: str, monkeypatch: pytest.MonkeyPatch
):
    """Whatever the limit is; here it is small, as the work grows with it."""
    limit = files.PIECE_BYTES + 1
    monkeypatch.setattr(projected, "MAX_SENT_BYTES", limit)
    stored = await files.keep(ledger.log, "shop", bytes(limit))
    media = e.Media("image/png", stored, "chart.png")
    entries = tuple(User((e.Text(f"Message {number}."), media)) for number in range(1_000))
    told = await with_bytes(ledger, THREAD, entries)
    written = msgspec.json.encode(format_named(name).write(told)).decode()
    assert written.count(f"[image/png 'chart.png', {limit:,} bytes]") >= 999
    assert len(written) < 2 * limit


async def test_a_piece_is_stored_once(ledger: Ledger):
    place = file_piece("shop", "0" * 64, 1)
    assert await ledger.log.keep_piece(place, b"first")
    assert not await ledger.log.keep_piece(place, b"second")
    assert await ledger.log.piece(place) == b"first"


async def test_a_file_that_is_missing_or_damaged_is_read_in_words(ledger: Ledger):
    """A raw client may name files that the store does not have, or not so. The history of the
    thread can be made all the same, in every format (I9).
    """
    damaged = e.Stored("1" * 64, 11, (await files.keep(ledger.log, "shop", b"a few bytes")).place)
    missing = e.Stored("0" * 64, 5, "service." + "0" * 32)
    told = tuple(
        e.Media("image/png", source, f"{number}.png")
        for number, source in enumerate((missing, damaged, e.Stored("2" * 64, 7), e.Stored("*", 9)))
    )
    raw = encode(ledger.with_envelope(e.Said(role="user", text=(e.Text("Look."), *told))))
    assert isinstance(await ledger.log.append(THREAD.said("m1"), raw, "m1"), Recorded)
    entries = history(thread_of(THREAD, await ledger.read(THREAD))).entries
    sent = await with_bytes(ledger, THREAD, entries)
    for name in FORMATS:
        written = msgspec.json.encode(format_named(name).write(sent)).decode()
        for number, size in enumerate((5, 11, 7, 9)):
            assert f"[image/png '{number}.png', {size} bytes]" in written, name


async def test_what_refers_to_a_file_that_is_not_there_is_refused(ledger: Ledger):
    """As a message that is passed on to another workspace: no model could be asked about it. The
    same file may be referred to again where it is.
    """
    [media] = (await said(ledger, attached(LARGE, "image/png"))).text
    other = ThreadRef("other", "t1")
    with pytest.raises(BadInput, match="not in the store of other"):
        await ledger.say(other, (media,), message="m1")
    assert await ledger.read(other) == ()
    half = e.Stored(sha256(LARGE[:-1]).hexdigest(), len(LARGE) - 1)
    place = file_piece("shop", half.digest, 1)
    await ledger.log.keep_piece(place, LARGE[: files.PIECE_BYTES])
    with pytest.raises(BadInput, match="not in the store of shop"):
        await said(ledger, e.Media("image/png", half), message="m2")
    assert (await said(ledger, media, message="m2")).text == (media,)


async def test_a_file_half_stored_is_stored_by_the_next_attempt(ledger: Ledger):
    """A program that dies between two pieces leaves some of them."""
    whole = sha256(LARGE).hexdigest()
    place = ledger.log.file_place(whole)
    await ledger.log.keep_piece(file_piece("shop", place, 1), LARGE[: files.PIECE_BYTES])
    with pytest.raises(BadInput, match="piece 2"):
        await files.fetch(ledger.log, "shop", e.Stored(whole, len(LARGE), place))
    stored = await files.keep(ledger.log, "shop", LARGE)
    assert await files.fetch(ledger.log, "shop", stored) == LARGE


async def test_two_writers_of_one_file_both_succeed(ledger: Ledger):
    kept = await asyncio.gather(*(files.keep(ledger.log, "shop", LARGE) for _ in range(4)))
    assert len(set(kept)) == 1
    assert await files.fetch(ledger.log, "shop", kept[0]) == LARGE


@pytest.mark.log("jetstream")
async def test_without_a_store_nothing_is_recorded_and_it_is_said(ledger: Ledger):
    """As on a broker that an earlier program set up, or whose disk had no room for it."""
    assert isinstance(ledger.log, JetStream)
    await ledger.log.api.call(f"STREAM.DELETE.{STORED}")
    with pytest.raises(LedgerFull, match="has no store of files"):
        await said(ledger, attached(LARGE, "image/png"))
    assert await ledger.read(THREAD) == ()
    assert (await said(ledger, SMALL)).text == (SMALL,)
    await ensure(ledger.log.api)
    await said(ledger, attached(LARGE, "image/png"), message="m2")


@pytest.mark.log("memory")
async def test_a_tool_returns_a_file_alone_or_among_texts():
    picture = attached(b"picture", "image/png")

    def chart():
        return picture

    def report():
        return ["Here it is:", picture]

    alone = await run_tool(chart, NOTHING_SEALED, 1)
    assert isinstance(alone, e.ToolReturned)
    assert alone.output == (picture,)
    among = await run_tool(report, NOTHING_SEALED, 1)
    assert isinstance(among, e.ToolReturned)
    assert among.output == (e.Text("Here it is:"), picture)


@pytest.mark.log("memory")
async def test_a_tool_that_returns_what_is_no_file_ran():
    """What it returned is told in words, since it has run."""

    def broken():
        return e.Media("picture", e.Inline("aGk="))

    returned = await run_tool(broken, NOTHING_SEALED, 1)
    assert isinstance(returned, e.ToolReturned)
    assert "media type" in returned.output


@pytest.mark.log("memory")
def test_files_in_words():
    """Models read these words, so they never change."""
    digest_of = sha256(LARGE).hexdigest()
    assert described(SMALL) == "[text/plain 'notes.txt', 11 bytes]"
    assert (
        described(e.Media("image/png", e.Stored(digest_of, 12345))) == "[image/png, 12,345 bytes]"
    )
    link = e.Media("image/*", e.Linked("https://example.org/a.png"))
    assert described(link) == "[image/*, 'https://example.org/a.png']"
    uploaded = e.Media("application/pdf", e.Uploaded("anthropic", "file_1"), "a.pdf")
    assert described(uploaded) == "[application/pdf 'a.pdf', uploaded to 'anthropic']"
    assert words((e.Text("Look:"), SMALL)) == "Look:\n\n[text/plain 'notes.txt', 11 bytes]"


@pytest.mark.log("memory")
def test_the_words_for_a_name_are_the_same_in_every_python():
    """Each version of Python knows more characters, and `repr` escapes those that it does not."""
    name = "\U0001fae9 \U0002ebf0 \u1c89 \U0001cd00.png"  # of Unicode 15.1 and 16
    assert described(attached(b"", "image/png", name)) == f"[image/png '{name}', 0 bytes]"
    hidden = "it's \\ \u202egnp\n\x00\u200b\ue000"
    assert described(attached(b"", "image/png", hidden)) == (
        r"""[image/png "it's \\ \u202egnp\n\x00\u200b\ue000", 0 bytes]"""
    )
    for text in ("a'b", 'a"b', "a'b\"c", "\\", "über", "Łódź 東京.pdf", "\t\r\n\x7f\x85\xa0"):
        assert described(attached(b"", "image/png", text)) == f"[image/png {text!r}, 0 bytes]"


@pytest.mark.log("memory")
async def test_the_store_of_one_workspace_is_not_that_of_another():
    log = Memory()
    stored = await files.keep(log, "shop", b"secret")
    with pytest.raises(BadInput, match="not in the store of other"):
        await files.fetch(log, "other", stored)


@pytest.mark.log("memory")
def test_an_older_fact_of_a_file_is_as_it_was():
    """Its place is its digest, and the digest of a history with it does not change."""
    raw = b'{"kept":"stored","digest":"%b","size":5}' % (b"0" * 64)
    old = msgspec.json.decode(raw, type=e.Stored)
    assert old == e.Stored("0" * 64, 5)
    assert msgspec.json.encode(old) == raw


@pytest.mark.log("jetstream")
async def test_a_role_stores_in_places_of_its_own(store: Path):
    """With a model's login nobody takes a place of a service, nor one in the layout before; the
    service's own file is stored, with an id that no other process has (I9).
    """
    whole = sha256(LARGE).hexdigest()
    async with (
        Ledger.connect(store, role="service") as service,
        Ledger.connect(store, role="service") as another,
        Ledger.connect(store, role="model") as model,
    ):
        foreseen = another.log.file_place(whole)
        assert foreseen != service.log.file_place(whole)
        for subject in (
            file_piece("shop", whole, 1),
            file_piece("shop", service.log.file_place(whole), 1),
        ):
            with pytest.raises(BrokerRefused):
                await model.log.keep_piece(subject, b"something else")
        await another.log.keep_piece(file_piece("shop", foreseen, 1), b"something else")
        fact = await service.say(THREAD, (attached(LARGE, "image/png"),), message="m1")
        [media] = fact.event.text
        assert await files.fetch(service.log, "shop", media.source) == LARGE


async def test_what_no_fact_names_is_swept(store: Path):
    """Files older than the chosen age that no fact names are removed, those that one names stay,
    also one that only an unreadable fact of a newer program names (I9).
    """
    async with (
        Ledger.connect(store, role="service") as service,
        Ledger.connect(store, role="admin") as admin,
    ):
        assert isinstance(admin.log, JetStream)
        await said(service, attached(LARGE, "image/png"))
        named = await files.keep(service.log, "shop", b"named by a newer fact")
        newer = b'{"type":"Said","v":9,"id":"x","text":[{"source":%b}]}' % msgspec.json.encode(
            named
        )
        await service.log.append(THREAD.said("m2"), newer, "x")
        lost = await files.keep(service.log, "shop", LARGE[:-1])
        elsewhere = await files.keep(service.log, "other", LARGE)  # the place of another workspace
        assert await sweep(admin.log, timedelta(hours=24)) == 0
        assert await files.fetch(service.log, "shop", lost) == LARGE[:-1]
        assert await sweep(admin.log, timedelta()) == 2
        for workspace, gone in (("shop", lost), ("other", elsewhere)):
            with pytest.raises(BadInput, match="piece 1"):
                await files.fetch(service.log, workspace, gone)
        assert await files.fetch(service.log, "shop", named) == b"named by a newer fact"
        [fact, _] = await service.read(THREAD)
        [media] = fact.event.text
        assert await files.fetch(service.log, "shop", media.source) == LARGE
        assert await sweep(admin.log, timedelta()) == 0


async def test_a_file_is_there_though_it_was_swept_before_its_fact(store, monkeypatch):
    """A writer that is slow between the pieces and the fact stores them again (I9)."""
    monkeypatch.setattr(client, "_LATE", timedelta())
    async with (
        Ledger.connect(store, role="service") as service,
        Ledger.connect(store, role="admin") as admin,
    ):
        append, log = service.log.append, admin.log
        assert isinstance(log, JetStream)

        async def slowly(*given: Any, **named: Any) -> AppendResult:
            assert await sweep(log, timedelta()) == 1
            return await append(*given, **named)

        monkeypatch.setattr(service.log, "append", slowly)
        [media] = (await said(service, attached(LARGE, "image/png"))).text
        assert await files.fetch(service.log, "shop", media.source) == LARGE
