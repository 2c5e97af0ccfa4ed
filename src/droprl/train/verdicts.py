"""Warnings of a training: each with the number of its update, and taken back when it no longer holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from droprl.train.config import RunConfig


class Verdict(NamedTuple):
    text: str
    holds: bool  # otherwise an earlier warning is taken back


class Verdicts:
    """Which checks of which seed are unhealthy."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._standing: dict[tuple[int, str], int] = {}  # by seed and check: the update at which it was warned of
        self._unsaid: set[tuple[int, str]] = set()  # an earlier process said it, and this one did not yet

    def recall(self, log: Iterable[Mapping[str, Any]]) -> None:
        """What an earlier process warned of, by the entries at its checkpoints."""
        for entry in log:
            values = {name: value for name, value in entry.items() if isinstance(value, list)}
            for _ in self.at(entry["step"], values):
                pass
        self._unsaid = set(self._standing)

    def at(self, step: int, means: Mapping[str, Any]) -> Iterator[Verdict]:
        """What is new after this update. `means` holds for each metric a list over seeds."""
        if 2 * step < self._config.steps:  # early on, everything is unhealthy
            return
        for i, seed in enumerate(self._config.seeds):
            metrics = {name: float("nan") if value[i] is None else float(value[i]) for name, value in means.items()}
            for check in self._config.algorithm.checks(metrics):
                key, found = (seed, check.name), f"{check.meaning} ({check.name} {check.value:.3g})"
                began = self._standing.get(key, step)
                if check.healthy:
                    if self._standing.pop(key, None) is not None:
                        self._unsaid.discard(key)
                        yield Verdict(f"update {step:,}: seed {seed}, what update {began:,} warned of: {found}", False)
                elif key not in self._standing or key in self._unsaid:
                    since = "" if began == step else f"since update {began:,}, "
                    self._standing[key] = began
                    self._unsaid.discard(key)
                    yield Verdict(f"update {step:,}: seed {seed}, {since}{found}", True)
