"""All test processes share one temporary folder of compiled programs. So nothing is compiled twice, and the user's own
cache is not touched. JAX reads these variables when it is first imported."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

_folder = os.environ.get("DROPRL_TESTS_CACHE", "")
if not _folder:  # this is the first process; the others inherit the name
    _folder = os.environ["DROPRL_TESTS_CACHE"] = tempfile.mkdtemp(prefix="droprl-tests-")
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # expected bits and tolerances are those of a CPU
os.environ["XDG_CACHE_HOME"] = _folder  # here the command line stores compiled programs
os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.join(_folder, "droprl", "jax")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
