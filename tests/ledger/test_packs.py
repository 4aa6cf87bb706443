"""The pure part of packs: what is packed, and that readers find it as it was."""

import base64
import random
import zlib
from collections.abc import Iterable, Sequence
from datetime import timedelta

import msgspec
import pytest
from anything import logs
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from stories import CALL, REF, SETTLED, START, UNSETTLED, WISH, life, request

from ayes.ledger import packs
from ayes.ledger.log import RawMessage
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas.codec import MAX_BYTES, encode, fact_of
from ayes.schemas.errors import LogDamaged, NewerLog
from ayes.schemas.slots import MOST_SAID, Slot, StopRef, ThreadRef, matches

KEEPS = (
    (REF.opened, e.ThreadOpened(requester="rita")),
    (REF.keyed, e.Keyed(commitment="c")),
    (REF.forgetting, e.ForgettingBegan()),
    (REF.forgotten, e.Forgotten()),
    (REF.packed(1), e.Packed(names="", facts="", size=0)),
)
SIGNED = e.Voted(verdict="deny", digest="d", signature="webauthn.1.0123456789abcdef.0.a.b.c")
_WORDS = st.sampled_from(["", "hello", "Grüße 🙂", "two\n\nlines"])


def message(seq: int, subject: str, data: bytes, ns: int = 0) -> RawMessage:
    return RawMessage(seq, START + timedelta(seconds=seq, microseconds=ns), subject, data, ns)


def raws(told: Iterable[tuple[Slot, e.Event]], first: int = 1) -> list[RawMessage]:
    return [
        message(seq, slot.subject, encode(event), seq % 1000)
        for seq, (slot, event) in enumerate(told, first)
    ]


def fold(facts: Iterable[RawMessage]) -> object:
    return thread_of(
        REF, [fact_of(one.seq, one.recorded_at, one.subject, one.data) for one in facts]
    )


def packed(units: Sequence[packs.Unit], last: e.Packed | None = None) -> e.Packed:
    [pack] = packs.packs_of(units, last)
    return pack


def recorded(pack: e.Packed, number: int = 1, seq: int = 1_000_000) -> RawMessage:
    return message(seq, REF.packed(number).subject, encode(pack))


def whole(units: Iterable[packs.Unit]) -> list[RawMessage]:
    return [one for unit in units for one in unit]


# ----------------------------------------------------------------------------------- what is packed


@pytest.mark.parametrize("ending", [*SETTLED, *UNSETTLED])
def test_a_call_is_packed_whole_once_it_is_settled(ending):
    """Also one that cannot run any more, before the model has been told so."""
    facts = raws(life(CALL, WISH, ending))
    is_settled = ending in SETTLED
    assert packs.packable(REF, facts) == ([tuple(facts)] if is_settled else [])
    refused = isinstance(life(CALL, WISH, ending)[-1][1], e.ToolRefused)
    assert packs.packable(REF, facts[:-1]) == ([tuple(facts[:-1])] if refused else [])


def test_a_call_that_only_seems_to_have_run_is_open():
    """Its start came while a stop covered it, so that neither it nor its result counts."""
    stop = StopRef(REF.workspace, "ana", "s1")
    told = life(CALL, WISH, "returned")
    facts = raws([(stop.given, e.Stopped(reason="why")), *told])
    assert packs.packable(REF, facts) == []
    assert packs.packable(REF, raws(told)) != []


def test_an_open_call_holds_up_nothing_else():
    settled = raws(life(CALL, WISH, "returned"))
    others = raws([(REF.said("m1"), e.Said(role="user", text="?"))], 10)
    opened = raws(life(REF.call("c2"), WISH, "approved"), 20)
    assert packs.packable(REF, [*opened, *others, *settled]) == [tuple(settled), tuple(others)]


def test_a_turn_is_packed_once_it_is_replied_to():
    asked = [(REF.asked(1, one), e.ModelAsked(model="m")) for one in (1, 2)]
    replied = (REF.replied(1), e.ModelReplied(parts=(e.Text("hello"),)))
    assert packs.packable(REF, raws(asked)) == []
    assert packs.packable(REF, raws([*asked, replied])) == [tuple(raws([*asked, replied]))]


def test_what_is_read_over_all_threads_or_lives_as_long_as_one_stays():
    """So does what is not part of its call; other threads are none of this."""
    surplus = (CALL.comment("ana", MOST_SAID["comment"] + 1), e.Commented(text="?"))
    vote = (CALL.vote("ben"), SIGNED)
    by_hand = (CALL.vote("ana"), structs.replace(SIGNED, signature=""))
    told = [by_hand, vote, surplus, *life(CALL, WISH, "returned")]
    elsewhere = life(ThreadRef("other", REF.thread).call("c1"), WISH, "returned")
    facts = raws([*told, *KEEPS[:-1], *elsewhere])
    foreign = message(99, f"{REF.subjects[:-2]}.anything", b"{}")
    [unit] = packs.packable(REF, [*facts, foreign])
    assert list(unit) == [facts[0], *facts[3 : len(told)]]


def test_what_this_program_does_not_know_stays_with_all_that_belongs_to_it():
    """Bytes that are no fact at all have no meaning to be lost."""
    facts = raws([*life(CALL, WISH, "returned"), (REF.said("m1"), e.Said(role="user", text="?"))])
    newer = [structs.replace(one, data=b'{"type":"FromTheFuture","v":9}') for one in facts]
    assert packs.packable(REF, [*facts[:1], newer[1], *facts[2:]]) == [tuple(facts[-1:])]
    assert packs.packable(REF, [*facts[:-1], newer[-1]]) == [tuple(facts[:-1])]
    broken = structs.replace(facts[1], data=b"{")
    assert whole(packs.packable(REF, [facts[0], broken, *facts[2:]])) == [
        facts[0],
        broken,
        *facts[2:],
    ]


def test_what_is_packed_is_packed_once():
    """Before it is removed, and after; what comes later to a packed call stays, even if somebody
    fills all its slots again.
    """
    told = [(REF.said("m1"), e.Said(role="user", text="?")), *life(CALL, WISH, "returned")]
    facts = raws(told)
    pack = recorded(packed(packs.packable(REF, facts)), seq=50)
    late = raws([(CALL.late(1), e.ToolReturned(output="late"))], 60)
    assert packs.packable(REF, [*facts, pack, *late]) == []
    assert packs.packable(REF, [pack, *late]) == []
    assert packs.packable(REF, [pack, *raws(life(CALL, WISH, "failed"), 70)]) == []


# -------------------------------------------------------------------------------------------- sizes


def random_text(length: int, number: int = 0) -> str:
    return base64.b64encode(random.Random(number).randbytes(length * 3 // 4)).decode()


def large(name: str, length: int) -> list[tuple[Slot, e.Event]]:
    """A call with as many bytes, half of them late."""
    ref, half = REF.call(name), length // 2
    late = (ref.late(1), e.ToolReturned(output=random_text(half, length + 1)))
    return [*life(ref, WISH, "returned", random_text(half, length)), late]


def test_what_does_not_fit_into_one_fact_is_in_several_and_no_call_in_two():
    sizes = (("a", 300_000), ("b", 300_000), ("c", 20_000), ("huge", 600_000), ("d", 20_000))
    facts = raws([one for name, length in sizes for one in large(name, length)])
    units = packs.packable(REF, facts)
    assert len(units) == len(sizes)
    found = packs.packs_of(units)
    stored = [recorded(one, number, 1000 + number) for number, one in enumerate(found, 1)]
    each = [packs.unpacked(one) for one in stored]
    assert whole(each) == [one for one in facts if ".huge." not in one.subject]
    calls = [{one.subject.split(".")[4] for one in facts} for facts in each]
    assert len(calls) > 1
    assert len(set[str]().union(*calls)) == sum(map(len, calls))
    assert max(len(one.data) for one in stored) < MAX_BYTES
    assert [has(stored[-1], REF.call(name).late(1)) for name, _ in sizes] == [
        *(True, True, True),
        *(False, True),
    ]


def has(pack: RawMessage, slot: Slot) -> bool:
    return packs.PackedNames.in_pack(pack).may_have(slot)


def test_names_are_kept_from_pack_to_pack():
    """Of calls, messages and turns; those of one kind are none of another."""
    said = (REF.said("m1"), e.Said(role="user", text="?"))
    replied = (REF.replied(1), e.ModelReplied(parts=(e.Text("hello"),)))
    first = raws([said, *life(CALL, WISH, "denied")])
    second = raws([replied, *life(REF.call("c2"), WISH, "denied")], 20)
    one = packed(packs.packable(REF, first))
    two = recorded(packed(packs.packable(REF, second), one), 2)
    assert packs.PackedNames.in_pack(two).number == 2
    inside = (CALL.requested, REF.call("c2").decided, said[0], REF.asked(1, 7))
    assert [has(two, slot) for slot in inside] == [True] * 4
    assert [has(recorded(one), slot) for slot in inside] == [True, False, True, False]
    for slot in (REF.opened, REF.said("c2"), REF.call("m1").gated, REF.call("1").late(1)):
        assert not has(two, slot)
    assert not packs.NONE.may_have(CALL.requested)


def test_a_thread_with_too_many_names_in_its_packs_is_packed_no_further():
    names = base64.b64encode(bytes(8 * packs.MOST_NAMES)).decode()
    full = e.Packed(names=names, facts="", size=0)
    assert packs.packs_of(packs.packable(REF, raws(life(CALL, WISH, "denied"))), full) == []
    assert packs.packs_of([], None) == []


# ------------------------------------------------------------------------------ what cannot be read


def test_what_is_no_pack_has_no_facts():
    """A pack says how many facts it has. It is not unpacked for that, and may be unreadable."""
    assert packs.size_of(recorded(structs.replace(GOOD, facts="!"))) == GOOD.size == 4
    subject = REF.packed(1).subject
    for none in (
        message(9, subject, b"{"),
        message(9, subject, encode(e.Said(role="user", text="?"))),
        message(9, REF.said("m1").subject, encode(GOOD)),
    ):
        assert packs.size_of(none) == 0


def rows_of(*rows: tuple[object, ...]) -> bytes:
    return msgspec.msgpack.encode(rows)


def gzipped(content: bytes) -> bytes:
    writer = zlib.compressobj(9, wbits=31)
    return writer.compress(content) + writer.flush()


GOOD = packed(packs.packable(REF, raws(life(CALL, WISH, "denied"))))
CONTENT = base64.b64decode(GOOD.facts)
BAD = {
    "no base64": "!",
    "no gzip": base64.b64encode(b"{}").decode(),
    "cut off": base64.b64encode(CONTENT[:-1]).decode(),
    "more after it": base64.b64encode(CONTENT + b"x").decode(),
    "no list": base64.b64encode(gzipped(b"\x01")).decode(),
    "a bomb": base64.b64encode(gzipped(bytes(packs.MOST_UNPACKED + 1))).decode(),
    **{
        name: base64.b64encode(gzipped(rows_of(*rows))).decode()
        for name, rows in {
            "a time out of range": [(1, 2**64 - 1, "said.m1", b""), (2, 2, "said.m2", b"")] * 2,
            "no order": [(2, 2, "said.m1", b""), (1, 1, "said.m2", b"")] * 2,
            "twice the same": [(2, 2, "said.m1", b"")] * 4,
            "a number below one": [(n, 1, "said.m1", b"") for n in range(4)],
            "later than itself": [(n, 1, "said.m1", b"") for n in (1, 2, 3, 1_000_000)],
            "another slot": [(n, 1, "opened", b"") for n in range(1, 5)],
            "no slot": [(n, 1, "anything", b"") for n in range(1, 5)],
            "a pack": [(n, 1, "packed.7", b"") for n in range(1, 5)],
            "an unnamed call": [(n, 1, "call.c9.decided", b"") for n in range(1, 5)],
            "another number of them": [(1, 1, "said.m1", b"")],
        }.items()
    },
}


@pytest.mark.parametrize("name", BAD)
def test_a_pack_that_is_none_is_damage(name):
    """To a reader that took an unreadable pack for an empty one, its slots would seem free."""
    assert GOOD.size == 4
    with pytest.raises(LogDamaged, match=r"packed\.1 cannot be read"):
        packs.unpacked(recorded(structs.replace(GOOD, facts=BAD[name])))


def test_the_range_of_a_pack_that_is_none_is_damage():
    for name in ("no gzip", "no list", "no order", "later than itself"):
        with pytest.raises(LogDamaged, match=r"packed\.1 cannot be read"):
            packs.range_of(recorded(structs.replace(GOOD, facts=BAD[name])))


def test_of_a_pack_what_is_wanted_is_decoded(monkeypatch: pytest.MonkeyPatch):
    """A call of a thread of hundreds, and nothing of the others."""
    facts = raws(
        [one for number in range(50) for one in life(REF.call(f"c{number}"), WISH, "denied")]
    )
    pack, parse, parsed = recorded(packed(packs.packable(REF, facts))), Slot.parse, list[str]()
    assert packs.range_of(pack) == (1, len(facts))

    def noted(subject: str) -> Slot:
        parsed.append(subject)
        return parse(subject)

    monkeypatch.setattr(Slot, "parse", noted)
    wanted = [one for one in facts if matches(REF.call("c7").subjects, one.subject)]
    assert packs.as_before([pack], (REF.call("c7").subjects,)) == wanted
    assert parsed == [one.subject for one in wanted]


@pytest.mark.parametrize("names", ["AAAA", "!"])
def test_names_that_are_none_are_damage(names):
    bad = recorded(structs.replace(GOOD, names=names))
    with pytest.raises(LogDamaged, match=r"packed\.1 cannot be read"):
        packs.unpacked(bad)
    with pytest.raises(LogDamaged, match=r"packed\.1 cannot be read"):
        packs.PackedNames.in_pack(bad)


def test_bytes_that_are_no_pack_are_damage_and_a_newer_one_is_not():
    for data in (b"{", encode(e.Said(role="user", text="?"))):
        with pytest.raises(LogDamaged):
            packs.unpacked(message(9, REF.packed(1).subject, data))
    newer = b'{"type":"Packed","v":9,"calls":"","facts":"","size":0}'
    with pytest.raises(NewerLog, match="a newer program"):
        packs.unpacked(message(9, REF.packed(1).subject, newer))


@pytest.mark.parametrize("numbers", [(2,), (1, 3), (2, 3)])
def test_a_missing_pack_is_damage(numbers):
    empty = e.Packed(names="", facts=base64.b64encode(gzipped(rows_of())).decode(), size=0)
    some = [recorded(empty, number, 1_000_000 + number) for number in numbers]
    with pytest.raises(LogDamaged, match=r"packed\.[12] is missing"):
        packs.merged([], some)


# --------------------------------------------------------------------------------- as it was before


@st.composite
def told(draw: st.DrawFn) -> list[tuple[str, bytes]]:
    """Facts of a thread in any order: of calls and stops as they may be, and of all else."""
    found = [(one.subject, one.data) for one in draw(logs(REF, calls=3))]
    number = st.integers(1, 3)
    others = st.one_of(
        st.sampled_from(KEEPS[:-1]),
        st.tuples(st.builds(REF.asked, number, number), st.just(e.ModelAsked(model="m"))),
        st.tuples(number.map(REF.replied), st.just(e.ModelReplied(parts=(WISH,)))),
        st.tuples(
            st.sampled_from(["m1", "m2", "m3"]).map(REF.said),
            st.builds(e.Said, role=st.just("user"), text=_WORDS),
        ),
        st.tuples(number.map(lambda one: REF.wish(one, 0).vote("zoe")), st.just(SIGNED)),
        st.tuples(number.map(lambda one: REF.wish(one, 0).comment("ana", 101)),
                  st.just(e.Commented(text="!"))),
        st.tuples(st.just(ThreadRef("acme", "t2").call("1-0").requested), st.just(request(WISH))),
    )  # fmt: skip
    for slot, event in draw(st.lists(others, max_size=12)):
        found.insert(draw(st.integers(0, len(found))), (slot.subject, encode(event)))
    return found


class World:
    """A log whose thread is packed meanwhile. A slot that left the stream may be filled again."""

    def __init__(self) -> None:
        self.live: dict[str, RawMessage] = {}
        self.packs: list[RawMessage] = []
        #: As if nothing had been packed.
        self.before: dict[str, RawMessage] = {}
        self.last = 0

    def record(self, subject: str, data: bytes, ns: int = 0) -> None:
        if subject in self.live:
            return
        self.last += 1
        self.live[subject] = message(self.last, subject, data, ns)
        self.before.setdefault(subject, self.live[subject])

    def pack(self) -> None:
        units = packs.packable(REF, [*self.live.values(), *self.packs])
        last = packs.pack_in(self.packs[-1]) if self.packs else None
        for one in packs.packs_of(units, last):
            self.last += 1
            self.packs.append(recorded(one, len(self.packs) + 1, self.last))

    def remove(self, number: int) -> None:
        for one in packs.unpacked(self.packs[number]):
            if self.live.get(one.subject) == one:
                del self.live[one.subject]

    def read(self, pattern: str = "ledger.>") -> list[RawMessage]:
        live = [one for one in self.live.values() if matches(pattern, one.subject)]
        return packs.merged(live, self.packs, lambda subject: matches(pattern, subject))

    def check(self) -> None:
        assert self.read() == [*self.before.values()]
        for pattern in (REF.wish(1, 0).subjects, REF.wish(2, 0).revocations, REF.subjects):
            expected = [one for one in self.before.values() if matches(pattern, one.subject)]
            assert self.read(pattern) == expected


@given(told(), st.data())
def test_a_thread_reads_as_if_nothing_had_been_packed(history, data):
    """Byte for byte, with its leaves, at each moment, whatever is packed, removed or filled again
    by whom no condition stops.
    """
    world = World()
    draw = data.draw
    for subject, content in history:
        world.record(subject, content, draw(st.integers(0, 999)))
        match draw(st.sampled_from(["", "", "", "pack", "remove", "again"])):
            case "pack":
                world.pack()
            case "remove" if world.packs:
                world.remove(draw(st.integers(0, len(world.packs) - 1)))
            case "again":
                world.record(draw(st.sampled_from(history))[0], b"{}")
            case _:
                pass
        world.check()
    read = world.read()
    assert [one.leaf for one in read] == [one.leaf for one in world.before.values()]
    assert fold(read) == fold(world.before.values())
    stays = {slot.subject for slot, _ in KEEPS}
    inside = [one for pack in world.packs for one in packs.unpacked(pack)]
    assert not stays.intersection(one.subject for one in inside)
    assert not any(b"webauthn." in one.data for one in inside)


def test_where_packs_of_facts_are():
    """Of facts within one thread. What stays in the stream is in none."""
    some = ("said.m1", "call.c1.>", "call.*.decided", "turn.1.replied", "*.x", ">")
    for tail in some:
        assert packs.packs_for((f"ledger.acme.t1.{tail}",)) == ("ledger.acme.t1.packed.*",)
    assert packs.packs_for(tuple(f"ledger.acme.t{n}.>" for n in (1, 2, 1))) == (
        "ledger.acme.t1.packed.*",
        "ledger.acme.t2.packed.*",
    )
    none = ("acme.t1.opened", "acme.t1.packed.*", "acme.t1", "acme.*.call.>", "*.t1.call.>", ">")
    none += ("acme.>", "acme._policy.>", "acme._policy.1", "acme._grant.call.x.>", "")
    assert packs.packs_for((*(f"ledger.{one}" for one in none), "parked.acme.t1.>", "timer")) == ()
    numbers = {
        "ledger.acme.t1.packed.12": 12,
        "ledger.acme.t1.packed.x": 0,
        "ledger.acme.t1.packed": 0,
        "ledger.acme._tool.packed.1": 0,
        "ledger.acme.t1.call.packed.1": 0,
        "ledger.acme.t1.packed.1.2": 0,
        "ledger.packed.1": 0,
        "ledger.packed.packed.packed.1": 1,
    }
    assert {subject: packs.number_of(subject) for subject in numbers} == numbers


@given(told())
def test_what_is_packed_is_settled_in_the_whole_thread_too(history):
    """Whole calls, of which nothing that counts is left behind."""
    world = World()
    for subject, content in history:
        world.record(subject, content)
    facts = [*world.live.values()]
    for unit in packs.packable(REF, facts):
        tail = unit[0].subject.split(".")[3:]
        if tail[0] != "call":
            continue
        name = tail[1]
        left = {
            one.subject.split(".")[5]
            for one in facts
            if one not in unit and matches(REF.call(name).subjects, one.subject)
        }
        assert left <= {"vote", "comment", "handed"}


@pytest.mark.parametrize(
    ("own", "followed"),
    [
        (("ledger.a.t.>",), ("ledger.a.t.>",)),
        (("ledger.a.>", "ledger.b.t.call.*.decided"),
         ("ledger.a.>", "ledger.b.t.call.*.decided", "ledger.b.t.packed.*")),
        (("ledger.*.*.said.*",), ("ledger.*.*.said.*", packs.EVERY)),
        (("ledger.*.*.said.*", "ledger.a.>"), ("ledger.>",)),
        (("ledger.*.*.said.*", "ledger.a.t.packed.1"), ("ledger.>",)),
        (("ledger.*.*.said.*", "ledger.a._stop.b.c.given"),
         ("ledger.*.*.said.*", "ledger.a._stop.b.c.given", packs.EVERY)),
        (("ledger.a._stop.>",), ("ledger.a._stop.>",)),
    ],
)  # fmt: skip
def test_no_two_wildcards_that_are_followed_overlap(own, followed):
    """With the packs in which such facts may be."""
    assert packs.followed_with(own) == followed
