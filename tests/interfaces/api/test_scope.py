"""What a visitor of some workspaces is shown while things happen, also in others, and when their
workspaces change. tests/interfaces/console/test_other_workspaces.py asks every route.
"""

import asyncio

import pytest
from console_client import POLICY, REFUND, listed
from test_events import online, stream  # noqa: F401 - a fixture
from until import until

from ayes.interfaces.api.nats import answer_to
from ayes.interfaces.console.application import api
from ayes.ops.actions import people
from ayes.ops.visitors import Role, Visitor
from ayes.schemas import events as e
from ayes.schemas.policy import applied
from ayes.schemas.slots import CallRef, policy_slot

ANA = Visitor("ana", frozenset({Role.REVIEWER}), workspaces=("shop",))
BEN = Visitor("ben", frozenset({Role.REVIEWER}), workspaces=("bank",))
EVE = Visitor("eve", frozenset({Role.AUDITOR}), "token", ("shop",))


@pytest.fixture
async def two(shop):
    """The console of the workspaces `shop` and `bank`."""
    operator = await shop.app.state.backend.operator("sre")
    await operator.append(policy_slot("bank", 1), applied(POLICY))
    await shop.service.declare("bank", REFUND)
    return shop


async def test_the_admins_of_a_workspace_decide_in_it_alone(two, client):
    """B74: of two reviewers whom both policies ask, each decides in their own workspace."""
    digests = {name: await two.ask(f"{name}/order-1/refund-1") for name in ("shop", "bank")}
    for left, reviewer, own, other in (1, ANA, "shop", "bank"), (0, BEN, "bank", "shop"):
        two.visitor = reviewer
        [entry] = (await listed(client, 1))["calls"]
        assert entry["call"].startswith(own)
        for name, status in (other, 404), (own, 200):
            vote = {"verdict": "approve", "digest": digests[name]}
            answer = await client.post(f"/api/v1/calls/{name}/order-1/refund-1/votes", json=vote)
            assert answer.status_code == status, answer.text
        await until(lambda left=left: len(two.app.state.backend.waiting) == left)
    for name, whose in ("shop", "ana"), ("bank", "ben"):
        known = await two.service.known_call(CallRef(name, "order-1", "refund-1"))
        assert [vote.slot.tail[3] for vote in known.votes] == [whose]


async def test_a_stream_has_the_events_of_its_visitors_workspaces(two, online):  # noqa: F811
    """And of the organisation, without who is behind them. The list is announced when theirs
    changes, with how many of theirs wait.
    """
    two.visitor = EVE
    async with stream(online, after=0) as events:
        for call in "bank/order-1/refund-1", "bank/order-1/refund-2", "shop/order-1/refund-1":
            await two.ask(call)
        zoe = await two.app.state.backend.reviewer("zoe")
        await zoe.bind("slack:T1/U1")
        await two.service.say("shop/order-1", "Hello.", message="m1")
        seen, of_list = [], []
        while not seen or seen[-1]["thread"] != "order-1" or seen[-1]["type"] != "changed":
            _, kind, data = await events.next("changed", "requested", "waiting", "listed")
            (of_list if kind == "listed" else seen).append(data)
        while not of_list:
            of_list.append((await events.next("listed"))[2])
    assert {one["workspace"] for one in seen} == {"shop", "_organisation"}
    assert {one["by"] for one in seen if one["workspace"] == "_organisation"} == {""}
    assert [one["waiting"] for one in of_list] == [1]


async def test_what_changes_elsewhere_does_not_announce_the_list(two, online):  # noqa: F811
    """Two calls of another workspace, then one of the visitor's: one announcement."""
    two.visitor = EVE
    async with stream(online) as events, stream(online) as _:
        await events.next("broker")
        backend = two.app.state.backend
        for number in 1, 2:
            before = backend.feed._listed
            await two.ask(f"bank/order-1/refund-{number}")
            await until(lambda before=before: backend.feed._listed is not before)
        await two.ask("shop/order-1/refund-1")
        assert (await events.next("listed"))[2] == {"waiting": 1}


async def test_a_person_whose_workspaces_change_sees_others_from_the_next_request_on(two, online):  # noqa: F811
    """I7: streams and long polls that are open end at once; sessions and tokens see no more than
    both they and the person may, and nothing where that is nothing.
    """
    store = two.server.store
    await two.ask("shop/order-1/refund-1")
    await people.say(store, "ana", e.PersonAdded(workspaces=("shop", "bank")))
    backend = two.app.state.backend
    await until(lambda: backend.people.workspaces("ana") == ("shop", "bank"))
    both = Visitor("ana", frozenset({Role.REVIEWER}))
    one = Visitor("ana", frozenset({Role.REVIEWER}), "token", ("shop",))

    async def sees(visitor):
        two.visitor = visitor
        answer = await online.get("/api/v1/policies")
        return answer.json() if answer.status_code == 200 else answer.status_code

    assert await sees(both) == ["bank", "shop"]
    assert await sees(one) == ["shop"]
    two.visitor = both
    waiting = asyncio.create_task(
        online.get("/api/v1/calls/shop/order-1/refund-1/decision?timeout_s=60")
    )
    async with stream(online) as events:
        await events.next("broker")
        await people.say(store, "ana", e.PersonAdded(workspaces=("bank",)))
        with pytest.raises(AssertionError, match="the stream ended"):
            await events.next("none")
    assert (await waiting).status_code == 503
    assert [await sees(both), await sees(one)] == [401, 401]  # adding a person anew ends them
    two._secrets.clear()
    assert [await sees(both), await sees(one)] == [["bank"], 401]
    two.visitor = Visitor("ana", frozenset({Role.SERVICE}), "token")
    assert (await online.get("/api/v1/policies")).json() == ["bank", "shop"]  # a name of its own
    for scope, status in ("", 404), ("bank.", 404), ("bank+shop.", 404), ("shop.", 403):
        subject = f"approvals.reviewer.ana.{scope}show"
        answer = await answer_to(api(backend), subject, b'{"call": "shop/order-1/refund-1"}')
        assert answer.status == status, scope


async def test_nobody_is_let_in_before_it_is_known_who_is_a_person(two, client):
    """Their workspaces are not known either. A program's are those of its token."""
    two.app.state.backend.people = None
    for visitor, status in (ANA, 503), (BEN, 503), (EVE, 200):
        two.visitor = visitor
        answer = await client.get("/api/v1/counts")
        assert answer.status_code == status, answer.text
    for login, status in ("reviewer.ana", 503), ("observer.eve", 200):
        answer = await answer_to(api(two.app.state.backend), f"approvals.{login}.stops", b"{}")
        assert answer.status == status


@pytest.mark.parametrize(
    ("theirs", "others", "left"),
    [
        ((), (), ()),
        (("shop",), (), ("shop",)),
        ((), ("shop",), ("shop",)),
        (("shop", "bank"), ("bank", "desk"), ("bank",)),
        (("shop",), ("bank",), None),
    ],
)
async def test_no_workspace_in_common_is_no_visitor(theirs, others, left):
    """Never one of all workspaces."""
    visitor = Visitor("ana", frozenset(Role), workspaces=theirs).within(others)
    assert (visitor and visitor.workspaces) == left
