"""Two OpenID providers that have nothing in common, at which a test signs people in.

`oidc-provider-mock` is of the locked environment. `oidc-provider` is from npm, and a part of `make
conformance`: it is certified, rotates its refresh tokens, and names groups in its userinfo only.
"""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote, urljoin

import httpx
import npm
import pytest
from oidc_provider_mock import run_server_in_thread

_PACKAGE = "oidc-provider@9.13.3"
#: Of the client `ayes`.
SECRET = "of the client"


class Provider:
    """A provider at which somebody's claims change."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer

    def put(self, who: str, **claims: object) -> None:
        """From now on these are the claims about a subject."""
        httpx.put(f"{self.issuer}/users/{quote(who)}", json=claims).raise_for_status()

    def forget_tokens(self, who: str) -> None:
        httpx.post(f"{self.issuer}/users/{quote(who)}/revoke-tokens").raise_for_status()

    async def sign_in(self, asked: str, who: str, **form: str) -> str:
        """The URL to which the provider sends somebody back who was sent to it with this one."""
        async with httpx.AsyncClient(trust_env=False, timeout=60) as browser:
            there = await browser.get(asked)
            while there.is_redirect:
                asked = urljoin(asked, there.headers["location"])
                if not asked.startswith(self.issuer):
                    return asked
                there = await browser.get(asked)
            there = await browser.post(asked, data={"sub": who} | form)
            while (back := there.headers["location"]).startswith(self.issuer):
                there = await browser.get(back)
            return back


@contextmanager
def _mock() -> Iterator[Provider]:
    with run_server_in_thread(require_nonce=True) as server:
        yield Provider(f"http://localhost:{server.server_port}")


@contextmanager
def _certified() -> Iterator[Provider]:
    packages = npm.installed(_PACKAGE)
    with socket.create_server(("localhost", 0)) as free:
        port = str(free.getsockname()[1])
    with TemporaryDirectory() as folder:
        program = Path(folder) / "provider.mjs"
        program.write_text(Path(__file__).with_name("openid_provider.mjs").read_text())
        program.with_name("node_modules").symlink_to(packages / "node_modules")
        with subprocess.Popen(
            [npm.node(), str(program), port, SECRET],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                assert "listening" in process.stdout.readline()
                yield Provider(f"http://localhost:{port}")
            finally:
                process.terminate()


#: The parameters of a fixture: each makes a provider.
PROVIDERS = [
    pytest.param(_mock, id="oidc-provider-mock"),
    pytest.param(
        _certified,
        id="oidc-provider",
        marks=pytest.mark.skipif(
            not os.environ.get("CONFORMANCE"),
            reason="asked by `make conformance`, which installs from npm",
        ),
    ),
]
