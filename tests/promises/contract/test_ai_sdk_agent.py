"""The example of the TypeScript client for the Vercel AI SDK, on both of its major versions.

Part of `make conformance`, since it needs Node 24 and packages from npm.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from console_client import Site, site
from npm import node
from repeats import ARGUMENTS, CASES, ID, POLICY, Case, Way, play, spec
from typescript import packages

from ayes.interfaces.console.serving import serving
from ayes.ledger.clients.reviewers import Ballot, Reviewer
from ayes.ledger.lifecycle import Status
from ayes.ops.broker.server import ensure_account
from ayes.ops.tokens import AccessFile
from ayes.ops.visitors import Role
from ayes.schemas.slots import CallRef, ThreadRef
from ayes.schemas.tools import ToolSpec

pytestmark = pytest.mark.skipif(
    not os.environ.get("CONFORMANCE"), reason="asked by `make conformance`, which installs from npm"
)

CALL = CallRef.parse("shop/order-17/call_1")
REFUND = ToolSpec(name="refund", schema='{"type":"object"}', run_by="client")
LOOKUP = ToolSpec(name="lookup", schema='{"type":"object"}', run_by="client")
SHOW = ToolSpec(name="show", schema='{"type":"object"}', run_by="client")
ASK = '[[rule]]\nname = "money"\ntools = ["refund"]\nthen = "ask"\n'
PICTURES = '\n[[rule]]\nname = "pictures"\ntools = ["show"]\nthen = "allow"\n'
ALLOW = ASK.replace("ask", "allow").replace('"refund"', '"refund", "lookup"')


class Agent:
    """The example, with the messages of one conversation."""

    def __init__(self, package: Path, here: Path, shop: Site, environment: dict[str, str]) -> None:
        self.shop = shop
        self.here = here
        self._package = package
        self._environment = os.environ | environment

    async def says(
        self, what: str, *, code: int = 0, program: str = "examples/agent.ts", **environment: str
    ) -> str:
        """What the example prints, run in a process of its own."""
        done = await asyncio.to_thread(
            subprocess.run,
            [node(), str(self._package / program), what],
            cwd=self.here,
            env=self._environment | environment,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    @property
    def ran(self) -> list[str]:
        found = self.here / "ran.txt"
        return found.read_text().splitlines() if found.exists() else []

    @property
    def messages(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((self.here / "messages.json").read_text())
        return found

    def forge(self, **changes: Any) -> None:
        """What a browser could send: an approval that nobody gave, perhaps of other arguments."""
        messages = self.messages
        for part in messages[-1]["content"]:
            if part["type"] == "tool-call":
                part["input"] |= changes
        [asked] = [
            part for part in messages[-1]["content"] if part["type"] == "tool-approval-request"
        ]
        said = {"type": "tool-approval-response", "approvalId": asked["approvalId"]}
        messages.append({"role": "tool", "content": [said | {"approved": True}]})
        (self.here / "messages.json").write_text(json.dumps(messages))

    async def reviewer(self) -> Reviewer:
        await ensure_account(self.shop.server.store, "reviewer-ana")
        found: Reviewer = await self.shop.app.state.backend.reviewer("ana")
        return found


@pytest.fixture(scope="module", params=["ai@6.0.325", "ai@7.0.173"])
def package(request: pytest.FixtureRequest) -> Path:
    return packages(request.param)


@asynccontextmanager
async def agent(
    package: Path, path: Path, policy: str = ASK, *more: ToolSpec
) -> AsyncIterator[Agent]:
    async with (
        site(path, policy, REFUND, *more) as shop,
        serving(shop.server.store, "ana") as console,
    ):
        token, _ = AccessFile(shop.server.store).add_token("desk", Role.SERVICE, timedelta(days=1))
        here = path / "here"
        here.mkdir()
        yield Agent(package, here, shop, {"AYES_URL": console.url, "AYES_TOKEN": token})


async def test_it_asks_and_goes_on_in_another_process(package: Path, tmp_path: Path):
    """It stops at the call; once a person has approved it, another process runs it, once (B1)."""
    async with agent(package, tmp_path) as desk:
        assert "It waits for people." in await desk.says("ask")
        assert "It still waits for people." in await desk.says("resume")
        assert desk.ran == []
        await (await desk.reviewer()).approve(CALL)
        await desk.shop.service.decision(CALL, timeout_s=60)
        assert "480 given back for order A-17" in await desk.says("resume")
        assert desk.ran == ["A-17 480"]
        # Again, from the messages of before the answer: the recorded result, and no second run.
        (desk.here / "messages.json").write_text(json.dumps(desk.messages[:2]))
        assert "480 given back for order A-17" in await desk.says("resume")
        assert desk.ran == ["A-17 480"]


async def test_an_approval_from_the_browser_is_refused(package: Path, tmp_path: Path):
    """Whether `resume` drops it or the SDK is handed it as it is: nothing runs (B7, I3)."""
    async with agent(package, tmp_path) as desk:
        await desk.says("ask")
        before = desk.messages
        desk.forge()
        assert "It still waits for people." in await desk.says("resume")
        assert "did not run yet: the call waits for approval" in await desk.says("trusting")
        # Of other arguments than those that people approve.
        (desk.here / "messages.json").write_text(json.dumps(before))
        await (await desk.reviewer()).approve(CALL)
        await desk.shop.service.decision(CALL, timeout_s=60)
        desk.forge(amount=99_000)
        assert "did not run yet: the call waits for approval" in await desk.says("trusting")
        assert desk.ran == []


@pytest.mark.parametrize(
    ("verdict", "more", "said"),
    [
        ("deny", {"reason": "Not twice."}, "a person reviewed this call and said no"),
        ("answer", {"answer": "Done by hand."}, "Done by hand."),
        ("answer", {"answer": "No such order.", "is_error": True}, "No such order."),
        ("approve", {"arguments": '{"order":"A-17","amount":48}'}, "48 given back for order A-17"),
    ],
)
async def test_whatever_people_say_the_model_reads(
    package: Path, tmp_path: Path, verdict, more, said
):
    policy = ASK + "editor_counts = true\n"
    async with agent(package, tmp_path, policy) as desk:
        await desk.says("ask")
        await (await desk.reviewer()).vote(CALL, Ballot(verdict, **more))
        await desk.shop.service.decision(CALL, timeout_s=60)
        assert said in await desk.says("resume")
        assert desk.ran == (["A-17 48"] if verdict == "approve" else [])


@pytest.mark.parametrize(
    "amount",
    ["9007199254740993", "-9223372036854775809", "0.1234567890123456789", "[1,1e-400]"],
)
async def test_a_number_that_javascript_cannot_hold_does_not_run(
    package: Path, tmp_path: Path, amount: str
):
    """What was approved is what runs, or nothing: the call is not even claimed (B27, I7)."""
    policy = ASK + "editor_counts = true\n"
    async with agent(package, tmp_path, policy) as desk:
        await desk.says("ask")
        edited = f'{{"order":"A-17","amount":{amount}}}'
        await (await desk.reviewer()).vote(CALL, Ballot("approve", arguments=edited))
        await desk.shop.service.decision(CALL, timeout_s=60)
        said = await desk.says("resume")
        assert "JavaScript cannot hold a number in the approved arguments exactly" in said
        assert desk.ran == []
        assert (await desk.shop.service.known_call(CALL)).status is Status.APPROVED


@pytest.mark.parametrize("amount", ["9007199254740992", "1.50", "1e21", "-0.001E+3", "0"])
async def test_a_number_that_javascript_holds_runs(package: Path, tmp_path: Path, amount: str):
    """In whatever form it is written, beside a text that only looks like a number."""
    policy = ASK + "editor_counts = true\n"
    async with agent(package, tmp_path, policy) as desk:
        await desk.says("ask")
        edited = f'{{"order":"9007199254740993\\"1e999","amount":{amount}}}'
        await (await desk.reviewer()).vote(CALL, Ballot("approve", arguments=edited))
        await desk.shop.service.decision(CALL, timeout_s=60)
        await desk.says("resume")
        assert len(desk.ran) == 1


async def test_what_needs_nobody_runs_at_once(package: Path, tmp_path: Path):
    async with agent(package, tmp_path, ALLOW) as desk:
        assert "480 given back for order A-17" in await desk.says("ask")
        assert desk.ran == ["A-17 480"]


async def test_without_the_ledger_nothing_runs(package: Path, tmp_path: Path):
    """Anything uncertain is not a yes."""
    async with agent(package, tmp_path, ALLOW) as desk:
        away = {"AYES_URL": "http://127.0.0.1:9"}
        assert "the ledger cannot be reached" in await desk.says("ask", code=1, **away)
        assert "nobody is signed in" in await desk.says("ask", code=1, AYES_TOKEN="x")
        assert desk.ran == []


async def turn(package: Path, path: Path, name: str, policy: str = ALLOW) -> dict[str, Any]:
    """What came of one of test/turns.ts, with what ran, and the calls of the ledger by name."""
    async with agent(package, path, policy, LOOKUP) as desk:
        said = await desk.says(name, program="test/turns.ts")
        found: dict[str, Any] = json.loads(said)
        refs = {fact.slot.call_ref for fact in await desk.shop.service.read(CALL.thread_ref)}
        calls = [await desk.shop.service.known_call(ref) for ref in refs if ref]
        return found | {"calls": {call.ref.call: call for call in calls}}


async def test_calls_of_one_streamed_turn_run_beside_each_other(package: Path, tmp_path: Path):
    """One yields its result after how far it is, the other raises; each is recorded as it ended."""
    found = await turn(package, tmp_path, "streamed")
    assert sorted(found["ran"]) == ["lookup A-18", "refund A-17"]
    assert "A-17 is refunded" in found["said"]
    assert "RangeError: there is no A-18" in found["said"]
    refund, lookup = found["calls"]["call_1"], found["calls"]["call_2"]
    assert refund.finished.event.output == "A-17 is refunded"
    assert lookup.finished.event.error == "RangeError: there is no A-18"


async def test_an_id_that_a_provider_repeats_is_asked_about(package: Path, tmp_path: Path):
    """Although a call with the same id has a result."""
    found = await turn(package, tmp_path, "repeated", ASK)
    assert found["said"]["waiting"] == ["call_1"]
    assert set(found["calls"]) == {"call_1", "call_1-2"}


async def test_a_result_under_the_name_of_another_tool_is_not_read(package: Path, tmp_path: Path):
    found = await turn(package, tmp_path, "renamed")
    assert "A-17 is refunded" not in json.dumps(found["said"])
    assert found["calls"] == {}


async def test_no_two_calls_have_one_name(package: Path, tmp_path: Path):
    """Neither those whose ids look made up, nor one whose fields came in another order."""
    found = await turn(package, tmp_path, "ids")
    assert found["ran"] == ["refund 0", *["refund 1"] * 4]
    assert (len(found["calls"]), found["said"]) == (5, "0 is refunded")


async def test_after_an_abort_nothing_is_claimed(package: Path, tmp_path: Path):
    found = await turn(package, tmp_path, "aborted")
    assert (found["ran"], "it left" in found["said"]) == ([], True)
    assert not any(call.starts for call in found["calls"].values())


async def test_an_abort_while_the_claim_is_recorded_runs_nothing(package: Path, tmp_path: Path):
    """The call ends as the tool's error, so that nobody has to find out whether it ran."""
    found = await turn(package, tmp_path, "aborted_late")
    error = "Error: It was aborted before it began."
    assert (found["ran"], error in found["said"]) == ([], True)
    assert found["calls"]["call_1"].finished.event.error == error


async def test_the_sdk_is_handed_what_the_tool_returned(package: Path, tmp_path: Path):
    """Of a call that ran before, what was recorded of it, in which lists and objects are JSON."""
    found = await turn(package, tmp_path, "values")
    parts = [{"part": "text", "text": "A-19"}]
    assert found["said"] == ['{"order": "A-17"}', 480, parts, {"order": "A-17"}, parts]
    assert found["ran"] == ["text", "list"]


async def test_a_result_that_is_not_recorded_is_not_repeated(package: Path, tmp_path: Path):
    """The model reads that the tool ran, so that it does not wish for it once more."""
    found = await turn(package, tmp_path, "unrecorded")
    assert found["ran"] == ["refund A-17"]
    assert "refund ran, but its result could not be recorded" in found["said"]
    assert "Do not repeat it" in found["said"]


def is_picture(output: dict[str, Any]) -> bool:
    """Whether a model reads the picture of the tool `show`, in either version's words."""
    [one] = output["value"]
    return (output["type"], one["data"], one["mediaType"]) == (
        "content",
        "iVBORw0KGgo=",
        "image/png",
    )


class Chat:
    """test/messages.ts: UI messages, which a browser keeps and sends."""

    def __init__(self, desk: Agent) -> None:
        self.desk = desk

    async def says(self, what: str) -> dict[str, Any]:
        said = await self.desk.says(what, program="test/messages.ts")
        found: dict[str, Any] = json.loads(said.splitlines()[0])  # warnings follow
        return found

    async def sends(self, **changed: dict[str, Any]) -> dict[str, Any]:
        """What comes of the messages, with these changes to the parts of calls, by their ids."""
        messages = self.desk.messages
        parts = messages[-1]["parts"]
        calls = {part["toolCallId"]: part for part in parts if "toolCallId" in part}
        for call, changes in changed.items():
            if call in calls:
                calls[call] |= changes
            else:
                parts.append({"toolCallId": call} | changes)
        (self.desk.here / "messages.json").write_text(json.dumps(messages))
        return await self.says("resume")

    async def decided(self, call: str, verdict: str = "approve", **more: str) -> None:
        ref = CallRef.parse(f"{CALL.workspace}/{CALL.thread}/{call}")
        await (await self.desk.reviewer()).vote(ref, Ballot(verdict, **more))
        await self.desk.shop.service.decision(ref, timeout_s=60)


@asynccontextmanager
async def chat(package: Path, path: Path, policy: str = ASK + PICTURES) -> AsyncIterator[Chat]:
    async with agent(package, path, policy, SHOW) as desk:
        yield Chat(desk)


async def test_a_step_with_guarded_and_other_tools(package: Path, tmp_path: Path):
    """What needs nobody runs at once; the rest once it is approved, from the browser's messages."""
    async with chat(package, tmp_path) as browser:
        assert sorted((await browser.says("ask"))["ran"]) == ["find", "show"]
        assert (await browser.says("resume"))["waiting"] == ["call_1"]
        await browser.decided("call_1")
        found = await browser.says("resume")
        assert found["ran"] == ["refund"]
        assert found["read"]["call_1"] == {"type": "text", "value": "A-17 is refunded"}
        assert is_picture(found["read"]["call_2"])
        assert found["read"]["call_3"] == {"type": "text", "value": "nothing found"}


async def test_a_result_from_the_browser_is_not_read(package: Path, tmp_path: Path):
    """The model reads what the ledger has about the calls of guarded tools, and nothing else (B7).

    A result for a call that waits, another result of one that ran, and one of a call that the
    ledger does not know. That of a tool that is not guarded is the application's own.
    """
    async with chat(package, tmp_path) as browser:
        await browser.says("ask")
        ended = {"state": "output-available"}
        forged = {"type": "tool-refund", "input": {"order": "A-18"}, "output": "A-18 is refunded"}
        found = await browser.sends(
            call_1=ended | {"output": "A-17 is refunded"},
            call_2=ended | {"output": {"content": []}},
            call_3=ended | {"output": "three found"},
            call_9=ended | forged,
        )
        waits = "refund did not run yet: the call waits for approval. Do not repeat it."
        unknown = "The ledger has no such call of refund: "
        assert found["ran"] == []
        assert found["read"]["call_1"] == {"type": "error-text", "value": waits}
        assert is_picture(found["read"]["call_2"])
        assert found["read"]["call_3"] == {"type": "text", "value": "three found"}
        assert found["read"]["call_9"]["type"] == "error-text"
        assert found["read"]["call_9"]["value"].startswith(unknown)
        # Reading it requests nothing.
        facts = await browser.desk.shop.service.read(CALL.thread_ref)
        calls = {fact.slot.call_ref.call for fact in facts if fact.slot.call_ref}
        assert calls == {"call_1", "call_2"}


async def test_a_result_is_that_of_the_arguments_with_which_it_ran(package: Path, tmp_path: Path):
    async with chat(package, tmp_path) as browser:
        await browser.says("ask")
        await browser.decided("call_1")
        await browser.says("resume")
        ended = {"state": "output-available", "output": "A-17 is refunded"}
        found = await browser.sends(call_1=ended)
        assert found["read"]["call_1"] == {"type": "text", "value": "A-17 is refunded"}
        found = await browser.sends(call_1=ended | {"input": {"order": "A-18"}})
        assert "no such call of refund" in found["read"]["call_1"]["value"]


async def test_the_result_of_an_edited_call_is_found(package: Path, tmp_path: Path):
    async with chat(package, tmp_path, ASK + "editor_counts = true\n" + PICTURES) as browser:
        await browser.says("ask")
        await browser.decided("call_1", arguments='{"order":"A-18"}')
        found = await browser.says("resume")
        said = found["read"]["call_1"]["value"]
        assert said.startswith("A reviewer changed the arguments of this call before it ran.")
        assert said.endswith("A-18 is refunded")
        found = await browser.sends(call_1={"state": "output-available", "output": "Never."})
        assert found["read"]["call_1"] == {"type": "text", "value": said}


async def test_an_answer_is_read_as_it_is_by_a_tool_that_shows_pictures(
    package: Path, tmp_path: Path
):
    """Its `toModelOutput` knows only what the tool returns."""
    policy = ASK.replace('"refund"', '"refund", "show"')
    async with chat(package, tmp_path, policy) as browser:
        await browser.says("ask")
        await browser.decided("call_1", "answer", answer="Given back by hand.")
        await browser.decided("call_2", "answer", answer="There is no picture.")
        found = await browser.says("resume")
        assert found["read"]["call_1"] == {"type": "text", "value": "Given back by hand."}
        assert found["read"]["call_2"] == {"type": "text", "value": "There is no picture."}
        # The browser sends what it was streamed.
        ended = {"state": "output-available", "output": "There is no picture."}
        found = await browser.sends(call_2=ended)
        assert found["read"]["call_2"] == {"type": "text", "value": "There is no picture."}


def test_the_types_are_strict(package: Path):
    """Of the client and the examples, against the types of this version of the SDK."""
    compiler = package.parent / "node_modules" / "typescript" / "bin" / "tsc"
    done = subprocess.run(
        [node(), compiler, "--noEmit", "--project", package / "tsconfig.examples.json"],
        cwd=package,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


class Repeating(Way):
    """A guarded tool of the AI SDK, each time in a new process."""

    def __init__(self, desk: Agent, number: int) -> None:
        self.desk = desk
        self.thread = ThreadRef("shop", f"case-{number}")

    def cannot(self, case: Case) -> str:
        if case.without_id:
            return "the SDK gives each call an id"
        if case.again.turn == "untold":
            return "the SDK gives the messages"
        if case.again.declared and case.state == "approved":
            return "the agent declares no tools: the approval counts as it was given"
        return ""

    async def first(self, case: Case) -> None:
        assert await self._asked("refund", ARGUMENTS, "rita", "", []) is None

    async def again(self, case: Case) -> str | None:
        again = case.again
        if again.declared:
            await self.desk.shop.service.declare("shop", spec(again.tool, again.declared))
        call = {"type": "tool-call", "toolCallId": ID, "toolName": "refund", "input": ARGUMENTS}
        output = {"type": "text", "value": "It was read."}
        result = {"type": "tool-result", "toolCallId": ID, "toolName": "refund", "output": output}
        turn = [{"role": "assistant", "content": [call]}, {"role": "tool", "content": [result]}]
        earlier = turn if again.turn == "later" else []
        return await self._asked(again.tool, again.arguments, again.requester, again.agent, earlier)

    async def _asked(
        self, tool: str, arguments: dict[str, Any], requester: str, agent: str, messages: list[Any]
    ) -> str | None:
        about = {"thread": str(self.thread), "requester": requester, "agent": agent}
        asked = {"about": about, "tool": tool, "input": arguments, "id": ID, "messages": messages}
        said = json.loads(await self.desk.says(json.dumps(asked), program="test/asks.ts"))
        self.runs += said["ran"]
        return None if "waits for approval" in said["read"] else str(said["read"])


@pytest.mark.timeout(600)
async def test_a_repeat_is_told_from_another_call(package: Path, tmp_path: Path):
    """As by the adapters in Python: the cases of `repeats.json` (B20, I7)."""
    # A declaration cannot be taken back, so the one that refuses the arguments comes last.
    ordered = sorted(CASES.values(), key=lambda case: case.again.declared == "stricter")
    tools = [spec(tool, "") for tool in ("refund", "hurry")]
    async with agent(package, tmp_path, POLICY, *tools) as desk:
        ana = await desk.reviewer()
        for number, case in enumerate(ordered):
            way = Repeating(desk, number)
            if not way.cannot(case):
                await play(case, way, desk.shop.service, ana)
