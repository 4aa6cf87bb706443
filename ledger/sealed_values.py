"""The cryptography of sealed values: AES-GCM under a key of the thread.

    key         32 random bytes of a thread; its commitment, SHA-256("ayes key 1" ‖ key), is a fact
    encryption  AES-256-GCM under HMAC-SHA256(key, "ayes seal 1")
    bound to    the subject of the request and the JSON pointer, each as <length>:<text>
    nonce       the first 12 bytes of HMAC-SHA256(key, "ayes nonce 1" ‖ bound to ‖ plain text)
    plain text  the raw JSON of one text or number, with blanks up to a multiple of 32 bytes

The nonce depends on all that is encrypted, so that a request that is repeated has the same bytes;
it is keyed, so nobody without the key can try values against it. AES-GCM does not bind a key: a
ciphertext can be made that opens under two. So a key counts only if its commitment is the thread's.
"""

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import quote, quote_plus

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec.structs import astuple, replace

from ayes.schemas import events as e
from ayes.schemas import strict_json
from ayes.schemas.base64url import base64url
from ayes.schemas.sealed import SEALED, TOKEN

KEY_BYTES: Final = 32
_NONCE: Final = 12
_BLOCK: Final = 32
#: The least number of characters of a value that is taken out of outputs: a shorter one is in many
#: texts by chance.
_SHORTEST: Final = 4


class Unopened(Exception):
    """A sealed value cannot be opened. It says nothing about the value."""


class Opened:
    """Arguments in plain text, which nothing prints."""

    __slots__ = ("arguments", "values")

    def __init__(self, arguments: str, values: Mapping[str, str] | None = None) -> None:
        #: Raw JSON.
        self.arguments = arguments
        #: By pointer, the raw JSON of what was sealed.
        self.values = values or {}

    def __repr__(self) -> str:
        return "Opened(...)"

    def scrubbed[E: e.ToolReturned | e.ToolFailed | e.InDoubt](self, outcome: E) -> E:
        """The outcome with `SEALED`, or stars, in the place of each value that was sealed and is in
        its texts and links: as it was written, or as JSON, Python or a URL has it. Files are not
        looked into.
        """
        match outcome:
            case e.ToolReturned():
                return replace(outcome, output=self._without(outcome.output))
            case e.ToolFailed():
                return replace(outcome, error=self.said(outcome.error))
            case _:
                return replace(outcome, text=self.said(outcome.text))

    def _without(self, output: e.Content) -> e.Content:
        if isinstance(output, str):
            return self.said(output)
        return tuple(self._part_without(one) for one in output)

    def _part_without(self, part: e.Text | e.Media) -> e.Text | e.Media:
        if isinstance(part, e.Text):
            return replace(
                part,
                text=self.said(part.text),
                citations=tuple(
                    e.Citation(*map(self.said, astuple(one))) for one in part.citations
                ),
            )
        match source := part.source:
            case e.Linked(url=url):
                source = replace(source, url=self.said(url))
            case e.Uploaded(id=id_):
                source = replace(source, id=self.said(id_))
            case _:
                pass
        name, detail = self.said(part.name), self.said(part.detail)
        return replace(part, source=source, name=name, detail=detail)

    def said(self, text: str) -> str:
        """A text in the same way."""
        spelled = {
            one for raw in self.values.values() for one in _spelled(raw) if len(one) >= _SHORTEST
        }
        # All at once, the longest first: one value may be a part of another.
        longest_first = "|".join(map(re.escape, sorted(spelled, key=len, reverse=True)))
        return re.sub(longest_first, _hidden, text) if spelled else text


#: For what has no arguments, or none that are sealed.
NOTHING_SEALED: Final = Opened("{}")


def commitment(key: bytes) -> str:
    """What is recorded of a key: 64 hex digits."""
    return hashlib.sha256(b"ayes key 1" + key).hexdigest()


def seal(key: bytes, subject: str, pointer: str, raw: str) -> str:
    """The token of a value (raw JSON) in that place of the request on this subject."""
    bound = _bound(subject, pointer)
    plain = raw.encode()
    plain += b" " * (-len(plain) % _BLOCK)
    nonce = _hmac(key, b"ayes nonce 1" + bound + plain)[:_NONCE]
    sealed = nonce + _cipher(key).encrypt(nonce, plain, bound)
    return f"ayes:sealed:1:{commitment(key)[:16]}:{base64url(sealed)}"


def unseal(key: bytes, committed: str, subject: str, pointer: str, token: str) -> str:
    """The raw JSON of a sealed value.

    Args:
        committed: the thread's commitment, as it is recorded.

    Raises:
        Unopened: the key is not the thread's, the token is of another place, or it does not hold
            one text or number.
    """
    found = TOKEN.fullmatch(token) if isinstance(token, str) else None
    if found is None or commitment(key) != committed or not committed.startswith(found[1]):
        raise Unopened("another key")
    try:
        sealed = base64.urlsafe_b64decode(found[2] + "=" * (-len(found[2]) % 4))
        plain = _cipher(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], _bound(subject, pointer))
        raw = plain.decode().rstrip(" ")
        value = strict_json.read(raw)
    except (InvalidTag, ValueError):  # also of texts that are not UTF-8, and of bad JSON
        raise Unopened("another place, or a changed token") from None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Unopened("more than one value")
    # Each value has one token, so that bits which base64 ignores change nothing.
    if seal(key, subject, pointer, raw) != token:
        raise Unopened("another encoding")
    return raw


def _hidden(found: re.Match[str]) -> str:
    """What stands in the place of a value; never longer, since an output may be as large as can be
    recorded.
    """
    return SEALED if len(found[0]) >= len(SEALED) else "*" * len(found[0])


def _spelled(raw: str) -> Iterator[str]:
    """A value (raw JSON) as a text may have it."""
    value = strict_json.read(raw)
    yield raw.strip().removeprefix('"').removesuffix('"')
    yield str(value)
    if isinstance(value, str):
        for written in (json.dumps(value), json.dumps(value, ensure_ascii=False), repr(value)):
            yield written[1:-1]
        yield from (quote(value), quote(value, safe=""), quote_plus(value))


def _cipher(key: bytes) -> AESGCM:
    return AESGCM(_hmac(key, b"ayes seal 1"))


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _bound(*texts: str) -> bytes:
    return b"".join(b"%d:%b" % (len(raw), raw) for raw in (text.encode() for text in texts))
