"""Decision Transformer: windows that stay inside their episode, a causal network, and a policy with a memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from builders import make_dataset
from training import learnable_dataset, refusal, tiny

from droprl import load_policy
from droprl.adapt import HearsRewards, tell_rewards
from droprl.algorithms.diagnostics import return_check
from droprl.algorithms.dt import DT, Context, DTState, Transformer, TransformerPolicy, _drop
from droprl.data import Dataset, from_arrays
from droprl.data.transitions import Spec
from droprl.data.windows import Window, Windows
from droprl.policy import LoadedPolicy, Origin
from droprl.rollout import play_episode, rollout
from droprl.select.fqe import estimate_return
from droprl.train import fit

K = 4
SPEC = Spec(observation_size=2, action_size=2, n_sub_tasks=1)
# Episodes of 3, 6, 1 and 5 steps: shorter than K, longer, a single step, and cut short by the end of the file.
LAYOUT: Any = [(3, "terminal"), (6, "timeout"), (1, "terminal"), (5, "cut")]
LONGEST = 6
OPEN = DT(context=K, width=8, depth=2, heads=2, dropout=0.3, learning_rate=0.1, warmup_steps=4, batch_size=5)


@cache
def dataset() -> Dataset:
    return make_dataset(LAYOUT)


@cache
def dt() -> DT:
    return OPEN.resolve(dataset())


@cache
def table() -> Windows:
    return dt().prepare(dataset()).transitions


def drawn(seed: int = 0) -> Transformer:
    """Every weight drawn here, large enough for every token to matter."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(lambda: dt().init(jax.random.key(0), SPEC).transformer)
    return jax.tree.map(lambda leaf: jnp.asarray(0.5 * rng.normal(size=leaf.shape), leaf.dtype), shapes)


@jax.jit
def predicted(transformer: Transformer, window: Window) -> jax.Array:
    return transformer(window)


@cache
def loss_and_gradient(algorithm: DT) -> Any:
    return jax.jit(jax.value_and_grad(algorithm.loss))


def one(windows: Window, i: int = 0) -> Window:
    return jax.tree.map(lambda leaf: leaf[i], windows)


# --- windows ---


def test_windows_are_as_by_hand_at_every_row() -> None:
    """Straight from the definition: walk back from the row until the episode's first step or K steps."""
    data, windows = dataset(), table().take(jnp.arange(dataset().n_steps))
    scaling, scale = dt().prepare(data).scaling, dt().return_scale
    row = 0
    for length, _ in LAYOUT:
        for last in range(length):
            steps = list(range(max(0, last - K + 1), last + 1))
            found = one(windows, row + last)
            np.testing.assert_array_equal(found.valid, [False] * (K - len(steps)) + [True] * len(steps))
            inside = np.asarray(found.valid)
            rows = [row + step for step in steps]
            np.testing.assert_array_equal(np.asarray(found.steps)[inside], steps)
            np.testing.assert_allclose(
                np.asarray(found.observations)[inside], scaling.observations_in(data.observations[rows]), rtol=1e-6
            )
            np.testing.assert_allclose(
                np.asarray(found.actions)[inside], scaling.actions_in(data.actions[rows]), rtol=1e-5, atol=1e-6
            )
            to_go = [data.rewards[r : row + length].astype(float).sum() / scale for r in rows]
            np.testing.assert_allclose(np.asarray(found.returns_to_go)[inside], to_go, rtol=1e-5)
        row += length


def test_not_even_padding_holds_anything_of_another_episode() -> None:
    """The observations of this data begin with the number of their episode."""
    data, prepared = dataset(), dt().prepare(dataset())
    windows = table().take(jnp.arange(data.n_steps))
    shown = np.asarray(windows.observations) * prepared.scaling.observation_std + prepared.scaling.observation_mean
    np.testing.assert_allclose(shown[:, :, 0], np.repeat(data.observations[:, :1], K, axis=1), atol=1e-5)


def test_every_row_is_drawn_as_the_last_of_a_window() -> None:
    windows = jax.jit(Windows.sample, static_argnums=2)(table(), jax.random.key(0), 600)
    places = np.round(np.asarray(windows.observations[:, -1]), 3)
    assert len(np.unique(places, axis=0)) == dataset().n_steps
    assert windows.valid.shape == (600, K)
    assert np.asarray(windows.valid[:, -1]).all()


# --- the network ---


def test_a_later_token_changes_no_earlier_prediction() -> None:
    """Token by token: what stands at or before it in the order R̂, s, a may notice, what stands before it may not."""
    transformer, window = drawn(), one(table().take(jnp.array([8])))
    assert np.asarray(window.valid).all()
    before = np.asarray(predicted(transformer, window))
    for step in range(K):
        for name, first_to_notice in (("returns_to_go", step), ("observations", step), ("actions", step + 1)):
            values = getattr(window, name)
            after = np.asarray(predicted(transformer, window._replace(**{name: values.at[step].add(1.0)})))
            np.testing.assert_array_equal(after[:first_to_notice], before[:first_to_notice])
            assert (np.abs(after - before)[first_to_notice:].max(axis=1) > 1e-4).all(), (name, step)


def test_the_clock_matters_and_ends_at_the_longest_episode() -> None:
    transformer, window = drawn(), one(table().take(jnp.array([8])))
    acted = [np.asarray(predicted(transformer, window._replace(steps=window.steps + n))) for n in (0, 1, 100, 101)]
    assert np.abs(acted[0] - acted[1]).max() > 1e-4
    np.testing.assert_array_equal(acted[2], acted[3])


def test_padding_contributes_nothing_to_loss_or_gradient() -> None:
    transformer, batch = drawn(), table().take(jnp.array([0, 1, 4, 9, 10]))
    padding = ~np.asarray(batch.valid)
    assert 0 < padding.sum() < padding.size
    rng = np.random.default_rng(1)

    def spoilt(values: Any) -> Any:
        other = 50 * rng.normal(size=values.shape)
        mask = padding.reshape(padding.shape + (1,) * (values.ndim - 2))
        return jnp.where(mask, other.astype(np.asarray(values).dtype), values)

    other = batch._replace(**{n: spoilt(getattr(batch, n)) for n in batch._fields if n != "valid"})
    (loss, gradient), (loss_again, gradient_again) = (loss_and_gradient(dt())(transformer, b) for b in (batch, other))
    assert float(loss) == float(loss_again)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(gradient_again), strict=True):
        np.testing.assert_array_equal(a, b)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def norm(x: np.ndarray, layer: Any) -> np.ndarray:
    scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return scaled * np.asarray(layer.weight) + np.asarray(layer.bias)


def linear(x: np.ndarray, layer: Any) -> np.ndarray:
    return x @ np.asarray(layer.weight).T + np.asarray(layer.bias)


def by_hand(transformer: Transformer, to_go: Any, observations: Any, actions: Any, first_clock: int = 0) -> np.ndarray:
    """The forward pass in NumPy, token by token, over steps without any padding."""
    x = []
    for i in range(len(observations)):
        clock = np.asarray(transformer.embed_clock.weight)[min(first_clock + i, LONGEST - 1)]
        for value, layer in (
            (np.atleast_1d(to_go[i]), transformer.embed_return),
            (observations[i], transformer.embed_state),
            (actions[i], transformer.embed_action),
        ):
            x.append(norm(linear(np.asarray(value), layer) + clock, transformer.embedding_norm))
    for block in transformer.blocks:
        new = []
        normed = [norm(token, block.attention_norm) for token in x]
        parts = [linear(token, block.query_key_value).reshape(3, block.heads, -1) for token in normed]
        for i, token in enumerate(x):
            heads = []
            for h in range(block.heads):
                scores = np.array([parts[i][0, h] @ parts[j][1, h] for j in range(i + 1)]) / np.sqrt(
                    len(parts[i][0, h])
                )
                weights = np.exp(scores - scores.max())
                heads.append(sum(w * parts[j][2, h] for j, w in enumerate(weights / weights.sum())))
            token = token + linear(np.concatenate(heads), block.attention_out)
            hidden = np.maximum(linear(norm(token, block.mlp_norm), block.mlp_in), 0)
            new.append(token + linear(hidden, block.mlp_out))
        x = new
    return np.stack([np.tanh(linear(norm(t, transformer.final_norm), transformer.predict_action)) for t in x[1::3]])


@pytest.fixture
def _double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.mark.usefixtures("_double_precision")
def test_the_loss_is_that_of_the_definition_in_numpy() -> None:
    """The mean over all 9 valid steps of three windows, of 2, 4 and 3 steps, and over the action's two dimensions."""
    transformer = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), drawn())
    batch = table().take(jnp.array([1, 8, 2]))
    errors = []
    for i, (n, first_clock) in enumerate([(2, 0), (4, 2), (3, 0)]):
        window = jax.tree.map(lambda leaf, i=i, n=n: np.asarray(leaf[i])[K - n :], batch)
        expected = by_hand(transformer, window.returns_to_go, window.observations, window.actions, first_clock)
        np.testing.assert_allclose(predicted(transformer, one(batch, i))[K - n :], expected, rtol=1e-9, atol=1e-12)
        errors += list(((expected - window.actions) ** 2).ravel())
    assert len(errors) == 9 * 2
    assert float(jax.jit(dt().loss)(transformer, batch)) == pytest.approx(np.mean(errors), rel=1e-9)


def test_dropout_is_for_training_alone() -> None:
    transformer, batch = drawn(), table().take(jnp.array([8, 8]))
    train = jax.jit(dt().loss)
    plain = float(train(transformer, batch))
    first, again, other = (float(train(transformer, batch, jax.random.key(i))) for i in (0, 0, 1))
    assert first == again
    assert len({plain, first, other}) == 3


def test_what_is_dropped_is_made_up_for() -> None:
    keep = drawn()._keep(12, 0.25, jax.random.key(0))
    assert keep.shape == (1 + 3 * 2, 12 * 24)  # twice, attention of two heads among twelve tokens is the largest
    assert np.mean(keep) == pytest.approx(0.75, abs=0.03)
    assert len({row.tobytes() for row in np.asarray(keep)}) == len(keep)
    np.testing.assert_array_equal(
        _drop(jnp.array([[3.0, 6.0], [9.0, 12.0]]), 0.25, jnp.array([True, False, True, True, False])),
        [[4.0, 0.0], [12.0, 16.0]],
    )


# --- an update ---


def test_the_optimiser_by_hand() -> None:
    """Clipping to norm 0.25, Adam's two means, decay of every weight, and a rate that rises over four updates."""
    algorithm = replace(dt(), weight_decay=0.5)
    theta, optimizer = jnp.array([1.0, -2.0, 0.5]), algorithm._optimizer()
    state, m, v = optimizer.init(theta), np.zeros(3), np.zeros(3)
    expected = np.array(theta, float)
    for t in range(1, 7):
        gradient = np.array([3.0, 0.02 * t, -1.0]) / (1.0 if t % 2 else 100.0)  # too long at first, then short enough
        step, state = optimizer.update(jnp.asarray(gradient), state, theta)
        theta = theta + step
        clipped = gradient * min(1.0, 0.25 / float(np.linalg.norm(gradient)))
        m, v = 0.9 * m + 0.1 * clipped, 0.999 * v + 0.001 * clipped**2
        adam = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        expected = expected - 0.1 * min(t / 4, 1.0) * (adam + 0.5 * expected)
        np.testing.assert_allclose(theta, expected, rtol=1e-4)


# --- the policy: one compiled step for all episodes ---


def policy_of(transformer: Transformer) -> TransformerPolicy:
    return dt().policy(DTState(transformer, ()))


@pytest.mark.usefixtures("_double_precision")
def test_a_step_of_many_episodes_is_the_naive_pass_over_each_ones_last_k_steps() -> None:
    """Nine steps, more than K, of three episodes at once; rewards and observations differ between them."""
    transformer = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), drawn(3))
    policy, rng = policy_of(transformer), np.random.default_rng(5)
    observations, rewards = rng.normal(size=(9, 3, 2)), rng.normal(size=(9, 3))
    scale, target = dt().return_scale or 0, dt().target_return or 0
    traced: list[int] = []

    def act(carry: Context, observations: jax.Array, key: jax.Array) -> tuple[Context, jax.Array]:
        traced.append(1)
        return policy.act(carry, observations, key)

    carry, step = policy.start(3), jax.jit(act)
    taken = np.zeros((9, 3, 2))
    for t in range(9):
        carry, acted = step(carry, jnp.asarray(observations[t]), jax.random.key(0))
        taken[t] = acted
        first = max(0, t - K + 1)
        for e in range(3):
            to_go = [(target - rewards[:i, e].sum()) / scale for i in range(first, t + 1)]
            so_far = np.concatenate([taken[first:t, e], np.full((1, 2), 77.0)])  # the action at t cannot matter
            expected = by_hand(transformer, to_go, observations[first : t + 1, e], so_far, first)[-1]
            np.testing.assert_allclose(acted[e], expected, rtol=1e-5, atol=1e-7)
        carry = carry.rewarded(jnp.asarray(rewards[t]))
    assert len(traced) == 1


def test_every_leaf_of_the_memory_has_the_episode_first() -> None:
    carry = policy_of(drawn()).start(7)
    assert isinstance(carry, Context)
    assert isinstance(carry, HearsRewards)
    assert all(leaf.shape[0] == 7 for leaf in jax.tree.leaves(carry))


def test_a_reward_is_taken_off_once() -> None:
    policy = policy_of(drawn())
    step = jax.jit(lambda carry: policy.act(carry, jnp.zeros((1, 2)), jax.random.key(0))[0])
    again = step(step(tell_rewards(step(policy.start(1)), np.array([3.0]))))
    target, scale = dt().target_return or 0, dt().return_scale or 0
    np.testing.assert_allclose(
        np.asarray(again.returns_to_go)[0, 1:] * scale, [target, target - 3, target - 3], rtol=1e-5
    )
    assert tell_rewards((), np.array([3.0])) == ()  # other policies hear nothing


# --- in a task ---


class Paying(gymnasium.Env[Any, Any]):
    """Episode s lasts 2 + s mod 3 steps; step t of it pays 10 s + t."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.seed, self.t = int(seed or 0), 0
        return np.array([self.seed, 0.0]), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        over = self.t == 2 + self.seed % 3
        return np.array([self.seed, float(self.t)]), 10.0 * self.seed + self.t, over, False, {}


def loaded() -> LoadedPolicy:
    scaling = dt().prepare(dataset()).scaling
    return LoadedPolicy(policy_of(drawn()), dt(), SPEC, scaling, Origin("d", None, None, 0, 0), "here")


def test_in_a_rollout_the_return_to_go_falls_by_the_rewards_and_begins_anew_with_each_episode() -> None:
    seen: dict[tuple[int, int], float] = {}

    def record(carry: Context, observations: np.ndarray, rewards: np.ndarray) -> None:
        for i in np.flatnonzero(rewards):  # an environment with no episode left earns nothing
            seed, t = (int(x) for x in observations[i])
            assert int(carry.step[i]) == t + 1
            seen[seed, t] = float(carry.return_to_go[i]) * (dt().return_scale or 0)
            assert seen[seed, t] == pytest.approx(float(carry.returns_to_go[i, -1]) * (dt().return_scale or 0))

    played = rollout(loaded(), Paying, 7, seed=5, n_envs=3, record=record)
    expected = {
        (seed, t): (dt().target_return or 0) - sum(10 * seed + i for i in range(1, t + 1))
        for seed in range(5, 12)
        for t in range(2 + seed % 3)
    }
    assert sum(played.lengths) == len(expected) == len(seen)
    for place, value in expected.items():
        assert seen[place] == pytest.approx(value, rel=1e-4), place


def test_an_episode_is_the_same_alone_beside_others_and_in_a_plain_loop() -> None:
    policy, env = loaded(), Paying()
    actions = play_episode(policy, env, 7, 10, None, 0.0).actions
    assert len(actions) == 3
    observation, reward, over, mine = env.reset(seed=7)[0], None, False, []
    while not over:
        mine.append(policy.act(observation, reward=reward))
        observation, reward, over, *_ = env.step(mine[-1])
    np.testing.assert_allclose(mine, actions, rtol=1e-5, atol=1e-6)
    played: list[np.ndarray] = []

    def record(carry: Context, observations: np.ndarray, rewards: np.ndarray) -> None:
        played.extend(np.asarray(carry.actions)[observations[:, 0] == 7, -1])

    rollout(policy, Paying, 6, seed=4, n_envs=4, record=record)
    np.testing.assert_allclose(np.stack(played[:3]), policy.scaling.actions_in(actions), rtol=1e-4, atol=1e-5)


def test_acting_without_a_reward_keeps_the_return_to_go() -> None:
    policy, observation = loaded(), np.zeros(2, np.float32)
    policy.act(observation, reward=500.0)  # of the episode before: there was no action of this one
    with_first = policy.act(observation)
    policy.reset()
    policy.act(observation)
    np.testing.assert_array_equal(policy.act(observation), with_first)
    told = policy.act(observation, reward=5.0)
    policy.reset()
    policy.act(observation), policy.act(observation)
    assert np.abs(policy.act(observation) - told).max() > 1e-5
    policy.reset()
    policy.act(np.zeros((3, 2)))
    for reward, said in (("much", "not a number"), ([1.0, 2.0], "each of 3 episodes"), (np.nan, "NaN or infinite")):
        assert said in refusal(policy.act, np.zeros((3, 2)), reward=reward)
    assert policy.act(np.zeros((3, 2)), reward=np.array([1.0, 2.0, 3.0])).shape == (3, 2)


def test_its_value_cannot_be_estimated_from_single_states() -> None:
    assert "dt goes by its past" in refusal(estimate_return, loaded(), dataset())


class Sides(Paying):
    """Five steps, each of which pays what the first entry of the action is."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, *_, info = super().step(action)
        return observation, float(action[0]), False, self.t == 5, info


def test_it_earns_the_return_it_is_told_to_aim_for(tmp_path: Path) -> None:
    """Episodes in which all actions are 0.8, 0 or −0.8: only the return-to-go tells which. Noise hides the rest."""
    rng = np.random.default_rng(0)
    side = np.repeat(rng.choice([-0.8, 0.0, 0.8], 60), 5)
    ends = np.arange(300) % 5 == 4
    data = from_arrays(
        observations=rng.normal(size=(300, 2)),
        actions=np.stack([side, rng.uniform(-1, 1, 300)], axis=1),
        rewards=side,
        terminals=np.zeros(300, bool),
        timeouts=ends,
        action_low=[-1.0, -1.0],
        action_high=[1.0, 1.0],
    )
    chosen: Any = tiny("dt", context=3, width=16, dropout=0.0, target_return=-4.0)
    run = fit(data, chosen, out=tmp_path / "run", steps=200, progress=False)
    metrics = run.metrics()[-1]
    assert return_check({name: value[0] for name, value in metrics.items() if isinstance(value, list)})[0].healthy
    policy = load_policy(load_policy(run.path).save(tmp_path / "policy"))  # the target travels with it
    inner, settings = policy.policy, policy.algorithm
    assert isinstance(inner, TransformerPolicy)
    assert isinstance(settings, DT)
    assert settings.target_return == -4.0
    assert float(inner.target * inner.return_scale) == pytest.approx(-4.0, rel=1e-5)
    for target in (-4.0, 0.0, 4.0):
        policy.policy = replace(inner, target=jnp.asarray(target / float(inner.return_scale)))
        played = rollout(policy, Sides, 3, seed=0)
        np.testing.assert_allclose(played.returns, target, atol=1.0)


# --- settings and diagnostics ---


def test_what_is_open_comes_from_the_data() -> None:
    data, resolved = dataset(), OPEN.resolve(dataset())
    episodes = list(zip(data.bounds[:-1], data.bounds[1:], strict=True))
    assert resolved.target_return == pytest.approx(max(data.rewards[a:b].sum() for a, b in episodes))
    assert resolved.longest_episode == LONGEST
    to_go = [data.rewards[r:b].sum() for a, b in episodes for r in range(a, b)]
    assert resolved.return_scale == pytest.approx(np.std(to_go), rel=1e-5)
    assert resolved.resolve(learnable_dataset()) == resolved


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("context", 0),
        ("heads", 0),
        ("dropout", 1.0),
        ("dropout", -0.1),
        ("return_scale", 0.0),
        ("target_return", float("nan")),
        ("gradient_clip", 0.0),
        ("warmup_steps", 0),
        ("weight_decay", -1.0),
        ("longest_episode", 0),
    ],
)
def test_a_senseless_setting_is_refused_by_name(name: str, value: Any) -> None:
    assert refusal(DT, **{name: value}).startswith(f"{name} is {value}")


def test_heads_that_do_not_divide_the_width_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    message = refusal(fit, learnable_dataset(), tiny("dt", heads=3), out=tmp_path / "run", steps=2)
    assert "width is 8: it must be a multiple of heads, 3" in message
    assert not (tmp_path / "run").exists()


def test_unresolved_settings_are_named() -> None:
    assert "return_scale is open" in refusal(OPEN.prepare, dataset())
    assert "longest_episode is open" in refusal(OPEN.init, jax.random.key(0), SPEC)
    assert "return_scale is open" in refusal(OPEN.policy, DTState(drawn(), ()))


def test_the_diagnosis_tells_a_transformer_that_listens_from_a_deaf_one() -> None:
    probe = dt().prepare(dataset()).probe
    listening = drawn()
    silent = jax.tree.map(jnp.zeros_like, listening.embed_return)
    deaf = eqx.tree_at(lambda network: network.embed_return, listening, silent)
    diagnose = jax.jit(dt().diagnose)
    assert float(diagnose(DTState(listening, ()), probe)["return_reaction"]) > 1e-3
    metrics = {name: float(value) for name, value in diagnose(DTState(deaf, ()), probe).items()}
    assert metrics["return_reaction"] == 0
    assert metrics["probe_clone_loss"] == metrics["probe_clone_loss_other_return"]
    (check,) = return_check(metrics)
    assert not check.healthy
    assert "deaf" in check.meaning
    (check,) = return_check({"probe_clone_loss": 0.1, "probe_clone_loss_other_return": 0.2})
    assert check.healthy


def test_seeds_side_by_side_do_not_notice_each_other() -> None:
    """What an accelerator runs: seeds under vmap, each with its own weights, windows and dropout."""
    windows, keys = table(), jax.random.split(jax.random.key(0), 2)
    states = [DTState(weights, dt()._optimizer().init(weights)) for weights in (drawn(0), drawn(1))]

    @jax.jit
    @jax.vmap
    def train(state: DTState, key: jax.Array) -> tuple[Any, Any]:
        state, metrics = dt().update(state, windows.sample(key, 5), key)
        policy = dt().policy(state)
        return metrics, policy.act(policy.start(2), jnp.ones((2, 2)), key)[1]

    def of(order: list[int]) -> list[np.ndarray]:
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(states[i] for i in order))
        return jax.tree.leaves(train(stacked, keys[jnp.array(order)]))

    for both, swapped, twice in zip(of([0, 1]), of([1, 0]), of([0, 0]), strict=True):
        np.testing.assert_allclose(both, swapped[::-1], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(np.stack([both[0]] * 2), twice, rtol=1e-4, atol=1e-4)
        assert np.abs(both[0] - both[1]).max() > 1e-3
