"""Lists of calls, and the record of one, over HTTP."""

from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec
import pytest
from console_client import listed, site
from shop import rule
from until import recorded

from ayes.interfaces.api.identity import Role, Visitor
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.chain import thread_below
from ayes.schemas import events as e
from ayes.schemas.slots import CallRef, person_slot
from ayes.schemas.tools import ToolSpec

CALL = "shop/order-17/refund-1"
PATH = f"/api/v1/calls/{CALL}"
PENDING = "/api/v1/calls?status=pending"
DOUBTFUL = "/api/v1/calls?status=in_doubt"
POLICY_OF_TWO = rule("large refunds", "ask", "votes_needed = 2")
POLICY_OF_LEA = rule("large refunds", "ask", 'voters = ["lea"]')


def names(page):
    return [one["call"].split("/")[-1] for one in page["calls"]]


async def may(client, call):
    """The actions that the visitor may take, and why not the others."""
    record = (await client.get(f"/api/v1/calls/{call}")).json()
    refusals = {one["action"]: one["refusal"] for one in record["may"]}
    return {action for action, refusal in refusals.items() if not refusal}, refusals


async def test_a_call_is_listed_and_decided(shop, client):
    digest = await shop.ask(CALL)
    [found] = (await listed(client, 1))["calls"]
    assert (found["call"], found["tool"]) == (CALL, "refund")
    assert found["arguments"] == '{"order":"A-17","amount":480}'
    assert (found["mine"], found["voted"]) == (True, False)
    voted = await client.post(f"{PATH}/votes", json={"verdict": "approve", "digest": digest})
    assert voted.json()["status"] == "approved", voted.text
    assert (await listed(client, 0))["calls"] == []
    record = (await client.get(PATH)).json()
    for status in ("approved", "decided"):
        [found] = (await client.get(f"/api/v1/calls?status={status}")).json()["calls"]
        assert (found["call"], found["by"]) == (CALL, ["ana"])
    assert (await client.get("/api/v1/calls?status=returned")).json()["calls"] == []
    kinds = [fact["event"]["type"] for fact in record["facts"]]
    assert kinds == ["ToolRequested", "ApprovalRequested", "Voted", "Approved"]


async def test_lists_have_filters_orders_and_pages(shop, client):
    for number in range(1, 6):
        await shop.ask(f"shop/order-{number % 2}/refund-{number}")
    page = await listed(client, 5)
    assert names(page) == [f"refund-{number}" for number in range(1, 6)]
    for order, first in (("age", ["refund-1", "refund-2"]), ("-age", ["refund-5", "refund-4"])):
        found, query = [], f"{PENDING}&sort={order}&limit=2"
        while query:
            page = (await client.get(query)).json()
            found += names(page)
            query = page["next"] and f"{PENDING}&sort={order}&limit=2&after={page['next']}"
        assert (found[:2], len(set(found)), page["waiting"]) == (first, 5, 5)
    filters = {
        "q=thread:shop/order-1": 3,
        "workspace=shop&q=tool:re*": 5,
        "workspace=elsewhere": 0,
        'q=rule:"large refunds" rita': 5,
        "q=rule:another": 0,
        "q=is:overdue": 0,
        "q=amount>100 A-17": 5,
        "q=-amount>100": 0,
    }
    for chosen, count in filters.items():
        assert len((await client.get(f"{PENDING}&{chosen}")).json()["calls"]) == count, chosen


async def test_what_is_mine_is_what_i_may_decide(shop, client):
    """The requester sees the call and may only withdraw it; an auditor may nothing."""
    await shop.ask(CALL)
    await listed(client, 1)
    assert names((await client.get(f"{PENDING}&q=is:mine")).json()) == ["refund-1"]
    able, _ = await may(client, CALL)
    assert able == {
        "approve",
        "deny",
        "answer",
        "edit",
        "withdraw",
        "comment",
        "hand_over",
        "reveal",
    }

    shop.visitor = Visitor("rita", frozenset({Role.REVIEWER}))
    page = (await client.get(PENDING)).json()
    assert [one["mine"] for one in page["calls"]] == [False]
    assert names((await client.get(f"{PENDING}&q=is:mine")).json()) == []
    able, why_not = await may(client, CALL)
    assert able == {"withdraw", "comment", "reveal"}
    assert why_not["approve"].startswith(f"rita asked for {CALL}")

    shop.visitor = Visitor("cai", frozenset({Role.AUDITOR}))
    able, why_not = await may(client, CALL)
    assert able == set()
    assert "it needs the role reviewer" in why_not["deny"]


async def test_what_a_sub_agent_asks_shows_the_calls_above(shop, client):
    """In the queue and in the record, of the API and as pages; hidden characters are marked."""
    root = "shop/order-17/delegate-1"
    spec = ToolSpec(name="delegate", schema='{"type":"object"}')
    await shop.service.declare("shop", spec)
    await shop.service.request(root, "delegate", {}, requester="rita", agent="desk\u202e")
    [fact] = await recorded(shop.service, CallRef.parse(root).gated.subject)
    vote = {"verdict": "approve", "digest": fact.event.digest}
    await client.post(f"/api/v1/calls/{root}/votes", json=vote)
    await shop.service.decision(root, timeout_s=60)
    below, opened = thread_below(await shop.service.start(root), agent="helper")
    await shop.service.append(below.opened, opened)
    await shop.ask(str(below.call("refund-1")))

    chain = [{"call": root, "tool": "delegate", "agent": "desk\u202e", "class": None}]
    [found] = (await listed(client, 1))["calls"]
    assert (found["call"], found["chain"]) == (f"{below}/refund-1", chain)
    record = (await client.get(f"/api/v1/calls/{below}/refund-1")).json()
    assert record["question"]["chain"] == chain
    pages = [(await client.get(path)).text for path in ("/", f"/calls/{below}/refund-1")]
    assert "in the run of delegate" in pages[0]
    assert f'href="/calls/{root}"' in pages[1]
    assert 'delegate</a> by desk<mark class="hidden-character">U+202E</mark>' in pages[1]
    assert not any("\u202e" in page for page in pages)


async def test_how_a_call_can_be_undone_is_shown_wherever_it_is_decided(shop, client):
    """In the queue and in the record, of the API and as pages; after its return, until when."""
    undone = {"class": "reversible", "undo": "reopen", "undo_within_s": 3600}
    spec = {"name": "close", "schema": '{"type":"object"}', **undone}
    await shop.service.declare("shop", ToolSpec.model_validate(spec))
    tools = (await client.get("/api/v1/tools/shop")).json()
    assert [one["class"] for one in tools if one["name"] == "close"] == ["reversible"]
    ref = CallRef.parse("shop/order-17/close-1")
    await shop.service.request(ref, "close", {}, requester="rita")
    await recorded(shop.service, ref.gated.subject)
    [found] = (await listed(client, 1))["calls"]
    state = (await client.get(f"/api/v1/calls/{ref}")).json()["state"]
    assert found["undoing"] == state["undoing"] == undone
    assert state["undo_until"] is None
    for path in ("/", f"/calls/{ref}"):
        page = (await client.get(path)).text
        assert "reversible, undone with reopen, within 1 hour after it returned" in page
    vote = {"verdict": "approve", "digest": found["digest"]}
    await client.post(f"/api/v1/calls/{ref}/votes", json=vote)
    await shop.service.decision(ref, timeout_s=60)
    await shop.service.start(ref)
    ended = await shop.service.finish(ref, output="closed")
    until = ended.finished.recorded_at + timedelta(hours=1)
    state = (await client.get(f"/api/v1/calls/{ref}")).json()["state"]
    assert datetime.fromisoformat(state["undo_until"]) == until
    page = (await client.get(f"/calls/{ref}")).text
    assert f'can be undone until <time datetime="{until:%Y-%m-%dT%H:%M:%SZ}">' in page
    # A tool that declares nothing is shown as before.
    await shop.ask(CALL)
    assert (await client.get(PATH)).json()["state"]["undoing"] is None
    assert "class:" not in (await client.get(f"/calls/{CALL}")).text


async def test_a_call_that_runs_can_be_withdrawn_if_something_was_asked_in_its_run(shop, client):
    """The button is there when it does something (B67)."""
    digest = await shop.ask(CALL)
    vote = {"verdict": "approve", "digest": digest}
    await client.post(f"{PATH}/votes", json=vote)
    await shop.service.decision(CALL, timeout_s=60)
    call = await shop.service.start(CALL)
    able, why_not = await may(client, call.ref)
    assert "withdraw" not in able
    assert why_not["withdraw"].endswith("It runs, and no sub-agent asks in its run.")
    below, opened = thread_below(call, agent="helper")
    await shop.service.append(below.opened, opened)
    able, _ = await may(client, call.ref)
    assert "withdraw" in able
    page = (await client.get(f"/calls/{call.ref}")).text
    assert "It goes on. The calls that its sub-agents asked for are withdrawn." in page
    done = await client.post(f"/api/v1/calls/{call.ref}/withdraw", json={})
    assert (done.status_code, done.json()["status"]) == (200, "running")
    assert "withdraw" not in (await may(client, call.ref))[0]


@pytest.mark.parametrize("shop", [POLICY_OF_LEA], indirect=True, ids=["lea"])
async def test_a_delegate_finds_what_is_theirs(shop, client):
    """Calls about which a person was asked are also of those to whom that person delegated."""
    await shop.ask(CALL)
    await listed(client, 1)
    assert names((await client.get(f"{PENDING}&q=is:mine")).json()) == []
    lea, now = await shop.app.state.backend.reviewer("lea"), datetime.now(UTC)
    hour = timedelta(hours=1)
    await lea.delegate("shop/lea/away", "ana", starts_at=now - hour, ends_at=now + hour)
    assert names((await client.get(f"{PENDING}&q=is:mine")).json()) == ["refund-1"]

    async with Ledger.connect(shop.server.store.path, role="organisation") as organisation:
        told, one_of_hr = organisation.record_person, e.PersonAdded(workspaces=("hr",))
        await told(partial(person_slot, "lea"), one_of_hr)  # her voice is not one here
        assert names((await client.get(f"{PENDING}&q=is:mine")).json()) == []
        await told(partial(person_slot, "lea"), e.PersonAdded())
        assert names((await client.get(f"{PENDING}&q=is:mine")).json()) == ["refund-1"]


@pytest.mark.parametrize("shop", [POLICY_OF_TWO], indirect=True, ids=["two votes"])
async def test_a_call_on_which_i_voted_is_mine_no_more(shop, client):
    digest = await shop.ask(CALL)
    await listed(client, 1)
    vote = {"verdict": "approve", "digest": digest, "reason": "within the rules"}
    voted = await client.post(f"{PATH}/votes", json=vote)
    assert (voted.json()["status"], voted.json()["agree"]) == ("pending", ["ana"])
    [found] = (await client.get(PENDING)).json()["calls"]
    assert (found["mine"], found["voted"]) == (False, True)
    mine = (await client.get(f"{PENDING}&q=is:mine")).json()
    assert (names(mine), mine["waiting"]) == ([], 0)
    counts = (await client.get("/api/v1/counts")).json()
    assert (counts["waiting"], counts["mine"]) == (1, 0)
    record = (await client.get(PATH)).json()
    [ballot] = record["votes"]
    assert (ballot["reviewer"], ballot["reason"], ballot["void"]) == ("ana", vote["reason"], "")
    assert record["state"]["missing"] == [{"voters": ["*"], "votes_needed": 1}]
    refusals = {one["action"]: one["refusal"] for one in record["may"]}
    assert refusals["approve"].startswith(f"ana has already voted on {CALL}")


async def test_a_record_has_what_a_reviewer_needs(shop, client):
    """The request, the rule and its reason, the tool's schema, and earlier calls of the thread."""
    first = await shop.ask(CALL, '{"order":"A-17","amount":1.20e2}')
    await shop.ask("shop/order-17/refund-2")
    await client.post(f"{PATH}/votes", json={"verdict": "deny", "digest": first})
    record = (await client.get("/api/v1/calls/shop/order-17/refund-2")).json()
    assert (record["requester"], record["run_by"]) == ("rita", "client")
    question = record["question"]
    assert (question["rule"], question["policy_version"]) == ("large refunds", 1)
    assert (question["reason"], question["excluded"]) == ("It gives money away.", ["rita"])
    assert msgspec.json.decode(record["tool_schema"])["required"] == ["order", "amount"]
    [earlier] = record["earlier"]
    assert earlier["arguments"] == '{"order":"A-17","amount":1.20e2}'
    assert (earlier["decision"], earlier["voters"]) == ("Denied", ["ana"])


async def test_a_fact_that_cannot_be_read_hides_no_record(shop, client):
    """One of a newer program, nested deeply, and one that is not even JSON."""
    await shop.ask(CALL)
    ref = CallRef.parse(CALL)
    newer = b'{"type":"Pondered","id":"1","deep":%b1%b}' % (b"[" * 5000, b"]" * 5000)
    await shop.service.log.append(ref.withdrawn, newer, "1")
    await shop.service.log.append(ref.client_claim(1), b"{", "2")
    record = (await client.get(PATH)).json()
    newer, broken = record["facts"][2:]
    assert newer["raw"].startswith('{"type":"Pondered"')
    assert (broken["raw"], bool(broken["problem"])) == ("{", True)
    assert (await client.get(f"/calls/{CALL}")).status_code == 200


async def test_a_call_in_doubt_is_listed_until_somebody_reconciles_it(shop, client):
    """A person may say that a runner is gone only once its claim has ended. (I7)"""
    digest = await shop.ask(CALL)
    await client.post(f"{PATH}/votes", json={"verdict": "approve", "digest": digest})
    await shop.service.start(CALL)
    shop.visitor = Visitor("ana", frozenset({Role.REVIEWER}))
    early = await client.post(f"{PATH}/doubt", json={})
    assert early.status_code == 409
    assert "may be alive" in early.json()["detail"]
    assert (await client.get(DOUBTFUL)).json()["calls"] == []
    await shop.service.doubt(CALL, "the process is gone")

    [found] = (await client.get(f"{DOUBTFUL}&q=is:mine")).json()["calls"]
    assert (found["call"], found["recorded"]) == (CALL, True)
    able, _ = await may(client, CALL)
    assert able == {"reconcile", "comment", "reveal"}
    record = (await client.get(PATH)).json()
    assert (record["doubt"]["claimed_by"], record["doubt"]["late"]) == ("desk", None)

    without = await client.post(f"{PATH}/reconcile", json={"late": True})
    assert without.json()["detail"].startswith(f"{CALL} has no late result")
    said = {"happened": True, "output": "the bank has it"}
    done = await client.post(f"{PATH}/reconcile", json=said)
    assert done.json()["status"] == "reconciled", done.text
    assert (await client.get(DOUBTFUL)).json()["calls"] == []


async def test_a_request_without_an_answer_is_a_problem(client):
    """An error is problem+json with the sentence of the command line (RFC 9457): a cursor that is
    none, conditions that a status does not have, and a call that was never requested.
    """
    for after in ("x", "1-", "9" * 5000 + "-a", "1-a/b", "٣-a"):
        answer = await client.get("/api/v1/calls", params={"after": after})
        assert (answer.status_code, after) == (422, after)
        assert "is not a cursor" in answer.json()["detail"]
    for query in ("status=decided&q=is:mine", "status=in_doubt&q=is:overdue", "status=requested"):
        assert (await client.get(f"/api/v1/calls?{query}")).status_code == 422, query
    answer = await client.get("/api/v1/calls/shop/order-17/nothing")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"].startswith("shop/order-17/nothing was never requested.")


async def test_a_tool_of_a_server_has_its_own_name_everywhere(tmp_path):
    """Its slash and its dot are no part of a path: the page, the record and the lists show it."""
    spec = ToolSpec(name="github/create_issue.v2", schema='{"type":"object"}')
    async with site(tmp_path, "", spec) as shop, shop.client() as client:
        await shop.ask("shop/t/c-1", "{}", spec.name)
        [found] = (await listed(client, 1))["calls"]
        record = (await client.get("/api/v1/calls/shop/t/c-1")).json()
        [declared] = (await client.get("/api/v1/tools/shop")).json()
        assert {found["tool"], record["state"]["tool"], declared["name"]} == {spec.name}
        chosen = await client.get("/api/v1/calls?status=pending&q=tool:github/*")
        assert [one["tool"] for one in chosen.json()["calls"]] == [spec.name]
        page = await client.get("/calls/shop/t/c-1")
        assert page.status_code == 200
        assert spec.name in page.text
        assert spec.name in (await client.get("/")).text
