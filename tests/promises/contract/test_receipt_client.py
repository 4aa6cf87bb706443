"""The TypeScript client checks receipts. Part of `make conformance`, since it needs Node 24."""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import npm
import pytest
from msgspec.structs import replace
from odd_votes import BOARD, CONFIRMERS, voted_oddly
from other_notes import other_notes
from passkey_vectors import FILE
from paths import ROOT
from sealed_site import PAGES, Sealed, approved, with_passkeys
from shop import FIRST, SECOND, THIRD
from signed_site import DESK

from ayes.ledger import receipts
from ayes.ledger.receipts import Receipt
from ayes.ledger.signing import key_id
from ayes.ops.sealing.receipts import judged
from ayes.schemas import events as e
from ayes.schemas.slots import key_slot, person_slot

TESTS = ROOT / "clients" / "typescript" / "test"
CHECK = TESTS / "receipt.check.ts"

pytestmark = pytest.mark.skipif(
    not os.environ.get("CONFORMANCE"), reason="asked by `make conformance`, which installs from npm"
)


async def test_the_client_takes_no_other_byte(tmp_path: Path):
    """It proves the votes by the public keys, and refuses each receipt with another byte (E2)."""
    site, file = await approved(tmp_path), tmp_path / "c1.receipt"
    file.write_bytes((await site.receipt()).text())
    keys = [str((await site.seal()).public), str(DESK.public)]
    done = await asyncio.to_thread(
        subprocess.run, [npm.node(), CHECK, file, *keys], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {"votes": [True] * 3, "votesNeeded": 3, "taken": []}


class Reader:
    """Somebody who checks receipts of a site with the client."""

    def __init__(self, site: Sealed, folder: Path) -> None:
        self.site, self._file = site, folder / "cases.json"

    async def checks(self, *cases: Receipt, **trust: Any) -> list[Any]:
        """Of each receipt why it is refused, or why each vote is not proved, by person."""
        log = str((await self.site.seal()).public)
        trust = {"log": log, "roots": [str(DESK.public)]} | trust
        texts = [{"receipt": one.text().decode(), "trust": trust} for one in cases]
        self._file.write_text(json.dumps(texts))
        command = [npm.node(), TESTS / "receipt.cases.ts", self._file]
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    async def says(self, ref: Any = FIRST) -> dict[str, str]:
        """Of the receipt of a call."""
        (found,) = await self.checks(await self.site.receipt(ref))
        return found


@pytest.fixture
async def reader(tmp_path: Path) -> Reader:
    return Reader(await approved(tmp_path), tmp_path)


@pytest.mark.parametrize("needed", [0, -1, 0.5, "1", 2])
async def test_so_many_keys_are_needed_as_there_are_and_one_at_least(reader: Reader, needed):
    (found,) = await reader.checks(await reader.site.receipt(), rootsNeeded=needed)
    why = "More keys are needed than" if needed == 2 else "How many keys are needed is not a whole"
    assert found.startswith(why)


async def test_odd_keys_and_signatures_prove_nothing(reader: Reader, tmp_path: Path):
    """As in Python: tests/ops/test_receipts.py."""
    (tmp_path / "odd").mkdir()
    site = reader.site = await voted_oddly(tmp_path / "odd")
    roots = [str(one.public) for one in (DESK, BOARD)]
    receipt, trust = await site.receipt(SECOND), {"roots": roots, "confirmers": CONFIRMERS} | PAGES
    trust |= {"lost": {"people": 2, "afterS": 60}}
    [found] = await reader.checks(receipt, **trust)
    assert {person: why == "" for person, why in found.items()} == site.expected
    # Who trusts no others takes nothing that they alone have confirmed.
    [other] = await reader.checks(receipt, **trust | {"lost": None})
    fewer = {person for person in found if (found[person] == "") > (other[person] == "")}
    assert fewer == {"by-others", "by-others-apart", "by-others-of-ended"}
    # Who trusts any of the confirmers takes what one of them has confirmed.
    [other] = await reader.checks(receipt, **trust, confirmersNeeded=1)
    more = {person for person in found if (other[person] == "") > (found[person] == "")}
    assert more == {"by-one-confirmer", "by-one-of-each", "by-one-other-and-a-confirmer"}


@pytest.mark.parametrize(
    ("people", "after_s", "why"),
    [(1, 60, "How many others confirm"), (2.5, 60, "How many others confirm"),
     (2, 59, "The time after which"), (2, 2_592_001, "The time after which"),
     (2, "60", "The time after which")],
)  # fmt: skip
async def test_two_others_and_a_minute_are_the_least(reader: Reader, people, after_s, why):
    """As in the trust file."""
    lost = {"people": people, "afterS": after_s}
    [found] = await reader.checks(await reader.site.receipt(), lost=lost)
    assert found.startswith(why)


@pytest.mark.parametrize("spelling", [" {}", "{}\n", "{}=", "x{}", "a b{}"])
async def test_a_key_has_one_spelling(reader: Reader, spelling: str):
    """As `test_what_is_no_key_is_refused` has it of Python."""
    found = await reader.site.receipt()
    log, root = (spelling.format(one.public) for one in (await reader.site.seal(), DESK))
    other, cosigner = await reader.checks(found, log=log), str(DESK.public)
    assert other[0].endswith(("is not a key.", "base64 in another form.", "is not base64."))
    other = await reader.checks(found, roots=[root])
    assert other[0].endswith(("is not a key.", "base64 in another form.", "is not base64."))
    [other] = await reader.checks(found, witnesses=[cosigner])
    assert other.endswith("is not a key."), "it is not a witness's"


async def late(site: Sealed, name: str) -> None:
    """A signed vote of this person on the second call, past the client."""
    ledger, call = site.at(name), await site.ledger.call(SECOND)
    assert call.approval_request
    said = e.Voted(verdict="approve", digest=call.approval_request.digest)
    await ledger.append(SECOND.vote(name), await ledger.reviewer(name)._signed(call, said))


async def test_a_vote_counts_if_its_person_could_cast_it_then(reader: Reader, tmp_path: Path):
    """Before the decision, as somebody who was not removed, and of the workspace of the call."""
    site = reader.site
    await late(site, "ana")
    await site.ledger.append(person_slot("Ben", 1), e.PersonRemoved())
    await late(site, "ben")
    await site.ledger.append(person_slot("cy", 1), e.WorkspacesSet(workspaces=("bank",)))
    await late(site, "cy")
    found = await reader.says(SECOND)
    assert found == {
        "ana": "",
        "ben": "ben was removed before it",
        "cy": "cy was not of shop then",
    }
    approval, other = (await site.ledger.call(FIRST)).approval, tmp_path / "other"
    other.mkdir()
    site = reader.site = await approved(other)
    await site.ledger.append(SECOND.decided, replace(approval, id=""))
    await late(site, "ana")
    assert await reader.says(SECOND) == {"ana": "the call was decided before it"}


async def test_the_end_of_a_key_counts_until_the_call_is_started(reader: Reader):
    """As whoever starts the call judges it: a start fixes what was known at the decision."""
    site = reader.site
    approval = (await site.ledger.call(FIRST)).approval
    await site.revoke("ben")
    await site.ledger.append(person_slot("cy", 1), e.PersonRemoved())
    ended = {"ana": "", "ben": "its key has ended", "cy": "its key has ended"}
    assert await reader.says() == ended
    other = e.ToolStarted(digest="0" * 64, idempotency_key=str(FIRST))
    await site.ledger.append(FIRST.claim(1), other)
    assert await reader.says() == ended
    await site.ledger.append(FIRST.claim(2), replace(other, digest=approval.digest, id=""))
    assert await reader.says() == dict.fromkeys(ended, "")
    shown = await judged(await site.receipt(), (await site.seal()).public, site.trust)
    assert {one.person: one.why_void for one in shown.votes} == dict.fromkeys(ended, "")
    # A key that had ended by then is not in force because it ends again after the start.
    await late(site, "ben")
    await site.ledger.append(SECOND.decided, replace(approval, id=""))
    await site.ledger.append(SECOND.claim(1), replace(other, digest=approval.digest, id=""))
    ben = key_id(site.keys["ben"].public)
    await site.ledger.append(key_slot("ben", ben, "revoked", "ana"), e.KeyRevoked())
    assert await reader.says(SECOND) == {"ben": "its key has ended"}


async def test_what_nobody_can_read_in_a_slot_prevents_no_check(reader: Reader):
    """Facts of a newer program, and a key that is none."""
    site = reader.site
    newer = b'{"type":"Voted","id":"x","v":9,"verdict":"approve"}'
    await site.log.append(SECOND.vote("mallory"), newer, "x")
    unknown = b'{"type":"Foretold","id":"y","verdict":"approve"}'
    await site.log.append(SECOND.vote("eve"), unknown, "y")
    key, until = "0" * 16, 1_795_622_400
    signed = e.Voted(verdict="deny", digest="", signature=f"ed25519.1.{key}.{until}.{'A' * 86}")
    await site.ledger.append(SECOND.vote("oscar"), signed)
    await site.ledger.append(key_slot("oscar", key, "added"), e.KeyAdded(key="a+b+c"))
    assert await reader.says(SECOND) == {
        "mallory": "it is not signed",
        "eve": "it is not signed",
        "oscar": "its key is not among the facts",
    }


async def test_a_receipt_that_could_be_read_in_two_ways_is_refused(reader: Reader, monkeypatch):
    """Two facts in a slot, the digest of another call, or a checkpoint in another form."""
    site = reader.site
    found = await site.receipt()
    first, second, *others = found.facts
    twice = (first, replace(second, subject=first.subject), *others)
    with monkeypatch.context() as trusting:
        trusting.setattr(receipts, "call_digest", lambda *_: "0" * 64)
        wish = replace((await site.ledger.call(FIRST)).wish, id="", digest="0" * 64)
        await site.ledger.append(THIRD.requested, wish)
        false = await site.receipt(THIRD)
    said = await reader.checks(replace(found, facts=twice), false)
    assert said == [
        "Two of its facts have one subject.",
        "Its request names the digest of another call.",
    ]
    notes = other_notes(found.checkpoint)
    cases = [replace(found, checkpoint=note) for note in notes.values()]
    for name, why in zip(notes, await reader.checks(*cases), strict=True):
        assert isinstance(why, str), name
    more = replace(found, checkpoint=f"{found.checkpoint}\N{EM DASH} w AAAAAAA=\n")
    assert await reader.checks(more) == [dict.fromkeys(("ana", "ben", "cy"), "")]


async def test_the_client_judges_passkeys_as_python_does():
    """The same vectors, and no bit of them can be another."""
    command = [npm.node(), TESTS / "passkey.cases.ts", FILE]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == []


async def test_the_client_proves_votes_with_passkeys(tmp_path: Path):
    """On the pages that its reader trusts, and as the gate does: a key is one person's, and its
    counter rises.
    """
    reader = Reader(await with_passkeys(tmp_path), tmp_path)
    receipts_of = [await reader.site.receipt(ref) for ref in (FIRST, SECOND, THIRD)]
    found = await reader.checks(*receipts_of, **PAGES)
    fell = "the counter of its passkey was as high before"
    twice = "its key is that of ana"
    assert found == [{"ana": ""}, {"ana": ""}, {"ana": fell, "ben": twice}]
    elsewhere = {"rp": PAGES["rp"], "origins": ["https://ayes.example"]}
    other = "it was made on a page that is not trusted"
    assert await reader.checks(receipts_of[0], **elsewhere) == [{"ana": other}]
    assert await reader.checks(receipts_of[0]) == [{"ana": "its key is not among the facts"}]
