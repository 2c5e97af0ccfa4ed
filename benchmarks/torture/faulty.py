"""`drop` with one fault in it: `python faulty.py FAULT WORDS…`. The command itself is the real one.

A moment of writing is: before a file is flushed to the disk, before it gets its name, and after. `count=FILE` only
counts these moments. `stop=N` stops the process at the N-th moment, until a signal lets it go on. `kill=N` ends the
process at that moment by SIGKILL; a file that is not yet flushed is cut in half first, as a power cut might leave it.
`nan=N` makes every weight NaN from update N on. `small=BYTES` lets no file grow beyond this size.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from droprl.cli import main


class Moments:
    """Counts the moments of writing, and stops or kills the process at one of them."""

    def __init__(self, last: int | None, stops: bool = False) -> None:
        self.passed, self._last, self._stops = 0, last, stops
        self._fsync, self._replace = os.fsync, os.replace
        os.fsync, os.replace = self.fsync, self.replace  # type: ignore[assignment]

    def _comes(self) -> bool:
        self.passed += 1
        if self._stops and self.passed == self._last:
            os.kill(os.getpid(), signal.SIGSTOP)
            return False
        return self.passed == self._last

    def fsync(self, descriptor: int) -> None:
        if self._comes():
            if (size := os.fstat(descriptor).st_size) and not os.path.isdir(f"/proc/self/fd/{descriptor}"):
                os.ftruncate(descriptor, size // 2)
            die()
        self._fsync(descriptor)

    def replace(self, source: Any, target: Any) -> None:
        if self._comes():
            die()
        self._replace(source, target)
        if self._comes():
            die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def spoil_weights(first: int) -> None:
    """As an overflow on the device would: in training from update `first` on, in fine-tuning from the first update."""
    import jax

    from droprl.finetuning.online import OnlineTrainer
    from droprl.train.loop import Loop

    run, build = Loop.run, OnlineTrainer.__init__

    def spoiled(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf * float("nan"), tree)

    def spoiled_run(self: Loop, states: Any, step: int, count: int) -> Any:
        states, sums = run(self, states, step, count)
        return (spoiled(states) if step + count >= first else states), sums

    def spoiled_build(self: Any, *arguments: Any, **options: Any) -> None:
        build(self, *arguments, **options)
        updates = self._updates

        def spoiled_updates(*inputs: Any) -> Any:
            state, sums = updates(*inputs)
            return spoiled(state), sums

        self._updates = spoiled_updates

    Loop.run, OnlineTrainer.__init__ = spoiled_run, spoiled_build  # type: ignore[assignment,method-assign]


def run_with(fault: str, words: list[str]) -> None:
    kind, _, value = fault.partition("=")
    match kind:
        case "count":
            moments = Moments(None)
            main(words)
            Path(value).write_text(str(moments.passed))
            return
        case "kill":
            Moments(int(value))
        case "stop":
            Moments(int(value), stops=True)
        case "nan":
            spoil_weights(int(value))
        case "small":
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(value), resource.RLIM_INFINITY))
    main(words)


if __name__ == "__main__":
    run_with(sys.argv[1], sys.argv[2:])
