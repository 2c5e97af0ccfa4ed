"""A policy as one ONNX file: the whole step, test-time ascent included. Any ONNX runtime can play it, without JAX.

The file is compared with the policy before it is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.export import symbolic_shape

from droprl.deploy.agreement import Agreement, Answer, agreement
from droprl.deploy.program import FileProgram, program_of
from droprl.errors import DropError
from droprl.files.locks import locked
from droprl.files.seals import digest
from droprl.files.storage import write_bytes
from droprl.loaded import LoadedPolicy
from droprl.version import __version__

EPISODES, STEPS, MOST_STEPS = 64, 3, 12  # in the comparison


@dataclass(frozen=True)
class Exported:
    """The file that was written, and how far its actions were from the policy's in the comparison."""

    path: Path
    """The file."""
    size: int
    """Its size in bytes."""
    inputs: tuple[str, ...]
    """The names of its inputs."""
    outputs: tuple[str, ...]
    """The names of its outputs."""
    largest_difference: float
    """Of an action from the policy's, in half-ranges, at the states that were tried."""
    sha256: str
    """The digest of the file."""


@dataclass(frozen=True)
class Translated:
    """A policy's file that has passed the comparison and is not yet on the disk."""

    file: Path
    content: bytes
    program: FileProgram
    found: Agreement

    def lock(self) -> AbstractContextManager[None]:
        """The right to write the file. If two processes export to the same place, the second one is refused."""
        return locked(self.file.parent, f".{self.file.name}.lock", f"exporting {self.file.name}", passing=True)

    def write(self) -> Exported:
        """Write the whole file or nothing. Call this while you hold the `lock`."""
        write_bytes(self.file, self.content)
        names, size = (tuple(self.program.inputs), self.program.outputs), len(self.content)
        return Exported(self.file, size, *names, self.found.largest, digest(self.content))


def export_onnx(policy: LoadedPolicy, path: str | Path) -> Exported:
    """Write a policy as one ONNX file, with its search for z inside. If it acts unlike the policy, write nothing."""
    translated = translate_policy(policy, path)
    with translated.lock():
        return translated.write()


def translate_policy(policy: LoadedPolicy, path: str | Path) -> Translated:
    """Every refusal happens here, before anything is written."""
    file = Path(path)
    if file.is_dir():
        raise DropError(f"{file}: is a folder: give the name of a file")
    if why := policy.algorithm.card.no_export:
        raise DropError(
            f"{policy.algorithm.name}: its policy cannot be an ONNX file ({why}): save it as a folder for droprl with "
            "--out FOLDER"
        )
    program = program_of(policy)
    content = to_onnx(program, metadata(policy, program))
    return Translated(file, content, program, _compared(policy, program, content))


def to_onnx(program: FileProgram, facts: dict[str, str]) -> bytes:
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


def metadata(policy: LoadedPolicy, program: FileProgram) -> dict[str, str]:
    """What someone who has only the file wants to know. Values are text; those of more than one word are JSON."""
    origin, search = policy.origin, policy.search
    facts: dict[str, Any] = {
        "droprl": __version__,
        "algorithm": policy.algorithm.name,
        "dataset": origin.dataset,
        "task": origin.env or "",
        "time_limit": "" if origin.time_limit is None else origin.time_limit,
        "seed": origin.seed,
        "update": origin.step,
        "memory": json.dumps({name: _row(program.inputs[name]) for name in program.memory}),
    }
    for name, parts in (("observations", origin.observation_parts), ("actions", origin.action_parts)):
        if parts is not None:  # the name and size of each part, in the order of the vector
            facts[name] = json.dumps(parts)
    if search is not None:
        adaptation = search.adaptation
        facts |= {
            "rule": adaptation.rule,
            "K": adaptation.ascent_steps,
            "N": len(search.embeddings),
            "m": adaptation.reinference_interval,
            "adaptation": json.dumps(asdict(adaptation)),
        }
    return {name: str(fact) for name, fact in facts.items()}


def _row(first: np.ndarray) -> dict[str, Any]:
    """An input that is memory: its shape after the batch, its type, and the number that fills it in a new episode."""
    if first.size and np.any(first != first.flat[0]):
        raise DropError("an episode's memory does not begin with one number throughout: it cannot be exported")
    return {"shape": first.shape, "type": str(first.dtype), "start": first.flat[0].item() if first.size else 0}


# --- does it act as the policy does? ---


def _compared(policy: LoadedPolicy, program: FileProgram, content: bytes) -> Agreement:
    try:
        import onnxruntime
    except ImportError as error:
        raise _not_installed(error) from error
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def file(given: Answer) -> Answer:
        return dict(zip(program.outputs, session.run(program.outputs, given), strict=True))

    found = agreement(policy, program, file, _made_up(policy))
    if found.wrong:
        raise DropError(
            f"the ONNX file would not act as the policy does ({found.wrong}), so it was not written: please report "
            "this, with the run's config.json"
        )
    return found


def _made_up(policy: LoadedPolicy) -> Iterator[np.ndarray]:
    """States that look like the data's, for enough steps that z is inferred a second time."""
    rng, scaling, shape = np.random.default_rng(0), policy.scaling, (EPISODES, policy.spec.observation_size)
    for _ in range(min(max(STEPS, policy.traits.interval + 1), MOST_STEPS)):
        noise = rng.normal(size=shape) * np.asarray(scaling.observation_std)
        yield (np.asarray(scaling.observation_mean) + noise).astype(np.float32)


def _not_installed(error: ImportError) -> DropError:
    return DropError(f"ONNX export needs packages that are not installed ({error}): pip install 'droprl[onnx]'")
