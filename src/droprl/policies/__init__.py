"""Policies as values: they open episodes, act in them, and tell callers how they act and what they chose."""

from droprl.policies.adaptive import AdaptiveMemory, AdaptivePolicy
from droprl.policies.fixed import ActorPolicy, FixedPolicy
from droprl.policies.policy import Carry, Facts, HearsRewards, Policy, Traits, tell_rewards
from droprl.policies.program import Program, first_row
from droprl.policies.trust import Trust, trust

__all__ = [
    "ActorPolicy",
    "AdaptiveMemory",
    "AdaptivePolicy",
    "Carry",
    "Facts",
    "FixedPolicy",
    "HearsRewards",
    "Policy",
    "Program",
    "Traits",
    "Trust",
    "first_row",
    "tell_rewards",
    "trust",
]
