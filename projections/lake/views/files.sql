-- One row for each file of a message, an output or a model's reply, in their order.

SELECT seq, recorded_at, workspace, thread, turn, call, type, role,
    part ->> '$.media_type' AS media_type,
    part ->> '$.name' AS name,
    part ->> '$.source.kept' AS kept,
    part ->> '$.source.digest' AS digest,
    CASE part ->> '$.source.kept'
        WHEN 'stored' THEN try_cast(part ->> '$.source.size' AS BIGINT)
        WHEN 'inline' THEN octet_length(try(from_base64(part ->> '$.source.data')))
    END AS size,
    part ->> '$.source.url' AS url
FROM (
    SELECT events.*, unnest(try(CASE type
        WHEN 'ModelReplied' THEN decode(payload) -> '$.parts[*]'
        WHEN 'ToolReturned' THEN decode(payload) -> '$.output[*]'
        ELSE decode(payload) -> '$.text[*]'
    END)) AS part
    FROM events
    WHERE type IN ('Said', 'ModelReplied', 'ToolReturned')
)
WHERE part ->> '$.part' = 'media'
