"""Choosing N, M and K: from the data alone, or with a stated number of episodes."""

from droprl.select.fqe import FQE, estimate_returns
from droprl.select.selection import Selection, Setting, select

__all__ = ["FQE", "Selection", "Setting", "estimate_returns", "select"]
