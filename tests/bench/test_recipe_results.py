"""The recipe's results: two files hold all of them, the figures are drawn from these, and new results are added."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from droprl.errors import DropError

RECIPE = Path(__file__).parents[2] / "benchmarks" / "recipe"
FIGURES = RECIPE.parents[1] / "docs" / "figures"


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The recipe's scripts, by name."""
    monkeypatch.syspath_prepend(str(RECIPE))
    return importlib.import_module


# ---- the committed results


def test_the_figures_in_the_docs_show_the_committed_results(
    recipe: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figures = recipe("figures")
    monkeypatch.setattr("sys.argv", ["figures.py", "--out", str(tmp_path)])
    figures.main()
    drawn = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(drawn) == {f"{name}.svg" for name in figures.FIGURES}
    assert drawn == {name: (FIGURES / name).read_bytes() for name in drawn}


def test_every_episode_is_in_the_table_and_no_result_is_missing(recipe: Any) -> None:
    jobs, kept, run = recipe("jobs"), recipe("kept"), recipe("run")
    found = kept.load(kept.RESULTS)
    rows = sum(1 for _ in (kept.RESULTS / "episodes.csv").open(encoding="utf-8")) - 1
    assert rows == sum(np.size(play["scores"]) for result in found.values() for play in result["plays"].values())
    for name, result in found.items():
        job = result["job"]
        for play, earned in result["plays"].items():
            checkpoints = job["checkpoints"] if play in job["late"] else 1
            assert np.shape(earned["scores"]) == (checkpoints, job["seeds"], job["episodes"]), (name, play)
            for part in {"realised", "promised"} & set(earned):
                assert np.shape(earned[part]) == (job["seeds"], job["episodes"]), (name, play)
    for experiment in ("main", "paper_size"):  # those of the tables in docs/recipe.md
        assert [job.name for job in jobs.EXPERIMENTS[experiment]() if not run._is_whole(found.get(job.name), job)] == []


# ---- new results


def result(dataset: str, variant: str, **plays: Any) -> dict[str, Any]:
    job = {"experiment": "new one", "dataset": dataset, "variant": variant, "seeds": 2}
    return {"job": job, "curve": [{"gap": [0.1, 0.30000000000000004]}], "plays": plays}


PLAYED = {  # two checkpoints, two seeds, three episodes
    "scores": [[[1.0, 2.5, 3.25], [4.0, 5.0, 6.0]], [[7.0, 8.0, 9.0], [1e-9, -0.0, 3.0]]],
    "realised": [[0.5, 0.25, 0.125], [1.0, 2.0, 4.0]],
}


def test_new_results_are_added_and_their_files_are_removed(recipe: Any, tmp_path: Path) -> None:
    kept = recipe("kept")
    first = {
        "new-one/a/x": result("a", "x", bc=PLAYED | {"promised": [[1.0] * 3, [2.0] * 3]}, other=PLAYED),
        "new-one/a/y": result("a", "y"),  # measured, not played
    }
    for name, content in first.items():
        kept.write(tmp_path, name, content)
    assert kept.load(tmp_path) == first  # also before they are packed
    kept.pack(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["episodes.csv", "results.json"]
    lines = (tmp_path / "episodes.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "experiment,dataset,variant,play,checkpoint,seed,episode,score,realised,promised"
    assert lines[1] == "new one,a,x,bc,0,0,0,1.0,,"
    assert lines[12] == "new one,a,x,bc,1,1,2,3.0,4.0,2.0"
    assert len(lines) == 1 + 2 * 12
    assert json.dumps(kept.load(tmp_path)) == json.dumps(first)
    again = {"new-one/a+b/0.5": result("a+b", "0.5", bc=PLAYED), "new-one/a/x": result("a", "x", bc=PLAYED)}
    for name, content in again.items():
        kept.write(tmp_path, name, content)
    kept.pack(tmp_path)
    assert kept.load(tmp_path) == first | again
    before = (tmp_path / "results.json").read_bytes()
    kept.pack(tmp_path)  # nothing is new
    assert (tmp_path / "results.json").read_bytes() == before


def test_a_result_that_does_not_fit_stays_in_its_file(recipe: Any, tmp_path: Path) -> None:
    kept = recipe("kept")
    kept.write(tmp_path, "new-one/a/x", result("a", "x", bc=PLAYED | {"luck": [[7.0] * 3] * 2}))
    with pytest.raises(DropError, match="has something that the table cannot hold"):
        kept.pack(tmp_path)
    assert [path.name for path in tmp_path.rglob("*.*")] == ["x.json"]


def test_a_missing_row_is_noticed(recipe: Any, tmp_path: Path) -> None:
    kept = recipe("kept")
    kept.write(tmp_path, "new-one/a/x", result("a", "x", bc=PLAYED))
    kept.pack(tmp_path)
    lines = (tmp_path / "episodes.csv").read_bytes().splitlines(keepends=True)
    (tmp_path / "episodes.csv").write_bytes(b"".join(lines[:-1]))
    with pytest.raises(DropError, match="has not all episodes of new-one/a/x, bc"):
        kept.load(tmp_path)
