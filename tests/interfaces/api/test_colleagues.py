"""What people say to each other about a call, over HTTP and NATS."""

import asyncio

import pytest
from console_client import POLICY, listed
from until import until

from ayes.interfaces.api.identity import Role, Visitor
from ayes.schemas import events as e
from ayes.schemas.slots import MOST_SAID, CallRef

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
        "rita.1",
        "ana.2",
        "ana.3",
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


THREE = POLICY + 'voters = ["ana", "ben", "cy", "rita"]\n'


async def hand(client, to, **more):
    return await client.post(f"{PATH}/hand", json={"to": to} | more)


async def mine(shop, client, name, query="is:mine"):
    """The calls in somebody's list, once there are as many as the query says."""
    shop.visitor = Visitor(name, REVIEWER)
    found = (await client.get(f"/api/v1/calls?status=pending&q={query}")).json()
    return [one["call"] for one in found["calls"]]


@pytest.mark.parametrize("shop", [THREE], indirect=True)
async def test_a_call_is_handed_to_a_colleague_and_everybody_may_still_vote(shop, client):
    """It leaves the giver's list, for good or until it is handed back, and both lists say so."""
    digest = await shop.ask(CALL)
    await listed(client, 1)
    for _ in range(2):
        handed = await hand(client, "ben", reason="You know them.")
        assert handed.status_code == 200, handed.text
    [one] = handed.json()
    assert (one["by"], one["to"], one["reason"]) == ("ana", "ben", "You know them.")
    index = shop.app.state.backend.waiting
    await until(lambda: index.oldest()[0].handed)
    assert await mine(shop, client, "ana") == []
    assert await mine(shop, client, "ana", "handed:ana") == [CALL]
    assert await mine(shop, client, "ben", "is:mine for:ben") == [CALL]
    assert await mine(shop, client, "cy") == [CALL]
    shop.visitor = Visitor("ben", REVIEWER)
    assert (await hand(client, "ana")).status_code == 200
    await until(lambda: "ben" in index.oldest()[0].handed)
    assert await mine(shop, client, "ana", "is:mine -handed:ana for:ana") == [CALL]
    shop.visitor = Visitor("ben", REVIEWER)
    voted = await client.post(f"{PATH}/votes", json={"verdict": "approve", "digest": digest})
    assert voted.json()["status"] == "approved"
    record = (await client.get(PATH)).json()
    assert [(one["by"], one["to"]) for one in record["handed"]] == [("ana", "ben"), ("ben", "ana")]
    late = await hand(client, "cy")
    assert (late.status_code, "is already decided" in late.json()["detail"]) == (409, True)


@pytest.mark.parametrize("shop", [THREE], indirect=True)
async def test_a_call_is_handed_by_and_to_those_alone_who_may_vote_on_it(shop, client):
    """And the refusal names them."""
    await shop.ask(CALL)
    for to in "dan", "rita":  # rita asked for it
        refused = await hand(client, to)
        assert refused.status_code == 403
        assert refused.json()["detail"] == (
            f"{CALL} cannot be handed to {to}, who could not vote on it now: rule 'large refunds' "
            "asks ana, ben, cy, rita."
        )
    assert (await hand(client, "ana")).status_code == 422
    for name in "dan", "rita":
        shop.visitor = Visitor(name, REVIEWER)
        assert (await hand(client, "ben")).status_code == 403
        may = {one["action"]: one["refusal"] for one in (await client.get(PATH)).json()["may"]}
        assert may["hand_over"]
    assert (await client.get(PATH)).json()["handed"] == []


@pytest.mark.parametrize("shop", [THREE], indirect=True)
async def test_what_a_login_records_beyond_its_measure_is_not_part_of_the_call(shop, client):
    """By any program: it is only counted, and takes nothing from what others may say."""
    await shop.ask(CALL)
    await listed(client, 1)
    ref = CallRef.parse(CALL)
    ana = await shop.app.state.backend.reviewer("ana")
    numbers = range(1, MOST_SAID["comment"] + 6)
    said = [(ref.comment("ana", one), e.Commented(text=f"{one}")) for one in numbers]
    handed = [(ref.handed_by("ana", one), e.HandedOver(to="ben")) for one in numbers]
    await asyncio.gather(*(ana._ledger.append(*one) for one in (*said, *handed)))
    late = ref.handed_by("ana", MOST_SAID["handed"] + 1)
    record = (await client.get(PATH)).json()
    assert (len(record["comments"]), len(record["handed"])) == tuple(MOST_SAID.values())
    assert record["surplus"] == 5 + len(handed) - MOST_SAID["handed"]
    assert late.subject not in [one["subject"] for one in record["facts"]]
    page = (await client.get(f"/calls/{CALL}")).text
    assert f"Not shown: {record['surplus']} comments and handovers" in page
    for more in await say(client, "Again."), await hand(client, "cy"):
        assert (more.status_code, "as one person may" in more.json()["detail"]) == (409, True)
    shop.visitor = Visitor("ben", REVIEWER)
    assert (await say(client, "Mine.")).status_code == 200
    assert (await hand(client, "cy")).json()[-1]["to"] == "cy"
