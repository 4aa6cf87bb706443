"""The executor's registry: Python functions as tools, declared and run."""

import asyncio
import sys
import threading
from pathlib import Path

import pytest

from ayes.consumers.tools import Tools, idempotency_key, load
from ayes.ledger.clients.services import Ledger
from ayes.ledger.sealed_values import NOTHING_SEALED
from ayes.ledger.tool_runner import run_tool
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput


def test_a_function_is_declared_by_its_signature():
    """Name, words and schema come from the function; the rest from the registration."""
    tools = Tools()

    @tools.add(repeatable=True)
    def list_orders(customer: str, most: int = 10) -> list[str]:
        """The customer's open orders."""
        return [customer] * most

    spec = tools["list_orders"].spec
    assert (spec.name, spec.description, spec.repeatable, spec.run_by) == (
        "list_orders", "The customer's open orders.", True, "executor",
    )  # fmt: skip
    assert '"customer":{"type":"string"}' in spec.schema_text
    assert list_orders("ana", 1) == ["ana"]


def test_two_tools_cannot_have_one_name():
    """The second is refused, since a call could mean either."""
    tools = Tools()
    tools.add(name="refund")(lambda: None)
    with pytest.raises(BadInput, match="two tools have the name 'refund'"):
        tools.add(name="refund")(lambda: None)


async def test_tools_declared_twice_are_one_fact_each(ledger: Ledger):
    """An executor that restarts declares what stands there already."""
    tools = Tools()
    tools.add(name="refund")(lambda: None)
    first = await tools.declare(ledger, "shop")
    assert await tools.declare(ledger, "shop") == first
    assert await ledger.log.last_seq() == 1


async def test_a_tool_knows_its_idempotency_key():
    """The same for every attempt at a call, in a thread or not, and of no other call (B49)."""

    async def later() -> str:
        await asyncio.sleep(0)
        return idempotency_key.get()

    given = [
        run_tool(function, NOTHING_SEALED, 1, key=key)
        for key in ("s/t/a", "s/t/b")
        for function in (later, idempotency_key.get)
    ]
    keys = [told.output for told in await asyncio.gather(*given)]
    assert keys == ["s/t/a", "s/t/a", "s/t/b", "s/t/b"]
    assert idempotency_key.get("none") == "none"


async def test_a_slow_synchronous_tool_holds_nothing_up():
    """It runs in a thread of its own, so the worker goes on telling the broker that it lives."""
    release, ran = threading.Event(), asyncio.get_running_loop().create_future()

    def slow() -> str:
        release.wait(10)
        return "done"

    running = asyncio.create_task(run_tool(slow, NOTHING_SEALED, 1))
    asyncio.get_running_loop().call_soon(ran.set_result, None)
    await ran
    assert not running.done()
    release.set()
    assert await running == e.ToolReturned(output="done")


def test_a_registry_is_loaded_by_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`module:name`, also from here; each mistake is a sentence that names the place."""
    (tmp_path / "shop_tools_for_test.py").write_text(
        "from ayes import Tools\ntools = Tools()\nodd = 7\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert isinstance(load("shop_tools_for_test:tools"), Tools)
    assert sys.path.index(str(tmp_path)) == len(sys.path) - 1
    assert isinstance(load("shop_tools_for_test"), Tools)
    for place, words in (
        ("nowhere_at_all:tools", "No module named 'nowhere_at_all'"),
        ("shop_tools_for_test:missing", "has no 'missing'"),
        ("shop_tools_for_test:odd", "is a int, not an ayes.Tools registry"),
    ):
        with pytest.raises(BadInput, match=words):
            load(place)
