"""`drop evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table

from droprl.adapt import InferenceRule
from droprl.adapt.inference import Candidates, GuardFallback, ScoreBy
from droprl.cli.options import Flag, Folder, parse, print_json, use_compilation_cache
from droprl.errors import UsageError
from droprl.evaluation import Evaluation
from droprl.evaluation import evaluate as evaluate_run
from droprl.terminal import Screen, say


@dataclass(frozen=True)
class AdaptationOptions:
    """How z is inferred at test time. An option that is left out stays as in training."""

    rule: InferenceRule | None = None
    """best and grad infer z once, at the initial state; best-ada and grad-ada infer it again during the episode. first
    infers nothing: it plays the first sub-task. auto does so too, and searches only where the data showed that it
    pays."""
    ascent_steps: int | None = None
    """K, the steps of gradient ascent."""
    step_size: float | None = None
    """The factor of the gradient in an ascent step; with --step-rule normalized, the length of a step."""
    step_rule: Literal["plain", "normalized"] | None = None
    """plain adds step_size · ∇f; normalized makes every step exactly step_size long."""
    region: Literal["trust", "box", "none"] | None = None
    """Where z may go. trust: within trust_radius of its start. box: in the box of all embeddings. none: anywhere."""
    trust_radius: float | None = None
    """With --region trust: how far z may move from the embedding where it starts."""
    starts: int | None = None
    """Ascend only from this many embeddings, those with the highest score. N or more takes all, as in the paper."""
    halve_every: int | None = None
    """Each time this many ascent steps are done, only the better half of the starts goes on."""
    tolerance: float | None = None
    """Stop when no start gains more than this in a step."""
    candidates: Candidates | None = None
    """Which z_n may be chosen: those whose sub-tasks have been at states like this one, all, or the first alone."""
    keep: Literal["best", "last"] | None = None
    """Which point of a climb counts: the one with the highest score, or the last one."""
    score_by: ScoreBy | None = None
    """Judge a z by f at its own z, or only by what its action is worth to the sub-tasks that have been there."""
    hysteresis: float | None = None
    """Keep the z in use unless another one scores higher by more than this."""
    least_change: float | None = None
    """Search only at states where a candidate's action differs by more than this from that of the z in use."""
    warm_start: bool | None = None
    """Let grad-ada also ascend from z* of the previous state."""
    reinference_interval: int | None = None
    """m of DROP(m): infer z every m steps."""
    guard: Flag = False  # without the flag the policy's own setting counts
    """Replace a faulty observation by the last believable one, and a z that left all sub-tasks by a sub-task's z."""
    no_guard: Flag = False
    """Play or export without the guard, also if the policy was saved with it."""
    guard_margin: float | None = None
    """With --guard: how far from the data a fault begins, as a multiple of the distance that 99.9 % of the data's own
    states have at most."""
    guard_patience: int | None = None
    """With --guard: how many steps in a row may use an earlier observation, at most."""
    guard_fallback: GuardFallback | None = None
    """With --guard: what replaces a z that left every sub-task, the z_n of its start or the nearest z_n."""

    def chosen(self) -> dict[str, Any]:
        if self.guard and self.no_guard:
            raise UsageError("--guard and --no-guard exclude each other: leave one out")
        given = vars(self) | {"guard": True if self.guard else False if self.no_guard else None}
        return {name: value for name, value in given.items() if value is not None and name != "no_guard"}


@dataclass(frozen=True)
class EvaluateOptions:
    """Play a run (all its seeds) or a saved policy in its task, and save the return of every episode."""

    run: Folder
    """The folder that `drop train` or `drop export` made."""
    adaptation: AdaptationOptions = AdaptationOptions()
    episodes: int = 10
    """Episodes for each seed and checkpoint."""
    protocol: Literal["last", "paper"] = "last"
    """Which checkpoints are played. last: the last one. paper: the last six, and the mean over them."""
    env: str | None = None
    """The Gymnasium id of the task, if the data did not name it."""
    n_envs: int = 10
    """Episodes played side by side."""
    json: bool = False
    """Print one JSON object: for each seed and checkpoint the returns and scores; mean, IQM and interval."""


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
    if evaluation.kept is not None:
        say(f"drop: not saved: the run keeps {evaluation.kept}", error=True)


def print_scores(evaluations: list[Evaluation]) -> None:
    """Print the table, and what a reader must know before comparing its scores with others."""
    console = Screen()
    console.print(score_table(evaluations))
    for e in evaluations:
        if e.guarded is not None:
            console.print(f"The guard of {e.rule} stepped in at {100 * e.guarded:.1f} % of the actions.")
        if e.unproven:
            seeds = ", ".join(map(str, e.unproven))
            console.print(
                f"Warning: {e.rule} searches, but nothing in the data showed that this pays (seed {seeds}). The rule "
                "auto searches only where it does.",
                soft_wrap=True,
            )
    for caveat in dict.fromkeys(e.caveat for e in evaluations if e.caveat):
        console.print(f"Not quite D4RL's scores: {caveat}.", soft_wrap=True)


def score_table(evaluations: list[Evaluation]) -> Table:
    """One row for each method and rule."""
    first = evaluations[0]
    title = f"{first.dataset}: {first.unit} in {first.env}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("method", "rule", "mean", "IQM", "95 % of IQM", "seeds", "episodes", "ms/action"):
        # A long rule wraps. Without wrapping, rich would cut numbers instead.
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
