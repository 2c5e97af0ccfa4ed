"""Decision Transformer (Chen et al., NeurIPS 2021): actions as the continuation of returns-to-go, states and actions.

A causal transformer reads the last K steps of an episode as tokens R̂₁, s₁, a₁, R̂₂, s₂, a₂ … and learns aₜ at the token
of sₜ. At test time the first R̂ is a return to aim for, and falls by every reward. Settings are those of the authors'
code for locomotion (`gym/experiment.py`); where they differ, the field or function says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from droprl.algorithms.curves import CLONE_LOSS, Curve
from droprl.algorithms.judging import Check, judged, measured
from droprl.algorithms.protocol import Card, Clock, Logged, Metrics
from droprl.data.dataset import Dataset
from droprl.data.rewards import Rewards, Treatment
from droprl.data.transitions import Prepared, Spec
from droprl.data.windows import Window, prepare_windows
from droprl.errors import DropError, SettingError, require
from droprl.policies import Facts, Program, Traits, first_row

T = TypeVar("T", int, float)
WEIGHT_STD = 0.02  # of the linear layers inside the blocks, as in GPT-2
DEAF_COST = (
    0.02  # how much worse cloning must be with another window's return, as a share of its loss: from a run or two
)
WRONG_RETURN = Curve(
    "probe_clone_loss_other_return",
    "Cloning with the right and with another window's return-to-go",
    "cloning loss",
    diagnosis=True,
    lines=(("probe_clone_loss", "right return"), ("probe_clone_loss_other_return", "another window's return")),
    note="The distance between the lines is what the return tells the transformer.",
)
MOST_CLOCKS = 10_000  # an embedding for each step of an episode, but no more than these

# --- the network, for one window ---


class Block(eqx.Module):
    """Attention, then an MLP of four times the width with ReLU; each reads a layer norm and adds to what it read."""

    attention_norm: eqx.nn.LayerNorm
    query_key_value: eqx.nn.Linear
    attention_out: eqx.nn.Linear
    mlp_norm: eqx.nn.LayerNorm
    mlp_in: eqx.nn.Linear
    mlp_out: eqx.nn.Linear
    heads: int = eqx.field(static=True)

    def __init__(self, width: int, heads: int, key: Array) -> None:
        keys = jax.random.split(key, 4)
        self.attention_norm, self.mlp_norm = eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width)
        self.query_key_value = _gpt_linear(width, 3 * width, keys[0])
        self.attention_out = _gpt_linear(width, width, keys[1])
        self.mlp_in, self.mlp_out = _gpt_linear(width, 4 * width, keys[2]), _gpt_linear(4 * width, width, keys[3])
        self.heads = heads

    def __call__(self, x: Array, seen: Array, dropout: float, keep: Array | None) -> Array:
        """`seen[i, j]`: token i may look at token j. `keep` says for three times what is not dropped."""
        masks = (None,) * 3 if keep is None else keep
        tokens, width = x.shape
        projected = jax.vmap(self.query_key_value)(jax.vmap(self.attention_norm)(x))
        query, key, value = projected.reshape(tokens, 3, self.heads, width // self.heads).transpose(1, 2, 0, 3)
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(width // self.heads)
        weights = _drop(jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)), dropout, masks[0])
        attended = (weights @ value).transpose(1, 0, 2).reshape(tokens, width)
        x = x + _drop(jax.vmap(self.attention_out)(attended), dropout, masks[1])
        hidden = jax.nn.relu(jax.vmap(self.mlp_in)(jax.vmap(self.mlp_norm)(x)))
        return x + _drop(jax.vmap(self.mlp_out)(hidden), dropout, masks[2])


class Transformer(eqx.Module):
    """π(aₜ | R̂, s of the window up to t, a before t), for all t of a window at once."""

    embed_clock: eqx.nn.Embedding  # of the step in the episode; there is no other notion of position
    embed_return: eqx.nn.Linear
    embed_state: eqx.nn.Linear
    embed_action: eqx.nn.Linear
    embedding_norm: eqx.nn.LayerNorm
    blocks: tuple[Block, ...]
    final_norm: eqx.nn.LayerNorm
    predict_action: eqx.nn.Linear

    def __init__(self, spec: Spec, clocks: int, width: int, depth: int, heads: int, key: Array) -> None:
        keys = jax.random.split(key, 5 + depth)
        self.embed_clock = eqx.nn.Embedding(clocks, width, key=keys[0])
        self.embed_return = eqx.nn.Linear(1, width, key=keys[1])
        self.embed_state = eqx.nn.Linear(spec.observation_size, width, key=keys[2])
        self.embed_action = eqx.nn.Linear(spec.action_size, width, key=keys[3])
        self.predict_action = eqx.nn.Linear(width, spec.action_size, key=keys[4])
        self.embedding_norm, self.final_norm = eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width)
        self.blocks = tuple(Block(width, heads, k) for k in keys[5:])

    def __call__(self, window: Window, dropout: float = 0.0, key: Array | None = None) -> Array:
        """(K, action_size) in [-1, 1]; what stands at padding means nothing. Without a key nothing is dropped."""
        clock = self.embed_clock.weight[jnp.clip(window.steps, 0, len(self.embed_clock.weight) - 1)]
        kinds = (
            jax.vmap(self.embed_return)(window.returns_to_go[:, None]),
            jax.vmap(self.embed_state)(window.observations),
            jax.vmap(self.embed_action)(window.actions),
        )
        tokens = jnp.stack([kind + clock for kind in kinds], axis=1).reshape(3 * len(clock), -1)
        keep = None if key is None or dropout == 0 else self._keep(len(tokens), dropout, key)
        x = _drop(jax.vmap(self.embedding_norm)(tokens), dropout, None if keep is None else keep[0])
        number = jnp.arange(len(x))
        before = number[None, :] <= number[:, None]
        # A token always sees itself: padding then has something to average, and nothing turns into NaN.
        seen = before & jnp.repeat(window.valid, 3)[None, :] | jnp.eye(len(x), dtype=bool)
        for i, block in enumerate(self.blocks):
            x = block(x, seen, dropout, None if keep is None else keep[1 + 3 * i : 4 + 3 * i])
        at_states = jax.vmap(self.final_norm)(x).reshape(len(clock), 3, -1)[:, 1]
        return jnp.tanh(jax.vmap(self.predict_action)(at_states))

    def _keep(self, tokens: int, dropout: float, key: Array) -> Array:
        """What is not dropped, for every time that something is: drawn in one go, which compiles much faster."""
        largest = tokens * max(self.embed_clock.weight.shape[1], self.blocks[0].heads * tokens)
        return jax.random.bernoulli(key, 1.0 - dropout, (1 + 3 * len(self.blocks), largest))


def _gpt_linear(in_size: int, out_size: int, key: Array) -> eqx.nn.Linear:
    layer = eqx.nn.Linear(in_size, out_size, key=key)
    weight = WEIGHT_STD * jax.random.normal(key, layer.weight.shape)
    return eqx.tree_at(lambda made: (made.weight, made.bias), layer, (weight, jnp.zeros(out_size)))


def _drop(x: Array, rate: float, keep: Array | None) -> Array:
    return x if keep is None else jnp.where(keep[: x.size].reshape(x.shape), x / (1.0 - rate), 0.0)


# --- the policy ---


class Context(NamedTuple):
    """What is remembered of each of n episodes: its last K steps, the newest last, and what it still aims for."""

    returns_to_go: Array  # (n, K), scaled
    observations: Array  # (n, K, ·)
    actions: Array  # (n, K, ·)
    step: Array  # (n,) its clock: how many of these steps there are
    return_to_go: Array  # (n,) at the last step, scaled
    reward: Array  # (n,) of the last step, in the task's units, not yet taken off

    def rewarded(self, rewards: Array) -> Self:
        return self._replace(reward=rewards)


IN_A_FILE = {
    "returns_to_go": "context_returns_to_go",
    "observations": "context_observations",
    "actions": "context_actions",
    "step": "step",
    "return_to_go": "return_to_go",
}  # the fields of the context, and their names as inputs of a file


class TransformerPolicy(eqx.Module):
    """Asks the transformer for the action at the end of the context, which is read anew at every step.

    Keys and values of earlier steps cannot be kept: once the window slides, they are no longer what it would compute.
    """

    transformer: Transformer
    target: Array  # () the return-to-go of a first step, scaled
    return_scale: Array  # ()
    context: int = eqx.field(static=True)
    search: ClassVar[None] = None

    @property
    def traits(self) -> Traits:
        return Traits(remembers=True)

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
        clocks = carry.step[:, None] + jnp.arange(1 - self.context, 1)
        window = Window(
            returns_to_go=_pushed(carry.returns_to_go, to_go),
            observations=_pushed(carry.observations, observations),
            actions=_pushed(carry.actions, jnp.zeros_like(carry.actions[:, 0])),  # not chosen yet, and not looked at
            steps=clocks,
            valid=clocks >= 0,
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
        """The memory is the context. The reward of the step before is an input of its own."""

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
    """The return to aim for at test time, in the task's own units. None: the highest return in the data. (The original
    picks two by hand for each task: about an expert's return, and half of it.)"""
    return_scale: float | None = None
    """Returns-to-go are divided by it. None: their standard deviation over the steps of the data (the original: 1000
    for all locomotion)."""
    context: int = 20
    """K: how many steps the transformer sees, the present one included."""
    longest_episode: int | None = None
    """How many steps of an episode have an embedding of their own; all later steps share the last one. None: as many as
    the longest episode of the data has, at most 10,000 (the original: 1000)."""
    width: int = 128
    """Size of a token; the MLPs are four times as wide."""
    depth: int = 3
    """Transformer blocks."""
    heads: int = 1
    """Attention heads; the width must be a multiple of them."""
    dropout: float = 0.1
    """The share of activations dropped in training: embeddings, attention, and what each block adds."""
    normalize_observations: bool = True
    """Shift and scale observations to zero mean and unit variance."""
    learning_rate: float = 1e-4
    """AdamW's learning rate, after the warm-up."""
    warmup_steps: int = 10_000
    """Updates over which the learning rate rises from zero, linearly (10⁴ in the code, 10⁵ in the paper's table)."""
    weight_decay: float = 1e-4
    """AdamW's weight decay, on every weight."""
    gradient_clip: float = 0.25
    """The largest norm of a gradient, over all weights."""
    batch_size: int = 64
    """Windows of K steps in one update."""

    def __post_init__(self) -> None:
        require(self, "at least 1", "context", "longest_episode", "width", "heads", "warmup_steps", "batch_size")
        require(self, "from 1 to 100", "depth")
        require(self, "above 0", "learning_rate", "gradient_clip", "return_scale")
        require(self, "at least 0", "weight_decay")
        if not 0 <= self.dropout < 1:
            raise SettingError(f"dropout is {self.dropout}: give at least 0 and less than 1")
        if self.target_return is not None and not np.isfinite(self.target_return):
            raise SettingError(f"target_return is {self.target_return}: give a finite number")

    @classmethod
    def small(cls) -> Self:
        return cls(context=10, width=64, depth=2, batch_size=32, learning_rate=1e-3, warmup_steps=500)

    @classmethod
    def tiny(cls) -> Self:
        return cls(context=10, width=8, depth=1, batch_size=32, learning_rate=1e-2, warmup_steps=5)

    def resolve(self, dataset: Dataset) -> Self:
        scale = self.return_scale
        if scale is None:
            scale = Rewards("spread").treatment(dataset, 1.0).scale
        target = float(np.max(dataset.returns)) if self.target_return is None else self.target_return
        longest = self.longest_episode or min(int(np.max(dataset.lengths)), MOST_CLOCKS)
        return replace(self, return_scale=scale, target_return=target, longest_episode=longest)

    def prepare(self, dataset: Dataset) -> Prepared:
        return prepare_windows(
            dataset,
            back=self.context - 1,
            rewards=Treatment(_resolved(self.return_scale, "return_scale")),
            normalize_observations=self.normalize_observations,
        )

    def init(self, key: Array, spec: Spec, clock: Clock) -> DTState:
        if self.width % self.heads:
            raise SettingError(f"width is {self.width}: it must be a multiple of heads, {self.heads}")
        clocks = _resolved(self.longest_episode, "longest_episode")
        transformer = Transformer(spec, clocks, self.width, self.depth, self.heads, key)
        return DTState(transformer, self._optimizer().init(transformer))

    def update(self, state: DTState, batch: Window, key: Array, clock: Clock) -> tuple[DTState, Logged]:
        loss, gradient = jax.value_and_grad(self.loss)(state.transformer, batch, key)
        step, optimizer = self._optimizer().update(gradient, state.optimizer, state.transformer)
        return DTState(optax.apply_updates(state.transformer, step), optimizer), {"clone_loss": loss}

    def policy(self, state: DTState) -> TransformerPolicy:
        scale = _resolved(self.return_scale, "return_scale")
        target = _resolved(self.target_return, "target_return") / scale
        scaled, units = (jnp.asarray(value, dtype=float) for value in (target, scale))
        return TransformerPolicy(state.transformer, scaled, units, self.context)

    def diagnose(self, state: DTState, probe: Window) -> Metrics:
        """Does the action follow the return-to-go? If not, this is cloning, whatever the target."""
        to_go = probe.returns_to_go
        other = jnp.roll(to_go[:, -1], len(to_go) // 2)
        mistaken = probe._replace(returns_to_go=to_go + (other - to_go[:, -1])[:, None])
        raised = probe._replace(returns_to_go=to_go + 1.0)
        act = jax.vmap(state.transformer)
        return {
            "probe_clone_loss": self.loss(state.transformer, probe),
            "probe_clone_loss_other_return": self.loss(state.transformer, mistaken),
            "return_reaction": jnp.mean(jnp.abs(act(raised) - act(probe))[:, -1]),
        }

    def checks(self, metrics: dict[str, float]) -> list[Check]:
        """Does the Decision Transformer go by the return it is told?"""
        right = measured(metrics, "probe_clone_loss")
        cost = (measured(metrics, "probe_clone_loss_other_return") - right) / max(abs(right), 1e-12)
        return judged(
            "cost of a wrong return-to-go",
            cost,
            cost >= DEAF_COST,
            "actions are predicted worse with another window's return-to-go than with the right one: the target "
            "steers it",
            "deaf to the return: actions are predicted no worse with another window's return-to-go, so this is plain "
            "cloning whatever target_return says; train longer, or the data's returns do not tell its actions apart",
        )

    def loss(self, transformer: Transformer, batch: Window, key: Array | None = None) -> Array:
        """The squared error of every action inside its episode, the mean over them and the action's dimensions."""
        if key is None:
            predicted = jax.vmap(transformer)(batch)
        else:
            keys = jax.random.split(key, len(batch.valid))
            predicted = jax.vmap(transformer, (0, None, 0))(batch, self.dropout, keys)
        errors = jnp.mean((predicted - batch.actions) ** 2, axis=-1)
        return jnp.sum(jnp.where(batch.valid, errors, 0.0)) / jnp.sum(batch.valid)

    def _optimizer(self) -> optax.GradientTransformation:
        def rate(count: Array) -> Array:
            return self.learning_rate * jnp.minimum((count + 1) / self.warmup_steps, 1.0)

        return optax.chain(
            optax.clip_by_global_norm(self.gradient_clip), optax.adamw(rate, weight_decay=self.weight_decay)
        )


def _resolved(value: T | None, name: str) -> T:
    if value is None:
        raise DropError(f"{name} is open: call resolve(dataset) first")
    return value
