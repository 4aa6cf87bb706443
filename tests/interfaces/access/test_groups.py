"""Votes for groups of the provider: what it says is read before each vote in the console."""

from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial

import httpx
import pytest
import pytest_asyncio
from console_client import URL, site
from openid_providers import PROVIDERS, SECRET
from until import recorded, until

from ayes.interfaces.access.openid import OpenIdProvider, OpenIdSettings
from ayes.ledger.clients.services import Ledger
from ayes.ops.broker.server import ensure_account
from ayes.projections.views.fact import fact_row
from ayes.projections.views.secrets import WHOLE
from ayes.schemas import events as e
from ayes.schemas.errors import BrokerRefused, NotAllowed
from ayes.schemas.slots import GROUPS, CallRef, StopRef, groups_slot

pytestmark = pytest.mark.asyncio(loop_scope="module")

POLICY = """
may_stop = ["group:oncall"]

[[rule]]
name = "large refunds"
tools = ["refund"]
then = "ask"
voters = ["group:finance", "lea"]
"""
ROLES = {"reviewer": ("*",)}


@pytest.fixture(scope="module", params=PROVIDERS)
def provider(request):
    with request.param() as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop(tmp_path_factory, provider):
    async with site(tmp_path_factory.mktemp("groups"), POLICY) as made:
        yield made


@asynccontextmanager
async def signed_in(shop, provider, who, **settings):
    """The browser of somebody who has signed in at the console."""
    shop.security.provider = OpenIdProvider(
        OpenIdSettings(
            issuer=provider.issuer,
            client_id="ayes",
            client_secret=SECRET,
            scopes=("openid", "profile", "groups"),
            roles=ROLES,
            **settings,
        ),
        URL,
    )
    transport = httpx.ASGITransport(app=shop.app)
    headers = {"origin": URL}
    async with httpx.AsyncClient(transport=transport, base_url=URL, headers=headers) as console:
        asked = await console.get("/sign-in/start")
        answer = await console.get(await provider.sign_in(asked.headers["location"], who))
        assert answer.status_code == 200, answer.text
        yield console
    shop.security.provider = None


async def vote(shop, console, call):
    """The answer to a vote on a new call, which is as it was when it was counted."""
    digest = await shop.ask(call)
    return await console.post(
        f"/api/v1/calls/{call}/votes", json={"verdict": "approve", "digest": digest}
    )


async def readings(shop, name):
    return [fact for fact in await shop.service.read(GROUPS) if fact.slot.tail[1] == name]


async def test_the_vote_of_a_member_counts_with_what_was_read(shop, provider):
    """And the approval says who named the groups, of which account, and when."""
    provider.put("ana", groups=["finance", "leads"])
    async with signed_in(shop, provider, "ana") as console:
        answer = await vote(shop, console, "shop/g1/c1")
        assert answer.json()["status"] == "approved", answer.text
        [shown] = answer.json()["memberships"]
        assert (shown["person"], shown["groups"]) == ("ana", ["finance"])
        assert (shown["issuer"], shown["subject"]) == (provider.issuer, "ana")
        [fact] = await readings(shop, "ana")
        assert fact.event.groups == ("finance", "leads")
        assert fact.event.by.kind == "api"
        assert datetime.fromisoformat(shown["read_at"]) == fact.event.read_at
        page = await console.get("/calls/shop/g1/c1")
        assert f"finance, as {provider.issuer} said of ana" in page.text
        [decided] = await shop.service.read(CallRef.parse("shop/g1/c1").decided)
        assert (
            f"ana of finance as {provider.issuer} said of ana at"
            in fact_row(decided, WHOLE, full=True).what
        )
        # The same again is recorded once.
        assert (await vote(shop, console, "shop/g1/c2")).json()["status"] == "approved"
        assert len(await readings(shop, "ana")) == 1


async def test_a_removal_at_the_provider_acts_on_the_next_vote(shop, provider):
    provider.put("ben", groups=["finance"])
    async with signed_in(shop, provider, "ben") as console:
        assert (await vote(shop, console, "shop/g2/c1")).json()["status"] == "approved"
        provider.put("ben", groups=["guests"])
        answer = await vote(shop, console, "shop/g2/c2")
        assert answer.status_code == 403
        assert f"asks group:finance, lea. {provider.issuer} named guests" in answer.text
        provider.put("ben", groups=["finance"])
        assert (await vote(shop, console, "shop/g2/c3")).json()["status"] == "approved"
        assert [one.event.groups for one in await readings(shop, "ben")] == [
            ("finance",), ("guests",), ("finance",),
        ]  # fmt: skip


async def missing(provider, _shop):
    provider.put("cai", name="cai")
    return "sent no claim 'groups'"


async def malformed(provider, _shop):
    provider.put("cai", groups={"finance": True})
    return "sent no claim 'groups'"


async def away(_provider, shop):
    shop.security.provider._client.server_metadata["userinfo_endpoint"] = "http://localhost:1/"
    return "does not answer as it should"


async def forgotten(provider, _shop):
    provider.forget_tokens("cai")
    return "does not answer as it should"


async def another(provider, shop):
    asked = shop.security.provider
    provider.put("kai", groups=["finance"])
    async with signed_in(shop, provider, "kai"):
        account_of(shop, "cai").tokens = account_of(shop, "kai").tokens
    shop.security.provider = asked
    return "answered about somebody else"


def account_of(shop, subject):
    accounts = [one.account for one in shop.security.sessions._open.values() if one.account]
    return [one for one in accounts if one.subject == subject][-1]


@pytest.mark.parametrize("fault", [missing, malformed, away, forgotten, another])
async def test_where_the_provider_says_nothing_no_vote_for_a_group_counts(shop, provider, fault):
    """Although it said something before that would count still; and the person is told why."""
    provider.put("cai", groups=["finance"])
    call = f"shop/g3/{fault.__name__}"
    async with signed_in(shop, provider, "cai") as console:
        await shop.service.people()
        said = await fault(provider, shop)
        answer = await vote(shop, console, call)
        assert answer.status_code == 403
        assert said in answer.text
        ref = CallRef.parse(call)
        assert await shop.service.read(ref.vote("cai")) == ()
        async with Ledger.connect(shop.server.store.path, role="reviewer-cai") as own:
            with pytest.raises(NotAllowed, match=said):
                await own.reviewer("cai").approve(call)


async def test_an_access_token_is_renewed(shop, provider):
    """By the refresh token, where the provider has given one."""
    provider.put("dee", groups=["finance"])
    async with signed_in(shop, provider, "dee") as console:
        account = account_of(shop, "dee")
        account.tokens = {**account.tokens, "access_token": "ended"}
        assert (await vote(shop, console, "shop/g4/c1")).json()["status"] == "approved"
        assert account.tokens["access_token"] != "ended"


async def test_the_vote_at_another_door_counts_for_as_long_as_what_was_read(shop, provider):
    """A program with the person's own credentials, which no provider knows."""
    provider.put("eva", groups=["finance"])
    await ensure_account(shop.server.store.path, "reviewer-eva")
    async with Ledger.connect(shop.server.store.path, role="reviewer-eva") as own:
        await shop.ask("shop/g5/c1")
        with pytest.raises(NotAllowed, match="has not been read: sign in to the console"):
            await own.reviewer("eva").approve("shop/g5/c1")
        async with signed_in(shop, provider, "eva"):
            pass
        await own.reviewer("eva").approve("shop/g5/c1")
        [decided] = await recorded(shop.service, CallRef.parse("shop/g5/c1").decided.subject)
        assert isinstance(decided.event, e.Approved)
        assert decided.event.memberships[0].person == "eva"


async def test_a_vote_that_nobody_checked_does_not_count(shop, provider):
    """A client of one's own votes as it likes: without a reading, and when the last one has ended.
    The gate counts neither, and the vote of somebody who was asked by name alone decides.
    """
    store, account = shop.server.store.path, f"openid:{provider.issuer}#mia"
    for name in ("mia", "lea"):
        await ensure_account(store, f"reviewer-{name}")
    async with (
        Ledger.connect(store, role="reviewer-mia") as mia,
        Ledger.connect(store, role="reviewer-lea") as lea,
        Ledger.connect(store, role="api") as api,
    ):
        for number, said in enumerate(("has not been read", "which is too long ago")):
            ref = CallRef.parse(f"shop/g9/c{number}")
            digest = await shop.ask(str(ref))
            with pytest.raises(NotAllowed, match=said):
                await mia.reviewer("mia").approve(ref)
            assert await mia.try_append(ref.vote("mia"), e.Voted("approve", digest)) is None
            await lea.reviewer("lea").approve(ref)
            [decided] = await recorded(shop.service, ref.decided.subject)
            assert (decided.event.voters, decided.event.memberships) == (("lea",), ())
            await mia.reviewer("mia").bind(account)
            now = api.now()
            ended = e.GroupsRead(provider.issuer, "mia", ("finance",), now, now)
            await api.record_groups("mia", ended)


async def test_a_question_is_a_members_also_if_they_were_read_long_ago(shop, provider):
    """It is in their list, and they may vote, since they are read anew then."""
    call = "shop/g6/c1"
    digest = await shop.ask(call)
    for who, groups, is_theirs in (("ida", "finance", True), ("jim", "guests", False)):
        provider.put(who, groups=[groups])
        async with signed_in(shop, provider, who) as console:
            async with Ledger.connect(shop.server.store.path, role="api") as api:
                now = api.now()
                old = e.GroupsRead(provider.issuer, who, (groups,), now, now)
                await api.append(groups_slot(who, now, 7), old)

            async def listed(more):
                page = (await console.get(f"/api/v1/calls?status=pending{more}")).json()
                return call in [one["call"] for one in page["calls"]]

            await until(partial(listed, ""))
            assert await listed("&q=is:mine") is is_theirs
            record = (await console.get(f"/api/v1/calls/{call}")).json()
            [refusal] = [one["refusal"] for one in record["may"] if one["action"] == "approve"]
            assert (not refusal) is is_theirs
            assert is_theirs or f"{provider.issuer} named guests for jim" in refusal
    async with signed_in(shop, provider, "ida") as console:
        answer = await console.post(
            f"/api/v1/calls/{call}/votes", json={"verdict": "approve", "digest": digest}
        )
        assert answer.json()["status"] == "approved", answer.text


async def test_a_name_and_an_account_take_no_group_with_them(shop, provider):
    """Two subjects with one name, and one subject with two: nobody signs in, nothing is read."""
    claim = {"reviewer_claim": "preferred_username"}
    provider.put("7f", preferred_username="kim", groups=["finance"])
    provider.put("8a", preferred_username="kim", groups=["finance"])
    async with signed_in(shop, provider, "7f", **claim) as console:
        assert (await vote(shop, console, "shop/g7/c1")).json()["status"] == "approved"
    for who, called, said in (
        ("8a", "kim", "another account there was kim before"),
        ("7f", "kimberly", "who bound it first"),
    ):
        provider.put(who, preferred_username=called, groups=["finance"])
        with pytest.raises(AssertionError, match=said):
            async with signed_in(shop, provider, who, **claim):
                pass
    [read] = await readings(shop, "kim")
    assert read.event.subject == "7f"
    assert await readings(shop, "kimberly") == []


async def test_several_votes_at_once_take_one_reading(shop, provider):
    provider.put("lou", groups=["finance"])
    calls = [f"shop/g8/c{number}" for number in range(3)]
    shown = [{"call": one, "digest": await shop.ask(one)} for one in calls]
    async with signed_in(shop, provider, "lou") as console:
        provider.put("lou", groups=["finance", "leads"])
        votes = {"verdict": "approve", "calls": shown}
        results = (await console.post("/api/v1/votes", json=votes)).json()
    assert [one["state"]["status"] for one in results] == ["approved"] * 3
    assert len(await readings(shop, "lou")) == 2


async def test_only_the_consoles_login_says_who_is_in_a_group(shop):
    """Not the voter, not a service and not another person, with a client of their own."""
    now = datetime.now(UTC)
    forged = e.GroupsRead("https://evil", "fay", ("finance",), now, now)
    store = shop.server.store.path
    for name in ("reviewer-fay", "reviewer-ana"):
        await ensure_account(store, name)
    for role in ("reviewer-fay", "reviewer-ana", "service", "operator", "organisation", "gate"):
        async with Ledger.connect(store, role=role) as ledger:
            with pytest.raises(BrokerRefused):
                await ledger.append(groups_slot("fay", now, 1), forged)


async def test_a_member_may_stop(shop, provider):
    """`may_stop` names a group: a member who was read lately, and nobody else."""
    provider.put("gus", groups=["oncall"])
    provider.put("hal", groups=["finance"])
    for who, may in (("hal", False), ("gus", True)):
        async with signed_in(shop, provider, who) as console:
            stop = {"workspace": "shop", "reason": "Wrong account.", "name": "s1", "for_s": 1}
            answer = await console.post("/api/v1/stops", json=stop)
            assert answer.status_code == (200 if may else 403), answer.text
            assert may or "may_stop in the policy names others" in answer.text
    given = StopRef("shop", "gus", "s1").given
    assert len(await shop.service.read(given)) == 1
