"""What is read off a connection and written to it, beside nats-py's own parser and frames, byte for
byte.
"""

import importlib.metadata
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.errors import ProtocolError
from nats.protocol.parser import Parser as Theirs

from ayes.ledger.nats.protocol import PRIVATE, NatsMessage, Parser, frame

type Seen = list[tuple[Any, ...]]


class Noting:
    """What a parser calls, in its order."""

    def __init__(self) -> None:
        self.seen: Seen = []

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        self.seen.append((sid, subject, reply, data, headers or b""))

    async def _process_err(self, said: str) -> None:
        self.seen.append(("err", said))

    async def _process_ping(self) -> None:
        self.seen.append(("ping",))

    async def _process_pong(self) -> None:
        self.seen.append(("pong",))

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.seen.append(("info", info))


token = st.text("abcXYZ_$-0123456789", min_size=1, max_size=12)
subject = st.lists(token, min_size=1, max_size=4).map(".".join)
# Line ends within are those of the message, not the protocol's.
payload = st.binary(max_size=60) | st.sampled_from(
    [b"", b"\r\n", b"MSG a 1 3\r\nabc\r\n", b"PING\r\n", b"x" * 70_000]
)
head = st.sampled_from(
    [b"NATS/1.0\r\n\r\n", b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", b"NATS/1.0\r\nA: b\r\n\r\n"]
)


@st.composite
def message(draw: st.DrawFn) -> bytes:
    """As the server sends it."""
    reply, data = draw(st.none() | subject), draw(payload)
    headers = draw(st.none() | head)
    words = [draw(subject), str(draw(st.integers(1, 5))), *([reply] if reply else [])]
    if headers is not None:
        sizes = f"{len(headers)} {len(headers) + len(data)}"
        return f"HMSG {' '.join(words)} {sizes}\r\n".encode() + headers + data + b"\r\n"
    return f"MSG {' '.join(words)} {len(data)}\r\n".encode() + data + b"\r\n"


line = st.sampled_from(
    [
        b"PING\r\n",
        b"PONG\r\n",
        b"+OK\r\n",
        b"-ERR 'Permissions Violation for Publish to \"x\"'\r\n",
        b'INFO {"a":1}\r\n',
    ]
)


@st.composite
def pieces(draw: st.DrawFn) -> list[bytes]:
    """A conversation, cut anywhere."""
    said = b"".join(draw(st.lists(message() | line, max_size=8)))
    cuts = sorted(draw(st.lists(st.integers(0, len(said)), max_size=8)))
    return [said[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(said)], strict=True)]


async def heard(parser: Theirs, noting: Noting, said: list[bytes]) -> Seen:
    for piece in said:
        await parser.parse(piece)
    return noting.seen


@given(pieces())
async def test_cut_anywhere_it_hears_what_nats_py_hears(said: list[bytes]):
    theirs, ours = Noting(), Noting()
    assert await heard(Parser(ours), ours, said) == await heard(Theirs(theirs), theirs, said)


@given(pieces(), st.sets(st.integers(1, 5)))
async def test_what_is_taken_straight_is_the_same_and_in_its_place(said, straight):
    theirs, ours = Noting(), Noting()
    parser = Parser(ours)

    def taking(number: int) -> None:
        def take(message: NatsMessage) -> None:
            ours.seen.append((number, *message))

        parser.straight[b"%d" % number] = take

    for number in straight:
        taking(number)
    assert await heard(parser, ours, said) == await heard(Theirs(theirs), theirs, said)


async def test_a_new_connection_begins_anew():
    """What the old one had not finished is not put before what the new one says."""
    noting = Noting()
    parser = Parser(noting)
    await parser.parse(b"MSG a 1 10\r\nhalf")
    parser.reset()
    await parser.parse(b"PING\r\n")
    assert noting.seen == [("ping",)]


@pytest.mark.parametrize(
    "said", [b"HELLO\r\n", b"MSG a 1 x\r\n\r\n", b"MSG\r\n", b"MSG \r\n", b"HMSG a 1 3\r\nabc\r\n"]
)
async def test_what_no_server_says_is_a_protocol_error(said: bytes):
    with pytest.raises(ProtocolError):
        await Parser(Noting()).parse(said)


@given(
    subject,
    payload,
    st.just("") | subject,
    st.lists(
        st.tuples(st.from_regex(r"[A-Za-z-]{1,9}", fullmatch=True), token),
        max_size=3,
        unique_by=lambda one: one[0],
    ),
)
async def test_a_frame_is_what_nats_py_publishes(to, data, reply, headers):
    written: list[bytes] = []

    class Writing(Client):
        async def _send_command(self, cmd: bytes, priority: bool = False) -> None:
            written.append(bytes(cmd))

    await Writing()._send_publish(to, reply, data, len(data), dict(headers) or None)
    assert [re.sub(rb"  +", b" ", one) for one in written] == [
        re.sub(rb"  +", b" ", frame(to, data, reply, dict(headers)))
    ]


async def test_a_subject_may_hold_what_python_takes_for_white_space():
    """The broker splits a line by spaces alone: other bytes belong to the subject (C2)."""
    parser, seen = Parser(Noting()), Noting()  # type: ignore[arg-type]
    parser.nc = seen  # type: ignore[assignment]
    await parser.parse(b"MSG a\x0b\x0c\x1c\x85\xff\x00b 1 2\r\n{}\r\n")
    assert seen.seen == [(1, b"a\x0b\x0c\x1c\x85\xff\x00b", b"", b"{}", b"")]


@pytest.mark.parametrize(
    "frame",
    [
        b"MSG a b 1\r\nx\r\n", b"MSG a 1 -1\r\nx\r\n", b"HMSG a 1 9 3\r\nxxx\r\n",
        b"HMSG a 1 3\r\nxxx\r\n", b"MSG \r\n", b"-ERR '\xff'\r\n", b'INFO {"a"\r\n',
        b'INFO {"a":"\xff"}\r\n',
    ],
)  # fmt: skip
async def test_a_malformed_frame_is_a_protocol_error(frame: bytes):
    """nats-py connects anew after a ProtocolError, and after any other error never reads again."""
    parser = Parser(Noting())  # type: ignore[arg-type]
    with pytest.raises(ProtocolError):
        await parser.parse(frame)


async def test_a_message_that_nats_py_cannot_read_does_not_end_its_reading():
    """Anybody may choose a message's headers: without a status in text it is passed over."""
    client, arrived = Client(), []
    parser = Parser(client)
    handed = client._process_msg

    async def process(sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        await handed(sid, subject, reply, data, headers)
        arrived.append(data)

    client._process_msg = process  # type: ignore[method-assign]
    client._subs[1] = Subscription(client, 1, "a")
    status, short = b"NATS/1.0 \xff\xff\xff\r\n\r\n", b"NATS/1.0"
    for head in (status, short):
        await parser.parse(b"HMSG a 1 %d %d\r\n%bx\r\n" % (len(head), len(head) + 1, head))
    await parser.parse(b"MSG a\xff 1 1\r\nx\r\n")
    await parser.parse(b"MSG a 1 2\r\nok\r\n")
    assert arrived == [b"ok"]


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in PRIVATE.items() for name in names]
)
def test_nats_py_has_what_is_used_of_it_although_it_is_private(kind: type, name: str):
    """No version that lacks one: see ledger/nats/protocol.py before the pin is widened."""
    client = Client()
    made = {
        Client: client,
        Subscription: Subscription(client, 1, "a"),
        TcpTransport: TcpTransport(),
    }[kind]
    version = importlib.metadata.version("nats-py")
    assert hasattr(made, name), (
        f"nats-py {version} has no {kind.__name__}.{name}: {PRIVATE[kind][name]}"
    )


def test_what_is_private_in_nats_py_is_used_in_one_file():
    """All of it is in `PRIVATE`, so that the test above names what a new version would break."""
    root = Path(__file__).parents[2]
    names = {name for names in PRIVATE.values() for name in names}
    used = re.compile(rf"\.({'|'.join(names)})\b")
    found = {
        str(file.relative_to(root)): set(used.findall(file.read_text()))
        for folder in ("schemas", "ledger", "projections", "consumers", "adapters", "ops", "bench")
        for file in (root / folder).rglob("*.py")
    }
    assert {file: found[file] for file in found if found[file]} == {
        "ledger/nats/protocol.py": names
    }
