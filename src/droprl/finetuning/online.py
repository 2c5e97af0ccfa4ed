"""The policy level: the policy plays, and the algorithm's own update continues its training.

After each episode, training makes `updates_per_step` updates for each step of the episode. An episode is on the disk
before the policy learns from it. All randomness comes from the seed, the number of the episode and the number of the
update. So an interrupted fine-tuning reaches the same result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from droprl.algorithms import Algorithm
from droprl.algorithms.protocol import State
from droprl.data.transitions import Prepared
from droprl.errors import DropError
from droprl.files.seals import digest
from droprl.files.storage import arrays_from_bytes, arrays_to_bytes, read_bytes, remove_partial, write_bytes
from droprl.finetuning.ledger import Ledger, Played, ledger_entry
from droprl.finetuning.replay import replay
from droprl.rollout import Trajectory
from droprl.train.checkpoints import list_checkpoints, save_checkpoint
from droprl.train.loop import means_of, updates

ONLINE_SEED = 2_000_000  # the environment's seeds for online training begin here
SAVE_SECONDS = 60.0  # a kill loses at most the updates of this many seconds


class Start(NamedTuple):
    """What the online training of a seed begins with."""

    step: int  # the checkpoint
    ascent_steps: int | None  # k; None if the algorithm infers nothing
    state: State


PlayState = Callable[[State, int, int], Trajectory]  # the state, the environment's seed, the largest number of steps


class OnlineTrainer:
    """Trains one seed after another on one dataset. All seeds share one compiled program."""

    def __init__(self, algorithm: Algorithm, prepared: Prepared, online_share: float, updates_per_step: float) -> None:
        self._prepared = prepared
        self._online_share, self._updates_per_step = online_share, updates_per_step
        self._updates = jax.jit(partial(updates, algorithm))

    def train(
        self,
        folder: Path,
        ledger: Ledger,
        seed: int,
        start: Start,
        play: PlayState,
        on_episode: Callable[[dict[str, float]], None],
    ) -> tuple[int, State]:
        """Spend the budget. The answer: the number of updates since the run began, and the state after them."""
        learned, state = self._resumed(folder, start)
        if learned > len(ledger.played):
            raise DropError(
                f"{folder}.jsonl: lacks episodes that the saved state has learned from: remove the level's folder"
            )
        trajectories = [self._read(folder, number, entry) for number, entry in enumerate(ledger.played[:learned])]
        last_save = time.monotonic()
        while (trajectory := self._next(folder, trajectories, start, state, ledger, play)) is not None:
            begin = self._n_updates(trajectories)
            trajectories.append(trajectory)
            count = self._n_updates(trajectories) - begin
            table = replay(self._prepared, trajectories, self._online_share)
            numbers = (jnp.int32(number) for number in (start.step + begin, count, start.step))
            state, sums = self._updates(state, jnp.uint32(seed), table, *numbers)
            means = {name: float(value) for name, value in means_of(jax.device_get(sums), max(count, 1)).items()}
            _refuse_nan(folder, len(trajectories), (means, state))
            on_episode(means | {"last_return": trajectory.episode_return})
            if time.monotonic() - last_save >= SAVE_SECONDS:
                save_checkpoint(folder / "state", len(trajectories), state, scheduled=False)
                last_save = time.monotonic()
        if not trajectories:
            raise DropError(f"no episode ended within the budget of {ledger.budget:,} steps: give more")
        if len(trajectories) > learned:
            save_checkpoint(folder / "state", len(trajectories), state, scheduled=False)
        return start.step + self._n_updates(trajectories), state

    def _n_updates(self, trajectories: list[Trajectory]) -> int:
        return int(self._updates_per_step * sum(len(t.rewards) for t in trajectories))

    def _resumed(self, folder: Path, start: Start) -> tuple[int, State]:
        """The last saved state, and the number of episodes that it has learned from."""
        remove_partial(folder / "state")
        checkpoints = list_checkpoints(folder / "state")
        if not checkpoints:
            return 0, start.state
        return checkpoints[-1].step, checkpoints[-1].load(jax.eval_shape(lambda: start.state))

    def _next(
        self, folder: Path, before: list[Trajectory], start: Start, state: State, ledger: Ledger, play: PlayState
    ) -> Trajectory | None:
        """The next whole episode: from the disk if it was played before an interruption, otherwise from the task."""
        number = len(before)
        if number < len(ledger.played):
            trajectory = self._read(folder, number, ledger.played[number])
            return trajectory if trajectory.whole else None
        if not ledger.fits():
            return None
        seed = ONLINE_SEED + number
        trajectory = play(state, seed, ledger.left)
        content = arrays_to_bytes(trajectory)
        write_bytes(_file(folder, number), content)
        step = start.step + self._n_updates(before)
        ledger.add(ledger_entry(trajectory, step, start.ascent_steps, seed, digest(content)))
        return trajectory if trajectory.whole else None

    def _read(self, folder: Path, number: int, entry: Played) -> Trajectory:
        spec, path = self._prepared.spec, _file(folder, number)
        rows = entry.length
        observations = np.empty((rows, spec.observation_size), np.float32)
        skeleton = Trajectory(
            observations=observations,
            actions=np.empty((rows, spec.action_size), np.float32),
            rewards=np.empty(rows, np.float32),
            next_observations=observations,
            sub_tasks=np.empty(rows, np.int32),
            terminated=np.empty((), bool),
            whole=np.empty((), bool),
        )
        remedy = f"restore the file, or remove the folder {folder.parent} to begin anew"
        found = arrays_from_bytes(read_bytes(path, str(entry.sha256), skeleton, remedy), skeleton, path)
        return Trajectory(*map(np.asarray, found))


def _refuse_nan(folder: Path, episodes: int, tree: Any) -> None:
    """A loss is measured before its update. So check the weights after the last update too, before they act."""
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.device_get(tree))):
        raise DropError(
            f"{folder}: training has diverged at episode {episodes} (NaN or infinity); the run and earlier saves are "
            "unchanged: remove the level's folder and use fewer --updates-per-step"
        )


def _file(folder: Path, number: int) -> Path:
    return folder / "episodes" / f"{number:06d}.safetensors"
