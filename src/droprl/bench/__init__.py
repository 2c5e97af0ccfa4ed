"""Suites: tasks × methods × ways to play. Each suite has one figure, and goes on where an interruption stopped it."""

from droprl.bench.results import Bench, load_bench
from droprl.bench.runner import InProcesses, OnRay, run_suite
from droprl.bench.suite import SUITES, Suite, load_suite

__all__ = ["SUITES", "Bench", "InProcesses", "OnRay", "Suite", "load_bench", "load_suite", "run_suite"]
