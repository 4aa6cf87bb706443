"""I14, B71: what a tool declares as secret is shown nowhere but where docs/secrets.md says so.

A marker stands in the secret argument of every call. Every GET route of the application is asked by
people, and every command that shows calls is run; none may answer with the marker, but those below.
"""

import asyncio
import re
from pathlib import Path

import pytest
import pytest_asyncio
from console_client import routes, site
from until import recorded, until

from ayes.consumers.doubt import in_doubt
from ayes.interfaces.api.nats import PREFIX, answer_to
from ayes.interfaces.cli.terminal import cards, output
from ayes.interfaces.console.application import api
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.chain import thread_below
from ayes.ops.actions.secrets import secrets_in
from ayes.ops.sealing.files import make_key
from ayes.ops.visitors import Role, Visitor
from ayes.schemas import events as e
from ayes.schemas.slots import CallRef, GrantRef, ThreadRef
from ayes.schemas.tools import ToolSpec

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Stands in all secret values, and nowhere else.
MARK = "zircon"
#: Stands beside it, in arguments that everybody sees.
SEEN = "basalt"
LOGIN = ToolSpec(
    name="login",
    run_by="client",
    schema='{"type":"object","properties":{"user":{"type":"string"},"note":{"type":"string"},'
    '"keys":{"type":"array","items":{"type":"string"}}}}',
    secret=("/note", "/keys/*"),
)
POLICY = """
[[rule]]
name = "logins"
tools = ["login"]
then = "ask"
voters = ["ana", "ben"]
break_glass = ["gus"]
"""
THREAD = ThreadRef("shop", "order-1")
STATUSES = ("waits", "voted", "edited", "doubt", "denied")
ANA = Visitor("ana", frozenset({Role.REVIEWER}))
BEN = Visitor("ben", frozenset({Role.REVIEWER}))
GUS = Visitor("gus", frozenset({Role.REVIEWER}))
ZOE = Visitor("zoe", frozenset({Role.REVIEWER}))
RITA = Visitor("rita", frozenset({Role.AUDITOR}))
EVE = Visitor("eve", frozenset({Role.AUDITOR}))
DESK = Visitor("desk", frozenset({Role.SERVICE}), "token")

#: Where people find the values, by the place as docs/secrets.md names it.
SHOWN = {
    "the form of an edit": "GET /calls/{workspace}/{thread}/{call}/edit",
    "the page of a call after *Show*": "GET /calls/{workspace}/{thread}/{call}/secrets",
}
PAGE = Path("docs/secrets.md").read_text()
RECEIPT = "GET /api/v1/calls/{workspace}/{thread}/{call}/receipt"
#: Without an answer about a call, or with one that does not end; and one that waits for a seal.
LEFT_OUT = ("GET /sign-in/start", "GET /sign-in/callback", "GET /api/v1/events", RECEIPT)


def arguments(text: str) -> str:
    return f'{{"user":"{SEEN}","note":"{MARK} {text}","keys":["{MARK}"]}}'


#: What a model wishes for, and nobody has requested yet.
WISHED = CallRef("shop", "order-2", "1-0")


def call(name: str) -> CallRef:
    return THREAD.call(name)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop(tmp_path_factory):
    async with site(tmp_path_factory.mktemp("secrets"), POLICY, LOGIN) as made:
        await _fill(made)
        yield made


async def _fill(shop):
    service, backend, store = shop.service, shop.app.state.backend, shop.server.store
    make_key(store, f"approvals.example.com/{await service.log.identity()}")
    ana, ben = await backend.reviewer("ana"), await backend.reviewer("ben")
    for name in STATUSES:
        await service.request(call(name), "login", arguments(name), requester="rita", agent="bot")
        await recorded(service, call(name).gated.subject)
    await ana.approve(call("voted"), arguments=arguments("instead"))
    await ana.approve(call("edited"), arguments=arguments("instead"))
    await ben.approve(call("edited"), arguments=arguments("instead"))
    await ana.approve(call("doubt"))
    await ana.deny(call("denied"))
    for name in ("edited", "doubt"):
        await service.decision(call(name), timeout_s=60)
        await service.start(call(name))
    await service.finish(call("edited"), output="Done.")
    await service.doubt(call("doubt"), "Gone.")
    await service.say(THREAD, "Log in.", message="m1")
    wish = e.Wish("login", arguments("wished"))
    async with Ledger.connect(store.path, role="admin") as admin:
        for thread in (THREAD, WISHED.thread_ref):
            await admin.append(thread.replied(1), e.ModelReplied(parts=(wish,)))
        granted = e.Granted(tool="login", arguments=arguments("granted"), uses=3, expires_in_s=9e3)
        await admin.append(GrantRef("shop", "ana", "g1").given, granted)
    await until(lambda: in_doubt(service))
    await until(lambda: len(backend.waiting) >= 2)


def paths(route):
    """The paths of a route: for each call, if it is about one."""
    path = route.split(" ")[1]
    calls = [*map(call, STATUSES[:4]), WISHED] if "{call}" in path else [call("waits"), WISHED]
    for one in calls:
        names = {"workspace": "shop", "thread": one.thread, "call": one.call, "giver": "ana"}
        made = path
        for key, value in names.items():
            made = made.replace(f"{{{key}}}", value)
        made = re.sub(r"\{\w+\}", "1", made)
        yield made
        if "{call}" not in path:
            yield f"{made}?workspace=shop&call={one}&status=in_doubt&format=anthropic"
            yield f"{made}?status=decided"


async def found_by(shop, visitor, mark):
    """The GET routes that answer this visitor with the mark."""
    shop.visitor = visitor
    found = set()
    async with shop.client() as client:
        for route in routes(shop.app):
            if not route.startswith("GET ") or route in LEFT_OUT or "/reply" in route:
                continue
            for path in dict.fromkeys(paths(route)):
                if mark in (await client.get(path)).text:
                    found.add(route)
    return found


async def test_no_page_and_no_answer_shows_a_secret_value(shop):
    """But for those that somebody asks for who may decide, and none to anybody else."""
    seen = await found_by(shop, EVE, SEEN)
    for route in (
        "GET /",
        "GET /bulk",
        "GET /calls/{workspace}/{thread}/{call}",
        "GET /doubt",
        "GET /grants",
        "GET /conversations/{workspace}/{thread}",
        "GET /api/v1/calls",
        "GET /api/v1/calls/{workspace}/{thread}/{call}",
        "GET /api/v1/calls/{workspace}/{thread}/{call}/decision",
        "GET /api/v1/decided.jsonl",
        "GET /api/v1/grants",
        "GET /api/v1/threads",
        "GET /api/v1/threads/{workspace}/{thread}",
    ):
        assert route in seen, f"{route} shows no arguments at all: this test sees nothing"
    assert await found_by(shop, EVE, MARK) == set()
    assert await found_by(shop, ANA, MARK) == {*SHOWN.values()}


@pytest.mark.parametrize("name", STATUSES)
async def test_who_decides_or_asked_sees_it_on_one_call_when_they_ask(shop, name):
    path = f"{PREFIX}/calls/{call(name)}"
    async with shop.client() as client:
        for visitor in (ANA, RITA, ZOE, EVE):
            shop.visitor = visitor
            record = (await client.get(path)).json()
            assert record["hidden"]
            assert MARK not in str(record)
            answer = await client.get(f"{path}?secrets=true")
            page = await client.get(f"/calls/{call(name)}/secrets")
            if visitor in (ANA, RITA):
                assert MARK in answer.json()["state"]["arguments"]
                assert not answer.json()["hidden"]
                assert MARK in page.text
                assert answer.json()["state"]["digest"] == record["state"]["digest"]
            else:
                assert (answer.status_code, page.status_code) == (403, 403)
                assert MARK not in answer.text + page.text
                assert "may not see what is secret" in answer.json()["detail"]
                assert (await client.get(f"{path}/receipt")).status_code == 403


async def test_who_may_break_the_glass_sees_what_they_let_run(shop):
    shop.visitor = GUS
    async with shop.client() as client:
        answer = await client.get(f"{PREFIX}/calls/{call('waits')}?secrets=true")
    assert MARK in answer.json()["state"]["arguments"]


async def test_a_program_that_requests_and_runs_gets_all_of_it(shop):
    shop.visitor = DESK
    async with shop.client() as client:
        for name, runs in (("waits", "waits"), ("edited", "instead")):
            path = f"{PREFIX}/calls/{call(name)}"
            for answer in (
                (await client.get(path)).json()["state"],
                (await client.get(f"{path}/decision")).json()["state"],
            ):
                assert answer["arguments"] == arguments(runs)
    app = api(shop.app.state.backend)
    payload = f'{{"call":"{call("waits")}"}}'.encode()
    for role, is_whole in (("service.desk", True), ("reviewer.ana", False), ("observer.o", False)):
        answer = await answer_to(app, f"approvals.{role}.show", payload)
        assert answer.status == 200
        assert (MARK.encode() in answer.body) == is_whole


async def test_an_answer_to_a_vote_shows_none(shop):
    name = "late"
    await shop.service.request(call(name), "login", arguments(name), requester="rita")
    [fact] = await recorded(shop.service, call(name).gated.subject)
    shop.visitor = ANA
    async with shop.client() as client:
        vote = {"verdict": "approve", "digest": fact.event.digest}
        answer = await client.post(f"{PREFIX}/calls/{call(name)}/votes", json=vote)
        assert answer.json()["status"] == "approved"
        assert SEEN in answer.text
        assert MARK not in answer.text


async def test_an_edit_does_not_run_with_what_was_left_out(shop):
    """Whoever edits what was shown without its secrets would let it run with `(secret)`."""
    name = "edit"
    await shop.service.request(call(name), "login", arguments(name), requester="rita")
    [fact] = await recorded(shop.service, call(name).gated.subject)
    shop.visitor = ANA
    async with shop.client() as client:
        path = f"{PREFIX}/calls/{call(name)}"
        shown = (await client.get(path)).json()["state"]["arguments"].replace(SEEN, "other")
        vote = {"verdict": "approve", "digest": fact.event.digest, "arguments": shown}
        for answer in (
            await client.post(f"{path}/votes", json=vote),
            await client.post(f"{path}/check", json={"arguments": shown}),
        ):
            assert "(secret)" in shown
            assert "left out" in answer.text


async def test_an_edit_is_approved_where_its_secrets_are_shown(shop):
    """A colleague's edit would be approved with `(secret)` in it anywhere else."""
    shop.visitor = BEN
    path, button = f"/calls/{call('voted')}", "Approve the edit"
    async with shop.client() as client:
        for where, is_whole in (path, False), (f"{path}/secrets", True):
            page = (await client.get(where)).text
            assert "Edit by ana" in page
            assert (button in page) == is_whole
            assert ("To approve the edit, show what is secret first." in page) != is_whole


async def test_the_command_line_shows_none_unless_it_is_asked_for(shop, within):
    store = shop.server.store.path
    whole = {}

    async def run(*words):
        ended = await asyncio.to_thread(within, *words, store=store)
        assert "rror" not in ended.err, ended.err
        return ended.out + ended.err

    for words in (
        ("pending",),
        ("pending", "--json"),
        ("show", call("edited")),
        ("show", call("voted")),
        ("thread", THREAD),
        ("thread", "shop/order-2"),
        ("watch", "--from", "1", "--until-now"),
        ("grant", "list", "-w", "shop"),
        ("policy", "explain", call("voted")),
        ("policy", "explain", call("voted"), "--json"),
        ("reconcile", call("doubt"), "--as", "ana", "--happened"),
        ("deny", call("voted"), "--as", "ben", "--yes"),
    ):
        said = await run(*words)
        assert MARK not in said, words
        whole[words[0]] = said
    for one in ("pending", "show", "thread", "watch", "grant", "policy"):
        assert SEEN in whole[one], one
    assert MARK in await run("show", call("edited"), "--secrets")
    for words in (
        ("wait", call("edited"), "--json"),
        ("show", call("edited"), "--json"),
    ):
        assert MARK in await run(*words), words


async def test_who_requests_and_runs_a_call_is_told_all_on_the_command_line(shop, within):
    """By every command of theirs: they need it, and have it anyway."""
    service, ana = shop.service, await shop.app.state.backend.reviewer("ana")

    async def told(*words, code=0):
        ended = await asyncio.to_thread(within, *words, "--json", store=shop.server.store.path)
        assert ended.code == code, ended.err
        return ended.one["arguments"]

    asked, runs, doubted = map(call, ("asked", "runs", "doubted"))
    request = ("request", asked, "login", arguments("asked"), "--requester", "rita")
    assert MARK in await told(*request, code=8)
    assert MARK in await told("withdraw", asked)
    for one in (runs, doubted):
        await service.request(one, "login", arguments("run"), requester="rita", agent="bot")
        await recorded(service, one.gated.subject)
        await ana.approve(one)
        await service.decision(one, timeout_s=60)
        assert MARK in await told("wait", one)
        assert MARK in await told("start", one)
    running = await service.with_origin(await service.known_call(runs))
    below, opened = thread_below(running, agent="helper")
    await service.append(below.opened, opened)
    await service.request(below.call("c1"), "login", arguments("below"))
    assert MARK in await told("withdraw", runs)
    assert MARK in await told("finish", runs, "--output", "Done.")
    assert MARK in await told("doubt", doubted)


async def test_a_quote_in_a_chat_is_of_what_is_shown(shop, within):
    """So it does not tell whether somebody has guessed a value."""
    name, store = "heard", shop.server.store.path
    await shop.service.request(call(name), "login", arguments(name), requester="rita")

    async def hear(quote):
        message = f"> {name}\n> {quote}\nno: not now"
        return await asyncio.to_thread(
            within, "hear", message, "-w", "shop", "--as", "ana", store=store
        )

    async with Ledger.connect(store, role="observer") as observer:

        async def waits():
            return f"shop.order-1.{name}" in await observer.log.pending.entries()

        await until(waits)
    assert (await hear(f'"note":"{MARK} {name}"')).code == 2
    ended = await hear('"note":"(secret)"')
    assert (ended.code, MARK in ended.out + ended.err) == (0, False)


async def test_the_question_of_a_vote_shows_none(shop, capsys):
    known = await shop.service.known_call(call("voted"))
    cards.print_question(known, output.console(), await secrets_in(shop.service, known))
    said = capsys.readouterr().out
    assert SEEN in said
    assert MARK not in said


async def test_the_page_names_the_places_where_values_are_shown():
    for place in (*SHOWN, "`ayes show CALL --secrets`", "`?secrets=true`", "a receipt"):
        assert place in PAGE
