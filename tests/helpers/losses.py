"""For losses in NumPy: a batch, networks in double precision, and what the networks compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from droprl.data.transitions import Batch, Spec
from droprl.networks.actors import BehaviorPolicy
from droprl.networks.critics import AnyScoreModel, ScoreModel
from droprl.networks.perceptrons import MLP

T = TypeVar("T")
SPEC = Spec(observation_size=3, action_size=2, n_sub_tasks=4)


def make_batch(seed: int = 0) -> Batch:
    """Five steps. The second is terminal. After the third no action is logged, and after the last one nothing is."""
    rng = np.random.default_rng(seed)
    return Batch(
        observation=jnp.asarray(rng.normal(size=(5, 3))),
        action=jnp.asarray(rng.uniform(-1, 1, (5, 2))),
        sub_task=jnp.array([0, 3, 1, 2, 1]),
        reward=jnp.asarray(rng.normal(size=5)),
        discount=jnp.array([0.9, 0.0, 0.9, 0.8, 0.9]),
        next_observation=jnp.asarray(rng.normal(size=(5, 3))),
        next_action=jnp.asarray(rng.uniform(-1, 1, (5, 2))),
        next_action_known=jnp.array([True, True, False, True, True]),
        has_target=jnp.array([1.0, 1.0, 1.0, 1.0, 0.0]),
    )


def drawn_like(make: Callable[[], T], seed: int) -> T:
    """The result of `make`, with every weight drawn at random: no weight keeps a special value such as 0 or 1."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(0.5 * rng.normal(size=leaf.shape)), jax.eval_shape(make))


# --- the paper in NumPy ---


def mlp(network: MLP, x: np.ndarray) -> np.ndarray:
    for i, layer in enumerate(network.layers):
        x = np.asarray(layer.weight) @ x + np.asarray(layer.bias)
        if i < len(network.layers) - 1 or network.final_activation:
            if network.norms:
                x = (x - x.mean()) / np.sqrt(np.mean((x - x.mean()) ** 2) + 1e-5)
                x = np.asarray(network.norms[i].weight) * x + np.asarray(network.norms[i].bias)
            x = np.maximum(x, 0)
    return x


def action_distribution(beta: BehaviorPolicy, s: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    encoded = mlp(beta.state_encoder, s)
    products = [z_k * e_j for z_k in z for e_j in encoded] if beta.conditioning == "bilinear" else []
    out = mlp(beta.action_decoder, np.concatenate([z, encoded, products]))
    if beta.head == "deterministic":
        return np.tanh(out), np.ones_like(out)
    return np.tanh(out[: len(out) // 2]), np.exp(np.clip(out[len(out) // 2 :], -5, 2))


def member_of(tree: T, i: int) -> T:
    return jax.tree.map(lambda leaf: leaf[i], tree)


def members(f: AnyScoreModel) -> list[ScoreModel]:
    if isinstance(f, ScoreModel):
        return [f]
    n = len(jax.tree.leaves(f)[0])
    return [member_of(f.members, i) for i in range(n)]


def scores_of_each(f: AnyScoreModel, s: np.ndarray, a: np.ndarray, z: np.ndarray) -> np.ndarray:
    encoded = [mlp(member.state_action_encoder, np.concatenate([s, a])) for member in members(f)]
    decoded = [mlp(m.score_decoder, np.concatenate([z, e])) for m, e in zip(members(f), encoded, strict=True)]
    return np.concatenate(decoded)
