"""The tables of a suite against values by hand, and a table in every format."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.played import BC, DROP, bench_at, write_played
from rich.console import Console

from droprl.bench import Bench
from droprl.bench.results import seed_scores
from droprl.bench.tables import (
    aggregate_table,
    cost_table,
    improvement_table,
    load_scores,
    score_table,
    suite_tables,
    write_tables,
)
from droprl.evaluation.statistics import aggregate, probability_of_improvement
from droprl.files.storage import write_json
from droprl.report.table import Cell, Number, Table, best_in_bold, latex_escaped

NAME = "DROP · once"
LIKE = "improvement-tasks-like-these-last"


def value(cell: Cell) -> float:
    assert isinstance(cell, Number)
    return cell.value


def is_bold(cell: Cell) -> bool:
    return isinstance(cell, Number) and cell.bold


def texts(table: Table) -> list[list[str]]:
    return [["" if cell is None else str(cell) for cell in row] for row in table.rows]


@pytest.fixture
def played(tmp_path: Path) -> Bench:
    """Two seeds. DROP scores 10 and 20 on the first task, 50 and 54 on the second; BC 18 and 22, then 0 and 1."""
    bench = bench_at(tmp_path)
    write_played(bench, "a-medium", DROP, "once", {(0, 10): [8.0, 12.0], (1, 10): [20.0, 20.0]})
    write_played(bench, "b_random", DROP, "once", {(0, 10): [50.0, 50.0], (1, 10): [54.0, 54.0]})
    write_played(bench, "a-medium", BC, BC.name, {(0, 10): [18.0, 18.0], (1, 10): [22.0, 22.0]})
    write_played(bench, "b_random", BC, BC.name, {(0, 10): [0.0, 0.0], (1, 10): [1.0, 1.0]})
    return bench


# ---- which checkpoints


def test_a_run_is_the_mean_of_a_seeds_last_checkpoints() -> None:
    """The checkpoints are out of order, and seed 1 comes before seed 0."""
    results = [
        {"seed": seed, "step": step, "returns": [0.0], "scores": [100.0 * seed + step, 100.0 * seed + step + 1]}
        for seed in (1, 0)
        for step in (3, 1, 7, 2, 5, 6, 4)
    ]
    last, late = seed_scores({"results": results}), seed_scores({"results": results}, 6)
    assert last is not None
    assert late is not None
    np.testing.assert_allclose(last, [7.5, 107.5])
    np.testing.assert_allclose(late, [5.0, 105.0])  # the mean of steps 2 to 7 is 4.5; two episodes, half a point apart
    assert seed_scores({"results": results}, 8) is None


def test_only_with_six_checkpoints_there_are_tables_of_six(played: Bench) -> None:
    assert set(suite_tables(played)) == {"scores-last", "aggregates-last", "improvement-last", LIKE, "costs"}
    scores = [1.0, 2.0, 99.0, 4.0, 5.0, 6.0]  # the best checkpoint is the third, which must not be used
    six = {(seed, step): [score] * 2 for seed in (0, 1) for step, score in enumerate(scores)}
    for task in played.suite.tasks:
        write_played(played, task, DROP, "once", six)
    tables = suite_tables(played)
    assert {"scores-last", "scores-last-6", "aggregates-last-6", "improvement-last-6"} <= set(tables)
    assert tables["scores-last"].columns == ("task", NAME, "B&C_1")
    assert value(tables["scores-last"].rows[0][1]) == 6.0
    assert tables["scores-last-6"].columns == ("task", NAME)  # the other method was played at one checkpoint only
    assert value(tables["scores-last-6"].rows[0][1]) == 19.5  # 117 / 6


# ---- their values


def test_scores_are_means_with_their_standard_errors(played: Bench) -> None:
    table = score_table(load_scores(played))
    assert table.columns == ("task", NAME, "B&C_1")
    # Standard errors of 10 and 20: √50 / √2 = 5. Of 50 and 54: 2. Of 18 and 22: 2. Of 0 and 1: 0.5.
    assert texts(table)[:2] == [["a-medium", "15.0 ± 5.0", "20.0 ± 2.0"], ["b_random", "52.0 ± 2.0", "0.5 ± 0.5"]]
    iqm = aggregate([[10.0, 20.0], [50.0, 54.0]], "iqm")
    assert iqm.value == 35.0  # of four runs the lowest and the highest are cut: 20 and 50 stay
    assert texts(table)[2][:2] == ["IQM", f"35.0 [{iqm.low:.1f}, {iqm.high:.1f}]"]
    assert table.summary


def test_bold_are_the_best_and_all_that_overlap_with_it(played: Bench) -> None:
    """10 to 20 and 18 to 22 overlap; 52 ± 2 and 0.5 ± 0.5 do not, nor do the IQMs."""
    table = score_table(load_scores(played))
    assert [[is_bold(cell) for cell in row[1:]] for row in table.rows] == [[True, True], [True, False], [True, False]]


@pytest.mark.parametrize(
    ("cells", "lowest", "expected"),
    [
        ([Number(1, (0, 2)), Number(3, (2, 4)), Number(9, (5, 13))], False, [False, False, True]),
        ([Number(1, (0, 2)), Number(3, (2, 4)), Number(9, (5, 13))], True, [True, True, False]),
        ([Number(1, (0, 2)), None, Number(9, (5, 13))], False, [False, False, True]),
        ([Number(1, (0, 2)), Number(9)], False, [False, False]),  # one seed has no error
        ([Number(9, (5, 13)), None], False, [False, False]),  # nothing to compare
        # The best is the highest value, not the highest end of an interval.
        ([Number(5, (4, 6)), Number(4, (1, 20)), Number(2, (1, 3))], False, [True, True, False]),
    ],
)
def test_best_in_bold(cells: list[Cell], lowest: bool, expected: list[bool]) -> None:
    assert [is_bold(cell) for cell in best_in_bold(cells, lowest)] == expected


def test_the_longer_side_becomes_the_rows(tmp_path: Path) -> None:
    bench = bench_at(tmp_path, tasks=("only",), plays=("x", "y", "z"))
    for i, play in enumerate(bench.suite.plays):
        write_played(bench, "only", DROP, play, {(0, 1): [float(i)], (1, 1): [float(i)]})
    table = score_table(load_scores(bench))
    assert table.columns == ("method", "only", "IQM")
    assert [row[0] for row in table.rows] == ["DROP · x", "DROP · y", "DROP · z"]
    assert [value(row[1]) for row in table.rows] == [0, 1, 2]
    assert not table.summary


def test_aggregates_are_those_of_the_statistics(played: Bench) -> None:
    table = aggregate_table(load_scores(played))
    tasks = [[10.0, 20.0], [50.0, 54.0]]
    assert table.rows[0][0] == NAME
    these: list[tuple[Any, Any]] = [(n, "these tasks") for n in ("iqm", "median", "mean", "optimality_gap")]
    columns = [*these, ("iqm", "tasks like these"), ("mean", "tasks like these")]
    assert table.columns[5:] == ("IQM, tasks like these", "mean, tasks like these")
    for cell, (name, over) in zip(table.rows[0][1:], columns, strict=True):
        expected = aggregate(tasks, name, over=over)
        assert isinstance(cell, Number)
        assert (cell.value, cell.ends) == (expected.value, (expected.low, expected.high))
    assert [is_bold(cell) for cell in table.rows[0][1:]] == [True] * 4 + [
        False
    ] * 2  # also the gap, where the lowest is the best
    assert [is_bold(cell) for cell in table.rows[1][1:5]] == [False] * 4


def test_intervals_over_tasks_like_these_are_in_a_table_of_their_own_and_in_the_json(played: Bench) -> None:
    write_tables(played)
    found = json.loads((played.out / "tables" / "intervals.json").read_bytes())
    x, y = [[10.0, 20.0], [50.0, 54.0]], [[18.0, 22.0], [0.0, 1.0]]
    for name, over in (("improvement-last", "these tasks"), (LIKE, "tasks like these")):
        expected = probability_of_improvement(x, y, over=over)  # type: ignore[arg-type]
        assert found[name][NAME]["B&C_1"] == {"value": expected.value, "interval": [expected.low, expected.high]}
    iqm = found["aggregates-last"]["B&C_1"]
    assert iqm["IQM"]["value"] == iqm["IQM, tasks like these"]["value"]
    assert iqm["IQM"]["interval"][0] > iqm["IQM, tasks like these"]["interval"][0]


def test_one_task_says_nothing_of_others(tmp_path: Path) -> None:
    bench = bench_at(tmp_path, tasks=("only",))
    for method, play in ((DROP, "once"), (BC, BC.name)):
        write_played(bench, "only", method, play, {(0, 1): [1.0], (1, 1): [2.0]})
    tables = suite_tables(bench)
    assert LIKE not in tables
    assert tables["aggregates-last"].columns == ("method", "IQM", "median", "mean", "optimality gap to 100")


def test_every_pair_is_compared_both_ways(played: Bench) -> None:
    table = improvement_table(load_scores(played))
    # On the first task only 20 beats 18: 1 of 4 pairs. On the second DROP wins all pairs.
    assert (value(table.rows[0][2]), value(table.rows[1][1])) == ((1 / 4 + 1) / 2, (3 / 4 + 0) / 2)
    expected = probability_of_improvement([[10.0, 20.0], [50.0, 54.0]], [[18.0, 22.0], [0.0, 1.0]])
    assert isinstance(table.rows[0][2], Number)
    assert table.rows[0][2].ends == (expected.low, expected.high)
    assert table.rows[0][1] is None
    assert table.rows[1][2] is None


def test_a_method_that_was_not_played_on_a_task_has_no_aggregate(played: Bench) -> None:
    played.play_path("b_random", BC, BC.name).unlink()
    scores = load_scores(played)
    assert [row[2] for row in score_table(scores).rows][1:] == [None, None]
    assert aggregate_table(scores).rows[1][1:] == (None,) * 6
    assert improvement_table(scores).rows[0][2] is None
    assert "not played on every task" in score_table(scores).note


def test_one_seed_has_no_error_and_no_interval(tmp_path: Path) -> None:
    bench = bench_at(tmp_path)
    for task in bench.suite.tasks:
        write_played(bench, task, DROP, "once", {(0, 10): [1.0, 3.0]})
        write_played(bench, task, BC, BC.name, {(0, 10): [1.0, 2.0]})
    scores = load_scores(bench)
    assert texts(score_table(scores)) == [
        ["a-medium", "2.0", "1.5"],
        ["b_random", "2.0", "1.5"],
        ["IQM", "2.0", "1.5"],
    ]
    assert texts(improvement_table(scores))[0] == [NAME, "", "1.00"]
    assert not any(is_bold(cell) for row in score_table(scores).rows for cell in row)


def test_returns_are_shown_but_not_averaged_with_scores(played: Bench) -> None:
    """A task without reference scores pays thousands: it alone would decide an IQM over both tasks."""
    for method, play in ((DROP, "once"), (BC, BC.name)):
        write_played(played, "b_random", method, play, {(0, 1): [3000.0], (1, 1): [3000.0]}, scored=False)
    scores = load_scores(played)
    table = score_table(scores)
    assert texts(table)[1] == ["b_random (return)", "3,000.0 ± 0.0", "3,000.0 ± 0.0"]
    assert value(table.rows[2][1]) == 15.0
    assert "Aggregates leave out the tasks whose results are returns." in table.note
    assert value(improvement_table(scores).rows[0][2]) == (1 / 4 + 1 / 2) / 2  # to compare two runs needs no scale


def test_aggregates_use_the_smallest_number_of_seeds_and_say_so(played: Bench) -> None:
    write_played(played, "a-medium", DROP, "once", {(0, 10): [10.0], (1, 10): [20.0], (2, 10): [90.0]})
    table = score_table(load_scores(played))
    assert value(table.rows[0][1]) == 40.0
    assert value(table.rows[2][1]) == 35.0
    assert "different numbers of seeds" in table.note


def test_costs_are_shown_if_they_were_measured(played: Bench) -> None:
    cost = {"train_seconds": 81.4, "updates_per_second": 250.0, "peak_memory_mb": 1024.0, "device": "cpu"}
    write_json(played.cost_path("a-medium", DROP), cost)
    write_played(played, "b_random", BC, BC.name, {(0, 1): [1.0]}, ms=None)
    table = cost_table(played)
    assert texts(table) == [
        ["a-medium", NAME, "15.0 ± 5.0", "81", "250", "1,024", "0.50", "cpu"],
        ["a-medium", "B&C_1", "20.0 ± 2.0", "", "", "", "0.50", ""],
        ["b_random", NAME, "52.0 ± 2.0", "", "", "", "0.50", ""],
    ]


def test_a_suite_that_was_not_played_has_no_tables(tmp_path: Path) -> None:
    assert write_tables(bench_at(tmp_path)) == {}
    assert not (tmp_path / "tables").exists()


# ---- the budget, published scores, the data


def test_the_budget_has_a_row_for_each_method_and_counts_its_candidates(tmp_path: Path) -> None:
    bench = bench_at(tmp_path, tasks=("a-medium",), plays=("once", "always"))
    for play, score in (("once", 10.0), ("always", 30.0)):
        write_played(bench, "a-medium", DROP, play, {(seed, 5): [score] * 8 for seed in (0, 1)})
    write_played(bench, "a-medium", BC, BC.name, {(seed, 5): [20.0] * 8 for seed in (0, 1)})
    table = suite_tables(bench)["budget"]
    assert table.columns == ("method", "candidates", "episodes to choose by", "0", "1", "5", "10", "50", "200")
    # DROP has two candidates, four of eight episodes each choose. BC has one candidate, so nothing changes.
    assert [value(cell) for cell in table.rows[0][1:]] == [2, 8, 10, 10, 30, 30, 30, 30]
    assert [value(cell) for cell in table.rows[1][1:]] == [1, 4, 20, 20, 20, 20, 20, 20]


def test_with_one_candidate_there_is_no_budget_table(played: Bench) -> None:
    assert "budget" not in suite_tables(played)


def test_published_scores_stand_below_ours_and_are_marked_as_other_data(tmp_path: Path) -> None:
    bench = bench_at(tmp_path, tasks=("hopper-medium", "nobodys"))
    for task in bench.suite.tasks:
        write_played(bench, task, DROP, "once", {(0, 10): [10.0], (1, 10): [20.0]})
    table = suite_tables(bench)["published"]
    assert texts(table)[0] == ["here", NAME, "15.0 ± 5.0", "15.0 ± 5.0"]
    assert ["(1)", "DROP-Grad-Ada", "59.5 ± 5.1", ""] in texts(table)
    assert all(row[0] != "here" for row in table.rows[1:])
    assert "not comparable with ours: (1) " in table.note
    assert "(NeurIPS 2023), D4RL v2" in table.note


def test_recorded_data_has_a_table(played: Bench) -> None:
    record = {"source": "a.hdf5", "sha256": {"a.hdf5": "0"}, "origin": None, "made": False}
    sizes = {"fingerprint": "f", "steps": 1200, "episodes": 3}
    for method in (DROP, BC):
        write_json(played.data_path("a-medium", method), record | sizes)
    assert texts(suite_tables(played)["data"]) == [["a-medium", "a.hdf5", "1,200", "3", "not recorded", "f"]]


# ---- formats


def test_files_are_written_and_hold_every_digit(played: Bench) -> None:
    write_played(played, "a-medium", DROP, "once", {(0, 10): [1 / 3], (1, 10): [1 / 3]})
    write_tables(played)
    names = {path.name for path in (played.out / "tables").iterdir()}
    tables = ("scores-last", "aggregates-last", "improvement-last", LIKE, "costs")
    assert names == {"intervals.json", *(f"{name}.{ending}" for name in tables for ending in ("csv", "tex"))}
    rows = list(csv.DictReader((played.out / "tables" / "scores-last.csv").open(encoding="utf-8")))
    assert list(rows[0]) == ["task", NAME, f"{NAME} low", f"{NAME} high", "B&C_1", "B&C_1 low", "B&C_1 high"]
    assert float(rows[0][NAME]) == 1 / 3
    assert (float(rows[0]["B&C_1 low"]), float(rows[0]["B&C_1 high"])) == pytest.approx((18.0, 22.0))
    costs = list(csv.reader((played.out / "tables" / "costs.csv").open(encoding="utf-8")))
    score = "score, last checkpoint"
    measured = ["training, s", "updates a second", "peak memory, MB", "ms an action", "device"]
    assert costs[0] == ["task", "method", score, f"{score} low", f"{score} high", *measured]
    assert costs[1] == ["a-medium", NAME, str(1 / 3), str(1 / 3), str(1 / 3), "", "", "", "0.5", ""]


SMALL = Table(
    "Of 5 % & more",
    ("name", "x|y"),
    (("a_b", Number(-1.5, (-2.0, -1.0), bold=True)), ("[c]", None), ("all", Number(2.0, (1.5, 2.5), "error"))),
    "A note: ± is one standard error.",
    summary=True,
)


def test_latex_is_booktabs_and_escaped() -> None:
    assert SMALL.to_latex().splitlines() == [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}",
        "  \\centering\\small\\setlength{\\tabcolsep}{4pt}",
        "  \\caption{Of 5 \\% \\& more}",
        "  \\begin{tabular}{lr}",
        "    \\toprule",
        "    name & x\\textbar{}y \\\\",
        "    \\midrule",
        "    a\\_b & \\textbf{$-$1.5} {\\scriptsize [$-$2.0, $-$1.0]} \\\\",
        "    {}[c] & -- \\\\",
        "    \\midrule",
        "    all & 2.0 {\\scriptsize $\\pm$ 0.5} \\\\",
        "    \\bottomrule",
        "  \\end{tabular}",
        "",
        "  \\smallskip",
        "  {\\footnotesize A note: $\\pm$ is one standard error.}",
        "\\end{table}",
    ]


def test_a_table_too_wide_for_a_page_continues_below_and_repeats_its_first_columns() -> None:
    wide = Number(10.0, (9.0, 11.0))
    methods = [f"method {i}" for i in range(9)]
    table = Table(
        "Wide", ("task", "kind", *methods), (("a", "x", *[wide] * 9), ("all", "y", *[wide] * 9)), summary=True
    )
    parts = table.to_latex().split("\\begin{tabular}")[1:]
    heads = [part.splitlines()[2].strip(" \\").split(" & ") for part in parts]
    assert len(heads) > 1
    assert [head[:2] for head in heads] == [["task", "kind"]] * len(heads)
    assert [name for head in heads for name in head[2:]] == methods
    for part, head in zip(parts, heads, strict=True):
        rows = [line.strip() for line in part.splitlines() if " & " in line]
        assert all(len(row.split(" & ")) == len(head) for row in rows)
        assert part.startswith("{ll" + "r" * (len(head) - 2) + "}")
        assert part.count("\\midrule") == 2  # each part has a rule above the last row
        shown = [re.sub(r"\\scriptsize|[{}$\\]", "", row) for row in rows]
        assert max(map(len, shown)) < 100


def test_long_text_is_broken_into_lines_in_latex() -> None:
    table = Table("Data", ("task", "origin"), (("a", "regenerated from policies that others released"),))
    assert "\\begin{tabular}{lp{0.44\\linewidth}}" in table.to_latex()


def test_every_character_that_is_special_in_latex_is_escaped() -> None:
    """All of ASCII, a symbol, and an empty line, which would end the paragraph inside a caption."""
    escaped = latex_escaped("".join(map(chr, range(32, 127))) + " η ≥ 2\n\nend")
    plain = re.sub(r"\\text[a-z]+\{\}|\$\\[a-z]+\$|\\[&%$#_{}]", "", escaped)
    assert not set(plain) & set('&%$#_{}\\~^<>|"')
    assert escaped.endswith("$\\eta$ $\\geq$ 2 end")


def test_markdown_is_a_table_with_its_bars_escaped() -> None:
    assert SMALL.to_markdown().splitlines() == [
        "**Of 5 % & more**",
        "",
        "| name | x\\|y |",
        "| --- | ---: |",
        "| a_b | **−1.5 [−2.0, −1.0]** |",
        "| [c] | – |",
        "| all | 2.0 ± 0.5 |",
        "",
        "A note: ± is one standard error.",
    ]


def test_on_a_screen_names_in_brackets_are_not_markup() -> None:
    printed = io.StringIO()
    Console(file=printed, width=80).print(SMALL.to_rich())
    for text in ("Of 5 % & more", "x|y", "[c]", "−1.5 [−2.0, −1.0]", "2.0 ± 0.5", "A note"):
        assert text in printed.getvalue()
