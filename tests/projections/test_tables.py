"""What the tables of the log mean: `projections/lake/tables.py` beside plain Python over the same
facts.

Nothing here touches a disk, but for the last of it: an archive that is filled in any batches has
the same calls.
"""

import json
import types
import typing
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import msgspec
import pytest
from anything import logs
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_tables import judged_by, read, rows
from paths import ROOT
from stories import (
    DECISIONS,
    EDIT,
    REF,
    SETTLED,
    START,
    UNSETTLED,
    Story,
    approval,
    life,
    lives,
    question,
    request,
)

from ayes.ledger.call import Call
from ayes.ledger.judging.budgets import Sum, filled, giving_back
from ayes.ledger.judging.grants import delegations_of, grants_of
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import RawMessage
from ayes.ledger.validity import call_of, voids
from ayes.ops.lake.writer import LakeWriter
from ayes.projections.lake import tables
from ayes.projections.lake.counting import Judge
from ayes.schemas import events as e
from ayes.schemas.codec import Fact, decode, encode, fact_of
from ayes.schemas.policy import TOKENS, Budget
from ayes.schemas.slots import STOP, CallRef, DelegationRef, GrantRef, Slot, ThreadRef
from bench.logs import mixed

SAMPLES = ROOT / "schemas" / "samples"
WISH = e.Wish(tool="refund", arguments='{"order":"A-17"}', provider_id="call_1")

#: Fields that stand in the payload alone, and why.
LEFT = {
    "ThreadOpened.tools": "a list of structs; what they are is in `tools`",
    "Said.name": "a word for the provider's format",
    "ThreadOpened.history_limit": "of the model worker's doing, not of what people ask",
    "ModelReplied.parts": "what was said and wished; each wish is a fact of its own",
    "ModelReplied.history_digest": "to prove one turn, looked up one at a time",
    "ApprovalRequested.excluded": "a list that repeats the requester",
    "ApprovalRequested.while_pending": "a setting of the policy's text",
    "ApprovalRequested.also": "a list of structs",
    "ApprovalRequested.besides": "a list of structs",
    "ApprovalRequested.denials_needed": "a setting of the policy's text",
    "ApprovalRequested.on_timeout": "a setting of the policy's text",
    "ApprovalRequested.chain": "a list of structs; `parent` of each thread says the same",
    "ApprovalRequested.stages": "a list of structs; each that began is a fact of its own",
    "ApprovalRequested.may_break_glass": "a setting of the policy's text",
    "ApprovalRequested.may_revoke": "a setting of the policy's text",
    "ApprovalRequested.may_reconcile": "a setting of the policy's text",
    "ApprovalRequested.people": "the table of the policy's text",
    "ApprovalRequested.editor_counts": "a setting of the policy's text",
    "ApprovalRequested.confirm": "a setting of the policy's text",
    "ApprovalRequested.signed": "a setting of the policy's text",
    "ApprovalRequested.undo_s": "a setting of the policy's text",
    "ApprovalRequested.reasons": "a setting of the policy's text",
    "ApprovalRequested.own": "as `ApprovalRequested.excluded`",
    "ApprovalRequested.undoing": "the class is in the tool's declaration, and rules name it",
    "ApprovalRequested.title": "of the arguments, which have a column",
    "Approved.undoing": "as in `ApprovalRequested`",
    "PolicyApplied.proposal": "a call, which has a row of its own",
    "Approved.excluded": "as in `ApprovalRequested`",
    "Approved.may_revoke": "a setting of the policy's text",
    "Approved.may_reconcile": "a setting of the policy's text",
    "ToolRequested.layout": "which slots a client's call has; the subjects show it",
    "Voted.signature": "to be verified, not asked about; in the payload",
    "Granted.signature": "to be verified, not asked about; in the payload",
    "Delegated.signature": "to be verified, not asked about; in the payload",
    "PolicyApplied.signatures": "to be verified, not asked about; in the payload",
    "ToolStarted.idempotency_key": "where the fact stands, once more",
    "ToolStarted.lease_s": "a setting of the service; its end is no fact",
    "ToolStarted.looked_up": "rare, and about one call",
    "ToolReturned.looked_up": "rare, and about one call",
    "Notified.channel": "how somebody was told, and no question about approvals",
    "Notified.together": "how somebody was told, and no question about approvals",
    "Posted.message": "where people were asked, and no question about approvals",
    "ToolDeclared.description": "long, and no question about approvals",
    "ToolDeclared.schema": "long, and no question about approvals",
    "ToolDeclared.class": "a setting of the declaration",
    "ToolDeclared.undo": "a setting of the declaration",
    "ToolDeclared.undo_within_s": "a setting of the declaration",
    "ToolDeclared.title": "a setting of the declaration",
    "ToolDeclared.repeatable": "a setting of the declaration",
    "ToolDeclared.governs": "a setting of the declaration",
    "ToolDeclared.secret": "a setting of the declaration",
    "ToolDeclared.sealed": "a setting of the declaration",
    "Keyed.commitment": "to be compared, not asked about; in the payload",
    "Granted.when": "a condition, to be read as a whole",
    "Granted.thread": "a pattern, and `thread` is where the fact stands",
    "GrantRevoked.call": "a whole reference, and `call` is where the fact stands",
    "GrantUsed.call": "a whole reference, and `call` is where the fact stands",
    "BudgetUsed.call": "a whole reference, and `call` is where the fact stands",
    "BudgetUsed.key": "to be read as a whole",
    "AccountBound.account": "of people, not of calls; in the payload",
    "LoginAdded.key": "of programs, not of calls; in the payload",
    "LoginAdded.workspaces": "of programs, not of calls; in the payload",
    "KeyAdded.key": "of people, not of calls; in the payload",
    "KeyAdded.credential": "of people, not of calls; in the payload",
    "KeyConfirmed.signatures": "of people, not of calls; in the payload",
    "PersonAdded.workspaces": "of people, not of calls; in the payload",
    "WorkspacesSet.workspaces": "of people, not of calls; in the payload",
    "GroupsRead.issuer": "of people, not of calls; in the payload",
    "GroupsRead.subject": "of people, not of calls; in the payload",
    "GroupsRead.groups": "of people, not of calls; in the payload",
    "GroupsRead.read_at": "of people, not of calls; in the payload",
    "GroupsRead.until": "of people, not of calls; in the payload",
    "GroupsRead.problem": "of people, not of calls; in the payload",
    "OnCallRead.shifts": "of people, not of calls; in the payload",
    "OnCallRead.read_at": "of people, not of calls; in the payload",
    "OnCallRead.until": "of people, not of calls; in the payload",
    "Escalated.on_call": "structures, to be read as a whole",
    "Approved.memberships": "structures, to be read as a whole",
    "Delegated.tools": "patterns, to be read as a whole",
    "Stopped.agents": "patterns, to be read as a whole",
    "Stopped.requesters": "patterns, to be read as a whole",
    "Stopped.tools": "patterns, to be read as a whole",
    "Stopped.resumes_needed": "a setting of the policy's text",
    "StopEnded.resumed_by": "a list; each who resumed is a fact of its own",
    "LogAccepted.size": "about the log, and no question about approvals",
    "LogAccepted.facts": "about the log, and no question about approvals",
    "LogAccepted.log": "about the log, and no question about approvals",
    "Packed.names": "each fact in it is a row of its own",
    "Packed.facts": "each fact in it is a row of its own",
    "Packed.size": "each fact in it is a row of its own",
}

TYPES = {
    "VARCHAR": {str},
    "VARCHAR[]": {tuple},
    "INTEGER": {int},
    "BIGINT": {int},
    "DOUBLE": {float},
    "BOOLEAN": {bool},
    "TIMESTAMP": {datetime},
    "JSON": {dict, str, tuple},
}


def raw_of(fact: Fact) -> RawMessage:
    return RawMessage(fact.seq, fact.recorded_at, fact.slot.subject, encode(fact.event))


def raws_of(subjects_and_bytes: list[tuple[str, bytes]]) -> list[RawMessage]:
    numbered = enumerate(subjects_and_bytes, 1)
    return [
        RawMessage(seq, START + timedelta(seconds=seq), subject, data)
        for seq, (subject, data) in numbered
    ]


def event_rows(raws: list[RawMessage]) -> list[dict]:
    return rows(read(raws), "SELECT * FROM events ORDER BY seq")


def naive(at: datetime | None) -> datetime | None:
    return None if at is None else at.astimezone(UTC).replace(tzinfo=None)


# ------------------------------------------------------------------------------- fields and columns


def _kinds(annotation: object) -> set[type]:
    """The Python types that a field can hold, None and UNSET apart."""
    if isinstance(annotation, typing.TypeAliasType):
        return _kinds(annotation.__value__)
    origin = typing.get_origin(annotation)
    match origin:
        case None:
            return {annotation} - {types.NoneType, msgspec.UnsetType}
        case typing.Annotated:
            return _kinds(typing.get_args(annotation)[0])
        case typing.Literal:
            return {type(value) for value in typing.get_args(annotation)}
        case types.UnionType | typing.Union:
            return set().union(*(_kinds(one) for one in typing.get_args(annotation)))
        case _:
            return {origin}


def _fields() -> dict[str, dict[str, set[type]]]:
    """By path in the payload and by event, what may stand there; `by` and `usage` spread out."""
    found: dict[str, dict[str, set[type]]] = {"type": {name: {str} for name in e.TYPES}}
    for name, event in e.TYPES.items():
        for field in msgspec.structs.fields(event):
            hints = typing.get_type_hints(event, include_extras=True)
            (one, *_) = kinds = _kinds(hints[field.name])
            if one in (e.Author, e.Usage):
                for inner in msgspec.structs.fields(one):
                    path = f"{field.encode_name}.{inner.encode_name}"
                    found.setdefault(path, {})[name] = {inner.type}
            else:
                found.setdefault(field.encode_name, {})[name] = set(kinds)
    return found


FIELDS = _fields()
#: The fields that hold a text, or texts and files.
CONTENT = {"text", "output"}


def test_each_field_of_each_fact_is_a_column_or_is_left_for_a_reason():
    """Whoever adds a field to an event must say whether analysts get a column for it."""
    columns = {path for _, path, _ in tables.FIELDS}
    without = {
        f"{kind}.{path}" for path, kinds in FIELDS.items() if path not in columns for kind in kinds
    }
    assert without == set(LEFT)
    assert all(LEFT.values())


def test_each_column_is_a_field_of_some_fact_and_can_hold_it():
    """A column that no fact fills would be NULL for ever; one of the wrong type would be, too."""
    for column, path, kind in tables.FIELDS:
        assert path in FIELDS, column
        # Texts and files in their order are a JSON array, which is in the column as its text.
        held = set().union(*FIELDS[path].values()) - ({tuple} if path in CONTENT else set())
        assert held <= TYPES[kind], column
    columns = [column for column, _, _ in tables.FIELDS]
    assert len(set(columns)) == len(columns)


def _told(event: e.Event, path: str, recorded: dict[str, Any]) -> object:
    """What stands there on the wire, as the column should show it; without defaults."""
    value: object = msgspec.to_builtins(event, builtin_types=(datetime,)) | recorded
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    match value:
        case datetime():
            return naive(value)
        case tuple():
            return list(value)
        case _:
            return value


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.json")), ids=lambda path: path.stem)
def test_a_golden_sample_is_read_with_the_values_that_the_codec_reads(path):
    """DuckDB and msgspec agree about every column of every kind of fact."""
    raw = path.read_bytes()
    event = decode(raw)
    assert isinstance(event, e.Event)
    (row,) = event_rows(raws_of([("ledger.acme.t1.opened", raw)]))
    for column, place, kind in tables.FIELDS:
        told = row[column]
        if kind == "JSON" and told is not None:
            told = json.loads(told)
        # The codec reads what an older version wrote as the current one.
        versions = {"v": json.loads(raw).get("v")}
        assert told == _told(event, place, versions), column
    assert row["payload"] == raw


def test_there_is_a_sample_of_each_kind():
    """So the test above leaves none out."""
    assert {path.name.partition(".")[0] for path in SAMPLES.glob("*.json")} == set(e.TYPES)


def test_a_time_of_another_zone_is_the_same_moment():
    """A person says from when to when in their own zone; the column is UTC."""
    event = e.Delegated(
        to="ben",
        starts_at=datetime.fromisoformat("2026-03-01T11:00:00+02:00"),
        ends_at=datetime.fromisoformat("2026-03-01T23:30:00.25-05:00"),
    )
    (row,) = event_rows(raws_of([("ledger.acme._delegation.ana.d.given", encode(event))]))
    assert row["starts_at"] == naive(datetime(2026, 3, 1, 9, 0, tzinfo=UTC))
    assert row["ends_at"] == naive(datetime(2026, 3, 2, 4, 30, 0, 250_000, tzinfo=UTC))


# ------------------------------------------------------------------------------------ foreign bytes

NOTHING = dict.fromkeys((column for column, _, _ in tables.FIELDS), None)

FOREIGN = {
    "empty": (b"", {}),
    "no UTF-8": (b'{"type":"Said\xff"}', {}),
    "a zero byte": (b"\x00", {}),
    "with a byte order mark": (b'\xef\xbb\xbf{"type":"Said"}', {}),
    "half of it": (b'{"type":"Said","te', {}),
    "more than one": (b'{"type":"Said"}{"type":"Said"}', {}),
    "no JSON": (b"NaN", {}),
    "null": (b"null", {}),
    "a list": (b'[{"type":"Said"}]', {}),
    "a word": (b'"Said"', {}),
    "deep": (b'{"type":' * 9999 + b"1" + b"}" * 9999, None),
    "half a surrogate pair": (b'{"type":"\\ud800"}', {}),
    "a zero character": (b'{"type":"Said","text":"a\\u0000b"}', {"type": "Said", "text": "a\0b"}),
    "no number": (b'{"v":"one","policy_version":{},"after_s":[]}', {}),
    "too large a number": (b'{"v":1e99,"policy_version":99999999999}', {}),
    "no yes or no": (b'{"halt":"perhaps","happened":[]}', {}),
    "no list": (b'{"voters":"ana","grants":{"a":1}}', {}),
    "no time": (b'{"at":"yesterday","starts_at":{},"ends_at":""}', {}),
    "no struct": (b'{"by":5,"usage":[1]}', {}),
    "a struct for a word": (b'{"tool":{"a":1}}', {"tool": '{"a":1}'}),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_bytes_are_a_row_and_disturb_nobody(name):
    """What cannot be read is NULL, the payload stays byte for byte, and its batch arrives whole."""
    raw, shown = FOREIGN[name]
    good = encode(e.Said(role="user", text="hello"))
    subjects = ("ledger.acme.t1.said.a", "ledger.acme.t1.said.b", "ledger.acme.t1.said.c")
    before, row, after = event_rows(raws_of(list(zip(subjects, (good, raw, good), strict=True))))
    assert row["payload"] == raw
    if shown is not None:
        assert {column: row[column] for column in NOTHING} == NOTHING | shown
    assert [one["text"] for one in (before, after)] == ["hello", "hello"]
    stood = [row[name] for name in ("workspace", "thread", "place", "which")]
    assert stood == ["acme", "t1", "said", "b"]


def test_all_of_them_at_once():
    """In one batch, too."""
    raws = raws_of(
        [(f"ledger.acme.t1.said.m{n}", raw) for n, (raw, _) in enumerate(FOREIGN.values())]
    )
    assert [row["payload"] for row in event_rows(raws)] == [raw.data for raw in raws]


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.one_of(st.binary(), st.text().map(str.encode)), max_size=20))
def test_any_bytes_are_rows(payloads):
    """Whatever somebody publishes below `ledger.`."""
    raws = raws_of([(f"ledger.acme.t1.said.m{n}", raw) for n, raw in enumerate(payloads)])
    assert [row["payload"] for row in event_rows(raws)] == payloads


PLACES = ("workspace", "thread", "place", "call", "turn", "which")
#: A subject, and where it says that a fact stands.
SUBJECTS = {
    "ledger.acme.t1.opened": ("acme", "t1", "opened", None, None, None),
    "ledger.acme.t1.said.m1": ("acme", "t1", "said", None, None, "m1"),
    "ledger.acme.t1.turn.12.asked.2": ("acme", "t1", "asked", None, 12, "2"),
    "ledger.acme.t1.turn.12.replied": ("acme", "t1", "replied", None, 12, None),
    "ledger.acme.t1.call.3-0.requested": ("acme", "t1", "requested", "3-0", None, None),
    "ledger.acme.t1.call.3-0.vote.ana": ("acme", "t1", "vote", "3-0", None, "ana"),
    "ledger.acme.t1.call.3-0.claim.1": ("acme", "t1", "claim", "3-0", None, "1"),
    "ledger.acme.t1.call.3-0.claim.client.2": ("acme", "t1", "claim", "3-0", None, "client.2"),
    "ledger.acme.t1.call.3-0.finished.client": ("acme", "t1", "finished", "3-0", None, "client"),
    "ledger.acme.t1.call.3-0.late.client.1": ("acme", "t1", "late", "3-0", None, "client.1"),
    "ledger.acme.t1.call.3-0.revoked.ana": ("acme", "t1", "revoked", "3-0", None, "ana"),
    "ledger.acme.t1.call.3-0.reconciled.ana": ("acme", "t1", "reconciled", "3-0", None, "ana"),
    "ledger.acme.opened.opened": ("acme", "opened", "opened", None, None, None),
    "ledger.acme._policy.7": ("acme", None, "policy", None, None, "7"),
    "ledger._organisation._policy.7": ("_organisation", None, "policy", None, None, "7"),
    "ledger.acme._tool.pay.v1": ("acme", None, "tool", None, None, "pay.v1"),
    "ledger.acme._grant.ana.g.used.3": ("acme", None, "grant", None, None, "ana.g.used.3"),
    "ledger.acme._delegation.ana.d.ended": ("acme", None, "delegation", None, None, "ana.d.ended"),
}
NO_SLOTS = (
    "ledger.acme", "ledger.acme.t1", "ledger.acme.t1.call", "ledger.acme.t1.call.3-0",
    "ledger.acme.t1.call.3-0.requested.more", "ledger.acme.t1.call.3-0.decided.1",
    "ledger.acme.t1.call.3-0.claim.01", "ledger.acme.t1.call.3-0.claim.x",
    "ledger.acme.t1.call.ä.requested", "ledger.acme.t1.turn.0.replied", "ledger.acme.t1._policy.1",
    "ledger._acme.t1.opened", "ledger.acme._t1.opened", "ledger.acme._other.1",
)  # fmt: skip


@pytest.mark.parametrize("subject", SUBJECTS)
def test_where_a_fact_stands_is_read_off_its_subject(subject):
    """As `ayes.schemas.slots` reads it."""
    Slot.parse(subject)
    (row,) = event_rows(raws_of([(subject, b"{}")]))
    assert tuple(row[column] for column in PLACES) == SUBJECTS[subject]


@pytest.mark.parametrize("subject", NO_SLOTS)
def test_what_is_no_slot_has_no_place(subject):
    """It is kept, and counts nowhere."""
    raw = encode(request(WISH))
    assert fact_of(1, START, subject, raw).slot.workspace == ""
    (row,) = event_rows(raws_of([(subject, raw)]))
    assert [row[column] for column in PLACES] == [None] * len(PLACES)
    assert (row["subject"], row["payload"]) == (subject, raw)


# -------------------------------------------------------------------------------------------- calls


def _or_none(value):
    return value or None


def calls_in(raws: list[RawMessage]) -> dict[CallRef, tuple[Call, list[Fact]]]:
    """The calls that these messages make, and all that stands in their slots."""
    by_call: dict[CallRef, list[Fact]] = {}
    stops = []
    for raw in raws:
        one = fact_of(raw.seq, raw.recorded_at, raw.subject, raw.data)
        if one.slot.tail[0] == STOP:
            stops.append(one)
        elif one.slot.thread and one.slot.call_ref:
            by_call.setdefault(one.slot.call_ref, []).append(one)
    return {ref: (call_of(ref, (*facts, *stops)), facts) for ref, facts in by_call.items()}


def expected(raws: list[RawMessage]) -> dict[tuple[str, str, str], dict]:
    """A row for each requested call, of what counts for `ayes.ledger.lifecycle` until its end."""
    found = {}
    for ref, (call, facts) in calls_in(raws).items():
        if call.requested is None:
            continue
        out = {one.fact.seq for one in voids(call)} | {one.seq for one in call.newer}
        out |= {one.seq for one in (*call.notified, *call.posted)}
        out |= {one.seq for one in (*call.comments, *call.handed)}
        ends = [call.reconciled, call.finished]
        end = min(
            (one.seq for one in ends if one and not isinstance(one.event, e.InDoubt)),
            default=len(raws),
        )
        taken = [
            one for one in facts if one.seq not in out and call.requested.seq <= one.seq <= end
        ]
        found[ref.workspace, ref.thread, ref.call] = _row(_within(call, taken), taken)
    return found


def _within(call: Call, facts: list[Fact]) -> Call:
    """What of the call is among these facts."""
    seqs = {one.seq for one in facts}

    def kept(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(one for one in value if one.seq in seqs)
        return value if value.seq in seqs else None

    names = [
        name
        for name in call.__struct_fields__
        if name not in ("ref", "void", "newer", "last_revocation", "stops", "people", "tool_class")
    ]
    changes = {name: kept(value) for name in names if (value := getattr(call, name))}
    return msgspec.structs.replace(call, **changes)


def judged(raws: list[RawMessage]) -> dict[int, tuple[bool, str | None]]:
    """Of each fact, whether it counts for `ayes.ledger.lifecycle`, and why not."""
    found = {raw.seq: (False, None) for raw in raws}
    for call, facts in calls_in(raws).values():
        newer = {one.seq for one in call.newer}
        found |= {one.seq: (True, None) for one in call.facts if one.seq not in newer}
        found |= {one.fact.seq: (False, one.why) for one in voids(call)}
        assert {one.seq for one in call.facts} == {one.seq for one in facts}
    return found


def _row(call: Call, facts: list[Fact]) -> dict:
    wish, asking = call.wish, call.approval_request
    decision = call.decided.event if call.decided else None
    finished = call.finished.event if call.finished else None
    found = call.reconciled.event if call.reconciled else None
    starts, back = call.starts, call.revoked
    told = getattr(decision, "arguments", None)
    match call.status:
        case Status.REFUSED:
            outcome = finished.ending
        case Status.RETURNED | Status.FAILED | Status.IN_DOUBT | Status.RECONCILED as status:
            outcome = str(status)
        case _:
            outcome = None

    def at(fact: Fact | None) -> datetime | None:
        return naive(fact.recorded_at) if fact else None

    return {
        "tool": wish.tool,
        "tool_version": _or_none(wish.tool_version),
        "agent": _or_none(wish.agent),
        "requester": _or_none(wish.requester),
        "provider_id": _or_none(wish.provider_id),
        "run_by": wish.run_by,
        "arguments": wish.arguments,
        "digest": wish.digest,
        "rule": getattr(decision, "rule", asking.rule if asking else None),
        "policy_version": getattr(
            decision, "policy_version", asking.policy_version if asking else None
        ),
        "organisation": getattr(decision, "organisation", asking.organisation if asking else False),
        "asked": asking is not None,
        "question": _or_none(asking.reason) if asking else None,
        "votes_needed": asking.votes_needed if asking else None,
        "votes": len(call.votes),
        "escalations": len(call.escalated),
        "verdict": type(decision).__name__ if decision else None,
        "ground": getattr(decision, "ground", None),
        "mode": decision.mode
        if isinstance(decision, e.Approved) and decision.ground in ("people", "broken_glass")
        else None,
        "reviewers": _or_none(list(getattr(decision, "voters", ()))),
        "reason": _or_none(getattr(decision, "reason", "")),
        "edited": told is not None,
        "edited_arguments": told,
        "grants": _or_none(list(getattr(decision, "grants", ()))),
        "valid_until": naive(call.valid_until),
        "revoked_by": _who_revoked(back) if back else None,
        "attempts": len(starts),
        "outcome": outcome,
        "output": getattr(found or finished, "output", None),
        "error": getattr(finished, "error", None),
        "requested_at": at(call.requested),
        "gated_at": at(call.gated),
        "decided_at": at(call.decided),
        "started_at": min(map(at, starts), default=None),
        "finished_at": at(call.finished),
        "ended_at": at(
            call.reconciled or (None if isinstance(finished, e.InDoubt) else call.finished)
        ),
        "first_seq": facts[0].seq,
        "gated_seq": call.gated.seq if call.gated else None,
        "decided_seq": call.decided.seq if call.decided else None,
        "last_seq": facts[-1].seq,
    }


def _who_revoked(fact: Fact) -> str | None:
    """Who it is stands in the slot; in an executor's slot, as before, in the fact."""
    return fact.slot.tail[3] if fact.slot.tail[2] == "revoked" else _or_none(fact.event.reviewer)


def told_of_calls(db: duckdb.DuckDBPyConnection, source: str = "calls") -> dict:
    found = {}
    for row in rows(db, f"SELECT * FROM {source}"):
        key = (row.pop("workspace"), row.pop("thread"), row.pop("call"))
        assert key not in found
        found[key] = row
    return found


@settings(max_examples=examples(60), deadline=None)
@given(logs(REF))
def test_calls_are_what_the_lifecycle_says(raws):
    """Each number in `calls`, of any record, in any order; and what counts of it."""
    db = read(raws)
    assert judged_by(db) == judged(raws)
    assert told_of_calls(db) == expected(raws)


def test_an_ordinary_log_is_known_by_sight():
    """The lifecycle is not asked about calls that went as nearly all do, so the lake stays fast."""
    told = [(slot.subject, encode(event)) for slot, event in mixed(3000, 20)]
    judge = Judge()
    judged_at_once = judge.judge(raws_of(told), lambda _: ())
    assert (judged_at_once.others, list(judge.odd)) == ({}, [])
    assert judged_by(read(raws_of(told))) == judged(raws_of(told))


@settings(max_examples=examples(12), deadline=None)
@given(lives())
def test_calls_of_whole_conversations(facts):
    """As above, with the words that models and people really say."""
    raws = [raw_of(fact) for fact in facts]
    assert judged_by(read(raws)) == judged(raws)
    assert told_of_calls(read(raws)) == expected(raws)


@pytest.mark.parametrize("ending", ["returned", "denied", "happened", "revoked"])
def test_nothing_that_comes_after_the_end_changes_the_row(ending):
    """A row is never written again: a late result, a vote that lost, a second attempt."""
    call = REF.wish(1, 0)
    told = [(slot.subject, encode(event)) for slot, event in life(call, WISH, ending)]
    late = [
        (call.late(2), e.ToolReturned(output="late")),
        (call.vote("zoe"), e.Voted(verdict="deny", digest="")),
        (call.claim(9), e.ToolStarted(digest=request(WISH).digest, idempotency_key=str(call))),
        (call.escalated(1), e.Escalated(voters=("carla",))),
    ]
    after = told + [(slot.subject, encode(event)) for slot, event in late]
    assert told_of_calls(read(raws_of(told))) == told_of_calls(read(raws_of(after)))
    assert len(event_rows(raws_of(after))) == len(after)


@settings(max_examples=examples(8), deadline=None)
@given(logs(REF), st.data())
def test_in_whatever_batches_they_come_the_calls_are_the_same(raws, data):
    """Folded batch by batch, published in between, `calls` is what `events` as a whole says."""
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(raws) - 1)), max_size=6)))
    with TemporaryDirectory() as directory, LakeWriter.open(Path(directory), "1") as archive:
        for start, end in zip([0, *cuts], [*cuts, len(raws)], strict=True):
            archive.take(raws[start:end])
            if data.draw(st.booleans()):
                archive._judge = archive._new_judge()  # as after a start
            if data.draw(st.booleans()):
                archive.publish()
        archive.publish()
        with duckdb.connect(archive.lake / "catalog.duckdb", read_only=True) as lake:
            assert judged_by(lake) == judged(raws)
            assert told_of_calls(lake) == expected(raws)
            assert told_of_calls(lake, f"calls_until({len(raws)})") == expected(raws)
            ended = told_of_calls(lake, "(SELECT * FROM calls EXCEPT SELECT * FROM open_calls)")
            assert all(row["ended_at"] is not None for row in ended.values())


def test_tables_as_they_were_at_each_fact_of_a_log():
    """`events_until` and `calls_until` answer as if nothing had come since."""
    story = Story()
    for turn, ending in enumerate(("edited", "denied", "happened", "running"), 1):
        story.turn(turn, WISH).live(turn, 0, WISH, ending)
    raws = [raw_of(fact) for fact in story.facts]
    db = read(raws)
    for until in range(len(raws) + 2):
        assert told_of_calls(db, f"calls_until({until})") == expected(raws[:until])
        seqs = db.execute(f"SELECT seq FROM events_until({until}) ORDER BY seq").fetchall()
        assert [seq for (seq,) in seqs] == [raw.seq for raw in raws[:until]]


# -------------------------------------------------------------------------------------------- views


@pytest.fixture(scope="module")
def told() -> list[Fact]:
    """A log with everything in it that the views are about."""
    story = Story()
    other = ThreadRef("acme", "t2")
    grant, spent = GrantRef("acme", "ana", "g1"), GrantRef("acme", "ana", "g1-more")
    organisation = e.PolicyApplied(text="org", digest="0")
    story.tell(Slot.parse("ledger._organisation._policy.1"), organisation)
    root = e.Author(kind="admin", name="root")
    for version in (1, 2):
        event = e.PolicyApplied(text=f"v{version}", digest=str(version), by=root)
        story.tell(Slot.parse(f"ledger.acme._policy.{version}"), event)
    declared = e.ToolDeclared(description="pays back", schema="{}")
    story.tell(Slot.parse("ledger.acme._tool.refund.v1"), declared)
    granted = e.Granted(tool="refund", expires_in_s=3600.5, uses=3, agent="bot-*", reason="ok")
    story.tell(grant.given, granted)
    story.tell(spent.given, e.Granted(tool="refund", expires_in_s=60, arguments="{}"))
    story.tell(REF.opened, e.ThreadOpened(requester="rita", agent="bot", model="test:model"))
    story.tell(other.opened, e.ThreadOpened(requester="omar"))
    story.say("hello")
    story.tell(REF.asked(1, 1), e.ModelAsked(model="test:model"))
    replied = e.ModelReplied(parts=(WISH, WISH), usage=e.Usage(input_tokens=70, output_tokens=5))
    story.tell(REF.replied(1), replied)
    for index, verdict in enumerate(("approve", "deny")):
        call = REF.wish(1, index)
        story.tell(call.requested, request(WISH))
        story.tell(call.gated, question(WISH))
        edit = EDIT if verdict == "approve" else None
        vote = e.Voted(verdict=verdict, digest="d", reason="so", arguments=edit, halt=True)
        story.tell(call.vote("ana"), vote)
        story.tell(call.vote("ben"), e.Voted(verdict=verdict, digest="d", on_behalf_of="carla"))
        story.tell(call.decided, approval(WISH, EDIT) if index == 0 else DECISIONS["denied"])
    story.tell(grant.used(1), e.GrantUsed(call="acme/t1/1-0"))
    story.tell(spent.used(1), e.GrantUsed(call="acme/t1/1-1"))
    story.tell(grant.used(2), e.GrantUsed(call="acme/t1/1-2"))
    story.tell(grant.revoked, e.GrantRevoked(reviewer="ana"))
    day = timedelta(days=1)
    for name in ("d1", "d2"):
        word = e.Delegated(to="ben", starts_at=START, ends_at=START + day, reason="away")
        story.tell(DelegationRef("acme", "ana", name).given, word)
    story.tell(DelegationRef("acme", "ana", "d2").ended, e.DelegationEnded())
    for name in ("a1", "a2", "a3"):  # by the calendar
        story.tell(DelegationRef("acme", "ana", name).absent, word)
    story.tell(DelegationRef("acme", "ana", "a2").absent_ended, e.DelegationEnded())
    story.tell(DelegationRef("acme", "ana", "a3").ended, e.DelegationEnded())
    story.tell(Slot.parse("ledger.beta.t1.said.m1"), e.Said(role="user", text="elsewhere"))
    return story.facts


@pytest.fixture
def db(told):
    return read([raw_of(fact) for fact in told])


def test_votes_are_each_persons_word_with_what_it_was_about(db, told):
    """Who, for whom, how long after they were asked, and whether the decision rests on it."""
    found = rows(db, "SELECT * FROM votes ORDER BY seq")
    votes = [fact for fact in told if isinstance(fact.event, e.Voted)]
    assert len(found) == len(votes) == 4
    for row, fact in zip(found, votes, strict=True):
        call = call_of(fact.slot.call_ref, tuple(told))
        vote = fact.event
        assert row == {
            "seq": fact.seq,
            "recorded_at": naive(fact.recorded_at),
            "workspace": "acme",
            "thread": "t1",
            "call": call.ref.call,
            "reviewer": fact.slot.tail[3],
            "on_behalf_of": _or_none(vote.on_behalf_of),
            "verdict": vote.verdict,
            "reason": _or_none(vote.reason),
            "edited": vote.arguments is not None,
            "arguments": vote.arguments,
            "digest": vote.digest,
            "tool": "refund",
            "gated_at": naive(call.gated.recorded_at),
            "after_s": (fact.recorded_at - call.gated.recorded_at).total_seconds(),
            "counted": fact.slot.tail[3] in call.decided.event.voters,
        }


def test_grants_are_what_the_gate_takes_them_for(db, told):
    """Who gave them, until when they hold, and how often they were used; names may begin alike."""
    found = rows(db, "SELECT * FROM grants ORDER BY given_at")
    grants = grants_of(fact for fact in told if fact.slot.tail[0] == "_grant")
    assert len(found) == len(grants) == 2
    for row, grant in zip(found, grants, strict=True):
        granted = grant.granted
        assert row == {
            "workspace": "acme",
            "giver": grant.ref.giver,
            "name": grant.ref.name,
            "tool": granted.tool,
            "arguments": granted.arguments,
            "agent": granted.agent,
            "uses": granted.uses,
            "expires_in_s": granted.expires_in_s,
            "reason": _or_none(granted.reason),
            "given_at": naive(grant.given.recorded_at),
            "ends_at": naive(grant.ends_at),
            "revoked_at": naive(grant.revoked.recorded_at) if grant.revoked else None,
            "used": len(grant.used),
        }


@pytest.mark.parametrize("ending", [*SETTLED, *UNSETTLED])
def test_budgets_are_what_the_gate_takes_them_for(ending):
    """What counts of each sum, whatever became of the call that has it; a call that was edited has
    the larger amount, and the tokens of a reply are never given back.
    """
    story, call, other = Story(), REF.wish(1, 0), REF.wish(2, 0)
    money = Budget(name="money", tools=("*",), amount="/amount", limit=100, per=("day",))
    tokens = Budget(name="talk", tools=("*",), amount=TOKENS, limit=100)
    day = Sum(money, "acme", ("2026-03-02",))
    talk = Sum(tokens, "acme", organisation=True)
    story.tell_all(life(call, WISH, ending))
    for number, (ref, amount) in enumerate([(call, "10.5"), (other, "0.25"), (call, "20")], 1):
        story.tell(day.ref.used(number), e.BudgetUsed(str(ref), amount, day.key))
    for turn in (1, 2):
        used = e.BudgetUsed(f"{REF}/turn.{turn}", "70", organisation=True)
        story.tell(talk.ref.used(turn), used)
    found = rows(
        read([raw_of(fact) for fact in story.facts]), "SELECT * FROM budgets ORDER BY name"
    )
    for row, one in zip(found, (day, talk), strict=True):
        known = filled(one, story.facts)
        known = msgspec.structs.replace(
            known, given_back=giving_back(known.others(REF.wish(9, 0)), story.facts)
        )
        assert row["used"] == known.spent(REF.wish(9, 0))
        assert row["used"] + row["given_back"] == (Decimal("20.25") if one is day else 140)
        assert (row["workspace"], row["name"]) == ("acme", one.budget.name)
        assert (tuple(row["key"]), row["organisation"]) == (one.key, one.organisation)
        assert row["uses"] == (2 if row["given_back"] == 0 else 1)


def test_delegations_are_what_the_gate_takes_them_for(db, told):
    """Whose vote is in whose hands, from when to when."""
    found = rows(db, "SELECT * FROM delegations ORDER BY given_at")
    given = delegations_of(fact for fact in told if fact.slot.tail[0] == "_delegation")
    assert len(found) == len(given) == 5
    for row, one in zip(found, given, strict=True):
        assert row == {
            "workspace": "acme",
            "giver": one.ref.giver,
            "name": one.ref.name,
            "delegate": one.delegated.to,
            "starts_at": naive(one.delegated.starts_at),
            "ends_at": naive(one.delegated.ends_at),
            "reason": "away",
            "given_at": naive(one.given.recorded_at),
            "ended_at": naive(one.ended.recorded_at) if one.ended else None,
        }


def test_policies_are_the_versions_that_were_applied(db, told):
    """With who applied them and their text; the organisation's stand beside the workspace's."""
    applied = [fact for fact in told if isinstance(fact.event, e.PolicyApplied)]
    assert rows(db, "SELECT * FROM policies ORDER BY seq") == [
        {
            "workspace": fact.slot.workspace,
            "version": int(fact.slot.tail[1]),
            "applied_at": naive(fact.recorded_at),
            "author": fact.event.by.name if isinstance(fact.event.by, e.Author) else None,
            "digest": fact.event.digest,
            "text": fact.event.text,
            "seq": fact.seq,
        }
        for fact in applied
    ]
    (tool,) = rows(db, "SELECT workspace, tool, version, run_by FROM tools")
    assert tool == {"workspace": "acme", "tool": "refund", "version": "v1", "run_by": "client"}


def test_threads_are_counted_by_what_stands_in_them(db, told):
    """Messages, turns, calls and tokens of each conversation, of each workspace."""
    by_thread: dict[tuple[str, str], list[Fact]] = {}
    for fact in told:
        if fact.slot.thread:
            by_thread.setdefault((fact.slot.workspace, fact.slot.thread), []).append(fact)
    found = {
        (row["workspace"], row["thread"]): row
        for row in rows(db, "SELECT * EXCLUDE (first_at, last_at) FROM threads")
    }
    assert found.keys() == by_thread.keys()
    for key, facts in by_thread.items():
        kinds = Counter(type(fact.event).__name__ for fact in facts)
        events = (fact.event for fact in facts)
        opened = next((one for one in events if isinstance(one, e.ThreadOpened)), None)
        usage = [fact.event.usage for fact in facts if isinstance(fact.event, e.ModelReplied)]
        assert found[key] == {
            "workspace": key[0],
            "thread": key[1],
            "requester": opened.requester if opened else None,
            "agent": _or_none(opened.agent) if opened else None,
            "model": _or_none(opened.model) if opened else None,
            "messages": kinds["Said"],
            "turns": kinds["ModelReplied"],
            "calls": kinds["ToolRequested"],
            "questions": kinds["ApprovalRequested"],
            "input_tokens": sum(one.input_tokens for one in usage) if usage else None,
            "output_tokens": sum(one.output_tokens for one in usage) if usage else None,
            "facts": len(facts),
            "first_seq": facts[0].seq,
            "last_seq": facts[-1].seq,
        }


def test_files_are_rows_of_their_own():
    """Those of messages, outputs and replies, in their order; texts are none."""
    stored = e.Media("image/png", e.Stored("a" * 64, 123456), "chart.png")
    inline = e.Media("text/plain", e.Inline("aGk="), "hi.txt")
    link = e.Media("image/*", e.Linked("https://example.org/a.png"))
    ref = ThreadRef("acme", "t1")
    facts = [
        (ref.said("m1"), e.Said(role="user", text=(e.Text("Look:"), stored, inline))),
        (ref.said("m2"), e.Said(role="user", text="[no file]")),
        (ref.replied(1), e.ModelReplied(parts=(e.Text("Here:"), link))),
        (ref.call("1-0").finished, e.ToolReturned(output=(inline,))),
    ]
    db = read(raws_of([(slot.subject, encode(event)) for slot, event in facts]))
    found = rows(db, "SELECT seq, role, turn, call, media_type, name, kept, size, url FROM files")
    assert [tuple(one.values()) for one in found] == [
        (1, "user", None, None, "image/png", "chart.png", "stored", 123456, None),
        (1, "user", None, None, "text/plain", "hi.txt", "inline", 2, None),
        (3, None, 1, None, "image/*", None, "linked", None, link.source.url),
        (4, None, None, "1-0", "text/plain", "hi.txt", "inline", 2, None),
    ]
    [[text]] = [row.values() for row in rows(db, "SELECT text FROM events WHERE seq = 1")]
    assert json.loads(text)[0] == {"part": "text", "text": "Look:"}


def test_no_foreign_fact_breaks_a_view():
    """Each view can be read whatever stands anywhere: a huge number, another payload."""
    subjects = [
        *SUBJECTS,
        "ledger.acme._grant.ana.g.given",
        "ledger.acme._delegation.ana.d.given",
        "ledger.acme._budget.money.d1.1",
    ]
    absurd = {"expires_in_s": 1e308, "uses": 2**70, "ends_at": "9999-12-31T23:59:59Z"}
    absurd |= {"call": "a/b", "amount": "1e99", "key": {"a": 7}}
    absurd["text"] = [7, {"part": "media", "source": {"kept": "stored", "size": 2**70}}]
    payloads = [json.dumps({"type": kind, **absurd}).encode() for kind in e.TYPES]
    asked = ("ledger.acme.t1.call.4-0.requested", encode(request(WISH)))
    db = read(
        raws_of([asked, *((subject, payload) for subject in subjects for payload in payloads)])
    )
    for view in ("calls", *tables.VIEWS):
        assert rows(db, f"SELECT * FROM {view}"), view
