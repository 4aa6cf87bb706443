"""The facts: everything that can be said about a conversation, its tool calls and their approvals.

Each is in the past tense and says one thing. How a call can end are siblings (Approved, Denied,
Expired, ...), so that one is never mistaken for another. Which fact may stand where is in
`slots.py`; what may follow what is in `ledger/lifecycle.py`.

The rules of this file:

* The name on the wire is spelled out beside the class (`tag=`) and never follows a rename.
* Classes grow by fields with defaults; no field ever changes its meaning. A change that defaults
  cannot express is a new version: raise the number in `VERSION`, teach `codec.py` to lift the old
  one, keep the old sample.
* Arguments, outputs and schemas are the raw text that came, never a parsed and re-written form of
  it. A digest over re-written JSON would be a digest over something that nobody saw.
* Durations carry their unit and are intervals; the ledger turns them into deadlines.
"""

from datetime import datetime
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

#: What a decision rests on: the policy alone, people, a wish that could never run, a person's
#: standing yes, an earlier denial of the same wish, a limit of the policy, or one person in an
#: emergency.
type Ground = Literal["policy", "people", "invalid", "grant", "repeated", "limit", "broken_glass"]
type Verdict = Literal["approve", "deny", "answer", "break_glass"]
#: What happens when nobody has decided in time: the call expires, more people are asked, or it goes
#: on waiting.
type OnTimeout = Literal["deny", "escalate", "stay"]
#: What becomes of what a user says while a call of the thread waits for people.
type WhilePending = Literal["queue", "supersede", "block"]
#: Each way in which a call can end without having run.
type Ending = Literal[
    "denied",
    "answered",
    "expired",
    "withdrawn",
    "superseded",
    "revoked",
    "unknown_tool",
    "digest_mismatch",
    "people_were_asked",
]


class Author(Struct, frozen=True, omit_defaults=True, gc=False):
    """Who wrote a fact: a kind (`gate`, `model`, `executor`, `service`, `reviewer`, ...) and a name
    within it.

    It is what the writer says of itself. What the broker vouches for is the subject: only Ana's
    credentials can publish to `vote.ana`.
    """

    kind: str
    name: str


class Event(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True, gc=False):
    """The envelope that every fact has. `Ledger.append` fills in what is missing."""

    #: UUIDv7, minted by the writer. Appending the same id to the same slot twice records it once.
    id: str = ""
    #: The writer's clock, UTC. Deadlines are counted on the broker's clock instead
    #: (`Fact.recorded_at`).
    at: Annotated[datetime, Meta(tz=True)] | UnsetType = UNSET
    by: Author | UnsetType = UNSET
    #: The id of the fact that this one reacts to.
    cause: str = ""
    #: W3C trace context (`traceparent`), in the payload because NATS headers cost a quarter of the
    #: reading rate.
    trace: str = ""
    #: Version of this type's schema.
    v: int = 1


# --------------------------------------------------------------------------------------- the thread


class ToolRef(Struct, frozen=True, omit_defaults=True, gc=False):
    """A tool as declared: its name, the version of its declaration, and who runs it."""

    tool: str
    version: str
    run_by: str = "client"


class ThreadOpened(Event, frozen=True, tag="ThreadOpened"):
    """A conversation began."""

    #: The person on whose behalf it runs. Never counts as a voter on its calls.
    requester: str
    agent: str = ""
    #: Which model answers, `provider:name`; empty when a service runs its own loop.
    model: str = ""
    #: What the model is offered, fixed for the thread.
    tools: tuple[ToolRef, ...] = ()
    #: After this many turns the model is not asked again.
    max_turns: int = 100
    #: About so many entries of its history, the newest, are what the model is sent; 0: all.
    history_limit: int = 0
    labels: dict[str, str] = {}


class Said(Event, frozen=True, tag="Said"):
    """Somebody said something to the model. A `note` is from the system, in the midst of things."""

    role: Literal["system", "user", "note"]
    text: str
    name: str = ""


class ModelAsked(Event, frozen=True, tag="ModelAsked"):
    """The claim before a model is called. What stands before the first attempt is the history it
    was sent.
    """

    model: str


class Text(Struct, frozen=True, tag_field="part", tag="text"):
    text: str


class Wish(Struct, frozen=True, tag_field="part", tag="wish", omit_defaults=True):
    """The model wants a tool called."""

    tool: str
    #: The raw JSON text, possibly malformed: models write such.
    arguments: str
    #: The provider's id. It repeats within a conversation, so nothing here is keyed on it.
    provider_id: str = ""


class Opaque(Struct, frozen=True, tag_field="part", tag="opaque"):
    """Something that only its provider understands (a thinking signature, encrypted reasoning),
    kept verbatim.
    """

    provider: str
    data: str


type Part = Text | Wish | Opaque


class Usage(Struct, frozen=True, omit_defaults=True, gc=False):
    input_tokens: int = 0
    output_tokens: int = 0


class ModelReplied(Event, frozen=True, tag="ModelReplied"):
    """The model answered: what it said and what it wishes, in its order."""

    parts: tuple[Part, ...]
    attempt: int = 1
    model: str = ""
    usage: Usage = Usage()
    finish_reason: str = ""
    #: SHA-256 over the neutral history that the model was sent: lets anyone prove later what it
    #: saw.
    history_digest: str = ""


class ModelFailed(Event, frozen=True, tag="ModelFailed"):
    """The model gave no answer. The turn is over; the next thing said begins another."""

    error: str
    attempt: int = 1


# ----------------------------------------------------------------------------------------- the call


class ToolRequested(Event, frozen=True, tag="ToolRequested"):
    """The wish for a tool, before anybody judged it."""

    tool: str
    #: The raw JSON text that came; the digest is over these bytes.
    arguments: str
    digest: str
    #: Version of the tool's declaration. Empty when the tool is not one of the thread's: the gate
    #: denies it.
    tool_version: str = ""
    requester: str = ""
    agent: str = ""
    provider_id: str = ""
    #: Which group of executors runs it; `client` when whoever asked runs it.
    run_by: str = "client"
    #: Of the thread; rules may ask for them.
    labels: dict[str, str] = {}
    #: From 2 on, what a client runs is claimed and finished in the client's own slots alone
    #: (`claim.client.1`). Before, an executor's slots were also the client's.
    layout: int = 1


class Shadow(Struct, frozen=True):
    """What a rule without effect would have said."""

    rule: str
    then: Literal["allow", "ask", "block"]


class Quorum(Struct, frozen=True, omit_defaults=True, gc=False):
    """People of whom so many must agree."""

    #: Names, or patterns with `*`.
    voters: tuple[str, ...]
    votes_needed: int = 1
    #: What the policy calls them, for people to read.
    name: str = ""


class Stage(Struct, frozen=True, omit_defaults=True, gc=False):
    """People who are asked as well, once nobody has decided in the time before."""

    voters: tuple[str, ...]
    #: Counted from when the broker recorded that they are asked. None: never expires.
    expires_in_s: float | None = None


class ApprovalRequested(Event, frozen=True, tag="ApprovalRequested"):
    """The gate asks people. Who may vote is frozen here; a later policy cannot loosen it."""

    digest: str
    rule: str
    policy_version: int
    #: Why it is asked, in words for the reviewer.
    reason: str = ""
    #: Names, or patterns with `*`.
    voters: tuple[str, ...] = ("*",)
    #: Never count, whatever `voters` says: the requester, and who is behind the agent (names, or
    #: patterns with `*`).
    excluded: tuple[str, ...] = ()
    votes_needed: int = 1
    #: Counted from when the broker recorded this. None: never expires.
    expires_in_s: float | None = None
    #: What becomes of a user's message meanwhile: it waits, makes the call moot, or may not be said
    #: yet.
    while_pending: WhilePending = "queue"
    #: What rules without effect would have said.
    shadows: tuple[Shadow, ...] = ()
    #: These must agree too. Nobody counts in two of them.
    also: tuple[Quorum, ...] = ()
    #: What the workspace's own rule asks for, where the organisation's asks too. The same votes
    #: count once more here.
    besides: tuple[Quorum, ...] = ()
    #: So many people must say no for it to be denied.
    denials_needed: int = 1
    #: What happens when `expires_in_s` is over.
    on_timeout: OnTimeout = "deny"
    #: Who is asked as well then, stage after stage.
    stages: tuple[Stage, ...] = ()
    #: Each of them alone may let it run in an emergency, with a reason.
    may_break_glass: tuple[str, ...] = ()
    #: Are rule and version the organisation's?
    organisation: bool = False
    #: Who may take an approval back, beside those who may vote and those who did; names, or
    #: patterns with `*`.
    may_revoke: tuple[str, ...] = ()
    #: Who may say what became of the call when it is in doubt. Empty: those who may vote.
    may_reconcile: tuple[str, ...] = ()
    #: Reviewers' accounts that belong to somebody of another name: account to person.
    people: dict[str, str] = {}
    #: Does the vote of the person who edits the arguments count towards the edit?
    #: It did wherever this is not said.
    editor_counts: bool = True


class Escalated(Event, frozen=True, tag="Escalated"):
    """Nobody decided in time, so these are asked as well. Their votes count wherever one is
    lacking.

    It may come just behind a decision, and then asks nobody: what is decided is decided.
    """

    voters: tuple[str, ...]
    #: Counted from when the broker recorded this. None: never expires.
    expires_in_s: float | None = None


class GlassBroken(Event, frozen=True, tag="GlassBroken"):
    """One person says that a call shall run which more should have agreed to.

    Announced before it is decided. What came of it, the decision says: it may have been taken back
    meanwhile.
    """

    reviewer: str
    reason: str


class Voted(Event, frozen=True, tag="Voted"):
    """One person's word. Who it is stands in the subject."""

    verdict: Verdict
    #: The digest of what the reviewer saw. A vote on anything else does not count.
    digest: str
    reason: str = ""
    #: With `approve`: these arguments instead (raw JSON text).
    arguments: str | None = None
    #: With `answer`: the output that the model gets in place of the tool's.
    answer: str = ""
    #: The person in whose place they vote, by that person's delegation.
    on_behalf_of: str = ""
    #: With `deny`: the model is not asked again before a user says something.
    halt: bool = False
    #: Room for the reviewer's own signature.
    signature: str = ""


class Approved(Event, frozen=True, tag="Approved"):
    """Exactly these bytes may run."""

    #: Over what will run, edits included.
    digest: str
    ground: Ground
    rule: str
    policy_version: int
    voters: tuple[str, ...] = ()
    #: The edited arguments, if they were edited (raw JSON text).
    arguments: str | None = None
    reason: str = ""
    #: Where the policy alone decided: what rules without effect would have said.
    shadows: tuple[Shadow, ...] = ()
    #: Who voted in whose place.
    on_behalf_of: dict[str, str] = {}
    #: The standing approvals that it rests on, `giver/grant`.
    grants: tuple[str, ...] = ()
    organisation: bool = False
    #: Where nobody was asked: who neither revokes nor reconciles, beside the requester; and who
    #: may, names or patterns with `*`. Empty: any reviewer.
    excluded: tuple[str, ...] = ()
    may_revoke: tuple[str, ...] = ()
    may_reconcile: tuple[str, ...] = ()


class Denied(Event, frozen=True, tag="Denied"):
    """A person said no, the policy blocks it, or it could never have run."""

    ground: Ground
    rule: str
    policy_version: int
    reason: str = ""
    voters: tuple[str, ...] = ()
    #: These as in `Approved`.
    shadows: tuple[Shadow, ...] = ()
    on_behalf_of: dict[str, str] = {}
    organisation: bool = False
    #: The model is not asked again before a user says something.
    halt: bool = False


class Answered(Event, frozen=True, tag="Answered"):
    """A person answered in place of the tool."""

    answer: str
    rule: str
    policy_version: int
    voters: tuple[str, ...] = ()
    on_behalf_of: dict[str, str] = {}
    organisation: bool = False


class Expired(Event, frozen=True, tag="Expired"):
    """Nobody decided in time. Not a no."""

    rule: str
    policy_version: int
    after_s: float
    organisation: bool = False


class Withdrawn(Event, frozen=True, tag="Withdrawn"):
    """The requester's side takes the wish back."""

    reason: str = ""


class Superseded(Event, frozen=True, tag="Superseded"):
    """Something newer made the wish moot."""

    reason: str = ""


class ToolStarted(Event, frozen=True, tag="ToolStarted"):
    """The claim on a call: from here on it may have run."""

    #: Over what is about to run, computed again by whoever runs it.
    digest: str
    #: `workspace/thread/call`, the same for every attempt.
    idempotency_key: str


class Revoked(Event, frozen=True, tag="Revoked"):
    """A person took the approval back before it ran. Who it is stands in the subject."""

    reason: str = ""
    reviewer: str = ""


class Declined(Event, frozen=True, tag="Declined"):
    """The executor will not run what was approved, and says so by taking the claim's slot, so that
    nobody else starts it.
    """

    why: Literal["unknown_tool", "digest_mismatch", "people_were_asked"]


class ToolReturned(Event, frozen=True, tag="ToolReturned"):
    """The tool ran and gave this."""

    #: What the model reads, as text.
    output: str
    attempt: int = 1


class ToolFailed(Event, frozen=True, tag="ToolFailed"):
    """The tool ran and raised. Never used for a call that did not run."""

    error: str
    attempt: int = 1


class ToolRefused(Event, frozen=True, tag="ToolRefused"):
    """The tool did not run, and this is what the model reads instead."""

    ending: Ending
    text: str


class InDoubt(Event, frozen=True, tag="InDoubt"):
    """The tool was started and nobody knows how it ended. Waits for a person; never retried in
    silence.
    """

    attempt: int
    text: str


class Reconciled(Event, frozen=True, tag="Reconciled"):
    """A person found out what happened to a call in doubt."""

    happened: bool
    #: What the model reads.
    output: str
    reviewer: str = ""


# ------------------------------------------------------------------------------------ the workspace


class PolicyApplied(Event, frozen=True, tag="PolicyApplied"):
    """From here on this policy judges. The text is the TOML file as it was given."""

    text: str
    digest: str
    #: `workspace/thread/call` of the proposal that people approved; empty: nobody was asked.
    proposal: str = ""


class ToolDeclared(Event, frozen=True, tag="ToolDeclared"):
    """A tool exists, with this contract. The slot's last token is the version: a digest of the
    contract.
    """

    description: str
    #: JSON Schema of the arguments, raw text.
    schema: str
    #: May be run again after a crash, under the same idempotency key.
    repeatable: bool = False
    run_by: str = "client"
    #: It can change what is asked about (a policy, a grant): no rule and no grant lets it run
    #: without people.
    governs: bool = False


class Granted(Event, frozen=True, tag="Granted"):
    """A person's standing yes: calls like this, until then, so many times. Who it is stands in the
    subject.
    """

    tool: str
    #: Counted from when the broker recorded this. There is always an end.
    expires_in_s: float
    #: How many calls it may let run.
    uses: int = 1
    #: Exactly these arguments (raw JSON text, compared by value); None: any that `when` holds for.
    arguments: str | None = None
    #: A condition on the arguments (`ayes.schemas.conditions`); empty: always.
    when: str = ""
    #: Names, or patterns with `*`.
    agent: str = "*"
    thread: str = "*"
    reason: str = ""


class GrantRevoked(Event, frozen=True, tag="GrantRevoked"):
    """From here on a standing yes covers nothing more."""

    reviewer: str = ""
    reason: str = ""
    #: `workspace/thread/call` of the denial that beats it, where the gate revoked it for that.
    call: str = ""


class GrantUsed(Event, frozen=True, tag="GrantUsed"):
    """One of a standing yes's uses is taken, by this call alone."""

    #: `workspace/thread/call`.
    call: str


class Delegated(Event, frozen=True, tag="Delegated"):
    """For this time another person may vote in one's place. Who gives it stands in the subject."""

    to: str
    starts_at: Annotated[datetime, Meta(tz=True)]
    ends_at: Annotated[datetime, Meta(tz=True)]
    #: Names, or patterns with `*`.
    tools: tuple[str, ...] = ("*",)
    reason: str = ""


class DelegationEnded(Event, frozen=True, tag="DelegationEnded"):
    """A delegation ends before its time."""

    reason: str = ""


# -------------------------------------------------------------------------------------- the unknown


class Carried(Struct, frozen=True):
    """Bytes that this program does not understand: kept as they are, shown, and skipped by every
    fold.

    Mostly a fact of a type or version from the future. With a `problem`, no fact at all.
    """

    type: str
    raw: bytes
    id: str = ""
    v: int = 1
    problem: str = ""


type AnyEvent = (
    ThreadOpened | Said | ModelAsked | ModelReplied | ModelFailed
    | ToolRequested | ApprovalRequested | Voted
    | Escalated | GlassBroken | Approved | Denied | Answered | Expired | Withdrawn | Superseded
    | ToolStarted | Revoked | Declined | ToolReturned | ToolFailed | ToolRefused | InDoubt | Reconciled
    | PolicyApplied | ToolDeclared | Granted | GrantRevoked | GrantUsed | Delegated | DelegationEnded
)  # fmt: skip

TYPES: Final[dict[str, type[Event]]] = {
    kind.__struct_config__.tag: kind for kind in AnyEvent.__value__.__args__
}

#: The current version of each type's schema; what is not listed is at 1.
VERSION: Final[dict[str, int]] = dict.fromkeys(TYPES, 1)
