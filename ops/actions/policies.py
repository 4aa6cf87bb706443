"""Applying and proposing policies, by their texts."""

from collections.abc import Collection, Sequence
from difflib import unified_diff
from itertools import chain

from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.in_force import policy_in_force
from ayes.ledger.judging.on_call import last_read, on_call_to_read, schedules, unsure
from ayes.schemas.codec import Fact
from ayes.schemas.events import PolicyApplied
from ayes.schemas.quorums import ON_CALL, is_among, is_open
from ayes.schemas.slots import policies


async def voters_of(ledger: Ledger) -> frozenset[str]:
    """The voters whom the rules in force name, in all workspaces that can be read."""
    return frozenset(chain(*(one.asked for one in (await ledger.policies_by_owner()).values())))


async def wanting_signed(ledger: Ledger) -> list[str]:
    """The workspaces, and perhaps the organisation, whose policies count signed votes only."""
    found = await ledger.policies_by_owner()
    return [owner for owner, policy in found.items() if policy.wants_signed]


async def silent_schedules(ledger: Ledger, voters: Collection[str]) -> list[str]:
    """A sentence for each schedule among these voters by which nobody would be asked now."""
    names, now = [*schedules(voters)], await ledger.log.clock()
    facts = await ledger.read(*on_call_to_read(voters, now)) if names else ()
    found = []
    for name in sorted(names):
        read = last_read(facts, name, now)
        if why := unsure(read, now):
            when = f"its calendar was read {read.read_at:%Y-%m-%d %H:%M} UTC, and " if read else ""
            found.append(
                f"{ON_CALL}{name} asks nobody: {when}{why}. A worker `absence` whose settings have "
                f"[oncall.{name}] reads it"
            )
    return found


def may_be(person: str, voters: Collection[str]) -> bool:
    """Whether one of these voters may be this person, or there are none."""
    return not voters or any(map(is_open, voters)) or is_among(person, voters)


async def changes_to(ledger: Ledger, owner: str, text: str, source: str) -> tuple[int, list[str]]:
    """The version in force (0 if there is none), and a unified diff from it to the text."""
    facts = await ledger.read(policies(owner))
    version = policy_in_force(facts).version
    return version, changes(text_of(facts, version), text, f"version {version}", source)


def text_of(facts: Sequence[Fact], version: int) -> str:
    """The text of that version of a policy; empty if there is none."""
    applied = (fact.event for fact in facts if fact.slot.tail[1:] == (str(version),))
    return next((event.text for event in applied if isinstance(event, PolicyApplied)), "")


def changes(before: str, after: str, old: str, new: str) -> list[str]:
    """A unified diff of two policies of these names, line by line."""
    return [*unified_diff(before.splitlines(), after.splitlines(), old, new, lineterm="")]
