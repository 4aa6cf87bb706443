"""Votes that are signed with passkeys, from the gate to the starter. On the log in memory."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from authenticator import Authenticator
from inboxes import http
from msgspec.structs import replace
from running import working
from sections import section
from shop import FIRST, SECOND, THIRD
from signed_site import ASK, DESK, Site
from until import recorded

from ayes.consumers.notices.channels import Channels
from ayes.consumers.notices.notifier import Notifier
from ayes.consumers.worker import Worker
from ayes.ledger import keys as judged_keys
from ayes.ledger.clients.proofs import why_unproved
from ayes.ledger.clients.reviewers import Ballot
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.grants import grants_of, with_signatures
from ayes.ledger.keys import Counters, key_name, keys_of
from ayes.ledger.log import EventLog
from ayes.ledger.passkeys import Assertion, Passkey
from ayes.ledger.signing import (
    MAX_LIFE_S,
    Signature,
    fingerprint,
    grant_digest,
    key_digest,
    key_id,
    signed,
)
from ayes.ledger.validity import voids
from ayes.ops.inspection.checks import copied_keys
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import AlreadyFilled, BadInput, NotAllowed
from ayes.schemas.slots import KEYS, CallRef, DelegationRef, GrantRef, key_slot, votes_of

pytestmark = pytest.mark.log("memory")

RP, ORIGIN = "ayes.example", "https://sign.ayes.example"
VOTE = "it is not signed with a key of its voter that was in force"
FELL = "the counter of its passkey was as high before: there may be a copy of the key"


@pytest.fixture
async def site(port: EventLog) -> Site:
    made = Site(port)
    await made.begin(rp=RP, origins=[ORIGIN], signed_since={"shop": 1})
    return made


async def device(site: Site, name: str = "ana", *, by: Any = DESK, **more: Any) -> Authenticator:
    """A device of this person's, whose key is confirmed."""
    log = await site.log.identity()
    made = Authenticator(**{"rp": RP, "name": key_name(name, log)} | more)
    await add(site, made.public, name, by)
    return made


async def add(site: Site, key: Passkey, name: str, by: Any = DESK) -> None:
    added = e.KeyAdded(key=str(key), credential="AAAA")
    await site.ledger.append(key_slot(name, key_id(key), "added"), added)
    if by is not None:
        digest = key_digest(await site.log.identity(), name, key)
        said = e.KeyConfirmed(signatures=(signed(by, digest),))
        await site.ledger.append(key_slot(name, key_id(key), "confirmed"), said)


def console(site: Site, name: str = "ana") -> Any:
    """What the console has of a person: a login and the trust file, and no key."""
    ledger = Ledger(site.log, e.Author(kind="reviewer", name=name))
    ledger.trust = site.trust
    return ledger.reviewer(name)


async def vote_of(
    site: Site, made: Authenticator, ref: CallRef = FIRST, name: str = "ana", **changed: Any
) -> e.Voted:
    """A vote that the device signs."""
    asked = await console(site, name).to_sign(ref, Ballot("approve"))
    assert asked
    signature = made.text(asked.digest, asked.until, **{"origin": ORIGIN} | changed)
    return replace(asked.vote, signature=signature)


async def why_void(site: Site, vote: e.Voted, ref: CallRef = FIRST) -> str:
    """Why this vote does not count, once it is recorded; empty if it does."""
    await site.ledger.append(ref.vote("ana"), vote)
    ledger = Ledger(site.log, e.Author("x", "x"))
    ledger.trust = site.trust
    known, _ = await ledger.with_given(await ledger.call(ref))
    return next((one.why for one in voids(known) if one.fact.slot == ref.vote("ana")), "")


async def test_a_vote_with_a_passkey_counts_and_starts_the_call(site: Site):
    """The console's client takes it, the gate counts it, and a starter finds it proved."""
    made = await device(site)
    async with site.gates():
        await site.ask()
        vote = await vote_of(site, made)
        reviewer = console(site)
        with pytest.raises(NotAllowed, match="only signed votes count on shop/t1/c1"):
            await reviewer.approve(FIRST)
        await reviewer.vote(FIRST, Ballot("approve", signature=vote.signature))
        approved = await site.decided(e.Approved)
    assert approved.voters == ("ana",)
    ledger = Ledger(site.log, e.Author("x", "x"))
    ledger.trust = site.trust
    assert await why_unproved(ledger, await ledger.call(FIRST), starts=True) == ""


async def test_an_edit_with_a_passkey_is_approved_with_another(site: Site):
    """Whether the others could agree is asked before the vote is recorded."""
    made = await device(site)
    async with site.gates():
        await site.ask()
        reviewer, edited = console(site), '{"amount":1}'
        asked = await reviewer.to_sign(FIRST, Ballot("approve", arguments=edited))
        signature = made.text(asked.digest, asked.until, origin=ORIGIN)
        await reviewer.vote(FIRST, Ballot("approve", arguments=edited, signature=signature))
        [vote] = (await site.ledger.call(FIRST)).votes
        assert vote.event.arguments == edited


async def test_a_vote_that_was_signed_elsewhere_needs_no_passkey(site: Site):
    """A program of ben's has signed it with his key at the terminal, and sends it over HTTP."""
    async with site.gates():
        await site.ask()
        vote = await site.vote_of("ben")
        call = await console(site, "ben").vote(FIRST, Ballot("approve", signature=vote.signature))
        assert (await site.decided(e.Approved)).voters == ("ben",)
        assert call.votes[0].event.signature == vote.signature


async def test_what_is_signed_ends_by_the_clock_of_the_log(site: Site):
    """Whatever the clock of the browser, or of the console, says."""
    await device(site)
    async with site.gates():
        await site.ask()
        reviewer = console(site)
        now = reviewer._ledger.now
        reviewer._ledger.now = lambda: now() + timedelta(hours=2)
        asked = await reviewer.to_sign(FIRST, Ballot("approve"))
        assert 0 < asked.until - (await site.log.clock()).timestamp() < MAX_LIFE_S
        assert await reviewer.to_sign(FIRST, Ballot("deny")) is None
        with pytest.raises(NotAllowed, match="ben's key is not here"):
            await console(site, "ben").to_sign(FIRST, Ballot("approve"))


@pytest.mark.parametrize(
    "changed",
    [
        {"origin": "https://ayes.example"},
        {"rp": "other.example"},
        {"flags": 0x01},
        {"crossOrigin": True},
        {"type": "webauthn.create"},
        {"challenge": "AAAA"},
    ],
)
async def test_what_was_not_asked_does_not_count(site: Site, changed: dict[str, Any]):
    """By the client before it is recorded, and by the gate (D2)."""
    made = await device(site)
    async with site.gates():
        await site.ask()
        vote = await vote_of(site, made, **changed)
        with pytest.raises(NotAllowed, match="does not count on shop/t1/c1"):
            await console(site).vote(FIRST, Ballot("approve", signature=vote.signature))
        assert await why_void(site, vote) == VOTE
        await site.ask(SECOND)
        assert await why_void(site, await vote_of(site, made, SECOND), SECOND) == ""


async def test_the_signature_of_another_call_does_not_count(site: Site):
    made = await device(site)
    async with site.gates():
        await site.ask()
        await site.ask(SECOND)
        other, vote = await vote_of(site, made, SECOND), await vote_of(site, made)
        assert await why_void(site, replace(vote, signature=other.signature)) == VOTE


async def test_a_key_of_another_domain_log_or_person_is_nobodys(site: Site):
    """Also if the desk has confirmed it."""
    log = await site.log.identity()
    await device(site)
    for more in {"rp": "other.example"}, {"name": f"ana/{'0' * 32}"}, {"name": f"ben/{log}"}:
        made = Authenticator(**{"rp": RP, "name": key_name("ana", log)} | more)
        await add(site, made.public, "ana")
    keys = keys_of(await site.ledger.read(KEYS), site.trust).of("ana")
    assert len([one for one in keys if isinstance(one.public, Passkey)]) == 1


async def test_a_key_with_two_names_is_the_firsts(site: Site):
    """Under another name, or as the key of another domain, it would let one person vote twice."""
    log = await site.log.identity()
    made = await device(site)
    await add(site, replace(made.public, name=key_name("ben", log)), "ben")
    keys = keys_of(await site.ledger.read(KEYS), site.trust)
    assert keys.get("ben", key_id(made.public)) is None
    assert keys.get("ana", key_id(made.public))


async def test_a_terminals_key_confirms_a_passkey_and_no_passkey_confirms_anything(site: Site):
    """A gesture that was meant for one vote gives nothing that lasts."""
    log = await site.log.identity()
    made = await device(site, by=None)
    digest = key_digest(log, "ana", made.public)
    slot = key_slot("ana", key_id(made.public), "confirmed", "ana")
    await site.ledger.append(slot, e.KeyConfirmed(signatures=(signed(site.keys["ana"], digest),)))
    now = await site.log.clock()
    keys = keys_of(await site.ledger.read(KEYS), site.trust)
    assert keys.get("ana", key_id(made.public)).standing(now).startswith("counts since")
    other = await device(site, by=None)
    digest = key_digest(log, "ana", other.public)
    slot = key_slot("ana", key_id(other.public), "confirmed", "ana")
    said = e.KeyConfirmed(signatures=(made.text(digest, 0, ORIGIN),))
    await site.ledger.append(slot, said)
    keys = keys_of(await site.ledger.read(KEYS), site.trust)
    assert keys.get("ana", key_id(other.public)).counts_from is None


async def test_a_counter_that_falls_voids_that_vote(site: Site):
    """In the order of the log, over all that its person has voted, and for each key by itself."""
    made, other = await device(site), await device(site)
    async with site.gates():
        for ref in FIRST, SECOND, THIRD:
            await site.ask(ref)
        made.count = 7
        first = await vote_of(site, made)  # 8
        made.count = 7
        copied = await vote_of(site, made, SECOND)
        await site.ledger.append(SECOND.vote("ana"), copied)
        await site.decided(e.Approved, SECOND)
        assert await why_void(site, first) == FELL
        with pytest.raises(AlreadyFilled):  # as after each vote that does not count
            await console(site).deny(FIRST)
        # Whoever has the gate's login lets nothing run on it either.
        approved = (await site.ledger.call(SECOND)).approval
        digest = (await site.ledger.call(FIRST)).digest
        await site.ledger.append(FIRST.decided, replace(approved, id="", digest=digest))
        starter = Ledger(site.log, e.Author("x", "x"))
        starter.trust = site.trust
        said = await why_unproved(starter, await starter.call(FIRST), starts=True)
        assert said == "the votes that count do not approve this"
        # An operator reads it in `ayes doctor`, until the key is revoked.
        key = made.public
        [line] = await copied_keys(starter, site.trust)
        assert line.startswith("there may be a copy of a passkey of ana: its counter did not rise")
        assert line.endswith(f"on {SECOND}. Revoke it: ayes key revoke ana {fingerprint(key)}")
        # Another key of the same person counts by itself.
        await site.ledger.append(THIRD.vote("ana"), await vote_of(site, other, THIRD))
        await site.decided(e.Approved, THIRD)
        await site.ledger.append(key_slot("ana", key_id(key), "revoked", "cy"), e.KeyRevoked())
        assert await copied_keys(starter, site.trust) == []


async def test_the_votes_of_a_person_with_several_passkeys_are_read_once(
    site: Site, monkeypatch: Any
):
    """As `ayes doctor` looks for copies: people may have voted thousands of times."""
    for _ in range(3):
        await device(site)
    await device(site, "ben")
    read, reading = list[str](), site.log.read

    async def noted(*subjects: str) -> tuple[Fact, ...]:
        read.extend(subjects)
        return await reading(*subjects)

    monkeypatch.setattr(site.log, "read", noted)
    assert await copied_keys(site.ledger, site.trust) == []
    assert [one for one in read if "vote" in one] == [votes_of("ana"), votes_of("ben")]


@pytest.mark.parametrize(
    ("counts", "fell"),
    [
        ([0, 0, 0], []),
        ([1, 2, 3], []),
        ([1, 5, 5], [2]),
        ([5, 4, 6], [1]),
        ([5, 0, 6], [1]),
        ([0, 3, 0], [2]),
        ([5, 4, 5, 6], [1, 2]),
    ],
)
async def test_counters_in_the_order_of_the_log(site: Site, counts: list[int], fell: list[int]):
    made = await device(site)
    keys = keys_of(await site.ledger.read(KEYS), site.trust)
    now, votes = await site.log.clock(), list[Fact]()
    for seq, count in enumerate(counts, 1):
        made.count = count - made.step
        vote = e.Voted(verdict="approve", digest="", signature=made.text(bytes(32), 1, ORIGIN))
        votes.append(Fact(seq, now, CallRef("shop", "t", f"c{seq}").vote("ana"), vote))
    counters = Counters(keys.confirmed("ana"))
    for _ in range(2):  # the same ones again change nothing
        counters.add(votes)
    assert [seq - 1 for seq in counters.fallen] == fell


async def test_each_vote_of_a_person_is_read_and_judged_once(site: Site, monkeypatch: Any):
    """Otherwise a reviewer's login could make the gate judge thousands of votes again for each new
    vote.
    """
    seen, read = list[Assertion](), list[str]()
    made, is_signed, reading = await device(site), judged_keys.is_signed, site.log.read

    def judging(spki: bytes, said: Assertion) -> bool:
        seen.append(said)
        return is_signed(spki, said)

    async def noted(*subjects: str) -> tuple[Fact, ...]:
        read.extend(one for one in subjects if one == votes_of("ana"))
        return await reading(*subjects)

    monkeypatch.setattr(judged_keys, "is_signed", judging)
    gate = Ledger(site.log, e.Author("x", "x"))
    gate.trust = site.trust
    calls = [CallRef("shop", "t1", f"d{number}") for number in range(4)]
    async with site.gates():
        for ref in calls:
            await site.ask(ref)
    seen.clear()
    monkeypatch.setattr(site.log, "read", noted)
    for at, ref in enumerate(calls):
        await site.ledger.append(ref.vote("ana"), await vote_of(site, made, ref))
        for one in calls[: at + 1]:
            await gate.reading_from(site.log).with_given(await gate.call(one))
    assert len(seen) == len(calls)
    assert len(read) == 1


async def test_what_a_key_has_not_signed_says_nothing_of_its_counter(site: Site):
    """Whoever has a login, and no key, cannot void votes that come later."""
    made, stranger = await device(site), Authenticator(RP)
    async with site.gates():
        await site.ask()
        await site.ask(SECOND)
        stranger.count = 2**32 - 2
        forged = Signature.parse(stranger.text(bytes(32), 1, ORIGIN))._replace(
            key=key_id(made.public)
        )
        vote = await vote_of(site, made)
        await site.ledger.append(SECOND.vote("ana"), replace(vote, signature=str(forged)))
        assert len(await site.ledger.read(votes_of("ana"))) == 1
        assert await why_void(site, vote) == ""


async def test_what_a_passkey_cannot_sign_is_refused_where_only_signed_counts(site: Site):
    """A grant or delegation in the console: with a sentence, and nothing is recorded."""
    await device(site)
    with pytest.raises(NotAllowed, match="only signed grants count in shop, and ana's key"):
        await console(site).grant(GrantRef("shop", "ana", "g"), "refund", for_s=60.0)
    assert not await site.ledger.read(GrantRef("shop", "ana", "g"))
    now, ref = await site.log.clock(), DelegationRef("shop", "ana", "d")
    until = now + timedelta(days=1)
    with pytest.raises(NotAllowed, match="only signed delegations count in shop, and ana"):
        await console(site).delegate(ref, "ben", starts_at=now, ends_at=until)
    assert not await site.ledger.read(ref)


async def test_a_passkey_signs_no_grant(site: Site):
    made, log = await device(site), await site.log.identity()
    ref = GrantRef("shop", "ana", "g")
    granted = e.Granted(tool="refund", expires_in_s=60.0, uses=1)
    until = int((await site.log.clock()).timestamp()) + 60
    text = made.text(grant_digest(log, ref, granted, until), until, ORIGIN)
    await site.ledger.append(ref.given, replace(granted, signature=text))
    keys = keys_of(await site.ledger.read(KEYS), site.trust)
    [one] = with_signatures(grants_of(await site.ledger.read(ref)), keys, log)
    assert not one.is_signed


async def test_a_second_way_to_write_a_signature_is_none():
    """Of base64url one, without padding, and its unused bits zero."""
    made = Authenticator(RP)
    text = made.text(bytes(32), 5, ORIGIN)
    assert str(Signature.parse(text)) == text
    for other in (f"{text}=", text.replace("webauthn.1", "webauthn.01"), f"{text}.AA", text + "\n"):
        assert Signature.parse(other) is None
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    *_, data, client, signature = text.split(".")
    for part in data, client, signature:
        if len(part) % 4:  # of the last letter not all bits are used
            twins = [part[:-1] + letters[letters.index(part[-1]) ^ 1]]
            assert [Signature.parse(text.replace(part, one)) for one in twins] == [None]


@pytest.mark.parametrize("kind", ["ES256", "Ed25519"])
def test_a_passkey_as_text(kind: str):
    public = Authenticator(RP, kind).public
    assert Passkey.parse(str(public)) == public
    for bad in (
        f"{public} ",
        str(public).replace("webauthn+", "webauthn++"),
        str(public).replace(f"+{RP}+", "++"),
        str(replace(public, spki=public.spki[:-1])),
        str(replace(public, spki=b"no key")),
    ):
        with pytest.raises(BadInput, match="is not a passkey"):
            Passkey.parse(bad)


async def test_the_voter_is_told_what_their_key_has_signed(site: Site, tmp_path: Path):
    """By the log, so whatever a page has shown: the call, the tool, and that it does not count
    (D3). Of a vote without a signature nobody is told.
    """
    await site.apply(f'[contacts]\nana = ["web:ana"]\nben = ["web:ben"]\n{ASK}')
    made = await device(site)
    file = '[notices.web]\nurl = "json://{place}/{{address}}"\n'
    with http() as web:
        channels = Channels(section("notices", tmp_path, file.format(place=web.place)))
        notifier = Ledger(site.log, e.Author(kind="notifier", name="notifier"))
        notifier.trust = site.trust
        sending = Worker(notifier, Notifier(channels))
        async with site.gates(), working(sending):
            await site.ask()
            await site.ask(SECOND)
            await site.ledger.reviewer("ben").deny(FIRST)
            made.count = 4
            await site.ledger.append(SECOND.vote("ana"), await vote_of(site, made, SECOND))
            made.count = 1
            await site.ledger.append(FIRST.vote("ana"), await vote_of(site, made))
            for ref in FIRST, SECOND:
                await recorded(site.ledger, ref.notified("ana", "signed").subject)
            assert not await site.ledger.read(FIRST.notified("ben", "signed"))
        channels.close()
        said = {one.subject: one.body for one in web if "just signed" in one.subject}
    fell, good = (said[f"Your key has just signed: refund: {ref}"] for ref in (FIRST, SECOND))
    assert FELL in fell
    for line in ("call:      shop/t1/c2", "tool:      refund", "signed:    approve, "):
        assert line in good
    assert "void:" not in good
