"""A lake that a login of some workspaces makes: the broker gives it no fact of others."""

from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from test_scoped import OURS, THEIRS, filled, listed

from ayes.interfaces.cli.lake import _of_rows
from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.credentials import Login
from ayes.ledger.nats.jetstream import JetStream
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.broker.setup import declare_streams
from ayes.ops.lake.sync import log_of, write
from ayes.ops.lake.writer import LakeWriter, read_manifest

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ayes.ops.broker.server.accounts_config", listed)
        async with EmbeddedServer(tmp_path_factory.mktemp("store"), sync="2m") as running:
            await declare_streams(running.store.path)
            for where in (OURS, THEIRS):
                await filled(running, where)
            yield running


@asynccontextmanager
async def observer(server):
    """The login of one tenant, as credentials files will have it."""
    name = f"observer-{OURS}"
    login = Login(server.url, name, f"word-of-{name}", role="observer", workspaces=(OURS,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ayes.ledger.nats.credentials.Store.login_for", lambda *_, **__: login)
        async with Ledger.connect(server.store.path, role="observer") as ledger:
            assert isinstance(ledger.log, JetStream)
            yield ledger


async def test_a_tenants_login_makes_a_lake_of_its_own(server, tmp_path):
    """With nothing of the other tenant in any file, and verified with that login alone (I9)."""
    async with observer(server) as ledger:
        log = await log_of(ledger, (OURS,))
        with LakeWriter.open(tmp_path, log, (OURS,)) as archive:
            await write(ledger, archive, follow=False, wrote=lambda _: None)
            archive.publish()
            assert archive.facts > 0
        manifest = read_manifest(tmp_path / "lake")
        assert await _of_rows(ledger, tmp_path / "lake", manifest) == []
    bytes_ = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert OURS.encode() in bytes_
    assert THEIRS.encode() not in bytes_
