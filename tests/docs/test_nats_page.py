"""docs/nats.md: its program is run, and its table is that of the endpoints."""

import asyncio
import os
import re
import sys
from contextlib import suppress

from console_client import site
from nats.errors import NoRespondersError
from pages import blocks
from paths import ROOT

from ayes.interfaces.api.nats import ENDPOINTS
from ayes.ledger.clients.services import Ledger
from ayes.ops.broker.server import ensure_account
from ayes.schemas.slots import CallRef

PAGE = ROOT / "docs" / "nats.md"
PROGRAM = ROOT / "examples" / "plain_nats.py"


def test_every_endpoint_is_listed():
    table = PAGE.read_text().partition("| endpoint | is | for |")[2].partition("\n\n")[0]
    rows = [row.split(" | ") for row in table.splitlines()[2:]]
    listed = {name: row[1] for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert listed.keys() == ENDPOINTS.keys()
    for name, operation in ENDPOINTS.items():
        shown = listed[name].strip("`").replace("…", name)
        assert shown == f"{operation.method} {operation.path}", name


async def test_plain_nats_py_does_a_whole_approval(tmp_path):
    """It imports nothing of ours; two logins, five endpoints, one recorded result."""
    assert not re.search(r"^\s*(import|from) ayes", PROGRAM.read_text(), re.MULTILINE)
    async with site(tmp_path) as shop:
        await ensure_account(shop.server.store, "reviewer-ana")
        async with (
            Ledger.connect(shop.server.store.path, role="observer") as observer,
            asyncio.timeout(60),
        ):
            while True:  # it starts beside the console
                with suppress(NoRespondersError):
                    client = observer.log.connection.client
                    await client.request("approvals.observer.x.pending", b"{}", timeout=60)
                    break
        process = await asyncio.create_subprocess_exec(
            sys.executable, PROGRAM,
            env=os.environ | {"AYES_STORE": str(shop.server.store.path)},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, err.decode()
        known = await shop.service.known_call(CallRef.parse("shop/order-31/refund-1"))
    assert "shop/order-31/refund-1 returned: 480 given back for order A-31" in out.decode()
    assert [type(fact.event).__name__ for fact in known.facts] == [
        "ToolRequested", "ApprovalRequested", "Voted", "Approved", "ToolStarted", "ToolReturned",
    ]  # fmt: skip


def test_the_program_in_go_is_the_example():
    """`make conformance` runs it."""
    [block] = blocks(PAGE, "go")
    assert block.text == (ROOT / "examples" / "go" / "main.go").read_text()
