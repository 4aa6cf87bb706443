"""Options and arguments that several commands share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from ayes.interfaces.cli import completion
from ayes.ledger.nats.credentials import broker_elsewhere
from ayes.schemas.errors import BadInput
from ayes.schemas.ids import token


def option(*said: str, **more: Any) -> Any:
    """An option: its names, what its value is called (unless it is a flag or a number), its help.

    Args:
        more: as of `typer.Option`.
    """
    names = [one for one in said if one.startswith("-")]
    *metavar, text = said[len(names) :]
    return typer.Option(*names, metavar=metavar[0] if metavar else None, help=text, **more)


def argument(metavar: str, text: str | None = None, **more: Any) -> Any:
    """An argument: what it is called, and its help.

    Args:
        more: as of `typer.Argument`.
    """
    return typer.Argument(metavar=metavar, help=text, **more)


def _directory(text: str) -> Path:
    if not text:  # such as an unset variable in a script; it would mean the current directory
        raise typer.BadParameter("it is empty. Name a directory, or leave the option out.")
    return Path(text)


def _url(ctx: typer.Context, text: str | None) -> str | None:
    if text == "":  # it would mean the local store
        raise typer.BadParameter("it is empty. Name a broker, or leave the option out.")
    store, url = (ctx.get_parameter_source(name) for name in ("store", "url"))
    if url and url.name == "COMMANDLINE":
        return text
    if store and store.name == "COMMANDLINE":
        return None  # a store that is named overrides the environment, as in `Ledger.connect`
    return broker_elsewhere()


_URL_HELP: Final = (
    "A broker that runs elsewhere, as tls://user:password@host:port; of a cluster, several "
    "servers, comma-separated. Or the file of a login, such as ./billing.login."
)

StoreOption = Annotated[
    Path | None,
    option(
        "--store",
        "DIR",
        "The directory that the broker runs from; yours by default.",
        envvar="AYES_STORE",
        parser=_directory,
    ),
]
UrlOption = Annotated[str | None, option("--url", _URL_HELP, envvar="AYES_URL", callback=_url)]
JsonOption = Annotated[bool, option("--json", "JSON, one object a line.")]
SettingsOption = Annotated[
    Path | None,
    option(
        "--settings",
        "FILE.toml",
        "The settings; by default ayes.toml in the store, if it is there.",
        envvar="AYES_SETTINGS",
    ),
]
LinkKeyOption = Annotated[
    Path | None,
    option(
        "--link-key",
        "FILE",
        "The key of the links in messages, if it is not in the store: a copy of links.key.",
        envvar="AYES_LINK_KEY",
    ),
]
BehindTlsOption = Annotated[
    bool, option("--behind-tls", "A proxy with TLS stands before it, so it may listen for others.")
]
MaxBytesOption = Annotated[
    str | None,
    option("--max-bytes", "SIZE", "The maximum size of the log, such as 50GB; 16 GiB by default."),
]
PackedOption = Annotated[
    bool, option("--packed", "Make a new log whose settled facts may be packed: `ayes pack`.")
]
AcceptLogOption = Annotated[
    bool, option("--accept-log", "Continue with a log other than the one seen before.")
]
AcceptReasonOption = Annotated[
    str, option("--reason", "Why the log is accepted, in words; it is recorded.")
]
AckWaitOption = Annotated[
    str,
    option("--ack-wait", "DURATION", "A worker that is silent for this long is considered dead."),
]
WorkspaceOption = Annotated[str, option("-w", "--workspace", "WS", "The workspace.")]
#: For a command that writes: no default, so that nothing is recorded in the wrong workspace.
NamedWorkspaceOption = Annotated[str, option("-w", "--workspace", "WS", "The workspace.")]
OnlyWorkspaceOption = Annotated[str, option("-w", "--workspace", "WS", "Only this workspace.")]
CallArgument = Annotated[
    str, argument("CALL", "workspace/thread/call", autocompletion=completion.pending_calls)
]
#: A call that is decided already, which the queue does not know and the shell cannot complete.
DecidedCallArgument = Annotated[str, argument("CALL", "workspace/thread/call")]
QueryArgument = Annotated[
    str, argument("QUERY", "Words that calls must match, such as 'tool:refund amount>100'.")
]
ThreadArgument = Annotated[str, argument("THREAD", "workspace/thread")]
WorkspacesOption = Annotated[
    str | None, option("--workspaces", "WS,WS", "Only these, comma-separated; '*': all of them.")
]
AsOption = Annotated[str, option("--as", "NAME", "The reviewer: you.", envvar="AYES_AS")]
PersonOption = Annotated[
    str,
    option(
        "--as",
        "NAME",
        "The reviewer whom the link signs in; by default your name on this machine.",
        envvar="AYES_AS",
    ),
]
ErrorOption = Annotated[bool, option("--error", "The model reads the answer as the tool's error.")]
HaltOption = Annotated[
    bool, option("--halt", "The model is not asked again until a user says something.")
]
ReasonOption = Annotated[
    str, option("--reason", "In words. The model reads the reason of a denial.")
]
WhyOption = Annotated[str, option("--reason", "In words.")]
RequesterOption = Annotated[
    str, option("--requester", "NAME", "On whose behalf: they cannot vote on it.")
]
LabelsOption = Annotated[
    list[str] | None, option("--label", "NAME=VALUE", "A label that rules may match.")
]
BehalfOption = Annotated[
    str,
    option(
        "--on-behalf-of",
        "NAME",
        "Whose vote it is, by their delegation; found automatically by default.",
    ),
]
NamedOption = Annotated[str, option("--name", "NAME", "Its name; generated by default.")]
OrganisationOption = Annotated[
    bool, option("--organisation", "The policy that holds in every workspace.")
]
PolicyOption = Annotated[str | None, option("--policy", "FILE.toml", "Apply this policy first.")]
ToolsOption = Annotated[
    str | None, option("--tools", "MODULE:NAME", "The executor's tools; declared in the workspace.")
]
NumberArgument = Annotated[int, argument("NUMBER", "As `parked ls` shows it.")]
NumbersArgument = Annotated[list[int], argument("NUMBER...", "As `parked ls` shows them.")]
ToOption = Annotated[
    Path | None,
    option(
        "--to",
        "DIR",
        "The archive; by default `archive` in the store.",
        envvar="AYES_ARCHIVE",
        parser=_directory,
    ),
]

WebhooksOption = Annotated[
    Path | None,
    option(
        "--webhooks",
        "FILE",
        "The file of the webhooks; by default webhooks.json in the store.",
        envvar="AYES_WEBHOOKS",
    ),
]

ArchiveOption = Annotated[
    Path | None,
    option(
        "--archive",
        "DIR",
        "Where `ayes lake sync` writes the lake; by default `archive` in the store.",
        envvar="AYES_ARCHIVE",
        parser=_directory,
    ),
]


TypedOption = Annotated[
    str,
    option(
        "--typed", "TOOL", 'Do not ask; the name of the tool, where a rule has confirm = "typed".'
    ),
]


#: What is left to do where the broker does not ask about logins; what holds until then follows.
LISTED: Final = (
    "This broker lists its logins: write accounts.conf of each server anew (`ayes cluster files`; "
    "a local cluster: start it again) and reload them. Until then "
)


class Confirmation(NamedTuple):
    """How a vote is confirmed without a question at the terminal."""

    yes: Annotated[bool, option("--yes", "Do not ask first.")] = False
    digest: Annotated[
        str,
        option(
            "--digest",
            "HEX",
            "Do not ask; vote only if the call has this digest (12 hex digits or more).",
        ),
    ] = ""


class Selection(NamedTuple):
    """One call, or all pending calls that match."""

    call: Annotated[
        str | None,
        argument(
            "CALL", "workspace/thread/call; or --all", autocompletion=completion.pending_calls
        ),
    ] = None
    every: Annotated[
        bool, option("--all", "All pending calls; --matching and --workspace select among them.")
    ] = False
    matching: Annotated[
        str,
        option("--matching", "QUERY", "With --all: only calls that `ayes pending QUERY` lists."),
    ] = ""
    workspace: Annotated[
        str, option("-w", "--workspace", "WS", "With --all: only this workspace.")
    ] = ""


def http_address(option: str, text: str) -> tuple[str, int]:
    """A host and a port.

    Raises:
        BadInput: it is not `HOST:PORT`.
    """
    host, separator, port = text.rpartition(":")
    if not (separator and host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise BadInput(f"{option} {text!r} is not an address. Write it as in 127.0.0.1:8808.")
    return host.strip("[]"), int(port)


def workspaces_of(text: str | None) -> tuple[str, ...] | None:
    """Workspaces, each once and in the order in which they stand in subjects; none: all of them;
    None if the option is not given.

    Raises:
        BadId: one is not the name of a workspace.
    """
    if text is None or text == "*":
        return None if text is None else ()
    return tuple(sorted({token("workspace", one.strip()) for one in text.split(",")}))


def read_labels(given: Sequence[str]) -> dict[str, str]:
    """Labels such as `--label channel=chat`, by name.

    Raises:
        BadInput: one is not of the form NAME=VALUE, or a name is given twice.
    """
    labels: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not (name and equals):
            raise BadInput(f"--label {one!r} is not of the form NAME=VALUE.")
        if name in labels:
            raise BadInput(f"--label {name!r} is given twice.")
        labels[name] = value
    return labels
