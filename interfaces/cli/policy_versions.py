"""The versions of a policy: apply one, propose one, and show what was applied."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import OrganisationOption, WorkspaceOption, argument, option
from ayes.interfaces.cli.outcome import PENDING
from ayes.interfaces.cli.terminal.output import print_data, print_line, print_message
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.in_force import policy_in_force
from ayes.ledger.seal import SignerKey
from ayes.ops.actions.policies import changes_to, silent_schedules
from ayes.ops.broker.setup import (
    apply_policy,
    apply_proposal,
    check_policy,
    next_version,
    policy_signatures,
    propose_policy,
    proposed_text,
)
from ayes.ops.key_files import named_key
from ayes.ops.policy_diff.difference import PolicyDifference, sentences
from ayes.ops.policy_diff.versions import opened_by, version_of
from ayes.schemas.codec import fact_json
from ayes.schemas.errors import BadInput
from ayes.schemas.events import PolicyApplied
from ayes.schemas.policy import read_policy
from ayes.schemas.slots import ORGANISATION, CallRef, policies
from ayes.schemas.toml_files import read_text

app: Final = commands()

SignOption = Annotated[
    list[Path] | None, option("--sign", "FILE", "A key of the trust file that signs. Repeatable.")
]

_ONE_OWNER: Final = (
    "the organisation's policy holds in every workspace. Leave out -w or --organisation."
)


@command(
    app,
    examples="""
    ayes policy apply shop.toml -w shop --dry-run
    ayes policy apply shop.toml -w shop
    ayes policy apply shop.toml -w shop --propose --requester olga
    """,
)
async def apply(
    file: Annotated[str | None, argument("FILE.toml")] = None,
    workspace: Annotated[str | None, option("-w", "--workspace", "WS", "The workspace.")] = None,
    organisation: OrganisationOption = False,
    propose: Annotated[
        bool, option("--propose", "Only propose it: somebody else must approve it first.")
    ] = False,
    requester: Annotated[
        str,
        option(
            "--requester", "NAME", "With --propose: whose proposal it is; they cannot vote on it."
        ),
    ] = "",
    proposal: Annotated[
        str | None, option("--proposal", "CALL", "Apply an approved proposal instead of a file.")
    ] = None,
    dry_run: Annotated[
        bool, option("--dry-run", "Only show what would change; nothing is recorded.")
    ] = False,
    empty: Annotated[
        bool, option("--empty", "The file is meant to be empty: no rule holds any more.")
    ] = False,
    keys: SignOption = None,
    signatures: Annotated[
        list[str] | None,
        option("--signature", "TEXT", "What `ayes policy sign` printed elsewhere. Repeatable."),
    ] = None,
    *,
    session: Session,
) -> int:
    """Make a file the policy of a workspace from now on. Pending calls stay as they were asked."""
    if (file is None) == (proposal is None):
        raise BadInput(
            "a policy is applied from FILE.toml or from a proposal: give FILE.toml or --proposal."
        )
    if (propose and (proposal or organisation or not requester)) or (requester and not propose):
        raise BadInput(
            "--propose goes with FILE.toml, -w and --requester NAME, whose proposal it is; "
            "--requester only with it."
        )
    if dry_run and (propose or proposal):
        raise BadInput("--dry-run goes with FILE.toml alone. Leave out --propose or --proposal.")
    if organisation and workspace is not None:
        raise BadInput(_ONE_OWNER)
    if (keys or signatures) and (propose or proposal or dry_run):
        raise BadInput("a version is signed as it is applied from FILE.toml: leave out the others.")
    if proposal is not None:
        await _apply_proposal(proposal, session)
        return 0
    if file is None or (workspace is None and not organisation):
        raise BadInput(
            "Name the workspace with -w, or give --organisation for the policy of all of them."
        )
    text = read_text(file)
    check_policy(text, file, empty=empty)
    if propose:
        return await _propose(text, file, workspace or "", requester, session, empty=empty)
    await apply_text(
        text,
        file,
        workspace or "",
        session,
        organisation=organisation,
        show_changes=True,
        dry_run=dry_run,
        empty=empty,
        keys=[named_key(one, SignerKey) for one in keys or ()],
        signatures=signatures or (),
    )
    return 0


@command(app, examples="ayes policy sign shop.toml -w shop --sign board-1.key")
async def sign(
    file: Annotated[str, argument("FILE.toml")],
    workspace: WorkspaceOption = "default",
    organisation: OrganisationOption = False,
    keys: SignOption = None,
    *,
    session: Session,
) -> None:
    """Sign a file as the next version of a policy, for whoever applies it."""
    if organisation and workspace != "default":
        raise BadInput(_ONE_OWNER)
    if not keys:
        raise BadInput("name the key that signs with --sign FILE.")
    signers = [named_key(one, SignerKey) for one in keys]
    text, owner = read_text(file), ORGANISATION if organisation else workspace
    check_policy(text, file)
    async with session.connect("observer") as ledger:
        version = await next_version(ledger, owner)
        made = await policy_signatures(ledger, owner, version, text, signers)
    session.print(
        {"version": version, "signatures": made},
        *made,
        f"Next: ayes policy apply {file} --signature TEXT, before another version {version} is.",
    )


@command(app)
async def show(
    workspace: WorkspaceOption = "default",
    organisation: OrganisationOption = False,
    version: Annotated[
        int | None, option("--version", "N", "This version; by default the one in force.")
    ] = None,
    *,
    session: Session,
) -> None:
    """Show a policy as it was applied: the version in force, or an older one."""
    if organisation and workspace != "default":
        raise BadInput(_ONE_OWNER)
    owner = ORGANISATION if organisation else workspace
    whose = _whose(workspace, organisation=organisation)
    async with session.connect("observer") as ledger:
        facts = [fact for fact in await ledger.read(policies(owner)) if fact.slot.workspace]
        if not facts:
            raise BadInput(
                f"there is no version of {whose}. Until one is applied, "
                f"{'it has no effect' if organisation else 'every call is asked about'}."
            )
        newest = policy_in_force(facts).version or max(int(fact.slot.tail[1]) for fact in facts)
        fact = version_of(facts, newest if version is None else version, whose)
    text = fact.event.text if isinstance(fact.event, PolicyApplied) else ""
    if session.json:
        print_data(fact_json(fact))
    else:
        print_message(
            f"Version {fact.slot.tail[1]} of {whose}, applied "
            f"{fact.recorded_at:%Y-%m-%d %H:%M:%S} UTC."
        )
        for one in text.rstrip("\n").split("\n"):
            print_line(one)


async def apply_text(
    text: str,
    file: str,
    workspace: str,
    session: Session,
    *,
    organisation: bool = False,
    show_changes: bool = False,
    dry_run: bool = False,
    empty: bool = False,
    keys: Sequence[SignerKey] = (),
    signatures: Sequence[str] = (),
) -> None:
    """Make a file's text the policy of the workspace, or of all of them; a dry run records none."""
    role = "organisation" if organisation else "operator"
    owner = ORGANISATION if organisation else workspace
    whose: dict[str, Any] = {"organisation": True} if organisation else {"workspace": workspace}
    async with session.connect(role) as ledger:
        version, changes = 0, list[str]()
        opened: PolicyDifference | None = None
        if show_changes:
            version, changes, opened = await shown_changes(
                ledger, owner, text, file, session, printed=print_line if dry_run else print_message
            )
        if not dry_run:
            applied = await apply_policy(
                ledger, owner, text, file, empty=empty, keys=keys, signatures=signatures
            )
        silent = await silent_schedules(ledger, read_policy(text, file).asked)
    policy = _whose(workspace, organisation=organisation)
    if not dry_run:
        session.print(
            whose | {"version": applied} | _opens(opened),
            f"{file} is version {applied} of {policy}.",
        )
    else:
        in_force = f"Version {version} stays in force" if version else "There is no version yet"
        session.print(
            whose | {"in_force": version, "changes": changes} | _opens(opened),
            f"{in_force} of {policy}. Nothing was recorded.",
        )
    for one in silent:
        print_message(f"warning: {one}.")


async def shown_changes(
    ledger: Ledger,
    owner: str,
    text: str,
    source: str,
    session: Session,
    *,
    printed: Callable[[str], None] = print_message,
) -> tuple[int, list[str], PolicyDifference | None]:
    """Show people how a text differs from the version in force, and what it opens.

    Returns:
        The number of that version (0: there is none), the lines that differ, and what is opened;
        None: there is nothing to compare, or the comparison is not installed.
    """
    version, changes = await changes_to(ledger, owner, text, source)
    if not (version and changes):
        return version, changes, None
    try:
        opened = await opened_by(ledger, owner, text, source)
        said = sentences(opened, f"version {version}", source)
    except BadInput as why:
        opened, said = None, [f"not compared: {why}"]
    for one in () if session.json else (*changes, *said):
        printed(one)
    return version, changes, opened


def _opens(opened: PolicyDifference | None) -> dict[str, object]:
    return {} if opened is None else {"opens": opened}


async def _propose(
    text: str, file: str, workspace: str, requester: str, session: Session, *, empty: bool
) -> int:
    """Propose a version as a call that people approve. The exit code says that it is pending."""
    async with session.connect("service") as ledger:
        *_, opened = await shown_changes(ledger, workspace, text, file, session)
        call = await propose_policy(ledger, workspace, text, file, requester, empty=empty)
    session.print(
        {"workspace": workspace, "proposal": str(call.ref)} | _opens(opened),
        f"{file} is proposed for workspace {workspace!r}. Once somebody else has approved "
        f"{call.ref}: ayes policy apply --proposal {call.ref}",
    )
    return PENDING


async def _apply_proposal(proposal: str, session: Session) -> None:
    ref = CallRef.parse(proposal)
    async with session.connect("service") as service, session.connect("operator") as operator:
        text = proposed_text(await service.known_call(ref))
        *_, opened = await shown_changes(operator, ref.workspace, text, str(ref), session)
        version = await apply_proposal(operator, service, ref)
    session.print(
        {"workspace": ref.workspace, "version": version} | _opens(opened),
        f"{ref} is version {version} of {_whose(ref.workspace, organisation=False)}.",
    )


def _whose(workspace: str, *, organisation: bool) -> str:
    return "the organisation's policy" if organisation else f"the policy of {workspace}"
