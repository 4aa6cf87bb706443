-- One row for each declared version of a tool.

SELECT workspace, string_split(which, '.')[1] AS tool, string_split(which, '.')[2] AS version,
    recorded_at AS declared_at, coalesce(run_by, 'client') AS run_by, seq
FROM events WHERE place = 'tool' AND type = 'ToolDeclared'
