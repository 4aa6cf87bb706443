"""The receipt of a call over HTTP, and the link to it on the call's page: of a log that is sealed
beside the console.
"""

import pytest
from console_client import listed

from ayes.interfaces.api.identity import Role, Visitor
from ayes.ledger.receipts import Receipt
from ayes.ledger.seal import SignerKey
from ayes.ops.sealing.files import make_key
from ayes.ops.sealing.receipts import judged
from ayes.ops.sealing.sealer import sealing

CALL = "shop/order-17/refund-1"
RECEIPT = f"/api/v1/calls/{CALL}/receipt"
LINK = f'href="{RECEIPT}"'


@pytest.fixture
async def key(shop) -> SignerKey:
    """The store has it, and nothing is sealed yet."""
    identity = await shop.service.log.identity()
    return make_key(shop.server.store, f"approvals.example.com/{identity}")


@pytest.mark.parametrize("visitor", ["ana", "auditor", "program"])
async def test_whoever_may_read_a_call_gets_its_receipt(shop, client, key, visitor):
    """It is offered as a file, and shows by the public key alone what was recorded."""
    digest = await shop.ask(CALL)
    await listed(client, 1)
    vote = {"verdict": "approve", "digest": digest}
    assert (await client.post(f"/api/v1/calls/{CALL}/votes", json=vote)).status_code == 200
    if visitor == "auditor":
        shop.visitor = Visitor("rita", frozenset({Role.AUDITOR}), workspaces=("shop",))
    if visitor == "program":
        shop.visitor = Visitor("crm", frozenset({Role.AUDITOR}), kind="token")
    async with sealing(["sealer"], store=shop.server.store.path):
        answer = await client.get(RECEIPT)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"] == 'attachment; filename="refund-1.receipt"'
    found = await judged(Receipt.parse(answer.content), key.public, None)
    assert (found.call.status, found.call.approval.voters) == ("approved", ("ana",))
    if visitor != "program":
        assert LINK in (await client.get(f"/calls/{CALL}")).text


async def test_without_a_seal_there_is_none(shop, client):
    """The page offers none, and whoever asks is told what to do."""
    await shop.ask(CALL)
    answer = await client.get(RECEIPT)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:ayes:error:BadInput")
    assert "`ayes seal init` makes one." in answer.json()["detail"]
    assert LINK not in (await client.get(f"/calls/{CALL}")).text


async def test_a_call_that_is_not_there_has_none(shop, client, key):
    answer = await client.get("/api/v1/calls/shop/order-17/never/receipt")
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:ayes:error:UnknownCall")


async def test_a_sealer_that_is_not_there_is_named(shop, client, key, monkeypatch):
    """After a while, and not as a file."""
    monkeypatch.setattr("ayes.ops.sealing.receipts._SEALED_S", 0.1)
    await shop.ask(CALL)
    answer = await client.get(RECEIPT)
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:ayes:error:NotOpen")
    assert "Does the sealer run?" in answer.json()["detail"]
    assert "content-disposition" not in answer.headers
