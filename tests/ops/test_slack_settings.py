"""The settings of the worker that asks in Slack, and what is wrong with them in one sentence."""

import pytest
from sections import section

from ayes.schemas.errors import BadFile

GOOD = {"app_token": "xapp-1-secret", "bot_token": "xoxb-2-secret"}


@pytest.fixture
def settings(tmp_path):
    def read(environment=None, mode=0o600, **changes):
        lines = [f'{name} = "{value}"' for name, value in (GOOD | changes).items() if value]
        return section("slack", tmp_path, "\n".join(["[slack]", *lines]), environment, mode)

    return read


def test_tokens_are_in_the_file_or_in_the_environment(settings):
    found = settings({"BOT": "xoxb-9"}, bot_token="env:BOT")
    assert (found.app_token, found.bot_token) == ("xapp-1-secret", "xoxb-9")
    assert found.api_url == "https://slack.com/api/"
    gov = settings(api_url="https://slack-gov.com/api")
    assert gov.api_url == "https://slack-gov.com/api/"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bot_token": "env:BOT"}, "the variable BOT is not set."),
        ({"bot_token": "env:APP"}, "'bot_token': it must begin with xoxb-."),
        ({"app_token": "xoxb-2-secret"}, "it must begin with xapp-"),
        ({"app_token": ""}, "app_token"),
        ({"api_url": "http://slack.com/api/"}, "it must begin with https://"),
        ({"colour": "red"}, "unknown key 'colour'"),
    ],
)
def test_a_mistake_is_told_without_a_token(settings, changes, said):
    with pytest.raises(BadFile) as problem:
        settings({"APP": "xapp-1-secret"}, **changes)
    assert said in str(problem.value)
    assert "secret" not in str(problem.value)


def test_others_may_not_read_it(settings):
    with pytest.raises(BadFile, match="others may read it"):
        settings(mode=0o640)


def test_the_worker_needs_settings_and_a_store(within, tmp_path):
    """Said before a broker is looked for."""
    ended = within("work", "slack", "--store", tmp_path)
    assert (ended.code, "needs the section [slack]" in ended.err) == (2, True)
    ended = within("work", "slack", "--url", "nats://127.0.0.1:1")
    assert (ended.code, "Name one with --store" in " ".join(ended.err.split())) == (2, True)
