"""What people say to each other about a call, over HTTP and NATS."""

from console_client import listed

from ayes.interfaces.api.identity import Role, Visitor

CALL = "shop/order-17/refund-1"
PATH = f"/api/v1/calls/{CALL}"
REVIEWER = frozenset({Role.REVIEWER})


async def say(client, text):
    return await client.post(f"{PATH}/comments", json={"text": text})


async def test_comments_are_said_in_order_and_decide_nothing(shop, client):
    """By reviewers and the requester, before and after the decision. The last one again is the
    same, and one that was said before is not.
    """
    digest = await shop.ask(CALL)
    said = []
    for name, text in ("ana", "Why?"), ("rita", "Lost."), ("ana", "Why?"), ("ana", "Why?"):
        shop.visitor = Visitor(name, REVIEWER)
        answer = await say(client, text)
        assert answer.status_code == 200, answer.text
        said = [(one["author"], one["text"]) for one in answer.json()]
    assert said == [("ana", "Why?"), ("rita", "Lost."), ("ana", "Why?")]
    assert (await listed(client, 1))["calls"][0]["mine"]
    await client.post(f"{PATH}/votes", json={"verdict": "deny", "digest": digest})
    assert (await say(client, "I was asked to.")).status_code == 200
    record = (await client.get(PATH)).json()
    assert [one["text"] for one in record["comments"]][-1] == "I was asked to."
    assert (record["state"]["status"], record["state"]["reason"]) == ("refused", "")
    subjects = [one["subject"] for one in record["facts"] if ".comment." in one["subject"]]
    assert [one.partition("comment.")[2] for one in subjects] == [
        "ana.1",
        "rita.2",
        "ana.3",
        "ana.4",
    ]


async def test_who_neither_decides_nor_asked_for_it_does_not_comment(shop, client):
    """A requester need not be a reviewer; a service is nobody."""
    await shop.ask(CALL)
    shop.visitor = Visitor("cy", frozenset({Role.AUDITOR}))
    refused = await say(client, "Hm.")
    assert (refused.status_code, "role reviewer" in refused.json()["detail"]) == (403, True)
    may = {one["action"]: one["refusal"] for one in (await client.get(PATH)).json()["may"]}
    assert may["comment"] == refused.json()["detail"]
    shop.visitor = Visitor("rita", frozenset({Role.SERVICE}), "token")
    assert (await say(client, "Hm.")).status_code == 403
    shop.visitor = Visitor("rita", frozenset({Role.AUDITOR}))
    assert (await say(client, "Mine.")).status_code == 200
    for text, status in ("  ", 422), ("x" * 20_000, 413):
        assert (await say(client, text)).status_code == status
