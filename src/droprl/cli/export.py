"""`drop export`: one seed's policy, as a folder for droprl or as an ONNX file for other software."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from droprl.cli.evaluate import AdaptationOptions
from droprl.cli.options import Folder, parse, print_json, refuse_to_replace
from droprl.errors import UsageError
from droprl.loaded import load_policy
from droprl.terminal import remark


@dataclass(frozen=True)
class ExportOptions:
    """Save one seed's policy: weights, embeddings, normaliser, bounds and settings."""

    run: Folder
    """The folder that `drop train` made, or an earlier `drop export --out`."""
    out: Path | None = None
    """Write a policy folder, for droprl.load_policy."""
    onnx: Path | None = None
    """Write one ONNX file for onnxruntime, with the whole ascent at test time inside. It needs no JAX and no droprl."""
    seed: int | None = None
    """Which seed; by default the first."""
    adaptation: AdaptationOptions = field(default_factory=AdaptationOptions)
    force: bool = False
    """Replace a policy or a file that is there already."""
    json: bool = False
    """Print one JSON object: what was written where."""


def export(words: list[str]) -> None:
    options = parse(ExportOptions, "export", words)
    if options.out is None and options.onnx is None:
        raise UsageError("nothing to write: give --out FOLDER, --onnx FILE, or both")
    policy = load_policy(options.run, seed=options.seed, **options.adaptation.chosen())
    for place in (None if options.out is None else options.out / "policy.json", options.onnx):
        if place is not None:
            refuse_to_replace(place, options.force)
    written: dict[str, Any] = {}
    lines: list[str] = []
    with ExitStack() as held:
        translated = None
        if options.onnx is not None:
            from droprl.deploy.onnx_file import translate_policy

            # All refusals come here, before the folder is written.
            translated = translate_policy(policy, options.onnx)
            held.enter_context(translated.lock())
        if options.out is not None:
            path = policy.save(options.out)
            written["policy"] = str(path)
            lines = [f"{path}: use it with droprl.load_policy({str(path)!r}).act(observation)"]
        if translated is not None:
            made = translated.write()
            written["onnx"] = {**asdict(made), "path": str(made.path)}
            lines += [
                f"{made.path}: {made.size / 1e6:.1f} MB, {', '.join(made.inputs)} → {', '.join(made.outputs)}; "
                f"its actions differ from the policy's by at most {made.largest_difference:.1g} half-ranges",
                f"sha256 {made.sha256}",
            ]
    if options.json:
        print_json(written)
    else:
        remark(*lines)
