"""Markdown as it reads, for a page that has its source beside it.

What an agent writes becomes a few kinds of blocks, and never HTML of its own; a template escapes
every text. Nothing is left out but the signs of the layout: HTML is text, the address of a link
stands behind its words and leads nowhere, and a picture is its description and its address. So
definitions of links, references to characters and cells of tables, which other readers hide or
replace, are text as well.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from ayes.projections.display.texts import Mark, MarkedRun, runs, runs_of

#: Of a longer text only the source is shown.
MAX_CHARACTERS: Final = 10_000


class Block(NamedTuple):
    #: `p`, `heading`, `pre`, `hr`, `ul`, `ol`, `li` or `blockquote`.
    element: str
    #: Of a paragraph, of a heading, and of code.
    runs: tuple[MarkedRun, ...] = ()
    blocks: tuple["Block", ...] = ()
    #: The language of code, or the number of an item.
    label: str = ""


def blocks_of(source: str) -> tuple[Block, ...]:
    """The blocks of a text; none of one that is too long, or of which a reader would leave out
    more than signs of its layout.
    """
    if len(source) > MAX_CHARACTERS:
        return ()
    found = tuple(map(_block, SyntaxTreeNode(_reader.parse(source)).children))
    left_out = Counter(filter(_is_said, source)) - Counter("".join(map(_text, found)))
    return () if left_out else found


def _is_said(one: str) -> bool:
    return not (one.isspace() or (one.isascii() and one.isprintable() and not one.isalnum()))


def _text(block: Block) -> str:
    said = "".join(piece.text for run in block.runs for piece in run.pieces)
    return f"{block.label}{said}{''.join(map(_text, block.blocks))}"


def _block(node: SyntaxTreeNode) -> Block:
    match node.type:
        case "fence" | "code_block":
            return Block("pre", runs(node.content, ""), label=node.info)
        case "heading" | "paragraph":
            words = (one for child in node.children for one in _words(child))
            return Block("p" if node.type == "paragraph" else "heading", tuple(runs_of(words)))
        case _:
            inner = tuple(map(_block, node.children))
            label = node.info if node.type == "list_item" else ""
            return Block(node.tag, (), inner, label)


def _words(node: SyntaxTreeNode, mark: Mark = "") -> Iterator[tuple[str, Mark]]:
    match node.type:
        case "softbreak" | "hardbreak":
            yield "\n", mark
        case "code_inline":
            yield node.content, "code"
        case "image" | "link":
            is_picture = node.type == "image"
            words = "".join(text for child in node.children for text, _ in _words(child))
            address = str(node.attrs["src" if is_picture else "href"])
            yield f"{'picture: ' if is_picture else ''}{words}", mark
            title = f' "{node.attrs["title"]}"' if "title" in node.attrs else ""
            if address != words or title:
                yield f" ({address}{title})", mark
        case "em" | "strong":
            for child in node.children:
                yield from _words(child, "em" if node.type == "em" else "strong")
        case "text" | "text_special":
            yield node.content, mark
        case _:
            for child in node.children:
                yield from _words(child, mark)


class _Reader(MarkdownIt):
    def normalizeLink(self, url: str) -> str:  # noqa: N802 - it is the library's name
        """Leave an address as it was written."""
        return url

    def validateLink(self, url: str) -> bool:  # noqa: N802
        """Accept every address, as none is followed."""
        return True


_reader: Final = _Reader("commonmark", {"html": False}).disable(["reference", "entity"])
