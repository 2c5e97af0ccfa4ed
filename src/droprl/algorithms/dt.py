"""Decision Transformer (Chen et al., NeurIPS 2021): actions as the continuation of returns-to-go, states and actions.

A causal transformer reads the last K steps of an episode as tokens R̂₁, s₁, a₁, R̂₂, s₂, a₂ … and learns aₜ at the token
of sₜ. At test time the first R̂ is the return to aim for; every reward is then subtracted from it. The settings are
those of the authors' code for locomotion (`gym/experiment.py`), unless the field or function says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from droprl.algorithms.curves import CLONE_LOSS, right_and_wrong
from droprl.algorithms.judging import Check, judged, relative_increase
from droprl.algorithms.protocol import Card, Clock, Logged, Metrics, filled
from droprl.data.dataset import Dataset
from droprl.data.rewards import Rewards, Treatment
from droprl.data.transitions import Prepared, Spec
from droprl.data.windows import Window, prepare_windows
from droprl.errors import SettingError, require
from droprl.networks.transformer import Transformer
from droprl.policies import Facts, Program, Traits, first_row

# The loss of cloning must rise by this share when the return-to-go is another window's. Measured on one or two runs.
DEAF_INCREASE = 0.02
WARMUP_PART, WARMUP_MOST = 10, 10_000  # the authors' 10⁴ of 10⁵ updates; of a shorter run the same part
MOST_STEPS = 10_000  # of an episode that have an embedding of their own
WRONG_RETURN = right_and_wrong("probe_clone_loss_other_return", "return-to-go", "another window's return-to-go")

# --- the policy ---


class Context(NamedTuple):
    """The memory of n episodes: the last K steps of each, the newest last, and the return it still aims for."""

    returns_to_go: Array  # (n, K), scaled
    observations: Array  # (n, K, ·)
    actions: Array  # (n, K, ·)
    step: Array  # (n,) how many steps the episode has had
    return_to_go: Array  # (n,) at the last step, scaled
    reward: Array  # (n,) of the last step, in the task's units, not yet subtracted

    def rewarded(self, rewards: Array) -> Self:
        return self._replace(reward=rewards)


IN_A_FILE = {
    "returns_to_go": "context_returns_to_go",
    "observations": "context_observations",
    "actions": "context_actions",
    "step": "step",
    "return_to_go": "return_to_go",
}  # fields of the context, and the names of these inputs in a file


class TransformerPolicy(eqx.Module):
    """Asks the transformer for the action at the end of the context.

    Every step computes the whole context again. Keys and values of earlier steps cannot be kept: when the window
    slides, they change.
    """

    transformer: Transformer
    target: Array  # () the return-to-go of the first step, scaled
    return_scale: Array  # ()
    context: int = eqx.field(static=True)
    search: ClassVar[None] = None

    @property
    def traits(self) -> Traits:
        return Traits(remembers=True, tokens=3 * self.context)

    def start(self, n: int) -> Context:
        o, a = (layer.weight.shape[1] for layer in (self.transformer.embed_state, self.transformer.embed_action))
        k, dtype = self.context, self.target.dtype
        return Context(
            returns_to_go=jnp.zeros((n, k), dtype),
            observations=jnp.zeros((n, k, o), dtype),
            actions=jnp.zeros((n, k, a), dtype),
            step=jnp.zeros(n, jnp.int32),
            return_to_go=jnp.broadcast_to(self.target, (n,)),
            reward=jnp.zeros(n, dtype),
        )

    def act(self, carry: Context, observations: Array, key: Array | None) -> tuple[Context, Array]:
        to_go = carry.return_to_go - carry.reward / self.return_scale
        steps = carry.step[:, None] + jnp.arange(1 - self.context, 1)
        window = Window(
            returns_to_go=_pushed(carry.returns_to_go, to_go),
            observations=_pushed(carry.observations, observations),
            actions=_pushed(carry.actions, jnp.zeros_like(carry.actions[:, 0])),  # not chosen yet; nothing sees it
            steps=steps,
            valid=steps >= 0,
        )
        actions = jax.vmap(self.transformer)(window)[:, -1]
        after = Context(
            returns_to_go=window.returns_to_go,
            observations=window.observations,
            actions=window.actions.at[:, -1].set(actions),
            step=carry.step + 1,
            return_to_go=to_go,
            reward=jnp.zeros_like(carry.reward),
        )
        return after, actions

    def facts(self, carry: Context) -> Facts:
        return {}

    def program(self) -> Program:
        """The memory is the context. The reward of the last step is a separate input."""

        def step(observations: Array, reward: Array, *context: Array) -> tuple[Array, ...]:
            before = Context(**dict(zip(IN_A_FILE, context, strict=True)), reward=reward)
            after, actions = self.act(before, observations, None)
            return actions, *(getattr(after, field) for field in IN_A_FILE)

        first = first_row(self.start(1))
        memory = {name: getattr(first, field) for field, name in IN_A_FILE.items()}
        return Program(step, ("actions",), memory, hears_rewards=True)


def _pushed(window: Array, newest: Array) -> Array:
    return jnp.concatenate([window[:, 1:], newest[:, None]], axis=1)


# --- the algorithm ---


class DTState(NamedTuple):
    transformer: Transformer
    optimizer: optax.OptState


@dataclass(frozen=True)
class DT:
    """Decision Transformer: predicts actions from the past and from the return still to come.

    It acts with its last weights, not with averages of them.
    """

    name: ClassVar[str] = "dt"
    card: ClassVar[Card] = Card(curves=(CLONE_LOSS, WRONG_RETURN), falls=("clone_loss",), clones=True)
    adaptation: ClassVar[None] = None

    target_return: float | None = None
    """The return to aim for at test time, in the task's own units. None: the highest return in the data. The authors
    choose two by hand for each task: about an expert's return, and half of it."""
    return_scale: float | None = None
    """Returns-to-go are divided by this number. None: their standard deviation over the steps of the data. The authors
    take 1000 for all locomotion."""
    context: int = 20
    """K: how many steps the transformer sees, the present one included."""
    longest_episode: int | None = None
    """How many steps of an episode have an embedding of their own; all later steps share the last one. None: the length
    of the longest episode in the data, at most 10,000. The authors take 1000."""
    width: int = 128
    """Size of a token. The MLPs are four times as wide."""
    depth: int = 3
    """Number of transformer blocks."""
    heads: int = 1
    """Number of attention heads. The width must be a multiple of it."""
    dropout: float = 0.1
    """The share of activations dropped in training: of embeddings, of attention, and of what each block adds."""
    normalize_observations: bool = True
    """Shift and scale observations to zero mean and unit variance."""
    learning_rate: float = 1e-4
    """AdamW's learning rate after the warm-up."""
    warmup_steps: int | None = None
    """Over so many updates the learning rate rises linearly from zero. None: over a tenth of the run, at most 10,000.
    The authors' code takes 10,000 of its 100,000 updates."""
    weight_decay: float = 1e-4
    """AdamW's weight decay, on every weight."""
    gradient_clip: float = 0.25
    """The largest norm of a gradient, over all weights."""
    batch_size: int = 64
    """Windows of K steps in one update."""

    def __post_init__(self) -> None:
        require(self, "at least 1", "longest_episode", "width", "warmup_steps", "batch_size")
        require(self, "from 1 to 100", "depth", "heads")
        require(self, "from 1 to 1,000", "context")
        require(self, "above 0", "learning_rate", "gradient_clip", "return_scale")
        require(self, "at least 0", "weight_decay")
        require(self, "at least 0 and less than 1", "dropout")
        require(self, "a finite number", "target_return")

    @classmethod
    def small(cls, **changes: Any) -> Self:
        return replace(cls(context=10, width=64, depth=2, batch_size=32, learning_rate=1e-3), **changes)

    @classmethod
    def tiny(cls, **changes: Any) -> Self:
        made = cls(context=10, width=8, depth=1, batch_size=32, learning_rate=1e-2, warmup_steps=5)
        return replace(made, **changes)

    def resolve(self, dataset: Dataset) -> Self:
        scale = self.return_scale
        if scale is None:
            scale = Rewards("spread").treatment(dataset, 1.0).scale
        target = float(np.max(dataset.returns)) if self.target_return is None else self.target_return
        longest = self.longest_episode or min(int(np.max(dataset.lengths)), MOST_STEPS)
        return replace(self, return_scale=scale, target_return=target, longest_episode=longest)

    def prepare(self, dataset: Dataset) -> Prepared:
        return prepare_windows(
            dataset,
            back=self.context - 1,
            rewards=Treatment(filled(self.return_scale, "return_scale")),
            normalize_observations=self.normalize_observations,
        )

    def init(self, key: Array, spec: Spec, clock: Clock) -> DTState:
        if self.width % self.heads:
            raise SettingError(f"width is {self.width}: it must be a multiple of heads, {self.heads}")
        steps = filled(self.longest_episode, "longest_episode")
        sizes = spec.observation_size, spec.action_size, steps, self.width, self.depth, self.heads
        transformer = Transformer(*sizes, key)
        return DTState(transformer, self._optimizer(clock).init(transformer))

    def update(self, state: DTState, batch: Window, key: Array, clock: Clock) -> tuple[DTState, Logged]:
        loss, gradient = jax.value_and_grad(self.loss)(state.transformer, batch, key)
        step, optimizer = self._optimizer(clock).update(gradient, state.optimizer, state.transformer)
        return DTState(optax.apply_updates(state.transformer, step), optimizer), {"clone_loss": loss}

    def policy(self, state: DTState) -> TransformerPolicy:
        scale = filled(self.return_scale, "return_scale")
        target = filled(self.target_return, "target_return") / scale
        scaled, units = (jnp.asarray(value, dtype=float) for value in (target, scale))
        return TransformerPolicy(state.transformer, scaled, units, self.context)

    def diagnose(self, state: DTState, probe: Window) -> Metrics:
        """Does the action follow the return-to-go? If not, this is cloning, whatever the target."""
        to_go = probe.returns_to_go
        other = jnp.roll(to_go[:, -1], len(to_go) // 2)
        wrong = probe._replace(returns_to_go=to_go + (other - to_go[:, -1])[:, None])
        raised = probe._replace(returns_to_go=to_go + 1.0)
        act = jax.vmap(state.transformer)
        return {
            "probe_clone_loss": self.loss(state.transformer, probe),
            "probe_clone_loss_other_return": self.loss(state.transformer, wrong),
            "return_reaction": jnp.mean(jnp.abs(act(raised) - act(probe))[:, -1]),
        }

    def checks(self, metrics: dict[str, float]) -> list[Check]:
        """Do the actions follow the return-to-go?"""
        increase = relative_increase(metrics, "probe_clone_loss", "probe_clone_loss_other_return")
        return judged(
            "cost of a wrong return-to-go",
            increase,
            increase >= DEAF_INCREASE,
            "actions are predicted worse with another window's return-to-go than with the right one: the target "
            "steers the policy",
            "deaf to the return: actions are predicted no worse with another window's return-to-go, so target_return "
            "changes nothing and this is plain cloning; train longer, or take data whose returns differ by behaviour",
        )

    def loss(self, transformer: Transformer, batch: Window, key: Array | None = None) -> Array:
        """The mean squared error of all actions inside their episode, over steps and action dimensions."""
        if key is None:
            predicted = jax.vmap(transformer)(batch)
        else:
            keys = jax.random.split(key, len(batch.valid))
            predicted = jax.vmap(transformer, (0, None, 0))(batch, self.dropout, keys)
        errors = jnp.mean((predicted - batch.actions) ** 2, axis=-1)
        return jnp.sum(jnp.where(batch.valid, errors, 0.0)) / jnp.sum(batch.valid)

    def _optimizer(self, clock: Clock) -> optax.GradientTransformation:
        warmup: int | Array | None = self.warmup_steps
        if warmup is None:
            warmup = jnp.clip(clock.total // WARMUP_PART, 1, WARMUP_MOST)

        def rate(count: Array) -> Array:
            return self.learning_rate * jnp.minimum((count + 1) / warmup, 1.0)

        return optax.chain(
            optax.clip_by_global_norm(self.gradient_clip), optax.adamw(rate, weight_decay=self.weight_decay)
        )
