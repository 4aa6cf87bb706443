"""The stream of events, as server-sent events (HTML Living Standard, section 9.2)."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Final

import msgspec
from fastapi import Header, Query
from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event

from ayes.interfaces.api.base import ApiRouter
from ayes.interfaces.api.feed import (
    EventFilter,
    FeedEvent,
    Heartbeat,
    ListChanged,
    LookingToo,
    Reset,
    Sent,
)
from ayes.interfaces.api.identity import Reading
from ayes.schemas.slots import CallRef

router: Final = ApiRouter(tags=["events"])

#: The last sequence that NATS can have.
_MAX_SEQUENCE: Final = 2**64 - 1
#: How long a browser waits before it connects again, in milliseconds.
_RETRY_MS: Final = 1000
#: Headers of a stream: no proxy may cache or buffer events; the second is for nginx.
STREAMING: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventStream(StreamingResponse):
    """Events in bytes. FastAPI's own response of this kind takes them one by one, which costs three
    tasks each; here those that come together are sent together.
    """

    media_type = "text/event-stream"


@router.get("/events", response_class=EventStream)
async def events(
    visit: Reading,
    workspace: str = "",
    thread: str = "",
    call: str = "",
    shown: str = "",
    after: Annotated[int | None, Query(ge=0, le=_MAX_SEQUENCE)] = None,
    last_event_id: Annotated[int | None, Header(ge=0, le=_MAX_SEQUENCE)] = None,
) -> EventStream:
    """The events of all calls, or of those selected, as they happen; it does not end.

    The id of an event is the number of its fact in the log. The stream begins behind
    `Last-Event-ID`, else behind `after`, else with what happens next. `requested`, `waiting`,
    `voted`, `decided`, `started` and `finished` say what became of a call; `changed` is any other
    fact. Keep the state with the greatest `as_of`.

    `listed`: the list of waiting calls has changed. `broker`, every 2 s and when it changes:
    whether the broker answers. `reset`: events are missing here, so read your lists again.
    `looking`: who else has the page of `shown` open; with a token you are none of them.
    """
    chosen = EventFilter(workspace, thread, call=call)
    position = after if last_event_id is None else last_event_id
    ref = CallRef.parse(shown) if shown else None
    return EventStream(_encoded(visit.events(chosen, position, ref)), headers=STREAMING)


async def _encoded(events: AsyncGenerator[list[Sent]]) -> AsyncGenerator[bytes]:
    yield format_sse_event(retry=_RETRY_MS)
    async with aclosing(events) as sent:
        async for together in sent:
            yield b"".join(map(_sse, together))


def _sse(sent: Sent) -> bytes:
    match sent:
        case FeedEvent(type=kind):
            name: str = kind
        case Heartbeat():
            name = "broker"
        case Reset():
            name = "reset"
        case ListChanged():
            name = "listed"
        case LookingToo():
            name = "looking"
    seq = None if isinstance(sent, ListChanged | LookingToo) else sent.seq
    return format_sse_event(
        data_str=msgspec.json.encode(sent).decode(),
        event=name,
        id=None if seq is None else str(seq),
    )
