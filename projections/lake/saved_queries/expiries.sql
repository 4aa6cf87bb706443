-- Which questions does nobody answer in time, by tool and rule?

SELECT tool, rule, count(*) AS asked,
    count(*) FILTER (escalations > 0) AS escalated,
    count(*) FILTER (verdict = 'Expired') AS expired,
    round(count(*) FILTER (verdict = 'Expired') / count(*), 4) AS expired_share
FROM calls WHERE asked
GROUP BY tool, rule HAVING expired > 0 ORDER BY expired DESC, tool, rule
