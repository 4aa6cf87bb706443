-- Who votes, how, how fast, and how many of the votes count in a decision?

SELECT reviewer, count(*) AS votes,
    count(*) FILTER (verdict = 'approve') AS approve,
    count(*) FILTER (verdict = 'deny') AS deny,
    count(*) FILTER (verdict = 'answer') AS answer,
    count(*) FILTER (verdict = 'break_glass') AS break_glass,
    count(*) FILTER (edited) AS edited,
    count(*) FILTER (on_behalf_of <> '') AS for_others,
    count(*) FILTER (counted) AS counted,
    round(quantile_cont(after_us, 0.5) / 1e6, 3) AS p50_s,
    round(quantile_cont(after_us, 0.9) / 1e6, 3) AS p90_s
FROM (
    SELECT vote.which AS reviewer, vote.verdict, vote.arguments IS NOT NULL AS edited,
        vote.on_behalf_of ->> '$' AS on_behalf_of,
        list_contains(asked.reviewers, vote.which) AS counted,
        epoch_us(vote.recorded_at) - epoch_us(asked.gated_at) AS after_us
    FROM events AS vote LEFT JOIN calls AS asked USING (workspace, thread, call)
    WHERE vote.place = 'vote' AND vote.type = 'Voted'
)
GROUP BY reviewer ORDER BY votes DESC, reviewer
