"""The rules: each a generator of violations over the log and the journal."""

import json
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from checker.facts import ROOT, SETTLED, Call, Log, Record, Stop, is_among
from checker.votes import outcome

#: The tool of the worlds that is an agent itself.
_AGENT: Final = "ask"

type Journal = list[dict[str, Any]]


class Violation(NamedTuple):
    invariant: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.invariant} {self.where}: {self.what}"


def _at(line: dict[str, Any], name: str = "at") -> datetime:
    return datetime.fromisoformat(line[name])


def _of(journal: Journal, kind: str) -> Iterator[dict[str, Any]]:
    return (line for line in journal if line["kind"] == kind)


# ------------------------------------------------------------------------------------------ the log


def slots_hold_one_fact(log: Log, journal: Journal) -> Iterator[Violation]:
    for subject, found in log.by_subject.items():
        if len(found) > 1:
            yield Violation("I6", subject, f"filled {len(found)} times")


def acknowledged_facts_are_there(log: Log, journal: Journal) -> Iterator[Violation]:
    told: dict[str, str] = {}
    for line in _of(journal, "acknowledged"):
        slot, event_id = line["slot"], line["id"]
        found = log.at(slot)
        if found is None or (found.id, found.seq) != (event_id, line["seq"]):
            yield Violation("I8", slot, f"{event_id} was acknowledged and is not there")
        elif line.get("sha256", found.sha256) != found.sha256:
            yield Violation("I12", slot, f"{event_id} is not the bytes that were acknowledged")
        if told.setdefault(slot, event_id) != event_id:
            yield Violation("I6", slot, f"{told[slot]} and {event_id} were both acknowledged")


# ---------------------------------------------------------------------------------------- decisions


def decisions_have_a_cause(log: Log, journal: Journal) -> Iterator[Violation]:
    for call in log.calls.values():
        decided = call.decided
        gated = call.gated
        if gated is not None and gated.author[0] == "gate":
            for invariant, what in _age_of_policy(log, call, gated):
                yield Violation(invariant, call.ref, what)
        if decided is not None and decided.author[0] == "gate":
            for invariant, what in _problems(log, call, decided):
                yield Violation(invariant, call.ref, what)


def _problems(log: Log, call: Call, decided: Record) -> Iterator[tuple[str, str]]:
    if call.requested is None or call.requested.seq > decided.seq:
        yield "I2", "decided before it was requested"
        return
    gated = call.gated if call.gated and call.gated.seq < decided.seq else None
    reached = outcome(log, call, decided.seq) if gated else None
    kind, ground = decided.kind, decided.event.get("ground")
    if kind in {"Approved", "Denied"} and ground in {"policy", "grant"} and not gated:
        yield from _age_of_policy(log, call, decided)
    if gated and ground in {"people", "broken_glass"}:
        frozen = [gated.event.get(name) for name in ("rule", "policy_version")]
        if frozen != [decided.event.get(name) for name in ("rule", "policy_version")]:
            yield "I3", "decided by another rule than the one by which people were asked"
    match kind:
        case "Approved":
            yield from _approval_problems(log, call, decided, gated, reached)
        case "Denied" if ground == "people" and reached and reached[0] != "deny":
            yield "I5", f"denied, but people had decided before: {reached[0]}"
        case "Answered" if reached is None or reached[0] != "answer":
            yield "I4", "answered, but not by enough people"
        case "Expired":
            due = call.due
            if gated is None or due is None or not call.is_last_stage or decided.at < due:
                yield "I5", "expired before its deadline"
            if reached:
                yield "I5", f"expired, but people had decided in time: {reached[0]}"
        case "Withdrawn" if not any(
            _was_over(one, decided.seq, itself=one is call) for one in (call, *log.above(call))
        ):
            yield "I5", "withdrawn by nobody"
        case "Superseded":
            yield from _supersession_problems(log, call, decided, reached)
        case _:
            pass


def _was_over(call: Call, seq: int, *, itself: bool) -> bool:
    """Whether nobody waited for what is asked below a call, or for the call itself."""
    ends = (call.withdrawn,) if itself else (call.withdrawn, call.end)
    return any(one is not None and one.seq < seq for one in ends)


def what_is_below_is_of_its_root(log: Log, journal: Journal) -> Iterator[Violation]:
    """Of whoever asked at the root, with everybody above shown, while somebody waits for it."""
    for call in log.calls.values():
        above = log.above(call)
        if not above or call.gated is None or call.gated.author[0] != "gate":
            continue
        opened = log.at(f"{ROOT}.{call.workspace}.{call.ref.split('/')[1]}.opened")
        starts = above[-1].starts
        if opened is None or not starts or starts[0].seq > opened.seq:
            yield Violation("I2", call.ref, "asked in a run that had not begun")
        shown = [one["call"] for one in call.gated.event.get("chain", ())]
        if shown != [one.ref for one in above]:
            yield Violation("I13", call.ref, f"asked in the runs of {shown}, and said otherwise")
        root = above[0].wish.get("requester")
        if call.wish.get("requester") != root or root not in call.gated.event.get("excluded", ()):
            yield Violation("I2", call.ref, f"{root} asked for it, and may vote")
        gone = [one.withdrawn.seq for one in above if one.withdrawn is not None]
        decided = call.decided
        if decided is None or not gone or decided.author[0] != "gate":
            continue
        reached = outcome(log, call, decided.seq)
        if decided.kind == "Approved" and reached and reached[1] > min(gone):
            yield Violation("I5", call.ref, "approved though what it was for was withdrawn before")
        if decided.kind == "Expired" and decided.at > call.gated.at and min(gone) < call.gated.seq:
            yield Violation("I5", call.ref, "asked and expired below a withdrawn call")


def sub_agents_end_once(log: Log, journal: Journal) -> Iterator[Violation]:
    """A call that has a thread below it returns what was said last there."""
    for subject, [opened, *_] in log.by_subject.items():
        match subject.split("."):
            case [_, workspace, thread, "opened"] if parent := opened.event.get("parent"):
                call = log.calls.get(parent, Call(parent))
                if call.end is None or call.end.kind != "ToolReturned":
                    continue
                texts = [
                    "".join(part.get("text", "") for part in replied.event.get("parts", ()))
                    for turn in (1, 2)
                    if (replied := log.at(f"{ROOT}.{workspace}.{thread}.turn.{turn}.replied"))
                    and replied.seq < call.end.seq
                ]
                if not texts or texts[-1] != call.end.event.get("output"):
                    yield Violation("I9", parent, f"returned something else than {texts[-1:]}")
            case _:
                pass


def _age_of_policy(log: Log, call: Call, judged: Record) -> Iterator[tuple[str, str]]:
    """A call is judged by a policy that is no older than its request."""
    owner = "_organisation" if judged.event.get("organisation") else call.workspace
    newer = log.at(f"{ROOT}.{owner}._policy.{judged.event.get('policy_version', 0) + 1}")
    if newer is not None and call.requested is not None and newer.seq < call.requested.seq:
        yield "I3", "judged by a policy that was replaced before the request"


def _approval_problems(
    log: Log,
    call: Call,
    decided: Record,
    gated: Record | None,
    reached: tuple[str, int, str | None] | None,
) -> Iterator[tuple[str, str]]:
    ground, wish = decided.event["ground"], call.wish
    if decided.event.get("digest") != call.digest:
        yield "I2", "approved with the digest of other bytes"
    if log.declared(call) is None:
        yield "I4", f"approved, but nobody declared {wish.get('tool')}"
    try:
        well_formed = isinstance(json.loads(call.arguments), dict)
    except ValueError:
        well_formed = False
    if not well_formed:
        yield "I4", "approved with malformed arguments"
    match ground:
        case "people" if reached is None or reached[0] != "approve":
            yield "I4", "approved, but not by enough people"
        case "people" if reached and reached[2] != decided.event.get("arguments"):
            yield "I2", "approved with other arguments than people agreed on"
        case "broken_glass" if reached is None or reached[0] != "break_glass":
            yield "I4", "approved in an emergency that nobody declared"
        case "policy" if gated is None and not _is_allowed(log, call, decided):
            yield "I4", "approved by a rule that does not allow it"
        case "grant":
            yield from _grant_problems(log, call, decided)
        case _:
            pass


def _is_allowed(log: Log, call: Call, decided: Record) -> bool:
    owner = "_organisation" if decided.event.get("organisation") else call.workspace
    applied = log.at(f"{ROOT}.{owner}._policy.{decided.event.get('policy_version')}")
    if applied is None or applied.seq > decided.seq:
        return False
    tool = call.wish.get("tool", "")
    rules = [
        rule
        for rule in tomllib.loads(applied.event["text"]).get("rule", ())
        if any(fnmatchcase(tool, pattern) for pattern in rule["tools"]) and not rule.get("shadow")
    ]
    named = [rule for rule in rules if rule["name"] == decided.event.get("rule")]
    plain = {"name", "tools", "then", "reason"}
    stricter = [rule for rule in rules if rule["then"] != "allow" and not set(rule) - plain]
    return bool(named) and named[0]["then"] == "allow" and not stricter


def _grant_problems(log: Log, call: Call, decided: Record) -> Iterator[tuple[str, str]]:
    for name in decided.event.get("grants", ()):
        head = f"{ROOT}.{call.workspace}._grant.{name.replace('/', '.')}"
        given = log.at(f"{head}.given")
        if given is None or given.seq > decided.seq:
            yield "I4", f"approved by grant {name}, which nobody had given"
            continue
        used = [
            one.event.get("call")
            for subject, [one, *_] in log.by_subject.items()
            if subject.startswith(f"{head}.used.")
        ]
        if call.ref not in used:
            yield "I6", f"approved by grant {name} without taking a use of it"
        if len(set(used)) > given.event.get("uses", 1):
            yield "I6", f"grant {name} was used {len(set(used))} times"


def budgets_hold(log: Log, journal: Journal) -> Iterator[Violation]:
    """What a blocking budget lets calls spend is recorded first, and within its limit."""
    spent: dict[str, dict[str, Decimal]] = defaultdict(dict)
    for one in log.records:
        match one.subject.split("."):
            case [_, workspace, "_budget", name, total, _]:
                of_calls = spent[f"{workspace}.{name}.{total}"]
                call, amount = one.event["call"], Decimal(one.event["amount"])
                of_calls[call] = max(amount, of_calls.get(call, amount))
                found = sum(
                    amount
                    for ref, amount in of_calls.items()
                    if ref not in log.calls or log.calls[ref].status_at(one.seq) not in _GIVES_BACK
                )
                budget = _budgets(log, workspace, one.seq).get(name, {})
                if budget.get("then") == "block" and found > Decimal(budget["limit"]):
                    yield Violation("I6", call, f"{found} of the budget {name} are spent")
            case [_, workspace, thread, "call", call, "decided"] if _is_gates(one):
                ref = f"{workspace}/{thread}/{call}"
                for name, budget in _budgets(log, workspace, one.seq).items():
                    if log.calls[ref].wish.get("tool") not in budget["tools"]:
                        continue
                    cost = json.loads(log.calls[ref].arguments)[budget["amount"][1:]]
                    series = (
                        calls
                        for key, calls in spent.items()
                        if key.startswith(f"{workspace}.{name}.")
                    )
                    if not any(calls.get(ref, -1) >= cost for calls in series):
                        yield Violation("I6", ref, f"spends of the budget {name}, unrecorded")
            case _:
                pass


def _is_gates(decided: Record) -> bool:
    return decided.kind == "Approved" and decided.author[0] == "gate"


_GIVES_BACK = {
    *("denied", "answered", "expired", "withdrawn", "superseded"),
    *("revoked", "lapsed", "declined", "refused"),
}


def _budgets(log: Log, workspace: str, before: int) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in _policy(log, workspace, before).get("budget", ())}


def _policy(log: Log, workspace: str, before: int) -> dict[str, Any]:
    """The policy that was in force in a workspace just before a fact."""
    heads = f"{ROOT}.{workspace}._policy."
    texts = [
        one.event.get("text", "")
        for subject, [one, *_] in log.by_subject.items()
        if subject.startswith(heads) and one.seq < before
    ]
    for text in reversed(texts):
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            continue
    return {}


def _supersession_problems(
    log: Log, call: Call, decided: Record, reached: tuple[str, int, str | None] | None
) -> Iterator[tuple[str, str]]:
    workspace, thread, _ = call.ref.split("/")
    since = call.requested.seq if call.requested else 0
    turn, _, index = call.ref.rpartition("/")[2].partition("-")
    if turn.isdecimal() and index.isdecimal():
        reply = log.at(f"{ROOT}.{workspace}.{thread}.turn.{turn}.replied")
        since = reply.seq if reply else since
    head = f"{ROOT}.{workspace}.{thread}.said."
    said = [
        found[0].seq
        for subject, found in log.by_subject.items()
        if subject.startswith(head) and found[0].event.get("role") == "user"
    ]
    after = [seq for seq in said if since < seq < decided.seq]
    if not after and not call.withdrawn:
        yield "I5", "superseded, but no user said anything after it was requested"
    elif reached and after and reached[1] < min(after):
        yield "I5", f"superseded, but people had decided before: {reached[0]}"


def escalations_are_due(log: Log, journal: Journal) -> Iterator[Violation]:
    for call in log.calls.values():
        since = call.gated
        for stage in call.escalated:
            after_s = since.event.get("expires_in_s") if since else None
            if since and (after_s is None or stage.at < since.at + timedelta(seconds=after_s)):
                yield Violation("I5", call.ref, "escalated before its time")
            if (
                since
                and call.awaited_until
                and call.awaited_until <= since.at + (timedelta(seconds=after_s or 0))
            ):
                yield Violation("I5", call.ref, "escalated when its requester waited no longer")
            since = stage


# -------------------------------------------------------------------------------------------- tools


def what_ran_was_approved(log: Log, journal: Journal) -> Iterator[Violation]:
    runs: dict[tuple[str, str], int] = defaultdict(int)
    for line in _of(journal, "tool"):
        if line["did"] != "started":
            continue
        ref, process = line["call"], line["process"]
        call = log.calls.get(ref, Call(ref))
        runs[ref, process] += 1
        own = [one for one in call.starts if one.author[1] == process and one.at <= _at(line)]
        if len(own) < runs[ref, process]:
            yield Violation("I1", ref, f"{process} ran it without a claim that counts")
            continue
        if json.loads(call.arguments) != line["arguments"]:
            yield Violation("I1", ref, f"{process} ran it with {line['arguments']}")
    for ref in dict.fromkeys(ref for ref, _ in runs):
        call = log.calls.get(ref, Call(ref))
        times = sum(number for (one, _), number in runs.items() if one == ref)
        if times > 1 and not (log.declared(call) or {}).get("repeatable"):
            yield Violation("I7", ref, f"ran {times} times, and its tool is not repeatable")


def results_are_recorded_once(log: Log, journal: Journal) -> Iterator[Violation]:
    for call in log.calls.values():
        ends = [*((call.end,) if call.end else ()), *call.late]
        said = [(one.author, one.kind, one.event.get("attempt", 1)) for one in ends]
        for one in dict.fromkeys(one for one in said if said.count(one) > 1):
            yield Violation("I6", call.ref, f"{one[0][1]} recorded its result twice")


def claims_lead_to_runs(log: Log, journal: Journal) -> Iterator[Violation]:
    """A process that claims a call runs it, unless it dies. If it cannot know that it has claimed
    it, the call is in doubt, or is claimed again where the tool is repeatable, or the process that
    started it before turns out to live and ends it.
    """
    dead = {line["process"] for line in _of(journal, "died")}
    ran = {(line["call"], line["process"]) for line in _of(journal, "tool")}
    known = {line["process"] for line in journal if "process" in line}
    for call in log.calls.values():
        if len(call.starts) > 1 and not (log.declared(call) or {}).get("repeatable"):
            yield Violation("I7", call.ref, "claimed again, and its tool is not repeatable")
        is_in_doubt = call.end is not None and call.end.kind == "InDoubt"
        if call.wish.get("tool") == _AGENT:
            continue  # its thread runs it, whoever claimed it
        for start in call.starts[-1:] if not is_in_doubt else ():
            process = start.author[1]
            if call.end is not None and call.end.author in {one.author for one in call.starts[:-1]}:
                continue
            if process in known - dead and (call.ref, process) not in ran:
                yield Violation("I6", call.ref, f"{process} claimed it and never ran it")
        if call.end is not None and call.end.kind in {"ToolReturned", "ToolFailed"}:
            by = call.end.author[1]
            if by in known and (call.ref, by) not in ran:
                yield Violation("I1", call.ref, f"{by} recorded a result and never ran it")


# ---------------------------------------------------------------------------------- what was told


def one_decision_is_told(log: Log, journal: Journal) -> Iterator[Violation]:
    for line in _of(journal, "told"):
        decided = log.calls[line["call"]].decided if line["call"] in log.calls else None
        if line["decision"] and (decided is None or decided.id != line["decision"]):
            yield Violation("I2", line["call"], f"{line['process']} was told another decision")


def statuses_are_of_the_facts(log: Log, journal: Journal) -> Iterator[Violation]:
    """Each is what the call was at some time before the answer, and never older than before."""
    seen: dict[tuple[str, str], tuple[datetime, int]] = {}
    for line in _of(journal, "told"):
        call, status = log.calls.get(line["call"], Call(line["call"])), line["status"]
        until, began = _at(line), _at(line, "began")
        been = [place for place, (_, at, _) in enumerate(call.history) if at <= until]
        is_so = [place for place in been if call.history[place][2] == status]
        who = f"{line['process']} was told after {line['did']} that it is {status}"
        if not is_so:
            yield Violation("I11", call.ref, f"{who}, which it never was by then")
            continue
        key = (line["call"], line["process"])
        known_since, least = seen.get(key, (until, 0))
        if began >= known_since and is_so[-1] < least:
            yield Violation("I8", call.ref, f"{who}, after a newer state")
        seen[key] = (until, max(least, is_so[0]))


def refusals_are_right(log: Log, journal: Journal) -> Iterator[Violation]:
    """A refusal holds for the call as it was at some time between question and answer."""
    ran = {(line["call"], line["process"]) for line in _of(journal, "tool")}
    for line in _of(journal, "refused"):
        call = log.calls.get(line["call"], Call(line["call"]))
        been = call.statuses(_at(line, "began"), _at(line))
        match line["did"], line["error"]:
            case _, "UnknownCall":
                is_wrong = "unknown" not in been
            case "vote", "NotOpen":
                is_wrong = been == {"pending"}
            case "run", "NotOpen":
                is_wrong = been == {"approved"} and call.may_run and call.is_clients
                is_wrong &= not _was_stopped(call, line)
            case "run", "AlreadyFilled":
                claimed = {one.author[1] for one in call.claims if one.at <= _at(line)}
                is_wrong = claimed <= {line["process"]} and ((call.ref, line["process"]) not in ran)
            case (("vote" | "withdraw"), "AlreadyDecided"):
                is_wrong = been <= {"unknown", "requested", "pending"}
            case "reconcile", "NotOpen":
                is_wrong = been == {"in_doubt"}
            case "revoke", "NotOpen":
                is_wrong = been == {"approved"}
            case _, "Defect" | "AssertionError":
                is_wrong = True
            case _:
                is_wrong = False
        if is_wrong:
            who = f"{line['process']} was told after {line['did']}: {line['error']}"
            yield Violation("I8", call.ref, f"{who}, but it was {', '.join(sorted(been))}")


def _was_stopped(call: Call, line: dict[str, Any]) -> bool:
    """Whether a stop covered it then, or when the claim was recorded that this program had made
    before without knowing whether it counts.
    """
    void = [one for one in call.claims if one not in call.starts]
    return any(stop.held(_at(line, "began"), _at(line)) for stop in call.stops) or any(
        one.author[1] == line["process"] for one in void
    )


# ------------------------------------------------------------------------------------------- stops


def nothing_is_approved_while_stopped(log: Log, journal: Journal) -> Iterator[Violation]:
    """A gate has read everything up to the fact that was delivered to it, and approves nothing if a
    stop that came before that still holds. It may not have seen one that came later.
    """
    by_id = {one.id: one for one in log.records}
    for call in log.calls.values():
        decided = call.decided
        if decided is None or not _is_gates(decided):
            continue
        cause = by_id.get(decided.event.get("cause", ""))
        for stop in call.stops if cause is not None else ():
            if stop.holds(decided.seq, cause.at) and stop.given.seq < cause.seq:
                yield Violation("I14", call.ref, f"approved while the stop {stop.ref} held")


def no_model_is_asked_while_stopped(log: Log, journal: Journal) -> Iterator[Violation]:
    """A worker has read everything up to its claim, and looks for stops after that."""
    for line in _of(journal, "model"):
        workspace, thread = line["thread"].split("/")
        head = f"{ROOT}.{workspace}.{thread}"
        opened = log.at(f"{head}.opened")
        # Its own claim may be a later one, after a worker that died.
        claim = log.at(f"{head}.turn.{line['turn']}.asked.1")
        if claim is None or opened is None:
            continue
        whose = [str(opened.event.get(name, "")) for name in ("agent", "requester")]
        for stop in log.stops:
            is_ended = stop.ended is not None and stop.ended.at <= _at(line)
            if not stop.covers(workspace, "*", *whose) or is_ended:
                continue
            if stop.holds(claim.seq, _at(line)):
                what = f"turn {line['turn']} was asked while the stop {stop.ref} held"
                yield Violation("I14", line["thread"], what)


def stops_end(log: Log, journal: Journal) -> Iterator[Violation]:
    """By enough people who may resume, since their giver had no right to stop, or by themselves."""
    for stop in log.stops:
        if stop.ended is not None and not _may_end(log, stop, stop.ended.seq):
            yield Violation("I14", stop.ref, "ended, though too few who may resume had done so")
        for end in _of(journal, "end"):
            if stop.holds(len(log.records) + 1, _at(end)):
                yield Violation("I14", stop.ref, "holds for ever")


def _may_end(log: Log, stop: Stop, before: int) -> bool:
    own, organisation = (_policy(log, one, before) for one in (stop.workspace, "_organisation"))
    may_stop = [*own.get("may_stop", ()), *organisation.get("may_stop", ())] or ["*"]
    may_resume = organisation.get("may_resume") or own.get("may_resume") or ["*"]
    counted = [who for who, one in stop.resumed.items() if one.seq < before]
    enough = sum(is_among(who, may_resume) for who in counted)
    needed = max(1, stop.given.event.get("resumes_needed", 1))
    return enough >= needed or not is_among(stop.giver, may_stop)


# -------------------------------------------------------------------------------------- the model


def turns_wait_for_their_calls(log: Log, journal: Journal) -> Iterator[Violation]:
    for subject, [asked, *_] in log.by_subject.items():
        match subject.split("."):
            case [_, workspace, thread, "turn", turn, "asked", "1"] if int(turn) > 1:
                for ref in _wishes(log, workspace, thread, int(turn) - 1):
                    call = log.calls.get(ref, Call(ref))
                    settled = [seq for seq, _, status in call.history if status in SETTLED]
                    if not settled or settled[0] > asked.seq:
                        yield Violation("I10", ref, f"turn {turn} began before its end")
            case _:
                pass


def _wishes(log: Log, workspace: str, thread: str, turn: int) -> list[str]:
    replied = log.at(f"{ROOT}.{workspace}.{thread}.turn.{turn}.replied")
    parts = replied.event.get("parts", ()) if replied else ()
    wishes = [part for part in parts if part.get("part") == "wish"]
    return [f"{workspace}/{thread}/{turn}-{index}" for index, _ in enumerate(wishes)]


def models_are_shown_the_ends(log: Log, journal: Journal) -> Iterator[Violation]:
    for line in _of(journal, "model"):
        workspace, thread = line["thread"].split("/")
        earlier = [
            ref for turn in range(1, line["turn"]) for ref in _wishes(log, workspace, thread, turn)
        ]
        if sorted(line["shown"]) != sorted(ref.rpartition("/")[2] for ref in earlier):
            yield Violation("I10", line["thread"], f"turn {line['turn']} was shown other calls")
        for ref in earlier:
            call, text = log.calls.get(ref, Call(ref)), line["shown"].get(ref.rpartition("/")[2])
            end = call.reconciled or call.end
            if text is None or end is None or _text(end) not in text:
                yield Violation("I9", ref, f"turn {line['turn']} was shown {text!r} as its end")


def _text(end: Record) -> str:
    return str(end.event.get("output") or end.event.get("error") or end.event.get("text") or "")


# ---------------------------------------------------------------------------------------- the end


def nothing_is_left(log: Log, journal: Journal) -> Iterator[Violation]:
    for end in _of(journal, "end"):
        for call in log.calls.values():
            if call.requested is not None and call.status not in SETTLED:
                yield Violation("I7", call.ref, f"is {call.status} for ever")
        waiting = [call for call in log.calls.values() if call.status == "pending"]
        expected = {call.ref.replace("/", ".") for call in waiting if call.requested}
        for workspace, thread, turn in _replies(log):
            for ref in _wishes(log, workspace, thread, turn):
                if ref not in log.calls or log.calls[ref].requested is None:
                    yield Violation("I7", ref, "was never requested, though a model wished for it")
        for key in sorted(expected ^ set(end["queue"])):
            has = "has" if key in end["queue"] else "lacks"
            yield Violation("I13", key.replace(".", "/"), f"the queue {has} it")
        for text in end.get("parked", ()):
            if not text.endswith("is newer than this program"):
                yield Violation("I8", text, "was parked")


def _replies(log: Log) -> Iterator[tuple[str, str, int]]:
    for subject in log.by_subject:
        match subject.split("."):
            case [_, workspace, thread, "turn", turn, "replied"]:
                yield workspace, thread, int(turn)
            case _:
                pass


def programs_go_on(log: Log, journal: Journal) -> Iterator[Violation]:
    for line in _of(journal, "ended"):
        yield Violation("I8", line["process"], f"ended by itself: {line['why']}")


ALL: Final[tuple[Callable[[Log, Journal], Iterator[Violation]], ...]] = (
    slots_hold_one_fact,
    acknowledged_facts_are_there,
    decisions_have_a_cause,
    escalations_are_due,
    what_ran_was_approved,
    results_are_recorded_once,
    claims_lead_to_runs,
    one_decision_is_told,
    statuses_are_of_the_facts,
    refusals_are_right,
    turns_wait_for_their_calls,
    models_are_shown_the_ends,
    nothing_is_left,
    budgets_hold,
    nothing_is_approved_while_stopped,
    no_model_is_asked_while_stopped,
    stops_end,
    what_is_below_is_of_its_root,
    sub_agents_end_once,
    programs_go_on,
)
