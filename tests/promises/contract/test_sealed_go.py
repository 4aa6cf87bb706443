"""A seal, checked by the library of Go's checksum database; both make the same proofs.

Part of `make conformance`, which installs Go and that library where it may (.ci/go).
"""

import base64
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from paths import ROOT

from ayes.ledger import seal
from ayes.ledger.nats.credentials import Store
from ayes.ledger.seal import Checkpoint, MerkleTree, Proofs, SignerKey
from ayes.ops.sealing.files import SealFiles

pytestmark = pytest.mark.skipif(
    not os.environ.get("CONFORMANCE"), reason="asked by `make conformance`, which installs Go"
)

#: The sources of Debian's packages, which are compiled without modules and without a network.
SOURCES = Path("/usr/share/gocode")
KEY = SignerKey("approvals.example.com/0123456789abcdef0123456789abcdef", bytes(range(32)))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("go") or not (SOURCES / "src/golang.org/x/mod/sumdb").exists():
        pytest.skip("Go and its checksum database are not here; `.ci/go` installs them as root")
    made = tmp_path_factory.mktemp("go") / "sealed"
    environment = os.environ | {"GO111MODULE": "off", "GOPATH": str(SOURCES)}
    environment |= {"GOCACHE": str(made.parent / "cache"), "GOFLAGS": ""}
    source = ROOT / "tests" / "support" / "sealed.go"
    for command in (["go", "vet", source], ["go", "build", "-o", made, source]):
        subprocess.run(command, check=True, env=environment)
    return made


@pytest.mark.parametrize("size", [2, 255, 256, 257, 700, 65_535, 65_536, 65_537])
def test_go_verifies_a_seal_and_makes_the_same_proofs(tmp_path: Path, program: Path, size: int):
    files, tree = SealFiles(Store(tmp_path)), MerkleTree()
    leaves = [seal.leaf_hash(seal.leaf(n, n, b"ledger.shop", b"{}")) for n in range(size)]
    files.write([*tree.add(leaves), *tree.edge()])
    note = KEY.note(Checkpoint(KEY.public.name, size, tree.root()))
    files.publish(note, files.policy())
    ours, numbers = Proofs(size, files.tile), sorted({1, size // 3 or 1, size // 2, size - 1})
    command = [program, files.folder, str(KEY.public), *map(str, numbers)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    proofs = [
        " ".join([kind, *(base64.b64encode(one).decode() for one in proof)])
        for number in numbers
        for kind, proof in (
            ("inclusion", ours.inclusion(number)),
            ("consistency", ours.consistency(number)),
        )
    ]
    assert done.stdout.splitlines() == proofs
    command[2] = str(SignerKey(KEY.public.name).public)
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1
