"""A log with every kind of event of a call, and the rows expected of its projections."""

import random
from collections import defaultdict

import msgspec
from stories import REF, SETTLED, START, UNSETTLED, Story, life

from ayes.ledger.validity import call_of
from ayes.projections import pending
from ayes.projections.history import history
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas.slots import ThreadRef

MODEL = "test:m"
TOOLS = ("refund", "look_up", "cancel")


def history_row(ref, facts):
    found = history(thread_of(ref, facts))
    return msgspec.json.encode(
        {"entries": found.entries, "stopped_at": found.stopped_at and str(found.stopped_at)}
    )


def call_row(call):
    decision, ended = call.decided, call.finished
    return {
        "call": str(call.ref),
        "tool": call.wish.tool,
        "status": call.status.value,
        "decision": decision and type(decision.event).__name__,
        "rule": getattr(decision and decision.event, "rule", ""),
        "voters": list(getattr(decision and decision.event, "voters", ())),
        "requested_at": _utc(call.requested),
        "decided_at": _utc(decision),
        "finished_at": _utc(ended),
    }


def _utc(fact):
    return fact and fact.recorded_at.isoformat().replace("+00:00", "Z")


def rebuilt(facts):
    """The rows that all three projections should hold, each from all of its facts at once."""
    threads, calls = defaultdict(list), defaultdict(list)
    for fact in facts:
        threads[fact.slot.thread_ref].append(fact)
        if (ref := fact.slot.call_ref) is not None:
            calls[ref].append(fact)
    made = [call_of(ref, tuple(its)) for ref, its in calls.items()]
    open_ = [entry for call in made if (entry := pending.entry(call)) is not None]
    return {
        "pending": {pending.key(entry.ref): pending.encode(entry) for entry in open_},
        "histories": {
            f"{ref.workspace}.{ref.thread}": history_row(ref, its) for ref, its in threads.items()
        },
        "calls": {pending.key(call.ref): call_row(call) for call in made},
    }


def one_log(threads, chance):
    """The threads' facts in one log, each thread's in its order, numbered as a broker would."""
    lanes = [
        [_of(fact, ThreadRef(REF.workspace, f"t{number}")) for fact in facts]
        for number, facts in enumerate(threads, 1)
    ]
    log = []
    while lanes := [lane for lane in lanes if lane]:
        fact = chance.choice(lanes).pop(0)
        seq = len(log) + 1
        log.append(
            msgspec.structs.replace(fact, seq=seq, recorded_at=START.replace(microsecond=seq))
        )
    return log


def _of(fact, ref):
    return msgspec.structs.replace(fact, slot=msgspec.structs.replace(fact.slot, thread=ref.thread))


def busy_log(length, seed=20261121):
    """Exactly so many facts of threads in which everything happens that can, by a fixed chance."""
    chance = random.Random(seed)
    endings = [*SETTLED, *UNSETTLED]
    threads, total = [], 0
    while total < length:
        facts = _random_thread(chance, endings)
        threads.append(facts)
        total += len(facts)
    return one_log(threads, chance)[:length]


def _random_thread(chance, endings):
    story = Story()
    story.tell(
        REF.opened,
        e.ThreadOpened(
            requester="rita",
            model=chance.choice(["", MODEL, MODEL]),
            max_turns=chance.choice([2, 100]),
        ),
    )
    turns = chance.randint(1, 4)
    for turn in range(1, turns + 1):
        story.say(f"turn {turn}, please", chance.choice(["user", "user", "note", "system"]))
        for attempt in range(1, chance.choice([2, 2, 3])):
            story.ask(turn, attempt)
        if chance.random() < 0.1:
            story.tell(REF.replied(turn), e.ModelFailed(error="overloaded"))
            continue
        wishes = [
            e.Wish(
                tool=chance.choice(TOOLS), arguments='{"order":"A-17"}', provider_id=f"call_{index}"
            )
            for index in range(chance.randint(0, 3))
        ]
        story.reply(turn, e.Text("Well,"), *wishes)
        choice = endings if turn == turns else SETTLED
        lanes = [
            life(REF.wish(turn, index), wish, chance.choice(choice))
            for index, wish in enumerate(wishes)
        ]
        while lanes := [lane for lane in lanes if lane]:
            slot, event = chance.choice(lanes).pop(0)
            story.tell(slot, event)
            if chance.random() < 0.15:
                story.say("and?")
            if (
                isinstance(event, e.ToolReturned)
                and slot.tail[2] == "finished"
                and chance.random() < 0.7
            ):
                story.tell(
                    slot.thread_ref.call(slot.tail[1]).late(9), e.ToolReturned(output="again")
                )
    if chance.random() < 0.3:
        story.say("thanks")
    return story.facts
