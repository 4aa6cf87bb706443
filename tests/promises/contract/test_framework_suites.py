"""The approval tests of frameworks, with every decision routed through the ledger. Part of `make
conformance`: they need a checkout of the framework, which is in no package.

    git clone https://github.com/openai/openai-agents-python /tmp/openai    # at the tag below
    UPSTREAM_OPENAI_AGENTS=/tmp/openai make conformance

As many tests must pass as without the ledger, and decisions must have gone through it.
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

#: By the variable with the checkout: its packages, at the version of the checkout, and the tests.
UPSTREAM = {
    "UPSTREAM_PYDANTIC_AI": (
        (
            "pydantic-ai-slim[openai,anthropic,google,mistral,groq,cohere,bedrock,logfire]==2.33.0",
            *("inline-snapshot", "dirty-equals", "vcrpy", "blockbuster<1.6", "pytest-examples"),
            *("pytest-mock", "pytest-recording", "pytest-xdist", "pytest-timeout", "genai-prices"),
            *("pydantic-evals==2.33.0", "devtools", "fastmcp", "mcp-types"),
        ),
        ("tests/test_tools.py", "tests/test_capabilities.py", "-k", "defer or approv"),
    ),
    # The source distribution has the tests.
    "UPSTREAM_LANGCHAIN": (
        ("langchain==1.4.7", "pytest-asyncio", "pytest-mock", "pytest-socket", "syrupy"),
        (
            *("--noconftest", "-o", "addopts=", "-o", "asyncio_mode=auto"),
            "tests/unit_tests/agents/middleware/implementations/test_human_in_the_loop.py",
        ),
    ),
    "UPSTREAM_OPENAI_AGENTS": (
        ("openai-agents==0.22.0", "pytest-asyncio", "pytest-mock", "inline-snapshot"),
        ("tests/test_hitl_error_scenarios.py", "tests/test_hitl_session_scenario.py"),
    ),
}


def run(*line: str, cwd: Path = ROOT, **more: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    ended = subprocess.run(
        line, cwd=cwd, env=kept | more, capture_output=True, text=True, check=False
    )
    return ended.stdout + (ended.stderr if ended.returncode else "")


def passed(told: str) -> int:
    found = re.search(r"(\d+) passed", told)
    return int(found[1]) if found else 0


@pytest.mark.parametrize("variable", UPSTREAM)
def test_as_many_pass_as_without_the_ledger(variable: str, tmp_path: Path):
    """A vote written, and read back over another connection, is what upstream's tests hand on."""
    folder = os.environ.get(variable)
    if not folder:
        pytest.skip(f"{variable} does not name a checkout")
    packages, tests = UPSTREAM[variable]
    uv = shutil.which("uv") or str(Path(sys.prefix) / "uv" / "bin" / "uv")
    python = str(tmp_path / "env" / "bin" / "python")
    run(uv, "venv", "--quiet", "--python", sys.executable, str(tmp_path / "env"))
    run(uv, "pip", "install", "--quiet", "--python", python, "pytest", *packages)
    run(uv, "pip", "uninstall", "--quiet", "--python", python, "huggingface-hub")
    added = run(uv, "pip", "install", "--quiet", "--python", python, "--editable", ".[dev]")
    if added:
        pytest.skip(f"its packages cannot be had: {added.strip().splitlines()[-1]}")
    line = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    paths = str(ROOT / "tests" / "support")
    before = run(*line, cwd=Path(folder))
    after = run(*line, "-p", "upstream_decisions", cwd=Path(folder), PYTHONPATH=paths)
    assert passed(before) >= 25, before[-3000:]
    assert passed(after) == passed(before), after[-3000:]
    assert int(re.search(r"(\d+) decisions went through the ledger", after)[1]) >= 15, after[-500:]
