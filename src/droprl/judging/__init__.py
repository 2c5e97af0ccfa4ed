"""Judging a policy from the data alone: nothing is played."""

from droprl.judging.estimates import Estimate, Estimation, Estimator, choose, estimates
from droprl.judging.judgement import Agreement, Judgement, judge

__all__ = ["Agreement", "Estimate", "Estimation", "Estimator", "Judgement", "choose", "estimates", "judge"]
