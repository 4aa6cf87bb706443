"""The border to pydantic-ai: our histories in, its responses out. With its own test models, and no network."""

import json

import pytest
from pydantic_ai import messages as pai
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel as ScriptedModel  # under its own name pytest would collect it
from pydantic_ai.usage import RequestUsage
from stories import REF, Story

from consumers.model import Question, Reply
from consumers.providers import PydanticAI, messages
from projections.history import Assistant, Entry, Note, Outcome, System, User, history
from projections.thread import thread_of
from schemas import events as e
from schemas.tools import Tool

SCHEMA = '{"type":"object","properties":{"order":{"type":"string"}},"required":["order"]}'
REFUND = Tool("refund", "v1", e.ToolDeclared(description="Give money back.", schema=SCHEMA))
WISH = e.Wish(tool="refund", arguments='{"order": "A-17"}', provider_id="call_a")
THOUGHT = pai.ThinkingPart("hm", id="rs_1", signature="c2ln", provider_name="function")


def question(*entries: Entry, tools: tuple[Tool, ...] = ()) -> Question:
    return Question(REF, 1, "function:m", entries, tools)


class Heard:
    """A model that answers with these parts, and remembers what it was sent."""

    def __init__(
        self, *parts: pai.ModelResponsePart, usage: RequestUsage | None = None, finish: str | None = None
    ) -> None:
        self.parts, self.usage, self.finish = parts, usage, finish
        self.messages: list[pai.ModelMessage] = []
        self.info: AgentInfo | None = None

    def __call__(self, sent: list[pai.ModelMessage], info: AgentInfo) -> pai.ModelResponse:
        self.messages, self.info = sent, info
        response = pai.ModelResponse(parts=list(self.parts), usage=self.usage or RequestUsage())
        response.finish_reason = self.finish  # type: ignore[assignment]
        return response

    async def reply(self, asked: Question) -> Reply:
        return await PydanticAI(FunctionModel(self)).reply(asked)


def brief(sent: list[pai.ModelMessage]) -> list[list[tuple[object, ...]]]:
    """Messages as the parts in them: kind, and what matters of it."""
    return [[_brief(part) for part in message.parts] for message in sent]


def _brief(part: object) -> tuple[object, ...]:
    match part:
        case pai.ToolCallPart():
            return ("call", part.tool_name, part.args, part.tool_call_id)
        case pai.ToolReturnPart():
            return ("return", part.tool_name, part.content, part.tool_call_id, part.outcome)
        case pai.SystemPromptPart() | pai.UserPromptPart() | pai.TextPart() | pai.ThinkingPart():
            return (part.part_kind, part.content)
        case _:
            raise AssertionError(part)


# ------------------------------------------------------------------------------------------- what it is sent


async def test_a_history_becomes_messages():
    """Each thing said stands in its place, each call is followed by its result, under ids of our own (B1, B3, B12, B15, B20)."""
    heard = Heard(pai.TextPart("Done."))
    again = e.Wish(tool="refund", arguments='{"order":"B-40"}', provider_id="call_a")
    await heard.reply(
        question(
            System("be kind"),
            User("refund both"),
            Assistant(1, (e.Text("Let me see."), WISH, again)),
            Outcome("1-0", "refund", "call_a", "returned", "done", is_error=False),
            Outcome("1-1", "refund", "call_a", "denied", "`refund` did not run: no.", is_error=True),
            Note("the shop closes soon", "clock"),
        )
    )
    assert brief(heard.messages) == [
        [("system-prompt", "be kind"), ("user-prompt", "refund both")],
        [
            ("text", "Let me see."),
            ("call", "refund", '{"order": "A-17"}', "call-1-0"),
            ("call", "refund", '{"order":"B-40"}', "call-1-1"),
        ],
        [
            ("return", "refund", "done", "call-1-0", "success"),
            ("return", "refund", "`refund` did not run: no.", "call-1-1", "denied"),
            ("user-prompt", "the shop closes soon"),
        ],
    ]


@pytest.mark.parametrize(
    ("kind", "is_error", "outcome"),
    [
        ("returned", False, "success"),
        ("answered", False, "success"),
        ("failed", True, "failed"),
        ("denied", True, "denied"),
        ("expired", True, "failed"),
        ("unknown_tool", True, "failed"),
        ("reconciled", False, "success"),
    ],
)
def test_how_a_call_ended_is_told_in_the_providers_word(kind, is_error: bool, outcome: str):
    """A no is not a failure, and a failure is not a no; what it was is said in the text all the same (B2, B34, I5)."""
    wishes = Assistant(1, (WISH,))
    sent = messages([wishes, Outcome("1-0", "refund", "", kind, "words", is_error)], provider="function")
    assert brief(sent)[1] == [("return", "refund", "words", "call-1-0", outcome)]


async def test_the_tools_are_passed():
    """Name, description and the very schema that arguments are checked against; and only those of the thread."""
    heard = Heard(pai.TextPart("Hi!"))
    await heard.reply(question(User("hello"), tools=(REFUND,)))
    assert heard.info
    [tool] = heard.info.function_tools
    assert (tool.name, tool.description, tool.parameters_json_schema) == (
        "refund",
        "Give money back.",
        json.loads(SCHEMA),
    )
    await heard.reply(question(User("hello")))
    assert heard.info.function_tools == []


def test_the_calls_of_two_turns_never_share_an_id():
    """Ids are the ledger's own, so they are unique in the whole request though the provider's were not (B20)."""
    story = Story()
    story.say("hello")
    for turn in (1, 2, 3):
        story.turn(turn, WISH, WISH)
        story.live(turn, 0, WISH, "returned")
        story.live(turn, 1, WISH, "expired")
    sent = messages(history(thread_of(REF, story.facts)).entries, provider="function")
    calls = [
        part.tool_call_id for message in sent for part in message.parts if isinstance(part, pai.ToolCallPart)
    ]
    returns = [
        part.tool_call_id
        for message in sent
        for part in message.parts
        if isinstance(part, pai.ToolReturnPart)
    ]
    assert calls == returns == [f"call-{turn}-{index}" for turn in (1, 2, 3) for index in (0, 1)]
    assert len(set(calls)) == 6


# -------------------------------------------------------------------------------------- what it answers with


async def test_a_response_becomes_parts():
    """Text, wishes and whatever else, in its order; with usage and why it stopped."""
    heard = Heard(
        pai.TextPart("Let me see."),
        pai.ToolCallPart("refund", '{"order": "A-17"}', tool_call_id="call_a"),
        usage=RequestUsage(input_tokens=7, output_tokens=2),
        finish="tool_call",
    )
    assert await heard.reply(question(User("hello"))) == Reply(
        parts=(e.Text("Let me see."), WISH), usage=e.Usage(7, 2), finish_reason="tool_call"
    )


@pytest.mark.parametrize(
    ("args", "arguments"),
    [
        ('{"order": "A-17"}', '{"order": "A-17"}'),
        ('{"amount":1,"amount":1000}', '{"amount":1,"amount":1000}'),
        ('{"order":', '{"order":'),
        ("[1]", "[1]"),
        ({"order": "A-17"}, '{"order":"A-17"}'),
        ({}, "{}"),
        ("", "{}"),
        (None, "{}"),
    ],
)
async def test_arguments_are_what_the_model_wrote(args, arguments: str):
    """Byte for byte, malformed or ambiguous as they may be: it is for the gate to refuse them, not for us to mend them (B17, B61, I4)."""
    heard = Heard(pai.ToolCallPart("refund", args, tool_call_id="call_a"))
    reply = await heard.reply(question(User("hello")))
    assert reply.parts == (e.Wish(tool="refund", arguments=arguments, provider_id="call_a"),)


async def test_a_response_without_anything_is_an_answer():
    """No parts at all: the turn ends with nothing said (B59)."""
    assert (await Heard().reply(question(User("hello")))).parts == ()


async def test_a_scripted_model_calls_every_tool():
    """pydantic-ai's own test model reads our schema and writes arguments that fit it."""
    model = PydanticAI(ScriptedModel())
    reply = await model.reply(question(User("hello"), tools=(REFUND,)))
    [wish] = reply.parts
    assert isinstance(wish, e.Wish)
    assert REFUND.problems(wish.arguments) is None


# ------------------------------------------------------------------------------------- what only it understands


async def test_thinking_is_kept_for_its_provider_alone():
    """It goes back verbatim, signature and all, to the provider that gave it, and to no other."""
    heard = Heard(THOUGHT, pai.TextPart("Hi!"))
    reply = await heard.reply(question(User("hello")))
    opaque, text = reply.parts
    assert isinstance(opaque, e.Opaque)
    assert (opaque.provider, text) == ("function", e.Text("Hi!"))
    entries = (User("hello"), Assistant(1, reply.parts), User("and?"))
    await heard.reply(question(*entries))
    assert heard.messages[1].parts == [THOUGHT, pai.TextPart("Hi!")]
    elsewhere = messages(entries, provider="anthropic")
    assert brief(elsewhere)[1] == [("text", "Hi!")]


def test_opaque_parts_of_others_leave_the_calls_where_they_were():
    """A call keeps its number, whatever stands around it and is left out."""
    parts = (e.Opaque("anthropic", "{}"), WISH, e.Opaque("google", "{}"), e.Text("and"), WISH)
    [[first, text, second]] = brief(messages([Assistant(4, parts)], provider="openai"))
    assert (first[3], text, second[3]) == ("call-4-0", ("text", "and"), "call-4-1")
