"""The cases of `tests/promises/contract/repeats.json`: a call that is asked for again, and by whom.

A `Way` is somebody who asks for calls: the kernel, an adapter, the gateway, a client. It asks for
the first call, which waits for people; the ledger brings that to the state of the case, as another
process would; then the way asks again.
"""

import json
import uuid
from abc import ABC, abstractmethod
from typing import Any, Final

import pytest
from msgspec import Struct, convert, field
from paths import TESTS
from shop import Shop, rule

from ayes.ledger.clients.reviewers import Reviewer
from ayes.ledger.clients.services import Ledger
from ayes.schemas import events as e
from ayes.schemas.slots import CallRef, ThreadRef
from ayes.schemas.tools import ToolSpec

_FILE: Final = json.loads(
    (TESTS / "promises" / "contract" / "repeats.json").read_text(encoding="utf-8")
)
ARGUMENTS: Final[dict[str, Any]] = _FILE["arguments"]
POLICY: Final = rule("people", "ask", 'voters = ["ana"]', tools="*")
ID: Final = "call_0"
#: What an earlier process recorded as the result of the first call.
PAID: Final = "it was paid"


class Again(Struct, forbid_unknown_fields=True):
    """What is different about the next ask."""

    turn: str = "same"
    tool: str = "refund"
    arguments: dict[str, Any] = field(default_factory=lambda: dict(ARGUMENTS))
    #: `anew`, with another description; or `stricter`, with a schema that takes the arguments no
    #: more.
    declared: str = ""
    requester: str = "rita"
    agent: str = ""
    labels: dict[str, str] = {}


class Case(Struct, forbid_unknown_fields=True):
    state: str
    again: Again
    call: str
    reads: str | None
    runs: int
    without_id: bool = False

    @property
    def id(self) -> str:
        return "" if self.without_id else ID


CASES: Final[dict[str, Case]] = convert(_FILE["cases"], dict[str, Case])


class Way(ABC):
    """Somebody who asks for calls of the thread."""

    thread: ThreadRef
    #: How often the tool ran.
    runs = 0

    def cannot(self, case: Case) -> str:
        """Why the case is not one here; empty if it is."""
        return ""

    def words(self, case: Case) -> str | None:
        """What the model reads here, or None if the call waits."""
        return case.reads

    @abstractmethod
    async def first(self, case: Case) -> None:
        """Ask for the first call, which waits."""

    @abstractmethod
    async def again(self, case: Case) -> str | None:
        """Ask again; what the model reads, or None if the call waits."""

    async def starts(self, ledger: Ledger, ref: CallRef) -> None:
        """Claim the approved call, in a process that dies with it."""
        await ledger.start(ref, claim_id=str(uuid.uuid4()))

    async def returns(self, ledger: Ledger, ref: CallRef) -> None:
        """Record the result of the started call."""
        await ledger.finish(ref, output=PAID)


async def calls(ledger: Ledger, thread: ThreadRef) -> list[CallRef]:
    facts = await ledger.read(thread)
    return list(dict.fromkeys(fact.slot.call_ref for fact in facts if fact.slot.call_ref))


async def play(case: Case, way: Way, ledger: Ledger, ana: Reviewer) -> None:
    """Play a case, and compare what comes of it."""
    if why := way.cannot(case):
        pytest.skip(why)
    await way.first(case)
    [ref] = await calls(ledger, way.thread)
    await _reach(case.state, ref, way, ledger, ana)
    read = await way.again(case)
    found = await calls(ledger, way.thread)
    assert found[0] == ref
    assert len(found) == (1 if case.call == "same" else 2), read
    if (words := way.words(case)) is None:
        assert read is None
    else:
        assert words in str(read)
    assert way.runs == case.runs


async def _reach(state: str, ref: CallRef, way: Way, ledger: Ledger, ana: Reviewer) -> None:
    if state == "waiting":
        return
    await Shop(ledger.log).until(ref.gated)
    if state == "denied":
        await ana.deny(ref, reason="Not now.")
    else:
        await ana.approve(ref)
    await ledger.decision(ref, timeout_s=60)
    if state in ("denied", "approved"):
        return
    await way.starts(ledger, ref)
    if state == "in_doubt":
        await ledger.doubt(ref)
    if state == "returned":
        await way.returns(ledger, ref)


def spec(tool: str, declared: str) -> ToolSpec:
    """The tool as it is declared at first, or anew."""
    types = {"stricter": "string"}
    schema = {"type": "object", "properties": {"amount": {"type": types.get(declared, "number")}}}
    description = "Pay money back." + (" Twice as well." if declared else "")
    return ToolSpec(name=tool, description=description, schema=json.dumps(schema))


def author(name: str, kind: str = "service") -> e.Author:
    return e.Author(kind=kind, name=name)
