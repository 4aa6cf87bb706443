"""The gateway in front of MCP servers: real servers, real clients over HTTP, and the real gate."""

import asyncio
import base64
import hashlib
import json
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import mcp_shop
import pytest
from gateways import (
    BadGateway,
    client,
    gateway,
    raw_server,
    serving,
    settings,
    shop_server,
    web_shop,
)
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from msgspec.structs import replace
from pictures import PNG, png
from shop import Shop, rule
from until import question, until

from ayes.adapters.names import AskedCall, id_names
from ayes.interfaces.mcp import ladder as ladder_module
from ayes.interfaces.mcp import routes as routes_module
from ayes.interfaces.mcp import streams as streams_module
from ayes.interfaces.mcp.routes import MAX_TOOLS
from ayes.interfaces.mcp.settings import ServerSettings
from ayes.interfaces.mcp.upstream import ServerConnection
from ayes.interfaces.mcp.wire import (
    SERVER_LABEL,
    TASKS,
    WAIT,
    detailed_task,
    recorded_failure,
)
from ayes.ledger.call import Call
from ayes.ledger.clients.reviewers import Ballot
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import EventLog
from ayes.projections.refusal_texts import MAY_BE_EARLIER
from ayes.schemas import events as e
from ayes.schemas.errors import BrokerAway
from ayes.schemas.slots import ROOT, TOOL, CallRef, ThreadRef, file_piece

# What is tested here is the gateway's; what it rests on is the contract of the log (test_log.py).
pytestmark = pytest.mark.log("memory")

POLICY = (
    rule(
        "harmless",
        "allow",
        tools="*/search */slow */breaks */order */dies */receipt */chart */report",
    )
    + rule("never", "block", 'reason = "it is broken"', tools="*/fails")
    + rule("refunds", "ask", "editor_counts = true", tools="*/refund")
)
ALL = rule("all", "allow", tools="*")
THREAD = ThreadRef("shop", "mcp-rita")
CLAUDE = "claudecode/toolUseId"
META: Any = {CLAUDE: "toolu_1"}
#: Clients of the present era of the protocol, and of the one before 2026-07-28.
ERAS = pytest.mark.parametrize("mode", ["auto", "legacy"])
A_SHORT_HOLD = pytest.mark.parametrize("hold", ["1s"])
JSON = {"mode": "json", "by_alias": True, "exclude_none": True}


class World:
    """A shop behind a gateway, its gate, and a reviewer."""

    def __init__(self, shop: Shop, journal: Path) -> None:
        self.shop, self.journal = shop, journal
        self.ana = shop.ledger.reviewer("ana")
        self.gateway: Any
        self.url: str

    @property
    def ran(self) -> list[str]:
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    async def asked(self) -> Call:
        return await question(self.shop.ledger, THREAD)

    async def call(self, ref: CallRef) -> Call:
        return await self.shop.ledger.call(ref)

    async def calls(self) -> list[Call]:
        facts = await self.shop.ledger.read(THREAD)
        refs = {fact.slot.call_ref: None for fact in facts if fact.slot.call_ref}
        return [await self.call(ref) for ref in refs]


@pytest.fixture
def hold() -> str:
    """How long a request is held."""
    return "60s"


@asynccontextmanager
async def before(
    port: EventLog,
    journal: Path,
    *servers: ServerSettings,
    policy: str = POLICY,
    hold: str = "60s",
    ready: bool = True,
) -> AsyncIterator[World]:
    """A gateway before these servers."""
    made = World(Shop(port), journal)
    await made.shop.apply(policy)
    file = settings(*servers, hold=hold)
    async with (
        made.shop.gates(),
        gateway(made.shop.ledger, file, ready=ready) as (made.gateway, made.url),
    ):
        yield made


@pytest.fixture
async def world(port: EventLog, tmp_path: Path, hold: str) -> AsyncIterator[World]:
    journal = tmp_path / "journal"
    async with web_shop(journal) as server, before(port, journal, server, hold=hold) as made:
        yield made


@pytest.fixture
async def stdio(port: EventLog, tmp_path: Path) -> AsyncIterator[World]:
    """A world whose shop is a program."""
    journal = tmp_path / "journal"
    async with before(port, journal, shop_server(journal)) as made:
        yield made


async def output(world: World) -> Any:
    """The output of the one call."""
    [call] = await world.calls()
    returned = call.finished and call.finished.event
    assert isinstance(returned, e.ToolReturned)
    return returned.output


def text(result: Any) -> str:
    return "".join(one.text for one in result.content)


def recorded_in(again: Any) -> list[Any]:
    """The recorded result in that of a repeated call, whose client does not tell the turn (B20)."""
    *recorded, note = again.content
    assert note.text == MAY_BE_EARLIER
    return recorded


@ERAS
async def test_what_the_policy_decides_alone_is_answered_at_once(world: World, mode: str):
    """In both eras: an allowed call is passed on and its result recorded; a blocked one is an error
    result with the reason, and does not run (B1, I1).
    """
    async with client(world.url, mode=mode) as agent:
        found = await agent.call_tool("search", {"text": "A-17"})
        refused = await agent.call_tool("fails", {})
    assert (text(found), found.is_error) == ("nothing about A-17", False)
    assert refused.is_error
    assert "rule 'never' of the policy does not allow this call" in text(refused)
    assert world.ran == ["search A-17"]
    [first, second] = await world.calls()
    assert (first.status, second.status) == (Status.RETURNED, Status.DENIED)
    assert first.wish.requester == "rita"
    assert first.wish.labels[SERVER_LABEL] == "desk"


@ERAS
async def test_a_held_request_is_answered_when_people_have_decided(world: World, mode: str):
    """Approved, it runs once with its result; denied, it does not run and the reason is told."""
    async with client(world.url, mode=mode) as agent:
        asking = asyncio.create_task(agent.call_tool("refund", {"order": "A-17", "amount": 4}))
        await world.ana.approve((await world.asked()).ref)
        assert text(await asking) == "4 given back for A-17"
        asking = asyncio.create_task(agent.call_tool("refund", {"order": "A-18"}))
        await world.ana.deny((await world.asked()).ref, reason="not this one")
        denied = await asking
    assert denied.is_error
    assert "not this one" in text(denied)
    assert world.ran == ["refund A-17 4"]


async def test_an_edit_and_an_answer_reach_the_model(world: World):
    """An edited call runs with the reviewer's arguments and says so; an answer is in place of the
    result, as the value of the tool's own schema if it is one (B61).
    """
    async with client(world.url) as agent:
        await agent.list_tools()
        asking = asyncio.create_task(agent.call_tool("refund", {"order": "A-17", "amount": 9}))
        await world.ana.approve((await world.asked()).ref, arguments='{"order":"A-17","amount":2}')
        edited = await asking
        asking = asyncio.create_task(agent.call_tool("refund", {"order": "A-19"}))
        await world.ana.vote(
            (await world.asked()).ref, Ballot("answer", answer='{"result": "done by hand"}')
        )
        answered = await asking
    assert text(edited).startswith("A reviewer changed the arguments of this call")
    assert text(edited).endswith("2 given back for A-17")
    assert (answered.structured_content, answered.is_error) == ({"result": "done by hand"}, False)
    assert world.ran == ["refund A-17 2"]


@A_SHORT_HOLD
async def test_a_client_that_can_come_back_is_asked_to_with_a_sealed_state(world: World):
    """Each round ends with a state and nothing else; the call is the same one in all of them, and
    its state cannot be read, changed, used for other arguments or by another requester.
    """
    async with client(world.url, mode="auto") as agent:
        name, arguments = "refund", {"order": "A-17"}
        first = await agent.session.call_tool(name, arguments, allow_input_required=True)
        state = first.request_state
        assert first.result_type == "input_required"
        assert not first.input_requests
        assert "refund" not in state
        assert "rita" not in state
        for changed in (state[:-2], "v1.AAAA", json.dumps({"call": "shop/mcp-rita/x"})):
            with pytest.raises(MCPError, match="Invalid or expired requestState"):
                await agent.session.call_tool(
                    name, arguments, request_state=changed, allow_input_required=True
                )
        with pytest.raises(MCPError, match="Invalid or expired requestState"):
            await agent.session.call_tool(
                name, {"order": "B-2"}, request_state=state, allow_input_required=True
            )
        await world.ana.approve((await world.asked()).ref)
        done = await agent.session.call_tool(name, arguments, request_state=state)
        again = await agent.session.call_tool(name, arguments, request_state=state)
    # A state that is used twice is the same call, and it has run.
    assert text(done) == text(again) == "0 given back for A-17"
    assert world.ran == ["refund A-17 0"]
    assert len(await world.calls()) == 1


@A_SHORT_HOLD
async def test_after_the_last_round_a_finished_result_says_how_to_come_back(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """The pending result has an id; `approvals_wait` goes on with it, also after the gateway was
    started again, and a forged id is refused.
    """
    monkeypatch.setattr(ladder_module, "ROUNDS", 1)
    async with client(world.url) as agent:
        pending = await agent.call_tool("refund", {"order": "A-17"})
        assert pending.is_error  # the tool has a schema of its own, which clients check
        given = pending.meta["ayes/pending"]["id"]
        assert given in text(pending)
        await world.ana.approve((await world.asked()).ref)
        for forged in (given[:-1], "v1.AAAA", "shop/mcp-rita/x", 7):
            with pytest.raises(MCPError, match="there is no such call of yours"):
                await agent.call_tool(WAIT, {"id": forged})
    # Another gateway, which shares nothing with the first but the key and the ledger.
    file = settings(shop_server(world.journal), hold="60s")
    async with gateway(world.shop.ledger, file) as (_, url), client(url) as agent:
        assert text(await agent.call_tool(WAIT, {"id": given})) == "0 given back for A-17"
    assert world.ran == ["refund A-17 0"]


async def test_a_call_that_another_program_requested_under_its_id_is_not_its_own(world: World):
    """A service may write into the thread of a client, for whomever it likes."""
    async with client(world.url) as agent:
        await agent.call_tool("search", {"text": "A-17"}, meta=META)
        [own] = await world.calls()
        theirs = THREAD.call("toolu_2")
        await world.shop.ledger.append(theirs.requested, replace(own.wish, requester="ben"))
        with pytest.raises(MCPError, match="there is no such call of yours"):
            await agent.call_tool("search", {"text": "A-17"}, meta={CLAUDE: "toolu_2"})
    assert len(world.ran) == 1


@A_SHORT_HOLD
async def test_a_gateway_of_another_workspace_has_no_such_call(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """B74: not with its id, nor with the id of its task, though the key and the requester are the
    same: it would show and run what another workspace approved.
    """
    asked = {"name": "refund", "arguments": {"order": "A-18"}}
    task = (await _json_rpc(world.url, "tools/call", asked))["result"]["taskId"]
    monkeypatch.setattr(ladder_module, "ROUNDS", 1)
    async with client(world.url) as agent:
        pending = await agent.call_tool("refund", {"order": "A-17"})
    for call in await world.calls():
        await world.ana.approve(call.ref)
    server = shop_server(world.journal)
    file = settings(server, hold="60s").model_copy(update={"workspace": "bank"})
    async with gateway(world.shop.ledger, file) as (_, url):
        async with client(url) as agent:
            with pytest.raises(MCPError, match="there is no such call of yours"):
                await agent.call_tool(WAIT, {"id": pending.meta["ayes/pending"]["id"]})
        for method in "tasks/get", "tasks/cancel":
            answer = await _json_rpc(url, method, {"taskId": task})
            assert answer["error"]["code"] == -32602
    assert world.ran == []


@A_SHORT_HOLD
async def test_an_older_client_gets_the_pending_result_after_one_wait(world: World):
    """It has no rounds. The same call again, while it waits, is the same call (I1)."""
    async with client(world.url, mode="legacy") as agent:
        first = await agent.call_tool("refund", {"order": "A-17"})
        second = await agent.call_tool("refund", {"order": "A-17"})
        for one in (first, second):
            assert "waits for a person's approval" in text(one)
        assert len(await world.calls()) == 1
        await world.ana.approve((await world.asked()).ref)

        async def ended() -> str:
            said = text(await agent.call_tool("refund", {"order": "A-17"}))
            return "" if "waits for a person's approval" in said else said

        # On a busy machine one wait may end before the tool does.
        assert await until(ended) == "0 given back for A-17"
    assert world.ran == ["refund A-17 0"]


async def test_the_id_that_a_client_sends_names_the_call(world: World):
    """The same id is the same call, and its result is not made twice; other arguments under the
    same id are another call; without an id a finished call is not in the way of an equal one.
    """
    async with client(world.url) as agent:
        for _ in range(2):
            await agent.call_tool("search", {"text": "a"}, meta=META)
        await agent.call_tool("search", {"text": "b"}, meta=META)
        await agent.call_tool("search", {"text": "c"}, meta={CLAUDE: "../> *" * 40})
        for _ in range(2):
            await agent.call_tool("search", {"text": "d"})
    assert world.ran == ["search a", "search b", "search c", "search d", "search d"]
    names = [call.ref.call for call in await world.calls()]
    second = AskedCall("mcp-rita", "toolu_1", "desk/search", '{"text":"b"}')
    assert names[:2] == ["toolu_1", id_names(second)[1]]
    assert names[4] == f"{names[3]}-2"


async def _json_rpc(url: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """One request of 2026-07-28 by a client that declares tasks; returns the whole answer."""
    import httpx2

    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}},
    }
    headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method}
    headers["Mcp-Name"] = str(params.get("name") or params.get("taskId"))
    headers["Accept"] = "application/json, text/event-stream"
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    async with httpx2.AsyncClient(timeout=60) as http:
        return (await http.post(url, json=body, headers=headers)).json()


async def test_a_client_of_tasks_gets_one_at_once(world: World):
    """The task waits, runs when it is looked at after its approval, keeps its result, and belongs
    to its requester; one that waits can be cancelled.
    """

    async def task(task_id: str) -> dict[str, Any]:
        return (await _json_rpc(world.url, "tasks/get", {"taskId": task_id}))["result"]

    asked = {"name": "refund", "arguments": {"order": "A-17"}}
    made = (await _json_rpc(world.url, "tools/call", asked))["result"]
    assert (made["resultType"], made["status"], made["ttlMs"]) == ("task", "working", None)
    assert (await task(made["taskId"]))["status"] == "working"
    await world.ana.approve((await world.asked()).ref)
    await asyncio.sleep(0.5)
    assert world.ran == []  # nobody has looked since

    async def ended() -> dict[str, Any] | None:
        found = await task(made["taskId"])
        return found if found["status"] != "working" else None

    done = await until(ended)
    assert done["status"] == "completed"
    assert done["result"]["content"][0]["text"] == "0 given back for A-17"
    assert (await task(made["taskId"])) == done
    for forged in ("x", made["taskId"][:-2], made["taskId"] + "A"):
        answer = await _json_rpc(world.url, "tasks/get", {"taskId": forged})
        assert answer["error"]["code"] == -32602
    other = (await _json_rpc(world.url, "tools/call", asked | {"arguments": {"order": "B"}}))[
        "result"
    ]
    assert "error" not in await _json_rpc(world.url, "tasks/cancel", {"taskId": other["taskId"]})

    async def cancelled() -> bool:
        return (await task(other["taskId"]))["status"] == "cancelled"

    await until(cancelled)
    assert world.ran == ["refund A-17 0"]


async def test_a_disconnect_neither_withdraws_nor_runs_anything(world: World):
    """The call stays open, and what is approved afterwards runs only when somebody asks for it."""
    async with client(world.url) as agent:
        asking = asyncio.create_task(agent.call_tool("refund", {"order": "A-17"}))
        waiting = await world.asked()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert (await world.call(waiting.ref)).status is Status.PENDING
    await world.ana.approve(waiting.ref)
    await world.shop.until(waiting.ref.decided)
    await asyncio.sleep(0.5)
    assert (await world.call(waiting.ref)).status is Status.APPROVED
    async with client(world.url) as agent:
        assert text(await agent.call_tool("refund", {"order": "A-17"})) == "0 given back for A-17"
    assert world.ran == ["refund A-17 0"]


async def test_two_gateways_run_a_call_once(world: World):
    """Both hold the same call; one runs it, and both answer with the one result (I1)."""
    file = world.gateway.settings
    async with (
        gateway(world.shop.ledger, file) as (_, url),
        client(world.url) as one,
        client(url) as other,
    ):
        asking = [
            asyncio.create_task(agent.call_tool("refund", {"order": "A-17"}, meta=META))
            for agent in (one, other)
        ]
        await world.ana.approve((await world.asked()).ref)
        results = await asyncio.gather(*asking)
    assert {text(one) for one in results} == {"0 given back for A-17"}
    assert world.ran == ["refund A-17 0"]


async def test_a_server_that_ends_while_it_runs_leaves_the_call_in_doubt(stdio: World):
    """The tool may have run. The model is told so, and the same call does not run again."""
    async with client(stdio.url) as agent:
        for _ in range(2):
            result = await agent.call_tool("dies", {}, meta=META)
            assert result.is_error
            assert "It may have taken effect" in text(result)
    [call] = await stdio.calls()
    assert call.status is Status.IN_DOUBT
    assert stdio.ran == ["dies"]


async def test_a_proxy_that_gives_up_leaves_the_call_in_doubt(port: EventLog, tmp_path: Path):
    """Its 502 is not the server's answer: the tool may have run, and does not run again."""
    front = BadGateway(mcp_shop.server.streamable_http_app(host="127.0.0.1"))
    async with (
        serving(front) as there,
        before(port, tmp_path, ServerSettings(name="far", url=there)) as world,
        client(world.url) as agent,
    ):
        for _ in range(2):
            result = await agent.call_tool("search", {"text": "A-17"}, meta=META)
            assert "It may have taken effect" in text(result)
    assert front.calls == 1


@pytest.mark.parametrize(("mode", "large"), [("auto", False), ("legacy", True)])
async def test_a_picture_is_recorded_as_one_and_given_again(world: World, mode: str, large: bool):
    """The second request has what the first had; a large picture is kept by its digest."""
    async with client(world.url, mode=mode) as agent:
        arguments = {"large": large}
        first = await agent.call_tool("chart", arguments, meta=META)
        again = await agent.call_tool("chart", arguments, meta=META)
    data = png(160, 160, level=0) if large else png()
    assert base64.b64decode(first.content[1].data) == data
    assert (recorded_in(again), again.is_error) == (first.content, False)
    assert world.ran == ["chart"]
    caption, picture = await output(world)
    assert caption == e.Text("Refunds by month.")
    digest = hashlib.sha256(data).hexdigest()
    stored = e.Stored(digest, len(data), world.shop.log.file_place(digest))
    kept = stored if large else e.Inline(base64.b64encode(data).decode())
    assert (picture.media_type, picture.source) == ("image/png", kept)


@ERAS
async def test_a_result_with_files_and_more_is_given_again_whole(world: World, mode: str):
    """Its files are files in the ledger. Their annotations, the links and the structured content
    are kept beside them, and the second request gets all of it, also as a task.
    """
    async with client(world.url, mode=mode) as agent:
        first = await agent.call_tool("report", {}, meta=META)
        again = await agent.call_tool("report", {}, meta=META)
    assert first.structured_content == again.structured_content == {"refunds": 3}
    assert recorded_in(again) == first.content
    assert [one.type for one in recorded_in(again)] == [
        *("text", "resource", "resource", "image", "resource_link"),
    ]
    assert world.ran == ["report"]
    text, page, picture = await output(world)
    assert json.loads(text.text)["mcp_result"]["structuredContent"] == {"refunds": 3}
    assert (page.media_type, page.name) == ("application/pdf", "may.pdf")
    assert (picture.media_type, type(picture.source)) == ("image/png", e.Stored)
    [call] = await world.calls()
    whole = await world.gateway.ladder._kernels["rita"].with_bytes(call)
    shown = detailed_task(whole, "id", has_schema=False, asked=None)
    assert shown["result"]["content"] == [one.model_dump(**JSON) for one in first.content]


async def test_a_file_that_was_removed_is_described(world: World):
    """By an administrator, after it was recorded. The rest of the result is given again."""
    async with client(world.url) as agent:
        await agent.call_tool("report", {}, meta=META)
        world.shop.log._pieces.clear()
        again = await agent.call_tool("report", {}, meta=META)
    assert [one.type for one in recorded_in(again)] == [
        *("text", "resource", "resource", "text", "resource_link"),
    ]
    assert again.content[3].text.startswith("[image/png, ")
    assert again.structured_content == {"refunds": 3}


async def test_a_file_that_cannot_be_stored_is_described(world: World):
    """Somebody wrote other bytes in its place. The first client has it all the same."""
    picture = png(160, 160, level=0)
    digest = hashlib.sha256(picture).hexdigest()
    async with client(world.url) as agent:
        place = file_piece("shop", world.shop.log.file_place(digest), 1)
        await world.shop.log.keep_piece(place, b"other bytes")
        first = await agent.call_tool("chart", {"large": True}, meta=META)
        again = await agent.call_tool("chart", {"large": True}, meta=META)
    assert base64.b64decode(first.content[1].data) == picture
    assert text(again) == (
        f"Refunds by month.[image/png, {len(picture):,} bytes] could not be stored. "
        f"Its SHA-256 is {digest}.{MAY_BE_EARLIER}"
    )
    [call] = await world.calls()
    assert call.status is Status.RETURNED


def test_an_error_with_a_large_picture_can_still_be_read():
    """An error is one text, and a long one is cut: then its files are told in words."""
    image = {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}
    told = {"type": "text", "text": "The page did not open."}
    failed = {"content": [told, image], "isError": True, "_meta": {"took": 3}}
    assert json.loads(recorded_failure(failed)) == {
        "mcp_result": {"content": [told, image], "isError": True}
    }
    data = png(160, 160, level=0)
    large = image | {"data": base64.b64encode(data).decode()}
    words = {"type": "text", "text": f"[image/png, {len(data):,} bytes]"}
    assert json.loads(recorded_failure({**failed, "content": [told, large]})) == {
        "mcp_result": {"content": [told, words], "isError": True}
    }


async def test_an_error_of_the_protocol_is_passed_on_and_kept(world: World):
    """Its code, message and data, for the second request as for the first."""
    async with client(world.url) as agent:
        for _ in range(2):
            with pytest.raises(MCPError, match="the shop is closed") as raised:
                await agent.call_tool("breaks", {}, meta=META)
            assert (raised.value.code, raised.value.data) == (-32050, {"until": "nine"})
    assert world.ran == ["breaks"]


async def test_what_a_server_asks_its_client_is_passed_on(stdio: World):
    """A tool that asks for something (`input_required`) runs under one claim to its end."""
    from mcp_types import ElicitResult

    async def answer(_context: Any, _params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"size": "L"})

    for mode in ("auto", "legacy"):
        async with client(stdio.url, mode=mode, elicitation_callback=answer) as agent:
            assert text(await agent.call_tool("order", {})) == "one shirt in L"
    assert stdio.ran == ["order L", "order L"]
    assert [call.status for call in await stdio.calls()] == [Status.RETURNED] * 2


async def test_progress_is_passed_on(world: World):
    """What the tool tells of its progress reaches the client that asked for it."""
    told: list[tuple[float, float | None, str | None]] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        told.append((done, total, message))

    async with client(world.url) as agent:
        result = await agent.call_tool("slow", {"seconds": 0.1}, progress_callback=progress)
    assert text(result) == "done"
    assert told == [(1.0, 2.0, "half")]


async def test_a_tool_that_no_server_lists_is_not_called(world: World):
    """Nothing is passed on, and nothing is in the ledger."""
    async with client(world.url) as agent:
        result = await agent.call_tool("hidden", {})
    assert (text(result), result.is_error) == ("Unknown tool: hidden", True)
    assert await world.calls() == []


async def test_without_the_ledger_nothing_runs(world: World, monkeypatch: pytest.MonkeyPatch):
    """The log does not answer: the model is told that the tool did not run (fails closed)."""
    async with client(world.url) as agent:
        await agent.list_tools()

        async def away(*_: object, **__: object) -> Any:
            raise BrokerAway("no broker answers")

        monkeypatch.setattr(world.shop.log, "append", away)
        result = await agent.call_tool("search", {"text": "a"})
    assert result.is_error
    assert text(result) == "The tool did not run: no broker answers"
    assert world.ran == []


async def test_a_changed_tool_is_another_version_and_needs_a_new_approval(
    world: World, tmp_path: Path
):
    """What people approved is bound to the description that they saw (I1)."""
    async with client(world.url) as agent:
        asking = asyncio.create_task(agent.call_tool("refund", {"order": "A-17"}))
        waiting = await world.asked()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await world.ana.approve(waiting.ref)
    await world.shop.until(waiting.ref.decided)
    changed = shop_server(world.journal, REFUND_DESCRIPTION="Pay money to anybody.")
    async with gateway(world.shop.ledger, settings(changed)) as (_, url), client(url) as agent:
        asking = asyncio.create_task(agent.call_tool("refund", {"order": "A-17"}))
        again = await world.asked()
        assert again.ref != waiting.ref
        assert again.wish.tool_version != waiting.wish.tool_version
        await world.ana.deny(again.ref)
        assert (await asking).is_error
    assert world.ran == []


@pytest.mark.parametrize("has_it", [True, False])
async def test_a_task_whose_tool_has_changed_since_its_approval_ends(world: World, has_it: bool):
    """Its client reads why nothing ran, and asks no more; also if its server has the tool no more,
    which might run it all the same (I1).
    """
    asked = {"name": "refund", "arguments": {"order": "A-17"}}
    made = (await _json_rpc(world.url, "tools/call", asked))["result"]
    waiting = await world.asked()
    await world.ana.approve(waiting.ref)
    await world.shop.until(waiting.ref.decided)
    other = shop_server(world.journal, REFUND_DESCRIPTION="Pay money to anybody.")
    changed = settings(other if has_it else raw_server("desk"))
    async with gateway(world.shop.ledger, changed) as (_, url):
        for _ in range(2):
            answer = await _json_rpc(url, "tasks/get", {"taskId": made["taskId"]})
            done = answer["result"]
            assert (done["taskId"], done["status"]) == (made["taskId"], "completed")
            assert done["result"]["isError"] is True
            [said] = done["result"]["content"]
            assert "its description or schema has changed since it was asked for" in said["text"]
            assert "the ledger cannot be asked" not in said["text"]
    assert (world.ran, (await world.call(waiting.ref)).status) == ([], Status.APPROVED)


async def test_two_servers_are_one(port: EventLog, tmp_path: Path):
    """Their tools keep their names where these are unique; each is called at its own server."""
    journals = [tmp_path / "one", tmp_path / "two"]
    servers = [shop_server(journal, name=journal.name) for journal in journals]
    async with (
        before(port, tmp_path, *servers, policy=ALL) as world,
        client(world.url) as agent,
    ):
        names = {tool.name for tool in (await agent.list_tools()).tools}
        assert {"one__refund", "two__refund", WAIT} <= names
        assert "refund" not in names
        await agent.call_tool("two__refund", {"order": "A-17"})
        assert (await agent.read_resource("shop://hours")).contents[0].text == "nine to five"
    assert not journals[0].exists()
    assert journals[1].read_text() == "refund A-17 0\n"


# ------------------------------------------------------------------------- servers that are no help

OPEN = {"type": "object"}


NO_PROGRAM = ServerSettings(name="no-such-program", command=("/does/not/exist",))
MISSING = (
    NO_PROGRAM,
    ServerSettings(name="ends-at-once", command=("sh", "-c", "exit 1")),
    ServerSettings(name="never-answers", command=("sleep", "1000")),
    ServerSettings(name="floods", command=("yes",)),
    raw_server("says-what-is-not-valid", about={"capabilities": "all"}),
    ServerSettings(name="nobody-listens", url="http://127.0.0.1:9/mcp"),
)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is not there yet is not awaited: the others are, by the tests."""
    monkeypatch.setattr(routes_module, "START_S", 0.0)
    monkeypatch.setattr(routes_module, "LIST_S", 0.0)


@pytest.mark.usefixtures("impatient")
@ERAS
async def test_what_some_servers_lack_is_taken_from_no_other(
    port: EventLog, tmp_path: Path, mode: str
):
    """They are named; the others' tools are listed, and an approved call of theirs runs (B27)."""
    names = ", ".join(one.name for one in MISSING)
    journal = tmp_path / "journal"
    async with before(port, journal, *MISSING, shop_server(journal), ready=False) as world:
        await world.gateway.routes.upstreams["desk"].reached(60)
        async with client(world.url, mode=mode) as agent:
            assert f"not there now: {names}." in (agent.instructions or "")
            listed = {tool.name for tool in (await agent.list_tools()).tools}
            assert {"refund", "search", WAIT} <= listed
            asking = asyncio.create_task(agent.call_tool("refund", {"order": "A-17"}))
            await world.ana.approve((await world.asked()).ref)
            assert text(await asking) == "0 given back for A-17"
            assert (await agent.read_resource("shop://hours")).contents[0].text == "nine to five"
            unknown = await agent.call_tool("of_bad", {})
            assert f"not there now: the servers {names})" in text(unknown)


async def test_a_lone_server_that_does_not_start_is_told_to_its_client(port: EventLog):
    """There is nothing to serve, and the reason is said."""
    async with gateway(Shop(port).ledger, settings(NO_PROGRAM), ready=False) as (running, url):
        with pytest.raises(MCPError):
            await running.routes.upstreams[NO_PROGRAM.name].reached(60)
        with pytest.RaisesGroup(
            pytest.RaisesExc(MCPError, match=r"the server does not start: .*No such file"),
            flatten_subgroups=True,
        ):
            async with client(url, mode="legacy"):
                pytest.fail("nobody is there")


@pytest.mark.usefixtures("impatient")
@ERAS
async def test_a_server_that_comes_later_is_listed(port: EventLog, tmp_path: Path, mode: str):
    """A slow start keeps no client waiting; those that can be told are told of it (B27)."""
    told, door = asyncio.Event(), tmp_path / "door"
    late = shop_server(tmp_path / "late", name="late")
    wait = f"while ! [ -e {door} ]; do sleep 0.05; done; exec {shlex.join(late.command)}"
    late = late.model_copy(update={"command": ("sh", "-c", wait)})

    async def heard(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            told.set()

    servers = settings(raw_server("desk", tools=[]), late)
    async with gateway(Shop(port).ledger, servers, ready=False) as (running, url):
        await running.routes.upstreams["desk"].reached(60)
        async with client(url, mode=mode, message_handler=heard) as agent:
            assert [tool.name for tool in (await agent.list_tools()).tools] == [WAIT]
            door.touch()
            await running.routes.upstreams["late"].reached(60, again=True)
            if mode == "legacy":
                await asyncio.wait_for(told.wait(), 60)
            names = {tool.name for tool in (await agent.list_tools()).tools}
    assert "refund" in names


@pytest.mark.usefixtures("impatient")
async def test_a_server_that_died_holds_up_no_approved_call_of_another(
    port: EventLog, tmp_path: Path
):
    """Only the tool that was approved is looked at again before it runs (B27)."""
    once, journal = tmp_path / "once", tmp_path / "journal"
    mortal = shop_server(tmp_path / "other", name="mortal")
    line = f"[ -e {once} ] && exec sleep 1000; touch {once}; exec {shlex.join(mortal.command)}"
    mortal = mortal.model_copy(update={"command": ("sh", "-c", line)})
    async with (
        before(port, journal, mortal, shop_server(journal)) as world,
        client(world.url) as agent,
    ):
        asking = asyncio.create_task(agent.call_tool("desk__refund", {"order": "A-17"}))
        asked = await world.asked()
        assert "It may have taken effect" in text(await agent.call_tool("mortal__dies", {}))
        await world.ana.approve(asked.ref)
        assert text(await asking) == "0 given back for A-17"
        listed = {tool.name for tool in (await agent.list_tools()).tools}
    # Names stay as they were, so that none is another server's all at once.
    assert "desk__refund" in listed
    assert not {"refund", "mortal__refund"} & listed


HOSTILE: list[Any] = [
    {"inputSchema": OPEN},
    {"name": 7, "inputSchema": OPEN},
    {"name": "bare"},
    {"name": "typed", "inputSchema": OPEN, "description": ["a"]},
    {"name": "strange", "inputSchema": {"$schema": "http://a.example/b", **OPEN}},
    {"name": WAIT, "inputSchema": OPEN, "description": "Mine."},
    {"name": "good", "inputSchema": OPEN},
    {"name": "good", "inputSchema": OPEN},
    "tool",
    None,
]


@pytest.mark.parametrize(("mode", "alone"), [("auto", True), ("legacy", False)])
async def test_a_tool_that_is_not_valid_is_left_out_alone(
    port: EventLog, tmp_path: Path, mode: str, alone: bool
):
    """One without a name, or of a form that clients refuse, costs no other tool its place; none
    takes that of the gateway's own. One whose schema cannot be checked is refused by name (I7).
    """
    journal = tmp_path / "journal"
    others = [] if alone else [shop_server(journal)]
    async with (
        before(port, journal, raw_server(tools=HOSTILE), *others, policy=ALL) as world,
        client(world.url, mode=mode) as agent,
    ):
        listed = {tool.name: tool for tool in (await agent.list_tools()).tools}
        assert {"good", "strange", f"bad__{WAIT}", WAIT} <= set(listed)
        assert not {"bare", "typed"} & set(listed)
        assert listed[WAIT].description != "Mine."
        assert ("refund" in listed) is not alone
        assert text(await agent.call_tool("good", {})) == "called good"
        assert text(await agent.call_tool(f"bad__{WAIT}", {})) == f"called {WAIT}"
        refused = text(await agent.call_tool("strange", {}))
        assert "a.example/b, which is not one of the drafts" in refused
    assert len(await world.calls()) == 2


async def test_an_output_that_another_program_holds_open_is_closed_at_the_end(tmp_path: Path):
    """What a server has started outside of its process group may outlive it."""
    left, before = tmp_path / "pid", open_files()
    script = 'setsid sleep 600 & echo $! > "$0"; exec cat'
    try:
        async with streams_module.program(["/bin/sh", "-c", script, str(left)], {}, None):
            await until(lambda: left.exists() and left.read_text().endswith("\n"))
        await until(lambda: open_files() == before)
    finally:
        os.kill(int(left.read_text()), signal.SIGKILL)


def open_files() -> int:
    return len([*Path("/dev/fd").iterdir()])


async def test_a_message_without_end_takes_nothing_from_others(port: EventLog, tmp_path: Path):
    """What a server sends at once has a bound: beyond it its connection ends, so the call is in
    doubt, and everybody else is served (security: a result of 60 MB).
    """
    loud = raw_server(tools=[{"name": "shout", "inputSchema": OPEN}], large=60_000_000)
    journal = tmp_path / "journal"
    async with (
        web_shop(journal) as quiet,
        before(port, journal, loud, quiet, policy=ALL) as world,
        client(world.url) as agent,
    ):
        shouting = asyncio.create_task(agent.call_tool("shout", {}))
        assert text(await agent.call_tool("search", {"text": "A"})) == "nothing about A"
        assert "It may have taken effect" in text(await shouting)


class Listener:
    """A caller that remembers what it was notified of."""

    def __init__(self, requester: str) -> None:
        self.requester, self.request_id = requester, 1
        self.told: list[Any] = []

    async def notify(self, method: str, params: Any, *, related: bool) -> None:
        self.told.append((method, params, related))


async def test_log_messages_of_a_shared_connection_are_one_persons():
    """Nobody reads what a server logs about another one's request (I7)."""
    to_us, reads = anyio.create_memory_object_stream[Any](9)
    writes, from_us = anyio.create_memory_object_stream[Any](9)

    @asynccontextmanager
    async def connected() -> AsyncIterator[Any]:
        yield reads, writes

    def message(**fields: Any) -> SessionMessage:
        return SessionMessage(jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0", **fields}))

    rita, ben = Listener("rita"), Listener("ben")
    channel = await ServerConnection(connected, "2025-11-25").opened()
    for caller in (rita, ben):
        asking = asyncio.create_task(channel.request("a", {}, cast("Any", caller)))
        request = (await from_us.receive()).message
        log = {"level": "info", "data": f"for {caller.requester}"}
        await to_us.send(message(method="notifications/message", params=log))
        await to_us.send(message(id=request.id, result={}))
        assert await asking == {}
    await channel.close()
    for stream in (to_us, reads, writes, from_us):
        stream.close()
    assert [params["data"] for _, params, _ in rita.told] == ["for rita"]
    assert ben.told == []


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_an_answer_over_http_has_a_bound_too(
    port: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    """As a stream of events or as one JSON: the call is in doubt."""
    monkeypatch.setattr(streams_module, "MAX_MESSAGE", 100_000)
    asked = {"text": "A" * 100_000}
    async with (
        web_shop(tmp_path / "journal", json_response=kind == "application/json") as server,
        before(port, tmp_path / "journal", server) as world,
        client(world.url) as agent,
    ):
        assert "It may have taken effect" in text(await agent.call_tool("search", asked))


type Ask = Callable[[Client], Awaitable[Any]]

ASKED: dict[str, Ask] = {
    "resources": lambda agent: agent.list_resources(),
    "templates": lambda agent: agent.list_resource_templates(),
    "resource": lambda agent: agent.read_resource("shop://orders/A-17"),
    "prompts": lambda agent: agent.list_prompts(),
    "prompt": lambda agent: agent.get_prompt("complain", {"about": "delay"}),
    "search": lambda agent: agent.call_tool("search", {"text": "A-17"}),
    "receipt": lambda agent: agent.call_tool("receipt", {"order": "A-17"}),
}


@ERAS
async def test_everything_else_is_the_same_as_without_the_gateway(
    stdio: World, mode: str, tmp_path: Path
):
    """Lists, resources, prompts, completions and results of allowed tools are equal, and so is what
    the server says of itself; a tool is added, and the extension for tasks.
    """
    from mcp import StdioServerParameters, stdio_client
    from mcp_types import PromptReference

    command = shop_server(tmp_path / "direct").command
    server = stdio_client(StdioServerParameters(command=command[0], args=list(command[1:])))
    async with client(stdio.url, mode=mode) as agent, Client(server, mode=mode) as direct:
        for name, ask in ASKED.items():
            assert await ask(agent) == await ask(direct), name
        reference = PromptReference(name="complain")
        argument = {"name": "about", "value": "A"}
        assert await agent.complete(reference, argument) == await direct.complete(
            reference, argument
        )
        assert agent.server_info == direct.server_info
        assert agent.instructions == direct.instructions
        [*tools, added] = (await agent.list_tools()).tools
        assert tools == (await direct.list_tools()).tools
        assert added.name == WAIT
        for broken in (agent, direct):
            with pytest.raises(MCPError):
                await broken.read_resource("shop://nothing")


#: Lists 1,200 tools, described anew each time, and one of them at length. Any call is answered.
CHANGING = """
import json, sys

listings = 0
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {"jsonrpc": "2.0", "id": asked["id"]}
    match asked["method"]:
        case "initialize":
            capabilities, server = {"tools": {}}, {"name": "changing", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": capabilities}
            answer["result"] = result | {"serverInfo": server}
        case "tools/list":
            listings += 1
            tools = [
                {"name": f"search-{n}", "description": f"{listings}", "inputSchema": {}}
                for n in range(1200)
            ]
            tools[7]["description"] = f"{listings} " + 140_000 * "x"
            for tool in tools:
                tool["inputSchema"] = {"type": "object"}
            answer["result"] = {"tools": tools}
        case "tools/call":
            answer["result"] = {"content": [{"type": "text", "text": "done"}]}
        case _:
            answer["error"] = {"code": -32601, "message": "Method not found"}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
async def changing(port: EventLog, tmp_path: Path) -> AsyncIterator[World]:
    """A gateway before a server whose tools change with each listing."""
    script = tmp_path / "changing.py"
    script.write_text(CHANGING)
    server = ServerSettings(name="desk", command=(sys.executable, str(script)))
    async with before(
        port, tmp_path, server, policy=rule("all", "allow", tools="*/search-*")
    ) as made:
        yield made


async def declarations_in(world: World) -> list[str]:
    facts = await world.shop.ledger.log.read(f"{ROOT}.shop.{TOOL}.*.*")
    return [fact.slot.subject for fact in facts]


async def test_a_server_that_is_listed_writes_nothing(changing: World):
    """Listings record nothing, whatever the server says of its tools; a tool is declared when it is
    called (B27). What is beyond the bounds is not offered.
    """
    async with client(changing.url, mode="legacy") as agent:
        for _ in range(3):
            listed = {tool.name for tool in (await agent.list_tools()).tools}
        assert await declarations_in(changing) == []
        assert len(listed - {WAIT}) == MAX_TOOLS
        assert "search-7" not in listed
        assert text(await agent.call_tool("search-8", {})) == "done"
        refused = await agent.call_tool("search-7", {})
        assert (refused.is_error, text(refused)) == (True, "Unknown tool: search-7")
    [declared] = await declarations_in(changing)
    assert "search-8" in declared


async def test_a_server_that_changes_its_tools_at_each_call_is_refused_at_last(
    changing: World, monkeypatch: pytest.MonkeyPatch
):
    """So many versions of a server's tools are declared a day; a call of another one does not run
    and says why, and those that were declared go on.
    """
    monkeypatch.setattr(ladder_module, "VERSIONS_A_DAY", 3)
    async with client(changing.url, mode="legacy") as agent:
        for number in (1, 2, 3):
            await agent.list_tools()
            assert text(await agent.call_tool("search-1", {"n": number})) == "done"
        assert text(await agent.call_tool("search-1", {"n": 4})) == "done"
        await agent.list_tools()
        refused = await agent.call_tool("search-1", {"n": 5})
    assert refused.is_error
    assert "desk has changed its tools too often" in text(refused)
    assert len(await declarations_in(changing)) == 3
