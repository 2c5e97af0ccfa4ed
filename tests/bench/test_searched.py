"""The same search for every method: the choice against brute force, equal candidates, and a suite that searches."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.benches import TINY, write_hopper
from helpers.played import BC, DROP, bench_at, write_played
from helpers.training import refusal

from droprl.bench import Bench, load_bench, load_suite, run_suite
from droprl.bench.cells import Cell, is_done
from droprl.bench.packing import pack
from droprl.bench.searched import SEARCH_SEED, choices, search_path, search_table
from droprl.bench.suite import Method, Search
from droprl.bench.tables import load_scores, suite_tables
from droprl.evaluation import EVALUATION_SEED
from droprl.evaluation.evaluation import task_of
from droprl.files.storage import write_json
from droprl.loaded import policy_of_run
from droprl.rollout import rollout
from droprl.train import Run

SEEDS, EPISODES = 3, 4
OTHER = Method("B", "bc", {"width": 9})
SEARCHED = """
[methods.wide]
algo = "bc"
width = 9
batch_size = 16

[search]
candidates = 2
episodes = 3
[search.of]
BC = ["BC", "wide"]
DROP = ["DROP"]
"""


@pytest.fixture
def searched(tmp_path: Path) -> tuple[Bench, np.ndarray, np.ndarray]:
    """Two tasks × two trainings of BC × three seeds. The numbers are random, and the table says what each earned."""
    made = bench_at(tmp_path)
    search = Search(2, EPISODES, {"Cloning": (BC.name, OTHER.name)})
    made = replace(made, suite=replace(made.suite, methods=(DROP, BC, OTHER), seeds=SEEDS, search=search))
    rng = np.random.default_rng(0)
    choosing, earned = rng.normal(size=(2, 2, SEEDS, EPISODES)), rng.normal(size=(2, 2, SEEDS))
    for t, task in enumerate(made.suite.tasks):
        for m, method in enumerate((BC, OTHER)):
            write_played(made, task, method, method.name, {(s, 10): [earned[t, m, s]] * 2 for s in range(SEEDS)})
            returns = {str(s): choosing[t, m, s].tolist() for s in range(SEEDS)}
            content = {"step": 10, "first_env_seed": SEARCH_SEED, "adaptation": None, "returns": returns}
            write_json(search_path(made, task, method, method.name), content)
    return made, choosing, earned


def test_a_seed_takes_what_the_other_seeds_choose(searched: tuple[Bench, np.ndarray, np.ndarray]) -> None:
    made, choosing, earned = searched
    found = choices(made)["Cloning, chosen by search"]
    for t, task in enumerate(made.suite.tasks):
        for s, choice in enumerate(found[task]):
            means = [np.mean([choosing[t, m, o] for o in range(SEEDS) if o != s]) for m in range(2)]
            best = int(np.argmax(means))
            assert (choice.seed, choice.candidate) == (s, (BC.name, OTHER.name)[best])
            assert choice.mean == pytest.approx(means[best])
            assert choice.scores == pytest.approx(earned[t, best, s])
            assert choice.episodes == 2 * 2 * EPISODES
    assert len({choice.candidate for of_seeds in found.values() for choice in of_seeds}) == 2


def test_the_chosen_are_a_row_of_every_table(searched: tuple[Bench, np.ndarray, np.ndarray]) -> None:
    made, _, _ = searched
    name, tables = "Cloning, chosen by search", suite_tables(made)
    runs = load_scores(made).runs[name]
    expected = {task: [c.scores for c in of_seeds] for task, of_seeds in choices(made)[name].items()}
    assert {task: found.tolist() for task, found in runs.items()} == expected
    for table in ("aggregates-last", "improvement-last"):
        assert name in [row[0] for row in tables[table].rows]
    assert len(tables["search"].rows) == 2 * SEEDS
    assert search_table(replace(made, suite=replace(made.suite, search=None))) is None


def test_a_choice_needs_all_candidates(searched: tuple[Bench, np.ndarray, np.ndarray]) -> None:
    made, _, _ = searched
    search_path(made, "a-medium", OTHER, OTHER.name).unlink()
    assert list(choices(made)["Cloning, chosen by search"]) == ["b_random"]
    assert choices(replace(made, suite=replace(made.suite, methods=(BC,)))) == {}


def test_an_unequal_search_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    for old, new, said in (
        ("candidates = 2", "candidates = 3", "BC has 2 candidates (trainings × plays): give every method 3"),
        ('BC = ["BC", "wide"]', 'BC = ["BC"]', "BC has 1 candidates (trainings × plays): give every method 2"),
        ('"wide"]', '"none"]', "BC: has no method none: choose from DROP, BC, wide"),
        ("episodes = 3", "episodes = 0", "episodes is 0: give a whole number, at least 1"),
        ("candidates = 2\n", "", "search needs candidates, episodes, and of"),
        ("seeds = 2", "seeds = 1", "a search needs at least 2 seeds"),
    ):
        assert old in TINY + SEARCHED
        path.write_text((TINY + SEARCHED).replace(old, new))
        assert said in refusal(load_suite, path)


def test_a_suite_searches_and_its_packed_results_say_what_was_chosen(tmp_path: Path) -> None:
    path, text = tmp_path / "mine.toml", TINY + SEARCHED
    drop, bc = text.index("[methods.DROP]"), text.index("[methods.BC]")
    text = text[:drop] + text[bc:].replace('DROP = ["DROP"]\n', "")  # DROP takes long to compile
    path.write_text(text.replace('"hopper-medium", "hopper-random"', '"hopper-medium"'))
    write_hopper(tmp_path / "hopper-medium.hdf5")
    made = Bench(load_suite(path), tmp_path / "out", tmp_path)
    run_suite(made)
    cells = [Cell("hopper-medium", method) for method in made.suite.methods]
    assert all(is_done(made, cell) for cell in cells)
    file = search_path(made, "hopper-medium", cells[0].method, "BC")
    content = json.loads(file.read_bytes())
    assert {seed: len(returns) for seed, returns in content["returns"].items()} == {"0": 3, "1": 3}
    assert content["first_env_seed"] == SEARCH_SEED > EVALUATION_SEED + 1000
    policy = policy_of_run(Run(made.run_path(*cells[0])), 1)
    expected = rollout(policy, task_of(policy.origin, None)[0], 3, seed=SEARCH_SEED)
    assert content["returns"]["1"] == expected.returns
    found = choices(made)
    assert list(found) == ["BC, chosen by search"]
    pack(made.out, tmp_path / "packed")
    assert choices(load_bench(tmp_path / "packed")) == found
    file.unlink()
    assert not is_done(made, cells[0])
    run_suite(made)
    assert json.loads(file.read_bytes()) == content
