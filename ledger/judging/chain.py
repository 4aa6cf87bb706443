"""Sub-agents: the chain of calls above a thread.

    thread t1 ── call 1-0 (delegate) ──► thread sub-… ── call 1-0 (delegate) ──► thread sub-… ── …

A thread that is opened in the run of a call names that call as its `parent`. Each call has one
thread below it (`CallRef.below`), whose id is derived from the call's. So opening it twice opens it
once, and a gate that withdraws a call finds the calls below it without an index.

The gate reads the chain up to the root and checks all of it: a call below is valid only if every
call above it was started before the thread below it was opened, and if all have the same requester.
So the requester of the root is that of every call below, and cannot vote on any; nor can the people
behind any agent of the chain. When a call above is withdrawn or has ended, nobody waits for the
calls below, which are withdrawn, nor for the models below, which are not asked any more
(docs/decisions/0050).
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ayes.ledger.call import Call
from ayes.ledger.validity import call_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import CallRef, Slot, ThreadRef

#: The most calls above a thread.
MAX_DEPTH: Final = 16

#: Reads the facts about a call and in these slots, as of at least the request that is judged.
type ReadAbove = Callable[[CallRef, Slot], Awaitable[Iterable[Fact]]]


class Chain(Struct, frozen=True):
    """The calls above a thread."""

    #: The outermost first.
    links: tuple[e.Link, ...] = ()
    #: Why the thread cannot be below its parent; empty if it is.
    problem: str = ""
    #: Why nobody waits for its calls any longer; empty while somebody does.
    over: str = ""

    @property
    def agents(self) -> tuple[str, ...]:
        return tuple(link.agent for link in self.links)


async def chain_above(opened: Fact | None, read: ReadAbove) -> Chain:
    """The chain above the thread of this opening."""
    chain = Chain()
    while opened is not None and isinstance(opened.event, e.ThreadOpened) and opened.event.parent:
        if len(chain.links) == MAX_DEPTH:
            return replace(chain, problem=f"There are more than {MAX_DEPTH} calls above this one.")
        try:
            above = CallRef.parse(opened.event.parent)
        except BadInput:
            named = f"The parent of {opened.slot.thread_ref} is not a call"
            return replace(chain, problem=f"{named}: {opened.event.parent!r}.")
        facts = tuple(await read(above, above.thread_ref.opened))
        whose = next((fact for fact in facts if fact.slot == above.thread_ref.opened), None)
        chain = _with(chain, opened, call_of(above, facts), whose)
        if chain.problem:
            return chain
        opened = whose
    return chain


def _with(chain: Chain, opened: Fact, call: Call, whose: Fact | None) -> Chain:
    """The chain with one more call above.

    Args:
        opened: the opening of the thread below it.
        whose: the opening of its own thread, if there is one.
    """
    below, event = opened.slot.thread_ref, opened.event
    assert isinstance(event, e.ThreadOpened)
    if call.ref.below != below:
        return replace(chain, problem=f"{below} is not the thread below {call.ref}.")
    if not call.starts or call.starts[0].seq > opened.seq:
        return replace(chain, problem=f"{call.ref} did not run when {below} was opened.")
    own = whose.event if whose is not None else None
    if whose is not None and not isinstance(own, e.ThreadOpened):
        return replace(chain, problem=f"The opening of {call.ref.thread_ref} cannot be read.")
    requester, agent = call.wish.requester, call.wish.agent
    if isinstance(own, e.ThreadOpened):
        requester, agent = requester or own.requester, agent or own.agent
    if requester != event.requester:
        asked = f"{below} was opened for {event.requester!r}, and {call.ref} was requested for"
        return replace(chain, problem=f"{asked} {requester!r}.")
    link = e.Link(call=str(call.ref), tool=call.wish.tool, agent=agent)
    return Chain((link, *chain.links), over=_over(call) or chain.over)


def _over(call: Call) -> str:
    """Why nobody waits for the calls below a call; the outermost reason counts."""
    if call.withdrawn is not None:
        return withdrawn_above(call.ref)
    if call.finished is not None:
        return f"{call.ref}, for whose run it was asked, has ended."
    return ""


def withdrawn_above(ref: CallRef) -> str:
    """The reason of a call that is withdrawn since one above it was."""
    return f"{ref}, for whose run it was asked, was withdrawn."


def is_below(ref: CallRef, opened: Fact | None) -> bool:
    """Whether this is the opening of the thread below a call."""
    event = opened.event if opened is not None else None
    return isinstance(event, e.ThreadOpened) and event.parent == str(ref)


def thread_below(call: Call, *, agent: str, model: str = "") -> tuple[ThreadRef, e.ThreadOpened]:
    """The thread below a call that runs, and its opening, for the same requester.

    Args:
        call: with the requester of its thread (`ayes.ledger.judging.policies.attributed`).
    """
    opened = e.ThreadOpened(
        requester=call.wish.requester,
        agent=agent,
        model=model,
        labels=call.wish.labels,
        parent=str(call.ref),
    )
    return call.ref.below, opened
