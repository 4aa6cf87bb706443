"""Names of calls: the same call has the same name, and two calls never share one."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ayes.adapters.names import AskedCall, id_names, may_be, numbered, search, thread_name
from ayes.ledger.call import Call
from ayes.ledger.lifecycle import Status
from ayes.ledger.validity import call_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import NotOpen
from ayes.schemas.ids import is_token
from ayes.schemas.slots import Slot, ThreadRef

THREAD = ThreadRef("shop", "t1")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
#: Ids as frameworks give them, those that look like names made here, and anything else.
IDS = st.one_of(
    st.text(max_size=80),
    st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True),
    st.from_regex(r"(call_0|a)(-[0-9]{1,6})?", fullmatch=True),
    st.from_regex(r"[dh][a-z2-7]{40}(-[0-9])?", fullmatch=True),
)
ASKED = st.builds(
    AskedCall,
    st.just("t1"),
    IDS,
    st.sampled_from(["refund", "mail"]),
    st.sampled_from(["{}", '{"a":1}']),
)


class Recorded:
    """The calls of a thread that were requested, and those that have ended."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.version = "v1"
        self.looks = 0

    def call(self, name: str) -> Call:
        return call_of(THREAD.call(name), self.facts)

    def is_its(self, asked: AskedCall, name: str) -> bool:
        self.looks += 1
        return may_be(asked, self.call(name), self.version)

    def name(self, asked: AskedCall) -> str:
        searching = search(asked)
        name = next(searching)
        while True:
            try:
                name = searching.send(self.is_its(asked, name))
            except StopIteration as found:
                return found.value

    def request(self, asked: AskedCall) -> str:
        name = self.name(asked)
        ref = THREAD.call(name)
        if self.call(name).requested is None:
            digest = call_digest(asked.tool, self.version, asked.arguments)
            wish = e.ToolRequested(
                tool=asked.tool,
                tool_version=self.version,
                arguments=asked.arguments,
                digest=digest,
            )
            self.record(ref.requested, wish)
        return name

    def end(self, name: str) -> None:
        self.record(THREAD.call(name).decided, e.Withdrawn())

    def record(self, slot: Slot, event: e.Event) -> None:
        self.facts.append(Fact(len(self.facts) + 1, NOW, slot, event))


@given(IDS.filter(bool))
def test_every_id_becomes_a_name_that_fits(given_id):
    """Any text becomes a name, the first and the millionth, and so does any thread's id."""
    asked = AskedCall(given_id, given_id, "refund", "{}")
    assert is_token(thread_name(given_id))
    assert all(is_token(name) for name in id_names(asked))
    assert is_token(numbered(AskedCall(given_id, "", given_id, given_id), 999_999))


@given(st.lists(ASKED, min_size=1, max_size=8))
def test_two_calls_share_a_name_only_if_they_are_the_same(several):
    """Calls with different ids, tools or arguments have different names, in any order, and each
    keeps its name when it comes again.
    """
    recorded = Recorded()
    names = [recorded.request(asked) for asked in several]
    by_name: dict[str, AskedCall] = {}
    for asked, name in zip(several, names, strict=True):
        assert by_name.setdefault(name, asked) == asked
        assert recorded.request(asked) == name
    assert len(by_name) == len(set(several))


@given(ASKED.filter(lambda asked: bool(asked.call_id)))
def test_a_call_with_an_id_keeps_its_name_after_its_end(asked):
    """A call that ran is found again, so that it does not run again."""
    recorded = Recorded()
    name = recorded.request(asked)
    recorded.end(name)
    assert recorded.request(asked) == name


def test_a_call_without_an_id_is_another_one_after_its_end():
    """Two identical calls without ids are one until the first has ended."""
    recorded, asked = Recorded(), AskedCall("t1", "", "refund", "{}")
    first = recorded.request(asked)
    assert recorded.request(asked) == first
    recorded.end(first)
    assert recorded.request(asked) == f"{first}-2"
    assert recorded.request(asked) == f"{first}-2"


def test_a_call_of_a_later_turn_has_a_name_of_its_own():
    """It is another call than that of an earlier turn, whatever became of that one, and keeps its
    name when it comes again. Its name is nobody else's (B20).
    """
    recorded, first = Recorded(), AskedCall("t1", "call_0", "refund", "{}", 0)
    turns = [first, *(AskedCall("t1", "call_0", "refund", "{}", n) for n in (1, 2))]
    names = [recorded.request(one) for one in turns]
    assert [recorded.request(one) for one in turns] == names
    pairs = [("call_01", "{}"), ("call_0", "{}1")]
    others = [recorded.request(AskedCall("t1", id_, "refund", text)) for id_, text in pairs]
    assert len({*names, *others}) == 5


@pytest.mark.parametrize("number", [1, 2])
def test_an_id_of_the_form_that_is_made_here_joins_no_call(number):
    """An id that a model sends is not the name of a call without an id, though both are equal; nor
    of one whose own name was taken, nor of one of a later turn (B20).
    """
    recorded, unnamed = Recorded(), AskedCall("t1", "", "refund", "{}")
    for _ in range(number):
        made = recorded.request(unnamed)
        recorded.end(made)
    for other in (
        AskedCall("t1", "call_0", "refund", "[]"),
        taken := AskedCall("t1", "call_0", "refund", "{}"),
        later := AskedCall("t1", "call_0", "refund", "{}", number),
    ):
        recorded.request(other)
    for name in (made, recorded.request(taken), recorded.request(later)):
        assert recorded.request(AskedCall("t1", name, "refund", "{}")) != name


def test_a_call_without_an_id_that_is_in_doubt_is_not_asked_for_again():
    """Its process died, and nobody knows whether the tool ran: the next equal call is this one, and
    not one with the next number, which would run it again (I7).
    """
    recorded, asked = Recorded(), AskedCall("t1", "", "refund", "{}")
    name = recorded.request(asked)
    ref, digest = THREAD.call(name), recorded.call(name).wish.digest
    approved = e.Approved(digest=digest, ground="policy", rule="all", policy_version=1)
    recorded.record(ref.decided, approved)
    recorded.record(ref.client_claim(1), e.ToolStarted(digest=digest, idempotency_key="k"))
    recorded.record(ref.client_finished, e.InDoubt(attempt=1, text="It went silent."))
    assert recorded.call(name).status is Status.IN_DOUBT
    assert recorded.request(asked) == name
    recorded.version = "v2"
    assert recorded.request(asked) == name


def test_names_are_stable():
    """These names are in logs: another release must find the same calls."""
    assert thread_name("order-17") == "order-17"
    ids = ["toolu_01A", "9f3c5d1e-7a44-4b1c-8d7e-000000000012", "call_0", "refund-2", "x" * 64]
    assert [id_names(AskedCall("t", one, "refund", "{}"))[0] for one in ids] == ids
    assert id_names(AskedCall("t", "a b", "refund", "{}")) == (
        "hkzq4blzqm5y3hv7foklfo2yqhfw6s6rqsw3vklfr",
        "hppxnvgviif52slceeitg3cd6t5csrvmcvrtiiwng",
    )
    third = AskedCall("t", "call_0", "refund", "{}", 2)
    assert id_names(third) == ("hh35arzt54nunkk7eqcti5rerleiqvtgg3h6d6vi4",)
    unnamed = AskedCall("t", "", "refund", "{}")
    assert numbered(unnamed, 2) == "d6ggj6yorytj6m2qx4a4gbv2upq2cxq46us4gfqfj-2"


def test_a_repeated_id_with_other_arguments_is_another_call():
    """Servers that give `call_0` in every turn: the first keeps it, and each other call has a name
    made of the id and of what is called, in whatever order they come again.
    """
    recorded = Recorded()
    several = [AskedCall("t1", "call_0", "refund", f'{{"a":{n}}}') for n in range(3)]
    names = [recorded.request(one) for one in several]
    assert names == ["call_0", *(id_names(one)[1] for one in several[1:])]
    assert [recorded.request(one) for one in reversed(several)] == names[::-1]


def test_a_call_whose_names_are_all_taken_is_refused():
    """Somebody who knows how names are made cannot put another call in place of one."""
    recorded, asked = Recorded(), AskedCall("t1", "call_0", "refund", "{}")
    for name in id_names(asked):
        recorded.record(THREAD.call(name).decided, e.Withdrawn())
    with pytest.raises(NotOpen, match="'call_0' are taken by other calls"):
        recorded.request(asked)


@given(st.integers(1, 40))
def test_an_equal_call_without_an_id_is_found_in_few_looks(ended: int):
    """However many of its kind have ended, the next one is found in about 2 log2(n) looks."""
    recorded, asked = Recorded(), AskedCall("t1", "", "refund", "{}")
    for number in range(1, ended + 1):
        assert recorded.request(asked) == numbered(asked, number)
        recorded.end(numbered(asked, number))
    recorded.looks = 0
    assert recorded.request(asked) == numbered(asked, ended + 1)
    assert recorded.looks <= 2 * (ended + 1).bit_length()


def test_what_never_can_start_is_not_in_the_way_of_an_equal_call():
    """A call without an id that waits for a declaration which has changed since: asked again, it is
    a call of its own. One that was started is not, for it may have taken effect.
    """
    recorded, asked = Recorded(), AskedCall("t1", "", "refund", "{}")
    first = recorded.request(asked)
    recorded.version = "v2"
    second = recorded.request(asked)
    assert (first, second) == (numbered(asked, 1), numbered(asked, 2))
    digest = recorded.call(second).wish.digest
    recorded.record(
        THREAD.call(second).decided,
        e.Approved(digest=digest, ground="policy", rule="all", policy_version=1),
    )
    started = e.ToolStarted(digest=digest, idempotency_key="k")
    recorded.record(THREAD.call(second).client_claim(1), started)
    recorded.version = "v3"
    assert recorded.call(second).status is Status.RUNNING
    assert recorded.request(asked) == second


def test_a_name_with_facts_that_cannot_be_read_is_not_free():
    """A name whose request is missing or unreadable is passed over."""
    fact = Fact(1, NOW, THREAD.call("c").decided, e.Withdrawn())
    asked = AskedCall("t1", "c", "refund", "{}")
    assert not may_be(asked, call_of(THREAD.call("c"), [fact]), "v1")
