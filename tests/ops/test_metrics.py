"""The metrics: their values, their names, and the files of `deploy/` that use them."""

import json
import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta

import promql_parser
import pytest
import yaml
from paths import ROOT
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from ayes.consumers.webhooks.endpoints import EndpointStatus
from ayes.ledger.log import Parked
from ayes.ops.inspection.checks import FailingChannel, Look, Wanted, obstacle
from ayes.ops.inspection.health import Health
from ayes.ops.inspection.metrics import METRICS, Snapshot, exposition, values
from ayes.ops.inspection.nodes import Copies, Replica
from ayes.ops.inspection.progress import ConsumerStatus
from ayes.ops.sealing.status import SealStatus
from ayes.projections.tally import FactCounts

NOW = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
DASHBOARD = ROOT / "deploy" / "grafana" / "ayes.json"
PROMETHEUS = ROOT / "deploy" / "prometheus"
PROMTOOL = shutil.which("promtool")


WELL = Health(ok=True)


def at_work(name, **others):
    given = {"exists": True, "listening": True, "used": True} | others
    return ConsumerStatus(name, **given)


def looked(*consumers, **others):
    found = consumers or (at_work("gate"), at_work("queue"), at_work("closer", waiting=3))
    log = {"facts": 7, "last_seq": 7, "last_at": NOW, "bytes": 700, "limit_bytes": 10_000}
    return Look(consumers=found, **log, **{"health": WELL, **others})


STATUS = Look(
    seal=SealStatus(5, timedelta(seconds=90), 4, timedelta(), ("w1",), ("w1", "w2"), 1),
    in_doubt=["shop/t1/c1"],
    stopped=["stopped in workspace shop by ana"],
    void_runs={"shop/t1/c2": "the call was not decided before it"},
    streams=[
        Copies("LEDGER", "c", "n1", 3, (Replica("n2", away=True), Replica("n3", away=False))),
        Copies("TIMERS", "c", "n1", 3, (Replica("n2", away=True), Replica("n3", away=False))),
    ],
    channels=[FailingChannel("mail", NOW, "nobody answers"), FailingChannel("ntfy", NOW, "404")],
    calendars=[FailingChannel("ana", NOW, "it answered 404")],
    parked=[
        Parked("gate", 3, "ledger.a.b.said.m", "it cannot be read", 5, NOW),
        Parked("no\nconsumer", 4, "x", "written by somebody", 1, NOW),
    ],
    webhooks=[
        EndpointStatus("crm", "failing", "it answered 500", NOW, None, 3, []),
        EndpointStatus("erp", "in step", "", None, NOW, None, []),
    ],
)


def seen(**others):
    tally = FactCounts(5)
    tally.decisions["approved", "refunds"] = 2
    tally.durations["people"].add(90)
    whole = {
        "why": "",
        "is_up": True,
        "look": looked(),
        "health": Health(ok=True, free_bytes=10**9),
        "status": STATUS,
        "asked_at": [NOW - timedelta(minutes=1)],
        "tally": tally,
    }
    return Snapshot(NOW, **(whole | others))


def read(found):
    """All samples of the text, as Prometheus reads them: `{(name, labels): value}`."""
    text, content_type = exposition(found)
    assert content_type.startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


# ------------------------------------------------------------------------------------------ values


def test_each_metric_is_measured_and_no_other():
    """A whole site has all of them, under their own types and labels, in both formats."""
    for accept, parse in (
        ("", text_string_to_metric_families),
        ("application/openmetrics-text; version=1.0.0", openmetrics.text_string_to_metric_families),
    ):
        text, content_type = exposition(seen(), accept)
        assert content_type.startswith(accept or "text/plain")
        families = {one.name: one for one in parse(text.decode())}
        assert {name.removesuffix("_total") for name in METRICS} == set(families)
        for name, metric in METRICS.items():
            family = families[name.removesuffix("_total")]
            assert (family.type, family.documentation) == (metric.kind, metric.help)
            assert {frozenset(one.labels) - {"le"} for one in family.samples} == {
                frozenset(metric.labels)
            }


def test_the_values_are_what_was_seen():
    """Parked deliveries of foreign names are one series; a node is away once."""
    found = read(seen())
    assert found["ayes_ready", ()] == 1
    assert found["ayes_log_facts", ()] == 7
    assert found["ayes_monitor_uncounted_facts", ()] == 2
    assert found["ayes_nodes_away", ()] == 1
    assert found["ayes_calls_in_doubt", ()] == 1
    assert found["ayes_stops_in_force", ()] == 1
    assert found["ayes_calls_with_void_runs", ()] == 1
    assert found["ayes_failing_targets", (("kind", "webhook"),)] == 1
    assert found["ayes_failing_targets", (("kind", "channel"),)] == 2
    assert found["ayes_failing_targets", (("kind", "calendar"),)] == 1
    assert found["ayes_failing_targets", (("kind", "witness"),)] == 1
    assert (found["ayes_log_sealed_facts", ()], found["ayes_log_unsealed_seconds", ()]) == (5, 90)
    assert found["ayes_consumer_waiting_deliveries", (("consumer", "closer"),)] == 3
    parked = {labels[0][1]: n for (name, labels), n in found.items() if "parked" in name}
    assert {name: n for name, n in parked.items() if n} == {"gate": 1, "(other)": 1}
    labels = (("rule", "refunds"), ("verdict", "approved"))
    assert found["ayes_decisions_total", labels] == 2
    times = {
        dict(labels)["le"]: value
        for (name, labels), value in found.items()
        if name.endswith("_bucket") and dict(labels)["asked"] == "people"
    }
    assert (times["60.0"], times["300.0"], times["+Inf"]) == (0, 1, 1)


def test_pending_calls_by_age():
    """Each call is in one age, so that their sum is the number of pending calls; a clock that is
    ahead of ours makes a call new, and none makes an age negative.
    """
    ages = {
        "0-1m": [timedelta(seconds=-5), timedelta(), timedelta(seconds=59)],
        "1m-5m": [timedelta(minutes=1)],
        "5m-15m": [],
        "15m-1h": [timedelta(minutes=15), timedelta(minutes=59)],
        "1h-4h": [],
        "4h-1d": [timedelta(hours=23)],
        "1d-3d": [],
        "3d-": [timedelta(days=3), timedelta(days=300)],
    }
    asked_at = sorted(NOW - age for each in ages.values() for age in each)
    found = read(seen(asked_at=asked_at))
    for age, each in ages.items():
        assert found["ayes_pending_calls", (("age", age),)] == len(each), age
    assert found["ayes_pending_oldest_age_seconds", ()] == timedelta(days=300).total_seconds()
    none = read(seen(asked_at=[]))
    assert none["ayes_pending_oldest_age_seconds", ()] == 0
    assert none["ayes_pending_calls", (("age", "0-1m"),)] == 0
    ahead = read(seen(asked_at=[NOW + timedelta(hours=1)]))
    assert ahead["ayes_pending_oldest_age_seconds", ()] == 0


def test_what_is_not_known_is_not_reported():
    """While the broker is away, old figures would look like new ones; counters go on."""
    away = Snapshot(NOW, "no broker answers", tally=FactCounts(5))
    names = {name for name, _, _ in values(away)}
    assert {name for name in names if METRICS[name].kind == "gauge"} == {
        "ayes_build_info",
        "ayes_ready",
        "ayes_broker_up",
    }
    found = read(away)
    assert (found["ayes_ready", ()], found["ayes_broker_up", ()]) == (0, 0)
    assert found["ayes_facts_total", (("type", "Approved"),)] == 0
    empty = read(Snapshot(NOW, "there is no stream LEDGER here", is_up=True))
    assert (empty["ayes_ready", ()], empty["ayes_broker_up", ()]) == (0, 1)


@pytest.mark.parametrize(
    "name",
    [
        '"} 1\nayes_ready 0', "back\\slash", "\N{RIGHT-TO-LEFT OVERRIDE}x", "\N{PILE OF POO}", "\0",
        "{}",
    ],
)  # fmt: skip
def test_a_rules_name_cannot_disturb_the_text(name):
    """Names come from policies: whatever they hold, they are one label of one series."""
    tally = FactCounts()
    tally.decisions["denied", name] = 1
    tally.decisions["denied", "refunds"] = 2
    found = read(seen(tally=tally))
    counts = [value for (metric, _), value in found.items() if metric == "ayes_decisions_total"]
    assert counts == [1, 2]
    assert found["ayes_ready", ()] == 1


def test_names_that_look_the_same_are_one_series():
    """A hidden character is spelled out, and somebody else may have written its spelling."""
    tally = FactCounts()
    tally.decisions["denied", "x\u200b"] = 1
    tally.decisions["denied", r"x\u200b"] = 2
    [count] = [v for (name, _), v in read(seen(tally=tally)).items() if "decisions_total" in name]
    assert count == 3


# ----------------------------------------------------------------------------------- whether ready


@pytest.mark.parametrize(
    ("consumers", "wanted", "why"),
    [
        ([at_work("gate"), at_work("queue")], Wanted(), ""),
        ([at_work("gate")], Wanted(), "no queue is at work"),
        ([at_work("gate")], Wanted(["gate"]), ""),
        ([at_work("gate", waiting=10_001), at_work("queue")], Wanted(), "gate are behind: 10,001"),
        ([at_work("gate", waiting=10_000), at_work("queue")], Wanted(), ""),
        ([at_work("gate", waiting=6), at_work("queue")], Wanted(most_waiting=5), "and 5 may"),
        # Models and tools take long; and nobody uses this consumer.
        ([at_work("gate"), at_work("queue"), at_work("model", waiting=10**6)], Wanted(), ""),
        ([at_work("gate"), at_work("queue"), at_work("closer", waiting=10**6, listening=False)],
         Wanted(), ""),
        ([at_work("gate", frozen=True), at_work("queue")], Wanted(), "gate stand still"),
    ],
)  # fmt: skip
def test_ready_is_judged_by_what_was_seen(consumers, wanted, why):
    """No consumer may be further behind than the limit, and none may stand still."""
    found = obstacle(looked(*consumers, wanted=wanted))
    assert why in found
    assert bool(why) == bool(found)


def test_no_log_and_no_writes_are_obstacles():
    """Whatever the workers do."""
    assert "there is no stream LEDGER" in obstacle(Look(has_log=False))
    closed = Health(ok=False, why="the disk is full.")
    assert obstacle(looked(health=closed)) == "the disk is full."


# ------------------------------------------------------------------------------ names and documents


@pytest.mark.parametrize("name", METRICS)
def test_names_follow_the_conventions(name):
    """https://prometheus.io/docs/practices/naming/: a prefix, base units, `_total` for counters."""
    kind, text, labels = METRICS[name]
    assert re.fullmatch(r"ayes(_[a-z]+)+", name)
    assert name.endswith("_total") == (kind == "counter")
    assert not re.search(r"_(ms|milliseconds|minutes|hours|kilobytes|kb|mb|percent)(_|$)", name)
    assert re.fullmatch(r"\S.*\.", text)
    assert not {"le", "instance", "job", "workspace", "thread", "call", "tool"} & set(labels)


def test_the_metrics_are_as_documented():
    """The operators' table is this list."""
    _, _, rest = (ROOT / "docs" / "watching.md").read_text().partition("| metric | type |")
    rows = [row.split("|")[1:-1] for row in rest.split("\n\n", 1)[0].splitlines()[2:]]
    assert [tuple(cell.strip() for cell in row) for row in rows] == [
        (f"`{name}`", kind, ", ".join(f"`{one}`" for one in labels), text)
        for name, (kind, text, labels) in METRICS.items()
    ]


def queries():
    """Each query of the dashboard and of the alerts, with its place."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "5m")
    for group in yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def selectors(expression):
    """The metrics that a query names, each with the labels that it chooses by."""
    found = []

    def look(one):
        if isinstance(one, promql_parser.VectorSelector):
            found.append((one.name, {each.name for each in one.matchers.matchers}))

    promql_parser.walk(expression, look)
    return found


QUERIES = list(queries())


@pytest.mark.parametrize(("place", "query"), QUERIES, ids=[place for place, _ in QUERIES])
def test_a_query_is_promql_and_names_metrics_that_exist(place, query):
    """By a parser of the language; with the labels that each metric has."""
    named = selectors(promql_parser.parse(query))
    assert named
    for name, labels in named:
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        metric = METRICS[base if base in METRICS else name]
        assert (metric.kind == "histogram") == (base != name), name
        assert labels <= {"instance", *metric.labels}, name


def test_a_wrong_query_is_found():
    """The parser refuses what Prometheus would, and sees each metric of a nested query."""
    with pytest.raises(ValueError, match="parenthesis"):
        promql_parser.parse("sum(ayes_ready")
    nested = promql_parser.parse('max(rate(a_total{x="1"}[5m])) > 3 and on (y) (b == 1)')
    assert selectors(nested) == [("a_total", {"x"}), ("b", set())]


def test_each_metric_is_of_use():
    """It is drawn or alarmed, but for the version and the time of the last fact."""
    named = {name for _, query in QUERIES for name, _ in selectors(promql_parser.parse(query))}
    bases = {name if name in METRICS else name.rpartition("_")[0] for name in named}
    assert set(METRICS) - bases == {"ayes_build_info", "ayes_log_last_fact_timestamp_seconds"}


def test_alerts_say_what_to_do():
    """Each has a severity, a summary and a description, a name and a part of the runbook."""
    [group] = yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        place = rule["annotations"]["runbook_url"].partition("docs/runbook.md#")[2]
        assert place == rule["alert"].lower()
    names = [rule["alert"] for rule in group["rules"]]
    assert len(set(names)) == len(names)


def test_the_dashboard_can_be_loaded():
    """Each panel has a place of its own, and asks the data source that its reader chooses."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({one["id"] for one in panels}) == len(panels)
    taken = set()
    for one in panels:
        assert one["datasource"]["uid"] == "${datasource}"
        at = one["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, one["title"]
        taken |= cells


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yaml"),
        ("check", "rules", "alerts.yaml"),
        ("test", "rules", "alerts.test.yaml"),
    ],
    ids=" ".join,
)
def test_promtool_accepts_the_files(arguments):
    """Prometheus' own tool: the configuration, the alerts, and what these do."""
    ended = subprocess.run(
        [PROMTOOL, *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_accepts_the_metrics():
    """Its linter knows the conventions better than we do."""
    text, _ = exposition(seen())
    ended = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, b"")
