"""Options and arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="DIR",
        envvar="AYES_STORE",
        help="The directory that the broker runs from; yours by default.",
        show_default=False,
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="AYES_URL",
        help="A broker that runs elsewhere, as nats://user:password@host:port.",
        show_default=False,
    ),
]
#: Of a command that must not write where a variable of the environment points: only where it is
#: told to.
GivenStoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="DIR",
        help="Keep it in this store; else it is thrown away.",
        show_default=False,
    ),
]
GivenUrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="A broker that runs elsewhere, as nats://user:password@host:port.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON, one object a line.")]
MaxBytesOption = Annotated[
    str | None,
    typer.Option(
        "--max-bytes",
        metavar="SIZE",
        help="The most that the log may hold, such as 50GB; 16 GiB where nothing is said.",
        show_default=False,
    ),
]
AcceptLogOption = Annotated[
    bool,
    typer.Option("--accept-log", help="Go on with a log that is not the one that was seen before."),
]
WorkspaceOption = Annotated[
    str, typer.Option("-w", "--workspace", metavar="WS", help="The workspace.")
]
#: Of a command that writes: there is no default, so that nothing is recorded in the wrong one.
NamedWorkspaceOption = Annotated[
    str, typer.Option("-w", "--workspace", metavar="WS", help="The workspace.", show_default=False)
]
CallArgument = Annotated[
    str, typer.Argument(metavar="CALL", help="workspace/thread/call", show_default=False)
]
ThreadArgument = Annotated[
    str, typer.Argument(metavar="THREAD", help="workspace/thread", show_default=False)
]
AsOption = Annotated[
    str,
    typer.Option(
        "--as", metavar="NAME", envvar="AYES_AS", help="The reviewer: you.", show_default=False
    ),
]
ReasonOption = Annotated[
    str, typer.Option("--reason", help="In words. A model that is denied reads it.")
]
WhyOption = Annotated[str, typer.Option("--reason", help="In words.")]
MaybeCallArgument = Annotated[
    str | None,
    typer.Argument(metavar="CALL", help="workspace/thread/call; or --all", show_default=False),
]
AllOption = Annotated[
    bool, typer.Option("--all", help="All that waits, or what the next three leave of it.")
]
AllToolOption = Annotated[
    str, typer.Option("--tool", metavar="PATTERN", help="With --all: only calls of such a tool.")
]
AllWorkspaceOption = Annotated[
    str, typer.Option("-w", "--workspace", metavar="WS", help="With --all: only this workspace.")
]
AllThreadOption = Annotated[
    str,
    typer.Option("--thread", metavar="THREAD", help="With --all: only this one, workspace/thread."),
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask first.")]
DigestOption = Annotated[
    str,
    typer.Option(
        "--digest",
        metavar="HEX",
        help="Do not ask, and vote only if what waits has this digest: 12 hex digits of it or more.",
    ),
]
BehalfOption = Annotated[
    str,
    typer.Option(
        "--for", metavar="NAME", help="Whose vote it is, by their delegation; else found by itself."
    ),
]
NamedOption = Annotated[
    str, typer.Option("--name", metavar="NAME", help="What to call it; else a name is made up.")
]
OrganisationOption = Annotated[
    bool, typer.Option("--organisation", help="The one that holds in every workspace.")
]
PolicyOption = Annotated[
    str | None,
    typer.Option(
        "--policy", metavar="FILE.toml", help="Apply this policy first.", show_default=False
    ),
]
RecordingOption = Annotated[
    str | None,
    typer.Option(
        "--recording", metavar="FILE.jsonl", help="Model and executor answer from this recording."
    ),
]

ToolsOption = Annotated[
    str | None,
    typer.Option(
        "--tools", metavar="MODULE:NAME", help="The executor's tools; declared in the workspace."
    ),
]

NumberArgument = Annotated[
    int, typer.Argument(metavar="NUMBER", help="As `parked ls` shows it.", show_default=False)
]
NumbersArgument = Annotated[
    list[int],
    typer.Argument(metavar="NUMBER...", help="As `parked ls` shows them.", show_default=False),
]
ToOption = Annotated[
    Path | None,
    typer.Option(
        "--to",
        metavar="DIR",
        envvar="AYES_ARCHIVE",
        help="The archive; by default `archive` in the store.",
        show_default=False,
    ),
]
