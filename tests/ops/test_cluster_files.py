"""`ayes cluster files`: what it writes, and the servers that run from it."""

import configparser
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT
from program import environment

from ayes.ledger.nats.credentials import Login, Store
from ayes.ledger.nats.link_key import link_key
from ayes.ops.broker.accounts import OWN
from ayes.ops.broker.server import find_binary
from ayes.ops.cluster.files import CONFIG, DATA, write_files
from ayes.schemas.errors import BadInput

HOSTS = ["nats1.example.org", "nats2.example.org", "10.0.0.3"]
#: `make cluster` takes a node after the other, and adds two.
WHOLE = bool(os.environ.get("AYES_TEST_CALLS"))


@pytest.fixture
def site(tmp_path: Path) -> Store:
    store = Store(tmp_path / "site")
    write_files(store, HOSTS, ["ana"])
    return store


def can_have_a_network() -> bool:
    """Whether this user may start a process with a loopback interface of its own."""
    return bool(shutil.which("unshare")) and not subprocess.call(
        ["unshare", "--net", "true"], stderr=subprocess.DEVNULL
    )


@pytest.mark.skipif(not can_have_a_network(), reason="a network namespace needs root")
@pytest.mark.timeout(300)
@pytest.mark.long
def test_what_the_page_describes_works(tmp_path):
    """Three servers from the files, on the ports that they name: an upgrade of a running node, and
    a node whose disk is lost, while a service records facts; none of them is missing at the end.
    """
    done = subprocess.run(
        ["unshare", "--net", sys.executable, ROOT / "tests" / "support" / "hosts.py", tmp_path]
        + (["all"] if WHOLE else []),
        env=environment(PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    steps = {
        name: value for line in done.stdout.splitlines() for name, value in json.loads(line).items()
    }
    assert steps["missing"] == []
    assert 0 < steps["upgraded"] < steps["replaced"] <= steps.get("added", steps["replaced"])


def test_nats_server_accepts_each_configuration(site, tmp_path):
    for host in HOSTS:
        config = site.path / host / "nats.conf"
        text = config.read_text().replace(str(CONFIG), str(config.parent))
        config.write_text(text.replace(str(DATA), str(tmp_path / "data")))
        subprocess.run([find_binary(), "-t", "-c", config], check=True)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd")
def test_systemd_accepts_the_unit(site, tmp_path):
    """But for the user and the binary, which this machine does not have."""
    unit = (site.path / HOSTS[0] / "ayes-nats.service").read_text()
    parsed = configparser.ConfigParser(strict=False)
    parsed.optionxform = str
    parsed.read_string(unit)
    assert parsed["Service"]["KillSignal"] == "SIGUSR2"
    copy = tmp_path / "ayes-nats.service"
    copy.write_text(unit.replace("/usr/local/bin/nats-server", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False
    )
    assert str(copy) not in done.stderr, done.stderr


@pytest.mark.skipif(
    bool(subprocess.call("docker compose version", shell=True, stderr=-3, stdout=-3)),
    reason="there is no docker compose",
)
def test_docker_accepts_the_compose_file(site):
    folder = site.path / HOSTS[0]
    subprocess.run(["docker", "compose", "config", "--quiet"], cwd=folder, check=True)


def test_keys_and_passwords_are_private_and_stay(site):
    """All is its owner's; written again, passwords stay and a new reviewer has accounts."""
    files = [file for file in site.path.rglob("*") if file.is_file()]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert not list(site.path.glob("*/ca.key"))
    before, authority = site.read(), (site.path / "ca.pem").read_bytes()
    write_files(site, HOSTS, ["ben"])
    assert site.read().passwords.items() > before.passwords.items()
    assert (site.path / "ca.pem").read_bytes() == authority
    for host in HOSTS:
        accounts = (site.path / host / "accounts.conf").read_text()
        assert "reviewer-ana" in accounts
        assert "reviewer-ben" in accounts


def test_each_program_gets_its_own_password_and_no_other(site):
    """A file of environment variables for each role but the server's own. Console and `slack` have
    stores with those of whom they sign on as, and all make links with one key.
    """
    known = site.read().passwords
    logins = site.path / "logins"
    assert {file.stem for file in logins.glob("*.env")} == known.keys() - {"system"}
    for file in logins.glob("*.env"):
        variables = dict(line.split("=", 1) for line in file.read_text().splitlines())
        login = Login.parse(variables.pop("AYES_URL"))
        assert (login.user, login.password or login.seed) == (file.stem, known[file.stem])
        assert login.servers == [f"tls://{host}:4222" for host in HOSTS]
        assert variables == {"AYES_CA": "/etc/ayes/ca.pem"}
    for accounts in site.path.glob("*/accounts.conf"):  # of the site's own logins the public keys
        assert not any(known[name] in accounts.read_text() for name in OWN)
        assert "user: admin" not in accounts.read_text()
    console = Store(logins / "console")
    roles = {"observer", "operator", "service", "api", "reviewer-ana"}
    assert console.read().passwords.keys() == roles
    assert console.login("observer").ca == str(console.path / "ca.pem")
    slack = Store(logins / "slack")
    assert slack.read().passwords.keys() == {"slack", "reviewer-ana"}
    for folder in (logins, console.path, slack.path):
        assert (folder / "ca.pem").read_bytes() == (site.path / "ca.pem").read_bytes()
    assert len({link_key(one) for one in (Store(logins), console, slack)}) == 1


def test_a_new_host_takes_the_part_of_another(site):
    """A node is known by its name, which is its place among the hosts."""
    (node,) = [one for one in write_files(site, ["nats4", *HOSTS[1:]]) if one.host == "nats4"]
    assert node.name == "n1"
    assert 'server_name: "n1"' in (site.path / "nats4" / "nats.conf").read_text()


@pytest.mark.parametrize(
    ("hosts", "says"),
    [
        (["a", "b"], "names 2 hosts. A cluster has 3 or 5"),
        (["a", "b", "b"], "names 2 hosts"),
        (["a", "b", "nats://c:4222"], "'nats://c:4222' is not the name of a host"),
        (["a", "b", "../c"], "'../c' is not the name of a host"),
        (["a", "b", "logins"], "'logins' is not the name of a host"),
        (["a", "b", ""], "'' is not the name of a host"),
    ],
)
def test_hosts_that_cannot_be_are_refused(tmp_path, hosts, says):
    """Nothing is written."""
    with pytest.raises(BadInput, match=says):
        write_files(Store(tmp_path / "site"), hosts)
    assert not (tmp_path / "site").exists()


def test_a_directory_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(BadInput, match="holds files that are not ours"):
        write_files(Store(tmp_path), HOSTS)
