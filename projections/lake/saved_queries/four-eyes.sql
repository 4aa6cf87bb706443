-- How many approvals by people took four eyes, and how many did the requester confirm, by tool and
-- rule?

SELECT tool, rule, count(*) AS approved,
    count(*) FILTER (mode = 'four_eyes') AS four_eyes,
    count(*) FILTER (mode = 'requester_confirms') AS requester_confirms,
    round(count(*) FILTER (mode = 'requester_confirms') / count(*), 4) AS requester_confirms_share
FROM calls WHERE mode IS NOT NULL
GROUP BY tool, rule ORDER BY requester_confirms DESC, approved DESC, tool, rule
