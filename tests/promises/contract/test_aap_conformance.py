"""The six adapters of the released package `agentapprovalprotocol`, unchanged, with their real
frameworks and scripted models, against `ayes serve aap`. Part of `make conformance`: each framework
is installed into an environment of its own.

`AAP_ENVIRONMENTS` names a folder with environments that are ready; `AAP_KILLS` says how often
provider, broker and agent are each killed, over all frameworks.
"""

import asyncio
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from aap_world import FRAMEWORKS, OPERATIONS, PROVISIONER, Strike, python_of, world
from until import until

from ayes.ledger.lifecycle import Status
from ayes.schemas.slots import ThreadRef

pytestmark = [
    pytest.mark.timeout(7200),
    pytest.mark.skipif(
        not os.environ.get("CONFORMANCE"),
        reason="run by `make conformance`, which installs the frameworks",
    ),
]

TARGETS = ("provider", "broker", "agent")
KILLS = int(os.environ.get("AAP_KILLS", str(len(FRAMEWORKS))))


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("aap")


def strikes(framework: str, target: str) -> Iterator[Strike]:
    """This framework's share of the kills: each step in turn, and another first one for each."""
    names = list(FRAMEWORKS)
    share = len(range(names.index(framework), KILLS, len(names)))
    steps = [(one, is_after) for one in OPERATIONS for is_after in (False, True)]
    first = names.index(framework) + TARGETS.index(target)
    for step in itertools.islice(itertools.cycle(steps), first, first + share):
        yield Strike(target, *step)


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_released_adapter(framework, tmp_path, environments):
    """An approved call runs once, and the ledger has its outcome. A denied one does not run, and
    the model reads the person's reason (B1, B61, I1).
    """
    python = python_of(framework, environments)
    async with world(tmp_path) as made:
        await made.agent(framework, python)
        assert await made.ask("A-17") == "A-17 was paid back."
        made.denied.add("A-18")
        assert "I said so." in (await made.ask("A-18") or "")
        assert made.runs == ["A-17"]
        assert (await made.ended("A-17"), await made.ended("A-18")) == ("ran", "not run")
        [call] = await made.calls("A-17")
        assert (call.wish.requester, call.wish.agent) == ("rita", "bot")
        assert json.loads(call.wish.labels["aap_context"])["framework"] == framework


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("target", TARGETS)
async def test_killed_between_two_steps(target, framework, tmp_path, environments):
    """Whatever is killed before or after any request of an agent: each tool ran once, or is in
    doubt, or did not run; and none ran without approval (I1, I6, I7).
    """
    python, found = python_of(framework, environments), Counter[str]()
    async with world(tmp_path) as made:
        await made.agent(framework, python)
        for number, strike in enumerate(strikes(framework, target)):
            order = f"{target}-{number}"
            made.relay.strike = strike
            read = await made.ask(order)
            assert (read is None) == (target == "agent")
            if read is None:
                await made.agent(framework, python)
                read = await made.ask(order)
            assert made.relay.strike is None, f"{strike} never came"
            ended, said = await made.ended(order), said_to_have_run(read)
            # An agent that died after its report is told that it is too late to do it again.
            assert ended == "ran" if said else target == "agent", (strike, ended, read)
            found[ended] += 1
            _report(target, framework, strike, ended)
    assert found.total() == len(list(strikes(framework, target)))


async def test_woken_after_it_was_killed(tmp_path, environments):
    """An agent whose run ended at a call that waits is killed. Once people have decided and it is
    started again, its webhook wakes it, and the tool runs once (I1).
    """
    python = python_of("langgraph", environments)
    async with world(tmp_path) as made:
        await made.agent("langgraph-async", python, PROVISIONER)
        assert await made.ask("A-17") == "paused"
        await made.kill("agent")
        thread = ThreadRef("shop", "aap-desk-bot")
        waiting = await until(lambda: made.ledger.open_questions(thread))
        [call] = waiting
        await made.ledger.reviewer("ana").approve(call.ref)
        await made.agent("langgraph-async", python, PROVISIONER)
        async with asyncio.timeout(60):
            while (await made.ledger.call(call.ref)).status is not Status.RETURNED:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert made.runs == ["A-17"]


def said_to_have_run(read: str | None) -> bool:
    return bool(read) and str(read).endswith("was paid back.")


def _report(*told: object) -> None:
    """Keep what became of a kill in the file that `AAP_REPORT` names."""
    if file := os.environ.get("AAP_REPORT"):
        with Path(file).open("a") as report:
            report.write(" ".join(map(str, told)) + "\n")
