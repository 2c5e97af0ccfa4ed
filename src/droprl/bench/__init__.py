"""Suites: tasks × methods × ways to play, run once, resumed after a crash, with one figure each."""

from droprl.bench.runner import Bench, run_suite
from droprl.bench.suite import SUITES, Suite, load_suite

__all__ = ["SUITES", "Bench", "Suite", "load_suite", "run_suite"]
