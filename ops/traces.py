"""Exporting traces: the SDK of OpenTelemetry, set up by its own environment variables.

    OTEL_EXPORTER_OTLP_ENDPOINT   where the collector is, such as http://127.0.0.1:4318
    OTEL_TRACES_EXPORTER          otlp, or none; by default otlp once there is an endpoint
    OTEL_SERVICE_NAME             by default ayes-gate, ayes-executor, ...: one for each worker
    and those of samplers, resources, batches, headers, certificates and time-outs

Without them nothing is imported. No setting, and no collector, keeps a worker from its work: spans
are queued in memory and sent by a thread of their own; if the queue is full, spans are dropped.
"""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache
from importlib.util import find_spec
from typing import Final

from ayes import __version__
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.ops.traces")

#: How long the end of a program waits until the last spans are sent.
FLUSH_S: Final = 3.0
INSTALL: Final = "pip install 'ayes[otel]'"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL: Final = "http/protobuf"


@asynccontextmanager
async def exporting() -> AsyncGenerator[None]:
    """Export the spans of this block, if the environment asks for it; then send the last ones."""
    shutdown = _start() if is_wanted(os.environ) else None
    try:
        yield
    finally:
        if shutdown is not None and not await _within(FLUSH_S, shutdown):
            _log.warning("the last spans are lost: nobody took them in time", waited_s=FLUSH_S)


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether the environment asks for traces. It is logged if they cannot be exported."""
    exporter = _first(environment, "OTEL_TRACES_EXPORTER")
    if exporter == "none" or _first(environment, "OTEL_SDK_DISABLED").lower() == "true":
        return False
    if not exporter and not _first(environment, *_ENDPOINTS):
        return False
    if exporter not in {"", "otlp"}:
        _log.warning("no traces: OTEL_TRACES_EXPORTER must be otlp or none", found=exporter)
        return False
    if (protocol := _first(environment, *_PROTOCOLS)) not in {"", _PROTOCOL}:
        _log.warning(f"no traces: {_PROTOCOLS[1]} must be {_PROTOCOL}", found=protocol)
        return False
    if not is_installed():
        _log.warning(f"no traces, although the environment asks for them: {INSTALL}")
        return False
    return True


def is_installed() -> bool:
    with suppress(ModuleNotFoundError):  # a package around it is missing
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    return False


def _first(environment: Mapping[str, str], *names: str) -> str:
    """The first of these variables that has a value. An empty one counts as absent."""
    return next(filter(None, (environment.get(name, "").strip() for name in names)), "")


def _start() -> Callable[[], None] | None:
    """Install a tracer provider; returns its shutdown function, None if one is installed already or
    this fails.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.util.types import Attributes

        if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            return None  # such as of `opentelemetry-instrument`

        batches = BatchSpanProcessor(OTLPSpanExporter())
        common = Resource.create({"service.version": __version__})
        is_named = not str(common.attributes[SERVICE_NAME]).startswith("unknown_service")

        @cache
        def provider(kind: str) -> TracerProvider:
            name = f"ayes-{kind}" if kind else "ayes"
            own = common if is_named else common.merge(Resource({SERVICE_NAME: name}))
            found = TracerProvider(resource=own, shutdown_on_exit=False)
            found.add_span_processor(batches)
            return found

        class ByKind(trace.TracerProvider):
            """One service for each kind of worker, although they may share a process."""

            def get_tracer(
                self,
                instrumenting_module_name: str,
                instrumenting_library_version: str | None = None,
                schema_url: str | None = None,
                attributes: Attributes = None,
            ) -> trace.Tracer:
                head, _, kind = instrumenting_module_name.partition(".")
                return provider(kind if head == "ayes" else "").get_tracer(
                    instrumenting_module_name, instrumenting_library_version, schema_url, attributes
                )

        trace.set_tracer_provider(ByKind())
    except Exception as problem:  # noqa: BLE001 - whatever is wrong with traces, calls get decided
        _log.warning("no traces", problem=f"{type(problem).__name__}: {problem}")
        return None
    return batches.shutdown


async def _within(limit_s: float, run: Callable[[], None]) -> bool:
    """Run it in a thread that nobody waits for at the end; returns whether it ended in time."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def thread() -> None:
        try:
            run()
        finally:
            with suppress(RuntimeError):  # the loop is closed by now
                loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=thread, name="last spans", daemon=True).start()
    try:
        async with asyncio.timeout(limit_s):
            await ended.wait()
    except TimeoutError:
        return False
    return True
