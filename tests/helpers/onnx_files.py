"""An ONNX file as a user of onnxruntime has it, and whether it plays as the policy does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime

from droprl.deploy import onnx_file
from droprl.loaded import LoadedPolicy

EPISODES = onnx_file.EPISODES  # the same number as in the comparison of an export, so that nothing is compiled twice
STATES = np.random.default_rng(7).normal(size=(5, EPISODES, 3)).astype(np.float32)
REWARDS = np.random.default_rng(8).normal(size=(5, EPISODES)).astype(np.float32)
REWARDS[0] = 0.0


class File:
    """The file as a user of onnxruntime plays it: the outputs next_… are the inputs of the next step."""

    def __init__(self, path: Path) -> None:
        self.session = onnxruntime.InferenceSession(path)
        self.facts = self.session.get_modelmeta().custom_metadata_map
        self.inputs = [value.name for value in self.session.get_inputs()]
        self.outputs = [value.name for value in self.session.get_outputs()]
        self.memory: dict[str, np.ndarray] = {}

    def start(self, n: int) -> None:
        kinds = json.loads(self.facts["memory"])
        self.memory = {name: np.full((n, *k["shape"]), k["start"], k["type"]) for name, k in kinds.items()}

    def __call__(self, observations: np.ndarray, rewards: np.ndarray | None = None) -> dict[str, np.ndarray]:
        given = {"observations": observations, "reward": rewards, **self.memory}
        found = self.session.run(None, {name: given[name] for name in self.inputs})
        answer = dict(zip(self.outputs, found, strict=True))
        self.memory = {name: answer[f"next_{name}"] for name in self.memory}
        return answer


def assert_plays_alike(policy: LoadedPolicy, path: Path) -> File:
    """Check several steps of several episodes. One episode alone must get the same actions as beside others."""
    policy.reset()
    many, alone = File(path), File(path)
    many.start(len(STATES[0]))
    alone.start(1)
    for states, rewards in zip(STATES, REWARDS, strict=True):
        actions = many(states, rewards)["actions"]
        np.testing.assert_allclose(actions, policy.act(states, rewards), atol=1e-5)
        np.testing.assert_allclose(alone(states[:1], rewards[:1])["actions"], actions[:1], atol=1e-5)
    return many
