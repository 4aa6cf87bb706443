-- One row for each vote, with the call it is about.

SELECT vote.seq, vote.recorded_at, vote.workspace, vote.thread, vote.call, vote.which AS reviewer,
    vote.on_behalf_of ->> '$' AS on_behalf_of,
    vote.verdict, vote.reason, vote.arguments IS NOT NULL AS edited, vote.arguments, vote.digest,
    asked.tool, asked.gated_at,
    date_diff('millisecond', asked.gated_at, vote.recorded_at) / 1000.0 AS after_s,
    list_contains(asked.reviewers, vote.which) AS counted
FROM events AS vote LEFT JOIN calls AS asked USING (workspace, thread, call)
WHERE vote.place = 'vote' AND vote.type = 'Voted'
