"""From rollouts to scores, intervals and tables."""

from droprl.evaluate.evaluate import Evaluation, evaluate, load_evaluations

__all__ = ["Evaluation", "evaluate", "load_evaluations"]
