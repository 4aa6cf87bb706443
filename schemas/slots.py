"""Where a fact stands: a slot is one NATS subject, and holds one fact for ever.

    ledger.<workspace>.<thread>.<tail>        a thread and the calls in it
    ledger.<workspace>._policy.<version>      what the workspace itself decided
    ledger.<workspace>._tool.<tool>.<version>
    ledger.<workspace>._grant.<giver>.<name>.given|revoked|revoked.<reviewer>|used.<n>
    ledger.<workspace>._delegation.<giver>.<name>.given|ended
    ledger._organisation._policy.<version>    what holds in every workspace

The tail says what the slot is for. `FILLED_BY` is the whole list, and which facts may fill each;
everything that reads or writes a subject goes through this file.
"""

import functools
from typing import ClassVar, Final, Self

from msgspec import Struct

from ayes.schemas import events as e
from ayes.schemas.errors import BadId, BadSlot
from ayes.schemas.ids import token

ROOT: Final = "ledger"
POLICY: Final = "_policy"
TOOL: Final = "_tool"
GRANT: Final = "_grant"
DELEGATION: Final = "_delegation"
#: Stands in the slots in which a client claims and finishes the calls that it runs itself.
CLIENT: Final = "client"
#: Stands in a workspace's place. No workspace can be called so.
ORGANISATION: Final = "_organisation"

# `*` is a token somebody chose, `#` a number counted from 1. Thread tails first, then the
# workspace's own.
FILLED_BY: Final[dict[tuple[str, ...], tuple[type[e.Event], ...]]] = {
    ("opened",): (e.ThreadOpened,),
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
    # An executor's. `Revoked` stands here in logs from before reviewers had a slot for it.
    ("call", "*", "claim", "#"): (e.ToolStarted, e.Revoked, e.Declined),
    ("call", "*", "finished"): (e.ToolReturned, e.ToolFailed, e.ToolRefused, e.InDoubt),
    ("call", "*", "late", "#"): (e.ToolReturned, e.ToolFailed, e.ToolRefused, e.InDoubt),
    # The same for calls that a client runs.
    ("call", "*", "claim", CLIENT, "#"): (e.ToolStarted,),
    ("call", "*", "finished", CLIENT): (e.ToolReturned, e.ToolFailed, e.InDoubt),
    ("call", "*", "late", CLIENT, "#"): (e.ToolReturned, e.ToolFailed, e.InDoubt),
    ("call", "*", "reconciled", "*"): (e.Reconciled,),
    # In logs from before the slot named the reviewer.
    ("call", "*", "reconciled"): (e.Reconciled,),
    (POLICY, "#"): (e.PolicyApplied,),
    (TOOL, "*", "*"): (e.ToolDeclared,),
    (GRANT, "*", "*", "given"): (e.Granted,),
    # The gate's, after a denial; and a reviewer's. Without a name it may also be a reviewer's of an
    # older log.
    (GRANT, "*", "*", "revoked"): (e.GrantRevoked,),
    (GRANT, "*", "*", "revoked", "*"): (e.GrantRevoked,),
    (GRANT, "*", "*", "used", "#"): (e.GrantUsed,),
    (DELEGATION, "*", "*", "given"): (e.Delegated,),
    (DELEGATION, "*", "*", "ended"): (e.DelegationEnded,),
}


class Slot(Struct, frozen=True, gc=False):
    """One place in the ledger. `thread` is empty for the workspace's own slots."""

    workspace: str
    thread: str
    tail: tuple[str, ...]

    @property
    def subject(self) -> str:
        if (
            not self.workspace
        ):  # not a slot of the ledger: what stands there is carried (`elsewhere`)
            return ".".join(self.tail)
        head = (ROOT, self.workspace, self.thread) if self.thread else (ROOT, self.workspace)
        return ".".join((*head, *self.tail))

    @property
    def subjects(self) -> str:
        """What to read to have all that stands here, as for a thread or a call."""
        return self.subject

    @property
    def filled_by(self) -> tuple[type[e.Event], ...]:
        """The facts that may stand here.

        Raises:
            BadSlot: there is no such slot.
        """
        return _filled_by(self.tail, bool(self.thread))

    @property
    def thread_ref(self) -> "ThreadRef":
        assert self.thread, "a workspace's own slot belongs to no thread"
        return ThreadRef(self.workspace, self.thread)

    @property
    def call_ref(self) -> "CallRef | None":
        """The call that this slot belongs to, if it belongs to one."""
        match self.tail:
            case ("call", call, *_):
                return _call_ref(self.workspace, self.thread, call)
            case _:
                return None

    @classmethod
    def elsewhere(cls, subject: str) -> "Slot":
        """The place of a message whose subject is not a slot of the ledger."""
        return cls("", "", (subject,))

    @classmethod
    def parse(cls, subject: str) -> "Slot":
        """Read a subject back.

        Raises:
            BadSlot: it is no slot of the ledger.
        """
        return read(subject)[0]


class ThreadRef(Struct, frozen=True):
    """A conversation, written `workspace/thread`."""

    workspace: str
    thread: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `workspace/thread`.

        Raises:
            BadId: a part cannot be an id.
            BadSlot: it has not two parts.
        """
        return cls(*_parts(text, "workspace", "thread"))

    def __str__(self) -> str:
        return f"{self.workspace}/{self.thread}"

    def __post_init__(self) -> None:
        token("workspace", self.workspace)
        token("thread", self.thread)

    @property
    def subjects(self) -> str:
        """The wildcard over everything recorded in the thread."""
        return f"{ROOT}.{self.workspace}.{self.thread}.>"

    @property
    def opened(self) -> Slot:
        return self._slot("opened")

    def said(self, message: str) -> Slot:
        return self._slot("said", token("message", message))

    def asked(self, turn: int, attempt: int) -> Slot:
        return self._slot("turn", str(turn), "asked", str(attempt))

    def replied(self, turn: int) -> Slot:
        return self._slot("turn", str(turn), "replied")

    def call(self, call: str) -> "CallRef":
        return CallRef(self.workspace, self.thread, call)

    def wish(self, turn: int, index: int) -> "CallRef":
        """The call that a model's wish becomes: `<turn>-<index>`, never the provider's id, which
        repeats.
        """
        return _call_ref(self.workspace, self.thread, f"{turn}-{index}")

    def _slot(self, *tail: str) -> Slot:
        return Slot(self.workspace, self.thread, tail)


class CallRef(Struct, frozen=True):
    """One wish for a tool, written `workspace/thread/call`."""

    workspace: str
    thread: str
    call: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `workspace/thread/call`.

        Raises:
            BadId: a part cannot be an id.
            BadSlot: it has not three parts.
        """
        return cls(*_parts(text, "workspace", "thread", "call"))

    def __str__(self) -> str:
        return f"{self.workspace}/{self.thread}/{self.call}"

    def __post_init__(self) -> None:
        token("workspace", self.workspace)
        token("thread", self.thread)
        token("call", self.call)

    @property
    def subjects(self) -> str:
        """The wildcard over everything recorded about the call."""
        return f"{ROOT}.{self.workspace}.{self.thread}.call.{self.call}.>"

    @property
    def thread_ref(self) -> ThreadRef:
        return ThreadRef(self.workspace, self.thread)

    @property
    def wish(self) -> tuple[int, int] | None:
        """Turn and index of the model's wish that becomes this call. None: a service chose the
        id.
        """
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
        """Where it is announced that one person alone lets the call run, before it is decided."""
        return self._slot("announced")

    @property
    def withdrawn(self) -> Slot:
        return self._slot("withdrawn")

    @property
    def decided(self) -> Slot:
        return self._slot("decided")

    def revoked_by(self, reviewer: str) -> Slot:
        """Where a reviewer takes an approval back before the tool runs."""
        return self._slot("revoked", token("reviewer", reviewer))

    def claim(self, attempt: int) -> Slot:
        """Where an executor claims the call."""
        return self._slot("claim", str(attempt))

    @property
    def finished(self) -> Slot:
        """Where an executor says how the call ended."""
        return self._slot("finished")

    def late(self, number: int) -> Slot:
        """Where an executor's outcome goes that found `finished` taken.

        After an end that counts it is kept and never shown to the model. Where `finished` holds a
        void fact, it is the end.
        """
        return self._slot("late", str(number))

    def client_claim(self, attempt: int) -> Slot:
        """Where a client claims a call that it runs itself."""
        return self._slot("claim", CLIENT, str(attempt))

    @property
    def client_finished(self) -> Slot:
        """Where a client says how a call ended that it ran itself."""
        return self._slot("finished", CLIENT)

    def client_late(self, number: int) -> Slot:
        """Where a client's outcome goes that found `client_finished` taken; as `late`."""
        return self._slot("late", CLIENT, str(number))

    def reconciled_by(self, reviewer: str) -> Slot:
        """Where a reviewer says what really happened to a call in doubt."""
        return self._slot("reconciled", token("reviewer", reviewer))

    @property
    def reconciled(self) -> Slot:
        """The same in logs from before the slot named the reviewer."""
        return self._slot("reconciled")

    def _slot(self, *rest: str) -> Slot:
        return Slot(self.workspace, self.thread, ("call", self.call, *rest))


class _Standing(Struct, frozen=True):
    """What a person gave and may take back, written `workspace/giver/name`."""

    workspace: str
    #: Whose word it is: only this person's credentials can record it.
    giver: str
    name: str

    KIND: ClassVar[str]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `workspace/giver/name`.

        Raises:
            BadId: a part cannot be an id.
            BadSlot: it has not three parts.
        """
        return cls(*_parts(text, "workspace", "giver", "name"))

    def __str__(self) -> str:
        return f"{self.workspace}/{self.giver}/{self.name}"

    def __post_init__(self) -> None:
        token("workspace", self.workspace)
        token("giver", self.giver)
        token("name", self.name)

    @property
    def subjects(self) -> str:
        """The wildcard over everything recorded about it."""
        return f"{ROOT}.{self.workspace}.{self.KIND}.{self.giver}.{self.name}.>"

    @property
    def given(self) -> Slot:
        return self._slot("given")

    def _slot(self, *rest: str) -> Slot:
        return Slot(self.workspace, "", (self.KIND, self.giver, self.name, *rest))


class GrantRef(_Standing, frozen=True):
    """A standing yes: `workspace/giver/name`."""

    KIND: ClassVar[str] = GRANT

    @property
    def revoked(self) -> Slot:
        """Where the gate takes it back, after a denial of what it covers."""
        return self._slot("revoked")

    def revoked_by(self, reviewer: str) -> Slot:
        """Where a reviewer takes it back."""
        return self._slot("revoked", token("reviewer", reviewer))

    def used(self, number: int) -> Slot:
        return self._slot("used", str(number))


class DelegationRef(_Standing, frozen=True):
    """A person's word that another may vote in their place: `workspace/giver/name`."""

    KIND: ClassVar[str] = DELEGATION

    @property
    def ended(self) -> Slot:
        return self._slot("ended")


def policy_slot(workspace: str, version: int) -> Slot:
    """Where a version of a workspace's policy stands, or of the organisation's."""
    return Slot(_owner(workspace), "", (POLICY, str(version)))


def policies(workspace: str) -> str:
    """The wildcard over the policy versions of a workspace, or of the organisation."""
    return f"{ROOT}.{_owner(workspace)}.{POLICY}.*"


def grants(workspace: str) -> str:
    """The wildcard over all that was ever recorded about a workspace's grants."""
    return f"{ROOT}.{token('workspace', workspace)}.{GRANT}.>"


def delegations(workspace: str) -> str:
    """The wildcard over all that was ever recorded about a workspace's delegations."""
    return f"{ROOT}.{token('workspace', workspace)}.{DELEGATION}.>"


def matches(pattern: str, subject: str) -> bool:
    """Does a NATS subject match a pattern with `*` (one token) and `>` (the rest)?"""
    wanted, tokens = pattern.split("."), subject.split(".")
    for place, word in enumerate(wanted):
        if word == ">":
            return len(tokens) > place
        if place >= len(tokens) or word not in {"*", tokens[place]}:
            return False
    return len(wanted) == len(tokens)


def _owner(workspace: str) -> str:
    return workspace if workspace == ORGANISATION else token("workspace", workspace)


def tool_slot(workspace: str, tool: str, version: str) -> Slot:
    return Slot(
        token("workspace", workspace),
        "",
        (TOOL, token("tool", tool), token("tool version", version)),
    )


def declarations(workspace: str, tool: str = "*") -> str:
    """The wildcard over a workspace's tools, or over one tool's versions."""
    return f"{ROOT}.{token('workspace', workspace)}.{TOOL}.{tool if tool == '*' else token('tool', tool)}.*"


def _parts(text: str, *names: str) -> tuple[str, ...]:
    parts = tuple(text.split("/"))
    if len(parts) != len(names):
        raise BadSlot(
            f"{text!r} is not of the form {'/'.join(names)}: {len(parts)} parts instead of "
            f"{len(names)}."
        )
    return tuple(token(name, part) for name, part in zip(names, parts, strict=True))


def subject_text(raw: bytes) -> str:
    r"""A subject as text, whatever its bytes: printable ASCII stands for itself, any other byte is
    `\xff`.

    A NATS subject may hold any byte but those that end a token or a line. A backslash is escaped as
    well, so that two subjects never have the same text, and the text of a slot is its subject, byte
    for byte.
    """
    if raw.isascii() and (text := raw.decode("ascii")).isprintable() and "\\" not in text:
        return text
    return "".join(
        chr(one) if 0x20 <= one < 0x7F and one != _BACKSLASH else f"\\x{one:02x}" for one in raw
    )


_BACKSLASH: Final = ord("\\")


def read(subject: str) -> tuple[Slot, tuple[type[e.Event], ...]]:
    """The slot of a subject, and the facts that may stand there.

    Raises:
        BadSlot: it is no slot of the ledger.
    """
    # A log is read subject by subject, each of them once; what repeats is the thread and the tail.
    match subject.split(".", 3):
        case [root, workspace, thread, tail] if root == ROOT:
            pass
        case [root, workspace, thread] if root == ROOT:
            tail = ""
        case _:
            raise BadSlot(
                f"{subject!r} is no subject of the ledger: it does not start with "
                f"{ROOT}.<workspace>."
            )
    try:
        if thread.startswith("_"):
            thread, tail = "", f"{thread}.{tail}"
        _place(workspace, thread)
        return Slot(workspace, thread, (found := _tail(tail, bool(thread)))[0]), found[1]
    except BadId as problem:
        raise BadSlot(f"{subject!r} is no slot: {problem}") from None


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
        case "#":
            return word.isascii() and word.isdigit() and word[0] != "0" and len(word) <= 9
        case _:
            return pattern == word
