"""Online fine-tuning: improve a trained run in its task, within a budget of environment steps."""

from droprl.finetuning.result import FineTuning
from droprl.finetuning.tuning import Level, Protocol, finetune

__all__ = ["FineTuning", "Level", "Protocol", "finetune"]
