"""The trust file: one sentence for each mistake, and nothing that it does not say."""

import pytest

from ayes.ledger.seal import SignerKey
from ayes.ledger.trust import NOBODY, read_trust
from ayes.schemas.errors import BadFile

LOG = "4f6b8c1de2f04a7c9d3e5b6a7c8d9e0f"
ONE, TWO = (str(SignerKey(f"board-{at}", bytes([at] * 32)).public) for at in (1, 2))
GOOD = f'log = "{LOG}"\nroots = ["{ONE}", "{TWO}"]\n'


def _rp(rp: str, origin: str) -> str:
    return f'{GOOD}rp = "{rp}"\norigins = ["{origin}"]'


@pytest.mark.parametrize(
    ("rp", "origin"),
    [
        ("localhost", "http://localhost:8420"),
        ("ayes.localhost", "http://sign.ayes.localhost:8421"),
        ("example.com", "https://ayes.example.com"),
        ("example.com", "https://example.com:8443"),
    ],
)
def test_passkeys_sign_on_pages_of_their_domain_or_below(tmp_path, rp, origin):
    file = tmp_path / "ayes-trust.toml"
    file.write_text(_rp(rp, origin))
    assert read_trust(file).origins == (origin,)


def test_a_file_says_who_is_trusted(tmp_path):
    file = tmp_path / "ayes-trust.toml"
    file.write_text(f"{GOOD}roots_needed = 2\n[lost]\nafter = '2h'\n[signed_since]\nshop = 7\n")
    trust = read_trust(file)
    ((roots, needed), (confirmers, _)) = trust.quorums
    assert ([str(one) for one in roots.values()], needed, confirmers) == ([ONE, TWO], 2, {})
    assert trust.lost is not None
    assert (trust.lost.people, trust.lost.after_s) == (2, 7200)
    # An open call waits for signed votes whenever it was asked about; a decided one stays as it is.
    found = {seq: trust.wants_signed("shop", seq) for seq in (None, 6, 7, 8)}
    assert found == {None: True, 6: False, 7: True, 8: True}
    assert not trust.wants_signed("desk")
    assert not NOBODY.wants_signed("shop")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GOOD.replace(LOG, "shop"), "line 1: 'log': 'shop' is not the identity of a log."),
        ("roots = []", "'log' is missing."),
        (f'log = "{LOG}"\nroots = []', "line 2: 'roots' is empty."),
        (GOOD.replace(TWO, "me"), "line 2: 'roots', item 2: 'me' is not a key."),
        (GOOD.replace("+AY", "+AZ"), "is not a key."),
        (GOOD.replace(TWO, ONE), "line 2: roots has a key twice."),
        (f"{GOOD}roots_needed = 3", "line 3: roots_needed is 3, and roots has 2 of them."),
        (f"{GOOD}roots_needed = 0", "'roots_needed' should be greater than or equal to 1."),
        (f"{GOOD}rots = 1", "unknown key 'rots'. The keys are: log, roots,"),
        (f"{GOOD}[lost]\npeople = 1", "'people' should be greater than or equal to 2."),
        (f"{GOOD}[lost]\nafter = '1s'", "'after': '1s' is not a time from 60s to 30d."),
        (f'{GOOD}policies = ["{ONE}"]', "and it names none."),
        (f'{GOOD}sealer = "{ONE}"', "line 3: sealer is the key of another log than 4f6b8c1d"),
        (f'{GOOD}sealer = "me"', "'sealer': 'me' is not a key."),
        (f"{GOOD}[signed_since]\n'a.b' = 1", "'a.b' is not the name of a workspace."),
        (f"{GOOD}[signed_since]\nshop = true", "'shop' should be a valid integer."),
        (_rp("127.0.0.1", "http://127.0.0.1"), "browsers make no passkey for an address such as"),
        (_rp("[::1]", "http://[::1]"), "browsers make no passkey for an address such as [::1]"),
        (_rp("A.example", "https://a.example"), "'A.example' is not a domain name such as"),
        (f'{GOOD}rp = "a.example"', "write both, or none."),
        (f'{GOOD}origins = ["https://a.example"]', "write both, or none."),
        (_rp("a.example", "https://b.example"), "is neither a.example nor below it"),
        (_rp("a.example", "https://ba.example"), "is neither a.example nor below it"),
        (_rp("a.example", "http://a.example"), "http://a.example is without TLS"),
        (_rp("a.example", "https://a.example/"), "'https://a.example/' is not an origin"),
        (_rp("a.example", "https://a.example:443"), "is not an origin"),
        (_rp("a.example", "https://A.example"), "is not an origin"),
        (_rp("a.example", "https://u@a.example"), "is not an origin"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path, text, says):
    file = tmp_path / "ayes-trust.toml"
    file.write_text(text)
    with pytest.raises(BadFile) as problem:
        read_trust(file)
    assert says in str(problem.value)
