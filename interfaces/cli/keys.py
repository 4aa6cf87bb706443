"""Commands for the keys with which people sign their votes."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Final

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import AsOption, SettingsOption, WhyOption, argument, option
from ayes.interfaces.cli.settings import trust_of
from ayes.ledger.clients.services import Ledger
from ayes.ledger.keys import added_keys, key_name, keys_of
from ayes.ledger.passkeys import Passkey
from ayes.ledger.seal import SignerKey
from ayes.ledger.signing import PublicKey, fingerprint, key_digest, key_id, signed
from ayes.ops.key_files import named_key, new_file, own_key, own_key_file
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput
from ayes.schemas.ids import token
from ayes.schemas.slots import KEYS, REMOVALS, key_slot

app: Final = commands()

PersonArgument = Annotated[str, argument("NAME", "Whose key it is.")]
WordsArgument = Annotated[
    list[str], argument("DIGITS...", "The 32 digits of the key, as its owner reads them.")
]


@command(app, examples="ayes key new --as ana")
async def new(name: AsOption, session: Session) -> None:
    """Make the key with which you sign votes in this log. It counts once it is confirmed."""
    file = own_key_file(session.store, token("reviewer", name))
    async with session.as_reviewer(name) as ledger:
        log = await _identity(ledger)
        key = ledger.signer or SignerKey(key_name(name, log))
        if ledger.signer is None:
            new_file(file, key)
        elif key.public.name != key_name(name, log):
            raise BadInput(f"{file} is a key of {key.public.name}. Move it away first.")
        slot = key_slot(name, key_id(key.public), "added")
        if await ledger.try_append(slot, e.KeyAdded(key=str(key.public))) is not None:
            raise BadInput(
                f"{file} is there, and is recorded. For another one move it away, and keep it: it "
                "confirms the new one."
            )
    digits = fingerprint(key.public)
    session.print(
        {"person": name, "key": key_id(key.public), "fingerprint": digits, "file": str(file)},
        f"{file} is your key. Nobody else may read it.",
        f"Read these digits to those who confirm keys, in person or by telephone: {digits}",
        f"They type: ayes key confirm {name} {digits}",
    )


@command(app, "list")
async def show_keys(settings: SettingsOption = None, *, session: Session) -> None:
    """List people's keys, and which of them count."""
    trust = trust_of(session.store, settings)
    async with session.connect("observer") as ledger:
        facts = await ledger.read(KEYS, REMOVALS)
        now = await ledger.log.clock()
    if trust is None:
        added = added_keys(facts)
        rows = [_row(who, public, "not judged: no trust file is named") for who, public in added]
    else:
        keys = keys_of(facts, trust).each.values()
        rows = [_row(one.person, one.public, one.standing(now)) for one in keys]
    session.print_rows(rows, if_none="Nobody has a key. `ayes key new --as NAME` makes one.")


def _row(person: str, public: PublicKey, state: str) -> tuple[dict[str, str], str]:
    digits, rp = fingerprint(public), public.rp if isinstance(public, Passkey) else ""
    row = {"person": person, "key": key_id(public), "fingerprint": digits, "state": state}
    shown = f"{state}, a passkey of {rp}" if rp else state
    return row | {"rp": rp}, f"{person}  {digits}  {shown}"


@command(
    app,
    examples="""
    ayes key confirm ana d537 c72a 0b1e 99f0 4c3d 5e6f 7081 92a3 --with board-1.key
    ayes key confirm ana d537 c72a 0b1e 99f0 4c3d 5e6f 7081 92a3 --as ben
    """,
)
async def confirm(
    person: PersonArgument,
    words: WordsArgument,
    files: Annotated[
        list[Path] | None,
        option("--with", "FILE", "A key of the trust file, or several; by default your own."),
    ] = None,
    name: Annotated[
        str, option("--as", "NAME", "The reviewer: you; else the organisation.", envvar="AYES_AS")
    ] = "",
    *,
    session: Session,
) -> None:
    """Confirm that a key is a person's, as you have heard it from them."""
    async with _somebody(session, name) as ledger:
        public = await _known(ledger, person, words)
        signers = [named_key(file, SignerKey) for file in files or ()]
        if not signers and (own := own_key(session.store, name) if name else None) is not None:
            signers.append(own)
        if not signers:
            raise BadInput("a confirmation is signed. Name a key with --with, or make your own.")
        digest = key_digest(await _identity(ledger), person, public)
        said = e.KeyConfirmed(signatures=tuple(signed(one, digest) for one in signers))
        await ledger.append_exclusive(key_slot(person, key_id(public), "confirmed", name), said)
    by = [one.public.name for one in signers]
    session.print(
        {"person": person, "key": key_id(public), "by": by},
        f"The key of {person} is confirmed by {', '.join(by)}. `ayes key list` says if it counts.",
    )


@command(app, examples="ayes key revoke ana d537 c72a 0b1e 99f0 4c3d 5e6f 7081 92a3 --as ben")
async def revoke(
    person: PersonArgument,
    words: WordsArgument,
    name: Annotated[
        str, option("--as", "NAME", "The reviewer: you; else the organisation.", envvar="AYES_AS")
    ] = "",
    reason: WhyOption = "",
    *,
    session: Session,
) -> None:
    """Revoke a key: no vote with it counts on a call that is not decided yet. Anybody may."""
    async with _somebody(session, name) as ledger:
        public = await _known(ledger, person, words)
        slot = key_slot(person, key_id(public), "revoked", name)
        await ledger.append_exclusive(slot, e.KeyRevoked(reason=reason))
    session.print({"person": person, "key": key_id(public)}, f"The key of {person} is revoked.")


def _somebody(session: Session, name: str) -> AbstractAsyncContextManager[Ledger]:
    return session.as_reviewer(name) if name else session.connect("organisation")


async def _identity(ledger: Ledger) -> str:
    if not (log := await ledger.log.identity()):
        raise BadInput("the log has no fact yet, and it is known by its first one.")
    return log


async def _known(ledger: Ledger, person: str, words: list[str]) -> PublicKey:
    """The key of a person with these digits."""
    digits = "".join(words).replace(" ", "").lower()
    theirs = [key for whose, key in added_keys(await ledger.read(KEYS)) if whose == person]
    for key in theirs:
        if fingerprint(key).replace(" ", "") == digits:
            return key
    raise BadInput(
        f"{person} has added no key with these 32 digits, of {len(theirs)} in all. Have them read "
        "again, and take none from elsewhere. Nothing was recorded."
    )
