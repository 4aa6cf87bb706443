"""Who may say what: one login per role, and what the broker lets it do.

The kind of a fact and the name of the reviewer stand in the subject, so the broker itself sees to
it that a model cannot decide and that Ana cannot vote as Ben. Three things that are easy to get
wrong, all measured on 2.15:

* **Each role is an account of its own**, and imports from `LEDGER`, the account that holds the
  streams, exactly the subjects that it may use. Permissions of users within one account would not
  do. They check the subject of a request, not its *reply* subject, and the server answers wherever
  it is told to: a model that may read could record any bytes as `requested`, then ask for them with
  `...decided` as the reply subject, and the server would put them there. From another account, the
  answer goes no further than that account does: on through what it imports word by word, and
  through nothing that it imports by a wildcard. So no account imports word by word what its login
  may not publish; what `denied` takes back is imported by wildcards only, and tests try all of it.
* **Wildcards stand for whole tokens**, so `ledger.*.*.opened` would also let
  `ledger.<workspace>._policy.opened` pass. What belongs to the workspace is denied to whoever may
  not write it.
* **Who may create an ephemeral consumer can change a durable one**, by its name, in the request's
  body, where no permission looks. What cannot be changed is a consumer's start time, and the server
  says "no" when it differs. So durables can have an arbitrary start in the past that nobody else
  knows; `CONSUMER.INFO`, which would tell, is given for one's own durables only.

What the queue answers (consumers/pending_service.py) its own account offers, and the others import,
each what it may ask. `LEDGER` does not: whoever may create a consumer could have it deliver there,
and every fact would become a request. The queue may publish one answer for each request, to
wherever the server says it came from, so nobody can have it write anything.

The two texts that matter to the broker are made here, and pure: `permissions` and
`accounts_config`.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from ayes.consumers.pending_client import ROLE as QUEUE
from ayes.consumers.pending_client import SERVICE, SUBJECT
from ayes.ledger.nats.streams import PENDING
from ayes.ledger.subscriptions import DURABLES, LEDGER, OPERATOR, PARKED, TIMERS, Durable
from ayes.schemas.errors import BadInput
from ayes.schemas.ids import token
from ayes.schemas.slots import CLIENT, DELEGATION, GRANT, ORGANISATION, POLICY, ROOT, TOOL

#: What the ledger's account may hold: the four streams and buckets that are rebuilt beside, and
#: more consumers than all the streams may have together, so that one stream's readers cannot take
#: another's. The bytes are bounded by stream.
MAX_STREAMS: Final = 64
MAX_CONSUMERS: Final = 10_000

#: May do everything within the ledger's account. Sets up, and looks for drift; nothing runs on it
#: day by day.
ADMIN: Final = "admin"
#: Tells the server to read its configuration again, and nothing else: it is in another account than
#: the streams.
SYSTEM: Final = "system"
#: Roles that consumers and programs run as. People vote as `reviewer-<name>`.
WORKERS: Final = ("gate", "model", "executor", "queue")
ROLES: Final = (*WORKERS, "service", "operator", "organisation", "observer")
REVIEWER: Final = "reviewer-"

#: What is the workspace's own, and no thread of it.
_RESERVED: Final = (POLICY, TOOL, GRANT, DELEGATION)
_ORGANISATIONS: Final = f"{ROOT}.{ORGANISATION}.>"

#: In a slot or subject, the reviewer whose login it is; and the role, where each role has a subject
#: of its own.
_ME: Final = "{me}"

#: Who may fill each slot, by the shape that it has in `ayes.schemas.slots.FILLED_BY`, and by nobody
#: else. What reviewers may fill has their own name in it. Nobody fills an empty one any more: they
#: are of older logs.
#:
#: A client has slots of its own for what it runs, so that neither an executor nor a service can
#: forge the other's results. A model's wishes are requested by the gate, which reads them off the
#: reply.
WRITERS: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    ("opened",): ("service",),
    ("said", "*"): ("service",),
    ("turn", "#", "asked", "#"): ("model",),
    ("turn", "#", "replied"): ("model",),
    ("call", "*", "requested"): ("gate", "service"),
    ("call", "*", "gated"): ("gate",),
    ("call", "*", "vote", _ME): (REVIEWER,),
    ("call", "*", "escalated", "#"): ("gate",),
    ("call", "*", "announced"): ("gate",),
    ("call", "*", "withdrawn"): ("service",),
    ("call", "*", "decided"): ("gate",),
    ("call", "*", "revoked", _ME): (REVIEWER,),
    ("call", "*", "claim", "#"): ("executor",),
    ("call", "*", "finished"): ("executor",),
    ("call", "*", "late", "#"): ("executor",),
    ("call", "*", "claim", CLIENT, "#"): ("service",),
    ("call", "*", "finished", CLIENT): ("service",),
    ("call", "*", "late", CLIENT, "#"): ("service",),
    ("call", "*", "reconciled", _ME): (REVIEWER,),
    ("call", "*", "reconciled"): (),
    (POLICY, "#"): ("operator",),
    (TOOL, "*", "*"): ("executor", "service"),
    # Everybody gives in their own name. Anybody may take a standing yes back: it only makes things
    # stricter.
    (GRANT, _ME, "*", "given"): (REVIEWER,),
    (GRANT, "*", "*", "revoked"): ("gate",),
    (GRANT, "*", "*", "revoked", _ME): (REVIEWER,),
    (GRANT, "*", "*", "used", "#"): ("gate",),
    (DELEGATION, _ME, "*", "given"): (REVIEWER,),
    (DELEGATION, _ME, "*", "ended"): (REVIEWER,),
}

#: Who may publish to what else there is beside the slots and the durables' own subjects.
BESIDE: Final[dict[str, tuple[str, ...]]] = {
    # What no workspace can weaken is not for those who run one.
    f"{ROOT}.{ORGANISATION}.{POLICY}.*": ("organisation",),
    "$KV.pending.>": ("queue",),
    # Deadlines: set, and cancelled by purging the subject they stand on.
    "timer.set.>": ("gate",),
    f"$JS.API.STREAM.PURGE.{TIMERS}": ("gate",),
    f"parked.{OPERATOR}.>": ("operator",),
    # A worker reads what it parked itself when that is to be tried again.
    f"$JS.API.STREAM.MSG.GET.{PARKED}": ("operator", *WORKERS),
    f"$JS.API.DIRECT.GET.{PARKED}": ("operator", *WORKERS),
    f"$JS.API.DIRECT.GET.{PARKED}.>": ("operator",),
    f"$JS.API.CONSUMER.CREATE.{PARKED}": ("operator",),
    f"$JS.FC.{PARKED}.>": ("operator",),
    "$JS.API.CONSUMER.INFO.*.*": ("operator",),
}


def slots_of(role: str) -> tuple[str, ...]:
    """The subjects of the facts that a role may record, with wildcards; a reviewer is `reviewer-`
    and the name.
    """
    kind, me = (REVIEWER, role.removeprefix(REVIEWER)) if role.startswith(REVIEWER) else (role, "")
    return tuple(
        ".".join(
            (
                ROOT,
                "*",
                *(() if shape[0].startswith("_") else ("*",)),
                *(_word(one, me) for one in shape),
            )
        )
        for shape, roles in WRITERS.items()
        if kind in roles
    )


def _word(word: str, me: str) -> str:
    return "*" if word == "#" else me if word == _ME else word


#: Everybody reads everything. `CONSUMER.CREATE.<stream>`, without a name, creates ephemeral
#: consumers only; they time out by themselves, so nobody needs to delete one.
READING: Final = (
    "$JS.API.INFO",
    "$JS.API.STREAM.INFO.*",
    *(
        subject
        for stream in (LEDGER, PENDING)
        for subject in (
            f"$JS.API.STREAM.MSG.GET.{stream}",
            f"$JS.API.DIRECT.GET.{stream}",
            f"$JS.API.DIRECT.GET.{stream}.>",
            f"$JS.API.CONSUMER.CREATE.{stream}",
            f"$JS.FC.{stream}.>",
        )
    ),
    # What any NATS client asks for when it watches a bucket (many name their ephemeral consumers);
    # no durable reads it.
    f"$JS.API.CONSUMER.CREATE.{PENDING}.>",
    f"$JS.API.CONSUMER.INFO.{PENDING}.*",
    f"$JS.API.CONSUMER.DELETE.{PENDING}.*",
)

#: The ledger's account offers these; each role's account imports a part. `$JS.API.DIRECT.GET`
#: answers one request with many messages, so the server must be told to keep the way back open, and
#: to forget it when it falls silent.
_EXPORTS: Final = """\
      {service: "ledger.>"}
      {service: "timer.>"}
      {service: "parked.>"}
      {service: "$KV.>"}
      {service: "$JS.ACK.>"}
      {service: "$JS.FC.>"}
      {service: "$JS.API.>"}
      {service: "$JS.API.DIRECT.GET.LEDGER", response_type: stream, response_threshold: "5s"}
      {service: "$JS.API.DIRECT.GET.KV_pending", response_type: stream, response_threshold: "5s"}
      {service: "$JS.API.DIRECT.GET.PARKED", response_type: stream, response_threshold: "5s"}
      {stream: "deliver.>"}
      {stream: "_INBOX.>"}"""


#: What the queue's account offers. Who looks for services (ADR-32) is answered by each that there
#: is.
_OFFERED: Final = f"""\
    exports: [
      {{service: "{SUBJECT}"}}
      {{service: "$SRV.>", response_type: stream, response_threshold: "5s"}}
    ]
"""
#: Without it the queue could publish no answer; where to is known only once it is asked.
_ONE_ANSWER: Final = '      allow_responses: {max: 1, expires: "5s"}\n'
_ANSWERED: Final = (
    SUBJECT,
    *(
        f"$SRV.{verb}{whose}"
        for verb in ("PING", "INFO", "STATS")
        for whose in ("", f".{SERVICE}", f".{SERVICE}.*")
    ),
)
#: Who may look for services, and at how they fare.
_LOOKING: Final = ("operator", "observer")


class Permissions(Struct, frozen=True):
    """What the broker lets a login do. What is not allowed is denied; `denied` takes back what
    wildcards let in.
    """

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    denied: tuple[str, ...] = ()
    #: What it may ask the queue.
    asked: tuple[str, ...] = ()
    #: Where it is asked, and so may publish one answer to each who does.
    answered: tuple[str, ...] = ()


def permissions(role: str, durables: Iterable[Durable] = tuple(DURABLES.values())) -> Permissions:
    """What `role` may do.

    Raises:
        BadInput: there is no such role.
        BadId: there could not be such a reviewer.
    """
    if role.startswith(REVIEWER):
        token("reviewer", role.removeprefix(REVIEWER))
    elif role not in ROLES:
        raise BadInput(
            f"there is no role {role!r}. There are {', '.join((*ROLES, f'{REVIEWER}NAME'))}."
        )
    beside = [subject for subject, roles in BESIDE.items() if role in roles]
    facts = (*slots_of(role), *(subject for subject in beside if subject.startswith(f"{ROOT}.")))
    publish = [*dict.fromkeys((*facts, *beside, *READING))]
    subscribe = [f"_INBOX.{role}.>"]
    if own := [durable for durable in durables if durable.role == role]:
        subscribe.append(f"deliver.{role}.>")
        publish.append(f"parked.{role}.>")
        for durable in own:
            publish.append(f"$JS.ACK.{durable.stream}.{durable.name}.>")
            publish.append(f"$JS.API.CONSUMER.INFO.{durable.stream}.{durable.name}")
    kinds = {fact.split(".")[2] for fact in facts}
    denied = [f"{ROOT}.*.{kind}.>" for kind in _RESERVED if kind not in kinds]
    if role != "organisation":
        denied.append(_ORGANISATIONS)
    asked = (SUBJECT, "$SRV.>") if role in _LOOKING else (SUBJECT,)
    return Permissions(
        tuple(publish),
        tuple(subscribe),
        tuple(denied),
        asked=() if role == QUEUE else asked,
        answered=_ANSWERED if role == QUEUE else (),
    )


def accounts_config(
    passwords: Mapping[str, str], durables: Iterable[Durable] = tuple(DURABLES.values())
) -> str:
    """The accounts block of a nats-server configuration, for the roles that have a password."""
    durables = tuple(durables)
    roles = "".join(
        _role_account(role, password, permissions(role, durables), is_answered=QUEUE in passwords)
        for role, password in sorted(passwords.items())
        if role not in (ADMIN, SYSTEM)
    )
    return (
        "# Written by ayes; ops/broker/accounts.py says who may do what, and why it looks like "
        "this.\n"
        f"system_account: {SYSTEM}\n"
        "accounts {\n"
        f"  {SYSTEM} {{users: [{{user: {SYSTEM}, password: {_quoted(passwords[SYSTEM])}, "
        "permissions: "
        f'{{publish: ["$SYS.REQ.SERVER.*.RELOAD"], subscribe: ["_INBOX.{SYSTEM}.>"]}}}}]}}\n'
        f"  {LEDGER} {{\n"
        f"    jetstream: {{max_streams: {MAX_STREAMS}, max_consumers: {MAX_CONSUMERS}}}\n"
        f"    users: [{{user: {ADMIN}, password: {_quoted(passwords[ADMIN])}}}]\n"
        f"    exports: [\n{_EXPORTS}\n    ]\n"
        "  }\n"
        f"{roles}"
        "}\n"
    )


def _role_account(role: str, password: str, may: Permissions, *, is_answered: bool) -> str:
    publish, subscribe = (*may.publish, *may.asked), (*may.subscribe, *may.answered)
    imports = [
        f"{{service: {{account: {LEDGER}, subject: {_quoted(subject)}}}}}"
        for subject in may.publish
    ]
    imports += [
        f"{{stream: {{account: {LEDGER}, subject: {_quoted(subject)}}}}}"
        for subject in may.subscribe
    ]
    if is_answered:
        imports += [
            f"{{service: {{account: {QUEUE}, subject: {_quoted(subject)}}}}}"
            for subject in may.asked
        ]
    listed = "".join(f"      {line}\n" for line in imports)
    return (
        f"  {role} {{\n"
        f"    users: [{{user: {role}, password: {_quoted(password)}, permissions: {{\n"
        f"      publish: {{allow: {_quoted(publish)}, deny: {_quoted(may.denied)}}}\n"
        f"      subscribe: {{allow: {_quoted(subscribe)}}}\n"
        f"{_ONE_ANSWER if may.answered else ''}"
        "    }}]\n"
        f"    imports: [\n{listed}    ]\n"
        f"{_OFFERED if may.answered else ''}"
        "  }\n"
    )


def _quoted(value: str | tuple[str, ...]) -> str:
    # A JSON string or list of strings is one of nats-server's, too.
    return msgspec.json.encode(value).decode()
