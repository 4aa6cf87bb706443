"""The tools that an executor can run: Python functions with contracts made from their signatures.

    tools = Tools()

    @tools.add(repeatable=True)
    def list_orders(customer: str) -> list[str]:
        "The customer's open orders."
        ...

    ayes up --tools shop.tools:tools -w shop     # or: ayes work executor --tools shop.tools:tools

A function may be `async`; any other runs in a thread of its own. The model reads its return value
(a string as it is, anything else as JSON), or its exception as a failure: the class and the text,
or the text alone of a `ToolError`. A tool that lost its connection halfway raises `EffectUnknown`,
and the call is in doubt.

A tool may have a lookup: a function with the same parameters that an executor asks, after a crash,
whether the call has run. It returns what the tool returned, or `NOT_DONE`:

    @tools.add(lookup=find_refund)
    def refund(order: str) -> str: ...

`idempotency_key.get()` is `workspace/thread/call`, the same each time a repeatable tool is started
for one call, and for its lookup: pass it to the systems that the tool calls, so that they recognise
a second start.
"""

import asyncio
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ayes.ledger.clients.services import Ledger
from ayes.ledger.patience import while_away
from ayes.ledger.tool_runner import (
    NOT_DONE,
    EffectUnknown,
    ToolError,
    ToolFunction,
    idempotency_key,
)
from ayes.schemas.errors import BadInput, BrokerRefused, OutcomeUnknown, Unavailable
from ayes.schemas.events import ToolClass, ToolRef
from ayes.schemas.tools import ToolSpec, declaration, spec_of

__all__ = [
    "NOT_DONE",
    "EffectUnknown",
    "Registered",
    "ToolError",
    "Tools",
    "idempotency_key",
    "load",
]

#: How long an executor tries to declare its tools while the broker does not answer.
DECLARE_S: Final = 60.0


class Registered(Struct, frozen=True):
    """A tool that can be run here: its contract, its function and its lookup."""

    spec: ToolSpec
    function: ToolFunction
    lookup: ToolFunction | None = None

    @property
    def version(self) -> str:
        return declaration(self.spec)[0]


class Tools(Mapping[str, Registered]):
    """A registry, by name."""

    def __init__(self) -> None:
        self._tools: dict[str, Registered] = {}

    def add[F: Callable[..., object]](
        self,
        *,
        name: str = "",
        repeatable: bool = False,
        governs: bool = False,
        secret: Sequence[str] = (),
        sealed: Sequence[str] = (),
        tool_class: ToolClass | None = None,
        undo: str = "",
        undo_within_s: float | None = None,
        title: str = "",
        lookup: ToolFunction | None = None,
    ) -> Callable[[F], F]:
        """Register a function; for use as a decorator.

        Args:
            name: the name for the model; the function's own by default.
            repeatable: it may be run again after a crash, under the same idempotency key.
            governs: it can change policy, so people are asked about each call whatever rules say.
            secret: the arguments that no notice shows, as JSON pointers such as `/password`; `*`
                stands for every key or index.
            sealed: the arguments that are sealed before they are requested, as JSON pointers
                without wildcards; the function receives them opened.
            tool_class: `reads`, `reversible`, `reversible_outside` or `irreversible`, for rules of
                policies; without one it counts as irreversible.
            undo: the name of the tool that undoes what it did.
            undo_within_s: for how long that is possible, from when it returned.
            title: what a call does in one line, as in `Refund {amount} for {order}`.
            lookup: tells what became of a call whose executor died. It takes the same arguments and
                returns what the tool returned, or `NOT_DONE` if the call had no effect and will
                have none any more. If it raises or returns None, the call is in doubt.

        Raises:
            BadInput: no schema can be made from its parameters, a key of its declaration is not
                valid, the name is taken, or its lookup has other parameters.
        """

        def register(function: F) -> F:
            spec = spec_of(
                function,
                name=name,
                repeatable=repeatable,
                run_by="executor",
                governs=governs,
                secret=secret,
                sealed=sealed,
                tool_class=tool_class,
                undo=undo,
                undo_within_s=undo_within_s,
                title=title,
            )
            if spec.name in self._tools:
                raise BadInput(
                    f"two tools have the name {spec.name!r}. Give one another with name=..."
                )
            if lookup is not None:
                _check_lookup(spec.name, function, lookup)
            self._tools[spec.name] = Registered(spec, function, lookup)
            return function

        return register

    async def declare(
        self, ledger: Ledger, workspace: str, *, patience_s: float = DECLARE_S
    ) -> tuple[ToolRef, ...]:
        """Record the contracts in a workspace, retrying until the broker confirms them.

        Returns the references that a thread is opened with.

        Raises:
            OutcomeUnknown: the broker did not confirm them within `patience_s`.
            BrokerRefused: these credentials may not declare tools.
        """
        until = asyncio.get_running_loop().time() + patience_s
        return tuple(
            [await _declared(ledger, workspace, tool.spec, until) for tool in self._tools.values()]
        )

    def of(self, group: str) -> "Tools":
        """The same tools, as those of another group of executors (`run_by`)."""
        found = Tools()
        for name, one in self._tools.items():
            spec = one.spec.model_copy(update={"run_by": group})
            found._tools[name] = replace(one, spec=spec)
        return found

    def __getitem__(self, name: str) -> Registered:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)


def _check_lookup(name: str, function: Callable[..., object], lookup: ToolFunction) -> None:
    try:
        inspect.signature(lookup).bind(**dict.fromkeys(inspect.signature(function).parameters))
    except TypeError as problem:
        raise BadInput(
            f"the lookup of tool {name} cannot be called with the tool's arguments: {problem}. "
            "Give it the same parameters."
        ) from None


async def _declared(ledger: Ledger, workspace: str, spec: ToolSpec, until: float) -> ToolRef:
    left_s = max(0.0, until - asyncio.get_running_loop().time())
    try:
        return await while_away(
            lambda: ledger.declare(workspace, spec), timeout_s=left_s, of=Unavailable
        )
    except BrokerRefused:
        raise
    except Unavailable as problem:
        raise OutcomeUnknown(
            f"it is not known whether tool {spec.name} is declared in {workspace}: {problem} "
            "Start this again when the broker answers: it is safe."
        ) from None


def load(place: str) -> Tools:
    """Import a registry from `module:name`, also from the current directory.

    Raises:
        BadInput: the module or the name does not exist, or is not a registry.
    """
    module_name, _, name = place.partition(":")
    if str(Path.cwd()) not in sys.path:
        # Last, so that a file there cannot replace a module of ours or of the standard library.
        sys.path.append(str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module_name), name or "tools")
    except ImportError as problem:
        raise BadInput(
            f"--tools {place}: {problem}. Write MODULE:NAME, as in shop.tools:tools."
        ) from None
    except AttributeError:
        raise BadInput(
            f"--tools {place}: module {module_name} has no {name or 'tools'!r}."
        ) from None
    if not isinstance(found, Tools):
        raise BadInput(f"--tools {place} is a {type(found).__name__}, not an ayes.Tools registry.")
    return found
