"""Who is a person, and whose an account elsewhere is (docs/decisions/0054).

An account with which somebody votes or signs in belongs to the person who bound it, with that
person's own credentials. In the order of the log the first one who binds an account has it, until
the organisation says that the name stands for nobody, or for somebody else, from there on. What a
workspace says counts for nothing here.

Nothing runs on what is recorded in the name of a removed person, or of one in a workspace that is
not theirs: votes, grants and delegations do not count. So it does not matter that a broker still
accepts the old password, or lets a person of some workspaces record in all.

Who is in a group of a provider is what it said last, of the account there that the person has
bound, for as long as that lasts (docs/decisions/0068). Nobody is in a group otherwise.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.people import plain
from ayes.schemas.quorums import GROUP, is_among, is_group
from ayes.schemas.slots import PEOPLE, PERSON, groups_slot

#: How accounts at OpenID Connect providers begin; the issuer, `#` and the subject follow.
OPENID: Final = "openid:"


#: Readers need the readings of two days (`readings_for`).
LONGEST: Final = timedelta(days=1)


class People(Struct, frozen=True):
    """The people, as of a moment."""

    #: By account: the reviewer who bound it.
    accounts: dict[str, str] = {}
    #: By name in the form of `plain`: the additions, removals and changes of workspaces, in the
    #: order of the log.
    changes: dict[str, tuple[Fact, ...]] = {}
    #: By name in that form: what providers said of the groups of an account that was theirs, in the
    #: order of the log. None: nobody has read it.
    readings: dict[str, tuple[Fact, ...]] | None = None
    #: Whether the last groups of people who have not voted yet count although they were read long
    #: ago. They do for who is told, and asked to sign in again.
    forgives: bool = False

    @property
    def removed(self) -> tuple[str, ...]:
        """The names that stand for nobody, in the form of `plain`."""
        return tuple(filter(self.is_removed, self.changes))

    def is_removed(self, name: str, before: int | None = None) -> bool:
        """Whether a name stands for nobody; with `before`, just before that number of the log."""
        last = self._last(name, before)
        return last is not None and isinstance(last.event, e.PersonRemoved)

    def bar(self, name: str, workspace: str, before: int | None = None) -> Fact | None:
        """The fact by which a name may decide nothing in a workspace: its removal, or what gives it
        others; None if it may. With `before`, just before that number of the log.
        """
        last = self._last(name, before)
        match last and last.event:
            case e.PersonRemoved():
                return last
            case e.PersonAdded(workspaces=only) | e.WorkspacesSet(workspaces=only):
                return last if only and workspace not in only else None
            case _:
                return None

    def since(self, name: str) -> datetime | None:
        """When the name was last given to somebody or taken away; None: never."""
        changes = reversed(self.changes.get(plain(name), ()))
        given = (one for one in changes if not isinstance(one.event, e.WorkspacesSet))
        return next((one.recorded_at for one in given), None)

    def workspaces(self, name: str) -> tuple[str, ...]:
        """The workspaces that a person may see and decide in, by the last fact that says so; none:
        all of them.
        """
        for one in reversed(self.changes.get(plain(name), ())):
            if isinstance(one.event, e.PersonAdded | e.WorkspacesSet):
                return one.event.workspaces
        return ()

    def _last(self, name: str, before: int | None = None) -> Fact | None:
        changes = reversed(self.changes.get(plain(name), ()))
        return next((one for one in changes if before is None or one.seq < before), None)

    def reading(self, name: str, before: int | None = None) -> e.GroupsRead | None:
        """What was said last of the groups of a person, whether or not it still counts.

        Args:
            before: as of just before that number of the log.
        """
        for one in reversed((self.readings or {}).get(plain(name), ())):
            assert isinstance(one.event, e.GroupsRead)
            if before is None and self.forgives and one.event.problem:
                continue
            if before is None or one.seq < before:
                changes = self.changes.get(plain(name), ())
                is_theirs = not any(
                    one.seq < change.seq and (before is None or change.seq < before)
                    for change in changes
                    if not isinstance(change.event, e.WorkspacesSet)
                )
                return one.event if is_theirs else None
        return None

    def groups(self, name: str, at: datetime, before: int | None = None) -> frozenset[str]:
        """The groups of a person at that time, as policies name them."""
        read = self.reading(name, before)
        if read is None or not (
            at < min(read.until, read.read_at + LONGEST) or (before is None and self.forgives)
        ):
            return frozenset()
        return frozenset(GROUP + one for one in read.groups)

    def groups_words(self, name: str, at: datetime) -> str:
        """A sentence about what is known of a person's groups at that time."""
        read = self.reading(name)
        if read is None:
            return f"In which groups {name} is has not been read: sign in to the console."
        if read.problem:
            return f"In which groups {name} is could not be read: {read.problem}."
        named = ", ".join(read.groups) or "no group"
        said = f"{read.issuer} named {named} for {name} at {read.read_at:%Y-%m-%d %H:%M:%S} UTC"
        if at < read.until:
            return f"{said}."
        return f"{said}, which is too long ago: sign in to the console again, or vote there."

    def is_among(
        self, name: str, voters: Iterable[str], at: datetime, before: int | None = None
    ) -> bool:
        """Whether a person is one of these voters, by name or by a group."""
        voters = tuple(voters)
        return is_among(name, voters) or (
            any(map(is_group, voters)) and not self.groups(name, at, before).isdisjoint(voters)
        )

    def of(self, name: str, beginning: str = "") -> tuple[str, ...]:
        """The accounts of a person that begin so, in the order in which they were bound."""
        return tuple(
            one
            for one, whose in self.accounts.items()
            if plain(whose) == plain(name) and one.startswith(beginning)
        )


def people_of(facts: Iterable[Fact]) -> People:
    """The people and their accounts, by all facts about them in the order of the log."""
    accounts: dict[str, str] = {}
    changes: dict[str, tuple[Fact, ...]] = {}
    readings: dict[str, tuple[Fact, ...]] = {}
    for fact in facts:
        if fact.slot.tail[:1] != (PERSON,):
            continue
        name = fact.slot.tail[1]
        match fact.event:
            case e.AccountBound(account=account) if not People(changes=changes).is_removed(name):
                accounts.setdefault(account, name)
            case e.GroupsRead(issuer=issuer, subject=subject):
                if plain(accounts.get(f"{OPENID}{issuer}#{subject}", "")) == name:
                    readings[name] = (*readings.get(name, ()), fact)
            case e.PersonAdded() | e.PersonRemoved():
                accounts = {
                    one: whose for one, whose in accounts.items() if plain(whose) != plain(name)
                }
                changes[plain(name)] = (*changes.get(plain(name), ()), fact)
            case e.WorkspacesSet() if not People(changes=changes).is_removed(name):
                changes[plain(name)] = (*changes.get(plain(name), ()), fact)
    return People(accounts, changes, readings)


def readings_for(voters: Iterable[str], votes: Iterable[tuple[str, datetime]]) -> tuple[str, ...]:
    """The wildcards to read for the groups of people who vote at these times; none if no voter is
    a group.
    """
    if not any(map(is_group, voters)):
        return ()
    days = (
        groups_slot(plain(name), at - timedelta(days=back), 1).subject.removesuffix("1") + "*"
        for name, at in votes
        for back in (1, 0)
    )
    return (*PEOPLE, *dict.fromkeys(days))
