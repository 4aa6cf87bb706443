"""The metrics: their names, and their values from what a monitor knows.

`METRICS` is the whole list. docs/watching.md shows it, and the dashboard and the alerts of
`deploy/` use nothing else; tests compare them. Names and units follow Prometheus' conventions
(https://prometheus.io/docs/practices/naming/).

* Nothing is reported that is not known at the moment: while the broker does not answer, the gauges
  about it are absent rather than old.
* The number of series is bounded, whatever the log holds: labels are ours, but for the names of
  rules, of which `projections/tally.py` tells a hundred apart. There is no label for workspaces,
  tools, people or calls.
* A scrape asks the broker nothing.
"""

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from msgspec import Struct

from ayes import __version__
from ayes.ledger.subscriptions import DURABLES, PARKED
from ayes.ops.inspection.checks import Look
from ayes.ops.inspection.health import Health
from ayes.projections.tally import BOUNDS_S, OTHER, FactCounts, Histogram
from ayes.schemas.visible import visible

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family


class Metric(NamedTuple):
    kind: Literal["gauge", "counter", "histogram"]
    #: One sentence.
    help: str
    labels: tuple[str, ...] = ()


#: By name. A counter's samples end in `_total`, a histogram's in `_bucket`, `_sum` and `_count`.
METRICS: Final[dict[str, Metric]] = {
    "ayes_build_info": Metric("gauge", "1, with the version of the monitor.", ("version",)),
    # Is it well?
    "ayes_ready": Metric("gauge", "1 if calls get decided, as /readyz says; else 0."),
    "ayes_broker_up": Metric("gauge", "1 if the broker answers, else 0."),
    "ayes_log_writable": Metric("gauge", "1 if the log takes writes, else 0."),
    "ayes_alarms": Metric("gauge", "Alarms of `ayes status`."),
    "ayes_failing_targets": Metric(
        "gauge", "Receivers outside of the ledger that cannot be reached, by kind.", ("kind",)
    ),
    "ayes_nodes_away": Metric("gauge", "Nodes of the cluster that are away."),
    # The log.
    "ayes_log_facts": Metric("gauge", "Facts in the log."),
    "ayes_log_bytes": Metric("gauge", "Bytes of the log."),
    "ayes_log_limit_bytes": Metric("gauge", "Bytes beyond which the log refuses facts."),
    "ayes_log_last_fact_timestamp_seconds": Metric("gauge", "When the last fact was recorded."),
    "ayes_log_sealed_facts": Metric("gauge", "Facts that are sealed."),
    "ayes_log_unsealed_seconds": Metric(
        "gauge", "How old the first fact is that is not sealed; 0 if all are."
    ),
    "ayes_store_free_bytes": Metric("gauge", "Free bytes on the disk of the store."),
    "ayes_facts_total": Metric(
        "counter", "Facts recorded since the monitor started, by type.", ("type",)
    ),
    "ayes_monitor_uncounted_facts": Metric(
        "gauge", "Facts in the log that the counters do not have yet."
    ),
    # People.
    "ayes_pending_calls": Metric(
        "gauge", "Calls that wait for people, by how long they were asked ago.", ("age",)
    ),
    "ayes_pending_oldest_age_seconds": Metric(
        "gauge", "How long ago people were asked about the oldest pending call; 0 without one."
    ),
    "ayes_calls_in_doubt": Metric("gauge", "Calls in doubt, which a person must reconcile."),
    "ayes_stops_in_force": Metric("gauge", "Stops in force: what they cover does not start."),
    "ayes_calls_with_void_runs": Metric(
        "gauge", "Calls with a start or result of the last week that counts for nothing."
    ),
    # Decisions.
    "ayes_decisions_total": Metric(
        "counter",
        "Decisions recorded since the monitor started, by verdict and rule.",
        ("verdict", "rule"),
    ),
    "ayes_decision_duration_seconds": Metric(
        "histogram",
        "From the request of a call to its decision, by whether people were asked.",
        ("asked",),
    ),
    # Workers.
    "ayes_consumer_listening": Metric(
        "gauge", "1 if a worker of the consumer is connected, else 0.", ("consumer",)
    ),
    "ayes_consumer_waiting_deliveries": Metric(
        "gauge", "Deliveries that no worker has received yet: the lag.", ("consumer",)
    ),
    "ayes_consumer_unacknowledged_deliveries": Metric(
        "gauge", "Deliveries that a worker has and has not finished.", ("consumer",)
    ),
    "ayes_consumer_frozen": Metric(
        "gauge", "1 if its workers stand still while work waits, else 0.", ("consumer",)
    ),
    "ayes_parked_deliveries": Metric(
        "gauge", "Deliveries that the consumer gave up on, until somebody handles them.",
        ("consumer",),
    ),
}  # fmt: skip

#: The ages of pending calls: each from its name's first bound on, up to the next one's.
_AGES: Final[dict[str, timedelta]] = {
    "0-1m": timedelta(),
    "1m-5m": timedelta(minutes=1),
    "5m-15m": timedelta(minutes=5),
    "15m-1h": timedelta(minutes=15),
    "1h-4h": timedelta(hours=1),
    "4h-1d": timedelta(hours=4),
    "1d-3d": timedelta(days=1),
    "3d-": timedelta(days=3),
}
#: The consumers whose parked deliveries are counted by name.
_CONSUMERS: Final = tuple(name for name, one in DURABLES.items() if one.stream != PARKED)


class Snapshot(Struct, frozen=True):
    """What a monitor knows at one moment. A part that it does not know is None."""

    now: datetime
    #: Why calls do not get decided; empty if they do.
    why: str
    #: Whether the broker answers.
    is_up: bool = False
    look: Look | None = None
    health: Health | None = None
    status: Look | None = None
    #: When people were asked about each pending call, in the order of the log.
    asked_at: Sequence[datetime] | None = None
    tally: FactCounts | None = None


#: A metric's name, the values of its labels, and its value.
type Value = tuple[str, tuple[str, ...], float | Histogram]


def values(seen: Snapshot) -> Iterator[Value]:
    """The value of each metric that is known."""
    yield "ayes_build_info", (__version__,), 1
    yield "ayes_ready", (), not seen.why
    yield "ayes_broker_up", (), seen.is_up
    if seen.health is not None:
        yield "ayes_log_writable", (), seen.health.ok
        if seen.health.free_bytes is not None:
            yield "ayes_store_free_bytes", (), seen.health.free_bytes
    if seen.look is not None and seen.look.has_log:
        yield from _of_broker(seen.look)
    if seen.status is not None:
        yield from _of_status(seen.status)
    if seen.asked_at is not None:
        yield from _of_pending(seen.asked_at, seen.now)
    if seen.tally is not None:
        yield from _of_tally(seen.tally)
        if seen.look is not None and seen.look.has_log:
            behind = max(0, seen.look.last_seq - seen.tally.seq)
            yield "ayes_monitor_uncounted_facts", (), behind


def _of_broker(look: Look) -> Iterator[Value]:
    yield "ayes_log_facts", (), look.facts
    yield "ayes_log_bytes", (), look.bytes
    if look.limit_bytes is not None:
        yield "ayes_log_limit_bytes", (), look.limit_bytes
    if look.last_at is not None:
        yield "ayes_log_last_fact_timestamp_seconds", (), look.last_at.timestamp()
    for one in look.consumers:
        if one.is_shown:
            yield "ayes_consumer_listening", (one.name,), one.listening
            yield "ayes_consumer_waiting_deliveries", (one.name,), one.waiting
            yield "ayes_consumer_unacknowledged_deliveries", (one.name,), one.in_hand
            yield "ayes_consumer_frozen", (one.name,), one.frozen


def _of_status(status: Look) -> Iterator[Value]:
    yield "ayes_alarms", (), len(status.alarms)
    failing = sum(one.is_alarming for one in status.webhooks)
    yield "ayes_failing_targets", ("webhook",), failing
    if status.channels is not None:
        yield "ayes_failing_targets", ("channel",), len(status.channels)
    if status.calendars is not None:
        yield "ayes_failing_targets", ("calendar",), len(status.calendars)
    if status.seal is not None:
        yield "ayes_failing_targets", ("witness",), len(status.seal.silent)
        yield "ayes_failing_targets", ("copy",), int(bool(status.seal.copies_alarm))
        yield "ayes_log_sealed_facts", (), status.seal.sealed
        yield "ayes_log_unsealed_seconds", (), status.seal.unsealed.total_seconds()
    yield "ayes_nodes_away", (), len({node for one in status.streams for node in one.away})
    if status.in_doubt is not None:
        yield "ayes_calls_in_doubt", (), len(status.in_doubt)
    if status.stopped is not None:
        yield "ayes_stops_in_force", (), len(status.stopped)
    if status.void_runs is not None:
        yield "ayes_calls_with_void_runs", (), len(status.void_runs)
    own = (one.name for one in status.consumers if one.login and one.kind.stream != PARKED)
    parked = Counter(dict.fromkeys((*_CONSUMERS, *own), 0))
    # Anybody with a worker's login can write an entry, with any name in it.
    parked.update(one.consumer if one.consumer in parked else OTHER for one in status.parked)
    for consumer, count in parked.items():
        yield "ayes_parked_deliveries", (consumer,), count


def _of_pending(asked_at: Sequence[datetime], now: datetime) -> Iterator[Value]:
    # The log is in the order of the broker's clock, so each age is a run of calls.
    begins = [bisect_right(asked_at, now - least) for least in _AGES.values()]
    begins[0] = len(asked_at)  # also those from a clock that is ahead of ours
    for age, (end, begin) in zip(_AGES, pairwise([*begins, 0]), strict=True):
        yield "ayes_pending_calls", (age,), end - begin
    oldest_s = (now - asked_at[0]).total_seconds() if asked_at else 0.0
    yield "ayes_pending_oldest_age_seconds", (), max(0.0, oldest_s)


def _of_tally(tally: FactCounts) -> Iterator[Value]:
    for kind, count in tally.facts.items():
        yield "ayes_facts_total", (kind,), count
    decisions: Counter[tuple[str, str]] = Counter()
    for (verdict, rule), count in tally.decisions.items():
        decisions[verdict, visible(rule)] += count  # two names may look the same
    for labels, count in decisions.items():
        yield "ayes_decisions_total", labels, count
    for asked, histogram in tally.durations.items():
        yield "ayes_decision_duration_seconds", (asked,), histogram


# ------------------------------------------------------------------------------ as Prometheus reads


def exposition(seen: Snapshot, accept: str = "") -> tuple[bytes, str]:
    """The metrics in the text format that this `Accept` header asks for, and its content type.

    Needs the extra `metrics`.
    """
    from prometheus_client.exposition import choose_encoder

    encode, content_type = choose_encoder(accept)
    return encode(_Collected(values(seen))), content_type


class _Collected:
    """Our values as the client library's families."""

    def __init__(self, found: Iterable[Value]) -> None:
        self._found = defaultdict[str, list[tuple[tuple[str, ...], float | Histogram]]](list)
        for name, labels, value in found:
            self._found[name].append((labels, value))

    def collect(self) -> "Iterator[Family]":
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        for name, found in self._found.items():
            kind, text, names = METRICS[name]
            family: Family
            if kind == "histogram":
                family = HistogramMetricFamily(name, text, labels=names)
                for labels, value in found:
                    assert isinstance(value, Histogram), f"{name} is a histogram"
                    family.add_metric(labels, _buckets(value), value.sum_s)
            else:
                number = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
                family = number(name, text, labels=names)
                for labels, value in found:
                    assert not isinstance(value, Histogram), f"{name} is a number"
                    family.add_metric(labels, value)
            yield family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    from prometheus_client.utils import floatToGoString

    bounds = map(floatToGoString, (*BOUNDS_S, math.inf))
    return list(zip(bounds, accumulate(histogram.counts), strict=True))
