"""droprl: offline reinforcement learning that keeps optimising at test time.

dataset = droprl.load_dataset("walker2d-medium-replay.hdf5")
run = droprl.fit(dataset, droprl.DROP(), seeds=5)
print(droprl.evaluate(run, rule="grad-ada").mean)
action = droprl.load_policy(run.path).act(observation)
"""

from typing import TYPE_CHECKING, Any

from droprl.errors import DropError as DropError
from droprl.version import __version__ as __version__

if TYPE_CHECKING:
    from droprl.adapt import Adaptation as Adaptation
    from droprl.algorithms import *  # noqa: F403 - each under its own name
    from droprl.data import Dataset as Dataset
    from droprl.data import from_arrays as from_arrays
    from droprl.data import from_episodes as from_episodes
    from droprl.data import from_frame as from_frame
    from droprl.data import load_dataset as load_dataset
    from droprl.data import map_dataset as map_dataset
    from droprl.deploy import export_onnx as export_onnx
    from droprl.evaluation import Evaluation as Evaluation
    from droprl.evaluation import evaluate as evaluate
    from droprl.finetuning import FineTuning as FineTuning
    from droprl.finetuning import finetune as finetune
    from droprl.judging import Judgement as Judgement
    from droprl.judging import judge as judge
    from droprl.loaded import load_policy as load_policy
    from droprl.train import Run as Run
    from droprl.train import extend as extend
    from droprl.train import fit as fit

_HOME = {
    "Adaptation": "adapt",
    "Dataset": "data",
    "from_arrays": "data",
    "from_episodes": "data",
    "from_frame": "data",
    "load_dataset": "data",
    "map_dataset": "data",
    "export_onnx": "deploy",
    "Evaluation": "evaluation",
    "evaluate": "evaluation",
    "FineTuning": "finetuning",
    "finetune": "finetuning",
    "Judgement": "judging",
    "judge": "judging",
    "load_policy": "loaded",
    "Run": "train",
    "extend": "train",
    "fit": "train",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: `drop --help` need not wait for JAX."""
    import importlib

    if name in _HOME:
        value = getattr(importlib.import_module(f"droprl.{_HOME[name]}"), name)
    elif name == "__all__":  # for `from droprl import *`
        return __dir__()
    elif name[:1].isupper() and name in _algorithms():
        value = _algorithms()[name]
    else:
        raise AttributeError(f"module 'droprl' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_HOME, *_algorithms(), "DropError", "__version__"])


def _algorithms() -> dict[str, Any]:
    """The class of each algorithm, by the name of the class."""
    from droprl.algorithms import ALGORITHMS as ALGORITHMS

    return {kind.__name__: kind for kind in ALGORITHMS.values()}
