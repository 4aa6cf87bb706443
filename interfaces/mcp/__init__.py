"""A gateway in front of MCP servers: every `tools/call` is a call in the ledger.

    client ──► server.py ──► routes.py ──► upstream.py ──► the MCP servers
                   │ tools/call
                   ▼
               ladder.py ──► runs.py ──► kernel.py ──► the ledger: request, claim, result

`server.py` speaks to clients (`client.py`), over stdio or HTTP, in both eras of the protocol.
`routes.py` passes on everything but calls of tools, as raw JSON. `upstream.py` keeps each server,
over the bounded connections of `streams.py`, so that none keeps the others waiting. `ladder.py`
answers a call in the best way that its client supports, and `runs.py` alone runs tools.
`settings.py`, `names.py` and `wire.py` are pure.

The rules inside: nothing that a client sends is read as a decision, and a tool runs only after this
program's own claim of its approved call. Whatever goes wrong, nothing runs.
"""
