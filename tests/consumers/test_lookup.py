"""What an executor does with a call whose executor died, if the tool has a lookup."""

import asyncio
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from long import IN_MEMORY_FIRST
from program import AYES, Started, environment
from until import recorded, until
from workers import tell

from ayes.consumers import executor
from ayes.consumers.effects import Append, Effect, Perform
from ayes.consumers.executor import MAX_ATTEMPTS, ClaimedRun, Executor
from ayes.consumers.tools import NOT_DONE, Tools, idempotency_key
from ayes.ledger import tool_runner
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.tool_runner import ToolFunction
from ayes.ops.audit.verify import rebuild
from ayes.schemas import events as e
from ayes.schemas.codec import MAX_BYTES
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import CallRef

pytestmark = IN_MEMORY_FIRST
CALL = CallRef("shop", "t1", "c1")


def refund(order: str) -> str:
    return f"refunded {order}"


def with_lookup(lookup: ToolFunction | None, *, repeatable: bool = False) -> Tools:
    tools = Tools()
    tools.add(lookup=lookup, repeatable=repeatable)(refund)
    return tools


async def started(ledger: Ledger, tools: Tools, attempts: int = 1) -> None:
    """A call whose executor died, so many times."""
    await tools.declare(ledger, "shop")
    digest = (await ledger.request(CALL, "refund", {"order": "A-17"}, requester="ben")).wish.digest
    yes = e.Approved(digest=digest, ground="policy", rule="freely", policy_version=1)
    start = e.ToolStarted(digest=digest, idempotency_key=str(CALL))
    starts = [(CALL.claim(attempt + 1), start) for attempt in range(attempts)]
    await tell(ledger, [(CALL.decided, yes), *starts])


async def follows(ledger: Ledger, tools: Tools) -> Sequence[Effect[ClaimedRun]]:
    """What an executor does about it when the decision is delivered again."""
    [decided] = await ledger.read(CALL.decided)
    reaction = Executor(tools)
    return reaction.decide(await reaction.load(ledger, decided), decided)


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pauses between the questions."""
    monkeypatch.setattr(executor, "LOOKUP_PAUSES_S", (0.0, 0.0, 0.0))


def knows_nothing(**_named: object) -> None:
    pass


def is_away(**_named: object) -> str:
    raise ConnectionError("the bank is away")


async def is_slow(**_named: object) -> str:
    await asyncio.Event().wait()
    return ""


async def found(order: str) -> dict[str, str]:
    await asyncio.sleep(0)
    return {"order": order, "key": idempotency_key.get()}


def not_done(**_named: object) -> object:
    return NOT_DONE


@pytest.mark.log("memory", "jetstream")
async def test_what_the_lookup_found_is_the_result(ledger: Ledger):
    """It is asked with the approved arguments and the call's idempotency key. (D15)"""
    tools = with_lookup(found)
    await started(ledger, tools)
    output = '{"order":"A-17","key":"shop/t1/c1"}'
    assert await follows(ledger, tools) == [
        Append(CALL.finished, e.ToolReturned(output=output, looked_up=True))
    ]


async def test_only_what_was_started_is_asked_about(ledger: Ledger):
    """A lookup would find nothing of a call that nobody has started, and be asked for nothing."""
    asked_about = list[str]()

    def lookup(order: str) -> None:
        asked_about.append(order)

    tools = with_lookup(lookup)
    await started(ledger, tools, attempts=0)
    [step] = await follows(ledger, tools)
    assert isinstance(step, Perform)
    assert asked_about == []


async def test_of_a_tool_without_a_lookup_nothing_is_said_of_one(ledger: Ledger):
    tools = with_lookup(None)
    await started(ledger, tools)
    [step] = await follows(ledger, tools)
    assert isinstance(step, Append)
    assert isinstance(step.event, e.InDoubt)
    assert "lookup" not in step.event.text


@pytest.mark.parametrize("attempts", [1, 2])
async def test_what_had_no_effect_is_started_again(ledger: Ledger, attempts: int):
    """Under the next claim, which says why, so that no promise is broken. (D15, I7)"""
    tools = with_lookup(not_done)
    await started(ledger, tools, attempts)
    [step] = await follows(ledger, tools)
    assert isinstance(step, Perform)
    assert step.claim.slot == CALL.claim(attempts + 1)
    assert isinstance(step.claim.event, e.ToolStarted)
    assert step.claim.event.looked_up


async def test_it_is_not_started_for_ever(ledger: Ledger):
    """A tool that takes its executor down each time ends in doubt."""
    tools = with_lookup(not_done)
    await started(ledger, tools, MAX_ATTEMPTS)
    [step] = await follows(ledger, tools)
    assert isinstance(step, Append)
    assert isinstance(step.event, e.InDoubt)


@pytest.mark.parametrize(
    ("lookup", "why"),
    [
        (knows_nothing, "it does not know"),
        (is_away, "ConnectionError: the bank is away"),
        (is_slow, "TimeoutError"),
        (lambda **_: object(), "TypeError: Encoding objects of type object is unsupported"),
        (lambda **_: "x" * MAX_BYTES, "over the limit"),
    ],
)
async def test_anything_uncertain_stays_in_doubt(ledger: Ledger, lookup, why: str, monkeypatch):
    """A lookup that forgot to return, that failed, or that did not answer in time. (I7)"""
    if lookup is is_slow:  # the others answer, however busy the machine is
        monkeypatch.setattr(tool_runner, "LOOKUP_S", 0.05)
    tools = with_lookup(lookup)
    await started(ledger, tools)
    [step] = await follows(ledger, tools)
    assert isinstance(step, Append)
    assert isinstance(step.event, e.InDoubt)
    assert "Its lookup cannot tell what became of it: " in step.event.text
    assert why in step.event.text


async def test_a_lookup_that_cannot_tell_is_asked_again(ledger: Ledger):
    """The system that it asks may be restarting, too."""
    answers: list[Any] = [None, None, "paid"]
    tools = with_lookup(lambda **_: answers.pop(0))
    await started(ledger, tools)
    [step] = await follows(ledger, tools)
    assert isinstance(step, Append)
    assert step.event == e.ToolReturned(output="paid", looked_up=True)


async def test_a_repeatable_tool_runs_again_if_its_lookup_cannot_tell(ledger: Ledger):
    """Its idempotency key makes that safe; a result that is found spares the run."""
    tools = with_lookup(is_away, repeatable=True)
    await started(ledger, tools)
    [step] = await follows(ledger, tools)
    assert isinstance(step, Perform)
    assert isinstance(step.claim.event, e.ToolStarted)
    assert not step.claim.event.looked_up
    [step] = await follows(ledger, with_lookup(found, repeatable=True))
    assert isinstance(step, Append)


def test_a_lookup_takes_the_arguments_of_its_tool():
    """Otherwise it would fail only after a crash."""
    with pytest.raises(BadInput, match="the lookup of tool refund cannot be called"):
        with_lookup(lambda amount: amount)


async def test_a_start_after_a_lookup_breaks_no_promise(admin):
    """`replay --verify` takes the word of the lookup, and of nothing else. (I7)"""
    tools = with_lookup(not_done)
    await started(admin, tools)
    digest = (await admin.call(CALL)).digest
    start = e.ToolStarted(digest=digest, idempotency_key=str(CALL))
    told = e.ToolStarted(digest=digest, idempotency_key=str(CALL), looked_up=True)
    last = await tell(admin, [(CALL.claim(2), told)])
    assert (await rebuild(admin, until=last, verify=True)).differences == ()
    last = await tell(admin, [(CALL.claim(3), start)])
    [difference] = (await rebuild(admin, until=last, verify=True)).differences
    assert "was started 3 times and is not repeatable" in difference


TOOLS = """
import time
from pathlib import Path
from ayes.consumers.tools import NOT_DONE, Tools

tools = Tools()
paid = Path(__file__).with_name("paid")

def find(order: str):
    return f"paid for {order}" if paid.exists() else NOT_DONE

@tools.add(lookup=find)
def pay(order: str) -> str:
    if order == "first":
        paid.touch()
    if not Path(__file__).with_name("killed").exists():
        Path(__file__).with_name("runs").touch()
        time.sleep(600)
    return f"paid again for {order}"
"""


@pytest.mark.parametrize("ack_wait_s", [1.0])
@pytest.mark.parametrize(
    ("order", "output", "starts"),
    [("first", "paid for first", 1), ("second", "paid again for second", 2)],
    ids=["it happened", "it did not happen"],
)
async def test_an_executor_that_was_killed_is_followed_by_one_that_asks(
    store, admin, tmp_path: Path, order: str, output: str, starts: int
):
    """After kill -9 the next executor asks by itself; the tool takes effect once. (D15, I7)"""
    (tmp_path / "shop_tools.py").write_text(TOOLS)
    first = _executor(store, tmp_path)
    await recorded(admin, "ledger.shop._tool.>")
    wish = (await admin.request(CALL, "pay", {"order": order}, requester="ben")).wish
    yes = e.Approved(digest=wish.digest, ground="policy", rule="freely", policy_version=1)
    await tell(admin, [(CALL.decided, yes)])
    await until((tmp_path / "runs").exists)
    first.kill()
    await asyncio.to_thread(first.wait)
    (tmp_path / "killed").touch()
    second = _executor(store, tmp_path)
    await recorded(admin, CALL.finished.subject)
    call = await admin.call(CALL, must_include=CALL.finished)
    second.terminate()
    await asyncio.to_thread(second.wait)
    assert call.status is Status.RETURNED
    assert isinstance(call.finished.event, e.ToolReturned)
    assert (call.finished.event.output, len(call.starts)) == (output, starts)


def _executor(store: Path, folder: Path) -> Started:
    return Started(
        [AYES, "work", "executor", "--tools", "shop_tools:tools", "-w", "shop"],
        cwd=folder,
        env=environment(AYES_STORE=str(store)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
