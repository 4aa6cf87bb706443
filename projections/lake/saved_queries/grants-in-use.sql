-- Which standing approvals are there, how do they stand, and how often were they used?

SELECT workspace, giver, name, tool, standing, uses, used, given_at, ends_at, revoked_at
FROM (
    SELECT *, CASE
            WHEN revoked_at IS NOT NULL THEN 'revoked'
            WHEN ends_at <= (SELECT max(recorded_at) FROM events) THEN 'ended'
            WHEN used >= uses THEN 'used up'
            ELSE 'in force'
        END AS standing
    FROM grants
)
ORDER BY standing <> 'in force', given_at, workspace, giver, name
