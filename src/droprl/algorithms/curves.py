"""The metrics that people look at: their titles on a page, and their names while an algorithm trains.

Every algorithm lists its own curves on its card. Curves that several algorithms share are defined here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Curve:
    """One metric over the updates."""

    metric: str
    title: str
    unit: str
    short: str = ""  # its name in the progress bar; empty: it is not shown there
    diagnosis: bool = False  # drawn with the checks, not with the losses
    lines: tuple[tuple[str, str], ...] = ()  # for a chart of several metrics: each metric with its name
    note: str = ""


def right_and_wrong(metric: str, right: str, wrong: str) -> Curve:
    """How well the policy clones under the right condition, such as an embedding, and under a wrong one (`metric`)."""
    return Curve(
        metric,
        f"Cloning with the right {right} and with {wrong}",
        "cloning loss",
        diagnosis=True,
        lines=(("probe_clone_loss", f"right {right}"), (metric, wrong)),
        note=f"The distance between the lines is what the {right} tells the policy.",
    )


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
WRONG_EMBEDDING = right_and_wrong("probe_clone_loss_permuted", "embedding", "a permuted embedding")

SCORE = (TD_LOSS, CALIBRATION, GAP, MULTIPLIER)  # of a score model under a constraint
EMBEDDING = (WRONG_EMBEDDING, SPREAD)
