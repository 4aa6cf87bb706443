"""What the gateway takes from the library `mcp` that is no part of its interface."""

import inspect

from mcp.client import streamable_http

from ayes.interfaces.mcp import upstream


def test_the_library_says_these_words():
    """An answer that is no message of the server leaves the call in doubt. The gateway knows one by
    how the library's error begins: if a version says it otherwise, this fails, and a call that may
    have run would be told to the model as failed.
    """
    source = inspect.getsource(streamable_http)
    missing = [words for words in upstream._MADE_UP if f'"{words}' not in source]
    assert missing == []
