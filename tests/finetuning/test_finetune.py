"""Fine-tuning in runs: the levels against brute force, the budget to the step, interruptions, and errors."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from helpers.playing import Makes, drop_run, short_run
from helpers.training import learnable_dataset, refusal, tiny

from droprl import evaluate, finetune, load_policy
from droprl.algorithms import ALGORITHMS
from droprl.data.transitions import Spec
from droprl.evaluation import EVALUATION_SEED
from droprl.finetuning import FineTuning
from droprl.finetuning.ledger import Ledger, Played
from droprl.finetuning.search import SEARCH_SEED
from droprl.loaded import LoadedPolicy, policy_of_run
from droprl.rollout import play_episode, rollout
from droprl.train import Interrupted, Run, fit

CHECKPOINTS, K_MAX = (4, 8, 12), 2
LEARNS_ONLINE = [name for name, kind in ALGORITHMS.items() if kind.card.learns_online]


@pytest.fixture(scope="module")
def run_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """A short run of each algorithm, trained once. Tests must not change it."""

    @cache
    def trained(name: str) -> Run:
        out = tmp_path_factory.mktemp("finetune") / name
        return drop_run(out) if name == "drop" else short_run(tiny(name), out)

    return trained


@pytest.fixture
def run(run_with: Callable[[str], Run], tmp_path: Path) -> Run:
    return Run(shutil.copytree(run_with("drop").path, tmp_path / "run"))


def tune(run: Run | Path, level: str, budget: int, makes: Makes | None = None, **options: Any) -> FineTuning:
    usual: dict[str, Any] = {
        "protocol": "thorough",
        "max_ascent_steps": K_MAX,
        "episodes": 2,
        "n_envs": 2,
        "progress": False,
    }
    return finetune(run, level=level, budget=budget, env=makes or Makes(), **usual | {"progress": False} | options)  # type: ignore[arg-type]


def lines(run: Run, level: str, seed: int = 0) -> list[dict[str, Any]]:
    text = (run.path / "finetune" / level / f"seed-{seed}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


# --- real runs, against brute force ---


def test_the_checkpoint_level_chooses_as_brute_force(run: Run) -> None:
    makes = Makes()
    found = tune(run, "checkpoint", 1_000, makes, ascent_steps=2, rounds=1)
    for seed, tuned in zip((0, 5), found.seeds, strict=True):
        earned = {
            step: rollout(policy_of_run(run, seed, step, ascent_steps=2), Makes(), 1, seed=SEARCH_SEED).returns[0]
            for step in CHECKPOINTS
        }
        assert len(set(earned.values())) == 3
        assert tuned.step == max(earned, key=lambda step: earned[step])
        assert tuned.chosen_for == pytest.approx(max(earned.values()), rel=1e-6)
        assert (tuned.ascent_steps, tuned.steps_played, tuned.episodes_played) == (2, 15, 3)


def test_the_embedding_level_chooses_as_brute_force(run: Run) -> None:
    found = tune(run, "embedding", 1_000, rounds=1, **LOUD)
    for seed, tuned in zip((0, 5), found.seeds, strict=True):
        earned = {}
        for step, k in itertools.product(CHECKPOINTS, range(K_MAX + 1)):
            policy = policy_of_run(run, seed, step, ascent_steps=k, **LOUD)
            earned[step, k] = rollout(policy, Makes(), 1, seed=SEARCH_SEED).returns[0]
        assert len(set(earned.values())) == len(earned)
        assert (tuned.step, tuned.ascent_steps) == max(earned, key=lambda pair: earned[pair])
        noted = {(p["step"], p["ascent_steps"]): p["episode_return"] for p in lines(run, "embedding", seed)}
        assert noted == pytest.approx(earned, rel=1e-6)


LOUD: dict[str, Any] = {"step_size": 3.0, "region": "none"}  # every rule and k then acts differently


def test_as_in_the_paper_the_checkpoint_level_plays_rule_best_once_and_leaves_the_policys_own_rule(run: Run) -> None:
    found = tune(run, "checkpoint", 10_000, protocol="paper", **LOUD)
    differ = False
    for seed, folder, tuned in zip((0, 5), ("policy", "policy-seed-5"), found.seeds, strict=True):
        by_best, by_own = (
            {
                step: rollout(policy_of_run(run, seed, step, **LOUD, **rule), Makes(), 1, seed=SEARCH_SEED).returns[0]
                for step in CHECKPOINTS
            }
            for rule in ({"rule": "best"}, {})
        )
        assert tuned.step == max(by_best, key=lambda step: by_best[step])
        assert tuned.chosen_for == pytest.approx(max(by_best.values()), rel=1e-6)
        assert (tuned.steps_played, tuned.episodes_played) == (15, 3)  # of 10,000: one episode each
        assert load_policy(run.path / "finetune" / "checkpoint" / folder).traits.rule == "grad-ada"
        differ |= max(by_best.values()) != pytest.approx(max(by_own.values()), rel=1e-3)
    assert differ  # otherwise the rules play alike, and this test says nothing
    assert (found.protocol, found.search_rule, found.adaptation and found.adaptation["rule"]) == (
        "paper",
        "best",
        "grad-ada",
    )


def test_as_in_the_paper_the_embedding_level_plays_every_k_from_one_on_once(run: Run) -> None:
    found = tune(run, "embedding", 10_000, protocol="paper")
    noted = [(p["step"], p["ascent_steps"]) for p in lines(run, "embedding")]
    assert sorted(noted) == [(step, k) for step in CHECKPOINTS for k in range(1, K_MAX + 1)]
    assert (found.protocol, found.search_rule) == ("paper", None)
    said = refusal(tune, run, "embedding", 10_000, protocol="paper", max_ascent_steps=0)
    assert said == "max_ascent_steps is 0: it must be at least 1"


def test_a_search_that_began_before_there_was_a_protocol_goes_on_as_thorough(run: Run) -> None:
    found = tune(run, "checkpoint", 20)
    for name in ("settings.json", "result.json"):
        path = run.path / "finetune" / "checkpoint" / name
        content = without_seal(path.read_bytes())
        old = {key: value for key, value in content.items() if key not in ("protocol", "search_rule")}
        path.write_text(json.dumps(old))
    assert tune(run, "checkpoint", 20) == found
    assert "protocol thorough → paper" in refusal(tune, run, "checkpoint", 20, protocol="paper")


def test_the_policy_level_does_not_ask_for_a_protocol(run: Run) -> None:
    found = tune(run, "policy", 5, dataset=learnable_dataset(), updates_per_step=0.0)
    path = run.path / "finetune" / "policy" / "settings.json"
    path.write_text(json.dumps({k: v for k, v in without_seal(path.read_bytes()).items() if k != "protocol"}))
    again = tune(run, "policy", 5, dataset=learnable_dataset(), updates_per_step=0.0, protocol="paper")
    assert again == found


def test_play_episode_plays_the_same_episode_as_rollout(run: Run) -> None:
    policy, makes = policy_of_run(run, 5), Makes(lengths=lambda seed: 3 + seed % 5)
    played = play_episode(policy, makes(), 7, 100, None, 0.0)
    expected = rollout(policy, makes, 1, seed=7)
    assert played.episode_return == pytest.approx(expected.returns[0], rel=1e-6)
    assert ([len(played.rewards)], bool(played.whole)) == (expected.lengths, True)
    np.testing.assert_array_equal(played.next_observations[:-1], played.observations[1:])
    assert len(play_episode(policy, makes(), 7, 4, None, 0.0).rewards) == 4
    noisy = play_episode(policy, makes(), 7, 100, np.random.default_rng(0), 10.0)
    low, high = makes().action_space.low, makes().action_space.high  # type: ignore[attr-defined]
    assert np.all((low <= noisy.actions) & (noisy.actions <= high))
    assert np.any(noisy.actions == low)
    assert np.any(noisy.actions == high)


@pytest.mark.parametrize("level", ["checkpoint", "embedding"])
def test_the_saved_policy_acts_as_the_chosen_checkpoint_and_k(run: Run, level: str) -> None:
    found = tune(run, level, 60, step_size=3.0, region="none")
    observations = np.random.default_rng(0).normal(size=(6, 3))
    for seed, folder, tuned in zip((0, 5), ("policy", "policy-seed-5"), found.seeds, strict=True):
        saved = load_policy(run.path / "finetune" / level / folder)
        k = {"ascent_steps": tuned.ascent_steps, "step_size": 3.0, "region": "none"}
        expected = policy_of_run(run, seed, tuned.step, **k)
        assert (saved.origin, saved.algorithm) == (expected.origin, expected.algorithm)
        np.testing.assert_array_equal(saved.act(observations), expected.act(observations))
        again = evaluate(saved, env=Makes(), episodes=2, n_envs=2, progress=False)
        assert again.results == [tuned.tuned]


def test_the_search_has_not_seen_the_episodes_that_measure_the_result(run: Run) -> None:
    makes = Makes(lengths=lambda seed: 1 + seed % 7)
    found = tune(run, "checkpoint", 60, makes, episodes=4)
    fresh = [1 + (EVALUATION_SEED + e) % 7 for e in range(4)]
    assert all(s.initial.lengths == s.tuned.lengths == fresh for s in found.seeds)
    assert found.evaluation_steps == 2 * 2 * sum(fresh)
    assert sum(makes.steps) == found.evaluation_steps + sum(s.steps_played for s in found.seeds)
    for seed, tuned in zip((0, 5), found.seeds, strict=True):
        last = policy_of_run(run, seed)
        expected = rollout(last, Makes(lengths=makes.lengths), 4, seed=EVALUATION_SEED, n_envs=2)
        assert tuned.initial.returns == expected.returns
    assert found.initial == pytest.approx(np.mean([s.initial.returns for s in found.seeds]))
    assert found.tuned == pytest.approx(np.mean([s.tuned.returns for s in found.seeds]))


# --- the budget ---


@pytest.mark.parametrize(("budget", "episodes"), [(5, 1), (9, 1), (10, 2), (14, 2), (15, 3), (29, 3), (30, 6)])
def test_an_episode_begins_only_if_the_budget_pays_for_the_longest(run: Run, budget: int, episodes: int) -> None:
    makes = Makes()
    found = tune(run, "checkpoint", budget, makes, episodes=1)
    assert [s.steps_played for s in found.seeds] == [5 * episodes] * 2
    assert sum(makes.steps) == 2 * 5 * episodes + found.evaluation_steps
    assert len(lines(run, "checkpoint")) == episodes


def test_without_a_time_limit_the_end_of_the_budget_cuts_an_episode_and_its_return_does_not_count(run: Run) -> None:
    """Each checkpoint would play 4 steps. The budget cuts the third after 2, though it pays more than the others."""
    begun = itertools.count()
    rich = [1.0, 1.0, 1e6]
    makes = Makes(lambda action: rich[min(len(makes.steps), 3) - 1], lengths=lambda seed: 4 + 0 * next(begun))
    found = tune(run, "checkpoint", 10, makes, episodes=1)
    assert makes.steps[:3] == [4, 4, 2]
    assert [p["whole"] for p in lines(run, "checkpoint")] == [True, True, False]
    assert (found.seeds[0].step, found.seeds[0].chosen_for, found.seeds[0].steps_played) == (12, 4.0, 10)


def test_a_ledger_never_takes_more_than_the_budget(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "played.jsonl", 7, longest=None)
    ledger.add(Played(1, None, 0, 0.0, 6, True))
    assert (ledger.spent, ledger.left, ledger.fits(), ledger.fits(2)) == (6, 1, True, False)
    with pytest.raises(ValueError, match="2 steps were played with 1 left"):
        ledger.add(Played(1, None, 0, 0.0, 2, True))
    assert Ledger(tmp_path / "played.jsonl", 7, longest=None).played == ledger.played


def test_a_damaged_line_of_a_ledger_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "played.jsonl"
    ledger = Ledger(path, 20, longest=None)
    for k in range(3):
        ledger.add(Played(k, None, k, 1.5, 6, True))
    content = path.read_bytes()
    for place in range(len(content) - 1):  # the last newline may be missing
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        message = refusal(Ledger, path, 20, None)
        assert message.startswith(f"{path}: line ")
        assert message.endswith(f"remove the folder {tmp_path} to begin anew")
        assert path.read_bytes() == damaged
    path.write_bytes(content[:-9])
    assert Ledger(path, 20, longest=None).played == ledger.played[:2]  # as a kill leaves it


def test_a_ledger_without_checksums_still_loads(tmp_path: Path) -> None:
    entry = Played(1, None, 0, 0.0, 6, True)
    (tmp_path / "played.jsonl").write_text(json.dumps(asdict(entry)) + "\n")
    assert Ledger(tmp_path / "played.jsonl", 7, longest=None).played == [entry]


# --- interruptions ---


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a level except the lock."""
    files = [p for p in folder.rglob("*") if p.is_file() and p.name != ".lock"]
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(files)}


@pytest.mark.parametrize(("level", "name"), [("embedding", "drop"), *(("policy", name) for name in LEARNS_ONLINE)])
def test_an_interrupted_fine_tuning_goes_on_to_the_same_bytes(
    run_with: Callable[[str], Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, name: str
) -> None:
    whole, broken = (Run(shutil.copytree(run_with(name).path, tmp_path / copy)) for copy in ("whole", "broken"))
    options: dict[str, Any] = {"dataset": learnable_dataset()} if level == "policy" else {}
    expected = tune(whole, level, 25, **options)
    folder = broken.path / "finetune" / level
    noted = 0
    for stop_at, save_seconds in ((3, 1e9), (17, 0.0), (24, 1e9), (38, 1e9)):  # both seeds play 50 steps together
        monkeypatch.setattr("droprl.finetuning.online.SAVE_SECONDS", save_seconds)
        makes = Makes(stop_after=stop_at - noted)
        with pytest.raises(Interrupted, match="run the same command again to go on"):
            tune(broken, level, 25, makes, **options)
        seeds = [seed for seed in (0, 5) if (folder / f"seed-{seed}.jsonl").exists()]
        noted = sum(episode["length"] for seed in seeds for episode in lines(broken, level, seed))
        assert noted == stop_at // 5 * 5  # a whole episode is never played again
        with (folder / f"seed-{seeds[-1]}.jsonl").open("a") as file:
            file.write('{"step": 4, "ascent_st')  # as a kill leaves it
    assert tune(broken, level, 25, **options) == expected
    assert contents(folder) == contents(whole.path / "finetune" / level)
    makes = Makes()
    assert tune(broken, level, 25, makes, **options) == expected
    assert makes.steps == []  # fine-tuning is finished and plays nothing


@pytest.mark.parametrize("name", LEARNS_ONLINE)
def test_an_algorithm_that_learns_online_changes_its_weights_within_the_budget(
    run_with: Callable[[str], Run], tmp_path: Path, name: str
) -> None:
    """Two more updates for each of the 10 steps played. Without updates, the same weights remain."""
    run, idle = (Run(shutil.copytree(run_with(name).path, tmp_path / copy)) for copy in ("run", "idle"))
    tune(run, "policy", 13, dataset=learnable_dataset(), updates_per_step=2.0)
    tune(idle, "policy", 13, dataset=learnable_dataset(), updates_per_step=0.0)
    for copy, n_updates in ((run, 20), (idle, 0)):
        folder = copy.path / "finetune" / "policy"
        result = json.loads((folder / "result.json").read_text())
        assert [seed["steps_played"] for seed in result["seeds"]] == [10, 10]
        assert result["budget"] == 13
        for seed, saved in ((0, folder / "policy"), (5, folder / "policy-seed-5")):
            before, after = weights(policy_of_run(copy, seed)), weights(load_policy(saved))
            changed = [not np.array_equal(old, new) for old, new in zip(before, after, strict=True)]
            assert load_policy(saved).origin.step == 12 + n_updates
            assert any(changed) == (n_updates > 0)


def weights(policy: LoadedPolicy) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(policy.policy) if eqx.is_array(leaf)]


def test_a_folder_with_other_settings_is_refused(run: Run) -> None:
    tune(run, "checkpoint", 20)
    said = refusal(tune, run, "checkpoint", 25)
    where = run.path / "finetune" / "checkpoint"
    assert said == f"{where}: was begun with other settings (budget 20 → 25): remove the folder to begin anew"
    assert "adaptation.rule" in refusal(tune, run, "checkpoint", 20, rule="best")
    assert len(tune(run, "checkpoint", 20, episodes=3).seeds[0].tuned.returns) == 3  # no new search


def test_every_damaged_bit_of_the_settings_and_the_result_is_found(run: Run) -> None:
    found = tune(run, "checkpoint", 20)
    for name in ("settings.json", "result.json"):
        path = run.path / "finetune" / "checkpoint" / name
        content = path.read_bytes()
        for place in range(0, len(content), 7):
            damaged = bytearray(content)
            damaged[place] ^= 1 << place % 8
            path.write_bytes(damaged)
            assert refusal(tune, run, "checkpoint", 20).startswith(f"{path}: ")
        path.write_text(json.dumps(without_seal(content)))  # an old file has no seal
        assert tune(run, "checkpoint", 20) == found


def without_seal(content: bytes) -> dict[str, Any]:
    return {name: value for name, value in json.loads(content).items() if name not in ("format", "seal")}


# --- errors ---


def test_wrong_arguments_are_refused_before_anything_is_played(run: Run, tmp_path: Path) -> None:
    makes = Makes()
    for said, level, options in (
        ("there is no level 'weights': choose one of checkpoint, embedding, policy", "weights", {}),
        ("budget is 0: it must be at least 1", "checkpoint", {"budget": 0}),
        ("an episode of counting may last 5, so give at least 5", "checkpoint", {"budget": 4}),
        ("rounds is 0", "checkpoint", {"rounds": 0}),
        ("there is no protocol 'mine': choose one of paper, thorough", "checkpoint", {"protocol": "mine"}),
        ("online_share is 1.5: it must be from 0 to 1", "policy", {"online_share": 1.5}),
        ("episodes is 0", "checkpoint", {"episodes": 0}),
        ("adaptation has no setting 'speed'", "checkpoint", {"speed": 3}),
        ("rule best-ada takes no ascent steps, so there is no k to choose", "embedding", {"rule": "best-ada"}),
        (
            "itself chooses ascent_steps: give max_ascent_steps= instead",
            "embedding",
            {"ascent_steps": 3},
        ),
        ("say where it is with dataset=", "policy", {}),
        ("was trained on other data: give that data with dataset=", "policy", {"dataset": learnable_dataset(seed=1)}),
        ("no task is known for this data", "checkpoint", {"env": None}),
        ("NoSuchTask-v7: cannot be made", "checkpoint", {"env": "NoSuchTask-v7"}),
        ("its observations have 4 entries", "checkpoint", {"env": "CartPole-v1", "budget": 1_000}),
    ):
        options = {"level": level, "budget": 100, "env": makes, "progress": False} | options
        assert said in refusal(finetune, run, **options)
    assert makes.steps == []
    assert "is not a run" in refusal(tune, tmp_path, "checkpoint", 100)
    assert not (run.path / "finetune").exists()
    shutil.rmtree(run.checkpoint_folder)
    assert "has no checkpoint yet" in refusal(tune, run, "checkpoint", 100)


def test_a_budget_in_which_no_episode_ends_is_refused(run: Run) -> None:
    said = refusal(tune, run, "checkpoint", 100, Makes(lengths=lambda seed: 200))
    assert said == "no episode ended within the budget of 100 steps: give more"


def test_bc_has_only_the_checkpoint_level(tmp_path: Path) -> None:
    cloned = fit(learnable_dataset(), tiny("bc"), out=tmp_path / "bc", steps=4, checkpoint_every=2, progress=False)
    able = ", ".join(LEARNS_ONLINE)
    assert "drop" in LEARNS_ONLINE
    for level, said in (
        ("embedding", 'bc has no embedding to infer: fine-tune it with level="checkpoint"'),
        ("policy", f'bc cannot learn online (these can: {able}): fine-tune it with level="checkpoint"'),
    ):
        assert said in refusal(tune, cloned, level, 100)
    found = tune(cloned, "checkpoint", 100, rounds=1)
    assert (found.seeds[0].ascent_steps, found.adaptation, found.seeds[0].episodes_played) == (None, None, 2)
    assert load_policy(cloned.path / "finetune" / "checkpoint" / "policy").spec == Spec(3, 2)


def test_a_task_that_pays_nan_is_refused(run: Run) -> None:
    assert "the return of an episode is NaN or infinite" in refusal(
        tune, run, "checkpoint", 100, Makes(lambda action: float("nan"))
    )
