-- Which twenty threads have the most facts?

SELECT workspace, thread, facts, messages, turns, calls, questions, input_tokens, output_tokens,
    round((epoch_us(last_at) - epoch_us(first_at)) / 1e6, 3) AS lasted_s, last_at
FROM threads ORDER BY facts DESC, workspace, thread LIMIT 20
