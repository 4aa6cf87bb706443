"""Calculates the requirements of three sizes of organisation for one broker, from measured figures.

    python -m bench.capacity                          print the tables of docs/capacity.md
    python -m bench.capacity results.jsonl --write    update the page from these results

The results are the JSON lines of `bench.growth` and of `make bench`; figures that they lack stay as
they are on the page. `tests/bench/test_bench_growth.py` checks the page against this calculation.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from msgspec import Struct

from ayes.schemas.errors import ApprovalsError, BadInput
from ayes.schemas.toml_files import read_text
from bench import cycle, growth, lake
from bench.append import AT_ONCE
from bench.growth import figure
from bench.results import SYNC, Result, read_results

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "capacity.md"

#: Approvals a day.
SIZES: Final = {"a team": 200, "a company": 20_000, "a cluster": 1_000_000}
#: Facts of an approval: from the request to the result; and with the conversation around it, as in
#: the rehearsal of docs/performance.md, where people were asked about 184 of 862 calls.
ALONE: Final = 6
AROUND: Final = 8_828 / 184
#: The share of a day's approvals that comes in the busiest hour.
BUSIEST: Final = 1 / 5
#: Memory that a broker may use for its index.
ROOM: Final = 8e9
_YEAR: Final = 365
_DAY_S: Final = 86_400


class Figure(Struct, frozen=True):
    """Something measured, as the page has it."""

    what: str
    value: float
    #: On how many facts, and when.
    on: str


#: The names of the figures on the page.
MEMORY: Final = "broker memory, bytes a fact"
DISK: Final = "disk of the broker, bytes a fact"
PARQUET: Final = "lake, bytes a fact"
START: Final = "start-up after a stop, s for a million facts"
KILLED: Final = "start-up after kill -9, s for a million facts"
CYCLES: Final = f"approvals a second, {AT_ONCE} at once"
REHEARSED: Final = "approvals a second in a rehearsal, with all that was said around them"
FIGURES: Final = (MEMORY, DISK, PARQUET, START, KILLED, CYCLES, REHEARSED)
_HEAD: Final = ("measured", "figure", "on")
#: By name of a table of the sizes: the facts of an approval, and the measured rate.
_TABLES: Final = {
    "approvals alone": (ALONE, CYCLES),
    "with the conversations around them": (AROUND, REHEARSED),
}


# -------------------------------------------------------------------------------------- calculating


def needs(approvals: float, facts: float, rate: float, slopes: dict[str, float]) -> dict[str, str]:
    """The requirements of `approvals` a day with `facts` facts each, at `rate` a second."""
    a_day = approvals * facts
    a_year = a_day * _YEAR
    busiest = approvals * BUSIEST / 3600
    return {
        "approvals a day": figure(approvals),
        "approvals a second in the busiest hour": figure(busiest),
        "of what one broker was seen to do": f"{figure(100 * busiest / rate)} %",
        "facts a day": figure(a_day),
        "facts a year": figure(a_year),
        "broker: disk for a year": amount(a_year * slopes[DISK]),
        "broker: memory for a year": amount(a_year * slopes[MEMORY]),
        "broker: start-up with a year": lasting(a_year / 1e6 * slopes[START]),
        "broker: start-up with a year, after kill -9": lasting(a_year / 1e6 * slopes[KILLED]),
        f"until {amount(ROOM)} of broker memory are full": lasting(
            ROOM / slopes[MEMORY] / a_day * _DAY_S
        ),
        "lake: a year": amount(a_year * slopes[PARQUET]),
    }


def amount(size: float) -> str:
    """Bytes in a readable unit."""
    for unit, least in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= least:
            return f"{figure(size / least)} {unit}"
    return f"{figure(size / 1e3)} kB"


def lasting(seconds: float) -> str:
    """A duration in a readable unit."""
    for unit, least in (("years", _YEAR * _DAY_S), ("days", _DAY_S), ("h", 3600), ("min", 60)):
        if seconds >= 2 * least:
            return f"{figure(seconds / least)} {unit}"
    return f"{figure(seconds)} s"


def slopes_of(results: Iterable[Result]) -> dict[str, Figure]:
    """The figures in these results."""
    every = list(results)
    found: dict[str, Figure] = {}
    for what, cost, factor in (
        (MEMORY, growth.WRITTEN, 1 << 20),
        (DISK, growth.DISK, 1 << 20),
        (START, growth.START, 1e3),  # ms a fact are s for a thousand
        (KILLED, growth.KILLED, 1e3),
    ):
        sizes = sorted(
            (one for one in every if (one.workload, one.what) == (growth.WORKLOAD, cost.what)),
            key=lambda one: one.facts,
        )
        if sizes and sizes[-1].facts > sizes[0].facts:
            more = (sizes[-1].value - sizes[0].value) / (sizes[-1].facts - sizes[0].facts)
            found[what] = _figure(what, more * factor, sizes[-1])
    for what, is_it, pick in _PICKED:
        if fitting := [one for one in every if is_it(one)]:
            picked = pick(fitting)
            found[what] = _figure(what, picked.value, picked)
    return found


def _is_rate(one: Result) -> bool:
    kinds = (cycle.WORKLOAD, growth.PROCESSES)
    return (
        one.workload in kinds
        and one.what.startswith(growth.CYCLES.what)
        and one.sync_interval == SYNC
    )


#: Of several sizes the largest counts, of several numbers of processes the best.
_PICKED: Final[
    tuple[tuple[str, Callable[[Result], bool], Callable[[list[Result]], Result]], ...]
] = (
    (
        PARQUET,
        lambda one: (one.workload, one.what) == (lake.WORKLOAD, "Parquet a fact"),
        lambda found: max(found, key=lambda one: one.facts),
    ),
    (CYCLES, _is_rate, lambda found: max(found, key=lambda one: one.value)),
)


def _figure(what: str, value: float, of: Result) -> Figure:
    if value <= 0:
        raise BadInput(
            f"{what!r} comes out as {value:.3g}: the sizes of the log are too close together. "
            "Measure larger ones."
        )
    return Figure(
        what, float(figure(value).replace(",", "")), f"{of.facts:,} facts, {of.date or 'undated'}"
    )


# ----------------------------------------------------------------------------------------- the page


def figures_in(page: str) -> dict[str, Figure]:
    """The figures on the page.

    Raises:
        BadInput: one is missing, or is not a number.
    """
    rows = [
        [cell.strip() for cell in row.strip("| ").split("|")] for row in _rows(page, _HEAD[0])[2:]
    ]
    try:
        found = {what: Figure(what, float(value.replace(",", "")), on) for what, value, on in rows}
    except ValueError:
        raise BadInput(
            f"the table {_HEAD[0]!r} of {PAGE.name} has a row that is not a name, a number and "
            "where it is from."
        ) from None
    if missing := [what for what in FIGURES if what not in found]:
        raise BadInput(f"the table {_HEAD[0]!r} of {PAGE.name} lacks {missing[0]!r}. Put it back.")
    return found


def tables(figures: dict[str, Figure]) -> list[str]:
    """The page's tables: the figures, and the requirements of each size."""
    slopes = {what: one.value for what, one in figures.items()}
    measured = [(what, figure(figures[what].value), figures[what].on) for what in FIGURES]
    found = [_table(_HEAD, measured)]
    for name, (facts, rate) in _TABLES.items():
        columns = [needs(approvals, facts, slopes[rate], slopes) for approvals in SIZES.values()]
        rows = [(what, *(column[what] for column in columns)) for what in columns[0]]
        found.append(_table((name, *SIZES), rows))
    return found


def written(page: str, figures: dict[str, Figure]) -> str:
    """The page with its tables replaced by these."""
    for one in tables(figures):
        page = page.replace("\n".join(_rows(page, one.split("|")[1].strip())), one)
    return page


def _rows(page: str, head: str) -> list[str]:
    found = re.search(rf"^\| {re.escape(head)} \|.*(?:\n\|.*)*", page, re.MULTILINE)
    if found is None:
        raise BadInput(f"{PAGE.name} has no table that begins with {head!r}. Put its head back.")
    return found[0].split("\n")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


# ------------------------------------------------------------------------------------- command line


def main() -> None:
    """Print the tables, or put them into the page."""
    options = argparse.ArgumentParser(description="Calculate the tables of docs/capacity.md.")
    options.add_argument(
        "results", type=Path, nargs="*", help="JSON lines of growth and of the benchmarks"
    )
    options.add_argument("--write", action="store_true", help=f"put them into {PAGE.name}")
    given = options.parse_args()
    try:
        page = read_text(str(PAGE))
        figures = figures_in(page) | slopes_of(read_results(*given.results))
        if given.write:
            PAGE.write_text(written(page, figures))
        else:
            print("\n\n".join(tables(figures)))
    except ApprovalsError as problem:
        sys.exit(str(problem))


if __name__ == "__main__":
    main()
