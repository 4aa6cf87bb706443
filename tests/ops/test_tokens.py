"""API tokens and links in the file of a store."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from ayes.ledger.nats.credentials import Store
from ayes.ops.tokens import LINK_LASTS, PREFIX, AccessFile
from ayes.ops.visitors import Role
from ayes.schemas.errors import BadFile, BadId, BadInput

DAY = timedelta(days=1)


class Hands:
    """A clock that a test moves."""

    now = datetime(2026, 11, 21, 8, tzinfo=UTC)

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Hands()


@pytest.fixture
def access(tmp_path, clock):
    return AccessFile(Store(tmp_path), clock)


def test_a_token_is_a_visitor_until_it_expires(access, clock):
    secret, made = access.add_token("desk", Role.SERVICE, DAY)
    assert secret.startswith(PREFIX)
    visitor = access.visitor_of(secret)
    assert (visitor.name, visitor.roles, visitor.kind) == ("desk", {Role.SERVICE}, "token")
    assert made.expires_at == clock.now + DAY
    clock.now += DAY
    assert access.visitor_of(secret) is None


def test_a_token_of_some_workspaces_is_a_visitor_in_these(access):
    """One of an older version, without the field, is for all; a name that is none is refused."""
    secret, _ = access.add_token("desk", Role.SERVICE, DAY, ["shop", "bank"])
    assert access.visitor_of(secret).workspaces == ("shop", "bank")
    for wrong in ([""], ["*"], ["_organisation"], ["shop,bank"]):
        with pytest.raises(BadId, match="workspace"):
            access.add_token("desk", Role.SERVICE, DAY, wrong)
    file = access.store.path / "console.json"
    file.write_text(re.sub(r',\s*"workspaces":\s*\[\s*"shop",\s*"bank"\s*\]', "", file.read_text()))
    assert access.visitor_of(secret).workspaces == ()


def test_the_file_has_no_secrets_and_is_private(access):
    """Whoever reads a copy of it can neither use a token nor a link."""
    secret, _ = access.add_token("desk", Role.SERVICE, DAY)
    code = access.new_link("ana")
    file = access.store.path / "console.json"
    assert secret not in file.read_text()
    assert secret.removeprefix(PREFIX) not in file.read_text()
    assert code not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_revoked_token_is_refused_at_once(access, clock):
    """Also by a program that has read the file before."""
    secret, made = access.add_token("desk", Role.SERVICE, DAY)
    other, _ = access.add_token("ana", Role.REVIEWER, DAY)
    elsewhere = AccessFile(access.store, clock)
    assert elsewhere.visitor_of(secret)
    assert access.revoke(made.id) == made
    assert elsewhere.visitor_of(secret) is None
    assert elsewhere.visitor_of(other)
    with pytest.raises(BadInput, match=r"there is no token .* `ayes token list`"):
        access.revoke(made.id)


def test_expired_tokens_are_forgotten_when_one_is_added(access, clock):
    access.add_token("desk", Role.SERVICE, DAY)
    clock.now += DAY
    assert len(access.read().tokens) == 1
    access.add_token("till", Role.SERVICE, DAY)
    assert [one.name for one in access.read().tokens] == ["till"]


def test_a_link_signs_in_once(access):
    """Looking at it does not use it up."""
    code = access.new_link("ana")
    assert (access.holder_of(code), access.holder_of(code)) == ("ana", "ana")
    assert (access.use_link(code), access.use_link(code)) == ("ana", "")
    assert access.holder_of(code) == ""


def test_a_link_ends_after_ten_minutes(access, clock):
    code = access.new_link("ana")
    clock.now += LINK_LASTS
    assert (access.holder_of(code), access.use_link(code)) == ("", "")


def test_a_link_leaves_the_others_and_the_tokens(access):
    secret, _ = access.add_token("desk", Role.SERVICE, DAY)
    first, second = access.new_link("ana"), access.new_link("ben")
    assert access.use_link(first) == "ana"
    assert access.holder_of(second) == "ben"
    assert access.visitor_of(secret)


@pytest.mark.parametrize("secret", ["", "ayes_", "x", "\udcff"])
def test_nobody_has_a_secret_that_was_made_up(access, secret):
    access.add_token("desk", Role.SERVICE, DAY)
    access.new_link("ana")
    assert access.visitor_of(secret) is None
    assert access.use_link(secret) == ""


def test_a_name_must_fit_into_a_subject(access):
    with pytest.raises(BadId, match=r"name 'ana\.x' cannot be used"):
        access.add_token("ana.x", Role.REVIEWER, DAY)


def test_a_broken_file_admits_nobody(access):
    secret, _ = access.add_token("desk", Role.SERVICE, DAY)
    (access.store.path / "console.json").write_text('{"tokens": 5}')
    with pytest.raises(BadFile, match=r"console\.json: not a file of API tokens"):
        access.visitor_of(secret)
