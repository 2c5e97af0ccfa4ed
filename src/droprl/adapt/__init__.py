"""Test-time adaptation: the search for z* at one state. `droprl.policies` carries z* through an episode."""

from droprl.adapt.inference import RULES, Adaptation, InferenceRule, Inferred, infer
from droprl.adapt.plane import Plane
from droprl.adapt.search import Search

__all__ = ["RULES", "Adaptation", "InferenceRule", "Inferred", "Plane", "Search", "infer"]
