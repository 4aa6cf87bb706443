"""The file of events says where to go on, and no event is in it twice or half."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import program
import pytest
from msgspec.structs import replace
from program import record, up
from shop import FIRST
from signed_site import Site
from until import until

from ayes.interfaces.cli.look import _append_events
from ayes.ledger.clients.services import Ledger
from ayes.ledger.in_memory import Memory
from ayes.ops.ocsf_file import OcsfFile
from ayes.projections.ocsf import begins
from ayes.schemas import events as e
from ayes.schemas.errors import BadFile, BadInput
from ayes.schemas.slots import CallRef

LOG = "4f6b8c1de2f04a7c9d3e5b6a7c8d9e0f"


def event(seq: int) -> dict[str, Any]:
    return {"metadata": {"uid": f"{LOG}/{seq}", "sequence": seq}, "time": seq}


def written(path: Path, *seqs: int) -> int:
    """Append events as one run does; what was the last one before."""
    file = OcsfFile(path, LOG)
    try:
        last = file.last
        for seq in seqs:
            file.append(event(seq))
    finally:
        file.close()
    return last


def events_in(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(one) for one in path.read_bytes().splitlines()]


def sequences(path: Path) -> list[int]:
    return [one["metadata"]["sequence"] for one in events_in(path)]


def test_it_goes_on_after_the_last_whole_line(tmp_path):
    path = tmp_path / "events.jsonl"
    assert written(path, 1, 2, 5) == 0
    assert path.stat().st_mode & 0o777 == 0o600
    whole = path.read_bytes()
    line = msgspec.json.encode(event(7)) + b"\n"
    for cut in range(len(line)):
        path.write_bytes(whole + line[:cut])
        assert written(path, 7) == 5
        assert path.read_bytes() == whole + line
    for cut in range(len(line)):  # the first one was half written
        path.write_bytes(line[:cut])
        assert written(path) == 0
        assert path.read_bytes() == b""


@pytest.mark.parametrize(
    "content",
    [
        b"notes of somebody",
        b"notes of somebody\n",
        b'{"metadata":{"uid":"00000000000000000000000000000000/7"}}\n',
        begins(LOG).encode() + b'7"}}\n',
        begins(LOG).encode() + b"7\n",
        b'{"metadata":{"uid":"' + LOG.encode() + b'/7","sequence":7}}\nnotes',
        b"x" * (1 << 20) + begins(LOG).encode(),
    ],
    ids=["text", "line", "another log", "no number", "no JSON", "text behind", "a long line"],
)
def test_a_file_of_something_else_is_left_as_it_is(tmp_path, content):
    path = tmp_path / "events.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadFile, match="Name another file"):
        written(path, 8)
    assert path.read_bytes() == content


def test_only_an_ordinary_file_can_be_gone_on_with(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "events.jsonl")
    for name in ("fifo", "link", ".", "no/such"):
        with pytest.raises(BadInput):
            written(tmp_path / name, 1)
    with pytest.raises(BadInput):
        written(Path("/dev/stdout"), 1)
    with pytest.raises(BadInput, match="not an ordinary file"):
        written(Path("/dev/null"), 1)


def test_one_program_appends_to_it(tmp_path):
    path = tmp_path / "events.jsonl"
    first = OcsfFile(path, LOG)
    with pytest.raises(BadInput, match="another program appends"):
        written(path, 1)
    first.close()
    assert written(path, 1) == 0


def test_a_file_that_was_rotated_is_begun_anew(tmp_path):
    """Renamed, deleted, or cut to nothing where it is: the next event is in the new one."""
    path, old = tmp_path / "events.jsonl", tmp_path / "events.jsonl.1"
    file = OcsfFile(path, LOG)
    file.append(event(1))
    path.rename(old)
    file.append(event(2))
    assert (sequences(old), sequences(path)) == ([1], [2])
    path.unlink()
    file.append(event(3))
    assert sequences(path) == [3]
    path.write_bytes(b"")
    file.append(event(4))
    assert sequences(path) == [4]
    path.rename(old)
    path.write_bytes(b"notes")
    with pytest.raises(BadFile):
        file.append(event(5))
    file.close()
    assert path.read_bytes() == b"notes"


def test_a_full_disk_is_reported(tmp_path, monkeypatch):
    file = OcsfFile(tmp_path / "events.jsonl", LOG)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(BadInput, match="cannot be written: No space left on device"):
        file.append(event(1))
    monkeypatch.undo()
    file.close()


async def test_a_forged_vote_is_reported_by_the_trust_file(tmp_path):
    """With the trust file its signature is checked; so are those of policies."""
    site = Site(Memory())
    await site.begin()
    async with site.gates():
        await site.ask()
        vote = await site.vote_of("ana")
        await site.ledger.append(FIRST.vote("ana"), replace(vote, reason="I take the blame"))
        await site.at("ben").reviewer("ben").approve(FIRST)
        await site.decided(e.Approved)
    ledger = Ledger(site.log, e.Author("observer", "feed"))
    ledger.trust = site.trust
    found = await fed(ledger, tmp_path / "events.jsonl")
    votes = [one["class_uid"] for one in found if one["metadata"]["event_code"] == "Voted"]
    assert votes == [2004, 3004]
    titles = [one["finding_info"]["title"] for one in found if one["class_uid"] == 2004]
    assert titles == ["a vote is not signed with a key of its voter"]
    keys = {"policies": site.trust.roots, "signed_since": {"shop": 1}}
    ledger.trust = site.trust.model_copy(update=keys)
    again = await fed(ledger, tmp_path / "again.jsonl")
    titles = [one["finding_info"]["title"] for one in again if one["class_uid"] == 2004]
    assert titles[0] == "a fact does not count: PolicyApplied"


async def test_a_fact_of_a_later_version_is_left_out_and_said(tmp_path, capsys):
    """Nobody sends it afterwards: the file goes on behind it."""
    log = Memory()
    await log.append(FIRST.requested, b'{"type":"Later","id":"1"}', "1")
    path = tmp_path / "events.jsonl"
    assert await fed(Ledger(log, e.Author("observer", "feed")), path) == []
    assert "Fact 1 is of a later version, and left out. Upgrade." in capsys.readouterr().err


async def fed(ledger: Ledger, path: Path) -> list[dict[str, Any]]:
    """The events of all facts."""
    await _append_events(ledger, path, None, until_now=True)
    return events_in(path)


def test_a_feed_that_is_killed_sends_no_event_twice(tmp_path, within):
    """By the real programs; all that is on stdout is nothing."""
    store, path = tmp_path / "store", tmp_path / "events.jsonl"
    with up(store, "--workers", "none") as _:
        ref = CallRef("shop", "t1", "c1")
        wish = e.ToolRequested(tool="refund", arguments='{"card":"visa"}', digest="0" * 64)
        record(store, (ref.requested, wish))
        ended = within("watch", "--ocsf", path, "--until-now", "--store", store)
        assert (ended.code, ended.out) == (0, "")
        assert len(sequences(path)) == 1
        for number in range(3):
            with program.started("watch", "--ocsf", path, "--store", store) as feed:
                vote = e.Voted(verdict="deny", digest="0" * 64, reason="because")
                record(store, (ref.vote(f"ana{number}"), vote))
                asyncio.run(until(lambda: len(sequences(path)) == number + 2))  # noqa: B023
                os.kill(feed.pid, signal.SIGKILL)
        again = within("watch", "--ocsf", path, "--until-now", "--store", store)
        assert again.code == 0
    found = sequences(path)
    assert found == sorted(set(found)) == [*range(found[0], found[0] + 4)]
    text = path.read_text()
    assert "visa" not in text
    assert "because" not in text
    assert '"class_uid":2004' in text  # the votes are void: nobody was asked
