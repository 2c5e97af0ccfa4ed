"""The policy level: which steps are replayed, in which share, with which label, and that online data help."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from helpers.builders import targets_by_definition
from helpers.playing import Makes, misleading_dataset, pays_for_left
from helpers.toy import ToyQ
from helpers.training import learnable_dataset, refusal, tiny

from droprl import DROP, finetune, load_policy
from droprl.algorithms import ALGORITHMS
from droprl.algorithms.drop_settings import PLAIN
from droprl.algorithms.protocol import Clock
from droprl.data.transitions import Prepared
from droprl.data.windows import prepare_windows
from droprl.finetuning import FineTuning, online
from droprl.finetuning.online import ONLINE_SEED
from droprl.finetuning.replay import played_dataset, replay
from droprl.loaded import LoadedPolicy, Origin
from droprl.rollout import Trajectory, play_episode
from droprl.train import Run, fit
from droprl.train.loop import updates

LENGTHS = (3, 1, 40, 7)


def online_episodes() -> list[Trajectory]:
    """An observation is [100 + episode, step, 0]. Rewards and labels differ between steps."""
    made = []
    for episode, length in enumerate(LENGTHS):
        place = np.stack([np.full(length, 100 + episode), np.arange(length), np.zeros(length)], axis=1)
        made.append(
            Trajectory(
                observations=place.astype(np.float32),
                actions=np.full((length, 2), 0.25, np.float32),
                rewards=(1 + episode + 0.1 * np.arange(length)).astype(np.float32),
                next_observations=(place + np.array([0, 1, 0])).astype(np.float32),
                sub_tasks=((episode + np.arange(length)) % 4).astype(np.int32),
                terminated=np.array(episode % 2 == 0),
                whole=np.array(True),
            )
        )
    return made


@pytest.fixture(scope="module")
def prepared() -> tuple[DROP, Prepared]:
    algorithm: Any = tiny("drop", n_sub_tasks=4, discount=0.9, td_steps=5, normalize_observations=False)
    resolved = algorithm.resolve(learnable_dataset())
    return resolved, resolved.prepare(learnable_dataset())


@pytest.mark.parametrize(("share", "n_online"), [(0.0, 0), (0.25, 64), (0.5, 128), (1.0, 256)])
def test_every_batch_holds_the_stated_share_of_online_steps(
    prepared: tuple[DROP, Prepared], share: float, n_online: int
) -> None:
    table = replay(prepared[1], online_episodes(), share)
    for seed in range(3):
        batch = table.sample(jax.random.key(seed), 256)
        assert len(batch.reward) == 256
        assert int(np.sum(np.asarray(batch.observation)[:, 0] >= 100)) == n_online


def test_every_played_step_is_drawn_unchanged(prepared: tuple[DROP, Prepared]) -> None:
    """Targets follow their definition, the label is the one that acted, and no successor is of another episode."""
    data = prepared[1]
    episodes = online_episodes()
    batch = jax.device_get(replay(data, episodes, 1.0).sample(jax.random.key(0), 4_000))
    dataset = played_dataset(episodes, np.asarray(data.scaling.action_low), np.asarray(data.scaling.action_high))
    expected = targets_by_definition(dataset, 0.9, 5)
    labels = np.concatenate([episode.sub_tasks for episode in episodes])
    begin = np.concatenate([[0], np.cumsum(LENGTHS)])
    rows = (begin[batch.observation[:, 0].astype(int) - 100] + batch.observation[:, 1]).astype(int)
    assert set(rows) == set(range(sum(LENGTHS)))
    np.testing.assert_array_equal(batch.sub_task, labels[rows])
    for i, row in enumerate(rows):
        target = expected[row]
        assert batch.reward[i] * data.reward_scale == pytest.approx(target.reward, rel=1e-4)
        assert batch.discount[i] == pytest.approx(target.discount)
        assert bool(batch.next_action_known[i]) == (not target.past_end)
        if target.discount > 0:
            episode, step = target.successor
            assert batch.next_observation[i].tolist() == [100 + episode, step, 0]


def test_the_label_is_the_sub_task_whose_embedding_acted(prepared: tuple[DROP, Prepared]) -> None:
    algorithm, data = prepared
    acting = algorithm.policy(algorithm.init(jax.random.key(1), data.spec, Clock.at(0, 1)))
    origin = Origin("learnable", None, None, 0, 0)
    policy = LoadedPolicy(acting, algorithm, data.spec, data.scaling, origin, "").adapted(rule="best-ada")
    played = play_episode(policy, Makes(lengths=12)(), 3, 100, None, 0.0)
    search: Any = policy.search
    expected = jax.jit(jax.vmap(search.infer))(data.scaling.observations_in(played.observations)).start
    np.testing.assert_array_equal(played.sub_tasks, expected)
    assert len(set(played.sub_tasks)) > 1


# --- online data help ---


@pytest.fixture(scope="module")
def misled(tmp_path_factory: pytest.TempPathFactory) -> Run:
    sizes: dict[str, Any] = {"width": 16, "n_sub_tasks": 2, "embedding_size": 2, "discount": 0.9, **PLAIN}
    out = tmp_path_factory.mktemp("online") / "run"
    steps: dict[str, Any] = {"steps": 300, "checkpoint_every": 150, "progress": False}
    return fit(misleading_dataset(), tiny("drop", **sizes), out=out, **steps)


def tuned(run: Run, **options: Any) -> FineTuning:
    usual: dict[str, Any] = {"env": Makes(pays_for_left, lengths=10), "episodes": 3, "n_envs": 1, "progress": False}
    return finetune(run, **usual | options)


def test_online_data_correct_a_misleading_dataset(misled: Run, tmp_path: Path) -> None:
    """The data says that going right pays best, and the task says otherwise. More updates alone do not help."""
    run, copy = (Run(shutil.copytree(misled.path, tmp_path / name)) for name in ("run", "copy"))
    options: dict[str, Any] = {"level": "policy", "budget": 255, "rule": "best-ada", "dataset": misleading_dataset()}
    alone, helped = tuned(copy, online_share=0.0, **options), tuned(run, **options)
    assert alone.initial == helped.initial < 1.0
    assert alone.tuned < 1.0
    assert helped.tuned > 9.0
    (seed,) = helped.seeds
    assert (seed.steps_played, seed.episodes_played, seed.step) == (250, 25, 300 + 250)
    assert seed.chosen_for is None
    saved = load_policy(run.path / "finetune" / "policy" / "policy")
    assert saved.origin.step == 550
    assert np.all(saved.act(np.zeros((1, 3)))[:, 0] < 1.5)


def test_the_policy_level_begins_with_the_choice_of_the_embedding_level(misled: Run, tmp_path: Path) -> None:
    run = Run(shutil.copytree(misled.path, tmp_path / "run"))
    searched = tuned(run, level="embedding", budget=40, max_ascent_steps=1, rule="grad").seeds[0]
    options: dict[str, Any] = {"level": "policy", "budget": 29, "updates_per_step": 0.5, "rule": "grad"}
    options["dataset"] = misleading_dataset()
    found = tuned(run, **options).seeds[0]
    assert searched.ascent_steps != run.config.algorithm.adaptation.ascent_steps  # type: ignore[union-attr]
    assert (found.step, found.ascent_steps) == (searched.step + 10, searched.ascent_steps)
    (run.path / "finetune" / "policy").rename(tmp_path / "moved")
    given = tuned(run, **options, ascent_steps=7).seeds[0]
    assert (given.step, given.ascent_steps) == (300 + 10, 7)
    text = (run.path / "finetune" / "policy" / "seed-0.jsonl").read_text()
    assert [json.loads(line)["env_seed"] for line in text.splitlines()] == [ONLINE_SEED, ONLINE_SEED + 1]


# --- every algorithm that learns online ---


def test_an_algorithm_without_sub_tasks_learns_online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data says that going right pays best, and the task says otherwise."""
    monkeypatch.setitem(ALGORITHMS, ToyQ.name, ToyQ)
    run = fit(misleading_dataset(), ToyQ(), out=tmp_path / "run", seeds=2, steps=300, progress=False)
    assert run.spec().n_sub_tasks is None
    found = tuned(run, level="policy", budget=255, online_share=0.75, dataset=misleading_dataset())
    assert found.initial == 0.0
    assert found.tuned > 9.0
    assert found.adaptation is None
    assert [(s.step, s.ascent_steps, s.steps_played) for s in found.seeds] == [(550, None, 250)] * 2
    saved = load_policy(run.path / "finetune" / "policy" / "policy")
    assert np.all(saved.act(np.zeros((1, 3)))[:, 0] < 1.5)
    assert tuned(run, level="policy", budget=255, online_share=0.75, dataset=misleading_dataset()) == found


def test_played_steps_have_the_targets_and_units_of_the_training() -> None:
    """Rewards were multiplied by 10 / range of the returns, and targets are of one step."""
    data = ToyQ().prepare(misleading_dataset())
    returns = misleading_dataset().returns
    batch = jax.device_get(replay(data, online_episodes(), 1.0).sample(jax.random.key(0), 500))
    assert batch.sub_task is None
    shown = batch.observation * data.scaling.observation_std + data.scaling.observation_mean
    for i, (place, step) in enumerate(np.rint(shown[:, :2]).astype(int)):
        earned = 1 + (place - 100) + 0.1 * step
        assert batch.reward[i] == pytest.approx(earned * 10 / np.ptp(returns), rel=1e-4)
        over = step == LENGTHS[place - 100] - 1 and (place - 100) % 2 == 0
        assert batch.discount[i] == pytest.approx(0.0 if over else 0.5)


@pytest.mark.parametrize("name", [name for name, kind in ALGORITHMS.items() if kind.card.learns_online])
def test_an_update_on_played_episodes_gives_finite_metrics(name: str) -> None:
    """If the data has sub-tasks, the policy also says which sub-task acts."""
    algorithm = tiny(name).resolve(learnable_dataset())
    data = algorithm.prepare(learnable_dataset())
    state = algorithm.init(jax.random.key(0), data.spec, Clock.at(0, 1))
    policy = algorithm.policy(state)
    assert data.sub_tasks is None or "sub_task" in policy.facts(policy.start(1))
    batch = replay(data, online_episodes(), 0.5).sample(jax.random.key(0), algorithm.batch_size)
    _, metrics = jax.jit(algorithm.update)(state, batch, jax.random.key(1), Clock.at(0, 1))
    assert all(np.isfinite(value).all() for value in jax.tree.leaves(metrics))


def test_windows_are_replayed_too() -> None:
    """Half of every batch is windows of played episodes. A window never leaves its episode."""
    data = prepare_windows(learnable_dataset(), back=2, ahead=1, normalize_observations=False)
    table = replay(data, online_episodes(), 0.5)
    window = jax.device_get(jax.jit(lambda key: table.sample(key, 400))(jax.random.key(0)))
    episode, clock = np.rint(window.observations[..., :2]).astype(int).transpose(2, 0, 1)
    played = episode[:, 0] >= 100
    assert played.sum() == 200
    assert (episode[played] == episode[played][:, :1]).all()
    lengths = np.array(LENGTHS)[episode[played][:, 0] - 100]
    drawn = clock[played][:, 2]
    wanted = drawn[:, None] + np.arange(-2, 2)
    assert {(e, t) for e, t in zip(episode[played][:, 2], drawn, strict=True)} == {
        (100 + e, t) for e, length in enumerate(LENGTHS) for t in range(length)
    }
    np.testing.assert_array_equal(window.valid[played], (wanted >= 0) & (wanted < lengths[:, None]))
    np.testing.assert_array_equal(clock[played], wanted.clip(0, lengths[:, None] - 1))
    np.testing.assert_array_equal(window.steps[played], clock[played])


def test_weights_with_nan_neither_act_nor_are_saved(
    misled: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss is measured before its update. So the new weights may be NaN although no loss shows it."""
    run = Run(shutil.copytree(misled.path, tmp_path / "run"))

    def spoiled(*arguments: Any) -> Any:
        state, sums = updates(*arguments)
        return jax.tree.map(lambda leaf: leaf * math.nan, state), sums

    options: dict[str, Any] = {"level": "policy", "budget": 29, "rule": "grad", "dataset": misleading_dataset()}
    with monkeypatch.context() as patch:
        patch.setattr(online, "updates", spoiled)
        message = refusal(tuned, run, **options)
    assert "training has diverged at episode 1 (NaN or infinity); the run and earlier saves are unchanged" in message
    assert not list((run.path / "finetune").rglob("state/*"))
    assert tuned(run, **options).seeds[0].episodes_played == 2
