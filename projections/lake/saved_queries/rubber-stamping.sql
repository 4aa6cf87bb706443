-- How many votes came sooner after the question than anybody reads it (25 characters a second,
-- at least 2 seconds)?

-- A lower bound: each vote is measured as if its question had been the only open one, put to all
-- reviewers at once.
WITH asked AS (
    SELECT workspace, thread, call, gated_at, gated_seq, decided_seq,
        greatest((length(arguments) + coalesce(length(question), 0)) * 1000000 // 25, 2000000)
            AS reading_us
    FROM calls WHERE asked
), seen AS (
    SELECT vote.which AS reviewer, asked.reading_us,
        epoch_us(vote.recorded_at) - epoch_us(asked.gated_at) AS after_us
    FROM events AS vote JOIN asked USING (workspace, thread, call)
    WHERE vote.place = 'vote' AND vote.type = 'Voted'
        AND vote.seq > asked.gated_seq
        AND (asked.decided_seq IS NULL OR vote.seq < asked.decided_seq)
)
SELECT reviewer, count(*) AS votes,
    count(*) FILTER (after_us < reading_us) AS faster,
    round(count(*) FILTER (after_us < reading_us) / count(*), 4) AS faster_share,
    round(quantile_cont(after_us, 0.5) / 1e6, 3) AS p50_s,
    round(quantile_cont(reading_us, 0.5) / 1e6, 3) AS reading_p50_s
FROM seen GROUP BY reviewer ORDER BY faster_share DESC, votes DESC, reviewer
