"""What a notebook shows: the example in a real Jupyter kernel, and values as tables and plots."""

from __future__ import annotations

import html.parser
import os
import re
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from helpers.training import learnable_dataset, refusal, tiny
from nbclient import NotebookClient

import droprl
from droprl import load_policy
from droprl.data import Dataset
from droprl.evaluation import Evaluation
from droprl.evaluation.evaluation import CheckpointEpisodes
from droprl.notebook import dots_plot, facts_table, histogram_plot, lines_plot
from droprl.train import Run, fit

read_notebook: Any = nbformat.read
EXAMPLE = Path(__file__).parents[2] / "examples" / "first_steps.ipynb"
HOSTILE = "<script>alert(1)</script>\x1b[31m"


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return learnable_dataset()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Run:
    out = tmp_path_factory.mktemp("run") / "drop"
    return fit(dataset, tiny("drop"), out=out, seeds=2, steps=20, log_every=2, progress=False)


# --- in a real kernel ---


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    notebook: Any = read_notebook(EXAMPLE, as_version=4)
    folder = tmp_path_factory.mktemp("notebook")
    client = NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(folder)}})
    client.execute(env=os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"})  # compiling is nearly all of its time
    return notebook


def outputs(notebook: Any, containing: str, kind: str) -> list[str]:
    """The outputs of this kind of the cell whose source contains the text."""
    (cell,) = [cell for cell in notebook.cells if cell.cell_type == "code" and containing in cell.source]
    assert not [output for output in cell.outputs if output.output_type == "error"]
    return ["".join(o.data[kind]) for o in cell.outputs if "data" in o and kind in o.data]


def test_the_example_shows_tables_and_plots(executed: Any) -> None:
    for containing, words in (
        ("from_arrays", ("tank", "800", "Episodes by return")),
        ("droprl.fit", ("runs/tank", "Cloning loss", "TD loss", "seed 1")),
        ("droprl.evaluate", ("Every episode", "seed 1, 200", "IQM")),
    ):
        page = outputs(executed, containing, "text/html")[-1]
        assert "<table>" in page
        assert "<svg" in page
        assert all(word in page for word in words), containing


def test_progress_is_one_bar_that_is_drawn_again_in_its_place(executed: Any) -> None:
    bars = [page for page in outputs(executed, "droprl.fit", "text/html") if page.startswith("<progress")]
    assert len(bars) == 1
    assert 'value="200" max="200"' in bars[0]
    assert "drop × 2 seeds" in bars[0]
    assert "200/200 updates" in bars[0]


def test_predict_and_going_on_work_there(executed: Any) -> None:
    assert "array([[" in outputs(executed, "policy.predict", "text/plain")[-1]
    (cell,) = [cell for cell in executed.cells if "droprl.extend" in cell.source and cell.cell_type == "code"]
    printed = "".join(o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stdout")
    assert printed.startswith("250 updates; the API: evaluate, export_onnx, extend, finetune, fit, from_arrays")


def test_the_example_is_kept_without_outputs() -> None:
    notebook: Any = read_notebook(EXAMPLE, as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.outputs and cell.execution_count is None for cell in notebook.cells if "outputs" in cell)


# --- the values themselves ---


class Balanced(html.parser.HTMLParser):
    """Fails at a tag that is not closed in its place."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


def evaluation(**changes: Any) -> Evaluation:
    results = [CheckpointEpisodes(seed, 20, [1.0, 2.0, float(seed)], [5, 5, 5], None) for seed in (0, 1)]
    facts: dict[str, Any] = {
        "algorithm": "drop",
        "rule": "best",
        "adaptation": None,
        "changed": {},
        "dataset": "data",
        "env": "Task-v0",
        "protocol": "last",
        "results": results,
        "unit": "return",
        "caveat": None,
        "milliseconds_per_action": None,
        "mean": 0.0,
        "iqm": 0.0,
        "interval": (0.0, 0.0),
    }
    return Evaluation(**facts | changes).summarised()


def test_every_value_is_a_whole_page_and_runs_nothing(run: Run, dataset: Dataset) -> None:
    hostile = learnable_dataset()
    object.__setattr__(hostile, "name", HOSTILE)
    for value in (run, dataset, hostile, evaluation(), evaluation(dataset=HOSTILE, env=HOSTILE)):
        page = value._repr_html_()
        tags = Balanced(page).tags
        assert {"table", "svg"} <= set(tags)
        assert "script" not in tags
        assert "\x1b" not in page
        assert not re.search(r"\b(nan|inf|None)\b", page)


def test_a_run_says_how_far_it_is(run: Run, dataset: Dataset, tmp_path: Path) -> None:
    assert "20, finished" in run._repr_html_()
    assert "cost of a wrong embedding" in run._repr_html_()
    stopped = Run(fit(dataset, tiny("bc"), out=tmp_path / "bc", steps=4, progress=False).path)
    for checkpoint in stopped.checkpoints()[2:]:
        for file in checkpoint.path.iterdir():
            file.unlink()
        checkpoint.path.rmdir()
    assert "4, unfinished, at update 2" in stopped._repr_html_()


def test_every_dot_and_bar_is_drawn() -> None:
    assert dots_plot("t", {"a": [1.0, 2.0], "b": [3.0]}).count("<circle") == 3
    assert histogram_plot("t", [0.0, 1.0, 2.0, 3.0], [4, 0, 1]).count("<rect") == 2
    assert lines_plot("t", "x", {"a": [(0.0, 1.0)], "b": [(1.0, 2.0)]}).count("stroke-width") == 2
    assert lines_plot("t", "x", {"a": []}) == ""
    assert dots_plot("t", {}) == ""
    assert "&lt;b&gt;" in facts_table("<b>", [])


def test_dir_lists_the_api() -> None:
    listed = set(dir(droprl))
    assert {"DROP", "BC", "fit", "extend", "evaluate", "load_dataset", "load_policy", "Run", "Evaluation"} <= listed
    assert listed == set(droprl.__all__)


# --- predict ---


@pytest.mark.parametrize("name", ["drop", "bc", "dt"])
def test_predict_gives_each_row_its_first_action_and_changes_nothing(
    dataset: Dataset, tmp_path: Path, name: str
) -> None:
    run = fit(dataset, tiny(name), out=tmp_path / "run", steps=3, progress=False)
    policy, other = load_policy(run.path), load_policy(run.path)
    rows = dataset.observations[:4]
    for step in range(2):
        np.testing.assert_array_equal(policy.act(rows[step]), other.act(rows[step]))
        predicted = policy.predict(rows)  # the other policy is not asked
    for row, action in zip(rows, predicted, strict=True):
        policy.reset()
        np.testing.assert_allclose(policy.act(row), action, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(policy.predict(row), action, rtol=1e-5, atol=1e-6)
    assert predicted.shape == (4, 2)
    assert policy.predict(rows[:0]).shape == (0, 2)
    assert "pass (3,) or (n, 3)" in refusal(policy.predict, np.zeros(2))
    assert "holds NaN" in refusal(policy.predict, np.full(3, np.nan))


def test_predict_of_a_policy_that_draws_repeats_with_its_seed(dataset: Dataset, tmp_path: Path) -> None:
    algorithm = tiny("bc", head="gaussian", sample_actions=True)
    policy = load_policy(fit(dataset, algorithm, out=tmp_path / "run", steps=3, progress=False).path)
    rows = dataset.observations[:4]
    np.testing.assert_array_equal(policy.predict(rows), policy.predict(rows))
    assert (policy.predict(rows) != policy.predict(rows, seed=1)).any()
