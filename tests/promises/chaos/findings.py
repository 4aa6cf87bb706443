"""What is left after the chaos: the log, the queue and the journal, and what is wrong with them."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from chaos_tools import RIVALS, WORKSPACE
from checker import check
from checker.facts import Call, Log
from faults import Faults
from journal import merged, now, started
from msgspec import Struct
from packed_log import PackedLog, messages
from programs import AYES, Ended

from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import RawMessage

#: The longest silence that is allowed while a majority of the servers is there.
SILENCE_S = 15.0
#: The length of a run in which something has left the stream of a log that is packed.
LEFT_AFTER_S = 240.0


class Findings(Struct):
    """Figures for the report, and the sentences about what is wrong."""

    version: str
    facts: int
    calls: Counter[str]
    acknowledged: int
    faults: Counter[str]
    told: Counter[str]
    ended: list[Ended]
    runs: int
    in_doubt: int
    silence_s: float
    #: The longest silence at all, with fewer servers there too.
    any_silence_s: float
    settled_s: float
    #: The slowest answer to a request, and how late a waiting client learned of a decision.
    request_s: float
    told_s: float
    verified: str
    #: Facts in packs, how many of them had left the stream, and in how many runs of packers.
    packed: int
    left: int
    packings: int
    problems: list[str]


async def examined(site: Any, faults: Faults, stuck: list[str], began: float, healed: float):
    settled_s = time.time() - healed
    async with Ledger.connect(site.store, role="operator", timeout_s=60) as ledger:
        log = [raw async for page in ledger.log.raw(1, until_end=True) for raw in page]
        queue = sorted(await ledger.log.pending.entries())
        parked = [f"{one.subject}: {one.reason}" for one in await ledger.log.parked()]
        version = ledger.log.server_version
    lines = merged(site.folder / "journal")
    verified = await _replayed(site.store)
    ended = [one for program in site.programs.values() for one in program.ended]
    lines += [
        {"kind": "ended", "at": now(), "process": one.name, "why": f"{one.code} {one.words[-200:]}"}
        for one in ended
    ]
    calls = {
        ref: call
        for ref, call in Log(map(_dumped, log)).calls.items()
        if not ref.startswith(RIVALS)
    }
    acks = sorted(_at(line) for line in lines if line["kind"] == "acknowledged")
    within = [at for at in acks if began < at < healed]
    few = len(site.servers) // 2
    silence = longest_silence(within, [span[:2] for span in faults.away if span[2] > few])
    problems = [f"{name} did not end within its time after healing" for name in stuck]
    problems += [
        f"server {name} ended by itself {server.ended} times"
        for name, server in site.servers.items()
        if server.ended
    ]
    if silence > SILENCE_S and len(site.servers) > 1:
        problems.append(f"no fact was acknowledged for {silence:.0f} s with a majority there")
    problems += [f"replay --verify: {one}" for one in verified.get("differences", [verified])]
    problems += _violations(site.folder, [_dumped(raw) for raw in log], lines, queue, parked)
    stream = await messages(site.store) if site.packed else []
    packed = PackedLog(stream)
    if site.packed:
        problems += [f"packed: {one}" for one in packed.problems(lines, log)]
        if not packed.left and healed - began > LEFT_AFTER_S:
            problems.append("nothing has left the stream")
    return Findings(
        version=version,
        facts=len(log),
        calls=Counter(str(call.status) for call in calls.values()),
        acknowledged=len(acks),
        faults=faults.counted,
        told=Counter(line["error"] for line in lines if line["kind"] == "refused"),
        ended=ended,
        runs=sum(map(started, lines)),
        in_doubt=site.in_doubt,
        silence_s=silence,
        any_silence_s=longest_silence(within, []),
        settled_s=settled_s,
        request_s=max(_waited(lines, "request", {}), default=0.0),
        told_s=max(_waited(lines, "decision", calls), default=0.0),
        verified="clean" if verified.get("differences") == [] else "differs",
        packed=len(packed.inside),
        left=packed.left,
        packings=sum(line["kind"] == "packed" for line in lines),
        problems=problems,
    )


def _dumped(raw: RawMessage) -> dict[str, Any]:
    return {
        "seq": raw.seq, "subject": raw.subject, "time": raw.recorded_at.isoformat(),
        "headers": {}, "data": raw.data.decode(errors="replace"),
    }  # fmt: skip


def _violations(
    folder: Path,
    log: list[dict[str, Any]],
    lines: list[dict[str, Any]],
    queue: list[str],
    parked: list[str],
) -> Iterator[str]:
    """What the checker finds, three times: every acknowledgement; all about the workspace of the
    services; and the ends of the rehearsals, whose tools write no journal. What rivals record makes
    no sense, so only its acknowledgements are checked.
    """
    # Without the name of the process, since the other rules say what a process must do.
    acks = [
        {name: value for name, value in line.items() if name != "process"}
        for line in lines
        if line["kind"] == "acknowledged"
    ]
    yield from _checked(folder, "acknowledged", log, acks)
    others = [line for line in lines if line["kind"] != "acknowledged"]
    for name in (WORKSPACE, "rehearsal"):
        keys = [key for key in queue if key.startswith(name)]
        bad = [one for one in parked if one.startswith(f"ledger.{name}")]
        end = {"kind": "end", "at": now(), "process": "chaos", "queue": keys, "parked": bad}
        facts = [one for one in log if one["subject"].startswith(f"ledger.{name}")]
        yield from _checked(folder, name, facts, [*(others if name == WORKSPACE else ()), end])


def _checked(
    folder: Path, name: str, log: list[dict[str, Any]], journal: list[dict[str, Any]]
) -> Iterator[str]:
    # Kept for `python -m checker`, when something was found.
    for kind, lines in (("log", log), ("journal", journal)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{name}-{kind}.jsonl").write_text(text)
    yield from map(str, check(log, journal))


def longest_silence(acks: list[float], without: list[tuple[float, float]]) -> float:
    """The longest time between two acknowledgements, without these spans."""
    longest = 0.0
    for before, after in pairwise(acks):
        edges = [before, *sorted(edge for span in without for edge in span), after]
        pieces = pairwise(edges)
        longest = max(
            [longest]
            + [
                min(end, after) - max(start, before)
                for start, end in pieces
                if not any(since <= start and end <= until for since, until in without)
            ]
        )
    return longest


async def _replayed(store: Path) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        str(AYES), "replay", "--verify", "--json", "--store", str(store),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    try:
        return dict(json.loads(out))
    except ValueError:
        return {"differences": [f"it failed: {out.decode()}"]}


def _waited(lines: list[dict[str, Any]], did: str, calls: Mapping[str, Call]) -> Iterator[float]:
    """How long each answer took, from the question, or from the decision if that came later."""
    for line in lines:
        if line["kind"] == "told" and line["did"] == did:
            decided = calls[line["call"]].decided if line["call"] in calls else None
            known = decided.at.timestamp() if decided else 0.0
            yield _at(line) - max(known, _at(line, "began"))


def _at(line: dict[str, Any], name: str = "at") -> float:
    return datetime.fromisoformat(line[name]).timestamp()
