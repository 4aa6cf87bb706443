"""Searching decided calls: the same in the log and in the lake, in pages, in either order."""

import asyncio
from functools import partial
from types import SimpleNamespace

import pytest
import pytest_asyncio
from brokers import running
from long import sampled
from stories import life

from ayes.interfaces.api import search as searching
from ayes.interfaces.api import windows
from ayes.interfaces.api.decided import page
from ayes.interfaces.api.scope import scoped
from ayes.ledger.clients.services import Ledger
from ayes.ops.actions.secrets import secrets_in
from ayes.ops.lake.sync import identity_in
from ayes.ops.lake.writer import LakeWriter
from ayes.projections.call_query import ALL, CallQuery
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import ThreadRef

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALLS = 48
ENDINGS = ("returned", "denied", "expired", "withdrawn", "failed", "answered", "running", "edited")


def story(number):
    """The facts of one of many calls, which differ in everything that can be searched for."""
    ref = ThreadRef("shop" if number % 3 else "bank", f"t{number % 5}").call(f"c{number}")
    wish = e.Wish(tool=("refund", "cancel", "re[und")[number % 3], arguments='{"a":1}')
    facts = life(ref, wish, ENDINGS[number % len(ENDINGS)])
    return [(slot, _varied(event, number)) for slot, event in facts]


def _varied(event, number):
    match event:
        case e.Approved() | e.Denied() | e.Answered():
            return replaced(event, voters=("ana", "ben")[: number % 3], rule=f"rule {number % 2}")
        case e.ToolRequested():
            return replaced(event, requester=("rita", "cai")[number % 2])
        case _:
            return event


def replaced(event, **fields):
    return type(event)(**{**{f: getattr(event, f) for f in event.__struct_fields__}, **fields})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def past(tmp_path_factory):
    """A log of decided and open calls, and two lakes of it: one of all, and one that ends early."""
    folder = tmp_path_factory.mktemp("past")
    async with (
        running(folder / "store") as server,
        Ledger.connect(server.store.path, role="admin") as ledger,
    ):

        async def tell(number):
            """Each tenth is still open."""
            for slot, event in story(number)[: 2 if number % 10 == 7 else None]:
                await ledger.append(slot, event)

        await asyncio.gather(*map(tell, range(CALLS)))
        log = await identity_in(ledger)
        raws = [raw async for batch in ledger.log.raw(1, until_end=True) for raw in batch]
        for name, until in (("all", len(raws)), ("half", len(raws) // 2)):
            with LakeWriter.open(folder / name, log) as lake:
                lake.take(raws[:until])
                lake.publish()
        yield SimpleNamespace(ledger=ledger, folder=folder)


def _visit(reading, lake):
    return SimpleNamespace(reading=reading, lake=lake, secrets=partial(secrets_in, reading))


@pytest.fixture(params=["none", "half", "all"])
def backend(past, request, monkeypatch):
    # Small, so that there are many of them.
    monkeypatch.setattr(windows, "_WIDTH", 16)
    monkeypatch.setattr(windows, "_MANY", 20)
    monkeypatch.setattr(windows, "_FEW", 4)
    monkeypatch.setattr(searching, "_ROWS", 15)
    return _visit(past.ledger, past.folder / request.param / "lake")


async def pages(backend, chosen, order="newest", limit=7):
    """All that is found, page by page."""
    found, after = [], ""
    while after is not None:
        one = await page(backend, chosen, order, after, limit)
        assert len(one.calls) <= limit
        found += one.calls
        after = one.next
    return found


async def known(ledger):
    """What `page` should find, from the facts of each call."""
    decisions = await ledger.read("ledger.*.*.call.*.decided")
    return await asyncio.gather(*(ledger.call(fact.slot.call_ref) for fact in decisions))


find = CallQuery.parse
SEARCHES = {
    "all": (ALL, lambda _: True),
    "workspace": (find("workspace:bank"), lambda call: call.ref.workspace == "bank"),
    "thread": (
        find("thread:shop/t1"),
        lambda call: str(call.ref.thread_ref) == "shop/t1",
    ),
    "tool": (find("tool:Cancel"), lambda call: call.wish.tool == "cancel"),
    "tools": (find("tool:re*"), lambda call: call.wish.tool.startswith("re")),
    "odd tool": (find("tool:re[und"), lambda call: call.wish.tool == "re[und"),
    "rule": (
        find('rule:"rule 1"'),
        lambda call: getattr(call.decided.event, "rule", "") == "rule 1",
    ),
    "verdict": (
        find("verdict:denied"),
        lambda call: isinstance(call.decided.event, e.Denied),
    ),
    "status": (find("status:running"), lambda call: call.status == "running"),
    "by": (
        find("by:ben"),
        lambda call: "ben" in getattr(call.decided.event, "voters", ()),
    ),
    "requester": (find("requester:cai"), lambda call: call.wish.requester == "cai"),
    "nothing": (find("tool:refund requester:nobody"), lambda _: False),
}


@pytest.mark.parametrize(
    "scope", sampled([("bank",), ("shop", "bank", "till")], ("shop", "bank", "till"))
)
async def test_a_visitor_finds_what_was_decided_in_their_workspaces(
    past, backend, scope, monkeypatch
):
    """Others' decisions are not counted, take no place on a page, and end no search early. Those of
    several workspaces stand in the order of the log.
    """
    monkeypatch.setattr("ayes.ledger.nats.jetstream._PAGE", 5)
    seen = _visit(scoped(past.ledger, scope), backend.lake)
    every = await known(past.ledger)
    own = [str(one.ref) for one in every if one.ref.workspace in scope]
    assert own
    assert (len(own) == len(every)) == (len(scope) > 1)
    for order, expected in ("oldest", own), ("newest", own[::-1]):
        assert [one.call for one in await pages(seen, ALL, order)] == expected
    if "shop" not in scope:
        assert await pages(seen, find("thread:shop/t1")) == []


@pytest.mark.parametrize("name", sampled(SEARCHES, "all", "tool", "by", "nothing"))
async def test_what_is_found(past, backend, name):
    """Each decided call that fits, once and in order, from the log, the lake, or both (I11)."""
    chosen, fits = SEARCHES[name]
    expected = [str(call.ref) for call in await known(past.ledger) if fits(call)]
    newest = [one.call for one in await pages(backend, chosen)]
    oldest = [one.call for one in await pages(backend, chosen, "oldest")]
    assert oldest == expected
    assert newest == expected[::-1]
    assert expected or name == "nothing"


async def test_a_time_is_a_search(past, backend):
    calls = await known(past.ledger)
    since, until = (calls[place].decided.recorded_at for place in (10, 30))
    found = await pages(
        backend, find(f"since:{since.isoformat()} until:{until.isoformat()}"), "oldest"
    )
    assert [one.call for one in found] == [
        str(call.ref) for call in calls if since <= call.decided.recorded_at < until
    ]
    assert await pages(backend, find("since:2999-01-01")) == []


async def test_a_page_shows_a_call_as_it_is_now(past, backend):
    """Also if it has gone on since the lake was written (B83)."""
    thread = ThreadRef("shop", f"open-{backend.lake.parent.name}")
    ref = thread.call("c1")
    facts = life(ref, e.Wish(tool="refund", arguments="{}"), "returned")
    before, after = facts[:3], facts[3:]
    for slot, event in before:
        await past.ledger.append(slot, event)
    [found] = (await page(backend, find(f"thread:{thread}"))).calls
    assert found.verdict == "approved"
    for slot, event in after:
        await past.ledger.append(slot, event)
    [found] = (await page(backend, find(f"thread:{thread}"))).calls
    assert (found.status, found.by, found.rule) == ("returned", ("ana",), "money")


async def test_a_search_that_takes_long_goes_on_later(past, backend, monkeypatch):
    """It returns what it has, and where to go on; in the end, nothing is missing."""
    monkeypatch.setattr(searching, "_PATIENCE_S", -1.0)
    chosen, fits = SEARCHES["tool"]
    first = await page(backend, chosen)
    assert first.next is not None
    expected = [str(call.ref) for call in await known(past.ledger) if fits(call)]
    assert [one.call for one in await pages(backend, chosen)] == expected[::-1]


async def test_a_lake_of_another_log_is_not_searched(past, tmp_path):
    with LakeWriter.open(tmp_path / "other", "1") as lake:
        lake.publish()
    backend = _visit(past.ledger, tmp_path / "other" / "lake")
    assert len(await pages(backend, ALL)) >= CALLS // 2


@pytest.mark.parametrize("after", ["x", "-1", "1" * 30])
async def test_a_cursor_that_is_none_is_refused(backend, after):
    with pytest.raises(BadInput, match="is not a cursor"):
        await page(backend, ALL, after=after)


@pytest.mark.parametrize("text", ["is:mine", "due<1h", "age>1d"])
async def test_what_decided_calls_do_not_have_is_refused(backend, text):
    """In words, rather than ignored."""
    with pytest.raises(BadInput, match=f"{text} does not select decided calls. Leave it out"):
        await page(backend, find(text))
