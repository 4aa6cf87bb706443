"""Bugs that the simulation must find: each replaces a function of the product by a wrong one.

    with planted("stale reads are believed"):
        simulate(seed=1)

Each has a number of the review that found it (D1 to D3), or is a mistake that the code could have.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from zlib import crc32

import hostile
from msgspec import structs

from ayes.consumers import delegator, gate, model, worker
from ayes.consumers.effects import Append
from ayes.consumers.executor import ClaimedRun, Executor
from ayes.consumers.pending_projector import PendingProjector, PendingState
from ayes.consumers.worker import Worker
from ayes.ledger import objections, packs, replica, validity
from ayes.ledger.call import Call, attempt_of
from ayes.ledger.clients import client
from ayes.ledger.clients.client import LedgerClient
from ayes.ledger.clients.reviewers import Reviewer
from ayes.ledger.clients.services import Ledger
from ayes.ledger.in_memory import Lagging
from ayes.ledger.judging import stopping, verdict, votes
from ayes.ledger.log import RawMessage, Unconfirmed
from ayes.ledger.nats import jetstream, removed
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.stops import Stop, stops_of
from ayes.ops.actions import packing
from ayes.projections import thread
from ayes.projections.thread import Thread
from ayes.schemas import events as e
from ayes.schemas import people
from ayes.schemas.errors import OutcomeUnknown, Unavailable

#: An owner (a module or class), a name in it, and what it is replaced with.
type Change = tuple[object, str, object]

ALL: Final[dict[str, Callable[[], Iterator[Change]]]] = {}
#: Those that can be found in worlds with packs only.
PACKED: Final[set[str]] = set()


def bug_of_packs(make: Callable[[], Iterator[Change]]) -> Callable[[], Iterator[Change]]:
    PACKED.add(make.__name__.replace("_", "-"))
    return bug(make)


def bug(make: Callable[[], Iterator[Change]]) -> Callable[[], Iterator[Change]]:
    ALL[make.__name__.replace("_", "-")] = make
    return make


@contextmanager
def planted(name: str) -> Generator[None]:
    """Plant the bug of that name; an empty name plants none."""
    with ExitStack() as stack:
        for owner, attribute, wrong in ALL[name]() if name else ():
            right = vars(owner)[attribute]
            stack.callback(setattr, owner, attribute, right)
            setattr(owner, attribute, wrong)
        yield


# ------------------------------------------------------------------------------------------- reads


@bug
def stale_reads_are_believed() -> Iterator[Change]:
    """D1: a client does not remember the last fact that it knows of."""
    yield Lagging, "_advance", lambda self, seq: None


@bug
def refusals_are_not_confirmed() -> Iterator[Change]:
    """D1: a refusal because of a missing fact is believed of any replica."""
    for owner in (Ledger, Reviewer):
        for name, method in list(vars(owner).items()):
            if hasattr(method, "__wrapped__"):
                yield owner, name, method.__wrapped__


@bug
def absence_is_believed() -> Iterator[Change]:
    """A replica that is behind is believed that there is nothing."""

    async def read(self: hostile.Connection, *subjects: str) -> Any:
        last = await self._replicas_last()
        there = await self.process.ask(lambda: self.broker.read(*subjects))
        return tuple(fact for fact in there if fact.seq <= last)

    yield hostile.Connection, "read", read


@bug
def the_queue_reads_its_entry_anywhere() -> Iterator[Change]:
    """D2: a replica that is behind says that a decided call has no entry."""
    load = PendingProjector.load

    async def stale(self: PendingProjector, ledger: Ledger, handed: Any) -> PendingState:
        seen = await load(self, ledger, handed)
        is_behind = isinstance(handed.event, e.Approved) and handed.seq % 3 == 0
        return structs.replace(seen, value=b"", revision=0) if is_behind else seen

    yield PendingProjector, "load", stale


@bug
def the_queue_trusts_the_order() -> Iterator[Change]:
    """The delivered fact alone decides about the entry, whatever else is recorded."""
    decide = PendingProjector.decide

    def at_its_word(self: PendingProjector, seen: PendingState, handed: Any) -> Any:
        call = seen.call
        if handed.slot.tail[2] != "decided":
            call = Call(call.ref, call.requested, call.gated, escalated=call.escalated)
        return decide(self, structs.replace(seen, call=call), handed)[:1]

    yield PendingProjector, "decide", at_its_word


# ------------------------------------------------------------------------------------------ claims


@bug
def a_claim_is_forgotten() -> Iterator[Change]:
    """D3: a claim that cannot be read back is not run, and is taken for another's afterwards."""

    async def start(self: Ledger, ref: Any, lease_s: float) -> Call:
        slot, started = await self._new_claim(ref, lease_s)
        await self.append_exclusive(slot, started)
        return await self.call(ref, must_include=slot)

    yield Ledger, "_claim_once", start


@bug
def an_unknown_claim_is_tried_again() -> Iterator[Change]:
    """A claim without a result is followed by another, whatever the tool is."""
    yield Executor, "_again", lambda self, seen: [self._claim(seen.call)]


@bug
def a_service_passes_over_claims() -> Iterator[Change]:
    """A service claims the next attempt if somebody has claimed the call."""

    async def new_claim(self: Ledger, ref: Any, lease_s: float) -> Any:
        known = await self.known_call(ref)
        started = e.ToolStarted(digest=known.digest, idempotency_key=str(ref))
        await self.check(known, known.claim_slot, started)
        return known.claim_slot, self.with_envelope(started)

    yield Ledger, "_new_claim", new_claim


@bug
def a_claim_before_its_approval_counts() -> Iterator[Change]:
    """A call may be claimed and run before it is decided."""
    check = LedgerClient.check

    async def lenient(self: LedgerClient, call: Call, slot: Any, event: e.Event) -> None:
        if not isinstance(event, e.ToolStarted):
            await check(self, call, slot, event)

    yield LedgerClient, "check", lenient
    yield validity, "_unapproved", lambda call, fact: None
    yield validity, "_void_claim", lambda call, fact: None
    yield Call, "flaw", property(lambda self: None)


@bug
def the_digest_is_not_checked() -> Iterator[Change]:
    """What was approved may be other bytes than those that run."""
    yield Call, "flaw", property(lambda self: None)
    yield validity, "_void_claim", lambda call, fact: None


@bug
def a_dead_executors_claim_is_left() -> Iterator[Change]:
    """Nobody says that a call is in doubt whose executor has died."""
    yield Executor, "_again", lambda self, seen: ()


# --------------------------------------------------------------------------------------- decisions


@bug
def a_person_counts_twice() -> Iterator[Change]:
    """Two accounts of one person are two people."""
    for module in (people, votes, objections):
        yield module, "person", lambda account, accounts=None: people.plain(account)


@bug
def the_requester_counts() -> Iterator[Change]:
    """People may vote on what they asked for."""
    yield objections, "is_excluded", lambda account, excluded, accounts: False


@bug
def the_editor_counts() -> Iterator[Change]:
    """Whoever edits the arguments approves them as well."""
    yield votes, "_agreeing", lambda asking, said, ballots: ballots


@bug
def only_the_first_quorum_counts() -> Iterator[Change]:
    """The people who must agree too are not asked for."""
    yield votes, "asked", lambda asking: ((e.Quorum(asking.voters, asking.votes_needed),),)


@bug
def a_timer_beats_a_decision() -> Iterator[Change]:
    """Once the deadline has passed the call expires, though people decided in time."""
    decided = verdict._decided

    def in_a_hurry(case: Any, now: Any) -> Any:
        call = case.call
        if call.gated is not None and call.due is not None and now >= call.due:
            case = structs.replace(case, call=structs.replace(call, votes=()))
        return decided(case, now)

    yield verdict, "_decided", in_a_hurry


@bug
def votes_after_the_deadline_count() -> Iterator[Change]:
    yield Call, "deadline", property(lambda self: None)


@bug
def a_deadline_is_early() -> Iterator[Change]:
    """A timer is believed, whatever the time."""
    decided = verdict._decided

    def at_once(case: Any, now: Any) -> Any:
        return decided(case, case.call.due or now)

    yield verdict, "_decided", at_once


@bug
def a_requester_waits_for_ever() -> Iterator[Change]:
    """How long they said that they wait is not heeded."""
    yield Call, "awaited_until", property(lambda self: None)


@bug
def approvals_are_valid_for_ever() -> Iterator[Change]:
    """What was approved on Friday starts on Monday."""
    yield Call, "valid_until", property(lambda self: None)


@bug
def timers_are_set_once() -> Iterator[Change]:
    """A gate that finds people asked already does not set the timer."""
    steps = gate._steps

    def once(case: Any, handed: Any) -> Any:
        found = steps(case, handed)
        asked = case.call.gated is not None
        return [step for step in found if not (asked and isinstance(step, gate.SetTimer))]

    yield gate, "_steps", once


@bug
def an_old_message_supersedes() -> Iterator[Change]:
    """A message from before the request makes the call moot."""

    def said_ever(ref: Any, facts: Any) -> Any:
        said = (one for one in facts if isinstance(one.event, e.Said) and one.event.role == "user")
        return next(said, None)

    yield gate, "said_since", said_ever


@bug
def a_grants_use_is_not_taken() -> Iterator[Change]:
    yield gate, "_spending", lambda case, approved: []


@bug
def a_budget_is_not_used() -> Iterator[Change]:
    """A gate looks at the sum, and adds nothing to it."""
    yield gate, "_budget_uses", lambda case, approved: []


@bug
def calls_spend_in_slots_of_their_own() -> Iterator[Change]:
    """Two gates that do not know of each other's call both spend what is left."""

    def apart(case: Any, approved: Any) -> Any:
        return [
            structs.replace(use, slot=one.ref.used(crc32(use.event.call.encode()) % 10**8 + 1))
            for one in case.budgets
            for use in uses(structs.replace(case, budgets=(one,)), approved)
        ]

    uses = gate._budget_uses
    yield gate, "_budget_uses", apart


@bug
def a_policy_is_known_for_ever() -> Iterator[Change]:
    """A gate goes on judging by the first policy that it read."""
    in_force = LedgerClient._in_force

    async def cached(self: LedgerClient, workspace: str, before: int | None = None) -> Any:
        known = vars(self).setdefault("_for_ever", {})
        if workspace not in known:
            known[workspace] = await in_force(self, workspace, before)
        return known[workspace]

    yield LedgerClient, "_in_force", cached


# ------------------------------------------------------------------------------------------- stops


@bug
def a_stop_is_read_too_late() -> Iterator[Change]:
    """An executor that has claimed a call runs it, though a stop came before the claim."""
    execute = Executor.execute

    async def at_once(self: Executor, ledger: Ledger, work: ClaimedRun) -> Append | None:
        call = await ledger.call_patiently(work.call, must_include=work.call.claim(work.attempt))
        unstopped = validity.call_of(call.ref, call.facts)
        if not any(attempt_of(start) == work.attempt for start in unstopped.starts):
            return await execute(self, ledger, work)
        slot = call.end_slot or call.late_slot
        return Append(slot, await self._outcome(work), fallback_slot=call.late_slot)

    yield Executor, "execute", at_once


@bug
def a_service_runs_what_is_stopped() -> Iterator[Change]:
    """A service that has claimed a call does not look whether the claim counts."""

    async def hopeful(self: Ledger, ref: Any, slot: Any, started: e.Event, after: int) -> Call:
        await self.append_exclusive(slot, started, after)
        return await self.call(ref, must_include=slot)

    yield Ledger, "_record_claim", hopeful


@bug
def a_stop_that_has_ended_is_forgotten() -> Iterator[Change]:
    """An executor does not come back to a call whose stop ends before it has looked again."""
    execute = Executor.execute

    async def once(self: Executor, ledger: Ledger, work: ClaimedRun) -> Append | None:
        call = await ledger.call_patiently(work.call, must_include=work.call.claim(work.attempt))
        is_void = all(attempt_of(start) != work.attempt for start in call.starts)
        is_over = call.stop(await ledger.log.clock()) is None
        return None if is_void and is_over else await execute(self, ledger, work)

    yield Executor, "execute", once


@bug
def a_stop_is_forgotten_when_one_resumes() -> Iterator[Change]:
    """Whoever says that a stop should end has ended it."""

    def lenient(facts: Any, workspace: str = "") -> tuple[Stop, ...]:
        return tuple(
            structs.replace(one, ended=next(iter(one.resumed), one.ended))
            for one in stops_of(facts, workspace)
        )

    for module in (validity, thread):
        yield module, "stops_of", lenient


@bug
def anybody_may_resume() -> Iterator[Change]:
    """The gate counts everybody who resumed, whomever the policy names."""
    yield stopping, "_counted", lambda stop, *_: tuple(one.slot.tail[4] for one in stop.resumed)


@bug
def a_stop_does_not_keep_the_gate() -> Iterator[Change]:
    """What is requested while a stop covers it is approved at once."""
    steps = gate._steps

    def unstopped(case: Any, handed: Any) -> Any:
        return steps(structs.replace(case, call=structs.replace(case.call, stops=())), handed)

    yield gate, "_steps", unstopped


@bug
def what_the_gate_holds_is_not_looked_at_again() -> Iterator[Change]:
    """An approval that waits for the end of a stop waits for a vote or a message."""
    steps = gate._steps

    def once(case: Any, handed: Any) -> Any:
        found, is_open = steps(case, handed), case.call.decided is None and case.call.due is None
        return [one for one in found if not (is_open and isinstance(one, gate.SetTimer))]

    yield gate, "_steps", once


@bug
def models_are_asked_while_stopped() -> Iterator[Change]:
    async def unchecked(ledger: Ledger, thread: Thread) -> None:
        pass

    yield model, "_check_not_stopped", unchecked


# ------------------------------------------------------------------------------ workers and models


@bug
def acknowledged_before_appended() -> Iterator[Change]:
    """A delivery is acknowledged when it comes."""
    handle = Worker._handle_one

    async def at_once(self: Any, place: Any, delivery: Any) -> None:
        await delivery.ack()
        await handle(self, place, delivery)

    yield Worker, "_handle_one", at_once


@bug
def a_lost_slot_ends_it() -> Iterator[Change]:
    """A worker that lost a slot does not look whether more is to be done."""
    carry_out = Worker._carry_out

    async def once(self: Any, steps: Any, handed: Any) -> None:
        await carry_out(self, steps, handed)

    yield Worker, "_carry_out", once


@bug
def an_unknown_append_is_taken_for_done() -> Iterator[Change]:
    won = Worker._won

    async def hopeful(self: Any, step: Any, cause: Any) -> Any:
        try:
            return await won(self, step, cause)
        except OutcomeUnknown:
            return 0

    yield Worker, "_won", hopeful


@bug
def what_failed_is_acknowledged() -> Iterator[Change]:
    """A delivery is settled though the broker could not be read."""
    settle = Worker._settle

    async def content(self: Any, place: Any, delivery: Any) -> str:
        try:
            return await settle(self, place, delivery)
        except Unavailable:
            return ""

    yield worker.Worker, "_settle", content


@bug
def a_retry_is_a_new_event() -> Iterator[Change]:
    """A result whose answer was lost is recorded again, under another id."""

    async def again(
        self: LedgerClient,
        slot: Any,
        event: e.Event,
        *,
        cause: Any = None,
        fallback_slot: Any = None,
    ) -> Any:
        while True:
            anew = self.with_envelope(structs.replace(event, id=""), cause)
            answer = await self.append(slot, anew, fallback_slot=fallback_slot)
            if not isinstance(answer, Unconfirmed):
                return getattr(answer, "first", None)

    yield LedgerClient, "append_until_acknowledged", again


@bug
def a_late_result_is_shown() -> Iterator[Change]:
    """A result that came after the end takes its place."""
    yield validity, "_is_late", lambda call, fact: False


@bug
def a_turn_does_not_wait() -> Iterator[Change]:
    """The model is asked again as soon as one of its calls has ended."""
    unsettled = Thread.unsettled

    def some(self: Thread, turn: int) -> Any:
        found = unsettled(self, turn)
        return found if len(found) == len(self.wishes(turn)) else ()

    yield Thread, "unsettled", some


@bug
def only_the_first_wish_is_requested() -> Iterator[Change]:
    replied = gate.replied
    yield gate, "replied", lambda facts, reply, wishes: replied(facts, reply, wishes[:1])


# ----------------------------------------------------------------------------------- sub-agents


@bug
def a_withdrawal_stops_after_one_level() -> Iterator[Change]:
    """What is asked two levels below a withdrawn call goes on waiting for people."""
    below, chain = gate._below, client.chain_above

    async def shallow(ledger: Any, call: Any, withdrawn: Any) -> Any:
        found = await below(ledger, call, withdrawn)
        near = [one for one in found.cases if one.call.ref.thread_ref == call.ref.below]
        return structs.replace(found, cases=tuple(near))

    async def nearest(opened: Any, read: Any) -> Any:
        found = await chain(opened, read)
        return structs.replace(found, over="")

    yield gate, "_below", shallow
    yield client, "chain_above", nearest


@bug
def the_chain_above_is_not_read() -> Iterator[Change]:
    """What a sub-agent asks is judged like any other call."""

    async def none(opened: Any, read: Any) -> Any:
        return gate.Chain()

    yield client, "chain_above", none


@bug
def a_sub_agent_ends_with_its_first_reply() -> Iterator[Change]:
    """The first reply is taken for the last one."""
    outcome = delegator.outcome

    def hasty(thread: Any, attempt: int) -> Any:
        first = thread.turns.get(1)
        if first is not None and first.reply is not None:
            return e.ToolReturned(output="Done.", attempt=attempt)
        return outcome(thread, attempt)

    yield delegator, "outcome", hasty


# ----------------------------------------------------------------------------------------- packs


@bug_of_packs
def appends_have_no_condition() -> Iterator[Change]:
    """A slot whose fact was packed and removed is free."""
    headers = jetstream._headers
    yield jetstream, "_headers", lambda slot, after, packed: headers(slot, after, None)


@bug_of_packs
def a_pack_is_known_from_any_reading() -> Iterator[Change]:
    """The condition counts packs in which the writer has not looked for its slot."""

    def remember(self: JetStream, newest: RawMessage) -> None:
        thread = newest.subject.rsplit(".", 2)[0]
        known = self._packed.get(thread, packs.NONE)
        number = max(packs.number_of(newest.subject), known.number)
        self._packed[thread] = packs.PackedNames(number, known.names)

    yield JetStream, "_remember", remember


@bug_of_packs
def a_replica_takes_the_later_fact() -> Iterator[Change]:
    """Of two facts in one slot the one that the log brought last counts."""
    partition = replica._Partition
    add = partition.add

    def later(self: Any, raw: RawMessage) -> int:
        if raw.subject in self and self.whole is not False:
            self._facts.pop(raw.subject, None)
            self._unread[raw.subject] = raw
        return add(self, raw)

    yield partition, "add", later


@bug_of_packs
def the_later_fact_counts() -> Iterator[Change]:
    """Of two facts in one slot the one with the higher number counts."""

    def merged(live: Any, of: Any, is_wanted: Any = lambda _subject: True) -> list[RawMessage]:
        inside = (one for pack in of for one in packs.unpacked(pack) if is_wanted(one.subject))
        every = sorted((*live, *inside), key=lambda one: one.seq)
        last = {one.subject: one for one in every}
        return sorted(last.values(), key=lambda one: one.seq)

    yield packs, "merged", merged


@bug_of_packs
def packs_are_not_read() -> Iterator[Change]:
    """What is read of a thread is what its stream has."""

    async def none(self: JetStream, stream: str, subjects: tuple[str, ...]) -> tuple[str, ...]:
        return ()

    yield JetStream, "_packs_for", none


@bug_of_packs
def a_followers_gaps_are_left() -> Iterator[Change]:
    """Whoever follows the log has what its stream delivers."""

    async def up_to(self: Any, last: int) -> list[RawMessage]:
        self.skip(last)
        return []

    yield removed.Removed, "up_to", up_to


@bug_of_packs
def what_a_worker_waits_for_is_removed() -> Iterator[Change]:
    async def all_of_it(log: Any) -> list[Any]:
        return []

    yield packing, "_unacknowledged", all_of_it
