"""How .venv is built: nothing is installed that is not pinned by version and hash."""

import re

from paths import ROOT

CI = ROOT / ".ci"


def test_the_installer_itself_is_pinned_by_version_and_hash():
    """All else is installed by uv, so what installs uv asks for its hash too (M8)."""
    installs = [
        line
        for line in (CI / "setup").read_text().splitlines()
        if re.search(r"pip (install|sync)", line)
    ]
    by_hash = [line for line in installs if "--require-hashes" in line]
    assert [line for line in installs if line not in by_hash] == [
        '"$uv" pip install --quiet --no-deps --no-build-isolation --editable .'
    ]
    assert any("-r .ci/uv.txt" in line for line in by_hash)
    pinned = [line for line in (CI / "uv.txt").read_text().splitlines() if not line.startswith("#")]
    assert re.fullmatch(r"uv==\d+\.\d+\.\d+ \\", pinned[0])
    assert all(re.fullmatch(r" +--hash=sha256:[0-9a-f]{64}( \\)?", line) for line in pinned[1:])
