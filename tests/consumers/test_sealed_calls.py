"""Sealed arguments on their way: requested, judged, edited, opened, run; and refused.

The gate, people and the executor are the real ones, on the log in memory.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from heard import heard
from running import working
from shop import FIRST, SECOND, THREAD, Shop, rule

from ayes.consumers.effects import Perform
from ayes.consumers.executor import Executor
from ayes.consumers.tools import NOT_DONE, Tools
from ayes.consumers.worker import Worker
from ayes.ledger import thread_keys
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.sealed_values import commitment, seal
from ayes.ledger.thread_keys import ThreadKeys
from ayes.ops.broker.setup import apply_policy, propose_policy
from ayes.projections.display.values import value_of
from ayes.projections.notices import notice
from ayes.projections.slack_messages import is_whole, message
from ayes.projections.views.fact import recorded
from ayes.projections.views.secrets import WHOLE
from ayes.schemas import events as e
from ayes.schemas.codec import encode
from ayes.schemas.errors import AlreadyFilled, BadArguments, BadInput, BrokerAway, NotOpen
from ayes.schemas.sealed import SEALED, is_token
from ayes.schemas.slots import GrantRef, policies
from ayes.schemas.tools import ToolSpec

pytestmark = pytest.mark.log("memory")

CARD = "4111-1111-1111-1111"
SCHEMA = (
    '{"type":"object","properties":{"order":{"type":"string"},'
    '"card":{"type":"string","maxLength":19},"amount":{"type":"number"}},"required":["card"]}'
)
ASKED = {"order": "A-17", "card": CARD, "amount": 5}
READS = rule("cards", "allow", "when = 'args.card == \"x\"'", tools="charge")
BUDGET = """
[[budget]]
name = "day"
tools = ["*"]
amount = "/card"
limit = 100
per = ["thread"]
"""


def spec(run_by: str = "client", schema: str = SCHEMA, **more: Any) -> ToolSpec:
    return ToolSpec(name="charge", schema=schema, run_by=run_by, sealed=("/card",), **more)


@pytest.fixture
def keys(tmp_path: Path) -> ThreadKeys:
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    return ThreadKeys(folder)


@pytest.fixture
def sealing(shop: Shop, keys: ThreadKeys) -> Shop:
    """A shop whose service has keys."""
    shop.ledger.keys = keys
    return shop


async def approved(shop: Shop, arguments: dict[str, Any] | str = ASKED) -> None:
    await shop.ledger.request(FIRST, "charge", arguments, requester="rita")
    await shop.asked()
    await shop.ledger.reviewer("ana").approve(FIRST)
    await shop.decided(e.Approved)


def said(shop: Shop) -> bytes:
    """All that is in the log."""
    return b"\n".join(raw.data for raw in shop.log._raw)


async def test_a_service_seals_and_runs_and_nobody_between_sees_the_value(sealing: Shop):
    got: list[str] = []

    def charge(order: str, card: str, amount: float) -> str:
        got.append(card)
        return f"charged {amount} of {card} for {order}"

    await sealing.open("", "", spec())
    async with sealing.gates():
        await approved(sealing)
        returned = await sealing.ledger.run(FIRST, charge)
    assert got == [CARD]
    assert returned.output == f"charged 5 of {SEALED} for A-17"
    assert CARD.encode() not in said(sealing)
    call = await sealing.ledger.call(FIRST)
    assert is_token(msgspec.json.decode(call.arguments)["card"])
    keyed = (await sealing.until(THREAD.keyed)).event
    assert keyed.commitment == commitment(sealing.ledger.keys.key(THREAD))


async def test_a_repeated_request_is_the_same_and_another_value_is_not(sealing: Shop):
    await sealing.open("", "", spec())
    one = await sealing.ledger.request(FIRST, "charge", ASKED)
    assert (await sealing.ledger.request(FIRST, "charge", ASKED)).digest == one.digest
    # Sealed elsewhere, as by a program in another language: it stays as it is.
    assert (await sealing.ledger.request(FIRST, "charge", one.arguments)).digest == one.digest
    with pytest.raises(AlreadyFilled, match="other arguments"):
        await sealing.ledger.request(FIRST, "charge", ASKED | {"card": "5111"})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"order": "A-17"}, "'card'|\"card\""),
        (ASKED | {"card": {"number": CARD, "also": "rm -rf"}}, "at /card"),
        (ASKED | {"card": [CARD]}, "at /card"),
        (ASKED | {"card": True}, "at /card"),
        (ASKED | {"card": None}, "at /card"),
        (ASKED | {"card": CARD + "-too-long"}, "at /card"),
        ('{"card":"%s","card":"x"}' % CARD, "cannot be read"),  # noqa: UP031
        ('{"card":1%s}' % ("0" * 400), "cannot be read"),
        ('["card"]', "do not fit"),
    ],
)
async def test_what_does_not_fit_is_refused_before_it_is_sealed(
    sealing: Shop, arguments: Any, says: str
):
    await sealing.open("", "", spec())
    with pytest.raises(BadArguments, match=says) as raised:
        await sealing.ledger.request(FIRST, "charge", arguments)
    assert CARD not in str(raised.value)
    assert await sealing.ledger.log.latest(FIRST.requested.subject) is None


async def test_an_absent_value_is_not_sealed_and_needs_no_key(shop: Shop):
    optional = SCHEMA.replace(',"required":["card"]', "")
    await shop.open("", "", spec(schema=optional))
    async with shop.gates():
        await approved(shop, {"amount": 5})
        assert (await shop.ledger.run(FIRST, lambda amount: f"{amount}")).output == "5"
    assert await shop.ledger.log.latest(THREAD.keyed.subject) is None


async def test_a_call_without_sealed_values_runs_in_a_forgotten_thread(shop: Shop):
    """There is nothing in it that was forgotten, so it is as any other."""
    optional = SCHEMA.replace(',"required":["card"]', "")
    await shop.open("", "", spec(schema=optional))
    await shop.ledger.append(THREAD.forgetting, e.ForgettingBegan())
    async with shop.gates():
        await approved(shop, {"amount": 5})
        assert (await shop.ledger.run(FIRST, lambda amount: f"{amount}")).output == "5"


async def test_a_result_that_a_program_reports_itself_has_no_sealed_value(sealing: Shop):
    await sealing.open("", "", spec())
    async with sealing.gates():
        await approved(sealing)
    await sealing.ledger.start(FIRST)
    plain = await sealing.ledger.opened(FIRST)
    output = f"charged {msgspec.json.decode(plain.arguments)['card']}"
    known = await sealing.ledger.finish(FIRST, output=output)
    assert known.finished.event.output == f"charged {SEALED}"
    with pytest.raises(AlreadyFilled, match="this very result"):
        await sealing.ledger.finish(FIRST, output=output)
    assert CARD.encode() not in said(sealing)


async def started(shop: Shop) -> str:
    """A call that this program has claimed and opened; returns what its tool says then."""
    await shop.open("", "", spec())
    async with shop.gates():
        await approved(shop)
    await shop.ledger.start(FIRST)
    plain = await shop.ledger.opened(FIRST)
    return f"charged {msgspec.json.decode(plain.arguments)['card']}"


def unreadable(keys: ThreadKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    keys.folder.chmod(0o750)


def moved(keys: ThreadKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    keys.folder.rename(keys.folder.with_name("elsewhere"))


def empty(keys: ThreadKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    moved(keys, monkeypatch)
    keys.folder.mkdir(mode=0o700)


def broken(keys: ThreadKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_of: Any) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(thread_keys, "read_private", failing)


def anothers(keys: ThreadKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThreadKeys, "key", lambda _self, _thread: bytes(32))


def undeclared(keys: ThreadKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(*_of: Any) -> None: ...

    monkeypatch.setattr(Ledger, "tool_of", none)


@pytest.mark.parametrize("become", [unreadable, moved, empty, broken, anothers, undeclared])
async def test_a_result_is_recorded_only_if_what_is_sealed_can_be_left_out(
    sealing: Shop, keys: ThreadKeys, become: Any
):
    """The program has opened the value, so the text may have it although the key is gone by now."""
    text = await started(sealing)
    before = len(sealing.log._raw)
    with pytest.MonkeyPatch.context() as away:
        become(keys, away)
        for report in (
            sealing.ledger.finish(FIRST, output=text),
            sealing.ledger.doubt(FIRST, f"Interrupted: {text}"),
        ):
            with pytest.raises(NotOpen, match=f"the keys in {keys.folder}. Restore them") as raised:
                await report
            assert CARD not in str(raised.value)
    assert len(sealing.log._raw) == before
    if (elsewhere := keys.folder.with_name("elsewhere")).exists():
        elsewhere.replace(keys.folder)
    keys.folder.chmod(0o700)
    known = await sealing.ledger.finish(FIRST, output=text)
    assert known.finished.event.output == f"charged {SEALED}"
    assert CARD.encode() not in said(sealing)


async def test_a_doubt_without_a_reason_needs_no_key(sealing: Shop, keys: ThreadKeys):
    """Else a call whose keys are lost would never end."""
    await started(sealing)
    sealing.ledger.keys = ThreadKeys(keys.folder / "none")
    assert (await sealing.ledger.doubt(FIRST)).status is Status.IN_DOUBT


async def test_a_doubt_has_no_sealed_value(sealing: Shop):
    text = await started(sealing)
    known = await sealing.ledger.doubt(FIRST, f"Interrupted: {text}")
    assert known.finished.event.text == f"Interrupted: charged {SEALED}"


@pytest.mark.parametrize(
    ("told", "recorded"),
    [
        (
            lambda ledger, text: ledger.finish(FIRST, output=text),
            "It ran. Its text is not recorded",
        ),
        (lambda ledger, text: ledger.finish(FIRST, error=text), "It failed. Its text is not"),
        (lambda ledger, text: ledger.doubt(FIRST, text), "Nobody knows how it ended. Its"),
    ],
    ids=["output", "error", "doubt"],
)
async def test_after_a_thread_is_forgotten_nothing_is_recorded_of_what_a_program_reports(
    sealing: Shop, told: Any, recorded: str
):
    """It may have opened the value before, and nobody can look for that in its text any more."""
    text = await started(sealing)
    await sealing.ledger.append(THREAD.forgetting, e.ForgettingBegan())
    await told(sealing.ledger, text)
    assert recorded.encode() in said(sealing)
    assert CARD.encode() not in said(sealing)


async def test_a_result_that_is_reported_again_after_the_thread_is_forgotten_has_no_value(
    sealing: Shop,
):
    """A late result is recorded too."""
    text = await started(sealing)
    await sealing.ledger.finish(FIRST, output=text)
    await sealing.ledger.append(THREAD.forgetting, e.ForgettingBegan())
    with pytest.raises(AlreadyFilled):
        await sealing.ledger.finish(FIRST, output=text)
    assert CARD.encode() not in said(sealing)


async def test_a_program_without_keys_reports_what_it_received(sealing: Shop):
    await started(sealing)
    sealing.ledger.keys = None
    known = await sealing.ledger.finish(FIRST, output="charged")
    assert known.finished.event.output == "charged"


def away_once(monkeypatch: pytest.MonkeyPatch, shop: Shop) -> list[str]:
    """The broker does not answer the first question whether a thread is forgotten."""
    latest, asked = shop.log.latest, list[str]()

    async def silent(subjects: str) -> Any:
        if subjects == THREAD.forgetting.subject:
            asked.append(subjects)
            if len(asked) == 1:
                raise BrokerAway("no broker answers.")
        return await latest(subjects)

    monkeypatch.setattr(shop.log, "latest", silent)
    return asked


async def test_a_service_that_has_claimed_waits_for_a_broker_that_is_away(
    sealing: Shop, monkeypatch: pytest.MonkeyPatch
):
    """Else the call would be in doubt, although it never ran."""
    await sealing.open("", "", spec())
    async with sealing.gates():
        await approved(sealing)
    claim = Ledger._record_claim

    async def claimed(self: Ledger, *of: Any) -> Any:
        known = await claim(self, *of)
        away_once(monkeypatch, sealing)
        return known

    monkeypatch.setattr(Ledger, "_record_claim", claimed)
    returned = await sealing.ledger.run(FIRST, lambda **_all: "charged")
    assert returned.output == "charged"


async def test_a_program_without_keys_requests_and_runs_nothing(shop: Shop, keys: ThreadKeys):
    await shop.open("", "", spec())
    with pytest.raises(BadInput, match="charge seals /card, and this program has no keys"):
        await shop.ledger.request(FIRST, "charge", ASKED)
    assert CARD.encode() not in said(shop)
    shop.ledger.keys = keys
    async with shop.gates():
        await approved(shop)
        shop.ledger.keys = None
        for start in (shop.ledger.run(FIRST, print), shop.ledger.start(FIRST)):
            with pytest.raises(NotOpen, match="the key of its thread is not here"):
                await start
    assert (await shop.ledger.call(FIRST)).status is Status.APPROVED


async def test_another_client_that_does_not_seal_is_denied_by_the_gate(shop: Shop):
    """The plain value is in the log then. It runs nowhere, and the sentence says what to do."""
    await shop.open("", "", spec())
    async with shop.gates():
        denied = await shop.judged(e.Denied, FIRST, '{"card":"4111"}', "charge")
    assert denied.ground == "invalid"
    assert "at /card, the value is sealed by this tool, and this one is not" in denied.reason


async def test_a_request_of_before_a_tool_sealed_stays_as_it_was(sealing: Shop):
    plain = ToolSpec(name="charge", schema=SCHEMA)
    await sealing.open("", "", plain)
    async with sealing.gates():
        await sealing.ledger.request(FIRST, "charge", ASKED, requester="rita")
        await sealing.asked()
        await sealing.ledger.declare("shop", spec())
        again = await sealing.ledger.request(FIRST, "charge", ASKED, requester="rita")
        assert again.wish.tool_version != (await sealing.ledger.tool("shop", "charge")).version
        await sealing.ledger.reviewer("ana").approve(FIRST)
        await sealing.decided(e.Approved)
        assert (await sealing.ledger.run(FIRST, lambda **all_: str(len(all_)))).output == "3"


async def test_a_declaration_that_seals_less_is_refused(sealing: Shop):
    """Whoever requests by the name alone would record the value in plain text from then on. A
    version of before is no newer one, as when a release is taken back.
    """
    plain = ToolSpec(name="charge", schema=SCHEMA)
    await sealing.open("", "", plain, spec())
    with pytest.raises(BadInput, match="its newest declaration seals /card, and this one would"):
        await sealing.ledger.declare("shop", ToolSpec(name="charge", schema=SCHEMA, title="Charge"))
    before = await sealing.ledger.declare("shop", plain)
    newest = await sealing.ledger.tool("shop", "charge")
    assert (newest.declared.sealed, before.version != newest.version) == (("/card",), True)


# --------------------------------------------------------------------------------- the thread's key


async def test_of_two_directories_of_keys_the_first_one_counts(sealing: Shop, tmp_path: Path):
    """What the other one would seal, nobody could open."""
    (tmp_path / "other").mkdir(mode=0o700)
    await sealing.open("", "", spec())
    await sealing.ledger.request(FIRST, "charge", ASKED)
    sealing.ledger.keys = ThreadKeys(tmp_path / "other")
    for _ in range(2):
        with pytest.raises(BadInput, match="another directory of keys has it"):
            await sealing.ledger.request(SECOND, "charge", ASKED)
    assert not [*(tmp_path / "other").glob("*.key")]


async def test_a_commitment_that_came_first_meanwhile_seals_nothing(
    sealing: Shop, monkeypatch: pytest.MonkeyPatch
):
    """Both looked before either wrote: the later one has a key, and must not use it."""
    await sealing.open("", "", spec())
    append = Ledger.try_append

    async def late(self: Ledger, slot: Any, event: Any, *more: Any, **named: Any) -> Any:
        if isinstance(event, e.Keyed):
            await append(self, slot, e.Keyed(commitment="0" * 64))
        return await append(self, slot, event, *more, **named)

    monkeypatch.setattr(Ledger, "try_append", late)
    with pytest.raises(BadInput, match="another directory of keys has it"):
        await sealing.ledger.request(FIRST, "charge", ASKED)
    assert await sealing.ledger.log.latest(FIRST.requested.subject) is None


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_nothing_is_sealed_in_a_thread_that_is_forgotten(
    sealing: Shop, monkeypatch: pytest.MonkeyPatch, when: str
):
    await sealing.open("", "", spec())
    made = ThreadKeys.made

    def forgotten_by_then(self: ThreadKeys, thread: Any) -> bytes:
        sealing.log._store(THREAD.forgetting.subject, encode(e.ForgettingBegan(id="f")))
        return made(self, thread)

    if when == "before":
        await sealing.ledger.append(THREAD.forgetting, e.ForgettingBegan())
    else:
        monkeypatch.setattr(ThreadKeys, "made", forgotten_by_then)
    with pytest.raises(NotOpen, match="shop/t1 is forgotten"):
        await sealing.ledger.request(FIRST, "charge", ASKED)
    assert await sealing.ledger.log.latest(FIRST.requested.subject) is None


# ------------------------------------------------------------------------ what reads a sealed value


@pytest.mark.parametrize(
    "text", [READS, BUDGET + rule("all", "ask", tools="*")], ids=["rule", "budget"]
)
@pytest.mark.parametrize("owner", ["shop", "_organisation"])
async def test_a_policy_that_reads_a_sealed_value_is_refused_when_it_is_applied(
    shop: Shop, text: str, owner: str
):
    """F3. And so is a tool, when it would be declared under such a policy."""
    await shop.open("", "", spec())
    with pytest.raises(BadInput, match="reads /card of charge, which cannot be judged: sealed"):
        await apply_policy(shop.ledger, owner, text, "shop.toml")
    if owner == "shop":
        with pytest.raises(BadInput, match="cannot be judged: sealed"):
            await propose_policy(shop.ledger, "shop", text, "shop.toml", "rita")
    assert len(await shop.ledger.read(policies(owner))) == (owner == "shop")


@pytest.mark.parametrize(
    "text", [READS, BUDGET + rule("all", "ask", tools="*")], ids=["rule", "budget"]
)
async def test_a_tool_that_seals_what_a_policy_reads_is_refused(shop: Shop, text: str):
    await shop.open(text, "", ToolSpec(name="charge", schema=SCHEMA))
    with pytest.raises(BadInput, match=r"charge is not declared: .* cannot be judged: sealed"):
        await shop.ledger.declare("shop", spec())


async def test_a_policy_that_was_recorded_all_the_same_approves_nothing(sealing: Shop):
    """By another client: the condition would be false of the token, and the next rule allow it."""
    allow = rule("cards", "block", "when = 'args.card == \"x\"'", tools="charge")
    await sealing.open("", "", spec())
    await sealing.apply(allow + rule("rest", "allow", tools="*"))
    async with sealing.gates():
        await sealing.ledger.request(FIRST, "charge", ASKED, requester="rita")
        denied = await sealing.decided(e.Denied)
    assert denied.ground == "invalid"
    assert "rule 'cards' reads /card of charge, which cannot be judged: sealed" in denied.reason


async def test_nor_does_one_that_comes_while_people_are_asked(sealing: Shop):
    await sealing.open(rule("all", "ask", tools="*"), "", spec())
    async with sealing.gates():
        await sealing.ledger.request(FIRST, "charge", ASKED, requester="rita")
        await sealing.asked()
        await sealing.apply(rule("cards", "block", "when = 'args.card == \"x\"'", tools="charge"))
        await sealing.ledger.reviewer("ana").approve(FIRST)
        denied = await sealing.decided(e.Denied)
    assert denied.reason.startswith("Approved by people, but rule 'cards' reads /card of charge")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"arguments": True}, "no grant is for exact arguments of it"),
        ({"when": "has(args.card)"}, "the condition of this grant reads /card"),
    ],
)
async def test_a_grant_that_reads_a_sealed_value_is_refused_and_covers_nothing(
    sealing: Shop, more: dict[str, Any], says: str
):
    await sealing.open(rule("all", "ask", tools="*"), "", spec())
    ref = GrantRef("shop", "ana", "g1")
    async with sealing.gates():
        first = await sealing.ledger.request(FIRST, "charge", ASKED, requester="rita")
        if "arguments" in more:
            more = {"arguments": first.arguments}
        with pytest.raises(BadInput, match=says):
            await sealing.ledger.reviewer("ana").grant(ref, "charge", for_s=60, **more)
        granted = e.Granted(tool="charge", expires_in_s=60.0, uses=9, **more)
        await sealing.ledger.append(ref.given, granted)
        await sealing.ledger.request(SECOND, "charge", ASKED, requester="rita")
        await sealing.asked(SECOND)


async def test_a_grant_on_other_values_covers_a_call_with_sealed_ones(sealing: Shop):
    await sealing.open(rule("all", "ask", tools="*"), "", spec())
    giver = sealing.ledger.reviewer("ana")
    await giver.grant("shop/ana/g1", "charge", for_s=60, when="args.amount < 10")
    async with sealing.gates():
        await sealing.ledger.request(FIRST, "charge", ASKED, requester="rita")
        assert (await sealing.decided(e.Approved)).ground == "grant"


async def test_people_edit_what_is_not_sealed_alone(sealing: Shop):
    policy = rule("all", "ask", "editor_counts = true", tools="*")
    await sealing.open(policy, "", spec())
    async with sealing.gates():
        call = await sealing.ledger.request(FIRST, "charge", ASKED, requester="rita")
        await sealing.asked()
        given = msgspec.json.decode(call.arguments)
        token = given["card"]
        other = seal(bytes(32), FIRST.requested.subject, "/card", '"4"')
        for card in (other, CARD):
            edited = msgspec.json.encode(given | {"card": card, "amount": 4}).decode()
            with pytest.raises(BadArguments):
                await sealing.ledger.reviewer("ana").approve(FIRST, arguments=edited)
        with pytest.raises(BadArguments, match="/card of charge is sealed, so nobody can edit it"):
            await sealing.ledger.reviewer("ana").approve(
                FIRST, arguments=msgspec.json.encode(given | {"card": other}).decode()
            )
        # Recorded past the client, it does not count.
        forged = msgspec.json.encode(given | {"card": other}).decode()
        await sealing.cast("cy", arguments=forged)
        edited = msgspec.json.encode(given | {"amount": 4}).decode()
        await sealing.ledger.reviewer("ben").approve(FIRST, arguments=edited)
        assert (await sealing.decided(e.Approved)).voters == ("ben",)
        assert (await sealing.ledger.run(FIRST, lambda **all_: f"{all_['amount']}")).output == "4"
    assert token in (await sealing.ledger.call(FIRST)).arguments


# ------------------------------------------------------------------------------------- the executor


def registry(seen: list[str], **more: Any) -> Tools:
    tools = Tools()

    @tools.add(sealed=["/card"], **more)
    def charge(card: str, amount: int) -> str:
        seen.append(card)
        if amount < 0:
            raise ValueError(f"no such card: {card!r}")
        return f"charged {amount} of {card}"

    return tools


@asynccontextmanager
async def executing(
    shop: Shop, tools: Tools, keys: ThreadKeys | None, *, hand_on_for_s: float = 30.0
) -> AsyncIterator[None]:
    executor = Ledger(shop.log, e.Author("executor", "executor"))
    executor.keys = keys
    await tools.declare(shop.ledger, "shop")
    async with (
        shop.gates(),
        working(Worker(executor, Executor(tools, hand_on_for_s=hand_on_for_s))),
    ):
        yield


async def ended(shop: Shop) -> Any:
    return (await shop.until(FIRST.finished)).event


@pytest.mark.parametrize(("amount", "text"), [(5, "charged 5 of (sealed)"), (-5, "ValueError: ")])
async def test_an_executor_opens_and_tells_nobody(
    sealing: Shop, keys: ThreadKeys, amount: int, text: str
):
    """Neither what the tool returns nor what it raises has the value, in the log or in a line."""
    seen: list[str] = []
    with heard() as lines:
        async with executing(sealing, registry(seen), keys):
            await approved(sealing, {"card": CARD, "amount": amount})
            outcome = await ended(sealing)
    assert seen == [CARD]
    words = outcome.output if amount > 0 else outcome.error
    assert words.startswith(text)
    assert SEALED in words
    assert CARD.encode() not in said(sealing)
    assert CARD not in str(lines)


def forged(shop: Shop, plain: str, place: str = "/card", ref: Any = FIRST) -> str:
    """A token that our client would not make: of another place, or of what does not fit."""
    return seal(shop.ledger.keys.made(THREAD), ref.requested.subject, place, plain)


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (lambda shop: forged(shop, '"4"', "/amount"), "unopened"),
        (lambda shop: forged(shop, '"4"', ref=SECOND), "unopened"),
        (lambda shop: seal(bytes(32), FIRST.requested.subject, "/card", '"4"'), "unopened"),
        (lambda shop: forged(shop, '{"card":"4","more":"x"}'), "unopened"),
        (lambda shop: forged(shop, "5"), "misfit"),
    ],
    ids=["another place", "another call", "another key", "more than a value", "another type"],
)
async def test_what_cannot_be_opened_or_does_not_fit_is_declined_before_it_is_claimed(
    sealing: Shop, keys: ThreadKeys, token: Callable[[Shop], str], why: str
):
    seen: list[str] = []
    await sealing.ledger.append(THREAD.keyed, e.Keyed(commitment=commitment(keys.made(THREAD))))
    with heard() as lines:
        async with executing(sealing, registry(seen), keys):
            await approved(sealing, {"card": token(sealing), "amount": 5})
            told = await ended(sealing)
    assert (told.ending, seen) == (why, [])
    assert (await sealing.until(FIRST.claim(1))).event.why == why
    assert '"4"' not in str(lines)
    assert why == "misfit" or "a sealed value is not opened" in str(lines)


async def test_a_call_of_a_forgotten_thread_is_declined(sealing: Shop, keys: ThreadKeys):
    """Its key may still be there: the fact counts, and not the file."""
    seen: list[str] = []
    async with executing(sealing, registry(seen), keys):
        await sealing.ledger.request(FIRST, "charge", {"card": CARD, "amount": 5}, requester="rita")
        await sealing.asked()
        await sealing.ledger.append(THREAD.forgetting, e.ForgettingBegan())
        await sealing.ledger.reviewer("ana").approve(FIRST)
        told = await ended(sealing)
    assert (told.ending, seen) == ("forgotten", [])
    assert told.text == (
        "`charge` did not run: what was sealed in this conversation was forgotten, and cannot be "
        "opened."
    )


async def test_an_executor_without_the_key_leaves_the_call_to_others_and_then_declines(
    sealing: Shop,
):
    seen: list[str] = []
    async with executing(sealing, registry(seen), None, hand_on_for_s=0):
        await approved(sealing, {"card": CARD, "amount": 5})
        assert ((await ended(sealing)).ending, seen) == ("unopened", [])


async def test_one_that_has_the_key_takes_what_another_one_left(sealing: Shop, keys: ThreadKeys):
    seen: list[str] = []
    without = Ledger(sealing.log, e.Author("executor", "other"))
    tools = registry(seen)
    async with executing(sealing, tools, keys):
        await approved(sealing, {"card": CARD, "amount": 5})
        decided = await sealing.until(FIRST.decided)
        steps = Executor(tools).decide(await Executor(tools).load(without, decided), decided)
        assert "HandOn" in repr(steps)
        await ended(sealing)
    assert seen == [CARD]


async def test_a_thread_that_is_forgotten_after_the_claim_runs_nothing(
    sealing: Shop, keys: ThreadKeys
):
    """An executor opens once more what it has claimed, and keeps no plain text until then (F4)."""
    seen: list[str] = []
    tools = Tools()

    @tools.add(sealed=["/card"])
    def charge(card: str, order: str = "", amount: float = 0) -> str:
        seen.append(card)
        return "charged"

    await sealing.open("", "")
    await tools.declare(sealing.ledger, "shop")
    async with sealing.gates():
        await approved(sealing)
    executor, decided = Executor(tools), await sealing.until(FIRST.decided)
    [step] = executor.decide(await executor.load(sealing.ledger, decided), decided)
    assert isinstance(step, Perform)
    await sealing.ledger.append(step.claim.slot, step.claim.event)
    await sealing.ledger.append(THREAD.forgetting, e.ForgettingBegan())
    ended = await executor.execute(sealing.ledger, step.work)
    assert ended is not None
    assert isinstance(ended.event, e.ToolFailed)
    assert ended.event.error.startswith("It did not run: its thread was forgotten")
    assert seen == []


async def test_an_executor_that_has_claimed_waits_for_a_broker_that_is_away(
    sealing: Shop, keys: ThreadKeys, monkeypatch: pytest.MonkeyPatch
):
    seen: list[str] = []
    tools = registry(seen)
    await tools.declare(sealing.ledger, "shop")
    async with sealing.gates():
        await approved(sealing, {"card": CARD, "amount": 5})
    executor, decided = Executor(tools), await sealing.until(FIRST.decided)
    [step] = executor.decide(await executor.load(sealing.ledger, decided), decided)
    assert isinstance(step, Perform)
    await sealing.ledger.append(step.claim.slot, step.claim.event)
    asked = away_once(monkeypatch, sealing)
    ended = await executor.execute(sealing.ledger, step.work)
    assert ended is not None
    assert ended.event.output == f"charged 5 of {SEALED}"
    assert (seen, len(asked)) == ([CARD], 2)


@pytest.mark.parametrize("found", ["charged", NOT_DONE, None])
async def test_a_lookup_receives_the_value_and_what_it_says_has_none(
    sealing: Shop, keys: ThreadKeys, found: Any
):
    seen: list[str] = []

    def lookup(card: str, amount: int) -> Any:
        seen.append(card)
        if found is None:
            raise LookupError(f"nothing about {card}")
        return f"{found} {card}" if isinstance(found, str) else found

    tools = registry(seen, lookup=lookup)
    await tools.declare(sealing.ledger, "shop")
    async with sealing.gates():
        await approved(sealing, {"card": CARD, "amount": 5})
    decided = await sealing.until(FIRST.decided)
    call = await sealing.ledger.call(FIRST)
    started = e.ToolStarted(digest=call.digest, idempotency_key=str(FIRST))
    await sealing.ledger.append(FIRST.claim(1), started)
    executor = Executor(tools)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ayes.consumers.executor.LOOKUP_PAUSES_S", (0.0,))
        state = await executor.load(sealing.ledger, decided)
    steps = executor.decide(state, decided)
    assert seen == [CARD]
    assert CARD not in repr((state, steps))


# ---------------------------------------------------------------------------------- what people see


async def test_pages_and_messages_say_sealed(sealing: Shop):
    await sealing.open("", "", spec(title="Charge {card} for {order}"))
    async with sealing.gates():
        await sealing.ledger.request(FIRST, "charge", ASKED, requester="rita")
        assert (await sealing.asked()).title == "Charge (secret) for A-17"
    call = await sealing.ledger.call(FIRST)
    tool = await sealing.ledger.tool("shop", "charge")
    words = notice(call, "asked", secret=tool.hidden)
    assert f'"card": "{SEALED}"' in words.body
    asked = message(call, approve="a", deny="d", secret=tool.hidden)
    assert not is_whole(call, words)
    shown = [one.what for one in recorded(call.facts, WHOLE)]
    tree = repr(value_of(call.arguments))
    for text in (words.body, repr(asked), str(shown), tree):
        assert "ayes:sealed" not in text
    assert SEALED in tree
    assert SEALED in str(shown)


async def test_a_search_finds_no_sealed_value(sealing: Shop):
    await sealing.open("", "", spec())
    version = (await sealing.ledger.tool("shop", "charge")).version
    assert await sealing.ledger.secrets([("shop", "charge", version)]) == {
        ("shop", "charge", version): ("/card",)
    }
