"""Policies as values, wherever they come from."""

from droprl.policies.fixed import FixedPolicy
from droprl.policies.policy import Carry, HearsRewards, Policy, tell_rewards

__all__ = ["Carry", "FixedPolicy", "HearsRewards", "Policy", "tell_rewards"]
