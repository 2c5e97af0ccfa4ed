"""The page of runs: complete, escaped, self-contained, safe against NaN; and its script in a real browser."""

from __future__ import annotations

import base64
import csv
import dataclasses
import io
import json
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.pages import Page, assert_orderly, browse, needs_browser, sticks_out
from scipy.stats import spearmanr

from droprl import svg as svg_tools
from droprl.report import Chart, Diagnostic, EmbeddingWalk, Report, ScoreRow, Series, SubTaskReturns, render
from droprl.report.charts import interval_chart, line_chart, rank_correlation
from droprl.report.contents import Animation, Comparison, ScoreGroup
from droprl.report.page import write_report
from droprl.report.run_tables import run_tables
from droprl.video import Film, gif

ENDS = (60, 63, 70, 76)  # the final scores of the rules
RULES = ["best", "grad", "best-ada", "grad-ada"]
NAN, INF = math.nan, math.inf
MAZE = [
    "############", "#....#.....#", "#.##.#.#.#.#", "#......#...#",
    "#.####.###.#", "#..#.#.....#", "#..#...#.#.#", "############",
]  # fmt: skip

COMPARISON = Comparison(
    ("run", "data", "algorithm", "n_sub_tasks", "trained on", "training time", "droprl", "device"),
    [
        (
            f"walker2d/{name}",
            "walker2d-medium-replay-v2",
            "drop",
            n,
            "2026-01-31",
            "1 h 02 min",
            "0.1.0, JAX 0.10",
            "cpu",
        )
        for name, n in (("drop", "10"), ("drop-of-many-sub-tasks", "100"))
    ],
)
FRAMES = [np.full((330, 480, 3), 40 * i, np.uint8) for i in range(3)]

# ---- a report with made-up results


def make_row(rng: random.Random, method: str, rule: str | None, centre: float, time: float) -> ScoreRow:
    scores = [min(rng.gauss(centre, 9) if rng.random() < 0.9 else rng.uniform(5, centre), 118.0) for _ in range(50)]
    mean, iqm = sum(scores) / 50, sum(sorted(scores)[12:38]) / 26
    return ScoreRow(method, rule, mean, iqm, mean - 3.1, mean + 2.8, 5, 50, time, scores)


def make_curve(rng: random.Random, label: str, start: float, end: float, n: int = 60) -> Series:
    x = [1000.0 * i for i in range(1, n + 1)]
    y = [end + (start - end) * math.exp(-4 * i / n) + rng.gauss(0, abs(start - end) * 0.02) for i in range(n)]
    width = [abs(start - end) * (0.12 - 0.08 * i / n) for i in range(n)]
    low, high = [a - w for a, w in zip(y, width, strict=True)], [a + w for a, w in zip(y, width, strict=True)]
    return Series(label, x, y, low, high)


def in_decades(s: Series) -> Series:
    return Series(s.label, s.x, *([10**v for v in part] for part in (s.y, s.low or [], s.high or [])))


def make_walk(rng: random.Random, rule: str, maze: bool) -> EmbeddingWalk:
    shape = random.Random(3)  # the sub-tasks are the same whatever the rule
    angles = [0.4 + 4.2 * n / 39 for n in range(40)]
    radii = [1.5 + shape.gauss(0, 0.22) for _ in angles]
    embeddings = [(r * math.cos(a), 0.85 * r * math.sin(a)) for r, a in zip(radii, angles, strict=True)]
    returns = [3900 * math.exp(-n / 16) + shape.gauss(0, 60) for n in range(40)]
    steps = 240
    start, path, scores = [], [], []
    for t in range(steps):
        n = 0 if rule in ("best", "grad") else min(39, int(abs(6 * math.sin(t / 37) + 4 * math.sin(t / 11))))
        z = embeddings[n]
        lift = 0.0 if rule.startswith("best") else 0.32
        turn = 0.0 if rule == "grad" else t / 14
        path.append((z[0] + lift * math.cos(turn) + 0.1 * lift, z[1] + lift * math.sin(turn)))
        start.append(n)
        scores.append(7.5 - 5 * t / steps + 0.5 * math.sin(t / 13) + lift + rng.gauss(0, 0.08))
    rewards = [max(0.0, rng.gauss(3.4, 1.0)) for _ in range(steps)]
    if not maze:
        return EmbeddingWalk(rule, embeddings, returns, path, start, scores, rewards, 0.81)
    walls = [(float(c), 7.0 - r, 1.0, 1.0) for r, row in enumerate(MAZE) for c, cell in enumerate(row) if cell == "#"]
    corners = [(1.5, 1.5), (1.5, 4.5), (6.5, 4.5), (6.5, 2.5), (10.5, 2.5), (10.5, 6.5)]
    positions = []
    for t in range(steps):
        leg, part = divmod(t / steps * (len(corners) - 1), 1.0)
        (a, b), (c, d) = corners[int(leg)], corners[int(leg) + 1]
        positions.append((a + (c - a) * part + rng.gauss(0, 0.04), b + (d - b) * part + rng.gauss(0, 0.04)))
    rewards = [0.0] * (steps - 20) + [1.0] * 20
    return EmbeddingWalk(rule, embeddings, returns, path, start, scores, rewards, 0.43, positions, walls, corners[-1])


def make_report(maze: bool = False) -> Report:
    rng = random.Random(0)
    rows = [
        make_row(rng, "BC", None, 36, 0.041),
        make_row(rng, "F-BC", None, 57, 0.043),
        make_row(rng, "RvS-R", None, 61, 0.052),
        make_row(rng, "Decision Transformer", None, 64, 2.31),
        *(make_row(rng, "DROP", *cells) for cells in zip(RULES, ENDS, (0.05, 0.05, 0.62, 1.94), strict=True)),
        make_row(rng, "DROP-CVAE", "grad-ada", 75, 2.02),
    ]
    returns = [3900 * math.exp(-n / 16) + 120 for n in range(40)]
    low, high = ([r + side * rng.uniform(40, 300) for r in returns] for side in (-1, 1))
    predicted = [r / 560 + rng.gauss(0, 0.5) for r in returns]
    return Report(
        title="DROP on walker2d-medium-replay",
        subtitle="Four ways to choose the embedding at test time, against cloning and return-conditioned methods.",
        command="drop report runs/walker2d-medium-replay --rule best grad best-ada grad-ada --episodes 10",
        score_unit="D4RL-normalised score",
        table=rows,
        curves=[
            Chart(
                "Score during training", "updates", "normalised score",
                [make_curve(rng, rule, 5, c) for rule, c in zip(RULES, ENDS, strict=True)],
                "Mean over five seeds; the band is their standard deviation.",
            ),
            Chart("Cloning loss", "updates", "mean squared error", [make_curve(rng, "β", 0.8, 0.17)]),
        ],
        sub_tasks=SubTaskReturns(returns, low, high, predicted),
        diagnostics=[
            Diagnostic("Spread of the embeddings", 0.97, True, "Near 0 all four rules would be one policy."),
            Diagnostic(
                "R² of the score on held-out trajectories", -0.41, False,
                "The score model predicts worse than a constant would. Train longer, or scale the rewards.",
            ),
            Diagnostic("Cloning error, true z against a permuted one", 0.75, True, "Below 1: the policy does use z."),
            Diagnostic("Share of states that prefer the top sub-task", 0.96, None, "Near 1: nothing to choose."),
        ],
        diagnostic_charts=[
            Chart(
                "TD loss", "updates", "squared error",
                [in_decades(make_curve(rng, name, 2.9, end)) for name, end in (("online", -0.4), ("target", -0.1))],
                "Still falling at the end would mean unconverged.", log_y=True,
            ),
            Chart("Mean score f over the data", "updates", "f", [make_curve(rng, "f", 0.0, 6.2)]),
        ],
        walks=[make_walk(rng, rule, maze) for rule in RULES],
        facts=[
            ("Dataset", "walker2d-medium-replay-v2"), ("Transitions", "302,000"), ("Trajectories", "1,093"),
            ("Sub-tasks", "40"), ("Seeds", "5"), ("Updates", "60,000"), ("Device", "CPU, 8 cores"),
        ],
        notes=["Regenerated data: scores are not comparable with published tables of the original files."],
        comparison=COMPARISON,
        animation=Animation(gif(Film(FRAMES, 4, 25.0, 8, 12.0)), "DROP in Walker2d-v4: 8 steps, return 12.0"),
    )  # fmt: skip


def test_every_table_of_the_page_is_also_data() -> None:
    report = make_report()
    tables = run_tables(report)
    assert list(tables) == ["scores", "runs", "sub_tasks", "diagnostics"]
    best, worst = (list(csv.DictReader(io.StringIO(tables["scores"].to_csv())))[i] for i in (7, 0))
    assert (best["method"], best["rule"], worst["rule"]) == ("DROP", "grad-ada", "")
    row = report.table[7]
    assert [float(best[name]) for name in ("mean", "mean low", "mean high")] == [row.mean, row.low, row.high]
    [*_, last] = csv.DictReader(io.StringIO(tables["sub_tasks"].to_csv()))
    assert report.sub_tasks is not None
    assert float(last["return"]) == report.sub_tasks.mean_returns[39]
    verdicts = [d["healthy"] for d in csv.DictReader(io.StringIO(tables["diagnostics"].to_csv()))]
    assert verdicts == ["yes", "no", "yes", ""]
    assert tables["runs"].records()[1] == dict(zip(COMPARISON.columns, COMPARISON.rows[1], strict=True))
    empty = dataclasses.replace(report, table=[], sub_tasks=None, diagnostics=[], comparison=None)
    assert run_tables(empty) == {}


@pytest.fixture(scope="module")
def page() -> str:
    return render(make_report())


def test_the_page_is_well_formed_and_its_headings_are_in_order(page: str) -> None:
    parsed = Page(page)
    assert_orderly(parsed)


def test_the_page_is_self_contained(page: str) -> None:
    assert not re.search(r"https?:", page)
    parsed = Page(page)
    assert all(source.startswith("data:image/gif;") for source in parsed.values("src"))
    assert all(link.startswith(("#", "data:")) for link in parsed.values("href"))
    assert not re.search(r"@import|url\(", page)
    assert len(page) < 400_000


def test_every_row_fact_and_check_is_on_the_page(page: str) -> None:
    report, text = make_report(), " ".join("".join(Page(page).text).split())
    for row in report.table:
        assert row.method in text
        assert f"{row.mean:.1f}" in text
    wanted = [word for fact in report.facts for word in fact] + [check.meaning for check in report.diagnostics]
    assert [word for word in wanted if word not in text] == []
    assert page.count('<tr class="best">') == 1
    assert {"healthy", "look here", "not judged"} <= set(re.findall("healthy|look here|not judged", text))


def test_every_drawing_has_a_name(page: str) -> None:
    for tag in re.findall(r"<svg[^>]*>", page):
        assert 'aria-hidden="true"' in tag or ('role="img"' in tag and 'aria-label="' in tag)


def test_text_is_escaped() -> None:
    evil = "</script><script>alert(1)</script><b a=\"'&"
    report = make_report()
    report = dataclasses.replace(
        report, title=evil, subtitle=evil, command=evil, score_unit=evil, notes=[evil], facts=[(evil, evil)],
        table=[dataclasses.replace(report.table[0], method=evil, rule=evil)],
        curves=[Chart(evil, evil, evil, [Series(evil, [0.0, 1.0], [1.0, 2.0])], evil)],
        diagnostics=[Diagnostic(evil, 1.0, True, evil)],
        walks=[dataclasses.replace(report.walks[0], rule=evil)],
    )  # fmt: skip
    page = render(report)
    assert "<script>alert" not in page
    assert "alert(1)" in "".join(Page(page).text)
    embedded = re.findall(r'<script type="application/json">(.*?)</script>', page, re.S)
    assert evil in {s["label"] for s in json.loads(embedded[0])["series"]}


def test_nan_and_infinity_become_gaps() -> None:
    report, holes = make_report(maze=True), [1.0, NAN, INF, -INF, 2.0, 3.0]
    row = ScoreRow("Lost", None, NAN, INF, NAN, NAN, 5, 50, NAN, holes)
    gappy = Series("a", [0.0, 1.0, 2.0, 3.0, NAN, 5.0], holes, holes, holes)
    lost = [NAN] * 240
    walk = dataclasses.replace(
        report.walks[0], explained=NAN, path=[(NAN, 0.0)] * 240, scores=lost, rewards=lost, sub_task_returns=lost[:40]
    )
    report = dataclasses.replace(
        report,
        table=[row, *report.table[1:]],
        curves=[Chart("t", "x", "y", [gappy], log_y=log) for log in (False, True)],
        sub_tasks=SubTaskReturns(holes, holes, holes, holes),
        diagnostics=[Diagnostic("d", NAN, None, "m"), Diagnostic("e", None, False, "m")],
        walks=[walk],
    )
    page = render(report)
    drawn = page[: page.rindex("<script>")]
    assert not re.search(r"\b(nan|NaN|inf|Infinity)\b", re.sub(r"<style>.*?</style>", "", drawn, flags=re.S))
    Page(page)


def test_an_empty_report_is_still_a_page() -> None:
    report = Report("Empty", "", "", "score", [], [], None, [], [], [], [], [])
    assert Page(render(report)).headings == ["h1"]
    one = SubTaskReturns([5.0], [5.0], [5.0], [1.0])
    Page(render(dataclasses.replace(report, curves=[Chart("t", "x", "y", [])], sub_tasks=one)))


def test_the_verdict_claims_no_more_than_the_intervals() -> None:
    report = make_report()
    clear = [dataclasses.replace(r, low=r.mean - 1e-3, high=r.mean + 1e-3) for r in report.table]
    assert "lies above all the others" in render(dataclasses.replace(report, table=clear))
    unknown = [*clear, dataclasses.replace(clear[0], method="Unknown", low=NAN, high=NAN)]
    assert "do not decide the order" in render(dataclasses.replace(report, table=unknown))
    assert "one seed" in render(dataclasses.replace(report, table=[dataclasses.replace(clear[0], seeds=1)]))
    by_iqm = render(dataclasses.replace(report, interval_of="iqm"))
    assert "<strong>DROP · grad-ada</strong> has the highest IQM" in by_iqm


def test_a_spike_stays_visible_after_thinning() -> None:
    y = [0.0] * 20_000
    y[12_345] = 9.0
    y[700] = NAN
    drawing, data = line_chart(Chart("t", "x", "y", [Series("a", [float(i) for i in range(20_000)], y)]))
    assert 9.0 in data["series"][0]["y"]
    assert None in data["series"][0]["y"]
    assert len(drawing) < 20_000


def test_a_log_axis_says_what_it_cannot_show() -> None:
    chart = Chart("t", "x", "y", [Series("a", [0.0, 1.0, 2.0], [0.0, 1.0, 100.0])], log_y=True)
    report = dataclasses.replace(make_report(), curves=[chart])
    assert "1 value of zero or less cannot be shown" in render(report)


def test_every_episode_is_a_dot() -> None:
    drawing = interval_chart(make_report().table[:1], 0, "score", narrow=True)
    [cloud] = re.findall(r'class="episodes" d="([^"]*)"', drawing)
    assert cloud.count("h0") == 50


@pytest.mark.parametrize(
    ("low", "high", "log"),
    [(0, 1, 0), (-3, 3, 0), (1e5, 1e6, 0), (0, 1e-6, 0), (5, 5, 0), (1e-4, 1e3, 1), (3, 4, 1)],
)
def test_ticks_are_inside_distinct_and_few(low: float, high: float, log: bool) -> None:
    ticks = svg_tools.scale([low, high], 0, 100, log=log).ticks(5)
    labels = [label for _, label in ticks]
    assert 1 <= len(ticks) <= 10
    assert len(set(labels)) == len(labels)
    assert all(-1e-6 <= p <= 100 + 1e-6 for p, _ in ticks)


@pytest.mark.parametrize(("size", "spread"), [(1.0, 1e-6), (300.0, 0.01), (-5e6, 100.0), (0.2, 1e-8)])
def test_an_axis_never_zooms_into_rounding(size: float, spread: float) -> None:
    scale = svg_tools.scale([size, size + spread / 2, size + spread], 0, 100)
    assert scale.high - scale.low > 0.1 * abs(size)
    drawn = [scale(v) or 0.0 for v in (size, size + spread)]
    assert abs(drawn[1] - drawn[0]) < 0.2
    assert 2 <= len(scale.ticks(4)) <= 8


def test_a_small_true_spread_is_still_seen() -> None:
    scale = svg_tools.scale([100.0, 100.1], 0, 100)
    assert (scale(100.1) or 0) - (scale(100.0) or 0) > 50
    labels = [label for _, label in scale.ticks(4)]
    assert len(set(labels)) == len(labels)


def test_scores_on_several_datasets_stand_apart() -> None:
    report = make_report()
    groups = [ScoreGroup(f"data <{i}>", "return", report.table[i : i + 2]) for i in (0, 4)]
    several = dataclasses.replace(report, table=[], groups=groups)
    page = render(several)
    assert_orderly(Page(page))
    assert page.count('<table class="scores"') == 2
    assert page.count("data &lt;") == 2
    assert page.count("has the highest mean,") == 2
    assert {"scores-data-0-", "scores-data-4-"} <= set(run_tables(several))


def test_the_video_is_in_the_page_or_the_reason_why_not() -> None:
    page = render(make_report())
    (source,) = re.findall(r'<img src="data:image/gif;base64,([^"]+)"', page)
    assert base64.b64decode(source).startswith(b"GIF89a")
    reason = render(dataclasses.replace(make_report(), animation="<b> cannot be drawn"))
    assert "No video: &lt;b&gt; cannot be drawn." in reason
    assert "<img" not in reason


def test_rank_correlation_is_scipys() -> None:
    """With ties, and with a pair that is not finite and counts for nothing."""
    rng = random.Random(0)
    for _ in range(20):
        a, b = ([float(rng.randint(0, 6)) for _ in range(9)] for _ in range(2))
        assert rank_correlation([*a, NAN], [*b, 3.0]) == pytest.approx(float(spearmanr(a, b).statistic))


def test_rank_correlation_is_none_if_it_is_not_defined() -> None:
    assert rank_correlation([1, 2, 3, NAN], [2, 4, 9, 1]) == pytest.approx(1.0)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None
    assert rank_correlation([1, 2], [1, 2]) is None


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="3 x, 2 y"):
        Series("a", [0.0, 1.0, 2.0], [0.0, 1.0])
    with pytest.raises(ValueError, match="both low and high"):
        Series("a", [0.0], [0.0], low=[0.0])


def test_writing_replaces_the_old_page_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "run" / "report.html"
    write_report(make_report(), target)
    write_report(dataclasses.replace(make_report(), title="Second"), target)
    assert "<h1>Second</h1>" in target.read_text(encoding="utf-8")
    assert [p.name for p in target.parent.iterdir()] == ["report.html"]


# ---- in a browser


@needs_browser
def test_the_script_runs_and_the_player_follows_the_address(tmp_path: Path) -> None:
    path = write_report(make_report(maze=True), tmp_path / "report.html")
    fresh = browse(path, tmp_path / "a")
    assert fresh.values("data-ready") == ["true"]
    assert fresh.values("data-error") == []
    assert (fresh.values("data-rule"), fresh.values("data-step")) == (["best"], ["0"])
    later = browse(path, tmp_path / "b", "#walk=3&step=120")
    assert later.values("data-error") == []
    assert (later.values("data-rule"), later.values("data-step")) == (["grad-ada"], ["120"])
    assert "Step 120 of 239" in "".join(later.text)
    played = browse(path, tmp_path / "c", "#walk=2&play")
    assert played.values("data-error") == []
    assert int(played.values("data-step")[0]) > 0


@needs_browser
def test_the_controls_work(tmp_path: Path, page: str) -> None:
    hand = """<script>
      const $ = (s) => document.querySelector(s), told = document.body.dataset, player = $("[data-walks]").dataset;
      $(".scrub").value = 77; $(".scrub").dispatchEvent(new Event("input")); told.scrubbed = player.step;
      document.querySelectorAll(".tabs input")[2].click(); told.chosen = player.rule;
      told.visible = [...document.querySelectorAll(".walk")].filter((w) => !w.hidden).length;
      $(".play").click(); told.first = player.playing;
      $(".play").click(); told.second = player.playing;
      $(".plot").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" })); told.tip = $(".tip").textContent;
    </script></body>"""
    path = tmp_path / "report.html"
    path.write_text(page.replace("</body>", hand), encoding="utf-8")
    seen = browse(path, tmp_path / "profile")
    names = ("data-error", "data-scrubbed", "data-chosen", "data-visible", "data-first", "data-second")
    assert [seen.values(n) for n in names] == [[], ["77"], ["best-ada"], ["1"], ["true"], ["false"]]
    assert seen.values("data-tip")[0].startswith("updates 1,000best: ")


@needs_browser
def test_nothing_overflows_on_a_phone_or_a_desktop(tmp_path: Path) -> None:
    pages = [render(make_report(maze)) for maze in (False, True)]
    assert sticks_out(pages, tmp_path) == [*[""] * 4, *["0"] * 4]
