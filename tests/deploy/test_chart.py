"""The Helm chart and the values for NATS' own, rendered by Helm's engine."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from containers import run
from paths import ROOT

from ayes.ledger.nats.credentials import Store
from ayes.ops.broker.server import find_binary
from ayes.ops.cluster.files import write_files

HELM = ROOT / "deploy" / "helm"
#: The oldest that the chart says it runs on, and the newest whose schemas are there.
VERSIONS = ("1.30", "1.37")
CONSOLE = {"console": {"enabled": True}}
#: As the comments of values.yaml have them.
TELLING = {
    "setup": {"with": ["closer", "notifier", "notifier-later", "slack"]},
    "workers": {
        "notifier": {"replicas": 1, "secret": "ayes-notifier", "files": "ayes-notifier-files"},
        "slack": {"replicas": 1, "files": "ayes-slack-files"},
    },
}
PODS = ("nats-0", "nats-1", "nats-2")


def render(tools: Path, chart: Path, values: Any, version: str, name: str = "ayes") -> Any:
    script = Path(__file__).with_name("render_chart.py")
    text = yaml.safe_dump(values)
    return json.loads(run(tools / "python", script, chart, name, version, input=text))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", [{}, CONSOLE, TELLING], ids=["workers", "console", "telling"])
def test_the_chart_renders_to_resources_of_kubernetes(tools, values, version):
    """Helm's linter has no warning, and each resource fits its schema, without unknown fields."""
    made = render(tools, HELM / "ayes", values, version)
    assert (made["messages"], made["errors"]) == ([], [])
    names = {(one["kind"], one["metadata"]["name"]) for one in made["resources"]}
    assert {("Deployment", "ayes-gate"), ("PodDisruptionBudget", "ayes-gate")} <= names
    assert (("Service", "ayes-console") in names) == ("console" in values)
    assert (("Deployment", "ayes-slack") in names) == ("workers" in values)


def test_no_pod_is_root_or_has_a_password_in_it(tools):
    """Logins are Secrets, by name; each pod has a network policy, and no token of the cluster."""
    resources = render(tools, HELM / "ayes", CONSOLE | TELLING, VERSIONS[0])["resources"]
    pods = {
        one["metadata"]["name"]: one["spec"]["template"]
        for one in resources
        if one["kind"] in {"Deployment", "Job"}
    }
    assert len(pods) == 8
    policies = [
        one["spec"]["podSelector"]["matchLabels"]
        for one in resources
        if one["kind"] == "NetworkPolicy"
    ]
    for name, pod in pods.items():
        spec, labels = pod["spec"], pod["metadata"]["labels"]
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["runAsUser"] == 10001, name
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True, name
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["capabilities"] == {"drop": ["ALL"]}, name
            assert "://" not in str(container.get("env", "")), name
        assert [one for one in policies if one.items() <= labels.items()], name
    assert "Secret" not in {one["kind"] for one in resources}


def test_values_that_cannot_be_are_refused(tools):
    for wrong in ({"worker": {}}, {"console": {"enabled": "yes"}}):
        with pytest.raises(pytest.fail.Exception, match="don't meet the specifications"):
            render(tools, HELM / "ayes", wrong, VERSIONS[0])


@pytest.mark.skipif(
    not os.environ.get("NATS_CHART"), reason="NATS_CHART names no copy of the chart"
)
def test_a_node_of_nats_own_chart_starts(tools, tmp_path):
    """With the configuration and environment of each pod, and the files of `ayes cluster files`."""
    values = yaml.safe_load((HELM / "nats-values.yaml").read_text())
    chart = Path(os.environ["NATS_CHART"])
    resources = render(tools, chart, values, VERSIONS[0], "nats")["resources"]
    [config] = [one["data"]["nats.conf"] for one in resources if one["kind"] == "ConfigMap"]
    [pod] = [one["spec"]["template"] for one in resources if one["kind"] == "StatefulSet"]
    [container] = pod["spec"]["containers"]
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    assert {"/etc/nats-certs/nats", "/etc/nats-accounts", "/etc/nats-ca-cert"} <= mounts.keys()

    site = Store(tmp_path / "site")
    write_files(site, [f"{name}.nats-headless" for name in PODS], ["ana"])
    for name in PODS:
        # What the Secrets of docs/running.md have in them, where the pod mounts them.
        root = tmp_path / name
        folder = site.path / f"{name}.nats-headless"
        for path, source in {
            f"etc/nats-certs/nats/{name}.pem": folder / "node.pem",
            f"etc/nats-certs/nats/{name}.key": folder / "node.key",
            "etc/nats-ca-cert/ca.pem": site.path / "ca.pem",
            "etc/nats-accounts/accounts.conf": folder / "accounts.conf",
        }.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(source.read_bytes())
        (root / "etc" / "nats-config").mkdir()
        there = root / "etc" / "nats-config" / "nats.conf"
        text = config.replace('"/etc/', f'"{root}/etc/').replace("/var/run/nats", str(root))
        there.write_text(text.replace('"/data"', f'"{root}/data"'))
        environment = {"POD_NAME": name}
        for one in container["env"]:
            if value := one.get("value"):
                value = value.replace("$(POD_NAME)", name).replace("/etc/", f"{root}/etc/")
                environment[one["name"]] = value
        done = subprocess.run(
            [find_binary(), "-t", "-c", there],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
