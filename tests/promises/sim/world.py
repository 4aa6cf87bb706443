"""A world with a seed: services, people, a model and workers on a hostile broker.

    world = simulate(seed=7, calls=200)
    world.log, world.journal      # for `checker`
    world.digest                  # the same for the same seed, in each process

Everything here but the tools, the model and the people is the real code. What happens:

* Two workspaces with policies that allow, ask (one person, two people, two quorums, with deadlines
  and stages) and block. In one of them a later version blocks what people were asked about before.
* In each workspace twin services request the same calls at the same time, wait, and run those that
  clients run. Some try to run a call that is not decided; some withdraw it.
* Threads with a scripted model, whose wishes executors run, and users who go on talking.
* Agents that models call as tools, up to three levels deep, and somebody who withdraws some of
  those calls while they run.
* Reviewers who vote on what the queue shows, for and against, with edits, in another's place, with
  two accounts of one person; who give grants, revoke approvals, and reconcile.
* In every other world people who stop workspaces, agents, tools or everything, also without the
  right to, and resume.
* Two of each worker. All processes are killed and started again, paused, and cut off.
* A rogue who records decisions about other bytes, claims without an approval, and facts of a newer
  program.
* In worlds whose seed begins with `packed` two packers, whose log lets packed facts leave its
  stream, and somebody who fills slots again that are empty then.

After a time everything is well again (`heal`), and all calls must come to their ends.
"""

import asyncio
import hashlib
import json
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import simulated_time
from hostile import CALM, HOSTILE, Broker, Connection, Hostility, Process
from hostile_stream import StreamBroker, StreamConnection
from msgspec import Struct, structs

from ayes.consumers.delegator import Delegator, SubAgent
from ayes.consumers.doubt import in_doubt, keep_index
from ayes.consumers.executor import Executor
from ayes.consumers.gate import Gate
from ayes.consumers.model import ModelReply, ModelRequest, ModelWorker
from ayes.consumers.pending_projector import PendingProjector
from ayes.consumers.tools import Registered
from ayes.consumers.worker import Worker
from ayes.ledger.call import Call
from ayes.ledger.clients.reviewers import Ballot
from ayes.ledger.clients.services import Ledger
from ayes.ledger.descriptions import STOPPED
from ayes.ledger.log import AlreadyRecorded, AppendResult, EventLog, Recorded
from ayes.ledger.nats import jetstream, refilled
from ayes.ledger.replica import ReadReplica
from ayes.ledger.subscriptions import ACK_WAIT_S
from ayes.ledger.tool_runner import idempotency_key
from ayes.ops.actions import packing
from ayes.ops.actions.stops import stops_in
from ayes.projections.history import Outcome as ReadOutcome
from ayes.schemas import events as e
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import (
    ApprovalsError,
    BrokerAway,
    BrokerRefused,
    NotOpen,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from ayes.schemas.policy import applied
from ayes.schemas.slots import (
    ORGANISATION,
    ROOT,
    CallRef,
    DelegationRef,
    GrantRef,
    Slot,
    StopRef,
    ThreadRef,
    policy_slot,
)
from ayes.schemas.tools import ToolSpec, declaration

#: Seconds of trouble, and the longest time until everything must have come to its end.
TROUBLE_S = 120.0
HEALING_S = 1800.0
#: How old a pack is when its facts leave the stream: two minutes would be all the trouble.
REMOVED_AFTER = timedelta(seconds=8)

_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"order": {"type": "string"}, "amount": {"type": "integer"}},
        "required": ["order", "amount"],
    }
)
#: By name: who runs it, and whether it may run again.
TOOLS = {
    "look": ("client", False),
    "pay": ("client", False),
    "drop": ("client", False),
    "find": ("executor", True),
    "refund": ("executor", False),
    "wire": ("executor", False),
    "sync": ("executor", True),
    "ask": ("client", False),
}
#: The tool that is an agent itself. Services do not request it.
AGENT = "ask"
_SPECS = {
    name: ToolSpec(name=name, schema=_SCHEMA, run_by=run_by, repeatable=repeatable)
    for name, (run_by, repeatable) in TOOLS.items()
}

_POLICY = """
while_pending = "{while_pending}"
deny_repeats = 1
may_reconcile = ["cai"]
may_stop = ["ana", "ben"]
may_resume = ["ben", "cai"]
resumes_needed = 2
[people]
ben = ["ben-mobile"]
[[rule]]
name = "reads"
tools = ["look", "find", "ask"]
then = "allow"
[[rule]]
name = "refunds"
tools = ["refund", "sync"]
then = "ask"
expires_in_s = 40
valid_for_s = 4
[[rule]]
name = "payments"
tools = ["pay"]
then = "ask"
voters = ["ana", "ben", "ben-mobile"]
also = [{{voters = ["ben", "cai"]}}]
break_glass = ["cai"]
[[rule]]
name = "wires"
tools = ["wire"]
then = "ask"
voters = ["ana", "ben", "ben-mobile"]
votes_needed = 2
denials_needed = 2
expires_in_s = 15
on_timeout = "escalate"
stages = [{{voters = ["cai"], expires_in_s = 20}}]
[[rule]]
name = "never"
tools = ["drop"]
then = "block"
[[budget]]
name = "reading"
tools = ["look", "find"]
amount = "/amount"
limit = 150
then = "block"
"""
_STRICTER = """
[[rule]]
name = "no large ones"
tools = ["wire", "pay"]
when = "args.amount > 50"
then = "block"
"""
#: The workspaces, and what happens to a message while a call is pending.
WORKSPACES = {"shop": "supersede", "bank": "queue"}
_WORKERS = ("gate", "executor", "queue", "model", "delegator")
#: The deepest level at which a sub-agent still asks another one.
_DEPTH = 3
#: The subscriptions to the log whose workers are in this world.
_DURABLES = (*Gate.durables, "queue", "model", "executor", "delegator")
#: Programs that have trouble of their own, so that worlds without them are as they were before.
_PACKERS = ("packer-1", "packer-2")
PEOPLE = ("ana", "ben", "ben-mobile", "cai")
#: The people who stop and resume; not all of them may do both.
STOPPING = ("ana", "ben", "cai")
#: What a stop is limited to.
_LIMITS: tuple[dict[str, tuple[str, ...]], ...] = (
    {},
    {"agents": ("helper",)},
    {"agents": ("b*",)},
    {"tools": ("pay", "wire", "sync")},
    {"tools": ("ask", "f*")},
    {"requesters": ("rita",)},
)


class Order(Struct, frozen=True):
    """A call that twin services are to request, and what they do with it."""

    ref: CallRef
    at_s: float
    tool: str
    arguments: str
    requester: str
    withdrawn_after_s: float | None
    impatient: bool
    is_urgent: bool
    #: How long its services wait for people.
    expires_in_s: float | None


class Told(Struct, frozen=True):
    """What a seed led to."""

    seed: str
    log: list[dict[str, Any]]
    journal: list[dict[str, Any]]
    digest: str


def simulate(seed: int | str, calls: int = 200, hostility: Hostility = HOSTILE) -> Told:
    """Live through the world of that seed."""
    world = World(str(seed), calls, hostility)
    with (
        patch.object(packing, "REMOVED_AFTER", REMOVED_AFTER),
        patch.object(refilled, "LOOKED_FOR", REMOVED_AFTER / 2),
        patch.object(jetstream, "time", SimpleNamespace(monotonic=simulated_time.passed_s)),
    ):
        return simulated_time.run(world.live())


class World:
    def __init__(self, seed: str, calls: int, hostility: Hostility) -> None:
        self.seed, self.hostility = seed, hostility
        self.lot = random.Random(f"{seed}/world")
        self.people_stop = random.Random(f"{seed}/stops").random() < 0.5
        self.is_packed = seed.startswith("packed")
        # Nothing leaves the stream that a worker still waits for.
        self.ack_wait_s = ACK_WAIT_S / 3 if self.is_packed else ACK_WAIT_S
        self.journal: list[dict[str, Any]] = []
        self.is_healing = False
        self.orders = {
            workspace: self._orders(workspace, calls * 3 // 10) for workspace in WORKSPACES
        }
        # About six wishes for each thread of a model.
        self.threads = [
            ThreadRef(workspace, f"chat-{number}")
            for number in range(max(1, calls // 30))
            for workspace in WORKSPACES
        ]
        self._ids = 0
        self._calls_up: list[asyncio.Task[None]] = []
        self._incarnations: dict[str, int] = {}
        self._programs: dict[str, Process] = {}
        #: All that ever ran: nothing of a dead process may be collected while the world lives.
        self._ran: list[tuple[Process, asyncio.Task[None]]] = []

    def _orders(self, workspace: str, count: int) -> list[Order]:
        """Every fourth order is for the same tool as the one before, at once: both spend."""
        orders: list[Order] = []
        for number in range(count):
            order = self._order(workspace, number)
            if number % 4 == 3:
                order = structs.replace(order, tool=orders[-1].tool, at_s=orders[-1].at_s)
            orders.append(order)
        return orders

    def _order(self, workspace: str, number: int) -> Order:
        lot = self.lot
        tool = lot.choice([one for one in TOOLS if one != AGENT])
        arguments = {"order": f"A-{number}", "amount": lot.randint(1, 100)}
        return Order(
            ThreadRef(workspace, f"orders-{number % 5}").call(f"c{number}"),
            lot.uniform(1, TROUBLE_S * (0.3 if self.is_packed else 0.8)),
            tool,
            json.dumps(arguments),
            lot.choice(("rita", "rita", "rita", "ana", "Ben")),
            lot.uniform(0, 20) if lot.random() < 0.1 else None,
            lot.random() < 0.15,
            lot.random() < 0.3,
            5.0 + number % 40 if number % 9 == 0 else None,
        )

    # ------------------------------------------------------------------------------------ the story

    async def live(self) -> Told:
        make = partial(StreamBroker, durables=_DURABLES) if self.is_packed else Broker
        options = {"now": simulated_time.now, "ack_wait_s": self.ack_wait_s}
        self.broker: Broker = make(self.seed, CALM, **options)
        try:
            await self._live()
        finally:
            self.broker.is_over = True
        return self._told()

    async def _live(self) -> None:
        await self._found()
        self.broker.hostility = self.hostility
        for name, program in self._cast().items():
            self._start(name, program)
        # Those who stop, and packers, have trouble of their own: a world without them is as it was
        # before.
        stopping = [f"stops-{name}" for name in STOPPING if self.people_stop]
        apart = {"rogue", "refiller", "users", *stopping, *_PACKERS}
        others = [name for name in self._programs if name not in apart]
        trouble = [asyncio.create_task(self._trouble("trouble", others, 4))]
        if stopping:
            trouble.append(asyncio.create_task(self._trouble("stopping", stopping, 20)))
        if self.is_packed:
            trouble.append(asyncio.create_task(self._trouble("packing", [*_PACKERS], 8)))
        await asyncio.sleep(TROUBLE_S)
        for task in trouble:
            task.cancel()
        await self._heal()

    def _cast(self) -> dict[str, Callable[[Process], Awaitable[None]]]:
        """All programs, by name."""
        cast: dict[str, Callable[[Process], Awaitable[None]]] = {
            "up": lambda process: self._work(process, _WORKERS),
        }
        for kind in _WORKERS:
            cast[kind] = lambda process, kind=kind: self._work(process, (kind,))
        for workspace in WORKSPACES:
            for twin in (1, 2):
                cast[f"desk-{workspace}-{twin}"] = lambda process, workspace=workspace: self._serve(
                    process, workspace
                )
        for name in PEOPLE:
            cast[f"reviewer-{name}"] = lambda process, name=name: self._review(process, name)
        cast["users"] = self._talk
        cast["boss"] = self._take_back
        cast["rogue"] = self._meddle
        for name in STOPPING if self.people_stop else ():
            cast[f"stops-{name}"] = lambda process, name=name: self._stop_and_resume(process, name)
        if self.is_packed:
            cast |= dict.fromkeys(_PACKERS, self._pack) | {"refiller": self._refill}
        return cast

    async def _found(self) -> None:
        """Policies, tools and threads, before anything goes wrong."""
        admin = self._ledger(Process(self.broker, "admin"), "admin")
        for workspace, while_pending in WORKSPACES.items():
            policy = applied(_POLICY.format(while_pending=while_pending))
            await admin.append(policy_slot(workspace, 1), policy)
            for spec in _SPECS.values():
                await admin.declare(workspace, spec)
        for thread in self.threads:
            tools = tuple(
                [
                    await admin.declare(thread.workspace, spec)
                    for name, spec in _SPECS.items()
                    if spec.run_by == "executor" or name == AGENT
                ]
            )
            opened = e.ThreadOpened(requester="rita", model="test:m", tools=tools, agent="bot")
            await admin.append(thread.opened, opened)
            await admin.append(thread.said("m0"), e.Said(role="user", text="Help me."))
        now = simulated_time.now()
        away = e.Delegated(
            to="ana", starts_at=now, ends_at=now + timedelta(hours=1), tools=("pay",)
        )
        await admin.append(DelegationRef("shop", "cai", "away").given, away)

    # --------------------------------------------------------------------------------- processes

    def _ledger(self, process: Process, role: str) -> Ledger:
        author = e.Author(kind=role.partition("-")[0], name=process.name)
        connection = self._log(process, partial(self._acknowledged, process))
        # No decision and no refusal may rest on a program's own clock.
        wrong_by_s = process.lot.uniform(-3600, 3600)

        def now() -> datetime:
            return simulated_time.now() + timedelta(seconds=wrong_by_s)

        return Ledger(connection, author, now=now, new_id=self._new_id)

    def _log(self, process: Process, *told: Callable[..., None]) -> EventLog:
        return (StreamConnection if self.is_packed else Connection)(process, *told)

    def _new_id(self) -> str:
        self._ids += 1
        return f"id-{self._ids}"

    def _start(self, name: str, program: Callable[[Process], Awaitable[None]]) -> None:
        number = self._incarnations[name] = self._incarnations.get(name, 0) + 1
        process = Process(self.broker, f"{name}.{number}")

        async def life() -> None:
            try:
                await program(process)
            except Exception as problem:  # noqa: BLE001 - the checker judges it
                self._note(
                    "ended", process=process.name, why=f"{type(problem).__name__}: {problem}"
                )
            await asyncio.Event().wait()

        self._programs[name] = process
        self._ran.append((process, asyncio.create_task(life())))

    def _kill(self, name: str) -> None:
        process = self._programs[name]
        process.kill()
        self._note("died", process=process.name)

    async def _trouble(self, stream: str, names: list[str], every_s: float) -> None:
        cast, lot = self._cast(), random.Random(f"{self.seed}/{stream}")
        starting: set[asyncio.Task[None]] = set()

        async def again(name: str, after_s: float) -> None:
            await asyncio.sleep(after_s)
            self._start(name, cast[name])

        while True:
            await asyncio.sleep(lot.expovariate(1 / every_s))
            name = lot.choice(names)
            process = self._programs[name]
            if not process.is_alive:
                continue
            loop = asyncio.get_running_loop()
            match lot.choice(("kill", "kill", "pause", "cut")):
                case "kill":
                    self._kill(name)
                    starting.add(asyncio.create_task(again(name, lot.uniform(0.2, 10))))
                case "pause":
                    process.paused_until = loop.time() + lot.choice((1, 5, 20, 45))
                case "cut":
                    process.cut_until = loop.time() + lot.uniform(1, 20)

    async def _heal(self) -> None:
        """Everything is well again; wait until nothing happens any more."""
        self.broker.hostility = structs.replace(CALM, latency_s=self.hostility.latency_s)
        self.is_healing = True
        cast = self._cast()
        for name, process in list(self._programs.items()):
            process.paused_until = process.cut_until = 0.0
            if not process.is_alive:
                self._start(name, cast[name])
        self._start("operator", self._operate)
        loop = asyncio.get_running_loop()
        until, quiet_since, last = loop.time() + HEALING_S, loop.time(), 0
        # Longer than each deadline. A delivery that a dead process had asked for comes again later.
        while loop.time() < until and (loop.time() - quiet_since < 75 or await self._is_at_work()):
            await asyncio.sleep(5)
            if (now := await self.broker.last_seq()) != last:
                quiet_since, last = loop.time(), now

    async def _is_at_work(self) -> bool:
        """Whether a worker has a delivery that it has not acknowledged, or is to have one."""
        for durable in _DURABLES:
            progress = await self.broker.progress(durable)
            assert progress
            if progress.waiting or progress.in_hand:
                return True
        return False

    # ------------------------------------------------------------------------------------ workers

    async def _work(self, process: Process, kinds: tuple[str, ...]) -> None:
        roles = {"delegator": "service-delegator"}
        ledgers = {kind: self._ledger(process, roles.get(kind, kind)) for kind in kinds}
        replica = ReadReplica(self._log(process))
        following = asyncio.create_task(replica.run())
        tools = {
            name: Registered(spec, self._tool(process, name))
            for name, spec in _SPECS.items()
            if spec.run_by == "executor"
        }
        make: dict[str, Callable[[], Any]] = {
            "gate": Gate,
            "executor": lambda: Executor(tools),
            "queue": PendingProjector,
            "model": lambda: ModelWorker({"test": _Script(self, process)}),
            "delegator": lambda: Delegator({AGENT: _HELPER}),
        }
        options = {"replica": replica, "ack_wait_s": self.ack_wait_s}
        workers = [Worker(ledgers[kind], make[kind](), **options) for kind in kinds]
        running = [following, *(worker.run() for worker in workers)]
        if "queue" in kinds:
            running.append(keep_index(ledgers["queue"]))
        await asyncio.gather(*running)

    def _tool(self, process: Process, name: str) -> Callable[..., Awaitable[str]]:
        async def tool(**arguments: Any) -> str:
            await process.step()
            call, lot = idempotency_key.get(), process.lot
            run = {"call": call, "tool": name, "process": process.name}
            self._note("tool", did="started", arguments=arguments, **run)
            await process.sleep(lot.choice((0.01, 0.1, 0.5, 3, 8)))
            self._note("tool", did="ended", **run)
            if lot.random() < 0.1:
                raise LookupError("no such order")
            return f"{name} {arguments['order']}"

        return tool

    # ----------------------------------------------------------------------------------- services

    async def _serve(self, process: Process, workspace: str) -> None:
        ledger = self._ledger(process, f"service-{workspace}")

        async def serve(order: Order) -> None:
            await self._served(process, ledger, order)
            if self.is_packed:  # and once more, as if it had forgotten that: what it did is packed
                await process.sleep(process.lot.uniform(10, 60))
                await self._served(process, ledger, order)

        await asyncio.gather(*map(serve, self.orders[workspace]))

    async def _served(self, process: Process, ledger: Ledger, order: Order) -> None:
        """As the README's service: request, wait, run; and again as long as no broker answers."""
        loop, ref = asyncio.get_running_loop(), order.ref
        if order.at_s > loop.time():
            await process.sleep(order.at_s - loop.time() + process.lot.uniform(0, 0.5))
        tool = self._tool(process, order.tool)
        client = TOOLS[order.tool][0] == "client"

        async def run() -> None:
            await ledger.run(ref, tool)

        while True:
            try:
                call = await self._do(
                    process,
                    "request",
                    ref,
                    lambda: ledger.request(
                        *(ref, order.tool, order.arguments),
                        requester=order.requester,
                        expires_in_s=order.expires_in_s,
                    ),
                )
                if order.is_urgent:
                    self._calls_up.append(asyncio.create_task(self._call_up(ref)))
                if order.impatient and client:
                    await self._try(process, "run", ref, run)
                if order.withdrawn_after_s is not None:
                    await process.sleep(order.withdrawn_after_s)
                    await self._try(
                        process, "withdraw", ref, lambda: ledger.withdraw(ref, "not needed")
                    )
                call = await self._do(process, "decision", ref, lambda: ledger.decision(ref))
                if client and isinstance(call.decided and call.decided.event, e.Approved):
                    await self._do(process, "run", ref, run)
            except Unavailable:
                await process.sleep(1)
            except NotOpen as problem:
                if STOPPED not in str(problem):
                    return
                await process.sleep(2)
            except Refused:
                return
            else:
                return

    async def _take_back(self, process: Process) -> None:
        """Withdraws every other call of an agent while it runs."""
        ledger, seen = self._ledger(process, "service-boss"), set[CallRef]()
        while True:
            await process.sleep(process.lot.uniform(1, 5))
            with suppress(Unavailable):
                subject = f"{ROOT}.*.*.call.*.claim.client.1"
                claims = await self.broker.read(subject)
                running = {fact.slot.call_ref for fact in claims if fact.slot.call_ref}
                for ref in sorted(running - seen, key=str):
                    call = await ledger.call(ref)
                    seen.add(ref)
                    if (
                        call.requested is None
                        or call.wish.tool != AGENT
                        or process.lot.random() < 0.5
                    ):
                        continue
                    await process.sleep(process.lot.uniform(0, 4))
                    await self._try(process, "withdraw", ref, lambda ref=ref: ledger.withdraw(ref))

    async def _call_up(self, ref: CallRef) -> None:
        """Somebody tells ben of a call, who votes before the queue may show it."""
        process = self._programs["reviewer-ben"]
        await process.sleep(process.lot.uniform(0.05, 0.5))
        reviewer = self._ledger(process, "reviewer-ben").reviewer("ben")
        await self._try(process, "vote", ref, lambda: reviewer.approve(ref), verdict="approve")

    async def _operate(self, process: Process) -> None:
        """Sees to calls in doubt, those of services that died included."""
        ledger = self._ledger(process, "service-operator")
        reviewer = self._ledger(process, "reviewer-cai").reviewer("cai")

        while True:
            for found in await in_doubt(ledger):
                ref = CallRef(found.workspace, found.thread, found.call)
                await self._try(process, "doubt", ref, lambda ref=ref: ledger.doubt(ref))
                await self._try(
                    process,
                    "reconcile",
                    ref,
                    lambda ref=ref: reviewer.reconcile(ref, happened=True, output="seen"),
                )
            await process.sleep(15)

    # ------------------------------------------------------------------------------------- people

    async def _review(self, process: Process, name: str) -> None:
        ledger = self._ledger(process, f"reviewer-{name}")
        reviewer, lot = ledger.reviewer(name), process.lot
        voted, ignored, late = set[str](), set[str](), list[asyncio.Task[None]]()
        if name == "ana":
            await self._grant(process, ledger)
        while True:
            try:
                entries = await ledger.log.pending.entries()
            except Unavailable:
                entries = {}
            for key, raw in entries.items():
                if key in voted or (key in ignored and not self.is_healing):
                    continue
                entry = json.loads(raw)
                if not self.is_healing and lot.random() < 0.4:
                    ignored.add(key)
                    if entry["expires_at"] and lot.random() < 0.5:
                        late.append(asyncio.create_task(self._vote_late(process, reviewer, entry)))
                elif await self._vote(process, reviewer, entry):
                    voted.add(key)
            await process.sleep(lot.uniform(0.5, 4) if not self.is_healing else 10)

    async def _vote_late(self, process: Process, reviewer: Any, entry: dict[str, Any]) -> None:
        """Vote at about the deadline."""
        left = datetime.fromisoformat(entry["expires_at"]) - simulated_time.now()
        await process.sleep(max(0.0, left.total_seconds() - process.lot.uniform(0.04, 0.18)))
        await self._vote(process, reviewer, entry)

    async def _vote(self, process: Process, reviewer: Any, entry: dict[str, Any]) -> bool:
        """Vote on it; returns whether that is settled."""
        lot, ref = process.lot, CallRef(entry["workspace"], entry["thread"], entry["call"])
        how: dict[str, Any] = {"digest": entry["digest"]}
        verdict = lot.choices(("approve", "deny", "answer"), (8, 2, 1))[0]
        if verdict == "approve" and not self.is_healing and lot.random() < 0.15:
            how["arguments"] = json.dumps(json.loads(entry["arguments"]) | {"amount": 1})
        if verdict == "answer":
            how["answer"] = "It is on its way."
        if reviewer.name in entry["may_break_glass"] and lot.random() < 0.2:
            verdict, how = "break_glass", {"reason": "The house burns."}
        try:
            await self._do(
                process,
                "vote",
                ref,
                lambda: reviewer.vote(ref, Ballot(verdict, **how)),
                verdict=verdict,
            )
        except Unavailable:
            return False
        except ApprovalsError:
            return "arguments" not in how  # else without an edit, the next time
        if lot.random() < 0.1:
            await process.sleep(lot.uniform(0, 2))
            await self._try(process, "revoke", ref, lambda: reviewer.revoke(ref, reason="no"))
        return True

    async def _grant(self, process: Process, ledger: Ledger) -> None:
        for workspace in WORKSPACES:
            ref = GrantRef(workspace, "ana", f"g{process.name.rpartition('.')[2]}")
            with suppress(ApprovalsError):
                await ledger.reviewer("ana").grant(ref, "refund", for_s=60, uses=3)

    async def _stop_and_resume(self, process: Process, name: str) -> None:
        """Stops something now and then, and resumes what anybody stopped; at the end everything."""
        ledger, lot = self._ledger(process, f"reviewer-{name}"), process.lot
        incarnation = process.name.rpartition(".")[2]
        for number in count(1):
            await process.sleep(lot.uniform(1, 8) if not self.is_healing else 5)
            if not self.is_healing and lot.random() < 0.25:
                where = lot.choice((*WORKSPACES, ORGANISATION))
                ref = StopRef(where, name, f"s{incarnation}-{number}")
                await self._stop(process, ledger, ref)
            with suppress(Unavailable):
                now = await ledger.log.clock()
                for stop in await stops_in(ledger):
                    if name in {one.slot.tail[-1] for one in stop.resumed} or not stop.holds(now):
                        continue
                    if lot.random() < 0.1:  # whether or not they may
                        await ledger.append(stop.ref.resumed_by(name), e.Resumed())
                    elif self.is_healing or lot.random() < 0.3:
                        with suppress(Refused):
                            await ledger.reviewer(name).resume(stop.ref)

    async def _stop(self, process: Process, ledger: Ledger, ref: StopRef) -> None:
        lot, why = process.lot, "Something is wrong."
        limits: dict[str, Any] = lot.choice(_LIMITS)
        if lot.random() < 0.3:
            for_s = lot.choice((None, lot.uniform(1, 40)))
            with suppress(ApprovalsError):
                await ledger.reviewer(ref.giver).stop(ref, reason=why, for_s=for_s, **limits)
            return
        # What is about to start, mostly for a moment, and whether or not they may.
        for_s = lot.choice((None, lot.uniform(1, 10), *[lot.uniform(0.01, 0.1)] * 5))
        decided, last = f"{ROOT}.*.*.call.*.decided", await self.broker.last_seq()
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(5),
                aclosing(self.broker.follow((decided,), last + 1, until_end=False)) as coming,
            ):
                async for batch in coming:
                    if isinstance(batch[-1].event, e.Approved):
                        ref, limits = structs.replace(ref, workspace=batch[-1].slot.workspace), {}
                        break
        await process.sleep(lot.uniform(0, 0.05))
        stopped = e.Stopped(reason=why, expires_in_s=for_s, **limits)
        await ledger.append(ref.given, stopped)

    async def _talk(self, process: Process) -> None:
        """Users who say something now and then, whatever is pending."""
        ledger, lot = self._ledger(process, "service-users"), process.lot
        for number in range(1, 3):
            for thread in self.threads:
                await process.sleep(lot.uniform(1, TROUBLE_S / len(self.threads) / 2))
                message = f"m{number}"
                await self._said(process, ledger, thread, message)

    async def _said(
        self, process: Process, ledger: Ledger, thread: ThreadRef, message: str
    ) -> None:
        while True:
            try:
                await ledger.say(thread, "And another thing.", message=message)
            except Unavailable:
                await process.sleep(1)
            except Refused:
                return
            else:
                return

    async def _meddle(self, process: Process) -> None:
        """Records what the clients and workers never would, and a stricter policy."""
        ledger, lot = self._ledger(process, "rogue"), process.lot
        orders = [order for each in self.orders.values() for order in each]
        chosen = sorted(lot.sample(orders, len(orders) // 8), key=lambda order: order.at_s)
        for number, order in enumerate(chosen):
            ref, is_clients = order.ref, TOOLS[order.tool][0] == "client"
            other = _other_digest(order)
            await process.sleep(max(0.0, order.at_s - 1 - asyncio.get_running_loop().time()))
            match number % 3:
                case 0 if not is_clients:
                    while await self.broker.latest(ref.requested.subject) is None:
                        await process.sleep(0.05)
                    approval = e.Approved(
                        digest=other, ground="policy", rule="reads", policy_version=1
                    )
                    await ledger.append(ref.decided, approval)
                case 1:
                    claim = ref.client_claim(1) if is_clients else ref.claim(1)
                    start = e.ToolStarted(digest=other, idempotency_key=str(ref))
                    await ledger.append(claim, start)
                case _:
                    newer = b'{"type":"FromTheFuture","v":9,"id":"future-%d"}' % number
                    slot = ThreadRef(ref.workspace, "newer").said(f"f{number}")
                    await ledger.log.append(slot, newer, f"future-{number}")
        policy = applied(_POLICY.format(while_pending=WORKSPACES["bank"]) + _STRICTER)
        await ledger.append(policy_slot("bank", 2), policy)

    # ------------------------------------------------------------------------------------ packing

    async def _pack(self, process: Process) -> None:
        ledger, lot = self._ledger(process, "admin"), process.lot
        while True:
            await process.sleep(lot.uniform(1, 12) if not self.is_healing else 20)
            settled_for = timedelta(seconds=lot.choice((0, 1, 10)))
            with suppress(BrokerAway, OutcomeUnknown):
                async with aclosing(packing.pack_log(ledger, settled_for=settled_for)) as threads:
                    async for one in threads:
                        assert not (isinstance(one, packing.PackedThread) and one.problem), one

    async def _refill(self, process: Process) -> None:
        """Fills slots again that were purged, with what other slots of their kind have."""
        broker, lot = self.broker, process.lot
        assert isinstance(broker, StreamBroker)
        for number in count(1):
            await process.sleep(lot.uniform(0.5, 4))
            gone = [broker._raw[seq - 1].subject for seq in broker.purged]
            if self.is_healing or not gone:
                continue
            # Rather than what was said.
            subject = lot.choice([one for one in gone if ".call." in one] or gone)
            kind = [one for one in broker._raw if _kind(one.subject) == _kind(subject)]
            other = json.loads(lot.choice(kind).data) | {"id": f"again-{number}"}
            await broker.publish(subject, json.dumps(other).encode(), {})

    # ------------------------------------------------------------------------------- the journal

    def _note(self, kind: str, **what: Any) -> None:
        at = simulated_time.now().isoformat()
        self.journal.append({"kind": kind, "at": at, **what})

    def _acknowledged(
        self, process: Process, slot: Slot, event_id: str, raw: bytes, answer: AppendResult
    ) -> None:
        if isinstance(answer, Recorded | AlreadyRecorded):
            # A start has no condition that there is no pack, and its program reads what is there.
            if self.broker._raw[answer.seq - 1].first and slot.tail[2] == "claim":
                return
            self._note(
                "acknowledged",
                process=process.name,
                slot=slot.subject,
                id=event_id,
                seq=answer.seq,
                sha256=hashlib.sha256(raw).hexdigest(),
            )

    async def _do[T](
        self, process: Process, did: str, ref: CallRef, do: Callable[[], Awaitable[T]], **how: Any
    ) -> T:
        """Do something and write down what the program was told."""
        asked = {"process": process.name, "did": did, "call": str(ref), **how}
        began = simulated_time.now().isoformat()
        try:
            told = await do()
        except ApprovalsError as problem:
            error = {"error": type(problem).__name__, "text": str(problem)}
            self._note("refused", began=began, **asked, **error)
            if isinstance(problem, BrokerRefused):  # nobody here may not do what they try
                self._note("ended", process=process.name, why=f"{did}: {problem!r}")
            raise
        except Exception as problem:
            self._note("ended", process=process.name, why=f"{did}: {problem!r}")
            raise
        if isinstance(told, Call):
            decided = told.decided.event.id if told.decided else ""
            self._note("told", began=began, status=str(told.status), decision=decided, **asked)
        return told

    async def _try[T](
        self, process: Process, did: str, ref: CallRef, do: Callable[[], Awaitable[T]], **how: Any
    ) -> T | None:
        try:
            return await self._do(process, did, ref, do, **how)
        except ApprovalsError:
            return None

    def _told(self) -> Told:
        log = [
            {
                "seq": raw.seq,
                # One that fills a slot for the second time is in none.
                "subject": f"again.{raw.seq}.{raw.subject}" if raw.first else raw.subject,
                "time": raw.recorded_at.isoformat(),
                "headers": {},
                "data": raw.data.decode(),
            }
            for raw in self.broker._raw
        ]
        queue = sorted(key for key, one in self.broker.pending._values.items() if one.value)
        parked = [
            f"{one.subject}: {one.reason}"
            for one in self.broker._parked.values()
            if not self.broker._raw[one.seq - 1].first
        ]
        self._note("end", queue=queue, parked=parked)
        trace = hashlib.sha256(json.dumps([log, self.journal]).encode()).hexdigest()
        return Told(self.seed, log, self.journal, trace)


def _kind(subject: str) -> list[str]:
    """What kind of a slot of a call, turn or message it is."""
    tokens = subject.split(".")
    return [tokens[3], *tokens[5:6]]


def _other_digest(order: Order) -> str:
    """The digest of other arguments than those of the request."""
    version = declaration(_SPECS[order.tool])[0]
    return call_digest(order.tool, version, '{"order":"other","amount":1000000}')


class _Script:
    """A model: wishes for two tools in each of three turns, and writes down what it was shown."""

    def __init__(self, world: World, process: Process) -> None:
        self._world, self._process = world, process

    async def reply(self, question: ModelRequest) -> ModelReply:
        shown = {one.call: one.text for one in question.history if isinstance(one, ReadOutcome)}
        thread, turn = question.thread, question.turn
        self._world._note("model", thread=str(thread), turn=turn, shown=shown)
        await self._process.sleep(self._process.lot.uniform(0.1, 2))
        if turn % (2 if thread.is_below else 4) == 0:
            return ModelReply((e.Text(f"Done in {thread.thread}."),))
        lot = random.Random(f"{self._world.seed}/{thread}/{turn}")
        wishes = [_wish(lot) for _ in range(2)]
        level = await self._level(thread)
        if lot.random() < 0.4 and level < _DEPTH:
            wishes[0] = e.Wish(tool=AGENT, arguments='{"order":"B-0","amount":1}')
        return ModelReply(tuple(wishes))

    async def _level(self, thread: ThreadRef) -> int:
        """How many calls are above a thread."""
        level = 0
        while thread.is_below:
            opened = await self._world.broker.latest(thread.opened.subject)
            assert opened
            thread, level = CallRef.parse(opened.event.parent).thread_ref, level + 1
        return level


#: A sub-agent, which may ask itself again.
_HELPER = SubAgent(
    agent="helper",
    model="test:m",
    tools=(*(name for name, (by, _) in TOOLS.items() if by == "executor"), AGENT),
    max_turns=2,
    arguments=_SCHEMA,
)


def _wish(lot: random.Random) -> e.Wish:
    tool = lot.choice(("find", "refund", "wire", "sync", "find", "refund", "wire", "nothing"))
    arguments = json.dumps({"order": f"B-{lot.randint(1, 9)}", "amount": lot.randint(1, 100)})
    return e.Wish(tool=tool, arguments="{" if lot.random() < 0.05 else arguments)
