"""The result of fine-tuning: `initial → fine-tuned`, and the optimistic return of the search."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from droprl.errors import DropError
from droprl.evaluation.evaluation import CheckpointEpisodes
from droprl.files.settings import from_dict


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
    """What the chosen variant earned in the search, by the search's rule, in the result's unit: optimistic."""
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
    protocol: str | None = None
    """How the search chose: as the paper, or thoroughly. None at the policy level, which does not search."""
    search_rule: str | None = None
    """The rule by which the search played, if it is not that of the policy."""

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
    fields = FineTuning.__dataclass_fields__
    if isinstance(content, dict):  # without the means, which follow from the rest
        before = {"protocol": None if content.get("level") == "policy" else "thorough", "search_rule": None}
        content = before | {name: value for name, value in content.items() if name in fields}
    found = from_dict(FineTuning, content, str(where), "remove it and run `drop finetune` again")
    if not found.seeds:
        raise DropError(f"{where}: has no seeds: remove it and run `drop finetune` again")
    return found
