"""Settings that make no sense are refused where they are made, by name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from droprl import BC, DDROP, DROP, FBC, Adaptation, DropCVAE, DropError, Onestep, RvS
from droprl.algorithms import ALGORITHMS
from droprl.errors import SettingError


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (DROP, "td_steps", 0),
        (DROP, "n_sub_tasks", 0),
        (DROP, "trajectories_per_sub_task", -1),
        (DROP, "discount", 1.5),
        (DROP, "discount", 0.0),
        (DROP, "learning_rate", -1.0),
        (DROP, "target_rate", 0.0),
        (DROP, "multiplier_max", -1.0),
        (DROP, "score_models", 0),
        (DROP, "score_smoothing", -0.1),
        (DROP, "policy_smoothing", float("nan")),
        (DROP, "td_lambda", 1.0),
        (DROP, "td_lambda", -0.1),
        (DROP, "depths", (2, 0, 1, 1, 1)),
        (DropCVAE, "kl_weight", -0.1),
        (DropCVAE, "n_latents", 0),
        (DropCVAE, "embedding_size", 0),
        (DropCVAE, "discount", 1.5),
        (DropCVAE, "td_lambda", 1.0),
        (DropCVAE, "depths", (2, 0, 1, 1, 1)),
        (DDROP, "distilled_share", 0.0),
        (DDROP, "distilled_share", 1.5),
        (DDROP, "td_steps", 0),
        (BC, "width", 0),
        (BC, "batch_size", 0),
        (BC, "average_rate", 0.0),
        (BC, "average_rate", 1.5),
        (FBC, "average_rate", 0.0),
        (FBC, "learning_rate", float("nan")),
        (FBC, "top_fraction", 0.0),
        (FBC, "top_fraction", 1.1),
        (RvS, "outcome_std", 0.0),
        (RvS, "target_return", float("nan")),
        (Onestep, "temperature", 0.0),
        (Onestep, "kl_weight", -0.1),
        (Adaptation, "step_size", -0.1),
        (Adaptation, "trust_radius", 0.0),
        (Adaptation, "starts", 0),
        (Adaptation, "reinference_interval", 0),
    ],
)
def test_a_senseless_setting_is_refused_by_name(kind: Any, name: str, value: Any) -> None:
    with pytest.raises(DropError, match=f"^{name} (is|are) ") as caught:
        kind(**{name: value})
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)


def test_a_setting_may_be_left_open() -> None:
    assert DROP(discount=None, n_sub_tasks=None).n_sub_tasks is None
    assert RvS(target_return=None, horizon=None).horizon is None
    assert Adaptation(starts=None).starts is None
    assert DROP(discount=1.0, target_rate=1.0).discount == 1.0
    assert DROP(td_lambda=0.0).td_lambda == 0.0


@pytest.mark.parametrize(
    ("kind", "preset"),
    [(kind, preset) for kind in ALGORITHMS.values() for preset in ("small", "tiny", *kind.card.presets)],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_every_preset_takes_other_settings_by_name(kind: Any, preset: str) -> None:
    make = getattr(kind, preset)
    plain = make()
    assert make(batch_size=77) == dataclasses.replace(plain, batch_size=77)
    assert make(batch_size=77) != plain
    with pytest.raises(TypeError, match="unheard_of"):
        make(unheard_of=1)
    with pytest.raises(SettingError, match="batch_size is 0"):
        make(batch_size=0)
