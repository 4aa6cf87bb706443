"""The hooks of Claude Code: the ledger decides, claims and records; and a tool runs once."""

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asking_agent import POLICY, Raising
from pictures import PDF, PNG
from shop import Shop, rule

from ayes.adapters.claude_code import Allow, Deny, after, before, decision_json, event_of
from ayes.adapters.claude_code import read_event as read
from ayes.adapters.kernel import Kernel
from ayes.adapters.outputs import MAX_OUTPUT
from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.schemas import events as e
from ayes.schemas.content import attached
from ayes.schemas.errors import AlreadyFilled, BadInput, Unavailable
from ayes.schemas.limits import cut
from ayes.schemas.slots import CallRef, StopRef

pytestmark = pytest.mark.log("memory")
_ASKED = rule("shell", "ask", 'voters = ["ana"]', "editor_counts = true", tools="Bash")
_TEXT = (
    '{"hook_event_name":"PreToolUse","session_id":"s","tool_name":"Bash","tool_use_id":"%s",'
    '"tool_input":{%s}}'
)


def event(use: str, command: str = "make", name: str = "PreToolUse", **more: Any) -> Any:
    return event_of(
        {
            "session_id": "5f0e",
            "transcript_path": "/t.jsonl",
            "hook_event_name": name,
            "tool_name": "Bash",
            "tool_input": {"command": command},
            "tool_use_id": use,
        }
        | more
    )


class Desk:
    """A shop with a gate and a person, and the hooks of a session."""

    def __init__(self, log: Any) -> None:
        self.shop = Shop(log)
        self.kernel = self.kernel_of(log)

    def kernel_of(self, log: Any, **more: Any) -> Kernel:
        ledger = Ledger(log, e.Author(kind="service", name="claude-code"))
        return Kernel(ledger, "shop", requester="ben", **more)

    async def waiting(self, given: Any) -> Call:
        """The call that people are asked about."""
        said = await before(self.kernel, given)
        assert isinstance(said, Deny)
        found = re.search(r"\((shop/\S+)\)", said.reason)
        assert found is not None, said.reason
        return await self.shop.ledger.known_call(CallRef.parse(found[1]))

    async def approve(self, call: Call, arguments: str | None = None) -> None:
        ana = Ledger(self.shop.log, e.Author(kind="reviewer", name="ana")).reviewer("ana")
        await ana.approve(call.ref, arguments=arguments)
        await self.shop.until(call.ref.decided)


@pytest.fixture
async def desk(port) -> AsyncIterator[Desk]:
    desk = Desk(port)
    await desk.shop.open(POLICY + _ASKED)
    async with desk.shop.gates():
        yield desk


async def test_the_same_call_asked_again_runs_once_after_the_approval(desk):
    """Under another `tool_use_id`, which the model gives it. The next equal one is a new call."""
    call = await desk.waiting(event("toolu_1"))
    assert await desk.waiting(event("toolu_2")) == call
    await desk.approve(call)
    assert await before(desk.kernel, event("toolu_3")) == Allow()
    assert (await desk.shop.ledger.call(call.ref)).status is Status.RUNNING
    assert (await desk.waiting(event("toolu_4"))).ref != call.ref


async def test_the_same_hook_called_twice_allows_nothing_twice(desk):
    """A `tool_use_id` whose tool was started is denied: it may have run."""
    await desk.approve(await desk.waiting(event("toolu_1")))
    assert await before(desk.kernel, event("toolu_1")) == Allow()
    said = await before(desk.kernel, event("toolu_1"))
    assert isinstance(said, Deny)
    assert "started" in said.reason


async def test_two_at_once_share_no_approval(desk):
    """One of two equal calls runs, and people are asked about the other."""
    await desk.approve(await desk.waiting(event("toolu_1")))
    said = await asyncio.gather(
        *(before(desk.kernel_of(desk.shop.log), event(f"toolu_{n}")) for n in (2, 3))
    )
    assert sorted(type(one).__name__ for one in said) == ["Allow", "Deny"]


@pytest.mark.parametrize(
    ("name", "more", "status"),
    [
        ("PostToolUse", {"tool_response": {"stdout": "made"}}, Status.RETURNED),
        ("PostToolUseFailure", {"error": "exit code 2"}, Status.FAILED),
        ("PostToolUseFailure", {"error": "x", "is_interrupt": True}, Status.IN_DOUBT),
    ],
)
async def test_what_became_of_it_is_recorded(desk, name, more, status):
    """By the other hooks, once. Nobody knows how an interrupted call ended."""
    call = await desk.waiting(event("toolu_1"))
    await desk.approve(call)
    await before(desk.kernel, event("toolu_2"))
    assert await after(desk.kernel, event("toolu_9", name=name, **more)) is None
    await after(desk.kernel, event("toolu_2", name=name, **more))
    assert (await desk.shop.ledger.call(call.ref)).status is status
    with pytest.raises(AlreadyFilled):
        await after(desk.kernel, event("toolu_2", name=name, **more))


async def test_what_the_model_sees_is_recorded_as_files(desk):
    """The forms of Claude Code's own tools and of MCP servers' results. A long text is cut."""
    data, source = base64.b64encode(PNG).decode(), {"type": "base64", "media_type": "image/png"}
    read = {"type": "image", "file": {"base64": data, "type": "image/png", "originalSize": 9}}
    page = {"filePath": "/desk/may.pdf", "base64": base64.b64encode(PDF).decode()}
    told = {"type": "text", "text": "Refunds by month."}
    picture = attached(PNG, "image/png")
    for number, (response, output) in enumerate(
        (
            (read, (picture,)),
            ({"type": "pdf", "file": page}, (attached(PDF, "application/pdf", "may.pdf"),)),
            (
                [told, {"type": "image", "source": source | {"data": data}}],
                (e.Text("Refunds by month."), picture),
            ),
            ({"stdout": "made"}, '{"stdout":"made"}'),
            ("x" * 1_000_000, cut("x" * 1_000_000, MAX_OUTPUT)),
        )
    ):
        use, command = f"toolu_{number}", f"make {number}"
        call = await desk.waiting(event(f"{use}-first", command))
        await desk.approve(call)
        await before(desk.kernel, event(use, command))
        await after(desk.kernel, event(use, command, "PostToolUse", tool_response=response))
        known = await desk.shop.ledger.call(call.ref)
        assert known.finished.event.output == output


async def test_an_edit_is_what_runs(desk):
    """Claude Code gets the reviewer's arguments, and the model is told."""
    call = await desk.waiting(event("toolu_1"))
    await desk.approve(call, arguments='{"command":"make test"}')
    said = await before(desk.kernel, event("toolu_2"))
    assert said == Allow({"command": "make test"})
    told = decision_json(said)["hookSpecificOutput"]
    assert told["permissionDecision"] == "allow"
    assert told["updatedInput"] == {"command": "make test"}
    assert "make test" in told["additionalContext"]


@pytest.mark.parametrize(
    ("number", "runs"),
    [
        ("9007199254740992", True),
        ("1.50", True),
        ("9007199254740993", False),
        ("0.1234567890123456789", False),
        ("[1, 1e-400]", False),
    ],
)
async def test_an_edit_that_claude_code_would_round_does_not_run(desk, number, runs):
    """It reads numbers as JavaScript does: what was approved runs, or nothing (B27, I7)."""
    call = await desk.waiting(event("toolu_1"))
    await desk.approve(call, arguments=f'{{"command":"9007199254740993","n":{number}}}')
    said = await before(desk.kernel, event("toolu_2"))
    assert isinstance(said, Allow) is runs
    known = await desk.shop.ledger.call(call.ref)
    assert known.status is (Status.RUNNING if runs else Status.APPROVED)
    assert runs or "cannot be held exactly" in said.reason


async def test_what_the_policy_does_not_know_is_denied(desk):
    """No rule names the tool: it does not run."""
    said = await before(desk.kernel, event("toolu_1", tool_name="Write", tool_input={}))
    assert isinstance(said, Deny)


async def test_a_call_stays_that_of_its_first_requester(desk):
    """In one session, which the hook's settings were changed in: people are asked once."""
    call = await desk.waiting(event("toolu_1"))
    desk.kernel.requester = "rita"
    assert await desk.waiting(event("toolu_2")) == call
    assert call.wish.requester == "ben"


async def test_an_id_that_comes_again_after_the_end_is_another_call(desk):
    """Some servers number their calls anew in each turn. Claude Code asks before each run, and not
    again about one whose result it has (B20).
    """
    use = event("Bash_0")
    await desk.approve(await desk.waiting(use))
    assert await before(desk.kernel, use) == Allow()
    await after(desk.kernel, event("Bash_0", name="PostToolUse", tool_response="made"))
    again = await desk.waiting(use)
    assert again.status is Status.PENDING
    await desk.approve(again)
    assert await before(desk.kernel, use) == Allow()
    await after(desk.kernel, event("Bash_0", name="PostToolUse", tool_response="made again"))
    assert (await desk.shop.ledger.call(again.ref)).finished.event.output == "made again"


async def test_it_fails_closed(desk):
    """A ledger that raises allows nothing."""
    with pytest.raises(Unavailable):
        await before(desk.kernel_of(Raising(desk.shop.log)), event("toolu_1"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"hook_event_name":"Stop","session_id":"s"}',
        json.dumps({"hook_event_name": "PreToolUse", "session_id": "s", "tool_name": "Bash"}),
        _TEXT % ("", '"command":"ls"'),
        _TEXT % ("toolu_1", '"command":"ls","command":"rm"'),
    ],
)
def test_a_bad_event_is_refused(text):
    """Bad JSON, another hook, no ids, or a key twice."""
    with pytest.raises(BadInput):
        read(text)


async def test_what_is_stopped_is_denied_for_now(desk):
    """Approved, and stopped: Claude Code reads that it runs later, and then it does, once (I1)."""
    call = await desk.waiting(event("toolu_1"))
    await desk.approve(call)
    ana = Ledger(desk.shop.log, e.Author(kind="reviewer", name="ana")).reviewer("ana")
    stop = StopRef("shop", "ana", "s1")
    await ana.stop(stop, reason="A wrong account.")
    said = await before(desk.kernel, event("toolu_2"))
    assert isinstance(said, Deny)
    assert "it is approved, and was stopped for now" in said.reason
    await ana.resume(stop)
    await desk.shop.until(stop.ended)
    assert await before(desk.kernel, event("toolu_3")) == Allow()
    assert (await desk.waiting(event("toolu_4"))).ref != call.ref
