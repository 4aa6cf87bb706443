"""The whole API keeps to its OpenAPI document, whatever is sent."""

import asyncio
from contextlib import suppress

import httpx
import pytest
import requests
import schemathesis
from console_client import listed
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from long import sampled
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

DOCUMENT = "/api/v1/openapi.json"
#: These answer without end.
STREAMS = ("/api/v1/events", "/api/v1/threads/{workspace}/{thread}/reply")
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
#: Each operation is also tried on a call that there is; and no wait is long.
NAMES = {"workspace": "shop", "thread": "order-17", "call": "refund-1"}
SHORT = {"timeout_s": 0.01}


class Fuzzer:
    """Sends examples from a thread; the application answers in this event loop."""

    def __init__(self, client: httpx.AsyncClient, document, examples: int) -> None:
        self.client = client
        self.examples = examples
        self.loop = asyncio.get_running_loop()
        self.operations = [
            found.ok()
            for found in schemathesis.openapi.from_dict(document).get_all_operations()
            if found.ok().path not in STREAMS
        ]

    def run(self, mode: GenerationMode) -> None:
        # Broken requests take long to make: one of each is for `make test-long`.
        sparing = mode is GenerationMode.NEGATIVE and self.examples == 1
        for operation in self.operations[:: 4 if sparing else 1]:
            self.fuzz(operation.as_strategy(generation_mode=mode))
            names = {one.name for one in operation.path_parameters} & {*NAMES}
            if names:
                known = {name: NAMES[name] for name in names}
                self.fuzz(operation.as_strategy(generation_mode=mode, path_parameters=known))

    def fuzz(self, strategy) -> None:
        @given(strategy)
        @settings(
            max_examples=self.examples,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def check(case) -> None:
            case.validate_response(self.send(case), checks=CHECKS)

        with suppress(Unsatisfiable):  # nothing can be wrong with a request without parameters
            check()

    def send(self, case) -> httpx.Response:
        if case.path.endswith("/decision"):
            case.query |= SHORT
        plain = requests.Request(**case.as_transport_kwargs(base_url="http://console")).prepare()
        sending = self.client.request(
            plain.method, plain.path_url, headers=dict(plain.headers), content=plain.body
        )
        answer = asyncio.run_coroutine_threadsafe(sending, self.loop)
        try:
            return answer.result(60)
        except TimeoutError:
            asked = f"{plain.method} {plain.path_url} {plain.body!r}"
            raise AssertionError(f"nothing was answered within a minute: {asked}") from None


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", sampled(GenerationMode, GenerationMode.NEGATIVE))
@pytest.mark.parametrize("examples", sampled((1, 4), 1))
async def test_whatever_is_sent_the_answer_is_as_declared(shop, client, mode, examples):
    """Valid requests and broken ones: no server error, and each answer fits the document."""
    await shop.ask("shop/order-17/refund-1")
    await listed(client, 1)
    document = (await client.get(DOCUMENT)).json()
    await asyncio.to_thread(Fuzzer(client, document, examples).run, mode)


HOSTILE = [
    ("GET", "/calls/shop/order-17/%00", None),
    ("GET", "/calls/shop/order-17/..%2f..%2fetc", None),
    ("GET", "/calls/shop/%F0%28%8C%28/refund-1", None),
    ("GET", "/calls/_policy/order-17/refund-1", None),
    ("GET", f"/calls/shop/{'x' * 5000}/refund-1", None),
    ("GET", "/calls/shop/order-17/refund-1/decision?timeout_s=nan", None),
    ("GET", "/calls/shop/order-17/refund-1/decision?timeout_s=1e999", None),
    ("GET", f"/calls?limit={'9' * 5000}", None),
    ("GET", "/calls?q=thread:a.b&mine=perhaps", None),
    ("GET", "/calls?workspace=%00", None),
    ("POST", "/votes", b'{"verdict":"deny","calls":[{"call":"\\ud800","digest":""}]}'),
    ("POST", "/votes", b'{"verdict":"deny","\\ud800":1}'),
    ("POST", "/votes", b"\xff\xfe"),
    ("POST", "/votes", b"[" * 100_000),
    ("POST", "/votes", b'{"verdict":' + b"9" * 5000 + b"}"),
    ("PUT", "/calls/shop/order-17/x", b'{"tool":"refund","arguments":"{\\"order\\":1e999}"}'),
    ("PUT", "/calls/shop/order-17/x", b'{"tool":"\\u0000","arguments":"{}"}'),
    ("PUT", "/calls/shop/order-17/x", b'{"tool":"refund","arguments":"' + b"[" * 9000 + b'"}'),
    ("POST", "/calls/shop/order-17/x/claim", b'{"claim":"1"}'),
    ("DELETE", "/calls/shop/order-17/x", None),
]


async def test_hostile_requests_are_refused(shop, client):
    """Malformed paths, numbers and bodies are the client's mistakes, never the server's."""
    for method, path, body in HOSTILE:
        headers = {"content-type": "application/json"} if body else {}
        answer = await client.request(method, f"/api/v1{path}", content=body, headers=headers)
        assert 400 <= answer.status_code < 500, (path, body, answer.text[:300])
        assert answer.headers["content-type"] == "application/problem+json"


async def test_a_body_that_is_too_long_is_refused(client):
    body = b'{"reason":"' + b"x" * (5 << 20) + b'"}'
    answer = await client.post("/api/v1/calls/shop/order-17/refund-1/withdraw", content=body)
    assert answer.status_code == 413
