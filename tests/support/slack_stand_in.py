"""A stand-in for Slack: its Web API over HTTP and Socket Mode over a WebSocket, on loopback.

It speaks the formats that docs.slack.dev has for the methods that we use, and refuses what Slack
refuses: wrong tokens, unknown channels, texts over their limits, triggers that are used or older
than three seconds. What people do is a method: `click`, `submit`.
"""

import asyncio
import json
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import WSMsgType, web

BOT_TOKEN = "xoxb-1111-2222-sEcReTbOt"
APP_TOKEN = "xapp-1-A0001-3333-sEcReTaPp"
TEAM = "T0001"
CHANNEL = "C0123ABCD"
#: The time that Slack gives an app to acknowledge, and to use a trigger.
PATIENCE_S = 3.0

_BLOCKS = 50
_TEXT = 3000
_VALUE = 2000


class Refusal(Exception):
    """An answer with `ok: false`."""


class SlackStandIn:
    def __init__(self) -> None:
        self.url = ""
        #: By channel, in their order. `edits` counts the changes of a message.
        self.messages: dict[str, list[dict[str, Any]]] = {CHANNEL: [], "C0456EFGH": []}
        #: What only one user sees: channel, user, text.
        self.whispers: list[tuple[str, str, str]] = []
        self.views: list[dict[str, Any]] = []
        #: Each request, by method.
        self.asked: dict[str, list[dict[str, Any]]] = defaultdict(list)
        #: Scopes that the app lacks, by method.
        self.lacking: set[str] = set()
        #: By method: what to do with the next requests instead, one each.
        self.next: dict[str, list[Callable[[web.Request], Any]]] = defaultdict(list)
        #: By method: the requests that wait until this is set.
        self.held: dict[str, asyncio.Event] = {}
        self.sockets: list[web.WebSocketResponse] = []
        #: The connections that were ever made.
        self.connections = 0
        self._acks: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._triggers: dict[str, float] = {}
        self._changed = asyncio.Condition()
        self._last = 1_700_000_000_000_000

    async def until[T](self, found: Callable[[], T], timeout_s: float = 60) -> T:
        """What this returns, once it is true."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(found)
            return found()

    async def whispered(self, count: int) -> list[tuple[str, str, str]]:
        """What was whispered so far, once there is so much."""
        await self.until(lambda: len(self.whispers) >= count)
        return self.whispers

    # ----------------------------------------------------------------------------------- people

    async def click(
        self,
        message: dict[str, Any],
        action_id: str,
        user: str,
        *,
        team: str = TEAM,
        times: int = 1,
    ) -> list[float]:
        """Somebody clicks a button; returns after how many seconds each delivery was acknowledged.

        Args:
            times: how often Slack delivers the click, with the same envelope.
        """
        [action] = [
            one
            for block in message["blocks"]
            if block["type"] == "actions"
            for one in block["elements"]
            if one["action_id"] == action_id
        ]
        return await self.deliver(self.block_actions(message, action, user, team), times)

    def block_actions(
        self, message: dict[str, Any], action: dict[str, Any], user: str, team: str = TEAM
    ) -> dict[str, Any]:
        """The payload of a click."""
        trigger = f"{uuid.uuid4().int % 10**13}.{uuid.uuid4().hex}"
        self._triggers[trigger] = time.monotonic()
        channel = message["channel"]
        return {
            "type": "block_actions",
            "user": {"id": user, "username": "somebody", "name": "somebody", "team_id": team},
            "api_app_id": "A0001",
            "token": "verification",
            "container": {
                "type": "message",
                "message_ts": message["ts"],
                "channel_id": channel,
                "is_ephemeral": False,
            },
            "trigger_id": trigger,
            "team": {"id": TEAM, "domain": "example"},
            "enterprise": None,
            "is_enterprise_install": False,
            "channel": {"id": channel, "name": "approvals"},
            "message": {"type": "message", "bot_id": "B0001", **message},
            "state": {"values": {}},
            "response_url": f"{self.url}response/{uuid.uuid4()}",
            "actions": [
                {"block_id": "b1", "action_ts": self._new_ts(), **action, "type": "button"}
            ],
        }

    async def submit(
        self,
        view: dict[str, Any],
        reason: str | None,
        user: str,
        *,
        team: str = TEAM,
        chosen: int | None = None,
    ) -> list[float]:
        """Somebody sends a form, in which they chose an option or none."""
        values = {}
        for field in (one for one in view["blocks"] if one["type"] == "input"):
            element = field["element"]
            given: dict[str, Any] = {"type": element["type"], "value": reason}
            if options := element.get("options"):
                option = None if chosen is None else options[chosen]
                given = {"type": element["type"], "selected_option": option}
            values[field["block_id"]] = {element["action_id"]: given}
        payload = {
            "type": "view_submission",
            "team": {"id": TEAM, "domain": "example"},
            "user": {"id": user, "username": "somebody", "name": "somebody", "team_id": team},
            "api_app_id": "A0001",
            "token": "verification",
            "trigger_id": "1.2.3",
            "view": view | {"state": {"values": values}},
            "response_urls": [],
            "is_enterprise_install": False,
            "enterprise": None,
        }
        return await self.deliver(payload)

    async def command(self, text: str, user: str, *, team: str = TEAM, times: int = 1) -> None:
        """Somebody writes the slash command of the app."""
        payload = {
            "command": "/ayes",
            "text": text,
            "user_id": user,
            "user_name": "somebody",
            "team_id": team,
            "team_domain": "example",
            "channel_id": CHANNEL,
            "channel_name": "approvals",
            "api_app_id": "A0001",
            "token": "verification",
            "trigger_id": f"{uuid.uuid4().int % 10**13}.{uuid.uuid4().hex}",
            "response_url": f"{self.url}response.{user}",
            "is_enterprise_install": "false",
        }
        await self.deliver(payload, times, kind="slash_commands")

    async def deliver(
        self, payload: dict[str, Any], times: int = 1, *, kind: str = "interactive"
    ) -> list[float]:
        """Send an envelope over the socket, and wait for the acknowledgement of each delivery."""
        envelope, took = str(uuid.uuid4()), []
        for attempt in range(times):
            socket = await self.until(lambda: next(iter(self.sockets), None))
            assert socket is not None
            acked = self._acks[envelope] = asyncio.get_running_loop().create_future()
            begun = time.monotonic()
            await socket.send_json(
                {
                    "envelope_id": envelope,
                    "type": kind,
                    "accepts_response_payload": True,
                    "payload": payload,
                    "retry_attempt": attempt,
                    "retry_reason": "timeout" if attempt else "",
                }
            )
            async with asyncio.timeout(60):
                await acked
            took.append(time.monotonic() - begun)
        return took

    async def refresh(self) -> None:
        """Close the socket as Slack does every few hours, after saying so."""
        for socket in [*self.sockets]:
            await socket.send_json(
                {"type": "disconnect", "reason": "refresh_requested", "debug_info": {"host": "x"}}
            )

    async def drop(self) -> None:
        """Close the socket without a word."""
        for socket in [*self.sockets]:
            await socket.close()

    # ------------------------------------------------------------------------------- the Web API

    async def answer(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        given = await _given(request)
        async with self._changed:
            self.asked[method].append(given)
            self._changed.notify_all()
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        wanted = APP_TOKEN if method == "apps.connections.open" else BOT_TOKEN
        if self.next[method]:
            instead = await _result(self.next[method].pop(0)(request))
            if instead is not None:
                return instead
        if method in self.held:
            await self.held[method].wait()
        if method.startswith("response."):  # a URL that needs no token
            async with self._changed:
                self.whispers.append((CHANNEL, method.removeprefix("response."), given["text"]))
                self._changed.notify_all()
            return web.Response(text="ok")
        handler = getattr(self, method.replace(".", "_"), None)
        if token != wanted:
            said = _refused("invalid_auth")
        elif method in self.lacking:
            said = _refused("missing_scope")
        elif handler is None:
            said = _refused("unknown_method")
        else:
            try:
                said = {"ok": True} | handler(given)
            except Refusal as refusal:
                said = _refused(str(refusal))
        async with self._changed:
            self._changed.notify_all()
        return web.json_response(said)

    def auth_test(self, _given: dict[str, Any]) -> dict[str, Any]:
        return {
            "url": "https://example.slack.com/", "team": "example", "user": "ayes", "team_id": TEAM,
            "user_id": "U0BOT", "bot_id": "B0001", "is_enterprise_install": False,
        }  # fmt: skip

    def apps_connections_open(self, _given: dict[str, Any]) -> dict[str, Any]:
        where = self.url.replace("http://", "ws://").removesuffix("api/")
        return {"url": f"{where}link/?ticket={uuid.uuid4()}&app_id=A0001"}

    def chat_postMessage(self, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802 - as Slack's
        channel = given["channel"]
        if channel not in self.messages:
            raise Refusal("channel_not_found")
        _check(given)
        message = {
            "channel": channel,
            "ts": self._new_ts(),
            "text": given["text"],
            "blocks": given["blocks"],
            "metadata": given.get("metadata", {}),
            "edits": 0,
        }
        self.messages[channel].append(message)
        return {"channel": channel, "ts": message["ts"], "message": message}

    def chat_update(self, given: dict[str, Any]) -> dict[str, Any]:
        found = [one for one in self.messages.get(given["channel"], ()) if one["ts"] == given["ts"]]
        if not found:
            raise Refusal("message_not_found")
        _check(given)
        found[0].update(text=given["text"], blocks=given["blocks"], edits=found[0]["edits"] + 1)
        return {"channel": given["channel"], "ts": given["ts"], "text": given["text"]}

    def chat_postEphemeral(self, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        if given["channel"] not in self.messages:
            raise Refusal("channel_not_found")
        self.whispers.append((given["channel"], given["user"], given["text"]))
        return {"message_ts": self._new_ts()}

    def views_open(self, given: dict[str, Any]) -> dict[str, Any]:
        began = self._triggers.pop(given["trigger_id"], None)
        if began is None or time.monotonic() - began > PATIENCE_S * 10:  # a busy machine
            raise Refusal("expired_trigger_id")
        view = given["view"]
        if len(view["title"]["text"]) > 24 or len(view["private_metadata"]) > _TEXT:
            raise Refusal("invalid_arguments")
        self.views.append(view | {"id": "V0001", "team_id": TEAM, "hash": "1.x"})
        return {"view": self.views[-1]}

    def conversations_history(self, given: dict[str, Any]) -> dict[str, Any]:
        channel = given["channel"]
        if channel not in self.messages:
            raise Refusal("channel_not_found")
        begin, limit = int(given.get("cursor") or 0), int(given["limit"])
        page = self.messages[channel][::-1][begin : begin + limit]
        more = begin + limit < len(self.messages[channel])
        return {
            "messages": [{"type": "message", **one} for one in page],
            "has_more": more,
            "response_metadata": {"next_cursor": str(begin + limit) if more else ""},
        }

    # --------------------------------------------------------------------------------- the socket

    async def socket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.sockets.append(socket)
        self.connections += 1
        await socket.send_json(
            {
                "type": "hello",
                "num_connections": len(self.sockets),
                "connection_info": {"app_id": "A0001"},
                "debug_info": {
                    "host": "applink-1",
                    "build_number": 10,
                    "approximate_connection_time": 18060,
                },
            }
        )
        async with self._changed:
            self._changed.notify_all()
        try:
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    acked = json.loads(message.data)
                    self._acks[acked["envelope_id"]].set_result(acked)
        finally:
            self.sockets.remove(socket)
        return socket

    def _new_ts(self) -> str:
        self._last = max(self._last + 1, int(time.time() * 1e6))
        return f"{self._last // 10**6}.{self._last % 10**6:06d}"


def _check(given: dict[str, Any]) -> None:
    """Refuse what is over Slack's limits."""
    blocks = given["blocks"]
    if len(blocks) > _BLOCKS or not given["text"]:
        raise Refusal("invalid_blocks")
    for block in blocks:
        elements = block.get("elements", [])
        names = [one["action_id"] for one in elements if one["type"] == "button"]
        if len(names) != len(set(names)):
            raise Refusal("invalid_blocks")
        for one in elements:
            if one["type"] == "button" and len(one.get("value", "")) > _VALUE:
                raise Refusal("invalid_blocks")
            if one["type"] == "plain_text" and not 0 < len(one["text"]) <= _TEXT:
                raise Refusal("invalid_blocks")
            if any(len(part.get("text", "")) > _TEXT for part in one.get("elements", ())):
                raise Refusal("invalid_blocks")


def _refused(error: str) -> dict[str, Any]:
    return {"ok": False, "error": error}


async def _given(request: web.Request) -> dict[str, Any]:
    """The arguments, as JSON, as a form or in the query."""
    if request.content_type == "application/json":
        return dict(await request.json())
    given = {**request.query, **await request.post()}
    return {
        key: json.loads(value) if key in {"blocks", "metadata", "view"} else value
        for key, value in given.items()
        if isinstance(value, str)
    }


async def _result(value: Any) -> Any:
    return await value if asyncio.iscoroutine(value) else value


@asynccontextmanager
async def slack_stand_in() -> AsyncIterator[SlackStandIn]:
    """Serve one for as long as the block lasts."""
    made = SlackStandIn()
    app = web.Application()
    app.router.add_route("*", "/api/{method}", made.answer)
    app.router.add_get("/link/", made.socket)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    [address] = runner.addresses
    made.url = f"http://127.0.0.1:{address[1]}/api/"
    try:
        yield made
    finally:
        for held in made.held.values():
            held.set()
        await runner.cleanup()
