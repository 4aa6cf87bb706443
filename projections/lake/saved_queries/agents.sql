-- What do agents ask for, and what becomes of it?

SELECT agent, count(*) AS calls, count(DISTINCT tool) AS tools, count(*) FILTER (asked) AS asked,
    count(*) FILTER (verdict = 'Approved') AS approved,
    count(*) FILTER (verdict = 'Denied') AS denied,
    count(*) FILTER (verdict = 'Answered') AS answered,
    count(*) FILTER (verdict IN ('Expired', 'Withdrawn', 'Superseded')) AS ended_undecided,
    count(*) FILTER (verdict IS NULL) AS pending,
    count(*) FILTER (outcome = 'failed') AS failed,
    round(count(*) FILTER (asked) / count(*), 4) AS asked_share
FROM calls GROUP BY agent ORDER BY calls DESC, agent
