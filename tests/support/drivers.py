"""Drivers of the crash matrix: a framework's agent, and its state as text in a folder."""

import importlib.util
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from asking_agent import Killed
from pictures import png

from ayes.adapters.kernel import Kernel

#: What the model calls in its only turn with calls: id, tool and arguments of each.
type Wishes = Sequence[tuple[str, str, dict[str, Any]]]
#: What the tool `chart` returns: a text, and a picture that is too large for a fact.
CAPTION = "Refunds by month."
CHART = png(160, 160, level=0)


class Driver(ABC):
    """One process of an agent. What it saves outlives it."""

    thread = "order-17"
    #: What the framework or its adapter raises for a call without an id; None: it takes it.
    refuses_no_id: type[Exception] | None = None

    def __init__(
        self, kernel: Kernel, folder: Path, wishes: Wishes, runs: list[dict[str, Any]]
    ) -> None:
        self.kernel, self.folder, self.wishes, self.runs = kernel, folder, wishes, runs
        self.dies_in_the_tool = False

    def refund(self, amount: float) -> str:
        """Pay money back."""
        self.runs.append({"amount": amount})
        if self.dies_in_the_tool:
            raise Killed
        if not amount:
            raise ValueError("nothing to pay back")
        return f"{amount:g} were paid back."

    def hurry(self, amount: float) -> str:
        """As `refund`, of which people are asked for a moment only."""
        return self.refund(amount)

    @abstractmethod
    def chart(self, amount: float) -> Any:
        """Draw a chart: `CAPTION` and `CHART` in the framework's own form."""

    @abstractmethod
    async def start(self, *, stream: bool = False) -> list[str] | None:
        """Begin a conversation; what the model read as results, or None if it waits."""

    @abstractmethod
    async def resume(self) -> list[str] | None:
        """Go on with what was saved; as `start`."""

    @abstractmethod
    async def more(self) -> list[str] | None:
        """Go on after the end: the user says something, the model calls the same; as `start`."""

    @abstractmethod
    async def forge(self, arguments: dict[str, Any]) -> list[str] | None:
        """Resume with a made-up approval, and with these arguments."""

    def saved(self) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in self.folder.glob("*.json")}

    def restore(self, saved: dict[str, bytes]) -> None:
        for file in self.folder.glob("*.json"):
            file.unlink()
        for name, content in saved.items():
            (self.folder / name).write_bytes(content)


class Lazily:
    """A driver whose framework is imported when it is used, and skipped where it is absent."""

    def __init__(self, framework: str, module: str) -> None:
        self.framework, self.module = framework, module

    def load(self) -> type[Driver]:
        if importlib.util.find_spec(self.framework) is None:
            pytest.skip(f"{self.framework} is not installed here")
        return importlib.import_module(self.module).Agent  # type: ignore[no-any-return]


DRIVERS = [
    pytest.param(Lazily("anthropic", "driver_anthropic"), id="anthropic"),
    pytest.param(Lazily("pydantic_ai", "driver_pydantic_ai"), id="pydantic_ai"),
    pytest.param(Lazily("langchain", "driver_langchain"), id="langchain"),
    pytest.param(Lazily("agents", "driver_openai_agents"), id="openai_agents"),
]

__all__ = ["CAPTION", "CHART", "DRIVERS", "Driver", "Lazily", "Wishes", "json"]
