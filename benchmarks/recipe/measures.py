"""What trained score models know: which sub-task they prefer where, and how right they are on unseen trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from stack import Stack, stack_padded

from droprl.algorithms.scoring import calibration
from droprl.data import Dataset
from droprl.data.rows import TargetRule, device_rows
from droprl.data.transitions import Places, Prepared, Transitions

MEASURED_STEPS = 4096


def favourites(stack: Stack, states: Any) -> np.ndarray:
    """(jobs, seeds, states): the sub-task with the highest score at states of the data."""

    def of_one(state: Any, probe: Any) -> jax.Array:
        policy = stack.template.policy(state)

        def of_state(observation: jax.Array) -> jax.Array:
            return jnp.argmax(policy.search.scores(observation))

        return jax.lax.map(of_state, probe.batch.observation, batch_size=64)

    return np.asarray(jax.jit(jax.vmap(jax.vmap(of_one, (0, None))))(states, stack.probes))


def preference(chosen: np.ndarray, n_sub_tasks: int) -> dict[str, Any]:
    """For each seed: the share of states at which the top sub-task wins, and how many sub-tasks win at all."""
    shares = [np.bincount(c, minlength=n_sub_tasks) / c.size for c in chosen]
    return {
        "top_share": [round(float(s[0]), 4) for s in shares],
        "favourites": [round(float(np.exp(-np.sum(s[s > 0] * np.log(s[s > 0])))), 3) for s in shares],  # effectively
    }


def held_out_measures(
    stack: Stack, states: Any, prepared: Sequence[Prepared], held_out: Sequence[Dataset]
) -> dict[str, np.ndarray]:
    """(jobs, seeds) each: R² of f on trajectories that were not trained on, given the z of the sub-task that their
    return belongs to (`by_return`: the label knows how the trajectory ends) or that behaves most alike (`by_behavior`:
    it does not); and the cloning loss with these and with all z."""
    most = max(dataset.n_episodes for dataset in held_out)
    samples = stack_padded([_sample(p, dataset, most) for p, dataset in zip(prepared, held_out, strict=True)])
    algorithm = stack.template

    def of_one(state: Any, sample: Any) -> dict[str, jax.Array]:
        networks, batch, episode = state.averaged, sample["batch"], sample["episode"]
        z_table, policy = networks.embedding.table(), networks.behavior_policy
        one_hot = jax.nn.one_hot(episode, most)
        share = one_hot.mean(axis=0)  # of each trajectory among the sampled steps; 0 for padding

        def losses(z: jax.Array) -> jax.Array:
            of_step = jax.vmap(algorithm.clone_loss, (None, None, 0))(policy, z, batch)
            return of_step @ one_hot / jnp.maximum(one_hot.sum(axis=0), 1.0)  # (E,)

        by_sub_task = jax.lax.map(losses, z_table)  # (N, E)
        alike = jnp.argmin(by_sub_task, axis=0)

        def explained(sub_task: jax.Array) -> jax.Array:
            z = z_table[sub_task[episode]]
            return calibration(networks.score_model, policy, z, batch)["score_r2"]

        return {
            "held_out_r2_by_return": explained(sample["nearest"]),
            "held_out_r2_by_behavior": explained(alike),
            "held_out_clone_by_return": by_sub_task[sample["nearest"], jnp.arange(most)] @ share,
            "held_out_clone_by_behavior": by_sub_task.min(axis=0) @ share,
            "held_out_clone_mean_z": by_sub_task.mean(axis=0) @ share,
        }

    found: dict[str, np.ndarray] = jax.device_get(jax.jit(jax.vmap(jax.vmap(of_one, (0, None))))(states, samples))
    return found


def _sample(prepared: Prepared, held_out: Dataset, most: int) -> dict[str, Any]:
    """Steps of the held-out trajectories, each trajectory as often as any other, with returns to the episode's end."""
    to_the_end = replace(prepared.recipe, targets=TargetRule(td_steps=None))
    steps = Transitions(device_rows(held_out, to_the_end))
    rng = np.random.default_rng(0)
    episode = rng.integers(0, held_out.n_episodes, MEASURED_STEPS)
    row = np.asarray(held_out.bounds[:-1])[episode] + rng.integers(0, held_out.lengths[episode])
    nearest = np.abs(held_out.returns[:, None] - np.asarray(prepared.probe.sub_task_returns)[None, :]).argmin(axis=1)
    return {
        "batch": steps.gather(Places(jnp.asarray(row), jnp.asarray(episode))),
        "episode": episode,
        "nearest": np.pad(nearest, (0, most - held_out.n_episodes)),
    }
