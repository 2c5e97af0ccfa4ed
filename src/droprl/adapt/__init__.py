"""Test-time adaptation: the search for z* at a state, and the policy that carries it through an episode."""

from droprl.adapt.adaptive import AdaptivePolicy
from droprl.adapt.inference import RULES, Adaptation, InferenceRule, Inferred, infer
from droprl.adapt.trust import Trust, trust

__all__ = ["RULES", "Adaptation", "AdaptivePolicy", "InferenceRule", "Inferred", "Trust", "infer", "trust"]
