"""Whether a training was over when it ended, on logs whose answer is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.training import learnable_dataset

from droprl import fit
from droprl.algorithms.bc import BC
from droprl.algorithms.onestep import Onestep
from droprl.algorithms.protocol import Clock
from droprl.report.build import build_report
from droprl.train.endings import STILL_FALLING, ending_checks

STEPS = range(10, 1001, 10)


def log_of(**metrics: Any) -> list[dict[str, Any]]:
    """Two seeds: the second has every metric at a constant 1."""
    return [{"step": step, **{name: [of(step), 1.0] for name, of in metrics.items()}} for step in STEPS]


def test_a_loss_that_falls_along_a_line_is_undertrained() -> None:
    """From 990 to 0, the mean over updates 610 … 800 is 295 and over 810 … 1000 it is 95: 200 of 895."""
    (check,) = ending_checks(BC.card, log_of(clone_loss=lambda step: 1000.0 - step), 0)
    assert check.value == pytest.approx(200 / 895)
    assert not check.healthy
    assert check.meaning.startswith("undertrained: the losses still fall")


def test_a_loss_that_fell_early_is_not() -> None:
    (check,) = ending_checks(BC.card, log_of(clone_loss=lambda step: np.exp(-step / 50)), 0)
    assert check.healthy
    assert 0 <= check.value < STILL_FALLING


def test_the_sum_of_the_losses_counts() -> None:
    card = replace(BC.card, falls=("clone_loss", "td_loss"))
    metrics = {"clone_loss": lambda step: 1000.0 - step, "td_loss": lambda step: float(step)}
    assert ending_checks(card, log_of(**metrics), 0) == []  # the sum never falls: there is nothing to judge


def test_no_verdict_without_a_fall_or_with_few_entries() -> None:
    assert ending_checks(BC.card, log_of(clone_loss=lambda step: 1.0), 1) == []
    assert ending_checks(BC.card, [{"step": s, "clone_loss": [9.0 - s]} for s in range(1, 9)], 0) == []
    assert ending_checks(BC.card, [], 0) == []
    assert ending_checks(BC.card, log_of(other=lambda step: 1.0), 0) == []


def test_onestep_says_when_its_policy_or_its_critic_still_moves() -> None:
    falls = {"clone_loss": lambda step: np.exp(-step / 50)}
    _, policy, critic = ending_checks(
        Onestep.card, log_of(**falls, policy_kl=lambda step: 0.001 * step, score_r2=lambda step: 0.9), 0
    )
    assert policy.value == pytest.approx((905 - 705) / 905)
    assert (policy.healthy, critic.healthy, critic.value) == (False, True, 0.0)
    assert policy.meaning.startswith("undertrained: policy_kl still changes at the end")


def test_training_and_the_report_say_that_a_run_is_undertrained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = replace(BC.tiny(), learning_rate=1e-4)
    run = fit(learnable_dataset(), slow, out=tmp_path / "run", steps=60, log_every=2)
    assert "seed 0, undertrained: the losses still fall clearly" in " ".join(capsys.readouterr().err.split())
    name = "share of the fall of the loss in the last fifth"
    assert [d.healthy for d in build_report([run], "").diagnostics if d.name == name] == [False]


@pytest.mark.parametrize(("total", "rate"), [(1, 1e-3), (10_000, 1e-3), (20_000, 5e-4), (100_000, 1e-4), (10**6, 1e-4)])
def test_the_rate_of_onestep_follows_from_the_length_of_the_run(total: int, rate: float) -> None:
    """Adam's first step is as long as the rate."""
    optimizer, weight = Onestep()._optimizer(Clock.at(0, total)), np.array([0.0])
    step, _ = optimizer.update(np.array([3.0]), optimizer.init(weight))
    assert float(-step[0]) == pytest.approx(rate, rel=1e-5)
    fixed = Onestep(learning_rate=2e-4)._optimizer(Clock.at(0, total))
    assert float(-fixed.update(np.array([3.0]), fixed.init(weight))[0][0]) == pytest.approx(2e-4, rel=1e-5)
