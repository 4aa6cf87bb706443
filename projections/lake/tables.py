"""The analysts' tables and the meaning of their columns, in SQL that DuckDB runs.

    events       every fact: its slot, when the broker recorded it, its fields as columns, its bytes
    calls        one row for each requested call, from its request to its end
    open_calls   the calls without an end
    votes, grants, delegations, policies, tools, threads, files, budgets
                 views for frequent questions (`views/*.sql`)

The lake writer, and the tests that recompute a table from `events`, use the same text.

The rules:

* Times are UTC and `TIMESTAMP`: with a time zone each comparison costs twenty times as much.
* A field that a fact does not have is NULL. So is every field of a payload that is not JSON.
  `payload` holds the bytes of each fact unchanged: DuckDB writes extracted JSON in its own way, so
  a digest can only be checked against the original bytes.
* `calls` is made of the facts that count for `ayes.ledger.lifecycle`. `counting` asks the lifecycle
  while the log is read, so the SQL does not repeat its rules. A void fact is in `events`, with the
  reason. A subject that is not a slot has no place.
* A call's row covers the facts from its request to its end. Later facts (a late result, a vote that
  lost) are only in `events`, so a row is never written twice.
"""

import json
import re
from importlib import resources
from typing import Any, Final

from ayes.schemas.codec import FILLED_BEFORE
from ayes.schemas.slots import FILLED_BY, ORGANISATION, ROOT

#: A lake of another version is refused; a new one has all of the log.
VERSION: Final = 7

#: The fields of facts that are columns of `events`: column, path in the payload, type.
FIELDS: Final[tuple[tuple[str, str, str], ...]] = (
    ("type", "type", "VARCHAR"),
    ("id", "id", "VARCHAR"),
    ("written_at", "at", "TIMESTAMP"),
    ("by_kind", "by.kind", "VARCHAR"),
    ("by_name", "by.name", "VARCHAR"),
    ("cause", "cause", "VARCHAR"),
    ("trace", "trace", "VARCHAR"),
    ("v", "v", "INTEGER"),
    # The thread.
    ("role", "role", "VARCHAR"),
    ("text", "text", "VARCHAR"),
    ("model", "model", "VARCHAR"),
    ("finish_reason", "finish_reason", "VARCHAR"),
    ("input_tokens", "usage.input_tokens", "BIGINT"),
    ("output_tokens", "usage.output_tokens", "BIGINT"),
    ("max_turns", "max_turns", "INTEGER"),
    ("parent", "parent", "VARCHAR"),
    # The call.
    ("tool", "tool", "VARCHAR"),
    ("tool_version", "tool_version", "VARCHAR"),
    ("arguments", "arguments", "VARCHAR"),
    ("digest", "digest", "VARCHAR"),
    ("requester", "requester", "VARCHAR"),
    ("agent", "agent", "VARCHAR"),
    ("provider_id", "provider_id", "VARCHAR"),
    ("run_by", "run_by", "VARCHAR"),
    ("labels", "labels", "JSON"),
    # What people were asked, and what was decided.
    ("rule", "rule", "VARCHAR"),
    ("policy_version", "policy_version", "INTEGER"),
    ("organisation", "organisation", "BOOLEAN"),
    ("reason", "reason", "VARCHAR"),
    ("votes_needed", "votes_needed", "INTEGER"),
    ("expires_in_s", "expires_in_s", "DOUBLE"),
    ("valid_for_s", "valid_for_s", "DOUBLE"),
    ("ground", "ground", "VARCHAR"),
    ("mode", "mode", "VARCHAR"),
    ("verdict", "verdict", "VARCHAR"),
    ("voters", "voters", "VARCHAR[]"),
    ("on_behalf_of", "on_behalf_of", "JSON"),
    ("grants", "grants", "VARCHAR[]"),
    ("answer", "answer", "VARCHAR"),
    ("is_error", "is_error", "BOOLEAN"),
    ("halt", "halt", "BOOLEAN"),
    ("shadows", "shadows", "JSON"),
    ("after_s", "after_s", "DOUBLE"),
    # How it ended.
    ("attempt", "attempt", "INTEGER"),
    ("output", "output", "VARCHAR"),
    ("error", "error", "VARCHAR"),
    ("ending", "ending", "VARCHAR"),
    ("why", "why", "VARCHAR"),
    ("happened", "happened", "BOOLEAN"),
    ("reviewer", "reviewer", "VARCHAR"),
    # The workspace's own.
    ("uses", "uses", "INTEGER"),
    ("amount", "amount", "VARCHAR"),
    ("delegate", "to", "VARCHAR"),
    ("starts_at", "starts_at", "TIMESTAMP"),
    ("ends_at", "ends_at", "TIMESTAMP"),
)


def _shape() -> str:
    """The structure of a payload, as `json_transform` takes it."""
    found: dict[str, Any] = {}
    for _, path, kind in FIELDS:
        *outer, last = path.split(".")
        place = found
        for name in outer:
            place = place.setdefault(name, {})
        place[last] = [kind.removesuffix("[]")] if kind.endswith("[]") else _AS_READ.get(kind, kind)
    return json.dumps(found)


#: Read as TIMESTAMP, `11:00+02:00` would be 11:00.
_AS_READ: Final = {"TIMESTAMP": "TIMESTAMPTZ"}


def _field(path: str, kind: str) -> str:
    return f"timezone('UTC', fields.{path})" if kind == "TIMESTAMP" else f"fields.{path}"


def _slots() -> str:
    """A pattern that matches the subjects of slots."""
    escaped = "[A-Za-z0-9_-]|=2E|=2F"
    words = {
        "*": "[A-Za-z0-9-][A-Za-z0-9_-]*",
        "#": "[1-9][0-9]*",
        "%": f"([A-Za-z0-9-]|=5F|=2E|=2F)({escaped})*",
    }
    shapes = {False: list[str](), True: list[str]()}
    for shape in FILLED_BY:
        shapes[shape[0].startswith("_")].append("[.]".join(words.get(word, word) for word in shape))
    some, threads, own = words["*"], "|".join(shapes[False]), "|".join(shapes[True])
    return f"{ROOT}[.]({some}|{ORGANISATION})[.](({some}[.]({threads}))|{own})"


#: The place of a fact, taken from its subject `ledger.<workspace>.<thread>.<tail>` or
#: `ledger.<workspace>._<kind>.<rest>`.
_PLACE: Final = """
    s[2] AS workspace,
    CASE WHEN s[3][1] <> '_' THEN s[3] END AS thread,
    CASE
        WHEN s[3][1] = '_' THEN s[3][2:]
        WHEN s[4] = 'turn' OR s[4] = 'call' THEN s[6]
        ELSE s[4]
    END AS place,
    CASE WHEN s[3][1] <> '_' AND s[4] = 'call' THEN s[5] END AS call,
    CASE WHEN s[3][1] <> '_' AND s[4] = 'turn' THEN try_cast(s[5] AS INTEGER) END AS turn,
    -- The rest: who voted, which attempt, which message.
    CASE
        WHEN s[3][1] = '_' THEN array_to_string(s[4:], '.')
        WHEN s[4] = 'said' THEN s[5]
        WHEN len(s) > 7 THEN s[7] || '.' || s[8]
        ELSE s[7]
    END AS which
"""


#: The judgement of `counting`: whether the fact counts; the place that it fills in its call's row,
#: NULL if it is not part of the row; and why it is void, NULL if it is not.
JUDGED: Final = "counts BOOLEAN NOT NULL, stands_as VARCHAR, void VARCHAR"
#: The columns of `events`, except the bytes.
COLUMNS: Final = ", ".join(
    (
        "seq UBIGINT NOT NULL",
        "recorded_at TIMESTAMP NOT NULL",
        "subject VARCHAR NOT NULL",
        "workspace VARCHAR",
        "thread VARCHAR",
        "place VARCHAR",
        "call VARCHAR",
        "turn INTEGER",
        "which VARCHAR",
        *(f"{column} {kind}" for column, _, kind in FIELDS),
        JUDGED,
    )
)
EVENTS: Final = f"{COLUMNS}, payload BLOB NOT NULL"
#: The columns of `fresh`: messages of the log that are judged and not yet read.
RAW: Final = f"""
    seq UBIGINT NOT NULL, recorded_at TIMESTAMP NOT NULL, subject VARCHAR NOT NULL,
    payload BLOB NOT NULL, {JUDGED}
"""
_FIELD_COLUMNS: Final = ", ".join(f"{_field(path, kind)} AS {name}" for name, path, kind in FIELDS)
#: Rows of `events` out of `fresh`.
READ: Final = f"""
    SELECT seq, recorded_at, subject, {_PLACE}, {_FIELD_COLUMNS}, counts, stands_as, void, payload
    FROM (
        SELECT *,
            CASE WHEN regexp_full_match(subject, '{_slots()}')
                    AND NOT regexp_full_match(coalesce(void, ''), '{FILLED_BEFORE} [0-9]+')
                THEN string_split(subject, '.') END AS s,
            try(json_transform(decode(payload), '{_shape()}')) AS fields
        FROM fresh
    )
"""


#: Whether a fact ends its call. A call in doubt has not ended: it waits for a person.
ENDS: Final = "(stands_as = 'finished' AND type <> 'InDoubt') OR stands_as = 'reconciled'"


def _of(place: str, column: str) -> str:
    return f"any_value({column}) FILTER (stands_as = '{place}')"


#: The columns of `calls`: name, and how it is made of the call's facts.
CALLS: Final[tuple[tuple[str, str], ...]] = (
    *(
        (column, _of("requested", column))
        for column in ("tool", "tool_version", "agent", "requester", "provider_id")
    ),
    # A fact does not hold fields that have their default, here and below.
    ("run_by", f"coalesce({_of('requested', 'run_by')}, 'client')"),
    ("arguments", _of("requested", "arguments")),
    ("digest", _of("requested", "digest")),
    ("rule", f"coalesce({_of('decided', 'rule')}, {_of('gated', 'rule')})"),
    (
        "policy_version",
        f"coalesce({_of('decided', 'policy_version')}, {_of('gated', 'policy_version')})",
    ),
    # Are rule and version the organisation's?
    (
        "organisation",
        f"""coalesce(
            any_value(coalesce(organisation, false))
                FILTER (stands_as = 'decided' AND rule IS NOT NULL),
            {_of("gated", "organisation")}, false)""",
    ),
    ("asked", "bool_or(stands_as = 'gated')"),
    # Why people were asked. `reason` says why it was decided as it was.
    ("question", _of("gated", "reason")),
    (
        "votes_needed",
        f"""CASE WHEN bool_or(stands_as = 'gated')
            THEN coalesce({_of("gated", "votes_needed")}, 1) END""",
    ),
    ("votes", "count(*) FILTER (stands_as = 'vote')"),
    ("escalations", "count(*) FILTER (stands_as = 'escalated')"),
    ("verdict", _of("decided", "type")),
    ("ground", _of("decided", "ground")),
    # Of an approval by people's votes: did the requester confirm it, or somebody else look?
    (
        "mode",
        f"""CASE WHEN {_of("decided", "type")} = 'Approved'
                AND {_of("decided", "ground")} IN ('people', 'broken_glass')
            THEN coalesce({_of("decided", "mode")}, 'four_eyes') END""",
    ),
    ("reviewers", _of("decided", "voters")),
    ("reason", _of("decided", "reason")),
    ("edited", f"coalesce({_of('decided', 'arguments')} IS NOT NULL, false)"),
    ("edited_arguments", _of("decided", "arguments")),
    ("grants", _of("decided", "grants")),
    # Until when the approval lets the call start.
    (
        "valid_until",
        _of("decided", "try(recorded_at + to_microseconds(CAST(valid_for_s * 1e6 AS BIGINT)))"),
    ),
    # Who took the approval back.
    ("revoked_by", "any_value(which) FILTER (stands_as = 'revoked')"),
    ("attempts", "count(*) FILTER (stands_as = 'claim' AND type = 'ToolStarted')"),
    # How it ended, as the model reads it; or in doubt, until a person reconciles it.
    (
        "outcome",
        f"""CASE WHEN bool_or(stands_as = 'reconciled') THEN 'reconciled'
            ELSE CASE {_of("finished", "type")}
                WHEN 'ToolReturned' THEN 'returned'
                WHEN 'ToolFailed' THEN 'failed'
                WHEN 'InDoubt' THEN 'in_doubt'
                WHEN 'ToolRefused' THEN {_of("finished", "ending")}
            END END""",
    ),
    ("output", f"coalesce({_of('reconciled', 'output')}, {_of('finished', 'output')})"),
    ("error", _of("finished", "error")),
    ("requested_at", _of("requested", "recorded_at")),
    ("gated_at", _of("gated", "recorded_at")),
    ("decided_at", _of("decided", "recorded_at")),
    ("started_at", "min(recorded_at) FILTER (stands_as = 'claim' AND type = 'ToolStarted')"),
    ("finished_at", _of("finished", "recorded_at")),
    ("ended_at", f"max(recorded_at) FILTER ({ENDS})"),
    ("first_seq", "min(seq)"),
    ("gated_seq", _of("gated", "seq")),
    ("decided_seq", _of("decided", "seq")),
    ("last_seq", "max(seq)"),
)


#: The columns of `events` that a row is made of.
OF_CALLS: Final = tuple(
    column.split()[0]
    for column in COLUMNS.split(", ")
    if re.search(
        rf"\b{column.split()[0]}\b",
        " ".join(("workspace thread call stands_as", *(made for _, made in CALLS))),
    )
)


def calls(source: str) -> str:
    """The SQL of one row for each requested call.

    Args:
        source: the rows of `events`: a table, or a query in brackets.
    """
    columns = ",\n        ".join(f"{made} AS {column}" for column, made in CALLS)
    key = "workspace, thread, call"
    return f"""
    SELECT {key},
        {columns}
    FROM {source}
    WHERE stands_as IS NOT NULL
    GROUP BY {key}
"""


#: Frequent questions about `events` and `calls`.
VIEWS: Final[dict[str, str]] = {
    name: (resources.files(__package__) / "views" / f"{name}.sql").read_text()
    for name in (
        *("votes", "grants", "delegations", "policies", "tools", "threads", "files", "budgets"),
    )
}

#: Tables as they were when the log had `until` facts.
MACROS: Final[dict[str, str]] = {
    "events_until(until)": "SELECT * FROM events WHERE seq <= until",
    "calls_until(until)": calls("(SELECT * FROM events WHERE seq <= until)"),
}
