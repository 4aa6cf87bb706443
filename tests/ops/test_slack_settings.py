"""The settings of the worker that asks in Slack, and what is wrong with them in one sentence."""

import pytest

from ayes.ops.slack_settings import SlackSettings
from ayes.schemas.errors import BadFile
from ayes.schemas.settings import read_settings

GOOD = {"app_token": "xapp-1-secret", "bot_token": "xoxb-2-secret"}


@pytest.fixture
def settings(tmp_path):
    def write(text="", **changes):
        file = tmp_path / "slack.toml"
        lines = [f'{name} = "{value}"' for name, value in (GOOD | changes).items() if value]
        file.write_text("\n".join([*lines, text]))
        file.chmod(0o600)
        return file

    return write


def test_tokens_are_in_the_file_or_in_the_environment(settings):
    found = read_settings(SlackSettings, settings(bot_token="env:BOT"), {"BOT": "xoxb-9"})
    assert (found.app_token, found.bot_token) == ("xapp-1-secret", "xoxb-9")
    assert found.api_url == "https://slack.com/api/"
    gov = read_settings(SlackSettings, settings(api_url="https://slack-gov.com/api"))
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
        read_settings(SlackSettings, settings(**changes), {"APP": "xapp-1-secret"})
    assert said in str(problem.value)
    assert "secret" not in str(problem.value)


def test_others_may_not_read_it(settings):
    file = settings()
    file.chmod(0o640)
    with pytest.raises(BadFile, match="others may read it"):
        read_settings(SlackSettings, file)


def test_the_worker_needs_settings_and_a_store(within, tmp_path):
    """Said before a broker is looked for."""
    ended = within("work", "slack", "--store", tmp_path)
    assert (ended.code, "has no settings" in ended.err) == (2, True)
    ended = within("work", "slack", "--url", "nats://127.0.0.1:1")
    assert (ended.code, "Name one with --store" in " ".join(ended.err.split())) == (2, True)
