"""Slots: a slot is one NATS subject, and holds one fact for ever.

    ledger.<workspace>.<thread>.<tail>        a thread and the calls in it
    ledger.<workspace>._policy.<version>      the workspace's own slots
    ledger.<workspace>._tool.<tool>.<version>
    ledger.<workspace>._grant.<giver>.<name>.given|revoked|revoked.<reviewer>|used.<n>
    ledger.<workspace>._delegation.<giver>.<name>.given|ended|absent|absent.ended
    ledger.<workspace>._budget.<name>.<sum>.<n>
    ledger.<workspace>._stop.<giver>.<name>.given|resumed.<reviewer>|ended
    ledger._organisation._policy.<version>    the policy that holds in every workspace
    ledger._organisation._stop.<giver>.<name>...   a stop of all workspaces
    ledger._organisation._person.<name>.<n>|account.<n>|groups.<day>.<n>
    ledger._organisation._login.<name>.<n>
    ledger._organisation._key.<person>.<key>.added|confirmed|confirmed.<reviewer>|revoked|...
    ledger._organisation._oncall.<schedule>.<day>.<n>
    ledger._organisation._log.<n>             the log was accepted as it was

The tail says what the slot is for. `FILLED_BY` lists all slots and the facts that may fill each.
Every slot that is filled or read is made by this file; readers of several write wildcards of their
own.
"""

import functools
import hashlib
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import ClassVar, Final, Self

from msgspec import Struct
from msgspec.structs import astuple

from ayes.schemas import events as e
from ayes.schemas.errors import BadId, BadSlot
from ayes.schemas.ids import token
from ayes.schemas.tool_names import tool_of_token, tool_token

ROOT: Final = "ledger"
POLICY: Final = "_policy"
TOOL: Final = "_tool"
GRANT: Final = "_grant"
DELEGATION: Final = "_delegation"
BUDGET: Final = "_budget"
STOP: Final = "_stop"
#: People and their accounts, which are the same in every workspace: the organisation's only.
PERSON: Final = "_person"
#: Logins with a name and a key: the organisation's only.
LOGIN: Final = "_login"
#: People's keys, which sign votes in every workspace: the organisation's only.
KEY: Final = "_key"
#: Who is on call, by schedule: the organisation's only.
ONCALL: Final = "_oncall"
#: What is known of the log itself: the organisation's only.
LOG: Final = "_log"
#: The kinds that the organisation alone has.
ORGANISATIONS: Final = frozenset({PERSON, LOGIN, KEY, ONCALL, LOG})
#: The token of the slots in which a client claims and finishes the calls that it runs itself.
CLIENT: Final = "client"
#: The token of the slots of notices to rooms, which people share.
ROOM: Final = "room"
#: The token of the slots of a thread's packs.
PACKED: Final = "packed"
#: The beginning of the ids of sub-agents' threads.
_BELOW: Final = "sub-"
#: Takes the place of a workspace; not a valid name of one.
ORGANISATION: Final = "_organisation"

# `*` is an id, `#` a number counted from 1, `%` the token of a tool's name. First the tails in a
# thread, then the workspace's own.
FILLED_BY: Final[dict[tuple[str, ...], tuple[type[e.Event], ...]]] = {
    ("opened",): (e.ThreadOpened,),
    # Of the key under which values are sealed.
    ("keyed",): (e.Keyed,),
    ("forgetting",): (e.ForgettingBegan,),
    ("forgotten",): (e.Forgotten,),
    # What is settled in the thread, so that it may leave the stream.
    (PACKED, "#"): (e.Packed,),
    ("said", "*"): (e.Said,),
    ("turn", "#", "asked", "#"): (e.ModelAsked,),
    ("turn", "#", "replied"): (e.ModelReplied, e.ModelFailed),
    ("call", "*", "requested"): (e.ToolRequested,),
    ("call", "*", "gated"): (e.ApprovalRequested,),
    ("call", "*", "vote", "*"): (e.Voted,),
    ("call", "*", "escalated", "#"): (e.Escalated,),
    ("call", "*", "announced"): (e.GlassBroken,),
    ("call", "*", "withdrawn"): (e.Withdrawn, e.Superseded),
    ("call", "*", "decided"): (
        e.Approved,
        e.Denied,
        e.Answered,
        e.Expired,
        e.Withdrawn,
        e.Superseded,
    ),
    ("call", "*", "revoked", "*"): (e.Revoked,),
    ("call", "*", "lapsed"): (e.Lapsed,),
    # An executor's.
    ("call", "*", "claim", "#"): (e.ToolStarted, e.Declined),
    ("call", "*", "finished"): (e.ToolReturned, e.ToolFailed, e.ToolRefused, e.InDoubt),
    ("call", "*", "late", "#"): (e.ToolReturned, e.ToolFailed, e.ToolRefused, e.InDoubt),
    # The same for calls that a client runs.
    ("call", "*", "claim", CLIENT, "#"): (e.ToolStarted,),
    ("call", "*", "finished", CLIENT): (e.ToolReturned, e.ToolFailed, e.InDoubt),
    ("call", "*", "late", CLIENT, "#"): (e.ToolReturned, e.ToolFailed, e.InDoubt),
    # To whom, and on which occasion (`asked`, `escalated-1`, ...).
    ("call", "*", "notified", "*", "*"): (e.Notified,),
    ("call", "*", "notified", ROOM, "*", "*"): (e.Notified,),
    # The channel of a chat.
    ("call", "*", "posted", "*"): (e.Posted,),
    # The author, and which of the author's comments on the call.
    ("call", "*", "comment", "*", "#"): (e.Commented,),
    # By whom, and which of this person's handovers of the call.
    ("call", "*", "handed", "*", "#"): (e.HandedOver,),
    ("call", "*", "reconciled", "*"): (e.Reconciled,),
    (POLICY, "#"): (e.PolicyApplied,),
    (TOOL, "%", "*"): (e.ToolDeclared,),
    (GRANT, "*", "*", "given"): (e.Granted,),
    # The gate's, after a denial; then a reviewer's.
    (GRANT, "*", "*", "revoked"): (e.GrantRevoked,),
    (GRANT, "*", "*", "revoked", "*"): (e.GrantRevoked,),
    (GRANT, "*", "*", "used", "#"): (e.GrantUsed,),
    (DELEGATION, "*", "*", "given"): (e.Delegated,),
    (DELEGATION, "*", "*", "ended"): (e.DelegationEnded,),
    # The same by the giver's calendar. The giver may end either.
    (DELEGATION, "*", "*", "absent"): (e.Delegated,),
    (DELEGATION, "*", "*", "absent", "ended"): (e.DelegationEnded,),
    # The budget's name, and a digest of which of its sums.
    (BUDGET, "*", "*", "#"): (e.BudgetUsed,),
    (STOP, "*", "*", "given"): (e.Stopped,),
    (STOP, "*", "*", "resumed", "*"): (e.Resumed,),
    (STOP, "*", "*", "ended"): (e.StopEnded,),
    # A person's own word, and the organisation's.
    (PERSON, "*", "account", "#"): (e.AccountBound,),
    (PERSON, "*", "#"): (e.PersonAdded, e.WorkspacesSet, e.PersonRemoved),
    (LOGIN, "*", "#"): (e.LoginAdded, e.LoginRevoked),
    # A person's own word; then the organisation's, or another person's.
    (KEY, "*", "*", "added"): (e.KeyAdded,),
    (KEY, "*", "*", "confirmed"): (e.KeyConfirmed,),
    (KEY, "*", "*", "confirmed", "*"): (e.KeyConfirmed,),
    (KEY, "*", "*", "revoked"): (e.KeyRevoked,),
    (KEY, "*", "*", "revoked", "*"): (e.KeyRevoked,),
    # What a provider said; of each day a series of its own, since readers need the last ones only.
    (PERSON, "*", "groups", "#", "#"): (e.GroupsRead,),
    # What a calendar said of who is on call, likewise.
    (ONCALL, "*", "#", "#"): (e.OnCallRead,),
    (LOG, "#"): (e.LogAccepted,),
}


#: The comments, and handovers, that one person may have on one call. The broker cannot bound the
#: numbers in subjects: a login may record more, which are not part of the call.
MOST_SAID: Final = {"comment": 100, "handed": 20}


#: The first token of the subjects of the store of files, which are not slots.
FILES: Final = "file"


def file_piece(workspace: str, place: str, number: int) -> str:
    """The subject of a piece of a file, counted from 1."""
    return f"{FILES}.{workspace}.{place}.{number}"


class Slot(Struct, frozen=True, gc=False):
    """One place in the ledger. `thread` is empty for the workspace's own slots."""

    workspace: str
    thread: str
    tail: tuple[str, ...]

    @property
    def subject(self) -> str:
        if not self.workspace:  # not a slot of the ledger (`elsewhere`)
            return ".".join(self.tail)
        head = (ROOT, self.workspace, self.thread) if self.thread else (ROOT, self.workspace)
        return ".".join((*head, *self.tail))

    @property
    def subjects(self) -> str:
        """The subjects to read, as for a thread or a call."""
        return self.subject

    @property
    def filled_by(self) -> tuple[type[e.Event], ...]:
        """The facts that may be here.

        Raises:
            BadSlot: there is no such slot.
        """
        return _filled_by(self.tail, bool(self.thread))

    @property
    def is_surplus(self) -> bool:
        """Whether it is a person's comment or handover after the last that is part of the call."""
        match self.tail:
            case ("call", _, "comment" | "handed" as what, _, number):
                return int(number) > MOST_SAID[what]
            case _:
                return False

    @property
    def thread_ref(self) -> "ThreadRef":
        assert self.thread, "a workspace's own slot belongs to no thread"
        return ThreadRef(self.workspace, self.thread)

    @property
    def tool(self) -> tuple[str, str]:
        """The tool that is declared here, and the version. Only for slots of declarations."""
        kind, named, version = self.tail
        assert kind == TOOL
        return tool_of_token(named), version

    @property
    def call_ref(self) -> "CallRef | None":
        """The call that this slot belongs to, if any."""
        match self.tail:
            case ("call", call, *_):
                return _call_ref(self.workspace, self.thread, call)
            case _:
                return None

    @classmethod
    def elsewhere(cls, subject: str) -> "Slot":
        """A stand-in for a subject that is not a slot of the ledger."""
        return cls("", "", (subject,))

    @classmethod
    def parse(cls, subject: str) -> "Slot":
        """Parse a subject.

        Raises:
            BadSlot: it is not a slot of the ledger.
        """
        return read(subject)[0]


class _Ref(Struct, frozen=True):
    """Ids that together name one thing, written with slashes between them."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the written form, such as `workspace/thread/call`.

        Raises:
            BadId: a part is not a valid id.
            BadSlot: the number of parts is wrong.
        """
        parts, names = text.split("/"), cls.__struct_fields__
        if len(parts) != len(names):
            found = "1 part" if len(parts) == 1 else f"{len(parts)} parts"
            form = f"{text!r} is not of the form {'/'.join(names)}"
            raise BadSlot(f"{form}: {found} instead of {len(names)}.")
        return cls(*parts)

    def __str__(self) -> str:
        return "/".join(astuple(self))

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            token(name, getattr(self, name))


class ThreadRef(_Ref, frozen=True):
    """A conversation, written `workspace/thread`."""

    workspace: str
    thread: str

    @property
    def subjects(self) -> str:
        """The wildcard over all facts of the thread."""
        return f"{ROOT}.{self.workspace}.{self.thread}.>"

    @property
    def is_below(self) -> bool:
        """Whether its id is of the form of a sub-agent's thread (`CallRef.below`)."""
        return self.thread.startswith(_BELOW)

    @property
    def opened(self) -> Slot:
        return self._slot("opened")

    @property
    def keyed(self) -> Slot:
        """The commitment of its key."""
        return self._slot("keyed")

    @property
    def forgetting(self) -> Slot:
        return self._slot("forgetting")

    @property
    def forgotten(self) -> Slot:
        return self._slot("forgotten")

    def packed(self, number: int) -> Slot:
        """A pack of its facts, counted from 1."""
        return self._slot(PACKED, str(number))

    @property
    def packs(self) -> str:
        """The wildcard over its packs."""
        return f"{ROOT}.{self.workspace}.{self.thread}.{PACKED}.*"

    def said(self, message: str) -> Slot:
        return self._slot("said", token("message", message))

    def asked(self, turn: int, attempt: int) -> Slot:
        return self._slot("turn", str(turn), "asked", str(attempt))

    def replied(self, turn: int) -> Slot:
        return self._slot("turn", str(turn), "replied")

    def call(self, call: str) -> "CallRef":
        return CallRef(self.workspace, self.thread, call)

    def wish(self, turn: int, index: int) -> "CallRef":
        """The call of a model's wish: `<turn>-<index>`, since the provider's ids repeat."""
        return _call_ref(self.workspace, self.thread, f"{turn}-{index}")

    def _slot(self, *tail: str) -> Slot:
        return Slot(self.workspace, self.thread, tail)


class CallRef(_Ref, frozen=True):
    """One request to run a tool, written `workspace/thread/call`."""

    workspace: str
    thread: str
    call: str

    @property
    def subjects(self) -> str:
        """The wildcard over all facts of the call."""
        return f"{ROOT}.{self.workspace}.{self.thread}.call.{self.call}.>"

    @property
    def revocations(self) -> str:
        """The wildcard over the revocations of its approval."""
        return f"{ROOT}.{self.workspace}.{self.thread}.call.{self.call}.revoked.*"

    @property
    def thread_ref(self) -> ThreadRef:
        return ThreadRef(self.workspace, self.thread)

    @property
    def below(self) -> ThreadRef:
        """The thread that is opened in the run of this call, for a sub-agent.

        Its id is `sub-` and the first 32 hexadecimal digits of the SHA-256 of
        `workspace/thread/call`.
        """
        digest = hashlib.sha256(str(self).encode()).hexdigest()
        return ThreadRef(self.workspace, f"{_BELOW}{digest[:32]}")

    @property
    def wish(self) -> tuple[int, int] | None:
        """Turn and index of the model's wish behind this call; None if a service chose the id."""
        return _wish(self.call)

    @property
    def requested(self) -> Slot:
        return self._slot("requested")

    @property
    def gated(self) -> Slot:
        return self._slot("gated")

    def vote(self, reviewer: str) -> Slot:
        return self._slot("vote", token("reviewer", reviewer))

    def escalated(self, stage: int) -> Slot:
        return self._slot("escalated", str(stage))

    @property
    def announced(self) -> Slot:
        """Announces that one person alone lets the call run, before it is decided."""
        return self._slot("announced")

    @property
    def withdrawn(self) -> Slot:
        return self._slot("withdrawn")

    @property
    def decided(self) -> Slot:
        return self._slot("decided")

    def revoked_by(self, reviewer: str) -> Slot:
        """A reviewer's revocation of the approval, before the tool runs."""
        return self._slot("revoked", token("reviewer", reviewer))

    @property
    def lapsed(self) -> Slot:
        """The end of the approval's validity, before the tool runs."""
        return self._slot("lapsed")

    def claim(self, attempt: int) -> Slot:
        """An executor's claim."""
        return self._slot("claim", str(attempt))

    @property
    def finished(self) -> Slot:
        """The end, as an executor records it."""
        return self._slot("finished")

    def late(self, number: int) -> Slot:
        """An executor's outcome when `finished` is taken.

        It is the end if the fact in `finished` is void; else it is kept, never shown to the model.
        """
        return self._slot("late", str(number))

    def client_claim(self, attempt: int) -> Slot:
        """A client's claim of a call that it runs itself."""
        return self._slot("claim", CLIENT, str(attempt))

    @property
    def client_finished(self) -> Slot:
        """The end of a call that a client ran itself."""
        return self._slot("finished", CLIENT)

    def client_late(self, number: int) -> Slot:
        """A client's outcome when `client_finished` is taken; as `late`."""
        return self._slot("late", CLIENT, str(number))

    def notified(self, person: str, occasion: str) -> Slot:
        """A person was told about the call on this occasion, such as `asked` or `escalated-1`."""
        return self._slot("notified", token("person", person), token("occasion", occasion))

    def room_notified(self, room: str, occasion: str) -> Slot:
        """As `notified`, of a room."""
        return self._slot("notified", ROOM, token("room", room), token("occasion", occasion))

    def posted(self, channel: str) -> Slot:
        """The message about the call in this channel of a chat."""
        return self._slot("posted", token("channel", channel))

    def comment(self, author: str, number: int) -> Slot:
        """A person's comment, by its number among the author's on the call."""
        return self._slot("comment", token("reviewer", author), str(number))

    def handed_by(self, reviewer: str, number: int) -> Slot:
        """A reviewer hands it to a colleague, by its number among the reviewer's."""
        return self._slot("handed", token("reviewer", reviewer), str(number))

    def reconciled_by(self, reviewer: str) -> Slot:
        """A reviewer's word on what happened to a call in doubt."""
        return self._slot("reconciled", token("reviewer", reviewer))

    def _slot(self, *rest: str) -> Slot:
        return Slot(self.workspace, self.thread, ("call", self.call, *rest))


class _GivenRef(_Ref, frozen=True):
    """A grant, a delegation or a stop, written `workspace/giver/name`."""

    workspace: str
    #: Only this person's credentials can record it.
    giver: str
    name: str

    KIND: ClassVar[str]

    @property
    def subjects(self) -> str:
        """The wildcard over all facts about it."""
        return f"{ROOT}.{self.workspace}.{self.KIND}.{self.giver}.{self.name}.>"

    @property
    def given(self) -> Slot:
        return self._slot("given")

    def _slot(self, *rest: str) -> Slot:
        return Slot(self.workspace, "", (self.KIND, self.giver, self.name, *rest))


class GrantRef(_GivenRef, frozen=True):
    """A reviewer's standing approval: `workspace/giver/name`."""

    KIND: ClassVar[str] = GRANT

    @property
    def revoked(self) -> Slot:
        """The gate's revocation, after people denied a call that the grant covers."""
        return self._slot("revoked")

    def revoked_by(self, reviewer: str) -> Slot:
        """A reviewer's revocation."""
        return self._slot("revoked", token("reviewer", reviewer))

    def used(self, number: int) -> Slot:
        return self._slot("used", str(number))


class DelegationRef(_GivenRef, frozen=True):
    """A permission to vote in the giver's place: `workspace/giver/name`."""

    KIND: ClassVar[str] = DELEGATION

    @property
    def ended(self) -> Slot:
        return self._slot("ended")

    @property
    def absent(self) -> Slot:
        """Where the giver's calendar delegates, instead of the giver in `given`."""
        return self._slot("absent")

    @property
    def absent_ended(self) -> Slot:
        """Where the calendar ends that."""
        return self._slot("absent", "ended")


class StopRef(_GivenRef, frozen=True):
    """A person's stop: `workspace/giver/name`, or `_organisation/giver/name` for all workspaces."""

    KIND: ClassVar[str] = STOP

    def __post_init__(self) -> None:
        _owner(self.workspace)
        token("giver", self.giver)
        token("name", self.name)

    def resumed_by(self, reviewer: str) -> Slot:
        return self._slot("resumed", token("reviewer", reviewer))

    @property
    def ended(self) -> Slot:
        return self._slot("ended")


class BudgetRef(_Ref, frozen=True):
    """One sum of a budget, written `workspace/name/sum`."""

    workspace: str
    name: str
    #: A digest of what the sum is for (`ayes.ledger.judging.budgets`).
    sum: str

    @property
    def subjects(self) -> str:
        """The wildcard over its amounts."""
        return f"{ROOT}.{self.workspace}.{BUDGET}.{self.name}.{self.sum}.*"

    def used(self, number: int) -> Slot:
        return Slot(self.workspace, "", (BUDGET, self.name, self.sum, str(number)))


def policy_slot(workspace: str, version: int) -> Slot:
    """The slot of a version of a workspace's policy, or of the organisation's."""
    return Slot(_owner(workspace), "", (POLICY, str(version)))


def log_slot(number: int) -> Slot:
    """The slot in which the log is accepted as it is, for the n-th time."""
    return Slot(ORGANISATION, "", (LOG, str(number)))


def policies(workspace: str) -> str:
    """The wildcard over the policy versions of a workspace, or of the organisation."""
    return f"{ROOT}.{_owner(workspace)}.{POLICY}.*"


def grants(workspace: str) -> str:
    """The wildcard over all facts about a workspace's grants."""
    return f"{ROOT}.{token('workspace', workspace)}.{GRANT}.>"


def delegations(workspace: str) -> str:
    """The wildcard over all facts about a workspace's delegations."""
    return f"{ROOT}.{token('workspace', workspace)}.{DELEGATION}.>"


def stops(workspace: str) -> tuple[str, ...]:
    """The wildcards over all facts about the stops that hold in a workspace."""
    own = f"{ROOT}.{_owner(workspace)}.{STOP}.>"
    return (own, *(() if workspace == ORGANISATION else (f"{ROOT}.{ORGANISATION}.{STOP}.>",)))


#: The wildcard over the additions and removals of people.
REMOVALS: Final = f"{ROOT}.{ORGANISATION}.{PERSON}.*.*"
#: The wildcards over these and people's accounts.
PEOPLE: Final = (REMOVALS, f"{ROOT}.{ORGANISATION}.{PERSON}.*.account.*")
#: The wildcard over what providers said of groups.
GROUPS: Final = f"{ROOT}.{ORGANISATION}.{PERSON}.*.groups.*.*"


#: The wildcard over the threads that are being forgotten, or are forgotten.
FORGETTING: Final = f"{ROOT}.*.*.forgetting"
#: The wildcard over the threads in which values are sealed.
KEYED: Final = f"{ROOT}.*.*.keyed"


def person_slot(name: str, number: int) -> Slot:
    """The slot of a person's beginning or end; each has the next number."""
    return Slot(ORGANISATION, "", (PERSON, token("reviewer", name), str(number)))


def account_slot(name: str, number: int) -> Slot:
    """The slot of a person's account; each has the next number."""
    return Slot(ORGANISATION, "", (PERSON, token("reviewer", name), "account", str(number)))


def login_slot(name: str, number: int) -> Slot:
    """The slot of a login's beginning or end; each has the next number."""
    return Slot(ORGANISATION, "", (LOGIN, token("login", name), str(number)))


#: The wildcard over all facts about people's keys.
KEYS: Final = f"{ROOT}.{ORGANISATION}.{KEY}.>"


_VOTES: Final = f"{ROOT}.*.*.call.*.vote."


def votes_of(name: str) -> str:
    """The wildcard over all votes that a person has recorded."""
    return f"{_VOTES}{token('reviewer', name)}"


def is_votes_of(subjects: str) -> bool:
    """Whether it is the wildcard over all votes of somebody."""
    return subjects.startswith(_VOTES)


def key_slot(name: str, key: str, place: str, by: str = "") -> Slot:
    """The slot of a fact about a person's key: `added`, or `confirmed` or `revoked` by somebody.

    Args:
        key: its id.
        by: the reviewer; empty: the organisation, or the person themselves who adds it.
    """
    tail = (KEY, token("reviewer", name), token("key", key), place)
    return Slot(ORGANISATION, "", (*tail, token("reviewer", by)) if by else tail)


def groups_slot(name: str, day: datetime, number: int) -> Slot:
    """The slot of what was said of a person's groups that day (UTC), under their name in the form
    of `plain`.
    """
    tail = (PERSON, token("reviewer", name.casefold()), "groups", f"{day:%Y%m%d}", str(number))
    return Slot(ORGANISATION, "", tail)


def on_call_slot(schedule: str, day: datetime, number: int) -> Slot:
    """The slot of what was read that day (UTC) of who is on call."""
    tail = (ONCALL, token("schedule", schedule), f"{day:%Y%m%d}", str(number))
    return Slot(ORGANISATION, "", tail)


def matches(pattern: str, subject: str) -> bool:
    """Whether a NATS subject matches a pattern with `*` (one token) and `>` (the rest)."""
    wanted, tokens = pattern.split("."), subject.split(".")
    for place, word in enumerate(wanted):
        if word == ">":
            return len(tokens) > place
        if place >= len(tokens) or word not in {"*", tokens[place]}:
            return False
    return len(wanted) == len(tokens)


def matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Whether a subject matches one of these, for who compares many subjects with them."""
    each = frozenset(patterns)
    # Hundreds of calls may be asked for, by their subjects.
    heads = tuple([one[:-1] for one in each if one[-1] == ">" and "*" not in one])
    others = [one for one in each if "*" in one]
    return lambda subject: (
        subject in each or subject.startswith(heads) or any(matches(one, subject) for one in others)
    )


def _owner(workspace: str) -> str:
    return workspace if workspace == ORGANISATION else token("workspace", workspace)


def tool_slot(workspace: str, tool: str, version: str) -> Slot:
    tail = (TOOL, tool_token(tool), token("tool version", version))
    return Slot(token("workspace", workspace), "", tail)


def declarations(workspace: str, tool: str = "*") -> str:
    """The wildcard over a workspace's tools, or over one tool's versions."""
    name = tool if tool == "*" else tool_token(tool)
    return f"{ROOT}.{token('workspace', workspace)}.{TOOL}.{name}.*"


def subject_text(raw: bytes) -> str:
    r"""A subject as text: printable ASCII as it is, any other byte and the backslash as `\xff`.

    A NATS subject may hold any bytes but those that end a token or a line. No two subjects have the
    same text, and the text of a slot is its subject, byte for byte.
    """
    if raw.isascii() and (text := raw.decode("ascii")).isprintable() and "\\" not in text:
        return text
    return "".join(
        chr(one) if 0x20 <= one < 0x7F and one != _BACKSLASH else f"\\x{one:02x}" for one in raw
    )


_BACKSLASH: Final = ord("\\")


def read(subject: str) -> tuple[Slot, tuple[type[e.Event], ...]]:
    """The slot of a subject, and the facts that may be in it.

    Raises:
        BadSlot: it is not a slot of the ledger.
    """
    # A log has each subject once; only the thread and the tail repeat, so these are cached.
    match subject.split(".", 3):
        case [root, workspace, thread, tail] if root == ROOT:
            pass
        case [root, workspace, thread] if root == ROOT:
            tail = ""
        case _:
            why = f"it does not start with {ROOT}.<workspace>"
            raise BadSlot(f"{subject!r} is not a subject of the ledger: {why}.")
    try:
        if thread.startswith("_"):
            thread, tail = "", f"{thread}.{tail}"
        _place(workspace, thread)
        return Slot(workspace, thread, (found := _tail(tail, bool(thread)))[0]), found[1]
    except BadId as problem:
        raise BadSlot(f"{subject!r} is not a slot: {problem}") from None


@functools.lru_cache(maxsize=8192)
def _place(workspace: str, thread: str) -> None:
    if thread:
        token("workspace", workspace)
        token("thread", thread)
    else:
        _owner(workspace)


@functools.lru_cache(maxsize=8192)
def _tail(text: str, in_thread: bool) -> tuple[tuple[str, ...], tuple[type[e.Event], ...]]:
    tail = tuple(text.split("."))
    return tail, _filled_by(tail, in_thread)


@functools.lru_cache(maxsize=8192)
def _call_ref(workspace: str, thread: str, call: str) -> CallRef:
    return CallRef(workspace, thread, call)


@functools.lru_cache(maxsize=8192)
def _wish(call: str) -> tuple[int, int] | None:
    turn, _, index = call.partition("-")
    if not (turn.isdecimal() and index.isdecimal()):
        return None
    found = int(turn), int(index)
    return found if call == "{}-{}".format(*found) else None


@functools.lru_cache(maxsize=8192)
def _filled_by(tail: tuple[str, ...], in_thread: bool) -> tuple[type[e.Event], ...]:
    for shape, kinds in FILLED_BY.items():
        ours = shape[0].startswith("_")
        if len(shape) == len(tail) and ours is not in_thread and all(map(_fits, shape, tail)):
            return kinds
    raise BadSlot(
        f"there is no slot {'.'.join(tail)!r}. The slots are: "
        f"{', '.join(map('.'.join, FILLED_BY))}."
    )


def _fits(pattern: str, word: str) -> bool:
    match pattern:
        case "*":
            token("id", word)
            return True
        case "%":
            tool_of_token(word)
            return True
        case "#":
            return word.isascii() and word.isdigit() and word[0] != "0" and len(word) <= 9
        case _:
            return pattern == word
