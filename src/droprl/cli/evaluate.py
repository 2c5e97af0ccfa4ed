"""`drop evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from droprl.adapt import InferenceRule
from droprl.adapt.inference import GuardFallback
from droprl.cli.options import Folder, parse, print_json, use_compilation_cache
from droprl.errors import DropError
from droprl.evaluation import Evaluation
from droprl.evaluation import evaluate as evaluate_run

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]  # its absence says nothing: the policy's own setting stands


@dataclass(frozen=True)
class AdaptationOptions:
    """How z is inferred at test time; what is left out stays as it was trained."""

    rule: InferenceRule | None = None
    """best, grad (z once, at the initial state), best-ada or grad-ada (z anew as the episode goes on)."""
    ascent_steps: int | None = None
    """K, the steps of gradient ascent."""
    step_size: float | None = None
    """What the gradient is multiplied by in an ascent step; with normalized steps, their length."""
    step_rule: Literal["plain", "normalized"] | None = None
    """plain adds step_size · ∇f; normalized makes every step exactly step_size long."""
    region: Literal["trust", "box", "none"] | None = None
    """Where z may go."""
    trust_radius: float | None = None
    """How far z may leave the embedding it started from, with --region trust."""
    starts: int | None = None
    """Ascend only from this many embeddings, those with the highest score; N or more is from all, as in the paper."""
    halve_every: int | None = None
    """After every so many ascent steps only the better half of the starts goes on."""
    tolerance: float | None = None
    """Stop ascending once no start rises by more than this in a step."""
    warm_start: bool | None = None
    """Let grad-ada also ascend from the last state's z*."""
    reinference_interval: int | None = None
    """m of DROP(m): infer z anew every m steps."""
    guard: Flag = False
    """Go by the last believable observation where one is a fault, and by a sub-task's own z where ascent left it."""
    no_guard: Flag = False
    """Play or export without the guard that a policy was saved with."""
    guard_margin: float | None = None
    """With --guard: a fault lies so many times as far from the data as 99.9 % of the data's own states."""
    guard_patience: int | None = None
    """With --guard: go by an earlier observation for so many steps in a row at most."""
    guard_fallback: GuardFallback | None = None
    """With --guard: where a z goes that ascent led away from every sub-task, to its start's z_n or to the nearest."""

    def chosen(self) -> dict[str, Any]:
        if self.guard and self.no_guard:
            raise DropError("--guard and --no-guard were both given: leave one out")
        given = vars(self) | {"guard": True if self.guard else False if self.no_guard else None}
        return {name: value for name, value in given.items() if value is not None and name != "no_guard"}


@dataclass(frozen=True)
class EvaluateOptions:
    """Play a run (all its seeds) or a saved policy in its task, and keep every episode's return."""

    run: Folder
    """The folder that `drop train` or `drop export` made."""
    adaptation: AdaptationOptions = AdaptationOptions()
    episodes: int = 10
    """Episodes for each seed and checkpoint."""
    protocol: Literal["last", "paper"] = "last"
    """last: the last checkpoint. paper: the mean over the last six."""
    env: str | None = None
    """The Gymnasium id of the task, where the data did not say."""
    n_envs: int = 10
    """Episodes played side by side."""
    json: bool = False
    """Print one JSON object: per seed and checkpoint the returns and scores; mean, IQM and interval."""


def evaluate(words: list[str]) -> None:
    use_compilation_cache()
    options = parse(EvaluateOptions, "evaluate", words)
    evaluation = evaluate_run(
        options.run,
        episodes=options.episodes,
        protocol=options.protocol,
        env=options.env,
        n_envs=options.n_envs,
        **options.adaptation.chosen(),
    )
    if options.json:
        print_json(evaluation.to_json())
    else:
        print_scores([evaluation])


def print_scores(evaluations: list[Evaluation]) -> None:
    """The table, and what to know before comparing its scores with others."""
    console = Console()
    console.print(score_table(evaluations))
    for e in evaluations:
        if e.guarded is not None:
            console.print(
                f"The guard of {e.rule} stepped in at {100 * e.guarded:.1f} % of the actions.", highlight=False
            )
    for caveat in dict.fromkeys(e.caveat for e in evaluations if e.caveat):
        console.print(f"Not quite D4RL's scores: {caveat}.", highlight=False, soft_wrap=True)


def score_table(evaluations: list[Evaluation]) -> Table:
    """One row a method and rule: what a person compares."""
    first = evaluations[0]
    title = f"{first.dataset}: {first.unit} in {first.env}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("method", "rule", "mean", "IQM", "95 % of IQM", "seeds", "episodes", "ms/action"):
        # A long rule breaks its line: where all columns are kept whole, numbers are cut instead.
        table.add_column(
            heading, justify="left" if heading in ("method", "rule") else "right", no_wrap=heading != "rule"
        )
    for e in evaluations:
        table.add_row(
            e.algorithm,
            " ".join(filter(None, (e.rule, *e.particulars))) or "–",
            f"{e.mean:.1f}",
            f"{e.iqm:.1f}",
            f"{e.interval[0]:.0f} … {e.interval[1]:.0f}",
            str(len({r.seed for r in e.results})),
            str(len(e.values)),
            "–" if e.milliseconds_per_action is None else f"{e.milliseconds_per_action:.2f}",
        )
    return table
