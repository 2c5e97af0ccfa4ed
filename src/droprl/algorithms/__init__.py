"""The algorithms by name. Each is one file: its config, its losses, its update."""

from droprl.algorithms.bc import BC, FBC
from droprl.algorithms.coms import COMs
from droprl.algorithms.cvae import DropCVAE
from droprl.algorithms.ddrop import DDROP
from droprl.algorithms.drop import DROP
from droprl.algorithms.dt import DT
from droprl.algorithms.onestep import Onestep
from droprl.algorithms.protocol import Algorithm
from droprl.algorithms.rvs import RvS

ALGORITHMS: dict[str, type[Algorithm]] = {
    "drop": DROP,
    "drop-cvae": DropCVAE,
    "ddrop": DDROP,
    "bc": BC,
    "fbc": FBC,
    "rvs": RvS,
    "onestep": Onestep,
    "dt": DT,
    "coms": COMs,
}

__all__ = ["ALGORITHMS", "BC", "DDROP", "DROP", "DT", "FBC", "Algorithm", "COMs", "DropCVAE", "Onestep", "RvS"]
