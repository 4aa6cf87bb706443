"""The log of a made-up town with every kind of event of a call, and its archive."""

import random
from datetime import timedelta
from pathlib import Path

import msgspec
from stories import SETTLED, START, UNSETTLED, approval, life

from ayes.ledger.log import RawMessage
from ayes.ops.lake.writer import LakeWriter
from ayes.schemas import events as e
from ayes.schemas.codec import Fact, encode
from ayes.schemas.slots import ORGANISATION, CallRef, GrantRef, Slot, ThreadRef, policy_slot

_ARGUMENTS = (
    "{}", '{"order":"A-17"}', '{"order":"A-17","amount":12.50,"to":{"name":"Rita","city":"Köln"}}',
    '{"a/b":1,"~":[1,2],"":null,"say \\"it\\"":true}', '{"note":"' + "x" * 400 + '"}', "[1, 2]",
    "{no json", "",
)  # fmt: skip


_EDITS = (
    *_ARGUMENTS,
    '{"order": "A-18"}',
    '{"order":"A-17","amount":12.5,"to":{"name":"Rita","city":"Bonn"}}',
    '{"a/b":2,"~":[1],"":1}',
)


_RULES = ("money", "looks", "no rule", "")
_OLD = """
[[rule]]
name = "forgotten"
tools = ["*"]
then = "ask"
"""


_POLICY = """
[groups]
name = ["nobody", "else"]

[[rule]]
name = "money"
tools = ["*"]
then = "ask"

[[rule]]
name = "never \\"said\\""   # name = "in a comment"
tools = ["wire"]
then = "block"

[[rule]]
name = "tried"
tools = ["*"]
then = "block"
shadow = true
"""


_GAPS_S = (0, 0.000001, 0.25, 1, 2.5, 30, 400, 4000, 30_000)
_EXTRAS = (
    "asked only", "wished only", "by policy", "by grant", "over the limit", "again", "glass",
    "crossed",
)  # fmt: skip


type Told = list[tuple[Slot, e.AnyEvent]]


def happened(seed: int, calls: int) -> list[Fact]:
    """So many calls of a town, many of them at once; the same for the same seed."""
    chance = random.Random(seed)
    threads = [
        ThreadRef(workspace, f"t{number}") for workspace in ("acme", "shop") for number in range(3)
    ]
    wanted = [
        _told(
            chance,
            chance.choice(threads).wish(number, 0),
            chance.choice((*SETTLED, *UNSETTLED, *_EXTRAS)),
        )
        for number in range(1, calls + 1)
    ]
    wanted += [
        _granted(chance, f"g{number}") for number in range(chance.randint(0, 3) + calls // 20)
    ]
    wanted += [_talked(chance, ref) for ref in threads if chance.random() < 0.8]
    if chance.random() < 0.8:
        wanted.append([(policy_slot("acme", 1), e.PolicyApplied(text=_OLD, digest="d"))])
        wanted[-1].append((policy_slot("acme", 2), e.PolicyApplied(text=_POLICY, digest="d")))
        wanted.append([(policy_slot(ORGANISATION, 1), e.PolicyApplied(text=_POLICY, digest="d"))])
    chance.shuffle(wanted)
    facts: list[Fact] = []
    now, open_now = START, wanted[:8]
    rest = wanted[8:]
    while open_now := [one for one in open_now if one]:
        now += timedelta(seconds=chance.choice(_GAPS_S))
        facts.append(Fact(len(facts) + 1, now, *chance.choice(open_now).pop(0)))
        if rest and len(open_now) < 8:
            open_now.append(rest.pop())
    return facts


def _told(chance: random.Random, ref: CallRef, ending: str) -> Told:
    """The facts of one call, in order."""
    wish = e.Wish(
        tool=chance.choice(("refund", "look_up", "wire")),
        arguments=chance.choice(_ARGUMENTS),
        provider_id=chance.choice(("", "call_a", "call_b")),
    )
    known = {
        "asked only": "approved",
        "wished only": "approved",
        "glass": "returned",
        "crossed": "people_were_asked",
    }
    told = life(ref, wish, known.get(ending, ending if ending not in _EXTRAS else "returned"))
    rule, organisation = chance.choice(_RULES), chance.random() < 0.2
    told = [(slot, _changed(event, rule=rule, organisation=organisation)) for slot, event in told]
    told[0] = (told[0][0], _changed(told[0][1], agent=chance.choice(("", "desk", "bot"))))
    told[1] = (
        told[1][0],
        _changed(told[1][1], reason=chance.choice(("", "It moves money.", "ä" * 120))),
    )
    match ending:
        case "wished only":
            return told[:1]
        case "asked only":
            told = told[:2]
        case "edited":
            changed = approval(wish, chance.choice(_EDITS))
            told[2] = (told[2][0], _changed(changed, rule=rule, mode="requester_confirms"))
        case "glass":
            told[2] = (told[2][0], _changed(told[2][1], ground="broken_glass"))
            told.insert(
                2, (ref.announced, e.GlassBroken(reviewer="ana", reason="The house burns."))
            )
        case "by policy" | "by grant":
            told.pop(1)
            grants = {"ground": "policy", "voters": ()}
            if ending == "by grant":
                grants = {"ground": "grant", "grants": ("ana/g1",)}
            told[1] = (told[1][0], _changed(told[1][1], **grants))
        case "over the limit" | "again":
            denied = e.Denied(
                ground="limit" if ending != "again" else "repeated", rule=rule, policy_version=1
            )
            return [
                told[0],
                (ref.decided, denied),
                (ref.finished, e.ToolRefused(ending="denied", text="no")),
            ]
        case "crossed":
            # Two gates knew different policies.
            told[2] = (told[2][0], _changed(told[2][1], ground="policy", voters=()))
            told[1:3] = told[2:0:-1]
        case _:
            pass
    if any(slot.tail[-1] == "gated" for slot, _ in told) and ending != "crossed":
        voted = [
            (ref.vote(name), _vote(chance))
            for name in ("ana", "ben", "cleo")
            if chance.random() < 0.6
        ]
        # Most before the decision, some just behind it.
        at = next((n for n, (slot, _) in enumerate(told) if slot.tail[-1] == "decided"), len(told))
        for one in voted:
            told.insert(min(at + chance.choice((0, 0, 0, 1)), len(told)), one)
        if chance.random() < 0.2:
            told.insert(2, (ref.escalated(1), e.Escalated(voters=("cleo",))))
    return told


def _changed(event, **fields):
    there = {name: value for name, value in fields.items() if name in type(event).__struct_fields__}
    return msgspec.structs.replace(event, **there)


def _vote(chance: random.Random) -> e.Voted:
    verdict = chance.choice(("approve", "approve", "deny", "answer", "break_glass"))
    edited = "{}" if verdict == "approve" and chance.random() < 0.3 else None
    behalf = chance.choice(("", "", "olga"))
    return e.Voted(verdict=verdict, digest="d", arguments=edited, on_behalf_of=behalf)


def _granted(chance: random.Random, name: str) -> Told:
    ref = GrantRef(chance.choice(("acme", "shop")), chance.choice(("ana", "ben")), name)
    granted = e.Granted(
        tool="refund", expires_in_s=chance.choice((60, 1e6, 3e7)), uses=chance.choice((1, 3))
    )
    told: Told = [(ref.given, granted)]
    told += [
        (ref.used(number), e.GrantUsed(call="acme/t0/1-0"))
        for number in range(1, chance.randint(0, granted.uses) + 1)
    ]
    if chance.random() < 0.3:
        told.append((ref.revoked, e.GrantRevoked(reviewer="ana")))
    return told


def _talked(chance: random.Random, ref: ThreadRef) -> Told:
    told: Told = [(ref.opened, e.ThreadOpened(requester="rita"))]
    for turn in range(1, chance.randint(1, 5)):
        usage = e.Usage(input_tokens=chance.choice((0, 900)), output_tokens=turn)
        told.append((ref.said(f"m{turn}"), e.Said(role="user", text="Please.")))
        told.append((ref.asked(turn, 1), e.ModelAsked(model="test:model")))
        told.append((ref.replied(turn), e.ModelReplied(parts=(e.Text("Yes."),), usage=usage)))
    return told


def written(directory: Path, facts: list[Fact], batch: int = 500) -> Path:
    """The lake that the archivist writes from these facts."""
    raws = [
        RawMessage(one.seq, one.recorded_at, one.slot.subject, encode(one.event)) for one in facts
    ]
    with LakeWriter.open(directory, "a log") as archive:
        for start in range(0, len(raws), batch):
            archive.take(raws[start : start + batch])
        archive.publish()
        return archive.lake
