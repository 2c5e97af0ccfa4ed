"""`drop judge`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

import tyro
from rich.box import SIMPLE_HEAD
from rich.table import Table

from droprl.cli.evaluate import AdaptationOptions
from droprl.cli.options import Folder, parse, print_json, use_compilation_cache
from droprl.data.sources import SourceOptions
from droprl.judging import Estimation, Judgement
from droprl.judging import judge as judge_policy
from droprl.judging.estimates import Second
from droprl.terminal import Screen

Data = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATA")]


@dataclass(frozen=True)
class JudgeOptions:
    """Judge a run or a saved policy from data alone: what it would earn, how far the data supports that, and a verdict.

    Nothing is played, so no simulator is needed. All returns are discounted.
    """

    run: Folder
    """The folder that `drop train` or `drop export` made."""
    data: Data
    """The data that judges, given as to drop train. Data that the policy was not trained on is better."""
    seed: int | None = None
    """Which seed of a run; by default its first."""
    step: int | None = None
    """Which checkpoint of a run; by default its last."""
    discount: float = Estimation.discount
    """γ of all returns. What comes after 1 / (1 − γ) steps counts little."""
    adaptation: AdaptationOptions = field(default_factory=AdaptationOptions)
    reading: SourceOptions = field(default_factory=SourceOptions)
    json: bool = False
    """Print one JSON object instead of tables."""


def judge(words: list[str]) -> None:
    use_compilation_cache()
    options = parse(JudgeOptions, "judge", words)
    dataset = options.reading.load(options.data)
    with Screen(error=True).status("judging …") as status:
        found = judge_policy(
            options.run,
            dataset,
            seed=options.seed,
            step=options.step,
            config=replace(Estimation(), discount=options.discount),
            done=lambda members, total: status.update(f"judging: {members} of {total} estimates …"),
            **options.adaptation.chosen(),
        )
    if options.json:
        print_json(found.to_json())
        return
    console = Screen()
    console.print(judgement_table(found))
    console.print(support_table(found))
    console.print(f"Verdict: {found.verdict}: {found.meaning}.", soft_wrap=True)
    for reason in found.reasons:
        console.print(f"  - {reason}", soft_wrap=True)
    console.print(
        "On data with a known truth fewer than 90 % of such intervals held: see docs/judge.md.", soft_wrap=True
    )


def judgement_table(found: Judgement) -> Table:
    estimate = found.estimate
    table = Table(
        title=f"{found.policy}, judged by {found.dataset}", title_justify="left", box=SIMPLE_HEAD, pad_edge=False
    )
    for heading in (f"discounted return (γ {found.discount:g})", "estimate", "nominal 90 %"):
        table.add_column(heading, justify="left" if heading.startswith("disc") else "right", no_wrap=True)
    table.add_row("the log itself", _number(found.logged[0]), _range(found.logged[1]))
    table.add_row("the policy, by walks through the log", _number(estimate.value), _range(estimate.interval))
    seconds: list[tuple[str, Second | None]] = [
        ("second opinion: fitted Q evaluation", estimate.fqe),
        ("second opinion: doubly robust", estimate.doubly_robust),
    ]
    for name, second in seconds:
        if second is not None:
            table.add_row(name, _number(second.value), _range(second.interval(estimate.bounds)))
    table.add_row("what the rewards and γ allow", "", _range(estimate.bounds))
    return table


def support_table(found: Judgement) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("what the data supports")
    table.add_column("share", justify="right", no_wrap=True)
    estimate = found.estimate
    table.add_row("states that it would reach", f"{estimate.near_states:.0%}")
    table.add_row("states together with its actions there", f"{estimate.near_pairs:.0%}")
    if estimate.near_z is not None:
        table.add_row("z that it would use", f"{estimate.near_z:.0%}")
    if found.agreement is not None:
        table.add_row("logged steps at which it acts within a tenth of the range", f"{found.agreement.close:.0%}")
        table.add_row("mean distance to the logged action, of the range", f"{found.agreement.distance:.1%}")
    return table


def _number(value: float) -> str:
    return f"{value:,.4g}"


def _range(interval: tuple[float, float]) -> str:
    return f"{_number(interval[0])} … {_number(interval[1])}"
