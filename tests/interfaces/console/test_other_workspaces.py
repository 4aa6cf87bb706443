"""B74: nothing of another workspace, on any page, in any answer of the API, by any role.

Every route of the application is asked about `bank`, with the ids that its log has, and about
`gone`, which never was. But for the name the two answers are the same. The table of what to send is
below: a route that is not in it fails.
"""

import base64
import hashlib
import json
import re
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio
from console_client import POLICY, REFUND, routes, site
from long import sampled
from until import recorded, until

from ayes.interfaces.api.nats import ENDPOINTS, PREFIX, answer_to
from ayes.interfaces.console.application import api
from ayes.ops.broker.setup import propose_policy
from ayes.ops.sealing.files import make_key
from ayes.ops.visitors import Role, Visitor
from ayes.schemas import events as e
from ayes.schemas.content import attached
from ayes.schemas.links import action_token
from ayes.schemas.policy import applied
from ayes.schemas.slots import ORGANISATION, CallRef, policy_slot

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Stands in everything that is recorded in `bank`, and in nothing else.
MARK = "zircon"
OWN, OTHER, GONE = "shop", "bank", "gone"
ARGUMENTS = '{"order":"zircon","amount":480}'
#: Of the file, and of the picture in the arguments of a call.
DIGEST = hashlib.sha256(MARK.encode()).hexdigest()
PICTURE = f"data:image/png;base64,{base64.b64encode(MARK.encode()).decode()}"
CLAIM = "4f6ad0ae-7a1b-4b53-9c9a-0f5c4e8a2d11"
REASON = {"reason": "So."}
CALL = "{workspace}/{thread}/{call}"
CALL_NAMES = ("workspace", "thread", "call")
SOON, LATER = ((datetime.now(UTC) + timedelta(days=one)).isoformat() for one in (1, 2))

#: What each route that is not a GET is sent: as JSON below /api/, else as a form.
BODIES = {
    "POST /devices": {"endpoint": "https://push.example/1"},
    "POST /devices/{id_}/remove": {},
    "POST /passkeys": {"made": "{}"},
    "POST /views": {"name": "v9", "q": "", "workspace": "{workspace}"},
    "POST /views/remove": {"name": "v1", "author": "zoe"},
    "PUT /api/v1/views": {"name": "v9", "workspace": "{workspace}"},
    "DELETE /api/v1/views": {},
    "PUT /api/v1/calls/{workspace}/{thread}/{call}": {"tool": "refund", "arguments": ARGUMENTS},
    "POST /api/v1/calls/{workspace}/{thread}/{call}/check": {"arguments": ARGUMENTS},
    "POST /api/v1/calls/{workspace}/{thread}/{call}/claim": {"claim": CLAIM},
    "POST /api/v1/calls/{workspace}/{thread}/{call}/renew": {"claim": CLAIM},
    "POST /api/v1/calls/{workspace}/{thread}/{call}/finish": {"output": "Done."},
    "POST /api/v1/calls/{workspace}/{thread}/{call}/doubt": REASON,
    "POST /api/v1/calls/{workspace}/{thread}/{call}/withdraw": REASON,
    "POST /api/v1/calls/{workspace}/{thread}/{call}/votes": {
        "verdict": "approve",
        "digest": "{digest}",
    },
    "POST /api/v1/calls/{workspace}/{thread}/{call}/revoke": REASON,
    "POST /api/v1/calls/{workspace}/{thread}/{call}/reconcile": {"happened": True},
    "POST /api/v1/calls/{workspace}/{thread}/{call}/comments": {"text": "So."},
    "POST /api/v1/calls/{workspace}/{thread}/{call}/hand": {"to": "ben"},
    "PUT /api/v1/calls/{workspace}/{thread}/{call}/snooze": {"until": SOON},
    "DELETE /api/v1/calls/{workspace}/{thread}/{call}/snooze": {},
    "POST /api/v1/votes": {"verdict": "deny", "calls": [{"call": CALL, "digest": "{digest}"}]},
    "POST /api/v1/threads/{workspace}/{thread}/messages": {"message": "m9", "text": "Hello."},
    "POST /api/v1/grants": [
        {"call": CALL, "for_s": 60, "name": "g9"},
        {
            "workspace": "{workspace}",
            "tool": "refund",
            "any_arguments": True,
            "for_s": 60,
            "name": "g9",
        },
    ],
    "POST /api/v1/grants/{workspace}/{giver}/{name}/revoke": REASON,
    "POST /api/v1/delegations": {
        "workspace": "{workspace}",
        "to": "ben",
        "starts_at": SOON,
        "ends_at": LATER,
        "name": "d9",
    },
    "POST /api/v1/delegations/{workspace}/{giver}/{name}/end": REASON,
    "POST /api/v1/stops": [
        {"workspace": "{workspace}", "name": "s9", **REASON},
        {"workspace": ORGANISATION, "name": "s9", **REASON},
    ],
    "POST /api/v1/stops/{workspace}/{giver}/{name}/resume": REASON,
    "POST /api/v1/policies/{workspace}": {"text": POLICY},
    "POST /api/v1/policies/{workspace}/try": {"text": POLICY},
    "POST /api/v1/policies/{workspace}/proposals": {"text": POLICY},
    "POST /api/v1/policies/{workspace}/proposals/{thread}/{call}/apply": {},
    "POST /api/v1/operations/parked/retry": {"numbers": [1]},
    "POST /api/v1/operations/parked/drop": {"numbers": [1]},
    "POST /allow/{workspace}/{thread}/{call}": {"digest": "{digest}", "duration": "60s"},
    "POST /bulk": {"verdict": "deny", "shown": CALL + " {digest}"},
    "POST /calls/{workspace}/{thread}/{call}/vote": {"verdict": "approve", "digest": "{digest}"},
    "POST /calls/{workspace}/{thread}/{call}/edit": {"raw": ARGUMENTS},
    "POST /calls/{workspace}/{thread}/{call}/{action}": REASON
    | {"happened": "true", "text": "So.", "to": "ben", "until": SOON},
    "POST /grants": [
        {"call": CALL, "duration": "60s", "name": "g9"},
        {
            "workspace": "{workspace}",
            "tool": "refund",
            "any_arguments": "true",
            "duration": "60s",
            "name": "g9",
        },
    ],
    "POST /grants/{workspace}/{giver}/{name}/revoke": REASON,
    "POST /delegations": {
        "workspace": "{workspace}",
        "to": "ben",
        "starts": SOON,
        "ends": LATER,
        "name": "d9",
    },
    "POST /delegations/{workspace}/{giver}/{name}/end": {},
    "POST /stops": {"workspace": "{workspace}", "name": "s9", "sure": "true", **REASON},
    "POST /stops/{workspace}/{giver}/{name}/resume": REASON,
    "POST /policy/{workspace}/try": {"text": POLICY},
    "POST /policy/{workspace}/apply": {"text": POLICY},
    "POST /policy/{workspace}/propose": {"text": POLICY},
    "POST /policy/{workspace}/proposals/{thread}/{call}/apply": {},
    "POST /operations/retry": {"number": 1},
    "POST /operations/drop": {"number": 1},
}
#: The queries of each GET route that names a workspace in one, besides none.
QUERIES = {
    "GET /api/v1/calls": ["workspace={workspace}", "q=thread:{workspace}/{thread}", "q=A-17"],
    "GET /api/v1/counts": ["workspace={workspace}"],
    "GET /api/v1/names": ["workspace={workspace}"],
    "GET /api/v1/views": ["workspace={workspace}"],
    "DELETE /api/v1/views": ["name=v1&author=zoe"],
    "GET /api/v1/decided": ["workspace={workspace}", "q=thread:{workspace}/{thread}"],
    "GET /api/v1/decided.jsonl": ["workspace={workspace}"],
    "GET /api/v1/grants": ["workspace={workspace}"],
    "GET /api/v1/delegations": ["workspace={workspace}"],
    "GET /api/v1/stops": ["workspace={workspace}"],
    "GET /api/v1/threads": ["workspace={workspace}"],
    "GET /api/v1/threads/{workspace}/{thread}/reply": ["turn=1"],
    "GET /": ["workspace={workspace}", "q=thread:{workspace}/{thread}", "q=A-17"],
    "GET /bulk": ["call=" + CALL],
    "GET /views": ["workspace={workspace}"],
    "GET /doubt": ["workspace={workspace}"],
    "GET /decided": ["workspace={workspace}"],
    "GET /conversations": ["workspace={workspace}"],
    "GET /grants": ["workspace={workspace}", "call=" + CALL],
    "GET /stops": ["workspace={workspace}"],
}
STATUSES = ["status=pending", "status=in_doubt", "status=decided"]
#: About no workspace; and the stream of events (tests/interfaces/api/test_scope.py).
LEFT_OUT = {
    "GET /api/v1/openapi.json",
    "GET /api/v1/events",
    "POST /api/v1/accounts",
    "GET /bind/{code}",
    "POST /bind/{code}",
    "GET /sign-in",
    "POST /sign-in",
    "GET /sign-in/start",
    "GET /sign-in/callback",
    "POST /sign-out",
}
#: About the whole site, for those who may see all of it.
WHOLE = "/operations"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def two(tmp_path_factory):
    """A console of two workspaces; `ids` are those of the log of `bank`."""
    async with site(tmp_path_factory.mktemp("two")) as site_of_two:
        await _fill(site_of_two)
        identity = await site_of_two.service.log.identity()
        make_key(site_of_two.server.store, f"approvals.example.com/{identity}")
        site_of_two.ids = await _ids_of(site_of_two)
        yield site_of_two


async def _fill(two):
    service, backend = two.service, two.app.state.backend
    operator = await backend.operator("sre")
    await operator.append(policy_slot(OTHER, 1), applied(POLICY.replace("gives", f"{MARK} gives")))
    await service.declare(OTHER, REFUND.model_copy(update={"description": f"A {MARK}."}))
    said = (e.Text(f"A {MARK}."), attached(MARK.encode(), "image/png", f"{MARK}.png"))
    await service.say(f"{OTHER}/order-1", said, message="m1")
    zoe = await backend.reviewer("zoe")
    for number, status in enumerate(("pending", "returned", "approved", "in_doubt"), 1):
        ref = CallRef(OTHER, "order-1", f"refund-{number}")
        shown = ARGUMENTS.replace("zircon", PICTURE) if status == "returned" else ARGUMENTS
        await service.request(ref, "refund", shown, requester=f"{MARK}-rita", agent=MARK)
        await recorded(service, ref.gated.subject)
        if status != "pending":
            await zoe.approve(ref, reason=f"A {MARK}.")
            await service.decision(ref, timeout_s=60)
        if status in ("returned", "in_doubt"):
            await service.start(ref)
        if status == "returned":
            await service.finish(ref, output=f"A {MARK}.")
        elif status == "in_doubt":
            await service.doubt(ref, f"A {MARK}.")
    await propose_policy(service, OTHER, POLICY + f"# {MARK}\n", "the policy", "zoe")
    await zoe.grant(f"{OTHER}/zoe/g1", "refund", for_s=9000, when=f'args.order == "{MARK}"')
    now = service.now()
    for to in "ana", "ben":
        await zoe.delegate(
            f"{OTHER}/zoe/to-{to}", to, starts_at=now, ends_at=now + timedelta(days=1), reason=MARK
        )
    await zoe.stop(f"{OTHER}/zoe/s1", reason=f"A {MARK}.", tools=(f"{MARK}*",))
    await zoe.stop(f"{ORGANISATION}/zoe/s1", reason="Everybody reads it.", tools=("none",))
    two.visitor = Visitor("zoe", frozenset({Role.REVIEWER}))
    async with two.client() as client:
        view = {"name": "v1", "q": MARK, "workspace": OTHER}
        (await client.put(f"{PREFIX}/views", json=view)).raise_for_status()
    await service.request(f"{OWN}/order-1/refund-1", "refund", '{"order":"A-1","amount":1}')
    await until(lambda: len(backend.waiting) == 3)


async def _ids_of(two):
    """By the names in a path: the ids of each thing that the log of `bank` has there."""
    ids = {("workspace", "version"): [{"version": "1"}], ("number",): [{"number": "1"}]}
    ids |= {("seq",): [{"seq": "1"}], ("id_",): [{"id_": "0" * 64}]}
    calls, links = ids[CALL_NAMES], ids[("token",)] = [], []
    key = two.app.state.backend.link_key
    for fact in await two.service.read(f"ledger.{OTHER}.>"):
        slot, event = fact.slot, fact.event
        match slot.tail:
            case ["call", call, "requested"]:
                calls.append({"thread": slot.thread, "call": call, "digest": event.digest})
                token = action_token(key, "ana", slot.call_ref, event.digest)
                links.append({"token": token})
            case ["said", *_]:
                thread = {"thread": slot.thread}
                ids[("workspace", "thread")] = [thread]
                ids[("workspace", "thread", "digest")] = [thread | {"digest": DIGEST}]
            case [kind, giver, name, "given"]:
                given = {"giver": giver, "name": name}
                ids.setdefault(("workspace", "giver", "name", f"{kind[1:]}s"), []).append(given)
    acts = ("withdraw", "revoke", "doubt", "reconcile", "hand", "comment", "snooze", "wake")
    ids[(*CALL_NAMES, "action")] = [calls[-2] | {"action": one} for one in acts]
    ids[(*CALL_NAMES, "digest")] = [one | {"digest": DIGEST} for one in calls]
    ids[()] = ids[("workspace",)] = calls[:1]  # in queries and bodies
    return ids


def asked(route, ids, workspace):
    """Each request of a route about this workspace: its path with a query, and its body."""
    method, path = route.split(" ")
    names = tuple(re.findall(r"\{(\w+)\}", path))
    if "giver" in names:  # of a grant, a delegation or a stop
        names += (path.partition("/{")[0].rpartition("/")[2],)
    assert names in ids, f"nobody says what {names} of {route} may be"
    bodies = [None] if method == "GET" else BODIES[route]
    queries = ["", *QUERIES.get(route, [])]
    if path in ("/api/v1/calls", "/doubt"):
        queries = [f"{query}&{one}" for query in queries for one in STATUSES]
    for named in ids[names]:
        for query in queries:
            for body in bodies if isinstance(bodies, list) else [bodies]:
                wanted = json.dumps([f"{path}?{query}", body])
                for name, value in {"workspace": workspace, **named}.items():
                    wanted = wanted.replace(f"{{{name}}}", value)
                yield json.loads(wanted)


def plain(text):
    """An answer without what differs from one request to the next."""
    text = re.sub(r'data-seq="\d*"|"seq":\d+', "", text)
    return re.sub(r"\b[gds]-[0-9a-f]{6,8}\b", "", text)


async def answers(client, route, ids, workspace):
    """The status and the text of each answer."""
    method = route.split(" ")[0]
    for path, body in asked(route, ids, workspace):
        sent = {} if body is None else {"json" if "/api/" in path else "data": body}
        answer = await client.request(method, path, **sent)
        text = f"{answer.headers.get('location', '')} {answer.text}"
        yield path, answer.status_code, plain(text)


VISITORS = [
    Visitor("ana", frozenset({Role.REVIEWER, Role.OPERATOR}), workspaces=(OWN, "desk")),
    Visitor("sre", frozenset({Role.OPERATOR}), "token", (OWN,)),
    Visitor("eve", frozenset({Role.AUDITOR}), workspaces=(OWN,)),
    Visitor("desk", frozenset({Role.SERVICE}), "token", (OWN,)),
]


@pytest.mark.parametrize("visitor", sampled(VISITORS, VISITORS[0]), ids=lambda one: one.name)
async def test_another_workspace_is_as_one_that_never_was(two, visitor):
    """B74: whoever may see `shop` learns nothing of `bank`, and records nothing there."""
    two.visitor = visitor
    elsewhere = [f"ledger.{one}.>" for one in (OTHER, GONE, ORGANISATION)]
    before = await two.service.read(*elsewhere)
    async with two.client() as client:
        for route in routes(two.app):
            if route in LEFT_OUT:
                continue
            of_gone = [one async for one in answers(client, route, two.ids, GONE)]
            of_bank = [one async for one in answers(client, route, two.ids, OTHER)]
            assert of_gone, route
            for (path, status, said), (_, *never) in zip(of_bank, of_gone, strict=True):
                asks, is_named = f"{route}: {path}", OTHER in path or route in BODIES
                assert [status, said.replace(OTHER, GONE)] == never, asks
                assert MARK not in said or MARK in str(BODIES.get(route)), asks
                assert is_named or OTHER not in said, asks
                assert status == 403 or WHOLE not in path, asks
            of_all = [one async for one in answers(client, route, two.ids, ORGANISATION)]
            for path, status, said in of_all:
                asks = f"{route}: {path}"
                assert status < 500, asks
                assert status == 403 or "resume" not in path, asks
                assert MARK not in said or MARK in str(BODIES.get(route)), asks
    assert await two.service.read(*elsewhere) == before


async def test_the_ids_are_those_of_the_other_workspace(two, monkeypatch):
    """What the test above asks about is there, for those who may see it; else it proves nothing."""
    monkeypatch.setattr("ayes.ops.sealing.receipts._SEALED_S", 0.01)  # no sealer runs here
    two.visitor = Visitor("ana", frozenset({Role.REVIEWER, Role.OPERATOR}))
    every = [*routes(two.app)]
    assert {one for one in every if "GET" not in one} == BODIES.keys() | {
        one for one in LEFT_OUT if "GET" not in one
    }
    async with two.client() as client:
        for route in every:
            names_one = "{" in route or route in QUERIES
            if route in {*BODIES, *LEFT_OUT} or WHOLE in route or not names_one:
                continue
            if route.endswith("/reply"):
                continue  # it would not end
            of_gone = [one async for one in answers(client, route, two.ids, GONE)]
            of_bank = [one async for one in answers(client, route, two.ids, OTHER)]
            pairs = zip(of_bank, of_gone, strict=True)
            found = [[a, b.replace(OTHER, GONE)] != never for (_, a, b), (_, *never) in pairs]
            assert any(found) or "{token}" in route, route


#: What requests over NATS call each name in a path, and the ids for it.
NAMED = {
    "call": (CALL, CALL_NAMES),
    "thread": ("{workspace}/{thread}", ("workspace", "thread")),
    "stop": ("{workspace}/{giver}/{name}", ("workspace", "giver", "name", "stops")),
}


@pytest.mark.parametrize("login", ["reviewer.ana", "operator.sre", "observer.eve", "service.desk"])
async def test_nor_is_it_told_over_nats(two, login):
    """The visitor's workspaces are those of the login, which the broker vouches for."""
    elsewhere = [f"ledger.{one}.>" for one in (OTHER, GONE, ORGANISATION)]
    before = await two.service.read(*elsewhere)
    for endpoint, (method, path) in ENDPOINTS.items():
        what = next((one for one in NAMED if f"{{{one}}}" in path), "")
        form, names = NAMED.get(what, ("", ()))
        route = f"{method} {PREFIX}{path.replace(f'{{{what}}}', form)}"
        sent = BODIES.get(route, {}) if route != "POST /api/v1/stops" else BODIES[route][0]
        sent = sent | ({what: form} if what else {})
        for each in two.ids[names]:
            found = []
            for workspace in OTHER, GONE:
                payload = json.dumps(sent)
                for name, value in {"workspace": workspace, **each}.items():
                    payload = payload.replace(f"{{{name}}}", value)
                subject = f"approvals.{login}.desk+{OWN}.{endpoint}"
                answer = await answer_to(api(two.app.state.backend), subject, payload.encode())
                found.append((answer.status, plain(answer.body.decode()).replace(workspace, "")))
            assert found[0] == found[1], subject
            assert what == "" or found[0][0] in (403, 404, 422), subject
            assert MARK not in found[0][1], subject
    assert await two.service.read(*elsewhere) == before


async def test_pages_offer_no_more_than_there_is(two):
    """No other workspace to choose, no page of the whole site, no stop of all workspaces."""
    two.visitor = VISITORS[0]
    async with two.client() as client:
        page = (await client.get("/stops")).text
        assert "Your workspaces" in page
        assert f"{ORGANISATION}/zoe/s1" in page
        assert "All workspaces</option>" not in page
        assert 'href="/operations' not in page
        assert f"/stops/{ORGANISATION}/zoe/s1/resume" not in page
        assert "/resume" not in (await client.get(f"/stops/{ORGANISATION}/zoe/s1")).text


async def test_a_scope_over_nats_is_one_of_names():
    """What is no name of a workspace is refused, and none is never all."""
    for scope in ("", "*", ">", "shop+", "_organisation"):
        subject = f"approvals.service.desk.{scope}.pending"
        assert (await answer_to(api(), subject, b"{}")).status == 422, scope
