-- How much of the time from request to end do calls that ended spend waiting for people, by
-- tool?

SELECT tool, count(*) AS calls, count(*) FILTER (asked) AS asked,
    round(sum(lived_us) / 1e6, 3) AS lived_s,
    round(sum(waited_us) / 1e6, 3) AS waited_s,
    round(sum(waited_us) / nullif(sum(lived_us), 0), 4) AS waited_share
FROM (
    SELECT tool, asked, epoch_us(ended_at) - epoch_us(requested_at) AS lived_us,
        CASE WHEN asked THEN greatest(epoch_us(decided_at) - epoch_us(gated_at), 0) ELSE 0 END
            AS waited_us
    FROM calls WHERE ended_at IS NOT NULL
)
GROUP BY tool ORDER BY waited_s DESC, tool
