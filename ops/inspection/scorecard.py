"""OWASP AISVS 1.0, chapter C9 (orchestration and agents), line by line on a site.

    for score in await scorecard(store, "ana"):
        score.number, score.answer, score.evidence

A line asks nothing: it is a function of the `Evidence`, which is the attempts of `attacks.py` and
`trials.py` by name, and what the site has. What could not be tried is not a yes. The requirements
are in our own words; those that count are in https://github.com/OWASP/AISVS.
"""

from collections.abc import Callable
from typing import Final, Literal

from msgspec import Struct

from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.subscriptions import OPERATOR
from ayes.ops.inspection.attacks import attempts
from ayes.ops.inspection.checks import unlike_witness
from ayes.ops.inspection.trials import WORKSPACE, Attempt
from ayes.ops.inspection.witness import place_of
from ayes.schemas.events import ToolDeclared
from ayes.schemas.policy import Policy
from ayes.schemas.slots import ORGANISATION, POLICY, ROOT, TOOL

type Answer = Literal["yes", "partly", "no", "not ours"]


class Site(Struct, frozen=True):
    """What a site has, without the workspace of the scorecard."""

    #: The policies in force; the organisation's, if it has rules.
    policies: list[Policy]
    organisation: Policy
    #: The newest declaration of each tool.
    tools: list[ToolDeclared]
    #: How the log differs from its witness; empty if it does not.
    unlike: str


class Evidence(Struct, frozen=True):
    """What was tried, and what the site has."""

    attempts: dict[str, Attempt]
    site: Site

    def judged(self, answer: Answer, *names: str, besides: str = "") -> "LineAnswer":
        """The answer if all these attempts were held off, else no; with what was seen."""
        tried = [self.attempts[name] for name in names]
        if failed := [one.said for one in tried if not one.held]:
            return LineAnswer("no", "; ".join(failed))
        return LineAnswer(answer, "; ".join(filter(None, (*(one.said for one in tried), besides))))


class LineAnswer(Struct, frozen=True):
    """The answer to a line, and what it rests on."""

    answer: Answer
    #: In one sentence.
    why: str


class Line(Struct, frozen=True):
    """A requirement in short, and how it is judged."""

    number: str
    level: int
    short: str
    judge: Callable[[Evidence], LineAnswer]


class Score(Struct, frozen=True):
    """A line as it was judged."""

    number: str
    level: int
    requirement: str
    answer: Answer
    evidence: str


async def scorecard(store: Store, person: str) -> list[Score]:
    """Judge each line on the site of this store.

    Args:
        person: the reviewer who stops, resumes, and tries to vote as somebody else.

    Raises:
        BrokerAway: no broker runs there.
        BrokerRefused: the store has no login of the operator.
    """
    site = await _site(store)  # before the attacks, which are no part of it
    seen = Evidence(await attempts(store, person), site)
    found = [(line, line.judge(seen)) for line in LINES]
    return [Score(line.number, line.level, line.short, one.answer, one.why) for line, one in found]


async def _site(store: Store) -> Site:
    async with JetStream.connect(store.path, role=OPERATOR) as log:
        ledger = Ledger.on(log, OPERATOR)
        applied = await ledger.read(f"{ROOT}.*.{POLICY}.*")
        places = {one.slot.workspace for one in applied} - {"", WORKSPACE, ORGANISATION}
        declared = {
            (fact.slot.workspace, fact.slot.tail[1]): fact.event
            for fact in await ledger.read(f"{ROOT}.*.{TOOL}.*.*")
            if fact.slot.workspace != WORKSPACE and isinstance(fact.event, ToolDeclared)
        }
        own = [(await ledger.policies(one)).workspace.policy for one in sorted(places)]
        organisation = (await ledger.policies(WORKSPACE)).organisation.policy
        return Site(
            policies=[*own, *([organisation] if organisation.rules else [])],
            organisation=organisation,
            tools=[*declared.values()],
            unlike=await unlike_witness(log, place_of(store.path, None)),
        )


# -------------------------------------------------------------------- lines that depend on the site


def _budgets(seen: Evidence) -> LineAnswer:
    policies = seen.site.policies
    limits = sum(bool(one.budgets) or one.calls_per_thread is not None for one in policies)
    besides = f"policies here with a budget or a limit of calls: {limits} of {len(policies)}"
    return seen.judged("yes" if limits else "partly", "spent", "depth", besides=besides)


def _classified(seen: Evidence) -> LineAnswer:
    tools = seen.site.tools
    classed = sum(one.tool_class is not None for one in tools)
    besides = f"tools here with a class: {classed} of {len(tools)}"
    is_all = bool(tools) and classed == len(tools)
    return seen.judged("yes" if is_all else "partly", "classes", besides=besides)


def _by_class(seen: Evidence) -> LineAnswer:
    policies = seen.site.policies
    speaking = sum(one.speaks_of_classes for one in policies)
    besides = f"policies here that speak of classes: {speaking} of {len(policies)}"
    return seen.judged("yes" if speaking else "partly", "by_class", besides=besides)


def _self_modified(seen: Evidence) -> LineAnswer:
    approved = seen.site.organisation.policies_need_approval
    besides = (
        "a service may declare its tools anew, and rules by name have the new version too; "
        f"policies of workspaces need {'approval' if approved else 'no approval here'}"
    )
    return seen.judged("partly", "policies", "organisation", "prompts", "governs", besides=besides)


def _intact(seen: Evidence) -> LineAnswer:
    if seen.site.unlike:
        return LineAnswer("no", f"the log differs from what was seen of it: {seen.site.unlike}")
    besides = "the log is what its witness saw; what an agent keeps elsewhere is not protected"
    return seen.judged("partly", "replaced", besides=besides)


def _by_parameter(seen: Evidence) -> LineAnswer:
    policies = len(seen.site.policies)
    besides = f"policies in force here: {policies}"
    return seen.judged("yes" if policies else "partly", "blocked", "decisions", besides=besides)


def _secrets(seen: Evidence) -> LineAnswer:
    hiding = sum(bool(one.secret) for one in seen.site.tools)
    return LineAnswer(
        "no",
        "arguments that a tool declares as secret are hidden from people until they ask: the model "
        f"that writes them and the log have them; tools here that declare some: {hiding} of "
        f"{len(seen.site.tools)}",
    )


def _current(seen: Evidence) -> LineAnswer:
    both = seen.judged("yes", "outdated", "approved_before")
    before = seen.attempts["approved_before"]
    if both.answer == "yes":
        return both
    return seen.judged("partly", "outdated", besides=before.said)


def _tried(answer: Answer, *names: str, besides: str = "") -> Callable[[Evidence], LineAnswer]:
    return lambda seen: seen.judged(answer, *names, besides=besides)


def _said(answer: Answer, why: str) -> Callable[[Evidence], LineAnswer]:
    return lambda _seen: LineAnswer(answer, why)


_SANDBOX: Final = "tools run in programs of their owners, whose system isolates them"
_NO_REVIEW: Final = "no model reviews calls; rules and people do"

LINES: Final = (
    Line("9.1.1", 1, "each tool has quotas and time limits", _tried(
        "partly", "spent",
        besides="time, CPU, memory, disk and network are limits of the system that runs the tool",
    )),
    Line("9.1.2", 1, "each run has budgets of depth, tokens and money", _budgets),
    Line("9.1.3", 2, "one switch stops all agents", _tried(
        "yes", "stopped", "all_stopped", besides="a tool that runs already goes on",
    )),
    Line("9.2.1", 1, "nothing of high impact runs before a person's checked approval", _tried(
        "yes", "unanswered", "unapproved", "own_vote", "decisions", "votes", "other_people",
    )),
    Line("9.2.2", 2, "who approves sees all parameters, whole and as they are", _tried(
        "yes", "shown", "other_bytes",
    )),
    Line("9.2.3", 2, "each action of high impact has a class of reversibility", _classified),
    Line("9.2.4", 2, "the class decides what is blocked or asked about", _by_class),
    Line("9.2.5", 2, "no agent freely changes its prompts, tools, rules", _self_modified),
    Line("9.2.6", 2, "a model reviews risky actions in addition", _said("no", _NO_REVIEW)),
    Line("9.2.7", 2, "that review withstands injected text", _said("no", _NO_REVIEW)),
    Line("9.2.8", 3, "an approval is bound to parameters, person, context, one use", _tried(
        "partly", "other_bytes", "replaced",
        besides="the digest has the tool, its version and the arguments; requester and context are "
        "recorded beside it, and nothing is signed",
    )),
    Line("9.2.9", 3, "what approves is kept apart from agents", _tried(
        "partly", "decisions", "votes", "other_people", "inbox",
        besides="whoever reads the files of this store has the passwords of programs and people",
    )),
    Line("9.2.10", 3, "a chain of actions is judged by its highest class", _tried(
        "yes", "chain_by_class",
    )),
    Line("9.3.1", 1, "each tool runs in a sandbox of least privilege", _said("not ours", _SANDBOX)),
    Line("9.3.2", 1, "outputs of tools are checked against schemas", _said(
        "no", "arguments are checked against a schema, outputs are recorded as they are",
    )),
    Line("9.3.3", 2, "manifests declare privileges, limits and checks of output", _said(
        "not ours", "privileges and limits are declared where the tool is deployed",
    )),
    Line("9.3.4", 2, "what manifests declare is enforced", _said("not ours", _SANDBOX)),
    Line("9.3.5", 2, "what reads untrusted data cannot call tools", _said(
        "not ours", "which program reads what is for the agent's author to separate",
    )),
    Line("9.3.6", 2, "outputs of tools are processed apart from the agent", _said(
        "not ours", "which program reads what is for the agent's author to separate",
    )),
    Line("9.3.7", 2, "resources that a model names are on a list of allowed ones", _tried(
        "partly", "undeclared",
        besides="packages and addresses among the arguments are checked only where a rule's "
        "condition does",
    )),
    Line("9.3.8", 3, "a violation contains the tool by itself", _said(
        "no", "a violation is denied, and a start without approval is an alarm; a person stops",
    )),
    Line("9.4.1", 2, "each agent has a cryptographic identity of its own", _tried(
        "partly", "requests", "inbox",
        besides="the broker knows roles and people by passwords; agents of one service share its "
        "login",
    )),
    Line("9.4.2", 2, "each action is bound to its step of the chain", _tried(
        "partly", "unapproved", "false_parent", "replaced",
        besides="a fact counts only after those that it rests on, and none is signed",
    )),
    Line("9.4.3", 3, "credentials of agents are replaced on a schedule", _said(
        "no", "the passwords of roles have no end, and nothing replaces them",
    )),
    Line("9.4.4", 3, "the kept state of an agent cannot be altered unnoticed", _intact),
    Line("9.5.1", 2, "rules by tool and by value of a parameter are enforced", _by_parameter),
    Line("9.5.2", 2, "a token with the user's own rights goes with each call", _said(
        "not ours", "the program that runs a tool has its credentials, and chooses whose they are",
    )),
    Line("9.5.3", 2, "a model decides nothing about access", _tried(
        "yes", "decisions", "votes", "runs", "requests",
    )),
    Line("9.5.4", 2, "a model sees no secrets", _secrets),
    Line("9.5.5", 2, "agents delegate to agents only by policy", _tried(
        "yes", "delegation", "false_parent",
    )),
    Line("9.5.6", 3, "each action of a long session is judged by the policy of now", _current),
    Line("9.6.1", 1, "a person can stop models at once", _tried(
        "partly", "stopped", "model_stopped",
        besides="a reply that a model gives already is recorded to its end, and a model that asks "
        "no ledger goes on",
    )),
    Line("9.6.2", 2, "what nobody approves in time stays blocked", _tried("yes", "unanswered")),
    Line("9.6.3", 3, "the switch uses a channel apart from agents", _tried(
        "partly", "stops", "stopped",
        besides="a stop needs a person's login and no gate, and goes through the broker that "
        "agents use too",
    )),
)  # fmt: skip
