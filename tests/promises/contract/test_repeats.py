"""A repeat is told from another call, everywhere alike: the cases of `repeats.json`.

The TypeScript client passes them in `tests/promises/contract`.
"""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from drivers import DRIVERS, Driver
from gateways import client, gateway, settings, shop_server
from long import sampled
from msgspec import Raw, json
from repeats import ARGUMENTS, CASES, ID, PAID, POLICY, Case, Way, author, play, spec
from shop import Shop

from ayes.adapters.anthropic import TurnWaits, settle
from ayes.adapters.claude_code import Allow, after, before, event_of
from ayes.adapters.kernel import Kernel
from ayes.adapters.names import AskedCall
from ayes.adapters.next_step import Wait
from ayes.interfaces.aap.provider import Conflict, Provider, thread_of
from ayes.interfaces.aap.settings import InstanceSettings
from ayes.interfaces.aap.wire import Submission
from ayes.interfaces.mcp.wire import recorded
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import EventLog
from ayes.projections.refusal_texts import MAY_BE_EARLIER
from ayes.schemas.slots import CallRef, ThreadRef

pytestmark = pytest.mark.log("memory")
every_case = pytest.mark.parametrize("name", CASES)


@pytest.fixture
async def shop(port: EventLog) -> AsyncIterator[Shop]:
    shop = Shop(port)
    async with shop.at_work(POLICY, "", *(spec(tool, "") for tool in ("refund", "hurry"))):
        yield shop


async def played(name: str, way: Way, shop: Shop) -> None:
    ana = Ledger(shop.log, author("ana", "reviewer")).reviewer("ana")
    await play(CASES[name], way, shop.ledger, ana)


def kernel_of(log: EventLog, case: Case | None = None) -> Kernel:
    """A new process that asks: on whose behalf the case says, if there is one."""
    ledger = Ledger(log, author("agents"))
    if case is None:
        return Kernel(ledger, "shop", requester="rita")
    again = case.again
    more = {"requester": again.requester, "agent": again.agent, "labels": again.labels}
    return Kernel(ledger, "shop", **more)


class OfKernel(Way):
    thread = ThreadRef("shop", "order-17")

    def __init__(self, log: EventLog) -> None:
        self.log = log

    async def first(self, case: Case) -> None:
        assert await self._settled(kernel_of(self.log), case.id, 0, "refund", ARGUMENTS, "") is None

    async def again(self, case: Case) -> str | None:
        again = case.again
        earlier = {"same": 0, "later": 1, "untold": None}[again.turn]
        kernel = kernel_of(self.log, case)
        return await self._settled(
            kernel, case.id, earlier, again.tool, again.arguments, again.declared
        )

    async def _settled(
        self,
        kernel: Kernel,
        call_id: str,
        earlier: int | None,
        tool: str,
        arguments: dict[str, Any],
        declared: str,
    ) -> str | None:
        async def run(arguments: dict[str, Any]) -> str:
            self.runs += 1
            return f"{arguments['amount']} were paid back."

        text = json.encode(arguments).decode()
        asked = AskedCall(self.thread.thread, call_id, tool, text, earlier)
        settled = await kernel.settle(asked, spec(tool, declared), run)
        return None if isinstance(settled, Wait) else str(settled)


@every_case
async def test_the_kernel(name: str, shop: Shop):
    """All cases: what is the same call is never asked for again, and runs once (B20, I7)."""
    await played(name, OfKernel(shop.log), shop)


def anew(made: type[Driver]) -> type[Driver]:
    """The agent after a release that changed a description."""

    class Anew(made):  # type: ignore[misc, valid-type]
        def refund(self, amount: float) -> str:
            """Pay money back. Twice as well."""
            return str(super().refund(amount))

    return Anew


class OfFramework(Way):
    """An agent of a framework, each time in a new process on what earlier ones saved."""

    thread = ThreadRef("shop", Driver.thread)

    def __init__(self, log: EventLog, folder: Path, made: type[Driver]) -> None:
        self.log, self.folder, self.made = log, folder, made
        self.ran: list[dict[str, Any]] = []

    @property
    def runs(self) -> int:  # type: ignore[override]
        return len(self.ran)

    def cannot(self, case: Case) -> str:
        if case.without_id and self.made.refuses_no_id:
            return "it takes no call without an id"
        if case.again.turn == "untold":
            return "its messages tell the turn"
        if case.again.turn == "later" and case.state == "waiting":
            return "there is no later turn while a call waits"
        if case.again.declared == "stricter":
            return "the framework does not call a tool whose arguments it refuses"
        if case.without_id and case.call == "another" and case.state == "returned":
            return "an agent that is resumed has the call's result, or asks for it"
        return ""

    async def first(self, case: Case) -> None:
        wishes = ((case.id, "refund", ARGUMENTS),)
        assert await self.made(kernel_of(self.log), self.folder, wishes, self.ran).start() is None

    async def again(self, case: Case) -> str | None:
        wishes = ((case.id, case.again.tool, case.again.arguments),)
        made = anew(self.made) if case.again.declared else self.made
        agent = partial(made, kernel_of(self.log, case), self.folder, wishes, self.ran)
        if case.again.turn == "later":
            assert await agent().resume() is not None
            told = await agent().more()
        elif case.call == "another":
            agent().restore({})
            told = await agent().start()
        else:
            told = await agent().resume()
        return None if told is None else " ".join(map(str, told))


@every_case
@pytest.mark.parametrize("driver", DRIVERS)
async def test_an_adapter(name: str, driver: Any, shop: Shop, tmp_path: Path):
    """Its framework's messages tell a resume from a later turn of the model (B20)."""
    await played(name, OfFramework(shop.log, tmp_path, driver.load()), shop)


async def test_a_turn_without_the_messages_before_it_is_not_told(shop: Shop):
    """Whoever settles the turn alone gets the recorded result of the earlier call, and the model
    reads so; with the messages it is another call, of which people are asked (B20).
    """
    use = {"type": "tool_use", "id": ID, "name": "refund", "input": ARGUMENTS}
    turn = {"role": "assistant", "content": [use]}
    runs = []

    def refund(amount: float) -> str:
        """Pay money back."""
        runs.append(amount)
        return f"{amount:g} were paid back."

    kernel, tools = kernel_of(shop.log), {"refund": refund}
    with pytest.raises(TurnWaits) as waits:
        await settle(kernel, "order-17", [turn], tools)
    [ref] = waits.value.refs
    await shop.until(ref.gated)
    await Ledger(shop.log, author("ana", "reviewer")).reviewer("ana").approve(ref)
    await shop.until(ref.decided)
    first = await settle(kernel, "order-17", [turn], tools)
    assert first["content"][0]["content"] == "100 were paid back."
    assert await settle(kernel, "order-17", [turn], tools) == first
    alone = await settle(kernel, "order-17", turn, tools)
    assert alone["content"][0]["content"] == f"100 were paid back.\n\n{MAY_BE_EARLIER}"
    with pytest.raises(TurnWaits) as waits:
        await settle(kernel, "order-17", [turn, first, turn], tools)
    assert waits.value.refs != (ref,)
    assert runs == [100]


class OfHook(Way):
    """Claude Code, which runs the tool itself."""

    thread = ThreadRef("shop", "5f0e")

    def __init__(self, log: EventLog) -> None:
        self.log = log

    def cannot(self, case: Case) -> str:
        if case.without_id:
            return "each event of a hook has an id"
        if case.again.declared:
            return "the hooks get no descriptions and schemas"
        if case.again.turn == "untold" or (
            case.again.turn == "same" and case.state in ("returned", "denied")
        ):
            return "Claude Code does not ask again about a call whose result it has"
        return ""

    async def first(self, case: Case) -> None:
        assert not isinstance(await before(kernel_of(self.log), _event("PreToolUse")), Allow)

    async def again(self, case: Case) -> str | None:
        again = case.again
        event = _event("PreToolUse", tool_name=again.tool, tool_input=again.arguments)
        decision = await before(kernel_of(self.log, case), event)
        if isinstance(decision, Allow):
            self.runs += 1
            return "100 were paid back"
        return None if "have not answered yet" in decision.reason else decision.reason

    async def starts(self, ledger: Ledger, ref: CallRef) -> None:
        assert await before(kernel_of(self.log), _event("PreToolUse")) == Allow()

    async def returns(self, ledger: Ledger, ref: CallRef) -> None:
        assert await after(kernel_of(self.log), _event("PostToolUse", tool_response=PAID))


def _event(name: str, **more: Any) -> Any:
    asked = {"session_id": "5f0e", "tool_use_id": ID, "tool_name": "refund"}
    return event_of({"hook_event_name": name, "tool_input": ARGUMENTS} | asked | more)


@every_case
async def test_the_hook_of_claude_code(name: str, shop: Shop):
    """It asks before each run, and not after it: an id whose call has ended is another (B20)."""
    await played(name, OfHook(shop.log), shop)


class OfGateway(Way):
    """A client of the MCP gateway, as Claude Code or, without ids, as others."""

    thread = ThreadRef("shop", "mcp-rita")

    def __init__(self, shop: Shop, journal: Path) -> None:
        self.shop, self.journal = shop, journal

    @property
    def runs(self) -> int:  # type: ignore[override]
        return len(self.journal.read_text().splitlines()) if self.journal.exists() else 0

    def cannot(self, case: Case) -> str:
        if case.again.turn == "later":
            return "a client does not tell the turn"
        if case.again.requester != "rita":
            return "each requester has a thread of its own"
        if case.again.declared == "stricter" or case.again.tool != "refund":
            return "the server has one such tool"
        return ""

    def words(self, case: Case) -> str | None:
        return case.reads and case.reads.replace("were paid back", "given back for A-17")

    async def first(self, case: Case) -> None:
        assert await self._called(case.id, ARGUMENTS, "1s") is None

    async def again(self, case: Case) -> str | None:
        changed = {"REFUND_DESCRIPTION": "Pay it twice."} if case.again.declared else {}
        hold = "1s" if case.reads is None else "60s"
        return await self._called(case.id, case.again.arguments, hold, **changed)

    async def returns(self, ledger: Ledger, ref: CallRef) -> None:
        told = {"content": [{"type": "text", "text": PAID}], "structuredContent": {"result": PAID}}
        await ledger.finish(ref, output=recorded(told))

    async def _called(
        self, call_id: str, arguments: dict[str, Any], hold: str, **environment: str
    ) -> str | None:
        server = shop_server(self.journal, **environment)
        meta: Any = {"claudecode/toolUseId": call_id} if call_id else None
        async with (
            gateway(self.shop.ledger, settings(server, hold=hold)) as (_, url),
            client(url, mode="legacy") as agent,
        ):
            result = await agent.call_tool("refund", {"order": "A-17"} | arguments, meta=meta)
        text = "".join(one.text for one in result.content)
        return None if "has not run yet: it waits" in text else text


@pytest.mark.parametrize("name", sampled(CASES, "waiting, resumed"))
async def test_the_mcp_gateway(name: str, shop: Shop, tmp_path: Path):
    """A client that sends an id again is not asked which turn it is: the model reads so (B20)."""
    await played(name, OfGateway(shop, tmp_path / "journal"), shop)


class OfProvider(Way):
    """An agent that speaks the Agent Approval Protocol, whose keys name its calls."""

    thread = thread_of("shop", "bot")

    def __init__(self, log: EventLog) -> None:
        self.log = log

    def cannot(self, case: Case) -> str:
        if case.again.turn != "same" or case.without_id:
            return "the key says which call it is"
        if case.call == "another":
            return "the protocol refuses a key that was used for another request"
        if case.again.declared and case.state == "approved":
            return "the agent declares no tools: the approval counts as it was given"
        return ""

    def words(self, case: Case) -> str | None:
        if case.state == "denied":
            return "Not now."  # the note
        consumed = case.state in ("running", "in_doubt", "returned")
        return "already_consumed" if consumed else case.reads

    async def first(self, case: Case) -> None:
        assert await self._asked("rita") is None

    async def again(self, case: Case) -> str | None:
        if case.again.declared:
            await Ledger(self.log, author("desk")).declare(
                "shop", spec("refund", case.again.declared)
            )
        return await self._asked(case.again.requester)

    async def _asked(self, requester: str) -> str | None:
        instance = InstanceSettings(name="bot", requester=requester, token="a" * 32)
        provider = Provider(Ledger(self.log, author("aap")), "shop", instance, 900)
        sent = Submission(tool="refund", arguments=Raw(json.encode(ARGUMENTS)), timeout="1h")
        told, _ = await provider.create(sent, ID)
        request = json.decode(told)
        if request["status"] == "pending":
            return None
        if request["status"] != "approved":
            return str(request)
        try:
            await provider.consume(request["id"], requester)
        except Conflict as problem:
            return problem.code
        self.runs += 1
        return "100 were paid back"


@every_case
async def test_the_provider_of_the_agent_approval_protocol(name: str, shop: Shop):
    """A request with the same key is the same call, and it is consumed once (B20)."""
    await played(name, OfProvider(shop.log), shop)
