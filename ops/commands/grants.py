"""What people say in advance: grants ("calls like this, until then") and delegations ("Ben, in my place").

Each is given in the giver's own name, always has an end, and can be taken back before it.
"""

import glob
import secrets
from pathlib import Path
from typing import NamedTuple

from ayes.ledger.lifecycle import Call, may_vote
from ayes.ledger.services import Ledger
from ayes.ops.commands.decide import as_reviewer
from ayes.ops.terminal import output
from ayes.ops.terminal.output import print_data, print_line, print_message
from ayes.ops.terminal.times import parse_time
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput, NotAllowed, Refused
from ayes.schemas.ids import token
from ayes.schemas.slots import CallRef, DelegationRef, GrantRef


class Like(NamedTuple):
    """Which calls a grant is to cover: those like a call, or of a tool; None: as the call has it, else any."""

    call: str | None
    tool: str | None
    workspace: str
    any_arguments: bool
    when: str
    agent: str | None
    any_thread: bool


async def give(
    like: Like,
    name: str,
    *,
    for_s: float,
    uses: int,
    named: str,
    reason: str,
    store: Path | None,
    url: str | None,
    json: bool,
) -> None:
    ref = None if like.call is None else CallRef.parse(like.call)
    _make_sense(like)
    grant = GrantRef(ref.workspace if ref else like.workspace, name, named or f"g-{secrets.token_hex(4)}")
    async with as_reviewer(name, store, url) as ledger:
        known = None if ref is None else await ledger.known_call(ref)
        given = await ledger.reviewer(name).grant(
            grant,
            known.wish.tool if known else like.tool or "",
            for_s=for_s,
            uses=uses,
            arguments=known.wish.arguments if known and not (like.any_arguments or like.when) else None,
            when=like.when,
            # A name that holds wildcards means itself.
            agent=like.agent if like.agent is not None else glob.escape(known.wish.agent) if known else "*",
            thread=known.ref.thread if known and not like.any_thread else "*",
            reason=reason,
        )
        problem = await _vote_too(ledger, known, name, reason)
        now = ledger.now()
    if json:
        print_data(output.grant_json(given, now))
    else:
        print_message(output.grant_words(given, now))
    if problem is not None:
        raise type(problem)(f"The grant {grant} stands, but the vote on {ref} does not: {problem}")


def _make_sense(like: Like) -> None:
    if (like.call is None) == (like.tool is None):
        raise BadInput("a grant is like a call, or for a tool: name the CALL, or give --tool TOOL.")
    if like.any_arguments and like.when:
        raise BadInput("--any-arguments and --when say different things. Give one of them.")
    if like.call is None and not (like.any_arguments or like.when):
        raise BadInput("which calls of the tool? Give --when CONDITION, or --any-arguments for all of them.")


async def _vote_too(ledger: Ledger, call: Call | None, name: str, reason: str) -> Refused | None:
    """Who grants calls like this one agrees to this one, if it waits for them; why their vote was refused, if it was."""
    if (
        call is None
        or call.approval_request is None
        or call.decided is not None
        or call.withdrawn is not None
    ):
        return None
    vote = e.Voted(verdict="approve", digest=call.approval_request.digest)
    if not may_vote(call, vote, name) or any(one.slot.tail[3] == name for one in call.votes):
        return None
    try:
        await ledger.reviewer(name).approve(call.ref, reason=reason)
    except Refused as problem:
        return problem
    return None


async def show_grants(workspace: str, *, store: Path | None, url: str | None, json: bool) -> None:
    async with Ledger.connect(store, url=url, role="observer") as ledger:
        found, now = await ledger.grants(workspace), ledger.now()
    for grant in found:
        if json:
            print_data(output.grant_json(grant, now))
        else:
            print_line(output.grant_words(grant, now))
    if not found and not json:
        print_message(f"No grant was ever given in {workspace}.")


async def revoke(
    grant: str, name: str, *, reason: str, store: Path | None, url: str | None, json: bool
) -> None:
    ref = GrantRef.parse(grant)
    async with as_reviewer(name, store, url) as ledger:
        revoked = await ledger.reviewer(name).revoke_grant(ref, reason=reason)
        now = ledger.now()
    if json:
        print_data(output.grant_json(revoked, now))
    else:
        print_message(f"{ref} covers nothing more. What it let run stays approved.")


async def delegate(
    to: str,
    workspace: str,
    name: str,
    *,
    starts: str,
    ends: str,
    tools: tuple[str, ...],
    named: str,
    reason: str,
    store: Path | None,
    url: str | None,
    json: bool,
) -> None:
    ref = DelegationRef(workspace, name, named or f"d-{secrets.token_hex(4)}")
    token("reviewer", to)
    for tool in tools:
        token("tool", tool.replace("*", "x").replace("?", "x"))
    async with as_reviewer(name, store, url) as ledger:
        given = await ledger.reviewer(name).delegate(
            ref,
            to,
            starts_at=parse_time("--from", starts),
            ends_at=parse_time("--until", ends),
            tools=tools,
            reason=reason,
        )
        now = ledger.now()
    if json:
        print_data(output.delegation_json(given, now))
    else:
        print_message(output.delegation_words(given, now))


async def show_delegations(workspace: str, *, store: Path | None, url: str | None, json: bool) -> None:
    async with Ledger.connect(store, url=url, role="observer") as ledger:
        found, now = await ledger.delegations(workspace), ledger.now()
    for delegation in found:
        if json:
            print_data(output.delegation_json(delegation, now))
        else:
            print_line(output.delegation_words(delegation, now))
    if not found and not json:
        print_message(f"Nobody ever delegated anything in {workspace}.")


async def end_delegation(
    delegation: str, name: str, *, reason: str, store: Path | None, url: str | None, json: bool
) -> None:
    ref = DelegationRef.parse(delegation)
    if ref.giver != name:
        raise NotAllowed(f"only {ref.giver} can end {ref}: a delegation is its giver's word.")
    async with as_reviewer(name, store, url) as ledger:
        ended = await ledger.reviewer(name).end_delegation(ref, reason=reason)
        now = ledger.now()
    if json:
        print_data(output.delegation_json(ended, now))
    else:
        print_message(f"{ref} has ended. Votes that were cast by it stay what they are.")
