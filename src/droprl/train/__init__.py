"""Training: one loop for every algorithm, and the run directory that it writes."""

from droprl.interrupts import Interrupted
from droprl.train.run import Run
from droprl.train.training import default_out, fit

__all__ = ["Interrupted", "Run", "default_out", "fit"]
