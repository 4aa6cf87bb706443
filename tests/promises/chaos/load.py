"""The programs that use the ledger during the chaos: `load.py KIND NAME STORE JOURNAL SEED`.

* `desk`: a service. Twins, whose names differ in their last letter, request the same calls.
* `reviewer`: votes on what the queue shows.
* `rival`: fills slots of every kind with raw publishes, four writers for each slot.
* `rehearsal`: drives recorded conversations, one workspace after another.
* `packer`: packs what has been settled for some seconds, again and again.
* `model`: the worker of models, which no thread here asks.

SIGTERM ends each once the work in progress is done. All but the rivals are written as the
documentation says: after `Unavailable` they do the same again, after `Refused` they do not.
"""

import asyncio
import hashlib
import itertools
import json
import random
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, get_args

import nats
import nats.errors
from chaos_tools import CLIENTS, LASTS, RIVALS, WORKSPACE, function, spec
from journal import Journal, merged, now
from msgspec.structs import fields
from programs import SETTLED_S

from ayes.ledger.call import Call
from ayes.ledger.clients.reviewers import Ballot
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import AlreadyRecorded, AppendResult, Delivery, Recorded
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ops.actions.packing import PackedThread, pack_log
from ayes.ops.broker.accounts import REVIEWER, slots_of
from ayes.ops.broker.setup import apply_policy
from ayes.projections import pending
from ayes.projections.call_query import CallQuery
from ayes.schemas import events as e
from ayes.schemas.codec import encode
from ayes.schemas.errors import ApprovalsError, BrokerAway, Refused, Unavailable
from ayes.schemas.ids import new_id
from ayes.schemas.slots import FILLED_BY, ORGANISATION, CallRef, Slot, ThreadRef
from bench.rehearsal.rehearse import read_recordings, rehearse, review
from bench.rehearsal.scripted_reviewer import script_for

#: Calls in progress at a desk.
LANES = 3
#: Raw publishes to one slot at the same time, and the pause between two slots.
WRITERS_A_SLOT, PAUSE_S = 4, 0.3
#: Seconds between two orders of a lane.
ORDER_S = 2.0
#: By lane. The first one goes on in a thread that was packed long ago.
ORDERS_A_THREAD = (600, 12, 12)
#: How often an order is served again as if it were new, and after how many others: what is packed
#: has left the stream by then.
AGAIN, AGAIN_AFTER = 0.1, 100
ROOT = Path(__file__).resolve().parents[3]
RECORDED, AIRLINE = ROOT / "tests" / "data" / "small.jsonl", ROOT / "examples" / "airline.toml"


class Program:
    """What all have in common: a journal, dice, and a wish to end."""

    def __init__(self, name: str, store: Path, journal: Journal, seed: str) -> None:
        self.name, self.store, self.journal = name, store, journal
        self.dice = random.Random(f"{seed}/{journal.process}")
        #: Another one after each start, as the checker needs it.
        self.author = journal.process
        self.ends = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.ends.set)
        # `programs.py` starts this program with SIGTERM blocked.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    @asynccontextmanager
    async def ledger(self, role: str):
        """A ledger that writes down what is acknowledged; tried until a broker is there."""
        program = self

        class Noted(JetStream):
            async def append(
                self, slot: Slot, raw: bytes, event_id: str, after: int | None = None
            ) -> AppendResult:
                answer = await super().append(slot, raw, event_id, after)
                if isinstance(answer, Recorded | AlreadyRecorded):
                    program.acknowledged(slot.subject, event_id, answer.seq, raw)
                return answer

        async with Noted.connect(self.store, role=role, name=self.author, timeout_s=600) as log:
            yield Ledger.on(log, role, self.author)

    def acknowledged(self, slot: str, event_id: str, seq: int, raw: bytes) -> None:
        digest = hashlib.sha256(raw).hexdigest()
        self.journal.note("acknowledged", slot=slot, id=event_id, seq=seq, sha256=digest)

    async def do[T](self, did: str, ref: CallRef, do: Callable[[], Awaitable[T]], **how: Any) -> T:
        """Do something, and write down what this program was told."""
        asked = {"began": now(), "did": did, "call": str(ref), **how}
        try:
            told = await do()
        except ApprovalsError as problem:
            error = {"error": type(problem).__name__, "text": str(problem)}
            self.journal.note("refused", **asked, **error)
            raise
        if isinstance(told, Call):
            decided = told.decided.event.id if told.decided else ""
            self.journal.note("told", status=str(told.status), decision=decided, **asked)
        return told

    def earlier(self, kind: str) -> list[dict[str, Any]]:
        """What this program has written down before it was killed."""
        lines = merged(self.journal.folder, f"{self.name}.*.jsonl")
        return [line for line in lines if line["kind"] == kind]

    def unfinished(self) -> list[tuple[int, int]]:
        """The orders that it had begun then."""
        begun, done = (
            {(line["lane"], line["number"]) for line in self.earlier(kind)}
            for kind in ("order", "done")
        )
        return sorted(begun - done)

    async def until_ended(self, work: Coroutine[Any, Any, None]) -> None:
        ends, working = asyncio.create_task(self.ends.wait()), asyncio.create_task(work)
        await asyncio.wait({ends, working}, return_when=asyncio.FIRST_COMPLETED)
        for task in (ends, working):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await working

    async def rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.ends.wait(), seconds)


# ------------------------------------------------------------------------------------------- desks


async def desk(program: Program) -> None:
    async with program.ledger("service") as ledger:
        while not program.ends.is_set():
            with suppress(Unavailable):
                for name in CLIENTS:
                    await ledger.declare(WORKSPACE, spec(name))
                break
            await program.rest(1)
        async with asyncio.TaskGroup() as orders:
            for lane, number in program.unfinished():
                orders.create_task(_order(program, ledger, lane, number))
            for lane in range(LANES):
                orders.create_task(_lane(program, ledger, lane))


async def _lane(program: Program, ledger: Ledger, lane: int) -> None:
    # Twins number their orders from the same clock, so one that was away goes on with the other.
    first = int(asyncio.get_running_loop().time() / ORDER_S)
    for number in itertools.count(first):
        if program.ends.is_set():
            return
        await _order(program, ledger, lane, number)
        if program.dice.random() < AGAIN:
            await _order(program, ledger, lane, number - AGAIN_AFTER)
        early = number * ORDER_S - asyncio.get_running_loop().time()
        await program.rest(max(0.0, early) + program.dice.uniform(0, 0.3))


async def _order(program: Program, ledger: Ledger, lane: int, number: int) -> None:
    program.journal.note("order", lane=lane, number=number)
    dice = random.Random(f"{program.name[:-1]}/{lane}/{number}")
    thread = ThreadRef(WORKSPACE, f"{program.name[:-1]}{lane}-{number // ORDERS_A_THREAD[lane]}")
    tool = dice.choice(tuple(LASTS))
    arguments = {"order": f"A-{number}", "amount": dice.randint(1, 100)}
    await _served(program, ledger, thread.call(f"c{number}"), tool, arguments)
    program.journal.note("done", lane=lane, number=number)


async def _served(
    program: Program, ledger: Ledger, ref: CallRef, tool: str, arguments: dict[str, Any]
) -> None:
    run = function(tool, program.journal, program.author)
    while True:
        try:
            await program.do(
                "request", ref, lambda: ledger.request(ref, tool, arguments, requester="rita")
            )
            call = await program.do("decision", ref, lambda: ledger.decision(ref, timeout_s=600))
            if tool in CLIENTS and isinstance(call.decided and call.decided.event, e.Approved):
                await program.do("run", ref, partial(ledger.run, ref, run))
        except Unavailable:
            await asyncio.sleep(1)
        except Refused:
            return
        except ApprovalsError:  # no executor has declared the tool yet
            await program.rest(1)
            if program.ends.is_set():
                return
        else:
            return


# --------------------------------------------------------------------------------------- reviewers


_OWN = CallQuery.of(workspace=WORKSPACE)


async def reviewer(program: Program) -> None:
    """Votes on what it has not voted on yet, and denies one in eight."""
    async with program.ledger(f"{REVIEWER}{program.name}") as ledger:
        person, done = ledger.reviewer(program.name), set[CallRef]()
        while not program.ends.is_set():
            with suppress(ApprovalsError):
                values = await ledger.log.pending.entries()
                for entry in pending.oldest(values, 200, _OWN).entries:
                    ref = entry.ref
                    if program.name in entry.voters and ref not in done:
                        verdict = "deny" if program.dice.random() < 0.12 else "approve"
                        with suppress(Refused):
                            await program.do(
                                "vote",
                                ref,
                                partial(person.vote, ref, Ballot(verdict)),
                                verdict=verdict,
                            )
                        done.add(ref)
            await program.rest(program.dice.uniform(0.1, 0.6))


# ------------------------------------------------------------------------------------------ rivals


async def rival(program: Program) -> None:
    """Raw connections with the credentials of each role, as a program in another language."""
    store = Store(program.store)
    roles = [role for role in store.read().passwords if slots_of(role)]
    # Two connections each, which are to different nodes as often as not.
    clients = {role: [await _raw(program, store, role) for _ in range(2)] for role in roles}
    # Those of the organisation have no workspace of the rivals' own.
    kinds = [
        (role, shape)
        for role in roles
        for shape in sorted(slots_of(role))
        if ORGANISATION not in shape.split(".")
    ]
    for number in itertools.count():
        if program.ends.is_set():
            break
        role, pattern = program.dice.choice(kinds)
        subject = _fresh(pattern, f"{program.journal.process.replace('.', '-')}-{number}")
        async with asyncio.TaskGroup() as writers:
            for _, client in zip(range(WRITERS_A_SLOT), itertools.cycle(clients[role])):
                writers.create_task(_fill(program, client, subject))
        await program.rest(PAUSE_S)
    for client in itertools.chain(*clients.values()):
        with suppress(Exception):
            await asyncio.wait_for(client.close(), 2)


async def _raw(program: Program, store: Store, role: str) -> nats.NATS:
    login = store.login(role)
    urls = login.url.split(",")
    program.dice.shuffle(urls)
    while True:
        with suppress(nats.errors.Error, OSError, TimeoutError):
            return await nats.connect(
                urls,
                tls=ssl.create_default_context(cafile=login.ca) if login.ca else None,
                user=role,
                password=login.password,
                inbox_prefix=f"_INBOX.{role}._",
                ping_interval=3,
                max_outstanding_pings=2,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.3,
                connect_timeout=2,
                error_cb=_ignored,
            )
        await program.rest(1)


async def _ignored(_problem: Exception) -> None:
    """nats-py reports each attempt to connect again."""


def _fresh(pattern: str, name: str) -> str:
    """A slot of this pattern that nobody has used, in the rivals' workspace."""
    head, _, *rest = pattern.split(".")
    shape = _shape(rest)
    filled = [
        "1" if kind == "#" else name if token == "*" else token
        for token, kind in zip(rest, shape, strict=True)
    ]
    workspace = RIVALS if name in filled else f"{RIVALS}-{name}"
    return ".".join((head, workspace, *filled))


def _shape(rest: list[str]) -> list[str]:
    for shape in FILLED_BY:
        full = [*([] if shape[0].startswith("_") else ["*"]), *shape]
        if len(full) == len(rest) and all(
            kind in "*#%" or kind == token for kind, token in zip(full, rest, strict=True)
        ):
            return full
    return rest


async def _fill(program: Program, client: nats.NATS, subject: str) -> None:
    event = some_event(Slot.parse(subject))
    raw = encode(event)
    while not program.ends.is_set():
        try:
            reply = await client.request(subject, raw, timeout=4)
            answer = json.loads(reply.data)
        except (nats.errors.Error, TimeoutError, ValueError):
            await asyncio.sleep(0.2)
            continue
        code = answer.get("error", {}).get("err_code", 0)
        if not code:
            program.acknowledged(subject, event.id, answer["seq"], raw)
        elif code in PASSING:
            await asyncio.sleep(0.2)
            continue
        return


#: Refusals that pass (errors.json of nats-server): no leader for the moment, and a slot in which
#: another publish is in flight. A slot that is taken is 10077.
PASSING = (10008, 10118, 10164, 10201)


def some_event(slot: Slot) -> e.Event:
    """Some event that may be in this slot."""
    kind = slot.filled_by[0]
    given = {field.name: _value(field.type) for field in fields(kind) if field.required}
    return kind(**given | {"id": new_id(), "by": e.Author("rival", "rival")})


def _value(kind: Any) -> Any:
    if kind in (str, int, float, bool):
        return kind("1")
    if choices := get_args(getattr(kind, "__value__", kind)):
        first = choices[0]
        return () if Ellipsis in choices else _value(first) if isinstance(first, type) else first
    return ()


# ----------------------------------------------------------------------------------------- packers


async def packer(program: Program) -> None:
    """Rests between two runs, so that now one packs and now two."""
    async with program.ledger("admin") as ledger:
        await program.until_ended(_pack(program, ledger))


async def _pack(program: Program, ledger: Ledger) -> None:
    while True:
        began, packed, removed = now(), 0, 0
        with suppress(Unavailable):
            runs = pack_log(ledger, settled_for=timedelta(seconds=SETTLED_S))
            async with aclosing(runs) as threads:
                async for one in threads:
                    if isinstance(one, PackedThread):
                        assert not one.problem, one
                        packed, removed = packed + one.packed, removed + one.removed
            program.journal.note("packed", began=began, packed=packed, removed=removed)
        await program.rest(program.dice.uniform(0, 20))


async def model(program: Program) -> None:
    """Acknowledges each delivery, as the worker does if it has nothing to ask. Nothing leaves the
    stream before.
    """
    async with program.ledger("model") as ledger, ledger.log.deliveries("model") as deliveries:
        await program.until_ended(_acknowledge(deliveries))


async def _acknowledge(deliveries: AsyncIterator[Delivery]) -> None:
    async for one in deliveries:
        await one.ack()


# --------------------------------------------------------------------------------------- rehearsal


async def rehearsal(program: Program) -> None:
    """Again and again, each time in a new workspace: the same recorded conversations."""
    recorded = read_recordings(str(RECORDED))
    script = script_for("approve")
    async with (
        program.ledger("service") as service,
        program.ledger("operator") as operator,
        program.ledger(f"{REVIEWER}{script.name}") as person,
    ):
        done = sum(line["text"] == "done" for line in program.earlier("rehearsal"))
        for number in itertools.count(done + 1):
            workspace = f"rehearsal-{number}"
            while not program.ends.is_set():
                try:
                    await apply_policy(operator, workspace, AIRLINE.read_text(), str(AIRLINE))
                    await _rehearsed(service, person, workspace, recorded, script)
                except* ApprovalsError as problems:
                    program.journal.note("rehearsal", workspace=workspace, text=repr(problems))
                    await program.rest(1)
                else:
                    program.journal.note("rehearsal", workspace=workspace, text="done")
                    break
            if program.ends.is_set():
                return


async def _rehearsed(service: Ledger, person: Ledger, workspace: str, recorded, script) -> None:
    voting = asyncio.create_task(review(person, workspace, script))
    driving = asyncio.create_task(rehearse(service, workspace, recorded))
    done, _ = await asyncio.wait({voting, driving}, return_when=asyncio.FIRST_COMPLETED)
    for task in (voting, driving):
        task.cancel()
    await asyncio.gather(voting, driving, return_exceptions=True)
    for task in done:
        task.result()


async def main(kind: str, name: str, store: str, journal: str, seed: str) -> None:
    programs = {"desk": desk, "reviewer": reviewer, "rival": rival, "rehearsal": rehearsal}
    programs |= {"packer": packer, "model": model}
    process = Journal(Path(journal).parent, Path(journal).name)
    program = Program(name, Path(store), process, seed)
    while not program.ends.is_set():
        with suppress(BrokerAway):
            await programs[kind](program)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
