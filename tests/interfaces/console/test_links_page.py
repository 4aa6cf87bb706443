"""Links in messages, opened in the console (B75)."""

from types import SimpleNamespace

import pytest
import pytest_asyncio
from console_client import listed, site
from until import until

from ayes.ledger.log import Change
from ayes.ops.visitors import Role, Visitor
from ayes.projections.pending import PendingIndex, encode, key
from ayes.schemas.links import action_token, open_link
from ayes.schemas.slots import CallRef

ANA = Visitor("ana", frozenset({Role.REVIEWER}))
BEN = Visitor("ben", frozenset({Role.REVIEWER}))
CALL = CallRef("shop", "order-17", "refund-1")

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop(tmp_path_factory):
    async with site(tmp_path_factory.mktemp("shop")) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def client(shop):
    shop.visitor = ANA
    async with shop.client() as client:
        yield client


def link_of(shop, person, ref, digest):
    key = shop.app.state.backend.link_key
    return open_link("", action_token(key, person, ref, digest))


async def opened(client, link):
    """What a link leads to, once the list, which follows the log, has its call."""

    async def leads_on():
        answer = await client.get(link)
        return answer.status_code == 303 and answer

    return await until(leads_on)


def alike(answer, token):
    """An answer without what differs between any two requests: the token itself."""
    return answer.status_code, answer.text.replace(token, ""), sorted(answer.headers.items())


async def test_a_link_leads_its_person_to_the_call_until_it_ends(shop, client):
    """B75: a link of others, an ended and an invented one are alike: no call, no person."""
    other = CallRef("shop", "order-18", "refund-1")
    digest = await shop.ask(str(CALL))
    await shop.ask(str(other), '{"order":"A-18","amount":2}')
    await listed(client, 2)
    link = link_of(shop, "ana", CALL, digest)
    answer = await client.get(link)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/calls/{CALL}")
    assert (await client.get(f"/api/v1/links/{link.split('/')[-1]}")).json() == {"call": str(CALL)}

    bens = link_of(shop, "ben", CALL, digest)
    wrong_digest = link_of(shop, "ana", CALL, "0" * 64)
    wrong_call = link_of(shop, "ana", CallRef("shop", "order-17", "refund-9"), digest)
    never = "/open/" + "A" * 43
    refused = [
        alike(await client.get(one), one.split("/")[-1])
        for one in (bens, wrong_digest, wrong_call, never)
    ]
    await (await shop.app.state.backend.reviewer("ben")).deny(CALL)
    await shop.service.decision(CALL, timeout_s=60)
    await listed(client, 1)
    # The header counts what waits, of which there is less now.
    refused += [alike(await client.get(one), one.split("/")[-1]) for one in (link, never, bens)]
    assert {status for status, _, _ in refused} == {404}
    assert len({text for _, text, _ in refused[:4]}) == 1
    assert len({text for _, text, _ in refused[4:]}) == 1
    for _, text, _ in refused:
        assert "this link has ended or is not yours." in text
        assert "refund" not in text
        assert "order-17" not in text
        assert "ben" not in text


async def test_a_link_asks_to_sign_in_and_then_leads_on(shop, client):
    """Its token is kept over signing in, also when it comes from another site, as out of mail."""
    ref = CallRef("shop", "order-19", "refund-1")
    digest = await shop.ask(str(ref))
    link = link_of(shop, "ana", ref, digest)
    shop.visitor = None
    async with shop.client() as stranger:
        stranger.headers["origin"] = shop.security.url
        answer = await stranger.get(link)
        assert answer.status_code == 303
        sign_in = answer.headers["location"]
        assert link.split("/")[-1] in sign_in
        assert "Then reload this page" in (await stranger.get(sign_in)).text
        elsewhere = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
        assert sign_in in (await stranger.get(link, headers=elsewhere)).text
        assert (await stranger.get(f"/api{link}")).status_code == 401
        await stranger.post("/sign-in", data={"code": shop.security.access.new_link("ana")})
        answer = await stranger.get(sign_in)
        assert (answer.status_code, answer.headers["location"]) == (303, link)
        assert (await opened(stranger, link)).headers["location"] == f"/calls/{ref}"


async def test_the_list_alone_opens_nothing(shop, client):
    """A call that the log has decided is over, even while the list still shows it."""
    ref = CallRef("shop", "order-20", "refund-1")
    digest = await shop.ask(str(ref))
    await opened(client, link_of(shop, "ana", ref, digest))
    backend = shop.app.state.backend
    behind = PendingIndex()
    shown = {key(one.ref): encode(one) for one in backend.waiting.oldest()}
    behind.apply(Change(shown, whole=True))
    await (await backend.reviewer("ben")).deny(ref)
    await shop.service.decision(ref, timeout_s=60)
    kept, backend._waiting = backend._waiting, SimpleNamespace(entries=behind)
    try:
        answer = await client.get(link_of(shop, "ana", ref, digest))
        assert answer.status_code == 404
    finally:
        backend._waiting = kept
    assert "this link has ended or is not yours." in answer.text
