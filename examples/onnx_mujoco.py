"""Plays episodes of a Gymnasium task with the ONNX file that `drop export RUN --onnx FILE` wrote.

It needs numpy, onnxruntime and gymnasium[mujoco], but no JAX and no droprl:

    python examples/onnx_mujoco.py policy.onnx --episodes 5
"""

import argparse
import json

import gymnasium
import numpy as np
import onnxruntime

parser = argparse.ArgumentParser()
parser.add_argument("file")
parser.add_argument("--task", help="a Gymnasium id; by default the task named in the file")
parser.add_argument("--episodes", type=int, default=1)
arguments = parser.parse_args()

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1  # with one observation at a time more threads do not help
session = onnxruntime.InferenceSession(arguments.file, options)
facts = session.get_modelmeta().custom_metadata_map
inputs, outputs = ([value.name for value in values] for values in (session.get_inputs(), session.get_outputs()))
limit = facts.get("time_limit") if arguments.task in (None, facts["task"]) else None  # another task has its own
env = gymnasium.make(arguments.task or facts["task"], max_episode_steps=int(limit) if limit else None)

for episode in range(arguments.episodes):
    # The memory of the policy is an input of every step. The outputs next_… are the memory for the next step.
    kinds = json.loads(facts["memory"])
    memory = {name: np.full((1, *kind["shape"]), kind["start"], kind["type"]) for name, kind in kinds.items()}
    observation, _ = env.reset(seed=episode)
    total, reward, done, steps = 0.0, 0.0, False, 0
    while not done:
        given = {"observations": observation[None].astype(np.float32), "reward": np.float32([reward]), **memory}
        answer = dict(zip(outputs, session.run(None, {name: given[name] for name in inputs}), strict=True))
        memory = {name: answer[f"next_{name}"] for name in memory}
        observation, reward, terminated, truncated, _ = env.step(answer["actions"][0])
        total, steps, done = total + float(reward), steps + 1, terminated or truncated
    print(f"{env.spec.id} with {facts['algorithm']} {facts.get('rule', '')}: {steps} steps, return {total:.1f}")
