"""`ayes setup` and `ayes setup --upgrade`: what is declared, what differs, and what is changed."""

import asyncio
import json

import pytest
import structlog
from program import at_a_terminal
from stories import REF, request
from structlog.testing import capture_logs
from until import until

from ayes.interfaces.cli import setup as setup_command
from ayes.interfaces.cli.command import Session
from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats import drift as drift_module
from ayes.ledger.nats.drift import check_own, differences
from ayes.ledger.nats.streams import described, info, is_packed
from ayes.ledger.subscriptions import DURABLES, LEDGER, PARKED
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.workers import reactions, working
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput, BrokerRefused

WISH = e.Wish(tool="refund", arguments='{"order":"A-17"}', provider_id="call_1")
CALL = REF.call("c1")
GATE = f"CONSUMER.INFO.{LEDGER}.gate"


@pytest.fixture
def setup(store, capsys):
    """The command, as a program reads it: exit code and output."""

    async def run(*also, **options):
        settings = {"replicas": None, "do_upgrade": False, "yes": False} | options
        code = await setup_command.setup(
            with_=list(also), session=Session(store, json=True), **settings
        )
        return code, json.loads(capsys.readouterr().out)

    return run


async def consumer(admin, name="gate", stream=LEDGER):
    return await info(admin.log.api, f"CONSUMER.INFO.{stream}.{name}")


async def filtered(admin, *subjects):
    """Give the gate the filter of another version."""
    config = (await consumer(admin))["config"] | {"filter_subjects": list(subjects)}
    body = {"stream_name": LEDGER, "config": config, "action": "update"}
    await admin.log.api.call(f"CONSUMER.CREATE.{LEDGER}.gate", body)


async def stream_changed(admin, **changes):
    config = (await info(admin.log.api, f"STREAM.INFO.{LEDGER}"))["config"]
    await admin.log.api.call(f"STREAM.UPDATE.{LEDGER}", config | changes)


# ---------------------------------------------------------------------------------------- upgrading


async def test_an_upgrade_shows_its_plan_and_changes_nothing_without_a_yes(store, admin, setup):
    """Each difference with what becomes of it; where nobody can be asked it ends with 1 (D19)."""
    await stream_changed(admin, max_age=10**15)
    await admin.log.api.call(f"CONSUMER.DELETE.{PARKED}.gate-parked")
    code, told = await setup(do_upgrade=True)
    assert (code, told) == (
        1,
        {
            "plan": [
                {
                    "difference": "stream LEDGER: max_age is 1000000000000000, declared is 0",
                    "remedy": "will be changed",
                },
                {
                    "difference": "consumer gate-parked is missing; `ayes up` or `ayes setup` "
                    "creates it",
                    "remedy": "will be created",
                },
            ]
        },
    )
    assert len(differences(await described(admin.log.api))) == 2
    code, told = await setup(do_upgrade=True, yes=True)
    assert (code, "differing" in told) == (0, False)
    assert differences(await described(admin.log.api)) == []


async def test_a_consumer_keeps_its_place_and_its_seal(store, admin, setup):
    """A gate of an earlier version, which asked for fewer subjects, goes on where it stood; its
    secret start time, by which only an administrator can change it, stays (D19).
    """
    await admin.try_append(CALL.requested, request(WISH))
    async with admin.log.deliveries("gate") as deliveries:
        await (await anext(deliveries)).ack()

    async def is_acknowledged():
        return (await consumer(admin))["ack_floor"]["stream_seq"]

    await until(is_acknowledged)
    await filtered(admin, DURABLES["gate"].subjects[0], "ledger.elsewhere.>")
    before = await consumer(admin)
    code, told = await setup(do_upgrade=True, yes=True)
    assert code == 0
    [change] = told["plan"]
    assert change["difference"].startswith("consumer gate: filter_subjects is [")
    assert change["remedy"].startswith("will be changed; earlier facts on added subjects")
    after = await consumer(admin)
    assert after["config"]["filter_subjects"] == list(DURABLES["gate"].subjects)
    for key in ("opt_start_time", "deliver_policy", "deliver_subject"):
        assert after["config"][key] == before["config"][key]
    for key in ("delivered", "ack_floor"):
        assert after[key]["stream_seq"] == before[key]["stream_seq"] > 0


async def test_what_the_broker_cannot_change_is_named(store, admin, setup):
    """The storage of a stream and a consumer's start stay; the plan says so, exit code 1 (D19)."""
    await admin.log.api.call(f"CONSUMER.DELETE.{LEDGER}.gate")
    config = {
        "durable_name": "gate",
        "deliver_subject": "deliver.gate.gate",
        "deliver_group": "gate",
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "max_ack_pending": 7,
        "max_deliver": -1,
        "filter_subjects": list(DURABLES["gate"].subjects),
    }
    body = {"stream_name": LEDGER, "config": config, "action": "create"}
    await admin.log.api.call(f"CONSUMER.CREATE.{LEDGER}.gate", body)
    code, told = await setup(do_upgrade=True, yes=True)
    assert code == 1
    assert [one["remedy"].partition(",")[0] for one in told["plan"]] == ["stays", "will be changed"]
    assert told["differing"] == [
        "consumer gate: deliver_policy is 'all', declared is 'by_start_time'"
    ]
    assert (await consumer(admin))["config"]["max_ack_pending"] == DURABLES["gate"].at_once


async def test_a_log_to_be_packed_is_made_so_and_stays_so(tmp_path, capsys):
    """A later `setup` keeps its level, with `--packed` and without."""
    async with EmbeddedServer(tmp_path / "store", sync="2m") as server:
        session = Session(server.store.path, json=True)
        for packed in (True, False, True):
            assert await setup_command.setup(packed=packed, session=session) == 0
            async with Ledger.connect(server.store.path, role="admin") as made:
                stream = await info(made.log.api, f"STREAM.INFO.{LEDGER}")
                assert is_packed(stream)
                assert not stream["config"]["deny_purge"]
                assert differences(await described(made.log.api)) == []
        capsys.readouterr()
        async with Ledger.connect(server.store.path, role="admin") as made:
            await stream_changed(made, deny_purge=True)
        options = {"do_upgrade": True, "yes": True, "session": session}
        assert await setup_command.setup(**options) == 1
        told = json.loads(capsys.readouterr().out)
        assert told["differing"] == ["stream LEDGER: deny_purge is True, declared is False"]
        [one] = told["plan"]
        assert one["remedy"].startswith("stays, since the broker takes it back in a restore only")


async def test_a_log_whose_facts_stay_is_not_made_another(store, admin, setup):
    """And it is said what can be done."""
    with pytest.raises(BadInput, match=r"in a restore only: `ayes backup`, then `ayes restore`"):
        await setup(packed=True)
    assert differences(await described(admin.log.api)) == []


@pytest.mark.parametrize(("word", "code"), [("n", 1), ("y", 0)])
async def test_a_person_is_asked_before_the_upgrade(store, admin, word, code):
    """At a terminal the plan is shown first; anything but yes is a no (D19)."""
    await stream_changed(admin, max_age=10**15)

    def typed():
        with at_a_terminal("setup", "--upgrade", store=store) as terminal:
            terminal.read_until("Apply it? [y/N]")
            assert "declared is 0 -> will be changed" in terminal.told
            terminal.type(word)
            return terminal.ended()

    assert await asyncio.to_thread(typed) == code
    assert len(differences(await described(admin.log.api))) == code


async def test_replicas_are_not_changed_without_upgrade(store, setup):
    """One server takes one replica: setup names the streams with another number, and what changes
    it; the broker's own refusal is told (D16).
    """
    assert (await setup())[0] == 0
    code, told = await setup(replicas=3)
    assert code == 1
    assert "stream LEDGER has 1 replica, not 3" in told["differing"]
    with pytest.raises(BrokerRefused, match="does not change stream LEDGER: replicas > 1"):
        await setup(replicas=3, do_upgrade=True, yes=True)


# --------------------------------------------------------------------------------- a worker's start


async def test_a_worker_refuses_a_consumer_that_would_miss_facts(store, admin):
    """A gate whose consumer delivers no votes would wait for ever: it ends and says why (D19)."""
    await filtered(admin, DURABLES["gate"].subjects[0])
    with pytest.raises(BrokerRefused, match="`ayes setup --upgrade` first"):
        async with working(reactions(["gate"]), store=store) as failed:
            await failed


async def test_a_worker_only_warns_of_what_does_no_harm(store, admin, monkeypatch):
    """More subjects than it knows, as a newer program's, or another limit."""
    await filtered(admin, *DURABLES["gate"].subjects, "ledger.*.*.later")
    heard = structlog.wrap_logger(None, wrapper_class=structlog.BoundLogger)
    monkeypatch.setattr(drift_module, "_log", heard)
    with capture_logs() as logs:
        await check_own(admin.log.api, DURABLES["gate"])
    assert [one["event"] for one in logs] == ["the consumer is not as this program declares it"]


async def test_a_worker_without_its_consumer_says_what_creates_it(store, admin, setup):
    """An optional consumer is there once it is asked for; until then its worker ends (D17)."""
    for name in ("closer", "closer-parked"):
        await admin.log.api.call(f"CONSUMER.DELETE.{DURABLES[name].stream}.{name}")
    with pytest.raises(BrokerRefused, match="`ayes setup --with closer` first"):
        async with working(reactions(["executor"]), store=store) as failed:
            await failed
    code, told = await setup("closer")
    assert (code, {"closer", "closer-parked"} <= set(told["consumers"])) == (0, True)
    await check_own(admin.log.api, DURABLES["closer"])


# ------------------------------------------------------------------------------- optional consumers


async def test_setup_creates_no_consumer_that_nobody_asked_for(tmp_path, capsys):
    """Of the optional ones only those that are named, each with the one for its parked deliveries;
    so `status` has no row that stands still for ever (D17).
    """
    async with EmbeddedServer(tmp_path / "store", sync="2m") as server:
        session = Session(server.store.path, json=True)
        assert await setup_command.setup(with_=["executor"], session=session) == 0
        capsys.readouterr()
        async with Ledger.connect(server.store.path, role="admin") as admin:
            there = {
                name
                for name, one in DURABLES.items()
                if await consumer(admin, name, one.stream) is not None
            }
        assert {name for name in there if DURABLES[name].optional} == {
            "executor",
            "executor-parked",
        }
        with pytest.raises(BadInput, match="there is no optional consumer gates"):
            await setup_command.setup(with_=["gates"], session=session)
