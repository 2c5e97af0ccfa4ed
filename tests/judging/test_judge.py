"""`droprl.judge` and `drop judge`: the verdict and what it rests on, for people and for scripts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.training import TINY_BC, drop, learnable_dataset, refusal, save_npz, tiny
from helpers.walks import GAMMA, loaded, walk

import droprl
from droprl.cli import main
from droprl.cli.train import next_command
from droprl.data import Dataset
from droprl.data.sources import SourceOptions
from droprl.judging import Estimate, Estimation, choose
from droprl.judging.estimates import Second
from droprl.judging.judgement import agreement, verdict
from droprl.judging.log import Bounds, Log
from droprl.train import Run

QUICK = Estimation(discount=GAMMA, members=2, transitions=300, starts=20, features=100)


def estimate(**changes: Any) -> Estimate:
    """An estimate of 30 where the log earned 20: near all steps of the log, with an error of 2."""
    sure = Estimate(
        value=30.0,
        sampling=2.0,
        disagreement=0.0,
        logged=20.0,
        fqe=Second(28.0, 1.0),
        doubly_robust=Second(31.0, 2.0),
        bounds=Bounds(0.0, 100.0),
        near_states=1.0,
        near_pairs=1.0,
        near_z=None,
        widening=1.5,
    )
    return replace(sure, **changes)


def test_the_interval_by_hand() -> None:
    found = estimate(disagreement=3.0, near_pairs=0.4)
    assert found.unsupported == pytest.approx(0.6 * 10.0)
    assert found.error == pytest.approx(7.0)  # √(4 + 9 + 36)
    assert found.interval == pytest.approx((19.5, 40.5))
    assert estimate(value=1.0, logged=1.0).interval == pytest.approx((0.0, 4.0))
    assert estimate(value=99.0, logged=99.0).interval == pytest.approx((96.0, 100.0))


def test_what_the_data_does_not_support_is_not_chosen() -> None:
    """The highest estimate is a guess here. Of the others, which the data supports about equally, the highest wins."""
    found = [estimate(value=value, near_pairs=near) for value, near in ((25, 0.95), (90, 0.6), (28, 0.9), (20, 1.0))]
    assert choose(found) == 2
    assert choose(found[1:2]) == 0
    assert choose([estimate(value=1.0, near_pairs=0.2), estimate(value=2.0, near_pairs=0.15)]) == 1


@pytest.mark.parametrize(
    ("changes", "logged_error", "trajectories", "word", "because"),
    [
        ({}, 4.0, 50, "better", "above the log by 10 ± 5"),  # √(3² + 4²)
        ({"value": 9.0}, 4.0, 50, "worse", "below the log by 11 ± 5"),
        ({}, 20.0, 50, "no clear difference", "above the log by 10 ± 20.22"),
        ({"sampling": 8.0}, 4.0, 50, "no clear difference", "above the log by 10"),
        ({}, 4.0, 9, "cannot tell", "only 9 trajectories"),
        ({"near_pairs": 0.5}, 0.0, 50, "cannot tell", "unlike what the log shows"),
        ({"near_states": 0.5}, 0.0, 50, "cannot tell", "unlike what the log shows"),
        ({"doubly_robust": Second(12.0, 1.0)}, 4.0, 50, "better", "doubly robust estimate disagrees: 12"),
        ({"fqe": None, "doubly_robust": None}, 4.0, 50, "better", "actions depend on the past"),
        ({"near_z": 0.7}, 4.0, 50, "better", "70% of its z"),
    ],
)
def test_the_verdict_and_what_it_rests_on(
    changes: dict[str, Any], logged_error: float, trajectories: int, word: str, because: str
) -> None:
    found, reasons = verdict(estimate(**changes), logged_error, trajectories)
    assert found == word
    assert any(because in reason for reason in reasons), reasons


def test_a_clearly_better_policy_is_found_and_the_log_agrees_with_itself() -> None:
    """The reward is the position, and to push right raises it. A log that pushes at random earns about 0."""
    dataset = walk("timeout", n_episodes=80)
    right = droprl.judge(loaded(dataset, lambda _, now: 0.0 * now[:, 0] + 0.4), dataset, config=QUICK)
    assert right.verdict == "better"
    left = droprl.judge(loaded(dataset, lambda _, now: 0.0 * now[:, 0] - 0.4), dataset, config=QUICK)
    assert left.verdict == "worse"
    assert right.logged[1][0] < right.logged[0] < right.logged[1][1]
    content = json.loads(json.dumps(right.to_json(), allow_nan=False))
    assert content["verdict"] == "better"
    assert content["estimate"]["interval"] == list(right.estimate.interval)
    assert content["estimate"]["doubly_robust"]["interval"][0] <= content["estimate"]["doubly_robust"]["value"]
    assert content["estimate"]["bounds"] == list(right.estimate.bounds)
    assert set(content) >= {"policy", "dataset", "discount", "logged", "agreement", "reasons", "meaning"}


def test_agreement_by_hand() -> None:
    dataset = walk("terminal", n_episodes=20)
    actions = np.asarray(dataset.actions)[:, 0]
    found = agreement(loaded(dataset, lambda _, now: 0.0 * now[:, 0] + 0.25), Log(dataset, GAMMA))
    assert found is not None
    assert found.distance == pytest.approx(float(np.mean(np.abs(actions - 0.25))) / 2, rel=1e-4)
    assert found.close == pytest.approx(float(np.mean(np.abs(actions - 0.25) <= 0.2)))
    assert agreement(loaded(dataset, lambda _, now: now[:, 0], remembers=True), Log(dataset, GAMMA)) is None


# --- the command ---


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A log that no simulator plays, a run on it, and what training printed."""
    folder = tmp_path_factory.mktemp("my plant")
    rewards = -np.random.default_rng(0).uniform(1, 2, 240)
    log = save_npz(learnable_dataset(rewards=rewards), folder / "mine.npz")
    code, printed, said = drop("train", log, "--out", folder / "run", *TINY_BC, "--steps=4")
    assert code == 0, said
    return log, folder / "run", printed


def test_training_on_data_that_no_simulator_plays_ends_with_the_command_that_works(
    mine: tuple[Path, Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    log, run, printed = mine
    assert printed.endswith(f"judge it by the data with: drop judge '{run}' '{log}'\n")
    main(["judge", str(run), str(log), "--json"])
    found = json.loads(capsys.readouterr().out)
    low, high = found["estimate"]["bounds"]
    assert low <= found["estimate"]["interval"][0] <= found["estimate"]["value"] <= found["estimate"]["interval"][1]
    assert found["estimate"]["interval"][1] <= high < 0  # every reward is negative
    main(["judge", str(run), str(log)])
    shown = capsys.readouterr().out
    assert "what the rewards and γ allow" in shown
    assert "Verdict: " in shown


@pytest.mark.parametrize("name", ["drop", "drop-cvae", "ddrop", "dt"])
def test_policies_of_every_kind_can_be_judged(tmp_path: Path, name: str) -> None:
    """One that searches, one whose z comes from a latent, many networks, and one that remembers."""
    dataset = learnable_dataset()
    run = droprl.fit(dataset, tiny(name), out=tmp_path / name, steps=2, progress=False)
    quick = Estimation(members=2, transitions=60, starts=4, features=20)
    found = droprl.judge(run, dataset, config=quick)
    assert (found.estimate.fqe is None) == (found.agreement is None) == (name == "dt")
    assert found.estimate.near_z is None or 0.0 <= found.estimate.near_z <= 1.0
    assert (found.estimate.near_z is not None) == (name in ("drop", "drop-cvae"))


def test_the_command_repeats_what_the_data_needs_to_be_read(mine: tuple[Path, Path, str]) -> None:
    log, run, _ = mine
    said = next_command(Run(run), str(log), SourceOptions(action_low=-2.0, action_high=(1.0, 2.0)))
    assert said.endswith("--action-low -2.0 --action-high 1.0 2.0")


def test_mistakes_are_refused(mine: tuple[Path, Path, str]) -> None:
    log, run, _ = mine
    assert "has no seed 7" in refusal(droprl.judge, run, log, seed=7)
    assert "is not a run" in refusal(droprl.judge, log.parent / "none", log)
    dataset: Dataset = walk("terminal", n_episodes=6)
    policy = loaded(dataset, lambda _, now: now[:, 0])
    assert "loaded already" in refusal(droprl.judge, policy, dataset, rule="first")
    assert "other sizes" in refusal(droprl.judge, run, dataset)
