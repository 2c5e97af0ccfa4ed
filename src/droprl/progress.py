"""What a person sees while something takes long: how far it is, how many are done, how long it will still take.

On a terminal this is a bar, in a notebook a bar of the page, and anywhere else a line now and then.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from html import escape
from types import TracebackType
from typing import Any, Self

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.text import Text

from droprl.errors import clean
from droprl.terminal import RenderableType, Screen, column

QUIET_INTERVAL = 15.0  # seconds between lines if there is no terminal
NOTEBOOK_INTERVAL = 0.3  # seconds between two drawings in a notebook
WIDEST, NARROWEST, BESIDES = 24, 4, 72  # columns of a bar, and what stands beside it


class TrainProgress:
    """A bar on a terminal or in a notebook, otherwise a line now and then. Nothing at all if `show` is false."""

    def __init__(
        self, label: str, first: int, total: int, show: bool, shown: Mapping[str, str], unit: str = "updates"
    ) -> None:
        """`shown` maps the values that people see to their names on the screen."""
        self.console = Screen(error=True, quiet=not show)
        self._label, self._first, self._total, self._unit, self._shown = label, first, total, unit, shown
        self._began = self._last_line = time.perf_counter()
        self._values: dict[str, float] = {}
        visible = show and not self.console.quiet
        self._page = NotebookBar(label) if visible and in_notebook() else None
        self._bar = train_bar(self.console, disable=not (visible and self.console.is_terminal))
        self._task = self._bar.add_task(label, total=total, completed=first, rate="compiling …", unit=unit, values="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, step: int, values: dict[str, float] | None = None) -> None:
        """`values` are means over seeds."""
        self._values |= values or {}
        now = time.perf_counter()
        speed = (step - self._first) / max(now - self._began, 1e-9)
        rate = f"{speed:,.0f}/s" if speed >= 10 or not speed else f"{speed:.2g}/s"
        shown = "  ".join(f"{self._shown[name]} {v:.3g}" for name, v in self._values.items() if name in self._shown)
        self._bar.update(self._task, completed=step, rate=rate, values=shown)
        done = step >= self._total and values is not None
        left = f"{_clock((self._total - step) / speed)} left" if speed and step < self._total else ""
        facts = ", ".join(filter(None, (f"{step:,}/{self._total:,} {self._unit}", rate, left, shown)))
        if self._page is not None:
            self._page.draw(step, self._total, facts, final=done)
        elif not self.console.is_terminal and (now - self._last_line > QUIET_INTERVAL or done):
            self._last_line = now
            self.say(f"{self._label}: {facts}")

    def warn(self, text: str) -> None:
        """A warning appears even if progress is not shown: DROP fails silently often enough."""
        Screen(error=True, urgent=True).print(Text.assemble(("warning:", "yellow"), f" {text}"), soft_wrap=True)

    def retract(self, text: str) -> None:
        """What was warned of no longer holds. Whoever saw the warning must see this too."""
        Screen(error=True, urgent=True).print(Text.assemble(("retracted:", "green"), f" {text}"), soft_wrap=True)

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)


class _Count(ProgressColumn):
    """How many of how many."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.completed:,.0f}/{task.total or 0:,.0f} {task.fields.get('unit', '')}".rstrip())


class _Left(TimeRemainingColumn):
    def render(self, task: Task) -> Text:
        return super().render(task).append(" left")


class _WithValues(Progress):
    """A bar with the latest values below it, so that a narrow screen cuts off neither."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        for task in self.tasks:
            if values := task.fields.get("values"):
                yield Text(f"  {clean(values)}", style="dim", no_wrap=True, overflow="ellipsis")


def train_bar(console: Screen, disable: bool = False) -> Progress:
    """Everything but the bar itself keeps its width."""
    width = max(NARROWEST, min(WIDEST, console.width - BESIDES))
    columns = (
        column("{task.description}", "bold"),
        BarColumn(bar_width=width),
        _Count(),
        column("{task.fields[rate]}"),
        _Left(compact=True),
    )
    return _WithValues(*columns, console=console, disable=disable)


@contextmanager
def bar(title: str, unit: str = "", show: bool = True) -> Iterator[Callable[[int, int], None]]:
    """A bar that goes away at its end. The answer is a function of how many are done, of how many."""
    console = Screen(error=True, quiet=not show)
    visible = show and not console.quiet
    page = NotebookBar(title) if visible and in_notebook() else None
    columns = (column("{task.description}", "bold"), BarColumn(bar_width=WIDEST), _Count(), _Left(compact=True))
    hidden = not (visible and console.is_terminal)
    with Progress(*columns, console=console, disable=hidden, transient=True) as drawn:
        task = drawn.add_task(title, total=None, unit=unit)

        def update(done: int, total: int) -> None:
            drawn.update(task, completed=done, total=total)
            if page is not None:
                page.draw(done, total, f"{done:,}/{total:,} {unit}".rstrip(), final=done >= total)

        yield update


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this code: it shows pages, and has no terminal."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class NotebookBar:
    """A bar in the output of a notebook's cell, drawn again in its place."""

    def __init__(self, title: str) -> None:
        self._title, self._last = title, -NOTEBOOK_INTERVAL
        self._handle: Any = None

    def draw(self, done: int, total: int, facts: str, final: bool = False) -> None:
        now = time.perf_counter()
        if now - self._last < NOTEBOOK_INTERVAL and not final:
            return
        self._last = now
        import IPython.display

        library: Any = IPython.display
        text = f"{escape(clean(self._title))} {escape(clean(facts))}"
        page = library.HTML(f'<progress value="{done}" max="{max(total, 1)}"></progress> {text}')
        if self._handle is None:
            self._handle = library.display(page, display_id=True)
        else:
            self._handle.update(page)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
