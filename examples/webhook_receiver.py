"""Receives webhooks on loopback: `python webhook_receiver.py PORT`, with the secret in a file."""

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from standardwebhooks import Webhook, WebhookVerificationError

seen: set[str] = set()  # a real receiver keeps the ids together with what it does


class Receiver(BaseHTTPRequestHandler):
    def do_OPTIONS(self) -> None:  # it agrees to be sent facts
        self.send_response(200)
        origin = self.headers.get("WebHook-Request-Origin", "")
        self.send_header("WebHook-Allowed-Origin", origin)
        self.end_headers()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        webhook = Webhook(Path("webhook-secret").read_text().strip())
        try:
            event = webhook.verify(body, dict(self.headers))
        except WebhookVerificationError:
            self.send_error(401)
            return
        if self.headers["webhook-id"] not in seen:  # it may be sent more than once
            print(event["type"], event["subject"], flush=True)
            seen.add(self.headers["webhook-id"])
        self.send_response(204)
        self.end_headers()


if __name__ == "__main__":
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
