"""What the service counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
KIND = "text/plain; version=0.0.4; charset=utf-8"


class Measures:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._answers = Counter(
            "droprl_requests", "Answers, by route and status.", ("route", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "droprl_request_seconds", "Time to answer, by route.", ("route",), buckets=SECONDS, registry=self._registry
        )
        self._rows = Histogram(
            "droprl_batch_rows",
            "Observations that one call of the policy answered.",
            buckets=[2.0**i for i in range(11)],
            registry=self._registry,
        )

    def answered(self, route: str, status: int, seconds: float) -> None:
        self._answers.labels(route, str(status)).inc()
        if not route.startswith("/live/"):  # a stream lasts as long as somebody watches
            self._seconds.labels(route).observe(seconds)

    def batch(self, rows: int) -> None:
        self._rows.observe(rows)

    def watch(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """A number that is computed when somebody reads it."""
        Gauge(f"droprl_{name}", meaning, registry=self._registry).set_function(value)

    def text(self) -> bytes:
        return generate_latest(self._registry)
