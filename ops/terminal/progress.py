"""How far something long has come, for whoever sits at the terminal."""

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

from ayes.ops.terminal import output


def bar(total: int) -> Progress:
    """A bar with what is done, the time it took, the rate and the time left; nothing where nobody
    sees it move.
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
        # Where nobody sees it move it would leave an empty line.
        disable=not total or not console.is_terminal,
    )


class _Rate(ProgressColumn):
    """So many a second."""

    def render(self, task: Task) -> Text:
        rate = task.finished_speed or task.speed
        return Text("" if rate is None else f"{rate:,.0f}/s", style="progress.data.speed")
