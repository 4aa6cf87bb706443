"""Saved views over HTTP and at the terminal: two workspaces on a real broker, and who sees what."""

import json
from datetime import timedelta

import msgspec
import pytest
import pytest_asyncio
from console_client import POLICY, REFUND, listed, site
from until import until

from ayes.interfaces.api.backend import jetstream
from ayes.interfaces.cli.command import Session
from ayes.interfaces.cli.decide import pending
from ayes.ops.visitors import Role, Visitor
from ayes.projections.kept import Kept
from ayes.projections.saved_views import SavedView
from ayes.schemas.errors import BadInput
from ayes.schemas.events import PersonAdded, PersonRemoved
from ayes.schemas.policy import applied
from ayes.schemas.slots import person_slot, policy_slot

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/api/v1/views"
REVIEWER = frozenset({Role.REVIEWER})
#: Of both workspaces; and of `shop` alone.
ANA = Visitor("ana", REVIEWER)
BEN = Visitor("ben", REVIEWER, workspaces=("shop",))
TESS = Visitor("tess", frozenset({Role.OPERATOR}), workspaces=("shop",))


async def names(client, workspace=""):
    found = (await client.get(PATH, params={"workspace": workspace})).raise_for_status().json()
    return [(one["name"], one["author"], one["waiting"]) for one in found["views"]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop(tmp_path_factory):
    """Calls in two workspaces."""
    async with site(tmp_path_factory.mktemp("views")) as made, made.client() as client:
        await made.service.declare("bank", REFUND)
        operator = await made.app.state.backend.operator("sre")
        await operator.append(policy_slot("bank", 1), applied(POLICY))
        for call in ("shop/order-1/refund-1", "shop/order-2/refund-1", "bank/order-1/refund-1"):
            await made.ask(call)
        await listed(client, 3)
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def client(shop):
    """Views of ana's alone: one of her own, and one for each workspace."""
    shop.visitor = ANA
    await keep(shop, "ben")
    await keep(
        shop,
        "ana",
        SavedView(name="large", q="amount>100", sort="due", workspace="shop"),
        SavedView(name="own", q="is:mine", first=True),
        SavedView(name="safe", q="refund", workspace="bank"),
    )
    async with shop.client() as client:
        yield client


async def keep(shop, author, *views):
    """What another version, or another console, has written."""
    bucket = jetstream(await shop.app.state.backend.recording()).bucket("views")
    document = Kept(author, shop.service.now(), views)
    await bucket.overwrite(author, msgspec.json.encode(document))


async def test_a_view_is_its_authors_or_is_for_those_who_see_the_workspace(shop, client):
    """A visitor of `shop` hears nothing of a private view, or of `bank`."""
    every = [("large", "ana", 2), ("own", "ana", 3), ("safe", "ana", 1)]
    assert await names(client) == every
    assert await names(client, "shop") == [("large", "ana", 2), ("own", "ana", 2)]
    shop.visitor = BEN
    assert await names(client) == [("large", "ana", 2)]
    assert await names(client, "bank") == []
    (await client.put(PATH, json={"name": "own", "q": "order-1"})).raise_for_status()
    assert await names(client) == [("own", "ben", 1), ("large", "ana", 2)]
    refused = await client.put(PATH, json={"name": "mine", "workspace": "bank"})
    assert (refused.status_code, "none of the workspaces" in refused.text) == (403, True)
    shop.visitor = Visitor("desk", frozenset({Role.SERVICE}), "token")
    assert [one[0] for one in await names(client)] == ["large", "safe"]
    assert (await client.put(PATH, json={"name": "mine"})).status_code == 403


async def test_only_its_author_or_an_operator_removes_a_view(shop, client):
    async def remove(who, name, author=""):
        shop.visitor = who
        answer = await client.delete(PATH, params={"name": name, "author": author})
        return answer.status_code

    assert await remove(BEN, "large") == 422, "he has none of this name"
    assert await remove(BEN, "large", "ana") == 403
    assert await remove(TESS, "own", "ana") == 422, "it is private"
    assert await remove(TESS, "safe", "ana") == 422, "it is of another workspace"
    assert await remove(TESS, "large", "ana") == 200
    assert await remove(ANA, "safe") == 200
    assert await names(client) == [("own", "ana", 3)]


async def test_a_view_is_renamed_and_what_cannot_be_applied_is_not_saved(shop, client):
    renamed = {"name": "for me", "q": "is:mine", "before": "own"}
    assert (await client.put(PATH, json=renamed)).json()["first"] is False
    assert [one[0] for one in await names(client)] == ["for me", "large", "safe"]
    problem = await client.put(PATH, json={"name": "for me", "q": "due:soon"})
    assert (problem.status_code, "due is compared" in problem.json()["detail"]) == (422, True)
    assert [one[0] for one in await names(client)] == ["for me", "large", "safe"]


async def test_a_view_that_no_longer_parses_is_shown_with_the_reason(shop, client):
    """It is not applied, is not the first page, and the list stays as it is."""
    await keep(shop, "ana", SavedView(name="old", q="gone:", first=True), SavedView(name="new"))
    [old, new] = (await client.get(PATH)).json()["views"]
    assert (new["problem"], new["waiting"]) == ("", 3)
    assert (old["waiting"], "gone: at character 1" in old["problem"]) == (None, True)
    page = await client.get("/")
    assert page.status_code == 200
    assert "old is not applied: gone: at character 1 of the query has no value" in page.text


async def test_the_first_page_and_the_page_of_views(shop, client):
    """The address of a view has all of it, and all calls have an address of their own."""
    assert (await client.get("/")).headers["location"] == "/?q=is%3Amine"
    assert (await client.get("/?workspace=shop")).headers["location"] == (
        "/?q=is%3Amine&workspace=shop"
    )
    page = (await client.get("/?q=")).text
    assert '<a href="/?q=amount%3E100&amp;sort=due&amp;workspace=shop">large' in page
    assert '<a href="/?q=" aria-current="true">All</a>' in page
    form = {"name": "old ones", "q": "age>1d", "group": "tool", "workspace": "shop"}
    done = await client.post("/views", data=form)
    assert done.headers["location"] == "/?q=age%3E1d&group=tool&workspace=shop"
    again = await client.post("/views", data=form | {"q": "due:soon"})
    assert (again.status_code, 'value="due:soon"' in again.text) == (422, True)
    shop.visitor = BEN
    page = (await client.get("/")).text
    assert "old ones" in page
    assert "by ana" in page
    assert "safe" not in page
    page = (await client.get("/views")).text
    assert "<button>Remove" not in page
    shop.visitor = TESS
    await client.post("/views/remove", data={"name": "old ones", "author": "ana"})
    assert [one[0] for one in await names(client)] == ["large"]


async def test_pending_lists_the_calls_of_a_view(shop, client, capsys):
    """With the person's own login, so nobody reads another person's."""

    async def calls(view, name):
        session = Session(shop.server.store.path, json=True)
        await pending(view=view, name=name, session=session)
        return [json.loads(line)["call"] for line in capsys.readouterr().out.splitlines()]

    assert await calls("safe", "ana") == ["bank/order-1/refund-1"]
    assert len(await calls("own", "ana")) == 3
    with pytest.raises(BadInput, match=r"no view 'own' for ben\. There are: 'large', 'safe'"):
        await calls("own", "ben")
    with pytest.raises(BadInput, match="whose view is it"):
        await calls("own", "")


async def test_the_views_of_a_person_end_with_the_person(shop, client, monkeypatch):
    """Somebody else who gets the name later finds none of them, and saves their own, however the
    console's clock is set.
    """
    backend = shop.app.state.backend
    organisation = await backend._logins.connection("organisation", "sre")
    await organisation.append(person_slot("ana", 1), PersonRemoved())
    await until(lambda: backend.people.is_removed("ana"))
    shop.visitor = BEN
    assert await names(client) == []
    await organisation.append(person_slot("ana", 2), PersonAdded())
    await until(lambda: not backend.people.is_removed("ana"))
    an_hour_ago = backend.reading.now() - timedelta(hours=1)
    monkeypatch.setattr(backend.reading, "now", lambda: an_hour_ago)
    shop.visitor = Visitor("ana", REVIEWER | {Role.AUDITOR})  # in a session of its own
    assert await names(client) == []
    (await client.put(PATH, json={"name": "new"})).raise_for_status()
    assert [name for name, *_ in await names(client)] == ["new"]
