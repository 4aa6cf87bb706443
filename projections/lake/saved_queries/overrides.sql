-- How often do people deny, edit or answer what was asked for, by tool?

SELECT tool, count(*) AS decided,
    count(*) FILTER (verdict = 'Approved' AND NOT edited) AS approved,
    count(*) FILTER (verdict = 'Approved' AND edited) AS edited,
    count(*) FILTER (verdict = 'Denied') AS denied,
    count(*) FILTER (verdict = 'Answered') AS answered,
    round(count(*) FILTER (verdict = 'Denied') / count(*), 4) AS denied_share,
    round(count(*) FILTER (verdict <> 'Approved' OR edited) / count(*), 4) AS overridden_share
FROM calls WHERE asked AND (ground IN ('people', 'broken_glass') OR verdict = 'Answered')
GROUP BY tool ORDER BY overridden_share DESC, decided DESC, tool
