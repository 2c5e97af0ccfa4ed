"""From rollouts to scores, intervals and aggregates."""

from droprl.evaluation.evaluation import EVALUATION_SEED, Evaluation, evaluate, load_evaluations

__all__ = ["EVALUATION_SEED", "Evaluation", "evaluate", "load_evaluations"]
