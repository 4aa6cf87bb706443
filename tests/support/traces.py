"""Spans of this process, kept in memory; and a collector that receives those of other processes."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, Tracer

from ayes.ledger import tracing

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Span(NamedTuple):
    """A finished span, wherever it was received. Ids are hexadecimal."""

    name: str
    trace: str
    id: str
    parent: str
    service: str
    attributes: dict[str, object]
    #: The ids of spans.
    links: tuple[str, ...]
    is_error: bool
    #: Whatever else it says in words: its status and its events.
    words: str


class Recorded:
    """The spans of this process."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.provider = provider
        self.tracer: Tracer = provider.get_tracer("the service's own")

    @property
    def spans(self) -> list[Span]:
        return [_of_sdk(one) for one in self._exporter.get_finished_spans()]


@contextmanager
def recorded() -> Iterator[Recorded]:
    """Keep the spans of this block, without a provider for the whole process."""
    found = Recorded()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing, "_has_provider", lambda: True)
        patch.setattr(tracing, "_tracer", found.provider.get_tracer)
        yield found


class Collector:
    """What was received over OTLP."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Span] = []


@contextmanager
def collector() -> Iterator[Collector]:
    """A receiver of OTLP over HTTP, on loopback."""

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces", self.path
            body = self.rfile.read(int(self.headers["content-length"]))
            found.spans += _of_otlp(ExportTraceServiceRequest.FromString(body))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        found = Collector(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()


def named(spans: Iterable[Span], name: str) -> Span:
    """The one span of this name."""
    [found] = [one for one in spans if one.name == name]
    return found


def path(spans: Sequence[Span], trace: str) -> list[str]:
    """The names from the span of a fact's `trace` up to the root; each must have been received."""
    by_id = {one.id: one for one in spans}
    names, above = [], trace.split("-")[2]
    while above:
        names.append(by_id[above].name)
        assert by_id[above].trace == trace.split("-")[1]
        above = by_id[above].parent
    return names


def _of_sdk(span: ReadableSpan) -> Span:
    assert span.context
    return Span(
        span.name,
        f"{span.context.trace_id:032x}",
        f"{span.context.span_id:016x}",
        f"{span.parent.span_id:016x}" if span.parent else "",
        str(span.resource.attributes["service.name"]),
        dict(span.attributes or {}),
        tuple(f"{one.context.span_id:016x}" for one in span.links),
        span.status.status_code is StatusCode.ERROR,
        f"{span.status.description or ''}{''.join(str(one.attributes) for one in span.events)}",
    )


def _of_otlp(request: ExportTraceServiceRequest) -> Iterator[Span]:
    for batch in request.resource_spans:
        service = _values(batch.resource.attributes)["service.name"]
        for span in (one for scope in batch.scope_spans for one in scope.spans):
            yield Span(
                span.name,
                span.trace_id.hex(),
                span.span_id.hex(),
                span.parent_span_id.hex(),
                service,
                _values(span.attributes),
                tuple(one.span_id.hex() for one in span.links),
                span.status.code == 2,
                f"{span.status.message}{''.join(str(one) for one in span.events)}",
            )


def _values(attributes) -> dict[str, object]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
