-- One row for each sum of a budget: what calls, or the replies of models, have used of it. What a
-- call has is the largest of its amounts, until the call has ended without running.

SELECT workspace, name, key, organisation,
    count(*) FILTER (NOT gives_back) AS uses,
    -- NULL if an amount cannot be read.
    CASE WHEN count(*) = count(amount)
        THEN coalesce(sum(amount) FILTER (NOT gives_back), 0)
    END AS used,
    coalesce(sum(amount) FILTER (gives_back), 0) AS given_back,
    min(first_at) AS first_at,
    max(last_at) AS last_at
FROM (
    SELECT spent.*, coalesce(
        calls.verdict <> 'Approved' OR calls.revoked_by IS NOT NULL OR calls.outcome IN (
            'lapsed', 'unknown_tool', 'digest_mismatch', 'people_were_asked', 'unproved',
            'forgotten', 'unopened', 'misfit'
        ), false
    ) AS gives_back
    FROM (
        SELECT workspace, string_split(which, '.')[1] AS name, string_split(which, '.')[2] AS sum,
            string_split(try(decode(payload) ->> '$.call'), '/') AS ref,
            coalesce(any_value(try(CAST(decode(payload) -> '$.key' AS VARCHAR[]))), []) AS key,
            coalesce(any_value(organisation), false) AS organisation,
            max(try_cast(amount AS DECIMAL(36, 18))) AS amount,
            min(recorded_at) AS first_at,
            max(recorded_at) AS last_at
        FROM events
        WHERE type = 'BudgetUsed'
        GROUP BY ALL
    ) AS spent
    LEFT JOIN calls
        ON calls.workspace = ref[1] AND calls.thread = ref[2] AND calls.call = ref[3]
)
GROUP BY workspace, name, sum, key, organisation
