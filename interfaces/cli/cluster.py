"""Commands for a cluster: running one on this machine, and making the files for three hosts."""

from contextlib import AsyncExitStack
from pathlib import Path
from shlex import quote
from typing import Annotated, Final

from ayes.interfaces.cli.command import command, commands
from ayes.interfaces.cli.options import (
    JsonOption,
    MaxBytesOption,
    PackedOption,
    StoreOption,
    option,
)
from ayes.interfaces.cli.run import bytes_of
from ayes.interfaces.cli.terminal.output import print_result
from ayes.ledger.nats.credentials import Store
from ayes.ops.cluster.files import CONFIG, write_files
from ayes.ops.cluster.local import LocalCluster
from ayes.ops.supervisor import supervised
from ayes.ops.workers import until_signalled

app: Final = commands()

PeopleOption = Annotated[
    str, option("--people", "NAMES", "Reviewers, comma-separated; earlier ones stay.")
]


@command(
    app,
    examples="""
    ayes cluster up --store ./cluster --people ana,ben
    ayes work gate queue executor --store ./cluster
    """,
)
async def up(
    store: StoreOption = None,
    nodes: Annotated[int, option("--nodes", "3, or 5.", min=3, max=5)] = 3,
    people: PeopleOption = "",
    max_bytes: MaxBytesOption = None,
    packed: PackedOption = False,
    json: JsonOption = False,
) -> None:
    """Run a cluster on this machine, until Ctrl-C: nodes that each keep the whole log."""
    most = bytes_of(max_bytes)
    async with LocalCluster(store, size=nodes, people=_listed(people)) as cluster:
        await cluster.declare(max_bytes=most, packed=packed)
        async with AsyncExitStack() as stack:
            each = [await stack.enter_async_context(supervised(node)) for node in cluster.nodes]
            for one in each:
                await one.watch_log()
            broken = [one.broken for one in each]
            await until_signalled(*broken, ready=lambda: _report(cluster, json=json))


@command(app, examples="ayes cluster files --hosts nats1,nats2,nats3 --people ana,ben --out site")
async def files(
    hosts: Annotated[str, option("--hosts", "HOSTS", "3 or 5 names, comma-separated.")],
    out: Annotated[Path, option("--out", "DIR", "A new directory, or that of last time.")] = Path(
        "cluster"
    ),
    people: PeopleOption = "",
    json: JsonOption = False,
) -> None:
    """Write the files for a cluster on hosts of your own: configuration, certificates, units."""
    store = Store(out)
    nodes = write_files(store, _listed(hosts), _listed(people))
    folders = {node.name: str(store.path / node.host) for node in nodes}
    print_result(
        {"url": store.read().url, "store": str(store.path), "folders": folders},
        *(f"{node.name:<7}  {folders[node.name]}  to {node.host}:{CONFIG}" for node in nodes),
        f"store    {store.path}",
        f"next     ayes setup --replicas {len(nodes)} --store {quote(str(out))}",
        json=json,
    )


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",")] if text else []


def _report(cluster: LocalCluster, *, json: bool) -> None:
    nodes = {node.name: {"url": node.url, "pid": node.pid} for node in cluster.nodes}
    where = "" if cluster.store.path == Store().path else f" --store {cluster.store.path}"
    print_result(
        {"url": cluster.store.read().url, "store": str(cluster.store.path), "nodes": nodes},
        *(f"{node.name:<7}  {node.url}" for node in cluster.nodes),
        f"store    {cluster.store.path}",
        f"next     ayes work gate queue executor{where}",
        f"         ayes status{where}",
        "Ctrl-C ends it. Nothing is lost.",
        json=json,
    )
