"""Choosing N, M and K: from the data alone, or with a stated number of episodes."""

from droprl.select.fqe import FQE, estimate_returns
from droprl.select.selection import Candidate, Selection, select

__all__ = ["FQE", "Candidate", "Selection", "estimate_returns", "select"]
