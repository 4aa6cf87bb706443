-- Which ids does a provider use for more than one call of a thread?

SELECT workspace, thread, provider_id, count(*) AS calls,
    count(DISTINCT tool) AS tools, count(DISTINCT digest) AS wishes, list_sort(list(call)) AS refs
FROM calls WHERE (workspace, thread, provider_id) IN (
    -- Most ids are used once; what is listed of the others would be a lot of work for nothing.
    SELECT (workspace, thread, provider_id) FROM calls WHERE provider_id <> ''
    GROUP BY workspace, thread, provider_id HAVING count(*) > 1
)
GROUP BY workspace, thread, provider_id
ORDER BY calls DESC, workspace, thread, provider_id
