"""The words of code. Its lexers take long to load, so it is imported when there is code."""

from itertools import groupby
from typing import Any, Final, Literal

from pygments.lexer import Lexer
from pygments.lexers.data import JsonLexer
from pygments.lexers.python import PythonLexer
from pygments.lexers.shell import BashLexer
from pygments.lexers.sql import SqlLexer
from pygments.token import Comment, Keyword, Name, String

#: How a part of code stands out.
type CodeMark = Literal["", "keyword", "string", "comment"]


def words_of_code(text: str, kind: str) -> list[tuple[str, CodeMark]]:
    """The text in parts, each with how it stands out; joined they are the text."""
    found = [(word, _mark(token)) for _, token, word in _LEXERS[kind].get_tokens_unprocessed(text)]
    marked = [
        ("".join(word for word, _ in some), mark)
        for mark, some in groupby(found, lambda one: one[1])
    ]
    return marked if "".join(part for part, _ in marked) == text else [(text, "")]


def _mark(token: Any) -> CodeMark:
    return next((mark for kind, mark in _TOKENS.items() if token in kind), "")


_LEXERS: Final[dict[str, Lexer]] = {
    "shell": BashLexer(),
    "sql": SqlLexer(),
    "python": PythonLexer(),
    "json": JsonLexer(),
}
_TOKENS: Final[dict[Any, CodeMark]] = {
    Comment: "comment",
    String: "string",
    Keyword: "keyword",
    Name.Builtin: "keyword",
    Name.Tag: "keyword",  # a key of JSON
}
