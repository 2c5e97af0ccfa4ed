"""The plane of the embeddings' two largest principal components. Pages show the search in it."""

from __future__ import annotations

import numpy as np


class Plane:
    def __init__(self, embeddings: np.ndarray) -> None:
        self._center = embeddings.mean(axis=0)
        _, sizes, directions = np.linalg.svd(embeddings - self._center, full_matrices=False)
        self._directions = np.zeros((2, embeddings.shape[1]))
        self._directions[: min(2, len(directions))] = directions[:2]
        total = float(np.sum(sizes**2))
        self.explained = float(np.sum(sizes[:2] ** 2)) / total if total > 0 else 1.0
        """The share of the embeddings' variance that the plane shows."""

    def points(self, z: np.ndarray) -> np.ndarray:
        """(n, 2), or (2,) for one z."""
        projected: np.ndarray = (z - self._center) @ self._directions.T
        return projected
