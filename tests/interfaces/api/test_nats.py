"""The API over NATS, asked by plain nats-py."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import jsonschema
import nats
import nats.errors
import pytest
import pytest_asyncio
from console_client import Site, site
from nats.aio.client import Client

from ayes.interfaces.api import nats as service
from ayes.interfaces.api.nats import ENDPOINTS
from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.credentials import RegisteredLogin
from ayes.ledger.nats.keys import Key
from ayes.ops.actions import logins
from ayes.ops.broker.server import ensure_account
from ayes.schemas.events import Author
from ayes.schemas.slots import CallRef

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALL = "shop/order-17/refund-7"
REFUND = {
    "call": CALL,
    "tool": "refund",
    "arguments": '{"order": "A-17", "amount": 480}',
    "requester": "ben",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    async with site(tmp_path_factory.mktemp("api")) as shop:
        yield shop


@asynccontextmanager
async def plain(shop: Site, role: str) -> AsyncIterator[Client]:
    """nats-py with the login of a role, and nothing of ours."""
    login = await ensure_account(shop.server.store, role)
    denied: list[Exception] = []

    async def on_error(problem: Exception) -> None:
        denied.append(problem)

    client = await nats.connect(
        login.url,
        user=login.user,
        password=login.password,
        inbox_prefix=f"_INBOX.{role}._".encode(),
        error_cb=on_error,
    )
    client.denied = denied
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def with_a_key(
    shop: Site, name: str, workspaces: tuple[str, ...], role: str = "service"
) -> AsyncIterator[Client]:
    """The same with a login of its own."""
    now = datetime.now(UTC)
    new = RegisteredLogin(role, "", now + timedelta(hours=1), now, workspaces)
    file = await logins.add(shop.server.store, name, new, "for a test")
    key, denied, client = Key(seed=file.seed), list[Exception](), Client()

    async def on_error(problem: Exception) -> None:
        denied.append(problem)

    client._public_nkey = key.public  # nats-py itself takes a seed only
    await client.connect(
        file.url,
        signature_cb=key.answer,
        inbox_prefix=f"_INBOX.{name}._".encode(),
        error_cb=on_error,
    )
    client.denied = denied
    try:
        yield client
    finally:
        await client.close()


async def asked(client: Client, subject: str, **fields: object) -> dict:
    """The answer, once there is a console that answers. An error has its problem in `detail`."""
    async with asyncio.timeout(60):
        while True:
            try:
                answer = await client.request(subject, json.dumps(fields).encode(), timeout=60)
            except nats.errors.NoRespondersError:
                await asyncio.sleep(0.02)
                continue
            found = json.loads(answer.data)
            if headers := answer.headers:
                assert headers["Nats-Service-Error-Code"] == str(found["status"])
                assert headers["Nats-Service-Error"] == " ".join(found["detail"].split())
            return found


async def test_a_whole_approval_is_requests_and_replies(shop: Site):
    async with plain(shop, "service") as billing, plain(shop, "reviewer-ana") as ana:
        as_service, as_ana = "approvals.service.billing", "approvals.reviewer.ana"
        requested = await asked(billing, f"{as_service}.request", **REFUND)
        assert requested["call"] == CALL
        again = await asked(billing, f"{as_service}.request", **REFUND)
        assert (again["call"], again["digest"]) == (CALL, requested["digest"])
        waits = await asked(billing, f"{as_service}.wait", call=CALL, timeout_s=0.05)
        assert waits["decided"] is False
        while not (pending := (await asked(ana, f"{as_ana}.pending", q="is:mine"))["calls"]):
            pass
        [entry] = pending
        waiting = asyncio.create_task(asked(billing, f"{as_service}.wait", call=CALL, timeout_s=60))
        voted = await asked(
            ana, f"{as_ana}.decide", call=CALL, verdict="approve", digest=entry["digest"]
        )
        assert voted["status"] in ("pending", "approved")
        decided = await waiting
        assert (decided["decided"], decided["state"]["status"]) == (True, "approved")
        claim = {"call": CALL, "claim": "4f6ad0ae-7a1b-4b53-9c9a-0f5c4e8a2d11"}
        claimed = await asked(billing, f"{as_service}.claim", **claim)
        assert claimed["arguments"] == REFUND["arguments"]
        other = claim | {"claim": "4f6ad0ae-7a1b-4b53-9c9a-0f5c4e8a2d12"}
        assert (await asked(billing, f"{as_service}.claim", **other))["status"] == 409
        ended = await asked(billing, f"{as_service}.finish", call=CALL, output="480 given back")
        assert ended["status"] == "returned"
        shown = await asked(ana, f"{as_ana}.show", call=CALL)
        assert [one["reviewer"] for one in shown["votes"]] == ["ana"]
        [author] = {fact["by"] for fact in shown["facts"] if fact["event"]["type"] == "ToolStarted"}
        assert "billing" in author


async def test_a_login_of_some_workspaces_asks_with_these(shop: Site):
    """B74: the broker lets it name no others, and it is answered as if there were none."""
    scoped = "approvals.service.desk.bank+till"
    async with with_a_key(shop, "desk", ("bank", "till")) as desk:
        await shop.ask("shop/order-1/refund-1")
        show = {"call": "shop/order-1/refund-1"}
        found = await asked(desk, f"{scoped}.show", **show)
        assert (found["status"], found["detail"]) == (
            404,
            "shop/order-1/refund-1 was never requested. `ayes pending` lists what waits.",
        )
        assert (await asked(desk, f"{scoped}.pending"))["waiting"] == 0
        said = {"thread": "bank/t1", "text": "Hello.", "message": "m1"}
        assert (await asked(desk, f"{scoped}.say", **said))["seq"]
        refused = await asked(desk, f"{scoped}.say", **said | {"thread": "shop/t1"})
        assert refused["status"] == 403
        for other in ("approvals.service.desk", "approvals.service.desk.shop"):
            inbox = desk.new_inbox()
            answers = await desk.subscribe(inbox)
            await desk.publish(f"{other}.show", json.dumps(show).encode(), reply=inbox)
            await desk.flush()
            with pytest.raises(nats.errors.TimeoutError):
                await answers.next_msg(timeout=0.2)
            assert desk.denied, other
            desk.denied.clear()


async def test_a_stop_over_nats(shop: Site):
    """A reviewer stops in their own name, another one resumes; a service may only read."""
    new = {"workspace": "shop", "name": "s1", "reason": "A wrong account."}
    async with (
        plain(shop, "service") as billing,
        plain(shop, "reviewer-ana") as ana,
        plain(shop, "reviewer-ben") as ben,
    ):
        refused = await asked(billing, "approvals.service.billing.stop", **new)
        assert (refused["status"], refused["type"]) == (403, "urn:ayes:error:NotAllowed")
        given = await asked(ana, "approvals.reviewer.ana.stop", **new)
        assert (given["stop"], given["status"]) == ("shop/ana/s1", "in force")
        found = await asked(billing, "approvals.service.billing.stops", workspace="shop")
        assert found["stops"] == [given]
        unnamed = await asked(ben, "approvals.reviewer.ben.resume")
        assert "the request names no stop: give 'stop' as workspace/giver/name" in unnamed["detail"]
        ended = await asked(ben, "approvals.reviewer.ben.resume", stop=given["stop"])
        assert (ended["status"], ended["resumed_by"]) == ("ended", ["ben"])


async def test_the_broker_says_who_asks(shop: Site):
    """No login asks in another's name: the request does not even reach the service (I8)."""
    digest = await shop.ask("shop/order-18/refund-1")
    vote = {"call": "shop/order-18/refund-1", "verdict": "approve", "digest": digest}
    async with plain(shop, "reviewer-ana") as ana, plain(shop, "observer") as observer:
        for client, subject in [
            (ana, "approvals.reviewer.ben.decide"),
            (ana, "approvals.service.desk.request"),
            (observer, "approvals.reviewer.ana.decide"),
            (observer, "approvals.operator.ana.show"),
        ]:
            inbox = client.new_inbox()
            answers = await client.subscribe(inbox)
            await client.publish(subject, json.dumps(vote).encode(), reply=inbox)
            await client.flush()
            with pytest.raises(nats.errors.TimeoutError):
                await answers.next_msg(timeout=0.2)
            assert client.denied, subject
            client.denied.clear()
        # Those who may only read are refused by the API.
        refused = await asked(observer, "approvals.observer.eve.decide", **vote)
        assert (refused["status"], refused["type"]) == (403, "urn:ayes:error:NotAllowed")
    known = await shop.service.known_call(CallRef.parse("shop/order-18/refund-1"))
    assert known.votes == ()


async def test_a_reply_subject_is_no_way_around_it(shop: Site):
    """It has the broker send a question as the answer to a read; that leads nowhere."""
    digest = await shop.ask("shop/order-19/refund-1")
    vote = {"call": "shop/order-19/refund-1", "verdict": "approve", "digest": digest}
    async with plain(shop, "reviewer-ana") as ana:
        # Her own slot takes any bytes; nobody reads these as a vote.
        ref = CallRef.parse(vote["call"])
        await ana.request(ref.vote("ana").subject, json.dumps(vote).encode(), timeout=60)
        read = json.dumps({"last_by_subj": ref.vote("ana").subject}).encode()
        for subject in ("approvals.reviewer.ben.decide", "approvals.service.ana.request"):
            await ana.publish("$JS.API.DIRECT.GET.LEDGER", read, reply=subject)
        await ana.flush()
        await asked(ana, "approvals.reviewer.ana.show", call=vote["call"])
    known = await shop.service.known_call(ref)
    assert {fact.slot.tail[2:] for fact in known.facts} == {
        ("requested",),
        ("gated",),
        ("vote", "ana"),
    }


@pytest.mark.parametrize(
    ("endpoint", "payload", "status", "said"),
    [
        ("request", b"no", 422, "the request is not a JSON object"),
        ("request", b"[]", 422, "the request is not a JSON object"),
        ("request", b"[" * 100_000, 422, "the request is not a JSON object"),
        ("request", b'{"call": "shop/a/b", "tool": "\xff"}', 422,
         "the request is not a JSON object"),
        ("request", b"{}", 422, "the request names no call: give 'call' as workspace/thread/call."),
        ("request", b'{"call": "shop/x"}', 422, "'shop/x' is not of the form workspace/thread/"),
        ("request", b'{"call": "shop/../x", "tool": "refund"}', 422, "'..'"),
        ("request", b'{"call": "shop/a/b", "tool": "refund", "colour": 1}', 422, "body.colour"),
        ("request", b'{"call": "shop/a/b", "tool": 7}', 422, "body.tool"),
        ("request", b'{"call": "shop/a/b", "tool": "none"}', 404, "none"),
        ("wait", b'{"call": "shop/a/never"}', 404, "never requested"),
        ("wait", b'{"call": "shop/a/never", "timeout_s": 61}', 422, "timeout_s"),
        ("wait", b'{"call": "shop/a/never", "timeout_s": "NaN"}', 422, "timeout_s"),
        ("history", b'{"call": "shop/a/b"}', 422, "the request names no thread"),
        ("fly", b'{"call": "shop/a/b"}', None, ""),
    ],
)  # fmt: skip
async def test_a_bad_request_is_one_sentence(shop: Site, endpoint, payload, status, said):
    async with plain(shop, "service") as client:
        await asked(client, "approvals.service.billing.pending")
        subject = f"approvals.service.billing.{endpoint}"
        if status is None:
            with pytest.raises(nats.errors.NoRespondersError):
                await client.request(subject, payload, timeout=60)
            return
        answer = await client.request(subject, payload, timeout=60)
    found = json.loads(answer.data)
    assert (found["status"], answer.headers["Nats-Service-Error-Code"]) == (status, str(status))
    assert said in answer.headers["Nats-Service-Error"]
    assert "\n" not in answer.headers["Nats-Service-Error"]


async def test_it_describes_itself(shop: Site):
    """Every endpoint has the schemas of its requests and answers, without references outside."""
    async with plain(shop, "observer") as client:
        await asked(client, "approvals.observer.eve.pending")
        info = json.loads((await client.request("$SRV.INFO.approvals", b"", timeout=60)).data)
        found = {one["name"]: one for one in info["endpoints"]}
        subjects = {one["subject"] for one in info["endpoints"]}
        assert found.keys() == ENDPOINTS.keys()
        for name, one in found.items():
            assert subjects >= {f"approvals.*.*.{name}", f"approvals.*.*.*.{name}"}
            assert one["metadata"]["description"].endswith(".")
            for schema in ("request_schema", "response_schema"):
                jsonschema.Draft202012Validator.check_schema(json.loads(one["metadata"][schema]))
                assert "components" not in one["metadata"][schema]
        request = jsonschema.Draft202012Validator(
            json.loads(found["request"]["metadata"]["request_schema"])
        )
        request.validate(REFUND)
        for wrong in ({**REFUND, "tool": 7}, {**REFUND, "colour": "red"}, {"tool": "refund"}):
            assert list(request.iter_errors(wrong)), wrong
        answer = jsonschema.Draft202012Validator(
            json.loads(found["pending"]["metadata"]["response_schema"])
        )
        answer.validate(await asked(client, "approvals.observer.eve.pending"))


async def test_many_wait_at_once(shop: Site):
    """A request that waits holds up no other."""
    refs = [f"shop/crowd/refund-{number}" for number in range(12)]
    digests = [await shop.ask(ref) for ref in refs]
    async with plain(shop, "service") as client, plain(shop, "reviewer-ana") as ana:
        waiting = [
            asyncio.create_task(
                asked(client, "approvals.service.billing.wait", call=ref, timeout_s=60)
            )
            for ref in refs
        ]
        assert await asked(client, "approvals.service.billing.show", call=refs[0])
        for ref, digest in zip(refs, digests, strict=True):
            vote = {"call": ref, "verdict": "deny", "digest": digest}
            await asked(ana, "approvals.reviewer.ana.decide", **vote)
        found = await asyncio.gather(*waiting)
    assert {one["state"]["status"] for one in found} <= {"denied", "refused"}


async def test_null_is_a_field_that_was_left_out(shop: Site):
    """In a query as in a body."""
    async with plain(shop, "reviewer-ana") as ana:
        assert "calls" in await asked(ana, "approvals.reviewer.ana.pending", q=None)


async def test_an_answer_that_is_too_large_is_an_error(shop: Site):
    """It says where to read it; the connection stays (1 MiB is NATS' own limit)."""
    thread = "shop/long"
    async with plain(shop, "service") as client:
        for number in range(6):
            said = {"thread": thread, "text": "x" * 200_000, "message": f"m{number}"}
            await asked(client, "approvals.service.billing.say", **said)
        refused = await asked(client, "approvals.service.billing.history", thread=thread)
        assert (refused["status"], "HTTP" in refused["detail"]) == (413, True)
        assert await asked(client, "approvals.service.billing.pending")


async def test_without_a_console_the_broker_says_so_at_once(tmp_path):
    """No answer is an error, never a yes."""
    async with site(tmp_path) as shop:
        pass
    from brokers import running

    async with running(shop.server.store.path) as server, Ledger.connect(server.store.path):
        login = server.store.login("service")
        client = await nats.connect(
            login.url, user=login.user, password=login.password, inbox_prefix=b"_INBOX.service._"
        )
        with pytest.raises(nats.errors.NoRespondersError):
            await client.request("approvals.service.billing.wait", b"{}", timeout=60)
        await client.close()


async def test_an_error_about_something_long_is_answered_too(shop: Site):
    """Its sentence is cut in the header, which a message has little room for."""
    async with plain(shop, "service") as client:
        await asked(client, "approvals.service.billing.pending")
        body = json.dumps({"call": f"shop/t/{'x' * 700_000}"}).encode()
        answer = await client.request("approvals.service.billing.wait", body, timeout=60)
    assert answer.headers["Nats-Service-Error-Code"] in ("413", "422")
    assert len(answer.headers["Nats-Service-Error"]) <= 1_000


async def test_a_name_of_ones_own_makes_nobody_a_person(shop: Site):
    """I7, I8, B27: whoever may only read calls himself rita, whose call it is, and withdraws
    nothing. Rita does, and the record says with which login she came.
    """
    await shop.ask("shop/order-23/refund-1")
    fields = {"call": "shop/order-23/refund-1", "reason": "Mine."}
    for role in ("observer", "operator"):
        async with plain(shop, role) as client:
            refused = await asked(client, f"approvals.{role}.rita.withdraw", **fields)
            assert (refused["status"], refused["type"]) == (403, "urn:ayes:error:NotAllowed")
    async with plain(shop, "reviewer-rita") as rita:
        done = await asked(rita, "approvals.reviewer.rita.withdraw", **fields)
        assert done["call"] == fields["call"]
    known = await shop.service.known_call(CallRef.parse("shop/order-23/refund-1"))
    assert known.withdrawn.event.by == Author("service", "reviewer rita")


async def test_the_waits_of_one_login_hold_up_nobody_else(shop: Site, monkeypatch):
    """I8: an observer who takes all places under many names has taken only those of observers."""
    monkeypatch.setattr(service, "_MAX_AT_ONCE", 2)
    digest = await shop.ask("shop/order-24/refund-1")
    fields = {"call": "shop/order-24/refund-1", "timeout_s": 30}
    async with plain(shop, "observer") as observer, plain(shop, "reviewer-ana") as ana:
        held = [
            asyncio.create_task(asked(observer, f"approvals.observer.x{number}.wait", **fields))
            for number in range(5)
        ]
        async with asyncio.timeout(60):
            ends = asyncio.as_completed(held)
            assert [(await next(ends))["status"] for _ in range(3)] == [503] * 3
        assert "calls" in await asked(observer, "approvals.observer.x9.pending")
        waits = asyncio.create_task(asked(ana, "approvals.reviewer.ana.wait", **fields))
        vote = {"call": fields["call"], "verdict": "deny", "digest": digest}
        await asked(ana, "approvals.reviewer.ana.decide", **vote)
        assert (await waits)["decided"]
        await asyncio.gather(*held)


async def test_one_request_too_many_is_told_to_try_again(shop: Site, monkeypatch):
    monkeypatch.setattr(service, "_MAX_AT_ONCE", 1)
    await shop.ask("shop/order-22/refund-1")
    async with plain(shop, "service") as client:
        fields = {"call": "shop/order-22/refund-1", "timeout_s": 2}
        each = [
            asyncio.create_task(asked(client, "approvals.service.billing.wait", **fields))
            for _ in range(3)
        ]
        found = await asyncio.gather(*each)
    assert sorted(one.get("status", 200) for one in found) == [200, 503, 503]
    assert {one.get("detail") for one in found if "detail" in one} == {
        "too many requests at once. Nothing was recorded; try again in a moment."
    }


async def test_a_console_that_ends_tells_those_who_wait(tmp_path):
    """They ask again at once: they are told, and nobody answers any more."""
    others = asyncio.all_tasks()
    async with site(tmp_path) as shop, plain(shop, "service") as client:
        await shop.ask("shop/order-21/refund-1")
        await asked(client, "approvals.service.billing.pending")
        [over_nats] = [
            task for task in asyncio.all_tasks() - others if task.get_name() == "the API over NATS"
        ]
        body = json.dumps({"call": "shop/order-21/refund-1", "timeout_s": 60}).encode()

        async def waits() -> dict:
            answer = await client.request("approvals.service.billing.wait", body, timeout=60)
            with pytest.raises(nats.errors.NoRespondersError):
                await client.request("approvals.service.billing.wait", body, timeout=60)
            return json.loads(answer.data)

        waiting = [asyncio.create_task(waits()) for _ in range(20)]
        await asked(client, "approvals.service.billing.show", call="shop/order-21/refund-1")
        over_nats.cancel()
        for found in await asyncio.gather(*waiting):
            assert (found["status"], "ask again" in found["detail"]) == (503, True)
