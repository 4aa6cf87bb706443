"""For whoever sees to it that people decide well: how much each votes, and how much faster than anybody reads."""

from contextlib import aclosing
from pathlib import Path

import msgspec
from rich.table import Table

from ledger.client import Ledger
from ops import output
from ops.output import out, say
from projections.reviewers import Counting, Reviewer
from schemas.ids import token
from schemas.slots import ROOT

_PLACES = ("requested", "gated", "escalated.*", "vote.*", "decided")


async def reviewers(workspace: str, *, store: Path | None, url: str | None, json: bool) -> None:
    where = token("workspace", workspace) if workspace else "*"
    counting = Counting()
    async with Ledger.connect(store, url=url, role="observer") as ledger:
        facts = ledger.replay(1, *(f"{ROOT}.{where}.*.call.*.{place}" for place in _PLACES))
        async with aclosing(facts):
            async for fact in facts:
                counting.take(fact)
    found = counting.reviewers()
    if json:
        for one in found:
            out(msgspec.json.encode(_row(one)).decode())
    elif found:
        output.console().print(_table(found))
    else:
        say("Nobody has voted yet.")


def _row(one: Reviewer) -> dict[str, object]:
    return {
        "reviewer": one.name,
        "votes": one.votes,
        "by_verdict": one.by_verdict,
        "on_behalf": one.on_behalf,
        "hours": one.hours,
        "votes_an_hour": round(one.votes_an_hour, 2),
        "faster": one.faster,
        "share_faster": round(one.share_faster, 4),
    }


def _table(found: tuple[Reviewer, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("reviewer", "votes", "approve", "deny", "answer", "glass", "for others"):
        table.add_column(title, justify="left" if title == "reviewer" else "right")
    table.add_column("an hour", justify="right")
    table.add_column("too fast", justify="right")
    for one in found:
        said = (one.by_verdict.get(verdict, 0) for verdict in ("approve", "deny", "answer", "break_glass"))
        counts = (one.votes, *said, one.on_behalf)
        table.add_row(
            one.name,
            *(f"{count:,}" for count in counts),
            f"{one.votes_an_hour:.1f}",
            f"{one.share_faster:.0%}",
        )
    return table
