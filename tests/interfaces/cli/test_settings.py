"""`ayes.toml`: one file for all programs, of which each is given its own sections."""

from pathlib import Path

import pytest
from sections import section, settings_file

from ayes.interfaces.cli.settings import settings_of
from ayes.schemas.errors import BadFile

MAIL = '[notices.mail]\nurl = "env:MAIL_URL"\n'
SLACK = '[slack]\napp_token = "env:APP"\nbot_token = "env:BOT"\n'
TOKENS = {"APP": "xapp-1", "BOT": "xoxb-2"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[slak]\n", "line 1: unknown section 'slak'. The sections are: console, openid, notices,"),
        ("url = 1\n", "line 1: unknown section 'url'."),
        ("[console]\nurl = 1\n", "line 2, [console]: 'url' should be a valid string"),
        ("notices = 1\n", "line 1: 'notices' should be a table"),
        (f"{MAIL}retries = 1\n", "line 3, [notices.mail]: unknown key 'retries'. The keys are:"),
        ('[mcp]\nworkspace = "a"\n[[mcp.server]]\nname = "g"\ncomand = ["g"]\n',
         "line 5, [mcp], server 'g': unknown key 'comand'. The keys are: name, command,"),
        ('[sub_agents.ask]\nagent = "a"\nmodel = "m"\narguments = "{"\n',
         "line 4, [sub_agents.ask]: 'schema': it is no JSON"),
    ],
)  # fmt: skip
def test_each_mistake_is_a_sentence_with_its_place(tmp_path: Path, text: str, said: str):
    """Also in a section that this program does not use."""
    with pytest.raises(BadFile) as raised:
        section("slack", tmp_path, text, {})
    assert str(raised.value).startswith(f"{tmp_path / 'ayes.toml'}, {said}")


def test_a_program_looks_up_its_own_secrets_alone(tmp_path: Path):
    """Another one's are neither needed nor given to it, wherever they are written."""
    assert section("slack", tmp_path, MAIL + SLACK, TOKENS).bot_token == "xoxb-2"
    assert section("notices", tmp_path, SLACK, TOKENS) is None
    written = '[notices.mail]\nurl = "nothing that can be read"\n'
    assert section("slack", tmp_path, SLACK + written, TOKENS)
    with pytest.raises(BadFile, match="others may read it"):
        section("slack", tmp_path, SLACK + written, TOKENS, 0o644)


def test_a_secret_may_be_in_a_file(tmp_path: Path):
    """Its path begins beside the settings, and ends of lines are no part of it."""
    (tmp_path / "bot").write_text("xoxb-3\n")
    found = section("slack", tmp_path, SLACK.replace("env:BOT", "file:bot"), TOKENS, 0o644)
    assert found.bot_token == "xoxb-3"


def test_settings_are_those_of_the_store_unless_others_are_named(tmp_path: Path):
    """And a store may have none."""
    named, store = tmp_path / "named", tmp_path / "store"
    for folder in (named, store):
        folder.mkdir(0o700)
    assert settings_of(store, None, "console").console_url == ""
    settings_file(store, '[console]\nurl = "https://store.example"\n')
    other = settings_file(named, '[console]\nurl = "https://named.example"\n')
    assert settings_of(store, None, "console").console_url == "https://store.example"
    assert settings_of(store, other, "console").console_url == "https://named.example"
    assert settings_of(store, None, "openid").console_url == ""
