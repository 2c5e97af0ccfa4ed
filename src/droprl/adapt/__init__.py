"""Test-time adaptation: the search for z* at a state, and the policies that carry it through an episode."""

from droprl.adapt.inference import RULES, Adaptation, InferenceRule, Inferred, infer
from droprl.adapt.policy import AdaptivePolicy, FixedPolicy, HearsRewards, Policy, tell_rewards
from droprl.adapt.trust import Trust, trust

__all__ = [
    "RULES",
    "Adaptation",
    "AdaptivePolicy",
    "FixedPolicy",
    "HearsRewards",
    "InferenceRule",
    "Inferred",
    "Policy",
    "Trust",
    "infer",
    "tell_rewards",
    "trust",
]
