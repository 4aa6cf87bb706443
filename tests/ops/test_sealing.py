"""A log is sealed in files that others can verify, and a change of it is named."""

import asyncio
import base64
import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aics_tlog
import program
import pytest
import rot
from aics_tlog.tiles import FileSystemTileReader, tree_root_from_tiles
from hypothesis import given
from hypothesis import strategies as st
from killed_sealer import KEY, Log, facts, sealer
from msgspec import structs
from paths import ROOT
from ports import free_port
from program import last_seq, record, up
from sections import section, settings_file
from until import until
from witnessing import WitnessServer

from ayes.consumers.webhooks.requests import HttpAnswer
from ayes.ledger.log import RawMessage
from ayes.ledger.nats.credentials import Store
from ayes.ledger.seal import Checkpoint, CosignerKey, Proofs, SignerKey
from ayes.ops.sealing import files as seal_files
from ayes.ops.sealing import sealer as sealing
from ayes.ops.sealing import witnesses
from ayes.ops.sealing.files import SealFiles, make_key, read_key
from ayes.ops.sealing.verify import difference
from ayes.ops.sealing.witnesses import AskedWitness, SealSettings, WitnessSettings
from ayes.schemas import events as e
from ayes.schemas.backoff import Backoff
from ayes.schemas.errors import BadFile, BadInput, Distrusted, LogDamaged
from ayes.schemas.slots import Slot, ThreadRef

pytestmark = pytest.mark.usefixtures("unhurried")
#: Of a sealer; `make kills` takes more.
KILLS = int(os.environ.get("SEALER_KILLS", "20"))


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read as fast as one can, and wait for witnesses, which answer late on a busy machine."""
    monkeypatch.setattr(sealing, "READING_RATE", 1e9)
    monkeypatch.setattr(witnesses, "_TIMEOUT_S", 60.0)


async def seal(has: list[RawMessage], store: Path, *until: int) -> dict[str, bytes]:
    """Seal a log in these steps, and read what was written."""
    one = sealer(has, store)
    await one.begin()
    for end in until or (has[-1].seq,):
        await one.seal(end)
    return written(store)


def written(store: Path) -> dict[str, bytes]:
    folder = store / "seal"
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not file.name.startswith(".") and file.name != "policy"
    }


async def test_a_stranger_verifies_what_a_sealer_wrote(tmp_path):
    await seal(facts(700), tmp_path, 1, 255, 256, 300, 700)
    found, note = aics_tlog.checkpoint.checkpoint_from_note(
        (tmp_path / "seal/checkpoint").read_text()
    )
    assert aics_tlog.verify_checkpoint(note, aics_tlog.parse_vkey(str(KEY.public))).ok
    assert (found.size, found.origin) == (700, KEY.public.name)
    assert tree_root_from_tiles(FileSystemTileReader(tmp_path / "seal"), 700) == found.root
    assert [*written(tmp_path)] == [
        "checkpoint",
        "tile/0/000",
        "tile/0/001",
        "tile/0/002.p/188",
        "tile/1/000.p/1",
        "tile/1/000.p/2",
    ]


def sealed_by(store: Path, quorum: int, *witnesses: WitnessServer) -> tuple[int, int]:
    """The size that is sealed, and how many of the witnesses signed it, as a stranger counts."""
    note = (store / "seal/checkpoint").read_text()
    found, theirs = aics_tlog.checkpoint.checkpoint_from_note(note)
    log, *keys = (
        aics_tlog.parse_vkey(str(one)) for one in (KEY.public, *(one.key for one in witnesses))
    )
    result = aics_tlog.verify_checkpoint(theirs, log, keys, quorum)
    assert result.ok, result.error
    return found.size, result.cosignature_count


@asynccontextmanager
async def two_witnesses(folder: Path) -> AsyncIterator[tuple[WitnessServer, WitnessServer]]:
    one, other = (WitnessServer(folder / name, name, KEY.public) for name in ("w1", "w2"))
    async with one.serving(), other.serving():
        yield one, other


def asking(*witnesses: WitnessServer) -> SealSettings:
    return SealSettings(witness=tuple(one.settings for one in witnesses))


async def test_witnesses_sign_what_is_sealed_and_one_that_is_away_stops_nothing(
    tmp_path, monkeypatch
):
    """It signs again once it is back, what was sealed meanwhile too."""
    monkeypatch.setattr(witnesses, "PAUSES", Backoff(0.0))
    async with two_witnesses(tmp_path) as (one, other):
        it = sealer(facts(700), tmp_path, asking(one, other))
        await it.begin()
        await it.seal(300)
        assert sealed_by(tmp_path, 2, one, other) == (300, 2)
        one.is_away = True
        await it.seal(400)
        assert sealed_by(tmp_path, 1, one, other) == (400, 1)
        other.is_away = True
        await it.seal(500)
        assert sealed_by(tmp_path, 0, one, other) == (500, 0)
        kept = SealFiles(Store(tmp_path)).witnessed(asking(one, other).policy)
        assert (Checkpoint.parse(kept).size, [*written(tmp_path)][0:1]) == (400, ["checkpoint"])
        one.is_away = False
        await it.seal(500)
        assert sealed_by(tmp_path, 1, one, other) == (500, 1)
        other.is_away = False
        await it.seal(500)
        assert sealed_by(tmp_path, 2, one, other) == (500, 2)
        policy = (tmp_path / "seal/policy").read_text()
        assert policy == (
            f"log {KEY.public}\nwitness w1 {one.key}\nwitness w2 {other.key}\n"
            "group enough 1 w1 w2\nquorum enough\n"
        )
        assert SealFiles(Store(tmp_path)).policy() == asking(one, other).policy


async def test_a_sealer_that_was_killed_goes_on_from_what_its_witness_has(tmp_path, monkeypatch):
    """The witness signed, and the sealer was killed before it wrote the checkpoint."""
    async with two_witnesses(tmp_path) as (one, _):
        it = sealer(facts(700), tmp_path, asking(one))
        await it.begin()
        await it.seal(300)
        with monkeypatch.context() as killing:
            killing.setattr(SealFiles, "publish", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await it.seal(400)
        assert sealed_by(tmp_path, 1, one) == (300, 1)
        again = sealer(facts(700), tmp_path, asking(one))
        await again.begin()
        await again.seal(500)
        assert sealed_by(tmp_path, 1, one) == (500, 1)
        (tmp_path / "seal/checkpoint").unlink()  # and so without any checkpoint
        again = sealer(facts(700), tmp_path, asking(one))
        await again.begin()
        await again.seal(600)
        assert sealed_by(tmp_path, 1, one) == (600, 1)


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (facts(299), "the log ends at fact 299, and 300 are sealed. The witness w1 signed them"),
        ([*facts(279), *facts(300, "x")[279:]], "the witness w1 signed 300 facts, and what is"),
        ([*facts(279), *facts(310, "x")[279:]], "the witness w1 signed 300 facts, and what is"),
    ],
    ids=["shorter", "other", "fork"],
)
async def test_a_sealer_without_its_files_signs_nothing_that_its_witness_contradicts(
    tmp_path, log, why
):
    """Log and files were replaced together: only the witness knows."""
    async with two_witnesses(tmp_path) as (one, other):
        first = sealer(facts(300), tmp_path, asking(one))
        await first.begin()
        await first.seal(300)
        shutil.rmtree(tmp_path / "seal")
        again = sealer(log, tmp_path, asking(other, one))
        await again.begin()
        with pytest.raises(Distrusted, match=why):
            await again.seal(log[-1].seq)
        assert written(tmp_path).keys().isdisjoint({"checkpoint"})


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"quorum": 2}, "quorum is above the number of witnesses, 1"),
        ({"key": str(KEY.public)}, "is not a key. It looks like NAME"),
        ({"url": "witness.example.org"}, "is not a URL. Write it as in https"),
    ],
)
def test_the_settings_of_witnesses_are_checked(tmp_path, said, why):
    one = {"key": str(CosignerKey("w").public), "url": "https://w.example"} | said
    quorum = f"quorum = {one.pop('quorum', 1)}\n"
    keys = "\n".join(f"{name} = {value!r}" for name, value in one.items())
    with pytest.raises(BadFile, match=why):
        section("seal", tmp_path, f"[seal]\n{quorum}[[seal.witness]]\n{keys}")


def test_no_two_witnesses_have_one_name(tmp_path):
    """By their names the reports say who has signed."""
    keys = [CosignerKey("w", bytes([n] * 32)).public for n in (1, 2)]
    witness = "".join(
        f'[[seal.witness]]\nkey = "{one}"\nurl = "https://w.example"\n' for one in keys
    )
    with pytest.raises(BadFile, match="two witnesses have the same name"):
        section("seal", tmp_path, f"[seal]\n{witness}")


class Answers:
    """A witness that gives these answers, each after a time."""

    def __init__(self, *answers: HttpAnswer, after_s: float = 0.0) -> None:
        self.left, self._after_s = list(answers), after_s
        self.asked = list[str]()

    async def send(self, _endpoint: object, _headers: object, content: bytes) -> HttpAnswer:
        self.asked.append(content.decode().partition("\n")[0])
        await asyncio.sleep(self._after_s)
        return self.left.pop(0)


async def asked_once(store: Path, answers: Answers) -> AskedWitness:
    """A witness that was asked to sign a log of 300 facts, of which it has signed 200."""
    await seal(facts(300), store, 300)
    it = AskedWitness(
        WitnessSettings(key=str(CosignerKey("w").public), url="https://w.example"),
        answers,  # type: ignore[arg-type]
        "",
        0,
    )
    it.size = 200
    files = SealFiles(Store(store))
    assert not await it.sign(files.note(), Proofs(300, files.tile))
    return it


@pytest.mark.parametrize(
    ("texts", "asked", "contradicts"),
    [
        (["200\n"], ["old 200"], True),
        (["two hundred\n"], ["old 200"], True),
        (["0200\n"], ["old 200"], True),
        (["9" * 4000], ["old 200"], True),
        (["100\n", "100\n"], ["old 200", "old 100"], True),
        (["100\n", "no size"], ["old 200", "old 100"], True),
        (["100\n", "250\n"], ["old 200", "old 100"], False),
        (["301\n"], ["old 200"], False),
    ],
)
async def test_a_conflict_about_the_size_that_was_named_is_a_contradiction(
    tmp_path, texts, asked, contradicts
):
    """The witness has signed so many facts, and not these. Another size may be asked for again."""
    answers = Answers(*(HttpAnswer(status=409, why="HTTP 409", text=one) for one in texts))
    it = await asked_once(tmp_path, answers)
    assert (answers.asked, it.contradicts) == (asked, contradicts)


async def test_a_checkpoint_waits_for_a_witness_once(tmp_path, monkeypatch):
    """For both requests together, if it is asked again with another size."""
    monkeypatch.setattr(witnesses, "_TIMEOUT_S", 0.3)
    conflict = HttpAnswer(status=409, why="HTTP 409", text="100\n")
    answers = Answers(conflict, conflict, after_s=0.2)
    it = await asked_once(tmp_path, answers)
    assert (len(answers.asked), len(answers.left), it.contradicts) == (2, 1, False)


class Killed(Exception):
    pass


async def test_a_sealer_that_is_killed_between_any_two_writes_changes_no_tile(
    tmp_path, monkeypatch
):
    """It goes on from its last checkpoint, and what it writes again is the same."""
    log, steps = facts(300), (200, 256, 300)
    expected = await seal(log, tmp_path / "whole", *steps)
    write, left = seal_files.write_atomically, 0

    def counted(file: Path, content: bytes) -> None:
        nonlocal left
        if not left:
            raise Killed
        left -= 1
        write(file, content)

    def each_counted(contents: Mapping[Path, bytes]) -> None:
        for file, content in contents.items():
            counted(file, content)

    monkeypatch.setattr(seal_files, "write_atomically", counted)
    monkeypatch.setattr(seal_files, "write_each_atomically", each_counted)
    for writes in range(7):
        store, left = tmp_path / str(writes), writes
        with pytest.raises(Killed):
            await seal(log, store, *steps)
        before, left = written(store), 100
        after = await seal(log, store, *steps)
        assert [name for name in before.keys() & after.keys() if before[name] != after[name]] in (
            [], ["checkpoint"],
        )  # fmt: skip
        assert after.items() <= expected.items()
        root = tree_root_from_tiles(FileSystemTileReader(store / "seal"), 300)
        assert base64.b64encode(root).decode() in read_note(store)


@pytest.mark.timeout(1800)
def test_no_tile_changes_of_a_sealer_that_is_killed_at_each_file(tmp_path):
    """By SIGKILL; what a checkpoint names is there after each."""
    script = ROOT / "tests" / "support" / "killed_sealer.py"
    command = [sys.executable, script, tmp_path, str(KILLS)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sealed, half = map(int, done.stdout.split())
    assert sealed
    assert half


async def test_a_sealer_removes_what_killed_ones_left(tmp_path, monkeypatch):
    """It is alone, so nobody writes these any more; the copier's own may be in use."""
    monkeypatch.setattr(sealing, "EVERY_S", 0.0)
    await seal(facts(100), tmp_path)
    left = ["checkpoint", "witnessed", "policy", "tile/0/000", "tile/0/000.p/7"]
    for name in (*left, "copied"):
        file = tmp_path / "seal" / name
        file.with_name(f".{file.name}-ab_de0gh").write_text("half")
    (tmp_path / "seal" / ".checkpoint-mine").write_text("a person's")
    running = asyncio.create_task(sealer(facts(300), tmp_path).run())
    await until(lambda: "300" in read_note(tmp_path))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    found = {one.name for one in (tmp_path / "seal").rglob(".*")}
    assert found == {".copied-ab_de0gh", ".checkpoint-mine"}


async def test_of_two_sealers_one_waits_until_the_other_has_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(sealing, "EVERY_S", 0.0)
    monkeypatch.setattr(seal_files, "_LOOK_S", 0.0)
    log = facts(300)
    one, other = sealer(log[:100], tmp_path), sealer(log, tmp_path)
    first = asyncio.create_task(one.run())
    await until(lambda: "100" in read_note(tmp_path))
    second = asyncio.create_task(other.run())
    for _ in range(100):
        await asyncio.sleep(0)
    assert "100" in read_note(tmp_path)
    first.cancel()
    await until(lambda: "300" in read_note(tmp_path))
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert written(tmp_path)["checkpoint"] == (await seal(log, tmp_path / "other"))["checkpoint"]


def read_note(store: Path) -> list[str]:
    file = store / "seal/checkpoint"
    return file.read_text().split("\n") if file.exists() else []


@pytest.mark.parametrize(
    ("log", "error", "why"),
    [
        (facts(299), Distrusted, "the log ends at fact 299, and 300 are sealed"),
        (facts(300, "other"), Distrusted, "the key of the sealer is for .*, and the log is "),
        ([*facts(279), *facts(300, "x")[279:]], Distrusted, "not those of the log, or tiles"),
        ([*facts(279), *facts(310)[280:]], LogDamaged, "fact 280 cannot be read"),
    ],
    ids=["cut", "other", "changed", "dropped"],
)
async def test_a_sealer_signs_nothing_on_another_log(tmp_path, log, error, why):
    before = await seal(facts(300), tmp_path)
    with pytest.raises(error, match=why):
        await seal(log, tmp_path)
    assert written(tmp_path) == before


async def test_tiles_that_are_lost_are_written_again(tmp_path):
    before = await seal(facts(600), tmp_path)
    shutil.rmtree(tmp_path / "seal/tile")
    assert await seal(facts(600), tmp_path) == before


async def test_a_tile_is_never_replaced_by_another(tmp_path):
    """Without its checkpoint a sealer begins anew, and its tiles say that the log has changed."""
    await seal(facts(300), tmp_path)
    (tmp_path / "seal/checkpoint").unlink()
    log = facts(300)
    log[3] = facts(300, "x")[3]
    with pytest.raises(BadFile, match="it is not the tile that the log gives now"):
        await seal(log, tmp_path)


def changed(log: list[RawMessage], *numbers: int) -> list[RawMessage]:
    return [structs.replace(one, data=b"x") if one.seq in numbers else one for one in log]


def renumbered(log: list[RawMessage]) -> list[RawMessage]:
    """As a broker would hold it if facts had been recorded in this order."""
    return [structs.replace(one, seq=seq) for seq, one in enumerate(log, 1)]


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (facts(600), None),
        (facts(700), None),
        (facts(599), "the log ends at fact 599, and 600 were sealed"),
        ([], "the log ends at fact 0, and 600 were sealed"),
        (changed(facts(600), 300), "fact 300 is not the one that was sealed"),
        (changed(facts(600), 600), "fact 600 is not the one that was sealed"),
        (
            changed(facts(600), *range(2, 600, 3)),
            "facts 2, 5, 8, 11, 14 and 195 more are not those that were sealed",
        ),
        (facts(9) + facts(700)[10:], "fact 10 is missing"),
        (renumbered(facts(9) + facts(700)[10:]), "the facts from 10 on are not .* dropped there"),
        (renumbered(facts(9) + facts(700)[8:]), "the facts from 10 on are not .* was inserted"),
        (facts(9) + facts(600)[8:], "fact 9 comes after fact 9"),
        (
            renumbered([*facts(6), facts(8)[7], facts(7)[6], *facts(600)[8:]]),
            "facts 7, 8 are not those that were sealed",
        ),
        (changed(facts(900), *range(577, 900)), "the facts from 577 on are .* back to fact 576"),
        (facts(600, "other"), "this is another log"),
    ],
    ids=[
        "same", "more", "cut", "empty", "changed", "last", "many", "gap", "dropped", "inserted",
        "twice", "swapped", "rolled back", "other",
    ],
)  # fmt: skip
async def test_what_is_wrong_is_one_sentence(tmp_path, log, why):
    await seal(facts(600), tmp_path)
    assert re.fullmatch(f"{why}.*", str(await verified(log, tmp_path)))


async def verified(log: list[RawMessage], store: Path, *, tiles: bool = True) -> str | None:
    files = SealFiles(Store(store))
    sealed = files.checkpoint(KEY.public)
    assert sealed
    return await difference(Log(log).scan_leader(1), sealed, files.tile if tiles else None)


async def test_files_of_the_sealer_that_changed_are_not_taken_for_a_changed_log(tmp_path):
    await seal(facts(600), tmp_path)
    tile = tmp_path / "seal/tile/0/001"
    rot.flip(tile, 77)
    assert await verified(facts(600), tmp_path) == (
        "the facts are those that were sealed, but the sealer's tile/0/001 is damaged"
    )
    # Nobody can say which one, by tiles that are not those that were signed.
    nobody = "the first 600 facts are not those that were sealed"
    assert await verified(changed(facts(600), 7), tmp_path) == nobody
    assert await verified(changed(facts(600), 7), tmp_path, tiles=False) == nobody
    tile.unlink()
    assert "tile/0/001: it is missing" in (await verified(facts(600), tmp_path) or "")
    (tmp_path / "seal/checkpoint").write_bytes(KEY.note(Checkpoint("other", 1, bytes(32))).encode())
    with pytest.raises(BadFile, match="it is of the log other, and not of approvals"):
        await verified(facts(600), tmp_path)


async def test_tiles_that_were_written_again_show_what_an_older_checkpoint_sealed(tmp_path):
    await seal(facts(300), tmp_path)
    note = (tmp_path / "seal/checkpoint").read_text()
    await seal(facts(310), tmp_path)
    shutil.rmtree(tmp_path / "seal/tile")
    await seal(facts(310), tmp_path)
    files, older = SealFiles(Store(tmp_path)), Checkpoint.parse(note)
    assert await difference(Log(facts(310)).scan_leader(1), older, files.tile) is None
    why = await difference(Log(changed(facts(310), 299)).scan_leader(1), older, files.tile)
    assert why == "fact 299 is not the one that was sealed"
    assert files.reading(SignerKey("other").public) is None


@given(size=st.integers(2, 600), data=st.data())
async def test_each_random_change_is_noticed(tmp_path_factory, size, data):
    store, log = tmp_path_factory.mktemp("store"), facts(size)
    await seal(log, store)
    at = data.draw(st.integers(0, size - 2))
    for other in (
        changed(log, at + 1),
        log[:at] + log[at + 1 :],
        renumbered(log[:at] + log[at + 1 :]),
        renumbered([*log[: at + 1], *log[at:]]),
        renumbered([*log[:at], log[at + 1], log[at], *log[at + 2 :]]),
        log[: at + 1],
        [*log[:at], structs.replace(log[at], subject="ledger.shop.t1.said.x"), *log[at + 1 :]],
        [*log[:at], structs.replace(log[at], nanoseconds=1), *log[at + 1 :]],
    ):
        for tiles in (True, False):
            assert await verified(other, store, tiles=tiles)


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (str(KEY), 0o644, "can be read by other users"),
        (str(KEY.public), 0o600, "it is not a key that signs"),
        ("", 0o600, "it is not a key that signs"),
        (None, 0, "`ayes seal init` makes one"),
    ],
)
def test_a_key_is_private_and_whole(tmp_path, content, mode, why):
    file = tmp_path / "seal.key"
    if content is not None:
        file.write_text(content)
        file.chmod(mode)
    with pytest.raises(BadInput, match=why):
        read_key(Store(tmp_path))


def test_a_key_that_could_not_be_written_is_not_there(tmp_path, monkeypatch):
    """So it can be made once there is room again, and no other key is ever replaced."""

    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as filling:
        filling.setattr(os, "fsync", full)
        with pytest.raises(BadInput, match=r"seal.key cannot be written: No space left"):
            make_key(Store(tmp_path), "log")
    assert [*tmp_path.iterdir()] == []
    key = make_key(Store(tmp_path), "log")
    with pytest.raises(BadInput, match="is there already"):
        make_key(Store(tmp_path), "log")
    assert str(read_key(Store(tmp_path))) == str(key)
    assert [file.name for file in tmp_path.iterdir()] == ["seal.key"]


OTHER = str(CosignerKey("w2").public)


def test_a_site_is_sealed_and_its_auditor_verifies_it_alone(tmp_path, within):
    """From the key on `ayes up` seals, and an auditor with the public key finds every change."""
    store, export, kept = (tmp_path / name for name in ("store", "export", "kept"))
    with up(store, "--workers", "none"):
        record(store, *map(said, range(5)))
        made = within("seal", "init", "approvals.example.com", "--store", store, "--json").one
        assert (store / "seal.key").stat().st_mode & 0o777 == 0o600
        again = within("seal", "init", "approvals.example.com", "--store", store)
        assert (again.code, "is there already" in again.err) == (2, True)
        assert "nothing was sealed yet" in within("verify", "--store", store).out
    folder, listen = tmp_path / "witness", f"127.0.0.1:{free_port()}"
    witness = within("witness", "init", folder, "w1", "--json").one["key"]
    settings_file(
        store,
        f"[[seal.witness]]\nkey = '{witness}'\nurl = 'http://{listen}'\nallow_private = true\n",
    )
    with (
        program.started("witness", "run", folder, "--log", made["key"], "--http", listen),
        up(store) as started,
    ):
        assert "sealer" in started["workers"]
        count = last_seq(store)
        asyncio.run(until(lambda: str(count) in read_note(store)))
        asyncio.run(until(lambda: any("— w1 " in line for line in read_note(store))))
        found = within("verify", "--store", store, "--witness", witness, "--witness", OTHER)
        assert (found.code, "signed by 1 of 2 witnesses: w1 at 20" in found.out) == (0, True)
        found = within("verify", "--store", store, "--witness", OTHER)
        assert (found.code, "no witness of those given" in found.out) == (1, True)
        origin = made["key"].split("+")[0]
        found = {"log": origin, "sealed": count, "facts": count, "problem": None, "lacking": 0}
        assert within("verify", "--store", store, "--json").one == found | {"witnesses": {}}
        assert within("seal", "export", export, "--store", store).code == 0
        (store / "seal/checkpoint").rename(kept)
        ended = within("verify", "--store", store)
        assert (ended.code, "the files of the sealer are gone" in ended.out) == (1, True)
        assert within("verify", "--store", store, "--checkpoint", kept).code == 0
    alone = ("verify", "--store", tmp_path / "nothing", "--key", made["key"], "--export")
    ended = within(*alone, export)
    assert (ended.code, ended.out) == (
        0,
        f"verified: the first {count} of {count} facts of {origin} are those that were sealed\n",
    )
    lines = export.read_text().splitlines(keepends=True)
    more = lines[-1].replace(f'"seq":{count}', f'"seq":{count + 1}')
    (tmp_path / "longer").write_text("".join([*lines, more]))
    assert f"the first {count} of {count + 1} facts" in within(*alone, tmp_path / "longer").out
    for text, why in (
        ("".join([*lines[:2], *lines[3:]]), "differs: fact 2 is missing\n"),
        ("".join(lines).replace("said.m1", "said.m9"), "differs: the first"),
        ("".join([*lines[:-1], "{}\n"]), f"export, line {len(lines)}: it is not a fact."),
        ("".join(lines[1:]), "it is not an export"),
        ("".join(lines).replace("approvals.", "approvers."), "and not of approvals.example"),
    ):
        export.write_text(text)
        ended = within(*alone, export)
        assert (ended.code, why in ended.out) == (1, True), ended


def said(number: int) -> tuple[Slot, e.Event]:
    return ThreadRef("shop", "t1").said(f"m{number}"), e.Said(role="user", text="hello")
