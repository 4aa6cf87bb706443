"""The names of tools, the ids that clients send, and the sealed names that clients are given.

Calls have the names that the kernel gives them (`ayes.adapters.names`). Claude Code sends an id
with each call (`_meta["claudecode/toolUseId"]`). Other clients send none, since JSON-RPC ids change
with each attempt.
"""

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from ayes.schemas.slots import CallRef
from ayes.schemas.tool_names import is_tool_name

#: Where clients send a stable id of the call, in their own namespaces.
CALL_IDS: Final = ("claudecode/toolUseId",)
#: As many characters of base32 as 200 bits have.
_HASHED: Final = 40
_SEPARATOR: Final = "__"
_READABLE: Final = 40
_TAG: Final = 16
_MADE: Final = re.compile(r".*-[a-z2-7]{16}", re.ASCII | re.DOTALL)


class Codec(Protocol):
    """As of `mcp.server.request_state.RequestStateCodec`."""

    def seal(self, payload: bytes) -> str: ...
    def unseal(self, token: str) -> bytes: ...


class BadSeal(Exception):
    """A client sent an id that this gateway did not give to this requester."""


def hashed(prefix: str, *parts: str) -> str:
    """A token of subjects made of any texts: equal texts give equal tokens."""
    digest = hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode()).digest()
    return prefix + base64.b32encode(digest).decode().lower()[:_HASHED]


def sent_id(meta: Mapping[str, Any] | None) -> str:
    """The id that a client sent with a call; empty if it sent none."""
    found = ((meta or {}).get(key) for key in CALL_IDS)
    return next((one for one in found if isinstance(one, str) and one), "")


def tool_name(server: str, tool: str) -> str:
    """The name of a server's tool in the ledger: `server/tool`.

    A name that the ledger does not take is made readable and gets a part of its digest, as does one
    that looks as if it had been made here, so that no two tools of a server have the same.
    """
    name = f"{server}/{tool}"
    if is_tool_name(name) and not _MADE.fullmatch(tool):
        return name
    readable = "".join(one if is_tool_name(one) else "-" for one in tool)[:_READABLE]
    return f"{server}/{readable}-{hashed('', tool)[:_TAG]}"


def offered_names(tools: Sequence[tuple[str, str]], reserved: frozenset[str]) -> list[str]:
    """The names under which clients see tools: their own where unique, else after the server's. A
    server that names a tool as another's is called here gets a name with a digest, as the other
    does: it takes nobody's place.

    Args:
        tools: the server's name and the tool's.
        reserved: names that the gateway uses itself.
    """
    counts = Counter(tool for _, tool in tools)
    names = [
        tool if counts[tool] == 1 and tool not in reserved else f"{server}{_SEPARATOR}{tool}"
        for server, tool in tools
    ]
    # A digest may have been guessed, once. What repeats then is one server's own repetition.
    for _ in range(3):
        counts = Counter(names)
        names = [
            name if counts[name] == 1 else f"{name}-{hashed('', name, *whose)[:_TAG]}"
            for name, whose in zip(names, tools, strict=True)
        ]
    return names


def sealed(codec: Codec, kind: str, requester: str, call: CallRef) -> str:
    """A name of a call that only this gateway can make, for one purpose and one requester."""
    return codec.seal(json.dumps([kind, requester, str(call)]).encode())


def unsealed(codec: Codec, kind: str, requester: str, token: object) -> CallRef:
    """The call that such a name stands for.

    Raises:
        BadSeal: it is forged, for another purpose, or another requester's.
    """
    if not isinstance(token, str):
        raise BadSeal
    try:
        found = json.loads(codec.unseal(token))
    except Exception:  # noqa: BLE001 - a codec may raise anything, and none of it is a yes
        raise BadSeal from None
    match found:
        case [str(one), str(name), str(call)] if (one, name) == (kind, requester):
            return CallRef.parse(call)
        case _:
            raise BadSeal
