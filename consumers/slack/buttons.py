"""The values of buttons in Slack: sealed, so that they say nothing and nobody can make one.

A value holds the verdict, the call, the digest and the channel of its message, encrypted and
authenticated (AES-SIV, RFC 5297). So a click names what was shown, and nothing is looked up, even
long after the decision. The value is bound to these four and not to a person: the person is the one
who clicks. A click has an effect only while the call is pending, and only as the vote of a person
who may cast it.
"""

import base64
import binascii
import hmac
from typing import Final, Literal

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from msgspec import Struct

from ayes.schemas.errors import BadId, BadSlot
from ayes.schemas.slots import CallRef

#: What the key is used for, so that nothing else that is made from it fits.
_PURPOSE: Final = b"ayes slack buttons 1"


class Button(Struct, frozen=True, array_like=True):
    """What a button says."""

    verdict: Literal["approve", "deny"]
    #: As `workspace/thread/call`.
    call: str
    digest: str
    channel: str

    @property
    def ref(self) -> CallRef:
        return CallRef.parse(self.call)


class Buttons:
    """Seals and opens the values of buttons.

    Args:
        key: that of links (`ayes.schemas.links`).
    """

    def __init__(self, key: bytes) -> None:
        self._siv = AESSIV(hmac.digest(key, _PURPOSE, "sha512"))

    def seal(self, button: Button) -> str:
        """The value of a button, URL-safe; the same for the same button."""
        return base64.urlsafe_b64encode(self._siv.encrypt(_encoder.encode(button), None)).decode()

    def open(self, value: str) -> Button | None:
        """What a value is about; None if it is not one of ours."""
        try:
            found = _decoder.decode(self._siv.decrypt(base64.urlsafe_b64decode(value), None))
            CallRef.parse(found.call)
        except (InvalidTag, binascii.Error, ValueError, BadId, BadSlot):
            return None
        return found


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Button)
