"""The page of calls in doubt."""

import html
import re
from contextlib import suppress

import pytest
from until import until

from ayes.ops.visitors import Role, Visitor
from ayes.schemas.errors import AlreadyFilled

CALL = "/calls/shop/order-17/refund-1"
REF = "shop/order-17/refund-1"


async def words(client, path):
    """The text of a page, without its elements."""
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())


async def counted(client):
    return (await client.get("/api/v1/counts")).json()["doubt"]


@pytest.fixture
async def doubtful(shop, client):
    """A refund that was approved and started, and nobody knows how it ended."""
    digest = await shop.ask(REF)
    await client.post(f"{CALL}/vote", data={"verdict": "approve", "digest": digest})
    await shop.service.decision(REF, timeout_s=60)
    await shop.service.start(REF)
    await shop.service.doubt(REF, "The bank did not answer.")


async def test_what_is_known_stands_beside_the_two_answers(client, doubtful):
    """And the first answer counts (I7)."""
    said = await words(client, "/doubt")
    assert "The reason recorded: The bank did not answer." in said
    assert "by desk, and nobody knows how it ended" in said
    assert "It happened…" in said
    assert "It did not…" in said
    await until(lambda: counted(client))  # the number is kept for some seconds
    seen = {"happened": "true", "output": "Seen at the bank."}
    assert (await client.post(f"{CALL}/reconcile", data=seen)).status_code == 303
    assert await counted(client) == 0
    record = await words(client, CALL)
    assert "reconciled" in record
    assert "Found out Seen at the bank." in record
    assert "No call is in doubt" in await words(client, "/doubt")
    other = await client.post(f"{CALL}/reconcile", data={"happened": "false", "output": "Gone."})
    assert other.status_code == 409
    assert "Gone." in other.text


async def test_a_late_result_is_offered(shop, client, doubtful):
    """It is shown to people, and becomes the result when one accepts it (I9)."""
    with suppress(AlreadyFilled):
        await shop.service.finish(REF, output="480 euros were paid.")
    assert "It returned later: 480 euros were paid." in await words(client, "/doubt")
    said = await words(client, CALL)
    assert "In doubt The bank did not answer." in said
    assert "Output 480 euros were paid." not in said
    assert (await client.post(f"{CALL}/reconcile", data={"late": "true"})).status_code == 303
    assert "Found out 480 euros were paid." in await words(client, CALL)


async def test_who_may_not_say_it_is_told(shop, client, doubtful):
    """Nobody reconciles a call of their own."""
    shop.visitor = Visitor("rita", frozenset({Role.REVIEWER}))
    said = await words(client, "/doubt")
    assert "It happened…" not in said
    assert "its requester cannot" in said
    seen = {"happened": "true", "output": "Seen."}
    assert (await client.post(f"{CALL}/reconcile", data=seen)).status_code == 403


async def test_an_auditor_says_nothing_of_it(shop, client, doubtful):
    """Who signed in to read decides nothing, though as a person they might."""
    shop.visitor = Visitor("ana", frozenset({Role.AUDITOR}))
    assert "It happened…" not in await words(client, "/doubt")
    seen = {"happened": "true", "output": "Seen."}
    assert (await client.post(f"{CALL}/reconcile", data=seen)).status_code == 403
    assert (await client.get(f"/api/v1{CALL}")).json()["state"]["status"] == "in_doubt"
