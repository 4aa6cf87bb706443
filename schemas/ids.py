"""Ids: the tokens that people choose, and generated event ids.

A token becomes one token of a NATS subject, so it has no dots, wildcards or spaces. A leading
underscore is reserved (`_policy`, `_tool`, `_grant`).
"""

import re
import sys
from collections.abc import Callable

from ayes.schemas.errors import BadId

if sys.version_info >= (3, 14):
    from uuid import uuid7
else:
    from uuid_utils import uuid7

_TOKEN = re.compile(r"[A-Za-z0-9-][A-Za-z0-9_-]{0,63}", re.ASCII)

type NewId = Callable[[], str]


def token(what: str, value: object) -> str:
    """Return `value` if it can be part of a subject; `what` names it in the error.

    Raises:
        BadId: it is not 1 to 64 characters of `[A-Za-z0-9_-]`, or starts with `_`.
    """
    if isinstance(value, str) and _TOKEN.fullmatch(value):
        return value
    raise BadId(what, value)


def is_token(value: str) -> bool:
    return _TOKEN.fullmatch(value) is not None


def new_id() -> str:
    """A new event id: a UUIDv7 (RFC 9562), so that ids sort by their time of creation."""
    return str(uuid7())
