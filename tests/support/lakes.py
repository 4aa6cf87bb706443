"""A lake on disk: conversations rehearsed by the real program, and archived."""

from pathlib import Path

from paths import AIRLINE as POLICY
from paths import EXAMPLES
from program import REHEARSAL, approvals

SMALL = EXAMPLES / "recorded.jsonl"


def synced(store: Path, *options: object):
    ended = approvals("lake", "sync", "--json", *options, store=store, timeout_s=110)
    assert ended.code == 0, ended.err
    return ended.one


def rehearsed(store: Path, file: Path) -> None:
    ended = approvals(
        *("run", file, "--policy", POLICY, "-w", "acme", "--store", store, "--json"),
        timeout_s=110,
        program=REHEARSAL,
    )
    assert ended.code == 0, ended.err
