"""What the console refuses, one test each, and the headers of every response."""

import asyncio
import json
import re
import socket
from http.cookies import SimpleCookie
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import httpx
import pytest
import pytest_asyncio
import structlog
from console_client import POLICY, site
from fastapi.responses import StreamingResponse
from structlog.testing import capture_logs

from ayes.interfaces.access import security as security_module
from ayes.interfaces.access.security import Security
from ayes.interfaces.access.sessions import WRONG, Attempts
from ayes.interfaces.api.backend import Backend
from ayes.interfaces.console.application import application
from ayes.interfaces.console.serving import serving
from ayes.ledger.clients.services import Ledger
from ayes.ops.visitors import Role, Visitor
from ayes.schemas.errors import BadInput, BrokerRefused
from ayes.schemas.events import Voted
from ayes.schemas.slots import CallRef

ANA = Visitor("ana", frozenset(Role))
BEN = Visitor("ben", frozenset({Role.REVIEWER}))

#: One broker for all of them: each test has calls of its own.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one_shop(tmp_path_factory):
    async with site(tmp_path_factory.mktemp("shop")) as made:
        routes = [*made.app.router.routes]
        yield made
        # Tests add some, and the applications of a process share their routes.
        made.app.router.routes[:] = routes


@pytest_asyncio.fixture(loop_scope="module")
async def shop(one_shop):
    """As every test finds it: ana makes the requests, and nobody has tried to sign in."""
    one_shop.visitor = ANA
    one_shop.security.wrong_codes = Attempts(WRONG)
    one_shop.security.ending = asyncio.get_running_loop().create_future()
    return one_shop


@pytest_asyncio.fixture(loop_scope="module")
async def client(shop):
    async with shop.client() as client:
        yield client


class Asked(NamedTuple):
    """A call that waits, of which no other test knows."""

    ref: str
    #: Of a vote that approves it.
    body: dict[str, str]
    ledger: Ledger

    @property
    def votes(self):
        return f"/api/v1/calls/{self.ref}/votes"

    async def voters(self):
        """Who has voted, according to the log."""
        facts = await self.ledger.read(CallRef.parse(self.ref))
        return [fact.slot.subject.split(".")[-1] for fact in facts if isinstance(fact.event, Voted)]


@pytest_asyncio.fixture(loop_scope="module")
async def asked(shop, request):
    ref = f"shop/order-17/{re.sub(r'[^a-z0-9_]', '-', request.node.name)[:64]}"
    return Asked(ref, {"verdict": "approve", "digest": await shop.ask(ref)}, shop.service)


async def test_another_origin_is_refused(shop, client, asked):
    """A page elsewhere, on another port or without TLS cannot have a visitor's browser vote."""
    for headers in (
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999", "sec-fetch-site": "same-site"},
        {"origin": "https://127.0.0.1:8420"},
        {"origin": "", "sec-fetch-site": "same-origin"},
    ):
        answer = await client.post(asked.votes, json=asked.body, headers=headers)
        assert answer.status_code == 403, headers
        assert "another site made the browser send this" in answer.json()["detail"]
    assert await asked.voters() == []


async def test_a_request_must_say_where_it_is_from(shop, asked):
    """Without `Origin`, Fetch Metadata must say that it is from a page of ours."""
    cookie = {"cookie": f"{shop.security.cookie}={shop.secret_of(shop.visitor)}"}
    shop.visitor = None
    async with shop.client() as client:
        assert (await client.post(asked.votes, json=asked.body, headers=cookie)).status_code == 403
        assert await asked.voters() == []
        cookie["sec-fetch-site"] = "same-origin"
        assert (await client.post(asked.votes, json=asked.body, headers=cookie)).status_code == 200
    assert await asked.voters() == ["ana"]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_foreign_page_can_embed_nothing(client, site):
    """A link to us leads here; an image, a script or a request of another site does not, nor of
    another port or name of ours.
    """
    elsewhere = {"sec-fetch-site": site}
    assert (await client.get("/api/v1/calls", headers=elsewhere)).status_code == 403
    elsewhere["sec-fetch-mode"] = "navigate"
    assert (await client.get("/", headers=elsewhere)).status_code == 200


async def test_without_a_session_nothing_answers(shop, client, asked):
    """The API says how to sign in, and a page leads there."""
    shop.visitor = None
    for answer in (
        await client.post(asked.votes, json=asked.body),
        await client.get(f"/api/v1/calls/{asked.ref}"),
        await client.get("/api/v1/openapi.json"),
        await client.get("/api/v1/nothing"),
    ):
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == 'Bearer realm="ayes"'
        assert answer.headers["content-type"] == "application/problem+json"
        assert "`ayes token add`" in answer.json()["detail"]
    page = await client.get("/?workspace=shop")
    assert page.status_code == 303
    assert page.headers["location"] == "/sign-in?next=%2F%3Fworkspace%3Dshop"
    assert await asked.voters() == []


async def test_every_route_wants_a_visitor(shop, client):
    """None but signing in and static files is open, whoever adds one."""
    shop.visitor = None
    for route in shop.app.routes:
        path = getattr(route, "path", "")
        if not path or path.startswith(("/sign-in", "/static")):
            continue
        for method in getattr(route, "methods", None) or {"GET"}:
            answer = await client.request(method, path.replace("{", "").replace("}", ""))
            assert answer.status_code in {401, 303}, (method, path)


@pytest.mark.parametrize("host", ["127.0.0.1/static/?", "127.0.0.1:8420/sign-in#", "a@127.0.0.1"])
async def test_a_host_header_opens_nothing(shop, client, host):
    """The path that is judged is the one that is answered."""
    shop.visitor = None
    answer = await client.get("/api/v1/calls", headers={"host": host})
    assert answer.status_code in {401, 421}


async def test_a_foreign_host_name_is_refused(client):
    """Else a page could make its own name lead here (DNS rebinding)."""
    answer = await client.get("/", headers={"host": "evil.example"})
    assert answer.status_code == 421
    assert "http://127.0.0.1:8420" in answer.json()["detail"]
    assert (await client.get("/", headers={"host": "localhost:8420"})).status_code == 200


async def test_an_expired_session_is_no_session(shop, client, asked):
    """A form that htmx sent is led to signing in, and from there back to where it was written."""
    shop.visitor = Visitor("rob", frozenset({Role.REVIEWER}))
    shop.security.sessions.end(shop.secret_of(shop.visitor))
    here = f"{shop.security.url}/calls/{asked.ref}"
    back = f"/sign-in?next={quote(f'/calls/{asked.ref}', safe='')}"
    by_htmx = {"hx-request": "true", "hx-current-url": here}
    for method, path in ("POST", f"/calls/{asked.ref}/vote"), ("GET", "/waiting"):
        answer = await client.request(method, path, headers=by_htmx)
        assert (answer.status_code, answer.headers["hx-redirect"]) == (401, back)
    answer = await client.post(f"/calls/{asked.ref}/vote", headers={"referer": here})
    assert (answer.status_code, answer.headers["location"]) == (303, back)


async def test_another_persons_session_decides_nothing_in_ones_name(shop, client, asked):
    """The vote is of the session's person, whatever the request says, and nobody else's."""
    shop.visitor = BEN
    named = {"reviewer": "ana", "name": "ana"}
    assert (await client.post(asked.votes, json=asked.body | named)).status_code == 422
    assert (await client.post(asked.votes, json=asked.body, params=named)).status_code == 200
    assert await asked.voters() == ["ben"]


async def test_a_page_of_somebody_who_has_signed_out_decides_nothing(shop, client, asked):
    """Ana's page is still open when ben signs in: a click there is not his vote."""
    shop.visitor = BEN
    answer = await client.post(asked.votes, json=asked.body, headers={"ayes-visitor": "ana"})
    assert answer.status_code == 409
    assert "ana opened this page, and ben is signed in now" in answer.json()["detail"]
    shown = await client.post("/calls/x", headers={"ayes-visitor": "ana", "hx-request": "true"})
    assert shown.headers["hx-retarget"] == "#messages"
    assert "ana opened this page" in shown.text
    assert await asked.voters() == []


async def test_a_role_that_may_not_is_refused(shop, client, asked):
    """A session's, and a token's."""
    for role, kind in (
        (Role.OPERATOR, "session"),
        (Role.AUDITOR, "session"),
        (Role.SERVICE, "token"),
    ):
        shop.visitor = Visitor("rob", frozenset({role}), kind)
        answer = await client.post(asked.votes, json=asked.body)
        assert answer.status_code == 403, role
        assert "it needs the role reviewer" in answer.json()["detail"]
    assert await asked.voters() == []


async def test_a_token_of_a_reviewer_votes_in_their_name(shop, client, asked):
    shop.visitor = Visitor("ana", frozenset({Role.REVIEWER}), "token")
    assert (await client.post(asked.votes, json=asked.body)).status_code == 200
    assert await asked.voters() == ["ana"]


async def test_a_session_and_a_token_together_are_refused(shop, client):
    """It would not be clear whose request it is."""
    answer = await client.get("/api/v1/calls", headers={"authorization": "Bearer x"})
    assert answer.status_code == 400


@pytest.mark.parametrize("authorization", ["Bearer", "Bearer ayes_x", "Basic YTpi", ""])
async def test_a_token_that_was_made_up_is_refused(shop, client, authorization):
    shop.visitor = None
    answer = await client.get("/api/v1/calls", headers={"authorization": authorization})
    assert answer.status_code == 401


async def test_a_long_body_is_refused_before_it_is_read(client):
    async def endless():
        while True:
            yield b"x" * 65536

    path = "/api/v1/calls/shop/order-17/none/votes"
    said = await client.post(path, content=b"", headers={"content-length": "5000000"})
    unsaid = await client.post(path, content=endless())
    for answer in (said, unsaid):
        assert answer.status_code == 413
        assert "4 MiB at most" in answer.json()["detail"]


async def test_every_response_has_the_headers(shop, client):
    """Pages, the API, static files and errors."""
    for path in (
        "/", "/api/v1/calls", "/static/console.css", "/nothing", "/api/v1/nothing",
    ):  # fmt: skip
        headers = (await client.get(path)).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cross-origin-opener-policy"] == "same-origin"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "camera=()" in headers["permissions-policy"]
        assert headers["cache-control"] == ("no-cache" if "static" in path else "no-store")
        assert "server" not in headers
        assert "strict-transport-security" not in headers  # it is http
    kept = (await client.get("/static/console.css?v=1")).headers["cache-control"]
    assert kept == "public, max-age=31536000, immutable"


async def test_behind_tls_the_cookie_is_sent_over_tls_only(shop):
    """And the browser is told never to try without (HSTS)."""
    security = Security(shop.security.access, "https://ayes.example")
    app = application(shop.app.state.backend, security)
    base = {"base_url": security.url, "headers": {"origin": security.url}}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), **base) as client:
        answer = await client.post("/sign-in", data={"code": security.access.new_link("ana")})
        assert answer.headers["strict-transport-security"] == "max-age=63072000"
        [name] = SimpleCookie(answer.headers["set-cookie"])
        assert name == "__Host-ayes"
        assert "Secure" in answer.headers["set-cookie"]
        assert (await client.get("/")).status_code == 200


async def test_a_failure_says_nothing_about_the_inside(shop, client, monkeypatch):
    """It is a problem like others, has the headers, and its trace is in our log only."""

    @shop.app.get("/api/v1/broken")
    async def broken():
        raise RuntimeError("/secret/path")

    heard = structlog.wrap_logger(None, wrapper_class=structlog.BoundLogger)
    monkeypatch.setattr(security_module, "_log", heard)
    with capture_logs() as logs:
        answer = await client.get("/api/v1/broken")
    assert answer.status_code == 500
    assert answer.json()["detail"] == "the console failed at this request. Its log says why."
    assert "content-security-policy" in answer.headers
    assert [(line["event"], line["path"]) for line in logs] == [
        ("a request failed", "/api/v1/broken")
    ]


async def test_a_console_elsewhere_has_the_passwords_that_it_is_given(shop, tmp_path):
    """Those of a part of the roles, in a directory of its own."""
    await shop.server.ensure_account("reviewer-ana")
    address = shop.server.store.read()
    given = {role: address.passwords[role] for role in ("observer", "reviewer-ana")}
    (tmp_path / "address.json").write_text(json.dumps({"url": address.url, "passwords": given}))
    async with Backend.connect(tmp_path) as backend:
        await backend.reviewer("ana")
        with pytest.raises(BrokerRefused, match="has no account 'reviewer-ben'"):
            await backend.reviewer("ben")


async def test_the_port_stays_the_same(shop):
    """So that bookmarks stay right; and a port that somebody has is left alone. Why it is not 8420
    is said at each start.
    """
    store = shop.server.store
    async with serving(store, "ana", port=0) as first:
        assert first.notes == []
        with pytest.raises(BadInput, match="the port is in use"):
            async with serving(store, "ana", port=urlsplit(first.url).port):
                pass
    async with serving(store, "ana") as again:
        assert again.url == first.url
        [note] = again.notes
        assert f"at port {urlsplit(first.url).port}, as the last time, and stays there" in note
        assert "`ayes console --port 8420` moves it" in note
    with socket.create_server(("127.0.0.1", urlsplit(first.url).port)):
        async with serving(store, "ana") as moved:
            [note] = moved.notes
            assert f"as {urlsplit(first.url).port} is in use" in note


async def test_somebody_whom_no_rule_asks_is_told(tmp_path):
    """Where the console starts, and in the header of its pages."""
    unasked = "whom no rule of the policies asks to vote"
    async with site(tmp_path, f'{POLICY}voters = ["ben"]\n') as shop, shop.client() as client:
        for name, is_told in (("ana", True), ("ben", False)):
            shop.visitor = Visitor(name, frozenset(Role))
            assert (unasked in (await client.get("/")).text) is is_told
            async with serving(shop.server.store, name) as served:
                assert (unasked in " ".join(served.notes)) is is_told


# -------------------------------------------------------------------------------------- signing in


@pytest_asyncio.fixture(loop_scope="module")
async def stranger(shop):
    """A browser of this machine in which nobody is signed in. It keeps cookies."""
    shop.visitor = None
    async with shop.client() as client:
        client.headers["origin"] = shop.security.url
        yield client


async def test_a_link_signs_in_once(shop, stranger):
    """Opening it only asks, since programs open links too; the button signs in."""
    code = shop.security.access.new_link("ana")
    for _ in range(2):
        page = await stranger.get("/sign-in", params={"code": code, "next": "/doubt"})
        assert "Sign in as ana" in page.text
    form = {"code": code, "next": "/?workspace=shop"}
    answer = await stranger.post("/sign-in", data=form)
    assert (answer.status_code, answer.headers["location"]) == (303, "/?workspace=shop")
    cookie = SimpleCookie(answer.headers["set-cookie"])[shop.security.cookie]
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "strict", "/")
    assert (await stranger.get("/")).status_code == 200
    again = await stranger.post("/sign-in", data=form)
    assert again.status_code == 403
    assert "was used already" in again.text


async def test_a_link_leads_nowhere_else(shop, stranger):
    for following in ("//evil.example", "https://evil.example", "/\\evil.example", "/\t/evil"):
        form = {"code": shop.security.access.new_link("ana"), "next": following}
        assert (await stranger.post("/sign-in", data=form)).headers["location"] == "/"


async def test_a_link_is_for_this_machine(shop, stranger):
    """Also behind a proxy on it, which passes on the requests of others."""
    form = {"code": shop.security.access.new_link("ana")}
    answer = await stranger.post("/sign-in", data=form, headers={"x-forwarded-for": "192.0.2.7"})
    assert answer.status_code == 403
    assert "on the machine that the console runs on" in answer.text


async def test_a_new_sign_in_ends_the_session_before(shop, stranger):
    """Nobody can plant a session of their own, or keep one."""
    for name in ("ana", "ben"):
        code = shop.security.access.new_link(name)
        before = stranger.cookies.get(shop.security.cookie, "")
        await stranger.post("/sign-in", data={"code": code})
        assert shop.security.sessions.find(before) is None
    assert shop.security.sessions.find(stranger.cookies[shop.security.cookie]).name == "ben"


async def test_signing_out_ends_the_session(shop, stranger):
    await stranger.post("/sign-in", data={"code": shop.security.access.new_link("ana")})
    secret = stranger.cookies[shop.security.cookie]
    answer = await stranger.post("/sign-out")
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert shop.security.sessions.find(secret) is None
    assert (await stranger.get("/")).status_code == 303


async def test_guesses_are_rate_limited_and_a_good_code_is_not(shop, stranger):
    """After ten guesses in a minute the next one must wait. Whoever has a link comes in all the
    same: others on the machine cannot keep them out.
    """
    for _ in range(WRONG):
        assert (await stranger.post("/sign-in", data={"code": "guess"})).status_code == 403
    answer = await stranger.post("/sign-in", data={"code": "guess"})
    assert answer.status_code == 429
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert "Try again in" in answer.text
    form = {"code": shop.security.access.new_link("ana")}
    assert (await stranger.post("/sign-in", data=form)).status_code == 303


async def test_a_foreign_page_signs_nobody_in(shop, stranger):
    form = {"code": shop.security.access.new_link("ana")}
    answer = await stranger.post("/sign-in", data=form, headers={"origin": "https://evil.example"})
    assert answer.status_code == 403
    assert not stranger.cookies


async def test_a_link_from_elsewhere_finds_the_session(stranger):
    """A browser from another site brings no cookie; a page of ours leads it on."""
    elsewhere = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    page = await stranger.get("/doubt?workspace=shop", headers=elsewhere)
    assert page.status_code == 200
    assert 'content="0;url=/sign-in?next=%2Fdoubt%3Fworkspace%3Dshop"' in page.text


async def test_who_is_signed_in_need_not_sign_in(client):
    answer = await client.get("/sign-in", params={"next": "/doubt"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/doubt")


# ------------------------------------------------------------------------------------------ endings


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def streams(one_shop):
    """The numbers of responses that have begun and ended, of a resource whose go on for ever."""
    begun, ended = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def ticks():
        begun.release()
        try:
            while True:
                yield b"tick\n"
                await asyncio.sleep(0.01)
        finally:
            ended.release()

    @one_shop.app.get("/api/v1/ticks")
    async def endless() -> StreamingResponse:
        return StreamingResponse(ticks())

    return begun, ended


async def reading(client, begun):
    """A request for the endless response, under way."""
    task = asyncio.create_task(client.get("/api/v1/ticks"))
    async with asyncio.timeout(60):
        await begun.acquire()
    assert not task.done()
    return task


async def test_a_stream_ends_with_its_session(shop, client, streams):
    shop.visitor = Visitor("eva", frozenset({Role.AUDITOR}))
    begun, ended = streams
    answer = await reading(client, begun)
    shop.security.sessions.end(shop.secret_of(shop.visitor))
    async with asyncio.timeout(60):
        assert (await answer).status_code == 200
        await ended.acquire()


async def test_a_stream_ends_with_the_console(shop, client, streams):
    """So that nobody's open page delays Ctrl-C."""
    begun, ended = streams
    answer = await reading(client, begun)
    shop.security.end()
    async with asyncio.timeout(60):
        assert (await answer).status_code == 200
        await ended.acquire()
