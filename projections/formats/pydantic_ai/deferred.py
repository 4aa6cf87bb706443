"""A pending turn in pydantic-ai's types: its `DeferredToolRequests` and `DeferredToolResults`.

A run of an agent that ends with deferred calls continues later, from the same messages and with a
result for each call:

    agent.run(message_history=messages(thread), deferred_tool_results=results(thread))

So an agent keeps its own loop and tools, and asks the ledger about the calls. The values are plain
JSON, as the library's types load them (version 2.68, `_deferred.py`); the library itself is not
needed here.

1.  Calls have the ids that the `pydantic_ai` writer gives them, now and when they are settled.
2.  `approvals` are the calls about which people are asked; `metadata` says about what, with the
    digest that a vote carries. `calls` are those that may run, under exactly the arguments that
    were approved, and that the client runs. A call that the gate has not judged yet, that an
    executor runs, that was started, or whose end is in doubt is in neither: there is nothing to do
    about it, but it is still awaited.
3.  Only what is approved is handed over as approved. The approval must fit the very bytes
    (`Call.flaw`), and a reviewer's edit goes along as `override_args`. A call of the client's is in
    `calls` of the requests and approved in the results: either the client runs it and posts what it
    gave, or the agent runs it. Both would run it twice.
4.  A denial is a `ToolDenied`, in the words that the model reads. Every other ending without a
    result is a `ToolFailed`: an expired call was not denied. A tool's output, and a person's answer
    in its place, is a return.
5.  The library takes results only for a whole turn. `is_ready` says whether all of it has one.

An edit that is not an object is refused: the library has no place for it. Messages since the turn
are left out: they are the prompt of the run that continues.
"""

from collections.abc import Iterator

from ayes.ledger.call import Call
from ayes.ledger.lifecycle import Status
from ayes.projections.formats.common import JsonObject, non_blank, parse_json, tool_name
from ayes.projections.formats.pairing import mint_call_id
from ayes.projections.formats.pydantic_ai.opaque import responded
from ayes.projections.formats.pydantic_ai.write import written
from ayes.projections.history import Assistant, history, told
from ayes.projections.thread import Thread
from ayes.schemas import events as e
from ayes.schemas.content import words
from ayes.schemas.errors import BadInput


def messages(thread: Thread) -> list[JsonObject]:
    """The messages up to the last turn, which ends them: all of its calls, and no return.

    Raises:
        BadInput: the last turn has no reply, or one before it still waits.
    """
    return _messages(thread)[0]


def requests(thread: Thread) -> JsonObject:
    """The open calls of the last turn, as `DeferredToolRequests` loads them.

    Raises:
        BadInput: the last turn has no reply, or one before it still waits.
    """
    approvals: list[JsonObject] = []
    calls: list[JsonObject] = []
    metadata: dict[str, JsonObject] = {}
    for part, call, _wish in _asked(thread):
        if call.status is Status.PENDING and call.approval_request is not None:
            approvals.append(part)
            metadata[part["tool_call_id"]] = _about(call, call.approval_request)
        elif _may_run(call):
            calls.append({**part, "tool_name": tool_name(call.wish.tool), "args": call.arguments})
    return {"calls": calls, "approvals": approvals, "metadata": metadata}


def results(thread: Thread) -> JsonObject:
    """The results of the last turn's calls so far, as `DeferredToolResults` loads them.

    Raises:
        BadInput: the last turn has no reply, or an approved edit is not an object, so the library
            could not take it.
    """
    approvals: dict[str, JsonObject] = {}
    calls: dict[str, JsonObject | str] = {}
    for part, call, wish in _asked(thread):
        id_ = part["tool_call_id"]
        if _may_run(call):
            approvals[id_] = _approved(call)
        elif (ended := told(call, wish)) is None:
            continue
        elif ended.kind == "denied":
            approvals[id_] = {"message": non_blank(words(ended.text)), "kind": "tool-denied"}
        elif ended.is_error:
            calls[id_] = {"message": non_blank(words(ended.text)), "kind": "tool-failed"}
        else:
            calls[id_] = words(ended.text)
    return {"calls": calls, "approvals": approvals}


def is_ready(thread: Thread) -> bool:
    """Whether every call of the last turn has a result: the library takes them only together."""
    found = results(thread)
    return len(found["calls"]) + len(found["approvals"]) == len(thread.wishes(thread.latest))


def _messages(thread: Thread) -> tuple[list[JsonObject], list[JsonObject]]:
    """The messages, and those parts of the last one that are calls, in the order of the wishes."""
    number = thread.latest
    turn = thread.turns.get(number)
    if turn is None or turn.reply is None:
        raise BadInput(
            f"the last turn of {thread.ref} has no reply, so nothing of it can be deferred."
        )
    before = history(thread, before_turn=number)
    if before.stopped_at is not None:
        raise BadInput(
            f"{before.stopped_at} is of an earlier turn and not settled. The library has no place "
            "for it."
        )
    used: set[str] = set()
    sent = written(before.entries, used)
    ids = {
        ref.call: mint_call_id(ref.call, wish.provider_id, used, bool)
        for ref, wish in thread.wishes(number)
    }
    parts = responded(Assistant(number, turn.reply.parts), ids)
    last = {"parts": parts, "kind": "response"}
    return [*sent, last], [part for part in parts if part["part_kind"] == "tool-call"]


def _asked(thread: Thread) -> Iterator[tuple[JsonObject, Call, e.Wish]]:
    """The calls of the last turn: as the library has them, and as the ledger has them."""
    parts = _messages(thread)[1]
    for part, (ref, wish) in zip(parts, thread.wishes(thread.latest), strict=True):
        yield part, thread.call(ref), wish


def _about(call: Call, asking: e.ApprovalRequested) -> JsonObject:
    """The approval request, with the digest that a vote must carry."""
    return {
        "call": str(call.ref),
        "rule": asking.rule,
        "reason": asking.reason,
        "digest": asking.digest,
    }


def _may_run(call: Call) -> bool:
    """Whether it is approved for exactly the recorded arguments, and the client runs it."""
    return call.status is Status.APPROVED and call.wish.run_by == "client" and call.flaw is None


def _approved(call: Call) -> JsonObject:
    if call.arguments == call.wish.arguments:
        return {"kind": "tool-approved"}
    edited = parse_json(call.arguments)
    if not isinstance(edited, dict):
        raise BadInput(
            f"{call.ref} was approved with arguments that are not an object, which pydantic-ai "
            "does not take. Run it from `calls`, with the text as it is."
        )
    return {"override_args": edited, "kind": "tool-approved"}
