"""The checker's own reading of a log: facts as they are on the wire, and the life of each call.

Nothing here is shared with the code that is checked. A call is folded fact by fact, so its status
after each of them is known.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

ROOT = "ledger"
#: Ways to end at which the model reads a result, by the fact that leads there.
ENDS = {"ToolReturned": "returned", "ToolFailed": "failed", "ToolRefused": "refused"}
SETTLED = {"returned", "failed", "refused", "reconciled"}
NOT_RUN = {"Denied", "Answered", "Expired", "Withdrawn", "Superseded"}


class Record(NamedTuple):
    """One message of the log."""

    seq: int
    at: datetime
    subject: str
    data: str
    event: dict[str, Any]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data.encode()).hexdigest()

    @property
    def kind(self) -> str:
        return str(self.event.get("type", ""))

    @property
    def id(self) -> str:
        return str(self.event.get("id", ""))

    @property
    def author(self) -> tuple[str, str]:
        by = self.event.get("by", {})
        return by.get("kind", ""), by.get("name", "")


def record(line: dict[str, Any]) -> Record:
    """A line of the dump. Bytes that are not JSON have no content."""
    try:
        event = json.loads(line["data"])
    except ValueError:
        event = {}
    at = datetime.fromisoformat(line["time"])
    known = event if isinstance(event, dict) else {}
    return Record(line["seq"], at, line["subject"], line["data"], known)


def digest(tool: str, version: str, arguments: str) -> str:
    head = f"{len(tool.encode())}:{tool}{len(version.encode())}:{version}"
    return hashlib.sha256((head + arguments).encode()).hexdigest()


def is_among(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class Stop:
    """A stop as of the facts that were applied."""

    def __init__(self, ref: str, given: Record) -> None:
        self.ref = ref
        self.workspace, self.giver, _ = ref.split("/")
        self.given = given
        #: By whom.
        self.resumed: dict[str, Record] = {}
        self.ended: Record | None = None

    @property
    def ends_at(self) -> datetime | None:
        """When it ends by itself."""
        after_s = self.given.event.get("expires_in_s")
        return None if after_s is None else self.given.at + timedelta(seconds=after_s)

    def covers(self, workspace: str, tool: str, agent: str, requester: str) -> bool:
        """Whether it is about such calls. One that names no agent may be any agent's."""
        limits = self.given.event
        return (
            self.workspace in {workspace, "_organisation"}
            and is_among(tool, limits.get("tools", ["*"]))
            and (not agent or is_among(agent, limits.get("agents", ["*"])))
            and is_among(requester, limits.get("requesters", ["*"]))
        )

    def holds(self, seq: int, at: datetime) -> bool:
        """Whether it is in force just before that number of the log, at that time."""
        is_ended = self.ended is not None and self.ended.seq < seq
        is_over = self.ends_at is not None and at >= self.ends_at
        return self.given.seq < seq and not is_ended and not is_over

    def held(self, since: datetime, until: datetime) -> bool:
        """Whether it was in force at some time between these."""
        ends = [self.ended.at] if self.ended is not None else []
        ends += [self.ends_at] if self.ends_at is not None else []
        return self.given.at <= until and all(end >= since for end in ends)


class Call:
    """A call as of the facts that were applied.

    Args:
        stops: all stops of the log so far.
    """

    def __init__(self, ref: str, stops: Sequence[Stop] = ()) -> None:
        self.ref = ref
        self._stops = stops
        self.requested: Record | None = None
        self.gated: Record | None = None
        self.decided: Record | None = None
        self.withdrawn: Record | None = None
        self.revoked: Record | None = None
        self.lapsed: Record | None = None
        self.declined: Record | None = None
        self.end: Record | None = None
        self.reconciled: Record | None = None
        self.votes: list[Record] = []
        self.escalated: list[Record] = []
        #: All claims, void ones included: each fills its slot.
        self.claims: list[Record] = []
        #: The claims that count, and after which the tool may have run.
        self.starts: list[Record] = []
        self.late: list[Record] = []
        self._spoiled_ends = False
        #: The status after each fact that changed it: (sequence, time, status).
        self.history: list[tuple[int, datetime, str]] = []

    @property
    def workspace(self) -> str:
        return self.ref.partition("/")[0]

    @property
    def wish(self) -> dict[str, Any]:
        return self.requested.event if self.requested else {}

    @property
    def is_clients(self) -> bool:
        return self.wish.get("run_by", "client") == "client"

    @property
    def approved(self) -> dict[str, Any] | None:
        return self.decided.event if self.decided and self.decided.kind == "Approved" else None

    @property
    def arguments(self) -> str:
        """What may run: the approved edit, else what was requested."""
        edited = (self.approved or {}).get("arguments")
        return str(self.wish.get("arguments", "") if edited is None else edited)

    @property
    def digest(self) -> str:
        wish = self.wish
        return digest(wish.get("tool", ""), wish.get("tool_version", ""), self.arguments)

    @property
    def may_run(self) -> bool:
        """Whether the approval is of exactly these bytes, and nobody was passed over."""
        if self.approved is None or self.approved.get("digest") != self.digest:
            return False
        asked = self.gated is not None and self.decided and self.gated.seq < self.decided.seq
        return not (asked and self.approved.get("ground") in {"policy", "grant"})

    @property
    def awaited_until(self) -> datetime | None:
        """How long the requester waits for people."""
        after_s = self.wish.get("expires_in_s")
        if self.requested is None or after_s is None:
            return None
        return self.requested.at + timedelta(seconds=after_s)

    @property
    def valid_until(self) -> datetime | None:
        """Until when the approval lets the call start."""
        after_s = self.approved.get("valid_for_s") if self.approved else None
        if self.decided is None or after_s is None:
            return None
        return self.decided.at + timedelta(seconds=after_s)

    @property
    def stops(self) -> list[Stop]:
        """Those that cover it, past ones too."""
        said = [str(self.wish.get(name, "")) for name in ("tool", "agent", "requester")]
        return [one for one in self._stops if one.covers(self.workspace, *said)]

    @property
    def is_last_stage(self) -> bool:
        if self.awaited_until is not None and self.due == self.awaited_until:
            return True
        asked = self.gated.event if self.gated else {}
        stages = len(asked.get("stages", ()))
        return asked.get("on_timeout", "deny") != "escalate" or len(self.escalated) >= stages

    @property
    def due(self) -> datetime | None:
        """When it escalates or expires."""
        since = self.escalated[-1] if self.escalated else self.gated
        if since is None or self.gated is None:
            return None
        ends = [self.awaited_until] if self.awaited_until else []
        after_s = since.event.get("expires_in_s")
        if after_s is not None and self.gated.event.get("on_timeout") != "stay":
            ends.append(since.at + timedelta(seconds=after_s))
        return min(ends, default=None)

    @property
    def status(self) -> str:
        if self.reconciled:
            return "reconciled"
        if self.end:
            return ENDS.get(self.end.kind, "in_doubt")
        if self.starts:
            return "running"
        if self.declined or self.revoked or self.lapsed:
            return "declined" if self.declined else "revoked" if self.revoked else "lapsed"
        if self.decided:
            return self.decided.kind.lower()
        return "pending" if self.gated else "requested" if self.requested else "unknown"

    def apply(self, one: Record, tail: list[str]) -> None:
        before = self.status
        if tail[0] == "claim":
            self.claims.append(one)
        self._apply(one, tail)
        if self.status != before:
            self.history.append((one.seq, one.at, self.status))

    def _apply(self, one: Record, tail: list[str]) -> None:
        match tail[0]:
            case "requested" if one.kind == "ToolRequested":
                self.requested = one
            case "gated" if one.kind == "ApprovalRequested":
                self.gated = one
            case "escalated":
                self.escalated.append(one)
            case "vote" if one.kind == "Voted":
                self.votes.append(one)
            case "withdrawn":
                self.withdrawn = one
            case "decided":
                self.decided = one
            case "revoked" if self._is_startable and not self.starts:
                self.revoked = one
            case "lapsed" if self._is_startable and not self.starts:
                self.lapsed = one
            case "claim" if self._is_startable and self._is_in_place(tail):
                self._claimed(one)
            case "finished" | "late":
                self._ended(one, tail)
            case "reconciled" if self.end and self.end.kind == "InDoubt" and not self.reconciled:
                self.reconciled = one
            case _:
                pass

    @property
    def _is_startable(self) -> bool:
        stopped = self.end or self.revoked or self.lapsed or self.declined
        return self.requested is not None and self.approved is not None and not stopped

    def _is_in_place(self, tail: list[str]) -> bool:
        if "client" in tail[1:]:
            return self.is_clients
        return not self.is_clients or self.wish.get("layout", 1) < 2

    def _claimed(self, one: Record) -> None:
        if one.kind == "Declined" and not self.starts:
            self.declined = one
        is_approved = self.may_run and one.event.get("digest") == self.digest
        is_valid = self.valid_until is None or one.at < self.valid_until
        is_stopped = any(stop.holds(one.seq, one.at) for stop in self.stops)
        if one.kind == "ToolStarted" and is_approved and is_valid and not is_stopped:
            self.starts.append(one)

    def _ended(self, one: Record, tail: list[str]) -> None:
        counts = self._ends_it(one) and (one.kind == "ToolRefused" or self._is_in_place(tail))
        if not counts:
            self._spoiled_ends |= tail[0] == "finished"
        elif self.end is not None or (tail[0] == "late" and not self._spoiled_ends):
            self.late.append(one)
        else:
            self.end = one

    def _ends_it(self, one: Record) -> bool:
        if one.kind == "ToolRefused":
            stopped = self.declined or self.revoked or self.lapsed
            decided = self.decided is not None and self.decided.kind in NOT_RUN
            return self.end is None and not self.starts and bool(stopped or decided)
        attempts = {int(start.subject.rpartition(".")[2]) for start in self.starts}
        is_known = one.event.get("attempt", 1) in attempts
        return is_known and not (one.kind == "InDoubt" and self.end is not None)

    def status_at(self, seq: int) -> str:
        """The status just after that fact of the log."""
        return next((status for at, _, status in reversed(self.history) if at <= seq), "unknown")

    def statuses(self, since: datetime, until: datetime) -> set[str]:
        """The statuses that it had at some time between these, both included."""
        before = [status for _, at, status in self.history if at <= since]
        between = [status for _, at, status in self.history if since < at <= until]
        return {before[-1] if before else "unknown", *between}


class Log:
    """A log, with its calls, stops, tools, policies and threads."""

    def __init__(self, lines: Iterable[dict[str, Any]]) -> None:
        self.records = [record(line) for line in lines]
        self.by_subject: dict[str, list[Record]] = defaultdict(list)
        self.calls: dict[str, Call] = {}
        #: In the order of the log.
        self.stops: list[Stop] = []
        for one in self.records:
            self.by_subject[one.subject].append(one)
            match one.subject.split("."):
                case [root, workspace, "_stop", giver, name, *tail] if root == ROOT and tail:
                    self._stopping(one, f"{workspace}/{giver}/{name}", tail)
                case [root, workspace, thread, "call", call, *tail] if root == ROOT and tail:
                    ref = f"{workspace}/{thread}/{call}"
                    self.calls.setdefault(ref, Call(ref, self.stops)).apply(one, tail)
                case _:
                    pass

    def _stopping(self, one: Record, ref: str, tail: list[str]) -> None:
        if tail == ["given"] and one.kind == "Stopped":
            self.stops.append(Stop(ref, one))
            return
        stop = next((stop for stop in self.stops if stop.ref == ref), None)
        if stop is not None and tail == ["ended"] and one.kind == "StopEnded":
            stop.ended = one
        elif stop is not None and tail[0] == "resumed" and one.kind == "Resumed":
            stop.resumed[tail[1]] = one

    def at(self, subject: str) -> Record | None:
        found = self.by_subject.get(subject)
        return found[0] if found else None

    def above(self, call: Call) -> list[Call]:
        """The calls above one, the outermost first, by what the threads say of themselves."""
        found: list[Call] = []
        workspace, thread, _ = call.ref.split("/")
        while (opened := self.at(f"{ROOT}.{workspace}.{thread}.opened")) is not None:
            parent = opened.event.get("parent", "")
            if not parent or parent not in self.calls:
                break
            found.insert(0, self.calls[parent])
            workspace, thread, _ = parent.split("/")
        return found

    def declared(self, call: Call) -> dict[str, Any] | None:
        """The declaration of a call's tool."""
        wish = call.wish
        place = f"{ROOT}.{call.workspace}._tool.{wish.get('tool')}.{wish.get('tool_version')}"
        found = self.at(place)
        return found.event if found else None
