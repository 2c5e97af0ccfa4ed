"""The result of fine-tuning: `initial → fine-tuned`, and the optimistic return of the search."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from droprl.errors import DropError
from droprl.evaluation.evaluation import CheckpointEpisodes


@dataclass(frozen=True)
class TunedSeed:
    """One seed. `initial` and `tuned` played the same episodes. The search saw none of them."""

    step: int
    """The checkpoint; at the policy level, the number of updates since the run began."""
    ascent_steps: int | None
    """k, the chosen number of ascent steps."""
    steps_played: int
    """Environment steps paid by the budget."""
    episodes_played: int
    """Episodes paid by the budget."""
    chosen_for: float | None
    """What the chosen variant earned in the search, in the result's unit: optimistic."""
    initial: CheckpointEpisodes
    """The run's last checkpoint, with the k of its training or the k given."""
    tuned: CheckpointEpisodes
    """After fine-tuning."""


@dataclass(frozen=True)
class FineTuning:
    """The outcome for all seeds of a run."""

    level: str
    """checkpoint, embedding or policy."""
    budget: int
    """Environment steps for each seed."""
    algorithm: str
    """The algorithm's name."""
    adaptation: dict[str, Any] | None
    """The settings of inference. None: the algorithm infers nothing."""
    dataset: str
    """The dataset's name."""
    env: str
    """The task that was played."""
    unit: str
    """The unit of the values: D4RL-normalised score, or return."""
    caveat: str | None
    """Why scores in `env` are not quite D4RL's, if they are not."""
    seeds: list[TunedSeed]
    """The result of each seed."""

    @property
    def initial(self) -> float:
        """The mean over seeds and episodes, before fine-tuning."""
        return float(np.mean([v for s in self.seeds for v in s.initial.values]))

    @property
    def tuned(self) -> float:
        """The mean over seeds and episodes, after fine-tuning. Fine-tuning has not seen these episodes."""
        return float(np.mean([v for s in self.seeds for v in s.tuned.values]))

    @property
    def chosen_for(self) -> float | None:
        """The mean of what the chosen variants earned in the search: optimistic. None: nothing was chosen."""
        found = [s.chosen_for for s in self.seeds if s.chosen_for is not None]
        return float(np.mean(found)) if found else None

    @property
    def evaluation_steps(self) -> int:
        """Environment steps that measured `initial` and `tuned`. The budget does not pay them."""
        return sum(sum(s.initial.lengths) + sum(s.tuned.lengths) for s in self.seeds)

    def to_json(self) -> dict[str, Any]:
        summary = {name: getattr(self, name) for name in ("initial", "tuned", "chosen_for", "evaluation_steps")}
        return asdict(self) | summary


def from_json(content: Any, where: Path) -> FineTuning:
    try:
        fields = {name: content[name] for name in FineTuning.__dataclass_fields__}
        seeds = [
            TunedSeed(**s | {name: CheckpointEpisodes(**s[name]) for name in ("initial", "tuned")})
            for s in content["seeds"]
        ]
        return FineTuning(**fields | {"seeds": seeds})
    except (KeyError, TypeError, ValueError) as error:
        raise DropError(f"{where}: is not a result of fine-tuning: remove it and run `drop finetune` again") from error
