"""Grants ("calls like this, until then") and delegations ("Ben, in my place").

Both are facts of the workspace, in slots under their giver's name, so only Ana's credentials can
give in Ana's name. Their state at a moment is derived from the facts:

* A grant is its giver's vote for a call that was not made yet. It covers calls from when it was
  recorded until its end, for a number of uses. Each use is a fact in its own slot, so two gates
  cannot both spend the last one.
* A delegation lets another person vote in the giver's place, until its time is over or it is ended.
  The giver's calendar may give one too, in a slot of its own (docs/decisions/0069).

Neither counts if its giver had been removed by then, or the workspace was not theirs. So they are
read together with the removals.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import lru_cache
from operator import attrgetter
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from ayes.ledger.call import Call
from ayes.ledger.judging.policy_rules import About
from ayes.ledger.keys import Keys
from ayes.ledger.people import people_of
from ayes.ledger.signing import Signature, delegation_digest, grant_digest, is_fresh
from ayes.schemas import conditions, strict_json
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.limits import MAX_GRANT_S
from ayes.schemas.quorums import is_among
from ayes.schemas.slots import DELEGATION, GRANT, DelegationRef, GrantRef

MAX_USES: Final = 1000


type GrantStanding = Literal["in force", "revoked", "void", "ended", "used up"]


class Grant(Struct, frozen=True):
    """A reviewer's approval in advance, and its uses."""

    ref: GrantRef
    given: Fact
    #: Also a removal of its giver, or an addition to other workspaces, that came before it.
    revoked: Fact | None = None
    #: By number.
    used: tuple[Fact, ...] = ()
    #: Whether its giver has signed it, if that was looked at (`with_signatures`).
    is_signed: bool = False

    @property
    def granted(self) -> e.Granted:
        assert isinstance(self.given.event, e.Granted)
        return self.given.event

    @property
    def ends_at(self) -> datetime:
        # A recorded time may be longer than a valid one, or than any date.
        return self.given.recorded_at + timedelta(
            seconds=max(0.0, min(self.granted.expires_in_s, MAX_GRANT_S))
        )

    @property
    def left(self) -> int:
        """The number of remaining uses."""
        return max(0, self.granted.uses - len(self.used))

    def used_by(self, call: Call) -> bool:
        """Whether this call took one of its uses."""
        return bool(self.used_for(call))

    def used_for(self, call: Call) -> tuple[Fact, ...]:
        """The facts by which this call took its uses, without those that it did not have."""
        return tuple(
            fact
            for fact in self.used
            if isinstance(fact.event, e.GrantUsed)
            and fact.event.call == str(call.ref)
            and int(fact.slot.tail[-1]) <= self.granted.uses
        )

    def standing(self, now: datetime) -> GrantStanding:
        """Its status at this time."""
        if self.revoked is not None:
            return "revoked"
        if bad_grant(self.granted) is not None:
            return "void"
        if now >= self.ends_at:
            return "ended"
        return "in force" if self.left else "used up"


class Delegation(Struct, frozen=True):
    """A permission to vote in another's place, and its early end."""

    ref: DelegationRef
    given: Fact
    #: Also a removal of its giver, or an addition to other workspaces, that came before it.
    ended: Fact | None = None

    @property
    def by_calendar(self) -> bool:
        """Whether the giver's calendar gave it."""
        return self.given.slot == self.ref.absent

    @property
    def delegated(self) -> e.Delegated:
        assert isinstance(self.given.event, e.Delegated)
        return self.given.event

    def holds(self, reviewer: str, tool: str, at: datetime, before: int | None = None) -> bool:
        """Whether this reviewer may vote in the giver's place on a call of this tool.

        Args:
            before: as of just before that number of the log.
        """
        given = self.delegated
        known = before is None or self.given.seq < before
        ended = self.ended is not None and (before is None or self.ended.seq < before)
        in_time = given.starts_at <= at < given.ends_at
        return (
            known and not ended and in_time and given.to == reviewer and is_among(tool, given.tools)
        )


def grants_of(facts: Iterable[Fact]) -> tuple[Grant, ...]:
    """The grants among these facts, oldest first."""
    facts = tuple(facts)
    found, people = [], people_of(facts)
    for places in _by_name(facts, GRANT):
        given = places.get("given")
        if given is not None and isinstance(given.event, e.Granted):
            _, giver, name, _ = given.slot.tail
            used = tuple(fact for place, fact in places.items() if place.startswith("used"))
            ref = GrantRef(given.slot.workspace, giver, name)
            revoked = [
                fact for place, fact in places.items() if place.partition(".")[0] == "revoked"
            ]
            first = min(revoked, key=attrgetter("seq"), default=None)
            found.append(
                Grant(ref, given, people.bar(giver, ref.workspace, given.seq) or first, used)
            )
    return tuple(sorted(found, key=lambda one: one.given.seq))


def with_signatures(
    grants: Iterable[Grant], keys: Keys, log: str, until: int | None = None
) -> tuple[Grant, ...]:
    """The grants, with which of them their givers have signed.

    Args:
        log: its identity.
        until: as of `PersonKey.counts`.
    """

    def is_signed(one: Grant) -> bool:
        signature = Signature.parse(one.granted.signature)
        key = keys.get(one.ref.giver, signature.key) if signature is not None else None
        if signature is None or key is None or bad_grant(one.granted) is not None:
            return False
        digest = grant_digest(log, one.ref, one.granted, signature.until)
        return (
            key.counts(one.given, until)
            and is_fresh(signature.until, one.given.recorded_at)
            and key.signed(signature, digest)
        )

    return tuple(replace(one, is_signed=is_signed(one)) for one in grants)


def delegations_of(facts: Iterable[Fact]) -> tuple[Delegation, ...]:
    """The delegations among these facts, oldest first."""
    facts = tuple(facts)
    found, people = [], people_of(facts)
    for places in _by_name(facts, DELEGATION):
        for place, ends in (("given", ("ended",)), ("absent", ("ended", "absent.ended"))):
            given = places.get(place)
            if given is not None and isinstance(given.event, e.Delegated):
                _, giver, name, _ = given.slot.tail
                ref = DelegationRef(given.slot.workspace, giver, name)
                ended = [places[one] for one in ends if one in places]
                first = min(ended, key=attrgetter("seq"), default=None)
                bar = people.bar(giver, ref.workspace, given.seq)
                found.append(Delegation(ref, given, bar or first))
    return tuple(sorted(found, key=lambda one: one.given.seq))


def delegated(delegations: Iterable[Delegation], call: Call, vote: Fact) -> bool:
    """Whether a delegation held by which this vote was cast in another's place."""
    event = vote.event
    assert isinstance(event, e.Voted)
    reviewer, tool = vote.slot.tail[3], call.wish.tool
    return any(
        one.ref.giver == event.on_behalf_of
        and one.holds(reviewer, tool, vote.recorded_at, vote.seq)
        and (event.verdict == "deny" or _is_signed(one, call))
        for one in delegations
    )


def _is_signed(one: Delegation, call: Call) -> bool:
    """Whether its giver has signed a delegation, where votes are signed."""
    if not call.wants_signed or (known := call.signatures) is None:
        return True  # the gate says whether it counts
    signature = Signature.parse(one.delegated.signature)
    key = known.keys.get(one.ref.giver, signature.key) if signature is not None else None
    if signature is None or key is None or not key.counts(one.given, known.until):
        return False
    digest = delegation_digest(known.bound.log, one.ref, one.delegated)
    return not signature.until and key.signed(signature, digest)


def covering(grants: Iterable[Grant], about: About, now: datetime) -> tuple[Grant, ...]:
    """The grants that certainly cover such a call, whatever their remaining uses."""
    scope = about.scope
    return tuple(grant for grant in grants if _covers(grant, about, scope, now))


def _covers(grant: Grant, about: About, scope: conditions.Scope, now: datetime) -> bool:
    if bad_grant(grant.granted) is not None:  # other clients may record one that ours would refuse
        return False
    in_time = grant.given.recorded_at <= now < grant.ends_at
    return grant.revoked is None and in_time and fits(grant.granted, about, scope)


def fits(granted: e.Granted, about: About, scope: conditions.Scope) -> bool:
    """Whether a valid grant is certainly for such a call, whenever it was given."""
    if granted.tool != about.tool:
        return False
    if not (fnmatchcase(about.agent, granted.agent) and fnmatchcase(about.thread, granted.thread)):
        return False
    if granted.arguments is not None and not same(granted.arguments, about.args):
        return False
    try:
        return not granted.when or conditions.holds(granted.when, scope)
    except conditions.CannotSay:
        return False


def same(arguments: str, value: object) -> bool:
    """Whether raw JSON text has this value, in any order of keys; 1, 1.0 and true differ."""
    try:
        known = strict_json.read(arguments)
    except ValueError:
        return False
    return json.dumps(known, sort_keys=True) == json.dumps(value, sort_keys=True)


def _by_name(facts: Iterable[Fact], kind: str) -> Iterable[dict[str, Fact]]:
    """The facts by place, for each workspace, giver and name."""
    found: dict[tuple[str, str, str], dict[str, Fact]] = defaultdict(dict)
    for fact in facts:
        match fact.slot.tail:
            case (found_kind, giver, name, *place) if found_kind == kind:
                found[fact.slot.workspace, giver, name][".".join(place)] = fact
            case _:
                pass
    return found.values()


def bad_grant(granted: e.Granted) -> str | None:
    """Why a grant is not valid; None if it is."""
    if not 0 < granted.expires_in_s <= MAX_GRANT_S:
        days = f"{MAX_GRANT_S / 86400:,.0f} days"
        given = f"{granted.expires_in_s:g} s"
        return f"a grant ends: between now and {days} from now. {given} is not."
    if not 1 <= granted.uses <= MAX_USES:
        return f"a grant has 1 to {MAX_USES:,} uses, not {granted.uses}."
    if granted.arguments is not None and granted.when:
        either = "a grant is for exact arguments or for those that a condition holds for"
        return f"{either}; give one of them."
    if granted.when:
        return _bad_condition(granted.when)
    return None


@lru_cache(maxsize=4096)
def _bad_condition(when: str) -> str | None:
    try:
        conditions.check(when)
    except conditions.BadCondition as problem:
        return str(problem)
    return None


def bad_delegation(giver: str, given: e.Delegated, now: datetime) -> str | None:
    """Why a delegation is not valid; None if it is."""
    if given.starts_at.tzinfo is None or given.ends_at.tzinfo is None:
        return "a delegation's times need a time zone, such as UTC."
    if given.to == giver:
        return f"{giver} has their own vote already. Name somebody else."
    start, end = (f"{at:%Y-%m-%d %H:%M} UTC" for at in (given.starts_at, given.ends_at))
    if given.ends_at <= given.starts_at:
        return f"it ends ({end}) before it starts ({start})."
    if given.ends_at <= now:
        return f"it was over at {end}. Give a later end."
    return None
