"""How sure a policy is, against brute force; and the guard, which must step in exactly where a limit is crossed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from builders import make_dataset
from training import learnable_dataset, refusal, tiny

from droprl import load_policy
from droprl.adapt import AdaptivePolicy, Inferred
from droprl.adapt.guard import Guard, embedding_limit, make_guard, nearest_embedding
from droprl.adapt.policy import Episode
from droprl.cli.evaluate import EvaluateOptions
from droprl.cli.options import parse
from droprl.data.scaling import fit_scaling
from droprl.data.support import LEVELS, SMALLEST_VARIANCE, Support, decorrelation, farthest_points, fit_support
from droprl.policy import LoadedPolicy
from droprl.train import Run, fit

SCHEDULE: dict[str, Any] = {"steps": 20, "progress": False}
FAR = np.full(3, 50.0, np.float32)
KEY = jax.random.key(0)


def correlated_states(n: int = 200, size: int = 4) -> np.ndarray:
    rng = np.random.default_rng(1)
    return rng.normal(size=(n, size)) @ rng.normal(size=(size, size))


# --- what the data supports ---


def test_decorrelated_distances_are_mahalanobis_distances() -> None:
    states = correlated_states()
    covariance = np.cov(states.T, bias=True)
    covariance += SMALLEST_VARIANCE * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    offsets = states[1:] - states[0]
    expected = np.sqrt(np.sum(offsets * np.linalg.solve(covariance, offsets.T).T, axis=1))
    np.testing.assert_allclose(np.linalg.norm(offsets @ decorrelation(states), axis=1), expected, rtol=1e-8)


def test_a_sensor_that_never_changes_leaves_distances_finite() -> None:
    states = np.column_stack([correlated_states(size=2), np.zeros(200)])
    assert np.isfinite(decorrelation(states)).all()
    assert np.isfinite(decorrelation(np.zeros((5, 3)))).all()
    assert np.isfinite(decorrelation(correlated_states(size=1))).all()


def test_each_prototype_is_the_farthest_from_those_before_it() -> None:
    states = correlated_states(60)
    chosen = farthest_points(states, 20)
    assert chosen[0] == 0
    for k in range(1, 20):
        nearest = [min(float(np.linalg.norm(s - states[c])) for c in chosen[:k]) for s in states]
        assert chosen[k] == int(np.argmax(nearest))
    np.testing.assert_array_equal(np.sort(farthest_points(states, 999)), np.arange(60))


def test_levels_are_quantiles_of_the_distances_to_other_episodes() -> None:
    data = learnable_dataset()
    scaling = fit_scaling(data)
    support = fit_support(data, scaling, n_prototypes=30)
    decorrelated = np.asarray(scaling.observations_in(data.observations)) @ support.basis
    rows = [int(np.argmin(np.linalg.norm(decorrelated - p, axis=1))) for p in np.asarray(support.prototypes)]
    distances = [
        min(np.linalg.norm(decorrelated[i] - decorrelated[r]) for r in rows if r // 20 != i // 20)
        for i in range(data.n_steps)
    ]
    np.testing.assert_allclose(support.levels, np.quantile(distances, np.linspace(0, 1, LEVELS)), rtol=1e-4)


def test_one_episode_supports_itself() -> None:
    data = make_dataset([(30, "timeout")])
    support = fit_support(data, fit_scaling(data))
    np.testing.assert_allclose(support.levels, 0, atol=1e-3)
    assert float(support.distance(jnp.full(2, 9.0))) > 5


@pytest.fixture(scope="module")
def support() -> Support:
    data = learnable_dataset()
    return fit_support(data, fit_scaling(data), n_prototypes=40)


def test_distance_is_that_to_the_nearest_prototype(support: Support) -> None:
    for observation in np.random.default_rng(2).normal(size=(10, 3)).astype(np.float32):
        expected = min(np.linalg.norm(observation @ support.basis - p) for p in np.asarray(support.prototypes))
        assert float(support.distance(observation)) == pytest.approx(expected, rel=1e-5)


def test_the_share_counts_the_levels_that_lie_nearer(support: Support) -> None:
    levels = np.asarray(support.levels)
    for distance in (0.0, levels[0], levels[500], (levels[500] + levels[501]) / 2, levels[-1], 1e9):
        assert float(support.share_nearer(jnp.asarray(distance))) == pytest.approx(np.sum(levels < distance) / LEVELS)
    assert float(support.share_nearer(jnp.asarray(0.0))) == 0
    assert float(support.share_nearer(jnp.asarray(1e9))) == 1


@pytest.mark.parametrize("quantile", [0.01, 0.5, 0.9, 0.99, 0.999, 1.0])
def test_beyond_the_limit_is_where_the_share_exceeds_the_quantile(support: Support, quantile: float) -> None:
    near = [np.nextafter(level, np.float32(s)) for level in np.asarray(support.levels) for s in (0, 99)]
    for distance in (*np.asarray(support.levels), *near, np.float32(1e9)):
        assert (distance > support.limit(quantile)) == (float(support.share_nearer(distance)) > quantile)


# --- the guard ---

CORNERS = jnp.array([[0.0, 0.0], [2.0, 0.0], [0.0, 4.0]])


def test_the_embeddings_limit_is_half_the_way_to_the_next_one() -> None:
    assert float(embedding_limit(jnp.array([[0.0], [1.0], [3.0], [7.0]]))) == 0.5 * np.median([1, 1, 2, 4])
    assert float(embedding_limit(CORNERS)) == 0.5 * np.median([2, 2, 4])
    assert float(embedding_limit(jnp.ones((1, 5)))) == 0


def test_the_nearest_embedding_is_the_nearest() -> None:
    number, distance = nearest_embedding(jnp.array([0.5, 3.0]), CORNERS)
    assert int(number) == 2
    assert float(distance) == pytest.approx(np.hypot(0.5, 1.0))


def checked(support: Support, z: Any, state: Any, held: Any) -> tuple[Inferred, bool]:
    guard = Guard(support, jnp.asarray(1.0), jnp.asarray(1.0))
    found = Inferred(jnp.asarray(z, jnp.float32), jnp.asarray(9.0), jnp.asarray(1, jnp.int32))
    chosen, steps_in = guard.checked(jnp.asarray(state), found, jnp.asarray(held), lambda z: jnp.sum(z), CORNERS)
    return chosen, bool(steps_in)


@pytest.mark.parametrize(
    ("z", "state_distance", "expected"),
    [
        ([0.999, 0.0], 0.0, None),  # inside both limits: what was found stands
        ([1.0, 0.0], 0.999, None),  # on a limit is not beyond it
        ([0.0, -1.001], 0.0, 0),  # z beyond: the nearest z_n
        ([0.0, 2.5], 0.0, 2),
        ([0.999, 0.0], 1.001, 1),  # the state beyond: the z_n nearest to what was held
        ([0.0, 2.5], 1.001, 1),  # both
    ],
)
def test_it_steps_in_exactly_beyond_a_limit(z: Any, state_distance: float, expected: int | None) -> None:
    only = Support(np.eye(2, dtype=np.float32), np.zeros((1, 2), np.float32), np.zeros(3, np.float32))
    chosen, steps_in = checked(only, z, [0.0, state_distance], held=[2.5, 0.0])
    assert steps_in == (expected is not None)
    if expected is None:
        np.testing.assert_allclose(chosen.z, z)
        assert (float(chosen.score), int(chosen.start)) == (9.0, 1)
    else:
        np.testing.assert_array_equal(chosen.z, CORNERS[expected])
        assert float(chosen.score) == float(jnp.sum(CORNERS[expected]))  # of the z that is used
        assert int(chosen.start) == expected


# --- in a policy ---


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(learnable_dataset(), tiny("drop"), out=tmp_path_factory.mktemp("drop") / "run", **SCHEDULE)


@pytest.fixture(scope="module")
def bc_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(learnable_dataset(), tiny("bc"), out=tmp_path_factory.mktemp("bc") / "run", **SCHEDULE)


@pytest.fixture
def old_run(run: Run, tmp_path: Path) -> Path:
    """As it was before this was kept."""
    folder = Path(shutil.copytree(run.path, tmp_path / "old"))
    for name in ("support.json", "support.safetensors"):
        (folder / name).unlink()
    return folder


UNRESTRAINED: dict[str, Any] = {"region": "none", "step_size": 3.0, "step_rule": "normalized"}


def inside(policy: LoadedPolicy) -> AdaptivePolicy:
    assert isinstance(policy.policy, AdaptivePolicy)
    return policy.policy


@pytest.mark.parametrize("rule", ["grad", "grad-ada"])
def test_an_ascent_that_runs_away_ends_at_the_nearest_embedding(run: Run, rule: str) -> None:
    free, held = (load_policy(run.path, rule=rule, guard=guard, **UNRESTRAINED) for guard in (False, True))
    observations = learnable_dataset().observations[:5]
    free.act(observations)
    held.act(observations)
    assert np.all(free.trust().embedding_distance > 3)
    assert free.trust().guarded is None
    assert held.trust().guarded.all()
    np.testing.assert_array_equal(held.trust().embedding_distance, 0)
    embeddings = np.asarray(inside(free).embeddings)
    ran_to, kept = (np.asarray(p._carry.inferred.z) for p in (free, held))
    nearest = np.argmin(np.linalg.norm(ran_to[:, None] - embeddings[None], axis=2), axis=1)
    np.testing.assert_array_equal(kept, embeddings[nearest])


@pytest.mark.parametrize("rule", ["best", "grad", "best-ada", "grad-ada"])
def test_within_the_limits_a_guarded_policy_acts_as_it_would_without(run: Run, rule: str) -> None:
    free, held = (load_policy(run.path, rule=rule, guard=guard, guard_quantile=1.0) for guard in (False, True))
    assert float(make_guard(*_parts(held), 1.0).embedding_limit) > 0.25  # the trust region's radius
    for observations in learnable_dataset().observations[:12].reshape(3, 4, 3):
        np.testing.assert_array_equal(held.act(observations), free.act(observations))
        assert not held.trust().guarded.any()


def _parts(policy: LoadedPolicy) -> tuple[Support, jax.Array]:
    assert policy.support is not None
    return policy.support, inside(policy).embeddings


def test_at_a_state_unlike_the_data_the_episode_stays_with_its_sub_task(run: Run) -> None:
    policy = load_policy(run.path, guard=True)
    policy.act(learnable_dataset().observations[0])
    before = policy._carry.inferred.z[0]
    assert policy.trust().guarded is False
    policy.act(FAR)
    after = policy.trust()
    assert (after.guarded, after.state_share, after.embedding_distance) == (True, 1.0, 0.0)
    number, _ = nearest_embedding(before, inside(policy).embeddings)
    np.testing.assert_array_equal(policy._carry.inferred.z[0], inside(policy).embeddings[number])
    policy.act(learnable_dataset().observations[1])
    assert policy.trust().guarded is False  # and goes on adapting when the data supports it again


def test_an_episode_does_not_notice_those_beside_it(run: Run) -> None:
    policy = load_policy(run.path, guard=True)
    walks = np.random.default_rng(3).normal(scale=2.0, size=(4, 6, 3)).astype(np.float32)
    together, told = [], []
    for observations in walks:
        together.append(policy.act(observations))
        told.append(policy.trust())
    assert 0 < np.mean([t.guarded for t in told]) < 1
    for e in range(6):
        policy.reset()
        for t, observation in enumerate(walks[:, e]):
            np.testing.assert_allclose(policy.act(observation), together[t][e], rtol=1e-4, atol=1e-5)
            alone = policy.trust()
            np.testing.assert_allclose([v[e] for v in told[t]], list(alone), rtol=1e-4, atol=1e-5)


def test_between_two_inferences_the_guard_says_what_it_said(run: Run) -> None:
    policy = load_policy(run.path, guard=True, reinference_interval=2)
    near = learnable_dataset().observations[0]
    said = []
    for observation in (FAR, near, near, FAR):
        policy.act(observation)
        said.append(policy.trust().guarded)
    assert said == [True, True, False, False]


def test_trust_is_of_the_state_and_the_embedding_in_use(run: Run) -> None:
    policy = load_policy(run.path, rule="grad")
    first, now = learnable_dataset().observations[:2]
    policy.act(first)
    policy.act(now)
    told = policy.trust()
    z, state = policy._carry.inferred.z[0], jnp.asarray(policy.scaling.observations_in(now))
    assert told.score == pytest.approx(float(inside(policy).score_at(state)(z)), rel=1e-5)
    distances = np.linalg.norm(np.asarray(inside(policy).embeddings) - z, axis=1)
    assert told.embedding_distance == pytest.approx(distances.min(), abs=1e-6)
    assert policy.support is not None
    assert told.state_distance == pytest.approx(float(policy.support.distance(state)), abs=1e-4)
    assert told.state_share == pytest.approx(float(policy.support.share_nearer(told.state_distance)))
    assert told.guarded is None


def test_without_an_action_there_is_nothing_to_trust(run: Run) -> None:
    policy = load_policy(run.path)
    assert "has not acted in this episode: call act() first" in refusal(policy.trust)
    policy.act(FAR)
    policy.reset()
    assert "call act() first" in refusal(policy.trust)


def test_a_policy_without_a_score_tells_of_the_state_alone(bc_run: Run) -> None:
    policy = load_policy(bc_run.path)
    policy.act(np.stack([FAR, np.zeros(3)]))
    told = policy.trust()
    assert (told.score, told.embedding_distance, told.guarded) == (None, None, None)
    assert told.state_share[0] == 1.0 > told.state_share[1]


def test_memory_kept_by_the_caller_can_be_asked_too(run: Run) -> None:
    policy = load_policy(run.path, guard=True)
    carry, _ = policy.step(policy.start(2), np.stack([FAR, np.zeros(3)]), KEY)
    assert isinstance(carry, Episode)
    told = policy.trust_after(carry, np.stack([FAR, np.zeros(3)]))
    assert told.guarded.tolist() == [True, False]


# --- saved and loaded, and from before it was kept ---


@pytest.mark.parametrize("guard", [True, False])
def test_a_saved_policy_keeps_what_the_data_supports(run: Run, tmp_path: Path, guard: bool) -> None:
    policy = load_policy(run.path, guard=guard, guard_quantile=0.9, trust_radius=3.0, step_size=1.0)
    again = load_policy(policy.save(tmp_path / "policy"))
    assert again.algorithm == policy.algorithm
    observations = np.random.default_rng(4).normal(scale=2.0, size=(8, 3))
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
    assert "leave out --guard" in message


def test_training_again_adds_it_to_an_older_run(old_run: Path, run: Run) -> None:
    fit(learnable_dataset(), tiny("drop"), out=old_run, **SCHEDULE)
    for name in ("support.json", "support.safetensors"):
        assert (old_run / name).read_bytes() == (run.path / name).read_bytes()


def test_an_older_policy_folder_cannot_tell(old_run: Path, tmp_path: Path) -> None:
    folder = load_policy(old_run).save(tmp_path / "policy")
    header = json.loads((folder / "policy.json").read_text())
    assert header.pop("prototypes") == 0
    (folder / "policy.json").write_text(json.dumps(header))
    policy = load_policy(folder)
    policy.act(FAR)
    assert policy.trust().state_share is None
    assert "leave out --guard" in refusal(load_policy, folder, guard=True)


@pytest.mark.parametrize("prototypes", [10**12, -3, "many", [3], 5])
def test_a_header_with_other_sizes_is_refused(run: Run, tmp_path: Path, prototypes: Any) -> None:
    folder = load_policy(run.path).save(tmp_path / "policy")
    header = json.loads((folder / "policy.json").read_text())
    (folder / "policy.json").write_text(json.dumps(header | {"prototypes": prototypes}))
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
    assert chosen("--guard", "--guard-quantile", "0.9") == {"guard": True, "guard_quantile": 0.9}


def test_senseless_limits_are_refused(run: Run) -> None:
    for quantile in (0.0, 1.5, -1.0):
        assert "guard_quantile is" in refusal(load_policy, run.path, guard=True, guard_quantile=quantile)
