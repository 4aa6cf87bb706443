"""The checker's own counting of votes: which outcome people reached first, if any."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from checker.facts import Call, Log, Record, is_among


def outcome(log: Log, call: Call, before: int) -> tuple[str, int, str | None] | None:
    """What people had decided by then, by which fact, and the edited arguments."""
    asked = call.gated.event if call.gated else {}
    sides: dict[tuple[str, str | None], list[str]] = {}
    spent: set[str] = set()
    for vote in call.votes:
        voter = vote.subject.rpartition(".")[2]
        principal = vote.event.get("on_behalf_of") or voter
        people = {_person(voter, asked), _person(principal, asked)}
        if vote.seq > before or people & spent or not _counts(log, call, vote, voter, principal):
            continue
        spent |= people
        verdict = vote.event["verdict"]
        if verdict == "break_glass":
            return verdict, vote.seq, None
        edit = vote.event.get("arguments") if verdict == "approve" else None
        edit = None if edit == call.wish.get("arguments") else edit
        said = (verdict, _answer(vote) if verdict == "answer" else edit)
        sides.setdefault(said, []).append(principal)
        if verdict == "deny":
            if len(sides[said]) >= asked.get("denials_needed", 1):
                return verdict, vote.seq, None
            continue
        agree = sides[said]
        if edit is not None and not asked.get("editor_counts", True):
            agree = agree[1:]
        if _is_enough(call, agree, vote):
            return verdict, vote.seq, edit
    return None


def _answer(vote: Record) -> str:
    """An answer and the same text as an error are two answers."""
    return f"{vote.event.get('is_error', False)} {vote.event.get('answer', '')}"


def _person(account: str, asked: dict[str, Any]) -> str:
    name = account.casefold()
    return str(asked.get("people", {}).get(name, name))


def _counts(log: Log, call: Call, vote: Record, voter: str, principal: str) -> bool:
    gated, asked = call.gated, call.gated.event if call.gated else {}
    if gated is None or vote.seq < gated.seq or vote.event.get("digest") != asked.get("digest"):
        return False
    due = _deadline(call, vote.seq)
    if due is not None and vote.at >= due:
        return False
    barred = list(asked.get("excluded", ()))
    if voter != principal or vote.event["verdict"] == "break_glass":
        barred += asked.get("own", ())  # who confirms their own request does so in person
    excluded = {_person(one, asked) for one in barred}
    if {_person(voter, asked), _person(principal, asked)} & excluded:
        return False
    if vote.event["verdict"] == "break_glass":
        reason = vote.event.get("reason", "").strip()
        return bool(reason) and is_among(voter, asked.get("may_break_glass", ()))
    if voter != principal and not _is_delegated(log, call, vote, voter, principal):
        return False
    every = [voters for voters, _ in _seats(call)] + [_added(call, vote.seq)]
    return any(is_among(principal, voters) for voters in every)


def _deadline(call: Call, seq: int) -> datetime | None:
    """When it expires, with the stages that were there before that fact."""
    by_then = Call(call.ref)
    by_then.requested, by_then.gated = call.requested, call.gated
    by_then.escalated = [one for one in call.escalated if one.seq < seq]
    return by_then.due if by_then.is_last_stage else None


def _added(call: Call, seq: int) -> list[str]:
    """The people who were asked in addition before that fact."""
    return [one for fact in call.escalated if fact.seq < seq for one in fact.event["voters"]]


def _seats(call: Call) -> list[tuple[list[str], int]]:
    asked = call.gated.event if call.gated else {}
    own = (asked.get("voters", ["*"]), asked.get("votes_needed", 1))
    return [own, *((one["voters"], one.get("votes_needed", 1)) for one in asked.get("also", ()))]


def _is_delegated(log: Log, call: Call, vote: Record, voter: str, principal: str) -> bool:
    head = f"ledger.{call.workspace}._delegation.{principal}."
    for subject, [given, *_] in log.by_subject.items():
        theirs = subject.startswith(head) and subject.endswith((".given", ".absent"))
        if not theirs or given.seq > vote.seq:
            continue
        ends = (log.at(f"{one}.ended") for one in (subject, subject.rpartition(".")[0]))
        starts, ends = (
            datetime.fromisoformat(given.event[name]) for name in ("starts_at", "ends_at")
        )
        if (
            given.event["to"] == voter
            and starts <= vote.at < ends
            and is_among(call.wish.get("tool", ""), given.event.get("tools", ["*"]))
            and all(ended is None or ended.seq > vote.seq for ended in ends)
        ):
            return True
    return False


def _is_enough(call: Call, agree: Sequence[str], vote: Record) -> bool:
    """Whether these people can sit on all seats, each on one."""
    added = _added(call, vote.seq)
    open_seats = [voters for voters, needed in _seats(call) for _ in range(needed)]

    def fill(seats: Sequence[Sequence[str]], people: Sequence[str]) -> bool:
        if not seats:
            return True
        return any(
            is_among(one, (*seats[0], *added))
            and fill(seats[1:], [*people[:place], *people[place + 1 :]])
            for place, one in enumerate(people)
        )

    return fill(open_seats, agree)
