"""The same suite in other processes and on a real Ray, some processes killed: the results are those of a plain run."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.benches import TINY, write_hopper
from helpers.training import learnable_dataset, save_npz

from droprl.bench import Bench, InProcesses, OnRay, load_suite, run_suite
from droprl.bench.suite import Figure, Method, Suite
from droprl.cli import main
from droprl.errors import DropError
from droprl.train import Run

SLOW = Method("slow", "bc", {"width": 8, "batch_size": 16})


def suite_of(source: Path, steps: int = 8_000) -> Suite:
    return Suite("two", "Two runs", "", (str(source),), (SLOW, Method("other", "fbc", SLOW.settings)), {},
                 Figure("training"), steps, 2, 0)  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_npz(learnable_dataset(), tmp_path_factory.mktemp("data") / "learnable.npz")


@pytest.fixture(scope="module")
def plain(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = Bench(suite_of(source), tmp_path_factory.mktemp("plain"))
    run_suite(made)
    return made


def weights(bench: Bench) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for task in bench.suite.tasks:
        for method in bench.suite.methods:
            last = Run(bench.run_path(task, method)).checkpoint().path
            found |= {f"{method.name}/{p.name}": p.read_bytes() for p in sorted(last.glob("*.safetensors"))}
    assert len(found) >= 2
    return found


class KillOnce:
    """Kills the process that holds a run's lock, once, when the run has a checkpoint and is not finished."""

    def __init__(self, run: Path, steps: int) -> None:
        self.killed: int | None = None
        self._run, self._steps = run, steps
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> KillOnce:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.is_set() and self.killed is None:
            time.sleep(0.01)
            if (self._run / "config.json").exists():
                steps = [c.step for c in Run(self._run).checkpoints()]
                if steps and max(steps) < self._steps:
                    self.killed = holder(self._run / ".lock")
                    if self.killed is not None:
                        os.kill(self.killed, signal.SIGKILL)


def holder(lock: Path) -> int | None:
    """The process that has this file open, other than this one."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                if any(os.path.realpath(f) == os.path.realpath(lock) for f in (process / "fd").iterdir()):
                    return int(process.name)
            except OSError:
                continue
    return None


linux = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds the worker through /proc")


@linux
def test_a_killed_process_changes_no_result(plain: Bench, source: Path, tmp_path: Path) -> None:
    made = Bench(suite_of(source), tmp_path / "out")
    with KillOnce(made.run_path(str(source), SLOW), made.suite.steps) as killer:
        run_suite(made, InProcesses(2))
    assert killer.killed is not None
    assert weights(made) == weights(plain)
    cost, uncut = made.cost(str(source), SLOW), plain.cost(str(source), SLOW)
    assert cost is not None
    assert uncut is not None
    assert 0 < cost["updates"] < uncut["updates"] == made.suite.steps
    assert cost["updates_per_second"] == pytest.approx(cost["updates"] / cost["train_seconds"])


def test_a_cell_whose_process_always_dies_is_given_up_and_named(source: Path, tmp_path: Path) -> None:
    made = Bench(suite_of(source, steps=10), tmp_path / "out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", "--no_such_flag")  # XLA ends a process with this flag
        with pytest.raises(DropError, match=r"2 of 2 failed .* 3 times"):
            run_suite(made, InProcesses(2))


def test_a_ray_with_too_few_gpus_is_refused(source: Path, tmp_path: Path, ray_of_two: Any) -> None:
    made = Bench(suite_of(source, steps=10), tmp_path / "out")
    with pytest.raises(DropError, match="asks for 99 GPUs and the cluster has 0"):
        run_suite(made, OnRay(gpus=99))


class FakeRay:
    """Records what it is asked for. Its tasks do nothing and end at once."""

    exceptions = SimpleNamespace(RayError=RuntimeError)

    def __init__(self) -> None:
        self.address: str | None = None
        self.options: dict[str, Any] = {}

    def is_initialized(self) -> bool:
        return False

    def init(self, address: str | None = None, **options: Any) -> None:
        self.address = address

    def shutdown(self) -> None: ...

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 8.0, "GPU": 1.0}

    def remote(self, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        self.options = options
        return lambda function: SimpleNamespace(remote=lambda bench, cell: (cell, function))

    def wait(self, refs: list[Any]) -> tuple[list[Any], list[Any]]:
        return refs[:1], refs[1:]

    def get(self, ref: Any) -> None: ...


@pytest.mark.parametrize("words", [["--ray"], ["--ray", "--workers", "1"], ["--ray", "auto"]])
def test_ray_without_an_address_is_a_new_one_and_its_tasks_ask_for_cpus_and_gpus(
    words: list[str], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr("droprl.cli.bench._draw", lambda *given: None)
    mine = tmp_path / "mine.toml"
    mine.write_text(TINY.replace('["hopper-medium", "hopper-random"]', f'["{source}"]'), encoding="utf-8")
    main(["bench", str(mine), "--out", str(tmp_path / "out"), "--cpus", "2", "--gpus", "0.25", *words])
    assert fake.address == ("auto" if "auto" in words else "local")
    assert (fake.options["num_cpus"], fake.options["num_gpus"]) == (2.0, 0.25)
    assert fake.options["max_calls"] == 1  # so the peak memory is that of one cell


def test_an_address_without_an_answer_is_refused(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    made = Bench(suite_of(source, steps=10), tmp_path / "out")
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1"):
        with pytest.raises(DropError, match=f"^{address}: no Ray cluster answers there .*: check the address"):
            run_suite(made, OnRay(address))
    assert fake.address is None  # Ray is never called: it would end the process


@linux
def test_ray_gives_the_same_with_a_killed_worker(plain: Bench, source: Path, tmp_path: Path, ray_of_two: Any) -> None:
    made = Bench(suite_of(source), tmp_path / "out")
    with KillOnce(made.run_path(str(source), SLOW), made.suite.steps) as killer:
        run_suite(made, OnRay())
    assert killer.killed is not None
    assert weights(made) == weights(plain)


def test_every_episode_is_the_same_wherever_it_was_played(tmp_path: Path, ray_of_two: Any) -> None:
    """With the command line and a real task."""
    for seed, name in enumerate(("hopper-medium", "hopper-random")):
        write_hopper(tmp_path / f"{name}.hdf5", seed)
    (tmp_path / "tiny.toml").write_text(TINY.replace("steps = 20", "steps = 4"), encoding="utf-8")
    suite = load_suite(tmp_path / "tiny.toml").only(["BC"]).changed(note="Of stand-ins.")
    run_suite(Bench(suite, tmp_path / "plain", tmp_path))
    words = [
        "bench",
        str(tmp_path / "tiny.toml"),
        "--methods",
        "BC",
        "--data",
        str(tmp_path),
        "--note",
        "Of stand-ins.",
    ]
    main([*words, "--out", str(tmp_path / "workers"), "--workers", "2"])
    main([*words, "--out", str(tmp_path / "ray"), "--ray"])
    made = [tmp_path / name for name in ("plain", "workers", "ray")]
    first, *others = ((out / "episodes.csv").read_bytes() for out in made)
    assert first.count(b"\n") == 1 + 2 * 2 * 2  # two tasks, two seeds, two episodes
    assert others == [first, first]
    suites = [json.loads((out / "suite.json").read_text(encoding="utf-8")) for out in made]
    assert suites[0] == suites[1] == suites[2]
    assert len(suites[0]["data"]) == 2


@pytest.fixture(scope="module")
def ray_of_two() -> Iterator[Callable[[], None]]:
    """A real Ray with two worker processes."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()
