"""The command that serves probes and metrics."""

from typing import Annotated, Final

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import BehindTlsOption, option
from ayes.interfaces.cli.ready import WantedOptions
from ayes.ops.inspection.monitor import is_installed
from ayes.ops.inspection.probes import INSTALL, PORT, ListenAddress, monitored
from ayes.ops.workers import until_signalled

app: Final = commands()


@command(
    app,
    examples="""
    ayes monitor
    ayes monitor --listen 127.0.0.1:9090 --role gate
    """,
)
async def monitor(
    listen: Annotated[
        str,
        option("--listen", "[HOST:]PORT", "Where it listens; a port alone: on this machine only."),
    ] = f"127.0.0.1:{PORT}",
    *,
    behind_tls: BehindTlsOption = False,
    wanted: WantedOptions,
    session: Session,
) -> None:
    """Serve /livez, /readyz and /metrics (Prometheus) over HTTP beside a broker, until Ctrl-C."""
    address = ListenAddress.parse("--listen", listen, has_tls=behind_tls)
    async with monitored(session.store, address, url=session.url, wanted=wanted.checked()) as url:
        metrics = f"{url}/metrics" if is_installed() else f"not installed: {INSTALL}"
        sentences = (
            f"probes   {url}/livez  {url}/readyz",
            f"metrics  {metrics}",
            "Ctrl-C ends it.",
        )
        await until_signalled(ready=lambda: session.print({"url": url}, *sentences))
