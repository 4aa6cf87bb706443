-- How long do people take to decide, by tool and by the day on which they were asked?

SELECT tool, CAST(gated_at AS DATE) AS day, count(*) AS decisions,
    round(quantile_cont(waited_us, 0.5) / 1e6, 3) AS p50_s,
    round(quantile_cont(waited_us, 0.9) / 1e6, 3) AS p90_s,
    round(quantile_cont(waited_us, 0.99) / 1e6, 3) AS p99_s
FROM (
    SELECT tool, gated_at, epoch_us(decided_at) - epoch_us(gated_at) AS waited_us FROM calls
    WHERE asked AND (ground IN ('people', 'broken_glass') OR verdict = 'Answered')
)
GROUP BY tool, day ORDER BY day, tool
