"""The code blocks of the documentation, and the command line to check them against."""

import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import typer.main

from ayes.interfaces.cli.main import app

#: Typer contains its own click, so a group is recognised by its commands.
CLI: Any = typer.main.get_command(app)


class Block(NamedTuple):
    language: str
    text: str
    line: int
    #: The text before it on the page.
    before: str

    def __str__(self) -> str:
        return f"{self.language} block at line {self.line}"


def blocks(page: Path, *languages: str) -> list[Block]:
    text = page.read_text()
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [
        Block(one[1], one[2], text.count("\n", 0, one.start()) + 2, text[: one.start()])
        for one in found
        if one[1] in languages or not languages
    ]


def parse(words: list[str]) -> str:
    """Check a command's arguments against its options without running it; returns its name."""
    group, name = CLI, []
    while hasattr(group, "commands"):
        name.append(words.pop(0))
        assert name[-1] in group.commands, f"there is no command {' '.join(name)!r}"
        group = group.commands[name[-1]]
    with group.make_context(name[-1], words):
        return " ".join(name)


def piped(line: str) -> list[list[str]]:
    """The words of each command in a pipeline."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|")
    lexer.whitespace_split = True
    pieces: list[list[str]] = [[]]
    for word in lexer:
        if word == "|":
            pieces.append([])
        else:
            pieces[-1].append(word)
    return pieces
