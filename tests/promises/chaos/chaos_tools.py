"""The tools of the chaos: each writes down when it starts and ends, and does nothing else."""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

from journal import Journal

from ayes.consumers.tools import Tools, idempotency_key
from ayes.schemas.tools import ToolSpec

#: The workspace of the services, and the beginning of the names of those of the rivals.
WORKSPACE, RIVALS = "load", "rival"
POLICY = """
may_reconcile = ["cai"]
[[rule]]
name = "reads"
tools = ["look", "find"]
then = "allow"
[[rule]]
name = "payments"
tools = ["pay", "slow"]
then = "ask"
voters = ["ana", "ben"]
[[rule]]
name = "wires"
tools = ["wire"]
then = "ask"
voters = ["ana", "ben", "cai"]
votes_needed = 2
[[rule]]
name = "nobody answers"
tools = ["lapse"]
then = "ask"
voters = ["dora"]
expires_in_s = 8
[[rule]]
name = "never"
tools = ["drop"]
then = "block"
"""
#: How long each runs at least and at most, in seconds.
LASTS = {
    "look": (0.0, 0.05),
    "pay": (0.0, 0.5),
    "drop": (0.0, 0.0),
    "lapse": (0.0, 0.0),
    "find": (0.0, 0.3),
    "wire": (0.0, 0.3),
    "slow": (2.0, 8.0),
}
#: Those that a client runs; executors run the others.
CLIENTS = ("look", "pay", "drop", "lapse")
_SCHEMA = (
    '{"type":"object","properties":{"order":{"type":"string"},"amount":{"type":"integer"}},'
    '"required":["order","amount"]}'
)
tools = Tools()


def spec(name: str) -> ToolSpec:
    return ToolSpec(name=name, schema=_SCHEMA)


def function(name: str, journal: Journal, author: str) -> Callable[..., Awaitable[str]]:
    """The tool, for a process that records facts under this name."""

    async def tool(order: str, amount: int) -> str:
        run = {"call": idempotency_key.get(), "tool": name, "process": author}
        journal.note("tool", did="started", arguments={"order": order, "amount": amount}, **run)
        await asyncio.sleep(random.uniform(*LASTS[name]))
        journal.note("tool", did="ended", **run)
        return f"{name} {order}"

    return tool


# An executor imports this; programs that run tools themselves call `function`.
if folder := os.environ.get("CHAOS_JOURNAL"):
    _journal = Journal(Path(folder), os.environ["CHAOS_PROCESS"])
    for name in LASTS:
        if name not in CLIENTS:
            tools.add(name=name, repeatable=name == "find")(function(name, _journal, "executor"))
