"""Permissions: one login per role, and the subjects that the broker allows it.

The kind of a fact and the name of the reviewer are in the subject, so the broker itself ensures
that a model cannot decide and that Ana cannot vote as Ben. Five things that are easy to get wrong,
all measured on 2.15:

* **Each role is an account of its own**, and imports from `LEDGER`, the account that holds the
  streams, exactly the subjects that it may use. Permissions of users within one account would not
  suffice. They check the subject of a request, not its *reply* subject, and the server replies to
  any subject: a model that may read could record any bytes as `requested`, then request them with
  `...decided` as the reply subject, and the server would put them there. A reply into a role's
  account can only leave it through that account's literal imports, never through wildcard imports.
  So no account literally imports a subject that its user may not publish; subjects in `denied` are
  imported by wildcards only, and tests try all of it. On the broker of `up` people share one
  account, which imports their slots by wildcards.
* **Each connection has an inbox of its own** on the broker of `up`, which asks about the logins of
  all roles and people, and receives the permissions of each connection (callout.py, decision 0053).
  Where the accounts list the users, the programs with one login share the inboxes of the role.
* **Wildcards match whole tokens**, so `ledger.*.*.opened` would also match
  `ledger.<workspace>._policy.opened`. The workspace's own subjects are denied to roles that may not
  write them.
* **A login that has some workspaces only** may ask the JetStream API for nothing, since what is
  read is in the request's body. All such logins are in the account `scoped`, which imports by
  wildcards alone, and ask the service of reads.py (decision 0070). Executors and models among them
  have a durable each (decision 0072).
* **A role that may create an ephemeral consumer can change a durable one**, by its name in the
  request's body, which no permission checks. But a consumer's start time cannot be changed, and the
  server refuses a request with another one. So each durable can have a random start time in the
  past as a secret; `CONSUMER.INFO`, which reveals it, is allowed for a role's own durables only.
  The operator may ask about all of them, and so may create no consumer where durables are; its
  programs read the log in pages.

The live text of replies is not stored. The models' account exports its subject, and all others,
`LEDGER` too, import it from there: a server does not export messages that an account received
through a service import. The roles import that of models with some workspaces from `scoped`.

The account of the API over NATS (interfaces/api/nats.py) exports a service, and those who may ask
it import it, each with the subjects that name its login. `LEDGER` does not: a role that may create
a consumer could let it deliver to the service, and every fact would become a request. The service
may publish one answer for each request, to the reply subject that the server names, so no requester
can make it write anything.

The two functions that matter to the broker are pure: `permissions` and `accounts_config`.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import Struct

from ayes.ledger.clients.services import CALENDAR, CHANNEL, RENEWED
from ayes.ledger.nats import scopes
from ayes.ledger.nats.credentials import RegisteredLogin
from ayes.ledger.nats.keys import Key, is_seed
from ayes.ledger.nats.streams import (
    PENDING,
    RUNNING,
    SCOPED,
    STORED,
    VIEWS,
    deliver_subject,
)
from ayes.ledger.subscriptions import DURABLES, LEDGER, OPERATOR, PARKED, TIMERS, Durable
from ayes.schemas.errors import BadInput
from ayes.schemas.ids import token
from ayes.schemas.people import plain
from ayes.schemas.slots import (
    BUDGET,
    CLIENT,
    DELEGATION,
    FILES,
    GRANT,
    KEY,
    LOG,
    LOGIN,
    ONCALL,
    ORGANISATION,
    ORGANISATIONS,
    PACKED,
    PERSON,
    POLICY,
    ROOM,
    ROOT,
    STOP,
    TOOL,
)

#: Limits of the ledger's account: room for buckets that are rebuilt next to the streams, and
#: more consumers than all streams may have together, so that one stream's readers cannot use up
#: another's. Bytes are bounded by stream.
MAX_STREAMS: Final = 64
MAX_CONSUMERS: Final = 10_000

#: May do everything in the ledger's account. For set-up and drift detection only.
ADMIN: Final = "admin"
#: May only have the server reload its configuration and end connections, and ask whether it is
#: healthy and who is connected; it is in another account than the streams.
SYSTEM: Final = "system"
#: The roles of workers and programs. People vote as `reviewer-<name>`.
WORKERS: Final = ("gate", "model", "executor", "queue", "webhooks", "notifier", "slack", "absence")
#: Answers requests to the API over NATS.
API: Final = "api"
ROLES: Final = (*WORKERS, "service", "operator", "organisation", "observer", API)
REVIEWER: Final = "reviewer-"
#: The account of all people on a broker that asks about logins (callout.py).
PEOPLE: Final = "people"
#: The account and the login of the service that answers it.
CALLOUT: Final = "callout"
#: The login of the service that reads for them (reads.py), in the account that holds the streams.
READS: Final = "reads"
#: The site's own logins, which sign on with keys: `accounts.conf` has no secret of them.
OWN: Final = (ADMIN, SYSTEM, READS)
#: The roles that a login with some workspaces only may have, beside that of a reviewer.
SCOPED_ROLES: Final = ("service", *scopes.FOLLOWING, "operator", "observer")

#: The kinds that belong to the workspace, and to none of its threads.
_RESERVED: Final = (POLICY, TOOL, GRANT, DELEGATION, BUDGET, STOP, PERSON, LOGIN, KEY, ONCALL, LOG)
_ORGANISATIONS: Final = f"{ROOT}.{ORGANISATION}.>"

#: The name of the login's reviewer, in a slot.
_ME: Final = "{me}"

#: The only roles that may fill each slot, by its shape in `ayes.schemas.slots.FILLED_BY`. The slots
#: of reviewers contain their name.
#:
#: A client has slots of its own for its runs, so that neither an executor nor a service can forge
#: the other's results. A model's wishes are requested by the gate, which reads them in the reply.
WRITERS: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    ("opened",): ("service",),
    # Any service may give a thread its key, and the first counts: another one seals nothing there.
    ("keyed",): ("service",),
    ("forgetting",): ("operator",),
    ("forgotten",): ("operator",),
    # No role packs yet.
    (PACKED, "#"): (),
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
    ("call", "*", "lapsed"): ("gate",),
    ("call", "*", "claim", "#"): ("executor",),
    ("call", "*", "finished"): ("executor",),
    ("call", "*", "late", "#"): ("executor",),
    ("call", "*", "claim", CLIENT, "#"): ("service",),
    ("call", "*", "finished", CLIENT): ("service",),
    ("call", "*", "late", CLIENT, "#"): ("service",),
    ("call", "*", "notified", "*", "*"): ("notifier",),
    ("call", "*", "notified", ROOM, "*", "*"): ("notifier",),
    ("call", "*", "posted", "*"): ("slack",),
    ("call", "*", "comment", _ME, "#"): (REVIEWER,),
    ("call", "*", "handed", _ME, "#"): (REVIEWER,),
    ("call", "*", "reconciled", _ME): (REVIEWER,),
    (POLICY, "#"): ("operator",),
    (TOOL, "%", "*"): ("executor", "service"),
    # Reviewers give grants in their own name. Any of them may revoke one: that is only stricter.
    (GRANT, _ME, "*", "given"): (REVIEWER,),
    (GRANT, "*", "*", "revoked"): ("gate",),
    (GRANT, "*", "*", "revoked", _ME): (REVIEWER,),
    (GRANT, "*", "*", "used", "#"): ("gate",),
    (DELEGATION, _ME, "*", "given"): (REVIEWER,),
    (DELEGATION, _ME, "*", "ended"): (REVIEWER,),
    (DELEGATION, "*", "*", "absent"): ("absence",),
    (DELEGATION, "*", "*", "absent", "ended"): ("absence",),
    (BUDGET, "*", "*", "#"): ("gate",),
    # Everybody's stop counts at once; the gate ends those of people without the right.
    (STOP, _ME, "*", "given"): (REVIEWER,),
    (STOP, "*", "*", "resumed", _ME): (REVIEWER,),
    (STOP, "*", "*", "ended"): ("gate",),
    # An account by which somebody votes is bound by that person alone (decision 0054).
    (PERSON, _ME, "account", "#"): (REVIEWER,),
    (PERSON, "*", "#"): ("organisation",),
    (LOGIN, "*", "#"): ("organisation",),
    # Whose signatures a confirmation has matters, and not who records it. Anybody may revoke a key:
    # that is only stricter.
    (KEY, _ME, "*", "added"): (REVIEWER,),
    (KEY, "*", "*", "confirmed"): ("organisation",),
    (KEY, "*", "*", "confirmed", _ME): (REVIEWER,),
    (KEY, "*", "*", "revoked"): ("organisation",),
    (KEY, "*", "*", "revoked", _ME): (REVIEWER,),
    # Nobody says of themselves in which groups they are.
    (PERSON, "*", "groups", "#", "#"): (API,),
    (ONCALL, "*", "#", "#"): ("absence",),
    (LOG, "#"): ("organisation",),
}

#: The live text of replies (consumers/live.py). All roles but models may subscribe.
LIVE: Final = "live.>"
#: The role that publishes it, from whose account all others import it.
MODEL: Final = "model"

#: The consumers that park deliveries, and the roles of their workers.
_CONSUMERS: Final = tuple(name for name, one in DURABLES.items() if one.stream != PARKED)
_PARKING: Final = tuple(dict.fromkeys(DURABLES[name].role for name in _CONSUMERS))

#: The roles that store files, each in places of its own.
STORING: Final = ("service", "executor", MODEL)

#: The roles that may publish to subjects other than slots and the durables' own subjects.
OTHER_SUBJECTS: Final[dict[str, tuple[str, ...]]] = {
    # No workspace can weaken the organisation's policy, so its operators may not write it.
    f"{ROOT}.{ORGANISATION}.{POLICY}.*": ("organisation",),
    "$KV.pending.>": ("queue",),
    # The index of calls that may be in doubt. No service can take a call out of it.
    "$KV.running.>": ("queue",),
    f"$KV.running.{RENEWED}>": ("service",),
    # What is wrong with the channels of notices.
    f"$KV.running.{CHANNEL}>": ("notifier",),
    # What is wrong with the calendars of absences.
    f"$KV.running.{CALENDAR}>": ("absence",),
    # What was seen of the log, and how far it was read since.
    f"$KV.running.{LOG}.>": ("gate",),
    # The searches that people have saved. No other role may read them: some are private.
    "$KV.views.*": (API,),
    f"$JS.API.STREAM.MSG.GET.{VIEWS}": (API,),
    f"$JS.API.DIRECT.GET.{VIEWS}": (API,),
    # The live text of replies; nothing stores it.
    LIVE: (MODEL,),
    # Pieces of files, before the facts that refer to them.
    **{f"{FILES}.*.{role}.*.*": (role,) for role in STORING},
    # Deadlines: set, and cancelled by purging their subject.
    "timer.set.>": ("gate",),
    f"$JS.API.STREAM.PURGE.{TIMERS}": ("gate",),
    # Of all consumers, since each worker with some workspaces has one.
    f"parked.{OPERATOR}.*.*": ("operator",),
    # To drop an entry that belongs to no consumer.
    f"$JS.API.STREAM.MSG.DELETE.{PARKED}": ("operator",),
    # A worker reads its own parked deliveries to retry them.
    f"$JS.API.STREAM.MSG.GET.{PARKED}": ("operator", *_PARKING),
    f"$JS.API.DIRECT.GET.{PARKED}": ("operator", *_PARKING),
    f"$JS.API.DIRECT.GET.{PARKED}.>": ("operator",),
    "$JS.API.CONSUMER.INFO.*.*": ("operator",),
}


def slots_of(role: str, workspaces: tuple[str, ...] = ("*",)) -> tuple[str, ...]:
    """The subjects of the facts that a role may record in these workspaces, with wildcards; the
    role of a reviewer is `reviewer-` and the name.
    """
    kind, me = (REVIEWER, role.removeprefix(REVIEWER)) if role.startswith(REVIEWER) else (role, "")
    tokens = {"#": "*", "%": "*", _ME: me}
    return tuple(
        ".".join((ROOT, where, *thread, *(tokens.get(one, one) for one in shape)))
        for shape, roles in WRITERS.items()
        if kind in roles
        for thread in [() if shape[0].startswith("_") else ("*",)]
        for where in ((ORGANISATION,) if shape[0] in ORGANISATIONS else workspaces)
    )


#: All roles may read all of this; the operator without what is in `_CONSUMING`.
#: `CONSUMER.CREATE.<stream>`, without a name, creates ephemeral consumers only; they time out by
#: themselves, so no role needs to delete one.
READING: Final = (
    "$JS.API.INFO",
    "$JS.API.STREAM.INFO.*",
    *(
        subject
        for stream in (LEDGER, PENDING, RUNNING)
        for subject in (
            f"$JS.API.STREAM.MSG.GET.{stream}",
            f"$JS.API.DIRECT.GET.{stream}",
            f"$JS.API.DIRECT.GET.{stream}.>",
            f"$JS.API.CONSUMER.CREATE.{stream}",
            f"$JS.FC.{stream}.>",
        )
    ),
    # Files are read by their subjects.
    f"$JS.API.STREAM.MSG.GET.{STORED}",
    f"$JS.API.DIRECT.GET.{STORED}.>",
    # Any NATS client needs these to watch a bucket (many name their ephemeral consumers); there is
    # no durable consumer of it.
    f"$JS.API.CONSUMER.CREATE.{PENDING}.>",
    f"$JS.API.CONSUMER.INFO.{PENDING}.*",
    f"$JS.API.CONSUMER.DELETE.{PENDING}.*",
)

#: What nobody may who can read the durables' start times.
_CONSUMING: Final = (f"$JS.API.CONSUMER.CREATE.{LEDGER}", f"$JS.FC.{LEDGER}.>")

#: The exports of the ledger's account; each role's account imports a part. `$JS.API.DIRECT.GET`
#: answers one request with many messages, so the server must keep the reply subject open, until it
#: falls silent.
_EXPORTS: Final = """\
      {service: "ledger.>"}
      {service: "timer.>"}
      {service: "parked.>"}
      {service: "file.>"}
      {service: "$KV.>"}
      {service: "$JS.ACK.>"}
      {service: "$JS.FC.>"}
      {service: "$JS.API.>"}
      {service: "$JS.API.DIRECT.GET.LEDGER", response_type: stream, response_threshold: "5s"}
      {service: "$JS.API.DIRECT.GET.KV_pending", response_type: stream, response_threshold: "5s"}
      {service: "$JS.API.DIRECT.GET.KV_running", response_type: stream, response_threshold: "5s"}
      {service: "$JS.API.DIRECT.GET.KV_views", response_type: stream, response_threshold: "5s"}
      {service: "$JS.API.DIRECT.GET.PARKED", response_type: stream, response_threshold: "5s"}
      {stream: "deliver.>"}
      {stream: "_INBOX.>"}"""


#: The name of the API's service (ADR-32), and the subjects of its requests: who asks, as a role and
#: a name, and the endpoint.
API_SERVICE: Final = "approvals"
_REQUESTS: Final = f"{API_SERVICE}.*.*.*"
#: With the workspaces of a login that has some only, before the endpoint.
_SCOPED_REQUESTS: Final = f"{API_SERVICE}.*.*.*.*"
#: Discovery (ADR-32): a request is answered by every service.
_DISCOVERY: Final = "$SRV.>"
#: With it is watched whether the API is late (floods.py).
API_PING: Final = f"$SRV.PING.{API_SERVICE}"
#: Each server answers with its time, and with statistics about the account that asks, which imports
#: this by itself.
PING: Final = "$SYS.REQ.ACCOUNT.PING.STATZ"
#: On it consoles tell each other who looks at which call (interfaces/api/looking.py). No account
#: imports it.
LOOKING: Final = "console.looking"
#: The roles that may discover services and read their statistics.
_DISCOVERING: Final = ("operator", "observer")
#: A service could not answer without it, since a reply subject is known only from its request. The
#: API holds a request for a minute at most.
ANSWERS_FOR_S: Final = 90
_ONE_ANSWER: Final = f'      allow_responses: {{max: 1, expires: "{ANSWERS_FOR_S}s"}}\n'


class Permissions(Struct, frozen=True):
    """The subjects of a login. All others are denied, and those of `denied` even if a wildcard
    matches them.
    """

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    denied: tuple[str, ...] = ()
    #: The subjects on which it may ask services.
    asked: tuple[str, ...] = ()
    #: The subjects on which it is asked, with one answer to each request.
    answered: tuple[str, ...] = ()
    #: The subjects on which those who have the login talk to each other, within its account.
    among: tuple[str, ...] = ()

    @property
    def allowed(self) -> dict[str, tuple[str, ...]]:
        """All subjects that it may publish, and may subscribe to."""
        return {
            "publish": (*self.publish, *self.asked, *self.among),
            "subscribe": (*self.subscribe, *self.answered, *self.among),
        }


def permissions(
    role: str,
    durables: Iterable[Durable] = tuple(DURABLES.values()),
    inbox: str = "",
    *,
    login: str = "",
    workspaces: tuple[str, ...] = (),
) -> Permissions:
    """The permissions of `role`.

    Args:
        inbox: the token of the connection's own inbox; empty: every inbox of the role.
        login: the name of the login, by which it asks services; empty: whatever name it likes.
        workspaces: those that it may read and write, and no other; none: all of them.

    Raises:
        BadInput: there is no such role, or none with some workspaces only.
        BadId: it is not a valid name of a reviewer.
    """
    if role.startswith(REVIEWER):
        token("reviewer", role.removeprefix(REVIEWER))
    elif role not in ROLES:
        raise BadInput(
            f"there is no role {role!r}. There are {', '.join((*ROLES, f'{REVIEWER}NAME'))}."
        )
    if workspaces:
        return _scoped(role, inbox, login or role, workspaces)
    return _permissions(role, tuple(durables), inbox, login)


def _scoped(role: str, inbox: str, login: str, workspaces: tuple[str, ...]) -> Permissions:
    """The permissions of a login that has some workspaces only. It may ask the JetStream API for
    nothing, and the service of reads.py in the name of these workspaces.
    """
    is_person = role.startswith(REVIEWER)
    if not is_person and role not in SCOPED_ROLES:
        raise BadInput(
            f"the role {role} is for all workspaces. With some only there are "
            f"{', '.join((*SCOPED_ROLES, 'reviewer'))}."
        )
    scope = "+".join(token("workspace", one) for one in workspaces)
    facts = slots_of(role, workspaces)
    kinds = {fact.split(".")[2] for fact in facts}
    kind, name = (REVIEWER[:-1], role.removeprefix(REVIEWER)) if is_person else (role, login)
    publish = [*facts, f"{scopes.prefix(login, scope)}.>"]
    publish += [f"$JS.FC.{stream}.>" for stream in (LEDGER, PENDING, RUNNING)]
    for one in workspaces:
        publish += [f"{FILES}.{one}.{role}.*.*"] if role in STORING else []
        publish += [f"$KV.running.{RENEWED}{one}.>"] if role == "service" else []
        publish += [f"live.{one}.>"] if role == MODEL else []
    own = DURABLES[role].of(login, workspaces) if role in scopes.FOLLOWING else None
    if own is not None:
        publish.append(f"parked.{role}.{own.name}.*")
        publish += [f"$JS.ACK.{two.stream}.{two.name}.>" for two in (own, own.again)]
    return Permissions(
        tuple(publish),
        (f"_INBOX.{login}.{inbox}.>" if inbox else f"_INBOX.{login}.>",
         *(f"live.{one}.>" for one in workspaces),
         *((deliver_subject(two) for two in (own, own.again)) if own else ())),
        tuple(f"{ROOT}.{one}.{kind}.>" for one in workspaces for kind in _RESERVED
              if kind not in kinds),
        asked=() if own else (f"{API_SERVICE}.{kind}.{name}.{scope}.*",),
    )  # fmt: skip


def _permissions(
    role: str, durables: tuple[Durable, ...], inbox: str = "", login: str = ""
) -> Permissions:
    others = [subject for subject, roles in OTHER_SUBJECTS.items() if role in roles]
    facts = (*slots_of(role), *(subject for subject in others if subject.startswith(f"{ROOT}.")))
    reading = [one for one in READING if role != OPERATOR or one not in _CONSUMING]
    publish = [*dict.fromkeys((*facts, *others, *reading))]
    own_inbox = f"_INBOX.{role}.{inbox}.>" if inbox else f"_INBOX.{role}.>"
    subscribe = [own_inbox, *([] if role == MODEL else [LIVE])]
    if own := [durable for durable in durables if durable.role == role]:
        subscribe.append(f"deliver.{role}.>")
        for durable in own:
            if durable.stream != PARKED:
                publish.append(f"parked.{role}.{durable.name}.*")
            publish.append(f"$JS.ACK.{durable.stream}.{durable.name}.>")
            publish.append(f"$JS.API.CONSUMER.INFO.{durable.stream}.{durable.name}")
    kinds = {fact.split(".")[2] for fact in facts}
    denied = [f"{ROOT}.*.{kind}.>" for kind in _RESERVED if kind not in kinds]
    if kinds & {STOP, ONCALL}:  # of the organisation's slots those of stops, of their own accounts
        # and of who is on call alone
        every = f"{ROOT}.*."
        theirs = [fact for fact in facts if not fact.startswith(f"{every}{STOP}.")]
        denied += [fact.replace(every, f"{ROOT}.{ORGANISATION}.", 1) for fact in theirs]
        denied = [one for one in denied if one not in facts]
    elif role not in ("organisation", API):  # what the API may record is in one kind of slot
        denied.append(_ORGANISATIONS)
    return Permissions(
        tuple(publish),
        tuple(subscribe),
        tuple(denied),
        asked=_asked(role, login),
        answered=_answered() if role == API else (),
        among=(LOOKING,) if role == API else (),
    )


def _asked(role: str, login: str = "") -> tuple[str, ...]:
    """The subjects on which a role may ask services; a login of its own only in its own name."""
    if role.startswith(REVIEWER):
        return (f"{API_SERVICE}.reviewer.{role.removeprefix(REVIEWER)}.*",)
    name = login if login != role else ""
    asked = [f"{API_SERVICE}.{role}.{name or '*'}.*"] if role in ("service", *_DISCOVERING) else []
    if role == OPERATOR:
        asked.append(PING)
    return (*asked, _DISCOVERY) if role in _DISCOVERING else tuple(asked)


def _answered() -> tuple[str, ...]:
    """The subjects on which the API is asked."""
    verbs = [f"$SRV.{verb}" for verb in ("PING", "INFO", "STATS")]
    whose = ("", f".{API_SERVICE}", f".{API_SERVICE}.*")
    return (_REQUESTS, _SCOPED_REQUESTS, *(f"{verb}{one}" for verb in verbs for one in whose))


class Callout(Struct, frozen=True):
    """The service that the broker asks about logins (callout.py)."""

    #: The public key of the account that signs its answers.
    issuer: str
    #: The public key that it signs on with. With a user who has one, the server sends each client
    #: the number that a key has to sign.
    key: str


def accounts_config(
    passwords: Mapping[str, str],
    callout: Callout | None = None,
    logins: Mapping[str, RegisteredLogin] = MappingProxyType({}),
    of_people: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> str:
    """The accounts block of a nats-server configuration, for the roles that have a password, or the
    seed of a key in its place.

    Args:
        callout: the service that is asked about all other logins than admin and system. People
            then share an account; without it each of them has one.
        logins: those with keys, by name; not needed with a callout.
        of_people: as `Address.scopes`; likewise.
    """
    if callout:
        names = passwords.keys() - {*OWN}
        users = {role: list[str]() for role in names if not role.startswith(REVIEWER)}
    else:
        users = _users(passwords, logins, of_people)
    scoped = _scoped_account(passwords, users.pop(SCOPED, []))
    listed = sorted(users)
    roles = "".join(
        _role_account(role, permissions(role), ", ".join(users[role]), passwords) for role in listed
    )
    if callout:
        people = _role_account(PEOPLE, _everybody(), "", passwords)
        roles += f"{people}  {CALLOUT} {{users: [{{nkey: {callout.key}}}]}}\n"
    return (
        "# Written by ayes; ops/broker/accounts.py says who may do what, and why it looks like "
        "this.\n"
        f"system_account: {SYSTEM}\n"
        f"{_authorization(callout, (PEOPLE, SCOPED, *listed)) if callout else ''}"
        "accounts {\n"
        f"  {SYSTEM} {{users: [{{{_signing_on(SYSTEM, passwords)}, "
        'permissions: {publish: ["$SYS.REQ.SERVER.*.RELOAD", "$SYS.REQ.SERVER.*.HEALTHZ", '
        '"$SYS.REQ.SERVER.*.CONNZ", "$SYS.REQ.SERVER.*.KICK"], '
        f'subscribe: ["_INBOX.{SYSTEM}.>"]}}}}]}}\n'
        f"  {LEDGER} {{\n"
        f"    jetstream: {{max_streams: {MAX_STREAMS}, max_consumers: {MAX_CONSUMERS}}}\n"
        f"    users: [{{{_signing_on(ADMIN, passwords)}}}\n"
        f"{_reads(passwords)}    ]\n"
        f"    exports: [\n{_EXPORTS}\n    ]\n"
        f"{_imports(_imported_by_the_log(passwords))}"
        "  }\n"
        f"{scoped}"
        f"{roles}"
        "}\n"
    )


#: What scoped logins ask comes as a stream, so that the service sees their own reply subjects.
_READS: Final = "reads.>"
_ASKED_TO_READ: Final = ("stream", SCOPED, _READS)


def _imported_by_the_log(accounts: Container[str]) -> list[tuple[str, str, str]]:
    return [
        _ASKED_TO_READ,
        *([("stream", MODEL, LIVE)] if MODEL in accounts else []),
        *([("service", API, API_PING)] if API in accounts else []),
    ]


def _scoped_account(accounts: Container[str], users: Iterable[str]) -> str:
    """What all scoped logins import together, by wildcards alone; each has its own permissions."""
    written = (f"{ROOT}.>", f"{FILES}.>", f"$KV.running.{RENEWED}>", "parked.>")
    imports = [
        *(("service", LEDGER, subject) for subject in (*written, "$JS.FC.>", "$JS.ACK.>")),
        *(("stream", LEDGER, one) for one in ("_INBOX.*.>", f"deliver.{SCOPED}.>")),
        *([("stream", MODEL, LIVE)] if MODEL in accounts else []),
        *([("service", API, _SCOPED_REQUESTS)] if API in accounts else []),
    ]
    return (
        f"  {SCOPED} {{\n    users: [{', '.join(users)}]\n{_imports(imports)}"
        f"    exports: [{{stream: {_quoted(_READS)}, accounts: [{LEDGER}]}}, "
        f"{{stream: {_quoted(LIVE)}}}]\n  }}\n"
    )


def _reads(passwords: Mapping[str, str]) -> str:
    """The user of the service that reads for scoped logins."""
    if READS not in passwords:
        return ""
    asked = ("DIRECT.GET", "STREAM.MSG.GET", "STREAM.INFO")
    followed = (f"$JS.API.CONSUMER.CREATE.{one}" for one in (LEDGER, PENDING, RUNNING))
    may = Permissions(
        (
            *(f"$JS.API.{one}.{stream}" for one in asked
              for stream in (LEDGER, PENDING, RUNNING, STORED, PARKED)),
            *(f"$JS.API.CONSUMER.INFO.{stream}.*" for stream in (LEDGER, PARKED)),
            *(subject for one in followed for subject in (one, f"{one}.>")),
            "_INBOX.>",
        ),
        (_READS, f"_INBOX.{READS}.>"),
    )  # fmt: skip
    return f"      {_user(_signing_on(READS, passwords), may)}\n"


def _users(
    passwords: Mapping[str, str],
    logins: Mapping[str, RegisteredLogin],
    of_people: Mapping[str, tuple[str, ...]],
) -> dict[str, list[str]]:
    """The users of each account, as a server lists them that asks nobody."""
    users: defaultdict[str, list[str]] = defaultdict(list)

    def add(name: str, role: str, workspaces: tuple[str, ...], who: str) -> None:
        may = permissions(role, login=name, workspaces=workspaces)
        users[account_of(role, workspaces)].append(_user(who, may))

    for role in sorted(passwords.keys() - {*OWN}):
        add(role, role, of_people.get(plain(role), ()), _signing_on(role, passwords))
    for name, one in sorted(logins.items()):
        add(name, one.role, one.workspaces, f"nkey: {one.key}")
    return users


def _signing_on(user: str, passwords: Mapping[str, str]) -> str:
    """A user with a password, or with the public key of a seed."""
    secret = passwords[user]
    if is_seed(secret):
        return f"nkey: {Key(seed=secret).public}"
    return f"user: {user}, password: {_quoted(secret)}"


def _authorization(callout: Callout, accounts: tuple[str, ...]) -> str:
    """The service is asked about users who are not in the configuration."""
    # Longer than a client waits for its connection, so that one which reconnects before the service
    # does tries again instead of being refused.
    return (
        "authorization {\n"
        "  timeout: 5\n"
        f"  auth_callout {{issuer: {callout.issuer}, account: {CALLOUT}, "
        f"auth_users: [{callout.key}], allowed_accounts: {_quoted(accounts)}}}\n"
        "}\n"
    )


def _everybody() -> Permissions:
    """What people import together. Slots have their names, so that all of these are wildcards, and
    each person's own permissions say which.
    """
    may = _permissions(f"{REVIEWER}*", ())
    return msgspec.structs.replace(may, subscribe=("_INBOX.*.>", LIVE))


def account_of(role: str, workspaces: tuple[str, ...], *, callout: bool = False) -> str:
    """The account of a login. Where the broker asks about logins, all people have one."""
    if workspaces:
        return SCOPED
    return PEOPLE if callout and role.startswith(REVIEWER) else role


def _user(who: str, may: Permissions) -> str:
    allowed = may.allowed
    return (
        f"{{{who}, permissions: {{\n"
        f"      publish: {{allow: {_quoted(allowed['publish'])}, deny: {_quoted(may.denied)}}}\n"
        f"      subscribe: {{allow: {_quoted(allowed['subscribe'])}}}\n"
        f"{_ONE_ANSWER if may.answered else ''}"
        "    }}"
    )


def _role_account(name: str, may: Permissions, user: str, accounts: Container[str]) -> str:
    imports = [
        *(("service", LEDGER, subject) for subject in may.publish if subject != LIVE),
        *(
            ("stream", MODEL if subject == LIVE else LEDGER, subject)
            for subject in may.subscribe
            if subject != LIVE or MODEL in accounts
        ),
        *(("stream", SCOPED, subject) for subject in may.subscribe if subject == LIVE),
        *(
            ("service", API, subject)
            for subject in may.asked
            if subject != PING and API in accounts
        ),
    ]
    return f"  {name} {{\n    users: [{user}]\n{_imports(imports)}{_offered(name)}  }}\n"


def _imports(imports: Iterable[tuple[str, str, str]]) -> str:
    """Each is `service` or `stream`, an account, and a subject."""
    listed = "".join(
        f"      {{{kind}: {{account: {account}, subject: {_quoted(subject)}}}}}\n"
        for kind, account, subject in imports
    )
    return f"    imports: [\n{listed}    ]\n" if listed else ""


def _offered(role: str) -> str:
    if role == API:
        discovery = f'{{service: "{_DISCOVERY}", response_type: stream, response_threshold: "5s"}}'
        requests = (f"{{service: {_quoted(one)}}}" for one in (_REQUESTS, _SCOPED_REQUESTS))
        offered = [*requests, discovery]
    elif role == MODEL:
        offered = [f"{{stream: {_quoted(LIVE)}}}"]
    else:
        return ""
    listed = "".join(f"      {one}\n" for one in offered)
    return f"    exports: [\n{listed}    ]\n"


def _quoted(value: str | tuple[str, ...]) -> str:
    # A JSON string or list of strings is also valid in a nats-server configuration.
    return msgspec.json.encode(value).decode()
