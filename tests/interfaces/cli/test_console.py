"""`ayes console`, `ayes token`, and the console of `ayes up` and of the demo, as real programs."""

import json
import re
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from program import approvals, at_a_terminal, started, up
from sections import settings_file

from ayes.ops.tokens import PREFIX


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """What `ayes up` says when it is ready, with its console on any free port."""
    store = tmp_path_factory.mktemp("served") / "store"
    with up(store, "--console", "--console-port", "0", "--as", "ana") as ready:
        yield ready


@contextmanager
def browser(link):
    """A browser in which the person of this link has signed in."""
    url, _, code = link.partition("/sign-in?code=")
    given = {"headers": {"origin": url}, "trust_env": False, "timeout": 60}
    with httpx.Client(base_url=url, **given) as client:
        assert "Sign in as ana" in client.get(link).text
        assert client.post("/sign-in", data={"code": code}).headers["location"] == "/"
        yield client


def test_up_serves_a_console_and_links_to_it(served):
    """The link of its greeting signs in, and `ayes console --link` prints another."""
    with browser(served["console"]) as client:
        assert client.get("/").status_code == 200
    ended = approvals("console", "--link", "--as", "ana", "--json", store=served["store"])
    assert ended.code == 0
    with browser(ended.one["link"]) as client:
        assert client.get("/").status_code == 200
    told = approvals("console", "--link", store=served["store"])
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/sign-in\?code=\S+\n", told.err)


def test_a_console_runs_on_its_own(served):
    """Beside the broker of a store, until Ctrl-C, which an open stream does not delay."""
    options = ("--store", served["store"], "--port", "0", "--as", "ana", "--json")
    with started("console", *options) as process:
        link = json.loads(process.stdout.readline())["link"]
        with browser(link) as client, client.stream("GET", "/api/v1/events") as events:
            assert events.status_code == 200
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
            said = [json.loads(line) for line in process.stderr]
    # A broker that is late on a busy machine is reported.
    late = ("ayes.ledger.nats.connection", "warning")
    assert [one for one in said if (one["logger"], one["level"]) != late] == []


def test_two_consoles_on_one_store(served):
    """A second one changes nothing about the first: `--link` leads there still, and its port stays
    the one that is remembered. Each takes a link to the other.
    """
    options = ("--store", served["store"], "--port", "0", "--as", "ana", "--json")
    first = served["console"].partition("/sign-in")[0]
    file = Path(served["store"]) / "console.json"
    port = json.loads(file.read_text())["port"]
    assert first.endswith(f":{port}")
    with started("console", *options) as process:
        second = json.loads(process.stdout.readline())["link"].partition("/sign-in")[0]
        assert second != first
        ended = approvals("console", "--link", "--as", "ana", "--json", store=served["store"])
        assert ended.one["link"].startswith(first)
        with browser(ended.one["link"].replace(first, second)) as client:
            assert client.get("/").status_code == 200
        known = json.loads(file.read_text())
        assert [one["url"] for one in known["consoles"]] == [first, second]
        assert known["port"] == port
        process.kill()
        process.wait(20)
    # Nobody takes what a killed one has left for a console.
    ended = approvals("console", "--link", "--as", "ana", "--json", store=served["store"])
    assert ended.one["link"].startswith(first)


def test_a_token_is_made_shown_once_and_revoked(served):
    """And what it says is what the API of the running console accepts."""
    store = served["store"]
    url = served["console"].partition("/sign-in")[0]

    def answer(secret):
        headers = {"authorization": f"Bearer {secret}"}
        return httpx.get(f"{url}/api/v1/calls", headers=headers, trust_env=False, timeout=60)

    ended = approvals("token", "add", "billing", "--role", "service", store=store)
    assert (ended.code, ended.err.count("expires")) == (0, 1)
    secret = ended.out.strip()
    assert secret.startswith(PREFIX)
    assert answer(secret).status_code == 200
    [row] = approvals("token", "list", "--json", store=store).lines
    assert (row["name"], row["role"]) == ("billing", "service")
    assert secret not in str(row)
    assert approvals("token", "revoke", row["id"], store=store).code == 0
    assert answer(secret).status_code == 401
    assert "There are no tokens." in approvals("token", "list", store=store).err
    words = ("token", "add", "desk", "--role", "operator", "--workspaces", "shop,returns")
    ended = approvals(*words, store=store)
    assert "desk as operator in shop, returns, expires" in ended.err
    headers = {"authorization": f"Bearer {ended.out.strip()}"}
    refused = httpx.get(f"{url}/api/v1/operations", headers=headers, trust_env=False, timeout=60)
    assert refused.status_code == 403
    assert "theirs are shop, returns" in refused.json()["detail"]


def test_up_can_leave_it_out(tmp_path):
    with up(tmp_path / "store", "--workers", "none") as ready:
        assert ready["console"] is None
        assert not (Path(ready["store"]) / "console.json").exists()
        ended = approvals("console", "--link", store=ready["store"])
        assert ended.code == 2
        assert "no console is served from" in ended.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("console --host 0.0.0.0", "plain HTTP: what is sent could be read"),
        ("console --settings missing.toml", "missing.toml: cannot be read"),
        ("console --link --as a.b", "there is no|no console is served"),
        ("token add desk --role king", "there is no role 'king'. There are: reviewer"),
        ("token add a.b --role service", "name 'a.b' cannot be used"),
        ("token add desk --role service --expires soon", "is not a valid duration"),
        ("token add desk --role service --expires 367d", "is too long: 366d at most"),
        ("token add desk --role service --workspaces shop,", "workspace '' cannot be used"),
        ("token revoke x", "there is no token 'x'. `ayes token list`"),
    ],
)
def test_a_mistake_is_explained(within, tmp_path, words, said):
    ended = within(*words.split(), store=tmp_path / "store")
    assert ended.code == 2
    assert re.search(said.replace(".", r"\.").replace("?", r"\?"), ended.err), ended.err


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://ayes.example", "Say in [openid] of the settings how people sign in"),
        ("http://ayes.example", "is without TLS"),
        ("ayes.example", "is not a URL such as"),
        ("https://ayes.example/x", "has a path"),
    ],
)
def test_a_mistake_in_where_people_open_it_is_explained(within, tmp_path, url, said):
    """The file in the store is read without being named."""
    (tmp_path / "store").mkdir(0o700)
    settings_file(tmp_path / "store", f'[console]\nurl = "{url}"\n')
    ended = within("console", store=tmp_path / "store")
    assert (ended.code, said in ended.err) == (2, True), ended.err


def test_up_serves_the_console_of_the_settings(tmp_path):
    """Behind a proxy where people sign in at a provider; nobody is let in by a link then."""
    text = """
[console]
url = "https://ayes.example.com"
[openid]
issuer = "https://login.example.com"
client_id = "ayes"
[openid.roles]
reviewer = ["*"]
"""
    file = settings_file(tmp_path, text)
    options = ("--console", "--console-port", "0", "--workers", "none", "--settings", file)
    with up(tmp_path / "store", *options) as ready:
        assert ready["console"] == "https://ayes.example.com"
        ended = approvals("console", "--link", store=ready["store"])
        assert ended.code == 2


def test_the_demo_is_decided_in_a_browser(tmp_path):
    """Its link leads to the call that waits; the terminal goes on when it is decided there."""
    with at_a_terminal("demo", store=tmp_path) as terminal:
        terminal.read_until("Approve it? [y/n]")
        [link] = re.findall(r"http://\S+", terminal.told)
        with browser(link) as client:
            while not (calls := client.get("/api/v1/calls").json()["calls"]):
                time.sleep(0.05)
            call = calls[0]
            body = {"verdict": "approve", "digest": call["digest"]}
            voted = client.post(f"/api/v1/calls/{call['call']}/votes", json=body)
            assert voted.status_code == 200
        terminal.read_until('"draft-report.tmp"} waits for ana.')
        terminal.read_until("Approve it? [y/n]")
        terminal.type("y")
        assert terminal.ended() == 0
    assert terminal.told.count("ana approved") == 2
