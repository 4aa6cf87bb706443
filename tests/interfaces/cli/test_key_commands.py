"""Keys and the trust file at the terminal: from a key to the call that it lets run.

The real program on a real broker.
"""

import json
import stat
from pathlib import Path

import program
from program import approvals, ask
from shop import rule

from ayes.interfaces.cli.command import Session
from ayes.ledger.seal import SignerKey
from ayes.schemas.slots import CallRef

POLICY = rule("money", "ask", 'voters = ["ana", "ben"]', "signed = true", tools="pay")


def data(*words: object, store: Path, **more: str) -> dict:
    ended = approvals(*words, "--json", store=store, **more)
    assert ended.code == 0, ended.err
    return json.loads(ended.out.splitlines()[-1])


def test_a_key_signs_what_its_owner_approves(tmp_path):
    """A root is made, the trust file says so, a key is made, read out and confirmed, and a vote is
    signed with it. A vote without a key is refused, and the doctor names what is lacking.
    """
    store, root = tmp_path / "store", tmp_path / "root.key"
    with program.shop(tmp_path, rule("money", "ask", tools="pay"), ("pay",)) as found:
        store = found
        unsigned = {one: data("trust", "show", store=store)[one] for one in ("log", "trust")}
        assert unsigned["trust"] is None
        log = unsigned["log"]
        sealer = data("seal", "init", "approvals.example.com", store=store)["key"]
        made = data("trust", "key", "board-1", root, store=store)
        assert stat.S_IMODE(root.stat().st_mode) == 0o600
        mine = data("key", "new", "--as", "ana", store=store)
        file = Path(mine["file"])
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert SignerKey.parse(file.read_text()).public.name == f"ana/{log}"
        again = approvals("key", "new", "--as", "ana", store=store)
        assert "is there, and is recorded" in again.err
        wrong = approvals("key", "confirm", "ana", "0" * 32, "--with", root, store=store)
        assert "ana has added no key with these 32 digits, of 1 in all" in wrong.err
        data("key", "confirm", "ana", *mine["fingerprint"].split(), "--with", root, store=store)
        (row,) = [json.loads(approvals("key", "list", "--json", store=store).out)]
        assert row["state"] == "not judged: no trust file is named"
    (store / "ayes-trust.toml").write_text(f'log = "{log}"\nroots = ["{made["key"]}"]\n')
    (store / "ayes.toml").write_text("[trust]\n")
    stranger = tmp_path / "trust-of-a-stranger.toml"
    since = "\n[signed_since]\nshop = 1\n"
    stranger.write_text((store / "ayes-trust.toml").read_text() + since)
    with program.shop(tmp_path, POLICY, ("pay",)):
        call = CallRef("shop", "t", "c")
        ask(store, call)
        refused = approvals("approve", call, "--yes", "--as", "ben", store=store)
        assert "only signed votes count on shop/t/c, and ben's key is not here" in refused.err
        reason = ("--reason", "as \u202eagreed")
        approved = approvals("approve", call, "--yes", "--as", "ana", *reason, store=store)
        assert approved.code == 0, approved.err
        shown = approvals("show", call, store=store).out
        assert f"approve, signed with the key {mine['key']}" in shown
        assert "signed votes only" in shown
        receipt = tmp_path / "c.receipt"
        data("prove", call, "--out", receipt, store=store)
        printed = tmp_path / "printed.receipt"
        printed.write_text(approvals("prove", call, store=store).out)
        (row,) = [json.loads(approvals("key", "list", "--json", store=store).out)]
        assert row["state"].startswith("counts since ")
        data("key", "revoke", "ana", mine["fingerprint"], "--as", "ben", store=store)
        (row,) = [json.loads(approvals("key", "list", "--json", store=store).out)]
        assert row["state"].startswith("revoked at ")
        doctor = approvals("doctor", store=store).out
        assert "ok    signatures: signed votes are wanted in shop" in doctor
        (store / "ayes.toml").write_text("")
        doctor = approvals("doctor", store=store).out
        assert "BAD   signatures: the policy of shop wants signed votes, and none counts" in doctor
    code, said = verified(receipt, "--key", sealer, "--trust", stranger)
    assert code == 0, said
    assert f"verified: {call} is approved" in said
    assert f"ana: approve, counts, signed with {mine['key']}\n" in said
    assert "what approved it follows from what these people have signed\n" in said
    assert verified(printed, "--key", sealer, "--trust", stranger) == (code, said)
    code, said = verified(receipt, "--key", sealer)
    assert code == 0
    assert f"ana: approve, signed with {mine['key']}, not judged" in said
    assert "no signature of people was judged" in said
    other = SignerKey(sealer.partition("+")[0]).public
    code, said = verified(receipt, "--key", other)
    assert (code, said.partition(":")[0]) == (1, "refused")
    changed = receipt.read_bytes().replace(rb"\"approve\"", rb"\"deny\"")
    assert changed != receipt.read_bytes()
    receipt.write_bytes(changed)
    code, said = verified(receipt, "--key", sealer)
    assert (code, said.partition(":")[0]) == (1, "refused")


def verified(receipt: Path, *words: object) -> tuple[int, str]:
    """What `ayes verify` says of a receipt, on a machine without a store."""
    ended = approvals("verify", receipt, *words, store=receipt.parent / "nothing")
    return ended.code, ended.out + ended.err


def test_whoever_starts_calls_refuses_a_trust_file_of_another_log(tmp_path):
    key = SignerKey("board-1").public
    call = CallRef("shop", "t", "c")
    with program.shop(tmp_path, rule("money", "ask", tools="pay"), ("pay",)) as store:
        ask(store, call)
        (store / "ayes-trust.toml").write_text(f'log = "{"0" * 32}"\nroots = ["{key}"]\n')
        (store / "ayes.toml").write_text("[trust]\n")
        refuses(store, "start", call)
        refuses(store, "finish", call, "--output", "x")
        (store / "ayes.toml").unlink()
        elsewhere = tmp_path / "elsewhere.toml"
        elsewhere.write_text(
            f'[trust]\nfile = "{store / "ayes-trust.toml"}"\n'
            '[mcp]\nworkspace = "shop"\nrequester = "ben"\n'
            '[[mcp.server]]\nname = "till"\ncommand = ["true"]\n'
            '[aap]\nworkspace = "shop"\n'
            f'[[aap.instance]]\nname = "bot"\nrequester = "ben"\ntoken = "{"t" * 32}"\n'
        )
        elsewhere.chmod(0o600)  # it has a token
        refuses(store, "mcp", "gateway", "--settings", elsewhere)
        refuses(store, "serve", "aap", "--settings", elsewhere)
    (store / "ayes.toml").write_text("[trust]\n")
    refused = approvals("up", "--workers", "gate", "--no-console", store=store)
    assert "the trust file is of the log 00000000000000000000000000000000" in refused.err


def test_the_trust_file_of_a_store_is_not_of_a_broker_elsewhere(tmp_path, monkeypatch):
    """`--url` alone names another broker than that of the default store."""
    read: list[Path | None] = []

    def trust_of(store: Path | None, _settings: None) -> None:
        read.append(store)

    monkeypatch.setattr("ayes.interfaces.cli.command.trust_of", trust_of)
    url = "nats://127.0.0.1:1"
    Session(url=url).connect("service")
    assert read == []
    Session(store=tmp_path, url=url).connect("service")
    Session().connect("service")
    assert read == [tmp_path, None]


def refuses(store: Path, *words: object) -> None:
    refused = approvals(*words, store=store)
    assert (refused.code, "the trust file is of the log 0000" in refused.err) == (2, True)


def test_the_sign_page_is_of_one_console_log_and_domain(tmp_path):
    """It is written whole, with what the trust file says, and needs no broker."""
    store, page = tmp_path / "store", tmp_path / "sign.html"
    store.mkdir()
    (store / "ayes.toml").write_text("[trust]\n")
    log, root = "4f6b8c1de2f04a7c9d3e5b6a7c8d9e0f", SignerKey("board").public
    trust = store / "ayes-trust.toml"
    trust.write_text(f'log = "{log}"\nroots = ["{root}"]\n')
    words = ("trust", "page", page, "--console", "https://ayes.example.com")
    refused = approvals(*words, store=store)
    assert "the page needs rp and origins of the trust file" in refused.err
    origins = 'rp = "example.com"\norigins = ["https://sign.example.com"]\n'
    trust.write_text(trust.read_text() + origins)
    for other in "https://ayes.example.com/path", "javascript://ayes.example.com":
        refused = approvals(*words[:-1], other, store=store)
        assert "is not where people open a console" in refused.err
    assert not page.exists()
    data(*words, store=store)
    text = page.read_text()
    for name, value in ("console", "https://ayes.example.com"), ("log", log), ("rp", "example.com"):
        assert f'<meta name="ayes-{name}" content="{value}">' in text
