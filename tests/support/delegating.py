"""Agents that ask agents that ask agents, the last of which asks for money; and what serves them.

    python delegating.py KIND STORE TILL

runs the programs of one kind as a process of its own, until it is killed.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any, Final, Protocol

from shop import rule

from ayes.consumers.delegator import SubAgent
from ayes.consumers.executor import Registered
from ayes.consumers.model import ModelReply, ModelRequest
from ayes.consumers.worker import Reaction
from ayes.ledger.tool_runner import idempotency_key
from ayes.ops.workers import reactions, working
from ayes.projections.history import Outcome
from ayes.schemas import events as e
from ayes.schemas.content import words
from ayes.schemas.tools import ToolSpec

#: The levels of agents below the first one.
DEPTH: Final = 3
#: How long a program that was killed counts as alive.
ACK_WAIT_S: Final = 0.4
KINDS: Final = ("gate", "model", "delegator", "executor")
POLICY: Final = rule("freely", "allow", tools="ask_*") + rule("money", "ask", 'voters = ["*"]')
AGENTS: Final = {
    f"ask_{level}": SubAgent(
        agent=f"level-{level}",
        model=f"script:{level}",
        instructions="You are asked by an agent.",
        tools=(f"ask_{level + 1}",) if level < DEPTH else ("refund",),
    )
    for level in range(1, DEPTH + 1)
}
REFUND: Final = ToolSpec(
    name="refund", schema='{"type":"object"}', run_by="executor", repeatable=True
)


class Script:
    """The models: each passes the task to the agent below it, and the last one asks for money."""

    async def reply(self, question: ModelRequest) -> ModelReply:
        await asyncio.sleep(0)
        level = question.model.removeprefix("script:")
        told = [words(one.text) for one in question.history if isinstance(one, Outcome)]
        if told:
            return ModelReply((e.Text(f"{level}({told[0]})"),))
        below = f"ask_{int(level) + 1}"
        if below in AGENTS:
            return ModelReply((e.Wish(below, '{"task":"Refund it."}'),))
        return ModelReply((e.Wish("refund", '{"amount":1}'),))


class Till(Protocol):
    """Pays money back."""

    def refund(self, amount: int) -> str: ...


class TillFile:
    """A file with the idempotency key of each refund in a line, which processes share."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    @property
    def refunded(self) -> set[str]:
        return set(self._path.read_text().splitlines())

    def refund(self, amount: int) -> str:
        with self._path.open("a") as lines:
            lines.write(f"{idempotency_key.get()}\n")
        return f"refunded {amount}"


def programs(kind: str, till: Till) -> list[tuple[str, Reaction[Any, Any]]]:
    """The role and the reactions of the programs of a kind."""
    tools = {"refund": Registered(REFUND, till.refund)}
    return reactions([kind], models={"script": Script()}, tools=tools, agents=AGENTS)


async def _run(kind: str, store: Path, till: Path) -> None:
    serving = programs(kind, TillFile(till))
    async with working(serving, store=store, ack_wait_s=ACK_WAIT_S) as ended:
        await ended


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
