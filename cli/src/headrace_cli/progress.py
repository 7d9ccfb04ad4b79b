"""A progress bar on stderr."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from headrace_cli.console import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    ProgressFactory: TypeAlias = Callable[[int | None, str], AbstractContextManager[Any]]


@contextlib.contextmanager
def progress_bar(total: int) -> Iterator[tuple[Callable[[], None], Callable[[str], None]]]:
    """Show a bar; give a function to call per step, and one that writes a line above the bar."""
    console = Console(stderr=True)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )

    def print_error(text: str) -> None:
        console.print(harmless(text), markup=False, highlight=False, emoji=False, soft_wrap=True)

    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as progress:
        task = progress.add_task("", total=total, rate="")

        def advance() -> None:
            progress.advance(task)
            speed = progress.tasks[0].speed
            if speed:
                progress.update(task, rate=f"{speed:.1f}/s")

        yield advance, print_error


@contextlib.contextmanager
def setup_bars(console: Console) -> Iterator[ProgressFactory]:
    """Return the ``progress`` that shows a bar for each piece of long work in ``init``, several at a time."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bars:

        @contextlib.contextmanager
        def bar(total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
            task = bars.add_task(unit, total=total)
            try:
                yield lambda done: bars.advance(task, done)
            finally:
                bars.refresh()  # shows the bar of short work once, too
                bars.remove_task(task)

        yield bar
