"""How sure a policy is, compared with brute force. And the guard, which must step in exactly beyond its limits."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.playing import CountingTask
from helpers.training import learnable_dataset, refusal, tiny

from droprl import load_policy
from droprl.adapt import Adaptation, Inferred, infer
from droprl.cli.evaluate import EvaluateOptions, print_scores
from droprl.cli.options import parse
from droprl.data.support import Support
from droprl.evaluation import evaluate
from droprl.evaluation.evaluation import load_evaluations
from droprl.files.seals import read_sealed, sealed
from droprl.loaded import LoadedPolicy
from droprl.policies import AdaptiveMemory, AdaptivePolicy, FixedPolicy
from droprl.policies.guard import Guard, embedding_limit, nearest_distance
from droprl.rollout import rollouts
from droprl.train import Run, fit

SCHEDULE: dict[str, Any] = {"steps": 20, "progress": False}
FAR = np.full(3, 50.0, np.float32)
KEY = jax.random.key(0)

# --- the guard ---

CORNERS = jnp.array([[0.0, 0.0], [2.0, 0.0], [0.0, 4.0]])


def test_the_limit_of_embeddings_is_half_the_way_to_the_next_one_or_the_trust_region() -> None:
    line = jnp.array([[0.0], [1.0], [3.0], [7.0]])
    assert float(embedding_limit(line, 0.25)) == 0.5 * np.median([1, 1, 2, 4])
    assert float(embedding_limit(CORNERS, 0.25)) == 0.5 * np.median([2, 2, 4])
    assert float(embedding_limit(line, 2.0)) == pytest.approx(2.02)
    assert float(embedding_limit(jnp.ones((1, 5)), 0.25)) == pytest.approx(0.2525)


def test_the_distance_is_to_the_nearest_embedding() -> None:
    assert float(nearest_distance(jnp.array([0.5, 3.0]), CORNERS)) == pytest.approx(np.hypot(0.5, 1.0))


AT_ZERO = Support(np.eye(2, dtype=np.float32), np.zeros((1, 2), np.float32), np.zeros(3, np.float32))
GUARD = Guard(AT_ZERO, state_limit=jnp.asarray(1.0), patience=jnp.asarray(2), embedding_limit=jnp.asarray(1.0))


@pytest.mark.parametrize(
    ("z", "too_far"),
    [
        ([0.999, 0.0], False),  # inside the limit: the found z stays
        ([1.0, 0.0], False),  # on the limit is not beyond it
        ([0.0, -1.001], True),
        ([0.0, 3.5], False),  # near another sub-task than the one it started from
        ([0.0, 2.5], True),
    ],
)
def test_a_z_beyond_the_limit_goes_back_to_where_it_started(z: Any, too_far: bool) -> None:
    found = Inferred(jnp.asarray(z, jnp.float32), jnp.asarray(9.0), jnp.asarray(1, jnp.int32))
    chosen, replaced = GUARD.checked(found, lambda z: jnp.sum(z), CORNERS, "start")
    assert bool(replaced) == too_far
    np.testing.assert_allclose(chosen.z, CORNERS[1] if too_far else z)
    assert float(chosen.score) == (float(jnp.sum(CORNERS[1])) if too_far else 9.0)  # the score of the z in use
    assert int(chosen.start) == 1


def test_or_it_goes_to_the_nearest_sub_task() -> None:
    found = Inferred(jnp.array([0.4, 2.5]), jnp.asarray(9.0), jnp.asarray(1, jnp.int32))
    chosen, replaced = GUARD.checked(found, lambda z: jnp.sum(z), CORNERS, "nearest")
    nearest = int(np.linalg.norm(np.asarray(CORNERS) - [0.4, 2.5], axis=1).argmin())
    assert replaced
    assert int(chosen.start) == nearest != 1
    np.testing.assert_array_equal(chosen.z, CORNERS[nearest])
    assert float(chosen.score) == float(jnp.sum(CORNERS[nearest]))


def test_the_guard_accepts_everything_inside_a_trust_region() -> None:
    adaptation = Adaptation(trust_radius=3.0, step_size=9.0)  # wider than the gaps between the sub-tasks
    found = infer(lambda z: -z[0] - z[1], CORNERS, adaptation)
    guard = GUARD._replace(embedding_limit=embedding_limit(CORNERS, adaptation.trust_radius))
    assert float(nearest_distance(found.z, CORNERS)) == pytest.approx(3.0)
    assert not guard.checked(found, lambda z: jnp.sum(z), CORNERS, "start")[1]


def test_a_short_fault_is_replaced_and_a_long_one_is_not() -> None:
    readings = [0.5, 9.0, 8.0, 7.0, 1.0, 1.001, 0.2]  # the limit is 1, and the patience is two readings
    used, held = [], []
    guarded = GUARD.start(1)
    for reading in readings:
        observations = jnp.array([[0.0, reading]])
        guarded = jax.vmap(GUARD.read)(observations, guarded)
        used.append(float(guarded.used(observations)[0, 1]))
        held.append(bool(guarded.stepped_in[0]))
    np.testing.assert_allclose(used, [0.5, 0.5, 0.5, 7.0, 1.0, 1.0, 0.2])
    assert held == [False, True, True, False, False, True, False]


def test_a_fault_at_the_beginning_is_used_because_nothing_was_believed_yet() -> None:
    observations, guarded = jnp.array([[0.0, 9.0]]), GUARD.start(1)
    for _ in range(5):  # within its patience and beyond it
        guarded = jax.vmap(GUARD.read)(observations, guarded)
        assert not guarded.held[0]
        np.testing.assert_array_equal(guarded.used(observations), observations)


# --- in a policy ---


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(learnable_dataset(), tiny("drop"), out=tmp_path_factory.mktemp("drop") / "run", **SCHEDULE)


@pytest.fixture
def old_run(run: Run, tmp_path: Path) -> Path:
    """A run of an older droprl, which did not save what the data supports."""
    folder = Path(shutil.copytree(run.path, tmp_path / "old"))
    for name in ("support.json", "support.safetensors"):
        (folder / name).unlink()
    return folder


UNRESTRAINED: dict[str, Any] = {"region": "none", "step_size": 3.0, "step_rule": "normalized"}


def inside(policy: LoadedPolicy) -> AdaptivePolicy:
    assert isinstance(policy.policy, AdaptivePolicy)
    return policy.policy


def test_an_ascent_that_runs_away_goes_back_to_its_start(run: Run) -> None:
    free, guarded = (load_policy(run.path, guard=guard, **UNRESTRAINED) for guard in (False, True))
    observations = learnable_dataset().observations[:4]
    free.act(observations)
    guarded.act(observations)
    assert np.all(free.trust().embedding_distance > 3)
    assert free.trust().guarded is None
    assert guarded.trust().guarded.all()
    np.testing.assert_array_equal(guarded.trust().embedding_distance, 0)
    started = np.asarray(free._carry.inferred.start)
    np.testing.assert_array_equal(guarded._carry.inferred.z, np.asarray(inside(free).embeddings)[started])


def test_within_the_limits_a_guarded_policy_acts_like_one_without_a_guard(run: Run) -> None:
    free, guarded = (load_policy(run.path, guard=guard) for guard in (False, True))
    for observations in learnable_dataset().observations[:12].reshape(3, 4, 3):
        np.testing.assert_array_equal(guarded.act(observations), free.act(observations))
        assert not guarded.trust().guarded.any()


def limits(policy: LoadedPolicy) -> Guard:
    guard = inside(policy).guard
    assert guard is not None
    return guard


def test_the_margin_multiplies_the_distance_of_the_datas_own_states(run: Run) -> None:
    policy = load_policy(run.path, guard=True, guard_margin=2.5, guard_patience=7)
    assert policy.support is not None
    assert float(limits(policy).state_limit) == pytest.approx(2.5 * policy.support.limit(0.999))
    assert int(limits(policy).patience) == 7


@pytest.mark.parametrize("rule", ["best", "grad-ada"])
def test_at_a_fault_the_policy_acts_as_at_the_last_state_that_it_believed(run: Run, rule: str) -> None:
    policy = load_policy(run.path, rule=rule, guard=True)
    first, second = learnable_dataset().observations[:2]
    acted = policy.act(first)
    told = policy.trust()
    for _ in range(inside(policy).adaptation.guard_patience):
        np.testing.assert_array_equal(policy.act(FAR), acted)
        assert policy.trust() == told._replace(
            guarded=True, state_share=1.0, state_distance=policy.trust().state_distance
        )
    assert np.abs(policy.act(FAR) - acted).max() > 1e-3  # its patience is at an end
    assert policy.trust().guarded is False
    policy.act(second)
    acted = policy.act(second)
    np.testing.assert_array_equal(policy.act(FAR), acted)  # a believed state restores its patience


def test_a_z_that_is_inferred_at_a_first_fault_does_not_stay(run: Run) -> None:
    policy, alone = (load_policy(run.path, rule="best", guard=True) for _ in range(2))
    first, second = learnable_dataset().observations[:2]
    policy.act(FAR)
    for observation in (first, second):
        np.testing.assert_array_equal(policy.act(observation), alone.act(observation))


def test_an_episode_does_not_depend_on_the_episodes_beside_it(run: Run) -> None:
    policy = load_policy(run.path, guard=True)
    walks = np.random.default_rng(3).normal(scale=4.0, size=(4, 4, 3)).astype(np.float32)
    together, told = [], []
    for observations in walks:
        together.append(policy.act(observations))
        told.append(policy.trust())
    assert 0 < np.mean([t.guarded for t in told]) < 1
    for e in range(4):
        policy.reset()
        for t, observation in enumerate(walks[:, e]):
            np.testing.assert_allclose(policy.act(observation), together[t][e], rtol=1e-4, atol=1e-5)
            alone = policy.trust()
            np.testing.assert_allclose([v[e] for v in told[t]], list(alone), rtol=1e-4, atol=1e-5)


def test_trust_is_of_the_state_and_the_embedding_in_use(run: Run) -> None:
    policy = load_policy(run.path, guard=True, reinference_interval=2, **UNRESTRAINED)
    first, now = learnable_dataset().observations[:2]
    policy.act(first)
    policy.act(now)
    told = policy.trust()
    z, state = policy._carry.inferred.z[0], jnp.asarray(policy.scaling.observations_in(now))
    assert told.score == pytest.approx(float(inside(policy).search.score_at(state)(z)), rel=1e-5)
    distances = np.linalg.norm(np.asarray(inside(policy).embeddings) - z, axis=1)
    assert told.embedding_distance == pytest.approx(distances.min(), abs=1e-6)
    assert policy.support is not None
    assert told.state_distance == pytest.approx(float(policy.support.distance(state)), abs=1e-4)
    assert told.state_share == pytest.approx(float(policy.support.share_nearer(told.state_distance)))
    assert told.guarded is True  # the guard chose z one step ago, and this z is still in use


def test_trust_before_the_first_action_is_refused(run: Run) -> None:
    policy = load_policy(run.path)
    assert "has not acted in this episode: call act() first" in refusal(policy.trust)
    policy.act(FAR)
    policy.reset()
    assert "call act() first" in refusal(policy.trust)


def test_a_policy_without_a_score_reports_only_the_state(run: Run) -> None:
    adaptive = load_policy(run.path)
    fixed = FixedPolicy(inside(adaptive).behavior_policy, inside(adaptive).embeddings[0], sample_actions=False)
    policy = LoadedPolicy(
        fixed, adaptive.algorithm, adaptive.spec, adaptive.scaling, adaptive.origin, "here", adaptive.support
    )
    policy.act(np.stack([FAR, np.zeros(3)]))
    told = policy.trust()
    assert (told.score, told.embedding_distance, told.guarded) == (None, None, None)
    assert told.state_share[0] == 1.0 > told.state_share[1]


def test_a_caller_with_its_own_memory_can_ask_too(run: Run) -> None:
    policy = load_policy(run.path, guard=True)
    carry, _ = policy.step(policy.start(4), np.zeros((4, 3)), KEY)
    observations = np.stack([FAR, np.zeros(3), np.zeros(3), FAR])
    carry, _ = policy.step(carry, observations, KEY)
    assert isinstance(carry, AdaptiveMemory)
    assert policy.trust_after(carry, observations).guarded.tolist() == [True, False, False, True]


# --- how often ---


class FailsAtTimes(CountingTask):
    """Every third observation is far from all data."""

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward, ended, truncated, known = super().step(action)
        fails = self._steps[self._episode] % 3 == 0
        return FAR.astype(np.float64) if fails else np.tanh(observation), reward, ended, truncated, known


def fails_at_times() -> FailsAtTimes:
    return FailsAtTimes(lambda action: float(action[0]), lambda seed: 5 + 3 * (seed % 2), [])


def test_an_evaluation_counts_how_often_the_guard_stepped_in(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    usual: dict[str, Any] = {"env": fails_at_times, "episodes": 4, "n_envs": 4, "progress": False}
    found = evaluate(run, guard=True, **usual)
    assert found.results[0].lengths == [5, 8, 5, 8]
    assert found.results[0].guarded == [1, 2, 1, 2]  # the observation after the third step leads to the fourth action
    assert found.guarded == pytest.approx(6 / 26)
    assert [e.guarded for e in load_evaluations(run)] == [found.guarded]
    print_scores([found])
    assert "The guard of grad-ada stepped in at 23.1 % of the actions." in capsys.readouterr().out
    assert evaluate(run, **usual).guarded is None


def test_policies_that_play_together_are_counted_apart(run: Run) -> None:
    guarded, trusting = (load_policy(run.path, guard=True) for _ in range(2))
    trusting.policy = replace(inside(trusting), guard=limits(trusting)._replace(state_limit=jnp.asarray(1e9)))
    both = rollouts([guarded, trusting], fails_at_times, 2, n_envs=2)
    assert [r.guarded for r in both] == [[1, 2], [0, 0]]


# --- saved and loaded, and files of an older droprl ---


@pytest.mark.parametrize("guard", [True, False])
def test_a_saved_policy_keeps_what_the_data_supports(run: Run, tmp_path: Path, guard: bool) -> None:
    policy = load_policy(run.path, guard=guard, **UNRESTRAINED)
    again = load_policy(policy.save(tmp_path / "policy"))
    assert again.algorithm == policy.algorithm
    for observations in np.random.default_rng(4).normal(scale=4.0, size=(3, 4, 3)):
        np.testing.assert_array_equal(again.act(observations), policy.act(observations))
    for a, b in zip(again.trust(), policy.trust(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_older_run_cannot_tell_and_refuses_the_guard(old_run: Path) -> None:
    policy = load_policy(old_run)
    policy.act(FAR)
    told = policy.trust()
    assert (told.state_distance, told.state_share) == (None, None)
    assert isinstance(told.score, float)
    assert isinstance(told.embedding_distance, float)
    message = refusal(load_policy, old_run, guard=True)
    assert message.startswith(f"{old_run}: ")
    assert "leave out guard=" in message


def test_training_again_adds_the_support_to_an_older_run(old_run: Path, run: Run) -> None:
    fit(learnable_dataset(), tiny("drop"), out=old_run, **SCHEDULE)
    for name in ("support.json", "support.safetensors"):
        assert (old_run / name).read_bytes() == (run.path / name).read_bytes()


def test_an_older_policy_folder_cannot_tell(old_run: Path, tmp_path: Path) -> None:
    folder = load_policy(old_run).save(tmp_path / "policy")
    header = read_sealed(folder / "policy.json")
    assert header.pop("prototypes") == 0
    (folder / "policy.json").write_text(json.dumps(header))  # this is format 1, which had no seal
    policy = load_policy(folder)
    policy.act(FAR)
    assert policy.trust().state_share is None
    assert "leave out guard=" in refusal(load_policy, folder, guard=True)


@pytest.mark.parametrize("prototypes", [10**12, -3, "many", [3], 5])
def test_a_header_with_other_sizes_is_refused(run: Run, tmp_path: Path, prototypes: Any) -> None:
    folder = load_policy(run.path).save(tmp_path / "policy")
    file = folder / "policy.json"
    file.write_bytes(sealed(read_sealed(file) | {"prototypes": prototypes}))
    assert refusal(load_policy, folder).startswith(f"{folder}/policy.")


def test_a_damaged_support_is_named(run: Run, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run.path, tmp_path / "run"))
    file = folder / "support.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert refusal(load_policy, folder).startswith(f"{file}: is damaged")
    (folder / "support.json").write_text("{}")
    assert refusal(load_policy, folder).startswith(f"{folder / 'support.json'}: ")


def test_the_command_line_has_a_flag() -> None:
    def chosen(*words: str) -> dict[str, Any]:
        return parse(EvaluateOptions, "evaluate", ["run", *words]).adaptation.chosen()

    assert chosen() == {}
    assert chosen("--guard") == {"guard": True}
    assert chosen("--guard", "--guard-margin", "2") == {"guard": True, "guard_margin": 2.0}
    assert chosen("--no-guard") == {"guard": False}
    assert "leave one out" in refusal(chosen, "--guard", "--no-guard")


def test_senseless_limits_are_refused(run: Run) -> None:
    assert "guard_margin is" in refusal(load_policy, run.path, guard=True, guard_margin=0.0)
    assert "guard_patience is" in refusal(load_policy, run.path, guard=True, guard_patience=-1)
