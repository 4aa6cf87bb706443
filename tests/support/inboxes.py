"""Servers on loopback that take messages, as the channels of people do: SMTP, JSON over HTTP, and
ntfy's publish API.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from aiosmtpd.controller import Controller


class Received(NamedTuple):
    #: The recipient: a mail address, a topic, or the path of a URL.
    to: str
    subject: str
    body: str
    #: Seconds since 1970.
    at: float


class Inbox(list[Received]):
    """What was received, in that order; each message is there before its sender is answered."""

    #: Where it listens, `host:port`.
    place = ""
    #: Refuse everything while set.
    is_broken = False
    #: How long it takes to answer, in seconds, after it has taken a message.
    slow_s = 0.0

    def to(self, name: str) -> list[Received]:
        return [one for one in self if one.to == name]

    def until(self, count: int, within_s: float = 60) -> "Inbox":
        """Wait in a thread until so many have come."""
        end = time.monotonic() + within_s
        while len(self) < count:
            assert time.monotonic() < end, f"only {len(self)} of {count} messages came: {self}"
            time.sleep(0.01)
        return self


@contextmanager
def smtp() -> Iterator[Inbox]:
    inbox = Inbox()

    class Handler:
        async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
            if inbox.is_broken:
                return "451 broken, try again later"
            mail = message_from_bytes(envelope.content, policy=default)
            part = mail.get_body(("plain", "html"))
            text = part.get_content().replace("\r\n", "\n")
            for to in envelope.rcpt_tos:
                inbox.append(Received(to, mail["subject"], text, time.time()))
            return "250 taken"

    class OnAnyPort(Controller):
        def _trigger_server(self) -> None:
            self.port = self.server.sockets[0].getsockname()[1]
            super()._trigger_server()

    server = OnAnyPort(Handler(), hostname="127.0.0.1", port=0)
    server.start()
    try:
        inbox.place = f"127.0.0.1:{server.port}"
        yield inbox
    finally:
        server.stop()


@contextmanager
def http() -> Iterator[Inbox]:
    """Takes apprise's JSON at any path."""

    def taken(path: str, body: bytes) -> tuple[str, str, str]:
        said = json.loads(body)
        return path.strip("/"), said["title"], said["message"]

    with _served(taken) as inbox:
        yield inbox


@contextmanager
def ntfy() -> Iterator[Inbox]:
    """Takes what ntfy's publish API takes: JSON with a topic at `/`, or text at `/<topic>`.

    As the real server it refuses JSON without a topic, and a topic that is not a name.
    """

    def taken(path: str, body: bytes) -> tuple[str, str, str]:
        if topic := path.strip("/"):
            return topic, "", body.decode()
        said = json.loads(body)
        if not str(said["topic"]).replace("-", "").replace("_", "").isalnum():
            raise ValueError(said["topic"])
        return said["topic"], said.get("title", ""), said.get("message", "triggered")

    with _served(taken) as inbox:
        yield inbox


@contextmanager
def _served(taken: Any) -> Iterator[Inbox]:
    inbox = Inbox()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            try:
                found = None if inbox.is_broken else taken(self.path.partition("?")[0], body)
            except (ValueError, KeyError):
                self._answer(400, {"code": 40000, "http": 400, "error": "invalid request"})
                return
            if found is None:
                self._answer(503, {"code": 50300, "http": 503, "error": "broken"})
                return
            inbox.append(Received(*found, time.time()))
            time.sleep(inbox.slow_s)
            self._answer(200, {"id": "x", "event": "message", "topic": found[0]})

        do_PUT = do_POST  # noqa: N815

        def _answer(self, code: int, said: dict[str, Any]) -> None:
            content = json.dumps(said).encode()
            try:
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except OSError:
                pass  # the sender was killed

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    inbox.place = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield inbox
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
