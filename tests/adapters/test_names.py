"""Names of calls: the same call has the same name, and two calls never share one."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from ayes.adapters.names import AskedCall, call_name, call_names, may_be, thread_name
from ayes.ledger.lifecycle import Call, call_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.ids import is_token
from ayes.schemas.slots import ThreadRef

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

    def call(self, name: str) -> Call:
        return call_of(THREAD.call(name), self.facts)

    def request(self, asked: AskedCall) -> str:
        name = call_name(asked, self.call)
        ref = THREAD.call(name)
        if self.call(name).requested is None:
            digest = call_digest(asked.tool, "v1", asked.arguments)
            wish = e.ToolRequested(
                tool=asked.tool, tool_version="v1", arguments=asked.arguments, digest=digest
            )
            self.facts.append(Fact(len(self.facts) + 1, NOW, ref.requested, wish))
        return name

    def end(self, name: str) -> None:
        slot = THREAD.call(name).decided
        self.facts.append(Fact(len(self.facts) + 1, NOW, slot, e.Withdrawn()))


@given(IDS.filter(bool))
def test_every_id_becomes_a_name_that_fits(given_id):
    """Any text becomes a name, the first and the millionth, and so does any thread's id."""
    asked = AskedCall(given_id, given_id, "refund", "{}")
    assert is_token(thread_name(given_id))
    assert is_token(f"{next(call_names(asked))}-999999")


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


def test_names_are_stable():
    """These names are in logs: another release must find the same calls."""
    assert thread_name("order-17") == "order-17"
    ids = ["toolu_01A", "9f3c5d1e-7a44-4b1c-8d7e-000000000012", "call_0", "refund-1"]
    assert [next(call_names(AskedCall("t", one, "refund", "{}"))) for one in ids] == ids
    hashed = {
        "a b": "h",
        "call_0-2": "h",
        "x" * 58: "h",
        "": "d",
    }
    for one, kind in hashed.items():
        name = next(call_names(AskedCall("t", one, "refund", "{}")))
        assert name[0] == kind
        assert len(name) == 41
    assert next(call_names(AskedCall("t", "a b", "refund", "{}"))) == (
        "hkzq4blzqm5y3hv7foklfo2yqhfw6s6rqsw3vklfr"
    )


def test_a_repeated_id_with_other_arguments_is_another_call():
    """Servers that give `call_0` in every turn get `call_0`, `call_0-2`, `call_0-3`."""
    recorded = Recorded()
    several = [AskedCall("t1", "call_0", "refund", f'{{"a":{n}}}') for n in range(3)]
    assert [recorded.request(one) for one in several] == ["call_0", "call_0-2", "call_0-3"]
    assert [recorded.request(one) for one in reversed(several)] == [
        "call_0-3",
        "call_0-2",
        "call_0",
    ]


def test_a_name_with_facts_that_cannot_be_read_is_not_free():
    """A name whose request is missing or unreadable is passed over."""
    fact = Fact(1, NOW, THREAD.call("c").decided, e.Withdrawn())
    assert not may_be(AskedCall("t1", "c", "refund", "{}"), call_of(THREAD.call("c"), [fact]))
