"""The settings of DROP. If the paper says nothing, or if its letter is known to fail silently, the setting says so."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from droprl.adapt import Adaptation
from droprl.algorithms import scoring
from droprl.errors import DropError, require
from droprl.networks.actors import Conditioning, PolicyHead
from droprl.networks.embeddings import EmbeddingNetwork, EmbeddingSpace
from droprl.networks.layers import Precision

Decomposition = Literal["rank", "quantization", "random", "behavior", "visits"]
Fallback = Literal["best", "top"]

# The cut is the paper's, one score model learns from all trajectories, and nothing says where sub-tasks are at home.
PLAIN: dict[str, Any] = {
    "decomposition": "rank",
    "rank_by": "return",
    "fallback": "top",
    "top_share": None,
    "score_models": 1,
    "cross_fit": False,
    "learn_home": False,
}
TINY: dict[str, Any] = {
    "decomposition": "rank",
    "n_sub_tasks": 10,
    "width": 8,
    "depths": (1, 1, 1, 1, 1),
    "batch_size": 32,
    "learning_rate": 1e-2,
}


@dataclass(frozen=True)
class DropSettings:
    """The hyper-parameters, their checks, and the presets."""

    decomposition: Decomposition | None = None
    """How trajectories are cut into sub-tasks: the paper's Rank, Quantization or Random, by their behaviour, or by the
    states that they visit. None: rank where returns tell apart where trajectories go, otherwise visits."""
    rank_by: Literal["return", "residual"] = "residual"
    """residual: the return less what the first state foretells, where it foretells something."""
    n_sub_tasks: int | None = None
    """N. None: 10, or what `sub_task_sizes` says."""
    trajectories_per_sub_task: int | None = None
    """M. None: all trajectories divided by N, or what `sub_task_sizes` says."""
    embedding_size: int | None = None
    """dim(z). None: 5, as in all of the paper's table."""
    sub_task_sizes: Literal["equal", "paper"] = "equal"
    """equal: the same N for any data, and all trajectories. paper: its table of N and M, tuned to each dataset."""
    decomposition_seed: int = 0
    """The seed of the rules that draw at random; the same for every training seed."""
    fallback: Fallback = "best"
    """What First plays, and what every search falls back to, if the cut is by return. best: one more sub-task in front
    of the N, with the trajectories that F-BC would clone, and a policy network of its own. So First is F-BC. These
    trajectories are in their sub-tasks of the N too. top: the first of the N, as in the paper."""
    top_share: float | None = 0.5
    """How often a batch draws from the first sub-task, if the cut is by return. None: as often as from any other, as
    in the paper."""

    width: int = 512
    """Units of each hidden layer of Enc_0 … Enc_4."""
    depths: tuple[int, int, int, int, int] = (2, 2, 3, 2, 3)
    """Hidden layers of Enc_0 … Enc_4."""
    embedding_network: EmbeddingNetwork = "perceptron"
    """perceptron: φ has the hidden layers of Enc_0. linear: φ is a table with a row of its own for every sub-task."""
    embedding_space: EmbeddingSpace = "whitened"
    """whitened: zero mean and unit variance in each dimension, so the z_n cannot collapse; tanh: within (-1, 1)."""
    td_into_embedding: bool = False
    """Train φ by the TD loss too, as the paper does. On raw rewards and with one optimiser the embeddings collapse."""
    optimizers: Literal["joint", "separate"] = "joint"
    """joint: one Adam on the sum of the losses. separate: the updates alternate, as in the paper: cloning moves φ and β
    by one Adam, then temporal differences move f, and φ if they may, by another. A large gradient of the one loss then
    does not make the steps of the other small."""
    conditioning: Conditioning = "bilinear"
    """How z enters β: concatenated to the state's encoding, as in the paper; bilinear adds all products of the two.
    With them a sub-task's policy is nearly as good as one that is cloned alone."""
    head: PolicyHead = "deterministic"
    """deterministic clones by squared error; gaussian learns a standard deviation as well."""
    sample_actions: bool = False
    """Draw actions from a gaussian head at test time instead of taking its mean."""
    score_models: int = 2
    """Number of score models. With several, the lowest score counts at test time. The paper has one."""
    cross_fit: bool = True
    """Each of two score models learns from one half of the trajectories. So each can be judged on the other half: R²
    is then held out, and the rule auto knows whether the search pays."""
    learn_home: bool = True
    """Learn which sub-tasks have been at states like s, so that only those are chosen there."""
    score_smoothing: float = 0.0
    """Standard deviation of the noise on the z that f learns from: sub-tasks that act alike then share their luck."""
    policy_smoothing: float = 0.0
    """Standard deviation of the noise on the z that β learns from."""
    score_layer_norm: bool = True
    """LayerNorm in f. Without it some seeds diverge at the paper's learning rate."""

    discount: float | None = None
    """γ. None: the smallest of 0.99 … 0.999 with which the true discounted returns rank the sub-tasks."""
    td_steps: int = 20
    """Rewards summed before bootstrapping. 1 is the paper's equation 8, which converges far more slowly."""
    td_lambda: float | None = None
    """λ of TD(λ). None: td_steps instead."""
    scale_rewards: bool = True
    """Divide rewards by the standard deviation of discounted returns, so that scores have unit spread on any task."""
    normalize_observations: bool = True
    """Shift and scale observations to zero mean and unit variance."""
    target_rate: float = 0.005
    """υ: how fast the averaged networks follow."""
    averaged_acts: bool = True
    """Act with averages of φ, β and f: the return of a cloned policy jumps from update to update, and the return of its
    average does not. False: f̄ serves the targets alone, and the last weights act, as in the paper."""

    constraint: scoring.Constraint = "lagrangian"
    """lagrangian: equation 8, on the mean gap. hinge: every state's own gap, squared, with the weight multiplier_max.
    adversarial: the same weight, on what an ascent finds above the best z_n, squared. none: the paper's "w/o Reg"."""
    constraint_share: float = 0.25
    """Share of the batch on which the constraint is measured. The paper takes all of it."""
    threshold: float | None = None
    """η: how much higher unseen embeddings may score than those of the sub-tasks. With scaled rewards the unit is the
    standard deviation of the discounted returns. None: 2, the paper's number; for adversarial 0.1."""
    multiplier_start: float = 0.0
    """λ at the start."""
    multiplier_rate: float = 1e-2
    """Step size of the dual ascent on λ, which is clipped to [0, multiplier_max]."""
    multiplier_rule: scoring.MultiplierRule = "projected"
    """projected: λ rises by the rate times the violation. log: log λ does, so λ stays above 0 and starts above 0."""
    multiplier_max: float | None = 1.0
    """The cap on λ: the constraint is linear in f and unbounded, so an uncapped λ can run away. None: no cap."""

    precision: Precision = "float32"
    """Number format of products in training. bfloat16 is up to twice as fast on a GPU (slower on a CPU), and rounds
    weights and activations to three digits. The weights that are learned, saved and played stay float32."""
    learning_rate: float = 1e-3
    """Adam's learning rate, the same for all networks."""
    batch_size: int = 1024
    """Steps of the data in one update."""
    adaptation: Adaptation = field(default_factory=lambda: Adaptation(rule="auto"))
    """How z* is found at test time."""
    windows: int | None = None
    """How many independent pieces the data has, for the evidence. None: its steps divided by td_steps."""

    def __post_init__(self) -> None:
        require(self, "at least 1", "n_sub_tasks", "trajectories_per_sub_task", "embedding_size", "width")
        require(self, "at least 1", "td_steps", "batch_size")
        require(self, "from 1 to 100", "score_models", "depths")
        require(self, "above 0 and at most 1", "discount", "target_rate", "constraint_share")
        require(self, "above 0", "learning_rate")
        require(self, "at least 0", "decomposition_seed", "multiplier_start", "multiplier_rate", "multiplier_max")
        require(self, "at least 0", "score_smoothing", "policy_smoothing")
        require(self, "at least 0 and less than 1", "td_lambda")
        require(self, "a finite number", "threshold")
        require(self, "above 0 and at most 1", "top_share")
        require(self, "at least 1", "windows")
        scoring.require_weights(self)

    def check_evidence(self) -> None:
        """Refuse settings that do not go together."""
        if self.cross_fit and not (self.score_models == 2 and self.learn_home):
            raise DropError(
                f"cross_fit is on, but score_models is {self.score_models} and learn_home is {self.learn_home}: it "
                "compares two models where sub-tasks are at home: give score_models 2 and learn_home, or leave it out"
            )
        if self.adaptation is not None and self.adaptation.rule == "auto" and not self.cross_fit:
            raise DropError("rule auto needs cross_fit: leave it on, or give another rule")

    @classmethod
    def small(cls, **changes: Any) -> Self:
        return replace(cls(width=128, batch_size=256), **changes)

    @classmethod
    def tiny(cls, **changes: Any) -> Self:
        return cls(**TINY | {"adaptation": Adaptation()} | changes)

    @classmethod
    def plain(cls, **changes: Any) -> Self:
        """Without what this library adds to protect the search. These were the defaults of version 0.1."""
        return cls(**PLAIN | {"adaptation": Adaptation()} | changes)

    @classmethod
    def literal(cls, **changes: Any) -> Self:
        """The paper to the letter, where it says what it does: no departure that this library recommends."""
        letter: dict[str, Any] = {
            "sub_task_sizes": "paper",
            "embedding_space": "tanh",
            "td_into_embedding": True,
            "optimizers": "separate",
            "conditioning": "concatenate",
            "score_layer_norm": False,
            "discount": 0.99,
            "td_steps": 1,
            "scale_rewards": False,
            "normalize_observations": False,
            "averaged_acts": False,
            "constraint_share": 1.0,
            "threshold": 2.0,
            "multiplier_max": None,
            "adaptation": Adaptation(ascent_steps=100, region="none", starts=None, keep="last", candidates="all"),
        }
        return cls.plain(**letter | changes)
