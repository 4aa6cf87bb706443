"""Approving a call and calls like it for a time, without a script."""

import json
import re
from html import unescape

import pytest
from console_client import REFUND, site
from hypothesis import given
from hypothesis import strategies as st
from until import recorded

from ayes.interfaces.console.display.likeness import arguments_of, condition
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.policy_rules import About
from ayes.ops.visitors import Role, Visitor
from ayes.schemas.conditions import MAX_LENGTH, CannotSay, check, holds
from ayes.schemas.policy import applied
from ayes.schemas.slots import CallRef, policy_slot
from ayes.schemas.tools import ToolSpec

CALL = "shop/order-17/refund-1"
GRANTS = "/api/v1/grants"


def sent(page):
    """What the form of the page would send, without its button."""
    form = page.text[page.text.index('action="/allow/') :]
    fields = re.findall(r'<input (?=[^>]*name="(\w+)")(?=[^>]*value="([^"]*)")([^>]*)>', form)
    found = {
        name: unescape(value) for name, value, rest in fields
        if name != "like" and ("checkbox" not in rest or "checked" in rest)
    }  # fmt: skip
    chosen = re.findall(r"<option selected>([^<]*)<|name=\"like\" value=\"([^\"]*)\"", form)
    return found | {"like": [one or other for one, other in chosen]}


def shown(page):
    """The proposal as it is read."""
    [text] = re.findall(r'id="proposal">(.*?)</section>', page.text, re.DOTALL)
    return unescape(re.sub(r"\s+", " ", re.sub("<[^>]*>", "", text)))


async def decided(shop, call):
    return (await shop.service.decision(call, timeout_s=60)).approval


async def test_a_delegation_that_is_refused_keeps_what_was_typed(client):
    typed = {"workspace": "shop", "to": "ben", "starts": "soon", "reason": "Leave in May."}
    answer = await client.post("/delegations", data=typed)
    assert answer.is_client_error
    assert "Leave in May." in answer.text


async def test_a_grant_is_proposed_from_the_call_and_recorded_after_a_second_look(shop, client):
    """The vote is recorded with it, and the next call that fits needs nobody."""
    digest = await shop.ask("shop/order-9/refund-0", '{"order":"A-17","amount":5}')
    vote = {"verdict": "deny", "digest": digest, "reason": "no"}
    await client.post("/api/v1/calls/shop/order-9/refund-0/votes", json=vote)
    await recorded(shop.service, CallRef.parse("shop/order-9/refund-0").decided.subject)
    await shop.ask(CALL)
    page = await client.get(f"/calls/{CALL}")
    assert f'href="/allow/{CALL}"' in page.text

    first = await client.get(f"/allow/{CALL}")
    assert first.status_code == 200, first.text
    assert (
        "refund in shop, by agent without a name: order A-17, amount 0 to 480; for 8 hours; "
        "at most 20 calls." in shown(first)
    )
    assert (
        "Of 1 call of it that was decided in the last 30 days, it would have covered 1: 1 denied."
        in shown(first)
    )
    assert sent(first)["like"] == ["exactly", "at most"]

    chosen = sent(first) | {"like": ["any", "exactly"], "duration": "2h", "uses": "1"}
    changed = await client.post(f"/allow/{CALL}", data=chosen | {"step": "change"})
    assert "order any, amount 480; for 2 hours; at most 1 call." in shown(changed)
    assert "it would have covered 0." in shown(changed)
    assert sent(changed) == chosen

    asked = await client.post(f"/allow/{CALL}", data=chosen)
    assert "Approve this call, and allow such calls?" in asked.text
    assert "order any, amount 480; for 2 hours" in shown(asked)
    assert (await client.get(GRANTS)).json()["grants"] == []
    assert (await client.get(f"/api/v1/calls/{CALL}")).json()["votes"] == []
    for _ in range(2):  # safe to repeat
        done = await client.post(f"/allow/{CALL}", data=sent(asked) | {"step": "sure"})
        assert done.status_code == 303, done.text
        assert (done.status_code, done.headers["location"]) == (303, "/grants?workspace=shop")
    [one] = (await client.get(GRANTS)).json()["grants"]
    assert (one["uses"], one["thread"], one["agent"]) == (1, "*", "")
    assert one["when"] == 'args["amount"] == 480 && args.all(name, name in ["order", "amount"])'
    assert (await decided(shop, CALL)).ground == "people"
    await shop.service.request("shop/o-2/r", "refund", {"order": "B", "amount": 480})
    assert (await decided(shop, "shop/o-2/r")).ground == "grant"


async def test_all_arguments_exactly_are_the_arguments_and_none_is_any(shop, client):
    """No condition is made where a grant says it in its own words."""
    await shop.ask(CALL)
    page = await client.get(f"/allow/{CALL}")
    given = []
    for choice in ({"like": ["exactly", "exactly"]}, {"like": ["any", "any"], "others": "true"}):
        asked = await client.post(f"/allow/{CALL}", data=sent(page) | choice | {"name": "g1"})
        given.append(asked.text)
        assert "As a condition" not in asked.text
    assert "order A-17, amount 480;" in given[0]
    assert "order any, amount any, and others;" in given[1]


MISTAKES = [
    ({"duration": "8"}, "How long 8 has no unit. Write 8h, or another of s, m and d."),
    ({"duration": "8.5"}, "How long 8.5 has no unit. Write 8.5h, or another of s, m and d."),
    ({"duration": "soon"}, "How long 'soon' is not a valid duration"),
    ({"uses": "0"}, "'0' is not a number of uses. Give 1 to 1,000."),
    ({"like": ["any"]}, "the form is damaged"),
    ({"like": ["at most", "any"]}, "the form is damaged"),
]


async def test_a_mistake_is_named_and_nothing_is_recorded(shop, client):
    await shop.ask(CALL)
    typed = sent(await client.get(f"/allow/{CALL}"))
    for wrong, says in MISTAKES:
        for step in ("review", "sure"):
            page = await client.post(f"/allow/{CALL}", data=typed | wrong | {"step": step})
            assert page.status_code == 422, wrong
            assert says in unescape(page.text)
    assert (await client.get(GRANTS)).json()["grants"] == []
    assert (await client.get(f"/api/v1/calls/{CALL}")).json()["votes"] == []


async def test_nobody_votes_with_a_grant_that_would_not_be_valid(shop, client):
    """Of a long argument no condition can be made: the call is not approved without its grant."""
    await shop.ask(CALL, json.dumps({"order": "x" * MAX_LENGTH, "amount": 480}))
    typed = sent(await client.get(f"/allow/{CALL}"))
    for step in ("review", "sure"):
        page = await client.post(f"/allow/{CALL}", data=typed | {"step": step})
        assert page.status_code == 422, page.text
        assert "a condition may have 2,000 characters" in page.text
    assert (await client.get(GRANTS)).json()["grants"] == []
    assert (await client.get(f"/api/v1/calls/{CALL}")).json()["votes"] == []


async def test_each_is_reported_if_the_other_fails(shop, client):
    """A vote that is refused gives no grant; a grant that is refused leaves the vote recorded."""
    await shop.ask(CALL)
    typed = sent(await client.get(f"/allow/{CALL}")) | {"step": "sure"}
    stale = await client.post(f"/allow/{CALL}", data=typed | {"digest": "0" * 64})
    assert stale.status_code == 409, stale.text
    assert (await client.get(GRANTS)).json()["grants"] == []

    taken = {"workspace": "shop", "tool": "refund", "any_arguments": True, "for_s": 60}
    await client.post(GRANTS, json=taken | {"name": typed["name"]})
    page = await client.post(f"/allow/{CALL}", data=typed)
    assert page.status_code == 409, page.text
    assert f"your vote on {CALL} stands, but the grant was not given: " in page.text
    again = sent(page) | {"step": "sure"}
    assert again["name"] != typed["name"]
    done = await client.post(f"/allow/{CALL}", data=again)
    assert done.status_code == 303, done.text
    assert len((await client.get(GRANTS)).json()["grants"]) == 2


async def test_it_is_not_shown_where_no_grant_may_be_given(shop, client):
    """To somebody who may only read, and for a tool that no grant covers."""
    await shop.ask(CALL)
    shop.visitor = Visitor("olga", frozenset({Role.AUDITOR}))
    assert "/allow/" not in (await client.get(f"/calls/{CALL}")).text
    assert (await client.get(f"/allow/{CALL}")).status_code == 403
    shop.visitor = Visitor("ana", frozenset(Role))
    async with Ledger.connect(shop.server.store.path, role="operator") as operator:
        await operator.append(policy_slot("shop", 2), applied('never_grant = ["refund"]\n'))
    assert "/allow/" not in (await client.get(f"/calls/{CALL}")).text
    refused = await client.get(f"/allow/{CALL}")
    assert (refused.status_code, "no grant may cover refund" in refused.text) == (403, True)


async def test_a_secret_argument_is_never_proposed(tmp_path):
    """Nor is the call's whole text, in which it stands."""
    login = ToolSpec(
        name="login", run_by="client", secret=("/token",),
        schema='{"type":"object","properties":{"host":{"type":"string"},'
        '"token":{"type":"string"}}}',
    )  # fmt: skip
    policy = '[[rule]]\nname = "r"\ntools = ["*"]\nthen = "ask"\n'
    async with site(tmp_path, policy, REFUND, login) as shop, shop.client() as client:
        await shop.ask(CALL, '{"host":"a","token":"hunter2"}', "login")
        page = await client.get(f"/allow/{CALL}")
        assert "host a, token any, since it is secret;" in shown(page)
        asked = await client.post(f"/allow/{CALL}", data=sent(page))
        for one in (page, asked):
            assert "hunter2" not in one.text
        await client.post(f"/allow/{CALL}", data=sent(asked) | {"step": "sure"})
        [given] = (await client.get(GRANTS)).json()["grants"]
        assert given["arguments"] is None
        assert given["when"] == ('args["host"] == "a" && args.all(name, name in ["host", "token"])')
        forged = sent(page) | {"like": ["exactly", "exactly"]}
        assert (await client.post(f"/allow/{CALL}", data=forged)).status_code == 422


SECRET = [
    ([], "a b c"),
    (["/a"], "b c"),
    (["/a/x"], "b c"),
    ([""], ""),
    (["/*"], ""),
    (["/b", "/c"], "a"),
]


@pytest.mark.parametrize(("secret", "conditions"), SECRET)
def test_what_holds_a_secret_can_only_be_any(secret, conditions):
    found = arguments_of('{"a":{"x":1},"b":true,"c":2}', secret)
    assert " ".join(one.name for one in found if len(one.choices) > 1) == conditions


def fits(when, args):
    try:
        return holds(when, About(tool="refund", args=args).scope)
    except CannotSay:
        return False


LIKE = [
    ({"amount": 480, "order": "A"}, True),
    ({"amount": 1.5, "order": "A"}, True),
    ({"amount": 481, "order": "A"}, False),
    ({"amount": -1, "order": "A"}, False),
    ({"amount": "1", "order": "A"}, False),
    ({"amount": True, "order": "A"}, False),
    ({"amount": 1, "order": "a"}, False),
    ({"amount": 1}, False),
    ({"amount": 1, "order": "A", "force": True}, False),
]


@pytest.mark.parametrize(("args", "covered"), LIKE)
def test_what_is_like_a_call(args, covered):
    """A number at most the same is not below zero, and another argument is another call."""
    like = arguments_of('{"amount":480,"order":"A"}', [])
    assert fits(condition(like, ["at most", "exactly"], others=False), args) is covered


TEXTS = st.text() | st.text(st.sampled_from("a\"'\\`{}()&|=\n\0\u2028\u202e😀"))


@given(st.dictionaries(TEXTS, TEXTS | st.integers(-100, 100), max_size=4), st.data())
def test_a_hostile_call_is_like_itself_and_like_no_call_with_another_text(args, data):
    found = arguments_of(json.dumps(args, ensure_ascii=False), [])
    when = condition(found, [one.choices[0] for one in found], others=False)
    if len(when) <= MAX_LENGTH:
        check(when)
        assert fits(when, args)
        for name, value in args.items():
            other = data.draw(TEXTS)
            assert other == value or not fits(when, args | {name: other})
