"""Conversations that are kept between two looks: quicker than making them anew, and never anything else."""

from itertools import pairwise, permutations

from hypothesis import given
from hypothesis import strategies as st
from stories import REF, Story, lives

from projections import kept as kept_module
from projections.history import NOTHING, Assistant, Outcome, User, history, history_from
from projections.kept import Kept
from projections.thread import evolve, thread_of
from schemas import events as e
from schemas.slots import ThreadRef

OTHER = ThreadRef("acme", "t2")
REFUND = e.Wish(tool="refund", arguments='{"order":"A-17"}', provider_id="call_a")


def settled_turns(count: int) -> tuple[Story, list[int]]:
    """A conversation of so many turns, each of which called a tool that ran; and where in it each turn ends."""
    story, ends = Story(), []
    story.tell(REF.opened, e.ThreadOpened(requester="rita", model="test:m"))
    for number in range(1, count + 1):
        story.say(f"message {number}")
        story.turn(number, e.Text("Well."), REFUND)
        story.live(number, 0, REFUND, "returned")
        ends.append(len(story.facts))
    return story, ends


@given(lives(), st.data())
def test_whatever_is_looked_at_in_whatever_order_the_answer_is_the_same(facts, data):
    """As far as any place of the log, with facts that a replica lacks, before any turn, and of several at once (I11, I13)."""
    kept = Kept(most=data.draw(st.sampled_from([1, 2])))
    for _ in range(data.draw(st.integers(1, 6))):
        there = facts[: data.draw(st.integers(0, len(facts)))]
        lacking = data.draw(st.sets(st.integers(0, len(facts)), max_size=2))
        there = tuple(fact for place, fact in enumerate(there) if place not in lacking)
        ref = data.draw(st.sampled_from([REF, OTHER]))
        thread = kept.thread(ref, there)
        assert thread == thread_of(ref, there)
        before = data.draw(st.none() | st.integers(1, 4))
        assert kept.history(thread, before) == history(thread, before)


@given(lives(), st.data())
def test_the_beginning_of_one_history_helps_only_where_another_begins_so(facts, data):
    """Handed the beginning of any other look at it, a history is what it is without (I11)."""
    lacking = data.draw(st.sets(st.integers(0, len(facts)), max_size=3))
    some = thread_of(REF, [fact for place, fact in enumerate(facts) if place not in lacking])
    whole = thread_of(REF, facts)
    turns = st.none() | st.integers(1, 4)
    for one, other in ((some, whole), (whole, some)):
        _, beginning = history_from(NOTHING, one, data.draw(turns))
        before = data.draw(turns)
        assert history_from(beginning, other, before)[0] == history(other, before)


def test_what_is_settled_is_put_together_once():
    """After a few more facts, turns and calls and entries that were there before are the very same things."""
    story, ends = settled_turns(3)
    kept = Kept()
    looks = []
    for end in (ends[0], ends[0] + 3, ends[1], ends[2]):
        thread = kept.thread(REF, tuple(story.facts[:end]))
        looks.append((thread, kept.history(thread).entries))
    for (thread, entries), (later, more) in pairwise(looks):
        settled = [call for call in thread.calls.values() if call.finished]
        assert settled
        assert all(later.calls[call.ref.call] is call for call in settled)
        [*_, last] = [place for place, entry in enumerate(entries) if isinstance(entry, Outcome)]
        assert all(more[place] is entries[place] for place in range(last + 1))


def test_a_reply_that_comes_late_is_told_where_it_belongs():
    """A turn that nobody answered shows nothing, until somebody does: then what stood behind it is told anew."""
    story = Story()
    story.tell(REF.opened, e.ThreadOpened(requester="rita", model="test:m"))
    story.say("first")
    story.ask(1)
    story.say("second")
    story.turn(2, e.Text("To the second."))
    kept = Kept()
    before = kept.history(kept.thread(REF, tuple(story.facts))).entries
    assert len(before) == 3
    story.reply(1, e.Text("To the first."))
    after = kept.history(kept.thread(REF, tuple(story.facts))).entries
    assert list(map(type, after)) == [User, Assistant, User, Assistant]


def test_each_message_is_told_that_was_there():
    """Whichever of the messages before a turn a reader lacks, and whichever it lacked before."""
    story = Story()
    story.tell(REF.opened, e.ThreadOpened(requester="rita", model="test:m"))
    for text in ("first", "second", "third"):
        story.say(text)
    story.turn(1, e.Text("To all of them."))
    views = [tuple(fact for fact in story.facts if fact.seq != lacking) for lacking in (0, 2, 3, 4)]
    for one, other in permutations(views, 2):
        kept = Kept()
        kept.history(kept.thread(REF, one))
        assert kept.history(kept.thread(REF, other)) == history(thread_of(REF, other))


def test_many_facts_at_once_are_no_slower_than_a_thread_made_anew(monkeypatch):
    """Put in one by one, each would copy the thread: of ten thousand that would take seconds."""
    copies = []

    def counted(thread, fact):
        copies.append(fact)
        return evolve(thread, fact)

    monkeypatch.setattr(kept_module, "evolve", counted)
    story, _ = settled_turns(40)
    kept = Kept()
    kept.thread(REF, tuple(story.facts[:20]))
    assert kept.thread(REF, tuple(story.facts)) == thread_of(REF, story.facts)
    assert copies == []
    story.say("one more")
    assert kept.thread(REF, tuple(story.facts)) == thread_of(REF, story.facts)
    assert copies == story.facts[-1:]


def test_no_more_are_kept_than_it_is_told():
    """The conversation that nobody has looked at for longest is let go of."""
    kept = Kept(most=2)
    for number in range(5):
        kept.thread(ThreadRef("acme", f"t{number}"), ())
    assert list(kept._known) == [ThreadRef("acme", "t3"), ThreadRef("acme", "t4")]
