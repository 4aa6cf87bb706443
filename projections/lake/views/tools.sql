-- One row for each declared version of a tool. See ayes.schemas.tool_names for the names in subjects.

SELECT workspace,
    replace(replace(replace(string_split(which, '.')[1], '=2E', '.'), '=2F', '/'), '=5F', '_')
        AS tool, string_split(which, '.')[2] AS version,
    recorded_at AS declared_at, coalesce(run_by, 'client') AS run_by, seq
FROM events WHERE place = 'tool' AND type = 'ToolDeclared'
