"""A trained policy as people use it: in the task's own units, saved to one folder and loaded from it.

A policy folder holds `policy.json` (config, sizes, where it came from) and `policy.safetensors` (weights, embeddings,
normaliser, action bounds, what the data supports). Loading it needs neither the dataset nor the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from droprl.adapt import Search
from droprl.algorithms import Algorithm
from droprl.algorithms.protocol import Clock
from droprl.algorithms.saved import algorithm_from_dict, algorithm_to_dict
from droprl.compiler import SIDE_BY_SIDE, InTurns, host_of, on_gpu
from droprl.data.scaling import Scaling
from droprl.data.support import Support, support_shapes
from droprl.data.transitions import Spec
from droprl.environments.vectors import Parts, vector_of
from droprl.errors import DropError
from droprl.files.locks import locked
from droprl.files.plain import check_folder
from droprl.files.seals import RESTORE, digest, read_sealed, sealed
from droprl.files.settings import from_dict, shown
from droprl.files.storage import arrays_from_bytes, arrays_to_bytes, n_bytes, read_bytes, write_bytes
from droprl.policies import AdaptivePolicy, Carry, Facts, Policy, Traits, Trust, tell_rewards, trust
from droprl.policies.cost import check_cost
from droprl.policies.guard import make_guard
from droprl.train.config import with_time_limit
from droprl.train.run import Run
from droprl.version import __version__

WEIGHTS, NEXT_WEIGHTS = "policy.safetensors", "policy.next.safetensors"
MOST_BYTES = 4 * 2**30  # of arrays: a hundred times the paper's sizes
MOST_PROTOTYPES = 100_000  # every action may be compared with each of them; training saves 512


@dataclass(frozen=True)
class Origin:
    """Where a policy comes from, and the task in which it can be judged."""

    dataset: str
    env: str | None
    score_range: tuple[float, float] | None
    seed: int
    step: int
    time_limit: int | None = None  # the most steps of an episode; None leaves it to the environment
    observation_parts: Parts | None = None  # the name and size of each part of an observation, in their order
    action_parts: Parts | None = None


class LoadedPolicy:
    """Acts in one episode, or in several episodes side by side. Call `reset()` before new episodes."""

    def __init__(
        self,
        policy: Policy,
        algorithm: Algorithm,
        spec: Spec,
        scaling: Scaling,
        origin: Origin,
        where: str,
        support: Support | None = None,
    ) -> None:
        check_cost(policy, where)
        self.algorithm, self.spec, self.scaling, self.origin = algorithm, spec, scaling, origin
        self.policy, self.support = _guarded(policy, support, where), support
        self._where = where
        # Sent to the device once, not with every action. Leaves, because flattening modules costs more than an action.
        self._leaves, structure = jax.tree.flatten(jax.device_put((self.policy, scaling)))
        self._step = InTurns(_compiled_steps(structure, next(iter(self._leaves[0].devices()))))
        self._carry: Carry = None
        self._seen: np.ndarray | None = None
        self._n_episodes, self._n_actions = 0, 0

    def __repr__(self) -> str:
        origin = self.origin
        return f"<{self.algorithm.name} policy from {origin.dataset}, seed {origin.seed}, update {origin.step:,}>"

    def act(self, observation: np.ndarray | Mapping[str, Any], reward: float | np.ndarray | None = None) -> np.ndarray:
        """The action at an observation (observation_size,), or one for each row of (n, observation_size).

        If the data names its columns, an observation may be a dictionary: `origin.observation_parts` has the names.
        `reward` is what the previous action earned: a number, or one for each row. Only a policy with a target return
        (dt) uses it. Without it, the return that the policy still aims for stays the same. At the first action of an
        episode there is no previous action, so the reward is ignored.
        """
        given = self._given(observation)
        batch = np.atleast_2d(given)
        begins, carry = self._carry is None, self._carry
        if begins:
            carry = self.start(len(batch))
        elif len(batch) != self._n_episodes:
            raise DropError(
                f"{self._where}: {len(batch)} observations for {self._n_episodes} episodes under way: call reset()"
            )
        if reward is not None:
            earned = self._rewards(reward, len(batch))
            carry = carry if begins else tell_rewards(carry, earned)
        key = jax.random.key(self._n_actions) if self.traits.draws else None
        carry, actions = self.step(carry, batch, key)
        self._check(batch, carry, actions)  # a refused observation has not changed the policy
        self._carry, self._n_episodes, self._seen = carry, len(batch), given
        self._n_actions += 1
        return actions if given.ndim == 2 else actions[0]

    def predict(self, observations: np.ndarray, *, seed: int = 0) -> np.ndarray:
        """The action at each row of (n, observation_size), or at one observation, as the first step of an episode.

        Every row stands alone, and nothing is remembered: neither `act` nor its episodes notice. `seed` is for a policy
        that draws its actions.
        """
        given = self._given(observations)
        batch = np.atleast_2d(given)
        if not len(batch):
            return np.zeros((0, self.spec.action_size), np.float32)
        carry, actions = self.step(self.start(len(batch)), batch, jax.random.key(seed) if self.traits.draws else None)
        self._check(batch, carry, actions)
        return actions if given.ndim == 2 else actions[0]

    def _given(self, observation: np.ndarray | Mapping[str, Any]) -> np.ndarray:
        """What somebody gave, as float32; refused if it cannot be observations."""
        if isinstance(observation, Mapping):
            observation = vector_of(observation, self.origin.observation_parts, self._where)
        try:
            with np.errstate(over="ignore"):
                given = np.asarray(observation, np.float32)
        except (TypeError, ValueError) as error:
            raise DropError(f"{self._where}: the observation is not an array of numbers ({error})") from error
        if given.ndim not in (1, 2) or given.shape[-1] != self.spec.observation_size:
            raise DropError(
                f"{self._where}: an observation of shape {given.shape} was given: pass ({self.spec.observation_size},) "
                f"or (n, {self.spec.observation_size})"
            )
        return given

    def _check(self, observations: np.ndarray, carry: Carry, actions: np.ndarray) -> None:
        """Refuse an action at NaN or infinity, unless the guard used an earlier observation instead."""
        odd = ~np.isfinite(observations).all(axis=1)
        if odd.any() and (held := self.facts(carry).get("held")) is not None:
            odd &= ~np.asarray(held)
        if odd.any():
            raise DropError(f"{self._where}: the observation holds NaN or infinity: the policy cannot act on it")
        if not np.isfinite(actions).all():
            raise DropError(
                f"{self._where}: the action at this observation is NaN or infinite: check that the observation is in "
                "the units of the data"
            )

    def trust(self) -> Trust:
        """How sure the policy is of the last action that `act` gave, or of each of the last actions."""
        if self._carry is None or self._seen is None:
            raise DropError(f"{self._where}: has not acted in this episode: call act() first")
        found = self.trust_after(self._carry, np.atleast_2d(self._seen))
        if self._seen.ndim == 2:
            return found
        return Trust(*(None if value is None else value[0].item() for value in found))

    def trust_after(self, carry: Carry, observations: np.ndarray) -> Trust:
        """The same for callers that keep the memory themselves. Pass the memory after `step`, and its observations.

        This is a call of its own, so that it costs nothing if nobody asks.
        """
        given = jnp.asarray(observations, jnp.float32)
        return jax.tree.map(np.asarray, _trust(self.policy, self.scaling, self.support, carry, given))

    def _rewards(self, given: float | np.ndarray, n: int) -> np.ndarray:
        try:
            rewards = np.broadcast_to(np.asarray(given, np.float32), (n,))
        except (TypeError, ValueError) as error:
            raise DropError(
                f"{self._where}: the reward is neither one number nor one for each of {n} episodes ({error})"
            ) from error
        if not np.all(np.isfinite(rewards)):
            raise DropError(f"{self._where}: the reward is NaN or infinite: the policy cannot use it")
        return rewards

    def reset(self) -> None:
        """Forget the episodes under way."""
        self._carry = self._seen = None

    @property
    def traits(self) -> Traits:
        """How it acts: whether it draws actions, whether it remembers, how often it searches."""
        return self.policy.traits

    @property
    def search(self) -> Search | None:
        """What it searches at test time, by the rule that auto turned out to be. None for a policy without a search."""
        policy = self.policy
        return policy.settled().search if isinstance(policy, AdaptivePolicy) else policy.search

    def facts(self, carry: Carry) -> Facts:
        """What it knows about the actions it has just taken, by name."""
        return self.policy.facts(carry)

    def start(self, n: int) -> Carry:
        """The memory of n new episodes, for callers that keep it themselves."""
        return self.policy.start(n)

    def step(self, carry: Carry, observations: np.ndarray, key: Array | None) -> tuple[Carry, np.ndarray]:
        """One step of every episode: the new memory and the actions. The key is needed only if the policy draws."""
        carry, actions = self._step(self._leaves, carry, np.asarray(observations, np.float32), key)
        return carry, np.array(actions)  # a copy: environments may change what they are given

    def adapted(self, **changes: Any) -> LoadedPolicy:
        """The same weights with other settings of inference."""
        algorithm = _adapted(self.algorithm, changes)
        policy: Any = self.policy
        if self.search is not None:
            policy = replace(policy, adaptation=algorithm.adaptation)
        return LoadedPolicy(policy, algorithm, self.spec, self.scaling, self.origin, self._where, self.support)

    def save(self, path: str | Path) -> Path:
        """Write the policy folder."""
        folder = Path(path)
        if (folder / "config.json").exists():
            raise DropError(f"{folder}: is a run, and a policy saved there would hide it: choose another folder")
        arrays = {"policy": _unguarded(self.policy), "scaling": self.scaling, "support": self.support}
        content = arrays_to_bytes(arrays)
        header = {
            "droprl": __version__,
            "algorithm": algorithm_to_dict(self.algorithm),
            "spec": self.spec.to_json(),
            "origin": asdict(self.origin),
            "prototypes": 0 if self.support is None else len(self.support.prototypes),
            "sha256": digest(content),
        }
        with locked(folder, work="saving a policy", passing=True):
            # The header decides which policy is here: the older one until the header is replaced, then the new one.
            write_bytes(folder / NEXT_WEIGHTS, content)
            write_bytes(folder / "policy.json", sealed(header))
            os.replace(folder / NEXT_WEIGHTS, folder / WEIGHTS)
        return folder


def step_policy(
    policy: Policy, scaling: Scaling, carry: Carry, observations: Array, key: Array | None
) -> tuple[Carry, Array]:
    """One step of the policy, from observations to actions in the task's units."""
    normalized = jnp.asarray(scaling.observations_in(observations))
    carry, actions = policy.act(carry, normalized, key)
    return carry, jnp.clip(scaling.actions_out(actions), scaling.action_low, scaling.action_high)


@lru_cache(maxsize=64)
def _compiled_steps(structure: Any, device: jax.Device) -> list[Callable[..., tuple[Carry, Array]]]:
    """The programs for all policies of one structure. Seeds and checkpoints share them."""

    def program(**settings: Any) -> Callable[..., tuple[Carry, Array]]:
        def step(leaves: list[Array], carry: Carry, observations: Array, key: Array | None) -> tuple[Carry, Array]:
            policy, scaling = jax.tree.unflatten(structure, leaves)
            return step_policy(policy, scaling, carry, observations, key)

        return jax.jit(step, **settings)

    host = host_of(device)
    if host is None:
        return [program()]
    there = jax.sharding.SingleDeviceSharding(device), host
    return [program(compiler_options=on_gpu(SIDE_BY_SIDE), out_shardings=there) for _ in range(2)]


@jax.jit
def _trust(policy: Policy, scaling: Scaling, support: Support | None, carry: Carry, observations: Array) -> Trust:
    return trust(policy, support, carry, jnp.asarray(scaling.observations_in(observations)))


def _guarded(policy: Policy, support: Support | None, where: str) -> Policy:
    """The policy with a guard if its settings ask for one, and without a guard otherwise."""
    search = policy.search
    if search is None or not search.adaptation.guard:
        return _unguarded(policy)
    if support is None:
        raise DropError(
            f"{where}: an older droprl made it and did not save what the data supports, which the guard needs: repeat "
            "its `drop train` command, which adds this, and any `drop export`, or leave out --guard"
        )
    guarded: Any = policy
    return replace(guarded, guard=make_guard(support, search.embeddings, search.adaptation))


def _unguarded(policy: Any) -> Policy:
    return policy if policy.search is None else replace(policy, guard=None)


def load_policy(
    path: str | Path,
    *,
    seed: int | None = None,
    step: int | None = None,
    **adaptation: Any,
) -> LoadedPolicy:
    """The policy in a policy folder or in a run directory (there by default of the first seed and last checkpoint).

    Keywords such as `rule="best-ada"` or `ascent_steps=10` change how z is inferred; see `Adaptation`.
    """
    folder = Path(path)
    if (folder / "policy.json").exists():
        if seed is not None or step is not None:
            raise DropError(f"{folder}: is a saved policy of one seed and step: leave these out")
        return _load_saved(folder, adaptation)
    if folder.is_dir() or not folder.exists():
        return policy_of_run(Run(folder), seed, step, **adaptation)
    raise DropError(f"{folder}: is a file: give the folder of a policy or of a run")


def policy_of_run(run: Run, seed: int | None = None, step: int | None = None, **adaptation: Any) -> LoadedPolicy:
    data, config = run.config.data, run.config
    chosen_seed = config.seeds[0] if seed is None else seed
    algorithm = _adapted(config.algorithm, adaptation)
    checkpoint = run.checkpoint(step)
    names = data.observation_parts, data.action_parts
    origin = Origin(data.name, data.env, data.score_range, chosen_seed, checkpoint.step, data.time_limit, *names)
    policy = algorithm.policy(run.state(chosen_seed, checkpoint))
    return LoadedPolicy(policy, algorithm, run.spec(), run.scaling(), origin, str(run.path), run.support())


def _load_saved(folder: Path, adaptation: dict[str, Any]) -> LoadedPolicy:
    where = folder / "policy.json"
    check_folder(folder)
    header = read_sealed(where)
    algorithm = _adapted(algorithm_from_dict(header.get("algorithm"), str(where)), adaptation)
    spec = from_dict(Spec, header.get("spec"), str(where))
    origin = from_dict(Origin, with_time_limit(header.get("origin"), "dataset"), str(where))
    try:
        skeleton = _skeleton(algorithm, spec, header.get("prototypes", 0))
    except (DropError, ValueError, TypeError, OverflowError, ZeroDivisionError) as error:
        reason = " ".join(str(error).split())
        raise DropError(f"{where}: no network has the sizes in this file ({reason}): {RESTORE}") from error
    content = _weights(folder, str(header.get("sha256")), skeleton)
    arrays = arrays_from_bytes(content, skeleton, folder / WEIGHTS)
    scaling, support = jax.tree.map(np.asarray, (arrays["scaling"], arrays["support"]))
    return LoadedPolicy(arrays["policy"], algorithm, spec, scaling, origin, str(folder), support)


def _weights(folder: Path, sha256: str, skeleton: Any) -> bytes:
    """If a save was killed at its last moment, the weights that the header names still have their temporary name."""
    with suppress(DropError):
        return read_bytes(folder / NEXT_WEIGHTS, sha256, skeleton)
    return read_bytes(folder / WEIGHTS, sha256, skeleton, "restore the file, or export it again")


def _skeleton(algorithm: Algorithm, spec: Spec, n_prototypes: int) -> dict[str, Any]:
    """The shapes of all arrays. Nothing is allocated, whatever sizes the file asks for. The memory of an episode counts
    too."""

    def made() -> tuple[Policy, Carry]:
        policy = algorithm.policy(algorithm.init(jax.random.key(0), spec, Clock.at(0, 1)))
        return policy, policy.start(1)

    if not isinstance(n_prototypes, int) or not 0 <= n_prototypes <= MOST_PROTOTYPES:
        raise ValueError(f"prototypes is {shown(n_prototypes)}")
    policy, memory = jax.eval_shape(made)
    o, a = (jax.ShapeDtypeStruct((size,), np.float32) for size in (spec.observation_size, spec.action_size))
    scaling: Any = Scaling
    support = support_shapes(spec.observation_size, n_prototypes) if n_prototypes else None  # older files have none
    skeleton = {"policy": policy, "scaling": scaling(o, o, a, a), "support": support}
    if (size := n_bytes(skeleton) + n_bytes(memory)) > MOST_BYTES:
        raise ValueError(f"{size:,} bytes of arrays")
    return skeleton


def _adapted(algorithm: Algorithm, changes: dict[str, Any]) -> Algorithm:
    """The algorithm with other settings of inference. Settings that are None stay as they were in training."""
    changes = {name: value for name, value in changes.items() if value is not None}
    if not changes:
        return algorithm
    if algorithm.adaptation is None:
        raise DropError(f"{algorithm.name} infers no embedding: leave out {', '.join(changes)}")
    settings = asdict(algorithm.adaptation)
    for name in changes:
        if name not in settings:
            raise DropError(f"{algorithm.name}: adaptation has no setting {name!r}: choose from {', '.join(settings)}")
    adapted = from_dict(type(algorithm.adaptation), settings | changes, "adaptation", remedy="change this setting")
    changed: Any = replace(algorithm, adaptation=adapted)  # type: ignore[type-var]
    return changed
