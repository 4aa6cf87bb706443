"""Names of tools, as agents and MCP servers have them, and the token that stands for one in a
subject.

    refund                  refund
    files.read              files=2Eread
    github/create_issue     github=2Fcreate_issue
    _internal               =5Finternal

A name is 1 to 128 characters of `A-Z a-z 0-9 _ - . /`: what MCP allows (specification of
2025-11-25, tools, "Tool Names"), and the slash of SEP-986. The token of a name that was one already
is the name itself. No name has `=`, so no two names have the same token, and each token is the form
of one name alone (docs/decisions/0042).
"""

import re
from functools import lru_cache
from typing import Final

from ayes.schemas.errors import BadId, BadToolName

MAX_CHARACTERS: Final = 128
_NAME: Final = re.compile(rf"[A-Za-z0-9_./-]{{1,{MAX_CHARACTERS}}}", re.ASCII)
_ESCAPES: Final = {".": "=2E", "/": "=2F"}
#: A leading underscore marks the ledger's own tokens.
_UNDERSCORE: Final = "=5F"
_ESCAPED: Final = re.compile("[./]")


def is_tool_name(value: str) -> bool:
    return _NAME.fullmatch(value) is not None


def tool_name(value: object) -> str:
    """Return `value` if it can be a tool's name.

    Raises:
        BadToolName: it is not 1 to 128 characters of `[A-Za-z0-9_./-]`.
    """
    if isinstance(value, str) and is_tool_name(value):
        return value
    raise BadToolName(value)


def tool_token(name: str) -> str:
    """The token of a subject that stands for a tool.

    Raises:
        BadToolName: it cannot be a tool's name.
    """
    escaped = _ESCAPED.sub(lambda found: _ESCAPES[found[0]], tool_name(name))
    return _UNDERSCORE + escaped[1:] if escaped.startswith("_") else escaped


@lru_cache(maxsize=8192)
def tool_of_token(token: str) -> str:
    """The name of the tool for which a token stands.

    Raises:
        BadId: it stands for none, or is not the one form of its name.
    """
    name = token
    for character, escape in (*_ESCAPES.items(), ("_", _UNDERSCORE)):
        name = name.replace(escape, character)
    if not is_tool_name(name) or tool_token(name) != token:
        raise BadId("tool", token)
    return name
