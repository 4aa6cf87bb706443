-- At which hours of the day (UTC) are people asked, and how long do they take then?

SELECT hour(gated_at) AS hour, count(*) AS questions, count(by_people_us) AS decided,
    round(quantile_cont(by_people_us, 0.5) / 1e6, 3) AS p50_s,
    round(quantile_cont(by_people_us, 0.9) / 1e6, 3) AS p90_s
FROM (
    SELECT gated_at, CASE WHEN ground IN ('people', 'broken_glass') OR verdict = 'Answered'
            THEN epoch_us(decided_at) - epoch_us(gated_at) END AS by_people_us
    FROM calls WHERE asked
)
GROUP BY hour ORDER BY questions DESC, hour
