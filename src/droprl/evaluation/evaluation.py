"""`evaluate` plays the policies of a run in the task and keeps the return of every episode."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from droprl.adapt import InferenceRule
from droprl.compiler import on_accelerator
from droprl.data.dataset import normalized_scores
from droprl.data.tasks import find_task, limit_of_data
from droprl.environments.ids import given_by_user
from droprl.environments.vector_tasks import as_vector
from droprl.errors import DropError, SettingError
from droprl.evaluation.statistics import bootstrap_interval, iqm
from droprl.files.locks import locked
from droprl.files.seals import read_marked, sealed
from droprl.files.settings import from_dict
from droprl.files.storage import TEMPORARY, write_bytes
from droprl.loaded import LoadedPolicy, Origin, load_policy, policy_of_run
from droprl.notebook import dots_plot, facts_table, shown
from droprl.progress import bar
from droprl.rollout import EnvMaker, Rollout, env_maker, rollouts, seconds_per_action
from droprl.train.checkpoints import KEEP
from droprl.train.config import DataConfig
from droprl.train.run import Run

PlayedCheckpoints = Literal["last", "paper"]  # which checkpoints an evaluation plays: the last, or the last six
MOST_EPISODES, MOST_ENVS = 1_000_000, 10_000
AGAIN = "remove it and run `drop evaluate` again"
EVALUATION_SEED = 10_000  # the environments' seeds begin here, the same for every method


@dataclass(frozen=True)
class CheckpointEpisodes:
    """The episodes that one seed's policy played at one checkpoint."""

    seed: int
    """The training seed."""
    step: int
    """The checkpoint."""
    returns: list[float]
    """The return of every episode."""
    lengths: list[int]
    """The steps of every episode."""
    scores: list[float] | None
    """D4RL-normalised, if the task has reference returns."""
    guarded: list[int] | None = None
    """For each episode, at how many actions the guard stepped in. None without a guard."""

    def __post_init__(self) -> None:
        parts = (self.returns, self.lengths, self.scores, self.guarded)
        if not self.returns or {len(part) for part in parts if part is not None} != {len(self.returns)}:
            raise SettingError("returns, lengths and scores have different numbers of episodes, or none")

    @property
    def values(self) -> list[float]:
        """Every episode's score, or its return if there is no score."""
        return self.returns if self.scores is None else self.scores


@dataclass(frozen=True)
class Evaluation:
    """All episodes of an evaluation and their summary; `mean`, `iqm` and `interval` are in `unit`."""

    algorithm: str
    """The algorithm's name."""
    rule: InferenceRule | None
    """The rule of inference; None for a policy that infers nothing."""
    adaptation: dict[str, Any] | None
    """All settings of inference."""
    changed: dict[str, Any]
    """The settings of inference that differ from those the run was trained with."""
    dataset: str
    """The dataset's name."""
    env: str
    """The task that was played."""
    protocol: str
    """Which checkpoints were played: last or paper, see `PlayedCheckpoints`."""
    results: list[CheckpointEpisodes]
    """The episodes of every seed and checkpoint."""
    unit: str
    """What the values are: D4RL-normalised scores, or returns."""
    mean: float
    """The mean of all episodes."""
    iqm: float
    """The mean of the middle half of all episodes."""
    interval: tuple[float, float]
    """The 95 % bootstrap interval of the IQM."""
    caveat: str | None
    """Why scores in `env` are not quite D4RL's, if they are not."""
    milliseconds_per_action: float | None
    """For one environment, one call at a time; None in some older files."""
    guarded: float | None = None
    """The share of all actions at which the guard stepped in. None without a guard."""
    unproven: list[int] | None = None
    """The seeds in whose training nothing showed that the search of this rule pays."""
    unsealed: bool = False
    """Whether it is of an older version, which saved no checksum: nobody knows whether it was changed."""
    kept: str | None = None
    """If the run keeps an evaluation with more episodes instead of this one: which, in words."""

    @property
    def particulars(self) -> list[str]:
        """In what else this evaluation differs from others of the same run and rule."""
        found = [f"{name.replace('_', '-')}={value}" for name, value in sorted(self.changed.items())]
        return ([] if self.protocol == "last" else [f"{self.protocol} protocol"]) + found

    @property
    def values(self) -> list[float]:
        """Every episode's score, or its return if there is no score."""
        return [value for result in self.results for value in result.values]

    @property
    def per_checkpoint(self) -> int:
        """The episodes of each seed and checkpoint; if they differ, the fewest."""
        return min((len(result.returns) for result in self.results), default=0)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in ("unsealed", "kept")}

    def _repr_html_(self) -> str:
        """In a notebook: the summary, and every episode as a dot."""
        title = f"{self.dataset}: {self.unit} in {self.env}"
        low, high = self.interval
        facts = (
            ("method", " ".join(filter(None, (self.algorithm, self.rule, *self.particulars)))),
            ("mean", f"{self.mean:.1f}"),
            ("IQM", f"{self.iqm:.1f} (95 %: {low:.1f} to {high:.1f})"),
            ("seeds", len({result.seed for result in self.results})),
            ("episodes", len(self.values)),
        )
        rows = {f"seed {result.seed}, {result.step:,}": result.values for result in self.results}
        return shown(facts_table(title, facts), dots_plot("Every episode, and the interval", rows, self.interval))

    def summarised(self) -> Evaluation:
        """The same with `mean`, `iqm`, `interval` and `guarded` computed from the episodes."""
        groups: dict[int, list[float]] = {}
        for r in self.results:
            groups.setdefault(r.seed, []).extend(r.values)
        values = np.concatenate([np.asarray(group) for group in groups.values()])
        return replace(
            self,
            mean=float(np.mean(values)),
            iqm=float(iqm(values)),
            interval=bootstrap_interval(list(groups.values())),
            guarded=_guarded_share(self.results),
        )


def evaluate(
    run: Run | LoadedPolicy | str | Path,
    *,
    episodes: int = 10,
    protocol: PlayedCheckpoints = "last",
    env: str | EnvMaker | None = None,
    seed: int = EVALUATION_SEED,
    n_envs: int = 10,
    progress: bool = True,
    **adaptation: Any,
) -> Evaluation:
    """Play a run (every seed) or a policy.

    `protocol="last"` plays the last checkpoint, `"paper"` the last six, each for `episodes` episodes. Keywords such as
    `rule="best-ada"` change how z is inferred. The result for a run is also written to its folder `evaluations/`, where
    it replaces an earlier one of the same policies, unless that one has more episodes.
    """
    if not 1 <= episodes <= MOST_EPISODES:
        raise SettingError(f"episodes is {episodes}: play at least one, and at most {MOST_EPISODES:,}")
    if not 1 <= n_envs <= MOST_ENVS:
        raise SettingError(f"n_envs is {n_envs}: play at least one episode at a time, and at most {MOST_ENVS:,}")
    if protocol not in get_args(PlayedCheckpoints):
        raise SettingError(f"there is no protocol {protocol!r}: choose one of {', '.join(get_args(PlayedCheckpoints))}")
    policies, home = _policies(run, protocol, adaptation)
    origin = policies[0].origin
    make, env_name = task_of(origin, env)
    trained = None if home is None else home.config.algorithm.adaptation
    changed = {k: v for k, v in adaptation.items() if k != "rule" and v is not None and v != getattr(trained, k, None)}
    changed |= {} if origin.env in (None, env_name) else {"env": env_name}
    name = _file_name(policies[0], protocol, changed)
    with nullcontext() if home is None else _place(home, name):
        played = _play(policies, make, episodes, seed, n_envs, progress)
        seconds = seconds_per_action(policies[0], make, seed)
        evaluation = _summary(policies, played, seconds, env_name, protocol, changed)
        if home is not None:
            where = home.evaluation_folder / f"{name}.json"
            if (larger := _larger(where, evaluation)) is not None:
                return replace(evaluation, kept=f"{where}, with {larger} episodes for each seed and checkpoint")
            write_bytes(where, sealed(evaluation.to_json()))
    return evaluation


def _larger(where: Path, new: Evaluation) -> int | None:
    """How many episodes the saved evaluation has for each checkpoint, if it played the same policies more often."""
    try:
        saved = _load(where) if where.exists() else None
    except DropError:  # it is damaged, so nothing is lost with it
        return None
    if saved is None or saved.env != new.env or _played(saved) != _played(new):
        return None
    return saved.per_checkpoint if saved.per_checkpoint > new.per_checkpoint else None


def _played(evaluation: Evaluation) -> list[tuple[int, int]]:
    return [(result.seed, result.step) for result in evaluation.results]


def task_of(origin: Origin, env: str | EnvMaker | None) -> tuple[EnvMaker, str]:
    """How to make the task to play, and its name: the task of the policy's data, unless `env` names another.

    The data's time limit holds for the task that the data names. Another task, or a function, has its own.
    """
    chosen = given_by_user(env) if env is not None else origin.env
    if chosen is None:
        raise DropError(f"{origin.dataset}: no task is known for this data: give its Gymnasium id with --env")
    if isinstance(chosen, str):
        return env_maker(chosen, limit_of_data(origin.time_limit, origin.env, chosen)), chosen
    return lambda: as_vector(chosen()), getattr(chosen, "__name__", "custom")


def _policies(
    played: Run | LoadedPolicy | str | Path, protocol: PlayedCheckpoints, adaptation: dict[str, Any]
) -> tuple[list[LoadedPolicy], Run | None]:
    """All policies to play, and the run that they belong to, if any."""
    if isinstance(played, LoadedPolicy) or (not isinstance(played, Run) and (Path(played) / "policy.json").exists()):
        if protocol == "paper":
            raise DropError(f"{played}: is a policy of one checkpoint: give the run, which the paper's protocol needs")
        if not isinstance(played, LoadedPolicy):
            return [load_policy(played, **adaptation)], None
        if adaptation:
            raise DropError(f"{', '.join(adaptation)}: give this to load_policy, not to evaluate")
        return [played], None
    run = played if isinstance(played, Run) else Run(played)
    checkpoints = [c for c in run.checkpoints() if c.scheduled or protocol == "last"]
    if protocol == "paper" and len(checkpoints) < KEEP:
        raise DropError(
            f"{run.path}: has {len(checkpoints)} checkpoints and the paper's protocol plays the last {KEEP}: "
            "train in another --out, longer or with a smaller --checkpoint-every"
        )
    if not checkpoints:
        raise DropError(f"{run.path}: has no checkpoint yet: run the same `drop train` command to go on")
    chosen = checkpoints[-KEEP:] if protocol == "paper" else checkpoints[-1:]
    return [policy_of_run(run, s, c.step, **adaptation) for s in run.config.seeds for c in chosen], run


def _play(
    policies: list[LoadedPolicy], make: EnvMaker, episodes: int, seed: int, n_envs: int, show: bool
) -> list[CheckpointEpisodes]:
    played = []
    name, rule = policies[0].algorithm.name, policies[0].traits.rule
    with bar(f"evaluating {name}{f' {rule}' if rule else ''}", "episodes", show) as update:
        results: list[Rollout] = []

        def on_step(done: int) -> None:
            update(episodes * len(results) + done, episodes * len(policies))

        # An accelerator plays all policies at once. On a CPU a larger batch is only more work at a time.
        size = len(policies) if on_accelerator() else 1
        for first in range(0, len(policies), size):
            some = policies[first : first + size]
            results += rollouts(some, make, episodes, seed=seed, n_envs=n_envs, on_step=on_step)
        for policy, result in zip(policies, results, strict=True):
            if not np.isfinite(result.returns).all():
                raise DropError(f"{policy.origin.dataset}: the task paid a return that is NaN or infinite: check --env")
            score_range = policy.origin.score_range
            scores = None if score_range is None else normalized_scores(np.array(result.returns), score_range).tolist()
            origin = policy.origin
            played.append(
                CheckpointEpisodes(origin.seed, origin.step, result.returns, result.lengths, scores, result.guarded)
            )
    return played


def _summary(
    policies: list[LoadedPolicy],
    results: list[CheckpointEpisodes],
    seconds: float,
    env: str,
    protocol: PlayedCheckpoints,
    changed: dict[str, Any],
) -> Evaluation:
    policy = policies[0]
    search = policy.search
    task = find_task(policy.origin.dataset)
    return Evaluation(
        algorithm=policy.algorithm.name,
        rule=policy.traits.rule,
        adaptation=None if search is None else asdict(search.adaptation),  # auto: what it turned out to be
        changed=changed,
        dataset=policy.origin.dataset,
        env=env,
        protocol=protocol,
        results=results,
        unit="return" if policy.origin.score_range is None else "D4RL-normalised score",
        mean=float("nan"),
        iqm=float("nan"),
        interval=(float("nan"), float("nan")),
        caveat=task.caveat if task is not None and policy.origin.score_range is not None else None,
        milliseconds_per_action=1e3 * seconds,
        unproven=sorted({p.origin.seed for p in policies if p.search is not None and p.search.unproven}) or None,
    ).summarised()


def _guarded_share(results: list[CheckpointEpisodes]) -> float | None:
    counts = [count for r in results for count in r.guarded or ()]
    return sum(counts) / sum(length for r in results for length in r.lengths) if counts else None


def _file_name(policy: LoadedPolicy, protocol: PlayedCheckpoints, changed: dict[str, Any]) -> str:
    settings = (f"{name}={value}" for name, value in sorted(changed.items()))
    rule = policy.traits.rule or policy.algorithm.name
    return re.sub(r"[^-.=\w]+", "-", " ".join((rule, protocol, *settings)))  # an env id has a slash


def _place(run: Run, name: str) -> AbstractContextManager[None]:
    """Make and lock the place of the result before anything is played, so that an error comes early. Two processes may
    play different evaluations of a run at the same time, but not the same one."""
    return locked(run.evaluation_folder, f".{name}.lock", "playing the same episodes")


def load_evaluations(run: Run) -> list[Evaluation]:
    """The evaluations in a run's folder, in the order of the rules."""
    paths = [p for p in sorted(run.evaluation_folder.glob("*.json")) if not p.name.startswith(TEMPORARY)]
    found = [_with_clock(_load(path), run.config.data) for path in paths]
    order = (None, *get_args(InferenceRule))
    return sorted(found, key=lambda e: (e.protocol, len(e.changed), order.index(e.rule)))


def _with_clock(e: Evaluation, data: DataConfig) -> Evaluation:
    """Earlier versions played every task for as long as its environment allows. Say so, where that is too long."""
    longest, limit = max(length for r in e.results for length in r.lengths), data.time_limit
    if limit is None or e.env != data.env or longest <= limit:
        return e
    clock = f"played for {longest} steps, and the task lasts {limit}: play it again with drop evaluate"
    return replace(e, caveat="; ".join(filter(None, (e.caveat, clock))))


def _load(where: Path) -> Evaluation:
    """An evaluation from its file. What summarises the episodes is not taken from the file, but computed again."""
    content, has_seal = read_marked(where, AGAIN)
    found = from_dict(Evaluation, content, str(where), AGAIN)
    if not found.results:
        raise DropError(f"{where}: has no episodes: {AGAIN}")
    return replace(found, unsealed=not has_seal, kept=None).summarised()
