-- One row for each delegation.

SELECT given.workspace, string_split(given.which, '.')[1] AS giver,
    string_split(given.which, '.')[2] AS name,
    given.delegate, given.starts_at, given.ends_at, given.reason, given.recorded_at AS given_at,
    min(other.recorded_at) AS ended_at
FROM events AS given
LEFT JOIN events AS other
    ON other.type = 'DelegationEnded' AND other.workspace = given.workspace
    AND other.which IN (
        array_to_string(string_split(given.which, '.')[:2], '.') || '.ended',
        given.which || '.ended'
    )
WHERE given.type = 'Delegated'
GROUP BY ALL
