"""The receiver in JavaScript of docs/services.md, with the reference library from npm, is sent
facts by the real program. Part of `make conformance`, since it needs more than the locked
environment.
"""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import npm
import pytest
from pages import blocks
from paths import ROOT
from program import approvals
from receivers import endpoint

from ayes.consumers.webhooks.endpoints import EndpointFile
from ayes.consumers.webhooks.requests import Sender

pytestmark = pytest.mark.skipif(
    not os.environ.get("CONFORMANCE"), reason="asked by `make conformance`, which installs from npm"
)


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The page's program in a process of its own, which prints what it receives."""
    [shown] = blocks(ROOT / "docs" / "services.md", "js")
    (tmp_path / "node_modules").symlink_to(npm.installed("standardwebhooks@1") / "node_modules")
    listening = shown.text.replace(
        '"127.0.0.1");', '"127.0.0.1", function () { console.log(this.address().port); });'
    )
    assert listening != shown.text
    (tmp_path / "receiver.mjs").write_text(listening)
    with subprocess.Popen(
        [npm.node(), "receiver.mjs", "0"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/ayes", process
        finally:
            process.terminate()


def test_the_reference_library_in_javascript_verifies(receiver, tmp_path: Path):
    """It agrees, takes the event, and refuses one that is signed otherwise."""
    url, process = receiver
    store = tmp_path / "store"
    added = approvals("webhooks", "add", "crm", url, "--allow-private", store=store)
    assert added.code == 0, added.err
    (tmp_path / "webhook-secret").write_text(added.out)
    tested = approvals("webhooks", "test", "crm", store=store)
    assert tested.code == 0, tested.err
    assert process.stdout.readline() == "ayes.webhooks.test crm\n"

    async def sent(**fields: object) -> int:
        one = endpoint(url, secret=fields.get("secret", added.out.strip()))
        return (await Sender().post(one, "msg_1", '{"type":"x","subject":"grüß"}')).status

    assert asyncio.run(sent()) == 204
    assert process.stdout.readline() == "x grüß\n"
    assert asyncio.run(sent(secret="whsec_" + "QUJD" * 8)) == 401
    assert EndpointFile(store / "webhooks.json").named("crm").verified_at is not None
