"""The tables that analysts ask, and what each of their columns means, in SQL that DuckDB runs.

    events       every fact: where it stands, when the broker recorded it, its fields as columns, and its bytes
    calls        one row a call that was requested, from its request to its end; `open_calls` are those without an end
    votes, grants, delegations, policies, tools, threads    what one would ask `events` for again and again

Whoever fills a table and whoever recomputes it from `events` use the text that stands here, so that
they cannot differ.

The rules:

* Times are UTC and `TIMESTAMP`: with a time zone each comparison costs twenty times as much.
* A field that a fact does not have is NULL. So is every field of a payload that is no JSON; its
  bytes stand in `payload` as they came, as everybody's do: extracting JSON writes it anew, so a
  digest can only be checked against these.
* Only what counts for `ayes.ledger.lifecycle` counts in `calls`; `ayes.projections.lake.counting`
  asks it while the log is read, so that which facts count is not said again in SQL. What is void is
  in `events`, with the reason. A subject that is no slot has no place at all.
* A call's row counts what was recorded from its request to its end. What comes later (a late
  result, a vote that lost) stands in `events` alone, so a row that was written once is never
  written again.
"""

import json
import re
from typing import Any, Final

from ayes.schemas.slots import FILLED_BY, ORGANISATION, ROOT

#: A newer number is another lake: one is rebuilt from the log, never guessed at.
VERSION: Final = 2

#: The fields of facts that are columns of `events`: column, where it stands in the payload, and its
#: type.
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
    ("ground", "ground", "VARCHAR"),
    ("verdict", "verdict", "VARCHAR"),
    ("voters", "voters", "VARCHAR[]"),
    ("on_behalf_of", "on_behalf_of", "JSON"),
    ("grants", "grants", "VARCHAR[]"),
    ("answer", "answer", "VARCHAR"),
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
    ("delegate", "to", "VARCHAR"),
    ("starts_at", "starts_at", "TIMESTAMP"),
    ("ends_at", "ends_at", "TIMESTAMP"),
)


def _shape() -> str:
    """What `json_transform` makes of a payload: the fields by their names, nested where they
    are.
    """
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
    """Matches the subjects that are slots of the ledger."""
    words = {"*": "[A-Za-z0-9-][A-Za-z0-9_-]*", "#": "[1-9][0-9]*"}
    shapes = {False: list[str](), True: list[str]()}
    for shape in FILLED_BY:
        shapes[shape[0].startswith("_")].append("[.]".join(words.get(word, word) for word in shape))
    some, threads, own = words["*"], "|".join(shapes[False]), "|".join(shapes[True])
    return f"{ROOT}[.]({some}|{ORGANISATION})[.](({some}[.]({threads}))|{own})"


#: Where a fact stands, read off its subject `ledger.<workspace>.<thread>.<tail>` or
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


#: What `ayes.projections.lake.counting` says of a fact: whether it counts; the place that it fills
#: in its call's row, which is NULL where it is not part of the row; and why it is void, if it is.
JUDGED: Final = "counts BOOLEAN NOT NULL, stands_as VARCHAR, void VARCHAR"
#: The columns of `events`, but for the bytes.
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
#: What a message of the log is before anything of it is read but whether it counts.
RAW: Final = f"""
    seq UBIGINT NOT NULL, recorded_at TIMESTAMP NOT NULL, subject VARCHAR NOT NULL, payload BLOB NOT NULL, {JUDGED}
"""
#: Rows of `events` out of `fresh`, a table of raw messages.
READ: Final = f"""
    SELECT seq, recorded_at, subject, {_PLACE}, {", ".join(f"{_field(path, kind)} AS {column}" for column, path, kind in FIELDS)},
        counts, stands_as, void, payload
    FROM (
        SELECT *, CASE WHEN regexp_full_match(subject, '{_slots()}') THEN string_split(subject, '.') END AS s,
            try(json_transform(decode(payload), '{_shape()}')) AS fields
        FROM fresh
    )
"""


#: Is this the fact with which a call has ended? One that is in doubt waits for a person.
ENDS: Final = "(stands_as = 'finished' AND type <> 'InDoubt') OR stands_as = 'reconciled'"


def _of(place: str, column: str) -> str:
    return f"any_value({column}) FILTER (stands_as = '{place}')"


#: The columns of `calls`: name, and how it is made of the call's facts.
CALLS: Final[tuple[tuple[str, str], ...]] = (
    ("tool", _of("requested", "tool")),
    ("tool_version", _of("requested", "tool_version")),
    ("agent", _of("requested", "agent")),
    ("requester", _of("requested", "requester")),
    ("provider_id", _of("requested", "provider_id")),
    # What is at its default is not in the fact, here and below.
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
        (
            "coalesce(any_value(coalesce(organisation, false)) FILTER (stands_as = 'decided' AND "
            f"rule IS NOT NULL), {_of('gated', 'organisation')}, false)"
        ),
    ),
    ("asked", "bool_or(stands_as = 'gated')"),
    # Why people were asked; why it was decided as it was, says `reason`.
    ("question", _of("gated", "reason")),
    (
        "votes_needed",
        (
            f"CASE WHEN bool_or(stands_as = 'gated') THEN coalesce({_of('gated', 'votes_needed')}, 1) "
            "END"
        ),
    ),
    ("votes", "count(*) FILTER (stands_as = 'vote')"),
    ("escalations", "count(*) FILTER (stands_as = 'escalated')"),
    ("verdict", _of("decided", "type")),
    ("ground", _of("decided", "ground")),
    ("reviewers", _of("decided", "voters")),
    ("reason", _of("decided", "reason")),
    ("edited", f"coalesce({_of('decided', 'arguments')} IS NOT NULL, false)"),
    ("edited_arguments", _of("decided", "arguments")),
    ("grants", _of("decided", "grants")),
    # Who took the approval back. In logs from before the slot named the reviewer, it is what the
    # fact says.
    (
        "revoked_by",
        (
            "any_value(CASE place WHEN 'revoked' THEN which ELSE reviewer END) FILTER (stands_as = "
            "'revoked')"
        ),
    ),
    ("attempts", "count(*) FILTER (stands_as = 'claim' AND type = 'ToolStarted')"),
    # How it ended: as what the model was told says, or in doubt until a person finds out.
    (
        "outcome",
        (
            "CASE WHEN bool_or(stands_as = 'reconciled') THEN 'reconciled' ELSE CASE "
            f"{_of('finished', 'type')} WHEN 'ToolReturned' THEN 'returned' WHEN 'ToolFailed' THEN "
            "'failed' WHEN 'InDoubt' THEN 'in_doubt' WHEN 'ToolRefused' THEN "
            f"{_of('finished', 'ending')} END END"
        ),
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
    """One row for each call that was requested, out of some rows of `events` (a table, or a query
    in brackets).
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


#: What is asked of `events` and `calls` again and again.
VIEWS: Final[dict[str, str]] = {
    "votes": """
        SELECT vote.seq, vote.recorded_at, vote.workspace, vote.thread, vote.call, vote.which AS reviewer,
            vote.on_behalf_of ->> '$' AS on_behalf_of,
            vote.verdict, vote.reason, vote.arguments IS NOT NULL AS edited, vote.arguments, vote.digest,
            asked.tool, asked.gated_at,
            date_diff('millisecond', asked.gated_at, vote.recorded_at) / 1000.0 AS after_s,
            list_contains(asked.reviewers, vote.which) AS counted
        FROM events AS vote LEFT JOIN calls AS asked USING (workspace, thread, call)
        WHERE vote.place = 'vote' AND vote.type = 'Voted'
    """,
    "grants": """
        SELECT given.workspace, string_split(given.which, '.')[1] AS giver, string_split(given.which, '.')[2] AS name,
            given.tool, given.arguments, coalesce(given.agent, '*') AS agent, coalesce(given.uses, 1) AS uses,
            given.expires_in_s, given.reason,
            given.recorded_at AS given_at,
            try(given.recorded_at + to_microseconds(CAST(given.expires_in_s * 1000000 AS BIGINT))) AS ends_at,
            min(other.recorded_at) FILTER (other.type = 'GrantRevoked') AS revoked_at,
            count(*) FILTER (other.type = 'GrantUsed') AS used
        FROM events AS given
        LEFT JOIN events AS other
            ON other.place = 'grant' AND other.workspace = given.workspace AND other.seq > given.seq
            AND starts_with(other.which, array_to_string(string_split(given.which, '.')[:2], '.') || '.')
        WHERE given.place = 'grant' AND given.type = 'Granted'
        GROUP BY ALL
    """,
    "delegations": """
        SELECT given.workspace, string_split(given.which, '.')[1] AS giver, string_split(given.which, '.')[2] AS name,
            given.delegate, given.starts_at, given.ends_at, given.reason, given.recorded_at AS given_at,
            min(other.recorded_at) AS ended_at
        FROM events AS given
        LEFT JOIN events AS other
            ON other.type = 'DelegationEnded' AND other.workspace = given.workspace
            AND other.which = array_to_string(string_split(given.which, '.')[:2], '.') || '.ended'
        WHERE given.type = 'Delegated'
        GROUP BY ALL
    """,
    "policies": """
        SELECT workspace, try_cast(which AS INTEGER) AS version, recorded_at AS applied_at, by_name AS author, digest, text, seq
        FROM events WHERE place = 'policy' AND type = 'PolicyApplied'
    """,
    "tools": """
        SELECT workspace, string_split(which, '.')[1] AS tool, string_split(which, '.')[2] AS version,
            recorded_at AS declared_at, coalesce(run_by, 'client') AS run_by, seq
        FROM events WHERE place = 'tool' AND type = 'ToolDeclared'
    """,
    "threads": """
        SELECT workspace, thread, min(recorded_at) AS first_at, max(recorded_at) AS last_at,
            any_value(requester) FILTER (place = 'opened') AS requester,
            any_value(agent) FILTER (place = 'opened') AS agent,
            any_value(model) FILTER (place = 'opened') AS model,
            count(*) FILTER (place = 'said') AS messages,
            count(*) FILTER (place = 'replied') AS turns,
            count(*) FILTER (place = 'requested') AS calls,
            count(*) FILTER (place = 'gated') AS questions,
            CAST(sum(input_tokens) AS BIGINT) AS input_tokens, CAST(sum(output_tokens) AS BIGINT) AS output_tokens,
            count(*) AS facts, min(seq) AS first_seq, max(seq) AS last_seq
        FROM events WHERE thread IS NOT NULL GROUP BY workspace, thread
    """,
}

#: Tables as they were when the log had so many facts.
MACROS: Final[dict[str, str]] = {
    "events_until(until)": "SELECT * FROM events WHERE seq <= until",
    "calls_until(until)": calls("(SELECT * FROM events WHERE seq <= until)"),
}
