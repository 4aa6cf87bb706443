"""Signing in with OpenID Connect: the authorization code flow with PKCE, a state and a nonce.

Authlib speaks the protocol (OpenID Connect Core 1.0, RFC 7636). What is ours is what it leaves to
its user: which settings are allowed, that an answer belongs to the browser that asked, and which
claims make somebody a reviewer. An answer that is not exactly as it should be signs nobody in.
"""

import asyncio
import time
from collections.abc import Awaitable, Mapping
from hmac import compare_digest
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct
from pydantic import field_validator, model_validator

from ayes.ledger.people import LONGEST
from ayes.ops.tokens import hash_of, new_secret
from ayes.ops.visitors import Role, Visitor
from ayes.schemas.errors import ApprovalsError, BadId, NotAllowed, Unavailable
from ayes.schemas.ids import token
from ayes.schemas.logs import get_logger
from ayes.schemas.settings import Names, Secret, lasting
from ayes.schemas.toml_files import TomlModel, checked_token, mistake

_log: Final = get_logger("ayes.interfaces.access.openid")

#: Where the provider sends people back to; it must know this URL.
CALLBACK: Final = "/sign-in/callback"
#: How long somebody may take at the provider, and how long it may take to answer us.
LASTS_S: Final = 600.0
_PATIENCE_S: Final = 10.0
#: Beyond so many people who are signing in, the first must begin again.
_MAX_SIGNING_IN: Final = 20_000
#: Signatures with a key that only the provider has; `none` and shared secrets are not among them.
_ALGORITHMS: Final = frozenset(
    f"{kind}{bits}" for kind in ("RS", "PS", "ES") for bits in (256, 384, 512)
) | {"EdDSA", "Ed25519"}


#: In the settings: everybody who can sign in, or all workspaces.
EVERY: Final = "*"


class Groups(TomlModel):
    """The groups whose members have a role; `*` is everybody who can sign in."""

    reviewer: Names = ()
    operator: Names = ()
    auditor: Names = ()

    def roles_of(self, groups: frozenset[str]) -> frozenset[Role]:
        return frozenset(
            role
            for role in (Role.REVIEWER, Role.OPERATOR, Role.AUDITOR)
            if not (groups | {EVERY}).isdisjoint(getattr(self, role))
        )


class OpenIdSettings(TomlModel):
    """The section `openid` of the settings."""

    #: Its `/.well-known/openid-configuration` has everything else about the provider.
    issuer: str
    client_id: str
    #: Empty: a public client.
    client_secret: Secret = ""
    scopes: Names = ("openid", "profile")
    #: The claim with the reviewer's name. The subject is never given to anybody else.
    reviewer_claim: str = "sub"
    groups_claim: str = "groups"
    #: For how long what it said of groups counts for votes through other doors than the console.
    groups_last: Annotated[
        str, lasting(60, LONGEST.total_seconds(), "a time of 1m to 1d. Write it as in 15m or 1h.")
    ] = "15m"
    roles: Groups
    #: The groups whose members may see a workspace, by its name, or all of them, by `*`; the group
    #: `*` is everybody. None: all people may see all workspaces.
    workspaces: dict[str, Names] | None = None

    @field_validator("issuer")
    @classmethod
    def _issuer_is_safe(cls, issuer: str) -> str:
        parts = urlsplit(issuer)
        if parts.scheme == "https" or parts.hostname in {"localhost", "127.0.0.1", "::1"}:
            return issuer
        raise mistake(f"issuer is {issuer!r}. It must begin with https://.")

    @field_validator("workspaces")
    @classmethod
    def _workspaces_are_named(cls, found: dict[str, Names] | None) -> dict[str, Names] | None:
        if found is not None and not any(found.values()):
            raise mistake("nobody may see any workspace. Write such as shop = ['shop-desk'].")
        for one in found or ():
            if one != EVERY:
                checked_token("workspace", one)
        return found

    def workspaces_of(self, groups: frozenset[str]) -> tuple[str, ...] | None:
        """The workspaces that members of these groups may see (none: all); None: not any."""
        if self.workspaces is None:
            return ()
        named = [
            one
            for one, whose in self.workspaces.items()
            if not (groups | {EVERY}).isdisjoint(whose)
        ]
        return () if EVERY in named else tuple(named) or None

    @model_validator(mode="after")
    def _complete(self) -> "OpenIdSettings":
        if "openid" not in self.scopes:
            raise mistake("scopes lacks 'openid', without which nobody is identified.", "scopes")
        if not any(self.roles.model_dump().values()):
            raise mistake("nobody has a role. Write such as reviewer = ['leads'].", "roles")
        return self


class GroupsClaim(NamedTuple):
    """What a provider says of somebody's groups."""

    groups: tuple[str, ...]
    #: Why it says nothing; empty if it does.
    problem: str = ""


class ProviderAccount:
    """An account at the provider, and the tokens with which it answers us about it."""

    def __init__(self, subject: str, tokens: Mapping[str, Any]) -> None:
        self.subject = subject
        self.tokens = tokens
        #: A refresh token may be good for one use.
        self.asking = asyncio.Lock()

    @property
    def access(self) -> dict[str, Any]:
        """The access token, without what lets the client renew it by itself."""
        return {name: self.tokens[name] for name in ("access_token", "token_type")}


class SignedIn(NamedTuple):
    """Somebody who has come back from the provider."""

    visitor: Visitor
    account: ProviderAccount
    said: GroupsClaim
    #: The page that they want to see.
    following: str


class _Begun(Struct, frozen=True):
    """Somebody who was sent to the provider."""

    state: str
    nonce: str
    code_verifier: str
    #: The page that they want to see.
    following: str
    at: float


class OpenIdProvider:
    """An OpenID Connect provider.

    Args:
        url: of the console.
    """

    def __init__(self, settings: OpenIdSettings, url: str) -> None:
        # Half a second, and only consoles that others reach need it.
        from authlib.integrations.starlette_client import StarletteOAuth2App

        self.settings = settings
        self._redirect_uri = url.rstrip("/") + CALLBACK
        self._begun: dict[str, _Begun] = {}
        self._client = StarletteOAuth2App(
            framework=None,
            name="ayes",
            client_id=settings.client_id,
            client_secret=settings.client_secret or None,
            client_kwargs={
                "scope": " ".join(settings.scopes),
                "code_challenge_method": "S256",
                "timeout": _PATIENCE_S,
            },
            server_metadata_url=f"{settings.issuer.rstrip('/')}/.well-known/openid-configuration",
        )

    async def begin(self, following: str) -> tuple[str, str]:
        """The provider's URL for somebody who wants to sign in, and a secret for their browser.

        Raises:
            Unavailable: the provider does not answer as it should.
        """
        await self._talk(self._discover())
        asked = await self._talk(self._client.create_authorization_url(self._redirect_uri))
        secret = new_secret()
        while len(self._begun) >= _MAX_SIGNING_IN:
            del self._begun[next(iter(self._begun))]
        self._begun[hash_of(secret)] = _Begun(
            asked["state"], asked["nonce"], asked["code_verifier"], following, time.time()
        )
        return asked["url"], secret

    async def finish(self, secret: str, answer: Mapping[str, str]) -> SignedIn:
        """Who has come back from the provider with this answer.

        Args:
            secret: that which `begin` gave to their browser.

        Raises:
            NotAllowed: it is not their answer, or they may not sign in.
            Unavailable: the provider does not answer as it should.
        """
        begun = self._begun.pop(hash_of(secret), None)
        if (
            begun is None
            or time.time() - begun.at > LASTS_S
            or not compare_digest(begun.state.encode(), answer.get("state", "").encode())
        ):
            raise NotAllowed(
                "signing in was not begun in this browser, or it took longer than "
                f"{LASTS_S / 60:g} minutes. Begin again."
            )
        issuer = self.settings.issuer
        if answer.get("iss", issuer) != issuer:  # RFC 9207
            raise NotAllowed(f"the answer is not from {issuer}. Begin again.")
        if "code" not in answer:
            why = answer.get("error", "without a reason")
            raise NotAllowed(f"{issuer} has not signed you in: {why}. Begin again, or ask there.")
        claims, tokens = await self._talk(self._claims(begun, answer["code"]))
        account = ProviderAccount(str(claims["sub"]), tokens)
        said = groups_in(claims, self.settings)
        return SignedIn(visitor_of(claims, self.settings), account, said, begun.following)

    async def groups_of(self, account: ProviderAccount) -> GroupsClaim:
        """What the provider says now of the groups of an account."""
        try:
            async with account.asking:
                claims = await self._talk(self._userinfo(account))
        except Unavailable as problem:
            return GroupsClaim((), str(problem).partition(". ")[0])
        if claims.get("sub") != account.subject:  # OpenID Connect Core 1.0, section 5.3.2
            return GroupsClaim((), f"{self.settings.issuer} answered about somebody else")
        return groups_in(claims, self.settings)

    async def _userinfo(self, account: ProviderAccount) -> Mapping[str, Any]:
        where = (await self._client.load_server_metadata())["userinfo_endpoint"]
        answer = await self._client.get(where, token=account.access)
        if answer.is_client_error and (renewing := account.tokens.get("refresh_token")):
            renewed = await self._client.fetch_access_token(
                grant_type="refresh_token",
                refresh_token=renewing,
                scope="",  # what it gave, and perhaps not all that we had asked for
            )
            account.tokens = {**account.tokens, **renewed}
            answer = await self._client.get(where, token=account.access)
        answer.raise_for_status()
        return dict(answer.json())

    async def _claims(
        self, begun: _Begun, code: str
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """What the provider says about the person, verified; and the tokens."""
        given = await self._client.fetch_access_token(
            self._redirect_uri, code=code, code_verifier=begun.code_verifier
        )
        if "id_token" not in given:
            raise Unavailable(f"{self.settings.issuer} sent no ID token.")
        wanted = {
            "iss": {"essential": True, "value": self.settings.issuer},
            "aud": {"essential": True, "value": self.settings.client_id},
        }
        known = await self._client.parse_id_token(given, begun.nonce, claims_options=wanted)
        if {self.settings.reviewer_claim, self.settings.groups_claim} <= known.keys():
            return dict(known), given
        more = await self._client.userinfo(token=given)
        if more["sub"] != known["sub"]:  # OpenID Connect Core 1.0, section 5.3.2
            raise Unavailable(f"{self.settings.issuer} answered about somebody else.")
        return {**more, **known}, given

    async def _discover(self) -> None:
        found = await self._client.load_server_metadata()
        if found["issuer"] != self.settings.issuer:
            raise Unavailable(
                f"{self.settings.issuer} calls itself {found['issuer']!r}. Write that as `issuer` "
                "if it is the right one."
            )
        offered = found.get("id_token_signing_alg_values_supported", ["RS256"])
        found["id_token_signing_alg_values_supported"] = sorted(_ALGORITHMS.intersection(offered))

    async def _talk[T](self, talking: Awaitable[T]) -> T:
        """Whatever goes wrong between us and the provider is one error, and is in our log."""
        try:
            return await talking
        except ApprovalsError:
            raise
        except Exception as problem:  # noqa: BLE001 - three libraries, each with its errors
            _log.warning("asking the provider failed", issuer=self.settings.issuer, exc_info=True)
            raise Unavailable(
                f"{self.settings.issuer} does not answer as it should "
                f"({type(problem).__name__}). Try again; the console's log has the details."
            ) from None


def groups_in(claims: Mapping[str, Any], settings: OpenIdSettings) -> GroupsClaim:
    """What the claims about somebody say of their groups."""
    claim = claims.get(settings.groups_claim)
    listed = [claim] if isinstance(claim, str) else claim
    if not isinstance(listed, list):
        return GroupsClaim((), f"{settings.issuer} sent no claim {settings.groups_claim!r}")
    return GroupsClaim(tuple(sorted({one for one in listed if isinstance(one, str)})))


def visitor_of(claims: Mapping[str, Any], settings: OpenIdSettings) -> Visitor:
    """The visitor of whom a provider says this.

    Raises:
        NotAllowed: no claim names them as a reviewer, or none of their groups has a role, or a
            workspace.
    """
    name = claims.get(settings.reviewer_claim)
    try:
        token("reviewer", name)
    except BadId:
        raise NotAllowed(
            f"{settings.reviewer_claim} is {name!r} at {settings.issuer}, which cannot be a "
            "reviewer's name: 1 to 64 characters of A-Z a-z 0-9 _ -. An administrator can change "
            "it there, or name another claim as `reviewer_claim`."
        ) from None
    named = frozenset(groups_in(claims, settings).groups) - {EVERY}
    roles, workspaces = settings.roles.roles_of(named), settings.workspaces_of(named)
    if not roles or workspaces is None:
        raise NotAllowed(
            f"{name} is in none of the groups that may use this console. An administrator of "
            f"{settings.issuer} can change that."
        )
    return Visitor(str(name), roles, workspaces=workspaces)
