"""Stops over HTTP: who stops what, who resumes, and what is refused."""

from datetime import UTC, datetime

from console_client import REFUND, listed
from until import recorded

from ayes.ledger.clients.services import Ledger
from ayes.ops.visitors import Role, Visitor
from ayes.schemas.policy import applied
from ayes.schemas.slots import ORGANISATION, CallRef, StopRef, policy_slot

STOPS = "/api/v1/stops"
NEW = {"workspace": "shop", "reason": "They go to a wrong account.", "name": "s1"}
OPS = Visitor("olga", frozenset({Role.OPERATOR}))
BEN = Visitor("ben", frozenset({Role.REVIEWER}))
ARGUMENTS = {"order": "A-17", "amount": 1}
NEVER = datetime(9999, 1, 1, tzinfo=UTC)
FREE = '[[rule]]\nname = "free"\ntools = ["refund"]\nthen = "allow"\n'
RIGHTS = 'may_stop = ["oncall"]\nmay_resume = ["ana", "ben"]\nresumes_needed = 2\n'


async def apply(shop, text: str) -> None:
    async with Ledger.connect(shop.server.store.path, role="operator") as operator:
        await operator.append(policy_slot("shop", 2), applied(text))


async def test_a_stop_is_given_listed_and_resumed(shop, client):
    """The call that it covers starts after somebody has resumed; giving it twice gives one."""
    await apply(shop, FREE)
    given = await client.post(STOPS, json=NEW | {"tools": ["ref*"], "for_s": 3600})
    assert given.status_code == 200, given.text
    again = await client.post(STOPS, json=NEW | {"tools": ["ref*"], "for_s": 3600})
    assert (again.status_code, again.json()["seq"]) == (200, given.json()["seq"])
    call = CallRef.parse("shop/order-17/refund-1")
    await shop.service.request(call, "refund", {"order": "A-17", "amount": 1}, requester="rita")

    found = (await client.get(f"{STOPS}?workspace=shop")).json()
    [one] = found["stops"]
    assert found["in_force"] == 1
    assert (one["stop"], one["status"], one["stopped_by"]) == ("shop/ana/s1", "in force", "ana")
    assert (one["tools"], one["agents"], one["requesters"]) == (["ref*"], ["*"], ["*"])
    assert (one["reason"], one["resumed_by"], one["ended_at"]) == (NEW["reason"], [], None)
    assert one["ends_at"] > one["given_at"]
    assert (await client.get("/api/v1/counts")).json()["stopped"] == ["shop"]
    assert (await client.get("/api/v1/counts?workspace=bank")).json()["stopped"] == []

    shop.visitor = BEN
    resume = f"{STOPS}/shop/ana/s1/resume"
    ended = (await client.post(resume, json={"reason": "It is right again."})).json()
    assert (ended["status"], ended["resumed_by"]) == ("ended", ["ben"])
    assert ended["ended_why"] == "It is right again."
    assert (await client.get(STOPS)).json()["in_force"] == 0
    assert (await client.get("/api/v1/counts")).json()["stopped"] == []
    again = await client.post(resume, json={})
    assert (again.status_code, "has ended" in again.json()["detail"]) == (409, True)
    await recorded(shop.service, call.decided.subject)
    assert (await shop.service.start(call)).status == "running"


async def test_what_a_stop_found_is_shown(shop, client):
    """As of its moment, also once it has ended: what started later is not of it."""
    await apply(shop, FREE + '[[rule]]\nname = "slow"\ntools = ["slow"]\nthen = "ask"\n')
    await shop.service.declare("shop", REFUND.model_copy(update={"name": "slow"}))
    runs, held, waits = (CallRef("shop", "order-17", one) for one in ("r", "h", "w"))
    for call, tool in ((runs, "refund"), (held, "refund"), (waits, "slow")):
        await shop.service.request(call, tool, ARGUMENTS, requester="rita")
        await recorded(shop.service, (call.gated if call == waits else call.decided).subject)
    await shop.service.start(runs)
    await listed(client, 1)
    given = (await client.post(STOPS, json=NEW)).json()
    shop.visitor = OPS
    found = (await client.get(f"{STOPS}/shop/ana/s1")).json()
    assert {name: found[name] for name in given} == given
    for kind, call in (("running", runs), ("held", held)):
        [one] = found[kind]
        assert (one["call"], one["tool"]) == (str(call), "refund")
    assert (found["in_doubt"], found["pending"], found["looked_since"]) == ([], 1, None)

    shop.visitor = BEN
    await client.post(f"{STOPS}/shop/ana/s1/resume", json={})
    await shop.service.doubt(runs)
    await shop.service.start(held, claim_id="1", lease_s=3600)
    later = (await client.get(f"{STOPS}/shop/ana/s1")).json()
    assert later["status"] == "ended"
    assert later["running"] == []
    assert [one["call"] for one in later["in_doubt"]] == [str(runs)]
    assert later["held"] == found["held"]
    unknown = await client.get(f"{STOPS}/shop/ana/none")
    assert unknown.status_code == 422
    assert unknown.json()["detail"].startswith("there is no stop shop/ana/none.")


async def test_nobody_asks_twice_at_once_what_a_stop_found(shop, client):
    """It may take some seconds, so the second request is refused."""
    await client.post(STOPS, json=NEW)
    async with shop.app.state.backend.busy.once(("account", "ana"), ""):
        refused = await client.get(f"{STOPS}/shop/ana/s1")
    assert refused.status_code == 409
    assert "ana is asking for what a stop covered already" in refused.json()["detail"]
    assert (await client.get(f"{STOPS}/shop/ana/s1")).status_code == 200


async def test_a_stop_counts_until_its_time_on_the_brokers_clock(shop, client):
    """Until when all that is stopped is stopped is said if people need not resume any of it."""
    for name in ("s1", "s2"):
        await client.post(STOPS, json=NEW | {"name": name, "for_s": 3600})
    counts = (await client.get("/api/v1/counts")).json()
    newest = (await client.get(STOPS)).json()["stops"][0]
    assert (counts["stopped"], counts["stopped_until"]) == (["shop"], newest["ends_at"])
    shop.app.state.backend.reading.now = lambda: NEVER
    assert (await client.get("/api/v1/counts")).json() == counts
    await client.post(STOPS, json=NEW | {"name": "s3"})
    assert (await client.get("/api/v1/counts")).json()["stopped_until"] is None


async def test_the_policy_says_who_may(shop, client):
    """Those who may not are refused in one sentence, and nothing is recorded (I8)."""
    await apply(shop, RIGHTS)
    refused = await client.post(STOPS, json=NEW)
    assert refused.status_code == 403
    assert refused.json()["detail"].startswith("ana may not stop shop: may_stop in the policy")
    assert (await client.get(STOPS)).json()["stops"] == []

    shop.visitor = Visitor("oncall", frozenset({Role.REVIEWER}))
    given = await client.post(STOPS, json=NEW)
    assert given.json()["resumes_needed"] == 2
    resume = f"{STOPS}/shop/oncall/s1/resume"
    refused = await client.post(resume, json={})
    assert refused.status_code == 403
    assert refused.json()["detail"].startswith("oncall may not resume shop: may_resume")
    shop.visitor = Visitor("ana", frozenset({Role.REVIEWER}))
    first = (await client.post(resume, json={})).json()
    assert (first["status"], first["resumed_by"]) == ("in force", ["ana"])
    assert (await client.post(resume, json={})).status_code == 409
    shop.visitor = BEN
    second = (await client.post(resume, json={})).json()
    assert (second["status"], second["resumed_by"]) == ("ended", ["ana", "ben"])


async def test_only_reviewers_stop_and_resume(shop, client):
    shop.visitor = OPS
    for path, body in ((STOPS, NEW), (f"{STOPS}/shop/ana/s1/resume", {})):
        refused = await client.post(path, json=body)
        assert refused.status_code == 403
        assert "it needs the role reviewer" in refused.json()["detail"]
    assert (await client.get(STOPS)).json() == {"stops": [], "in_force": 0, "next": None}


BAD_INPUT = [
    ({"workspace": ""}, "body.workspace"),
    ({"workspace": "_policy"}, "workspace '_policy'"),
    ({"workspace": "a b"}, "workspace 'a b'"),
    ({"reason": " "}, "a stop needs a reason"),
    ({"agents": []}, "body.agents"),
    ({"agents": [""]}, "--agent is empty, so the stop would cover nothing"),
    ({"tools": ["a:b"]}, "a:b"),
    ({"for_s": 0}, "the stop would last 0.0 seconds: give a number above 0"),
    ({"for_s": 1e12}, "a century at most"),
    ({"name": "a/b"}, "name 'a/b'"),
    ({"until": "tomorrow"}, "body.until"),
]


async def test_bad_input_is_one_sentence(shop, client):
    for fields, says in BAD_INPUT:
        refused = await client.post(STOPS, json=NEW | fields)
        assert refused.status_code == 422, refused.text
        assert says in refused.json()["detail"]
    assert await shop.service.read(StopRef("shop", "ana", "s1")) == ()
    unknown = await client.post(f"{STOPS}/shop/ana/none/resume", json={})
    assert unknown.status_code == 422
    assert unknown.json()["detail"].startswith("there is no stop shop/ana/none.")


async def test_a_stop_of_all_workspaces_is_listed_in_each(shop, client):
    """Those in force come first, then the newest, page by page."""
    for name in ("s1", "s2"):
        await client.post(STOPS, json=NEW | {"name": name})
    await client.post(STOPS, json=NEW | {"workspace": "bank"})
    everywhere = await client.post(STOPS, json=NEW | {"workspace": ORGANISATION})
    assert everywhere.json()["stop"] == "_organisation/ana/s1"
    await client.post(f"{STOPS}/shop/ana/s2/resume", json={})
    whole = (await client.get(f"{STOPS}?workspace=shop")).json()
    assert [one["stop"] for one in whole["stops"]] == [
        "_organisation/ana/s1", "shop/ana/s1", "shop/ana/s2",
    ]  # fmt: skip
    first = (await client.get(f"{STOPS}?workspace=shop&limit=2")).json()
    assert (first["stops"], first["in_force"]) == (whole["stops"][:2], 2)
    rest = (await client.get(f"{STOPS}?workspace=shop&after={first['next']}")).json()
    assert (rest["stops"], rest["next"]) == (whole["stops"][2:], None)
    assert len((await client.get(STOPS)).json()["stops"]) == 4
    assert (await client.get(f"{STOPS}?after=x")).status_code == 422
    counts = (await client.get("/api/v1/counts?workspace=shop")).json()
    assert counts["stopped"] == ["_organisation", "shop"]
