"""Does the search pay? Evidence from trajectories that a score model has not seen. The rule `auto` follows it.

Each of two score models learns from one half of the trajectories, and is asked about the other half. At a step (s, a)
of the data, the search of that model would move the action from b to c. On average over such steps, did actions that
lie farther in this direction than the data's mean action μ(s) = Σ_n p(n|s) β(s, z_n) earn more than the state promised?

    E [ (R + γ V(s') − V(s)) · ⟨a − μ(s), c − b⟩ ]

Luck cancels out: the model has not seen how these trajectories end, and V knows only the state. An error of V(s)
cancels too, because a − μ(s) is zero on average. Only states where the first sub-task has been count: what is asked is
whether to leave it. Three moves are judged: from the first z_n to the one that f prefers, and the ascent from either.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from droprl.adapt.inference import Score, climb
from droprl.adapt.search import CHOOSE, CHOOSE_AND_CLIMB, CLIMB, STAY, Search
from droprl.data.transitions import Batch

MOVES = ("choosing_pays", "climbing_from_first_pays", "climbing_pays")  # the metrics: t-values
EVERY = 8  # updates from one measurement to the next
SHARE = 8  # one step in so many of the batch is measured
MEMORY = 300.0  # measurements, until an old one counts little
ENOUGH = 2.0  # the t-value at which a move is made: an error of the first kind in one of forty cases


class Evidence(NamedTuple):
    """Averages over the last measurements, one entry for each of `MOVES`."""

    mean: Array
    square: Array
    measured: Array  # how many measurements there were
    steps: Array  # how many steps the averages stand for

    @classmethod
    def none(cls) -> Evidence:
        zeros = jnp.zeros(len(MOVES))
        return cls(zeros, zeros, jnp.zeros(()), jnp.zeros(()))

    def after(self, products: Array) -> Evidence:
        """`products` is (steps, MOVES)."""
        rate = 1.0 / jnp.minimum(self.measured + 1.0, MEMORY)
        mean = self.mean + rate * (products.mean(axis=0) - self.mean)
        square = self.square + rate * ((products**2).mean(axis=0) - self.square)
        return Evidence(mean, square, self.measured + 1.0, len(products) / rate)

    def t_values(self, windows: int) -> Array:
        """`windows` is how many independent pieces the data has. Drawing a step twice tells nothing new."""
        pieces = jnp.minimum(float(windows), self.steps)
        return self.mean / jnp.sqrt(self.square / jnp.maximum(pieces, 1.0) + 1e-12)

    def choice(self, windows: int) -> Array:
        """What `auto` does."""
        chooses, climbs_from_first, climbs = self.t_values(windows) > ENOUGH
        searched = jnp.where(climbs, CHOOSE_AND_CLIMB, CHOOSE)
        return jnp.where(chooses, searched, jnp.where(climbs_from_first, CLIMB, STAY)).astype(jnp.int32)


def measure(search: Search, log_prior: Array, batch: Batch) -> Array:
    """(steps, MOVES) the products, at the first steps of the batch. `log_prior` is how often sub-tasks are drawn."""
    home = search.home
    assert home is not None, "without it, V(s) is not known"
    policy, table = search.behavior_policy, search.embeddings

    def of_step(step: Batch) -> Array:
        unseen = 1 - step.fold  # the score model that has not seen this trajectory

        def score_at(observation: Array) -> Score:
            encoded = policy.encode(observation)
            return lambda z: search.score_model.each(observation, policy.mode(encoded, z), z)[unseen]

        def shares(observation: Array) -> Array:
            return jax.nn.softmax(home.log_shares(observation) + log_prior)

        def scores_of_all(observation: Array) -> Array:
            return jax.vmap(score_at(observation))(table)

        s, encoded = step.observation, policy.encode(step.observation)
        scores, supported, share = scores_of_all(s), home.supported(s), shares(s)
        later = shares(step.next_observation) @ scores_of_all(step.next_observation)
        advantage = step.reward + step.discount * later - share @ scores
        starts = jnp.stack([table[0], table[jnp.argmax(jnp.where(supported, scores, -jnp.inf))]])
        adaptation = search.adaptation
        ends, _ = climb(score_at(s), starts, starts, table, adaptation, adaptation.ascent_steps)
        first, chosen, from_first, from_chosen = (policy.mode(encoded, z) for z in (*starts, *ends))
        directions = jnp.stack([chosen - first, from_first - first, from_chosen - chosen])
        unusual = step.action - share @ jax.vmap(lambda z: policy.mode(encoded, z))(table)
        counts = step.has_target * supported[0]
        return counts * advantage * (directions @ unusual)

    few = jax.tree.map(lambda column: column[: max(1, len(batch.reward) // SHARE)], batch)
    return jax.vmap(of_step)(few)
