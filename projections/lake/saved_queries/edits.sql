-- Which arguments do reviewers change, by tool? No field: one of the two is not a JSON object.

-- Nested values are compared as text, so their keys in another order count as an edit.
WITH edited AS (
    SELECT row_number() OVER () AS n, tool, arguments, edited_arguments,
        coalesce(
            try(json_type(arguments)) = 'OBJECT' AND try(json_type(edited_arguments)) = 'OBJECT',
            false
        ) AS objects
    FROM calls WHERE edited
), keys AS (
    SELECT n, tool, arguments, edited_arguments,
        unnest(
            list_distinct(list_concat(json_keys(arguments), json_keys(edited_arguments)))
        ) AS field
    FROM edited WHERE objects
), fields AS (
    SELECT n, tool, field, CAST(json_extract(arguments, path) AS VARCHAR) AS before,
        CAST(json_extract(edited_arguments, path) AS VARCHAR) AS after
    FROM (SELECT *, '/' || replace(replace(field, '~', '~0'), '/', '~1') AS path FROM keys)
    UNION ALL
    SELECT n, tool, NULL, arguments, edited_arguments FROM edited WHERE NOT objects
)
SELECT tool, field, count(*) AS edits,
    count(*) FILTER (before IS NOT NULL AND after IS NOT NULL) AS changed,
    count(*) FILTER (before IS NULL) AS added,
    count(*) FILTER (after IS NULL) AS removed
FROM fields WHERE before IS DISTINCT FROM after
GROUP BY tool, field ORDER BY edits DESC, tool, field
