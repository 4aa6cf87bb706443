"""Commands for policy authors: read a file, try it on past calls, and explain a verdict."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final

from msgspec.structs import replace

from ayes.interfaces.cli.command import Session, command
from ayes.interfaces.cli.options import (
    CallArgument,
    JsonOption,
    LabelsOption,
    OnlyWorkspaceOption,
    RequesterOption,
    WorkspaceOption,
    argument,
    option,
    read_labels,
)
from ayes.interfaces.cli.policy_diff import diff
from ayes.interfaces.cli.policy_suggest import suggested
from ayes.interfaces.cli.policy_versions import app
from ayes.interfaces.cli.terminal.output import print_data, print_json, print_line, print_message
from ayes.interfaces.cli.terminal.prompt import text_or_stdin
from ayes.interfaces.cli.terminal.tables import print_table
from ayes.ledger.clients.services import Ledger
from ayes.ledger.descriptions import class_words, outcome_words
from ayes.ledger.judging.budgets import sums_of
from ayes.ledger.judging.explanation import (
    Explained,
    ExplainedRequest,
    ExplainedVerdict,
    Seat,
    Vote,
    explained,
    said_to,
)
from ayes.ledger.judging.policies import attributed, classed, origin, origin_slots
from ayes.ledger.validity import call_of
from ayes.ops.actions.secrets import secrets_in
from ayes.ops.audit import backtest as trying
from ayes.ops.audit.backtest import Counts, Report
from ayes.ops.broker.setup import check_policy
from ayes.projections.views.call import quorum_words
from ayes.projections.views.secrets import Declaration, Secrets, declaration
from ayes.schemas import events as e
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import BadInput, UnknownCall
from ayes.schemas.ids import token
from ayes.schemas.policy import TOKENS, Budget, Policy, Rule, read_policy
from ayes.schemas.slots import CallRef
from ayes.schemas.toml_files import read_text
from ayes.schemas.tool_names import tool_name
from ayes.schemas.tools import CLASSES

# -------------------------------------------------------------------------------------- policy test


@command(app, "test")
async def try_file(
    file: Annotated[str, argument("FILE.toml")],
    tool: Annotated[str | None, option("--tool", "NAME", "Judge a call of this tool.")] = None,
    arguments: Annotated[str, option("--arguments", "JSON", "Of that call; - for stdin.")] = "{}",
    agent: Annotated[str, option("--agent", "NAME", "The agent that makes the call.")] = "",
    requester: RequesterOption = "",
    labels: LabelsOption = None,
    tool_class: Annotated[
        str | None, option("--class", "CLASS", "The class that its tool declares.")
    ] = None,
    workspace: WorkspaceOption = "default",
    json: JsonOption = False,
) -> None:
    """Read a policy file as `apply` does, without a broker; with --tool, judge such a call."""
    policy = check_policy(read_text(file), file)
    if tool is not None:
        arguments = text_or_stdin(arguments).strip()
        wish = _wish(tool, arguments, agent, requester, labels or ())
        word = said_to(wish, workspace, policy, _class(tool_class))
        if json:
            print_json(word)
        else:
            _print_lines([("", f"{tool} {arguments}"), *_verdict_lines(word, file)])
        return
    if agent or labels or requester or tool_class or arguments != "{}":
        raise BadInput(
            "--arguments, --agent, --requester, --label and --class describe a call: add --tool "
            "NAME."
        )
    if json:
        print_data(policy.model_dump_json(by_alias=True))
        return
    _print_lines([(rule.then, _in_short(policy, rule)) for rule in policy.rules])
    _print_lines(_shared(policy))
    if policy.untold:
        print_message(
            f"warning: no notice reaches {', '.join(policy.untold)}. Write them below [contacts], "
            "or a room `default` below [rooms]."
        )
    rules = "1 rule" if len(policy.rules) == 1 else f"{len(policy.rules):,} rules"
    print_message(f"{file} can be applied: {rules}. Next: ayes policy backtest {file}")


def _wish(
    tool: str, arguments: str, agent: str, requester: str, labels: Sequence[str]
) -> e.ToolRequested:
    tool_name(tool)
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


def _class(text: str | None) -> e.ToolClass | None:
    found = next((one for one in CLASSES if one == text), None)
    if text is not None and found is None:
        raise BadInput(f"{text!r} is not a class. It can be {', '.join(CLASSES)}.")
    return found


def _in_short(policy: Policy, rule: Rule) -> str:
    """A rule in one line: its name, its tools, when it matches, who must agree."""
    parts = [f"{rule.name!r}: {', '.join(rule.tools)}"]
    parts += [f"only if {rule.when}"] if rule.when else []
    parts += [
        f"{what} {', '.join(names)}"
        for what, names in (("in workspace", rule.workspaces), ("of agent", rule.agents))
        if names != ("*",)
    ]
    parts += [f"with label {name}={value}" for name, value in rule.labels.items()]
    parts += [f"of class {' or '.join(rule.classes)}"] if rule.classes else []
    parts += [f"priority {rule.priority}"] if rule.priority else []
    parts += [_who(policy, rule)] if rule.then == "ask" else []
    parts += ["signed votes only"] if rule.signed or policy.all_signed else []
    parts += ["without effect"] if rule.shadow else []
    return "; ".join(parts)


def _who(policy: Policy, rule: Rule) -> str:
    return ", and ".join(
        _of(one.votes_needed, one.voters, one.name) for one in policy.quorums(rule)
    )


def _shared(policy: Policy) -> list[tuple[str, str]]:
    """The settings that all rules share."""
    limits = {
        "calls a thread": policy.calls_per_thread,
        "questions a thread": policy.questions_per_thread,
        "repeats of a denied call": policy.deny_repeats,
    }
    limited = "; ".join(
        f"{name}: {'no limit' if most is None else most}" for name, most in limits.items()
    )
    return [
        ("pending", f"what a user says while a call is pending: {policy.while_pending}"),
        ("limits", limited),
        *(("budget", _budget(one)) for one in policy.budgets),
        *(("group", f"{name}: {', '.join(people)}") for name, people in policy.groups.items()),
        *(("owner", f"of {agent}: {', '.join(people)}") for agent, people in policy.owners.items()),
        *((("no grant", ", ".join(policy.never_grant)),) if policy.never_grant else ()),
    ]


def _budget(one: Budget) -> str:
    of = "" if one.amount == TOKENS else f" of {one.amount}"
    unit = one.unit or (TOKENS if one.amount == TOKENS else "")
    most = f"at most {one.limit:,f}{f' {unit}' if unit else ''}{of}"
    per = f" for each {' and '.join(one.per)}" if one.per else ""
    return f"{one.name}: {', '.join(one.tools)}: {most}{per}, then {one.then}"


# ---------------------------------------------------------------------------------- policy backtest


@command(app)
async def backtest(
    file: Annotated[str, argument("FILE.toml")],
    on: Annotated[
        str | None,
        option(
            "--on",
            "CONVERSATIONS.jsonl",
            "The tool calls of this file instead of the ledger's; needs no broker.",
        ),
    ] = None,
    since: Annotated[
        str | None, option("--since", "SEQ|TIME", "Start there: a number, or an ISO time (UTC).")
    ] = None,
    workspace: OnlyWorkspaceOption = "",
    organisation: Annotated[
        bool,
        option("--organisation", "As the organisation's policy, next to each workspace's own."),
    ] = False,
    *,
    session: Session,
) -> None:
    """Try a policy on every past call: what it would have asked, allowed, blocked. Records
    nothing.
    """
    policy = read_policy(read_text(file), file)
    if workspace:
        token("workspace", workspace)
    start = trying.since(since)
    unreadable = 0
    if on is not None:
        if since is not None:
            raise BadInput(
                "--since is about the ledger's calls. Conversations of a file have no times."
            )
        beside = trying.Beside(None) if organisation else trying.NOTHING_BESIDE
        report = trying.backtest(policy, trying.wishes_in(on, workspace), beside)
    else:
        async with session.connect("observer") as ledger:
            report, unreadable = await trying.backtest_ledger(
                ledger, policy, workspace=workspace, since=start, organisation=organisation
            )
    if session.json:
        print_json(report)
    else:
        _print_report(report)
        print_message()
        print_message(f"Not tried: {'; '.join(report.left_out)}.")
    if unreadable:
        print_message(
            f"{unreadable:,} requests are not counted, since this program cannot read them. "
            "`ayes watch` shows them."
        )


def _print_report(report: Report) -> None:
    print_line(
        f"{report.calls:,} calls: {report.asked:,} asked, {report.allowed:,} allowed, "
        f"{report.blocked:,} blocked, {report.invalid:,} invalid"
    )
    if report.requester_confirms:
        print_line(
            f"{report.requester_confirms:,} of those asked may be confirmed by the requester"
        )
    if report.uncertain:
        print_line(
            f"{report.uncertain:,} of those asked only because a condition could not be evaluated"
        )
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
    columns = [
        one
        for one in Counts.__struct_fields__
        if one != "requester_confirms" or any(counts.requester_confirms for counts in rows.values())
    ]
    cells = [
        [name, *(f"{getattr(counts, one):,}" for one in columns)] for name, counts in rows.items()
    ]
    heads = (one.replace("_", " ") for one in columns)
    print_table([title, *heads], cells, [False, *(True for _ in columns)])


# ---------------------------------------------------------------------- policy diff, policy suggest

command(
    app,
    "diff",
    examples="""
    ayes policy diff shop.toml new.toml
    ayes policy diff 3 new.toml -w shop
    ayes policy diff 3 4 -w shop --json
    """,
)(diff)
command(
    app,
    "suggest",
    examples="""
    ayes policy suggest -w shop
    ayes policy suggest -w shop --at-most 2 --toml
    """,
)(suggested)


# ----------------------------------------------------------------------------------- policy explain


@command(app)
async def explain(call: CallArgument, session: Session) -> None:
    """Explain the state of a call: its rule, who must agree and who is missing, how its
    budgets stand; and the verdict of the present policy.
    """
    async with session.connect("observer") as ledger:
        explained = await explanation(ledger, CallRef.parse(call))
    if session.json:
        print_json(explained)
    else:
        _print_lines(_lines(explained))


def _without_secrets(one: Explained, of: Declaration, secrets: Secrets) -> Explained:
    votes = tuple(
        replace(vote, arguments=vote.arguments and secrets.arguments(of, vote.arguments))
        for vote in one.votes
    )
    return replace(one, arguments=secrets.arguments(of, one.arguments), votes=votes)


async def explanation(ledger: Ledger, ref: CallRef) -> Explained:
    """Explain the state of a call from the facts alone, without what is secret.

    Raises:
        UnknownCall: it was never requested.
    """
    facts = await ledger.read(ref, *origin_slots(ref))
    call = call_of(ref, facts)
    if call.requested is None:
        raise UnknownCall(f"{ref} was never requested. `ayes pending` lists what waits.")
    whence = await ledger.with_chain(origin(call, facts))
    names_requester, call = bool(call.wish.requester), attributed(call, whence)
    policies = await ledger.policies(ref.workspace)
    tool = await ledger.tool_of(call)
    whence = replace(whence, chain=await ledger.with_classes(whence.chain, policies))
    call = classed(call, tool, whence.chain)
    call, delegations = await ledger.with_given(call) if call.votes else (call, ())
    grants = await ledger.grants(ref.workspace)
    sums = sums_of(policies, call)
    found = explained(
        call,
        policies,
        tool,
        delegations,
        tuple(f"{one.ref.giver}/{one.ref.name}" for one in grants if one.used_by(call)),
        whence,
        await ledger.with_usage(sums, call, must_include=ref.requested, is_exact=True),
        names_requester=names_requester,
    )
    return _without_secrets(found, declaration(call), await secrets_in(ledger, call))


# --------------------------------------------------------------------------------------- for people

type _Line = tuple[str, str]


def _lines(one: Explained) -> list[_Line]:
    lines = [("", f"{one.call} {outcome_words(one.outcome)}: {one.tool} {one.arguments}")]
    if one.judged is None:
        lines.append(("judged", "not yet, by any gate"))
    else:
        lines += _verdict_lines(one.judged, _origin(one.judged), agreeing=True)
    if one.tool_class is not None:
        lines.append(("class", f"it is judged as {class_words(one.tool_class)}"))
    if one.asked_as_well:
        asked = ", ".join(one.asked_as_well)
        lines.append(("as well", f"{asked}, since nobody had decided in time"))
    lines += [("on call", words.removeprefix("on call ")) for words in one.on_call]
    lines += [("vote", _vote(vote)) for vote in one.votes]
    if (stage := one.next_stage) is not None:
        lines.append(("next", f"{', '.join(stage.voters)} are asked as well at {_at(stage.at)}"))
    if one.expires_at is not None and not one.decided:
        lines.append(("until", _at(one.expires_at)))
    if one.grants:
        lines.append(("granted", f"by {', '.join(one.grants)}"))
    if one.decided:
        lines.append(("decided", one.decided))
    lines += [("budget", budget.words) for budget in one.budgets]
    if one.by_now is not None:
        lines += [
            ("", "The policy and its budgets say something else now:"),
            *_verdict_lines(one.by_now, _origin(one.by_now)),
        ]
    return lines


def _vote(vote: Vote) -> str:
    whose = f"{vote.reviewer} for {vote.on_behalf_of}" if vote.on_behalf_of else vote.reviewer
    reason = f", {vote.reason}" if vote.reason else ""
    other = "" if vote.arguments is None else f" with other arguments, {vote.arguments}"
    flaw = f" (does not count: {vote.flaw})" if vote.flaw else ""
    return f"{whose}: {vote.verdict.replace('_', ' ')}{other}{reason}{flaw}"


def _verdict_lines(word: ExplainedVerdict, origin: str, *, agreeing: bool = False) -> list[_Line]:
    reason = f": {word.reason}" if word.reason else ""
    lines = [("rule", f"{word.rule!r} of {origin} {_SAYS[word.then]}{reason}")]
    if (asks := word.asks) is not None:
        lines += [("must agree", _needs(seat, agreeing=agreeing)) for seat in asks.quorums]
        also = (_needs(seat, agreeing=agreeing) for seat in asks.besides)
        lines += [("and also", f"{needs}, by the same votes") for needs in also]
        denials = asks.denials_needed
        lines.append(("deny", f"{denials} must deny it" if denials > 1 else "one denial ends it"))
        lines += [("not", f"{person}, who {why}") for person, why in asks.excluded.items()]
        if asks.mode == "requester_confirms":
            lines.append(("mode", "requester confirms: a second person need not look"))
        lines += [("own", f"{person}, who {why}, may confirm") for person, why in asks.own.items()]
        if glass := ", ".join(asks.may_break_glass):
            lines.append(("emergency", f"any of {glass} alone, with a reason"))
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
    called = f" ({name})" if "@" in name else ""
    return f"{quorum_words(e.Quorum(tuple(voters), votes_needed))}{called}"


def _time(asks: ExplainedRequest) -> str:
    if asks.expires_in_s is None:
        return "it never expires"
    then = {"deny": "it expires", "stay": "it stays pending"}.get(asks.on_timeout, "")
    more = ", then ".join(
        ", ".join(one.voters)
        + (f" for {one.expires_in_s:g} s" if one.expires_in_s is not None else "")
        for one in asks.stages
    )
    return f"after {asks.expires_in_s:g} s {then or f'these are asked as well: {more}'}"


def _origin(word: ExplainedVerdict) -> str:
    if not word.policy_version:
        return "the empty policy (none was ever applied)"
    owner = "organisation" if word.organisation else "workspace"
    return f"the {owner}'s policy, version {word.policy_version},"


def _at(time: datetime | None) -> str:
    return "no time" if time is None else f"{time:%Y-%m-%d %H:%M:%S} UTC"


def _print_lines(lines: Sequence[_Line]) -> None:
    for label, text in lines:
        print_line(f"{label:10}  {text}" if label else text)


_SAYS: Final = {
    "allow": "allows it",
    "ask": "asks people",
    "block": "blocks it",
    "invalid": "was not consulted, since the call could never run",
    "limit": "was not consulted, since a limit is reached",
}
