"""Slack's Web API, as far as we use it, with its failures as ours.

A message is posted with a key in its metadata, which says nothing to anybody else. So one that was
posted by a process which died before it could record that is found again. No request is repeated
by itself unless Slack has refused it as one of too many: a message whose answer was lost may have
been posted.
"""

import logging
from collections.abc import Awaitable
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, Final

import aiohttp
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.http_retry.builtin_async_handlers import AsyncRateLimitErrorRetryHandler
from slack_sdk.web.async_client import AsyncWebClient

from ayes.projections.slack_messages import Block, SlackMessage, escape
from ayes.schemas.errors import ApprovalsError, Unavailable
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.consumers.slack.questions")

#: Where the Web API is; GovSlack has one of its own.
API: Final = "https://slack.com/api/"
#: The type of the metadata of our messages.
EVENT: Final = "ayes_call"
#: How long one request may take, in whole seconds.
_TIMEOUT_S: Final = 20
#: How much later than Slack's clock the broker's may be.
_SKEW: Final = timedelta(minutes=5)
#: Messages of a channel that are looked through: pages, and messages of each.
_PAGES: Final = 5
_PER_PAGE: Final = 200
_LATER: Final = frozenset(
    {"fatal_error", "internal_error", "ratelimited", "request_timeout", "service_unavailable"}
)
#: Answers to a change of a message that nobody can change any more.
_GONE: Final = frozenset(
    {"cant_update_message", "channel_not_found", "is_archived", "message_not_found"}
)


class SlackAway(Unavailable):
    """Slack does not answer, or asks to try again later."""


class SlackRefused(ApprovalsError):
    """Slack refuses a request, and would refuse it again."""

    def __init__(self, method: str, error: str) -> None:
        self.error = error
        advice = _ADVICE.get(error, "docs.slack.dev has the errors of each method.")
        super().__init__(f"Slack refuses {method}: {error}. {advice}")


_ADVICE: Final = {
    "channel_not_found": "Check the id in ask_in, and invite the app with /invite in the channel.",
    "invalid_auth": "Check the token in the settings.",
    "is_archived": "The channel is archived. Name another one in ask_in.",
    "missing_scope": "Add the scope to the app as docs/telling.md has it, and install it again.",
    "not_in_channel": "Invite the app with /invite in the channel.",
}


class SlackApi:
    """The methods that the worker uses.

    Args:
        token: the bot's (`xoxb-`), for messages.
        app_token: the app's (`xapp-`), for the socket.

    Raises (each method):
        SlackAway: it may be tried again.
        SlackRefused: another try would be refused too.
    """

    def __init__(self, token: str, app_token: str, url: str = API) -> None:
        # The library's own logs have requests and addresses of sockets in them.
        for name in ("slack_sdk", "slack_bolt"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self.url = url
        self.app_token = app_token
        self._client = AsyncWebClient(
            token,
            base_url=url,
            timeout=_TIMEOUT_S,
            retry_handlers=[AsyncRateLimitErrorRetryHandler(max_retry_count=1)],
        )
        self._may_search = True

    async def whoami(self) -> dict[str, Any]:
        """The app's own team and bot, as `auth.test` has them."""
        return await _asked("auth.test", self._client.auth_test())

    async def post(self, channel: str, message: SlackMessage, key: str) -> str:
        """Post a message; returns its `ts`."""
        answer = await _asked(
            "chat.postMessage",
            self._client.chat_postMessage(
                channel=channel,
                text=message.text,
                blocks=message.blocks,
                metadata={"event_type": EVENT, "event_payload": {"key": key}},
                unfurl_links=False,
                unfurl_media=False,
            ),
        )
        return str(answer["ts"])

    async def find(self, channel: str, key: str, since: datetime) -> str:
        """The `ts` of the message that was posted with this key; empty if there is none, or if the
        app may not read the channel.
        """
        cursor = ""
        for _ in range(_PAGES if self._may_search else 0):
            try:
                answer = await _asked(
                    "conversations.history",
                    self._client.conversations_history(
                        channel=channel,
                        oldest=f"{(since - _SKEW).timestamp():.6f}",
                        limit=_PER_PAGE,
                        include_all_metadata=True,
                        cursor=cursor,
                    ),
                )
            except SlackRefused as problem:
                if problem.error != "missing_scope":
                    raise
                self._may_search = False
                _log.warning("a message may be posted twice after a crash", problem=str(problem))
                return ""
            for one in answer.get("messages", ()):
                told = one.get("metadata", {})
                if told.get("event_type") == EVENT and told["event_payload"].get("key") == key:
                    return str(one["ts"])
            cursor = answer.get("response_metadata", {}).get("next_cursor", "")
            if not cursor:
                break
        return ""

    async def update(self, channel: str, ts: str, message: SlackMessage) -> None:
        """Change a message; one that is gone is left alone."""
        try:
            await _asked(
                "chat.update",
                self._client.chat_update(
                    channel=channel, ts=ts, text=message.text, blocks=message.blocks
                ),
            )
        except SlackRefused as problem:
            if problem.error not in _GONE:
                raise
            _log.warning("a message is not changed", channel=channel, problem=str(problem))

    async def whisper(self, channel: str, user: str, sentence: str) -> None:
        """Say something in a channel that only this user sees."""
        await _asked(
            "chat.postEphemeral",
            self._client.chat_postEphemeral(channel=channel, user=user, text=escape(sentence)),
        )

    async def show_form(self, trigger: str, form: Block) -> None:
        """Open a form for the user whose click made this trigger, at most three seconds ago."""
        await _asked("views.open", self._client.views_open(trigger_id=trigger, view=form))


async def _asked(method: str, asking: Awaitable[Any]) -> dict[str, Any]:
    try:
        return dict((await asking).data)
    except SlackApiError as problem:
        answer = problem.response
        # An answer that is not JSON is here as it came.
        status: int = getattr(answer, "status_code", 0) or getattr(answer, "status", 0)
        data = getattr(answer, "data", None)
        error = str(data.get("error", "")) if isinstance(data, dict) else ""
        if error and error not in _LATER and status < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise SlackRefused(method, error) from None
        raise SlackAway(f"Slack did not answer {method}: {error or f'HTTP {status}'}.") from None
    except (aiohttp.ClientError, SlackClientError, TimeoutError, OSError) as problem:
        raise SlackAway(
            f"Slack did not answer {method}: {type(problem).__name__} {problem}."
        ) from None
