"""Commands for a cluster: running one on this machine, and making the files for three hosts."""

from contextlib import AsyncExitStack
from pathlib import Path
from shlex import quote
from typing import Annotated, Final

import typer

from ayes.interfaces.cli.command import command, commands
from ayes.interfaces.cli.options import JsonOption, MaxBytesOption, StoreOption
from ayes.interfaces.cli.run import bytes_of
from ayes.interfaces.cli.terminal.output import print_json, print_message
from ayes.ledger.nats.credentials import Store
from ayes.ops.cluster.files import CONFIG, write_files
from ayes.ops.cluster.local import LocalCluster
from ayes.ops.supervisor import supervised
from ayes.ops.workers import until_signalled

app: Final = commands()

PeopleOption = Annotated[
    str,
    typer.Option(
        "--people", metavar="NAMES", help="Reviewers, comma-separated; earlier ones stay."
    ),
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
    nodes: Annotated[int, typer.Option("--nodes", help="3, or 5.", min=3, max=5)] = 3,
    people: PeopleOption = "",
    max_bytes: MaxBytesOption = None,
    json: JsonOption = False,
) -> None:
    """Run a cluster on this machine, until Ctrl-C: nodes that each keep the whole log."""
    most = bytes_of(max_bytes)
    async with LocalCluster(store, size=nodes, people=_listed(people)) as cluster:
        await cluster.declare(max_bytes=most)
        async with AsyncExitStack() as stack:
            each = [await stack.enter_async_context(supervised(node)) for node in cluster.nodes]
            for one in each:
                await one.watch_log()
            broken = [one.broken for one in each]
            await until_signalled(*broken, ready=lambda: _report(cluster, json=json))


@command(app, examples="ayes cluster files --hosts nats1,nats2,nats3 --people ana,ben --out site")
async def files(
    hosts: Annotated[
        str, typer.Option("--hosts", metavar="HOSTS", help="3 or 5 names, comma-separated.")
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="A new directory, or that of last time.")
    ] = Path("cluster"),
    people: PeopleOption = "",
    json: JsonOption = False,
) -> None:
    """Write the files for a cluster on hosts of your own: configuration, certificates, units."""
    store = Store(out)
    nodes = write_files(store, _listed(hosts), _listed(people))
    if json:
        folders = {node.name: str(store.path / node.host) for node in nodes}
        print_json({"url": store.read().url, "store": str(store.path), "folders": folders})
        return
    for node in nodes:
        print_message(f"{node.name:<7}  {store.path / node.host}  to {node.host}:{CONFIG}")
    print_message(f"store    {store.path}")
    print_message(f"next     ayes setup --replicas {len(nodes)} --store {quote(str(out))}")


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",")] if text else []


def _report(cluster: LocalCluster, *, json: bool) -> None:
    address = cluster.store.read()
    if json:
        nodes = {node.name: {"url": node.url, "pid": node.pid} for node in cluster.nodes}
        print_json({"url": address.url, "store": str(cluster.store.path), "nodes": nodes})
        return
    where = "" if cluster.store.path == Store().path else f" --store {cluster.store.path}"
    for node in cluster.nodes:
        print_message(f"{node.name:<7}  {node.url}")
    print_message(f"store    {cluster.store.path}")
    print_message(f"next     ayes work gate queue executor{where}")
    print_message(f"         ayes status{where}")
    print_message("Ctrl-C ends it. Nothing is lost.")
