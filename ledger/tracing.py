"""Traces: the OpenTelemetry spans of deliveries, tools, models and votes, joined by facts.

    service ──requested──► gate ──gated── ··· days ··· ──vote──► gate ──decided──► executor
    a span                 a span                      a span    a span            a span

A fact carries the context of the span in which it was recorded, and whoever reacts to it opens a
span below that one. So a call is one trace from its request to its result, over processes, restarts
and days (docs/decisions/0039).

The rules of this file:

* It uses the API of OpenTelemetry alone; the SDK and the exporter are the program's
  (`ops/traces.py`). While nobody has imported the API, no span can be active: then nothing is
  imported, and facts still pass their contexts on.
* A fact about a call stays in the call's trace. A span of another trace in which it is recorded,
  such as that of a person's HTTP request, is linked.
* Names and attributes follow the semantic conventions for messaging, generative AI and HTTP. No
  attribute has arguments, outputs or texts: neither of people, nor of errors.
"""

import re
import sys
from collections.abc import Awaitable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from ayes.ledger.call import Call
from ayes.ledger.log import Delivered, TimerFired
from ayes.ledger.subscriptions import DURABLES
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.slots import CallRef, ThreadRef, matches

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, SpanKind, Tracer

type Attributes = Mapping[str, str | int]

_TRACEPARENT: Final = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})-(?P<span>(?!0{16})[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
#: A longer one is not read.
_LONGEST: Final = 512

#: The context that came with an HTTP request, for programs without OpenTelemetry.
_incoming: Final[ContextVar[str]] = ContextVar("incoming", default="")
#: The instrumentation scope, `ayes.<kind of worker>`, from which the exporter names the service.
_scope: Final[ContextVar[str]] = ContextVar("scope", default="ayes")


# ------------------------------------------------------------------------------ contexts of facts


def traceparent(text: str) -> str:
    """The trace context in a header or a fact, in the form of version 00; empty if invalid."""
    found = _TRACEPARENT.fullmatch(text.strip()) if 0 < len(text) <= _LONGEST else None
    if found is None or (found["version"] == "00" and found["more"]):
        return ""
    return f"00-{found['trace']}-{found['span']}-{found['flags']}"


def continued(trace: str) -> str:
    """The trace context of a new fact that follows from a fact with this one: that of the active
    span if it is in the same trace, or if there was none; else the same again.
    """
    before, active = traceparent(trace), _active()
    return active if not before or before[3:35] == active[3:35] else before


def about[E: e.Event](call: Call, event: E) -> E:
    """The event, in the trace of the call that it is about."""
    return msgspec.structs.replace(event, trace=event.trace or continued(call.trace))


def _active() -> str:
    """The context of the active span, or else that of the HTTP request; empty without either."""
    if _is_in_use():
        from opentelemetry.trace import get_current_span

        found = get_current_span().get_span_context()
        if found.is_valid:
            return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"
    return _incoming.get()


def _is_in_use() -> bool:
    """Whether the program has loaded OpenTelemetry. Otherwise no span can be active."""
    return "opentelemetry.trace" in sys.modules


def _has_provider() -> bool:
    """Whether the program does something with spans. Libraries alone load no more than the API."""
    if not _is_in_use():
        return False
    from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider

    return not isinstance(get_tracer_provider(), ProxyTracerProvider)


# ------------------------------------------------------------------------------------------ spans


async def processing(
    kind: str,
    durable: str,
    handed: Delivered,
    tries: int,
    settling: Awaitable[str],
    *,
    expected: tuple[type[Exception], ...] = (),
) -> str:
    """Settle a delivery in a span of its own, below the span that recorded the fact or timer.

    Args:
        kind: the kind of worker.
        settling: returns why the delivery must be parked, or an empty string.
        expected: exceptions that are not failures.
    """
    if not _has_provider():
        return await settling
    from opentelemetry.trace import SpanKind

    token = _scope.set(f"ayes.{kind}")
    try:
        attributes = _delivered(durable, handed, tries)
        with _span(
            f"process {attributes['messaging.destination.template']}",
            SpanKind.CONSUMER,
            attributes,
            continues=trace_of(handed),
            detached=True,
            expected=expected,
        ) as span:
            if reason := await settling:
                _fail(span, "parked")
            return reason
    finally:
        _scope.reset(token)


async def executing[R: e.Event](call: Call, running: Awaitable[R]) -> R:
    """Run a tool in a span that is linked to the request of the call, however long ago that was."""
    if not _has_provider():
        return await running
    from opentelemetry.trace import SpanKind

    attributes: Attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.wish.tool,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": str(call.ref),
        "ayes.attempt": call.attempt,
    }
    with _span(
        f"execute_tool {call.wish.tool}",
        SpanKind.INTERNAL,
        attributes,
        continues=call.trace,
        link=call.wish.trace,
    ) as span:
        outcome = await running
        if isinstance(outcome, e.ToolFailed):
            _fail(span, "tool_error")
        return outcome


class _Reply(Protocol):
    @property
    def usage(self) -> e.Usage: ...


async def asking[R: _Reply](model: str, thread: ThreadRef, replying: Awaitable[R]) -> R:
    """Ask a model (`provider:name`) in a span."""
    if not _has_provider():
        return await replying
    from opentelemetry.trace import SpanKind

    provider, _, name = model.partition(":")
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": name,
        "gen_ai.conversation.id": str(thread),
    }
    with _span(f"chat {name}", SpanKind.CLIENT, attributes) as span:
        reply = await replying
        span.set_attribute("gen_ai.usage.input_tokens", reply.usage.input_tokens)
        span.set_attribute("gen_ai.usage.output_tokens", reply.usage.output_tokens)
        return reply


@contextmanager
def voting(call: Call, verdict: e.Verdict) -> Generator[None]:
    """Record a vote in a span of the call's trace, linked to what the person does at the moment."""
    if not _has_provider():
        yield
        return
    from opentelemetry.trace import SpanKind

    attributes = {**_place(call.ref), "ayes.vote.verdict": verdict}
    with _span(f"vote {verdict}", SpanKind.PRODUCER, attributes, continues=call.trace):
        yield


class TracedRequest:
    """An HTTP request that is being answered, and what becomes known of it only then."""

    route: str = ""
    status: int = 0


@contextmanager
def serving(method: str, header: str) -> Generator[TracedRequest]:
    """Answer an HTTP request in a span, below that of its `traceparent` header.

    The URL is not recorded, since one may have a code in it; only its route is.
    """
    exchange, parent = TracedRequest(), traceparent(header)
    tokens = _incoming.set(parent), _scope.set("ayes.console")
    try:
        if not _has_provider():
            yield exchange
            return
        from opentelemetry.trace import SpanKind

        attributes = {"http.request.method": method}
        with _span(method, SpanKind.SERVER, attributes, continues=parent) as span:
            yield exchange
            span.set_attribute("http.response.status_code", exchange.status)
            if exchange.route:
                span.update_name(f"{method} {exchange.route}")
                span.set_attribute("http.route", exchange.route)
            if exchange.status >= 500:
                _fail(span, str(exchange.status))
    finally:
        _incoming.reset(tokens[0])
        _scope.reset(tokens[1])


@contextmanager
def _span(
    name: str,
    kind: "SpanKind",
    attributes: Attributes,
    *,
    continues: str = "",
    link: str = "",
    detached: bool = False,
    expected: tuple[type[Exception], ...] = (),
) -> Generator["Span"]:
    """A span that is active during the block; an exception fails it, by its type alone.

    Args:
        continues: the context of its parent, unless the active span is in the same trace already.
        link: a context that it is linked to.
        detached: the active span has nothing to do with it.
        expected: exceptions that do not fail it.
    """
    from opentelemetry import trace as api
    from opentelemetry.context import Context

    context = api.set_span_in_context(api.INVALID_SPAN, Context()) if detached else None
    active = api.get_current_span(context).get_span_context()
    parent, other = _span_context(continues), _span_context(link)
    links = [api.Link(other)] if other is not None else []
    if parent is not None and parent.trace_id != active.trace_id:
        context = api.set_span_in_context(api.NonRecordingSpan(parent), context)
        if active.is_valid:
            links.append(api.Link(active))
    with _tracer(_scope.get()).start_as_current_span(
        name,
        context,
        kind,
        attributes,
        links,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except expected:
            raise
        except BaseException as problem:
            _fail(span, type(problem).__qualname__)
            raise


@cache
def _tracer(scope: str) -> "Tracer":
    # Before the program has set its provider, this is a proxy that finds it later.
    from opentelemetry.trace import get_tracer

    return get_tracer(scope)


def _span_context(trace: str) -> "SpanContext | None":
    from opentelemetry.trace import SpanContext, TraceFlags

    if not (known := traceparent(trace)):
        return None
    _, of_trace, of_span, flags = (int(part, 16) for part in known.split("-"))
    return SpanContext(of_trace, of_span, is_remote=True, trace_flags=TraceFlags(flags))


def _fail(span: "Span", error_type: str) -> None:
    from opentelemetry.trace import StatusCode

    span.set_attribute("error.type", error_type)
    span.set_status(StatusCode.ERROR)


# ------------------------------------------------------------------------------------- deliveries


def trace_of(handed: Delivered) -> str:
    """The trace context of a delivered fact or timer."""
    match handed:
        case TimerFired(trace=trace) | Fact(event=e.Event(trace=trace)):
            return trace
        case _:
            return ""


def _delivered(durable: str, handed: Delivered, tries: int) -> dict[str, str | int]:
    consumer = DURABLES[durable]
    if isinstance(handed, TimerFired):
        ref = handed.call
        subject = f"timer.due.{ref.workspace}.{ref.thread}.{ref.call}"
        place, about_fact = _place(ref), {}
    else:
        subject, of_call = handed.slot.subject, handed.slot.call_ref
        place = _place(of_call) if of_call else {"ayes.workspace": handed.slot.workspace}
        about_fact = {
            "messaging.message.id": handed.event.id,
            "ayes.fact.type": handed.event.type
            if isinstance(handed.event, e.Carried)
            else type(handed.event).__name__,
        }
    patterns = DURABLES[consumer.origin].subjects
    template = next((one for one in patterns if matches(one, subject)), consumer.stream)
    return {
        "messaging.system": "nats",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": subject,
        "messaging.destination.template": template,
        "messaging.consumer.group.name": durable,
        **about_fact,
        **place,
        "ayes.fact.seq": handed.seq,
        "ayes.delivery.tries": tries,
    }


def _place(ref: CallRef) -> dict[str, str | int]:
    return {"ayes.workspace": ref.workspace, "ayes.thread": ref.thread, "ayes.call": ref.call}
