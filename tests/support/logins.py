"""A plain NATS client with the login of one role."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from nats.aio.client import Client

from ayes.ledger.nats.keys import Key


class Somebody:
    """A connection as a role, with the broker's denials."""

    def __init__(self, role):
        self.role = role
        self.client = Client()
        self.problems = []
        self._denied = asyncio.Event()

    async def heard(self, problem):
        self.problems.append(str(problem).lower())
        self._denied.set()

    def denied(self, subject):
        return any(f'"{subject.lower()}"' in problem for problem in self.problems)

    async def ask(self, subject, body=None, headers=None):
        """The server's answer, or "denied"."""
        self.problems.clear()
        self._denied.clear()
        raw = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        asking = asyncio.ensure_future(
            self.client.request(subject, raw, timeout=60, headers=headers)
        )
        denial = asyncio.ensure_future(self._denied.wait())
        await asyncio.wait((asking, denial), return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            asking.cancel()
            assert self.denied(subject), self.problems
            return "denied"
        denial.cancel()
        return (await asking).data

    async def json(self, subject, body=None):
        return json.loads(await self.ask(subject, body))

    async def may_say(self, subject):
        """Whether the broker accepts a message.

        It answers a later request after a denial, so no denial by then means yes.
        """
        self.problems.clear()
        await self.client.publish(subject, b"", reply=self.client.new_inbox())
        await self.client.request("$JS.API.INFO", timeout=60)
        return not self.denied(subject)

    async def may_hear(self, subject, queue=""):
        """Whether the broker accepts a subscription."""
        self.problems.clear()
        await self.client.subscribe(subject, queue=queue)
        await self.client.request("$JS.API.INFO", timeout=60)
        return not self.problems


def signing(client, login):
    """What a plain client signs on with: a password, or the key of one of the site's own logins."""
    if not login.seed:
        return {"user": login.user, "password": login.password}
    key = Key(seed=login.seed)
    client._public_nkey = key.public  # it takes seeds with another package only
    return {"signature_cb": key.answer}


def signed_on(server, role, inbox=""):
    """A plain client of a role; with the token of an inbox of its own, or without."""
    return connected(server.store.login(role), role, inbox)


@asynccontextmanager
async def connected(login, name, inbox="") -> AsyncGenerator[Somebody]:
    """A plain client with this login."""
    who = Somebody(name)
    await who.client.connect(
        login.url,
        **signing(who.client, login),
        name=f"somebody inbox={inbox}" if inbox else "somebody",
        inbox_prefix=f"_INBOX.{name}.{inbox or '_'}".encode(),
        error_cb=who.heard,
        max_reconnect_attempts=1,
    )
    try:
        yield who
    finally:
        await who.client.close()
