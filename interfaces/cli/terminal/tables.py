"""Tables for people: a cell is one line, and no word is broken."""

import sys
from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from ayes.interfaces.cli.terminal import output
from ayes.schemas.visible import line, visible, warning

#: Characters of a cell at a terminal, where the rest is cut off; elsewhere the widest padding.
_CELL: Final = 60


def print_table(
    names: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[bool]
) -> str:
    """Print rows of text below the names of their columns, on stdout.

    At a terminal long cells are cut, and columns that do not fit are left out. Elsewhere every
    cell is whole.

    Args:
        numbers: for each column, whether it is aligned to the right.

    Returns:
        A sentence on the columns that were left out; empty where all are shown.
    """
    console = output.console()
    if not console.is_terminal:
        _print_whole(names, rows, numbers)
        return ""
    fitting = _fitting(names, rows, console.width)
    table = Table(box=None, pad_edge=False)
    for name, number in list(zip(names, numbers, strict=True))[:fitting]:
        table.add_column(
            Text(visible(name)),
            justify="right" if number else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in rows:
        table.add_row(*(Text(_short(cell)) for cell in row[:fitting]))
    console.print(table)
    return "" if fitting == len(names) else f"{fitting} of {len(names)} columns fit."


def _fitting(names: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> int:
    """How many columns fit the terminal; one at least."""
    taken = 0
    for count, column in enumerate(zip(names, *rows, strict=True)):
        taken += max(cell_len(_short(cell)) for cell in column) + (2 if count else 0)
        if taken > width and count:
            return count
    return len(names)


def _print_whole(
    names: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[bool]
) -> None:
    """Print every cell whole, aligned with the others unless one is very long."""
    lines = [[line(cell) for cell in row] for row in (names, *rows)]
    widths = [min(max(map(cell_len, column)), _CELL) for column in zip(*lines, strict=True)]
    for row in lines:
        padded = []
        for cell, width, number in zip(row, widths, numbers, strict=True):
            padding = " " * (width - cell_len(cell))
            padded.append(padding + cell if number else cell + padding)
        sys.stdout.write("  ".join(padded).rstrip() + "\n")
    sys.stdout.flush()


def _short(cell: str) -> str:
    shown = visible(" ".join(cell.split()))
    return (shown if len(shown) <= _CELL else shown[: _CELL - 1] + "…") + warning(cell)
