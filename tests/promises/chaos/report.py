"""The report of a chaos run, as Markdown."""

import argparse
import os
import platform
from collections import Counter
from pathlib import Path

from findings import Findings


def report(found: Findings, args: argparse.Namespace) -> str:
    rows = [
        ("facts", f"{found.facts:,}"),
        ("acknowledged to somebody, and checked", f"{found.acknowledged:,}"),
        ("calls", _counts(found.calls)),
        ("tools started", f"{found.runs:,}"),
        ("in doubt, until a person looked", f"{found.in_doubt:,}"),
        ("faults", _counts(found.faults)),
        ("told to clients instead of an answer", _counts(found.told)),
        ("programs that ended by themselves", _counts(Counter(one.name for one in found.ended))),
        ("slowest answer to a request", f"{found.request_s:.1f} s"),
        ("latest that a waiting client learned of a decision", f"{found.told_s:.1f} s"),
        ("longest silence with a majority of the servers there", f"{found.silence_s:.1f} s"),
        ("longest silence at all", f"{found.any_silence_s:.1f} s"),
        ("all at their end after healing", f"{found.settled_s:.0f} s"),
        ("`replay --verify`", found.verified),
    ]
    if args.packed:
        left = f"{found.packed:,}, of which {found.left:,} had left the stream"
        rows += [("facts in packs", left), ("runs of packers to the end", f"{found.packings:,}")]
    servers = "One server" if args.servers == 1 else f"{args.servers} nodes"
    servers += ", packed" * args.packed
    load = os.getloadavg()[1]
    lines = [
        (
            f"{servers}, {args.minutes:g} minutes, seed {args.seed}, nats-server {found.version}, "
            f"Python {platform.python_version()}, {os.cpu_count()} cores, load average {load:.1f}."
        ),
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in rows),
        "",
        *([f"Found ({len(found.problems)}):", ""] if found.problems else ["Nothing was found."]),
        *(f"* {' '.join(problem.split())}" for problem in found.problems[:50]),
    ]
    return "\n".join(lines) + "\n"


def write_into(page: Path, text: str, name: str) -> None:
    """Replace the part of a page between the comments `begin NAME` and `end NAME`."""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n"
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}{text}{end}{after}")


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in counted.most_common()) or "none"
