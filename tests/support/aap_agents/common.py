"""What the agents of `test_aap_conformance.py` share: a tool that leaves a trace, and the loop.

Each agent is a program in the environment of its framework, without anything of this repository.
It reads orders from its input, one a line, and prints what its model read about each.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Final

TOOL: Final = "refund"
DESCRIPTION: Final = "Pay an order back."


def refund(order: str) -> str:
    """Pay an order back."""
    file = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{order}\n".encode())
        os.fsync(file)
    finally:
        os.close(file)
    return f"{order} was paid back."


def provider() -> tuple[str, str]:
    """The URL of the provider and the token of this agent."""
    return os.environ["PROVIDER"], os.environ["TOKEN"]


def serve(handle: Callable[[str], str]) -> None:
    """Do each order of the input, and print what the model read last."""
    _say({"ready": True})
    for line in sys.stdin:
        order = line.strip()
        _say({"order": order, "read": handle(order)})


def _say(told: object) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
