"""An MCP server of the era before 2026-07-28 that says what a test wants, over stdio.

    python mcp_raw.py JSON

The JSON has `tools`, what it lists; `about`, more that it says of itself; `noise`, lines that it
prints first; `large`, how many characters the result of each call has.
"""

import json
import sys

WANTED = json.loads(sys.argv[1])


def answer(method: str, params: dict) -> dict | None:
    match method:
        case "initialize":
            about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "raw", "version": "1"}}
            return {
                "protocolVersion": params["protocolVersion"],
                **about,
                **WANTED.get("about", {}),
            }
        case "tools/list":
            return {"tools": WANTED.get("tools", [])}
        case "tools/call":
            text = "x" * WANTED.get("large", 0) or f"called {params['name']}"
            return {"content": [{"type": "text", "text": text}]}
        case _:
            return None


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


for line in WANTED.get("noise", []):
    say(line)
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result = answer(message["method"], message.get("params") or {})
    known = {"result": result} if result else {"error": {"code": -32601, "message": "no"}}
    say(json.dumps({"jsonrpc": "2.0", "id": message["id"], **known}))
