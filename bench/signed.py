"""What it costs that votes are signed, and that the log is sealed: approval cycles where each start
is checked by the keys of people, beside the same without; and cycles with a sealer beside them.

Two brokers, each with gate and executor in one process of their own; one of them has a trust file.
"""

import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.credentials import Store
from ayes.ledger.seal import SignerKey
from ayes.ledger.signing import key_digest, key_id, signed
from ayes.ledger.trust import NAME
from ayes.ops.broker.setup import apply_policy
from ayes.ops.sealing.files import SealFiles, make_key
from ayes.schemas import events as e
from ayes.schemas.slots import key_slot
from bench.append import AT_ONCE, broker
from bench.cycle import POLICY, REVIEWER, WORKSPACE, Clients, at_work
from bench.logs import Log
from bench.results import SYNC, Better, Result, compared, in_turns

WORKLOAD: Final = "signed"
#: Cycles of a round; a fifth of them one at a time.
_CYCLES: Final = 1_000


async def measure(log: Log, rounds: int, scratch: Path) -> list[Result]:
    """Cycles a second, and milliseconds from vote to start, signed and sealed."""
    cycles = min(_CYCLES, log.facts)
    async with AsyncExitStack() as stack:
        connect = stack.enter_async_context
        stores = {name: scratch / name for name in ("unsigned", "signed")}
        for name, store in stores.items():
            server = await connect(broker(store, SYNC))
            await server.ensure_account(f"reviewer-{REVIEWER}")
            if name == "signed":
                key = await _with_trust(store)
            await connect(at_work(store))
        plain = await connect(Clients.at(stores["unsigned"]))
        clients = await connect(Clients.at(stores["signed"]))
        clients.reviewer.signer = key
        for one in plain, clients:
            await one.cycles(20, 1)

        async def rate(of: Clients) -> float:
            begun = time.perf_counter()
            await of.cycles(cycles, AT_ONCE)
            return cycles / (time.perf_counter() - begun)

        async def start_ms(of: Clients) -> float:
            return 1000 * statistics.median(await of.cycles(max(1, cycles // 5), 1))

        identity = await plain.service.log.identity()
        sealing = make_key(Store(stores["unsigned"]), f"bench.example/{identity}").public
        files = SealFiles(Store(stores["unsigned"]))

        def is_sealed(seq: int) -> bool:
            done = files.checkpoint(sealing)
            return done is not None and done.size >= seq

        async def sealed() -> float:
            last = await plain.service.log.last_seq()
            async with at_work(stores["unsigned"], kinds=("sealer",)):
                # It first seals what the rounds without it have recorded, which is not measured.
                while not is_sealed(last):  # noqa: ASYNC110 - another process seals
                    await asyncio.sleep(0.1)
                return await rate(plain)

        def line(
            what: str, unit: str, found: tuple[list[float], list[float]], beside: str,
            better: Better, target: float,
        ) -> Result:  # fmt: skip
            return compared(
                WORKLOAD, what, unit, *found, beside=beside, better=better, facts=cycles * 6,
                target=target, nats_server=plain.service.log.server_version,
            )  # fmt: skip

        return [
            line(
                "vote to tool started, one at a time, p50", "ms",
                await in_turns(rounds, lambda: start_ms(clients), lambda: start_ms(plain)),
                "not signed", "lower", 1.6,
            ),
            line(
                f"signed approval cycles, {AT_ONCE} at once", "cycles/s",
                await in_turns(rounds, lambda: rate(clients), lambda: rate(plain)),
                "not signed", "higher", 0.6,
            ),
            line(
                f"approval cycles that are sealed, {AT_ONCE} at once", "cycles/s",
                await in_turns(rounds, sealed, lambda: rate(plain)),
                "not sealed", "higher", 0.97,
            ),
        ]  # fmt: skip


async def _with_trust(store: Path) -> SignerKey:
    """A trust file beside the settings, and the reviewer's key, which its root has confirmed."""
    role = f"reviewer-{REVIEWER}"
    async with Ledger.connect(store, role="operator") as operator:
        await apply_policy(operator, WORKSPACE, POLICY, "policy.toml")
    async with (
        Ledger.connect(store, role=role) as reviewer,
        Ledger.connect(store, role="organisation") as organisation,
    ):
        log, root = await reviewer.log.identity(), SignerKey("root")
        key = SignerKey(f"{REVIEWER}/{log}")
        added = e.KeyAdded(key=str(key.public))
        await reviewer.append(key_slot(REVIEWER, key_id(key.public), "added"), added)
        digest = key_digest(log, REVIEWER, key.public)
        said = e.KeyConfirmed(signatures=(signed(root, digest),))
        await organisation.append(key_slot(REVIEWER, key_id(key.public), "confirmed"), said)
    (store / NAME).write_text(
        f'log = "{log}"\nroots = ["{root.public}"]\n\n[signed_since]\n{WORKSPACE} = 1\n'
    )
    (store / "ayes.toml").write_text("[trust]\n")
    return key
