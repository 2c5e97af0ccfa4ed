"""`drop finetune`."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from droprl.cli.evaluate import AdaptationOptions
from droprl.cli.options import Folder, parse, print_json, use_compilation_cache
from droprl.data.sources import SourceOptions
from droprl.finetuning import FineTuning, Level, Protocol
from droprl.finetuning import finetune as finetune_run
from droprl.terminal import Screen
from droprl.train import Run


@dataclass(frozen=True)
class FinetuneOptions:
    """Improve a trained run in its task. Each seed has a budget of environment steps.

    The same command resumes. The result is the policy RUN/finetune/LEVEL/policy.
    """

    run: Folder
    """The folder that `drop train` made."""
    level: Level
    """checkpoint: play the last six checkpoints and keep the best. embedding: choose a checkpoint and the number of
    ascent steps. policy: go on training the networks, from the choice of the embedding level if there is one."""
    budget: int
    """Environment steps for each seed. It is never exceeded: an episode that may not fit is not started."""
    protocol: Protocol = "paper"
    """How the levels checkpoint and embedding search. paper: one episode for each checkpoint and k; the checkpoint
    level plays rule best, whatever rule the policy has; k begins at 1. thorough: as many episodes as the budget allows;
    the checkpoint level plays the policy's own rule; k begins at 0, which is no ascent."""
    rounds: int | None = None
    """Episodes to judge each checkpoint and k by, in place of the protocol's number; their mean counts."""
    max_ascent_steps: int = 50
    """K_max: the embedding level tries up to so many ascent steps."""
    online_share: float = 0.5
    """At the policy level: the share of online steps in every batch; the rest is the run's data."""
    updates_per_step: float = 1.0
    """At the policy level: updates for each environment step, made after every episode."""
    exploration: float = 0.1
    """At the policy level: standard deviation of the noise on the played actions, in half-ranges of the action."""
    episodes: int = 10
    """Episodes for each seed that measure the initial and the fine-tuned policy; not part of the budget."""
    n_envs: int = 10
    """How many of these episodes are played side by side."""
    dataset: str | None = None
    """At the policy level: the SOURCE of the run's data, if it has moved or needs options to be read."""
    adaptation: AdaptationOptions = field(default_factory=AdaptationOptions)
    reading: SourceOptions = field(default_factory=SourceOptions)
    json: bool = False
    """Print one JSON object: for each seed the choice and every return before and after; the means."""


def finetune(words: list[str]) -> None:
    use_compilation_cache()
    options = parse(FinetuneOptions, "finetune", words)
    run = Run(options.run)
    found = finetune_run(
        run,
        level=options.level,
        budget=options.budget,
        protocol=options.protocol,
        rounds=options.rounds,
        max_ascent_steps=options.max_ascent_steps,
        online_share=options.online_share,
        updates_per_step=options.updates_per_step,
        exploration=options.exploration,
        episodes=options.episodes,
        env=options.reading.env,
        dataset=None if options.dataset is None else options.reading.load(options.dataset),
        n_envs=options.n_envs,
        **options.adaptation.chosen(),
    )
    if options.json:
        print_json(found.to_json())
        return
    console = Screen()
    console.print(table(found))
    for line in remarks(found, run):
        console.print(line, soft_wrap=True)


def table(found: FineTuning) -> Table:
    """One row for each seed and one for all: initial → fine-tuned, as in the paper's table."""
    rule = "" if found.adaptation is None else f" {found.adaptation['rule']}"
    title = f"{found.algorithm}{rule}, {found.level} level on {found.dataset}: {found.unit} in {found.env}"
    made = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("seed", "initial → fine-tuned", "chosen for", "checkpoint", "k", "steps", "episodes"):
        made.add_column(heading, justify="left" if heading == "seed" else "right", no_wrap=True)
    for seed in found.seeds:
        made.add_row(
            str(seed.tuned.seed),
            f"{np.mean(seed.initial.values):.1f} → {np.mean(seed.tuned.values):.1f}",
            _number(seed.chosen_for),
            f"{seed.step:,}",
            "–" if seed.ascent_steps is None else str(seed.ascent_steps),
            f"{seed.steps_played:,}",
            str(seed.episodes_played),
        )
    spent = sum(seed.steps_played for seed in found.seeds)
    played = sum(seed.episodes_played for seed in found.seeds)
    made.add_section()
    made.add_row(
        "all",
        f"{found.initial:.1f} → {found.tuned:.1f}",
        _number(found.chosen_for),
        "",
        "",
        f"{spent:,}",
        str(played),
    )
    return made


def remarks(found: FineTuning, run: Run) -> list[str]:
    """What a reader must know before using the numbers."""
    episodes = len(found.seeds[0].tuned.returns)
    lines = [
        f"initial and fine-tuned: the same {episodes} new episodes for each seed. Their {found.evaluation_steps:,} "
        f"steps are not part of the budget of {found.budget:,}."
    ]
    if found.chosen_for is not None:
        by = "" if found.search_rule is None else f" by rule {found.search_rule}, as the paper's Algorithm 3"
        lines.append(
            f"chosen for: the result in the search{by}, on other episodes. As the highest of several it is optimistic."
        )
    if found.caveat:
        lines.append(f"Not quite D4RL's scores: {found.caveat}.")
    folder = run.path / "finetune" / found.level / "policy"
    return [*lines, f"{folder} is the policy of seed {found.seeds[0].tuned.seed}; play it with: drop evaluate {folder}"]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
