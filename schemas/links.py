"""Links to a call, for one person: what a message about a call may carry.

    https://ayes.example.com/open/mF3k…

A link has a token and nothing else. The token is a keyed hash over a person, a call and a digest.
Nobody without the key can make one or learn anything from it, and nothing about it is stored. It
is resolved by making the tokens of the calls that are pending now, for the person who is *signed
in*, and comparing. So it leads only that person anywhere, stands for exactly the bytes that it was
sent about, and ends with the call. It is not a password: without signing in it opens nothing.
"""

import base64
import hmac
from collections.abc import Iterable
from typing import Final

from ayes.schemas.base64url import base64url
from ayes.schemas.people import plain
from ayes.schemas.slots import CallRef

#: The path below which the console resolves tokens.
OPEN: Final = "/open/"
#: The length of a key, in bytes.
KEY_BYTES: Final = 32
#: What the hash is for, so that no other use of the key has the same ones.
_PURPOSE: Final = "ayes link 1"
_ACCOUNT: Final = "ayes account 1"
#: The path at which a signed-in person binds an account, and how long a code for it lasts.
BIND: Final = "/bind/"
BIND_LASTS_S: Final = 600


def action_token(key: bytes, person: str, call: CallRef, digest: str) -> str:
    """The token of this call, waiting with this digest, for this person: 43 URL-safe characters.

    Args:
        key: `KEY_BYTES` secret bytes, the same for all programs of a site.
    """
    return keyed_token(key, _PURPOSE, plain(person), str(call), digest)


def find_call(
    key: bytes, person: str, token: str, waiting: Iterable[tuple[CallRef, str]]
) -> CallRef | None:
    """The call of a token among these calls and digests; None if it is of none, for this person.

    Every call is compared, so the time that it takes says nothing about the token.
    """
    head, given, found = _packed(_PURPOSE, plain(person)), token.encode(errors="replace"), None
    for call, digest in waiting:
        made = base64url(hmac.digest(key, head + _packed(str(call), digest), "sha256"))
        if hmac.compare_digest(made.encode(), given):
            found = call
    return found


def account_code(key: bytes, account: str, ends_at: int) -> str:
    """A code with which the person whose account this is can bind it, once signed in.

    Args:
        ends_at: in seconds since the epoch.
    """
    sealed = keyed_token(key, _ACCOUNT, account, str(ends_at))
    return f"{sealed}.{ends_at}.{base64url(account.encode())}"


def account_of(key: bytes, code: str, now: float) -> str:
    """The account of a code; empty if it has ended, or was not made with this key."""
    try:
        sealed, ends_at, encoded = code.split(".")
        account = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
        is_ours = hmac.compare_digest(sealed, keyed_token(key, _ACCOUNT, account, ends_at))
        return account if is_ours and now < int(ends_at) else ""
    except (ValueError, TypeError):  # not of this form, or with characters beyond ASCII
        return ""


def open_link(base_url: str, token: str) -> str:
    """The link of a token, at the console with this URL."""
    return f"{base_url.rstrip('/')}{OPEN}{token}"


def keyed_token(key: bytes, purpose: str, *parts: str) -> str:
    """A keyed hash (HMAC-SHA256) over these parts, for this purpose; URL-safe, without padding."""
    return base64url(hmac.digest(key, _packed(purpose, *parts), "sha256"))


def _packed(*parts: str) -> bytes:
    """With lengths, so that no two lists of parts have the same bytes."""
    return b"".join([b"%d:%b" % (len(raw := part.encode()), raw) for part in parts])
