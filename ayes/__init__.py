"""ayes: an event-sourced ledger of approvals for AI agents.

    from ayes import Ledger, Status

The public names are listed in `__all__` and loaded when they are first used. The modules behind
them are `ayes.schemas`, `ayes.ledger`, `ayes.projections`, `ayes.consumers`, `ayes.adapters` and
`ayes.ops`; each of these imports only from those before it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ayes.consumers.tools import Tools
    from ayes.ledger.clients.services import Ledger
    from ayes.ledger.lifecycle import Status
    from ayes.schemas.errors import (
        AlreadyDecided,
        AlreadyFilled,
        ApprovalsError,
        BadInput,
        BrokerAway,
        BrokerRefused,
        DeadlinePassed,
        NotAllowed,
        NotOpen,
        OutcomeUnknown,
        Refused,
        StillPending,
        TooLarge,
        Unavailable,
        UnknownCall,
        UnknownTool,
        WaitTimedOut,
    )
    from ayes.schemas.slots import CallRef, ThreadRef
    from ayes.schemas.tools import ToolSpec, spec_of

    __version__: str

__all__ = [
    "AlreadyDecided",
    "AlreadyFilled",
    "ApprovalsError",
    "BadInput",
    "BrokerAway",
    "BrokerRefused",
    "CallRef",
    "DeadlinePassed",
    "Ledger",
    "NotAllowed",
    "NotOpen",
    "OutcomeUnknown",
    "Refused",
    "Status",
    "StillPending",
    "ThreadRef",
    "TooLarge",
    "ToolSpec",
    "Tools",
    "Unavailable",
    "UnknownCall",
    "UnknownTool",
    "WaitTimedOut",
    "__version__",
    "spec_of",
]

_MODULES = {
    "Ledger": "ayes.ledger.clients.services",
    "Status": "ayes.ledger.lifecycle",
    "Tools": "ayes.consumers.tools",
    "CallRef": "ayes.schemas.slots",
    "ThreadRef": "ayes.schemas.slots",
    "ToolSpec": "ayes.schemas.tools",
    "spec_of": "ayes.schemas.tools",
}


def __getattr__(name: str) -> Any:  # PEP 562: the command line must not load what it does not use
    if name == "__version__":
        from importlib import metadata

        return metadata.version("ayes")
    if name not in __all__:
        raise AttributeError(f"module 'ayes' has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "ayes.schemas.errors")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
