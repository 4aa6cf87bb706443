"""The distribution: one import package, and nothing in it that only the repository needs."""

import ast
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from paths import ROOT

from ayes.projections.lake.queries import QUESTIONS

FOLDERS = ("schemas", "ledger", "projections", "consumers", "adapters", "ops", "interfaces")
#: Of frameworks that are in environments of their own; the program that is adapted brings them.
WITHOUT_EXTRA = {"agents", "claude-agent-sdk", "langchain", "langchain-core", "langgraph"}

SERVICE = """
import asyncio, sys
import consumers, ledger, ops, schemas
from ayes import Ledger, Status, spec_of

def refund(order: str) -> str:
    return f"{order} is refunded"

async def main():
    async with Ledger.connect(sys.argv[1], name="billing") as client:
        await client.declare("shop", spec_of(refund))
        await client.request("shop/t/c", "refund", {"order": "A-17"}, requester="ben")
        decided = await client.decision("shop/t/c", timeout_s=60)
        assert decided.status is Status.APPROVED, decided.status
        print((await client.run("shop/t/c", refund)).output)
        print(schemas.__file__, ledger.__file__)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel that `uv build` or pip would make of this checkout."""
    target = tmp_path_factory.mktemp("wheel")
    code = f"from hatchling.build import build_wheel; print(build_wheel({str(target)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return target / done.stdout.split()[-1]


def test_the_wheel_holds_one_package(wheel: Path):
    """Nothing else is installed at the top, no test, no benchmark; and it says that it is typed."""
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ayes"}
    assert {f"ayes/{folder}/__init__.py" for folder in FOLDERS} <= set(names)
    assert {"ayes/py.typed", "ayes/testing.py", "ayes/interfaces/api/asyncapi.json"} <= set(names)
    queries = {f"ayes/projections/lake/saved_queries/{name}.sql" for name in QUESTIONS}
    assert queries <= set(names)
    assert not [
        name for name in names if "bench" in name or name.split("/")[-1].startswith("test_")
    ]


@pytest.mark.long
def test_the_source_distribution_holds_tracked_files_only(tmp_path: Path):
    """It can be built from a checkout with untracked files; they are left out."""
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, checkout], check=True)
    for stray in ("schemas/stray.py", "docs/notes.txt", ".env"):
        (checkout / stray).write_text("secret")
    code = f"from hatchling.build import build_sdist; print(build_sdist({str(tmp_path)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=checkout, capture_output=True, text=True, check=True
    )
    with tarfile.open(tmp_path / done.stdout.split()[-1]) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=checkout, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    assert names - set(tracked) == {"PKG-INFO"}
    assert {"pyproject.toml", "README.md", "ledger/lifecycle.py", "schemas/slots.py"} <= names


@pytest.mark.long
def test_a_project_with_folders_of_the_same_names_can_use_it(wheel: Path, tmp_path: Path):
    """In a new environment, a service whose folders are called like ours asks and runs."""
    venv.create(tmp_path / "env", symlinks=True, with_pip=False)
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    # The dependencies are those of this environment, without the editable checkout.
    (own,) = {Path(path) for path in sys.path if path.endswith("site-packages")}
    for one in own.iterdir():
        if not one.name.startswith(("ayes", "_ayes", "_editable", "__pycache__")):
            (site / one.name).symlink_to(one)
    project = tmp_path / "project"
    for folder in FOLDERS:
        (project / folder).mkdir(parents=True)
        (project / folder / "__init__.py").write_text("")
    (project / "service.py").write_text(SERVICE)
    policy = tmp_path / "policy.toml"
    policy.write_text('[[rule]]\nname = "all"\ntools = ["*"]\nthen = "allow"\n')
    python = tmp_path / "env" / "bin" / "python"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    store = tmp_path / "store"
    ayes = [str(python), "-m", "ayes.interfaces.cli.main"]

    up = subprocess.Popen(
        [*ayes, "up", "--store", str(store), "--policy", str(policy), "-w", "shop", "--no-console"],
        cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert up.stderr
        for line in up.stderr:
            if "Ctrl-C" in line:
                break
        service = subprocess.run(
            [str(python), "service.py", str(store)],
            cwd=project, env=environment, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
    finally:
        up.terminate()
        up.communicate(timeout=60)
    first, *rest = service.stdout.splitlines()
    assert first == "A-17 is refunded"
    assert all(str(project) in line for line in rest)


@pytest.mark.long
def test_what_is_imported_is_declared():
    """Nothing is there only because another package happens to bring it."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(declared["dependencies"])
    for extra in declared["optional-dependencies"].values():
        wanted += extra
    known = {_plain(re.match(r"[\w.-]+", one)[0]) for one in wanted} | WITHOUT_EXTRA
    owners = packages_distributions()
    missing = {
        (name, str(file.relative_to(ROOT)))
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*.py")
        for name in _imported(file)
        if name not in sys.stdlib_module_names and name != "ayes"
        if not known & {_plain(one) for one in owners.get(name, [name])}
    }
    assert missing == set()


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _imported(file: Path) -> set[str]:
    """The packages that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Import(names=names):
                found |= {one.name.partition(".")[0] for one in names}
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module.partition(".")[0])
    return found
