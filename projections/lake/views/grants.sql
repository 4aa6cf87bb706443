-- One row for each grant: what it allows, and how often it was used.

SELECT given.workspace, string_split(given.which, '.')[1] AS giver,
    string_split(given.which, '.')[2] AS name,
    given.tool, given.arguments, coalesce(given.agent, '*') AS agent,
    coalesce(given.uses, 1) AS uses, given.expires_in_s, given.reason,
    given.recorded_at AS given_at,
    try(given.recorded_at + to_microseconds(CAST(given.expires_in_s * 1000000 AS BIGINT)))
        AS ends_at,
    min(other.recorded_at) FILTER (other.type = 'GrantRevoked') AS revoked_at,
    count(*) FILTER (other.type = 'GrantUsed') AS used
FROM events AS given
LEFT JOIN events AS other
    ON other.place = 'grant' AND other.workspace = given.workspace AND other.seq > given.seq
    AND starts_with(other.which, array_to_string(string_split(given.which, '.')[:2], '.') || '.')
WHERE given.place = 'grant' AND given.type = 'Granted'
GROUP BY ALL
