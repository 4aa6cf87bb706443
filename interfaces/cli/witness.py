"""Commands for a witness of the seals of others."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

from ayes.interfaces.cli.command import command, commands
from ayes.interfaces.cli.options import (
    BehindTlsOption,
    JsonOption,
    argument,
    http_address,
    option,
)
from ayes.interfaces.cli.seal import checked_name
from ayes.interfaces.cli.terminal.output import print_result
from ayes.ledger.seal import VerifierKey
from ayes.ops.sealing.cosigning import KEY, Cosigner, make_key, read_key
from ayes.schemas.addresses import check_reach
from ayes.schemas.errors import BadInput

app: Final = commands()

INSTALL: Final = "pip install 'ayes[web]'"
FolderArgument = Annotated[Path, argument("DIR", "The witness's own folder.")]


@app.callback()
def witness() -> None:
    """Sign what others seal, on a machine of your own."""


@command(app, examples="ayes witness init witness witness.example.org/w1")
async def init(
    folder: FolderArgument,
    name: Annotated[str, argument("NAME", "What others know the witness by.")],
    *,
    json: JsonOption = False,
) -> None:
    """Make the key of a witness."""
    key = make_key(folder, checked_name(name, " +")).public
    print_result(
        {"key": str(key), "file": str(folder / KEY)},
        f"{folder / KEY} is the key of this witness. Next: ayes witness run {folder} --log KEY",
        f"Give this to those who seal, and to those who verify: {key}",
        json=json,
    )


@command(app, examples="ayes witness run witness --log approvals.example.com/… --behind-tls")
async def run(
    folder: FolderArgument,
    log: Annotated[
        list[str], option("--log", "KEY", "The public key of a log to sign; as often as needed.")
    ],
    http: Annotated[str, option("--http", "HOST:PORT", "Where to listen.")] = "127.0.0.1:8830",
    *,
    behind_tls: BehindTlsOption = False,
    json: JsonOption = False,
) -> None:
    """Sign each checkpoint that continues the one before, until Ctrl-C. It asks no broker."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise BadInput(f"the witness is not installed: {INSTALL}.")
    cosigner = Cosigner(folder, read_key(folder), [*map(VerifierKey.parse, log)])
    host, port = http_address("--http", http)
    check_reach("--http", host, has_tls=behind_tls, how="--behind-tls")
    from ayes.interfaces.access import http_server
    from ayes.interfaces.witness import application

    address = f"http://{host}:{port}"
    print_result({"address": address}, f"The witness serves {address} until Ctrl-C.", json=json)
    serving = http_server.server(application(cosigner), has_signals=True, host=host, port=port)
    await serving.serve()
