"""The rules of test-time adaptation against their definitions, with scores whose maxima are known."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from droprl.adapt import Adaptation, InferenceRule, Inferred, infer
from droprl.adapt.inference import Score
from droprl.networks.actors import BehaviorPolicy
from droprl.policies import AdaptivePolicy, FixedPolicy


def bumps(z: jax.Array) -> jax.Array:
    """A low hill of height 1 at the origin and a steep one of height 2 at (3, 0)."""
    return jnp.exp(-jnp.sum(z**2)) + 2 * jnp.exp(-4 * jnp.sum((z - jnp.array([3.0, 0.0])) ** 2))


# On the low hill's top, on the steep hill's slope (score 0.74), and farther out on it (0.21).
ON_BUMPS = jnp.array([[0.0, 0.0], [2.5, 0.0], [3.0, 0.75]])


def infer_jit(score: Score, embeddings: Any, **settings: Any) -> Inferred:
    adaptation = Adaptation(**{"region": "none", **settings})
    return jax.jit(lambda z: infer(score, z, adaptation))(jnp.asarray(embeddings))


# --- the rules ---


@pytest.mark.parametrize("rule", ["best", "best-ada"])
def test_best_is_the_embedding_with_the_highest_score(rule: InferenceRule) -> None:
    found = infer_jit(bumps, ON_BUMPS[::-1], rule=rule)
    assert int(found.start) == 2
    np.testing.assert_array_equal(found.z, [0, 0])
    assert float(found.score) == pytest.approx(1.0, abs=1e-6)


def test_first_is_the_first_embedding_whatever_the_scores() -> None:
    """Sub-task 0 has the highest return in the data. It does not matter that the score model prefers another one."""
    found = infer_jit(bumps, ON_BUMPS[::-1], rule="first")
    assert int(found.start) == 0
    np.testing.assert_allclose(found.z, [3.0, 0.75])
    assert float(found.score) == pytest.approx(2 * np.exp(-4 * 0.75**2) + np.exp(-(9 + 0.75**2)), rel=1e-5)


def test_grad_climbs_from_the_best_alone_and_grad_ada_from_all() -> None:
    """The best embedding sits on the lower hill: Grad stays there, Grad-Ada finds the higher one."""
    grad, grad_ada = (infer_jit(bumps, ON_BUMPS, rule=r, ascent_steps=100) for r in ("grad", "grad-ada"))
    assert int(grad.start) == 0
    np.testing.assert_allclose(grad.z, [0, 0], atol=1e-2)
    assert int(grad_ada.start) in (1, 2)
    np.testing.assert_allclose(grad_ada.z, [3, 0], atol=1e-2)
    assert float(grad_ada.score) > 1.9 > 1.1 > float(grad.score)


@pytest.mark.parametrize("rule", ["grad", "grad-ada"])
def test_without_ascent_steps_both_are_best(rule: InferenceRule) -> None:
    found, best = (infer_jit(bumps, ON_BUMPS + 0.1, rule=r, ascent_steps=0) for r in (rule, "best"))
    for a, b in zip(found, best, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize(("keep", "z"), [("last", -1.8), ("best", 0.9)])
def test_an_ascent_that_descends(keep: str, z: float) -> None:
    """On −z² a step of size 1.5 goes from z to −2z, and downhill. The paper chooses among the updated embeddings."""
    settings = {"rule": "grad-ada", "ascent_steps": 1, "step_size": 1.5, "keep": keep}
    found = infer_jit(lambda z: -jnp.sum(z**2), [[0.9], [-1.0]], **settings)
    np.testing.assert_allclose(found.z, [z], rtol=1e-6)
    np.testing.assert_allclose(found.score, -(z**2), rtol=1e-6)
    assert int(found.start) == 0


@pytest.mark.parametrize("tolerance", [0.0, 1e-9])
@pytest.mark.parametrize("steps", range(6))
def test_the_best_point_on_the_way_is_kept(steps: int, tolerance: float) -> None:
    """Up a hill in strides of 0.4 and past its top at 1: 0, 0.4, 0.8, 1.2, 1.6, … The point at 0.8 is the highest."""

    def hill(z: jax.Array) -> jax.Array:
        return jnp.where(z[0] < 1.1, 0.0, -9.0) + z[0]

    settings = {"rule": "grad-ada", "ascent_steps": steps, "step_size": 0.4, "tolerance": tolerance}
    found = infer_jit(hill, [[0.0]], **settings)
    expected = min(0.4 * steps, 0.8)
    np.testing.assert_allclose(found.z, [expected], rtol=1e-6)
    np.testing.assert_allclose(found.score, expected, rtol=1e-6)


def test_no_setting_of_the_ascent_makes_it_lose_to_its_start() -> None:
    """Scores that no step size suits: with any K and any stride, z* scores at least as much as the best z_n."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        waves, phases = rng.normal(size=(2, 3, 4)) * 5, rng.uniform(0, 6, 4)

        def score(z: jax.Array, waves: Any = waves, phases: Any = phases) -> jax.Array:
            return jnp.sum(jnp.sin(z @ waves[0] + phases) * jnp.cos(z @ waves[1]))

        embeddings = jnp.asarray(rng.normal(size=(5, 3)))
        settings = {"ascent_steps": int(rng.integers(1, 9)), "step_size": float(rng.uniform(0.1, 5))}
        if rng.uniform() < 0.5:
            settings["halve_every"] = 2
        found = infer_jit(score, embeddings, rule="grad-ada", **settings)
        assert float(found.score) >= float(jnp.max(jax.vmap(score)(embeddings)))
        np.testing.assert_allclose(found.score, score(found.z), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("starts", "chosen"), [(1, 0), (2, 1), (9, 2), (None, 2)])
def test_only_the_most_promising_starts_climb(starts: int | None, chosen: int) -> None:
    """From start to start, scores before the climb fall and scores after it rise: the last start that climbs wins."""
    peaks = jnp.array([0.0, 10.0, 20.0])
    heights = jnp.array([3.0, 4.0, 5.0])

    def hills(z: jax.Array) -> jax.Array:
        return jnp.sum(heights * jnp.exp(-((z[0] - peaks) ** 2)))

    # The hill of height 3 starts at its peak. Those of heights 4 and 5 start where they are 2 and 1 high.
    offset = jnp.array([0.0, jnp.sqrt(jnp.log(4.0 / 2.0)), jnp.sqrt(jnp.log(5.0 / 1.0))])
    found = infer_jit(
        hills, (peaks + offset)[:, None], rule="grad-ada", starts=starts, ascent_steps=100, step_size=0.05
    )
    assert int(found.start) == chosen
    assert float(found.z[0]) == pytest.approx(float(peaks[chosen]), abs=1e-2)


def test_settings_out_of_range_are_refused() -> None:
    for wrong in ({"ascent_steps": -1}, {"reinference_interval": 0}, {"starts": 0}):
        with pytest.raises(ValueError, match=r"it must be (at least|from|above)"):
            Adaptation(**wrong)  # type: ignore[arg-type]


# --- the ascent ---


def test_plain_steps_on_a_quadratic_have_a_closed_form() -> None:
    """∇f = A (c − z), so z_K = c + (I − ηA)^K (z_0 − c): equation 9 by hand."""
    a, c, start = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([0.3, -0.7]), np.array([1.0, 2.0])
    found = infer_jit(
        lambda z: -0.5 * (z - c) @ jnp.asarray(a) @ (z - c), start[None], rule="grad", ascent_steps=7, step_size=0.2
    )
    expected = c + np.linalg.matrix_power(np.eye(2) - 0.2 * a, 7) @ (start - c)
    np.testing.assert_allclose(found.z, expected, rtol=1e-5)


@pytest.mark.parametrize("slope", [1e-3, 1e3])
def test_a_normalized_step_has_the_same_length_on_any_slope(slope: float) -> None:
    found = infer_jit(
        lambda z: slope * (3 * z[0] - 4 * z[1]),
        [[1.0, 1.0]],
        rule="grad",
        ascent_steps=5,
        step_size=0.1,
        step_rule="normalized",
    )
    np.testing.assert_allclose(found.z, [1 + 5 * 0.1 * 0.6, 1 - 5 * 0.1 * 0.8], rtol=1e-4)


def test_a_normalized_step_on_flat_ground_does_not_move() -> None:
    found = infer_jit(lambda z: 0.0 * jnp.sum(z), [[1.0, 2.0]], rule="grad", step_rule="normalized")
    np.testing.assert_array_equal(found.z, [1, 2])


def ascent_by_hand(gradient: Any, z: np.ndarray, embeddings: np.ndarray, settings: dict[str, Any]) -> np.ndarray:
    """K steps in NumPy. A step that leaves the region is put back into it."""
    start = z
    for _ in range(settings["ascent_steps"]):
        step = gradient(z)
        if settings["step_rule"] == "normalized":
            step = step / np.linalg.norm(step)
        z = z + settings["step_size"] * step
        if settings["region"] == "box":
            z = np.minimum(np.maximum(z, embeddings.min(axis=0)), embeddings.max(axis=0))
        if settings["region"] == "trust" and np.linalg.norm(z - start) > settings["trust_radius"]:
            z = start + settings["trust_radius"] * (z - start) / np.linalg.norm(z - start)
    return z


@pytest.mark.parametrize("region", ["trust", "box", "none"])
@pytest.mark.parametrize("step_rule", ["plain", "normalized"])
def test_the_region_is_kept_at_every_step(region: str, step_rule: str) -> None:
    """The slope of this score turns as z moves. So the next step depends on where the last one was put back."""
    embeddings = np.array([[0.0, 0.2], [0.5, -0.4], [-0.3, 0.5]])
    weights = np.array([1.0, 2.0])

    def score(z: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(weights * z)) + z[0] * z[1]

    def gradient(z: np.ndarray) -> np.ndarray:
        return weights * np.cos(weights * z) + z[::-1]

    for ascent_steps in (1, 12):
        settings = {"region": region, "step_rule": step_rule, "ascent_steps": ascent_steps, "step_size": 0.2}
        settings["trust_radius"] = 0.35
        found = infer_jit(score, embeddings, rule="grad-ada", **settings)
        candidates = [ascent_by_hand(gradient, z, embeddings, settings) for z in embeddings]
        best = int(np.argmax([float(score(jnp.asarray(z))) for z in candidates]))
        assert int(found.start) == best
        np.testing.assert_allclose(found.z, candidates[best], rtol=1e-4, atol=1e-5)


def test_a_trust_region_ends_a_long_climb_at_its_edge() -> None:
    found = infer_jit(
        lambda z: z[0] + z[1], [[1.0, 1.0]], rule="grad", region="trust", trust_radius=0.5, ascent_steps=50
    )
    np.testing.assert_allclose(found.z, 1 + 0.5 / np.sqrt(2), rtol=1e-5)


# --- a policy that adapts: β(s, z) = 2z and f(s, a, z) = −(a − s)², so that z*(s) = s / 2 and the action is s ---


class Doubling(eqx.Module):
    def encode(self, observation: jax.Array) -> jax.Array:
        return observation

    def mode(self, encoded: jax.Array, z: jax.Array) -> jax.Array:
        return 2.0 * z


class Nearness(eqx.Module):
    price: float = 0.0  # large z cost this: it tells f's own slope in z from its slope through the action

    def shared(self, observation: jax.Array, action: jax.Array, z: jax.Array) -> jax.Array:
        return -jnp.sum((action - observation) ** 2) - self.price * jnp.sum(z**2)


Z = jnp.array([[-2.0], [0.0], [1.0], [3.0]])  # the actions of the sub-tasks are −4, 0, 2, 6


def adaptive(rule: InferenceRule, interval: int = 1, price: float = 0.0, **settings: Any) -> AdaptivePolicy:
    exact = {"ascent_steps": 1, "step_size": 0.125, "region": "none"}  # one Newton step: f'' = −8
    adaptation = Adaptation(rule=rule, reinference_interval=interval, **{**exact, **settings})
    return AdaptivePolicy(Doubling(), Nearness(price), Z, adaptation, sample_actions=False)  # type: ignore[arg-type]


step = eqx.filter_jit(lambda policy, carry, s: policy.act(carry, s, jax.random.key(0)))


def play(policy: AdaptivePolicy, states: list[float]) -> list[float]:
    """The actions of one episode through these states."""
    carry, actions = policy.start(1), []
    for s in states:
        carry, action = step(policy, carry, jnp.array([[s]]))
        actions.append(float(action[0, 0]))
    return actions


STATES = [1.6, -3.0, 5.0, 0.4, 9.0, -0.5, 2.2]
NEAREST = [2.0, -4.0, 6.0, 0.0, 6.0, 0.0, 2.0]  # for each state, the sub-task's action that is nearest to it


@pytest.mark.parametrize("interval", [1, 2])
def test_best_and_grad_keep_the_embedding_of_the_initial_state(interval: int) -> None:
    assert play(adaptive("best", interval), STATES) == [2.0] * 7
    np.testing.assert_allclose(play(adaptive("grad", interval), STATES), [1.6] * 7, rtol=1e-5)


def test_first_is_played_at_every_state() -> None:
    policy = adaptive("first")
    assert play(policy, STATES) == [-4.0] * 7
    assert (
        policy.act(policy.start(7), jnp.array(STATES)[:, None], jax.random.key(0))[0].inferred.start.tolist() == [0] * 7
    )


@pytest.mark.parametrize("interval", [1, 3, 100])
def test_the_adaptive_rules_infer_again_after_every_interval(interval: int) -> None:
    inferred_at = [t - t % interval for t in range(7)]
    assert play(adaptive("best-ada", interval), STATES) == [NEAREST[t] for t in inferred_at]
    climbed = play(adaptive("grad-ada", interval), STATES)
    np.testing.assert_allclose(climbed, [STATES[t] for t in inferred_at], atol=1e-5)


def test_the_slope_in_z_goes_through_the_action_and_through_the_score() -> None:
    """f(s, β(s, z), z) = −(2z − s)² − p z²: from z = 1 at s = 1.6 a step of η is η · (−4 (2 − 1.6) − 2p)."""
    found = adaptive("grad", price=0.25, step_size=0.1).search.infer(jnp.array([1.6]))
    assert float(found.z[0]) == pytest.approx(1 + 0.1 * (-4 * 0.4 - 0.5), rel=1e-5)


def test_the_carry_says_which_sub_task_z_came_from() -> None:
    carry, _ = step(adaptive("best-ada"), adaptive("best-ada").start(2), jnp.array([[5.0], [-9.0]]))
    assert carry.inferred.start.tolist() == [3, 0]
    assert carry.inferred.z.tolist() == [[3.0], [-2.0]]
    np.testing.assert_allclose(carry.inferred.score, [-1.0, -25.0])


@pytest.mark.parametrize("rule", ["first", "best", "grad", "best-ada", "grad-ada"])
def test_episodes_in_a_batch_keep_their_own_clocks(rule: InferenceRule) -> None:
    """Three episodes side by side. Two of them begin again, at steps 2 and 3. Each plays as if it were alone."""
    policy = adaptive(rule, interval=3)
    rng = np.random.default_rng(0)
    states = rng.uniform(-5, 7, (8, 3))
    begins = [[0], [0, 2], [0, 3]]
    carry, fresh, found = policy.start(3), policy.start(3), []
    for t in range(8):
        anew = np.array([t in b for b in begins])
        mark = lambda old, new, anew=anew: jnp.where(anew.reshape(-1, *[1] * (old.ndim - 1)), new, old)  # noqa: E731
        carry, actions = step(policy, jax.tree.map(mark, carry, fresh), jnp.asarray(states[t][:, None], jnp.float32))
        found.append(np.asarray(actions)[:, 0])
    for i, b in enumerate(begins):
        parts = np.split(states[:, i], b[1:])
        alone = np.concatenate([play(policy, part.tolist()) for part in parts])
        np.testing.assert_allclose(np.array(found)[:, i], alone, atol=1e-5)


def test_sampling_with_a_key_for_each_episode_does_not_see_the_other_episodes() -> None:
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: BehaviorPolicy(3, 2, 1, 4, (1, 1), "gaussian", jax.random.key(0)))
    beta = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), shapes)
    policy = FixedPolicy(beta, jnp.ones(1), sample_actions=True)
    act = eqx.filter_jit(lambda observations, keys: policy.act((), observations, keys)[1])
    observations, keys = jnp.zeros((3, 3)), jax.random.split(jax.random.key(1), 3)
    together = np.asarray(act(observations, keys))
    alone = np.concatenate([act(observations[i : i + 1], keys[i : i + 1]) for i in range(3)])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    with_one_key = np.asarray(act(observations, keys[0]))
    for rows in (together, with_one_key):  # the same state in each row, but never the same noise
        assert len(np.unique(rows, axis=0)) == 3


# --- doing less ---


def line(z: jax.Array) -> jax.Array:
    """Rises by 1 per unit. An ascent step of size 0.1 gains 0.1 everywhere, so the order of starts never changes."""
    return z[0]


def test_halving_drops_the_lower_half_and_spends_all_steps_on_the_rest() -> None:
    """Two starts stand on the higher hill, but low on it. One of them wins, whether halving begins early or late."""
    early, late = (infer_jit(bumps, ON_BUMPS, ascent_steps=100, starts=None, halve_every=h) for h in (1, 30))
    np.testing.assert_allclose(early.z, [3.0, 0.0], atol=1e-2)  # 3 starts → 2 → 1
    np.testing.assert_allclose(late.z, [3.0, 0.0], atol=1e-2)
    flat = infer_jit(line, [[0.0], [0.5], [1.0], [0.7]], ascent_steps=8, starts=None, halve_every=3)
    assert int(flat.start) == 2
    np.testing.assert_allclose(flat.z, [1.0 + 8 * 0.1], rtol=1e-6)


def test_halving_can_give_up_the_start_that_would_have_won() -> None:
    """The price of halving: after one step, the start far out on the higher hill is still the lowest of the three."""
    starts = jnp.array([[0.0, 0.0], [0.3, 0.0], [3.0, 0.9]])
    every = infer_jit(bumps, starts, ascent_steps=100, starts=None)
    np.testing.assert_allclose(every.z, [3.0, 0.0], atol=1e-2)
    halved = infer_jit(bumps, starts, ascent_steps=100, starts=None, halve_every=1)
    np.testing.assert_allclose(halved.z, [0.0, 0.0], atol=1e-2)


def test_ascent_stops_when_no_start_rises_any_more() -> None:
    """On −z² steps of size 0.25 halve z: for the start at 1, step t gains 3/4 · 4^(1−t). This gain is known after step
    t + 1. If it is too small, the ascent stops there."""
    for tolerance, taken in ((1.0, 2), (0.2, 3), (0.15, 4), (0.01, 6)):
        reached = infer_jit(
            lambda z: -jnp.sum(z**2), [[1.0], [0.1]], step_size=0.25, starts=None, ascent_steps=10, tolerance=tolerance
        )
        np.testing.assert_allclose(reached.z, [0.1 * 0.5**taken], rtol=1e-5)


def test_a_warm_start_goes_on_from_the_last_embedding_inside_its_own_region() -> None:
    adaptation = Adaptation(region="trust", trust_radius=0.5, ascent_steps=2, warm_start=True)
    last = Inferred(jnp.array([0.4]), jnp.array(0.0), jnp.array(0, jnp.int32))
    go_on = jax.jit(lambda z, last: infer(line, z, adaptation, last))
    found = go_on(jnp.array([[0.0], [-1.0]]), last)
    np.testing.assert_allclose(found.z, [0.5], rtol=1e-5)  # 0.4 + 2 · 0.1, but no farther than 0.5 from z_0
    assert int(found.start) == 0
    cold = infer(line, jnp.array([[0.0], [-1.0]]), adaptation)
    np.testing.assert_allclose(cold.z, [0.2], rtol=1e-5)


@pytest.mark.parametrize(
    "settings", [{}, {"starts": None}, {"halve_every": 2}, {"tolerance": 1e-6}, {"ascent_steps": 30}]
)
def test_the_search_for_a_gpu_finds_the_same(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, derivatives are computed in forward mode, and a few steps are taken without a loop."""
    embeddings = jnp.asarray(np.random.default_rng(0).normal(size=(6, 2)), jnp.float32)
    adaptation = Adaptation(step_size=0.05, **settings)
    expected = infer(bumps, embeddings, adaptation)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    found = infer(bumps, embeddings, adaptation)
    assert not np.allclose(found.z, embeddings[found.start])
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_a_nan_score_gives_a_nan_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    found = infer(lambda z: jnp.where(z[0] < 9, jnp.nan, z[0]), ON_BUMPS, Adaptation())
    assert np.isnan(found.z).all()
