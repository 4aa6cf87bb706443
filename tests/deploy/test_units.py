"""The units under a systemd of their own: Debian's, in the image, booted by systemd-nspawn."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers import Podman, run, until
from paths import ROOT

from ayes.schemas.links import KEY_BYTES

STATE = tuple(f"/var/lib/ayes{one}" for one in ("", "-witness", "-console", "-notifier"))
NOTICES = """
[notices.mail]
url = "mailtos://ayes:secret@smtp.example.org?from=ayes@example.org&to={address}"
"""
CONSOLE = """
[console]
url = "https://ayes.example.com"
[openid]
issuer = "https://login.example.com"
client_id = "ayes"
[openid.roles]
auditor = ["*"]
"""


class Machine:
    """A booted system without a network, and commands inside it as root."""

    def __init__(self, root: Path, process: subprocess.Popen[bytes]) -> None:
        self.root, self.process = root, process

    def __call__(self, *words: str, check: bool = True) -> str:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        if not children:
            assert self.process.poll() is None, "systemd-nspawn has ended"
            return ""
        into = ("nsenter", "--target", children.split()[0], "--mount", "--uts", "--ipc", "--net")
        return run(*into, "--pid", "--", *words, check=check)

    def state(self, unit: str, *names: str) -> list[str]:
        text = self("systemctl", "show", unit, *(f"--property={name}" for name in names))
        found = dict(line.split("=", 1) for line in text.splitlines())
        return [found[name] for name in names]

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture
def machine(podman: Podman, image: str, tmp_path: Path) -> Iterator[Machine]:
    if not shutil.which("systemd-nspawn"):
        pytest.skip("needs systemd-nspawn")
    name = "localhost/ayes-systemd:test"
    (tmp_path / "Containerfile").write_text(
        f"FROM {image}\nUSER 0:0\nRUN apt-get update -qq && DEBIAN_FRONTEND=noninteractive "
        "apt-get install -qq --no-install-recommends systemd >/dev/null\n"
    )
    build = ("buildah", "bud", "--quiet", "--layers", "--network", "host", "--tag", name, tmp_path)
    run(*build, env=podman.environment)
    container = podman("create", name).strip()
    root = tmp_path / "root"
    root.mkdir()
    podman("export", "--output", tmp_path / "root.tar", container)
    podman("rm", container)
    run("tar", "-C", root, "-xf", tmp_path / "root.tar")
    (tmp_path / "root.tar").unlink()
    shutil.rmtree(root / "var" / "lib" / "ayes")  # the image's volume
    units = root / "etc" / "systemd" / "system"
    for file in (ROOT / "deploy" / "systemd").glob("*.service"):
        shutil.copy(file, units)
    (root / "etc" / "sysusers.d").mkdir(exist_ok=True)
    shutil.copy(ROOT / "deploy" / "systemd" / "ayes.conf", root / "etc" / "sysusers.d")
    (units / "systemd-networkd-wait-online.service").symlink_to("/dev/null")
    command = ["systemd-nspawn", f"--directory={root}", "--boot", "--private-network"]
    command += ["--register=no", "--keep-unit", "--console=pipe", "--machine=ayes-test"]
    with subprocess.Popen(
        command, env=os.environ | {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        here = Machine(root, process)
        try:
            up = ("systemctl", "is-active", "multi-user.target")
            until(lambda: here(*up, check=False).strip() == "active", "the boot")
            yield here
        finally:
            here("systemctl", "poweroff", check=False)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.mark.timeout(1800)
def test_the_units_run_confined_and_start_again_when_that_helps(machine: Machine):
    """Broker, gate and console, none of them root's; they write in their own directories only. A
    gate that is killed is started again, and one with a wrong password is not.
    """
    machine.write("/etc/ayes/up.env", 'AYES_UP="--workers queue --no-console"\n')
    machine("systemctl", "start", "ayes-up")
    address = machine.root / "var" / "lib" / "ayes" / "address.json"

    def url() -> str:
        return json.loads(address.read_text() or "{}").get("url", "") if address.exists() else ""

    until(url, "the start of the broker")
    known = json.loads(address.read_text())

    def login(role: str, password: str) -> None:
        place = known["url"].replace("//", f"//{role}:{password}@")
        machine.write(f"/etc/ayes/{role}.env", f"AYES_URL={place}\n")

    login("gate", known["passwords"]["gate"])
    machine("systemctl", "start", "ayes-work@gate")
    login("notifier", known["passwords"]["notifier"])
    machine.write("/etc/ayes/notifier/ayes.toml", NOTICES)
    machine.write("/etc/ayes/notifier/links.key", "k" * KEY_BYTES)
    admin = known["url"].replace("//", f"//admin:{known['passwords']['admin']}@")
    notices = ("--with", "notifier", "--with", "notifier-later")
    machine("/opt/ayes/bin/ayes", "setup", "--url", admin, *notices)
    machine("systemctl", "start", "ayes-tell@notifier")
    ask = ("runuser", "-u", "ayes", "--", "env", f"AYES_STORE={STATE[0]}", "/opt/ayes/bin/ayes")
    until(lambda: "ready" in json_of(machine(*ask, "ready", "--json", check=False)), "readiness")

    shutil.copytree(address.parent, machine.root / "etc" / "ayes" / "console", ignore=others)
    machine.write("/etc/ayes/console/ca.pem", "")
    machine.write("/etc/ayes/console/ayes.toml", CONSOLE)
    machine("systemctl", "start", "ayes-console")
    listens = "import socket; socket.create_connection(('127.0.0.1', 8420))"
    python = ("/opt/ayes/bin/python", "-c", f"{listens}; print('listens')")
    until(lambda: machine(*python, check=False), "the start of the console")

    users = set()
    for unit in ("ayes-up", "ayes-work@gate", "ayes-console", "ayes-tell@notifier"):
        [group] = machine.state(unit, "ControlGroup")
        pids = machine("cat", f"/sys/fs/cgroup{group}/cgroup.procs").split()
        assert pids, machine("journalctl", "--no-pager", "--unit", unit)
        for pid in pids:
            users.add(machine("stat", "--format=%u", f"/proc/{pid}").strip())
    assert "0" not in users
    assert len(users) == 2
    outside = [word for path in STATE for word in ("-path", path, "-prune", "-o")]
    owned = ["(", *" -o ".join(f"-uid {user}" for user in users).split(), ")"]
    assert machine("find", "/", "-xdev", *outside, *owned, "-print") == ""

    machine("systemctl", "kill", "--signal=KILL", "ayes-work@gate")
    until(lambda: machine.state("ayes-work@gate", "NRestarts") == ["1"], "the restart")
    until(lambda: machine.state("ayes-work@gate", "SubState") == ["running"], "the gate again")
    machine("systemctl", "stop", "ayes-work@gate")
    assert machine.state("ayes-work@gate", "Result", "ExecMainStatus") == ["success", "0"]
    login("gate", "wrong")
    machine("systemctl", "start", "ayes-work@gate")
    until(lambda: machine.state("ayes-work@gate", "ActiveState") == ["failed"], "its refusal")
    assert machine.state("ayes-work@gate", "NRestarts", "ExecMainStatus") == ["0", "4"]
    assert machine.state("ayes-tell@notifier", "SubState", "NRestarts") == ["running", "0"]
    machine("systemctl", "stop", "ayes-tell@notifier", "ayes-console", "ayes-up")
    assert machine.state("ayes-up", "Result", "ExecMainStatus") == ["success", "0"]


def json_of(text: str) -> list[str]:
    """The names of what is true in a line of JSON."""
    return [name for name, value in json.loads(text or "{}").items() if value is True]


def others(_: str, names: list[str]) -> list[str]:
    return [name for name in names if name != "address.json"]
