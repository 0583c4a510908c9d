"""Progress bar for slow operations, on terminals only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Context manager that shows a progress bar on stderr and yields a function ``advance(amount)``; the bar is full at
    ``total`` and removed at the end. Without a terminal nothing is shown.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=total)
        yield lambda amount: bar.advance(task, amount)
