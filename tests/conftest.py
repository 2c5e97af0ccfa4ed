"""Compiled programs are kept while the tests run, in a folder of their own: nothing is compiled twice, for subprocesses
neither, and nobody's cache is touched. JAX reads these variables when it is first imported."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

_folder = os.environ.get("DROPRL_TESTS_CACHE", "")
if not _folder:  # the first process; those that run tests beside it inherit the name
    _folder = os.environ["DROPRL_TESTS_CACHE"] = tempfile.mkdtemp(prefix="droprl-tests-")
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # bits and tolerances are a CPU's
os.environ["XDG_CACHE_HOME"] = _folder  # where the command line keeps compiled programs
os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.join(_folder, "droprl", "jax")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
