"""The description of a dataset, printed on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from droprl.data.describe import TIE_DISCOUNT, Description, Ties
from droprl.data.warn import Warned
from droprl.terminal import Screen

MOST_COLUMNS, MOST_ACTIONS = 24, 8
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def print_description(description: Description, console: Screen) -> None:
    """Print the description in compact form."""
    console.print(_facts(description))
    console.print(_spreads(description))
    console.print(Text("Episodes by return", style="bold"))
    for line in _histogram_lines(description):
        console.print(line)
    console.print(_columns(description))
    console.print(_cuts(description))
    if description.ties is not None:
        console.print(_ties(description, description.ties))
    console.print(_best(description))
    print_warnings(description.warnings, console)


def print_warnings(warnings: Sequence[Warned], console: Screen) -> None:
    """What fails quietly, and what to do about it."""
    for warned in warnings:
        console.print(
            Text.assemble(
                ("warning: ", "bold yellow"),
                f"{warned.what}. ",
                f"To do: {warned.do}. ",
                (f"Limit: {warned.limit}.", "dim"),
            )
        )


def _columns(description: Description) -> Table:
    """The ranges of columns. Of many columns, the first observations and the first actions."""
    actions = [column for column in description.columns if column.kind == "action"][:MOST_ACTIONS]
    observations = [column for column in description.columns if column.kind == "observation"]
    shown = [*observations[: MOST_COLUMNS - len(actions)], *actions]
    n_more = len(description.columns) - len(shown)
    table = Table(
        title="Columns", title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False,
        title_style="bold", collapse_padding=True,
        caption=f"and {n_more:,} more: --json has all of them" if n_more > 0 else None,
    )  # fmt: skip
    table.add_column("column", overflow="ellipsis", no_wrap=True, max_width=30)
    for name in ("min", "max", "mean", "std", "at a bound"):
        table.add_column(name, justify="right", no_wrap=True)
    for column in shown:
        numbers = (f"{value:.4g}" for value in (column.min, column.max, column.mean, column.std))
        at_bound = "" if column.at_bound is None else f"{column.at_bound:.0%}"
        table.add_row(f"{column.kind[:3]} {column.name}", *numbers, at_bound)
    return table


def _facts(description: Description) -> Table:
    table = Table(title=description.name, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    ends = f"{description.n_terminals:,} ended the task, {description.n_timeouts:,} timed out"
    if description.last_is_cut_short:
        ends += ", the last is cut short"
    table.add_row("environment", description.env or "not known: give --env to evaluate")
    if description.time_limit is not None:
        table.add_row("time limit", f"{description.time_limit:,} steps of an episode when it is played")
    table.add_row("steps", f"{description.n_steps:,}")
    table.add_row("episodes", f"{description.n_episodes:,}: {ends}")
    table.add_row("observations", f"{description.observation_size} numbers")
    table.add_row("actions", f"{description.action_size} numbers in {_bounds(description)}")
    rewards = description.rewards
    table.add_row(
        "rewards",
        f"{rewards.min:.4g} to {rewards.max:.4g}, mean {rewards.mean:.4g}; {rewards.density:.1%} of steps are not 0",
    )
    table.add_row("next observations", "stored" if description.has_next_observations else "not stored")
    if description.score_range is not None:
        low, high = description.score_range
        table.add_row("score", f"0 at a return of {low:,.1f}, 100 at {high:,.1f}")
    return table


def _bounds(description: Description) -> str:
    pairs = sorted(set(zip(description.action_low, description.action_high, strict=True)))
    shown = ", ".join(f"[{low:g}, {high:g}]" for low, high in pairs[:3])
    return shown + (", …" if len(pairs) > 3 else "")


def _spreads(description: Description) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("each episode's")
    for column in ("min", "25 %", "median", "75 %", "max", "mean"):
        table.add_column(column, justify="right")
    rows = [("length", description.lengths, 0), ("return", description.returns, 1), ("score", description.scores, 1)]
    for title, spread, digits in rows:
        if spread is not None:
            values = (spread.min, spread.lower_quartile, spread.median, spread.upper_quartile, spread.max, spread.mean)
            table.add_row(title, *(f"{value:,.{digits}f}" for value in values))
    return table


def _histogram_lines(description: Description, width: int = 40) -> list[Text]:
    edges, counts = description.histogram_edges, description.histogram_counts
    labels = [f"{edge:,.1f}" for edge in edges]
    widest = max(len(label) for label in labels)
    lines = []
    for low, high, count in zip(labels, labels[1:], counts, strict=False):
        line = Text(f"{low:>{widest}} … {high:>{widest}} ", no_wrap=True, overflow="crop")
        line.append(_bar(count / max(counts), width), style="cyan")
        line.append(f" {count:,}")
        lines.append(line)
    return lines


def _bar(share: float, width: int) -> str:
    """A bar of block characters. Any share above 0 shows at least an eighth of a block."""
    eighths = round(share * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def _cuts(description: Description) -> Table:
    asked = f"N = {description.sub_tasks_asked}, M = {description.trajectories_asked}: {description.sub_tasks_origin}"
    table = Table(
        title="Sub-tasks by each rule", caption=asked, title_justify="left", caption_justify="left",
        box=box.SIMPLE_HEAD, pad_edge=False, title_style="bold", collapse_padding=True,
    )  # fmt: skip
    table.add_column("rule")
    for column in ("sub-tasks", "episodes", "in each", "first returns", "last returns"):
        table.add_column(column, justify="right")
    for cut in description.cuts:
        size = f"{cut.smallest}" if cut.smallest == cut.largest else f"{cut.smallest} to {cut.largest}"
        table.add_row(
            cut.rule,
            f"{cut.n_sub_tasks}",
            f"{cut.n_trajectories} of {description.n_episodes}",
            size,
            _range(cut.first_returns),
            _range(cut.last_returns),
        )
    return table


def _ties(description: Description, ties: Ties) -> Text:
    lengths = ties.best_lengths
    return Text.assemble(
        ("Ties: ", "bold"),
        f"{ties.n_trajectories:,} of {description.n_episodes:,} trajectories share their return with another. There "
        f"are {ties.n_returns:,} different returns. Rank leaves ties in the order of the data: {ties.n_alike} of its "
        f"sub-tasks hold the same return as one beside them. Quantization leaves bins empty. The {ties.n_best:,} best "
        f"(return {ties.best_return:g}) take {lengths.lower_quartile:,.0f} to {lengths.upper_quartile:,.0f} steps (the "
        f"middle half), and with γ = {TIE_DISCOUNT:g} the median one is worth {ties.best_discounted:.2g} at its first "
        "state. ",
        ("--decomposition visits cuts by where trajectories go instead.", "dim"),
    )


def _best(description: Description) -> Text:
    return Text.assemble(
        ("F-BC clones ", "bold"),
        f"the best {description.best_trajectories:,} of {description.n_episodes:,} trajectories "
        f"({description.best_fraction:.1%}, {description.best_steps:,} steps): ",
        (f"{description.best_rule}. --top-fraction takes another share.", "dim"),
    )


def _range(returns: tuple[float, float]) -> str:
    largest = max(abs(bound) for bound in returns)
    form = ".3g" if largest >= 1e5 or largest < 0.1 else ",.0f" if largest >= 1e3 else ".1f"  # two must fit in a line
    return f"{returns[0]:{form}}…{returns[1]:{form}}"
