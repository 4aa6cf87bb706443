"""A store and a lake that the last version before the package was called `ayes` wrote.

`data/before-ayes/store.tar.gz` holds the broker's files, made-up passwords and the archive; the
files beside it are what that version said about them. Nine calls: run by a client, denied, edited,
blocked, waiting, running, withdrawn, revoked.
"""

import json
import tarfile
from pathlib import Path

import pytest
from program import approvals, up

DATA = Path(__file__).parents[1] / "data" / "before-ayes"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    store = tmp_path / "store"
    with tarfile.open(DATA / "store.tar.gz") as archive:
        archive.extractall(store, filter="data")
    return store


def told(name: str) -> list[dict]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def test_a_store_of_the_version_before_is_read_verified_and_continued(store: Path):
    """Calls, queue and lake are what they were, the log verifies, and what was open goes on. An
    archive of another version is left alone, and a new one has all of the log (I11, I12).
    """
    with up(store):
        rows = {
            name: approvals("replay", "--projection", name, "--json", store=store).lines
            for name in ("calls", "pending")
        }
        assert rows["calls"] == told("calls.jsonl")
        assert rows["pending"] == told("pending.jsonl")
        verified = approvals("replay", "--verify", "--json", store=store)
        assert verified.code == 0, verified.err
        older = approvals("lake", "sync", store=store)
        assert (older.code, "Sync into a new directory" in older.err) == (2, True)
        (store / "archive").rename(store / "archive-2")
        assert approvals("lake", "sync", store=store).code == 0
        table = ("sql", "SELECT * EXCLUDE (valid_until) FROM calls ORDER BY call", "--json")
        assert approvals(*table, store=store).lines == told("lake-calls.jsonl")
        assert approvals("lake", "verify", store=store).code == 0
        assert (
            approvals("approve", "shop/old/waiting", "--as", "ana", "--yes", store=store).code == 0
        )
        ended = approvals("finish", "shop/old/running", "--output", "done", store=store)
        assert ended.code == 0, ended.err
        assert approvals("pending", "--json", store=store).lines == []
        assert approvals("lake", "sync", store=store).code == 0
        verdicts = {one["call"]: one["verdict"] for one in approvals(*table, store=store).lines}
        assert verdicts["waiting"] == "Approved"
        assert approvals("lake", "verify", store=store).code == 0
        assert approvals("replay", "--verify", "--json", store=store).code == 0
