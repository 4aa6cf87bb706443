"""A chart for each workload, drawn from the lines that the benchmarks print.

    make bench JSON=1 > results.jsonl
    python -m bench.charts results.jsonl docs/charts

A workload that was measured at several sizes of the log is drawn over them, one panel a cost; any
other as bars of ours and its floor, one row a line. Of several lines for the same measurement the
last one counts. The same lines give the same bytes (no dates, no random ids, an embedded font), and
the colours are readable on white and on black.
"""

import argparse
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ayes.schemas.errors import ApprovalsError
from bench.results import Result, read_results

#: Vega-Lite, as JSON.
type Spec = dict[str, Any]

#: In between white and black, so that one file serves both.
_GREY: Final = "#777777"
_BLUE: Final = "#2b7fc4"
_STYLE: Final[Spec] = {
    "background": "transparent",
    "font": "Liberation Sans, Arial, sans-serif",
    "numberFormat": ",.3~r",  # three digits that count, without an exponent
    "range": {"category": [_BLUE, _GREY]},
    "view": {"stroke": None},
    "axis": {
        "domainColor": _GREY,
        "grid": False,
        "labelColor": _GREY,
        "labelLimit": 0,
        "tickColor": _GREY,
        "tickCount": 4,
        "titleColor": _GREY,
        "titleFontWeight": "normal",
    },
    "legend": {"labelColor": _GREY, "orient": "top"},
    "title": {"color": _GREY, "fontSize": 11, "fontWeight": "normal"},
    "line": {"aria": False, "strokeWidth": 1},
    "point": {"filled": True, "opacity": 1, "size": 45},
    "text": {"aria": False, "fontSize": 10},
}
_LOGARITHMIC: Final[Spec] = {"type": "log", "nice": False, "padding": 24}
_WHOSE: Final[Spec] = {"field": "whose", "title": None, "scale": {"domain": ["ours", "floor"]}}
_DASHED: Final[Spec] = {
    "condition": {"test": "datum.whose == 'floor'", "value": [4, 2]},
    "value": [1, 0],
}
_COLUMNS: Final = 3
#: From here on the small ones of a panel could not be told apart on a linear axis.
_WIDE: Final = 10.0


def draw(results: Sequence[Result], folder: Path) -> list[Path]:
    """Write the chart of each workload into this folder."""
    by_workload: defaultdict[str, list[Result]] = defaultdict(list)
    for one in results:
        by_workload[one.workload].append(one)
    drawn = {workload: _svg(chart(workload, its)) for workload, its in by_workload.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for workload, svg in drawn.items():
        (folder / f"{workload}.svg").write_text(svg, encoding="utf-8")
    return [folder / f"{workload}.svg" for workload in drawn]


def _svg(spec: Spec) -> str:
    import altair as alt
    import vl_convert

    # Altair says what is wrong with a chart, where the drawing would leave out what it does not
    # know.
    svg: str = vl_convert.vegalite_to_svg(alt.Chart.from_dict(spec).to_dict())
    return svg


def chart(workload: str, results: Sequence[Result]) -> Spec:
    """One workload: over the size of the log where there are several, else ours beside the
    floor.
    """
    series: defaultdict[tuple[str, str], dict[int, Result]] = defaultdict(dict)
    for one in results:
        # A floor's name may contain the size; it is the same floor at each size.
        series[one.what, re.sub(r"\d[\d,]*", "", one.beside)][one.facts] = one
    lines = [[by_size[facts] for facts in sorted(by_size)] for by_size in series.values()]
    if any(len(line) > 1 for line in lines):
        said = (
            f"{workload}, over the size of the log. The floor is the comparison, or the first size"
        )
        return _page(said, _COLUMNS, [_over_size(line) for line in lines])
    units: defaultdict[tuple[str, str], list[Result]] = defaultdict(list)
    for (one,) in lines:
        units[one.unit, one.better].append(one)
    return _page(f"{workload}, beside its floor", 1, [_beside_floor(its) for its in units.values()])


def _page(title: str, columns: int, panels: list[Spec]) -> Spec:
    return {"title": title, "columns": columns, "concat": panels, "config": _STYLE}


def _over_size(line: list[Result]) -> Spec:
    missed = "" if all(one.met for one in line) else ": missed"
    highest = max(max(one.value, one.floor) for one in line)
    sizes = {"values": [one.facts for one in line], "format": ","}
    return {
        "title": textwrap.wrap(f"{line[0].what}{missed}", 36),
        "width": 180,
        "height": 120,
        "data": {
            "values": [point | {"facts": one.facts} for one in line for point in _points(one)]
        },
        "encoding": {
            "x": _axis("facts", "facts in the log", _LOGARITHMIC) | {"axis": sizes},
            "y": _axis("value", line[0].unit, {"domain": [0, 1.25 * highest]}),
            "color": _WHOSE,
        },
        "layer": [
            {"mark": "line", "encoding": {"strokeDash": _DASHED}},
            {"mark": "point", "encoding": {"shape": _WHOSE}},
            _figures(-10) | {"transform": [{"filter": "datum.whose == 'ours'"}]},
        ],
    }


def _beside_floor(results: list[Result]) -> Spec:
    figures = [figure for one in results for figure in (one.value, one.floor)]
    wide = 0 < _WIDE * min(figures) < max(figures)
    scale = _LOGARITHMIC if wide else {"domain": [0, 1.1 * max(figures)]}
    better = f"{results[0].better} is better{', logarithmic' if wide else ''}"
    return {
        "width": 320,
        "height": {"step": 44},
        "data": {
            "values": [point | {"row": _row(one)} for one in results for point in _points(one)]
        },
        "encoding": {
            "x": _axis("value", f"{results[0].unit} ({better})", scale),
            "y": {
                "field": "row",
                "sort": None,
                "axis": {"title": None, "labelExpr": r"split(datum.value, '\n')"},
            },
        },
        "layer": [
            {"mark": {"type": "line", "color": _GREY}, "encoding": {"detail": {"field": "row"}}},
            {"mark": "point", "encoding": {"color": _WHOSE, "shape": _WHOSE}},
            _figures({"expr": "datum.whose == 'ours' ? -11 : 12"}),
        ],
    }


def _points(one: Result) -> list[Spec]:
    return [{"whose": "floor", "value": one.floor}, {"whose": "ours", "value": one.value}]


def _row(one: Result) -> str:
    return textwrap.fill(f"{one.what}{'' if one.met else ': missed'}, beside {one.beside}", 56)


def _axis(field: str, title: str, scale: Spec) -> Spec:
    return {"field": field, "type": "quantitative", "title": title, "scale": scale}


def _figures(dy: Any) -> Spec:
    """What each point says, so far below it."""
    told = {"field": "value", "type": "quantitative"}
    return {"mark": {"type": "text", "dy": dy}, "encoding": {"color": _WHOSE, "text": told}}


def main() -> None:
    """Draw the results in these files."""
    options = argparse.ArgumentParser(description="Draw a chart for each workload.")
    options.add_argument(
        "results", type=Path, nargs="+", help="JSON lines, as `make bench JSON=1` prints them"
    )
    options.add_argument("folder", type=Path, help="where the charts go")
    given = options.parse_args()
    try:
        for file in draw(read_results(*given.results), given.folder):
            print(file)
    except ApprovalsError as problem:
        sys.exit(str(problem))
    except ModuleNotFoundError as missing:
        sys.exit(f"charts need {missing.name}, which is not installed. `make setup` installs it.")


if __name__ == "__main__":
    main()
