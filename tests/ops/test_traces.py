"""Traces as `ayes work` exports them: over OTLP, from several processes and across a restart."""

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
import until
from program import environment, started
from structlog.testing import capture_logs
from traces import collector, named, path, recorded

from ayes.ledger.clients.services import Ledger
from ayes.ops import traces
from ayes.ops.broker.server import ensure_account
from ayes.ops.traces import FLUSH_S, exporting, is_wanted
from ayes.schemas.policy import applied
from ayes.schemas.slots import CallRef, policy_slot

TOOLS = """
from ayes import Tools

tools = Tools()


@tools.add(name="refund")
def refund(order: str) -> str:
    return f"{order} given back"
"""
ALLOW = '[[rule]]\nname = "all"\ntools = ["*"]\nthen = "allow"\n'
REF = CallRef("shop", "order-17", "refund-1")
CALL = "process ledger.*.*.call.*."
HERE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[MutableMapping[str, Any]]]:
    """What is logged."""
    monkeypatch.setattr(
        traces, "_log", structlog.wrap_logger(None, wrapper_class=structlog.BoundLogger)
    )
    with capture_logs() as logged:
        yield logged


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "traced_tools.py").write_text(TOOLS)
    monkeypatch.chdir(tmp_path)
    return "traced_tools:tools"


@contextmanager
def at_work(
    store: Path, tools: str, log: Path, url: str, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """Gate and executor in a process of their own, exporting to this collector."""
    variables["OTEL_EXPORTER_OTLP_ENDPOINT"] = url
    words = ("work", "gate", "executor", "--tools", tools, "-w", "shop", "--store", store, "--json")
    with started(*words, log=log, **variables) as process:
        assert process.stdout
        assert process.stdout.readline(), log.read_text()
        yield process


async def test_one_trace_over_two_processes_and_a_restart(store: Path, tmp_path: Path, tools: str):
    """The workers end while people are asked, and others go on: the result's span is below that of
    the request, which was in this process. Each kind of worker is a service.
    """
    log = tmp_path / "log"
    await ensure_account(store, "reviewer-ana")
    with collector() as received, recorded() as here:
        async with (
            Ledger.connect(store, name="desk") as service,
            Ledger.connect(store, role="reviewer-ana") as reviewer,
        ):
            with at_work(store, tools, log, received.url):
                with here.tracer.start_as_current_span("the service"):
                    await service.request(REF, "refund", '{"order":"A-17"}', requester="rita")
                await until.recorded(service, REF.gated.subject)
            first = len(received.spans)
            with at_work(store, tools, log, received.url):
                await reviewer.reviewer("ana").approve(REF)
                await until.recorded(service, REF.finished.subject)
            call = await service.call(REF)
    spans = [*received.spans, *here.spans]
    assert call.finished
    assert path(spans, call.finished.event.trace) == [
        f"{CALL}decided", f"{CALL}vote.*", "vote approve", f"{CALL}requested", "the service",
    ]  # fmt: skip
    assert {one.trace for one in spans} == {named(here.spans, "the service").trace}
    assert named(received.spans[:first], f"{CALL}requested").service == "ayes-gate"
    assert named(received.spans[first:], f"{CALL}vote.*").service == "ayes-gate"
    tool = named(received.spans[first:], "execute_tool refund")
    assert tool.service == "ayes-executor"
    assert tool.links == (named(here.spans, "the service").id,)
    assert "A-17" not in str(received.spans)


async def test_a_collector_that_never_answers_delays_nothing(
    store: Path, tmp_path: Path, tools: str
):
    """It accepts connections and is silent: the call ends, and so does the program, soon enough."""
    log = tmp_path / "log"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with Ledger.connect(store, role="operator") as operator:
            await operator.append(policy_slot("shop", 1), applied(ALLOW))
        patient = {"OTEL_EXPORTER_OTLP_TIMEOUT": "60"}
        with at_work(store, tools, log, url, **patient) as process:
            async with Ledger.connect(store, name="desk") as service:
                await service.request(REF, "refund", '{"order":"A-17"}', requester="rita")
                await until.recorded(service, REF.finished.subject)
            begun = time.monotonic()
            process.terminate()
            assert await asyncio.to_thread(process.wait, 60) == 0
            took_s = time.monotonic() - begun
    # The SDK itself would wait for thirty seconds.
    assert FLUSH_S <= took_s < 30
    assert "the last spans are lost" in log.read_text()


async def test_the_end_waits_for_the_last_spans_only_so_long():
    """Whether they were sent in time is known, and the thread that sends them keeps nobody."""
    assert await traces._within(20, lambda: None)
    never = threading.Event()
    assert not await traces._within(0.05, never.wait)
    never.set()


@pytest.mark.parametrize(
    ("variables", "wanted", "problem"),
    [
        ({}, False, ""),
        (HERE, True, ""),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True, ""),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True, ""),
        ({**HERE, "OTEL_TRACES_EXPORTER": ""}, True, ""),
        ({**HERE, "OTEL_TRACES_EXPORTER": "none"}, False, ""),
        ({**HERE, "OTEL_SDK_DISABLED": "TRUE"}, False, ""),
        ({**HERE, "OTEL_TRACES_EXPORTER": "zipkin"}, False, "OTEL_TRACES_EXPORTER must be otlp"),
        ({**HERE, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True, ""),
        ({**HERE, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, False, "must be http/protobuf"),
        ({"OTEL_SERVICE_NAME": "approvals"}, False, ""),
    ],
)
def test_the_environment_says_whether_traces_are_exported(
    variables: dict[str, str], wanted: bool, problem: str, heard: list[MutableMapping[str, Any]]
):
    """The variables of OpenTelemetry; what cannot be done is logged and never an error."""
    assert is_wanted(variables) is wanted
    assert [problem in one["event"] for one in heard] == ([True] if problem else [])


async def test_without_the_extra_or_with_bad_settings_the_work_goes_on(
    monkeypatch: pytest.MonkeyPatch, heard: list[MutableMapping[str, Any]]
):
    """The log says what to install, or what is wrong."""
    for name, value in HERE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    async with exporting():
        pass
    monkeypatch.setattr(traces, "is_installed", lambda: False)
    async with exporting():
        pass
    invalid, missing = heard
    assert invalid["problem"] == "ValueError: max_queue_size must be a positive integer."
    assert "pip install 'ayes[otel]'" in missing["event"]


def test_a_program_without_these_variables_does_not_load_opentelemetry():
    """So it is not slower for it, and the extra need not be installed."""
    script = (
        "import asyncio, sys\n"
        "sys.modules['opentelemetry'] = None\n"  # any import of it fails
        "from ayes.ledger import tracing\n"
        "from ayes.interfaces.cli import run, up, console\n"
        "from ayes.ops.traces import exporting\n"
        "async def main():\n"
        "    async with exporting(): print(repr(tracing.continued('')))\n"
        "asyncio.run(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("''\n", "")
