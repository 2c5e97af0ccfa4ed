"""Tables of an experiment's results: `python benchmarks/recipe/summary.py EXPERIMENT [--results FOLDER] [--markdown]`.

Scores over seeds and aggregates over datasets, what the trained networks know, and how likely one way to play is to
beat another. A run is one training seed, the mean over its episodes.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import kept
import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

from droprl.data.tasks import find_task, known_time_limit
from droprl.errors import DropError
from droprl.evaluation.statistics import Estimate, aggregate, probability_of_improvement, standard_error
from droprl.svg import number

LATE = 6  # checkpoints: papers report the mean of so many last evaluations, which hides the luck of one
GROUPS = ("medium-replay", "medium", "medium-expert", "random", "maze2d", "adroit")
ADROIT = ("pen", "hammer", "door", "relocate")
UNKNOWN = "–"


# --- results ---


@dataclass(frozen=True)
class Played:
    """One way to play the trained networks of one job."""

    scores: np.ndarray  # (checkpoints, seeds, episodes)
    promised: np.ndarray | None  # (seeds, episodes): f at the first state, by the last checkpoint
    realised: np.ndarray | None  # (seeds, episodes): the discounted return, in the units of f

    @property
    def last(self) -> np.ndarray:
        """A score a seed."""
        return self.scores[-1].mean(axis=-1)

    @property
    def late(self) -> np.ndarray | None:
        return self.scores[-LATE:].mean(axis=(0, 2)) if len(self.scores) >= LATE else None


@dataclass(frozen=True)
class Result:
    """What one variant learned on one dataset, and what it earned."""

    dataset: str
    variant: str
    plays: dict[str, Played]
    measures: dict[str, np.ndarray]  # a value a seed, at the end of training
    normalised: bool  # where the task has no reference scores, returns stand in for scores
    clock: int | None  # for how many steps it was played, if that is not the task's own time limit


@dataclass(frozen=True)
class Experiment:
    """All results under one name; variants and datasets stand in the order in which they are shown."""

    name: str
    results: tuple[Result, ...]
    variants: tuple[str, ...]
    datasets: tuple[str, ...]

    @property
    def plays(self) -> list[str]:
        return list(dict.fromkeys(play for result in self.results for play in result.plays))

    @property
    def scored(self) -> list[str]:
        """Datasets whose scores can be put together."""
        raw = {r.dataset for r in self.results if not r.normalised}
        return [d for d in self.datasets if d not in raw]

    @property
    def clocks(self) -> str:
        """A sentence on the datasets that were not played for as long as their task lasts; empty without any."""
        odd = {r.dataset: r.clock for r in self.results if r.clock is not None}
        return "".join(
            f" {d} was played for {n} steps, its task lasts {known_time_limit(d, None)}." for d, n in odd.items()
        )

    def result(self, dataset: str, variant: str) -> Result | None:
        return next((r for r in self.results if (r.dataset, r.variant) == (dataset, variant)), None)

    def played(self, variant: str, play: str) -> dict[str, Played]:
        """By dataset."""
        return {r.dataset: r.plays[play] for r in self.results if r.variant == variant and play in r.plays}

    def methods(self) -> dict[str, dict[str, Played]]:
        """What can be compared: every variant under every play, by label, then by dataset."""
        found = {label(v, p): self.played(v, p) for v in self.variants for p in self.plays}
        return {name: of for name, of in found.items() if of}

    def only(
        self,
        variants: Sequence[str] | None = None,
        plays: Sequence[str] | None = None,
        datasets: Sequence[str] | None = None,
    ) -> Experiment:
        """The part that is named, in the order of the names; None is everything."""
        variants, datasets = _those(variants, self.variants), _those(datasets, self.datasets)
        kept = [r for r in self.results if r.variant in variants and r.dataset in datasets]
        if plays is not None:
            kept = [replace(r, plays={p: r.plays[p] for p in plays if p in r.plays}) for r in kept]
        return Experiment(self.name, tuple(kept), variants, datasets)


def _those(wanted: Sequence[str] | None, found: Sequence[str]) -> tuple[str, ...]:
    if wanted is not None and not set(wanted) & set(found):
        raise DropError(f"none of {', '.join(wanted)} is there; there are {', '.join(found)}")
    return tuple(found) if wanted is None else tuple(name for name in wanted if name in found)


def label(variant: str, play: str) -> str:
    return variant if play == variant else f"{variant}/{play}"


def load_experiment(name: str, results: Path = kept.RESULTS) -> Experiment:
    contents = [content for content in kept.load(results).values() if content["job"]["experiment"] == name]
    if not contents:
        raise DropError(f"{results}: no results of {name}; make them with benchmarks/recipe/run.py {name}")
    found = tuple(map(_load_result, contents))
    datasets = sorted({r.dataset for r in found}, key=lambda d: (_place(group_of(d)), d))
    return Experiment(name, found, tuple(sorted({r.variant for r in found})), tuple(datasets))


def _load_result(content: Mapping[str, Any]) -> Result:
    job = content["job"]
    n_seeds = job["seeds"]
    final = {**(content["curve"][-1] if content.get("curve") else {}), **content.get("measures", {})}
    # The training curve also has scalars that are no measure of a seed: its step.
    per_seed = {k: _array(v) for k, v in final.items() if isinstance(v, list) and np.shape(v) == (n_seeds,)}
    plays = {name: _load_play(play) for name, play in content["plays"].items()}
    known = find_task(job["dataset"].split("+")[0])
    normalised = content.get("score_range", known.score_range if known else None) is not None
    clock = content.get("time_limit")
    odd = clock if plays and clock not in (None, known_time_limit(job["dataset"], None)) else None
    return Result(job["dataset"], job["variant"], plays, per_seed, normalised, odd)


def _load_play(play: Mapping[str, Any]) -> Played:
    promised, realised = (None if play.get(k) is None else _array(play[k]) for k in ("promised", "realised"))
    return Played(_array(play["scores"]), promised, realised)


def _array(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.float64)  # None, as JSON without NaN has it, becomes NaN


def group_of(dataset: str) -> str | None:
    """What the data of a D4RL task is: `hopper-medium+hopper-expert` is medium-expert, as is the file of both."""
    parts = [re.sub(r"-v\d+$", "", part) for part in dataset.split("+")]
    family = parts[0].split("-")[0]
    if family in ("maze2d", *ADROIT):
        return "maze2d" if family == "maze2d" else "adroit"
    kind = "-".join(sorted({part.partition("-")[2] for part in parts}, reverse=True))
    return kind if kind in GROUPS else None


def dataset_named(dataset: str) -> str:
    """By its group where it is made of two files."""
    group = group_of(dataset)
    return f"{dataset.split('-')[0]}-{group}" if "+" in dataset and group else dataset


def _place(group: str | None) -> int:
    return GROUPS.index(group) if group in GROUPS else len(GROUPS)


# --- tables ---


@dataclass(frozen=True)
class Table:
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    words: int = 1  # columns of words, from the left; the rest are numbers

    def upright(self) -> Table:
        """With the longer side down the page: a screen scrolls that way."""
        if len(self.header) - 1 <= len(self.rows):
            return self
        lines = list(zip(("variant/play", *self.header[1:]), *self.rows, strict=True))
        return Table(self.title, lines[0], tuple(lines[1:]), self.note)

    def markdown(self) -> str:
        lines = [self.header, tuple("---" if i < self.words else "---:" for i in range(len(self.header))), *self.rows]
        body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        return f"**{self.title}**\n\n{body}\n" + (f"\n{self.note}\n" if self.note else "")

    def rich(self) -> RichTable:
        table = RichTable(title=self.title, caption=self.note or None, title_justify="left", caption_justify="left")
        for i, name in enumerate(self.header):
            table.add_column(name, justify="left" if i < self.words else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table


def score_tables(experiment: Experiment) -> list[Table]:
    """By the last checkpoint, and over the last six where so many were played."""
    methods = experiment.methods()
    last = {m: {d: p.last for d, p in of.items()} for m, of in methods.items()}
    late = {m: {d: p.late for d, p in of.items() if p.late is not None} for m, of in methods.items()}
    tables = [_score_table(experiment, last, "last checkpoint")]
    if any(late.values()):
        tables.append(_score_table(experiment, {m: of for m, of in late.items() if of}, f"last {LATE} checkpoints"))
    return tables


def _score_table(experiment: Experiment, scores: Mapping[str, Mapping[str, np.ndarray]], when: str) -> Table:
    rows = [
        (d if d in experiment.scored else f"{d} (returns)", *(mean_and_error(of.get(d)) for of in scores.values()))
        for d in experiment.datasets
        if any(d in of for of in scores.values())
    ]
    for name, datasets in aggregated(experiment).items():
        rows.append((f"IQM {name}", *(_iqm_cell(of, datasets) for of in scores.values())))
    note = "Mean ± standard error over seeds; IQM with its 95 % interval, runs drawn within each dataset."
    if len(experiment.scored) < len(experiment.datasets):
        note += " Returns without a reference score are in no IQM."
    if any(len({len(runs) for runs in of.values()}) > 1 for of in scores.values()):
        note += " Where datasets have unequally many seeds, the IQM takes the first so many of each."
    title = f"{experiment.name}: score, {when}"
    return Table(title, ("dataset", *scores), tuple(rows), note + experiment.clocks).upright()


def aggregated(experiment: Experiment) -> dict[str, list[str]]:
    """Which datasets are put together, under which name: all, and each group, where that is something else."""
    sets = {"all": experiment.scored}
    sets |= {g: [d for d in experiment.scored if group_of(d) == g] for g in GROUPS}
    return {name: of for name, of in sets.items() if of and (name == "all" or len(of) < len(experiment.scored))}


def iqm_over(scores: Mapping[str, np.ndarray], datasets: Iterable[str]) -> Estimate | None:
    """Over those of the datasets that have been played; where one has fewer seeds, over the first so many of each."""
    tasks = [scores[d] for d in datasets if d in scores]
    fewest = min((len(runs) for runs in tasks), default=0)
    known = all(np.isfinite(runs).all() for runs in tasks)
    return aggregate([runs[:fewest] for runs in tasks], "iqm") if fewest and known else None


def _iqm_cell(scores: Mapping[str, np.ndarray], datasets: Sequence[str]) -> str:
    found = iqm_over(scores, datasets)
    if found is None:
        return UNKNOWN
    played = sum(d in scores for d in datasets)
    part = "" if played == len(datasets) else f" ({played} of {len(datasets)})"
    # One run has an interval without width, which would read as certainty.
    interval = f" [{number(found.low, 1)}, {number(found.high, 1)}]" if found.low < found.high else ""
    return f"{number(found.value, 1)}{interval}{part}"


def mean_and_error(runs: np.ndarray | None) -> str:
    if runs is None:
        return UNKNOWN
    return number(float(runs.mean()), 1) + (f" ± {number(standard_error(runs), 1)}" if len(runs) > 1 else "")


# The measure, what to call it, and which seed is the worst. A top sub-task that wins everywhere is f reading the luck
# of the best trajectories; a multiplier at its cap is a constraint that does not hold.
DIAGNOSTICS = (
    ("score_r2", "R²", min),
    ("held_out_r2_by_return", "held-out R², by return", min),
    ("held_out_r2_by_behavior", "held-out R², by behaviour", min),
    ("score_rank_correlation", "rank ρ", min),
    ("top_share", "top wins", max),
    ("favourites", "favourites", min),
    ("probe_clone_loss", "clone loss", max),
    ("probe_clone_loss_permuted", "permuted z", min),
    ("wrong_z_cost", "cost of a wrong z", min),
    ("held_out_clone_by_return", "held-out clone loss", max),
    ("held_out_clone_mean_z", "held-out, any z", min),
    ("gap", "gap", max),
    ("multiplier", "λ", max),
)


def diagnostics_table(experiment: Experiment) -> Table:
    rows, told = [], [d for d in DIAGNOSTICS if any(d[0] in with_cost(r.measures) for r in experiment.results)]
    for dataset in experiment.datasets:
        for variant in experiment.variants:
            result = experiment.result(dataset, variant)
            measures = with_cost(result.measures) if result else {}
            cells = [_worst_cell(measures.get(name), worst) for name, _, worst in told]
            if any(cell != UNKNOWN for cell in cells):
                rows.append((dataset, variant, *cells))
    header = ("dataset", "variant", *(name for _, name, _ in told))
    note = "Mean over seeds (worst seed), at the end of training. Cost of a wrong z: (permuted − right) ÷ |right|."
    return Table(f"{experiment.name}: what the networks know", header, tuple(rows), note, words=2)


def with_cost(measures: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    right, permuted = measures.get("probe_clone_loss"), measures.get("probe_clone_loss_permuted")
    if right is None or permuted is None:
        return measures
    return measures | {"wrong_z_cost": (permuted - right) / np.maximum(np.abs(right), 1e-12)}


def _worst_cell(seeds: np.ndarray | None, worst: Callable[[np.ndarray], float]) -> str:
    """A seed without a value where others have one is the worst of all."""
    if seeds is None or np.isnan(seeds).all():
        return UNKNOWN
    known = seeds[~np.isnan(seeds)]
    of_worst = number(float(worst(known)), 2) if len(known) == len(seeds) else "NaN"
    return f"{number(float(known.mean()), 2)} ({of_worst})"


def improvement_table(experiment: Experiment, chosen: str | None = None) -> Table:
    """How likely one run of the chosen way to play beats one of another, over the datasets that both have played."""
    methods = {m: {d: p.last for d, p in of.items()} for m, of in experiment.methods().items()}
    note = "Last checkpoint; a tie counts half; 95 % interval, runs of both drawn within each dataset."
    if chosen is None:
        chosen = _highest(methods, experiment.scored)
        note += f" {chosen} was chosen for its IQM on these same runs, which flatters it."
    if chosen not in methods:
        raise DropError(f"{chosen}: no such play in {experiment.name}; there are {', '.join(methods)}")
    rows = []
    for other, scores in methods.items():
        shared = [d for d in experiment.datasets if d in scores and d in methods[chosen]]
        shared = [d for d in shared if np.isfinite([*scores[d], *methods[chosen][d]]).all()]
        if other != chosen and shared:
            p = probability_of_improvement([methods[chosen][d] for d in shared], [scores[d] for d in shared])
            rows.append((other, number(p.value, 2), f"[{p.low:.2f}, {p.high:.2f}]", str(len(shared))))
    header = ("against", f"P({chosen} is better)", "95 % interval", "datasets")
    return Table(f"{experiment.name}: probability of improvement by {chosen}", header, tuple(rows), note)


def _highest(methods: Mapping[str, Mapping[str, np.ndarray]], datasets: Sequence[str]) -> str:
    """Among those that have played the most datasets."""
    found = {m: iqm_over(of, datasets) for m, of in methods.items()}
    return max(methods, key=lambda m: (len(methods[m].keys() & {*datasets}), e.value if (e := found[m]) else -np.inf))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("experiment")
    parser.add_argument("--results", type=Path, default=kept.RESULTS, help="folder of the results")
    parser.add_argument("--play", help="the variant/play to compare with the others (default: the highest IQM)")
    parser.add_argument("--variants", nargs="+", help="only these, in this order (default: all)")
    parser.add_argument("--datasets", default="", help="only those whose name has this regular expression")
    parser.add_argument("--markdown", action="store_true", help="for GitHub")
    options = parser.parse_args()
    try:
        experiment = load_experiment(options.experiment, options.results)
        datasets = [name for name in experiment.datasets if re.search(options.datasets, name)]
        experiment = experiment.only(options.variants, datasets=datasets)
        tables = [diagnostics_table(experiment)]
        if experiment.plays:  # some experiments measure and play nothing
            tables = [*score_tables(experiment), *tables, improvement_table(experiment, options.play)]
    except DropError as error:
        sys.exit(str(error))
    console = Console(width=None if sys.stdout.isatty() else 400)  # a file has no edge to fold at
    for table in tables:
        if not table.rows:
            continue
        if options.markdown:
            print(table.markdown())
        else:
            console.print(table.rich(), "")


if __name__ == "__main__":
    main()
