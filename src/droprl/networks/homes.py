"""Homes: which sub-tasks have been at states like the one at hand."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from droprl.networks.perceptrons import MLP

# A sub-task is at home where it is at least this many times as frequent as it would be if the state told nothing.
AT_HOME = 0.3


class Home(eqx.Module):
    """p(n|s): the sub-task that a state of the data comes from, if all sub-tasks were equally frequent.

    f learns the value of z_n at the states of sub-task n alone. Elsewhere it guesses, and a search believes the guess.
    """

    network: MLP

    def __init__(self, observation_size: int, n_sub_tasks: int, width: int, key: Array) -> None:
        self.network = MLP(observation_size, (width, width), n_sub_tasks, key)

    def log_shares(self, observation: Array) -> Array:
        """(N,) log p(n|s)."""
        return jax.nn.log_softmax(self.network(observation))

    def supported(self, observation: Array) -> Array:
        """(N,) whether sub-task n has been at states like this one."""
        shares = jnp.exp(self.log_shares(observation))
        return shares * shares.size >= AT_HOME
