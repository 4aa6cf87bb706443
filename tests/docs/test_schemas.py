"""The contracts for other languages: JSON Schemas of the events, and the AsyncAPI document.

Run as a program, it writes them anew.
"""

import importlib.util
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import jsonschema_rs
import msgspec
import npm
import pytest
from paths import ROOT
from program import approvals

from ayes.interfaces.console.application import api, described
from ayes.ops.broker.accounts import OTHER_SUBJECTS, STORING, WRITERS
from ayes.projections.live import Piece
from ayes.schemas import codec, json_schema
from ayes.schemas.errors import BadFact
from ayes.schemas.events import TYPES, Event
from ayes.schemas.slots import FILLED_BY
from ayes.schemas.slots import ROOT as LEDGER

EVENTS = ROOT / "docs" / "schemas" / "events.json"
ASYNCAPI = ROOT / "interfaces" / "api" / "asyncapi.json"
SPEC = importlib.util.spec_from_file_location("asyncapi", ROOT / "docs" / "site" / "asyncapi.py")
assert SPEC is not None
assert SPEC.loader is not None
asyncapi = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(asyncapi)
SAMPLES = [path.read_bytes() for path in sorted(Path(codec.__file__).parent.glob("samples/*.json"))]
#: Two that have nothing in common: one in Python, one in Rust.
VALIDATORS = {
    "python": jsonschema.Draft202012Validator(
        json_schema.document(), format_checker=jsonschema.FormatChecker()
    ).is_valid,
    "rust": jsonschema_rs.Draft202012Validator(
        json_schema.document(), validate_formats=True
    ).is_valid,
}


def written() -> dict[Path, str]:
    made = {EVENTS: json_schema.document(), ASYNCAPI: asyncapi.document(described())}
    return {
        path: json.dumps(one, indent=1, ensure_ascii=False) + "\n" for path, one in made.items()
    }


def required(event: dict[str, Any]) -> list[str]:
    return [*json_schema.components("{name}")[event["type"]]["required"]]


def changed(event: dict[str, Any]) -> list[dict[str, Any]]:
    """The event with each required field in turn of another type."""
    return [{**event, name: 7 if isinstance(event[name], str) else "7"} for name in required(event)]


def is_read(event: Any) -> bool:
    """Whether this program reads it as a fact, and not as bytes that it carries."""
    try:
        return isinstance(codec.decode(json.dumps(event).encode()), Event)
    except BadFact:
        return False


@pytest.mark.parametrize("validator", VALIDATORS)
def test_every_fact_validates(validator):
    """The samples fill every field of every event."""
    is_valid = VALIDATORS[validator]
    assert len(SAMPLES) >= len(TYPES)
    for event in map(json.loads, SAMPLES):
        assert is_valid(event), event["type"]
        # A field of a newer version is skipped.
        assert is_valid(event | {"colour": "red"}), event["type"]


@pytest.mark.long
@pytest.mark.parametrize("validator", VALIDATORS)
def test_what_is_no_fact_does_not(validator):
    is_valid = VALIDATORS[validator]
    for event in map(json.loads, SAMPLES):
        for wrong in (
            *changed(event),
            *({key: one for key, one in event.items() if key != name} for name in required(event)),
            event | {"type": "Unheard"},
        ):
            assert not is_valid(wrong), wrong
            assert not is_read(wrong), wrong


def test_the_files_are_those_that_the_code_makes():
    """`python tests/docs/test_schemas.py` writes them anew."""
    assert {path: path.read_text() for path in written()} == written()


def undescribed(part: Any, place: str = "") -> list[str]:
    """The properties of a document, and the parameters of its operations, without a description."""
    found: list[str] = []
    match part:
        case {"properties": dict(properties), **_others} if not place.endswith("/properties"):
            found += [f"{place}/{n}" for n, one in properties.items() if not one.get("description")]
        case {"in": _, "name": name, **others} if not others.get("description"):
            found.append(f"{place}/{name}")
    inside = part.items() if isinstance(part, dict) else enumerate(part)
    for name, one in inside:
        if isinstance(one, dict | list):
            found += undescribed(one, f"{place}/{name}")
    return found


@pytest.mark.parametrize("document", [api().openapi(), *map(json.loads, written().values())])
def test_every_property_has_a_description(document):
    """From the comment before its field, or from `json_schema.EVERYWHERE` for a common name."""
    assert undescribed(document) == []
    assert undescribed({"properties": {"tool": {"type": "string"}}}) == ["/tool"]


def test_the_command_prints_them():
    assert json.loads(approvals("schema").out) == json.loads(EVENTS.read_text())
    assert json.loads(approvals("schema", "--asyncapi").out) == json.loads(ASYNCAPI.read_text())
    one = json.loads(approvals("schema", "Voted").out)
    assert (one["oneOf"], one["$defs"].keys()) == ([{"$ref": "#/$defs/Voted"}], {"Voted", "Author"})
    unknown = approvals("schema", "Vote")
    assert unknown.code == 2
    assert "there is no event 'Vote'. There are AccountBound, Answered," in unknown.err
    assert approvals("schema", "Voted", "--asyncapi").code == 2


def test_every_slot_is_a_channel():
    document = json.loads(ASYNCAPI.read_text())
    slots = {
        name: one
        for name, one in document["channels"].items()
        if (one["address"] or "").startswith(f"{LEDGER}.")
    }
    assert len(slots) == len(FILLED_BY)


def test_every_writer_has_an_operation():
    operations = json.loads(ASYNCAPI.read_text())["operations"].values()
    recording = [one for one in operations if one["summary"].startswith("Recorded by the role")]
    assert len(recording) == sum(len(roles) for roles in WRITERS.values())


def test_what_is_no_fact_has_a_channel_too():
    """Pieces of files and of replies, each published by the roles that the broker lets, and read by
    the programs of other languages (docs/services.md).
    """
    document = json.loads(ASYNCAPI.read_text())
    channels = document["channels"]
    assert {channels[one]["address"] for one in ("file_piece", "live_piece")} == {
        "file.{workspace}.{role}.{id}.{number}",
        "live.{workspace}.{thread}.{turn}",
    }
    for roles, name in ((STORING, "file_piece"), (OTHER_SUBJECTS["live.>"], "live_piece")):
        senders = [
            one["security"][0]["$ref"].rpartition("/")[2]
            for one in document["operations"].values()
            if one["action"] == "send" and one["channel"]["$ref"] == f"#/channels/{name}"
        ]
        assert tuple(senders) == roles
    piece = document["components"]["messages"]["live_piece"]["payload"]
    said = json.loads(msgspec.json.encode(Piece(attempt=1, at=0, text="One moment.")))
    jsonschema.Draft202012Validator(piece).validate(said)


_JAVASCRIPT = """
import { readFileSync } from "node:fs";
import { Parser } from "@asyncapi/parser";
import Ajv2020 from "ajv/dist/2020.js";
import formats from "ajv-formats";

const [asyncapi, events, facts] = process.argv.slice(2).map((one) => readFileSync(one, "utf8"));
const { document, diagnostics } = await new Parser().parse(asyncapi);
const ajv = new Ajv2020({ strict: true, strictTypes: false });
formats.default(ajv);
const isFact = ajv.compile(JSON.parse(events));
const judged = JSON.parse(facts).map((one) => isFact(one));
console.log(JSON.stringify({ parsed: !!document, diagnostics, judged }));
"""


@pytest.mark.skipif(
    not os.environ.get("CONFORMANCE"), reason="asked by `make conformance`, which installs from npm"
)
def test_javascript_agrees(tmp_path: Path):
    """The parser of the AsyncAPI initiative finds not even a hint; Ajv refuses the same facts."""
    packages = npm.installed("@asyncapi/parser@3", "ajv@8", "ajv-formats@3")
    (tmp_path / "node_modules").symlink_to(packages / "node_modules")
    (tmp_path / "check.mjs").write_text(_JAVASCRIPT)
    facts = [*map(json.loads, SAMPLES)]
    wrong = [one for event in map(json.loads, SAMPLES) for one in changed(event)]
    (tmp_path / "facts.json").write_text(json.dumps(facts + wrong))
    done = subprocess.run(
        [npm.node(), "check.mjs", ASYNCAPI, EVENTS, "facts.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert (found["parsed"], found["diagnostics"]) == (True, [])
    assert found["judged"] == [True] * len(facts) + [False] * len(wrong)


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text)
