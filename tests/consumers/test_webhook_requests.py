"""The requests of webhooks, to real servers: what they carry, and where they do not go."""

import asyncio
import contextlib
import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace
from receivers import SECRET, endpoint, receiving
from standardwebhooks import WebhookVerificationError

from ayes.consumers.webhooks.endpoints import check
from ayes.consumers.webhooks.requests import HttpAnswer, Sender
from ayes.ops.cluster.certificates import issue, new_authority
from ayes.schemas.errors import BadInput

EVENT = '{"specversion":"1.0","id":"1","data":{"text":"grüß"}}'


def named(*addresses: str):
    """Every name has these addresses."""

    async def resolve(host: str, port: int) -> list[str]:
        return [*addresses]

    return resolve


async def test_the_reference_library_verifies_it():
    """The headers of Standard Webhooks, over exactly the bytes that are sent."""
    async with receiving() as receiver:
        answer = await Sender().post(endpoint(receiver), "msg_1", EVENT)
        [request] = receiver.posts
    assert (answer.status, answer.why) == (204, "")
    assert request.verified()["data"]["text"] == "grüß"
    assert request.headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert request.headers["webhook-request-origin"] == "ayes.test"
    for changed in (
        request._replace(body=request.body.replace(b"1.0", b"1.1")),
        request._replace(headers=request.headers | {"webhook-id": "msg_2"}),
        request._replace(headers=request.headers | {"webhook-timestamp": "1"}),
    ):
        with pytest.raises(WebhookVerificationError):
            changed.verified()
    with pytest.raises(WebhookVerificationError):
        request.verified(SECRET[:-8] + "AAAAAAA=")


@pytest.mark.parametrize(
    ("status", "headers", "why"),
    [
        (200, {}, ""),
        (204, {}, ""),
        (299, {}, ""),
        (301, {"location": "http://127.0.0.1:1/"}, "redirects are not followed"),
        (307, {"location": "/elsewhere"}, "redirects are not followed"),
        (304, {}, "it answered 304"),
        (400, {}, "it answered 400"),
        (410, {}, "it answered 410 Gone"),
        (503, {}, "it answered 503"),
    ],
)
async def test_only_success_is_success(status, headers, why):
    """2xx, and nothing else; a redirect is never followed."""
    async with receiving() as receiver:
        receiver.answer = lambda _request: (status, headers)
        answer = await Sender().post(endpoint(receiver), "msg_1", EVENT)
        assert receiver.connections == 1
    assert answer.status == status
    assert answer.why == "" if not why else why in answer.why
    assert answer.is_gone == (status == 410)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        ("999999", 3600.0),
        ("Sat, 21 Nov 2026 12:01:30 GMT", 90.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("soon", 0.0),
        ("-5", 0.0),
    ],
)
async def test_it_says_when_to_come_again(text, seconds):
    """`Retry-After`, in seconds or as a date; never more than an hour."""
    async with receiving() as receiver:
        receiver.answer = lambda _request: (429, {"retry-after": text})
        noon = Sender(now=lambda: datetime(2026, 11, 21, 12, tzinfo=UTC))
        answer = await noon.post(endpoint(receiver), "msg_1", EVENT)
    assert answer.retry_after_s == seconds


async def test_an_answer_takes_no_longer_than_it_may():
    """Neither silence nor an endless answer holds a request."""
    async with receiving() as receiver:
        receiver.answer = lambda _request: None
        answer = await Sender().post(endpoint(receiver, timeout_s=0.2), "msg_1", EVENT)
    assert answer.why == "no answer within 0.2 s"

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"x" * 1000)
                await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async with await asyncio.start_server(endless, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        answer = await Sender().post(endpoint(f"http://127.0.0.1:{port}/"), "msg_1", EVENT)
    assert (answer.status, answer.why, len(answer.text)) == (200, "", 4096)


# ------------------------------------------------------------------------------------ the handshake


async def test_an_endpoint_is_asked_whether_it_agrees():
    """The header alone counts: a server that answers OPTIONS of its own accord has not agreed."""
    async with receiving() as receiver:
        assert (await Sender().agrees(endpoint(receiver))).why == ""
        receiver.agrees = False
        refused = await Sender().agrees(endpoint(receiver))
        assert [one.method for one in receiver.requests] == ["OPTIONS"] * 2
        assert receiver.requests[0].headers["webhook-request-origin"] == "ayes.test"
    assert refused.status == 200
    assert "does not agree" in refused.why


@pytest.mark.parametrize(
    ("status", "allowed", "agrees"),
    [
        (200, "ayes.test", True),
        (204, "*", True),
        (200, "other.test", False),
        (200, "", False),
        (405, "ayes.test", False),
        (301, "*", False),
    ],
)
async def test_what_counts_as_agreement(status, allowed, agrees):
    """Success, and this ledger's name or any."""
    async with receiving() as receiver:
        receiver._reply = lambda _request: (status, {"webhook-allowed-origin": allowed})
        assert (not (await Sender().agrees(endpoint(receiver))).why) == agrees


# ----------------------------------------------------------------------------- where it does not go


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "100.64.0.1", "::1", "fe80::1",
        "fd00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "224.0.0.1", "0.0.0.0", "2002:7f00:1::",
    ],
)  # fmt: skip
@pytest.mark.parametrize("first", [(), ("1.1.1.1",)], ids=["alone", "after a public one"])
async def test_a_name_that_leads_inside_is_refused(address, first):
    """A private address among those of the name suffices; nothing is connected to. The answer does
    not say which address a name has inside.
    """
    url = "https://hooks.example.com/ayes"
    sender = Sender(resolve=named(*first, address))
    answer = await sender.post(endpoint(url, allow_private=False), "msg_1", EVENT)
    assert (answer.status, address in answer.why) == (0, False), answer
    assert "where nothing is sent" in answer.why


@pytest.mark.parametrize("address", ["224.0.0.1", "0.0.0.0", "2002:7f00:1::", "fe80::1%lo"])
async def test_some_addresses_are_never_allowed(address):
    """Also by an endpoint that may be private."""
    answer = await Sender(resolve=named(address)).post(
        endpoint("https://hooks.example.com/ayes"), "msg_1", EVENT
    )
    assert "a special address" in answer.why
    assert "--allow-private" not in answer.why


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "2130706433", "0x7f.1", "[::1]"])
async def test_an_address_in_the_url_is_checked_too(host):
    """However the URL spells it: what the system makes of it counts."""
    async with receiving() as receiver:
        url = f"https://{host}:{receiver.port}/hooks"
        answer = await Sender().post(endpoint(url, allow_private=False), "msg_1", EVENT)
        assert receiver.connections == 0
    assert "private address" in answer.why


async def test_without_tls_nothing_leaves_the_network():
    """An endpoint that may be private, and is not."""
    sender = Sender(resolve=named("1.1.1.1"))
    answer = await sender.post(endpoint("http://hooks.example.com/"), "msg_1", EVENT)
    assert "needs https://" in answer.why


async def test_a_redirect_inside_is_not_followed():
    """The endpoint that it leads to is not connected to."""
    async with receiving() as outer, receiving() as inner:
        outer.answer = lambda _request: (302, {"location": inner.url})
        answer = await Sender().post(endpoint(outer), "msg_1", EVENT)
        assert "redirects are not followed" in answer.why
        assert (outer.connections, inner.connections) == (1, 0)


async def test_a_name_cannot_change_between_check_and_connection(monkeypatch):
    """The name is resolved once, and the address that was checked is connected to."""
    asked = []
    real = socket.getaddrinfo

    def rebinding(host, port, *args, **kwargs):
        if host != "hooks.example.com":
            return real(host, port, *args, **kwargs)
        asked.append(host)
        return real("127.0.0.1" if len(asked) == 1 else "127.0.0.2", port, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    async with receiving() as checked, receiving(checked.port, host="127.0.0.2") as rebound:
        url = f"http://hooks.example.com:{checked.port}/hooks"
        assert (await Sender().post(endpoint(url), "msg_1", EVENT)).why == ""
        assert (len(checked.posts), rebound.connections, len(asked)) == (1, 0, 1)
        assert checked.posts[0].headers["host"] == f"hooks.example.com:{checked.port}"


async def test_another_address_of_the_name_is_tried():
    """If the first one cannot be connected to; not if it was, since it may have taken the event."""
    async with receiving() as receiver:
        url = f"http://hooks.example.com:{receiver.port}/hooks"
        sender = Sender(resolve=named("127.0.0.3", "127.0.0.1"))
        assert (await sender.post(endpoint(url), "msg_1", EVENT)).why == ""
        receiver.answer = lambda _request: (500, {})
        twice = Sender(resolve=named("127.0.0.1", "127.0.0.1"))
        assert "500" in (await twice.post(endpoint(url), "msg_2", EVENT)).why
        assert receiver.ids == ["msg_1", "msg_2"]


async def test_a_certificate_is_verified_for_the_name(tmp_path: Path):
    """Not for the address that is connected to; and another name's certificate is refused."""
    authority = new_authority()
    one = issue(authority, "hooks", ["hooks.example.com"])
    for name, content in (
        ("ca.pem", authority.certificate),
        ("one.pem", one.certificate),
        ("one.key", one.key),
    ):
        (tmp_path / name).write_bytes(content)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "one.pem", tmp_path / "one.key")
    trusted = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    async with receiving(tls=server) as receiver:
        for host, tls, why in (
            ("hooks.example.com", trusted, ""),
            ("other.example.com", trusted, "certificate verify failed"),
            ("127.0.0.1", trusted, "certificate verify failed"),
            ("hooks.example.com", None, "certificate verify failed"),
        ):
            sender = Sender(resolve=named("127.0.0.1"), tls=tls)
            url = f"https://{host}:{receiver.port}/hooks"
            answer = await sender.post(endpoint(url), "msg_1", EVENT)
            assert answer.why == "" if not why else why in answer.why.lower(), host
        assert len(receiver.posts) == 1


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch):
    """Only one that the endpoint names; then the proxy is asked for the whole URL."""
    async with receiving() as receiver, receiving() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        assert (await Sender().post(endpoint(receiver), "msg_1", EVENT)).why == ""
        assert (len(receiver.posts), proxy.connections) == (1, 0)
        asked = endpoint("http://hooks.example.com/ayes", proxy=f"http://127.0.0.1:{proxy.port}")
        assert (await Sender().post(asked, "msg_2", EVENT)).why == ""
        assert [one.path for one in proxy.posts] == ["http://hooks.example.com/ayes"]


async def test_a_name_without_an_address_is_a_failure():
    """It is reported as any other."""

    async def nowhere(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    answer = await Sender(resolve=nowhere).post(
        endpoint("https://hooks.example.com/"), "msg_1", EVENT
    )
    assert answer == HttpAnswer(why=answer.why, took_s=answer.took_s)
    assert "hooks.example.com has no address" in answer.why


# ------------------------------------------------------------------------- endpoints that are wrong

GOOD = endpoint("https://hooks.example.com/ayes", allow_private=False)


def test_a_valid_endpoint_is_taken():
    """And one without TLS only if it may be private."""
    check(GOOD)
    check(replace(GOOD, url="http://127.0.0.1:8000/", allow_private=True))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": "a b"}, "webhook 'a b'"),
        ({"url": "hooks.example.com"}, "looks like https://"),
        ({"url": "ftp://hooks.example.com/"}, "looks like https://"),
        ({"url": "https:///ayes"}, "looks like https://"),
        ({"url": "https://hooks.example.com:99999/"}, "looks like https://"),
        ({"url": "https://hooks.example.com/\r\nx"}, "looks like https://"),
        ({"url": "https://[::1/"}, "looks like https://"),
        ({"url": "https://ana:secret@hooks.example.com/"}, "no user, password or fragment"),
        ({"url": "https://hooks.example.com/#x"}, "no user, password or fragment"),
        ({"url": "http://hooks.example.com/"}, "Use https://"),
        ({"secret": "abc"}, "whsec_ followed by"),
        ({"secret": "whsec_abc"}, "whsec_ followed by"),
        ({"secret": "whsec_" + "QUJD" * 5}, "whsec_ followed by"),
        ({"secret": SECRET + "!"}, "whsec_ followed by"),
        ({"types": ("Aproved",)}, "no facts of the type 'Aproved'"),
        ({"workspaces": ("a.b",)}, "workspace 'a.b'"),
        ({"origin": "a b"}, "not a DNS name"),
        ({"origin": ""}, "not a DNS name"),
        ({"origin": "x\r\nEvil: 1"}, "not a DNS name"),
        ({"proxy": "proxy.example.com"}, "--proxy"),
    ],
)
def test_a_wrong_endpoint_is_refused(fields, problem):
    """In one sentence that says what it should be; a secret is never quoted."""
    with pytest.raises(BadInput) as refused:
        check(replace(GOOD, **fields))
    assert problem in str(refused.value)
    assert SECRET not in str(refused.value)
