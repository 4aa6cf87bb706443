"""The pages of conversations: sentences first, the names of facts one click below."""

import html
import re

from until import recorded

from ayes.schemas.slots import CallRef

REF = CallRef.parse("shop/order-17/refund-1")


async def words(client, path):
    """The text of a page, without its elements."""
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())


async def test_the_list_tells_what_happened_last_in_a_sentence(shop, client):
    await shop.ask(str(REF))
    said = await words(client, "/conversations")
    assert "People are asked: rule 'large refunds' asks anybody" in said
    assert "ApprovalRequested" not in said


async def test_a_denied_call_is_called_denied_once_the_model_is_told_too(shop, client):
    """Its status is `refused` by then, which is nobody's word for it."""
    digest = await shop.ask(str(REF))
    vote = {"verdict": "deny", "digest": digest, "reason": "Never paid."}
    await client.post(f"/calls/{REF}/vote", data=vote)
    await recorded(shop.service, REF.finished.subject)
    said = await words(client, f"/conversations/{REF.workspace}/{REF.thread}")
    assert "refund denied Denied by ana" in said
    assert "refused" not in said


async def test_long_instructions_are_folded(shop, client):
    await shop.service.say("shop/order-17", "Be kind. " * 100, role="system", message="m1")
    said = await words(client, "/conversations/shop/order-17")
    assert "900 characters of instructions" in said
