-- Which calls may have run, and nobody has found out yet?

SELECT workspace, thread, call, tool, arguments, attempts, started_at, finished_at AS doubted_at,
    round((epoch_us((SELECT max(recorded_at) FROM events)) - epoch_us(finished_at)) / 1e6, 3)
        AS since_s
FROM open_calls WHERE outcome = 'in_doubt'
ORDER BY doubted_at, workspace, thread, call
