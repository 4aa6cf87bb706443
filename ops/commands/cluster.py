"""Commands for a cluster: running one on this machine, and making the files for three hosts."""

import asyncio
from typing import Annotated, Final

import typer

from ayes.ledger.nats.credentials import Store
from ayes.ops.cluster.local import LocalCluster
from ayes.ops.commands.command import command, commands
from ayes.ops.commands.options import JsonOption, MaxBytesOption, StoreOption
from ayes.ops.commands.run import bytes_of
from ayes.ops.terminal.output import print_json, print_message
from ayes.ops.workers import until_signalled
from ayes.schemas.errors import BrokerAway

app: Final = commands()


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
    people: Annotated[
        str, typer.Option("--people", metavar="NAMES", help="Reviewers, comma-separated.")
    ] = "",
    max_bytes: MaxBytesOption = None,
    json: JsonOption = False,
) -> None:
    """Run a cluster on this machine, until Ctrl-C: nodes that each keep the whole log."""
    most = bytes_of(max_bytes)
    names = [name.strip() for name in people.split(",")] if people else []
    async with LocalCluster(store, size=nodes, people=names) as cluster:
        await cluster.declare(max_bytes=most)
        gone = asyncio.ensure_future(_node_gone(cluster))
        try:
            await until_signalled(gone, ready=lambda: _report(cluster, json=json))
        finally:
            gone.cancel()


async def _node_gone(cluster: LocalCluster) -> None:
    ends = {asyncio.create_task(node.exited()): node for node in cluster.nodes}
    try:
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in ends:
            one.cancel()
    node = ends[done.pop()]
    raise BrokerAway(f"node {node.name} ended by itself. Its last output:\n{node.last_words()}")


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
