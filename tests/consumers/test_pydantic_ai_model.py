"""The border to pydantic-ai: our histories in, its responses out. With its own test models, and no
network.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from pydantic_ai import messages as pai
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import (
    TestModel as ScriptedModel,
)  # under its own name pytest would collect it
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.usage import RequestUsage
from stories import REF, Story

from ayes.consumers.model import ModelReply, ModelRequest
from ayes.consumers.pydantic_ai_model import PydanticAI, messages, parts
from ayes.projections.formats import FORMATS
from ayes.projections.history import Assistant, Entry, Note, Outcome, System, User, history
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas.content import attached, described
from ayes.schemas.tools import Tool

SCHEMA = '{"type":"object","properties":{"order":{"type":"string"}},"required":["order"]}'
REFUND = Tool("refund", "v1", e.ToolDeclared(description="Give money back.", schema=SCHEMA))
WISH = e.Wish(tool="refund", arguments='{"order": "A-17"}', provider_id="call_a")
THOUGHT = pai.ThinkingPart("hm", id="rs_1", signature="c2ln", provider_name="function")


def question(*entries: Entry, tools: tuple[Tool, ...] = ()) -> ModelRequest:
    return ModelRequest(REF, 1, "function:m", entries, tools)


class Heard:
    """A model that answers with these parts, and remembers what it was sent."""

    def __init__(
        self,
        *parts: pai.ModelResponsePart,
        usage: RequestUsage | None = None,
        finish: str | None = None,
    ) -> None:
        self.parts, self.usage, self.finish = parts, usage, finish
        self.messages: list[pai.ModelMessage] = []
        self.info: AgentInfo | None = None

    def __call__(self, sent: list[pai.ModelMessage], info: AgentInfo) -> pai.ModelResponse:
        self.messages, self.info = sent, info
        response = pai.ModelResponse(parts=list(self.parts), usage=self.usage or RequestUsage())
        response.finish_reason = self.finish  # type: ignore[assignment]
        return response

    async def reply(self, asked: ModelRequest) -> ModelReply:
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


# ---------------------------------------------------------------------------------- what it is sent


async def test_a_history_becomes_messages():
    """Each thing said stands in its place, each call is followed by its result, under ids of our
    own (B1, B3, B12, B15, B20).
    """
    heard = Heard(pai.TextPart("Done."))
    again = e.Wish(tool="refund", arguments='{"order":"B-40"}', provider_id="call_a")
    await heard.reply(
        question(
            System("be kind"),
            User("refund both"),
            Assistant(1, (e.Text("Let me see."), WISH, again)),
            Outcome("1-0", "refund", "call_a", "returned", "done", is_error=False),
            Outcome(
                "1-1", "refund", "call_a", "denied", "`refund` did not run: no.", is_error=True
            ),
            Note("the shop closes soon", "clock"),
        )
    )
    assert brief(heard.messages) == [
        [("system-prompt", "be kind"), ("user-prompt", "refund both")],
        [("text", "Let me see."), ("call", "refund", '{"order": "A-17"}', "call-1-0"),
         ("call", "refund", '{"order":"B-40"}', "call-1-1")],
        [("return", "refund", "done", "call-1-0", "success"),
         ("return", "refund", "`refund` did not run: no.", "call-1-1", "denied"),
         ("user-prompt", "the shop closes soon")],
    ]  # fmt: skip


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
    """A no is not a failure, and a failure is not a no; the text says what it was (B2, B34, I5)."""
    wishes = Assistant(1, (WISH,))
    sent = messages(
        [wishes, Outcome("1-0", "refund", "", kind, "words", is_error)], provider="function"
    )
    assert brief(sent)[1] == [("return", "refund", "words", "call-1-0", outcome)]


async def test_the_tools_are_passed():
    """Name, description and the schema that arguments must fit; and only those of the thread."""
    heard = Heard(pai.TextPart("Hi!"))
    await heard.reply(question(User("hello"), tools=(REFUND,)))
    [tool] = heard.info.function_tools
    assert (tool.name, tool.description, tool.parameters_json_schema) == (
        "refund",
        "Give money back.",
        json.loads(SCHEMA),
    )
    await heard.reply(question(User("hello")))
    assert heard.info.function_tools == []


def test_the_calls_of_two_turns_never_share_an_id():
    """Ids are the ledger's own, so unique in the request where the provider's were not (B20)."""
    story = Story().say("hello")
    for turn in (1, 2, 3):
        story.turn(turn, WISH, WISH).live(turn, 0, WISH, "returned").live(turn, 1, WISH, "expired")
    sent = messages(history(thread_of(REF, story.facts)).entries, provider="function")
    calls = [
        part.tool_call_id
        for message in sent
        for part in message.parts
        if isinstance(part, pai.ToolCallPart)
    ]
    returns = [
        part.tool_call_id
        for message in sent
        for part in message.parts
        if isinstance(part, pai.ToolReturnPart)
    ]
    assert calls == returns == [f"call-{turn}-{index}" for turn in (1, 2, 3) for index in (0, 1)]
    assert len(set(calls)) == 6


# ----------------------------------------------------------------------------- what it answers with


async def test_a_response_becomes_parts():
    """Text, wishes and whatever else, in its order; with usage and why it stopped."""
    heard = Heard(
        pai.TextPart("Let me see."),
        pai.ToolCallPart("refund", '{"order": "A-17"}', tool_call_id="call_a"),
        usage=RequestUsage(input_tokens=7, output_tokens=2),
        finish="tool_call",
    )
    assert await heard.reply(question(User("hello"))) == ModelReply(
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
    """Byte for byte, malformed or ambiguous as they may be: it is for the gate to refuse them, not
    for us to mend them (B17, B61, I4).
    """
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


# ------------------------------------------------------------------------- what only it understands


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


# ------------------------------------------------------------------------------ one name, both ways

#: What each service answers with, as it stands on its wire, and where its parts are in that.
ANSWERS: dict[str, dict[str, Any]] = {
    "anthropic": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-opus-4-6",
        "stop_reason": "tool_use", "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "c2VjcmV0"},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "call_a", "name": "refund", "input": {"order": "A-17"}},
        ],
    },
    "openai-responses": {
        "id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-5",
        "status": "completed", "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
        "output": [
            {"id": "rs_1", "type": "reasoning", "encrypted_content": "gAAA",
             "summary": [{"type": "summary_text", "text": "hm"},
                         {"type": "summary_text", "text": "so"}]},
            {"type": "message", "role": "assistant", "status": "completed", "id": "msg_1",
             "phase": "commentary",
             "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}]},
            {"type": "function_call", "id": "fc_1", "call_id": "call_a", "name": "refund",
             "arguments": '{"order":"A-17"}'},
        ],
    },
    "gemini": {
        "candidates": [{"finishReason": "STOP", "content": {"role": "model", "parts": [
            {"text": "hm", "thought": True, "thoughtSignature": "dGhvdWdodA=="},
            {"text": "Let me see.", "thoughtSignature": "dGV4dA=="},
            {"functionCall": {"id": "call_a", "name": "refund", "args": {"order": "A-17"}},
             "thoughtSignature": "+/8="},
        ]}}],
    },
}  # fmt: skip
CHAT = {
    "id": "chatcmpl_1", "object": "chat.completion", "created": 1, "model": "gpt-5",
    "choices": [{"index": 0, "finish_reason": "stop",
                 "message": {"role": "assistant", "content": "Let me see."}}],
}  # fmt: skip
#: What nobody else may be sent.
SECRETS = {
    "anthropic": ("c2ln", "c2VjcmV0", "hm"),
    "openai-responses": ("gAAA", "rs_1", "msg_1", "fc_1", "hm"),
    "gemini": ("dGhvdWdodA==", "dGV4dA==", "+/8=", "hm"),
}


def said(form: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """What the model said in a payload or an answer, part by part."""
    match form:
        case "anthropic" if "messages" in body:
            return [
                block
                for one in body["messages"]
                if one["role"] == "assistant"
                for block in one["content"]
            ]
        case "anthropic":
            return list(body["content"])
        case "openai-responses" if "input" in body:
            kinds = ("reasoning", "function_call")
            return [
                one
                for one in body["input"]
                if one.get("type") in kinds or one.get("role") == "assistant"
            ]
        case "openai-responses":
            return list(body["output"])
        case _:
            contents = body.get("contents") or [one["content"] for one in body["candidates"]]
            return [part for one in contents if one["role"] == "model" for part in one["parts"]]


class Wire:
    """A real model whose network is here: it hears one answer, whatever it sends."""

    def __init__(self, form: str) -> None:
        self.sent: dict[str, Any] = {}

        def answer(request: httpx2.Request) -> httpx2.Response:
            self.sent = json.loads(request.content)
            return httpx2.Response(200, json=ANSWERS.get(form) or CHAT)

        http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer), timeout=60)
        self.model: Model
        # Imported here: the three packages take seconds, and every test process loads this file.
        match form:
            case "anthropic":
                from pydantic_ai.models.anthropic import AnthropicModel
                from pydantic_ai.providers.anthropic import AnthropicProvider

                anthropic = AnthropicProvider(api_key="k", http_client=http)
                settings = {"max_tokens": 100}
                self.model = AnthropicModel(
                    "claude-opus-4-6", provider=anthropic, settings=settings
                )  # type: ignore[arg-type]
            case "openai-chat":
                from pydantic_ai.models.openai import OpenAIChatModel
                from pydantic_ai.providers.openai import OpenAIProvider

                openai = OpenAIProvider(api_key="k", http_client=http)
                self.model = OpenAIChatModel("gpt-5", provider=openai)
            case "openai-responses":
                from pydantic_ai.models.openai import OpenAIResponsesModel
                from pydantic_ai.providers.openai import OpenAIProvider

                openai = OpenAIProvider(api_key="k", http_client=http)
                self.model = OpenAIResponsesModel("gpt-5", provider=openai)
            case _:
                from pydantic_ai.models.google import GoogleModel
                from pydantic_ai.providers.google import GoogleProvider

                google = GoogleProvider(api_key="k", http_client=http)
                self.model = GoogleModel("gemini-3-pro-preview", provider=google)


def told(*given: e.Part) -> tuple[Entry, ...]:
    outcome = Outcome("1-0", "refund", "call_a", "returned", "done", is_error=False)
    return (User("hello"), Assistant(1, given), outcome)


def bare(form: str, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items as both ways have them: a call goes live under an id of ours, without its item's, and
    Google's package spells base64 in its other alphabet.
    """
    if form != "openai-responses":
        written = json.dumps(items).replace("call-1-0", "call_a").replace("-_8=", "+/8=")
        return json.loads(written)  # type: ignore[no-any-return]
    kept = [
        {name: one[name] for name in one if name not in ("call_id", "status", "phase")}
        for one in items
    ]
    return [
        {name: one[name] for name in one if (one["type"], name) != ("function_call", "id")}
        for one in kept
    ]


@pytest.mark.parametrize("form", ANSWERS)
async def test_what_a_service_signed_goes_back_to_it_by_every_way(form):
    """Recorded live, it stands verbatim in its own payload and next live request, in no other's."""
    wire = Wire(form)
    reply = await PydanticAI(wire.model).reply(question(User("hello")))
    assert {part.provider for part in reply.parts if isinstance(part, e.Opaque)} == {form}
    entries = told(*reply.parts)
    assert said(form, FORMATS[form].write(entries)) == said(form, ANSWERS[form])
    for other in set(FORMATS) - {form, "pydantic-ai"}:
        written = json.dumps(FORMATS[other].write(entries))
        assert not [secret for secret in SECRETS[form] if f'"{secret}"' in written], other
    await PydanticAI(wire.model).reply(question(*entries))
    assert bare(form, said(form, wire.sent)) == bare(form, said(form, ANSWERS[form]))
    for other in set(ANSWERS) - {form}:
        stranger = Wire(other)
        await PydanticAI(stranger.model).reply(question(*entries))
        assert not [
            secret for secret in SECRETS[form] if f'"{secret}"' in json.dumps(stranger.sent)
        ], other


@pytest.mark.parametrize(
    "part",
    [
        pai.ThinkingPart("hm"),
        pai.ThinkingPart("hm", id="reasoning_content", provider_name="openai"),
        pai.CompactionPart("in short", provider_name="anthropic",
                           provider_details={"signature": "c2ln"}),
        pai.NativeToolCallPart("web_search", {"q": "x"}, tool_call_id="s", provider_name="openai"),
        pai.FilePart(pai.BinaryContent(b"\xff", media_type="image/png"), id="f",
                     provider_name="google"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("provider", ["anthropic", "openai", "google", "google-cloud", "mistral"])
def test_what_no_wire_form_has_stays_the_librarys(provider, part):
    """It goes back whole to the service that gave it, and its own writer passes it over."""
    [opaque] = parts(pai.ModelResponse(parts=[part]), provider=provider)
    assert isinstance(opaque, e.Opaque)
    [response] = messages([Assistant(1, (opaque,))], provider=provider)
    assert [_named(one, provider) for one in response.parts] == [_named(part, provider)]
    assert messages([Assistant(1, (opaque,))], provider="another")[0].parts == []
    for form in ("anthropic", "openai-responses", "gemini"):
        assert json.loads(opaque.data).get("part_kind") is None or FORMATS[form].write(
            [User("hello"), Assistant(1, (opaque, e.Text("hi")))]
        ) == FORMATS[form].write([User("hello"), Assistant(1, (e.Text("hi"),))])


def _named(part: Any, provider: str) -> object:
    [dumped] = pai.ModelMessagesTypeAdapter.dump_python(
        [pai.ModelResponse(parts=[part])], mode="json"
    )
    said = dumped["parts"][0]
    return {**said, "provider_name": said["provider_name"] or provider}


@pytest.mark.parametrize("service", ["openai", "google", "mistral"])
def test_what_a_text_and_a_call_have_beside_them_survives(service):
    """Details, ids and citations come back on their part; a call's id stays with its call id."""
    details = {"openai": {"phase": "commentary"}, "google": {"thought_signature": "c2ln"}}.get(
        service, {"n": 1}
    )
    text = pai.TextPart("so", id="t_1", provider_name=service, provider_details=details)
    call = pai.ToolCallPart(
        "refund", "{}", "call-1-0", provider_name=service, provider_details={"x": [1]}
    )
    found = parts(pai.ModelResponse(parts=[text, call]), provider=service)
    assert [part for part in found if not isinstance(part, e.Opaque)] == [
        e.Text("so"), e.Wish("refund", "{}", "call-1-0"),
    ]  # fmt: skip
    assert messages([Assistant(1, found)], provider=service)[0].parts == [text, call]
    assert messages([Assistant(1, found)], provider="another")[0].parts == [
        pai.TextPart("so"), pai.ToolCallPart("refund", "{}", "call-1-0"),
    ]  # fmt: skip


def test_in_a_list_of_messages_each_part_says_whose_it_is():
    """What its response says is written with the part, so that nobody else is sent it."""
    given = parts(pai.ModelResponse(parts=[pai.ThinkingPart("hm")]), provider="bedrock")
    [written] = FORMATS["pydantic-ai"].write([Assistant(1, given)])["messages"]
    assert written["parts"][0]["provider_name"] == "bedrock"


# ----------------------------------------------------------------------------------------- streams


async def test_a_stream_says_each_piece_and_gives_the_same_reply():
    """The text as it comes; and then the reply, with its calls."""

    async def speak(_sent: list[pai.ModelMessage], _info: AgentInfo) -> AsyncIterator[Any]:
        yield "On its "
        yield "way."
        yield {1: DeltaToolCall(name="refund", json_args='{"order": ', tool_call_id="call_a")}
        yield {1: DeltaToolCall(json_args='"A-17"}')}

    said: list[str] = []
    model = PydanticAI(FunctionModel(stream_function=speak))
    reply = await model.stream(question(User("refund A-17"), tools=(REFUND,)), said.append)
    assert said == ["On its ", "way."]
    assert reply.parts == (e.Text("On its way."), WISH)


async def test_a_stream_that_ends_early_is_no_reply():
    """Half a reply must not be recorded as a whole one."""

    async def speak(_sent: list[pai.ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
        yield "On its "
        raise httpx2.RemoteProtocolError("the connection was closed")

    model = PydanticAI(FunctionModel(stream_function=speak))
    with pytest.raises(httpx2.RemoteProtocolError):
        await model.stream(question(User("hi")), lambda _: None)


async def test_a_model_without_streams_replies_all_the_same():
    said: list[str] = []
    heard = Heard(pai.TextPart("On its way."))
    reply = await PydanticAI(FunctionModel(heard)).stream(question(User("hi")), said.append)
    assert (said, reply.parts) == ([], (e.Text("On its way."),))


# ------------------------------------------------------------------------------------------- files


FILES = {
    "picture": attached(b"a picture", "image/png", "a.png"),
    "page": attached(b"a page", "application/pdf"),
    "note": attached(b"a note", "text/plain"),
    "bytes": attached(b"\xff\xfe", "text/plain"),
    "json": attached(b"{}", "application/json"),
    "sound": attached(b"a sound", "audio/wav"),
    "film": attached(b"a film", "video/mp4"),
    "drawing": attached(b"<svg/>", "image/svg+xml"),
    "anything": attached(b"anything", "application/x-unheard-of"),
    "linked picture": e.Media("image/*", e.Linked("https://example.org/a.png")),
    "linked page": e.Media("application/pdf", e.Linked("https://example.org/a.pdf")),
    "linked note": e.Media("text/plain", e.Linked("https://example.org/a.txt")),
    "linked sound": e.Media("audio/wav", e.Linked("https://example.org/a.wav")),
    "linked film": e.Media("video/mp4", e.Linked("https://example.org/a.mp4")),
    "linked": e.Media("application/octet-stream", e.Linked("https://example.org/a")),
    "OpenAI's": e.Media("image/*", e.Uploaded("openai", "file-1")),
    "Anthropic's": e.Media("application/pdf", e.Uploaded("anthropic", "file_1")),
    "Google's": e.Media("application/pdf", e.Uploaded("gemini", "files/1")),
    "Amazon's": e.Media("application/pdf", e.Uploaded("bedrock", "s3://1")),
}
#: The files that each service is sent. Of the others its model reads in words.
SENT = {
    "anthropic": {"picture", "page", "note", "linked picture", "linked page", "Anthropic's"},
    "openai-chat": {"picture", "page", "note", "sound", "linked picture"},
    "openai-responses": {
        "picture", "page", "note", "bytes", "linked picture", "linked page", "linked note",
        "linked", "OpenAI's",
    },
    "gemini": {"picture", "page", "note", "bytes", "sound", "film"},
}  # fmt: skip


@pytest.mark.parametrize("form", SENT)
@pytest.mark.parametrize("name", FILES)
async def test_no_file_ends_a_turn_and_no_link_is_fetched(form, name, monkeypatch):
    """The library raises for a file that a provider does not take, and downloads a link that a
    provider does not fetch, on the machine of the worker. The model reads of both in words.
    """

    async def fetched(url: str, **_: Any) -> httpx2.Response:
        raise AssertionError(f"the worker fetches {url}")

    monkeypatch.setattr("pydantic_ai.models._download_within_request_budget", fetched)
    media = FILES[name]
    output = (e.Text("This:"), media)
    entries = (
        User((e.Text("Look."), media)),
        Assistant(1, (WISH,)),
        Outcome("1-0", "refund", "call_a", "returned", output, is_error=False),
    )
    wire = Wire(form)
    await PydanticAI(wire.model).reply(question(*entries))
    in_words = json.dumps(wire.sent, ensure_ascii=False).count(described(media))
    assert in_words == (0 if name in SENT[form] else 2)


async def test_a_wrapped_model_takes_what_the_model_in_it_takes():
    """Of OpenAI's two APIs only one hears sounds."""
    wire = Wire("openai-chat")
    await PydanticAI(WrapperModel(wire.model)).reply(question(User((FILES["sound"],))))
    assert wire.sent["messages"][0]["content"][0]["type"] == "input_audio"
