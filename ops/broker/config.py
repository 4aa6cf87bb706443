"""The part of a nats-server's configuration that a single server and a node have in common."""

import json
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

#: How many batches may be open, and for how long (security review, M2). One idle client can use up
#: nats-server's default of 50 for ten seconds; ours are sent whole, so each ends at once.
_BATCHES: Final = 'max_inflight_per_stream: 1000, max_inflight_total: 1000, timeout: "5s"'
#: Messages that wait to be taken into a stream. Further ones are refused, and clients try again.
#: With nats-server's default of 10,000 everybody waits for 20 s more once a flood has ended.
_WAITING: Final = 1000
#: Questions to the JetStream API that wait; beyond that all of them are dropped, and asked again.
_ASKED: Final = 2000
#: Bytes of a message; facts and pieces of files are smaller.
_MAX_PAYLOAD: Final = 1 << 20


def server_config(name: str, listen: str, jetstream: PurePath, *, sync: str = "always") -> str:
    """Who the server is, and how it keeps the log; `accounts.conf` next to it says who may do what.

    Args:
        listen: host and port for clients.
        jetstream: the directory of the log.
        sync: when the log is flushed to disk.
    """
    return (
        f"server_name: {quoted(name)}\n"
        f"listen: {quoted(listen)}\n"
        f"max_payload: {_MAX_PAYLOAD}\n"
        "jetstream {\n"
        f"  store_dir: {quoted(str(jetstream))}\n"
        f"  sync_interval: {quoted(sync)}\n"
        f"  limits {{batch {{{_BATCHES}}}}}\n"
        f"  max_buffered_msgs: {_WAITING}\n"
        f"  request_queue_limit: {_ASKED}\n"
        "}\n"
        'include "accounts.conf"\n'
    )


def quoted(value: str | Sequence[str]) -> str:
    """A string or a list of strings as in JSON, which is also valid in this configuration."""
    return json.dumps(value, ensure_ascii=False)
