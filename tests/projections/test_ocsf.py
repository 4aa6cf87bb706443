"""Each fact is an event of OCSF that the classes of others take, without what people wrote."""

import re
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from ocsf.v1_7_0.events import ApiActivity, EntityManagement
from py_ocsf_models.events.findings.detection_finding import DetectionFinding as Finding
from stories import question, request

from ayes.ledger.objections import VOID_VOTE
from ayes.ledger.validity import call_of
from ayes.projections import ocsf
from ayes.projections.ocsf import CALLS, ENTITIES, FINDINGS, LEFT, begins, ocsf_event
from ayes.schemas import codec
from ayes.schemas import events as e
from ayes.schemas.codec import Fact, fact_of
from ayes.schemas.events import TYPES
from ayes.schemas.slots import FILLED_BY, ORGANISATION, ORGANISATIONS, CallRef, Slot

LOG = "4f6b8c1de2f04a7c9d3e5b6a7c8d9e0f"
SAMPLES = Path(codec.__file__).parent / "samples"
AT = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
CALL = CallRef("shop", "order-17", "refund-1")
WISH = e.Wish(tool="refund", arguments='{"order":"A-17"}', provider_id="call_1")


def slot_of(kind: type) -> Slot:
    shape = next(shape for shape, kinds in FILLED_BY.items() if kind in kinds)
    named = {"*": "ana", "#": "1", "%": "refund"}
    tail = tuple(named.get(one, one) for one in shape)
    thread = "" if tail[0].startswith("_") else "order-17"
    return Slot(ORGANISATION if tail[0] in ORGANISATIONS else "shop", thread, tail)


def sample(name: str) -> Fact:
    """The fact of a sample."""
    raw = (SAMPLES / f"{name}.v{e.VERSION[name]}.json").read_bytes()
    found = fact_of(17, AT, slot_of(TYPES[name]).subject, raw)
    assert not isinstance(found.event, e.Carried)
    return found


def checked(event: dict) -> dict:
    """An event, as other people's classes take it."""
    text = msgspec.json.encode(event)
    assert text.decode().startswith(begins(LOG))
    match event["class_uid"]:
        case 6003:
            ApiActivity.model_validate_json(text)
        case 3004:
            EntityManagement.model_validate_json(text)
        case 2004:
            Finding.model_validate_json(text)
    assert event["category_uid"] == event["class_uid"] // 1000
    assert event["type_uid"] == event["class_uid"] * 100 + event["activity_id"]
    return event


def test_every_type_is_an_event_or_left_with_a_reason():
    known = [*CALLS, *ENTITIES, *FINDINGS, *LEFT]
    assert len(known) == len(set(known))
    assert {*known} == {*TYPES.values()}


@pytest.mark.parametrize("name", TYPES)
def test_every_fact_is_an_event_that_parses(name):
    """Of the class that its type has, with the log and its number as the uid."""
    fact = sample(name)
    event = ocsf_event(fact, LOG)
    if TYPES[name] in LEFT:
        assert event is None
        return
    assert event is not None
    checked(event)
    uid = {**dict.fromkeys(CALLS, 6003), **dict.fromkeys(ENTITIES, 3004)}.get(TYPES[name], 2004)
    assert event["class_uid"] == uid
    metadata = event["metadata"]
    assert (metadata["uid"], metadata["sequence"]) == (f"{LOG}/17", 17)
    assert metadata["event_code"] == name
    assert datetime.fromisoformat(metadata["original_time"]) == AT
    assert event["time"] == 1772366400123  # milliseconds


def texts(value: object) -> list[str]:
    match value:
        case str():
            return [value]
        case dict():
            return [text for one in value.items() for part in one for text in texts(part)]
        case list() | tuple():
            return [text for one in value for text in texts(one)]
        case _:
            return []


#: The fields that people, models and tools fill as they like, and the digests of those.
FREE = (
    "arguments", "digest", "reason", "answer", "text", "output", "error", "description", "schema",
    "title", "when", "signature", "signatures", "rule", "problem", "shadows", "reasons", "labels",
    "undoing", "memberships", "groups", "account", "subject", "issuer", "thread", "message",
)  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_nothing_that_somebody_wrote_is_in_an_event(name):
    fact = sample(name)
    free = {one: "SECRET" for one in FREE if isinstance(getattr(fact.event, one, None), str)}
    event = msgspec.structs.replace(fact.event, **free)
    found = ocsf_event(Fact(fact.seq, fact.recorded_at, fact.slot, event), LOG)
    assert "SECRET" not in str(found)
    assert not {*FREE} & {*(found or {}).get("unmapped", {})}
    given = [one for text in texts(msgspec.to_builtins(event)) for one in [text] if " " in text]
    assert not [one for one in given if one in texts(found)]


def fact(seq: int, slot: Slot, event: e.Event) -> Fact:
    return fact_of(seq, AT, slot.subject, codec.encode(event))


ASKED = [fact(1, CALL.requested, request(WISH)), fact(2, CALL.gated, question(WISH))]


def test_a_fact_that_does_not_count_is_a_finding(monkeypatch):
    """By its type; why is in the log, where texts are too."""
    started = fact(3, CALL.claim(1), e.ToolStarted(digest="0" * 64, idempotency_key="k"))
    event = checked(ocsf_event(started, LOG, call_of(CALL, [*ASKED, started])) or {})
    assert event["class_uid"] == 2004
    assert event["finding_info"]["title"] == "a fact does not count: ToolStarted"
    assert event["severity_id"] == 3


def test_a_forged_vote_is_a_grave_finding(monkeypatch):
    vote = fact(3, CALL.vote("ana"), e.Voted(verdict="approve", digest=request(WISH).digest))
    call = call_of(CALL, [*ASKED, vote])
    assert (ocsf_event(vote, LOG, call) or {})["class_uid"] == 3004
    forged = type("Forged", (), {"fact": vote, "why": VOID_VOTE["bad_signature"]})
    monkeypatch.setattr(ocsf, "voids", lambda _: [forged])
    event = checked(ocsf_event(vote, LOG, call) or {})
    assert (event["class_uid"], event["severity_id"]) == (2004, 4)
    assert event["finding_info"]["title"] == "a vote is not signed with a key of its voter"


def test_bytes_that_are_no_fact_are_a_finding_and_not_cited():
    found = fact_of(9, AT, CALL.decided.subject, b'{"type":"Approved","SECRET"')
    event = checked(ocsf_event(found, LOG) or {})
    assert (event["class_uid"], event["severity_id"]) == (2004, 4)
    assert "SECRET" not in str(event)
    newer = fact_of(9, AT, CALL.decided.subject, b'{"type":"Later"}')
    assert ocsf_event(newer, LOG) is None


def test_who_acted_and_on_what_are_named():
    vote = fact(3, CALL.vote("ana"), e.Voted(verdict="deny", digest="0", by=e.Author("gate", "x")))
    event = checked(ocsf_event(vote, LOG, call_of(CALL, ASKED)) or {})
    assert event["actor"]["user"]["name"] == "ana"  # whom the broker vouches for
    assert event["entity"]["uid"] == event["metadata"]["correlation_uid"] == str(CALL)
    assert event["unmapped"]["verdict"] == "deny"
    returned = fact(4, CALL.finished, e.ToolReturned(output="x", by=e.Author("executor", "e1")))
    call = call_of(CALL, [*ASKED])
    event = checked(ocsf_event(returned, LOG, call) or {})
    assert event["api"]["operation"] == "refund"
    assert (event["actor"]["app_name"], event["status_id"]) == ("executor", 1)
    given, ended = sample("Granted"), sample("GrantRevoked")
    uids = [(ocsf_event(one, LOG) or {})["entity"]["uid"] for one in (given, ended)]
    assert uids == ["shop/_grant/ana/ana"] * 2
    key = [sample(kind) for kind in ("Keyed", "ForgettingBegan", "Forgotten")]
    uids = [(ocsf_event(one, LOG) or {})["entity"]["uid"] for one in key]
    assert uids == [f"{one.slot.workspace}/{one.slot.thread}" for one in key]


def test_a_long_name_makes_no_long_line():
    long = e.ToolRequested(tool="x" * 10_000, arguments="{}", digest="", agent="y" * 10_000)
    event = checked(ocsf_event(fact(1, CALL.requested, long), LOG) or {})
    assert len(msgspec.json.encode(event)) < 2000
    assert re.fullmatch("x{199}…", event["api"]["operation"])
