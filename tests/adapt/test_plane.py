"""The plane in which embeddings are shown."""

from __future__ import annotations

import numpy as np
import pytest

from droprl.adapt import Plane


def test_the_plane_keeps_distances_if_the_embeddings_lie_in_a_plane() -> None:
    flat = (
        np.random.default_rng(0).normal(size=(6, 2)) @ np.linalg.qr(np.random.default_rng(1).normal(size=(5, 2)))[0].T
    )
    plane = Plane(flat)
    points = np.array(plane.points(flat))
    assert plane.explained == pytest.approx(1.0)
    np.testing.assert_allclose(
        np.linalg.norm(points[0] - points[1:], axis=1), np.linalg.norm(flat[0] - flat[1:], axis=1), atol=1e-3
    )
