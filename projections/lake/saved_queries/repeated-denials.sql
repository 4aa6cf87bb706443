-- Which wishes were denied more than once in the same thread?

SELECT workspace, thread, tool, min(arguments) AS arguments, count(*) AS denials,
    count(*) FILTER (ground = 'people') AS by_people,
    count(*) FILTER (ground = 'repeated') AS by_themselves,
    count(*) FILTER (ground NOT IN ('people', 'repeated')) AS otherwise,
    max(decided_at) AS last_at
FROM calls WHERE verdict = 'Denied'
GROUP BY workspace, thread, tool, digest HAVING count(*) > 1
ORDER BY denials DESC, workspace, thread, tool, arguments, digest
