"""The queue of open approvals, and folds over a whole log."""

from collections import Counter
from datetime import timedelta, timezone

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stories import REF, SETTLED, START, UNSETTLED, Story, disorder, life, lives, question, request

from ayes.ledger.call import Call
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import Change
from ayes.ledger.validity import call_of, may_vote
from ayes.projections import pending
from ayes.projections.call_order import CallOrder
from ayes.projections.call_query import NOTHING, CallQuery
from ayes.projections.fold import ProjectionState
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas.errors import TooLarge
from ayes.schemas.slots import CallRef

REFUND = e.Wish(tool="refund", arguments='{"order": "A-17"}')
CALL = REF.call("c")


def asked(expires_in_s: float | None = 900) -> Story:
    story = Story()
    story.tell(CALL.requested, request(REFUND))
    story.tell(CALL.gated, question(REFUND, expires_in_s))
    return story


def call(story: Story) -> Call:
    return call_of(CALL, tuple(story.facts))


def test_an_open_approval_stands_with_all_that_a_reviewer_needs():
    """The entry has every byte of the arguments, who may vote, and until when (B22, B72)."""
    assert pending.entry(call(asked())) == pending.Entry(
        workspace="acme",
        thread="t1",
        call="c",
        tool="refund",
        arguments='{"order": "A-17"}',
        digest=request(REFUND).digest,
        rule="money",
        reason="moves money",
        requester="rita",
        agent="",
        voters=("*",),
        excluded=("rita",),
        votes_needed=1,
        requested_at=START + timedelta(seconds=1),
        gated_at=START + timedelta(seconds=2),
        expires_at=START + timedelta(seconds=902),
        due_at=START + timedelta(seconds=902),
        also=(),
        besides=(),
        denials_needed=1,
        may_break_glass=(),
        asked_as_well=(),
        seq=2,
        tool_version=request(REFUND).tool_version,
    )


def test_it_says_who_may_confirm_their_own_request():
    """And only then: other entries keep their bytes (B22)."""
    own = {"mode": "requester_confirms", "excluded": (), "own": ("rita", "olga-*")}
    story = Story()
    story.tell(CALL.requested, request(REFUND))
    story.tell(CALL.gated, msgspec.structs.replace(question(REFUND), **own))
    entry = pending.entry(call(story))
    assert pending.decode(pending.encode(entry)) == entry
    assert [entry.asks(name) for name in ("rita", "olga-1", "ana")] == [True, True, True]
    assert [entry.confirms(name) for name in ("rita", "olga-1", "ana")] == [True, True, False]
    assert b"mode" not in pending.encode(pending.entry(call(asked())))


def test_without_a_deadline_it_never_expires():
    """No deadline is told as none, not as one far away."""
    assert pending.entry(call(asked(None))).expires_at is None
    assert pending.entry(call(asked(None))).due_at is None


STAGED = msgspec.structs.replace(
    question(REFUND, 900),
    votes_needed=2,
    also=(e.Quorum(("sam",), name="@security"),),
    besides=(e.Quorum(("olga",)),),
    denials_needed=2,
    may_break_glass=("sam",),
    on_timeout="escalate",
    stages=(e.Stage(("lea",), 60),),
)


def test_all_who_must_agree_are_shown():
    """Whoever is asked, and who else must agree, and who may let it run alone, is in it (B72)."""
    story = Story()
    story.tell(CALL.requested, request(REFUND))
    story.tell(CALL.gated, STAGED)
    entry = pending.entry(call(story))
    assert (entry.also, entry.besides) == (STAGED.also, STAGED.besides)
    assert (entry.votes_needed, entry.denials_needed, entry.may_break_glass) == (2, 2, ("sam",))


def test_what_was_declared_of_it_is_in_it():
    """An entry without it has the bytes that it had before."""
    assert not {b"undoing", b"title", b"handed"} & set(
        pending.encode(pending.entry(call(asked()))).split(b'"')
    )
    undoing = e.Undoing("reversible", "charge", 60)
    story = Story()
    story.tell(CALL.requested, request(REFUND))
    story.tell(CALL.gated, msgspec.structs.replace(question(REFUND), undoing=undoing, title="T"))
    entry = pending.decode(pending.encode(pending.entry(call(story))))
    assert (entry.undoing, entry.title) == (undoing, "T")


def test_an_entry_changes_only_when_more_people_are_asked():
    """Before that it does not expire, only becomes due; then it shows who was asked as well."""
    story = Story()
    story.tell(CALL.requested, request(REFUND))
    story.tell(CALL.gated, STAGED)
    first = pending.entry(call(story))
    assert (first.expires_at, first.due_at) == (None, START + timedelta(seconds=902))
    story.tell(CALL.escalated(1), e.Escalated(voters=("lea",), expires_in_s=60))
    entry = pending.entry(call(story))
    assert entry.asked_as_well == ("lea",)
    assert entry.expires_at == entry.due_at == START + timedelta(seconds=63)
    changed = {"asked_as_well", "expires_at", "due_at"}
    assert {
        name for name in entry.__struct_fields__ if getattr(entry, name) != getattr(first, name)
    } == changed
    story.tell(CALL.announced, e.GlassBroken(reviewer="sam", reason="the shop burns"))
    assert pending.entry(call(story)) == entry
    assert queue(story.facts) == {pending.key(CALL): pending.encode(entry)}
    for order in (story.facts[::-1], [*story.facts, *story.facts[1:3]]):
        assert queue(order) == queue(story.facts)


@pytest.mark.parametrize(
    ("steps", "handed", "awaits"),
    [
        ("ana>no.name", {}, ()),
        ("ana>ben", {"ana": "ben"}, ("ben",)),
        ("ana>ben ana>cy", {"ana": "cy"}, ("cy",)),
        ("ana>ben ben>cy", {"ana": "ben", "ben": "cy"}, ("cy",)),
        ("ana>ben cy>dan", {"ana": "ben", "cy": "dan"}, ("ben", "dan")),
        ("ana>ben ben>ana", {"ben": "ana"}, ("ana",)),
        ("ana>ben ben>cy cy>ben", {"ana": "ben", "cy": "ben"}, ("ben",)),
    ],
)
def test_an_entry_says_who_handed_it_to_whom(steps, handed, awaits):
    """The newest last. A person who gets it back has not handed it over any more."""
    story = asked()
    for number, step in enumerate(steps.split()):
        by, to = step.split(">")
        story.tell(CALL.handed_by(by, number + 1), e.HandedOver(to=to))
    entry = pending.decode(queue(story.facts)[pending.key(CALL)])
    assert list((entry.handed or {}).items()) == list(handed.items())
    assert entry.awaits == awaits
    for order in (story.facts[::-1], [*story.facts, *story.facts[1:3]]):
        assert queue(order) == queue(story.facts)


def test_votes_leave_the_entry_as_it_is():
    """Until the gate decides, the queue shows the question and nothing else."""
    story = asked()
    before = pending.entry(call(story))
    story.tell(CALL.vote("ana"), e.Voted(verdict="approve", digest=request(REFUND).digest))
    assert pending.entry(call(story)) == before


@pytest.mark.parametrize("ending", [*SETTLED, *UNSETTLED])
def test_only_an_undecided_question_stands_in_the_queue(ending):
    """At each step of each life, the entry is there exactly while the call is pending (B83)."""
    story = Story()
    for slot, event in life(CALL, REFUND, ending):
        story.tell(slot, event)
        assert (pending.entry(call(story)) is not None) == (call(story).status is Status.PENDING)
    assert pending.entry(call(story)) is None


def test_a_question_whose_request_has_not_come_yet_waits():
    """Half of what a reviewer needs is not shown."""
    assert pending.entry(call_of(CALL, tuple(asked().facts[1:]))) is None


def test_the_bytes_read_back():
    """An entry is plain JSON that any client reads, its times in UTC."""
    entry = pending.entry(call(asked()))
    raw = pending.encode(entry)
    assert pending.decode(raw) == entry
    assert pending.decode(raw).ref == CALL
    assert msgspec.json.decode(raw)["expires_at"] == "2026-03-01T09:15:02Z"


def test_the_same_moment_gives_the_same_bytes_in_any_time_zone():
    """Where the broker's clock was read does not show (I11)."""
    here = [
        msgspec.structs.replace(
            fact, recorded_at=fact.recorded_at.astimezone(timezone(timedelta(hours=5)))
        )
        for fact in asked().facts
    ]
    assert pending.encode(pending.entry(call_of(CALL, tuple(here)))) == pending.encode(
        pending.entry(call(asked()))
    )


def test_a_key_names_one_call():
    """Workspace, thread and call, with dots that no id can hold (B24)."""
    assert pending.key(CallRef("acme", "t-1", "0_1")) == "acme.t-1.0_1"


def queue(facts) -> dict[str, bytes]:
    """What the fold over a whole log shows."""
    folding = ProjectionState(pending.OPEN_APPROVALS)
    for fact in facts:
        folding.apply(fact)
    return {row.key: row.value for row in folding.rows(pending.OPEN_APPROVALS)}


@given(lives(), st.data())
def test_the_queue_of_a_log_is_the_queue_of_its_calls(facts, data):
    """The fold over the whole log holds exactly the bytes that each call's own entry has, for any
    order and any number of deliveries (I11, I13).
    """
    thread = thread_of(REF, facts)
    # Cut the log anywhere: what is open depends on where it ends.
    facts = facts[: data.draw(st.integers(1, len(facts)))]
    calls = [call_of(REF.call(name), tuple(facts)) for name in thread.calls]
    expected = {
        pending.key(one.ref): pending.encode(pending.entry(one))
        for one in calls
        if pending.entry(one)
    }
    for order in (facts, data.draw(disorder(facts))):
        entries = queue(order)
        assert entries == expected
        assert list(entries) == sorted(entries)


def test_a_late_request_opens_nothing_again():
    """What is decided stays decided, when its request is delivered again or only now (B77, I13)."""
    story = asked()
    story.tell(CALL.decided, e.Withdrawn())
    for order in (story.facts, story.facts[::-1], [*story.facts, *story.facts[:2]]):
        assert queue(order) == {}


def test_what_comes_early_waits_for_what_comes_before_it():
    """A question is not shown before its request is there, folding says what lacks (I13)."""
    requested, gated = asked().facts
    folding = ProjectionState(pending.OPEN_APPROVALS)
    folding.apply(gated)
    assert list(folding.rows(pending.OPEN_APPROVALS)) == []
    assert folding.missing == range(1, 2)
    folding.apply(requested)
    assert len(list(folding.rows(pending.OPEN_APPROVALS))) == 1
    assert not folding.missing


def test_a_fold_skips_what_it_cannot_read():
    """A fact from the future changes no projection and stops none (I12)."""
    story = asked()
    before = queue(story.facts)
    story.tell(CALL.decided, e.Carried(type="Pondered", raw=b"{}"))
    assert queue(story.facts) == before != {}
    story.tell(CALL.claim(1), e.ToolStarted(digest="d", idempotency_key="k"))
    assert queue(story.facts) == before, "a claim before the decision is void"


TOOLS = ("refund", "ship", "ship_back")


def asked_at(
    seq: int, workspace: str = "acme", tool: str = "refund", asked_as_well=()
) -> pending.Entry:
    """The question that stands at that place of the log."""
    entry = pending.entry(call(asked()))
    return msgspec.structs.replace(
        entry,
        workspace=workspace,
        call=f"c{seq}",
        tool=tool,
        arguments=f'{{"amount": {seq % 4}}}' if seq % 5 else "{}",
        due_at=START + timedelta(minutes=seq * 5 % 7) if seq % 3 else None,
        asked_as_well=asked_as_well,
        seq=seq,
    )


def written(seq: int, stage: int = 0) -> tuple[str, bytes]:
    """An entry as it stands in the bucket, after N stages; its place says workspace and tool."""
    more = tuple(f"p{number}" for number in range(stage))
    entry = asked_at(seq, ("acme", "shop")[seq % 2], TOOLS[seq % 3], more)
    return pending.key(entry.ref), pending.encode(entry)


#: Queries, each with what it says.
CHOICES = {
    "": lambda one: True,
    "workspace:shop": lambda one: one.workspace == "shop",
    "thread:acme/t1": lambda one: one.workspace == "acme",
    "tool:ship*": lambda one: "ship" in one.tool,
    "workspace:acme tool:refund": lambda one: (one.workspace, one.tool) == ("acme", "refund"),
    "workspace:nobody": lambda one: False,
    "amount>1": lambda one: '"amount": 2' in one.arguments or '"amount": 3' in one.arguments,
    "refund -c3": lambda one: one.tool == "refund" and one.call != "c3",
}
ORDERS = {
    ("age", ""): lambda one: one.seq,
    ("-age", ""): lambda one: -one.seq,
    ("due", ""): lambda one: (one.due_at is None, one.due_at or START, one.seq),
    ("-due", ""): lambda one: (one.due_at is None, START - (one.due_at or START), one.seq),
    ("field:amount", ""): lambda one: (amount(one) is None, amount(one) or 0, one.seq),
    ("-field:amount", ""): lambda one: (amount(one) is None, -(amount(one) or 0), one.seq),
    ("-age", "tool"): lambda one: (one.tool, -one.seq),
    ("-field:amount", "rule"): lambda one: (amount(one) is None, -(amount(one) or 0), one.seq),
}


def amount(entry):
    return msgspec.json.decode(entry.arguments).get("amount")


def plainly(values, most, chosen, order=("age", "")) -> list[pending.Entry]:
    """What is listed, as anybody would find it: read all, leave out, sort, cut."""
    entries = filter(CHOICES[chosen], map(pending.decode, values))
    return sorted(entries, key=ORDERS[order])[:most]


#: What may happen to one call: it is put (again, at that stage), or deleted.
SAID = st.tuples(st.integers(1, 12), st.none() | st.integers(0, 2))


@given(st.lists(st.tuples(st.booleans(), st.lists(SAID, max_size=8)), max_size=12))
def test_what_is_kept_is_what_is_listed(story):
    """Put, put again, deleted, put back, in any order, and told all over again: after each change
    what is kept is what a fresh listing shows, and whoever goes by what differs has the same.
    """
    waiting, told = pending.PendingIndex(), {}
    there: dict[str, bytes] = {}
    for whole, said in story:
        there = {} if whole else there
        news = {
            written(seq)[0]: b"" if stage is None else written(seq, stage)[1] for seq, stage in said
        }
        there = {key: value for key, value in {**there, **news}.items() if value}
        differs = waiting.apply(Change(news, whole=whole))
        assert len({key for key, _ in differs}) == len(differs)
        for key, entry in differs:
            assert told.get(key) != entry
            told[key] = entry
        assert {key: entry for key, entry in told.items() if entry} == {
            key: pending.decode(value) for key, value in there.items()
        }
        assert len(waiting) == len(there)
        for chosen in CHOICES:
            for most in (None, 0, 3):
                expected = plainly(there.values(), most, chosen)
                query = CallQuery.parse(chosen)
                assert waiting.oldest(most, query) == expected
                assert pending.oldest(there, most, query).entries == expected


@given(
    st.lists(SAID, max_size=30),
    st.sampled_from([*CHOICES]),
    st.integers(1, 4),
    st.integers(700, 3_000),
    st.sampled_from([*ORDERS]),
)
def test_pages_are_what_is_listed(said, chosen, most, room, order):
    """Page after page gives each entry once, in any order, with the bytes of the bucket; none is
    longer than was asked for.
    """
    there: dict[str, bytes] = {}
    for seq, stage in said:
        there[written(seq)[0]] = b"" if stage is None else written(seq, stage)[1]
    there = {key: value for key, value in there.items() if value}
    waiting = pending.PendingIndex()
    waiting.apply(Change(there, whole=True))
    expected = plainly(there.values(), None, chosen, order)
    query, wanted = CallQuery.parse(chosen), CallOrder.parse(*order)
    found: list[bytes] = []
    after, more = None, True
    while more:
        page = waiting.page(most, room, query, after, order=wanted)
        assert page.waiting == len(expected)
        assert len(page.entries) <= most
        assert sum(len(bytes(raw)) + 1 for raw in page.entries) <= room
        assert page.entries or not expected
        found += map(bytes, page.entries)
        assert len(found) <= len(expected)
        more, after = page.more, page.after
    assert list(map(pending.decode, found)) == expected
    assert waiting.oldest(None, query, order=wanted) == expected
    if page.groups:
        assert page.groups == Counter(getattr(one, order[1]) for one in expected)
    assert set(found) <= set(there.values())


NAMES = st.sampled_from(("ana", "ben", "Ben", "lea"))


@given(NAMES, st.lists(NAMES | st.just("l*")), st.lists(NAMES), st.lists(NAMES), st.lists(NAMES))
def test_an_entry_asks_whom_the_call_asks(reviewer, voters, excluded, also, later):
    """It agrees with the rule for votes, where nobody has several accounts."""
    story = Story()
    story.tell(CALL.requested, request(REFUND))
    asking = msgspec.structs.replace(
        question(REFUND),
        voters=tuple(voters),
        excluded=tuple(excluded),
        also=(e.Quorum(tuple(also)),),
    )
    story.tell(CALL.gated, asking)
    if later:
        story.tell(CALL.escalated(1), e.Escalated(voters=tuple(later)))
    entry = pending.entry(call(story))
    vote = e.Voted(verdict="approve", digest=asking.digest)
    assert entry.asks(reviewer) is may_vote(call(story), vote, reviewer, START)


def test_a_page_goes_on_behind_what_is_gone():
    """What the last page ended with was decided meanwhile, and something older was asked: the next
    begins where it ended.
    """
    waiting = pending.PendingIndex()
    waiting.apply(Change(dict(map(written, (2, 4, 6, 8))), whole=True))
    page = waiting.page(2, 10_000)
    assert page.after == pending.PageCursor(4, written(4)[0])
    waiting.apply(Change({written(4)[0]: b"", **dict([written(3)])}, whole=False))
    page = waiting.page(2, 10_000, after=page.after)
    assert [pending.decode(raw).seq for raw in page.entries] == [6, 8]
    assert (page.waiting, page.more) == (4, False)
    assert waiting.page(2, 10_000, after=page.after) == pending.Page(4, (), more=False, after=None)


@given(st.lists(SAID, max_size=20), st.lists(SAID, max_size=20), st.sampled_from([*ORDERS]))
def test_in_any_order_pages_go_on_while_calls_come_and_go(before, meanwhile, order):
    """What is there all the time is listed once, whatever else happens between two pages."""
    waiting, there = pending.PendingIndex(), {}
    for seq, stage in before:
        there[written(seq)[0]] = b"" if stage is None else written(seq, stage)[1]
    waiting.apply(Change(dict(there), whole=True))
    stays = {key for key, value in there.items() if value}
    changes, found, page = iter(meanwhile), list[str](), None
    while page is None or page.more:
        page = waiting.page(2, 10_000, after=page and page.after, order=CallOrder.parse(*order))
        found += [pending.key(pending.decode(raw).ref) for raw in page.entries]
        if (change := next(changes, None)) is not None:
            key, value = written(change[0], change[1] or 0)
            waiting.apply(Change({key: b"" if change[1] is None else value}, whole=False))
            stays -= {key} if change[1] is None else set()
    assert all(found.count(key) == 1 for key in stays)


def test_what_is_searched_of_an_entry_goes_with_it():
    """It is written anew, or decided: no text of before is found, and none is kept."""
    waiting = pending.PendingIndex()
    key, first = written(2)
    waiting.apply(Change({key: first}, whole=True))
    assert len(waiting.oldest(None, CallQuery.parse("rita"))) == 1
    other = msgspec.structs.replace(pending.decode(first), requester="olga")
    waiting.apply(Change({key: pending.encode(other)}, whole=False))
    assert waiting.oldest(None, CallQuery.parse("rita")) == []
    assert len(waiting.oldest(None, CallQuery.parse("olga"))) == 1
    unknown = NOTHING._replace(secret=lambda _: None)
    key, third = written(3)
    waiting.apply(Change({key: third}, whole=False))
    assert len(waiting.oldest(None, CallQuery.parse("c3 amount"), unknown)) == 0
    assert len(waiting.oldest(None, CallQuery.parse("c3 amount"))) == 1
    waiting.apply(Change({}, whole=True))
    assert waiting._texts == {}


def test_an_entry_that_no_page_can_hold_is_named():
    """Rather than a page without it, or one that never ends."""
    waiting = pending.PendingIndex()
    waiting.apply(Change(dict(map(written, (1, 2))), whole=True))
    with pytest.raises(TooLarge, match=f"{written(1)[0]} has {len(written(1)[1])} bytes"):
        waiting.page(1, len(written(1)[1]))
    assert len(waiting.page(9, len(written(1)[1]) + 1).entries) == 1


@pytest.mark.parametrize(
    ("key", "covered"),
    [
        ("acme.t1.c", {"every", "workspace", "thread", "both"}),
        ("acme.t2.c", {"every", "workspace"}),
        ("acm.t1.c", {"every"}),
        ("acmes.t1.c", {"every"}),
        ("of another form", {"every"}),
    ],
)
def test_a_key_says_whose_an_entry_is(key, covered):
    """By whole names, and a key that is none belongs to nobody."""
    choices = {
        "every": "refund amount>1",
        "workspace": "workspace:acme",
        "thread": "thread:acme/t1",
        "both": "workspace:acme thread:t1",
        "neither": "workspace:shop thread:acme/t1",
    }
    found = {name for name, text in choices.items() if CallQuery.parse(text).covers(key)}
    assert found == covered


def test_an_entry_that_is_written_anew_keeps_its_place():
    """More people are asked about the oldest: it is told, and stays the oldest."""
    waiting = pending.PendingIndex()
    assert [
        entry.seq for _, entry in waiting.apply(Change(dict(map(written, (8, 2, 5))), whole=True))
    ] == [
        2,
        5,
        8,
    ]
    key, anew = written(2, 1)
    assert waiting.apply(Change({key: anew}, whole=False)) == [(key, pending.decode(anew))]
    assert [(one.seq, one.asked_as_well) for one in waiting.oldest()] == [
        (2, ("p0",)),
        (5, ()),
        (8, ()),
    ]


def test_what_is_told_twice_changes_nothing():
    """The same entry again, the same listing again, or the end of nothing, is no change."""
    waiting = pending.PendingIndex()
    all_of_it = dict(map(written, (1, 2, 3)))
    waiting.apply(Change(all_of_it, whole=True))
    before = waiting.oldest()
    for again in (
        Change(all_of_it, whole=True),
        Change(all_of_it, whole=False),
        Change({"a.b.c": b""}, whole=False),
    ):
        assert waiting.apply(again) == []
        assert waiting.oldest() == before


def test_a_value_that_is_no_entry_hides_no_other():
    """It is named, and the entries of this version are listed and counted without it."""
    values = dict([written(1), ("shop.t1.c3", b'{"seq":3,"of":"another version"}'), written(2)])
    assert [one.seq for one in pending.oldest(values, 2).entries] == [1, 2]
    found = pending.oldest(values, 3)
    assert ([one.seq for one in found.entries], found.waiting) == ([1, 2], 2)
    assert [one.key for one in found.unreadable] == ["shop.t1.c3"]
    waiting = pending.PendingIndex()
    waiting.apply(Change(values, whole=True))
    first = waiting.page(1, 10_000)
    assert [one.key for one in first.unreadable] == ["shop.t1.c3"]
    assert waiting.page(1, 10_000, after=first.after).unreadable == ()  # they were named


def test_an_entry_shows_whether_it_agrees_with_itself():
    """Its digest can be computed from the entry alone; one that was changed, and one of an older
    version that does not name the tool's version, are marked (H2, R1).
    """
    entry = pending.entry(call(asked()))
    assert entry.flaw == ""
    for changed in ({"arguments": '{"order":"coffee"}'}, {"tool": "look"}, {"tool_version": "v9"}):
        assert "do not decide by this entry" in msgspec.structs.replace(entry, **changed).flaw
    older = msgspec.json.decode(pending.encode(entry))
    del older["tool_version"]
    assert pending.decode(msgspec.json.encode(older)).tool == entry.tool
