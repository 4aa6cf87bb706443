-- Which rules do questions and decisions cite, and which rules of the policy in force do they
-- never?

-- The rules that are never cited come from `uncited` (queries.py): DuckDB does not read TOML, and a
-- pattern over the text could mistake a group's `name`, or a name in a comment, for a rule.
SELECT CASE WHEN organisation THEN '_organisation' ELSE workspace END AS policy, rule,
    'cited' AS standing,
    count(DISTINCT (workspace, thread, call)) AS calls,
    count(*) FILTER (place = 'gated') AS asked,
    count(*) FILTER (type = 'Approved' AND ground = 'policy') AS allowed,
    count(*) FILTER (type = 'Denied' AND ground = 'policy') AS blocked,
    max(recorded_at) AS last_at
FROM events WHERE place IN ('gated', 'decided') AND call IS NOT NULL AND rule <> ''
GROUP BY policy, rule ORDER BY policy, calls DESC, rule
