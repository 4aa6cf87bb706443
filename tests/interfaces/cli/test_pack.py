"""`ayes pack` and `ayes up --pack-after`, on real brokers with their workers."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from program import Ended, approvals, up
from stories import CALL, REF, WISH, life
from until import until

from ayes.ledger import packs
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import RawMessage
from ayes.ledger.nats import streams
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.subscriptions import LEDGER
from ayes.ops.actions import packing
from ayes.schemas import events as e
from ayes.schemas.slots import ThreadRef

OTHER = ThreadRef("elsewhere", "t2")
SAID = e.Said(role="user", text="?")
REFUSED = (
    "error: the facts of this log stay in its stream (it is at level 1, and not at 2), and "
    "nats-server changes that in a restore only: `ayes backup`, then `ayes restore` into a new "
    "ledger, which `ayes setup --packed` or `ayes up --pack-after` has made.\n"
)


async def tell(store: Path) -> None:
    """A settled call and two messages, in two threads."""
    async with Ledger.connect(store, role="admin") as ledger:
        for slot, event in (
            (REF.said("m1"), SAID),
            *life(CALL, WISH, "denied"),
            (OTHER.said("m1"), SAID),
        ):
            await ledger.append(slot, event)


async def whole(store: Path) -> list[RawMessage]:
    """The whole log, but for packs."""
    async with (
        JetStream.connect(store, role="admin") as log,
        aclosing(log.raw(1, until_end=True)) as pages,
    ):
        each = [one async for page in pages for one in page]
        return [one for one in each if not packs.number_of(one.subject)]


async def in_stream(store: Path) -> set[str]:
    async with JetStream.connect(store, role="admin") as log:
        return {one.subject async for page in log.in_stream() for one in page}


async def spoil(store: Path) -> None:
    """A pack that cannot be read."""
    async with Ledger.connect(store, role="admin") as ledger:
        await ledger.append(REF.packed(1), e.Packed(names="?", facts="", size=1))


async def all_is_acknowledged(store: Path, but: Sequence[str] = ()) -> None:
    async with JetStream.connect(store, role="admin") as log:

        async def is_so() -> bool:
            found = await streams.described(log.api, [LEDGER], lambda one: one.stream == LEDGER)
            each = [one for name, one in found.consumers.items() if one and name not in but]
            return not any(one["num_pending"] or one["num_ack_pending"] for one in each)

        await until(is_so)


def test_it_says_what_it_packed_and_removed(
    tmp_path: Path, within: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
):
    """By thread and in sum; all is read as before, and new appends find what left."""
    with up(tmp_path / "store", "--pack-after", "30d") as ready:
        store = Path(ready["store"])
        asyncio.run(tell(store))
        before = asyncio.run(whole(store))
        done = within("pack", "--settled-for", "30d", store=store)
        assert done == (0, "", "Of 0 threads, 0 facts were packed and 0 removed.\n")
        asyncio.run(all_is_acknowledged(store))
        done = within("pack", "--settled-for", "0s", store=store)
        size = len(before) - 1
        assert done.out == f"{REF}  packed {size}, removed 0\n{OTHER}  packed 1, removed 0\n"
        assert done.err == (
            f"Of 2 threads, {size + 1} facts were packed and 0 removed. What was packed is removed "
            "by a run in two minutes or later.\n"
        )
        monkeypatch.setattr(packing, "REMOVED_AFTER", timedelta(0))
        done = within("pack", "--settled-for", "1d", "--json", store=store)
        assert done.one == {"threads": 0, "packed": 0, "removed": 0}
        done = within("pack", "--settled-for", "0s", "--json", store=store)
        assert done.code == 0
        assert done.lines == [
            {"thread": str(REF), "packed": 0, "removed": size, "problem": ""},
            {"thread": str(OTHER), "packed": 0, "removed": 1, "problem": ""},
            {"threads": 2, "packed": 0, "removed": size + 1},
        ]
        assert asyncio.run(in_stream(store)) == {REF.packed(1).subject, OTHER.packed(1).subject}
        assert asyncio.run(whole(store)) == before


def test_it_names_who_holds_back(tmp_path: Path, within: Callable[..., Ended]):
    """Since when, and what to do. Nothing is packed before either."""
    with up(tmp_path / "store", "--workers", "gate,queue", "--pack-after", "30d") as ready:
        store = Path(ready["store"])
        asyncio.run(tell(store))
        asyncio.run(all_is_acknowledged(store, but=("model",)))
        since = asyncio.run(whole(store))[0].recorded_at
        assert within("pack", "--settled-for", "0s", store=store) == (
            0,
            "",
            (
                "Of 0 threads, 0 facts were packed and 0 removed.\n"
                f"What came after fact 0, since {since:%Y-%m-%d %H:%M} UTC, stays in the "
                "stream: the consumer model has not acknowledged it. Start `ayes work model`.\n"
            ),
        )
        held, total = within("pack", "--settled-for", "0s", "--json", store=store).lines
        assert datetime.fromisoformat(held.pop("since")) == since
        remedy = "Start `ayes work model`."
        assert held == {"consumer": "model", "acknowledged": 0, "remedy": remedy}
        assert total == {"threads": 0, "packed": 0, "removed": 0}


def test_it_names_what_cannot_be_packed(tmp_path: Path, within: Callable[..., Ended]):
    """An error at the end; all else is packed."""
    with up(tmp_path / "store", "--pack-after", "30d") as ready:
        store = Path(ready["store"])
        asyncio.run(tell(store))
        asyncio.run(all_is_acknowledged(store))
    with up(store, "--workers", "none"):
        asyncio.run(spoil(store))
        done = within("pack", "--settled-for", "0s", "--json", store=store)
        assert done.code == 1
        wrong, *rest = done.lines
        assert f"{REF.packed(1).subject} cannot be read" in wrong.pop("problem")
        assert wrong == {"thread": str(REF), "packed": 0, "removed": 0}
        assert rest == [
            {"thread": str(OTHER), "packed": 1, "removed": 0, "problem": ""},
            {"threads": 2, "packed": 1, "removed": 0},
        ]
        done = within("pack", "--settled-for", "0s", store=store)
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith(f"error: {REF} was not packed: the log is damaged: ")


def test_a_log_whose_facts_stay_is_refused(tmp_path: Path, within: Callable[..., Ended]):
    """By each command in one sentence, and it stays as it is."""
    with up(tmp_path / "store") as ready:
        store = Path(ready["store"])
        for command in (("pack", "--settled-for", "30d"), ("setup", "--packed")):
            assert within(*command, store=store) == (2, "", REFUSED)
    ended = approvals("up", "--pack-after", "30d", store=store)
    assert ended == (2, "", REFUSED)
    with up(store):
        assert within("setup", "--json", store=store).code == 0


def test_a_log_of_before_is_restored_as_one_that_can_be_packed(
    tmp_path: Path, within: Callable[..., Ended]
):
    """From then on `ayes up --pack-after` packs what is settled. All is read as before."""
    old, new, file = tmp_path / "old", tmp_path / "new", tmp_path / "backup"
    with up(old):
        asyncio.run(tell(old))
        before = asyncio.run(whole(old))
        assert within("backup", file, store=old).code == 0
    with up(new, "--workers", "none", "--pack-after", "30d"):
        restored = within("restore", file, store=new)
        assert restored.code == 0, restored
        assert asyncio.run(whole(new)) == before
    with up(new, "--pack-after", "30d"):
        asyncio.run(all_is_acknowledged(new))
    with up(new, "--pack-after", "0s"):

        async def are_packed() -> None:
            packed = {REF.packed(1).subject, OTHER.packed(1).subject}

            async def is_so() -> bool:
                return packed <= await in_stream(new)

            await until(is_so)

        asyncio.run(are_packed())
        assert asyncio.run(whole(new)) == before


@pytest.mark.parametrize("text", ["x", "", "-1d", "30w", "9999999d"])
def test_a_wrong_duration_is_named(within: Callable[..., Ended], tmp_path: Path, text: str):
    for command, option in (("pack", "--settled-for"), ("up", "--pack-after")):
        ended = within(command, f"{option}={text}", store=tmp_path / "store")
        assert ended.code == 2
        assert ended.err.startswith(f"error: {option} '{text}' is "), ended
