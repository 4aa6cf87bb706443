"""For whoever writes policies: what a file says, what it would have said to the past, and why a call was judged as it was."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Annotated, Final

import msgspec
import typer
from msgspec import Struct

from ayes.consumers.gate import GateState, verdict
from ayes.ledger.client import Ledger
from ayes.ledger.grants import Delegation, delegated
from ayes.ledger.lifecycle import Call, call_of, describe, may_vote
from ayes.ledger.policies import AppliedPolicy, Origin, Policies, attributed, of_edit, origin, origin_slots
from ayes.ledger.votes import CountedVote, Required, Tally, asked, counted, tally
from ayes.ops.audit import backtest as trying
from ayes.ops.audit.backtest import Counts, Report
from ayes.ops.commands.command import command
from ayes.ops.commands.options import CallArgument, JsonOption, StoreOption, UrlOption, WorkspaceOption
from ayes.ops.commands.policy_versions import app
from ayes.ops.terminal.labels import read_labels
from ayes.ops.terminal.output import print_data, print_line, print_message
from ayes.ops.terminal.tables import print_table
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import BadInput, UnknownCall
from ayes.schemas.events import Shadow
from ayes.schemas.ids import token
from ayes.schemas.people import Accounts, is_excluded, is_mapped
from ayes.schemas.policy import Policy, Rule, read_policy
from ayes.schemas.quorums import is_among, seated
from ayes.schemas.slots import CallRef, ThreadRef
from ayes.schemas.toml_files import read_text
from ayes.schemas.tools import Tool

#: Who else must agree to edited arguments; None: they may not run.
type _Edited = Callable[[str], Required | None]

# ------------------------------------------------------------------------------------ what is said about a call


class Seat(Struct, frozen=True):
    """Of these people so many must agree."""

    voters: tuple[str, ...]
    votes_needed: int
    agree: tuple[str, ...] = ()
    missing: int = 0
    #: What the policy calls them.
    name: str = ""


class ExplainedRequest(Struct, frozen=True):
    """What people are asked."""

    quorums: tuple[Seat, ...]
    #: What the workspace's own rule asks for, where the organisation's asks too. The same votes count once more here.
    besides: tuple[Seat, ...]
    denials_needed: int
    #: Who never counts, and why.
    excluded: dict[str, str]
    may_break_glass: tuple[str, ...]
    expires_in_s: float | None
    on_timeout: e.OnTimeout
    stages: tuple[e.Stage, ...]


class ExplainedVerdict(Struct, frozen=True):
    """What the policies say to a call: `allow`, `ask`, `block`; `invalid` or `limit` where that comes before any rule."""

    then: str
    rule: str
    policy_version: int
    organisation: bool
    reason: str
    asks: ExplainedRequest | None = None
    #: What rules without effect would have said.
    shadows: tuple[Shadow, ...] = ()


class Vote(Struct, frozen=True):
    """A vote that was cast, and whether it counts."""

    reviewer: str
    on_behalf_of: str
    verdict: str
    reason: str
    #: Why it does not count; empty: it does.
    flaw: str


class ExplainedStage(Struct, frozen=True):
    """Who is asked as well next, and when."""

    voters: tuple[str, ...]
    at: datetime | None


class Explained(Struct, frozen=True):
    """Why a call stands as it does."""

    call: str
    status: str
    tool: str
    arguments: str
    requester: str
    agent: str
    #: What was said when it was judged. None: no gate has judged it.
    judged: ExplainedVerdict | None
    votes: tuple[Vote, ...]
    denied_by: tuple[str, ...]
    #: Who was asked as well by now, since nobody decided in time.
    asked_as_well: tuple[str, ...]
    next_stage: ExplainedStage | None
    expires_at: datetime | None
    #: `giver/grant`: what was said in advance.
    grants: tuple[str, ...]
    decision: str | None
    decided: str
    #: What the policies in force now would say, where that is something else.
    by_now: ExplainedVerdict | None


_UNKNOWN: Final = Origin()

# ------------------------------------------------------------------------------------------------ policy test


@command(app, "test")
async def try_file(
    file: Annotated[str, typer.Argument(metavar="FILE.toml")],
    tool: Annotated[
        str | None, typer.Option("--tool", metavar="NAME", help="What would it say to a call of this tool?")
    ] = None,
    arguments: Annotated[str, typer.Option("--arguments", metavar="JSON", help="Of that call.")] = "{}",
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="Whose agent wishes it.")] = "",
    requester: Annotated[
        str, typer.Option("--requester", metavar="NAME", help="On whose behalf: they cannot vote on it.")
    ] = "",
    labels: Annotated[
        list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="Of its thread.")
    ] = None,
    workspace: WorkspaceOption = "default",
    json: JsonOption = False,
) -> None:
    """Read a policy file as `apply` does, without a broker; with --tool, say what it would say to such a call."""
    policy = read_policy(read_text(file), file)
    if tool is not None:
        wish = _wish(tool, arguments, agent, requester, labels or ())
        word = said_to(wish, workspace, policy)
        if json:
            _print_json(word)
        else:
            _print_lines([("", f"{tool} {arguments}"), *_told(word, file)])
        return
    if agent or labels or requester or arguments != "{}":
        raise BadInput("--arguments, --agent, --requester and --label describe a call: add --tool NAME.")
    if json:
        print_data(policy.model_dump_json(by_alias=True))
        return
    _print_lines([(rule.then, _in_short(policy, rule)) for rule in policy.rules])
    _print_lines(_shared(policy))
    rules = "1 rule" if len(policy.rules) == 1 else f"{len(policy.rules):,} rules"
    print_message(f"{file} can be applied: {rules}. Next: ayes policy backtest {file}")


def said_to(wish: e.ToolRequested, workspace: str, policy: Policy) -> ExplainedVerdict:
    """What the gate would say to a wish, were this the policy in force; any object fits the tool's schema."""
    ref = ThreadRef(workspace, "t").call("c")
    now = datetime.fromtimestamp(0).astimezone()
    call = Call(ref, requested=Fact(1, now, ref.requested, wish))
    if not wish.requester:  # somebody asks, and it does not matter who
        policy = policy.model_copy(update={"unmapped_requesters": "exclude_nobody"})
    case = GateState(call, Policies(AppliedPolicy(0, policy)), Tool(wish.tool, wish.tool_version, _ANY))
    return _word(verdict(case, now), wish)


def _wish(tool: str, arguments: str, agent: str, requester: str, labels: Sequence[str]) -> e.ToolRequested:
    token("tool", tool)
    named = read_labels(labels)
    return e.ToolRequested(
        tool=tool,
        arguments=arguments,
        digest=call_digest(tool, "1", arguments),
        tool_version="1",
        requester=requester,
        agent=agent,
        labels=named,
    )


def _in_short(policy: Policy, rule: Rule) -> str:
    """A rule in a line: its name, its tools, when it matches, who must agree."""
    parts = [f"{rule.name!r}: {', '.join(rule.tools)}"]
    parts += [f"only if {rule.when}"] if rule.when else []
    parts += [
        f"{what} {', '.join(names)}"
        for what, names in (("in workspace", rule.workspaces), ("of agent", rule.agents))
        if names != ("*",)
    ]
    parts += [f"with label {name}={value}" for name, value in rule.labels.items()]
    parts += [f"priority {rule.priority}"] if rule.priority else []
    parts += [_who(policy, rule)] if rule.then == "ask" else []
    parts += ["without effect"] if rule.shadow else []
    return "; ".join(parts)


def _who(policy: Policy, rule: Rule) -> str:
    return " and ".join(_of(one.votes_needed, one.voters, one.name) for one in policy.quorums(rule))


def _shared(policy: Policy) -> list[tuple[str, str]]:
    """What is the same for all rules."""
    limits = {
        "calls a thread": policy.calls_per_thread,
        "questions a thread": policy.questions_per_thread,
        "repeats of what was denied": policy.deny_repeats,
    }
    told = "; ".join(f"{name}: {'no limit' if most is None else most}" for name, most in limits.items())
    return [
        ("pending", f"while a call waits, what a user says: {policy.while_pending}"),
        ("limits", told),
        *(("group", f"{name}: {', '.join(people)}") for name, people in policy.groups.items()),
        *(("owner", f"of {agent}: {', '.join(people)}") for agent, people in policy.owners.items()),
        *((("no grant", ", ".join(policy.never_grant)),) if policy.never_grant else ()),
    ]


# --------------------------------------------------------------------------------------------- policy backtest


@command(app)
async def backtest(
    file: Annotated[str, typer.Argument(metavar="FILE.toml")],
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="CONVERSATIONS.jsonl",
            help="The wishes of this file instead of the ledger's calls; needs no broker.",
        ),
    ] = None,
    form: Annotated[str | None, typer.Option("--form", metavar="PROVIDER", help="As for `rehearse`.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="SEQ|TIME", help="From there on: a number, or an ISO time (UTC)."),
    ] = None,
    workspace: Annotated[
        str, typer.Option("-w", "--workspace", metavar="WS", help="Only this workspace.")
    ] = "",
    organisation: Annotated[
        bool,
        typer.Option("--organisation", help="Try it as the organisation's, beside each workspace's own."),
    ] = False,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Try a policy on every call that was ever made: what it would have asked, allowed, blocked. Nothing is recorded."""
    policy = read_policy(read_text(file), file)
    if workspace:
        token("workspace", workspace)
    start = trying.since(since)
    unreadable = 0
    if on is not None:
        if since is not None:
            raise BadInput("--since is about the ledger's calls. Conversations of a file have no times.")
        beside = trying.Beside(None) if organisation else trying.NOTHING_BESIDE
        report = trying.backtest(policy, trying.wishes_in(on, form, workspace), beside)
    elif form is not None:
        raise BadInput("--form says how a file is written: add --on FILE.")
    else:
        async with Ledger.connect(store, url=url, role="observer") as ledger:
            report, unreadable = await trying.backtest_ledger(
                ledger, policy, workspace=workspace, since=start, organisation=organisation
            )
    if json:
        _print_json(report)
    else:
        _print_report(report)
        print_message(f"\nNot tried: {'; '.join(report.left_out)}.")
    if unreadable:
        print_message(
            f"{unreadable:,} requests are not counted: this program cannot read them. `ayes watch` shows them."
        )


def _print_report(report: Report) -> None:
    total = f"{report.calls:,} calls: {report.asked:,} asked, {report.allowed:,} allowed, {report.blocked:,} blocked"
    print_line(f"{total}, {report.invalid:,} invalid")
    if report.uncertain:
        print_line(f"{report.uncertain:,} of those asked only because a condition could not be evaluated")
    for title, rows in (
        ("tool", report.by_tool),
        ("rule", report.by_rule),
        ("rule without effect", report.shadows),
        ("what really happened", report.actual),
    ):
        if rows:
            print_line()
            _print_counts(title, rows)


def _print_counts(title: str, rows: dict[str, Counts]) -> None:
    columns = Counts.__struct_fields__
    cells = [[name, *(f"{getattr(counts, one):,}" for one in columns)] for name, counts in rows.items()]
    print_table([title, *columns], cells, [False, *(True for _ in columns)])


# ---------------------------------------------------------------------------------------------- policy explain


@command(app)
async def explain(
    call: CallArgument, store: StoreOption = None, url: UrlOption = None, json: JsonOption = False
) -> None:
    """Why a call stands as it does: its rule, who must agree and who is missing; and what would be said now."""
    async with Ledger.connect(store, url=url, role="observer") as ledger:
        explained = await explanation(ledger, CallRef.parse(call))
    if json:
        _print_json(explained)
    else:
        _print_lines(_lines(explained))


async def explanation(ledger: Ledger, ref: CallRef) -> Explained:
    """Why a call stands as it does, from the facts alone.

    Raises:
        UnknownCall: it was never requested.
    """
    facts = await ledger.read(ref, *origin_slots(ref))
    call = call_of(ref, facts)
    if call.requested is None:
        raise UnknownCall(f"{ref} was never requested. `ayes pending` lists what waits.")
    whence = origin(call, facts)
    names_requester, call = bool(call.wish.requester), attributed(call, whence)
    policies = await ledger.policies(ref.workspace)
    tool = await ledger.tool_of(call)
    delegations = await ledger.delegations(ref.workspace) if call.votes else ()
    grants = await ledger.grants(ref.workspace)
    return explained(
        call,
        policies,
        tool,
        delegations,
        tuple(f"{one.ref.giver}/{one.ref.name}" for one in grants if one.used_by(call)),
        whence,
        names_requester=names_requester,
    )


def explained(
    call: Call,
    policies: Policies,
    tool: Tool | None,
    delegations: Sequence[Delegation] = (),
    grants: tuple[str, ...] = (),
    whence: Origin = _UNKNOWN,
    *,
    names_requester: bool = True,
) -> Explained:
    """The same, of a call that was read."""
    assert call.requested
    wish, decision = call.wish, call.decided.event if call.decided else None

    def edited(arguments: str) -> Required | None:
        return of_edit(policies, tool, call, arguments)

    stands, ballots = None, []
    if call.approval_request is not None:
        stands = tally(call, edited, lambda vote: delegated(delegations, call, vote))
        ballots = counted(call, lambda vote: delegated(delegations, call, vote))
        ballots = [one for one in ballots if not _is_refused(call, one.vote, edited)]
    judged = _judged(call, stands, ballots)
    requested = Call(call.ref, requested=call.requested)
    wished = GateState(requested, policies, tool, origin=whence, names_requester=names_requester)
    now = _word(verdict(wished, call.requested.recorded_at), wish)
    stage = call.next_stage
    return Explained(
        call=str(call.ref),
        status=str(call.status),
        tool=wish.tool,
        arguments=wish.arguments,
        requester=wish.requester,
        agent=wish.agent,
        judged=judged,
        votes=tuple(_vote(call, fact, ballots, delegations) for fact in call.votes),
        denied_by=tuple(one.person for one in ballots if one.vote.verdict == "deny"),
        asked_as_well=call.escalated_to(),
        next_stage=ExplainedStage(stage.voters, call.due) if stage is not None and decision is None else None,
        expires_at=call.deadline,
        grants=decision.grants if isinstance(decision, e.Approved) and decision.grants else grants,
        decision=_kind(decision) if decision is not None else None,
        decided=describe(call.decided) if call.decided is not None else "",
        by_now=now if judged is None or _differ(judged, now) else None,
    )


def _judged(call: Call, stands: Tally | None, ballots: Sequence[CountedVote]) -> ExplainedVerdict | None:
    """What was said to it when it was judged, with who agrees by now."""
    decision = call.decided.event if call.decided else None
    if call.approval_request is None:
        return _word(decision, call.wish) if isinstance(decision, e.Approved | e.Denied) else None
    people = stands.people if stands is not None else ()
    if isinstance(decision, e.Approved | e.Answered):
        people = tuple(decision.on_behalf_of.get(one, one) for one in decision.voters)
    anywhere = {one.person for one in ballots if is_among(one.person, call.escalated_to(one.seq))}
    return _word(call.approval_request, call.wish, people, anywhere)


def _word(
    event: e.Approved | e.Denied | e.ApprovalRequested,
    wish: e.ToolRequested,
    people: Sequence[str] = (),
    anywhere: Collection[str] = (),
) -> ExplainedVerdict:
    match event:
        case e.ApprovalRequested():
            then = "ask"
        case e.Approved(ground=ground) | e.Denied(ground=ground):
            then = _THEN.get((type(event), ground), "ask")
    return ExplainedVerdict(
        then=then,
        rule=event.rule,
        policy_version=event.policy_version,
        organisation=event.organisation,
        reason=event.reason,
        asks=_question(event, wish, people, anywhere) if isinstance(event, e.ApprovalRequested) else None,
        shadows=event.shadows,
    )


def _question(
    asking: e.ApprovalRequested,
    wish: e.ToolRequested,
    people: Sequence[str],
    anywhere: Collection[str],
) -> ExplainedRequest:
    seats = [
        tuple(
            Seat(one.voters, one.votes_needed, tuple(sit), one.votes_needed - len(sit), one.name)
            for one, sit in zip(quorums, seated(quorums, people, anywhere), strict=True)
        )
        for quorums in asked(asking)
    ]
    return ExplainedRequest(
        quorums=seats[0],
        besides=seats[1] if len(seats) > 1 else (),
        denials_needed=asking.denials_needed,
        excluded={one: _why_excluded(one, wish, asking.people) for one in asking.excluded},
        may_break_glass=asking.may_break_glass,
        expires_in_s=asking.expires_in_s,
        on_timeout=asking.on_timeout,
        stages=asking.stages,
    )


def _why_excluded(name: str, wish: e.ToolRequested, accounts: Accounts) -> str:
    asked_for_it = is_excluded(name, filter(is_mapped, (wish.requester,)), accounts)
    return "asked for it" if asked_for_it or not wish.agent else f"is behind the agent {wish.agent}"


def _differ(then: ExplainedVerdict, now: ExplainedVerdict) -> bool:
    """Is it another word, or are other people asked? Versions, reasons and who has voted by now make no difference."""
    if then.then == now.then == "invalid":
        return False
    if then.then == "limit":  # what the rule would have said was not recorded
        return (then.rule, then.organisation) != (now.rule, now.organisation)
    if (then.then, then.rule, then.organisation) != (now.then, now.rule, now.organisation):
        return True
    return then.asks is not None and now.asks is not None and _bare(then.asks) != _bare(now.asks)


def _bare(question: ExplainedRequest) -> ExplainedRequest:
    """The question alone, without who agrees."""

    def bare(seats: Sequence[Seat]) -> tuple[Seat, ...]:
        return tuple(Seat(one.voters, one.votes_needed) for one in seats)

    return msgspec.structs.replace(question, quorums=bare(question.quorums), besides=bare(question.besides))


def _vote(call: Call, fact: Fact, ballots: Sequence[CountedVote], delegations: Sequence[Delegation]) -> Vote:
    reviewer, event = fact.slot.tail[3], fact.event
    if not isinstance(event, e.Voted):
        return Vote(reviewer, "", "", "", "this program cannot read it")
    flaw = "" if any(one.seq == fact.seq for one in ballots) else _flaw(call, fact, event, delegations)
    return Vote(reviewer, event.on_behalf_of, event.verdict, event.reason, flaw)


def _flaw(call: Call, fact: Fact, vote: e.Voted, delegations: Sequence[Delegation]) -> str:
    """Why a vote does not count, in the order in which `ayes.ledger.votes` looks."""
    reviewer = fact.slot.tail[3]
    person = vote.on_behalf_of or reviewer
    if call.approval_request is None or call.gated is None or fact.seq < call.gated.seq:
        return "nobody had been asked by then"
    if vote.digest != call.approval_request.digest:
        return "it is about other arguments than those that wait"
    if call.deadline is not None and fact.recorded_at >= call.deadline:
        return "it came after the deadline"
    for name in (reviewer, person):
        if is_excluded(name, call.approval_request.excluded, call.approval_request.people):
            return f"{name} {_why_excluded(name, call.wish, call.approval_request.people)}"
    if not may_vote(call, vote, reviewer, fact.seq):
        return f"{person} {'may not break the glass' if vote.verdict == 'break_glass' else 'was not asked'}"
    if person != reviewer and not delegated(delegations, call, fact):
        return f"{person} had not given {reviewer} the vote then"
    if vote.verdict == "break_glass" and not vote.reason.strip():
        return "who breaks the glass must say why"
    if vote.arguments is not None:
        return "what it would have it run may not run"
    return f"{person if person != reviewer else reviewer} has voted already"


def _is_refused(call: Call, vote: e.Voted, edited: _Edited) -> bool:
    """Would it have something run that may not run?"""
    changes = vote.verdict == "approve" and vote.arguments not in (None, call.wish.arguments)
    return changes and vote.arguments is not None and edited(vote.arguments) is None


def _kind(event: object) -> str:
    return event.type if isinstance(event, e.Carried) else type(event).__name__


# -------------------------------------------------------------------------------------------------- for people

type _Line = tuple[str, str]


def _lines(one: Explained) -> list[_Line]:
    lines = [("", f"{one.call} is {one.status.replace('_', ' ')}: {one.tool} {one.arguments}")]
    if one.judged is None:
        lines.append(("judged", "by no gate yet"))
    else:
        lines += _told(one.judged, _origin(one.judged), agreeing=True)
    if one.asked_as_well:
        lines.append(("as well", f"{', '.join(one.asked_as_well)}, since nobody had decided in time"))
    for vote in one.votes:
        whose = f"{vote.reviewer} for {vote.on_behalf_of}" if vote.on_behalf_of else vote.reviewer
        said = f"{whose}: {vote.verdict.replace('_', ' ')}{f', {vote.reason}' if vote.reason else ''}"
        lines.append(("vote", f"{said} (does not count: {vote.flaw})" if vote.flaw else said))
    if one.next_stage is not None:
        lines.append(
            ("next", f"{', '.join(one.next_stage.voters)} are asked as well at {_at(one.next_stage.at)}")
        )
    if one.expires_at is not None and not one.decided:
        lines.append(("until", _at(one.expires_at)))
    if one.grants:
        lines.append(("granted", f"by {', '.join(one.grants)}"))
    if one.decided:
        lines.append(("decided", one.decided))
    if one.by_now is not None:
        lines += [("", "What is in force now says something else:"), *_told(one.by_now, _origin(one.by_now))]
    return lines


def _told(word: ExplainedVerdict, origin: str, *, agreeing: bool = False) -> list[_Line]:
    reason = f": {word.reason}" if word.reason else ""
    lines = [("rule", f"{word.rule!r} of {origin} {_SAYS[word.then]}{reason}")]
    if (asks := word.asks) is not None:
        lines += [("must agree", _needs(seat, agreeing=agreeing)) for seat in asks.quorums]
        lines += [
            ("and also", f"{_needs(seat, agreeing=agreeing)}, by the same votes") for seat in asks.besides
        ]
        ends = "one no ends it" if asks.denials_needed == 1 else f"{asks.denials_needed} must say no"
        lines.append(("deny", ends))
        lines += [("not", f"{person}, who {why}") for person, why in asks.excluded.items()]
        if asks.may_break_glass:
            lines.append(("emergency", f"any of {', '.join(asks.may_break_glass)} alone, with a reason"))
        lines.append(("time", _time(asks)))
    lines += [("shadow", f"{one.rule!r} has no effect; it says {one.then}") for one in word.shadows]
    return lines


def _needs(seat: Seat, *, agreeing: bool) -> str:
    needs = _of(seat.votes_needed, seat.voters, seat.name)
    if not agreeing:
        return needs
    agree = ", ".join(seat.agree) or "nobody yet"
    return f"{needs}: {agree}{f'; {seat.missing} missing' if seat.missing else ''}"


def _of(votes_needed: int, voters: Sequence[str], name: str = "") -> str:
    people = "anybody" if tuple(voters) == ("*",) else ", ".join(voters)
    called = f" ({name})" if "@" in name else ""
    return f"{votes_needed} of {people}{called}"


def _time(asks: ExplainedRequest) -> str:
    if asks.expires_in_s is None:
        return "it never expires"
    then = {"deny": "it expires", "stay": "it goes on waiting"}.get(asks.on_timeout, "")
    more = ", then ".join(
        ", ".join(one.voters) + (f" for {one.expires_in_s:g} s" if one.expires_in_s is not None else "")
        for one in asks.stages
    )
    return f"after {asks.expires_in_s:g} s {then or f'these are asked as well: {more}'}"


def _origin(word: ExplainedVerdict) -> str:
    if not word.policy_version:
        return "the empty policy (none was ever applied)"
    return (
        f"the {'organisation' if word.organisation else 'workspace'}'s policy, version {word.policy_version},"
    )


def _at(time: datetime | None) -> str:
    return "no time" if time is None else f"{time:%Y-%m-%d %H:%M:%S} UTC"


def _print_lines(lines: Sequence[_Line]) -> None:
    for label, text in lines:
        print_line(f"{label:10}  {text}" if label else text)


def _print_json(value: object) -> None:
    print_data(msgspec.json.encode(value).decode())


_SAYS: Final = {
    "allow": "allows it",
    "ask": "asks people",
    "block": "blocks it",
    "invalid": "was not looked at, since it could never run",
    "limit": "was not reached, since the thread is over a limit",
}
_THEN: Final[dict[tuple[type, str], str]] = {
    (e.Approved, "policy"): "allow",
    (e.Denied, "policy"): "block",
    (e.Denied, "invalid"): "invalid",
    (e.Denied, "limit"): "limit",
}
_ANY: Final = e.ToolDeclared(description="", schema='{"type":"object"}')
