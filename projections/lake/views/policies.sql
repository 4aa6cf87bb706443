-- One row for each version of a policy.

SELECT workspace, try_cast(which AS INTEGER) AS version, recorded_at AS applied_at,
    by_name AS author, digest, text, seq
FROM events WHERE place = 'policy' AND type = 'PolicyApplied'
