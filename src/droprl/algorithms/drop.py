"""DROP: Design from Policies (NeurIPS 2023), training (Algorithm 1). Test time lives in `droprl.adapt`.

φ(z|n), β(a|s, z) and f(s, a, z) are learned together: by cloning (equation 6), and by temporal differences under a
conservative constraint (equation 8) with its Lagrangian (appendix B). Training improves no policy.
Its settings are in `drop_settings`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from droprl.adapt import Adaptation, Search
from droprl.adapt.inference import embedding_box
from droprl.adapt.search import STAY
from droprl.algorithms import curves, scoring
from droprl.algorithms.adversary import adversarial_penalty
from droprl.algorithms.averaging import averaged
from droprl.algorithms.drop_settings import Decomposition, DropSettings
from droprl.algorithms.evidence import EVERY, MOVES, Evidence, measure
from droprl.algorithms.judging import Check, judged, measured, ranking_check, spearman, wrong_embedding_check
from droprl.algorithms.protocol import Card, Clock, Logged, Metrics, filled
from droprl.data.behavior import behavior_sub_tasks
from droprl.data.best import best_episodes, best_fraction
from droprl.data.dataset import Dataset
from droprl.data.decompose import SubTasks, decompose, sub_task_returns
from droprl.data.first_states import behavior_returns
from droprl.data.returns import choose_discount
from droprl.data.rewards import Rewards
from droprl.data.tasks import equal_sub_tasks, paper_sub_tasks
from droprl.data.transitions import Batch, Prepared, Probe, Spec, prepare
from droprl.data.visits import SEPARATED, separation, visit_sub_tasks
from droprl.networks.actors import BehaviorPolicy, clone_error
from droprl.networks.critics import AnyScoreModel
from droprl.networks.embeddings import TaskEmbedding, no_embedding
from droprl.networks.homes import Home
from droprl.networks.layers import for_training, look_up
from droprl.policies import AdaptivePolicy

HOME_WIDTH = 128  # where sub-tasks have been is easier to tell than what they do there
COLLAPSED_SPREAD = 0.2  # between trainings that play well and trainings that do not: docs/recipe.md
TOP_SUB_TASK = curves.Curve("top_sub_task_share", "States where f prefers the top sub-task", "share", diagnosis=True)


class Networks(eqx.Module):
    """What gradient descent changes."""

    embedding: TaskEmbedding  # φ
    behavior_policy: BehaviorPolicy  # β
    score_model: AnyScoreModel  # f
    home: Home | None  # p(n|s)
    fallback: BehaviorPolicy | None = None  # clones the first sub-task alone


class DropState(NamedTuple):
    networks: Networks
    averaged: Networks  # follows the networks slowly. Its score model is f̄
    optimizer: Any  # with separate optimisers: a pair, of cloning and of temporal differences
    multiplier: Array  # λ
    evidence: Evidence | None = None  # on whether the search pays


@dataclass(frozen=True)
class DROP(DropSettings):
    """Design from Policies: sub-tasks by return, one embedding for each, and a conservative score model over them."""

    name: ClassVar[str] = "drop"
    card: ClassVar[Card] = Card(
        curves=(curves.CLONE_LOSS, *curves.SCORE, *curves.EMBEDDING, curves.RANKING, TOP_SUB_TASK),
        falls=("clone_loss", "td_loss"),
        clones=True,
        learns_online=True,
        presets=("literal", "plain"),
        absent={"rank_by": "return", "fallback": "top", "top_share": None, "learn_home": False, "cross_fit": False},
    )

    # --- the data it learns from ---

    def resolve(self, dataset: Dataset) -> Self:
        self.check_evidence()
        n_episodes = dataset.n_episodes
        paper = self.sub_task_sizes == "paper"
        preset = paper_sub_tasks(dataset.name, n_episodes) if paper else equal_sub_tasks(n_episodes, dataset.n_steps)
        n, m = preset.sizes(self.n_sub_tasks, self.trajectories_per_sub_task, n_episodes)
        size = self.embedding_size or preset.embedding_size
        cut = self._decomposition(dataset, n)
        chosen = replace(
            self,
            decomposition=cut,
            n_sub_tasks=n,
            trajectories_per_sub_task=m,
            embedding_size=size,
            windows=self.windows or max(1, dataset.n_steps // self.td_steps),
        )
        if chosen.discount is not None:
            return chosen
        return replace(chosen, discount=choose_discount(dataset, chosen.sub_tasks(dataset)))

    def sub_tasks(self, dataset: Dataset) -> SubTasks:
        m = filled(self.trajectories_per_sub_task, "trajectories_per_sub_task")
        sizes = filled(self.n_sub_tasks, "n_sub_tasks"), m, self.decomposition_seed
        returns = self._returns(dataset)
        rule: Decomposition = filled(self.decomposition, "decomposition")
        if rule == "behavior":
            parts = behavior_sub_tasks(dataset, *sizes)
        elif rule == "visits":
            parts = visit_sub_tasks(dataset, *sizes)
        else:
            parts = decompose(returns, rule, *sizes)
        order = np.argsort(-sub_task_returns(returns, parts), kind="stable")
        ordered = [parts[i] for i in order]  # the first has the highest return
        return [best_episodes(dataset, best_fraction(dataset)), *ordered] if self._falls_back_to_best else ordered

    def _returns(self, dataset: Dataset) -> np.ndarray:
        return dataset.returns if self.rank_by == "return" or dataset.on_disk else behavior_returns(dataset)

    def _decomposition(self, dataset: Dataset, n: int) -> Decomposition:
        if self.decomposition is not None:
            return self.decomposition
        if n == 1 or dataset.on_disk:  # there is nothing to cut, or the visits would have to be read whole
            return "rank"
        return "rank" if separation(dataset, self._returns(dataset), n) >= SEPARATED else "visits"

    def prepare(self, dataset: Dataset) -> Prepared:
        return prepare(
            dataset,
            self.sub_tasks(dataset),
            discount=filled(self.discount, "discount"),
            td_steps=self.td_steps,
            td_lambda=self.td_lambda,
            normalize_observations=self.normalize_observations,
            rewards=Rewards("spread" if self.scale_rewards else "one"),
            top_share=self._top_share,
            folds=self.cross_fit,
        )

    @property
    def _top_share(self) -> float | None:
        """With few sub-tasks the first is drawn as often as any other."""
        if self.top_share is None or not self._by_return:
            return None
        return max(self.top_share, 1.0 / filled(self.n_sub_tasks, "n_sub_tasks"))

    @property
    def _falls_back_to_best(self) -> bool:
        return self.fallback == "best" and self._by_return and filled(self.n_sub_tasks, "n_sub_tasks") > 1

    @property
    def _by_return(self) -> bool:
        """Behaviours and random sets have no top that stands out."""
        return self.decomposition in ("rank", "quantization")

    # --- networks ---

    def init(self, key: Array, spec: Spec, clock: Clock) -> DropState:
        embedding_key, policy_key, score_key = jax.random.split(key, 3)
        size, width, d = filled(self.embedding_size, "embedding_size"), self.width, self.depths
        o, a = spec.observation_size, spec.action_size
        depth = 0 if self.embedding_network == "linear" else d[0]
        home = fallback = None
        if self.learn_home:
            home = Home(o, spec.required_sub_tasks(), min(width, HOME_WIDTH), jax.random.fold_in(key, 3))
        if self._falls_back_to_best:
            fallback = BehaviorPolicy(o, a, 0, width, (d[1], d[2]), self.head, jax.random.fold_in(key, 4))
        networks = Networks(
            TaskEmbedding(spec.required_sub_tasks(), size, width, depth, self.embedding_space, embedding_key),
            BehaviorPolicy(o, a, size, width, (d[1], d[2]), self.head, policy_key, self.conditioning),
            scoring.make_score_model(self, spec, size, score_key),
            home,
            fallback,
        )
        still = self._optimizer().init(networks)
        optimizer = (still, still) if self.optimizers == "separate" else still
        evidence = Evidence.none() if self.cross_fit else None
        return DropState(networks, networks, optimizer, scoring.first_multiplier(self), evidence)

    def acting(self, state: DropState) -> Networks:
        return state.averaged if self.averaged_acts else state.networks

    def policy(self, state: DropState) -> AdaptivePolicy:
        networks = self.acting(state)
        z_n = networks.embedding.table()
        choice = None if state.evidence is None else state.evidence.choice(self.windows or 1)
        if choice is not None and len(z_n) == 1:  # there is nothing to choose, and β has learned no other z
            choice = jnp.full_like(choice, STAY)
        return AdaptivePolicy(
            networks.behavior_policy,
            networks.score_model,
            z_n,
            self.adaptation,
            self.sample_actions,
            home=networks.home,
            choice=choice,
            fallback=networks.fallback,
        )

    def search(self, state: DropState, adaptation: Adaptation) -> Search:
        """The search among the z_n with the networks that act."""
        return self._search(self.acting(state), adaptation)

    def _search(self, networks: Networks, adaptation: Adaptation) -> Search:
        policy, score_model, z_n = networks.behavior_policy, networks.score_model, networks.embedding.table()
        return Search(policy, score_model, z_n, adaptation, networks.home, fallback=networks.fallback)

    # --- losses ---

    def loss(
        self, networks: Networks, target: AnyScoreModel, multiplier: Array, batch: Batch, key: Array
    ) -> tuple[Array, Logged]:
        """Cloning + TD + the constraint, the mean over a batch. Cloning moves φ and β, the other terms move f."""
        policy_key, *score_keys = jax.random.split(key, 3)
        networks, target = for_training((networks, target), self.precision)
        clone, own = self._clone_loss(networks, batch, policy_key)
        score, metrics = self._score_loss(networks, target, multiplier, batch, score_keys, own)
        return clone + score + self._side_losses(networks, batch), metrics | {"clone_loss": clone}

    def clone_loss(self, networks: Networks, batch: Batch, key: Array) -> tuple[Array, Array]:
        """The first part of `loss` alone, and equation 6 in it."""
        networks = for_training(networks, self.precision)
        clone, _ = self._clone_loss(networks, batch, jax.random.split(key, 3)[0])
        return clone + self._side_losses(networks, batch), clone

    def score_loss(
        self, networks: Networks, target: AnyScoreModel, multiplier: Array, batch: Batch, key: Array
    ) -> tuple[Array, Logged]:
        """The second part of `loss` alone."""
        networks, target = for_training((networks, target), self.precision)
        return self._score_loss(networks, target, multiplier, batch, jax.random.split(key, 3)[1:], None)

    def _clone_loss(self, networks: Networks, batch: Batch, key: Array) -> tuple[Array, Array | None]:
        """Equation 6, and β(s, z) at each step's own z, if that was computed."""
        policy = networks.behavior_policy
        z = _smoothed(look_up(networks.embedding.table(), batch.sub_task), self.policy_smoothing, key)
        distributions = jax.vmap(policy.distribution)(jax.vmap(policy.encode)(batch.observation), z)
        clone = jnp.mean(jax.vmap(clone_error)(batch.action, *distributions))
        return clone, None if self.policy_smoothing else distributions[0]

    def _side_losses(self, networks: Networks, batch: Batch) -> Array | float:
        """The losses of networks that share no weight with φ, β and f."""
        found: Array | float = 0.0
        if networks.home is not None:
            found = self._home_loss(networks.home, batch)
        if networks.fallback is not None:
            found = found + fallback_loss(networks.fallback, batch)
        return found

    def _home_loss(self, home: Home, batch: Batch) -> Array:
        """The cross-entropy of p(n|s). How often a sub-task is drawn must not count, so it is added before."""
        logits = jax.vmap(home.network)(batch.observation)
        logits = logits + self._log_prior(logits.shape[1])
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), batch.sub_task[:, None], axis=1))

    def _log_prior(self, n: int) -> Array:
        """(N,) the logarithm of how often each sub-task is drawn."""
        if self._top_share is None or n == 1:
            return jnp.full(n, -math.log(n))
        return jnp.log(jnp.full(n, (1.0 - self._top_share) / (n - 1)).at[0].set(self._top_share))

    def _score_loss(
        self,
        networks: Networks,
        target: AnyScoreModel,
        multiplier: Array,
        batch: Batch,
        keys: Sequence[Array] | Array,
        own: Array | None,
    ) -> tuple[Array, Logged]:
        """Equation 8."""
        policy, score_model, table = networks.behavior_policy, networks.score_model, networks.embedding.table()
        score_key, unseen_key = keys
        z, n = look_up(table, batch.sub_task), math.ceil(self.constraint_share * len(batch.reward))
        td_z = _smoothed(z if self.td_into_embedding else jax.lax.stop_gradient(z), self.score_smoothing, score_key)
        if self.constraint == "adversarial":
            td, metrics = scoring.td_loss(score_model, target, jax.lax.stop_gradient(policy), td_z, batch)
            search = Search(policy, score_model, table, self.adaptation)
            penalty, found = adversarial_penalty(
                search, batch.observation[:n], filled(self.threshold, "threshold"), unseen_key
            )
            return td + filled(self.multiplier_max, "multiplier_max") * penalty, metrics | found
        unseen_z = self._unseen_embeddings(table, unseen_key, n)
        return scoring.score_loss(self, score_model, target, multiplier, policy, td_z, z, unseen_z, batch, own)

    def _unseen_embeddings(self, table: Array, key: Array, n: int) -> Array:
        """μ(z): uniform over the z-space."""
        low, high = embedding_box(table)
        if self.embedding_space == "tanh":
            low, high = -jnp.ones_like(low), jnp.ones_like(high)
        return jax.random.uniform(key, (n, table.shape[1]), minval=low, maxval=high)

    # --- one update: primal step on the networks, dual step on λ, slow step of the averages ---

    def update(self, state: DropState, batch: Batch, key: Array, clock: Clock) -> tuple[DropState, Logged]:
        target, multiplier = state.averaged.score_model, state.multiplier
        if self.optimizers == "separate":
            gradient, clone = jax.grad(self.clone_loss, has_aux=True)(state.networks, batch, key)
            networks, cloning = self._stepped(state.networks, gradient, state.optimizer[0])
            gradient, metrics = jax.grad(self.score_loss, has_aux=True)(networks, target, multiplier, batch, key)
            networks, scored = self._stepped(networks, gradient, state.optimizer[1])
            optimizer, metrics = (cloning, scored), metrics | {"clone_loss": clone}
        else:
            gradient, metrics = jax.grad(self.loss, has_aux=True)(state.networks, target, multiplier, batch, key)
            networks, optimizer = self._stepped(state.networks, gradient, state.optimizer)
        multiplier = scoring.next_multiplier(self, multiplier, metrics)
        average = averaged(state.averaged, networks, self.target_rate, clock, target=lambda n: n.score_model)
        metrics |= {"multiplier": multiplier}
        if state.evidence is None:
            return DropState(networks, average, optimizer, multiplier), metrics
        evidence = jax.lax.cond(
            clock.number % EVERY == 0, lambda: self._measured(state.evidence, average, batch), lambda: state.evidence
        )
        t_values = evidence.t_values(self.windows or 1)
        metrics |= dict(zip(MOVES, t_values, strict=True))
        return DropState(networks, average, optimizer, multiplier, evidence), metrics

    def _measured(self, evidence: Any, networks: Networks, batch: Batch) -> Evidence:
        search = self._search(networks, self.adaptation or Adaptation())
        after: Evidence = evidence.after(measure(search, self._log_prior(len(search.embeddings)), batch))
        return after

    def _stepped(self, networks: Networks, gradient: Networks, optimizer: Any) -> tuple[Networks, Any]:
        step, optimizer = self._optimizer().update(gradient, optimizer)
        return optax.apply_updates(networks, step), optimizer

    def _optimizer(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)

    # --- is it working? ---

    def diagnose(self, state: DropState, probe: Probe) -> Metrics:
        networks, batch = self.acting(state), probe.batch
        policy, score_model = networks.behavior_policy, networks.score_model
        table = networks.embedding.table()
        z = table[batch.sub_task]
        clone = jax.vmap(policy.clone_loss)
        other_z = jnp.roll(table, max(1, len(table) // 2), axis=0)[batch.sub_task]

        search = self.search(state, Adaptation())  # only its scores are asked
        at_start = jnp.mean(jax.vmap(search.scores)(probe.starts), axis=0)
        favourites = jnp.argmax(jax.vmap(search.scores)(batch.observation[:64]), axis=1)
        # Comparisons between sub-tasks are undefined, not bad, if there is only one.
        of_several = jnp.where(len(table) > 1, 1.0, jnp.nan)
        return {
            "probe_clone_loss": jnp.mean(clone(batch.observation, batch.action, z)),
            "probe_clone_loss_permuted": of_several * jnp.mean(clone(batch.observation, batch.action, other_z)),
            "embedding_spread": of_several * jnp.mean(jnp.std(table, axis=0)),
            **scoring.calibration(score_model, policy, z, batch),
            "score_rank_correlation": spearman(at_start, probe.sub_task_returns),
            "top_sub_task_share": jnp.mean(favourites == jnp.argmax(probe.sub_task_returns)),
        }

    def checks(self, metrics: dict[str, float]) -> list[Check]:
        """Do the embeddings steer the policy, and can f be trusted?"""
        spread = measured(metrics, "embedding_spread")
        return [
            *judged(
                "embedding spread",
                spread,
                spread >= COLLAPSED_SPREAD,
                "sub-tasks have embeddings of their own",
                "collapsed embedding: all sub-tasks share one z, so every rule is plain cloning; keep "
                "td_into_embedding off and embedding_space whitened",
            ),
            *wrong_embedding_check(metrics, "sub-task", "train longer or use fewer, more distinct sub-tasks"),
            *ranking_check(metrics, "sub-tasks", "best may pick a poor one; train longer or raise the discount"),
            *scoring.score_checks(self, metrics),
        ]


def fallback_loss(fallback: BehaviorPolicy, batch: Batch) -> Array:
    """F-BC's loss: cloning of the steps of the first sub-task alone."""
    errors = jax.vmap(fallback.clone_loss, (0, 0, None))(batch.observation, batch.action, no_embedding())
    drawn = batch.sub_task == 0
    return jnp.sum(drawn * errors) / jnp.maximum(jnp.sum(drawn), 1.0)


def _smoothed(z: Array, deviation: float, key: Array) -> Array:
    return z + deviation * jax.random.normal(key, z.shape) if deviation else z
