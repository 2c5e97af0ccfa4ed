"""DROP: Design from Policies (NeurIPS 2023), training (Algorithm 1). Test time lives in `droprl.adapt`.

φ(z|n), β(a|s, z) and f(s, a, z) are learned together: cloning (equation 6), temporal differences under a conservative
constraint (equation 8), its Lagrangian (appendix B). No policy is improved here.
Where the paper is silent, or where following it to the letter is known to fail silently, the field says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from droprl.adapt import Adaptation, Search
from droprl.adapt.inference import embedding_box
from droprl.algorithms.averaging import averaged
from droprl.algorithms.curves import (
    CALIBRATION,
    CLONE_LOSS,
    GAP,
    MULTIPLIER,
    RANKING,
    SPREAD,
    TD_LOSS,
    WRONG_EMBEDDING,
    Curve,
)
from droprl.algorithms.judging import Check, judged, measured, spearman
from droprl.algorithms.protocol import Card, Clock, Logged, Metrics
from droprl.algorithms.scoring import (
    Constraint,
    calibration,
    capped_multiplier,
    first_multiplier,
    make_score_model,
    next_multiplier,
    score_checks,
    score_loss,
    wrong_embedding_check,
)
from droprl.data.behavior import behavior_sub_tasks
from droprl.data.dataset import Dataset
from droprl.data.decompose import SubTasks, decompose, sub_task_returns
from droprl.data.returns import choose_discount
from droprl.data.rewards import Rewards
from droprl.data.tasks import equal_sub_tasks, paper_sub_tasks
from droprl.data.transitions import Batch, Prepared, Probe, Spec, prepare
from droprl.errors import DropError, SettingError, require
from droprl.networks.actors import BehaviorPolicy, Conditioning, PolicyHead, clone_error
from droprl.networks.critics import AnyScoreModel
from droprl.networks.embeddings import EmbeddingSpace, TaskEmbedding
from droprl.networks.layers import Precision, for_training, look_up
from droprl.policies import AdaptivePolicy

# Between what was seen in trainings that play well and in those that do not (docs/recipe.md, "What to watch").
COLLAPSED_SPREAD = 0.2
UNRANKED = 0.7
TOP_SUB_TASK = Curve("top_sub_task_share", "States where f prefers the top sub-task", "share", diagnosis=True)


class Networks(eqx.Module):
    """What gradient descent changes."""

    embedding: TaskEmbedding  # φ
    behavior_policy: BehaviorPolicy  # β
    score_model: AnyScoreModel  # f


class DropState(NamedTuple):
    networks: Networks
    averaged: Networks  # moves slowly after the networks: its score model is f̄, and it is what acts
    optimizer: optax.OptState
    multiplier: Array  # λ


@dataclass(frozen=True)
class DROP:
    """Design from Policies: sub-tasks by return, one embedding for each, and a conservative score model over them."""

    name: ClassVar[str] = "drop"
    card: ClassVar[Card] = Card(
        curves=(CLONE_LOSS, TD_LOSS, WRONG_EMBEDDING, CALIBRATION, RANKING, GAP, MULTIPLIER, SPREAD, TOP_SUB_TASK),
        falls=("clone_loss", "td_loss"),
        clones=True,
        learns_online=True,
    )

    decomposition: Literal["rank", "quantization", "random", "behavior"] = "rank"
    """How trajectories are cut into sub-tasks: the paper's Rank, Quantization or Random; behavior groups
    them by how they act."""
    n_sub_tasks: int | None = None
    """N. None: 10, or what `sub_task_sizes` says."""
    trajectories_per_sub_task: int | None = None
    """M. None: all trajectories divided by N, or what `sub_task_sizes` says."""
    embedding_size: int | None = None
    """dim(z). None: 5, as throughout the paper's table."""
    sub_task_sizes: Literal["equal", "paper"] = "equal"
    """equal: the same N for any data, and all trajectories; paper: its table of N and M, tuned to each dataset."""
    decomposition_seed: int = 0
    """The seed of the rules that draw at random; the same for every training seed."""

    width: int = 512
    """Units of each hidden layer of Enc_0 … Enc_4."""
    depths: tuple[int, int, int, int, int] = (2, 2, 3, 2, 3)
    """Hidden layers of Enc_0 … Enc_4."""
    embedding_space: EmbeddingSpace = "whitened"
    """whitened: zero mean and unit variance of the z_n in each dimension, cannot collapse; tanh: within (-1, 1)."""
    td_into_embedding: bool = False
    """Train φ by the TD loss too, as the paper does. On raw rewards the embeddings then collapse."""
    conditioning: Conditioning = "bilinear"
    """How z enters β: concatenated to the state's encoding, as in the paper; bilinear adds all products of the two.
    With them a sub-task's policy is nearly as good as one that is cloned alone."""
    head: PolicyHead = "deterministic"
    """deterministic clones by squared error; gaussian learns a standard deviation as well."""
    sample_actions: bool = False
    """Draw actions from a gaussian head at test time instead of taking its mean."""
    score_models: int = 1
    """Score models; with several, the lowest score counts at test time."""
    score_smoothing: float = 0.0
    """Standard deviation of the noise on the z that f learns from: sub-tasks that act alike then share their luck."""
    policy_smoothing: float = 0.0
    """Standard deviation of the noise on the z that β learns from."""
    score_layer_norm: bool = True
    """LayerNorm in f: without it some seeds diverge at the paper's learning rate."""

    discount: float | None = None
    """γ. None: the smallest of 0.99 … 0.999 whose true discounted returns rank the sub-tasks (data only)."""
    td_steps: int = 20
    """Rewards summed before bootstrapping. 1 is the paper's equation 8, which converges far more slowly."""
    td_lambda: float | None = None
    """λ of TD(λ). None: td_steps instead."""
    scale_rewards: bool = True
    """Divide rewards by the standard deviation of discounted returns, so that scores have unit spread on any task."""
    normalize_observations: bool = True
    """Shift and scale observations to zero mean and unit variance."""
    target_rate: float = 0.005
    """υ: how fast the averaged networks follow. The paper averages f alone, for its targets. Here β and φ are averaged
    too: the return of a cloned policy jumps from update to update, and the return of its average does not."""

    constraint: Constraint = "lagrangian"
    """The conservative constraint of equation 8, on the mean gap; hinge penalises every state's own violation, squared,
    with the weight multiplier_max; none leaves it out (the paper's "w/o Reg")."""
    constraint_share: float = 0.25
    """Share of the batch on which the gap is measured: λ needs a mean, not every step. While λ is 0, this changes
    nothing else."""
    threshold: float = 2.0
    """η: how much higher unseen embeddings may score than those of the sub-tasks. With scaled rewards the unit is the
    standard deviation of the discounted returns."""
    multiplier_start: float = 0.0
    """λ at the start."""
    multiplier_rate: float = 1e-2
    """Step size of the dual ascent on λ; projected to [0, multiplier_max]."""
    multiplier_max: float = 1.0
    """The cap on λ: the constraint is linear in f and unbounded, so an uncapped λ runs away."""

    precision: Precision = "float32"
    """Of products in training. bfloat16 is up to twice as fast on a GPU (slower on a CPU), and rounds weights and
    activations to three digits. What is learned, saved and played stays float32."""
    learning_rate: float = 1e-3
    """Adam's learning rate, the same for all networks."""
    batch_size: int = 1024
    """Steps of the data in one update."""
    adaptation: Adaptation = field(default_factory=Adaptation)
    """How z* is found at test time."""

    def __post_init__(self) -> None:
        require(self, "at least 1", "n_sub_tasks", "trajectories_per_sub_task", "embedding_size", "width", "td_steps")
        require(self, "at least 1", "batch_size")
        require(self, "from 1 to 100", "score_models", "depths")
        require(self, "above 0 and at most 1", "discount", "target_rate", "constraint_share")
        require(self, "above 0", "learning_rate")
        require(self, "at least 0", "decomposition_seed", "multiplier_start", "multiplier_rate", "multiplier_max")
        require(self, "at least 0", "score_smoothing", "policy_smoothing")
        if self.td_lambda is not None and not 0 <= self.td_lambda < 1:
            raise SettingError(f"td_lambda is {self.td_lambda}: give at least 0 and less than 1")

    @classmethod
    def small(cls) -> Self:
        return cls(width=128, batch_size=256)

    @classmethod
    def tiny(cls) -> Self:
        return cls(width=8, depths=(1, 1, 1, 1, 1), batch_size=32, learning_rate=1e-2)

    # --- the data it learns from ---

    def resolve(self, dataset: Dataset) -> Self:
        preset = equal_sub_tasks(dataset.n_episodes)
        if self.sub_task_sizes == "paper":
            preset = paper_sub_tasks(dataset.name, dataset.n_episodes)
        n, m = self.n_sub_tasks, self.trajectories_per_sub_task
        if n is None:
            n = preset.n_sub_tasks if m is None else max(1, dataset.n_episodes // m)
        if m is None:
            m = preset.trajectories_per_sub_task if n == preset.n_sub_tasks else max(1, dataset.n_episodes // n)
        chosen = replace(
            self,
            n_sub_tasks=n,
            trajectories_per_sub_task=m,
            embedding_size=self.embedding_size or preset.embedding_size,
        )
        if chosen.discount is not None:
            return chosen
        return replace(chosen, discount=choose_discount(dataset, chosen.sub_tasks(dataset)))

    def sub_tasks(self, dataset: Dataset) -> SubTasks:
        if self.n_sub_tasks is None or self.trajectories_per_sub_task is None:
            raise DropError("n_sub_tasks and trajectories_per_sub_task are open: call resolve(dataset) first")
        sizes = self.n_sub_tasks, self.trajectories_per_sub_task, self.decomposition_seed
        if self.decomposition == "behavior":
            parts = behavior_sub_tasks(dataset, *sizes)
        else:
            parts = decompose(dataset.returns, self.decomposition, *sizes)
        order = np.argsort(-sub_task_returns(dataset.returns, parts), kind="stable")
        return [parts[i] for i in order]  # numbered from the highest return down

    def prepare(self, dataset: Dataset) -> Prepared:
        if self.discount is None:
            raise DropError("discount is open: call resolve(dataset) first")
        return prepare(
            dataset,
            self.sub_tasks(dataset),
            discount=self.discount,
            td_steps=self.td_steps,
            td_lambda=self.td_lambda,
            normalize_observations=self.normalize_observations,
            rewards=Rewards("spread" if self.scale_rewards else "one"),
        )

    # --- networks ---

    def init(self, key: Array, spec: Spec, clock: Clock) -> DropState:
        embedding_key, policy_key, score_key = jax.random.split(key, 3)
        size, width, d = self.embedding_size, self.width, self.depths
        if size is None:
            raise DropError("embedding_size is open: call resolve(dataset) first")
        o, a = spec.observation_size, spec.action_size
        networks = Networks(
            TaskEmbedding(spec.required_sub_tasks(), size, width, d[0], self.embedding_space, embedding_key),
            BehaviorPolicy(o, a, size, width, (d[1], d[2]), self.head, policy_key, self.conditioning),
            make_score_model(self, spec, size, score_key),
        )
        return DropState(
            networks=networks,
            averaged=networks,
            optimizer=self._optimizer().init(networks),
            multiplier=first_multiplier(self),
        )

    def policy(self, state: DropState) -> AdaptivePolicy:
        networks = state.averaged
        table = networks.embedding.table()
        return AdaptivePolicy(
            networks.behavior_policy, networks.score_model, table, self.adaptation, self.sample_actions
        )

    def search(self, state: DropState, adaptation: Adaptation) -> Search:
        """The search among the z_n with the averaged networks."""
        networks = state.averaged
        return Search(networks.behavior_policy, networks.score_model, networks.embedding.table(), adaptation)

    # --- losses ---

    def loss(
        self, networks: Networks, target: AnyScoreModel, multiplier: Array, batch: Batch, key: Array
    ) -> tuple[Array, Logged]:
        """Cloning + TD + λ · (gap − η), the mean over a batch. Cloning moves φ and β; the rest moves f."""
        networks, target = for_training((networks, target), self.precision)
        policy, score_model = networks.behavior_policy, networks.score_model
        table = networks.embedding.table()
        z = look_up(table, batch.sub_task)
        policy_key, score_key, unseen_key = jax.random.split(key, 3)
        policy_z = _smoothed(z, self.policy_smoothing, policy_key)
        distributions = jax.vmap(policy.distribution)(jax.vmap(policy.encode)(batch.observation), policy_z)
        clone = jnp.mean(jax.vmap(clone_error)(batch.action, *distributions))  # equation 6
        own = None if self.policy_smoothing else distributions[0]

        score_z = z if self.td_into_embedding else jax.lax.stop_gradient(z)
        score_z = _smoothed(score_z, self.score_smoothing, score_key)
        unseen_z = self._unseen_embeddings(table, unseen_key, math.ceil(self.constraint_share * len(z)))
        score, metrics = score_loss(self, score_model, target, multiplier, policy, score_z, z, unseen_z, batch, own)
        return clone + score, metrics | {"clone_loss": clone}

    def _unseen_embeddings(self, table: Array, key: Array, n: int) -> Array:
        """μ(z): uniform over the z-space."""
        low, high = embedding_box(table)
        if self.embedding_space == "tanh":
            low, high = -jnp.ones_like(low), jnp.ones_like(high)
        return jax.random.uniform(key, (n, table.shape[1]), minval=low, maxval=high)

    # --- one update: primal step on the networks, dual step on λ, slow step of the averages ---

    def update(self, state: DropState, batch: Batch, key: Array, clock: Clock) -> tuple[DropState, Logged]:
        gradient, metrics = jax.grad(self.loss, has_aux=True)(
            state.networks, state.averaged.score_model, state.multiplier, batch, key
        )
        step, optimizer = self._optimizer().update(gradient, state.optimizer)
        networks = optax.apply_updates(state.networks, step)
        multiplier = next_multiplier(self, state.multiplier, metrics)
        average = averaged(state.averaged, networks, self.target_rate, clock, target=lambda n: n.score_model)
        return DropState(networks, average, optimizer, multiplier), metrics | {"multiplier": multiplier}

    def _optimizer(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)

    # --- is it working? ---

    def diagnose(self, state: DropState, probe: Probe) -> Metrics:
        networks, batch = state.averaged, probe.batch
        policy, score_model = networks.behavior_policy, networks.score_model
        table = networks.embedding.table()
        z = table[batch.sub_task]
        clone = jax.vmap(policy.clone_loss)
        other_z = jnp.roll(table, max(1, len(table) // 2), axis=0)[batch.sub_task]

        search = self.search(state, Adaptation())  # for its scores alone
        at_start = jnp.mean(jax.vmap(search.scores)(probe.starts), axis=0)
        favourites = jnp.argmax(jax.vmap(search.scores)(batch.observation[:64]), axis=1)
        # A single sub-task has no other to be told from: what compares them is undefined, not bad.
        of_several = jnp.where(len(table) > 1, 1.0, jnp.nan)
        return {
            "probe_clone_loss": jnp.mean(clone(batch.observation, batch.action, z)),
            "probe_clone_loss_permuted": of_several * jnp.mean(clone(batch.observation, batch.action, other_z)),
            "embedding_spread": of_several * jnp.mean(jnp.std(table, axis=0)),
            **calibration(score_model, policy, z, batch),
            "score_rank_correlation": spearman(at_start, probe.sub_task_returns),
            "top_sub_task_share": jnp.mean(favourites == jnp.argmax(probe.sub_task_returns)),
        }

    def checks(self, metrics: dict[str, float]) -> list[Check]:
        """Is this DROP what it claims to be? A measure that is missing or undefined is not judged."""
        spread = measured(metrics, "embedding_spread")
        correlation = measured(metrics, "score_rank_correlation")
        return [
            *judged(
                "embedding spread",
                spread,
                spread >= COLLAPSED_SPREAD,
                "sub-tasks have embeddings of their own",
                "collapsed embedding: all sub-tasks share one z, so every rule is plain cloning; keep "
                "td_into_embedding "
                "off and embedding_space whitened",
            ),
            *wrong_embedding_check(metrics, "sub-task", "train longer or use fewer, more distinct sub-tasks"),
            *judged(
                "rank correlation of scores and returns",
                correlation,
                correlation >= UNRANKED,
                "f at initial states ranks the sub-tasks as their returns do",
                "unranked score: f at initial states does not follow the sub-tasks' returns, so Best may pick a poor "
                "one; "
                "train longer or raise the discount",
            ),
            *score_checks(metrics, capped_multiplier(self)),
        ]


def _smoothed(z: Array, deviation: float, key: Array) -> Array:
    return z + deviation * jax.random.normal(key, z.shape) if deviation else z
