"""Requesting, waiting, claiming and finishing over HTTP, as services do."""

import asyncio
from uuid import uuid4

import pytest
from msgspec.structs import replace
from until import recorded

from ayes.interfaces.api.backend import Backend
from ayes.interfaces.api.identity import Role, Visitor
from ayes.ledger.seal import SignerKey
from ayes.ledger.thread_keys import ThreadKeys
from ayes.ledger.trust import Trust
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import CallRef
from ayes.schemas.tools import ToolSpec

CALL = "shop/order-17/refund-1"
PATH = f"/api/v1/calls/{CALL}"
REFUND = {"tool": "refund", "arguments": '{"order":"A-17", "amount":480}', "requester": "rita"}
DESK = Visitor("till", frozenset({Role.SERVICE}), kind="token")
ANA = Visitor("ana", frozenset({Role.REVIEWER}))


async def approved(shop, client):
    """A call that a service requested and ana approved; next the service makes requests again."""
    shop.visitor = DESK
    requested = await client.put(PATH, json=REFUND)
    assert requested.status_code == 200, requested.text
    digest = requested.json()["digest"]
    await recorded(shop.service, "ledger.shop.order-17.call.refund-1.gated")
    shop.visitor = ANA
    voted = await client.post(f"{PATH}/votes", json={"verdict": "approve", "digest": digest})
    assert voted.json()["status"] == "approved", voted.text
    shop.visitor = DESK


async def test_a_service_requests_waits_runs_and_reports(shop, client):
    """From wish to result by a token's requests alone, but for the vote."""
    shop.visitor = DESK
    await client.put(PATH, json=REFUND)
    undecided = await client.get(f"{PATH}/decision")
    assert (undecided.status_code, undecided.json()["decided"]) == (200, False)
    waiting = asyncio.create_task(client.get(f"{PATH}/decision?timeout_s=60"))
    await approved(shop, client)
    assert (await waiting).json()["decided"] is True
    claimed = (await client.post(f"{PATH}/claim", json={"claim": str(uuid4())})).json()
    assert (claimed["status"], claimed["arguments"]) == ("running", REFUND["arguments"])
    result = {"output": "480 given back"}
    assert (await client.post(f"{PATH}/finish", json=result)).json()["status"] == "returned"
    record = (await client.get(PATH)).json()
    started = next(one for one in record["facts"] if one["event"]["type"] == "ToolStarted")
    assert started["event"]["by"] == {"kind": "service", "name": "till"}


async def test_what_a_tool_seals_is_neither_requested_nor_claimed_here(shop, client, tmp_path):
    """The server has no keys, and records no plain text in their place."""
    (tmp_path / "keys").mkdir(mode=0o700)
    sealing = ToolSpec(
        name="charge",
        schema='{"type":"object","properties":{"card":{"type":"string"}}}',
        sealed=("/card",),
    )
    await shop.service.declare("shop", sealing)
    shop.visitor, wish = DESK, {"tool": "charge", "arguments": '{"card":"4111"}'}
    refused = await client.put(PATH, json=wish | {"requester": "rita"})
    assert (refused.status_code, refused.json()["type"]) == (422, "urn:ayes:error:BadInput")
    assert "charge seals /card, and this program has no keys" in refused.json()["detail"]
    assert "4111" not in refused.text
    assert not await shop.service.read(CallRef.parse(CALL))
    shop.service.keys = ThreadKeys(tmp_path / "keys")
    call = await shop.service.request(CALL, "charge", {"card": "4111"}, requester="rita")
    await recorded(shop.service, call.ref.gated.subject)
    shop.visitor = ANA
    vote = {"verdict": "approve", "digest": call.digest}
    voted = await client.post(f"{PATH}/votes", json=vote)
    assert voted.json()["status"] == "approved", voted.text
    shop.visitor = DESK
    claimed = await client.post(f"{PATH}/claim", json={"claim": str(uuid4())})
    assert (claimed.status_code, claimed.json()["type"]) == (409, "urn:ayes:error:NotOpen")
    assert "the key of its thread is not here" in claimed.json()["detail"]


async def test_a_claim_leads_back_to_signed_votes_where_they_are_wanted(shop, client):
    """The console has the trust file, and the gate's login is in other hands: it says that people
    approved, who signed nothing.
    """
    await approved(shop, client)
    await shop.app.state.backend.reading.trust_in(await trust_of(shop))
    answer = await client.post(f"{PATH}/claim", json={"claim": str(uuid4())})
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:ayes:error:NotOpen")
    assert "and votes are signed here. It will not run." in answer.json()["detail"]


async def test_a_login_with_some_workspaces_judges_no_signatures(shop, monkeypatch):
    """It does not read whose keys count, so it could start nothing: it is told so at once."""
    connection = shop.service.log.connection
    monkeypatch.setattr(connection, "login", replace(connection.login, workspaces=("shop",)))
    with pytest.raises(BadInput, match="cannot judge signatures, since it does not read people's"):
        await shop.service.trust_in(await trust_of(shop))
    assert shop.service.trust is None


async def trust_of(shop):
    log = await shop.service.log.identity()
    trust = {"log": log, "roots": [str(SignerKey("board").public)], "signed_since": {"shop": 1}}
    return Trust.model_validate(trust)


async def test_a_requester_says_how_long_they_wait(shop, client):
    """Nobody is asked for longer; the first request counts; what is no time is refused. (B36)"""
    shop.visitor = DESK
    for wrong in (0, -1, 1e12):
        answer = await client.put(PATH, json=REFUND | {"expires_in_s": wrong})
        assert answer.status_code == 422
        assert "expires_in_s" in answer.text
    await client.put(PATH, json=REFUND | {"expires_in_s": 0.2})
    again = await client.put(PATH, json=REFUND | {"expires_in_s": 3600})
    assert again.status_code == 200
    assert (await client.get(f"{PATH}/decision?timeout_s=60")).json()["decided"]
    facts = (await client.get(PATH)).json()["facts"]
    assert "Expired" in [one["event"]["type"] for one in facts]


async def test_a_request_is_idempotent_by_its_name(shop, client):
    """The same again is the same call; the same name with other input is an error. (B50)"""
    shop.visitor = DESK
    first = await client.put(PATH, json=REFUND, headers={"Idempotency-Key": CALL})
    again = await client.put(PATH, json=REFUND)
    assert first.status_code == again.status_code == 200
    facts = (await client.get(PATH)).json()["facts"]
    assert [one["event"]["type"] for one in facts].count("ToolRequested") == 1
    other = await client.put(PATH, json=REFUND | {"arguments": '{"order":"A-17","amount":481}'})
    assert other.status_code == 409
    assert "was already requested with other arguments" in other.json()["detail"]
    keyed = await client.put(PATH, json=REFUND, headers={"Idempotency-Key": "another"})
    assert keyed.status_code == 422
    unknown = await client.put(PATH, json=REFUND | {"tool": "refnd"})
    assert (unknown.status_code, unknown.json()["type"]) == (404, "urn:ayes:error:UnknownTool")
    bad = await client.put(PATH, json=REFUND | {"arguments": '{"order":17}'})
    assert (bad.status_code, bad.json()["type"]) == (422, "urn:ayes:error:BadArguments")


async def test_a_claim_whose_answer_was_lost_is_claimed_again(shop, client):
    """Its runner goes on with it, through a restarted console too; nobody else does (I7)."""
    await approved(shop, client)
    mine = {"claim": str(uuid4())}
    both = await asyncio.gather(*(client.post(f"{PATH}/claim", json=mine) for _ in range(2)))
    assert [one.status_code for one in both] == [200, 200]
    async with Backend.connect(shop.server.store.path) as shop.app.state.backend:
        again = await client.post(f"{PATH}/claim", json=mine)
        assert (again.status_code, again.json()["status"]) == (200, "running")
        await refused_to_others(shop, client, mine)


async def refused_to_others(shop, client, claim):
    second = await client.post(f"{PATH}/claim", json={"claim": str(uuid4())})
    assert (second.status_code, second.json()["type"]) == (409, "urn:ayes:error:AlreadyFilled")
    shop.visitor = Visitor("other", frozenset({Role.SERVICE}), kind="token")
    assert (await client.post(f"{PATH}/claim", json=claim)).status_code == 409
    facts = (await client.get(PATH)).json()["facts"]
    assert [one["event"]["type"] for one in facts].count("ToolStarted") == 1


async def doubted(client, *, since):
    """The call in doubt, once its service was last heard of after this time."""
    async with asyncio.timeout(60):
        while True:
            listed = (await client.get("/api/v1/calls?status=in_doubt")).json()["calls"]
            for one in listed:
                if one["call"] == CALL and one["since"] > since:
                    return one
            await asyncio.sleep(0.1)


async def test_a_claim_that_nobody_renews_is_in_doubt(shop, client):
    """From a lease after its claim, or after its last renewal, on. Only its runner renews it."""
    await approved(shop, client)
    mine, other = str(uuid4()), str(uuid4())
    claimed = await client.post(f"{PATH}/claim", json={"claim": mine, "lease_s": 1})
    assert claimed.status_code == 200, claimed.text
    first = await doubted(client, since="")
    assert (first["since"], first["recorded"]) == (first["claimed_at"], False)
    refused = await client.post(f"{PATH}/renew", json={"claim": other})
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:ayes:error:NotOpen")
    shop.visitor = Visitor("other", frozenset({Role.SERVICE}), kind="token")
    assert (await client.post(f"{PATH}/renew", json={"claim": mine})).status_code == 409
    shop.visitor = DESK
    renewed = await client.post(f"{PATH}/renew", json={"claim": mine})
    assert (renewed.status_code, renewed.json()["status"]) == (200, "running")
    second = await doubted(client, since=first["since"])
    assert second["claimed_at"] == first["claimed_at"]
    assert (await client.post(f"{PATH}/doubt", json={})).json()["status"] == "in_doubt"
    late = await client.post(f"{PATH}/renew", json={"claim": mine})
    assert (late.status_code, "is in_doubt" in late.json()["detail"]) == (409, True)


async def test_a_claim_without_a_lease_is_not_renewed(shop, client):
    await approved(shop, client)
    mine = {"claim": str(uuid4())}
    for lease_s in (-1, 86_401, "inf"):
        bad = await client.post(f"{PATH}/claim", json=mine | {"lease_s": lease_s})
        assert bad.status_code == 422
    assert (await client.post(f"{PATH}/claim", json=mine)).status_code == 200
    refused = await client.post(f"{PATH}/renew", json=mine)
    assert refused.status_code == 409
    assert "without a lease" in refused.json()["detail"]


async def test_of_two_runners_one_gets_the_call(shop, client):
    """Its result may be sent again and not changed."""
    await approved(shop, client)
    early = await client.post(f"{PATH}/finish", json={"output": "done"})
    assert early.status_code == 409, early.text
    claims = [client.post(f"{PATH}/claim", json={"claim": str(uuid4())}) for _ in range(5)]
    codes = [one.status_code for one in await asyncio.gather(*claims)]
    assert sorted(codes) == [200, 409, 409, 409, 409]
    assert (await client.post(f"{PATH}/finish", json={})).status_code == 422
    for _ in range(2):
        done = await client.post(f"{PATH}/finish", json={"error": "no such order"})
        assert (done.status_code, done.json()["status"]) == (200, "failed")
    other = await client.post(f"{PATH}/finish", json={"output": "done"})
    assert (other.status_code, "has ended already" in other.json()["detail"]) == (409, True)


async def test_each_does_what_is_theirs_alone(shop, client):
    """Services request and run; who asked for a call withdraws it."""
    await shop.ask(CALL)
    shop.visitor = ANA
    requests = [
        client.put(PATH, json=REFUND),
        client.post(f"{PATH}/claim", json={"claim": str(uuid4())}),
        client.post(f"{PATH}/finish", json={"output": ""}),
    ]
    for answer in await asyncio.gather(*requests):
        assert answer.status_code == 403
        assert "it needs the role service" in answer.json()["detail"]
    refused = await client.post(f"{PATH}/withdraw", json={})
    assert (refused.status_code, "ana did not ask for" in refused.json()["detail"]) == (403, True)
    shop.visitor = Visitor("rita", frozenset({Role.AUDITOR}))
    for _ in range(2):
        done = await client.post(f"{PATH}/withdraw", json={"reason": "a typing error"})
        assert done.status_code == 200, done.text


async def test_a_service_says_that_a_call_is_in_doubt(shop, client):
    await approved(shop, client)
    await client.post(f"{PATH}/claim", json={"claim": str(uuid4())})
    for _ in range(2):
        said = await client.post(f"{PATH}/doubt", json={"reason": "the process is gone"})
        assert (said.status_code, said.json()["status"]) == (200, "in_doubt"), said.text
