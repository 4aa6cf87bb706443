"""The adapters whose frameworks cannot be in the locked environment, each in one of its own. Part
of `make conformance`.

An environment has the project with all its extras, and the framework: the versions are those that
the resolver finds for both.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not os.environ.get("CONFORMANCE"),
        reason="run by `make conformance`, which makes an environment for each framework",
    ),
]

SHARED = (
    "adapters/test_matrix.py",
    "adapters/test_outputs.py",
    "docs/test_examples.py",
    "promises/races/test_killed_agents.py",
)
#: By adapter: its packages, its tests, and those among them that are its own.
FRAMEWORKS = {
    "langchain": (
        ("langchain>=1.4", "langgraph>=1.2", "langgraph-checkpoint-sqlite>=3"),
        SHARED,
        "langchain",
    ),
    "openai_agents": (
        ("openai-agents>=0.24",),
        (*SHARED, "adapters/test_openai_agents.py"),
        "openai_agents",
    ),
    "claude_agent_sdk": (
        ("claude-agent-sdk>=0.2.187",),
        (
            "docs/test_examples.py",
            "adapters/test_claude_agent_sdk.py",
            "interfaces/mcp/test_claude_code_gateway.py",
        ),
        "claude",
    ),
}


def run(*line: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    return subprocess.run(line, cwd=cwd, env=kept, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("adapter", FRAMEWORKS)
def test_an_adapter_with_its_framework(adapter: str, tmp_path: Path):
    """Its rows of the crash matrix, its killed agent and its example, none of them skipped."""
    packages, files, own = FRAMEWORKS[adapter]
    uv = shutil.which("uv") or str(Path(sys.prefix) / "uv" / "bin" / "uv")
    if not Path(uv).exists():
        pytest.skip("there is no uv to make an environment with")
    python = str(tmp_path / "env" / "bin" / "python")
    # The oldest Python of the project may have no wheels for a framework; this one runs the tests.
    made = run(uv, "venv", "--quiet", "--python", sys.executable, str(tmp_path / "env"))
    assert made.returncode == 0, made.stderr
    added = run(
        *(uv, "pip", "install", "--quiet", "--python", python, "--group", "pyproject.toml:test"),
        *(
            "--editable",
            ".[dev,agents,analytics,reports,web,notify,webhooks,slack,mcp,metrics,otel]",
        ),
        *packages,
    )
    if added.returncode:
        pytest.skip(f"its packages cannot be had: {added.stderr.strip().splitlines()[-1]}")
    paths = [str(ROOT / "tests" / name) for name in files]
    ended = run(python, "-m", "pytest", "-q", "-n", "0", "-k", own, *paths)
    said = ended.stdout.splitlines()[-1] if ended.stdout else ended.stderr
    assert ended.returncode == 0, ended.stdout[-4000:]
    assert int(re.search(r"(\d+) passed", said)[1]) >= 10, said
    assert "skipped" not in said, ended.stdout[-4000:]
