"""The facts: everything that can be recorded about a thread, its tool calls and their approvals.

Each is in the past tense and says one thing. The ways in which a call can end are siblings
(Approved, Denied, Expired, ...), so that one is never mistaken for another. `slots.py` says which
facts may fill which slot, `ledger/lifecycle.py` which fact may follow which.

The rules of this file:

* The name on the wire is spelled out beside the class (`tag=`) and never follows a rename.
* Classes grow by fields with defaults; no field ever changes its meaning. A change that defaults
  cannot express is a new version: raise the number in `VERSION`, teach `codec.py` to lift the old
  one, keep the old sample.
* Arguments, outputs and schemas are kept as the raw text, never parsed and re-written. A digest
  over re-written JSON would be a digest over something that nobody saw.
* Durations carry their unit and are intervals; the ledger turns them into deadlines.
"""

from datetime import datetime
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

#: The ground of a decision: the policy alone, people, a call that could never run, a grant, an
#: earlier denial of the same call, a limit of the policy, or one person in an emergency.
type Ground = Literal["policy", "people", "invalid", "grant", "repeated", "limit", "broken_glass"]
type Verdict = Literal["approve", "deny", "answer", "break_glass"]
#: When nobody has decided in time: the call expires, more people are asked, or it goes on waiting.
type OnTimeout = Literal["deny", "escalate", "stay"]
#: Whether the requester and the people behind the agent never count, or may confirm the call.
type Mode = Literal["four_eyes", "requester_confirms"]
#: How a person confirms an approval: by typing the name of the tool.
type Confirm = Literal["typed"]
#: What a tool does that is to be undone, from the least: it changes nothing; it can be undone where
#: it acts; it can be undone only by somebody outside, or with their help; nothing undoes it.
type ToolClass = Literal["reads", "reversible", "reversible_outside", "irreversible"]
#: The class by which rules judge a tool. One that declares none counts as irreversible.
type JudgedClass = Literal[
    "reads", "reversible", "reversible_outside", "irreversible", "undeclared"
]
#: What happens to a user's message while a call of the thread is pending.
type WhilePending = Literal["queue", "supersede", "block"]
#: Each way in which a call can end without having run.
type Ending = Literal[
    "denied",
    "answered",
    "answered_with_error",
    "expired",
    "withdrawn",
    "superseded",
    "revoked",
    "lapsed",
    "unknown_tool",
    "digest_mismatch",
    "people_were_asked",
    "unproved",
    "forgotten",
    "unopened",
    "misfit",
]

#: What a person is told about: a question to them, more people being asked, a colleague who hands
#: it to them, a deadline that comes, the outcome, the end without one, an emergency, a call that a
#: person must reconcile, a start or result that counts for nothing, a vote that their key signed.
type Occasion = Literal[
    "asked",
    "escalated",
    "handed",
    "reminder",
    "decided",
    "expired",
    "broken-glass",
    "in-doubt",
    "void",
    "signed",
]


class Author(Struct, frozen=True, omit_defaults=True, gc=False):
    """The writer of a fact, by its own account: a kind (`gate`, `executor`, ...) and a name.

    The broker vouches for the subject alone: only Ana's credentials can publish to `vote.ana`.
    """

    #: Such as `gate`, `executor` or `reviewer`.
    kind: str
    #: Its name.
    name: str


class Event(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True, gc=False):
    """The envelope that every fact has. `Ledger.append` fills in what is missing."""

    #: UUIDv7, minted by the writer. Appending the same id to the same slot twice records it once.
    id: str = ""
    #: The writer's clock, UTC. Deadlines use the broker's (`Fact.recorded_at`).
    at: Annotated[datetime, Meta(tz=True)] | UnsetType = UNSET
    by: Author | UnsetType = UNSET
    #: The id of the fact that this one reacts to.
    cause: str = ""
    #: W3C `traceparent`. Not a NATS header: headers cost a quarter of the reading rate.
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

    #: The person on whose behalf it runs, who never counts as a voter on its calls.
    requester: str
    agent: str = ""
    #: The model, `provider:name`; empty if a service runs its own loop.
    model: str = ""
    #: The tools that the model is offered, fixed for the thread.
    tools: tuple[ToolRef, ...] = ()
    #: After how many turns the model is not asked any more.
    max_turns: int = 100
    #: About how many of the newest history entries are sent to the model; 0: all.
    history_limit: int = 0
    labels: dict[str, str] = {}
    #: `workspace/thread/call` of the call in whose run the thread was opened, for a sub-agent.
    parent: str = ""


class Keyed(Event, frozen=True, tag="Keyed"):
    """A thread has a key, under which values of its calls are sealed. The first one counts."""

    #: SHA-256("ayes key 1" and the key), in hex. What another key opens counts for nothing.
    commitment: str


class ForgettingBegan(Event, frozen=True, tag="ForgettingBegan"):
    """The key of the thread is being destroyed: from here on nobody opens what was sealed in it."""


class Forgotten(Event, frozen=True, tag="Forgotten"):
    """The key of the thread is destroyed. A copy of it that comes back is destroyed too."""


class Packed(Event, frozen=True, tag="Packed"):
    """Settled facts of the thread, byte for byte, which may then leave the stream. Where a slot is
    filled twice, the fact with the lower number counts.
    """

    #: The calls, turns and messages in this pack and in those before it: of each the first 8 bytes
    #: of the SHA-256 of its two tokens (`call.<id>`, `turn.<number>`, `said.<id>`), in base64.
    names: str
    #: A MessagePack array in gzip in base64. Of each fact it has an array: its number, its time in
    #: nanoseconds since 1970, its subject behind that of the thread, and its payload as bytes.
    facts: str
    #: The number of these facts.
    size: int


class Inline(Struct, frozen=True, tag_field="kept", tag="inline", gc=False):
    """The bytes themselves."""

    #: Base64 (RFC 4648, section 4), with padding.
    data: str


class Stored(Struct, frozen=True, tag_field="kept", tag="stored", omit_defaults=True, gc=False):
    """Bytes in the store of files (`ayes.ledger.files`)."""

    #: SHA-256 of the bytes, in hexadecimal digits.
    digest: str
    #: The number of bytes.
    size: int
    #: The role that stored it and a random id, as `service.0123456789abcdef0123456789abcdef`.
    #: Empty in older logs: the place is the digest.
    place: str = ""


class Linked(Struct, frozen=True, tag_field="kept", tag="linked", gc=False):
    """Bytes that the model's provider fetches. The ledger does not keep them."""

    #: Where they are.
    url: str


class Uploaded(Struct, frozen=True, tag_field="kept", tag="uploaded", gc=False):
    """Bytes that the program uploaded to the model's provider. The ledger does not keep them."""

    #: As in `Opaque.provider`.
    provider: str
    #: Its id there.
    id: str


type Source = Inline | Stored | Linked | Uploaded


class Media(Struct, frozen=True, tag_field="part", tag="media", omit_defaults=True):
    """An image or another file."""

    #: Such as `image/png` (RFC 6838), or `image/*` if only the kind is known.
    media_type: str
    #: The bytes, or where they are.
    source: Source
    #: The file's name.
    name: str = ""
    #: How closely the model looks at an image (`low`, `high`, ...), in the words of its provider.
    detail: str = ""


class Citation(Struct, frozen=True, omit_defaults=True):
    """A source of a model's text."""

    #: Where the source is.
    url: str = ""
    #: The title of the source.
    title: str = ""
    #: The cited passage.
    quote: str = ""
    #: As in `Opaque`: the citation in the form of its provider, which alone understands it all.
    provider: str = ""
    #: In the form of its provider.
    data: str = ""


class Text(Struct, frozen=True, tag_field="part", tag="text", omit_defaults=True):
    text: str
    #: Only in a model's reply.
    citations: tuple[Citation, ...] = ()


#: What a message or an output consists of: a text, or texts and files in their order.
type Content = str | tuple[Text | Media, ...]


class Said(Event, frozen=True, tag="Said"):
    """A message to the model. A `note` is from the system, in the course of the conversation."""

    #: Who speaks.
    role: Literal["system", "user", "note"]
    text: Content
    #: The author, if a thread has several users.
    name: str = ""


class ModelAsked(Event, frozen=True, tag="ModelAsked"):
    """The claim of a turn. The model is sent the history before its first attempt."""

    model: str


class Refusal(Struct, frozen=True, tag_field="part", tag="refusal"):
    """The model refuses the request, in the provider's part for that."""

    text: str


class Wish(Struct, frozen=True, tag_field="part", tag="wish", omit_defaults=True):
    """The model wants a tool called."""

    tool: str
    #: The raw JSON text; models may write malformed ones.
    arguments: str
    #: The provider's id. It repeats within a conversation, so nothing here is keyed on it.
    provider_id: str = ""


class Opaque(Struct, frozen=True, tag_field="part", tag="opaque"):
    """Data that only its provider understands (a thinking signature, ...), kept verbatim."""

    #: Such as `anthropic` or `openai`.
    provider: str
    #: In the form of that provider.
    data: str


type Part = Text | Media | Refusal | Wish | Opaque


class Usage(Struct, frozen=True, omit_defaults=True, gc=False):
    #: Of what the model was sent.
    input_tokens: int = 0
    #: Of its reply.
    output_tokens: int = 0


class ModelReplied(Event, frozen=True, tag="ModelReplied"):
    """The model's reply: its text and its wishes, in its order."""

    #: In the order of the reply.
    parts: tuple[Part, ...]
    attempt: int = 1
    model: str = ""
    #: The tokens that it took.
    usage: Usage = Usage()
    #: Why the model stopped, in its provider's words.
    finish_reason: str = ""
    #: SHA-256 over the neutral history that the model was sent, as proof of what it saw.
    history_digest: str = ""


class ModelFailed(Event, frozen=True, tag="ModelFailed"):
    """The model gave no reply. The turn is over; the next message begins another."""

    error: str
    attempt: int = 1


# ----------------------------------------------------------------------------------------- the call


class ToolRequested(Event, frozen=True, tag="ToolRequested"):
    """A request to run a tool, before it is judged."""

    tool: str
    #: The raw JSON text; the digest is over these bytes.
    arguments: str
    digest: str
    #: Version of the tool's declaration; empty if the thread does not offer it (the gate denies).
    tool_version: str = ""
    requester: str = ""
    agent: str = ""
    provider_id: str = ""
    run_by: str = "client"
    #: Those of the thread; rules may match them.
    labels: dict[str, str] = {}
    #: From 2 on, a client claims and finishes in its own slots alone (`claim.client.1`). Before,
    #: it used those of executors.
    layout: int = 1
    #: How long its side waits for people, from when the broker recorded it. None: as long as the
    #: policy asks them. It never waits longer than that.
    expires_in_s: float | None = None


class Shadow(Struct, frozen=True):
    """The verdict of a shadow rule, which had no effect."""

    rule: str
    #: What it would have said.
    then: Literal["allow", "ask", "block"]


class Quorum(Struct, frozen=True, omit_defaults=True, gc=False):
    """People of whom `votes_needed` must agree."""

    #: Names, or patterns with `*`.
    voters: tuple[str, ...]
    votes_needed: int = 1
    #: The policy's name for them.
    name: str = ""


class Stage(Struct, frozen=True, omit_defaults=True, gc=False):
    """People who are asked in addition if nobody has decided in the time before."""

    #: Names, or patterns with `*`.
    voters: tuple[str, ...]
    #: Counted from when the broker recorded that they are asked. None: never expires.
    expires_in_s: float | None = None


class Link(Struct, frozen=True, omit_defaults=True, gc=False):
    """A call in whose run something was asked."""

    #: `workspace/thread/call`.
    call: str
    tool: str
    #: The agent that made the call.
    agent: str = ""
    #: Of its tool; None: no policy in force speaks of classes.
    tool_class: JudgedClass | None = field(name="class", default=None)


class Undoing(Struct, frozen=True, gc=False):
    """How what a call does can be undone, as its tool declares it."""

    #: `undeclared`: it declares none, and counts as irreversible.
    tool_class: JudgedClass = field(name="class")
    #: The tool that undoes it; empty: none does, or nobody said.
    undo: str = ""
    #: For how long it can be undone after it returned. None: no end is known.
    undo_within_s: float | None = None


class ApprovalRequested(Event, frozen=True, tag="ApprovalRequested"):
    """The gate asks people. The voters are frozen here; a later policy cannot loosen it."""

    digest: str
    rule: str
    policy_version: int
    #: Why people are asked, for the reviewer.
    reason: str = ""
    #: Names, or patterns with `*`.
    voters: tuple[str, ...] = ("*",)
    #: People who never count: the requester, and those behind the agent; names or patterns.
    excluded: tuple[str, ...] = ()
    votes_needed: int = 1
    #: Counted from when the broker recorded this. None: never expires.
    expires_in_s: float | None = None
    #: What happens to a message of the user meanwhile.
    while_pending: WhilePending = "queue"
    shadows: tuple[Shadow, ...] = ()
    #: Quorums that must be met too. Nobody counts in two of them.
    also: tuple[Quorum, ...] = ()
    #: The quorums of the workspace's own rule if the organisation's asks too. The same votes count
    #: for both.
    besides: tuple[Quorum, ...] = ()
    denials_needed: int = 1
    #: What happens after `expires_in_s`.
    on_timeout: OnTimeout = "deny"
    #: Who is asked in addition, stage by stage, if nobody decides.
    stages: tuple[Stage, ...] = ()
    #: Each of them alone may let it run in an emergency, with a reason.
    may_break_glass: tuple[str, ...] = ()
    #: Whether rule and version are the organisation's.
    organisation: bool = False
    #: In addition to those who may vote or did; names or patterns.
    may_revoke: tuple[str, ...] = ()
    #: Empty: those who may vote.
    may_reconcile: tuple[str, ...] = ()
    #: Reviewers' accounts that belong to somebody of another name: account to person.
    people: dict[str, str] = {}
    #: Whether the editor's vote counts towards the edit.
    editor_counts: bool = True
    #: What an approval takes besides the vote; None: nothing.
    confirm: Confirm | None = None
    #: How long an approval will be valid; None: for ever.
    valid_for_s: float | None = None
    #: The calls in whose runs it is asked, the outermost first.
    chain: tuple[Link, ...] = ()
    mode: Mode = "four_eyes"
    #: With `requester_confirms`: the people whom `excluded` would name otherwise.
    own: tuple[str, ...] = ()
    #: None: its tool declares no class, and no policy in force speaks of classes.
    undoing: Undoing | None = None
    #: What it does in one line, as its tool declares it, without secrets; empty: it declares none.
    title: str = ""
    #: How many seconds the console holds a vote before it sends it, so that it can be undone.
    undo_s: int = 0
    #: Reasons that are offered to people who deny or answer.
    reasons: tuple[str, ...] = ()
    #: Whether votes other than denials count only with a signature of their voter.
    signed: bool = False


class OnCall(Struct, frozen=True, omit_defaults=True, gc=False):
    """Who of a schedule is asked when a stage begins."""

    #: Its name in the settings.
    schedule: str
    #: Those who are on call then and may vote; they are among the voters.
    people: tuple[str, ...] = ()
    #: When the calendar was read that says so; None: nothing was recorded of it.
    read_at: Annotated[datetime, Meta(tz=True)] | None = None
    #: Why nobody, or not everybody, who is on call is asked; empty: everybody is.
    problem: str = ""


class Escalated(Event, frozen=True, tag="Escalated"):
    """Nobody decided in time, so more people are asked; they count wherever a vote is lacking.

    It has no effect if it is recorded after a decision.
    """

    #: Those who are asked in addition: names, or patterns with `*`. Nobody, if nobody is on call.
    voters: tuple[str, ...]
    #: Counted from when the broker recorded this. None: never expires.
    expires_in_s: float | None = None
    #: By which some of the voters are on call.
    on_call: tuple[OnCall, ...] = ()


class GlassBroken(Event, frozen=True, tag="GlassBroken"):
    """One person alone lets a call run. Announced before the decision, which says the outcome."""

    reviewer: str
    reason: str


class Voted(Event, frozen=True, tag="Voted"):
    """One person's vote. The subject names the person."""

    verdict: Verdict
    #: The digest that the reviewer saw. A vote on another one does not count.
    digest: str
    reason: str = ""
    #: With `approve`: these arguments instead (raw JSON text).
    arguments: str | None = None
    #: With `answer`: the output that the model gets in place of the tool's.
    answer: str = ""
    #: With `answer`: the model reads it as the tool's error.
    is_error: bool = False
    #: The person in whose place they vote, by that person's delegation.
    on_behalf_of: str = ""
    #: With `deny` and `answer`: the model is not asked again before a user says something.
    halt: bool = False
    #: Made with a key of the reviewer's (`ayes.ledger.signing`); empty: not signed.
    signature: str = ""


class Membership(Struct, frozen=True):
    """By what a vote counted as that of a member of groups."""

    #: Whose vote it is.
    person: str
    #: Those that were asked, without `group:`.
    groups: tuple[str, ...]
    #: Who named the groups.
    issuer: str
    #: The account there.
    subject: str
    #: When they were named.
    read_at: Annotated[datetime, Meta(tz=True)]


class Approved(Event, frozen=True, tag="Approved"):
    """Exactly these bytes may run."""

    #: Over the arguments that will run, edits included.
    digest: str
    ground: Ground
    rule: str
    policy_version: int
    voters: tuple[str, ...] = ()
    #: The edited arguments, if they were edited (raw JSON text).
    arguments: str | None = None
    reason: str = ""
    #: Only if the policy alone decided.
    shadows: tuple[Shadow, ...] = ()
    #: Voter to the person in whose place they voted.
    on_behalf_of: dict[str, str] = {}
    #: The grants that it rests on, `giver/grant`.
    grants: tuple[str, ...] = ()
    organisation: bool = False
    #: If nobody was asked: the people who may neither revoke nor reconcile it, in addition to the
    #: requester.
    excluded: tuple[str, ...] = ()
    #: If nobody was asked: the people who may revoke it; names or patterns. Empty: any reviewer.
    may_revoke: tuple[str, ...] = ()
    #: If nobody was asked: the people who may reconcile it; names or patterns. Empty: any reviewer.
    may_reconcile: tuple[str, ...] = ()
    #: How long the call may be started, counted from when the broker recorded this. None: for ever.
    valid_for_s: float | None = None
    #: `requester_confirms`: one of the voters would have been excluded otherwise.
    mode: Mode = "four_eyes"
    #: If nobody was asked: as in `ApprovalRequested`.
    undoing: Undoing | None = None
    #: Of the voters who counted as members of groups of a provider.
    memberships: tuple[Membership, ...] = ()


class Denied(Event, frozen=True, tag="Denied"):
    """A person said no, the policy blocks it, or it could never have run."""

    ground: Ground
    rule: str
    policy_version: int
    reason: str = ""
    voters: tuple[str, ...] = ()
    #: As in `Approved`.
    shadows: tuple[Shadow, ...] = ()
    on_behalf_of: dict[str, str] = {}
    organisation: bool = False
    #: The model is not asked again before a user says something.
    halt: bool = False


class Answered(Event, frozen=True, tag="Answered"):
    """A person answered in place of the tool."""

    #: What the model reads in place of the tool's output.
    answer: str
    rule: str
    policy_version: int
    voters: tuple[str, ...] = ()
    on_behalf_of: dict[str, str] = {}
    organisation: bool = False
    #: The model reads the answer as the tool's error.
    is_error: bool = False
    #: As in `Denied`.
    halt: bool = False


class Expired(Event, frozen=True, tag="Expired"):
    """Nobody decided in time. This is not a denial."""

    rule: str
    policy_version: int
    after_s: float
    organisation: bool = False


class Withdrawn(Event, frozen=True, tag="Withdrawn"):
    """The requesting program withdraws the call; or, if it runs, the calls below it."""

    reason: str = ""


class Superseded(Event, frozen=True, tag="Superseded"):
    """A newer message made the call moot."""

    reason: str = ""


class ToolStarted(Event, frozen=True, tag="ToolStarted"):
    """The claim on a call: from here on the tool may have run."""

    #: Over what is about to run, computed anew by the runner.
    digest: str
    #: `workspace/thread/call`, the same for every attempt.
    idempotency_key: str
    #: A service that does not renew its claim for this long has died; 0: it never renews it.
    lease_s: float = 0
    #: The tool's lookup has said that the previous attempt had no effect.
    looked_up: bool = False


class Revoked(Event, frozen=True, tag="Revoked"):
    """A person took the approval back before the tool ran. The subject names the person."""

    reason: str = ""
    reviewer: str = ""
    #: The text that the model reads in place of the tool's output; None: it reads that the
    #: approval was taken back.
    answer: str | None = None
    #: With an answer: the model reads it as the tool's error.
    is_error: bool = False
    #: As in `Denied`.
    halt: bool = False


class Lapsed(Event, frozen=True, tag="Lapsed"):
    """The gate records that an approval is valid no longer and the call was not started.

    Its time was over; or, if a rule is named, a newer policy blocks the call; or, if grants are
    named, these were revoked, and it rested on them.
    """

    #: Since the approval.
    after_s: float
    rule: str = ""
    policy_version: int | None = None
    organisation: bool = False
    reason: str = ""
    #: `giver/grant`.
    grants: tuple[str, ...] = ()


class Declined(Event, frozen=True, tag="Declined"):
    """The executor will not run the call. It takes the claim's slot, so that nobody else does."""

    #: Why not. `unproved`: the approval does not follow from signed votes and policies;
    #: `forgotten`: the key of the thread is destroyed; `unopened`: a sealed value cannot be opened
    #: under the thread's key; `misfit`: opened, the arguments do not fit the tool's schema.
    why: Literal[
        "unknown_tool",
        "digest_mismatch",
        "people_were_asked",
        "unproved",
        "forgotten",
        "unopened",
        "misfit",
    ]


class ToolReturned(Event, frozen=True, tag="ToolReturned"):
    """The tool ran and returned."""

    #: For the model.
    output: Content
    attempt: int = 1
    #: The executor died, and the tool's lookup found the result afterwards.
    looked_up: bool = False


class ToolFailed(Event, frozen=True, tag="ToolFailed"):
    """The tool ran and raised. Never used for a call that did not run."""

    error: str
    attempt: int = 1


class ToolRefused(Event, frozen=True, tag="ToolRefused"):
    """The tool did not run; the model reads `text` instead of an output."""

    #: Why it did not run.
    ending: Ending
    #: What the model reads instead of an output.
    text: str


class InDoubt(Event, frozen=True, tag="InDoubt"):
    """The tool was started and nobody knows how it ended. A person must look; it is not retried."""

    attempt: int
    #: Why nobody knows.
    text: str


class Notified(Event, frozen=True, tag="Notified"):
    """A person, or a room, was told about the call. The slot says who, and on which occasion.

    It says that the channel took the message, and has no effect on the call.
    """

    #: The channel that took it, by its name in the policy.
    channel: str
    #: The number of notices in the message; more than one in a digest.
    together: int = 1


class Posted(Event, frozen=True, tag="Posted"):
    """People are asked about the call by a message in a chat. The slot names the channel.

    It has no effect on the call.
    """

    #: How the chat names the message within the channel: Slack's `ts`.
    message: str


class Commented(Event, frozen=True, tag="Commented"):
    """A person said something about the call. The subject names the person.

    It counts for nothing: no verdict rests on it, and no model reads it.
    """

    #: For people.
    text: str


class HandedOver(Event, frozen=True, tag="HandedOver"):
    """A person who may decide asks a colleague to do it. The subject names the person.

    It changes nobody's right to vote: it says who is asked next.
    """

    #: Who is asked next.
    to: str
    #: For people.
    reason: str = ""


class Reconciled(Event, frozen=True, tag="Reconciled"):
    """A person found out what happened to a call in doubt."""

    #: Whether the tool took effect.
    happened: bool
    #: For the model.
    output: Content
    reviewer: str = ""


# ------------------------------------------------------------------------------------ the workspace


class PolicyApplied(Event, frozen=True, tag="PolicyApplied"):
    """A policy is in force from here on. The text is that of the TOML file."""

    text: str
    #: The SHA-256 of the text.
    digest: str
    #: `workspace/thread/call` of the proposal that people approved; empty if nobody was asked.
    proposal: str = ""
    #: As in `Voted.signature`.
    signatures: tuple[str, ...] = ()


class ToolDeclared(Event, frozen=True, tag="ToolDeclared"):
    """A tool and its contract. The slot's last token is the version: a digest of the contract."""

    description: str
    #: JSON Schema of the arguments, raw text.
    schema: str
    #: May be run again after a crash, under the same idempotency key.
    repeatable: bool = False
    run_by: str = "client"
    #: It can change a policy or a grant, so no rule and no grant lets it run without people.
    governs: bool = False
    #: The arguments that no notice shows, as JSON pointers (RFC 6901) in which `*` stands for every
    #: key or index.
    secret: tuple[str, ...] = ()
    #: The arguments that are sealed before they are requested, as JSON pointers without wildcards.
    sealed: tuple[str, ...] = ()
    #: None: it counts as irreversible.
    tool_class: ToolClass | None = field(name="class", default=None)
    #: The tool that undoes what it did; empty: none does, or nobody said.
    undo: str = ""
    #: For how long it can be undone after it returned. None: no end is known.
    undo_within_s: float | None = None
    #: What a call does in one line, with the places of arguments in braces; empty: none.
    title: str = ""


class Granted(Event, frozen=True, tag="Granted"):
    """A person's approval of calls in advance. The subject names the person."""

    tool: str
    #: Counted from when the broker recorded this. There is always an end.
    expires_in_s: float
    #: How many calls it approves.
    uses: int = 1
    #: Exactly these arguments (raw JSON text, compared by value); None: any that `when` holds for.
    arguments: str | None = None
    #: A condition on the arguments (`ayes.schemas.conditions`); empty: always.
    when: str = ""
    #: Names, or patterns with `*`.
    agent: str = "*"
    #: A thread's id, or a pattern with `*`.
    thread: str = "*"
    reason: str = ""
    #: The giver's, as in `Voted.signature`.
    signature: str = ""


class GrantRevoked(Event, frozen=True, tag="GrantRevoked"):
    """A grant covers nothing more from here on."""

    reviewer: str = ""
    reason: str = ""
    #: `workspace/thread/call` of the denial for which the gate revoked it.
    call: str = ""


class GrantUsed(Event, frozen=True, tag="GrantUsed"):
    """A call took one of a grant's uses."""

    #: `workspace/thread/call`.
    call: str


class BudgetUsed(Event, frozen=True, tag="BudgetUsed"):
    """A call spends of a budget of the policy. The gate records it before it approves the call.

    It counts until the call has ended without running. Of a budget of tokens, a model's reply has
    used them; that counts for ever.
    """

    #: `workspace/thread/call`; of a reply `workspace/thread/turn.<n>`.
    call: str
    #: An exact decimal, such as `12.50`.
    amount: str
    #: Which of the budget's sums: a thread, agent, requester or day (`2026-03-02`), as the budget
    #: has them.
    key: tuple[str, ...] = ()
    #: Whether the budget is the organisation's.
    organisation: bool = False


class Delegated(Event, frozen=True, tag="Delegated"):
    """Another person may vote in the giver's place. The subject names the giver."""

    #: The person who may vote.
    to: str
    starts_at: Annotated[datetime, Meta(tz=True)]
    ends_at: Annotated[datetime, Meta(tz=True)]
    #: Names, or patterns with `*`.
    tools: tuple[str, ...] = ("*",)
    reason: str = ""
    #: The giver's, as in `Voted.signature`.
    signature: str = ""


class DelegationEnded(Event, frozen=True, tag="DelegationEnded"):
    """A delegation ends before its time."""

    reason: str = ""


# --------------------------------------------------------------------------------------- the people


class AccountBound(Event, frozen=True, tag="AccountBound"):
    """An account elsewhere is this person's own. The subject names the person."""

    #: `slack:<team>/<user>`, or `openid:<issuer>#<subject>`; compared letter by letter.
    account: str


class PersonAdded(Event, frozen=True, tag="PersonAdded"):
    """The name stands for a person from here on, to whom no account is bound yet."""

    reason: str = ""
    #: The workspaces that the person may see and decide in; none: all of them.
    workspaces: tuple[str, ...] = ()


class WorkspacesSet(Event, frozen=True, tag="WorkspacesSet"):
    """The workspaces that a person may see and decide in from here on. The accounts that they have
    bound stay theirs. The subject names the person.
    """

    #: None: all of them.
    workspaces: tuple[str, ...]
    reason: str = ""


class PersonRemoved(Event, frozen=True, tag="PersonRemoved"):
    """The name stands for nobody from here on, and no account is bound to it any more."""

    reason: str = ""


class LoginAdded(Event, frozen=True, tag="LoginAdded"):
    """A program or a person signs on with this key from here on, and with no earlier one of that
    name. The subject has the name of the login.
    """

    #: `service`, `executor`, `model`, `operator`, `observer`, or `reviewer-` and a name.
    role: str
    #: The public key, in the form of nkeys.
    key: str
    ends_at: Annotated[datetime, Meta(tz=True)]
    #: The workspaces that it may read and write; none: all of them.
    workspaces: tuple[str, ...] = ()
    reason: str = ""


class LoginRevoked(Event, frozen=True, tag="LoginRevoked"):
    """The login's key is refused from here on."""

    reason: str = ""


class KeyAdded(Event, frozen=True, tag="KeyAdded"):
    """A person wants to sign votes with this key, which counts once others have confirmed it. The
    subject names the person and the key's id.
    """

    #: The public key, as `PERSON/LOG+ID+KEY` (c2sp.org/signed-note) with the identity of the log;
    #: or a passkey (`ayes.ledger.passkeys`).
    key: str
    #: By which its device finds a passkey, in base64url without padding.
    credential: str = ""


class KeyConfirmed(Event, frozen=True, tag="KeyConfirmed"):
    """The key is that person's, as the owners of these signatures say."""

    #: As in `Voted.signature`.
    signatures: tuple[str, ...]


class KeyRevoked(Event, frozen=True, tag="KeyRevoked"):
    """No vote counts that is signed with this key, unless its call was decided before; and nothing
    is started any more on such votes, where that is checked.
    """

    reason: str = ""


class GroupsRead(Event, frozen=True, tag="GroupsRead"):
    """What a provider of sign-ins said of a person's groups. The subject names the person."""

    #: The provider.
    issuer: str
    #: The account there, which the person has bound.
    subject: str
    #: All that were named.
    groups: tuple[str, ...]
    #: When.
    read_at: Annotated[datetime, Meta(tz=True)]
    #: Votes that are recorded later do not count by it.
    until: Annotated[datetime, Meta(tz=True)]
    #: Why nothing was said of groups, so that there are none; empty: they were named.
    problem: str = ""


class Shift(Struct, frozen=True, gc=False):
    """A time in which somebody is on call."""

    #: A reviewer's name.
    person: str
    starts_at: Annotated[datetime, Meta(tz=True)]
    ends_at: Annotated[datetime, Meta(tz=True)]


class OnCallRead(Event, frozen=True, tag="OnCallRead"):
    """Who is on call, by a calendar. The subject names the schedule."""

    #: All between the two times below, in the calendar's full length.
    shifts: tuple[Shift, ...]
    #: When it was read.
    read_at: Annotated[datetime, Meta(tz=True)]
    #: From then on nobody is on call by it.
    until: Annotated[datetime, Meta(tz=True)]


class Stopped(Event, frozen=True, tag="Stopped"):
    """Nothing that this covers starts from here on, until it ends. The subject names the person.

    A call is covered if its agent, its tool and its requester each match one of the names or
    patterns with `*`. One that names no agent may be any agent's, and matches each.
    """

    reason: str
    #: The agents that it stops: names, or patterns with `*`.
    agents: tuple[str, ...] = ("*",)
    #: The tools that it stops, likewise.
    tools: tuple[str, ...] = ("*",)
    #: On whose behalf the calls are that it stops, likewise.
    requesters: tuple[str, ...] = ("*",)
    #: Counted from when the broker recorded this, in seconds; None: until people resume.
    expires_in_s: float | None = None
    #: How many different people must resume.
    resumes_needed: int = 1


class Resumed(Event, frozen=True, tag="Resumed"):
    """A person wants a stop to end. The gate counts these. The subject names the person."""

    reason: str = ""


class StopEnded(Event, frozen=True, tag="StopEnded"):
    """A stop covers nothing from here on."""

    #: Who resumed; empty if it was ended since its giver had no right to stop.
    resumed_by: tuple[str, ...] = ()
    reason: str = ""


class LogAccepted(Event, frozen=True, tag="LogAccepted"):
    """A person goes on with a log that lacks facts, or is another one than was seen before."""

    #: Its last fact then.
    size: int
    #: The number of facts up to it that can be read.
    facts: int
    #: The identity of the log.
    log: str
    #: The witness's digest of these facts.
    digest: str
    reason: str = ""


# -------------------------------------------------------------------------------------- the unknown


class Carried(Struct, frozen=True):
    """Bytes that this program cannot read: kept as they are, shown, and skipped by every fold.

    Mostly a fact of a newer type or version. With a `problem` it is not a fact.
    """

    type: str
    raw: bytes
    id: str = ""
    v: int = 1
    problem: str = ""


type AnyEvent = (
    ThreadOpened | Keyed | ForgettingBegan | Forgotten | Packed
    | Said | ModelAsked | ModelReplied | ModelFailed
    | ToolRequested | ApprovalRequested | Voted
    | Escalated | GlassBroken | Approved | Denied | Answered | Expired | Withdrawn | Superseded
    | ToolStarted | Revoked | Lapsed | Declined | ToolReturned | ToolFailed | ToolRefused | InDoubt
    | Notified | Posted | Commented | HandedOver | Reconciled | PolicyApplied | ToolDeclared
    | Granted | GrantRevoked | GrantUsed | BudgetUsed | Delegated | DelegationEnded
    | AccountBound | PersonAdded | WorkspacesSet | PersonRemoved | GroupsRead
    | LoginAdded | LoginRevoked | KeyAdded | KeyConfirmed | KeyRevoked | OnCallRead
    | Stopped | Resumed | StopEnded | LogAccepted
)  # fmt: skip

TYPES: Final[dict[str, type[Event]]] = {
    kind.__struct_config__.tag: kind for kind in AnyEvent.__value__.__args__
}

#: The current version of each type's schema; what is not listed is at 1.
VERSION: Final[dict[str, int]] = dict.fromkeys(TYPES, 1) | {"Declined": 3, "ToolRefused": 3}
