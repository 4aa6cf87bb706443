"""Facts as events of OCSF 1.7 (schema.ocsf.io), for programs that look for attacks.

Pure. The rules of this file:

* An event leaves the ledger for others. Nothing that people, models or tools wrote is in it, and no
  digest of that, since a digest of a short text gives it away: only names, numbers and verdicts.
* A fact is one event at most, and always the same one. `metadata.uid` is the log and the fact's
  number, by which a receiver drops what it has already.
* A fact that does not count is a finding, whatever it says.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ayes.ledger.call import Call
from ayes.ledger.objections import VOID_VOTE
from ayes.ledger.validity import may_be_void, voids
from ayes.projections.cloud_events import kind_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.slots import DELEGATION, GRANT, KEY, STOP

_VERSION: Final = "1.7.0"
#: Severities.
_INFORMATIONAL, _MEDIUM, _HIGH = 1, 3, 4
#: Activities of Entity Management.
_CREATE, _UPDATE, _DELETE, _ENABLE, _DISABLE = 1, 3, 4, 8, 9
#: The activity of every class that has none of the others.
_OTHER: Final = 99

#: What is API Activity (6003), with the status: 1 succeeded, 2 failed, 0 unknown, None: not over.
CALLS: Final[dict[type, int | None]] = {
    e.ToolRequested: None,
    e.ToolStarted: None,
    e.Declined: 2,
    e.ToolReturned: 1,
    e.ToolFailed: 2,
    e.ToolRefused: 2,
    e.InDoubt: 0,
}
#: What is Entity Management (3004): what is done, and to what.
ENTITIES: Final[dict[type, tuple[int, str]]] = {
    e.ApprovalRequested: (_UPDATE, "call"),
    e.Escalated: (_UPDATE, "call"),
    e.HandedOver: (_UPDATE, "call"),
    e.Voted: (_UPDATE, "call"),
    e.GlassBroken: (_UPDATE, "call"),
    e.Approved: (_ENABLE, "call"),
    e.Denied: (_DISABLE, "call"),
    e.Answered: (_DISABLE, "call"),
    e.Expired: (_DISABLE, "call"),
    e.Withdrawn: (_DISABLE, "call"),
    e.Superseded: (_DISABLE, "call"),
    e.Revoked: (_DISABLE, "call"),
    e.Lapsed: (_DISABLE, "call"),
    e.Reconciled: (_UPDATE, "call"),
    e.PolicyApplied: (_UPDATE, "policy"),
    e.ToolDeclared: (_UPDATE, "tool"),
    e.Granted: (_CREATE, "grant"),
    e.GrantUsed: (_UPDATE, "grant"),
    e.GrantRevoked: (_DELETE, "grant"),
    e.Delegated: (_CREATE, "delegation"),
    e.DelegationEnded: (_DELETE, "delegation"),
    e.PersonAdded: (_CREATE, "person"),
    e.AccountBound: (_UPDATE, "person"),
    e.WorkspacesSet: (_UPDATE, "person"),
    e.GroupsRead: (_UPDATE, "person"),
    e.PersonRemoved: (_DELETE, "person"),
    e.LoginAdded: (_CREATE, "login"),
    e.LoginRevoked: (_DELETE, "login"),
    e.KeyAdded: (_CREATE, "key"),
    e.KeyConfirmed: (_ENABLE, "key"),
    e.KeyRevoked: (_DISABLE, "key"),
    e.Keyed: (_CREATE, "thread"),
    e.ForgettingBegan: (_UPDATE, "thread"),
    e.Forgotten: (_DELETE, "thread"),
    e.OnCallRead: (_UPDATE, "schedule"),
    e.Stopped: (_CREATE, "stop"),
    e.Resumed: (_UPDATE, "stop"),
    e.StopEnded: (_DELETE, "stop"),
}
#: What is always a finding (2004), and its title.
FINDINGS: Final[dict[type, str]] = {e.LogAccepted: "the log was accepted as it was"}
#: What is no event, and why.
_TALK: Final = "it is the conversation, and starts nothing"
LEFT: Final[dict[type, str]] = {
    e.ThreadOpened: _TALK,
    e.Said: _TALK,
    e.ModelAsked: _TALK,
    e.ModelReplied: _TALK,
    e.ModelFailed: _TALK,
    e.Commented: "it is a text, and counts for nothing",
    e.Notified: "it says that a message was sent about another fact",
    e.Posted: "it says that a message was sent about another fact",
    e.Packed: "each fact in it was an event of its own",
    e.BudgetUsed: "its amount is of a call's arguments, and the decision follows",
}

#: The fields that an event has as they are: names, numbers, and words of ours.
_SAID: Final = (
    "verdict", "ground", "ending", "why", "happened", "attempt", "policy_version", "organisation",
    "tool", "agent", "requester", "reviewer", "on_behalf_of", "voters", "excluded", "votes_needed",
    "mode", "halt", "grants", "call", "to", "role", "key", "workspaces", "uses", "expires_in_s",
    "resumes_needed", "resumed_by", "repeatable", "governs", "size", "facts",
)  # fmt: skip
#: Of a text in an event, and of a list.
_MAX_TEXT: Final = 200
_MAX_LIST: Final = 50
#: The kinds of the workspace that have several facts each, and are known by two names.
_TWO_NAMES: Final = frozenset({GRANT, DELEGATION, STOP, KEY})
_PEOPLES_PLACES: Final = frozenset({"vote", "revoked", "reconciled", "handed"})


def begins(log: str) -> str:
    """How the line of each event of a log begins."""
    return f'{{"metadata":{{"uid":"{log}/'


def needs_call(fact: Fact) -> bool:
    """Whether the event of a fact depends on the call."""
    return may_be_void(fact) or type(fact.event) in CALLS


def ocsf_event(
    fact: Fact, log: str, call: Call | None = None, *, is_void: bool = False
) -> dict[str, Any] | None:
    """A fact as an event; None: it is none.

    Args:
        log: its identity.
        call: of the fact, with by what its votes are judged.
        is_void: something else says that it does not count, such as a trust file of a policy.
    """
    kind = type(fact.event)
    void = next((one.why for one in voids(call) if one.fact.seq == fact.seq), "") if call else ""
    if isinstance(fact.event, e.Carried) and fact.event.problem:
        return _finding(fact, log, "what is recorded is not a fact", _HIGH)
    if void == VOID_VOTE["bad_signature"]:
        return _finding(fact, log, "a vote is not signed with a key of its voter", _HIGH)
    if void or is_void:
        return _finding(fact, log, f"a fact does not count: {kind_of(fact)}", _MEDIUM)
    if title := FINDINGS.get(kind):
        return _finding(fact, log, title, _HIGH)
    if kind in CALLS:
        return _of_call(fact, log, call)
    return _of_entity(fact, log, *ENTITIES[kind]) if kind in ENTITIES else None


def _of_call(fact: Fact, log: str, call: Call | None) -> dict[str, Any]:
    status, ref = CALLS[type(fact.event)], fact.slot.call_ref
    tool = call.wish.tool if call and call.requested else getattr(fact.event, "tool", "")
    event = _event(fact, log, 6003, _OTHER, _MEDIUM if status == 0 else _INFORMATIONAL) | {
        "activity_name": kind_of(fact),
        "actor": _actor(fact),
        "api": {"operation": _short(tool) or kind_of(fact), "request": {"uid": str(ref)}},
        "src_endpoint": {"svc_name": "ayes"},
    }
    return event if status is None else event | {"status_id": status}


def _of_entity(fact: Fact, log: str, activity: int, what: str) -> dict[str, Any]:
    slot, ref = fact.slot, fact.slot.call_ref
    kind, *names = slot.tail
    name = slot.thread if what == "thread" else "/".join(names[: 2 if kind in _TWO_NAMES else 1])
    place = slot.workspace if what == "thread" else f"{slot.workspace}/{kind}"
    entity: dict[str, Any] = {
        "uid": str(ref) if ref else f"{place}/{name}",
        "name": name,
        "type": what,
        "type_id": _OTHER,
    }
    if what == "person":
        entity |= {"type": "User", "type_id": 2, "user": {"name": name}}
    elif what == "policy":
        entity |= {"type": "Policy", "type_id": 5, "policy": {"name": slot.workspace, "uid": name}}
    is_grave = isinstance(fact.event, e.GlassBroken)
    event = _event(fact, log, 3004, activity, _HIGH if is_grave else _INFORMATIONAL)
    return event | {"actor": _actor(fact), "entity": entity}


def _finding(fact: Fact, log: str, title: str, severity: int) -> dict[str, Any]:
    info = {"uid": _uid(fact, log), "title": title, "created_time": _ms(fact)}
    info["types"] = [kind_of(fact) or "Unreadable"]
    resource = {"uid": fact.slot.subject, "type": "fact"}
    event = _event(fact, log, 2004, _CREATE, severity)
    return event | {"status_id": 1, "finding_info": info, "resources": [resource]}


def _event(fact: Fact, log: str, class_uid: int, activity: int, severity: int) -> dict[str, Any]:
    """What every event has."""
    metadata: dict[str, Any] = {
        "uid": _uid(fact, log),
        "sequence": fact.seq,
        "original_time": fact.recorded_at.isoformat(),
        "version": _VERSION,
        "product": {"name": "ayes", "vendor_name": "ayes"},
        "log_name": "LEDGER",
        "event_code": kind_of(fact) or "Unreadable",
    }
    if ref := fact.slot.call_ref:
        metadata["correlation_uid"] = str(ref)
    event = {
        "metadata": metadata,
        "time": _ms(fact),
        "category_uid": class_uid // 1000,
        "class_uid": class_uid,
        "activity_id": activity,
        "type_uid": class_uid * 100 + activity,
        "severity_id": severity,
    }
    said = {name: getattr(fact.event, name, None) for name in _SAID}
    unmapped = {name: _plain(value) for name, value in said.items() if value not in (None, "", ())}
    return event | ({"unmapped": unmapped} if unmapped else {})


def _uid(fact: Fact, log: str) -> str:
    return f"{log}/{fact.seq}"


def _ms(fact: Fact) -> int:
    """The broker's time in milliseconds since 1970."""
    return round(fact.recorded_at.timestamp() * 1000)


def _actor(fact: Fact) -> dict[str, Any]:
    """The person that the subject names, for whom the broker vouches; else the program."""
    if person := _person(fact.slot.tail):
        return {"user": {"name": person, "type_id": 1}}
    by = getattr(fact.event, "by", None)
    kind, name = (by.kind, by.name) if isinstance(by, e.Author) else ("", "")
    return {"app_name": _short(kind) or "unknown", "app_uid": _short(name) or "unknown"}


def _person(tail: Sequence[str]) -> str:
    match tail:
        case ("call", _, place, person, *_) if place in _PEOPLES_PLACES:
            return person
        case (kind, _, _, "revoked" | "resumed" | "confirmed", person) if kind in _TWO_NAMES:
            return person
        case (kind, person, _, "given" | "added" | "absent", *_) if kind in _TWO_NAMES:
            return person
        case (_, person, "account", _):
            return person
        case _:
            return ""


def _plain(value: object) -> object:
    match value:
        case str():
            return _short(value)
        case dict():
            return {_short(name): _plain(one) for name, one in [*value.items()][:_MAX_LIST]}
        case tuple():
            return [_plain(one) for one in value[:_MAX_LIST]]
        case _:
            return msgspec.to_builtins(value)


def _short(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
