"""`ayes serve aap` as a program: the page's settings and agent, with a real framework."""

import asyncio
import gc
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agentapprovalprotocol import AsyncClient
from gateways import first_answer
from pages import blocks
from paths import ROOT
from ports import free_port
from program import started
from pydantic_ai import messages as pai
from pydantic_ai.models.function import AgentInfo, FunctionModel
from running import judged
from sections import section, settings_file
from shop import rule
from until import question

from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.schemas.errors import BadFile
from ayes.schemas.slots import ThreadRef

PAGE = ROOT / "docs" / "aap.md"
POLICY = rule("money", "ask")
THREAD = ThreadRef("shop", "aap-support-bot")
TOKEN = "t" * 32


@pytest.fixture
async def ledger(store: Path) -> AsyncIterator[Ledger]:
    async with judged(store, POLICY) as ledger:
        yield ledger


@asynccontextmanager
async def provider(store: Path, port: int) -> AsyncIterator[subprocess.Popen[str]]:
    """The program, with the settings of the page, once it answers."""
    shown, _ = blocks(PAGE, "toml")
    file = settings_file(store.parent, shown.text)
    arguments = ("--settings", file, "--http", f"127.0.0.1:{port}", "--store", store)
    with started("serve", "aap", *arguments, SUPPORT_BOT_TOKEN=TOKEN) as process:
        assert await first_answer(f"http://127.0.0.1:{port}/v1/requests/x") == 401
        yield process
        process.kill()


def wishes(history: list[pai.ModelMessage], _offered: AgentInfo) -> pai.ModelResponse:
    """A model that calls `refund` once, and then says what came of it."""
    for message in history:
        for part in message.parts:
            if isinstance(part, pai.ToolReturnPart | pai.RetryPromptPart):
                return pai.ModelResponse([pai.TextPart(str(part.content))])
    return pai.ModelResponse([pai.ToolCallPart("refund", '{"order":"A-17"}', "call_1")])


async def test_an_agent_of_the_page_outlives_its_provider(ledger: Ledger, store: Path):
    """The released adapter of Pydantic AI waits at a call. Its provider is killed and started
    again; once a person has approved, the tool runs, once (I1).
    """
    shown, _ = blocks(PAGE, "python")
    names: dict[str, Any] = {}
    exec(compile(shown.text, str(PAGE), "exec"), names)
    port = free_port()
    ran: list[str] = []
    agent = names["agent_with_approvals"](
        FunctionModel(wishes), TOKEN, url=f"http://127.0.0.1:{port}"
    )

    @agent.tool_plain
    def refund(order: str) -> str:
        ran.append(order)
        return f"{order} is paid back"

    async with provider(store, port) as first:
        asking = asyncio.create_task(agent.run("Refund A-17."))
        waiting = await question(ledger, THREAD)
        first.kill()
        assert not asking.done()
        async with provider(store, port):
            await ledger.reviewer("ana").approve(waiting.ref)
            async with asyncio.timeout(60):
                result = await asking
            assert result.output == "A-17 is paid back"
            assert ran == ["A-17"]
            call = await ledger.call(waiting.ref)
            assert (call.status, call.wish.requester) == (Status.RETURNED, "ben")
    # The released adapter has no way to close its connections.
    for client in [one for one in gc.get_objects() if isinstance(one, AsyncClient)]:
        await client.aclose()


INSTANCE = '[[aap.instance]]\nname = "a"\nrequester = "ben"\n'
BAD = [
    ("", "workspace"),
    ('workspace = "a b"\n', "'a b'"),
    ('workspace = "shop"\n', "instance"),
    ('workspace = "shop"\noutcome_within = "soon"\n', "1s to 30d"),
    (f'workspace = "shop"\n{INSTANCE}token = "env:NOT_SET"\n', "the variable NOT_SET is not set"),
    (f'workspace = "shop"\n{INSTANCE}token = "env:SHORT"\n', "fewer than 32 characters"),
    (f'workspace = "shop"\n{INSTANCE}token = "{TOKEN}"\n', "others may read it"),
]


@pytest.mark.parametrize(("text", "said"), BAD)
def test_a_bad_file_is_refused_in_one_sentence(tmp_path: Path, text: str, said: str):
    """With the place in it, before anything is served."""
    with pytest.raises(BadFile, match=said):
        section("aap", tmp_path, f"[aap]\n{text}", {"SHORT": "short"}, 0o644)
