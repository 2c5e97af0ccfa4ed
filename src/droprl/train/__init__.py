"""Training: one loop for every algorithm, and the run directory it leaves."""

from droprl.train.fit import Interrupted, default_out, fit
from droprl.train.run import Run

__all__ = ["Interrupted", "Run", "default_out", "fit"]
