"""A policy whose single action would take too long, or too much memory, is refused when it is made or loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pytest
from helpers.plain import PLAIN
from helpers.serving import tiny_policy
from helpers.training import refusal

from droprl import DROP, DT, Adaptation, COMs, load_policy
from droprl.algorithms.protocol import Clock
from droprl.data.transitions import Spec
from droprl.files.seals import read_sealed, sealed
from droprl.policies.cost import check_cost


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ascent_steps": 10**9}, "ascent_steps is 1000000000: it must be from 0 to 10,000"),
        ({"reinference_interval": 2**30}, "reinference_interval is 1073741824: it must be from 1 to 1,000,000"),
        ({"guard_patience": 2**30}, "guard_patience is 1073741824: it must be from 0 to 1,000,000"),
    ],
)
def test_a_file_that_asks_for_endless_work_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    folder = tiny_policy().save(tmp_path / "policy")
    described = read_sealed(folder / "policy.json")
    described["algorithm"]["adaptation"] |= changes
    (folder / "policy.json").write_bytes(sealed(described))
    assert said in refusal(load_policy, folder)


def test_too_many_prototypes_are_refused(tmp_path: Path) -> None:
    folder = tiny_policy().save(tmp_path / "policy")
    described = read_sealed(folder / "policy.json")
    (folder / "policy.json").write_bytes(sealed(described | {"prototypes": 10**6}))
    assert "prototypes is 1000000" in refusal(load_policy, folder)


def shapes_of(algorithm: Any) -> Any:
    """The policy without its weights: only their sizes."""
    spec = Spec(4, 2, getattr(algorithm, "n_sub_tasks", None))
    return jax.eval_shape(lambda: algorithm.policy(algorithm.init(jax.random.key(0), spec, Clock.at(0, 1))))


def test_work_and_memory_are_estimated_from_the_sizes_alone() -> None:
    def drop(n: int, width: int, **settings: Any) -> Any:
        adaptation = Adaptation(**settings)
        return shapes_of(DROP(**PLAIN | {"adaptation": adaptation}, n_sub_tasks=n, embedding_size=5, width=width))

    check_cost(drop(50, 512), "p")
    check_cost(drop(200, 1024, starts=None, ascent_steps=100), "p")  # the paper's search
    check_cost(drop(50, 512, rule="best", ascent_steps=10_000, starts=None), "p")  # best does not ascend
    check_cost(shapes_of(DT(longest_episode=1000, return_scale=1.0, target_return=1.0)), "p")
    slow = refusal(check_cost, drop(1000, 1024, starts=None, ascent_steps=10_000), "p")
    assert slow.startswith("p: one action would need ")
    assert "1,000 embeddings, 10,000 ascent_steps from 1,000 starts" in slow
    assert "numbers in memory" in refusal(check_cost, drop(100_000, 512, rule="best"), "p")


def test_a_sequence_and_a_search_over_weights_are_limited() -> None:
    assert "context is 10000: it must be from 1 to 1,000" in refusal(DT, context=10_000)
    assert "heads is 1024: it must be from 1 to 100" in refusal(DT, heads=1024)
    assert "ascent_steps is 1000000: it must be from 0 to 10,000" in refusal(COMs, ascent_steps=10**6)
