"""Votes, revocations and reconciliations over HTTP."""

from console_client import listed

from ayes.interfaces.api.identity import Role, Visitor
from ayes.schemas.slots import CallRef

CALL = "shop/order-17/refund-1"
PATH = f"/api/v1/calls/{CALL}"


async def approve(client, digest, path=PATH, **more):
    return await client.post(f"{path}/votes", json={"verdict": "approve", "digest": digest} | more)


async def test_a_vote_is_about_what_was_shown(shop, client):
    """A digest that is not the call's is refused, and so is a second vote of the same person."""
    digest = await shop.ask(CALL)
    other = await approve(client, "0" * 64)
    assert other.status_code == 409
    assert other.json()["detail"].startswith(f"{CALL} waits with the digest {digest}")
    assert (await approve(client, digest)).json()["status"] == "approved"
    again = await approve(client, digest)
    assert again.status_code == 409
    assert again.json()["type"] == "urn:ayes:error:AlreadyDecided"
    assert "Approved by ana" in again.json()["detail"]


async def test_a_person_votes_only_in_their_own_name(shop, client):
    """The requester is refused, and so is a visitor who is no reviewer."""
    digest = await shop.ask(CALL)
    shop.visitor = Visitor("rita", frozenset({Role.REVIEWER}))
    assert (await approve(client, digest)).status_code == 403
    shop.visitor = Visitor("cai", frozenset({Role.AUDITOR, Role.OPERATOR}))
    refused = await approve(client, digest)
    assert (refused.status_code, "role reviewer" in refused.json()["detail"]) == (403, True)
    record = (await client.get(PATH)).json()
    assert record["votes"] == []


UNUSED = [
    {"verdict": "approve", "answer": "use 42 instead"},
    {"verdict": "approve", "halt": True},
    {"verdict": "deny", "arguments": "{}"},
    {"verdict": "deny", "typed": "refund"},
    {"verdict": "answer", "answer": "42", "arguments": "{}"},
]


async def test_an_instruction_that_a_verdict_does_not_use_is_refused(shop, client):
    """It is not dropped: an approval with an answer let the tool run (B27)."""
    digest = await shop.ask(CALL)
    for vote in UNUSED:
        refused = await client.post(f"{PATH}/votes", json=vote | {"digest": digest})
        assert refused.status_code == 422, refused.text
        said = f"the verdict is {vote['verdict']}. Nothing was recorded."
        assert refused.json()["detail"].endswith(said)
    record = (await client.get(PATH)).json()
    assert (record["state"]["status"], record["votes"]) == ("pending", [])


async def test_an_answer_and_a_revocation_can_stop_the_model(shop, client):
    """Both record it, for whoever asks the model (B33)."""
    digest = await shop.ask(CALL)
    stop = {"answer": "No.", "is_error": True, "halt": True}
    vote = {"verdict": "answer", "digest": digest} | stop
    assert (await client.post(f"{PATH}/votes", json=vote)).status_code == 200
    decided = await shop.service.decision(CALL, timeout_s=60)
    assert (decided.halts, decided.answer.is_error) == (True, True)
    other = "shop/order-17/refund-2"
    await approve(client, await shop.ask(other), path=f"/api/v1/calls/{other}")
    await shop.service.decision(other, timeout_s=60)
    revoked = await client.post(f"/api/v1/calls/{other}/revoke", json=stop)
    assert revoked.status_code == 200, revoked.text
    assert (await shop.service.known_call(CallRef.parse(other))).halts


async def test_several_calls_are_voted_on_at_once(shop, client):
    """Each has its own result; those that fail do not stop the others."""
    shown = []
    for number in range(1, 9):
        call = f"shop/order-17/refund-{number}"
        shown.append({"call": call, "digest": await shop.ask(call)})
    await listed(client, 8)
    await shop.service.withdraw("shop/order-17/refund-3")
    shown[6]["digest"] = "0" * 64
    votes = {"verdict": "deny", "calls": shown, "reason": "a test order"}
    results = (await client.post("/api/v1/votes", json=votes)).json()
    failed = {one["call"]: one["problem"]["title"] for one in results if one["problem"]}
    assert failed == {"shop/order-17/refund-3": "Conflict", "shop/order-17/refund-7": "Conflict"}
    assert {one["state"]["status"] for one in results if one["state"]} <= {"denied", "refused"}
    assert [one["call"] for one in results] == [one["call"] for one in shown]


async def test_only_plain_votes_are_cast_on_several_calls(client):
    """No answers or edits, and 1 to 50 calls."""
    one = {"call": CALL, "digest": ""}
    for more in (
        {"verdict": "answer"},
        {"verdict": "break_glass", "reason": "an emergency"},
        {"arguments": "{}"},
        {"calls": []},
        {"calls": [one] * 51},
    ):
        votes = {"verdict": "approve", "calls": [one]} | more
        assert (await client.post("/api/v1/votes", json=votes)).status_code == 422, more


async def test_an_approval_is_revoked_before_the_tool_runs(shop, client):
    digest = await shop.ask(CALL)
    await approve(client, digest)
    revoked = await client.post(f"{PATH}/revoke", json={"reason": "the customer called"})
    # An executor reports at once that the call will not run.
    assert revoked.json()["status"] in {"revoked", "refused"}, revoked.text
    assert (await client.post(f"{PATH}/revoke", json={})).status_code == 409


async def test_a_late_result_is_accepted(shop, client):
    """A call in doubt is settled by what the tool reported afterwards. (D15)"""
    digest = await shop.ask(CALL)
    await approve(client, digest)
    await shop.service.start(CALL)
    await shop.service.doubt(CALL)
    unclear = await client.post(f"{PATH}/reconcile", json={"happened": True, "late": True})
    assert unclear.status_code == 422
    late = await client.post(f"{PATH}/finish", json={"output": "480 given back"})
    assert late.status_code == 409
    assert "is kept as late" in late.json()["detail"]
    record = (await client.get(PATH)).json()
    assert record["doubt"]["late"] == {"returned": True, "text": "480 given back"}
    settled = await client.post(f"{PATH}/reconcile", json={"late": True})
    assert settled.json()["status"] == "reconciled", settled.text
