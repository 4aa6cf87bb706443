"""Conversations: those with the newest activity, and one as people or its model read it."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Final, Literal
from urllib.parse import quote

import msgspec
from fastapi import Depends, Header, Path, Query, Response
from fastapi.sse import format_sse_event
from msgspec import Struct

from ayes.consumers.live import current_turn, follow_reply
from ayes.consumers.model import with_bytes
from ayes.interfaces.api.backend import log_of
from ayes.interfaces.api.base import ApiModel, ApiRouter
from ayes.interfaces.api.content import GivenContent, as_recorded
from ayes.interfaces.api.events import STREAMING, EventStream
from ayes.interfaces.api.identity import Reading, Serving, Visit
from ayes.interfaces.api.scope import ScopedLog
from ayes.interfaces.api.windows import newest_first
from ayes.ledger.clients.services import Ledger
from ayes.ledger.files import fetch
from ayes.ledger.nats.jetstream import JetStream
from ayes.projections import timeline
from ayes.projections.formats import FORMATS, format_named
from ayes.projections.history import history as history_of
from ayes.projections.live import Discarded, Ended, Fragment
from ayes.projections.thread import Thread, thread_of
from ayes.projections.views import thread as views
from ayes.projections.views.content import held_file
from ayes.projections.views.fact import fact_row, fact_sentence, own, wishes_of
from ayes.projections.views.secrets import Secrets
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.content import decoded, files_in, words
from ayes.schemas.errors import Unavailable, UnknownCall
from ayes.schemas.ids import token
from ayes.schemas.slots import ROOT, ThreadRef
from ayes.schemas.visible import visible

router: Final = ApiRouter(tags=["threads"])

#: Facts after which a page ends, however many threads were found; `next` goes on from there.
_MAX_FACTS: Final = 20_000
#: The last characters of a file's name that a download is named by.
_NAME: Final = 200
#: What a browser that shows a file by itself may do: draw it, and nothing else (CSP).
ALONE: Final = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
#: The most replies that a visitor follows at a time. A follower holds up to 512 Ki characters, and
#: its text takes processor time from all visitors.
_FOLLOWED: Final = 100
#: Characters of a message in a list.
_SHORT: Final = 200


#: The parameter of a handler whose path names a thread.
Named = Annotated[ThreadRef, Depends()]
#: The cursor of a page: `next` or `previous` of another one.
Before = Annotated[int | None, Query(ge=0, lt=2**63)]


class ListedThread(Struct, frozen=True):
    """A conversation in a list."""

    #: As `workspace/thread`.
    thread: str
    #: Empty if a service has not said for whom it is.
    requester: str
    #: The last message, cut after 200 characters; empty if there is none.
    said: str
    #: The kind of its last fact.
    latest: str
    #: The last fact in words.
    latest_words: str
    #: When that was recorded.
    active_at: datetime
    seq: int
    #: Calls of it that wait for people.
    waiting: int


class Threads(Struct, frozen=True):
    """A page of conversations, the one with the newest activity first."""

    #: Those of the page.
    threads: list[ListedThread]
    #: The cursor of the next page; None on the last one. A page may have few threads, or none, and
    #: a next one.
    next: int | None


@router.get("/threads")
async def threads(
    visit: Reading,
    workspace: str = "",
    before: Before = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Threads:
    """The conversations, by their last fact.

    Reads the log backwards, and only a part of it for each page: some 20,000 facts at most.
    """
    log = log_of(visit.reading)
    place = token("workspace", workspace) if workspace else "*"
    subjects = f"{ROOT}.{place}.*.>"
    end = before or await log.last_seq() + 1
    found, end = await _newest(log, subjects, end, limit, is_first=before is None)
    return Threads(threads=await _listed(visit, found), next=end if end > 1 else None)


async def _newest(
    log: JetStream | ScopedLog, subjects: str, end: int, limit: int, *, is_first: bool
) -> tuple[dict[ThreadRef, Fact], int]:
    """Up to `limit` threads whose last fact is before `end`, and the place to go on from."""
    found: dict[ThreadRef, Fact] = {}
    seen: set[ThreadRef] = set()
    read = 0
    async with aclosing(newest_first(log, subjects, 1, end)) as windows:
        async for facts, until in windows:
            for fact in facts:
                if not fact.slot.thread or (ref := fact.slot.thread_ref) in seen:
                    continue
                seen.add(ref)
                # On a later page: what was active since then stands on an earlier one.
                last = None if is_first else await log.latest(ref.subjects)
                if last is None or last.seq < end:
                    found[ref] = fact
                if len(found) == limit:
                    return found, fact.seq
            read += len(facts)
            if read >= _MAX_FACTS:
                return found, until
    return found, 1


async def _listed(visit: Visit, found: Mapping[ThreadRef, Fact]) -> list[ListedThread]:
    ledger = visit.reading
    opened = await ledger.read(*(ref.opened for ref in found)) if found else ()
    by_thread = {fact.slot.thread_ref: fact.event for fact in opened}
    said = await asyncio.gather(
        *(ledger.log.latest(f"{ROOT}.{ref.workspace}.{ref.thread}.said.*") for ref in found)
    )
    facts = found.values()
    edited = [fact for fact in facts if isinstance(fact.event, e.Voted | e.Approved)]
    asked = [ref.requested for fact in edited if (ref := fact.slot.call_ref) is not None]
    requests = await ledger.read(*asked) if asked else ()
    secrets, wishes = await visit.secrets(*facts, *requests), wishes_of(requests)
    waiting = Counter((one.workspace, one.thread) for one in visit.waiting.oldest())
    return [
        ListedThread(
            thread=str(ref),
            requester=getattr(by_thread.get(ref), "requester", ""),
            said=_last_words(message)[:_SHORT],
            latest=fact_row(fact, secrets).kind,
            latest_words=fact_sentence(fact, secrets, wishes),
            active_at=fact.recorded_at,
            seq=fact.seq,
            waiting=waiting[ref.workspace, ref.thread],
        )
        for (ref, fact), message in zip(found.items(), said, strict=True)
    ]


def _last_words(message: Fact | None) -> str:
    event = message.event if message else None
    return words(event.text) if isinstance(event, e.Said) else ""


# ------------------------------------------------------------------------------------- one of them


class Conversation(Struct, frozen=True):
    """A thread in the order in which its model reads it."""

    #: As `workspace/thread`.
    thread: str
    requester: str
    agent: str
    #: `provider:name`; empty if a service runs its own loop.
    model: str
    #: When it was opened; None: it was not.
    opened_at: datetime | None
    #: Messages, turns and calls, in order.
    items: list[views.ThreadItem]
    #: The cursor of the page with the items before these; None if these are the first.
    previous: int | None
    #: The call before whose turn the history stops, since the model gets no call without its
    #: result; None if the history is complete.
    stopped_at: str | None
    #: The forms in which the history can be read.
    formats: list[str]


@router.get("/threads/{workspace}/{thread}")
async def conversation(
    ref: Named,
    visit: Reading,
    before: Before = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> Conversation:
    """One conversation: its newest items, or those before an earlier page."""
    thread, secrets = await _known(visit, ref)
    items = timeline.timeline(thread)[:before]
    opened = thread.opened.event if thread.opened else None
    stopped_at = history_of(thread).stopped_at
    return Conversation(
        thread=str(ref),
        requester=getattr(opened, "requester", ""),
        agent=getattr(opened, "agent", ""),
        model=getattr(opened, "model", ""),
        opened_at=thread.opened.recorded_at if thread.opened else None,
        items=[views.thread_item(one, secrets) for one in items[-limit:]],
        previous=len(items) - limit if len(items) > limit else None,
        stopped_at=str(stopped_at) if stopped_at else None,
        formats=list(FORMATS),
    )


async def _known(visit: Visit, ref: ThreadRef) -> tuple[Thread, Secrets]:
    """The conversation, and what of it the visitor is not shown."""
    facts = await visit.reading.read(ref)
    if not own(facts):
        raise UnknownCall(f"nothing was ever recorded in {ref}.")
    return thread_of(ref, facts), await visit.secrets(*facts)


@router.get(
    "/threads/{workspace}/{thread}/history",
    response_class=Response,
    responses={200: {"content": {"application/json": {}}}},
)
async def history(
    ref: Named,
    visit: Reading,
    provider: Annotated[str, Query(alias="format")] = "openai-chat",
    files: Annotated[bool, Query()] = True,
) -> Response:
    """A conversation as its model continues it: the messages of a provider's API.

    What tools declare as secret is left out, but for services. With `files=false` stored files are
    described in words, and their bytes are not read. The header
    `Ayes-Stopped-At` names the call before whose turn it stops, if one is not settled.
    """
    writer = format_named(provider)
    thread, secrets = await _known(visit, ref)
    found = history_of(secrets.thread(thread))
    headers = {"Ayes-Stopped-At": str(found.stopped_at)} if found.stopped_at else {}
    entries = found.entries
    if files:
        entries = await with_bytes(visit.reading, ref, entries)
    payload = msgspec.json.encode(writer.write(entries))
    return Response(payload, headers=headers, media_type="application/json")


@router.get(
    "/threads/{workspace}/{thread}/files/{digest}",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}}},
)
async def file(
    ref: Named,
    digest: Annotated[str, Path(pattern="^[0-9a-f]{64}$")],
    visit: Reading,
) -> Response:
    """A file of a conversation: the bytes with this SHA-256.

    Only a file that a fact of this conversation names. A browser shows a picture (PNG, JPEG, GIF or
    WebP), by itself, and saves any other file.
    """
    facts = await visit.reading.read(ref)
    files = (
        (media, held)
        for fact in facts
        if isinstance(fact.event, e.Event)
        for media in files_in(fact.event)
        if (held := held_file(media)) is not None
    )
    found = next((one for one in files if one[1].digest == digest), None)
    if found is None:
        raise UnknownCall(f"no fact of {ref} names a file {digest} that the ledger has.")
    media, held = found
    match media.source:
        case e.Stored() as stored:
            data = await fetch(visit.reading.log, ref.workspace, stored)
        case _:
            assert isinstance(media.source, e.Inline), "`held_file`"
            data = decoded(media.source) or b""
    # No character of it may hide its ending, and a browser refuses a header without end.
    name = quote(visible(held.name)[-_NAME:] or f"{digest[:12]}.bin", safe="")
    how = "inline" if held.is_picture else "attachment"
    headers = {
        "Content-Disposition": f"{how}; filename*=UTF-8''{name}",
        "Content-Security-Policy": ALONE,
    }
    kind = held.media_type if held.is_picture else "application/octet-stream"
    return Response(data, headers=headers, media_type=kind)


@router.get("/threads/{workspace}/{thread}/reply", response_class=EventStream)
async def reply(
    ref: Named,
    visit: Reading,
    turn: Annotated[int | None, Query(ge=1, lt=2**63)] = None,
    last_event_id: Annotated[int | None, Header(ge=1, lt=2**63)] = None,
) -> EventStream:
    """The text of a turn while the model gives it: of `turn`, by default the turn in which the
    model is being asked, else the next one.

    `turn`: the text of this turn follows from its beginning. `text`: to be shown after what is
    shown already. `discarded`: what is shown is not part of the reply; the text begins anew.
    `ended`: the reply is recorded, and its text is what is shown. `failed`: there is no reply. The
    stream ends with one of these two. The id of each event is the turn: a client that reconnects
    with it in `Last-Event-ID` receives the same turn again, from the event `turn` on. A visitor
    follows 100 replies at a time; another one is answered 503.
    """
    if visit.backend.followed[visit.name] >= _FOLLOWED:
        raise Unavailable(
            f"{visit.name} follows {_FOLLOWED} replies already. Close one of them, or use "
            "`ayes follow`, which needs no console."
        )
    current = await current_turn(visit.reading, ref)
    chosen = last_event_id or turn or current
    events = _counted(_reply_events(visit.reading, ref, chosen), visit.backend.followed, visit.name)
    return EventStream(events, headers=STREAMING)


async def _counted(
    events: AsyncGenerator[bytes], followed: Counter[str], name: str
) -> AsyncGenerator[bytes]:
    """These events, as one more of what this visitor follows. Counted only once they are sent, so
    that a request that is broken off before is not counted for ever; so of many requests at once
    some are found to be too many here, and get no events. Their clients ask again.
    """
    if followed[name] >= _FOLLOWED:
        return
    followed[name] += 1
    try:
        async with aclosing(events):
            async for one in events:
                yield one
    finally:
        followed[name] -= 1
        if not followed[name]:
            del followed[name]


async def _reply_events(ledger: Ledger, ref: ThreadRef, turn: int) -> AsyncGenerator[bytes]:
    yield _sse(turn, "turn", {"turn": turn})
    async with aclosing(follow_reply(ledger, ref, turn)) as following:
        async for one in following:
            match one:
                case Fragment(text):
                    yield _sse(turn, "text", {"text": text})
                case Discarded():
                    yield _sse(turn, "discarded", {})
                case Ended(end=e.ModelReplied()):
                    yield _sse(turn, "ended", {})
                case Ended(end=end):
                    yield _sse(turn, "failed", {"error": views.failure(end)})


def _sse(turn: int, name: str, data: dict[str, str | int]) -> bytes:
    return format_sse_event(data_str=msgspec.json.encode(data).decode(), event=name, id=str(turn))


class NewMessage(ApiModel):
    """A message to the model."""

    #: A text, or texts and files in their order.
    text: GivenContent
    #: Its id in the thread, chosen by its author: the same message again is recorded once.
    message: str
    #: `note`: from the system, in the course of the conversation.
    role: Literal["system", "user", "note"] = "user"
    #: The author, if a thread has several users.
    name: str = ""


@router.post("/threads/{workspace}/{thread}/messages")
async def say(ref: Named, new: NewMessage, visit: Serving) -> views.ThreadMessage:
    """Add a message to a conversation. Repeating it is safe."""
    service = await visit.service()
    text = as_recorded(new.text)
    said = await service.say(ref, text, message=new.message, role=new.role, name=new.name)
    return views.thread_message(said)
