-- One row for each thread, with what was counted in it.

SELECT workspace, thread, min(recorded_at) AS first_at, max(recorded_at) AS last_at,
    any_value(requester) FILTER (place = 'opened') AS requester,
    any_value(agent) FILTER (place = 'opened') AS agent,
    any_value(model) FILTER (place = 'opened') AS model,
    count(*) FILTER (place = 'said') AS messages,
    count(*) FILTER (place = 'replied') AS turns,
    count(*) FILTER (place = 'requested') AS calls,
    count(*) FILTER (place = 'gated') AS questions,
    CAST(sum(input_tokens) AS BIGINT) AS input_tokens,
    CAST(sum(output_tokens) AS BIGINT) AS output_tokens,
    count(*) AS facts, min(seq) AS first_seq, max(seq) AS last_seq
FROM events WHERE thread IS NOT NULL GROUP BY workspace, thread
