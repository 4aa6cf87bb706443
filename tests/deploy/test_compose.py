"""The compose file: three nodes and the workers, from the files of `ayes cluster files`."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers import Podman, run, until
from paths import ROOT

from ayes.ledger.nats.credentials import Store
from ayes.ops.cluster.files import write_files

NODES = ["nats1", "nats2", "nats3"]
WORKERS = ["gate", "queue", "executor"]
#: The exit code of a call that waits for people.
WAITS = 8
#: Who owns the files, and runs everything.
OWNER = 12345
TOOL = """
[[tool]]
name = "refund"
description = "Give money back for an order."
schema = {type = "object", properties = {order = {type = "string"}}}
"""


class Team:
    """The compose file at work, in a directory of its own."""

    def __init__(self, here: Path, program: Path, podman: Podman, images: dict[str, str]) -> None:
        self.here, self.program, self.podman = here, program, podman
        self.environment = podman.environment | images
        self.environment["PATH"] = f"{program.parent}{os.pathsep}{self.environment['PATH']}"

    def __call__(self, *words: str, check: bool = True) -> str:
        command = [self.program, "--no-ansi", *words]
        return run(*command, cwd=self.here, env=self.environment, check=check)

    def container(self, service: str) -> str:
        label = f"label=com.docker.compose.service={service}"
        return self.podman("ps", "--all", "--filter", label, "--format", "{{.Names}}").strip()

    def ayes(self, role: str, *words: str) -> tuple[int, str]:
        """A command of somebody with this login, on the network of the nodes."""
        network = self.podman("network", "ls", "--filter", "name=ayes", "--format", "{{.Name}}")
        done = subprocess.run(
            [
                *("podman", "run", "--rm", "--no-healthcheck", f"--network={network.strip()}"),
                *(f"--user={OWNER}", f"--env-file=site/logins/{role}.env"),
                f"--volume={self.here}/site/logins/ca.pem:/etc/ayes/ca.pem:ro",
                f"--volume={self.here}/tools.toml:/etc/ayes/tools.toml:ro",
                *(self.environment["IMAGE"], *words),
            ],
            cwd=self.here, env=self.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def team(
    tmp_path: Path, podman: Podman, image: str, nats_image: str, tools: Path
) -> Iterator[Team]:
    here = tmp_path / "team"
    here.mkdir()
    shutil.copy(ROOT / "deploy" / "compose.yaml", here)
    (here / "tools.toml").write_text(TOOL)
    write_files(Store(here / "site"), NODES, ["ana"])
    for node in NODES:
        (here / "data" / node).mkdir(parents=True)
    (here / ".env").write_text(f"OWNER_UID={OWNER}\nOWNER_GID={OWNER}\n")
    for one in (here, *here.rglob("*")):
        os.chown(one, OWNER, OWNER)
    for parent in here.parents:
        if parent.is_relative_to(tmp_path.parents[1]):
            parent.chmod(parent.stat().st_mode | 0o055)
    images = {"IMAGE": image, "NATS_IMAGE": nats_image}
    team = Team(here, tools / "podman-compose", podman, images)
    try:
        # In the order of `depends_on`: podman 4 does not know a container that has ended. Health
        # checks are timers of systemd, which need not run here: the test asks itself.
        team("up", "--detach", *NODES)
        team("up", "--detach", "--no-deps", "setup")
        created = podman("wait", team.container("setup")).strip()
        assert created == "0", podman.errors("logs", team.container("setup"))
        team("up", "--detach", "--no-deps", *WORKERS)
        yield team
    finally:
        team("down", "--volumes", check=False)


@pytest.mark.timeout(1800)
def test_a_call_is_decided_and_a_node_may_leave(team: Team):
    """Nobody is root, a gate with its own password decides, also after the loss of a node."""
    for kind in WORKERS:
        ready = ("exec", team.container(kind), "ayes", "ready", "--role", kind)
        until(lambda ready=ready: team.podman.works(*ready), f"the start of {kind}")
    for service in (*NODES, *WORKERS):
        assert team.podman.users(team.container(service)) == {OWNER}, service

    code, said = team.ayes("service", "tool", "declare", "/etc/ayes/tools.toml", "-w", "shop")
    assert code == 0, said
    for number, before in enumerate(("", "nats1")):
        if before:
            team.podman("stop", "--time", "60", team.container(before))
        call = f"shop/order-{number}/refund"

        def requested(call: str = call) -> bool:
            words = ("request", call, "refund", '{"order": "A-17"}', "--requester", "ben")
            return team.ayes("service", *words)[0] in {0, WAITS}

        until(requested, "the request")
        approve = ("approve", call, "--as", "ana", "--yes")
        until(lambda words=approve: team.ayes("reviewer-ana", *words)[0] == 0, "the approval")
        code, said = team.ayes("observer", "wait", call, "--timeout", "60", "--json")
        assert code == 0, said
        assert '"approved"' in said
