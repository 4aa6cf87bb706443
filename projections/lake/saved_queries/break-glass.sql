-- Who broke the glass, for what, why, and what came of it?

SELECT told.recorded_at AS broken_at, told.workspace, told.thread, told.call,
    asked.tool, told.reviewer, told.reason,
    asked.verdict, asked.ground, asked.outcome, asked.started_at IS NOT NULL AS started
FROM events AS told LEFT JOIN calls AS asked USING (workspace, thread, call)
WHERE told.type = 'GlassBroken'
ORDER BY told.seq
