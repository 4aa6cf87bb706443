"""Options and arguments that several commands share."""

from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from ayes.interfaces.cli import completion
from ayes.schemas.errors import BadInput

_FORMATS: Final = "openai-chat, openai-responses, anthropic, gemini, ai-sdk, ai-sdk-ui, pydantic-ai"


def _directory(text: str) -> Path:
    if not text:  # such as an unset variable in a script; it would mean the current directory
        raise typer.BadParameter("it is empty. Name a directory, or leave the option out.")
    return Path(text)


def _url(ctx: typer.Context, text: str | None) -> str | None:
    if text == "":  # it would mean the local store
        raise typer.BadParameter("it is empty. Name a broker, or leave the option out.")
    store, url = (ctx.get_parameter_source(name) for name in ("store", "url"))
    if store and url and (store.name, url.name) == ("COMMANDLINE", "ENVIRONMENT"):
        return None  # a store that is named overrides $AYES_URL, as in `Ledger.connect`
    return text


_URL_HELP: Final = (
    "A broker that runs elsewhere, as nats://user:password@host:port; of a cluster, several "
    "servers, comma-separated."
)

StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="DIR",
        envvar="AYES_STORE",
        parser=_directory,
        help="The directory that the broker runs from; yours by default.",
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option("--url", envvar="AYES_URL", callback=_url, help=_URL_HELP),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON, one object a line.")]
SettingsOption = Annotated[
    Path | None,
    typer.Option(
        "--settings",
        metavar="FILE.toml",
        envvar="AYES_SETTINGS",
        help="The settings; by default ayes.toml in the store, if it is there.",
    ),
]
LinkKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--link-key",
        metavar="FILE",
        envvar="AYES_LINK_KEY",
        help="The key of the links in messages, if it is not in the store: a copy of links.key.",
    ),
]
BehindTlsOption = Annotated[
    bool,
    typer.Option(
        "--behind-tls", help="A proxy with TLS stands before it, so it may listen for others."
    ),
]
MaxBytesOption = Annotated[
    str | None,
    typer.Option(
        "--max-bytes",
        metavar="SIZE",
        help="The maximum size of the log, such as 50GB; 16 GiB by default.",
    ),
]
AcceptLogOption = Annotated[
    bool, typer.Option("--accept-log", help="Continue with a log other than the one seen before.")
]
AcceptReasonOption = Annotated[
    str, typer.Option("--reason", help="Why the log is accepted, in words; it is recorded.")
]
AckWaitOption = Annotated[
    str,
    typer.Option(
        "--ack-wait",
        metavar="DURATION",
        help="A worker that is silent for this long is considered dead.",
    ),
]
WorkspaceOption = Annotated[
    str, typer.Option("-w", "--workspace", metavar="WS", help="The workspace.")
]
#: For a command that writes: no default, so that nothing is recorded in the wrong workspace.
NamedWorkspaceOption = Annotated[
    str, typer.Option("-w", "--workspace", metavar="WS", help="The workspace.")
]
OnlyWorkspaceOption = Annotated[
    str, typer.Option("-w", "--workspace", metavar="WS", help="Only this workspace.")
]
CallArgument = Annotated[
    str,
    typer.Argument(
        metavar="CALL",
        help="workspace/thread/call",
        autocompletion=completion.pending_calls,
    ),
]
#: A call that is decided already, which the queue does not know and the shell cannot complete.
DecidedCallArgument = Annotated[str, typer.Argument(metavar="CALL", help="workspace/thread/call")]
ThreadArgument = Annotated[str, typer.Argument(metavar="THREAD", help="workspace/thread")]
AsOption = Annotated[
    str,
    typer.Option("--as", metavar="NAME", envvar="AYES_AS", help="The reviewer: you."),
]
PersonOption = Annotated[
    str,
    typer.Option(
        "--as",
        metavar="NAME",
        envvar="AYES_AS",
        help="The reviewer whom the link signs in; by default your name on this machine.",
    ),
]
ErrorOption = Annotated[
    bool, typer.Option("--error", help="The model reads the answer as the tool's error.")
]
HaltOption = Annotated[
    bool,
    typer.Option("--halt", help="The model is not asked again until a user says something."),
]
ReasonOption = Annotated[
    str, typer.Option("--reason", help="In words. The model reads the reason of a denial.")
]
WhyOption = Annotated[str, typer.Option("--reason", help="In words.")]
RequesterOption = Annotated[
    str,
    typer.Option("--requester", metavar="NAME", help="On whose behalf: they cannot vote on it."),
]
LabelsOption = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NAME=VALUE", help="A label that rules may match."),
]
BehalfOption = Annotated[
    str,
    typer.Option(
        "--on-behalf-of",
        metavar="NAME",
        help="Whose vote it is, by their delegation; found automatically by default.",
    ),
]
NamedOption = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Its name; generated by default.")
]
OrganisationOption = Annotated[
    bool, typer.Option("--organisation", help="The policy that holds in every workspace.")
]
PolicyOption = Annotated[
    str | None,
    typer.Option("--policy", metavar="FILE.toml", help="Apply this policy first."),
]
ToolsOption = Annotated[
    str | None,
    typer.Option(
        "--tools", metavar="MODULE:NAME", help="The executor's tools; declared in the workspace."
    ),
]
FormatOption = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="PROVIDER",
        help=f"The provider's API: {_FORMATS}",
        autocompletion=completion.formats,
    ),
]
NumberArgument = Annotated[int, typer.Argument(metavar="NUMBER", help="As `parked ls` shows it.")]
NumbersArgument = Annotated[
    list[int],
    typer.Argument(metavar="NUMBER...", help="As `parked ls` shows them."),
]
ToOption = Annotated[
    Path | None,
    typer.Option(
        "--to",
        metavar="DIR",
        envvar="AYES_ARCHIVE",
        parser=_directory,
        help="The archive; by default `archive` in the store.",
    ),
]

WebhooksOption = Annotated[
    Path | None,
    typer.Option(
        "--webhooks",
        metavar="FILE",
        envvar="AYES_WEBHOOKS",
        help="The file of the webhooks; by default webhooks.json in the store.",
    ),
]

ArchiveOption = Annotated[
    Path | None,
    typer.Option(
        "--archive",
        metavar="DIR",
        envvar="AYES_ARCHIVE",
        parser=_directory,
        help="Where `ayes lake sync` writes the lake; by default `archive` in the store.",
    ),
]


type TypedOption = Annotated[
    str,
    typer.Option(
        "--typed",
        metavar="TOOL",
        help='Do not ask; the name of the tool, where a rule has confirm = "typed".',
    ),
]


class Confirmation(NamedTuple):
    """How a vote is confirmed without a question at the terminal."""

    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False
    digest: Annotated[
        str,
        typer.Option(
            "--digest",
            metavar="HEX",
            help="Do not ask; vote only if the call has this digest (12 hex digits or more).",
        ),
    ] = ""


class Selection(NamedTuple):
    """One call, or all pending calls that match."""

    call: Annotated[
        str | None,
        typer.Argument(
            metavar="CALL",
            help="workspace/thread/call; or --all",
            autocompletion=completion.pending_calls,
        ),
    ] = None
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="All pending calls; --tool, --workspace and --thread select among them."
        ),
    ] = False
    tool: Annotated[
        str,
        typer.Option("--tool", metavar="PATTERN", help="With --all: only calls of matching tools."),
    ] = ""
    workspace: Annotated[
        str,
        typer.Option("-w", "--workspace", metavar="WS", help="With --all: only this workspace."),
    ] = ""
    thread: Annotated[
        str,
        typer.Option(
            "--thread", metavar="THREAD", help="With --all: only this thread, workspace/thread."
        ),
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
