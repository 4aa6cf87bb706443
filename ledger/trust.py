"""The trust file: whom a site trusts to say whose a key is.

It is outside of the log, so that no fact can change it, and a copy is laid beside each program that
checks signatures. A site without one checks none.

    log = "4f6b8c1de2f04a7c9d3e5b6a7c8d9e0f"                # its identity
    roots = ["board-1+1a2b3c4d+AQ...=", "board-2+5e6f7a8b+AQ...="]
    roots_needed = 2
    rp = "ayes.example.com"                                 # of passkeys: their domain,
    origins = ["https://sign.ayes.example.com"]             # and the pages on which they sign
    sealer = "approvals.example.com/4f6b...+9a0b1c2d+AQ...="

    [signed_since]
    shop = 120_000                                          # a fact's number
"""

import re
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from ayes.ledger.seal import VerifierKey
from ayes.ledger.signing import Signature, key_id, policy_digest
from ayes.schemas.codec import Fact
from ayes.schemas.durations import seconds
from ayes.schemas.errors import BadInput
from ayes.schemas.events import PolicyApplied
from ayes.schemas.ids import is_token
from ayes.schemas.settings import lasting
from ayes.schemas.slots import ORGANISATION
from ayes.schemas.toml_files import TomlModel, mistake, read_text, read_toml

#: Its name beside the settings.
NAME: Final = "ayes-trust.toml"
_DAY_S: Final = 86_400
_LOG: Final = re.compile("[0-9a-f]{32}")
_DOMAIN: Final = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,62})(\.[a-z0-9]([a-z0-9-]{0,62}))*")


def _checked_log(log: str) -> str:
    if not _LOG.fullmatch(log):
        raise ValueError(f"{log!r} is not the identity of a log. `ayes trust show` prints it.")
    return log


def _checked_key(text: str) -> str:
    try:
        return str(VerifierKey.parse(text))
    except BadInput as problem:
        raise ValueError(str(problem)) from None


def _checked_sealer(text: str) -> str:
    return text and _checked_key(text)


def _checked_rp(rp: str) -> str:
    try:
        ip_address(rp.strip("[]"))
    except ValueError:
        if rp and not _DOMAIN.fullmatch(rp):
            raise ValueError(f"{rp!r} is not a domain name such as ayes.example.com.") from None
        return rp
    raise ValueError(
        f"browsers make no passkey for an address such as {rp}. Write localhost, or a domain name."
    )


type _Keys = Annotated[
    tuple[Annotated[str, AfterValidator(_checked_key)], ...], Field(strict=False)
]


class Lost(TomlModel):
    """How a person who has lost all keys gets another one without the roots."""

    #: How many others must confirm it, with keys of their own.
    people: Annotated[int, Field(ge=2)] = 2
    #: How long after the last of them it counts.
    after: Annotated[str, lasting(60, 30 * _DAY_S, "a time from 60s to 30d.")] = "24h"

    @property
    def after_s(self) -> float:
        return seconds(self.after) or 0


class Trust(TomlModel):
    """A trust file."""

    #: The identity of the log.
    log: Annotated[str, AfterValidator(_checked_log)]
    #: The keys in which the trust rests, and how many of them confirm a person's key together.
    roots: Annotated[_Keys, Field(min_length=1)]
    roots_needed: Annotated[int, Field(ge=1)] = 1
    #: Keys that confirm those of people as well, and how many of them together.
    confirmers: _Keys = ()
    confirmers_needed: Annotated[int, Field(ge=1)] = 1
    #: Keys that sign policies, and how many of them together. None: policies need no signature.
    policies: _Keys = ()
    policies_needed: Annotated[int, Field(ge=1)] = 1
    #: The domain of people's passkeys, their RP ID; empty: nobody votes with one.
    rp: Annotated[str, AfterValidator(_checked_rp)] = ""
    #: The origins of the pages on which passkeys sign, each of that domain or below it.
    origins: Annotated[tuple[str, ...], Field(strict=False)] = ()
    #: None: only the roots and the confirmers help.
    lost: Lost | None = None
    #: The key that seals the log; empty: whoever verifies names it.
    sealer: Annotated[str, AfterValidator(_checked_sealer)] = ""
    #: By workspace, the number of the fact from which on no call runs on votes that are not signed,
    #: nor by a policy that is not.
    signed_since: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _can_be_met(self) -> "Trust":
        if self.sealer and self.log not in VerifierKey.parse(self.sealer).name.split("/"):
            raise mistake(f"sealer is the key of another log than {self.log}.", "sealer")
        for name in ("roots", "confirmers", "policies"):
            keys, needed = getattr(self, name), getattr(self, f"{name}_needed")
            if len({VerifierKey.parse(one).public for one in keys}) < len(keys):
                raise mistake(f"{name} has a key twice.", name)
            if keys and needed > len(keys):
                raise mistake(
                    f"{name}_needed is {needed}, and {name} has {len(keys)} of them.",
                    f"{name}_needed",
                )
        if bool(self.rp) != bool(self.origins):
            why = "rp is the domain of passkeys, and origins are the pages on which they sign: "
            raise mistake(f"{why}write both, or none.", "rp" if self.rp else "origins")
        for origin in self.origins:
            if (problem := _not_below(self.rp, origin)) is not None:
                raise mistake(problem, "origins")
        if self.policies and not self.signed_since:
            why = "policies are signed in the workspaces of [signed_since], and it names none."
            raise mistake(why, "policies")
        for workspace in self.signed_since:
            if not is_token(workspace):
                raise mistake(f"{workspace!r} is not the name of a workspace.", "signed_since")
        return self

    @cached_property
    def quorums(self) -> tuple[tuple[dict[str, VerifierKey], int], ...]:
        """Keys by id, and how many of them confirm a person's key together."""
        named = ((self.roots, self.roots_needed), (self.confirmers, self.confirmers_needed))
        return tuple(
            ({key_id(one): one for one in map(VerifierKey.parse, keys)}, needed)
            for keys, needed in named
        )

    def wants_signed(self, workspace: str, decided: int | None = None) -> bool:
        """Whether a call runs on signed votes alone, whatever policies say.

        Args:
            decided: the number of its decision; None: it has none yet.
        """
        since = self.signed_since.get(workspace)
        return since is not None and (decided is None or decided >= since)

    def objection_to_policy(self, fact: Fact) -> str | None:
        """Why a version of a policy does not count here; None if it does."""
        owner, event = fact.slot.workspace, fact.event
        since = self.signed_since.get(owner)
        if owner == ORGANISATION:
            since = min(self.signed_since.values(), default=None)
        if not self.policies or since is None or fact.seq < since:
            return None
        if not isinstance(event, PolicyApplied):
            return None  # it is void in any case
        digest = policy_digest(self.log, owner, int(fact.slot.tail[1]), event.text)
        keys = {key_id(one): one for one in map(VerifierKey.parse, self.policies)}
        parsed = [one for one in map(Signature.parse, event.signatures) if one and not one.until]
        by = {one.key for one in parsed if one.key in keys and one.is_of(keys[one.key], digest)}
        if len(by) >= self.policies_needed:
            return None
        return f"{len(by)} of {self.policies_needed} keys of the trust file have signed it"


def _not_below(rp: str, origin: str) -> str | None:
    """Why passkeys of this domain cannot sign on pages of that origin; None if they can."""
    try:
        parts = urlsplit(origin)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port, parts = "", None, urlsplit("")
    is_default = port == {"https": 443, "http": 80}.get(parts.scheme)
    if origin != f"{parts.scheme}://{host}{'' if port is None else f':{port}'}" or is_default:
        return f"{origin!r} is not an origin such as https://ayes.example.com, without a path."
    if host != rp and not host.endswith(f".{rp}"):
        return f"{origin} is neither {rp} nor below it, so no browser uses a passkey of {rp} there."
    is_local = host == "localhost" or host.endswith(".localhost")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_local):
        return f"{origin} is without TLS, and browsers have passkeys only with it. Write https://."
    return None


#: Confirms nobody's key: that of a site without a file.
NOBODY: Final = Trust.model_construct(log="", roots=(), confirmers=(), signed_since={})


def read_trust(path: Path) -> Trust:
    """Read a trust file.

    Raises:
        BadFile: with the line of each mistake.
    """
    return read_toml(Trust, read_text(path), str(path))
