"""Receipts: what they show with a public key and the trust file alone, and that nothing in them can
be changed.
"""

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from long import sampled
from msgspec.structs import replace
from odd_votes import voted_oddly
from sealed_site import Sealed, approved, with_passkeys
from shop import FIRST, SECOND, THIRD
from signed_site import ASK

from ayes.interfaces.cli.receipts import verify_receipt
from ayes.ledger.log import RawMessage
from ayes.ledger.receipts import TYPE, DsseSignature, Envelope, Receipt, pae, receipt
from ayes.ledger.seal import (
    Checkpoint,
    MerkleTree,
    Proofs,
    SignerKey,
    VerifierKey,
    WitnessPolicy,
    leaf_hash,
    tile_path,
)
from ayes.ledger.signing import key_id
from ayes.ledger.trust import Trust
from ayes.ops.sealing.receipts import _SPENT, judged, make
from ayes.schemas import events as e
from ayes.schemas.codec import encode
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import BadFile, BadInput
from ayes.schemas.slots import CallRef, key_slot, person_slot

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def site(tmp_path: Path) -> Sealed:
    return await approved(tmp_path)


async def test_a_receipt_shows_that_the_people_asked_said_yes(site: Sealed):
    """By the key of the sealer and the trust file alone, and in less than 20 kB (E1)."""
    found = await site.receipt()
    text = found.text()
    assert len(text) < 20_000
    key = await site.seal()
    shown = await judged(Receipt.parse(text), key.public, site.trust)
    assert (shown.call.ref, shown.wants_signed, shown.unproved) == (FIRST, True, "")
    assert [one.slot.tail[3] for one in shown.call.votes] == ["ana", "ben", "cy"]
    unsigned = await judged(found, key.public, None)
    assert (unsigned.wants_signed, unsigned.unproved) == (False, "")


async def test_a_receipt_of_a_decision_that_nobody_made_says_so(site: Sealed):
    said = (await site.ledger.call(FIRST)).approval
    await site.ledger.append(SECOND.decided, replace(said, id=""))
    key = await site.seal()
    shown = await judged(await site.receipt(SECOND), key.public, site.trust)
    assert shown.unproved == "the votes that count do not approve this"


async def test_a_receipt_says_nothing_of_other_calls(tmp_path: Path):
    """Not those that are counted where a policy limits the calls of a thread."""
    site = Sealed(tmp_path)
    limited = f"calls_per_thread = 5\n{ASK}"
    await site.begin(limited, signed_since={"shop": 1})
    async with site.gates():
        for ref in SECOND, FIRST:
            await site.ask(ref)
        await site.at("ana").reviewer("ana").approve(FIRST)
        await site.decided(e.Approved)
    facts = (await site.receipt()).facts
    assert [one.subject for one in facts if ".call." in one.subject] == [
        FIRST.requested.subject,
        FIRST.gated.subject,
        FIRST.vote("ana").subject,
        FIRST.decided.subject,
    ]


@pytest.mark.parametrize("every", sampled((97, 1), 97))
async def test_no_byte_of_a_receipt_can_be_another(site: Sealed, every: int):
    """Each is refused (E2)."""
    text, key = (await site.receipt()).text(), await site.seal()
    places = range(0, len(text), every)
    for place in places:
        for bit in (1, 32):  # another case of a letter, too
            flipped = bytearray(text)
            flipped[place] ^= bit
            with pytest.raises(BadInput):
                await judged(Receipt.parse(bytes(flipped)), key.public, site.trust)


def other_forms(found: Receipt) -> dict[str, Receipt]:
    """The same, written in other ways."""
    facts, proofs, hashes = found.facts, found.proofs, found.hashes
    swapped = (facts[1], facts[0], *facts[2:])
    first = found.facts[0]
    return {
        "facts in another order": replace(
            found, facts=swapped, proofs=(proofs[1], proofs[0], *proofs[2:])
        ),
        "a hash that nothing uses": replace(found, hashes=(*hashes, "AA==")),
        "a hash twice": replace(found, hashes=(*hashes, hashes[0])),
        "a fact twice": replace(found, facts=(first, *facts), proofs=(proofs[0], *proofs)),
        "no proof of the last fact": replace(found, proofs=proofs[:-1]),
        "a time with a zero before it": replace(
            found, facts=(replace(first, time=f"0{first.time}"), *facts[1:])
        ),
        "a number that no proof has": replace(found, proofs=((999,), *proofs[1:])),
        "a time without an end": replace(found, facts=(replace(first, time="9" * 40), *facts[1:])),
    }


async def test_a_receipt_has_one_form(site: Sealed):
    found, key = await site.receipt(), await site.seal()
    for name, other in other_forms(found).items():
        again = Receipt.parse(other.text())
        assert again != found, name
        with pytest.raises(BadInput):
            await judged(again, key.public, site.trust)
    for text in (b"", b"[]", found.text()[:-1], found.text().replace(b'":"', b'": "', 1)):
        with pytest.raises(BadInput, match="it is not a receipt"):
            Receipt.parse(text)


async def test_who_made_a_receipt_cannot_say_another_thing_in_it(site: Sealed):
    """DsseSignature by the sealer itself, a false summary is refused (E5)."""
    found, key = await site.receipt(), await site.seal()
    summary = base64.b64decode(found.statement.payload)
    for before, after in (
        (b'"people"', b'"policy"'),
        (b'"ben"', b'"bob"'),
        (b'"size":', b'"sizes":'),
    ):
        assert before in summary
        false = summary.replace(before, after, 1)
        text = base64.b64encode(false).decode()
        by = DsseSignature(key.public.id.hex(), base64.b64encode(key.sign(pae(false))).decode())
        other = replace(found, statement=Envelope(TYPE, text, (by,)))
        with pytest.raises(BadInput, match="its statement"):
            await judged(other, key.public, site.trust)


async def test_a_receipt_is_of_one_log(site: Sealed):
    found, key = await site.receipt(), await site.seal()
    other = SignerKey(key.public.name, bytes([1] * 32))
    with pytest.raises(BadInput, match="its checkpoint is not one that"):
        await judged(found, other.public, site.trust)
    assert site.trust
    of_another = site.trust.model_copy(update={"log": "0" * 32})
    with pytest.raises(BadInput, match="the trust file is of the log"):
        await judged(found, key.public, of_another)


async def said(
    site: Sealed, path: Path, capsys: pytest.CaptureFixture[str], ref: CallRef = FIRST, **more: Any
) -> tuple[int, list[str]]:
    """The exit code of `ayes verify` for a receipt of this call, and the lines that it prints."""
    key = await site.seal()
    (path / "it.receipt").write_bytes((await site.receipt(ref)).text())
    asked = {"trust": site.trust, "json": False} | more
    code = await verify_receipt(path / "it.receipt", key.public, WitnessPolicy(), **asked)
    return code, capsys.readouterr().out.splitlines()


async def test_what_was_judged_is_told_of_an_approval_alone(site: Sealed, tmp_path, capsys):
    """Not of a call that is pending, or has an answer that no person gave."""
    follows = "what approved it follows from what these people have signed"
    code, lines = await said(site, tmp_path, capsys)
    assert (code, lines[0]) == (0, f"verified: {FIRST} is approved")
    assert follows in lines
    code, lines = await said(site, tmp_path, capsys, SECOND)
    assert (code, lines[0]) == (0, f"verified: {SECOND} is pending")
    assert "it is not decided, so there is nothing to judge" in lines
    assert not any("follows" in line for line in lines)
    forged = e.Answered(answer="done", rule="money", policy_version=1, voters=("ana",))
    await site.ledger.append(SECOND.decided, forged)
    code, lines = await said(site, tmp_path, capsys, SECOND)
    assert code == 0
    assert any(line.startswith("the decision was not judged") for line in lines)
    assert not any("follows" in line for line in lines)
    _, [line] = await said(site, tmp_path, capsys, SECOND, json=True)
    assert (json.loads(line)["judged"], json.loads(line)["problem"]) == (False, None)
    _, [line] = await said(site, tmp_path, capsys, json=True)
    assert json.loads(line)["judged"] is True


async def test_an_approval_that_does_not_follow_is_not_called_verified(
    site: Sealed, tmp_path, capsys
):
    approval = (await site.ledger.call(FIRST)).approval
    await site.ledger.append(SECOND.decided, replace(approval, id=""))
    code, lines = await said(site, tmp_path, capsys, SECOND)
    assert code == 1
    assert lines[0] == (
        f"unproved: {SECOND} is approved, and the votes that count do not approve this"
    )
    assert "its approval does not follow from these facts" in lines


async def test_policies_are_named_only_if_keys_sign_them(site: Sealed, tmp_path, capsys):
    key = SignerKey("desk", bytes([7] * 32))
    assert site.trust
    site.trust = Trust.model_validate(
        site.trust.model_dump() | {"policies": [str(key.public)], "signed_since": {"shop": 3}}
    )
    _, lines = await said(site, tmp_path, capsys)
    assert (
        "what approved it follows from what these people have signed, and the policies, judged by "
        "the keys that the trust file has for them"
    ) in lines


async def test_each_vote_is_told_with_whether_it_counts(site: Sealed, tmp_path, capsys):
    await site.cast("ana", SECOND)
    await site.at("ben").reviewer("ben").approve(SECOND)
    await site.ledger.append(person_slot("Cy", 1), e.PersonRemoved())
    await site.cast("cy", SECOND, verdict="deny", reason="no")
    await site.cast("dan", SECOND, verdict="deny")
    await site.cast("eve", SECOND, verdict="deny", on_behalf_of="ana")
    key = (await judged(await site.receipt(SECOND), (await site.seal()).public, None)).votes[1].key
    _, lines = await said(site, tmp_path, capsys, SECOND)
    assert lines[2:7] == [
        "  ana: approve, does not count: it is not signed",
        f"  ben: approve, counts, signed with {key}",
        "  cy: deny, does not count: cy was removed before it",
        "  dan: deny, does not count: dan may not cast it",
        f"  eve: deny, does not count: {_SPENT}",
    ]
    _, lines = await said(site, tmp_path, capsys, SECOND, trust=None)
    assert lines[3] == f"  ben: approve, signed with {key}, not judged"
    await site.revoke("ben")
    _, lines = await said(site, tmp_path, capsys, SECOND)
    assert lines[3].startswith("  ben: approve, does not count: it is not signed with a key of its")


HOSTILE = [
    b"\xff",
    b'{"type":"Voted","id":"x","v":1,"verdict":"maybe"}',
    b'{"type":"Voted","id":"x","verdict":"approve","digest":"\xff"}',
    b'{"type":"Denied","id":"x"}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("raw", HOSTILE)
async def test_no_slot_of_a_person_prevents_a_receipt(site: Sealed, raw: bytes):
    """Whoever may vote may write any bytes."""
    await site.log.append(FIRST.vote("mallory"), raw, "x")
    found, key = await site.receipt(), await site.seal()
    assert FIRST.vote("mallory").subject not in {one.subject for one in found.facts}
    shown = await judged(Receipt.parse(found.text()), key.public, site.trust)
    assert (shown.is_judged, shown.unproved) == (True, "")


async def test_odd_keys_and_signatures_prove_nothing(tmp_path: Path):
    """One key with two names, one for which anybody can sign, and each other spelling of one."""
    site = await voted_oddly(tmp_path)
    found, key = await site.receipt(SECOND), await site.seal()
    shown = await judged(found, key.public, site.trust)
    proved = {one.person: one.is_checked and not one.why_void for one in shown.votes}
    assert proved == site.expected


async def test_a_statement_of_nested_brackets_is_refused(site: Sealed):
    found, key = await site.receipt(), await site.seal()
    nested = base64.b64encode(b"[" * 100_000).decode()
    other = replace(found, statement=replace(found.statement, payload=nested))
    with pytest.raises(BadInput, match="its statement names no call"):
        await judged(other, key.public, site.trust)
    with pytest.raises(BadInput, match="it is not a receipt"):
        Receipt.parse(b"[" * 100_000)


def made(raws: list[RawMessage], ref: CallRef = FIRST) -> tuple[Receipt, SignerKey]:
    """A receipt of a log that has these facts alone, in the order of their numbers."""
    key, tree, tiles = SignerKey("log", bytes(32)), MerkleTree(), dict[str, bytes]()
    for tile in tree.add([leaf_hash(raw.leaf) for raw in raws]) + tree.edge():
        tiles[tile.path] = tile.hashes
    note = key.note(Checkpoint("log", tree.size, tree.root()))
    proofs = Proofs(tree.size, lambda *place: tiles[tile_path(*place)])
    return receipt(ref, raws, note, proofs.inclusion, key), key


def requested(**more: Any) -> RawMessage:
    digest = call_digest("refund", "v1", "{}")
    wish = {"tool": "refund", "tool_version": "v1", "arguments": "{}", "digest": digest}
    return RawMessage(1, START, FIRST.requested.subject, encode(e.ToolRequested(**wish | more)))


def test_a_receipt_has_one_fact_in_a_slot():
    first = requested()
    votes = [replace(first, seq=seq, subject=FIRST.vote("ana").subject) for seq in (2, 3)]
    found, key = made([first, votes[0]])
    assert len(found.facts_of(key.public)) == 2
    with pytest.raises(BadInput, match="two of its facts have one subject"):
        made([first, *votes])


@pytest.mark.parametrize("digest", ["", "0" * 64])
def test_the_digest_in_a_statement_is_that_of_the_call(digest: str):
    found, _ = made([requested()])
    said = json.loads(base64.b64decode(found.statement.payload))
    assert said["subject"][0]["digest"] == {"sha256": call_digest("refund", "v1", "{}")}
    with pytest.raises(BadInput, match="names the digest of another call"):
        made([requested(digest=digest)])


async def test_no_receipt_is_made_that_does_not_hold(site: Sealed):
    """A tile whose bytes have changed, and a checkpoint of another key."""
    key = await site.seal()
    [tile] = (site.files.folder / "tile/0").glob("000.p/*")
    before = tile.read_bytes()
    tile.write_bytes(bytes(32) + before[32:])
    with pytest.raises(BadFile, match="the receipt would not hold"):
        await make(site.ledger, FIRST, site.files, key)
    tile.write_bytes(before)
    with pytest.raises(BadFile, match="it is not signed with the key"):
        await make(site.ledger, FIRST, site.files, SignerKey(key.public.name, bytes([1] * 32)))


async def test_a_receipt_proves_votes_with_passkeys(tmp_path: Path):
    """One whose counter fell does not count there either; and of other calls it has the vote that
    shows this, and nothing else.
    """
    site = await with_passkeys(tmp_path)
    key, whys = await site.seal(), {}
    for ref in FIRST, SECOND, THIRD:
        found = await site.receipt(ref)
        shown = await judged(Receipt.parse(found.text()), key.public, site.trust)
        assert shown.unproved == ""
        whys[ref] = [one.why_void for one in shown.votes]
        others = [one.subject for one in found.facts if ".vote." in one.subject]
        own = [one for one in others if f".{ref.call}." in one]
        assert [*{*others} - {*own}] == ([SECOND.vote("ana").subject] if ref == THIRD else [])
        assert len(found.text()) < 20_000
    assert whys[FIRST] == whys[SECOND] == [""]
    assert whys[THIRD][0].startswith("the counter of its passkey was as high before")
    assert whys[THIRD][1].startswith("it is not signed with a key of its voter")
    elsewhere = Trust.model_validate(
        site.trust.model_dump() | {"origins": ["https://ayes.example"]}
    )
    shown = await judged(await site.receipt(), key.public, elsewhere)
    assert shown.unproved == "the votes that count do not approve this"


async def test_a_receipt_has_whoever_added_a_key_before(tmp_path: Path):
    """A key is the first one's who adds it, also if that person has no part in the call."""
    site = Sealed(tmp_path)
    await site.begin(signed_since={"shop": 1})
    key, log = SignerKey(f"ana/{await site.log.identity()}", bytes([7] * 32)), site.trust.log
    added = e.KeyAdded(key=str(VerifierKey(f"cy/{log}", key.public.public)))
    await site.ledger.append(key_slot("cy", key_id(key.public), "added"), added)
    await site.add(key, "ana")
    site.keys["ana"] = key
    async with site.gates():
        await site.ask()
        await site.ledger.append(FIRST.vote("ana"), await site.vote_of("ana"))
    sealer = await site.seal()
    [vote] = (await judged(await site.receipt(), sealer.public, site.trust)).votes
    assert vote.why_void.startswith("it is not signed with a key of its voter")
