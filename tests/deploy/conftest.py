"""Starting what is in deploy/, with the tools that this machine has: `make images`.

Needs root, podman and buildah; for the base image a registry, or debootstrap. Tests whose tools are
missing say so and are skipped. AYES_IMAGE_BASE names a base image.
"""

import os
import shutil
import time
from pathlib import Path

import pytest
from containers import Podman, run
from paths import ROOT

from ayes.ops.broker.server import find_binary

BASE = "docker.io/library/python:3.13-slim-trixie"
SUITE = "trixie"
TOOLS = ROOT / ".venv" / "tools" / "bin"
#: What the image adds to its base. 159 MB when it was first built.
MAX_MB = 200


@pytest.fixture(scope="session")
def podman(tmp_path_factory) -> Podman:
    if os.geteuid() != 0 or not (shutil.which("podman") and shutil.which("buildah")):
        pytest.skip("needs root, podman and buildah")
    return Podman(tmp_path_factory.mktemp("podman"))


@pytest.fixture(scope="session")
def base(podman: Podman, tmp_path_factory) -> str:
    """A base image: the one that is named, or that of the registry, or Debian's packages."""
    if named := os.environ.get("AYES_IMAGE_BASE"):
        return named
    if podman.works("image", "exists", BASE) or podman.works("pull", "--quiet", BASE):
        return BASE
    made = f"localhost/ayes-base:{SUITE}"
    if not podman.works("image", "exists", made):
        if not shutil.which("debootstrap"):
            pytest.skip("there is neither a registry nor debootstrap")
        root = tmp_path_factory.mktemp("base") / "root"
        packages = "--include=python3,python3-venv,ca-certificates"
        run("debootstrap", "--variant=minbase", packages, SUITE, root)
        for path in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale"):
            shutil.rmtree(root / path)
        archive = root.with_suffix(".tar")
        run("tar", "-C", root, "-cf", archive, ".")
        podman("import", "--quiet", archive, made)
    return made


@pytest.fixture(scope="session")
def image(podman: Podman, base: str) -> str:
    """The image of deploy/Containerfile."""
    name = "localhost/ayes:test"
    command = ["buildah", "bud", "--format", "docker", "--network", "host", "--layers"]
    command += ["--build-arg", f"BASE={base}", "--file", "deploy/Containerfile", "--tag", name]
    if authorities := os.environ.get("SSL_CERT_FILE"):
        folder = Path(authorities).parent
        command += ["--volume", f"{folder}:/authorities:ro"]
        command += ["--build-arg", f"SSL_CERT_FILE=/authorities/{Path(authorities).name}"]
    begun = time.monotonic()
    run(*command, ".", cwd=ROOT, env=podman.environment)
    took = time.monotonic() - begun
    whole, under = (
        int(podman("image", "inspect", "--format", "{{.Size}}", one)) / 1e6 for one in (name, base)
    )
    print(f"\nimage: built in {took:.0f} s; {whole:.0f} MB, of which the base has {under:.0f}")
    assert whole - under < MAX_MB
    return name


@pytest.fixture(scope="session")
def nats_image(podman: Podman, tmp_path_factory) -> str:
    """NATS' own image as far as compose uses it: nats-server is its entry point."""
    here = tmp_path_factory.mktemp("nats")
    shutil.copy(find_binary(), here / "nats-server")
    (here / "Containerfile").write_text(
        'FROM scratch\nCOPY nats-server /nats-server\nENTRYPOINT ["/nats-server"]\n'
    )
    name = "localhost/nats:test"
    run("buildah", "bud", "--quiet", "--tag", name, here, env=podman.environment)
    return name


@pytest.fixture(scope="session")
def tools() -> Path:
    if not TOOLS.exists():
        pytest.skip("needs .venv/tools: `make images`")
    return TOOLS
