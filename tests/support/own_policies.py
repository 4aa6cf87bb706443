"""The project's own policies: in files, in pages, in programs and in tests."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from paths import ROOT

from ayes.schemas.errors import BadFile
from ayes.schemas.policy import read_policy

_FOLDERS = ("docs", "examples", "tests", "deploy", "interfaces", "ops", "schemas", "bench")
_BLOCK = re.compile(r"```toml\n(.*?)```", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.-])\d+(?![\w.])")


def own_policies() -> dict[str, str]:
    """By their text, where each policy with a rule stands first."""
    found: dict[str, str] = {}
    for folder in _FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".toml", ".md", ".py"}:
                for text in _texts(path):
                    if _is_policy(text):
                        found.setdefault(text, str(path.relative_to(ROOT)))
    return found


def _texts(path: Path) -> Iterator[str]:
    text = path.read_text()
    match path.suffix:
        case ".toml":
            yield text
        case ".md":
            yield from _BLOCK.findall(text)
        case _:
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def _is_policy(text: str) -> bool:
    if "[[rule]]" not in text:
        return False
    try:
        return bool(read_policy(text, "it").rules)
    except BadFile:
        return False


def variants(text: str) -> Iterator[str]:
    """The same policy with one of its numbers raised by one, those of conditions first."""
    numbers = [*_NUMBER.finditer(text)]
    lines = {one: text[text.rfind("\n", 0, one.start()) + 1 : one.start()] for one in numbers}
    for one in sorted(numbers, key=lambda one: not lines[one].startswith("when")):
        varied = f"{text[: one.start()]}{int(one[0]) + 1}{text[one.end() :]}"
        if _is_policy(varied):
            yield varied
