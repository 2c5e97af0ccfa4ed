"""DROP + CVAE: a latent of each step takes the place of the sub-tasks' embeddings (equations 10 and 11).

φ and β are a conditional variational auto-encoder of the data. f(s, a, z) is learned at the latents of its steps, as
DROP learns it at the embeddings of its sub-tasks. The data is not cut into sub-tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from droprl.adapt import Adaptation
from droprl.adapt.inference import embedding_box
from droprl.algorithms import curves, scoring
from droprl.algorithms.averaging import averaged
from droprl.algorithms.judging import Check, judged, measured, wrong_embedding_check
from droprl.algorithms.protocol import Card, Clock, Logged, Metrics, filled
from droprl.data.dataset import Dataset
from droprl.data.decompose import rank_sub_tasks
from droprl.data.returns import choose_discount
from droprl.data.rewards import Rewards
from droprl.data.tasks import equal_sub_tasks
from droprl.data.transitions import Batch, Prepared, Probe, Spec, prepare
from droprl.errors import require
from droprl.networks.actors import BehaviorPolicy, Conditioning, PolicyHead
from droprl.networks.critics import AnyScoreModel
from droprl.networks.embeddings import LatentEncoder
from droprl.policies import AdaptivePolicy

EMPTY_LATENT = 0.1  # nats. A latent that knows less than this about its step knows nothing
KL = curves.Curve("kl", "What the latent knows", "KL(φ ‖ prior) per action dimension, nats")


class CVAENetworks(eqx.Module):
    """What gradient descent changes."""

    encoder: LatentEncoder  # φ
    behavior_policy: BehaviorPolicy  # β
    score_model: AnyScoreModel  # f


class CVAEState(NamedTuple):
    networks: CVAENetworks
    averaged: CVAENetworks  # follows the networks slowly. Its score model is f̄, and it is what acts
    optimizer: optax.OptState
    multiplier: Array  # λ
    latents: Array  # (n_latents, embedding_size) of the latest steps, by the averaged encoder


@dataclass(frozen=True)
class DropCVAE:
    """DROP + CVAE: the latents of a CVAE take the place of the embeddings. There are no sub-tasks."""

    name: ClassVar[str] = "drop-cvae"
    card: ClassVar[Card] = Card(
        curves=(curves.CLONE_LOSS, KL, *curves.SCORE, *curves.EMBEDDING),
        falls=("clone_loss",),
        clones=True,
    )

    encoder: Literal["state-action", "state"] = "state-action"
    """What φ sees of a step. The paper writes φ(z|s). But then z says nothing about the action that s does not say: the
    KL term empties z, and z steers nothing. PLAS and LAPO, which the paper follows here, encode state and action."""
    embedding_size: int = 5
    """dim(z)."""
    kl_weight: float = 0.05
    """The weight of the KL term. With a gaussian head, 1 is equation 10. A deterministic head has no variance of its
    own, and this weight stands for it: the σ² of the actions (in [-1, 1]) that z need not explain."""
    n_latents: int = 64
    """How many latents of the data are kept. At test time adaptation starts from them."""

    width: int = 512
    """Units of each hidden layer of Enc_0 … Enc_4. Enc_0 is φ."""
    depths: tuple[int, int, int, int, int] = (2, 2, 3, 2, 3)
    """Hidden layers of Enc_0 … Enc_4."""
    conditioning: Conditioning = "bilinear"
    """How z enters β. concatenate: next to the state's encoding. bilinear: also with all products of the two."""
    head: PolicyHead = "deterministic"
    """deterministic clones by squared error; gaussian learns a standard deviation as well."""
    sample_actions: bool = False
    """Draw actions from a gaussian head at test time instead of taking its mean."""
    score_models: int = 1
    """Number of score models. With several, the lowest score counts at test time."""
    score_layer_norm: bool = True
    """LayerNorm in f. Without it some seeds diverge at the paper's learning rate."""

    discount: float | None = None
    """γ. None: the discount that DROP would choose, for trajectories ranked by return."""
    td_steps: int = 20
    """Rewards summed before bootstrapping. 1 is the paper's equation 11, which converges far more slowly."""
    td_lambda: float | None = None
    """λ of TD(λ). None: td_steps instead."""
    scale_rewards: bool = True
    """Divide rewards by the standard deviation of discounted returns, so that scores have unit spread on any task."""
    normalize_observations: bool = True
    """Shift and scale observations to zero mean and unit variance."""
    target_rate: float = 0.005
    """υ: how fast the averaged networks follow."""

    constraint: Literal["lagrangian", "hinge", "none"] = "lagrangian"
    """The conservative constraint of equation 11, on the mean gap; hinge penalises every state's own violation,
    squared, with the weight multiplier_max; none leaves it out."""
    threshold: float = 2.0
    """η: how much higher unseen embeddings may score than the latents of the data. With scaled rewards the unit is the
    standard deviation of the discounted returns."""
    multiplier_start: float = 0.0
    """λ at the start."""
    multiplier_rate: float = 1e-2
    """Step size of the dual ascent on λ, which is clipped to [0, multiplier_max]."""
    multiplier_rule: scoring.MultiplierRule = "projected"
    """projected: λ rises by the rate times the violation. log: log λ does, so λ stays above 0 and starts above 0."""
    multiplier_max: float | None = 1.0
    """The cap on λ: the constraint is linear in f and unbounded, so an uncapped λ can run away. None: no cap."""

    learning_rate: float = 1e-3
    """Adam's learning rate, the same for all networks."""
    batch_size: int = 1024
    """Steps of the data in one update."""
    adaptation: Adaptation = field(default_factory=Adaptation)
    """How z* is found at test time. The rule first takes the prior's mean, z = 0."""

    def __post_init__(self) -> None:
        require(self, "at least 1", "embedding_size", "n_latents", "width", "td_steps", "batch_size")
        require(self, "from 1 to 100", "score_models", "depths")
        require(self, "above 0 and at most 1", "discount", "target_rate")
        require(self, "above 0", "learning_rate")
        require(self, "at least 0", "kl_weight", "multiplier_start", "multiplier_rate", "multiplier_max")
        require(self, "at least 0 and less than 1", "td_lambda")
        require(self, "a finite number", "threshold")
        scoring.require_weights(self)

    @classmethod
    def small(cls, **changes: Any) -> Self:
        return replace(cls(width=128, batch_size=256), **changes)

    @classmethod
    def tiny(cls, **changes: Any) -> Self:
        return replace(cls(width=8, depths=(1, 1, 1, 1, 1), batch_size=32, learning_rate=1e-2), **changes)

    # --- the data it learns from ---

    def resolve(self, dataset: Dataset) -> Self:
        if self.discount is not None:
            return self
        cut = equal_sub_tasks(dataset.n_episodes)
        ranked = rank_sub_tasks(dataset.returns, cut.n_sub_tasks, cut.trajectories_per_sub_task)
        return replace(self, discount=choose_discount(dataset, ranked))

    def prepare(self, dataset: Dataset) -> Prepared:
        return prepare(
            dataset,
            discount=filled(self.discount, "discount"),
            td_steps=self.td_steps,
            td_lambda=self.td_lambda,
            normalize_observations=self.normalize_observations,
            rewards=Rewards("spread" if self.scale_rewards else "one"),
        )

    # --- networks ---

    def init(self, key: Array, spec: Spec, clock: Clock) -> CVAEState:
        encoder_key, policy_key, score_key = jax.random.split(key, 3)
        size, width, d = self.embedding_size, self.width, self.depths
        o, a = spec.observation_size, spec.action_size
        networks = CVAENetworks(
            LatentEncoder(o, a, size, width, d[0], self.encoder == "state-action", encoder_key),
            BehaviorPolicy(o, a, size, width, (d[1], d[2]), self.head, policy_key, self.conditioning),
            scoring.make_score_model(self, spec, size, score_key),
        )
        latents = jnp.zeros((self.n_latents, size))
        optimizer, multiplier = self._optimizer().init(networks), scoring.first_multiplier(self)
        return CVAEState(networks, networks, optimizer, multiplier, latents)

    def policy(self, state: CVAEState) -> AdaptivePolicy:
        """Its embeddings are the prior's mean, the best guess without a score, and the kept latents."""
        networks = state.averaged
        starts = jnp.concatenate([jnp.zeros_like(state.latents[:1]), state.latents])
        return AdaptivePolicy(
            networks.behavior_policy, networks.score_model, starts, self.adaptation, self.sample_actions
        )

    # --- losses ---

    def negative_elbo(
        self, encoder: LatentEncoder, policy: BehaviorPolicy, noise: Array, step: Batch
    ) -> tuple[Array, Array, Array]:
        """The two terms of equation 10 for one step, −log β(a|s, z) and KL(φ ‖ N(0, I)), and the z ~ φ.

        Both terms are in nats per action dimension.
        """
        mean, log_std = encoder.distribution(step.observation, step.action)
        z = mean + jnp.exp(log_std) * noise
        clone = policy.clone_loss(step.observation, step.action, z)
        return clone, kl_to_prior(mean, log_std) / step.action.size, z

    def loss(
        self, networks: CVAENetworks, target: AnyScoreModel, multiplier: Array, batch: Batch, key: Array
    ) -> tuple[Array, Logged]:
        """The negative ELBO, which moves φ and β, plus equation 11 at the same z, which moves f alone."""
        noise_key, unseen_key = jax.random.split(key)
        noise = jax.random.normal(noise_key, (len(batch.reward), self.embedding_size))
        clones, divergences, z = jax.vmap(self.negative_elbo, (None, None, 0, 0))(
            networks.encoder, networks.behavior_policy, noise, batch
        )
        clone, divergence = jnp.mean(clones), jnp.mean(divergences)
        z = jax.lax.stop_gradient(z)
        low, high = embedding_box(z)
        unseen_z = jax.random.uniform(unseen_key, z.shape, minval=low, maxval=high)
        score, metrics = scoring.score_loss(
            self, networks.score_model, target, multiplier, networks.behavior_policy, z, z, unseen_z, batch
        )
        total = clone + self.kl_weight * divergence + score
        return total, metrics | {"clone_loss": clone, "kl": divergence}

    # --- one update: primal step on the networks, dual step on λ, slow step of the averages, new latents ---

    def update(self, state: CVAEState, batch: Batch, key: Array, clock: Clock) -> tuple[CVAEState, Logged]:
        gradient, metrics = jax.grad(self.loss, has_aux=True)(
            state.networks, state.averaged.score_model, state.multiplier, batch, key
        )
        step, optimizer = self._optimizer().update(gradient, state.optimizer)
        networks = optax.apply_updates(state.networks, step)
        multiplier = scoring.next_multiplier(self, state.multiplier, metrics)
        average = averaged(state.averaged, networks, self.target_rate, clock, target=lambda n: n.score_model)
        n = self.n_latents
        newest, _ = jax.vmap(average.encoder.distribution)(batch.observation[:n], batch.action[:n])
        latents = jnp.concatenate([newest, state.latents])[:n]
        return CVAEState(networks, average, optimizer, multiplier, latents), metrics | {"multiplier": multiplier}

    def _optimizer(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)

    # --- is it working? ---

    def diagnose(self, state: CVAEState, probe: Probe) -> Metrics:
        """At the mean latents of the probe's steps. The wrong z is that of the step half a probe away."""
        networks, batch = state.averaged, probe.batch
        policy = networks.behavior_policy
        z, log_std = jax.vmap(networks.encoder.distribution)(batch.observation, batch.action)
        clone = jax.vmap(policy.clone_loss)
        other_z = jnp.roll(z, len(z) // 2, axis=0)
        return {
            "probe_clone_loss": jnp.mean(clone(batch.observation, batch.action, z)),
            "probe_clone_loss_permuted": jnp.mean(clone(batch.observation, batch.action, other_z)),
            "probe_kl": jnp.mean(jax.vmap(kl_to_prior)(z, log_std)),
            "embedding_spread": jnp.mean(jnp.std(z, axis=0)),
            **scoring.calibration(networks.score_model, policy, z, batch),
        }

    def checks(self, metrics: dict[str, float]) -> list[Check]:
        """Does the latent know anything about its step, does it steer the policy, and can f be trusted?"""
        divergence = measured(metrics, "probe_kl")
        return [
            *judged(
                "what the latent knows",
                divergence,
                divergence >= EMPTY_LATENT,
                "the latents of the data differ from the prior: z tells steps apart",
                "empty latent: φ gives the prior for every step, so every rule is plain cloning; lower kl_weight and "
                "encode state and action",
            ),
            *wrong_embedding_check(metrics, "step", "lower kl_weight and encode state and action"),
            *scoring.score_checks(self, metrics),
        ]


def kl_to_prior(mean: Array, log_std: Array) -> Array:
    """KL(N(mean, std²) ‖ N(0, I)), in nats."""
    return 0.5 * jnp.sum(mean**2 + jnp.exp(2 * log_std) - 1.0 - 2 * log_std)
