"""Channels: the ways out to people, as the section `notices` of the settings describes them.

The URLs are those of apprise, which knows mail, ntfy, Slack, Teams and some hundred others;
`{address}` is replaced by the address of a contact, percent-encoded. They have passwords in them,
so no message or log has a URL. A channel with a `subject` in place of a URL is Web Push
(consumers/notices/push.py): the address is the person, who has added devices in the console.

A channel whose last try failed is *failing*, which `ayes status` shows. The messages that waited
for it share that failure: so however many there are, a dead channel is given up on as soon as one
message would be, and the others never wait for it.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, Final, Self
from urllib.parse import quote

from pydantic import AfterValidator, Field, field_validator, model_validator

from ayes.consumers.notices.devices import DeviceFile
from ayes.consumers.notices.push import Push
from ayes.projections.notices import Notice
from ayes.schemas.backoff import Backoff
from ayes.schemas.errors import BadInput
from ayes.schemas.logs import get_logger
from ayes.schemas.settings import Secret
from ayes.schemas.toml_files import TomlModel, checked_token
from ayes.schemas.visible import visible

_log: Final = get_logger("ayes.consumers.notices.channels")

INSTALL: Final = "install ayes[notify]"
#: The longest pause before the next try.
PAUSES: Final = Backoff(1.0, 60.0, jitter=0.5)
_MAX_WHY: Final = 300
_ADDRESS: Final = "{address}"
_SUBJECT: Final = re.compile(r"mailto:[^@\s]+@[^@\s]+|https://\S+")


class Channel(TomlModel):
    """One way out: with a URL of apprise, or with a subject, which makes it Web Push."""

    url: Secret = ""
    #: Whom push services can ask about what is sent.
    subject: str = ""
    #: Of Web Push: whether a push service may be on this machine or in its network.
    allow_private: bool = False
    #: Of one try.
    timeout_s: Annotated[float, Field(gt=0, le=300)] = 10.0
    #: Then the next contact; then the notice is parked.
    tries: Annotated[int, Field(ge=1, le=20)] = 5
    #: Messages that are sent at the same time.
    at_once: Annotated[int, Field(ge=1, le=64)] = 8

    @field_validator("url")
    @classmethod
    def _is_understood(cls, url: str) -> str:
        if _service(url, "x", 1) is None:
            scheme = url.partition("://")[0] if "://" in url else "?"
            raise ValueError(
                f"apprise does not understand the URL, which begins with {scheme}://. "
                "github.com/caronc/apprise/wiki has the form of each."
            )
        return url

    @model_validator(mode="after")
    def _is_one_or_the_other(self) -> Self:
        if bool(self.url) is bool(self.subject):
            raise ValueError("a channel has either a url, or the subject of Web Push.")
        if self.subject and not _SUBJECT.fullmatch(self.subject):
            raise ValueError(
                f"the subject {self.subject!r} is not one. Write mailto: and the address of "
                "an operator, or https:// and a page."
            )
        return self


def _can_be_named(channels: dict[str, Channel]) -> dict[str, Channel]:
    for name in channels:
        checked_token("channel", name)
    return channels


#: The section `notices` of the settings: the channels by their names.
type ChannelsByName = Annotated[
    dict[str, Channel], Field(min_length=1), AfterValidator(_can_be_named)
]


class NotSent(Exception):
    """No try succeeded. The message is a clause that says why."""


#: Called when a channel begins to fail, with the reason, and when it works, with an empty one.
type OnChange = Callable[[str, str], Awaitable[None]]


class Channels:
    """Sends notices, and knows which channels fail."""

    def __init__(
        self,
        channels: Mapping[str, Channel],
        devices: DeviceFile | None = None,
        *,
        pauses: Backoff = PAUSES,
    ) -> None:
        self._lines = {name: _Line(channel, devices) for name, channel in channels.items()}
        self._pauses = pauses

    def push(self, name: str) -> Push | None:
        """What notifies people's devices; None: the channel of this name is another one."""
        line = self._lines.get(name)
        return line.push if line is not None else None

    async def send(
        self, contact: str, notice: Notice, on_change: OnChange, to: str | None = None
    ) -> None:
        """Send one message, trying as often as its channel says.

        Args:
            contact: `channel:address`.
            to: the person who is told, on devices of their own only; empty: it is a room; None:
                the one whom the address names.

        Raises:
            NotSent: no try succeeded.
        """
        name, _, address = contact.partition(":")
        if (line := self._lines.get(name)) is None:
            why = f"the settings have no channel {name!r}"
            await on_change(name, why)
            raise NotSent(why)
        if line.push and to not in {None, address}:
            raise NotSent(f"{contact} is for devices of {address} and not of {to or 'a room'}")
        if line.push and not line.push.reaches(address):  # the channel itself works
            raise NotSent(f"{address} has added no device in the console")
        for tries in range(1, line.channel.tries + 1):
            problem = await line.send(address, notice)
            if line.changes(problem):
                await on_change(name, problem)
            if not problem:
                return
            _log.warning("a notice was not sent", channel=name, problem=problem, tries=tries)
            if tries < line.channel.tries:
                await asyncio.sleep(self._pauses.pause_s(tries))
        raise NotSent(f"{name}: {problem}")

    def close(self) -> None:
        for line in self._lines.values():
            line.threads.shutdown(wait=False, cancel_futures=True)


class _Line:
    """A channel in use, with threads of its own: apprise blocks for as long as a try may take."""

    def __init__(self, channel: Channel, devices: DeviceFile | None) -> None:
        self.channel = channel
        self.push: Push | None = None
        if channel.subject:
            assert devices is not None, "settings are read beside a store"
            self.push = Push(
                devices,
                channel.subject,
                timeout_s=channel.timeout_s,
                allow_private=channel.allow_private,
            )
        # A thread may outlive its try a little, until its socket gives up.
        self.threads = ThreadPoolExecutor(2 * channel.at_once, thread_name_prefix="notify")
        self._room = asyncio.Semaphore(channel.at_once)
        #: When the last try failed, on the event loop's clock, and why.
        self._failed: tuple[float, str] | None = None
        #: What was last reported; None: nothing yet.
        self._reported: bool | None = None

    async def send(self, address: str, notice: Notice) -> str:
        """Try once; returns why it failed, or an empty string."""
        clock = asyncio.get_running_loop()
        began = clock.time()
        async with self._room:
            if self.push is not None:  # each device can fail by itself
                return await self.push.send(address, notice)
            if self._failed is not None and self._failed[0] > began:
                return self._failed[1]
            url, timeout_s = self.channel.url, self.channel.timeout_s
            trying = clock.run_in_executor(self.threads, _try, url, address, timeout_s, notice)
            try:
                async with asyncio.timeout(timeout_s):
                    problem = await trying
            except TimeoutError:
                problem = f"no answer within {timeout_s:g} s"
            self._failed = (clock.time(), problem) if problem else None
            return problem

    def changes(self, problem: str) -> bool:
        """Whether this is news: it fails or works, unlike when it was last reported."""
        if self._reported is bool(problem):
            return False
        self._reported = bool(problem)
        return True


def _try(url: str, address: str, timeout_s: float, notice: Notice) -> str:
    """Send one message; returns why it was not sent, or an empty string. Blocks."""
    try:
        service = _service(url, address, timeout_s)
        if service is None:
            return f"the address {visible(address)!r} is not one of this channel"
        result = service.notify(title=notice.subject, body=notice.body, body_format="text")
    except Exception as problem:  # noqa: BLE001 - a plugin may fail in any way
        return f"{type(problem).__name__} in apprise"
    if result:
        return ""
    said = [entry.message for entry in result.logs()]
    return _cut(visible(said[-1]).rstrip(".")) if said else "it was not accepted"


def _service(url: str, address: str, timeout_s: float) -> Any:
    """An apprise object for one recipient; None if it does not understand the URL."""
    if find_spec("apprise") is None:
        raise BadInput(f"notices need apprise, which is not installed: {INSTALL}.")
    apprise = import_module("apprise")  # takes half a second, and few processes need it
    # What it has to say is in its results, and its lines would say less than ours.
    logging.getLogger("apprise").propagate = False
    asset = apprise.AppriseAsset(app_id="ayes", secure_logging=True)
    plugin = apprise.Apprise.instantiate(
        url.replace(_ADDRESS, quote(address, safe="")), asset=asset, suppress_exceptions=True
    )
    if plugin is None:
        return None
    plugin.socket_connect_timeout = plugin.socket_read_timeout = timeout_s
    service = apprise.Apprise(asset=asset)
    service.add(plugin)
    return service


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_WHY else f"{text[:_MAX_WHY]}\N{HORIZONTAL ELLIPSIS}"
