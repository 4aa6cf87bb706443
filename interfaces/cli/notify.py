"""Commands about notices: try a channel; and the set-up that a notifier needs."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final

from ayes.consumers.notices.channels import Channel, Channels, NotSent
from ayes.consumers.notices.devices import DeviceFile
from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import JsonOption, SettingsOption, StoreOption, argument
from ayes.interfaces.cli.settings import needed, settings_of
from ayes.ledger.call import Call
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.link_key import link_key as key_of_links
from ayes.ops.tokens import AccessFile
from ayes.ops.workers import Notifying
from ayes.projections.notices import Notice
from ayes.projections.recipients import QUESTIONS, Notification
from ayes.schemas.errors import BadInput, Unavailable
from ayes.schemas.links import action_token, open_link

app: Final = commands()

_TRIAL: Final = Notice(
    "ayes: this channel works",
    "Somebody tried this channel with `ayes notify test`. Nothing is needed of you.",
)


@app.callback()
def notify() -> None:
    """Tell people that something is needed of them."""


@command(app, "test", examples="ayes notify test mail:ana@example.org")
async def try_channel(
    contact: Annotated[
        str,
        argument(
            "CHANNEL[:ADDRESS]", "As in [contacts] of the policy; no address if the URL has none."
        ),
    ],
    settings: SettingsOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Send one message through a channel, once."""
    known = needed(settings_of(store, settings, "notices").notices, "notices", "`ayes notify`")
    name = contact.partition(":")[0]
    if name not in known:
        raise BadInput(f"there is no channel {name!r}. There are: {', '.join(known)}.")
    once = {name: known[name].model_copy(update={"tries": 1})}
    sending = Channels(once, DeviceFile(Store(store)))

    async def on_change(_channel: str, _why: str) -> None:
        """Nobody else needs to know."""

    try:
        await sending.send(contact, _TRIAL, on_change)
    except NotSent as problem:
        raise Unavailable(f"the message was not sent. {problem}.") from None
    finally:
        sending.close()
    Session(store, None, json).print({"channel": name, "sent": True}, f"{name} took the message.")


def notifying_of(
    session: Session, channels: Mapping[str, Channel], console_url: str, link_key: Path | None
) -> Notifying:
    """What the notifier sends through, and how it makes links.

    Raises:
        BadInput: there is no key for the links.
        BadFile: the key is wrong.
    """
    store = Store(session.store)
    found = Channels(channels, DeviceFile(store))
    key = b""
    if link_key is not None or session.url is None:
        key = key_of_links(store, link_key)
    elif console_url:
        raise BadInput(
            "links to the console need its key: --link-key with a copy of links.key of its store."
        )
    access = AccessFile(store)
    where: Callable[[], str] = lambda: (  # noqa: E731 - the console may start later, or move
        console_url or (access.console_url() if session.url is None else "")
    )

    def link_to(message: Notification, call: Call) -> str:
        """For a question a link of this person alone; else to the page of the call."""
        if not (base := where().rstrip("/")):
            return ""
        asking = call.approval_request
        if message.recipient.is_room or message.occasion not in QUESTIONS or asking is None:
            return f"{base}/calls/{call.ref}"
        return open_link(base, action_token(key, message.recipient.to, call.ref, asking.digest))

    return found, link_to
