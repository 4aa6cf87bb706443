"""A report of the lake: one page that needs no other file, readable offline, in light and in dark.

Each plot is drawn twice as SVG, without a browser, and the page shows the one that fits: it runs no
script, so it can be mailed and archived. Its data come from the same tables that analysts query.
"""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct

from ayes.ops.lake.catalog import QueryRow, connect
from ayes.ops.lake.writer import read_manifest
from ayes.schemas.visible import line


class Plot(Struct, frozen=True):
    """A query, and how its result is drawn."""

    title: str
    #: How to read it.
    caption: str
    query: str
    mark: str
    encoding: dict[str, Any]


def _by(field: str, title: str, *, sort: str = "-x") -> dict[str, Any]:
    return {"field": field, "type": "nominal", "title": title, "sort": sort}


def _much(field: str, title: str) -> dict[str, Any]:
    return {"field": field, "type": "quantitative", "title": title}


PLOTS: Final[tuple[Plot, ...]] = (
    Plot(
        "Calls by day",
        "The decision on each call, by the day of its request. Open calls have none yet.",
        "SELECT strftime(requested_at, '%Y-%m-%d') AS day, coalesce(verdict, 'open') AS verdict, "
        "count(*) AS calls "
        "FROM calls GROUP BY ALL ORDER BY ALL",
        "bar",
        {
            "x": _by("day", "", sort="ascending"),
            "y": _much("calls", "calls"),
            "color": _by("verdict", "", sort="ascending"),
        },
    ),
    Plot(
        "How calls ended, by tool",
        "The outcome that the model read. Refusals by people, by the policy and by time differ.",
        "SELECT tool, coalesce(outcome, 'open') AS outcome, count(*) AS calls "
        "FROM calls GROUP BY ALL ORDER BY ALL",
        "bar",
        {
            "x": _much("calls", "calls"),
            "y": _by("tool", ""),
            "color": _by("outcome", "", sort="ascending"),
        },
    ),
    Plot(
        "How long people took, by tool",
        "From the question to the decision, in seconds: half of the calls, and nine of ten, were "
        "decided within this.",
        "SELECT tool, unnest(['half of them', 'nine of ten']) AS share, "
        "unnest(quantile_cont(epoch(decided_at - gated_at), [0.5, 0.9])) AS seconds "
        "FROM calls WHERE gated_at IS NOT NULL AND decided_at IS NOT NULL "
        "GROUP BY tool ORDER BY ALL",
        "bar",
        {
            "x": _much("seconds", "seconds"),
            "y": _by("tool", ""),
            "yOffset": {"field": "share"},
            "color": _by("share", "", sort="ascending"),
        },
    ),
    Plot(
        "Who decides",
        "Votes by reviewer and verdict.",
        "SELECT reviewer, verdict, count(*) AS votes FROM votes GROUP BY ALL ORDER BY ALL",
        "bar",
        {
            "x": _much("votes", "votes"),
            "y": _by("reviewer", ""),
            "color": _by("verdict", "", sort="ascending"),
        },
    ),
)

#: Nothing is fetched and nothing runs, whatever texts the page contains.
_CSP: Final = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action "
    "'none'\">"
)

#: The figures at the top: label and query.
FIGURES: Final[tuple[tuple[str, str], ...]] = (
    ("calls", "SELECT count(*) FROM calls"),
    ("put to people", "SELECT count(*) FROM calls WHERE asked"),
    (
        "denied by people",
        "SELECT count(*) FROM calls WHERE verdict = 'Denied' AND ground = 'people'",
    ),
    ("changed by a reviewer", "SELECT count(*) FROM calls WHERE edited"),
    ("expired", "SELECT count(*) FROM calls WHERE verdict = 'Expired'"),
    ("open now", "SELECT count(*) FROM open_calls"),
    ("in doubt", "SELECT count(*) FROM open_calls WHERE outcome = 'in_doubt'"),
)


def report(lake: Path, title: str) -> str:
    """The page, as HTML.

    Raises:
        BadInput: there is no lake, or not one of this version.
    """
    manifest = read_manifest(lake)
    with connect(lake) as rows:
        figures = [(said, next(iter(rows(query)[0].values()))) for said, query in FIGURES]
        plots = [(plot, rows(plot.query)) for plot in PLOTS]
    drawn = "\n".join(_section(plot, rows) for plot, rows in plots)
    lead = f"From log {manifest.log}, up to fact {manifest.until:,}. Times are UTC."
    return _page(title, lead, _figures(figures), drawn)


def _section(plot: Plot, rows: Sequence[QueryRow]) -> str:
    shown = "<p class='none'>Nothing of this kind was recorded.</p>"
    if rows:
        light, dark = _svg(plot, rows, None), _svg(plot, rows, "dark")
        shown = f"<div class='light'>{light}</div><div class='dark'>{dark}</div>"
    title, caption = html.escape(plot.title), html.escape(plot.caption)
    return f"<section><h2>{title}</h2><p>{caption}</p>{shown}</section>"


def _svg(plot: Plot, rows: Sequence[QueryRow], theme: Literal["dark"] | None) -> str:
    import altair as alt
    import vl_convert

    values = [
        {name: line(one) if isinstance(one, str) else one for name, one in row.items()}
        for row in rows
    ]
    spec = {
        "data": {"values": values},
        "mark": {"type": plot.mark},
        "encoding": plot.encoding,
        "width": 560,
        "background": "transparent",
    }
    # Altair reports mistakes in a plot; vl_convert would ignore them.
    checked = alt.Chart.from_dict(spec).to_dict()
    svg: str = vl_convert.vegalite_to_svg(checked, theme=theme)
    return svg


def _figures(figures: Sequence[tuple[str, int]]) -> str:
    cells = "".join(f"<div><b>{value:,}</b>{html.escape(said)}</div>" for said, value in figures)
    return f"<div class='figures'>{cells}</div>"


def _page(title: str, lead: str, figures: str, drawn: str) -> str:
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">{_CSP}
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>{html.escape(title)}</title>
<style>
body {{
  font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem;
}}
.figures {{ display: flex; flex-wrap: wrap; gap: 1rem 2rem; }}
.figures b {{ display: block; font-size: 1.6rem; }}
section {{ margin-top: 2.5rem; }} svg {{ max-width: 100%; height: auto; }}
.dark {{ display: none; }} .none {{ opacity: .7; }}
@media (prefers-color-scheme: dark) {{
  body {{ background: #222; color: #eee; }} .dark {{ display: block; }} .light {{ display: none; }}
}}
</style></head><body>
<h1>{html.escape(title)}</h1><p>{html.escape(lead)}</p>
{figures}
{drawn}
</body></html>
"""
