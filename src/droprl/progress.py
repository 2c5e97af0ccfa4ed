"""What a person sees during training: a bar with its speed, the time left and the numbers that matter."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.text import Text

from droprl.terminal import Screen, column

QUIET_INTERVAL = 15.0  # seconds between lines if there is no terminal


class TrainProgress:
    """A rich bar on a terminal, otherwise a line now and then. Nothing at all if `show` is false."""

    def __init__(
        self, label: str, first: int, total: int, show: bool, shown: Mapping[str, str], unit: str = "updates"
    ) -> None:
        """`shown` maps the values that people see to their names on the screen."""
        self.console = Screen(error=True, quiet=not show)
        self._label, self._first, self._total, self._unit, self._shown = label, first, total, unit, shown
        self._began = self._last_line = time.perf_counter()
        self._values: dict[str, float] = {}
        columns = (
            column("{task.description}", "bold"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            column("{task.fields[rate]}"),
            TimeRemainingColumn(compact=True),
            column("{task.fields[values]}", "dim"),
        )
        self._bar = Progress(*columns, console=self.console, disable=not (show and self.console.is_terminal))
        self._task = self._bar.add_task(label, total=total, completed=first, rate="compiling …", values="")

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
        rate = f"{(step - self._first) / max(now - self._began, 1e-9):,.0f} {self._unit}/s"
        shown = "  ".join(f"{self._shown[name]} {v:.3g}" for name, v in self._values.items() if name in self._shown)
        self._bar.update(self._task, completed=step, rate=rate, values=shown)
        done = step >= self._total and values is not None
        if not self.console.is_terminal and (now - self._last_line > QUIET_INTERVAL or done):
            self._last_line = now
            self.say(f"{self._label}: {step:,}/{self._total:,}, {rate}, {shown}")

    def warn(self, text: str) -> None:
        """A warning appears even if progress is not shown: DROP fails silently often enough."""
        Screen(error=True).print(Text.assemble(("warning:", "yellow"), f" {text}"), soft_wrap=True)

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)
