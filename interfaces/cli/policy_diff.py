"""`ayes policy diff`: what a new policy opens."""

from typing import Annotated, Final, NamedTuple

from ayes.interfaces.cli.command import Session
from ayes.interfaces.cli.options import OrganisationOption, WorkspaceOption, argument
from ayes.interfaces.cli.terminal.output import print_json, print_line
from ayes.ledger.clients.services import Ledger
from ayes.ops.actions.policies import changes
from ayes.ops.audit.backtest import backtest_ledger
from ayes.ops.policy_diff.difference import (
    Answer,
    Coverage,
    PolicyDifference,
    coverage,
    sentences,
    trial_command,
)
from ayes.ops.policy_diff.versions import compared, read_version
from ayes.schemas.errors import BadInput
from ayes.schemas.policy import Policy, read_policy
from ayes.schemas.slots import ORGANISATION, policies
from ayes.schemas.toml_files import read_text

_CODES: Final[dict[Answer, int]] = {"nothing_opened": 0, "opened": 1, "cannot_be_proved": 3}


class _Named(NamedTuple):
    """One of the two, and what it is called."""

    name: str
    text: str
    policy: Policy


class _DiffReport(PolicyDifference, frozen=True, kw_only=True):
    """What a new policy opens, and how many past calls the rules of each name."""

    changes: list[str]
    #: None: both are files, so no ledger was asked.
    covered_before: Coverage | None = None
    covered: Coverage | None = None


async def diff(
    old: Annotated[str, argument("OLD", "FILE.toml, or the number of a version.")],
    new: Annotated[str, argument("NEW", "FILE.toml, or the number of a version.")],
    workspace: WorkspaceOption = "default",
    organisation: OrganisationOption = False,
    *,
    session: Session,
) -> int:
    """Show what NEW opens: the smallest call that it lets through and OLD does not, or that it is
    proved that there is none. Two files need no broker.
    """
    if organisation and workspace != "default":
        raise BadInput(
            "the organisation's policy holds in every workspace. Leave out -w or --organisation."
        )
    owner = ORGANISATION if organisation else workspace
    covered: tuple[Coverage | None, Coverage | None] = (None, None)
    if _number(old) is None and _number(new) is None:
        one, other = _file(old), _file(new)
        found = await compared(one.policy, other.policy, organisation=organisation)
    else:
        async with session.connect("observer") as ledger:
            one, other = await _named(ledger, owner, old), await _named(ledger, owner, new)
            beside = (await ledger.policies(owner)).organisation.policy
            found = await compared(
                one.policy,
                other.policy,
                None if organisation else beside,
                organisation=organisation,
            )
            covered = (
                await _covered(ledger, workspace, one.policy, organisation=organisation),
                await _covered(ledger, workspace, other.policy, organisation=organisation),
            )
    differ = changes(one.text, other.text, one.name, other.name)
    _show(session, found, differ, covered, one.name, other.name)
    return _CODES[found.answer]


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def _file(name: str) -> _Named:
    text = read_text(name)
    return _Named(name, text, read_policy(text, name))


async def _named(ledger: Ledger, owner: str, name: str) -> _Named:
    version = _number(name)
    if version is None:
        return _file(name)
    whose = "the organisation's policy" if owner == ORGANISATION else f"the policy of {owner}"
    return _Named(
        f"version {version}", *read_version(await ledger.read(policies(owner)), version, whose)
    )


async def _covered(
    ledger: Ledger, workspace: str, policy: Policy, *, organisation: bool
) -> Coverage:
    only = "" if organisation else workspace
    report, _ = await backtest_ledger(ledger, policy, workspace=only, organisation=organisation)
    return coverage(report)


def _show(
    session: Session,
    found: PolicyDifference,
    differ: list[str],
    covered: tuple[Coverage | None, Coverage | None],
    old: str,
    new: str,
) -> None:
    if session.json:
        print_json(
            _DiffReport(
                **{name: getattr(found, name) for name in PolicyDifference.__struct_fields__},
                changes=differ,
                covered_before=covered[0],
                covered=covered[1],
            )
        )
        return
    for one in (*differ, *sentences(found, old, new)):
        print_line(one)
    if found.call is not None and _number(new.removeprefix("version ")) is None:
        print_line(f"  {trial_command(found.call, new)}")
    if covered[0] is not None and covered[1] is not None:
        print_line(f"Coverage: {_words(covered[1])}; under {old} {_words(covered[0])}.")


def _words(one: Coverage) -> str:
    return f"a rule names {one.named:,} of {one.calls:,} past calls ({one.share})"
