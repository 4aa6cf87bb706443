"""Signing in at an OpenID Connect provider: one of a package, and a console that is served."""

import re
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import pytest_asyncio
from openid_providers import PROVIDERS, SECRET
from sections import section
from until import until

from ayes.interfaces.access.openid import OpenIdProvider, OpenIdSettings, visitor_of
from ayes.interfaces.console.serving import serving
from ayes.ledger.clients.services import Ledger
from ayes.ops.actions import people
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.broker.setup import declare_streams
from ayes.ops.visitors import Role
from ayes.schemas import events as e
from ayes.schemas.errors import BadFile, NotAllowed, Unavailable

pytestmark = pytest.mark.asyncio(loop_scope="module")

PEOPLE = {
    "ana": ("ana", ["leads", "sre"]),
    "ben": ("ben", ["leads"]),
    "eva": ("eva", ["guests"]),
    "rob": ("rob@example.com", ["leads"]),
    "kim": ("kim", ["leads"]),
    "kim-2": ("kim", ["leads"]),
    "ben-2": ("Ben", ["sre"]),
    "zoe": ("zoe", ["leads"]),
}
SETTINGS = """\
[openid]
issuer = "{issuer}"
client_id = "ayes"
client_secret = "file:secret"
scopes = ["openid", "profile", "groups"]
reviewer_claim = "preferred_username"

[openid.roles]
reviewer = ["leads"]
operator = ["sre"]
auditor = ["*"]
"""
#: The store of each console, by its URL.
stores = {}
#: Where people sign in at it.
providers = {}
ROLES = {"reviewer": ("leads",), "operator": ("sre",)}


@pytest.fixture(scope="module", params=PROVIDERS)
def provider(request):
    with request.param() as made:
        for name, (called, groups) in PEOPLE.items():
            made.put(name, preferred_username=called, groups=groups)
        yield made


@pytest.fixture(scope="module")
def issuer(provider):
    return provider.issuer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def console(tmp_path_factory, provider):
    """The URL of a console where people sign in at that provider."""
    folder = tmp_path_factory.mktemp("openid")
    (folder / "secret").write_text(f"{SECRET}\n")
    sign_in = section("openid", folder, SETTINGS.format(issuer=provider.issuer))
    async with EmbeddedServer(folder / "store") as server:
        await declare_streams(server.store.path)
        async with serving(server.store, "ana", port=0, sign_in=sign_in) as served:
            assert served.link == ""
            stores[served.url] = server.store
            providers[served.url] = provider
            yield served.url


@asynccontextmanager
async def browser():
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        yield client


async def sent_there(client, console):
    """The provider's page to which the console sends somebody."""
    page = await client.get(f"{console}/sign-in?next=/doubt")
    [link] = re.findall(r'href="(/sign-in/start[^"]*)"', page.text)
    answer = await client.get(console + link)
    assert answer.status_code == 303
    return answer.headers["location"]


async def sign_in(client, console, who, **form):
    """The console's answer to somebody who comes back from the provider."""
    asked = await sent_there(client, console)
    return await client.get(await providers[console].sign_in(asked, who, **form))


async def test_somebody_signs_in(console, issuer):
    """With PKCE, a state and a nonce; then the browser is led to the page it was to see."""
    async with browser() as client:
        there = await sent_there(client, console)
        assert there.startswith(issuer)
        asked = parse_qs(urlsplit(there).query)
        assert asked["code_challenge_method"] == ["S256"]
        assert asked["code_challenge"]
        assert asked["nonce"]
        assert asked["redirect_uri"] == [f"{console}/sign-in/callback"]
        page = await sign_in(client, console, "ana")
        assert 'content="0;url=/doubt"' in page.text
        home = await client.get(console)
        assert home.status_code == 200
        assert "ana" in home.text


@pytest.mark.parametrize(
    ("who", "form", "said"),
    [
        ("rob", {}, "cannot be a reviewer&#39;s name"),
        ("ana", {"action": "deny"}, "has not signed you in: access_denied"),
    ],
)
async def test_somebody_who_may_not_is_told_why(console, who, form, said):
    async with browser() as client:
        page = await sign_in(client, console, who, **form)
        assert page.status_code == 403
        assert said in page.text
        assert (await client.get(console)).status_code == 303


async def test_a_name_stays_with_the_account_that_had_it_first(console, issuer):
    """B27, B40: another account at the provider that is called ana now is not ana, nor is one in
    other letters, until an operator says that it is the same person.
    """
    store = stores[console]
    for who, first in (("kim", True), ("kim-2", False), ("ben", True), ("ben-2", False)):
        async with browser() as client:
            page = await sign_in(client, console, who)
            assert page.status_code == (200 if first else 403), page.text
            assert first or "and another account there was" in page.text
            assert (await client.get(console)).status_code == (200 if first else 303)
    async with Ledger.connect(store.path) as ledger:
        assert (await ledger.people()).accounts[f"openid:{issuer}#kim"] == "kim"
    await people.say(store, "kim", e.PersonAdded(reason="A new account at the provider."))
    async with browser() as client:
        assert (await sign_in(client, console, "kim-2")).status_code == 200
    async with browser() as client:
        assert (await sign_in(client, console, "kim")).status_code == 403


async def test_a_person_who_was_removed_is_signed_out(console):
    """I7: the session ends, and signing in again does not help, until they are added again."""
    store = stores[console]
    async with browser() as client:
        assert (await sign_in(client, console, "zoe")).status_code == 200
        assert (await client.get(console)).status_code == 200
        assert await people.remove(store, "zoe", "Has left.")

        async def is_signed_out():
            return (await client.get(console)).status_code == 303

        await until(is_signed_out)
        page = await sign_in(client, console, "zoe")
        assert page.status_code == 403
        assert "zoe was removed" in page.text
        await people.admit(store, "zoe")
        await people.say(store, "zoe", e.PersonAdded())
        assert (await sign_in(client, console, "zoe")).status_code == 200


async def test_an_answer_belongs_to_the_browser_that_asked(console):
    """A foreign answer, which would sign a victim in as the attacker, and the same one again."""
    async with browser() as attacker, browser() as victim:
        back = await providers[console].sign_in(await sent_there(attacker, console), "ana")
        await sent_there(victim, console)
        for client in (victim, victim):
            page = await client.get(back)
            assert page.status_code == 403
            assert "was not begun in this browser" in page.text
        assert (await attacker.get(back)).status_code == 200
        assert (await attacker.get(back)).status_code == 403


async def test_a_link_is_no_way_in(console):
    """Where people sign in at a provider, nothing else signs in."""
    async with browser() as client:
        answer = await client.post(
            f"{console}/sign-in", data={"code": "x"}, headers={"origin": console}
        )
        assert answer.status_code == 403


async def test_somebody_without_a_workspace_is_not_signed_in(tmp_path, provider):
    """B74: whom the provider's groups let see other workspaces than theirs here sees none, which is
    never taken for all.
    """
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    within = '[openid.workspaces]\nshop = ["leads"]\nbank = ["sre"]\n'
    text = SETTINGS.format(issuer=provider.issuer) + within
    sign_in_at = section("openid", tmp_path, text)
    async with EmbeddedServer(tmp_path / "store") as server:
        await declare_streams(server.store.path)
        await people.say(server.store, "ben", e.PersonAdded(workspaces=("bank",)))
        async with serving(server.store, "ana", port=0, sign_in=sign_in_at) as served:
            providers[served.url] = provider
            for who, said in (
                ("eva", "eva is in none of the groups"),
                ("ben", "lets ben see shop, and ben belongs to other workspaces here"),
                ("ana", ""),
            ):
                async with browser() as client:
                    page = await sign_in(client, served.url, who)
                    assert page.status_code == (403 if said else 200)
                    assert said in page.text
                    home = await client.get(served.url)
                    assert home.status_code == (303 if said else 200)
                    assert said or "Your workspaces" in home.text


# --------------------------------------------------------------------------- what is not believed


@asynccontextmanager
async def answered(elsewhere):
    """A provider of which somebody has an answer, as `ana`: its secret and the answer."""
    settings = OpenIdSettings(
        issuer=elsewhere.issuer,
        client_id="ayes",
        client_secret=SECRET,
        scopes=("openid", "groups"),
        roles=ROLES,
    )
    provider = OpenIdProvider(settings, "http://127.0.0.1:8420")
    url, secret = await provider.begin("/")
    query = parse_qs(urlsplit(await elsewhere.sign_in(url, "ana")).query)
    yield provider, secret, {name: value for name, [value] in query.items()}


async def test_an_answer_is_believed_once(provider):
    async with answered(provider) as (asked, secret, answer):
        one = await asked.finish(secret, answer)
        assert (one.visitor.name, one.account.subject, one.following) == ("ana", "ana", "/")
        assert one.said == (("leads", "sre"), "")
        with pytest.raises(NotAllowed):
            await asked.finish(secret, answer)


@pytest.mark.parametrize("change", [{"state": "another"}, {"state": ""}, {"iss": "http://evil"}])
async def test_another_answer_is_not_believed(provider, change):
    async with answered(provider) as (asked, secret, answer):
        with pytest.raises(NotAllowed):
            await asked.finish(secret, answer | change)


async def test_an_answer_to_somebody_else_is_not_believed(provider):
    """The nonce, and whom an ID token is for."""
    async with answered(provider) as (asked, secret, answer):
        [(key, begun)] = asked._begun.items()
        asked._begun[key] = type(begun)(
            begun.state, "another", begun.code_verifier, begun.following, begun.at
        )
        with pytest.raises(Unavailable, match="InvalidClaimError"):
            await asked.finish(secret, answer)
    async with answered(provider) as (asked, secret, answer):
        asked.settings = asked.settings.model_copy(update={"client_id": "another"})
        with pytest.raises(Unavailable, match="InvalidClaimError"):
            await asked.finish(secret, answer)


async def test_a_provider_that_is_away_is_reported():
    settings = OpenIdSettings(issuer="http://localhost:1", client_id="ayes", roles=ROLES)
    provider = OpenIdProvider(settings, "http://127.0.0.1:8420")
    with pytest.raises(Unavailable, match=r"http://localhost:1 does not answer as it should"):
        await provider.begin("/")


async def test_a_provider_has_the_name_that_is_written(issuer):
    settings = OpenIdSettings(issuer=f"{issuer}/", client_id="ayes", roles=ROLES)
    provider = OpenIdProvider(settings, "http://127.0.0.1:8420")
    with pytest.raises(Unavailable, match=r"calls itself"):
        await provider.begin("/")


# --------------------------------------------------------------------------- claims and settings


@pytest.mark.parametrize(
    ("claims", "roles"),
    [
        ({"groups": ["leads"]}, {Role.REVIEWER}),
        ({"groups": ["sre", "leads", "x"]}, {Role.REVIEWER, Role.OPERATOR}),
        ({"groups": "leads"}, {Role.REVIEWER}),
        ({"groups": ["x"]}, None),
        ({"groups": ["*"]}, None),
        ({"groups": [["leads"], 5, None]}, None),
        ({"groups": None}, None),
        ({}, None),
    ],
)
async def test_groups_give_roles(claims, roles):
    """And somebody without a role may not come in."""
    settings = OpenIdSettings(issuer="https://login.example", client_id="ayes", roles=ROLES)
    claims = {"sub": "ana"} | claims
    if roles is None:
        with pytest.raises(NotAllowed, match="ana is in none of the groups"):
            visitor_of(claims, settings)
    else:
        assert visitor_of(claims, settings).roles == roles


@pytest.mark.parametrize(
    ("sees", "groups", "workspaces"),
    [
        (None, ["leads"], ()),
        ({"shop": ("leads",), "bank": ("sre", "leads")}, ["leads"], ("shop", "bank")),
        ({"shop": ("support",), "bank": ("*",)}, ["leads"], ("bank",)),
        ({"shop": ("leads",), "*": ("sre",)}, ["leads", "sre"], ()),
        ({"shop": ("support",)}, ["leads"], None),
        ({"shop": ("support",), "bank": ()}, ["leads", "*"], None),
    ],
)
async def test_groups_give_workspaces(sees, groups, workspaces):
    """Whoever may see none may not come in: of no workspace all would be made."""
    settings = OpenIdSettings(
        issuer="https://login.example", client_id="ayes", roles=ROLES, workspaces=sees
    )
    claims = {"sub": "ana", "groups": groups}
    if workspaces is None:
        with pytest.raises(NotAllowed, match="ana is in none of the groups"):
            visitor_of(claims, settings)
    else:
        assert visitor_of(claims, settings).workspaces == workspaces


@pytest.mark.parametrize("name", [None, 5, "", "_ana", "ana.b", "ana@example.com", "a" * 65])
async def test_a_name_must_be_a_reviewers(name):
    settings = OpenIdSettings(issuer="https://login.example", client_id="ayes", roles=ROLES)
    with pytest.raises(NotAllowed, match="cannot be a reviewer's name"):
        visitor_of({"sub": name, "groups": ["leads"]}, settings)


async def test_the_name_is_the_subject_unless_another_claim_is_asked_for(tmp_path):
    """B40: a name that people can change counts only where the settings say so."""
    settings = OpenIdSettings(issuer="https://login.example", client_id="ayes", roles=ROLES)
    claims = {"sub": "8f1a", "preferred_username": "ana", "groups": ["leads"]}
    assert visitor_of(claims, settings).name == "8f1a"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("client_id", "client", "unknown key 'client'"),
        ('"https://login.example"', '"http://login.example"', "It must begin with https://"),
        ('"openid", ', "", "scopes lacks 'openid'"),
        ("openid.roles", "openid.groups", "unknown key 'groups'"),
        ("reviewer =", "service =", "unknown key 'service'"),
        ("file:secret", "file:nothing", "'client_secret': .*nothing: cannot be read"),
        ("file:secret", "env:NOT_SET", "NOT_SET is not set"),
        ('["leads"]', '"leads"', r"line 9, \[openid.roles\]: .*should be a list"),
        ("[openid.roles]", "[openid.workspaces]\n[openid.roles]", "may see any workspace"),
        (
            "[openid.roles]",
            '[openid.workspaces]\n"a.b" = ["leads"]\n[openid.roles]',
            "workspace 'a.b' cannot be used",
        ),
    ],
)
async def test_a_mistake_in_the_settings_is_explained(tmp_path, before, after, said):
    text = SETTINGS.format(issuer="https://login.example")
    assert before in text
    (tmp_path / "secret").write_text("s")
    with pytest.raises(BadFile, match=said):
        section("openid", tmp_path, text.replace(before, after), {})


async def test_settings_are_read(tmp_path):
    (tmp_path / "secret").write_text("of the client\n")
    settings = section("openid", tmp_path, SETTINGS.format(issuer="https://login.example"))
    assert (settings.client_id, settings.client_secret) == ("ayes", "of the client")
    assert settings.roles.auditor == ("*",)
