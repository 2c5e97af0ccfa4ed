"""A show: one person watches the policy act. A thread plays the task and draws it; the stream sends its events."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import gymnasium
import jax
import numpy as np

from droprl.adapt import Plane
from droprl.data.tasks import limit_of_data
from droprl.deploy.serve.live import pictures
from droprl.deploy.serve.live.look import Settings, Sight, no_choice_yet, see
from droprl.environments.ids import given_by_user
from droprl.environments.mazes import MAZES, TIME_LIMITS, env_id
from droprl.environments.simulation import make_env
from droprl.errors import DropError
from droprl.loaded import LoadedPolicy
from droprl.policies import tell_rewards
from droprl.rollout import check_fit

MOST_SHOWS = 4
FRAMES_PER_SECOND = 12.0
STEPS_PER_FRAME = 2
THREAD = "droprl-show"
FAMILIES = (tuple(map(env_id, MAZES)), tuple(map(env_id, TIME_LIMITS)))  # tasks with the same observations and actions
Event = dict[str, Any]


class TooManyShows(DropError):
    """Too many people are watching. Each show needs a good part of a processor."""


@dataclass(frozen=True)
class Wish:
    """The settings that the person asked for last."""

    settings: Settings | None  # None: the policy infers no embedding
    task: str
    paused: bool = False
    restarts: int = 0


class Stage:
    """Opens shows, finds them by name, and ends them together."""

    def __init__(self, loaded: LoadedPolicy, env: str | None = None) -> None:
        self.loaded = loaded
        self.tasks = tasks_of(given_by_user(env) or loaded.origin.env)
        if env is not None:
            _check_task(loaded, env)
        self.search = loaded.search
        self.plane = None if self.search is None else Plane(np.asarray(self.search.embeddings))
        self._shows: dict[str, Show] = {}
        self._closing = False

    def about(self) -> Event:
        """What the page must know before the first frame."""
        content: Event = {
            "algorithm": self.loaded.algorithm.name,
            "dataset": self.loaded.origin.dataset,
            "tasks": self.tasks,
        }
        if self.search is None or self.plane is None:
            return content
        embeddings, adaptation = np.asarray(self.search.embeddings), self.search.adaptation
        return content | {
            "embeddings": _rounded(self.plane.points(embeddings)),
            "explained": self.plane.explained,
            "starts": min(adaptation.starts or len(embeddings), len(embeddings)),
            "in_full": not (adaptation.halve_every or adaptation.tolerance or adaptation.warm_start),
        }

    def open(self) -> Show:
        if self._closing or len(self._shows) >= MOST_SHOWS:
            raise TooManyShows(f"{len(self._shows)} people are watching already: try again when one has left")
        if not self.tasks:
            raise DropError("the data did not say which task it is from: start with `drop serve POLICY --env ID`")
        show = Show(self, Wish(self.first_settings, self.tasks[0]))
        self._shows[show.name] = show
        return show

    @property
    def first_settings(self) -> Settings | None:
        """The settings of the loaded policy. The page does not show the rule `first`, which asks no score model."""
        if self.search is None:
            return None
        chosen = self.search.adaptation
        rule = "best" if chosen.rule == "first" else chosen.rule
        return Settings(rule, chosen.ascent_steps, chosen.reinference_interval)

    def find(self, name: str) -> Show | None:
        return self._shows.get(name)

    def forget(self, show: Show) -> None:
        show.stop()
        self._shows.pop(show.name, None)

    def close(self) -> None:
        """End all shows, which would go on for ever. A second call changes nothing."""
        self._closing = True
        for show in list(self._shows.values()):
            show.stop()

    def wait(self, until: float) -> bool:
        """Call this after `close`. It waits for the simulators until this moment, and says whether all of them ended.

        The process must not end in the normal way while one runs: its libraries would be taken apart under it.
        """
        shows = [thread for thread in threading.enumerate() if thread.name == THREAD]
        for thread in shows:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in shows)


class Show:
    def __init__(self, stage: Stage, wish: Wish) -> None:
        self.name = secrets.token_urlsafe(12)
        self.wish = wish
        self._stage = stage
        self._stopped = threading.Event()
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()  # None is the last one

    def stop(self) -> None:
        self._stopped.set()

    def change(self, **changes: Any) -> None:
        """Change settings, `task` or `paused`, or begin again with `restart`."""
        if changes.pop("restart", False):
            changes["restarts"] = self.wish.restarts + 1
        own: dict[str, Any] = {name: changes.pop(name) for name in ("task", "paused", "restarts") if name in changes}
        if own.get("task", self.wish.task) not in self._stage.tasks:
            raise DropError(f"{own['task']}: is not a task for this policy: choose from {', '.join(self._stage.tasks)}")
        if changes:
            if self.wish.settings is None:
                raise DropError("this policy infers no embedding: there is nothing to set")
            own["settings"] = replace(self.wish.settings, **changes)
        self.wish = replace(self.wish, **own)

    async def events(self) -> AsyncIterator[Event | None]:
        """The events, as long as somebody listens. None means that nothing happened for a second."""
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, name=THREAD, daemon=True).start()
        try:
            while True:
                try:
                    event = await asyncio.wait_for(self._events.get(), 1.0)
                except TimeoutError:
                    yield None
                    continue
                if event is None:
                    return
                yield event
        finally:
            self._stage.forget(self)

    # --- the thread ---

    def _run(self) -> None:
        try:
            settings = self.wish.settings
            known = {} if settings is None else {"settings": asdict(settings)}
            self._say("hello", name=self.name, **known, **self._stage.about())
            while not self._stopped.is_set():
                self._play(self.wish.task)
        except Exception as error:  # tell the page: nobody reads a thread's traceback
            self._say("trouble", error=" ".join(str(error).split()) or type(error).__name__)
        finally:
            self._put(None)  # at the end, so that all earlier events are sent

    def _say(self, kind: str, **content: Any) -> None:
        """Wait while the listener is behind. So the simulation slows down, and events do not fill the memory."""
        while self._events.qsize() >= 2 and not self._stopped.is_set():
            time.sleep(0.005)
        self._put({"kind": kind, **content})

    def _put(self, event: Event | None) -> None:
        with suppress(RuntimeError):  # the loop has closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def _play(self, task: str) -> None:
        """Play episodes of one task, until the person asks for another task."""
        origin = self._stage.loaded.origin
        env, no_frames = pictures.task_to_watch(task, limit_of_data(origin.time_limit, origin.env, task))
        try:
            check_fit(self._stage.loaded, env)
            self._say("task", task=task, no_frames=no_frames)
            env.reset(seed=0)
            camera = pictures.Camera(env) if no_frames is None else None
            number = 0
            while self.wish.task == task and not self._stopped.is_set():
                self._play_episode(env, number, camera)
                number += 1
        finally:
            env.close()

    def _play_episode(self, env: gymnasium.Env[Any, Any], number: int, camera: pictures.Camera | None) -> None:
        began = self.wish
        episode = ShownEpisode(self._stage, env, number)
        while not episode.over and not self._stopped.is_set():
            wish = self.wish
            if wish.task != began.task or wish.restarts != began.restarts:
                return
            if wish.paused:
                self._stopped.wait(0.05)
                continue
            since = time.monotonic()
            points, drawn = episode.play_on(wish.settings)
            settings = {} if wish.settings is None else {"settings": asdict(wish.settings)}
            image = None if camera is None else camera.frame()
            self._say("frame", episode=number, points=points, image=image, **settings, **drawn)
            self._stopped.wait(max(0.0, 1.0 / FRAMES_PER_SECOND - (time.monotonic() - since)))
        if episode.over:
            self._say("episode", total=episode.total, score=self._score(episode.total))

    def _score(self, total: float) -> float | None:
        """The normalised score, if this is the policy's own task and it has reference returns."""
        origin = self._stage.loaded.origin
        if origin.score_range is None or self.wish.task != origin.env:
            return None
        low, high = origin.score_range
        return 100.0 * (total - low) / (high - low)


class ShownEpisode:
    """One episode of a show. It plays a few steps for each frame."""

    def __init__(self, stage: Stage, env: gymnasium.Env[Any, Any], number: int) -> None:
        self._stage, self._env, self._number = stage, env, number
        self._observation = np.asarray(env.reset(seed=number)[0], np.float32)
        self._choice = None if stage.search is None else no_choice_yet(stage.search)
        self._carry = None if stage.search is not None else stage.loaded.start(1)
        self._settings: Settings | None = None
        self._since = 0  # steps since z was first inferred under these settings
        self.step, self.total, self.over = 0, 0.0, False

    def play_on(self, settings: Settings | None) -> tuple[list[list[float | None]], Event]:
        """Play the next steps: for each its number, the scores of z* and of the best z_n, and the return so far. The
        event says what to draw."""
        if settings != self._settings:
            self._settings, self._since = settings, 0  # a new rule that chooses once chooses now
        points: list[list[float | None]] = []
        sight: Sight | None = None
        while len(points) < STEPS_PER_FRAME and not self.over:
            action, sight = self._act()
            _check_finite(self.step, action, sight)
            found, reward, ended, truncated, _ = self._env.step(action)
            if self._carry is not None:
                self._carry = tell_rewards(self._carry, np.array([reward]))
            self._observation = np.asarray(found, np.float32)
            self.step, self.total, self.over = self.step + 1, self.total + float(reward), bool(ended or truncated)
            seen = (None, None) if sight is None else (float(sight.score), float(np.max(sight.scores)))
            points.append([self.step, *seen, self.total])
            _check_finite(self.step, self.total)
        return points, self._drawn(sight)

    def _act(self) -> tuple[np.ndarray, Sight | None]:
        loaded, search = self._stage.loaded, self._stage.search
        draws = loaded.traits.draws
        key = jax.random.fold_in(jax.random.key(self._number), self.step) if draws else None
        if search is None or self._settings is None or self._choice is None:
            self._carry, actions = loaded.step(self._carry, self._observation[None], key)
            return actions[0], None
        action, sight = see(search, loaded.scaling, self._settings, self._since, self._choice, self._observation, key)
        self._choice, self._since = sight.choice, self._since + 1
        return action, sight

    def _drawn(self, sight: Sight | None) -> Event:
        plane = self._stage.plane
        if sight is None or plane is None:
            return {}
        return {
            "scores": np.round(sight.scores, 5).tolist(),
            "ends": _rounded(plane.points(np.asarray(sight.ends))),
            "z": _rounded(plane.points(np.asarray(sight.choice.z))),
            "start": int(sight.choice.start),
        }


def _rounded(points: np.ndarray) -> Any:
    return np.round(points, 4).tolist()


def _check_task(loaded: LoadedPolicy, env_id: str) -> None:
    """Refuse a task that does not fit, before anything is served. We check a task that a person named, but not the task
    that the data names: it may not be installed on this machine."""
    env = make_env(env_id)
    try:
        check_fit(loaded, env)
    finally:
        env.close()


def _check_finite(step: int, *found: Any) -> None:
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found)):
        raise DropError(
            f"step {step}: an action, a score or the reward is not finite: the policy is damaged, "
            "or too far from its data"
        )


def tasks_of(env: str | None) -> list[str]:
    """The policy's own task first, then all tasks with the same observations and actions."""
    if env is None:
        return []
    family: tuple[str, ...] = next((family for family in FAMILIES if env in family), ())
    return list(dict.fromkeys([env, *family]))
