"""Test-time adaptation: the search for z* at a state, and the policies that carry it through an episode."""

from droprl.adapt.inference import RULES, Adaptation, InferenceRule, Inferred, infer
from droprl.adapt.policy import AdaptivePolicy, FixedPolicy, Policy

__all__ = ["RULES", "Adaptation", "AdaptivePolicy", "FixedPolicy", "InferenceRule", "Inferred", "Policy", "infer"]
