"""Who may say what, against the real broker: every role, every slot, and the ways around."""

import asyncio
import base64
import json
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import nats.errors
import pytest
import pytest_asyncio
from logins import Somebody, signed_on
from nats.aio.client import Client
from nats.js.errors import NotFoundError
from until import until

from ayes.ledger.nats.credentials import Address, Store
from ayes.ledger.nats.protocol import settled
from ayes.ledger.subscriptions import DURABLES, Durable
from ayes.ops.broker import accounts
from ayes.ops.broker.accounts import ADMIN, API, PING, ROLES, accounts_config, permissions
from ayes.ops.broker.callout import Issuer, answer_to
from ayes.ops.broker.server import EmbeddedServer
from ayes.schemas.errors import BadId, BadInput
from ayes.schemas.slots import FILLED_BY, ORGANISATION, matches

#: On the loop that the one server of this file lives in.
shared = pytest.mark.asyncio(loop_scope="module")

PEOPLE = ("reviewer-ana", "reviewer-ben")
EVERYBODY = (*ROLES, *PEOPLE)
LEDGER = {
    "name": "LEDGER", "subjects": ["ledger.>"], "storage": "file", "retention": "limits",
    "num_replicas": 1, "max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True,
    "deny_delete": True, "deny_purge": True, "allow_direct": True, "allow_atomic": True,
}  # fmt: skip
GATE = {
    "durable_name": "gate",
    "deliver_subject": "deliver.gate.gate",
    "deliver_group": "gate",
    "ack_policy": "explicit",
    # Long ago, and nobody else knows when: see ops/broker/accounts.py.
    "deliver_policy": "by_start_time",
    "opt_start_time": "2003-07-01T11:12:13.141592653Z",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory):
    async with EmbeddedServer(tmp_path_factory.mktemp("store"), sync="2m") as running:
        async with signed_on(running, ADMIN) as admin:
            await admin.json("$JS.API.STREAM.CREATE.LEDGER", LEDGER)
            for name, subject in (
                ("FILES", "file.>"),
                ("KV_pending", "$KV.pending.>"),
                ("KV_running", "$KV.running.>"),
                ("KV_views", "$KV.views.>"),
                ("TIMERS", "timer.>"),
                ("PARKED", "parked.>"),
            ):
                config = {"name": name, "subjects": [subject], "storage": "memory"}
                config |= {"num_replicas": 1, "retention": "limits", "max_msgs_per_subject": 1}
                config["allow_direct"] = True
                assert "error" not in await admin.json(f"$JS.API.STREAM.CREATE.{name}", config)
            body = {"stream_name": "LEDGER", "config": GATE}
            assert "error" not in await admin.json("$JS.API.CONSUMER.CREATE.LEDGER.gate", body)
        for person in PEOPLE:
            await running.ensure_account(person)
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def admin(server):
    async with signed_on(server, ADMIN) as who:
        yield who


@pytest_asyncio.fixture(loop_scope="module")
async def service(server):
    async with signed_on(server, "service") as who:
        yield who


async def stands(admin, subject):
    """What is recorded there, or None."""
    try:
        return (await admin.client.jetstream().get_last_msg("LEDGER", subject)).data
    except NotFoundError:
        return None


# ------------------------------------------------------------------------------------------ writing

RUNS = {"executor", "service"}


def _of(person):
    me = person.removeprefix(accounts.REVIEWER)
    return (
        *(f"{{}}.call.x1.{what}.{me}" for what in ("vote", "revoked", "reconciled")),
        *(f"{{}}.call.x1.{what}.{me}.1" for what in ("comment", "handed")),
        *(f"_grant.{me}.x1.given", f"_grant.x1.x1.revoked.{me}"),
        *(f"_delegation.{me}.x1.given", f"_delegation.{me}.x1.ended"),
        *(f"_stop.{me}.x1.given", f"_stop.x1.x1.resumed.{me}"),
    )


#: Who may put what where, without `ledger.<workspace>.`; `{}` is a thread. Written by hand, and not
#: made from the table that the permissions are made from: a service that may take an executor's
#: claim or fill a budget would be a mistake in one of the two, and not in both.
_WRITTEN_BY = {
    "gate": (
        *("{}.call.x1.requested", "{}.call.x1.gated", "{}.call.x1.escalated.1"),
        *("{}.call.x1.announced", "{}.call.x1.decided", "{}.call.x1.lapsed"),
        *("_grant.x1.x1.revoked", "_grant.x1.x1.used.1", "_budget.x1.x1.1"),
        "_stop.x1.x1.ended",
    ),
    "executor": ("{}.call.x1.claim.1", "{}.call.x1.finished", "{}.call.x1.late.1", "_tool.%.x1"),
    "service": (
        *("{}.opened", "{}.said.x1", "{}.call.x1.requested", "{}.call.x1.withdrawn"),
        *("{}.call.x1.claim.client.1", "{}.call.x1.finished.client", "{}.call.x1.late.client.1"),
        *("_tool.%.x1", "{}.keyed"),
    ),
    "model": ("{}.turn.1.asked.1", "{}.turn.1.replied"),
    "notifier": ("{}.call.x1.notified.x1.x1", "{}.call.x1.notified.room.x1.x1"),
    "slack": ("{}.call.x1.posted.x1",),
    "absence": ("_delegation.x1.x1.absent", "_delegation.x1.x1.absent.ended"),
    "operator": ("_policy.1", "{}.forgetting", "{}.forgotten"),
    "nobody": ("{}.packed.1",),
    **{person: _of(person) for person in PEOPLE},
}
WRITERS = {
    tail: {role for role, theirs in _WRITTEN_BY.items() if tail in theirs}
    for tails in _WRITTEN_BY.values()
    for tail in tails
}
#: The organisation's alone, in the same form, with a number: by its own role and by each person for
#: themselves.
PERSONS = {
    "_log.{n}": {"organisation"},
    "_person.x1.{n}": {"organisation"},
    "_login.x1.{n}": {"organisation"},
    "_oncall.x1.20260302.{n}": {"absence"},
    "_person.x1.groups.20260302.{n}": {"api"},
    "_person.ana.account.{n}": {"reviewer-ana"},
    "_person.ben.account.{n}": {"reviewer-ben"},
    # Whoever signed a confirmation, and not who records it, is judged later.
    "_key.ana.{n}.added": {"reviewer-ana"},
    "_key.ben.{n}.added": {"reviewer-ben"},
    "_key.ana.{n}.confirmed": {"organisation"},
    "_key.ana.{n}.confirmed.ben": {"reviewer-ben"},
    "_key.ana.{n}.revoked": {"organisation"},
    "_key.ana.{n}.revoked.ana": {"reviewer-ana"},
    "_key.ana.{n}.revoked.ben": {"reviewer-ben"},
}
#: What a careless wildcard would let in: the workspace's own, dressed as a thread.
NOBODY_WRITES = (
    "_policy.opened", "_grant.keyed", "_grant.forgotten", "_policy.said.m1",
    "_policy.call.1-0.requested", "_policy.turn.1.replied",
    "_grant.opened", "_grant.g1.given", "_grant.said.m1", "_grant.eve.g1.given",
    "_grant.ana.g1.renewed", "_grant.ana.g1.used", "_grant.ana.g1.revoked.eve",
    "_grant.ana.g1.revoked.ana.x", "_delegation.opened", "_delegation.call.1-0.decided",
    "_delegation.eve.d1.given", "_delegation.eve.d1.ended", "_delegation.ana.d1.revoked",
    "_stop.opened", "_stop.eve.s1.given", "_stop.ana.s1.resumed", "_stop.ana.s1.resumed.eve",
    "_stop.ana.s1.resumed.ana.x", "_stop.ana.s1.ended.ana", "_stop.said.m1",
    "{}.call.1-0.escalated", "{}.call.1-0.announced.1", "{}.anything", "{}.call.1-0.vote.eve",
    "{}.call.1-0.vote", "{}.call.1-0.revoked", "{}.call.1-0.revoked.eve",
    "{}.call.1-0.revoked.ana.x", "{}.call.1-0.reconciled", "{}.call.1-0.reconciled.eve",
    "{}.call.1-0.finished.executor", "{}.call.1-0.finished.client.1",
    "{}.call.1-0.claim.client.1.x", "{}.call.1-0.claim.executor.1", "{}.call.1-0.late.executor.1",
    "{}.call.1-0.decided.1", "{}.call.1-0.withdrawn.x", "_policy.1.2", "_tool.refund",
    "_tool.refund.v1.x",
    # What a program would give in its own name.
    *(f"_{yes}.{role}.x1.given" for yes in ("grant", "delegation", "stop") for role in ROLES),
)  # fmt: skip


def test_the_table_covers_every_slot():
    """Every shape of a slot stands in the table of writers, once, with roles that there are."""
    assert [
        tuple("*" if one == "{me}" else one for one in shape) for shape in accounts.WRITERS
    ] == list(FILLED_BY)
    roles = {*ROLES, accounts.REVIEWER}
    for shape, writers in accounts.WRITERS.items():
        assert roles.issuperset(writers)
        # A reviewer's slots name the reviewer, and nobody else's do.
        assert ("{me}" in shape) == (writers == (accounts.REVIEWER,))
    assert {role for roles in accounts.OTHER_SUBJECTS.values() for role in roles} <= roles
    by_hand = [tail.format("t1", n=1).split(".") for tail in (*WRITERS, *PERSONS)]
    for shape in accounts.WRITERS:
        words = shape if shape[0].startswith("_") else ("*", *shape)
        pattern = ".".join("*" if word[0] in "*#%{" else word for word in words)
        assert any(matches(pattern, ".".join(tail)) for tail in by_hand), f"{shape}: by whom?"


@pytest.mark.parametrize("role", EVERYBODY)
@shared
async def test_each_slot_has_its_writers(server, admin, role):
    """A role records what is its own to say; the broker refuses all else (B62, B68)."""
    async with signed_on(server, role) as who:
        for tail, writers in WRITERS.items():
            subject = f"ledger.{role}.{tail.format('t1')}"
            answer = await who.ask(subject, b'{"x":1}')
            if role in writers:
                assert json.loads(answer)["stream"] == "LEDGER", subject
                assert await stands(admin, subject) == b'{"x":1}'
            else:
                assert answer == "denied", subject
                assert await stands(admin, subject) is None


JETSTREAM_API = {
    "STREAM": ("CREATE", "UPDATE", "DELETE", "PURGE", "SNAPSHOT", "RESTORE", "INFO", "MSG.GET",
               "MSG.DELETE", "PEER.REMOVE", "LEADER.STEPDOWN"),
    "CONSUMER": ("CREATE", "DURABLE.CREATE", "LIST", "NAMES", "INFO", "DELETE", "PAUSE", "RESET",
                 "UNPIN", "MSG.NEXT", "LEADER.STEPDOWN"),
}  # fmt: skip
STREAMS = ("LEDGER", "FILES", "KV_pending", "KV_running", "KV_views", "TIMERS", "PARKED")
SUBJECTS = (
    "$JS.API.INFO",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.LIST",
    "$JS.API.ACCOUNT.PURGE.LEDGER",
    "$JS.API.META.LEADER.STEPDOWN",
    "$JS.API.SERVER.REMOVE",
    *(
        f"$JS.API.STREAM.{verb}.{stream}"
        for verb in JETSTREAM_API["STREAM"]
        for stream in (*STREAMS, "OTHER")
    ),
    *(
        f"$JS.API.CONSUMER.{verb}.{stream}"
        for verb in ("CREATE", "LIST", "NAMES")
        for stream in STREAMS
    ),
    *(
        f"$JS.API.CONSUMER.{verb}.{stream}.{name}"
        for verb in JETSTREAM_API["CONSUMER"]
        for stream in STREAMS
        for name in ("gate", "other")
    ),
    *(f"$JS.API.DIRECT.GET.{stream}" for stream in STREAMS),
    *(f"$JS.API.DIRECT.GET.{stream}.some.subject" for stream in STREAMS),
    *(f"$JS.FC.{stream}.a.b" for stream in STREAMS),
    *(f"$JS.ACK.{stream}.{name}.1.1.1.1.1" for stream in STREAMS for name in ("gate", "other")),
    *(f"file.shop.{role}.id.1" for role in ("service", "executor", "model", "gate")),
    "file.shop.digest.1",
    "file.shop.service.id.1.1",
    "live.shop.t1.1",
    "$KV.pending.shop.t1.1-0",
    "$KV.running.shop.t1.1-0",
    "$KV.running._renewed.shop.t1.1-0",
    "$KV.views.ana",
    "console.looking",
    "$KV.other.shop.t1.1-0",
    "timer.set.shop.t1.1-0",
    "timer.due.shop.t1.1-0",
    *(f"parked.{role}.{role}.7" for role in ("gate", "model", "nobody")),
    *(f"_INBOX.{role}._.x" for role in ("gate", "observer", "admin")),
    *(f"deliver.{role}.{role}" for role in ("gate", "model")),
    "$SYS.REQ.SERVER.PING",
    "$SYS.REQ.SERVER.1.RELOAD",
    "$SYS.ACCOUNT.LEDGER.CONNECT",
    "$JSC.R.x",
    "_R_.x",
    "anything",
    "pending.oldest",
)


def _may_publish(role, subject):
    """What the table says of anything but a slot: everybody's, the role's, or its durables'."""
    patterns = [
        *(
            one
            for one in accounts.READING
            if role != "operator"
            or one not in ("$JS.API.CONSUMER.CREATE.LEDGER", "$JS.FC.LEDGER.>")
        ),
        *(one for one, roles in accounts.OTHER_SUBJECTS.items() if role in roles),
        *(["console.looking"] if role == "api" else []),
    ]
    for durable in DURABLES.values():
        if durable.role == role:
            patterns.append(f"$JS.ACK.{durable.stream}.{durable.name}.>")
            patterns.append(f"parked.{role}.{durable.origin}.*")
            patterns.append(f"$JS.API.CONSUMER.INFO.{durable.stream}.{durable.name}")
    return any(matches(one, subject) for one in patterns)


@pytest.mark.parametrize("role", EVERYBODY)
@shared
async def test_beside_the_slots_each_role_may_what_the_table_says(server, role):
    """The JetStream API, streams, inboxes, deliveries: refused unless the table names it."""
    async with signed_on(server, role) as who:
        for subject in SUBJECTS:
            if "PURGE.TIMERS" in subject and role == "gate":
                continue  # it would do it; see `test_side_streams_have_their_writers`
            assert await who.may_say(subject) == _may_publish(role, subject), subject


#: Who alone may do what beside the slots, by hand as well.
ONLY = {
    "$KV.pending.shop.t1.1-0": {"queue"},
    "$KV.running.shop.t1.1-0": {"queue"},
    "$KV.running._renewed.shop.t1.1-0": {"queue", "service"},
    "$KV.running._channel.mail": {"queue", "notifier"},
    "$KV.running._calendar.ana": {"queue", "absence"},
    # The views of people: some are private, so nobody else may even read them.
    "$KV.views.ana": {"api"},
    "$JS.API.DIRECT.GET.KV_views": {"api"},
    "$JS.API.DIRECT.GET.KV_views.$KV.views.ana": set(),
    "$JS.API.STREAM.MSG.GET.KV_views": {"api"},
    "$JS.API.CONSUMER.CREATE.KV_views": set(),
    "timer.set.shop.t1.1-0": {"gate"},
    "timer.due.shop.t1.1-0": set(),
    "parked.gate.gate.7": {"gate"},
    "parked.model.model.7": {"model"},
    "parked.operator.gate.7": {"operator"},
    "live.shop.t1.1": {"model"},
    **{f"file.shop.{role}.id.1": {role} for role in ("service", "executor", "model")},
    "file.shop.gate.id.1": set(),
    "file.shop.digest.1": set(),
    "$JS.ACK.LEDGER.gate.1.1.1.1.1": {"gate"},
    "$JS.ACK.LEDGER.executor.1.1.1.1.1": {"executor"},
    "$JS.API.STREAM.PURGE.TIMERS": {"gate"},
    "$JS.API.STREAM.MSG.DELETE.PARKED": {"operator"},
    "$JS.API.CONSUMER.DELETE.LEDGER.gate": set(),
    "$JS.API.CONSUMER.CREATE.LEDGER.gate": set(),
    **{
        f"$JS.API.STREAM.{verb}.{stream}": set()
        for verb in ("UPDATE", "DELETE", "PURGE", "RESTORE", "SNAPSHOT", "MSG.DELETE")
        for stream in ("LEDGER", "FILES", "KV_pending", "KV_running", "KV_views")
    },
}


@pytest.mark.parametrize("subject", ONLY)
def test_nobody_else_may_do_what_is_one_role_s_own(subject):
    """A second statement beside the table of permissions, which the other tests read (B62)."""
    allowed = {
        role
        for role in EVERYBODY
        if any(matches(one, subject) for one in permissions(role).publish)
    }
    assert allowed == ONLY[subject]


@pytest.mark.parametrize("role", EVERYBODY)
@shared
async def test_wildcards_do_not_reach_the_workspace(server, admin, role):
    """No role reaches a policy, tool or grant by naming a thread like one, and none but people says
    yes in advance (B68, I4). Who writes policies or tools may misname them.
    """
    async with signed_on(server, role) as who:
        for tail in NOBODY_WRITES:
            subject = f"ledger.wild.{tail.format('t1')}"
            if (role, tail) != ("operator", "_policy.opened"):
                assert await who.ask(subject) == "denied", subject
                assert await stands(admin, subject) is None
        for tail in () if role in RUNS else ("said.m1", "opened", "turn.5"):
            assert await who.ask(f"ledger.wild._tool.{tail}") == "denied", tail


@pytest.mark.parametrize("role", EVERYBODY)
@shared
async def test_the_organisation_s_own_is_the_organisation_s_alone(server, admin, role):
    """What no workspace can weaken is written by nobody who runs one, nor by anybody who writes
    into workspaces (B62).

    Nor does whoever writes it write anything else: the organisation's policy is all that this role
    may say, and who is a person. A person's accounts are that person's own word (I7).
    """
    own = f"ledger.{ORGANISATION}._policy.{EVERYBODY.index(role) + 1}"
    others = [tail.format("t1") for tail in WRITERS if not tail.startswith(("_policy.", "_stop."))]
    async with signed_on(server, role) as who:
        answer = await who.ask(own, b"{}")
        if role == "organisation":
            assert json.loads(answer)["stream"] == "LEDGER"
        else:
            assert answer == "denied"
            assert await stands(admin, own) is None
        for number, (tail, writers) in enumerate(PERSONS.items()):
            free = tail.format(n=100 * EVERYBODY.index(role) + number + 1)
            subject = f"ledger.{ORGANISATION}.{free}"
            if role in writers:
                assert json.loads(await who.ask(subject, b"{}"))["stream"] == "LEDGER"
            else:
                assert await who.ask(subject, b"{}") == "denied", subject
                assert await stands(admin, subject) is None
            assert await who.ask(f"ledger.shop.{free}", b"{}") == "denied"
        # Whoever may stop one workspace, or end that, may do so in all; the gate judges the right.
        for tail in (tail for tail in WRITERS if tail.startswith("_stop.")):
            answer = await who.ask(f"ledger.{ORGANISATION}.{tail}", b"{}")
            assert (answer != "denied") == (role in WRITERS[tail]), tail
        nobody = ("_person.eve.account.1", "_person.ana.said.1", "_person.ana.account.1.x")
        nobody += ("_key.eve.x1.added", "_key.ana.x1.confirmed.eve", "_key.ana.x1.revoked.eve")
        nobody += ("_key.ana.x1", "_key.ana.x1.added.x", "_key.call.c1.vote.ana")
        nobody += ("_person.account.vote.ana", "_policy.said.m1", "_policy.1.2", "opened")
        for tail in (*others, *nobody, "_person.call.c1.vote.ana", "anything"):
            subject = f"ledger.{ORGANISATION}.{tail}"
            assert await who.ask(subject) == "denied", subject
            assert await stands(admin, subject) is None


@shared
async def test_nobody_gives_in_another_s_name(server, admin):
    """Ana cannot give Ben's grant or vote away, however written; her own she can (B40, B68)."""
    async with signed_on(server, "reviewer-ana") as ana:
        for subject in (
            "ledger.given._grant.ben.g1.given", "ledger.given._grant.anabel.g1.given",
            "ledger.given._grant.ana.given", "ledger.given._grant.ana.g1.given.x",
            "ledger.given._grant.ben.ana.given", "ledger.given._delegation.ben.d1.given",
            "ledger.given._delegation.ben.d1.ended", "ledger.given._delegation.ben.ana.given",
            "ledger.given._grant.ana.g1.used.1",
        ):  # fmt: skip
            assert await ana.ask(subject, b"{}") == "denied", subject
            assert await stands(admin, subject) is None
        for own in ("_grant.ana.g2.given", "_delegation.ana.d2.given"):
            assert (await ana.json(f"ledger.given.{own}", {}))["stream"] == "LEDGER"
            # And once: the slot is taken from then on, for herself too.
            assert (await ana.json(f"ledger.given.{own}", {}))["error"]["err_code"] == 10077
        revoked = await ana.json("ledger.given._grant.ben.g3.revoked.ana", {})
        assert revoked["stream"] == "LEDGER"


@shared
async def test_one_use_is_spent_once(server):
    """Two gates cannot spend the same use of a grant: its slot takes one (I6)."""
    async with signed_on(server, "gate") as one, signed_on(server, "gate") as two:
        subject = "ledger.spend._grant.ana.g1.used.1"
        answers = await asyncio.gather(
            one.json(subject, {"call": "a"}), two.json(subject, {"call": "b"})
        )
        assert sorted("error" in answer for answer in answers) == [False, True]


@shared
async def test_side_streams_have_their_writers(server):
    """The broker has the same: buckets, timers, files, and what is parked under one's own name."""
    begins = ("$KV.", "timer.", "parked.", "file.", "$JS.API.STREAM.PURGE.TIMERS")
    writers = {subject: roles for subject, roles in ONLY.items() if subject.startswith(begins)}
    for role in EVERYBODY:
        async with signed_on(server, role) as who:
            for subject, allowed in writers.items():
                assert (await who.ask(subject) != "denied") == (role in allowed), (role, subject)


@shared
async def test_a_batch_is_let_through_whole(service):
    """An atomic batch needs no other permission than its facts do."""
    head = {"Nats-Batch-Id": "b1"}
    first = head | {"Nats-Batch-Sequence": "1"}
    # Begun.
    assert await service.ask("ledger.batch.t1.call.1-0.requested", b"{}", first) == b""
    last = head | {"Nats-Batch-Sequence": "2", "Nats-Batch-Commit": "1"}
    answer = await service.ask("ledger.batch.t1.call.1-1.requested", b"{}", last)
    assert json.loads(answer)["count"] == 2


# ---------------------------------------------------------------------------------- the ways around


@shared
async def test_an_answer_cannot_be_sent_into_a_slot(server, admin, service):
    """The server answers where it is told to, but not into the ledger: bytes cannot be moved into
    `decided` (B68).

    The control shows what would happen if the service's login were in the ledger's own account.
    """
    forged = b'{"type":"Approved"}'
    read = json.dumps({"last_by_subj": "ledger.around.t1.call.1-0.requested"}).encode()
    await service.ask("ledger.around.t1.call.1-0.requested", forged)
    ways = {
        "$JS.API.DIRECT.GET.LEDGER": read,
        "$JS.API.DIRECT.GET.LEDGER.ledger.around.t1.call.1-0.requested": b"",
        "$JS.API.STREAM.MSG.GET.LEDGER": read,
        "$JS.API.STREAM.INFO.LEDGER": b"",
        "$JS.API.INFO": b"",
        "ledger.around.t1.call.1-1.requested": b"{}",
    }
    for number, (subject, body) in enumerate(ways.items()):
        await service.client.publish(subject, body, reply=f"ledger.around.t1.call.{number}.decided")
        await service.ask("$JS.API.STREAM.INFO.LEDGER")
    many = json.dumps({"multi_last": ["ledger.around.t1.call.1-0.requested"]}).encode()
    await service.client.publish(
        "$JS.API.DIRECT.GET.LEDGER", many, reply="ledger.around.t1.call.many.decided"
    )
    # A read that is asked for later is answered later.
    await service.ask("$JS.API.DIRECT.GET.LEDGER", read)
    await service.ask("$JS.API.STREAM.MSG.GET.LEDGER", read)
    for call in (*range(len(ways)), "many"):
        assert await stands(admin, f"ledger.around.t1.call.{call}.decided") is None, call

    seen = await admin.client.subscribe("ledger.around.t1.call.control.decided")
    await admin.client.publish(
        "$JS.API.DIRECT.GET.LEDGER", read, reply="ledger.around.t1.call.control.decided"
    )
    assert (await seen.next_msg(timeout=60)).data == forged


@shared
async def test_a_consumer_cannot_deliver_into_a_slot(server, admin, service):
    """A consumer told to deliver into the ledger finds nobody there (nats-server #8274)."""
    async with signed_on(server, "queue") as queue:
        await queue.ask("$KV.pending.forged", b'{"type":"Approved"}')
    await service.ask("$KV.running._renewed.forged", b'{"type":"Approved"}')
    await service.ask("ledger.around.t2.call.1-0.requested", b'{"type":"ToolRequested"}')
    for stream, target in (
        ("KV_pending", "ledger.around.t2.call.1-0.decided"),
        ("KV_running", "ledger.around.t2.call.1-0.decided"),
        ("LEDGER", "$KV.pending.forged"),
        ("LEDGER", "$JS.API.STREAM.DELETE.PARKED"),
    ):
        config = {"deliver_subject": target, "ack_policy": "none"}
        body = {"stream_name": stream, "config": config}
        made = await service.json(f"$JS.API.CONSUMER.CREATE.{stream}", body)
        held = await admin.json(f"$JS.API.CONSUMER.INFO.{stream}.{made['name']}")
        assert not held.get("push_bound")
        assert held["delivered"]["consumer_seq"] == 0
        assert held["num_pending"] > 0
    config = {"deliver_subject": "ledger.a.b.opened", "ack_policy": "none"}
    body = {"stream_name": "LEDGER", "config": config}
    made = await service.json("$JS.API.CONSUMER.CREATE.LEDGER", body)
    assert made["error"]["err_code"] == 10081
    assert await stands(admin, "ledger.around.t2.call.1-0.decided") is None


@pytest.mark.parametrize("role", EVERYBODY)
@shared
async def test_nobody_touches_streams_or_durables(server, admin, role):
    """Only the administrator changes a stream, deletes from it, or touches a durable consumer."""
    before = await admin.json("$JS.API.CONSUMER.INFO.LEDGER.gate")
    async with signed_on(server, role) as who:
        of_streams = ("UPDATE", "DELETE", "PURGE", "RESTORE", "SNAPSHOT", "MSG.DELETE")
        of_streams += ("PEER.REMOVE", "LEADER.STEPDOWN")
        of_durables = ("CREATE", "DELETE", "PAUSE", "RESET", "UNPIN", "LEADER.STEPDOWN", "MSG.NEXT")
        for call in (
            *(f"STREAM.{verb}.LEDGER" for verb in of_streams),
            *("STREAM.CREATE.OTHER", "STREAM.PURGE.KV_pending"),
            *(f"CONSUMER.{verb}.LEDGER.gate" for verb in of_durables),
            *("CONSUMER.DURABLE.CREATE.LEDGER.other", "CONSUMER.CREATE.LEDGER.other"),
            # A permission is about the literal subject; `>` in one is for the server to refuse,
            # were it to get there.
            *("CONSUMER.CREATE.LEDGER.gate.ledger.x", "CONSUMER.CREATE.TIMERS"),
        ):
            assert await who.ask(f"$JS.API.{call}", b"{}") == "denied", call
        if role not in ("gate", "operator"):
            assert await who.ask("$JS.API.CONSUMER.INFO.LEDGER.gate") == "denied"
            assert await who.ask("$JS.ACK.LEDGER.gate.1.1.1.1.1") == "denied"
    after = await admin.json("$JS.API.CONSUMER.INFO.LEDGER.gate")
    assert after["config"] == before["config"]


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"durable_name": "gate"}, id="durable"),
        pytest.param({"durable_name": "other"}, id="new durable"),
        pytest.param({"name": "gate"}, id="named, start missing"),
        pytest.param({"name": "gate", "deliver_policy": "all"}, id="named, from the start"),
        pytest.param(
            {"name": "gate", "opt_start_time": "2003-07-01T11:12:13Z"}, id="named, start guessed"
        ),
    ],
)
@shared
async def test_who_reads_cannot_change_a_durable(admin, service, changed):
    """The right to create ephemeral consumers reaches no durable, even if the body names it."""
    before = await admin.json("$JS.API.CONSUMER.INFO.LEDGER.gate")
    config = GATE | {"filter_subject": "ledger.nothing"} | changed
    for secret in {"durable_name", "opt_start_time"} - changed.keys():
        del config[secret]
    for action in ({}, {"action": "create"}, {"action": "update"}):
        answer = await service.json(
            "$JS.API.CONSUMER.CREATE.LEDGER", {"stream_name": "LEDGER", "config": config} | action
        )
        assert "error" in answer
    after = await admin.json("$JS.API.CONSUMER.INFO.LEDGER.gate")
    assert after["config"] == before["config"]
    assert (await admin.json("$JS.API.CONSUMER.NAMES.LEDGER"))["consumers"].count("other") == 0


@pytest.mark.parametrize("role", EVERYBODY)
@shared
async def test_who_may_read_a_durable_s_secret_may_not_use_it(server, admin, role):
    """A start time that somebody can read does not let them silence the gate: no role may both ask
    for it and create consumers beside it, but the gate itself (B62, B68).
    """
    before = await admin.json("$JS.API.CONSUMER.INFO.LEDGER.gate")
    own = {key: value for key, value in GATE.items() if key != "durable_name"}
    silent = own | {"name": "gate", "filter_subject": "ledger.nothing"}
    body = {"stream_name": "LEDGER", "config": silent}
    async with signed_on(server, role) as who:
        reads = await who.ask("$JS.API.CONSUMER.INFO.LEDGER.gate") != "denied"
        for stream in ("LEDGER", "PARKED", "TIMERS"):
            made = await who.ask(f"$JS.API.CONSUMER.CREATE.{stream}", b"{}")
            assert made == "denied" or role == "gate" or not reads, stream
        if role != "gate" and reads:
            assert await who.ask("$JS.API.CONSUMER.CREATE.LEDGER", body) == "denied"
    assert reads == (role in ("gate", "operator"))
    after = await admin.json("$JS.API.CONSUMER.INFO.LEDGER.gate")
    assert after["config"] == before["config"]


@pytest.mark.parametrize("role", EVERYBODY)
@shared
async def test_nobody_listens_in(server, role):
    """Everybody hears their own inbox and deliveries; nobody hears another's, or everything."""
    other = "model" if role != "model" else "gate"
    async with signed_on(server, role) as who:
        for subject in (
            ">", "ledger.>", "_INBOX.>", f"_INBOX.{other}.>", f"deliver.{other}.{other}",
            "$JS.API.>", "$SRV.>",
        ):  # fmt: skip
            assert not await who.may_hear(subject), subject
        # Last: from here on a service would be asked.
        for subject in ("approvals.*.*.decide", "$SRV.INFO.approvals", "$SRV.STATS.approvals.id"):
            assert await who.may_hear(subject, queue="q") == (role == API), subject
        assert await who.may_hear("$SRV.PING", queue="q") == (role == API)
        assert not await who.may_hear(f"deliver.{other}.{other}", queue=other)
        assert await who.may_hear(f"_INBOX.{role}._.x")


@pytest.mark.parametrize("role", EVERYBODY)
@shared
async def test_each_connection_has_an_inbox_of_its_own(server, role):
    """Of two programs with the same login neither hears what the other is answered, so neither can
    answer in the broker's place; one that names no inbox hears none that has a name (B68).
    """
    one, two = (secrets.token_urlsafe(12) for _ in range(2))
    async with (
        signed_on(server, role, one) as victim,
        signed_on(server, role, two) as forger,
        signed_on(server, role) as nameless,
    ):
        assert (await victim.json("$JS.API.INFO"))["type"].endswith("account_info_response")
        assert await victim.may_hear(f"_INBOX.{role}.{one}.x")
        for who in (forger, nameless):
            for place in (f"{one}.x", f"{one}.*", f"{one}.>", "*.x", "*.>", ">"):
                assert not await who.may_hear(f"_INBOX.{role}.{place}"), place
                assert not await who.may_hear(f"_INBOX.{role}.{place}", queue="q"), place
        assert await nameless.may_hear(f"_INBOX.{role}._.x")
        assert not await forger.may_hear(f"_INBOX.{role}._.x")


@shared
async def test_people_are_apart_though_they_share_an_account(server, admin):
    """Neither an inbox nor a slot of Ben's is Ana's, not even through the broker (B62, B68)."""
    async with signed_on(server, "reviewer-ana") as ana, signed_on(server, "reviewer-ben") as ben:
        for subject in ("_INBOX.reviewer-ben.>", "_INBOX.*.>", "_INBOX.>", "_INBOX.*.x", ">", "*"):
            assert not await ana.may_hear(subject), subject
            assert not await ana.may_hear(subject, queue="q"), subject
        for subject in ("_INBOX.reviewer-ben.x", "_INBOX.reviewer-ana.x", "$SYS.REQ.USER.AUTH"):
            assert await ana.ask(subject) == "denied", subject
        assert (await ben.json("ledger.apart.t1.call.c.vote.ben", {}))["seq"]
        await ana.ask("$JS.API.INFO")
        for target in ("vote.ben", "revoked.ben", "vote.ana"):
            subject = f"ledger.apart.t1.call.d.{target}"
            body = json.dumps({"last_by_subj": "ledger.apart.t1.call.c.vote.ben"}).encode()
            for question in (
                "$JS.API.STREAM.MSG.GET.LEDGER",
                "$JS.API.DIRECT.GET.LEDGER",
                "approvals.reviewer.ana.decide",
            ):
                await ana.client.publish(question, body, reply=subject)
            await ana.ask("$JS.API.INFO")
            assert await stands(admin, subject) is None


def answer_to_ana(tmp_path, password, name=""):
    """What the service answers to Ana's login: the claims of its answer about her."""
    store = Store(tmp_path)
    store.write(Address(passwords={"reviewer-ana": "secret"}))
    login = {"user": "reviewer-ana", "pass": password, "name": name}
    asked = {"nats": {"server_id": {"id": "N"}, "user_nkey": "U", "connect_opts": login}}
    request = b"." + base64.urlsafe_b64encode(json.dumps(asked).encode()) + b"."
    return claims(answer_to(request, store, Issuer()))


def claims(token):
    return json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))["nats"]


def test_a_password_of_any_letters_is_answered(tmp_path):
    """A wrong password that is not ASCII is refused like any other, and at once."""
    assert answer_to_ana(tmp_path, "g\u00e4nse")["error"] == "unknown user or wrong password"


@pytest.mark.parametrize(
    ("name", "inbox"),
    [
        ("ana inbox=sixteen-letters_", "sixteen-letters_"),
        ("ana inbox=sixteen-letters_ ", "_"),
        ("ana inbox=sixteen-letters_\n", "_"),
        ("inbox=sixteen-letters_ of ana", "_"),
        ("inbox=fifteen-letters", "_"),
        ("inbox=" + "a" * 65, "_"),
        ("inbox=sixteen.letters.and.dots", "_"),
        ("inbox=" + "*" * 16, "_"),
        ("inbox=>", "_"),
        ("", "_"),
    ],
)
def test_only_a_long_token_names_an_inbox(tmp_path, name, inbox):
    """A name that ends in anything else leads to the place of those who name none: never to a
    wildcard, nor to an inbox whose token could be guessed.
    """
    allowed = claims(answer_to_ana(tmp_path, "secret", name)["jwt"])["sub"]["allow"]
    assert allowed == [f"_INBOX.reviewer-ana.{inbox}.>", "live.>"]


@pytest.mark.parametrize(
    "credentials",
    [
        {},
        {"user": "gate", "password": "guess"},
        {"user": "reviewer-ana", "password": "guess"},
        {"user": "reviewer-ana"},
        {"user": "reviewer-nobody", "password": ""},
        {"user": "callout", "password": ""},
        {"user": "people", "password": ""},
        {"user": "", "password": ""},
    ],
    ids=str,
)
@shared
async def test_strangers_are_not_let_in(server, credentials):
    """Without a password, or with a wrong one, there is no connection: for roles and for people."""
    client = Client()

    async def quiet(_problem):
        pass

    patience = {"max_reconnect_attempts": 1, "reconnect_time_wait": 0}
    with pytest.raises((nats.errors.Error, OSError)):
        await client.connect(server.url, error_cb=quiet, **patience, **credentials)
    await client.close()


# ------------------------------------------------------------------------------------------- asking


@asynccontextmanager
async def answering(server) -> AsyncGenerator[tuple[Somebody, list[str]]]:
    """The API, which answers any request with bytes that could be a decision; and where to."""
    async with signed_on(server, API) as api:
        asked = []

        async def answer(msg):
            asked.append(msg.reply)
            await msg.respond(FORGED)

        for subject in ("approvals.*.*.*", "$SRV.PING"):
            await api.client.subscribe(subject, cb=answer)
        await settled(api.client)
        assert not api.problems
        # The broker may go on saying for a moment that nobody is there (seen on 2.15.0, one start
        # in a hundred).
        await asyncio.sleep(0.02)
        yield api, asked


async def answered(who, subject):
    """What it is answered, by somebody who may only just have come."""

    async def asked():
        with suppress(nats.errors.NoRespondersError):
            return await who.ask(subject)

    return await until(asked)


FORGED = b'{"type":"Approved"}'
#: A request of a service.
REQUEST = "approvals.service.x.wait"
#: The roles that may ask the API.
ASKING = ("service", "operator", "observer", *PEOPLE)


def requests_of(role):
    """The subjects on which it may ask a service."""
    asked = permissions(role).asked
    return [one.replace("*", "x").replace("$SRV.>", "$SRV.PING") for one in asked if one != PING]


@pytest.mark.parametrize("role", EVERYBODY)
@shared
async def test_whoever_may_ask_the_api_is_answered(server, role):
    """In their own inbox; where nobody is there the broker says so; who looks for services are two;
    and who asks stands in the subject.
    """
    async with signed_on(server, role) as who:
        for other in ("service", "reviewer.ana", "reviewer.zoe", "operator", "observer"):
            subject = f"approvals.{other if '.' in other else f'{other}.x'}.decide"
            own = role.replace("-", ".") if role.startswith("reviewer") else role
            if other != own:
                assert await who.ask(subject) == "denied", subject
        assert bool(requests_of(role)) == (role in ASKING)
        for subject in requests_of(role):
            with pytest.raises(nats.errors.NoRespondersError):
                await who.ask(subject)
        async with answering(server):
            looks = role in ("operator", "observer")
            assert await answered(who, "$SRV.PING") == (FORGED if looks else "denied")
            for subject in requests_of(role):
                assert await answered(who, subject) == FORGED, subject


@pytest.mark.parametrize("role", ASKING)
@shared
async def test_a_service_s_answer_cannot_be_sent_into_a_slot(server, admin, role):
    """It answers where it was told to, but only in the account of the one who asked: nothing is
    recorded anywhere (B68, I4).

    Neither where the role may write, nor where its account imports what its login is denied. Nor is
    what the broker answers.
    """
    tails = [tail.format("t1") for tail in WRITERS] + [tail.format("t1") for tail in NOBODY_WRITES]
    targets = [f"ledger.answer-{role}.{tail}" for tail in tails]
    targets += [
        f"ledger.{ORGANISATION}._policy.99",
        *("$KV.pending.acme.t1.c1", "$KV.running.acme.t1.c1", "$KV.running._renewed.acme.t1.c1"),
        *(f"file.acme.{role}.id.1" for role in ("service", "executor", "model")),
        *("timer.set.acme.t1.c1", f"parked.{role}.x.1"),
        *("$JS.API.STREAM.DELETE.PARKED", "$JS.API.STREAM.UPDATE.LEDGER"),
        # Nor is it a request in another's name.
        *(f"approvals.{who}" for who in ("reviewer.ana.decide", "reviewer.ben.decide")),
        "approvals.service.x.request",
    ]
    before = await last_seqs(admin)
    async with signed_on(server, role) as who, answering(server) as (_, asked):
        for subject in requests_of(role):
            async with asyncio.timeout(60):
                while len(asked) != len(targets) + 1:
                    asked.clear()
                    for target in targets:
                        await who.client.publish(subject, b"{}", reply=target)
                    # What is asked last is answered last.
                    assert await answered(who, subject) == FORGED
            assert await last_seqs(admin) == before
            asked.clear()
        body = json.dumps({"multi_last": ["ledger.>"], "batch": 1}).encode()
        brokers = ("$JS.API.STREAM.INFO.LEDGER", "$JS.API.DIRECT.GET.LEDGER", PING)
        for subject in brokers if role == "operator" else brokers[:2]:
            for target in targets:
                await who.client.publish(subject, body, reply=target)
            await admin.ask(subject, body)
        assert not who.problems
    await asyncio.sleep(0.05)
    assert await last_seqs(admin) == before


@pytest.mark.parametrize("role", EVERYBODY)
def test_nothing_is_imported_word_by_word_that_may_not_be_published(role):
    """Through such an import answers go on: denied it, a login could be made to send it."""
    may = permissions(role)
    exact = [one for one in (*may.publish, *may.asked) if not {"*", ">"} & set(one)]
    assert exact
    assert not [one for one in exact if any(matches(denied, one) for denied in may.denied)]


@shared
async def test_in_the_ledger_s_own_account_such_an_answer_would_be_recorded(server, admin):
    """The control of the test above: there is something to be kept out, and it would be seen."""

    async def answer(msg):
        await msg.respond(FORGED)

    listening = await admin.client.subscribe("control.oldest", cb=answer)
    before = await last_seqs(admin)
    decided = "ledger.answer-control.t1.call.c.decided"
    await admin.client.publish("control.oldest", b"{}", reply=decided)

    async def recorded():
        return (await last_seqs(admin))["LEDGER"] == before["LEDGER"] + 1

    await until(recorded)
    await listening.unsubscribe()


async def last_seqs(admin):
    """Of each stream, how much was ever recorded."""
    return {
        name: (await admin.json(f"$JS.API.STREAM.INFO.{name}"))["state"]["last_seq"]
        for name in STREAMS
    }


@shared
async def test_the_api_answers_once_and_only_whom_it_was_asked_by(server, service):
    """It may publish one answer to a request, to nobody unasked, and nothing twice."""
    async with answering(server) as (api, asked):
        inboxes = ("_R_.somebody.x", "_INBOX.model._.x", "_INBOX.observer._.x")
        for subject in (*inboxes, REQUEST, "$SRV.PING"):
            assert await api.ask(subject) == "denied", subject
        assert await answered(service, REQUEST) == FORGED
        [reply] = asked
        assert await api.ask(reply) == "denied"


@shared
async def test_only_consoles_hear_who_looks_at_a_call(server, admin):
    """And only they tell it: whoever else says it is denied, or is not heard."""
    heard = []

    async def hear(message):
        heard.append(message.data)

    async with signed_on(server, API) as one, signed_on(server, API) as other:
        await one.client.subscribe("console.looking", cb=hear)
        await settled(one.client)
        await admin.client.publish("console.looking", b"of the account of the log")
        await admin.client.flush()
        await other.client.publish("console.looking", b"of a console")
        await until(lambda: heard)
    assert heard == [b"of a console"]
    for role in EVERYBODY:
        may = permissions(role)
        for subjects in may.allowed.values():
            hears = any(matches(one, "console.looking") for one in subjects)
            assert hears is (role == API), role


@shared
async def test_a_consumer_cannot_deliver_to_the_api(server, admin, service):
    """Else whoever may create one could make each fact a request. The ledger has no import."""
    await service.ask("ledger.flood.t1.call.1-0.requested", b"{}")
    async with answering(server) as (_, asked):
        for target in (REQUEST, "$SRV.PING"):
            config = {"deliver_subject": target, "ack_policy": "none"}
            body = {"stream_name": "LEDGER", "config": config}
            made = await service.json("$JS.API.CONSUMER.CREATE.LEDGER", body)
            assert "error" not in made
            held = await admin.json(f"$JS.API.CONSUMER.INFO.LEDGER.{made['name']}")
            assert held["delivered"]["consumer_seq"] == 0
            assert held["num_pending"] > 0
        assert asked == []


@shared
async def test_a_reviewer_who_comes_later_asks_too(server, service):
    """An account that is made while the API answers can ask it, and those who could still can."""
    async with answering(server):
        await server.ensure_account("reviewer-late")
        async with signed_on(server, "reviewer-late") as late:
            assert await answered(late, "approvals.reviewer.late.decide") == FORGED
        assert await answered(service, REQUEST) == FORGED


# ------------------------------------------------------------------------------------------ reading


async def first_of(watcher):
    """The next entry. None says that all was told; nats-py may say so too early."""
    while (entry := await watcher.updates(20)) is None:
        pass
    return entry


@pytest.mark.parametrize("role", EVERYBODY)
@shared
async def test_everybody_reads(server, role):
    """Every role reads a slot, a thread, the log in order, and watches the pending, undenied."""
    async with signed_on(server, "service") as service, signed_on(server, "queue") as queue:
        for call in range(12):
            await service.ask(f"ledger.read-{role}.t1.call.{call}.requested", b"%d" % call)
        await queue.ask("$KV.pending.one", b"1")
    async with signed_on(server, role) as who:
        js = who.client.jetstream()
        slot = f"ledger.read-{role}.t1.call.3.requested"
        assert (await js.get_last_msg("LEDGER", slot)).data == b"3"
        assert (await js.get_last_msg("LEDGER", slot, direct=True)).data == b"3"
        assert await who.ask(f"$JS.API.DIRECT.GET.LEDGER.{slot}") == b"3"

        inbox = who.client.new_inbox()
        answers = await who.client.subscribe(inbox)
        body = json.dumps({"multi_last": [f"ledger.read-{role}.t1.>"]}).encode()
        await who.client.publish("$JS.API.DIRECT.GET.LEDGER", body, reply=inbox)
        found = [await answers.next_msg(timeout=60) for _ in range(13)]
        assert [msg.data for msg in found] == [*(b"%d" % call for call in range(12)), b""]

        if role != "operator":  # it reads in pages
            every = f"ledger.read-{role}.>"
            follower = await js.subscribe(every, stream="LEDGER", ordered_consumer=True)
            followed = [await follower.next_msg(timeout=60) for _ in range(12)]
            assert [msg.data for msg in followed] == [b"%d" % call for call in range(12)]
            await follower.unsubscribe()

        bucket = await js.key_value("pending")
        watcher = await bucket.watchall()
        assert (await first_of(watcher)).key
        await watcher.stop()
        assert (await bucket.get("one")).value == b"1"
        assert who.problems == []


@shared
async def test_two_gates_share_the_work(server, service):
    """The gate's deliveries are handed out among its processes, and acknowledged."""
    async with signed_on(server, "gate") as one, signed_on(server, "gate") as two:
        arrived = asyncio.Queue()
        for gate in (one, two):
            await gate.client.subscribe("deliver.gate.gate", queue="gate", cb=arrived.put)
            await settled(gate.client)
        wanted = {f"ledger.share.t1.call.{call}.requested" for call in range(8)}
        for subject in wanted:
            await service.ask(subject)
        while wanted:
            msg = await asyncio.wait_for(arrived.get(), 60)
            await msg.ack_sync(timeout=60)
            wanted.discard(msg.subject)
        assert one.problems == two.problems == []


# ------------------------------------------------------------------------------------ as plain text


def test_a_worker_may_acknowledge_each_of_its_durables():
    """Whoever has another durable gets its deliveries and acknowledgements, nothing else."""
    own = Durable("model-eu", "model", ("ledger.>",))
    may = permissions("model", [own, Durable("gate", "gate", ("ledger.>",))])
    assert "$JS.ACK.LEDGER.model-eu.>" in may.publish
    assert not any("gate" in subject for subject in (*may.publish, *may.subscribe))


@pytest.mark.parametrize("role", ["boss", "", "reviewer", "admin"])
def test_there_is_no_such_role(role):
    """A role that nobody described gets no permissions, and says which ones there are."""
    with pytest.raises(BadInput, match="reviewer-NAME"):
        permissions(role)


@pytest.mark.parametrize("name", ["", "*", ">", "ana.vote.ben", "a b", 'x"', "_x"])
def test_a_reviewer_is_one_token(name):
    """A reviewer's name cannot smuggle a wildcard into the permissions."""
    with pytest.raises(BadId):
        permissions(f"reviewer-{name}")


def test_nobody_is_configured_by_default():
    """Only roles with a password get an account."""
    text = accounts_config({"admin": "a", "system": "s", "reviewer-ana": 'p"\\'})
    assert "vote.ana" in text
    assert '"p\\"\\\\"' in text
    assert "call.*.decided" not in text


@shared
async def test_any_nats_client_can_watch_the_queue(server, admin):
    """A plain client, without any code of ours, watches the bucket as a live inbox."""
    await admin.ask("$KV.pending.shop.t1.c1", b"waiting")
    async with signed_on(server, "observer") as somebody:
        bucket = await somebody.client.jetstream().key_value("pending")
        watcher = await bucket.watchall()
        while (entry := await first_of(watcher)).key != "shop.t1.c1":
            pass
        assert entry.value == b"waiting"


@shared
async def test_clients_that_name_their_consumers_can_watch_too(server):
    """nats.go asks with a name and a filter in the subject; that reaches no durable."""
    config = {"deliver_subject": "_INBOX.observer._.x", "ack_policy": "none", "mem_storage": True}
    config |= {"name": "of-nats-go", "deliver_policy": "last_per_subject"}
    config["filter_subject"] = "$KV.pending.>"
    body = {"stream_name": "KV_pending", "config": config, "action": "create"}
    async with signed_on(server, "observer") as somebody:
        await somebody.client.subscribe("_INBOX.observer._.x")
        create = "$JS.API.CONSUMER.CREATE.KV_pending.of-nats-go.$KV.pending.>"
        assert "error" not in await somebody.json(create, body)
