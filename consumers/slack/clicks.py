"""Clicks in Slack, which are votes.

Slack sends them over a socket that we open (Socket Mode), so nothing here is reachable from
outside. A click is acknowledged before anything else is done, since Slack waits three seconds. Then
it is a vote as any other: of the reviewer who bound the account, or to whom the organisation's
policy gives it (a workspace's gives it to nobody), with that person's own credentials at the
broker, about the digest that the message showed, and refused for the same reasons in the same
words. Only the person who clicked sees the refusal. Whatever is not certain is not a vote.

A click that comes twice is one vote, since a person's vote has one slot.

The command `/ayes` stops and resumes, for the same people: nobody has to find a terminal to stop
what does harm.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from slack_bolt.adapter.socket_mode.aiohttp import AsyncSocketModeHandler
from slack_bolt.app.async_app import AsyncApp
from slack_bolt.authorization import AuthorizeResult
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from ayes.consumers.slack.api import SlackRefused
from ayes.consumers.slack.buttons import Button
from ayes.consumers.slack.questions import PREFIX, SlackQuestions
from ayes.ledger.clients.reviewers import Ballot, Reviewer
from ayes.ledger.clients.services import Ledger
from ayes.projections.slack_messages import (
    APPROVE,
    DENY,
    OPEN,
    REASON,
    reason_form,
    reason_given,
)
from ayes.schemas import events as e
from ayes.schemas.digest import text_digest
from ayes.schemas.errors import AlreadyFilled, ApprovalsError, NotAllowed
from ayes.schemas.ids import token
from ayes.schemas.logs import get_logger
from ayes.schemas.people import plain
from ayes.schemas.slots import ORGANISATION, StopRef

_log: Final = get_logger("ayes.consumers.slack.questions")

#: The methods of a reviewer, with their own credentials.
type AsReviewer = Callable[[str], Awaitable[Reviewer]]

#: The slash command of the app.
COMMAND: Final = "/ayes"
_NOT_OURS: Final = (
    "This button was not made for this channel with the present key, so nothing was recorded. "
    "Decide in the console or on the command line."
)
_RECORDED: Final = "Your vote is recorded already."
_FAILED: Final = (
    "This failed here, and the log of ayes says why. Look at the call before you retry."
)


class SlackClicks:
    """Turns clicks into votes, for as long as `listen` runs.

    Args:
        questions: the worker whose messages are clicked.
        ledger: reads with the worker's own credentials.
    """

    def __init__(self, questions: SlackQuestions, ledger: Ledger, as_reviewer: AsReviewer) -> None:
        self._questions = questions
        self._ledger = ledger
        self._as_reviewer = as_reviewer
        #: The team that the app is installed in.
        self._team = ""

    async def listen(self) -> None:
        """Hear clicks without end; the socket is opened again whenever Slack closes it.

        Raises:
            SlackAway, SlackRefused: it cannot be opened.
        """
        known = await self._questions.slack.whoami()
        self._team = str(known["team_id"])
        handler = AsyncSocketModeHandler(self._app(known), self._questions.slack.app_token)
        try:
            # The library would try for ever, also with a token that is wrong.
            handler.client.wss_uri = await handler.client.issue_new_wss_url()
            await handler.connect_async()  # type: ignore[no-untyped-call]
            _log.info("listens to Slack", team=self._team)
            await asyncio.Event().wait()
        except SlackApiError as problem:
            raise SlackRefused("apps.connections.open", str(problem.response["error"])) from None
        finally:
            await handler.close_async()  # type: ignore[no-untyped-call]

    def _app(self, known: dict[str, Any]) -> AsyncApp:
        async def authorize() -> AuthorizeResult:
            # Known already: asking Slack first could take longer than Slack waits.
            return AuthorizeResult(
                enterprise_id=known.get("enterprise_id"),
                team_id=self._team,
                bot_user_id=known.get("user_id"),
                bot_id=known.get("bot_id"),
                bot_token="",  # the answers are sent with our own client
            )

        app = AsyncApp(
            client=AsyncWebClient(base_url=self._questions.slack.url),
            authorize=authorize,
            logger=logging.getLogger("slack_bolt"),
            name="ayes",
        )
        app.action(APPROVE)(self._on_click)
        app.action(DENY)(self._on_click)
        app.action(OPEN)(_on_open)
        app.command(COMMAND)(self._on_command)
        app.view(REASON)(self._on_reason)
        return app

    async def _on_click(self, ack: Callable[[], Awaitable[Any]], body: dict[str, Any]) -> None:
        await ack()
        user, channel = body["user"], body["channel"]["id"]
        button = self._questions.buttons.open(body["actions"][0].get("value", ""))

        async def click() -> str:
            if button is None or button.channel != channel:
                return _NOT_OURS
            if button.verdict == "approve":
                return await self._vote(button, user, "")
            asking = await self._check(button, user)
            about = f"{button.call}, digest {button.digest[:12]}"
            form = reason_form(body["actions"][0]["value"], about, asking.reasons)
            await self._questions.slack.show_form(body["trigger_id"], form)
            return ""

        await self._answer(channel, user, click)

    async def _on_reason(self, ack: Callable[[], Awaitable[Any]], body: dict[str, Any]) -> None:
        await ack()
        user, view = body["user"], body["view"]
        button = self._questions.buttons.open(view.get("private_metadata", ""))
        if button is None or button.verdict != "deny":
            _log.warning("a form that is not ours was sent", user=user["id"])
            return
        reason = reason_given(view)
        await self._answer(button.channel, user, lambda: self._vote(button, user, reason))

    async def _on_command(
        self,
        ack: Callable[[], Awaitable[Any]],
        respond: Callable[[str], Awaitable[Any]],
        body: dict[str, Any],
    ) -> None:
        await ack()
        user = {"id": body["user_id"], "team_id": body["team_id"]}
        words = body.get("text", "").split(maxsplit=2)
        sentence = await _sentence(lambda: self._obey(words, user, body["trigger_id"]), user)
        await respond(sentence)

    async def _obey(self, words: list[str], user: dict[str, Any], trigger: str) -> str:
        """Stop or resume; returns what the person is told.

        Args:
            trigger: the same whenever Slack delivers the command again, which is one stop then.
        """
        match words:
            case ["stop", where, reason]:
                workspace = ORGANISATION if where == "all" else token("workspace", where)
                name = await self._reviewer_of(workspace, user)
                ref = StopRef(workspace, name, f"slack-{text_digest(trigger)[:10]}")
                stop = await (await self._as_reviewer(name)).stop(ref, reason=reason)
                return (
                    f"{'Everything' if where == 'all' else where} is stopped: nothing starts from "
                    f"now on, and what runs goes on. To end it: {COMMAND} resume {stop.ref}"
                )
            case ["resume", named, *reason]:
                ref = StopRef.parse(named)
                name = await self._reviewer_of(ref.workspace, user)
                await (await self._as_reviewer(name)).resume(ref, reason=" ".join(reason))
                return f"Recorded. {ref} ends when the gate has counted enough people."
            case _:
                return (
                    f"Write {COMMAND} stop WORKSPACE REASON, with `all` for all workspaces, or "
                    f"{COMMAND} resume STOP REASON. Nothing was recorded."
                )

    async def _answer(
        self, channel: str, user: dict[str, Any], act: Callable[[], Awaitable[str]]
    ) -> None:
        """Do it, and tell the person what is to be told."""
        sentence = await _sentence(act, user)
        if not sentence:
            return
        try:
            await self._questions.slack.whisper(channel, user["id"], sentence)
        except ApprovalsError as problem:
            _log.warning("nobody could be told", said=sentence, problem=str(problem))

    async def _vote(self, button: Button, user: dict[str, Any], reason: str) -> str:
        """Vote; returns what the person is told, beyond what the message shows by itself."""
        name = await self._reviewer_of(button.ref.workspace, user)
        reviewer = await self._as_reviewer(name)
        ballot = Ballot(button.verdict, reason, digest=button.digest)
        try:
            await reviewer.vote(button.ref, ballot)
        except AlreadyFilled:
            if await self._has_voted(button, name):
                return _RECORDED
            raise
        return ""

    async def _has_voted(self, button: Button, name: str) -> bool:
        """Whether this person has cast the same vote."""
        votes = await self._ledger.read(button.ref.vote(name))
        return any(
            isinstance(vote.event, e.Voted)
            and (vote.event.verdict, vote.event.digest) == (button.verdict, button.digest)
            and vote.event.arguments is None
            for vote in votes
        )

    async def _check(self, button: Button, user: dict[str, Any]) -> e.ApprovalRequested:
        """Refuse a vote that could not count, before the reason is asked for. Returns the question.

        Raises:
            Refused: as of `Reviewer.vote`.
        """
        reviewer = await self._as_reviewer(await self._reviewer_of(button.ref.workspace, user))
        call = await self._ledger.known_call(button.ref)
        await reviewer.check_vote(call, e.Voted(verdict=button.verdict, digest=button.digest))
        assert call.approval_request  # else the vote was refused
        return call.approval_request

    async def _reviewer_of(self, workspace: str, user: dict[str, Any]) -> str:
        """The reviewer whose account this is, by their own word or by the organisation's policy.

        Raises:
            NotAllowed: nobody's, or that of different people, or of one of other workspaces.
        """
        team, whose = user.get("team_id", ""), user["id"]
        accounts = [f"{PREFIX}{team}/{whose}"]
        if team == self._team:  # ids of users are unique within a team only
            accounts.append(f"{PREFIX}{whose}")
        people = await self._ledger.people()
        given = (await self._ledger.policies(workspace)).reviewers_of(*accounts)
        bound = [people.accounts[accounts[0]]] if accounts[0] in people.accounts else []
        names = {plain(one): one for one in (*given, *bound)}
        if len(names) != 1 or any(map(people.is_removed, names)):
            problem = "to several people" if len(names) > 1 else "to no reviewer"
            raise NotAllowed(
                f"Your Slack account {accounts[0]} belongs {problem}, so nothing was recorded. "
                f"{self._questions.how_to_bind(accounts[0])}. The link lasts ten minutes."
            )
        name = names.popitem()[1]
        if people.bar(name, workspace) is not None:
            # Whether there is such a workspace is not told.
            where = "all workspaces" if workspace == ORGANISATION else workspace
            raise NotAllowed(f"{where} is not yours to decide in, so nothing was recorded.")
        return name


async def _sentence(act: Callable[[], Awaitable[str]], user: dict[str, Any]) -> str:
    """Do it; returns what the person is to be told, of every failure too."""
    try:
        return await act()
    except ApprovalsError as problem:
        return str(problem)
    except Exception:  # noqa: BLE001 - the user who clicked is told of every failure
        _log.exception("a click failed", user=user["id"])
        return _FAILED


async def _on_open(ack: Callable[[], Awaitable[Any]]) -> None:
    """A link was followed, of which Slack tells too."""
    await ack()
