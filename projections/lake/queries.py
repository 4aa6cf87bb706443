"""The questions that people ask of the tables again and again, each with its answer in SQL.

    QUESTIONS      by name; `ayes ask NAME` asks one, `ayes ask NAME --list` shows its SQL
    uncited        what SQL alone cannot answer: the rules of a policy that no decision cites

The rules:

* Each is one SELECT over the catalog's tables (`projections/lake/tables.py`), so that it can be
  copied and changed elsewhere.
* Each row stands in an order of its own: the same lake gives the same answer, to the byte.
* "Now" is when the newest fact was recorded, never the clock: a lake that nobody syncs does not
  age.
* Times are UTC. Durations are counted on the broker's clock in whole microseconds and shown in
  seconds (`_s`); so sums do not depend on the order in which they are added up.
* A share is of what stands before it in the row, and NULL where that is none.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from ayes.schemas.policy import read_policy


class SavedQuery(Struct, frozen=True):
    """A question with a name, in a sentence, and the SQL that answers it."""

    name: str
    title: str
    sql: str


_QUESTIONS: Final = (
    SavedQuery(
        "time-to-decision",
        "How long do people take to decide, by tool and by the day on which they were asked?",
        """
SELECT tool, CAST(gated_at AS DATE) AS day, count(*) AS decisions,
    round(quantile_cont(waited_us, 0.5) / 1e6, 3) AS p50_s,
    round(quantile_cont(waited_us, 0.9) / 1e6, 3) AS p90_s,
    round(quantile_cont(waited_us, 0.99) / 1e6, 3) AS p99_s
FROM (
    SELECT tool, gated_at, epoch_us(decided_at) - epoch_us(gated_at) AS waited_us FROM calls
    WHERE asked AND (ground IN ('people', 'broken_glass') OR verdict = 'Answered')
)
GROUP BY tool, day ORDER BY day, tool
""",
    ),
    SavedQuery(
        "who-decides",
        "Who votes, how, how fast, and how many of the votes count in a decision?",
        """
SELECT reviewer, count(*) AS votes,
    count(*) FILTER (verdict = 'approve') AS approve,
    count(*) FILTER (verdict = 'deny') AS deny,
    count(*) FILTER (verdict = 'answer') AS answer,
    count(*) FILTER (verdict = 'break_glass') AS break_glass,
    count(*) FILTER (edited) AS edited,
    count(*) FILTER (on_behalf_of <> '') AS for_others,
    count(*) FILTER (counted) AS counted,
    round(quantile_cont(after_us, 0.5) / 1e6, 3) AS p50_s,
    round(quantile_cont(after_us, 0.9) / 1e6, 3) AS p90_s
FROM (
    SELECT vote.which AS reviewer, vote.verdict, vote.arguments IS NOT NULL AS edited,
        vote.on_behalf_of ->> '$' AS on_behalf_of,
        list_contains(asked.reviewers, vote.which) AS counted,
        epoch_us(vote.recorded_at) - epoch_us(asked.gated_at) AS after_us
    FROM events AS vote LEFT JOIN calls AS asked USING (workspace, thread, call)
    WHERE vote.place = 'vote' AND vote.type = 'Voted'
)
GROUP BY reviewer ORDER BY votes DESC, reviewer
""",
    ),
    SavedQuery(
        "overrides",
        "How often do people deny, edit or answer what was asked for, by tool?",
        """
SELECT tool, count(*) AS decided,
    count(*) FILTER (verdict = 'Approved' AND NOT edited) AS approved,
    count(*) FILTER (verdict = 'Approved' AND edited) AS edited,
    count(*) FILTER (verdict = 'Denied') AS denied,
    count(*) FILTER (verdict = 'Answered') AS answered,
    round(count(*) FILTER (verdict = 'Denied') / count(*), 4) AS denied_share,
    round(count(*) FILTER (verdict <> 'Approved' OR edited) / count(*), 4) AS overridden_share
FROM calls WHERE asked AND (ground IN ('people', 'broken_glass') OR verdict = 'Answered')
GROUP BY tool ORDER BY overridden_share DESC, decided DESC, tool
""",
    ),
    SavedQuery(
        "edits",
        # Nested values are compared as text, so their keys in another order count as an edit.
        "Which arguments do reviewers change, by tool? No field: one of the two is no JSON object.",
        """
WITH edited AS (
    SELECT row_number() OVER () AS n, tool, arguments, edited_arguments,
        coalesce(try(json_type(arguments)) = 'OBJECT' AND try(json_type(edited_arguments)) = 'OBJECT', false) AS objects
    FROM calls WHERE edited
), keys AS (
    SELECT n, tool, arguments, edited_arguments,
        unnest(list_distinct(list_concat(json_keys(arguments), json_keys(edited_arguments)))) AS field
    FROM edited WHERE objects
), fields AS (
    SELECT n, tool, field, CAST(json_extract(arguments, path) AS VARCHAR) AS before,
        CAST(json_extract(edited_arguments, path) AS VARCHAR) AS after
    FROM (SELECT *, '/' || replace(replace(field, '~', '~0'), '/', '~1') AS path FROM keys)
    UNION ALL
    SELECT n, tool, NULL, arguments, edited_arguments FROM edited WHERE NOT objects
)
SELECT tool, field, count(*) AS edits,
    count(*) FILTER (before IS NOT NULL AND after IS NOT NULL) AS changed,
    count(*) FILTER (before IS NULL) AS added,
    count(*) FILTER (after IS NULL) AS removed
FROM fields WHERE before IS DISTINCT FROM after
GROUP BY tool, field ORDER BY edits DESC, tool, field
""",
    ),
    SavedQuery(
        "pending-age",
        "How long have the calls waited that nobody has decided yet?",
        """
WITH waiting AS (
    SELECT concat_ws('/', workspace, thread, call) AS ref,
        epoch_us((SELECT max(recorded_at) FROM events)) - epoch_us(gated_at) AS age_us
    FROM open_calls WHERE asked AND verdict IS NULL
)
SELECT CASE
        WHEN age_us < 60e6 THEN 'under a minute'
        WHEN age_us < 600e6 THEN 'under 10 minutes'
        WHEN age_us < 3600e6 THEN 'under an hour'
        WHEN age_us < 86400e6 THEN 'under a day'
        WHEN age_us < 604800e6 THEN 'under a week'
        ELSE 'a week or more'
    END AS age,
    count(*) AS calls, round(max(age_us) / 1e6, 3) AS oldest_s, first(ref ORDER BY age_us DESC, ref) AS oldest
FROM waiting GROUP BY age ORDER BY min(age_us)
""",
    ),
    SavedQuery(
        "failed-after-approval",
        "How often does what was approved fail, by tool and by what the approval rested on?",
        """
SELECT tool, ground, count(*) AS approved,
    count(*) FILTER (outcome = 'returned') AS returned,
    count(*) FILTER (outcome = 'failed') AS failed,
    count(*) FILTER (outcome IN ('in_doubt', 'reconciled')) AS doubted,
    count(*) FILTER (outcome IS NOT NULL AND started_at IS NULL) AS never_ran,
    count(started_at) AS started,
    round(count(*) FILTER (outcome = 'failed') / nullif(count(started_at), 0), 4) AS failed_share
FROM calls WHERE verdict = 'Approved'
GROUP BY tool, ground ORDER BY failed DESC, tool, ground
""",
    ),
    SavedQuery(
        "expiries",
        "Which questions does nobody answer in time, by tool and rule?",
        """
SELECT tool, rule, count(*) AS asked,
    count(*) FILTER (escalations > 0) AS escalated,
    count(*) FILTER (verdict = 'Expired') AS expired,
    round(count(*) FILTER (verdict = 'Expired') / count(*), 4) AS expired_share
FROM calls WHERE asked
GROUP BY tool, rule HAVING expired > 0 ORDER BY expired DESC, tool, rule
""",
    ),
    SavedQuery(
        "rubber-stamping",
        # A lower bound: a vote counts as if its question had been the only one, put to all at once.
        "How many votes came sooner after the question than anybody reads it (25 characters a "
        "second, at least 2 seconds)?",
        """
WITH asked AS (
    SELECT workspace, thread, call, gated_at, gated_seq, decided_seq,
        greatest((length(arguments) + coalesce(length(question), 0)) * 1000000 // 25, 2000000) AS reading_us
    FROM calls WHERE asked
), seen AS (
    SELECT vote.which AS reviewer, epoch_us(vote.recorded_at) - epoch_us(asked.gated_at) AS after_us, asked.reading_us
    FROM events AS vote JOIN asked USING (workspace, thread, call)
    WHERE vote.place = 'vote' AND vote.type = 'Voted'
        AND vote.seq > asked.gated_seq AND (asked.decided_seq IS NULL OR vote.seq < asked.decided_seq)
)
SELECT reviewer, count(*) AS votes,
    count(*) FILTER (after_us < reading_us) AS faster,
    round(count(*) FILTER (after_us < reading_us) / count(*), 4) AS faster_share,
    round(quantile_cont(after_us, 0.5) / 1e6, 3) AS p50_s,
    round(quantile_cont(reading_us, 0.5) / 1e6, 3) AS reading_p50_s
FROM seen GROUP BY reviewer ORDER BY faster_share DESC, votes DESC, reviewer
""",
    ),
    SavedQuery(
        "cost-of-waiting",
        "How much of the time from request to end do calls that ended spend waiting for people, "
        "by tool?",
        """
SELECT tool, count(*) AS calls, count(*) FILTER (asked) AS asked,
    round(sum(lived_us) / 1e6, 3) AS lived_s,
    round(sum(waited_us) / 1e6, 3) AS waited_s,
    round(sum(waited_us) / nullif(sum(lived_us), 0), 4) AS waited_share
FROM (
    SELECT tool, asked, epoch_us(ended_at) - epoch_us(requested_at) AS lived_us,
        CASE WHEN asked THEN greatest(epoch_us(decided_at) - epoch_us(gated_at), 0) ELSE 0 END AS waited_us
    FROM calls WHERE ended_at IS NOT NULL
)
GROUP BY tool ORDER BY waited_s DESC, tool
""",
    ),
    SavedQuery(
        "grants-in-use",
        "Which standing approvals are there, how do they stand, and how often were they used?",
        """
SELECT workspace, giver, name, tool, standing, uses, used, given_at, ends_at, revoked_at
FROM (
    SELECT *, CASE
            WHEN revoked_at IS NOT NULL THEN 'revoked'
            WHEN ends_at <= (SELECT max(recorded_at) FROM events) THEN 'ended'
            WHEN used >= uses THEN 'used up'
            ELSE 'in force'
        END AS standing
    FROM grants
)
ORDER BY standing <> 'in force', given_at, workspace, giver, name
""",
    ),
    SavedQuery(
        "rules",
        "Which rules do questions and decisions cite, and which rules of the policy in force do "
        "they never?",
        # `uncited` finds the second half: DuckDB reads no TOML, and a pattern over the text would
        # take a group's `name`, or a name in a comment, for a rule.
        """
SELECT CASE WHEN organisation THEN '_organisation' ELSE workspace END AS policy, rule,
    'cited' AS standing,
    count(DISTINCT (workspace, thread, call)) AS calls,
    count(*) FILTER (place = 'gated') AS asked,
    count(*) FILTER (type = 'Approved' AND ground = 'policy') AS allowed,
    count(*) FILTER (type = 'Denied' AND ground = 'policy') AS blocked,
    max(recorded_at) AS last_at
FROM events WHERE place IN ('gated', 'decided') AND call IS NOT NULL AND rule <> ''
GROUP BY policy, rule ORDER BY policy, calls DESC, rule
""",
    ),
    SavedQuery(
        "reused-provider-ids",
        "Which ids does a provider use for more than one call of a thread?",
        """
SELECT workspace, thread, provider_id, count(*) AS calls,
    count(DISTINCT tool) AS tools, count(DISTINCT digest) AS wishes, list_sort(list(call)) AS refs
FROM calls WHERE (workspace, thread, provider_id) IN (
    -- Most ids are used once; what is listed of the others would be a lot of work for nothing.
    SELECT (workspace, thread, provider_id) FROM calls WHERE provider_id <> ''
    GROUP BY workspace, thread, provider_id HAVING count(*) > 1
)
GROUP BY workspace, thread, provider_id
ORDER BY calls DESC, workspace, thread, provider_id
""",
    ),
    SavedQuery(
        "longest-threads",
        "Which twenty threads have the most facts?",
        """
SELECT workspace, thread, facts, messages, turns, calls, questions, input_tokens, output_tokens,
    round((epoch_us(last_at) - epoch_us(first_at)) / 1e6, 3) AS lasted_s, last_at
FROM threads ORDER BY facts DESC, workspace, thread LIMIT 20
""",
    ),
    SavedQuery(
        "in-doubt",
        "Which calls may have run, and nobody has found out yet?",
        """
SELECT workspace, thread, call, tool, arguments, attempts, started_at, finished_at AS doubted_at,
    round((epoch_us((SELECT max(recorded_at) FROM events)) - epoch_us(finished_at)) / 1e6, 3) AS since_s
FROM open_calls WHERE outcome = 'in_doubt'
ORDER BY doubted_at, workspace, thread, call
""",
    ),
    SavedQuery(
        "not-asked",
        "What was decided without asking anybody, and by which rule?",
        """
SELECT ground, rule, verdict, count(*) AS calls, count(DISTINCT tool) AS tools, max(decided_at) AS last_at
FROM calls WHERE NOT asked AND ground IS NOT NULL
GROUP BY ground, rule, verdict ORDER BY calls DESC, ground, rule, verdict
""",
    ),
    SavedQuery(
        "busiest-hours",
        "At which hours of the day (UTC) are people asked, and how long do they take then?",
        """
SELECT hour(gated_at) AS hour, count(*) AS questions, count(by_people_us) AS decided,
    round(quantile_cont(by_people_us, 0.5) / 1e6, 3) AS p50_s,
    round(quantile_cont(by_people_us, 0.9) / 1e6, 3) AS p90_s
FROM (
    SELECT gated_at, CASE WHEN ground IN ('people', 'broken_glass') OR verdict = 'Answered'
            THEN epoch_us(decided_at) - epoch_us(gated_at) END AS by_people_us
    FROM calls WHERE asked
)
GROUP BY hour ORDER BY questions DESC, hour
""",
    ),
    SavedQuery(
        "repeated-denials",
        "Which wishes were denied more than once in the same thread?",
        """
SELECT workspace, thread, tool, min(arguments) AS arguments, count(*) AS denials,
    count(*) FILTER (ground = 'people') AS by_people,
    count(*) FILTER (ground = 'repeated') AS by_themselves,
    count(*) FILTER (ground NOT IN ('people', 'repeated')) AS otherwise,
    max(decided_at) AS last_at
FROM calls WHERE verdict = 'Denied'
GROUP BY workspace, thread, tool, digest HAVING count(*) > 1
ORDER BY denials DESC, workspace, thread, tool, arguments, digest
""",
    ),
    SavedQuery(
        "break-glass",
        "Who broke the glass, for what, why, and what came of it?",
        """
SELECT told.recorded_at AS broken_at, told.workspace, told.thread, told.call, asked.tool, told.reviewer, told.reason,
    asked.verdict, asked.ground, asked.outcome, asked.started_at IS NOT NULL AS started
FROM events AS told LEFT JOIN calls AS asked USING (workspace, thread, call)
WHERE told.type = 'GlassBroken'
ORDER BY told.seq
""",
    ),
    SavedQuery(
        "agents",
        "What do agents ask for, and what becomes of it?",
        """
SELECT agent, count(*) AS calls, count(DISTINCT tool) AS tools, count(*) FILTER (asked) AS asked,
    count(*) FILTER (verdict = 'Approved') AS approved,
    count(*) FILTER (verdict = 'Denied') AS denied,
    count(*) FILTER (verdict = 'Answered') AS answered,
    count(*) FILTER (verdict IN ('Expired', 'Withdrawn', 'Superseded')) AS lapsed,
    count(*) FILTER (outcome = 'failed') AS failed,
    round(count(*) FILTER (asked) / count(*), 4) AS asked_share
FROM calls GROUP BY agent ORDER BY calls DESC, agent
""",
    ),
)

#: By name, in the order in which they are listed.
QUESTIONS: Final[Mapping[str, SavedQuery]] = {one.name: one for one in _QUESTIONS}

#: The policy in force by then, of each workspace and of the organisation.
IN_FORCE: Final = """
SELECT workspace AS policy, version, text FROM policies WHERE text IS NOT NULL
QUALIFY version = max(version) OVER (PARTITION BY workspace) ORDER BY policy
"""


def uncited(policy: str, text: str, cited: Iterable[str]) -> tuple[dict[str, object], ...]:
    """The rules of a policy that nothing cites, as rows of the answer to `rules`, in the order of
    the file.

    A rule in the shadow judges without effect, so nothing ever cites it. Where the organisation's
    rule and a workspace's both ask, the organisation's is cited.

    Raises:
        BadFile: this program cannot read the policy.
    """
    known = set(cited)
    return tuple(
        {
            "policy": policy,
            "rule": rule.name,
            "standing": "shadow" if rule.shadow else "never",
            "calls": 0,
            "asked": 0,
            "allowed": 0,
            "blocked": 0,
            "last_at": None,
        }
        for rule in read_policy(text, f"the policy of {policy}").rules
        if rule.name not in known
    )
