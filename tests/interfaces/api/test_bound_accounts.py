"""An account in a chat is bound in the console, by the person who is signed in (B40)."""

import time

import pytest
import pytest_asyncio
from console_client import site

from ayes.ops.visitors import Role, Visitor
from ayes.schemas.links import BIND, account_code

ACCOUNT = "slack:T0001/U0DAVE"

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop(tmp_path_factory):
    async with site(tmp_path_factory.mktemp("shop")) as made:
        yield made


def code_of(shop, account=ACCOUNT, lasts_s=60):
    return account_code(shop.app.state.backend.link_key, account, int(time.time()) + lasts_s)


async def test_the_link_of_a_chat_binds_the_account_to_who_is_signed_in(shop):
    """Opening it only asks. Another person's confirmation comes too late."""
    path = BIND + code_of(shop)
    shop.visitor = Visitor("ana", frozenset({Role.REVIEWER}))
    async with shop.client() as client:
        page = await client.get(path)
        assert page.status_code == 200
        assert ACCOUNT in page.text
        assert "If somebody sent you this link" in page.text
        assert ACCOUNT not in (await shop.service.people()).accounts
        bound = await client.post(path)
        assert f"Clicks of {ACCOUNT} are your votes" in bound.text
        assert (await shop.service.people()).accounts[ACCOUNT] == "ana"
        assert (await client.post(path)).status_code == 200
        shop.visitor = Visitor("ben", frozenset({Role.REVIEWER}))
        late = await client.post("/api/v1/accounts", json={"code": code_of(shop)})
        assert (late.status_code, "is ana's" in late.json()["detail"]) == (403, True)


@pytest.mark.parametrize(
    ("roles", "lasts_s", "status"),
    [({Role.OPERATOR, Role.AUDITOR}, 60, 403), ({Role.REVIEWER}, -1, 422)],
)
async def test_who_cannot_vote_binds_nothing_nor_does_an_old_link(shop, roles, lasts_s, status):
    shop.visitor = Visitor("cai", frozenset(roles))
    code = code_of(shop, "slack:T0001/U0EVE", lasts_s)
    async with shop.client() as client:
        assert (await client.get(BIND + code)).status_code == status
        assert (await client.post(BIND + code)).status_code == status
        assert (await client.get(f"{BIND}x")).status_code == (403 if status == 403 else 422)
    assert "slack:T0001/U0EVE" not in (await shop.service.people()).accounts
