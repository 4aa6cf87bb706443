"""The subjects of the ledger as an AsyncAPI 3.1 document, made from the code.

`ayes schema --asyncapi` prints what `python tests/docs/test_schemas.py` wrote with it.

    channel      a slot (`schemas/slots.py`), an endpoint of the API over NATS, the pieces of a
                 stored file, or those of a reply while a model gives it
    message      an event, a request, an answer or a piece
    operation    what a login may do there (`ops/broker/accounts.py`)
    x-jetstream  what AsyncAPI has no words for: the stream, and the headers of a publish

A slot is filled by a request: the broker answers with the number of the fact, or with an error. So
each operation that records has a reply.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ayes import __version__
from ayes.interfaces.api.nats import EndpointSchema
from ayes.interfaces.problems import Problem
from ayes.ledger.files import PIECE_BYTES
from ayes.ledger.nats.streams import STORED
from ayes.ops.broker.accounts import (
    API_SERVICE,
    LIVE,
    OTHER_SUBJECTS,
    REVIEWER,
    STORING,
    WRITERS,
)
from ayes.projections.live import Piece
from ayes.schemas import json_schema
from ayes.schemas.slots import (
    BUDGET,
    DELEGATION,
    FILES,
    FILLED_BY,
    GRANT,
    KEY,
    LOG,
    LOGIN,
    ONCALL,
    ORGANISATION,
    ORGANISATIONS,
    PERSON,
    POLICY,
    ROOT,
    STOP,
    TOOL,
)

#: What the wildcards of a shape stand for, in their order.
_NAMES: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    ("said", "*"): ("message",),
    ("turn", "#", "asked", "#"): ("turn", "attempt"),
    ("turn", "#", "replied"): ("turn",),
    ("call", "*", "vote", "*"): ("call", "reviewer"),
    ("call", "*", "escalated", "#"): ("call", "stage"),
    ("call", "*", "revoked", "*"): ("call", "reviewer"),
    ("call", "*", "claim", "#"): ("call", "attempt"),
    ("call", "*", "late", "#"): ("call", "number"),
    ("call", "*", "claim", "client", "#"): ("call", "attempt"),
    ("call", "*", "late", "client", "#"): ("call", "number"),
    ("call", "*", "notified", "*", "*"): ("call", "person", "occasion"),
    ("call", "*", "notified", "room", "*", "*"): ("call", "room", "occasion"),
    ("call", "*", "posted", "*"): ("call", "channel"),
    ("call", "*", "comment", "*", "#"): ("call", "author", "number"),
    ("call", "*", "handed", "*", "#"): ("call", "reviewer", "number"),
    ("call", "*", "reconciled", "*"): ("call", "reviewer"),
    (POLICY, "#"): ("version",),
    (TOOL, "%", "*"): ("tool", "version"),
    (GRANT, "*", "*", "given"): ("reviewer", "grant"),
    (GRANT, "*", "*", "revoked"): ("reviewer", "grant"),
    (GRANT, "*", "*", "revoked", "*"): ("giver", "grant", "reviewer"),
    (GRANT, "*", "*", "used", "#"): ("giver", "grant", "number"),
    (DELEGATION, "*", "*", "given"): ("reviewer", "delegation"),
    (DELEGATION, "*", "*", "ended"): ("reviewer", "delegation"),
    (DELEGATION, "*", "*", "absent"): ("giver", "delegation"),
    (DELEGATION, "*", "*", "absent", "ended"): ("giver", "delegation"),
    (BUDGET, "*", "*", "#"): ("budget", "sum", "number"),
    (STOP, "*", "*", "given"): ("reviewer", "stop"),
    (STOP, "*", "*", "resumed", "*"): ("giver", "stop", "reviewer"),
    (STOP, "*", "*", "ended"): ("giver", "stop"),
    (PERSON, "*", "account", "#"): ("reviewer", "number"),
    (PERSON, "*", "#"): ("person", "number"),
    (LOGIN, "*", "#"): ("login", "number"),
    **{(KEY, "*", "*", one): ("person", "key") for one in ("added", "confirmed", "revoked")},
    **{
        (KEY, "*", "*", one, "*"): ("person", "key", "reviewer") for one in ("confirmed", "revoked")
    },
    (PERSON, "*", "groups", "#", "#"): ("person", "day", "number"),
    (ONCALL, "*", "#", "#"): ("schedule", "day", "number"),
    (LOG, "#"): ("number",),
}
_ID: Final = "1 to 64 characters of A-Z a-z 0-9 _ -, the first no _"
#: The other placeholders of a shape.
_MEANINGS: Final = {
    "#": "A number, counted from 1",
    "%": "A tool's name; `=2E` is a dot, `=2F` a slash, `=5F` an underscore at its beginning",
}
_STREAM: Final = {"stream": "LEDGER", "retention": "for ever", "subjects": f"{ROOT}.>"}
#: Of a publish to a slot. The first keeps two writers apart, the second makes it safe to repeat.
_HEADERS: Final = {
    "type": "object",
    "required": ["Nats-Expected-Last-Subject-Sequence", "Nats-Msg-Id"],
    "properties": {
        "Nats-Expected-Last-Subject-Sequence": {
            "type": "string",
            "const": "0",
            "description": "The slot is free. Otherwise the broker refuses it with error 10071.",
        },
        "Nats-Msg-Id": {"type": "string", "description": "The event's `id`."},
    },
}
_REPLY: Final = {"$ref": "#/channels/reply"}


def document(endpoints: Mapping[str, EndpointSchema]) -> dict[str, Any]:
    """The document.

    Args:
        endpoints: those of the API over NATS.
    """
    channels: dict[str, Any] = {"reply": _reply(endpoints)}
    operations: dict[str, Any] = {}
    for shape in FILLED_BY:
        name = _name(shape)
        channels[name] = _slot(shape)
        for role in _writers(shape):
            operations[f"{role}_records_{name}"] = _records(name, role)
        operations[f"read_{name}"] = {
            "action": "receive",
            "channel": {"$ref": f"#/channels/{name}"},
            "summary": "With an ephemeral or ordered consumer, or by a direct get.",
        }
    channels |= {"file_piece": _FILE, "live_piece": _SAID}
    operations |= _pieces()
    for name, endpoint in endpoints.items():
        channels[f"api_{name}"] = _endpoint(name, endpoint)
        operations[f"api_{name}"] = {
            "action": "send",
            "channel": {"$ref": f"#/channels/api_{name}"},
            "summary": endpoint.description,
            "bindings": {"nats": {"queue": "q"}},
            "reply": _answer(f"api_{name}_answer", "api_problem"),
        }
    return {
        "asyncapi": "3.1.0",
        "id": "urn:ayes",
        "info": {
            "title": "ayes",
            "version": __version__,
            "description": "An event-sourced ledger of approvals for AI agents. A subject is a "
            "slot: it holds one fact, for ever.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "broker": {
                "host": "{host}",
                "protocol": "nats",
                "description": "NATS with JetStream, 2.12 or newer. Each login has a role.",
                "variables": {"host": {"default": "127.0.0.1:4222"}},
                "security": [{"$ref": f"#/components/securitySchemes/{one}"} for one in _roles()],
            }
        },
        "channels": channels,
        "operations": operations,
        "components": {
            "schemas": json_schema.components("#/components/schemas/{name}")
            | _api_schemas(endpoints),
            "messages": _messages(endpoints),
            "securitySchemes": {
                role: {"type": "userPassword", "description": f"The login {role!r}."}
                for role in _roles()
            },
        },
    }


def _roles() -> tuple[str, ...]:
    found = {role.rstrip("-") for roles in WRITERS.values() for role in roles}
    return tuple(sorted({*found, "observer"}))


def _writers(shape: tuple[str, ...]) -> Iterable[str]:
    for written, roles in WRITERS.items():
        if tuple("*" if one == "{me}" else one for one in written) == shape:
            return [role.rstrip("-") for role in roles]
    return ()


def _name(shape: tuple[str, ...]) -> str:
    """Such as `call_vote`: the words of the slot, and the writer where two have the same ones."""
    words = [one.removeprefix("_") for one in shape if one not in ("*", "#", "%")]
    if shape == (GRANT, "*", "*", "revoked"):
        words.append("by_gate")
    if shape[0] == KEY and shape[-1] == "*":
        words.append("by_person")
    return "_".join(words)


def _parameters(shape: tuple[str, ...]) -> list[tuple[str, str]]:
    """The tokens of the address, and the parameter that each is, if any."""
    names = iter(_NAMES.get(shape, ("call",)))
    return [(one, next(names) if one in ("*", "#", "%") else "") for one in shape]


def _slot(shape: tuple[str, ...]) -> dict[str, Any]:
    tokens = _parameters(shape)
    where = ORGANISATION if shape[0] in ORGANISATIONS else "{workspace}"
    head = [ROOT, where] + ([] if shape[0].startswith("_") else ["{thread}"])
    address = ".".join([*head, *(f"{{{name}}}" if name else one for one, name in tokens)])
    parameters = {one[1:-1]: {"description": _ID} for one in head if one.startswith("{")}
    for one, name in tokens:
        if name:
            parameters[name] = {"description": _MEANINGS.get(one, _ID)}
    return {
        "address": address,
        "parameters": parameters,
        "messages": {
            kind.__name__: {"$ref": f"#/components/messages/{kind.__name__}"}
            for kind in FILLED_BY[shape]
        },
        "x-jetstream": _STREAM,
    }


def _records(name: str, role: str) -> dict[str, Any]:
    own = " In the own name alone." if role == REVIEWER.rstrip("-") else ""
    return {
        "action": "send",
        "channel": {"$ref": f"#/channels/{name}"},
        "summary": f"Recorded by the role {role}.{own}",
        "security": [{"$ref": f"#/components/securitySchemes/{role}"}],
        "reply": _answer("recorded", "refused"),
    }


_FILE: Final = {
    "address": f"{FILES}.{{workspace}}.{{role}}.{{id}}.{{number}}",
    "description": "A stored file: facts have its place, `<role>.<id>`, and its digest. A place "
    "takes one piece. What no fact names is removed by `ayes files sweep`, after a day or later.",
    "parameters": {
        "workspace": {"description": _ID},
        "role": {"description": "The role of its writer"},
        "id": {"description": "32 random hexadecimal digits"},
        "number": {"description": "The number of the piece, counted from 1"},
    },
    "messages": {"file_piece": {"$ref": "#/components/messages/file_piece"}},
    "x-jetstream": {"stream": STORED, "retention": "for ever", "subjects": f"{FILES}.>"},
}
_SAID: Final = {
    "address": LIVE.replace(">", "{workspace}.{thread}.{turn}"),
    "description": "The text of a reply while the model gives it. It is not stored, and parts may "
    "be lost: the recorded reply is the only truth.",
    "parameters": {
        "workspace": {"description": _ID},
        "thread": {"description": _ID},
        "turn": {"description": _MEANINGS["#"]},
    },
    "messages": {"live_piece": {"$ref": "#/components/messages/live_piece"}},
}


def _pieces() -> dict[str, Any]:
    """The operations on pieces of files, and on pieces of replies while models give them."""
    file, said = {"$ref": "#/channels/file_piece"}, {"$ref": "#/channels/live_piece"}
    operations: dict[str, Any] = {}
    for role in STORING:
        operations[f"{role}_stores_file_piece"] = {
            "action": "send",
            "channel": file,
            "summary": f"Stored by the role {role}, before the fact that refers to the file.",
            "security": [{"$ref": f"#/components/securitySchemes/{role}"}],
            "reply": _answer("recorded", "refused"),
        }
    operations["read_file_piece"] = {
        "action": "receive",
        "channel": file,
        "summary": "By a direct get of its subject. Compare the digest of all pieces together.",
    }
    for role in OTHER_SUBJECTS[LIVE]:
        operations[f"{role}_says_live_piece"] = {
            "action": "send",
            "channel": said,
            "summary": f"Said by the role {role}.",
            "security": [{"$ref": f"#/components/securitySchemes/{role}"}],
        }
    operations["follow_live_piece"] = {
        "action": "receive",
        "channel": said,
        "summary": "With a plain subscription, in every role that may not publish it.",
    }
    return operations


def _answer(*messages: str) -> dict[str, Any]:
    return {
        "address": {"location": "$message.header#/reply", "description": "The inbox of the client"},
        "channel": _REPLY,
        "messages": [{"$ref": f"#/channels/reply/messages/{one}"} for one in messages],
    }


def _reply(endpoints: Mapping[str, EndpointSchema]) -> dict[str, Any]:
    names = ["recorded", "refused", "api_problem", *(f"api_{one}_answer" for one in endpoints)]
    return {
        "address": None,
        "description": "The reply subject of a request.",
        "messages": {one: {"$ref": f"#/components/messages/{one}"} for one in names},
    }


def _endpoint(name: str, endpoint: EndpointSchema) -> dict[str, Any]:
    return {
        "address": f"{API_SERVICE}.{{role}}.{{name}}.{name}",
        "description": endpoint.description,
        "parameters": {
            "role": {
                "description": "The role of the login",
                "enum": ["service", "reviewer", "operator", "observer"],
            },
            "name": {
                "description": f"The reviewer, or the author of what is recorded: {_ID}. A login "
                "of some workspaces adds a dot and these, joined by +"
            },
        },
        "messages": {f"api_{name}_request": {"$ref": f"#/components/messages/api_{name}_request"}},
    }


def _messages(endpoints: Mapping[str, EndpointSchema]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kinds in FILLED_BY.values():
        for kind in kinds:
            found[kind.__name__] = {
                "name": kind.__name__,
                "summary": (kind.__doc__ or "").partition("\n")[0],
                "headers": _HEADERS,
                "payload": {"$ref": f"#/components/schemas/{kind.__name__}"},
            }
    for name, endpoint in endpoints.items():
        found[f"api_{name}_request"] = _message(f"{name}: request", endpoint.request)
        found[f"api_{name}_answer"] = _message(f"{name}: answer", endpoint.response)
    number = {"type": "integer", "minimum": 1, "description": "The number of the fact."}
    found["recorded"] = _message(
        "It is recorded.",
        {
            "type": "object",
            "required": ["stream", "seq"],
            "properties": {
                "stream": {"type": "string", "description": json_schema.EVERYWHERE["stream"]},
                "seq": number,
            },
        },
    )
    found["refused"] = _message(
        "It is not recorded.",
        {
            "type": "object",
            "required": ["error"],
            "properties": {
                "error": {
                    "type": "object",
                    "description": "As the broker has it.",
                    "properties": {
                        "code": {"type": "integer", "description": "Its class, as in HTTP."},
                        "err_code": {"type": "integer", "description": "10071: the slot is taken."},
                        "description": {"type": "string", "description": "In words."},
                    },
                }
            },
        },
    )
    own = json_schema.schemas([Piece, Problem], "#/{name}")
    about_piece = "A part of the text of a reply, and where it begins."
    found["live_piece"] = _message(about_piece, own["Piece"])
    found["file_piece"] = {
        "summary": f"{PIECE_BYTES:,} bytes of a file; the last piece may have fewer.",
        "contentType": "application/octet-stream",
        "payload": {"type": "string", "format": "binary"},
    }
    found["api_problem"] = _message(
        "An error: a problem of RFC 9457, with its status and detail in the headers of ADR-32.",
        own["Problem"],
    )
    return found


def _message(summary: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    return {"summary": summary, "payload": _moved(payload)}


def _api_schemas(endpoints: Mapping[str, EndpointSchema]) -> dict[str, Any]:
    """What the requests and answers of the API are made of, under names of their own."""
    both = [one for endpoint in endpoints.values() for one in (endpoint.request, endpoint.response)]
    found = {name: one for schema in both for name, one in schema.get("$defs", {}).items()}
    return {f"api_{name}": _moved(found[name]) for name in sorted(found)}


def _moved(part: Any) -> Any:
    """A schema of the API with references into this document."""
    match part:
        case {"$ref": str(ref)}:
            return {**part, "$ref": ref.replace("#/$defs/", "#/components/schemas/api_")}
        case dict():
            return {key: _moved(value) for key, value in part.items() if key != "$defs"}
        case list():
            return [_moved(one) for one in part]
        case _:
            return part
