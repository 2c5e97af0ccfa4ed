"""From rollouts to scores, intervals and tables."""

from droprl.evaluate.evaluate import EVALUATION_SEED, Evaluation, evaluate, load_evaluations

__all__ = ["EVALUATION_SEED", "Evaluation", "evaluate", "load_evaluations"]
