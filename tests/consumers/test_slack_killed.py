"""The worker that asks in Slack as a process of its own, killed between posting and recording."""

import asyncio
import subprocess
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from brokers import running
from long import sampled
from program import AYES, Started, environment, up
from sections import settings_file
from slack_stand_in import APP_TOKEN, BOT_TOKEN, CHANNEL, TEAM, slack_stand_in

from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.credentials import Store
from ayes.ops.broker.logins import Logins
from ayes.ops.workers import reactions, working
from ayes.projections.slack_messages import APPROVE
from ayes.schemas.policy import applied
from ayes.schemas.slots import CallRef, policy_slot
from ayes.schemas.tools import ToolSpec

#: After which the broker gives a dead worker's delivery to another.
ACK_WAIT_S = 1.5
CALL = CallRef("shop", "order-17", "refund-1")
POLICY = f"""
[[rule]]
name = "refunds"
tools = ["refund"]
then = "ask"
ask_in = ["slack:{CHANNEL}"]
"""
SETTINGS = f"""
[console]
url = "https://ayes.example"
[slack]
app_token = "{APP_TOKEN}"
bot_token = "{{bot}}"
api_url = "{{url}}"
"""


@asynccontextmanager
async def worker(store, settings, log):
    """A process that listens to Slack."""
    command = [AYES, "work", "slack", "--json", "--store", store, "--settings", settings]
    with log.open("a") as errors:
        process = Started(
            [*command, "--ack-wait", f"{ACK_WAIT_S}s"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
            env=environment(BOT=BOT_TOKEN, AYES_VERBOSE="1"),
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)
        process.stdout.close()


@pytest.mark.parametrize("decided", sampled([False, True], True))
async def test_a_message_that_was_not_recorded_is_found(tmp_path, decided):
    """A worker posts and is killed before it knows; the next one finds the message, records it and
    has it say what is so: by then the call may be decided. No log has a token.
    """
    log = tmp_path / "log"
    async with running(tmp_path / "store", ACK_WAIT_S) as server, slack_stand_in() as slack:
        store = server.store.path
        settings = settings_file(tmp_path, SETTINGS.format(bot="env:BOT", url=slack.url))
        async with (
            Ledger.connect(store, role="operator") as operator,
            Ledger.connect(store, name="desk") as service,
            Logins.of(server.store) as logins,
            working(reactions(["gate", "queue"]), store=store),
            asyncio.timeout(60),
        ):
            await operator.append(policy_slot("shop", 1), applied(POLICY))
            await service.declare("shop", ToolSpec(name="refund", schema='{"type":"object"}'))
            await (await logins.reviewer("ana")).bind(f"slack:{TEAM}/U0ANA")
            killed = asyncio.Event()
            async with worker(store, settings, log) as first:

                async def post_and_kill(_request):
                    slack.chat_postMessage(slack.asked["chat.postMessage"][-1])
                    first.kill()
                    killed.set()
                    return web.json_response({"ok": False, "error": "fatal_error"})

                slack.next["chat.postMessage"].append(post_and_kill)
                await service.request(CALL, "refund", "{}", requester="rita")
                await killed.wait()
            [message] = slack.messages[CHANNEL]
            assert not (await service.call(CALL)).posted
            if decided:
                await (await logins.reviewer("ana")).deny(CALL, reason="No.")
                await service.decision(CALL)
            async with worker(store, settings, log):
                async for posted in service.watch(1, CALL.posted(CHANNEL).subject):
                    assert posted.event.message == message["ts"]
                    break
                if decided:
                    await slack.until(lambda: "was denied" in message["text"])
                else:
                    await slack.until(lambda: slack.sockets)
                    await slack.click(message, APPROVE, "U0ANA")
                    assert (await service.decision(CALL)).decided.event.voters == ("ana",)
                    await slack.until(lambda: "was approved" in message["text"])
            assert slack.messages[CHANNEL] == [message]
    said = log.read_text()
    assert "listens to Slack" in said
    assert BOT_TOKEN not in said
    assert APP_TOKEN not in said


async def test_up_runs_it_if_it_has_settings(tmp_path):
    """Beside the other workers."""
    store = tmp_path / "store"
    policy = tmp_path / "shop.toml"
    policy.write_text(POLICY)
    async with slack_stand_in() as slack, asyncio.timeout(90):
        settings = settings_file(tmp_path, SETTINGS.format(bot=BOT_TOKEN, url=slack.url))
        options = ("--settings", settings)
        served = up(store, "--policy", policy, "-w", "shop", *options)
        ready = await asyncio.to_thread(served.__enter__)
        try:
            assert ready["workers"][-1] == "slack"
            async with Ledger.connect(store, name="desk") as service:
                await service.declare("shop", ToolSpec(name="refund", schema='{"type":"object"}'))
                async with Logins.of(Store(store)) as logins:
                    await (await logins.reviewer("ana")).bind(f"slack:{TEAM}/U0ANA")
                await service.request(CALL, "refund", "{}", requester="rita")
                [message] = await slack.until(lambda: slack.messages[CHANNEL])
                assert f"https://ayes.example/calls/{CALL}" in str(message["blocks"])
                await slack.until(lambda: slack.sockets)
                await slack.click(message, APPROVE, "U0ANA")
                assert (await service.decision(CALL)).decided.event.voters == ("ana",)
        finally:
            await asyncio.to_thread(served.__exit__, None, None, None)
