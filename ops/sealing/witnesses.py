"""The witnesses of a seal: the section `seal` of the settings, and asking them to sign.

A witness that is away, or does not know this log, stops nothing: its line is missing until it signs
again. One that signed what this log does not continue shows that the log has changed.
"""

import asyncio
import re
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from ayes.consumers.webhooks.endpoints import Endpoint
from ayes.consumers.webhooks.requests import HttpAnswer, Sender
from ayes.ledger.seal import Proofs, WitnessKey, WitnessPolicy, signatures_of
from ayes.ops.sealing.cosigning import request_of
from ayes.schemas.backoff import Backoff
from ayes.schemas.errors import BadFile, BadInput
from ayes.schemas.logs import get_logger
from ayes.schemas.toml_files import TomlModel, mistake

_log: Final = get_logger("ayes.ops.sealing.witnesses")

#: How long a checkpoint waits for an answer.
_TIMEOUT_S: Final = 5.0
#: A number of facts.
_SIZE: Final = re.compile("0|[1-9][0-9]{0,18}")
#: The pauses before a witness that did not sign is asked again.
PAUSES: Final = Backoff(1.0, 60.0)


def _checked_key(text: str) -> str:
    try:
        return str(WitnessKey.parse(text))
    except BadInput as problem:
        raise ValueError(str(problem)) from None


class WitnessSettings(TomlModel):
    """A witness, and where it is."""

    #: Its public key, as `ayes witness init` prints it.
    key: Annotated[str, AfterValidator(_checked_key)]
    url: str
    #: Whether it may be on this machine or in its network.
    allow_private: bool = False

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"{url!r} is not a URL. Write it as in https://witness.example.org.")
        return url.rstrip("/")


class SealSettings(TomlModel):
    """The section `seal` of the settings."""

    witnesses: Annotated[
        tuple[WitnessSettings, ...], Field(strict=False, alias="witness", min_length=1)
    ]
    #: How many of them should sign.
    quorum: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _can_be_met(self) -> "SealSettings":
        if len({WitnessKey.parse(one.key).public for one in self.witnesses}) < len(self.witnesses):
            raise mistake("two witnesses have the same key.", "witness")
        if len({WitnessKey.parse(one.key).name for one in self.witnesses}) < len(self.witnesses):
            raise mistake("two witnesses have the same name.", "witness")
        if self.quorum > len(self.witnesses):
            raise mistake(f"quorum is above the number of witnesses, {len(self.witnesses)}.")
        return self

    @property
    def policy(self) -> WitnessPolicy:
        keys = tuple(WitnessKey.parse(one.key) for one in self.witnesses)
        return WitnessPolicy(keys, self.quorum)


class AskedWitness:
    """A witness elsewhere, which signs one checkpoint after the other.

    Args:
        note: the last checkpoint, which it may have signed.
        size: of that one.
    """

    def __init__(self, settings: WitnessSettings, sender: Sender, note: str, size: int) -> None:
        self.key = WitnessKey.parse(settings.key)
        self._sender = sender
        self._endpoint = Endpoint(
            name=self.key.name,
            url=f"{settings.url}/add-checkpoint",
            secret="",
            origin="",
            allow_private=settings.allow_private,
            timeout_s=_TIMEOUT_S,
        )
        line = "".join(self.key.lines(signatures_of(note))) if self.key.signed(note) else ""
        #: The size that it signed last, as far as is known.
        self.size = size if line else 0
        #: Its line for a checkpoint of the size before.
        self._line = (self.size, line)
        #: Whether it does not take what is sealed for a continuation of that.
        self.contradicts = False
        self._pauses = PAUSES.pauses()
        self._again_at = 0.0

    def lacks(self, size: int) -> bool:
        """Whether it has not signed a checkpoint of this size, and can be asked now."""
        return self._line[0] != size and asyncio.get_running_loop().time() >= self._again_at

    async def sign(self, note: str, proofs: Proofs) -> str:
        """Its line for this checkpoint; empty if it gives none."""
        if self.lacks(proofs.size):
            try:
                answer = await self._ask(note, proofs)
            except BadFile as problem:  # without its tiles there is no proof
                answer = HttpAnswer(why=str(problem))
            line = "".join(self.key.lines(answer.text))
            if not answer.why and self.key.signed(note + line):
                self.size, self._pauses = proofs.size, PAUSES.pauses()
                self._line = (proofs.size, line)
            else:
                self._refused(answer)
        return self._line[1] if self._line[0] == proofs.size else ""

    async def _ask(self, note: str, proofs: Proofs) -> HttpAnswer:
        """Ask it, and once more if it has signed another size than is known."""
        self.contradicts = False
        old = min(self.size, proofs.size)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                answer = await self._send(old, note, proofs)
                size = _signed_size(answer)
                if size is not None and size != old:
                    self.size = size
                    if size <= proofs.size:
                        old = size
                        answer = await self._send(old, note, proofs)
        except TimeoutError:
            return HttpAnswer(why=f"it did not answer within {_TIMEOUT_S:g} s")
        # A conflict about this very size: what it signed has another root.
        is_other = answer.status == HTTPStatus.CONFLICT and _signed_size(answer) in {None, old}
        self.contradicts = is_other or answer.status == HTTPStatus.UNPROCESSABLE_ENTITY
        return answer

    async def _send(self, old: int, note: str, proofs: Proofs) -> HttpAnswer:
        proof = await asyncio.to_thread(proofs.consistency, old) if old else []
        content = request_of(old, proof, note)
        return await self._sender.send(self._endpoint, {"Content-Type": "text/plain"}, content)

    def _refused(self, answer: HttpAnswer) -> None:
        again_s = next(self._pauses)
        self._again_at = asyncio.get_running_loop().time() + again_s
        why = answer.why.replace("--allow-private", "allow_private = true")
        _log.warning(
            "a witness did not sign what is sealed",
            witness=self.key.name,
            problem=f"{why}: {answer.text[:200]}".strip(": \n") or "it signs with another key",
            again_s=again_s,
        )


def _signed_size(answer: HttpAnswer) -> int | None:
    """The size that a witness says it has signed, where that is not the one it was told."""
    text = answer.text.removesuffix("\n")
    is_size = answer.status == HTTPStatus.CONFLICT and _SIZE.fullmatch(text)
    return int(text) if is_size else None
