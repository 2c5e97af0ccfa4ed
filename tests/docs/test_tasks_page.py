"""The numbers of docs/tasks.md, and of the ties in docs/data.md, are those of the committed results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")


def results(path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((ROOT / "benchmarks" / path).read_text(encoding="utf-8"))
    return found


def row(title: str, after: str = "") -> list[str]:
    """The cells of the first row with this title, after a line that begins so."""
    lines = PAGE.split("\n")
    begin = next((i for i, line in enumerate(lines) if line.startswith(after)), 0) if after else 0
    line = next(line for line in lines[begin:] if line.startswith(f"| {title} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


@pytest.mark.parametrize(
    ("ant", "noise", "title", "after"),
    [
        ("D4RL's", 0.2, "droprl's ant, which is D4RL's", ""),
        ("D4RL's", 0.0, "without noise", "| droprl's ant"),
        ("D4RL's, with Gymnasium's contacts", 0.2, "the same with Gymnasium's contacts", ""),
        ("D4RL's, with Gymnasium's contacts", 0.0, "without noise", "| the same with Gymnasium's contacts"),
        ("Gymnasium's", 0.2, "Gymnasium's ant", ""),
    ],
)
def test_goals_reached(ant: str, noise: float, title: str, after: str) -> None:
    found = [r for r in results("antmaze/results/walker.json") if (r["ant"], r["noise"]) == (ant, noise)]
    assert [r["maze"] for r in found] == ["antmaze-umaze", "antmaze-medium", "antmaze-large"]
    assert row(title, after) == [str(sum(r["reached_in_each"])) for r in found]
    assert {len(r["reached_in_each"]) for r in found} == {50}


def test_a_policy_that_walked_d4rls_ant_walks_here() -> None:
    share = {
        r["maze"]: np.mean(r["reached_in_each"])
        for r in results("antmaze/results/walker.json")
        if (r["ant"], r["noise"]) == ("D4RL's", 0.2)
    }
    assert share["antmaze-umaze"] >= 0.7
    assert share["antmaze-medium"] >= 0.5


def test_adroits_rewards() -> None:
    versions, *found = results("replay/results/adroit.json")
    played = {r["task"]: r for r in found if "task" in r}
    means = {
        name: [round(float(np.mean(r[key])), 2) for r in (played[t] for t in ("door", "hammer", "relocate"))]
        for name, key in (("as played", "score_in_each_episode"), ("D4RL", "score_by_D4RLs_rules"))
    }
    assert [float(cell) for cell in row("the same by D4RL's rules")] == pytest.approx(means["D4RL"], abs=0.005)
    cells = row("the score of random actions as played; 0 by D4RL's definition")
    assert [float(cell) for cell in cells] == pytest.approx(means["as played"], abs=0.005)
    both = ("score_in_each_episode", "score_by_D4RLs_rules")
    pen = [float(cell) for cell in row("random actions (50 episodes); 0 by D4RL's definition")]
    assert pen == [round(float(np.mean(played["pen"][key])), 1) for key in both]
    data = {r["data"]: r for r in found if "data" in r}
    keys = ("score_in_each_episode", "score_if_a_dropped_pen_ended_it")
    pen = [float(cell) for cell in row("the regenerated pen-expert (100 episodes)")]
    assert pen == [round(float(np.mean(data["pen-expert"][key])), 1) for key in keys]
    assert versions["mujoco"] in PAGE
    assert versions["gymnasium_robotics"] in PAGE


@pytest.mark.parametrize("body", ["hopper", "walker2d", "halfcheetah"])
def test_rows_of_the_bodies(body: str) -> None:
    found = [r for r in results("replay/results/locomotion.json")[1:] if r["env"].lower() == f"{body}-v4"]
    assert f"{sum(r['rows'] for r in found):,} rows" in row(body)[1]
    within = {"hopper": ("max", 3e-6), "walker2d": ("99 %", 1e-5), "halfcheetah": ("99 %", 3e-5)}[body]
    assert max(r["next_state"][within[0]] for r in found) <= within[1]
    assert max(r["reward"]["max"] for r in found) <= 1e-4
    assert sum(r["ends_that_differ"] for r in found) == 0


def test_orders_of_ties() -> None:
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    by_data = [results(f"ties/results/{name}.json") for name in ("antmaze-umaze", "antmaze-umaze-diverse")]
    for played in zip(*by_data, strict=True):
        assert {np.shape(r["scores_of_each_seed"]) for r in played} == {(3, 25)}
        means = " | ".join(f"{np.mean(r['scores_of_each_seed']):.1f}" for r in played)
        assert f"| {played[0]['order']} | {means} |" in page
