"""DROP's training in plain PyTorch, for `peers.py` to time droprl against: same sizes, same losses, no tricks.

Equations 6 and 8 with the Lagrangian, as `droprl.algorithms.drop` has them with `conditioning="concatenate"`. Written
as one would by hand: modules, autograd, Adam, nothing computed twice. `peers.py` checks that it computes what ours
does. Parameters are in the order of our arrays, so that weights carry over one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from droprl.algorithms import DROP
from droprl.data.rows import DeviceRows
from droprl.data.transitions import Spec, Transitions


class MLP(nn.Module):
    """Linear layers with ReLU between, optionally LayerNorm before each ReLU; without `out_size` an encoder."""

    def __init__(self, in_size: int, hidden: Sequence[int], out_size: int | None, layer_norm: bool = False) -> None:
        super().__init__()
        sizes = [in_size, *hidden, *([] if out_size is None else [out_size])]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in hidden if layer_norm)
        self.n_active = len(hidden)

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i < self.n_active:
                x = torch.relu(self.norms[i](x) if self.norms else x)
        return x


class Embedding(nn.Module):
    """φ: the whitened table of all z_n."""

    def __init__(self, n_sub_tasks: int, size: int, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Linear(n_sub_tasks, width)
        self.rest = MLP(width, [width] * (depth - 1), size)

    def forward(self) -> Tensor:
        raw = self.rest(torch.relu(self.first.weight.T + self.first.bias))
        return (raw - raw.mean(0)) * torch.rsqrt(raw.var(0, unbiased=False) + 1e-12)


class Policy(nn.Module):
    """β(s, z)."""

    def __init__(self, observations: int, actions: int, size: int, width: int, depths: Sequence[int]) -> None:
        super().__init__()
        self.encoder = MLP(observations, [width] * depths[0], None)
        self.decoder = MLP(size + width, [width] * depths[1], actions)

    def decode(self, encoded: Tensor, z: Tensor) -> Tensor:
        return torch.tanh(self.decoder(torch.cat([z, encoded], dim=1)))

    def forward(self, observation: Tensor, z: Tensor) -> Tensor:
        return self.decode(self.encoder(observation), z)


class Score(nn.Module):
    """f(s, a, z)."""

    def __init__(
        self, observations: int, actions: int, size: int, width: int, depths: Sequence[int], layer_norm: bool
    ) -> None:
        super().__init__()
        self.encoder = MLP(observations + actions, [width] * depths[0], None, layer_norm)
        self.decoder = MLP(size + width, [width] * depths[1], 1, layer_norm)

    def forward(self, observation: Tensor, action: Tensor, z: Tensor) -> Tensor:
        encoded = self.encoder(torch.cat([observation, action], dim=1))
        return self.decoder(torch.cat([z, encoded], dim=1)).squeeze(1)


class Networks(nn.Module):
    def __init__(self, settings: DROP, spec: Spec) -> None:
        super().__init__()
        assert settings.embedding_size is not None
        o, a, size, width, depths = (
            spec.observation_size,
            spec.action_size,
            settings.embedding_size,
            settings.width,
            settings.depths,
        )
        self.embedding = Embedding(spec.required_sub_tasks(), size, width, depths[0])
        self.policy = Policy(o, a, size, width, depths[1:3])
        self.score = Score(o, a, size, width, depths[3:], settings.score_layer_norm)

    def load(self, arrays: Sequence[np.ndarray]) -> None:
        """The weights of our networks, in the order of their leaves."""
        for own, array in zip(self.parameters(), arrays, strict=True):
            if tuple(own.shape) != array.shape:
                raise ValueError(f"an array of shape {array.shape} for weights of shape {tuple(own.shape)}")
            own.data.copy_(torch.tensor(array))


class Batch(NamedTuple):
    """As `droprl.data.transitions.Batch`."""

    observation: Tensor
    action: Tensor
    sub_task: Tensor
    reward: Tensor
    discount: Tensor
    next_observation: Tensor
    next_action: Tensor
    next_action_known: Tensor
    has_target: Tensor


class Table:
    """The prepared transitions of our side, drawn from in the same way."""

    def __init__(self, ours: Transitions) -> None:
        rows, groups = ours
        assert isinstance(rows, DeviceRows)
        assert rows.targets is not None
        assert groups is not None
        columns = {"observations": rows.observations, "actions": rows.actions, "order": rows.order}
        columns |= rows.targets._asdict() | groups._asdict()
        self.columns = {name: torch.tensor(np.asarray(column)) for name, column in columns.items()}

    def sample(self, size: int) -> Batch:
        sizes = self.columns["size"]
        sub_task = torch.randint(len(sizes), (size,))
        step = (torch.rand(size) * sizes[sub_task]).long()
        return self.take(self.columns["order"][self.columns["begin"][sub_task] + step], sub_task)

    def take(self, row: Tensor, sub_task: Tensor) -> Batch:
        of = self.columns
        return Batch(
            observation=of["observations"][row],
            action=of["actions"][row],
            sub_task=sub_task,
            reward=of["reward"][row],
            discount=of["discount"][row],
            next_observation=of["observations"][of["successor"][row]],
            next_action=of["actions"][of["next_action"][row]],
            next_action_known=of["next_action_known"][row],
            has_target=of["has_target"][row],
        )


def n_unseen(settings: DROP) -> int:
    return math.ceil(settings.constraint_share * settings.batch_size)


class TorchDrop:
    """The state of training and its update."""

    def __init__(self, settings: DROP, spec: Spec) -> None:
        self.settings = settings
        self.networks = Networks(settings, spec)
        self.average = deepcopy(self.networks).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.networks.parameters(), lr=settings.learning_rate)
        self.multiplier = torch.tensor(settings.multiplier_start)
        self.updates = 0

    def draw_unseen(self) -> Tensor:
        """Uniform over the box of the z_n, in units of that box."""
        assert self.settings.embedding_size is not None
        return torch.rand(n_unseen(self.settings), self.settings.embedding_size)

    def losses(self, batch: Batch, unit: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Cloning + TD + λ · (gap − η); `unit`: where the unseen z lie in the box of the z_n."""
        n = len(unit)
        policy, score = self.networks.policy, self.networks.score
        table = self.networks.embedding()
        z = table[batch.sub_task]
        encoded = policy.encoder(batch.observation)
        own_action = policy.decode(encoded, z)
        clone = 0.5 * ((batch.action - own_action) ** 2).mean()

        with torch.no_grad():
            low, high = table.min(0).values, table.max(0).values
            unseen_z, seen_z = low + (high - low) * unit, z.detach()
            unseen_action, seen_action = policy.decode(encoded[:n], unseen_z), own_action[:n].detach()
            answered = policy(batch.next_observation, seen_z)
            next_action = torch.where(batch.next_action_known[:, None], batch.next_action, answered)
            target = batch.reward + batch.discount * self.average.score(batch.next_observation, next_action, seen_z)

        errors = target - score(batch.observation, batch.action, seen_z)
        td = (batch.has_target * errors**2).sum() / batch.has_target.sum().clamp(min=1.0)
        unseen = score(batch.observation[:n], unseen_action, unseen_z)
        gap = (unseen - score(batch.observation[:n], seen_action, seen_z[:n])).mean()
        loss = clone + td + self.multiplier * (gap - self.settings.threshold)
        return loss, {"clone_loss": clone.detach(), "td_loss": td.detach(), "gap": gap.detach()}

    def update(self, batch: Batch, unit: Tensor) -> dict[str, Tensor]:
        """A primal step on the networks, a dual step on λ, a slow step of the averages."""
        loss, metrics = self.losses(batch, unit)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        dual = self.multiplier + self.settings.multiplier_rate * (metrics["gap"] - self.settings.threshold)
        self.multiplier = dual.clamp(0.0, self.settings.multiplier_max)
        slow = self.settings.target_rate
        early = max(slow, 9.0 / (9.0 + self.updates))
        with torch.no_grad():
            for name, module in self.networks.named_children():
                averaged = getattr(self.average, name).parameters()
                for average, new in zip(averaged, module.parameters(), strict=True):
                    average.lerp_(new, slow if name == "score" else early)
        return metrics
