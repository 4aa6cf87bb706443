"""Which trace a fact belongs to, as values."""

import pytest
from opentelemetry import trace as api
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from traces import TRACE

from ayes.ledger import tracing

SAME_TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-1111111111111111-01"
OTHER_TRACE = "00-22222222222222222222222222222222-3333333333333333-00"


@pytest.mark.parametrize(
    ("header", "read"),
    [
        (TRACE, TRACE),
        (f" {TRACE}\t", TRACE),
        (f"cc{TRACE[2:]}-what-the-future-has", TRACE),
        (f"{TRACE}-more", ""),
        (f"ff{TRACE[2:]}", ""),
        (TRACE.upper(), ""),
        (TRACE[:-1], ""),
        (TRACE.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32), ""),
        (TRACE.replace("00f067aa0ba902b7", "0" * 16), ""),
        (f"cc{TRACE[2:]}-{'x' * 500}", ""),
        (f"{TRACE}\n{TRACE}", ""),
        ("", ""),
    ],
)
def test_a_header_is_read_as_the_w3c_says(header: str, read: str):
    """A version to come is read as far as it is known; anything invalid counts as absent."""
    assert tracing.traceparent(header) == read


@pytest.mark.parametrize(
    ("active", "before", "after"),
    [
        ("", "", ""),
        (OTHER_TRACE, "", OTHER_TRACE),
        ("", TRACE, TRACE),
        (SAME_TRACE, TRACE, SAME_TRACE),
        (OTHER_TRACE, TRACE, TRACE),
        (OTHER_TRACE, "nonsense", OTHER_TRACE),
        ("", "x" * 100_000, ""),
    ],
)
def test_a_fact_stays_in_the_trace_of_the_fact_before(active: str, before: str, after: str):
    """The active span counts if it is in that trace, or if there was none."""
    span = api.INVALID_SPAN
    if active:
        _, of_trace, of_span, flags = (int(part, 16) for part in active.split("-"))
        context = SpanContext(of_trace, of_span, is_remote=False, trace_flags=TraceFlags(flags))
        span = NonRecordingSpan(context)
    with api.use_span(span):
        assert tracing.continued(before) == after
