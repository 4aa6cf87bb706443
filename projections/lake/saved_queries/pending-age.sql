-- How long have the calls waited that nobody has decided yet?

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
    count(*) AS calls, round(max(age_us) / 1e6, 3) AS oldest_s,
    first(ref ORDER BY age_us DESC, ref) AS oldest
FROM waiting GROUP BY age ORDER BY min(age_us)
