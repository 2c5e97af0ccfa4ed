"""Training: one loop for every algorithm, and the run directory that it writes."""

from droprl.train.run import Run
from droprl.train.training import Interrupted, default_out, fit

__all__ = ["Interrupted", "Run", "default_out", "fit"]
