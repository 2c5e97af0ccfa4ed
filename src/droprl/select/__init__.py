"""Choosing N, M and K: from the data alone, or with a stated number of episodes."""

from droprl.select.selection import Selection, Setting, select

__all__ = ["Selection", "Setting", "select"]
