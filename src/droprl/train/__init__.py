"""Training: one loop for every algorithm, and the run directory that it writes."""

from droprl.interrupts import Interrupted
from droprl.train.extending import extend
from droprl.train.run import Run
from droprl.train.training import default_out, fit

__all__ = ["Interrupted", "Run", "default_out", "extend", "fit"]
