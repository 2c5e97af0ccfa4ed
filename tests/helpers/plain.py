"""DROP without what this library adds around the paper's losses and search: for tests of these alone."""

from __future__ import annotations

from typing import Any

from droprl.adapt import Adaptation
from droprl.algorithms import drop_settings

PLAIN: dict[str, Any] = drop_settings.PLAIN | {"adaptation": Adaptation()}
