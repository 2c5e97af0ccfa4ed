"""Which z_n may be chosen at a state, and what the rule auto does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from droprl.adapt import Adaptation, Search
from droprl.adapt.inference import infer
from droprl.adapt.search import auto
from droprl.errors import DropError
from droprl.networks.actors import BehaviorPolicy
from droprl.networks.critics import ScoreModel
from droprl.networks.homes import AT_HOME, Home

EMBEDDINGS = jnp.array([[0.0], [1.0], [2.0]])
FROM_HERE = {"first": 0.0, "best-ada": 1.0, "grad-ada": 1.25}


def rising(z: jax.Array) -> jax.Array:
    """The farther out, the better."""
    return z[0]


@pytest.mark.parametrize(("rule", "expected"), [("first", 0.0), ("best", 1.0), ("best-ada", 1.0)])
def test_a_sub_task_that_is_not_at_home_is_not_chosen(rule: Any, expected: float) -> None:
    """The third z_n scores highest, but its sub-task has never been here."""
    found = infer(rising, EMBEDDINGS, Adaptation(rule=rule), supported=jnp.array([True, True, False]))
    assert float(found.z[0]) == expected


@pytest.mark.parametrize("rule", ["grad", "grad-ada"])
@pytest.mark.parametrize("halve_every", [None, 1])
def test_an_ascent_starts_only_where_a_sub_task_is_at_home(rule: Any, halve_every: int | None) -> None:
    """Five steps of 0.1 would lead from 1 to 1.5, but the trust region ends at 1.25."""
    adaptation = Adaptation(rule=rule, halve_every=halve_every)
    found = infer(rising, EMBEDDINGS, adaptation, supported=jnp.array([False, True, False]))
    assert float(found.z[0]) == pytest.approx(1.25)
    assert int(found.start) == 1


def test_the_first_may_always_be_chosen_and_all_may_be_allowed() -> None:
    nowhere = jnp.zeros(3, bool)
    best = Adaptation(rule="best-ada")
    assert float(infer(rising, EMBEDDINGS, best, supported=nowhere).z[0]) == 0.0
    assert float(infer(rising, EMBEDDINGS, replace(best, candidates="all"), supported=nowhere).z[0]) == 2.0
    assert float(infer(rising, EMBEDDINGS, replace(best, candidates="first")).z[0]) == 0.0
    climbed = infer(rising, EMBEDDINGS, Adaptation(rule="grad-ada", candidates="first"))
    assert float(climbed.z[0]) == pytest.approx(0.25)


def search(choice: int | None, rule: Any = "auto") -> Search:
    policy_key, score_key, home_key = jax.random.split(jax.random.key(0), 3)
    return Search(
        BehaviorPolicy(2, 1, 1, 8, (1, 1), "deterministic", policy_key),
        ScoreModel(2, 1, 1, 8, (1, 1), False, score_key),
        EMBEDDINGS,
        Adaptation(rule=rule),
        Home(2, 3, 8, home_key),
        None if choice is None else jnp.asarray(choice, jnp.int32),
    )


@pytest.mark.parametrize("choice", range(4))
def test_auto_does_what_the_evidence_allows(choice: int) -> None:
    """The four ways are first, an ascent from the first, the best at home, and an ascent from it."""
    observations = jax.random.normal(jax.random.key(1), (20, 2))
    way = auto(Adaptation(rule="auto"))[choice]
    assert way.rule == ("first", "grad-ada", "best-ada", "grad-ada")[choice]
    found = jax.jit(jax.vmap(search(choice).infer))(observations)
    expected = jax.jit(jax.vmap(replace(search(None), adaptation=way).infer))(observations)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    if choice in (0, 1):
        assert not np.any(found.start)


def test_auto_without_evidence_says_what_is_missing() -> None:
    with pytest.raises(DropError, match=r"rule auto needs evidence .* cross_fit"):
        search(None).infer(jnp.zeros(2))


def test_home_compares_with_equally_frequent_sub_tasks() -> None:
    """Shares of 0.9, 0.1 and 0 where a third would say nothing: a sub-task is at home from 0.3 thirds on."""
    home = Home(2, 3, 4, jax.random.key(0))
    logits = jnp.log(jnp.array([0.89, 0.102, 0.008]))
    last = home.network.layers[-1]
    home = eqx.tree_at(
        lambda made: (made.network.layers[-1].weight, made.network.layers[-1].bias),
        home,
        (jnp.zeros_like(last.weight), logits),
    )
    np.testing.assert_allclose(jnp.exp(home.log_shares(jnp.ones(2))), [0.89, 0.102, 0.008], rtol=1e-5)
    assert home.supported(jnp.ones(2)).tolist() == [True, AT_HOME <= 0.102 * 3, False]


@pytest.mark.parametrize(
    ("rule", "unproven"),
    [
        ("auto", [False] * 4),
        ("first", [False] * 4),
        ("best-ada", [True, True, False, False]),
        ("grad-ada", [True, False, True, False]),
    ],
)
def test_a_rule_that_searches_without_evidence_is_unproven(rule: Any, unproven: list[bool]) -> None:
    """The evidence in turn: for nothing, for an ascent from the first, for choosing, for choosing and an ascent."""
    assert [search(choice, rule).unproven for choice in range(4)] == unproven
    assert not search(None, rule).unproven  # nobody looked
