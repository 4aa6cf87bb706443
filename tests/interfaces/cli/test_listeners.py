"""Where our programs listen: what others reach has TLS, at every door (S16, B75)."""

import re
from pathlib import Path

import pytest
from brokers import running
from sections import settings_file

TOKEN = "t" * 32
AAP = (
    f'[aap]\nworkspace = "w"\n[[aap.instance]]\nname = "b"\nrequester = "ben"\ntoken = "{TOKEN}"\n'
)
MCP = '[mcp]\nworkspace = "w"\nrequester = "rita"\n[[mcp.server]]\nname = "s"\ncommand = ["s"]\n'


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.7", "ayes.example"])
@pytest.mark.parametrize(
    ("door", "settings", "how"),
    [
        ("console --host {host}", "", r"\[console\] url"),
        ("serve aap --http {host}:1", AAP, "--behind-tls"),
        ("mcp gateway --http {host}:1", MCP, "--behind-tls"),
        ("monitor --listen {host}:1", "", "`ayes monitor --behind-tls`"),
        ("up --monitor {host}:1", "", "`ayes monitor --behind-tls`"),
    ],
)
def test_no_door_is_open_to_others_without_tls(within, tmp_path, door, settings, how, host):
    """Tokens, sessions and the names of rules are not sent in clear, unless the operator says that
    a proxy with TLS stands before it. Nothing is started.
    """
    named = ("--settings", settings_file(tmp_path, settings)) if settings else ()
    ended = within(*door.format(host=host).split(), *named, "--store", tmp_path / "s", store=None)
    assert (ended.code, ended.out) == (2, "")
    assert re.search(f"could be read on the way.* say {how}", ended.err), ended.err


def listening(pid: int) -> set[str]:
    """The addresses on which a process listens, as the kernel writes them."""
    own = {one.readlink().name for one in Path(f"/proc/{pid}/fd").iterdir()}
    tables = (Path(f"/proc/{pid}/net/{one}").read_text() for one in ("tcp", "tcp6"))
    rows = [line.split() for text in tables for line in text.splitlines()[1:]]
    open_rows = [row for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]
    return {row[1].partition(":")[0] for row in open_rows}


async def test_the_broker_of_up_listens_for_this_machine_alone(tmp_path):
    """It has TLS for nobody, so nobody else reaches it."""
    async with running(tmp_path / "store") as server:
        assert listening(server.pid) == {"0100007F"}
        assert server.url.startswith("nats://127.0.0.1:")
