"""Who may stop and who may resume, and whether a stop ends: what the gate applies to stops."""

from datetime import datetime

from ayes.ledger.judging.policies import Policies
from ayes.ledger.people import People, readings_for
from ayes.ledger.stops import Stop
from ayes.schemas import events as e
from ayes.schemas.people import person
from ayes.schemas.slots import ORGANISATION, REMOVALS


def may(
    policies: Policies,
    people: People,
    person: str,
    key: str,
    workspace: str,
    at: datetime,
    before: int | None = None,
) -> bool:
    """Whether a person may stop (`may_stop`) or resume (`may_resume`) in a workspace.

    Args:
        policies: of the workspace; for the whole organisation, its own alone.
        at: when they said so, or now; `before` is the number of that in the log.
    """
    named = policies.people(key)
    is_named = not named or people.is_among(person, named, at, before)
    return is_named and people.bar(person, workspace) is None


def people_to_read(policies: Policies, stop: Stop) -> tuple[str, ...]:
    """What to read about people to know who may."""
    voters = [voter for key in ("may_stop", "may_resume") for voter in policies.people(key)]
    facts = ((stop.ref.giver, stop.given), *((one.slot.tail[4], one) for one in stop.resumed))
    said = ((name, fact.recorded_at) for name, fact in facts)
    return readings_for(voters, said) or (REMOVALS,)


def resumes_needed(policies: Policies) -> int:
    """How many people must resume: the larger number of the two policies."""
    both = (policies.workspace.policy, policies.organisation.policy)
    return max(one.resumes_needed for one in both)


def ending(stop: Stop, policies: Policies, people: People) -> e.StopEnded | None:
    """The end of a stop by the policies and the people of now; None if it goes on.

    It ends if its giver may not stop, or once enough people who may have resumed, each once.
    """
    if stop.ended is not None:
        return None
    given, where = stop.given, stop.ref.workspace
    if not may(policies, people, stop.ref.giver, "may_stop", where, given.recorded_at, given.seq):
        where = "all workspaces" if stop.ref.workspace == ORGANISATION else stop.ref.workspace
        return e.StopEnded(reason=f"{stop.ref.giver} may not stop {where}.")
    if missing(stop, policies, people):
        return None
    counted = _counted(stop, policies, people)
    reasons = (fact.event.reason for fact in stop.resumed if isinstance(fact.event, e.Resumed))
    return e.StopEnded(resumed_by=counted, reason=" ".join(filter(None, reasons)))


def missing(stop: Stop, policies: Policies, people: People) -> int:
    """How many people who may have still to resume."""
    return max(0, max(1, stop.stopped.resumes_needed) - len(_counted(stop, policies, people)))


def _counted(stop: Stop, policies: Policies, people: People) -> tuple[str, ...]:
    where, accounts = stop.ref.workspace, policies.accounts()
    names = (
        fact.slot.tail[4]
        for fact in stop.resumed
        if may(policies, people, fact.slot.tail[4], "may_resume", where, fact.recorded_at, fact.seq)
    )
    counted: dict[str, str] = {}
    for name in names:  # two accounts of one person are one of those who must
        counted.setdefault(person(name, accounts), name)
    return tuple(counted.values())
