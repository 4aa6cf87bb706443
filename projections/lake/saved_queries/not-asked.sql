-- What was decided without asking anybody, and by which rule?

SELECT ground, rule, verdict, count(*) AS calls, count(DISTINCT tool) AS tools,
    max(decided_at) AS last_at
FROM calls WHERE NOT asked AND ground IS NOT NULL
GROUP BY ground, rule, verdict ORDER BY calls DESC, ground, rule, verdict
