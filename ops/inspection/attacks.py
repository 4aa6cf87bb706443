"""Attacks on a site: what its own roles must not, tried on its own broker.

They are made in a workspace of their own, and their facts stay: requests, a stop, a policy. None
leaves an alarm, and at the end nothing of them is open. What a login must not write is sent so that
it is not recorded even if the broker allows it.
"""

import inspect
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from msgspec.structs import replace

from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.protocol import settled
from ayes.ops.actions.stops import resume_stop
from ayes.ops.actions.votes import GATE_S
from ayes.ops.broker.accounts import REVIEWER
from ayes.ops.broker.logins import Logins
from ayes.ops.broker.setup import apply_policy
from ayes.ops.inspection.checks import refused
from ayes.ops.inspection.trials import SPEC, WORKSPACE, Attempt, attempted, rule, trials
from ayes.schemas import events as e
from ayes.schemas.codec import encode
from ayes.schemas.errors import ApprovalsError, CallChanged, NotAllowed, NotOpen, Refused
from ayes.schemas.slots import (
    ORGANISATION,
    CallRef,
    Slot,
    StopRef,
    ThreadRef,
    policy_slot,
    tool_slot,
)

#: How long a gate may take for one step.
_PATIENCE_S: Final = 30.0
#: How long an approval or a question lasts if this program is killed, and how long a stop does.
_LASTS_S: Final = 600
_STOP_S: Final = 60
_WHY: Final = "`ayes scorecard` tries it."
#: Amounts that the policy allows, asks people about, and blocks.
_FREE, _ASKED, _BLOCKED = 1, 50, 1000


async def attempts(store: Store, person: str) -> dict[str, Attempt]:
    """Make all attacks, and judge all trials, by name.

    Args:
        person: the reviewer who stops and resumes, and who tries to vote as somebody else.
    """
    found = await trials()
    async with Logins.of(store) as logins:
        run = _Run(logins, person)
        began = await _what_failed(run.begin())
        for name, (claim, roles, slots) in forbidden(person).items():
            failed = await _what_failed(_written(logins, roles, slots))
            found[name] = attempted(claim, held=not failed, why=failed)
        failed = await _what_failed(_heard(logins))
        found["inbox"] = attempted(_UNHEARD, held=not failed, why=failed)
        try:
            for attack in _ATTACKS:
                failed = began or await _what_failed(attack(run))
                claim = inspect.getdoc(attack) or ""
                name = attack.__name__.strip("_")
                found[name] = attempted(claim, held=not failed, why=failed)
        finally:
            await run.end()
    return found


async def _what_failed(attack: Awaitable[str]) -> str:
    """What an attack achieved; empty: nothing. What could not be tried is not well."""
    try:
        return await attack
    except ApprovalsError as problem:
        return f"it could not be tried: {problem}".rstrip(".")


# ------------------------------------------------------------------------------ the broker's guards


def forbidden(person: str) -> dict[str, tuple[str, Sequence[str], Sequence[Slot]]]:
    """What must not be written: in words, by which roles, and in which slots."""
    call, stop = CallRef(WORKSPACE, "attacks", "1-0"), StopRef(WORKSPACE, "somebody-else", "s")
    thread, vote = call.thread_ref, call.vote("somebody-else")
    stops = (stop.given, stop.resumed_by("somebody-else"), stop.ended)
    prompts = (thread.opened, thread.said("m1"), tool_slot(WORKSPACE, SPEC.name, "0" * 16))
    own, above = policy_slot(WORKSPACE, 1), policy_slot(ORGANISATION, 1)
    programs, whose = ("model", "executor", "service"), "The logins of models, executors, services"
    return {
        "decisions": (f"{whose} can record no decision", programs, (call.decided,)),
        "votes": (f"{whose} can record no vote", programs, (vote,)),
        "other_people": ("A reviewer can record no vote of others", [REVIEWER + person], (vote,)),
        "runs": (
            "The logins of models and gates can start no call",
            ("model", "gate"), (call.claim(1), call.client_claim(1)),
        ),
        "requests": ("The login of models can request no call", ["model"], (call.requested,)),
        "policies": (f"{whose} can record no policy", programs, (own, above)),
        "organisation": ("Operators can record none of the organisation", ["operator"], (above,)),
        "prompts": (
            "The login of models can open no thread, say nothing to a model, and declare no tool",
            ["model"], prompts,
        ),
        "stops": (f"{whose} can neither stop nor resume", programs, stops),
    }  # fmt: skip


async def _written(logins: Logins, roles: Sequence[str], slots: Sequence[Slot]) -> str:
    tried = [
        await refused(await _connection(logins, role), role, slot.subject)
        for role in roles
        for slot in slots
    ]
    return "; ".join(f"{one.check}, but {one.detail}" for one in tried if not one.ok)


_UNHEARD: Final = "The login of services can read no answers of the broker to the gate"


async def _heard(logins: Logins) -> str:
    connection = (await _connection(logins, "service")).connection
    denied, inbox = list[str](), "_INBOX.gate.>"
    connection.on_denied(denied.append)
    await connection.client.subscribe(inbox)
    await settled(connection.client)
    return "" if inbox.lower() in map(str.lower, denied) else "it may subscribe to them"


async def _connection(logins: Logins, role: str) -> JetStream:
    log = (await logins.connection(role)).log
    assert isinstance(log, JetStream)
    return log


# -------------------------------------------------------------------------------------- real calls
#
# The docstring of an attack is what should be so; it returns what happened instead, or nothing.


class _Run:
    """A thread of the workspace, and the logins that act in it."""

    service: Ledger
    operator: Ledger
    reviewer: Ledger

    def __init__(self, logins: Logins, person: str) -> None:
        self.logins, self.person = logins, person
        self.thread = ThreadRef(WORKSPACE, f"run-{secrets.token_hex(4)}")
        self.refs: list[CallRef] = []

    async def begin(self) -> str:
        self.service = await self.logins.connection("service")
        self.operator = await self.logins.connection("operator")
        self.reviewer = await self.logins.as_reviewer(self.person)
        await self.service.declare(WORKSPACE, SPEC)
        if (await self.operator.policies(WORKSPACE)).organisation.policy.policies_need_approval:
            raise NotAllowed("the organisation wants policies approved, so none was applied")
        await self.apply()
        return ""

    async def apply(self, most: int = 100) -> None:
        """Make it the policy that all calls of a larger amount are blocked."""
        asks = f'voters = ["{self.person}"]\nexpires_in_s = {_LASTS_S}'
        rules = (
            ("small", "<= 10", "allow", f"valid_for_s = {_LASTS_S}"),
            ("more", "> 10", "ask", asks),
            ("too much", f"> {most}", "block", ""),
        )
        text = "# Written by `ayes scorecard`, which tries its attacks in this workspace.\n"
        for name, when, then, more in rules:
            text += rule(name, f'when = "args.amount {when}"\nthen = "{then}"\n{more}')
        await apply_policy(self.operator, WORKSPACE, text, "ayes scorecard")

    @asynccontextmanager
    async def blocking(self) -> AsyncGenerator[None]:
        """For as long as the block lasts the policy blocks all calls."""
        await self.apply(most=0)
        try:
            yield
        finally:
            await self.apply()

    async def judged(self, amount: int, expires_in_s: float | None = None) -> Call:
        """A new call, once the gate has decided it or asked people."""
        ref = self.thread.call(f"c{len(self.refs) + 1}")
        self.refs.append(ref)
        await self.service.request(
            ref, SPEC.name, {"amount": amount}, requester=WORKSPACE, expires_in_s=expires_in_s
        )
        call = await self.service.until(ref, lambda one: one.status is not _NEW, _PATIENCE_S)
        if call.status is _NEW:
            raise NotOpen(f"no gate judged a call within {_PATIENCE_S:g} s")
        return call

    async def approved(self) -> Call:
        call = await self.judged(_FREE)
        if call.status is not Status.APPROVED:
            word = _word(call) or "put to people"
            raise NotOpen(f"a call that the policy of {WORKSPACE} allows is {word}")
        return call

    async def starts(self, ref: CallRef) -> bool:
        try:
            await self.service.start(ref)
        except (Refused, CallChanged):
            return False
        return True

    async def end(self) -> None:
        """Leave nothing open."""
        for ref in self.refs:
            with suppress(ApprovalsError):
                call = await self.service.known_call(ref)
                if call.status in (_NEW, Status.PENDING):
                    await self.service.withdraw(ref, _WHY)
                elif call.status is Status.RUNNING or await self.starts(ref):
                    await self.service.finish(ref, output=_WHY)


_NEW: Final = Status.REQUESTED


async def _blocked(run: _Run) -> str:
    """Of two calls the policy blocked the one with a larger amount."""
    free, bound = await run.judged(_FREE), await run.judged(_BLOCKED)
    is_so = (_word(free), _word(bound)) == ("Approved", "Denied")
    return "" if is_so else f"one is {_word(free)}, the other {_word(bound)}"


async def _unanswered(run: _Run) -> str:
    """A call that nobody answered expired, and started neither before nor after."""
    call = await run.judged(_ASKED, expires_in_s=1.0)
    started = await run.starts(call.ref)
    call = await run.service.decision(call.ref, timeout_s=_PATIENCE_S)
    started |= await run.starts(call.ref)
    return "it started" if started else "" if _word(call) == "Expired" else f"it is {_word(call)}"


async def _stopped(run: _Run) -> str:
    """An approved call did not start while it was stopped, not even by a raw claim."""
    call, stop = await run.approved(), StopRef(WORKSPACE, run.person, run.thread.thread)
    claim = call.ref.client_claim(1)
    await run.reviewer.reviewer(run.person).stop(stop, reason=_WHY, for_s=_STOP_S)
    try:
        started = e.ToolStarted(digest=call.digest, idempotency_key=str(call.ref))
        await run.service.append(claim, started)  # without looking, as a raw client
        known = await run.service.call(call.ref, must_include=claim)
    finally:
        with suppress(ApprovalsError):  # where others must resume, it ends by itself
            await resume_stop(run.reviewer, stop, run.person, _WHY)
    return "it started" if known.starts else ""


async def _replaced(run: _Run) -> str:
    """A request cannot be replaced, nor its id be used again, not even by a raw client."""
    call = await run.approved()
    other = run.service.with_envelope(replace(call.wish, id="", arguments="{}"))
    log = await _connection(run.logins, "service")
    answer = await log.api.publish(call.ref.requested.subject, encode(other))
    return "" if answer.error else "another one was recorded"


async def _outdated(run: _Run) -> str:
    """A call is judged by the policy in force when it is requested."""
    async with run.blocking():
        word = _word(await run.judged(_FREE))
    return "" if word == "Denied" else f"it is {word}"


async def _approved_before(run: _Run) -> str:
    """A call that was approved before does not start once a policy blocks it."""
    call = await run.approved()
    async with run.blocking():
        await run.judged(_FREE)  # so the gate has seen the policy
        await run.service.until(call, lambda one: one.status is not Status.APPROVED, GATE_S)
        return "it starts" if await run.starts(call.ref) else ""


def _word(call: Call) -> str:
    """What was decided; empty while people are asked."""
    return type(call.decided.event).__name__ if call.decided else ""


_ATTACKS: Final[tuple[Callable[[_Run], Awaitable[str]], ...]] = (
    _blocked, _unanswered, _stopped, _replaced, _outdated, _approved_before
)  # fmt: skip
