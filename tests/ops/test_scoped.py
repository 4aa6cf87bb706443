"""Two tenants on one broker: what a login of one may ask for, hear and write.

The oracle knows none of the product's tables. Everything of the other tenant has one word in its
subject and in its bytes, and nothing that a login of this tenant receives, whatever it asks for by
a raw client, may have that word. The questions are the subjects of the JetStream API as its own
documentation lists them, each with every body in which somebody else's subject can be named.
"""

import asyncio
import base64
import json
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio
from cluster import cluster
from logins import Somebody
from long import sampled
from until import until

from ayes.ledger.clients.services import Ledger
from ayes.ledger.files import keep
from ayes.ledger.nats.credentials import Address, RegisteredLogin, Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.keys import Key
from ayes.ledger.nats.streams import employ
from ayes.ledger.subscriptions import DURABLES
from ayes.ops.broker.reads import Reads
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.broker.setup import apply_policy, declare_streams
from ayes.schemas.slots import CallRef
from ayes.schemas.tools import ToolSpec

shared = pytest.mark.asyncio(loop_scope="module")

OURS, THEIRS = "amber", "zirkon"
WORD = THEIRS.encode()
#: The logins of both tenants, one that has both, and what they are.
LOGINS = {
    f"{role}-{where}": (role, tuple(where.split("-")))
    for role in ("service", "operator", "observer", "executor", "model")
    for where in (OURS, THEIRS, f"{OURS}-{THEIRS}")
} | {"ana": ("reviewer-ana", (OURS,)), "ben": ("reviewer-ben", (THEIRS,))}
KEYS = {name: Key() for name in LOGINS}
TENANTS = [name for name, (_, where) in LOGINS.items() if where == (OURS,)]
POLICY = '[[rule]]\nname = "ask"\ntools = ["*"]\nthen = "ask"\nreason = "{}"\n'


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=sampled(["one server", "three nodes"], "one server"),
)
async def server(request, tmp_path_factory):
    """The first asks about each login; the others list them."""
    path = tmp_path_factory.mktemp("site")
    one = request.param == "one server"
    store = Store(path / ("store" if one else "cluster"))
    store.path.mkdir(mode=0o700)
    now = datetime.now(UTC)
    known = {
        name: RegisteredLogin(role, KEYS[name].public, now + timedelta(hours=1), now, where)
        for name, (role, where) in LOGINS.items()
    }
    store.write(Address(logins=known))
    async with AsyncExitStack() as stack:
        if one:
            await stack.enter_async_context(EmbeddedServer(store.path, sync="2m"))
            await declare_streams(store.path)
        else:
            await stack.enter_async_context(cluster(path))
            reads = Reads(store.login("reads"))
            await reads.open()
            stack.push_async_callback(reads.close)
        async with JetStream.connect(store.path, role="admin") as log:
            for name, (role, where) in LOGINS.items():
                if role in ("executor", "model"):
                    await employ(log.api, DURABLES[role].of(name, where))
        for where in (OURS, THEIRS):
            await filled(store, where)
        yield store


async def filled(store, where):
    """Something of a workspace in everything that holds anything, with its name in it."""
    async with AsyncExitStack() as stack:

        async def of(role):
            return await stack.enter_async_context(Ledger.connect(store.path, role=role))

        service, operator, queue = [await of(one) for one in ("service", "operator", "queue")]
        await apply_policy(operator, where, POLICY.format(where), "a test")
        await service.declare(where, ToolSpec(name=f"tool-{where}", schema='{"type":"object"}'))
        call = CallRef(where, f"thread-{where}", f"call-{where}")
        await service.request(call, f"tool-{where}", {"what": where}, requester=where)
        await keep(service.log, where, where.encode() * 1000)
        key = str(call).replace("/", ".")
        for kind in ("", "_void."):
            await queue.log.running.overwrite(f"{kind}{key}", where.encode())
        await queue.log.pending.overwrite(key, where.encode())
        await service.log.running.overwrite(f"_renewed.{key}", where.encode())


class Tenant(Somebody):
    """A raw client of one login, and all that it ever received."""

    def __init__(self, name):
        super().__init__(name)
        self.received = []
        self.scope = "+".join(LOGINS[name][1])

    async def hear(self, message):
        head = json.dumps(message.headers or {}).encode()
        body = message.data
        self.received.append((message.subject.encode(), head, body, _decoded(body)))

    async def ask_all(self, questions):
        """Ask each of them, and wait for a last one, whose answer is certain."""
        for place, (subject, body) in enumerate(questions):
            await self.client.publish(subject, body, reply=self.inbox(str(place)))
            if place % 100 == 99:
                await self.last()
        await self.last()

    async def last(self):
        asked = f"reads.{self.role}.{self.scope}.STREAM.INFO.LEDGER"
        assert b"stream_info_response" in (await self.client.request(asked, b"", timeout=20)).data

    def inbox(self, tail):
        return f"_INBOX.{self.role}._.{tail}"

    @property
    def saw(self):
        """What it received of the other tenant."""
        return [one for one in self.received if WORD in b" ".join(one)]


@asynccontextmanager
async def tenant(server, name):
    who = Tenant(name)

    login = server.login("observer")
    who.client._public_nkey = KEYS[name].public
    await who.client.connect(
        login.servers, signature_cb=KEYS[name].answer, tls=login.tls() if login.ca else None,
        inbox_prefix=f"_INBOX.{name}._".encode(), error_cb=who.heard, max_reconnect_attempts=1,
    )  # fmt: skip
    try:
        await who.client.subscribe(f"_INBOX.{name}._.>", cb=who.hear)
        yield who
    finally:
        await who.client.close()


def _decoded(data):
    """The bytes of a stored message within an answer of the JetStream API."""
    try:
        return base64.b64decode(json.loads(data)["message"]["data"])
    except (ValueError, LookupError, TypeError):
        return b""


# ----------------------------------------------------------------------------------- the questions

STREAMS = ("LEDGER", "KV_pending", "KV_running", "KV_views", "FILES", "PARKED", "TIMERS")
#: Subjects that are, or contain, what the other tenant has.
FOREIGN = (
    *(">", "*.>", "ledger.>", "ledger.*.>", "ledger.*.*.call.>", f"*.{THEIRS}.>"),
    *(f"ledger.{THEIRS}.>", f"ledger.{THEIRS}._policy.1", f"ledger.{THEIRS}._policy.*"),
    f"ledger.{THEIRS}.thread-{THEIRS}.call.call-{THEIRS}.requested",
    *("ledger._organisation.>", "ledger._organisation._person.>", "ledger._organisation._log.>"),
    *("$KV.>", "$KV.pending.>", f"$KV.pending.{THEIRS}.>", "$KV.running.>"),
    *(f"$KV.running.{kind}{THEIRS}.>" for kind in ("", "_void.", "_renewed.")),
    *("file.>", f"file.{THEIRS}.>", "parked.>", "timer.>"),
    *(f"ledger.{OURS}.> ledger.>", f"ledger.{OURS}.>\r\nledger.>", f"ledger.{OURS},{THEIRS}.>"),
)
OWN = f"ledger.{OURS}.>"


def gets():
    """Bodies of direct gets and of `STREAM.MSG.GET`."""
    for one in FOREIGN:
        for key in ("last_by_subj", "next_by_subj"):
            yield {key: one, "batch": 100}
            yield {key: one, "seq": 1, "batch": 100}
            yield {"start_time": "2020-01-01T00:00:00Z", key: one, "batch": 100}
        yield {"multi_last": [one], "batch": 100}
        yield {"multi_last": [OWN, one], "batch": 100}
        yield {"multi_last": [OWN], "next_by_subj": one, "seq": 1, "batch": 100}
        # The broker reads names of fields without case; of two the last one counts.
        yield {"next_by_subj": OWN, "Next_By_Subj": one, "seq": 1, "batch": 100}
        yield {"multi_last": [OWN], "MULTI_LAST": [one], "batch": 100}
        yield f'{{"next_by_subj":"{OWN}","next_by_subj":{json.dumps(one)},"batch":9}}'
        yield f'{{"next_by_subj":{json.dumps(one)},"batch":9,"next_by_subj":"{OWN}"}}'
    for seq in range(1, 30):
        yield {"seq": seq, "last_by_subj": f"ledger.{OURS}._policy.1"}
        yield {"seq": seq, "multi_last": [OWN]}
        yield {"seq": seq, "multi_last": [OWN], "batch": 100}
        yield {"seq": seq}
        yield {"seq": seq, "batch": 100}
        yield {"seq": seq, "next_by_subj": ""}
    yield from ({"batch": 100}, {}, [], "", "null", "[" * 100_000)


def infos():
    for one in FOREIGN:
        yield {"subjects_filter": one}
        yield {"subjects_filter": OWN, "SUBJECTS_FILTER": one}
    yield from ({}, {"deleted_details": True})


def consumers(login):
    """Bodies that create or change a consumer."""
    base = {
        "deliver_policy": "all",
        "ack_policy": "none",
        "deliver_subject": f"_INBOX.{login}._.d",
    }
    for stream in STREAMS:
        for one in FOREIGN:
            for filtered in (
                {"filter_subject": one},
                {"filter_subjects": [one]},
                {"filter_subjects": [OWN, one]},
                {"filter_subject": OWN, "filter_subjects": [one]},
                {"filter_subject": OWN, "Filter_Subject": one},
            ):
                yield stream, base | filtered
        yield stream, base
        own = base | {"filter_subject": OWN}
        for more in (
            {"durable_name": "gate"},
            {"name": "gate"},
            {"durable_name": f"{login}@executor"},
            {"name": f"{login}@executor"},
            {"name": f"executor-{THEIRS}@executor"},
            {"deliver_subject": "_INBOX.observer-zirkon._.d"},
            {"deliver_subject": f"ledger.{OURS}.t1.opened"},
            {"deliver_subject": f"ledger.{THEIRS}.t1.opened"},
            {"deliver_subject": "deliver.gate.gate", "deliver_group": "gate"},
            {"ack_policy": "explicit"},
            {"deliver_subject": ""},
        ):
            yield stream, own | more


#: What else the JetStream API has, with the name of a stream, and of a consumer.
REST = (
    *("INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.CREATE.{}", "STREAM.UPDATE.{}"),
    *("STREAM.DELETE.{}", "STREAM.PURGE.{}", "STREAM.MSG.DELETE.{}", "STREAM.SNAPSHOT.{}"),
    *("STREAM.RESTORE.{}", "STREAM.PEER.REMOVE.{}", "STREAM.LEADER.STEPDOWN.{}"),
    *("CONSUMER.NAMES.{}", "CONSUMER.LIST.{}"),
    *(
        f"CONSUMER.{verb}.{{}}.{name}"
        for verb in ("INFO", "DELETE", "MSG.NEXT", "PAUSE", "LEADER.STEPDOWN", "UNPIN")
        for name in ("gate", f"executor-{THEIRS}@executor", f"model-{THEIRS}@model-parked")
    ),
    *("CONSUMER.DURABLE.CREATE.{}.gate", "CONSUMER.RESET.{}.gate"),
    *("META.LEADER.STEPDOWN", "SERVER.REMOVE", "ACCOUNT.PURGE.LEDGER"),
    f"DIRECT.GET.{{}}.ledger.{THEIRS}._policy.1",
    f"DIRECT.GET.{{}}.$KV.pending.{THEIRS}.thread-{THEIRS}.call-{THEIRS}",
    "DIRECT.GET.{}.ledger.>",
    "DIRECT.GET.{}.>",
)


def prefixes(login):
    """Where a login may try to ask: the API itself, its own place, and those of others."""
    scope = "+".join(LOGINS[login][1])
    return (
        "$JS.API",
        *(f"reads.{login}.{one}" for one in (scope, THEIRS, f"{OURS}+{THEIRS}", "*", ">", "")),
        *(
            f"reads.{name}.{'+'.join(where)}"
            for name, (_, where) in LOGINS.items()
            if name != login
        ),
        *(f"reads.{one}.{scope}" for one in ("*", "gate", "")),
    )


def questions(login):
    for prefix in prefixes(login):
        if ".." in f"{prefix}." or prefix.endswith("."):
            continue  # no subject at all: it would end the connection
        # Elsewhere the broker refuses all subjects alike.
        is_own = prefix == f"reads.{login}.{'+'.join(LOGINS[login][1])}"
        few = slice(None) if is_own else slice(None, None, 11)
        asked = [
            *((f"{kind}.{stream}", body) for kind in ("DIRECT.GET", "STREAM.MSG.GET")
              for stream in STREAMS for body in list(gets())[few]),
            *((f"STREAM.INFO.{stream}", body) for stream in STREAMS for body in list(infos())[few]),
            *((subject, {"stream_name": stream, "config": config})
              for stream, config in list(consumers(login))[few]
              for subject in (
                  f"CONSUMER.CREATE.{stream}",
                  f"CONSUMER.CREATE.{stream}.{config.get('name', 'mine')}",
                  f"CONSUMER.CREATE.{stream}.mine.{OWN}",
                  f"CONSUMER.DURABLE.CREATE.{stream}.{config.get('durable_name', 'mine')}",
              )),
            *((one.format(stream), {}) for one in REST for stream in STREAMS),
        ]  # fmt: skip
        for subject, body in asked:
            raw = body if isinstance(body, str) else json.dumps(body)
            yield f"{prefix}.{subject}", raw.encode()


@shared
@pytest.mark.parametrize("login", sampled(TENANTS, f"service-{OURS}"))
async def test_nothing_of_another_tenant_is_answered(server, login):
    """Whatever it asks the JetStream API for, by whatever prefix (B34, I9)."""
    async with tenant(server, login) as who:
        asked = list(questions(login))
        await who.ask_all(asked)
        assert not who.saw, who.saw[:3]
        # It was answered what is its own, so the other half of the answers could have been wrong.
        assert sum(OURS.encode() in b" ".join(one) for one in who.received) > 100
        assert len(asked) > 5_000


@pytest.mark.long
@shared
async def test_the_word_would_be_seen(server):
    """The same questions, by a login that has both: it is answered everything."""
    both = f"service-{OURS}-{THEIRS}"
    async with tenant(server, both) as who:
        await who.ask_all(questions(both))
        kinds = {one[0].rpartition(b".")[2] for one in who.saw}
        assert len(kinds) > 100


# ------------------------------------------------------------------------------ hearing and writing

HEARD = (
    *(
        ">",
        "*",
        "*.>",
        "ledger.>",
        f"ledger.{THEIRS}.>",
        "live.>",
        "live.*.*.*",
        f"live.{THEIRS}.>",
    ),
    *("_INBOX.>", "_INBOX.*.>", f"_INBOX.service-{THEIRS}.>", "_INBOX.ben.>"),
    *("$KV.>", "file.>", "timer.>", "parked.>", "deliver.>", "deliver.executor.executor"),
    *("deliver.scoped.>", f"deliver.scoped.executor-{THEIRS}@executor", "$JS.ACK.>"),
    *(f"deliver.scoped.executor-{OURS}-{THEIRS}@executor", "deliver.scoped.*"),
    *("reads.>", f"reads.service-{THEIRS}.>", "approvals.>", "$SRV.>", "$SYS.>", "$JS.>", "_R_.>"),
)


@shared
@pytest.mark.parametrize("login", TENANTS)
async def test_nothing_of_another_tenant_is_heard(server, login):
    """Not what its logins ask and are answered, nor the live text of its models (B34)."""
    async with tenant(server, login) as who, tenant(server, f"service-{THEIRS}") as other:
        for subject in HEARD:
            await who.client.subscribe(subject, cb=who.hear)
        await who.client.subscribe(f"live.{OURS}.>", cb=who.hear)
        await who.last()
        async with Ledger.connect(server.path, role="model") as model:
            for where in (OURS, THEIRS):
                await model.log.publish_live(f"live.{where}.thread-{where}.1", where.encode())
        asked = f"reads.{other.role}.{THEIRS}.DIRECT.GET.LEDGER"
        everything = json.dumps({"multi_last": [f"ledger.{THEIRS}.>"], "batch": 100})
        await other.ask_all([(asked, everything.encode())])
        await until(lambda: other.saw and any(OURS.encode() in one[2] for one in who.received))
        assert not who.saw
        assert all(who.denied(one) for one in HEARD), who.problems


def _places(where):
    """Subjects of everything that a workspace has, and of the site."""
    thread = f"ledger.{where}.new"
    call = f"{thread}.call.x1"
    return (
        *(f"{thread}.{one}" for one in ("opened", "said.x1", "turn.1.asked.1", "turn.1.replied")),
        *(f"{call}.{one}" for one in ("requested", "gated", "decided", "withdrawn", "finished")),
        *(f"{call}.{one}" for one in ("claim.1", "claim.client.1", "finished.client", "late.1")),
        *(f"{call}.{one}" for one in ("lapsed", "announced", "posted.x1", "escalated.1")),
        *(
            f"{call}.{kind}.{me}"
            for kind in ("vote", "revoked", "reconciled")
            for me in ("ana", "ben")
        ),
        *(f"{call}.{kind}.{me}.1" for kind in ("comment", "handed") for me in ("ana", "ben")),
        *(f"ledger.{where}.{one}" for one in ("_policy.7", "_tool.x.1", "_budget.a.b.1")),
        *(f"ledger.{where}._grant.{me}.x1.given" for me in ("ana", "ben")),
        *(f"ledger.{where}._grant.x.x1.revoked.{me}" for me in ("ana", "ben")),
        *(f"ledger.{where}._delegation.{me}.x1.given" for me in ("ana", "ben")),
        *(f"ledger.{where}._stop.{me}.x1.given" for me in ("ana", "ben")),
        *(f"ledger.{where}._stop.x.x1.resumed.{me}" for me in ("ana", "ben")),
        *(f"$KV.running.{kind}{where}.t.c" for kind in ("", "_renewed.", "_void.")),
        *(f"$KV.pending.{where}.t.c", f"timer.set.{where}.t.c", f"live.{where}.t.1"),
        *(f"file.{where}.{role}.secret.1" for role in ("service", "executor", "model", "operator")),
        *(one for role in ("executor", "model") for one in _of_worker(role, where)),
    )


def _of_worker(role, where):
    """What a worker parks, and how it acknowledges."""
    name = f"{role}-{where}@{role}"
    return (
        f"parked.{role}.{name}.1",
        f"$JS.ACK.LEDGER.{name}.1.1.1.1.1",
        f"$JS.ACK.PARKED.{name}-parked.1.1.1.1.1",
    )


#: Subjects that hold for the whole site.
SITE = (
    *("ledger._organisation._policy.7", "ledger._organisation._log.1"),
    *("ledger._organisation._person.ana.1", "ledger._organisation._person.ben.account.1"),
    *("ledger._organisation._stop.ana.x1.given", "ledger._organisation._login.x.1"),
    *("parked.gate.gate.1", "parked.operator.gate.1", "$JS.ACK.LEDGER.gate.1.1.1.1.1"),
    *("parked.executor.executor.1", f"parked.operator.executor-{OURS}@executor.1"),
    *("$JS.ACK.LEDGER.executor.1.1.1.1.1", "$JS.ACK.PARKED.model-parked.1.1.1.1.1"),
    *("$KV.running._upto", "$KV.running._channel.mail", "$SYS.REQ.USER.AUTH", "deliver.gate.gate"),
    "$KV.views.ana",
    *("approvals.service.desk.request", "approvals.reviewer.ben.decide", "$SRV.PING"),
    *(f"approvals.reviewer.ben.{THEIRS}.decide", f"approvals.service.x.{THEIRS}.request"),
    *(f"approvals.reviewer.ana.{OURS}+{THEIRS}.decide", f"_INBOX.service-{THEIRS}._.1"),
)
#: What each tenant's login may write, of all these.
MAY = {
    f"service-{OURS}": {
        *(f"ledger.{OURS}.new.{one}" for one in ("opened", "said.x1")),
        *(f"ledger.{OURS}.new.call.x1.{one}" for one in ("requested", "withdrawn")),
        *(f"ledger.{OURS}.new.call.x1.{one}" for one in ("claim.client.1", "finished.client")),
        *(f"ledger.{OURS}._tool.x.1", f"file.{OURS}.service.secret.1"),
        f"$KV.running._renewed.{OURS}.t.c",
    },
    f"operator-{OURS}": {f"ledger.{OURS}._policy.7"},
    f"executor-{OURS}": {
        *(f"ledger.{OURS}.new.call.x1.{one}" for one in ("claim.1", "finished", "late.1")),
        *(f"ledger.{OURS}._tool.x.1", f"file.{OURS}.executor.secret.1"),
        *_of_worker("executor", OURS),
    },
    f"model-{OURS}": {
        *(f"ledger.{OURS}.new.turn.1.{one}" for one in ("asked.1", "replied")),
        *(f"live.{OURS}.t.1", f"file.{OURS}.model.secret.1"),
        *_of_worker("model", OURS),
    },
    f"observer-{OURS}": set(),
    "ana": {
        *(f"ledger.{OURS}.new.call.x1.{one}.ana" for one in ("vote", "revoked", "reconciled")),
        *(f"ledger.{OURS}.new.call.x1.{one}.ana.1" for one in ("comment", "handed")),
        *(f"ledger.{OURS}._grant.{one}" for one in ("ana.x1.given", "x.x1.revoked.ana")),
        *(f"ledger.{OURS}._stop.{one}" for one in ("ana.x1.given", "x.x1.resumed.ana")),
        f"ledger.{OURS}._delegation.ana.x1.given",
    },
}


@shared
@pytest.mark.parametrize("login", TENANTS)
async def test_nothing_of_another_tenant_is_written(server, login):
    """The broker takes what is this login's to write, and denies everything else (I9)."""
    async with tenant(server, login) as who:
        every = [*_places(OURS), *_places(THEIRS), *SITE]
        for subject in every:
            await who.client.publish(subject, b"{}", reply=who.inbox("answer"))
        await who.last()
        assert {one for one in every if not who.denied(one)} == MAY[login]


@shared
@pytest.mark.parametrize(("role", "tail"), [("executor", "call.c.decided"), ("model", "opened")])
async def test_a_worker_is_delivered_what_is_of_its_workspaces(server, role, tail):
    """By a durable of its own, which it settles (I9)."""
    name, taken = f"{role}-{OURS}@{role}", asyncio.Queue()
    async with (
        tenant(server, f"{role}-{OURS}") as who,
        JetStream.connect(server.path, role="admin") as admin,
    ):
        await who.client.subscribe(f"deliver.scoped.{name}", name, cb=taken.put)
        await who.client.flush()
        for where in (THEIRS, OURS):
            await admin.connection.client.request(f"ledger.{where}.for-{role}.{tail}", timeout=60)
        subject = ""
        while subject != f"ledger.{OURS}.for-{role}.{tail}":
            delivery = await asyncio.wait_for(taken.get(), 60)
            subject = delivery.subject
            assert subject.startswith(f"ledger.{OURS}.")
            await delivery.ack_sync(timeout=60)
        found = await admin.api.call(f"CONSUMER.INFO.LEDGER.{name}", repeat=True)
        assert found["num_pending"] == found["num_ack_pending"] == 0
