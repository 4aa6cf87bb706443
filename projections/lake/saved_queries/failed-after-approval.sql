-- How often does what was approved fail, by tool and by what the approval rested on?

SELECT tool, ground, count(*) AS approved,
    count(*) FILTER (outcome = 'returned') AS returned,
    count(*) FILTER (outcome = 'failed') AS failed,
    count(*) FILTER (outcome IN ('in_doubt', 'reconciled')) AS doubted,
    count(*) FILTER (outcome IS NOT NULL AND started_at IS NULL) AS never_ran,
    count(started_at) AS started,
    round(count(*) FILTER (outcome = 'failed') / nullif(count(started_at), 0), 4) AS failed_share
FROM calls WHERE verdict = 'Approved'
GROUP BY tool, ground ORDER BY failed DESC, tool, ground
