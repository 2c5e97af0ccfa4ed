"""The algorithms by name. Each is one file: its settings, its losses, its update.

A new algorithm is one more import below. `ALGORITHMS` follows from it, and from that the names that the package
exports, `--algo`, what suites know, and the table in the documentation.
"""

from typing import Any

from droprl.algorithms.bc import BC as BC
from droprl.algorithms.bc import FBC as FBC
from droprl.algorithms.coms import COMs as COMs
from droprl.algorithms.cvae import DropCVAE as DropCVAE
from droprl.algorithms.ddrop import DDROP as DDROP
from droprl.algorithms.drop import DROP as DROP
from droprl.algorithms.dt import DT as DT
from droprl.algorithms.iql import IQL as IQL
from droprl.algorithms.onestep import Onestep as Onestep
from droprl.algorithms.protocol import Algorithm as Algorithm
from droprl.algorithms.rvs import RvS as RvS

_imported: list[Any] = [kind for kind in list(globals().values()) if hasattr(kind, "card")]
ALGORITHMS: dict[str, type[Algorithm]] = {kind.name: kind for kind in _imported}
