"""`finetune`: from a run and a budget of environment steps to a better policy, at one of three levels.

The levels checkpoint and embedding change no weight: they only choose (`search`). The level policy continues the
training (`online`). An algorithm's card says whether it learns online. Its policy says whether it infers an embedding.
The folder `RUN/finetune/LEVEL/` holds `settings.json`, `seed-S.jsonl` (every episode played), `result.json`, `policy/`
for the first seed and `policy-seed-S/` for each other seed.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from droprl.adapt.inference import InferenceRule
from droprl.algorithms import ALGORITHMS
from droprl.data import Dataset, load_dataset
from droprl.data.dataset import normalized_scores
from droprl.data.tasks import find_task
from droprl.data.transitions import Prepared
from droprl.errors import DropError, require
from droprl.evaluation import evaluate
from droprl.evaluation.evaluation import CheckpointEpisodes, task_of
from droprl.files.locks import locked
from droprl.files.seals import read_sealed, sealed
from droprl.files.settings import differences
from droprl.files.storage import remove_partial, write_bytes
from droprl.finetuning.ledger import Ledger
from droprl.finetuning.online import OnlineTrainer, Start
from droprl.finetuning.result import FineTuning, TunedSeed, from_json
from droprl.finetuning.search import Chosen, Variant, search, spread, variants
from droprl.interrupts import Interrupted, signal_of
from droprl.loaded import LoadedPolicy, Origin, policy_of_run
from droprl.policies.adaptive import ASCENDS
from droprl.progress import TrainProgress
from droprl.rollout import Environment, EnvMaker, Trajectory, check_fit, longest_episode, play_episode
from droprl.train.checkpoints import KEEP
from droprl.train.run import Run

Level = Literal["checkpoint", "embedding", "policy"]
Protocol = Literal["paper", "thorough"]  # of the search at the levels checkpoint and embedding
SHOWN = {"best_return": "best return", "last_return": "last return"}  # beside the algorithm's own metrics
TUNE_AGAIN = "remove it and run the same `drop finetune` command again"


@dataclass(frozen=True)
class Settings:
    """An interrupted fine-tuning can continue only with the same settings."""

    level: Level
    budget: int
    rounds: int | None
    max_ascent_steps: int
    online_share: float
    updates_per_step: float
    exploration: float
    protocol: Protocol | None  # None at the level that does not search

    def __post_init__(self) -> None:
        if self.level not in get_args(Level):
            raise DropError(f"there is no level {self.level!r}: choose one of {', '.join(get_args(Level))}")
        if self.protocol not in (None, *get_args(Protocol)):
            raise DropError(f"there is no protocol {self.protocol!r}: choose one of {', '.join(get_args(Protocol))}")
        require(self, "at least 1", "budget", "rounds", *(("max_ascent_steps",) if self.protocol == "paper" else ()))
        require(self, "at least 0", "max_ascent_steps", "updates_per_step", "exploration")
        require(self, "from 0 to 1", "online_share")


def finetune(
    run: Run | str | Path,
    *,
    level: Level,
    budget: int,
    protocol: Protocol = "paper",
    rounds: int | None = None,
    max_ascent_steps: int = 50,
    online_share: float = 0.5,
    updates_per_step: float = 1.0,
    exploration: float = 0.1,
    episodes: int = 10,
    env: str | EnvMaker | None = None,
    dataset: Dataset | str | Path | None = None,
    n_envs: int = 10,
    progress: bool = True,
    **adaptation: Any,
) -> FineTuning:
    """Improve every seed of a run in its task. Each seed may spend `budget` environment steps.

    `level="checkpoint"` plays the last six checkpoints and chooses the best (Algorithm 3). `"embedding"` also tries
    numbers of ascent steps up to `max_ascent_steps` (Algorithm 4). `"policy"` continues the training on what the policy
    plays. It begins with the choice of the embedding level, if this run has one. It also replays the run's data. Give
    `dataset` if that data has moved.

    `protocol="paper"` searches as the paper: each variant plays one episode, the checkpoint level plays rule best
    whatever rule the policy has, and k begins at 1. `"thorough"` plays each variant as often as the budget allows, the
    checkpoint level plays the policy's own rule, and k begins at 0. `rounds` sets the number of episodes for both.

    The policy before and the policy after both play `episodes` other episodes, which the budget does not pay. Keywords
    such as `rule="grad"` change how z is inferred. To continue an interrupted fine-tuning, make the same call again.
    """
    searches = None if level == "policy" else protocol
    rounds = 1 if rounds is None and searches == "paper" else rounds
    settings = Settings(level, budget, rounds, max_ascent_steps, online_share, updates_per_step, exploration, searches)
    if episodes < 1:
        raise DropError(f"episodes is {episodes}: it must be at least 1")
    tuning = _Tuning(run if isinstance(run, Run) else Run(run), settings, env, adaptation, progress)
    prepared = _prepared(tuning.run, dataset) if level == "policy" else None
    try:
        with locked(tuning.folder):
            tuning.open()
            finished = tuning.finished(episodes)
            return finished if finished is not None else tuning.finish(tuning.tune(prepared), episodes, n_envs)
    except KeyboardInterrupt as stop:
        raise Interrupted(
            f"stopped; {tuning.folder} lists every episode played: run the same command again to go on",
            number=signal_of(stop),
        ) from None


def _prepared(run: Run, dataset: Dataset | str | Path | None) -> Prepared:
    """The run's data, prepared as for its training."""
    source = run.config.data.source if dataset is None else dataset
    if not isinstance(source, Dataset):
        try:
            source = load_dataset(source)
        except DropError as error:
            raise DropError(
                f"{error} (the policy level replays the run's data: say where it is with --dataset)"
            ) from error
    if source.fingerprint != run.config.data.fingerprint:
        raise DropError(f"{source.name}: {run.path} was trained on other data: give that data with --dataset")
    return run.config.algorithm.prepare(source.in_memory())


@dataclass(frozen=True)
class _Tuned:
    """The new policy of one seed, and what was played for it."""

    policy: LoadedPolicy
    ledger: Ledger
    chosen_for: float | None


class _Tuning:
    """One fine-tuning. It checks everything that can be wrong before it plays or writes anything."""

    def __init__(
        self, run: Run, settings: Settings, env: str | EnvMaker | None, adaptation: dict[str, Any], show: bool
    ) -> None:
        self.run, self.settings, self._show = run, settings, show
        self.folder = run.path / "finetune" / settings.level
        self._adaptation = {name: value for name, value in adaptation.items() if value is not None}
        self._last = policy_of_run(run, **self._adaptation)  # fails if the run has no checkpoint
        self._algorithm = self._last.algorithm
        self._check_level()
        self._make, self._env_name = task_of(self._last.origin, env)
        with closing(self._make()) as env_to_check:
            check_fit(self._last, env_to_check)
            self._longest = longest_episode(env_to_check)
        if self._longest is not None and settings.budget < self._longest:
            raise DropError(
                f"a budget of {settings.budget:,} steps is too small: an episode of {self._env_name} may last "
                f"{self._longest:,}, so give at least {self._longest:,}"
            )
        self._starts = [self._start(i) for i in range(len(run.config.seeds))]

    def _check_level(self) -> None:
        name, rule = self._algorithm.name, self._last.traits.rule
        if self.settings.level == "policy" and not self._algorithm.card.learns_online:
            able = ", ".join(other for other, kind in ALGORITHMS.items() if kind.card.learns_online)
            raise DropError(f"{name} cannot learn online (these can: {able}): fine-tune it with --level checkpoint")
        if self.settings.level == "embedding":
            if rule is None:
                raise DropError(f"{name} has no embedding to infer: fine-tune it with --level checkpoint")
            if rule not in ASCENDS:
                raise DropError(
                    f"rule {rule} takes no ascent steps, so there is no k to choose: give --rule grad or grad-ada"
                )
            if "ascent_steps" in self._adaptation:
                raise DropError("the embedding level itself chooses ascent_steps: give --max-ascent-steps instead")

    def _start(self, place: int) -> Variant:
        """What a seed begins with: its last checkpoint, or at the policy level the choice of the embedding level."""
        adaptation = self._algorithm.adaptation
        where = self.run.path / "finetune" / "embedding" / "result.json"
        if self.settings.level == "policy" and "ascent_steps" not in self._adaptation and where.exists():
            found = from_json(read_sealed(where, TUNE_AGAIN), where)
            if len(found.seeds) != len(self.run.config.seeds):
                raise DropError(f"{where}: is not of this run: {TUNE_AGAIN}")
            if found.adaptation == _inference(self._algorithm):
                return Variant(found.seeds[place].step, found.seeds[place].ascent_steps)
        return Variant(self._last.origin.step, None if adaptation is None else adaptation.ascent_steps)

    # --- files ---

    def open(self) -> None:
        """Write the settings into the folder, or check that the folder was begun with the same settings."""
        where = self.folder / "settings.json"
        remove_partial(self.folder)
        checkpoints = {str(c.step): c.sha256[:16] for c in self.run.checkpoints()[-KEEP:]}
        wanted = asdict(self.settings) | {
            "env": self._env_name,
            "adaptation": _inference(self._algorithm),
            "start": [list(start) for start in self._starts],
            "checkpoints": checkpoints,
        }
        if not where.exists():
            write_bytes(where, sealed(wanted))
            return
        found = read_sealed(where, f"restore it, or remove the folder {self.folder} to begin anew")
        before = {"protocol": None if self.settings.level == "policy" else "thorough"}  # when there was no choice
        odd = differences(before | found, json.loads(json.dumps(wanted)))
        if odd:
            raise DropError(
                f"{self.folder}: was begun with other settings ({'; '.join(odd[:3])}): remove the folder to begin anew"
            )

    def finished(self, episodes: int) -> FineTuning | None:
        """The result, if fine-tuning is over and `episodes` episodes have measured it."""
        where = self.folder / "result.json"
        if not where.exists():
            return None
        found = from_json(read_sealed(where, TUNE_AGAIN), where)
        return found if all(len(s.tuned.returns) == episodes for s in found.seeds) else None

    # --- the levels ---

    def tune(self, prepared: Prepared | None) -> list[_Tuned]:
        trainer = None
        if prepared is not None:
            s = self.settings
            trainer = OnlineTrainer(self._algorithm, prepared, s.online_share, s.updates_per_step)
        tuned = []
        for seed, start in zip(self.run.config.seeds, self._starts, strict=True):
            ledger = Ledger(self.folder / f"seed-{seed}.jsonl", self.settings.budget, self._longest)
            rule = "" if self._algorithm.adaptation is None else f" {self._algorithm.adaptation.rule}"
            label = f"{self._algorithm.name}{rule}, {self.settings.level} level, seed {seed}"
            shown = {c.metric: c.short for c in self._algorithm.card.curves if c.short} | SHOWN
            progress = TrainProgress(label, ledger.spent, ledger.budget, self._show, shown, "steps")
            with closing(self._make()) as env, progress as bar:
                if ledger.played:
                    bar.say(f"resuming {self.folder} at step {ledger.spent:,} of seed {seed}'s budget")
                if trainer is None:
                    tuned.append(self._searched(env, seed, ledger, bar))
                else:
                    tuned.append(self._trained(env, trainer, seed, start, ledger, bar))
        return tuned

    def _searched(self, env: Environment, seed: int, ledger: Ledger, bar: TrainProgress) -> _Tuned:
        policies = {
            c.step: policy_of_run(self.run, seed, c.step, **self._adaptation) for c in self.run.checkpoints()[-KEEP:]
        }
        ks: list[int | None] = [self._starts[0].ascent_steps]
        if self.settings.level == "embedding":
            least = 1 if self.settings.protocol == "paper" else 0
            ks = [k for k in spread(self.settings.max_ascent_steps) if k >= least]
        rule = self._search_rule()

        def policy(variant: Variant) -> LoadedPolicy:
            return policies[variant.step].adapted(ascent_steps=variant.ascent_steps)

        def play(variant: Variant, env_seed: int, limit: int) -> Trajectory:
            acting = policy(variant)
            return play_episode(acting if rule is None else acting.adapted(rule=rule), env, env_seed, limit, None, 0.0)

        def on_episode(best: Chosen | None) -> None:
            bar.update(ledger.spent, None if best is None else {"best_return": best.mean_return})

        chosen = search(ledger, variants(list(policies), ks), self.settings.rounds, play, on_episode)
        return _Tuned(policy(chosen.variant), ledger, self._in_unit(chosen.mean_return))

    def _search_rule(self) -> InferenceRule | None:
        """The rule by which the search plays, where it is not the rule of the policy that it leaves."""
        by_best = self.settings.level == "checkpoint" and self.settings.protocol == "paper"
        return "best" if by_best and self._last.traits.rule is not None else None

    def _trained(
        self,
        env: Environment,
        trainer: OnlineTrainer,
        seed: int,
        start: Variant,
        ledger: Ledger,
        bar: TrainProgress,
    ) -> _Tuned:
        initial = policy_of_run(self.run, seed, start.step, **self._adaptation | {"ascent_steps": start.ascent_steps})

        def policy(state: Any, step: int) -> LoadedPolicy:
            origin = Origin(**asdict(initial.origin) | {"step": step})
            acting = initial.algorithm.policy(state)
            settings = initial.algorithm, initial.spec, initial.scaling, origin, str(self.folder), initial.support
            return LoadedPolicy(acting, *settings)

        def play(state: Any, env_seed: int, limit: int) -> Trajectory:
            noise = np.random.default_rng([seed, env_seed])
            return play_episode(policy(state, start.step), env, env_seed, limit, noise, self.settings.exploration)

        state = self.run.state(seed, self.run.checkpoint(start.step))
        begin = Start(start.step, start.ascent_steps, state)
        step, state = trainer.train(
            self.folder / f"seed-{seed}", ledger, seed, begin, play, lambda means: bar.update(ledger.spent, means)
        )
        return _Tuned(policy(state, step), ledger, None)

    def _in_unit(self, earned: float) -> float:
        score_range = self._last.origin.score_range
        return earned if score_range is None else float(normalized_scores(np.array(earned), score_range))

    # --- the outcome ---

    def finish(self, tuned: list[_Tuned], episodes: int, n_envs: int) -> FineTuning:
        def measured(policy: LoadedPolicy) -> CheckpointEpisodes:
            make, show = self._make, self._show
            return evaluate(policy, episodes=episodes, env=make, n_envs=n_envs, progress=show).results[0]

        results = []
        for seed, found in zip(self.run.config.seeds, tuned, strict=True):
            first = seed == self.run.config.seeds[0]
            found.policy.save(self.folder / ("policy" if first else f"policy-seed-{seed}"))
            adaptation = found.policy.algorithm.adaptation
            results.append(
                TunedSeed(
                    step=found.policy.origin.step,
                    ascent_steps=None if adaptation is None else adaptation.ascent_steps,
                    steps_played=found.ledger.spent,
                    episodes_played=len(found.ledger.played),
                    chosen_for=found.chosen_for,
                    initial=measured(policy_of_run(self.run, seed, **self._adaptation)),
                    tuned=measured(found.policy),
                )
            )
        origin = self._last.origin
        task = find_task(origin.dataset)
        outcome = FineTuning(
            level=self.settings.level,
            protocol=self.settings.protocol,
            search_rule=self._search_rule(),
            budget=self.settings.budget,
            algorithm=self._algorithm.name,
            adaptation=_inference(self._algorithm),
            dataset=origin.dataset,
            env=self._env_name,
            unit="return" if origin.score_range is None else "D4RL-normalised score",
            caveat=task.caveat if task is not None and origin.score_range is not None else None,
            seeds=results,
        )
        write_bytes(self.folder / "result.json", sealed(outcome.to_json()))
        return outcome


def _inference(algorithm: Any) -> dict[str, Any] | None:
    """The settings of inference without k, because fine-tuning may choose k."""
    if algorithm.adaptation is None:
        return None
    return {name: value for name, value in asdict(algorithm.adaptation).items() if name != "ascent_steps"}
