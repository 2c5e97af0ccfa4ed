"""droprl: offline reinforcement learning that keeps optimising at test time.

dataset = droprl.load_dataset("walker2d-medium-replay.hdf5")
run = droprl.fit(dataset, droprl.DROP(), seeds=5)
print(droprl.evaluate(run, rule="grad-ada").mean)
action = droprl.load_policy(run.path).act(observation)
"""

from typing import TYPE_CHECKING, Any

from droprl.errors import DropError
from droprl.version import __version__

if TYPE_CHECKING:
    from droprl.adapt import Adaptation
    from droprl.algorithms import BC, DDROP, DROP, DT, FBC, COMs, DropCVAE, Onestep, RvS
    from droprl.data import Dataset, from_arrays, load_dataset, map_dataset
    from droprl.deploy import export_onnx
    from droprl.evaluation import Evaluation, evaluate
    from droprl.finetuning import FineTuning, finetune
    from droprl.loaded import load_policy
    from droprl.train import Run, fit

__all__ = [
    "BC",
    "DDROP",
    "DROP",
    "DT",
    "FBC",
    "Adaptation",
    "COMs",
    "Dataset",
    "DropCVAE",
    "DropError",
    "Evaluation",
    "FineTuning",
    "Onestep",
    "Run",
    "RvS",
    "__version__",
    "evaluate",
    "export_onnx",
    "finetune",
    "fit",
    "from_arrays",
    "load_dataset",
    "load_policy",
    "map_dataset",
]

_HOME = {
    "Adaptation": "adapt",
    "BC": "algorithms",
    "DDROP": "algorithms",
    "DROP": "algorithms",
    "DT": "algorithms",
    "COMs": "algorithms",
    "FBC": "algorithms",
    "DropCVAE": "algorithms",
    "Onestep": "algorithms",
    "RvS": "algorithms",
    "Dataset": "data",
    "from_arrays": "data",
    "load_dataset": "data",
    "map_dataset": "data",
    "export_onnx": "deploy",
    "Evaluation": "evaluation",
    "evaluate": "evaluation",
    "FineTuning": "finetuning",
    "finetune": "finetuning",
    "load_policy": "loaded",
    "Run": "train",
    "fit": "train",
}


def __getattr__(name: str) -> Any:
    """Import on first use: `drop --help` need not wait for JAX."""
    if name not in _HOME:
        raise AttributeError(f"module 'droprl' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"droprl.{_HOME[name]}"), name)
    globals()[name] = value
    return value
