"""The metrics that people look at: what they are called on a page, and while an algorithm trains.

An algorithm lists its own curves on its card. Those that several algorithms share have their words here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Curve:
    """One metric along the updates."""

    metric: str
    title: str
    unit: str
    short: str = ""  # its name in the progress bar; empty: it is not shown there
    diagnosis: bool = False  # drawn beside the checks, not among the losses
    lines: tuple[tuple[str, str], ...] = ()  # where one chart has several metrics: each with its name
    note: str = ""


CLONE_LOSS = Curve("clone_loss", "Cloning loss", "−log β per action dimension", "clone")
TD_LOSS = Curve("td_loss", "TD loss", "squared error, rewards scaled", "td")
GAP = Curve("gap", "Gap of the constraint", "f(unseen z) − f(z of a sub-task)", "gap", diagnosis=True)
MULTIPLIER = Curve("multiplier", "Multiplier λ", "λ", "λ", diagnosis=True)
CALIBRATION = Curve("score_r2", "Calibration of f", "R² against returns in the data", "R²", diagnosis=True)
RANKING = Curve(
    "score_rank_correlation", "Ranking of the sub-tasks by f", "Spearman's ρ with returns", "rank ρ", diagnosis=True
)
SPREAD = Curve(
    "embedding_spread", "Spread of the embeddings", "standard deviation of the z_n", "spread", diagnosis=True
)
WRONG_EMBEDDING = Curve(
    "probe_clone_loss_permuted",
    "Cloning with the right and with a permuted embedding",
    "cloning loss",
    diagnosis=True,
    lines=(("probe_clone_loss", "right z"), ("probe_clone_loss_permuted", "permuted z")),
    note="The distance between the lines is what z tells the policy.",
)
