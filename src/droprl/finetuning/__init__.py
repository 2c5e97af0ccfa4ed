"""Online fine-tuning: a trained run goes on in its task, within a budget of environment steps."""

from droprl.finetuning.finetune import Level, finetune
from droprl.finetuning.result import FineTuning

__all__ = ["FineTuning", "Level", "finetune"]
