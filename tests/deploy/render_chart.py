"""Renders a Helm chart with Helm's own engine, and checks it; run by the Python of .venv/tools.

    python render_chart.py CHART NAME KUBERNETES < VALUES

Reads values as YAML, and prints JSON: what Helm's linter has to say, and the rendered resources. A
resource that does not fit its schema in that version of Kubernetes ends it with 1.
"""

import json
import sys

import helm_python
import kubernetes_validate
import yaml

chart, name, version = sys.argv[1:]
values = yaml.safe_load(sys.stdin) or {}
report = helm_python.lint(chart, values, strict=True, kube_version=f"v{version}.0")
resources = []
with helm_python.Chart.load(chart) as loaded:
    for text in loaded.render(values, name=name, namespace="approvals").values():
        for resource in filter(None, yaml.safe_load_all(text)):
            kubernetes_validate.validate(resource, version, strict=True)
            resources.append(resource)
messages = [one for one in report["messages"] if one["severity"] > 1]
print(json.dumps({"messages": messages, "errors": report["errors"], "resources": resources}))
