"""A progress bar for long operations."""

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from ayes.interfaces.cli.terminal import output


def bar(total: int) -> Progress:
    """A bar with the count, the time spent, the rate and the time left; none outside a
    terminal.
    """
    console = output.console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        _Rate(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        # Outside a terminal it would leave an empty line.
        disable=not total or not console.is_terminal,
    )


class _Rate(ProgressColumn):
    """N a second."""

    def render(self, task: Task) -> Text:
        rate = task.finished_speed or task.speed
        return Text("" if rate is None else f"{rate:,.0f}/s", style="progress.data.speed")
