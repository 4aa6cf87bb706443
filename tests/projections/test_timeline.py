"""Timelines: a thread in the order in which its model reads it, each call as one item."""

from hypothesis import given
from stories import REF, Story, disorder, life, lives

from ayes.projections.history import Assistant, Note, Outcome, System, User, history, outcome
from ayes.projections.thread import Turn, is_settled, thread_of
from ayes.projections.timeline import Cycle, timeline
from ayes.schemas import events as e
from ayes.schemas.codec import Fact

REFUND = e.Wish(tool="refund", arguments='{"order":"A-17"}', provider_id="call_a")


def brief(facts) -> list[str]:
    """A timeline as one short word for each item."""
    return [
        item.event.text if isinstance(item, Fact)
        else f"turn {item.number}" if isinstance(item, Turn)
        else f"{item.call.ref.call} {item.call.status}"
        for item in timeline(thread_of(REF, facts))
    ]  # fmt: skip


def said(facts) -> list[object]:
    """What a history would hold of these items, up to the first call that is not settled."""
    found: list[object] = []
    items = timeline(thread_of(REF, facts))
    for item in items:
        match item:
            case Fact(event=event):
                kinds = {"system": System, "user": User, "note": Note}
                named = () if event.role == "system" else (event.name,)
                found.append(kinds[event.role](event.text, *named))
            case Turn(number=number, reply=reply) if reply is not None:
                cycles = [one for one in items if isinstance(one, Cycle) and one.wish is not None]
                own = [one for one in cycles if one.call.ref.wish[0] == number]
                if not all(is_settled(one.call) for one in own):
                    return found
                found.append(Assistant(number, reply.parts))
            case Cycle(call, wish) if wish is not None:
                found.append(outcome(call, wish))
    return found


@given(lives())
def test_a_timeline_has_what_the_history_has_in_its_order(facts):
    """People read what the model reads, in the same order (B3, B16)."""
    told = history(thread_of(REF, facts)).entries
    assert said(facts)[: len(told)] == list(told)
    assert not any(isinstance(entry, Outcome) for entry in said(facts)[len(told) :])


@given(lives().flatmap(lambda facts: disorder(facts).map(lambda mixed: (facts, mixed))))
def test_the_order_of_delivery_does_not_matter(both):
    """Facts that come twice or in any order give the same timeline (I13)."""
    facts, mixed = both
    assert timeline(thread_of(REF, facts)) == timeline(thread_of(REF, mixed))


def test_an_approval_cycle_is_one_item_and_what_was_said_meanwhile_follows_it():
    """Facts of a call are grouped at the call, whatever was said between them (B3, B4)."""
    story = Story().say("refund me").turn(1, REFUND)
    for slot, event in life(REF.wish(1, 0), REFUND, "returned"):
        story.tell(slot, event)
        story.say(f"after {slot.tail[-1]}")
    items = brief(story.facts)
    assert items[:3] == ["refund me", "turn 1", "1-0 returned"]
    assert all(one.startswith("after ") for one in items[3:])


def test_a_timeline_goes_on_after_a_pending_call():
    """A history stops before the turn of a pending call; its timeline does not."""
    story = Story().turn(1, REFUND).tell_all(life(REF.wish(1, 0), REFUND, "approved")[:2])
    story.say("hurry")
    assert brief(story.facts) == ["turn 1", "1-0 pending", "hurry"]


def test_a_call_of_a_service_stands_where_it_was_requested():
    """Calls with ids of a service's own are in the order of their requests."""
    story = Story().say("first").tell_all(life(REF.call("refund-1"), REFUND, "denied"))
    story.say("second")
    assert brief(story.facts) == ["first", "refund-1 refused", "second"]
