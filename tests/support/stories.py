"""Stories for tests: the facts of a conversation, numbered and dated as a broker would have."""

import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Self

from hypothesis import strategies as st

from ayes.ledger.log import Bucket
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.slots import CallRef, Slot, ThreadRef

START = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
REF = ThreadRef("acme", "t1")
CALL = REF.call("c1")
WISH = e.Wish(tool="refund", arguments='{"order":"A-17"}', provider_id="call_1")


async def told(bucket: Bucket) -> AsyncGenerator[tuple[str, bytes]]:
    """Yield each entry of a bucket, then each change; an empty value for a removed entry."""
    async with aclosing(bucket.follow()) as coming:
        async for change in coming:
            for entry in change.entries.items():
                yield entry


class Story:
    """Facts in the order of their recording, one second apart.

    `story = Story().say("hello").turn(1, wish)`; `tell` gives the fact, the others the story.
    """

    def __init__(self, ref: ThreadRef = REF) -> None:
        self.ref = ref
        self.facts: list[Fact] = []

    def tell(self, slot: Slot, event: e.AnyEvent | e.Carried) -> Fact:
        seq = len(self.facts) + 1
        self.facts.append(Fact(seq, START + timedelta(seconds=seq), slot, event))
        return self.facts[-1]

    def tell_all(self, told: Iterable[tuple[Slot, e.AnyEvent | e.Carried]]) -> Self:
        for slot, event in told:
            self.tell(slot, event)
        return self

    def say(self, text: str, role="user", name="") -> Self:
        message = self.ref.said(f"m{len(self.facts)}")
        return self.tell_all([(message, e.Said(role=role, text=text, name=name))])

    def ask(self, turn: int, attempt: int = 1) -> Self:
        return self.tell_all([(self.ref.asked(turn, attempt), e.ModelAsked(model="test:model"))])

    def reply(self, turn: int, *parts: e.Part) -> Self:
        return self.tell_all([(self.ref.replied(turn), e.ModelReplied(parts=parts))])

    def turn(self, turn: int, *parts: e.Part) -> Self:
        """A request to the model and its reply."""
        return self.ask(turn).reply(turn, *parts)

    def live(self, turn: int, index: int, wish: e.Wish, ending: str, output: str = "done") -> Self:
        """All facts of a call from request to end."""
        return self.tell_all(life(self.ref.wish(turn, index), wish, ending, output))


def request(wish: e.Wish, tool_version: str = "v1") -> e.ToolRequested:
    return e.ToolRequested(
        tool=wish.tool,
        arguments=wish.arguments,
        digest=call_digest(wish.tool, tool_version, wish.arguments),
        tool_version=tool_version,
        requester="rita",
        provider_id=wish.provider_id,
    )


def question(wish: e.Wish, expires_in_s: float | None = None) -> e.ApprovalRequested:
    return e.ApprovalRequested(
        digest=request(wish).digest,
        rule="money",
        policy_version=1,
        reason="moves money",
        excluded=("rita",),
        expires_in_s=expires_in_s,
    )


def approval(wish: e.Wish, arguments: str | None = None) -> e.Approved:
    runs = wish.arguments if arguments is None else arguments
    return e.Approved(
        digest=call_digest(wish.tool, "v1", runs),
        ground="people",
        rule="money",
        policy_version=1,
        voters=("ana",),
        arguments=arguments,
    )


#: How a call comes to be decided, by name.
DECISIONS = {
    "denied": e.Denied(
        ground="people", rule="money", policy_version=1, reason="not this one", voters=("ana",)
    ),
    "denied by policy": e.Denied(ground="policy", rule="no-refunds", policy_version=1),
    "invalid": e.Denied(ground="invalid", rule="", policy_version=1, reason="`order` is missing"),
    "answered": e.Answered(
        answer="It is on its way.", rule="money", policy_version=1, voters=("ana",)
    ),
    "answered_with_error": e.Answered(
        answer="There is no such order.",
        is_error=True,
        rule="money",
        policy_version=1,
        voters=("ana",),
    ),
    "expired": e.Expired(rule="money", policy_version=1, after_s=900),
    "withdrawn": e.Withdrawn(reason="changed my mind"),
    "superseded": e.Superseded(reason="a new message"),
}

EDIT = '{"order":"edited"}'


def life(
    ref: CallRef, wish: e.Wish, ending: str, output: str = "done"
) -> list[tuple[Slot, e.AnyEvent]]:
    """The facts of a call with this ending, in order."""
    facts: list[tuple[Slot, e.AnyEvent]] = [
        (ref.requested, request(wish)),
        (ref.gated, question(wish)),
    ]
    runs = approval(wish, EDIT if ending == "edited" else None).digest
    start = (ref.claim(1), e.ToolStarted(digest=runs, idempotency_key=str(ref)))
    if ending in DECISIONS:
        decision = DECISIONS[ending]
        name = {"denied by policy": "denied", "invalid": "denied"}.get(ending, ending)
        text = decision.answer if isinstance(decision, e.Answered) else f"{wish.tool} was {name}"
        return [
            *facts,
            (ref.decided, decision),
            (ref.finished, e.ToolRefused(ending=name, text=text)),
        ]
    facts.append((ref.decided, approval(wish, EDIT if ending == "edited" else None)))
    returned = (ref.finished, e.ToolReturned(output=output))
    match ending:
        case "approved":
            return facts
        case "revoked":
            back = (ref.revoked_by("ben"), e.Revoked(reason="wrong customer", reviewer="ben"))
            return [
                *facts,
                back,
                (ref.finished, e.ToolRefused(ending="revoked", text="taken back")),
            ]
        case "lapsed":
            refused = e.ToolRefused(ending="lapsed", text="valid no longer")
            return [*facts, (ref.lapsed, e.Lapsed(after_s=60)), (ref.finished, refused)]
        case (
            "unknown_tool"
            | "digest_mismatch"
            | "people_were_asked"
            | "unproved"
            | "forgotten"
            | "unopened"
            | "misfit"
        ):
            facts.append((ref.claim(1), e.Declined(why=ending)))
            return [*facts, (ref.finished, e.ToolRefused(ending=ending, text=f"{ending} it is"))]
        case "returned" | "edited":
            return [*facts, start, returned]
        case "failed":
            return [*facts, start, (ref.finished, e.ToolFailed(error=output))]
        case "running":
            return [*facts, start]
    doubt = (ref.finished, e.InDoubt(attempt=1, text="nobody knows"))
    late = (ref.late(1), e.ToolReturned(output="too late to be told"))
    found = e.Reconciled(happened=ending == "happened", output=output, reviewer="ana")
    match ending:
        case "in doubt":
            return [*facts, start, doubt, late]
        case "happened" | "did not happen":
            return [*facts, start, doubt, late, (ref.reconciled_by("ana"), found)]
    raise ValueError(ending)


#: Every way in which a call can end, by the name that `life` knows it under.
SETTLED = (
    *DECISIONS, "revoked", "lapsed", "unknown_tool", "digest_mismatch", "people_were_asked",
    "unproved", "forgotten", "unopened", "misfit", "returned", "edited", "failed", "happened",
    "did not happen",
)  # fmt: skip
UNSETTLED = ("approved", "running", "in doubt")


def facts_of(messages: list[dict], ref: ThreadRef = REF) -> list[Fact]:
    """A recorded OpenAI conversation as the facts of a thread."""
    story, turn = Story(ref), 0
    wishes: list[e.Wish] = []
    answered = 0
    for message in messages:
        match message["role"]:
            case "tool":
                wish = wishes[answered]
                assert message["tool_call_id"] == wish.provider_id
                story.live(turn, answered, wish, "returned", message["content"])
                answered += 1
            case "assistant":
                turn += 1
                text = message["content"]
                wishes = [
                    e.Wish(
                        tool=one["function"]["name"],
                        arguments=one["function"]["arguments"],
                        provider_id=one["id"],
                    )
                    for one in message.get("tool_calls", ())
                ]
                answered = 0
                story.turn(turn, *([] if text is None else [e.Text(text)]), *wishes)
            case role:
                story.say(message["content"], role)
    return story.facts


# ------------------------------------------------------------------------------------- random lives

_words = st.sampled_from(["", " ", "hello", "Grüße 🙂", "two\n\nlines", '{"a": 1}'])
_thinking = json.dumps({"type": "thinking", "thinking": "hm", "signature": "c2ln"})
_parts = st.one_of(
    st.builds(e.Text, _words),
    st.builds(
        e.Opaque,
        provider=st.sampled_from(["anthropic", "google"]),
        data=st.sampled_from(
            [_thinking, "", "no json", "[]", '{"type":"text","text":""}', '{"type":"thinking"}']
        ),
    ),
    st.builds(
        e.Wish,
        tool=st.sampled_from(["refund", "look_up", "", "functions.refund", "a" * 80, "ä"]),
        arguments=st.sampled_from(
            ["{}", '{"order":"A-17"}', "", "{", "[1]", "null", "NaN", "[" * 9999, '"\\ud800"']
        ),
        provider_id=st.sampled_from(
            ["", "call_a", "call_b", "call_1-0", "call_2-1", "has space", "x" * 41, "é"]
        ),
    ),
)


@st.composite
def lives(draw, may_wait: bool = True) -> list[Fact]:
    """Facts of a random thread, of which at most the last turn is unfinished."""
    story = Story()
    story.tell(REF.opened, e.ThreadOpened(requester="rita"))

    def chat(most: int = 2) -> None:
        for _ in range(draw(st.integers(0, most))):
            story.say(
                draw(_words),
                draw(st.sampled_from(["system", "user", "note"])),
                draw(st.sampled_from(["", "ana"])),
            )

    turns = draw(st.integers(0, 4))
    for turn in range(1, turns + 1):
        chat()
        for attempt in range(1, draw(st.integers(1, 2)) + 1):
            story.ask(turn, attempt)
            chat(1)
        if draw(st.integers(0, 5)) == 0:
            story.tell(REF.replied(turn), e.ModelFailed(error="overloaded"))
            continue
        parts = draw(st.lists(_parts, max_size=5))
        story.reply(turn, *parts)
        wishes = [part for part in parts if isinstance(part, e.Wish)]
        endings = SETTLED + UNSETTLED if may_wait and turn == turns else SETTLED
        lanes = [
            life(REF.wish(turn, index), wish, draw(st.sampled_from(endings)), draw(_words))
            for index, wish in enumerate(wishes)
        ]
        while lanes := [lane for lane in lanes if lane]:
            story.tell(*draw(st.sampled_from(lanes)).pop(0))
            chat(1)
    chat()
    return story.facts


@st.composite
def disorder(draw, facts: list[Fact]) -> list[Fact]:
    """The same facts in any order, some of them twice."""
    again = draw(st.lists(st.sampled_from(facts), max_size=10))
    return draw(st.permutations([*facts, *again]))
