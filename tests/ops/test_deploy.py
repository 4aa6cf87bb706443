"""The files in deploy/ fit the program: its commands, roles, exit codes, versions and packages.

They are started by `make images`, where the tools for it are.
"""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from pages import parse
from paths import ROOT

from ayes.interfaces.cli.setup import OPTIONAL
from ayes.ledger.nats.credentials import Store
from ayes.ops.broker.accounts import ROLES
from ayes.ops.cluster import files
from ayes.ops.workers import KINDS as USUAL
from ayes.ops.workers import OPTIONAL_KINDS, role_of
from ayes.schemas import errors

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "ayes"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
KINDS = (*USUAL, *OPTIONAL_KINDS)
#: What an operator must mend: input, credentials, permissions, the log.
FINAL = [1, 2, 4]


def ayes(words: list[str]) -> str:
    """The command's name, if the command line has all of it, and the consumers and roles exist."""
    for option, known in (("--with", OPTIONAL), ("--role", KINDS)):
        assert {value for one, value in pairwise(words) if one == option} <= set(known)
    return parse([str(word) for word in words])


# --------------------------------------------------------------------------------------- containers


def instructions() -> list[list[tuple[str, str]]]:
    """The Containerfile, stage by stage, and before them what stands before the first."""
    text = (DEPLOY / "Containerfile").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    stages: list[list[tuple[str, str]]] = [[]]
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            stages.append([])
        stages[-1].append((name, rest.strip()))
    return stages


def test_the_image_runs_as_a_user_id_and_without_a_shell():
    """Kubernetes can tell from a number that it is not root."""
    *_, last = instructions()
    found = dict(last)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", found["USER"])
    assert "RUN" not in found
    assert json.loads(found["ENTRYPOINT"]) == ["ayes"]
    json.loads(found["CMD"])
    *_, check = found["HEALTHCHECK"].partition("CMD ")
    program, *words = json.loads(check)
    assert (program, ayes(words)) == ("ayes", "ready")


def test_the_image_has_one_volume_with_all_that_it_writes():
    *_, last = instructions()
    variables = dict(re.findall(r"(\w+)=(\S+)", dict(last)["ENV"]))
    volume = dict(last)["VOLUME"]
    written = {name: variables[name] for name in ("HOME", "AYES_STORE", "XDG_STATE_HOME")}
    assert {Path(path).is_relative_to(volume) for path in written.values()} == {True}
    assert written["AYES_STORE"] != written["XDG_STATE_HOME"]


def test_the_image_is_built_from_files_that_exist():
    """All folders of the package are copied, and nothing that is not there."""
    copied = [
        word
        for stage in instructions()
        for name, rest in stage
        if name == "COPY" and not rest.startswith("--from")
        for word in rest.split()[:-1]
    ]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    packed = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    assert {name.partition("/")[0] for name in packed} <= set(copied)


def locked(name: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE))


def test_the_image_has_the_locked_packages_of_its_extras():
    """Each with the version that is tested, and with a hash; all extras of programs that we run."""
    image = locked("requirements.image.lock")
    assert image.items() <= locked("requirements.lock").items()
    text = (ROOT / "requirements.image.lock").read_text()
    assert len(re.findall(r"^\S+==\S+.*\\$", text, re.MULTILINE)) == len(image)
    [named] = re.findall(r"^IMAGE := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(named.split()) == extras.keys() - {"agents", "analytics", "prove"}
    wanted = [one for extra in named.split() for one in extras[extra]]
    assert {re.split(r"[<>=\[]", one)[0] for one in wanted} <= image.keys()


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def test_the_compose_files_commands_exist(compose):
    """Those of programs and of their health checks."""
    programs = {name: one for name, one in compose["services"].items() if "ayes" in one["image"]}
    variable = re.compile(r"\$\{\w+:-([^}]*)\}")
    assert programs.keys() - {"setup", "console", "monitor"} <= set(KINDS)
    for name, one in programs.items():
        command = [variable.sub(r"\1", word) for word in one["command"]]
        assert ayes(command) == ("work" if name in KINDS else name)
        if "test" in one.get("healthcheck", {}):
            how, program, *words = one["healthcheck"]["test"]
            assert (how, program, ayes(words)) == ("CMD", "ayes", "ready")


def test_the_compose_files_services_are_confined(compose):
    """As nobody special, with a root file system that cannot be written, and no capability."""
    for name, one in compose["services"].items():
        assert one["user"] == "${OWNER_UID:-10001}:${OWNER_GID:-10001}", name
        assert one["read_only"] is True, name
        assert one["cap_drop"] == ["ALL"], name
        assert one["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in one, name
        for port in one.get("ports", []):
            assert port.startswith("127.0.0.1:"), name


def test_the_compose_file_takes_the_files_of_a_cluster(compose, tmp_path):
    """Each path in it is one that `ayes cluster files` writes, as its first lines say."""
    hosts = [name for name in compose["services"] if name.startswith("nats")]
    site = Store(tmp_path / "site")
    files.write_files(site, hosts, ["ana"])
    for name, one in compose["services"].items():
        for volume in one["volumes"]:
            source, inside, *_ = volume.split(":")
            if source.startswith("./site/"):
                assert (tmp_path / source).exists(), f"{name}: {source}"
            if name in hosts:
                assert inside in {str(files.CONFIG), str(files.DATA)}
            if source.endswith("/ca.pem"):
                assert inside == str(files.LOGIN / "ca.pem")
        for source in one.get("env_file", []):
            assert (tmp_path / source).exists(), f"{name}: {source}"


def test_a_node_is_the_same_on_one_host_and_on_three(compose, tmp_path):
    """But for its network and for where its files are."""
    site = Store(tmp_path / "site")
    files.write_files(site, ["a", "b", "c"])
    [alone] = yaml.safe_load((site.path / "a" / "compose.yaml").read_text())["services"].values()
    assert alone.pop("network_mode") == "host"
    for node in ("nats1", "nats2", "nats3"):
        one = dict(compose["services"][node])
        inside = [volume.split(":")[1:] for volume in one.pop("volumes")]
        assert inside == [volume.split(":")[1:] for volume in alone["volumes"]]
        assert one == {name: value for name, value in alone.items() if name != "volumes"}


# ------------------------------------------------------------------------------------------ systemd


def unit(text: str) -> dict[str, list[str]]:
    """The section [Service]; a setting may stand there more than once."""
    _, _, rest = text.partition("[Service]\n")
    found: dict[str, list[str]] = {}
    for line in rest.partition("\n[")[0].splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


UNITS = {file.name: unit(file.read_text()) for file in (DEPLOY / "systemd").glob("*.service")}


def started(settings: dict[str, list[str]]) -> list[str]:
    """The words after `ayes`, with a value for each variable; one without braces may be empty."""
    [line] = settings["ExecStart"]
    program, *words = shlex.split(re.sub(r" \$\w+", "", line))
    assert program == "/opt/ayes/bin/ayes"
    return [re.sub(r"\$\{\w+\}", "https://ayes.example.com", word) for word in words]


@pytest.mark.parametrize("name", UNITS)
def test_the_units_commands_exist(name):
    """A worker's, for each kind. A unit has the name of its command, but for workers that tell."""
    words = started(UNITS[name])
    for kind in KINDS if "%i" in words else [""]:
        command = ayes([kind if word == "%i" else word for word in words])
        assert command in name.replace("tell", "work")


@pytest.mark.parametrize("name", UNITS)
def test_units_start_again_what_can_mend_itself(name):
    """75 and crashes, and nothing that an operator must change."""
    assert UNITS[name]["Restart"] == ["on-failure"]
    assert UNITS[name]["RestartPreventExitStatus"] == [" ".join(map(str, FINAL))]
    assert errors.TRY_AGAIN not in FINAL


def confinement(settings: dict[str, list[str]]) -> dict[str, list[str]]:
    prefixes = ("Protect", "Private", "Restrict", "System", "Capability", "Memory", "Lock", "NoNew")
    return {
        name: values
        for name, values in settings.items()
        if name.startswith((*prefixes, "Proc", "Remove", "UMask"))
    }


def test_all_units_are_confined_alike():
    """That of a node too; none runs as root, and each keeps its files in directories of its own."""
    node = unit(files.SYSTEMD)
    assert confinement(node)["ProtectSystem"] == ["strict"]
    assert len(confinement(node)) > 20
    for settings in UNITS.values():
        assert confinement(settings) == confinement(node)
        assert settings.get("DynamicUser") == ["true"] or settings["User"] == ["ayes"]
        assert settings.get("StateDirectoryMode", ["0700"]) == ["0700"]
    [user] = re.findall(r"^u (\w+) ", (DEPLOY / "systemd" / "ayes.conf").read_text(), re.MULTILINE)
    assert user == "ayes"


def test_units_read_the_logins_of_a_cluster():
    [login] = UNITS["ayes-work@.service"]["EnvironmentFile"]
    assert login == str(files.LOGIN / "%i.env")
    assert {role_of(kind) for kind in KINDS} <= set(ROLES)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd")
def test_systemd_accepts_the_units(tmp_path):
    """But for the program, which this machine does not have there."""
    for name in UNITS:
        text = (DEPLOY / "systemd" / name).read_text()
        (tmp_path / name).write_text(text.replace("/opt/ayes/bin/ayes", "/bin/true"))
    named = [tmp_path / name.replace("@.", "@gate.") for name in UNITS]
    (tmp_path / "ayes-work@gate.service").symlink_to("ayes-work@.service")
    done = subprocess.run(
        ["systemd-analyze", "verify", *named], capture_output=True, text=True, check=False
    )
    assert str(tmp_path) not in done.stderr, done.stderr
    assert "ayes" not in done.stderr, done.stderr


# --------------------------------------------------------------------------------------- Kubernetes


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return yaml.safe_load((CHART / "values.yaml").read_text())


def test_the_charts_values_fit_their_schema(values):
    """Those that are shipped do, also with a console; a misspelt one does not."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    check = jsonschema_rs.validator_for(schema)
    check.validate(values)
    there = values["console"] | {"enabled": True}
    assert check.is_valid(values | {"console": there})
    assert not check.is_valid(values | {"worker": {}})
    assert not check.is_valid(values | {"setup": values["setup"] | {"replicas": 2}})
    assert schema["properties"].keys() - {"global"} == values.keys()


def test_the_charts_commands_exist(values):
    """Workers of the kinds that there are, their probes, the setup and the console."""
    assert values["workers"].keys() <= set(KINDS)
    for kind, worker in values["workers"].items():
        assert ayes(["work", kind, *worker.get("args", [])]) == "work"
        assert worker["secret"] == f"ayes-{kind}"
        assert ayes(["ready", "--role", kind]) == "ready"
    templates = {file.name: file.read_text() for file in (CHART / "templates").iterdir()}
    assert "{command: [ayes, ready, --role, {{ $kind }}]}" in templates["workers.yaml"]
    also = [word for name in values["setup"]["with"] for word in ("--with", name)]
    assert ayes(["setup", "--replicas", values["setup"]["replicas"], *also]) == "setup"
    [console] = re.findall(r"args:\n((?: +- .+\n)+) +env", templates["console.yaml"])
    words = re.findall(r"- (.+)", re.sub(r"\{\{.*?\}\}", "https://ayes.example.com", console))
    assert ayes(words) == "console"
    assert f"values: {FINAL}" in templates["setup.yaml"]
    [monitor] = re.findall(r"args: (\[.+\])", templates["monitor.yaml"])
    assert ayes(yaml.safe_load(monitor)) == "monitor"


def test_the_chart_has_the_versions_of_the_package():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert {chart["version"], chart["appVersion"]} == {PROJECT["project"]["version"]}


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield from leaves(one, (*path, name))
    else:
        yield path, value


def test_nats_own_chart_is_configured_as_a_node_is(tmp_path):
    """The same settings as in the files for hosts of one's own, where the defaults lose facts."""
    given = yaml.safe_load((DEPLOY / "helm" / "nats-values.yaml").read_text())["config"]
    site = Store(tmp_path / "site")
    files.write_files(site, ["a", "b", "c"])
    node = (site.path / "a" / "nats.conf").read_text()
    settings = dict(leaves(given["jetstream"]["merge"]))
    settings |= {
        path: value for path, value in leaves(given["merge"]) if not path[0].endswith("$include")
    }
    for path, value in settings.items():
        assert re.search(rf'\b{path[-1]}: "?{value}"?[,}}\n]', node), path
    cluster = node.partition("cluster {")[2]
    for name in ("name", "ping_interval", "ping_max"):
        assert re.search(rf'\b{name}: "?{given["cluster"]["merge"][name]}"?\n', cluster), name


def test_unit_files_can_be_read():
    """As systemd reads them: sections and settings, and each section once."""
    for file in (DEPLOY / "systemd").glob("*.service"):
        parsed = configparser.ConfigParser(strict=False, interpolation=None)
        parsed.read_string(file.read_text())
        assert parsed.sections() == ["Unit", "Service", "Install"]
