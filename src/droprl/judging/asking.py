"""What a policy does at the states of the log, for estimates that need actions which depend on the state only."""

from __future__ import annotations

import numpy as np

from droprl.errors import DropError
from droprl.judging.log import Log
from droprl.loaded import LoadedPolicy

ACT_BATCH = 4096  # states for which a policy is asked at once


def check_sizes(policy: LoadedPolicy, log: Log) -> None:
    data = log.dataset
    if (data.observation_size, data.action_size) != (policy.spec.observation_size, policy.spec.action_size):
        raise DropError(f"{data.name}: has other sizes than the data of {policy!r}: give data of the policy's task")


def without_guard(policy: LoadedPolicy) -> LoadedPolicy:
    """The data's own states need no guard."""
    return policy if policy.search is None else policy.adapted(guard=False)


def why_not(policy: LoadedPolicy) -> str | None:
    """Why fitted Q evaluation cannot judge this policy. None if it can."""
    if not policy.traits.remembers or policy.traits.chooses_once:
        return None
    remedy = "" if policy.search is None else ": set reinference_interval to 1 and warm_start to false"
    return (
        f"{policy.algorithm.name}: its actions depend on the past, and fitted Q evaluation needs actions that depend "
        f"on the state only{remedy}"
    )


def chosen_actions(policy: LoadedPolicy, log: Log, asked: np.ndarray) -> np.ndarray:
    """The policy's action in the `asked` rows of the log's observations, scaled to [-1, 1] by the data's bounds; 0 in
    other rows. A rule that chooses z once per episode chooses it in the episode's first state.
    """
    check_sizes(policy, log)
    policy = without_guard(policy)
    if (reason := why_not(policy)) is not None:
        raise DropError(reason)
    import jax

    scaling, key = log.scaling, jax.random.key(0)
    observations = np.asarray(log.observations * scaling.observation_std + scaling.observation_mean)
    first_rows = log.first_rows()

    def act(rows: np.ndarray) -> np.ndarray:
        carry = policy.start(len(rows))
        if policy.traits.chooses_once:
            carry, _ = policy.step(carry, observations[first_rows[rows]], key)
        return policy.step(carry, observations[rows], key)[1]

    batches = np.resize(asked, (-(-len(asked) // ACT_BATCH), ACT_BATCH))  # the last batch is filled up with first rows
    acted = np.concatenate([act(rows) for rows in batches])[: len(asked)]
    chosen = np.zeros((len(observations), log.dataset.action_size), np.float32)
    chosen[asked] = np.clip(np.asarray(scaling.actions_in(acted)), -1.0, 1.0)
    return chosen
