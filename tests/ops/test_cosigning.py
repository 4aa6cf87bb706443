"""A witness signs what continues a log, and nothing else, whatever is asked of it at once."""

import asyncio
import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import aics_tlog
import httpx
import pytest
from killed_witness import AT, KEY, ORIGIN, TEXTS, WITNESS, Tree, cosigner, roots
from long import sampled
from paths import ROOT

from ayes.interfaces.witness import application
from ayes.ledger.seal import Checkpoint, CosignerKey, SignerKey
from ayes.ops.sealing.cosigning import Cosigner, make_key, read_key, request_of
from ayes.schemas.errors import BadFile, BadInput

#: Of witnesses that are killed; `make kills` takes more.
KILLS = int(os.environ.get("WITNESS_KILLS", "6"))
NO_REQUEST = "it is not a tlog-witness request"


def test_a_stranger_takes_what_a_witness_answers_and_keeps(tmp_path):
    witness, tree = cosigner(tmp_path), Tree(300)
    assert witness.add(Tree(257).request(0)).status == 200
    found = cosigner(tmp_path).add(tree.request(257))
    note = KEY.note(tree.checkpoint) + found.text
    log, vkey = map(aics_tlog.parse_vkey, map(str, (KEY.public, WITNESS.public)))
    _, theirs = aics_tlog.checkpoint.checkpoint_from_note(note)
    assert aics_tlog.verify_checkpoint(theirs, log, [vkey], 1).ok
    assert witness.signed(sha256(ORIGIN.encode()).hexdigest()) == note
    # The same again changes nothing, and lines of others are not kept.
    other = CosignerKey("witness.example.org/w2").line(tree.checkpoint, AT)
    assert witness.add(tree.request(300) + other.encode()) == found
    assert witness.signed(sha256(ORIGIN.encode()).hexdigest()) == note


def unsigned(tree: Tree, old: int) -> bytes:
    return tree.request(old, SignerKey(ORIGIN, bytes(32)))


def wrong(tree: Tree) -> bytes:
    """A signature of another note."""
    return KEY.note(tree.checkpoint).rpartition("\n\n")[2].encode()


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (Tree(299).request(299), 409, "300\n"),
        (Tree(400).request(299), 409, "300\n"),
        (Tree(400).request(0), 409, "300\n"),
        (Tree(299).request(300), 400, "the old size is above the new one"),
        (Tree(300, "x").request(300), 422, "not shown to continue the 300"),
        (Tree(400, "x").request(300), 422, "not shown to continue"),
        (Tree(400, "x", 299).request(300), 422, "not shown to continue"),
        (request_of(300, [], KEY.note(Tree(400).checkpoint)), 422, "not shown"),
        (request_of(300, [bytes(32)], KEY.note(Tree(300).checkpoint)), 422, "not shown"),
        (unsigned(Tree(400), 300), 403, "not signed with the key"),
        (Tree(400).request(300) + wrong(Tree(300)), 403, "not signed with the key"),
        (request_of(0, [], SignerKey("x").note(Checkpoint("x", 0, bytes(32)))), 404, "not known"),
        (b"", 400, NO_REQUEST),
        (b"old 0\n\n", 400, NO_REQUEST),
        (b"\xff" + Tree(400).request(300), 400, NO_REQUEST),
        (b"old 0300" + Tree(400).request(300)[7:], 400, NO_REQUEST),
        (b"old -1" + Tree(400).request(300)[7:], 400, NO_REQUEST),
        (Tree(400).request(300)[:-1], 400, NO_REQUEST),
        (
            request_of(300, [bytes(31)], KEY.note(Tree(400).checkpoint)),
            400,
            "not a tlog-witness request",
        ),
        (
            request_of(300, [bytes(32)] * 64, KEY.note(Tree(400).checkpoint)),
            400,
            "not a tlog-witness request",
        ),
    ],
)
def test_what_a_witness_refuses_changes_nothing(tmp_path, body, status, text):
    """Shorter, another tree, a fork, a wrong size or proof, another log or key, or no request."""
    witness = cosigner(tmp_path)
    witness.add(Tree(300).request(0))
    (before,) = [file.read_bytes() for file in tmp_path.glob("*.json")]
    found = witness.add(body)
    assert (found.status, text in found.text) == (status, True), found
    assert [file.read_bytes() for file in tmp_path.glob("*.json")] == [before]
    assert witness.add(Tree(400).request(300)).status == 200


def test_an_empty_log_has_one_root(tmp_path):
    empty = KEY.note(Checkpoint(ORIGIN, 0, bytes(32)))
    assert cosigner(tmp_path).add(request_of(0, [], empty)).status == 422
    useless = request_of(0, [bytes(32)], KEY.note(Tree(3).checkpoint))
    assert cosigner(tmp_path).add(useless).status == 422
    assert cosigner(tmp_path).add(Tree(0).request(0)).status == 200


def test_a_witness_has_a_key_of_its_own_and_forgets_nothing(tmp_path):
    folder = tmp_path / "witness"
    key = make_key(folder, "w")
    assert (str(read_key(folder)), (folder / "witness.key").stat().st_mode & 0o777) == (
        str(key), 0o600,
    )  # fmt: skip
    with pytest.raises(BadInput, match="is there already"):
        make_key(folder, "w")
    with pytest.raises(BadInput, match="two of the keys are of the same log"):
        Cosigner(folder, key, [KEY.public, SignerKey(ORIGIN).public])
    cosigner(folder).add(Tree(3).request(0))
    (file,) = folder.glob("*.json")
    file.write_text("{")
    with pytest.raises(BadFile, match="begin a new one, with a new key"):
        cosigner(folder)


#: Two logs that have their first fact alone in common.
TREES = [Tree(size, text, 1) for size in range(1, 20) for text in ("", "x")]


@pytest.mark.parametrize("races", sampled((50, 1000), 50))
def test_of_requests_at_once_those_that_are_signed_are_one_history(tmp_path, races):
    """Half of them on one object, as of a server, the others as of another process."""
    dice = random.Random(races)

    with ThreadPoolExecutor(8) as pool:
        for race in range(races):
            folder = tmp_path / str(race)
            folder.mkdir()
            server, other = cosigner(folder), cosigner(folder)
            asked = [(dice.choice(TREES), dice.choice((0, 0, *range(1, 9)))) for _ in range(8)]
            given = [
                pool.submit((server, other)[at % 2].add, tree.request(old))
                for at, (tree, old) in enumerate(asked)
            ]
            signed = [
                (tree.checkpoint.size, old, tree.text)
                for (tree, old), one in zip(asked, given, strict=True)
                if one.result().status == 200
            ]
            before = 0
            for size, old, _ in sorted(signed):
                assert old in {before, size}
                before = size
            assert len({text for size, _, text in signed if size > 1}) < 2
            note = server.signed(sha256(ORIGIN.encode()).hexdigest())
            assert (Checkpoint.parse(note).size if note else 0) == before


@pytest.mark.timeout(1800)
def test_a_witness_that_is_killed_while_it_signs_signs_one_history(tmp_path):
    """Two processes at a time, by SIGKILL: what was answered, and what is on disk after each kill,
    is one history, and no answer is of what is not on disk.
    """
    script = ROOT / "tests" / "support" / "killed_witness.py"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, script, tmp_path, str(KILLS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    histories, unanswered = json.loads(done.stdout), 0
    for told in histories:
        found, kept, answered = dict[int, str](), 0, 0
        for size, root, *is_kept in map(str.split, told):
            assert found.setdefault(int(size), root) == root
            if is_kept:
                assert int(size) >= max(kept, answered)
                unanswered += int(size) > max(kept, answered)
                kept = int(size)
            answered = max(answered, int(size))
        assert any(found.items() <= roots(text).items() for text in TEXTS)
    assert sum(map(len, histories)) > KILLS // 4
    assert unanswered or KILLS < 200


async def test_a_witness_speaks_as_c2sp_says(tmp_path):
    transport = httpx.ASGITransport(application(cosigner(tmp_path)))
    async with httpx.AsyncClient(transport=transport, base_url="http://witness") as client:
        path = f"/{sha256(ORIGIN.encode()).hexdigest()}/checkpoint"
        assert (await client.get(path)).status_code == 404
        found = await client.post("/add-checkpoint", content=Tree(300).request(0))
        assert (found.status_code, found.text[:25]) == (200, "— witness.example.org/w1 ")
        assert (await client.get(path)).text == KEY.note(Tree(300).checkpoint) + found.text
        found = await client.post("/add-checkpoint", content=Tree(300).request(0))
        assert (found.status_code, found.text) == (409, "300\n")
        assert found.headers["content-type"] == "text/x.tlog.size"
        found = await client.post("/add-checkpoint", content=b"x" * 20_000)
        assert found.status_code == 413
        assert (await client.get("/add-checkpoint")).status_code == 405
        assert (await client.get("/..%2f/checkpoint")).status_code == 404
        (file,) = tmp_path.glob("*.json")
        await asyncio.to_thread(file.write_text, "{")
        found = await client.post("/add-checkpoint", content=Tree(400).request(300))
        assert (found.status_code, found.text) == (500, "the witness failed.\n")
