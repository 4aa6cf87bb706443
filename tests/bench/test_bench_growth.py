"""How cost grows, the charts, and what is calculated from both: at the smallest sizes, and never
how fast.

What is measured is measured for real, so a line that comes was earned. What is drawn and calculated
must be what the lines say, and docs/capacity.md must be what its own figures give.
"""

import itertools
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from paths import ROOT
from program import environment

from ayes.ledger.clients.services import Ledger
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.broker.setup import declare_streams
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import ThreadRef
from bench import capacity, charts, cycle, growth, lake, logs
from bench.growth import Cost, Growing
from bench.results import SYNC, Result, compared, read_results

SVG = "{http://www.w3.org/2000/svg}"
SIZES = (3_000, 6_000)
COUNTS = (1, 2)
CYCLES = 10
OF_THE_LOG = {
    growth.WRITTEN, growth.STARTED, growth.A_FACT, growth.DISK, growth.DISK_A_FACT, growth.START,
    growth.HEAP, growth.SUBJECTS, growth.KILLED, growth.CONNECT, growth.CALL, growth.HISTORY,
    growth.QUEUE, growth.REPLAY, growth.APPEND, growth.APPENDS,
    growth.APPROVAL,
}  # fmt: skip
OF_PROCESSES = {growth.CYCLES, growth.VOTE_TO_START, growth.WORKER}


def program(
    *arguments: object, timeout_s: float = 100, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        env=environment(BENCH_DATE="2026-11-21", **variables),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def result(workload="growth", what="disk", value=2.0, floor=1.0, facts=1_000, **more) -> Result:
    told = {
        "unit": "MB",
        "beside": "with 500 facts",
        "better": "lower",
        "target": None,
        "sync": SYNC,
    } | more
    unit = told.pop("unit")
    return compared(
        workload, what, unit, [value], [floor], facts=facts, nats_server="2.15.0", **told
    )


def of_cost(cost: Cost, facts: int, value: float) -> Result:
    return result(what=cost.what, unit=cost.unit, better=cost.better, facts=facts, value=value)


# ------------------------------------------------------------------------------------------- growth


def test_growth_tells_every_cost_at_every_size_beside_the_first():
    """One JSON line a cost and size, on logs of exactly these sizes; a target only where nothing
    may grow, and not at first.
    """
    done = program(
        *("bench.growth", "--facts", ",".join(map(str, SIZES))),
        *("--processes", ",".join(map(str, COUNTS))),
        *("--cycles", CYCLES, "--rounds", 1, "--json"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [msgspec.json.decode(line, type=Result) for line in done.stdout.splitlines()]
    assert all(
        set(json.loads(line)) == set(Result.__struct_encode_fields__)
        for line in done.stdout.splitlines()
    )
    told = {(one.workload, one.what, one.facts): one for one in found}
    wanted = {
        ("growth", cost.what, facts): (cost, facts > SIZES[0])
        for cost in OF_THE_LOG
        for facts in SIZES
    }
    wanted |= {
        ("processes", f"{cost.what}, {words}", 6 * CYCLES): (cost, words != "1 process")
        for cost in OF_PROCESSES
        for words in ("1 process", "2 processes")
    }
    assert len(found) == len(told)
    assert told.keys() == wanted.keys()
    for key, (cost, later) in wanted.items():
        one = told[key]
        assert all(
            math.isfinite(figure) and figure > 0 for figure in (one.value, one.floor, one.ratio)
        )
        assert (one.unit, one.better, one.date) == (cost.unit, cost.better, "2026-11-21")
        assert bool(one.target) == (cost.flat and later)
        if not later:
            assert (one.value, one.ratio) == (one.floor, 1)
        elif one.workload == "growth":
            assert one.floor == told["growth", cost.what, SIZES[0]].value
            assert one.beside == "with 3,000 facts"
    for facts in SIZES:
        for whole, each in ((growth.DISK, growth.DISK_A_FACT), (growth.WRITTEN, growth.A_FACT)):
            share = told["growth", whole.what, facts].value * (1 << 20) / facts
            assert told["growth", each.what, facts].value == pytest.approx(share, rel=0.01)
    # Twice the facts are about twice the bytes, whatever the machine.
    assert 1.5 < told["growth", growth.DISK.what, SIZES[1]].ratio < 2.5


async def test_a_store_grows_by_what_comes_next_also_after_it_was_left(tmp_path):
    """The same facts stand there whether a log grew at once or in steps, and nothing is written
    twice.
    """
    growing = Growing(tmp_path / "store")
    held = await growing.begin()
    for facts in (held + 300, held + 700):
        async with growing.running(), Ledger.connect(growing.store, role="admin") as ledger:
            await growing.grow(ledger, facts)
            assert await ledger.log.last_seq() == facts
        growing = Growing(growing.store)
        assert await growing.begin() == facts
    async with growing.running(), Ledger.connect(growing.store, role="admin") as ledger:
        there = {fact.slot async for fact in ledger.replay()}
    assert there >= {slot for slot, _ in itertools.islice(logs.mixed(10**9, logs.AT_ONCE), 700)}
    assert len(there) == held + 700


@pytest.mark.long
async def test_a_packed_log_grows_by_the_same_facts(tmp_path):
    """What is settled leaves the stream, and the next facts are those that would have come."""
    growing = Growing(tmp_path / "store", packed=True)
    held = await growing.begin()
    for facts in (held + 1_000, held + 2_000):
        async with growing.running(), Ledger.connect(growing.store, role="admin") as ledger:
            await growing.grow(ledger, facts)
            last = await ledger.log.last_seq()
            stream = await ledger.log.api.call("STREAM.INFO.LEDGER")
            assert stream["state"]["messages"] < facts <= last
        growing = Growing(growing.store, packed=True)
        assert await growing.begin() == last
    async with growing.running(), Ledger.connect(growing.store, role="admin") as ledger:
        there = [fact.slot async for fact in ledger.replay()]
    made = [one for one in there if one.tail[0] != "packed"]
    wanted = {slot for slot, _ in itertools.islice(logs.mixed(10**9, logs.AT_ONCE), 1_500)}
    assert len(set(made)) == len(made) >= held + 1_500
    assert set(made) >= wanted


async def test_a_log_that_was_begun_elsewhere_is_left_alone(tmp_path):
    """Nothing is added to somebody's log, and the sentence says what to do."""
    async with EmbeddedServer(tmp_path / "store"):
        await declare_streams(tmp_path / "store")
        async with Ledger.connect(tmp_path / "store", role="admin") as ledger:
            await logs.append_all(
                ledger, logs.calling(ThreadRef("shop", "order-17").call("refund-1"))
            )
    with pytest.raises(BadInput, match=r"was not begun here. Name another store"):
        await Growing(tmp_path / "store").begin()


def test_sizes_that_cannot_be_made_are_refused(tmp_path):
    """A log does not shrink, and below the smallest there is no room for what is measured."""
    done = program(
        "bench.growth", "--facts", "100", "--processes", "", "--store", tmp_path / "store"
    )
    assert done.returncode == 1
    assert "a log of 100 facts cannot be made" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_table_says_by_how_much_a_million_more_facts_cost():
    """What grows has its slope, what must not says so, and what is better when it is higher is the
    best all the same.
    """
    sizes = {
        10_000: {growth.DISK: [6.0, 5.0], growth.CALL: [0.5], growth.APPENDS: [8_000.0, 9_000.0]},
        60_000: {growth.DISK: [30.0, 31.0], growth.CALL: [0.6], growth.APPENDS: [4_500.0]},
    }
    assert growth.table("facts in the log", sizes, slope=True).splitlines() == [
        "| facts in the log | 10,000 | 60,000 | grew | for a million more |",
        "| --- | --- | --- | --- | --- |",
        "| disk, MB | 5 | 30 | 6.00 | 500 |",
        "| reading a call, p50, ms | 0.5 | 0.6 | 1.20, must not |  |",
        "| appends, 64 writers, facts/s | 9,000 | 4,500 | 0.50, must not |  |",
    ]


@pytest.mark.parametrize(
    ("value", "told"),
    [(0, "0"), (0.0000381, "0.0000381"), (0.01, "0.01"), (1, "1"), (12.345, "12.3"),
     (999.9, "1,000"), (1234.5, "1,230"), (17_510_000_000, "17,500,000,000"), (-93.81, "-93.8")],
)  # fmt: skip
def test_a_figure_has_three_digits_that_count_and_no_exponent(value, told):
    """People read it, and `float` reads it back."""
    assert growth.figure(value) == told
    assert float(told.replace(",", "")) == pytest.approx(value, rel=0.01)


# ------------------------------------------------------------------------------------------- charts


LINES = [
    result(
        "append", "64 writers", 8_470, 16_600,
        unit="facts/s", better="higher", target=0.7, beside="batches of $100",
    ),
    result(
        "append", "one writer", 1_210, 1_650,
        unit="facts/s", better="higher", beside="one at a time",
    ),
    result("append", "help", 0.21, 0.5, unit="s", beside="wanted"),
    *(
        result(value=value, floor=5.6, facts=facts)
        for facts, value in ((10_000, 5.6), (40_004, 27.3), (90_000, 49.0))
    ),
    *(
        result(
            what="reading a call, p50", unit="ms", value=value, floor=0.51, facts=facts, target=1,
        )
        for facts, value in ((10_000, 0.51), (40_004, 0.53))
    ),
]  # fmt: skip


def texts(file: Path) -> list[str]:
    return [" ".join(one.itertext()) for one in ET.parse(file).iter(f"{SVG}text")]


def points(file: Path) -> dict[str, tuple[float, float]]:
    """Where each point stands, by what it says to who cannot see it; y grows downwards."""
    found = {}
    for one in ET.parse(file).iter(f"{SVG}path"):
        if one.get("aria-roledescription") == "point":
            x, y = re.findall(r"-?[\d.]+", one.get("transform"))
            found[one.get("aria-label").replace("\n", " ")] = (float(x), float(y))
    return found


def test_the_same_lines_give_the_same_charts_anywhere(tmp_path):
    """Byte for byte, in this process and in another one with another hash seed: nothing random, and
    no date.
    """
    lines = tmp_path / "results.jsonl"
    lines.write_bytes(b"\n".join(map(msgspec.json.encode, LINES)))
    here = charts.draw(read_results(lines), tmp_path / "here")
    done = program("bench.charts", lines, tmp_path / "there", PYTHONHASHSEED="7", TZ="Asia/Tokyo")
    assert done.returncode == 0, done.stderr
    assert [file.name for file in here] == ["append.svg", "growth.svg"]
    for file in here:
        assert file.read_bytes() == (tmp_path / "there" / file.name).read_bytes()
        assert not re.search(r"\d{4}-\d\d-\d\d", file.read_text())
        assert file.stat().st_size < 60_000


def test_what_is_drawn_is_what_the_lines_say(tmp_path):
    """Each figure stands in its chart as text and as a point, ours and the floor; so does what
    missed its target.
    """
    files = {file.stem: texts(file) for file in charts.draw(LINES, tmp_path)}
    for one in LINES:
        assert growth.figure(one.value) in files[one.workload]
    for one in LINES[:3]:
        assert growth.figure(one.floor) in files["append"]
    assert "64 writers: missed, beside batches of $100" in files["append"]
    assert {"disk", "reading a call, p50: missed", "ours", "floor"} <= set(files["growth"])
    rate, row = (
        "facts/s (higher is better, logarithmic)",
        "64 writers: missed, beside batches of $100",
    )
    assert set(points(tmp_path / "append.svg")) == {
        f"{rate}: 8,470; row: {row}; whose: ours",
        f"{rate}: 16,600; row: {row}; whose: floor",
        f"{rate}: 1,210; row: one writer, beside one at a time; whose: ours",
        f"{rate}: 1,650; row: one writer, beside one at a time; whose: floor",
        "s (lower is better): 0.21; row: help, beside wanted; whose: ours",
        "s (lower is better): 0.5; row: help, beside wanted; whose: floor",
    }
    assert set(points(tmp_path / "growth.svg")) == {
        f"facts in the log: {one.facts:,}; {one.unit}: {growth.figure(value)}; whose: {whose}"
        for one in LINES[3:]
        for whose, value in (("ours", one.value), ("floor", one.floor))
    }


def test_points_stand_where_their_figures_say(tmp_path):
    """Over the logarithm of the size, and as high as the cost; on one line's axis with its
    floor.
    """
    charts.draw(LINES, tmp_path)
    stand = points(tmp_path / "growth.svg")
    first, middle, last = (
        stand[f"facts in the log: {facts:,}; MB: {value}; whose: ours"]
        for facts, value in ((10_000, "5.6"), (40_004, "27.3"), (90_000, "49"))
    )
    far = (middle[0] - first[0]) / (last[0] - first[0])
    assert far == pytest.approx(math.log(4.0004) / math.log(9), rel=0.001)
    high = (first[1] - middle[1]) / (first[1] - last[1])
    assert high == pytest.approx((27.3 - 5.6) / (49 - 5.6), rel=0.001)
    assert stand["facts in the log: 90,000; MB: 5.6; whose: floor"] == (last[0], first[1])
    by_row = {
        label: at for label, at in points(tmp_path / "append.svg").items() if "64 writers" in label
    }
    [(ours, row), (floor, floor_row)] = (
        next(at for label, at in by_row.items() if label.endswith(whose))
        for whose in ("ours", "floor")
    )
    assert ours < floor
    assert row == floor_row


def test_axes_have_units(tmp_path):
    """Every panel says what it is in, and which way is better where that is not the size of the
    log.
    """
    told = {file.stem: set(texts(file)) for file in charts.draw(LINES, tmp_path)}
    assert {"facts/s (higher is better, logarithmic)", "s (lower is better)"} <= told["append"]
    assert {"MB", "ms", "facts in the log", "10,000", "40,004"} <= told["growth"]


def test_figures_that_are_nothing_are_drawn(tmp_path):
    """A logarithm has no nought, so its axis is linear."""
    [file] = charts.draw(
        [result("append", "lost", 0.0, 4.0), result("append", "kept", 900.0, 4.0)], tmp_path
    )
    assert "MB (lower is better)" in texts(file)
    assert "MB (lower is better): 0; row: lost, beside with 500 facts; whose: ours" in points(file)


def test_charts_can_be_read_on_white_and_on_black(tmp_path):
    """Nothing is painted behind them, and each colour differs from both grounds by 4 to 1 or more
    (WCAG's measure).
    """

    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        parts = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
        return sum(
            part * weight for part, weight in zip(parts, (0.2126, 0.7152, 0.0722), strict=True)
        )

    for file in charts.draw(LINES, tmp_path):
        seen = [one.attrib for one in ET.parse(file).iter() if one.get("opacity") != "0"]
        assert {one.get("opacity", "1") for one in seen} == {"1"}
        painted = {one[paint] for one in seen for paint in ("fill", "stroke") if paint in one} - {
            "none"
        }
        assert painted
        for colour in painted:
            for ground in ("#ffffff", "#0d1117"):
                lighter, darker = sorted((light(colour), light(ground)), reverse=True)
                assert (lighter + 0.05) / (darker + 0.05) > 4, (colour, ground)


def test_of_lines_that_say_the_same_the_last_one_counts(tmp_path):
    """Results of two runs in one file are no two points at one size."""
    [file] = charts.draw([*LINES[3:6], result(value=28.0, floor=5.6, facts=40_004)], tmp_path)
    ours = [label for label in points(file) if label.endswith("ours") and "40,004" in label]
    assert ours == ["facts in the log: 40,004; MB: 28; whose: ours"]


def test_a_line_that_is_no_result_is_told_with_its_place(tmp_path):
    """The file and the line, and what would be one; nothing is drawn."""
    file = tmp_path / "results.jsonl"
    file.write_bytes(msgspec.json.encode(LINES[0]) + b'\n{"workload": "append"}\n')
    done = program("bench.charts", file, tmp_path / "charts")
    assert done.returncode == 1
    assert f"{file}, line 2 is not a result" in done.stderr
    assert "make bench JSON=1" in done.stderr
    assert not (tmp_path / "charts").exists()


@pytest.mark.parametrize("missing", ["altair", "vl_convert"])
def test_what_is_missing_is_named_with_what_brings_it(missing, tmp_path, monkeypatch):
    """Its name and what to install; nothing is drawn."""
    lines = tmp_path / "results.jsonl"
    lines.write_bytes(msgspec.json.encode(LINES[0]))
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(sys, "argv", ["charts", str(lines), str(tmp_path / "charts")])
    with pytest.raises(SystemExit, match=f"need {missing}, .*`make setup`"):
        charts.main()
    assert not (tmp_path / "charts").exists()


def test_only_drawing_loads_what_draws():
    """Measuring, and asking for help, wait for no drawing library."""
    script = (
        "import sys, bench.program, bench.growth, bench.capacity, bench.charts; "
        "print([name for name in ('altair', 'vl_convert') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# ----------------------------------------------------------------------------------------- capacity


def test_the_page_is_what_its_figures_give():
    """docs/capacity.md, every table; if not: python -m bench.capacity --write"""
    page = capacity.PAGE.read_text()
    assert capacity.written(page, capacity.figures_in(page)) == page


@pytest.mark.parametrize("what", capacity.FIGURES)
def test_another_figure_is_another_page(what):
    """Each figure is used: whoever changes one and not the tables is told."""
    page = capacity.PAGE.read_text()
    before = capacity.figures_in(page)
    changed = before | {what: msgspec.structs.replace(before[what], value=before[what].value * 2)}
    ours, others = (
        [set(table.splitlines()) for table in capacity.tables(one)] for one in (before, changed)
    )
    assert ours[0] != others[0]
    assert ours[1:] != others[1:]


def test_what_a_size_needs_can_be_had_by_hand():
    """20,000 approvals a day of 6 facts each, with figures that are easy."""
    slopes = {
        capacity.MEMORY: 200, capacity.DISK: 500, capacity.PARQUET: 50, capacity.START: 2,
        capacity.KILLED: 4,
    }  # fmt: skip
    assert capacity.needs(20_000, 6, 100, slopes) == {
        "approvals a day": "20,000",
        "approvals a second in the busiest hour": "1.11",  # 20,000 / 5 / 3,600
        "of what one broker was seen to do": "1.11 %",
        "facts a day": "120,000",
        "facts a year": "43,800,000",
        "broker: disk for a year": "21.9 GB",
        "broker: memory for a year": "8.76 GB",
        "broker: start-up with a year": "87.6 s",
        "broker: start-up with a year, after kill -9": "2.92 min",
        "until 8 GB of broker memory are full": "333 days",  # 40,000,000 facts
        "lake: a year": "2.19 GB",
    }


def test_the_facts_of_an_approval_are_counted():
    """Six from the request to the result; and the rehearsal's are those of docs/performance.md."""
    assert len(list(logs.calling(ThreadRef("bench", "t").call("c")))) == capacity.ALONE
    told = (ROOT / "docs" / "performance.md").read_text()
    assert "862 calls, 184 of them put to people: 8,828 facts" in told
    assert capacity.AROUND == 8_828 / 184


def test_figures_come_from_the_lines():
    """Slopes between the smallest log and the largest; of the rest the largest log, and the best
    number of processes.
    """
    rate = {"unit": "cycles/s", "better": "higher", "facts": 600}
    lines = [
        of_cost(growth.WRITTEN, 1_000_000, 200 + 30),
        of_cost(growth.WRITTEN, 10_000, 30),
        of_cost(growth.WRITTEN, 100_000, 999),  # between them: not looked at
        of_cost(growth.DISK, 10_000, 5),
        of_cost(growth.DISK, 1_000_000, 505),
        of_cost(growth.START, 10_000, 100),
        of_cost(growth.START, 1_000_000, 1_585),
        result(lake.WORKLOAD, "Parquet a fact", 73, 372, 250_000, unit="bytes"),
        result(lake.WORKLOAD, "Parquet a fact", 47, 372, 10_000_000, unit="bytes"),
        result(cycle.WORKLOAD, growth.CYCLES.what, 292, 1_500, **rate),
        result(growth.PROCESSES, f"{growth.CYCLES.what}, 4 processes", 410, 292, **rate),
        result(
            cycle.WORKLOAD,
            f"{growth.CYCLES.what}, not durable",
            900,
            1_500,
            **rate | {"sync": "2m"},
        ),
    ]
    found = capacity.slopes_of(lines)
    assert {what: one.value for what, one in found.items()} == {
        capacity.MEMORY: pytest.approx(200 * 2**20 / 990_000, rel=0.005),
        capacity.DISK: pytest.approx(500 * 2**20 / 990_000, rel=0.005),
        capacity.START: 1.5,
        capacity.PARQUET: 47,
        capacity.CYCLES: 410,
    }
    assert found[capacity.PARQUET].on == "10,000,000 facts, undated"
    # One size alone has no slope, and what lines do not have is left as it stands.
    assert capacity.slopes_of(lines[:1]) == {}
    page = capacity.PAGE.read_text()
    kept, new = (
        capacity.figures_in(page),
        capacity.figures_in(capacity.written(page, capacity.figures_in(page) | found)),
    )
    assert new == kept | found


def test_sizes_that_are_too_close_give_no_slope():
    """Noise that makes a log cheaper as it grows is no figure."""
    with pytest.raises(BadInput, match=r"too close together. Measure larger ones"):
        capacity.slopes_of([of_cost(growth.START, 10_000, 100), of_cost(growth.START, 11_000, 90)])


@pytest.mark.parametrize(
    ("found", "put", "says"),
    [
        ("| lake, bytes a fact |", "| the lake |", "lacks 'lake, bytes a fact'"),
        ("| measured |", "| figures |", "no table that begins with 'measured'"),
        ("| 8,828 facts,", "| none | 8,828 facts,", "is not a name, a number"),
    ],
)
def test_a_page_that_lost_its_figures_is_told(found, put, says):
    """What is missing, by its name."""
    page = capacity.PAGE.read_text()
    assert found in page
    with pytest.raises(BadInput, match=re.escape(says)):
        capacity.figures_in(page.replace(found, put))


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.657, "0.657 s"), (119, "119 s"), (120, "2 min"), (3600, "60 min"), (7200, "2 h"),
     (172_800, "2 days"), (2 * 365 * 86_400, "2 years")],
)  # fmt: skip
def test_a_time_is_told_in_the_unit_that_suits_it(seconds, told):
    """Seconds for a start, years for a store."""
    assert capacity.lasting(seconds) == told


@pytest.mark.parametrize(
    ("size", "told"),
    [(1_500, "1.5 kB"), (32e6, "32 MB"), (8e9, "8 GB"), (999.9e9, "1,000 GB"), (4e12, "4 TB")],
)
def test_an_amount_is_told_in_the_unit_that_suits_it(size, told):
    """As disks are sold: a GB is 10 to the 9."""
    assert capacity.amount(size) == told
