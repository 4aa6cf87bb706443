"""What is sealed is copied once, and the copy alone gives the log byte for byte."""

import asyncio
import base64
import os
import re
from collections.abc import Iterator
from datetime import timedelta
from email.utils import format_datetime
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import storage
from botocore.exceptions import ClientError, EndpointConnectionError
from botocore.parsers import ResponseParserError
from heard import logged
from long import sampled
from moto import mock_aws
from moto.s3.models import s3_backends
from msgspec import structs
from sections import section
from storage import NAME, START, URL, CopiedSite, client, facts, names, versions
from until import until

from ayes.consumers import supervision
from ayes.consumers.supervision import keep_running
from ayes.ledger.seal import Checkpoint
from ayes.ops.sealing import bucket as storing
from ayes.ops.sealing import copier as copying
from ayes.ops.sealing.bucket import LockedBucket
from ayes.ops.sealing.copier import RebuiltLog, rebuild
from ayes.ops.sealing.exports import exported, exported_facts, line
from ayes.ops.sealing.verify import difference
from ayes.schemas.backoff import Backoff
from ayes.schemas.errors import (
    ApprovalsError,
    BadFile,
    BadInput,
    Distrusted,
    LogDamaged,
    Unavailable,
)

#: A whole segment, and the names of the first ones.
WHOLE = 100
ONE, TWO, THREE = (f"{n:012}-{n + 99:012}" for n in (1, 101, 201))


@pytest.fixture(autouse=True)
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty bucket, and the time of the facts."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", storage.SECRET)
    with mock_aws():
        storage.make_bucket()
        monkeypatch.setattr(storing, "_MAX_SKEW", timedelta(days=36_500))
        now(monkeypatch, 0)
        yield


def now(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """So long after the first fact. The storage, which wants to keep until later, has our own."""
    monkeypatch.setattr(copying.clock, "now", lambda: START + timedelta(days=3650, seconds=seconds))


AT = START + timedelta(days=3650)


def site(folder: Path, count: int, *, every_s: float = 1.0, text: str = "") -> CopiedSite:
    return CopiedSite(folder / "store", facts(count, AT, every_s=every_s, text=text))


async def verified(file: Path, key: Any) -> str | None:
    """What `ayes verify --export` finds."""
    note, proof = exported(file)
    assert key.signed(note)
    return await difference(exported_facts(file), Checkpoint.parse(note), None, proof)


def rebuilt(one: CopiedSite, folder: Path) -> tuple[RebuiltLog, list[bytes]]:
    """The export that the copy gives, without its head."""
    file = folder / "rebuilt.jsonl"
    file.unlink(missing_ok=True)
    made = rebuild(LockedBucket(URL), one.key.public, file)
    assert asyncio.run(verified(file, one.key.public)) is None
    return made, file.read_bytes().splitlines(keepends=True)[1:]


def lines(one: CopiedSite, count: int) -> list[bytes]:
    return [line(raw) for raw in one.log.facts[:count]]


def test_whole_segments_are_copied_and_give_the_log_byte_for_byte(tmp_path):
    """A checkpoint that covers more is beside each, with the proof that it covers these."""
    one = site(tmp_path, 333)
    copier = asyncio.run(one.copy())
    assert (copier.copied, one.files.copied()) == (300, 300)
    assert names() == names("shop/checkpoint/") == [ONE, TWO, THREE]
    assert rebuilt(one, tmp_path) == (RebuiltLog(300, [], []), lines(one, 300))
    assert not asyncio.run(copier.copy_next())


def test_a_copier_waits_for_the_sealer(tmp_path):
    """It may have begun first, when there is not even a folder."""
    one = site(tmp_path, WHOLE)
    one.files.folder.rmdir()
    copier = one.copier()
    asyncio.run(copier.begin())
    assert not asyncio.run(copier.copy_next())
    assert one.files.copied() == 0
    one.seal()
    assert asyncio.run(copier.copy_next())


def test_only_what_is_sealed_is_copied(tmp_path, monkeypatch):
    one = site(tmp_path, 333)
    now(monkeypatch, 1e6)
    assert asyncio.run(one.copy(199)).copied == 199
    assert names() == [ONE, f"{101:012}-{199:012}"]


@pytest.mark.parametrize(
    ("every_s", "after_s", "expected"),
    [
        (1.0, 3600 + 59, [ONE]),
        (1.0, 3600 + 161, [ONE, f"{101:012}-{133:012}"]),
        (60.0, 1e6, [f"{a:012}-{b:012}" for a, b in ((1, 60), (61, 100), (101, 133))]),
    ],
    ids=["not yet", "after an hour", "an hour of a quiet log"],
)
def test_an_incomplete_segment_ends_after_an_hour(
    tmp_path, monkeypatch, every_s, after_s, expected
):
    """Its bounds follow from the log alone, and nothing replaces it."""
    one = site(tmp_path, 133, every_s=every_s)
    now(monkeypatch, after_s)
    asyncio.run(one.copy())
    assert names() == expected
    one.log.facts = facts(400, AT, every_s=every_s)
    now(monkeypatch, 1e6)
    asyncio.run(one.copy())
    assert [*dict.fromkeys(names())] == names()
    assert set(expected) <= set(names())
    assert rebuilt(one, tmp_path) == (RebuiltLog(400, [], []), lines(one, 400))


def test_what_is_copied_cannot_be_deleted(tmp_path):
    """Moto does not know that nobody can shorten a retention either."""
    one, sent = site(tmp_path, WHOLE), list[dict[str, Any]]()
    one.seal()
    copier = one.copier()
    copier._bucket._client.meta.events.register(
        "before-send.s3.PutObject", lambda request, **_: sent.append({**request.headers})
    )
    assert asyncio.run(copier.copy_next())
    assert len([one for one in sent if "x-amz-checksum-sha256" in one]) == len(sent) == 2
    for key, version in versions():
        head = client().head_object(Bucket=NAME, Key=key, VersionId=version, ChecksumMode="ENABLED")
        assert head["ObjectLockMode"] == "COMPLIANCE"
        kept = head["ObjectLockRetainUntilDate"] - (AT + timedelta(days=365))
        assert abs(kept) < timedelta(seconds=2)
        assert len(base64.b64decode(head["ChecksumSHA256"])) == 32
        with pytest.raises(Exception, match="AccessDenied"):
            client().delete_object(
                Bucket=NAME, Key=key, VersionId=version, BypassGovernanceRetention=True
            )


def test_the_proof_of_an_export_is_of_its_facts_alone(tmp_path, within):
    """A proof that fewer facts are the first of those that were sealed is one of exactly these."""
    one = site(tmp_path, 133)
    asyncio.run(one.copy())
    file, key = tmp_path / "rebuilt", one.key.public
    assert rebuild(LockedBucket(URL), key, file).facts == 100
    first, *facts_ = file.read_bytes().splitlines(keepends=True)
    assert Checkpoint.parse(exported(file)[0]).size == 133
    ended = within("verify", "--export", file, "--key", key, "--store", tmp_path / "nothing")
    assert (ended.code, "the first 100 of 100 facts" in ended.out) == (0, True)
    assert "33 more facts were sealed, and it does not have them" in ended.out
    for found in (facts_[:-1], [*facts_[:-1], line(structs.replace(one.log.facts[99], data=b""))]):
        file.write_bytes(b"".join([first, *found]))
        said = f"the facts are not the first {len(found)} of those that were sealed"
        assert asyncio.run(verified(file, key)) == said
    file.write_bytes(first)
    assert asyncio.run(verified(file, key)) == "the log ends at fact 0, and 133 were sealed"


class Killed(BaseException):
    pass


def test_a_copier_that_is_killed_at_any_await_puts_each_object_once(tmp_path, monkeypatch):
    """Before and after each request to the storage and each file that it writes."""
    monkeypatch.setattr(copying, "SIZE", 10)
    one = site(tmp_path, 90)
    one.seal()
    kills, left, wait = 0, 0, asyncio.to_thread

    async def counted(*given: Any) -> Any:
        nonlocal left
        left -= 1
        if not left:
            raise Killed
        found = await wait(*given)
        left -= 1
        if not left:
            raise Killed
        return found

    monkeypatch.setattr(copying.asyncio, "to_thread", counted)
    for after in cycle(range(3, 20)):
        left = after
        try:
            asyncio.run(one.copy(len(one.log.facts)))
            break
        except Killed:
            kills += 1
    monkeypatch.undo()
    assert kills > 25
    assert (
        names() == names("shop/checkpoint/") == [f"{n:012}-{n + 9:012}" for n in range(1, 90, 10)]
    )
    assert rebuilt(one, tmp_path) == (RebuiltLog(90, [], []), lines(one, 90))


def test_two_copiers_put_the_same(tmp_path, monkeypatch):
    """The one that comes too late finds what it wanted to put."""
    one = site(tmp_path, 333)
    now(monkeypatch, 1e6)
    one.seal()

    async def both() -> None:
        copiers = [one.copier() for _ in range(3)]
        for copier in copiers:
            await copier.begin()

        async def all_of(copier: Any) -> None:
            while await copier.copy_next():
                pass

        await asyncio.gather(*map(all_of, copiers))
        assert {copier.copied for copier in copiers} == {333}

    asyncio.run(both())
    assert names() == [ONE, TWO, THREE, f"{301:012}-{333:012}"]


def test_a_conflict_with_another_copier_is_tried_again(tmp_path, monkeypatch):
    """As S3 answers while another program puts the object: 409, where 412 says that it is there."""
    one = site(tmp_path, WHOLE)
    one.seal()
    copier = one.copier()
    put, conflicts = copier._bucket._client.put_object, [1, 2]

    def put_object(**given: Any) -> Any:
        if conflicts:
            conflicts.pop()
            answer = {
                "Error": {"Code": "ConditionalRequestConflict"},
                "ResponseMetadata": {"HTTPStatusCode": 409},
            }
            raise ClientError(answer, "PutObject")
        return put(**given)

    monkeypatch.setattr(copier._bucket._client, "put_object", put_object)
    with pytest.raises(Unavailable, match="refuses PutObject with ConditionalRequestConflict"):
        asyncio.run(copier.copy_next())
    monkeypatch.setattr(supervision, "PAUSES", Backoff(0))

    async def run() -> None:
        task = asyncio.create_task(keep_running("copier", copier.run, ends=()))
        await until(lambda: copier.copied == WHOLE)
        task.cancel()

    asyncio.run(run())
    assert names() == [ONE]


def test_a_storage_that_is_away_stops_nothing(tmp_path, monkeypatch):
    """It is asked again, with growing pauses."""
    one = site(tmp_path, WHOLE)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://key:not-to-be-seen@127.0.0.1:9")
    one.seal()
    copier = one.copier()

    def away(*_: Any) -> Any:
        raise EndpointConnectionError(endpoint_url=os.environ["AWS_ENDPOINT_URL_S3"])

    copier._bucket._client.meta.events.register_first("before-send.s3", lambda **_: away())
    with pytest.raises(Unavailable, match=r"cannot be asked \(EndpointConnectionError\)") as found:
        asyncio.run(copier.begin())
    assert "not-to-be-seen" not in str(found.value)
    assert one.files.copied() == 0  # so that `doctor` says since when


@pytest.mark.parametrize(
    ("name", "why"),
    [("open", "the bucket has no Object Lock"), ("nobody", "refuses .* with NoSuchBucket")],
)
def test_a_bucket_from_which_copies_can_be_deleted_is_refused(tmp_path, name, why):
    storage.make_bucket("open", locked=False)
    one = site(tmp_path, WHOLE)
    one.seal()
    with pytest.raises(BadInput, match=why):
        asyncio.run(one.copier(f"s3://{name}").begin())


def test_a_clock_that_is_wrong_is_refused(tmp_path, monkeypatch):
    """Objects would be kept too short, or too long for ever."""
    monkeypatch.setattr(storing, "_MAX_SKEW", timedelta(minutes=5))
    bucket = LockedBucket(URL)
    ask = bucket._client.get_object_lock_configuration

    def dated(**given: Any) -> Any:
        answer = ask(**given)
        date = format_datetime(AT + ahead, usegmt=True) if ahead else "yesterday"
        answer["ResponseMetadata"]["HTTPHeaders"]["date"] = date
        return answer

    monkeypatch.setattr(bucket._client, "get_object_lock_configuration", dated)
    ahead = timedelta(minutes=4)
    bucket.check()
    ahead = timedelta(minutes=6)
    with pytest.raises(BadInput, match="the clock of this machine is -360 s from that of"):
        bucket.check()
    ahead = timedelta()
    with pytest.raises(Unavailable, match="does not say what time it has"):
        bucket.check()


def test_a_rebuild_goes_on_after_the_storage_failed_meanwhile(tmp_path, monkeypatch):
    """It reads for hours; what was half read is read again."""
    monkeypatch.setattr(copying, "_PAUSES_S", (0.0, 0.0))
    one, left, of_bucket = site(tmp_path, 300), 2, LockedBucket.lines
    asyncio.run(one.copy())

    def lines_of(bucket: LockedBucket, key: str, version: str) -> Iterator[bytes]:
        nonlocal left
        for number, text in enumerate(of_bucket(bucket, key, version)):
            if left and TWO in key and number == 70:
                left -= 1
                raise Unavailable("the storage cannot be asked")
            yield text

    monkeypatch.setattr(LockedBucket, "lines", lines_of)
    assert rebuilt(one, tmp_path) == (RebuiltLog(300, [], []), lines(one, 300))
    left = 3
    with pytest.raises(Unavailable):
        rebuild(LockedBucket(URL), one.key.public, tmp_path / "nothing")
    assert not [*tmp_path.glob("*nothing*")]


def test_an_answer_that_is_not_that_of_s3_is_not_cited(monkeypatch):
    """Such as that of a proxy, which may have what we sent."""
    bucket = LockedBucket(URL)

    def garbled(**_: Any) -> Any:
        raise ResponseParserError(f"invalid XML received: {storage.SECRET}")

    monkeypatch.setattr(bucket._client, "get_object_lock_configuration", garbled)
    with pytest.raises(Unavailable, match="does not answer as S3 does") as found:
        bucket.check()
    assert storage.SECRET not in str(found.value)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ('url = "https://copies.example"\nretention = "365d"', "Write it as in s3://BUCKET/PREFIX"),
        ('url = "s3://key:secret@copies"\nretention = "365d"', "Write it as in s3://BUCKET/PREFIX"),
        ('url = "s3://copies"\nretention = "12h"', "a time from 1d to 36500d"),
        ('url = "s3://copies"', "'retention' is missing"),
        ('url = "s3://copies"\nretention = "365d"\nmode = "GOVERNANCE"', "unknown key 'mode'"),
    ],
)
def test_the_settings_of_copies_are_checked(tmp_path, said, why):
    with pytest.raises(BadFile, match=re.escape(why)) as found:
        section("copies", tmp_path, f"[copies]\n{said}\n")
    assert "key:secret" not in str(found.value)


def test_another_log_is_not_copied_to_the_same_place(tmp_path):
    asyncio.run(site(tmp_path, WHOLE).copy())
    other = CopiedSite(tmp_path / "other", facts(WHOLE, AT + timedelta(days=1)))
    with pytest.raises(BadFile, match=r"it is of the log ayes.example/\w+, and not of ayes"):
        asyncio.run(other.copy())


def test_two_logs_that_begin_at_once_do_not_share_a_copy(tmp_path):
    """Both found the bucket empty."""
    one, other = site(tmp_path, WHOLE), CopiedSite(tmp_path / "other", facts(WHOLE, START))
    one.seal()
    other.seal()

    async def both() -> None:
        copiers = one.copier(), other.copier()
        for copier in copiers:
            await copier.begin()
        assert await copiers[0].copy_next()
        with pytest.raises(BadFile, match="it is of the log"):
            await copiers[1].copy_next()

    asyncio.run(both())


def test_a_log_that_was_rolled_back_is_not_copied(tmp_path):
    """Log and seal are those of an older backup, which went on otherwise; the copy knows better."""
    asyncio.run(site(tmp_path, 200).copy())
    with pytest.raises(Distrusted, match="has 200 facts, and 150 are sealed"):
        asyncio.run(CopiedSite(tmp_path / "older", facts(150, AT)).copy())
    forked = facts(300, AT)[:150] + facts(300, AT, text="x")[150:]
    with pytest.raises(BadFile, match="it does not cover the facts"):
        asyncio.run(CopiedSite(tmp_path / "forked", forked).copy())


def test_facts_that_are_not_those_that_were_sealed_are_not_copied(tmp_path):
    """An object cannot be taken back."""
    one = site(tmp_path, WHOLE)
    one.seal()
    one.log.facts[41] = structs.replace(one.log.facts[41], data=b"forged")
    copier = one.copier()
    asyncio.run(copier.begin())
    with pytest.raises(Distrusted, match="the facts 1 to 100 are not those that were sealed"):
        asyncio.run(copier.copy_next())
    one.log.facts[41:42] = [None]  # type: ignore[list-item]
    with pytest.raises(LogDamaged, match="fact 42 cannot be read"):
        asyncio.run(copier.copy_next())
    assert names() == []


def test_the_copy_gives_the_log_after_overwrites_and_delete_markers(tmp_path):
    """Object Lock forbids neither; the oldest version of each object is what was put."""
    one = site(tmp_path, 300)
    asyncio.run(one.copy())
    for key in (f"shop/log/{ONE}", f"shop/checkpoint/{THREE}"):
        client().put_object(Bucket=NAME, Key=key, Body=b"forged")
        client().delete_object(Bucket=NAME, Key=key)
    client().delete_object(Bucket=NAME, Key=f"shop/log/{TWO}")
    hidden = [f"log/{ONE}", f"log/{TWO}", f"checkpoint/{THREE}"]
    assert rebuilt(one, tmp_path) == (RebuiltLog(300, hidden, []), lines(one, 300))
    asyncio.run(one.copy())  # nor does the copier take them for missing
    assert names().count(TWO) == 1


def test_an_object_that_somebody_added_is_left_out(tmp_path):
    """Who may write can add, and must not be able to make the copy useless."""
    one = site(tmp_path, 300)
    asyncio.run(one.copy())
    client().put_object(Bucket=NAME, Key="shop/log/readme", Body=b"x")
    client().put_object(Bucket=NAME, Key=f"shop/log/{1:012}-{999_999:012}", Body=b"x")
    client().put_object(Bucket=NAME, Key=f"shop/log/{101:012}-{150:012}", Body=b"x")
    made, found = rebuilt(one, tmp_path)
    assert (made.facts, found, made.lacking) == (300, lines(one, 300), "")
    begun = line(facts(301, AT)[300]) + b"x"
    for first, body, why in (  # as if there were more
        (901, b"x", "no object has fact 301, and there are facts up to 1,000"),
        (301, begun, "line 2: it is not a fact"),
    ):
        client().put_object(Bucket=NAME, Key=f"shop/log/{first:012}-{first + 99:012}", Body=body)
        made, found = rebuilt(one, tmp_path)
        assert (made.facts, found) == (300, lines(one, 300))
        assert why in made.lacking


def test_what_somebody_put_and_hid_before_the_copier_came_is_passed_over(tmp_path):
    """For a delete marker, `If-None-Match` takes the object for absent. So the oldest version of
    these is not ours.
    """
    for key in (f"shop/log/{TWO}", f"shop/checkpoint/{TWO}", f"shop/log/{THREE}"):
        for body in (b"forged", line(facts(200, AT)[100]), b"{}\n" * 3000):
            client().put_object(Bucket=NAME, Key=key, Body=body)
        client().delete_object(Bucket=NAME, Key=key)
    one = site(tmp_path, 300)
    assert asyncio.run(one.copy()).copied == 300
    hidden = [f"log/{TWO}", f"log/{THREE}", f"checkpoint/{TWO}"]
    assert rebuilt(one, tmp_path) == (RebuiltLog(300, hidden, []), lines(one, 300))
    assert asyncio.run(one.copy()).copied == 300  # and when it is started again
    one.files.set_copied(200)
    copier = one.copier()
    copier.copied = 200  # as one that was killed before it heard that its objects are there
    assert asyncio.run(copier.copy_next())
    assert names().count(THREE) == 4


def test_a_start_lists_what_comes_after_the_last_object_that_is_known(tmp_path, monkeypatch):
    """Of years there are millions. If that object is not there, all of them are listed."""
    one, listed = site(tmp_path, 300), list[str]()
    asyncio.run(one.copy())
    stored = LockedBucket.stored

    def counted(bucket: LockedBucket, *given: str) -> Any:
        found = stored(bucket, *given)
        listed.extend(found)
        return found

    monkeypatch.setattr(LockedBucket, "stored", counted)
    of_last = [f"log/{THREE}", f"checkpoint/{THREE}"]
    assert asyncio.run(one.copy()).copied == 300
    assert listed == of_last
    for known in (None, 0, 150, 700):
        listed.clear()
        (one.files.folder / "copied").write_text(f"{known}\n")
        assert asyncio.run(one.copy()).copied == 300
        assert listed[-4:] == [f"log/{name}" for name in (ONE, TWO, THREE)] + of_last[1:]
    one.log.facts = facts(333, AT)
    one.files.set_copied(200)  # it was killed before it said so
    assert asyncio.run(one.copy()).copied == 300


def test_a_line_that_no_fact_has_is_not_read_to_its_end(tmp_path, monkeypatch):
    """Somebody else's object may be larger than the memory."""
    monkeypatch.setattr(storing, "_MAX_LINE", 300_000)
    one = site(tmp_path, WHOLE)
    asyncio.run(one.copy())
    put(f"log/{TWO}", b"x" * 300_001)
    assert "it has a line that is too long for a fact" in rebuilt(one, tmp_path)[0].lacking


@pytest.mark.parametrize(("status", "kind"), [(501, BadInput), (503, Unavailable)])
def test_what_a_storage_can_never_do_is_refused_at_once(monkeypatch, status, kind):
    """Some that speak S3 have no Object Lock; waiting does not help."""
    answer = {"Error": {"Code": "Never"}, "ResponseMetadata": {"HTTPStatusCode": status}}

    def refused(**_: Any) -> Any:
        raise ClientError(answer, "GetObjectLockConfiguration")

    bucket = LockedBucket(URL)
    monkeypatch.setattr(bucket._client, "get_object_lock_configuration", refused)
    with pytest.raises(kind, match="refuses GetObjectLockConfiguration with Never"):
        bucket.check()


def test_an_object_that_begins_like_another_one_is_left_out_after_it_was_read(
    tmp_path, monkeypatch
):
    one = site(tmp_path, 133)
    now(monkeypatch, 1e6)
    asyncio.run(one.copy())
    longer = f"{101:012}-{140:012}"
    client().put_object(
        Bucket=NAME, Key=f"shop/log/{longer}", Body=b"".join(lines(one, 133)[100:]) + b"{}\n"
    )
    one.log.facts = facts(200, AT)
    one.seal()
    with pytest.raises(BadFile, match=f"checkpoint/{longer}: it is missing"):
        asyncio.run(one.copy())  # a person has to look
    erase(f"log/{longer}")
    asyncio.run(one.copy())
    large = line(structs.replace(one.log.facts[133], data=bytes(100_000)))
    put(f"log/{longer}", b"".join([*lines(one, 133)[100:], large, b"{}\n"]))
    made, found = rebuilt(one, tmp_path)
    [why] = made.ignored
    assert f"log/{longer}, line 35" in why
    assert (made.facts, found) == (200, lines(one, 200))


def test_what_somebody_put_in_the_place_of_the_next_segment_is_not_taken_for_it(tmp_path):
    client().put_object(Bucket=NAME, Key=f"shop/log/{ONE}", Body=b"forged")
    one = site(tmp_path, WHOLE)
    with pytest.raises(BadFile, match=f"checkpoint/{ONE}: it is missing"):
        asyncio.run(one.copy())
    copier = one.copier()
    with pytest.raises(Distrusted, match="has others than the facts of this log"):
        asyncio.run(copier.copy_next())


def put(name: str, body: bytes) -> None:
    """Put an object in the place of one that is gone for good, as its administrator could."""
    client().put_object(Bucket=NAME, Key=f"shop/{name}", Body=body)


def erase(name: str) -> None:
    [account] = s3_backends.values()
    del account["aws"].buckets[NAME].keys[f"shop/{name}"]


def body_of(name: str) -> bytes:
    body: bytes = client().get_object(Bucket=NAME, Key=f"shop/{name}")["Body"].read()
    return body


LACKING = [
    pytest.param(f"log/{TWO}", None, "no object has fact 101, and there are facts up to 300"),
    pytest.param(f"checkpoint/{TWO}", None, f"checkpoint/{TWO}: it is missing"),
    pytest.param(f"checkpoint/{TWO}", lambda _: b"x", "is not a checkpoint with its proof"),
    pytest.param(
        f"log/{TWO}", lambda body: body.replace(b"said.m142", b"said.m14"), "does not cover"
    ),
    pytest.param(
        f"log/{TWO}", lambda body: body.partition(b"\n")[2], f"log/{TWO}, line 1: it is fact 102"
    ),
    pytest.param(
        f"log/{TWO}", lambda body: body[: body.rindex(b"{")], f"log/{TWO}: it ends at fact 199"
    ),
    pytest.param(
        f"log/{TWO}", lambda body: body + b"{}\n", f"log/{TWO}, line 101: it is not a fact"
    ),
]


@pytest.mark.parametrize(("name", "change", "why"), sampled(LACKING, *LACKING[::3]))
def test_a_copy_that_lacks_something_or_has_others_ends_before(tmp_path, name, change, why):
    """The facts are not judged by what the storage says, but by the checkpoints of the log."""
    one = site(tmp_path, 300)
    asyncio.run(one.copy())
    body = body_of(name)
    erase(name)
    if change:
        put(name, change(body))
    made, found = rebuilt(one, tmp_path)
    assert (made.facts, found, made.ignored) == (100, lines(one, 100), [])
    assert why in made.lacking
    erase(f"log/{ONE}")  # of nothing there is no export
    with pytest.raises(BadFile, match="no object has fact 1, and there are facts up to 300"):
        rebuild(LockedBucket(URL), one.key.public, tmp_path / "nothing")
    assert not [*tmp_path.glob("*nothing*")]


def test_an_object_whose_bytes_rotted_is_named(tmp_path):
    one = site(tmp_path, WHOLE)
    asyncio.run(one.copy())
    [account] = s3_backends.values()
    key = account["aws"].buckets[NAME].keys[f"shop/log/{ONE}"]
    checksum, body = key.checksum_value, bytearray(key.value)
    body[10] ^= 1
    key.value, key.checksum_value = bytes(body), checksum
    with pytest.raises(BadFile, match=f"log/{ONE}"):
        rebuild(LockedBucket(URL), one.key.public, tmp_path / "rebuilt")


def test_the_key_is_not_the_copys(tmp_path):
    """A whole copy that somebody else sealed is not taken for one of this log."""
    one = site(tmp_path, WHOLE)
    asyncio.run(one.copy())
    other = CopiedSite(tmp_path / "other", one.log.facts, "approvals.example")
    with pytest.raises(BadFile, match="it is of the log"):
        rebuild(LockedBucket(URL), other.key.public, tmp_path / "rebuilt")
    with pytest.raises(BadInput, match="has no copy of a log"):
        rebuild(LockedBucket(f"s3://{NAME}/elsewhere"), one.key.public, tmp_path / "rebuilt")


@pytest.mark.long
def test_more_objects_than_the_storage_lists_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(copying, "SIZE", 1)
    one = site(tmp_path, 1003)
    asyncio.run(one.copy())
    assert len(LockedBucket(URL).stored("log/")) == 1003
    assert asyncio.run(one.copy()).copied == 1003


def test_no_secret_is_in_an_error_or_a_log(tmp_path):
    """Nor what a request is signed with, however much is logged."""
    with logged() as written:
        asyncio.run(site(tmp_path, WHOLE).copy())
        one = CopiedSite(tmp_path / "other", facts(WHOLE, AT))
        one.seal()
        with pytest.raises(ApprovalsError) as found:
            asyncio.run(one.copier("s3://nobody").begin())
    assert storage.SECRET not in str(found.value) + written.getvalue()
    assert "Signature" not in written.getvalue()
