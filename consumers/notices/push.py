"""Web Push: notices as notifications of people's own browsers and phones (RFC 8030).

What is pushed is encrypted for the device, whose screen anybody may see. So it has the subject and
the first line of a notice, never arguments, and where its call is. The browser's push service
chose the address, so requests go where those of webhooks may (consumers/webhooks/requests.py).

A notification of a call that waits for nobody any more is taken away with a second message. Both
have the same topic, so a device that was off meanwhile is only sent the newer one.
"""

import asyncio
import hashlib
import time
from collections.abc import Iterable
from functools import partial
from http import HTTPStatus
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

import msgspec

from ayes.consumers.notices.devices import Device, DeviceFile
from ayes.consumers.webhooks.endpoints import Endpoint
from ayes.consumers.webhooks.requests import HttpAnswer, Sender
from ayes.projections.notices import Notice
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import CallRef

#: For how long a push service keeps a message for a device that is off. News is no older either.
_KEPT_S: Final = 86_400
#: Push services take no token that is valid for more than a day.
_TOKEN_LASTS_S: Final = 3600
#: Of a body, in characters: a push service takes 4 kB in all.
_MAX_BODY: Final = 300
_GONE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.GONE})


class Push:
    """Sends to the devices of people.

    Args:
        subject: whom a push service can ask about what is sent, as `mailto:` or `https:`.
        allow_private: whether a device's push service may be on this machine or in its network.

    Raises:
        BadInput: the packages for it are not installed.
    """

    def __init__(
        self, devices: DeviceFile, subject: str, *, timeout_s: float, allow_private: bool
    ) -> None:
        if find_spec("pywebpush") is None:
            raise BadInput("Web Push needs pywebpush, which is not installed: install ayes[push].")
        self._file, self._subject, self._timeout_s = devices, subject, timeout_s
        self._allow_private = allow_private
        self._sender = Sender()
        devices.with_key()

    def reaches(self, person: str) -> bool:
        """Whether this person has a device."""
        return bool(self._file.read().of(person))

    async def send(self, person: str, notice: Notice) -> str:
        """Notify a person; returns why no device was sent it, or an empty string."""
        body = notice.body.partition("\n")[0][:_MAX_BODY]
        message = {"title": notice.subject, "body": body, "tag": "digest", "path": "/?q=is:mine"}
        if len(notice.calls) == 1:
            message |= _of_call(notice.calls[0])
        if not notice.asks:  # the notification of a question is taken away, and news is not
            message["tag"] += " news"
        return await self._send(person, notice.calls, message)

    async def close(self, person: str, call: CallRef, title: str) -> str:
        """Take away the notification of a call; returns as `send`."""
        return await self._send(person, (call,), _of_call(call) | {"title": title, "closes": "yes"})

    async def _send(self, person: str, calls: Iterable[CallRef], message: dict[str, str]) -> str:
        found, within = self._file.read(), {one.workspace for one in calls}
        mine = [one for one in found.of(person) if within <= {*(one.workspaces or within)}]
        posting = (self._post(one, found.key, message) for one in mine)
        answers = await asyncio.gather(*posting)
        gone = {
            one.endpoint for one, said in zip(mine, answers, strict=True) if said.status in _GONE
        }
        if gone:
            self._file.remove(lambda one: one.endpoint in gone)
        if any(not one.why for one in answers):
            return ""
        return answers[-1].why if answers else f"{person} has no device that may be sent it"

    async def _post(self, device: Device, key: str, message: dict[str, str]) -> HttpAnswer:
        to = Endpoint(
            name="push",
            url=device.endpoint,
            secret="",
            origin="",
            allow_private=self._allow_private,
            timeout_s=self._timeout_s,
        )
        topic = hashlib.sha256(message["tag"].encode()).hexdigest()[:32]
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Encoding": "aes128gcm",
            "TTL": str(_KEPT_S),
            "Topic": topic,
            "Urgency": "high",
        }
        try:
            sealed = partial(_sealed, device, key, self._subject, msgspec.json.encode(message))
            token, content = await asyncio.to_thread(sealed)
        except Exception as problem:  # noqa: BLE001 - a browser sends what it likes as its keys
            return HttpAnswer(why=f"{type(problem).__name__} in pywebpush")
        return await self._sender.send(to, headers | token, content)


def _of_call(call: CallRef) -> dict[str, str]:
    return {"tag": str(call), "path": f"/calls/{call}"}


def _sealed(device: Device, key: str, subject: str, content: bytes) -> tuple[dict[str, str], bytes]:
    """The token for the push service, and what only the device can read."""
    from py_vapid import Vapid02
    from pywebpush import WebPusher

    where = urlsplit(device.endpoint)
    claims = {
        "sub": subject,
        "aud": f"{where.scheme}://{where.netloc}",
        "exp": int(time.time()) + _TOKEN_LASTS_S,
    }
    signing = Vapid02.from_raw(key.encode())
    signing.conf = {"no-strict": True}  # its own idea of `sub` is stricter than RFC 8292
    keys = {"p256dh": device.p256dh, "auth": device.auth}
    sealing = WebPusher({"endpoint": device.endpoint, "keys": keys})
    return signing.sign(claims), sealing.encode(content)["body"]
