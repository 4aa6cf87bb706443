"""The container image runs as nobody special, from a file system that cannot be written."""

import os
import time
from pathlib import Path

import pytest
from containers import Podman, until

#: What runtimes offer, all of it. There is no network but the container's own loopback interface.
CONFINED = (
    "--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges",
    "--network=none", "--no-healthcheck",
)  # fmt: skip
#: There is no shell either.
NO_SHELL = "--volume=/dev/null:/usr/bin/dash:ro"

TOOL = """
[[tool]]
name = "refund"
description = "Give money back for an order."
schema = {type = "object", properties = {order = {type = "string"}}}
"""


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    path = tmp_path / "volume"
    path.mkdir(mode=0o700)
    (path / "tools.toml").write_text(TOOL)
    for one in (path, path / "tools.toml"):
        os.chown(one, 10001, 10001)
    return path


def start(podman: Podman, image: str, volume: Path) -> tuple[str, float]:
    """A running `ayes up`, and how long it took until it was ready."""
    begun = time.monotonic()
    where = f"--volume={volume}:/var/lib/ayes"
    container = podman(
        "run", "--detach", *CONFINED, NO_SHELL, where, image, "up", "--json"
    ).split()[-1]  # fmt: skip

    def ready() -> bool:
        return '"url"' in podman("logs", container)

    until(ready, "the start")
    return container, time.monotonic() - begun


@pytest.mark.timeout(1800)
def test_an_approval_in_a_container_that_may_write_its_volume_only(
    podman: Podman, image: str, volume: Path
):
    """No process is root's, nothing changes outside of the volume, the health check passes, and a
    stopped container's log is there for the next one.
    """
    call = "shop/order-1/refund"
    container, took_s = start(podman, image, volume)
    try:
        until(lambda: podman.works("exec", container, "ayes", "ready"), "readiness")
        ayes = ("exec", container, "ayes")
        podman(*ayes, "tool", "declare", "tools.toml", "-w", "shop")
        order = '{"order": "A-17"}'
        podman(*ayes, "request", call, "refund", order, "--requester", "ben", check=False)
        approve = (*ayes, "approve", call, "--as", "ana", "--yes")
        until(lambda: podman.works(*approve), "the approval")
        assert podman.users(container) == {10001}
        # The folders in which the runtime mounts files of its own, and the test the missing shell.
        assert set(podman("diff", container).splitlines()) <= {"C /etc", "C /usr", "C /usr/bin"}
        shared = "import os; print(os.listdir('/dev/shm'))"
        assert podman("exec", container, "python3", "-c", shared).strip() == "[]"
    finally:
        begun = time.monotonic()
        podman("stop", "--time", "60", container)
        stopped_s = time.monotonic() - begun
    code = int(podman("inspect", "--format", "{{.State.ExitCode}}", container))
    podman("rm", container)
    assert code == 0
    print(f"\nimage: ready {took_s:.1f} s after its start, stopped within {stopped_s:.1f} s")
    owners = {file.lstat().st_uid for file in volume.rglob("*")}
    assert owners == {10001}

    container, _ = start(podman, image, volume)
    try:
        assert '"approved"' in podman("exec", container, "ayes", "wait", call, "--json")
    finally:
        podman("rm", "--force", "--time", "60", container)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_a_volume_that_it_may_not_use_is_reported(
    podman: Podman, image: str, tmp_path: Path, mode: int
):
    """One sentence and the exit code of input, be it another user's or read-only."""
    (tmp_path / "volume").mkdir(mode=mode)
    where = f"--volume={tmp_path / 'volume'}:/var/lib/ayes:ro"
    container = podman("run", "--detach", *CONFINED, where, image, "up").split()[-1]
    code = podman("wait", container).strip()
    logs = podman.errors("logs", container)
    podman("rm", container)
    assert code == "2"
    assert logs.startswith("error: /var/lib/ayes/store")
    assert logs.count("\n") == 1
