"""A policy as one ONNX file: the whole step, test-time ascent included, for any runtime of that format and no JAX.

The file is compared with the policy before it gets its name.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.export import symbolic_shape

from droprl.adapt import tell_rewards
from droprl.deploy.program import NEXT, Program, program_of
from droprl.errors import DropError
from droprl.policy import LoadedPolicy
from droprl.train.storage import write_bytes
from droprl.version import __version__

TOLERANCE = 1e-4  # of an action, in parts of half its range, or of 1 where that is more
TRIED = 64, 3  # episodes and steps of the comparison
MOST_APART = 0.01  # the share that may differ by more: where two scores are equal but for rounding, either z is right


@dataclass(frozen=True)
class Exported:
    """What was written, and how far its actions were from the policy's at the states that were tried."""

    path: Path
    size: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    largest_difference: float


def export_onnx(policy: LoadedPolicy, path: str | Path) -> Exported:
    """Write the file, whole or not at all."""
    file = Path(path)
    if file.is_dir():
        raise DropError(f"{file}: is a folder: give the name of a file")
    program = program_of(policy)
    content = to_onnx(program, metadata(policy, program))
    difference = _compared(policy, program, content)
    write_bytes(file, content)
    return Exported(file, len(content), tuple(program.inputs), program.outputs, difference)


def to_onnx(program: Program, facts: dict[str, str]) -> bytes:
    try:
        from droprl.deploy.graph import Graph
        from droprl.deploy.translate import translate
    except ImportError as error:
        raise _not_installed(error) from error
    (batch,) = symbolic_shape("batch")
    shapes = {name: (batch, *row.shape) for name, row in program.inputs.items()}
    like = [jax.ShapeDtypeStruct(shapes[name], row.dtype) for name, row in program.inputs.items()]
    traced = jax.make_jaxpr(program.step)(*like)
    graph = Graph(batch)
    inputs = [graph.input(name, shapes[name], row.dtype) for name, row in program.inputs.items()]
    outputs = translate(graph, traced.jaxpr, traced.consts, inputs)
    model = graph.model(dict(zip(program.outputs, outputs, strict=True)), facts, "policy")
    return bytes(model.SerializeToString())


def metadata(policy: LoadedPolicy, program: Program) -> dict[str, str]:
    """What someone who has only the file wants to know: names to text, JSON where it is more than a word."""
    origin, adaptation = policy.origin, policy.algorithm.adaptation
    facts: dict[str, Any] = {
        "droprl": __version__,
        "algorithm": policy.algorithm.name,
        "dataset": origin.dataset,
        "task": origin.env or "",
        "seed": origin.seed,
        "update": origin.step,
        "memory": json.dumps({name: _row(program.inputs[name]) for name in program.memory}),
    }
    if adaptation is not None:
        facts |= {
            "rule": adaptation.rule,
            "K": adaptation.ascent_steps,
            "N": len(policy.policy.embeddings),  # type: ignore[attr-defined]
            "m": adaptation.reinference_interval,
            "adaptation": json.dumps(asdict(adaptation)),
        }
    return {name: str(fact) for name, fact in facts.items()}


def _row(first: np.ndarray) -> dict[str, Any]:
    """Of an input that is memory: its shape after the batch, its type, and what number a new episode fills it with."""
    return {"shape": first.shape, "type": str(first.dtype), "start": first.ravel()[0].item()}


# --- does it act as the policy does? ---


def _compared(policy: LoadedPolicy, program: Program, content: bytes) -> float:
    """The largest difference of an action, over made-up states that look like the data's."""
    try:
        import onnxruntime
    except ImportError as error:
        raise _not_installed(error) from error
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    n, steps = TRIED
    rng, scaling = np.random.default_rng(0), policy.scaling
    carry = policy.start(n)
    memory = {name: np.repeat(program.inputs[name][None], n, axis=0) for name in program.memory}
    half = np.maximum(0.5 * (np.asarray(scaling.action_high) - np.asarray(scaling.action_low)), 1.0)
    apart = []
    for step in range(steps):
        noise = rng.normal(size=(n, policy.spec.observation_size))
        states = (np.asarray(scaling.observation_mean) + noise * np.asarray(scaling.observation_std)).astype(np.float32)
        rewards = rng.normal(size=n).astype(np.float32) * (step > 0)
        carry, actions = policy.step(tell_rewards(carry, rewards), states, jax.random.key(0))
        given = {"observations": states, **memory} | ({"reward": rewards} if "reward" in program.inputs else {})
        answer = dict(zip(program.outputs, session.run(program.outputs, given), strict=True))
        memory = {name: answer[f"{NEXT}{name}"] for name in program.memory}
        apart.append(np.max(np.abs(answer["actions"] - actions) / half, axis=1))
    difference = np.concatenate(apart)
    if np.mean(~(difference <= TOLERANCE)) > MOST_APART:
        raise DropError(
            f"the ONNX file would not act as the policy does (differences up to {np.max(difference):.2g}), and was not "
            "written: please report this, with the run's config.json"
        )
    return float(np.max(difference))


def _not_installed(error: ImportError) -> DropError:
    return DropError(f"ONNX export needs what is not installed ({error}): pip install 'droprl[onnx]'")
