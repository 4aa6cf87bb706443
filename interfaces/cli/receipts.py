"""Receipts at the terminal: the one that is made, and what one shows."""

import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import CallArgument, SettingsOption, option
from ayes.interfaces.cli.settings import trust_of
from ayes.interfaces.cli.terminal.output import print_json, print_line, print_text
from ayes.ledger.descriptions import outcome_words
from ayes.ledger.nats.credentials import Store
from ayes.ledger.receipts import Receipt
from ayes.ledger.seal import Checkpoint, VerifierKey, WitnessPolicy
from ayes.ledger.trust import Trust
from ayes.ops.audit.backup import new_file
from ayes.ops.sealing.files import SealFiles, read_key
from ayes.ops.sealing.receipts import ProvedCall, ShownVote, judged, make
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import CallRef

app: Final = commands()

_BY_KEYS: Final = "judged by the keys that the trust file has for them"


@command(app, examples="ayes prove shop/order-17/refund-1 --out refund-1.receipt")
async def prove(
    call: CallArgument,
    out: Annotated[
        Path | None, option("--out", "FILE", "A new file; by default the receipt is printed.")
    ] = None,
    settings: SettingsOption = None,
    *,
    session: Session,
) -> None:
    """Make a receipt of a call: its facts, and the proof that they are in the sealed log. Others
    can verify it with `ayes verify`, and read everything in it.
    """
    ref, store = CallRef.parse(call), Store(session.store)
    files, key = SealFiles(store), read_key(store)
    async with session.connect("observer") as ledger:
        await ledger.trust_in(trust_of(session.store, settings))
        made = await make(ledger, ref, files, key)
    if out is None and sys.stdout.isatty():
        print_text(made.text().decode())
        return
    if out is None:  # a receipt is refused if one byte of it is another
        sys.stdout.buffer.write(made.text())
        sys.stdout.buffer.flush()
        return
    with new_file(out) as written:
        written.write(made.text())
    session.print(
        {"file": str(out), "facts": len(made.facts), "log": key.public.name},
        f"{out} has the {len(made.facts)} facts on which {ref} rests. To verify it: ayes verify "
        f"{out} --key {key.public}",
    )


async def verify_receipt(
    file: Path, log: VerifierKey, asked: WitnessPolicy, trust: Trust | None, *, json: bool
) -> int:
    """Print what a receipt shows. Returns the exit code: 1 if it does not show what it says."""
    try:
        shown = Receipt.parse(_read(file))
        found = await judged(shown, log, trust)
    except BadInput as problem:
        return _refused(file, log, str(problem), json=json)
    signed = asked.signed(shown.checkpoint)
    if asked.witnesses and not signed:
        why = "no witness of those given has signed its checkpoint"
        return _refused(file, log, why, json=json)
    size = Checkpoint.parse(shown.checkpoint).size
    if json:
        print_json(_data(file, log, found, size, signed, trust))
        return 1 if found.unproved else 0
    call = found.call
    said = f"{call.ref} {outcome_words(call.outcome)}"
    print_line(f"unproved: {said}, and {found.unproved}" if found.unproved else f"verified: {said}")
    print_line(f"its {len(shown.facts)} facts are in the log {log.name}, sealed to fact {size:,}")
    for vote in found.votes:
        print_line(f"  {_vote(vote, trust)}")
    for name, at in signed.items():
        print_line(f"the witness {name} signed that at {at:%Y-%m-%d %H:%M:%S} UTC")
    print_line(_conclusion(found, trust))
    print_line("it does not show that nothing else was recorded, such as the end of a key")
    return 1 if found.unproved else 0


def _refused(file: Path, log: VerifierKey, why: str, *, json: bool) -> int:
    if json:
        print_json({"receipt": str(file), "log": log.name, "problem": why})
    else:
        print_line(f"refused: {why}")
    return 1


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as problem:
        raise BadInput(f"{file} cannot be read: {problem.strerror}.") from None


def _conclusion(found: ProvedCall, trust: Trust | None) -> str:
    """What follows for the decision."""
    decided = found.call.decided
    if found.unproved:
        return "its approval does not follow from these facts"
    if decided is None:
        return "it is not decided, so there is nothing to judge"
    if not isinstance(decided.event, e.Approved):
        return "the decision was not judged: it shows what was recorded, and not who said it"
    if not found.is_judged or trust is None:
        return "no signature of people was judged: it shows what was recorded, and not who said it"
    match decided.event.ground, bool(trust.policies):
        case "policy", False:
            return "what approved it follows from the policies, which need no signature"
        case "policy", True:
            return f"what approved it follows from the policies, {_BY_KEYS}"
        case "grant", has_keys:
            whose = "those who gave its grants"
        case _, has_keys:
            whose = "these people"
    also = f", and the policies, {_BY_KEYS}" if has_keys else ""
    return f"what approved it follows from what {whose} have signed{also}"


def _vote(vote: ShownVote, trust: Trust | None) -> str:
    how = f"signed with {vote.key}" if vote.key else "not signed"
    if vote.why_void:
        counts = f"does not count: {vote.why_void}"
    elif trust is None:
        counts = f"{how}, not judged" if vote.key else how
    else:
        counts = f"counts, {how}{', not judged' if vote.key and not vote.is_checked else ''}"
    return f"{vote.person}: {vote.verdict}, {counts}"


def _data(
    file: Path,
    log: VerifierKey,
    found: ProvedCall,
    size: int,
    signed: dict[str, datetime],
    trust: Trust | None,
) -> dict[str, object]:
    call = found.call
    return {
        "receipt": str(file),
        "log": log.name,
        "sealed": size,
        "witnesses": signed,
        "call": str(call.ref),
        "status": call.status.value,
        "tool": call.wish.tool,
        "arguments": call.wish.arguments,
        "votes": [_vote(one, trust) for one in found.votes],
        "signed": found.wants_signed,
        "judged": found.is_judged,
        "problem": found.unproved or None,
    }
